"""Clients in containers of podman and in quadlets: each arrives at its instance as its user by the daemon's own log,
and again after a stop and start of MPS, after a converge and after a reboot."""

from __future__ import annotations

from typing import Iterator

import pytest

from . import containers
from .containers import (
    OWNER,
    PODMAN,
    Host,
    a_converge_changes_nothing,
    all_arrived,
    example,
    reboot,
    stop_and_start,
    taken_off_before_its_end,
)

QUADLETS = "/etc/containers/systemd"


_OF_THE_LAB = "Pull=never\nCgroupsMode=disabled\n"
"""A host of the lab has no controllers of control groups, and no registry."""


@pytest.fixture(scope="module")
def podman() -> Iterator[Host]:
    with containers.host("ship-podman", PODMAN, "trixie") as made:
        quadlet = example("api.container", lambda text: text.replace("User=1000\n", _OF_THE_LAB))
        made.write(f"{QUADLETS}/api.container", quadlet)
        words = "[Container]\nImage=localhost/client:lab\n" + _OF_THE_LAB + "User=1000\n"
        restart = "[Unit]\nStartLimitIntervalSec=0\n[Service]\nRestart=always\n[Install]\nWantedBy=multi-user.target\n"
        made.write(f"{QUADLETS}/words.container", words + restart)
        made.run(
            f"mkdir {QUADLETS}/words.container.d; mpsctl env 1 --format quadlet >{QUADLETS}/words.container.d/mps.conf"
        )
        made.run("systemctl daemon-reload; systemctl start api words")
        yield made


OF_PODMAN = (("systemd-api", "0", 0), ("systemd-words", "1", OWNER))


def test_quadlets_arrive(podman: Host) -> None:
    all_arrived(podman, OF_PODMAN)


def test_quadlets_over_a_stop_and_start_of_mps(podman: Host) -> None:
    stop_and_start(podman, OF_PODMAN)


@pytest.mark.parametrize(("unit", "instance", "uid"), [("api", "0", 0), ("words", "1", OWNER)])
def test_a_quadlet_takes_its_client_off_first(podman: Host, unit: str, instance: str, uid: int) -> None:
    taken_off_before_its_end(podman, unit, f"systemd-{unit}", instance, uid)


def test_quadlets_over_a_converge_and_a_reboot(podman: Host) -> None:
    a_converge_changes_nothing(podman, OF_PODMAN)
    reboot(podman)
    all_arrived(podman, OF_PODMAN)


@pytest.mark.parametrize("kind", ["cdi", "podman"])
def test_podman_run(podman: Host, kind: str) -> None:
    podman.engine_run(kind, f"--user {OWNER} $(mpsctl env 1 --format {kind})")
    podman.arrived(kind, "1", OWNER)
    podman.run(f"podman inspect {kind} >/root/inspected.json")
    assert "nothing found" in podman.run("mpsctl doctor --container /root/inspected.json")
    podman.run(f"podman rm --force --time 1 {kind}")


def test_podman_of_a_user_without_rights(podman: Host) -> None:
    call = containers.rootless(podman)
    before = podman.newcomers("1")
    podman.run(f"{call} run --rm --device nvidia.com/gpu=1 --device mps-fleet/instance=1 {containers.IMAGE} --hold 0")
    assert {uid for _, uid in podman.newcomers("1") - before} == {OWNER}


def test_a_container_can_neither_change_the_directory_nor_reach_another_instance(podman: Host) -> None:
    shell = f"podman run --rm --entrypoint /bin/busybox --device mps-fleet/instance=0 {containers.IMAGE} sh -c"
    said = podman.run(
        f"{shell} 'rm /run/nvidia-mps/0/control; touch /run/nvidia-mps/0/x; ls /run/nvidia-mps'", check=False
    )
    assert said.count("Read-only file system") == 2
    assert [line for line in said.splitlines() if "Read-only" not in line] == ["0"], "no other instance is there"


def test_the_devices_go_with_the_variable_and_leave_nvidias(podman: Host) -> None:
    podman.converge("mps_cdi=false")
    assert podman.run("ls /etc/cdi").split() == ["nvidia.yaml"]
    run = f"podman run --rm --device mps-fleet/instance=0 {containers.IMAGE} --hold 0"
    assert "unresolvable CDI devices" in podman.run(run, check=False)
    podman.converge()
    assert '"outcome": "client"' in podman.run(run)


def test_podman_of_debian_12() -> None:
    """podman 4.3 takes the specification too."""
    with containers.host("ship-old-podman", PODMAN, "bookworm") as old:
        old.engine_run("cdi", f"--user {OWNER} $(mpsctl env 1 --format cdi)")
        old.engine_run("words", "$(mpsctl env 0 --format podman)")
        all_arrived(old, (("cdi", "1", OWNER), ("words", "0", 0)))
