"""Given a host with one planted fault, the doctor's first diagnosis is its cause; and without one it says nothing."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Callable, Iterator, Optional

import pytest

from fakes import H200_MIB, FakeDaemon, Host, h200, uuid
from mpsctl.adapters import hardware, pipe, procfs, selinux
from mpsctl.causes import apple_gpu, consult, of_checks
from mpsctl.causes import host as doctors_host
from mpsctl.causes.catalogue import CAUSES
from mpsctl.causes.consult import Answer, Question
from mpsctl.checks import checking, client_checks, host_checks, instance_checks, verify
from mpsctl.cli import doctor
from mpsctl.model.errors import BadValue, NotReady
from mpsctl.model.finding import FAIL, PASS, WARN, Check

SERVER = 9001


@pytest.fixture(autouse=True)
def proc(host: Host, monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """The processes' states; all have CUDA mapped, and none is in a container or a namespace of its own."""
    states: dict[int, str] = {}
    monkeypatch.setattr(procfs, "state", lambda pid: states.get(pid, "S" if pid in host.processes else ""))
    monkeypatch.setattr(procfs, "maps", lambda pid, name: name == "libcuda.so")
    monkeypatch.setattr(procfs, "container", lambda pid: None)
    monkeypatch.setattr(procfs, "root", lambda pid: Path("/"))
    monkeypatch.setattr(procfs, "groups", lambda pid: frozenset())
    monkeypatch.setattr(procfs, "mounts", lambda pid: {})
    monkeypatch.setattr(procfs, "maps_users", lambda pid: False)
    monkeypatch.setattr(procfs, "open_files_limit", lambda pid: 1_048_576)
    monkeypatch.setattr(procfs, "namespace", lambda pid, kind: f"{kind}:[1]")
    monkeypatch.setattr(apple_gpu, "on_a_mac", lambda: False)
    return states


@pytest.fixture
def running(host: Host) -> FakeDaemon:
    """Instance 0 with a limit of 4 GiB runs in the desired state, with a server that has no client yet."""
    host.places.root.chmod(0o755)
    host.desired(DeviceMemoryLimit="4G", ComputeMode="exclusive_process")
    host.systemd.unit("mps-control@0.service").enabled = True
    daemon = host.start()
    daemon.start_server(host.process("nvidia-cuda-mps-server", "nvidia-cuda-mps-server", {}, 0, SERVER))
    host.processes[SERVER].parent = daemon.pid
    host.nvml.others_mib[SERVER] = 66
    return daemon


def variables(host: Host) -> dict[str, str]:
    return {"CUDA_MPS_PIPE_DIRECTORY": f"{host.pipe_root}/0", "CUDA_VISIBLE_DEVICES": uuid(0)}


def join(host: Host, daemon: FakeDaemon, held_mib: int = 600, **more: str) -> int:
    """A client of the server, which holds this much of GPU 0."""
    pid = host.process("python3", "python3 serve.py", {**variables(host), **more}, 1000)
    daemon.connect(SERVER, pid)
    host.nvml.clients_mib[pid] = held_mib
    return pid


def ask(host: Host, **question: object) -> Answer:
    """As `mpsctl doctor` does, with verify's checks."""
    asked = Question(**question)  # type: ignore[arg-type]
    answer = consult.consult(host.world, asked, doctor.checks(host.world, asked))
    assert not any("stands on the checks alone" in line for line in answer.understood), answer.understood
    return answer


def names(host: Host, **question: object) -> list[str]:
    return [one.name for one in ask(host, **question).diagnoses]


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


# -- clients that are none


def outsider(host: Host, environment: Optional[dict[str, str]], uid: int = 1000) -> int:
    pid = host.process("python3", "python3 train.py", environment, uid)
    host.nvml.others_mib[pid] = 600
    return pid


def test_a_client_with_a_wrong_pipe_directory(host: Host, running: FakeDaemon) -> None:
    pid = outsider(host, {"CUDA_MPS_PIPE_DIRECTORY": "/run/nvidia-mps/nowhere"})
    assert names(host)[:2] == ["pipe-directory-wrong", "client-outside-mps"]
    assert names(host, pids=[pid])[0] == "pipe-directory-wrong"


def test_a_client_with_none(host: Host, running: FakeDaemon) -> None:
    pid = outsider(host, {"PATH": "/usr/bin"})
    assert names(host)[:2] == ["pipe-directory-missing", "client-outside-mps"]
    assert names(host, pids=[pid])[0] == "pipe-directory-missing"


@pytest.mark.parametrize(
    ("environment", "cause"),
    [
        ({}, "pipe-directory-missing"),
        ({"CUDA_MPS_PIPE_DIRECTORY": ""}, "pipe-directory-missing"),
        ({"CUDA_MPS_PIPE_DIRECTORY": "/proc"}, "pipe-directory-wrong"),
        ({"CUDA_MPS_PIPE_DIRECTORY": "/not/here"}, "pipe-directory-wrong"),
        ({"CUDA_MPS_PIPE_DIRECTORY": "PUBLIC", "CUDA_VISIBLE_DEVICES": uuid(3)}, "visible-devices-renumbered"),
        ({"CUDA_MPS_PIPE_DIRECTORY": "PUBLIC"}, None),
        (None, None),
    ],
)
def test_the_host_and_the_process_have_one_reason(
    host: Host, running: FakeDaemon, environment: Optional[dict[str, str]], cause: Optional[str]
) -> None:
    public = f"{host.pipe_root}/0"
    known = environment and {name: value.replace("PUBLIC", public) for name, value in environment.items()}
    pid = outsider(host, environment if known is None else known)
    expected = {"client-outside-mps"} | ({cause} if cause else set())
    assert set(names(host)) == set(names(host, pids=[pid])) == expected
    for one in ask(host).diagnoses:
        assert any(f"pid {pid}" in line for line in one.evidence)


def test_a_process_that_was_started_before_the_daemon(host: Host, running: FakeDaemon) -> None:
    pid = outsider(host, variables(host))
    host.processes[pid].started_at = 1
    assert names(host) == ["client-outside-mps", "started-before-daemon"]
    assert set(names(host, pids=[pid])) == {"client-outside-mps", "started-before-daemon"}


def test_another_directory_of_the_same_name_in_a_container(
    host: Host, running: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = host.places.root / "inside"
    (inside / variables(host)["CUDA_MPS_PIPE_DIRECTORY"].lstrip("/")).mkdir(parents=True)
    pid = outsider(host, variables(host))
    monkeypatch.setattr(procfs, "container", lambda one: "0123456789abcdef" if one == pid else None)
    monkeypatch.setattr(procfs, "root", lambda one: inside if one == pid else Path("/"))
    assert names(host)[0] == names(host, pids=[pid])[0] == "container-without-pipe-directory"


@pytest.mark.parametrize("state", ["Z", "D"])
def test_a_dead_process_on_a_gpu_is_not_asked_for_its_environment(
    host: Host, running: FakeDaemon, proc: dict[int, str], state: str
) -> None:
    proc[outsider(host, {})] = state
    assert names(host) == ["zombie-client", "client-outside-mps"]


def test_an_unprivileged_client_before_a_closed_directory(host: Host, running: FakeDaemon) -> None:
    host.places.root.chmod(0o700)
    pid = outsider(host, variables(host), uid=65_534)
    found = ask(host).diagnoses
    assert found[0].name == "pipe-directory-closed"
    for who in ("every user", "user 65534"):
        line = f"{host.places.root}, on the way to the pipe directory, may not be entered by {who} (mode 0700"
        assert line in " ".join(found[0].evidence)
    assert found[0].remedy.startswith(f"`chmod o+x {host.places.root}`")
    assert names(host, pids=[pid])[0] == "pipe-directory-closed"
    assert names(host, errors=["805"])[0] == "pipe-directory-closed"


def test_a_client_that_is_not_in_the_group(host: Host, running: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    private = pipe.behind_door(host.pipe_root / "0")
    assert private is not None
    private.chmod(0o710)
    pid = outsider(host, variables(host), uid=65_534)
    assert names(host, pids=[pid])[0] == "not-in-group"
    monkeypatch.setattr(procfs, "groups", lambda one: [private.stat().st_gid])
    assert "not-in-group" not in names(host, pids=[pid])


def test_root_is_kept_out_by_no_directory(host: Host, running: FakeDaemon) -> None:
    host.places.root.chmod(0o700)
    pid = outsider(host, variables(host), uid=0)
    assert "pipe-directory-closed" not in names(host, pids=[pid])


def test_a_client_that_names_the_host_s_gpu(host: Host, running: FakeDaemon) -> None:
    pid = outsider(host, {**variables(host), "CUDA_VISIBLE_DEVICES": "3"})
    assert "visible-devices-renumbered" in names(host, pids=[pid])


def test_a_process_without_cuda_is_told_so(host: Host, running: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "maps", lambda pid, name: False)
    assert names(host, pids=[host.process("python3", "python3 serve.py", variables(host), 1000)]) == ["no-cuda-yet"]


def test_a_client_that_is_one_has_nothing_wrong(host: Host, running: FakeDaemon) -> None:
    answer = ask(host, pids=[join(host, running)])
    assert answer.diagnoses == []
    assert "an MPS client" in answer.understood[0]


@pytest.mark.parametrize(
    ("patch", "found"),
    [
        (("open_files_limit", lambda pid: 256), "open-files-limit"),
        (("namespace", lambda pid, kind: f"{kind}:[{pid}]"), "pid-namespace"),
        (("state", lambda pid: "D"), "zombie-client"),
    ],
)
def test_what_surrounds_a_process(
    host: Host,
    running: FakeDaemon,
    monkeypatch: pytest.MonkeyPatch,
    patch: tuple[str, Callable[..., object]],
    found: str,
) -> None:
    pid = join(host, running)
    monkeypatch.setattr(procfs, *patch)
    assert found in names(host, pids=[pid])


def test_a_container_without_the_mount(host: Host, running: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = host.places.root / "other"
    empty.mkdir()
    pid = outsider(host, variables(host))
    monkeypatch.setattr(procfs, "container", lambda one: "0123456789abcdef" if one == pid else None)
    monkeypatch.setattr(procfs, "root", lambda one: empty if one == pid else Path("/"))
    assert names(host, pids=[pid])[0] == "container-without-pipe-directory"


def test_a_bind_mount_on_another_path_is_the_same_directory(
    host: Host, running: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = host.places.root / "inside"
    inside.mkdir()
    (inside / "mps").symlink_to(host.pipe_root / "0")
    pid = outsider(host, {"CUDA_MPS_PIPE_DIRECTORY": "/mps"})
    monkeypatch.setattr(procfs, "root", lambda one: inside if one == pid else Path("/"))
    assert names(host, pids=[pid]) == ["client-outside-mps"]


def test_a_process_that_is_not_there_is_refused(host: Host, running: FakeDaemon) -> None:
    with pytest.raises(BadValue, match="no process 424242"):
        ask(host, pids=[424242])


# -- the daemon, its limits and servers


def test_a_limit_changed_by_hand(host: Host, running: FakeDaemon) -> None:
    running.ask(["set_default_device_pinned_mem_limit 0 8G"])
    assert names(host)[0] == "not-as-desired"


def test_a_server_in_fault(host: Host, running: FakeDaemon) -> None:
    running.servers[SERVER].state = "FAULT"
    assert names(host) == ["client-fault"]
    assert names(host, errors=["700"])[0] == "client-fault"


def test_a_fault_of_one_client_with_another_at_work(host: Host, running: FakeDaemon) -> None:
    join(host, running)
    running.write("Server", SERVER, "Client {PID: 77, Context: 1} encountered a fatal GPU error.")
    (found,) = ask(host).diagnoses
    assert (found.name, found.certainty) == ("client-fault", "certain")
    assert "the client that made the fault is pid 77" in found.evidence


def test_a_killed_server(host: Host, running: FakeDaemon) -> None:
    running.write("Control", 1, f"Server {SERVER} exited with status -9")
    running.servers.clear()
    assert names(host, errors=["806"])[0] == "server-gone"


def test_servers_that_end_again_and_again(host: Host, running: FakeDaemon) -> None:
    for pid in (95, 98):
        running.write("Control", pid, f"Starting new server {pid} for user 1000")
        running.write("Control", 1, f"Server {pid} exited with status 1")
    assert names(host)[0] == "server-crash-loop"
    assert names(host, errors=["805"])[0] == "server-crash-loop"


def test_a_second_user_that_waits(host: Host, running: FakeDaemon) -> None:
    running.write("Control", 1, f"NEW SERVER {SERVER}: Ready")
    pid = host.process("python3", "python3 serve.py", variables(host), 65_534)
    running.write("Control", 1, f"NEW CLIENT {pid} from user 65534: Server is not ready, push client to pending list")
    assert names(host)[0] == "waiting-behind-another-user"
    assert "waiting-behind-another-user" in names(host, pids=[pid])


def test_the_cap_of_clients(host: Host, running: FakeDaemon) -> None:
    for _ in range(48):
        join(host, running)
    assert "too-many-clients" in names(host)
    assert names(host, errors=["808"])[0] == "too-many-clients"


def test_a_stopped_daemon(host: Host, running: FakeDaemon, proc: dict[int, str]) -> None:
    running.not_served = True
    proc[running.pid] = "T"
    assert names(host)[0] == "daemon-stopped"


def test_a_held_session(host: Host, running: FakeDaemon) -> None:
    running.not_served = True
    assert names(host)[0] == "session-held"


def test_a_unit_that_does_not_run(host: Host, running: FakeDaemon) -> None:
    host.stop()
    host.kill(SERVER)
    del host.nvml.others_mib[SERVER]
    assert names(host) == ["unit-not-active"]


def test_a_zombie_that_is_still_listed(host: Host, running: FakeDaemon, proc: dict[int, str]) -> None:
    proc[join(host, running)] = "Z"
    assert names(host) == ["zombie-client"]


def test_a_client_that_shook_off_its_limit(host: Host, running: FakeDaemon) -> None:
    join(host, running, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="1G")
    assert names(host) == ["limit-shaken-off"]


def test_a_percentage_that_leaves_the_rest_idle(host: Host, running: FakeDaemon) -> None:
    host.desired(DeviceMemoryLimit="4G", ActiveThreadPercentage=33, ComputeMode="exclusive_process")
    host.systemd.act("reload", ["mps-control@0.service"])
    running.servers[SERVER].percentage = 33.0
    join(host, running)
    assert "percentage-caps-everyone" not in names(host), "the rest is for those that come"
    join(host, running)
    assert "percentage-caps-everyone" in names(host)


# -- what hangs


def test_nvml_that_hangs_is_left_behind(host: Host, running: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctors_host.verify_look, "NVML_TIMEOUT_S", 0.1)
    host.nvml.hangs = True
    checks = [one for _, one in verify.verify(host.world, nvml_timeout_s=0.1).every]
    answer = consult.consult(host.world, Question(), checks)
    assert answer.understood[0].startswith("looked at 1 instance, 0 GPUs")
    assert answer.diagnoses[0].name == "no-driver"


@pytest.mark.parametrize("of", ["host", "pid"])
def test_a_process_of_which_proc_does_not_answer_is_left_behind(
    host: Host, running: FakeDaemon, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    monkeypatch.setattr(consult, "TIMEOUT_S", 0.1)
    pid, parent = join(host, running), os.getpid()
    command = procfs.command

    def read(one: int) -> str:
        if one == pid and os.getpid() != parent:
            time.sleep(3600)
        return command(one)

    monkeypatch.setattr(procfs, "command", read)
    asked = Question() if of == "host" else Question(pids=[pid])
    answer = consult.consult(host.world, asked, [Check("front-door", FAIL, "this", "that", "do so")])
    assert "did not answer within 0.1 s" in answer.understood[0]
    assert [one.name for one in answer.diagnoses] == (["front door-closed"] if of == "host" else [])


def test_a_stopped_daemon_is_never_asked(host: Host, running: FakeDaemon, proc: dict[int, str]) -> None:
    asked = len(running.commands)
    proc[running.pid] = "T"
    assert not doctors_host.known(host.world, []).statuses[0].daemon_answers
    assert len(running.commands) == asked


# -- others on the host


def test_a_daemon_of_nobody_on_the_same_gpu(host: Host, running: FakeDaemon) -> None:
    directory = host.places.root / "theirs"
    directory.mkdir()
    for name in ("control", "control_lock", "log"):
        (directory / name).touch()
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(directory), "CUDA_VISIBLE_DEVICES": "0"}
    host.process("nvidia-cuda-mps-control", "nvidia-cuda-mps-control -d", environment)
    assert names(host)[0] == "two-daemons-one-gpu"


def test_a_daemon_of_an_instance_that_is_not_asked_about_is_not_foreign(host: Host, running: FakeDaemon) -> None:
    host.desired("1", ComputeMode="exclusive_process")
    host.systemd.unit("mps-control@1.service").enabled = True
    host.start("1")
    assert names(host, instances=["0"]) == []


def test_without_systemd_no_daemon_is_called_foreign(
    host: Host, running: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(units: list[str]) -> None:
        raise NotReady("systemctl is not on this host")

    monkeypatch.setattr(host.systemd, "show", show)
    assert names(host) == []


def test_a_unit_that_is_overridden_is_not_read(host: Host, running: FakeDaemon) -> None:
    for directory, text in (
        ("etc", "ExecStart=/bin/true"),
        ("usr/lib", "ExecStop=/usr/bin/nvidia-cuda-mps-control quit"),
    ):
        path = host.places.root / directory / "systemd/system/nvidia-mps.service"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"[Service]\n{text}\n")
    assert names(host) == []
    (host.places.root / "etc/systemd/system/nvidia-mps.service").unlink()
    assert names(host) == ["quit-as-argument"]


def test_a_job_s_daemon_that_serves_one_gpu_of_four(host: Host) -> None:
    host.process("nvidia-cuda-mps-control", "nvidia-cuda-mps-control -d", {"CUDA_VISIBLE_DEVICES": "0"})
    assert names(host, errors=["No CUDA GPUs are available"])[0] in ("orphan-daemon", "daemon-serves-other-gpus")
    (found,) = [one for one in ask(host).diagnoses if one.name == "daemon-serves-other-gpus"]
    assert "serves 1 of 4 GPUs" in found.evidence[0]


@pytest.mark.parametrize(
    ("left", "cause"),
    [
        ([], "orphan-daemon"),
        (["control_lock", "log"], "orphan-daemon"),
        (["control", "control_privileged"], "cleaned-pipe-directory"),
    ],
)
def test_a_pipe_directory_that_was_cleaned_under_its_daemon(host: Host, left: list[str], cause: str) -> None:
    directory = host.places.root / "theirs"
    directory.mkdir()
    for name in left:
        (directory / name).touch()
    host.process("nvidia-cuda-mps-control", "nvidia-cuda-mps-control -d", {"CUDA_MPS_PIPE_DIRECTORY": str(directory)})
    assert names(host)[0] == cause


def test_exclusive_mode_that_was_left_behind(host: Host, running: FakeDaemon) -> None:
    host.nvml.all[2] = h200(2, compute_mode="exclusive_process")
    assert names(host) == ["exclusive-without-daemon"]
    assert names(host, errors=["46"])[0] == "exclusive-without-daemon"


def test_persistence_off_on_a_served_gpu(host: Host, running: FakeDaemon) -> None:
    host.nvml.all[0] = h200(0, compute_mode="exclusive_process", persistence=False)
    assert names(host) == ["persistence-off"]


def test_another_manager_s_unit_is_named_with_its_faults(host: Host, running: FakeDaemon) -> None:
    path = host.places.units / "nvidia-mps.service"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "[Service]\nExecStart=/usr/bin/nvidia-cuda-mps-control -d\nRemainAfterExit=yes\nRestart=always\n"
        "Environment=CUDA_MPS_PIPE_DIRECTORY=/run/other\n"
    )
    assert names(host) == ["active-without-daemon"]
    host.systemd.unit("nvidia-mps.service").active_state = "active"
    found = {one.name: one for one in ask(host).diagnoses}
    assert set(found) == {"active-without-daemon", "several-managers"}
    assert str(path) in found["several-managers"].evidence[0]


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


# -- memory


def test_a_client_out_of_its_quota(host: Host, running: FakeDaemon) -> None:
    pid = join(host, running, held_mib=4096 - 20)
    found = ask(host).diagnoses
    assert (found[0].name, found[0].certainty) == ("own-limit-reached", "certain")
    assert f"client {pid}" in found[0].evidence[0]
    assert "holds 4076 MiB of its limit of 4096 MiB" in found[0].evidence[0]
    for text in ("2", "CUDA out of memory. Tried to allocate 1.00 GiB"):
        assert names(host, errors=[text])[0] == "own-limit-reached"
        assert "card-full" not in names(host, errors=[text])
    assert names(host, pids=[pid]) == ["own-limit-reached"]


def test_a_full_card(host: Host, running: FakeDaemon) -> None:
    hog = host.process("python3", "python3 hog.py", variables(host))
    host.nvml.others_mib[hog] = H200_MIB - 700
    join(host, running, held_mib=600)
    found = {one.name: one for one in ask(host).diagnoses}
    assert found["card-full"].certainty == "certain"
    assert any(f"pid {hog} holds {H200_MIB - 700} MiB" in line for line in found["card-full"].evidence)
    assert names(host, errors=["2"])[0] in ("card-full", "client-outside-mps")
    assert "own-limit-reached" not in names(host, errors=["2"])


def test_limits_that_add_up_to_more_than_the_card(host: Host, running: FakeDaemon) -> None:
    for _ in range(36):
        join(host, running, held_mib=3980)
    found = names(host, errors=["2"])
    assert {"limits-oversubscribed", "limit-is-per-process"} <= set(found)


def test_contexts_that_take_much_of_the_card(host: Host, running: FakeDaemon) -> None:
    for _ in range(47):
        join(host, running, held_mib=3000)
    (found,) = [one for one in ask(host, errors=["2"]).diagnoses if one.name == "density-too-high"]
    assert f"47 contexts of 514 MiB are {47 * 514} of {H200_MIB} MiB" in found.evidence[0]


def test_ranks_of_which_one_holds_much_more(host: Host, running: FakeDaemon) -> None:
    for held_mib in (4070, 900, 900):
        join(host, running, held_mib=held_mib)
    assert names(host)[:2] == ["own-limit-reached", "uneven-ranks"]


def test_even_ranks_are_none(host: Host, running: FakeDaemon) -> None:
    for _ in range(3):
        join(host, running, held_mib=4070)
    assert names(host) == ["own-limit-reached"]


def test_a_framework_that_reckons_with_the_whole_card(host: Host, running: FakeDaemon) -> None:
    pid = host.process("python3", "vllm serve m --gpu-memory-utilization 0.45", variables(host))
    running.connect(SERVER, pid)
    host.nvml.clients_mib[pid] = 4000
    (found,) = [one for one in ask(host, errors=["2"]).diagnoses if one.name == "framework-cache"]
    assert "takes 0.45 of 143155 MiB, its limit of 4096 MiB leaves 3582 MiB beside a context" in found.evidence[0]
    assert "--gpu-memory-utilization 0.0243" in found.remedy


@pytest.mark.parametrize(("share", "told"), [("0.0243", False), ("0.0286", True)])
def test_a_framework_may_take_its_limit_less_its_context(
    host: Host, running: FakeDaemon, share: str, told: bool
) -> None:
    pid = host.process("python3", f"vllm serve m --gpu-memory-utilization {share}", variables(host))
    running.connect(SERVER, pid)
    host.nvml.clients_mib[pid] = 4000
    found = [one for one in ask(host, errors=["2"]).diagnoses if one.name == "framework-cache"]
    found = [one for one in found if one.certainty == "likely"]
    assert bool(found) == told


def test_a_limit_below_a_context(host: Host) -> None:
    host.desired(DeviceMemoryLimit="400M")
    host.start()
    assert names(host, errors=["2"])[0] == "limit-below-context"


def test_without_an_instance_the_error_alone_is_explained(host: Host) -> None:
    assert names(host, errors=["2"])[:2] == ["own-limit-reached", "card-full"]


# -- jobs, checks and the rest


def test_two_ranks_of_torchrun(host: Host, running: FakeDaemon) -> None:
    for rank in ("0", "1"):
        join(host, running, RANK=rank, WORLD_SIZE="2", LOCAL_RANK=rank, MASTER_ADDR="n1", MASTER_PORT="29500")
    assert names(host) == ["distributed-job", "nccl-ranks-on-one-gpu"]


@pytest.mark.parametrize(("level", "found"), [(PASS, []), (WARN, ["some-check"]), (FAIL, ["some-check"])])
def test_a_failing_check_is_a_diagnosis(host: Host, running: FakeDaemon, level: str, found: list[str]) -> None:
    checks = [Check("some-check", level, "this", "that", "do so", ("line",))]
    diagnoses = consult.consult(host.world, Question(), checks).diagnoses
    assert [one.name for one in diagnoses] == found
    for one in diagnoses:
        assert (one.evidence, one.remedy) == (("this", "line"), "do so")


def test_an_error_of_which_nothing_is_known_is_refused_in_one_line(host: Host, running: FakeDaemon) -> None:
    with pytest.raises(BadValue) as refused:
        ask(host, errors=["frob\nnicate"])
    assert "'frob nicate'" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_instance_that_is_not_there_is_refused(host: Host, running: FakeDaemon) -> None:
    with pytest.raises(BadValue):
        ask(host, instances=["7"])


@pytest.mark.parametrize("text", ["mps", "MPS backend out of memory (MPS allocated: 8.8 GB)", 'torch.device("mps")'])
def test_the_other_mps(host: Host, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(apple_gpu, "_ask", lambda python: {"torch": "2.11.0", "built": False, "available": False})
    (found,) = ask(host, errors=[text]).diagnoses
    assert found.name == "metal-performance-shaders"
    assert found.cause.count(". ") == 1  # two sentences
    assert any("torch 2.11.0, torch.backends.mps built no and available no" in line for line in found.evidence)


def test_on_a_mac_the_other_mps_is_explained(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apple_gpu, "on_a_mac", lambda: True)
    monkeypatch.setattr(apple_gpu, "_ask", lambda python: {"torch": "2.11.0", "built": True, "available": True})
    (found,) = ask(host).diagnoses
    assert any("built yes and available yes" in line for line in found.evidence)


def test_on_a_mac_an_error_of_cuda_is_explained_by_itself(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_there() -> Iterator[int]:
        raise FileNotFoundError("/proc")

    monkeypatch.setattr(apple_gpu, "on_a_mac", lambda: True)
    monkeypatch.setattr(procfs, "pids", none_there)
    assert names(host, errors=["810"]) == ["terminated-by-daemon"]


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


@pytest.mark.parametrize("program", ["exit 1", "echo no json", "echo 3"])
def test_no_torch_is_told(tmp_path: Path, program: str) -> None:
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    assert "no torch" in apple_gpu.present(str(python))
    assert "no torch" in apple_gpu.present(str(tmp_path / "none"))


def test_every_cause_of_a_check_is_in_the_catalogue() -> None:
    assert set(of_checks.CAUSES_OF_CHECKS.values()) <= set(CAUSES)
    every = [*host_checks.CHECKS, *instance_checks.CHECKS, *client_checks.CHECKS]
    names = {checking.name_of(one) for one in every}  # type: ignore[arg-type]
    assert {*of_checks.CAUSES_OF_CHECKS, *of_checks.ADVICE} <= names


def test_every_reason_that_a_proof_gives_is_in_the_catalogue() -> None:
    sources = Path(verify.__file__).parents[2].rglob("*.py")
    given = {cause for path in sources for cause in re.findall(r'Reason\(\s*"([a-z-]+)"', path.read_text())}
    assert "pipe-directory-missing" in given
    assert given <= set(CAUSES)
