"""What the tests of the field reports stand on: a host to ask about, and readers of what people bring."""

from __future__ import annotations

import json
from typing import Any, Callable

from consulting import SERVER, hold, names
from fakes import FakeDaemon, Host
from mpsctl.causes import containers, log, memory, symptoms, units
from mpsctl.causes.diagnosis import Diagnosis, in_order
from mpsctl.model.costs import Costs
from mpsctl.model.instance import Instance

T = Callable[..., None]
COSTS = Costs(context_mib=500, server_mib=30, reserved_mib=0, least_limit_mib=501, origin="a measurement")
CONTROL = "/usr/bin/nvidia-cuda-mps-control"


def report(id_: str) -> Callable[[T], T]:
    """Marks the test of a report; the test of the table finds the marks in the files."""
    assert id_
    return lambda test: test


def begin(host: Host, **values: object) -> FakeDaemon:
    """Instance 0, with a server of root."""
    host.places.root.chmod(0o755)
    values.setdefault("DeviceMemoryLimit", "4G")
    host.desired("0", **values)
    host.systemd.unit("mps-control@0.service").enabled = True
    daemon = host.start()
    daemon.start_server(host.process("nvidia-cuda-mps-server", "nvidia-cuda-mps-server", {}, 0, SERVER))
    host.processes[SERVER].parent = daemon.pid
    return daemon


def join(host: Host, daemon: FakeDaemon) -> int:
    """One more client of it; its pid."""
    pid = host.process("python3", "python3 serve.py", {"CUDA_MPS_PIPE_DIRECTORY": f"{host.pipe_root}/0"}, 1000)
    daemon.connect(SERVER, pid)
    hold(host, pid, 600)
    return pid


def on_host(host: Host, **question: Any) -> set[str]:
    """What `mpsctl doctor` finds."""
    return set(names(host, **question))


def named(found: list[Diagnosis]) -> list[str]:
    return [one.name for one in in_order(found)]


def in_log(*texts: str, who: str = "Control") -> list[str]:
    return named(log.diagnose_log([f"[2026-01-01 10:00:00.100 {who} {73:5}] {text}" for text in texts]))


def in_text(text: str) -> list[str]:
    return named([*memory.from_text(text), *symptoms.read_error(text).diagnoses()])


def in_unit(*lines: str) -> list[str]:
    return named(units.lint("\n".join(lines)))


def in_service(service: dict[str, Any], driver: str = "535.161.08") -> list[str]:
    (container,) = containers.read(json.dumps({"services": {"a": {"gpus": "all", **service}}}))
    return named(containers.lint(container, [Instance("0", ("0",), "/run/nvidia-mps/0")], driver))
