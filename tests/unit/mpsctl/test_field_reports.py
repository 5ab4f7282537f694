"""The field reports of docs/field-reports.md: each row is a test of its kind, and the table is held against both."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

import pytest

from fakes import FakeDaemon, Host, h200, uuid
from mpsctl.adapters import hardware, procfs, selinux
from mpsctl.causes import consult, containers, environment, log, memory, symptoms, units
from mpsctl.causes.catalogue import CAUSES
from mpsctl.causes.consult import Question
from mpsctl.causes.diagnosis import Diagnosis, in_order
from mpsctl.checks import checking, client_checks, host_checks, instance_checks
from mpsctl.cli import doctor
from mpsctl.model import checked_values, client_variable, fit, instance, quantity
from mpsctl.model.costs import Costs
from mpsctl.model.errors import BadValue
from mpsctl.model.fit import Card, Demand
from mpsctl.model.instance import Instance
from mpsctl.observe import reachability
from mpsctl.store import configuration

TABLE = Path(__file__).parents[3] / "docs" / "field-reports.md"

CHECKS = {
    "configuration",
    *map(checking.name_of, host_checks.CHECKS),
    *map(checking.name_of, instance_checks.CHECKS),
    *map(checking.name_of, client_checks.CHECKS),
}
"""The names of verify's checks."""


class Row(NamedTuple):
    id: str
    symptom: str
    source: str
    prevented: str
    checks: list[str]
    causes: list[str]


def rows() -> list[Row]:
    found = []
    for line in TABLE.read_text().splitlines():
        if re.match(r"\| B\d+ \|", line):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            id_, symptom, source, prevented, checks, causes = cells
            found.append(
                Row(id_, symptom, source, prevented, re.findall("`(.*?)`", checks), re.findall("`(.*?)`", causes))
            )
    return found


TESTED: set[str] = set()
"""The ids of the reports that have a test."""

T = Callable[..., None]


def report(id_: str) -> Callable[[T], T]:
    """Marks the test of a report."""

    def mark(test: T) -> T:
        TESTED.add(id_)
        return test

    return mark


# -- the table


def test_there_are_44_reports_each_once() -> None:
    ids = [row.id for row in rows()]
    assert len(ids) == len(set(ids)) == 44


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.id)
def test_a_row_is_whole(row: Row) -> None:
    assert row.id in TESTED
    assert row.symptom
    assert row.source == "public file" or re.fullmatch(r"<https://\S+>", row.source)
    assert row.causes
    assert set(row.causes) <= set(CAUSES)
    assert row.checks
    assert set(row.checks) <= CHECKS


def test_every_test_has_its_row() -> None:
    assert {row.id for row in rows()} == TESTED


# -- what the tests stand on


@pytest.fixture(autouse=True)
def proc(host: Host, monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    states: dict[int, str] = {}
    monkeypatch.setattr(procfs, "state", lambda pid: states.get(pid, "S"))
    monkeypatch.setattr(procfs, "maps", lambda pid, name: name == "libcuda.so")
    for name, value in (("container", None), ("root", Path("/")), ("groups", frozenset()), ("mounts", {})):
        monkeypatch.setattr(procfs, name, lambda pid, value=value: value)
    monkeypatch.setattr(procfs, "maps_users", lambda pid: False)
    monkeypatch.setattr(procfs, "open_files_limit", lambda pid: None)
    monkeypatch.setattr(procfs, "namespace", lambda pid, kind: None)
    host.places.root.chmod(0o755)
    return states


SERVER = 9001


def begin(host: Host, **values: object) -> FakeDaemon:
    """Instance 0, with a server of root."""
    values.setdefault("DeviceMemoryLimit", "4G")
    host.desired("0", **values)
    host.systemd.unit("mps-control@0.service").enabled = True
    daemon = host.start()
    daemon.start_server(host.process("nvidia-cuda-mps-server", "nvidia-cuda-mps-server", {}, 0, SERVER))
    host.processes[SERVER].parent = daemon.pid
    return daemon


def join(host: Host, daemon: FakeDaemon) -> int:
    pid = host.process("python3", "python3 serve.py", {"CUDA_MPS_PIPE_DIRECTORY": f"{host.pipe_root}/0"}, 1000)
    daemon.connect(SERVER, pid)
    host.nvml.clients_mib[pid] = 600
    return pid


def on_host(host: Host, **question: Any) -> set[str]:
    """As `mpsctl doctor` does, with verify's checks."""
    asked = Question(**question)
    answer = consult.consult(host.world, asked, doctor.checks(host.world, asked))
    assert not any("stands on the checks alone" in line for line in answer.understood), answer.understood
    return {one.name for one in answer.diagnoses}


def named(found: list[Diagnosis]) -> list[str]:
    return [one.name for one in in_order(found)]


def in_log(*texts: str, who: str = "Control") -> list[str]:
    return named(log.diagnose_log([f"[2026-01-01 10:00:00.100 {who} {73:5}] {text}" for text in texts]))


def in_text(text: str) -> list[str]:
    return named([*memory.from_text(text), *symptoms.read_error(text).diagnoses()])


def in_unit(*lines: str) -> list[str]:
    return named(units.lint("\n".join(lines)))


CONTROL = "/usr/bin/nvidia-cuda-mps-control"


def in_service(service: dict[str, Any], driver: str = "535.161.08") -> list[str]:
    (container,) = containers.read(json.dumps({"services": {"a": {"gpus": "all", **service}}}))
    return named(containers.lint(container, [Instance("0", ("0",), "/run/nvidia-mps/0")], driver))


# -- limits


@report("B01")
@pytest.mark.parametrize("text", ["8192MB", "8192", "0:8192M", "0=8192", "=8G", "0=8G,", "0=8K", "0=8.5G"])
def test_a_limit_variable_of_another_form(text: str) -> None:
    assert named(environment.lint({client_variable.VARIABLE: text}, ["GPU-1"])) == ["limit-bypassed"]


@report("B01")
@pytest.mark.parametrize("text", ["85899345920", "8192", "8192MB", "0=8G", "-1G"])
def test_a_limit_in_bytes_or_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(BadValue):
        quantity.parse(text)


@report("B02")
@pytest.mark.parametrize(
    ("limits", "text"),
    [({0: 2048}, "0=2048M"), ({0: 2048, 1: 512}, "0=2048M,1=512M"), ({uuid(0): 512}, f"{uuid(0)}=512M")],
)
def test_the_limit_variable_has_one_form_which_holds(limits: dict[Any, int], text: str) -> None:
    assert client_variable.render(limits) == text
    assert client_variable.limit_bypass({client_variable.VARIABLE: text}, [uuid(0), uuid(1)]) is None


@report("B04")
@pytest.mark.parametrize(
    ("name", "value", "cause"),
    [
        ("CUDA_MPS_DEVICE_MEM_LIMIT", "0=1G", "misspelt-variable"),
        ("CUDA_MPS_PIPE_DIR", "/run/x", "misspelt-variable"),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "''0=1G,1=512MB''", "quotes-in-value"),
        ("CUDA_MPS_PIPE_DIRECTORY", '"/run/nvidia-mps/0"', "quotes-in-value"),
    ],
)
def test_variables_as_they_stand_in_examples(name: str, value: str, cause: str) -> None:
    assert cause in named(environment.lint({name: value}, ["GPU-1", "GPU-2"]))


@report("B05")
@pytest.mark.parametrize(
    "words", ["set_default_active_thread_percentage 50", "start_server -uid 0", "get_server_list", "ps", "lspart"]
)
def test_commands_as_arguments(words: str) -> None:
    assert in_unit("[Service]", f"ExecStartPost={CONTROL} {words}")[0] == "command-as-argument"
    assert in_unit(f"nvidia-cuda-mps-control {words} && echo started") == ["command-as-argument"]


@report("B06")
@pytest.mark.parametrize("name", [uuid(0), "GPU-00000000", "7"])
def test_a_limit_that_reads_back_as_nothing(name: str) -> None:
    command = f"default_device_pinned_mem_limit {name}"
    assert in_log(f"Cmd:set_{command} 3G", f"Cmd:get_{command}", "UI closed") == ["limit-not-stored"]


@report("B07")
@pytest.mark.parametrize("index", [0, 1, 3])
def test_a_daemon_is_given_uuids_and_its_limits_go_by_its_own_ordinals(host: Host, index: int) -> None:
    host.desired(str(index), DeviceMemoryLimit="8G")
    daemon = host.start(str(index))
    assert (procfs.environment(daemon.pid) or {})["CUDA_VISIBLE_DEVICES"] == uuid(index)
    assert set(daemon.limits) == {"0"}


@report("B07")
def test_a_limit_for_a_device_that_the_daemon_does_not_have() -> None:
    assert in_log("Invalid device ordinal!") == ["limit-for-no-device"]


COSTS = Costs(context_mib=500, server_mib=30, reserved_mib=0, least_limit_mib=501, origin="a measurement")


@report("B09")
@pytest.mark.parametrize(("processes", "fits"), [(4, True), (5, False), (8, False)])
def test_processes_are_counted_and_not_services(processes: int, fits: bool) -> None:
    verdict = fit.judge(Card("NVIDIA A100", 40_960, "550.1"), COSTS, Demand(clients=processes, limit_mib=10_000))
    assert (verdict.word != fit.REFUSED) == fits


@report("B09")
def test_limits_that_add_up_to_more_than_the_card(host: Host) -> None:
    daemon = begin(host, DeviceMemoryLimit="50%")
    for _ in range(3):
        join(host, daemon)
    assert {"limit-is-per-process", "limits-oversubscribed"} <= on_host(host, errors=["2"])


@report("B10")
@pytest.mark.parametrize("text", ['{"total_memory": 47697362944}', "prop.totalGlobalMem shows the full card"])
def test_totals_say_nothing_about_a_limit(text: str) -> None:
    assert in_text(text) == ["total-is-the-whole-card"]


# -- percentages


@report("B11")
@pytest.mark.parametrize(
    ("percentage", "clients", "told"), [(33, 2, True), (10, 1, False), (50, 2, False), (33, 4, False)]
)
def test_a_percentage_that_leaves_multiprocessors_idle(host: Host, percentage: int, clients: int, told: bool) -> None:
    daemon = begin(host, ActiveThreadPercentage=percentage)
    for _ in range(clients):
        join(host, daemon)
    assert on_host(host) == ({"percentage-caps-everyone"} if told else set())


@report("B12")
@pytest.mark.parametrize(
    "text", ["GPU-Util stays at 99 %", "utilization.gpu is 100", "gpu utilisation does not change"]
)
def test_utilisation_proves_no_percentage(text: str) -> None:
    assert in_text(text) == ["utilization-is-no-share"]


@report("B12")
def test_a_percentage_that_is_not_in_force(host: Host) -> None:
    daemon = begin(host, ActiveThreadPercentage=50)
    daemon.percentage = 100.0
    assert on_host(host) == {"not-as-desired"}


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
    assert (closed.cause, closed.line.split(",")[0]) == ("pipe-directory-closed", "/nvidia")
    assert f"mode {mode:04o}" in closed.line
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


# -- containers


@report("B29")
@pytest.mark.parametrize(("kind", "found"), [("var_run_t", {"selinux-label"}), ("container_file_t", set())])
def test_a_label_that_keeps_containers_out(
    host: Host, monkeypatch: pytest.MonkeyPatch, kind: str, found: set[str]
) -> None:
    begin(host)
    (host.places.root / "sys/fs/selinux").mkdir(parents=True)
    (host.places.root / "sys/fs/selinux/enforce").write_text("1")
    monkeypatch.setattr(selinux, "label", lambda path: f"system_u:object_r:{kind}:s0")
    assert on_host(host) == found


@report("B29")
@pytest.mark.parametrize("why", ["permission denied", "invalid argument"])
def test_a_label_that_could_not_be_set(why: str) -> None:
    assert in_text(f"lsetxattr /mps/pipe: {why}") == ["selinux-label"]


@report("B31")
@pytest.mark.parametrize("ipc", ["true", "private", "", None])
def test_a_container_without_mount_and_ipc(ipc: Optional[str]) -> None:
    found = in_service({"ipc": ipc, "volumes": []})
    assert found == ["container-without-pipe-directory", "container-ipc"]


@report("B32")
def test_a_pipe_directory_in_shared_memory() -> None:
    assert named(environment.directory("/dev/shm/nvidia-mps")) == ["pipe-directory-in-shm"]


@report("B34")
@pytest.mark.parametrize("uid", [0, 1000])
def test_clients_that_a_pid_namespace_hides(uid: int) -> None:
    line = f"NEW CLIENT 0 from user {uid}: Server is not ready, push client to pending list"
    assert in_log(line) == ["clients-hidden-by-pid-namespace"]


@report("B35")
@pytest.mark.parametrize("shell", ["'sh'", "'/bin/bash'", "‘sh’"])
def test_a_driver_root_without_a_shell(shell: str) -> None:
    text = f"chroot: failed to run command {shell}: No such file or directory"
    assert in_text(text) == ["driver-root-without-shell"]
    assert {"/usr/sbin", "/usr/bin", "/opt/nvidia/bin"} <= set(hardware.SEARCH_PATH)


# -- units and scripts


@report("B37")
@pytest.mark.parametrize("rest", [f"| {CONTROL}", "> /run/pipe", "&& true", "2>&1", "$(cat /run/x)"])
def test_a_line_that_needs_a_shell_and_has_none(rest: str) -> None:
    assert in_unit("[Service]", f"ExecStop=/bin/echo quit {rest}") == ["pipeline-without-shell"]
    assert in_unit("[Service]", f"ExecStop=/bin/sh -c 'echo quit {rest}'") == []


@report("B38")
@pytest.mark.parametrize("word", ["quit", "-q", "-quit", "--quit"])
def test_quit_as_an_argument(word: str) -> None:
    assert in_unit("[Service]", f"ExecStop={CONTROL} {word}") == ["quit-as-argument"]


@report("B39")
@pytest.mark.parametrize("target", ["graphical.target", "multi-user.target"])
def test_a_unit_behind_its_own_target(target: str) -> None:
    assert in_unit("[Unit]", f"After={target}", "[Install]", "WantedBy=multi-user.target") == ["ordering-cycle"]
    assert in_text("multi-user.target: Found ordering cycle on nvidia-mps-gpu0.service/start") == ["ordering-cycle"]


@report("B40")
@pytest.mark.parametrize("mode", ["--compute-mode=EXCLUSIVE_PROCESS", "-c EXCLUSIVE_PROCESS", "-i 0 -c 3"])
def test_a_compute_mode_by_cron(mode: str) -> None:
    assert in_unit(f"@reboot root nvidia-smi {mode}")[0] == "compute-mode-by-cron"
    assert "compute-mode-by-cron" in in_unit("[Unit]", "After=cron.service", "[Service]", f"ExecStart={CONTROL} -f")


@report("B41")
def test_a_unit_that_hides_its_daemon_s_end() -> None:
    found = in_unit(
        *("[Unit]", "Requires=docker.service", "[Service]", "Type=forking", "RemainAfterExit=yes"),
        f"ExecStart=/bin/sh -c '{CONTROL} -d || true'",
    )
    assert {"depends-on-docker", "active-without-daemon", "start-failure-hidden"} <= set(found)


@report("B42")
@pytest.mark.parametrize("line", ["systemctl restart nvidia-mps.service", "systemctl --no-block restart nvidia-mps@0"])
def test_a_restart_at_every_run(line: str) -> None:
    assert in_unit(line) == ["restart-on-every-run"]


@report("B43")
@pytest.mark.parametrize("mode", [0, 1, 2, 3, "3", "EXCLUSIVE_PROCESS", "exclusive_thread", None, True])
def test_a_compute_mode_is_a_word(mode: object) -> None:
    with pytest.raises(BadValue):
        checked_values.check_compute_mode(mode)


@report("B43")
@pytest.mark.parametrize("line", ["nvidia-smi --compute-mode=3", "nvidia-smi -c 3", "nvidia-smi -pm 1 -c 3"])
def test_a_compute_mode_of_every_gpu(line: str) -> None:
    assert in_unit(line) == ["compute-mode-of-all-gpus"]


@report("B44")
def test_a_directory_of_tmp_in_a_container() -> None:
    service = {"volumes": ["/tmp/nvidia-mps-0:/mps"], "environment": ["CUDA_MPS_PIPE_DIRECTORY=/mps"], "ipc": "host"}
    assert "pipe-directory-under-tmp" in in_service(service)


@report("B44")
def test_a_change_that_never_reached_the_daemon(host: Host) -> None:
    begin(host)
    host.desired(DeviceMemoryLimit="6G")
    assert on_host(host) == {"not-as-desired"}


# -- GPUs


@report("B46")
@pytest.mark.parametrize(("persistence", "found"), [(False, {"persistence-off"}), (True, set()), (None, set())])
def test_persistence(host: Host, persistence: Optional[bool], found: set[str]) -> None:
    begin(host)
    host.nvml.all[0] = h200(0, persistence=persistence)
    assert on_host(host) == found


@report("B47")
@pytest.mark.parametrize("mode", ["exclusive_process", "prohibited"])
@pytest.mark.parametrize("index", [1, 3])
def test_a_mode_that_was_left_behind(host: Host, mode: str, index: int) -> None:
    begin(host)
    host.nvml.all[index] = h200(index, compute_mode=mode)
    assert on_host(host) == {"exclusive-without-daemon"}


@report("B49")
@pytest.mark.parametrize(
    "text", ["all CUDA-capable devices are busy or unavailable", "CUDA-capable device(s) is/are busy or unavailable"]
)
def test_attached_and_busy_is_told_from_never_attached(text: str) -> None:
    attached = "[2026-01-01 10:00:00.100 Server    95] Device NVIDIA A16 (uuid GPU-1) is associated"
    assert named(log.diagnose_log([attached, text]))[0] == "attached-then-busy"
    assert named(log.diagnose_log([text]))[0] == "exclusive-and-no-client"
    assert "several-managers" in in_text(text)


@report("B50")
def test_default_mode_is_no_fault(host: Host) -> None:
    join(host, begin(host, ComputeMode="default"))
    assert on_host(host) == set()
    pid = host.process("python3", "python3 train.py", {}, 1000)
    host.nvml.others_mib[pid] = 600
    assert "client-outside-mps" in on_host(host)


# -- servers and clients


@report("B53")
@pytest.mark.parametrize("status", [1, 2, 139])
def test_servers_that_end_again_and_again(status: int) -> None:
    once = ["Starting new server {0} for user 0", "Server encountered a fatal exception. Shutting down"]
    lines = [line.format(pid) for pid in (95, 98) for line in [*once, f"Server {{0}} exited with status {status}"]]
    assert in_log(*lines) == ["server-crash-loop"]
    legacy = "[2026-01-01 10:00:00.100 Legacy Server   425] Failed to start : invalid argument"
    control = [f"[2026-01-01 10:00:00.100 Control    73] {line}" for line in lines]
    assert named(log.diagnose_log([*control, legacy]))[0] == "gpu-older-than-volta"


@report("B55")
@pytest.mark.parametrize("state", ["Z", "D"])
def test_a_client_that_is_dead_and_listed(host: Host, proc: dict[int, str], state: str) -> None:
    proc[join(host, begin(host))] = state
    assert on_host(host) == {"zombie-client"}


@report("B57")
@pytest.mark.parametrize(
    ("driver", "refused"), [("470.182.03", True), ("494.1", True), ("495.29", False), ("580.1", False)]
)
def test_memory_limits_of_old_drivers_are_refused(driver: str, refused: bool) -> None:
    verdict = fit.judge(Card("Tesla V100", 32_768, driver), COSTS, Demand(limit_mib=4096))
    assert (verdict.word == fit.REFUSED) == refused


@report("B57")
def test_a_worker_thread_that_is_the_last_word() -> None:
    assert in_log("Worker created", "Creating worker thread", who="Server") == ["stuck-at-worker-thread"]


@report("B58")
def test_a_daemon_that_is_not_found() -> None:
    assert in_text("Cannot find MPS control daemon process")[0] == "daemon-not-found"


@report("B59")
@pytest.mark.parametrize("count", [1, 2])
def test_programs_that_run_outside_mps(host: Host, count: int) -> None:
    begin(host)
    for _ in range(count):
        host.nvml.others_mib[host.process("special", "special -mpi", {}, 1000)] = 500
    assert on_host(host) == {"client-outside-mps", "pipe-directory-missing"}


@report("B61")
@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("nvidia-smi -c ${CUDA_VISIBLE_DEVICES}", "compute-mode-of-all-gpus"),
        ("nvidia-smi -c 0 ${ID}", "compute-mode-of-all-gpus"),
        ("if [[ ${CUDA_VISIBLE_DEVICES} == *${MPS_DEV_ID}* ]]; then", "substring-test"),
        ("nvidia-cuda-mps-control start_server -uid $SLURM_JOB_UID", "command-as-argument"),
    ],
)
def test_a_prolog(line: str, cause: str) -> None:
    assert in_unit("#!/bin/bash", line) == [cause]


@report("B62")
@pytest.mark.parametrize(("word", "found"), [("env ", []), ("", ["protocol-3"])])
def test_the_start_line_tells_the_protocol(word: str, found: list[str]) -> None:
    line = f"To connect CUDA applications to this daemon, set {word}CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps"
    assert in_log(line) == found
