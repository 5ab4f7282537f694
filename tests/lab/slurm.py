"""A small Slurm cluster of lab hosts: Debian's slurmctld, slurmd and munge, real jobs, GPUs by device files.

The first host has the controller; each host is a node with four GPUs. Nothing holds a job's processes by a control
group here (proctrack/linuxproc): this machine keeps its controllers in the layout of version 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from .conftest import LabHost
from .front_door import until
from .rollout import Rollout

GPUS, SHARDS = 4, 8
"""GPUs of a node, and shards of a GPU."""
USERS = {"alice": 2001, "bob": 2002}
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

    hosts: list[LabHost]
    rollout: Rollout

    @property
    def control(self) -> LabHost:
        return self.hosts[0]

    def nodes(self) -> dict[str, tuple[str, str]]:
        """Each node's state and the reason that Slurm shows, by name."""
        said = self.control.run("sinfo -h -N -o '%N|%T|%E'")
        rows = [line.split("|", 2) for line in said.splitlines()]
        return {name: (state, reason) for name, state, reason in rows}

    def submit(self, script: str, *options: str, user: str = "alice") -> int:
        """Submit a batch job; its id."""
        words = " ".join(options)
        text = f"#!/bin/sh\n{script}\n"
        run = f"cd /tmp && setpriv --reuid {USERS[user]} --regid {USERS[user]} --clear-groups"
        return int(self.control.run(f"{run} sbatch --parsable -o /tmp/job-%j.out {words}", text.encode()))

    def job(self, job: int) -> dict[str, str]:
        """What Slurm shows of a job, its words by their names."""
        said = self.control.run(f"scontrol show job -o {job}")
        return dict(word.split("=", 1) for word in said.split() if "=" in word)

    def state(self, job: int) -> str:
        return self.job(job)["JobState"]

    def until_state(self, job: int, *states: str) -> str:
        found: str = until(
            lambda: (self.state(job) in states) and self.state(job),
            f"job {job} is {' or '.join(states)}",
            told=lambda: (self.job(job), self.nodes()),
        )
        return found

    def node_of(self, job: int) -> LabHost:
        name = self.job(job)["NodeList"]
        return next(host for host in self.hosts if host.name == name)


def configure(booted: Sequence[LabHost], release: str, more: str = "") -> None:
    """Make the hosts a cluster, with ``more`` lines in slurm.conf, and start it."""
    names = "\n".join(f"{host.facts['address']} {host.name}" for host in booted)
    nodes = "\n".join(
        f"NodeName={host.name} NodeAddr={host.facts['address']} Port={_PORT + number} CPUs=64 RealMemory=1000"
        f" Gres=gpu:{GPUS},shard:{GPUS * SHARDS} State=UNKNOWN"
        for number, host in enumerate(booted)
    )
    first = booted[0]
    conf = _CONF.format(first=first.name, address=first.facts["address"], first_job=_FIRST_JOB, more=more, nodes=nodes)
    files = {
        "/etc/hosts": f"127.0.0.1 localhost\n{names}\n",
        "/etc/slurm/slurm.conf": conf,
        "/etc/slurm/gres.conf": _GRES,
        "/etc/slurm/cgroup.conf": f"CgroupPlugin={_CGROUP[release]}\n",
    }
    key = first.run("base64 /etc/munge/munge.key")
    users = "; ".join(f"id -u {name} >/dev/null 2>&1 || useradd -M -u {uid} -U {name}" for name, uid in USERS.items())
    for host in booted:
        for path, text in files.items():
            host.run(f"mkdir -p $(dirname {path}); cat >{path}", text.encode())
        host.run(
            "base64 -d >/etc/munge/munge.key; chown munge:munge /etc/munge/munge.key; chmod 400 /etc/munge/munge.key;"
            " mkdir -p /var/spool/slurmd /var/spool/slurmctld /var/log/slurm;"
            f" chown slurm:slurm /var/spool/slurmctld /var/log/slurm; {users}",
            key.encode(),
        )
    first.run("systemctl enable --now munge slurmctld")
    for host in booted:
        host.run("systemctl enable --now munge slurmd")
