"""A rollout of changed limits by playbooks/limits.yml over lab hosts of all three control daemons.

The GPUs are simulated, the daemons, systemd and ssh are real. One host can be given a front-end that is a
labelled stand-in: it drops the commands that set memory limits, so that this host's daemon refuses to come to
the desired state.
"""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

from .conftest import PROJECT, LabHost, hosts

DAEMONS = ("535", "550", "555")
GPUS = 2
BEFORE, AFTER = ("4G", "50.0"), ("6G", "40.0")

_BINARY = "/usr/bin/nvidia-cuda-mps-control"
_REFUSING = f"""\
#!/bin/sh
# SIMULATED (mps-fleet tests): NVIDIA's front-end, to whose daemon no command that sets a memory limit gets through.
[ $# -eq 0 ] || exec {_BINARY}.real "$@"
sed '/^set_default_device_pinned_mem_limit /d' | {_BINARY}.real
"""

# Another front-end, the health timer's look for one, leaves ours without an answer: then it is asked again.
_ASK = """
ask() {
  pid=$(systemctl show --value -p MainPID mps-control@$1); shift
  place=$(tr '\\0' '\\n' </proc/$pid/environ | grep ^CUDA_MPS_PIPE_DIRECTORY=)
  for _ in $(seq 100); do
    answer=$(echo "$@" | env $place $real) && [ -n "$answer" ] && break
    sleep 0.2
  done
  echo "${answer:-not-served}"
}
"""


@dataclass(frozen=True)
class Found:
    """What a host has: a checksum over its files, its daemons' processes, and what NVIDIA's front-end reads."""

    files: str
    main_pids: tuple[str, ...]
    limits: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Played:
    exit_code: int
    output: str

    def failures(self) -> list[str]:
        """The lines that failed hosts said; YAML folds a long one."""
        blocks = re.findall(r"^ +msg: (.*?)(?=^ {0,4}\w|^$)", self.output, re.MULTILINE | re.DOTALL)
        return [" ".join(block.removeprefix(">-").split()).strip("'\"") for block in blocks]


@dataclass(frozen=True)
class Rollout:
    prefix: str
    hosts: list[LabHost]

    def play(self, playbook: str, *arguments: str, config: Path = PROJECT / "ansible.cfg") -> Played:
        done = subprocess.run(
            ["ansible-playbook", "-i", "inventories/lab", "-l", "gpu-nodes", *arguments, playbook],
            cwd=PROJECT,
            env={
                **os.environ,
                "MPS_LAB_PREFIX": self.prefix,
                "ANSIBLE_CONFIG": str(config),
                "ANSIBLE_NOCOLOR": "1",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        return Played(done.returncode, done.stdout + done.stderr)

    def converge(self) -> None:
        done = self.play("site.yml", "-e", "mps_device_memory_limit=4G", "-e", "mps_active_thread_percentage=50")
        assert done.exit_code == 0, done.output

    def change(self, *arguments: str) -> Played:
        limits = ("-e", "mps_device_memory_limit=6G", "-e", "mps_active_thread_percentage=40")
        return self.play("playbooks/limits.yml", *limits, *arguments)

    def found(self) -> list[Found]:
        return [found_on(host) for host in self.hosts]


def found_on(host: LabHost) -> Found:
    asks = [
        f"ask {gpu} {getter}"
        for gpu in range(GPUS)
        for getter in ("get_default_device_pinned_mem_limit 0", "get_default_active_thread_percentage")
    ]
    said = host.run(
        "find /etc/mps /etc/systemd/system /usr/local/bin -type f -printf '%p %m %T@ ' -exec sha256sum '{}' ';'"
        " | sort | sha256sum; systemctl show --value -p MainPID"
        + "".join(f" mps-control@{gpu}" for gpu in range(GPUS))
        + f"; real={_BINARY}.real; [ -x $real ] || real={_BINARY}; {_ASK}"
        + "; ".join(asks)
    ).split()
    values = said[2 + GPUS :]
    return Found(said[0], tuple(said[2 : 2 + GPUS]), tuple(zip(values[::2], values[1::2])))


@contextmanager
def refusing(host: LabHost) -> Iterator[None]:
    """The simulated front-end on a host; its running daemons stay as they are."""
    host.run(f"cat >{_BINARY}.new && chmod 755 {_BINARY}.new", _REFUSING.encode())
    host.run(f"mv {_BINARY} {_BINARY}.real && mv {_BINARY}.new {_BINARY}")
    try:
        yield
    finally:
        host.run(f"mv {_BINARY}.real {_BINARY}")


@contextmanager
def fleet(prefix: str, hosts_of_each: int) -> Iterator[Rollout]:
    """Converged hosts, ``hosts_of_each`` of every control daemon."""
    with ExitStack() as stack:
        booted = []
        for daemon in DAEMONS:
            options = ("--hosts", str(hosts_of_each), "--gpus", str(GPUS), "--daemon", daemon)
            booted += stack.enter_context(hosts(f"{prefix}-{daemon}", *options))
        rollout = Rollout(prefix, booted)
        rollout.converge()
        yield rollout


def prove_a_healthy_rollout(rollout: Rollout) -> None:
    before = rollout.found()
    assert [one.limits for one in before] == [(BEFORE,) * GPUS] * len(before)
    done = rollout.change()
    assert done.exit_code == 0, done.output
    after = rollout.found()
    assert [one.limits for one in after] == [(AFTER,) * GPUS] * len(after)
    assert [one.main_pids for one in after] == [one.main_pids for one in before]
    again = rollout.change()
    assert again.exit_code == 0
    assert "changed=1" not in again.output


def prove_a_rollout_that_stops(rollout: Rollout, number: int, first_untouched: int, *arguments: str) -> str:
    """Host ``number`` refuses, and from host ``first_untouched`` on (both from 1) nothing happens; the line."""
    before = rollout.found()
    with refusing(rollout.hosts[number - 1]):
        done = rollout.change(*arguments)
        after = rollout.found()
    assert done.exit_code not in (0, 4), done.output
    assert after[first_untouched - 1 :] == before[first_untouched - 1 :], "untouched, times of files included"
    failed_before, failed_after = before[number - 1], after[number - 1]
    assert failed_after.limits == failed_before.limits == (BEFORE,) * GPUS
    assert failed_after.main_pids == failed_before.main_pids
    rest = [found for ordinal, found in enumerate(after, 1) if ordinal < first_untouched and ordinal != number]
    assert [found.limits for found in rest] == [(AFTER,) * GPUS] * len(rest)
    (line,) = done.failures()
    log = "its log says 4096 MiB (0x100000000 bytes)"
    assert f"memory limit of device 0 (default): the daemon shows 4G, {log}, desired 6144 MiB" in line, done.output
    assert "; the former limits are in force again; not begun and untouched: " in line
    rollout.hosts[number - 1].run("mpsctl status")  # nothing is critical, by the files that are back
    return line
