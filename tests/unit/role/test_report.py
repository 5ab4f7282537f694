"""The report on a fleet: every host is a row, the worst comes first, and the page stands alone."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fleet import PROJECT, Fleet
from mps_role import report, report_page


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


_ENDLESS = ("td", "th", "tr", "tbody", "option")


class _Page(HTMLParser):
    """Balanced tags, but for cells and rows of tables and options, whose ends HTML lets out; and nothing is fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.hosts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Any]]) -> None:
        assert not {"src", "href", "action"} & {name for name, _ in attrs}
        if tag not in ("meta", "input", *_ENDLESS):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag in _ENDLESS or self.open.pop() == tag


def test_the_page_is_whole_stands_alone_and_has_the_worst_hosts_first() -> None:
    text = report_page.page(made())
    parser = _Page()
    parser.feed(text)
    assert parser.open == []
    assert not re.search(r"https?:|@import|url\(", text)
    hosts = re.findall(r"<tr><th colspan=8>([^<\n]*)", text)
    assert hosts == ["broken", "bare", "away", "mute", "faulty", "warned", "unknown", "healthy"]
    assert "prefers-color-scheme: dark" in text


def test_what_a_host_says_cannot_become_markup() -> None:
    text = report_page.page(
        made(a=verified(check("x", "critical", "<script>alert(1)</script>", evidence=["<b>&</b>"])))
    )
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
    text = report_page.page(found, "Rebooted")
    assert "<dt>before</dt><dd>critical: failed</dd>" in text
    assert "<dd>ok: 4G</dd>" not in text


def test_simulated_gpus_are_said_on_the_page() -> None:
    assert "Simulated GPUs" in report_page.page(made(a=verified(check("x", "ok"), simulated=True)))
    assert "Simulated GPUs" not in report_page.page(made())


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


# -- a large fleet

CAPTURED = json.loads((Path(__file__).parent / "captures/verify.json").read_text(encoding="utf-8"))
"""What `mpsctl verify --json` of a lab host with one instance and three clients printed."""


def answer(number: int, instances: int = 8) -> dict[str, Any]:
    """What such a host with so many GPUs says: each text has numbers and ids of its own."""
    text = json.dumps(CAPTURED["instances"]["0"])
    (uuid,) = set(re.findall(r"GPU-([0-9a-f-]{36})", text))
    made = {}
    for gpu in range(instances):
        own = text.replace(uuid, f"{number:08x}-b8c4-5864-8261-{gpu:012x}")
        made[str(gpu)] = json.loads(re.sub(r"\b207\b", str(1000 + 8 * number + gpu), own))
    return {"verified": {**CAPTURED, "simulated": False, "instances": made}}


@pytest.fixture(scope="module")
def thousand() -> str:
    """The page of 1,000 hosts with 8 instances each, all with the same warnings, and one that has something else."""
    results = {f"gpu-{number:04}": answer(number) for number in range(1000)}
    planted = results["gpu-0417"]["verified"]["instances"]["5"]
    planted["checks"].append(check("memory-limit", "critical", "the daemon shows 2G <script>alert(1)</script>"))
    planted["facts"]["values"][0]["in_force"] = False
    results["<script>evil</script>"] = {"unreachable": True, "msg": "no route"}
    return report_page.page(report.of(results, "2026-11-29 21:00:00 UTC"))


def test_the_page_of_a_thousand_hosts_is_below_2_mb(thousand: str) -> None:
    assert len(thousand.encode()) < 2_000_000
    parser = _Page()
    parser.feed(thousand)
    assert "<script>evil" not in thousand
    assert "<script>alert" not in thousand
    assert "&lt;script&gt;evil&lt;/script&gt;" in thousand


def test_what_is_alike_on_a_thousand_hosts_is_one_line_that_opens(thousand: str) -> None:
    findings = re.findall(r'<details class="f" data-l="([a-z]+)" data-c="([a-z-]+)"', thousand)
    assert findings == [("critical", "memory-limit"), ("critical", "reachable"), ("warning", "persistence")]
    groups = re.findall(r'<details class="g" data-l="([a-z]+)"', thousand)
    assert groups == ["critical", "critical", "warning"]
    assert "999 hosts" in thousand
    assert "1,000 hosts, 8,000 instances" in thousand


def test_one_different_host_among_a_thousand_is_found(thousand: str) -> None:
    begin = thousand.index('data-l="critical" data-c="memory-limit')
    found = thousand[begin : thousand.index("</details>", begin)]
    assert "gpu-0417 " in found
    assert "(instance 5)" in found
    assert thousand.count("4096 MiB not in force") == 1


def test_every_instance_is_shown_with_its_limit_memory_and_clients(thousand: str) -> None:
    rows = re.findall(
        r"<tr><td>\d<td>0<td class=r>3<td class=m[^>]*>[0-9.]+/140\.4<td class=r>37 %<td class=r>4096 MiB", thousand
    )
    assert len(rows) == 8000
    assert "7,992 instances; NVIDIA H200 (simulated); limit 4096 MiB; 50 % threads; 23,976 clients" in thousand


def test_every_host_stands_on_the_page_whatever_became_of_it() -> None:
    text = report_page.page(made())
    shown = re.findall(r"<tbody><tr><th colspan=8>([^<\n]*)", text)
    assert sorted(shown) == sorted(FLEET)


def test_what_is_not_told_is_no_0() -> None:
    told = answer(0, 1)
    facts = told["verified"]["instances"]["0"]["facts"]
    facts["devices"][0].update(used_mib=None, memory_mib=None, utilisation_percent=None)
    facts.update(clients_unknown=True, values=[])
    text = report_page.page(made(a=told))
    assert "<td>0<td>0<td class=r>?<td class=m>?/?<td class=r>?<td class=r>4G ?<td class=r>50 % ?" in text


@pytest.mark.parametrize("facts", [None, [], "x", {}, {"devices": 7}, {"desired": [], "room": None}])
def test_facts_of_another_shape_are_not_told(facts: object) -> None:
    told = answer(0, 1)
    told["verified"]["instances"]["0"]["facts"] = facts
    found = made(a=told)
    assert found["hosts"]["a"]["groups"][1]["glance"] is None
    assert "<td>0<td>?<td class=r>?" in report_page.page(found)


def test_texts_that_differ_in_more_than_numbers_are_not_alike() -> None:
    hosts = {
        name: verified(check("x", "warning", text)) for name, text in {"a": "pid 7", "b": "pid 8", "c": "off"}.items()
    }
    text = report_page.page(made(**hosts))
    assert [len(re.findall(f'<details class="{kind}"', text)) for kind in "fg"] == [2, 2]
    for found in ("pid 7", "pid 8", "off"):
        assert f"<dd>{found}</dd>" in text


def test_of_many_texts_that_are_alike_some_are_shown_and_the_hosts_of_all() -> None:
    text = report_page.page(
        made(**{f"host-{one}": verified(check("x", "warning", f"pid {one}")) for one in range(100)})
    )
    assert text.count("<dt>found</dt>") == report_page.MOST_TEXTS
    assert "80 more that differ in numbers and ids only" in text
    begin = text.index('<details class="f"')
    listed = set(re.findall(r"host-\d+", text[begin : text.index("</details>", begin)]))
    assert listed == {f"host-{one}" for one in range(100)}


def test_the_page_filters_by_host_level_and_check_and_can_be_read_without_a_script() -> None:
    text = report_page.page(made())
    assert "<form hidden>" in text
    assert re.findall(r"<label>(\w+)", text) == ["Host", "Level", "Check"]
    without = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    for host in FLEET:
        assert host in without


def test_on_a_telephone_each_cell_has_its_name() -> None:
    """There the head of the table is not shown: the style names the cells, in the same order."""
    text = report_page.page(made())
    head = re.findall(r"<th(?: class=\"r\")?>([^<]*)", text[text.index("<thead>") : text.index("</thead>")])
    named = dict(re.findall(r'td:nth-child\((\d)\)(?::not\(\[colspan\]\))?::before { content: "([^"]*)"', text))
    assert [named[str(number)].lower() for number in range(1, 8)] == [name.lower() for name in head[:7]]
    assert "width=device-width" in text


def test_what_a_missing_daemon_hides_is_one_line_also_on_a_thousand_hosts() -> None:
    """The worst that can be: each check of each instance of a fleet with long names cannot be told."""
    hosts = {}
    for number in range(1000):
        told = answer(number)
        for one in told["verified"]["instances"].values():
            for each in one["checks"]:
                each.update(level="unknown", found=f"control daemon {number} does not answer", remedy="")
        hosts[f"gpu-node-{number:04}.cluster-a.example.org"] = told
    text = report_page.page(made(**hosts))
    assert len(text.encode()) < 2_000_000
    (names,) = re.findall(r'<details class="f" data-l="unknown" data-c="([^"]*)"', text)
    assert len(names.split()) > 30
    assert len(re.findall('<details class="g"', text)) == 1
