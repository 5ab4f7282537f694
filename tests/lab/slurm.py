"""A small Slurm cluster of lab hosts: Debian's slurmctld, slurmd and munge, and real jobs.

The first host has the controller; each host is a node with four GPUs. The control daemons, systemd and Slurm are real.
The GPUs, the MPS server and the clients are simulated. Slurm holds a job's processes by no control group here
(proctrack/linuxproc): the machine's controllers may lie in the layout of version 1.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, Sequence

from .conftest import hosts
from .front_door import DoorHost, until
from .rollout import Played, Rollout

GPUS, SHARDS = 4, 8
"""GPUs of a node, and shards of a GPU."""
USERS = {"alice": 2001, "bob": 2002}
CLIENT = "/usr/lib/mps-lab/simulated_client.py"
WITHIN_S = 120.0
SCRIPTS = "/usr/local/lib/mps-fleet"
LINES = "".join(
    f"{key}={SCRIPTS}/slurm-{name}\n"
    for key, name in (
        ("Prolog", "prolog"),
        ("Epilog", "epilog"),
        ("TaskProlog", "task-prolog"),
    )
)
"""What slurm.conf needs."""
VARIABLES = {
    "mps_device_memory_limit": "12%",
    "mps_active_thread_percentage": 12.5,
    "mps_expected_clients": SHARDS,
    "mps_over_expected": "wait",
}
_CGROUP = {"bookworm": "cgroup/v1", "trixie": "disabled"}
"""CgroupPlugin= of a host without controllers of version 2: autodetect, and v2, end slurmd (22.05.8, 24.11.5)."""
_PORT = 6820
_FIRST_JOB = 100

_CONF = """\
ClusterName=lab
SlurmctldHost={first}({address})
SlurmUser=slurm
AuthType=auth/munge
CommunicationParameters=NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,nohold_on_prolog_fail
PrologFlags=Alloc
GresTypes=gpu,shard
ReturnToService=2
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
SlurmctldTimeout=30
SlurmdTimeout=60
MinJobAge=600
FirstJobId={first_job}
{more}
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""
_GRES = f"Name=gpu File=/dev/nvidia[0-{GPUS - 1}]\nName=shard Count={GPUS * SHARDS}\n"


@dataclass(frozen=True)
class Cluster:
    """Hosts that are nodes of one cluster; the first has the controller."""

    hosts: list[DoorHost]
    rollout: Rollout
    release: str
    variables: dict[str, Any]

    @property
    def control(self) -> DoorHost:
        return self.hosts[0]

    def play(self, playbook: str, *options: str) -> Played:
        return self.rollout.play(playbook, "-e", json.dumps(self.variables), *options)

    def configure(self, more: str = "") -> None:
        """Have Slurm run with ``more`` lines in slurm.conf."""
        conf = _conf(self.hosts, more)
        for host in self.hosts:
            host.run("cat >/etc/slurm/slurm.conf", conf)
        self.control.run("scontrol reconfigure")
        until(lambda: all(state == "idle" for state, _ in self.nodes().values()), "all nodes are idle", WITHIN_S)

    # -- what Slurm shows

    def nodes(self) -> dict[str, tuple[str, str]]:
        """Each node's state and the reason that Slurm shows, by name."""
        said = self.control.run("sinfo -h -N -o '%N|%T|%E'")
        rows = [line.split("|", 2) for line in said.splitlines()]
        return {name: (state, reason) for name, state, reason in rows}

    def resume(self, host: DoorHost, *jobs: int) -> None:
        """Take a node back, and have jobs that it did not start begin now: Slurm lets them wait two minutes."""
        again = "".join(f"; scontrol update JobId={job} StartTime=now" for job in jobs)
        self.control.run(f"scontrol update NodeName={host.name} State=RESUME{again}")

    def job(self, job: int) -> dict[str, str]:
        """What Slurm shows of a job, its words by their names."""
        said = self.control.run(f"scontrol show job -o -d {job}")
        return dict(word.split("=", 1) for word in said.split() if "=" in word)

    def until_state(self, job: int, *states: str) -> dict[str, str]:
        """What Slurm shows of a job, once it is in one of these states."""

        def there() -> dict[str, str]:
            found = self.job(job)
            return found if found["JobState"] in states else {}

        what = f"job {job} is {' or '.join(states)}"
        found: dict[str, str] = until(there, what, WITHIN_S, lambda: (self.job(job), self.nodes()))
        return found

    def node_of(self, job: int) -> DoorHost:
        name = self.job(job)["NodeList"]
        return next(host for host in self.hosts if host.name == name)

    # -- jobs

    def submit(self, script: str, *options: str, user: str = "alice") -> int:
        """Submit a batch job; its id. What it prints lies in ``printed``."""
        run = f"cd /tmp && setpriv --reuid {USERS[user]} --regid {USERS[user]} --clear-groups"
        said = self.control.run(
            f"{run} sbatch --parsable -o /tmp/job-%j.out {' '.join(options)}", f"#!/bin/sh\n{script}\n"
        )
        return int(said)

    def run_job(self, script: str, *options: str, user: str = "alice") -> str:
        """What a job prints, once it has completed."""
        job = self.submit(script, *options, user=user)
        self.until_state(job, "COMPLETED", "FAILED")
        return self.printed(job)

    def printed(self, job: int) -> str:
        return self.node_of(job).run(f"cat /tmp/job-{job}.out")

    def said(self, job: int) -> list[dict[str, Any]]:
        """What the simulated clients of a job said so far."""
        lines = self.node_of(job).run(f"cat /tmp/job-{job}.out 2>/dev/null", check=False).splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def release_jobs(self, *jobs: int) -> None:
        """Let jobs that ``holding`` wrote go on to their ends."""
        flags = " ".join(f"/tmp/go-{job}" for job in jobs)
        for host in self.hosts:
            host.run(f"touch {flags}")


def holding(clients: int) -> str:
    """A job of so many clients at once, which holds them until ``release_jobs``."""
    return (
        f'for n in $(seq {clients}); do {CLIENT} --hold 100000 & pids="$pids $!"; done;'
        " while [ ! -e /tmp/go-$SLURM_JOB_ID ]; do sleep 0.1; done; kill $pids; wait"
    )


def _conf(booted: Sequence[DoorHost], more: str) -> str:
    nodes = "\n".join(
        f"NodeName={host.name} NodeAddr={host.lab.facts['address']} Port={_PORT + number} CPUs=64 RealMemory=1000"
        f" Gres=gpu:{GPUS},shard:{GPUS * SHARDS} State=UNKNOWN"
        for number, host in enumerate(booted)
    )
    address = booted[0].lab.facts["address"]
    return _CONF.format(first=booted[0].name, address=address, first_job=_FIRST_JOB, more=more, nodes=nodes)


def start(booted: Sequence[DoorHost], release: str) -> None:
    """Make the hosts a cluster without a Prolog, and start it."""
    names = "\n".join(f"{host.lab.facts['address']} {host.name}" for host in booted)
    files = {
        "/etc/hosts": f"127.0.0.1 localhost\n{names}\n",
        "/etc/slurm/slurm.conf": _conf(booted, ""),
        "/etc/slurm/gres.conf": _GRES,
        "/etc/slurm/cgroup.conf": f"CgroupPlugin={_CGROUP[release]}\n",
    }
    key = booted[0].run("base64 /etc/munge/munge.key")
    users = "; ".join(f"useradd -M -u {uid} -U {name}" for name, uid in USERS.items())
    for host in booted:
        for path, text in files.items():
            host.run(f"mkdir -p $(dirname {path}); cat >{path}", text)
        host.run(
            "base64 -d >/etc/munge/munge.key; chown munge:munge /etc/munge/munge.key; chmod 400 /etc/munge/munge.key;"
            " mkdir -p /var/spool/slurmd /var/spool/slurmctld /var/log/slurm;"
            f" chown slurm:slurm /var/spool/slurmctld /var/log/slurm; {users}",
            key,
        )
    booted[0].run("systemctl enable --now munge slurmctld")
    for host in booted:
        host.run("systemctl enable --now munge slurmd")


@contextmanager
def cluster(prefix: str, release: str, daemon: str, **variables: Any) -> Iterator[Cluster]:
    """Two nodes with an instance on each of their GPUs, converged; slurm.conf names nothing of ours yet."""
    options = ("--hosts", "2", "--gpus", str(GPUS), "--release", release, "--daemon", daemon, "--standin-server")
    with hosts(prefix, *options, "--packages", "slurm") as booted, tempfile.TemporaryDirectory(prefix="mps-") as place:
        made = [DoorHost(host, Path(place)) for host in booted]
        start(made, release)
        found = Cluster(made, Rollout(prefix, booted), release, {**VARIABLES, **variables})
        done = found.play("site.yml")
        assert done.exit_code == 0, done.output
        try:
            yield found
        finally:
            for host in made:
                host.disconnect()
