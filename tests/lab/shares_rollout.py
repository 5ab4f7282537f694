"""A rollout of shares by playbooks/limits.yml and site.yml over lab hosts whose GPUs have more and less memory.

The control daemons, systemd, ssh and the front door are real. The GPUs, the MPS server and the clients are simulated.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Iterator, Mapping

from .conftest import hosts
from .front_door import IN, SOMEBODY, Client, DoorHost, beside, until
from .rollout import Played, Rollout

SMALL = "t4"
LIMIT, FEW, FITS, MANY = "4G", 2, 3, 5
"""SMALL holds at most FITS clients of LIMIT, the other models hold MANY."""
_NOBODYS = 1
"""The share of each other user."""


@dataclass(frozen=True)
class Mixed:
    """Hosts of several GPU models; ``small`` are those that hold FITS clients, by name."""

    rollout: Rollout
    hosts: list[DoorHost]
    small: list[str]

    def play(self, playbook: str, clients: int) -> Played:
        """Give user SOMEBODY a share of so many clients."""
        variables = {
            "mps_device_memory_limit": LIMIT,
            "mps_over_expected": "wait",
            "mps_client_wait_s": 3600,
            "mps_shares": {"users": {SOMEBODY: clients}, "each_user": _NOBODYS},
        }
        return self.rollout.play(playbook, "-e", json.dumps(variables))

    def shares(self) -> dict[str, str]:
        """What the front door of each host was told, by host."""
        return dict(zip((host.name for host in self.hosts), beside(*(partial(_told, host) for host in self.hosts))))

    def daemons(self) -> list[int]:
        return beside(*(host.main_pid for host in self.hosts))


def _told(host: DoorHost) -> str:
    room = host.admission().get("room")
    return str(room and room["shares"])


def text(clients: int) -> str:
    return f"user:{SOMEBODY}={clients} each-user={_NOBODYS}"


@contextmanager
def fleet(prefix: str, models: Mapping[str, tuple[str, ...]]) -> Iterator[Mixed]:
    """One host for each control daemon that a GPU model is listed with, converged with a share of FEW."""
    with ExitStack() as stack:
        sockets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mps-")))
        booted = []
        for model, daemons in models.items():
            for number, daemon in enumerate(daemons):
                options = ("--gpus", "1", "--model", model, "--daemon", daemon, "--standin-server")
                booted += stack.enter_context(hosts(f"{prefix}-{model}-{number}", "--hosts", "1", *options))
        found = Mixed(
            Rollout(prefix, booted),
            [DoorHost(host, sockets) for host in booted],
            [host.name for host in booted if f"-{SMALL}-" in host.name],
        )
        for host in found.hosts:
            stack.callback(host.disconnect)
            stack.callback(host.end_clients)
        done = found.play("site.yml", FEW)
        assert done.exit_code == 0, done.output
        yield found


def prove(mixed: Mixed) -> None:
    """A share that the small GPUs cannot hold is refused by them alone, one that all can hold is taken by all, and
    nobody who is in is ended, by a smaller one either."""
    daemons, late = mixed.daemons(), beside(*(partial(_crowd, host) for host in mixed.hosts))
    assert set(mixed.shares().values()) == {text(FEW)}
    _refused_alone(mixed, mixed.play("playbooks/limits.yml", MANY), FEW)
    for host, (clients, waiting) in zip(mixed.hosts, late):
        if host.name in mixed.small:
            assert waiting.waits()
        else:
            assert waiting.outcome() == IN
        assert len(clients) == FEW

    done = mixed.play("playbooks/limits.yml", FITS)
    assert done.exit_code == 0, done.output
    assert set(mixed.shares().values()) == {text(FITS)}
    assert [waiting.outcome() for _, waiting in late] == [IN] * len(late)
    again = mixed.play("playbooks/limits.yml", FITS)
    assert again.exit_code == 0, again.output
    assert "changed=1" not in again.output

    _refused_alone(mixed, mixed.play("site.yml", MANY), FITS)
    done = mixed.play("playbooks/limits.yml", 1)
    assert done.exit_code == 0, done.output
    assert set(mixed.shares().values()) == {text(1)}
    more = beside(*(partial(host.client, uid=SOMEBODY) for host in mixed.hosts))
    assert all(beside(*(client.waits for client in more)))
    for clients, waiting in late:
        assert [client.end() for client in (*clients, waiting)] == [0] * (FEW + 1), "none was ended"
    assert [client.outcome() for client in more] == [IN] * len(more), "once all others have gone"
    assert mixed.daemons() == daemons


def _crowd(host: DoorHost) -> tuple[list[Client], Client]:
    clients = [host.client(uid=SOMEBODY) for _ in range(FEW)]
    assert [client.outcome() for client in clients] == [IN] * FEW
    waiting = host.client(uid=SOMEBODY)
    assert waiting.waits()
    return clients, waiting


def _refused_alone(mixed: Mixed, done: Played, before: int) -> None:
    """The small hosts refuse MANY, each by its name, and keep what they had; all others have it."""
    assert done.exit_code != 0, done.output
    said = " ".join(done.output.split())
    for host in mixed.hosts:
        refusal = f"{host.name}: mps_shares: found user:{SOMEBODY}={MANY}: {MANY} clients x 4096 MiB limit"
        assert (refusal in said) == (host.name in mixed.small), done.output
    assert f"at most {FITS} clients" in said
    expected = {host.name: text(before if host.name in mixed.small else MANY) for host in mixed.hosts}
    until(
        lambda: mixed.shares() == expected,
        "the others have it, and those that refuse have what they had",
        5.0,
    )
    kept = [host.run("grep ^Shares= /etc/mps/0.conf").strip() for host in mixed.hosts if host.name in mixed.small]
    assert kept == [f"Shares={text(before)}"] * len(mixed.small)
