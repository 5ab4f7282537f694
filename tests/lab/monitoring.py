"""A fleet that is watched: Debian's Prometheus, Alertmanager and node exporter on lab hosts, with the project's rules.

The rules' times are shortened, and both hosts are looked at again and again, beside each minute.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable, Iterator

from . import front_door
from .conftest import LAB, PROJECT, LabHost, hosts
from .rollout import Rollout

FOLDER = "/var/lib/prometheus/node-exporter"
WITHIN_S = 180.0
_NODE, _PROMETHEUS, _ALERTMANAGER = 9100, 9090, 9093
_SHORTER = (
    (r"for: \S+", "for: 1s"),
    (r"> 300", "> 20"),
    (r"offset 1h", "offset 60s"),
    (r"\[10m\]", "[30s]"),
)
CLIENT = "/usr/lib/mps-lab/simulated_client.py"
LOOKS = "mps-looks"


def until(holds: Callable[[], Any], what: str, told: Callable[[], object] = lambda: "") -> Any:
    """As ``front_door.until``, for as long as a look and an alert may take."""
    return front_door.until(holds, what, WITHIN_S, told)


def shortened(rules: str) -> str:
    """The rules with times for a test; each kind of time was found."""
    for pattern, text in _SHORTER:
        rules, count = re.subn(pattern, text, rules)
        assert count, f"no rule has {pattern} any more"
    return rules


@dataclass(frozen=True)
class Watched:
    """The first host has Prometheus and Alertmanager too."""

    hosts: list[LabHost]

    @property
    def server(self) -> LabHost:
        return self.hosts[0]

    def _ask(self, port: int, path: str) -> Any:
        address = self.server.facts["address"]
        with urllib.request.urlopen(f"http://{address}:{port}{path}", timeout=30) as answer:
            return json.load(answer)

    def query(self, text: str) -> list[dict[str, Any]]:
        """What Prometheus answers now, each with ``metric`` and ``value``."""
        found = self._ask(_PROMETHEUS, f"/api/v1/query?{urllib.parse.urlencode({'query': text})}")
        assert found["status"] == "success", found
        return list(found["data"]["result"])

    def alerts(self) -> set[tuple[str, str, str]]:
        """What has reached the Alertmanager and is active: the alert, the host, the instance."""
        found = self._ask(_ALERTMANAGER, "/api/v2/alerts?active=true")
        labels = [one["labels"] for one in found]
        return {(one["alertname"], one["instance"], one.get("mps_instance", "")) for one in labels}

    def quiet(self, what: str) -> None:
        """Wait until no alert is active."""
        until(lambda: not self.alerts(), what, told=lambda: sorted(self.alerts()))

    def look(self, host: LabHost, looks: bool = True) -> None:
        """Have a host be looked at again and again from now on, or not any more."""
        if looks:
            command = f"while :; do mpsctl health --metrics-directory {FOLDER}; sleep 1; done"
            host.run(f"systemd-run -q --unit {LOOKS} sh -c '{command}'")
        else:
            host.run(f"systemctl stop {LOOKS}")


def _configure(hosts_: list[LabHost]) -> None:
    server = hosts_[0].facts["address"]
    targets = [{"targets": [f"{one.facts['address']}:{_NODE}"], "labels": {"instance": one.name}} for one in hosts_]
    prometheus = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["/etc/prometheus/mps.yml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"{server}:{_ALERTMANAGER}"]}]}]},
        "scrape_configs": [{"job_name": "node", "static_configs": targets}],
    }
    alertmanager = {
        "route": {"receiver": "none", "group_wait": "0s", "group_interval": "1s"},
        "receivers": [{"name": "none"}],
    }
    for host in hosts_:
        listen = f"--web.listen-address={host.facts['address']}"
        node = f'ARGS="{listen}:{_NODE} --collector.disable-defaults --collector.textfile'
        host.run(
            "cat >/etc/default/prometheus-node-exporter", f'{node} --collector.textfile.directory={FOLDER}"\n'.encode()
        )
        host.run("systemctl start prometheus-node-exporter")
    listen = f"--web.listen-address={server}"
    host = hosts_[0]
    host.run("cat >/etc/prometheus/prometheus.yml", json.dumps(prometheus).encode())
    host.run("cat >/etc/prometheus/alertmanager.yml", json.dumps(alertmanager).encode())
    host.run("cat >/etc/prometheus/mps.yml", shortened((PROJECT / "monitoring/rules.yml").read_text()).encode())
    host.run("cat >/etc/default/prometheus", f'ARGS="{listen}:{_PROMETHEUS}"\n'.encode())
    more = "--cluster.listen-address="
    host.run("cat >/etc/default/prometheus-alertmanager", f'ARGS="{listen}:{_ALERTMANAGER} {more}"\n'.encode())
    host.run("systemctl start prometheus-alertmanager prometheus")


@contextmanager
def watched(prefix: str, release: str = "trixie", daemon: str = "555") -> Iterator[Watched]:
    """Two hosts with an instance on each of four GPUs, watched."""
    options = ("--hosts", "2", "--gpus", "4", "--release", release, "--daemon", daemon, "--standin-server")
    with hosts(prefix, *options, "--packages", "monitoring") as booted:
        _configure(booted)
        limits = ("mps_device_memory_limit=4G", "mps_expected_clients=8", "mps_over_expected=wait")
        variables = (*limits, "mps_limit_bypass=report", f"mps_metrics_directory={FOLDER}")
        words = [word for one in variables for word in ("-e", one)]
        done = Rollout(prefix, booted).play("playbooks/monitoring.yml", *words)
        assert done.exit_code == 0, done.output
        made = Watched(booted)
        for host in booted:
            made.look(host)
        yield made


def panels() -> list[Any]:
    """The panels of monitoring/dashboard.py."""
    spec = importlib.util.spec_from_file_location("mps_dashboard", PROJECT / "monitoring/dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return list(module.PANELS)


def lab(*words: str) -> None:
    """Do something to a host's simulated GPUs or driver."""
    subprocess.run([LAB, *words], check=True)
