"""Clients in containers, by docker, compose, podman and quadlets: each arrives at its instance as its user by the
daemon's own log, and again after a stop and start of MPS, after a converge and after a reboot."""

from __future__ import annotations

import json
import re
from typing import Iterator

import pytest

from . import containers
from .containers import DOCKER, OWNER, PODMAN, Host, example
from .front_door import until

QUADLETS = "/etc/containers/systemd"


@pytest.fixture(scope="module")
def docker() -> Iterator[Host]:
    with containers.host("ship-docker", DOCKER, "trixie") as made:
        _compose(made)
        made.engine_run("run-cdi", "--device nvidia.com/gpu=0 --device mps-fleet/instance=0")
        made.engine_run("run-words", f"--user {OWNER} $(mpsctl env 1 --format docker)")
        made.engine_run("run-both", f"--user {OWNER} $(mpsctl env 1 --format cdi)")
        unit = example("docker-api.service", lambda text: _without_network(text).replace(" --user 1000", ""))
        made.write("/etc/systemd/system/docker-api.service", unit)
        made.run("systemctl daemon-reload; systemctl enable -q docker-api; systemctl start docker-api")
        yield made


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


_OF_THE_LAB = "Pull=never\nCgroupsMode=disabled\n"
"""A host of the lab has no controllers of control groups, and no registry."""


def _without_network(text: str) -> str:
    return text.replace("--name api", "--name api --network none")


def _compose(host: Host) -> None:
    """Two projects, as the docs have them; the one by CDI is root's."""
    no_network = "    network_mode: none\n    stop_grace_period: 1s\n    restart: always\n"
    text = example(
        "compose.yaml", lambda text: text.replace("    restart: always\n", no_network).replace("mps-0", "mps-1")
    )
    host.write("/srv/words/compose.yaml", text)
    host.run("cd /srv/words && mpsctl env 1 --format compose >mps-1.yaml")
    text = example(
        "compose-cdi.yaml",
        lambda text: text.replace("    restart: always\n", no_network).replace('    user: "1000"\n', ""),
    )
    host.write("/srv/cdi/compose.yaml", text)
    for project in ("words", "cdi"):
        host.run(f"cd /srv/{project} && docker compose up -d")


OF_DOCKER = (
    ("run-cdi", "0", 0),
    ("run-words", "1", OWNER),
    ("run-both", "1", OWNER),
    ("words-api-1", "1", OWNER),
    ("cdi-api-1", "0", 0),
    ("api", "0", 0),
)
"""Each container with the instance and the user that it is to arrive at and as."""
BY_CDI = ("run-cdi", "run-both", "cdi-api-1")
OF_PODMAN = (("systemd-api", "0", 0), ("systemd-words", "1", OWNER))


def all_arrived(host: Host, forms: tuple[tuple[str, str, int], ...], not_: dict[str, int]) -> dict[str, int]:
    return {name: host.arrived(name, instance, uid, not_.get(name, 0)) for name, instance, uid in forms}


def stop_and_start(host: Host, forms: tuple[tuple[str, str, int], ...]) -> None:
    """MPS is stopped long enough for each client to end and to be refused several times, and started."""
    before = all_arrived(host, forms, {})
    host.mps("stop")
    refused = "journalctl -b -q -o cat -t mps-front-door@{} MPS_EVENT=refused | wc -l"
    for instance in {instance for _, instance, _ in forms}:
        until(lambda name=instance: int(host.run(refused.format(name))) >= 3, f"clients of {instance} are refused")
    host.mps("start")
    all_arrived(host, forms, before)


def a_converge_changes_nothing(host: Host, forms: tuple[tuple[str, str, int], ...]) -> None:
    before = all_arrived(host, forms, {})
    assert "changed=1" not in host.converge()
    assert {name: host.pid(name) for name, _, _ in forms} == before


def reboot(host: Host) -> None:
    boot = host.run("cat /proc/sys/kernel/random/boot_id")
    host.run("systemctl reboot", check=False)

    def is_back() -> bool:
        said = host.run("cat /proc/sys/kernel/random/boot_id", check=False)
        return said != boot and len(said.split()) == 1

    until(is_back, "the host is back")


def taken_off_before_its_end(host: Host, unit: str, name: str, form: tuple[str, int]) -> None:
    """A stop has the daemon take the unit's client off, and this before the client's process gets a signal."""
    instance, uid = form
    pid = host.arrived(name, instance, uid)
    host.run(f"systemctl stop {unit}")
    log = host.run(f"journalctl -b -q -o cat -t mps-control@{instance}")
    assert re.search(rf"terminate_client \d+ {pid}\b", log), log
    said = host.run(f"journalctl -b -q -o json MPS_EVENT=end-client MPS_INSTANCE={instance}").splitlines()
    assert f"client {pid} (" in str(json.loads(said[-1])["MESSAGE"]), said[-1]
    ended_with = host.run(f"systemctl show --value -p ExecMainStatus {unit}").strip()
    assert ended_with == "7", "it lost its server and ended by itself, no signal ended it"
    host.run(f"systemctl start {unit}")
    host.arrived(name, instance, uid, not_=pid)


def test_each_form_of_docker_arrives(docker: Host) -> None:
    all_arrived(docker, OF_DOCKER, {})


def test_docker_over_a_stop_and_start_of_mps(docker: Host) -> None:
    stop_and_start(docker, OF_DOCKER)


def test_docker_over_a_converge(docker: Host) -> None:
    a_converge_changes_nothing(docker, OF_DOCKER)


def test_the_doctor_finds_nothing_amiss_in_a_docker_container_by_cdi(docker: Host) -> None:
    docker.run("docker inspect run-both >/root/both.json")
    assert "nothing found" in docker.run("mpsctl doctor --container /root/both.json")


def test_a_unit_around_docker_takes_its_client_off_first(docker: Host) -> None:
    taken_off_before_its_end(docker, "docker-api", "api", ("0", 0))


def test_docker_after_a_reboot_but_for_the_engines_own_containers_by_cdi(docker: Host) -> None:
    """Docker 26 does not bring these back (moby#49989); the docs say so, and have a unit around them."""
    before = all_arrived(docker, OF_DOCKER, {})
    reboot(docker)
    all_arrived(docker, tuple(form for form in OF_DOCKER if form[0] not in BY_CDI), before)
    log = docker.run("journalctl -b -q -o cat -u docker")
    assert log.count('could not select device driver \\"cdi\\"') == len(BY_CDI)
    docker.run(f"docker start {' '.join(BY_CDI)}")
    all_arrived(docker, tuple(form for form in OF_DOCKER if form[0] in BY_CDI), before)


def test_quadlets_arrive(podman: Host) -> None:
    all_arrived(podman, OF_PODMAN, {})


def test_quadlets_over_a_stop_and_start_of_mps(podman: Host) -> None:
    stop_and_start(podman, OF_PODMAN)


@pytest.mark.parametrize(("unit", "form"), [("api", ("0", 0)), ("words", ("1", OWNER))])
def test_a_quadlet_takes_its_client_off_first(podman: Host, unit: str, form: tuple[str, int]) -> None:
    taken_off_before_its_end(podman, unit, f"systemd-{unit}", form)


def test_quadlets_over_a_converge_and_a_reboot(podman: Host) -> None:
    a_converge_changes_nothing(podman, OF_PODMAN)
    before = all_arrived(podman, OF_PODMAN, {})
    reboot(podman)
    all_arrived(podman, OF_PODMAN, before)


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


def test_the_engines_of_debian_12() -> None:
    """podman 4.3 takes the specification, docker 20.10 and compose 1.29 the words for engines without CDI."""
    with containers.host("ship-old-podman", PODMAN, "bookworm") as old:
        old.engine_run("cdi", f"--user {OWNER} $(mpsctl env 1 --format cdi)")
        old.engine_run("words", "$(mpsctl env 0 --format podman)")
        all_arrived(old, (("cdi", "1", OWNER), ("words", "0", 0)), {})
    with containers.host("ship-old-docker", DOCKER, "bookworm") as old:
        old.engine_run("words", f"--user {OWNER} $(mpsctl env 1 --format docker)")
        old.arrived("words", "1", OWNER)
