"""What each attempt of an attacker is called and tries, and what comes of it: the source of a table in
docs/security.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterator, TypeVar

Test = TypeVar("Test", bound=Callable[..., Any])


@dataclass(frozen=True)
class Attempt:
    """``left_open`` is what the attempt still achieves, empty where that is nothing."""

    name: str
    tried: str
    result: str
    left_open: str = ""


def attempt(name: str, *, tried: str, result: str, left_open: str = "") -> Callable[[Test], Test]:
    """Marks a test as an attempt. The test proves ``result``."""

    def marked(test: Test) -> Test:
        vars(test)["attempt"] = Attempt(name, tried, result, left_open)
        return test

    return marked


def of_module(module: object) -> Iterator[tuple[str, Attempt]]:
    """The attempts of a test module, each with the name of its test, in the order of the file."""
    for name, test in vars(module).items():
        found = getattr(test, "attempt", None)
        if isinstance(found, Attempt):
            yield name, found
