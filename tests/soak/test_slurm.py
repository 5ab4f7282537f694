"""A thousand real Slurm jobs (22.05, Debian 12) on two nodes of four GPUs, with daemons killed and a node rebooted.

MPS_SLURM_JOBS says how many. How long Prolog and Epilog took is printed; nothing is asserted of it.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

import pytest
from tests.lab import slurm
from tests.lab.front_door import DoorHost, seed, until
from tests.lab.slurm import SCRIPTS, USERS, WITHIN_S, Cluster, holding

JOBS = int(os.environ.get("MPS_SLURM_JOBS", "1000"))
AT_ONCE = 8
_BEGAN = "cut -d' ' -f22 /proc/1/stat"
_FOLDER = Path(slurm.__file__).parent
_STORM, _WATCH = ((_FOLDER / f"slurm_{name}.py").read_text(encoding="utf-8") for name in ("storm", "watch"))
_TIMED = """\
#!/bin/sh
# The tests' own: how long ours takes, in nanoseconds.
began=$(/bin/date +%s%N)
{script}
code=$?
echo $(($(/bin/date +%s%N) - began)) >>/root/{name}.times
exit $code
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm.cluster("slurm-soak", "bookworm", "555", mps_multi_user=True, slurm_own_scripts=True) as made:
        lines = [f"TaskProlog={SCRIPTS}/slurm-task-prolog"]
        for host in made.hosts:
            for name in ("prolog", "epilog"):
                text = _TIMED.format(script=f"{SCRIPTS}/slurm-{name}", name=name)
                host.run(f"cat >/etc/slurm/{name} && chmod 755 /etc/slurm/{name}", text)
        lines += [f"{key}=/etc/slurm/{key.lower()}" for key in ("Prolog", "Epilog")]
        before = made.play("playbooks/slurm.yml")  # puts the scripts there: slurm.conf names them from now on
        assert "slurm-prolog" in before.output
        made.configure("\n".join(lines))
        done = made.play("playbooks/slurm.yml")
        assert done.exit_code == 0, done.output
        yield made


def test_a_job_with_whole_gpus_beside_shards_is_noticed(cluster: Cluster) -> None:
    """22.05.8 starts it; 24.11 does not."""
    host = cluster.hosts[1]
    shards = cluster.submit(holding(1), "--gres=shard:3", "-w", host.name)
    cluster.until_state(shards, "RUNNING")
    whole = cluster.submit(holding(1), f"--gres=gpu:{slurm.GPUS}", "-w", host.name, user="bob")
    until(lambda: "drain" in cluster.nodes()[host.name][0], "the node is drained", WITHIN_S, cluster.nodes)
    reason = cluster.nodes()[host.name][1]
    assert reason == (
        f"mps: instance 0: Slurm gave job {whole} all of it of GPU 0, and job {shards} has 3 of {slurm.SHARDS} shards"
    )
    assert cluster.job(shards)["JobState"] == "RUNNING"
    until(lambda: len(cluster.said(shards)) == 1, "its client is in", WITHIN_S)
    cluster.control.run(f"scancel {whole}")
    cluster.release_jobs(shards)
    cluster.until_state(shards, "COMPLETED")
    cluster.resume(host)


@contextmanager
def watched(host: DoorHost, found: list[dict[str, Any]]) -> Iterator[None]:
    """What the daemons of a node list, for the length of the block, or until the node reboots."""
    host.run("cat >/root/watch.py", _WATCH)
    with host.process("python3 /root/watch.py") as process:
        yield
        said, _ = process.communicate()
        if said:
            found.append(json.loads(said.splitlines()[-1]))


def disturb(cluster: Cluster, stop: threading.Event, dice: random.Random) -> None:
    """Kill a daemon now and then."""
    while not stop.wait(dice.uniform(4, 12)):
        host, instance = dice.choice(cluster.hosts), dice.randrange(slurm.GPUS)
        host.run(f"systemctl kill --kill-whom=main -s KILL mps-control@{instance}", check=False)


def test_every_job_has_its_share_at_its_gpu_whatever_is_killed(cluster: Cluster) -> None:
    dice = random.Random(seed())
    control = cluster.control
    control.run("cat >/root/storm.py", _STORM)
    uids = ",".join(str(uid) for uid in USERS.values())
    stop = threading.Event()
    looks: list[dict[str, Any]] = []
    killer = threading.Thread(target=disturb, args=(cluster, stop, dice))
    over: list[dict[str, Any]] = []
    storm = control.process(f"python3 /root/storm.py {JOBS} {AT_ONCE} {dice.randrange(1 << 30)} {uids}")
    with storm as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, b"")
        killer.start()
        try:
            with watched(cluster.hosts[0], looks):
                with watched(cluster.hosts[1], looks):
                    take(lines, over, JOBS // 2)
                reboot(cluster.hosts[1])
                with watched(cluster.hosts[1], looks):
                    take(lines, over, JOBS)
        finally:
            stop.set()
            killer.join()
    report(cluster, over, looks)
    assert len(over) == JOBS
    failed = [one for one in over if one["state"] != "COMPLETED"]
    said = [
        host.run(f"tail -n 20 /tmp/storm-{one['job']}.log", check=False) for one in failed[:3] for host in cluster.hosts
    ]
    assert failed == [], "\n".join(said)
    assert [look["wrong"] for look in looks] == [[]] * len(looks)
    assert [look["above"] for look in looks] == [[]] * len(looks)
    assert sum(look["looks"] for look in looks) > JOBS / 4, "a storm that nobody watched shows nothing"
    until(
        lambda: {state for state, _ in cluster.nodes().values()} == {"idle"},
        "no node is stuck",
        WITHIN_S,
        cluster.nodes,
    )
    for host in cluster.hosts:
        assert ".job-" not in host.run("ls -a /run/mps-fleet"), "no share is left"


def take(lines: Iterator[bytes], over: list[dict[str, Any]], count: int) -> None:
    """Read of jobs that are over until there are so many."""
    while len(over) < count:
        found = json.loads(next(lines))
        assert "job" in found, found
        over.append(found)


def reboot(host: DoorHost) -> None:
    """Have a node boot anew, with jobs at work on it, and wait until Slurm's daemon runs there again."""
    began = host.run(_BEGAN)
    host.run("systemctl reboot", check=False)
    host.disconnect()

    def is_back() -> bool:
        now = host.run(f"{_BEGAN} && systemctl is-active slurmd", check=False).split()
        host.disconnect()
        return len(now) == 2 and now[0] != began.strip() and now[1] == "active"

    until(is_back, f"{host.name} is back", WITHIN_S)


def report(cluster: Cluster, over: list[dict[str, Any]], looks: list[dict[str, Any]]) -> None:
    """What was seen, for people."""
    print(f"{len(over)} jobs over, {sum(look['looks'] for look in looks)} looks at daemons' lists")
    times(cluster, f"{AT_ONCE} jobs at once")


def times(cluster: Cluster, what: str) -> None:
    """Print how long Prolog and Epilog took since they were printed last."""
    for name in ("prolog", "epilog"):
        said = " ".join(
            host.run(f"cat /root/{name}.times; rm -f /root/{name}.times", check=False) for host in cluster.hosts
        )
        took_ms = sorted(int(word) / 1e6 for word in said.split() if word.isdigit())
        if took_ms:
            middle, late = statistics.median(took_ms), took_ms[int(0.95 * (len(took_ms) - 1))]
            spread = f"median {middle:.0f} ms, 95 % {late:.0f} ms, longest {took_ms[-1]:.0f} ms"
            print(f"{what}, {name}: {len(took_ms)} runs, {spread}")


def test_what_a_prolog_adds_to_a_job_that_begins_alone(cluster: Cluster) -> None:
    """Its goal is 200 ms."""
    times(cluster, "before")
    for _ in range(20):
        job = cluster.submit("true", "--gres=shard:1")
        cluster.until_state(job, "COMPLETED")
    times(cluster, "one job at a time")
