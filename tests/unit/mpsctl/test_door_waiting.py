"""Who may not come in yet waits in order, and is let in, refused, or gone. The door ends when told to, or idle."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

import pytest

import door_world
from door_world import CUDA, DESCRIPTOR, GREETING, LAST, Client, World, open_descriptors
from mpsctl.front_door.judge import LetIn, Refuse, Verdict, Visitor, Wait
from mpsctl.front_door.loop import serve
from mpsctl.model.places import Places
from mpsctl.store import admission


@pytest.fixture
def world(root: Path) -> Iterator[World]:
    yield from door_world.made(root)


def test_one_that_waits_is_let_in_when_the_judge_is_woken(world: World) -> None:
    client = world.visitor()
    world.rounds()
    assert (client.heard, client.ended, world.daemon.accepted) == ([GREETING], False, 0)
    world.judge.let_in()
    world.judge.wake()
    world.until(lambda: client.descriptors)


def test_the_judge_is_asked_again_every_50_ms_while_somebody_waits_and_only_then(world: World) -> None:
    client = world.visitor()
    world.rounds()
    assert world.judge.asked == [1]
    for _ in range(3):
        world.passes(0.05)
    assert world.judge.asked == [1] * 4
    assert world.door._wait_s() == pytest.approx(0.05)
    client.close()
    world.rounds()
    world.passes(0.05)
    assert world.judge.asked == [1] * 4
    assert world.door._wait_s() > 1


def test_those_who_wait_are_judged_in_the_order_in_which_they_came(world: World) -> None:
    for _ in range(4):
        world.visitor()
    world.judge.asked.clear()
    world.passes(0.05)
    assert world.judge.asked == [1, 2, 3, 4]


def test_who_comes_when_those_before_it_may_come_in_as_well_does_not_overtake_them(world: World) -> None:
    """The judge did not wake the door, and the next look is to come."""
    first = world.visitor()
    world.judge.let_in()
    second = world.greeted().introduce()
    world.until(lambda: first.descriptors)
    assert not second.descriptors
    first.say(LAST)
    world.until(lambda: second.descriptors)


def test_who_may_come_in_passes_those_who_may_not(world: World) -> None:
    """Whom it may overtake is the judge's to know."""

    def others_wait(visitor: Visitor) -> Verdict:
        return LetIn(world.daemon.served) if visitor.number == 2 else Wait("another_user")

    world.judge.verdict = others_wait
    first = world.visitor()
    second = world.greeted().introduce()
    world.until(lambda: second.descriptors)
    assert not first.descriptors


def test_another_user_comes_next_where_many_of_one_wait(world: World) -> None:
    """Each of them stops where it holds the daemon for a second."""
    many = [world.visitor() for _ in range(4)]
    other = world.visitor_process(uid=65534)
    world.judge.let_in()
    world.judge.wake()
    world.until(lambda: many[0].descriptors)
    world.passes(1)
    world.until(lambda: DESCRIPTOR.hex().encode() + b" 1" in other.printed)
    assert not many[1].descriptors
    other.go_on()
    world.until(lambda: many[1].descriptors)
    assert not many[2].descriptors


def test_who_was_judged_a_moment_too_early_is_not_overtaken(world: World) -> None:
    """The daemon's server turns out to be ready while the judge is asked about one after the other."""
    first, second, third = (world.visitor() for _ in range(3))
    asked = len(world.judge.asked)

    def ready_in_the_middle(visitor: Visitor) -> Verdict:
        return LetIn(world.daemon.served) if len(world.judge.asked) > asked + 2 else Wait("server_starting")

    world.judge.verdict = ready_in_the_middle
    world.judge.wake()
    world.until(lambda: first.descriptors)
    assert not second.descriptors
    assert not third.descriptors


def test_who_comes_while_one_is_passed_on_is_judged_after_it(world: World) -> None:
    world.judge.let_in()
    world.daemon.answers = False
    world.greeted().introduce()
    world.until(lambda: len(world.daemon.messages) == 2)
    world.greeted().introduce()
    world.rounds()
    assert world.judge.asked == [1]
    world.judge.verdict = lambda visitor: Refuse("no", "It may not come in.")
    world.passes(0.05)  # and however long that takes, it is told no
    assert world.told("refused", 2, "no")


def test_who_is_refused_is_greeted_and_closed(world: World) -> None:
    world.judge.verdict = lambda visitor: Refuse("no", "It may not come in.")
    client = world.greeted().introduce()
    world.until(lambda: client.ended)
    assert client.refused
    assert world.judge.told == [("refused", 1, "no")]
    world.passes(1)
    assert world.judge.asked == [1]


def test_who_waited_is_refused_when_the_judge_says_so(world: World) -> None:
    clients = [world.visitor() for _ in range(3)]
    world.judge.verdict = lambda visitor: Refuse("drained", "The instance is drained.")
    world.judge.wake()
    world.until(lambda: all(one.ended for one in clients))
    assert world.judge.told == [("refused", number, "drained") for number in (1, 2, 3)]


def test_nobody_waits_longer_than_the_bound(world: World) -> None:
    first = world.visitor()
    world.passes(30)
    second = world.visitor()
    world.passes(29.9)
    assert not first.ended
    world.passes(0.1)
    assert first.refused
    assert not second.ended
    assert world.judge.told == [("refused", 1, "waited")]


def test_a_bound_of_nothing_refuses_who_would_have_to_wait_and_lets_in_who_has_not(world: World) -> None:
    world.judge.wait = 0
    first = world.visitor()
    world.passes(0.05)
    assert first.refused
    world.judge.let_in()
    second = world.greeted().introduce()
    world.until(lambda: second.descriptors)


def test_one_that_closes_while_it_waits_gave_up(world: World) -> None:
    before = open_descriptors()
    world.visitor().close()
    world.until(lambda: world.judge.told)
    assert world.judge.told == [("gave_up", 1)]
    assert open_descriptors() == before


def test_one_that_is_killed_while_it_waits_gave_up(world: World) -> None:
    process = world.visitor_process(uid=65534)
    process.kill()
    world.until(lambda: world.told("gave_up", 1))
    world.judge.let_in()
    world.judge.wake()
    world.rounds()
    assert world.daemon.accepted == 0


@pytest.mark.parametrize("more", [CUDA, b"x" * 1000])
def test_one_that_says_more_while_it_waits_is_refused(world: World, more: bytes) -> None:
    client = world.visitor().say(more)
    world.until(lambda: client.ended)
    assert client.refused
    assert world.judge.told == [("refused", 1, "protocol")]


def test_one_that_says_more_while_the_daemon_is_asked_for_its_greeting_is_refused(world: World) -> None:
    world.judge.let_in()
    world.daemon.greets = False
    client = world.visitor()
    world.until(lambda: world.daemon.accepted)
    client.say(CUDA)
    world.until(lambda: client.ended)
    world.until(lambda: world.daemon.connection is None)
    assert world.judge.told == [("refused", 1, "protocol")]
    assert world.hold.holders == 0


def test_a_look_at_many_that_takes_long_leaves_time_for_others(world: World) -> None:
    def slowly(visitor: Visitor) -> Verdict:
        world.now_s += 0.1
        return Wait("the_test")

    clients = [world.visitor() for _ in range(3)]
    world.judge.verdict = slowly
    world.now_s += 0.05
    world.step()
    assert world.door._wait_s() == pytest.approx(4 * 0.3)
    assert not any(one.ended for one in clients)


# --- the end


def test_a_request_to_stop_ends_at_once_where_nobody_is_connected(world: World) -> None:
    world.stop.request(15)
    assert not world.door.step(1)


def test_a_request_to_stop_closes_who_is_greeted_and_leaves_the_listener(world: World) -> None:
    silent, waiting = world.greeted(), world.visitor()
    world.stop.request(15)
    world.until(lambda: silent.ended and waiting.ended and not world.runs)
    assert silent.refused
    assert waiting.refused
    assert world.judge.told == [("refused", 2, "stopping")]
    later = Client(world.path)  # it waits in the backlog for the next service
    later.step()
    assert (later.heard, later.ended) == ([], False)
    later.close()


def test_a_request_to_stop_lets_the_one_that_is_passed_on_through(world: World) -> None:
    world.judge.let_in()
    world.daemon.answers = False
    client = world.greeted().introduce()
    world.until(lambda: len(world.daemon.messages) == 2)
    behind = world.greeted().introduce()
    world.rounds()
    world.stop.request(15)
    world.rounds()
    assert world.runs
    assert behind.refused
    world.daemon.answers = True
    world.until(lambda: client.descriptors)
    assert world.runs
    client.say(LAST)
    world.until(lambda: not world.runs)
    world.rounds()
    assert world.told("passed", 1)
    assert len(world.daemon.connections[0]) == 3


def test_a_request_to_stop_refuses_one_that_cannot_be_passed_on_after_all(world: World) -> None:
    world.judge.let_in()
    world.daemon.greets = False
    client = world.greeted().introduce()
    world.until(lambda: world.daemon.accepted)
    world.stop.request(15)
    world.rounds()
    assert world.runs
    world.passes(world.bounds.daemon_greeting_s)
    assert client.refused
    assert world.judge.told[-1] == ("refused", 1, "stopping")
    assert not world.runs


def test_a_request_to_stop_waits_for_a_daemon_that_owes_an_answer(world: World) -> None:
    world.judge.let_in()
    world.daemon.answers = False
    world.greeted().introduce()
    world.until(lambda: len(world.daemon.messages) == 2)
    world.passes(world.bounds.answer_s)
    world.stop.request(15)
    world.rounds()
    assert world.runs
    world.passes(world.bounds.kept_open_s)
    assert not world.runs


def test_another_program_takes_over_at_the_first_moment_without_a_connection(world: World) -> None:
    waiting = world.visitor()
    world.outdated = True
    world.rounds()
    assert world.runs, "nobody who waits is refused for it"
    world.judge.let_in()
    world.passes(0.05)
    world.until(lambda: waiting.descriptors)
    waiting.close()
    world.until(lambda: not world.runs)
    later = Client(world.path)  # it waits in the backlog for the next service
    later.step()
    assert (later.heard, later.ended) == ([], False)
    later.close()


def test_who_came_at_that_moment_is_served_first(world: World) -> None:
    late = world.client()
    world.outdated = True
    world.until(lambda: late.heard == [GREETING])
    assert world.runs


def test_it_ends_when_nobody_was_connected_for_a_minute(world: World) -> None:
    world.passes(59)
    client = world.greeted()
    world.passes(5)
    assert world.runs
    client.close()
    world.rounds()
    world.passes(59)
    assert world.runs
    world.passes(1)
    assert not world.runs


def test_it_does_not_end_while_somebody_waits(world: World) -> None:
    world.judge.wait = 1000
    world.visitor()
    world.passes(500)
    assert world.runs


def test_it_looks_at_the_backlog_once_more_before_it_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.door._poller, "round", lambda wait_s: None)  # it came just after that
    client = world.client()
    world.now_s += 60
    assert world.door.step()
    client.step()
    assert client.heard == [GREETING]


def test_the_assembled_door_serves_until_it_is_stopped(root: Path, world: World) -> None:
    """With its own clock, and the admission of an instance. The other sides go on within the door's own loop."""
    places = Places(root / "places")
    world.judge.let_in()
    world.door.close()
    client = world.client().introduce()
    steps: list[str] = []

    def woken() -> None:  # the judge's descriptor stays readable
        world.daemon.step()
        client.step()
        if client.descriptors and not steps:
            steps.append("handed over")
            client.say(LAST)
        if client.ended and len(steps) == 1:
            steps.append("ended")
            world.stop.request(15)

    world.judge.woken = woken  # type: ignore[method-assign]
    world.judge.wake()
    serve(places, "0", world.listener, world.judge, world.stop)
    assert steps == ["handed over", "ended"]
    assert client.heard == [GREETING, DESCRIPTOR]
    assert world.judge.told == [("passed", 1)]
    admission.write(places, "0", admission.Admission(admission.CLOSED))  # nobody holds it any more
