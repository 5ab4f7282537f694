"""Faults of the file systems that hold the desired state."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Callable

import pytest

testinfra_hosts = ["ansible://daemon_550"]

UNIT = "mps-control@0"
Untouched = Callable[..., AbstractContextManager[None]]
Eventually = Callable[..., None]
CHANGE = ("-e", "mps_device_memory_limit=5G")


@pytest.fixture
def files(host: Any) -> Callable[[], str]:
    """What lies in /etc/mps, to the byte, names that begin with a dot included."""
    return lambda: str(host.run("cd /etc/mps && find . -type f | sort | xargs sha256sum").stdout)


def test_disk_full_on_configuration(
    host: Any, files: Callable[[], str], play: Callable[..., Any], untouched: Untouched
) -> None:
    """Fault: the disk is full where the configuration is to be written

    Happens: `site.yml` fails for that host and says which file; every file is the old or the new one, none is
    half-written; daemons and clients go on as before
    Heals: the next run of `site.yml`, once there is room
    Tried: a full tmpfs over /etc/mps, `site.yml` with another limit, then without the tmpfs
    """
    fill = (
        "cp -a /etc/mps /run/copy && mount -t tmpfs -o size=32k,mode=755 tmpfs /etc/mps && cp -a /run/copy/. /etc/mps"
        " && rm -r /run/copy; cat /dev/zero > /etc/mps/ballast; test -s /etc/mps/ballast"
    )
    with untouched("0", "1"):
        assert host.run(fill).rc == 0
        try:
            before = files()
            done = play(*CHANGE)
            assert done.returncode != 0
            assert "No space left on device" in done.stdout
            assert files() == before
        finally:
            host.run("umount /etc/mps")
        assert play(*CHANGE).returncode == 0
        assert play().returncode == 0


def test_disk_full_on_log(
    host: Any, untouched: Untouched, eventually: Eventually, as_desired: Callable[..., bool]
) -> None:
    """Fault: the disk of the journal is full, and journald itself cannot start any more

    Happens: daemons go on, and one that ends comes back with its limits; what it logs is lost, so that exact limits of
    servers are unknown in `status`
    Heals: journald started again once there is room; a daemon that was started without it logs from its next start on
    Tried: full file systems over both places of the journal, journald restarted, SIGKILL to the daemon
    """
    places = "/var/log/journal /run/log/journal"
    fill = (
        f"mkdir -p {places}; for place in {places}; do mount -t tmpfs -o size=64k tmpfs $place;"
        " cat /dev/zero >$place/ballast; done; systemctl restart systemd-journald"
    )
    units = "systemd-journald.socket systemd-journald-dev-log.socket systemd-journald.service"
    with untouched("1"):
        try:
            assert host.run(fill).rc != 0, "journald cannot start"
            host.run(f"systemctl kill --kill-who=main --signal=KILL {UNIT}")
            eventually("it is back", lambda: as_desired("0"))
        finally:
            host.run("umount /var/log/journal; umount /run/log/journal")
            assert host.run(f"systemctl reset-failed {units}; systemctl start {units}").rc == 0
    assert host.run(f"systemctl restart {UNIT}").rc == 0
    assert host.run(f"journalctl -u {UNIT} -n 1 -o cat").stdout


def test_etc_read_only(
    host: Any, files: Callable[[], str], play: Callable[..., Any], untouched: Untouched, as_desired: Callable[..., bool]
) -> None:
    """Fault: /etc is read-only

    Happens: daemons start and restart as ever; `site.yml` with a change fails for that host and says which file
    Heals: the next run of `site.yml`, once it can be written
    Tried: /etc mounted read-only, a restart, `site.yml` with another limit, then writable
    """
    with untouched("1"):
        assert host.run("mount --bind /etc /etc && mount -o remount,bind,ro /etc").rc == 0
        try:
            before = files()
            assert host.run(f"systemctl restart {UNIT}").rc == 0
            assert as_desired("0")
            done = play(*CHANGE)
            assert done.returncode != 0
            assert "Read-only file system" in done.stdout
            assert files() == before
        finally:
            host.run("umount /etc")
    assert play().returncode == 0


@pytest.mark.parametrize("damage", ["truncate -s 0", "truncate -s 150", "truncate -s +64"])
def test_configuration_half_written(
    host: Any,
    damage: str,
    play: Callable[..., Any],
    untouched: Untouched,
    eventually: Eventually,
    as_desired: Callable[..., bool],
    told: Callable[..., None],
) -> None:
    """Fault: the file of an instance is half-written, empty or ends in zeros after a power cut

    Happens: each verb names the file and what is wrong with it; its daemon goes on, and does not start anew with half a
    desired state, but is tried with the pauses of a crash loop; other instances are well
    Heals: `site.yml` writes it anew; an instance that was down comes up by itself then
    Tried: each kind of damage, each verb, SIGKILL to the daemon, `site.yml`
    """
    with untouched("1"):
        assert host.run(f"systemctl restart {UNIT}").rc == 0, "earlier crashes are forgotten"
        since = host.run("date +%s").stdout.strip()
        assert host.run(f"{damage} /etc/mps/0.conf").rc == 0
        told("0", "configuration", well=["1"])
        host.run(f"systemctl kill --kill-who=main --signal=KILL {UNIT}")
        journal = f"journalctl --since=@{since} -u {UNIT} -o cat --no-pager"
        eventually("it is tried with pauses", lambda: "waiting 1 s" in host.run(journal).stdout)
        assert "mpsctl prepare: found /etc/mps/0.conf" in host.run(journal).stdout
        done = play()
        assert done.returncode == 0, done.stdout
        eventually("it is back", lambda: as_desired("0"))
