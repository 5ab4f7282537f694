"""How a request travels to a host, and how the answer is read."""

from __future__ import annotations

import json
import shlex
import signal
from pathlib import Path
from typing import Any, Optional, Sequence

ABSENT = 127
"""The exit code of a shell that does not find a command."""
_UNTRUSTED = 78
"""Ours, where others than root can change the Python that is to run as root."""

_SIGNS = {"format", "error", "exit_code"}
"""Keys by which an answer of the program is told from what else a host may print."""

_NO_MODULE = (
    "root runs modules from there, and none was sent: turn pipelining on, as this project's ansible.cfg does, or set"
    " remote_tmp to a folder that is root's or the connecting user's"
)

_BOOTSTRAP = Path(__file__).with_name("bootstrap.py")
_JUDGE = Path(__file__).with_name("judge.sh")


def reconcile(check: bool) -> list[str]:
    """The program's arguments for a request on standard input."""
    return ["reconcile", "--json", *(["--check"] if check else [])]


def python_words(value: str) -> list[str]:
    """The command of a host's Python, as ansible_python_interpreter or ansible.cfg has it: a path, or a name that is
    looked for in PATH, with arguments or without. The distribution's where Ansible is to look for one by itself."""
    words = shlex.split(value)
    if words and words[0].rpartition("/")[2] == "env":
        words = words[1:]
    return words if words and not words[0].startswith("auto") else ["/usr/bin/python3"]


def command(program: str, python: Sequence[str], arguments: Sequence[str]) -> str:
    """The shell command that asks the installed program; an operator can run the very same.

    It ends as on a host without the program where others than root could change that: ours is sent then, and judges.
    """
    place = shlex.quote(program)
    is_there = f'test -r {place} && test -z "$(judge {place})" || exit {ABSENT}'
    return f"{_judged(python)}{is_there}\n{_run(python, ['-IS', program, *arguments])}"


def bootstrap_command(size_bytes: int, temporary: str, python: Sequence[str], arguments: Sequence[str]) -> str:
    """The shell command that takes the program from the first ``size_bytes`` of its input and asks that one.

    One round trip where Ansible's own way of sending a file needs four. The program lies in memory and in no folder of
    the host: one may be shared with others. ``temporary`` is Ansible's, where releases before this one put it.
    """
    words = ["-IS", "-c", _BOOTSTRAP.read_text(encoding="utf-8"), str(size_bytes), temporary, *arguments]
    return _judged(python) + _run(python, words)


def _judged(python: Sequence[str]) -> str:
    """The beginning of both: no Python is run as root that others than root could change."""
    name = shlex.quote(python[0])
    missing = f"{{ printf '%s: not found\\n' {name} >&2; exit {ABSENT}; }}"
    return (
        f"{_JUDGE.read_text(encoding='utf-8')}"
        f"python=$(command -v -- {name}) || {missing}\n"
        f'weak=$(judge "$python"); test -z "$weak" || {{ printf "%s\\n" "$weak" >&2; exit {_UNTRUSTED}; }}\n'
    )


def judgement(folder: str, user: str) -> str:
    """The shell command that prints what others than root and ``user`` can change on the way to a folder."""
    return f"{_JUDGE.read_text(encoding='utf-8')}also={shlex.quote(user)}\njudge {shlex.quote(folder)}"


def shared_folder(folder: str, weak: str) -> str:
    """One line for a host whose folder for modules others can change."""
    return (
        f"found {_in_one_line(weak)} on the way to Ansible's remote_tmp {folder}, expected what nobody but root can"
        f" change; {_NO_MODULE}"
    )


def not_judged(folder: str, said: str) -> str:
    """The same for one on which that could not be looked at."""
    return f"found no judgement of Ansible's remote_tmp {folder} ({_in_one_line(said)}), expected one; {_NO_MODULE}"


def _in_one_line(said: str) -> str:
    return " | ".join(line.strip() for line in said.splitlines() if line.strip())[-500:]


def _run(python: Sequence[str], words: Sequence[str]) -> str:
    return f'"$python" {shlex.join([*python[1:], *words])}'


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


def is_final(code: int) -> bool:
    """Whether nothing more is tried: a signal of somebody's ended the program, which is not begun anew behind his back,
    or no Python was run. A program that is damaged ends by itself, and ours is sent in its place."""
    return code in (128 + signal.SIGINT, 128 + signal.SIGKILL, 128 + signal.SIGTERM, _UNTRUSTED)


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


def no_answer(result: dict[str, Any], python: Sequence[str]) -> str:
    """One line for a host that gave no answer."""
    code = result.get("rc")
    said = " | ".join(line.strip() for line in str(result.get("stderr") or "").splitlines() if line.strip())
    if code == ABSENT and "mpsctl" not in said:
        return (
            f"found no {shlex.join(python)} on this host, expected Python 3.9 or newer; install it, or set"
            f" ansible_python_interpreter ({said or 'nothing on standard error'})"
        )
    if code == _UNTRUSTED:
        return (
            f"found {said[-500:]} on the way to {shlex.join(python)}, expected what nobody but root can change; nothing"
            " was run: see what is in it and give it to root, or name another Python in ansible_python_interpreter"
        )
    return (
        f"found no answer of mpsctl (exit code {code}), expected one JSON object; it said:"
        f" {said[-500:] or str(result.get('stdout') or '').strip()[-500:] or 'nothing'}"
    )
