"""Hosts with container engines, and clients in containers.

The engines, NVIDIA's control daemon, systemd and the front door are real. Simulated, and named so, are the GPUs, the
MPS server, the client in the image, and what NVIDIA's container toolkit brings: its CDI specification and its hook,
which hand over nothing.
"""

from __future__ import annotations

import json
import re
import shlex
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Callable, Iterator, Mapping, Optional, Sequence

from .conftest import PROJECT, LabHost, hosts
from .front_door import until
from .rollout import Rollout

EXAMPLES = PROJECT / "docs/clients/examples"
IMAGE = "localhost/client:lab"
OWNER = 1000
DOCKER, PODMAN = "docker", "podman"

_IMAGE = r"""
set -eu -f
umask 022
python=$(readlink -f /usr/bin/python3); library=usr/lib/${python##*/}
needed=$(ldd "$python" | grep -o '/[^ ]*' | sort -u)
without="--exclude=*/test --exclude=*/__pycache__ --exclude=*/config-*"
mkdir /root/image
tar --create --dereference $without -C / bin/busybox usr/bin/python3 "$library" usr/lib/mps-lab/simulated_client.py \
  $(for one in $needed; do echo "${one#/}"; done) | tar --extract -C /root/image
tar --create -C /root/image -f /root/client.tar .
rm -r /root/image
"""
"""What the lab's simulated client needs of the host's own root."""
_ENTRYPOINT = 'ENTRYPOINT ["/usr/bin/python3","-IS","/usr/lib/mps-lab/simulated_client.py"]'

_DAEMON = {
    # With its capability dockerd reaches the machine's network: it is to leave that alone.
    **dict.fromkeys(("iptables", "ip6tables", "ip-forward"), False),
    "bridge": "none",
    "storage-driver": "vfs",
}
_CONTAINERS = '[containers]\nkeyring=false\ncgroups="disabled"\nnetns="host"\n'
_STORAGE = '[storage]\ndriver="vfs"\ngraphroot="{graph}"\nrunroot="{run}"\n'
_HOOK = (
    "#!/bin/sh\n# SIMULATED (mps-fleet tests): the hook of NVIDIA's container toolkit. It hands over nothing.\nexit 0\n"
)


@dataclass(frozen=True)
class Host:
    """A converged host with an engine. Instance 0 serves root's clients, instance 1 those of the user 1000: a daemon
    for one user at a time."""

    lab: LabHost
    engine: str
    rollout: Rollout

    def run(self, command: str, stdin: str = "", check: bool = True) -> str:
        return self.lab.run(command, stdin.encode(), check)

    def engine_run(self, name: str, options: str, command: str = "--hold forever") -> None:
        """Begin a container that stays; its engine brings it back where it can."""
        net = "--network none" if self.engine == DOCKER else ""
        self.run(
            f"{self.engine} run -d --name {name} {net} --restart always --stop-timeout 1 {options} {IMAGE} {command}"
        )

    def write(self, path: str, text: str) -> None:
        self.run(f"mkdir -p {shlex.quote(path.rpartition('/')[0])} && cat >{shlex.quote(path)}", text)

    def pid(self, name: str) -> int:
        """The process of a container as the host sees it, 0 where none runs."""
        said = self.run(f"{self.engine} inspect --format '{{{{.State.Pid}}}}' {name}", check=False).strip()
        return int(said) if said.isdigit() else 0

    def newcomers(self, instance: str) -> set[tuple[int, int]]:
        """The clients that an instance's control daemon took in, by its own log: each one's process and user."""
        log = self.run(f"journalctl -b -q -o cat -t mps-control@{instance}")
        return {(int(pid), int(uid)) for pid, uid in re.findall(r"NEW CLIENT (\d+) from user (\d+)", log)}

    def arrived(self, name: str, instance: str, uid: int, not_: int = 0) -> int:
        """Wait until a container's process, another one than ``not_``, is a client of the instance as the user, and of
        no other instance; the process."""

        def came() -> Optional[int]:
            pid = self.pid(name)
            return pid if pid and pid != not_ and (pid, uid) in self.newcomers(instance) else None

        pid: int = until(came, f"{name} is a client of {instance}", told=lambda: self.run(f"{self.engine} ps -a"))
        other = {"0": "1", "1": "0"}[instance]
        assert pid not in {one for one, _ in self.newcomers(other)}
        return pid

    def converge(self, *variables: str) -> str:
        words = [word for one in variables for word in ("-e", one)]
        done = self.rollout.play("site.yml", *words)
        assert done.exit_code == 0, done.output
        return done.output

    def mps(self, act: str) -> None:
        self.run(f"systemctl {act} mps-control@0 mps-control@1")


def example(name: str, changes: Callable[[str], str] = lambda text: text) -> str:
    """An example of the docs, as it stands there but for the image and what it is called with."""
    text = (EXAMPLES / name).read_text()
    found = text.replace("registry.example/api:1", IMAGE)
    assert found != text
    return changes(found)


def _nvidia(host: LabHost) -> None:
    """The stand-in for what NVIDIA's container toolkit puts on a host."""
    gpus = json.loads(host.run("mpsctl gpus --json"))["gpus"]
    lines = ["# SIMULATED (mps-fleet tests): what nvidia-ctk writes.", 'cdiVersion: "0.5.0"', "kind: nvidia.com/gpu"]
    lines.append("devices:")
    for gpu in gpus:
        for name in (gpu["index"], gpu["uuid"]):
            lines.append(f'  - {{name: "{name}", containerEdits: {{env: ["NVIDIA_SIMULATED={gpu["index"]}"]}}}}')
    host.run("cat >/etc/cdi/nvidia.yaml", "\n".join(lines).encode())
    hook = "/usr/bin/nvidia-container-runtime-hook"
    host.run(f"cat >{hook} && chmod 755 {hook}", _HOOK.encode())


def _docker(host: LabHost, with_cdi: bool) -> None:
    daemon = {**_DAEMON, **({"features": {"cdi": True}} if with_cdi else {})}
    host.run("mkdir -p /etc/docker && cat >/etc/docker/daemon.json", json.dumps(daemon).encode())
    host.run("systemctl enable -q docker containerd; systemctl start docker")
    host.run(f"docker import --change '{_ENTRYPOINT}' /root/client.tar {IMAGE}")


def _podman(host: LabHost) -> None:
    storage = _STORAGE.format(graph="/var/lib/containers/storage", run="/run/containers/storage")
    for name, text in (("containers.conf", _CONTAINERS), ("storage.conf", storage)):
        host.run(f"mkdir -p /etc/containers && cat >/etc/containers/{name}", text.encode())
    host.run(f"podman import -q --change '{_ENTRYPOINT}' /root/client.tar {IMAGE}")


def rootless(host: Host) -> str:
    """Make the user 1000, with an image of his own; what runs a command of his podman."""
    home = "/home/owner"
    host.run(f"useradd -m -u {OWNER} -s /bin/sh owner; cp /root/client.tar {home}; mkdir -m 0700 /run/owner")
    storage = _STORAGE.format(graph=f"{home}/storage", run="/run/owner/containers")
    host.write(f"{home}/.config/containers/storage.conf", storage)
    host.run(f"chown -R owner: {home} /run/owner")
    call = "cd /; env -i HOME=/home/owner PATH=$PATH XDG_RUNTIME_DIR=/run/owner"
    call = f"{call} setpriv --reuid {OWNER} --regid {OWNER} --init-groups podman"
    host.run(f"{call} import -q --change '{_ENTRYPOINT}' {home}/client.tar {IMAGE}")
    return call


@contextmanager
def host(prefix: str, engine: str, release: str) -> Iterator[Host]:
    """A host with an engine, converged, with the image and the stand-ins."""
    options = ("--hosts", "1", "--gpus", "2", "--release", release, "--daemon", "550", "--standin-server")
    with hosts(prefix, *options, "--packages", engine) as (lab,):
        found = Host(lab, engine, Rollout(prefix, [lab]))
        found.converge()
        found.run(_IMAGE)
        _nvidia(lab)
        if engine == DOCKER:
            _docker(lab, with_cdi=release != "bookworm")
        else:
            _podman(lab)
        yield found


Form = tuple[str, str, int]
"""A container, with the instance and the user that it is to arrive at and as."""


def all_arrived(host: Host, forms: Sequence[Form], not_: Mapping[str, int] = MappingProxyType({})) -> dict[str, int]:
    """Wait for each to arrive, as another process than ``not_``; the processes."""
    return {name: host.arrived(name, instance, uid, not_.get(name, 0)) for name, instance, uid in forms}


def stop_and_start(host: Host, forms: Sequence[Form]) -> None:
    """MPS is stopped long enough for each client to end and to be refused several times, and started."""
    before = all_arrived(host, forms)
    host.mps("stop")
    for instance in {instance for _, instance, _ in forms}:
        until(partial(_refused, host, instance, 3), f"clients of {instance} are refused")
    host.mps("start")
    all_arrived(host, forms, before)


def _refused(host: Host, instance: str, times: int) -> bool:
    """Whether an instance's front door has refused clients so many times."""
    log = host.run(f"journalctl -b -q -o cat -t mps-front-door@{instance} MPS_EVENT=refused")
    return len(log.splitlines()) >= times


def a_converge_changes_nothing(host: Host, forms: Sequence[Form]) -> None:
    before = all_arrived(host, forms)
    assert "changed=1" not in host.converge()
    assert {name: host.pid(name) for name, _, _ in forms} == before


def reboot(host: Host) -> None:
    boot = host.run("cat /proc/sys/kernel/random/boot_id")
    host.run("systemctl reboot", check=False)

    def is_back() -> bool:
        said = host.run("cat /proc/sys/kernel/random/boot_id", check=False)
        return said != boot and len(said.split()) == 1

    until(is_back, "the host is back")


def taken_off_before_its_end(host: Host, unit: str, name: str, instance: str, uid: int) -> None:
    """A stop has the daemon take the unit's client off, and this before the client's process gets a signal."""
    pid = host.arrived(name, instance, uid)
    host.run(f"systemctl stop {unit}")
    log = host.run(f"journalctl -b -q -o cat -t mps-control@{instance}")
    assert re.search(rf"terminate_client \d+ {pid}\b", log), log
    said = host.run(f"journalctl -b -q -o json MPS_EVENT=end-client MPS_INSTANCE={instance}").splitlines()
    assert f"client {pid} (" in str(json.loads(said[-1])["MESSAGE"]), said[-1]
    ended_with = host.run(f"systemctl show --value -p ExecMainStatus {unit}").strip()
    assert ended_with == "7", "it lost its server and ended by itself, no signal ended it"
    host.run(f"systemctl start {unit}")
    host.arrived(name, instance, uid, not_=pid)
