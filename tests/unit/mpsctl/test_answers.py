"""What each verb answers, for people and as JSON, and its exit code."""

from __future__ import annotations

import json
import re
from typing import Optional

import pytest

from fakes import Host, split_by_mig, uuid
from mpsctl.adapters import hardware
from mpsctl.checks import probe_client
from mpsctl.lifecycle import health
from mpsctl.model import plan as plans
from mpsctl.model.finding import CRITICAL, Check
from shell import Shell


@pytest.fixture
def running(host: Host) -> Host:
    host.desired(DeviceMemoryLimit="4G", ActiveThreadPercentage=50, ComputeMode="exclusive_process")
    host.systemd.unit("mps-control@0.service").enabled = True
    host.start()
    return host


# -- each verb


@pytest.mark.usefixtures("running")
def test_status_of_a_host_that_is_in_the_desired_state(mpsctl: Shell) -> None:
    assert mpsctl("status") == 0
    first, *facts = mpsctl.out.splitlines()
    assert first.startswith("instance 0: ok, in the desired state; active (running), pid ")
    assert f"  device 0: GPU 0, NVIDIA H200, {uuid(0)}, 616 of 143771 MiB used, compute mode exclusive_process" in facts
    assert "  memory limit of device 0: desired 4096 MiB, the daemon shows 4G, its log: 4096 MiB" in facts
    assert any(line.endswith(": clients may connect") for line in facts)
    assert not any(line.lstrip().startswith(("!", "?")) for line in facts)


def test_status_shows_each_server_and_client_with_its_limit(mpsctl: Shell, running: Host) -> None:
    held, bypassed = running.client(), running.client(variable="1G")
    running.nvml.clients_mib = {held: 600, bypassed: 700}
    running.process("nvidia-cuda-mps-server", "nvidia-cuda-mps-server", {}, pid=9001)
    running.processes[9001].parent = running.running().pid
    running.running().start_server(9001, clients=[held, bypassed])
    assert mpsctl("status", "0") == 1
    assert "  server 9001 of user 0, ACTIVE: 2 clients" in mpsctl.out
    assert "    memory limit of device 0: desired 4096 MiB, the server shows 4G, its log: 4096 MiB" in mpsctl.out
    first, second = (line for line in mpsctl.out.splitlines() if line.startswith("    client "))
    assert "limit 4096 MiB, holds 600 MiB, since 2026-" in first
    assert "LIMIT BYPASSED" not in first
    assert "holds 700 MiB" in second
    assert "; LIMIT BYPASSED: CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=1G: " in second


@pytest.mark.wording
def test_status_says_what_is_amiss_and_what_to_do(mpsctl: Shell, running: Host) -> None:
    running.running().start_server(9001).state = "FAULT"
    assert mpsctl("status", "0") == 1
    lines = mpsctl.out.splitlines()
    assert lines[0].startswith("instance 0: CRITICAL; active (running), ")
    at = lines.index("  ! server-state: server 9001 is in state FAULT")
    assert lines[at + 1] == "      expected: ACTIVE"
    assert lines[at + 2].startswith("      do: end the clients")


@pytest.mark.wording
def test_what_is_not_known_for_one_reason_is_one_line(mpsctl: Shell, running: Host) -> None:
    running.processes[running.running().pid].state = "T"
    mpsctl("status")
    (line,) = (line for line in mpsctl.out.splitlines() if line.startswith("  ? "))
    assert "memory-limit, thread-percentage" in line
    assert "client-limits" in line


def test_the_json_of_status_has_each_instances_word_facts_and_checks(mpsctl: Shell, running: Host) -> None:
    found = mpsctl.json("status")
    assert (found["format"], found["simulated"], found["worst"], found["exit_code"]) == (2, False, "ok", 0)
    one = found["instances"]["0"]
    assert one["word"] == "ok"
    assert one["facts"]["unit"]["main_pid"] == running.running().pid
    (device,) = one["facts"]["devices"]
    assert (device["uuid"], device["memory_mib"], device["used_mib"]) == (uuid(0), 143771, 616)
    assert device["gpu"]["compute_mode"] == one["facts"]["desired"]["compute_mode"] == "exclusive_process"
    assert one["facts"]["desired"]["limit"] == "4G"
    assert one["facts"]["door_open"] is True
    assert one["facts"]["door"]["admission"]["daemon"]["pipe_directory"] == str(running.own())
    assert [value["in_force"] for value in one["facts"]["values"]] == [True, True]
    assert {check["level"] for check in one["checks"]} == {"ok"}
    keys = {"name", "level", "found", "expected", "remedy", "evidence", "reasons", "mends", "facts"}
    assert all(set(check) == keys for check in [*one["checks"], *found["host"]["checks"]])


@pytest.mark.usefixtures("running")
def test_status_verify_and_health_answer_in_one_shape(mpsctl: Shell) -> None:
    status, verify, health = (mpsctl.json(verb) for verb in ("status", "verify", "health"))
    assert list(status) == list(verify) == list(health)
    keys = list(status["instances"]["0"])
    assert list(verify["instances"]["0"]) == keys
    assert list(health["instances"]["0"]) == [*keys, "actions"]


def test_status_of_a_host_that_was_never_converged(mpsctl: Shell) -> None:
    assert mpsctl("status") == 1
    assert "has not been converged" in mpsctl.out
    found = mpsctl.json("status")
    assert (found["instances"], found["worst"], found["exit_code"]) == ({}, "unknown", 1)


@pytest.mark.usefixtures("running")
def test_status_of_an_instance_that_is_not_there(mpsctl: Shell) -> None:
    assert mpsctl("status", "7") == 2
    assert "expected an instance of this host: 0" in mpsctl.err


@pytest.mark.usefixtures("running")
def test_gpus(mpsctl: Shell, host: Host) -> None:
    host.nvml.all[3] = split_by_mig(3)
    assert mpsctl("gpus") == 0
    assert f"GPU 0  {uuid(0)}  0000:10:00.0  NVIDIA H200, 616 of 143771 MiB used, compute mode" in mpsctl.out
    assert "instance 0\n" in mpsctl.out
    assert uuid(400, "MIG") in mpsctl.out
    found = mpsctl.json("gpus")
    assert found["simulated"] is False
    assert [gpu["index"] for gpu in found["gpus"]] == [0, 1, 2, 3]


def test_simulated_gpus_are_never_taken_for_real_ones(mpsctl: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "simulated", lambda: True)
    mpsctl("gpus")
    assert mpsctl.out.startswith("simulated GPUs")
    assert mpsctl.json("gpus")["simulated"] is True
    mpsctl("version")
    assert "driver: 580.159.04 (simulated)" in mpsctl.out
    assert mpsctl.json("version")["simulated"] is True


@pytest.mark.usefixtures("running")
def test_env(mpsctl: Shell, host: Host) -> None:
    expected = {"CUDA_MPS_PIPE_DIRECTORY": f"{host.pipe_root}/0", "CUDA_VISIBLE_DEVICES": uuid(0)}
    assert mpsctl("env", "0") == 0
    assert mpsctl.out.splitlines() == [f"export {key}={value}" for key, value in expected.items()]
    assert mpsctl.json("env", "0") == expected
    assert mpsctl("env", "0", "--format", "json") == 0
    assert json.loads(mpsctl.out) == expected


def test_version(mpsctl: Shell) -> None:
    assert mpsctl("version") == 0
    assert "driver: 580.159.04" in mpsctl.out
    found = mpsctl.json("version")
    assert found["build"] == "sources"
    assert found["control_daemon"] == "/usr/bin/nvidia-cuda-mps-control"


def test_apply_says_what_it_changed(mpsctl: Shell, running: Host) -> None:
    running.desired(DeviceMemoryLimit="6G", ActiveThreadPercentage=50, ComputeMode="exclusive_process")
    pid = running.running().pid
    assert mpsctl("apply", "0", main_pid=pid) == 0
    assert mpsctl.out.splitlines() == [
        "memory limit of device 0 (default): 4G -> 6144 MiB",
        "0: limits in force and read back, clients may connect",
    ]
    assert mpsctl.json("apply", "0", main_pid=pid) == {"instance": "0", "changes": []}


def test_prepare_stop_and_release_answer_in_json(mpsctl: Shell, host: Host) -> None:
    host.desired(DeviceMemoryLimit="4G")
    prepared = mpsctl.json("prepare", "0")
    assert prepared["pipe_directory"] == str(host.own())
    assert prepared["devices"] == [uuid(0)]
    pid = host.start().pid
    assert mpsctl.json("stop", "0", main_pid=pid) == {"instance": "0", "gone": True}
    assert mpsctl.json("release", "0") == {"instance": "0"}


def test_a_daemon_that_does_not_end_is_no_success(mpsctl: Shell, running: Host) -> None:
    running.running().on_quit = lambda: None
    assert mpsctl("stop", "0", main_pid=running.running().pid) == 4


def test_condition(mpsctl: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mpsctl("condition", "0") == 0
    assert mpsctl.out == ""
    monkeypatch.setattr(hardware, "nvidia_on_bus", lambda: False)
    assert mpsctl("condition", "0") == 77
    assert mpsctl.out == "skipped: no NVIDIA GPU is on the PCI bus\n"
    assert mpsctl.json("condition", "0") == {"instance": "0", "skipped": "no NVIDIA GPU is on the PCI bus"}


def test_a_condition_that_cannot_tell_does_not_skip(mpsctl: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> bool:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(hardware, "nvidia_on_bus", broken)
    assert mpsctl("condition", "0") == 70
    assert "Input/output error" in mpsctl.err


def request(host: Host, **more: object) -> str:
    desired = {"format": 2, "files": [], "instances": [{"name": "0", "conf": host.conf("0", DeviceMemoryLimit="4G")}]}
    return json.dumps({**desired, **more})


def test_reconcile_answers_with_one_object_and_says_the_rest_aside(mpsctl: Shell, host: Host) -> None:
    answer = mpsctl.json("reconcile", stdin=request(host))
    assert answer["program_differs"] is False
    assert answer["changed"] is True
    assert answer["instances"]["0"]["word"] in ("ok", "warning")
    assert mpsctl("reconcile", stdin=request(host)) == 0
    assert len(mpsctl.out.splitlines()) == 1


def test_reconcile_with_check(mpsctl: Shell, host: Host) -> None:
    assert mpsctl("reconcile", "--check", stdin=request(host)) == 0
    assert json.loads(mpsctl.out)["check"] is True
    assert host.systemd.acts == []


def test_reconcile_by_another_build_leaves_it_to_that(mpsctl: Shell, host: Host) -> None:
    answer = mpsctl.json("reconcile", stdin=request(host, build="0123456789abcdef"))
    assert answer == {"format": 2, "program_differs": True, "build": "sources"}
    assert host.systemd.acts == []


@pytest.mark.parametrize(
    ("stdin", "says"),
    [("", "no JSON"), ("{", "no JSON"), ("[]", "not of format 2"), ('{"format": 9}', "not of format 2")],
)
def test_reconcile_refuses_what_is_no_request(mpsctl: Shell, stdin: str, says: str) -> None:
    assert mpsctl("reconcile", stdin=stdin) == 2
    assert says in mpsctl.err
    assert mpsctl.json("reconcile", stdin=stdin)["exit_code"] == 2


def test_reconcile_that_is_refused_or_fails_ends_with_1(mpsctl: Shell, host: Host) -> None:
    bad = [{"name": "0", "conf": host.conf("0", DeviceMemoryLimit="20")}]
    assert mpsctl("reconcile", stdin=request(host, instances=bad)) == 1
    assert json.loads(mpsctl.out)["refused"].startswith("mps_device_memory_limit: ")
    host.nvml.driver_up = False
    assert mpsctl("reconcile", stdin=request(host)) == 1
    assert "Driver Not Loaded" in json.loads(mpsctl.out)["error"]


# -- what fits


DESCRIBED = ("--model-memory-mib", "15360", "--gpu-name", "Tesla T4", "--driver", "550.163.01")


def test_plan_on_this_host_and_for_a_gpu_that_is_described(mpsctl: Shell) -> None:
    assert mpsctl("plan", "--memory", "4G", "--clients", "8") == 0
    assert mpsctl.out.startswith("fits: 8 processes of 4096 MiB on NVIDIA H200")
    assert "8 clients x 4096 MiB limit + 66 MiB server + 616 MiB reserved = 33450 MiB <= 143771 MiB" in mpsctl.out
    assert mpsctl("plan", "--memory", "20%", *DESCRIBED) == 0
    assert "4 processes of 3072 MiB on Tesla T4" in mpsctl.out
    assert mpsctl.json("plan", "--memory", "4G", *DESCRIBED)["most_clients"] == 3
    assert mpsctl("plan", "--memory", "4G", "--latency", "short", "--format", "vars") == 0
    assert "mps_device_memory_limit: 4096M\nmps_active_thread_percentage: 30\nmps_expected_clients: 8" in mpsctl.out


def test_a_plan_that_cannot_fit_ends_with_2_and_the_arithmetic(mpsctl: Shell) -> None:
    assert mpsctl("plan", "--memory", "4G", "--clients", "40") == 2
    assert "164522 MiB > 143771 MiB" in mpsctl.out
    assert mpsctl.json("plan", "--memory", "4G", "--clients", "40")["verdict"] == "refused"


@pytest.mark.parametrize(
    "words",
    [
        ["--memory", "20"],
        ["--memory", "4G", "--clients", "0"],
        ["--memory", "4G", "--threads", "101"],
        ["--memory", "4G", "--rates", "3"],
        ["--memory", "4G", "--gpu", "9"],
        ["--memory", "4G", "--gpu-name", "Tesla T4"],
        ["--memory", "4G", "--gpu", "0", *DESCRIBED],
        ["--memory", "4G", "--gpu-name", "", "--model-memory-mib", "15360"],
        ["--memory", "4G", "--gpu-name", "Tesla\nT4", "--model-memory-mib", "15360"],
        ["--memory", "4G", "--gpu-name", "x", "--model-memory-mib", "4G"],
        ["--memory", "4G", "--gpu-name", "x", "--model-memory-mib", "15360", "--driver", "new"],
    ],
)
def test_plan_refuses_on_one_line(mpsctl: Shell, words: list[str]) -> None:
    assert mpsctl("plan", *words) == 2
    assert len(mpsctl.err.splitlines()) == 1
    assert mpsctl.out == ""


FRAMEWORKS = (plans.PYTORCH, plans.TENSORFLOW, plans.JAX, plans.VLLM, plans.SGLANG)


@pytest.mark.usefixtures("running")
def test_hints_are_comments_and_change_nothing_else(mpsctl: Shell) -> None:
    for kind in ("shell", "systemd"):
        mpsctl("env", "0", "--format", kind)
        plain = mpsctl.out
        assert mpsctl("env", "0", "--format", kind, "--hints") == 0
        assert mpsctl.out.startswith(plain)
        added = mpsctl.out[len(plain) :].splitlines()
        assert [line.partition(":")[0] for line in added] == [f"# {name}" for name in FRAMEWORKS]
        assert "--gpu-memory-utilization 0.0260" in mpsctl.out
    for kind in ("docker", "json"):
        assert mpsctl("env", "0", "--format", kind, "--hints") == 2


def test_hints_of_an_instance_without_a_limit(mpsctl: Shell, host: Host) -> None:
    host.desired()
    assert mpsctl("env", "0", "--hints") == 0
    assert mpsctl.out.splitlines()[-1].startswith("# no memory limit is managed here")


@pytest.mark.usefixtures("running")
def test_run_passes_the_exit_code_and_refuses_in_one_line(mpsctl: Shell, host: Host) -> None:
    report = host.places.root / "report.json"
    assert mpsctl("run", "--instance", "0", "--", "sh", "-c", "exit 9") == 9
    assert "never seen as an MPS client" in mpsctl.err
    assert mpsctl("run", "--instance", "0", "--json", "--report", str(report), "--", "sh", "-c", "exit 9") == 9
    assert mpsctl.err == ""
    assert json.loads(report.read_text())["exit_code"] == 9
    assert mpsctl("run", "--instance", "0", "--require-mps", "--", "true") == 4
    for words in (
        ["--memory", "5G", "--", "true"],
        ["--memory", "5", "--", "true"],
        ["--threads", "60", "--", "true"],
        ["--priority", "2", "--", "true"],
        ["--prove-timeout", "soon", "--", "true"],
        ["--"],
        [],
        ["--json", "--", "true"],
    ):
        assert mpsctl("run", "--instance", "0", *words) == 2
        assert len(mpsctl.err.splitlines()) == 1
    assert mpsctl("run", "--instance", "7", "--", "true") == 2


@pytest.mark.usefixtures("running")
def test_measure_without_a_gpu_that_answers(mpsctl: Shell, host: Host) -> None:
    host.nvml.others_mib = {777: 1}
    host.process("python3", "python3", pid=777)
    assert mpsctl("measure", "--gpu", "0") == 3
    assert "in use by 1 process" in mpsctl.err
    assert mpsctl("measure", "--instance", "0", "--gpu", "0") == 2
    assert mpsctl("measure", "--threads", "101") == 2


# -- verify


def test_verify_begins_with_a_monitoring_plugins_status_line(mpsctl: Shell, running: Host) -> None:
    assert mpsctl("verify") == 0
    assert mpsctl.out.splitlines()[0].startswith("MPS OK: 1 instance, ")
    running.running().percentage = 80.0
    (running.pipe_root / "0" / "control").unlink()
    assert mpsctl("verify") == 2
    first, host, instance, *rest = mpsctl.out.splitlines()
    assert first.startswith("MPS CRITICAL: instance 0: front-door: ")
    assert first.partition(" | ")[0].endswith("; 1 more did not pass")
    assert host.startswith("host: ok, ")
    assert instance.startswith("instance 0: CRITICAL, ")
    assert (
        "  CRITICAL thread-percentage: active thread percentage (default): the daemon shows 80.0, desired 50 %" in rest
    )
    assert "    expected: 50 %" in rest
    assert "    do: systemctl reload mps-control@0.service" in rest


def performance_data(line: str) -> dict[str, str]:
    """As monitoring reads it: behind the bar, by label."""
    words = re.findall(r"('[^']*'|[^ =']+)=(\S+)", line.partition(" | ")[2])
    return {label.strip("'"): value for label, value in words}


def test_verify_has_performance_data_of_what_is_told(mpsctl: Shell, live: Host) -> None:
    assert mpsctl("verify") == 0
    first = mpsctl.out.splitlines()[0]
    assert first.count("|") == 1
    expected = {"critical": "0", "warning": "0", "clients 0": "1;;;0;48", "memory 0": f"{600 << 20}B;;;0;"}
    found = performance_data(first)
    assert {key: found.get(key) for key in expected} == expected
    live.running().not_served = True
    assert mpsctl("verify") == 2
    found = performance_data(mpsctl.out.splitlines()[0])
    assert int(found["critical"]) > 0
    assert "clients 0" not in found, "what is not told is not there"


def test_a_check_can_be_left_out_or_judged_alone(mpsctl: Shell, running: Host) -> None:
    running.running().percentage = 80.0
    assert mpsctl("verify") == 2
    assert mpsctl("verify", "--ignore", "thread-percentage") == 0
    assert mpsctl("verify", "--only", "thread-percentage") == 2
    assert mpsctl("verify", "--only", "memory-limit", "--only", "compute-mode") == 0
    answer = mpsctl.json("verify", "--only", "memory-limit")
    assert [one["name"] for one in answer["instances"]["0"]["checks"]] == ["memory-limit"]
    assert answer["host"]["checks"] == []


@pytest.mark.parametrize("option", ["--only", "--ignore"])
@pytest.mark.parametrize("name", ["", "memory", "no-such-check", "memory-limit,drain"])
def test_a_check_that_there_is_not_is_refused(mpsctl: Shell, running: Host, option: str, name: str) -> None:
    assert mpsctl("verify", option, name) == 2
    assert mpsctl.err.count("\n") == 1


def test_verify_shows_what_passed_on_request(mpsctl: Shell, running: Host) -> None:
    assert mpsctl("verify") == 0
    assert "  ok unit-active: " not in mpsctl.out
    assert mpsctl("verify", "--all") == 0
    assert "  ok unit-active: mps-control@0.service is active (running)" in mpsctl.out


def test_a_bar_in_a_finding_begins_no_performance_data(mpsctl: Shell, running: Host) -> None:
    unit = running.systemd.unit("mps-control@0.service")
    unit.active_state, unit.sub_state = "failed", "a|b"
    assert mpsctl("verify") == 2
    assert mpsctl.out.splitlines()[0].count("|") == 1


@pytest.mark.usefixtures("running")
def test_allocate_needs_the_probe_client(mpsctl: Shell) -> None:
    assert mpsctl("verify", "--allocate") == 2
    assert "--probe-client" in mpsctl.err


def test_the_probe_clients_checks_stand_among_the_others_and_count(
    mpsctl: Shell, running: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*_: object) -> dict[str, list[Check]]:
        return {"0": [Check(probe_client.CONNECTS, CRITICAL, "it ran outside MPS", "a client under MPS", "see why")]}

    monkeypatch.setattr(probe_client, "look", look)
    assert mpsctl("verify") == 0
    assert mpsctl("verify", "--probe-client") == 2
    assert mpsctl.out.startswith("MPS CRITICAL: instance 0: probe-client-under-mps: it ran outside MPS")
    assert mpsctl.json("verify", "--probe-client")["instances"]["0"]["word"] == CRITICAL


# -- health


@pytest.mark.usefixtures("running")
def test_health_of_an_instance_that_is_ok_is_one_line(mpsctl: Shell) -> None:
    assert mpsctl("health") == 0
    assert mpsctl.out == "instance 0: ok\n"
    found = mpsctl.json("health")
    assert (found["worst"], found["instances"]["0"]["word"], found["instances"]["0"]["actions"]) == ("ok", "ok", [])


def test_health_names_what_is_amiss_in_one_line_each_and_ends_with_1(mpsctl: Shell, running: Host) -> None:
    pid = running.client(variable="1G")
    running.running().start_server(9001, clients=[pid])
    running.systemd.unit("mps-control@0.service").restarts = 1
    assert mpsctl("health") == 1
    word, *amiss = mpsctl.out.splitlines()
    assert word == "instance 0: CRITICAL"
    assert any(line.startswith(f"  ! client-limits: client {pid} ") for line in amiss)
    assert any(line.startswith("  ! restarts: ") and "; do: see why it ended" in line for line in amiss)
    assert all(line.startswith("  ! ") for line in amiss), "what is not known is left out beside what is amiss"


def test_health_says_what_it_did(mpsctl: Shell, running: Host) -> None:
    conf = running.places.conf("0")
    policy = "[Clients]\nLimitBypass=terminate\nLimitBypassGraceSec=1"
    conf.write_text(conf.read_text().replace("[Clients]", policy))
    pid = running.client(variable="1G")
    running.process("nvidia-cuda-mps-server", "nvidia-cuda-mps-server", {}, pid=9001)
    running.processes[9001].parent = running.running().pid
    running.running().start_server(9001, clients=[pid])
    (action,) = mpsctl.json("health")["instances"]["0"]["actions"]
    assert (action["kind"], action["pid"]) == (health.CLIENT_WILL_BE_ENDED, pid)
    running.clock.pass_by(1)
    assert mpsctl("health") == 1
    assert f"  > client {pid} " in mpsctl.out
    assert f"terminate_client 9001 {pid}" in mpsctl.out
    assert mpsctl("health") == 0


def test_health_of_a_host_that_was_never_converged(mpsctl: Shell) -> None:
    assert mpsctl("health") == 3
    assert "no instance has a file on this host" in mpsctl.out


# -- doctor


@pytest.mark.parametrize(
    ("words", "stdin", "code", "first"),
    [
        (("--error", "810"), "", 1, "terminated-by-daemon"),
        (("--log", "-"), "Cannot find MPS control daemon process\n", 1, "daemon-not-found"),
        (("--log", "-"), "nothing of note\n", 0, None),
        (("--unit", "-"), "[Service]\nExecStop=/usr/bin/nvidia-cuda-mps-control quit\n", 1, "quit-as-argument"),
        (("--container", "-"), '{"services": {"a": {"runtime": "nvidia"}}}', 1, "container-without-pipe-directory"),
    ],
)
def test_doctor_answers_what_it_is_given(
    mpsctl: Shell, words: tuple[str, ...], stdin: str, code: int, first: Optional[str]
) -> None:
    assert mpsctl("doctor", *words, stdin=stdin) == code
    assert (f"1. {first} (" in mpsctl.out) == (first is not None)
    assert ("nothing found" in mpsctl.out) == (first is None)
    found = mpsctl.json("doctor", *words, stdin=stdin)
    assert [one["name"] for one in found["diagnoses"]][:1] == ([first] if first else [])
    for one in found["diagnoses"]:
        assert set(one) == {"name", "cause", "evidence", "remedy", "certainty", "instances"}


@pytest.mark.parametrize(
    "words",
    [
        ("--error", "frobnicate"),
        ("--error", ""),
        ("--log", "/nowhere/at/all"),
        ("--unit", "/"),
        ("--pid", "many"),
        ("--pid", "0"),
        ("--pid", "4000000"),
        ("--container", "-"),
        ("7",),
    ],
)
def test_doctor_refuses_in_one_line(mpsctl: Shell, words: tuple[str, ...]) -> None:
    assert mpsctl("doctor", *words) == 2
    assert mpsctl.err.count("\n") == 1
    assert mpsctl.out == ""
