"""How a request travels to a host, and how the answer is read."""

from __future__ import annotations

import json
import shlex
import signal
from pathlib import Path
from typing import Any, Optional, Sequence

ABSENT = 127
"""The exit code of a shell that does not find a command."""

_SIGNS = {"format", "error", "exit_code"}
"""Keys by which an answer of the program is told from what else a host may print."""

_BOOTSTRAP = Path(__file__).with_name("bootstrap.py")


def reconcile(check: bool) -> list[str]:
    """The program's arguments for a request on standard input."""
    return ["reconcile", "--json", *(["--check"] if check else [])]


def command(program: str, python: str, arguments: Sequence[str]) -> str:
    """The shell command that asks the installed program; an operator can run the very same."""
    words = [python, "-IS", program, *arguments]
    return f"test -r {shlex.quote(program)} || exit {ABSENT}; {shlex.join(words)}"


def bootstrap_command(size_bytes: int, temporary: str, python: str, arguments: Sequence[str]) -> str:
    """The shell command that takes the program from the first ``size_bytes`` of its input and asks that one.

    One round trip where Ansible's own way of sending a file needs four. The program lies in memory and in no folder of
    the host: one may be shared with others. ``temporary`` is Ansible's, where releases before this one put it.
    """
    words = [python, "-IS", "-c", _BOOTSTRAP.read_text(encoding="utf-8"), str(size_bytes), temporary]
    return shlex.join([*words, *arguments])


def answer(stdout: str) -> Optional[dict[str, Any]]:
    """The last line that is a JSON object: shells and their start files may have spoken before it."""
    for line in reversed(stdout.splitlines()):
        if line.startswith("{"):
            try:
                found = json.loads(line)
            except ValueError:
                return None
            return found if isinstance(found, dict) and not _SIGNS.isdisjoint(found) else None
    return None


def was_killed(code: int) -> bool:
    """Whether a signal of somebody's ended the program: it is not begun anew behind his back. One that is damaged
    ends by itself, and ours is sent in its place."""
    return code in (128 + signal.SIGINT, 128 + signal.SIGKILL, 128 + signal.SIGTERM)


def is_timeout(error: BaseException) -> bool:
    """Whether the task's own timeout has ended it. Ansible moved the class in core 2.19."""
    return type(error).__name__ == "TaskTimeoutError"


def not_in_time(bound_s: int) -> str:
    """One line for a host that did not answer within the bound of the task."""
    return (
        f"found no answer of mpsctl within {bound_s} s, expected one; it may still be at work there: see"
        " `ps -C python3 -o pid,stat,args` (T is stopped: `kill -CONT` or `kill -KILL` it) and `mpsctl status`, then"
        " run the playbook again"
    )


def no_answer(result: dict[str, Any], python: str) -> str:
    """One line for a host that gave no answer."""
    code = result.get("rc")
    said = " | ".join(line.strip() for line in str(result.get("stderr") or "").splitlines() if line.strip())
    if code == ABSENT and "mpsctl" not in said:
        return (
            f"found no {python} on this host, expected Python 3.9 or newer; install it, or set"
            f" ansible_python_interpreter ({said or 'nothing on standard error'})"
        )
    return (
        f"found no answer of mpsctl (exit code {code}), expected one JSON object; it said:"
        f" {said[-500:] or str(result.get('stdout') or '').strip()[-500:] or 'nothing'}"
    )
