"""Who may enter what: by mode, owner and groups, for a user or for everybody."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import pytest

from mpsctl.checks import words
from mpsctl.model import mps_variables
from mpsctl.observe import process_facts, reachability
from mpsctl.observe.reachability import User

PUBLIC = Path("/run/nvidia-mps/0")
DEVICES = ["GPU-aaaa1111", "GPU-bbbb2222"]


@pytest.mark.parametrize(
    ("mode", "user", "enters"),
    [
        (0o755, User(None), True),
        (0o751, User(None), True),
        (0o750, User(None), False),
        (0o700, User(0), True),
        (0o700, User(31001), False),
        (0o710, User(31001, (31002,)), False),
        (0o001, User(31001), True),
    ],
)
def test_who_may_enter(root: Path, mode: int, user: User, enters: bool) -> None:
    closed = root / "a"
    (closed / "b").mkdir(parents=True)
    closed.chmod(mode)
    found = reachability.closed_directory(closed / "b", user, top=root)
    assert (found is None) == enters
    if found:
        assert (found.path, found.mode) == (closed, mode)
        told = words.obstacle(found)
        assert told.line.startswith(f"{closed}, on the way")
        assert f"mode {mode:04o}" in told.line
        assert told.remedy.startswith(f"`chmod o+x {closed}`")


@pytest.mark.parametrize(
    ("mode", "owner", "group", "enters"),
    [(0o700, True, False, True), (0o077, True, True, False), (0o070, False, True, True), (0o707, False, True, False)],
)
def test_the_owner_and_the_group_have_their_own_bits(
    root: Path, mode: int, owner: bool, group: bool, enters: bool
) -> None:
    class About:
        st_mode, st_uid, st_gid = 0o040000 | mode, 31001, 31002

    user = User(31001 if owner else 31009, (31002,) if group else ())
    assert user.may(About(), 1) == enters  # type: ignore[arg-type]


def test_the_first_closed_one_is_named_and_the_way_begins_where_it_is_told(root: Path) -> None:
    outer, inner = root / "outer", root / "outer/inner"
    inner.mkdir(parents=True)
    for directory in (outer, inner):
        directory.chmod(0o700)
    first = reachability.closed_directory(inner, User(None), top=root)
    last = reachability.closed_directory(inner, User(None), top=inner)
    assert first is not None
    assert last is not None
    assert (first.path, last.path) == (outer, inner)


def test_what_a_process_sees_lies_below_its_own_root(root: Path) -> None:
    (root / "run").mkdir()
    assert reachability.absent(Path("/run/x"), root)
    (root / "run/x").mkdir()
    assert not reachability.absent(Path("/run/x"), root)
    (root / "run").chmod(0o700)
    closed = reachability.closed_directory(Path("/run/x"), User(31001), root)
    assert closed is not None
    assert (closed.kind, closed.path) == (process_facts.DIRECTORY_CLOSED, Path("/run"))


@pytest.mark.parametrize(
    ("environment", "wrong"),
    [
        ({}, process_facts.UNSET),
        ({"CUDA_MPS_PIPE_DIRECTORY": ""}, process_facts.UNSET),
        ({"CUDA_MPS_PIPE_DIRECTORY": "/run/nvidia-mps/1"}, process_facts.OTHER_DIRECTORY),
        ({"CUDA_MPS_PIPE_DIRECTORY": "/run/nvidia-mps/0/"}, None),
        ({"CUDA_MPS_PIPE_DIRECTORY": str(PUBLIC), "CUDA_VISIBLE_DEVICES": "1"}, None),
        ({"CUDA_MPS_PIPE_DIRECTORY": str(PUBLIC), "CUDA_VISIBLE_DEVICES": "2"}, process_facts.NO_GPU_OF_IT),
        ({"CUDA_MPS_PIPE_DIRECTORY": str(PUBLIC), "CUDA_VISIBLE_DEVICES": ""}, process_facts.NO_GPU_OF_IT),
        ({"CUDA_MPS_PIPE_DIRECTORY": str(PUBLIC), "CUDA_VISIBLE_DEVICES": "GPU-bbbb"}, None),
        ({"CUDA_MPS_PIPE_DIRECTORY": str(PUBLIC), "CUDA_VISIBLE_DEVICES": "GPU-cccc"}, process_facts.NO_GPU_OF_IT),
    ],
)
def test_variables_that_lead_elsewhere(environment: dict[str, str], wrong: Optional[str]) -> None:
    found = reachability.wrong_variables(environment, PUBLIC, DEVICES)
    assert (found.kind if found else None) == wrong


@pytest.mark.parametrize("name", mps_variables.KNOWN)
def test_every_known_variable_is_one_and_its_misspelling_is_led_back_to_it(name: str) -> None:
    assert mps_variables.oddities({name: "1", "PATH": "'"}) == []
    (odd,) = mps_variables.oddities({name + "S": "1"})
    assert f"; {name} is the nearest" in str(odd)
    (odd,) = mps_variables.oddities({name: "''0=1G''"})
    assert "quotes inside the value" in str(odd)
