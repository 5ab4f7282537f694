"""The one place through which verbs print: no line of theirs can be another one's, whatever they quote."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from typing import Any, Iterator, Optional, Sequence, TextIO

from mpsctl.model import foreign

_OTHER_SCREEN, _FORMER_SCREEN = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[J", "\x1b[?25h\x1b[?1049l"


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


@contextmanager
def whole_screen(terminal: TextIO) -> Iterator[None]:
    """The terminal's other screen for the length of the block, without a cursor; then all is as it was."""
    try:
        print(_OTHER_SCREEN, end="", file=terminal, flush=True)
        yield
    finally:
        with suppress(OSError, ValueError):  # the terminal is gone
            print(_FORMER_SCREEN, end="", file=terminal, flush=True)


def show_screen(lines: Sequence[Sequence[str]], terminal: TextIO, columns: int) -> None:
    """Show lines, made of parts as for ``say`` and cut to the screen's width, in the place of what stood there."""
    shown = "\r\n".join(f"\x1b[K{_cut(parts, terminal, columns)}" for parts in lines)
    print(f"\x1b[H{shown}\x1b[J" if lines else "\x1b[H\x1b[J", end="", file=terminal, flush=True)


def say_cut(parts: Sequence[str], columns: int) -> None:
    """Print one line as ``say`` does, cut to so many columns."""
    print(_cut(parts, sys.stdout, columns))


def _cut(parts: Sequence[str], terminal: TextIO, columns: int) -> str:
    """Parts of a line in at most so many columns, as the terminal's encoding has them."""
    encoding = terminal.encoding or "ascii"
    made, room = "", columns
    for part in parts:
        text = foreign.line(part).encode(encoding, "backslashreplace").decode(encoding)
        end = 0
        while end < len(text) and room >= _width(text[end]):
            room -= _width(text[end])
            end += 1
        made += _coloured(text[:end], part, terminal)
        if end < len(text):
            break
    return made


def _width(sign: str) -> int:
    """How many columns a sign takes on a terminal."""
    if sign.isascii():
        return 1
    from unicodedata import combining, east_asian_width  # few lines have such signs

    return 0 if combining(sign) else 2 if east_asian_width(sign) in "WF" else 1


def say_json(data: Any) -> None:
    """Print an answer as JSON: for people on a terminal with one value a line, else on one line."""
    import json  # not every answer is

    print(json.dumps(data, indent=2 if sys.stdout.isatty() else None, sort_keys=False))


def _part(text: str, stream: TextIO) -> str:
    return _coloured(foreign.line(text), text, stream)


def _coloured(printable: str, part: str, stream: TextIO) -> str:
    if isinstance(part, _Coloured) and _shows_colours(stream):
        return f"\033[{part.code}m{printable}\033[0m"
    return printable


def _shows_colours(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
