"""The verb doctor."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import BinaryIO, Callable, Sequence

from mpsctl.causes import consult
from mpsctl.cli import output
from mpsctl.model.errors import BadValue
from mpsctl.model.foreign import pasted
from mpsctl.store.world import World


def doctor(world: World, options: argparse.Namespace) -> int:
    """Answer, and return 1 where there are diagnoses.

    :raises BadValue: for an error or a form that is not known, and for what is not there.
    """
    if [*options.log, *options.container, *options.unit].count("-") > 1:
        raise BadValue("standard input twice", "once", "name a file for the other")
    question = consult.Question(
        instances=options.instances,
        errors=options.error,
        logs=_texts(options.log),
        pids=[_pid(text) for text in options.pid],
        containers=_texts(options.container),
        units=_texts(options.unit),
    )
    answer = consult.consult(world, question)
    if options.json:
        output.say_json(answer.as_json())
    else:
        _show(answer, output.say)
    return 1 if answer.diagnoses else 0


def _pid(text: str) -> int:
    if text.isascii() and text.isdigit() and 0 < int(text) < 1 << 22:
        return int(text)
    raise BadValue(f"--pid {text!r}", "a process id", "write for example --pid 4711")


_MOST_BYTES = 4 << 20
"""Of a longer file the end is read: a log tells there how it ended."""


def _texts(names: Sequence[str]) -> list[tuple[str, str]]:
    return [(name if name != "-" else "standard input", _text(name)) for name in names]


def _text(name: str) -> str:
    """The end of a file, or of standard input.

    :raises BadValue: where there is nothing to read, or no end of it.
    """
    try:
        if name == "-":
            if sys.stdin is None:
                raise BadValue("no standard input", "a text on it", "name a file")
            # Only a real one has bytes behind it.
            return _end_of(sys.stdin.buffer) if hasattr(sys.stdin, "buffer") else sys.stdin.read()
        path = Path(name)
        if not path.is_file():
            raise BadValue(f"{name}, which is no file", "a file", _remedy(name))
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - _MOST_BYTES))
            return _end_of(stream)
    except OSError as error:
        raise BadValue(f"no file to read ({error})", "a file", "name one, or - for standard input") from None


def _remedy(name: str) -> str:
    if name.endswith(".service") and "/" not in name:
        return f"of a unit: systemctl cat {pasted(name)} | mpsctl doctor --unit -"
    return "name one, or - for standard input"


def _end_of(stream: BinaryIO) -> str:
    data = b""
    while True:
        more = stream.read(1 << 20)
        if not more:
            return data.decode(errors="replace")
        data = (data + more)[-_MOST_BYTES:]


def _show(answer: consult.Answer, say: Callable[[str], None]) -> None:
    for line in answer.understood:
        say(line)
    if not answer.diagnoses:
        say("nothing found that explains a fault")
    for number, one in enumerate(answer.diagnoses, start=1):
        say("")
        whose = f", instance{'s' * (len(one.instances) > 1)} {', '.join(one.instances)}" if one.instances else ""
        say(f"{number}. {one.name} ({one.certainty}){whose}")
        say(f"   cause:    {one.cause}")
        for place, line in enumerate(one.evidence):
            say(f"   {'evidence:' if place == 0 else '         '} {line}")
        say(f"   remedy:   {one.remedy}")
