"""A host with 16 GPUs and as many instances."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Callable

testinfra_hosts = ["ansible://daemon_535"]

INSTANCES = [str(number) for number in range(16)]
Eventually = Callable[..., None]
Status = Callable[[], dict[str, Any]]
Lab = Callable[..., None]


def test_all_start_at_once(
    host: Any, reboot: Callable[[], None], status: Status, eventually: Eventually, as_desired: Callable[..., bool]
) -> None:
    """Fault: the instances of 16 GPUs start at once, at boot and after all daemons were killed

    Happens: each comes up with its limits, each with its own GPU
    Heals: nothing to heal
    Tried: a reboot of a host with 16 GPUs; SIGKILL to all 16 daemons at once
    """
    reboot()
    eventually("all are up", as_desired)
    before = {name: one["unit"]["main_pid"] for name, one in status().items()}
    assert host.run(f"kill -9 {' '.join(map(str, before.values()))}").rc == 0
    eventually("all are up again", as_desired)
    found = status()
    assert list(found) == INSTANCES
    assert len({one["serves"][0] for one in found.values()}) == len(INSTANCES)
    assert not {one["unit"]["main_pid"] for one in found.values()} & set(before.values())


def test_one_dead_gpu(
    host: Any,
    gpu: Lab,
    untouched: Callable[..., AbstractContextManager[None]],
    eventually: Eventually,
    as_desired: Callable[..., bool],
) -> None:
    """Fault: one GPU of 16 is dead while all instances start

    Happens: the other 15 come up with their limits; the one is named by `status` and tried again
    Heals: by itself, once the GPU is back
    Tried: a GPU vanished, all 16 instances stopped and started at once, return
    """
    others = [name for name in INSTANCES if name != "7"]
    units = " ".join(f"mps-control@{name}" for name in INSTANCES)
    assert host.run(f"systemctl stop {units}").rc == 0
    gpu("vanish", 7)
    host.run(f"systemctl start --no-block {units}")
    eventually("the others are up", lambda: as_desired(*others))
    with untouched(*others):
        assert host.run("mpsctl status 7").rc == 1
        gpu("return", 7)
        eventually("it is up as well", lambda: as_desired("7"))
