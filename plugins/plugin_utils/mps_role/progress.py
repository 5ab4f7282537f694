"""Who is waited for while a drain or a reboot takes its time, told on the controller in a few lines for all hosts.

Each host's action notes in a folder of the run what it waits for. Whichever of them finds that nothing was told for a
while tells it for all. So it holds with any callback and strategy, and nobody waits for it.
"""

from __future__ import annotations

import fcntl
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, Sequence

from . import hosts as names
from . import project  # noqa: F401 (it makes mpsctl importable)

from mpsctl.model.foreign import shown  # isort: skip

LOOK_S = 10
"""How often an action notes what it waits for."""
FIRST_S = 15
"""How long a wait is not told: most end before, and all hosts of a batch have noted theirs by then."""
EVERY_S = 30
"""How often it is told from then on."""
_MOST_HOSTS, _MOST_CLIENTS, _MOST_OF_COMMAND = 5, 3, 40
_STAMP = "told"
CLIENTS, REBOOT = "clients", "reboot"


def folder(local_tmp: str) -> Path:
    """The folder of this run; ``local_tmp`` is Ansible's own, which is the run's alone and goes with it."""
    found = Path(local_tmp) / "mps-progress"
    found.mkdir(mode=0o700, exist_ok=True)
    return found


def note(place: Path, host: str, what: str, since_s: float, left: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Note what a host is waited for; ``left`` are its clients by instance, ``since_s`` is by the monotonic clock."""
    path = _path(place, host)
    state = {"host": host, "what": what, "since_s": since_s, "left": {key: list(value) for key, value in left.items()}}
    path.with_suffix(".new").write_text(json.dumps(state), encoding="utf-8")
    path.with_suffix(".new").replace(path)


def forget(place: Path, host: str) -> None:
    """The host is waited for no more."""
    _path(place, host).unlink(missing_ok=True)


def _path(place: Path, host: str) -> Path:
    return place / f"{host.encode().hex()[:200]}.json"


def tell(place: Path, say: Callable[[str], None], now_s: Optional[float] = None) -> None:
    """Say for all hosts who is left, where that was not said for a while."""
    now_s = time.monotonic() if now_s is None else now_s
    states = []
    for path in place.glob("*.json"):
        with suppress(OSError, ValueError):  # it is gone again
            states.append(json.loads(path.read_text(encoding="utf-8")))
    if not states or now_s - min(one["since_s"] for one in states) < FIRST_S:
        return
    with (place / _STAMP).open("a+", encoding="utf-8") as stamp:
        try:
            fcntl.flock(stamp, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return  # another one is just telling it
        stamp.seek(0)
        last = stamp.read().strip()
        if last and now_s - float(last) < EVERY_S:
            return
        stamp.seek(0)
        stamp.truncate()
        stamp.write(f"{now_s}\n")
    for line in lines(states, now_s):
        say(line)


def lines(states: Sequence[Mapping[str, Any]], now_s: float) -> list[str]:
    """Who is waited for, in at most a dozen lines however many hosts there are."""
    found: list[str] = []
    waiting = sorted((one for one in states if one["what"] == CLIENTS), key=lambda one: names.natural(one["host"]))
    if waiting:
        total = sum(len(clients) for one in waiting for clients in one["left"].values())
        found.append(
            f"waiting for {_number(total, 'client')} on {_number(len(waiting), 'host')}, {_for(waiting, now_s)}:"
        )
        found += [f"  {one['host']}: {_left(one['left'])}" for one in waiting[:_MOST_HOSTS]]
        if len(waiting) > _MOST_HOSTS:
            found.append(f"  and on {names.span([one['host'] for one in waiting[_MOST_HOSTS:]], ())}")
    rebooting = [one for one in states if one["what"] == REBOOT]
    if rebooting:
        who = names.span([one["host"] for one in rebooting], [one["host"] for one in rebooting])
        found.append(f"waiting for {who} to come back, {_for(rebooting, now_s)}")
    return found


def _for(states: Sequence[Mapping[str, Any]], now_s: float) -> str:
    return f"for {max(0, round(now_s - min(one['since_s'] for one in states)))} s now"


def _left(left: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    return "; ".join(f"instance {name}: {clients_told(clients)}" for name, clients in left.items() if clients) or "…"


def clients_told(clients: Sequence[Mapping[str, Any]]) -> str:
    """How many clients, and the first of them by pid, command and user or container."""
    told = [f"pid {one['pid']} ({shown(str(one.get('command')), _MOST_OF_COMMAND)}, {_whose(one)})" for one in clients]
    more = f" and {len(told) - _MOST_CLIENTS} more" if len(told) > _MOST_CLIENTS else ""
    return f"{_number(len(clients), 'client')} left: {', '.join(told[:_MOST_CLIENTS])}{more}"


def _whose(client: Mapping[str, Any]) -> str:
    if client.get("container"):
        return f"container {shown(str(client['container']), _MOST_OF_COMMAND)}"
    user = client.get("user") or client.get("uid")
    return "user not told" if user is None else f"user {user}"


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


@contextmanager
def told_meanwhile(
    place: Path,
    say: Callable[[str], None],
    host: str,
    what: str,
    left: Optional[Mapping[str, Sequence[Mapping[str, Any]]]] = None,
) -> Iterator[None]:
    """Tell of one host while the block waits for it: for what has no way to look while it waits."""
    over, since_s = threading.Event(), time.monotonic()

    def run() -> None:
        while not over.wait(LOOK_S):
            note(place, host, what, since_s, left or {})
            tell(place, say)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LOOK_S)
        forget(place, host)
