"""The report on a fleet: every host is a row, the worst comes first, and the page stands alone."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from mps_role import report


def check(name: str, level: str, found: str = "this", **more: Any) -> dict[str, Any]:
    return {"name": name, "level": level, "found": found, "expected": "that", "remedy": "do it", "evidence": [], **more}


def verified(*instance: dict[str, Any], host: tuple[dict[str, Any], ...] = (), **more: Any) -> dict[str, Any]:
    instances = {"0": list(instance)} if instance else {}
    return {"verified": {"simulated": False, "host": list(host), "instances": instances, "exit_code": 0, **more}}


FLEET = {
    "healthy": verified(check("unit-active", "pass")),
    "warned": verified(check("unit-active", "pass"), check("persistence", "warn", "off")),
    "unknown": verified(check("server-state", "cannot tell")),
    "broken": verified(check("limits", "fail", "20 MiB"), check("a", "warn")),
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
        ("healthy", "pass", ""),
        ("warned", "warn", "instance 0: persistence: off"),
        ("unknown", "cannot tell", "instance 0: server-state: this"),
        ("broken", "fail", "instance 0: limits: 20 MiB"),
        ("bare", "fail", "set-up: no instance of MPS"),
        ("away", "fail", "reachable: unreachable: Failed to connect to the host via ssh: Connection refused"),
        ("mute", "fail", "answers: no answer of mpsctl verify: found no answer of mpsctl"),
        ("faulty", "fail", "answers: no answer of mpsctl verify: OSError: no space (a fault of mpsctl)"),
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
    assert found["worst"] == "fail"
    assert found["count"] == {"fail": 5, "warn": 1, "cannot tell": 1, "pass": 1}
    assert list(found["hosts"]) == list(FLEET)


def test_one_line_says_which_hosts_fail_and_why() -> None:
    line = report.summary(made())
    assert line.startswith("5 of 8 hosts fail: broken (instance 0: limits: 20 MiB); bare (set-up")
    assert line.endswith("; and 1 more")
    assert report.summary(made(a=FLEET["healthy"], b=FLEET["warned"])) == "2 hosts: 1 warn, 1 pass"


def test_checks_of_the_host_count_too() -> None:
    row = made(a=verified(check("unit-active", "pass"), host=(check("other-daemon", "fail"),)))["hosts"]["a"]
    assert (row["level"], row["first"]) == ("fail", "other-daemon: this")
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
    text = report.page(made(a=verified(check("x", "fail", "<script>alert(1)</script>", evidence=["<b>&</b>"]))))
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "&lt;b&gt;&amp;&lt;/b&gt;" in text


def test_a_rolling_run_shows_each_host_before_and_after(tmp_path: Path) -> None:
    before = verified(check("unit-active", "fail", "failed"), check("limits", "pass", "4G"))["verified"]
    after = verified(check("unit-active", "pass", "active"), check("limits", "pass", "4G"), check("new", "pass"))
    entries = {
        "a.json": {"before": before, "after": after["verified"], "problem": None},
        "b.failed": {"before": before, "after": {}, "problem": "b did not come back right"},
    }
    for name, entry in entries.items():
        (tmp_path / name).write_text(json.dumps(entry))
    found = report.of(report.results_of_ledger(tmp_path), "now")
    assert {host: (row["level"], row["first"]) for host, row in found["hosts"].items()} == {
        "a": ("pass", ""),
        "b": ("fail", "came-back: b did not come back right"),
    }
    checks = found["hosts"]["a"]["groups"][0]["checks"]
    assert [one["before"] for one in checks] == ["fail: failed", "pass: 4G", "no such check"]
    text = report.page(found, "Rebooted")
    assert "<dt>before</dt><dd>fail: failed</dd>" in text
    assert "<dd>pass: 4G</dd>" not in text


def test_simulated_gpus_are_said_on_the_page() -> None:
    assert "Simulated GPUs" in report.page(made(a=verified(check("x", "pass"), simulated=True)))
    assert "Simulated GPUs" not in report.page(made())
