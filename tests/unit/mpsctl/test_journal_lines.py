"""What goes to the journal: nothing where all is well, what is new once, what was done, and under which unit."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Iterator

import pytest

from converging import Fleet, conf
from fakes import Host
from judging import SERVER
from mpsctl.adapters import journal, systemd
from mpsctl.converge import ours
from mpsctl.converge.request import File
from mpsctl.lifecycle import drain, health, health_journal
from mpsctl.model.pattern import Pattern
from mpsctl.store import configuration, told
from shell import Shell


class Log:
    """journald, as far as datagrams go."""

    def __init__(self, host: Host) -> None:
        path = journal.socket_path(host.places)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(str(path))

    def read(self) -> list[dict[str, str]]:
        found: list[dict[str, str]] = []
        while True:
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                return found
            found.append(dict(line.split("=", 1) for line in data.decode().splitlines()))

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def log(live: Host) -> Iterator[Log]:
    made = Log(live)
    yield made
    made.close()


def look(host: Host) -> None:
    health_journal.tell(host.world, health.health(host.world))


def test_where_all_is_well_nothing_is_said(live: Host, log: Log) -> None:
    look(live)
    look(live)
    assert log.read() == []
    assert not told.path(live.places).exists()


def test_what_is_new_is_told_once_with_its_unit_and_priority_and_when_it_is_over(live: Host, log: Log) -> None:
    live.running().not_served = True
    look(live)
    first = {one["MPS_CHECK"]: one for one in log.read()}
    assert first["daemon-answers"]["PRIORITY"] == journal.ERROR
    assert first["daemon-answers"]["MPS_LEVEL"] == "critical"
    assert first["daemon-answers"]["OBJECT_SYSTEMD_UNIT"] == "mps-control@0.service"
    look(live)
    assert [one for one in log.read() if one["MPS_CHECK"] in first and one["MPS_LEVEL"] != "warning"] == []
    live.running().not_served = False
    look(live)
    over = {one["MPS_CHECK"]: one["MPS_LEVEL"] for one in log.read()}
    assert over["daemon-answers"] == "ok"
    look(live)
    assert log.read() == []


def test_the_end_says_how_long_it_was_amiss_whatever_was_told_between(live: Host, log: Log) -> None:
    unit = live.systemd.unit("mps-control@0.service")
    unit.enabled = False
    look(live)
    live.clock.pass_by(told.AGAIN_S + 1)
    look(live)
    assert told.read(live.places)["0", "unit-enabled"].since_s < told.read(live.places)["0", "unit-enabled"].at_s
    unit.enabled = True
    live.clock.pass_by(60)
    log.read()
    look(live)
    (over,) = [one for one in log.read() if one["MPS_CHECK"] == "unit-enabled"]
    assert "1 h" in over["MESSAGE"]


def test_what_stays_is_told_again_after_an_hour(live: Host, log: Log) -> None:
    live.systemd.unit("mps-control@0.service").enabled = False
    look(live)
    assert [one["MPS_CHECK"] for one in log.read()] == ["unit-enabled"]
    live.clock.pass_by(told.AGAIN_S - 1)
    look(live)
    assert [one["MPS_CHECK"] for one in log.read() if one["MPS_CHECK"] == "unit-enabled"] == []
    live.clock.pass_by(2)
    look(live)
    assert "unit-enabled" in [one["MPS_CHECK"] for one in log.read()]


@pytest.mark.parametrize("damage", ["3", "[3]", '[["0"]]', '[["0", "x", "critical", "soon", 1]]', "[[null]]"])
def test_a_damaged_memory_tells_all_anew(live: Host, log: Log, damage: str) -> None:
    live.systemd.unit("mps-control@0.service").enabled = False
    told.path(live.places).write_text(damage)
    look(live)
    assert "unit-enabled" in [one["MPS_CHECK"] for one in log.read()]


def test_a_drain_and_its_end_say_who_and_why(live: Host, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "alice")
    instance = configuration.load(live.world, "0")
    drain.drain(live.world, [instance], 0, why={"0": "new\nkernel"})
    (said,) = [one for one in log.read() if one["MPS_EVENT"] == "drain"]
    assert (said["MPS_BY"], said["MPS_INSTANCE"], said["PRIORITY"]) == ("alice", "0", journal.NOTICE)
    assert said["MPS_WHY"].isprintable()
    drain.undrain(live.world, "0")
    assert [one["MPS_EVENT"] for one in log.read()] == ["undrain"]
    drain.undrain(live.world, "0")
    assert log.read() == [], "it was not drained"


def test_who_ends_a_client_or_sends_a_command_is_told(live: Host, log: Log, mpsctl: Shell) -> None:
    pid = live.running().servers[SERVER].clients[0]
    live.running().on_quit = lambda: None
    assert mpsctl("clients", "0", "--terminate", str(pid), "--yes") in (0, 4)
    (said,) = [one for one in log.read() if one["MPS_EVENT"] == "end-client"]
    assert (said["MPS_INSTANCE"], str(pid) in said["MESSAGE"]) == ("0", True)
    assert mpsctl("control", "0", "set_default_device_pinned_mem_limit", "0", "8G") == 0
    assert mpsctl("control", "0", "get_server_list") == 0
    assert [one["MPS_EVENT"] for one in log.read()] == ["control"], "who only asks does nothing"


def test_without_journald_nothing_is_waited_for(live: Host) -> None:
    journal.send(live.places, {"MESSAGE": "x"})


ASKED = (
    "[2026-12-01 06:18:33.941 Control   223] Accepting connection...",
    "[2026-12-01 06:18:34.023 Control   223] NEW UI",
    "[2026-12-01 06:18:34.023 Control   223] Cmd:get_default_device_pinned_mem_limit 0",
    "[2026-12-01 06:18:34.023 Control   223] 4G",
    "[2026-12-01 06:18:34.023 Control   223] 50.0",
    "[2026-12-01 06:18:34.023 Control   223] 434",
    "[2026-12-01 06:18:34.023 Control   223] ACTIVE",
    "[2026-12-01 06:18:34.023 Control   223] UI closed",
)
EVIDENCE = (
    "[2026-12-01 06:18:34.023 Control   223] Cmd:set_default_device_pinned_mem_limit 0 4096M",
    "[2026-12-01 06:18:34.023 Control   223] Cmd:terminate_client 434 5",
    "[2026-12-01 06:18:34.023 Control   223] NEW CLIENT 77 from user 1000: push client to pending list",
    "[2026-12-01 06:18:34.023 Control   223] Starting new server 434 for user 0",
    "[2026-12-01 06:18:34.023 Server   434] Device pinned memory limit for device 0 set to 0x100000000 bytes",
    "[2026-12-01 06:18:34.023 Server   434] Client {PID: 77, Context ID: 0} connected",
    "[2026-12-01 06:18:34.023 Server   434] said Control 1] NEW UI",
    "[2026-12-01 06:18:34.023 Control   223] Server 434 exited with status 0",
)


def test_what_systemd_drops_is_what_getters_are_asked_and_answer_and_nothing_that_proves_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unit = File(Path("/x"), f"[Service]\n{ours.LOG_FILTER_PLACE}\n")
    monkeypatch.setattr(systemd, "version", lambda root=Path("/"): 257)
    (line,) = [one for one in ours.with_binary(unit).content.splitlines() if one.startswith("LogFilterPatterns=~")]
    dropped = Pattern(line.partition("~")[2])
    assert [one for one in ASKED if not dropped.search(one)] == []
    assert [one for one in EVIDENCE if dropped.search(one)] == []


@pytest.mark.parametrize("version", [None, 249, 252])
def test_an_older_systemd_is_not_told_what_it_does_not_know(monkeypatch: pytest.MonkeyPatch, version: object) -> None:
    monkeypatch.setattr(systemd, "version", lambda root=Path("/"): version)
    content = ours.with_binary(File(Path("/x"), ours.LOG_FILTER_PLACE)).content
    assert content.startswith("#")
    assert "\n" not in content


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-252.so", 252),
        ("usr/lib/systemd/libsystemd-shared-257.7-1.so", 257),
        ("usr/lib64/systemd/libsystemd-shared-252-51.el9.so", 252),
        ("usr/lib/other.so", None),
    ],
)
def test_systemds_release_is_told_by_its_own_library(root: Path, name: str, version: object) -> None:
    (root / name).parent.mkdir(parents=True)
    (root / name).touch()
    assert systemd.version(root) == version


def test_each_step_of_a_run_is_one_line_with_its_instance(fleet: Fleet) -> None:
    log = Log(fleet.host)
    fleet.converge(_0=conf(fleet))
    said = [one for one in log.read() if one["MPS_EVENT"] == "converge"]
    assert any(one.get("MPS_INSTANCE") == "0" for one in said)
    assert all(one["PRIORITY"] == journal.NOTICE and one["OBJECT_SYSTEMD_UNIT"].startswith("mps-") for one in said)
    fleet.converge(_0=conf(fleet))
    assert [one for one in log.read() if one["MPS_EVENT"] == "converge"] == [], "a second run does nothing"
    fleet.check(_0=conf(fleet, DeviceMemoryLimit="6G"))
    assert log.read() == []
    log.close()
