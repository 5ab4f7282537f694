"""Real Slurm jobs on two nodes of four GPUs: each comes to the instance of its GPU, with its share and no more.

Debian 13's Slurm (24.11) here, Debian 12's (22.05) in tests/soak/test_slurm.py: one cluster cannot have both.
"""

from __future__ import annotations

import json
import re
from typing import Iterator

import pytest

from . import slurm
from .front_door import DoorHost, until
from .slurm import CLIENT, LINES, SCRIPTS, SHARDS, USERS, WITHIN_S, Cluster, holding

DOZEN = (1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 1, 8)
"""Shards of each job: 48 of the 64 that two nodes have."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm.cluster("slurm", "trixie", "555") as made:
        yield made


def listed(host: DoorHost, instance: int) -> set[int]:
    """The clients of an instance by its daemon's own list."""
    servers = host.run(f"mpsctl control {instance} get_server_list").split()
    return {int(pid) for one in servers for pid in host.run(f"mpsctl control {instance} get_client_list {one}").split()}


def waiting(host: DoorHost, instance: int) -> list[str]:
    """What each process waits for that waits at an instance's front door."""
    said = host.run(f"cat /run/mps-fleet/{instance}/front-door.json 2>/dev/null", check=False)
    return [one["why"] for one in json.loads(said or "{}").get("waiting", ())]


def gpu_of(cluster: Cluster, job: int) -> tuple[int, int]:
    """The GPU that Slurm gave a job, and how many shards of it, by what it shows itself."""
    said = cluster.job(job)["GRES"]
    found = re.fullmatch(r"shard:(\d+)\(([0-9/,]+)\)", said)
    assert found is not None, said
    each = [int(word.partition("/")[0]) for word in found[2].split(",")]
    assert each.count(0) == len(each) - 1, said
    return each.index(int(found[1])), int(found[1])


def test_the_playbook_says_which_lines_are_needed_and_proves_them(cluster: Cluster) -> None:
    before = cluster.play("playbooks/slurm.yml", "--check", "--diff")
    assert before.exit_code == 0, before.output
    assert "slurm-prolog" in before.output
    assert cluster.control.run(f"ls {SCRIPTS} 2>&1", check=False).count("slurm-prolog") == 0
    first = cluster.play("playbooks/slurm.yml")
    assert first.exit_code == 2, first.output
    assert f"Prolog={SCRIPTS}/slurm-prolog" in first.output
    cluster.configure(LINES)
    second = cluster.play("playbooks/slurm.yml")
    assert second.exit_code == 0, second.output
    assert "changed=0" in second.output
    assert "changed=1" not in second.output


def come_in(cluster: Cluster, job: int, count: int) -> set[int]:
    """The processes of a job's clients, once so many are in; no other of its clients met anything yet."""

    def said() -> bool:
        return len(cluster.said(job)) == count

    until(said, f"{count} clients of job {job} are in", WITHIN_S, lambda: (cluster.said(job), cluster.job(job)))
    assert {one["outcome"] for one in cluster.said(job)} == {"client"}
    return {int(one["pid"]) for one in cluster.said(job)}


def wait(host: DoorHost, instance: int, count: int) -> None:
    """Wait until so many wait for a place."""
    until(lambda: waiting(host, instance) == ["no-place"] * count, f"{count} wait at instance {instance}", WITHIN_S)


def no_share_is_left(host: DoorHost) -> None:
    until(lambda: ".job-" not in host.run("ls -a /run/mps-fleet"), f"{host.name}: no share is left", WITHIN_S)


def test_a_dozen_jobs_come_to_their_instances_with_their_shares(cluster: Cluster) -> None:
    jobs = {cluster.submit(holding(shards + 1), f"--gres=shard:{shards}"): shards for shards in DOZEN}
    places: dict[tuple[str, int], int] = {}
    late: dict[tuple[str, int], int] = {}
    for job, shards in jobs.items():
        cluster.until_state(job, "RUNNING")
        gpu, given = gpu_of(cluster, job)
        host = cluster.node_of(job)
        assert given == shards
        pids = come_in(cluster, job, shards)
        log = host.run(f"journalctl -q -o cat -u mps-control@{gpu}")
        for pid in pids:
            assert f"NEW CLIENT {pid} from user {USERS['alice']}:" in log, (job, gpu, pid)
        assert pids <= listed(host, gpu)
        places[host.name, gpu] = places.get((host.name, gpu), 0) + shards
        late[host.name, gpu] = late.get((host.name, gpu), 0) + 1
    assert max(places.values()) <= SHARDS
    for host in cluster.hosts:
        for gpu in range(slurm.GPUS):
            wait(host, gpu, late.get((host.name, gpu), 0))  # each job's one too many
            assert len(listed(host, gpu)) == places.get((host.name, gpu), 0)
    cluster.release_jobs(*jobs)
    for job in jobs:
        cluster.until_state(job, "COMPLETED")
    for host in cluster.hosts:
        no_share_is_left(host)


def test_whole_gpus_have_their_instances_and_jobs_without_one_have_nothing(cluster: Cluster) -> None:
    shards = cluster.submit(holding(1), "--gres=shard:2", "-w", cluster.control.name)
    cluster.until_state(shards, "RUNNING")
    whole = cluster.submit(holding(SHARDS + 1), "--gres=gpu:1", "-w", cluster.control.name)
    cluster.until_state(whole, "RUNNING")
    come_in(cluster, whole, SHARDS)
    assert cluster.job(whole)["GRES"] == "gpu:1(IDX:1)", "beside the shards"
    assert len(listed(cluster.control, 1)) == SHARDS
    several = "srun --ntasks-per-node=2 sh -c 'echo $SLURM_LOCALID $CUDA_MPS_PIPE_DIRECTORY'"
    said = cluster.run_job(several, "--gres=gpu:2", "--ntasks=2", "-w", cluster.control.name)
    ways = dict(line.split() for line in said.splitlines() if re.match(r"[01] /", line))
    assert ways == {"0": "/run/nvidia-mps/2", "1": "/run/nvidia-mps/3"}
    nothing = cluster.run_job(f"env | grep -c CUDA; CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps/0 {CLIENT} --hold 0")
    assert nothing.splitlines()[0] == "0"
    assert json.loads(nothing.splitlines()[-1])["outcome"] == "error-805", "no GPU, no place"
    cluster.release_jobs(shards, whole)
    cluster.until_state(whole, "COMPLETED")
    cluster.until_state(shards, "COMPLETED")


def test_nobody_comes_in_by_another_job_or_by_none(cluster: Cluster) -> None:
    host = cluster.hosts[1]
    held = cluster.submit(holding(1), "--gres=shard:1", "-w", host.name)
    cluster.until_state(held, "RUNNING")
    other = f"CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps/3 {CLIENT} --hold 0"
    claims = f"SLURM_JOB_ID={held} SLURM_JOBID={held} {CLIENT} --hold 0"
    orphan = f"setsid -f sh -c '{CLIENT} --hold 0' >/tmp/orphan-$SLURM_JOB_ID.out; sleep 1"
    job = cluster.submit(f"{other}; {claims}; {orphan}", "--gres=shard:1", "-w", host.name)
    cluster.until_state(job, "COMPLETED")
    assert [one["outcome"] for one in cluster.said(job)] == ["error-805", "client"], "the claim changed nothing"
    lines = host.run(f"journalctl -q -o cat -t mps-front-door@3 MPS_CLIENT_JOB={job} MPS_EVENT=refused")
    assert f"job {job} has no share of this instance" in lines
    assert f"job {job}" in host.run(f"journalctl -q -o cat -t mps-front-door@0 MPS_CLIENT_JOB={job} MPS_EVENT=let-in")
    said = until(lambda: host.run(f"cat /tmp/orphan-{job}.out"), "the orphan was told")
    assert json.loads(said)["outcome"] == "error-805", "it has no ancestor that is Slurm's"
    cluster.release_jobs(held)
    cluster.until_state(held, "COMPLETED")


def test_an_instance_that_is_not_ready_drains_the_node_with_the_reason(cluster: Cluster) -> None:
    host = cluster.hosts[1]
    host.run("mpsctl drain 0 --timeout 1 --reason 'new driver'")
    job = cluster.submit(f"{CLIENT} --hold 0", "--gres=shard:1", "-w", host.name)
    until(lambda: cluster.nodes()[host.name][0] == "drained", "the node is drained", WITHIN_S, cluster.nodes)
    reason = cluster.nodes()[host.name][1]
    assert reason.startswith("mps: instance 0 is not ready:")
    assert "new driver" in reason
    assert cluster.job(job)["JobState"] == "PENDING"
    assert host.run("ls -a /run/mps-fleet").count(".job-") == 0
    host.run("mpsctl undrain 0")
    cluster.resume(host, job)
    cluster.until_state(job, "COMPLETED")
    assert [one["outcome"] for one in cluster.said(job)] == ["client"]


def test_a_process_outside_mps_drains_the_node_with_its_pid(cluster: Cluster) -> None:
    host = cluster.hosts[1]
    host.run("systemd-run -q --unit outside sleep 100000")
    pid = host.main_pid("outside")
    gpus = json.loads(host.run("mpsctl gpus --json"))["gpus"]
    host.run(f"mkdir -p /run/mps-lab/nvml; echo 'compute {pid} 500' >/run/mps-lab/nvml/{gpus[0]['uuid']}.processes")
    job = cluster.submit(f"{CLIENT} --hold 0", "--gres=shard:1", "-w", host.name)
    until(lambda: cluster.nodes()[host.name][0] == "drained", "the node is drained", WITHIN_S, cluster.nodes)
    reason = cluster.nodes()[host.name][1]
    assert reason.startswith("mps: instance 0: ")
    assert f"pid {pid}" in reason
    host.run(f"systemctl stop outside; rm /run/mps-lab/nvml/{gpus[0]['uuid']}.processes")
    cluster.resume(host, job)
    cluster.until_state(job, "COMPLETED")


def test_the_epilog_ends_what_a_job_left_and_nothing_else(cluster: Cluster) -> None:
    host = cluster.hosts[1]
    neighbour = cluster.submit(holding(1), "--gres=shard:1", "-w", host.name)
    cluster.until_state(neighbour, "RUNNING")
    beside = come_in(cluster, neighbour, 1)
    left = "/tmp/left-$SLURM_JOB_ID.out"
    leaves = f"sh -c '{CLIENT} --hold 100000 >{left} & until grep -q client {left}; do sleep 0.1; done'"
    job = cluster.submit(leaves, "--gres=shard:1", "-w", host.name)
    cluster.until_state(job, "COMPLETED")
    pid = int(json.loads(host.run(f"cat /tmp/left-{job}.out"))["pid"])
    until(lambda: pid not in listed(host, 0), "the daemon took it off")
    assert host.run(f"kill -0 {pid} 2>&1", check=False), "it has ended"
    assert listed(host, 0) == beside
    log = host.run("journalctl -q -o cat -u mps-control@0")
    assert "terminate_client" in log
    cluster.release_jobs(neighbour)
    cluster.until_state(neighbour, "COMPLETED")


def test_a_removal_takes_the_scripts_along(cluster: Cluster) -> None:
    cluster.configure("")
    done = cluster.play("playbooks/remove.yml")
    assert done.exit_code == 0, done.output
    for host in cluster.hosts:
        assert host.run(f"ls {SCRIPTS} /run/mps-fleet 2>&1", check=False).count("No such file") == 2
