"""What is said to a control daemon in one session, and which of the lines that come back answers what.

The front-end prints the answers of all commands as lines, one after the other, and marks no end: one of a memory limit
may have none, a list has as many as there are. A getter that always answers, in a form of its own, tells them apart.
It stands behind every command (``whole``), or only where the forms of the answers do not do that (``short``): the
daemon logs each line, and most looks need none of it (control daemons 535, 550, 555).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence

from mpsctl.model.pattern import Pattern

_SENTINEL = "get_default_active_thread_percentage"
_RATIO = Pattern(r"\d+\.\d+")
_ANYTHING = Pattern(r".*")


@dataclass(frozen=True)
class _Form:
    """The lines of an answer: what each is like, and how many there are (None: any number)."""

    pattern: Pattern
    least: int = 0
    most: Optional[int] = None

    @property
    def certain(self) -> bool:
        return self.least > 0


_OF_RATIO = _Form(_RATIO, 1, 1)
_OF_LIMIT = _Form(Pattern(r"\d+[MG]"), 0, 1)
_OF_LIST = _Form(Pattern(r"\d+(?: +\d+)*"))
_OF_STATE = _Form(Pattern(r"[A-Z][A-Z_ ]*|Unknown command .*"), 1, 1)
_FORMS = (
    (Pattern(r"get_(?:default_)?active_thread_percentage(?: \d+)?"), _OF_RATIO),
    (Pattern(r"get_(?:default_)?device_pinned_mem_limit(?: \d+)* \d+"), _OF_LIMIT),
    (Pattern(r"get_(?:server_list|client_list \d+)"), _OF_LIST),
    (Pattern(r"get_server_status \d+"), _OF_STATE),
)
"""No line is of two of these forms."""


@dataclass(frozen=True)
class Line:
    """A command, the form of its answer, and which of those that were asked it is: None where it is there to separate
    others."""

    text: str
    form: _Form
    number: Optional[int] = None

    @property
    def wanted(self) -> bool:
        return self.number is not None


_SEPARATOR = Line(_SENTINEL, _OF_RATIO)


def whole(commands: Sequence[str]) -> list[Line]:
    """Each command followed by the getter: whatever it prints, the answer is what stands before that one's."""
    asked = [Line(command, _Form(_ANYTHING), number) for number, command in enumerate(commands)]
    return [line for one in asked for line in (one, _SEPARATOR)]


def short(commands: Sequence[str]) -> Optional[list[Line]]:
    """With the getter only where two answers could be taken for one another, and where else nothing at the end would
    prove that the session was served to its end. None for a command whose answer has no form: these are all getters,
    and so their order is free."""
    asked = []
    for number, command in enumerate(commands):
        form = next((form for pattern, form in _FORMS if pattern.fullmatch(command)), None)
        if form is None:
            return None
        asked.append(Line(command, form, number))
    certain = [line for line in asked if line.form.certain]
    orders = [asked]
    if certain:
        orders.append([*(line for line in asked if line is not certain[-1]), certain[-1]])
    return min(map(_separated, orders), key=len)


def _separated(asked: Sequence[Line]) -> list[Line]:
    lines: list[Line] = []
    since_certain: list[_Form] = []
    for line in asked:
        if line.form in since_certain:
            lines.append(_SEPARATOR)
            since_certain = []
        lines.append(line)
        since_certain = [] if line.form.certain else [*since_certain, line.form]
    if not lines or not lines[-1].form.certain:
        lines.append(_SEPARATOR)
    return lines


def answers(script: Sequence[Line], printed: Sequence[str]) -> Optional[list[list[str]]]:
    """The lines of each command in the order in which they were asked, or None where one is missing or left over: not
    served in full."""
    rest = [line.strip() for line in printed if line.strip()]
    found: dict[int, list[str]] = {}
    for line in script:
        own = _until_ratio(line.text, rest) if line.form.pattern is _ANYTHING else _of_form(line.form, rest)
        if len(own) < line.form.least:
            return None
        if line.number is not None:
            found[line.number] = own
    return None if rest else [found[number] for number in sorted(found)]


def _of_form(form: _Form, rest: list[str]) -> list[str]:
    own: list[str] = []
    while rest and form.pattern.fullmatch(rest[0]) and (form.most is None or len(own) < form.most):
        own.append(rest.pop(0))
    return own


def _until_ratio(command: str, rest: list[str]) -> list[str]:
    """What stands before the separator's answer. The percentage's own getters and setters print such a number
    themselves, as their first line (an error takes its place)."""
    own: list[str] = []
    if "active_thread_percentage" in command and rest and _RATIO.fullmatch(rest[0]):
        own.append(rest.pop(0))
    while rest and not _RATIO.fullmatch(rest[0]):
        own.append(rest.pop(0))
    return own
