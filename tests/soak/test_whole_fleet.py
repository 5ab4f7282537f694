"""Verifying twelve hosts and rebooting them, with a driver that loads 60 s late."""

from __future__ import annotations

from pathlib import Path

from tests.lab import rollout, whole_fleet


def test_twelve_hosts_are_rebooted_and_verified(tmp_path: Path) -> None:
    with rollout.fleet("tw", 4) as fleet:
        whole_fleet.prove_reboots(fleet, tmp_path, late=1, missing=4, delay_s=60)
        whole_fleet.prove_verify(fleet, tmp_path)
