"""What a Slurm job gets of the instances of its GPUs, and what becomes of that and of its clients at its end."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Optional

import pytest

from fakes import Host, h200, uuid
from mpsctl.adapters import hardware, scontrol
from mpsctl.cli import slurm as verb
from mpsctl.lifecycle import admit, drain, slurm_job
from mpsctl.lifecycle.slurm_job import Begins
from mpsctl.model.errors import BadValue, NotInForce, NotReady
from mpsctl.model.shares import Room, read_told
from mpsctl.store import admission, configuration, front_door_notes, jobs
from mpsctl.store.front_door_notes import LetIn
from mpsctl.store.jobs import Job, JobShare
from shell import Shell

ALICE, NODE, SERVER = 1000, "n1", 9001
HELD = {"ExpectedClients": 8, "OverExpected": "wait", "DeviceMemoryLimit": "12%"}


@dataclass
class Slurm:
    """Slurm as its command tells of it: what each job has (``GRES=``), and the nodes that were drained."""

    has: dict[str, str] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    gres: str = "gpu:2,shard:16"
    drained: list[tuple[str, str]] = field(default_factory=list)
    anew: list[tuple[str, bool]] = field(default_factory=list)
    refuses: bool = False

    def job(self, job: str) -> str:
        if job not in self.has:
            raise scontrol.NoSuchJob("slurm_load_jobs error: Invalid job id specified")
        state = self.states.get(job, "RUNNING")
        return f"JobId={job} JobName=x JobState={state}   Nodes={NODE} CPU_IDs=0 Mem=0 GRES={self.has[job]} Features=\n"

    def node(self, node: str) -> str:
        return f"NodeName={node} Gres={self.gres} GresDrain=N/A"

    def begin_anew(self, job: str, hold: bool) -> None:
        if self.refuses:
            raise NotReady("Requested operation is presently disabled")
        self.anew.append((job, hold))

    def drain(self, node: str, reason: str) -> None:
        self.drained.append((node, reason))


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    found = Slurm()
    for name in ("job", "node", "drain", "begin_anew"):
        monkeypatch.setattr(scontrol, name, getattr(found, name))
    return found


@pytest.fixture
def node(host: Host) -> Host:
    """Two GPUs with an instance each, for eight clients, and nobody connected."""
    host.places.root.chmod(0o755)
    host.nvml.all = [h200(0), h200(1)]
    for name in ("0", "1"):
        instance(host, name)
    return host


def instance(host: Host, name: str, **other: object) -> None:
    host.desired(name, **{**HELD, **other})
    unit = host.systemd.unit(f"mps-control@{name}.service")
    if unit.main_pid:
        host.stop(name)
    unit.enabled = True
    host.start(name)


def begin(host: Host, slurm: Slurm, gres: str, *gpus: int, job: str = "7", uid: int = ALICE) -> Optional[Job]:
    slurm.has[job] = gres
    return slurm_job.begin(host.world, Begins(job, uid, NODE, gpus))


def told(host: Host, name: str = "0") -> str:
    found = admission.stored(host.places, name)
    assert found is not None
    return "" if found.room is None else str(found.room.shares)


def test_a_job_has_as_many_places_as_its_part_of_the_gpu(node: Host, slurm: Slurm) -> None:
    job = begin(node, slurm, "shard:3(0/8,3/8)", 1)
    assert job is not None
    (share,) = job.shares
    assert (share.instance, share.gpus, share.clients, share.part) == ("1", (1,), 3, "3 of 8 shards")
    assert share.environment == {
        "CUDA_MPS_PIPE_DIRECTORY": str(node.pipe_root / "1"),
        "CUDA_VISIBLE_DEVICES": uuid(1),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "37.5",
    }
    assert (told(node, "0"), told(node, "1")) == ("each-job=0", "job:7=3 each-job=0")
    assert jobs.read(node.places, "7") == job


def test_the_older_form_takes_the_number_of_shards_from_the_node(node: Host, slurm: Slurm) -> None:
    job = begin(node, slurm, "shard:2(IDX:0)", 0)
    assert job is not None
    assert job.shares[0].clients == 2
    slurm.gres = "gpu:2,shard:15"
    with pytest.raises(NotReady):
        begin(node, slurm, "shard:2(IDX:0)", 0)


def test_a_percentage_of_the_instance_that_is_lower_stays(node: Host, slurm: Slurm) -> None:
    instance(node, "0", ActiveThreadPercentage=12.5)
    job = begin(node, slurm, "shard:3(3/8)", 0)
    assert job is not None
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in job.shares[0].environment


def test_without_a_limit_a_client_is_told_its_part_of_the_jobs_memory(node: Host, slurm: Slurm) -> None:
    instance(node, "0", DeviceMemoryLimit=None)
    job = begin(node, slurm, "shard:4(4/8)", 0)
    assert job is not None
    total = h200(0).memory_mib
    assert total is not None
    assert job.shares[0].environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={total // 2 // 4}M"


def test_whole_gpus_have_all_places_and_nothing_lower(node: Host, slurm: Slurm) -> None:
    job = begin(node, slurm, "gpu:2(IDX:0-1)", 0, 1)
    assert job is not None
    assert [(share.instance, share.clients) for share in job.shares] == [("0", 8), ("1", 8)]
    assert all(set(one.environment) == {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_VISIBLE_DEVICES"} for one in job.shares)


def test_a_job_without_a_gpu_has_no_share_and_comes_in_nowhere(node: Host, slurm: Slurm) -> None:
    assert slurm_job.begin(node.world, Begins("7", ALICE, NODE, ())) is None
    assert told(node) == "each-job=0"
    assert jobs.read(node.places, "7") is None


def test_a_gpu_that_shards_of_another_job_are_on_is_not_given_whole(node: Host, slurm: Slurm) -> None:
    begin(node, slurm, "shard:3(3/8,0/8)", 0, job="6")
    with pytest.raises(NotReady, match="job 6"):
        begin(node, slurm, "gpu:2(IDX:0-1)", 0, 1)
    assert jobs.read(node.places, "7") is None
    assert told(node) == "job:6=3 each-job=0"


def test_a_record_whose_job_slurm_has_no_more_is_in_nobodys_way(node: Host, slurm: Slurm) -> None:
    begin(node, slurm, "shard:3(3/8)", 0, job="5")
    begin(node, slurm, "shard:3(3/8)", 0, job="6")
    del slurm.has["5"]
    slurm.states["6"] = "COMPLETED"
    assert begin(node, slurm, "gpu:1(IDX:0)", 0) is not None
    assert told(node) == "job:7=8 each-job=0"


def test_a_job_that_comes_again_has_its_new_share(node: Host, slurm: Slurm) -> None:
    begin(node, slurm, "shard:8(8/8)", 0)
    job = begin(node, slurm, "shard:1(0/8,1/8)", 1)
    assert job is not None
    assert (told(node, "0"), told(node, "1")) == ("each-job=0", "job:7=1 each-job=0")


@pytest.mark.parametrize(
    ("other", "gres"),
    [
        ({"ExpectedClients": None, "OverExpected": None}, "shard:1(1/8)"),
        ({"OverExpected": None}, "shard:1(1/8)"),
        ({"ExpectedClients": 4}, "shard:1(1/8)"),
    ],
    ids=["no number", "a number that is not held", "fewer clients than shards"],
)
def test_an_instance_that_holds_no_share_is_refused(
    node: Host, slurm: Slurm, other: dict[str, object], gres: str
) -> None:
    instance(node, "0", **other)
    with pytest.raises(BadValue):
        begin(node, slurm, gres, 0)
    assert jobs.read(node.places, "7") is None


def test_an_instance_of_other_gpus_as_well_is_refused(host: Host, slurm: Slurm) -> None:
    host.nvml.all = [h200(0), h200(1)]
    instance(host, "both", GPUs="0 1")
    with pytest.raises(BadValue, match="instance both"):
        begin(host, slurm, "gpu:1(IDX:1)", 1)
    with pytest.raises(BadValue, match="GPU 5"):
        begin(host, slurm, "gpu:1(IDX:5)", 5)


def test_a_broken_file_of_another_gpu_is_in_nobodys_way(node: Host, slurm: Slurm) -> None:
    node.places.conf("1").write_text("# Managed by mps-fleet\n[Instance]\nGPUs=x\n")
    assert begin(node, slurm, "shard:1(1/8,0/8)", 0) is not None
    with pytest.raises(BadValue, match=r"1\.conf"):
        begin(node, slurm, "shard:1(0/8,1/8)", 1, job="8")


def test_gpus_go_by_the_numbers_of_their_device_files(
    node: Host, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    minors = {h200(0).pci_address: 1, h200(1).pci_address: 0}
    monkeypatch.setattr(hardware, "device_minor", minors.get)
    job = begin(node, slurm, "gpu:1(IDX:0)", 0)
    assert job is not None
    assert job.shares[0].instance == "1"


def test_an_instance_that_is_drained_fails_at_once_and_gives_nothing(node: Host, slurm: Slurm) -> None:
    drain.drain(node.world, [configuration.load(node.world, "0")], 1)
    began_s = node.clock.now_s
    with pytest.raises(NotReady, match="instance 0 is not ready"):
        begin(node, slurm, "shard:1(1/8)", 0)
    assert node.clock.now_s < began_s + slurm_job.READY_S
    assert (told(node), jobs.read(node.places, "7")) == ("each-job=0", None)


def test_a_daemon_that_is_back_within_the_bound_is_waited_for(
    node: Host, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.running("0").not_served = True
    sleep = node.clock.sleep

    def mended(seconds: float) -> None:
        node.running("0").not_served = False
        sleep(seconds)

    monkeypatch.setattr(node.clock, "sleep", mended)
    object.__setattr__(node.world, "sleep_s", mended)
    assert begin(node, slurm, "shard:1(1/8)", 0) is not None


def test_who_is_not_in_the_instances_group_drains_no_node(node: Host, slurm: Slurm) -> None:
    instance(node, "0", Group="root")
    assert begin(node, slurm, "shard:1(1/8)", 0, uid=65534) is not None


def test_a_process_outside_mps_is_named(node: Host, slurm: Slurm) -> None:
    pid = node.process("python3", "python3 train.py", {}, 2000)
    node.nvml.outside_mib.setdefault(uuid(0), {})[pid] = 500
    with pytest.raises(NotReady, match=f"pid {pid}"):
        begin(node, slurm, "shard:1(1/8)", 0)


# -- what a restart, a drain and a converge tell the door


def test_every_word_to_the_door_has_the_shares_of_the_moment(node: Host, slurm: Slurm) -> None:
    begin(node, slurm, "shard:3(3/8)", 0)
    node.restart("0")
    assert told(node) == "job:7=3 each-job=0"
    drain.drain(node.world, [configuration.load(node.world, "0")], 1)
    jobs.forget(node.places, "7")
    drain.undrain(node.world, "0")
    assert told(node) == "each-job=0"
    assert node.door_is_open()


def test_a_job_is_told_without_opening_what_is_drained(node: Host, slurm: Slurm) -> None:
    begin(node, slurm, "shard:3(3/8)", 0)
    drain.drain(node.world, [configuration.load(node.world, "0")], 1)
    jobs.write(node.places, Job("8", ALICE, (JobShare("0", (0,), 2, ""),)))
    admit.tell_jobs(node.world, "0")
    assert told(node) == "job:7=3 job:8=2 each-job=0"
    assert not node.door_is_open()


def test_a_host_without_jobs_is_told_as_ever(node: Host) -> None:
    assert told(node) == ""
    node.restart("0")
    assert told(node) == ""
    assert jobs.room(node.places, "0", None) is None


def test_an_instance_that_holds_nothing_holds_jobs_once_they_are_told(node: Host, slurm: Slurm) -> None:
    instance(node, "1", ExpectedClients=None, OverExpected=None)
    begin(node, slurm, "shard:3(3/8)", 0)
    assert admission.stored(node.places, "1").room == Room(None, read_told("each-job=0"))  # type: ignore[union-attr]


def test_verify_takes_shares_of_jobs_for_no_fault(node: Host, slurm: Slurm, mpsctl: Shell) -> None:
    begin(node, slurm, "shard:3(3/8)", 0)
    found = mpsctl.json("verify", "0")["instances"]["0"]["checks"]
    assert next(one["level"] for one in found if one["name"] == "front-door") == "ok"


# -- its end


def let_in(host: Host, pid: int, job: str, name: str = "0") -> None:
    process, daemon = host.processes[pid], host.running(name)
    one = LetIn(pid, process.started_at, process.uid, daemon.pid, host.clock.now_s, job=job)
    front_door_notes.add(host.places, name, one)


def test_the_end_takes_the_share_and_the_clients_that_are_left(node: Host, slurm: Slurm) -> None:
    begin(node, slurm, "shard:3(3/8)", 0)
    daemon = node.running("0")
    daemon.start_server(SERVER)
    mine, others = node.client(), node.client()
    for pid, job in ((mine, "7"), (others, "6")):
        daemon.connect(SERVER, pid)
        let_in(node, pid, job)
    stays = node.client()  # of the job, and no client: none of ours
    (ended,) = slurm_job.end(node.world, "7")
    assert (ended.pid, ended.taken_off) == (mine, True)
    assert mine not in node.processes
    assert {others, stays} <= set(node.processes)
    assert daemon.servers[SERVER].clients == [others]
    assert (told(node), jobs.read(node.places, "7")) == ("each-job=0", None)


def test_an_end_without_a_record_or_a_daemon_does_nothing(node: Host, slurm: Slurm) -> None:
    assert slurm_job.end(node.world, "7") == []
    begin(node, slurm, "shard:3(3/8)", 0)
    left = node.client()
    let_in(node, left, "7")
    node.kill(node.running("0").pid)
    assert slurm_job.end(node.world, "7") == []
    assert left in node.processes


def test_a_client_that_the_daemon_does_not_take_off_fails_the_end(node: Host, slurm: Slurm) -> None:
    begin(node, slurm, "shard:3(3/8)", 0)
    daemon = node.running("0")
    daemon.start_server(SERVER)
    pid = node.client()
    daemon.connect(SERVER, pid)
    let_in(node, pid, "7")
    node.processes[pid].state = "D"
    with pytest.raises(NotInForce, match=f"pid {pid}"):
        slurm_job.end(node.world, "7")
    assert told(node) == "each-job=0", "nobody comes in by it all the same"


# -- the verb


def environment(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_JOB_UID", "SLURMD_NODENAME", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_SCRIPT_CONTEXT", "prolog_slurmd")


def test_a_prolog_and_an_epilog_as_slurm_runs_them(
    node: Host, slurm: Slurm, mpsctl: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.has["7"] = "shard:3(3/8)"
    environment(monkeypatch, SLURM_JOB_ID="7", SLURM_JOB_UID="1000", SLURMD_NODENAME=NODE, SLURM_JOB_GPUS="0")
    assert mpsctl("slurm", "prolog") == 0
    assert told(node) == "job:7=3 each-job=0"
    assert mpsctl("slurm", "epilog") == 0
    assert told(node) == "each-job=0"
    assert slurm.drained == []


def test_a_prolog_that_fails_tells_slurm_why(
    node: Host, slurm: Slurm, mpsctl: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.stop("0")
    slurm.has["7"] = "shard:3(3/8)"
    environment(monkeypatch, SLURM_JOB_ID="7", SLURM_JOB_UID="1000", SLURMD_NODENAME=NODE, SLURM_JOB_GPUS="0")
    assert mpsctl("slurm", "prolog") != 0
    ((drained, reason),) = slurm.drained
    assert drained == NODE
    assert reason.startswith("mps: ")
    assert "\n" not in reason


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"SLURM_JOB_ID": "x"},
        {"SLURM_JOB_ID": "7"},
        {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "1", "SLURM_JOB_GPUS": "a"},
    ],
)
def test_what_is_not_run_by_slurm_is_refused(
    node: Host, slurm: Slurm, mpsctl: Shell, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    environment(monkeypatch, **variables)
    assert mpsctl("slurm", "prolog") == BadValue.exit_code


def test_a_person_who_tries_it_drains_no_node(
    node: Host, slurm: Slurm, mpsctl: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.stop("0")
    slurm.has["7"] = "shard:3(3/8)"
    environment(monkeypatch, SLURM_JOB_ID="7", SLURM_JOB_UID="1000", SLURMD_NODENAME=NODE, SLURM_JOB_GPUS="0")
    monkeypatch.delenv("SLURM_SCRIPT_CONTEXT")
    assert mpsctl("slurm", "prolog") != 0
    slurm.has["7"] = ""
    assert mpsctl("slurm", "prolog") == 0
    assert (slurm.drained, slurm.anew) == ([], [])


@pytest.mark.parametrize(("again", "refuses", "anew"), [("1", False, [False]), ("10", False, [True]), ("1", True, [])])
def test_a_job_that_slurm_gave_nothing_begins_anew_and_drains_no_node(
    node: Host,
    slurm: Slurm,
    mpsctl: Shell,
    monkeypatch: pytest.MonkeyPatch,
    again: str,
    refuses: bool,
    anew: list[bool],
) -> None:
    slurm.has["7"], slurm.refuses = "", refuses
    environment(monkeypatch, SLURM_JOB_ID="7", SLURM_JOB_UID="1000", SLURMD_NODENAME=NODE, SLURM_JOB_GPUS="0")
    monkeypatch.setenv("SLURM_JOB_RESTART_COUNT", again)
    assert mpsctl("slurm", "prolog") == 0
    assert [hold for _, hold in slurm.anew] == anew
    assert (slurm.drained, told(node), jobs.read(node.places, "7")) == ([], "each-job=0", None)


def test_gres_mps_is_refused(node: Host, slurm: Slurm, mpsctl: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm.has["7"] = "mps:25(25/100)"
    environment(monkeypatch, SLURM_JOB_ID="7", SLURM_JOB_UID="1", SLURMD_NODENAME=NODE, SLURM_JOB_GPUS="0")
    assert mpsctl("slurm", "prolog") == BadValue.exit_code
    assert "gres/mps" in slurm.drained[0][1]


def share(name: str, *gpus: int) -> JobShare:
    return JobShare(name, gpus, 1, "", {"CUDA_MPS_PIPE_DIRECTORY": f"/run/nvidia-mps/{name}"})


def test_a_task_has_the_variables_of_its_gpus_instance_and_no_others() -> None:
    job = Job("7", ALICE, (share("0", 0), share("1", 1)))
    brought = {"SLURM_JOB_GPUS": "0,1", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "1G", "PATH": "/bin"}
    assert list(verb.lines(job, {**brought, "SLURM_STEP_GPUS": "1"}))[:2] == [
        "unset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        "export CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps/1",
    ]
    for task, name in (("0", "0"), ("1", "1"), ("2", "0")):
        assert f"export CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps/{name}" in list(
            verb.lines(job, {**brought, "SLURM_LOCALID": task})
        )


def test_a_task_prolog_as_slurm_runs_it(node: Host, mpsctl: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch, SLURM_JOB_ID="7")
    assert (mpsctl("slurm", "task-prolog"), mpsctl.out) == (0, ""), "a job without a GPU"
    monkeypatch.setenv("SLURM_JOB_GPUS", "0")
    assert mpsctl("slurm", "task-prolog") == NotReady.exit_code
    jobs.write(node.places, Job("7", ALICE, (share("0", 0),)))
    assert mpsctl("slurm", "task-prolog") == 0
    assert mpsctl.out.splitlines() == ["export CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps/0"]


def test_a_record_that_is_damaged_counts_as_none(node: Host) -> None:
    for text in ("", "{", "[]", json.dumps({"job": "7"}), json.dumps({"job": "7", "uid": 1, "shares": [{}]})):
        node.places.job("7").parent.mkdir(parents=True, exist_ok=True)
        node.places.job("7").write_text(text)
        assert jobs.read(node.places, "7") is None
        assert jobs.every(node.places) == []
