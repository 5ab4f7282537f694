"""What runs over many hosts say: names of an inventory, each for one of a few lab hosts, or for its own."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterator, Optional, Sequence

from .conftest import LAB, PROJECT, LabHost
from .rollout import Played

SCREEN_LINES = 50
_SSH = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o IdentitiesOnly=yes"


@dataclass(frozen=True)
class Said(Played):
    """A run's exit code and output, and the lines at its end that say what it did. Warnings go elsewhere."""

    stdout: str

    @property
    def summary(self) -> list[str]:
        _, found, tail = self.stdout.partition("\nWHAT THE RUN ")
        assert found, self.output
        return tail.splitlines()[1:]

    @property
    def length(self) -> int:
        return len(self.output.splitlines())


@dataclass
class Aliases:
    """An inventory of ``count`` names, gpu-01 and so on, over these hosts; ``own`` are variables of single names."""

    folder: Path
    hosts: Sequence[LabHost]
    count: int
    own: dict[str, dict[str, Any]] = field(default_factory=dict)

    def play(self, playbook: str, *arguments: str, stdout: Optional[str] = None, **variables: object) -> Said:
        named = {}
        for number in range(self.count):
            facts, name = self.hosts[number % len(self.hosts)].facts, f"gpu-{number + 1:02}"
            named[name] = {
                "ansible_host": facts["address"],
                "ansible_port": facts["port"],
                "ansible_user": "root",
                "ansible_ssh_private_key_file": facts["key"],
                "ansible_ssh_common_args": _SSH,
                **self.own.get(name, {}),
            }
        inventory = self.folder / "inventory.json"
        inventory.write_text(json.dumps({"gpu-nodes": {"hosts": named, "vars": variables}}))
        environment = {**os.environ, "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
        if stdout is not None:
            environment["ANSIBLE_STDOUT_CALLBACK"] = stdout
        done = subprocess.run(
            ["ansible-playbook", "-i", str(inventory), *arguments, playbook],
            cwd=PROJECT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return Said(done.returncode, done.stdout + done.stderr, done.stdout)

    def everybody(self, *but: str) -> str:
        """All names but these, which do not follow each other, as a run writes them."""
        names = [f"gpu-{number + 1:02}" for number in range(self.count)]
        rows: list[list[str]] = [[]]
        for name in names:
            rows[-1].append(name) if name not in but else rows.append([])
        written = ", ".join(f"{row[0]} … {row[-1]}" if len(row) > 2 else ", ".join(row) for row in rows if row)
        return f"{written} ({self.count - len(but)} hosts)"


def state_of(host: LabHost) -> str:
    """Files with their times, and the daemons' processes."""
    return host.run(
        "find /etc/mps /etc/systemd/system /usr/local/bin -type f -printf '%p %m %T@ ' -exec sha256sum '{}' ';'"
        " 2>/dev/null | sort; systemctl show --value -p MainPID 'mps-control@*'"
    )


@contextmanager
def client(host: LabHost, stays_s: int) -> Iterator[None]:
    """A simulated client of instance 0 that has come in, and ends by itself after a while."""
    line = (
        f"sleep {stays_s} | CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps/0"
        " exec /usr/lib/mps-lab/simulated_client.py --hold stdin"
    )
    with subprocess.Popen([LAB, "ssh", host.name, line], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        assert said["outcome"] == "client"
        try:
            yield
        finally:
            host.run(f"kill {said['pid']}", check=False)  # it may have ended by itself
            process.kill()


REFUSING = {"mps_instances": [{"name": "a", "gpus": ["9"]}]}
"""What a host with two GPUs refuses, and nobody else can tell."""


def prove_one_refuses_alone(fleet: Aliases, refusing: str) -> None:
    """A first converge: nothing with all or nothing, everything but one without it."""
    fleet.own = {refusing: REFUSING}
    before = [state_of(host) for host in fleet.hosts]
    nothing = fleet.play("site.yml", mps_device_memory_limit="4G", mps_all_or_nothing=True)
    assert nothing.exit_code != 0
    assert [state_of(host) for host in fleet.hosts] == before
    assert nothing.summary[0] == (
        f"not begun and untouched, as mps_all_or_nothing is set: {fleet.everybody(refusing)}"
    ), nothing.output
    assert nothing.summary[1].startswith(f"refused: {refusing}: mps_instances: ")
    alone = fleet.play("site.yml", mps_device_memory_limit="4G")
    assert alone.exit_code != 0
    assert alone.summary[-1] == nothing.summary[1]
    assert "instances 0 and 1 set up and started" in alone.summary[0]
    assert "compute mode default to exclusive_process on GPU 0 and 1" in alone.summary[0]
    assert f"fatal: [{refusing}]" in alone.output
    assert alone.length <= SCREEN_LINES, alone.output
    fleet.own = {}


def prove_like_hosts_have_one_diff(fleet: Aliases) -> None:
    before = [state_of(host) for host in fleet.hosts]
    done = fleet.play("site.yml", "--check", "--diff", mps_device_memory_limit="5G", mps_stop_timeout_s=31)
    assert done.exit_code == 0, done.output
    assert done.output.count("+DeviceMemoryLimit=5G") == 2, "one for each instance"
    assert done.output.count(f"{fleet.everybody()}:\n--- before") == 1
    assert len(done.summary) == 1, done.output
    (line,) = done.summary
    assert line.startswith(f"{fleet.everybody()}: would change limit 4G to 5G live on 0 and 1; ")
    assert "change stop timeout 20 s to 31 s" in line
    assert [state_of(host) for host in fleet.hosts] == before
    assert done.length < 150, done.output


def prove_a_limit_fits_a_screen(fleet: Aliases, own_hosts: bool) -> None:
    """``own_hosts``: each name has a host of its own, and so all are changed."""
    done = fleet.play("playbooks/limits.yml", mps_device_memory_limit="6G")
    assert done.exit_code == 0, done.output
    assert "limit 4G to 6G live on 0 and 1" in done.summary[0]
    if own_hosts:
        assert done.summary == [f"{fleet.everybody()}: limit 4G to 6G live on 0 and 1"]
    assert done.length <= SCREEN_LINES, done.output
    again = fleet.play("playbooks/limits.yml", mps_device_memory_limit="6G")
    assert again.summary == [f"nothing to do: {fleet.count} hosts"]
    print(done.output)


def prove_the_users_own_callback(fleet: Aliases) -> None:
    """Ansible's default one in place of ours: a line for each host, and what the run did all the same."""
    done = fleet.play("playbooks/limits.yml", stdout="ansible.builtin.default", mps_device_memory_limit="7G")
    assert done.exit_code == 0, done.output
    assert "limit 6G to 7G live on 0 and 1" in done.summary[0]
    assert done.output.partition("PLAY RECAP")[2].count("failed=0") == fleet.count


def prove_a_verification_needs_no_program_of_its_own(fleet: Aliases) -> None:
    """The installed one answers over ssh, where a terminal would change what it prints."""
    done = fleet.play("playbooks/verify.yml", "-v", "-e", f"report_directory={fleet.folder}")
    assert done.output.count("program_installed: true") == fleet.count, done.output
