"""A host with fakes for everything outside, and its files in a directory of its own."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Generator, Iterator

import pytest

import consulting
import in_process
from converging import Fleet
from door import Door
from fakes import FakeDaemon, Host, h200
from judging import UNIT, serve
from mpsctl.adapters import control_groups, hardware, log_fifo, procfs, trusted
from mpsctl.causes import apple_gpu
from mpsctl.model import messages
from mpsctl.store import world as worlds
from mpsctl.store.world import World
from shell import Shell

AS_IDS = messages.AS_IDS
_REPLACED = re.compile(r"<[A-Za-z][A-Za-z_.-]*>")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests that are marked as such are of wording as well; one that makes no sentence finds no reader of any."""
    for name, why in (("wording", "of wording"), ("sentenceless", "no sentence is made")):
        if AS_IDS and item.get_closest_marker(name):
            pytest.skip(why)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With MPSCTL_MESSAGES=ids a test of wording is one whose own comparison meets a replaced sentence.

    Whatever else fails then is code that reads a sentence.
    """
    report = yield
    if AS_IDS and call.excinfo is not None and report.failed:
        inside = Path(str(call.excinfo.traceback[-1].path))
        compared = call.excinfo.errisinstance((AssertionError, pytest.fail.Exception))
        of_a_test = "tests" in inside.parts or "_pytest" in str(inside)
        if compared and of_a_test and _REPLACED.search(str(call.excinfo.value)):
            report.outcome = "skipped"
            report.longrepr = (str(inside), 0, "of wording")
    return report


@pytest.fixture(autouse=True)
def bounded_calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded calls run in this process, but for tests that are marked ``forks``."""
    if not request.node.get_closest_marker("forks"):
        in_process.use(monkeypatch)


@pytest.fixture(autouse=True)
def ways_begin_here(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest's own folders lie in /tmp, where no way of root's leads: below them a way begins with them."""
    monkeypatch.setattr(trusted, "START", tmp_path_factory.getbasetemp())


@pytest.fixture(autouse=True)
def sentences(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test that is marked ``sentenceless`` fails once a sentence is made in it: with ids it has to run too then."""
    made: list[str] = []

    def said(id_: str, sentence: str) -> str:
        made.extend([id_] if sentence else [])
        return sentence

    marked = request.node.get_closest_marker("sentenceless")
    if marked:
        monkeypatch.setattr(messages, "AS_IDS", True)  # whoever makes a sentence shows it then
        monkeypatch.setattr(messages, "said", said)
    yield
    assert not made, f"sentences were made: {made}; take the mark sentenceless away"


@pytest.fixture
def root() -> Iterator[Path]:
    """A short path outside /tmp: pipe directories are refused there, and pytest's own are too long."""
    places = ["/run", os.environ.get("XDG_RUNTIME_DIR", ""), str(Path.home())]
    base = next(place for place in places if place and os.access(place, os.W_OK))
    path = Path(tempfile.mkdtemp(prefix="mps-test-", dir=base))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def host(root: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host with four H200, the MPS package and a loaded driver, on which nothing runs yet."""
    made = Host(root, [h200(index) for index in range(4)])
    table = made.processes
    monkeypatch.setattr(procfs, "alive", lambda pid: pid in table and table[pid].state != "Z")
    monkeypatch.setattr(procfs, "state", lambda pid: table[pid].state if pid in table else "")
    monkeypatch.setattr(procfs, "started_at", lambda pid: table[pid].started_at if pid in table else None)
    monkeypatch.setattr(procfs, "name", lambda pid: table[pid].name if pid in table else "")
    monkeypatch.setattr(procfs, "title", lambda pid: table[pid].command if pid in table else "")
    monkeypatch.setattr(procfs, "executable", lambda pid: None)
    monkeypatch.setattr(procfs, "uid", lambda pid: table[pid].uid if pid in table else None)
    monkeypatch.setattr(procfs, "is_roots", lambda pid: pid in table and table[pid].uid == 0)
    monkeypatch.setattr(procfs, "has_roots_group", lambda pid: pid in table and not any(table[pid].gids))
    monkeypatch.setattr(procfs, "environment", lambda pid: table[pid].environment if pid in table else None)
    monkeypatch.setattr(procfs, "groups", lambda pid: table[pid].gids if pid in table else ())
    monkeypatch.setattr(procfs, "parent", lambda pid: table[pid].parent if pid in table else 0)
    monkeypatch.setattr(control_groups, "whose", made.whose)
    monkeypatch.setattr(control_groups, "paths", made.groups_of)
    monkeypatch.setattr(procfs, "container", lambda pid: table[pid].container if pid in table else None)
    monkeypatch.setattr(procfs, "unit", lambda pid: table[pid].unit if pid in table else None)
    monkeypatch.setattr(procfs, "namespace", lambda pid, kind: f"{kind}:[{table[pid].mounts if pid in table else 1}]")
    monkeypatch.setattr(procfs, "root", lambda pid: table[pid].root if pid in table else Path("/"))
    monkeypatch.setattr(procfs, "session", lambda pid: table[pid].session if pid in table else None)
    monkeypatch.setattr(procfs, "send", made.signal)
    monkeypatch.setattr(procfs, "pids", lambda: iter(list(table)))
    monkeypatch.setattr(log_fifo, "is_closed", made.log_is_closed)
    monkeypatch.setattr(hardware, "binary", lambda name: Path("/usr/bin") / name)
    monkeypatch.setattr(hardware, "replaced", lambda pid: table[pid].replaced if pid in table else None)
    monkeypatch.setattr(hardware, "nvidia_on_bus", lambda: True)
    monkeypatch.setattr(hardware, "multi_user_flag", lambda: "-multiuser-server")
    monkeypatch.setattr(hardware, "driver_version", lambda: "580.159.04")
    return made


@pytest.fixture
def live(host: Host) -> Host:
    """A host on which instance 0 runs in the desired state, with one server and one client at work."""
    host.desired(DeviceMemoryLimit="4G", ActiveThreadPercentage=50, ClientPriority=1, ComputeMode="exclusive_process")
    host.systemd.unit(UNIT).enabled = True
    serve(host, host.start())
    return host


@pytest.fixture
def mpsctl(host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    def world(**rooms: Any) -> World:
        return replace(host.world, **rooms)

    monkeypatch.setattr(worlds, "World", world)
    monkeypatch.setattr(hardware, "simulated", lambda: False)
    monkeypatch.delenv("MPSCTL_TRACE", raising=False)
    return Shell(capsys, monkeypatch)


@pytest.fixture
def fleet(host: Host) -> Fleet:
    """A host as the role converges it, on which nothing was done yet."""
    return Fleet(host)


@pytest.fixture
def shown_processes(host: Host, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host whose processes all have CUDA mapped, and none is in a container or a namespace of its own."""
    monkeypatch.setattr(procfs, "maps", lambda pid, name: name == "libcuda.so")
    monkeypatch.setattr(procfs, "mounts", lambda pid: {})
    monkeypatch.setattr(procfs, "maps_users", lambda pid: False)
    monkeypatch.setattr(procfs, "open_files_limit", lambda pid: 1_048_576)
    monkeypatch.setattr(procfs, "namespace", lambda pid, kind: f"{kind}:[1]")
    monkeypatch.setattr(apple_gpu, "on_a_mac", lambda: False)
    return host


@pytest.fixture
def running(shown_processes: Host) -> FakeDaemon:
    """Instance 0 with a limit of 4 GiB runs in the desired state, with a server that has no client yet."""
    return consulting.run(shown_processes)


@pytest.fixture
def door(host: Host) -> Iterator[Door]:
    """The judge of instance 0's front door; the instance is open and serves all users with one server."""
    made = Door(host)
    yield made
    made.close()
