"""Systemd through systemctl, the PCI bus and /proc: the thin adapters to what is outside."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Callable, Optional

import pytest

from mpsctl.adapters import hardware, procfs, systemd
from mpsctl.adapters.systemd import Systemctl
from mpsctl.model.errors import NotReady

# -- systemd


@pytest.fixture
def command(root: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a shell script in the place of a command."""

    def put(name: str, script: str) -> None:
        path = root / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    monkeypatch.setenv("PATH", f"{root}:{os.environ['PATH']}")
    return put


Command = Callable[[str, str], None]


def test_units_are_shown_in_the_order_in_which_they_were_asked_for(command: Command) -> None:
    command(
        "systemctl",
        "printf 'Id=a.service\\nActiveState=active\\nMainPID=7\\nStatusText=x=y\\n\\nId=b.service\\n"
        "ActiveState=inactive\\nMainPID=0\\n'",
    )
    shown = Systemctl().show(["a.service", "b.service"])
    assert (shown["a.service"]["MainPID"], shown["a.service"]["StatusText"]) == ("7", "x=y")
    assert shown["b.service"]["ActiveState"] == "inactive"


def test_nothing_is_asked_about_no_unit(command: Command) -> None:
    command("systemctl", "exit 1")
    assert Systemctl().show([]) == {}


def test_a_verb_that_works_has_nothing_to_say_and_one_that_fails_says_it_on_one_line(command: Command) -> None:
    command("systemctl", 'echo "$@" >&2; echo "see the journal" >&2; [ "$2" = start ]')
    assert Systemctl().act("start", ["a.service"]) is None
    assert Systemctl().act("reload", ["a.service"]) == "--no-ask-password reload a.service see the journal"


def test_a_start_that_is_only_asked_for_does_not_wait_for_its_job(command: Command) -> None:
    command(
        "systemctl",
        '[ "$*" = "--no-ask-password --no-block start a.service" ] || { echo "no such" >&2; echo unit >&2; exit 5; }',
    )
    assert Systemctl().request_start("a.service") is None
    assert Systemctl().request_start("b.service") == "no such unit"


def test_only_the_main_process_of_a_unit_is_killed(command: Callable[[str, str], None]) -> None:
    command(
        "systemctl",
        '[ "$*" = "--no-ask-password --kill-who=main --signal=SIGKILL kill a.service" ] || { echo no >&2; exit 1; }',
    )
    assert Systemctl().kill_main("a.service") is None
    assert Systemctl().kill_main("b.service") == "no"


def test_a_verb_that_fails_in_silence_says_so_itself(command: Command) -> None:
    command("systemctl", "exit 5")
    assert Systemctl().act("start", ["a.service"]) == "systemctl start ended with 5"


@pytest.mark.parametrize(("unit", "job"), [("a.service", "stop"), ("b.service", "restart"), ("c.service", None)])
def test_the_job_of_a_unit(command: Command, unit: str, job: object) -> None:
    command("systemctl", "printf '  12 a.service stop running\\n 13 b.service restart waiting\\n'")
    assert Systemctl().job(unit) == job


def test_the_journal_is_read_without_its_empty_lines(command: Command) -> None:
    command("journalctl", "printf 'one\\n\\ntwo\\n'")
    assert Systemctl().journal("a.service", 2) == ["one", "two"]


def test_the_journal_of_one_start_is_filtered_by_the_journal_itself(command: Command) -> None:
    command("journalctl", 'echo "wanted: $*"')
    (line,) = Systemctl().journal_of_start("abc123", "wanted")
    assert "_SYSTEMD_INVOCATION_ID=abc123 --grep wanted" in line


def test_a_journal_that_cannot_filter_is_filtered_here(command: Command) -> None:
    command(
        "journalctl",
        'case "$*" in *--grep*) echo "Compiled without pattern matching support" >&2; exit 1;; esac\n'
        "printf 'other\nwanted 1\nother\nwanted 2\n'",
    )
    assert Systemctl().journal_of_start("abc123", "wanted") == ["wanted 1", "wanted 2"]


def test_a_journal_with_no_such_line_is_asked_once(command: Command, root: Path) -> None:
    command("journalctl", f"echo asked >> {root}/asked; exit 1")
    assert Systemctl().journal_of_start("abc123", "wanted") == []
    assert (root / "asked").read_text() == "asked\n"


@pytest.mark.parametrize("filters", [True, False])
def test_of_a_flooded_journal_the_newest_lines_are_read_each_whole(
    command: Command, monkeypatch: pytest.MonkeyPatch, filters: bool
) -> None:
    """Whatever a user has a daemon write: memory has a bound."""
    monkeypatch.setattr(systemd, "_MOST_BYTES", 1000)
    refuse = 'case "$*" in *--grep*) echo "Compiled without pattern matching support" >&2; exit 1;; esac\n'
    command("journalctl", ("" if filters else refuse) + "seq -f 'wanted %06.0f' 1 100000")
    expected = [f"wanted {number:06}" for number in range(100_001 - 1000 // 14, 100_001)]
    assert Systemctl().journal_of_start("abc123", "wanted") == expected
    assert Systemctl().journal("a.service", 5) == expected
    assert Systemctl().kernel_log(5) == expected


def test_one_line_without_an_end_is_no_line(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "_MOST_BYTES", 1000)
    command("journalctl", "head -c 5000 /dev/zero | tr '\\0' w; printf '\nlast\n'")
    assert Systemctl().journal("a.service", 5) == ["last"]


@pytest.mark.parametrize("flood", ["exec sleep 60", "while :; do echo wanted; done", "echo wanted >&2; exec sleep 60"])
def test_a_journal_that_does_not_end_is_given_up(command: Command, monkeypatch: pytest.MonkeyPatch, flood: str) -> None:
    monkeypatch.setattr(systemd, "_JOURNAL_TIMEOUT_S", 0.5)
    command("journalctl", flood)
    asked = Systemctl()
    reads: list[Callable[[], object]] = [
        lambda: asked.journal_of_start("abc123", "wanted"),
        lambda: asked.journal("a.service", 5),
        lambda: asked.kernel_log(5),
        lambda: asked.journal_of_boot("wanted"),
    ]
    for read in reads:
        with pytest.raises(NotReady, match="did not end within"):
            read()


def test_a_settled_journal_is_synchronised_first(command: Command, root: Path) -> None:
    command("journalctl", f'echo "$1" >> {root}/asked')
    Systemctl().journal_of_start("abc123", "wanted", settled=True)
    assert (root / "asked").read_text().split() == ["--sync", "--no-pager"]


def test_what_systemd_said_since_boot(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    command("journalctl", 'echo "wanted: $*"')
    assert "-b _PID=1 --grep wanted" in (Systemctl().journal_of_boot("wanted") or [""])[0]
    command("journalctl", "exit 1")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert Systemctl().journal_of_boot("wanted") == []
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert Systemctl().journal_of_boot("wanted") is None


def test_a_host_without_systemd_is_told_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(root))
    with pytest.raises(NotReady, match="mpsctl needs systemd 249 or newer"):
        Systemctl().show(["a.service"])


def test_systemd_that_hangs_is_given_up(command: Command) -> None:
    command("systemctl", "exec sleep 60")
    with pytest.raises(NotReady, match=r"did not end within 0\.2 s"):
        Systemctl(timeout_s=0.2).act("start", ["a.service"])


# -- the PCI bus and the driver


@pytest.fixture
def sysroot(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MPSCTL_SYSROOT", str(root))
    return root


def put_device(sysroot: Path, address: str, vendor: str, class_: str) -> None:
    device = sysroot / "sys/bus/pci/devices" / address
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{class_}\n")


@pytest.mark.parametrize(
    ("vendor", "class_", "found"),
    [
        ("0x10de", "0x030000", True),
        ("0x10de", "0x030200", True),
        ("0x10de", "0x040300", False),
        ("0x10de", "0x068000", False),
        ("0x8086", "0x030000", False),
    ],
)
def test_a_gpu_is_an_nvidia_display_device(sysroot: Path, vendor: str, class_: str, found: bool) -> None:
    put_device(sysroot, "0000:00:1f.0", "0x8086", "0x060100")
    put_device(sysroot, "0000:1b:00.0", vendor, class_)
    assert hardware.nvidia_on_bus() is found


def test_a_host_without_a_pci_bus_has_a_gpu_if_the_driver_says_so(sysroot: Path) -> None:
    assert not hardware.nvidia_on_bus()
    version = sysroot / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Mon Nov  2 2026\n")
    assert hardware.driver_version() == "580.159.04"
    assert hardware.nvidia_on_bus()


def test_an_open_kernel_module_tells_its_version_too(sysroot: Path) -> None:
    version = sysroot / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.51  Release Build\n")
    assert hardware.driver_version() == "575.51"


@pytest.mark.parametrize(("value", "simulated"), [("", False), ("/", False), ("/run/mps-lab/sysroot", True)])
def test_another_root_for_the_bus_is_called_simulated(
    monkeypatch: pytest.MonkeyPatch, value: str, simulated: bool
) -> None:
    monkeypatch.setenv("MPSCTL_SYSROOT", value)
    assert hardware.simulated() is simulated


def test_binaries_are_found_where_distributions_put_them(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("sbin", "bin"):
        (root / folder).mkdir()
    monkeypatch.setattr(hardware, "SEARCH_PATH", (str(root / "bin"), str(root / "sbin")))
    assert hardware.binary(hardware.SERVER) is None
    server = root / "sbin" / hardware.SERVER
    server.write_text("")
    assert hardware.binary(hardware.SERVER) is None
    server.chmod(0o755)
    assert hardware.binary(hardware.SERVER) == server


# -- /proc


def test_a_process_is_known_by_name_command_user_and_environment() -> None:
    child = subprocess.Popen(
        ["cat", "-u"],
        env={"CUDA_MPS_PIPE_DIRECTORY": "/run/mps/0", "EMPTY": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        # The kernel names a process before it has its arguments: only what the program itself
        # sends proves that it has become the command.
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"x")
        child.stdin.flush()
        assert child.stdout.read(1) == b"x"
        assert procfs.alive(child.pid)
        assert child.pid in set(procfs.pids())
        assert child.pid in procfs.tree(os.getpid())
        assert procfs.uid(child.pid) == os.geteuid()
        assert isinstance(procfs.started_at(child.pid), int)
        assert procfs.name(child.pid) == "cat"
        assert procfs.command(child.pid) == "cat -u"
        assert procfs.environment(child.pid) == {"CUDA_MPS_PIPE_DIRECTORY": "/run/mps/0", "EMPTY": ""}
    finally:
        child.kill()
        while procfs.alive(child.pid):  # a zombie until it is waited for
            pass
        assert procfs.started_at(child.pid) is not None
        child.wait()
    assert not procfs.alive(child.pid)


@pytest.mark.parametrize(("bit", "asked"), [(0o4755, procfs.is_roots), (0o2755, procfs.has_roots_group)])
def test_a_process_is_roots_where_root_started_it_and_no_user_by_a_bit_of_its_program(
    tmp_path: Path, bit: int, asked: Callable[[int], bool]
) -> None:
    of_a_bit = tmp_path / "nvidia-cuda-mps-control"
    shutil.copy("/bin/cat", of_a_bit)
    of_a_bit.chmod(bit)
    tmp_path.chmod(0o755)
    root = os.geteuid() == 0
    for program, user, expected in (("/bin/cat", None, root), (str(of_a_bit), None, False), ("/bin/cat", 65534, False)):
        options = {"user": user, "group": user, "extra_groups": []} if root and user else {}
        child = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)  # type: ignore
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(b"x")
            child.stdin.flush()
            assert child.stdout.read(1) == b"x"
            assert asked(child.pid) == expected
        finally:
            child.kill()
            child.wait()
    assert not asked(child.pid)


def test_a_server_of_roots_daemon_has_roots_group_whatever_its_user() -> None:
    if os.geteuid():
        pytest.skip("needs root")
    child = subprocess.Popen(["/bin/sleep", "600"], user=65534, group=0, extra_groups=[])
    try:
        assert procfs.has_roots_group(child.pid)
        assert not procfs.is_roots(child.pid)
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(
    ("cgroup", "container"),
    [
        ("0::/system.slice/docker-4f1e.scope", "4f1e"),
        ("0::/docker/4f1e77", "4f1e77"),
        ("12:memory:/docker/4f1e77", "4f1e77"),
        (f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{'a' * 64}.scope", "a" * 64),
        (f"0::/kubepods/besteffort/pod7/{'b' * 64}", "b" * 64),
        ("0::/machine.slice/libpod-77ab.scope/container", "77ab"),
        ("0::/machine.slice/systemd-nspawn@gpu1.service/payload", "gpu1"),
        ("0::/lxc.payload.web/init.scope", "web"),
        ("0::/system.slice/docker.service", None),
        ("0::/user.slice/user-1000.slice/session-3.scope", None),
        ("", None),
    ],
)
def test_the_container_of_a_process_is_told_by_its_control_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, container: Optional[str]
) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(cgroup + "\n")
    monkeypatch.setattr(procfs, "_PROC", tmp_path)
    assert procfs.container(7) == container
    assert procfs.container(8) is None


def test_a_process_that_is_gone_has_nothing_to_tell() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    pid = child.pid
    assert not procfs.alive(pid)
    assert (procfs.started_at(pid), procfs.uid(pid), procfs.environment(pid)) == (None, None, None)
    assert (procfs.name(pid), procfs.command(pid)) == ("", "")
    assert (procfs.state(pid), procfs.namespace(pid, "mnt"), procfs.groups(pid)) == ("", None, ())


def test_a_process_shows_its_state_and_its_namespaces() -> None:
    assert procfs.state(os.getpid()) == "R"
    assert set(procfs.groups(os.getpid())) == {os.getegid(), *os.getgroups()}
    assert procfs.namespace(os.getpid(), "pid") == os.readlink("/proc/self/ns/pid")
    assert (procfs.root(os.getpid()) / "proc/self").exists()


@pytest.mark.parametrize("change", ["nothing", "replaced", "removed", "elsewhere"])
def test_a_daemon_whose_file_was_replaced_is_told_from_one_that_runs_the_installed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    installed, other = tmp_path / hardware.CONTROL_DAEMON, tmp_path / "other" / hardware.CONTROL_DAEMON
    other.parent.mkdir()
    for path in (installed, other):
        shutil.copy("/bin/sleep", path)
    with subprocess.Popen([str(installed), "600"]) as child:
        try:
            if change == "replaced":
                os.replace(other, installed)
            elif change == "removed":
                installed.unlink()
            found: Optional[Path] = {"removed": None, "elsewhere": other}.get(change, installed)
            monkeypatch.setattr(hardware, "binary", lambda name: found)
            why = hardware.replaced(child.pid)
        finally:
            child.kill()
    if change == "replaced":
        assert why == f"the daemon's file {installed} was replaced after its start"
    elif change == "elsewhere":
        assert why == f"the daemon runs {installed}, installed is {other}"
    else:
        assert why is None


def test_a_daemon_behind_a_wrapper_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "binary", lambda name: Path("/usr/bin") / name)
    assert hardware.replaced(os.getpid()) is None
    assert hardware.replaced(2**22 + 1) is None
