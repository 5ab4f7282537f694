"""apply: limits are set, read back, and only then can a client find the daemon."""

from __future__ import annotations

import pytest

from fakes import FakeDaemon, Host, h200, split_by_mig, uuid
from mpsctl.lifecycle import apply, prepare
from mpsctl.model.errors import BadValue, MpsctlError, NotInForce, NotReady
from mpsctl.store import admission, record

MIB = 1 << 20


def reload(host: Host, name: str = "0") -> list[str]:
    """ExecReload of a unit that runs: systemd hands the main process over."""
    return apply.apply(host.world, name, host.running(name).pid)


def test_after_a_start_limit_percentage_and_priority_are_in_force(host: Host) -> None:
    host.desired(DeviceMemoryLimit="4G", ActiveThreadPercentage=50, ClientPriority=1)
    daemon = host.start()
    assert daemon.limits == {"0": 4096 * MIB}
    assert (daemon.percentage, daemon.priority) == (50.0, 1)


def test_a_share_of_the_memory_is_sent_as_whole_mib(host: Host) -> None:
    host.desired(DeviceMemoryLimit="20%")
    assert host.start().limits == {"0": 28_754 * MIB}


def test_several_gpus_get_their_limits_by_the_daemons_own_ordinals(host: Host) -> None:
    """The daemon numbers from 0 what CUDA_VISIBLE_DEVICES hands it, in that order."""
    host.nvml.all[3] = h200(3, memory_mib=81_920)
    host.desired("pair", GPUs="3 1", DeviceMemoryLimit="50%")
    daemon = host.start("pair")
    assert daemon.limits == {"0": 40_960 * MIB, "1": 71_885 * MIB}
    assert host.processes[daemon.pid].environment == {
        "CUDA_MPS_PIPE_DIRECTORY": str(host.own("pair")),
        "CUDA_VISIBLE_DEVICES": f"{uuid(3)},{uuid(1)}",
    }


def test_a_mig_device_gets_a_share_of_its_own_memory(host: Host) -> None:
    host.nvml.all[2] = split_by_mig(2)
    host.desired("m", GPUs=uuid(300, "MIG"), DeviceMemoryLimit="50%")
    assert host.start("m").limits == {"0": 8192 * MIB}


def test_a_share_of_a_user_whom_the_host_lost_keeps_no_instance_down(host: Host) -> None:
    """He was deleted, or whoever knows him is not up yet: a check tells it, and a converge refuses it."""
    shares = "each-user=2 user:0=3 user:nobodys-own=1 user:root=2"
    host.desired(OverExpected="wait", Shares=shares)
    host.start()
    assert host.door_is_open()
    told = admission.read(host.places, "0")
    assert told is not None
    assert told.room is not None
    assert str(told.room.shares) == "user:0=2 each-user=2"
    assert reload(host) == []


def test_what_is_not_managed_is_not_touched(host: Host) -> None:
    host.desired()
    assert host.start().setters == []


def test_clients_can_connect_only_after_everything_was_read_back(host: Host) -> None:
    host.desired(DeviceMemoryLimit="4G", ActiveThreadPercentage=50, ClientPriority=1)
    daemon = host.prepared()
    order: list[tuple[str, bool]] = []
    daemon.before_command = lambda command: order.append((command, host.door_is_open()))
    apply.apply(host.world, "0", daemon.pid)
    assert host.door_is_open()
    assert not any(was_open for _, was_open in order)
    commands = [command for command, _ in order]
    for setter in daemon.setters:
        getter = " ".join(setter.replace("set_", "get_", 1).split()[:-1])
        assert getter in commands[commands.index(setter) :], f"{setter} was not read back"


@pytest.mark.parametrize(
    ("deaf_to", "what"),
    [
        ("device_pinned_mem_limit", "memory limit of device 0: desired 4096 MiB, reads back nothing"),
        ("active_thread_percentage", "active thread percentage: desired 50 %, reads back 100.0"),
        ("client_priority", "client priority: desired 1, reads back 0"),
    ],
)
def test_a_value_that_the_daemon_does_not_hold_keeps_the_door_closed(host: Host, deaf_to: str, what: str) -> None:
    host.desired(DeviceMemoryLimit="4G", ActiveThreadPercentage=50, ClientPriority=1)
    daemon = host.prepared()
    daemon.deaf_to = deaf_to
    with pytest.raises(NotInForce) as failure:
        apply.apply(host.world, "0", daemon.pid)
    assert what in str(failure.value)
    assert f"`set_default_{deaf_to}" in str(failure.value)
    assert not host.door_is_open()
    assert record.read(host.world, "0") is None


def test_a_daemon_that_dies_before_it_answers_ends_the_wait_at_once(host: Host) -> None:
    host.desired(DeviceMemoryLimit="4G")
    daemon = host.prepared()
    daemon.unreachable = True
    host.clock.when(0.1, lambda: host.kill(daemon.pid))
    with pytest.raises(NotReady, match="ended before it answered"):
        apply.apply(host.world, "0", daemon.pid)
    assert sum(host.clock.slept_s) < 1
    assert not host.door_is_open()


def test_a_daemon_that_dies_while_its_limits_are_set_keeps_the_door_closed(host: Host) -> None:
    host.desired(DeviceMemoryLimit="900M")
    daemon = host.prepared()
    daemon.before_command = lambda command: host.kill(daemon.pid) if command.startswith("set_") else None
    with pytest.raises(NotReady):
        apply.apply(host.world, "0", daemon.pid)
    assert not host.door_is_open()


def test_a_daemon_that_dies_after_the_last_answer_keeps_the_door_closed(host: Host) -> None:
    host.desired(DeviceMemoryLimit="900M")
    daemon = host.prepared()

    def end(command: str) -> None:
        if command == "get_server_list":
            del host.processes[daemon.pid]

    daemon.before_command = end
    with pytest.raises(NotReady, match="ended while its limits were set"):
        apply.apply(host.world, "0", daemon.pid)
    assert not host.door_is_open()


def test_a_daemon_that_takes_a_while_to_listen_is_waited_for(host: Host) -> None:
    host.desired(DeviceMemoryLimit="4G")
    daemon = host.prepared()
    daemon.unreachable = True

    def listen() -> None:
        daemon.unreachable = False

    host.clock.when(2.0, listen)
    apply.apply(host.world, "0", daemon.pid)
    assert host.door_is_open()


def test_a_daemon_that_lives_and_never_answers_is_given_up_with_the_reason(host: Host) -> None:
    host.desired(DeviceMemoryLimit="4G")
    daemon = host.prepared()
    daemon.not_served = True
    with pytest.raises(NotReady, match=r"after 30 s: the control daemon did not answer"):
        apply.apply(host.world, "0", daemon.pid)
    assert not host.door_is_open()


def test_the_main_process_is_asked_of_systemd_where_nobody_hands_it_over(host: Host) -> None:
    host.desired(DeviceMemoryLimit="4G")
    daemon = host.prepared()
    apply.apply(host.world, "0")
    assert daemon.limits == {"0": 4096 * MIB}


def test_an_instance_that_does_not_run_says_how_to_start_it(host: Host) -> None:
    host.desired()
    with pytest.raises(NotReady, match=r"has no main process \(inactive\); start it with `systemctl start"):
        apply.apply(host.world, "0")


def test_a_daemon_whose_environment_may_not_be_read_is_told_as_that(host: Host) -> None:
    host.desired(DeviceMemoryLimit="4G")
    pid = host.process("nvidia-cuda-mps-control", "nvidia-cuda-mps-control -f", None)
    with pytest.raises(NotReady, match="cannot be read; run it as root"):
        apply.apply(host.world, "0", pid)


@pytest.mark.parametrize("environment", [{}, {"CUDA_MPS_PIPE_DIRECTORY": "/run/other/.abcdefghijk"}])
def test_a_process_that_is_not_this_instances_daemon_is_left_alone(host: Host, environment: dict[str, str]) -> None:
    host.desired(DeviceMemoryLimit="4G")
    pid = host.process("nvidia-cuda-mps-control", "nvidia-cuda-mps-control -f", environment)
    with pytest.raises(NotReady, match=r"expected .*/mps-fleet/0/pipe; restart mps-control@0\.service"):
        apply.apply(host.world, "0", pid)


@pytest.mark.parametrize("before", [{}, {"PATH": "/usr/bin", "LANG": "C"}])
def test_a_process_whose_exec_is_not_finished_is_waited_for(host: Host, before: dict[str, str]) -> None:
    """For a moment /proc shows an empty environment (seen with control daemon 535 on a busy machine), and before that
    systemd's own (an undrain while the unit starts)."""
    host.desired(DeviceMemoryLimit="4G")
    daemon = host.prepared()
    process = host.processes[daemon.pid]
    environment, process.environment = process.environment, before

    def finish() -> None:
        process.environment = environment

    host.clock.when(0.05, finish)
    apply.apply(host.world, "0", daemon.pid)
    assert host.door_is_open()


def test_a_main_process_that_has_ended_is_told_so(host: Host) -> None:
    host.desired()
    with pytest.raises(NotReady, match=r"\(pid 77\) has ended"):
        apply.apply(host.world, "0", 77)


# -- a reload


def test_a_second_apply_finds_nothing_to_do(host: Host) -> None:
    host.desired(DeviceMemoryLimit="4G", ActiveThreadPercentage=50, ClientPriority=1)
    daemon = host.start()
    daemon.start_server(9001)
    daemon.commands.clear()
    assert reload(host) == []
    assert daemon.setters == []


@pytest.mark.parametrize("of_server", [False, True])
@pytest.mark.parametrize("by_hand", ["5119M", "4100M", "5G"])
def test_a_limit_that_was_changed_by_hand_is_brought_back_and_told(host: Host, by_hand: str, of_server: bool) -> None:
    """The getter shows 4G for 4096 as for 5119 MiB, and our record does not know what somebody did since."""
    host.desired(DeviceMemoryLimit="4G")
    daemon = host.start()
    daemon.start_server(9001)
    scope = "set_device_pinned_mem_limit 9001" if of_server else "set_default_device_pinned_mem_limit"
    daemon.ask([f"{scope} 0 {by_hand}"])
    (change,) = reload(host)
    assert change.startswith(f"memory limit of device 0 ({'server 9001' if of_server else 'default'}): ")
    assert daemon.limits == daemon.servers[9001].limits == {"0": 4096 * MIB}
    assert reload(host) == []


@pytest.mark.parametrize("unproven", [True, False])
def test_a_rounded_limit_that_no_log_proves_is_set_again_and_that_is_no_change(host: Host, unproven: bool) -> None:
    host.desired(DeviceMemoryLimit="4G")
    daemon = host.start()
    if unproven:
        daemon.log.clear()
        daemon.limits["0"] = 5119 * MIB
    daemon.commands.clear()
    assert reload(host) == []
    assert daemon.setters == (["set_default_device_pinned_mem_limit 0 4096M"] if unproven else [])
    assert daemon.limits == {"0": 4096 * MIB}


def test_a_limit_below_the_rounding_is_known_by_its_getter(host: Host) -> None:
    host.desired(DeviceMemoryLimit="900M")
    daemon = host.start()
    daemon.log.clear()
    reads = host.systemd.journal_reads
    daemon.commands.clear()
    assert reload(host) == []
    assert daemon.setters == []
    assert host.systemd.journal_reads == reads


def test_a_changed_limit_reaches_the_defaults_and_every_running_server(host: Host) -> None:
    """A server takes the defaults only when it starts."""
    host.desired(DeviceMemoryLimit="4G", ActiveThreadPercentage=50)
    daemon = host.start()
    servers = [daemon.start_server(9001, clients=[1]), daemon.start_server(9002)]
    host.desired(DeviceMemoryLimit="6G", ActiveThreadPercentage=25)
    changes = reload(host)
    assert daemon.limits == {"0": 6144 * MIB}
    for server in servers:
        assert server.limits == {"0": 6144 * MIB}
        assert server.percentage == 25.0
    assert "memory limit of device 0 (default): 4G -> 6144 MiB" in changes
    assert "memory limit of device 0 (server 9001): 4G -> 6144 MiB" in changes
    assert "active thread percentage (server 9002): 50.0 -> 25 %" in changes


def test_a_server_that_started_before_the_limit_was_set_gets_it_too(host: Host) -> None:
    host.desired(DeviceMemoryLimit="900M")
    daemon = host.prepared()
    server = daemon.start_server(9001)
    apply.apply(host.world, "0", daemon.pid)
    assert server.limits == {"0": 900 * MIB}


def test_a_server_that_ends_meanwhile_is_no_failure(host: Host) -> None:
    host.desired(DeviceMemoryLimit="4G")
    daemon = host.start()
    daemon.start_server(9001)
    daemon.start_server(9002)
    host.desired(DeviceMemoryLimit="6G")

    def end(command: str) -> None:
        if command.startswith("get_device_pinned_mem_limit 9001"):
            daemon.servers.pop(9001, None)
        if command.startswith("set_device_pinned_mem_limit 9002"):
            daemon.servers.pop(9002, None)

    daemon.before_command = end
    reload(host)
    assert daemon.limits == {"0": 6144 * MIB}


def test_a_server_that_does_not_hold_its_limit_is_a_failure(host: Host) -> None:
    host.desired(DeviceMemoryLimit="4G")
    daemon = host.start()
    daemon.start_server(9001)
    host.desired(DeviceMemoryLimit="6G")
    daemon.deaf_to = "set_device_pinned_mem_limit 9001"
    with pytest.raises(NotInForce, match=r"set_device_pinned_mem_limit 9001 0 6144M"):
        reload(host)


@pytest.mark.parametrize("other_mib", [4096, 5120])
def test_a_server_whose_own_log_says_another_limit_is_a_failure_whatever_its_getter_shows(
    host: Host, other_mib: int
) -> None:
    """From 1 GiB on the getter shows whole GiB: 5G for 5120 and for 5500 MiB."""
    host.desired(DeviceMemoryLimit="4G")
    daemon = host.start()
    daemon.start_server(9001)
    host.desired(DeviceMemoryLimit="5500M")

    def write_otherwise(server: int, device: str, limit: int) -> None:
        daemon.write(
            "Server", server, f"Device pinned memory limit for device {device} set to 0x{other_mib * MIB:x} bytes"
        )

    daemon._write_limit = write_otherwise  # type: ignore[method-assign]  # a server that says what it is
    with pytest.raises(NotInForce) as caught:
        reload(host)
    assert str(caught.value) == (
        f"memory limit of device 0 (server 9001): desired 5500 MiB, its log says {other_mib * MIB} bytes"
    )


def test_a_line_of_the_servers_log_that_comes_late_is_waited_for(host: Host) -> None:
    host.desired(DeviceMemoryLimit="4G")
    daemon = host.start()
    daemon.start_server(9001)
    host.desired(DeviceMemoryLimit="5500M")
    really = daemon._write_limit
    daemon._write_limit = lambda *said: host.clock.when(0.2, lambda: really(*said))  # type: ignore[method-assign]  # late
    assert "memory limit of device 0 (server 9001): 4G -> 5500 MiB" in reload(host)
    assert daemon.servers[9001].limits == {"0": 5500 * MIB}


def test_the_oldest_daemon_does_not_tell_the_state_of_servers_and_is_served_all_the_same(host: Host) -> None:
    host.new_daemon = lambda pid: FakeDaemon(pid, version=535)
    host.desired(DeviceMemoryLimit="900M")
    daemon = host.start()
    server = daemon.start_server(9001)
    host.desired(DeviceMemoryLimit="800M")
    reload(host)
    assert server.limits == {"0": 800 * MIB}


@pytest.mark.parametrize(("before", "after"), [("5000M", "5100M"), ("4G", "4097M"), ("1536M", "1G")])
def test_a_change_that_the_rounding_getter_cannot_show_is_made_all_the_same(
    host: Host, before: str, after: str
) -> None:
    host.desired(DeviceMemoryLimit=before)
    daemon = host.start()
    host.desired(DeviceMemoryLimit=after)
    assert len(reload(host)) == 1
    assert daemon.setters[-1].endswith({"1G": "1024M"}.get(after, after))


def test_with_nothing_on_record_a_rounded_answer_is_not_believed(host: Host) -> None:
    host.desired(DeviceMemoryLimit="1536M")
    daemon = host.start()
    record.forget(host.world, "0")
    daemon.ask(["set_default_device_pinned_mem_limit 0 1800M"])
    reload(host)
    assert daemon.limits == {"0": 1536 * MIB}


def test_a_record_of_another_process_is_not_believed(host: Host) -> None:
    """The pid may have been given out again: the start time tells the two apart."""
    host.desired(DeviceMemoryLimit="1536M")
    daemon = host.start()
    host.processes[daemon.pid].started_at += 1
    daemon.ask(["set_default_device_pinned_mem_limit 0 1800M"])
    reload(host)
    assert daemon.limits == {"0": 1536 * MIB}


def test_a_change_that_broke_off_halfway_is_not_taken_for_the_old_value(host: Host) -> None:
    """5000M -> 5100M reached the defaults and failed at a server; then 5000M is desired again: it shows 4G."""
    host.desired(DeviceMemoryLimit="5000M")
    daemon = host.start()
    daemon.start_server(9001)
    host.desired(DeviceMemoryLimit="5100M")
    daemon.deaf_to = "set_device_pinned_mem_limit 9001"
    # The server shows 4G before and after: only the daemon's end can break the change off unseen.
    daemon.before_command = lambda command: _refuse_to_serve(daemon, command)
    with pytest.raises(NotReady):
        reload(host)
    assert daemon.limits == {"0": 5100 * MIB}
    daemon.not_served, daemon.deaf_to = False, None
    daemon.before_command = lambda command: None
    host.desired(DeviceMemoryLimit="5000M")
    reload(host)
    assert daemon.limits == {"0": 5000 * MIB}
    assert daemon.servers[9001].limits == {"0": 5000 * MIB}


def _refuse_to_serve(daemon: FakeDaemon, command: str) -> None:
    daemon.not_served = command.startswith("set_device_pinned_mem_limit")


def test_a_value_changed_by_hand_is_brought_back(host: Host) -> None:
    host.desired(DeviceMemoryLimit="900M", ClientPriority=0)
    daemon = host.start()
    daemon.limits["0"], daemon.priority = 0, 1
    assert reload(host) == ["memory limit of device 0 (default): unset -> 900 MiB", "client priority (default): 1 -> 0"]


def test_a_door_closed_by_hand_is_opened_again(host: Host) -> None:
    host.desired()
    host.start()
    (host.pipe_root / "0" / "control").unlink()
    reload(host)
    assert host.door_is_open()


def test_a_failed_reload_leaves_clients_their_daemon(host: Host) -> None:
    host.desired(DeviceMemoryLimit="4G")
    daemon = host.start()
    host.desired(DeviceMemoryLimit="6G")
    daemon.deaf_to = "set_"
    with pytest.raises(NotInForce):
        reload(host)
    assert host.door_is_open()


def test_a_compute_mode_changed_by_hand_is_brought_back(host: Host) -> None:
    host.desired(ComputeMode="exclusive_process")
    host.start()
    host.nvml.reboot()
    assert any("default -> exclusive_process" in change for change in reload(host))
    assert host.nvml.gpu(0).compute_mode == "exclusive_process"


def test_a_request_for_other_gpus_waits_for_a_restart(host: Host) -> None:
    host.desired(DeviceMemoryLimit="4G", ComputeMode="exclusive_process")
    daemon = host.start()
    host.desired(GPUs="1", DeviceMemoryLimit="6G", ComputeMode="exclusive_process")
    reload(host)
    assert daemon.limits == {"0": 6144 * MIB}
    assert host.nvml.gpu(1).compute_mode == "default"
    assert any("restart the unit to change its GPUs" in line for line in host.said)


def test_a_gpu_that_is_gone_is_reported_and_nothing_is_set(host: Host) -> None:
    host.desired(DeviceMemoryLimit="4G")
    daemon = host.start()
    host.desired(DeviceMemoryLimit="6G")
    host.nvml.lost = {0}
    daemon.commands.clear()
    with pytest.raises(BadValue, match="found GPU 0, expected one of this host's"):
        reload(host)
    assert daemon.setters == []


def test_a_refused_file_changes_nothing_on_a_running_daemon(host: Host) -> None:
    host.desired(DeviceMemoryLimit="4G")
    daemon = host.start()
    host.desired(DeviceMemoryLimit="20")
    with pytest.raises(BadValue):
        reload(host)
    assert daemon.limits == {"0": 4096 * MIB}


def test_a_restarted_daemon_has_forgotten_everything_and_gets_it_again(host: Host) -> None:
    host.desired(DeviceMemoryLimit="4G", ActiveThreadPercentage=50, ClientPriority=1)
    first = host.start()
    host.kill(first.pid)
    second = host.start()
    assert second.limits == {"0": 4096 * MIB}
    assert (second.percentage, second.priority) == (50.0, 1)


def test_a_limit_is_set_on_the_daemon_behind_the_door_never_through_it(host: Host) -> None:
    public = host.desired(DeviceMemoryLimit="4G")
    host.start()
    assert public not in host.daemons
    assert list(host.daemons) == [host.own()]


def test_every_failure_says_it_on_one_line(host: Host) -> None:
    host.desired(DeviceMemoryLimit="4G")
    daemon = host.prepared()
    daemon.deaf_to = "set_"
    with pytest.raises(MpsctlError) as failure:
        apply.apply(host.world, "0", daemon.pid)
    assert "\n" not in str(failure.value)


def test_the_environment_that_prepare_wrote_is_the_one_the_daemon_gets(host: Host) -> None:
    host.desired()
    environment = prepare.prepare(host.world, "0")
    written = host.places.daemon_environment("0").read_text().splitlines()
    assert f"CUDA_MPS_PIPE_DIRECTORY={environment.pipe_directory}" in written
    assert f"CUDA_VISIBLE_DEVICES={uuid(0)}" in written
