"""What the tests of faults share: planting one, looking at the neighbours, and leaving the host as it was."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

import pytest

PROJECT = Path(__file__).resolve().parents[3]

_spec = importlib.util.spec_from_file_location("shared_with_other_scenarios", PROJECT / "molecule/tests/conftest.py")
assert _spec is not None
assert _spec.loader is not None
_shared = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_shared)
pytest_xdist_make_scheduler = _shared.pytest_xdist_make_scheduler
pytest_collection_finish = _shared.pytest_collection_finish
status, ask, eventually, as_desired = _shared.status, _shared.ask, _shared.eventually, _shared.as_desired

Status = Callable[[], dict[str, Any]]
Lab = Callable[..., None]


def _lab(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROJECT / "lab/lab", *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def name(host: Any) -> str:
    return str(host.backend.host)


@pytest.fixture
def gpu(name: str) -> Lab:
    """Does something to a simulated GPU of the host: `lab/lab gpu --help`."""

    def do(act: str, *index: int) -> None:
        done = _lab("gpu", name, act, *map(str, index))
        assert done.returncode == 0, done.stderr

    return do


@pytest.fixture
def driver(name: str) -> Lab:
    """Says how the host's simulated driver behaves: `lab/lab driver --help`."""

    def do(*how: str) -> None:
        done = _lab("driver", name, *how)
        assert done.returncode == 0, done.stderr

    return do


@pytest.fixture
def pid(host: Any) -> Callable[[str], int]:
    """The main process of an instance's unit, 0 where there is none."""
    return lambda instance: int(host.run(f"systemctl show -p MainPID --value mps-control@{instance}").stdout)


@pytest.fixture
def daemons(host: Any) -> Callable[[], set[int]]:
    """Every control daemon of the host, whoever started it."""

    def find() -> set[int]:
        # A front-end is the same program, without an argument.
        seen = (
            "cd /proc; for p in [0-9]*; do"
            ' [ "$(readlink $p/exe)" = /usr/bin/nvidia-cuda-mps-control ] || continue;'
            ' [ $(tr -dc "\\0" <$p/cmdline | wc -c) -lt 2 ] || echo $p; done'
        )
        return {int(word) for word in host.run(seen).stdout.split()}

    return find


@pytest.fixture
def levels(host: Any) -> Callable[..., dict[str, str]]:
    """The level of each check of one verb by its id, of an instance or of the ``host``."""

    def read(verb: str, of: str) -> dict[str, str]:
        found = _shared.judged(host, verb)
        group = found["host"] if of == "host" else found["instances"][of]
        return {one["name"]: one["level"] for one in group["checks"]}

    return read


@pytest.fixture
def told(host: Any) -> Callable[..., None]:
    """status, verify and health all say that an instance, or the ``host``, is critical, and by the named checks.

    Each ends as a failure. The instances ``well`` are critical in none of them.
    """

    def look(of: str, *ids: str, well: Sequence[str] = ()) -> None:
        for verb in ("status", "verify", "health"):
            found = _shared.judged(host, verb)
            group = found["host"] if of == "host" else found["instances"][of]
            assert group["word"] == "critical", (verb, group["word"])
            assert found["exit_code"] == (2 if verb == "verify" else 1), verb
            named = {one["name"] for one in group["checks"] if one["level"] == "critical"}
            assert set(ids) <= named, (verb, named)
            assert not [_shared.critical(found, one) for one in well if _shared.critical(found, one)], verb

    return look


@pytest.fixture
def untouched(
    pid: Callable[[str], int], as_desired: Callable[..., bool]
) -> Callable[..., AbstractContextManager[None]]:
    """Whatever happens inside: these instances keep their process and stay in the desired state."""

    @contextmanager
    def watch(*instances: str) -> Iterator[None]:
        before = {instance: pid(instance) for instance in instances}
        assert 0 not in before.values()
        yield
        assert {instance: pid(instance) for instance in instances} == before
        assert as_desired(*instances)

    return watch


@pytest.fixture
def play(name: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`site.yml` for this host, as an operator runs it."""

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = ["ansible-playbook", "-i", "inventories/lab", "site.yml", "-l", name]
        return subprocess.run(
            [*command, "-e", f"@{PROJECT}/molecule/faults/vars/bounds.yml", *options],
            cwd=PROJECT,
            env={**os.environ, "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.fixture
def reboot(host: Any, name: str, eventually: Callable[..., None]) -> Callable[[], None]:
    """Reboot the host, and wait until its boot is over."""

    def run() -> None:
        read = "cat /proc/sys/kernel/random/boot_id"
        before = host.run(read).stdout
        _lab("ssh", name, "systemctl reboot")

        def is_up() -> bool:
            there = _lab("ssh", name, read)
            return there.returncode == 0 and there.stdout != before

        def is_booted() -> bool:
            return _lab("ssh", name, "systemctl is-system-running").stdout.strip() in ("running", "degraded")

        eventually("another boot", is_up)
        eventually("the boot is over", is_booted)

    return run


@pytest.fixture(autouse=True)
def left_as_it_was(
    host: Any, name: str, eventually: Callable[..., None], as_desired: Callable[..., bool]
) -> Iterator[None]:
    """Each test begins on a host that is in the desired state, and is not over before it is so again."""
    eventually("in the desired state before", as_desired)
    yield
    _lab("driver", name, "--well")
    _lab("driver", name, "--delay=0")
    eventually("in the desired state afterwards", as_desired)
    assert not _shared.critical(_shared.judged(host, "health"))
