"""Given lines of control daemons and servers, what the doctor says went wrong there, and what it passes over."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsctl.adapters import daemon_log
from mpsctl.causes import log
from mpsctl.causes.catalogue import CAUSES
from mpsctl.causes.diagnosis import MOST_EVIDENCE, Diagnosis, in_order

CAPTURES = Path(__file__).with_name("captures")
DAY = "2026-01-01 10:00:"


def control(*texts: str, pid: int = 73) -> list[str]:
    return [f"[{DAY}{number:02}.100 Control {pid:5}] {text}" for number, text in enumerate(texts)]


def server(*texts: str, pid: int = 95, who: str = "Server") -> list[str]:
    return [f"[{DAY}{number:02}.200 {who} {pid:5}] {text}" for number, text in enumerate(texts)]


def diagnose(lines: list[str]) -> list[Diagnosis]:
    return in_order(log.diagnose_log(lines))


def names(lines: list[str]) -> list[str]:
    return [one.name for one in diagnose(lines)]


# -- real captures


@pytest.mark.parametrize(
    ("capture", "found"),
    [
        ("driver-580-h200-control.log", ["limits-lost-at-restart"]),
        ("driver-580-h200-server.log", ["client-fault"]),
        ("control-daemon-550-control.log", []),
    ],
)
def test_real_captures_parse_to_the_last_line(capture: str, found: list[str]) -> None:
    lines = (CAPTURES / capture).read_text().splitlines()
    assert log.known_lines(lines) == len(lines)
    assert names(lines) == found


def test_of_several_clients_nobody_is_named_as_the_one_that_made_the_fault() -> None:
    lines = (CAPTURES / "driver-580-h200-server.log").read_text().splitlines()
    (found,) = diagnose(lines)
    assert found.certainty == "certain"
    assert found.evidence[0] == (
        "one of the clients of server 506 (pid 519, 526) made a fatal fault, and which one is not told"
    )


@given(st.lists(st.text()))
def test_no_line_is_too_strange(lines: list[str]) -> None:
    for one in log.diagnose_log(lines):
        assert one.name in CAUSES
    daemon_log.read(lines)


TAGS = st.sampled_from(["Control", "Server", "Other", "Legacy Server"])
WORDS = st.lists(
    st.sampled_from(
        [
            "NEW",
            "CLIENT",
            "SERVER",
            "Cmd:",
            "Starting new server",
            "for user",
            "exited with status",
            "pending list",
            "UI",
            "closed",
            "Ready",
            "set_default_device_pinned_mem_limit",
            "0",
            "-1",
            "7",
            "0x80000000",
            "{PID: 3, Context: 1}",
            "Device pinned memory limit for device",
            "set to",
            "bytes",
            "connected",
            "\x00",
            "é",
        ]
    )
).map(" ".join)


@given(st.lists(st.tuples(TAGS, st.integers(0, 10**9), WORDS)))
def test_no_order_of_known_words_is_too_strange(rows: list[tuple[str, int, str]]) -> None:
    for one in log.diagnose_log([f"[{DAY}00.100 {who} {pid:5}] {what}" for who, pid, what in rows]):
        assert one.name in CAUSES


def test_lines_of_a_healthy_client_say_nothing() -> None:
    healthy = (CAPTURES / "driver-580-h200-server.log").read_text().splitlines()[:24]
    assert names(healthy) == []


# -- fatal faults

BEGIN = ["Startup", "Initializing server process"]


def connected(*pids: int) -> list[str]:
    return [f"Client {{PID: {pid}, Context ID: {context}}} connected" for pid in pids for context in (0, 1)]


def fault(named: int) -> list[str]:
    return [
        f"Client {{PID: {named}, Context: 1}} encountered a fatal GPU error.",
        "Server is handling a fatal GPU error.",
        f"The following clients have a sticky error set: {named}",
    ]


def who(lines: list[str]) -> list[str]:
    """What is said of whoever made each fault."""
    return [line for one in log.diagnose_log(lines) if one.name == "client-fault" for line in one.evidence[:1]]


@pytest.mark.parametrize("bystanders", [1, 2, 3, 5])
def test_with_bystanders_the_fault_is_one_of_theirs(bystanders: int) -> None:
    """The log names a bystander in 10 of 10 trials (driver 580, H200)."""
    pids = list(range(501, 502 + bystanders))
    lines = [*server(*BEGIN, who="Other"), *server(*connected(*pids), *fault(named=501))]
    every = ", ".join(map(str, pids))
    assert who(lines) == [
        f"one of the clients of server 95 (pid {every}) made a fatal fault, and which one is not told"
    ]


def test_a_client_that_was_alone_for_its_server_s_whole_life_made_the_fault() -> None:
    lines = [*server(*BEGIN, who="Other"), *server(*connected(501), *fault(501))]
    assert who(lines) == ["client 501, the only one that server 95 ever had, made a fatal fault"]
    started = control("Starting new server 95 for user 0")
    assert who([*started, *server(*connected(501), *fault(501))]) == who(lines)


@pytest.mark.parametrize(
    "lines",
    [
        server(*connected(501), *fault(501)),  # the log has not the server's beginning
        [*server(*BEGIN, who="Other"), *server(*connected(501, 502), "Client process 502 disconnected", *fault(501))],
        [*server(*BEGIN, who="Other"), *server(*connected(501), *fault(502))],
        server(*fault(501)),
    ],
    ids=["no beginning", "another one was there", "the named one never connected", "nothing but the fault"],
)
def test_a_client_that_may_not_have_been_alone_is_not_named(lines: list[str]) -> None:
    (said,) = who(lines)
    assert said.startswith("one of the clients of server 95 (pid 501")


def test_each_fault_has_the_clients_of_its_moment() -> None:
    first = [*connected(501, 502), *fault(501), "Client process 501 disconnected", "Client process 502 disconnected"]
    assert who(server(*first, *connected(503, 504), *fault(504))) == [
        "one of the clients of server 95 (pid 501, 502) made a fatal fault, and which one is not told",
        "one of the clients of server 95 (pid 503, 504) made a fatal fault, and which one is not told",
    ]


# -- one server after another

LOOP = [
    "Starting new server 95 for user {uid}",
    "Server encountered a fatal exception. Shutting down",
    "Server 95 exited with status 1",
    "Starting new server 98 for user {uid}",
    "Server encountered a fatal exception. Shutting down",
    "Server 98 exited with status 1",
]


def test_servers_that_end_again_and_again_are_a_loop() -> None:
    found = diagnose(control(*(line.format(uid=0) for line in LOOP)))
    assert [(one.name, one.certainty) for one in found] == [("server-crash-loop", "certain")]


def test_a_single_bad_end_is_no_loop() -> None:
    assert names(control(*(line.format(uid=0) for line in LOOP[:3]))) == []


def ended(*moments: str, uid: int = 0) -> list[str]:
    """Servers of a user that ended badly, each at a moment of its own."""
    lines = []
    for pid, moment in enumerate(moments, 95):
        begin = f"[{moment} Control    73]"
        lines += [f"{begin} Starting new server {pid} for user {uid}", f"{begin} Server {pid} exited with status 1"]
    return lines


@pytest.mark.parametrize(
    ("moments", "found"),
    [
        (["2026-01-01 10:00:00.1", "2026-01-01 10:09:59.1"], ["certain"]),
        (["2026-01-01 10:00:00.1", "2026-01-01 10:10:59.1"], []),
        (["2026-01-01 10:00:00.1", "2026-11-01 10:00:00.1"], []),  # ten months apart
        (["2026-01-01 23:59:00.1", "2026-01-02 00:01:00.1"], ["certain"]),
        (["2026-01-01 10:00:00.1", "2026-01-01 10:01:00.1", "2026-06-01 10:00:00.1"], ["possible"]),
    ],
)
def test_bad_ends_are_a_loop_only_within_ten_minutes_of_each_other(moments: list[str], found: list[str]) -> None:
    assert [one.certainty for one in diagnose(ended(*moments)) if one.name == "server-crash-loop"] == found


LATER = "[2026-01-01 {} Control    73] NEW UI"


@pytest.mark.parametrize(("last", "sure"), [("10:30:00.1", "certain"), ("12:30:00.1", "possible")])
def test_the_last_line_of_a_log_that_was_brought_is_its_present(last: str, sure: str) -> None:
    lines = [*ended("2026-01-01 10:00:00.1", "2026-01-01 10:01:00.1"), LATER.format(last)]
    (found,) = diagnose(lines)
    assert (found.name, found.certainty) == ("server-crash-loop", sure)
    assert any("it is over" in line for line in found.evidence) == (sure == "possible")


@pytest.mark.parametrize(("after_s", "found"), [(60, ["server-crash-loop"]), (7200, [])])
def test_on_a_host_a_loop_that_is_over_is_none(after_s: float, found: list[str]) -> None:
    """The clock of the host is the present, whatever line is the log's last."""
    lines = ended("2026-01-01 10:00:00.1", "2026-01-01 10:01:00.1")
    last_s = daemon_log.seconds("2026-01-01 10:01:00.1")
    assert last_s is not None
    assert [one.name for one in log.diagnose_log(lines, now_s=last_s + after_s)] == found


def test_servers_of_two_users_that_ended_once_each_are_no_loop() -> None:
    moments = ["2026-01-01 10:00:00.1", "2026-01-01 10:01:00.1"]
    assert names([*ended(moments[0], uid=0), *ended(moments[1], uid=1000)]) == []


def test_where_only_a_user_s_servers_end_the_way_to_the_directory_is_suspected() -> None:
    assert "pipe-directory-closed" in names(control(*(line.format(uid=1000) for line in LOOP)))


def test_a_legacy_server_that_does_not_start_is_a_gpu_before_volta_first_of_all() -> None:
    lines = control(*(line.format(uid=0) for line in LOOP))
    lines += server("Failed to start : invalid argument", pid=425, who="Legacy Server")
    assert names(lines)[:2] == ["gpu-older-than-volta", "server-crash-loop"]


# -- users

WAITS = [
    "Starting new server 4120 for user 0",
    "NEW SERVER 4120: Ready",
    "NEW CLIENT 5200 from user 1000: Server is not ready, push client to pending list",
]


def test_a_client_that_waits_behind_another_user() -> None:
    found = diagnose(control(*WAITS))
    assert [(one.name, one.certainty) for one in found] == [("waiting-behind-another-user", "certain")]
    assert "client 5200 of user 1000 waits while server 4120 of user 0 lives" in found[0].evidence


@pytest.mark.parametrize(
    "after",
    [
        ["Server 4120 exited with status 0", "Starting new server 5300 for user 1000", "NEW SERVER 5300: Ready"],
        ["NEW CLIENT 5200 from user 1000: Server already exists"],
        ["Server 4120 exited with status 0"],
        ["Starting control daemon using socket /run/nvidia-mps/0/control"],
    ],
)
def test_who_has_been_served_since_waits_no_more(after: list[str]) -> None:
    assert "waiting-behind-another-user" not in names(control(*WAITS, *after))


def test_the_first_client_of_a_user_waits_behind_nobody() -> None:
    first = "NEW CLIENT 426 from user 0: Server is not ready, push client to pending list"
    assert names(control(first, "Starting new server 428 for user 0", "NEW SERVER 428: Ready")) == []


def test_client_0_is_a_pid_namespace() -> None:
    line = "NEW CLIENT 0 from user 0: Server is not ready, push client to pending list"
    assert names(control(line)) == ["clients-hidden-by-pid-namespace"]


# -- limits


@pytest.mark.parametrize("value", ["20", "20%", "1.5G", "1024K", "-1G", "4294967296", "abc", "8192MiB"])
def test_a_value_that_the_daemon_misreads(value: str) -> None:
    assert names(control(f"Cmd:set_default_device_pinned_mem_limit 0 {value}")) == ["limit-misread"]


@pytest.mark.parametrize("value", ["2G", "2g", "4606M", "512MB", "0", "0G"])
def test_a_value_that_the_daemon_reads_as_meant(value: str) -> None:
    assert names(control(f"Cmd:set_default_device_pinned_mem_limit 0 {value}")) == []


@pytest.mark.parametrize("hexadecimal", ["0x10000000000000", "0xffffffffc0000000"])
def test_a_limit_in_the_server_s_log_that_limits_nobody(hexadecimal: str) -> None:
    assert names(server(f"Device pinned memory limit for device 0 set to {hexadecimal} bytes")) == ["limit-misread"]


UUID = "GPU-00000000-1111-2222-3333-444444444444"


@pytest.mark.parametrize(("answer", "found"), [([], ["limit-not-stored"]), (["3G"], [])])
def test_a_limit_that_reads_back_as_nothing_was_not_stored(answer: list[str], found: list[str]) -> None:
    lines = [f"Cmd:set_default_device_pinned_mem_limit {UUID} 3G", f"Cmd:get_default_device_pinned_mem_limit {UUID}"]
    assert names(control("NEW UI", *lines, *answer, "UI closed")) == found


def test_another_name_of_the_gpu_reads_back_as_nothing_and_proves_nothing() -> None:
    lines = ["Cmd:set_default_device_pinned_mem_limit 0 3G", f"Cmd:get_default_device_pinned_mem_limit {UUID}"]
    assert names(control(*lines, "UI closed")) == []


START = "Starting control daemon using socket /run/nvidia-mps/0/control"
SET = "Cmd:set_default_device_pinned_mem_limit 0 2G"


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ([START, SET, START], ["limits-lost-at-restart"]),
        ([START, SET, START, SET], []),
        ([START, START], []),
        ([START, SET], []),
    ],
)
def test_a_restart_without_its_limits(texts: list[str], found: list[str]) -> None:
    assert names(control(*texts)) == found


def test_a_device_that_is_not_there() -> None:
    assert names(control("Invalid device ordinal!")) == ["limit-for-no-device"]


# -- starts of both protocols

TO_CONNECT = "To connect CUDA applications to this daemon, set"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (f"{TO_CONNECT} env CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps/gpu0", []),
        (f"{TO_CONNECT} CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps", ["protocol-3"]),
        (f"{TO_CONNECT} env CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps", ["default-pipe-directory"]),
        (f"{TO_CONNECT} CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps", ["protocol-3", "default-pipe-directory"]),
    ],
)
def test_the_start_lines_of_both_protocols(line: str, found: list[str]) -> None:
    assert names(control(line)) == found


# -- the rest


def test_a_worker_thread_that_is_the_last_word() -> None:
    hangs = ["Received new client request", "Worker created", "Creating worker thread"]
    assert names(server(*hangs)) == ["stuck-at-worker-thread"]
    assert names(server(*hangs, "Device NVIDIA A16 (uuid GPU-1) is associated")) == []


def test_attached_and_then_refused_is_told_from_never_attached() -> None:
    lines = server("Creating worker thread", "Device NVIDIA A16 (uuid GPU-1) is associated")
    busy = "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable"
    assert names([*lines, busy])[0] == "attached-then-busy"
    assert {one.name: one.certainty for one in diagnose([*lines, busy])}["attached-then-busy"] == "likely"
    assert {one.name: one.certainty for one in diagnose([busy])}["attached-then-busy"] == "possible"


@pytest.mark.parametrize(
    "before",
    ["", "2026-01-01T10:00:00Z ", "I0612 11:23:33.074061 53 main.go:187] ", "Jan 01 10:00:00 n1 mps[73]: ", "\t"],
)
def test_what_others_put_before_a_line_does_not_hide_it(before: str) -> None:
    assert names([before + line for line in control(*WAITS)]) == ["waiting-behind-another-user"]


def test_a_loop_does_not_flood_the_answer() -> None:
    lines = control(*[line.format(uid=0) for line in LOOP] * 200)
    assert all(len(one.evidence) <= MOST_EVIDENCE for one in diagnose(lines))
