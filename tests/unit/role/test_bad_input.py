"""Bad input is refused before anything is run on any host, in one line that names the variable."""

from __future__ import annotations

from typing import Any

import pytest

from fleet import Fleet

LIMIT, PERCENT, INSTANCES = "mps_device_memory_limit", "mps_active_thread_percentage", "mps_instances"
OVER, SHARES = "mps_over_expected", "mps_shares"
LONG = "/run/" + "p" * 70

BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    # host: (its variables, the name the line begins with, a part of the line)
    "limit-bare": ({LIMIT: "20"}, LIMIT, "found '20'"),
    "limit-bare-number": ({LIMIT: 20}, LIMIT, "found 20"),
    "limit-gb": ({LIMIT: "20GB"}, LIMIT, "write 20G"),
    "limit-fraction": ({LIMIT: "1.5G"}, LIMIT, "write 1536M"),
    "limit-negative": ({LIMIT: "-1G"}, LIMIT, "found '-1G'"),
    "limit-zero": ({LIMIT: "0"}, LIMIT, "found '0'"),
    "limit-over-all": ({LIMIT: "101%"}, LIMIT, "found '101%'"),
    "limit-mb": ({LIMIT: "8192MB"}, LIMIT, "write 8192M"),
    "limit-bytes": ({LIMIT: "8589934592"}, LIMIT, "write 8192M"),
    "limit-bytes-number": ({LIMIT: 8589934592}, LIMIT, "write 8192M"),
    **{
        f"pipe-root-{where.strip('/').replace('/', '-')}": ({"mps_pipe_root": where}, "mps_pipe_root", why)
        for where, why in {
            "/etc/mps": "a path outside /etc",
            "/usr/local/mps": "a path outside /usr",
            "/home/mps": "a path outside /home",
            "/proc/mps": "a path outside /proc",
            "/sys/mps": "a path outside /sys",
        }.items()
    },
    "limit-of-thousands-of-digits": ({LIMIT: "9" * 5000 + "G"}, LIMIT, "found '999"),
    "clients-of-thousands-of-digits": ({"mps_expected_clients": "9" * 5000}, "mps_expected_clients", "whole number"),
    "group-that-is-nobody": ({"mps_group": 4294967295}, "mps_group", "a group's number up to 4294967293"),
    "group-null-key": ({"mps_shares": {None: 1}}, "mps_shares", "found"),
    "limit-list": ({LIMIT: ["4G"]}, LIMIT, "expected <integer>M"),
    "percent-zero": ({PERCENT: 0}, PERCENT, "found 0"),
    "percent-over": ({PERCENT: 101}, PERCENT, "found 101"),
    "percent-word": ({PERCENT: "abc"}, PERCENT, "found 'abc'"),
    "percent-yes": ({PERCENT: True}, PERCENT, "found True"),
    "priority": ({"mps_client_priority": 2}, "mps_client_priority", "0 (normal) or 1"),
    "clients-none": ({"mps_expected_clients": 0}, "mps_expected_clients", "a whole number of clients"),
    "clients-over-every-cap": ({"mps_expected_clients": 61}, "mps_expected_clients", "at most 60"),
    "clients-over-all": ({LIMIT: "20%", "mps_expected_clients": 6}, "mps_expected_clients", "6 clients x 20% = 120 %"),
    "own-clients-over-all": (
        {LIMIT: "50%", INSTANCES: [{"name": "a", "gpus": ["0"], "expected_clients": 3}]},
        f"{INSTANCES}[a]",
        "3 clients x 50% = 150 %",
    ),
    "mode": ({"mps_compute_mode": "exclusive"}, "mps_compute_mode", "expected exclusive_process or default"),
    "group": ({"mps_group": "no group"}, "mps_group", "a group's name or number"),
    "group-without-door": ({"mps_group": "video", "mps_front_door": False}, "mps_group", "without the front door"),
    "front-door": ({"mps_front_door": "perhaps"}, "mps_front_door", "yes or no"),
    "bypass-policy": ({"mps_limit_bypass": "kill"}, "mps_limit_bypass", "report, refuse or terminate"),
    "bypass-without-door": (
        {"mps_limit_bypass": "refuse", "mps_front_door": False},
        "mps_limit_bypass",
        "refuse without the front door",
    ),
    "over-expected-word": ({OVER: "queue"}, OVER, "admit, wait or refuse"),
    "over-expected-alone": ({OVER: "wait"}, OVER, "wait without a number of clients"),
    "over-expected-without-door": (
        {OVER: "refuse", "mps_expected_clients": 4, "mps_front_door": False},
        OVER,
        "refuse without the front door",
    ),
    "shares-nobody-holds": ({SHARES: {"each_user": 2}}, SHARES, "write mps_over_expected: wait"),
    "share-over-all": (
        {OVER: "wait", "mps_expected_clients": 4, SHARES: {"units": {"api.service": 5}}},
        SHARES,
        "unit:api.service=5, with mps_expected_clients 4",
    ),
    "share-over-every-cap": ({OVER: "wait", SHARES: {"each_user": 61}}, SHARES, "each-user=61: 61 clients on one GPU"),
    "share-over-all-memory": (
        {OVER: "wait", LIMIT: "20%", SHARES: {"users": {"alice": 6}}},
        SHARES,
        "user:alice=6: 6 clients x 20% = 120 %",
    ),
    "shares-list": ({SHARES: [{"each_user": 2}]}, SHARES, "shares of units, users and containers"),
    "shares-template": ({OVER: "wait", SHARES: {"units": {"api@.service": 2}}}, SHARES, "name its instances"),
    "own-share-over-all": (
        {
            OVER: "wait",
            "mps_expected_clients": 4,
            INSTANCES: [
                {"name": "a", "gpus": ["0"], "shares": {"each_user": 5}},
                {"name": "b", "gpus": ["1"], "shares": {"each_user": 4}},
            ],
        },
        f"{INSTANCES}[a].shares",
        "each-user=5, with mps_expected_clients 4",
    ),
    "share-over-an-entrys-clients": (
        {
            OVER: "wait",
            "mps_expected_clients": 8,
            SHARES: {"each_user": 5},
            INSTANCES: [{"name": "a", "gpus": ["0"]}, {"name": "b", "gpus": ["1"], "expected_clients": 4}],
        },
        f"{INSTANCES}[b].shares",
        "each-user=5, with mps_expected_clients 4",
    ),
    "own-over-expected-alone": (
        {INSTANCES: [{"name": "a", "gpus": ["0"], "over_expected": "refuse"}]},
        f"{INSTANCES}[a].over_expected",
        "refuse without a number of clients",
    ),
    "one-fault-of-many-instances": (
        {OVER: "wait", INSTANCES: [{"name": name, "gpus": [name]} for name in "123"]},
        OVER,
        "wait without a number of clients",
    ),
    "distributed jobs": ({"mps_distributed_jobs": "end"}, "mps_distributed_jobs", "ignore, warn or fail"),
    "bypass-grace": ({"mps_limit_bypass_grace_s": 0}, "mps_limit_bypass_grace_s", "whole seconds"),
    "on clients": ({"mps_on_clients": "kill"}, "mps_on_clients", "refuse, wait or terminate"),
    "on clients null": ({"mps_on_clients": None}, "mps_on_clients", "found null"),
    "drain timeout": ({"mps_drain_timeout_s": 0}, "mps_drain_timeout_s", "whole seconds"),
    "unresponsive daemon": ({"mps_unresponsive_daemon": "kill"}, "mps_unresponsive_daemon", "report or restart"),
    "timeout": ({"mps_driver_timeout_s": "soon"}, "mps_driver_timeout_s", "whole seconds"),
    "one-gpu-twice": (
        {INSTANCES: [{"name": "a", "gpus": ["0"]}, {"name": "b", "gpus": [1, 0]}]},
        INSTANCES,
        "GPU 0 in the instances 'a' and 'b'",
    ),
    "one-name-twice": ({INSTANCES: [{"name": "a", "gpus": [0]}, {"name": "a", "gpus": [1]}]}, INSTANCES, "'a'"),
    "no-gpu": ({INSTANCES: [{"name": "a", "gpus": []}]}, f"{INSTANCES}[a]", "at least one GPU"),
    "gpus-no-list": ({INSTANCES: [{"name": "a", "gpus": "0"}]}, f"{INSTANCES}[a]", "expected a list"),
    "gpu-word": ({INSTANCES: [{"name": "a", "gpus": ["first"]}]}, f"{INSTANCES}[a]", "found 'first'"),
    "no-instance": ({INSTANCES: []}, INSTANCES, "write null"),
    "instances-word": ({INSTANCES: "all"}, INSTANCES, "expected a list"),
    "name-slash": ({INSTANCES: [{"name": "a/b", "gpus": ["0"]}]}, INSTANCES, "'a/b'"),
    "name-at": ({INSTANCES: [{"name": "a@b", "gpus": ["0"]}]}, INSTANCES, "'a@b'"),
    "name-space": ({INSTANCES: [{"name": "a b", "gpus": ["0"]}]}, INSTANCES, "'a b'"),
    "name-long": ({INSTANCES: [{"name": "n" * 40, "gpus": ["0"]}]}, INSTANCES, "1 to 32"),
    "own-limit": (
        {INSTANCES: [{"name": "a", "gpus": ["0"], "device_memory_limit": "20GB"}]},
        f"{INSTANCES}[a].device_memory_limit",
        "write 20G",
    ),
    "own-typo": ({INSTANCES: [{"name": "a", "gpus": ["0"], "gpu": 1}]}, f"{INSTANCES}[a]", "did you mean gpus?"),
    "pipe-long": ({"mps_pipe_root": LONG + "/x"}, "mps_pipe_root", "at most 74 bytes"),
    "pipe-long-name": (
        {"mps_pipe_root": LONG[:50], INSTANCES: [{"name": "n" * 30, "gpus": ["0"]}]},
        "mps_pipe_root",
        "shorten it",
    ),
    "pipe-tmp": ({"mps_pipe_root": "/tmp/mps"}, "mps_pipe_root", "outside /tmp"),
    "pipe-shm": ({"mps_pipe_root": "/dev/shm/mps"}, "mps_pipe_root", "outside /dev/shm"),
    "pipe-root": ({"mps_pipe_root": "/root/mps"}, "mps_pipe_root", "outside /root"),
    "pipe-null": ({"mps_pipe_root": None}, "mps_pipe_root", "found null"),
    "unknown": ({"mps_device_memory_limt": "4G"}, "mps_device_memory_limt", "did you mean mps_device_memory_limit?"),
    "unknown-far": ({"mps_zzz": 1}, "mps_zzz", "see roles/mps/README.md"),
    "package": ({"mps_package": "a; b"}, "mps_package", "a package's name"),
    "template": ({LIMIT: "{{ nowhere }}"}, LIMIT, "nowhere"),
}


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> tuple[Fleet, Any]:
    """One run over a host for each bad value, and one good host; no host can be reached."""
    fleet = Fleet(tmp_path_factory.mktemp("bad"))
    for name, (variables, _, _) in BAD.items():
        fleet.add(name, **variables)
    fleet.add("good", mps_device_memory_limit="4G")
    touched = fleet.root / "touched"
    ssh = fleet.root / "ssh"
    ssh.write_text(f"#!/bin/sh\ntouch {touched}\nexit 255\n")
    ssh.chmod(0o755)
    return fleet, fleet.play(fake=False, variables={"ansible_connection": "ssh", "ansible_ssh_executable": str(ssh)})


@pytest.mark.parametrize("host", BAD)
def test_each_bad_value_has_its_line(refused: tuple[Fleet, Any], host: str) -> None:
    _, begins, part = BAD[host]
    lines = refused[1].message().splitlines()
    mine = [line for line in lines if host in line.split(": ", 1)[0].split(", ")]
    assert len(mine) == 1, lines
    variable, _, rest = mine[0].split(": ", 1)[1].partition(": ")
    assert variable == begins
    assert part in rest
    assert rest.startswith("found ")
    assert "expected " in rest
    assert ";" in rest


def test_no_host_was_touched(refused: tuple[Fleet, Any]) -> None:
    fleet, run = refused
    assert run.exit_code != 0
    assert not (fleet.root / "touched").exists()
    assert not run.of("mps : Look at the host")
    assert "good" not in run.message()


def test_what_many_hosts_have_wrong_is_said_once(fleet: Fleet) -> None:
    for number in range(6):
        fleet.add(f"n{number}")
    run = fleet.play(fake=False, variables={LIMIT: "20GB"})
    assert run.message() == (
        "n0, n1, n2, n3 and 2 more: mps_device_memory_limit: found '20GB', expected <integer>M, <integer>G or"
        " <number>% of the GPU's memory; write 20G"
    )


@pytest.mark.parametrize("value", ["all", 0, "0%", "120%", [], [1, "x"], True])
def test_a_batch_size_is_checked_before_the_play_that_uses_it(fleet: Fleet, value: Any) -> None:
    fleet.add("a")
    run = fleet.play(fake=False, extra={"mps_serial": value})
    assert run.message().startswith("a: mps_serial: found ")
    assert not fleet.calls("a")


def test_hosts_that_disagree_on_the_batch_size(fleet: Fleet) -> None:
    fleet.add("a", mps_serial=1)
    fleet.add("b", mps_serial="20%")
    assert "mps_serial: found 1 on a, '20%' on b, expected one value" in fleet.play(fake=False).message()


def test_a_value_that_only_a_play_gives_is_refused_before_any_change(fleet: Fleet) -> None:
    """mps_validate sees what belongs to hosts; the variables of a play of one's own are seen by the look."""
    fleet.add("a")
    fleet.add("b")
    playbook = fleet.root / "own.yml"
    playbook.write_text(
        "- hosts: gpu-nodes\n  gather_facts: false\n  vars: {mps_device_memory_limit: 20GB}\n"
        "  tasks:\n    - import_role: {name: mps, rolespec_validate: false}\n"
    )
    run = fleet.play(playbook=playbook)
    assert run.failures() == {
        host: f"{host}: mps_device_memory_limit: found '20GB', expected <integer>M, <integer>G or <number>% of the"
        " GPU's memory; write 20G"
        for host in ("a", "b")
    }
    assert not fleet.calls("a") + fleet.calls("b")


def test_a_bad_value_that_a_play_gives_one_host_stops_all_before_any_change(fleet: Fleet) -> None:
    fleet.add("a")
    fleet.add("b")
    playbook = fleet.root / "own.yml"
    playbook.write_text(
        "- hosts: gpu-nodes\n  gather_facts: false\n"
        "  vars: {mps_device_memory_limit: \"{{ '20GB' if inventory_hostname == 'b' else '20G' }}\"}\n"
        "  tasks:\n    - import_role: {name: mps, rolespec_validate: false}\n"
    )
    run = fleet.play(playbook=playbook)
    assert run.exit_code != 0
    assert list(run.failures()) == ["b"]
    assert (fleet.calls("a"), fleet.calls("b")) == (["check"], [])
