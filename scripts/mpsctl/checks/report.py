"""All judgements, in their order, and what one verb makes of one look: the one place from which every verb chooses."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Iterable, Optional

from mpsctl.checks import (
    client_checks,
    daemon_checks,
    gpu_checks,
    host_checks,
    process_checks,
    rank_checks,
    server_checks,
    unit_checks,
)
from mpsctl.checks.judgement import Judgement, View, make
from mpsctl.model import finding
from mpsctl.model.finding import Check
from mpsctl.observe.host import HostFacts

OF_HOST: tuple[Judgement, ...] = host_checks.JUDGEMENTS
OF_INSTANCE: tuple[Judgement, ...] = (
    *unit_checks.JUDGEMENTS,
    *daemon_checks.JUDGEMENTS,
    *gpu_checks.JUDGEMENTS,
    *server_checks.JUDGEMENTS,
    *process_checks.JUDGEMENTS,
    *client_checks.JUDGEMENTS,
    *rank_checks.JUDGEMENTS,
)
JUDGEMENTS = OF_HOST + OF_INSTANCE
_OF_A_REFUSED_FILE = (unit_checks.configuration, unit_checks.unit_enabled, unit_checks.unit_active)
"""What can be judged of an instance whose file is refused, or that could not be looked at."""


@dataclass
class Report:
    """The checks of one verb: of the host, and of each instance by its name."""

    facts: HostFacts
    host: list[Check] = field(default_factory=list)
    instances: dict[str, list[Check]] = field(default_factory=dict)

    @property
    def every(self) -> list[tuple[Optional[str], Check]]:
        """Each check with the instance that it speaks of, None for the host."""
        found: list[tuple[Optional[str], Check]] = [(None, one) for one in self.host]
        return found + [(name, one) for name, checks in self.instances.items() for one in checks]

    @property
    def worst(self) -> str:
        """The word for the host and its instances together."""
        return finding.worst(one.level for _, one in self.every)

    def word(self, name: str) -> str:
        """The word for one instance."""
        return finding.worst(one.level for one in self.instances[name])

    def amiss(self, name: str) -> list[Check]:
        """The checks of an instance that are critical or warn, the critical ones first."""
        found = [one for one in self.instances[name] if one.amiss]
        return sorted(found, key=lambda one: one.level != finding.CRITICAL)

    def mends(self, name: str) -> set[str]:
        """What brings an instance into the desired state, of what its checks name."""
        return {one.mends for one in self.instances[name]} - {finding.NOTHING}

    def check(self, name: Optional[str], id_: str) -> Check:
        """One check by its id, of an instance or (None) of the host.

        :raises KeyError: if the verb does not make it.
        """
        for one in self.host if name is None else self.instances[name]:
            if one.name == id_:
                return one
        raise KeyError(id_)

    def as_json(self) -> dict[str, Any]:
        """Format 2, which status, verify and health share."""
        return {
            "format": 2,
            "simulated": self.facts.simulated,
            "worst": self.worst,
            "host": {"checks": [asdict(one) for one in self.host]},
            "instances": {
                name: {
                    "word": self.word(name),
                    "facts": plain(asdict(self.facts.instances[name])) if name in self.facts.instances else None,
                    "checks": [asdict(one) for one in checks],
                }
                for name, checks in self.instances.items()
            },
        }


def plain(value: Any) -> Any:
    """Facts as JSON has them: paths and errors as text."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(one) for one in value]
    if isinstance(value, (Path, Exception)):
        return str(value)
    return value


def report(host: HostFacts, verb: str) -> Report:
    """What a verb judges of a look."""
    return Report(
        host,
        make((one for one in OF_HOST if verb in one.verbs), View(host)),
        {name: _of_instance(host, name, verb) for name in host.instances},
    )


def _of_instance(host: HostFacts, name: str, verb: str) -> list[Check]:
    one = host.instances[name]
    known: Iterable[Judgement] = OF_INSTANCE
    if one.desired is None or one.unread is not None:
        known = _OF_A_REFUSED_FILE
    return make((each for each in known if verb in each.verbs), View(host, one))
