"""condition and prepare: what happens before a daemon starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

import pytest

from fakes import Host, h200, made_as_by_a_daemon, split_by_mig, uuid
from mpsctl.adapters import hardware
from mpsctl.lifecycle import prepare
from mpsctl.model.errors import BadValue, MpsctlError, NotInForce, NotReady
from mpsctl.store import record, saved_compute_modes


def former(host: Host, index: int = 0) -> object:
    return saved_compute_modes.read(host.world, host.nvml.gpu(index))


# -- condition: looked at once, so only what cannot come late counts


def test_a_host_with_daemon_and_gpu_is_not_skipped(host: Host) -> None:
    assert prepare.condition(host.world, "0") is None


def test_a_host_without_the_daemon_is_skipped_with_the_reason(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "binary", lambda name: None)
    assert "nvidia-cuda-mps-control is not installed" in str(prepare.condition(host.world, "0"))


def test_a_host_without_a_gpu_on_the_bus_is_skipped_with_the_reason(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "nvidia_on_bus", lambda: False)
    assert prepare.condition(host.world, "0") == "no NVIDIA GPU is on the PCI bus"


def test_a_driver_that_is_not_up_is_no_reason_to_skip(host: Host) -> None:
    host.nvml.driver_up = False
    assert prepare.condition(host.world, "0") is None


def test_an_instance_that_has_run_is_never_skipped_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd does not try a unit again that is skipped at an automatic restart (252, 257)."""
    host.desired()
    host.start()
    monkeypatch.setattr(hardware, "nvidia_on_bus", lambda: False)
    assert prepare.condition(host.world, "0") is None


# -- the driver


def test_a_driver_that_comes_late_is_waited_for(host: Host) -> None:
    host.desired(DriverTimeoutSec=90)
    host.nvml.driver_up = False

    def load() -> None:
        host.nvml.driver_up = True

    host.clock.when(20, load)
    assert prepare.prepare(host.world, "0").devices == (uuid(0),)
    assert 20 <= sum(host.clock.slept_s) < 21


def test_what_is_waited_for_is_said_once(host: Host) -> None:
    host.desired(DriverTimeoutSec=90)
    host.nvml.driver_up = False
    with pytest.raises(NotReady):
        prepare.prepare(host.world, "0")
    assert [line for line in host.said if line.startswith("waiting up to 90 s")] == host.said


def test_a_driver_that_never_comes_is_given_up_within_the_bound_with_its_words(host: Host) -> None:
    host.desired(DriverTimeoutSec=5)
    host.nvml.driver_up = False
    with pytest.raises(NotReady, match="after 5 s: NVML does not answer: Driver Not Loaded"):
        prepare.prepare(host.world, "0")
    assert sum(host.clock.slept_s) <= 5


def test_a_gpu_that_comes_late_is_waited_for(host: Host) -> None:
    host.desired(DriverTimeoutSec=10)
    host.nvml.lost = {0}
    host.clock.when(3, host.nvml.lost.clear)
    assert prepare.prepare(host.world, "0").devices == (uuid(0),)


def test_a_gpu_that_stays_away_is_given_up_with_what_the_host_has(host: Host) -> None:
    host.desired(DriverTimeoutSec=5)
    host.nvml.lost = {0}
    with pytest.raises(NotReady) as failure:
        prepare.prepare(host.world, "0")
    assert str(failure.value).startswith("after 5 s: found GPU 0, expected one of this host's: 1 = ")
    assert not list((host.pipe_root / "0").glob(".*"))


def test_the_loss_of_a_gpu_does_not_touch_its_neighbours(host: Host) -> None:
    host.desired("1")
    host.nvml.lost = {0}
    assert prepare.prepare(host.world, "1").devices == (uuid(1),)


def test_a_value_that_can_never_fit_is_not_waited_for(host: Host) -> None:
    host.desired(DeviceMemoryLimit="200G", DriverTimeoutSec=90)
    with pytest.raises(BadValue, match="at most the 143771 MiB"):
        prepare.prepare(host.world, "0")
    assert host.clock.slept_s == []


@pytest.mark.parametrize("name", ["0", "g"])
def test_indices_uuids_and_addresses_are_resolved_at_every_start(host: Host, name: str) -> None:
    """After a change of hardware an index means another GPU; what the daemon gets is always the UUID."""
    host.desired(name, GPUs="0000:12:00.0 0")
    assert prepare.prepare(host.world, name).devices == (uuid(2), uuid(0))


# -- the compute mode


def test_the_desired_compute_mode_is_set_and_the_former_one_kept(host: Host) -> None:
    host.desired(ComputeMode="exclusive_process")
    host.start()
    assert host.nvml.gpu(0).compute_mode == "exclusive_process"
    assert host.nvml.modes_set == [(0, "exclusive_process")]
    assert former(host) == "default"


def test_the_saved_compute_mode_is_recorded_once_and_never_overwritten_by_ours(host: Host) -> None:
    host.nvml.all[0] = h200(0, compute_mode="prohibited")
    host.desired(ComputeMode="exclusive_process")
    host.kill(host.start().pid)
    host.nvml.reboot()
    host.kill(host.start().pid)
    host.desired(ComputeMode="default")
    host.start()
    assert former(host) == "prohibited"


def test_a_mode_that_is_the_desired_one_is_neither_set_nor_recorded(host: Host) -> None:
    host.desired(ComputeMode="default")
    host.start()
    assert host.nvml.modes_set == []
    assert former(host) is None


@pytest.mark.parametrize(("place", "blocked"), [("runtime", "a file"), ("runtime", "a link"), ("pipe", "a link")])
def test_a_start_that_finds_its_directory_taken_leaves_the_compute_mode(host: Host, place: str, blocked: str) -> None:
    host.desired(ComputeMode="exclusive_process")
    at = host.places.runtime("0") if place == "runtime" else host.own()
    at.parent.mkdir(parents=True, exist_ok=True)
    if blocked == "a file":
        at.write_text("somebody's")
    else:
        at.symlink_to("/tmp")
    with pytest.raises((OSError, MpsctlError)):
        prepare.prepare(host.world, "0")
    assert host.nvml.gpu(0).compute_mode == "default"
    assert host.nvml.modes_set == []


def test_a_mode_that_is_not_managed_is_left_as_found(host: Host) -> None:
    host.nvml.all[0] = h200(0, compute_mode="prohibited")
    host.desired(ComputeMode=None)
    host.start()
    assert host.nvml.modes_set == []
    assert host.nvml.gpu(0).compute_mode == "prohibited"


def test_a_gpu_that_has_no_compute_modes_is_refused_in_nvmls_words(host: Host) -> None:
    host.nvml.all[0] = h200(0, compute_mode=None)
    host.desired(ComputeMode="exclusive_process")
    with pytest.raises(NotInForce, match="Not Supported"):
        prepare.prepare(host.world, "0")


def test_a_gpu_that_has_no_compute_modes_serves_where_none_is_desired(host: Host) -> None:
    host.nvml.all[0] = h200(0, compute_mode=None)
    host.desired(DeviceMemoryLimit="4G")
    host.start()
    assert host.door_is_open()


def test_mig_devices_are_served_and_their_gpus_mode_is_left_alone(host: Host) -> None:
    host.nvml.all[2] = split_by_mig(2)
    host.desired("m", GPUs=uuid(301, "MIG"))
    assert prepare.prepare(host.world, "m").devices == (uuid(301, "MIG"),)
    assert host.nvml.modes_set == []


# -- the daemon's own directory


@pytest.mark.parametrize("umask", [0o077, 0o000])
def test_the_daemon_gets_an_empty_directory_of_its_own_that_is_closed_to_everyone_else(host: Host, umask: int) -> None:
    host.desired()
    host.own().mkdir(parents=True)
    host.own().chmod(0o777)
    (host.own() / "log").write_text("of the last start, open to others")
    before = os.umask(umask)
    try:
        private = prepare.prepare(host.world, "0").pipe_directory
    finally:
        os.umask(before)
    assert private == host.own()
    assert private.stat().st_mode & 0o7777 == 0o700
    assert list(private.iterdir()) == []
    assert not host.door_is_open()


def test_what_the_daemon_made_is_roots_alone_before_its_servers_may_pass(host: Host) -> None:
    host.desired(DeviceMemoryLimit="4G")
    host.start()
    modes = {path.name: path.stat().st_mode & 0o777 for path in host.own().iterdir()}
    assert modes.pop("control") == 0o660
    assert set(modes.values()) == {0o600}
    assert host.own().stat().st_mode & 0o7777 == 0o710


def test_directories_of_release_0_2_0_are_removed_and_nothing_else(host: Host) -> None:
    public = host.desired()
    kept = {".not-ours", "data", ".mydata12345", ".abcdefghijl", ".onlyempty12"}
    for name in (*kept, ".abcdefghijk"):
        (public / name).mkdir(parents=True)
    (public / ".hidden-file").write_text("kept")
    (public / ".mydata12345" / "thesis.tex").write_text("years of work")
    for name in (".abcdefghijk", ".abcdefghijl"):
        for made in ("control", "log", "control_lock"):
            made_as_by_a_daemon(public / name / made)
    (public / ".abcdefghijl" / "notes").write_text("beside what a daemon made")
    prepare.prepare(host.world, "0")
    assert {path.name for path in public.iterdir()} == kept | {".hidden-file"}
    assert {path.name for path in (public / ".abcdefghijl").iterdir()} == {"control", "log", "control_lock", "notes"}
    assert (public / ".mydata12345" / "thesis.tex").read_text() == "years of work"


def test_the_door_is_closed_from_the_first_moment_of_a_start(host: Host) -> None:
    """A daemon killed -9 leaves its links: they must not lead clients to the next one before its limits."""
    host.desired(DriverTimeoutSec=5)
    host.kill(host.start().pid)
    assert host.door_is_open()
    host.nvml.driver_up = False
    with pytest.raises(NotReady):
        prepare.prepare(host.world, "0")
    assert not host.door_is_open()


@pytest.mark.parametrize("served", ["0", "0/.abcdefghijk"])
def test_a_foreign_daemon_on_the_directory_is_refused_and_told_how_to_end(host: Host, served: str) -> None:
    public = host.desired()
    pid = host.process(
        "nvidia-cuda-mps-control",
        "nvidia-cuda-mps-control -d",
        {"CUDA_MPS_PIPE_DIRECTORY": str(host.pipe_root / served)},
    )
    with pytest.raises(NotReady, match=rf"\(pid {pid}\).*serves {public}; .*echo quit"):
        prepare.prepare(host.world, "0")


def test_a_foreign_daemons_sockets_are_left_where_they_are(host: Host) -> None:
    """Without them nobody could ask it to quit."""
    public = host.desired()
    public.mkdir(parents=True)
    for name in ("control", "control_privileged"):
        (public / name).write_text("stands for a socket")
    host.process(
        "nvidia-cuda-mps-control", "nvidia-cuda-mps-control -d", {"CUDA_MPS_PIPE_DIRECTORY": str(host.pipe_root / "0")}
    )
    with pytest.raises(NotReady):
        prepare.prepare(host.world, "0")
    assert (public / "control").exists()
    assert (public / "control_privileged").exists()


def test_sockets_that_a_foreign_daemon_left_behind_are_no_obstacle(host: Host) -> None:
    public = host.desired()
    public.mkdir(parents=True)
    (public / "control").write_text("stands for a socket that nobody listens on")
    host.start()
    assert host.door_is_open()


@pytest.mark.parametrize(
    ("name", "command", "served"),
    [
        ("nvidia-cuda-mps-control", "nvidia-cuda-mps-control", "0"),
        ("nvidia-cuda-mps-control", "nvidia-cuda-mps-control -d", "00"),
        ("nvidia-cuda-mps-control", "nvidia-cuda-mps-control -d", "1/0"),
        ("python3", "python3 train.py", "0"),
    ],
)
def test_front_ends_clients_and_daemons_of_other_directories_are_no_obstacle(
    host: Host, name: str, command: str, served: str
) -> None:
    host.desired()
    host.process(name, command, {"CUDA_MPS_PIPE_DIRECTORY": str(host.pipe_root / served)})
    prepare.prepare(host.world, "0")


# -- a crash loop


def pauses_s(host: Host, starts: int, lasts_s: float = 0) -> list[float]:
    """How long each start waits when every daemon lives ``lasts_s`` seconds."""
    found = []
    for _ in range(starts):
        host.clock.slept_s.clear()
        daemon = host.start()
        found.append(sum(host.clock.slept_s))
        host.clock.pass_by(lasts_s)
        host.kill(daemon.pid)
    return found


def test_a_crash_loop_backs_off_and_never_gives_up(host: Host) -> None:
    host.desired()
    pauses = pauses_s(host, 14)
    assert pauses[0] == 0
    assert pauses == sorted(pauses)
    assert pauses[-4:] == [30, 30, 30, 30]
    assert any("in a row of a daemon that does not last: waiting 30 s" in line for line in host.said)


@pytest.mark.parametrize("content", ["", "[Instance]\nGPUs=0\n", "[Instance", "\0" * 64, None])
def test_a_file_that_is_refused_is_tried_with_the_same_pauses(host: Host, content: Optional[str]) -> None:
    host.desired()
    host.kill(host.start().pid)
    path = host.places.conf("0")
    path.unlink()
    if content is not None:
        path.write_text(content)
    pauses = []
    for _ in range(12):
        host.clock.slept_s.clear()
        with pytest.raises(BadValue):
            prepare.prepare(host.world, "0")
        pauses.append(sum(host.clock.slept_s))
    assert pauses == sorted(pauses)
    assert pauses[-2:] == [30, 30]


def test_a_file_that_is_mended_during_the_pause_counts(host: Host) -> None:
    host.desired()
    pauses_s(host, 8)
    host.places.conf("0").write_text("")

    def mend() -> None:
        host.desired(GPUs="2")

    host.clock.when(1, mend)
    assert prepare.prepare(host.world, "0").devices == (host.nvml.gpu(2).uuid,)


@pytest.mark.parametrize("name", ["../0", "", "a/b"])
def test_nothing_is_written_for_a_name_that_no_instance_can_have(host: Host, name: str) -> None:
    before = host.snapshot()
    with pytest.raises(BadValue):
        prepare.prepare(host.world, name)
    assert host.snapshot() == before


def test_a_single_crash_costs_no_pause(host: Host) -> None:
    host.desired()
    assert pauses_s(host, 2) == [0, 0]


def test_a_daemon_that_lasted_begins_anew(host: Host) -> None:
    host.desired()
    pauses_s(host, 12)
    assert pauses_s(host, 1, lasts_s=record.STABLE_AFTER_S) == [30]
    assert pauses_s(host, 2) == [0, 0]


def test_a_restart_that_was_asked_for_is_no_crash(host: Host) -> None:
    host.desired()
    pauses_s(host, 12)
    host.start()
    host.kill(host.restart().pid)
    assert pauses_s(host, 3) == [0, 0, 0]


def test_after_weeks_of_work_every_crash_is_a_first_one(host: Host) -> None:
    host.desired()
    assert set(pauses_s(host, 12, lasts_s=86_400)) == {0}


def test_a_start_that_fails_counts_as_one_that_did_not_last(host: Host) -> None:
    host.desired(DriverTimeoutSec=1)
    host.nvml.driver_up = False
    for expected in range(3):
        with pytest.raises(NotReady):
            prepare.prepare(host.world, "0")
        assert record.short_lives(host.world, "0") == expected


def test_a_real_stop_begins_anew(host: Host) -> None:
    host.desired()
    pauses_s(host, 12)
    host.stop()
    assert pauses_s(host, 1) == [0]


def test_each_instance_counts_for_itself(host: Host) -> None:
    host.desired("0")
    host.desired("1")
    pauses_s(host, 12)
    host.clock.slept_s.clear()
    host.start("1")
    assert host.clock.slept_s == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"short_lives": "many"}', "null"])
def test_a_record_that_cannot_be_read_is_no_obstacle(host: Host, text: str) -> None:
    host.desired(DeviceMemoryLimit="4G")
    runtime: Path = host.places.runtime("0")
    runtime.mkdir(parents=True)
    for name in ("starts.json", "in-force.json"):
        (runtime / name).write_text(text)
    host.start()
    assert host.door_is_open()


def test_nobody_but_root_can_read_where_the_daemon_listens_before_the_door_opens(host: Host) -> None:
    host.desired()
    prepare.prepare(host.world, "0")
    assert host.places.daemon_environment("0").stat().st_mode & 0o777 == 0o600
