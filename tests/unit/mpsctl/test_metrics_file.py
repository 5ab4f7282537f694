"""The file of metrics: it is whole, it goes when it is not wanted, and nobody leads root elsewhere."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fakes import Host
from judging import amiss, judge
from mpsctl.adapters import others_folder
from mpsctl.model.checked_values import check_metrics_directory
from mpsctl.model.errors import BadValue, NotAFile
from mpsctl.model.finding import WARNING
from mpsctl.store import metrics_file
from mpsctl.store.metrics_file import HEAD, NAME

FOLDER = Path("/var/lib/prometheus/node-exporter")


@pytest.fixture
def folder(host: Host) -> Path:
    made = host.places.root / FOLDER.relative_to("/")
    made.mkdir(parents=True)
    return made


def test_it_is_whole_and_everyones_to_read(host: Host, folder: Path) -> None:
    assert metrics_file.write(host.places, FOLDER, "mps_simulated 1\n") == ""
    made = folder / NAME
    assert made.read_text() == HEAD + "mps_simulated 1\n"
    assert made.stat().st_mode & 0o777 == 0o644
    assert os.listdir(folder) == [NAME]


def test_what_was_written_elsewhere_goes(host: Host, folder: Path) -> None:
    metrics_file.write(host.places, FOLDER, "")
    other = host.places.root / "srv/metrics"
    other.mkdir(parents=True)
    assert metrics_file.write(host.places, Path("/srv/metrics"), "") == ""
    assert (os.listdir(folder), os.listdir(other)) == ([], [NAME])
    metrics_file.take_away(host.places)
    assert os.listdir(other) == []
    assert metrics_file.read(host.places) is None


def test_a_file_of_that_name_that_is_not_ours_stays(host: Host, folder: Path) -> None:
    metrics_file.write(host.places, FOLDER, "")
    (folder / NAME).write_text("# somebody else's\n")
    metrics_file.take_away(host.places)
    assert (folder / NAME).read_text() == "# somebody else's\n"


def test_a_half_that_a_killed_look_left_goes_with_it(host: Host, folder: Path) -> None:
    metrics_file.write(host.places, FOLDER, "")
    (folder / f".{NAME}.77.new").write_text("half")
    metrics_file.take_away(host.places)
    assert os.listdir(folder) == []


def lead(folder: Path, how: str, elsewhere: Path) -> None:
    """What the owner of the folder above can put in its place."""
    elsewhere.mkdir()
    folder.rmdir()
    if how == "folder is a link":
        folder.symlink_to(elsewhere)
    elif how == "parent is a link":
        folder.parent.rmdir()
        (elsewhere / folder.name).mkdir()
        folder.parent.symlink_to(elsewhere)
    elif how == "a file":
        folder.write_text("")


@pytest.mark.parametrize("how", ["folder is a link", "parent is a link", "a file", "gone"])
def test_no_link_on_the_way_is_followed_and_the_problem_is_told(
    host: Host, folder: Path, tmp_path: Path, how: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    lead(folder, how, elsewhere)
    problem = metrics_file.write(host.places, FOLDER, "mps_simulated 1\n")
    assert problem
    assert not list(elsewhere.rglob(NAME))
    assert metrics_file.read(host.places) == metrics_file.Written(str(FOLDER), problem)
    host.desired("0")
    assert amiss(judge(host))["metrics-written"] == WARNING


def test_a_link_with_the_files_own_name_is_replaced_not_followed(host: Host, folder: Path, tmp_path: Path) -> None:
    aim = tmp_path / "aim"
    aim.write_text("precious")
    (folder / NAME).symlink_to(aim)
    assert metrics_file.write(host.places, FOLDER, "") == ""
    assert aim.read_text() == "precious"
    assert not (folder / NAME).is_symlink()


def test_it_is_written_again_once_the_folder_is_there(host: Host, folder: Path) -> None:
    folder.rmdir()
    assert metrics_file.write(host.places, FOLDER, "")
    folder.mkdir()
    assert metrics_file.write(host.places, FOLDER, "") == ""
    known = metrics_file.read(host.places)
    assert known is not None
    assert known.problem == ""


def test_the_record_is_written_once_and_not_each_minute(host: Host, folder: Path) -> None:
    del folder
    metrics_file.write(host.places, FOLDER, "")
    before = metrics_file.record(host.places).stat()
    metrics_file.write(host.places, FOLDER, "")
    after = metrics_file.record(host.places).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.parametrize("damage", ["", "3", "[]", '{"folder": 3}', '{"folder": "relative"}', '{"other": "/x"}'])
def test_a_damaged_record_is_none(host: Host, damage: str) -> None:
    metrics_file.record(host.places).parent.mkdir(parents=True, exist_ok=True)
    metrics_file.record(host.places).write_text(damage)
    assert metrics_file.read(host.places) is None
    metrics_file.take_away(host.places)


def test_a_removal_takes_the_file_and_names_it_before(host: Host, folder: Path) -> None:
    from mpsctl.converge import removal

    host.desired("0")
    metrics_file.write(host.places, FOLDER, "")
    said = removal.remove(host.world, check=True)
    assert any(one.endswith(f"{FOLDER}/{NAME}") for one in said.actions), said.actions
    assert os.listdir(folder) == [NAME]
    removal.remove(host.world, check=False)
    assert os.listdir(folder) == []
    assert not metrics_file.record(host.places).exists()


def test_a_disk_that_is_full_leaves_no_half(host: Host, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics_file.write(host.places, FOLDER, "first\n")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mpsctl.adapters.others_folder.os.rename", full)
    assert "No space" in metrics_file.write(host.places, FOLDER, "second\n")
    assert os.listdir(folder) == [NAME]
    assert (folder / NAME).read_text() == HEAD + "first\n"


@pytest.mark.parametrize(
    "value",
    [
        "metrics",
        "/",
        "/etc/x",
        "/usr/share/x",
        "/proc/x",
        "/tmp/x",
        "/home/x",
        "/run/mps-fleet/x",
        "/var/../etc",
        "/a b",
        3,
    ],
)
def test_a_place_where_a_look_cannot_or_must_not_write_is_refused(value: object) -> None:
    with pytest.raises(BadValue):
        check_metrics_directory(value)


@pytest.mark.parametrize("value", [str(FOLDER), "/srv/metrics", "/var/lib/node_exporter/textfile_collector"])
def test_places_that_node_exporters_have(value: str) -> None:
    assert check_metrics_directory(value) == value


def test_the_record_says_what_was_looked_at(host: Host, folder: Path) -> None:
    del folder
    metrics_file.write(host.places, FOLDER, "")
    assert json.loads(metrics_file.record(host.places).read_text()) == {"folder": str(FOLDER), "problem": ""}


def test_a_folder_is_opened_by_no_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(NotAFile), others_folder.opened(tmp_path / "link"):
        pass
