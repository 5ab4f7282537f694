"""playbooks/reboot.yml over a fleet of folders, none of which is rebooted: who cannot be looked at fails alone."""

from __future__ import annotations

import json

from fleet import PROJECT, Fleet

VERIFIED = {"format": 2, "host": {"checks": []}, "instances": {"0": {"word": "ok", "checks": []}}, "exit_code": 0}


def test_a_host_that_cannot_be_looked_at_fails_alone(fleet: Fleet) -> None:
    for name in "abde":
        (fleet.add(name) / "mpsctl").write_text(f"print({json.dumps(VERIFIED)!r})\n")
    (fleet.root / "b" / "mpsctl").write_text("import os\nos.kill(os.getpid(), 9)\n")
    fleet.add("c", ansible_connection="ssh", ansible_host="127.0.0.1", ansible_port=1, ansible_user="root")
    tasks = fleet.root / "before.yml"
    tasks.write_text("- name: Begun\n  ansible.builtin.debug: {msg: begun}\n- ansible.builtin.meta: end_host\n")
    books = fleet.root / "reports" / "reboot.open"
    books.mkdir(parents=True)
    arguments = ("-e", f"report_directory={books.parent}", "-e", f"batch_pre_tasks={tasks}")
    run = fleet.play(*arguments, playbook=PROJECT / "playbooks/reboot.yml", variables={"mps_serial": 2})
    assert run.exit_code != 0
    assert sorted(run.of("Begun")) == ["a", "d", "e"]
    assert [line.split(": ")[:2] for line in run.summary()] == [["failed", "b"], ["unreachable", "c"]]
    assert books.is_dir(), "the next run goes on with those that are left"
