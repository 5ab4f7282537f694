"""All judgements, in their order, and what one verb makes of one look: the one place from which every verb chooses."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Iterable, Optional, Sequence

from mpsctl.checks import (
    client_checks,
    daemon_checks,
    gpu_checks,
    host_checks,
    process_checks,
    rank_checks,
    server_checks,
    unit_checks,
    verbs,
)
from mpsctl.checks.judgement import Judgement, View, make
from mpsctl.model import finding
from mpsctl.model.errors import BadValue
from mpsctl.model.finding import Check
from mpsctl.model.foreign import quoted
from mpsctl.observe import plain
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
FORMAT = 2
"""Of the JSON of status, verify and health."""
_OF_A_REFUSED_FILE = (unit_checks.configuration, unit_checks.unit_enabled, unit_checks.unit_active)
"""What can be judged of an instance whose file is refused, or that could not be looked at."""


@dataclass
class Report:
    """The checks of one verb: of the host, and of each instance by its name."""

    facts: HostFacts
    verb: str
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

    @property
    def word_of_host(self) -> str:
        """The word for the host alone."""
        return finding.worst(one.level for one in self.host)

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

    def chosen(self, only: Sequence[str], ignored: Sequence[str]) -> Report:
        """The same look with the checks named ``only``, or with all where none is, and without those ``ignored``.

        :raises BadValue: for an id that no judgement has.
        """
        known = {one.name for one in JUDGEMENTS}
        for name in (*only, *ignored):
            if name not in known:
                near = ", ".join(sorted(one for one in known if name and one.startswith(name[:3]))) or "docs/checks.md"
                raise BadValue(f"check {quoted(name)}", "the id of a check", f"see {near}")

        def choose(checks: Sequence[Check]) -> list[Check]:
            return [one for one in checks if (not only or one.name in only) and one.name not in ignored]

        instances = {name: choose(checks) for name, checks in self.instances.items()}
        return replace(self, host=choose(self.host), instances=instances)

    @property
    def exit_code(self) -> int:
        """The exit code of the verb."""
        return verbs.exit_code(self.verb, self.worst, bool(self.facts.every or self.facts.refused))

    def as_json(self) -> dict[str, Any]:
        """Format 2, which status, verify and health share."""
        return {
            "format": FORMAT,
            "simulated": self.facts.simulated,
            "worst": self.worst,
            "exit_code": self.exit_code,
            "host": {"word": self.word_of_host, "checks": _checks(self.host)},
            "instances": {name: self.instance_as_json(name) for name in self.instances},
        }

    def instance_as_json(self, name: str) -> dict[str, Any]:
        """One instance: its word, its facts by the names that they have in observe/facts.py, and what was judged."""
        return {
            "word": self.word(name),
            "facts": plain.instance(self.facts.instances[name], self.facts.gpus),
            "checks": _checks(self.instances[name]),
        }


def _checks(checks: Sequence[Check]) -> list[dict[str, Any]]:
    return [{**asdict(one), "facts": plain.of(one.facts)} for one in checks]  # their texts are bounded as they are made


def report(host: HostFacts, verb: str) -> Report:
    """What a verb judges of a look."""
    return Report(
        host,
        verb,
        make((one for one in OF_HOST if verb in one.verbs), View(host)),
        {name: _of_instance(host, name, verb) for name in host.instances},
    )


def _of_instance(host: HostFacts, name: str, verb: str) -> list[Check]:
    one = host.instances[name]
    known: Iterable[Judgement] = OF_INSTANCE
    if one.desired is None or one.unread is not None:
        known = _OF_A_REFUSED_FILE
    return make((each for each in known if verb in each.verbs), View(host, one))
