"""The verb slurm: what Slurm's Prolog, Epilog and TaskProlog run, and what is to stand in its files."""

from __future__ import annotations

import argparse
import os
import re
import sys
from typing import Callable, Iterator, Mapping, Optional

from mpsctl.cli import output
from mpsctl.model import slurm as model
from mpsctl.model.errors import BadValue, MpsctlError, NotReady
from mpsctl.model.foreign import quoted
from mpsctl.model.mps_variables import PREFIX
from mpsctl.store import jobs
from mpsctl.store.jobs import Job, JobShare
from mpsctl.store.world import World

_JOB, _USER, _NODE, _GPUS = "SLURM_JOB_ID", "SLURM_JOB_UID", "SLURMD_NODENAME", "SLURM_JOB_GPUS"
_OF_STEP, _TASK = "SLURM_STEP_GPUS", "SLURM_LOCALID"
_HAS_GPUS = (_GPUS, _OF_STEP, "SLURM_GPUS_ON_NODE", "SLURM_SHARDS_ON_NODE")
_CONTEXT = "SLURM_SCRIPT_CONTEXT"
"""Slurm sets it for each of its scripts (22.05.8, 24.11.5)."""
_RESTARTS, _MOST_RESTARTS = "SLURM_JOB_RESTART_COUNT", 10
_BY_MPS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


def slurm(world: World, options: argparse.Namespace) -> int:
    """Run one of them; the exit code."""
    steps: dict[str, Callable[[World, argparse.Namespace], int]] = {
        "prolog": _prolog,
        "epilog": _epilog,
        "task-prolog": _task_prolog,
        "check": _check,
    }
    return steps[options.step](world, options)


def _prolog(world: World, options: argparse.Namespace) -> int:
    """What it prints goes to slurmd's log. Where it fails, Slurm drains the node, and holds or requeues the job."""
    from mpsctl.lifecycle import slurm_job

    try:
        gpus = model.gpus(os.environ.get(_GPUS, ""))
        if not gpus and _BY_MPS in os.environ:  # gres/mps alone sets it here (22.05.8, 24.11.5)
            raise model.mps_refused()
        job = slurm_job.begin(
            world, slurm_job.Begins(str(_number(_JOB)), _number(_USER), os.environ.get(_NODE, ""), gpus)
        )
    except model.NothingGiven as error:  # a user can bring that about as well: no reason to drain the node
        output.say(f"mpsctl slurm: {error}", stream=sys.stderr)
        _begin_anew()
        job = None
    except (MpsctlError, OSError) as error:
        _drain(error)
        raise
    if options.json:
        output.say_json({"job": None if job is None else jobs.as_json(job)})
    elif job is not None:
        for share in job.shares:
            output.say(f"job {job.job} has {share.part} of instance {share.instance}, clients at once: {share.clients}")
    return 0


def _epilog(world: World, options: argparse.Namespace) -> int:
    from mpsctl.lifecycle import slurm_job

    try:
        ended = slurm_job.end(world, str(_number(_JOB)))
    except (MpsctlError, OSError) as error:
        _drain(error)
        raise
    if options.json:
        output.say_json({"ended": [one.as_json() for one in ended]})
    else:
        for one in ended:
            output.say(f"pid {one.pid} of the job was left: {', '.join(one.steps)}")
    return 0


def _begin_anew() -> None:
    """What Slurm begins all the same has no share: its TaskProlog fails."""
    from mpsctl.adapters import scontrol

    again = os.environ.get(_RESTARTS, "0")
    if _CONTEXT not in os.environ:
        return
    try:
        scontrol.begin_anew(str(_number(_JOB)), hold=not again.isdigit() or int(again) >= _MOST_RESTARTS)
    except MpsctlError as error:
        output.say(f"mpsctl slurm: {error}", stream=sys.stderr)


def _drain(error: Exception) -> None:
    """Slurm drains the node by the exit code alone; with this it also says why. A person who tries it drains none."""
    from mpsctl.lifecycle import slurm_job

    if _CONTEXT not in os.environ:
        return
    try:
        slurm_job.drain_node(os.environ.get(_NODE, ""), error)
    except (MpsctlError, OSError) as second:
        output.say(f"mpsctl slurm: the reason could not be told to Slurm: {second}", stream=sys.stderr)


def _number(name: str) -> int:
    value = os.environ.get(name, "")
    if not re.fullmatch("[0-9]{1,18}", value):
        found = f"{name}={quoted(value)}" if value else f"no {name}"
        raise BadValue(found, "a job's number, as Slurm gives it", "name this in slurm.conf, and leave it to Slurm")
    return int(value)


# -- for each task, as its user


def _task_prolog(world: World, options: argparse.Namespace) -> int:
    """Slurm puts the lines that it prints into the environment of the task."""
    del options
    environment = os.environ
    job = jobs.read(world.places, str(_number(_JOB)))
    if job is None:
        if any(environment.get(name) for name in _HAS_GPUS):
            raise NotReady(
                f"found no share of job {environment[_JOB]} on this node, expected what its Prolog writes; see"
                " `scontrol show config` for Prolog= and PrologFlags=Alloc"
            )
        return 0
    for line in lines(job, environment):
        output.say(line)
    return 0


def lines(job: Job, environment: Mapping[str, str]) -> Iterator[str]:
    """What Slurm is to change in a task's environment: variables of MPS that the job brought along go."""
    share = _share_of_task(job, environment)
    if share is None:
        return
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in share.environment:
            yield f"unset {name}"
    for name, value in share.environment.items():
        yield f"export {name}={value}"
    instances = [one.instance for one in job.shares]
    if len(instances) > 1:
        yield f"print mpsctl: this task comes to instance {share.instance}; the job's are {', '.join(instances)}"


def _share_of_task(job: Job, environment: Mapping[str, str]) -> Optional[JobShare]:
    """Of several the one whose turn it is by the task's number on the node: a process can come to one instance."""
    gpus = model.gpus(environment.get(_OF_STEP) or environment.get(_GPUS, ""))
    found = [share for share in job.shares if set(share.gpus) & set(gpus)] or list(job.shares)
    task = environment.get(_TASK, "0")
    return found[int(task) % len(found) if task.isdigit() else 0] if found else None


def _check(world: World, options: argparse.Namespace) -> int:
    from mpsctl.cli import slurm_check

    return slurm_check.check(world, options)
