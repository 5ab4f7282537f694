"""status: what each server and each connected client really holds, and which client shook off its limit."""

from __future__ import annotations

from typing import Optional

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes import FakeDaemon, Host, uuid
from mpsctl.checks import report, words
from mpsctl.checks.judgement import STATUS
from mpsctl.model import client_variable
from mpsctl.model.finding import OK, RELOAD, UNKNOWN, Check
from mpsctl.observe import clients
from mpsctl.observe import host as host_look
from mpsctl.observe.facts import ClientFacts, InstanceFacts

MIB = 1 << 20
SERVER = 9001
DESIRED = {"DeviceMemoryLimit": "4G", "ComputeMode": "exclusive_process"}
anywhere = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def look(host: Host, name: str = "0") -> InstanceFacts:
    return host_look.look(host.world, [name]).instances[name]


def amiss(host: Host, name: str = "0") -> list[str]:
    """What of an instance is critical or warns, by the checks' ids; a default mode of a test aside."""
    found = report.report(host_look.look(host.world, [name]), STATUS)
    return [one.name for one in found.amiss(name)]


def of_check(host: Host, check: str, name: str = "0") -> Check:
    return report.report(host_look.look(host.world, [name]), STATUS).check(name, check)


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


def of_pid(found: InstanceFacts, pid: int) -> ClientFacts:
    return next(client for server in found.servers for client in server.clients if client.pid == pid)


# -- the server's own line


@pytest.mark.usefixtures("daemon")
def test_a_servers_limit_is_shown_to_the_byte(host: Host) -> None:
    (value,) = look(host).servers[0].values
    assert value.desired.said_bytes == 4096 * MIB
    assert value.in_force
    assert look(host).values[0].desired.said_bytes == 4096 * MIB, "the control daemon echoes the command (535 to 580)"


@pytest.mark.parametrize("really_mib", [4097, 4500, 5119])
def test_a_limit_that_the_getter_rounds_to_the_desired_one_is_not_in_force(
    host: Host, daemon: FakeDaemon, really_mib: int
) -> None:
    """Somebody set it by hand: the daemon shows 4G for each of them, and our record still says 4096 MiB."""
    daemon.ask([f"set_device_pinned_mem_limit {SERVER} 0 {really_mib}M"])
    (value,) = look(host).servers[0].values
    assert (value.shown, value.in_force) == ("4G", False)
    found = of_check(host, "memory-limit")
    assert (amiss(host), found.mends) == (["memory-limit"], RELOAD)
    assert f"(server {SERVER}): the daemon shows 4G, the server's log says {really_mib} MiB" in found.found


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("by_hand", ["5119M", "4097m", "4500MB", "5119"])
def test_a_default_set_by_hand_that_reads_back_as_the_desired_one_is_not_in_force(host: Host, by_hand: str) -> None:
    """The getter shows 4G for it, and our record still says 4096 MiB; the daemon's own log has the command."""
    host.running().ask([f"set_default_device_pinned_mem_limit 0 {by_hand}"])
    assert (amiss(host), of_check(host, "memory-limit").mends) == (["memory-limit"], RELOAD)
    change_limit(host, "4G")
    assert host.running().limits == {"0": 4096 * MIB}
    assert amiss(host) == []


def test_without_a_log_a_reload_sets_what_is_not_known_to_the_byte(host: Host, daemon: FakeDaemon) -> None:
    daemon.ask(["set_default_device_pinned_mem_limit 0 5119M"])
    daemon.log.clear()
    assert amiss(host) == [], "nobody can tell"
    change_limit(host, "4G")
    assert daemon.limits == {"0": 4096 * MIB}


def test_a_reload_brings_such_a_limit_back(host: Host, daemon: FakeDaemon) -> None:
    daemon.ask([f"set_device_pinned_mem_limit {SERVER} 0 4500M"])
    change_limit(host, "4G")
    assert daemon.servers[SERVER].limits == {"0": 4096 * MIB}
    assert amiss(host) == []


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
    (value,) = look(host).servers[0].values
    assert (value.desired.said_bytes, value.in_force) == (None, True)
    assert amiss(host) == []
    daemon.servers[SERVER].limits["0"] = 8192 * MIB
    assert amiss(host) == ["memory-limit"]


def test_a_line_that_is_still_on_its_way_is_waited_for(host: Host, daemon: FakeDaemon) -> None:
    change_limit(host, "6G")
    host.systemd.late = 1
    assert amiss(host) == []
    assert daemon.servers[SERVER].limits == {"0": 6144 * MIB}


@pytest.mark.parametrize("key", [uuid(3), uuid(3)[:12], uuid(3).upper()])
def test_a_server_may_name_its_device_by_uuid(host: Host, key: str) -> None:
    daemon = begin(host, "a", GPUs="3")
    daemon.limits = {key: 4096 * MIB}
    daemon.start_server(SERVER, clients=[host.client()])
    found = look(host, "a")
    assert found.servers[0].values[0].desired.said_bytes == 4096 * MIB
    assert found.servers[0].clients[0].limits_mib == [4096]


def test_of_two_names_for_one_device_the_last_that_was_set_counts(host: Host, daemon: FakeDaemon) -> None:
    for key, mib in (("0", 1024), (uuid(0), 2048), ("0", 4096)):
        daemon.write("Server", SERVER, f"Device pinned memory limit for device {key} set to 0x{mib * MIB:x} bytes")
    assert look(host).servers[0].values[0].desired.said_bytes == 4096 * MIB


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
    assert of_pid(found, good).bypass is None
    assert of_pid(found, bad).bypass == client_variable.Bypass("3=1G", "3=1G", "3")


def test_a_command_that_was_given_is_no_proof_that_it_holds(host: Host, daemon: FakeDaemon) -> None:
    """B10: the control daemon's echo of the command stands in the same journal; the server's line counts."""
    daemon.write("Control", 1, "Cmd:set_device_pinned_mem_limit 9001 0 4096M")
    daemon.write("Server", SERVER, "Device pinned memory limit for device 0 set to 0x120000000 bytes")
    assert not look(host).servers[0].values[0].in_force


def test_a_percentage_of_a_server_is_read_from_it_and_from_no_utilisation(host: Host) -> None:
    """B12: a daemon that was told too late has 100, whatever the desired state."""
    daemon = begin(host, ActiveThreadPercentage=50)
    daemon.start_server(SERVER).percentage = 100.0
    assert amiss(host) == ["thread-percentage"]
    found = of_check(host, "thread-percentage").found
    assert found == f"active thread percentage (server {SERVER}): the daemon shows 100.0, desired 50 %"


@pytest.mark.parametrize("served", [uuid(0), f"{uuid(0)},{uuid(2)}", "", "0"])
def test_a_daemon_that_serves_other_gpus_than_desired_is_told(host: Host, served: str) -> None:
    """B14: it took over the CUDA_VISIBLE_DEVICES of whoever started it."""
    daemon = begin(host, "all", GPUs="0 1 2")
    environment = host.processes[daemon.pid].environment
    assert environment is not None
    environment["CUDA_VISIBLE_DEVICES"] = served
    assert f"desired {uuid(0)}, {uuid(1)}, {uuid(2)}" in of_check(host, "restart-pending", "all").found


# -- clients


def test_every_client_is_described(host: Host, daemon: FakeDaemon) -> None:
    pid = join(host, daemon)
    hold(host, pid, 900)
    client = of_pid(look(host), pid)
    assert (client.uid, client.command) == (1000, "python3 serve.py")
    assert client.since is not None
    assert client.since.startswith("2026-11-29 14:")
    assert (client.limits_mib, client.memory_mib) == ([4096], [900])
    assert (client.older, client.bypass, client.unlimited, client.limit_untold) == ((), None, False, False)
    assert amiss(host) == []


def test_a_changed_limit_costs_nobody_anything_and_tells_old_clients_from_new(host: Host, daemon: FakeDaemon) -> None:
    """B42: nothing is restarted; who connected before keeps what it has, and is no fault."""
    old = [join(host, daemon) for _ in range(8)]
    host.systemd.acts.clear()
    change_limit(host, "6G")
    new = join(host, daemon)
    found = look(host)
    assert host.systemd.acts == ["reload mps-control@0.service"]
    assert amiss(host) == []
    assert host.running() is daemon
    for pid in old:
        client = of_pid(found, pid)
        assert client.limits_mib == [4096]
        assert (
            words.older(client) == f"holds 4096 MiB since {client.since}, desired 6144 MiB: connected before the change"
        )
    assert (of_pid(found, new).limits_mib, of_pid(found, new).older) == ([6144], ())


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
    assert amiss(host) == []
    for pid, mib in pids.items():
        client = of_pid(found, pid)
        assert client.limits_mib == [mib]
        assert (client.older == ()) == (mib == limits_mib[-1])


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
    assert [(one.ordinal, one.limit_mib) for one in of_pid(found, late).older] == [(1, 512)]


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
    assert of_pid(found, early).without == (0,)
    assert not of_pid(found, late).unlimited
    check = of_check(host, "client-limits")
    assert check.facts["pids"] == [early]
    assert "its server had no limit for device 0 when it connected" in check.found


def test_a_client_that_began_with_another_server_is_a_finding(host: Host, daemon: FakeDaemon) -> None:
    """Its daemon was killed between its cuInit and its context (driver 580, H200)."""
    fine, late = join(host, daemon), host.client()
    daemon.servers[SERVER].clients.append(late)
    daemon.write("Server", SERVER, f"Client {{PID: {late}, Context ID: 1}} connected")
    check = of_check(host, "client-limits")
    assert (check.level, check.facts["pids"]) == ("critical", [late])
    assert "began with another server" in check.found
    assert not of_pid(look(host), fine).unlimited


def test_without_the_servers_first_line_a_missing_limit_line_proves_nothing(host: Host, daemon: FakeDaemon) -> None:
    pid = join(host, daemon)
    del daemon.log[:-1]
    found = look(host)
    assert of_pid(found, pid).limit_untold
    assert (amiss(host), of_check(host, "client-limits").level) == ([], UNKNOWN)


def test_where_no_limit_is_desired_there_is_none_to_bypass(host: Host) -> None:
    daemon = begin(host, DeviceMemoryLimit=None)
    daemon.start_server(SERVER)
    pid = join(host, daemon, "1=1G")
    found = look(host)
    assert of_pid(found, pid).bypass is None
    assert of_check(host, "client-limits").level == OK


def test_limits_are_per_process_and_may_add_up_to_more_than_there_is(host: Host) -> None:
    """B09: five processes of two services with 40 GiB each on a GPU of 140 GiB."""
    daemon = begin(host, DeviceMemoryLimit="40G")
    daemon.start_server(SERVER)
    for _ in range(3):
        join(host, daemon)
    assert of_check(host, "limits-together").evidence == ()
    join(host, daemon)
    check = of_check(host, "limits-together")
    assert check.level == OK
    assert "4 client processes add up to 163840 MiB of 143771 MiB" in check.found
    assert "per process, not per service or container" in check.found


# -- limit bypasses


@pytest.mark.parametrize("variable", ["0=1G,1=1G", "1=1G", "1G", "8192MB", "85899345920", "''0=1G,1=512MB''"])
def test_each_limit_bypass_is_named_within_one_status(host: Host, daemon: FakeDaemon, variable: str) -> None:
    """The first three were measured (driver 580, H200); B01: no device before the amount, or bytes."""
    other = join(host, daemon, "0=1G")
    pid = join(host, daemon, variable)
    found = of_check(host, "client-limits")
    assert found.facts["pids"] == [pid]
    assert f"client {pid} (python3 serve.py, user " in found.found
    assert f"has no limit: {client_variable.VARIABLE}={variable}:" in found.found
    assert found.mends != RELOAD, "no reload can mend it"
    assert of_pid(look(host), other).bypass is None


@given(variable=st.text(st.characters(blacklist_characters="=\0", blacklist_categories=["Cs"]), max_size=20))
@anywhere
def test_any_value_without_a_device_is_a_limit_bypass(host: Host, variable: str) -> None:
    daemon = begin(host)
    daemon.start_server(SERVER)
    pid = join(host, daemon, variable)
    assert of_pid(look(host), pid).bypass is not None


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
    assert of_check(host, "client-limits", "pair").level == OK
    assert of_pid(look(host, "pair"), pid).bypass is None


def test_more_memory_than_its_limit_is_a_limit_bypass_for_certain(host: Host, daemon: FakeDaemon) -> None:
    pid = join(host, daemon)
    hold(host, pid, 30_000)
    assert of_pid(look(host), pid).over[0].limit_mib == 4096
    assert "it holds 30000 MiB on device 0, above its limit of 4096 MiB" in of_check(host, "client-limits").found


@pytest.mark.parametrize("held_mib", [0, 4096, 4096 + clients.TOLERANCE_MIB, None])
def test_a_client_at_the_edge_of_its_limit_has_not_bypassed_it(
    host: Host, daemon: FakeDaemon, held_mib: Optional[int]
) -> None:
    pid = join(host, daemon)
    hold(host, pid, held_mib)
    assert of_pid(look(host), pid).over == ()
    assert of_check(host, "client-limits").level == OK


def test_an_old_client_is_held_against_its_own_limit(host: Host, daemon: FakeDaemon) -> None:
    pid = join(host, daemon)
    hold(host, pid, 4000)
    change_limit(host, "2G")
    assert of_check(host, "client-limits").level == OK
    assert of_pid(look(host), pid).older != ()


@pytest.mark.wording
def test_memory_without_a_known_limit_is_not_judged(host: Host, daemon: FakeDaemon) -> None:
    pid = join(host, daemon)
    hold(host, pid, 30_000)
    daemon.log.clear()
    assert not of_pid(look(host), pid).unlimited
    check = of_check(host, "client-limits")
    assert (check.level, "holds 30000 MiB" in check.found) == (UNKNOWN, True)


@pytest.mark.parametrize("nvml", ["tells nothing", "is gone"])
def test_an_nvml_that_does_not_tell_is_no_limit_bypass(host: Host, daemon: FakeDaemon, nvml: str) -> None:
    pid = join(host, daemon)
    if nvml == "tells nothing":
        host.nvml.held_mib = None
    else:
        host.nvml.driver_up = False
    client = of_pid(look(host), pid)
    assert (client.memory_mib, client.bypass, client.over) == ([None], None, ())


@pytest.mark.wording
def test_an_environment_that_cannot_be_read_cannot_be_told(host: Host, daemon: FakeDaemon) -> None:
    pid = join(host, daemon, "1G")
    host.processes[pid].environment = None
    assert not of_pid(look(host), pid).readable
    check = of_check(host, "client-limits")
    assert (check.level, "its environment cannot be read" in check.found) == (UNKNOWN, True)
