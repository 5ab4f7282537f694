"""Nothing is removed through a mount: below a folder of the lab the machine's own files could be mounted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpslab import processes, removal
from mpslab.errors import LabError

INFO = (
    "30 1 0:27 / /lab/building/root/dev/shm rw - tmpfs tmpfs rw\n"
    "31 1 0:27 / /lab/building/root rw - tmpfs tmpfs rw\n"
    "32 1 0:27 / /lab/buildings rw - tmpfs tmpfs rw\n"
    "33 1 0:27 / /lab/building/with\\040blank rw - tmpfs tmpfs rw\n"
)


def test_mounts_are_found_below_a_folder_and_deepest_first() -> None:
    assert removal.mounts_below(Path("/lab/building"), INFO) == [
        Path("/lab/building/root/dev/shm"),
        Path("/lab/building/with blank"),
        Path("/lab/building/root"),
    ]
    assert removal.mounts_below(Path("/lab/other"), INFO) == []


def test_a_folder_goes_and_an_absent_one_is_no_matter(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    removal.remove(tmp_path / "a")
    removal.remove(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_unmounted_is_not_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shm").mkdir()
    (tmp_path / "shm/precious").touch()
    monkeypatch.setattr(removal, "mounts_below", lambda *_: [tmp_path / "shm"])
    monkeypatch.setattr(processes, "run", lambda *_: "")
    with pytest.raises(LabError, match="still mounted below"):
        removal.remove(tmp_path)
    assert (tmp_path / "shm/precious").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_mount_that_a_killed_build_left_is_unmounted_not_emptied(tmp_path: Path) -> None:
    """In a mount namespace of its own, so that a failure leaves no mount behind."""
    for name in ("machine", "building/root/dev/shm"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "machine/precious").touch()
    script = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "from mpslab import removal; removal.remove(Path(sys.argv[2]))"
    )
    lab = Path(removal.__file__).resolve().parents[1]
    shell = 'cd "$1" && mount --bind machine building/root/dev/shm && exec "$2" -c "$3" "$4" "$1/building"'
    command = ["unshare", "--mount", "sh", "-c", shell, "sh", str(tmp_path), sys.executable, script, str(lab)]
    subprocess.run(command, check=True, timeout=60)
    assert (tmp_path / "machine/precious").exists()
    assert not (tmp_path / "building").exists()
