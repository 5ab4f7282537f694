"""What takes minutes, as floods do, and is tried by `make attack` alone."""

from __future__ import annotations

import json

import pytest

from .attempts import attempt
from .conftest import ATTACKER, CLIENT, NEIGHBOUR, NOBODY, PUBLIC, SOMEBODY, Target
from .test_ways import play

pytestmark = pytest.mark.long


@attempt(
    "take all places at the front door",
    tried="5,000 connections of one user, held; another user's client comes ten times",
    result="256 are kept, the others are greeted and closed; the other user's client comes in each time",
)
def test_five_thousand_connections_leave_room_for_others(target: Target) -> None:
    with target.held(SOMEBODY, "silent", "5000"):
        for _ in range(10):
            assert target.client()["outcome"] == "client"
        assert target.health() == "ok"


@attempt(
    "keep the daemon busy with clients that stop in the middle",
    tried="250 processes of one user, each stopped where the daemon has answered it; another user's client comes five"
    " times",
    result="the other user's client comes in each time, within seconds",
)
def test_hundreds_that_stop_in_the_middle_leave_room_for_others(target: Target) -> None:
    with target.held(SOMEBODY, "stalled", "250"):
        for _ in range(5):
            assert target.client(within_s=30)["outcome"] == "client"
        target.run("timeout 60 systemctl reload mps-control@0")
        assert target.health() == "ok"


@attempt(
    "fill the log of the daemon",
    tried="clients that come and go, four at once, 1,000 in all, and 5,000 connections with a wrong word",
    result="refusals are told by their number; the limits are still read back, and every look ends in time",
    left_open="the daemon's own lines, some six for each client that comes and goes, and the front door's one are not"
    " bounded but by what journald keeps (SystemMaxUse=). `mpsctl` reads the newest 16 MiB of them",
)
def test_lines_of_clients_that_come_and_go(target: Target) -> None:
    loop = f"for _ in $(seq 250); do {CLIENT} --hold 0 --timeout 30 >/dev/null; done"
    target.run(
        f"cd /tmp; for _ in 1 2 3 4; do setpriv --reuid={SOMEBODY} --regid={SOMEBODY} --clear-groups"
        f" env CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps/0 sh -c '{loop}' & done; wait"
    )
    lines = "journalctl -u mps-front-door@0 -o cat --no-pager | grep -c 'turned away'; true"
    before = int(target.run(lines))
    target.as_user(NOBODY, f"{ATTACKER} wrong 5000")
    assert int(target.run(lines)) - before <= 60
    for verb in ("status", "health", "verify"):
        target.run(f"timeout 60 mpsctl {verb} >/dev/null; test $? -lt 3")
    target.restart()


@attempt(
    "be in the way of a start by thousands of connections",
    tried="two users connect without a pause during three restarts",
    result="each start goes through within a minute, and another user's client comes in meanwhile",
)
def test_starts_under_a_flood(target: Target) -> None:
    with target.held(SOMEBODY, "hammer"), target.held(NOBODY, "hammer"):
        for _ in range(3):
            target.restart()
            target.holds()


@pytest.mark.parametrize("program", ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"])
@attempt(
    "be many that root has to look at",
    tried="400 processes with the name of NVIDIA's daemon, and of its server, each with 120 kB of arguments and the"
    " daemon's directory in its environment",
    result="every look ends within its bound and the instance restarts; a line of ours holds a part of a command, and"
    " the first of many",
)
def test_a_crowd_of_processes_of_nvidias_names(target: Target, program: str) -> None:
    mine = f"/tmp/{program}"
    target.as_user(SOMEBODY, f"cp /bin/sleep {mine}")
    try:
        with target.held(SOMEBODY, "crowd", "400", mine):
            target.until(f"[ $(pgrep -c -u {SOMEBODY} -x {program[:15]}) -ge 300 ]")
            assert target.health() in ("ok", "warning")
            for verb in ("status", "verify", "clients"):
                assert int(target.run(f"timeout 60 mpsctl {verb} | wc -c; test ${{PIPESTATUS[0]}} -lt 4")) < 1_000_000
            target.restart()
            assert target.client()["outcome"] == "client"
    finally:
        target.run(f"rm -f {mine}")


@attempt(
    "keep systemd from starting the front door",
    tried="4,200 connections to the journal's socket for the output of services, which every user may make, held for"
    " 40 s; the front door's process is killed meanwhile",
    result="nobody runs outside MPS: who comes waits, for the socket stands. A daemon that runs goes on, and all is"
    " well when the connections have ended",
    left_open="systemd keeps each such connection itself, and answers nobody for as long as many come and go (seen with"
    " systemd 257: a minute and a half). What it would start waits: the front door after an idle minute, the daemon"
    " after its end, the look for health. Before the door runs a client waits without an end",
)
def test_a_crowded_journal_lets_nobody_run_outside_mps(target: Target) -> None:
    door = target.run("systemctl show --value -p MainPID mps-front-door@0").strip()
    with target.held(SOMEBODY, "streams", "4200", "40"):
        target.run(f"sleep 5; test {door} = 0 || kill -9 {door}")
        assert target.client(within_s=30)["outcome"] in ("client", "hang")
        target.run("sleep 15")
    answers = "timeout 5 systemctl is-system-running >/dev/null; test $? != 124 && exit 0"
    target.run(f"for _ in $(seq 60); do {answers}; done; exit 1")


@attempt(
    "stop the server that is one's own",
    tried="in single-user mode, where the server is its user's: SIGSTOP to it, with no client left; another one comes",
    result="the daemon hangs for the other user, is found jammed and ended by health, since nobody is connected, and"
    " the other user's client comes in within its time",
)
def test_a_server_that_its_user_stopped_keeps_nobody_out(target: Target) -> None:
    target.run(f"kill {target.neighbour}")  # a restart would be in its way
    try:
        assert play(target, "-e", "mps_multi_user=false").exit_code == 0
        assert target.client(SOMEBODY)["outcome"] == "client"
        said = target.as_user(SOMEBODY, f"pkill -STOP -u {SOMEBODY} -x nvidia-cuda-mps")
        assert said == "ended with 0\n", said
        out, user = "/run/other", f"setpriv --reuid={NEIGHBOUR} --regid={NEIGHBOUR} --clear-groups"
        come = f"CUDA_MPS_PIPE_DIRECTORY={PUBLIC} setsid {user} {CLIENT} --hold 0 --timeout 70"
        target.run(f"{come} >{out} 2>&1 </dev/null & sleep 0.1")
        target.until(f"test -s {out}", within_s=80)
        assert json.loads(target.run(f"cat {out}"))["outcome"] == "client"
    finally:
        assert play(target).exit_code == 0
        target.begin()


VERBS = ("status", "health", "verify", "doctor", "gpus", "clients", "env 0", "version", "control 0 get_server_list")
HERE, RAN = "/tmp/here", "/tmp/ran"
MODULES = "json os sys re socket subprocess argparse sitecustomize usercustomize encodings zipimport pynvml mpsctl time"
PROGRAMS = "nvidia-cuda-mps-control systemctl journalctl sh env python3"


@attempt(
    "have root run what lies in the folder in which root stands",
    tried="a folder of Python modules under the names of those that mpsctl imports, and of programs under the names of"
    " those that it starts; root runs nine verbs in it",
    result="none of it is run",
)
def test_nothing_in_the_working_directory_is_run(target: Target) -> None:
    module = f'import os; os.close(os.open("{RAN}", os.O_CREAT))'
    lay = [
        f"mkdir -p {HERE}/mpsctl && cd {HERE}",
        f"for one in {MODULES}; do echo '{module}' >$one.py; done; cp json.py __main__.py",
        "cp json.py mpsctl/__init__.py",
        f"for one in {PROGRAMS}; do printf '#!/bin/sh\\n>{RAN}\\n' >$one; chmod +x $one; done",
    ]
    try:
        assert "ended with 0" in target.as_user(SOMEBODY, "; ".join(lay))
        for verb in VERBS:
            run = f"timeout 60 mpsctl {verb} >/dev/null; test $? -lt 3 && ls {RAN} 2>&1"
            assert "No such file" in target.run(f"cd {HERE} && {run}; true"), verb
        assert target.run(f"cd {HERE} && /usr/bin/python3 json.py; ls {RAN}") == f"{RAN}\n", "the trap works"
    finally:
        target.run(f"rm -rf {HERE} {RAN}")


@attempt(
    "have systemd know instances that nobody has",
    tried="load units of our names into systemd by its bus, which every user may, while root looks and reloads",
    result="no verb names such an instance: instances are what has a file",
)
def test_units_that_a_user_loads_are_no_instances(target: Target) -> None:
    names = "mps-control@evil.service mps-control@-rf.service mps-front-door@evil.socket mps-control@..-..-etc.service"
    manager = "org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager"
    load = f"busctl call {manager} LoadUnit s"
    assert "/mps_2dcontrol_40evil" in target.as_user(SOMEBODY, f"{load} mps-control@evil.service")
    every = f"while true; do for one in {names}; do {load} $one >/dev/null; done; done"
    with target.process(SOMEBODY, every):
        for _ in range(3):
            assert sorted(target.json("status")["instances"]) == ["0", "1"]
        target.run("timeout 30 systemctl reload mps-control@0")
        assert play(target, "--check").exit_code == 0
