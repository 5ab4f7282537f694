"""The exit codes of each verb: the one table. The helps, the manual page and the tests are made from it."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Optional

from mpsctl.checks import verbs
from mpsctl.checks.judgement import STATUS
from mpsctl.cli import unit
from mpsctl.lifecycle.run import NEVER_A_CLIENT
from mpsctl.model.errors import FAULT, INTERRUPTED, NOBODY_READS, BadValue, NotInForce, NotReady

BY_SIGNAL, ANY = "128 + n", "any other"
"""These stand for several codes."""

_REFUSED, _NOT_READY, _NOT_IN_FORCE = BadValue.exit_code, NotReady.exit_code, NotInForce.exit_code


class Code(NamedTuple):
    """``code`` is a number, or one of the words above."""

    code: str
    meaning: str


_EVERY: Mapping[int, str] = {
    0: "done",
    _REFUSED: "the command line or a value is refused, and nothing was changed",
    _NOT_READY: "something outside is not ready or may not be read, or the answer cannot be written",
    FAULT: "a fault of this program; MPSCTL_TRACE=1 shows where",
    INTERRUPTED: "Ctrl-C",
    NOBODY_READS: "nobody read the answer to its end",
}
"""What every verb can end with."""

_READ_BACK = {_NOT_IN_FORCE: "what was set does not read back in the desired state"}
_OWN: Mapping[str, Mapping[int, str]] = {
    "clients": {
        1: "you said no: the client is left alone",
        _NOT_READY: "who is connected cannot be told, or the answer cannot be written",
        _NOT_IN_FORCE: "the client could not be ended",
    },
    "ready": {0: "a client would come in now", _NOT_READY: "it would not, or the answer cannot be written"},
    "evict": {
        0: "no client of it is connected",
        _NOT_READY: "a daemon did not answer, or this user is not root",
        _NOT_IN_FORCE: "clients of it are left, or its processes do not end",
    },
    "drain": {1: "clients are left"},
    "undrain": _READ_BACK,
    "doctor": {0: "nothing was found that explains a fault", 1: "there are diagnoses"},
    "condition": {0: "this host can run MPS", unit.SKIP: "this host cannot: its units are to be skipped"},
    "prepare": _READ_BACK,
    "apply": _READ_BACK,
    "stop": {_NOT_IN_FORCE: "the daemon did not end"},
    "reconcile": {1: "not all was brought about; the answer says what"},
    "remove": {1: "not all was removed"},
    "slurm": {
        1: "check: slurm.conf or gres.conf lacks what it needs",
        _NOT_READY: "the job gets no share: Slurm drains the node with the reason",
        _NOT_IN_FORCE: "a client that the job left could not be ended",
    },
    "measure": {_NOT_IN_FORCE: "a client ran outside MPS, or under another limit than the instance's"},
    "bench": {1: "nothing could be measured"},
    "loopback": {1: "a result was wrong, or a way to fail did not end as it must"},
    "run": {
        0: "the command ended with 0",
        NEVER_A_CLIENT: "with --require-mps: the command never became a client",
        126: "the command cannot be executed",
        127: "the command was not found",
    },
    **{verb: {_NOT_READY: "the answer cannot be written"} for verb in ("completion", "man", "version")},
}
"""What else a verb can end with, and what a code of all verbs says of it."""

_MEASURED = "after signal n, with what was measured until then"
_SEVERAL: Mapping[str, tuple[Code, ...]] = {
    "top": (Code(BY_SIGNAL, "after signal n"),),
    "bench": (Code(BY_SIGNAL, _MEASURED),),
    "loopback": (Code(BY_SIGNAL, _MEASURED),),
    "run": (Code(BY_SIGNAL, "signal n ended the command"), Code(ANY, "the command's own")),
}


def every() -> list[Code]:
    """What every verb can end with."""
    return [Code(str(code), meaning) for code, meaning in _EVERY.items()]


def of(verb: str) -> list[Code]:
    """What a verb can end with, in the order of the numbers."""
    meanings: dict[int, str] = {**_EVERY, **_OWN.get(verb, {})}
    for code, words in _judged(verb).items():
        found = f"the worst that was found is {' or '.join(words)}"
        if verb == STATUS and code == verbs.NO_INSTANCE:
            found += ", or no instance has a file"
        meanings[code] = found if code == 0 or code not in _EVERY else f"{found}; or {meanings[code]}"
    return [*(Code(str(code), meanings[code]) for code in sorted(meanings)), *_SEVERAL.get(verb, ())]


def can_end_with(verb: str, code: int) -> bool:
    """Whether a code is in the table of a verb."""
    known = {one.code for one in of(verb)}
    by_signal = BY_SIGNAL in known and 128 < code <= 128 + 64
    return str(code) in known or by_signal or (ANY in known and 0 <= code < 256)


def text(verb: Optional[str], width: int) -> str:
    """What stands below the help of a verb, or of the program."""
    if verb is None:
        return "\n".join(
            [*_lines("exit codes of every verb", every(), width), "`mpsctl VERB --help` lists all of a verb."]
        )
    return "\n".join(_lines("exit codes", of(verb), width))


def _judged(verb: str) -> dict[int, list[str]]:
    """Of a verb that judges: the words for each code, the mildest first."""
    found: dict[int, list[str]] = {}
    for word, code in verbs.EXIT_CODES.get(verb, {}).items():
        found.setdefault(code, []).append(word)
    return found


def _lines(title: str, codes: list[Code], width: int) -> list[str]:
    import textwrap

    wide = max(len(one.code) for one in codes)
    found = [f"{title}:"]
    for one in codes:
        begin = f"  {one.code:<{wide}}  "
        found += textwrap.wrap(
            one.meaning, max(width, len(begin) + 20), initial_indent=begin, subsequent_indent=" " * len(begin)
        )
    return found
