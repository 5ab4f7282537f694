"""The look at a host: facts without a judgement, whatever can be read of them, and changed by nobody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Optional

import pytest

from fakes import Host, h200, uuid
from judging import SERVER, UNIT, connect, outsider
from mpsctl.adapters import procfs
from mpsctl.model.errors import NotReady
from mpsctl.observe import client_environment, facts, gpus, plain, process_facts
from mpsctl.observe.facts import InstanceFacts
from mpsctl.observe.host import HostFacts, look
from mpsctl.store import drains, front_door_notes
from mpsctl.store.front_door_notes import Jammed, Notes
from mpsctl.store.world import World


def one(host: Host, name: str = "0") -> InstanceFacts:
    return look(host.world, [name]).instances[name]


def test_every_value_stands_beside_the_desired_one(live: Host) -> None:
    found = one(live)
    assert [(v.desired.what, v.desired.desired, v.shown, v.in_force) for v in found.values] == [
        ("memory limit of device 0", "4096 MiB", "4G", True),
        ("active thread percentage", "50 %", "50.0", True),
        ("client priority", "1", "1", True),
    ]
    (server,) = found.servers
    assert [(v.desired.what, v.server, v.in_force) for v in server.values] == [
        ("memory limit of device 0", SERVER, True),
        ("active thread percentage", SERVER, True),
    ]
    assert (server.state, server.of_main) == ("ACTIVE", True)


def test_each_client_has_its_limit_and_what_it_holds(live: Host) -> None:
    pid = connect(live, live.running(), CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="1G")
    held, bypassed = one(live).clients
    assert (held.limits_mib, held.memory_mib, held.unlimited) == ([4096], [600], False)
    assert (bypassed.pid, bypassed.unlimited) == (pid, True)
    assert bypassed.bypass is not None
    assert bypassed.bypass.value == "1G"


def test_every_process_on_the_gpu_has_a_kind(live: Host) -> None:
    pid = outsider(live)
    kinds = {each.pid: each.kind for each in one(live).processes[uuid(0)]}
    assert kinds[pid] == process_facts.OUTSIDE
    assert kinds[SERVER] == process_facts.SERVER
    assert list(kinds.values()).count(process_facts.CLIENT) == 1


def test_a_look_changes_nothing(live: Host) -> None:
    before, setters = live.snapshot(), list(live.running().setters)
    look(live.world, isolated=True, deep=True)
    look(live.world)
    assert live.running().setters == setters
    assert live.snapshot() == before
    assert live.systemd.acts == []


def test_all_instances_that_have_a_file_are_looked_at_in_their_natural_order(live: Host) -> None:
    live.desired("10")
    live.desired("2", DeviceMemoryLimit="20")
    found = look(live.world)
    assert list(found.instances) == ["0", "2", "10"]
    assert found.instances["2"].desired is None
    assert found.instances["2"].refused is not None


def test_of_named_instances_these_are_looked_at_and_all_files_are_known(live: Host) -> None:
    live.desired("1")
    found = look(live.world, ["1"])
    assert (list(found.instances), list(found.every)) == (["1"], ["0", "1"])


def test_a_daemon_that_is_stopped_is_not_asked(live: Host) -> None:
    live.processes[live.running().pid].state = "T"
    live.running().before_command = lambda command: pytest.fail("it was asked")
    found = one(live)
    assert found.answer.kind == facts.STOPPED
    assert found.unresponsive
    assert found.clients_unknown


@pytest.mark.parametrize(("how", "kind"), [("not_served", facts.NOT_SERVED), ("unreachable", facts.UNREACHABLE)])
def test_a_daemon_that_does_not_answer_hides_only_what_it_alone_tells(live: Host, how: str, kind: str) -> None:
    setattr(live.running(), how, True)
    found = one(live)
    assert found.answer.kind == kind
    assert found.unresponsive
    assert found.devices
    assert found.main is not None
    assert found.door_open


def test_nvml_that_does_not_answer_hides_only_the_gpus(live: Host) -> None:
    live.nvml.driver_up = False
    found = look(live.world)
    assert found.gpus.unread is not None
    assert found.instances["0"].answer.complete
    assert found.instances["0"].devices == ()


def test_systemd_that_does_not_answer_hides_only_the_units(live: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def show(units: object) -> None:
        raise NotReady("no systemd here")

    monkeypatch.setattr(live.systemd, "show", show)
    found = look(live.world)
    assert found.systemd_unread is not None
    assert found.instances["0"].devices
    door = found.instances["0"].door
    assert door is not None
    assert door.directory == live.own()


def test_another_user_than_root_sees_what_the_open_door_shows(live: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon's environment is closed to others; the front door leads to it all the same."""
    monkeypatch.setattr(procfs, "environment", lambda pid: None)
    found = one(live)
    assert found.main is not None
    assert not found.main.readable
    assert found.answer.complete
    assert all(value.in_force for value in found.every_value)


def test_a_drain_is_a_fact(live: Host) -> None:
    drains.mark(live.world, "0")
    found = one(live)
    assert found.drain is not None
    assert found.drain.run_pid is None


# -- as JSON


def as_json(host: HostFacts) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(plain.instance(host.instances["0"], host.gpus)))
    return data


def test_facts_are_plain_data_under_the_same_names(live: Host) -> None:
    live.desired(DeviceMemoryLimit="4G", GPUs="0 2", ComputeMode="exclusive_process")
    data = as_json(look(live.world))
    assert data["name"] == "0"
    assert data["desired"]["limit"] == "4G"
    assert [one["used_mib"] for one in data["devices"]] == [1282, 616]
    assert data["door_open"] is True
    assert "log" not in data


def test_a_refused_value_is_plain_data_too(live: Host) -> None:
    live.nvml.lost.add(0)
    refused = as_json(look(live.world))["devices_refused"]
    assert set(refused) == {"found", "expected", "remedy"}


def test_foreign_text_in_a_fact_is_escaped_and_cut_and_a_path_is_whole() -> None:
    assert plain.of("a\nb" + "x" * 5000) == "a\\nb" + "x" * 96 + "… (4904 more characters)"
    long = Path("/" + "d" * 150)
    assert plain.of({"where": long}) == {"where": str(long)}
    assert plain.of([Path("/a\nb")]) == ["/a\\nb"]


# -- gpus and env


def test_the_inventory_names_the_instance_of_each_gpu(live: Host) -> None:
    live.desired("broken", GPUs="1", DeviceMemoryLimit="20")
    assert [(row["index"], row["instance"], row["used_mib"]) for row in gpus.inventory(live.world)] == [
        (0, "0", 1282),
        (1, None, 616),
        (2, None, 616),
        (3, None, 616),
    ]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("shell", "export CUDA_MPS_PIPE_DIRECTORY={dir}\nexport CUDA_VISIBLE_DEVICES={uuids}"),
        ("systemd", "CUDA_MPS_PIPE_DIRECTORY={dir}\nCUDA_VISIBLE_DEVICES={uuids}"),
        ("json", '{{"CUDA_MPS_PIPE_DIRECTORY": "{dir}", "CUDA_VISIBLE_DEVICES": "{uuids}"}}'),
    ],
)
def test_what_a_client_exports(host: Host, kind: str, text: str) -> None:
    public = host.desired("pair", GPUs="2 0", DeviceMemoryLimit="4G")
    expected = text.format(dir=public, uuids=f"{uuid(2)},{uuid(0)}")
    assert client_environment.render(client_environment.of(host.world, "pair"), kind) == expected


def test_a_unit_is_known_though_nothing_runs(host: Host) -> None:
    host.desired()
    host.systemd.unit(UNIT).load_state = "masked"
    host.nvml.all[0] = h200(0, compute_mode="exclusive_process")
    found = one(host)
    assert (found.unit.load_state, found.active, found.pid, found.main) == ("masked", False, 0, None)
    assert found.devices[0].gpu.compute_mode == "exclusive_process"


@pytest.mark.parametrize(("started_later", "within_s"), [(None, 5.0), (0, 1.0), (1, 5.0)])
def test_a_daemon_that_the_front_door_found_jammed_is_not_waited_for_long(
    live: Host, monkeypatch: pytest.MonkeyPatch, started_later: Optional[int], within_s: float
) -> None:
    """``started_later``: by how many clock ticks the noted process is another one with the same pid; None: none is."""
    pid = live.systemd.unit(UNIT).main_pid
    if started_later is not None:
        began = live.processes[pid].started_at + started_later
        front_door_notes.write(live.places, "0", Notes(jammed=Jammed(pid, began, live.world.now_s())))
    bounds: list[float] = []

    def hurried(world: World, end_s: float, _pid: int = 0) -> World:
        bounds.append(end_s - world.now_s())
        return world

    monkeypatch.setattr(World, "hurried", hurried)
    look(live.world, ["0"], isolated=True)
    assert bounds == [pytest.approx(within_s)]
