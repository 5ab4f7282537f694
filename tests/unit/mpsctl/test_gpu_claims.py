"""A GPU that moves from one instance to another: by their files two may have it for a while, and one alone gets it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Optional

import pytest

from converging import Fleet, conf
from fakes import Host, h200, uuid
from judging import judge
from mpsctl.adapters import locks
from mpsctl.checks.judgement import HEALTH, STATUS, VERIFY
from mpsctl.lifecycle import gpu_claims, prepare
from mpsctl.model.daemon_environment import DaemonEnvironment
from mpsctl.model.errors import NotReady
from mpsctl.model.finding import CONVERGE, CRITICAL, OK

SERVER = 9001


@pytest.fixture
def fleet(host: Host) -> Fleet:
    return Fleet(host)


def mode(host: Host, index: int) -> Optional[str]:
    return host.nvml.gpu(index).compute_mode


def on(host: Host, name: str, gpus: str, **more: object) -> None:
    host.desired(name, GPUs=gpus, ComputeMode="exclusive_process", DriverTimeoutSec=5, **more)


@pytest.fixture
def renamed(host: Host) -> Host:
    """Instance 0 runs, and GPU 0 is to be that of the instance infer."""
    on(host, "0", "0")
    host.start("0")
    on(host, "infer", "0")
    return host


# -- the start


def test_a_start_waits_until_the_gpu_is_free_and_changes_nothing_of_it(renamed: Host) -> None:
    pid, changes = renamed.running("0").pid, list(renamed.nvml.modes_set)
    with pytest.raises(NotReady, match=f"after 5 s: mps-control@0.service still has {uuid(0)}"):
        renamed.start("infer")
    assert renamed.processes[pid]
    assert renamed.nvml.modes_set == changes
    assert gpu_claims.of(renamed.world, "infer") == ()


def test_it_goes_on_as_soon_as_the_other_has_ended(renamed: Host) -> None:
    renamed.clock.when(3, lambda: renamed.stop("0"))
    assert renamed.start("infer")
    assert 3 <= sum(renamed.clock.slept_s) < 4
    assert gpu_claims.of(renamed.world, "infer") == (uuid(0),)
    assert mode(renamed, 0) == "exclusive_process"


@pytest.mark.parametrize("state", ["active", "reloading", "activating", "deactivating", "unknown"])
def test_a_unit_that_ends_or_starts_anew_has_its_gpus_still(renamed: Host, state: str) -> None:
    renamed.systemd.unit("mps-control@0.service").active_state = state
    with pytest.raises(NotReady, match="still has"):
        prepare.prepare(renamed.world, "infer")


@pytest.mark.parametrize("state", ["inactive", "failed"])
def test_one_that_has_ended_has_nothing_whatever_it_left(renamed: Host, state: str) -> None:
    renamed.systemd.unit("mps-control@0.service").active_state = state
    assert prepare.prepare(renamed.world, "infer").devices == (uuid(0),)


def test_instances_that_exchange_their_gpus_start_together(host: Host) -> None:
    """Each gives back what it had before it looks: none waits for one that waits for it."""
    for name in "01":
        on(host, name, name)
        host.start(name)
    on(host, "0", "1")
    on(host, "1", "0")
    for name in "01":
        unit = host.systemd.unit(f"mps-control@{name}.service")
        host.kill(unit.main_pid)
        unit.active_state, unit.main_pid = "activating", 0

    def start_the_other() -> None:
        prepare.prepare(host.world, "1")

    host.clock.when(1, start_the_other)
    assert prepare.prepare(host.world, "0").devices == (uuid(1),)
    assert gpu_claims.of(host.world, "1") == (uuid(0),)


def test_one_gpu_of_many_that_another_has_holds_the_whole_start_up(host: Host) -> None:
    on(host, "one", "3")
    host.start("one")
    on(host, "all", "0 1 2 3")
    with pytest.raises(NotReady, match=f"mps-control@one.service still has {uuid(3)}"):
        prepare.prepare(host.world, "all")


def test_where_systemd_does_not_tell_nobody_is_taken_for_ended(renamed: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> object:
        raise NotReady("systemd does not answer")

    monkeypatch.setattr(renamed.systemd, "show", fails)
    with pytest.raises(NotReady, match="systemd does not answer"):
        prepare.prepare(renamed.world, "infer")


def test_of_two_starts_at_once_the_second_sees_the_first(host: Host) -> None:
    lock = locks.take(host.places.gpus_lock, 0)
    try:
        with pytest.raises(NotReady, match="another start"):
            gpu_claims.take(host.world, "0", DaemonEnvironment(host.own(), (uuid(0),)))
    finally:
        os.close(lock)
    gpu_claims.take(host.world, "0", DaemonEnvironment(host.own(), (uuid(0),)))
    assert gpu_claims.of(host.world, "0") == (uuid(0),)


# -- the stop


def test_a_stop_gives_back_the_gpu_that_it_had_and_no_other(host: Host) -> None:
    """The files exchange the GPUs already, and instance 1 has clients: its restart waits."""
    for name in "01":
        on(host, name, name)
        host.start(name)
    on(host, "0", "1")
    on(host, "1", "0")
    host.stop("0")
    assert (mode(host, 0), mode(host, 1)) == ("default", "exclusive_process")


def test_cards_that_changed_places_under_running_daemons(host: Host) -> None:
    for name in "01":
        on(host, name, name)
        host.start(name)
    first, second = host.nvml.gpu(0), host.nvml.gpu(1)
    host.nvml.all[:2] = [replace(second, index=0), replace(first, index=1)]
    host.stop("0")
    assert {gpu.uuid: gpu.compute_mode for gpu in host.nvml.all[:2]} == {
        uuid(0): "default",
        uuid(1): "exclusive_process",
    }


def test_of_many_gpus_of_which_one_is_gone_the_others_are_given_back(host: Host) -> None:
    on(host, "0", "0 1 2")
    host.start("0")
    host.nvml.lost = {1}
    host.stop("0")
    host.nvml.lost = set()
    assert [mode(host, index) for index in (0, 2)] == ["default", "default"]
    assert any("stays as it is" in line and uuid(1) in line for line in host.said)


def test_the_end_of_a_second_daemon_leaves_the_first_its_mode(renamed: Host) -> None:
    """Whoever started it, and however: instance 0 serves the GPU."""
    env = renamed.places.daemon_environment("infer")
    env.parent.mkdir(parents=True, exist_ok=True)
    env.write_text(DaemonEnvironment(renamed.own("infer"), (uuid(0),)).as_file())
    renamed.stop("infer")
    assert mode(renamed, 0) == "exclusive_process"


# -- what is said


@pytest.mark.parametrize("verb", [STATUS, VERIFY, HEALTH])
def test_who_waits_for_the_gpu_of_another_instance_is_told_whose_it_is(renamed: Host, verb: str) -> None:
    seen = judge(renamed, verb=verb)
    found = seen.check("infer", "other-daemons")
    assert (found.level, found.mends) == (CRITICAL, CONVERGE)
    assert "'0'" in found.found
    assert found.facts["pids"] == [renamed.running("0").pid]
    assert seen.check("infer", "compute-mode").level == OK, "the mode is for the daemon that serves it"
    assert seen.check("0", "compute-mode").level == OK
    assert seen.check("0", "other-daemons").level == OK


def test_an_instance_gets_another_name_with_its_clients_at_work(fleet: Fleet) -> None:
    host = fleet.host
    fleet.converge(_0=conf(fleet, GPUs="0"))
    daemon = host.running("0")
    client = host.client()
    daemon.start_server(SERVER, [client])
    for check in (True, False):
        answer = fleet.run(check, {"infer": conf(fleet, "infer", GPUs="0")})
        assert answer.error is None
        assert {one["instance"]: one["kind"] for one in answer.pending} == {"0": "stop-and-remove", "infer": "start"}
        assert not any("find who" in line for line in answer.warnings)
    assert host.running("0") is daemon
    assert host.systemd.unit("mps-control@infer.service").active_state == "inactive"
    host.end(client)
    answer = fleet.run(False, {"infer": conf(fleet, "infer", GPUs="0")})
    assert (answer.error, answer.pending) == (None, [])
    assert host.running("infer").pid != daemon.pid
    assert mode(host, 0) == "exclusive_process"
    assert not fleet.run(False, {"infer": conf(fleet, "infer", GPUs="0")}).changed


def test_the_foreign_daemon_of_somebody_else_is_named_as_ever(renamed: Host) -> None:
    renamed.launch({"CUDA_MPS_PIPE_DIRECTORY": "/run/theirs", "CUDA_VISIBLE_DEVICES": uuid(0)})
    found = judge(renamed, verb=STATUS).check("0", "other-daemons")
    assert (found.level, found.mends) == (CRITICAL, "a person")


# -- many devices: what cannot be told of one hides nothing of another


@pytest.fixture
def many(host: Host) -> Host:
    on(host, "0", "0 1 2 3")
    host.start("0")
    return host


def test_the_worst_of_many_gpus_is_told_with_all_that_are_as_bad(many: Host) -> None:
    many.nvml.all[0] = h200(0, compute_mode=None)
    for index in (2, 3):
        many.nvml.all[index] = h200(index, compute_mode="default")
    found = judge(many, verb=STATUS).check("0", "compute-mode")
    assert found.level == CRITICAL
    assert uuid(2) in found.found
    assert [uuid(index) for index in range(4) if any(uuid(index) in line for line in found.evidence)] == [
        uuid(2),
        uuid(3),
    ]


def test_persistence_that_is_not_told_of_one_hides_no_other(many: Host) -> None:
    many.nvml.all[0] = replace(many.nvml.all[0], persistence=None)
    many.nvml.all[3] = replace(many.nvml.all[3], persistence=False)
    found = judge(many, verb=VERIFY).check("0", "persistence")
    assert found.level == "warning"
    assert uuid(3) in found.found
