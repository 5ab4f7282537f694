"""Who waits before the front door and who was refused there: found by check, status, clients and doctor alike."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Iterator, Optional

import pytest

from consulting import ask, find, names
from door import Door
from fakes import Host
from judging import SERVER, UNIT, connect, cuda, judge, only
from mpsctl.adapters import procfs
from mpsctl.causes import refusals
from mpsctl.causes.catalogue import CAUSES
from mpsctl.checks import became_client, waits
from mpsctl.front_door import words
from mpsctl.front_door.environments import Environments
from mpsctl.front_door.greeting import UNDERSTOOD
from mpsctl.front_door.judge import LetIn, Visitor
from mpsctl.model.finding import OK, UNKNOWN, WARNING
from mpsctl.model.names import door_service
from mpsctl.model.shares import Room
from mpsctl.observe.client_watch import Watch
from mpsctl.observe.door_facts import ANOTHER_USER, PENDING
from mpsctl.observe.facts import InstanceFacts
from mpsctl.observe.host import look
from mpsctl.store import admission, configuration, front_door_notes
from mpsctl.store.front_door_notes import Notes, Waits
from shell import Shell

BOB, API = 2000, "/system.slice/api.service"
SETTINGS = {
    "DeviceMemoryLimit": "4G",
    "ActiveThreadPercentage": 50,
    "ClientPriority": 1,
    "ComputeMode": "exclusive_process",
}


class AtLive(Door):
    """The judge of the front door of a host's instance 0 that runs already."""

    def __init__(self, host: Host) -> None:
        self.host, self.directory, self.daemon = host, host.own(), host.running()
        self.says, self.heard, self.faults = UNDERSTOOD, [], []
        self._number, self._started = 0, []
        self._connection = socket.socket(socket.AF_UNIX)
        host.systemd.unit(door_service("0")).active_state = "active"
        self.log = self._listen()
        self.begin()

    def comes(self, uid: int = 0, unit: Optional[str] = "api.service", **environment: str) -> Visitor:
        pid = self.host.process("python3", "python3 serve.py", environment, uid)
        self.host.processes[pid].unit, self.host.processes[pid].group = unit, API
        return self.visitor(uid, pid=pid)

    def waits(self, visitor: Visitor, within_s: float = 8) -> str:
        """It goes on to wait, and the notes say so."""
        word = self.word(visitor, within_s)
        assert {one.pid for one in self.notes.waiting} >= {visitor.pid}
        return word

    def refuses(self, visitor: Visitor) -> None:
        """As the loop does what the judge says, and journald what it is sent."""
        verdict = self.settled(visitor)
        assert not isinstance(verdict, LetIn)
        self.judge.refused(visitor, getattr(verdict, "reason", "waited"), getattr(verdict, "text", "it waited 60 s"), 0)
        self.host.systemd.entries += [
            {**entry, "_SYSTEMD_UNIT": "mps-front-door@0.service"} for entry in self.entries()
        ]


@pytest.fixture
def at(live: Host, shown_processes: Host) -> Iterator[AtLive]:
    made = AtLive(live)
    yield made
    made.close()


def held(host: Host, **values: object) -> None:
    """Another desired state, by a reload."""
    host.desired("0", **{**SETTINGS, **values})
    assert host.systemd.act("reload", [UNIT]) is None


def one(host: Host) -> InstanceFacts:
    return look(host.world).instances["0"]


def note(host: Host, *waiting: Waits) -> None:
    """As the door's process notes it that runs."""
    host.systemd.unit(door_service("0")).active_state = "active"
    front_door_notes.write(host.places, "0", Notes(waiting))


# -- the words


def test_everything_that_a_visitor_waits_for_or_is_refused_for_is_known() -> None:
    said = {value for name, value in vars(words).items() if name.isupper() and isinstance(value, str)}
    said -= {front_door_notes.LET_IN, front_door_notes.REFUSED, front_door_notes.GAVE_UP}
    assert said == {*words.WAITS, *words.REFUSALS}, "each is counted from 0 on"
    assert said == {*waits.WAITS, *refusals.CAUSES} - {PENDING}
    assert {wait.cause for wait in waits.WAITS.values()} | set(refusals.CAUSES.values()) <= set(CAUSES)
    assert (ANOTHER_USER, waits.NO_PLACE) == (words.ANOTHER_USER, words.NO_PLACE)


@pytest.mark.parametrize("why", [*sorted({*waits.WAITS} - {PENDING}), "a-word-of-a-later-release"])
def test_whoever_waits_longer_than_a_moment_is_found_for_whatever_reason(live: Host, why: str, mpsctl: Shell) -> None:
    live.clock.pass_by(100)
    pid = cuda(live, {})
    live.processes[pid].unit = "batch.service"
    live.clock.pass_by(50)
    wait = waits.WAITS.get(why)
    moment_s = wait.moment_s if wait else 3
    note(live, Waits(pid, 1000, live.clock.now_s - moment_s + 1, why))
    found = judge(live).check("0", "waiting-clients")
    assert (found.level, found.facts) == (OK, {})
    assert f"pid {pid} of user 1000" in found.found
    note(live, Waits(pid, 1000, live.clock.now_s - moment_s - 1, why))
    found = only(live, "waiting-clients", WARNING)
    for part in (f"pid {pid} of user 1000", "batch.service", f"{moment_s + 1:.0f} s"):
        assert part in found.found
    assert "INSTANCE" not in found.remedy
    assert "UNIT" not in found.remedy
    assert found.facts["pids"] == [pid]
    assert found.reasons[0].cause in CAUSES
    mpsctl("status")
    assert f"waiting: {found.found}" in mpsctl.out
    mpsctl("clients")
    assert f"0: waiting: {found.found}" in mpsctl.out


def test_a_process_that_waits_with_several_connections_is_one_and_waits_since_the_first(live: Host) -> None:
    pid = cuda(live, {})
    live.clock.pass_by(60)
    note(live, *(Waits(pid, 1000, live.clock.now_s - ago_s, "no-place", "clients") for ago_s in (5, 50, 20)))
    (found,) = one(live).waiting
    assert (found.pid, found.waited_s) == (pid, 50)


def test_what_a_killed_door_noted_of_a_process_that_ended_says_nothing_of_a_later_one(live: Host) -> None:
    live.clock.pass_by(60)
    pid = cuda(live, {})
    note(live, Waits(pid, 1000, live.clock.now_s - 10, "no-place", "clients"))
    assert one(live).waiting == []


@pytest.mark.parametrize("state", ["inactive", "failed", "activating", "deactivating"])
def test_nobody_waits_for_a_door_whose_process_was_killed(live: Host, state: str) -> None:
    """It could not take back what it had noted; the connections of those who waited closed with it."""
    held(live, OverExpected="wait", ExpectedClients=1)
    pid = cuda(live, {})
    live.clock.pass_by(60)
    note(live, Waits(pid, 1000, live.clock.now_s - 10, "no-place", "clients"))
    assert [each.pid for each in one(live).waiting] == [pid]
    live.systemd.unit(door_service("0")).active_state = state
    found = one(live)
    assert found.waiting == []
    assert found.room is not None
    assert [place.waiting for place in found.room.places] == [0]


def test_of_a_daemon_that_is_down_it_is_told_who_waits(live: Host) -> None:
    live.running().servers.clear()
    live.kill(SERVER)
    pid = cuda(live, {})
    live.clock.pass_by(60)
    live.stop()
    assert judge(live).check("0", "waiting-clients").level == UNKNOWN
    note(live, Waits(pid, 1000, live.clock.now_s - 40, "daemon-down"))
    found = judge(live).check("0", "waiting-clients")
    assert (found.level, found.reasons[0].cause) == (WARNING, "waiting-for-daemon")


def test_whom_the_door_holds_is_certain_though_others_could_have_written_the_log(live: Host) -> None:
    live.open_logs.add(live.running().pid)
    pid, forged = cuda(live, {}), cuda(live, {})
    line = f"NEW CLIENT {forged} from user 1000: Server is not ready, push client to pending list"
    live.running().write("Control", live.running().pid, line)
    live.clock.pass_by(60)
    note(live, Waits(pid, 1000, live.clock.now_s - 10, "another-user"))
    found = judge(live).check("0", "waiting-clients")
    assert (found.level, found.facts) == (WARNING, {"pids": [pid]})


# -- a real judge


def test_a_waiting_second_user(at: AtLive, mpsctl: Shell) -> None:
    late = at.comes(BOB)
    assert at.waits(late) == "another-user"
    found = only(at.host, "waiting-clients", WARNING)
    assert f"pid {late.pid} of user {BOB}, api.service" in found.found
    assert "behind user 0" in found.found
    diagnosis = find(at.host, "waiting-behind-another-user")
    assert (diagnosis.certainty, diagnosis.instances) == ("certain", ("0",))
    assert find(at.host, "waiting-behind-another-user", pids=[late.pid]).certainty == "certain"
    assert names(at.host, errors=["805"])[0] == "waiting-behind-another-user"
    for verb in ("status", "clients"):
        about = mpsctl.json(verb)["instances"]["0"]
        (said,) = about["facts"]["waiting"] if verb == "status" else about["waiting"]
        assert (said["pid"], said["uid"], said["why"], said["behind"]) == (late.pid, BOB, "another-user", [0])
        assert said["waited_s"] > 5


def test_who_waits_behind_one_that_came_before(at: AtLive) -> None:
    """The server is his own user's, and another's client waits already."""
    first = at.comes(BOB)
    at.waits(first, within_s=1)
    second = at.comes(0)
    assert at.waits(second) == "another-user"
    behind = {each.pid: each.behind for each in one(at.host).waiting}
    assert behind == {first.pid: (0,), second.pid: (BOB,)}


@pytest.mark.parametrize(
    ("values", "place", "says"),
    [
        ({"ExpectedClients": 1}, "clients", "1 of 1 clients"),
        ({"ExpectedClients": 4, "Shares": "unit:api.service=1"}, "unit:api.service", "share unit:api.service 1 of 1"),
        ({"Shares": "each-unit=1"}, "unit:api.service", "share unit:api.service 1 of 1"),
        ({"Shares": "user:root=1"}, "user:0", "share user:0 1 of 1"),
    ],
)
def test_a_client_that_finds_no_place(
    at: AtLive, values: dict[str, object], place: str, says: str, mpsctl: Shell
) -> None:
    at.end()
    (client,) = at.daemon.servers[SERVER].clients
    at.host.processes[client].group, at.host.processes[client].uid = API, 0
    held(at.host, OverExpected="wait", **values)
    at.begin()
    late = at.comes()
    assert at.waits(late) == "no-place"
    found = only(at.host, "waiting-clients", WARNING)
    assert f"for a place ({says}), " in found.found
    assert find(at.host, "no-place").certainty == "certain"
    assert names(at.host, errors=["805"])[0] == "no-place"
    (said,) = [
        each for each in mpsctl.json("status")["instances"]["0"]["facts"]["room"]["places"] if each["name"] == place
    ]
    assert said == {"name": place, "most": 1, "pids": [client], "waiting": 1, "has": 1}
    for verb in ("status", "clients"):
        mpsctl(verb)
        assert f"{says}, the next one waits, 1 waits" in mpsctl.out


def test_who_was_refused_for_want_of_a_place_is_explained_by_the_doors_own_word(at: AtLive) -> None:
    at.end()
    held(at.host, OverExpected="refuse", ExpectedClients=1)
    at.begin()
    late = at.comes()
    assert "no-place" not in names(at.host, errors=["805"])
    at.refuses(late)
    assert names(at.host) == [], "to be full is no fault"
    found = find(at.host, "no-place", errors=["805"])
    assert f"pid {late.pid} (user 0, api.service) was refused" in found.evidence[0]
    assert find(at.host, "no-place", pids=[late.pid]).certainty == "certain"
    other = at.comes()
    assert "no-place" not in names(at.host, pids=[other.pid])


def test_who_would_shake_off_his_limit_is_explained_as_well(at: AtLive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Environments, "of", lambda self, visitor: procfs.environment(visitor.pid))
    at.end()
    held(at.host, LimitBypass="refuse")
    at.begin()
    at.refuses(at.comes(CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="1G"))
    assert find(at.host, "limit-bypassed", errors=["805"]).certainty == "likely"


def test_who_waited_in_vain_is_explained_by_what_he_waited_for(at: AtLive) -> None:
    late = at.comes(BOB)
    at.waits(late)
    at.refuses(late)
    assert one(at.host).waiting == []
    assert find(at.host, "waiting-behind-another-user", errors=["805"]).certainty == "likely"


def test_a_forged_entry_of_the_journal_explains_nothing(at: AtLive) -> None:
    at.end()
    held(at.host, OverExpected="refuse", ExpectedClients=1)
    at.begin()
    at.refuses(at.comes())
    at.host.systemd.entries = [{**entry, "_SYSTEMD_UNIT": "user@1000.service"} for entry in at.host.systemd.entries]
    assert "no-place" not in names(at.host, errors=["805"])


@pytest.mark.parametrize("reason", ["over-expected", "limit-bypass", "not-in-group", "masked", "server-ended"])
def test_every_word_of_a_refusal_leads_to_its_cause(at: AtLive, reason: str) -> None:
    pid = cuda(at.host, {"CUDA_MPS_PIPE_DIRECTORY": str(at.host.pipe_root / "0")})
    at.host.systemd.entries.append(
        {
            "_SYSTEMD_UNIT": "mps-front-door@0.service",
            "MPS_INSTANCE": "0",
            "MPS_EVENT": "refused",
            "MPS_CLIENT_PID": str(pid),
            "MPS_REASON": reason,
            "MESSAGE": f"0: pid {pid} was refused",
        }
    )
    for question in ({"errors": ["805"]}, {"pids": [pid]}):
        assert refusals.CAUSES[reason] in [each.name for each in ask(at.host, **question).diagnoses]


def watch(at: AtLive, visitor: Visitor) -> Watch:
    """As `mpsctl run` watches what it started."""
    made = Watch(at.host.world, configuration.load(at.host.world, "0"), one(at.host).devices, visitor.pid)
    made.pids.add(visitor.pid)
    made.opened_cuda.add(visitor.pid)
    return made


def test_run_says_for_what_its_command_waits(at: AtLive) -> None:
    late = at.comes(BOB)
    watched = watch(at, late)
    at.waits(late)
    assert f"pid {late.pid} waits behind another user's clients" in became_client.why_not(watched)
    at.judge.gave_up(late, 8)
    assert at.notes.waiting == ()
    assert "and was not seen to come in" in became_client.why_not(watched)
    at.refuses(late)
    assert "the front door refused it (CUDA error 805)" in became_client.why_not(watched)
    assert f"pid {late.pid} (user {BOB}, api.service) was refused" in became_client.why_not(watched)


def test_run_says_why_the_door_refused_its_command_and_no_other(at: AtLive) -> None:
    at.end()
    held(at.host, OverExpected="refuse", ExpectedClients=1)
    at.begin()
    ours, other = at.comes(), at.comes()
    watched = watch(at, ours)
    at.refuses(other)
    assert "refused it" not in became_client.why_not(watched)
    at.refuses(ours)
    assert "the instance takes 1 client at once" in became_client.why_not(watched)


# -- what the door was told


@pytest.mark.parametrize(
    ("told", "field", "level"),
    [
        ({"wait_s": 5}, "wait_s", WARNING),
        ({"gid": 4242}, "gid", "critical"),
        ({"multi_user": True}, "multi_user", "critical"),
        ({"room": Room(3)}, "room", "critical"),
        ({"judged_devices": ("GPU-1",)}, "judged_devices", "critical"),
    ],
)
def test_a_door_that_was_told_something_else_than_is_desired(
    live: Host, told: dict[str, object], field: str, level: str
) -> None:
    before = admission.read(live.places, "0")
    assert before is not None
    admission.write(live.places, "0", replace(before, **told))  # type: ignore[arg-type]
    found = only(live, "front-door", level)
    assert (list(found.facts), found.mends) == ([field], "reload")
    assert live.systemd.act("reload", [UNIT]) is None
    assert judge(live).check("0", "front-door").level == OK
    assert admission.read(live.places, "0") == before


@pytest.mark.parametrize(
    "values",
    [
        {"ExpectedClients": 4, "OverExpected": "wait", "Shares": "user:nobody=1 user:daemon=2 unit:a.service=1"},
        {"LimitBypass": "refuse"},
        {"ClientWaitSec": 5, "Group": "0"},
    ],
)
def test_what_a_reload_told_the_door_is_what_is_desired(live: Host, values: dict[str, object]) -> None:
    held(live, **values)
    assert judge(live).check("0", "front-door").level == OK


def test_the_door_is_told_what_the_daemon_does_while_another_mode_waits_for_a_restart(live: Host) -> None:
    live.desired("0", **SETTINGS, MultiUser="yes")
    live.systemd.act("reload", [UNIT])
    told = admission.read(live.places, "0")
    assert told is not None
    assert not told.multi_user, "the daemon that runs serves one user at a time"


@pytest.mark.parametrize("shares", ["user:no-such-user=1", "unit:a.service=1 user:nosuchuser=2"])
def test_a_share_of_a_user_whom_the_host_does_not_have(live: Host, shares: str) -> None:
    live.desired("0", **SETTINGS, OverExpected="wait", Shares=shares)
    found = judge(live).check("0", "configuration")
    assert found.level == "critical"
    assert "user" in found.found


# -- places


def test_more_clients_than_places_once_the_number_was_lowered(live: Host) -> None:
    more = [connect(live, live.running()) for _ in range(2)]
    held(live, OverExpected="wait", ExpectedClients=3)
    assert judge(live).check("0", "client-places").level == OK
    held(live, OverExpected="wait", ExpectedClients=2)
    found = only(live, "client-places", WARNING)
    assert "3 of 2 clients" in found.found
    assert set(found.facts["clients"]) > set(more)  # type: ignore[call-overload]
    assert "more-than-places" in names(live)


def test_a_daemon_that_tells_no_clients_has_no_number(live: Host, mpsctl: Shell) -> None:
    held(live, OverExpected="wait", ExpectedClients=2)
    live.running().not_served = True
    assert judge(live).check("0", "client-places").level == UNKNOWN
    mpsctl("status")
    assert "not told how many of 2 clients" in mpsctl.out
    (place,) = mpsctl.json("status")["instances"]["0"]["facts"]["room"]["places"]
    assert (place["has"], place["pids"]) == (None, None)
