"""Services wired to an instance by mps_clients, on real hosts: a unit of the system, a template's, a user's own.

systemd, its managers of users, the control daemons and ssh are real. The GPUs, the MPS server and the clients are
simulated (lab/files/usr/lib/mps-lab). No logind runs on these hosts: what it does for a user who lingers, his runtime
directory and the start of his manager at boot, stands in a file of tmpfiles.d and a link.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator

import pytest

from .conftest import LabHost, hosts
from .front_door import until
from .rollout import Played, Rollout

ALICE, BOB = 1234, 1235
"""Bob has the services of the system, Alice the one of her own manager."""
API, JOB, NOTE = "api.service", "job@7.service", "note.service"
CLIENTS = (
    {"unit": API, "instance": "0"},
    {"unit": "job@.service", "gpu": 1, "memory_limit": "2G", "active_thread_percentage": 25},
    {"unit": NOTE, "instance": "1", "scope": "user"},
)
SERVE = """\
#!/bin/sh
# A main process that outlives its worker, a simulated client, and says in its own order what it meets.
trap 'echo "SIGTERM came"; exit 0' TERM
/usr/lib/mps-lab/simulated_client.py --hold forever &
wait $!
echo "the client ended with $?"
while :; do sleep 1000 & wait $!; done
"""
STUBBORN = """\
#!/bin/sh
trap '' TERM
while :; do
  /usr/lib/mps-lab/simulated_client.py --hold forever
  echo "a worker ended with $?"
done
"""
OFF = 7
"""How the simulated client ends where its server took it off."""
PREPARE = f"""
set -e
useradd -u {ALICE} -m alice
useradd -u {BOB} -m bob
cat >/usr/local/bin/serve
chmod 755 /usr/local/bin/serve
echo 'd /run/user/{ALICE} 0700 alice alice' >/etc/tmpfiles.d/alice.conf
systemd-tmpfiles --create /etc/tmpfiles.d/alice.conf
mkdir -p /etc/systemd/system/user@{ALICE}.service.d
printf '[Service]\\nEnvironment=XDG_RUNTIME_DIR=/run/user/{ALICE}\\n' \\
  >/etc/systemd/system/user@{ALICE}.service.d/lab.conf
ln -s /lib/systemd/system/user@.service /etc/systemd/system/multi-user.target.wants/user@{ALICE}.service
systemctl daemon-reload
systemctl start user@{ALICE}
"""
UNITS = f"""
set -e
for unit in {API} job@.service plain.service; do
  printf '[Service]\\nUser=bob\\nExecStart=/usr/local/bin/serve\\n[Install]\\nWantedBy=multi-user.target\\n' \\
    >/etc/systemd/system/$unit
done
mkdir -p /etc/systemd/user
printf '[Service]\\nExecStart=/usr/lib/mps-lab/simulated_client.py --hold forever\\n' >/etc/systemd/user/{NOTE}
printf 'Restart=always\\nRestartSec=1\\n' >>/etc/systemd/user/{NOTE}
printf '[Install]\\nWantedBy=default.target\\n' \\
  >>/etc/systemd/user/{NOTE}
systemctl daemon-reload
systemctl enable {API} {JOB}
"""
AS_ALICE = f"setpriv --reuid {ALICE} --regid {ALICE} --clear-groups env XDG_RUNTIME_DIR=/run/user/{ALICE}"


@dataclass(frozen=True)
class Wired:
    """A host with two instances, one for each GPU and for several users, and what is asked of it."""

    host: LabHost
    rollout: Rollout
    values: Path

    def run(self, command: str, check: bool = True) -> str:
        return self.host.run(command, check=check)

    def play(self, *clients: dict[str, Any], check: bool = False) -> Played:
        limits = {
            "mps_device_memory_limit": "4G",
            "mps_active_thread_percentage": 50,
            "mps_multi_user": True,
            "mps_stop_timeout_s": 3,
        }
        self.values.write_text(json.dumps({**limits, "mps_clients": list(clients)}))
        done = self.rollout.play("site.yml", "-e", f"@{self.values}", *(["--check", "--diff"] if check else []))
        assert done.exit_code == 0, done.output
        return done

    def told(self) -> dict[str, Any]:
        """What `mpsctl clients` has of each instance; its exit code is that of a daemon that is down, if one is."""
        told: dict[str, Any] = json.loads(self.run("mpsctl clients --json 2>/dev/null; true"))["instances"]
        return told

    def connected(self) -> set[tuple[str, str, int]]:
        """Who is a client, by the daemons' own lists and the kernel: the instance, the unit, the user."""
        found = set()
        for name, one in self.told().items():
            for client in one["clients"]:
                group = self.run(f"cat /proc/{client['pid']}/cgroup", check=False)
                unit = next((unit for unit in (API, JOB, NOTE) if f"/{unit}" in group), "")
                found.add((name, unit, client["uid"]))
        return found

    def all_there(self) -> bool:
        return self.connected() == {("0", API, BOB), ("1", JOB, BOB), ("1", NOTE, ALICE)}

    def arrive(self) -> None:
        until(self.all_there, "each is a client of its instance", told=self.connected)

    def said(self, unit: str) -> list[str]:
        """What the last start of a unit of the system said."""
        last = self.run(f"systemctl show --value -p InvocationID {unit}").strip()
        return self.run(f"journalctl -o cat _SYSTEMD_INVOCATION_ID={last}").splitlines()

    def drop_ins(self) -> str:
        return self.run(
            "find /etc/systemd/system /etc/systemd/user -name 'mps-fleet*.conf' | sort | xargs -r sha256sum"
        )


RELEASES = ("bookworm", pytest.param("trixie", marks=pytest.mark.long))


@pytest.fixture(scope="module", params=RELEASES)
def wired(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wired]:
    """The drop-ins are there before the units."""
    release = request.param
    prefix = f"wired-{release}"
    options = ("--hosts", "1", "--gpus", "2", "--release", release, "--daemon", "555", "--standin-server")
    with hosts(prefix, *options) as (host,):
        host.run(f"sh -c {shlex.quote(PREPARE)}", SERVE.encode())
        made = Wired(host, Rollout(prefix, [host]), tmp_path_factory.mktemp("values") / "values.json")
        made.play(*CLIENTS)
        host.run(f"sh -c {shlex.quote(UNITS)}")
        host.run(f"systemctl start {API} {JOB}; {AS_ALICE} systemctl --user enable --now {NOTE}")
        yield made


def test_each_arrives_at_its_instance_as_its_user(wired: Wired) -> None:
    wired.arrive()
    for name, one in wired.told().items():
        log = wired.run(f"journalctl -b -o cat -u mps-control@{name} | grep 'NEW CLIENT'")
        for client in one["clients"]:
            assert f"NEW CLIENT {client['pid']} " in log, "by the daemon's own log"
    environment = wired.run(f"tr '\\0' '\\n' </proc/$(systemctl show --value -p MainPID {JOB})/environ")
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2048M\n" in environment
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25\n" in environment


def test_a_stop_of_a_service_has_the_daemon_take_its_client_off_before_the_first_signal(wired: Wired) -> None:
    wired.arrive()
    wired.run(f"systemctl stop {API} {JOB}")
    for unit in (API, JOB):
        assert wired.said(unit)[-4:].count(f"the client ended with {OFF}") == 1
        lines = [line for line in wired.said(unit) if line in (f"the client ended with {OFF}", "SIGTERM came")]
        assert lines == [f"the client ended with {OFF}", "SIGTERM came"]
        assert wired.run(f"systemctl show --value -p Result {unit}").strip() == "success"
    assert wired.connected() == {("1", NOTE, ALICE)}, "the neighbour worked on"
    line = wired.run("journalctl -b -o cat MPS_EVENT=end-client")
    assert f"evict {API}" in line
    assert f"evict {JOB}" in line
    wired.run(f"systemctl start {API} {JOB}")
    wired.arrive()


def test_a_supervisor_that_ignores_sigterm_is_ended_whole_and_systemd_kills_nobody(wired: Wired) -> None:
    """It starts a client anew as soon as one was taken off."""
    wired.arrive()
    wired.play(*CLIENTS, {"unit": "stubborn.service", "instance": "0", "end_within_s": 6})
    wired.host.run("cat >/usr/local/bin/stubborn; chmod 755 /usr/local/bin/stubborn", STUBBORN.encode())
    wired.run(
        "printf '[Service]\\nUser=bob\\nExecStart=/usr/local/bin/stubborn\\n' >/run/systemd/system/stubborn.service"
    )
    wired.run("systemctl daemon-reload; systemctl start stubborn")
    until(lambda: len(wired.connected()) == 4, "it has a client", told=wired.connected)
    wired.run("systemctl stop stubborn")
    said = wired.run("journalctl -b -o cat UNIT=stubborn.service + _SYSTEMD_UNIT=stubborn.service")
    assert f"a worker ended with {OFF}" in said
    assert "timed out" not in said, "systemd had nobody to kill"
    assert wired.run("pgrep -f stubborn", check=False) == ""
    wired.play(*CLIENTS)
    wired.arrive()


def test_without_the_drop_in_the_signal_comes_first(wired: Wired) -> None:
    """So the trial before would notice."""
    wired.run("mkdir -p /run/systemd/system/plain.service.d")
    wired.run("printf '[Service]\\nEnvironmentFile=/etc/mps/0.env\\n' >/run/systemd/system/plain.service.d/env.conf")
    wired.run("systemctl daemon-reload; systemctl start plain")
    until(lambda: len(wired.connected()) == 4, "the plain one is a client", told=wired.connected)
    wired.run("systemctl stop plain")
    assert f"the client ended with {OFF}" not in wired.said("plain.service")
    wired.arrive()


def test_a_stop_and_a_start_of_mps(wired: Wired) -> None:
    wired.run("systemctl stop mps-control@0")
    assert wired.run(f"systemctl is-active {API}", check=False).strip() == "inactive"
    assert "lets no client in" in wired.run("mpsctl env 0")
    assert "not ready" in wired.run(f"{AS_ALICE} mpsctl ready 0", check=False)
    wired.run("systemctl start mps-control@0")
    wired.run(f"{AS_ALICE} mpsctl ready 0 --wait 120")
    wired.arrive()
    wired.run("systemctl restart mps-control@1")
    wired.arrive()  # job@7 as a part of MPS, Alice's by its own end and its Restart=


def test_a_crash_of_the_daemon(wired: Wired) -> None:
    before = wired.run(f"systemctl show --value -p MainPID {API}")
    wired.run("kill -9 $(systemctl show --value -p MainPID mps-control@0)")
    wired.arrive()
    until(lambda: wired.run(f"systemctl show --value -p MainPID {API}") != before, "it was restarted with its daemon")
    wired.arrive()


def test_a_drain_ends_no_service_and_one_that_starts_meanwhile_waits(wired: Wired) -> None:
    wired.run("mpsctl drain 0 --timeout 1", check=False)
    assert wired.run(f"systemctl is-active {API}").strip() == "active"
    wired.run(f"systemctl restart {API}")
    until(lambda: f"({API}" in wired.run("mpsctl status 0") or "waiting" in wired.run("mpsctl status 0"), "it waits")
    assert ("0", API, BOB) not in wired.connected()
    wired.run("mpsctl undrain 0")
    wired.arrive()


def test_a_converge_restarts_nobody_and_a_second_one_does_nothing(wired: Wired) -> None:
    pids = f"systemctl show --value -p MainPID {API} {JOB} user@{ALICE}"
    before, files = wired.run(pids), wired.drop_ins()
    changed = ({**CLIENTS[0], "active_thread_percentage": 10}, CLIENTS[1])
    checked = wired.play(*changed, check=True)
    assert "+Environment=CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=10" in checked.output
    assert wired.drop_ins() == files
    wired.play(*changed)
    assert wired.drop_ins() != files
    assert "nothing to do" in wired.play(*changed).output
    assert wired.run("systemctl show --value -p NeedDaemonReload api").strip() == "no"
    wired.play(*CLIENTS)
    assert wired.drop_ins() == files
    assert wired.run(pids) == before
    wired.arrive()


def test_a_reboot(wired: Wired) -> None:
    boot = wired.run("cat /proc/sys/kernel/random/boot_id").strip()
    is_up = f"[ $(cat /proc/sys/kernel/random/boot_id) != {boot} ] && systemctl is-active {JOB}"
    wired.run("systemctl reboot", check=False)
    until(lambda: wired.run(is_up, check=False).strip() == "active", "it is up again")
    wired.arrive()


def test_taken_off_again_with_others_drop_ins_left_alone(wired: Wired) -> None:
    wired.run(f"printf '[Service]\\nNice=5\\n' >/etc/systemd/system/{API}.d/theirs.conf")
    wired.play()
    assert wired.drop_ins() == ""
    assert wired.run(f"ls /etc/systemd/system/{API}.d").split() == ["theirs.conf"]
    assert (
        wired.run("ls -d /etc/systemd/system/job@.service.d /etc/systemd/user/*.d", check=False).count("No such") == 2
    )
    assert "nothing to do" in wired.play().output
    wired.arrive()  # nobody was restarted
    wired.play(*CLIENTS)
    done = wired.rollout.play("playbooks/remove.yml", "-e", "mps_on_clients=terminate", "-e", "mps_drain_timeout_s=1")
    assert done.exit_code == 0, done.output
    assert wired.drop_ins() == ""
    assert wired.run(f"ls /etc/systemd/system/{API}.d").split() == ["theirs.conf"]
    wired.run("[ ! -e /etc/mps ]")
