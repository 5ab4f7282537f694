"""mps_front_door: false. The daemon's own sockets stand where clients look, and are open as the directory's mode is."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Optional

import pytest

from converging import Fleet, as_desired, conf, found
from fakes import DAEMON_FILES, Host
from judging import UNIT, amiss, judge, serve
from mpsctl.adapters import log_fifo, pipe, without_door
from mpsctl.checks.judgement import EVERY_VERB, SITE, STATUS, VERIFY
from mpsctl.converge import removal
from mpsctl.lifecycle import admit, apply, drain, prepare, stop
from mpsctl.model.errors import MpsctlError, NotAFile, NotReady
from mpsctl.model.finding import CRITICAL, OK, RELOAD, RESTART, WARNING
from mpsctl.model.names import door_service, door_unit
from mpsctl.store import admission, configuration
from shell import Shell

DOOR = door_unit("0")
OFF = {"DeviceMemoryLimit": "4G", "ComputeMode": "exclusive_process", "FrontDoor": "no"}
ON = {**OFF, "FrontDoor": "yes"}
STARTING, SERVERS_ALONE, EVERYONE = 0o700, 0o710, 0o711
GUARDED = {name: 0o666 if name == "control" else 0o600 for name in DAEMON_FILES}


@pytest.fixture
def without(host: Host) -> Host:
    """Instance 0 runs without a front door, in the desired state, with one server and one client at work."""
    host.desired(**OFF)
    host.systemd.unit(UNIT).enabled = True
    serve(host, host.start())
    return host


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def public(host: Host) -> Path:
    return host.pipe_root / "0"


def modes(host: Host) -> dict[str, int]:
    return {path.name: mode(path) for path in public(host).iterdir()}


def served(host: Host) -> Optional[str]:
    told = admission.read(host.places, "0")
    return told.daemon.pipe_directory if told is not None and told.daemon is not None else None


# -- a start


def test_the_daemon_starts_in_an_empty_directory_that_is_root_s_alone(host: Host) -> None:
    host.desired(**OFF)
    environment = prepare.prepare(host.world, "0")
    assert environment.pipe_directory == public(host)
    assert mode(public(host)) == STARTING
    assert list(public(host).iterdir()) == []
    told = admission.read(host.places, "0")
    assert told is not None
    assert told.state == admission.WAITING
    assert not host.own().exists()


def test_clients_come_once_the_limits_were_read_back_and_find_nothing_but_the_socket(host: Host) -> None:
    host.desired(**OFF)
    daemon = host.prepared()
    at_setters = set()

    def look(command: str) -> None:
        if command.startswith("set_"):
            at_setters.add((mode(public(host)), mode(public(host) / "log")))

    daemon.before_command = look
    apply.apply(host.world, "0", daemon.pid)
    assert at_setters == {(SERVERS_ALONE, 0o600)}
    assert mode(public(host)) == EVERYONE
    assert modes(host) == GUARDED
    assert host.door_is_open()
    assert served(host) == str(public(host))


def test_limits_that_do_not_come_into_force_let_nobody_in(host: Host) -> None:
    host.desired(**OFF)
    daemon = host.prepared()
    daemon.deaf_to = "pinned"
    with pytest.raises(MpsctlError):
        apply.apply(host.world, "0", daemon.pid)
    assert not mode(public(host)) & 0o007
    assert not host.door_is_open()


def test_the_directory_stays_the_one_that_a_container_has_mounted(without: Host) -> None:
    before = public(without).stat().st_ino
    without.restart()
    without.stop()
    without.start()
    assert public(without).stat().st_ino == before
    assert modes(without) == GUARDED


@pytest.mark.parametrize("theirs", ["notes.txt", ".hidden", "control_lock/inside", "log/inside"])
def test_what_is_not_ours_is_named_and_nothing_is_removed(host: Host, theirs: str) -> None:
    host.desired(**OFF)
    host.stand_door()
    path = public(host) / theirs
    path.parent.mkdir(exist_ok=True)
    path.touch()
    before = host.snapshot()
    with pytest.raises(NotReady, match=str(path.parent if theirs.startswith("log") else path)):
        without_door.make(public(host))
    assert host.snapshot() == before


def test_a_link_in_the_directory_s_place_is_not_followed(root: Path) -> None:
    elsewhere, link = root / "elsewhere", root / "0"
    elsewhere.mkdir()
    link.symlink_to(elsewhere)
    with pytest.raises(NotAFile):
        without_door.make(link)
    assert mode(elsewhere) == 0o755


def test_a_front_door_that_still_stands_gives_its_place_up(host: Host) -> None:
    """A unit that is restarted by hand, before site.yml has taken the front door away."""
    host.desired(**ON)
    host.start()
    host.desired(**OFF)
    host.restart()
    assert modes(host) == GUARDED
    assert host.door_is_open()
    assert amiss(judge(host, verb=STATUS)).get("front-door") == WARNING


# -- who may come


def test_a_drain_closes_and_the_end_of_it_opens(without: Host) -> None:
    (instance,) = [configuration.load(without.world, "0")]
    drain.drain(without.world, [instance], 0)
    assert mode(public(without)) == SERVERS_ALONE
    assert mode(public(without) / "control") == 0o660
    assert not without.door_is_open()
    drain.undrain(without.world, "0")
    assert mode(public(without)) == EVERYONE
    assert modes(without) == GUARDED


def test_a_drain_says_that_whoever_comes_runs_outside(without: Host, mpsctl: Shell) -> None:
    assert without.door_is_open()
    mpsctl("drain", "0", "--timeout", "1")
    assert "run outside MPS" in mpsctl.err


def test_a_drained_instance_starts_closed(without: Host) -> None:
    drain.drain(without.world, [configuration.load(without.world, "0")], 0)
    without.restart()
    assert mode(public(without)) == SERVERS_ALONE
    assert not without.door_is_open()
    assert served(without) == str(public(without))


def test_a_drain_that_is_given_up_opens_again(without: Host) -> None:
    (drained,) = drain.drain(without.world, [configuration.load(without.world, "0")], 0, of_this_run=True)
    drain.give_up(without.world, drained)
    assert mode(public(without)) == EVERYONE
    assert without.door_is_open()


def test_a_reload_keeps_nobody_out_meanwhile(without: Host) -> None:
    without.desired(**{**OFF, "DeviceMemoryLimit": "2G"})
    seen: set[int] = set()
    daemon = without.running()
    daemon.before_command = lambda command: seen.add(mode(public(without)))
    assert apply.apply(without.world, "0", daemon.pid)
    assert seen == {EVERYONE}


def test_the_server_of_another_user_reaches_the_daemon_before_clients_do(host: Host) -> None:
    """It keeps root's group; in a directory of 0700 it would not come up."""
    host.desired(**OFF, ServerUser="root")
    daemon = host.prepared()
    seen: list[int] = []
    start = daemon.on_start_server

    def started(uid: int) -> None:
        seen.append(mode(public(host)))
        start(uid)

    daemon.on_start_server = started
    apply.apply(host.world, "0", daemon.pid)
    assert seen == [SERVERS_ALONE]


# -- an end


def test_a_stop_leaves_an_empty_directory_that_is_root_s_alone(without: Host) -> None:
    without.stop()
    assert mode(public(without)) == STARTING
    assert list(public(without).iterdir()) == []


def test_a_crash_leaves_nothing_open_and_the_next_start_comes_up(without: Host) -> None:
    without.kill(without.running().pid)
    stop.release(without.world, "0")
    assert mode(public(without)) == STARTING
    without.start()
    assert modes(without) == GUARDED
    assert without.door_is_open()


def test_the_front_door_s_directory_keeps_its_mode_at_every_end(live: Host) -> None:
    live.restart()
    live.stop()
    assert mode(public(live)) == 0o755
    assert pipe.leads_to_door(public(live))


def test_what_was_said_of_a_daemon_before_the_front_door_closes_no_door(without: Host) -> None:
    """The daemon is gone, and a front door stands in its place."""
    told = admission.read(without.places, "0")
    assert told is not None
    without.stop()
    without.desired(**ON)
    stop.release(without.world, "0")
    without.stand_door()
    admission.write(without.places, "0", told)
    admit.close_for_end(without.world, "0", refuse=False)
    assert mode(public(without)) == 0o755


# -- what the checks say


def test_verify_says_what_is_lost_and_nothing_else_is_amiss(without: Host) -> None:
    assert amiss(judge(without, verb=VERIFY)) == {"without-front-door": WARNING}
    for verb in set(EVERY_VERB) - {VERIFY}:
        assert amiss(judge(without, verb=verb)) == {}


def test_a_front_door_is_not_missed_where_there_is_one(live: Host) -> None:
    assert judge(live).check("0", "without-front-door").level == OK


@pytest.mark.parametrize("name", ["log", "control_lock", "control_privileged"])
def test_what_is_opened_by_hand_is_told_guarded_again_and_remembered(without: Host, name: str) -> None:
    (public(without) / name).chmod(0o666)
    seen = judge(without, verb=STATUS)
    assert seen.check("0", "daemon-directory").level == CRITICAL
    assert seen.mends("0") == {RELOAD}
    assert apply.apply(without.world, "0", without.running().pid)
    assert modes(without) == GUARDED
    assert judge(without).check("0", "daemon-log").level == WARNING


def test_a_directory_that_is_closed_by_hand_is_told(without: Host) -> None:
    public(without).chmod(STARTING)
    assert amiss(judge(without, verb=STATUS)) == {"pipe-directory-access": CRITICAL}


def test_a_drained_one_is_closed_and_nothing_else_is_amiss(without: Host) -> None:
    drain.drain(without.world, [configuration.load(without.world, "0")], 0)
    assert amiss(judge(without, verb=STATUS)) == {"drain": WARNING}


def test_a_daemon_that_guards_no_limits_is_told_as_everyone_comes_to_it(without: Host) -> None:
    (public(without) / "nvidia-cuda-mps-control.pid").unlink()  # 535 makes none
    assert judge(without).check("0", "limits-guarded").level == WARNING


def test_who_is_kept_out_is_told_where_the_daemon_is_closed(without: Host) -> None:
    told = admission.read(without.places, "0")
    assert told is not None
    admission.write(without.places, "0", replace(told, state=admission.WAITING))
    without_door.close(public(without))
    seen = judge(without, verb=STATUS)
    assert amiss(seen) == {"front-door": CRITICAL}
    assert seen.mends("0") == {RELOAD}
    apply.apply(without.world, "0", without.running().pid)
    assert amiss(judge(without, verb=STATUS)) == {}


def test_status_says_what_a_client_meets(without: Host, mpsctl: Shell) -> None:
    mpsctl("status")
    assert "without a front door: clients may connect" in mpsctl.out
    without.stop()
    mpsctl("status")
    assert "what uses CUDA there runs outside MPS" in mpsctl.out


@pytest.mark.parametrize(
    ("of_directory", "public_one", "closed"),
    [
        (EVERYONE, True, True),
        (EVERYONE, False, False),
        (SERVERS_ALONE, True, True),
        (0o755, True, False),
        (0o713, True, False),
    ],
)
def test_the_log_in_a_directory_that_everyone_may_enter(
    root: Path, of_directory: int, public_one: bool, closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    os.mkfifo(root / "log", 0o600)
    root.chmod(of_directory)
    expected = closed and (os.getegid() == 0 or not of_directory & 0o070)
    assert log_fifo.is_closed(root, os.geteuid(), public_one) is expected


# -- from one to the other


def enabled(fleet: Fleet) -> bool:
    return fleet.host.systemd.unit(DOOR).enabled


def stands(fleet: Fleet) -> bool:
    return fleet.host.systemd.unit(DOOR).active_state == "active"


def test_a_new_instance_gets_no_front_door(fleet: Fleet) -> None:
    answer = fleet.converge(_0=conf(fleet, **OFF))
    assert answer.error is None
    assert as_desired(answer, "0")
    assert not enabled(fleet)
    assert not stands(fleet)
    assert not any("front-door" in act for act in fleet.host.systemd.acts)
    assert not fleet.converge(_0=conf(fleet, **OFF)).changed


def test_turned_off_and_on_again_by_a_restart_each(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    first = fleet.host.running("0").pid
    told = fleet.check(_0=conf(fleet, **OFF))
    answer = fleet.converge(_0=conf(fleet, **OFF))
    assert told.actions == answer.actions
    assert answer.error is None
    assert as_desired(answer, "0")
    second = fleet.host.running("0").pid
    assert second != first
    assert modes(fleet.host) == GUARDED
    assert (enabled(fleet), stands(fleet)) == (False, False)
    assert not fleet.host.own().exists()
    assert not fleet.converge(_0=conf(fleet, **OFF)).changed

    told = fleet.check(_0=conf(fleet))
    answer = fleet.converge(_0=conf(fleet))
    assert told.actions == answer.actions
    assert answer.error is None
    assert as_desired(answer, "0")
    assert fleet.host.running("0").pid != second
    assert pipe.leads_to_door(public(fleet.host))
    assert mode(public(fleet.host)) == 0o755
    assert sorted(path.name for path in public(fleet.host).iterdir()) == ["control", "control_lock", "front-door"]
    assert (enabled(fleet), stands(fleet)) == (True, True)
    assert served(fleet.host) == str(fleet.host.own())
    assert not fleet.converge(_0=conf(fleet)).changed


def test_the_front_door_is_taken_away_before_its_daemon_is_restarted(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    fleet.host.systemd.acts.clear()
    fleet.converge(_0=conf(fleet, **OFF))
    acts = [act for act in fleet.host.systemd.acts if act.split()[0] in ("stop", "disable", "restart")]
    assert acts == [f"disable {DOOR}", f"stop {door_service('0')} {DOOR}", f"restart {UNIT}"]


@pytest.mark.parametrize("towards", ["off", "on"])
def test_with_clients_the_restart_is_withheld_and_nobody_loses_anything(fleet: Fleet, towards: str) -> None:
    before, after = ({}, OFF) if towards == "off" else (OFF, {})
    fleet.converge(_0=conf(fleet, **before))
    daemon = fleet.host.running("0")
    daemon.start_server(9001, clients=[fleet.host.client()])
    answer = fleet.converge(_0=conf(fleet, **after))
    assert [one["instance"] for one in answer.pending] == ["0"]
    assert fleet.host.running("0") is daemon
    assert fleet.host.door_is_open()
    assert stands(fleet) is (towards == "off")
    if towards == "off":
        assert pipe.leads_to_door(public(fleet.host))
    else:
        assert mode(public(fleet.host)) == EVERYONE
    seen = judge(fleet.host, "0", verb=SITE)
    assert seen.mends("0") == {RESTART}
    assert seen.check("0", "main-process").level == OK
    # A limit is put in force all the same, and what stands keeps standing.
    changed = {**after, "DeviceMemoryLimit": "2G"}
    fleet.converge(_0=conf(fleet, **changed))
    assert daemon.limits["0"] == 2 << 30
    assert fleet.host.door_is_open()
    fleet.host.end(daemon.servers[9001].clients[0])
    assert fleet.converge(_0=conf(fleet, **changed)).error is None
    assert stands(fleet) is (towards == "on")


def test_turned_off_while_the_instance_is_stopped(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    fleet.host.stop()
    answer = fleet.converge(_0=conf(fleet, **OFF))
    assert answer.error is None
    assert as_desired(answer, "0")
    assert (enabled(fleet), stands(fleet)) == (False, False)
    assert modes(fleet.host) == GUARDED


def test_turned_on_while_the_instance_is_stopped(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet, **OFF))
    fleet.host.stop()
    answer = fleet.converge(_0=conf(fleet))
    assert answer.error is None
    assert as_desired(answer, "0")
    assert pipe.leads_to_door(public(fleet.host))
    assert mode(public(fleet.host)) == 0o755


def test_what_a_restart_by_hand_left_of_the_front_door_goes_with_the_next_run(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    daemon = fleet.host.running("0")
    daemon.start_server(9001, clients=[fleet.host.client()])
    fleet.converge(_0=conf(fleet, **OFF))
    fleet.host.restart()
    second = fleet.host.running("0")
    answer = fleet.converge(_0=conf(fleet, **OFF))
    assert [step["kind"] for step in answer.steps] == ["take-front-door-away"]
    assert fleet.host.running("0") is second
    assert (enabled(fleet), stands(fleet)) == (False, False)
    assert modes(fleet.host) == GUARDED
    assert as_desired(answer, "0")


def test_another_pipe_root_moves_it_and_leaves_nothing_behind(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet, **OFF))
    elsewhere = fleet.host.places.root / "other"
    answer = fleet.converge(_0=conf(fleet, **OFF, PipeDirectory=f"{elsewhere}/%i"))
    assert answer.error is None
    assert as_desired(answer, "0")
    assert (elsewhere / "0" / "control").exists()
    assert not public(fleet.host).exists()


def test_a_check_of_values_says_the_state_of_the_one_that_is_desired(fleet: Fleet) -> None:
    answer = fleet.converge(_0=conf(fleet, **OFF))
    assert found(answer, "0", "front-door-enabled")["level"] == OK
    assert found(answer, "0", "daemon-directory")["level"] == OK


# -- a removal


@pytest.mark.parametrize("more", [OFF, ON], ids=["without", "with"])
def test_a_removal_leaves_nothing_of_either(fleet: Fleet, more: dict[str, str]) -> None:
    fleet.converge(_0=conf(fleet, **more))
    answer = removal.remove(fleet.host.world, False)
    assert answer.error is None
    assert not fleet.host.pipe_root.exists()
    assert not fleet.host.own().exists()
    assert not any(unit.enabled or unit.main_pid for unit in fleet.host.systemd.units.values())


def test_what_is_not_ours_outlives_a_removal(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet, **OFF))
    (public(fleet.host) / "theirs").touch()
    removal.remove(fleet.host.world, False)
    assert [path.name for path in public(fleet.host).iterdir()] == ["theirs"]
