"""The judge of an instance's front door: who comes in, who waits and for what, who is refused and why."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Callable, Optional, Union

from mpsctl.adapters import control_groups, procfs
from mpsctl.front_door import greeting, words
from mpsctl.front_door.account import Account, Client
from mpsctl.front_door.census import Census
from mpsctl.front_door.environments import Environments, NotYet
from mpsctl.front_door.greeting import Greeting
from mpsctl.front_door.jam import Jam
from mpsctl.front_door.journal import Journal
from mpsctl.front_door.judge import LetIn, Refuse, Verdict, Visitor, Wait
from mpsctl.front_door.notebook import Notebook
from mpsctl.front_door.outlook import Outlook
from mpsctl.front_door.readiness import ROOT, Readiness, Want
from mpsctl.front_door.servers import Seen
from mpsctl.front_door.telling import Telling
from mpsctl.front_door.users import Queue
from mpsctl.front_door.worker import Worker
from mpsctl.model import foreign, shares
from mpsctl.model.client_variable import VARIABLE, Bypass, limit_bypass
from mpsctl.model.shares import Whose
from mpsctl.store import front_door_notes
from mpsctl.store.admission import Admission, ServedDaemon
from mpsctl.store.world import World

_JOURNAL_AGAIN_S = 0.05


@dataclass
class _Before:
    """One visitor before the door. ``member_of`` is the group that it was found to be in, ``why`` what it waits for
    or passes with. ``server`` is whose it becomes, ``noted`` what was noted of that, and ``is_first`` whether its
    process was not let in before."""

    client: Client
    whose: Whose
    since_s: float
    member_of: Optional[int] = None
    why: str = ""
    place: str = ""
    server: Optional[Seen] = None
    noted: Optional[front_door_notes.LetIn] = None
    is_first: bool = False


class InstanceJudge:
    """As ``judge.Judge``. ``worker`` asks what takes long to answer; ``scribe`` writes notes and lines, which do not
    wait for that. ``hear`` is how a daemon's greeting is learned."""

    def __init__(
        self,
        world: World,
        instance: str,
        worker: Worker,
        scribe: Worker,
        hear: Callable[[Path], bytes] = greeting.hear,
    ) -> None:
        self._world, self._worker = world, worker
        self._journal = Journal(world.places, partial(scribe.order_in, "journal", _JOURNAL_AGAIN_S))
        self._notebook = Notebook(world, instance, scribe)
        self._account = Account(self._journal, instance, world.now_s, self._notebook.count)
        self._outlook = Outlook(world, instance, worker)
        self._jam = Jam(world, instance, worker, self._notebook, lambda daemon: self._account.jammed(daemon.pid))
        self._greeting = Greeting(world, worker, self._notebook, self._jam.suspect, hear)
        self._readiness = Readiness(world, instance, worker, self._jam.suspect)
        self._census = Census(world, self._notebook)
        self._environments = Environments(world)
        self._telling = Telling(world.places, instance)
        self._queue = Queue()
        self._before: dict[int, _Before] = {}

    def look_back(self) -> None:
        """At the start: at a daemon that may be jammed because an earlier process of the door died."""
        serves = self._outlook.serves()
        if serves is not None and serves.daemon is not None and self._telling.was_cut(serves.daemon):
            self._jam.suspect(serves.daemon)

    def fileno(self) -> int:
        return self._worker.fileno()

    def woken(self) -> None:
        self._worker.quieten()

    def greeting(self) -> bytes:
        return self._greeting.said()

    def wait_s(self) -> float:
        return self._outlook.wait_s

    # -- what becomes of a visitor

    def judge(self, visitor: Visitor) -> Verdict:
        self._account.settle()
        before = self._before.get(visitor.number) or self._enter(visitor)
        verdict = self._judge(visitor, before)
        if isinstance(verdict, Wait) and (verdict.why, verdict.place) != (before.why, before.place):
            before.why, before.place = verdict.why, verdict.place
            self._notebook.waits(visitor, before.since_s, verdict.why, verdict.place)
        return verdict

    def _judge(self, visitor: Visitor, before: _Before) -> Verdict:
        view = self._outlook.view()
        admission, daemon = view.admission, view.daemon
        noted = None if before.is_first else self._notebook.noted(visitor)
        if noted is not None and self._is_lost(noted, daemon):
            return _without_its_server(noted)
        if admission is not None and daemon is not None and noted is not None:
            return self._judge_later(visitor, noted, daemon, admission, before)
        if isinstance(view.barred, Refuse):
            return view.barred
        if admission is not None and not _may(visitor, admission.gid, before):
            ended = procfs.started_at(visitor.pid) != visitor.started_at  # then it has no groups any more
            return Wait(words.CLIENT_ENDED) if ended else _not_in_group(visitor, admission.gid)
        if view.barred is not None:
            return view.barred
        if admission is None or daemon is None:  # barred says why
            return Wait(words.DAEMON_DOWN)
        return self._shakes_off_limit(visitor, admission) or self._meets(visitor, daemon, admission, before)

    def _shakes_off_limit(self, visitor: Visitor, admission: Admission) -> Optional[Verdict]:
        """What becomes of a visitor for its own variable, where that is judged; None where that does no harm, or its
        environment could not be read."""
        if not admission.judged_devices:
            return None
        try:
            environment = self._environments.of(visitor)
        except NotYet:
            return Wait(words.ENVIRONMENT)
        found = None if environment is None else limit_bypass(environment, admission.judged_devices)
        return None if found is None else _would_be_without_limit(found)

    def _is_lost(self, noted: front_door_notes.LetIn, daemon: Optional[ServedDaemon]) -> bool:
        """Whether the server that a process was let in to has ended, or is not one of the daemon that serves now."""
        return not noted.server_lives or (daemon is not None and not noted.is_of(daemon.pid, daemon.started_at))

    def _judge_later(
        self,
        visitor: Visitor,
        noted: front_door_notes.LetIn,
        daemon: ServedDaemon,
        admission: Admission,
        before: _Before,
    ) -> Verdict:
        """What becomes of a later connection of a process that was let in before: it comes in to its server, also
        while nobody new does, and to no other. It waits while that is not ready, and for a place if it gave up its
        own."""
        suspicion = self._jam.why(daemon)
        if suspicion is not None:
            return Wait(suspicion)
        want = replace(self._want(visitor, daemon, admission), start=False)
        if self._readiness.server(want, noted) is not None:
            return self._finds_no_place(visitor, before, want, admission) or LetIn(daemon)
        return Wait(self._readiness.why_not(want) or words.SERVER_NOT_READY)

    def _finds_no_place(
        self, visitor: Visitor, before: _Before, want: Want, admission: Admission
    ) -> Optional[Union[Wait, Refuse]]:
        """What becomes of a visitor whose server is ready and who finds no place; None where it finds one."""
        room = admission.room
        if room is None:
            return None
        if before.whose.group_untold and any(share.kind not in (shares.USER, shares.JOB) for share in room.shares):
            return _of_no_group()
        lists = self._readiness.lists(want, self._census.waits_for_lists_since())
        if lists is None:
            return Wait(words.SERVER_NOT_READY)
        place = self._census.no_place(visitor, before.whose, room, lists)
        if place is None:
            return None
        most = dict(shares.places(room, before.whose))[place]
        if not most:
            return _one_too_many(place, most)
        if not room.refuse:
            return Wait(words.NO_PLACE, place)
        asked_s = max(before.since_s, self._census.waits_for_lists_since() or 0.0)
        if lists.at_s > asked_s:
            return _one_too_many(place, most)
        self._readiness.lists(want, asked_s)  # who is refused is refused by what the daemon says now
        return Wait(words.NO_PLACE, place)

    def _meets(self, visitor: Visitor, daemon: ServedDaemon, admission: Admission, before: _Before) -> Verdict:
        """What a visitor meets that may come in: its daemon, those who came before it, its server."""
        suspicion = self._jam.why(daemon)
        if suspicion is not None:
            return Wait(suspicion)
        barred = self._greeting.bars(daemon)
        if barred is not None:
            return barred
        if not admission.multi_user and self._queue.behind_another(visitor.number, visitor.uid):
            return Wait(words.ANOTHER_USER)
        want = self._want(visitor, daemon, admission)
        if self._readiness.server(want) is not None:
            verdict = self._finds_no_place(visitor, before, want, admission)
            if verdict is not None:
                return verdict
        why = self._readiness.why_not(want)
        return LetIn(daemon) if why is None else Wait(why)

    def _want(self, visitor: Visitor, daemon: ServedDaemon, admission: Admission) -> Want:
        if admission.multi_user:
            return Want(daemon, ROOT, multi_user=True)
        return Want(daemon, visitor.uid, multi_user=False, occupied=self._notebook.arriving(daemon))

    def still(self, visitor: Visitor, daemon: ServedDaemon) -> bool:
        view = self._outlook.serves()
        before = self._before.get(visitor.number)
        if view is None or view.admission is None or view.daemon != daemon or before is None:
            return False
        if self._jam.suspects(daemon):
            return False
        noted = None if before.is_first else self._notebook.noted(visitor)
        if noted is None and (view.barred is not None or not _may(visitor, view.admission.gid, before)):
            return False
        want = self._want(visitor, daemon, view.admission)
        before.server = self._readiness.server(want, noted)
        if before.server is None or (noted is not None and self._is_lost(noted, daemon)):
            return False
        return self._finds_no_place(visitor, before, want, view.admission) is None

    def came_in_before(self, visitor: Visitor) -> bool:
        return self._notebook.noted(visitor) is not None

    # -- what became of it

    def tells(self, visitor: Visitor, daemon: ServedDaemon) -> None:
        self._telling.begin(visitor.number, daemon)
        before = self._before[visitor.number]
        before.is_first = before.is_first or self._notebook.noted(visitor) is None
        if before.server is not None:  # ``still`` said so
            before.noted = self._notebook.lets_in(visitor, before.whose, daemon, before.server)

    def passed(self, visitor: Visitor, waited_s: float) -> None:
        self._telling.end(visitor.number)
        before = self._before[visitor.number]
        is_first, before.is_first = before.is_first, False  # what was noted is so
        client = self._leave(visitor).client
        if is_first:
            self._account.let_in(client, waited_s)

    def unanswered(self, visitor: Visitor, daemon: ServedDaemon, problem: str) -> None:
        before = self._leave(visitor)
        waited_s = self._world.now_s() - before.since_s
        self._account.refused(before.client, words.DAEMON_SILENT, problem, waited_s, before.why)
        self._jam.suspect(daemon)

    def not_understood(self, daemon: ServedDaemon, said: bytes) -> None:
        if said:
            self._greeting.heard(daemon, said)
        else:
            self._jam.suspect(daemon)

    def refused(self, visitor: Visitor, reason: str, text: str, waited_s: float) -> None:
        before = self._leave(visitor)
        self._account.refused(before.client, reason, text, waited_s, before.why)

    def gave_up(self, visitor: Visitor, waited_s: float) -> None:
        self._telling.end(visitor.number)
        before = self._leave(visitor)
        self._account.gave_up(before.client, before.why, waited_s)

    def turned_away(self, pid: int, uid: int, reason: str, text: str, count: int) -> None:
        self._account.turned_away(Client(pid, uid, _unit(pid)), reason, text, count)

    def close(self) -> None:
        """After the end of both: write down what is not yet."""
        self._account.settle(all_windows=True)
        with suppress(OSError):  # of notes that were not written the next process of the door knows nothing
            self._notebook.write()
        self._journal.close()

    def _enter(self, visitor: Visitor) -> _Before:
        before = self._begin(visitor)
        self._before[visitor.number] = before
        self._queue.enter(visitor.number, visitor.uid)
        return before

    def _leave(self, visitor: Visitor) -> _Before:
        before = self._before.pop(visitor.number, None)
        self._queue.leave(visitor.number, visitor.uid)
        self._notebook.waits_no_more(visitor)
        self._environments.forget(visitor)
        if before is not None and before.is_first and before.noted is not None:
            self._notebook.did_not_let_in(before.noted)
        return before or self._begin(visitor)

    def _begin(self, visitor: Visitor) -> _Before:
        whose = control_groups.whose(visitor.pid, visitor.uid)
        client = Client(visitor.pid, visitor.uid, _unit(visitor.pid), whose.job)
        return _Before(client, whose, self._world.now_s())


def _unit(pid: int) -> str:
    return procfs.container(pid) or procfs.unit(pid) or ""


def _may(visitor: Visitor, gid: Optional[int], before: _Before) -> bool:
    """Whether it is root's or a member of the group; the groups are the process's own, and so are asked for once."""
    if gid is None or visitor.uid == 0 or visitor.gid == gid or before.member_of == gid:
        return True
    if gid not in procfs.groups(visitor.pid) or procfs.started_at(visitor.pid) != visitor.started_at:
        return False
    before.member_of = gid
    return True


def _without_its_server(noted: front_door_notes.LetIn) -> Refuse:
    """A process keeps from its first connection what its server told it of limits. Through another server its next
    context would have no memory limit (driver 580, H200: 36 of 2,299 clients that a storm of kills let through so)."""
    ended = "has ended" if not noted.server_lives else "is none of the control daemon that serves now"
    return Refuse(
        words.SERVER_ENDED,
        f"the server (pid {noted.server_pid}) that the process began with {ended}, and through another one it would"
        " work without a limit; start the process anew",
    )


def _one_too_many(place: str, most: int) -> Refuse:
    what = "the instance" if place == shares.ALL else f"the share {foreign.shown(place)}"
    if not most and place == shares.NO_JOB:
        why = "it is of no batch job, and in no share of another kind: the places here are the jobs'; run it in a job"
        return Refuse(words.OVER_EXPECTED, why)
    if not most and place.startswith(f"{shares.JOB}:"):
        why = f"its batch job {foreign.shown(place.partition(':')[2])} has no share of this instance: not of this GPU"
        return Refuse(words.OVER_EXPECTED, why)
    return Refuse(
        words.OVER_EXPECTED,
        f"{what} takes {most} {'client' if most == 1 else 'clients'} at once"
        + (", and has as many" if most else ": nobody comes in by it"),
    )


def _of_no_group() -> Refuse:
    return Refuse(
        words.OVER_EXPECTED,
        "its control group cannot be read, so in which share of a unit or container it counts is not known; start it"
        " in a group of fewer levels",
    )


def _would_be_without_limit(found: Bypass) -> Refuse:
    """One entry that does not parse, or names a GPU that it cannot see, drops every limit of a client, the daemon's
    included (driver 580, H200)."""
    entry = foreign.shown(found.entry)
    return Refuse(
        words.LIMIT_BYPASS,
        f"it would work without a limit: its {VARIABLE} has {entry!r}, which"
        f" {'does not parse' if found.device is None else 'names a GPU that it cannot see'}; correct or unset it",
    )


def _not_in_group(visitor: Visitor, gid: Optional[int]) -> Refuse:
    return Refuse(
        words.NOT_IN_GROUP,
        f"the process is not in the group {gid} that may use this instance; add user {visitor.uid} to it, and start"
        " the process in a new session",
    )
