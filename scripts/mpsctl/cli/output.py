"""The one place through which verbs print: no line of theirs can be another one's, whatever they quote."""

from __future__ import annotations

import os
import sys
from typing import Any, Optional, TextIO

from mpsctl.model import foreign


class _Coloured(str):
    """A part of a line with its colour. Text with escape sequences of our own could not be told from foreign text."""

    code: str

    def __new__(cls, text: str, code: str) -> _Coloured:
        made = super().__new__(cls, text)
        made.code = code
        return made


def colour(text: str, code: str) -> str:
    """A part for ``say`` that is coloured on a terminal; inside an f-string it is plain text.

    ``code`` is the number of an SGR colour, ``31`` for red.
    """
    return _Coloured(text, code)


def say(*parts: str, stream: Optional[TextIO] = None) -> None:
    """Print one line, made of parts, to standard output or another stream; what does not print is escaped.

    Only parts made by ``colour`` reach a terminal with escape sequences, so foreign text never does.
    """
    to = sys.stdout if stream is None else stream
    print("".join(_part(one, to) for one in parts), file=to, flush=to is sys.stderr)


def say_lines(text: str, stream: Optional[TextIO] = None) -> None:
    """Print a text of several lines. Whoever made the text escaped the foreign parts of it with ``foreign.shown``."""
    for line in text.split("\n"):
        say(line, stream=stream)


def show_in_place(text: str, terminal: TextIO) -> None:
    """Show a line on a terminal in the place of the one before."""
    print(f"\r\x1b[K{foreign.line(text)}", end="", file=terminal, flush=True)


def say_json(data: Any) -> None:
    """Print an answer as JSON: for people on a terminal with one value a line, else on one line."""
    import json  # not every answer is

    print(json.dumps(data, indent=2 if sys.stdout.isatty() else None, sort_keys=False))


def _part(text: str, stream: TextIO) -> str:
    printable = foreign.line(text)
    if isinstance(text, _Coloured) and _shows_colours(stream):
        return f"\033[{text.code}m{printable}\033[0m"
    return printable


def _shows_colours(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
