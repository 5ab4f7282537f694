"""What a run found and did, as it tells it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Optional

FORMAT = 2


@dataclass(frozen=True)
class Difference:
    """A file or a state before and after; None stands for one that is not there."""

    what: str
    before: Optional[str]
    after: Optional[str]

    def as_json(self) -> dict[str, str]:
        return {
            "before_header": self.what if self.before is not None else f"{self.what} (absent)",
            "after_header": self.what if self.after is not None else f"{self.what} (absent)",
            "before": self.before or "",
            "after": self.after or "",
        }


def state(what: str, before: str, after: str) -> Difference:
    """The difference of a state that is told in a few words."""
    return Difference(what, f"{before}\n", f"{after}\n")


@dataclass
class Answer:
    """What was found and, without ``check``, done. ``actions`` are the lines of ``steps``, one for each, in order."""

    check: bool
    changed: bool = False
    refused: Optional[str] = None
    does_not_fit: bool = False
    """whether it is refused for this host's GPUs alone, which cannot hold what others may"""
    missing: Optional[dict[str, str]] = None
    error: Optional[str] = None
    diff: list[dict[str, str]] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    progress: list[str] = field(default_factory=list)
    """what steps that take their time said on the way"""
    pending: list[dict[str, Any]] = field(default_factory=list)
    instances: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    host: dict[str, Any] = field(default_factory=dict)
    put_back: Optional[bool] = None
    """after an atomic change that failed: whether the host is proven to have what it had"""
    put_back_why: Optional[str] = None

    def as_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    def warn(self, line: str) -> None:
        """Add a warning, once."""
        if line not in self.warnings:
            self.warnings.append(line)
