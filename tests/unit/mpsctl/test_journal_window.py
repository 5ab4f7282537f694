"""How far a look goes back in the journal: a start may be months old, and each look leaves lines there."""

from __future__ import annotations

import os

import pytest

from fakes import Host
from judging import SERVER, judge
from mpsctl.checks.judgement import HEALTH, SITE, STATUS, VERIFY
from mpsctl.lifecycle import health
from mpsctl.model.finding import CRITICAL, OK, UNKNOWN
from mpsctl.observe import host as look

HOUR_S, SPARE_S = 3600, 60


@pytest.mark.parametrize("verb", [STATUS, SITE])
def test_a_look_reads_the_last_hour(host: Host, verb: str) -> None:
    host.desired()
    host.start()
    host.clock.pass_by(30 * 24 * HOUR_S)
    judge(host, verb=verb)
    assert host.systemd.read_back_s[-1] == HOUR_S + SPARE_S


def test_what_a_server_said_at_its_start_is_read_for_as_long_as_it_lives(live: Host) -> None:
    live.clock.pass_by(5 * HOUR_S)
    found = judge(live, verb=STATUS)
    assert live.systemd.read_back_s[-1] == 5 * HOUR_S + SPARE_S
    assert found.word("0") == OK
    live.kill(SERVER)
    judge(live, verb=STATUS)
    assert live.systemd.read_back_s[-1] == HOUR_S + SPARE_S


def test_verify_reads_the_whole_start(live: Host) -> None:
    look.look(live.world, deep=True)
    assert live.systemd.read_back_s[-1] is None


def test_who_may_read_nothing_is_told_from_silence_by_the_whole_start(
    live: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    judge(live, verb=STATUS)
    assert live.systemd.read_back_s[-1] is None


def test_a_default_set_by_hand_is_not_taken_for_proven_when_its_line_is_out_of_sight(host: Host) -> None:
    """The health timer has seen the line by then; nothing proves the record any more."""
    host.desired(DeviceMemoryLimit="4G", ComputeMode="exclusive_process")
    host.systemd.unit("mps-control@0.service").enabled = True
    daemon = host.start()
    daemon.ask(["set_default_device_pinned_mem_limit 0 5119M"])
    assert health.health(host.world).report.check("0", "memory-limit").level == CRITICAL
    daemon.log.clear()
    for verb in (STATUS, VERIFY, HEALTH, SITE):
        assert judge(host, verb=verb).check("0", "memory-limit").level == UNKNOWN
    host.systemd.act("reload", ["mps-control@0.service"])
    assert judge(host, verb=STATUS).check("0", "memory-limit").level == OK
