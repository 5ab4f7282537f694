"""Runs of site.yml over a fleet of folders: what is asked of a host, when, and what the run says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet import CONVERGE, FAKE, LOOK, Fleet


def test_a_bare_host_in_check_mode_is_shown_everything_and_keeps_nothing(fleet: Fleet) -> None:
    place = fleet.add("a")
    run = fleet.play("--check", "--diff")
    assert run.exit_code == 0, run.output
    assert run.changed() == {"a": [LOOK]}
    assert fleet.calls("a") == ["check"]
    assert '+   "path": "/etc/systemd/system/mps-control@.service"' in run.output
    assert sorted(path.name for path in place.iterdir()) == ["calls", "environment", "host", "tmp"]
    assert not list((place / "tmp").iterdir())


def test_a_bare_host_converges_and_a_second_run_changes_nothing(fleet: Fleet) -> None:
    place = fleet.add("a")
    first = fleet.play()
    assert first.exit_code == 0, first.output
    assert first.changed() == {"a": [CONVERGE]}
    assert first.of(CONVERGE)["a"]["actions"] == ["write state.json"]
    assert (place / "mpsctl").read_bytes() == FAKE.read_bytes()
    assert not list((place / "tmp").iterdir())
    second = fleet.play()
    assert second.changed() == {}
    assert not second.of(CONVERGE)
    assert not second.of(LOOK)["a"]["program_sent"]
    assert fleet.calls("a") == ["check", "converge", "check"]


def test_a_converged_host_in_check_mode_shows_no_change(fleet: Fleet) -> None:
    fleet.add("a")
    fleet.play()
    run = fleet.play("--check", "--diff")
    assert run.exit_code == 0
    assert run.changed() == {}


def test_a_changed_limit_is_one_change(fleet: Fleet) -> None:
    place = fleet.add("a")
    fleet.play(variables={"mps_device_memory_limit": "4G"})
    run = fleet.play("--diff", variables={"mps_device_memory_limit": "6G"})
    assert run.changed() == {"a": [CONVERGE]}
    assert "DeviceMemoryLimit=6G" in run.output
    conf = json.loads((place / "state.json").read_text())["instance_per_gpu"]
    assert "DeviceMemoryLimit=6G" in conf


NO_GPU = "mps_instances: found GPU {}, expected one of 0, 1; correct it"


@pytest.mark.parametrize("serial", [1, "100%"])
def test_what_one_host_refuses_it_refuses_alone_and_under_its_name(fleet: Fleet, serial: object) -> None:
    fleet.add("a")
    fleet.add("b", {"answer": {"refused": NO_GPU.format(9)}})
    fleet.add("c", {"answer": {"refused": NO_GPU.format(7)}})
    fleet.add("d")
    run = fleet.play(extra={"mps_serial": serial})
    assert run.exit_code != 0
    assert run.failures() == {"b": f"b: {NO_GPU.format(9)}", "c": f"c: {NO_GPU.format(7)}"}
    assert run.changed() == {"a": [CONVERGE], "d": [CONVERGE]}
    assert run.summary() == [
        "a, d (2 hosts): state.json written",
        f"refused: b: {NO_GPU.format(9)}",
        f"refused: c: {NO_GPU.format(7)}",
    ]
    recap = run.output.partition("PLAY RECAP")[2]
    assert "b, c (2 hosts)             : changed=0    unreachable=0    failed=1 " in recap
    assert "a, d (2 hosts)             : changed=1    unreachable=0    failed=0 " in recap


@pytest.mark.parametrize("answer", [{"refused": NO_GPU.format(9)}, {"error": "the driver is not loaded"}])
@pytest.mark.parametrize("serial", [1, "100%"])
def test_all_or_nothing(fleet: Fleet, answer: dict[str, str], serial: object) -> None:
    for name in "acd":
        fleet.add(name)
    fleet.add("b", {"answer": answer})
    for arguments in (("--check",), ()):
        run = fleet.play(*arguments, variables={"mps_all_or_nothing": True, "mps_serial": serial})
        assert run.exit_code != 0
        assert list(run.failures()) == ["b"], "nobody else is blamed"
    assert [fleet.calls(host) for host in "abcd"] == [["check"] * 2] * 4
    assert run.summary()[0] == "not begun and untouched, as mps_all_or_nothing is set: a, c, d (3 hosts)"
    (fleet.root / "b" / "behaviour.json").unlink()
    assert sorted(fleet.play(variables={"mps_all_or_nothing": True}).changed()) == list("abcd")


def test_all_or_nothing_in_a_play_of_ones_own(fleet: Fleet) -> None:
    fleet.add("a")
    fleet.add("b", {"answer": {"refused": NO_GPU.format(9)}})
    playbook = fleet.root / "own.yml"
    playbook.write_text("- hosts: gpu-nodes\n  gather_facts: false\n  roles: [mps]\n")
    run = fleet.play(playbook=playbook, variables={"mps_all_or_nothing": True})
    assert run.exit_code != 0
    assert [fleet.calls(host) for host in "ab"] == [["check"]] * 2


@pytest.mark.parametrize("strategy", ["free", "host_pinned"])
def test_the_summary_holds_for_other_strategies(fleet: Fleet, strategy: str) -> None:
    for name in "acd":
        fleet.add(name)
    fleet.add("b", {"answer": {"refused": NO_GPU.format(9)}})
    playbook = fleet.root / "own.yml"
    playbook.write_text(f"- hosts: gpu-nodes\n  strategy: {strategy}\n  gather_facts: false\n  roles: [mps]\n")
    run = fleet.play(playbook=playbook)
    assert run.exit_code != 0
    assert [line for line in run.summary() if "state.json" in line or "refused" in line] == [
        "a, c, d (3 hosts): state.json written",
        f"refused: b: {NO_GPU.format(9)}",
    ]


def test_all_or_nothing_is_of_the_run(fleet: Fleet) -> None:
    fleet.add("a", mps_all_or_nothing=True)
    fleet.add("b")
    run = fleet.play(fake=False)
    assert run.message() == (
        "mps_all_or_nothing: found True on a, False on b, expected one value for all hosts; set it in"
        " group_vars/all.yml"
    )


NO_FIT = {"refused": "mps_shares: found each-user=9, expected what fits; at most 3 clients", "does_not_fit": True}


def test_a_host_whose_gpus_cannot_hold_it_refuses_alone(fleet: Fleet) -> None:
    fleet.add("a")
    fleet.add("b", {"answer": NO_FIT})
    fleet.add("c")
    for arguments, calls in ((("--check",), ["check"]), ((), ["check", "check", "converge"])):
        run = fleet.play(*arguments, extra={"mps_serial": 1})
        assert run.exit_code != 0
        assert run.message() == f"b: {NO_FIT['refused']}"
        assert list(run.of(LOOK, "failed")) == ["b"]
        assert [fleet.calls(host) for host in "ac"] == [calls] * 2
        assert "converge" not in fleet.calls("b")


def test_a_host_without_driver_fails_alone(fleet: Fleet) -> None:
    fleet.add("a")
    fleet.add("b", {"answer": {"error": "the driver is not loaded"}})
    run = fleet.play()
    assert run.exit_code != 0
    assert run.message() == "the driver is not loaded"
    assert run.changed() == {"a": [CONVERGE]}
    assert fleet.calls("b") == ["check"]


def test_a_host_that_cannot_be_reached_fails_alone(fleet: Fleet) -> None:
    fleet.add("a", ansible_connection="ssh", ansible_host="127.0.0.1", ansible_port=1, ansible_user="root")
    fleet.add("b")
    run = fleet.play()
    assert run.exit_code != 0
    assert "a" in run.of(LOOK, "unreachable")
    assert run.changed() == {"b": [CONVERGE]}


def test_batches_begin_after_all_hosts_were_looked_at(fleet: Fleet) -> None:
    for name in "abc":
        fleet.add(name)
    run = fleet.play(variables={"mps_serial": [1, 2]})
    assert run.exit_code == 0, run.output
    phases = [line["task"] for line in run.results if line["task"] in (LOOK, CONVERGE)]
    assert phases == [LOOK] * 3 + [CONVERGE] * 3
    assert run.output.count("PLAY [Converge the hosts that need it]") == 2


def test_a_failure_in_a_batch_leaves_the_next_alone(fleet: Fleet) -> None:
    fleet.add("a", {"answer": {"error": None}})
    fleet.add("b")
    place = fleet.root / "a"
    fleet.play("--check")
    (place / "behaviour.json").write_text(json.dumps({"converge_error": "mps-control@0.service: inactive"}))
    run = fleet.play(variables={"mps_serial": 1})
    assert run.exit_code != 0
    assert run.message() == "mps-control@0.service: inactive"
    assert fleet.calls("b") == ["check", "check"]


def test_noise_of_a_shell_is_no_answer(fleet: Fleet) -> None:
    fleet.add("a", {"noise": "Welcome!\n{not json}\n"})
    assert fleet.play().changed() == {"a": [CONVERGE]}


@pytest.mark.parametrize("content", ["", "PK broken", "import sys; print('usage: mpsctl'); sys.exit(2)"])
def test_a_broken_or_older_program_is_replaced(fleet: Fleet, content: str) -> None:
    place = fleet.add("a")
    (place / "mpsctl").write_text(content)
    run = fleet.play()
    assert run.exit_code == 0, run.output
    assert run.of(LOOK)["a"]["program_sent"]
    assert (place / "mpsctl").read_bytes() == FAKE.read_bytes()


def test_a_program_of_another_build_is_replaced(fleet: Fleet) -> None:
    place = fleet.add("a")
    (place / "mpsctl").write_text(FAKE.read_text().replace('"fake-build"', '"older-build"'))
    run = fleet.play("--check")
    assert run.changed() == {"a": [LOOK]}
    assert "older-build" in (place / "mpsctl").read_text()
    fleet.play()
    assert (place / "mpsctl").read_bytes() == FAKE.read_bytes()


def test_a_program_that_dies_is_quoted(fleet: Fleet) -> None:
    place = fleet.add("a", {"raw": "", "stderr": "Segmentation fault", "exit": 139})
    run = fleet.play()
    assert run.exit_code != 0
    assert run.message() == (
        "found no answer of mpsctl (exit code 139), expected one JSON object; it said: Segmentation fault"
    )
    assert not list((place / "tmp").iterdir())


def test_a_host_without_python_is_named_as_such(fleet: Fleet) -> None:
    fleet.add("a", ansible_python_interpreter="/opt/none/python3")
    message = fleet.play().message()
    assert message.startswith("found no /opt/none/python3 on this host, expected Python 3.9 or newer")
    assert "ansible_python_interpreter" in message


def test_the_interpreter_s_template_is_resolved(fleet: Fleet) -> None:
    """Ansible's own modules run by it as well."""
    fleet.add("a", ansible_python_interpreter="{{ interpreter_of_this_host }}", interpreter_of_this_host="/opt/none/py")
    assert fleet.play().message().startswith("found no /opt/none/py on this host")
    fleet.hosts["a"]["ansible_python_interpreter"] = "{{ not_defined_anywhere }}"
    assert "ansible_python_interpreter: found {{ not_defined_anywhere }}" in fleet.play().message()
    fleet.hosts["a"] = {"interpreter_of_this_host": fleet.python_of("a")}
    fleet.hosts["a"]["ansible_python_interpreter"] = "{{ interpreter_of_this_host }}"
    run = fleet.play()
    assert run.exit_code == 0, run.output


def test_of_each_instance_its_word_and_what_is_not_ok_is_kept(fleet: Fleet) -> None:
    checks = [{"name": "unit-active", "level": "ok"}, {"name": "drain", "level": "warning"}]
    instances = {"0": {"word": "warning", "facts": {"name": "0"}, "checks": checks}}
    fleet.add("a", {"answer": {"instances": instances}})
    assert fleet.play().of(LOOK)["a"]["instances"] == {"0": {"word": "warning", "checks": checks[1:]}}


DEFERRED = "mps : Say which clients are in the way of a restart"
WAITING = {
    "instance": "0",
    "why": "the GPU changed",
    "clients": [{"pid": 7, "uid": 1, "user": "alice", "command": "train", "age_s": 11_100}],
}


def defer(fleet: Fleet, *names: str) -> None:
    for name in names:
        (fleet.root / name / "behaviour.json").write_text(json.dumps({"answer": {"pending": [WAITING]}}))


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ({}, "mps_on_clients is refuse; wait or terminate would let it happen"),
        ({"mps_on_clients": "wait", "mps_drain_timeout_s": 20}, "waited 20 s for them"),
        ({"mps_on_clients": "terminate"}, "they could not be ended"),
    ],
)
def test_a_restart_that_was_withheld_fails_its_host_and_is_no_change(
    fleet: Fleet, policy: dict[str, object], says: str
) -> None:
    place = fleet.add("a")
    fleet.add("b")
    fleet.play()
    defer(fleet, "a")
    run = fleet.play(variables=policy)
    assert run.exit_code != 0
    assert run.changed() == {}
    assert list(run.of(DEFERRED, "failed")) == ["a"]
    assert run.message().startswith(
        "instance 0 waits for clients to leave: the GPU changed; clients: 7 (train, user alice, 3 h 5 min old);"
    )
    assert says in run.message()
    assert "WARNING" not in run.output
    desired = {"on_clients": "refuse", "drain_timeout_s": 300}
    assert json.loads((place / "policy").read_text()) == {
        **desired,
        **{key.removeprefix("mps_"): value for key, value in policy.items()},
    }


@pytest.mark.parametrize("serial", [1, "100%"])
def test_everything_else_is_done_before_a_withheld_restart_ends_the_run(fleet: Fleet, serial: object) -> None:
    for name in "abc":
        fleet.add(name)
    defer(fleet, "a", "b")
    run = fleet.play(variables={"mps_serial": serial})
    assert run.exit_code != 0
    assert run.changed() == {name: [CONVERGE] for name in "abc"}
    assert sorted(run.of(DEFERRED, "failed")) == ["a", "b"]


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("refuse", "mps_on_clients is refuse"),
        ("wait", "they would be given 300 s;"),
        ("terminate", "they would be given 300 s, then be ended;"),
    ],
)
def test_in_check_mode_a_withheld_restart_is_a_warning(fleet: Fleet, policy: str, says: str) -> None:
    fleet.add("a")
    fleet.play()
    defer(fleet, "a")
    run = fleet.play("--check", "-e", f"mps_on_clients={policy}")
    assert run.exit_code == 0, run.output
    said = " ".join(run.output.split())
    assert "instance 0 waits for clients to leave" in said
    assert says in said


@pytest.mark.parametrize(
    ("policy", "says"),
    [("wait", "they would be given 300 s;"), ("terminate", "they would be given 300 s, then be ended;")],
)
def test_in_check_mode_who_would_be_waited_for_is_a_warning(fleet: Fleet, policy: str, says: str) -> None:
    fleet.add("a")
    fleet.play()
    drain = {**WAITING, "kind": "drain", "text": "drain mps-control@0.service", "live": False, "ends_clients": False}
    (fleet.root / "a" / "behaviour.json").write_text(json.dumps({"answer": {"steps": [drain], "changed": True}}))
    run = fleet.play("--check", "-e", f"mps_on_clients={policy}")
    assert run.exit_code == 0, run.output
    said = " ".join(run.output.split())
    assert "clients: 7 (train, user alice, 3 h 5 min old)" in said
    assert says in said
    assert run.of(LOOK)["a"]["steps"] == [drain]
    assert "they would be given" not in fleet.play(variables={"mps_on_clients": policy}).output


def test_a_removal_asks_with_the_policy_and_fails_where_clients_stay(fleet: Fleet) -> None:
    place = fleet.add("a")
    fleet.play()
    playbook = Path(__file__).resolve().parents[3] / "playbooks" / "remove.yml"
    run = fleet.play(playbook=playbook, variables={"mps_on_clients": "wait", "mps_drain_timeout_s": 20})
    assert run.exit_code == 0, run.output
    assert json.loads((place / "policy").read_text()) == {"on_clients": "wait", "drain_timeout_s": 20}
    assert json.loads((place / "state.json").read_text())["remove"] is True
    answer = {"error": "instances with connected clients were left as they are", "pending": [WAITING]}
    (place / "behaviour.json").write_text(json.dumps({"answer": answer}))
    run = fleet.play(playbook=playbook)
    assert run.exit_code != 0
    assert "clients were left as they are" in run.message()


def test_changed_limits_alone_do_not_fail_by_a_withheld_restart(fleet: Fleet) -> None:
    fleet.add("a")
    fleet.play()
    defer(fleet, "a")
    run = fleet.play(playbook=Path(__file__).resolve().parents[3] / "playbooks" / "limits.yml")
    assert run.exit_code == 0, run.output
    assert "instance 0 waits for clients to leave" in " ".join(run.output.split())


def test_a_withheld_restart_ends_a_play_of_ones_own_as_well(fleet: Fleet) -> None:
    fleet.add("a")
    fleet.play()
    defer(fleet, "a")
    playbook = fleet.root / "own.yml"
    playbook.write_text("- hosts: gpu-nodes\n  gather_facts: false\n  roles: [mps]\n")
    run = fleet.play(playbook=playbook)
    assert run.exit_code != 0
    assert list(run.of(DEFERRED, "failed")) == ["a"]


MISSING = {
    "answer": {
        "missing": {"what": "nvidia-cuda-mps-control", "message": "found no nvidia-cuda-mps-control"},
        "changed": False,
        "actions": [],
        "diff": [],
    }
}


def test_a_missing_daemon_is_said_in_one_line(fleet: Fleet) -> None:
    fleet.add("a", MISSING)
    run = fleet.play()
    assert run.message() == "found no nvidia-cuda-mps-control"
    assert fleet.calls("a") == ["check"]


def test_a_missing_daemon_that_is_to_be_installed_shows_the_files_in_check_mode(fleet: Fleet) -> None:
    answer = {
        **MISSING["answer"],
        "changed": True,
        "actions": ["write unit"],
        "diff": [{"before_header": "u", "after_header": "u", "before": "", "after": "ExecStart=/usr/bin/x\n"}],
        "warnings": ["x is not installed yet: the unit is shown with its usual path /usr/bin/x"],
    }
    fleet.add("a", {"answer": answer})
    run = fleet.play("--check", "--diff", variables={"mps_package": True})
    assert run.exit_code == 0, run.output
    assert run.of(LOOK)["a"]["actions"] == ["install the package of nvidia-cuda-mps-control", "write unit"]
    assert "+ExecStart=/usr/bin/x" in run.output
    assert "shown with its usual path /usr/bin/x" in " ".join(run.output.split())
    assert fleet.play("--check").changed() == {}, "without mps_package it is a failure and no change"


def test_a_missing_daemon_that_is_to_be_installed_is_a_change_in_check_mode(fleet: Fleet) -> None:
    fleet.add("a", MISSING)
    run = fleet.play("--check", variables={"mps_package": True})
    assert run.exit_code == 0, run.output
    assert run.of(LOOK)["a"]["actions"] == ["install the package of nvidia-cuda-mps-control"]
    assert run.of(LOOK)["a"]["package_vars"] == "debian.yml"


@pytest.mark.parametrize(
    ("argument", "package"),
    [("mps_package=true", None), ("mps_package=yes", None), ("mps_package=nvidia-x-580", "nvidia-x-580")],
)
def test_a_package_from_the_command_line(fleet: Fleet, argument: str, package: str | None) -> None:
    """There everything is a text, so true must not become the name of a package."""
    fleet.add("a", MISSING)
    assert fleet.play("--check", "-e", argument).of(LOOK)["a"]["package"] == package


def test_no_package_from_the_command_line(fleet: Fleet) -> None:
    fleet.add("a", MISSING)
    assert fleet.play("-e", "mps_package=false").message() == "found no nvidia-cuda-mps-control"


@pytest.mark.parametrize(
    ("host", "line"),
    [
        ({"ID": "arch", "ID_LIKE": ""}, "a: mps_package: found true on the distribution 'arch'"),
        ({"ID": "ubuntu", "ID_LIKE": "debian", "driver_version": None}, "a: mps_package: found true and no loaded"),
    ],
)
def test_a_package_that_cannot_be_told_is_refused(fleet: Fleet, host: dict[str, str], line: str) -> None:
    fleet.add("a", {"answer": {**MISSING["answer"], "host": host}})
    fleet.add("b")
    run = fleet.play(variables={"mps_package": True})
    assert run.message().startswith(line)
    assert fleet.calls("b") == ["check", "converge"]


def test_sudo_takes_nothing_of_the_request(fleet: Fleet) -> None:
    """A sudo that asks for no password, and for a password; the request arrives whole behind either."""
    sudo = fleet.root / "sudo"
    sudo.write_text(
        "#!/bin/bash\n"
        'while [ $# -gt 0 ]; do case $1 in -p) printf %s "$2" >&2; IFS= read -r secret; [ "$secret" = open ] || exit 1;'
        " shift;; /bin/sh) break;; esac; shift; done\n"
        'exec "$@"\n'
    )
    sudo.chmod(0o755)
    place = fleet.add("a", ansible_become_password="open")
    fleet.add("b")
    become = {"ansible_become": True, "ansible_become_exe": str(sudo), "ansible_become_user": "root2"}
    run = fleet.play(variables=become)
    assert run.exit_code == 0, run.output
    assert run.changed() == {"a": [CONVERGE], "b": [CONVERGE]}
    assert json.loads((place / "state.json").read_text())["format"] == 2


def test_the_environment_of_a_task_reaches_the_program(fleet: Fleet) -> None:
    place = fleet.add("a")
    playbook = fleet.root / "own.yml"
    playbook.write_text(
        "- hosts: gpu-nodes\n  gather_facts: false\n  environment: {FAKE_ANSWER_TO: 'a b'}\n"
        "  tasks:\n    - import_role: {name: mps, rolespec_validate: false}\n"
    )
    assert fleet.play(playbook=playbook).exit_code == 0
    assert "FAKE_ANSWER_TO=a b" in (place / "environment").read_text().splitlines()


@pytest.mark.parametrize("how", ["roles", "import_role"])
def test_the_role_in_a_play_of_ones_own(fleet: Fleet, how: str) -> None:
    """With the automatic check of its arguments as well, which costs a task on each host."""
    fleet.add("a", mps_compute_mode=None, mps_active_thread_percentage=33.3)
    playbook = fleet.root / "own.yml"
    use = "  roles: [mps]\n" if how == "roles" else "  tasks:\n    - import_role: {name: mps}\n"
    playbook.write_text(f"- hosts: gpu-nodes\n  gather_facts: false\n{use}")
    run = fleet.play(playbook=playbook)
    assert run.exit_code == 0, run.output
    conf = json.loads((fleet.root / "a" / "state.json").read_text())["instance_per_gpu"]
    assert "ComputeMode=" not in conf
    assert "ActiveThreadPercentage=33.3" in conf


def test_no_run_warns(fleet: Fleet) -> None:
    fleet.add("a")
    for arguments in (("--check", "--diff"), ("-l", "gpu-nodes"), ()):
        output = fleet.play(*arguments).output
        assert "WARNING" not in output
        assert "DEPRECATION" not in output


def test_the_real_program_is_built_and_carried(fleet: Fleet) -> None:
    """The real mpsctl answers from Ansible's temporary directory; this machine has no daemon."""
    place = fleet.add("a")
    run = fleet.play("--check", fake=False)
    assert run.of(LOOK), run.output
    assert not list((place / "tmp").iterdir())
    assert not (place / "mpsctl").exists()


def test_results_are_readable(fleet: Fleet) -> None:
    """A failure shows its line whole, not as one string with escapes."""
    fleet.add("a", {"answer": {"refused": "mps_x: found 'é', expected 'ü'; do"}})
    fleet.add("b", {"answer": {"refused": 'mps_y: found "q", expected p; do'}})
    output = fleet.play().output
    assert "a: mps_x: found 'é', expected 'ü'; do\n" in output
    assert "\\n" not in output


def test_the_playbooks_are_found_from_the_project(fleet: Fleet) -> None:
    assert (Path(__file__).resolve().parents[3] / "site.yml").is_file()
    fleet.add("a")
    assert fleet.play("--list-tasks").exit_code == 0


@pytest.mark.parametrize(("number", "when"), [(9, "look"), (15, "look"), (2, "look"), (9, "converge")])
def test_a_program_that_somebody_killed_is_not_begun_anew(fleet: Fleet, number: int, when: str) -> None:
    """It would drain again, and restart, behind his back."""
    place = fleet.add("a")
    assert fleet.play().exit_code == 0
    killed = f'import os, sys\nif ("--check" in sys.argv) == {when == "look"}:\n    os.kill(os.getpid(), {number})\n'
    (place / "mpsctl").write_text(killed + FAKE.read_text().partition("\n")[2])
    (place / "calls").unlink()
    run = fleet.play(variables={"mps_device_memory_limit": "7G"})
    assert run.exit_code != 0
    assert f"found no answer of mpsctl (exit code {128 + number})" in run.message()
    assert fleet.calls("a") == ([] if when == "look" else ["check"])


def test_a_program_that_is_damaged_is_replaced(fleet: Fleet) -> None:
    place = fleet.add("a")
    assert fleet.play().exit_code == 0
    (place / "mpsctl").write_text("half a progr(")
    assert fleet.play().exit_code == 0
    assert (place / "mpsctl").read_bytes() == FAKE.read_bytes()
