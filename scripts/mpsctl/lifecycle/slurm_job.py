"""What becomes of an instance when a Slurm job begins and ends on this node: its Prolog and Epilog.

A job gets the instance of the GPU that Slurm gave it. Of the instance's places (mps_expected_clients) it has as many as
it has of the GPU's shards, and the front door holds it to them. The memory limit and the percentage of a client are the
instance's, so the job's memory is its places times that limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Mapping, Optional, Sequence

from mpsctl.adapters import hardware, scontrol
from mpsctl.checks import ready, report
from mpsctl.checks.judgement import STATUS
from mpsctl.lifecycle import admit, drain, terminate
from mpsctl.lifecycle.terminate import Ended
from mpsctl.model import client_variable, slurm
from mpsctl.model.checked_values import ADMIT
from mpsctl.model.daemon_environment import PIPE_DIRECTORY, VISIBLE_DEVICES
from mpsctl.model.errors import BadValue, NotInForce, NotReady
from mpsctl.model.finding import CRITICAL
from mpsctl.model.gpu import Device, Gpu
from mpsctl.model.instance import Instance
from mpsctl.model.mps_variables import THREADS
from mpsctl.model.pattern import Pattern
from mpsctl.model.shares import Whose
from mpsctl.model.slurm import Part
from mpsctl.observe import gpus as observed_gpus
from mpsctl.observe.door_facts import ANOTHER_USER
from mpsctl.observe.facts import GpuFacts
from mpsctl.observe.host import look
from mpsctl.store import admission, configuration, front_door_notes, jobs
from mpsctl.store.jobs import Job, JobShare
from mpsctl.store.world import World

_MOST_REASON = 400
READY_S = 15
"""How long an instance may take to be ready: its daemon may just be starting again."""
_POLL_S = 0.5
_GPU_PROCESSES, _DRAIN = "gpu-processes", "drain"
_STATE = Pattern(r"JobState=([A-Z_]+)")
_ON_NODE = ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT")
"""The states of a job that has GPUs of a node (squeue(1))."""


@dataclass(frozen=True)
class Begins:
    """A job as Slurm tells its Prolog: ``gpus`` are the numbers of the GPUs on this node."""

    job: str
    uid: int
    node: str
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class _Served:
    instance: Instance
    devices: tuple[Device, ...]
    numbers: tuple[int, ...]


def begin(world: World, begins: Begins) -> Optional[Job]:
    """Give a job its shares, and prove that its clients would come in; None for a job without GPUs.

    :raises BadValue: if what Slurm or the host says of itself does not fit MPS.
    :raises NotReady: if an instance is not ready within ``READY_S``, or the GPU is another's. The job has no share.
    """
    asked = observed_gpus.begin(world, observed_gpus.TIMEOUT_S) if begins.gpus else None  # it answers meanwhile
    with jobs.locked(world):
        jobs.forget(world.places, begins.job)  # of a run before this one, that was requeued
    for name in configuration.names(world):
        admit.tell_jobs(world, name)
    if asked is None:
        return None
    said = slurm.said(scontrol.job(begins.job), begins.node, begins.gpus)
    needs_node = any(one.every is None for each in said.values() for one in each)
    shards = slurm.shards_of_gpu(scontrol.node(begins.node)) if needs_node else None
    parts = {number: slurm.part(each, shards) for number, each in said.items()}
    known = observed_gpus.answer(asked)
    if known.unread is not None:
        raise NotReady(known.unread.words)
    shares = [_share(served, parts) for served in _served(world, known.gpus, begins.gpus)]
    job = Job(begins.job, begins.uid, tuple(shares))
    _take(world, job)
    try:
        for share in shares:
            admit.tell_jobs(world, share.instance)
        _prove(world, job, known)
    except BaseException:
        _give_up(world, job)
        raise
    return job


def end(world: World, job: str) -> list[Ended]:
    """Take a job's shares away, and end those of its clients that are left, by the daemon first. Who is no client, or
    was let in as somebody else's, is left alone.

    :raises NotReady: if who is connected cannot be told.
    :raises NotInForce: if a client could not be ended.
    """
    known = jobs.read(world.places, job)
    if known is None:
        return []
    _give_up(world, known)
    ended = [one for share in known.shares for one in _end_left(world, share.instance, job)]
    left = [one for one in ended if not one.gone and not one.left]
    if left:
        raise NotInForce(f"pid {left[0].pid} of job {job} is still on the GPU: {left[0].problem}")
    return ended


def _give_up(world: World, job: Job) -> None:
    with jobs.locked(world):
        jobs.forget(world.places, job.job)
    for share in job.shares:
        admit.tell_jobs(world, share.instance)


def _end_left(world: World, name: str, job: str) -> list[Ended]:
    mine = {(one.pid, one.started_at) for one in front_door_notes.read(world.places, name).let_in if one.job == job}
    if not mine:
        return []
    told = admission.stored(world.places, name)
    if told is None or told.daemon is None or not told.daemon.lives:
        return []  # without its daemon nobody is a client
    daemon = world.daemon_of(name, Path(told.daemon.pipe_directory))
    clients = [found for found in drain.connected(daemon) if (found[1].pid, found[1].started_at) in mine]
    return terminate.end(world, daemon, clients) if clients else []


# -- what a job gets


def _served(world: World, gpus: Sequence[Gpu], wanted: Sequence[int]) -> list[_Served]:
    """The instances that serve the GPUs of these numbers.

    :raises BadValue: if none does, or one that serves others as well.
    """
    numbers = {
        gpu.uuid: gpu.index if (minor := hardware.device_minor(gpu.pci_address)) is None else minor for gpu in gpus
    }
    left = dict.fromkeys(wanted)
    found: list[_Served] = []
    refused: Optional[BadValue] = None
    for name in configuration.names(world):
        try:
            instance = configuration.load(world, name)
            devices = configuration.resolve(instance, gpus)
        except BadValue as error:  # of an instance that may be of other GPUs
            refused = error
            continue
        mine = tuple(numbers[device.gpu.uuid] for device in devices)
        if not left.keys() & set(mine):
            continue
        if not set(mine) <= set(wanted) or any(device.mig is not None for device in devices):
            raise BadValue(
                f"the job's GPU {', '.join(map(str, wanted))}, and instance {name} of GPU {', '.join(map(str, mine))}",
                "an instance of the job's GPUs and no other",
                "give each GPU an instance of its own, which is the default of mps_instances",
            )
        for number in mine:
            left.pop(number, None)
        found.append(_Served(instance, devices, mine))
    if left:
        raise refused or BadValue(
            f"GPU {', '.join(map(str, left))} without an instance", "one for each GPU of gres.conf", "converge the host"
        )
    return found


def _share(served: _Served, parts: Mapping[int, Part]) -> JobShare:
    """:raises BadValue: if the instance holds no number of clients, or one of fewer than the GPU has shards."""
    instance = served.instance
    part = min((parts[number] for number in served.numbers), key=lambda one: one.mine / one.every)
    most = instance.expected_clients
    if most is None or instance.over_expected == ADMIT or not instance.front_door:
        raise BadValue(
            f"instance {instance.name} without a number of clients that is held",
            "mps_expected_clients, and mps_over_expected: wait",
            "set both: a job's share is a part of those places",
        )
    clients = part.clients(most)
    if not clients:
        raise BadValue(
            f"{part} for the job, and {most} clients in instance {instance.name}",
            "as many clients as shards, or more",
            "raise mps_expected_clients, or lower the shards of a GPU in gres.conf",
        )
    return JobShare(instance.name, served.numbers, clients, str(part), _environment(served, part, clients))


def _environment(served: _Served, part: Part, clients: int) -> dict[str, str]:
    """What a client of the job exports. Its daemon holds the instance's limit and percentage; what is lower here a job
    can lift again, up to that."""
    instance = served.instance
    found = {
        PIPE_DIRECTORY: instance.pipe_directory,
        VISIBLE_DEVICES: ",".join(device.uuid for device in served.devices),
    }
    if part.is_whole:
        return found
    if part.percent < (instance.thread_percentage or 100):
        found[THREADS] = f"{part.percent:.2f}".rstrip("0").rstrip(".")
    memory = [device.memory_mib for device in served.devices]
    if instance.limit is None and None not in memory:
        mib = {n: int((one or 0) * part.percent / 100 / clients) for n, one in enumerate(memory)}
        found[client_variable.VARIABLE] = client_variable.render(mib)
    return found


def _take(world: World, job: Job) -> None:
    """Put a job on record, if its places are free.

    :raises NotReady: if other jobs have them: Slurm 22.05.8 starts a job with whole GPUs where shards are in use.
    """
    with jobs.locked(world):
        for share in job.shares:
            most = configuration.load(world, share.instance).expected_clients or 0
            others = [
                (one.job, its)
                for one in jobs.every(world.places)
                if one.job != job.job and (its := one.of(share.instance))
            ]
            if share.clients + sum(its.clients for _, its in others) > most:
                others = [(other, its) for other, its in others if _still_here(world, other)]
            taken = sum(its.clients for _, its in others)
            if share.clients + taken > most:
                whose = ", ".join(f"job {other} has {its.part}" for other, its in others)
                raise NotReady(
                    f"instance {share.instance}: Slurm gave job {job.job} {share.part} of GPU"
                    f" {', '.join(map(str, share.gpus))}, and {whose}"
                )
        jobs.write(world.places, job)


def _still_here(world: World, job: str) -> bool:
    """Whether Slurm has a job on its nodes still. The record of one that it has not goes: its Epilog was never run."""
    try:
        states = _STATE.findall(scontrol.job(job))
    except scontrol.NoSuchJob:
        states = []
    except NotReady:
        return True
    if any(state in _ON_NODE for state in states):
        return True
    jobs.forget(world.places, job)
    return False


# -- whether its clients would come in


def _prove(world: World, job: Job, known: GpuFacts) -> None:
    """:raises NotReady: if that is not so within ``READY_S``."""
    end_s = world.now_s() + READY_S
    gpus: Optional[GpuFacts] = known
    while True:
        why = next(_why_not(world, job, gpus), None)
        if why is None:
            return
        if why.lasts or world.now_s() >= end_s:
            raise NotReady(why.line)
        world.sleep_s(_POLL_S)
        gpus = None


@dataclass(frozen=True)
class _WhyNot:
    """``lasts``: no wait helps, a person did it."""

    line: str
    lasts: bool = False


def _why_not(world: World, job: Job, known: Optional[GpuFacts]) -> Iterator[_WhyNot]:
    """What is the user's own is no reason to drain a node: where one user is served at a time, the job's clients wait
    their turn, and the front door refuses who is not in the instance's group."""
    host = look(world, [share.instance for share in job.shares], isolated=len(job.shares) > 1, known_gpus=known)
    judged = report.report(host, STATUS)
    for share in job.shares:
        name = share.instance
        found = ready.in_look(host, name, Whose(job.uid, job=job.job), 1)
        why = found.why_not
        if why is not None and why.cause not in (ANOTHER_USER, ready.GROUP):
            yield _WhyNot(f"instance {name} is not ready: {why}", why.cause == _DRAIN)
        processes = judged.check(name, _GPU_PROCESSES)
        if processes.level == CRITICAL:
            yield _WhyNot(f"instance {name}: {processes.found}, expected {processes.expected}; {processes.remedy}")


def drain_node(node: str, why: Exception) -> None:
    """Have Slurm give the node no more jobs, and say why, in a line as long as `sinfo -R` can show.

    :raises NotReady: if Slurm does not do it.
    """
    text = " ".join(str(why).split())
    scontrol.drain(node, f"mps: {text[:_MOST_REASON]}")
