"""What Slurm says of a job, in both its forms, and what a user may write beside it."""

from __future__ import annotations

import random

import pytest

from mpsctl.model import slurm
from mpsctl.model.errors import BadValue, NotReady
from mpsctl.model.slurm import NothingGiven, Part, Said

NEW = (
    "JobId=100 JobName={name} UserId=alice(2001) JobState=RUNNING Reason=Prolog NodeList=n-01 JOB_GRES=shard:3  "
    " Nodes=n-01 CPU_IDs=0 Mem=0 GRES={gres} MinCPUsNode=1 Command=(null) Comment={comment} WorkDir=/tmp \n"
)
"""As 24.11.5 and 22.05.8 write it; they differ in ``GRES=``."""


def parts(
    gres: str, *gpus: int, name: str = "wrap", comment: str = "", node: str = "n-01", shards: int = 8
) -> list[Part]:
    found = slurm.said(NEW.format(gres=gres, name=name, comment=comment), node, gpus)
    return [slurm.part(found[number], shards) for number in gpus]


@pytest.mark.parametrize(
    ("gres", "gpus", "expected"),
    [
        ("shard:3(3/8,0/8,0/8,0/8)", (0,), [Part(3, 8)]),
        ("shard:3(0/8,0/8,3/8,0/8)", (2,), [Part(3, 8)]),
        ("shard:12(8/8,4/8,0/8,0/8)", (0, 1), [Part(8, 8), Part(4, 8)]),
        ("shard:h200:3(0/16,3/16)", (1,), [Part(3, 16)]),
        ("shard:3(IDX:0)", (0,), [Part(3, 8)]),
        ("shard:h200:6(IDX:1)", (1,), [Part(6, 8)]),
        ("gpu:2(IDX:2-3)", (2, 3), [Part(1, 1), Part(1, 1)]),
        ("gpu:h200:3(IDX:0,2-3)", (0, 2, 3), [Part(1, 1)] * 3),
        ("license:1,shard:1(1/8)", (0,), [Part(1, 8)]),
    ],
)
def test_both_forms(gres: str, gpus: tuple[int, ...], expected: list[Part]) -> None:
    assert parts(gres, *gpus) == expected


FORGED = (
    "Nodes=n-01 CPU_IDs=0 Mem=0 GRES=shard:8(8/8,8/8)",
    "Nodes=n-01 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0)",
    "Nodes=n-01 CPU_IDs=0 Mem=0 GRES=shard:8(IDX:0)",
    "x\nJobId=100 JobName=y   Nodes=n-01 CPU_IDs=0 Mem=0 GRES=shard:8(8/8)",
    "x Nodes=n-01 CPU_IDs=0 Mem=0 GRES=shard:7(7/7)\nJobId=999 ",
    "Nodes=Nodes=n-01 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0)",
    "Nodes=n-[01-02] CPU_IDs= Mem= GRES=shard:9(IDX:0),gpu:1(IDX:0)",
)


@pytest.mark.parametrize("gres", ["shard:3(3/8,0/8)", "shard:3(IDX:0)"])
@pytest.mark.parametrize("forged", FORGED)
@pytest.mark.parametrize("place", ["name", "comment"])
def test_no_name_and_no_comment_of_a_job_gives_it_more(gres: str, forged: str, place: str) -> None:
    (found,) = parts(gres, 0, **{place: forged})  # type: ignore[arg-type]
    assert (found.mine, found.every, found.disputed) == (3, 8, True)


@pytest.mark.parametrize("gres", ["shard:3(3/8,0/8)", "shard:3(IDX:0)"])
@pytest.mark.parametrize("forged", ["shard:1(1/999999)", "shard:1(1/8)"])
def test_who_writes_himself_less_has_one_client_and_drains_no_node(gres: str, forged: str) -> None:
    (found,) = parts(gres, 0, name=f"Nodes=n-01 CPU_IDs=0 Mem=0 GRES={forged}")
    assert found.clients(8) == 1


def test_what_is_said_twice_counts_as_the_least() -> None:
    assert slurm.part([Said(8, 8), Said(3, 8), Said(1, 1)], None) == Part(3, 8, disputed=True)
    assert slurm.part([Said(1, 1), Said(3, None)], 8) == Part(3, 8, disputed=True)
    assert slurm.part([Said(3, 8), Said(3, 8)], None) == Part(3, 8), "an array says the same of each of its jobs"
    for said in (Said(3, None), Said(9, 8)):
        with pytest.raises(NotReady):
            slurm.part([said], None)


def test_what_is_of_another_node_or_gpu_says_nothing() -> None:
    with pytest.raises(NotReady):
        parts("shard:3(3/8,0/8)", 0, node="n-02")
    with pytest.raises(NotReady):
        parts("shard:3(3/8,0/8)", 1)
    with pytest.raises(NothingGiven):
        parts("", 0)
    with pytest.raises(NothingGiven):
        parts("", 0, name=FORGED[0])
    with pytest.raises(NotReady):
        parts("shard:3(IDX:0,1)", 0)


def test_gres_mps_is_refused_and_a_name_that_says_so_is_not() -> None:
    with pytest.raises(BadValue):
        parts("mps:25(25/100,0/100)", 0)
    assert parts("shard:3(3/8)", 0, name="Nodes=n-01 CPU_IDs=0 Mem=0 GRES=mps:5(5/100)") == [Part(3, 8)]


@pytest.mark.parametrize(
    ("node", "nodes", "expected"),
    [
        ("n-01", "n-01", True),
        ("n-02", "n-[01-03,7]", True),
        ("n-7", "n-[01-03,7]", True),
        ("n-07", "n-[01-03,7]", False),
        ("n-2", "n-[01-03]", False),
        ("n-04", "n-[01-03]", False),
        ("r2n4", "r[1-2]n[1-4]", True),
        ("r3n4", "r[1-2]n[1-4]", False),
        ("b", "a,b,c[1-2]", True),
        ("c2", "a,b,c[1-2]", True),
        ("c", "a,b,c[1-2]", False),
        ("n10", "n[8-12]", True),
        ("n100", "n[1-10]0", True),
        ("n", "[", False),
        ("n1", "n[1-", False),
    ],
)
def test_nodes_in_slurms_short_form(node: str, nodes: str, expected: bool) -> None:
    assert slurm.is_among(node, nodes) is expected


@pytest.mark.parametrize(
    ("gres", "expected"),
    [
        ("gpu:4,shard:32", 8),
        ("gpu:h200:4(S:0-1),shard:h200:32(S:0-1)", 8),
        ("gpu:a:2,gpu:b:2,shard:a:16,shard:b:16", 8),
        ("gpu:4,shard:30", None),
        ("gpu:4", None),
        ("shard:8", None),
        ("(null)", None),
    ],
)
def test_shards_of_each_gpu_of_a_node(gres: str, expected: int) -> None:
    assert slurm.shards_of_gpu(f"NodeName=n Gres={gres} GresDrain=N/A GresUsed=gpu:1,shard:2") == expected


@pytest.mark.parametrize(("text", "expected"), [("", ()), ("0", (0,)), ("0,2-3", (0, 2, 3)), ("1,1", (1,))])
def test_numbers_of_gpus(text: str, expected: tuple[int, ...]) -> None:
    assert slurm.gpus(text) == expected


@pytest.mark.parametrize("text", ["x", "-1", "3-1", "0,", "0-99999", "GPU-1"])
def test_other_words_for_gpus_are_refused(text: str) -> None:
    with pytest.raises(BadValue):
        slurm.gpus(text)


def test_parts_of_one_gpu_never_come_to_more_than_its_clients() -> None:
    chance = random.Random(7)
    for _ in range(2000):
        every, most = chance.randint(1, 64), chance.randint(1, 64)
        left, given = every, 0
        while left:
            mine = chance.randint(1, left)
            left -= mine
            given += Part(mine, every).clients(most)
        assert given <= most
