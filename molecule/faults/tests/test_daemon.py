"""Faults of the control daemon and of what lies in its directory. Instance 0 is the one that is hit."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Callable

import pytest

testinfra_hosts = ["ansible://daemon_550"]

UNIT, PUBLIC, PIPE = "mps-control@0", "/run/nvidia-mps/0", "/run/mps-fleet/0/pipe"
DOOR = "mps-front-door@0.socket"
Untouched = Callable[..., AbstractContextManager[None]]
Eventually = Callable[..., None]


@pytest.mark.parametrize("process", ["main", "control"])
def test_killed_at_a_moment_of_its_start(
    host: Any, process: str, untouched: Untouched, eventually: Eventually, as_desired: Callable[..., bool]
) -> None:
    """Fault: the daemon, or the command of ours that works on its start, is killed at a moment of the start

    Happens: the start fails, the front door lets nobody in: no client comes to a daemon without its limits
    Heals: systemd starts it again at once
    Tried: SIGKILL 0, 20, 50, 100, 200 and 400 ms after `systemctl start`, for the daemon and for `mpsctl`
    """
    with untouched("1"):
        for moment_s in ("0", "0.02", "0.05", "0.1", "0.2", "0.4"):
            host.run(
                f"systemctl stop {UNIT}; systemctl start --no-block {UNIT}; sleep {moment_s};"
                f" systemctl kill --kill-who={process} --signal=KILL {UNIT}"
            )
            eventually(f"it is back after {moment_s}", lambda: as_desired("0"))


def test_killed_in_a_loop(
    host: Any,
    untouched: Untouched,
    eventually: Eventually,
    as_desired: Callable[..., bool],
    daemons: Callable[[], set[int]],
    levels: Callable[..., dict[str, str]],
) -> None:
    """Fault: the daemon is killed whenever it has come up

    Happens: four starts at once, then pauses of 1, 2, 4 … 30 s; each verb says how many starts in a row did not last
    Heals: systemd starts it for as long as it takes, and never gives up; after a minute of work it is a warning, after
    an hour no more
    Tried: six SIGKILL in a row, each as soon as there was a main process
    """
    loop = (
        "last=0; for n in 1 2 3 4 5 6; do"
        f" until p=$(systemctl show -p MainPID --value {UNIT}); [ $p != 0 ] && [ $p != $last ]; do sleep 0.02; done;"
        " kill -9 $p; last=$p; done"
    )
    with untouched("1"):
        host.run(loop)
        eventually("status says so", lambda: levels("status", "0")["restarts"] == "critical")
        assert host.service(UNIT).systemd_properties["ActiveState"] != "failed"
        eventually("it is back", lambda: as_desired("0"))
    assert len(daemons()) == 2


def test_stopped_by_a_signal(
    host: Any, untouched: Untouched, pid: Callable[[str], int], told: Callable[..., None]
) -> None:
    """Fault: the daemon is stopped by SIGSTOP: alive, listening, answering nothing

    Happens: `status`, `verify` and the health timer name it, with the command that lets it go on, and wait for nobody;
    other instances are well; clients that connect now wait
    Heals: `kill -CONT`; with `mps_unresponsive_daemon: restart` the second look of the health timer
    Tried: SIGSTOP, each verb, SIGCONT
    """
    daemon = pid("0")
    with untouched("0", "1"):
        assert host.run(f"kill -STOP {daemon}").rc == 0
        try:
            told("0", "daemon-answers", well=["1"])
            said = host.run("timeout 60 mpsctl status 0").stdout
        finally:
            host.run(f"kill -CONT {daemon}")
        assert f"kill -CONT {daemon}" in said


@pytest.mark.parametrize("how", ["stopped", "directory removed"])
def test_unresponsive_where_a_restart_is_desired(
    host: Any,
    how: str,
    untouched: Untouched,
    pid: Callable[[str], int],
    eventually: Eventually,
    as_desired: Callable[..., bool],
    daemons: Callable[[], set[int]],
) -> None:
    """Fault: a daemon answers nothing, and `mps_unresponsive_daemon: restart` is set

    Happens: the first look of the health timer says that it will be ended, the second ends it, whatever its state
    Heals: systemd starts it again; a daemon whose session somebody holds is left alone
    Tried: mps-health.service run twice, sandboxed as it is, on a daemon stopped by SIGSTOP and on one without directory
    """
    daemon = pid("0")
    assert host.run("systemctl stop mps-health.timer").rc == 0
    assert host.run("sed -i s/^UnresponsiveDaemon=report/UnresponsiveDaemon=restart/ /etc/mps/0.conf").rc == 0
    try:
        with untouched("1"):
            assert host.run(f"kill -STOP {daemon}" if how == "stopped" else f"rm -rf {PIPE}").rc == 0
            assert host.run("systemctl start mps-health.service").rc != 0
            assert pid("0") == daemon, "one look is not enough"
            assert host.run("systemctl start mps-health.service").rc != 0
            eventually("it is back", lambda: as_desired("0"))
        assert pid("0") != daemon
        assert daemon not in daemons()
        journal = host.run("journalctl -u mps-health -o cat --no-pager -n 40").stdout
        assert f"the control daemon (pid {daemon}) was ended with SIGKILL" in journal
    finally:
        host.run("sed -i s/^UnresponsiveDaemon=restart/UnresponsiveDaemon=report/ /etc/mps/0.conf")
        host.run("systemctl start mps-health.timer")


@pytest.mark.parametrize("what", [PIPE, f"{PIPE}/control*"])
def test_pipe_directory_removed(
    host: Any,
    what: str,
    untouched: Untouched,
    pid: Callable[[str], int],
    as_desired: Callable[..., bool],
    daemons: Callable[[], set[int]],
    told: Callable[..., None],
) -> None:
    """Fault: the daemon's own directory or its sockets are removed under a live daemon

    Happens: the daemon lives on and nobody reaches it; clients wait at the front door; each verb says so; other
    instances are well
    Heals: `systemctl restart`, which ends the orphan first: there is never a second daemon beside it
    Tried: both removed, each verb, then the restart
    """
    daemon = pid("0")
    with untouched("1"):
        host.run(f"rm -rf {what}")
        told("0", well=["1"])
        assert host.run(f"systemctl restart {UNIT}").rc == 0
        assert as_desired("0")
        assert pid("0") != daemon
        assert daemons() == {pid("0"), pid("1")}


@pytest.mark.parametrize("what", [f"rm -rf {PUBLIC}", f"rm {PUBLIC}/front-door", f"rm {PUBLIC}/control"])
@pytest.mark.parametrize("how", ["by site.yml", "by hand"])
def test_front_door_removed(
    host: Any,
    what: str,
    how: str,
    untouched: Untouched,
    as_desired: Callable[..., bool],
    told: Callable[..., None],
    play: Callable[..., Any],
) -> None:
    """Fault: the public pipe directory, the front door's socket in it or the name that leads to it is removed

    Happens: clients that come find nobody and run outside MPS; each verb says so; the daemon and its clients go on
    Heals: `site.yml`, or `systemctl restart mps-front-door@0.socket`; no daemon is restarted
    Tried: each of the three removed, each verb, then each of the two
    """
    with untouched("0", "1") if how == "by site.yml" else untouched("1"):
        assert host.run(what).rc == 0
        told("0", "front-door", well=["1"])
        if how == "by site.yml":
            done = play()
            assert done.returncode == 0, done.stdout
        else:
            assert host.run(f"systemctl stop mps-front-door@0.service; systemctl restart {DOOR}").rc == 0
        assert as_desired("0")


def test_front_door_killed(host: Any, untouched: Untouched, eventually: Eventually) -> None:
    """Fault: the front door's service is killed again and again

    Happens: nothing to clients that work; those who come wait for the next one. systemd never closes its socket
    Heals: systemd starts it again, as long as somebody comes
    Tried: 20 SIGKILL within seconds, each while somebody is connected
    """
    connect = f"import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect('{PUBLIC}/control')"
    with untouched("0", "1"):
        for _ in range(20):
            assert host.run("python3 -c %s", f"{connect}; assert s.recv(99) == b'OUTBHELL\\0'").rc == 0
            host.run("systemctl kill --signal=KILL mps-front-door@0.service")
        assert host.run(f"systemctl is-active {DOOR}").stdout.strip() == "active"
        eventually("it greets", lambda: host.run("python3 -c %s", f"{connect}; s.recv(99)").rc == 0)


def test_small_files_aged_away(
    host: Any,
    untouched: Untouched,
    as_desired: Callable[..., bool],
    daemons: Callable[[], set[int]],
    pid: Callable[[str], int],
    told: Callable[..., None],
) -> None:
    """Fault: a cleaner ages `control_lock`, `log` and the pid file away under a live daemon

    Happens: it answers, takes limits and is ended as before; every start makes the directory anew; each verb names the
    files that are gone
    Heals: the next start
    Tried: the three removed, each verb, a reload, a restart
    """
    with untouched("1"):
        daemon = pid("0")
        host.run(f"cd {PIPE} && rm -f control_lock log nvidia-cuda-mps-control.pid")
        told("0", "pipe-directory-files", well=["1"])
        assert host.run(f"systemctl reload {UNIT}").rc == 0
        assert pid("0") == daemon
        assert host.run(f"systemctl restart {UNIT}").rc == 0
        assert as_desired("0")
        assert daemons() == {pid("0"), pid("1")}


def test_stale_files(host: Any, untouched: Untouched, as_desired: Callable[..., bool]) -> None:
    """Fault: a stale pid file, lock and dead sockets lie where the daemon is to be

    Happens: nothing: the new daemon gets its directory empty
    Heals: what earlier starts of ours left, of release 0.2.0 as well, is removed by the start
    Tried: sockets that nobody listens on, a pid file that names PID 1, and a directory of an earlier release's start
    """
    dead = (
        "import os, socket\n"
        f"for place in ('{PIPE}', '{PUBLIC}/.AAAAAAAAAAA'): os.makedirs(place, exist_ok=True)\n"
        f"for place in ('{PIPE}', '{PUBLIC}/.AAAAAAAAAAA'):\n"
        "    for name in ('control', 'control_privileged'): socket.socket(socket.AF_UNIX).bind(f'{place}/{name}')\n"
        "    for name in ('nvidia-cuda-mps-control.pid', 'control_lock'): open(f'{place}/{name}', 'w').write('1')\n"
    )
    with untouched("1"):
        assert host.run(f"systemctl stop {UNIT}").rc == 0
        assert host.run("python3 -c %s", dead).rc == 0
        assert host.run(f"systemctl start {UNIT}").rc == 0
        assert as_desired("0")
        assert not host.file(f"{PUBLIC}/.AAAAAAAAAAA").exists


def test_foreign_daemon_on_the_directory(
    host: Any,
    untouched: Untouched,
    eventually: Eventually,
    as_desired: Callable[..., bool],
    daemons: Callable[[], set[int]],
) -> None:
    """Fault: a control daemon that somebody started by hand serves the directory already

    Happens: ours is not started beside it; `status` says that the unit does not run, its journal names the foreign
    daemon's pid and the command that ends it; it is left alone
    Heals: by itself, as soon as the foreign daemon has been ended
    Tried: one started by hand on the daemon's own directory, `systemctl start`, its `quit`. On the public directory
    none can be started: the front door keeps its lock
    """
    assert host.run(f"CUDA_MPS_PIPE_DIRECTORY={PUBLIC} nvidia-cuda-mps-control -d </dev/null").rc != 0
    by_hand = f"CUDA_MPS_PIPE_DIRECTORY={PIPE}"
    with untouched("1"):
        assert host.run(f"systemctl stop {UNIT}; mkdir -p {PIPE}").rc == 0
        ours = daemons()
        assert host.run(f"{by_hand} nvidia-cuda-mps-control -d </dev/null >/dev/null 2>&1").rc == 0
        (foreign,) = daemons() - ours
        host.run(f"systemctl start --no-block {UNIT}")
        said = f"a control daemon (pid {foreign}) that this unit did not start serves {PUBLIC}"
        eventually("it is named", lambda: said in host.run(f"journalctl -u {UNIT} -o cat --no-pager -n 50").stdout)
        assert host.run("mpsctl status 0").rc == 1
        assert daemons() == {foreign, *ours}
        assert host.run(f"echo quit | {by_hand} nvidia-cuda-mps-control").rc == 0
        eventually("ours is up", lambda: as_desired("0"))


@pytest.mark.parametrize("devices", ["CUDA_VISIBLE_DEVICES=0", ""])
def test_foreign_daemon_on_the_gpu(
    host: Any, devices: str, untouched: Untouched, told: Callable[..., None], levels: Callable[..., dict[str, str]]
) -> None:
    """Fault: a control daemon that somebody started by hand, with another directory, serves the same GPU

    Happens: each verb names its pid and its directory, for each instance whose GPU it serves; ours goes on
    Heals: ending the foreign daemon; nothing of it is touched by us
    Tried: one started by hand for GPU 0 and one for all, each verb, its `quit`
    """
    by_hand = "CUDA_MPS_PIPE_DIRECTORY=/run/by-hand"
    with untouched("0", "1"):
        assert host.run(f"{by_hand} {devices} nvidia-cuda-mps-control -d </dev/null >/dev/null 2>&1").rc == 0
        try:
            told("0", "other-daemons", well=["1"] if devices else [])
            assert (levels("status", "1")["other-daemons"] == "ok") == bool(devices)
            assert levels("status", "host")["foreign-daemons"] == "warning"
        finally:
            host.run(f"echo quit | {by_hand} nvidia-cuda-mps-control")
