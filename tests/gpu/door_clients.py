#!/usr/bin/env python3
"""CUDA clients at a front door, begun, counted and killed on the GPU host itself; progress, then one JSON line.

cost     one client and many at once, through the door and at the daemon's own socket, in turn
first    clients killed at random moments while their server starts, each followed by a whole one, which must come in
storm    clients of two users that begin over and over while daemons and doors' services are killed
jam      first clients killed past any door, at --directory, until the daemon answers no client any more

Every client is a process of its own (cuda_client.py) that asks libcuda whether it is under MPS (device attribute 133)
and how much memory it may take. What one met: ``limited`` (under MPS, with the limit), ``unlimited`` (under MPS,
without it), ``outside`` (no MPS), CUDA's error by its name and code, ``broken`` (told no limit, and can take nothing),
``hung`` (did not end within 45 s; it is ended).
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, Callable, Optional

CLIENT = [sys.executable, str(Path(__file__).with_name("cuda_client.py"))]
USERS = (0, 1000)
HUNG_S = 45.0
MOST_SHOWN = 2
OUT_OF_MEMORY = 2
"""CUDA's error."""
DAEMON = "nvidia-cuda-mps-control"


def public(instance: str) -> str:
    return f"/run/nvidia-mps/{instance}"


def own(instance: str) -> str:
    """The daemon's own directory, which root can enter: no door stands before it."""
    return f"/run/mps-fleet/{instance}/pipe"


def begin(directory: str, uid: int, *options: str) -> subprocess.Popen[str]:
    user = ["--uid", str(uid)] if uid else []
    return subprocess.Popen(
        [*CLIENT, *user, *options],
        env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": directory},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def end(client: subprocess.Popen[str], within_s: float = HUNG_S) -> tuple[Optional[dict[str, Any]], bool]:
    """What it said first, if anything, and whether it had to be ended."""
    hung = False
    try:
        said, _ = client.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        hung = True
        client.kill()
        said, _ = client.communicate()
    lines = [json.loads(line) for line in said.splitlines()]
    return ({**lines[0], "then": lines[1:], "exit": client.returncode} if lines else None), hung


def met(said: Optional[dict[str, Any]], hung: bool, limit_mib: int) -> str:
    """A client whose server dies while its context is made may be told that all is free, and can take nothing: it is
    ``broken``. So who is told more than the limit also tries to take more (``--allocate-mib``)."""
    if said is None:
        return "hung" if hung else "ended without a word"
    if "failed" in said:
        return f"{said['failed']}: {said.get('code', '')} {said['name']}"
    if not said["mps"]:
        return "outside"
    if said["free_mib"] <= limit_mib:
        return "limited"
    took = said.get(f"allocate_{2 * limit_mib}_mib")
    return f"broken: cuMemAlloc: {took}" if isinstance(took, int) and took != OUT_OF_MEMORY else "unlimited"


def too_much(limit_mib: int) -> tuple[str, str]:
    return "--allocate-mib", str(2 * limit_mib)


def say(text: str) -> None:
    print(f"   {text}", flush=True)


# ---- cost


def _one(directory: str) -> float:
    said, _ = end(begin(directory, 0))
    if not said or "failed" in said or not said["mps"]:
        raise SystemExit(f"found {said} through {directory}, expected a client")
    return float(said["init_s"]) + float(said["context_s"])


def _crowd(directory: str, size: int) -> float:
    """Seconds until all have had a context; they keep it until the last one has."""
    hold = Path("/run/door-crowd.hold")
    hold.touch()
    start = time.monotonic()
    clients = [begin(directory, 0, "--hold-while", str(hold)) for _ in range(size)]
    lines = [json.loads((client.stdout and client.stdout.readline()) or "{}") for client in clients]
    took_s = time.monotonic() - start
    hold.unlink()
    for client in clients:
        client.communicate(timeout=HUNG_S)
    bad = [line for line in lines if not line.get("mps")]
    if bad:
        raise SystemExit(f"{len(bad)} of {size} through {directory} are no clients, the first: {bad[0]}")
    return took_s


def cost(options: argparse.Namespace) -> dict[str, Any]:
    sides = {"door": public("0"), "directly": own("0")}
    for directory in sides.values():
        _one(directory)
    found: dict[str, Any] = {}
    measures: tuple[tuple[str, int, Callable[[str], float]], ...] = (
        ("one", options.rounds, _one),
        (f"{options.crowd} at once", options.crowd_rounds, lambda directory: _crowd(directory, options.crowd)),
    )
    for name, rounds, measure in measures:
        times: dict[str, list[float]] = {side: [] for side in sides}
        for number in range(rounds):
            for side in sorted(sides, reverse=bool(number % 2)):
                times[side].append(measure(sides[side]))
        middle = {side: round(median(values), 4) for side, values in times.items()}
        ratio = round(middle["door"] / middle["directly"], 3)
        spread = {side: [round(min(values), 4), round(max(values), 4)] for side, values in times.items()}
        found[name] = {"rounds": rounds, "median_s": middle, "range_s": spread, "ratio": ratio}
        say(f"{name}: {found[name]}")
    return found


# ---- first


def _ask(instance: str, command: str) -> str:
    words = ["mpsctl", "control", "--force", instance]
    return subprocess.run(words, input=f"{command}\n", capture_output=True, text=True, check=False).stdout


def _gone(pid: int, within_s: float) -> bool:
    until = time.monotonic() + within_s
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.02)
    return not Path(f"/proc/{pid}").exists()


def _end_servers(instance: str) -> str:
    """So that the next client is a first one. Nobody is connected; says how the last server ended."""
    how = "no server"
    for word in _ask(instance, "get_server_list").split():
        if not word.isdigit():
            continue
        _ask(instance, f"shutdown_server {word} -f")
        how = "shut down"
        if not _gone(int(word), within_s=2):
            os.kill(int(word), signal.SIGKILL)
            how = "killed" if _gone(int(word), within_s=5) else "stays"
    return how


def first(options: argparse.Namespace) -> dict[str, Any]:
    """In single-user mode the whole client that follows is the other user's: the next one needs a new server again."""
    dice = random.Random(options.seed)
    counts: collections.Counter[str] = collections.Counter()
    waits_s = []
    begun, number = time.monotonic(), 0
    for number in range(options.trials):
        if time.monotonic() - begun > options.within_s:
            number -= 1
            break
        if options.multi_user:
            counts[f"server before: {_end_servers('0')}"] += 1
        killed_uid, whole_uid = USERS if number % 2 else reversed(USERS)
        moment_s = dice.uniform(0.02, options.longest_s)
        victim = begin(public("0"), killed_uid, "--hold-s", "5")
        time.sleep(moment_s)
        victim.kill()
        said, _ = victim.communicate()
        counts["killed at work" if said else "killed in its start"] += 1
        start = time.monotonic()
        found, hung = end(begin(public("0"), whole_uid))
        waits_s.append(time.monotonic() - start)
        outcome = met(found, hung, options.limit_mib)
        counts[f"next one: {outcome}"] += 1
        if outcome != "limited":
            say(f"trial {number}: killed after {moment_s:.3f} s; the next one met {outcome}")
            subprocess.run(["mpsctl", "status"], check=False)
            subprocess.run(["mpsctl", "health"], check=False)
        if number % 25 == 24:
            say(f"{number + 1} killed: {dict(sorted(counts.items()))}")
    return {
        "seed": options.seed,
        "trials": number + 1,
        "met": counts,
        "next_s": {"median": round(median(waits_s), 3), "max": round(max(waits_s), 3)},
    }


# ---- storm


class Storm:
    def __init__(self, instances: list[str], loops: int, limit_mib: int) -> None:
        self.counts: dict[str, collections.Counter[str]] = {name: collections.Counter() for name in instances}
        self._shown = 0
        self.killed_s = time.monotonic()
        self._limit_mib = limit_mib
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._loop, args=(name, USERS[number % 2]))
            for name in instances
            for number in range(loops)
        ]

    def note(self, instance: str, outcome: str) -> None:
        with self._lock:
            self.counts[instance][outcome] += 1

    def _show(self, instance: str, found: Optional[dict[str, Any]]) -> None:
        """What the daemon wrote of the first few."""
        with self._lock:
            self._shown += 1
            if self._shown > MOST_SHOWN or not found:
                return
        words = ["journalctl", "-u", f"mps-control@{instance}", "-o", "short-precise", "--no-pager", "-n", "600"]
        lines = subprocess.run(words, capture_output=True, text=True, check=False).stdout.splitlines()
        own = [number for number, line in enumerate(lines) if f"PID: {found['pid']}" in line or "Starting" in line]
        for line in lines[max(0, own[0] - 3) : own[-1] + 8] if own else []:
            say(line[:220])

    def _loop(self, instance: str, uid: int) -> None:
        while not self._over.is_set():
            found, hung = end(begin(public(instance), uid, "--hold-s", "0.2", *too_much(self._limit_mib)))
            outcome = met(found, hung, self._limit_mib)
            if outcome in ("outside", "unlimited", "hung") or outcome.startswith("broken"):
                self._show(instance, found)
                say(f"{outcome}, {time.monotonic() - self.killed_s:.2f} s after the last kill: {found}")
            self.note(instance, outcome)
            self.note(instance, f"of uid {uid}")

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def _main_pid(unit: str) -> int:
    done = subprocess.run(["systemctl", "show", "--value", "-p", "MainPID", unit], capture_output=True, check=True)
    return int(done.stdout)


def _kill(unit: str, within_s: float = 20) -> int:
    """The pid that was killed: 0 when the unit had none all the time."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        pid = _main_pid(unit)
        if pid > 1:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return pid
        time.sleep(0.02)
    return 0


def _limit_is_back(instance: str, start: float, within_s: float = 60) -> Optional[float]:
    """Seconds from ``start`` until the daemon answers with a limit."""
    while time.monotonic() - start < within_s:
        done = subprocess.run(
            [DAEMON],
            input="get_default_device_pinned_mem_limit 0\n",
            env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": own(instance)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.stdout.strip():
            return time.monotonic() - start
        time.sleep(0.01)
    return None


def storm(options: argparse.Namespace) -> dict[str, Any]:
    """``--kill daemon@0=50``: so many kills of that instance's daemon (or ``service``, the door's) in random order."""
    dice = random.Random(options.seed)
    plan = [what for what, _, count in (one.partition("=") for one in options.kill) for _ in range(int(count))]
    dice.shuffle(plan)
    instances = options.instances.split(",")
    run = Storm(instances, options.loops, options.limit_mib)
    back_s, waited_s, begun = [], [], time.monotonic()
    run.start()
    time.sleep(3)
    done: collections.Counter[str] = collections.Counter()
    for number, what in enumerate(plan):
        if time.monotonic() - begun > options.within_s:
            break
        kind, _, instance = what.partition("@")
        unit = {"daemon": f"mps-control@{instance}", "service": f"mps-front-door@{instance}"}[kind]
        # a daemon that had lived on would start again without the pause of a crash loop
        with suppress(FileNotFoundError):
            os.unlink(f"/run/mps-fleet/{instance}/starts.json")
        pid, start = _kill(f"{unit}.service"), time.monotonic()
        run.killed_s = start
        if not pid:
            raise SystemExit(f"found no process of {unit} for 20 s, expected one to kill")
        done[what] += 1
        if kind == "daemon":
            newcomer = begin(public(instance), dice.choice(USERS), *too_much(options.limit_mib))
            seconds = _limit_is_back(instance, start)
            if seconds is None:
                say(f"kill {number}: no limit within 60 s")
            else:
                back_s.append(seconds)
            found, hung = end(newcomer)
            outcome = met(found, hung, options.limit_mib)
            run.note(instance, outcome)
            run.note(instance, "came right after a kill")
            if found and outcome == "limited":
                waited_s.append(float(found["init_s"]) + float(found["context_s"]))
        time.sleep(dice.uniform(0.1, 1.0))
        if number % 20 == 19:
            say(f"{number + 1} kills, {time.monotonic() - begun:.0f} s: {_sorted(run.counts)}")
    run.end()
    return {
        "seed": options.seed,
        "kills": done,
        "seconds": round(time.monotonic() - begun),
        "met": _sorted(run.counts),
        "kill_to_limit_s": _summary(back_s),
        "client_after_kill_s": _summary(waited_s),
    }


def _sorted(counts: dict[str, collections.Counter[str]]) -> dict[str, dict[str, int]]:
    return {name: dict(sorted(counter.items())) for name, counter in counts.items()}


def _summary(values: list[float]) -> dict[str, float]:
    if not values:
        return {"count": 0}
    in_order = sorted(values)
    return {
        "count": len(values),
        "median": round(median(values), 3),
        "p90": round(in_order[int(0.9 * (len(in_order) - 1))], 3),
        "max": round(max(values), 3),
    }


# ---- jam


def jam(options: argparse.Namespace) -> dict[str, Any]:
    """Ends with a daemon that leaves a client without an answer for 8 s; that client is ended."""
    dice = random.Random(options.seed)
    for number in range(options.trials):
        _end_servers("0")
        victim = begin(options.directory, 0, "--hold-s", "5")
        time.sleep(dice.uniform(0.15, 0.3))
        victim.kill()
        victim.communicate()
        found, hung = end(begin(options.directory, 0), within_s=8)
        if hung:
            return {"jammed": True, "after": number + 1}
        say(f"first client {number + 1} killed: the next one met {met(found, hung, options.limit_mib)}")
    return {"jammed": False, "after": options.trials}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("cost", "first", "storm", "jam"))
    parser.add_argument("--seed", type=int, default=580)
    parser.add_argument("--limit-mib", type=int, default=4096)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=30, help="cost: of one client")
    parser.add_argument("--crowd", type=int, default=32)
    parser.add_argument("--crowd-rounds", type=int, default=4)
    parser.add_argument("--multi-user", action="store_true")
    parser.add_argument("--within-s", type=float, default=240, help="first, storm: no new trial after so long")
    parser.add_argument("--longest-s", type=float, default=0.45, help="first: the latest moment of a kill")
    parser.add_argument("--instances", default="0")
    parser.add_argument("--loops", type=int, default=8, help="storm: clients at a time and instance, of two users")
    parser.add_argument("--kill", action="append", default=[], metavar="daemon@0=50")
    parser.add_argument("--directory", default=public("0"), help="jam: where the daemon's socket is")
    options = parser.parse_args()
    parts = {"cost": cost, "first": first, "storm": storm, "jam": jam}
    print(json.dumps(parts[options.part](options)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
