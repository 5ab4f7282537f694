"""NVIDIA's own control daemons, and hosts on which only they are real."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Iterator

import pytest

from mpsctl.adapters import procfs
from mpslab.places import places
from real_daemon import RealDaemonHost, Running, Starter, own_processes, short_directory
from simulated import Simulation

CONTROL_DAEMON = "nvidia-cuda-mps-control"


@pytest.fixture(scope="session", params=["535", "550", "555"])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="session")
def binary(version: int) -> Path:
    """The daemon of that version among the lab's parts. That it is not there is a failure, never a skip."""
    found = sorted(places().daemons.glob(f"{version}.*/usr/bin/{CONTROL_DAEMON}"))
    if not found:
        pytest.fail(
            f"found no control daemon {version} in {places().daemons}, expected the lab's; run `make setup lab-parts`",
            pytrace=False,
        )
    return found[-1]


@pytest.fixture
def start(binary: Path) -> Iterator[Starter]:
    with ExitStack() as stack:
        root = stack.enter_context(short_directory())
        yield Starter(binary, root, stack)


@pytest.fixture(scope="module")
def daemon(binary: Path) -> Iterator[Running]:
    """One daemon for all tests of a version that do not mind what it was told before."""
    with short_directory() as root, ExitStack() as stack:
        yield Starter(binary, root, stack)(root / "pipe")


@pytest.fixture
def simulation(binary: Path) -> Iterator[Simulation]:
    """For a daemon that the test starts itself, and may jam."""
    with short_directory() as root, ExitStack() as stack:
        yield Simulation(binary, root, stack)


@pytest.fixture(scope="module")
def served(binary: Path) -> Iterator[Simulation]:
    """One daemon with a stand-in server of root that is ready, for all tests of a version that leave it well."""
    with short_directory() as root, ExitStack() as stack:
        made = Simulation(binary, root, stack)
        made.start()
        made.ready()
        yield made


@pytest.fixture(autouse=True)
def beside_lab_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemons of lab hosts that run at the same time are none of this machine's."""
    every = procfs.pids
    monkeypatch.setattr(procfs, "pids", lambda: own_processes(every()))


@pytest.fixture
def host(start: Starter) -> RealDaemonHost:
    return RealDaemonHost(start)
