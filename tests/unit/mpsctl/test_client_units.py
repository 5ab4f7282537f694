"""Units that are wired to an instance: drop-ins come, change and go with what is desired, and nothing else does."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from converging import Fleet, conf
from fakes import Host, uuid
from mpsctl.adapters import procfs
from mpsctl.converge import removal
from mpsctl.converge.answer import Answer
from mpsctl.model.client_unit import check_clients
from mpsctl.model.errors import BadValue

API = {"unit": "api.service", "instance": "0"}


def run(fleet: Fleet, *clients: dict[str, Any], check: bool = False) -> Answer:
    fleet.more = {"clients": list(clients)}
    return fleet.run(check, {"0": conf(fleet, "0"), "1": conf(fleet, "1", ActiveThreadPercentage=50)})


def drop_in(fleet: Fleet, unit: str = "api.service", user: bool = False) -> Path:
    places = fleet.host.places
    return (places.user_units if user else places.units) / f"{unit}.d/mps-fleet.conf"


def wants(fleet: Fleet, name: str = "0") -> Path:
    return fleet.host.places.units / f"mps-control@{name}.service.d/mps-fleet-clients.conf"


def lines(path: Path) -> list[str]:
    first, *rest = path.read_text().splitlines()
    assert first.startswith("# Managed by mps-fleet")
    return [line for line in rest if not line.startswith("#")]


@pytest.fixture
def converged(fleet: Fleet) -> Fleet:
    assert run(fleet).error is None
    return fleet


def test_a_unit_of_the_system(converged: Fleet) -> None:
    answer = run(converged, API)
    assert answer.error is None
    assert lines(drop_in(converged)) == [
        "[Unit]",
        "After=mps-control@0.service mps-front-door@0.socket",
        "PartOf=mps-control@0.service",
        "[Service]",
        f"EnvironmentFile={converged.host.places.client_environment('0')}",
        "ExecStop=-+/usr/local/bin/mpsctl evict --unit %n",
    ]
    assert lines(wants(converged)) == ["[Unit]", "Wants=api.service"]
    assert answer.actions == [f"write {drop_in(converged)}", f"write {wants(converged)}", "reload systemd's units"]
    assert run(converged, API).actions == []


def test_check_says_what_a_run_does_and_does_nothing(converged: Fleet) -> None:
    checked = run(converged, API, check=True)
    assert not drop_in(converged).exists()
    assert run(converged, API).diff == checked.diff
    before = converged.host.snapshot()
    checked = run(converged, check=True)
    assert converged.host.snapshot() == before
    assert run(converged).diff == checked.diff


def test_a_run_names_the_unit_with_its_drop_in(converged: Fleet) -> None:
    answer = run(converged, {"unit": "apii.service", "instance": "0"})
    named = [one["name"] for step in answer.steps for one in step["statements"] if one["what"] == "file-written"]
    assert named == ["apii.service.d/mps-fleet.conf", "mps-control@0.service.d/mps-fleet-clients.conf"]


def test_changed_and_taken_off_again_with_its_folder(converged: Fleet) -> None:
    run(converged, API, {"unit": "web.service", "instance": "1"})
    answer = run(converged, {**API, "instance": 1})
    assert answer.error is None
    assert "PartOf=mps-control@1.service" in lines(drop_in(converged))
    assert not wants(converged).exists()
    assert not drop_in(converged, "web.service").parent.exists()
    assert lines(wants(converged, "1"))[-1] == "Wants=api.service"
    run(converged)
    assert not drop_in(converged).parent.exists()
    assert not wants(converged, "1").parent.exists()
    assert run(converged).actions == []
    acts = [act for act in converged.host.systemd.acts if "api.service" in act or "web.service" in act]
    assert acts == [], "no run starts, stops or restarts a unit"


def test_what_a_client_has_less_than_its_instance_gives(converged: Fleet) -> None:
    run(converged, {**API, "instance": "1", "memory_limit": "2G", "active_thread_percentage": 25})
    assert lines(drop_in(converged))[-3:-1] == [
        "Environment=CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2048M",
        "Environment=CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25",
    ]


@pytest.mark.parametrize(
    ("client", "said"),
    [
        ({**API, "instance": "7"}, "the instance 7"),
        ({**API, "memory_limit": "5G"}, "memory_limit 5G"),
        ({**API, "instance": "1", "active_thread_percentage": 60}, "active_thread_percentage 60 %"),
        ({"unit": "api.service", "gpu": "2"}, "which no instance serves"),
        ({"unit": "api.service", "gpu": "9"}, "mps_clients: found mps_clients[api.service]: GPU 9, expected one of"),
    ],
)
def test_what_the_host_cannot_give_is_refused_before_anything_changes(
    converged: Fleet, client: dict[str, Any], said: str
) -> None:
    before = converged.host.snapshot()
    answer = run(converged, client)
    assert answer.refused is not None
    assert said in answer.refused
    assert converged.host.snapshot() == before


def test_a_gpu_names_its_instance(converged: Fleet) -> None:
    run(converged, {"unit": "api.service", "gpu": 1}, {"unit": "web.service", "gpu": uuid(0)})
    assert "PartOf=mps-control@1.service" in lines(drop_in(converged))
    assert "PartOf=mps-control@0.service" in lines(drop_in(converged, "web.service"))


def test_a_template_is_not_started_and_a_kept_unit_is_no_part_of_mps(converged: Fleet) -> None:
    run(converged, {"unit": "worker@.service", "instance": "0"}, {**API, "when_mps_stops": "keep"})
    assert "PartOf=mps-control@0.service" in lines(drop_in(converged, "worker@.service"))
    assert not any(line.startswith("PartOf") for line in lines(drop_in(converged)))
    assert not wants(converged).exists()


def test_an_end_within_a_time_of_its_own(converged: Fleet) -> None:
    run(converged, {**API, "end_within_s": 30})
    assert lines(drop_in(converged))[-2:] == [
        "ExecStop=-+/usr/local/bin/mpsctl evict --unit %n --end --timeout 30",
        "TimeoutStopSec=40",
    ]


def test_a_users_unit_and_the_managers_that_are_there(converged: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    host, sent = converged.host, []
    manager = host.process("systemd", "/lib/systemd/systemd --user", {}, 1000)
    host.processes[manager].group = "/user.slice/user-1000.slice/user@1000.service//init.scope"
    program = host.process("systemd", "systemd, by name alone", {}, 1000)
    host.processes[program].group = "/user.slice/user-1000.slice/user@1000.service//app.slice/x.service"
    monkeypatch.setattr(procfs, "send", lambda pid, at, number: sent.append((pid, number)))
    answer = run(converged, {**API, "scope": "user"})
    assert lines(drop_in(converged, user=True)) == [
        "[Service]",
        f"EnvironmentFile={host.places.client_environment('0')}",
    ]
    assert answer.actions[-1] == "reload the units of users' own managers"
    assert sent == [(manager, signal.SIGHUP)]
    run(converged)
    assert not drop_in(converged, user=True).parent.exists()
    assert len(sent) == 2


def test_others_drop_ins_are_left_alone(converged: Fleet) -> None:
    theirs = drop_in(converged).parent / "override.conf"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("[Service]\nNice=5\n")
    run(converged, API)
    run(converged)
    assert theirs.read_text() == "[Service]\nNice=5\n"
    assert not drop_in(converged).exists()
    drop_in(converged).write_text("[Service]\nNice=6\n")
    answer = run(converged, API)
    assert answer.error is not None
    assert str(drop_in(converged)) in answer.error
    run(converged)
    assert removal.remove(converged.host.world, False).error is None
    assert drop_in(converged).read_text() == "[Service]\nNice=6\n"


def test_a_removal_takes_them_off(converged: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    run(converged, API, {**API, "scope": "user"})
    half = drop_in(converged).parent / ".mps-fleet.conf.123.new"
    half.write_text("# Managed by mps-fleet")
    assert removal.remove(converged.host.world, False).error is None
    for path in (drop_in(converged), wants(converged), drop_in(converged, user=True)):
        assert not path.exists()
    assert not half.exists()
    assert removal.remove(converged.host.world, False).actions == []


def test_limits_alone_change_no_unit(converged: Fleet) -> None:
    fleet = converged
    fleet.more = {"atomic": True, "clients": [API]}
    answer = fleet.run(False, {"0": conf(fleet, "0"), "1": conf(fleet, "1", ActiveThreadPercentage=50)})
    assert answer.refused is not None
    assert not drop_in(fleet).exists()


def test_only_root_may_be_able_to_change_what_root_runs(converged: Fleet) -> None:
    folder = drop_in(converged).parent
    folder.mkdir(parents=True)
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    os.chown(folder, 1000, 1000)
    answer = run(converged, API)
    assert answer.error is not None
    assert not drop_in(converged).exists()


# -- what the variable may say


@pytest.mark.parametrize(
    "value",
    [
        None,
        "api.service",
        [None],
        [{}],
        [{"unit": "api.service"}],
        [{"unit": "api", "instance": "0"}],
        [{"unit": "../api.service", "instance": "0"}],
        [{"unit": "a b.service", "instance": "0"}],
        [{"unit": "batch.slice", "instance": "0"}],
        [{"unit": "mps-control@0.service", "instance": "0"}],
        [{"unit": "api.service", "instance": "0", "gpu": "0"}],
        [{"unit": "api.service", "instance": "a/b"}],
        [{"unit": "api.service", "gpu": "first"}],
        [{**API, "memory": "2G"}],
        [{**API, "memory_limit": "2GB"}],
        [{**API, "active_thread_percentage": 0}],
        [{**API, "scope": "global"}],
        [{**API, "when_mps_stops": "restart"}],
        [{**API, "end_within_s": 4}],
        [{**API, "end_within_s": True}],
        [{**API, "scope": "user", "end_within_s": 30}],
        [{**API, "scope": "user", "when_mps_stops": "keep"}],
        [API, API],
    ],
)
def test_bad_values(value: object) -> None:
    with pytest.raises(BadValue) as error:
        check_clients(value)
    assert "\n" not in str(error.value)


def test_good_values_name_their_unit_once_a_scope() -> None:
    found = check_clients([API, {**API, "scope": "user"}, {"unit": "worker@.service", "gpu": 0}])
    assert [(one.unit, one.scope, one.is_template) for one in found] == [
        ("api.service", "system", False),
        ("api.service", "user", False),
        ("worker@.service", "system", True),
    ]


def test_a_host_without_any_is_left_as_it_was(host: Host) -> None:
    made = Fleet(host)
    made.converge(_0=conf(made))
    assert not host.places.user_units.exists()
