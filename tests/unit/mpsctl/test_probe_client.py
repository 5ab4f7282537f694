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
from mpsctl.model.finding import CANNOT_TELL, FAIL, PASS, WARN, Check
from mpsctl.model.gpu import Load
from mpsctl.store import configuration

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


def look(host: Host, client: FakeClient, allocate: bool = True) -> list[Check]:
    world = replace(host.world, cuda=client.client)
    return probe_client.look(world, configuration.load(world, "0"), allocate)


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
        PASS,
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
    assert (check.level, client.trials) == (CANNOT_TELL, [])
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
    assert levels(look(host, client)) == {probe_client.CONNECTS: CANNOT_TELL}
    assert client.trials == []


def test_a_refusal_on_a_card_that_is_nearly_full_proves_nothing(host: Host) -> None:
    serve(host, start(host), ROOT)
    host.nvml.loads[uuid(0)] = Load(139_000, 4300, 0)
    client = FakeClient()
    checks = look(host, client)
    assert client.trials[0].allocate_mib == (32,)
    assert levels(checks)[probe_client.ALLOCATION] == CANNOT_TELL
    assert levels(checks)[probe_client.CONNECTS] == PASS


@pytest.mark.parametrize(
    ("client", "name", "level"),
    [
        (FakeClient(seen=Seen(1, False, 142_000, 143_155, 132, 0.2)), probe_client.CONNECTS, FAIL),
        (FakeClient(seen=Seen(1, None, 3582, 143_155, 132, 0.2)), probe_client.CONNECTS, CANNOT_TELL),
        (FakeClient(seen=Seen(1, True, 142_000, 143_155, 132, 0.2)), probe_client.LIMIT, FAIL),
        (FakeClient(seen=Seen(1, True, 2048 - 514, 143_155, 132, 0.2)), probe_client.LIMIT, WARN),
        (FakeClient(seen=Seen(1, True, 3582, 143_155, 66, 0.2)), probe_client.MULTIPROCESSORS, FAIL),
        (FakeClient(seen=Seen(1, True, 3582, 143_155, 106, 0.2)), probe_client.MULTIPROCESSORS, PASS),
        (FakeClient(allocated={4160: 0, 32: 0}), probe_client.ALLOCATION, FAIL),
        (FakeClient(allocated={4160: 2, 32: 2}), probe_client.ALLOCATION, FAIL),
        (FakeClient(allocated={4160: 1, 32: 0}), probe_client.ALLOCATION, WARN),
        (FakeClient(kernel=False), probe_client.KERNEL, FAIL),
        (FakeClient(kernel=None), probe_client.KERNEL, CANNOT_TELL),
        (
            FakeClient(fails=CudaError("cuCtxCreate_v2", 805, "CUDA_ERROR_MPS_CONNECTION_FAILED")),
            probe_client.CONNECTS,
            FAIL,
        ),
        (FakeClient(fails=CudaError("cuCtxCreate_v2", 808, "TOO_MANY")), probe_client.CONNECTS, CANNOT_TELL),
        (FakeClient(fails=TooLate("not up")), probe_client.CONNECTS, FAIL),
        (FakeClient(fails=NoLibrary("libcuda.so.1")), probe_client.CONNECTS, CANNOT_TELL),
    ],
)
def test_what_is_concluded(host: Host, client: FakeClient, name: str, level: str) -> None:
    serve(host, start(host, ActiveThreadPercentage=80), ROOT)
    assert levels(look(host, client))[name] == level


def test_what_a_client_outside_mps_sees_is_not_held_against_the_limit(host: Host) -> None:
    serve(host, start(host), ROOT)
    checks = look(host, FakeClient(seen=Seen(1, False, 142_000, 143_155, 132, 0.2)))
    assert levels(checks) == {probe_client.CONNECTS: FAIL}


def test_every_device_of_an_instance_is_looked_at(host: Host) -> None:
    start(host, GPUs="0 2")
    client = FakeClient()
    checks = look(host, client)
    assert [trial.ordinal for trial in client.trials] == [0, 1]
    assert any("device 1" in check.found for check in checks)


def test_all_probe_clients_together_are_bounded_in_time(host: Host) -> None:
    start(host, MultiUser="yes")
    client = FakeClient(fails=TooLate("not up"))
    world = replace(host.world, cuda=client.client)

    @contextmanager
    def slow(environment: Mapping[str, str], timeout_s: float, trial: Any = None) -> Iterator[Seen]:
        host.clock.pass_by(timeout_s)
        with client.client(environment, timeout_s, trial) as seen:
            yield seen

    checks = probe_client.look(replace(world, cuda=slow), configuration.load(world, "0"), timeout_s=20)
    assert [check.level for check in checks] == [FAIL, CANNOT_TELL]
    assert len(client.trials) == 1


def test_a_daemon_that_does_not_answer_is_no_fault_of_the_probe_client(host: Host) -> None:
    start(host).not_served = True
    [check] = look(host, FakeClient())
    assert check.level == CANNOT_TELL
    assert issubclass(control.NotServed, MpsctlError)
