"""Given a host with one planted fault, the doctor's first diagnosis is its cause; and without one it says nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Optional

import pytest

from consulting import SERVER, ask, find, hold, join, names, outsider, run, variables
from fakes import FakeDaemon, Host, h200, split_by_mig, uuid
from mpsctl.adapters import hardware, procfs, selinux
from mpsctl.causes import consult
from mpsctl.causes import seen as seen_once
from mpsctl.causes.consult import Question
from mpsctl.store import drains
from mpsctl.store.admission import WAITING

pytestmark = pytest.mark.usefixtures("shown_processes")


def test_a_healthy_host_has_no_diagnosis(host: Host, running: FakeDaemon) -> None:
    join(host, running)
    join(host, running)
    before = host.snapshot()
    assert names(host) == []
    assert host.snapshot() == before
    assert running.setters == [command for command in running.setters if command.startswith("set_default_")]


@pytest.mark.parametrize(("on_bus", "found"), [(False, []), (True, ["no-driver"])])
def test_a_host_without_instances_and_gpus(
    host: Host, monkeypatch: pytest.MonkeyPatch, on_bus: bool, found: list[str]
) -> None:
    host.nvml.all = []
    monkeypatch.setattr(hardware, "nvidia_on_bus", lambda: on_bus)
    assert names(host) == found


@pytest.mark.parametrize(("loaded", "sure"), [(None, "certain"), ("580.159.04", "likely")])
def test_no_driver_is_certain_only_where_none_is_loaded(
    host: Host, running: FakeDaemon, monkeypatch: pytest.MonkeyPatch, loaded: Optional[str], sure: str
) -> None:
    host.nvml.driver_up = False
    monkeypatch.setattr(hardware, "driver_version", lambda: loaded)
    assert find(host, "no-driver").certainty == sure


# -- drains


def drain(host: Host, name: str = "0") -> None:
    drains.mark(host.world, name)
    host.tell_door(WAITING, name)


def test_a_drained_instance_is_undrained_and_never_reloaded(host: Host, running: FakeDaemon) -> None:
    drain(host)
    (found,) = ask(host).diagnoses
    assert (found.name, found.certainty, found.remedy) == ("drained", "certain", "mpsctl undrain 0")
    assert found.evidence[0].startswith("instance 0: drained since 20")


def test_a_run_that_drains_is_waited_for(host: Host, running: FakeDaemon) -> None:
    host.processes[os.getpid()] = host.processes[running.pid]
    drains.mark(host.world, "0", of_this_run=True)
    host.tell_door(WAITING)
    found = find(host, "drained")
    assert found.remedy.startswith("wait for that run to end")
    assert "front-door-closed" not in names(host)


def test_a_front_door_that_is_closed_without_a_drain(host: Host, running: FakeDaemon) -> None:
    host.tell_door(WAITING)
    assert names(host)[0] == "front-door-closed"


# -- the daemon, its limits and servers


def test_a_limit_changed_by_hand(host: Host, running: FakeDaemon) -> None:
    running.ask(["set_default_device_pinned_mem_limit 0 8G"])
    assert names(host)[0] == "not-as-desired"


def test_a_server_in_fault(host: Host, running: FakeDaemon) -> None:
    running.servers[SERVER].state = "FAULT"
    assert names(host) == ["client-fault"]
    assert names(host, errors=["700"])[0] == "client-fault"


@pytest.mark.parametrize("bystanders", [1, 2, 3, 5])
def test_a_fault_with_bystanders_is_laid_at_nobody_s_door(host: Host, running: FakeDaemon, bystanders: int) -> None:
    """The log names a bystander in 10 of 10 trials (driver 580, H200)."""
    pids = [join(host, running) for _ in range(bystanders + 1)]
    running.write("Server", SERVER, f"Client {{PID: {pids[0]}, Context: 1}} encountered a fatal GPU error.")
    for found in (find(host, "client-fault"), find(host, "client-fault", errors=["700"])):
        assert found.certainty == "certain"
        assert f"one of the clients of server {SERVER} (pid {', '.join(map(str, pids))})" in found.evidence[0]
        assert not any(f"client {pid} made" in line for line in found.evidence for pid in pids)
    assert "client-fault" not in names(host, pids=[pids[0]])


def test_a_killed_server(host: Host, running: FakeDaemon) -> None:
    join(host, running)
    running.write("Control", 1, f"Server {SERVER} exited with status -9")
    running.servers.clear()
    assert names(host, errors=["806"])[0] == "server-gone"


def failed_servers(running: FakeDaemon, *pids: int) -> None:
    for pid in pids:
        running.write("Control", pid, f"Starting new server {pid} for user 1000")
        running.write("Control", 1, f"Server {pid} exited with status 1")


def test_servers_that_end_again_and_again(host: Host, running: FakeDaemon) -> None:
    failed_servers(running, 95, 98, 101)
    running.servers.clear()
    assert names(host)[0] == "server-crash-loop"
    assert names(host, errors=["805"])[0] == "server-crash-loop"


def test_a_server_that_failed_before_it_had_a_client(host: Host, running: FakeDaemon) -> None:
    failed_servers(running, 95)
    assert names(host) == ["server-failed"]
    assert names(host, errors=["805"])[0] == "server-failed"


def test_a_loop_that_is_long_over_is_told_by_nobody(host: Host, running: FakeDaemon) -> None:
    failed_servers(running, 95, 98, 101)
    host.clock.pass_by(7200)
    assert names(host) == []


def test_a_second_user_that_waits(host: Host, running: FakeDaemon) -> None:
    pid = host.process("python3", "python3 serve.py", variables(host), 65_534)
    running.write("Control", 1, f"NEW CLIENT {pid} from user 65534: Server is not ready, push client to pending list")
    (found,) = ask(host).diagnoses
    assert (found.name, found.certainty) == ("waiting-behind-another-user", "certain")


def test_the_cap_of_clients(host: Host, running: FakeDaemon) -> None:
    for _ in range(48):
        join(host, running)
    assert "too-many-clients" in names(host)
    assert names(host, errors=["808"])[0] == "too-many-clients"


def test_a_stopped_daemon(host: Host, running: FakeDaemon) -> None:
    host.processes[running.pid].state = "T"
    assert names(host)[0] == "daemon-stopped"


def test_a_held_session_is_told_only_where_somebody_is_connected(host: Host, running: FakeDaemon) -> None:
    running.not_served = True
    assert names(host)[0] == "daemon-hangs"
    assert "session-held" not in names(host)
    running.holders = (4711,)
    assert names(host)[0] == "session-held"
    assert "pid 4711" in find(host, "session-held").remedy


def test_a_unit_that_does_not_run(host: Host, running: FakeDaemon) -> None:
    host.stop()
    host.kill(SERVER)
    del host.nvml.outside_mib[uuid(0)][SERVER]
    assert names(host) == ["unit-not-active"]


def test_a_unit_that_is_masked(host: Host, running: FakeDaemon) -> None:
    host.stop()
    host.kill(SERVER)
    del host.nvml.outside_mib[uuid(0)][SERVER]
    host.systemd.unit("mps-control@0.service").load_state = "masked"
    assert names(host) == ["unit-masked"]


def test_a_zombie_that_is_still_listed(host: Host, running: FakeDaemon) -> None:
    host.processes[join(host, running)].state = "Z"
    assert names(host) == ["zombie-client"]


def test_a_client_that_dropped_its_limit(host: Host, running: FakeDaemon) -> None:
    join(host, running, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="1G")
    assert names(host) == ["limit-bypassed"]


def test_a_percentage_that_leaves_the_rest_idle(host: Host, running: FakeDaemon) -> None:
    host.desired(DeviceMemoryLimit="4G", ActiveThreadPercentage=33, ComputeMode="exclusive_process")
    host.systemd.act("reload", ["mps-control@0.service"])
    running.servers[SERVER].percentage = 33.0
    join(host, running)
    assert "percentage-caps-everyone" not in names(host), "the rest is for those that come"
    join(host, running)
    assert "percentage-caps-everyone" in names(host)


@pytest.mark.parametrize("error", [None, "805", "46"])
def test_a_left_over_server(host: Host, running: FakeDaemon, error: Optional[str]) -> None:
    host.stop()
    left = SERVER
    host.processes[left].parent = 1
    found = find(host, "left-over-server", errors=[error] if error else [])
    assert found.certainty == "certain"
    assert f"{left}" in found.remedy
    assert "restart" in found.remedy
    assert not any("mpsctl run" in one.remedy for one in ask(host).diagnoses)


def test_a_left_over_server_beside_a_new_daemon_and_its_old_client(host: Host, running: FakeDaemon) -> None:
    left = host.process("nvidia-cuda-mps-server", "nvidia-cuda-mps-server", {})
    host.nvml.outside_mib[uuid(0)][left] = 66
    pid = host.process("python3", "python3 serve.py", variables(host), 1000)
    hold(host, pid, 600)
    found = find(host, "left-over-server")
    assert found.certainty == "certain"
    assert any(f"pid {left} " in line for line in found.evidence)
    assert any(f"pid {pid} " in line for line in found.evidence)
    assert not {"client-outside-mps", "two-daemons-one-gpu"} & set(names(host))


# -- GPUs that are not what they were


@pytest.mark.parametrize("answers", [True, False])
def test_a_gpu_that_vanished(host: Host, running: FakeDaemon, answers: bool) -> None:
    """The daemon may answer on, or hang with its GPU: nobody is told to end a session, or to ask as root."""
    host.nvml.lost = {0}
    running.not_served = not answers
    found = ask(host).diagnoses
    assert (found[0].name, found[0].certainty) == ("gpu-missing", "certain")
    assert "reset" in found[0].remedy
    assert "reboot" in found[0].remedy
    assert "session-held" not in [one.name for one in found]
    assert not any("ask as root" in one.remedy or "end the" in one.remedy for one in found)
    assert names(host, errors=["100"])[0] == "gpu-missing"
    assert names(host, errors=["805"])[0] == "gpu-missing"


def test_mig_that_was_switched_off(host: Host) -> None:
    mig = split_by_mig(0)
    host.nvml.all[0] = mig
    run(host, "0", GPUs=mig.mig_devices[0].uuid, ComputeMode=None)
    host.nvml.all[0] = h200(0)
    first = ask(host).diagnoses[0]
    assert (first.name, first.certainty) == ("mig-switched-off", "certain")
    assert "switch it on again, or name other GPUs" in first.remedy


def test_mig_devices_that_were_made_anew(host: Host) -> None:
    mig = split_by_mig(0)
    host.nvml.all[0] = mig
    run(host, "0", GPUs=mig.mig_devices[0].uuid, ComputeMode=None)
    host.nvml.all[0] = h200(0, mig_enabled=True, mig_devices=split_by_mig(5).mig_devices)
    assert names(host)[0] == "mig-device-gone"


def test_mig_that_was_switched_on_under_an_instance(host: Host, running: FakeDaemon) -> None:
    host.nvml.all[0] = split_by_mig(0)
    first = ask(host).diagnoses[0]
    assert (first.name, first.certainty) == ("mig-switched-on", "certain")


@pytest.mark.parametrize("named", ["0", "0000:10:00.0"])
def test_a_card_that_was_swapped(host: Host, named: str) -> None:
    run(host, "0", GPUs=named)
    host.nvml.all[0] = h200(0, uuid=uuid(77), compute_mode="exclusive_process")
    first = ask(host).diagnoses[0]
    assert (first.name, first.certainty) == ("gpu-swapped", "certain")
    assert "systemctl restart mps-control@0`" in first.remedy


def test_a_driver_that_was_upgraded_underneath(
    host: Host, running: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mpsctl.adapters.nvml import VersionMismatch

    def refuse() -> None:
        raise VersionMismatch("NVML does not answer: Driver/library version mismatch")

    monkeypatch.setattr(host.nvml, "opened", refuse)
    first = ask(host).diagnoses[0]
    assert (first.name, first.certainty) == ("driver-upgraded-underneath", "certain")
    assert "no-driver" not in names(host)


def test_persistence_off_on_a_served_gpu(host: Host, running: FakeDaemon) -> None:
    host.nvml.all[0] = h200(0, compute_mode="exclusive_process", persistence=False)
    assert names(host) == ["persistence-off"]


def test_exclusive_mode_that_was_left_behind(host: Host, running: FakeDaemon) -> None:
    host.nvml.all[2] = h200(2, compute_mode="exclusive_process")
    assert names(host) == ["exclusive-without-daemon"]
    assert names(host, errors=["46"])[0] == "exclusive-without-daemon"


# -- what hangs


@pytest.mark.forks
def test_nvml_that_hangs_is_left_behind(host: Host, running: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_once, "NVML_TIMEOUT_S", 0.1)
    host.nvml.hangs = True
    answer = ask(host)
    assert answer.understood[0].startswith("looked at 1 instance, 0 GPUs")
    assert (answer.diagnoses[0].name, answer.diagnoses[0].certainty) == ("no-driver", "likely")


@pytest.mark.forks
def test_an_instance_whose_look_hangs_hides_no_other(
    host: Host, running: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seen_once, "INSTANCE_TIMEOUT_S", 0.5)
    run(host, "1", server=9002)
    drain(host, "1")
    pid, parent = join(host, running), os.getpid()
    command = procfs.command

    def read(one: int) -> str:
        if one == pid and os.getpid() != parent:
            time.sleep(3600)
        return command(one)

    monkeypatch.setattr(procfs, "command", read)
    assert names(host) == ["drained"]


@pytest.mark.forks
def test_a_process_of_which_proc_does_not_answer_is_left_behind(
    host: Host, running: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consult, "TIMEOUT_S", 0.5)
    pid, parent = outsider(host, {}), os.getpid()
    limit = procfs.open_files_limit

    def read(one: int) -> Optional[int]:
        if os.getpid() != parent:
            time.sleep(3600)
        return limit(one)

    monkeypatch.setattr(procfs, "open_files_limit", read)
    answer = consult.consult(host.world, Question(pids=[pid]))
    assert "did not answer within 0.5 s" in answer.understood[0]
    assert answer.diagnoses == []


@pytest.mark.forks
def test_logs_that_do_not_come_leave_what_the_checks_tell(
    host: Host, running: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain(host)

    def hang(lines: int) -> list[str]:
        time.sleep(3600)
        return []

    monkeypatch.setattr(host.systemd, "kernel_log", hang)
    monkeypatch.setattr(consult, "TIMEOUT_S", 0.5)
    answer = consult.consult(host.world, Question())
    assert "what follows stands on the checks alone" in answer.understood[0]
    assert [one.name for one in answer.diagnoses] == ["drained"]


# -- logs and labels


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.", "gpu-lost"),
        ("Cannot map memory with base addr 0x7f0000000000 and size of 0x200 pages", "mapping-failed"),
        ("python3: RuntimeError: No CUDA GPUs are available", None),
    ],
)
def test_the_kernel_s_log(host: Host, running: FakeDaemon, line: str, cause: Optional[str]) -> None:
    host.systemd.kernel.append(line)
    assert names(host)[:1] == ([cause] if cause else [])


@pytest.mark.parametrize(
    ("label", "enforce", "found"),
    [
        ("system_u:object_r:container_var_run_t:s0", "1", []),
        ("system_u:object_r:container_file_t:s0", "1", []),
        ("system_u:object_r:var_run_t:s0", "1", ["selinux-label"]),
        ("system_u:object_r:var_run_t:s0", "0", []),
        (None, "1", []),
    ],
)
def test_selinux(
    host: Host,
    running: FakeDaemon,
    monkeypatch: pytest.MonkeyPatch,
    label: Optional[str],
    enforce: str,
    found: list[str],
) -> None:
    place = host.places.root / "sys/fs/selinux"
    place.mkdir(parents=True)
    (place / "enforce").write_text(enforce)
    monkeypatch.setattr(selinux, "label", lambda path: label)
    assert names(host) == found


@pytest.mark.parametrize("place", ["etc/cron.d/mps", "etc/slurm/prolog", "etc/systemd/system/mps.service"])
def test_a_file_that_may_not_be_read_is_passed_over(
    host: Host, running: FakeDaemon, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    path = host.places.root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("@reboot root nvidia-smi --compute-mode=3\n# nvidia-cuda-mps-control\n")
    assert names(host) != []
    real = Path.open

    def refuse(one: Path, *words: object, **more: object) -> object:
        if one == path:
            raise PermissionError(13, "Permission denied", str(one))
        return real(one, *words, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refuse)
    assert names(host) == []


def test_two_ranks_of_torchrun(host: Host, running: FakeDaemon) -> None:
    for rank in ("0", "1"):
        join(host, running, RANK=rank, WORLD_SIZE="2", LOCAL_RANK=rank, MASTER_ADDR="n1", MASTER_PORT="29500")
    assert names(host) == ["distributed-job", "nccl-ranks-on-one-gpu"]
