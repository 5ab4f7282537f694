"""playbooks/verify.yml and playbooks/reboot.yml over lab hosts that are broken in different ways."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from .conftest import LAB, LabHost
from .rollout import Rollout

_NO_KEPT_CONNECTION = "-o ControlMaster=no -o ControlPath=none -o ConnectTimeout=5"


def lab(*words: str) -> None:
    subprocess.run([LAB, *words], check=True, capture_output=True)


def boot_id(host: LabHost) -> str:
    return host.run("cat /proc/sys/kernel/random/boot_id").strip()


def prove_verify(fleet: Rollout, folder: Path) -> None:
    """The first host stays well; the next five are broken, each in a way of its own; all others are well."""
    well, stopped, changed, exclusive, bare, away, *others = fleet.hosts
    stopped.run("systemctl kill --signal=STOP --kill-who=main mps-control@1")
    # It prints a number once it was served, and nothing while another front-end is, as while the health timer looks.
    changed.run(
        'until [ -n "$(echo set_default_active_thread_percentage 7 |'
        ' CUDA_MPS_PIPE_DIRECTORY=/run/mps-fleet/0/pipe nvidia-cuda-mps-control)" ]; do sleep 0.2; done'
    )
    exclusive.run("systemctl disable --now mps-control@0")
    bare.run("mpsctl remove")
    away.run("systemctl stop ssh.socket ssh.service")
    before = [host.run("find /etc/mps /run/mps-fleet -type f | sort | xargs sha256sum") for host in (well, *others)]
    done = fleet.play(
        "playbooks/verify.yml",
        *("-e", f"report_directory={folder}"),
        *("-e", json.dumps({"ansible_ssh_args": _NO_KEPT_CONNECTION})),
    )
    assert done.exit_code != 0, done.output
    after = [host.run("find /etc/mps /run/mps-fleet -type f | sort | xargs sha256sum") for host in (well, *others)]
    assert after == before, "it changes nothing"
    report = json.loads((folder / "verify.json").read_text())
    rows: dict[str, Any] = report["hosts"]
    assert set(rows) == {host.name for host in fleet.hosts}
    assert {host.name: rows[host.name]["first"].split(": ")[:2] for host in (stopped, changed, bare, away)} == {
        stopped.name: ["instance 1", "daemon-answers"],
        changed.name: ["instance 0", "thread-percentage"],
        bare.name: ["set-up", "no instance of MPS"],
        away.name: ["reachable", "unreachable"],
    }
    assert rows[exclusive.name]["level"] == "critical"
    assert "unit-active" in rows[exclusive.name]["first"] or "unit-enabled" in rows[exclusive.name]["first"]
    # Lab hosts have no persistence daemon, which is worth a warning.
    assert {rows[host.name]["level"] for host in (well, *others)} == {"warning"}
    assert report["simulated"]
    page = (folder / "verify.html").read_text()
    assert "Simulated GPUs" in page
    assert all(f"<tr><th colspan=8>{host.name}<tr>" in page for host in fleet.hosts)
    assert f"5 of {len(fleet.hosts)} hosts fail" in done.output


def prove_reboots(fleet: Rollout, folder: Path, late: int, missing: int, delay_s: int) -> None:
    """Host ``late`` comes back with a driver that takes ``delay_s`` to load, host ``missing`` without a GPU (from 0).

    The run stops there; after the repair the next one goes on behind those that are done.
    """
    hosts = fleet.hosts
    before = [boot_id(host) for host in hosts]
    lab("driver", hosts[late].name, f"--delay={delay_s}")
    tasks = folder / "pull.yml"
    tasks.write_text(
        "- name: Pull a card\n"
        f"  ansible.builtin.command: {LAB} gpu {hosts[missing].name} pull 1\n"
        f"  when: inventory_hostname == '{hosts[missing].name}'\n"
        "  delegate_to: localhost\n"
        "  become: false\n"
        "  changed_when: true\n"
    )
    one_by_one = [*[1] * (missing + 1), "100%"]
    options = [
        *("-e", json.dumps({"mps_serial": one_by_one})),
        *("-e", f"report_directory={folder}"),
        *("-e", "mps_driver_timeout_s=30"),
    ]
    first = fleet.play("playbooks/reboot.yml", *options, "-e", f"batch_pre_tasks={tasks}")
    assert first.exit_code != 0, first.output
    assert f"{hosts[missing].name} did not come back right: " in " ".join(first.output.split())
    middle = [boot_id(host) for host in hosts]
    assert [now != then for now, then in zip(middle, before)] == [True] * (missing + 1) + [False] * (
        len(hosts) - missing - 1
    )
    report = json.loads((folder / "reboot.json").read_text())
    assert {name: row["level"] == "critical" for name, row in report["hosts"].items()} == {
        host.name: number == missing for number, host in enumerate(hosts[: missing + 1])
    }
    lab("gpu", hosts[missing].name, "restore")
    second = fleet.play("playbooks/reboot.yml", *options)
    assert second.exit_code == 0, second.output
    last = [boot_id(host) for host in hosts]
    assert [now != then for now, then in zip(last, middle)] == [False] * missing + [True] * (len(hosts) - missing)
    report = json.loads((folder / "reboot.json").read_text())
    assert set(report["hosts"]) == {host.name for host in hosts}
    assert "critical" not in report["count"], second.output
    checks = [one for row in report["hosts"].values() for group in row["groups"] for one in group["checks"]]
    assert all("before" in one for one in checks)
    assert not (folder / "reboot.open").exists()
    for host in hosts:
        host.run("mpsctl status")
