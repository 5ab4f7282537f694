"""What 0.1.0 and 0.2.0 left on a host is found and understood: names on disk are no words to be replaced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes import Host, h200
from mpsctl.adapters import procfs
from mpsctl.model.places import Places
from mpsctl.store import drains, limit_bypasses, measured, record, saved_compute_modes, unresponsive

RUNTIME = "run/mps-fleet/0"


def left(host: Host, place: str, text: str) -> None:
    """A file as the earlier release wrote it."""
    path = host.places.root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("place", "path"),
    [
        (Places().host_lock, "/run/mps-fleet/.turn"),
        (Places().runtime("0"), "/run/mps-fleet/0"),
        (Places().state, "/var/lib/mps-fleet"),
        (Places().cache, "/var/cache/mps-fleet"),
        (Places().conf("0"), "/etc/mps/0.conf"),
        (Places().program, "/usr/local/bin/mpsctl"),
        (Places().units, "/etc/systemd/system"),
    ],
)
def test_a_place_is_where_it_was(place: Path, path: str) -> None:
    assert str(place) == path


def test_an_operators_drain_is_still_in_force(host: Host) -> None:
    since = "2026-11-29 10:00:00 UTC"
    left(host, f"{RUNTIME}/drained.json", json.dumps({"since": since, "run_pid": None, "run_started_at": None}))
    found = drains.read(host.world, "0")
    assert found is not None
    assert found.since == since


def test_a_clients_grace_goes_on(host: Host) -> None:
    row = {"pid": 7, "started_at": 3, "first_seen_s": 12.5, "terminated": False}
    left(host, f"{RUNTIME}/escapes.json", json.dumps([row]))
    assert limit_bypasses.read(host.world, "0") == {7: limit_bypasses.LimitBypass(7, 3, 12.5)}
    limit_bypasses.forget(host.world, "0")
    assert not (host.places.root / RUNTIME / "escapes.json").exists()


def test_a_daemon_that_answered_nothing_is_remembered(host: Host) -> None:
    left(host, f"{RUNTIME}/silent.json", json.dumps({"pid": 7, "started_at": 3}))
    assert unresponsive.remembered(host.world, "0", 7, 3)


def test_what_is_in_force_is_known(host: Host) -> None:
    pid = host.process("nvidia-cuda-mps", "nvidia-cuda-mps-control -f")
    started_at = procfs.started_at(pid)
    row = {
        "pid": pid,
        "started_at": started_at,
        "since_s": 5.0,
        "limits_mib": [4096, None],
        "thread_percentage": 50.0,
        "client_priority": None,
    }
    left(host, f"{RUNTIME}/in-force.json", json.dumps(row))
    found = record.read(host.world, "0", pid)
    assert found is not None
    assert (found.limits_mib, found.thread_percentage) == ((4096, None), 50.0)


def test_short_lives_are_counted_on(host: Host) -> None:
    left(host, f"{RUNTIME}/starts.json", '{"short_lives": 3}')
    assert record.short_lives(host.world, "0") == 3


def test_the_mode_from_before_the_first_start_comes_back(host: Host) -> None:
    gpu = h200(0)
    left(host, f"var/lib/mps-fleet/former-compute-modes/{gpu.uuid}", "default\n")
    assert saved_compute_modes.read(host.world, gpu) == "default"


def test_measured_figures_are_kept(host: Host) -> None:
    row = {
        "gpu_name": "NVIDIA H200",
        "driver": "580.95.05",
        "thread_percentage": 100.0,
        "context_mib": 514,
        "server_mib": 30,
        "least_limit_mib": 527,
        "reserved_mib": 0,
        "multiprocessors": 132,
    }
    left(host, "var/lib/mps-fleet/measured.json", json.dumps({"format": 1, "measured": [row]}))
    assert [one.context_mib for one in measured.read(host.world)] == [514]
