"""Every step describes itself, says whether it is live and what it does to clients.

Check mode and a run walk one list.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, Iterator, Optional

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from converging import TIMER, TIMER_TEXT, Fleet, conf, this_run
from fakes import Host, h200
from mpsctl.converge import (
    door_steps,
    file_steps,
    instance_steps,
    policy_steps,
    remains_steps,
    removal,
    removal_steps,
    statement,
    unit_steps,
    walk,
)
from mpsctl.converge.answer import Answer
from mpsctl.converge.door_steps import OpenFrontDoor, TakeFrontDoorAway
from mpsctl.converge.file_steps import InstallProgram, RemovePartialFile, WriteFile
from mpsctl.converge.instance_steps import Drain, RestoreComputeMode, StopAndRemoveInstance
from mpsctl.converge.policy_steps import LoadPolicy, UnloadPolicy
from mpsctl.converge.remains_steps import RemoveFormerDirectory, RemoveTransport
from mpsctl.converge.removal_steps import (
    RemoveDirectory,
    RemoveFile,
    RemoveMetrics,
    RemoveProgram,
    RemoveScript,
    StopHelpers,
)
from mpsctl.converge.request import File
from mpsctl.converge.step import Context, Occupied, Step, dependent, withhold
from mpsctl.converge.unit_steps import Enable, Reload, ReloadSystemd, Restart, RestartUnit, Start
from mpsctl.model.instance_file import parse_conf
from mpsctl.observe.door_facts import UnitFacts
from mpsctl.observe.facts import ClientFacts


def every_class() -> list[type[Step]]:
    modules = (door_steps, file_steps, instance_steps, policy_steps, remains_steps, removal_steps, unit_steps)
    found = [one for module in modules for one in vars(module).values() if isinstance(one, type)]
    return sorted({one for one in found if issubclass(one, Step) and one is not Step}, key=lambda one: one.kind)


def client(pid: int = 7) -> ClientFacts:
    return ClientFacts(pid, 1000, "alice", "python3 serve.py", None, [], [], 100)


def one_of_each(host: Host) -> dict[type[Step], Step]:
    """A step of every class, for a host."""
    instance = parse_conf(host.conf("0"), "0")
    program, path = host.places.root / "new-program", host.places.units / "mps-control@.service"
    program.write_bytes(b"a program")
    directory = host.places.state
    directory.mkdir(parents=True)
    steps: list[Step] = [
        InstallProgram(program, host.places.program),
        WriteFile(File(path, "text\n")),
        RemoveFile(path),
        RemoveScript(path),
        RemovePartialFile(path),
        RemoveDirectory(directory),
        RemoveProgram(host.places.program),
        RemoveMetrics(path),
        Enable(instance.unit, "0"),
        ReloadSystemd(),
        Start(instance.unit, "inactive", "0"),
        RestartUnit(TIMER, "its file has changed"),
        Restart(instance, "the GPU changed", {"0": "the GPU changed"}),
        Reload(instance.unit, "the limit changed", "0"),
        StopHelpers((TIMER,), host.places.units / TIMER),
        Drain(instance, "a restart", "the GPU changed", (client(),), (60,), 300, end_clients=True),
        StopAndRemoveInstance("0", UnitFacts(instance.unit), instance, host.places.conf("0"), {"0": "no longer"}),
        RestoreComputeMode(h200(0, compute_mode="exclusive_process"), "default"),
        OpenFrontDoor(UnitFacts(instance.door), Path(instance.pipe_directory), "0"),
        TakeFrontDoorAway(UnitFacts(instance.door, active_state="active"), Path(instance.pipe_directory), "0"),
        LoadPolicy(b"a module"),
        UnloadPolicy(True),
        RemoveFormerDirectory(directory, "0"),
        RemoveTransport(directory),
    ]
    return {type(step): step for step in steps}


LIVE = {
    *("reload", "reload-systemd", "remove-partial-file", "restore-compute-mode", "open-front-door"),
    *("remove-former-directory", "remove-transport"),
}
"""What disturbs no client and can be undone; an instance's file as well, where limits alone change in it."""
ENDS_CLIENTS = {"restart", "stop-and-remove", "drain"}


def test_the_kinds_are_all_different() -> None:
    kinds = [one.kind for one in every_class()]
    assert len(kinds) == len(set(kinds))


@pytest.mark.parametrize("of", every_class(), ids=lambda one: one.kind)
def test_every_step_describes_itself(host: Host, of: type[Step]) -> None:
    step = one_of_each(host)[of]
    assert step.text
    assert "\n" not in step.text
    differences = step.differences()
    assert differences
    for one in differences:
        assert one.what
        assert one.before != one.after
        assert {type(value) for value in one.as_json().values()} == {str}
    data = json.loads(json.dumps(step.as_json(step.statements())))
    assert data["kind"] == of.kind
    assert (data["live"], data["ends_clients"]) == (of.kind in LIVE, of.kind in ENDS_CLIENTS)
    assert step.due


@pytest.mark.parametrize("of", every_class(), ids=lambda one: one.kind)
def test_every_step_says_what_it_does_as_data(host: Host, of: type[Step]) -> None:
    statements = one_of_each(host)[of].statements()
    assert statements
    for one in statements:
        assert one.what in statement.WHATS
        data = one.as_json()
        assert json.loads(json.dumps(data)) == data
        about = {"instance", "gpu", "name"} & data.keys()
        assert about or one.what in NAMELESS


NAMELESS = {
    *(statement.PROGRAM_INSTALLED, statement.PROGRAM_REMOVED, statement.SYSTEMD_RELOADED),
    *(statement.POLICY_LOADED, statement.POLICY_REMOVED),
}
"""Of these there is one on a host."""


def test_a_class_of_steps_without_a_statement_cannot_be_made() -> None:
    class Silent(RestartUnit):
        statements = Step.statements

    with pytest.raises(TypeError, match="statements"):
        Silent(TIMER, "why")


@pytest.mark.parametrize("of", every_class(), ids=lambda one: one.kind)
def test_to_describe_a_step_changes_nothing(host: Host, of: type[Step]) -> None:
    step = one_of_each(host)[of]
    before = host.snapshot()
    walk.describe([step], Answer(check=True))
    assert host.snapshot() == before
    assert (host.systemd.acts, host.nvml.modes_set) == ([], [])


@pytest.mark.parametrize("end_clients", [True, False])
def test_a_drain_says_whether_it_ends_clients_and_whose(host: Host, end_clients: bool) -> None:
    instance = parse_conf(host.conf("0"), "0")
    step = Drain(instance, "a restart", "why", (client(7), client(8)), (60, None), 300, end_clients)
    assert step.ends_clients == end_clients
    assert [one["pid"] for one in step.details()["clients"]] == [7, 8]
    (difference,) = step.differences()
    assert difference.before is not None
    assert difference.before.count("\n") == 2


def test_a_file_of_an_instance_is_live_where_limits_alone_change(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    for values, live in (({"DeviceMemoryLimit": "6G"}, True), ({"StopTimeoutSec": 60}, False)):
        (write,) = (step for step in fleet.check(_0=conf(fleet, **values)).steps if step["kind"] == "write-file")
        assert write["live"] == live


# -- who waits for whom


def restart(host: Host, name: str, **needs: str) -> Restart:
    return Restart(parse_conf(host.conf(name, GPUs="0"), name), "why", {name: "its own", **needs})


def test_what_needs_an_occupied_instance_is_withheld_through_any_number_of_others(host: Host) -> None:
    steps = [restart(host, "c", b="b has it"), restart(host, "b", a="a has it"), restart(host, "a"), restart(host, "d")]
    withhold(steps, {"a": Occupied((client(),))})
    assert [step.withheld.why if step.withheld else None for step in steps] == ["b has it", "a has it", "its own", None]
    assert [len(step.withheld.clients) for step in steps if step.withheld] == [1, 1, 1]


def test_instances_that_change_places_are_withheld_together(host: Host) -> None:
    steps = [restart(host, "a", b="b has it"), restart(host, "b", a="a has it")]
    assert set(dependent(steps, {"b": Occupied()})) == set(steps)
    assert dependent(steps, {}) == {}


def test_a_start_that_waits_does_not_hold_up_what_needs_nothing_of_it(host: Host) -> None:
    waits, free = Start("a.service", "inactive", "a", needs={"old": "old has it"}), restart(host, "b", a="a has it")
    assert set(dependent([waits, free], {"old": Occupied()})) == {waits}, "what is not up serves no GPU"


def test_a_step_takes_the_place_of_one_that_is_withheld_and_only_then(host: Host) -> None:
    first = restart(host, "a")
    instead = Reload("mps-control@a.service", "the limit changed", "a", instead_of=first)
    assert not instead.due
    withhold([first, instead], {"a": Occupied((client(),))})
    assert (first.due, instead.due) == (False, True)


def test_who_cannot_be_counted_is_said_to_be_so(host: Host) -> None:
    step = restart(host, "a")
    withhold([step], {"a": Occupied(unknown="the daemon is stopped")})
    assert step.withheld is not None
    assert step.withheld.why == "its own; who is connected cannot be told: the daemon is stopped"


# -- the walk


class Kept(Step):
    """A step of a test: it notes that it was taken, with all that stood beside it."""

    kind = "kept"

    def __init__(self, name: str, taken: list[list[str]], fails: bool = False) -> None:
        self.name, self.taken, self.fails = name, taken, fails

    @property
    def text(self) -> str:
        return self.name

    def differences(self) -> list[Any]:
        return []

    def statements(self) -> tuple[statement.Statement, ...]:
        return ()

    @classmethod
    def act(cls, steps: Any, context: Context) -> None:
        steps[0].taken.append([step.name for step in steps])
        if any(step.fails for step in steps):
            raise OSError(28, "No space left on device")


class Other(Kept):
    kind = "other"


def test_steps_of_one_kind_that_stand_together_are_taken_together_and_in_order(host: Host) -> None:
    taken: list[list[str]] = []
    steps = [Kept("a", taken), Kept("b", taken), Other("c", taken), Kept("d", taken)]
    answer = Answer(check=False)
    walk.take(host.world, steps, answer)
    assert taken == [["a", "b"], ["c"], ["d"]]
    assert answer.actions == ["a", "b", "c", "d"]


def test_what_was_not_begun_is_not_told_as_done(host: Host) -> None:
    taken: list[list[str]] = []
    steps = [Kept("a", taken), Other("b", taken, fails=True), Kept("c", taken)]
    answer = Answer(check=False)
    with pytest.raises(OSError, match="No space left"):
        walk.take(host.world, steps, answer)
    assert answer.actions == ["a", "b"]
    assert answer.changed


# -- check mode says what the run does


GPUS = ["0", "1", "2"]
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "DeviceMemoryLimit": st.sampled_from(["900M", "4G", "6G"]),
        "ActiveThreadPercentage": st.sampled_from([25, 50]),
        "StopTimeoutSec": st.sampled_from([30, 60]),
        "MultiUser": st.sampled_from(["yes", "no"]),
    },
)


@st.composite
def desired(draw: st.DrawFn) -> dict[str, dict[str, object]]:
    """Up to three instances by name, each with a GPU of its own."""
    names = draw(st.lists(st.sampled_from(["a", "b", "c"]), unique=True))
    gpus = draw(st.permutations(GPUS))
    return {name: {"GPUs": gpu, **draw(VALUES)} for name, gpu in zip(names, gpus)}


DISTURBED = ["stopped", "disabled", "stale", "limit", "door", "half a file", "replaced", "mode", "unresponsive"]


def disturb(host: Host, what: str, name: str) -> None:
    """Something that was changed by hand, or broke."""
    unit = host.systemd.unit(f"mps-control@{name}.service")
    if what == "stopped":
        host.stop(name)
    elif what == "disabled":
        unit.enabled = False
    elif what == "stale":
        unit.stale = True
    elif what == "limit":
        host.running(name).limits["0"] = 0
    elif what == "door":
        (host.pipe_root / name / "control").unlink()
    elif what == "half a file":
        host.places.conf(name).with_name(f".{name}.conf.{1 << 22}.new").write_text("half")
    elif what == "replaced":
        host.processes[host.running(name).pid].replaced = "the daemon's file was replaced after its start"
    elif what == "mode":
        host.nvml.set_compute_mode(host.nvml.gpu(3), "exclusive_process")
    elif what == "unresponsive":
        host.running(name).not_served = True


@pytest.fixture
def roots() -> Iterator[list[Path]]:
    made: list[Path] = []
    yield made
    for path in made:
        shutil.rmtree(path, ignore_errors=True)


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    before=desired(),
    after=st.one_of(desired(), st.none()),
    clients=st.sets(st.sampled_from(["a", "b", "c"])),
    disturbed=st.lists(st.sampled_from(DISTURBED), max_size=2),
    policy=st.sampled_from(["refuse", "terminate"]),
    timer=st.booleans(),
    atomic=st.booleans(),
)
def test_check_mode_says_what_the_run_does(
    host: Host,
    roots: list[Path],
    before: dict[str, dict[str, object]],
    after: Optional[dict[str, dict[str, object]]],
    clients: set[str],
    disturbed: list[str],
    policy: str,
    timer: bool,
    atomic: bool,
) -> None:
    """Over changes of GPUs, limits and units, clients in the way, and what was changed by hand; None: a removal."""
    place = Path(tempfile.mkdtemp(prefix="mps-steps-", dir=host.places.root.parent))
    roots.append(place)
    place.chmod(0o755)
    host.processes.clear()  # the table is what /proc is made of
    fresh = Host(place, [h200(index) for index in range(4)])
    fresh.processes = host.processes
    fleet = Fleet(fresh)
    assert fleet.converge(**{name: conf(fleet, name, **values) for name, values in before.items()}).error is None
    this_run(fresh)
    for number, name in enumerate(sorted(clients & set(before))):
        fresh.running(name).start_server(9000 + number, [fresh.client()])
    for what, name in zip(disturbed, before):
        disturb(fresh, what, name)
    fleet.timer = TIMER_TEXT if timer else None
    fleet.more = {"on_clients": policy, "drain_timeout_s": 5, **({"atomic": True} if atomic else {})}
    untouched = fresh.snapshot()

    def run(check: bool) -> Answer:
        if after is None:
            return removal.remove(fresh.world, check, policy, 5)
        return fleet.run(check, {name: conf(fleet, name, **values) for name, values in after.items()})

    told = run(check=True)
    assert fresh.snapshot() == untouched
    done = run(check=False)
    assert (told.actions, told.diff, told.refused) == (done.actions, done.diff, done.refused)
    assert [(step["kind"], step["statements"]) for step in told.steps] == [
        (step["kind"], step["statements"]) for step in done.steps
    ]
    assert [(one["instance"], one["why"]) for one in told.pending] == [
        (one["instance"], one["why"]) for one in done.pending
    ]
    if done.error is None and not done.pending:
        assert not run(check=True).changed, "a second run changes nothing"
