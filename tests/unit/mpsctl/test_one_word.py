"""One word for one state: over planted faults, status, verify, health and site's look say the same of each instance.

Each verb's exit code is as the table says, and none says that all is well where another fails.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, NamedTuple

import pytest

from fakes import FakeDaemon, Host, h200, split_by_mig, uuid
from judging import SERVER, UNIT, connect, cuda, outsider
from mpsctl.checks import verbs
from mpsctl.checks.judgement import EVERY_VERB, HEALTH, SITE, STATUS, VERIFY
from mpsctl.checks.report import JUDGEMENTS, report
from mpsctl.model.finding import CRITICAL, OK, UNKNOWN, WARNING
from mpsctl.model.names import HEALTH as HEALTH_SERVICE
from mpsctl.model.names import TIMER, door_service, door_unit
from mpsctl.model.places import FINGERPRINT
from mpsctl.model.shares import Room
from mpsctl.observe.host import look
from mpsctl.store import admission, drains, front_door_notes, saved_compute_modes
from mpsctl.store.front_door_notes import Notes, Waits
from shell import Shell

VERBS = (STATUS, VERIFY, HEALTH)
MIB = 1 << 20
LEVELS = (OK, WARNING, UNKNOWN, CRITICAL)


class Fault(NamedTuple):
    """What is planted, the word for instance 0 then, the checks that say so, and the word of the host."""

    plant: Callable[[Host], None]
    word: str
    ids: tuple[str, ...]
    host: str = OK


@pytest.fixture
def pair(live: Host) -> Host:
    """Beside instance 0, which is hit, instance 1 runs in the desired state, with a server of its own."""
    live.desired("1", DeviceMemoryLimit="4G", ComputeMode="exclusive_process")
    live.systemd.unit("mps-control@1.service").enabled = True
    live.start("1")
    return live


def daemon(host: Host) -> FakeDaemon:
    return host.running()


def public(host: Host) -> Path:
    return host.pipe_root / "0"


# -- the faults


def nothing(host: Host) -> None:
    pass


def directory_closed(host: Host) -> None:
    public(host).chmod(0o700)


def socket_closed(host: Host) -> None:
    (public(host) / "control").resolve().chmod(0o600)


def door_closed(host: Host) -> None:
    host.tell_door(admission.WAITING)


def door_gone(host: Host) -> None:
    (public(host) / "control").unlink()


def door_opened_while_drained(host: Host) -> None:
    drains.mark(host.world, "0")


def drained(host: Host) -> None:
    drains.mark(host.world, "0")
    door_closed(host)


def mode_changed(host: Host) -> None:
    host.nvml.all[0] = h200(0)


def mode_not_told(host: Host) -> None:
    host.nvml.all[0] = h200(0, compute_mode=None)


def default_limit_changed(host: Host) -> None:
    """The getter shows 4G for both."""
    daemon(host).ask(["set_default_device_pinned_mem_limit 0 5119M"])


def default_limit_lost(host: Host) -> None:
    daemon(host).limits["0"] = 0


def limit_of_server_changed(host: Host) -> None:
    daemon(host).ask([f"set_device_pinned_mem_limit {SERVER} 0 5119M"])


def percentage_changed(host: Host) -> None:
    daemon(host).ask(["set_default_active_thread_percentage 80"])


def priority_changed(host: Host) -> None:
    daemon(host).ask(["set_default_client_priority 0"])


def server_in_fault(host: Host) -> None:
    daemon(host).servers[SERVER].state = "FAULT"


def server_stopped(host: Host) -> None:
    host.processes[SERVER].state = "T"


def server_left_over(host: Host) -> None:
    """A server of a daemon that was killed, on a GPU of no instance."""
    host.process("nvidia-cuda-mps-server", "nvidia-cuda-mps-server", {})


def a_daemon(host: Host, **environment: str) -> int:
    return host.process("nvidia-cuda-mps-control", "nvidia-cuda-mps-control -d", environment)


def daemon_on_the_gpu(host: Host) -> None:
    a_daemon(host, CUDA_MPS_PIPE_DIRECTORY="/run/other", CUDA_VISIBLE_DEVICES="0")


def daemon_on_another_gpu(host: Host) -> None:
    a_daemon(host, CUDA_MPS_PIPE_DIRECTORY="/run/other", CUDA_VISIBLE_DEVICES="3")


def daemon_on_the_directory(host: Host) -> None:
    a_daemon(host, CUDA_MPS_PIPE_DIRECTORY=str(public(host)), CUDA_VISIBLE_DEVICES="3")


def process_outside(host: Host) -> None:
    host.nvml.outside_mib.setdefault(uuid(0), {})[outsider(host)] = 82 * 1024


def gpu_filled(host: Host) -> None:
    host.nvml.outside_mib.setdefault(uuid(0), {})[outsider(host)] = 142_500


def bypass_by_variable(host: Host) -> None:
    connect(host, daemon(host), CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="1G")


def bypass_by_program(host: Host) -> None:
    pid = connect(host, daemon(host))
    assert host.nvml.held_mib is not None
    host.nvml.held_mib[uuid(0)][pid] = 9000


def limit_used_up(host: Host) -> None:
    pid = connect(host, daemon(host))
    assert host.nvml.held_mib is not None
    host.nvml.held_mib[uuid(0)][pid] = 4090


def limit_raised_under_a_client(host: Host) -> None:
    host.desired(DeviceMemoryLimit="6G", ActiveThreadPercentage=50, ClientPriority=1, ComputeMode="exclusive_process")
    host.systemd.act("reload", [UNIT])


def waits_behind_another_user(host: Host) -> None:
    host.processes[SERVER].uid = 1000
    pid = cuda(host, {})
    host.processes[pid].uid = 2000
    daemon(host).write("Control", daemon(host).pid, f"NEW CLIENT {pid} from user 2000: Server is busy, pending list")


def _again(host: Host, **values: object) -> None:
    """Another desired state, by a reload."""
    host.desired(
        "0",
        DeviceMemoryLimit="4G",
        ActiveThreadPercentage=50,
        ClientPriority=1,
        ComputeMode="exclusive_process",
        **values,
    )
    assert host.systemd.act("reload", [UNIT]) is None


def _waits(host: Host, why: str, ago_s: float, place: str = "") -> None:
    """A client waits before the front door, as that notes it."""
    pid = cuda(host, {})
    host.clock.pass_by(60)
    host.systemd.unit(door_service("0")).active_state = "active"
    waits = Waits(pid, 1000, host.clock.now_s - ago_s, why, place)
    front_door_notes.write(host.places, "0", Notes((waits,)))


def waits_at_the_door_behind_another_user(host: Host) -> None:
    _waits(host, "another-user", 10)


def waits_a_moment_for_its_server(host: Host) -> None:
    _waits(host, "server-starting", 1)


def waits_at_a_server_in_fault(host: Host) -> None:
    server_in_fault(host)
    _waits(host, "server-fault", 10)


def full_with_one_waiting(host: Host) -> None:
    _again(host, OverExpected="wait", ExpectedClients=1)
    _waits(host, "no-place", 10, "clients")


def full(host: Host) -> None:
    _again(host, OverExpected="wait", ExpectedClients=1)


def share_full_with_one_waiting(host: Host) -> None:
    (client,) = daemon(host).servers[SERVER].clients
    host.processes[client].group = "/system.slice/api.service"
    _again(host, OverExpected="wait", Shares="unit:api.service=1")
    _waits(host, "no-place", 10, "unit:api.service")


def number_lowered_under_clients(host: Host) -> None:
    connect(host, daemon(host))
    _again(host, OverExpected="refuse", ExpectedClients=1)


def share_lowered_under_clients(host: Host) -> None:
    connect(host, daemon(host))
    _again(host, OverExpected="wait", Shares="each-user=1")


def limit_bypass_refused(host: Host) -> None:
    _again(host, LimitBypass="refuse")
    entry = {"MPS_INSTANCE": "0", "MPS_EVENT": "refused", "MPS_REASON": "limit-bypass", "MESSAGE": "0: refused"}
    host.systemd.entries.append({"_SYSTEMD_UNIT": "mps-front-door@0.service", **entry})


def limit_bypass_not_judged(host: Host) -> None:
    _again(host, LimitBypass="refuse")
    _tell(host, judged_devices=())


def told_another_room(host: Host) -> None:
    _tell(host, room=Room(3))


def told_another_wait(host: Host) -> None:
    _tell(host, wait_s=5)


def _tell(host: Host, **other: Any) -> None:
    told = admission.read(host.places, "0")
    assert told is not None
    admission.write(host.places, "0", replace(told, **other))


def share_of_nobody(host: Host) -> None:
    """As of one who was deleted since: the instance goes on without that share."""
    _again(host, OverExpected="wait", Shares="user:no-such-user=1")


def gpu_vanished(host: Host) -> None:
    host.nvml.lost.add(0)


def gpu_swapped(host: Host) -> None:
    host.nvml.all[0] = h200(0, uuid=uuid(9), compute_mode="exclusive_process")


def gpu_split(host: Host) -> None:
    host.nvml.all[0] = split_by_mig(0)


def other_gpu_desired(host: Host) -> None:
    host.desired(
        GPUs="2", DeviceMemoryLimit="4G", ActiveThreadPercentage=50, ClientPriority=1, ComputeMode="exclusive_process"
    )


def memory_of_gpu_not_told(host: Host) -> None:
    host.nvml.held_mib = None


def driver_gone(host: Host) -> None:
    host.nvml.driver_up = False


def unit_masked(host: Host) -> None:
    host.systemd.unit(UNIT).load_state = "masked"


def unit_masked_and_down(host: Host) -> None:
    unit_down(host)
    unit_masked(host)


def door_masked(host: Host) -> None:
    host.systemd.unit(door_unit("0")).load_state = "masked"


def door_service_masked(host: Host) -> None:
    host.systemd.unit(door_service("0")).load_state = "masked"


def door_socket_closed(host: Host) -> None:
    """As systemd leaves it where the socket's unit was masked for a while: active, and nobody has the socket."""
    host.close_socket()


def health_masked(host: Host) -> None:
    timer_stopped(host)
    host.systemd.unit(TIMER).active_state = "active"
    host.systemd.unit(HEALTH_SERVICE).load_state = "masked"


def unit_not_enabled(host: Host) -> None:
    host.systemd.unit(UNIT).enabled = False


def unit_down(host: Host) -> None:
    daemon(host).servers.clear()
    host.kill(SERVER)
    host.nvml.outside_mib.clear()
    host.nvml.held_mib = {}
    host.stop()


def unit_failed(host: Host) -> None:
    unit_down(host)
    unit = host.systemd.unit(UNIT)
    unit.active_state = unit.sub_state = "failed"
    unit.result = "exit-code"


def unit_starting(host: Host) -> None:
    unit_down(host)
    host.prepared()


def unit_skipped(host: Host) -> None:
    unit_down(host)
    host.systemd.unit(UNIT).result = "exec-condition"


def unit_file_changed(host: Host) -> None:
    host.systemd.unit(UNIT).stale = True


def daemon_killed(host: Host) -> None:
    """Its unit has not come up again, and the GPU is left in exclusive mode."""
    host.kill(daemon(host).pid)
    host.kill(SERVER)
    host.nvml.outside_mib.clear()
    unit = host.systemd.unit(UNIT)
    unit.active_state, unit.sub_state, unit.main_pid = "failed", "failed", 0


def restarted_a_moment_ago(host: Host) -> None:
    host.systemd.unit(UNIT).restarts = 1


def file_refused(host: Host) -> None:
    host.desired(DeviceMemoryLimit="20")


def file_empty(host: Host) -> None:
    host.places.conf("0").write_text("")


def group_unknown(host: Host) -> None:
    host.desired(
        Group="no-such-group",
        DeviceMemoryLimit="4G",
        ActiveThreadPercentage=50,
        ClientPriority=1,
        ComputeMode="exclusive_process",
    )


def daemon_stopped(host: Host) -> None:
    host.processes[daemon(host).pid].state = "T"


def daemon_held(host: Host) -> None:
    daemon(host).not_served = True


def socket_gone(host: Host) -> None:
    daemon(host).unreachable = True


def files_cleaned(host: Host) -> None:
    private = host.own()
    (private / "control_lock").unlink()


def timer_disabled(host: Host) -> None:
    host.places.units.mkdir(parents=True, exist_ok=True)
    (host.places.units / "mps-control@.service").write_text(f"{FINGERPRINT}: written by the role\n")


def timer_stopped(host: Host) -> None:
    timer_disabled(host)
    host.systemd.unit(TIMER).enabled = True


def mode_of_a_gpu_of_nobody(host: Host) -> None:
    host.nvml.all[3] = h200(3, compute_mode="exclusive_process")


def mode_left_behind_by_us(host: Host) -> None:
    saved_compute_modes.record(host.world, host.nvml.all[3])
    mode_of_a_gpu_of_nobody(host)


FAULTS = {
    "nothing": Fault(nothing, OK, ()),
    # what a hand or another program changed
    "directory closed": Fault(directory_closed, CRITICAL, ("pipe-directory-access",)),
    "socket closed": Fault(socket_closed, CRITICAL, ("pipe-directory-access",)),
    "front door told to wait": Fault(door_closed, CRITICAL, ("front-door",)),
    "front door gone": Fault(door_gone, CRITICAL, ("front-door",)),
    "front door masked": Fault(door_masked, CRITICAL, ("front-door",)),
    "front door's service masked": Fault(door_service_masked, CRITICAL, ("front-door",)),
    "front door's socket closed under its unit": Fault(door_socket_closed, CRITICAL, ("front-door",)),
    "front door open though drained": Fault(door_opened_while_drained, CRITICAL, ("front-door", "drain")),
    "daemon's files removed": Fault(files_cleaned, CRITICAL, ("pipe-directory-files",)),
    "compute mode changed": Fault(mode_changed, CRITICAL, ("compute-mode",)),
    "compute mode not told": Fault(mode_not_told, UNKNOWN, ("compute-mode",)),
    "default limit changed by hand": Fault(default_limit_changed, CRITICAL, ("memory-limit",)),
    "default limit lost": Fault(default_limit_lost, CRITICAL, ("memory-limit",)),
    "server's limit changed by hand": Fault(limit_of_server_changed, CRITICAL, ("memory-limit",)),
    "percentage changed by hand": Fault(percentage_changed, CRITICAL, ("thread-percentage",)),
    "priority changed by hand": Fault(priority_changed, CRITICAL, ("client-priority",)),
    # servers and daemons
    "server in FAULT": Fault(server_in_fault, CRITICAL, ("server-state",)),
    "server stopped": Fault(server_stopped, CRITICAL, ("server-state",)),
    "server left over": Fault(server_left_over, OK, ("left-over-servers",), CRITICAL),
    "daemon stopped": Fault(daemon_stopped, CRITICAL, ("daemon-answers",)),
    "daemon does not answer": Fault(daemon_held, CRITICAL, ("daemon-answers",)),
    "daemon's socket gone": Fault(socket_gone, CRITICAL, ("daemon-answers",)),
    "foreign daemon on the GPU": Fault(daemon_on_the_gpu, CRITICAL, ("other-daemons", "foreign-daemons"), WARNING),
    "foreign daemon elsewhere": Fault(daemon_on_another_gpu, OK, ("foreign-daemons",), WARNING),
    "foreign daemon on the directory": Fault(
        daemon_on_the_directory, CRITICAL, ("orphan-daemon", "foreign-daemons"), WARNING
    ),
    # processes and clients
    "82 GB outside MPS": Fault(process_outside, CRITICAL, ("gpu-processes",)),
    "GPU filled by somebody else": Fault(gpu_filled, CRITICAL, ("gpu-processes", "gpu-memory")),
    "limit dropped by a variable": Fault(bypass_by_variable, CRITICAL, ("client-limits",)),
    "limit dropped by the program": Fault(bypass_by_program, CRITICAL, ("client-limits",)),
    "limit used up": Fault(limit_used_up, WARNING, ("client-memory",)),
    "limit raised under a client": Fault(limit_raised_under_a_client, OK, ()),
    "client waits behind another user": Fault(waits_behind_another_user, WARNING, ("waiting-clients",)),
    "client waits at the door behind another user": Fault(
        waits_at_the_door_behind_another_user, WARNING, ("waiting-clients",)
    ),
    "client waits a moment for its server": Fault(waits_a_moment_for_its_server, OK, ()),
    "client waits at a server in FAULT": Fault(
        waits_at_a_server_in_fault, CRITICAL, ("server-state", "waiting-clients")
    ),
    "full instance": Fault(full, OK, ()),
    "full instance with one waiting": Fault(full_with_one_waiting, WARNING, ("waiting-clients",)),
    "share full with one waiting": Fault(share_full_with_one_waiting, WARNING, ("waiting-clients",)),
    "number lowered under clients": Fault(number_lowered_under_clients, WARNING, ("client-places",)),
    "share lowered under clients": Fault(share_lowered_under_clients, WARNING, ("client-places",)),
    "limit bypass refused": Fault(limit_bypass_refused, OK, ()),
    "limit bypass not judged at the door": Fault(limit_bypass_not_judged, CRITICAL, ("front-door",)),
    "door told another room": Fault(told_another_room, CRITICAL, ("front-door",)),
    "door told another wait": Fault(told_another_wait, WARNING, ("front-door",)),
    "share of a user the host lacks": Fault(share_of_nobody, CRITICAL, ("configuration",)),
    # GPUs and driver
    "GPU vanished": Fault(gpu_vanished, CRITICAL, ("gpus-present", "gpus-served")),
    "GPU swapped": Fault(gpu_swapped, CRITICAL, ("gpus-served",)),
    "GPU split by MIG": Fault(gpu_split, CRITICAL, ("gpus-present",)),
    "another GPU desired": Fault(other_gpu_desired, CRITICAL, ("gpus-served", "restart-pending")),
    "processes not told": Fault(memory_of_gpu_not_told, UNKNOWN, ("gpu-processes",)),
    "driver gone": Fault(driver_gone, UNKNOWN, ("gpus-answer",), CRITICAL),
    "mode left on a GPU of nobody": Fault(mode_of_a_gpu_of_nobody, OK, ("modes-without-daemon",), WARNING),
    "mode left behind by us": Fault(mode_left_behind_by_us, OK, ("modes-without-daemon",), CRITICAL),
    # units and files
    "drained and forgotten": Fault(drained, WARNING, ("drain",)),
    "unit masked": Fault(unit_masked, CRITICAL, ("unit-enabled",)),
    "unit masked and down": Fault(unit_masked_and_down, CRITICAL, ("unit-enabled", "unit-active")),
    "unit not enabled": Fault(unit_not_enabled, CRITICAL, ("unit-enabled",)),
    "unit down": Fault(unit_down, CRITICAL, ("unit-active",)),
    "unit failed": Fault(unit_failed, CRITICAL, ("unit-active",)),
    "unit starting": Fault(unit_starting, CRITICAL, ("unit-active",)),
    "unit skipped": Fault(unit_skipped, CRITICAL, ("unit-active",)),
    "unit's file changed": Fault(unit_file_changed, WARNING, ("unit-active",)),
    "daemon killed": Fault(daemon_killed, CRITICAL, ("unit-active", "compute-mode")),
    "restarted a moment ago": Fault(restarted_a_moment_ago, WARNING, ("restarts",)),
    "file refused": Fault(file_refused, CRITICAL, ("configuration", "modes-without-daemon"), UNKNOWN),
    "file empty": Fault(file_empty, CRITICAL, ("configuration", "modes-without-daemon"), UNKNOWN),
    "group unknown": Fault(group_unknown, CRITICAL, ("configuration",)),
    "health timer disabled": Fault(timer_disabled, OK, ("health-timer",), WARNING),
    "health timer stopped": Fault(timer_stopped, OK, ("health-timer",), WARNING),
    "health service masked": Fault(health_masked, OK, ("health-timer",), WARNING),
}


@pytest.mark.parametrize("name", FAULTS)
def test_every_verb_says_the_same_word_and_ends_as_the_table_says(pair: Host, mpsctl: Shell, name: str) -> None:
    fault = FAULTS[name]
    fault.plant(pair)
    for verb in VERBS:
        found = mpsctl.json(verb)
        words = {one: about["word"] for one, about in found["instances"].items()}
        host = found["host"]["word"]
        assert (words["0"], host) == (fault.word, fault.host), (verb, _amiss(found))
        assert set(fault.ids) <= set(_amiss(found)), verb
        assert words["1"] in (OK, UNKNOWN), (verb, "its neighbour", _amiss(found))
        worst = max([*words.values(), host], key=(OK, UNKNOWN, WARNING, CRITICAL).index)
        assert found["worst"] == worst, verb
        assert found["exit_code"] == mpsctl(verb) == verbs.EXIT_CODES[verb][worst], verb
    site = report(look(pair.world), SITE)
    assert (site.word("0"), site.word_of_host) == (fault.word, fault.host)


def _amiss(found: dict[str, Any]) -> dict[str, str]:
    groups = [found["host"], *found["instances"].values()]
    return {one["name"]: f"{one['level']}: {one['found']}" for g in groups for one in g["checks"] if one["level"] != OK}


@pytest.mark.parametrize("name", FAULTS)
def test_every_verb_shows_people_the_same_word(pair: Host, mpsctl: Shell, name: str) -> None:
    fault = FAULTS[name]
    fault.plant(pair)
    shown = fault.word if fault.word == OK else fault.word.upper()
    for verb in VERBS:
        mpsctl(verb)
        line = next(line for line in mpsctl.out.splitlines() if line.startswith("instance 0: "))
        assert line.partition(": ")[2].replace(",", " ").replace(";", " ").split()[0] == shown, verb
        for one in fault.ids if CRITICAL in (fault.word, fault.host) else ():
            assert f"{one}: " in mpsctl.out or f" {one}" in mpsctl.out, verb


def test_an_instance_whose_file_is_gone_is_ok_in_no_verb(pair: Host, mpsctl: Shell) -> None:
    pair.places.conf("0").unlink()
    for verb in VERBS:
        assert mpsctl.json(verb)["worst"] != OK


def test_a_host_that_was_never_converged_is_ok_in_no_verb(mpsctl: Shell) -> None:
    assert [mpsctl.json(verb)["worst"] for verb in VERBS] == [UNKNOWN] * len(VERBS)
    assert [mpsctl(verb) for verb in VERBS] == [verbs.NO_INSTANCE, 3, 3]


def test_each_verb_and_word_has_an_exit_code() -> None:
    assert set(verbs.EXIT_CODES) == set(VERBS)
    for codes in verbs.EXIT_CODES.values():
        assert set(codes) == set(LEVELS)
        assert codes[OK] == 0
        assert codes[CRITICAL] not in (0, codes[UNKNOWN])


def test_what_only_verify_sees_can_warn_at_most() -> None:
    """So no verb says that all is well where verify is critical."""
    advice = {"persistence", "default-mode", "limits-guarded", "daemon-log", "without-front-door", "interrupted-runs"}
    takes_long = {"other-managers", "boot-order", "daemon-version", "client-pids"}
    assert {one.name for one in JUDGEMENTS if one.verbs != EVERY_VERB} == advice | takes_long


@pytest.mark.parametrize("verb", [STATUS, VERIFY])
def test_of_named_instances_the_host_and_these_alone_are_judged(pair: Host, mpsctl: Shell, verb: str) -> None:
    pair.systemd.unit("mps-control@1.service").enabled = False
    found = mpsctl.json(verb, "0")
    assert {name: one["word"] for name, one in found["instances"].items()} == {"0": OK}
    assert found["worst"] == OK
    server_left_over(pair)
    assert mpsctl.json(verb, "0")["worst"] == CRITICAL


def test_the_page_of_checks_is_made_from_the_list() -> None:
    script = Path(__file__).parents[3] / "scripts" / "document_checks.py"
    assert subprocess.run([sys.executable, script, "--check"], check=False).returncode == 0
