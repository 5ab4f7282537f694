"""What each verb's exit code says of what it judged: the one table. The help and the documentation are made from it."""

from __future__ import annotations

from typing import Mapping

from mpsctl.checks.judgement import HEALTH, STATUS, VERIFY
from mpsctl.model.finding import CRITICAL, OK, UNKNOWN, WARNING

EXIT_CODES: Mapping[str, Mapping[str, int]] = {
    STATUS: {OK: 0, WARNING: 0, CRITICAL: 1, UNKNOWN: 3},
    HEALTH: {OK: 0, WARNING: 0, CRITICAL: 1, UNKNOWN: 3},
    VERIFY: {OK: 0, WARNING: 1, CRITICAL: 2, UNKNOWN: 3},
}
"""By verb and by the worst word of all that it judged. verify's are those of monitoring plugins."""

NO_INSTANCE = 1
"""status of a host on which no instance has a file: it has not been converged."""


def exit_code(verb: str, worst: str, instances: bool = True) -> int:
    """The exit code of a verb whose worst word is ``worst``; ``instances`` is whether any has a file on this host."""
    return EXIT_CODES[verb][worst] if instances or verb != STATUS else NO_INSTANCE


def rows() -> list[tuple[str, ...]]:
    """The table as text: a head, then one row for each verb."""
    order = (OK, WARNING, UNKNOWN, CRITICAL)
    return [("verb", *order), *((verb, *(str(codes[word]) for word in order)) for verb, codes in EXIT_CODES.items())]
