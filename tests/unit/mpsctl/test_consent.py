"""What becomes of clients in the way of a restart or a removal: refuse, wait, terminate."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable

import pytest

from converging import POLICIES, TIMEOUT_S, Fleet, as_desired, at_work, conf, found, gpu_of, this_run
from fakes import FakeDaemon, uuid
from mpsctl.adapters import bytecode, files
from mpsctl.converge import consent, reconcile
from mpsctl.converge.answer import Answer
from mpsctl.converge.request import File, Request
from mpsctl.model.errors import BadValue
from mpsctl.model.names import UNIT
from mpsctl.model.places import Places
from mpsctl.observe import host as observed
from mpsctl.store import drains


def moved(fleet: Fleet, check: bool = False) -> Answer:
    """The same instance is desired on GPU 1, which only a restart brings about."""
    return fleet.run(check, {"a": conf(fleet, "a", GPUs="1")})


def restarted(fleet: Fleet, answer: Answer) -> bool:
    acts = fleet.host.systemd.acts
    assert ("restart mps-control@a.service" in acts) == (answer.pending == [])
    return answer.pending == []


@pytest.mark.parametrize("policy", POLICIES)
def test_without_clients_every_policy_restarts_at_once(fleet: Fleet, policy: str) -> None:
    at_work(fleet, policy, clients=0)
    begun_s = fleet.host.clock.now_s
    answer = moved(fleet)
    assert restarted(fleet, answer)
    assert answer.error is None
    assert fleet.host.clock.now_s - begun_s < 1
    assert fleet.host.door_is_open("a")


@pytest.mark.parametrize("policy", POLICIES)
def test_what_can_be_changed_live_disturbs_nobody_under_any_policy(fleet: Fleet, policy: str) -> None:
    daemon, pids = at_work(fleet, policy)
    answer = fleet.converge(a=conf(fleet, "a", GPUs="0", DeviceMemoryLimit="6G", ActiveThreadPercentage=50))
    assert (answer.error, answer.pending) == (None, [])
    assert fleet.host.systemd.acts == ["reload mps-control@a.service"]
    assert daemon.servers[9001].clients == pids
    assert fleet.host.door_is_open("a")


def test_refuse_names_the_clients_and_does_everything_else(fleet: Fleet) -> None:
    daemon, pids = at_work(fleet, "refuse", clients=2)
    fleet.host.clock.pass_by(7200)
    answer = fleet.run(False, {"a": conf(fleet, "a", GPUs="1"), "b": conf(fleet, "b", GPUs="2")})
    assert answer.error is None
    assert as_desired(answer, "b")
    assert not restarted(fleet, answer)
    (pending,) = answer.pending
    assert [(one["pid"], one["command"], one["age_s"]) for one in pending["clients"]] == [
        (pid, "python3 serve.py", 7200) for pid in pids
    ]
    assert (daemon.terminated, fleet.host.signals) == ([], [])
    assert fleet.host.door_is_open("a")


def test_who_computes_beside_the_clients_is_named_by_every_look(fleet: Fleet) -> None:
    confs = (("a", conf(fleet, "a", GPUs="0")),)
    look = Request((), confs)
    reconcile.reconcile(fleet.host.world, look, check=False)
    assert reconcile.reconcile(fleet.host.world, look, check=True).warnings == []
    outside = fleet.host.client(CUDA_MPS_PIPE_DIRECTORY="/run/nowhere")
    fleet.host.nvml.outside_mib = {uuid(0): {outside: 900}}
    (warning,) = reconcile.reconcile(fleet.host.world, look, check=True).warnings
    assert warning.startswith(f"a: pid {outside} (python3 serve.py, ")
    assert "is outside MPS: " in warning
    fleet.host.nvml.held_mib = {uuid(0): {outside: 900}}
    fleet.host.running("a").start_server(9001, [outside])
    assert reconcile.reconcile(fleet.host.world, look, check=True).warnings == []


@pytest.mark.parametrize(("changed", "verb"), [(True, "restart"), (False, "start")])
def test_a_start_that_goes_on_with_an_old_file_is_not_joined(fleet: Fleet, changed: bool, verb: str) -> None:
    """systemd tries a unit again by itself: what it reads then may be the file of before."""
    confs = (("a", conf(fleet, "a", GPUs="0")),)
    reconcile.reconcile(fleet.host.world, Request((), confs), check=False)
    unit = fleet.host.systemd.unit("mps-control@a.service")
    fleet.host.kill(unit.main_pid)
    unit.main_pid, unit.active_state, unit.sub_state = 0, "activating", "auto-restart"
    if changed:
        fleet.host.places.conf("a").write_text("half a fi")
    fleet.host.systemd.acts.clear()
    reconcile.reconcile(fleet.host.world, Request((), confs), check=False)
    assert f"{verb} mps-control@a.service" in fleet.host.systemd.acts


@pytest.mark.parametrize("came", [True, False])
def test_who_came_in_by_that_start_is_not_ended(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, came: bool) -> None:
    """systemd brought the unit up between the look and the step, with the files of before or with the new ones."""
    host = fleet.host
    fleet.converge(a=conf(fleet, "a", GPUs="0"))
    this_run(host)
    unit = host.systemd.unit("mps-control@a.service")
    host.kill(unit.main_pid)
    unit.main_pid, unit.active_state, unit.sub_state = 0, "activating", "auto-restart"
    clients: list[int] = []

    really = bytecode.keep

    def up(places: Places) -> None:
        really(places)
        if not host.systemd.units["mps-control@a.service"].main_pid:
            daemon = host.start("a")
            clients.extend([host.client()] if came else [])
            daemon.start_server(9001, clients)

    monkeypatch.setattr(bytecode, "keep", up)
    host.systemd.acts.clear()
    answer = fleet.converge(a=conf(fleet, "a", GPUs="0", DeviceMemoryLimit="6G"))
    assert ("restart mps-control@a.service" in host.systemd.acts) is not came
    assert [client for client in clients if client not in host.processes] == []
    assert [(one["kind"], one["clients"][0]["pid"]) for one in answer.pending] == [("start", pid) for pid in clients]
    assert host.door_is_open("a")


@pytest.mark.parametrize(("runs", "said"), [(True, 1), (False, 0)])
def test_a_changed_unit_is_taken_at_the_next_start_and_that_is_said(fleet: Fleet, runs: bool, said: int) -> None:
    unit = File(fleet.host.places.units / UNIT, "[Service]\nExecStart=/bin/true\n")
    confs = (("a", conf(fleet, "a", GPUs="0")),)
    if runs:
        reconcile.reconcile(fleet.host.world, Request((), confs), check=False)
    pid = fleet.host.systemd.unit("mps-control@a.service").main_pid
    answer = reconcile.reconcile(fleet.host.world, Request((unit,), confs), check=False)
    assert answer.error is None
    assert sum("take it at their next start" in line for line in answer.warnings) == said
    assert not runs or fleet.host.systemd.unit("mps-control@a.service").main_pid == pid


def test_a_withheld_restart_is_shown_by_status_and_taken_at_the_next_natural_one(fleet: Fleet) -> None:
    at_work(fleet, "refuse")
    answer = moved(fleet)
    assert found(answer, "a", "restart-pending")["level"] == "warning"
    assert "the daemon serves" in found(answer, "a", "restart-pending")["found"]
    fleet.host.kill(fleet.host.running("a").pid)
    fleet.host.start("a")
    answer = moved(fleet)
    # The GPU that it left then gets its saved compute mode back.
    assert (answer.pending, [line.split(" (")[0] for line in answer.actions]) == (
        [],
        ["bring back the compute mode of GPU 0"],
    )
    assert gpu_of(answer, "a")["uuid"] == uuid(1)
    assert not moved(fleet).changed


@pytest.mark.parametrize("policy", ["wait", "terminate"])
def test_a_client_that_leaves_in_time_is_waited_for(fleet: Fleet, policy: str) -> None:
    daemon, pids = at_work(fleet, policy, clients=2)
    door: list[bool] = []
    daemon.before_command = lambda command: door.append(fleet.host.door_is_open("a"))
    for number, pid in enumerate(pids):
        fleet.host.clock.when(10 * (number + 1), lambda pid=pid: fleet.host.end(pid))  # type: ignore[misc]
    answer = moved(fleet)
    assert restarted(fleet, answer)
    assert answer.error is None
    assert (daemon.terminated, fleet.host.signals) == ([], [])
    assert not all(door), "no new client while it waits"
    assert fleet.host.door_is_open("a")
    assert answer.instances["a"]["facts"]["drain"] is None
    assert [line.split(": ")[:2] for line in answer.progress] == [
        ["drain mps-control@a.service", said] for said in ("2 clients left", "1 client left", "no client is left")
    ]
    assert not any("client left" in warning for warning in answer.warnings)


def test_wait_gives_up_after_its_bound_and_lets_clients_in_again(fleet: Fleet) -> None:
    daemon, pids = at_work(fleet, "wait")
    begun_s = fleet.host.clock.now_s
    answer = moved(fleet)
    assert not restarted(fleet, answer)
    assert TIMEOUT_S <= fleet.host.clock.now_s - begun_s <= TIMEOUT_S + 2
    assert daemon.servers[9001].clients == pids
    assert (daemon.terminated, fleet.host.signals) == ([], [])
    assert fleet.host.door_is_open("a")
    assert [one["pid"] for one in answer.pending[0]["clients"]] == pids
    assert any("1 client left" in warning for warning in answer.warnings)
    assert not moved(fleet).changed, "a wait for nothing is no change"


def test_terminate_waits_then_has_the_daemon_end_them_then_restarts(fleet: Fleet) -> None:
    daemon, pids = at_work(fleet, "terminate", clients=2)
    fleet.host.clock.when(10, lambda: fleet.host.end(pids[0]))
    begun_s = fleet.host.clock.now_s
    answer = moved(fleet)
    assert restarted(fleet, answer)
    assert answer.error is None
    assert fleet.host.clock.now_s - begun_s >= TIMEOUT_S
    assert daemon.terminated == pids[1:]
    assert fleet.host.signals == [(pids[1], signal.SIGTERM)]
    said = "\n".join(answer.progress)
    assert said.index("2 clients left") < said.index("ended by the daemon") < said.index("SIGTERM")
    assert [step["kind"] for step in answer.steps][-2:] == ["drain", "restart"]
    assert fleet.host.door_is_open("a")


def test_one_that_cannot_be_ended_keeps_its_daemon_and_hangs_nothing(fleet: Fleet) -> None:
    daemon, pids = at_work(fleet, "terminate")
    fleet.host.processes[pids[0]].state = "D"
    daemon.answer_to_terminate = "1"
    answer = moved(fleet)
    assert not restarted(fleet, answer)
    assert "answered 1" in "\n".join(answer.progress)
    assert fleet.host.door_is_open("a")


def test_one_in_the_kernel_that_the_daemon_took_off_is_in_nobodys_way(fleet: Fleet) -> None:
    _, pids = at_work(fleet, "terminate")
    fleet.host.processes[pids[0]].state = "D"
    answer = moved(fleet)
    assert restarted(fleet, answer)
    assert "its process does not end (state D)" in "\n".join(answer.progress)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_daemon_that_does_not_answer_is_not_restarted_over_unseen_clients(fleet: Fleet, policy: str) -> None:
    daemon, _ = at_work(fleet, policy)
    daemon.not_served = True
    answer = moved(fleet)
    assert not restarted(fleet, answer)
    assert "who is connected cannot be told" in answer.pending[0]["why"]
    assert answer.pending[0]["clients"] == []


@pytest.mark.parametrize("policy", ["wait", "terminate"])
def test_with_check_the_drain_is_told_and_nothing_is_done(fleet: Fleet, policy: str) -> None:
    at_work(fleet, policy)
    before = fleet.host.snapshot()
    answer = moved(fleet, check=True)
    assert answer.changed
    drain, restart = answer.steps[-2:]
    assert (drain["kind"], drain["instance"], drain["ends_clients"]) == ("drain", "a", policy == "terminate")
    assert f"wait up to {TIMEOUT_S} s for its 1 client" in drain["text"]
    assert [client["command"] for client in drain["clients"]] == ["python3 serve.py"]
    assert restart["kind"] == "restart"
    assert answer.pending == [], "it is not known yet whether anything is withheld"
    assert fleet.host.snapshot() == before
    assert fleet.host.door_is_open("a")


def test_an_instance_that_is_no_longer_desired_is_removed_by_consent(fleet: Fleet) -> None:
    daemon, pids = at_work(fleet, "terminate")
    answer = fleet.converge(b=conf(fleet, "b", GPUs="0"))
    assert (answer.error, answer.pending) == (None, [])
    assert daemon.terminated == pids
    assert not fleet.host.places.conf("a").exists()
    assert as_desired(answer, "b")


def test_who_waits_for_the_gpu_of_another_gets_it_by_consent(fleet: Fleet) -> None:
    _, pids = at_work(fleet, "wait")
    fleet.host.clock.when(5, lambda: fleet.host.end(pids[0]))
    answer = fleet.run(False, {"a": conf(fleet, "a", GPUs="2"), "b": conf(fleet, "b", GPUs="0")})
    assert (answer.error, answer.pending) == (None, [])
    assert [gpu_of(answer, name)["index"] for name in "ab"] == [2, 0]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_drain_of_an_operator_outlasts_the_run(fleet: Fleet, policy: str) -> None:
    at_work(fleet, policy, clients=0)
    drains.mark(fleet.host.world, "a")
    answer = moved(fleet)
    assert restarted(fleet, answer)
    assert answer.error is None
    assert not fleet.host.door_is_open("a")
    assert any("a: drained since" in warning for warning in answer.warnings)


def test_a_removed_instance_that_comes_back_is_not_drained(fleet: Fleet) -> None:
    desired = {"_0": conf(fleet), "_1": conf(fleet, "1")}
    fleet.converge(**desired)
    drains.mark(fleet.host.world, "1")
    fleet.converge(_0=conf(fleet))
    assert fleet.converge(**desired).error is None
    assert fleet.host.door_is_open("1")


@pytest.mark.parametrize(("clients", "restarts"), [(0, True), (1, False)])
def test_a_daemon_whose_file_was_replaced_is_restarted_where_nobody_is_in_the_way(
    fleet: Fleet, clients: int, restarts: bool
) -> None:
    daemon, _ = at_work(fleet, "refuse", clients)
    desired = {"a": conf(fleet, "a", GPUs="0")}
    assert not fleet.run(False, desired).changed
    fleet.host.processes[daemon.pid].replaced = "the daemon's file was replaced after its start"
    answer = fleet.run(False, desired)
    assert answer.error is None
    assert restarted(fleet, answer) == restarts
    assert (fleet.host.running("a") is daemon) != restarts


def test_a_changed_limit_alone_never_follows_the_policy(fleet: Fleet) -> None:
    """What limits.yml asks for restarts nothing, whoever would allow it."""
    daemon, pids = at_work(fleet, "terminate")
    fleet.host.processes[daemon.pid].replaced = "the daemon's file was replaced after its start"
    fleet.more["atomic"] = True
    answer = fleet.converge(a=conf(fleet, "a", GPUs="0", DeviceMemoryLimit="6G"))
    assert (answer.error, answer.refused) == (None, None)
    assert daemon.servers[9001].clients == pids
    assert [entry["instance"] for entry in answer.pending] == ["a"]


@pytest.mark.parametrize(
    ("key", "value"),
    [("on_clients", "kill"), ("on_clients", None), ("drain_timeout_s", 0), ("drain_timeout_s", "5m")],
)
def test_another_policy_is_refused_by_name(fleet: Fleet, key: str, value: object) -> None:
    fleet.more[key] = value
    with pytest.raises(BadValue) as refused_:
        fleet.request({})
    assert refused_.value.variable == f"mps_{key}"


# -- between the look and the act


@pytest.mark.parametrize("removal", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_client_that_comes_after_the_look_is_not_ended_by_a_plan_that_was_made_without_it(
    fleet: Fleet, policy: str, removal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, _ = at_work(fleet, policy, clients=0)
    late = fleet.host.client()
    write = files.write

    def come(path: Path, *content: Any, **more: Any) -> None:
        if path.parent == fleet.host.places.configuration and not daemon.servers[9001].clients:
            daemon.connect(9001, late)
        write(path, *content, **more)

    monkeypatch.setattr(files, "write", come)
    answer = fleet.converge(b=conf(fleet, "b", GPUs="0")) if removal else moved(fleet)
    assert answer.error is None
    assert [one["pid"] for one in answer.pending[0]["clients"]] == [late]
    assert fleet.host.running("a") is daemon
    assert daemon.servers[9001].clients == [late]
    assert (daemon.terminated, fleet.host.signals) == ([], [])
    assert fleet.host.door_is_open("a")
    assert not any(step["kind"] in ("restart", "stop-and-remove") for step in answer.steps)


def test_what_waits_for_nobody_is_done_before_the_wait(fleet: Fleet) -> None:
    _, pids = at_work(fleet, "wait")
    up: list[bool] = []
    fleet.host.clock.when(1, lambda: up.append(bool(fleet.host.systemd.unit("mps-control@b.service").main_pid)))
    fleet.host.clock.when(20, lambda: fleet.host.end(pids[0]))
    answer = fleet.run(False, {"a": conf(fleet, "a", GPUs="1"), "b": conf(fleet, "b", GPUs="2")})
    assert answer.error is None
    assert up == [True]


def test_nobody_is_waited_for_in_vain(fleet: Fleet) -> None:
    """b cannot be restarted whoever leaves, since nobody knows who is connected to a, whose GPU it is to have."""
    daemon, _ = at_work(fleet, "terminate")
    fleet.more = {}
    fleet.converge(a=conf(fleet, "a", GPUs="0"), b=conf(fleet, "b", GPUs="1"))
    fleet.more = {"on_clients": "terminate", "drain_timeout_s": TIMEOUT_S}
    other = fleet.host.running("b")
    other.start_server(9002, clients=[fleet.host.client()])
    daemon.not_served = True
    begun_s = fleet.host.clock.now_s
    answer = fleet.run(False, {"a": conf(fleet, "a", GPUs="2"), "b": conf(fleet, "b", GPUs="0")})
    assert [one["instance"] for one in answer.pending] == ["a", "b"]
    assert other.terminated == []
    assert fleet.host.clock.now_s - begun_s < TIMEOUT_S


# -- whoever cannot be counted is in the way


def stopped(fleet: Fleet, daemon: FakeDaemon) -> None:
    fleet.host.processes[daemon.pid].state = "T"


def held(fleet: Fleet, daemon: FakeDaemon) -> None:
    daemon.not_served = True


def without_its_socket(fleet: Fleet, daemon: FakeDaemon) -> None:
    daemon.unreachable = True


UNCOUNTED = [stopped, held, without_its_socket]


@pytest.mark.parametrize("removal", [True, False])
@pytest.mark.parametrize("how", UNCOUNTED)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_daemon_that_does_not_tell_its_clients_is_left_alone(
    fleet: Fleet, policy: str, how: Callable[[Fleet, FakeDaemon], None], removal: bool
) -> None:
    daemon, pids = at_work(fleet, policy)
    how(fleet, daemon)
    answer = fleet.converge(b=conf(fleet, "b", GPUs="2")) if removal else moved(fleet)
    assert "who is connected cannot be told" in answer.pending[0]["why"]
    assert not any(act.endswith("mps-control@a.service") for act in fleet.host.systemd.acts)
    assert set(pids) <= set(fleet.host.processes)
    assert (daemon.terminated, fleet.host.signals) == ([], [])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("damage", "is_ours"),
    [
        ("# Managed by mps-fleet\nhalf a fi", True),
        ("# Managed by mps-fleet\n[Limits]\nDeviceMemoryLimit=lots\n", True),
        ("", False),
        ("half a file without our mark", False),
    ],
)
def test_an_instance_whose_file_is_damaged_is_not_stopped_over_its_clients(
    fleet: Fleet, policy: str, damage: str, is_ours: bool
) -> None:
    daemon, pids = at_work(fleet, policy)
    fleet.host.places.conf("a").write_text(damage)
    answer = fleet.converge(b=conf(fleet, "b", GPUs="2"))
    assert [one["instance"] for one in answer.pending] == (["a"] if is_ours else [])
    assert fleet.host.running("a") is daemon
    assert set(pids) <= set(fleet.host.processes)
    assert (daemon.terminated, fleet.host.signals) == ([], [])


def test_a_daemon_that_has_ended_has_no_clients(fleet: Fleet) -> None:
    """systemd may not have taken note of it yet."""
    daemon, _ = at_work(fleet, "refuse")
    without_its_socket(fleet, daemon)
    for lives in (True, False):
        facts = observed.look(fleet.host.world, ["a"]).instances["a"]
        assert facts.main is not None
        facts.main = replace(facts.main, alive=lives)
        assert (consent.occupied(facts) is not None) == lives


# -- who is drained, by whom and why


def test_a_drain_of_a_run_says_what_for(fleet: Fleet) -> None:
    _, pids = at_work(fleet, "wait")
    seen: list[Any] = []
    fleet.host.clock.when(5, lambda: seen.append(drains.read(fleet.host.world, "a")))
    fleet.host.clock.when(9, lambda: fleet.host.end(pids[0]))
    moved(fleet)
    (drain,) = seen
    assert drain.run_pid == os.getpid()
    assert drain.why.startswith("a restart: the daemon serves")
    assert drain.by
