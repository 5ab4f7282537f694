"""The verb doctor."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Callable, Sequence

from mpsctl.proofs import verify
from mpsctl.proofs.doctor import consult
from mpsctl.state.world import World
from mpsctl.values.check import Check
from mpsctl.values.errors import BadValue


def doctor(world: World, options: argparse.Namespace) -> int:
    """Answer, and return 1 where there are diagnoses.

    :raises BadValue: for an error or a form that is not known, and for what is not there.
    """
    question = consult.Question(
        instances=options.instances,
        errors=options.error,
        logs=_texts(options.log),
        pids=[_pid(text) for text in options.pid],
        containers=_texts(options.container),
        units=_texts(options.unit),
    )
    answer = consult.consult(world, question, checks(world, question))
    if options.json:
        print(json.dumps(answer.as_json(), indent=2 if sys.stdout.isatty() else None))
    else:
        _show(answer, print)
    return 1 if answer.diagnoses else 0


def checks(world: World, question: consult.Question) -> list[Check]:
    """Verify's checks, where the question is about the host: bounded in time, and nothing is raised."""
    from mpsctl.proofs.doctor import metal

    if metal.on_a_mac() or not (question.of_host or question.errors):
        return []
    return [one for _, one in verify.verify(world, question.instances).every]


def _pid(text: str) -> int:
    if text.isascii() and text.isdigit() and 0 < int(text) < 1 << 22:
        return int(text)
    raise BadValue(f"--pid {text!r}", "a process id", "write for example --pid 4711")


def _texts(names: Sequence[str]) -> list[tuple[str, str]]:
    return [(name if name != "-" else "standard input", _text(name)) for name in names]


def _text(name: str) -> str:
    if name == "-":
        return sys.stdin.read()
    try:
        return Path(name).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise BadValue(f"no file to read ({error})", "a file", "name one, or - for standard input") from None


def _show(answer: consult.Answer, say: Callable[[str], None]) -> None:
    for line in answer.understood:
        say(line)
    if not answer.diagnoses:
        say("nothing found that explains a fault")
    for number, one in enumerate(answer.diagnoses, start=1):
        say(f"\n{number}. {one.name} ({one.certainty})")
        say(f"   cause:    {one.cause}")
        for place, line in enumerate(one.evidence):
            say(f"   {'evidence:' if place == 0 else '         '} {line}")
        say(f"   remedy:   {one.remedy}")
