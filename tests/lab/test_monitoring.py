"""A real Prometheus, Alertmanager and node exporter watch two hosts: each alert comes, arrives and goes again.

The control daemon is NVIDIA's, the server in FAULT is the lab's stand-in that says so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Callable, Iterator

import pytest

from . import monitoring
from .conftest import PROJECT, LabHost
from .monitoring import CLIENT, FOLDER, Watched, until

PROGRAM = f"exec {CLIENT} --hold 100000"


@pytest.fixture(scope="module")
def fleet() -> Iterator[Watched]:
    with monitoring.watched("watch") as made:
        yield made


def client(host: LabHost, instance: str, name: str, before: str = "") -> None:
    """A client in a unit of its own, with ``before`` it in its shell."""
    public = f"CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps/{instance}"
    host.run(f"systemd-run -q --unit {name} sh -c '{before} {public} {PROGRAM}'")


@dataclass(frozen=True)
class Fault:
    """What is done to an instance of one of the hosts (0 or 1), what it brings, and how it is mended."""

    alerts: tuple[str, ...]
    host: int
    instance: str
    plant: Callable[[LabHost], object]
    mend: Callable[[LabHost], object]


def shell(command: str) -> Callable[[LabHost], object]:
    return lambda host: host.run(command)


def refused(host: LabHost) -> None:
    """Clients that come again and again to an instance that takes nobody."""
    host.run("mpsctl drain 0 --refuse --timeout 1")
    loop = f"while :; do CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps/0 {CLIENT} --hold 0; sleep 1; done"
    host.run(f"systemd-run -q --unit comes-again sh -c '{loop}'")


def waits(host: LabHost) -> None:
    host.run("mpsctl drain 3 --timeout 1; sed -i 's/^ClientWaitSec=.*/ClientWaitSec=600/' /etc/mps/3.conf")
    client(host, "3", "waits")


def outside(host: LabHost) -> None:
    """A process that NVML lists on the GPU of instance 1, and that is no client of it: it has 139,000 MiB."""
    host.run(
        "systemd-run -q --unit outside sleep 100000; pid=$(systemctl show --value -p MainPID outside);"
        ' uuid=$(mpsctl gpus --json | python3 -c \'import json,sys; print(json.load(sys.stdin)["gpus"][1]["uuid"])\');'
        ' mkdir -p /run/mps-lab/nvml; echo "compute $pid 143000" >/run/mps-lab/nvml/$uuid.processes'
    )


FIRST = (
    Fault(("MpsDaemonDown",), 0, "0", shell("systemctl stop mps-control@0"), shell("systemctl start mps-control@0")),
    Fault(
        ("MpsDaemonUnresponsive",),
        0,
        "1",
        shell("systemctl kill --kill-whom=main -s STOP mps-control@1"),
        shell("systemctl kill --kill-whom=main -s CONT mps-control@1"),
    ),
    Fault(
        ("MpsFrontDoorFailed",),
        0,
        "2",
        shell("systemctl stop mps-front-door@2.socket mps-front-door@2.service"),
        shell("systemctl start mps-front-door@2.socket"),
    ),
    Fault(
        ("MpsLimitNotInForce",),
        0,
        "3",
        shell("mpsctl control 3 set_default_device_pinned_mem_limit 0 8G"),
        shell("systemctl reload mps-control@3"),
    ),
    Fault(
        ("MpsClientsRefused", "MpsDrainedLong"),
        1,
        "0",
        refused,
        shell("systemctl stop comes-again; mpsctl undrain 0"),
    ),
    Fault(("MpsProcessesOutside", "MpsGpuFull"), 1, "1", outside, shell("systemctl stop outside")),
    Fault(
        ("MpsClientsWithoutLimit",),
        1,
        "2",
        lambda host: client(host, "2", "free", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=9=1G"),
        shell("systemctl stop free"),
    ),
    Fault(("MpsClientsWaitLong",), 1, "3", waits, shell("systemctl stop waits; mpsctl undrain 3")),
)
OF_GPU = ("MpsGpuFull",)
"""Alerts of a GPU, and of no instance."""


def expected(fleet: Watched, faults: tuple[Fault, ...]) -> set[tuple[str, str, str]]:
    return {
        (alert, fleet.hosts[fault.host].name, "" if alert in OF_GPU else fault.instance)
        for fault in faults
        for alert in fault.alerts
    }


def test_a_healthy_fleet_has_no_alert_and_every_panel_has_data(fleet: Watched) -> None:
    until(lambda: len(fleet.query("mps_last_look_timestamp_seconds")) == 2, "both hosts are scraped")
    fleet.quiet("no alert is left of the beginning")
    assert len(fleet.query("mps_daemon_up == 1")) == 8
    assert fleet.query("node_textfile_scrape_error != 0") == []
    for panel in monitoring.panels():
        for query in panel.queries.values():
            faults_alone = "> 0" in query
            assert bool(fleet.query(chosen(query))) is not faults_alone, f"{panel.title}: {query}"


def chosen(query: str) -> str:
    """As Grafana asks with all hosts and instances chosen."""
    return query.replace("$host", ".*").replace("$mps_instance", ".*")


def test_promtool_finds_nothing_in_rules_metrics_and_their_tests(fleet: Watched) -> None:
    for name in ("rules.yml", "rules_test.yml"):
        fleet.server.run(f"mkdir -p /root/rules; cat >/root/rules/{name}", (PROJECT / "monitoring" / name).read_bytes())
    said = fleet.server.run("cd /root/rules && promtool check rules rules.yml && promtool test rules rules_test.yml")
    assert "SUCCESS" in said
    assert fleet.server.run(f"promtool check metrics <{FOLDER}/mps.prom") == ""


def test_each_fault_raises_its_alert_which_goes_with_its_repair(fleet: Watched) -> None:
    for fault in FIRST:
        fault.plant(fleet.hosts[fault.host])
    wanted = expected(fleet, FIRST)
    until(lambda: wanted <= fleet.alerts(), "each planted fault has its alert", lambda: sorted(wanted - fleet.alerts()))
    also = {("MpsDrainedLong", fleet.hosts[1].name, "3")}
    consequences = {"MpsExclusiveWithoutDaemon", "MpsCannotTell"}
    assert {one for one in fleet.alerts() - wanted - also if one[0] not in consequences} == set()
    shown = {
        "Who is not right": {"0", "1", "2", "3"},
        "Processes outside MPS": {"1"},
        "Who waits": {"3"},
        "State": {"0", "3"},
    }
    for panel in monitoring.panels():
        named = {
            one["metric"].get("mps_instance", "")
            for query in panel.queries.values()
            if "> 0" in query
            for one in fleet.query(chosen(query))
        }
        assert shown.get(panel.title, set()) <= named, panel.title
    for fault in FIRST:
        fault.mend(fleet.hosts[fault.host])
    fleet.quiet("each alert has gone with its repair")


def test_a_daemon_that_does_not_last_and_a_restart_that_waits(fleet: Watched) -> None:
    host = fleet.hosts[0]
    for _ in range(3):
        host.run(
            "systemctl kill --kill-whom=main -s KILL mps-control@0; sleep 0.5; systemctl start mps-control@0",
            check=False,
        )
    client(host, "1", "keeps-it")
    host.run("sed -i -e '/^MultiUser=/d' -e 's/^.Instance.$/&\\nMultiUser=yes/' /etc/mps/1.conf")
    wanted = {("MpsCrashLoop", host.name, "0"), ("MpsRestartPendingLong", host.name, "1")}
    until(lambda: wanted <= fleet.alerts(), "both have their alerts", lambda: sorted(wanted - fleet.alerts()))
    host.run("systemctl stop keeps-it; systemctl restart mps-control@0 mps-control@1")
    fleet.quiet("and lose them")


def test_a_server_in_fault(fleet: Watched) -> None:
    host = fleet.hosts[1]
    client(host, "1", "in-fault")
    host.run(
        "until mpsctl clients 1 --json | grep -q '\"pid\"'; do sleep 0.1; done;"
        " echo fault=$(mpsctl control 1 get_server_list) >/run/mps-lab/standin-server"
    )
    fault = ("MpsServerFault", host.name, "1")
    until(lambda: fault in fleet.alerts(), "the server's state is an alert")
    assert {one for one in fleet.alerts() if one[0] == "MpsServerFault"} == {fault}
    host.run("systemctl stop in-fault; rm /run/mps-lab/standin-server")
    fleet.quiet("and goes with it")


def test_what_nvml_does_not_tell_is_absent_and_never_zero(fleet: Watched) -> None:
    host = fleet.hosts[1]
    of_host = f'{{instance="{host.name}"}}'
    monitoring.lab("driver", host.name, "--hanging")
    try:
        until(lambda: ("MpsCannotTell", host.name, "0") in fleet.alerts(), "nobody can tell")
        of_nvml = "mps_gpu_memory_used_bytes|mps_gpu_compute_mode|mps_processes_outside|mps_clients_memory_bytes"
        assert fleet.query(f'{{__name__=~"{of_nvml}", instance="{host.name}"}}') == []
        assert [one["value"][1] for one in fleet.query(f"mps_clients{of_host}")] == ["0"] * 4, "the daemons told that"
    finally:
        monitoring.lab("driver", host.name, "--well")
    fleet.quiet("all is told again")


def test_metrics_that_grow_old_or_vanish(fleet: Watched) -> None:
    old, gone = fleet.hosts
    fleet.look(old, looks=False)
    until(lambda: ("MpsMetricsStale", old.name, "") in fleet.alerts(), "nobody looks")
    fleet.look(old)
    fleet.look(gone, looks=False)
    gone.run(f"rm {FOLDER}/mps.prom")
    until(lambda: ("MpsMetricsGone", gone.name, "") in fleet.alerts(), "nothing is told any more")
    fleet.look(gone)
    fleet.quiet("both are back")


def test_the_file_and_the_verb_agree(fleet: Watched) -> None:
    host = fleet.hosts[0]
    changing = ("mps_last_look_timestamp_seconds", "mps_last_look_duration_seconds")
    said = [line for line in host.run("mpsctl metrics").splitlines() if not line.startswith(changing)]
    written = host.run(f"grep -v '^# Managed' {FOLDER}/mps.prom").splitlines()
    assert [line for line in written if not line.startswith(changing)] == said
    answer = json.loads(host.run("mpsctl metrics --json"))
    assert {one["value"] for one in answer["samples"] if one["name"] == "mps_simulated"} == {1}


def test_the_monitoring_user_gets_roots_verdict_by_the_line_of_the_docs(fleet: Watched) -> None:
    """The user nagios may run verify as root, and nothing else."""
    host = fleet.hosts[0]
    docs = (PROJECT / "docs/monitoring.md").read_text()
    (line,) = [each.strip() for each in docs.splitlines() if each.startswith("    nagios ALL=(root)")]
    host.run("useradd nagios 2>/dev/null; cat >/etc/sudoers.d/mps-monitoring", f"{line}\n".encode())
    as_nagios = "setpriv --reuid nagios --regid nagios --init-groups sudo -n /usr/local/bin/mpsctl"
    for plant, mend in (("true", "true"), ("systemctl stop mps-control@0", "systemctl start mps-control@0")):
        host.run(plant)
        verdicts = []
        for call in ("/usr/local/bin/mpsctl", as_nagios):
            said = host.run(f"{call} verify; echo $?", check=False).splitlines()
            words, _, data = said[0].partition(" | ")
            verdicts.append((words.partition(":")[0], data, said[-1]))
        assert verdicts[0] == verdicts[1]
        host.run(mend)
    for call in ("verify --probe-client", "drain 0", "verify --ignore persistence --probe-client"):
        assert "password is required" in host.run(f"{as_nagios} {call}", check=False)
    fleet.quiet("all is well again")


def test_nobody_leads_root_elsewhere(fleet: Watched) -> None:
    """The folder above is the user prometheus': he puts a link in its place."""
    host = fleet.hosts[1]
    fleet.look(host, looks=False)
    moved = "/var/lib/prometheus/moved"
    # An overlay lets nobody move a folder of its lower layers: it is made anew.
    host.run(f"cp -a {FOLDER} {moved} && rm -r {FOLDER} && mv {moved} {FOLDER}")
    host.run(f"setpriv --reuid prometheus --regid prometheus --clear-groups mv {FOLDER} {moved}")
    host.run(f"setpriv --reuid prometheus --regid prometheus --clear-groups ln -s /etc/cron.d {FOLDER}")
    try:
        said = host.run(f"mpsctl health --metrics-directory {FOLDER}", check=False)
        assert "link" in said
        assert host.run("ls /etc/cron.d/mps.prom", check=False).startswith("ls: cannot access")
        named = json.loads(host.run("mpsctl status --json", check=False))["host"]["checks"]
        assert {one["name"]: one["level"] for one in named}["metrics-written"] == "warning"
    finally:
        host.run(f"rm {FOLDER} && mv {moved} {FOLDER}")
        fleet.look(host)
    fleet.quiet("all is well again")


def test_a_removal_takes_the_file(fleet: Watched) -> None:
    host = fleet.hosts[1]
    fleet.look(host, looks=False)
    host.run("mpsctl remove")
    assert host.run(f"ls -A {FOLDER}") == ""
