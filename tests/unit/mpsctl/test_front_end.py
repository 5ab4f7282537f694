"""The front-end: how its output is split into answers, and what its failures mean. The rest needs a real daemon."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import FakeDaemon, Host
from mpsctl.adapters import control_daemon as control
from mpsctl.adapters import locks, procfs, session_script, unix_peers
from mpsctl.adapters.control_daemon import FrontEnd, NotServed, Server, Unreachable
from mpsctl.adapters.session_script import Line
from mpsctl.model.peers import Peers

COMMANDS = st.sampled_from(
    [
        "get_server_list",
        "get_default_active_thread_percentage",
        "set_default_active_thread_percentage 50",
        "set_default_active_thread_percentage 0",
        "get_active_thread_percentage 9001",
        "get_active_thread_percentage 1",
        "set_active_thread_percentage 1 50",
        "get_default_device_pinned_mem_limit 0",
        "set_default_device_pinned_mem_limit 0 1536M",
        "get_default_client_priority",
        "set_default_client_priority 2",
        "get_client_list 9001",
        "get_server_status 1",
    ]
)


def printed(daemon: FakeDaemon, script: list[Line]) -> list[str]:
    """What the front-end prints when these lines go in."""
    return [line for one in script for line in daemon.ask([one.text])[0]]


def daemon_with_a_server() -> FakeDaemon:
    daemon = FakeDaemon()
    daemon.start_server(9001, clients=[1, 2])
    return daemon


GETTERS = COMMANDS.filter(lambda command: session_script.short([command]) is not None)
EVERY_WAY = st.one_of(
    st.lists(COMMANDS, min_size=1, max_size=8).map(lambda commands: (commands, session_script.whole(commands))),
    st.lists(GETTERS, min_size=1, max_size=8).map(lambda commands: (commands, session_script.short(commands) or [])),
)


@given(EVERY_WAY)
def test_every_command_gets_its_own_lines(asked: tuple[list[str], list[Line]]) -> None:
    """A server that is gone, whose error has no form, is asked about anew by the whole script."""
    commands, script = asked
    answers = [daemon_with_a_server().ask([command])[0] for command in commands] if _only_asks(commands) else None
    found = session_script.answers(script, printed(daemon_with_a_server(), script))
    has_error = any(" 1" in command for command in commands) and script == session_script.short(commands)
    assert has_error or answers is None or found == answers
    assert not has_error or found is None or found == answers


def _only_asks(commands: list[str]) -> bool:
    return all(command.startswith("get_") for command in commands)


@given(EVERY_WAY, st.data())
def test_an_answer_that_is_cut_short_is_no_answer(asked: tuple[list[str], list[Line]], data: st.DataObject) -> None:
    _, script = asked
    lines = printed(daemon_with_a_server(), script)
    kept = data.draw(st.integers(0, max(0, len(lines) - 1)))
    assert session_script.answers(script, lines[:kept]) is None


@pytest.mark.parametrize("commands", [["get_server_list"], ["get_default_device_pinned_mem_limit 0"]])
def test_silence_is_no_answer(commands: list[str]) -> None:
    for script in (session_script.whole(commands), session_script.short(commands)):
        assert script is not None
        assert session_script.answers(script, []) is None


def test_lines_that_nobody_asked_for_are_no_answer() -> None:
    for script in (session_script.whole(["get_server_list"]), session_script.short(["get_server_list"])):
        assert script is not None
        assert session_script.answers(script, ["100.0", "100.0"]) is None


def test_what_a_look_asks_needs_no_separator() -> None:
    of_defaults = ["get_default_device_pinned_mem_limit 0", "get_default_active_thread_percentage", "get_server_list"]
    of_server = [
        "get_server_status 7",
        "get_device_pinned_mem_limit 7 0",
        "get_active_thread_percentage 7",
        "get_client_list 7",
    ]
    for commands in (of_defaults, of_server, [*of_server, *(one.replace("7", "8") for one in of_server)]):
        script = session_script.short(commands)
        assert script is not None
        assert all(line.wanted for line in script)
        assert script[-1].text.startswith("get_"), "what always answers proves that it was served to its end"
        assert "percentage" in script[-1].text


def front_end(root: Path, script: str) -> FrontEnd:
    """A front-end that is a shell script."""
    binary = root / "nvidia-cuda-mps-control"
    binary.write_text(f"#!/bin/sh\n{script}\n")
    binary.chmod(0o755)
    return FrontEnd(root / "pipe", root / "lock", binary)


@pytest.fixture
def no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "pids", lambda: iter(()))


def test_commands_go_in_on_standard_input_each_followed_by_the_getter(root: Path) -> None:
    daemon = front_end(root, f'cat > {root}/asked; echo "$CUDA_MPS_PIPE_DIRECTORY" > {root}/where; echo 100.0')
    assert daemon.ask(["set_default_client_priority 1"]) == [[]]
    assert (root / "asked").read_text() == "set_default_client_priority 1\nget_default_active_thread_percentage\n"
    assert (root / "where").read_text().strip() == str(root / "pipe")


def test_a_daemon_that_is_not_there_is_known_at_once(root: Path) -> None:
    daemon = front_end(root, f"echo x >> {root}/calls; echo 'Cannot find MPS control daemon process' >&2; exit 1")
    with pytest.raises(Unreachable, match="no control daemon listens on"):
        daemon.ask(["get_server_list"])
    assert (root / "calls").read_text() == "x\n"


def test_a_session_that_was_not_served_is_tried_again(root: Path) -> None:
    script = f"""cat > /dev/null
echo x >> {root}/calls
case $(wc -l < {root}/calls) in
1) ;;
2) echo 'Cannot send command to MPS control daemon process' >&2; exit 1;;
3) echo 2G;;
*) echo 2G; echo 100.0;;
esac"""
    assert front_end(root, script).ask(["get_default_device_pinned_mem_limit 0"]) == [["2G"]]
    assert (root / "calls").read_text() == 4 * "x\n"


@pytest.mark.usefixtures("no_others")
def test_silence_up_to_the_deadline_is_an_error_that_says_so(root: Path) -> None:
    with pytest.raises(NotServed, match=r"did not answer within 0\.2 s \(its answer was empty or cut short"):
        front_end(root, "cat > /dev/null").ask(["get_server_list"], deadline_s=0.2)


@pytest.mark.usefixtures("no_others")
def test_a_front_end_that_hangs_is_ended_at_the_deadline(root: Path) -> None:
    with pytest.raises(NotServed, match="it accepted the connection and said nothing"):
        front_end(root, "exec sleep 60").ask(["get_server_list"], deadline_s=0.2)


@pytest.mark.parametrize(
    ("held", "waits", "unnamed", "untold", "words"),
    [
        (1, 0, 0, "", "it is held by pid {} (user 1000, `cat x`, parent gone): end that session"),
        (1, 1, 0, "", "it is held by pid {} (user 1000, `cat x`, parent gone): end that session"),
        (0, 0, 2, "", "it is held by 2 of processes that cannot be seen (ask as root): end that session"),
        (1, 0, 0, "no list", "it is held by pid {} (user 1000, `cat x`, parent gone): end that session"),
        (0, 0, 0, "no list", "who holds it cannot be told: no list"),
        (0, 1, 0, "", "nobody holds its session (waiting to be accepted: pid {} (user 1000, `cat x`, parent gone))"),
        (0, 0, 0, "", "nobody holds its session: the daemon may be stopped"),
    ],
)
@pytest.mark.wording
def test_who_holds_the_session_is_named(
    root: Path,
    host: Host,
    monkeypatch: pytest.MonkeyPatch,
    held: int,
    waits: int,
    unnamed: int,
    untold: str,
    words: str,
) -> None:
    """By the peers of its socket: a process that is merely called like a front-end is not among them."""
    host.process("nvidia-cuda-mps-control", "nvidia-cuda-mps-control", {}, uid=1000)
    silent = host.process("cat", "cat x", {}, uid=1000)
    peers = Peers((silent,) * held, () if held else (silent,) * waits, unnamed, untold)
    monkeypatch.setattr(procfs, "user", lambda uid: None)
    monkeypatch.setattr(unix_peers, "of_directory", {root / "pipe": peers}.__getitem__)
    with pytest.raises(NotServed) as failure:
        front_end(root, "cat > /dev/null").ask(["get_server_list"], deadline_s=0.1)
    assert words.format(silent) in str(failure.value)
    assert failure.value.peers == peers


def test_while_another_call_has_the_session_lock_nobody_is_said_not_to_hold_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    lock = locks.take(root / "lock", time.monotonic() + 10)
    try:
        with pytest.raises(NotServed) as failure:
            front_end(root, "echo 100.0").ask(["get_server_list"], deadline_s=0.1)
    finally:
        os.close(lock)
    assert (failure.value.peers.held, bool(failure.value.peers.untold)) == (False, True)


@pytest.mark.parametrize(
    ("state", "told"), [("ACTIVE", "ACTIVE"), ("FAULT", "FAULT"), ("INITIALIZING", "INITIALIZING")]
)
def test_the_state_of_a_server_is_the_daemons_word(state: str, told: Optional[str]) -> None:
    daemon = daemon_with_a_server()
    daemon.servers[9001].state = state
    assert control.servers(daemon) == [Server(9001, told)]
    assert control.clients(daemon, 9001) == [1, 2]


def test_a_server_that_is_gone_by_the_time_it_is_asked_about_is_left_out() -> None:
    command = control.status_of(9001)
    assert control.servers_of([9001], {command: FakeDaemon().ask([command])[0]}) == []


def test_clients_of_a_server_that_is_gone_are_none() -> None:
    assert control.clients(FakeDaemon(), 9001) == []
