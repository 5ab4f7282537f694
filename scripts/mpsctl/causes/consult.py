"""A consultation: what somebody brings (an error, a log, a process, files) or the host itself, and what is made of it.

The host is looked at once, whatever is asked. Nothing is ever written or changed, and every wait has a bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Collection, Sequence

from mpsctl.adapters import bounded, hardware, procfs
from mpsctl.causes import apple_gpu, containers, host, log, memory, of_checks, process, symptoms, units
from mpsctl.causes import seen as seen_once
from mpsctl.causes.diagnosis import CERTAIN, POSSIBLE, Diagnosis, in_order
from mpsctl.causes.seen import Seen
from mpsctl.model.errors import BadValue, NotReady
from mpsctl.model.foreign import shown
from mpsctl.model.instance import Instance
from mpsctl.store import configuration
from mpsctl.store.world import World

TIMEOUT_S = 60.0
"""For what is looked at beside the facts: logs, units and scripts of others, the kernel's log; or for one process."""
_LINE_CHARACTERS = 500


@dataclass(frozen=True)
class Question:
    """What is brought: texts by the name of their origin, ``errors`` as they were given, process ids.

    With nothing at all the host is looked at; ``instances`` are those of interest, all without any.
    """

    instances: Sequence[str] = ()
    errors: Sequence[str] = ()
    logs: Sequence[tuple[str, str]] = ()
    pids: Sequence[int] = ()
    containers: Sequence[tuple[str, str]] = ()
    units: Sequence[tuple[str, str]] = ()

    @property
    def of_host(self) -> bool:
        return not any((self.errors, self.logs, self.pids, self.containers, self.units))


@dataclass
class Answer:
    """``understood`` says in lines what was looked at; ``diagnoses`` are the surest first."""

    understood: list[str] = field(default_factory=list)
    diagnoses: list[Diagnosis] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {"format": 2, "understood": self.understood, "diagnoses": [one.as_json() for one in self.diagnoses]}


def consult(world: World, question: Question) -> Answer:
    """Answer a question.

    :raises BadValue: for an error that is not known here, no such process or instance, or a file of no known form.
    """
    return _Consultation(world, question).answer()


class _Consultation:
    def __init__(self, world: World, question: Question) -> None:
        self._world, self._question = world, question
        self._said: list[str] = []
        for name in question.instances:
            configuration.load(world, name)
        self._errors = [(text, _understood(text)) for text in question.errors]
        for pid in question.pids:
            if not procfs.state(pid):
                remedy = "give the host's process id, not a container's"
                raise BadValue(f"no process {pid}", "a process of this host", remedy)

    def answer(self) -> Answer:
        question = self._question
        found: list[Diagnosis] = []
        if question.of_host and apple_gpu.on_a_mac():
            self._said.append("this is a Mac")
            found.append(apple_gpu.explain())
        elif question.of_host:
            found += self._of_host()
            self._said.append(_looked_at(self._seen))
        for text, understood in self._errors:
            found += self._error(text, understood)
        for name, text in question.logs:
            found += self._log(name, text)
        for pid in question.pids:
            found += self._process(pid)
        for name, text in question.containers:
            found += self._containers(name, text)
        for name, text in question.units:
            self._said.append(f"{shown(name)}: {_count(len(text.splitlines()), 'line')}")
            found += units.lint(text)
        return Answer([shown(line, _LINE_CHARACTERS) for line in self._said], in_order(found))

    @cached_property
    def _seen(self) -> Seen:
        """The one look at the host."""
        return seen_once.look(self._world, self._question.instances or None)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """The instances that the question is about: those that are named, or those of the processes, or all."""
        seen = self._seen
        of_pids = dict.fromkeys(name for pid in self._question.pids for name in process.instances_of(seen, pid))
        return tuple(self._question.instances or of_pids or seen.host.instances)

    def _of_host(self, met: Collection[int] = ()) -> list[Diagnosis]:
        """What the checks tell, and what else is seen: looked at in a process of its own, as /proc may hang."""
        seen, names = self._seen, self._names
        try:
            return bounded.call(lambda: host.look(seen, names, met), TIMEOUT_S, "the look at logs and texts")
        except NotReady as error:
            self._said.append(f"{error}; what follows stands on the checks alone")
            return of_checks.of_report(seen.report, names)

    def _error(self, text: str, understood: symptoms.Understood) -> list[Diagnosis]:
        self._said.append(str(understood))
        possible = understood.possible
        if set(possible) == {apple_gpu.NAME}:
            return [apple_gpu.explain(understood.lines[apple_gpu.NAME])]
        of_text = [*memory.from_text(text), *understood.diagnoses()]
        if apple_gpu.on_a_mac():
            return of_text  # nothing of NVIDIA's is to be seen here
        codes = [error.code for error in understood.errors]
        related = {name for code in codes for name in symptoms.RELATED.get(code, ())}
        seen = self._of_host(codes)
        on_host = [one for one in seen if one.name in possible or one.name in related]
        return [*on_host, *_left(of_text, on_host, self._names)]

    def _log(self, name: str, text: str) -> list[Diagnosis]:
        lines = text.splitlines()
        known = log.known_lines(lines)
        self._said.append(f"{shown(name)}: {_count(len(lines), 'line')}, {known} of a control daemon or its servers")
        return [*memory.from_text(text), *log.diagnose_log(lines)]

    def _process(self, pid: int) -> list[Diagnosis]:
        seen = self._seen
        try:
            found, about = bounded.call(lambda: process.look(seen, pid), TIMEOUT_S, f"the look at process {pid}")
        except NotReady as error:
            self._said.append(f"pid {pid}, in state {procfs.state(pid) or 'gone'}: {error}")
            return []
        self._said.append(about)
        return found

    def _containers(self, name: str, text: str) -> list[Diagnosis]:
        instances = _instances(self._world, self._question.instances)
        found = []
        for container in containers.read(text):
            about = f"{shown(name)}: container {shown(container.name)}"
            self._said.append(f"{about}{containers.role(container)}")
            found += containers.lint(container, instances, hardware.driver_version())
        return found


def _understood(text: str) -> symptoms.Understood:
    """:raises BadValue: if nothing is known of it."""
    understood = symptoms.read_error(text)
    if not understood:
        raise BadValue(
            f"{shown(' '.join(text.split()), 80)!r}, of which nothing is known here",
            "a CUDA error's number or name, or the text that a program printed",
            "give the whole text, or the log (--log FILE)",
        )
    return understood


def _left(of_text: Sequence[Diagnosis], on_host: Sequence[Diagnosis], names: Collection[str]) -> list[Diagnosis]:
    """What remains of the text's possible causes beside what is seen.

    What is seen for certain takes the place of what was only possible, where it explains every instance of the
    question: one that is stopped says nothing of another's clients.
    """
    certain = [one for one in on_host if one.certainty == CERTAIN and one.name not in symptoms.EXPLAIN_LITTLE]
    everywhere = any(not one.instances for one in certain)
    explained = {name for one in certain for name in one.instances}
    seen = {one.name for one in on_host}
    if memory.refutes_own_limit(on_host):
        of_text = [one for one in of_text if one.name != memory.OWN_LIMIT]
    if not certain or not (everywhere or explained >= set(names)):
        return list(of_text)
    return [one for one in of_text if one.certainty != POSSIBLE or one.name in seen]


def _looked_at(seen: Seen) -> str:
    counts = f"{_count(len(seen.instances), 'instance')}, {_count(len(seen.host.gpus.gpus), 'GPU')}"
    return f"looked at {counts}, every process on them, logs, units and the kernel's log"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _instances(world: World, names: Sequence[str]) -> list[Instance]:
    """The named instances, or all; one whose file is refused is left out where it was not named."""
    if names:
        return [configuration.load(world, name) for name in names]
    found = []
    for name in configuration.names(world):
        try:
            found.append(configuration.load(world, name))
        except BadValue:
            continue
    return found
