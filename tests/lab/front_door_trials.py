"""What is tried at the front doors of lab hosts, a tenth of it in tests/lab and the whole of it in tests/soak."""

from __future__ import annotations

from collections import Counter
from typing import Any

from .front_door import (
    HANGS,
    IN,
    LONG_S,
    NOBODY,
    OUTSIDE,
    PUBLIC,
    REFUSED,
    RUNTIME,
    SOMEBODY,
    STOPPED,
    DoorHost,
    until,
)

BINARY = "/usr/bin/nvidia-cuda-mps-control"
UNIT, SERVICE = "mps-control@0.service", "mps-front-door@0.service"


def comes_in(host: DoorHost, **where: Any) -> None:
    assert host.meets(**where) == IN, f"{host.name}: {where}"


def is_refused(host: DoorHost, reason: str) -> None:
    """At once, and the journal says why."""
    assert host.meets() == REFUSED, f"{host.name}: {reason}"
    until(lambda: host.reasons()[-1:] == [reason], f"{host.name}: the journal says {reason}", 10)


# -- every state of the table


def every_state(host: DoorHost) -> None:
    """What the manual's table says that a client meets, state by state."""
    host.open()
    comes_in(host)
    for begin in (f"kill -KILL {host.main_pid()}", f"systemctl restart --no-block {UNIT}"):
        host.run(begin)
        comes_in(host)
        host.open()
    host.run(f"systemctl reload --no-block {UNIT}")
    comes_in(host)
    drained(host)
    not_running(host)
    skipped(host)
    does_not_understand(host)


def drained(host: DoorHost) -> None:
    works = host.client()
    assert works.outcome() == IN
    host.run("mpsctl drain --timeout 1 0", check=False)
    waits = host.client()
    assert waits.waits()
    assert "1 client waiting" in host.run("mpsctl status 0", check=False)
    host.run("mpsctl undrain 0")
    assert waits.outcome() == IN
    host.run("mpsctl drain --refuse --timeout 1 0", check=False)
    is_refused(host, "drained")
    host.run("mpsctl undrain 0")
    comes_in(host)
    assert (works.end(), waits.end()) == (0, 0), "a drain ended a client that worked"


def not_running(host: DoorHost) -> None:
    host.run(f"systemctl stop {UNIT}")
    is_refused(host, "stopped")
    host.run(f"systemctl disable {UNIT}")
    is_refused(host, "disabled")
    host.run(f"systemctl mask --runtime {UNIT}")
    is_refused(host, "masked")
    host.run(f"systemctl unmask --runtime {UNIT}; systemctl enable {UNIT}; systemctl start --no-block {UNIT}")
    comes_in(host)  # also right after the start was asked for
    host.open()


def skipped(host: DoorHost) -> None:
    host.run(f"systemctl stop {UNIT}; mv {BINARY} {BINARY}.away; systemctl start {UNIT}")
    is_refused(host, "skipped")
    host.run(f"mv {BINARY}.away {BINARY}")
    host.open()
    comes_in(host)


def does_not_understand(host: DoorHost) -> None:
    """NVIDIA's daemon with another greeting: one word of the program is replaced."""
    host.run(
        f"cp -p {BINARY} {BINARY}.real && sed s/OUTBHELL/OUTBHOLA/ {BINARY}.real >{BINARY}.other"
        f" && chmod 755 {BINARY}.other && mv {BINARY}.other {BINARY} && systemctl restart {UNIT}",
        check=False,
    )
    is_refused(host, "unknown-greeting")
    assert "CRITICAL front-door" in host.run("mpsctl verify 0", check=False)
    host.run(f"mv {BINARY}.real {BINARY} && systemctl restart {UNIT}")
    host.open()
    comes_in(host)


# -- storms


def storm(host: DoorHost, kills: int, seed: int) -> Counter[str]:
    """Kills of the daemon and as many of the door's service under 8 clients; what the clients met."""
    host.open()
    found = host.storm("--daemon", str(kills), "--service", str(kills), "--seed", str(seed))
    assert found["killed"] == {"daemon": kills, "service": kills}, host.name
    host.open()
    comes_in(host)
    return Counter(found["met"])


def outside(met: Counter[str]) -> int:
    """The clients that ran outside MPS."""
    return sum(count for outcome, count in met.items() if outcome.startswith(OUTSIDE))


def judge_storm(met: Counter[str]) -> None:
    """Only who was accepted and not yet greeted when the service was killed is outside, and that is one at most."""
    between = met[f"{OUTSIDE} after connect"]
    assert outside(met) == between <= 1, met
    assert not any(outcome.startswith(HANGS) for outcome in met), met
    assert met[IN] > 0, met


# -- the door's service is killed


def killed_after_each_step(host: DoorHost) -> None:
    """Wherever a client stands when the service is killed: the next one comes in to the same daemon."""
    host.open()
    comes_in(host)
    daemon = host.main_pid()
    for connection in ("1", "2"):
        for stage in ("connect", "greeting", "first", "descriptor", "last"):
            stands = host.client("--stop-at", stage, "--at-connection", connection)
            assert stands.outcome() == STOPPED
            killed(host)
            comes_in(host)
            stands.drop()
    host.run("mpsctl drain --timeout 1 0", check=False)
    waits = host.client()
    assert waits.waits()
    killed(host)
    assert waits.outcome() == REFUSED  # it was greeted
    later = host.client()
    assert later.waits()
    host.run("mpsctl undrain 0")
    assert later.outcome() == IN
    later.end()
    assert host.main_pid() == daemon


def killed_while_the_server_starts(host: DoorHost) -> None:
    host.order("start_delay_s=2")
    host.run(f"systemctl restart {UNIT}")
    waits = host.client()
    assert waits.waits(0.5)
    killed(host)
    assert waits.outcome() == REFUSED
    daemon = host.main_pid()
    comes_in(host)
    assert host.main_pid() == daemon
    host.order()


def killed_in_the_moment(host: DoorHost) -> float:
    """Killed between the client's credentials and the daemon's answer: a daemon that is well goes on, and one whose
    server jams on it is ended, without anybody's help. How long the next client waited for that, in seconds."""
    host.end_clients()  # a daemon with clients at work is not ended
    host.open()
    found = host.moment(then="")
    assert (found["met"], found["blocked"]) == (REFUSED, True)
    comes_in(host)
    assert host.main_pid() == found["daemon"]
    found = host.moment(then="jam=lost-client")
    assert (found["met"], found["blocked"]) == (REFUSED, True)
    after = host.client()
    assert after.outcome() == IN
    assert host.main_pid() != found["daemon"]
    said = after.said(0)
    host.order()
    after.end()
    return float(said["waited_s"]) if said else LONG_S


def killed(host: DoorHost) -> None:
    host.run(f"systemctl kill --signal KILL {SERVICE}")


# -- crowds


def silent_connections(host: DoorHost, count: int = 50) -> None:
    host.open()
    comes_in(host)
    with host.crowd(count) as there:
        assert there == count
        client = host.client()
        assert client.outcome() == IN
        said = client.said(0)
        assert said is not None
        # each of them may say nothing for 10 s
        assert said["waited_s"] < 5
        client.end()


def full_backlog(host: DoorHost) -> None:
    """While the service stands still, connections fill the socket's backlog; a client waits in connect."""
    host.open()
    comes_in(host)
    host.run(f"systemctl kill --signal STOP {SERVICE}")
    try:
        with host.crowd(15000, fill=True) as there:
            assert 4096 <= there < 15000
            waits = host.client(uid=NOBODY)
            assert waits.waits()
            host.run(f"systemctl kill --signal CONT {SERVICE}")
            assert waits.outcome() == IN
            waits.end()
    finally:
        host.run(f"systemctl kill --signal CONT {SERVICE}")


def one_user_leaves_room_for_another(host: DoorHost, count: int) -> None:
    host.open()
    comes_in(host)
    with host.crowd(count, uid=SOMEBODY) as there:
        assert there == count
        comes_in(host, uid=NOBODY)
        assert host.meets(uid=SOMEBODY) in (IN, REFUSED)


# -- who and from where


def namespaces(host: DoorHost) -> None:
    host.open()
    for through in (
        "unshare --pid --fork",
        "unshare --pid --fork --mount-proc",
        "unshare --user --map-root-user",
        "unshare --user --map-root-user --pid --fork --mount-proc",
        "unshare --net --ipc --uts --cgroup",
    ):
        comes_in(host, through=through)


def another_place(host: DoorHost) -> None:
    """The public directory, mounted somewhere else as containers have it, holds over a stop and a start of the unit."""
    host.open()
    host.run(f"mkdir -p /srv/mps && mount --bind -o ro {PUBLIC}/0 /srv/mps")
    comes_in(host, directory="/srv/mps")
    host.run(f"systemctl stop {UNIT}")
    assert host.meets(directory="/srv/mps") == REFUSED
    host.run(f"systemctl start {UNIT}")
    comes_in(host, directory="/srv/mps")
    killed(host)
    comes_in(host, directory="/srv/mps")
    host.run("umount /srv/mps")


def one_user_after_another(host: DoorHost) -> None:
    """One server serves one user: who came first is served first, and nobody overtakes those who wait."""
    host.open()
    first = host.client(uid=NOBODY)
    assert first.outcome() == IN
    second = host.client(uid=SOMEBODY)
    assert second.waits()
    third = host.client(uid=NOBODY)
    assert third.waits()
    first.end()
    assert second.outcome() == IN
    assert third.waits()
    second.end()
    assert third.outcome() == IN
    third.end()


def several_users_at_once(host: DoorHost) -> None:
    host.set("Instance", "MultiUser=yes")
    at_once = [host.client(uid=uid) for uid in (0, NOBODY, SOMEBODY)]
    assert [client.outcome() for client in at_once] == [IN] * 3
    assert [client.end() for client in at_once] == [0] * 3


def members_only(host: DoorHost) -> None:
    host.run("getent group 4321 || groupadd --gid 4321 mps-trial; id mps-trial || useradd -g mps-trial mps-trial")
    host.set("Instance", "Group=mps-trial")
    member = "setpriv --reuid mps-trial --regid mps-trial --init-groups"
    comes_in(host, through=member)
    comes_in(host)
    assert host.meets(uid=NOBODY) == REFUSED
    until(lambda: host.reasons()[-1:] == ["not-in-group"], "the journal says that it is no member")


def short_wait(host: DoorHost) -> None:
    host.set("Clients", "ClientWaitSec=2")
    host.run("mpsctl drain --timeout 1 0", check=False)
    waits = host.client()
    assert waits.waits(0.5)
    assert waits.outcome() == REFUSED
    until(lambda: host.reasons()[-1:] == ["waited"], "the journal says that it waited")
    host.set("Clients", "ClientWaitSec=60")


# -- what operators do while clients wait


def while_clients_wait(host: DoorHost) -> None:
    host.open()
    host.run("mpsctl drain --timeout 1 0", check=False)
    waits = host.client()
    assert waits.waits(0.5)
    for harmless in (
        "systemctl daemon-reload",
        "systemctl daemon-reexec",
        f"systemctl reload {UNIT}",
        f"systemctl restart {UNIT}",
        f"kill -KILL $(systemctl show --value -p MainPID {UNIT})",
        "mpsctl drain --timeout 1 0",
    ):
        host.run(harmless, check=False)
        assert waits.waits(0.5), harmless
    host.run(f"systemctl start {UNIT} && mpsctl undrain 0")
    assert waits.outcome() == IN
    waits.end()
    host.run("mpsctl drain --timeout 1 0", check=False)
    waits = host.client()
    assert waits.waits(0.5)
    host.run(f"systemctl stop {UNIT}")
    assert waits.outcome() == REFUSED
    host.run(f"systemctl start {UNIT}")
    host.open()


def isolated(host: DoorHost) -> None:
    """systemctl isolate stops the daemon; the door stands."""
    host.open()
    host.run("mpsctl drain --timeout 1 0", check=False)
    waits = host.client()
    assert waits.waits(0.5)
    host.run(
        "printf '%s\\n' '[Unit]' AllowIsolate=yes Requires=basic.target Wants=ssh.service Wants=dbus.service"
        " >/run/systemd/system/trial.target && systemctl daemon-reload && systemctl isolate trial.target"
    )
    assert waits.outcome() in (IN, REFUSED)
    until(lambda: host.main_pid() == 0, "the daemon is stopped")
    is_refused(host, "stopped")
    host.run("systemctl isolate multi-user.target")
    host.open()
    comes_in(host)


def removed(host: DoorHost) -> None:
    """Clients that wait are told; the place is empty after it."""
    host.open()
    host.run("mpsctl drain --timeout 1 0", check=False)
    waits = [host.client() for _ in range(3)]
    assert waits[0].waits()
    host.run("mpsctl remove")
    assert [client.outcome() for client in waits] == [REFUSED] * 3
    left = host.run(
        f"ls -A {PUBLIC} {RUNTIME} 2>&1; systemctl list-units --all --plain --no-legend 'mps-*'", check=False
    )
    assert "front-door" not in left, left


def rebooted(host: DoorHost) -> None:
    """Clients wait when the host goes down; whoever comes when it is up again waits for its daemon."""
    host.open()
    host.run("mpsctl drain --timeout 1 0", check=False)
    waits = host.client()
    assert waits.waits(0.5)
    began = "cut -d' ' -f22 /proc/1/stat"
    before = host.run(began).strip()
    host.run("systemctl reboot", check=False)
    host.disconnect()
    until(lambda: host.run(f"[ $({began}) != {before} ] && echo up", check=False).strip() == "up", "it is up again")
    client = host.client()
    assert client.outcome() == IN
    client.end()
