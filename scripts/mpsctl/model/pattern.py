"""Regular expressions that are compiled when they are first used.

To compile one takes longer than most of what a verb does, and a verb uses few of those that it imports.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any, Iterator, Optional, Union


class Pattern:
    """What ``re.compile`` gives, as far as this program asks for it."""

    def __init__(self, text: str, flags: Union[int, re.RegexFlag] = 0) -> None:
        self.pattern = text
        self._flags = flags

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern, self._flags)

    def search(self, text: str) -> Optional[re.Match[str]]:
        return self._compiled.search(text)

    def match(self, text: str) -> Optional[re.Match[str]]:
        return self._compiled.match(text)

    def fullmatch(self, text: str) -> Optional[re.Match[str]]:
        return self._compiled.fullmatch(text)

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        return self._compiled.finditer(text)

    def findall(self, text: str) -> list[Any]:
        return self._compiled.findall(text)

    def sub(self, by: str, text: str) -> str:
        return self._compiled.sub(by, text)
