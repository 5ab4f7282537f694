"""`mpsctl control`: NVIDIA's own commands for root."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fakes import FakeDaemon, Host
from judging import SERVER
from mpsctl.cli import control
from mpsctl.model import daemon_commands
from mpsctl.model.errors import BadValue
from shell import Shell


@pytest.fixture(autouse=True)
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.fixture
def daemon(live: Host) -> FakeDaemon:
    found = live.running()
    found.commands.clear()
    return found


def test_one_command_in_the_arguments(mpsctl: Shell, daemon: FakeDaemon) -> None:
    assert mpsctl("control", "0", "get_server_list") == 0
    assert (mpsctl.out, mpsctl.err) == (f"{SERVER}\n", "")
    assert daemon.commands == ["get_server_list"]


def test_the_words_of_a_command_may_look_like_options(mpsctl: Shell, daemon: FakeDaemon) -> None:
    assert mpsctl("control", "--timeout-s", "5", "0", "start_server", "-uid", "0") == 0
    assert daemon.commands == ["start_server -uid 0"]


def test_several_lines_on_standard_input(mpsctl: Shell, daemon: FakeDaemon) -> None:
    assert mpsctl("control", "0", stdin="  get_server_list \n\nget_default_client_priority") == 0
    assert mpsctl.out == f"{SERVER}\n1\n"
    assert daemon.commands == ["get_server_list", "get_default_client_priority"]


def test_as_json(mpsctl: Shell, daemon: FakeDaemon) -> None:
    assert mpsctl("control", "--json", "0", stdin="get_server_list\nset_default_client_priority 0\n") == 0
    answer = json.loads(mpsctl.out)
    assert answer["commands"] == [
        {"command": "get_server_list", "answer": [str(SERVER)]},
        {"command": "set_default_client_priority 0", "answer": []},
    ]
    assert answer["instance"] == "0"
    assert answer["warning"]


def test_what_the_daemon_prints_cannot_reach_the_terminal_as_it_is(mpsctl: Shell, daemon: FakeDaemon) -> None:
    daemon.servers[SERVER].state = "\x1b[31mACTIVE"
    assert mpsctl("control", "0", "get_server_status", str(SERVER)) == 0
    assert mpsctl.out == "\\x1b[31mACTIVE\n"


@pytest.mark.parametrize(
    "command",
    [
        "set_default_device_pinned_mem_limit 0 1G",
        "set_active_thread_percentage 9001 10",
        "set_default_client_priority 0",
    ],
)
def test_what_is_set_by_hand_is_set_with_a_warning(mpsctl: Shell, daemon: FakeDaemon, command: str) -> None:
    assert mpsctl("control", "0", *command.split()) == 0
    assert daemon.commands == [command]
    assert mpsctl.err.count("\n") == 1
    assert "the next reload" in mpsctl.err


def test_a_getter_warns_of_nothing(mpsctl: Shell, daemon: FakeDaemon) -> None:
    assert mpsctl("control", "0", "get_default_client_priority") == 0
    assert mpsctl.err == ""


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        ("quit", "systemctl stop mps-control@0"),
        ("quit -t 5", "systemctl stop mps-control@0"),
        ("  quit  ", "systemctl stop mps-control@0"),
        (f"terminate_client {SERVER} 1", "mpsctl clients --terminate"),
        (f"terminate_client  {SERVER}   1", "mpsctl clients --terminate"),
        (f"shutdown_server {SERVER} -f", "mpsctl drain 0 --terminate"),
    ],
)
def test_what_ends_clients_is_refused_and_says_what_to_use(
    mpsctl: Shell, daemon: FakeDaemon, command: str, instead: str
) -> None:
    for words, stdin in (([command], ""), ([], f"get_server_list\n{command}\n")):
        assert mpsctl("control", "0", *words, stdin=stdin) == 2
        assert instead in mpsctl.err
    assert daemon.commands == []


def test_forced_it_is_sent(mpsctl: Shell, live: Host, daemon: FakeDaemon) -> None:
    (client,) = daemon.servers[SERVER].clients
    assert mpsctl("control", "--force", "0", "terminate_client", str(SERVER), str(client)) == 0
    assert daemon.terminated == [client]
    assert mpsctl("control", "--force", "0", "quit") == 0
    assert daemon.pid not in live.processes


def test_a_quit_that_does_not_end_the_daemon_is_no_success(mpsctl: Shell, daemon: FakeDaemon) -> None:
    daemon.on_quit = lambda: None
    assert mpsctl("control", "--force", "0", "quit") == 3


def test_a_quit_goes_alone(mpsctl: Shell, daemon: FakeDaemon) -> None:
    assert mpsctl("control", "--force", "0", stdin="get_server_list\nquit\n") == 2
    assert daemon.commands == []


@pytest.mark.parametrize(
    "words",
    [
        ("get_server_list\nquit",),
        ("get_server_list\rquit",),
        ("get_server_list\0",),
        ("get_server_list\tx",),
        ("get_server_list\u2028quit",),
        ("get_server_list\x1b[2J",),
        ("g" * 1001,),
        ("",),
        ("   ",),
        ("--json", "get_server_list"),
        ("--force", "quit"),
    ],
)
def test_what_is_no_single_command_is_refused(mpsctl: Shell, daemon: FakeDaemon, words: tuple[str, ...]) -> None:
    assert mpsctl("control", "0", *words) == 2
    assert (mpsctl.out, mpsctl.err.count("\n")) == ("", 1)
    assert daemon.commands == []


@pytest.mark.parametrize("stdin", ["", "\n \n", "get_server_list\r\n", "x\n" * 101, "x" * 200_000])
def test_a_standard_input_with_no_command_or_with_too_much_is_refused(
    mpsctl: Shell, daemon: FakeDaemon, stdin: str
) -> None:
    assert mpsctl("control", "0", stdin=stdin) == 2
    assert daemon.commands == []


@pytest.mark.parametrize("timeout", ["0", "-1", "x", "1.5", "99999"])
def test_a_deadline_that_is_none_is_refused(mpsctl: Shell, daemon: FakeDaemon, timeout: str) -> None:
    assert mpsctl("control", "--timeout-s", timeout, "0", "get_server_list") == 2


def test_who_is_not_root_is_told_so(mpsctl: Shell, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert mpsctl("control", "0", "get_server_list") == 3
    assert "root" in mpsctl.err
    assert daemon.commands == []


def test_an_instance_that_is_not_there_is_refused(mpsctl: Shell, daemon: FakeDaemon) -> None:
    assert mpsctl("control", "7", "get_server_list") == 2


def test_an_instance_whose_file_is_damaged_takes_commands(mpsctl: Shell, live: Host, daemon: FakeDaemon) -> None:
    live.places.conf("0").write_text("damaged")
    assert mpsctl("control", "0", "get_server_list") == 0


def test_an_instance_that_does_not_run(mpsctl: Shell, live: Host, daemon: FakeDaemon) -> None:
    live.stop()
    assert mpsctl("control", "0", "get_server_list") == 3
    assert "systemctl start" in mpsctl.err


def test_a_main_process_that_is_no_daemon(mpsctl: Shell, live: Host, daemon: FakeDaemon) -> None:
    live.processes[daemon.pid].environment = {}
    assert mpsctl("control", "0", "get_server_list") == 3


def test_a_stopped_daemon_is_not_asked(mpsctl: Shell, live: Host, daemon: FakeDaemon) -> None:
    live.processes[daemon.pid].state = "T"
    assert mpsctl("control", "0", "get_server_list") == 3
    assert daemon.commands == []


def test_who_holds_the_session_stands_in_the_answer(mpsctl: Shell, live: Host, daemon: FakeDaemon) -> None:
    holder = live.process("cat", "cat x", {}, uid=61234)
    daemon.not_served, daemon.holders = True, (holder,)
    assert mpsctl("control", "--json", "0", "get_server_list") == 3
    answer = json.loads(mpsctl.out)
    assert answer["held_by"] == [{"pid": holder, "uid": 61234, "user": None, "command": "cat x"}]
    assert (answer["exit_code"], answer["unnamed"], answer["holders_untold"]) == (3, 0, "")
    assert mpsctl("control", "0", "get_server_list") == 3
    assert (mpsctl.out, mpsctl.err.count("\n")) == ("", 1)


def test_a_standard_input_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    try:
        with os.fdopen(reader) as stream, pytest.raises(BadValue):
            control._read(stream, 1)
    finally:
        os.close(writer)


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"get_server_list\n")
    os.close(writer)
    with os.fdopen(reader) as stream:
        assert control._read(stream, 30) == "get_server_list\n"


def test_words_are_one_blank_apart() -> None:
    assert daemon_commands.parse(["  a   b  ", "", "c"]) == ["a b", "c"]
