"""Nobody acts, and MPS comes back with its limits."""

from __future__ import annotations

from typing import Any, Callable

testinfra_hosts = ["ansible://gpu-nodes"]


def test_after_kill_9_the_limit_is_in_force_again(
    host: Any,
    ask: Callable[[str, str], str],
    eventually: Callable[..., None],
    status: Callable[[], dict[str, Any]],
    as_desired: Callable[..., bool],
) -> None:
    before = int(host.service("mps-control@0").systemd_properties["MainPID"])
    other = int(host.service("mps-control@1").systemd_properties["MainPID"])
    assert host.run(f"kill -9 {before}").rc == 0
    eventually("another daemon", lambda: status()["0"]["unit"]["main_pid"] not in (0, before))
    eventually("the limit is in force", lambda: ask("0", "get_default_device_pinned_mem_limit 0") == "4G")
    eventually("all is in the desired state", as_desired)
    assert int(host.service("mps-control@1").systemd_properties["MainPID"]) == other, "its neighbour was left alone"


def test_a_limit_changed_by_hand_is_found_and_a_reload_brings_the_desired_one_back(
    host: Any, ask: Callable[[str, str], str], status: Callable[[], dict[str, Any]]
) -> None:
    pid = status()["1"]["unit"]["main_pid"]
    ask("1", "set_default_device_pinned_mem_limit 0 20M")
    found = host.run("mpsctl status 1")
    assert found.rc == 1
    assert "20M" in found.stdout
    assert host.run("systemctl reload mps-control@1").rc == 0
    assert ask("1", "get_default_device_pinned_mem_limit 0") == "4G"
    assert status()["1"]["unit"]["main_pid"] == pid


def test_a_real_stop_brings_the_compute_mode_back_and_a_start_takes_it_again(
    host: Any, status: Callable[[], dict[str, Any]], as_desired: Callable[..., bool]
) -> None:
    assert host.run("systemctl stop mps-control@1").rc == 0
    assert status()["1"]["devices"][0]["gpu"]["compute_mode"] == "default"
    assert not host.file("/run/mps-fleet/1/pipe").exists
    assert host.file("/run/mps-fleet/0/pipe/control").exists, "its neighbour was left alone"
    assert host.file("/run/nvidia-mps/1/control").is_socket, "whoever comes is told that it is stopped"
    assert host.run("systemctl start mps-control@1").rc == 0
    assert as_desired("1")


def test_clients_find_the_front_door_and_nothing_else(host: Any) -> None:
    """The public directory holds the door's socket, the relative link to it, and what keeps other daemons away."""
    entries = host.run("find /run/nvidia-mps/0 -mindepth 1 -maxdepth 1 -printf '%f %y %m %l\\n' | sort").stdout
    found = {fields[0]: fields[1:] for fields in map(str.split, entries.splitlines())}
    assert found == {"control": ["l", "777", "front-door"], "control_lock": ["d", "755"], "front-door": ["s", "666"]}


def test_the_daemons_own_directory_is_roots_alone(host: Any) -> None:
    entries = host.run("find /run/mps-fleet/0/pipe -printf '%f %m %U %G\\n'").stdout
    found = {fields[0]: (fields[1], fields[2], fields[3]) for fields in map(str.split, entries.splitlines())}
    assert found.pop("pipe") == ("710", "0", "0"), "servers of other users keep root's group"
    assert found.pop("control") == ("660", "0", "0")
    assert set(found) >= {"control_privileged", "control_lock", "log"}
    assert set(found.values()) == {("600", "0", "0")}


def test_a_host_without_the_daemon_skips_the_unit_and_says_why(host: Any) -> None:
    binary = "/usr/bin/nvidia-cuda-mps-control"
    assert host.run("systemctl stop mps-control@1").rc == 0
    assert host.run(f"mv {binary} {binary}.away").rc == 0
    try:
        host.run("systemctl start mps-control@1")
        shown = host.service("mps-control@1").systemd_properties
        assert (shown["ActiveState"], shown["Result"]) == ("inactive", "exec-condition")
        journal = host.run("journalctl -u mps-control@1 -b -o cat --no-pager -n 5").stdout
        assert "skipped: nvidia-cuda-mps-control is not installed" in journal
    finally:
        assert host.run(f"mv {binary}.away {binary}").rc == 0
    assert host.run("systemctl start mps-control@1").rc == 0


def test_the_bytecode_is_kept_and_root_alone_can_write_it(host: Any) -> None:
    kept = host.run("find /var/cache/mps-fleet -type f -printf '%U %m %f\\n'").stdout.split()
    assert kept[:2] == ["0", "644"]
    assert kept[2].startswith("mpsctl-")
    assert len(kept) == 3
