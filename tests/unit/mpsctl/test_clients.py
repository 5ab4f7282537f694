"""status: what each server and each connected client really holds, and which client shook off its limit."""

from __future__ import annotations

from typing import Optional

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mpsctl.observe.status import Status

from fakes import FakeDaemon, Host, uuid
from mpsctl.cli import render
from mpsctl.model import client_variable
from mpsctl.observe import clients, status
from mpsctl.observe.clients import Client

MIB = 1 << 20
SERVER = 9001
DESIRED = {"DeviceMemoryLimit": "4G", "ComputeMode": "exclusive_process"}
anywhere = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def look(host: Host, name: str = "0") -> Status:
    (found,) = status.status_of_all(host.world, [name])
    return found


def begin(host: Host, name: str = "0", **values: object) -> FakeDaemon:
    """A start of its own, also in the many rounds of one test."""
    if host.systemd.unit(f"mps-control@{name}.service").main_pid:
        host.stop(name)
    host.desired(name, **{**DESIRED, **values})
    host.systemd.unit(f"mps-control@{name}.service").enabled = True
    return host.start(name)


@pytest.fixture
def daemon(host: Host) -> FakeDaemon:
    """Instance 0 runs with 4G, and a server of it."""
    made = begin(host)
    made.start_server(SERVER)
    return made


def change_limit(host: Host, to: str) -> None:
    host.desired(**{**DESIRED, "DeviceMemoryLimit": to})
    assert host.systemd.act("reload", ["mps-control@0.service"]) is None


def join(host: Host, daemon: FakeDaemon, variable: Optional[str] = None) -> int:
    pid = host.client(variable=variable)
    daemon.connect(SERVER, pid)
    return pid


def hold(host: Host, pid: int, mib: Optional[int], gpu: int = 0) -> None:
    assert host.nvml.held_mib is not None
    host.nvml.held_mib.setdefault(uuid(gpu), {})[pid] = mib


def of_pid(found: Status, pid: int) -> Client:
    return next(client for server in found.servers for client in server.clients if client.pid == pid)


# -- the server's own line


@pytest.mark.usefixtures("daemon")
def test_a_servers_limit_is_shown_to_the_byte(host: Host) -> None:
    (value,) = look(host).servers[0].values
    assert (value.log, value.log_bytes) == ("0x100000000 bytes (4096 MiB)", 4096 * MIB)
    assert value.in_force
    assert look(host).values[0].log is None, "no log tells the bytes of a default"


@pytest.mark.parametrize("really_mib", [4097, 4500, 5119])
def test_a_limit_that_the_getter_rounds_to_the_desired_one_is_not_in_force(
    host: Host, daemon: FakeDaemon, really_mib: int
) -> None:
    """Somebody set it by hand: the daemon shows 4G for each of them, and our record still says 4096 MiB."""
    daemon.ask([f"set_device_pinned_mem_limit {SERVER} 0 {really_mib}M"])
    found = look(host)
    (value,) = found.servers[0].values
    assert (value.shown, value.in_force) == ("4G", False)
    assert found.reload_needed
    assert found.findings == [
        f"memory limit of device 0 (server {SERVER}): the server's log says 0x{really_mib * MIB:x} bytes"
        f" ({really_mib} MiB), desired 4096 MiB"
    ]


def test_a_reload_brings_such_a_limit_back(host: Host, daemon: FakeDaemon) -> None:
    daemon.ask([f"set_device_pinned_mem_limit {SERVER} 0 4500M"])
    change_limit(host, "4G")
    assert daemon.servers[SERVER].limits == {"0": 4096 * MIB}
    assert look(host).findings == []


@given(really_mib=st.integers(1, 200_000), desired_mib=st.integers(1, 140_000))
@anywhere
def test_in_force_means_the_very_bytes(host: Host, really_mib: int, desired_mib: int) -> None:
    daemon = begin(host, DeviceMemoryLimit=f"{desired_mib}M")
    daemon.start_server(SERVER)
    daemon.ask([f"set_device_pinned_mem_limit {SERVER} 0 {really_mib}M"])
    (value,) = look(host).servers[0].values
    assert value.in_force == (really_mib == desired_mib)


def test_where_the_journal_has_no_line_getter_and_record_decide(host: Host, daemon: FakeDaemon) -> None:
    daemon.log.clear()
    found = look(host)
    (value,) = found.servers[0].values
    assert (value.log, value.log_bytes, value.in_force) == ("cannot tell, the journal has no line", None, True)
    assert found.as_desired
    daemon.servers[SERVER].limits["0"] = 8192 * MIB
    assert not look(host).as_desired


def test_a_line_that_is_still_on_its_way_is_waited_for(host: Host, daemon: FakeDaemon) -> None:
    change_limit(host, "6G")
    host.systemd.late = 1
    assert look(host).findings == []
    assert daemon.servers[SERVER].limits == {"0": 6144 * MIB}


@pytest.mark.parametrize("key", [uuid(3), uuid(3)[:12], uuid(3).upper()])
def test_a_server_may_name_its_device_by_uuid(host: Host, key: str) -> None:
    daemon = begin(host, "a", GPUs="3")
    daemon.limits = {key: 4096 * MIB}
    daemon.start_server(SERVER, clients=[host.client()])
    found = look(host, "a")
    assert found.servers[0].values[0].log_bytes == 4096 * MIB
    assert found.servers[0].clients[0].limits_mib == [4096]


def test_of_two_names_for_one_device_the_last_that_was_set_counts(host: Host, daemon: FakeDaemon) -> None:
    for key, mib in (("0", 1024), (uuid(0), 2048), ("0", 4096)):
        daemon.write("Server", SERVER, f"Device pinned memory limit for device {key} set to 0x{mib * MIB:x} bytes")
    assert look(host).servers[0].values[0].log_bytes == 4096 * MIB


def test_ordinals_are_the_daemons_own_whatever_the_host_calls_the_gpu(host: Host) -> None:
    """B07: the daemon of GPU 3 calls it device 0; a limit or a variable for a device 3 reaches nothing."""
    daemon = begin(host, "d", GPUs="3")
    assert daemon.limits == {"0": 4096 * MIB}
    daemon.start_server(SERVER)
    daemon.write("Server", SERVER, "Device pinned memory limit for device 3 set to 0x40000000 bytes")
    good, bad = host.client(variable="0=1G"), host.client(variable="3=1G")
    for pid in (good, bad):
        daemon.connect(SERVER, pid)
    found = look(host, "d")
    assert found.servers[0].values[0].in_force
    assert of_pid(found, good).bypassed is None
    assert "names device 3, which the client cannot see" in str(of_pid(found, bad).bypassed)


def test_a_command_that_was_given_is_no_proof_that_it_holds(host: Host, daemon: FakeDaemon) -> None:
    """B10: the control daemon's echo of the command stands in the same journal; the server's line counts."""
    daemon.write("Control", 1, "Cmd:set_device_pinned_mem_limit 9001 0 4096M")
    daemon.write("Server", SERVER, "Device pinned memory limit for device 0 set to 0x120000000 bytes")
    assert not look(host).servers[0].values[0].in_force


@pytest.mark.usefixtures("daemon")
def test_a_host_on_which_nobody_works_does_not_pay_for_it(host: Host) -> None:
    begin(host, "1")
    reads, opened = host.systemd.journal_reads, host.nvml.times_opened
    look(host, "1")
    assert (host.systemd.journal_reads - reads, host.nvml.times_opened - opened) == (0, 1)
    look(host, "0")
    assert host.systemd.journal_reads - reads == 1
    assert host.nvml.times_opened - opened == 2, "a server without clients holds nothing that NVML is asked for"


def test_a_percentage_of_a_server_is_read_from_it_and_from_no_utilisation(host: Host) -> None:
    """B12: a daemon that was told too late has 100, whatever the desired state."""
    daemon = begin(host, ActiveThreadPercentage=50)
    daemon.start_server(SERVER).percentage = 100.0
    assert look(host).findings == [
        f"active thread percentage (server {SERVER}): the daemon shows 100.0, desired 50 %",
    ]


@pytest.mark.parametrize("served", [uuid(0), f"{uuid(0)},{uuid(2)}", "", "0"])
def test_a_daemon_that_serves_other_gpus_than_desired_is_told(host: Host, served: str) -> None:
    """B14: it took over the CUDA_VISIBLE_DEVICES of whoever started it."""
    daemon = begin(host, "all", GPUs="0 1 2")
    environment = host.processes[daemon.pid].environment
    assert environment is not None
    environment["CUDA_VISIBLE_DEVICES"] = served
    found = look(host, "all")
    assert not found.as_desired
    assert any(f"desired {uuid(0)}, {uuid(1)}, {uuid(2)}" in finding for finding in found.findings)


# -- clients


def test_every_client_is_described(host: Host, daemon: FakeDaemon) -> None:
    pid = join(host, daemon)
    hold(host, pid, 900)
    client = of_pid(look(host), pid)
    assert (client.uid, client.command) == (1000, "python3 serve.py")
    assert client.since is not None
    assert client.since.startswith("2026-11-29 14:")
    assert (client.limits_mib, client.memory_mib) == ([4096], [900])
    assert (client.older, client.bypassed, client.unlimited, client.cannot_tell) == (None, None, None, None)
    assert look(host).as_desired


def test_a_changed_limit_costs_nobody_anything_and_tells_old_clients_from_new(host: Host, daemon: FakeDaemon) -> None:
    """B42: nothing is restarted; who connected before keeps what it has, and is no fault."""
    old = [join(host, daemon) for _ in range(8)]
    host.systemd.acts.clear()
    change_limit(host, "6G")
    new = join(host, daemon)
    found = look(host)
    assert host.systemd.acts == ["reload mps-control@0.service"]
    assert found.as_desired
    assert found.restart_needed is None
    assert host.running() is daemon
    for pid in old:
        client = of_pid(found, pid)
        assert client.limits_mib == [4096]
        assert client.older == f"holds 4096 MiB since {client.since}, desired 6144 MiB: connected before the change"
    assert (of_pid(found, new).limits_mib, of_pid(found, new).older) == ([6144], None)


@given(limits_mib=st.lists(st.integers(1, 140_000), min_size=1, max_size=6))
@anywhere
def test_a_client_holds_the_limit_of_its_moment_through_any_number_of_changes(
    host: Host, limits_mib: list[int]
) -> None:
    daemon = begin(host, DeviceMemoryLimit=f"{limits_mib[0]}M")
    daemon.start_server(SERVER)
    pids = {}
    for mib in limits_mib:
        change_limit(host, f"{mib}M")
        pids[join(host, daemon)] = mib
    found = look(host)
    assert found.as_desired
    for pid, mib in pids.items():
        client = of_pid(found, pid)
        assert client.limits_mib == [mib]
        assert (client.older is None) == (mib == limits_mib[-1])


def test_clients_of_several_gpus_have_a_limit_on_each(host: Host) -> None:
    daemon = begin(host, "pair", GPUs="2 0")
    daemon.start_server(SERVER)
    pid = join(host, daemon)
    hold(host, pid, 500, gpu=2)
    hold(host, pid, 700, gpu=0)
    daemon.ask([f"set_device_pinned_mem_limit {SERVER} 1 512M"])
    late = join(host, daemon)
    found = look(host, "pair")
    assert (of_pid(found, pid).limits_mib, of_pid(found, pid).memory_mib) == ([4096, 4096], [500, 700])
    assert of_pid(found, late).limits_mib == [4096, 512]
    assert "512 MiB on device 1" in str(of_pid(found, late).older)


def test_a_client_that_got_in_before_any_limit_is_a_finding(host: Host) -> None:
    host.desired(**DESIRED)
    host.systemd.unit("mps-control@0.service").enabled = True
    daemon = host.prepared()
    daemon.start_server(SERVER)
    early = join(host, daemon)
    host.systemd.unit("mps-control@0.service").active_state = "active"
    change_limit(host, "4G")
    late = join(host, daemon)
    found = look(host)
    assert not found.as_desired
    assert found.findings == found.client_findings
    (finding,) = found.findings
    assert f"client {early} " in finding
    assert "got in without a limit: its server had no limit for device 0 when it connected" in finding
    assert of_pid(found, late).unlimited is None


def test_without_the_servers_first_line_a_missing_limit_line_proves_nothing(host: Host, daemon: FakeDaemon) -> None:
    pid = join(host, daemon)
    del daemon.log[:-1]
    found = look(host)
    assert found.as_desired
    assert of_pid(found, pid).cannot_tell == "the journal has no line of its server's limit"


def test_where_no_limit_is_desired_there_is_none_to_bypass(host: Host) -> None:
    daemon = begin(host, DeviceMemoryLimit=None)
    daemon.start_server(SERVER)
    pid = join(host, daemon, "1=1G")
    found = look(host)
    assert found.as_desired
    assert of_pid(found, pid).bypassed is None


def test_limits_are_per_process_and_may_add_up_to_more_than_there_is(host: Host) -> None:
    """B09: five processes of two services with 40 GiB each on a GPU of 140 GiB."""
    daemon = begin(host, DeviceMemoryLimit="40G")
    daemon.start_server(SERVER)
    for _ in range(3):
        join(host, daemon)
    assert look(host).notes == []
    join(host, daemon)
    found = look(host)
    assert found.as_desired
    (note,) = found.notes
    assert "4 client processes add up to 163840 MiB of 143771 MiB" in note
    assert "per process, not per service or container" in note


# -- limit bypasses


@pytest.mark.parametrize("variable", ["0=1G,1=1G", "1=1G", "1G", "8192MB", "85899345920", "''0=1G,1=512MB''"])
def test_each_limit_bypass_is_named_within_one_status(host: Host, daemon: FakeDaemon, variable: str) -> None:
    """The first three were measured (driver 580, H200); B01: no device before the amount, or bytes."""
    other = join(host, daemon, "0=1G")
    pid = join(host, daemon, variable)
    found = look(host)
    assert not found.as_desired
    (finding,) = found.findings
    assert f"client {pid} (python3 serve.py, user " in finding
    assert f"of server {SERVER} bypassed its limit: {client_variable.VARIABLE}={variable}:" in finding
    assert of_pid(found, other).bypassed is None
    assert not found.reload_needed, "no reload can mend it"


@given(variable=st.text(st.characters(blacklist_characters="=\0", blacklist_categories=["Cs"]), max_size=20))
@anywhere
def test_any_value_without_a_device_is_a_limit_bypass(host: Host, variable: str) -> None:
    daemon = begin(host)
    daemon.start_server(SERVER)
    pid = join(host, daemon, variable)
    assert of_pid(look(host), pid).bypassed is not None


@given(
    limits_mib=st.dictionaries(
        st.one_of(st.integers(0, 1), st.sampled_from([uuid(2), uuid(0)])), st.integers(1, 140_000), min_size=1
    )
)
@anywhere
def test_no_value_that_this_program_writes_is_a_limit_bypass(host: Host, limits_mib: dict[int | str, int]) -> None:
    """B02: the form is dev=value, for one GPU, for several, and by UUID."""
    daemon = begin(host, "pair", GPUs="2 0")
    daemon.start_server(SERVER)
    pid = join(host, daemon, client_variable.render(limits_mib))
    found = look(host, "pair")
    assert found.as_desired
    assert of_pid(found, pid).bypassed is None


def test_more_memory_than_its_limit_is_a_limit_bypass_for_certain(host: Host, daemon: FakeDaemon) -> None:
    pid = join(host, daemon)
    hold(host, pid, 30_000)
    (finding,) = look(host).findings
    assert "bypassed its limit: it holds 30000 MiB on device 0, above its limit of 4096 MiB" in finding


@pytest.mark.parametrize("held_mib", [0, 4096, 4096 + clients.TOLERANCE_MIB, None])
def test_a_client_at_the_edge_of_its_limit_has_not_bypassed_it(
    host: Host, daemon: FakeDaemon, held_mib: Optional[int]
) -> None:
    pid = join(host, daemon)
    hold(host, pid, held_mib)
    assert look(host).as_desired


def test_an_old_client_is_held_against_its_own_limit(host: Host, daemon: FakeDaemon) -> None:
    pid = join(host, daemon)
    hold(host, pid, 4000)
    change_limit(host, "2G")
    found = look(host)
    assert found.as_desired
    assert of_pid(found, pid).older is not None


def test_memory_without_a_known_limit_is_not_judged(host: Host, daemon: FakeDaemon) -> None:
    pid = join(host, daemon)
    hold(host, pid, 30_000)
    daemon.log.clear()
    found = look(host)
    assert found.as_desired
    assert "holds 30000 MiB" in str(of_pid(found, pid).cannot_tell)


@pytest.mark.parametrize("nvml", ["tells nothing", "is gone"])
def test_an_nvml_that_does_not_tell_is_no_limit_bypass(host: Host, daemon: FakeDaemon, nvml: str) -> None:
    pid = join(host, daemon)
    if nvml == "tells nothing":
        host.nvml.held_mib = None
    else:
        host.nvml.driver_up = False
    client = of_pid(look(host), pid)
    assert (client.memory_mib, client.bypassed) == ([None], None)


def test_an_environment_that_cannot_be_read_cannot_be_told(host: Host, daemon: FakeDaemon) -> None:
    pid = join(host, daemon, "1G")
    host.processes[pid].environment = None
    found = look(host)
    assert found.as_desired
    assert of_pid(found, pid).cannot_tell == "its environment cannot be read"


# -- what a person reads


def test_a_person_reads_it_all_in_one_line_per_client(
    host: Host, daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    old, bad = join(host, daemon), join(host, daemon, "1G")
    hold(host, old, 600)
    change_limit(host, "6G")
    render.status([look(host)], host.places.configuration, [])
    said = capsys.readouterr().out.splitlines()
    (line,) = [text for text in said if f"client {old} " in text]
    assert "limit 4096 MiB, holds 600 MiB, since 2026-11-29" in line
    assert "older limit: holds 4096 MiB since" in line
    assert sum(f"client {bad} " in text for text in said) == 2, "in the list and among the findings"
    assert any("its log: 0x180000000 bytes (6144 MiB)" in text for text in said)


def test_clients_are_plain_data(host: Host, daemon: FakeDaemon) -> None:
    pid = join(host, daemon)
    (server,) = look(host).as_json()["servers"]
    assert server["clients"][0]["pid"] == pid
    assert server["values"][0]["log_bytes"] == 4096 * MIB
