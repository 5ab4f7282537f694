"""The file of variables of an instance: always what its clients need, readable by everyone, gone with the instance."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from converging import Fleet, at_work, conf
from fakes import Host, h200, uuid
from mpsctl.converge import removal
from mpsctl.lifecycle import prepare


def text(host: Host, name: str = "0") -> str:
    return host.places.client_environment(name).read_text()


def variables(host: Host, name: str = "0") -> dict[str, str]:
    lines = [line for line in text(host, name).splitlines() if not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def needed(host: Host, name: str = "0", gpu: str = uuid(0)) -> dict[str, str]:
    return {"CUDA_MPS_PIPE_DIRECTORY": f"{host.pipe_root}/{name}", "CUDA_VISIBLE_DEVICES": gpu}


def test_a_run_writes_it_once_for_everyone_to_read(fleet: Fleet) -> None:
    fleet.converge(_0=conf(fleet))
    path = fleet.host.places.client_environment("0")
    assert variables(fleet.host) == needed(fleet.host)
    assert text(fleet.host).startswith("# Managed by mps-fleet")
    assert path.stat().st_mode & 0o777 == 0o644
    assert fleet.converge(_0=conf(fleet)).actions == []
    path.unlink()
    assert fleet.check(_0=conf(fleet)).actions == [f"write {path}"]
    assert not path.exists()
    path.write_text("# Managed by mps-fleet\nCUDA_VISIBLE_DEVICES=old\n")
    assert fleet.converge(_0=conf(fleet)).actions == [f"write {path}"]
    assert variables(fleet.host) == needed(fleet.host)


def test_a_start_keeps_it_true(fleet: Fleet) -> None:
    """A card was swapped while the host was down: the index is another GPU."""
    fleet.converge(_0=conf(fleet))
    fleet.host.stop()
    fleet.host.nvml.all[0] = h200(0, uuid=uuid(9))
    prepare.prepare(fleet.host.world, "0")
    assert variables(fleet.host) == needed(fleet.host, gpu=uuid(9))


@pytest.mark.parametrize("policy", ["refuse", "terminate"])
def test_it_speaks_of_the_daemon_that_runs(fleet: Fleet, policy: str) -> None:
    """Another GPU is desired, and clients keep the daemon from its restart, or are ended for it."""
    at_work(fleet, policy)
    answer = fleet.converge(a=conf(fleet, "a", GPUs="1"))
    assert bool(answer.pending) == (policy == "refuse")
    served = uuid(0 if policy == "refuse" else 1)
    assert fleet.host.running("a") is not None
    assert variables(fleet.host, "a") == needed(fleet.host, "a", served)
    fleet.host.places.client_environment("a").unlink()
    fleet.converge(a=conf(fleet, "a", GPUs="1"))
    assert variables(fleet.host, "a") == needed(fleet.host, "a", served)


def test_it_goes_with_its_instance(fleet: Fleet) -> None:
    fleet.converge(a=conf(fleet, "a", GPUs="0"), b=conf(fleet, "b", GPUs="1"))
    fleet.converge(b=conf(fleet, "b", GPUs="1"))
    assert not fleet.host.places.client_environment("a").exists()
    assert fleet.host.places.client_environment("b").exists()
    fleet.host.places.client_environment("gone").write_text("# Managed by mps-fleet: of an instance without its file\n")
    assert removal.remove(fleet.host.world, False).error is None
    assert not fleet.host.places.configuration.exists()


def test_somebody_elses_file_stays(fleet: Fleet) -> None:
    path = fleet.host.places.client_environment("0")
    path.parent.mkdir(parents=True)
    path.write_text("MINE=1\n")
    answer = fleet.converge(_0=conf(fleet))
    assert answer.error is not None
    assert str(path) in answer.error
    said: list[str] = []
    fleet.host.stop()
    prepare.prepare(replace(fleet.host.world, say=said.append), "0")
    assert any(str(path) in line for line in said)
    fleet.converge()
    assert removal.remove(fleet.host.world, False).error is None
    assert path.read_text() == "MINE=1\n"


def test_a_disk_that_takes_no_more_keeps_no_daemon_down(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    from mpsctl.adapters import files

    write = files.write

    def full(path: Any, *rest: Any, **more: Any) -> None:
        if path == host.places.client_environment("0"):
            raise OSError(28, os.strerror(28), str(path))
        write(path, *rest, **more)

    host.desired()
    monkeypatch.setattr(files, "write", full)
    assert prepare.prepare(host.world, "0").devices == (uuid(0),)
    assert not host.places.client_environment("0").exists()


def test_limits_alone_leave_it(fleet: Fleet) -> None:
    """playbooks/limits.yml on a host of the release before, which has no such file."""
    fleet.converge(_0=conf(fleet))
    fleet.host.places.client_environment("0").unlink()
    fleet.more = {"atomic": True}
    answer = fleet.converge(_0=conf(fleet, DeviceMemoryLimit="6G"))
    assert answer.refused is None
    assert answer.changed
    assert not fleet.host.places.client_environment("0").exists()
