"""The verb man: the manual page of this program, made from the parser and the table of exit codes."""

from __future__ import annotations

import argparse
from typing import Iterator

from mpsctl import __version__
from mpsctl.cli import completion, exit_codes, output
from mpsctl.cli import options as command_line
from mpsctl.model.places import Places
from mpsctl.store.world import World

_ENVIRONMENT = {
    "MPSCTL_TRACE": "set to anything: a fault of this program is shown with the place in the code where it happened",
    "NO_COLOR": "set to anything: no colour, also on a terminal",
    "TERM": "dumb: no colour, and top shows one look as text",
    "COLUMNS": "how wide the helps are; by default as wide as the terminal",
}


def man(world: World, options: argparse.Namespace) -> int:
    """Print the page in the language of man(7)."""
    page = "\n".join(_page(world.places))
    if options.json:
        output.say_json({"man": page})
    else:
        output.say_lines(page)
    return 0


def _page(places: Places) -> Iterator[str]:
    whole = command_line.parser(None)
    yield f'.TH MPSCTL 8 "" "mps\\-fleet {_text(__version__)}" "System Administration"'
    yield from (".SH NAME", f"mpsctl \\- {_text('NVIDIA MPS on this host, with limits that are in force')}")
    yield from (".SH SYNOPSIS", ".B mpsctl", r"\fIVERB\fR [\fIoptions\fR]", ".br", ".B mpsctl \\-\\-version")
    yield from (".SH DESCRIPTION", _text(whole.description or ""))
    yield _text("Every verb answers with --json as one JSON object, for programs.")
    yield ".SH VERBS"
    for verb in command_line.VERBS:
        yield from _verb(verb)
    yield ".SH EXIT STATUS"
    yield _text("Of every verb; what a verb adds, or says more precisely, stands with it.")
    yield from _codes(exit_codes.every())
    yield ".SH ENVIRONMENT"
    for name, meaning in _ENVIRONMENT.items():
        yield from _item(rf"\fB{_text(name)}\fR", meaning)
    yield ".SH FILES"
    for path, meaning in {
        places.configuration / "INSTANCE.conf": "what is desired of an instance",
        places.runtime("INSTANCE"): "what is remembered of an instance until the next boot",
        places.state: "what is remembered over boots: compute modes from before, measured figures",
    }.items():
        yield from _item(rf"\fI{_text(str(path))}\fR", meaning)
    yield ".SH SEE ALSO"
    yield r"\fBnvidia\-cuda\-mps\-control\fR(1), \fBsystemctl\fR(1), \fBjournalctl\fR(1)"


def _verb(verb: str) -> Iterator[str]:
    yield f'.SS "{_text(verb)}"'
    about = command_line.VERBS[verb].help
    yield _text(f"{about[0].upper()}{about[1:]}.")
    for action in completion.actions_of(verb):
        if action.dest in ("help", "json"):
            continue
        text = action.help or ""
        yield from _item(_named(action), text % {"default": action.default, "prog": "mpsctl"} if text else "")
    own = [one for one in exit_codes.of(verb) if one not in exit_codes.every()]
    if own:
        yield from (".PP", "Exit status:")
        yield from _codes(own)


def _named(action: argparse.Action) -> str:
    """An option or a value, as it is written on the command line."""
    value = "|".join(map(str, action.choices)) if action.choices else str(action.metavar or action.dest.upper())
    if not action.option_strings:
        return rf"\fI{_text(value)}\fR" + (" ..." if action.nargs in ("*", argparse.REMAINDER) else "")
    names = ", ".join(rf"\fB{_text(one)}\fR" for one in action.option_strings)
    return names if action.nargs == 0 else rf"{names} \fI{_text(value)}\fR"


def _codes(codes: list[exit_codes.Code]) -> Iterator[str]:
    for one in codes:
        yield from _item(rf"\fB{_text(one.code)}\fR", one.meaning)


def _item(term: str, text: str) -> Iterator[str]:
    yield ".TP"
    yield term
    yield _text(text) if text else r"\&"


def _text(text: str) -> str:
    """A text for a line of roff: no sign of it is taken for a command, and a dash can be searched for and pasted."""
    written = text.replace("\\", r"\e").replace("-", r"\-").replace("`", r"\(ga").replace("'", r"\(aq")
    written = written.replace("…", "...").replace("^", r"\(ha").replace("~", r"\(ti").replace('"', r"\(dq")
    return rf"\&{written}" if written[:1] in (".", "'") else written
