"""A host that is looked at and judged: what the tests of judgements share."""

from __future__ import annotations

from typing import Any

from fakes import FakeDaemon, Host, uuid
from mpsctl.checks import report
from mpsctl.checks.judgement import EVERY_VERB, VERIFY
from mpsctl.checks.report import Report
from mpsctl.model.finding import CRITICAL, OK, WARNING, Check
from mpsctl.observe import host as look

UNIT = "mps-control@0.service"
SERVER = 9001


def serve(host: Host, daemon: FakeDaemon, clients: int = 1) -> list[int]:
    """A server of the daemon and its clients, as NVML and /proc show them."""
    host.process("nvidia-cuda-mps-server", "nvidia-cuda-mps-server", {}, pid=SERVER)
    host.processes[SERVER].parent = daemon.pid
    host.nvml.outside_mib.setdefault(uuid(0), {})[SERVER] = 66
    daemon.start_server(SERVER)
    return [connect(host, daemon) for _ in range(clients)]


def connect(host: Host, daemon: FakeDaemon, **environment: str) -> int:
    """One more client of that server; its pid."""
    pid = cuda(host, {"CUDA_MPS_PIPE_DIRECTORY": public(host), **environment})
    daemon.connect(SERVER, pid)
    assert host.nvml.held_mib is not None
    host.nvml.held_mib.setdefault(uuid(0), {})[pid] = 600
    return pid


def cuda(host: Host, environment: dict[str, str]) -> int:
    """A process of user 1000 that uses CUDA; its pid."""
    return host.process("python3", "python3 serve.py", environment, uid=1000)


def outsider(host: Host, device: str = uuid(0), **environment: str) -> int:
    """A CUDA process that is no MPS client."""
    pid = cuda(host, environment)
    host.nvml.outside_mib.setdefault(device, {})[pid] = 9000
    return pid


def public(host: Host) -> str:
    return str(host.pipe_root / "0")


def amiss(found: Report) -> dict[str, str]:
    """The checks that are not ok, by name, with their levels."""
    return {one.name: one.level for _, one in found.every if one.level != OK}


def judge(host: Host, *names: str, verb: str = VERIFY, **bounds: Any) -> Report:
    """What a verb makes of a look; whatever is amiss says what to do."""
    seen = look.look(host.world, names or None, isolated=verb == VERIFY, deep=verb == VERIFY, **bounds)
    found = report.report(seen, verb)
    for _, one in found.every:
        assert one.found
        assert "\n" not in one.found + one.expected + one.remedy
        if one.level in (CRITICAL, WARNING):
            assert one.remedy, one
    return found


def only(host: Host, name: str, level: str) -> Check:
    """The one check that is not ok. No verb says that all is well where it is critical."""
    found = judge(host)
    assert amiss(found) == {name: level}, [one for _, one in found.every if one.level != OK]
    for verb in EVERY_VERB:
        words = {one.name: one.level for _, one in judge(host, verb=verb).every}
        assert words.get(name, OK if level != CRITICAL else "not judged") in (level, OK), verb
        assert level != CRITICAL or words[name] == CRITICAL, verb
    return next(one for _, one in found.every if one.name == name)
