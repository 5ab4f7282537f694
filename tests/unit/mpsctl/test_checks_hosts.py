"""The judgements of a host: NVML, systemd, GPUs, other managers and daemons."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Callable, Optional, Sequence

import pytest

from fakes import Host, h200, uuid
from judging import UNIT, amiss, judge, only, public
from mpsctl.adapters import hardware, procfs
from mpsctl.checks import report
from mpsctl.checks.judgement import STATUS, Finding, View, judgement
from mpsctl.model.errors import NotReady
from mpsctl.model.finding import CRITICAL, OK, UNKNOWN, WARNING

# -- NVML and systemd


@pytest.mark.forks
def test_nvml_that_hangs_is_left_behind(live: Host) -> None:
    live.nvml.hangs = True
    found = amiss(judge(live, nvml_timeout_s=0.1))
    assert found["gpus-answer"] == CRITICAL
    assert found["gpu-processes"] == found["gpus-present"] == found["persistence"] == UNKNOWN
    assert "daemon-answers" not in found


def hang(monkeypatch: pytest.MonkeyPatch, name: str, pids: Sequence[int]) -> None:
    """What /proc tells of these processes never comes, in any process but this one: none may ask for it here."""
    real = getattr(procfs, name)
    parent = os.getpid()

    def read(pid: int) -> object:
        assert pid not in pids or os.getpid() != parent, f"{name} of {pid} is read in verify's own process"
        if pid in pids:
            time.sleep(3600)
        return real(pid)

    monkeypatch.setattr(procfs, name, read)


@pytest.mark.forks
def test_a_foreign_daemon_that_hangs_is_named_and_holds_up_nobody(live: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = live.process("nvidia-cuda-mps-control", "nvidia-cuda-mps-control -d", {})
    hang(monkeypatch, "environment", [pid])
    found = judge(live, instance_timeout_s=10, proc_timeout_s=1)
    check = found.check(None, "foreign-daemons")
    assert (check.level, f"control daemon {pid} (it hangs" in check.found) == (WARNING, True), check.found
    levels = {one.name: one.level for one in found.instances["0"] if one.level != OK}
    assert levels == {"other-daemons": UNKNOWN}


@pytest.mark.forks
def test_a_daemon_whose_very_command_hangs_holds_up_nobody(live: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    hang(monkeypatch, "command", [live.process("nvidia-cuda-mps-control", "nvidia-cuda-mps-control -d", {})])
    found = judge(live, instance_timeout_s=2, proc_timeout_s=1)
    assert found.worst == UNKNOWN
    assert "did not answer within" in " ".join(one.found for _, one in found.every if one.level == UNKNOWN)


@pytest.mark.forks
def test_a_host_whose_processes_cannot_be_listed(live: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = os.getpid()
    real = procfs.pids

    def pids() -> object:
        if os.getpid() != parent:
            time.sleep(3600)
        return real()

    monkeypatch.setattr(procfs, "pids", pids)
    found = judge(live, instance_timeout_s=10, proc_timeout_s=0.5)
    levels = {one.name: one.level for _, one in found.every if one.level != OK}
    unknown = {"foreign-daemons", "default-pipe-directory", "modes-without-daemon", "other-daemons", "orphan-daemon"}
    assert {name for name, level in levels.items() if level == UNKNOWN} >= unknown


@pytest.mark.forks
def test_an_instance_that_hangs_is_left_behind_and_holds_up_no_other(
    live: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.desired("1", ComputeMode="exclusive_process")
    live.systemd.unit("mps-control@1.service").enabled = True
    hang(monkeypatch, "environment", [live.start("1").pid])
    found = judge(live, instance_timeout_s=3, proc_timeout_s=1)
    levels = {one.name: one.level for one in found.instances["1"]}
    assert levels == {"configuration": UNKNOWN, "unit-enabled": OK, "unit-active": OK}
    assert "did not answer within 3 s" in found.check("1", "configuration").found
    assert {one.name for one in found.instances["0"] if one.level != OK} == set()


def test_a_driver_that_is_not_loaded(live: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    live.nvml.driver_up = False
    assert amiss(judge(live))["gpus-answer"] == CRITICAL
    monkeypatch.setattr(hardware, "nvidia_on_bus", lambda: False)
    assert amiss(judge(live))["gpus-answer"] == UNKNOWN


def test_systemd_that_does_not_answer(live: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def show(units: list[str]) -> None:
        raise NotReady("systemctl is not on this host")

    monkeypatch.setattr(live.systemd, "show", show)
    found = amiss(judge(live))
    assert found["unit-active"] == found["main-process"] == found["memory-limit"] == UNKNOWN
    assert found["compute-mode"] == UNKNOWN
    assert CRITICAL not in found.values()


def test_a_journal_that_may_not_be_read_is_never_a_pass(live: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    live.systemd.boot = None
    assert only(live, "boot-order", UNKNOWN).remedy == "", "root is not told to ask as root"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert judge(live).check(None, "boot-order").remedy == "ask as root"


def test_an_ordering_cycle_at_boot(live: Host) -> None:
    line = "multi-user.target: Found ordering cycle on mps-control@0.service/start"
    live.systemd.boot = ["x.service: Found ordering cycle on y.service/start", line]
    assert only(live, "boot-order", WARNING).found == line
    live.systemd.boot = ["x.service: Found ordering cycle on y.service/start"]
    assert amiss(judge(live)) == {}


# -- GPUs


def test_a_gpu_that_is_gone(live: Host) -> None:
    live.nvml.lost.add(0)
    assert amiss(judge(live))["gpus-present"] == CRITICAL


def test_a_daemon_that_serves_another_gpu_than_desired(live: Host) -> None:
    live.desired(GPUs="1", ComputeMode="default")
    assert amiss(judge(live))["gpus-served"] == CRITICAL


@pytest.mark.parametrize(
    ("desired", "mode", "level"),
    [
        ("exclusive_process", "default", CRITICAL),
        ("exclusive_process", "prohibited", CRITICAL),
        ("default", "default", OK),
        (None, "default", OK),
        (None, "exclusive_process", OK),
        ("exclusive_process", None, UNKNOWN),
    ],
)
def test_the_compute_mode_beside_the_desired_state(
    host: Host, desired: Optional[str], mode: Optional[str], level: str
) -> None:
    host.desired(ComputeMode=desired)
    host.systemd.unit(UNIT).enabled = True
    host.start()
    host.nvml.all = [h200(0, compute_mode=mode)]
    found = amiss(judge(host))
    assert {name: one for name, one in found.items() if name != "default-mode"} == (
        {} if level == OK else {"compute-mode": level}
    )


@pytest.mark.parametrize(("mode", "amiss_is"), [("default", {"default-mode": WARNING}), ("exclusive_process", {})])
def test_a_mode_that_lets_processes_run_outside_mps_is_worth_advice(
    host: Host, mode: str, amiss_is: dict[str, str]
) -> None:
    host.desired(ComputeMode=None)
    host.systemd.unit(UNIT).enabled = True
    host.start()
    host.nvml.all = [h200(0, compute_mode=mode)]
    assert amiss(judge(host)) == amiss_is
    assert amiss(judge(host, verb=STATUS)) == {}, "advice is verify's"


@pytest.mark.parametrize("mode", ["exclusive_process", "prohibited"])
def test_a_mode_left_behind_without_a_daemon(host: Host, mode: str) -> None:
    host.desired()
    host.nvml.all = [h200(0, compute_mode=mode)]
    assert amiss(judge(host))["compute-mode"] == CRITICAL
    host.desired(WhenDown="prohibited", ComputeMode="exclusive_process", ServerUser="root")
    expected = None if mode == "prohibited" else CRITICAL
    assert amiss(judge(host)).get("compute-mode") == expected


def test_a_mode_left_behind_on_a_gpu_of_no_instance(live: Host) -> None:
    live.nvml.all[2] = h200(2, compute_mode="exclusive_process")
    assert "GPU 2" in only(live, "modes-without-daemon", WARNING).found


@pytest.mark.parametrize(("persistence", "level"), [(False, WARNING), (None, UNKNOWN)])
def test_persistence(live: Host, persistence: Optional[bool], level: str) -> None:
    live.nvml.all[0] = h200(0, persistence=persistence, compute_mode="exclusive_process")
    only(live, "persistence", level)


# -- others on this host


def daemon_of_others(host: Host, **environment: str) -> int:
    return host.process("nvidia-cuda-mps-control", "nvidia-cuda-mps-control -d", environment)


def test_a_users_process_that_looks_like_a_daemon_is_told_and_is_no_proof(live: Host) -> None:
    """It serves no directory of an instance, whatever its environment says."""
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(live.pipe_root / "0"), "CUDA_VISIBLE_DEVICES": "0"}
    live.process("nvidia-cuda-mps-control", "/tmp/nvidia-cuda-mps-control -d", environment, uid=1000)
    assert amiss(judge(live)) == {"other-daemons": WARNING, "foreign-daemons": WARNING}


@pytest.mark.parametrize("devices", [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": uuid(0)[:12]}, {}])
def test_another_daemon_on_the_same_gpu(live: Host, devices: dict[str, str]) -> None:
    pid = daemon_of_others(live, CUDA_MPS_PIPE_DIRECTORY="/run/other", **devices)
    found = judge(live)
    assert amiss(found) == {"other-daemons": CRITICAL, "foreign-daemons": WARNING}
    assert f"daemon {pid}" in found.check("0", "other-daemons").found


def test_another_daemon_on_a_gpu_of_no_instance(live: Host) -> None:
    daemon_of_others(live, CUDA_MPS_PIPE_DIRECTORY="/run/other", CUDA_VISIBLE_DEVICES="2")
    assert "/run/other" in only(live, "foreign-daemons", WARNING).found


def test_a_daemon_whose_environment_may_not_be_read(live: Host) -> None:
    live.processes[daemon_of_others(live)].environment = None
    assert amiss(judge(live)) == {"other-daemons": UNKNOWN, "foreign-daemons": WARNING}


def test_a_daemon_of_another_namespace_with_a_directory_of_the_same_name_is_no_orphan(
    live: Host, tmp_path: Path
) -> None:
    for directory in (public(live), "/tmp/nvidia-mps"):
        pid = daemon_of_others(live, CUDA_MPS_PIPE_DIRECTORY=directory, CUDA_VISIBLE_DEVICES="2")
        live.processes[pid].root, live.processes[pid].mounts = tmp_path, 2
    assert "in another namespace" in only(live, "foreign-daemons", WARNING).found


def test_a_daemon_of_another_namespace_that_has_this_directory_mounted_is_an_orphan(live: Host) -> None:
    pid = daemon_of_others(live, CUDA_MPS_PIPE_DIRECTORY=public(live), CUDA_VISIBLE_DEVICES="2")
    live.processes[pid].mounts = 2
    assert amiss(judge(live)) == {"orphan-daemon": CRITICAL, "foreign-daemons": WARNING}


def test_an_orphan_daemon_on_this_directory(live: Host) -> None:
    pid = daemon_of_others(live, CUDA_MPS_PIPE_DIRECTORY=f"{public(live)}/.before", CUDA_VISIBLE_DEVICES="0")
    found = judge(live)
    assert amiss(found) == {"orphan-daemon": CRITICAL, "foreign-daemons": WARNING}
    said = found.check("0", "orphan-daemon").found
    assert f"daemon {pid}" in said
    assert "its socket is gone" in said


def test_a_daemon_on_the_default_directory(live: Host) -> None:
    daemon_of_others(live, CUDA_VISIBLE_DEVICES="2")
    found = judge(live)
    assert amiss(found) == {"default-pipe-directory": WARNING, "foreign-daemons": WARNING}


def test_a_default_directory_that_was_left_behind_is_a_note(live: Host) -> None:
    directory = live.places.root / "tmp/nvidia-mps"
    directory.mkdir(parents=True)
    (directory / "control_lock").touch()
    found = judge(live)
    assert amiss(found) == {}
    assert any(one.name == "default-pipe-directory" and one.evidence for one in found.host)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


_STARTS = "[Service]\nExecStart=/usr/bin/nvidia-cuda-mps-control -f\n"


def a_vendors_unit(host: Host) -> str:
    write(host.places.root / "usr/lib/systemd/system/nvidia-mps.service", _STARTS)
    host.systemd.unit("nvidia-mps.service").active_state = "active"
    return "unit nvidia-mps.service"


def a_wanted_unit(host: Host) -> str:
    write(host.places.root / "etc/systemd/system/vendor.service", _STARTS)
    wants = host.places.root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True)
    (wants / "vendor.service").symlink_to("../vendor.service")
    return "unit vendor.service"


def a_drop_in(host: Host) -> str:
    write(host.places.root / "etc/systemd/system/app.service.d/mps.conf", _STARTS)
    host.systemd.unit("app.service").active_state = "active"
    return "app.service.d/mps.conf"


def a_slurm_prolog(host: Host) -> str:
    write(host.places.root / "etc/slurm/slurm.conf", "Prolog=/opt/site/before-job\n")
    write(host.places.root / "opt/site/before-job", "#!/bin/sh\nnvidia-cuda-mps-control -d\n")
    return "opt/site/before-job"


def a_slurm_prolog_directory(host: Host) -> str:
    write(host.places.root / "etc/slurm/prolog.d/50-gpu", "#!/bin/sh\necho quit | nvidia-cuda-mps-control\n")
    return "prolog.d/50-gpu"


def slurms_resource(host: Host) -> str:
    write(host.places.root / "etc/slurm/gres.conf", "NodeName=n1 Name=mps Count=200\n")
    return "gres.conf names the generic resource mps"


def the_device_plugin(host: Host) -> str:
    return f"pid {host.process('mps-control-daemon', 'mps-control-daemon', {})}"


def the_dra_driver(host: Host) -> str:
    return f"pid {host.process('gpu-kubelet-plugin', '/usr/bin/gpu-kubelet-plugin -v=6', {})}: NVIDIA's DRA driver"


@pytest.mark.parametrize(
    "manager",
    [
        a_vendors_unit,
        a_wanted_unit,
        a_drop_in,
        a_slurm_prolog,
        a_slurm_prolog_directory,
        slurms_resource,
        the_device_plugin,
        the_dra_driver,
    ],
)
def test_another_manager_of_mps(live: Host, manager: Callable[[Host], str]) -> None:
    named = manager(live)
    assert named in only(live, "other-managers", WARNING).found


def test_a_control_daemon_in_a_container_is_a_manager_too(live: Host) -> None:
    pid = daemon_of_others(live, CUDA_MPS_PIPE_DIRECTORY="/tmp/pod", CUDA_VISIBLE_DEVICES="2")
    live.processes[pid].container = "77ab"
    found = judge(live)
    assert amiss(found) == {"other-managers": WARNING, "foreign-daemons": WARNING}
    assert "container 77ab" in next(one.found for one in found.host if one.name == "other-managers")


@pytest.mark.parametrize(
    "place",
    [
        "run/nvidia/mps/nvidia.com/gpu.shared/pipe",
        "var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock",
        "var/lib/kubelet/device-plugins/nvidia-gpu.sock",
    ],
)
def test_what_kubernetes_plugins_have_on_the_host_is_a_note(live: Host, place: str) -> None:
    write(live.places.root / place, "")
    found = judge(live)
    assert amiss(found) == {}
    check = next(one for one in found.host if one.name == "other-managers")
    assert any(place in line for line in check.evidence)


def test_a_unit_that_nobody_starts_is_a_note(live: Host) -> None:
    write(live.places.root / "usr/lib/systemd/system/nvidia-mps.service", _STARTS)
    write(live.places.units / "mps-control@.service", _STARTS)
    found = judge(live)
    assert amiss(found) == {}
    (managers,) = (one for one in found.host if one.name == "other-managers")
    assert len(managers.evidence) == 1


def test_an_instance_that_starts_at_boot_without_its_file(live: Host) -> None:
    wants = live.places.units / "multi-user.target.wants"
    wants.mkdir(parents=True)
    for name in ("0", "7"):
        (wants / f"mps-control@{name}.service").symlink_to("../mps-control@.service")
    check = only(live, "instances-have-files", CRITICAL)
    assert check.facts["instances"] == ["7"]


# -- several instances, and the probe client


def test_one_broken_instance_hides_no_other(live: Host) -> None:
    live.places.conf("1").write_text("[Instance]\nGPUs=\n")
    live.desired("2", ComputeMode="exclusive_process")
    live.systemd.unit("mps-control@2.service").enabled = True

    def ask(commands: list[str], deadline_s: float = 10) -> list[list[str]]:
        raise KeyError(commands[0])

    live.start("2").ask = ask  # type: ignore[assignment,method-assign]
    found = judge(live)
    assert [one.name for one in found.instances["1"]] == ["configuration", "unit-enabled", "unit-active"]
    assert found.instances["1"][0].level == CRITICAL
    assert any("KeyError" in one.found for one in found.instances["2"])
    assert all(one.level == OK for one in found.instances["0"])


def test_a_check_that_breaks_is_told_and_hides_no_other(live: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(view: View) -> Finding:
        raise KeyError("x")

    monkeypatch.setattr(report, "OF_HOST", (*report.OF_HOST, judgement(of_host=True)(broken)))
    assert "a fault of mpsctl" in only(live, "broken", UNKNOWN).found


def test_a_host_that_was_never_converged(host: Host) -> None:
    assert amiss(judge(host)) == {"instances-configured": UNKNOWN}


def test_an_instance_that_does_not_exist(live: Host) -> None:
    found = judge(live, "7")
    assert found.check("7", "configuration").level == CRITICAL
    assert list(found.instances) == ["7"]
