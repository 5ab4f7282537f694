"""A file system that takes no more: what is told names the file that a person knows, in the words of the program."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any, Callable

import pytest

from converging import Fleet, conf
from mpsctl.adapters import files
from mpsctl.converge import removal
from mpsctl.model.errors import NO_ROOM, NotReady, one_line


def failing(monkeypatch: pytest.MonkeyPatch, name: str, number: int, places: Callable[[Any], bool]) -> None:
    """A call of the system fails where its first argument says so, and names what the system would."""
    does = getattr(os, name)

    def fails(what: Any, *more: Any, **options: Any) -> Any:
        flags = next(iter(more), 0) if name == "open" else os.O_CREAT
        if (isinstance(flags, int) and not flags & os.O_CREAT) or not places(what):
            return does(what, *more, **options)
        named = (str(what),) if not isinstance(what, int) else ()
        raise OSError(number, os.strerror(number), *named)

    monkeypatch.setattr(os, name, fails)


@pytest.mark.parametrize("number", sorted(NO_ROOM))
@pytest.mark.parametrize("call", ["open", "fsync", "fchmod", "replace"])
def test_a_file_that_cannot_be_written_is_told_by_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    path = tmp_path / "0.conf"
    files.write(path, "old")
    with monkeypatch.context() as patch:
        failing(patch, call, number, lambda what: isinstance(what, int) or str(what).endswith(".new"))
        with pytest.raises(OSError, match=re.escape(os.strerror(number))) as raised:
            files.write(path, "new")
    assert one_line(raised.value) == f"{path} could not be written ({os.strerror(number)})"
    assert [one.name for one in tmp_path.iterdir()] == ["0.conf"]
    assert path.read_text() == "old"


@pytest.mark.parametrize("call", ["symlink", "replace"])
def test_a_link_that_cannot_be_made_is_told_by_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    link = tmp_path / "control"
    files.replace_symlink(link, "old")
    with monkeypatch.context() as patch:
        failing(patch, call, errno.EROFS, lambda _: True)
        with pytest.raises(OSError, match="Read-only") as raised:
            files.replace_symlink(link, "new")
    assert one_line(raised.value) == f"{link} could not be written (Read-only file system)"
    assert os.readlink(link) == "old"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/a"), "/a could not be written (No space left on device)"),
        (OSError(errno.ENOSPC, "No space left on device"), "a file could not be written (No space left on device)"),
        (OSError(errno.EIO, "Input/output error", "/a"), "/a: Input/output error"),
        (OSError("odd"), "odd"),
        (NotReady("no driver"), str(NotReady("no driver"))),
        (ValueError("odd"), "odd"),
    ],
)
def test_an_error_is_told_in_one_line(error: Exception, text: str) -> None:
    assert one_line(error) == text


@pytest.mark.parametrize("place", ["configuration", "units", "state"])
def test_a_run_over_a_read_only_place_says_which_file_and_no_text_of_pythons(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    places = fleet.host.places
    below = {"configuration": places.configuration, "units": places.units, "state": places.state}[place]
    with monkeypatch.context() as patch:
        for call in ("open", "mkdir"):
            failing(patch, call, errno.EROFS, lambda what: Path(os.fsdecode(what)).is_relative_to(below))
        answer = fleet.converge(_0=conf(fleet))
    assert str(answer.error).startswith(f"{below}"), answer.error
    assert str(answer.error).endswith("could not be written (Read-only file system)")
    assert "Errno" not in str(answer.error)
    assert ".new" not in str(answer.error)
    assert fleet.converge(_0=conf(fleet)).error is None


def test_a_removal_over_a_read_only_place_says_which_file(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.converge(_0=conf(fleet))
    unit = fleet.host.places.units
    with monkeypatch.context() as patch:
        failing(patch, "unlink", errno.EROFS, lambda what: Path(os.fsdecode(what)).parent == unit)
        answer = removal.remove(fleet.host.world, False)
    assert str(answer.error).startswith(f"{unit}/mps-")
    assert str(answer.error).endswith("could not be written (Read-only file system)")
    assert removal.remove(fleet.host.world, False).error is None


def test_a_full_place_of_the_lock_is_told_by_the_locks_name(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, "pwrite", errno.ENOSPC, lambda _: True)
    with pytest.raises(OSError, match="No space left") as raised:
        fleet.converge(_0=conf(fleet))
    assert one_line(raised.value) == f"{fleet.host.places.host_lock} could not be written (No space left on device)"
    assert not fleet.host.places.host_lock.exists()
    assert not fleet.unit.exists(), "nothing was changed"
