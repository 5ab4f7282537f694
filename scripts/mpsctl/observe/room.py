"""How many clients an instance has in each place that its front door holds, and whether one more finds one.

As the front door counts (``front_door/census.py``): who is listed by a server of the daemon counts, and who was let in
to this daemon and is not listed yet.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import AbstractSet, Iterable, Mapping, Optional

from mpsctl.adapters import control_daemon as control
from mpsctl.adapters import control_groups, procfs
from mpsctl.model import shares
from mpsctl.model.shares import ALL, Room, Whose
from mpsctl.observe import front_door
from mpsctl.observe.door_facts import Place, RoomFacts
from mpsctl.observe.facts import InstanceFacts
from mpsctl.store import admission, front_door_notes
from mpsctl.store.admission import ServedDaemon
from mpsctl.store.front_door_notes import LetIn, Notes
from mpsctl.store.world import World

_NOBODY = -1


@dataclass(frozen=True)
class Count:
    """Who counts in each place, by pid, and how many wait for it; ``room`` is what is held. ``pids`` is None where
    nobody can tell who is connected."""

    room: Room
    pids: Optional[Mapping[str, tuple[int, ...]]]
    waiting: Mapping[str, int]
    whole: bool = True
    """whether nobody was let in of whom the front door's notes know nothing any more"""

    def place(self, name: str, most: int) -> Place:
        pids = None if self.pids is None else self.pids.get(name, ())
        return Place(name, most, pids, self.waiting.get(name, 0))

    def no_place(self, whose: Whose, clients: int = 1) -> Optional[Place]:
        """The first place that these clients would not all find, or not before others who wait for it; None where they
        find one, and where that is not known."""
        for name, most in shares.places(self.room, whose):
            place = self.place(name, most)
            if place.has is not None and (place.has + clients > most or place.waiting):
                return place
        return None

    def free(self, whose: Whose) -> Optional[int]:
        """How many more of these find a place; None for as many as come, and where that is not known."""
        places = [self.place(name, most) for name, most in shares.places(self.room, whose)]
        left = [0 if place.waiting else max(0, place.most - place.has) for place in places if place.has is not None]
        return min(left, default=None)

    @property
    def facts(self) -> RoomFacts:
        """All places: all clients first, then each share that has a name, then those of defaults where somebody is."""
        most = {ALL: self.room.clients} if self.room.clients is not None else {}
        most.update((share.key, share.clients) for share in self.room.shares if share.name is not None)
        defaults = {share.kind: share.clients for share in self.room.shares if share.name is None}
        for name in sorted({*(self.pids or {}), *self.waiting}):
            kind = name.partition(":")[0]
            if name not in most and kind in defaults:
                most[name] = defaults[kind]
        return RoomFacts(
            tuple(self.place(name, clients) for name, clients in most.items()), self.room.refuse, self.whole
        )


def of_instance(found: InstanceFacts, now_s: float) -> Optional[RoomFacts]:
    """The places of an instance as it was found; None where no daemon runs or no number is held."""
    counted_now = counted(found, now_s)
    return None if counted_now is None else counted_now.facts


def counted(found: InstanceFacts, now_s: float) -> Optional[Count]:
    """Who counts in an instance as it was found; None where no daemon runs or no number is held."""
    told = found.door.admission if found.door is not None else None
    if found.door is None or told is None or told.room is None or not found.pid:
        return None
    listed = None if found.clients_unknown else [client.pid for client in found.clients]
    was_listed: set[int] = set()
    if found.log_trusted is not False:
        was_listed = {pid for server in found.log.servers.values() for pid in server.ever}
    served = told.daemon if told.daemon is not None and told.daemon.pid == found.pid else None
    return count(told.room, served, found.door.notes, listed, now_s, was_listed)


def now(world: World, name: str) -> Optional[Count]:
    """Who counts at this moment; None where no number is held, or no daemon is there.

    :raises NotReady: if the daemon does not answer.
    """
    told = admission.read(world.places, name)
    if told is None or told.room is None or told.daemon is None:
        return None
    daemon = world.daemon_of(name, Path(told.daemon.pipe_directory))
    listed = [pid for server in control.servers(daemon) for pid in control.clients(daemon, server.pid)]
    notes, now_s = front_door_notes.read(world.places, name), world.now_s()
    # Of a door that was killed those may stand there still whom it told no.
    waiting = tuple(one for one in notes.waiting if now_s - one.since_s <= told.wait_s)
    return count(told.room, told.daemon, replace(notes, waiting=waiting), listed, now_s)


def count(
    room: Room,
    served: Optional[ServedDaemon],
    notes: Notes,
    listed: Optional[Iterable[int]],
    now_s: float,
    was_listed: AbstractSet[int] = frozenset(),
) -> Count:
    """Who counts. ``listed`` are the clients that the daemon ``served`` lists, None where it does not tell;
    ``was_listed`` who is known to have been a client before: gone from the list, such a one gave its place away."""
    waiting = Counter(one.place for one in front_door.noted(notes.waiting) if one.place)
    if listed is None:
        return Count(room, None, waiting)
    mine = {one.pid: one for one in notes.let_in if served and one.is_of(served.pid, served.started_at)}
    pids = dict.fromkeys(listed)
    pids.update((pid, None) for pid, one in mine.items() if _keeps(one, was_listed, now_s))
    places: dict[str, list[int]] = {}
    for pid in pids:
        for place, _ in shares.places(room, _whose(pid, mine.get(pid))):
            places.setdefault(place, []).append(pid)
    return Count(room, {name: tuple(every) for name, every in places.items()}, waiting, notes.whole)


def _keeps(one: LetIn, was_listed: AbstractSet[int], now_s: float) -> bool:
    """Whether a process that was let in, and is not listed, has its place."""
    if not procfs.lives(one.pid, one.started_at) or not one.server_lives:
        return False
    if now_s < one.at_s + shares.ARRIVING_S:
        return True
    return one.pid not in was_listed and now_s < one.at_s + shares.PLACE_HOLDS_S


def _whose(pid: int, noted: Optional[LetIn]) -> Whose:
    if noted is not None and noted.whose is not None:
        return noted.whose
    uid = noted.uid if noted is not None else procfs.uid(pid)
    return control_groups.whose(pid, _NOBODY if uid is None else uid)
