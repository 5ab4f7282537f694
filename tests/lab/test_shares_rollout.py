"""Shares over three hosts, of which one has a GPU that cannot hold them."""

from __future__ import annotations

from . import shares_rollout


def test_a_host_whose_gpu_cannot_hold_a_share_refuses_alone_and_the_others_take_it() -> None:
    models = {"h200": ("550",), "l40s": ("555",), "t4": ("535",)}
    with shares_rollout.fleet("share", models) as mixed:
        shares_rollout.prove(mixed)
