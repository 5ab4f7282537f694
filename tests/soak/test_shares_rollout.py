"""Shares over twelve hosts of four GPU models, of which three cannot hold them."""

from __future__ import annotations

from tests.lab import shares_rollout

DAEMONS = ("535", "550", "555")


def test_the_hosts_whose_gpus_cannot_hold_a_share_refuse_alone_and_the_others_take_it() -> None:
    with shares_rollout.fleet("shares", dict.fromkeys(("h200", "a100", "l40s", "t4"), DAEMONS)) as mixed:
        assert len(mixed.hosts) == 12
        assert len(mixed.small) == 3
        shares_rollout.prove(mixed)
