"""What a local user can do at the front door and with the daemon's one session."""

from __future__ import annotations

from .attempts import attempt
from .conftest import ATTACKER, CLIENT, NOBODY, OWN, PUBLIC, SOMEBODY, Target

GREETING, HELLO, ANSWER = b"OUTBHELL\0".hex(), b"OUTBCRED\0".hex(), b"OUTBCUFD\0".hex()
REFUSED = f"{GREETING} closed"
STAGES = ("connect", "greeting", "first", "second", "descriptor", "last", "server")


@attempt(
    "hold the daemon by connections that say nothing",
    tried="300 connections of one user that say nothing, 300 of another that say half of it, during a reload",
    result="the reload goes through and another user's client comes in: the daemon meets nobody who has not said all",
)
def test_silent_connections_hold_up_nobody(target: Target) -> None:
    with target.held(SOMEBODY, "silent", "300"), target.held(NOBODY, "half", "300"):
        target.run("timeout 30 systemctl reload mps-control@0")
        assert target.client(within_s=8)["outcome"] == "client"
        assert target.health() == "ok"


@attempt(
    "take all places at the front door, with several user ids",
    tried="900 connections of three users, silent ones and clients that wait in a drain; then clients of ten other"
    " users, one beside the other",
    result="each of the ten finds a place: who has most makes room, and gets error 805 for it. The ids that a user was"
    " given beside his own (`/etc/subuid`) count as one user",
    left_open="768 user ids at once, which `/etc/subuid` gives nobody, leave no place",
)
def test_three_users_who_have_all_places_keep_nobody_out(target: Target) -> None:
    third = 1  # one that systemd can look up
    target.run("mpsctl drain --timeout 1 0; true")
    try:
        with (
            target.held(SOMEBODY, "waiting", "300"),
            target.held(third, "waiting", "300"),
            target.held(NOBODY, "silent", "300"),
        ):
            users = " ".join(map(str, range(4000, 4010)))
            client = f"{CLIENT} --hold 0 --timeout 40"
            target.run(
                f"cd /tmp; rm -f /run/came.*; for uid in {users}; do CUDA_MPS_PIPE_DIRECTORY={PUBLIC} setsid setpriv"
                f" --reuid=$uid --regid=$uid --clear-groups {client} >/run/came.$uid 2>&1 </dev/null & done; sleep 2"
            )
            target.until("journalctl -q -o cat -t mps-front-door@0 MPS_REASON=made_room | grep -q .")
            target.run("mpsctl undrain 0")
            target.until(f"test $(cat /run/came.* | wc -l) = {len(users.split())}", within_s=60)
            assert target.run('grep -L \'"outcome": "client"\' /run/came.*; true') == ""
    finally:
        target.run("mpsctl undrain 0; rm -f /run/came.*; true")


@attempt(
    "hold the daemon in the middle of a client's start",
    tried="40 processes of one user that take no part any more once the daemon answers them, during a reload",
    result="each holds the daemon for a second; users take turns, so another user's client waits for a few at most",
    left_open="as many users as take part, so many seconds another one waits in each of its two or three connections",
)
def test_clients_that_stop_in_the_middle_hold_up_others_for_seconds(target: Target) -> None:
    with target.held(SOMEBODY, "stalled", "40"):
        assert target.client(within_s=12)["outcome"] == "client"
        target.run("timeout 30 systemctl reload mps-control@0")


@attempt(
    "have health end the daemon, by clients that stop in the middle without end",
    tried="20 processes of one user that connect, say all that a client says and take no part any more, again and"
    " again, over two looks of health with `mps_unresponsive_daemon: restart`",
    result="the front door passes nobody on while health asks the daemon: it answers, and is called ok. Where the door"
    " cannot be had to wait, health does not know, and ends nothing",
)
def test_clients_that_stop_in_the_middle_without_end_have_nothing_ended(target: Target) -> None:
    with target.held(SOMEBODY, "stalling", "20"):
        assert [target.health() for _ in range(2)] == ["ok"] * 2
        assert target.client()["outcome"] == "client"


@attempt(
    "have the daemon end its server, as under a debugger",
    tried="20 connections that say that they are under a debugger, while another user's client works",
    result="turned away, with 805: the daemon would end its server for such a one and answer nobody else of the door's",
)
def test_nobody_passes_the_door_under_a_debugger(target: Target) -> None:
    before = target.run("mpsctl control 0 get_server_list")
    said = target.as_user(SOMEBODY, f"for _ in $(seq 20); do {ATTACKER} words {HELLO} 03000000; done")
    assert said.splitlines()[:-1] == [REFUSED] * 20, said
    assert target.client(within_s=8)["outcome"] == "client"
    assert target.run("mpsctl control 0 get_server_list") == before


@attempt(
    "be stopped or killed at each stage of a client's start",
    tried="SIGKILL to one client and SIGSTOP to another at each of seven stages",
    result="the daemon serves on; it is not taken for unresponsive, and is not restarted",
)
def test_a_client_that_ends_or_stops_at_any_stage_does_no_harm(target: Target) -> None:
    for stage in STAGES:
        target.as_user(SOMEBODY, f"{CLIENT} --kill-at {stage}")
    each = f'for stage in {" ".join(STAGES)}; do {CLIENT} --stop-at $stage >/dev/null & stopped="$stopped $!"; done'
    with target.process(SOMEBODY, f"{each}; sleep 1; kill -STOP $stopped; sleep 600") as unit:
        pids = f"$(cat /sys/fs/cgroup/system.slice/{unit}/cgroup.procs)"
        target.until(f"[ $(ps -o state= -p $(echo {pids} | tr ' ' ,) | grep -c T) = {len(STAGES)} ]")
        for _ in range(2):
            assert target.health() == "ok"
        assert target.client()["outcome"] == "client"


@attempt(
    "say what no client says",
    tried="unknown, long and too many messages; the words of a server and of NVIDIA's front-end",
    result="greeted, and closed: 805. What comes after the second message never reaches the daemon",
)
def test_wrong_words_are_refused(target: Target) -> None:
    refused = [
        ("deadbeef",),
        ("00" * 64,),
        ("41" * 65,),
        (HELLO, "04000000"),  # a front-end
        (HELLO, "01000000"),  # a server
        (HELLO, "0200000000"),
    ]
    said = target.as_user(NOBODY, "; ".join(f"{ATTACKER} words {' '.join(messages)}" for messages in refused))
    assert said.splitlines()[:-1] == [REFUSED] * len(refused), said
    garbage = target.as_user(NOBODY, f"{ATTACKER} words {HELLO} 02000000 {'ff' * 60}")
    # It may be passed on before the third message comes.
    assert garbage.startswith((REFUSED, f"{GREETING} {ANSWER} closed")), garbage


@attempt(
    "send the front door open files",
    tried="a terminal, a FIFO and a file with the first message",
    result="the kernel refuses to send them (Linux 6.16), or drops them, and the client is refused",
    left_open="before Linux 6.16 the kernel closes a file that it drops in the front door's process: one whose close"
    " hangs (a user's own FUSE file system, a socket with SO_LINGER) holds up the front door as long",
)
def test_descriptors_are_not_taken(target: Target) -> None:
    target.as_user(SOMEBODY, "rm -f /tmp/fifo; mkfifo /tmp/fifo")
    for path in ("/dev/null", "/tmp/fifo", "/etc/passwd"):
        said = target.as_user(SOMEBODY, f"{ATTACKER} descriptor {path}")
        assert said.startswith(("the kernel does not send it", REFUSED)), said
    target.run("rm -f /tmp/fifo")


@attempt(
    "be in the instance before its limits are",
    tried="connect without a pause while the instance restarts; connect to the daemon's own sockets",
    result="the start goes through; nobody reaches the daemon before its limits are in force",
)
def test_nobody_comes_before_the_limits(target: Target) -> None:
    with target.held(SOMEBODY, "hammer"):
        target.restart()
        for name in ("control", "control_privileged"):
            said = target.as_user(SOMEBODY, f"ls {OWN}; {CLIENT} --hold 0 --timeout 5; stat {OWN}/{name}")
            assert "Permission denied" in said, said
        assert "4096 MiB" in target.run("mpsctl status 0")


@attempt(
    "hold the daemon's session, and have health restart it",
    tried="a copy of NVIDIA's front-end under another name on both directories, kept open over two looks of health with"
    " `mps_unresponsive_daemon: restart`",
    result="no session is opened; the daemon is not restarted",
)
def test_a_renamed_front_end_holds_no_session(target: Target) -> None:
    mine = "/tmp/mine"
    session = "(sleep 600 | CUDA_MPS_PIPE_DIRECTORY={} {} &)"
    sessions = "; ".join(session.format(directory, mine) for directory in (PUBLIC, OWN, f"{PUBLIC}/control_lock/.."))
    try:
        command = f"cp /usr/bin/nvidia-cuda-mps-control {mine}; exec 2>/dev/null; {sessions}; sleep 600"
        with target.process(SOMEBODY, command):
            target.until(f"[ -x {mine} ]")
            for _ in range(2):
                assert target.health() == "ok"
            target.run("timeout 30 systemctl reload mps-control@0")
    finally:
        target.run(f"rm -f {mine}")


@attempt(
    "flood the journal through the front door",
    tried="400 connections of one user with a wrong word",
    result="the first ones are told one by one, the rest as a number",
)
def test_refusals_are_counted_and_not_told_one_by_one(target: Target) -> None:
    lines = "journalctl -u mps-front-door@0 -o cat --no-pager | grep -c 'turned away'; true"
    before = int(target.run(lines))
    target.as_user(SOMEBODY, f"{ATTACKER} wrong 400")
    assert int(target.run(lines)) - before <= 20
