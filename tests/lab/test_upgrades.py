"""From every earlier release, site.yml brings running hosts to the present state, and restarts no daemon for it.

A release is a commit that CHANGELOG.md names. Its own playbook sets the hosts up, then the present one runs.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from .conftest import PROJECT, LabHost, hosts
from .rollout import Rollout, found_on

_RELEASE = re.compile(r"^## (?P<version>\d+\.\d+\.\d+) \(\d{4}-\d\d-\d\d, (?P<commit>[0-9a-f]{40})\)$", re.MULTILINE)
RELEASES = dict(_RELEASE.findall((PROJECT / "CHANGELOG.md").read_text(encoding="utf-8")))


def test_there_are_releases_to_come_from() -> None:
    assert {"0.1.0", "0.2.0"} <= set(RELEASES)


def release(commit: str, folder: Path) -> Path:
    """The project as it was released."""
    if subprocess.run(["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=PROJECT, check=False).returncode:
        pytest.skip(f"this clone is shallow and has no commit {commit}: clone the whole history to try the upgrade")
    packed = subprocess.run(["git", "archive", commit], cwd=PROJECT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "--extract", "--directory", folder], input=packed, check=True)
    return folder


def starts(host: LabHost) -> str:
    return host.run("systemctl show --value -p MainPID,NRestarts mps-control@0 mps-control@1")


UNIT = "/etc/systemd/system/mps-control@.service"
GIVEN = ("-e", "mps_device_memory_limit=4G", "-e", "mps_escaped_clients=terminate", "-e", "mps_escape_grace_s=7")
"""Variables by the names that both releases had; the present one takes them with a warning."""


def clients_policy(host: LabHost) -> list[str]:
    """What the instances' files say of clients without their limit."""
    return sorted(set(host.run("grep -hE '^(Escape|LimitBypass)' /etc/mps/*.conf").split()))


@pytest.mark.parametrize("version", RELEASES)
def test_a_running_host_comes_to_the_present_without_a_restart(version: str, tmp_path: Path) -> None:
    former = release(RELEASES[version], tmp_path)
    with hosts("upg", "--hosts", "2", "--gpus", "2") as booted:
        fleet = Rollout("upg", booted)
        first = fleet.play(str(former / "site.yml"), *GIVEN, config=former / "ansible.cfg")
        assert first.exit_code == 0, first.output
        before = [starts(host) for host in booted]
        found = [found_on(host) for host in booted]
        units = booted[0].run(f"cat {UNIT}")
        assert clients_policy(booted[0]) == ["EscapeGraceSec=7", "EscapedClients=terminate"]

        upgraded = fleet.play("site.yml", *GIVEN)
        assert upgraded.exit_code == 0, upgraded.output
        assert "write mps_limit_bypass" in " ".join(upgraded.output.split())
        assert [starts(host) for host in booted] == before
        assert [found_on(host).limits for host in booted] == [one.limits for one in found]
        changed = booted[0].run(f"cat {UNIT}") != units
        assert ("take it at their next start" in upgraded.output) == changed  # Ansible says the same words once
        for host in booted:
            assert clients_policy(host) == ["LimitBypass=terminate", "LimitBypassGraceSec=7"]
            host.run("mpsctl status")
            host.run("systemctl start mps-health.service")

        present = [
            word.replace("escaped_clients", "limit_bypass").replace("escape_grace", "limit_bypass_grace")
            for word in GIVEN
        ]
        again = fleet.play("site.yml", *present)
        assert set(re.findall(r"changed=(\d+)", again.output)) == {"0"}, again.output
        assert "former name" not in again.output
        for host in booted:
            host.run("systemctl restart mps-control@0 mps-control@1 && mpsctl status")
