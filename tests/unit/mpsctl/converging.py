"""A host that is converged as the role asks for it: what the tests of runs share."""

from __future__ import annotations

from typing import Any, Optional

from fakes import FakeDaemon, Host
from mpsctl.converge import reconcile
from mpsctl.converge.answer import Answer
from mpsctl.converge.request import Request

UNIT_TEXT = "# Managed by mps-fleet\n[Service]\nExecStart=@NVIDIA_CUDA_MPS_CONTROL@ -f\n"
TIMER = "mps-health.timer"
TIMER_TEXT = "# Managed by mps-fleet\n[Timer]\nOnActiveSec=60\n"


class Fleet:
    """A request as the role makes it, for one host."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.unit = host.places.units / "mps-control@.service"
        self.program = host.places.root / "sent-by-ansible"
        self.program.write_bytes(b"the program")
        self.unit_text = UNIT_TEXT
        self.timer: Optional[str] = None
        """the text of a timer, where one is desired"""
        self.more: dict[str, Any] = {}
        """further keys of the request"""

    def request(self, confs: dict[str, str], per_gpu: Optional[str] = None) -> Request:
        files = [{"path": str(self.unit), "content": self.unit_text, "mode": "0644"}]
        if self.timer is not None:
            path = self.host.places.units / TIMER
            files.append({"path": str(path), "content": self.timer, "mode": "0644"})
        return Request.from_json(
            {
                "format": 2,
                "files": files,
                "units": [] if self.timer is None else [TIMER],
                "instances": [{"name": name, "conf": conf} for name, conf in confs.items()],
                "instance_per_gpu": per_gpu,
                **self.more,
            }
        )

    def run(self, check: bool, confs: dict[str, str], per_gpu: Optional[str] = None) -> Answer:
        """Instances by name: ``_0`` stands for 0, which is no name for an argument."""
        named = {name.lstrip("_"): conf for name, conf in confs.items()}
        return reconcile.reconcile(self.host.world, self.request(named, per_gpu), check, self.program)

    def converge(self, **confs: str) -> Answer:
        return self.run(False, confs)

    def check(self, **confs: str) -> Answer:
        return self.run(True, confs)


def conf(fleet: Fleet, name: str = "0", **values: object) -> str:
    desired = {"DeviceMemoryLimit": "4G", "ComputeMode": "exclusive_process", **values}
    return fleet.host.conf(name, desired)


def as_desired(answer: Answer, name: str) -> bool:
    """Whether no check of an instance is amiss, by what was read back."""
    return all(check["level"] in ("ok", "unknown") for check in answer.instances[name]["checks"])


def found(answer: Answer, name: str, check: str) -> dict[str, Any]:
    """A check of an instance by its id."""
    return next(one for one in answer.instances[name]["checks"] if one["name"] == check)


def gpu_of(answer: Answer, name: str) -> dict[str, Any]:
    """The one GPU that an instance has."""
    (device,) = answer.instances[name]["facts"]["devices"]
    gpu: dict[str, Any] = device["gpu"]
    return gpu


TIMEOUT_S = 60
POLICIES = ["refuse", "wait", "terminate"]


def at_work(fleet: Fleet, policy: str, clients: int = 1) -> tuple[FakeDaemon, list[int]]:
    """Instance a serves GPU 0 with clients, under a policy."""
    fleet.converge(a=conf(fleet, "a", GPUs="0"))
    fleet.more = {"on_clients": policy, "drain_timeout_s": TIMEOUT_S}
    this_run(fleet.host)
    fleet.host.systemd.acts.clear()
    daemon = fleet.host.running("a")
    pids = [fleet.host.client() for _ in range(clients)]
    daemon.start_server(9001, clients=pids)
    return daemon, pids


def this_run(host: Host) -> None:
    """This very process is one of the host's: a mark of its own holds while it lives."""
    import os

    host.process("mpsctl", "mpsctl reconcile", {}, pid=os.getpid())
