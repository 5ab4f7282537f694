"""The judgements of who works on an instance's GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import pytest

from fakes import H200_MIB, RESERVED_MIB, Host, h200, uuid
from judging import SERVER, UNIT, amiss, connect, judge, only, outsider, public, serve
from mpsctl.model.finding import CRITICAL, OK, UNKNOWN, WARNING
from mpsctl.model.gpu import Load

# -- clients


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({}, "CUDA_MPS_PIPE_DIRECTORY is not set in its environment"),
        ({"CUDA_MPS_PIPE_DIRECTORY": "/proc"}, "CUDA_MPS_PIPE_DIRECTORY=/proc instead of"),
        ({"CUDA_MPS_PIPE_DIRECTORY": "/not/here"}, "CUDA_MPS_PIPE_DIRECTORY=/not/here instead of"),
        ({"CUDA_MPS_PIPE_DIRECTORY": "PUBLIC", "CUDA_VISIBLE_DEVICES": uuid(3)}, "names no GPU of this instance"),
        ({"CUDA_MPS_PIPE_DIRECTORY": "PUBLIC"}, "its environment is right"),
        ({"CUDA_MPS_PIPE_DIRECTORY": "PUBLIC/"}, "its environment is right"),
    ],
)
def test_a_process_outside_mps_and_why(live: Host, environment: dict[str, str], reason: str) -> None:
    pid = outsider(live, **{key: value.replace("PUBLIC", public(live)) for key, value in environment.items()})
    found = only(live, "gpu-processes", CRITICAL).found
    assert found.startswith(f"pid {pid} (python3 serve.py, user ")
    assert "9000 MiB) is outside MPS: " in found
    assert reason in found


def test_a_process_that_was_started_before_the_daemon(live: Host) -> None:
    pid = outsider(live, CUDA_MPS_PIPE_DIRECTORY=public(live))
    live.processes[pid].started_at = 1
    assert "started before this daemon" in only(live, "gpu-processes", CRITICAL).found


def test_another_directory_is_no_containers_fault_where_the_daemons_unit_is_sandboxed(live: Host) -> None:
    """The unit's sandbox gives the daemon mounts of its own, which say nothing of the process."""
    live.processes[live.running().pid].mounts = 3
    outsider(live, CUDA_MPS_PIPE_DIRECTORY="/run/nowhere")
    check = only(live, "gpu-processes", CRITICAL)
    assert [reason.cause for reason in check.reasons][:1] == ["pipe-directory-wrong"]


def test_a_restart_that_waits_for_clients_is_shown(live: Host) -> None:
    live.desired(
        DeviceMemoryLimit="4G",
        ActiveThreadPercentage=50,
        ClientPriority=1,
        ComputeMode="exclusive_process",
        PipeDirectory="/run/elsewhere/%i",
    )
    found = {one.name: one for one in judge(live).instances["0"]}["restart-pending"]
    assert found.level == WARNING
    assert found.found == f"the front door stands at {public(live)}, desired /run/elsewhere/0"


@pytest.mark.parametrize(
    ("said", "level", "found"),
    [
        ("13000", OK, "the daemon and the driver are of CUDA 13.0"),
        ("12080", WARNING, "the daemon is of CUDA 12.8, the driver of CUDA 13.0"),
        ("13030", WARNING, "the daemon is of CUDA 13.3, the driver of CUDA 13.0"),
        (None, OK, "the daemon does not tell its version"),
    ],
)
def test_a_daemon_of_another_release_than_the_driver(live: Host, said: Optional[str], level: str, found: str) -> None:
    daemon = live.running()
    if said:
        daemon.write("Control", daemon.pid, f"CUDA MPS Control binary version: {said}")
    check = {one.name: one for one in judge(live).instances["0"]}["daemon-version"]
    assert (check.level, check.found) == (level, found)


def test_a_server_that_ended_under_its_clients(live: Host) -> None:
    """A server that was killed reports status 0 as well."""
    daemon = live.running()
    (client,) = daemon.servers.pop(SERVER).clients
    daemon.write("Control", daemon.pid, f"Server {SERVER} exited with status 0")
    live.processes.pop(SERVER)
    live.nvml.outside_mib[uuid(0)].pop(SERVER)
    assert live.nvml.held_mib is not None
    live.nvml.held_mib.clear()
    check = only(live, "server-exits", WARNING)
    assert check.found == f"server {SERVER} ended under 1 client (pid {client})"
    assert [reason.cause for reason in check.reasons] == ["server-gone"]
    serve(live, daemon, clients=0)
    assert amiss(judge(live)) == {}, "another took over"


def test_a_server_whose_clients_had_left_ended_well(live: Host) -> None:
    daemon = live.running()
    (client,) = daemon.servers[SERVER].clients
    daemon.leave(SERVER, client)
    daemon.servers.pop(SERVER)
    daemon.write("Control", daemon.pid, f"Server {SERVER} exited with status 0")
    live.nvml.outside_mib[uuid(0)].pop(SERVER)
    assert live.nvml.held_mib is not None
    live.nvml.held_mib.clear()
    assert amiss(judge(live)) == {}


def fault(host: Host, named: int) -> None:
    """What the server's log says of a client's illegal access (driver 580, H200)."""
    host.running().write("Server", SERVER, f"Client {{PID: {named}, Context: 1}} encountered a fatal GPU error.")


def test_the_fault_of_a_servers_only_client_is_its_own_until_others_have_come(live: Host) -> None:
    (client,) = live.running().servers[SERVER].clients
    fault(live, client)
    check = only(live, "client-faults", WARNING)
    assert (check.facts["culprit"], check.facts["clients"]) == (client, [client])
    connect(live, live.running())
    assert amiss(judge(live)) == {}


@pytest.mark.parametrize("bystanders", [1, 2, 3, 5])
def test_of_several_clients_nobody_is_named_as_the_culprit(live: Host, bystanders: int) -> None:
    """The log names a bystander, 10 times of 10 (driver 580, H200)."""
    others = [connect(live, live.running()) for _ in range(bystanders)]
    fault(live, others[0])
    check = only(live, "client-faults", WARNING)
    assert check.facts["culprit"] is None
    assert set(check.facts["clients"]) == set(live.running().servers[SERVER].clients)  # type: ignore[call-overload]
    assert "which one is not told" in check.found


def test_a_client_that_is_left_alone_is_no_culprit(live: Host) -> None:
    """One that is ended in the middle of its work takes its neighbours along, and has left a moment before."""
    (victim,) = live.running().servers[SERVER].clients
    other = connect(live, live.running())
    live.running().leave(SERVER, victim)
    fault(live, other)
    found = judge(live).check("0", "client-faults")
    assert found.facts["culprit"] is None


@pytest.mark.parametrize(("held_mib", "level"), [(4098, WARNING), (4081, WARNING), (4080, OK), (600, OK)])
def test_a_client_that_has_used_up_its_limit(live: Host, held_mib: int, level: str) -> None:
    (client,) = live.running().servers[SERVER].clients
    assert live.nvml.held_mib is not None
    live.nvml.held_mib[uuid(0)][client] = held_mib
    found = {one.name: one for one in judge(live).instances["0"]}["client-memory"]
    assert found.level == level
    assert level == OK or f"holds {held_mib} MiB of its limit of 4096 MiB" in found.found


@pytest.mark.parametrize(("left_mib", "level"), [(15, WARNING), (5000, OK)])
def test_a_card_on_which_no_more_context_fits(live: Host, left_mib: int, level: str) -> None:
    (client,) = live.running().servers[SERVER].clients
    outsider(live, CUDA_MPS_PIPE_DIRECTORY="/run/nowhere")
    assert live.nvml.held_mib is not None
    others = sum(mib or 0 for mib in live.nvml.outside_mib[uuid(0)].values())
    live.nvml.held_mib[uuid(0)][client] = H200_MIB - RESERVED_MIB - others - left_mib
    found = {one.name: one for one in judge(live).instances["0"]}["gpu-memory"]
    assert found.level == level
    assert f"{left_mib} of {H200_MIB} MiB" in found.found  # what the driver keeps for itself is not free


def test_a_card_whose_room_nvml_does_not_tell(live: Host) -> None:
    live.nvml.loads[uuid(0)] = Load()
    found = {one.name: one for one in judge(live).instances["0"]}["gpu-memory"]
    assert found.level == UNKNOWN


@pytest.mark.parametrize(
    ("free_mib", "level", "says"),
    [
        ((100_000, 50_000), OK, "50000 of 143771 MiB of GPU 1"),
        ((50_000, 100_000), OK, "50000 of 143771 MiB of GPU 0"),
        ((100_000, 15), WARNING, "15 of 143771 MiB of GPU 1"),
        ((None, 15), WARNING, "15 of 143771 MiB of GPU 1"),
        ((15, None), WARNING, "15 of 143771 MiB of GPU 0"),
        ((100_000, None), UNKNOWN, "NVML does not tell how much of GPU 1"),
        ((None, 100_000), UNKNOWN, "NVML does not tell how much of GPU 0"),
    ],
)
def test_of_several_cards_the_fullest_is_told(
    host: Host, free_mib: tuple[Optional[int], ...], level: str, says: str
) -> None:
    host.nvml.all = [h200(0), h200(1)]
    host.desired(GPUs="0 1", ComputeMode="default")
    host.systemd.unit(UNIT).enabled = True
    serve(host, host.start())
    for number, free in enumerate(free_mib):
        host.nvml.loads[uuid(number)] = Load(free_mib=free)
    found = {one.name: one for one in judge(host).instances["0"]}["gpu-memory"]
    assert (found.level, says in found.found) == (level, True), found.found


def test_a_container_without_the_directory_mounted(live: Host, tmp_path: Path) -> None:
    pid = outsider(live, CUDA_MPS_PIPE_DIRECTORY=public(live))
    process = live.processes[pid]
    process.root, process.mounts, process.container = tmp_path, 2, "4f1e77"
    found = only(live, "gpu-processes", CRITICAL).found
    assert "container 4f1e77" in found
    assert "its mount namespace does not have it: mount it" in found


def test_a_user_before_a_closed_ancestor(live: Host) -> None:
    outsider(live, CUDA_MPS_PIPE_DIRECTORY=public(live))
    live.pipe_root.chmod(0o700)
    report = judge(live)
    found = next(one.found for one in report.instances["0"] if one.name == "gpu-processes")
    assert f"{live.pipe_root}, on the way to the pipe directory, may not be entered by user 1000 (mode 0700" in found


def test_an_environment_that_may_not_be_read_is_no_reason(live: Host) -> None:
    live.processes[outsider(live)].environment = None
    assert "its environment cannot be read" in only(live, "gpu-processes", CRITICAL).found


def test_a_process_that_proc_does_not_show(live: Host) -> None:
    live.nvml.outside_mib[uuid(0)][777] = 100
    assert "pid 777" in only(live, "gpu-processes", UNKNOWN).found


def test_an_nvml_that_lists_no_processes(live: Host) -> None:
    live.nvml.held_mib = None
    found = amiss(judge(live))
    assert found["gpu-processes"] == found["client-variables"] == found["client-connections"] == UNKNOWN
    assert "client-count" not in found  # the daemon's own list is enough


def test_a_client_of_another_daemon(live: Host) -> None:
    assert live.nvml.held_mib is not None
    pid = live.client(CUDA_MPS_PIPE_DIRECTORY="/run/other")
    live.nvml.held_mib[uuid(0)][pid] = 600
    found = only(live, "gpu-processes", CRITICAL).found
    assert f"pid {pid}" in found
    assert "is of another daemon: an MPS client of the daemon on /run/other" in found


def test_a_process_on_another_gpu_is_not_this_instances(live: Host) -> None:
    outsider(live, uuid(1))
    assert amiss(judge(live)) == {}


def test_a_client_that_bypassed_its_limit_its_limit(live: Host) -> None:
    pid = connect(live, live.running(), CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="1G")
    assert f"client {pid}" in only(live, "client-limits", CRITICAL).found


def test_a_client_with_an_older_limit_is_a_note(live: Host) -> None:
    live.desired(DeviceMemoryLimit="5G", ActiveThreadPercentage=50, ClientPriority=1, ComputeMode="exclusive_process")
    live.systemd.act("reload", [UNIT])
    report = judge(live)
    assert amiss(report) == {}
    (older,) = (one for one in report.instances["0"] if one.name == "older-limits")
    assert "connected before the change" in older.evidence[0]


@pytest.mark.parametrize(("clients", "level"), [(43, OK), (44, WARNING), (47, WARNING), (48, CRITICAL)])
def test_clients_near_the_cap(live: Host, clients: int, level: str) -> None:
    for _ in range(clients - 1):
        connect(live, live.running())
    if level == OK:
        assert amiss(judge(live)) == {}
    else:
        assert f"{clients} clients on GPU 0" in only(live, "client-count", level).found


@pytest.mark.parametrize(("value", "level"), [("1", OK), ("2", OK), ("8", WARNING), ("many", WARNING)])
def test_connections_that_lower_the_cap(live: Host, value: str, level: str) -> None:
    connect(live, live.running(), CUDA_DEVICE_MAX_CONNECTIONS=value)
    assert amiss(judge(live)) == ({} if level == OK else {"client-connections": WARNING})


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("CUDA_MPS_DEVICE_MEM_LIMIT", "0=1G", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is the nearest"),
        ("CUDA_MPS_ACTIVE_THREADS_PERCENTAGE", "50", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE is the nearest"),
        ("CUDA_MPS_CLIENT_PRIORITY", "'1'", "has quotes inside the value"),
        ("CUDA_MPS_SM_PARTITION", '"a"', "has quotes inside the value"),
    ],
)
def test_variables_that_mps_does_not_know(live: Host, name: str, value: str, says: str) -> None:
    connect(live, live.running(), **{name: value})
    assert says in only(live, "client-variables", WARNING).found


@pytest.mark.parametrize("name", ["client-variables", "client-connections"])
def test_a_clients_environment_that_may_not_be_read(live: Host, name: str) -> None:
    live.processes[connect(live, live.running())].environment = None
    assert amiss(judge(live))[name] == UNKNOWN


def test_a_client_that_waits_behind_another_user(live: Host) -> None:
    waiting = live.client(uid=1000, CUDA_MPS_PIPE_DIRECTORY=public(live))
    line = f"NEW CLIENT {waiting} from user 1000: Server is not ready, push client to pending list"
    live.running().write("Control", live.running().pid, line)
    found = only(live, "waiting-clients", WARNING).found
    assert f"pid {waiting} of user 1000" in found
    assert "behind user 0" in found
    live.kill(waiting)
    assert amiss(judge(live)) == {}


def test_client_pids_that_a_namespace_hides(live: Host) -> None:
    line = "NEW CLIENT 0 from user 0: Server is not ready, push client to pending list"
    live.running().write("Control", 261, line)
    assert "process id 0" in only(live, "client-pids", WARNING).found


@pytest.mark.parametrize(("policy", "level"), [("ignore", None), ("warn", WARNING), ("fail", CRITICAL)])
def test_ranks_of_a_distributed_run_under_each_policy(live: Host, policy: str, level: Optional[str]) -> None:
    live.desired(
        DeviceMemoryLimit="4G",
        ActiveThreadPercentage=50,
        ClientPriority=1,
        ComputeMode="exclusive_process",
        DistributedJobs=policy,
    )
    for rank in ("0", "1"):
        connect(live, live.running(), RANK=rank, WORLD_SIZE="2", MASTER_ADDR="n1", MASTER_PORT="29500")
    names = ("distributed-jobs", "nccl-ranks-on-one-gpu")
    assert amiss(judge(live)) == ({} if level is None else dict.fromkeys(names, level))
