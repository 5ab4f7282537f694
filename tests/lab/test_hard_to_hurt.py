"""What only systemd, ssh and a real daemon can show: nothing ends that cannot be counted, nothing waits for good.

One host of Debian 12 (systemd 252) and one of Debian 13 (systemd 257), with simulated GPUs, servers and clients.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Iterator

import pytest

from .conftest import LAB, PROJECT
from .front_door import IN, PUBLIC, RUNTIME, DoorHost, Fleet, fleet, until

sys.path.insert(0, str(PROJECT / "plugins" / "plugin_utils"))

from mps_role import transport

PROGRAM, CONF = "/usr/local/bin/mpsctl", "/etc/mps/1.conf"
FIRST, UNIT = "mps-control@0.service", "mps-control@1.service"
KEPT = "/root/kept"
STOP_S = 3

KEEPS_FROM_JUDGING = {
    "no program": f"rm {PROGRAM}",
    "a program that is not executable": f"chmod -x {PROGRAM}",
    "half a program": f"truncate -s 200000 {PROGRAM}",
    "an empty program": f"truncate -s 0 {PROGRAM}",
    "a folder in its place": f"rm {PROGRAM}; mkdir {PROGRAM}",
    "a FIFO in its place": f"rm {PROGRAM}; mkfifo -m 755 {PROGRAM}",
    "a program that is damaged inside": f"sed -i s/def.condition/def/ {PROGRAM}",
    "no Python": "mv /usr/bin/python3 /usr/bin/python3.away",
    "a group that the host lacks": f"sed -i 's/^\\[Instance\\]/&\\nGroup=nobody-has-this/' {CONF}",
    "half a file": f"truncate -s 60 {CONF}",
    "a FIFO for the file": f"rm {CONF}; mkfifo {CONF}",
    "a folder for the file": f"rm {CONF}; mkdir {CONF}",
    "a link to nothing for the file": f"ln -sfn nothing {CONF}",
    "a file where its state belongs": f"rm -rf {RUNTIME}/1; touch {RUNTIME}/1",
    "a link where the daemon's directory belongs": f"mkdir -p {RUNTIME}/1; ln -sfn /tmp {RUNTIME}/1/pipe",
    "a state that cannot be written": f"mount -t tmpfs -o ro none {RUNTIME}",
    "a state that is full": f"mount -t tmpfs -o size=4k none {RUNTIME}; head -c 9999 /dev/zero >{RUNTIME}/full || true",
}
MENDED = (
    f"umount {RUNTIME} 2>/dev/null; [ ! -e /usr/bin/python3.away ] || mv /usr/bin/python3.away /usr/bin/python3;"
    f" rm -rf {PROGRAM} {CONF} {RUNTIME}/1; cp -a {KEPT}/mpsctl {PROGRAM}; cp -a {KEPT}/1.conf {CONF}"
)

HOSTS = {"bookworm": "550", "trixie": "555"}


@pytest.fixture(scope="module", params=["bookworm", pytest.param("trixie", marks=pytest.mark.long)])
def one(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    more = ("--release", request.param)
    with fleet(f"hurt-{request.param}", (HOSTS[request.param],), converged=False, more=more) as booted:
        booted.converge(f"mps_stop_timeout_s={STOP_S}")
        # The pause of a start that could not be judged is not waited for in full.
        booted.hosts[0].run(
            f"mkdir {KEPT}; cp -a {PROGRAM} {CONF} {KEPT}; printf '#!/bin/sh\\nexec /bin/sleep 0.2\\n'"
            " >/usr/local/bin/sleep; chmod 755 /usr/local/bin/sleep"
        )
        yield booted


@pytest.fixture
def host(one: Fleet) -> Iterator[DoorHost]:
    (found,) = one.hosts
    yield found
    found.end_clients()


def shown(host: DoorHost, unit: str = UNIT) -> dict[str, str]:
    said = host.run(f"systemctl show -p ActiveState,Result,NRestarts {unit}")
    return dict(line.split("=", 1) for line in said.splitlines())


def nvml_modes(host: DoorHost) -> list[str]:
    """The compute mode of each GPU as the simulated NVML has it: what keeps our program from running keeps nobody from
    looking there."""
    return host.run("grep -h ^compute_mode= /run/mps-lab/nvml/*.state").split()


@pytest.mark.parametrize("how", KEEPS_FROM_JUDGING)
def test_what_keeps_the_program_from_judging_is_a_failure_that_is_tried_again(host: DoorHost, how: str) -> None:
    at_work = nvml_modes(host)
    host.run(f"systemctl stop {UNIT}; systemctl reset-failed {UNIT}")
    before = nvml_modes(host)
    assert before != at_work, "the stop gave the GPU back"
    host.run(KEEPS_FROM_JUDGING[how])
    try:
        host.run(f"systemctl start --no-block {UNIT}")
        found = until(lambda: (now := shown(host))["NRestarts"] not in ("0", "") and now, f"{how}: it is tried again")
        assert found["Result"] != "exec-condition"
        assert nvml_modes(host) == before, "a start that fails leaves no GPU exclusive"
        host.run(f"systemctl stop {UNIT}", check=False)
        assert nvml_modes(host) == before, "nor does the end of the tries"
        host.run(f"systemctl start --no-block {UNIT}")
        until(lambda: shown(host)["NRestarts"] not in ("0", ""), f"{how}: it is tried again")
    finally:
        host.run(MENDED)
    until(lambda: shown(host)["ActiveState"] == "active", f"{how}: it heals by itself")
    until(lambda: host.meets(directory=f"{PUBLIC}/1") == IN, f"{how}: clients come in")


def test_a_host_without_the_daemon_is_skipped_with_success_and_not_tried_again(host: DoorHost) -> None:
    binary = "/usr/bin/nvidia-cuda-mps-control"
    host.run(f"systemctl stop {UNIT}; mv {binary} {binary}.away")
    try:
        host.run(f"systemctl start {UNIT}")
        assert shown(host) == {"ActiveState": "inactive", "Result": "exec-condition", "NRestarts": "0"}
    finally:
        host.run(f"mv {binary}.away {binary}; systemctl start {UNIT}")
    assert host.meets(directory=f"{PUBLIC}/1") == IN


def test_a_look_without_the_program_fails_and_is_not_skipped(host: DoorHost) -> None:
    host.run(f"mv {PROGRAM} {PROGRAM}.away; systemctl start mps-health.service", check=False)
    try:
        assert shown(host, "mps-health.service")["ActiveState"] == "failed"
    finally:
        host.run(f"mv {PROGRAM}.away {PROGRAM}; systemctl reset-failed mps-health.service")


def modes(host: DoorHost) -> list[str]:
    found = json.loads(host.run("mpsctl gpus --json"))
    return [gpu["compute_mode"] for gpu in found["gpus"]]


@pytest.mark.parametrize("damage", ["truncate -s 60", "truncate -s 0", "rm"])
def test_a_stop_with_a_damaged_file_has_its_grace_and_gives_the_gpu_back(host: DoorHost, damage: str) -> None:
    works = host.client(directory=f"{PUBLIC}/1")
    assert works.outcome() == IN
    assert modes(host)[1] == "exclusive_process"
    try:
        host.run(f"{damage} {CONF}; systemctl stop {UNIT}")
        said = host.run(f"journalctl -q -o cat -n 40 -u {UNIT}")
        assert f"({STOP_S} s are over)" in said
        assert "taken as it was started last" in said
        assert modes(host)[1] == "default"
    finally:
        host.run(MENDED)
        host.run(f"systemctl start {UNIT}")


def test_a_removal_leaves_a_daemon_that_is_stopped_by_a_signal_with_its_clients(one: Fleet, host: DoorHost) -> None:
    clients = [host.client() for _ in range(2)]
    assert [client.outcome() for client in clients] == [IN, IN]
    pid = host.main_pid()
    host.run(f"kill -STOP {pid}")
    try:
        done = one.rollout.play("playbooks/remove.yml", "-e", "mps_on_clients=terminate", "-e", "mps_drain_timeout_s=2")
        assert done.exit_code != 0
        assert "cannot be counted" in done.output
        assert host.main_pid() == pid
    finally:
        host.run(f"kill -CONT {pid}")
    assert [client.end() for client in clients] == [0, 0], "they worked on"
    one.converge(f"mps_stop_timeout_s={STOP_S}")
    assert host.meets(directory=f"{PUBLIC}/1") == IN


@pytest.mark.parametrize(
    "policy", ["", "--on-clients wait --drain-timeout 2", "--on-clients terminate --drain-timeout 2"]
)
def test_the_verb_removes_nothing_of_a_daemon_that_is_stopped_by_a_signal(
    one: Fleet, host: DoorHost, policy: str
) -> None:
    """As found: two clients, the daemon gets SIGSTOP, and root on the host takes everything off."""
    clients = [host.client() for _ in range(2)]
    assert [client.outcome() for client in clients] == [IN, IN]
    pids = sorted(str(said["pid"]) for client in clients for said in [client.said(1)] if said)
    pid = host.main_pid()
    host.run(f"kill -STOP {pid}")
    try:
        for check in ("--check", ""):
            said = host.run(f"mpsctl remove {policy} {check}; echo ended with $?", check=False)
            assert "ended with 1" in said
            assert "0 (its clients cannot be counted)" in said
            assert host.main_pid() == pid
            assert sorted(host.run(f"ps -o pid= -p {','.join(pids)}").split()) == pids, "both live"
        assert host.run("mpsctl version", check=False), "what all share stays"
    finally:
        host.run(f"kill -CONT {pid}")
    assert [client.end() for client in clients] == [0, 0], "they worked on"
    until(lambda: "ended with 0" in host.run("mpsctl remove; echo ended with $?", check=False), "now it is removed")
    assert (host.main_pid(), set(nvml_modes(host))) == (0, {"compute_mode=0"})
    one.converge(f"mps_stop_timeout_s={STOP_S}")
    assert host.meets(directory=f"{PUBLIC}/1") == IN


SWAPPED = '{"mps_instances": [{"name": "0", "gpus": ["1"]}, {"name": "1", "gpus": ["0"]}]}'


def test_a_run_that_is_killed_while_it_drains_keeps_nobody_out(one: Fleet, host: DoorHost) -> None:
    """Nobody undrains, and no other run comes."""
    works = host.client()
    assert works.outcome() == IN
    pid = host.main_pid()
    with ThreadPoolExecutor(1) as pool:
        given = ("-e", "mps_on_clients=wait", "-e", f"mps_stop_timeout_s={STOP_S}", "-e", SWAPPED)
        run = pool.submit(one.rollout.play, "site.yml", *given)
        until(lambda: host.admission()["state"] == "waiting", "the run drains")
        waits = host.client()
        assert waits.waits()
        host.run("kill -KILL $(cat /run/mps-fleet/.turn)")
        assert waits.outcome() == IN
        assert run.result(120).exit_code != 0
    assert host.main_pid() == pid
    assert [works.end(), waits.end()] == [0, 0]
    one.converge(f"mps_stop_timeout_s={STOP_S}")
    assert host.meets() == IN


def test_a_playbook_ends_though_mpsctl_is_stopped_on_its_host(one: Fleet, host: DoorHost) -> None:
    host.run(
        f"rm {PROGRAM}; printf '%s\\n' 'import os, signal' 'os.kill(os.getpid(), signal.SIGSTOP)' >{PROGRAM};"
        f" chmod 755 {PROGRAM}"
    )
    try:
        done = one.rollout.play("site.yml", "-e", "_mps_look_timeout_s=4")
        assert done.exit_code != 0
        assert "found no answer of mpsctl within 4 s" in done.output
        assert "T" in host.run("ps -C python3 -o stat=")
    finally:
        host.run(f"cp -a {KEPT}/mpsctl {PROGRAM}.new; mv {PROGRAM}.new {PROGRAM}")
        host.run("for p in $(ps -C python3 -o pid=,stat= | awk '$2 ~ /T/ {print $1}'); do kill -KILL $p; done")
    one.converge(f"mps_stop_timeout_s={STOP_S}")


def test_nothing_of_a_run_that_was_killed_while_its_program_travelled_stays(one: Fleet, host: DoorHost) -> None:
    host.run(f"rm {PROGRAM}")
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(one.rollout.play, "site.yml")
        pid = until(lambda: host.run("pgrep -f '/proc/self/fd/[0-9]+ reconcile' || true").split(), "it travels")[0]
        host.run(f"kill -KILL {pid}", check=False)
        run.result(120)
    assert host.run("find / -xdev -name 'ansible-tmp-mps-*' 2>/dev/null", check=False) == ""
    one.converge(f"mps_stop_timeout_s={STOP_S}")


# -- the program's bytes on their way

LEFT = "pgrep -fa '[I]NPUT_S|/proc/self/fd/[0-9]+ reconcile' || true; find / -xdev -newer /root/before -type f"
LEFT += " -not -path '/proc/*' -not -path '/sys/*' -not -path '/var/log/*' -not -path '/run/log/*' 2>/dev/null"
LEFT += " -not -path '/run/systemd/*' -not -path '/root/.ssh/*' || true"
"""Processes of the transport, and files that came since."""
ENDS_THE_TRANSPORT = {
    "its Python": "kill -KILL $(pgrep -f '[I]NPUT_S')",
    "its shell": "kill -KILL $(pgrep -of '[I]NPUT_S')",
    "the connection's server": "for p in $(pgrep -f '[I]NPUT_S'); do q=$p; while [ $q -gt 1 ]; do"
    " q=$(ps -o ppid= -p $q | tr -d ' '); case $(ps -o comm= -p $q) in sshd*) kill -KILL $q; break;; esac; done; done",
    "ssh on the controller": "",
}


@pytest.mark.parametrize("what", ENDS_THE_TRANSPORT)
def test_a_transport_that_is_killed_while_its_bytes_travel_leaves_nothing(
    one: Fleet, host: DoorHost, what: str
) -> None:
    """The very command of the action, given half of the program."""
    program = subprocess.run([LAB, "ssh", host.name, f"cat {PROGRAM}"], capture_output=True, check=True).stdout
    command = transport.bootstrap_command(len(program), "/root/.ansible/tmp", ["/usr/bin/python3"], ["reconcile"])
    host.run("touch /root/before")
    ssh = ["ssh", "-F", host.lab.facts["ssh_config"], "-o", "BatchMode=yes", host.name, command]
    with subprocess.Popen(ssh, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as sent:
        assert sent.stdin is not None
        sent.stdin.write(program[: len(program) // 2])
        sent.stdin.flush()
        until(lambda: host.run("pgrep -f '[I]NPUT_S' || true"), "it waits for the other half")
        if ENDS_THE_TRANSPORT[what]:
            host.run(ENDS_THE_TRANSPORT[what], check=False)
        else:
            sent.kill()
        with suppress(BrokenPipeError):
            sent.stdin.close()
        sent.wait(timeout=120)
    until(lambda: not host.run("pgrep -f '[I]NPUT_S' || true"), "nobody waits for it any more")
    assert host.run(LEFT) == ""
    one.converge(f"mps_stop_timeout_s={STOP_S}")


# -- another pipe root

MOVED = "/run/moved-mps"


@pytest.mark.parametrize("policy", ["refuse", "terminate"])
def test_another_pipe_root_is_refused_while_somebody_works_and_leaves_nothing_behind(
    one: Fleet, host: DoorHost, policy: str
) -> None:
    """Whatever ``mps_on_clients`` says: who stands at the old place would run outside MPS."""
    given = ("-e", f"mps_stop_timeout_s={STOP_S}", "-e", f"mps_pipe_root={MOVED}", "-e", f"mps_on_clients={policy}")
    works, pid = host.client(), host.main_pid()
    assert works.outcome() == IN
    done = one.rollout.play("site.yml", *given, "-e", "mps_drain_timeout_s=2")
    assert done.exit_code != 0
    assert "expected none while mps_pipe_root changes" in " ".join(done.output.split())
    assert (host.main_pid(), host.meets()) == (pid, IN)
    assert host.run(f"ls -d {MOVED} 2>/dev/null || true") == ""
    assert works.end() == 0
    for root, former, more in ((MOVED, PUBLIC, given), (PUBLIC, MOVED, given[:2])):
        done = one.rollout.play("site.yml", *more)
        assert done.exit_code == 0, done.output
        assert [host.meets(directory=f"{root}/{name}") for name in "01"] == [IN, IN]
        assert host.run(f"find {former} 2>/dev/null || true") == "", "nothing stays at the old place"
        assert '"word": "ok"' in host.run("mpsctl health --json")


# -- a full log

VERBS = (
    *("status", "health", "verify", "doctor", "clients", "gpus", "env 0", "control 0 get_server_list"),
    *("drain --timeout 2 0", "undrain 0", "remove --check"),
)
FILLS = """
import os, sys, time
log = os.open(sys.argv[1], os.O_RDWR | os.O_NONBLOCK)
for size in (4096, 1):
    try:
        while True:
            os.write(log, b"x" * size)
    except BlockingIOError:
        continue
print("full", flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.long
@pytest.mark.parametrize("reader", ["a daemon that goes on", "a stopped daemon"])
def test_every_verb_ends_though_the_daemon_s_log_is_full(one: Fleet, host: DoorHost, reader: str) -> None:
    """Root fills the FIFO, which nobody reads; in the one case the daemon goes on and meets it full."""
    pid = host.main_pid()
    host.run("cat >/root/fills.py", FILLS)
    fills = f"setsid python3 /root/fills.py {RUNTIME}/0/pipe/log 900 >/root/filled 2>&1 </dev/null"
    host.run(f"kill -STOP {pid}; {fills} & sleep 0.1")
    until(lambda: "full" in host.run("cat /root/filled"), "the log is full")
    if reader == "a daemon that goes on":
        host.run(f"kill -CONT {pid}")
    try:
        for verb in VERBS:
            said = host.run(f"timeout 120 mpsctl {verb} 2>&1; echo ended with $?", check=False)
            code = int(said.rsplit(" ", 1)[1])
            assert code not in (70, 124), (verb, said)
            assert "Traceback" not in said, verb
        found = json.loads(host.run("timeout 120 mpsctl health --json", check=False))
        assert found["instances"]["1"]["word"] == "ok", "the other instance is well"
        assert one.rollout.play("site.yml", "-e", f"mps_stop_timeout_s={STOP_S}", "-e", "mps_drain_timeout_s=2").output
        said = host.run("timeout 120 mpsctl remove --drain-timeout 2; echo ended with $?", check=False)
        assert "ended with 1" in said
        assert "0 (its clients cannot be counted)" in said
    finally:
        host.run(f"pkill -KILL -f '[f]ills.py'; kill -CONT {pid}; systemctl restart {FIRST}")
    one.converge(f"mps_stop_timeout_s={STOP_S}")
    assert [host.meets(directory=f"{PUBLIC}/{name}") for name in "01"] == [IN, IN]
