"""A consultation: what somebody brings (an error, a log, a process, files) or the host itself, and what is made of it.

Nothing is ever written or changed, and every wait has a bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Sequence

from mpsctl.adapters import bounded, hardware, procfs
from mpsctl.causes import apple_gpu, containers, host, log, memory, of_checks, process, symptoms, units
from mpsctl.causes.diagnosis import CERTAIN, POSSIBLE, Diagnosis, in_order
from mpsctl.model import foreign
from mpsctl.model.errors import BadValue, NotReady
from mpsctl.model.finding import Check
from mpsctl.model.instance import Instance
from mpsctl.store import configuration
from mpsctl.store.world import World

_MOST_OF_LINE = 500
TIMEOUT_S = 60.0
"""Above the bounds inside, for NVML and each daemon: it is met only where /proc, a file system or systemd hangs."""


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
        return {"understood": self.understood, "diagnoses": [one.as_json() for one in self.diagnoses]}


def consult(world: World, question: Question, checks: Sequence[Check] = ()) -> Answer:
    """Answer a question. ``checks`` are those of the host that were made already; they count when it is looked at.

    :raises BadValue: for an error that is not known here, no such process or instance, or a file of no known form.
    """
    answer = Answer()
    found: list[Diagnosis] = []
    if question.of_host and apple_gpu.on_a_mac():
        answer.understood.append("this is a Mac")
        found.append(apple_gpu.explain())
    elif question.of_host:
        found += _host(world, question, checks, answer)
    for text in question.errors:
        found += _error(world, question, text, checks, answer)
    for name, text in question.logs:
        found += _log(name, text, answer)
    for pid in question.pids:
        found += _process(world, question, pid, answer)
    for name, text in question.containers:
        for container in containers.read(text):
            answer.understood.append(f"{name}: container {container.name}")
            found += containers.lint(container, _instances(world, question.instances), hardware.driver_version())
    for name, text in question.units:
        answer.understood.append(f"{name}: {_count(len(text.splitlines()), 'line')}")
        found += units.lint(text)
    answer.understood = [foreign.shown(line, _MOST_OF_LINE) for line in answer.understood]
    answer.diagnoses = in_order(found)
    return answer


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _host(
    world: World, question: Question, checks: Sequence[Check], answer: Answer, out_of_memory: bool = False
) -> list[Diagnosis]:
    """What the checks tell, and what else is seen: looked at in a process of its own, as /proc may hang."""

    def look() -> tuple[str, list[Diagnosis]]:
        known = host.known(world, question.instances)
        seen = f"{_count(len(known.instances), 'instance')}, {_count(len(known.gpus), 'GPU')}"
        return seen, host.look(known, out_of_memory)

    for name in question.instances:
        configuration.load(world, name)
    found = of_checks.diagnose_checks(checks)
    try:
        seen, more = bounded.call(look, TIMEOUT_S, "the look at the host")
    except NotReady as error:
        answer.understood.append(f"{error}; what follows stands on the checks alone")
        return found
    if question.of_host:
        answer.understood.append(f"looked at {seen}, every process on them, logs, units and the kernel's log")
    return found + more


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


def _error(world: World, question: Question, text: str, checks: Sequence[Check], answer: Answer) -> list[Diagnosis]:
    understood = symptoms.read_error(text)
    if not understood:
        short = " ".join(text.split())[:80]
        raise BadValue(
            f"{short!r}, of which nothing is known here",
            "a CUDA error's number or name, or the text that a program printed",
            "give the whole text, or the log (--log FILE)",
        )
    answer.understood.append(str(understood))
    possible = understood.possible
    if set(possible) == {apple_gpu.NAME}:
        return [apple_gpu.explain(understood.lines[apple_gpu.NAME])]
    of_text = [*memory.from_text(text), *understood.diagnoses()]
    if apple_gpu.on_a_mac():
        return of_text  # nothing of NVIDIA's is to be seen here
    codes = [error.code for error in understood.errors]
    related = {name for code in codes for name in symptoms.RELATED.get(code, ())}
    seen = _host(world, question, checks, answer, symptoms.OUT_OF_MEMORY in codes)
    on_host = [one for one in seen if one.name in possible or one.name in related]
    if any(one.certainty == CERTAIN for one in on_host):
        # What is seen for certain leaves no room for what was only possible.
        names = {one.name for one in on_host}
        of_text = [one for one in of_text if one.certainty != POSSIBLE or one.name in names]
    return [*on_host, *of_text]


def _log(name: str, text: str, answer: Answer) -> list[Diagnosis]:
    lines = text.splitlines()
    answer.understood.append(
        f"{name}: {_count(len(lines), 'line')}, {log.known_lines(lines)} of a control daemon or its servers"
    )
    return [*memory.from_text(text), *log.diagnose_log(lines)]


def _process(world: World, question: Question, pid: int, answer: Answer) -> list[Diagnosis]:
    def look() -> tuple[str, list[Diagnosis]]:
        known = host.known(world, question.instances)
        found, about = process.look(known, pid)
        of_memory = memory.on_host(known.world, known.statuses, known.gpus, asked=False)
        return about, found + [one for one in of_memory if any(f"client {pid} " in line for line in one.evidence)]

    state = procfs.state(pid)
    if not state:
        raise BadValue(f"no process {pid}", "a process of this host", "give the host's process id, not a container's")
    for name in question.instances:
        configuration.load(world, name)
    try:
        about, found = bounded.call(look, TIMEOUT_S, f"the look at process {pid}")
    except NotReady as error:
        answer.understood.append(f"pid {pid}, in state {state}: {error}")
        return []
    answer.understood.append(about)
    return found
