"""Given the journal of a daemon and its servers (driver 580, H200), what is known of limits and clients."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Optional

import pytest

from mpsctl.adapters import daemon_log

ONE_START = """\
[2026-11-29 14:57:39.791 Control   418] NEW CLIENT 426 from user 0: Server is not ready, push client to pending list
[2026-11-29 14:57:39.792 Control   428] Starting new server 428 for user 0
[2026-11-29 14:57:40.081 Control   418] NEW SERVER 428: Ready
[2026-11-29 14:57:40.081 Server   428] Active Threads Percentage set to 100.0
[2026-11-29 14:57:40.081 Server   428] Device pinned memory limit for device 0 set to 0x80000000 bytes
[2026-11-29 14:57:40.082 Server   428] Client {PID: 426, Context ID: 0} connected
[2026-11-29 14:57:40.103 Server   428] Client {PID: 426, Context ID: 1} connected
"""
CHANGE = "[2026-11-29 14:57:45.258 Server   428] Device pinned memory limit for device 0 set to 0x100000000 bytes\n"
LATER_CLIENT = "[2026-11-29 14:57:46.338 Server   428] Client {PID: 449, Context ID: 0} connected\n"
GIB = 1 << 30


def read(text: str) -> daemon_log.DaemonLog:
    return daemon_log.read(text.splitlines())


def test_the_servers_limit_is_known_to_the_byte() -> None:
    assert read(ONE_START).servers[428].limit_bytes == {"0": 2 * GIB}


def test_a_client_holds_the_limit_of_the_moment_it_connected() -> None:
    clients = read(ONE_START + CHANGE + LATER_CLIENT).servers[428].clients
    assert clients[426].limit_bytes == {"0": 2 * GIB}
    assert clients[426].since == "2026-11-29 14:57:40.082"
    assert clients[449].limit_bytes == {"0": 4 * GIB}


def test_a_client_that_got_in_before_any_limit_has_no_limit_line() -> None:
    early = "[2026-11-29 14:57:40.000 Server   625] Client {PID: 646, Context ID: 0} connected\n"
    assert read(early).servers[625].clients[646].limit_bytes == {}


def test_a_client_that_began_with_another_server_has_no_limit_of_this_one() -> None:
    """Its first context here is its second: seen on an H200 after its daemon was killed, and it took what it wanted."""
    later = LATER_CLIENT.replace("Context ID: 0", "Context ID: 1")
    found = read(ONE_START + CHANGE + later).servers[428]
    assert (found.whole, found.clients[449].limit_bytes, found.clients[449].began_here) == (True, {}, False)
    assert (found.clients[426].limit_bytes, found.clients[426].began_here) == ({"0": 2 * GIB}, True)


def test_a_server_knows_its_user_whether_it_served_and_how_it_ended() -> None:
    ended = "[2026-11-29 14:57:41.000 Control   418] Server 428 exited with status 1\n"
    server = read(ONE_START + ended).servers[428]
    assert (server.uid, server.served, server.exit_status) == (0, True, 1)
    failed = "[2026-11-29 14:57:39.792 Control   428] Starting new server 95 for user 1000\n"
    server = read(failed).servers[95]
    assert (server.uid, server.served, server.exit_status) == (1000, False, None)


def test_a_server_is_ready_once_the_daemon_says_so() -> None:
    starting, ready = ONE_START.splitlines(keepends=True)[1:3]
    assert not read(starting).servers[428].ready
    assert read(starting + ready).servers[428].ready
    assert read(ready).servers[428].ready, "its first line may have left the journal"
    assert not read(ready + starting).servers[428].ready, "it is a later process"


def test_a_server_with_an_old_process_id_is_the_newest_one() -> None:
    second = "[2026-11-29 14:58:00.000 Control   418] Starting new server 500 for user 7\n"
    again = "[2026-11-29 14:58:01.000 Control   418] Starting new server 428 for user 8\n"
    assert [(one.pid, one.uid) for one in read(ONE_START + second + again).servers.values()] == [(500, 7), (428, 8)]


def test_a_client_that_a_pid_namespace_hides_is_counted_and_waits_for_nobody() -> None:
    came = "[2026-01-01 09:00:00.380 Control   261] NEW CLIENT 0 from user 0: "
    log = read(f"{came}Server is not ready, push client to pending list\n{came}Server already exists\n")
    assert (log.hidden, log.waiting) == (2, {})


def test_a_client_that_left_is_no_client() -> None:
    gone = "[2026-11-29 14:57:40.225 Server   428] Client process 426 disconnected\n"
    assert read(ONE_START + gone).servers[428].clients == {}


def test_a_process_id_used_again_is_a_new_client() -> None:
    text = ONE_START + "[2026-11-29 14:57:41.0 Server   428] Client process 426 disconnected\n" + CHANGE
    text += "[2026-11-29 14:57:47.000 Server   428] Client {PID: 426, Context ID: 0} connected\n"
    assert read(text).servers[428].clients[426].limit_bytes == {"0": 4 * GIB}


def test_clients_of_a_server_that_ended_are_gone() -> None:
    ended = "[2026-11-29 14:57:50.000 Control   418] Server 428 exited with status 1\n"
    server = read(ONE_START + ended).servers[428]
    assert (server.exit_status, server.clients) == (1, {})


def test_a_client_that_waits_behind_another_user_is_waiting() -> None:
    queued = (
        "[2026-11-29 15:00:00.000 Control   418] NEW CLIENT 5200 from user 1000: "
        "Server is not ready, push client to pending list\n"
    )
    assert read(ONE_START + queued).waiting == {5200: 1000}
    assert read(ONE_START).waiting == {}, "426 has connected since"


def test_a_server_is_known_whole_from_its_first_line_on() -> None:
    assert read(ONE_START).servers[428].whole
    assert not read(ONE_START.split("\n", 3)[3]).servers[428].whole


def test_a_servers_process_id_used_again_is_a_new_server() -> None:
    again = "[2026-11-29 15:10:00.000 Control   428] Starting new server 428 for user 1000\n"
    server = read(ONE_START + again).servers[428]
    assert (server.whole, server.limit_bytes, server.clients) == (True, {}, {})


def test_every_line_that_is_read_gets_through_the_journals_filter() -> None:
    queued = "[2026-11-29 15:00:00.000 Control   418] NEW CLIENT 5200 from user 1000: push client to pending list\n"
    ended = "[2026-11-29 14:57:50.000 Control   418] Server 428 exited with status 1\n"
    gone = "[2026-11-29 14:57:40.225 Server   428] Client process 426 disconnected\n"
    text = ONE_START + CHANGE + LATER_CLIENT + gone + queued + ended
    kept = "\n".join(line for line in text.splitlines() if re.search(daemon_log.WANTED, line))
    assert replace(read(kept), lines=0) == replace(read(text), lines=0)


@pytest.mark.parametrize(
    ("by_device", "limit"),
    [
        ({"0": 1}, 1),
        ({"1": 1}, None),
        ({"GPU-aaaa-bbbb": 1}, 1),
        ({"GPU-aaaa": 1}, 1),
        ({"GPU-bbbb": 1}, None),
        ({"0": 1, "GPU-aaaa-bbbb": 2}, 2),
        ({"GPU-aaaa-bbbb": 2, "0": 1}, 1),
        ({"": 1}, None),
    ],
)
def test_a_device_goes_by_its_ordinal_or_its_uuid(by_device: dict[str, int], limit: Optional[int]) -> None:
    assert daemon_log.of_device(by_device, 0, "GPU-aaaa-bbbb") == limit


def test_lines_of_no_known_form_are_passed_over() -> None:
    assert read("what\n[half a line\n\n[2026 Server] x\n" + ONE_START).servers[428].limit_bytes == {"0": 2 * GIB}
