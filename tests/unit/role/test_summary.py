"""What a run did, in words: one line for hosts that are alike, whatever became of the others."""

from __future__ import annotations

from typing import Any, Optional

import pytest

from mps_role import alike, hosts, summary
from mpsctl.converge import statement
from mpsctl.converge.statement import Statement

GPUS = [f"gpu-{number:02}" for number in range(1, 41)]


def limit(*instances: str, before: Optional[str] = "4G", after: Optional[str] = "6G") -> list[Statement]:
    changed = [
        Statement(statement.SETTING, name, name="device_memory_limit", before=before, after=after) for name in instances
    ]
    return [*changed, *(Statement(statement.RELOADED, name) for name in instances)]


def mode(
    gpu: int, before: str = "default", after: str = "exclusive_process", instance: Optional[str] = None
) -> Statement:
    return Statement(statement.COMPUTE_MODE, instance, gpu, before=before, after=after)


def done(*statements: Statement) -> str:
    return "; ".join(one.done for one in summary.phrases([one.as_json() for one in statements]))


def would(*statements: Statement) -> str:
    return "; ".join(one.would for one in summary.phrases([one.as_json() for one in statements]))


# -- the words


@pytest.mark.parametrize("what", statement.WHATS)
def test_there_are_words_for_every_statement_alone(what: str) -> None:
    one = Statement(what, "0", 0, "something", "a", "b", 1)
    assert done(one)
    assert would(one)
    assert done(one) != would(one)


@pytest.mark.parametrize("what", statement.WHATS)
def test_there_are_words_for_what_belongs_to_no_instance(what: str) -> None:
    if what not in (statement.SETTING, statement.COMPUTE_MODE):
        assert done(Statement(what, name="something")) or what in OF_INSTANCES


OF_INSTANCES = {
    *(statement.INSTANCE_WRITTEN, statement.RELOADED, statement.DOOR_OPENED, statement.DOOR_REMOVED),
}


def test_limits_that_a_reload_brings_about_are_live() -> None:
    assert done(*limit("0", "1")) == "limit 4G to 6G live on 0 and 1"
    assert would(*limit("0", "1")) == "change limit 4G to 6G live on 0 and 1"
    assert done(*limit("0")[:1], Statement(statement.RESTARTED, "0")) == "limit 4G to 6G on 0; instance 0 restarted"
    both = [*limit("0", before=None), *limit("1", after=None)]
    assert done(*both) == "limit none to 6G live on 0; limit 4G to none live on 1"


def test_a_restart_and_a_mode_are_said() -> None:
    found = [*limit("0", "1"), Statement(statement.RESTARTED, "2"), mode(0), Statement(statement.DOOR_OPENED, "2")]
    assert done(*found) == (
        "limit 4G to 6G live on 0 and 1; instance 2 restarted; compute mode default to exclusive_process on GPU 0;"
        " front door of 2 started"
    )


def test_of_a_mode_the_gpu_is_said_and_not_the_setting_too() -> None:
    setting = Statement(statement.SETTING, "0", name="compute_mode", before="exclusive_process", after="default")
    assert done(setting, mode(3, "exclusive_process", "default", "0"), Statement(statement.RELOADED, "0")) == (
        "compute mode exclusive_process to default on GPU 3"
    )
    assert done(setting) == "compute mode exclusive_process to default on 0", "where the GPU is in it already"


def test_a_reload_alone_is_said() -> None:
    assert done(Statement(statement.RELOADED, "0")) == "instance 0 reloaded, its limits in force again"


def test_numbers_of_seconds_have_their_unit() -> None:
    assert done(Statement(statement.SETTING, "0", name="stop_timeout_s", before="20", after="30")) == (
        "stop timeout 20 s to 30 s on 0"
    )


def test_drains_say_how_many_clients_there_were() -> None:
    assert done(Statement(statement.DRAINED, "0", count=3)) == "instance 0 drained of 3 clients"
    assert done(Statement(statement.DRAINED, "0", count=1), Statement(statement.DRAINED, "1", count=0)) == (
        "instance 0 drained of 1 client; instance 1 drained"
    )
    assert would(Statement(statement.DRAINED)) == "drain all instances"


# -- hosts


@pytest.mark.parametrize(
    ("names", "written"),
    [
        (GPUS, "gpu-01 … gpu-40 (40 hosts)"),
        (GPUS[:1], "gpu-01"),
        (GPUS[:2], "gpu-01, gpu-02 (2 hosts)"),
        ([*GPUS[:6], *GPUS[7:]], "gpu-01 … gpu-06, gpu-08 … gpu-40 (39 hosts)"),
        (GPUS[::2], f"{', '.join(GPUS[:24:2])} and 8 more (20 hosts)"),
    ],
)
def test_a_row_of_hosts_holds_nobody_else(names: list[str], written: str) -> None:
    assert hosts.span(reversed(names), GPUS) == written


def test_numbers_in_names_count() -> None:
    assert hosts.span(["g10", "g9", "g8"], ["g1", "g8", "g9", "g10"]) == "g8 … g10 (3 hosts)"


@pytest.mark.parametrize(
    ("names", "written"),
    [(["0"], "0"), (["0", "1"], "0 and 1"), (["0", "1", "3"], "0, 1 and 3"), (list("01234567"), "0 to 7")],
)
def test_instances_are_listed(names: list[str], written: str) -> None:
    assert hosts.listed(names) == written


# -- a run


def ran(part: str, *statements: Statement, check: bool = False) -> dict[str, Any]:
    return {summary.KEY: summary.told(part, check, [one.as_json() for one in statements])}


def test_like_hosts_are_one_line_and_every_host_is_in_one() -> None:
    run = summary.Summary()
    for name in GPUS[:38]:
        run.take(name, ran(summary.LOOK, *limit("0")))
        run.take(name, ran(summary.CHANGE, *limit("0")))
    run.take(GPUS[38], ran(summary.LOOK))
    run.fail(GPUS[39], {"msg": "gpu-40: mps_x: found 1", "refused": "mps_x: found 1"})
    assert run.lines([GPUS[39]]) == [
        "gpu-01 … gpu-38 (38 hosts): limit 4G to 6G live on 0",
        "nothing to do: gpu-39",
        "refused: gpu-40: mps_x: found 1",
    ]


def test_in_check_mode_it_would_be_done() -> None:
    run = summary.Summary()
    for name in GPUS:
        run.take(name, ran(summary.LOOK, *limit("0", "1"), check=True))
    assert run.lines([]) == ["gpu-01 … gpu-40 (40 hosts): would change limit 4G to 6G live on 0 and 1"]
    run.all_or_nothing = True
    run.fail("gpu-41", {"refused": "mps_x: no"})
    assert run.lines(["gpu-41"])[0].startswith("nothing would be changed, as mps_all_or_nothing is set")


def test_who_was_not_begun_is_said() -> None:
    run = summary.Summary()
    for name in GPUS:
        run.take(name, ran(summary.LOOK, *limit("0")))
    run.take("gpu-01", ran(summary.CHANGE, *limit("0")))
    run.fail("gpu-02", {"msg": "the daemon shows 4G", **ran(summary.CHANGE)})
    assert run.lines(["gpu-02"]) == [
        "gpu-01: limit 4G to 6G live on 0",
        "not begun and untouched: gpu-03 … gpu-40 (38 hosts)",
        "failed: gpu-02: the daemon shows 4G",
    ]


def test_what_was_done_before_a_failure_is_said_as_well() -> None:
    run = summary.Summary()
    run.fail("a", {"msg": "no room", **ran(summary.CHANGE, *limit("0"))})
    assert run.lines(["a"]) == ["a: limit 4G to 6G live on 0", "failed: a: no room"]


def test_a_failure_that_was_mended_in_the_play_is_none() -> None:
    run = summary.Summary()
    run.take("a", ran(summary.LOOK))
    run.fail("a", {"msg": "for a while"})
    assert run.lines([]) == ["nothing to do: a"]


def test_bad_variables_are_said_of_those_that_have_them() -> None:
    run = summary.Summary()
    run.fail("a", {"msg": "x", "refusals": {"b": ["mps_x: found 1"], "c": ["mps_x: found 1"]}}, ours=True)
    assert run.lines(["a"]) == ["refused: b, c (2 hosts): mps_x: found 1"]


def test_hosts_that_cannot_be_reached_are_told_apart() -> None:
    run = summary.Summary()
    run.take("a", ran(summary.LOOK))
    run.fail("b", {"msg": "no route"}, unreachable=True)
    assert run.lines(["b"]) == ["nothing to do: a", "unreachable: b: no route"]


def test_hosts_that_all_give_no_answer_are_one_line() -> None:
    run = summary.Summary()
    for name in GPUS:
        run.fail(name, {"msg": "found no python3"}, ours=True)
    assert run.lines(GPUS) == ["failed: gpu-01 … gpu-40 (40 hosts): found no python3"]


def test_a_run_of_something_else_is_not_summed_up() -> None:
    run = summary.Summary()
    run.take("a", {"changed": True})
    run.fail("b", {"msg": "of another role"})
    assert run.lines(["b"]) == []


def test_foreign_texts_stay_on_their_line() -> None:
    run = summary.Summary()
    run.take("a", ran(summary.LOOK))
    run.fail("b", {"msg": "one\n two\x1b[2J" + "x" * 5000})
    (_, line) = run.lines(["b"])
    assert line.startswith("failed: b: one; two\\x1b[2Jx")
    assert len(line) < 700


# -- diffs


def test_like_diffs_are_one_and_uuids_do_not_count() -> None:
    found = alike.Diffs()
    for number, name in enumerate(GPUS):
        uuid = f"GPU-{number:08x}-0000-0000-0000-000000000000"
        found.add(name, ["--- conf\n", f"--- unit {uuid}\n", f"--- {number}\n" if number < 2 else ""])
    assert found.blocks(GPUS) == [
        ("gpu-01 … gpu-40 (40 hosts)", "--- conf\n--- unit GPU-…\n"),
        ("gpu-01", "--- 0\n"),
        ("gpu-02", "--- 1\n"),
    ]


def test_the_diff_of_one_host_is_as_it_is() -> None:
    text = "GPU-00000000-0000-0000-0000-000000000000\n"
    found = alike.Diffs()
    found.add("a", [text])
    assert found.blocks(["a"]) == [("a", text)]
