#!/usr/bin/env python3
"""Write monitoring/dashboard.json: a dashboard for Grafana, over the metrics of docs/metrics.md.

With --check nothing is written; the exit code is 1 where the file is not current. Every query of a panel is in
``PANELS``, where a test takes it from and asks a real Prometheus. Grafana itself has not rendered the dashboard.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

FILE = Path(__file__).with_name("dashboard.json")
STAT, SERIES, TABLE = "stat", "timeseries", "table"
HOSTS = '{instance=~"$host"}'
OF = '{instance=~"$host", mps_instance=~"$mps_instance"}'

FAULT = '{instance=~"$host", mps_instance=~"$mps_instance", state="fault"}'


@dataclass(frozen=True)
class Panel:
    """One panel. ``queries`` are by their legend; ``width`` is of the 24 columns."""

    title: str
    kind: str
    queries: dict[str, str]
    about: str
    unit: str = "short"
    width: int = 12


ROWS: dict[str, tuple[Panel, ...]] = {
    "Fleet": (
        Panel("Hosts", STAT, {"": "count(mps_last_look_timestamp_seconds)"}, "Hosts with metrics of MPS.", width=4),
        Panel(
            "Instances not right",
            STAT,
            {"critical": "count(mps_level == 2) or vector(0)", "warning": "count(mps_level == 1) or vector(0)"},
            "Instances whose worst check is critical, or a warning.",
            width=5,
        ),
        Panel("Cannot tell", STAT, {"": "count(mps_level == 3) or vector(0)"}, "Instances of unknown state.", width=4),
        Panel(
            "Stale hosts",
            STAT,
            {"": "count(time() - mps_last_look_timestamp_seconds > 300) or vector(0)"},
            "Hosts at which nobody has looked for five minutes: what is told of them is old.",
            width=4,
        ),
        Panel("Clients", STAT, {"": "sum(mps_clients)"}, "Clients on all hosts, where the daemon told them.", width=4),
        Panel(
            "Simulated hosts",
            STAT,
            {"": "count(mps_simulated == 1) or vector(0)"},
            "Hosts whose GPUs a lab simulates.",
            width=3,
        ),
        Panel(
            "Who is not right",
            TABLE,
            {"": "mps_level > 0"},
            "Instances by host: 1 warning, 2 critical, 3 unknown. No row: all are right.",
        ),
        Panel(
            "Which checks fail",
            TABLE,
            {"": "sort_desc(count by (check) (mps_check_level > 0))"},
            "On how many hosts and instances each check is not ok.",
        ),
        Panel(
            "Fullest GPUs",
            TABLE,
            {"": "topk(20, mps_gpu_memory_used_bytes / mps_gpu_memory_total_bytes)"},
            "Used share of the memory, by whomever.",
            unit="percentunit",
        ),
        Panel(
            "Processes outside MPS",
            TABLE,
            {"": "sum by (instance, mps_instance, reason) (mps_processes_outside) > 0"},
            "On GPUs of an instance and no clients of it, by what keeps them out.",
        ),
    ),
    "Host": (
        Panel(
            "Memory of the GPUs",
            SERIES,
            {
                "{{instance}} {{gpu_uuid}} used": f"mps_gpu_memory_used_bytes{HOSTS}",
                "{{instance}} {{gpu_uuid}} all": f"mps_gpu_memory_total_bytes{HOSTS}",
            },
            "Used by whomever, and all.",
            unit="bytes",
        ),
        Panel(
            "Limit and the largest client",
            SERIES,
            {
                "{{instance}}/{{mps_instance}} desired": f"mps_limit_desired_bytes{OF}",
                "{{instance}}/{{mps_instance}} in force": f"mps_limit_in_force_bytes{OF}",
                "{{instance}}/{{mps_instance}} largest client": f"mps_client_memory_largest_bytes{OF}",
            },
            "A limit that is not in force is missing here, or differs from the desired one.",
            unit="bytes",
        ),
        Panel(
            "Clients",
            SERIES,
            {
                "{{instance}}/{{mps_instance}}": f"mps_clients{OF}",
                "{{instance}}/{{mps_instance}} places": f"mps_clients_places{OF}",
                "{{instance}}/{{mps_instance}} without limit": f"mps_clients_without_limit{OF} > 0",
            },
            "Clients by the daemon's list, and how many the front door lets in at once.",
        ),
        Panel(
            "Admissions per minute",
            SERIES,
            {
                "{{instance}}/{{mps_instance}} let in": f"rate(mps_clients_let_in_total{OF}[5m]) * 60",
                "{{instance}}/{{mps_instance}} refused {{reason}}": (
                    f"rate(mps_clients_refused_total{OF}[5m]) * 60 > 0"
                ),
                "{{instance}}/{{mps_instance}} gave up {{reason}}": (
                    f"rate(mps_clients_gave_up_total{OF}[5m]) * 60 > 0"
                ),
            },
            "What the front door did with who came.",
        ),
        Panel(
            "Who waits",
            SERIES,
            {"{{instance}}/{{mps_instance}} {{reason}}": f"mps_clients_waiting{OF} > 0"},
            "Clients before the front door, by what they wait for.",
        ),
        Panel(
            "Daemon restarts",
            SERIES,
            {"{{instance}}/{{mps_instance}}": f"increase(mps_daemon_restarts_total{OF}[1h])"},
            "By systemd, within the last hour.",
        ),
        Panel(
            "State",
            SERIES,
            {
                "{{instance}}/{{mps_instance}} daemon up": f"mps_daemon_up{OF}",
                "{{instance}}/{{mps_instance}} front door up": f"mps_front_door_up{OF}",
                "{{instance}}/{{mps_instance}} drained": f"mps_drained{OF} > 0",
                "{{instance}}/{{mps_instance}} restart pending": f"mps_restart_pending{OF} > 0",
            },
            "1 is yes.",
        ),
        Panel(
            "Memory of all clients",
            SERIES,
            {"{{instance}}/{{mps_instance}} {{gpu_uuid}}": f"mps_clients_memory_bytes{OF}"},
            "What the clients of an instance hold together.",
            unit="bytes",
        ),
        Panel(
            "Servers in FAULT",
            SERIES,
            {"{{instance}}/{{mps_instance}}": f"mps_servers{FAULT} > 0"},
            "Their clients have failed.",
        ),
        Panel(
            "The look",
            SERIES,
            {"{{instance}}": f"mps_last_look_duration_seconds{HOSTS}"},
            "How long it took.",
            unit="s",
        ),
    ),
}
PANELS: tuple[Panel, ...] = tuple(panel for panels in ROWS.values() for panel in panels)
_HEIGHT = {STAT: 4, SERIES: 8, TABLE: 8}


def _panel(panel: Panel) -> stat.Panel | table.Panel | timeseries.Panel:
    made = timeseries.Panel().min(0) if panel.kind == SERIES else stat.Panel() if panel.kind == STAT else table.Panel()
    made.title(panel.title).description(panel.about).unit(panel.unit)
    made.span(panel.width).height(_HEIGHT[panel.kind])
    made.datasource(common_source())
    for number, (text, query) in enumerate(panel.queries.items()):
        target = prometheus.Dataquery().expr(query).legend_format(text).ref_id(chr(ord("A") + number))
        if panel.kind != SERIES:
            target.instant()
        if panel.kind == TABLE:
            target.format(PromQueryFormat.TABLE)
        made.with_target(target)
    return made


def common_source() -> models.DataSourceRef:
    """The data source that a reader chooses."""
    return models.DataSourceRef(type_val="prometheus", uid="${datasource}")


def _variable(name: str, label: str, query: str) -> builders.QueryVariable:
    made: builders.QueryVariable = (
        builders.QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(common_source())
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .current(models.VariableOption(text="All", value="$__all", selected=True))
    )
    return made


def text() -> str:
    """The dashboard, as Grafana imports it."""
    made = (
        builders.Dashboard("NVIDIA MPS")
        .uid("mps-fleet")
        .tags(["mps", "gpu"])
        .refresh("1m")
        .time("now-6h", "now")
        .timezone("browser")
        .with_variable(builders.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_variable("host", "Host", "label_values(mps_last_look_timestamp_seconds, instance)"))
        .with_variable(
            _variable("mps_instance", "MPS instance", 'label_values(mps_level{instance=~"$host"}, mps_instance)')
        )
    )
    for title, panels in ROWS.items():
        made.with_row(builders.Row(title))
        for panel in panels:
            made.with_panel(_panel(panel))
    return json.dumps(json.loads(JSONEncoder(sort_keys=True, indent=1).encode(made.build())), indent=1) + "\n"


def main() -> int:
    if sys.argv[1:] not in ([], ["--check"]):
        print("usage: dashboard.py [--check]", file=sys.stderr)
        return 2
    if sys.argv[1:]:
        current = FILE.exists() and FILE.read_text() == text()
        if not current:
            print(f"{FILE}: not current; run monitoring/dashboard.py", file=sys.stderr)
        return int(not current)
    FILE.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
