"""An instance whose file is damaged or gone: its stop, its drain and its GPUs go by the last good desired state."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable

import pytest

from fakes import Host
from mpsctl.lifecycle import apply, drain, prepare, stop
from mpsctl.model.errors import BadValue
from mpsctl.store import drains, last_good, saved_compute_modes
from shell import Shell

UNIT = "mps-control@0.service"


def _half(path: Path) -> None:
    path.write_text("# Managed by mps-fleet\n[Dae")


def _empty(path: Path) -> None:
    path.write_text("")


def _zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _no_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")


def _gone(path: Path) -> None:
    path.unlink()


def _a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _a_link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("nothing")


def _unknown_key(path: Path) -> None:
    path.write_text(path.read_text().replace("[Daemon]", "[Daemon]\nGroups=staff"))


DAMAGES = [_half, _empty, _zeros, _no_text, _gone, _a_folder, _a_fifo, _a_link_to_nothing, _unknown_key]
each_damage = pytest.mark.parametrize("damage", DAMAGES, ids=lambda one: one.__name__.strip("_"))
Damage = Callable[[Path], None]


def running(host: Host, **desired: object) -> int:
    host.desired("0", ComputeMode="exclusive_process", StopTimeoutSec=7, **desired)
    return host.start().pid


@each_damage
@pytest.mark.parametrize("leaves", [True, False])
def test_a_stop_gives_clients_their_grace_and_the_gpu_its_mode(host: Host, damage: Damage, leaves: bool) -> None:
    running(host)
    daemon, client = host.running(), host.client()
    daemon.start_server(9001, clients=[client])
    if leaves:
        host.clock.when(5, lambda: host.end(client))
    damage(host.places.conf("0"))
    begun_s = host.clock.now_s
    host.stop()
    assert daemon.terminated == ([] if leaves else [client])
    assert host.clock.now_s - begun_s >= (5 if leaves else 7)
    assert any("quit" in command for command in daemon.commands)
    assert host.nvml.gpu(0).compute_mode == "default"


@each_damage
def test_a_restart_of_systemds_leaves_the_mode_and_has_clients_wait(host: Host, damage: Damage) -> None:
    pid = running(host)
    damage(host.places.conf("0"))
    host.kill(pid)
    stop.release(host.world, "0")
    assert host.nvml.gpu(0).compute_mode == "exclusive_process"
    assert not host.door_is_open()


def test_nothing_is_started_or_set_by_it(host: Host) -> None:
    pid = running(host)
    _half(host.places.conf("0"))
    with pytest.raises(BadValue):
        apply.apply(host.world, "0", pid)
    host.stop()
    with pytest.raises(BadValue):
        prepare.prepare(host.world, "0")


@each_damage
def test_a_daemon_of_which_nothing_was_kept_is_stopped_by_what_it_runs_with(host: Host, damage: Damage) -> None:
    """An earlier release started it: the grace is the default one."""
    running(host)
    last_good.forget(host.world, "0")
    daemon, client = host.running(), host.client()
    daemon.start_server(9001, clients=[client])
    host.clock.when(15, lambda: host.end(client))
    damage(host.places.conf("0"))
    host.stop()
    assert daemon.terminated == []
    assert host.nvml.gpu(0).compute_mode == "default"


def test_what_was_kept_and_is_damaged_too_counts_as_nothing(host: Host) -> None:
    running(host)
    (host.places.runtime("0") / "last-good.conf").write_text("half a")
    _half(host.places.conf("0"))
    host.stop()
    assert host.nvml.gpu(0).compute_mode == "default"


def test_without_its_environment_either_the_daemon_itself_tells_its_gpus(host: Host) -> None:
    pid = running(host)
    last_good.forget(host.world, "0")
    host.places.daemon_environment("0").unlink()
    daemon, client = host.running(), host.client()
    daemon.start_server(9001, clients=[client])
    _half(host.places.conf("0"))
    assert stop.stop(host.world, "0", pid)
    assert daemon.terminated == [client]


def test_an_instance_that_never_was_is_refused(host: Host) -> None:
    with pytest.raises(BadValue, match=r"no .*0\.conf"):
        stop.release(host.world, "0")


def test_the_last_reload_is_what_counts(host: Host) -> None:
    pid = running(host)
    host.desired("0", ComputeMode="exclusive_process", StopTimeoutSec=3)
    apply.apply(host.world, "0", pid)
    client = host.client()
    host.running().start_server(9001, clients=[client])
    _half(host.places.conf("0"))
    begun_s = host.clock.now_s
    host.stop()
    assert 3 <= host.clock.now_s - begun_s < 7


# -- drains


@each_damage
def test_a_drain_and_its_end_work(host: Host, mpsctl: Shell, damage: Damage) -> None:
    running(host, DeviceMemoryLimit="4G")
    damage(host.places.conf("0"))
    assert mpsctl("drain", "0", "--timeout", "1") == 0
    assert not host.door_is_open()
    assert mpsctl("undrain", "0") == 0
    assert host.door_is_open()


def test_an_undrain_that_lets_nobody_in_says_what_does(host: Host, mpsctl: Shell) -> None:
    running(host)
    assert mpsctl("drain", "0", "--timeout", "1") == 0
    host.running().not_served = True
    assert mpsctl("undrain", "0") != 0
    assert f"systemctl reload {UNIT}" in mpsctl.err
    assert drains.read(host.world, "0") is None
    host.running().not_served = False
    assert host.systemd.act("reload", [UNIT]) is None
    assert host.door_is_open()


def test_an_undrain_while_the_daemon_ends_is_one_for_its_next_start(host: Host) -> None:
    pid = running(host)
    drain.drain(host.world, [last_good.load(host.world, "0")], 1)
    host.running().before_command = lambda command: host.kill(pid)
    assert drain.undrain(host.world, "0") == []
    host.start()
    assert host.door_is_open()


# -- GPUs


@each_damage
def test_the_gpus_of_an_instance_stay_its_own(host: Host, damage: Damage) -> None:
    running(host)
    gpus = host.nvml.gpus()
    damage(host.places.conf("0"))
    names = ["0"]
    assert saved_compute_modes.had_by(host.world, names, gpus) == {gpus[0].uuid}
