"""The report on a fleet: every host is a row, the worst comes first, and the page stands alone."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fleet import PROJECT, Fleet
from mps_role import report


def check(name: str, level: str, found: str = "this", **more: Any) -> dict[str, Any]:
    return {"name": name, "level": level, "found": found, "expected": "that", "remedy": "do it", "evidence": [], **more}


def verified(*instance: dict[str, Any], host: tuple[dict[str, Any], ...] = (), **more: Any) -> dict[str, Any]:
    instances = {"0": {"word": "any", "checks": list(instance)}} if instance else {}
    answer = {"format": 2, "simulated": False, "host": {"checks": list(host)}, "instances": instances, "exit_code": 0}
    return {"verified": {**answer, **more}}


FLEET = {
    "healthy": verified(check("unit-active", "ok")),
    "warned": verified(check("unit-active", "ok"), check("persistence", "warning", "off")),
    "unknown": verified(check("server-state", "unknown")),
    "broken": verified(check("limits", "critical", "20 MiB"), check("a", "warning")),
    "bare": verified(),
    "away": {"unreachable": True, "msg": "Failed to connect to the host via ssh:\nConnection refused"},
    "mute": {"failed": True, "msg": "found no answer of mpsctl"},
    "faulty": {"verified": {"error": "OSError: no space (a fault of mpsctl)", "exit_code": 70}},
}


def made(**results: dict[str, Any]) -> dict[str, Any]:
    return report.of(results or FLEET, "2026-11-29 21:00:00 UTC")


@pytest.mark.parametrize(
    ("host", "level", "first"),
    [
        ("healthy", "ok", ""),
        ("warned", "warning", "instance 0: persistence: off"),
        ("unknown", "unknown", "instance 0: server-state: this"),
        ("broken", "critical", "instance 0: limits: 20 MiB"),
        ("bare", "critical", "set-up: no instance of MPS"),
        ("away", "critical", "reachable: unreachable: Failed to connect to the host via ssh: Connection refused"),
        ("mute", "critical", "answers: no answer of mpsctl verify: found no answer of mpsctl"),
        ("faulty", "critical", "answers: no answer of mpsctl verify: OSError: no space (a fault of mpsctl)"),
    ],
)
def test_every_host_is_a_row_with_what_matters_most_of_it(host: str, level: str, first: str) -> None:
    row = made()["hosts"][host]
    assert (row["level"], row["first"]) == (level, first)


def test_what_fails_of_one_host_is_one_line_each() -> None:
    assert report.failing(FLEET["broken"]) == ["instance 0: limits: 20 MiB"]
    assert report.failing(FLEET["warned"]) == []
    assert report.failing(FLEET["bare"]) == ["set-up: no instance of MPS"]


def test_the_counts_and_the_worst_are_of_hosts() -> None:
    found = made()
    assert found["worst"] == "critical"
    assert found["count"] == {"critical": 5, "warning": 1, "unknown": 1, "ok": 1}
    assert list(found["hosts"]) == list(FLEET)


def test_one_line_says_which_hosts_fail_and_why() -> None:
    line = report.summary(made())
    assert line.startswith("5 of 8 hosts fail: broken (instance 0: limits: 20 MiB); bare (set-up")
    assert line.endswith("; and 1 more")
    assert report.summary(made(a=FLEET["healthy"], b=FLEET["warned"])) == "2 hosts: 1 warning, 1 ok"


def test_checks_of_the_host_count_too() -> None:
    row = made(a=verified(check("unit-active", "ok"), host=(check("other-daemon", "critical"),)))["hosts"]["a"]
    assert (row["level"], row["first"]) == ("critical", "other-daemon: this")
    assert [group["name"] for group in row["groups"]] == ["the host", "0"]


class _Page(HTMLParser):
    """Balanced tags, and nothing that would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.hosts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Any]]) -> None:
        assert not {"src", "href", "action"} & {name for name, _ in attrs}
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_stands_alone_and_has_the_worst_hosts_first() -> None:
    text = report.page(made())
    parser = _Page()
    parser.feed(text)
    assert parser.open == []
    assert not re.search(r"https?:|@import|url\(", text)
    hosts = re.findall(r'<span class="host">([^<]*)', text)
    assert hosts == ["broken", "bare", "away", "mute", "faulty", "warned", "unknown", "healthy"]
    assert "prefers-color-scheme: dark" in text


def test_what_a_host_says_cannot_become_markup() -> None:
    text = report.page(made(a=verified(check("x", "critical", "<script>alert(1)</script>", evidence=["<b>&</b>"]))))
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "&lt;b&gt;&amp;&lt;/b&gt;" in text


def test_a_rolling_run_shows_each_host_before_and_after(tmp_path: Path) -> None:
    before = verified(check("unit-active", "critical", "failed"), check("limits", "ok", "4G"))["verified"]
    after = verified(check("unit-active", "ok", "active"), check("limits", "ok", "4G"), check("new", "ok"))
    entries = {
        "a.json": {"before": before, "after": after["verified"], "problem": None},
        "b.failed": {"before": before, "after": {}, "problem": "b did not come back right"},
    }
    for name, entry in entries.items():
        (tmp_path / name).write_text(json.dumps(entry))
    found = report.of(report.results_of_ledger(tmp_path), "now")
    assert {host: (row["level"], row["first"]) for host, row in found["hosts"].items()} == {
        "a": ("ok", ""),
        "b": ("critical", "came-back: b did not come back right"),
    }
    checks = found["hosts"]["a"]["groups"][0]["checks"]
    assert [one["before"] for one in checks] == ["critical: failed", "ok: 4G", "no such check"]
    text = report.page(found, "Rebooted")
    assert "<dt>before</dt><dd>critical: failed</dd>" in text
    assert "<dd>ok: 4G</dd>" not in text


def test_simulated_gpus_are_said_on_the_page() -> None:
    assert "Simulated GPUs" in report.page(made(a=verified(check("x", "ok"), simulated=True)))
    assert "Simulated GPUs" not in report.page(made())


OLD = 'import json\nprint(json.dumps({"format": 1, "host": [], "instances": {"0": []}}))\n'
NEW = """\
import json
check = {"name": "limits", "level": "warning", "found": "this", "expected": "", "remedy": "", "evidence": []}
print(json.dumps({"format": 2, "host": {"checks": []}, "instances": {"0": {"word": "warning", "checks": [check]}}}))
"""


def test_a_host_with_the_program_of_an_earlier_release_is_asked_by_ours(fleet: Fleet) -> None:
    """Its answer has another form and other words: nothing of it is taken for a host that is well."""
    (fleet.add("a") / "mpsctl").write_text(OLD)
    ours = fleet.root / "ours"
    ours.write_text(NEW)
    validated = {"program": {"path": str(ours), "build": "fake-build"}}
    extra = {"report_directory": str(fleet.root / "reports"), "__mps_validated": validated}
    run = fleet.play(playbook=PROJECT / "playbooks/verify.yml", extra=extra, fake=False)
    assert run.exit_code == 0, run.output
    found = json.loads((fleet.root / "reports/verify.json").read_text())
    assert (found["worst"], found["hosts"]["a"]["first"]) == ("warning", "instance 0: limits: this")
