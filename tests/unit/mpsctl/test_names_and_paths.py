"""Names that systemd, a path and a socket address can carry, and directories where a daemon can live."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsctl.model.checked_values import (
    DAEMON_DIRECTORY_MAX_BYTES,
    PUBLIC_DIRECTORY_MAX_BYTES,
    check_name,
    check_pipe_directory,
    check_pipe_root,
)
from mpsctl.model.errors import BadValue
from mpsctl.model.places import Places

LONGEST_PUBLIC = PUBLIC_DIRECTORY_MAX_BYTES
SUN_PATH_BYTES = 108
"""A socket's address in Linux, its final zero byte included (unix(7))."""


def path_of(length: int) -> str:
    return "/run/" + "m" * (length - len("/run/"))


@pytest.mark.parametrize("name", ["0", "12", "a", "infer", "team-a", "a.b_c-d", "G0", "x" * 32])
def test_a_name_is_letters_digits_and_a_few_marks(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-a",
        ".a",
        "_a",
        "a b",
        "a/b",
        "a@b",
        "a%i",
        "a:b",
        "a\n",
        "ä",
        "x" * 33,
        "..",
        "../x",
        "a\\x2d",
        "a;b",
        None,
        0,
        True,
        ["a"],
    ],
)
def test_any_other_name_is_refused_and_named_by_its_variable(name: object) -> None:
    with pytest.raises(BadValue, match="the instance name") as refusal:
        check_name(name)
    assert refusal.value.variable == "mps_instances"


@given(st.text(max_size=40))
def test_no_name_that_is_taken_needs_escaping_by_systemd_or_leaves_its_directory(name: str) -> None:
    try:
        check_name(name)
    except BadValue:
        return
    assert all(c.isascii() and (c.isalnum() or c in "_.-") for c in name)
    assert name[0].isalnum()


def test_both_directories_and_their_longest_sockets_fit_a_socket_address() -> None:
    """The arithmetic behind 87 (control daemons 535, 550, 555)."""
    public = check_pipe_directory(path_of(LONGEST_PUBLIC))
    assert len(f"{public}/front-door") < SUN_PATH_BYTES
    own = str(Places().pipe("x" * 32))
    assert len(own) <= DAEMON_DIRECTORY_MAX_BYTES
    assert len(f"{own}/control_privileged") < SUN_PATH_BYTES


@pytest.mark.parametrize("excess", [1, 2, 40])
def test_one_byte_more_is_refused_and_says_by_how_much(excess: int) -> None:
    with pytest.raises(BadValue) as refusal:
        check_pipe_directory(path_of(LONGEST_PUBLIC + excess))
    assert f"of {LONGEST_PUBLIC + excess} bytes" in refusal.value.found
    assert f"at most {LONGEST_PUBLIC} bytes" in refusal.value.expected
    assert refusal.value.remedy == f"shorten it by {excess}"


def test_a_pipe_root_is_measured_with_the_longest_of_the_instances_names() -> None:
    root = path_of(LONGEST_PUBLIC - 1 - 10)
    assert check_pipe_root(root, "x" * 10) == root
    with pytest.raises(BadValue, match="shorten it by 1") as refusal:
        check_pipe_root(root, "x" * 11)
    assert refusal.value.variable == "mps_pipe_root"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/tmp/nvidia-mps", "emptied by cleaners"),
        ("/tmp", "emptied by cleaners"),
        ("/var/tmp/mps", "emptied by cleaners"),
        ("/dev/shm/mps", "emptied by cleaners"),
        ("/root/mps", "closed to other users"),
        ("/root", "closed to other users"),
        ("/home/somebody/mps", "ProtectHome="),
        ("/run/user/1000/mps", "ProtectHome="),
        ("/etc/mps", "ProtectSystem="),
        ("/usr/local/mps", "ProtectSystem="),
        ("/boot", "ProtectSystem="),
        ("/lib/mps", "ProtectSystem="),
        ("/proc/mps", "the kernel's"),
        ("/sys/fs/cgroup/mps", "the kernel's"),
        ("/dev/mps", "the kernel's"),
        ("/run/mps-fleet", "our records"),
        ("/var/lib/mps-fleet/pipes", "our records"),
        ("/run/systemd/mps", "systemd's own"),
    ],
)
def test_places_that_are_cleaned_shared_or_closed_are_refused(path: str, why: str) -> None:
    with pytest.raises(BadValue, match=why):
        check_pipe_directory(path)


@pytest.mark.parametrize(
    "path",
    ["/run/nvidia-mps/0", "/tmpfs/mps", "/rooted", "/var/lib/mps.d/a_b-c", "/mps", "/etcetera/mps", "/homes/mps"],
)
def test_other_places_are_taken(path: str) -> None:
    assert check_pipe_directory(path) == path


@pytest.mark.parametrize("path", ["/run", "/var", "/var/lib", "/srv", "/opt", "/mnt"])
def test_a_pipe_root_is_no_folder_that_others_have_theirs_in(path: str) -> None:
    """Else an instance named `lib` would have /var/lib."""
    with pytest.raises(BadValue, match=f"write {path}/nvidia-mps"):
        check_pipe_root(path)
    assert check_pipe_root(f"{path}/nvidia-mps") == f"{path}/nvidia-mps"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "run/mps",
        "./mps",
        "/run/mps/",
        "//run/mps",
        "/run//mps",
        "/run/../tmp/mps",
        "/run/./mps",
        "/run/..",
        "/run/m ps",
        "/run/mps\n",
        "/run/%i",
        "/run/müps",
        "/run/$HOME",
        "/run/a,b",
        None,
        7,
    ],
)
def test_a_path_is_absolute_clean_and_plain(path: object) -> None:
    with pytest.raises(BadValue):
        check_pipe_directory(path)
