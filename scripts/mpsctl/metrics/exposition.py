"""Samples, and their text in Prometheus' exposition format 0.0.4."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Iterator, Optional, Union

from mpsctl.metrics.families import BY_NAME, FAMILIES
from mpsctl.model import foreign

Number = Union[int, float]
_MOST_OF_LABEL = 200


@dataclass(frozen=True)
class Sample:
    """One number; ``labels`` are in the order of its family's."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: Number


@dataclass
class Samples:
    """What a look counted. Each series stands once: of two the last."""

    _found: dict[tuple[str, tuple[str, ...]], Sample] = field(default_factory=dict)

    def add(self, name: str, value: Optional[Number], *labels: object) -> None:
        """Add a sample of the family ``name``; None is what cannot be told, and adds nothing.

        :raises KeyError: for a name that the table does not have.
        :raises ValueError: for another number of labels than the family's.
        """
        family = BY_NAME[name]
        if len(labels) != len(family.labels):
            raise ValueError(f"{name}: found {len(labels)} labels, expected {', '.join(family.labels) or 'none'}")
        if value is None:
            return
        values = tuple(foreign.shown(str(one), _MOST_OF_LABEL) for one in labels)
        self._found[name, values] = Sample(name, tuple(zip(family.labels, values)), value)

    def choose(self, name: str, present: Optional[str], every: tuple[str, ...], *labels: object) -> None:
        """One sample for each word of a closed list, 1 for the one that is present; none where that is None."""
        for word in every if present is not None else ():
            self.add(name, int(word == present), *labels, word)

    def __iter__(self) -> Iterator[Sample]:
        """By the table's order of families."""
        by_name: dict[str, list[Sample]] = {}
        for sample in self._found.values():
            by_name.setdefault(sample.name, []).append(sample)
        for family in FAMILIES:
            yield from by_name.get(family.name, ())

    def text(self) -> str:
        """All of it, each family with its help and type."""
        lines: list[str] = []
        last = ""
        for sample in self:
            if sample.name != last:
                family = BY_NAME[sample.name]
                lines += [f"# HELP {family.name} {_as_text(family.help)}", f"# TYPE {family.name} {family.kind}"]
                last = sample.name
            lines.append(f"{sample.name}{_labels(sample)} {_number(sample.value)}")
        return "\n".join(lines) + "\n"


def _labels(sample: Sample) -> str:
    pairs = ",".join(f'{name}="{_as_text(value, quoted=True)}"' for name, value in sample.labels)
    return f"{{{pairs}}}" if pairs else ""


def _as_text(text: str, quoted: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quoted else text


def _number(value: Number) -> str:
    return str(int(value)) if isinstance(value, int) else repr(round(value, 6))
