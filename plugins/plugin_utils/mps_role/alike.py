"""Diffs of many hosts, each shown once: what the callback mps_fleet prints of a task."""

from __future__ import annotations

import re
from typing import Iterable, Sequence

from . import hosts

_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


class Diffs:
    """The diffs of one task on its hosts. Those that differ in the UUIDs of GPUs alone are alike."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, str]] = {}

    def add(self, host: str, texts: Iterable[str]) -> None:
        """Note the texts of a host, one for each file or state."""
        for text in filter(None, texts):
            self._found.setdefault(_UUID.sub(r"\1-…", text), {})[host] = text

    def blocks(self, among: Sequence[str]) -> list[tuple[str, str]]:
        """Hosts as people read them, and their text; those of the same hosts that follow each other are one."""
        found: list[tuple[str, str]] = []
        for key, texts in self._found.items():
            whose = hosts.span(texts, among)
            text = next(iter(texts.values())) if len(set(texts.values())) == 1 else key
            if found and found[-1][0] == whose:
                found[-1] = (whose, found[-1][1] + text)
            else:
                found.append((whose, text))
        return found
