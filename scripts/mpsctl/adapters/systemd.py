"""systemd, through systemctl and journalctl."""

from __future__ import annotations

import math
import os
import re
import selectors
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Callable, Mapping, Optional, Protocol, Sequence, cast

from mpsctl.adapters import files
from mpsctl.model import foreign
from mpsctl.model.errors import NotInForce, NotReady, Unreadable
from mpsctl.model.pattern import Pattern

_PROPERTIES = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "MainPID",
    "NRestarts",
    "Result",
    "NeedDaemonReload",
    "ActiveEnterTimestamp",
    "ActiveEnterTimestampMonotonic",
    "InvocationID",
    "Listen",
)

_TARGETS = {"timer": "timers.target", "socket": "sockets.target"}
"""What starts a unit at boot, by its kind: the [Install] of our units."""

_TIMEOUT_S, _JOURNAL_TIMEOUT_S, _JOBS_TIMEOUT_S = 30, 10, 600
"""For an answer, for lines of the journal, and for jobs: each unit has its own bounds, which are shorter."""
_MOST_BYTES = 16 << 20
"""What is kept of a command's output: of a journal its newest lines. One user can have a daemon write 37,000 lines in
10 s, and a start may be months old."""
_MOST_WORDS = 500
"""Of systemctl's words on failed jobs: it names each unit."""


class Systemd(Protocol):
    """What this program asks of the service manager."""

    def show(self, units: Sequence[str]) -> dict[str, Mapping[str, str]]:
        """A few properties of each unit, by its name."""

    def begin_show(self, units: Sequence[str]) -> Callable[[], dict[str, Mapping[str, str]]]:
        """Ask as ``show`` does and wait for nothing: what is returned waits for the answer."""

    def enabled(self, unit: str) -> bool:
        """Whether the unit is started at boot."""

    def act(self, verb: str, units: Sequence[str] = ()) -> Optional[str]:
        """Run one verb and wait for its jobs; None on success, else systemctl's words on one line."""

    def request_start(self, unit: str) -> Optional[str]:
        """Ask for a unit's start and wait for nothing; None where its job is in the queue, else systemctl's words."""

    def kill_main(self, unit: str) -> Optional[str]:
        """SIGKILL for the unit's main process alone; None on success, else systemctl's words on one line."""

    def job(self, unit: str) -> Optional[str]:
        """The type of the unit's job in the queue: start, stop, restart …, or None."""

    def session_state(self, session: str) -> Optional[str]:
        """What logind says of a login session: online, active, closing (its user has left, processes stay), or None
        where it is gone; empty where it is not told."""

    def journal(self, unit: str, lines: int) -> list[str]:
        """The unit's last lines in the journal."""

    def journal_entries(
        self, wanted: Mapping[str, str], fields: Sequence[str], last_s: float, most: int
    ) -> list[dict[str, str]]:
        """The last entries that have these values, within the last seconds, oldest first; of each the named fields.

        Empty where the journal has none, or may not be read.
        """

    def kernel_log(self, lines: int) -> list[str]:
        """The kernel's last lines of this boot in the journal; empty where they may not be read."""

    def journal_of_start(self, invocation: str, wanted: str, settled: bool = False) -> list[str]:
        """The lines of one start of a unit, by its InvocationID, that match ``wanted``, oldest first.

        Empty where the journal has none, or may not be read. ``settled`` waits until all that was written
        before the call is in the journal.
        """

    def begin_journal_of_start(
        self, invocation: str, wanted: str, last_s: Optional[float] = None
    ) -> Callable[[], list[str]]:
        """Ask as ``journal_of_start`` does and wait for nothing: what is returned waits for the answer.

        ``last_s`` are the last seconds of which lines are wanted, None for all.
        """

    def journal_of_boot(self, wanted: str) -> Optional[list[str]]:
        """The lines of systemd itself since boot that match ``wanted``; None where the journal may not be read."""


_LIBRARY = Pattern(r"libsystemd-shared-(?P<version>\d+).*\.so")


def version(root: Path = Path("/")) -> Optional[int]:
    """systemd's release, as the name of its own library has it; None where that is not found."""
    for pattern in ("usr/lib/systemd", "usr/lib/*/systemd", "lib/systemd", "usr/lib64/systemd"):
        for path in sorted(root.glob(f"{pattern}/libsystemd-shared-*.so")):
            match = _LIBRARY.fullmatch(path.name)
            if match:
                return int(match["version"])
    return None


class Systemctl:
    """The real one."""

    def __init__(self, timeout_s: float = _JOBS_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s

    def _run(
        self, *command: str, timeout_s: Optional[float] = None, hand_down: bool = False
    ) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s or _TIMEOUT_S,
                check=False,
                close_fds=not hand_down,
            )
        except FileNotFoundError:
            raise NotReady(f"{command[0]} is not on this host; mpsctl needs systemd 249 or newer") from None
        except subprocess.TimeoutExpired:
            raise NotReady(
                f"`{foreign.shown(' '.join(command))}` did not end within {timeout_s or _TIMEOUT_S} s"
            ) from None

    def show(self, units: Sequence[str]) -> dict[str, Mapping[str, str]]:
        return self.begin_show(units)()

    def begin_show(self, units: Sequence[str]) -> Callable[[], dict[str, Mapping[str, str]]]:
        if not units:
            return dict
        command = ["systemctl", "show", "--no-pager", "--timestamp=utc", f"--property={','.join(_PROPERTIES)}", *units]
        begun = _begin(command, _TIMEOUT_S)

        def answer() -> dict[str, Mapping[str, str]]:
            done = begun()
            if done.returncode:
                raise NotReady(f"systemctl show failed: {_one_line(done.stderr)}")
            found: dict[str, Mapping[str, str]] = {}
            for unit, block in zip(units, done.stdout.strip("\n").split("\n\n")):
                found[unit] = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
            return found

        return answer

    def enabled(self, unit: str) -> bool:
        # A look at the link itself: `systemctl is-enabled` costs a process for each unit.
        target = _TARGETS.get(unit.rpartition(".")[2], "multi-user.target")
        return (Path("/etc/systemd/system") / f"{target}.wants" / unit).is_symlink()

    def act(self, verb: str, units: Sequence[str] = ()) -> Optional[str]:
        # Enabling only makes links: the caller reloads systemd once for all that it changed.
        return self._act(["--no-reload"] if verb == "enable" else [], verb, units)

    def request_start(self, unit: str) -> Optional[str]:
        done = self._run("systemctl", "--no-ask-password", "--no-block", "start", unit)
        return _one_line(done.stderr or done.stdout) or "systemctl start failed" if done.returncode else None

    def kill_main(self, unit: str) -> Optional[str]:
        # The option's name before systemd 252, which later ones still know.
        return self._act(["--kill-who=main", "--signal=SIGKILL"], "kill", [unit])

    def _act(self, options: Sequence[str], verb: str, units: Sequence[str]) -> Optional[str]:
        # What the caller made inheritable is handed down: his turn lasts until the jobs have ended, should he be killed
        # meanwhile.
        done = self._run(
            "systemctl", "--no-ask-password", *options, verb, *units, timeout_s=self._timeout_s, hand_down=True
        )
        if done.returncode == 0:
            return None
        return _one_line(done.stderr or done.stdout) or f"systemctl {verb} ended with {done.returncode}"

    def job(self, unit: str) -> Optional[str]:
        done = self._run("systemctl", "list-jobs", "--no-legend", "--no-pager", "--plain", "--full")
        for line in done.stdout.splitlines():
            fields = line.split()
            if len(fields) >= 3 and fields[1] == unit:
                return fields[2]
        return None

    def session_state(self, session: str) -> Optional[str]:
        # logind's own file of the session: `loginctl` costs a process for each.
        try:
            text = files.read_text(Path("/run/systemd/sessions") / session)
        except Unreadable:
            return ""
        for line in (text or "").splitlines():
            if line.startswith("STATE="):
                return line.partition("=")[2]
        return None

    def journal(self, unit: str, lines: int) -> list[str]:
        command = ["journalctl", "--no-pager", "--quiet", "-o", "cat", "-n", str(lines), "-u", unit]
        done = _begin(command, _JOURNAL_TIMEOUT_S)()
        return [line for line in done.stdout.splitlines() if line]

    def journal_entries(
        self, wanted: Mapping[str, str], fields: Sequence[str], last_s: float, most: int
    ) -> list[dict[str, str]]:
        import json

        command = ["journalctl", "--no-pager", "--quiet", "-o", "json", f"--output-fields={','.join(fields)}"]
        command += [f"--since=-{math.ceil(last_s)}s", "-n", str(most)]
        command += [f"{name}={value}" for name, value in wanted.items()]
        found = []
        for line in _begin(command, _JOURNAL_TIMEOUT_S)().stdout.splitlines():
            with suppress(ValueError):  # the first may be cut short
                entry = json.loads(line)
                found.append({name: entry[name] for name in fields if isinstance(entry.get(name), str)})
        return found

    def kernel_log(self, lines: int) -> list[str]:
        command = ["journalctl", "--no-pager", "--quiet", "-o", "cat", "-k", "-b", "-n", str(lines)]
        return [line for line in _begin(command, _JOURNAL_TIMEOUT_S)().stdout.splitlines() if line]

    def journal_of_start(self, invocation: str, wanted: str, settled: bool = False) -> list[str]:
        if settled:
            self._run("journalctl", "--sync", timeout_s=_JOURNAL_TIMEOUT_S)
        return self.begin_journal_of_start(invocation, wanted)()

    def begin_journal_of_start(
        self, invocation: str, wanted: str, last_s: Optional[float] = None
    ) -> Callable[[], list[str]]:
        since = [] if last_s is None else [f"--since=-{math.ceil(last_s)}s"]
        return self._matching(wanted, *since, f"_SYSTEMD_INVOCATION_ID={invocation}")

    def journal_of_boot(self, wanted: str) -> Optional[list[str]]:
        # Who may not read the system's journal is shown an empty one.
        return self._matching(wanted, "-b", "_PID=1")() or ([] if os.geteuid() == 0 else None)

    def _matching(self, wanted: str, *selected: str) -> Callable[[], list[str]]:
        command = ["journalctl", "--no-pager", "--quiet", "-o", "cat", *selected]
        begun = _begin([*command, "--grep", wanted], _JOURNAL_TIMEOUT_S)

        def answer() -> list[str]:
            done = begun()
            if done.returncode and re.search("pattern matching|pcre|unrecognized option", done.stderr, re.IGNORECASE):
                # Built without it; no match at all ends with 1 as well, and says nothing.
                done = _begin(command, _JOURNAL_TIMEOUT_S)()
            return [line for line in done.stdout.splitlines() if re.search(wanted, line)]

        return answer


def _begin(command: Sequence[str], timeout_s: float) -> Callable[[], subprocess.CompletedProcess[str]]:
    """Start a command; what is returned waits for its end, and keeps the last ``_MOST_BYTES`` that it printed.

    :raises NotReady: (what is returned) if it is not there, or does not end within ``timeout_s`` seconds.
    """
    absent = NotReady(f"{command[0]} is not on this host; mpsctl needs systemd 249 or newer")
    pipe = subprocess.PIPE
    process: Optional[subprocess.Popen[bytes]] = None
    with suppress(FileNotFoundError):
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)

    def answer() -> subprocess.CompletedProcess[str]:
        if process is None:
            raise absent
        end_s = time.monotonic() + timeout_s
        try:
            out, err = _last_of(process, end_s)
            process.wait(max(0.0, end_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            said = foreign.shown(" ".join(command))
            raise NotReady(f"`{said}` did not end within {timeout_s:g} s") from None
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    return answer


def _last_of(process: subprocess.Popen[bytes], end_s: float) -> tuple[str, str]:
    """The last that a process prints on standard output and on standard error, in whole lines.

    :raises subprocess.TimeoutExpired: if it does not close both in time.
    """
    streams = [one for one in (process.stdout, process.stderr) if one is not None]
    kept = {one: bytearray() for one in streams}
    cut = dict.fromkeys(streams, False)
    with ExitStack() as closing, selectors.DefaultSelector() as waiting:
        for one in streams:
            waiting.register(closing.enter_context(one), selectors.EVENT_READ)
        while waiting.get_map():
            ready = waiting.select(max(0.0, end_s - time.monotonic()))
            if not ready or time.monotonic() > end_s:
                raise subprocess.TimeoutExpired(process.args, end_s)
            for key, _ in ready:
                stream = cast("IO[bytes]", key.fileobj)
                chunk = os.read(key.fd, 1 << 16)
                if not chunk:
                    waiting.unregister(stream)
                kept[stream] += chunk
                if len(kept[stream]) > 2 * _MOST_BYTES:
                    del kept[stream][:-_MOST_BYTES]
                    cut[stream] = True
    out, err = (_text(kept[one], cut[one]) for one in streams)
    return out, err


def _text(data: bytearray, cut: bool) -> str:
    if cut or len(data) > _MOST_BYTES:
        data = data[-_MOST_BYTES:]
        data = data[data.find(b"\n") + 1 :]  # the first line is the rest of one
    return data.decode(errors="replace")


def enabled_instances(units: Path) -> list[str]:
    """The instances that start at boot, by the links in the directory of units, whether or not they have a file."""
    wanted = units / "multi-user.target.wants"
    links = sorted(wanted.glob("mps-control@?*.service")) if wanted.is_dir() else []
    return [link.name.removeprefix("mps-control@").removesuffix(".service") for link in links]


def ensure(problem: Optional[str], what: str) -> None:
    """:raises NotInForce: if ``problem`` says that ``what`` did not work."""
    if problem:
        raise NotInForce(f"{what}: {problem}")


def _one_line(text: str) -> str:
    return foreign.shown(" ".join(text.split()), _MOST_WORDS)
