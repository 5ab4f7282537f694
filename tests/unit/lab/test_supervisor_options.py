"""What a host may do beyond others goes by its packages, and only by them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpslab import hosts, packages, supervisor


def command(group: str) -> list[str]:
    host = hosts.Host(
        name="lab-01",
        address="127.77.0.11",
        port=22,
        release="trixie",
        daemon=None,
        driver_version="550.163.01",
        gpus=2,
        model="h200",
        mig=(),
        lower=("/layer", "/root"),
        packages=group,
    )
    return supervisor.nspawn_command(host, Path("/lab/lab-01"))


@pytest.mark.parametrize("group", ["", *sorted(packages.GROUPS)])
def test_only_a_host_with_docker_reaches_the_machines_network(group: str) -> None:
    wide = [word for word in command(group) if word.startswith(("--capability", "--system-call-filter"))]
    assert bool(wide) is (group == "docker")
