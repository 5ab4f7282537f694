"""metrics: what was looked at is counted, what could not be is absent, and nobody else's text becomes a label."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import pytest
from prometheus_client.parser import text_string_to_metric_families

from door import ALICE, Door
from fakes import Host, uuid
from judging import connect, judge, outsider
from mpsctl.checks.judgement import HEALTH
from mpsctl.metrics import of_host, of_instance
from mpsctl.metrics.families import BY_NAME, FAMILIES
from mpsctl.model.shares import Whose
from mpsctl.observe.facts import GpuFacts, Unread
from mpsctl.store import drains, front_door_notes
from mpsctl.store.front_door_notes import Notes
from shell import Shell

Series = dict[str, float]
GIB = 1 << 30


def text_of(host: Host, by: Any = None) -> str:
    return of_host.samples(judge(host, verb=HEALTH), 1000.0, 0.25, by).text()


def series(text: str) -> Series:
    """What Prometheus' own parser reads, by the name with its labels in order."""
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items()))
            assert key not in found, f"{key} stands twice"
            found[key] = sample.value
    return found


def of(host: Host, by: Any = None) -> Series:
    return series(text_of(host, by))


@pytest.fixture
def served(live: Host) -> Host:
    """Instance 0 with a limit of 4 GiB and half of the threads, and two clients of 600 MiB."""
    connect(live, live.running())
    return live


def test_a_host_that_is_well(served: Host) -> None:
    found = of(served)
    gpu = uuid(0)
    expected = {
        "mps_daemon_up mps_instance=0": 1,
        "mps_daemon_answers mps_instance=0": 1,
        "mps_drained mps_instance=0": 0,
        "mps_restart_pending mps_instance=0": 0,
        "mps_clients mps_instance=0": 2,
        "mps_clients_without_limit mps_instance=0": 0,
        "mps_servers mps_instance=0 state=active": 1,
        "mps_servers mps_instance=0 state=fault": 0,
        f"mps_limit_desired_bytes gpu_uuid={gpu} mps_instance=0": 4 * GIB,
        f"mps_limit_in_force_bytes gpu_uuid={gpu} mps_instance=0": 4 * GIB,
        f"mps_clients_memory_bytes gpu_uuid={gpu} mps_instance=0": 1200 << 20,
        f"mps_client_memory_largest_bytes gpu_uuid={gpu} mps_instance=0": 600 << 20,
        "mps_active_thread_desired_ratio mps_instance=0": 0.5,
        "mps_active_thread_ratio mps_instance=0": 0.5,
        f"mps_instance_gpu_info gpu_uuid={gpu} mps_instance=0": 1,
        f"mps_gpu_compute_mode gpu_uuid={gpu} mode=exclusive_process": 1,
        f"mps_gpu_compute_mode gpu_uuid={gpu} mode=default": 0,
        "mps_front_door_up mps_instance=0": 1,
        "mps_processes_outside mps_instance=0 reason=pipe-directory-unset": 0,
        "mps_last_look_timestamp_seconds": 1000,
        "mps_last_look_duration_seconds": 0.25,
        "mps_check_level check=gpus-answer mps_instance=": 0,
        "mps_check_level check=daemon-answers mps_instance=0": 0,
    }
    assert {key: found.get(key) for key in expected} == expected


def test_every_family_has_its_help_and_its_labels(served: Host) -> None:
    assert len(BY_NAME) == len(FAMILIES)
    for family in text_string_to_metric_families(text_of(served)):
        known = BY_NAME[family.name + ("_total" if family.type == "counter" else "")]
        assert family.type == known.kind
        assert family.documentation == known.help
        assert all(tuple(sample.labels) == known.labels for sample in family.samples)


def test_names_are_of_the_form_that_prometheus_asks_for() -> None:
    for family in FAMILIES:
        assert re.fullmatch(r"mps(_[a-z]+)+", family.name)
        assert family.name.endswith("_total") == (family.kind == "counter")
        forbidden = {"pid", "user", "uid", "command"}
        assert not forbidden & set(family.labels)


NVML = ("mps_gpu_", "mps_clients_memory", "mps_client_memory", "mps_processes_outside")


def test_without_nvml_nothing_that_it_tells_is_there(served: Host) -> None:
    report = judge(served, verb=HEALTH)
    report.facts.gpus = GpuFacts(unread=Unread("NVML", "no answer"))
    one = report.facts.instances["0"]
    one.devices, one.processes, one.cards = (), {}, {}
    found = series(of_host.samples(report, 1.0, 0.1).text())
    assert [key for key in found if key.startswith(NVML)] == []
    assert found["mps_clients mps_instance=0"] == 2, "the daemon told it all the same"


def test_memory_that_nvml_does_not_tell_is_absent_and_hides_nothing_else(served: Host) -> None:
    assert served.nvml.held_mib is not None
    pid = next(iter(served.nvml.held_mib[uuid(0)]))
    served.nvml.held_mib[uuid(0)][pid] = None
    found = of(served)
    assert [key for key in found if "memory_bytes" in key and "mps_client" in key] == []
    assert found["mps_clients mps_instance=0"] == 2


def test_a_client_that_nvml_does_not_list_makes_the_sum_unknown(served: Host) -> None:
    assert served.nvml.held_mib is not None
    served.nvml.held_mib[uuid(0)].popitem()
    assert not [key for key in of(served) if key.startswith(("mps_clients_memory", "mps_client_memory"))]


OF_DAEMON = ("mps_clients ", "mps_servers", "mps_limit_", "mps_clients_without", "mps_active_thread_ratio")


def test_a_daemon_that_does_not_answer_has_no_clients_to_tell(served: Host) -> None:
    served.running().not_served = True
    found = of(served)
    assert [key for key in found if key.startswith(OF_DAEMON)] == []
    assert found["mps_daemon_up mps_instance=0"] == 1
    assert found["mps_daemon_answers mps_instance=0"] == 0
    assert found["mps_check_level check=daemon-answers mps_instance=0"] == 2
    assert found["mps_level mps_instance=0"] == 2


def test_a_daemon_that_is_down(served: Host) -> None:
    served.stop()
    found = of(served)
    assert found["mps_daemon_up mps_instance=0"] == 0
    assert "mps_daemon_answers mps_instance=0" not in found
    assert [key for key in found if key.startswith(OF_DAEMON)] == []


def test_a_file_that_is_refused_leaves_its_level(served: Host) -> None:
    (served.places.configuration / "1.conf").write_text("[Instance]\nGPUs=what\n")
    found = of(served)
    assert found["mps_level mps_instance=1"] == 2
    mine = [key for key in found if "mps_instance=1" in key]
    assert not [key for key in mine if not key.startswith(("mps_level", "mps_check", "mps_in_"))]


def test_who_is_outside_is_counted_by_a_word_of_the_list(served: Host) -> None:
    outsider(served)
    outsider(served, CUDA_MPS_PIPE_DIRECTORY="/tmp/elsewhere")
    found = {key: value for key, value in of(served).items() if key.startswith("mps_processes_outside") and value}
    assert found == {
        "mps_processes_outside mps_instance=0 reason=pipe-directory-unset": 1,
        "mps_processes_outside mps_instance=0 reason=other-pipe-directory": 1,
    }


def test_a_limit_that_is_not_in_force_is_told_by_its_absence_or_its_size(served: Host) -> None:
    served.running().ask(["set_default_device_pinned_mem_limit 0 8G"])
    found = of(served)
    desired = f"mps_limit_desired_bytes gpu_uuid={uuid(0)} mps_instance=0"
    in_force = f"mps_limit_in_force_bytes gpu_uuid={uuid(0)} mps_instance=0"
    assert found[desired] == 4 * GIB
    assert found.get(in_force) != 4 * GIB


@pytest.mark.parametrize(("in_force_s", "told"), [(1.0, 3), (61.0, 0)])
def test_starts_that_did_not_last_are_over_once_one_has(served: Host, in_force_s: float, told: int) -> None:
    report = judge(served, verb=HEALTH)
    one = report.facts.instances["0"]
    one.short_lives, one.in_force_s = 3, in_force_s
    found = series(of_host.samples(report, 1.0, 0.1).text())
    assert found["mps_daemon_short_lives mps_instance=0"] == told


def test_a_drain(served: Host) -> None:
    drains.mark(served.world, "0")
    assert of(served)["mps_drained mps_instance=0"] == 1


def test_what_the_door_counted(served: Host) -> None:
    counts = {"let-in": {"": 7}, "refused": {"drained": 2}, "gave-up": {"no-place": 1}, "turned-away": {"silent": 4}}
    front_door_notes.write(served.places, "0", Notes(counts=counts))
    found = of(served)
    assert found["mps_clients_let_in_total mps_instance=0"] == 7
    assert found["mps_clients_refused_total mps_instance=0 reason=drained"] == 2
    assert found["mps_clients_gave_up_total mps_instance=0 reason=no-place"] == 1
    assert found["mps_connections_turned_away_total mps_instance=0 reason=silent"] == 4


def test_where_nobody_has_come_since_boot_the_count_begins_with_0_and_where_notes_are_lost_with_none(
    served: Host,
) -> None:
    assert of(served)["mps_clients_let_in_total mps_instance=0"] == 0
    front_door_notes.path(served.places, "0").write_text("damaged")
    assert "mps_clients_let_in_total mps_instance=0" not in of(served)


@pytest.mark.parametrize(
    "damage", ['{"counts": 3}', '{"counts": {"refused": {"drained": "x", "no-place": true, "a": -1}}}']
)
def test_counts_that_are_damaged_are_left_out(served: Host, damage: str) -> None:
    front_door_notes.path(served.places, "0").write_text(damage)
    assert not [key for key in of(served) if key.startswith("mps_clients_refused")]


def test_the_door_counts_from_zero_and_goes_on_after_its_end(door: Door) -> None:
    door.judge.refused(door.visitor(), "drained", "drained", 0)
    door.judge.turned_away(4711, ALICE, "silent", "it said nothing", 3)
    door.end()
    counts = front_door_notes.read(door.host.places, "0").counts
    assert counts["refused"]["drained"] == 1
    assert counts["refused"]["not-in-group"] == 0
    assert counts["let-in"] == {"": 0}
    assert counts["turned-away"] == {"silent": 3}
    door.begin()
    door.judge.refused(door.visitor(), "drained", "drained", 0)
    door.end()
    assert front_door_notes.read(door.host.places, "0").counts["refused"]["drained"] == 2


def test_a_name_that_somebody_chose_stays_one_label(served: Host) -> None:
    name = 'H200"} 1\nmps_daemon_up{mps_instance="9"} 1\\'
    served.nvml.all[0] = replace(served.nvml.all[0], name=name)
    found = of(served)
    assert not [key for key in found if "mps_instance=9" in key]
    assert [key for key in found if key.startswith("mps_gpu_info")]


def test_by_unit_only_where_asked_for_and_never_without_end(served: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(of_instance._MOST_GROUPS + 10):
        connect(served, served.running())

    def whose(pid: int, uid: int) -> Whose:
        return Whose(uid, f"user.slice/job-{pid}.service")

    monkeypatch.setattr("mpsctl.adapters.control_groups.whose", whose)
    assert not [key for key in of(served) if key.startswith("mps_unit")]
    found = {key: value for key, value in of(served, "unit").items() if key.startswith("mps_unit_clients")}
    assert len(found) == of_instance._MOST_GROUPS + 1
    assert found["mps_unit_clients mps_instance=0 unit=(others)"] == 12
    assert sum(found.values()) == of_instance._MOST_GROUPS + 12


def test_the_page_of_metrics_is_made_from_the_table() -> None:
    script = Path(__file__).parents[3] / "scripts" / "document_metrics.py"
    assert subprocess.run([sys.executable, script, "--check"], check=False).returncode == 0


@pytest.mark.parametrize("directory", [None, "/srv/metrics"])
def test_health_writes_them_where_it_is_told_and_takes_them_away_where_not(
    served: Host, mpsctl: Shell, directory: Optional[str]
) -> None:
    place = served.places.root / "srv/metrics"
    place.mkdir(parents=True)
    assert mpsctl("health", "--metrics-directory", "/srv/metrics") == 0
    assert series((place / "mps.prom").read_text())["mps_clients mps_instance=0"] == 2
    assert mpsctl("health", *(["--metrics-directory", directory] if directory else [])) == 0
    assert (place / "mps.prom").exists() == (directory is not None)


def test_the_verb_prints_them_as_text_and_as_json(served: Host, mpsctl: Shell) -> None:
    assert mpsctl("metrics") == 0
    text = series(mpsctl.out)
    answer = mpsctl.json("metrics")
    assert answer["format"] == 1
    read = {(one["name"], one["labels"].get("mps_instance")): one["value"] for one in answer["samples"]}
    assert read["mps_clients", "0"] == text["mps_clients mps_instance=0"] == 2
    assert len(answer["samples"]) == len(text)


def test_health_refuses_a_directory_that_metrics_cannot_be_in(mpsctl: Shell) -> None:
    assert mpsctl("health", "--metrics-directory", "relative") == 2
