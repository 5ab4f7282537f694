"""Faults of the control daemon and of what lies in its directory. Instance 0 is the one that is hit."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Callable

import pytest

testinfra_hosts = ["ansible://daemon_550"]

UNIT, PIPE = "mps-control@0", "/run/nvidia-mps/0"
Untouched = Callable[..., AbstractContextManager[None]]
Eventually = Callable[..., None]


def private_directories(host: Any) -> list[str]:
    return list(host.run(f"ls -d {PIPE}/.[A-Za-z0-9_-]*").stdout.split())


@pytest.mark.parametrize("process", ["main", "control"])
def test_killed_at_a_moment_of_its_start(
    host: Any, process: str, untouched: Untouched, eventually: Eventually, as_desired: Callable[..., bool]
) -> None:
    """Fault: the daemon, or the command of ours that works on its start, is killed at a moment of the start

    Happens: the start fails, the front door stays closed: no client finds a daemon without its limits
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
            assert len(private_directories(host)) == 1


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


@pytest.mark.parametrize("what", [PIPE, f"{PIPE}/.*/control*", f"{PIPE}/control {PIPE}/control_privileged"])
def test_pipe_directory_removed(
    host: Any,
    what: str,
    untouched: Untouched,
    pid: Callable[[str], int],
    as_desired: Callable[..., bool],
    daemons: Callable[[], set[int]],
    told: Callable[..., None],
) -> None:
    """Fault: the pipe directory, its sockets or the links to them are removed under a live daemon

    Happens: the daemon lives on and nobody reaches it; each verb says so; other instances are well
    Heals: `systemctl restart`, which ends the orphan first: there is never a second daemon beside it. Where only the
    links are gone a reload is enough
    Tried: each of the three removed, each verb, then the restart or reload
    """
    daemon = pid("0")
    with untouched("1"):
        host.run(f"rm -rf {what}")
        told("0", well=["1"])
        links_only = what.startswith(f"{PIPE}/control ")
        assert host.run(f"systemctl {'reload' if links_only else 'restart'} {UNIT}").rc == 0
        assert as_desired("0")
        assert (pid("0") == daemon) == links_only
        assert daemons() == {pid("0"), pid("1")}


def test_small_files_aged_away(
    host: Any,
    untouched: Untouched,
    as_desired: Callable[..., bool],
    daemons: Callable[[], set[int]],
    pid: Callable[[str], int],
    told: Callable[..., None],
) -> None:
    """Fault: a cleaner ages `control_lock`, `log` and the pid file away under a live daemon

    Happens: it answers, takes limits and is ended as before; another daemon for the same directory is never started,
    since every start has a directory of its own; each verb names the files that are gone
    Heals: the next start
    Tried: the three removed, each verb, a reload, a restart
    """
    with untouched("1"):
        daemon = pid("0")
        host.run(f"cd {PIPE}/.[A-Za-z0-9_-]* && rm -f control_lock log nvidia-cuda-mps-control.pid")
        told("0", "pipe-directory-files", well=["1"])
        assert host.run(f"systemctl reload {UNIT}").rc == 0
        assert pid("0") == daemon
        assert host.run(f"systemctl restart {UNIT}").rc == 0
        assert as_desired("0")
        assert daemons() == {pid("0"), pid("1")}


def test_stale_files(host: Any, untouched: Untouched, as_desired: Callable[..., bool]) -> None:
    """Fault: a stale pid file, lock and dead sockets lie where the daemon is to be

    Happens: nothing: the new daemon has a directory of its own, the links replace the dead sockets
    Heals: what earlier starts of ours left is removed by the start
    Tried: sockets that nobody listens on, a pid file that names PID 1, and a directory of an earlier start
    """
    dead = (
        f"import os, socket; os.makedirs('{PIPE}/.AAAAAAAAAAA', exist_ok=True)\n"
        f"for place in ('{PIPE}', '{PIPE}/.AAAAAAAAAAA'):\n"
        "    for name in ('control', 'control_privileged'): socket.socket(socket.AF_UNIX).bind(f'{place}/{name}')\n"
        "    for name in ('nvidia-cuda-mps-control.pid', 'control_lock'): open(f'{place}/{name}', 'w').write('1')\n"
    )
    with untouched("1"):
        assert host.run(f"systemctl stop {UNIT}").rc == 0
        assert host.run("python3 -c %s", dead).rc == 0
        assert host.run(f"systemctl start {UNIT}").rc == 0
        assert as_desired("0")
        assert len(private_directories(host)) == 1


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
    Tried: one started by hand on the directory, `systemctl start`, its `quit`
    """
    by_hand = f"CUDA_MPS_PIPE_DIRECTORY={PIPE}"
    with untouched("1"):
        assert host.run(f"systemctl stop {UNIT}; mkdir -p {PIPE}").rc == 0
        ours = daemons()
        assert host.run(f"{by_hand} nvidia-cuda-mps-control -d </dev/null >/dev/null 2>&1").rc == 0
        (foreign,) = daemons() - ours
        host.run(f"systemctl start --no-block {UNIT}")
        said = f"a control daemon (pid {foreign}) that this unit did not start serves {PIPE}"
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
