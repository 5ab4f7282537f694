"""What holds for a GPU while MPS is not up, and in which order it changes."""

from __future__ import annotations

import pytest

from fakes import Host, h200, split_by_mig, uuid
from judging import judge
from mpsctl.checks.judgement import STATUS
from mpsctl.converge import reconcile
from mpsctl.converge.request import Request
from mpsctl.lifecycle import apply, prepare, stop
from mpsctl.model.errors import BadValue, NotReady
from mpsctl.model.finding import CRITICAL, RELOAD, RESTART

MIB = 1 << 20
PROHIBITED = {"ComputeMode": "exclusive_process", "WhenDown": "prohibited", "ServerUser": "1000"}


def timeline(host: Host) -> list[str]:
    """From now on: modes as they are set, and commands that change a daemon."""
    seen: list[str] = []
    host.nvml.on_mode = lambda mode: seen.append(mode)
    new_daemon = host.new_daemon

    def watched(pid: int) -> object:
        daemon = new_daemon(pid)

        def look(command: str) -> None:
            if command.startswith(("set_", "start_server")):
                seen.append(command)
                assert not host.door_is_open(), f"a client could connect before `{command}`"

        daemon.before_command = look
        return daemon

    host.new_daemon = watched  # type: ignore[assignment]
    return seen


def mode(host: Host, index: int = 0) -> object:
    return host.nvml.gpu(index).compute_mode


# -- an eager server


def test_the_server_of_a_named_user_is_up_before_clients_may_connect(host: Host) -> None:
    host.desired(DeviceMemoryLimit="4G", ServerUser="1000")
    seen = timeline(host)
    daemon = host.start()
    assert seen == ["set_default_device_pinned_mem_limit 0 4096M", "start_server -uid 1000"]
    (server,) = daemon.servers
    assert host.processes[server].uid == 1000
    assert daemon.servers[server].limits == {"0": 4096 * MIB}
    assert host.door_is_open()


def test_a_user_may_be_given_by_name(host: Host) -> None:
    host.desired(ServerUser="root")
    (server,) = host.start().servers
    assert host.processes[server].uid == 0


def test_a_user_that_the_host_lacks_is_refused(host: Host) -> None:
    host.desired(ServerUser="nobody-of-that-name")
    with pytest.raises(BadValue, match=r"nobody-of-that-name") as refused:
        host.start()
    assert refused.value.variable == "mps_server_user"


def test_a_server_that_does_not_come_up_keeps_the_door_closed(host: Host) -> None:
    """start_server answers nothing and proves nothing."""
    host.desired(ServerUser="1000")
    daemon = host.prepared()
    daemon.on_start_server = lambda uid: None
    with pytest.raises(NotReady, match="did not come up within 30 s"):
        apply.apply(host.world, "0", daemon.pid)
    assert not host.door_is_open()
    assert daemon.commands.count("start_server -uid 1000") == 1


def test_a_server_that_is_listed_but_not_active_is_waited_for(host: Host) -> None:
    host.desired(ServerUser="1000")
    daemon = host.prepared()

    def slowly(uid: int) -> None:
        pid = host.process("nvidia-cuda-mps-server", "nvidia-cuda-mps-server", {}, uid)
        daemon.start_server(pid).state = "INITIALIZING"
        host.clock.when(3, lambda: setattr(daemon.servers[pid], "state", "ACTIVE"))

    daemon.on_start_server = slowly
    apply.apply(host.world, "0", daemon.pid)
    assert host.door_is_open()
    assert host.clock.now_s >= 3


def test_535_does_not_tell_a_servers_state_and_a_living_one_is_enough(host: Host) -> None:
    host.desired(ServerUser="1000")
    daemon = host.prepared()
    daemon.version = 535
    apply.apply(host.world, "0", daemon.pid)
    assert host.door_is_open()


def test_a_reload_starts_no_second_server(host: Host) -> None:
    host.desired(ServerUser="1000")
    daemon = host.start()
    assert apply.apply(host.world, "0", daemon.pid) == []
    assert len(daemon.servers) == 1


def test_status_misses_the_server_and_a_reload_brings_it_back(host: Host) -> None:
    host.desired(ServerUser="1000")
    daemon = host.start()
    host.systemd.unit("mps-control@0.service").enabled = True
    daemon.servers.clear()
    missed = judge(host, "0", verb=STATUS).check("0", "server-state")
    assert (missed.level, missed.mends) == (CRITICAL, RELOAD)
    apply.apply(host.world, "0", daemon.pid)
    assert judge(host, "0", verb=STATUS).check("0", "server-state").level == "ok"


# -- prohibited


def test_at_a_start_nobody_gets_the_gpu_before_the_limits_and_then_the_server_takes_it(host: Host) -> None:
    host.desired(DeviceMemoryLimit="4G", **PROHIBITED)
    seen = timeline(host)
    host.start()
    assert seen == [
        "prohibited",
        "set_default_device_pinned_mem_limit 0 4096M",
        "exclusive_process",
        "start_server -uid 1000",
    ]
    assert mode(host) == "exclusive_process"


def test_after_a_crash_the_gpu_is_closed_until_the_next_start(host: Host) -> None:
    host.desired(**PROHIBITED)
    daemon = host.start()
    host.kill(daemon.pid)
    stop.release(host.world, "0")  # systemd runs it before the automatic restart
    assert mode(host) == "prohibited"
    host.start()
    assert mode(host) == "exclusive_process"


def test_a_real_stop_leaves_the_gpu_closed(host: Host) -> None:
    host.desired(**PROHIBITED)
    host.start()
    host.stop()
    assert mode(host) == "prohibited"
    assert judge(host, "0", verb=STATUS).check("0", "compute-mode").level == "ok", "that is what is desired"


def test_a_start_whose_server_fails_closes_the_gpu_again(host: Host) -> None:
    host.desired(**PROHIBITED)
    daemon = host.prepared()
    daemon.on_start_server = lambda uid: None
    with pytest.raises(NotReady):
        apply.apply(host.world, "0", daemon.pid)
    assert mode(host) == "exclusive_process"
    stop.release(host.world, "0")
    assert mode(host) == "prohibited"


def test_the_mode_from_before_is_known_and_comes_back_when_the_instance_is_removed(host: Host) -> None:
    host.desired(**PROHIBITED)
    host.start()
    host.systemd.unit("mps-control@0.service").enabled = True
    answer = reconcile.reconcile(host.world, Request((), ()), check=False)
    assert answer.error is None
    assert mode(host) == "default"
    assert not host.places.conf("0").exists()


def test_after_a_reboot_the_gpu_is_closed_again_by_the_start(host: Host) -> None:
    host.desired(**PROHIBITED)
    daemon = host.start()
    host.kill(daemon.pid)
    host.nvml.reboot()
    seen = timeline(host)
    host.start()
    assert seen[0] == "prohibited"
    assert mode(host) == "exclusive_process"


@pytest.mark.parametrize(
    "values",
    [
        {"ComputeMode": None},
        {"ComputeMode": "default"},
        {"ServerUser": None},
    ],
)
def test_prohibited_needs_exclusive_mode_and_a_server(host: Host, values: dict[str, object]) -> None:
    host.desired("0", **{**PROHIBITED, **values})
    with pytest.raises(BadValue) as refused:
        prepare.prepare(host.world, "0")
    assert refused.value.variable == "mps_when_down"


def test_a_mig_device_cannot_be_prohibited(host: Host) -> None:
    host.nvml.all[2] = split_by_mig(2)
    host.desired("m", GPUs=uuid(300, "MIG"), **PROHIBITED)
    with pytest.raises(BadValue, match="MIG"):
        prepare.prepare(host.world, "m")


# -- several users


def test_a_multi_user_daemon_gets_its_flag_and_roots_server(host: Host) -> None:
    host.desired(MultiUser="yes")
    daemon = host.start()
    assert host.processes[daemon.pid].command.endswith(" -f -multiuser-server")
    (server,) = daemon.servers
    assert host.processes[server].uid == 0


def test_a_daemon_that_cannot_serve_several_users_is_not_started_that_way(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """535 and 550 take the flag for a command of the front-end and end."""
    monkeypatch.setattr("mpsctl.adapters.hardware.multi_user_flag", lambda: None)
    host.desired(MultiUser="yes")
    with pytest.raises(BadValue) as refused:
        prepare.prepare(host.world, "0")
    assert refused.value.variable == "mps_multi_user"
    answer = reconcile.reconcile(host.world, Request((), (("0", host.conf("0", {"MultiUser": "yes"})),)), True)
    assert answer.refused is not None
    assert answer.refused.startswith("mps_multi_user: ")


def test_pascal_is_refused_several_users(host: Host) -> None:
    host.nvml.all[0] = h200(0, name="NVIDIA GeForce GTX 1070 Ti", compute_capability=(6, 1))
    host.desired(MultiUser="yes")
    with pytest.raises(BadValue, match="older than Volta") as refused:
        prepare.prepare(host.world, "0")
    assert refused.value.variable == "mps_multi_user"


def test_several_users_and_one_users_server_exclude_each_other(host: Host) -> None:
    host.desired(MultiUser="yes", ServerUser="1000")
    with pytest.raises(BadValue) as refused:
        prepare.prepare(host.world, "0")
    assert refused.value.variable == "mps_server_user"


def test_a_changed_number_of_users_needs_a_restart(host: Host) -> None:
    host.desired()
    host.start()
    host.desired(MultiUser="yes")
    assert RESTART in judge(host, "0", verb=STATUS).mends("0")
    host.restart()
    assert RESTART not in judge(host, "0", verb=STATUS).mends("0")
