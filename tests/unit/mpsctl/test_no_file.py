"""What is no file where one is expected: typed, at once, one instance's finding, and the end of no look."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

import pytest

from fakes import Host, uuid
from mpsctl.adapters import files, hardware, locks, systemd
from mpsctl.converge import reconcile
from mpsctl.converge.request import Request
from mpsctl.lifecycle import drain as lifecycle
from mpsctl.model.errors import FAULT, BadValue, NoRight, NotAFile, TooLarge, Unreadable
from mpsctl.store import configuration, drains, limit_bypasses, measured, record, saved_compute_modes, unresponsive
from shell import Shell


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """A read that waits for a writer fails the test, and does not hang it."""
    signal.alarm(60)
    yield
    signal.alarm(0)


def folder(path: Path) -> None:
    path.mkdir(parents=True)
    (path / "kept").touch()


def fifo(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as one:
        here = os.getcwd()
        os.chdir(path.parent)  # a name of at most 107 bytes
        one.bind(path.name)
        os.chdir(here)


def link_to_nothing(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to("/nowhere/at/all")


def link_to_itself(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(path.name)


def link_to_a_device(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to("/dev/zero")


def large(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * (20 << 20))


def nested(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[" * 200_000)


def no_text(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\xff\xfe\x00\xd8")


Planted = Callable[[Path], None]
NO_FILES = [folder, fifo, a_socket, link_to_a_device, link_to_itself]
EVERY: list[Planted] = [*NO_FILES, link_to_nothing, large, nested, no_text]


def replaced(path: Path, plant: Planted) -> None:
    path.unlink(missing_ok=True)
    plant(path)


# -- the adapter


@pytest.mark.parametrize(
    ("plant", "says"),
    [
        (folder, "which is a folder"),
        (fifo, "which is a FIFO"),
        (a_socket, "which is a socket"),
        (link_to_a_device, "which is a device"),
    ],
)
def test_only_a_file_is_opened(root: Path, plant: Planted, says: str) -> None:
    plant(root / "x")
    with pytest.raises(NotAFile, match=f"{root}/x, {says}, expected a file") as error:
        files.read_text(root / "x")
    assert error.value.path == str(root / "x")
    assert error.value.what in says


def test_a_link_to_a_file_is_followed_and_one_to_nothing_is_no_file(root: Path) -> None:
    (root / "file").write_text("text")
    (root / "link").symlink_to("file")
    link_to_nothing(root / "dangling")
    assert files.read_text(root / "link") == "text"
    assert files.read_text(root / "dangling") is None
    assert files.read_text(root / "file" / "below") is None


def test_what_reads_badly_is_typed(root: Path) -> None:
    large(root / "large")
    with pytest.raises(TooLarge):
        files.read_text(root / "large")
    link_to_itself(root / "circle")
    with pytest.raises(Unreadable, match="cannot be read"):
        files.read_text(root / "circle")
    no_text(root / "bytes")
    assert files.read_text(root / "bytes") is not None
    (root / "full").write_bytes(b"x" * 100)
    assert files.read_text(root / "full", 100) == "x" * 100


@pytest.mark.skipif(os.geteuid() != 0, reason="root gives up its rights here")
def test_a_file_of_others_is_told_as_such(root: Path) -> None:
    (root / "closed").write_text("x")
    (root / "closed").chmod(0o600)
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            files.read_text(root / "closed")
        except NoRight as error:
            os._exit(error.exit_code)
        finally:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_a_folder_is_never_replaced_and_named(root: Path) -> None:
    folder(root / "x")
    with pytest.raises(NotAFile, match=f"{root}/x, which is a folder"):
        files.write(root / "x", "text")
    assert (root / "x/kept").exists()
    assert [path.name for path in root.iterdir()] == ["x"], "no half is left"
    (root / "file").touch()
    with pytest.raises(NotAFile, match=f"{root}/file, which is a file, expected a folder"):
        files.write(root / "file" / "below", "text")
    with pytest.raises(NotAFile, match="expected a link"):
        files.replace_symlink(root / "x", "file")


@pytest.mark.parametrize("plant", NO_FILES)
def test_a_lock_that_is_no_file_keeps_nobody_waiting(root: Path, plant: Planted) -> None:
    plant(root / "lock")
    for act in (locks.take, locks.wait_until_free):
        with pytest.raises((NotAFile, OSError)):
            act(root / "lock", 0.0)


def test_logind_s_file_that_is_none_does_not_end_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> Optional[str]:
        raise NotAFile(str(path), "a folder")

    monkeypatch.setattr(systemd.files, "read_text", refuse)  # type: ignore[attr-defined]
    assert systemd.Systemctl().session_state("7") == ""
    monkeypatch.setattr(hardware.files, "read_text", refuse)  # type: ignore[attr-defined]
    assert hardware.os_release() == {"ID": "", "ID_LIKE": "", "VERSION_ID": ""}


# -- what is remembered


@pytest.mark.parametrize("plant", EVERY)
def test_what_is_remembered_in_no_file_is_not_remembered(host: Host, plant: Planted) -> None:
    here = host.places.runtime("0")
    for name in ("in-force.json", "starts.json", "silent.json", "escapes.json"):
        replaced(here / name, plant)
    replaced(host.places.measured, plant)
    replaced(saved_compute_modes.directory(host.world) / uuid(0), plant)
    assert record.read(host.world, "0") is None
    assert record.short_lives(host.world, "0") is None
    assert not unresponsive.remembered(host.world, "0", 1, 2)
    assert limit_bypasses.read(host.world, "0") == {}
    assert measured.read(host.world) == []
    assert saved_compute_modes.read(host.world, host.nvml.all[0]) is None
    record.forget(host.world, "0")
    record.forget_starts(host.world, "0")
    unresponsive.forget(host.world, "0")
    limit_bypasses.forget(host.world, "0")
    saved_compute_modes.forget(host.world, host.nvml.all[0])


@pytest.mark.parametrize("plant", [folder, fifo, a_socket, link_to_a_device, link_to_itself, large, nested, no_text])
def test_whatever_has_the_mark_s_name_keeps_the_door_closed(host: Host, plant: Planted) -> None:
    host.desired()
    host.start()
    replaced(host.places.runtime("0") / "drained.json", plant)
    drained = drains.read(host.world, "0")
    assert drained is not None
    assert drained.since == "an unknown time"
    if plant is folder:
        with pytest.raises(NotAFile, match=r"drained\.json, which is a folder"):
            lifecycle.undrain(host.world, "0")
    else:
        lifecycle.undrain(host.world, "0")
        assert drains.read(host.world, "0") is None
        assert host.door_is_open()


def test_a_mode_that_is_none_is_not_brought_back(host: Host) -> None:
    path = saved_compute_modes.directory(host.world) / uuid(0)
    path.parent.mkdir(parents=True)
    path.write_text("rm -rf\n")
    assert saved_compute_modes.read(host.world, host.nvml.all[0]) is None


# -- the desired state


@pytest.mark.parametrize("plant", EVERY)
def test_an_instance_s_file_that_is_none_is_refused_by_its_name(host: Host, plant: Planted) -> None:
    plant(host.places.conf("x"))
    assert configuration.names(host.world) == ["x"]
    with pytest.raises(BadValue, match=str(host.places.conf("x"))):
        configuration.load(host.world, "x")


@pytest.fixture
def live(host: Host) -> Host:
    host.desired(DeviceMemoryLimit="4G")
    host.systemd.unit("mps-control@0.service").enabled = True
    host.start()
    return host


@pytest.mark.parametrize("plant", EVERY)
@pytest.mark.parametrize(
    ("verb", "usual"),
    [("status", 1), ("verify", None), ("health", 1), ("clients", 0), ("gpus", 0), ("doctor", None)],
)
@pytest.mark.wording
def test_one_instance_s_fault_is_that_instance_s(
    mpsctl: Shell, live: Host, verb: str, usual: Optional[int], plant: Planted
) -> None:
    before = mpsctl.json(verb)
    plant(live.places.conf("x"))
    code = mpsctl(verb, "--json")
    assert code != FAULT
    assert usual is None or code == usual
    after: Any = json.loads(mpsctl.out)
    if verb in ("status", "health", "clients"):
        assert after["instances"]["0"] == before["instances"]["0"]
    if verb in ("status", "health", "verify"):
        assert str(live.places.conf("x")) in mpsctl.out


@pytest.mark.parametrize("plant", EVERY)
@pytest.mark.parametrize("verb", [["status"], ["verify"], ["health"], ["doctor"], ["remove", "--check"]], ids=" ".join)
def test_a_look_goes_on_over_every_file_of_an_instance(
    mpsctl: Shell, live: Host, verb: list[str], plant: Planted
) -> None:
    here = live.places.runtime("0")
    for name in ("in-force.json", "starts.json", "silent.json", "escapes.json", "drained.json", "daemon.env"):
        replaced(here / name, plant)
    assert mpsctl(*verb) in (0, 1, 2, 3, 4)
    assert "a fault of mpsctl" not in mpsctl.err


@pytest.mark.parametrize("plant", EVERY)
@pytest.mark.parametrize("desired", [False, True])
@pytest.mark.parametrize("check", [True, False])
def test_reconcile_names_what_is_in_its_way(
    mpsctl: Shell, live: Host, plant: Planted, desired: bool, check: bool
) -> None:
    path = live.places.conf("1")
    plant(path)
    text = live.conf("1", {"GPUs": "1"})
    wanted = {"0": live.places.conf("0").read_text(), **({"1": text} if desired else {})}
    request = Request((), tuple(wanted.items()))
    answer = reconcile.reconcile(live.world, request, check)
    if desired and plant in NO_FILES:
        assert answer.error is not None
        assert str(path) in answer.error
        assert "\n" not in answer.error
    elif not check:
        assert answer.error is None or str(path) not in answer.error
    if not desired:
        assert os.path.lexists(path), "what is not ours stays"
