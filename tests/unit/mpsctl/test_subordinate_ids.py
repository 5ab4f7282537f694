"""Whose a uid is that somebody was given beside his own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

import pytest

from mpsctl.adapters.subordinate_ids import SubordinateIds

TABLE = """\
alice:100000:65536
root:200000:65536
0:300000:65536
1001:400000:10
alice:500000:1

# nothing
bob:600000
bob:x:1
bob:700000:-5
"""


@pytest.mark.parametrize(
    ("uid", "owner"),
    [
        (0, None),
        (1000, None),
        (99_999, None),
        (100_000, "alice"),
        (165_535, "alice"),
        (165_536, None),
        (200_000, None),
        (300_000, None),
        (400_009, "1001"),
        (400_010, None),
        (500_000, "alice"),
        (600_000, None),
        (700_000, None),
    ],
)
def test_an_id_is_its_range_s_owner_s(root: Path, uid: int, owner: Optional[str]) -> None:
    (root / "subuid").write_text(TABLE)
    assert SubordinateIds(root / "subuid").owner(uid) == owner


def test_a_changed_file_is_read_anew(root: Path) -> None:
    path = root / "subuid"
    ids = SubordinateIds(path)
    assert ids.owner(5000) is None
    path.write_text("alice:5000:10\n")
    assert ids.owner(5000) == "alice"
    path.write_text("bobby:5000:10\n")
    os.utime(path, ns=(1, 1))
    assert ids.owner(5000) == "bobby"
    path.unlink()
    assert ids.owner(5000) is None


def test_what_is_no_file_says_nothing(root: Path) -> None:
    os.mkfifo(root / "subuid")
    assert SubordinateIds(root / "subuid").owner(5000) is None
