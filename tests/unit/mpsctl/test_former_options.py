"""Options by their names in the release before: taken with a warning, and told in no help."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable

import pytest

from fakes import Host
from mpsctl.adapters import hardware
from mpsctl.checks import probe_client
from mpsctl.cli import main as command_line
from mpsctl.model.finding import OK, Check
from mpsctl.store import world as worlds

Verify = Callable[..., tuple[int, str, str]]


@pytest.fixture
def verify(host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Verify:
    """`mpsctl verify` on a host with one instance that is up: exit code, standard output, standard error."""
    host.desired(DeviceMemoryLimit="4G")
    host.start()

    def look(*_: Any) -> dict[str, list[Check]]:
        return {"0": [Check("probe-client-under-mps", OK, "it was started")]}

    monkeypatch.setattr(worlds, "World", lambda **rooms: replace(host.world, **rooms))
    monkeypatch.setattr(hardware, "simulated", lambda: False)
    monkeypatch.setattr(probe_client, "look", look)

    def call(*words: str) -> tuple[int, str, str]:
        try:
            code = command_line.main(["verify", *words])
        except SystemExit as end:
            code = int(end.code or 0)
        return (code, *capsys.readouterr())

    return call


@pytest.mark.parametrize("words", [["--probe-client"], ["--witness"], ["--witness", "--probe-client"]])
def test_verify_takes_the_former_name_of_its_option_with_a_warning(verify: Verify, words: list[str]) -> None:
    _, out, err = verify("0", "--all", *words)
    assert "it was started" in out
    warning = "found --witness, a former name that the next release no longer takes; write --probe-client"
    assert err == (f"mpsctl verify: {warning}\n" if "--witness" in words else "")


def test_a_former_option_stands_in_no_help(verify: Verify) -> None:
    code, out, _ = verify("--help")
    assert code == 0
    assert "--probe-client" in out
    assert "witness" not in out


def test_verify_without_a_probe_client_starts_none(verify: Verify) -> None:
    _, out, _ = verify("0", "--all")
    assert "it was started" not in out
    code, _, err = verify("--allocate")
    assert code == 2
    assert "add --probe-client" in err
