"""remove: everything of ours goes, nothing else does, and a GPU is never left worse than found."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Optional, Sequence

import pytest

from converging import this_run
from fakes import Host, h200
from mpsctl.adapters import hardware
from mpsctl.converge import own_folders, reconcile, removal
from mpsctl.converge.answer import Answer
from mpsctl.converge.request import Request
from mpsctl.model.gpu import DEFAULT, EXCLUSIVE_PROCESS, PROHIBITED
from mpsctl.model.places import FINGERPRINT
from shell import Shell

UNITS = ("mps-control@.service", "mps-health.service", "mps-health.timer")


@pytest.fixture
def installed(host: Host) -> Host:
    """Two instances at work, the shared units, the program and its cache."""
    host.nvml.all[1] = h200(1, compute_mode=EXCLUSIVE_PROCESS)  # as its administrator had it before us
    for name in UNITS:
        path = host.places.units / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{FINGERPRINT}: written by the role\n")
    for path in (host.places.program, host.places.cache / "mpsctl-1.zip"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a program")
    for name in ("0", "1"):
        host.desired(name, ComputeMode=EXCLUSIVE_PROCESS, DeviceMemoryLimit="4G")
        host.start(name)
        host.systemd.unit(f"mps-control@{name}.service").enabled = True
    return host


def run(host: Host, check: bool = False) -> Answer:
    return removal.remove(host.world, check)


def left(host: Host) -> list[str]:
    """Every file under the host's root."""
    return sorted(str(path.relative_to(host.places.root)) for path in host.places.root.rglob("*") if not path.is_dir())


def test_nothing_of_ours_stays_and_modes_are_what_they_were_before_us(installed: Host) -> None:
    answer = run(installed)
    assert (answer.error, answer.changed, answer.pending) == (None, True, [])
    assert left(installed) == []
    assert not (installed.places.root / "etc/mps").exists()
    assert not installed.pipe_root.exists()
    assert [installed.nvml.gpu(index).compute_mode for index in (0, 1)] == [DEFAULT, EXCLUSIVE_PROCESS]
    assert not any(unit.enabled or unit.main_pid for unit in installed.systemd.units.values())


def test_a_second_run_finds_nothing_and_does_nothing(installed: Host) -> None:
    run(installed)
    done = list(installed.systemd.acts)
    answer = run(installed)
    assert (answer.error, answer.changed, answer.actions, answer.diff) == (None, False, [], [])
    assert installed.systemd.acts == done


def test_check_says_all_of_it_and_changes_nothing(installed: Host) -> None:
    before = installed.snapshot()
    answer = run(installed, check=True)
    assert answer.changed
    assert installed.snapshot() == before
    assert installed.systemd.acts == []
    assert [step["kind"] for step in answer.steps[:4]] == [
        "stop-helpers",
        "stop-and-remove",
        "stop-and-remove",
        "restore-compute-mode",
    ]
    done = run(installed)
    assert (answer.actions, answer.diff) == (done.actions, done.diff)
    assert [entry["after_header"] for entry in answer.diff if "(absent)" in entry["after_header"]] == [
        f"{path} (absent)"
        for path in [
            *(installed.places.configuration / f"{name}.{kind}" for name in ("0", "1") for kind in ("conf", "env")),
            *(installed.places.units / name for name in UNITS[:1] + UNITS[:0:-1]),
        ]
    ]


def test_an_instance_with_clients_stays_and_so_does_what_it_needs(installed: Host) -> None:
    client = installed.client(4242)
    installed.running("1").start_server(9001, [client])
    answer = run(installed)
    assert answer.error is not None
    assert "1 (1 client left: client 4242 (python3 serve.py" in answer.error
    assert [(entry["instance"], entry["clients"][0]["pid"]) for entry in answer.pending] == [("1", client)]
    assert client in installed.processes
    assert not installed.places.conf("0").exists()
    assert installed.places.conf("1").exists()
    assert installed.places.program.exists()
    assert (installed.places.units / UNITS[0]).exists()
    assert installed.door_is_open("1")
    assert installed.nvml.gpu(0).compute_mode == DEFAULT
    installed.running("1").leave(9001, client)
    assert run(installed).error is None
    assert left(installed) == []


def test_who_came_in_since_the_look_is_counted_by_the_last_good_file_too(
    installed: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon was down and its file damaged at the look; systemd brought it up again, and a client came in."""
    damaged, good = installed.places.conf("1"), installed.places.conf("1").read_text()
    unit = installed.systemd.unit("mps-control@1.service")
    installed.kill(unit.main_pid)
    unit.main_pid, unit.active_state = 0, "failed"
    damaged.write_text(f"{FINGERPRINT}: half a fi")
    client = installed.client()
    really = installed.systemd.act

    def act(verb: str, units: Sequence[str] = ()) -> Optional[str]:
        if verb == "disable" and not any(one.servers for one in installed.daemons.values()):
            damaged.write_text(good)
            installed.start("1").start_server(9001, [client])
            damaged.write_text(f"{FINGERPRINT}: half a fi")
        return really(verb, units)

    monkeypatch.setattr(installed.systemd, "act", act)
    answer = run(installed)
    assert [(one["instance"], [each["pid"] for each in one["clients"]]) for one in answer.pending] == [("1", [client])]
    assert installed.running("1").servers[9001].clients == [client]
    assert damaged.exists()


def test_what_is_not_ours_stays_and_is_named(installed: Host) -> None:
    others = {
        installed.places.conf("hand"): "[Instance]\nGPUs=3\n",
        installed.places.units / UNITS[2]: "[Timer]\n",
        installed.pipe_root / "elsewhere": "a file of somebody else",
    }
    for path, text in others.items():
        path.write_text(text)
    answer = run(installed)
    assert answer.error is None
    assert left(installed) == sorted(str(path.relative_to(installed.places.root)) for path in others)
    assert sorted(answer.warnings) == sorted(
        f"{path} is not ours and stays" for path in others if path.parent != installed.pipe_root
    )


@pytest.mark.parametrize(
    "place",
    [
        "var/lib/mps-fleet/backup/thesis",
        "var/lib/mps-fleet/notes.txt",
        "var/lib/mps-fleet/former-compute-modes/README",
        "var/lib/mps-fleet/public-directories/0.json.kept",
        "var/cache/mps-fleet/other-tool/index",
        "run/mps-fleet/0/core.4242",
        "run/mps-fleet/.hidden/socket",
    ],
)
def test_what_somebody_put_into_a_folder_of_ours_stays_and_is_named(installed: Host, place: str) -> None:
    """The folder's name decides nothing: what lies in it does."""
    theirs = installed.places.root / place
    theirs.parent.mkdir(parents=True, exist_ok=True)
    theirs.write_text("somebody's")
    answer = run(installed)
    assert answer.error is None
    assert left(installed) == [place]
    named = [
        line for line in answer.warnings if place.startswith(line.split()[0].removeprefix(f"{installed.places.root}/"))
    ]
    assert len(named) == 1, answer.warnings
    again = run(installed)
    assert (again.error, again.changed) == (None, False)


def test_every_file_that_the_program_keeps_for_an_instance_is_known_as_ours(host: Host) -> None:
    program = Path(own_folders.__file__).parents[1]
    sources = "".join(path.read_text() for path in program.rglob("*.py"))
    names = {*re.findall(r"\.runtime\([^)]*\) / \"([^\"]+)\"", sources)}
    names = names - {"pipe"} | {
        "admission.lock",
        "admission.entry.lock",
        "front-door.let-in",
        "front-door.let-in-before",
    }
    assert len(names) > 12
    folder = host.places.runtime("0")
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).touch()
    for name in re.findall(r"\"run/mps-fleet/([^\"]+)\"", (program / "model/places.py").read_text()):
        (folder.parent / name).touch()
    assert own_folders.look(host.places, host.places.host_lock.parent).others == []


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_what_has_the_name_of_a_file_of_ours_and_is_none_stays(installed: Host, kind: str) -> None:
    place = installed.places.state / "measured.json"
    away = installed.places.root / "away"
    away.write_text("somebody's")
    place.symlink_to(away) if kind == "link" else place.mkdir()
    assert run(installed).error is None
    assert away.read_text() == "somebody's"
    assert place.is_symlink() or place.is_dir()


def test_the_directory_of_a_measurement_s_daemon_stays_while_that_runs(installed: Host) -> None:
    private = installed.places.root / "run/mps-fleet/bench-4711-abcdefgh"
    private.mkdir()
    daemon = installed.launch({"CUDA_MPS_PIPE_DIRECTORY": str(private), "CUDA_VISIBLE_DEVICES": h200(2).uuid})
    assert f"{private}, which a control daemon serves" in str(run(installed).error)
    assert (private / "control").exists()
    installed.kill(daemon.pid)
    assert run(installed).error is None
    assert left(installed) == []


def test_a_run_that_was_interrupted_is_finished_by_the_next(installed: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is interrupted before each of its steps in systemd, one after the other."""
    for nth in range(20):
        really, calls = installed.systemd.act, [0]

        def act(verb: str, units: tuple[str, ...] = ()) -> Optional[str]:
            calls[0] += 1  # noqa: B023 (used within this round)
            if calls[0] > nth:  # noqa: B023
                raise KeyboardInterrupt
            return really(verb, units)  # noqa: B023

        with monkeypatch.context() as patch:
            patch.setattr(installed.systemd, "act", act)
            try:
                run(installed)
                break
            except KeyboardInterrupt:
                pass
    else:
        pytest.fail("it never came to its end")
    assert run(installed).error is None
    assert left(installed) == []
    assert [installed.nvml.gpu(index).compute_mode for index in (0, 1)] == [DEFAULT, EXCLUSIVE_PROCESS]


def test_a_gpu_that_was_closed_while_mps_is_down_is_opened(installed: Host) -> None:
    installed.desired("0", ComputeMode=EXCLUSIVE_PROCESS, WhenDown=PROHIBITED, ServerUser="root")
    installed.stop("0")
    assert installed.nvml.gpu(0).compute_mode == PROHIBITED
    assert run(installed).error is None
    assert installed.nvml.gpu(0).compute_mode == DEFAULT


def test_the_mode_of_a_gpu_that_no_instance_has_any_more_is_brought_back(installed: Host) -> None:
    installed.stop("0")
    installed.places.conf("0").unlink()
    installed.nvml.all[0] = replace(installed.nvml.gpu(0), compute_mode=EXCLUSIVE_PROCESS)
    run(installed)
    assert installed.nvml.gpu(0).compute_mode == DEFAULT


def test_an_instance_that_would_start_at_boot_without_a_file_goes_too(installed: Host) -> None:
    wants = installed.places.units / "multi-user.target.wants"
    wants.mkdir()
    (wants / "mps-control@gone.service").symlink_to("../mps-control@.service")
    run(installed)
    assert any(act.startswith("disable ") and "mps-control@gone.service" in act for act in installed.systemd.acts)
    assert not list(wants.iterdir()), "of a masked unit `systemctl disable` leaves the link"


@pytest.mark.parametrize("file_is_there", [True, False])
def test_the_timers_link_goes_whatever_became_of_disable(installed: Host, file_is_there: bool) -> None:
    units = installed.places.units
    link = units / "timers.target.wants" / "mps-health.timer"
    link.parent.mkdir()
    link.symlink_to(units / "mps-health.timer")
    if not file_is_there:
        (units / "mps-health.timer").unlink()
    really = installed.systemd.act

    def act(verb: str, names: tuple[str, ...] = ()) -> Optional[str]:
        return "Failed to disable unit" if [verb, *names] == ["disable", "mps-health.timer"] else really(verb, names)

    installed.systemd.act = act  # type: ignore[method-assign,assignment]
    assert run(installed).error is None
    assert not link.is_symlink()
    assert left(installed) == []


def test_a_timers_link_alone_is_found(host: Host) -> None:
    link = host.places.units / "timers.target.wants" / "mps-health.timer"
    link.parent.mkdir(parents=True)
    link.symlink_to("../mps-health.timer")
    assert [step["kind"] for step in run(host, check=True).steps] == ["remove-partial-file", "reload-systemd"]
    assert run(host).error is None
    assert not link.is_symlink()


def test_with_a_driver_that_does_not_answer_nothing_is_removed_or_the_modes_would_be_lost(
    installed: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = left(installed)
    installed.nvml.driver_up = False
    answer = run(installed)
    assert answer.error is not None
    assert answer.error.startswith("the compute modes cannot be brought back, so nothing was removed")
    assert left(installed) == before
    # A driver that is not loaded has no modes: it forgets them.
    monkeypatch.setattr(hardware, "driver_version", lambda: None)
    assert run(installed).error is None
    assert left(installed) == []


def test_what_does_not_go_is_an_error(installed: Host) -> None:
    installed.systemd.fails["stop"] = "Job failed"
    answer = run(installed)
    assert answer.error is not None
    assert "systemctl stop" in answer.error


def test_a_request_to_remove_goes_the_way_of_every_request(installed: Host) -> None:
    request = Request.from_json({"format": 2, "files": [], "instances": [], "remove": True})
    assert reconcile.reconcile(installed.world, request, check=False).changed
    assert left(installed) == []


def test_a_bare_host_needs_nothing(host: Host) -> None:
    assert not run(host).changed


def test_a_directory_that_another_daemon_serves_is_left(installed: Host) -> None:
    public = installed.pipe_root / "0"
    private = public / ".abcdefghijk"
    private.mkdir()
    installed.launch({"CUDA_MPS_PIPE_DIRECTORY": str(private)})
    run(installed)
    assert private.is_dir()


# -- the policy for clients holds for removal as for every other stop


POLICIES = ["refuse", "wait", "terminate"]
TIMEOUT_S = 60


@pytest.fixture
def serving(installed: Host) -> Host:
    """A client of instance 1."""
    this_run(installed)
    installed.running("1").start_server(9001, [installed.client(4242)])
    return installed


def by_consent(host: Host, policy: str, check: bool = False) -> Answer:
    return removal.remove(host.world, check, policy, TIMEOUT_S)


def kinds(answer: Answer) -> list[str]:
    return [step["kind"] for step in answer.steps]


def stays(host: Host, answer: Answer) -> bool:
    """Whether instance 1 and what it shares were left as they are, and instance 0 is gone."""
    assert not host.places.conf("0").exists()
    present = [path.exists() for path in (host.places.conf("1"), host.places.program, host.places.units / UNITS[2])]
    assert len(set(present)) == 1
    assert bool(answer.pending) == bool(answer.error) == present[0]
    return present[0]


@pytest.mark.parametrize("policy", ["wait", "terminate"])
def test_a_client_that_leaves_in_time_is_waited_for(serving: Host, policy: str) -> None:
    daemon = serving.running("1")
    serving.clock.when(20, lambda: serving.end(4242))
    answer = by_consent(serving, policy)
    assert not stays(serving, answer)
    assert left(serving) == []
    assert (daemon.terminated, serving.signals) == ([], [])
    assert "drain" in kinds(answer)
    assert any("no client is left" in line for line in answer.progress)


def test_wait_leaves_who_does_not_leave_with_what_it_needs_and_an_open_door(serving: Host) -> None:
    daemon = serving.running("1")
    answer = by_consent(serving, "wait")
    assert stays(serving, answer)
    assert (daemon.terminated, serving.signals) == ([], [])
    assert serving.door_is_open("1")
    assert f"waited {TIMEOUT_S} s" in str(answer.error)
    assert [one["pid"] for one in answer.pending[0]["clients"]] == [4242]
    assert "drain" not in kinds(answer), "a wait for nothing is no change"


def test_terminate_has_the_daemon_end_who_is_left(serving: Host) -> None:
    daemon = serving.running("1")
    answer = by_consent(serving, "terminate")
    assert not stays(serving, answer)
    assert daemon.terminated == [4242]
    assert left(serving) == []
    assert any("ended by the daemon" in line for line in answer.progress)


def test_one_that_cannot_be_ended_keeps_its_instance(serving: Host) -> None:
    serving.running("1").answer_to_terminate = "1"
    answer = by_consent(serving, "terminate")
    assert stays(serving, answer)
    assert "they could not be ended" in str(answer.error)
    assert serving.door_is_open("1")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("how", ["stopped", "held", "no socket", "damaged file", "no file"])
def test_who_cannot_be_counted_is_ended_under_no_policy(serving: Host, policy: str, how: str) -> None:
    daemon = serving.running("1")
    if how == "stopped":
        serving.processes[daemon.pid].state = "T"
    elif how == "held":
        daemon.not_served = True
    elif how == "no socket":
        daemon.unreachable = True
    else:
        conf = serving.places.conf("1")
        conf.write_text(f"{FINGERPRINT}\nhalf a fi")
        if how == "no file":
            conf.unlink()
            wants = serving.places.units / "multi-user.target.wants"
            wants.mkdir()
            (wants / "mps-control@1.service").symlink_to("../mps-control@.service")
    answer = by_consent(serving, policy)
    assert answer.error is not None
    assert "cannot be counted" in answer.error
    assert answer.pending[0]["clients"] == []
    assert not any(
        act in ("stop mps-control@1.service", "restart mps-control@1.service") for act in serving.systemd.acts
    )
    assert {4242, daemon.pid} <= set(serving.processes)
    assert serving.signals == []
    assert serving.places.program.exists()


@pytest.mark.parametrize("how", ["empty file", "zeros", "another first line", "no file, not started at boot"])
def test_what_runs_keeps_what_it_needs_though_its_file_is_not_ours_any_more(serving: Host, how: str) -> None:
    daemon, conf = serving.running("1"), serving.places.conf("1")
    served = serving.places.pipe("1")
    if how.startswith("no file"):
        serving.systemd.unit("mps-control@1.service").enabled = False
        conf.unlink()
    else:
        texts = {"empty file": "", "zeros": "\0" * 300, "another first line": "# by hand\n" + conf.read_text()}
        conf.write_text(texts[how])
    answer = by_consent(serving, "terminate")
    assert answer.error is not None
    assert not any(act.endswith("mps-control@1.service") for act in serving.systemd.acts if act.startswith("stop"))
    assert {4242, daemon.pid} <= set(serving.processes)
    assert (daemon.terminated, serving.signals) == ([], [])
    assert served.is_dir(), "a daemon whose directory is gone answers nobody and keeps its GPU"
    assert serving.places.program.exists()
    assert (serving.places.units / UNITS[0]).exists()
    assert not serving.places.conf("0").exists(), "the other instance goes"
    if not how.startswith("no file"):
        assert f"found mps-control@1.service running by files that are not ours ({conf})" in answer.error
    serving.end(4242)
    serving.stop("1")
    assert by_consent(serving, "refuse").error is None
    assert not serving.places.program.exists()
    assert not serving.places.runtime("1").exists()


@pytest.mark.parametrize("policy", ["wait", "terminate"])
def test_check_mode_shows_the_drain_and_changes_nothing(serving: Host, policy: str) -> None:
    before = serving.snapshot()
    answer = by_consent(serving, policy, check=True)
    assert serving.snapshot() == before
    assert (answer.error, answer.pending) == (None, [])
    (drain,) = (step for step in answer.steps if step["kind"] == "drain")
    assert (drain["instance"], drain["ends_clients"]) == ("1", policy == "terminate")
    assert [one["pid"] for one in drain["clients"]] == [4242]
    assert kinds(answer).index("drain") < kinds(answer).index("stop-helpers")
    if policy == "terminate":
        assert answer.actions == by_consent(serving, policy).actions


def test_under_refuse_check_mode_says_what_would_stay(serving: Host) -> None:
    answer = by_consent(serving, "refuse", check=True)
    assert "drain" not in kinds(answer)
    assert "remove-program" not in kinds(answer)
    assert [one["instance"] for one in answer.pending] == ["1"]
    assert "mps_on_clients is refuse" in str(answer.error)


def test_the_request_to_remove_carries_the_policy(serving: Host) -> None:
    data = {"format": 2, "files": [], "remove": True, "on_clients": "terminate", "drain_timeout_s": TIMEOUT_S}
    answer = reconcile.reconcile(serving.world, Request.from_json(data), check=False)
    assert (answer.error, left(serving)) == (None, [])


# -- the verb


@pytest.mark.parametrize(("words", "code"), [([], 1), (["--on-clients", "terminate", "--drain-timeout", "5"], 0)])
def test_the_verb_takes_the_policy(mpsctl: Shell, serving: Host, words: list[str], code: int) -> None:
    assert mpsctl("remove", *words) == code
    assert ("were left as they are" in mpsctl.err) == bool(code)
    assert (left(serving) == []) == (code == 0)


@pytest.mark.parametrize("words", [["--on-clients", "kill"], ["--drain-timeout", "0"], ["--drain-timeout", "5m"]])
def test_a_bad_policy_is_refused_by_the_options_name(mpsctl: Shell, serving: Host, words: list[str]) -> None:
    before = left(serving)
    assert mpsctl("remove", *words) == 2
    assert f"found {words[0]} " in mpsctl.err
    assert left(serving) == before


def test_with_check_the_verb_says_would(mpsctl: Shell, installed: Host) -> None:
    assert mpsctl("remove", "--check") == 0
    assert all(line.startswith("would ") for line in mpsctl.out.splitlines())
    assert installed.places.program.exists()
