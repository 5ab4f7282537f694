"""Processes with names of ours, and texts of others that look like lines of ours."""

from __future__ import annotations

import json

import pytest

from .attempts import attempt
from .conftest import ATTACKER, CLIENT, PUBLIC, SOMEBODY, Target

PROGRAM = "nvidia-cuda-mps-control"
GREETING = b"OUTBHELL\0".hex()
ESCAPE, FORGED = "\x1b", "MPS OK: forged"
TITLE = f"x\\n{FORGED} $(touch /tmp/pasted)\\n\\x1b[2J\\x1b]0;forged\\x07"


@pytest.mark.parametrize(
    "command",
    [
        "exec /tmp/mine/{program} -IS -c 'import time; time.sleep(600)' -d",
        "sleep 600 | script --quiet --command '/tmp/mine/setuid/{program} root' /dev/null",
        # again and again: it may give up at once
        "while :; do /usr/bin/{program} -f; sleep 0.05; done",
    ],
    ids=["another program", "a setuid program, so that it is root's", "NVIDIA's own program, as that user"],
)
@attempt(
    "be taken for a daemon of the instance",
    tried="a process with the daemon's name and its directory in its environment: another program, a setuid program"
    " that waits for a password, NVIDIA's own daemon",
    result="the instance restarts, and is not called critical: only processes that root started count. A warning names"
    " the process",
)
def test_a_process_named_like_the_daemon_keeps_nothing_from_starting(target: Target, command: str) -> None:
    links = f"mkdir -p /tmp/mine/setuid && ln -sf /usr/bin/python3 /tmp/mine/{PROGRAM} &&"
    target.as_user(SOMEBODY, f"{links} ln -sf /usr/bin/su /tmp/mine/setuid/{PROGRAM}")
    try:
        with target.process(SOMEBODY, command.format(program=PROGRAM)):
            target.restart()
            assert target.client()["outcome"] == "client"
            assert target.health() in ("ok", "warning")  # it is told, as what it is
    finally:
        target.run("rm -rf /tmp/mine")


@pytest.mark.parametrize(
    "command",
    [
        "exec /tmp/{server} -IS -c 'import time; time.sleep(600)'",
        "setsid /tmp/{server} -IS -c 'import time; time.sleep(600)' & exec sleep 600",
        "setsid /usr/sbin/{server} & until grep -q nvidia /proc/$!/comm; do :; done; kill -STOP $!; exec sleep 600",
    ],
    ids=["another program", "one that process 1 has adopted", "NVIDIA's own program, stopped"],
)
@attempt(
    "be taken for a server that its daemon left over",
    tried="a process with a server's name: another program, one whose parent is gone, NVIDIA's own server",
    result="instance and host are ok, and `clients` does not name it: a server of root's daemon has root's group, which"
    " no user can take. `verify` has a note",
)
def test_a_process_named_like_a_server_ends_nobody(target: Target, command: str) -> None:
    server = "nvidia-cuda-mps-server"
    target.as_user(SOMEBODY, f"ln -sf /usr/bin/python3 /tmp/{server}")
    try:
        with target.process(SOMEBODY, command.format(server=server)):
            target.until(f"pgrep -u {SOMEBODY} -x nvidia-cuda-mps")
            for _ in range(2):
                assert target.health() == "ok"
            for verb in ("status", "health", "verify"):
                checks = {one["name"]: one for one in target.json(verb)["host"]["checks"]}
                assert checks["left-over-servers"]["level"] == "ok"
            assert target.json("clients")["left_over"] == []
            target.restart()
    finally:
        target.run(f"rm -f /tmp/{server}")


@attempt(
    "forge a line of ours, or a terminal's commands, by names",
    tried="a client whose file, title and environment hold line ends, escape sequences and a shell's substitutions",
    result="every verb escapes and cuts them, in its lines, its JSON and the journal",
)
def test_names_of_processes_forge_no_line(target: Target) -> None:
    program = '"$(printf "/tmp/a\\nMPS OK\\033[1m")"'
    environment = 'CUDA_MPS_CLIENT_PRIORITY="$(printf "1\\nMPS OK: forged\\033[2J")" PYTHONHOME=/usr'
    client = f"ln -sf /usr/bin/python3 {program}; exec env {environment} {ATTACKER} become '{TITLE}' {program} {CLIENT}"
    try:
        with target.process(SOMEBODY, client):
            target.until(f"mpsctl clients | grep -q {FORGED.split()[2]}")
            for verb in ("status", "verify", "health", "clients", "doctor"):
                said = target.run(f"mpsctl {verb}; true")
                assert ESCAPE not in said, verb
                assert not any(line.startswith((FORGED, "MPS OK\\x1b", "MPS OK\n")) for line in said.splitlines()), verb
            for verb in ("status", "verify", "health", "clients"):
                told = target.run(f"mpsctl {verb} --json; true")
                assert ESCAPE not in told, verb
                json.loads(told)
            written = target.run(
                "journalctl -u mps-front-door@0 -u mps-health -o json --output-fields=MESSAGE --no-pager"
            )
            assert all(isinstance(json.loads(line)["MESSAGE"], str) for line in written.splitlines())
    finally:
        target.run("rm -f /tmp/a*")
    assert target.run("ls /tmp/pasted 2>/dev/null; true") == ""


@attempt(
    "become a client of another name than one's own",
    tried="in a user and pid namespace of one's own: the credentials of another process, and of another user",
    result="the front door refuses another process's (805), the kernel another user's; root of a namespace is let in as"
    " the user that it is outside",
)
def test_credentials_of_others_do_not_pass(target: Target) -> None:
    other_process = target.as_user(SOMEBODY, f"{ATTACKER} claim 0")
    assert other_process.startswith(f"{GREETING} closed"), other_process
    other_user = target.as_user(SOMEBODY, f"{ATTACKER} claim 5")
    assert other_user.startswith("the kernel does not send it"), other_user
    root_of_its_own = f"unshare --user --map-root-user {CLIENT} --hold 0 --timeout 20"
    pid = json.loads(target.as_user(SOMEBODY, root_of_its_own).splitlines()[0])["pid"]
    told = "journalctl -u mps-front-door@0 -o json --output-fields=MPS_CLIENT_UID --no-pager"
    told += f" MPS_CLIENT_PID={pid}"
    target.until(f"{told} | grep -q .")
    uids = target.run(told).splitlines()
    assert [json.loads(line)["MPS_CLIENT_UID"] for line in uids] == [str(SOMEBODY)]


@attempt(
    "send NVIDIA's commands through the public directory",
    tried="quit, setters and start_server by NVIDIA's front-end, as a user and as root",
    result="the front door lets only CUDA clients pass; root has `mpsctl control`",
)
def test_no_front_end_passes_the_front_door(target: Target) -> None:
    commands = "\\n".join(["quit -t 0", "set_default_device_pinned_mem_limit 0 1M", "start_server -uid 1000", ""])
    send = f"printf '{commands}' | timeout 20 {PROGRAM}"
    target.as_user(SOMEBODY, send)
    target.run(f"CUDA_MPS_PIPE_DIRECTORY={PUBLIC} sh -c {json.dumps(send)}; true")
    assert "desired 4096 MiB, the daemon shows 4G" in target.run("mpsctl status 0")
