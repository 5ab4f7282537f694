"""`lab/lab up --gpu real`: the whole life of such a host, on a machine whose driver is a stand-in (stand_in.sh).

What a real GPU adds to this is tried by `make gpu-test`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, Optional

import pytest

from .conftest import LAB, PROJECT

BUNDLE = PROJECT / "build/gpu-bundle.tar.xz"
BUILD = PROJECT / "tests/gpu/bundle.sh"
DEADLINE_S = 60


@dataclass(frozen=True)
class Machine:
    """A machine with a driver, and a lab of its own there."""

    kind: str
    base: Path
    bundle: Optional[Path] = None

    def lab(self, *words: str, inside: bool = True, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the lab, on the stand-in or as the real machine, which sees the same lab and has ssh."""
        stand_in = ["unshare", "--mount", "--propagation", "private", str(PROJECT / "tests/lab/stand_in.sh")]
        done = subprocess.run(
            [
                *([*stand_in, str(self.base / "stand-in"), self.kind] if inside else []),
                sys.executable,
                str(LAB),
                *words,
            ],
            env={
                **os.environ,
                "MPS_LAB_DIR": str(self.base / "lab"),
                **({"MPS_LAB_BUNDLE": str(self.bundle)} if self.bundle else {}),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, f"{words} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done

    def up(self) -> subprocess.CompletedProcess[str]:
        shares = ("--share", f"{self.base}/shared:/srv/given", "--share", "/:/machine")
        return self.lab("up", "--gpu", "real", "--prefix", "real", *shares)

    def row(self) -> dict[str, Any]:
        rows = json.loads(self.lab("list", "--json", inside=False).stdout)
        assert len(rows) == 1
        found: dict[str, Any] = rows[0]
        return found

    def ask(self, command: str, inside: bool = True) -> str:
        return self.lab("ssh", "real-01", command, inside=inside).stdout.strip()

    def traces(self) -> list[str]:
        """Mounts and processes of the lab, anywhere on the machine."""
        name = str(self.base)
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            for kind in ("mountinfo", "cmdline"):
                try:
                    if path.name != str(os.getpid()) and name in (path / kind).read_text(errors="replace"):
                        found.append(f"{path}/{kind}")
                except OSError:
                    continue
        return found


@pytest.fixture(scope="module", params=["bare", "full"])
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """With one host up: from the bundle on a bare machine, else from a root built there."""
    base = tmp_path_factory.mktemp("real")
    bundle = None
    if request.param == "bare":
        bundle = BUNDLE
        if not BUNDLE.exists() or BUNDLE.stat().st_mtime < BUILD.stat().st_mtime:
            bundle = base / "bundle.tar.xz"
            subprocess.run([BUILD, bundle, "0"], check=True)
    (base / "shared/below").mkdir(parents=True)
    (base / "shared/below/word").write_text("of the machine\n")
    there = Machine(request.param, base, bundle)
    try:
        there.up()
        yield there
    finally:
        there.lab("down", inside=False)


def test_it_says_that_nothing_is_simulated(machine: Machine) -> None:
    row = machine.row()
    assert (row["gpu"], row["simulated"], row["gpus"], row["state"]) == ("real", [], 2, "running")
    assert "2 (real, driver unknown)" in machine.lab("list").stdout
    again = machine.up().stderr
    assert "real: all; the GPUs are this machine's own" in again
    assert machine.ask("ls -d /etc/mps-lab /run/mps-lab 2>/dev/null; echo $MPSCTL_SYSROOT") == ""


@pytest.mark.parametrize("inside", [True, False], ids=["on the machine", "by ssh"])
def test_a_command_runs_there(machine: Machine, inside: bool) -> None:
    """On the bare machine through namespaces: it has no ssh."""
    assert machine.lab("ssh", "real-01", "exit 7", inside=inside, check=False).returncode == 7
    assert machine.ask("hostname; pwd; id -un; echo 'a  b'", inside=inside).splitlines() == [
        "real-01",
        "/root",
        "root",
        "a  b",
    ]
    over_ssh = machine.ask("echo ${SSH_CONNECTION:+ssh}", inside=inside)
    assert over_ssh == ("" if inside and machine.kind == "bare" else "ssh")


@pytest.mark.parametrize("inside", [True, False], ids=["on the machine", "by ssh"])
def test_the_driver_is_found_and_cannot_be_written_to(machine: Machine, inside: bool) -> None:
    assert machine.ask("nvidia-smi", inside=inside) == "a stand-in for nvidia-smi"
    python = "python3 -c 'import ctypes; print(ctypes.CDLL(\"libcuda.so.1\")._name)'"
    assert machine.ask(python, inside=inside) == "libcuda.so.1"
    assert machine.ask("systemd-run --quiet --wait --pipe nvidia-smi", inside=inside) == "a stand-in for nvidia-smi"
    for path in ("bin/nvidia-smi", "lib64/libcuda.so.1"):
        assert "Read-only file system" in machine.ask(f"touch /usr/local/nvidia/{path} 2>&1; :", inside=inside)


def test_the_devices_are_the_machine_s(machine: Machine) -> None:
    assert machine.ask("find /dev/nvidia* -type c | sort; echo word >/dev/nvidia0").split() == [
        "/dev/nvidia-caps/nvidia-cap1",
        "/dev/nvidia-uvm",
        "/dev/nvidia0",
        "/dev/nvidia1",
        "/dev/nvidiactl",
    ]


def test_a_share_is_read_and_not_written_to(machine: Machine) -> None:
    for folder in ("/srv/given", f"/machine{machine.base}/shared"):
        assert machine.ask(f"cat {folder}/below/word") == "of the machine"
        assert "Read-only file system" in machine.ask(f"touch {folder}/below/other 2>&1; :")
    assert (machine.base / "shared/below").exists()
    assert [path.name for path in (machine.base / "shared/below").iterdir()] == ["word"]
    # what is mounted below is no exception, and the host's own root is not there once more
    options = machine.ask("awk '$5 ~ \"^/machine\" {print $6}' /proc/self/mountinfo").split()
    assert options
    assert {option.split(",")[0] for option in options} == {"ro"}
    assert machine.ask(f"ls /machine{machine.base}/lab/hosts/real-01/root") == ""


def test_a_program_of_the_machine_runs_there(machine: Machine) -> None:
    assert machine.ask(f"chroot /machine cat {machine.base}/shared/below/word") == "of the machine"


def test_no_fault_can_be_planted(machine: Machine) -> None:
    for words in (("gpu", "real-01", "vanish", "0"), ("driver", "real-01", "--absent")):
        done = machine.lab(*words, inside=False, check=False)
        assert done.returncode == 1
        assert "this machine's own GPU" in done.stderr


def test_it_is_what_it_was_made_as(machine: Machine) -> None:
    done = machine.lab("up", "--gpu", "real", "--prefix", "real", check=False)
    assert done.returncode == 1
    assert "asked for ()" in done.stderr


def test_after_a_reboot_all_is_there_again(machine: Machine) -> None:
    before = machine.ask("cat /proc/sys/kernel/random/boot_id; echo kept >/root/kept").split()[0]
    machine.lab("ssh", "real-01", "systemctl reboot", check=False)
    end = time.monotonic() + DEADLINE_S
    now = before
    while now in ("", before):
        assert time.monotonic() < end, machine.row()
        now = machine.lab("ssh", "real-01", "cat /proc/sys/kernel/random/boot_id", check=False).stdout.strip()
    state = ""
    while state not in ("running", "degraded"):
        assert time.monotonic() < end, (state, machine.row())
        state = machine.lab("ssh", "real-01", "systemctl is-system-running", check=False).stdout.strip()
    assert machine.ask(
        "systemctl is-system-running; cat /root/kept; nvidia-smi; cat /srv/given/below/word"
    ).splitlines() == [
        "running",
        "kept",
        "a stand-in for nvidia-smi",
        "of the machine",
    ]


def test_a_killed_lab_leaves_nothing_running_and_comes_back(machine: Machine) -> None:
    leader = machine.row()["leader_pid"]
    behind = json.loads((machine.base / "lab/hosts/real-01/supervisor.json").read_text())["pid"]
    os.kill(behind, signal.SIGKILL)
    end = time.monotonic() + DEADLINE_S
    while Path(f"/proc/{leader}/root/etc").exists() or machine.traces():
        assert time.monotonic() < end, machine.traces()
    assert machine.row()["state"] == "stopped"
    machine.up()
    assert machine.ask("cat /srv/given/below/word") == "of the machine"


def test_down_leaves_nothing_but_caches(machine: Machine) -> None:
    machine.lab("down")
    assert machine.traces() == []
    assert [path.name for path in (machine.base / "lab").iterdir()] == ["cache"]
