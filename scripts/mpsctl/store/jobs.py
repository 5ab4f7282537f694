"""Which batch jobs have a share of which instance, in /run/mps-fleet/.job-ID.json: gone at a reboot, as the jobs are.

A job's Prolog writes it, its Epilog takes it away, and every word to a front door has the shares of the moment. Once
the first job was told since boot, nobody comes in by a job that is not on record. The file ``.jobs`` says so; it is the
lock as well under which records and what the doors are told of them change.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Iterator, Mapping, Optional

from mpsctl.adapters import files, locks
from mpsctl.model.places import Places
from mpsctl.model.shares import JOB, Room, Shares, with_jobs
from mpsctl.store import remembered
from mpsctl.store.admission import BOUND_S, Stuck
from mpsctl.store.world import World


@dataclass(frozen=True)
class JobShare:
    """What a job has of an instance: ``clients`` at once. ``gpus`` are the GPUs by Slurm's numbers, ``part`` is what of
    them in words. ``environment`` is what a client of the job exports."""

    instance: str
    gpus: tuple[int, ...]
    clients: int
    part: str
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """A job of user ``uid`` with its shares."""

    job: str
    uid: int
    shares: tuple[JobShare, ...] = ()

    def of(self, instance: str) -> Optional[JobShare]:
        return next((share for share in self.shares if share.instance == instance), None)


def are_told(places: Places) -> bool:
    """Whether the first job was told since boot."""
    return places.jobs_lock.exists()


def read(places: Places, job: str) -> Optional[Job]:
    """A job's record, None where there is none that can be read."""
    found = remembered.load(places.job(job))
    try:
        shares = (JobShare(**{**one, "gpus": tuple(one["gpus"])}) for one in found["shares"])
        return Job(str(found["job"]), int(found["uid"]), tuple(shares))
    except (TypeError, KeyError, ValueError):
        return None


def every(places: Places) -> list[Job]:
    """All that are on record."""
    names = (path.name for path in places.jobs_lock.parent.glob(".job-*.json"))
    found = (read(places, name[len(".job-") : -len(".json")]) for name in names)
    return [job for job in found if job is not None]


def write(places: Places, job: Job) -> None:
    files.write(places.job(job.job), json.dumps(asdict(job)) + "\n", lasting=False)


def as_json(job: Job) -> dict[str, Any]:
    return asdict(job)


def forget(places: Places, job: str) -> None:
    files.remove(places.job(job))


@contextmanager
def locked(world: World, bound_s: float = BOUND_S) -> Iterator[None]:
    """No record, and no word to a door, changes but by the block. From the first time on, jobs are told.

    :raises Stuck: if somebody else does not end within ``bound_s``.
    """
    try:
        descriptor = locks.take(world.places.jobs_lock, world.now_s() + bound_s, world.now_s, world.sleep_s)
    except locks.Taken:
        raise Stuck(f"{world.places.jobs_lock} is held: another Prolog or Epilog does not end") from None
    try:
        yield
    finally:
        os.close(descriptor)


def room(places: Places, instance: str, desired: Optional[Room]) -> Optional[Room]:
    """What a door is to hold, with the shares of jobs, where those are told."""
    plain = without_jobs(desired)
    if not are_told(places):
        return plain
    clients = {one.job: share.clients for one in every(places) for share in one.shares if share.instance == instance}
    known = plain or Room()
    return replace(known, shares=with_jobs(known.shares, clients))


def without_jobs(told: Optional[Room]) -> Optional[Room]:
    """What of a room does not come of jobs; None where that is nothing."""
    if told is None:
        return None
    kept = Shares(tuple(share for share in told.shares if share.kind != JOB))
    return replace(told, shares=kept) if kept or told.clients is not None else None
