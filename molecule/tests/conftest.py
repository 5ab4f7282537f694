"""What the proofs share: the hosts are real, and there are as many as the lab booted."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from pathlib import Path
from typing import Any, Callable

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # pytest-xdist ships no types

PROJECT = Path(__file__).resolve().parents[2]
LIMIT_MIB = 4096


@functools.cache
def _lab_hosts() -> dict[str, dict[str, Any]]:
    """What the lab says of each of this run's hosts, by name."""
    done = subprocess.run([PROJECT / "lab/lab", "list", "--json"], capture_output=True, text=True, check=True)
    prefix = os.environ["MPS_LAB_PREFIX"]
    return {host["name"]: host for host in json.loads(done.stdout) if host["name"].startswith(f"{prefix}-")}


class _ByHost(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist ships no types
    """The tests of one host come one after the other, those of several beside each other."""

    def _split_scope(self, nodeid: str) -> str:
        return next((name for name in _lab_hosts() if f"[ansible://{name}" in nodeid), "")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _ByHost:
    return _ByHost(config, log)


def pytest_collection_finish(session: pytest.Session) -> None:
    """A run on no hosts, or on fewer than were booted, is a failure."""
    tried = {name for item in session.items if (name := _host_of(item))}
    booted = set(_lab_hosts())
    if not booted or not set(booted) <= tried:
        pytest.exit(f"the tests would run on {sorted(tried)}, expected every host of the lab: {sorted(booted)}", 3)


def _host_of(item: pytest.Item) -> str | None:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    host = parameters.get("_testinfra_host")
    return str(host.backend.host) if host else None


def judged(host: Any, verb: str) -> dict[str, Any]:
    """What status, verify or health answers as JSON."""
    found: dict[str, Any] = json.loads(host.run(f"timeout 100 mpsctl {verb} --json").stdout)
    return found


def critical(found: dict[str, Any], *instances: str) -> dict[str, str]:
    """What is critical by id, of the named instances, or of all and of the host.

    That a daemon has not lasted is told for a minute after it is well again, and left out here.
    """
    groups = [found["instances"][name] for name in instances] or [found["host"], *found["instances"].values()]
    checks = [one for group in groups for one in group["checks"]]
    return {one["name"]: one["found"] for one in checks if one["level"] == "critical" and one["name"] != "restarts"}


@pytest.fixture
def status(host: Any) -> Callable[[], dict[str, Any]]:
    """What `mpsctl status --json` shows of each instance of the host, by its name."""

    def read() -> dict[str, Any]:
        return {name: one["facts"] for name, one in judged(host, "status")["instances"].items()}

    return read


@pytest.fixture
def as_desired(host: Any) -> Callable[..., bool]:
    """Whether nothing is critical of the named instances, or of all and of the host."""
    return lambda *instances: not critical(judged(host, "status"), *instances)


@pytest.fixture
def ask(host: Any) -> Callable[[str, str], str]:
    """NVIDIA's own front-end, asked by root on the daemon's own directory.

    The getter that comes last always has an answer. Without it another front-end was being served, as while the
    health timer looks: then it is asked again.
    """
    import time

    def run(instance: str, command: str) -> str:
        pipe = f"CUDA_MPS_PIPE_DIRECTORY=/run/mps-fleet/{instance}/pipe"
        asked = f"printf '%s\\n' '{command}' get_default_active_thread_percentage"
        for _ in range(100):
            *own, last = host.run(f"{asked} | {pipe} nvidia-cuda-mps-control").stdout.splitlines() or [""]
            if last:
                return "\n".join(own).strip()
            time.sleep(0.2)
        pytest.fail(f"{host.backend.host}: the daemon of instance {instance} served nobody who asked `{command}`")

    return run


@pytest.fixture
def eventually() -> Callable[..., None]:
    """Wait until a condition holds; fail after far longer than it may take. No test depends on the time."""
    import time

    def wait(what: str, holds: Callable[[], bool], deadline_s: float = 60) -> None:
        end = time.monotonic() + deadline_s
        while not holds():
            assert time.monotonic() < end, f"not so after {deadline_s} s: {what}"
            time.sleep(0.1)

    return wait
