"""Rules, runbooks and dashboard name what there is: every metric is in the table, every alert has its page."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

PROJECT = Path(__file__).parents[2]
sys.path.insert(0, str(PROJECT / "scripts"))

from mpsctl.checks.report import JUDGEMENTS  # noqa: E402  # the program's folder is put on the path above
from mpsctl.metrics.families import BY_NAME  # noqa: E402

RULES = yaml.safe_load((PROJECT / "monitoring/rules.yml").read_text())["groups"][0]["rules"]
PROMETHEUS_OWN = {"instance", "job", "le", "alertname"}


def dashboard() -> Any:
    spec = importlib.util.spec_from_file_location("mps_dashboard_unit", PROJECT / "monitoring/dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


QUERIES = {
    **{rule["alert"]: rule["expr"] for rule in RULES},
    **{f"{one.title} {legend}": query for one in dashboard().PANELS for legend, query in one.queries.items()},
}


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_names_metrics_and_labels_that_there_are(name: str) -> None:
    query = QUERIES[name]
    without_labels = re.sub(r"\{[^}]*\}|\b(?:by|on|group_left)\s*\([^)]*\)", "", query)
    metrics = re.findall(r"\bmps_[a-z_]+", without_labels)
    assert metrics
    assert [one for one in metrics if one not in BY_NAME] == []
    labels = {label for metric in metrics for label in BY_NAME[metric].labels} | PROMETHEUS_OWN
    selected = {label for matcher in re.findall(r"\{([^}]*)\}", query) for label in re.findall(r"(\w+)\s*=", matcher)}
    assert selected <= labels
    for check in re.findall(r'check=~?"([^"]+)"', query):
        assert set(check.split("|")) <= {one.name for one in JUDGEMENTS}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_has_a_page_that_says_what_to_type(rule: dict[str, Any]) -> None:
    page = PROJECT / rule["annotations"]["runbook"]
    text = page.read_text()
    assert text.startswith(f"# {rule['alert']}\n")
    assert re.search(r"^    (mpsctl|systemctl|journalctl) ", text, re.MULTILINE)
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert f"({page.relative_to(PROJECT / 'docs')})" in (PROJECT / "docs/monitoring.md").read_text()


def test_no_page_is_left_without_its_alert() -> None:
    pages = {path.stem for path in (PROJECT / "docs/runbooks").glob("*.md")}
    assert pages == {rule["alert"] for rule in RULES}


def test_each_alert_is_in_the_rules_own_tests() -> None:
    text = (PROJECT / "monitoring/rules_test.yml").read_text()
    assert [rule["alert"] for rule in RULES if rule["alert"] not in text] == []


def test_the_dashboard_is_made_by_its_program() -> None:
    done = subprocess.run([sys.executable, PROJECT / "monitoring/dashboard.py", "--check"], check=False)
    assert done.returncode == 0
