"""Field reports of daemons, their directories and users: each row of docs/field-reports.md is a test of its kind."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import pytest

from consulting import their_daemon
from fakes import Host, h200, uuid
from mpsctl.causes import environment
from mpsctl.checks import words
from mpsctl.model import checked_values, fit, instance
from mpsctl.model.errors import BadValue
from mpsctl.model.fit import Card, Demand
from mpsctl.model.instance import Instance
from mpsctl.observe import reachability
from mpsctl.store import configuration
from reporting import COSTS, begin, in_log, in_text, in_unit, named, on_host, report

pytestmark = pytest.mark.usefixtures("shown_processes")


# -- daemons


@report("B14")
@pytest.mark.parametrize("chosen", ["0", "1,2", uuid(3)])
def test_a_job_s_daemon_that_serves_some_of_the_gpus(host: Host, chosen: str) -> None:
    host.process("nvidia-cuda-mps-control", "nvidia-cuda-mps-control -d", {"CUDA_VISIBLE_DEVICES": chosen})
    assert "daemon-serves-other-gpus" in on_host(host)
    assert "daemon-serves-other-gpus" in on_host(host, errors=["RuntimeError: No CUDA GPUs are available"])


@report("B15")
@pytest.mark.parametrize("gpus", [("0", "0"), (uuid(1), uuid(1)), ("0000:3b:00.0", "0000:3b:00.0")])
def test_two_instances_on_one_gpu_are_refused(gpus: tuple[str, str]) -> None:
    with pytest.raises(BadValue):
        instance.check_gpus(Instance(name, (gpu,), f"/run/{name}") for name, gpu in zip("ab", gpus))


@report("B15")
@pytest.mark.parametrize("chosen", [None, "0", uuid(0)])
def test_a_second_daemon_on_a_gpu(host: Host, chosen: Optional[str]) -> None:
    begin(host)
    variables = {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/other",
        **({} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}),
    }
    host.process("nvidia-cuda-mps-control", "nvidia-cuda-mps-control -d", variables)
    assert "two-daemons-one-gpu" in on_host(host)


@report("B18")
@pytest.mark.parametrize(
    ("clients", "driver", "pre_volta", "fits"),
    [
        (48, "580.1", False, True),
        (49, "580.1", False, False),
        (60, "590.1", False, True),
        (61, "590.1", False, False),
        (16, "580.1", True, True),
        (17, "580.1", True, False),
    ],
)
def test_more_clients_than_the_driver_takes(clients: int, driver: str, pre_volta: bool, fits: bool) -> None:
    card = Card("a card", 1 << 20, driver, pre_volta=pre_volta)
    assert (fit.judge(card, COSTS, Demand(clients=clients)).word != fit.REFUSED) == fits


@report("B18")
@pytest.mark.parametrize("error", ["808", "809"])
def test_the_errors_of_the_cap(error: str) -> None:
    assert {"too-many-clients", "max-connections-raised"} == set(in_text(error))
    assert named(environment.lint({"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, None)) == ["max-connections-raised"]


@report("B19")
@pytest.mark.parametrize("mode", [0o700, 0o750, 0o710, 0o600, 0o744])
def test_a_closed_directory_on_the_way(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "nvidia" / "mps" / "pipe"
    directory.mkdir(parents=True)
    directory.chmod(0o777)
    (tmp_path / "nvidia").chmod(mode)
    tmp_path.chmod(0o755)
    inside, nobody = Path("/nvidia/mps/pipe"), reachability.User(65_534)
    closed = reachability.closed_directory(inside, nobody, tmp_path)
    assert closed is not None
    reason = words.obstacle(closed)
    assert (reason.cause, closed.path, closed.mode) == ("pipe-directory-closed", Path("/nvidia"), mode)
    assert f"mode {mode:04o}" in reason.line
    assert reachability.closed_directory(inside, reachability.User(0), tmp_path) is None
    (tmp_path / "nvidia").chmod(0o755)
    assert reachability.closed_directory(inside, nobody, tmp_path) is None


@report("B20")
@pytest.mark.parametrize(("owner", "other"), [(0, 1000), (1000, 0), (1000, 1001)])
def test_a_user_that_waits_behind_another(owner: int, other: int) -> None:
    lines = [f"Starting new server 4120 for user {owner}", "NEW SERVER 4120: Ready"]
    pending = f"NEW CLIENT 5200 from user {other}: Server is not ready, push client to pending list"
    assert in_log(*lines, pending) == ["waiting-behind-another-user"]


@report("B22")
@pytest.mark.parametrize(("capability", "refused"), [((6, 1), True), ((6, 0), True), ((7, 0), False), ((9, 0), False)])
def test_several_users_on_an_old_gpu_are_refused(capability: tuple[int, int], refused: bool) -> None:
    gpus = [h200(0, compute_capability=capability)]
    desired = Instance("0", ("0",), "/run/nvidia-mps/0", multi_user=True)
    if not refused:
        assert configuration.resolve(desired, gpus)
        return
    with pytest.raises(BadValue, match="Volta"):
        configuration.resolve(desired, gpus)


@report("B22")
def test_what_clients_on_an_old_gpu_are_told() -> None:
    assert "multi-user-too-old-gpu" in in_text("cuInit: CUDA_ERROR_NOT_PERMITTED")


@report("B24")
@pytest.mark.parametrize(
    ("length", "found"), [(87, []), (88, ["pipe-directory-too-long"]), (96, ["pipe-directory-too-long"])]
)
def test_a_long_pipe_directory(length: int, found: list[str]) -> None:
    path = "/run/".ljust(length, "x")
    assert named(environment.directory(path)) == found
    with pytest.raises(BadValue):  # ours needs 13 bytes more
        checked_values.check_pipe_directory(path)


UNSAFE = ["/tmp/nvidia-mps", "/tmp/nvidia-mps-0", "/var/tmp/mps", "/dev/shm/nvidia-mps", "/root/mps"]


@report("B25")
@pytest.mark.parametrize("path", ["/tmp/nvidia-mps", "/tmp/nvidia-mps/"])
def test_the_default_directory(path: str) -> None:
    assert "default-pipe-directory" in named(environment.directory(path))
    with pytest.raises(BadValue):
        checked_values.check_pipe_directory(path)


@report("B26")
@pytest.mark.parametrize("left", [None, [], ["control_lock", "log"]])
def test_a_directory_that_was_removed_under_its_daemon(host: Host, left: Optional[list[str]]) -> None:
    directory = host.places.root / "theirs"
    if left is not None:
        directory.mkdir()
        for name in left:
            (directory / name).touch()
    host.process("nvidia-cuda-mps-control", "nvidia-cuda-mps-control -d", {"CUDA_MPS_PIPE_DIRECTORY": str(directory)})
    assert "orphan-daemon" in on_host(host)


@report("B26")
def test_a_script_that_removes_it() -> None:
    found = in_unit("nvidia-cuda-mps-control -quit || true; rm -rf /run/nvidia/mps; nvidia-cuda-mps-control -d")
    assert found == ["quit-as-argument", "pipe-directory-removed"]


@report("B27")
@pytest.mark.parametrize("path", UNSAFE)
def test_directories_that_do_not_last_are_refused(path: str) -> None:
    assert named(environment.directory(path))
    with pytest.raises(BadValue):
        checked_values.check_pipe_directory(path)


@report("B27")
@pytest.mark.parametrize("missing", ["control_lock", "log"])
def test_a_directory_that_was_cleaned_under_its_daemon(host: Host, missing: str) -> None:
    directory = host.places.root / "theirs"
    directory.mkdir()
    for name in {"control", "control_privileged", "control_lock", "log"} - {missing}:
        (directory / name).touch()
    host.process("nvidia-cuda-mps-control", "nvidia-cuda-mps-control -d", {"CUDA_MPS_PIPE_DIRECTORY": str(directory)})
    assert "cleaned-pipe-directory" in on_host(host)


@report("B85")
@pytest.mark.parametrize("error", ["805", "807"])
def test_a_daemon_of_somebody_who_captures_a_program_that_never_asked(host: Host, error: str) -> None:
    """A program without the variable finds the daemon of another user on the default directory."""
    begin(host)
    inside = host.places.root / "theirs"
    daemon = their_daemon(host, inside / "tmp/nvidia-mps")
    host.processes[daemon].environment, host.processes[daemon].root = {}, inside
    assert {"default-pipe-directory", "foreign-daemon"} <= on_host(host, errors=[error])
    pid = host.process("dorado", "dorado basecaller", {}, 0)
    assert "client-of-another-daemon" in on_host(host, pids=[pid])
