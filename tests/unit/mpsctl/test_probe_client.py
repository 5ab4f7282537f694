"""The probe client: as whom it comes, when it stays away, and what it concludes from what a client sees."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Iterator, Mapping, Optional, Sequence

import pytest

from fakes import FakeDaemon, Host, uuid
from mpsctl.adapters import control_daemon as control
from mpsctl.adapters.cuda import CudaError, NoLibrary, Seen, TooLate, Trial
from mpsctl.checks import probe_client
from mpsctl.model.errors import MpsctlError
from mpsctl.model.finding import CRITICAL, OK, UNKNOWN, WARNING, Check
from mpsctl.model.gpu import Load
from mpsctl.observe import host as observe
from mpsctl.store import front_door_notes
from mpsctl.store.front_door_notes import Notes, Waits

ROOT, NOBODY, SERVER = 0, 65_534, 9001


@dataclass
class FakeClient:
    """What clients through an instance see; ``fails`` is what becomes of them instead."""

    seen: Seen = field(default_factory=lambda: Seen(9100, True, 4096 - 514, 143_155, 132, 0.2))
    allocated: Mapping[int, int] = field(default_factory=lambda: {4160: 2, 32: 0})
    kernel: Optional[bool] = True
    fails: Optional[MpsctlError] = None
    trials: list[Trial] = field(default_factory=list)
    environments: list[Mapping[str, str]] = field(default_factory=list)

    @contextmanager
    def client(self, environment: Mapping[str, str], timeout_s: float, trial: Optional[Trial] = None) -> Iterator[Seen]:
        assert trial is not None
        self.trials.append(trial)
        self.environments.append(environment)
        if self.fails:
            raise self.fails
        allocated = [self.allocated[size] for size in trial.allocate_mib]
        yield replace(self.seen, allocated=allocated, kernel_right=self.kernel if trial.kernel else None)


@pytest.fixture(autouse=True)
def _as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: ROOT)


def start(host: Host, **values: object) -> FakeDaemon:
    host.desired("0", **{"DeviceMemoryLimit": "4G", **values})
    host.nvml.loads = {uuid(index): Load(300, 143_000, 0) for index in range(4)}
    return host.start()


def serve(host: Host, daemon: FakeDaemon, uid: int, clients: Sequence[int] = ()) -> None:
    daemon.start_server(SERVER, clients)
    host.process("nvidia-cuda-mps-server", "nvidia-cuda-mps-server", uid=uid, pid=SERVER)


def look(host: Host, client: FakeClient, allocate: bool = True, timeout_s: float = 20) -> list[Check]:
    world = replace(host.world, cuda=client.client)
    seen = observe.look(world)
    return probe_client.look_at_one(world, seen.instances["0"], allocate, timeout_s)


def note(host: Host, *waiting: Waits) -> None:
    front_door_notes.write(host.places, "0", Notes(waiting))


def levels(checks: Sequence[Check]) -> dict[str, str]:
    return {check.name: check.level for check in checks}


def test_all_is_well(host: Host) -> None:
    serve(host, start(host), ROOT)
    client = FakeClient()
    checks = look(host, client)
    assert levels(checks) == dict.fromkeys(
        (
            probe_client.CONNECTS,
            probe_client.LIMIT,
            probe_client.MULTIPROCESSORS,
            probe_client.ALLOCATION,
            probe_client.KERNEL,
        ),
        OK,
    )
    assert client.trials == [Trial(0, None, (4160, 32), True)]
    assert client.environments == [{"CUDA_MPS_PIPE_DIRECTORY": f"{host.pipe_root}/0", "CUDA_VISIBLE_DEVICES": uuid(0)}]


def test_nothing_is_allocated_unasked(host: Host) -> None:
    serve(host, start(host), ROOT)
    client = FakeClient()
    assert probe_client.ALLOCATION not in levels(look(host, client, allocate=False))
    assert client.trials == [Trial()]


@pytest.mark.parametrize(
    ("values", "server", "users"),
    [
        ({}, ROOT, [None]),
        ({}, 1000, [1000]),
        ({"ServerUser": "2000"}, 1000, [1000]),
        ({}, None, [None]),
        ({"MultiUser": "yes"}, ROOT, [None, NOBODY]),
        ({"MultiUser": "yes"}, None, [None, NOBODY]),
    ],
)
def test_it_comes_as_those_who_keep_nobody_waiting(
    host: Host, values: dict[str, object], server: Optional[int], users: list[Optional[int]]
) -> None:
    daemon = start(host, **values)
    daemon.servers.clear()
    if server is not None:
        serve(host, daemon, server)
    client = FakeClient()
    look(host, client)
    assert [trial.uid for trial in client.trials] == users


def test_the_configured_user_where_no_server_runs(host: Host) -> None:
    start(host, ServerUser="2000").servers.clear()
    client = FakeClient()
    look(host, client)
    assert [trial.uid for trial in client.trials] == [2000]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"ExpectedClients": 2, "OverExpected": "wait"}, "not tried: no place is free (2 of 2 clients)"),
        ({"ExpectedClients": 2, "OverExpected": "refuse"}, "not tried: no place is free (2 of 2 clients)"),
        ({"Shares": "user:root=0 user:nobody=0", "OverExpected": "wait"}, "no place is free (share user:0 0 of 0)"),
        ({"Shares": "unit:ours.slice=2", "OverExpected": "wait"}, "no place is free (share unit:ours.slice 2 of 2)"),
    ],
)
@pytest.mark.parametrize("several", ["yes", "no"])
def test_it_is_not_tried_where_it_would_wait_for_a_place_or_be_refused(
    host: Host, values: dict[str, object], says: str, several: str
) -> None:
    daemon = start(host, MultiUser=several, **values)
    daemon.servers.clear()
    users = [host.client(uid=1000), host.client(uid=1000)]
    for pid in (*users, host.process("mpsctl", "mpsctl verify", pid=os.getpid())):
        host.processes[pid].group = "/ours.slice/x.service"
    serve(host, daemon, ROOT, users)
    client = FakeClient()
    checks = look(host, client)
    assert client.trials == []
    assert {(check.name, check.level) for check in checks} == {(probe_client.CONNECTS, UNKNOWN)}
    assert says in checks[0].found
    daemon.leave(SERVER, users[0])
    look(host, client)
    assert bool(client.trials) == ("root=0" not in str(values))


def test_nor_where_somebody_waits_for_the_place_that_is_free(host: Host) -> None:
    daemon = start(host, ExpectedClients=2, OverExpected="wait")
    serve(host, daemon, ROOT, [host.client(uid=ROOT)])
    note(host, Waits(host.client(uid=ROOT), ROOT, host.clock.now_s, "no-place", "clients"))
    client = FakeClient()
    (check,) = look(host, client)
    assert (client.trials, check.level) == ([], UNKNOWN)
    assert "1 of 2 clients, and 1 waits for one" in check.found


def test_nor_where_it_would_wait_behind_another_user_who_waits(host: Host) -> None:
    serve(host, start(host), ROOT)
    note(host, Waits(host.client(uid=2000), 2000, host.clock.now_s, "another-user"))
    client = FakeClient()
    (check,) = look(host, client)
    assert (client.trials, check.level) == ([], UNKNOWN)
    assert "user 2000 waits at the front door" in check.found


@pytest.mark.parametrize(
    ("fails", "level"),
    [
        (CudaError("cuInit", 805, "CUDA_ERROR_MPS_CONNECTION_FAILED"), UNKNOWN),
        (TooLate("a CUDA client was not up within 20 s"), UNKNOWN),
        (CudaError("cuInit", 999, "CUDA_ERROR_UNKNOWN"), CRITICAL),
    ],
)
def test_a_place_that_went_to_somebody_else_meanwhile_is_no_fault(host: Host, fails: MpsctlError, level: str) -> None:
    daemon = start(host, ExpectedClients=1, OverExpected="wait")
    serve(host, daemon, ROOT)

    @dataclass
    class Overtaken(FakeClient):
        @contextmanager
        def client(self, environment: Any, timeout_s: float, trial: Optional[Trial] = None) -> Iterator[Seen]:
            daemon.connect(SERVER, host.client(uid=ROOT))
            with super().client(environment, timeout_s, trial) as seen:
                yield seen

    (check,) = look(host, Overtaken(fails=fails))
    assert check.level == level
    assert ("no place is free (1 of 1 clients)" in check.found) == (level == UNKNOWN)


def test_one_of_ours_that_the_daemon_lists_still_is_waited_for(host: Host) -> None:
    """In multi-user mode two users are tried in turn."""
    daemon = start(host, ExpectedClients=1, OverExpected="wait", MultiUser="yes")

    @dataclass
    class Lingers(FakeClient):
        @contextmanager
        def client(self, environment: Any, timeout_s: float, trial: Optional[Trial] = None) -> Iterator[Seen]:
            (server,) = daemon.servers
            pid = host.client(uid=ROOT)
            daemon.connect(server, pid)
            with super().client(environment, timeout_s, trial) as seen:
                yield seen
            host.kill(pid)
            host.clock.when(0.5, lambda: daemon.leave(server, pid))

    client = Lingers()
    look(host, client, allocate=False)
    assert [trial.uid for trial in client.trials] == [None, NOBODY]


@pytest.mark.parametrize("more", [{}, {"MultiUser": "yes"}])
def test_where_a_group_alone_may_connect_it_comes_as_a_member(host: Host, more: dict[str, str]) -> None:
    serve(host, start(host, Group="2000", **more), 0 if more else 1000)
    client = FakeClient()
    look(host, client)
    assert [(trial.uid, trial.gid) for trial in client.trials] == [
        (uid or None, 2000) for uid in ([0, NOBODY] if more else [1000])
    ]


def test_another_user_than_the_servers_does_not_wait_behind_it(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(host, start(host), 1000)
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    client = FakeClient()
    [check] = look(host, client)
    assert (check.level, client.trials) == (UNKNOWN, [])
    assert "user 1001 would wait" in check.found


@pytest.mark.parametrize("lacks", ["memory", "clients", "free memory not told", "front-door"])
def test_a_full_gpu_is_not_disturbed(host: Host, lacks: str) -> None:
    daemon = start(host)
    serve(host, daemon, ROOT, range(100, 147) if lacks == "clients" else [100])
    if lacks == "memory":
        host.nvml.loads[uuid(0)] = Load(143_000, 514 + 255, 0)
    elif lacks == "free memory not told":
        host.nvml.loads[uuid(0)] = Load()
    elif lacks == "front-door":
        host.stop()
    client = FakeClient()
    assert levels(look(host, client)) == {probe_client.CONNECTS: UNKNOWN}
    assert client.trials == []


def test_a_refusal_on_a_card_that_is_nearly_full_proves_nothing(host: Host) -> None:
    serve(host, start(host), ROOT)
    host.nvml.loads[uuid(0)] = Load(139_000, 4300, 0)
    client = FakeClient()
    checks = look(host, client)
    assert client.trials[0].allocate_mib == (32,)
    assert levels(checks)[probe_client.ALLOCATION] == UNKNOWN
    assert levels(checks)[probe_client.CONNECTS] == OK


@pytest.mark.parametrize(
    ("client", "name", "level"),
    [
        (FakeClient(seen=Seen(1, False, 142_000, 143_155, 132, 0.2)), probe_client.CONNECTS, CRITICAL),
        (FakeClient(seen=Seen(1, None, 3582, 143_155, 132, 0.2)), probe_client.CONNECTS, UNKNOWN),
        (FakeClient(seen=Seen(1, True, 142_000, 143_155, 132, 0.2)), probe_client.LIMIT, CRITICAL),
        (FakeClient(seen=Seen(1, True, 2048 - 514, 143_155, 132, 0.2)), probe_client.LIMIT, WARNING),
        (FakeClient(seen=Seen(1, True, 3582, 143_155, 66, 0.2)), probe_client.MULTIPROCESSORS, CRITICAL),
        (FakeClient(seen=Seen(1, True, 3582, 143_155, 106, 0.2)), probe_client.MULTIPROCESSORS, OK),
        (FakeClient(allocated={4160: 0, 32: 0}), probe_client.ALLOCATION, CRITICAL),
        (FakeClient(allocated={4160: 2, 32: 2}), probe_client.ALLOCATION, CRITICAL),
        (FakeClient(allocated={4160: 1, 32: 0}), probe_client.ALLOCATION, WARNING),
        (FakeClient(kernel=False), probe_client.KERNEL, CRITICAL),
        (FakeClient(kernel=None), probe_client.KERNEL, UNKNOWN),
        (
            FakeClient(fails=CudaError("cuCtxCreate_v2", 805, "CUDA_ERROR_MPS_CONNECTION_FAILED")),
            probe_client.CONNECTS,
            CRITICAL,
        ),
        (FakeClient(fails=CudaError("cuCtxCreate_v2", 808, "TOO_MANY")), probe_client.CONNECTS, UNKNOWN),
        (FakeClient(fails=TooLate("not up")), probe_client.CONNECTS, CRITICAL),
        (FakeClient(fails=NoLibrary("libcuda.so.1")), probe_client.CONNECTS, UNKNOWN),
    ],
)
def test_what_is_concluded(host: Host, client: FakeClient, name: str, level: str) -> None:
    serve(host, start(host, ActiveThreadPercentage=80), ROOT)
    assert levels(look(host, client))[name] == level


def test_what_a_client_outside_mps_sees_is_not_held_against_the_limit(host: Host) -> None:
    serve(host, start(host), ROOT)
    checks = look(host, FakeClient(seen=Seen(1, False, 142_000, 143_155, 132, 0.2)))
    assert levels(checks) == {probe_client.CONNECTS: CRITICAL}


def test_every_device_of_an_instance_is_looked_at(host: Host) -> None:
    start(host, GPUs="0 2")
    client = FakeClient()
    checks = look(host, client)
    assert [trial.ordinal for trial in client.trials] == [0, 1]
    assert {check.facts["device"] for check in checks} == {0, 1}


def test_all_probe_clients_together_are_bounded_in_time(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    start(host, MultiUser="yes")
    client = FakeClient(fails=TooLate("not up"))
    real = client.client

    @contextmanager
    def slow(environment: Mapping[str, str], timeout_s: float, trial: Any = None) -> Iterator[Seen]:
        host.clock.pass_by(timeout_s)
        with real(environment, timeout_s, trial) as seen:
            yield seen

    monkeypatch.setattr(client, "client", slow)
    checks = look(host, client)
    assert [check.level for check in checks] == [CRITICAL, UNKNOWN]
    assert len(client.trials) == 1


def test_a_daemon_that_does_not_answer_is_no_fault_of_the_probe_client(host: Host) -> None:
    start(host).not_served = True
    [check] = look(host, FakeClient())
    assert check.level == UNKNOWN
    assert issubclass(control.NotServed, MpsctlError)


@pytest.mark.forks
def test_each_instance_is_probed_in_a_process_of_its_own(host: Host) -> None:
    """What hangs in one, or breaks, holds up no other."""
    start(host)
    host.desired("1", DeviceMemoryLimit="4G")
    host.start("1")

    @contextmanager
    def client(environment: Mapping[str, str], timeout_s: float, trial: Any = None) -> Iterator[Seen]:
        if environment["CUDA_VISIBLE_DEVICES"] == uuid(0):
            raise KeyError("what nobody thought of")
        yield FakeClient().seen

    world = replace(host.world, cuda=client)
    found = probe_client.look(world, observe.look(world))
    assert [(check.name, check.level) for check in found["0"]] == [(probe_client.CONNECTS, UNKNOWN)]
    assert levels(found["1"])[probe_client.CONNECTS] == OK


def test_every_check_has_a_sentence_for_the_documentation(host: Host) -> None:
    serve(host, start(host), ROOT)
    assert set(levels(look(host, FakeClient()))) == set(probe_client.SUMMARIES)
