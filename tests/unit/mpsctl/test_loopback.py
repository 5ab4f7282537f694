"""Two ranks on one GPU: sides, limits, refusals, wrong results, failure cases and the answer; ranks that only talk."""

from __future__ import annotations

import errno
import grp
import io
import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Optional

import pytest

from fakes import Host, Temporary, h200, uuid
from mpsctl.adapters import child_process, files, rank
from mpsctl.adapters.stop_request import Stop
from mpsctl.cli import loopback as verb
from mpsctl.cli import main as command_line
from mpsctl.measuring import loopback
from mpsctl.measuring import loopback_results as values
from mpsctl.measuring.loopback import Request
from mpsctl.measuring.loopback_results import ABSENT, CPU, FAILED, GLOO, MEASURED, MPS, NCCL, REFUSED, SLICED, Report
from mpsctl.model import nccl
from mpsctl.model.errors import BadValue, NotReady
from mpsctl.model.gpu import Load

FAKE = """#!{python} -IS
import json, os, socket, sys
assert sys.argv[1] == "-c" and "def main()" in sys.argv[2]
wanted, plan = json.loads(sys.argv[3]), json.loads(os.environ["FAKE_RANKS"])
job, backend, first = wanted["job"], wanted["backend"], wanted["rank"] == 0
with open(plan["log"], "a") as log:
    log.write(json.dumps(dict(wanted=wanted, environment=dict(os.environ))) + "\\n")
def say(*lines):
    os.write(1, b"".join(json.dumps(line).encode() + b"\\n" for line in lines))
def until_the_end():
    while os.read(0, 4096):
        pass
    sys.exit(1)
mps = os.path.exists(os.environ["CUDA_MPS_PIPE_DIRECTORY"]) if wanted["device"] == "cuda" else None
if mps is not None and plan.get("wrong_side") == mps and job == "measure":
    mps = not mps
if plan.get("no_torch"):
    say(dict(problem="python has no torch (No module named 'torch')"))
    sys.exit(1)
if plan.get("empty"):
    say(dict())
    until_the_end()
with socket.socket() as other:
    try:
        other.bind(("127.0.0.1", wanted["port"]))
    except OSError:
        pass  # nobody else can have it
    else:
        say(dict(problem="the port is free for all"))
        sys.exit(1)
say(dict(torch="2.11.0", python="3.12.3", gloo=plan.get("gloo", True), nccl=plan.get("nccl"), under_mps=mps,
         may_take_mib=1437))
if not os.read(0, 4096):
    sys.exit(1)
if backend == "nccl" and "nccl_words" in plan:
    print(plan.get("nccl_log", ""), file=sys.stderr)
    say(dict(error="DistBackendError: NCCL error", words=plan["nccl_words"]))
elif job == "measure":
    if "problem" in plan:
        say(dict(problem=plan["problem"]))
        sys.exit(1)
    weights = "same" if first or not plan.get("weights") else "other"
    after = 2.0 if plan.get("loss") else 0.5
    trained = dict(seconds=0.5 if mps else 1.0, loss_before=1.0, loss_after=after, weights=weights)
    taken = [80.0] * 99 + [130.0] * 2 if mps else [200.0] * 100
    say(trained, dict(right=not plan.get("sum"), latencies_us=taken))
elif job == "storm" and first and plan.get("early"):
    say(dict(error="RuntimeError: no such interface"))
elif job == "storm" and first:
    closed = dict(error="RuntimeError: Connection closed by peer")
    say(dict(midst=True), *([closed] if plan.get("killed") is None else []))
    if plan.get("killed") == "silent":
        print("terminate called after throwing", file=sys.stderr)
        sys.exit(6)
    until_the_end()
elif job == "storm":
    say(dict(midst=True))
    until_the_end()
elif open(plan["log"]).read().count('"port": %d,' % wanted["port"]) == 2:
    say(dict(done=True))  # the other came as well
elif plan.get("never") == "hang":
    until_the_end()
else:
    say(dict(done=True) if plan.get("never") == "done" else dict(error="RuntimeError: Socket Timeout"))
"""
STEPS = 20


class Ranks:
    """A "Python with torch" whose ranks do as they are told; ``started`` is what they were given."""

    def __init__(self, folder: Path) -> None:
        self.python, self.log = folder / "python-with-torch", folder / "started"
        self.python.write_text(FAKE.replace("{python}", sys.executable))
        self.python.chmod(0o755)
        self.plan: dict[str, Any] = {"log": str(self.log), "nccl": None}

    def environment(self) -> dict[str, str]:
        return {**os.environ, "FAKE_RANKS": json.dumps(self.plan)}

    def started(self, job: str = "measure", backend: str = GLOO) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [one for one in lines if one["wanted"]["job"] == job and one["wanted"]["backend"] == backend]


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path)


def tried(
    host: Host,
    ranks: Ranks,
    progress: Optional[Callable[[str, Report], None]] = None,
    stop: Optional[Stop] = None,
    **wanted: Any,
) -> tuple[Report, Temporary]:
    temporary = Temporary(host)
    inherited = {**ranks.environment(), **wanted.pop("inherited", {})}
    request = Request(
        **{"python": str(ranks.python), "steps": STEPS, "rounds": 1, "timeout_s": 2.0, "gpu": "0", **wanted},
        inherited=inherited,
    )
    loopback.refuse(request)
    world = replace(host.world, temporary_daemon=temporary.daemon)
    return loopback.loopback(world, request, stop or Stop(), progress or (lambda line, report: None)), temporary


def held(report: Report) -> dict[tuple[str, str], list[bool]]:
    found: dict[tuple[str, str], list[bool]] = {}
    for path in report.failure_cases:
        found.setdefault((path.backend, path.side), []).append(path.held)
    return found


# -- sides


def test_both_sides_are_measured_in_alternating_order_with_half_of_the_memory(host: Host, ranks: Ranks) -> None:
    job = {"RANK": "7", "MASTER_ADDR": "elsewhere", "NCCL_COMM_ID": "elsewhere:1"}
    inherited = {**job, "OWN": "kept", "CUDA_MPS_PIPE_DIRECTORY": "/elsewhere"}
    report, temporary = tried(host, ranks, rounds=2, inherited=inherited)
    half_mib = 143_771 // 2
    assert [(run.side, run.round, run.problem) for run in report.runs] == [
        (SLICED, 1, None), (MPS, 1, None), (MPS, 2, None), (SLICED, 2, None),
    ]  # fmt: skip
    assert {run.may_take_mib for run in report.runs} == {(1437, 1437)}
    assert report.half_mib == half_mib
    [(directory, devices)] = temporary.given
    assert (devices, temporary.ended, directory.exists()) == ((uuid(0),), 1, False)
    assert directory.name.startswith("loopback-")
    assert host.daemons[directory].setters == [f"set_default_device_pinned_mem_limit 0 {half_mib}M"]
    for one in ranks.started():
        given, mps = one["environment"], one["environment"]["CUDA_MPS_PIPE_DIRECTORY"] == str(directory)
        assert given.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT") == (f"0={half_mib}M" if mps else None)
        assert one["wanted"]["memory_fraction"] == (None if mps else half_mib / 143_771)
        assert (given["GLOO_SOCKET_IFNAME"], given["NCCL_SOCKET_IFNAME"], given["OWN"]) == ("lo", "lo", "kept")
        assert given["CUDA_VISIBLE_DEVICES"] == uuid(0)
        assert "RANK" not in given
        assert not job.keys() & given.keys()
    ports = [one["wanted"]["port"] for one in ranks.started()]
    assert ports[::2] == ports[1::2], "both ranks of a run meet at one port"
    assert held(report) == {(GLOO, SLICED): [True] * 4, (GLOO, MPS): [True] * 4}
    assert host.nvml.modes_set == []
    assert report.right


def test_through_an_instance_half_of_its_limit_is_given_and_no_daemon_started(host: Host, ranks: Ranks) -> None:
    public = host.desired(DeviceMemoryLimit="4G")
    host.start()
    before = list(host.running().setters)
    report, temporary = tried(host, ranks, gpu=None, instance="0")
    assert (temporary.given, host.running().setters, report.served_by) == ([], before, "instance 0")
    assert report.half_mib == 2048
    shared = [one["environment"] for one in ranks.started() if one["wanted"]["memory_fraction"] is None]
    assert {one["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] for one in shared} == {"0=2048M"}
    assert {one["CUDA_MPS_PIPE_DIRECTORY"] for one in shared} == {str(public)}


def test_ranks_come_as_the_user_and_group_that_the_instance_serves(
    host: Host, ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "became"

    def become(uid: Optional[int], gid: Optional[int] = None) -> None:
        with said.open("a") as file:
            file.write(f"{uid} {gid}\n")

    monkeypatch.setattr(child_process, "become", become)
    host.desired(ServerUser="daemon", Group="nogroup")
    host.start()
    tried(host, ranks, gpu=None, instance="0")
    daemon, nogroup = pwd.getpwnam("daemon").pw_uid, grp.getgrnam("nogroup").gr_gid
    assert set(said.read_text().splitlines()) == {f"{daemon} {nogroup}"}


def test_an_exclusive_gpu_has_no_time_sliced_side(host: Host, ranks: Ranks) -> None:
    host.desired(ComputeMode="exclusive_process")
    host.start()
    report, _ = tried(host, ranks, gpu=None, instance="0")
    assert {run.side for run in report.runs} == {MPS}
    assert "no time-sliced side" in report.all_notes[0]
    assert "it cannot be told what MPS gains" in report.verdict


def test_a_busy_or_prohibited_gpu_is_left_alone(host: Host, ranks: Ranks) -> None:
    host.nvml.others_mib = {host.process("python3", "python3 train.py", pid=777): 9000}
    with pytest.raises(NotReady, match=r"pid 777.*--force"):
        tried(host, ranks)
    assert tried(host, ranks, force=True)[0].right
    host.nvml.all[0] = h200(0, compute_mode="prohibited")
    with pytest.raises(NotReady, match="prohibited"):
        tried(host, ranks)


@pytest.mark.parametrize(("really_mps", "side", "says"), [(True, MPS, "outside"), (False, SLICED, "under")])
def test_ranks_on_the_wrong_side_are_no_figure(
    host: Host, ranks: Ranks, really_mps: bool, side: str, says: str
) -> None:
    ranks.plan["wrong_side"] = really_mps
    report, _ = tried(host, ranks, rounds=2)
    problems = [run.problem for run in report.runs if run.side == side]
    assert problems == [f"2 ranks ran {says} MPS", "left out, as it failed in an earlier round"]
    assert [point.side for point in report.points] == [MPS if side == SLICED else SLICED]
    assert not report.right


def test_without_a_gpu_nothing_is_asked_of_nvml(host: Host, ranks: Ranks) -> None:
    report, temporary = tried(host, ranks, cpu=True, gpu=None, backends=[GLOO])
    assert (host.nvml.times_opened, temporary.given) == (0, [])
    assert [(run.side, run.problem) for run in report.runs] == [(CPU, None)]
    assert {one["wanted"]["device"] for one in ranks.started()} == {"cpu"}
    assert {one["environment"]["CUDA_VISIBLE_DEVICES"] for one in ranks.started()} == {""}
    assert held(report) == {(GLOO, CPU): [True] * 4}
    assert report.right
    assert "nothing is said of MPS or of a GPU" in report.verdict


# -- results


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ({"weights": True}, "wrong result: the ranks have different weights"),
        ({"loss": True}, "wrong result: the loss went from 1 to 2"),
        ({"sum": True}, "wrong result: an all-reduce gave a wrong sum"),
        ({"problem": "RuntimeError: out of memory"}, "RuntimeError: out of memory"),
    ],
)
def test_a_wrong_result_is_no_figure(host: Host, ranks: Ranks, plan: dict[str, Any], says: str) -> None:
    ranks.plan.update(plan)
    report, _ = tried(host, ranks)
    assert len(report.runs) == 2
    assert all(says in str(run.problem) for run in report.runs)
    assert report.points == []
    assert not report.right
    assert "nothing was measured" in report.verdict


def test_figures_are_medians_over_rounds_and_percentiles_over_all_reduces_of_both_ranks(
    host: Host, ranks: Ranks
) -> None:
    report, _ = tried(host, ranks, rounds=3)
    sliced, shared = report.points
    assert (sliced.side, sliced.rounds, sliced.steps_per_s, sliced.mean_us) == (SLICED, 3, 20.0, 200.0)
    assert (shared.side, shared.steps_per_s, shared.p50_us, shared.p99_us) == (MPS, 40.0, 80.0, 130.0)
    assert shared.mean_us == pytest.approx((99 * 80 + 2 * 130) / 101)
    assert report.verdict == (
        "two ranks on one GPU: over gloo, under MPS 2.0 times the steps of time-slicing (40 against 20 steps/s), and an"
        " all-reduce of 4 bytes takes 81 µs (p99 130) against 200 µs (p99 200); all 8 failure cases held."
    )


def of_rounds(side: str, steps_per_s: list[float], mean_us: list[float]) -> list[values.Run]:
    pairs = zip(steps_per_s, mean_us)
    return [
        values.Run(GLOO, side, number, steps_per_s=steps, mean_us=mean, p50_us=mean, p99_us=1000.0)
        for number, (steps, mean) in enumerate(pairs, 1)
    ]


@pytest.mark.parametrize(
    ("sliced", "shared", "says"),
    [
        (  # an H200 with driver 580 and torch 2.11: the first round was slow on both sides
            ([86.0, 158.6, 178.5], [831.6, 538.6, 529.1]),
            ([128.0, 168.9, 183.9], [407.3, 375.5, 394.3]),
            "no difference in steps between MPS and time-slicing beyond the spread of the rounds (169 against"
            " 159 steps/s), and an all-reduce of 4 bytes takes 394 µs (p99 1,000) against 539 µs (p99 1,000).",
        ),
        (
            ([100.0, 101.0], [500.0, 400.0]),
            ([200.0, 201.0], [450.0, 480.0]),
            "2.00 times the steps of time-slicing (200 against 100 steps/s), and an all-reduce of 4 bytes takes"
            " 465 µs (p99 1,000) against 450 µs (p99 1,000), which is within the spread of the rounds.",
        ),
        (([100.0], [500.0]), ([200.0], [400.0]), "(one round: how far rounds lie apart is not known)."),
        (([100.0], [500.0]), ([200.0, 210.0], [400.0, 410.0]), "(one round: how far rounds lie apart is not known)."),
    ],
)
def test_a_difference_is_told_only_beyond_the_spread_of_the_rounds(
    sliced: tuple[list[float], list[float]], shared: tuple[list[float], list[float]], says: str
) -> None:
    report = values.Report("host", "NVIDIA H200", "580.159.04", 100, 10_000, 3, 30.0)
    report.runs = [*of_rounds(SLICED, *sliced), *of_rounds(MPS, *shared)]
    assert report.verdict.endswith(says)


# -- NCCL


DUPLICATE = "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 18000"


@pytest.mark.parametrize(
    ("plan", "outcome", "words"),
    [
        ({"nccl": None}, ABSENT, "no NCCL"),
        ({"nccl": [2, 28, 9], "nccl_words": f"ncclInvalidUsage: …\nLast error:\n{DUPLICATE}"}, REFUSED, DUPLICATE),
        (
            {"nccl": [2, 14, 3], "nccl_words": "ncclInvalidUsage: usage", "nccl_log": f"WARN {DUPLICATE}"},
            REFUSED,
            DUPLICATE,
        ),
        ({"nccl": [2, 29, 7], "nccl_words": "x\nncclInvalidUsage: usage"}, REFUSED, "ncclInvalidUsage"),
        ({"nccl": [2, 29, 7], "nccl_words": "ncclSystemError"}, FAILED, "NCCL error"),
        ({"nccl": [2, 30, 3], "nccl_words": "ncclInvalidUsage: usage"}, FAILED, "NCCL error"),
        (
            {"nccl": [2, 30, 7], "nccl_words": "Multiple Ranks are using the same GPU/Partition. Set it"},
            REFUSED,
            "Multiple Ranks",
        ),
        ({"nccl": [2, 30, 3]}, MEASURED, ""),
        ({"nccl": [3, 0, 1]}, MEASURED, ""),
    ],
)
@pytest.mark.sentenceless
def test_nccl_is_absent_refused_failed_or_measured(
    host: Host, ranks: Ranks, plan: dict[str, Any], outcome: str, words: str
) -> None:
    ranks.plan.update(plan)
    report, _ = tried(host, ranks)
    assert [(row.side, row.outcome) for row in report.nccl] == [(SLICED, outcome), (MPS, outcome)]
    assert all(words in row.words for row in report.nccl)
    assert {point.backend for point in report.points} == ({GLOO, NCCL} if outcome == MEASURED else {GLOO})
    assert set(held(report)) == {(point.backend, point.side) for point in report.points}
    assert report.right is (outcome != FAILED)
    if plan["nccl"]:
        assert {one["environment"]["NCCL_MULTI_RANK_GPU_ENABLE"] for one in ranks.started("try", NCCL)} == {"1"}
    if outcome == MEASURED:
        # Waiting that raises costs time: only where a rank fails.
        assert {one["environment"].get("TORCH_NCCL_BLOCKING_WAIT") for one in ranks.started("measure", NCCL)} == {None}
        assert {one["environment"]["TORCH_NCCL_BLOCKING_WAIT"] for one in ranks.started("storm", NCCL)} == {"1"}
    if outcome == REFUSED:
        assert nccl.explain(plan["nccl"]) in report.verdict


@pytest.mark.parametrize("version", [(2, 5, 6), (2, 28, 9), (2, 29, 7)])
def test_an_old_nccl_is_explained_by_the_variable_that_a_newer_one_has(version: tuple[int, ...]) -> None:
    text = nccl.explain(version)
    assert text.startswith(f"NCCL {'.'.join(map(str, version))} refuses two ranks on one GPU (from 2.30 on")
    assert "NCCL_MULTI_RANK_GPU_ENABLE=1" in text


# -- failure cases


@pytest.mark.parametrize(
    ("plan", "number", "holds", "says"),
    [
        ({}, 0, True, "Connection closed by peer"),
        ({"killed": "silent"}, 0, True, "ended early and said nothing: terminate called"),
        ({"killed": "hang"}, 0, False, "rank 0 was still there after 2 s"),
        ({}, 2, True, "Socket Timeout"),
        ({"never": "hang"}, 2, False, "rank 0 was still there after 2 s"),
        ({"never": "done"}, 2, False, "went on without an error"),
        ({}, 1, True, "no process"),
        ({}, 3, True, "no process"),
    ],
)
def test_the_rank_that_is_left_alone_must_end_by_itself(
    host: Host, ranks: Ranks, plan: dict[str, Any], number: int, holds: bool, says: str
) -> None:
    ranks.plan.update(plan)
    report, _ = tried(host, ranks, cpu=True, gpu=None, backends=[GLOO])
    path = report.failure_cases[number]
    assert (path.held, path.seconds is not None) == (holds, True)
    assert says in path.seen
    assert report.right is holds
    assert len(report.failure_cases) == 4, "one that did not hold keeps nobody from trying the next"
    assert ("1 of 4 failure cases did not hold" in report.verdict) is not holds


@pytest.mark.parametrize(
    ("plan", "number", "says"),
    [
        ({"early": True}, 0, "it did not come so far: a rank ended before the storm"),
        ({"problem": "no such interface"}, 2, "it did not come so far: two ranks that come cannot work here either"),
    ],
)
def test_an_end_of_another_cause_is_no_failure_case_that_held(
    host: Host, ranks: Ranks, plan: dict[str, Any], number: int, says: str
) -> None:
    ranks.plan.update(plan)
    report, _ = tried(host, ranks, cpu=True, gpu=None, backends=[GLOO])
    path = report.failure_cases[number]
    assert (path.held, path.seen) == (False, says)
    assert len(report.failure_cases) == 4


def test_no_room_for_what_ranks_write_is_told(host: Host, ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "TemporaryFile", none)
    with pytest.raises(NotReady, match=r"No usable temporary directory found .*; name a folder in TMPDIR"):
        tried(host, ranks)


@pytest.mark.parametrize(
    ("more_mib", "process", "force", "says"),
    [
        (0, True, False, "pid 888 in the lists of NVML"),
        (65, False, False, "65 MiB less are free than before"),
        (64, False, False, None),
        (65, True, True, None),
    ],
)
@pytest.mark.sentenceless
def test_what_is_left_on_the_gpu_is_told(
    host: Host,
    ranks: Ranks,
    monkeypatch: pytest.MonkeyPatch,
    more_mib: int,
    process: bool,
    force: bool,
    says: Optional[str],
) -> None:
    monkeypatch.setattr(loopback, "_LEFT_S", 0.0)
    host.nvml.loads[uuid(0)] = Load(1000, 142_000, 0)

    def leave(line: str, report: Report) -> None:
        if line.startswith("a rank is killed"):
            host.nvml.loads[uuid(0)] = Load(1000 + more_mib, 142_000 - more_mib, 0)
            if process:
                host.nvml.outside_mib = {uuid(0): {host.process("python3", "python3 -c", pid=888): 500}}
        elif line.startswith("and nothing is left"):
            host.nvml.loads[uuid(0)] = Load(1000, 142_000, 0)
            host.nvml.outside_mib = {}

    report, _ = tried(host, ranks, leave, force=force)
    left = report.failure_cases[1]
    assert left.held is (says is None)
    assert (says or "no process") in left.seen


def test_a_server_that_came_or_went_is_nothing_that_was_left(
    host: Host, ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loopback, "_LEFT_S", 0.0)
    server = host.process("nvidia-cuda-mps-server", "/usr/bin/nvidia-cuda-mps-server", pid=999)

    def change(line: str, report: Report) -> None:
        if line.startswith("a rank is killed"):
            host.nvml.others_mib = {} if host.nvml.others_mib else {server: 300}

    report, _ = tried(host, ranks, change)
    assert host.nvml.times_opened == 1
    assert held(report) == {(GLOO, SLICED): [True] * 4, (GLOO, MPS): [True] * 4}


def test_no_rank_is_killed_beside_other_clients_of_the_daemon(host: Host, ranks: Ranks) -> None:
    host.desired()
    host.start()
    host.running().start_server(host.process("nvidia-cuda-mps-server", "nvidia-cuda-mps-server"), [host.client()])
    report, _ = tried(host, ranks, gpu=None, instance="0", force=True)
    assert {side: len(rows) for (_, side), rows in held(report).items()} == {SLICED: 4, MPS: 2}
    assert [one["wanted"]["memory_fraction"] for one in ranks.started("storm")] == [0.5 - 0.5 / 143_771] * 2
    assert any("no rank was killed under MPS" in note for note in report.all_notes)
    assert report.right


# -- refusals


def test_a_python_without_torch_is_told_on_one_line(host: Host, ranks: Ranks, tmp_path: Path) -> None:
    ranks.plan["no_torch"] = True
    with pytest.raises(NotReady, match=r"has no torch \(No module named 'torch'\); expected .*--python") as caught:
        tried(host, ranks)
    assert "\n" not in str(caught.value)
    with pytest.raises(NotReady, match="found no /no/such/python"):
        tried(host, ranks, python="/no/such/python")
    ranks.plan = {**ranks.plan, "no_torch": False, "empty": True}
    with pytest.raises(NotReady, match=r"a process said \[\{\}\]; expected a Python"):
        tried(host, ranks)
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF nothing")
    broken.chmod(0o755)
    with pytest.raises(NotReady, match="broken cannot be started"):
        tried(host, ranks, python=str(broken))


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")])
def test_a_store_can_listen_on_the_port_that_is_held_for_it(family: socket.AddressFamily, address: str) -> None:
    with loopback._held_port() as port, socket.socket(family) as store:
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch's do
        if family == socket.AF_INET6:
            store.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        store.bind((address, port))
        store.listen()
        with socket.create_connection(("127.0.0.1", port), timeout=60):
            store.accept()[0].close()


def test_a_rank_can_be_read_in_every_encoding() -> None:
    assert Path(rank.__file__).read_bytes().isascii()


@pytest.mark.parametrize("name", ["json", "ctypes", "torch"])
def test_a_rank_runs_nothing_of_the_folder_in_which_the_user_stands(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("raise SystemExit('what lies about was run')")
    done = subprocess.run(
        [sys.executable, "-c", Path(rank.__file__).read_text(), json.dumps({"device": "cpu", "job": "look"})],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "what lies about" not in done.stdout + done.stderr


def test_a_torch_without_any_of_the_backends_is_refused(host: Host, ranks: Ranks) -> None:
    ranks.plan["gloo"] = False
    with pytest.raises(NotReady, match="has none of gloo"):
        tried(host, ranks, backends=[GLOO])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--backends", "mpi"], "--backends 'mpi'"),
        (["--backends", "gloo,"], "--backends 'gloo,'"),
        (["--backends", ""], "--backends ''"),
        (["--steps", "0"], "--steps '0'"),
        (["--steps", "1.5"], "--steps '1.5'"),
        (["--all-reduces", "1000001"], "--all-reduces '1000001'"),
        (["--all-reduces", "0"], "--all-reduces '0'"),
        (["--rounds", "101"], "--rounds '101'"),
        (["--timeout", "5.9"], "--timeout '5.9'"),
        (["--timeout", "soon"], "--timeout 'soon'"),
        (["--timeout", "1801"], "--timeout '1801'"),
        (["--cpu", "--gpu", "0"], "--cpu with a GPU"),
        (["--cpu", "--instance", "0"], "--cpu with a GPU"),
        (["--cpu", "--backends", "nccl"], "--cpu with nccl"),
        (["--output", "/no/such/folder/x.json"], "--output /no/such/folder/x.json"),
        (["--output", "/"], "--output /"),
        (["--output", "/" + "x" * 300], "--output /xxx"),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_refused_on_one_line(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.main(["loopback", *words]) == BadValue.exit_code
    said = capsys.readouterr().err
    assert said.startswith(f"mpsctl loopback: found {says}")
    assert said.count("\n") == 1


# -- the verb


def call(host: Host, ranks: Ranks, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    world = replace(host.world, temporary_daemon=Temporary(host).daemon)
    monkeypatch.setattr(command_line, "world_of", lambda options: world)
    monkeypatch.setenv("FAKE_RANKS", json.dumps(ranks.plan))
    return command_line.main(["loopback", "--gpu", "0", "--python", str(ranks.python), "--rounds", "1", *words])


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize(("wrong", "code"), [(False, 0), (True, 1)])
@pytest.mark.sentenceless
def test_the_verb_answers_and_writes(
    host: Host,
    ranks: Ranks,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    as_json: bool,
    wrong: bool,
    code: int,
) -> None:
    ranks.plan.update(sum=wrong, nccl=[2, 28, 9], nccl_words=DUPLICATE)
    out = tmp_path / "out.json"
    assert call(host, ranks, monkeypatch, "--output", str(out), *(["--json"] if as_json else [])) == code
    said = capsys.readouterr()
    assert all(line.startswith("mpsctl loopback: ") for line in said.err.splitlines())
    kept = json.loads(out.read_text())
    assert kept["right"] is (code == 0)
    assert kept["versions"] == {"torch": "2.11.0", "python": "3.12.3", "NCCL": "2.28.9"}
    assert (len(kept["runs"]), len(kept["failure_cases"]), kept["driver"]) == (2, 8, "580.159.04")
    if as_json:
        assert json.loads(said.out) == kept
        return
    assert said.out.endswith(f"written to {out}\n")
    assert f"nccl, MPS: refused: {DUPLICATE}" in said.out
    assert "Two ranks on one GPU: " in said.out
    assert ("gave a wrong sum" in said.out) is wrong


@pytest.mark.parametrize("as_json", [True, False])
def test_results_that_cannot_be_written_are_still_told(
    host: Host, ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    as_json: bool,
) -> None:  # fmt: skip
    def full(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(files, "write", full)
    out = tmp_path / "out.json"
    assert call(host, ranks, monkeypatch, "--output", str(out), *(["--json"] if as_json else [])) == 3
    said, why = capsys.readouterr().out, f"{out} could not be written (No space left on device)"
    assert why in (json.loads(said)["notes"] if as_json else said.splitlines())
    assert "written to" not in said
    assert MPS in said


def test_progress_that_nobody_takes_ends_no_work(
    host: Host, ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.json"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", io.TextIOWrapper(io.FileIO("/dev/full", "w"), write_through=True))
        assert call(host, ranks, monkeypatch, "--output", str(out)) == 0
    assert len(json.loads(out.read_text())["failure_cases"]) == 8


def test_a_stop_keeps_what_was_found_and_starts_nothing_more(host: Host, ranks: Ranks) -> None:
    stop = Stop()

    def progress(line: str, report: Report) -> None:
        if report.runs:
            stop.request(signal.SIGTERM)

    report, temporary = tried(host, ranks, progress, stop, rounds=2)
    assert (len(report.runs), report.stopped, report.failure_cases) == (1, "SIGTERM", [])
    assert temporary.ended == 1
    assert report.verdict.startswith("Stopped by SIGTERM, so this is a part only: two ranks on one GPU")


def test_a_stopped_verb_ends_with_the_signals_code(
    host: Host, ranks: Ranks, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verb, "show_progress", lambda line: os.kill(os.getpid(), signal.SIGTERM))
    assert call(host, ranks, monkeypatch, "--json") == 128 + signal.SIGTERM
    assert json.loads(capsys.readouterr().out)["stopped"] == "SIGTERM"


def test_a_table_has_a_row_for_each_backend_and_side() -> None:
    report = Report("host", "NVIDIA H200", "580.159.04", 20, 100, 1, 30.0, half_mib=71_885)
    for backend in (NCCL, GLOO):
        for side in (MPS, SLICED):
            report.runs.append(values.Run(backend, side, 1, 1234.56, 95.04, 90.0, 140.0))
    lines = verb.as_text(report).splitlines()
    assert lines[0] == "NVIDIA H200, driver 580.159.04"
    assert lines[1].endswith("71885 MiB for each rank")
    assert [line.split()[:2] for line in lines[3:7]] == [
        ["gloo", "time-sliced"], ["gloo", "MPS"], ["nccl", "time-sliced"], ["nccl", "MPS"],
    ]  # fmt: skip
    assert lines[3].split()[2:4] == ["1", "1,234.6"]
