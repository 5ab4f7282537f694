"""Faults of GPUs, of NVML and of the driver. GPU 0 is the one that is hit."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Callable

testinfra_hosts = ["ansible://daemon_555"]

PROJECT = Path(__file__).resolve().parents[3]
UNIT, NEIGHBOUR = "mps-control@0", "mps-control@1"
Untouched = Callable[..., AbstractContextManager[None]]
Eventually = Callable[..., None]
Status = Callable[[], dict[str, Any]]
Lab = Callable[..., None]


def served(status: Status) -> list[list[str]]:
    return [one["serves"] for one in status().values()]


def test_gpu_vanishes(host: Any, gpu: Lab, untouched: Untouched, as_desired: Callable[..., bool]) -> None:
    """Fault: a GPU falls off the bus (Xid 79) under a running daemon

    Happens: `status` and the health timer name it; the instances of other GPUs go on, and can be restarted
    Heals: when it is back its compute mode is the driver's default: a reload, or the next run of `site.yml`, takes it
    again
    Tried: vanish, `mpsctl status`, `mpsctl health`, restart of the neighbour, return, reload
    """
    with untouched("1"):
        gpu("vanish", 0)
        assert host.run("mpsctl status 0").rc == 1
        health = host.run("mpsctl health")
        assert health.rc == 1
        assert "instance 1: well" in health.stdout
    assert host.run(f"systemctl restart {NEIGHBOUR}").rc == 0
    assert as_desired("1")
    with untouched("0", "1"):
        gpu("return", 0)
        assert not as_desired("0")
        assert host.run(f"systemctl reload {UNIT}").rc == 0


def test_gpu_vanished_at_a_start(
    host: Any, gpu: Lab, untouched: Untouched, eventually: Eventually, as_desired: Callable[..., bool]
) -> None:
    """Fault: the daemon of a vanished GPU ends, or is restarted

    Happens: the start waits for the GPU within `mps_driver_timeout_s`, fails with the GPU's name, and is tried again
    Heals: by itself, once the GPU is back
    Tried: vanish, SIGKILL to the daemon, return
    """
    with untouched("1"):
        gpu("vanish", 0)
        assert host.run(f"systemctl kill --kill-who=main --signal=KILL {UNIT}").rc == 0
        eventually("it is waited for", lambda: "waiting up to" in host.run(f"journalctl -u {UNIT} -o cat -n 20").stdout)
        assert not as_desired("0")
        gpu("return", 0)
        eventually("it is back", lambda: as_desired("0"))


def test_gpu_hangs(host: Any, gpu: Lab, as_desired: Callable[..., bool], untouched: Untouched) -> None:
    """Fault: NVML never answers for one GPU

    Happens: every look leaves that GPU out after 10 s; `status` and the health timer name its instance; the
    instances of other GPUs go on, and can be restarted
    Heals: a reset of the GPU or a reboot; a reload takes its compute mode again
    Tried: a GPU whose calls do not return, `mpsctl health`, restart of the neighbour
    """
    with untouched("0"):
        gpu("hang", 0)
        try:
            health = host.run("timeout 100 mpsctl health")
            assert health.rc == 1
            assert "instance 0: NOT WELL" in health.stdout
            assert "instance 1: well" in health.stdout
            assert host.run(f"systemctl restart {NEIGHBOUR}").rc == 0
        finally:
            gpu("return", 0)
        assert as_desired("1")
        assert host.run(f"systemctl reload {UNIT}").rc == 0


def test_nvml_hangs(host: Any, driver: Lab, untouched: Untouched) -> None:
    """Fault: NVML as a whole never answers

    Happens: `status` and the health timer say so after 10 s; daemons and clients go on; a start fails and is tried
    again
    Heals: by itself, when NVML answers again
    Tried: an initialisation of NVML that does not return, `mpsctl health`
    """
    with untouched("0", "1"):
        driver("--hanging")
        try:
            health = host.run("timeout 100 mpsctl health")
        finally:
            driver("--well")
        assert health.rc == 1
        assert "NVML does not answer within" in health.stdout


def test_nvml_lacks_what_is_desired(
    host: Any, gpu: Lab, untouched: Untouched, eventually: Eventually, as_desired: Callable[..., bool]
) -> None:
    """Fault: NVML answers "Not Supported" for the compute mode and the process lists, as virtual GPUs do

    Happens: where a compute mode is desired, `status` says that NVML does not tell it, and a start fails with NVML's
    own words rather than run without it
    Heals: `mps_compute_mode: null` for that GPU; by itself where NVML learns it
    Tried: a GPU that lacks them, a restart, then a GPU that has them
    """
    with untouched("1"):
        gpu("unsupported", 0)
        status = host.run("mpsctl status 0")
        assert status.rc == 1
        assert "not told by NVML" in status.stdout
        assert host.run(f"systemctl restart {UNIT}").rc != 0
        assert "was refused by NVML: Not Supported" in host.run(f"journalctl -u {UNIT} -o cat -n 40").stdout
        gpu("return", 0)
        eventually("it is back", lambda: as_desired("0"))


def test_driver_upgraded_underneath(
    host: Any, driver: Lab, untouched: Untouched, eventually: Eventually, as_desired: Callable[..., bool]
) -> None:
    """Fault: the driver's libraries are upgraded under the loaded driver (Driver/library version mismatch)

    Happens: `status` and the health timer say that the host is to be rebooted; running daemons go on; one that ends
    cannot start, and is tried again
    Heals: by itself, once the new driver is loaded
    Tried: a mismatch, `mpsctl status`, SIGKILL to a daemon, the mismatch taken away
    """
    with untouched("1"):
        driver("--upgraded")
        try:
            for verb in ("status", "health"):
                found = host.run(f"mpsctl {verb}")
                assert found.rc == 1
                assert "the driver was upgraded underneath: reboot the host" in found.stdout
            host.run(f"systemctl kill --kill-who=main --signal=KILL {UNIT}")
            waits = "the driver was upgraded underneath"
            eventually("it waits", lambda: waits in host.run(f"journalctl -u {UNIT} -o cat -n 20").stdout)
        finally:
            driver("--well")
        eventually("it is back", lambda: as_desired("0"))


def test_driver_late(
    driver: Lab, reboot: Callable[[], None], eventually: Eventually, as_desired: Callable[..., bool]
) -> None:
    """Fault: the driver loads late in a boot, after the wait of the first start has ended

    Happens: the start waits `mps_driver_timeout_s`, fails, and is tried again beside the booted system
    Heals: by itself, once the driver is loaded
    Tried: a boot with a driver that is 8 s late and a wait of 5 s (20 s within the wait: the scenario `reboot`)
    """
    driver("--delay=8")
    reboot()
    eventually("it is up", as_desired)


def test_gpu_missing_at_boot(
    host: Any, gpu: Lab, reboot: Callable[[], None], eventually: Eventually, as_desired: Callable[..., bool]
) -> None:
    """Fault: a GPU is missing at boot: the driver does not find it

    Happens: its instance is named by `status` and tried again; the others are up, after the wait of the boot
    Heals: by itself, once the GPU is there. Instances named by index take the GPU that has the index now: name them by
    UUID where that matters
    Tried: the last GPU pulled, a reboot, the GPU put back
    """
    gpu("pull", 1)
    try:
        reboot()
        eventually("the other is up", lambda: as_desired("0"))
        found = host.run("mpsctl status 1")
        assert found.rc == 1
        assert "NOT IN THE DESIRED STATE" in found.stdout
    finally:
        gpu("restore")
    eventually("it is up", lambda: as_desired("1"))


def test_gpu_swapped(
    host: Any, gpu: Lab, untouched: Untouched, status: Status, as_desired: Callable[..., bool]
) -> None:
    """Fault: another GPU (another UUID) has the index of an instance's

    Happens: `status` says which GPU the daemon serves and which is desired, and that a restart is needed
    Heals: the restart, or the boot, takes the GPU that has the index now
    Tried: the card exchanged under a running daemon, `systemctl restart`, and the former one again
    """
    before = served(status)
    for _ in range(2):
        with untouched("1"):
            gpu("swap", 0)
            found = host.run("mpsctl status 0")
            assert found.rc == 1
            assert "a restart is needed: the daemon serves" in found.stdout
            assert host.run(f"systemctl restart {UNIT}").rc == 0
            assert as_desired("0")
    assert served(status) == before


def test_order_changed(
    gpu: Lab,
    reboot: Callable[[], None],
    play: Callable[..., Any],
    status: Status,
    eventually: Eventually,
    as_desired: Callable[..., bool],
) -> None:
    """Fault: the order of the GPUs' indices changes

    Happens: `status` says for each instance which GPU its daemon serves and which is desired; no GPU is left without
    one
    Heals: a boot, or `site.yml`, which restarts the instances whose clients are none
    Tried: the cards change places under running daemons, `site.yml`; they change back, a reboot
    """
    before = served(status)
    gpu("reorder")
    assert not as_desired()
    done = play()
    assert done.returncode == 0, done.stdout
    assert as_desired()
    assert served(status) == before[::-1]
    gpu("reorder")
    reboot()
    eventually("in the desired state", as_desired)
    assert served(status) == before


def test_mig_switched(host: Any, gpu: Lab, untouched: Untouched) -> None:
    """Fault: MIG is switched on, and off again, under a running instance

    Happens: `status` and the health timer say that the GPU is split and which of its devices could be named; others are
    well; the daemon is left alone
    Heals: MIG off and a reload; or the MIG devices named in `mps_instances`. Stop the instances first: operations.md
    Tried: on, `mpsctl status`, `mpsctl health`, off, reload
    """
    with untouched("0", "1"):
        gpu("mig-on", 0)
        try:
            found = host.run("mpsctl status 0")
            health = host.run("mpsctl health")
        finally:
            gpu("mig-off", 0)
        assert found.rc == health.rc == 1
        assert "which is split by MIG" in found.stdout
        assert "instance 1: well" in health.stdout
        assert host.run(f"systemctl reload {UNIT}").rc == 0


def test_mig_switched_with_the_instances_stopped(
    host: Any, gpu: Lab, eventually: Eventually, as_desired: Callable[..., bool], status: Status
) -> None:
    """Fault: MIG is changed, or a GPU is reset, as docs/operations.md has it

    Happens: the instances end within their bound and give the compute modes back; an instance whose whole GPU is split
    is named and tried again, the others start
    Heals: by itself, when MIG is off
    Tried: the commands of operations.md around MIG on, and around MIG off
    """
    operations = (PROJECT / "docs/operations.md").read_text()
    stop = "systemctl stop 'mps-control@*'"
    start = "for conf in /etc/mps/*.conf; do systemctl start --no-block mps-control@$(basename $conf .conf); done"
    assert stop in operations
    assert operations.count(start) == 2, "on the command line and in the hooks file"
    assert host.run(stop).rc == 0
    assert [one["gpus"][0]["compute_mode"] for one in status().values()] == ["default", "default"]
    gpu("mig-on", 0)
    try:
        host.run(start)
        eventually("the other is up", lambda: as_desired("1"))
        assert "which is split by MIG" in host.run("mpsctl status 0").stdout
        assert host.run(stop).rc == 0
    finally:
        gpu("mig-off", 0)
    host.run(start)
    eventually("all are up", as_desired)


def test_persistence_daemon_absent(host: Any, as_desired: Callable[..., bool]) -> None:
    """Fault: nvidia-persistenced is not installed

    Happens: nothing: it is wanted where it exists, and never required
    Heals: nothing to heal
    Tried: the unit does not exist on the lab's hosts, and all instances are in the desired state
    """
    assert host.run("systemctl cat nvidia-persistenced.service").rc != 0
    assert "nvidia-persistenced.service" in host.service(UNIT).systemd_properties["Wants"]
    assert as_desired()
