"""A converged host, and a host that came back from a reboot: the same has to hold."""

from __future__ import annotations

from typing import Any, Callable

import pytest

testinfra_hosts = ["ansible://gpu-nodes"]
INSTANCES = ("0", "1")


@pytest.mark.parametrize("instance", INSTANCES)
def test_the_unit_is_active_and_enabled(host: Any, instance: str) -> None:
    unit = host.service(f"mps-control@{instance}")
    assert unit.is_running
    assert unit.is_enabled


@pytest.mark.parametrize("instance", INSTANCES)
def test_the_main_process_is_nvidias_daemon_and_nothing_of_ours_stays(host: Any, instance: str) -> None:
    unit = f"mps-control@{instance}"
    pid = int(host.service(unit).systemd_properties["MainPID"])
    assert host.run(f"readlink /proc/{pid}/exe").stdout.strip() == "/usr/bin/nvidia-cuda-mps-control"
    group = host.service(unit).systemd_properties["ControlGroup"]
    members = host.run(f"cat '/sys/fs/cgroup{group}/cgroup.procs' '/sys/fs/cgroup/systemd{group}/cgroup.procs'")
    assert {int(word) for word in members.stdout.split()} == {pid}


@pytest.mark.parametrize("instance", INSTANCES)
def test_nvidias_daemon_itself_reads_the_limits_back(ask: Callable[[str, str], str], instance: str) -> None:
    assert ask(instance, "get_default_device_pinned_mem_limit 0") == "4G"
    assert ask(instance, "get_default_active_thread_percentage") == "50.0"


def test_every_gpu_is_exclusive(host: Any) -> None:
    import json

    gpus = json.loads(host.run("mpsctl gpus --json").stdout)["gpus"]
    assert [gpu["compute_mode"] for gpu in gpus] == ["exclusive_process"] * len(INSTANCES)
    assert [gpu["instance"] for gpu in gpus] == list(INSTANCES)


@pytest.mark.parametrize("verb", ["status", "verify", "health"])
def test_each_verb_finds_nothing_critical_and_says_that_the_gpus_are_simulated(host: Any, verb: str) -> None:
    import json

    done = host.run(f"mpsctl {verb} --json")
    found = json.loads(done.stdout)
    assert done.rc == found["exit_code"] in (0, 1 if verb == "verify" else 0)
    assert found["simulated"]
    assert {name: one["word"] in ("ok", "warning") for name, one in found["instances"].items()} == dict.fromkeys(
        INSTANCES, True
    ), found
    for one in found["instances"].values():
        assert one["facts"]["devices"][0]["gpu"]["name"].endswith("(simulated)")


@pytest.mark.parametrize("instance", INSTANCES)
def test_each_daemon_serves_its_own_gpu_by_uuid(host: Any, status: Callable[[], dict[str, Any]], instance: str) -> None:
    one = status()[instance]
    environment = host.run(f"tr '\\0' '\\n' < /proc/{one['unit']['main_pid']}/environ").stdout.splitlines()
    assert f"CUDA_VISIBLE_DEVICES={one['devices'][0]['uuid']}" in environment


def test_the_daemon_may_open_the_files_that_mps_needs(host: Any) -> None:
    def open_files(pid: str) -> tuple[int, int]:
        limits = host.file(f"/proc/{pid}/limits").content_string
        fields = next(line.split() for line in limits.splitlines() if line.startswith("Max open files"))
        return int(fields[3]), int(fields[4])

    properties = host.service("mps-control@0").systemd_properties
    assert int(properties["LimitNOFILE"]) >= 65536
    # A host in a container gets no more than the machine lets its PID 1 have.
    assert open_files(properties["MainPID"])[0] >= min(65536, open_files("1")[1])


def test_systemd_has_nothing_to_say_about_the_unit(host: Any) -> None:
    verified = host.run("systemd-analyze verify --man=no /etc/systemd/system/mps-control@.service 2>&1")
    assert (verified.rc, verified.stdout.strip()) == (0, "")


def test_the_boot_had_no_ordering_cycle(host: Any) -> None:
    assert host.run("journalctl -b --no-pager -o cat | grep -i 'ordering cycle'").stdout == ""


@pytest.mark.parametrize("instance", INSTANCES)
def test_a_client_is_told_the_pipe_directory_and_its_gpu(
    host: Any, status: Callable[[], dict[str, Any]], instance: str
) -> None:
    uuid = status()[instance]["devices"][0]["uuid"]
    said = host.run(f"mpsctl env {instance}").stdout.splitlines()
    assert said == [f"export CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps/{instance}", f"export CUDA_VISIBLE_DEVICES={uuid}"]
