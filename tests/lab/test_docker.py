"""Clients in containers of docker and compose: each arrives at its instance as its user by the daemon's own log, and
again after a stop and start of MPS, after a converge and after a reboot."""

from __future__ import annotations

from typing import Callable, Iterator

import pytest

from . import containers
from .containers import (
    DOCKER,
    OWNER,
    Host,
    a_converge_changes_nothing,
    all_arrived,
    example,
    reboot,
    stop_and_start,
    taken_off_before_its_end,
)


@pytest.fixture(scope="module")
def docker() -> Iterator[Host]:
    with containers.host("ship-docker", DOCKER, "trixie") as made:
        _project(made, "words", _WORDS)
        _project(made, "cdi", _CDI)
        made.engine_run("run-cdi", "--device nvidia.com/gpu=0 --device mps-fleet/instance=0")
        made.engine_run("run-words", f"--user {OWNER} $(mpsctl env 1 --format docker)")
        made.engine_run("run-both", f"--user {OWNER} $(mpsctl env 1 --format cdi)")
        unit = example("docker-api.service", lambda text: _without_network(text).replace(" --user 1000", ""))
        made.write("/etc/systemd/system/docker-api.service", unit)
        made.run("systemctl daemon-reload; systemctl enable -q docker-api; systemctl start docker-api")
        yield made


def _without_network(text: str) -> str:
    return text.replace("--name api", "--name api --network none")


def _in_the_lab(text: str) -> str:
    return text.replace(
        "    restart: always\n", "    network_mode: none\n    stop_grace_period: 1s\n    restart: always\n"
    )


def _words(text: str) -> str:
    return _in_the_lab(text).replace("mps-0", "mps-1")


def _of_root(text: str) -> str:
    return _in_the_lab(text).replace('    user: "1000"\n', "")


_WORDS, _CDI = ("compose.yaml", _words), ("compose-cdi.yaml", _of_root)


def _project(host: Host, name: str, what: tuple[str, Callable[[str], str]], up: str = "docker compose up -d") -> None:
    """A project of compose, as the docs have it."""
    host.write(f"/srv/{name}/compose.yaml", example(*what))
    host.run(f"cd /srv/{name} && mpsctl env 1 --format compose >mps-1.yaml && {up}")


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


def test_each_form_of_docker_arrives(docker: Host) -> None:
    all_arrived(docker, OF_DOCKER)


def test_docker_over_a_stop_and_start_of_mps(docker: Host) -> None:
    stop_and_start(docker, OF_DOCKER)


def test_docker_over_a_converge(docker: Host) -> None:
    a_converge_changes_nothing(docker, OF_DOCKER)


def test_the_doctor_finds_nothing_amiss_in_a_docker_container_by_cdi(docker: Host) -> None:
    docker.run("docker inspect run-both >/root/both.json")
    assert "nothing found" in docker.run("mpsctl doctor --container /root/both.json")


def test_a_unit_around_docker_takes_its_client_off_first(docker: Host) -> None:
    taken_off_before_its_end(docker, "docker-api", "api", "0", 0)


def test_docker_after_a_reboot_but_for_the_engines_own_containers_by_cdi(docker: Host) -> None:
    """Docker 26 does not bring these back (moby#49989); the docs say so, and have a unit around them."""
    all_arrived(docker, OF_DOCKER)
    reboot(docker)
    all_arrived(docker, tuple(form for form in OF_DOCKER if form[0] not in BY_CDI))
    log = docker.run("journalctl -b -q -o cat -u docker")
    assert log.count('could not select device driver \\"cdi\\"') == len(BY_CDI)
    docker.run(f"docker start {' '.join(BY_CDI)}")
    all_arrived(docker, tuple(form for form in OF_DOCKER if form[0] in BY_CDI))


def test_docker_and_compose_of_debian_12() -> None:
    """docker 20.10 and compose 1.29 know nothing of CDI: the words for engines without it."""
    with containers.host("ship-old-docker", DOCKER, "bookworm") as old:
        old.engine_run("run-words", f"--user {OWNER} $(mpsctl env 1 --format docker)")
        # As the page says: two lines that this compose does not know.
        without = "sed -i -e '/^ *bind:$/d' -e /create_host_path/d mps-1.yaml"
        _project(old, "words", _WORDS, f"{without} && docker-compose up -d")
        all_arrived(old, (("run-words", "1", OWNER), ("words_api_1", "1", OWNER)))
