"""Given an error and a host with instances, each cause names its instance, and none hides another's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Iterator

import pytest

import mpsctl
from consulting import SERVER, ask, find, join, names, outsider, run, variables
from fakes import FakeDaemon, Host
from mpsctl.adapters import procfs
from mpsctl.causes import apple_gpu, of_checks
from mpsctl.causes.catalogue import CAUSES
from mpsctl.causes.diagnosis import CERTAIN, LIKELY, MOST_EVIDENCE, POSSIBLE, Diagnosis, diagnose, in_order, of_instance
from mpsctl.checks import report
from mpsctl.model.errors import BadValue
from mpsctl.model.finding import CRITICAL, OK, WARNING, Check, Reason
from mpsctl.store import drains
from mpsctl.store.admission import WAITING

pytestmark = pytest.mark.usefixtures("shown_processes")


# -- several instances


@pytest.fixture
def two(host: Host, running: FakeDaemon) -> Host:
    """Instances 0 and 1 run; then 1 is stopped."""
    run(host, "1", server=9002)
    host.stop("1")
    host.kill(9002)
    for listed in host.nvml.outside_mib.values():
        listed.pop(9002, None)
    return host


def of(host: Host, **question: object) -> dict[str, tuple[str, ...]]:
    """The instances that each cause is of."""
    return {one.name: one.instances for one in ask(host, **question).diagnoses}


def test_a_stopped_instance_does_not_hide_what_another_s_client_may_have(two: Host) -> None:
    found = ask(two, errors=["805"]).diagnoses
    assert (found[0].name, found[0].certainty, found[0].instances) == ("unit-not-active", "certain", ("1",))
    assert found[0].evidence[0].startswith("instance 1: ")
    assert {"pipe-directory-closed", "container-ipc"} <= {one.name for one in found if one.certainty == "possible"}


def test_where_the_stopped_instance_is_the_one_asked_about_nothing_else_is_possible(two: Host) -> None:
    assert of(two, errors=["805"], instances=["1"]) == {"unit-not-active": ("1",)}


def test_of_the_instance_that_is_named_alone(two: Host, running: FakeDaemon) -> None:
    found = of(two, errors=["805"], instances=["0"])
    assert "unit-not-active" not in found
    assert "pipe-directory-closed" in found


def test_of_the_client_s_instance_where_a_process_is_given_as_well(two: Host, running: FakeDaemon) -> None:
    pid = join(two, running)
    found = of(two, errors=["805"], pids=[pid])
    assert "unit-not-active" not in found
    mine = two.process("python3", "python3 serve.py", variables(two, "1", gpu=1), 1000)
    assert of(two, errors=["805"], pids=[mine])["unit-not-active"] == ("1",)


def test_the_server_of_an_instance_is_of_it(two: Host) -> None:
    assert "unit-not-active" not in of(two, errors=["805"], pids=[SERVER])


def test_a_drained_instance_does_not_hide_another_that_is_stopped(two: Host) -> None:
    drains.mark(two.world, "0")
    found = of(two, errors=["46"])
    assert (found["drained"], found["unit-not-active"]) == (("0",), ("1",))
    assert not any(one.certainty == "possible" for one in ask(two, errors=["46"]).diagnoses), "each has its cause"


@pytest.mark.parametrize("error", ["805", "46", "100", "999"])
def test_a_drain_is_told_for_each_error_that_it_causes(host: Host, running: FakeDaemon, error: str) -> None:
    drains.mark(host.world, "0")
    assert names(host, errors=[error])[0] == "drained"


def test_instances_with_one_cause_are_told_together_each_with_its_evidence(two: Host) -> None:
    two.stop("0")
    found = find(two, "unit-not-active")
    assert found.instances == ("0", "1")
    assert {line.split(":")[0] for line in found.evidence} == {"instance 0", "instance 1"}


def test_an_instance_that_is_not_there_is_refused(host: Host, running: FakeDaemon) -> None:
    with pytest.raises(BadValue):
        ask(host, instances=["7"])


def test_a_file_that_is_refused_hides_no_other_instance(host: Host, running: FakeDaemon) -> None:
    host.desired("1", DeviceMemoryLimit="20%%")
    pid = outsider(host, {})
    assert "configuration" in names(host)
    assert names(host, pids=[pid])[0] == "pipe-directory-missing"


# -- how diagnoses are put together


def test_of_one_instance_a_cause_comes_once_as_sure_as_its_surest_evidence() -> None:
    found = in_order(of_instance("0", [diagnose("card-full", POSSIBLE, "a"), diagnose("card-full", CERTAIN, "b")]))
    assert [(one.certainty, one.evidence) for one in found] == [("certain", ("instance 0: a", "instance 0: b"))]


def test_a_sure_cause_of_one_instance_makes_another_s_no_surer() -> None:
    mine, others = diagnose("card-full", CERTAIN, "a"), diagnose("card-full", LIKELY, "b")
    found = in_order([*of_instance("0", [mine]), *of_instance("1", [others])])
    assert [(one.certainty, one.instances) for one in found] == [("certain", ("0",)), ("likely", ("1",))]


def test_what_is_known_of_no_instance_belongs_to_the_first_of_that_name() -> None:
    found = in_order(
        [diagnose("card-full", POSSIBLE, "text"), *of_instance("1", [diagnose("card-full", CERTAIN, "a")])]
    )
    assert [(one.certainty, one.instances) for one in found] == [("certain", ("1",))]
    assert set(found[0].evidence) == {"instance 1: a", "text"}


def test_of_many_instances_each_keeps_some_evidence() -> None:
    lines = [f"line {number}" for number in range(30)]
    found = in_order(one for name in "01234567" for one in of_instance(name, [diagnose("card-full", CERTAIN, *lines)]))
    assert found[0].instances == tuple("01234567")
    assert len(found[0].evidence) <= MOST_EVIDENCE
    assert {line.split(":")[0] for line in found[0].evidence} == {f"instance {name}" for name in "01234567"}


def test_the_remedy_has_the_instance_s_name() -> None:
    (one,) = in_order(of_instance("a", [diagnose("front-door-closed", CERTAIN, "x")]))
    assert one.remedy == "`systemctl reload mps-control@a`, then `mpsctl status`"
    both = in_order(x for name in "ab" for x in of_instance(name, [diagnose("front-door-closed", CERTAIN, "x")]))
    assert "mps-control@INSTANCE" in both[0].remedy


def test_what_is_wrong_with_a_daemon_comes_before_that_it_is_there() -> None:
    found = in_order([diagnose("foreign-daemon", CERTAIN, "x"), diagnose("orphan-daemon", CERTAIN, "x")])
    assert [one.name for one in found] == ["orphan-daemon", "foreign-daemon"]


# -- checks


@pytest.mark.parametrize(("level", "found"), [(OK, []), (WARNING, ["possible"]), (CRITICAL, ["certain"])])
def test_a_check_without_a_cause_is_its_own(level: str, found: list[str]) -> None:
    diagnoses = of_checks.of_checks([Check("some-check", level, "this", "that", "do so", ("line",))])
    assert [one.certainty for one in diagnoses] == found
    for one in diagnoses:
        assert (one.name, one.evidence, one.remedy) == ("some-check", ("this", "line"), "do so")


@pytest.mark.parametrize(
    ("cause", "level", "sure"),
    [
        ("drained", WARNING, "certain"),
        ("memory-held-by-others", WARNING, "certain"),
        ("too-many-clients", WARNING, "likely"),
        ("too-many-clients", CRITICAL, "certain"),
        ("daemon-hangs", CRITICAL, "likely"),
        ("no-driver", CRITICAL, "likely"),
        ("persistence-off", WARNING, "possible"),
    ],
)
def test_a_cause_is_certain_only_where_its_check_looked_at_it(cause: str, level: str, sure: str) -> None:
    check = Check("some-check", level, "this", "that", "do so", reasons=(Reason(cause, "line"),))
    (one,) = of_checks.of_checks([check])
    assert (one.name, one.certainty) == (cause, sure)


def test_every_cause_of_a_check_is_in_the_catalogue() -> None:
    assert set(of_checks.CAUSES_OF_CHECKS.values()) | set(of_checks.SEEN) <= set(CAUSES)
    assert {*of_checks.CAUSES_OF_CHECKS, *of_checks.ADVICE} <= {one.name for one in report.JUDGEMENTS}


def test_every_cause_that_the_program_names_is_in_the_catalogue() -> None:
    """A reason's cause, a diagnosis' name, and the second word of an obstacle's."""
    sources = [path.read_text() for path in Path(mpsctl.__file__).parent.rglob("*.py")]
    given = {cause for text in sources for cause in re.findall(r'(?:Reason|diagnose)\(\s*"([^"]+)"', text)}
    given |= {cause for text in sources for cause in re.findall(r'process_facts\.[A-Z_]+: \(\s*"([^"]+)"', text)}
    assert {"pipe-directory-missing", "drained", "not-in-group"} <= given
    assert given <= set(CAUSES)


def test_no_cause_of_the_catalogue_is_named_by_nobody() -> None:
    program = Path(mpsctl.__file__).parent
    sources = [path.read_text() for path in program.rglob("*.py") if path.parent.name != "catalogue"]
    assert [name for name in CAUSES if not any(f'"{name}"' in text for text in sources)] == []


@pytest.mark.parametrize("name", CAUSES)
def test_a_cause_has_a_name_of_words_and_short_sentences(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", name)
    for text in CAUSES[name]:
        for sentence in re.split(r"(?<=[.:;])\s", text):
            assert len(sentence.split()) <= 30, sentence


# -- the other MPS, and errors that are not known


def test_an_error_of_which_nothing_is_known_is_refused_in_one_line(host: Host, running: FakeDaemon) -> None:
    with pytest.raises(BadValue) as refused:
        ask(host, errors=["frob\nnicate"])
    assert "'frob nicate'" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["mps", "MPS backend out of memory (MPS allocated: 8.8 GB)", 'torch.device("mps")'])
def test_the_other_mps(host: Host, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(apple_gpu, "_ask", lambda python: {"torch": "2.11.0", "built": False, "available": False})
    (found,) = ask(host, errors=[text]).diagnoses
    assert found.name == "metal-performance-shaders"
    assert found.cause.count(". ") == 1  # two sentences
    assert any("torch 2.11.0, torch.backends.mps built no and available no" in line for line in found.evidence)


def test_on_a_mac_the_other_mps_is_explained(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apple_gpu, "on_a_mac", lambda: True)
    monkeypatch.setattr(apple_gpu, "_ask", lambda python: {"torch": "2.11.0", "built": True, "available": True})
    (found,) = ask(host).diagnoses
    assert any("built yes and available yes" in line for line in found.evidence)


def test_on_a_mac_an_error_of_cuda_is_explained_by_itself(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_there() -> Iterator[int]:
        raise FileNotFoundError("/proc")

    monkeypatch.setattr(apple_gpu, "on_a_mac", lambda: True)
    monkeypatch.setattr(procfs, "pids", none_there)
    assert names(host, errors=["810"]) == ["terminated-by-daemon"]


@pytest.mark.parametrize("program", ["exit 1", "echo no json", "echo 3"])
def test_no_torch_is_told(tmp_path: Path, program: str) -> None:
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    assert "no torch" in apple_gpu.present(str(python))
    assert "no torch" in apple_gpu.present(str(tmp_path / "none"))


def test_a_diagnosis_is_plain_data(host: Host, running: FakeDaemon) -> None:
    drains.mark(host.world, "0")
    host.tell_door(WAITING)
    answer = ask(host).as_json()
    (one,) = answer["diagnoses"]
    assert answer["format"] == 2
    assert set(one) == {*Diagnosis.__dataclass_fields__}
    assert (one["name"], one["instances"]) == ("drained", ("0",))
