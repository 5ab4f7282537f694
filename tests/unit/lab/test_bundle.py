"""The parts of a host from one archive: whole, or refused with nothing kept."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from mpslab import bundle
from mpslab.errors import LabError
from mpslab.places import Places

FILES = {"root/usr/sbin/sshd": b"", "root/etc/os-release": b"ID=debian\nVERSION_CODENAME=bookworm\n"}


def pack(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in {**files, "root/usr/large": os.urandom(200_000)}.items():
        path = folder / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    archive = folder / "gpu bundle.tar.xz"
    with tarfile.open(archive, "w:xz") as packed:
        packed.add(folder / "tree/root", "root")
    return archive


def test_a_whole_bundle_is_unpacked_once(tmp_path: Path) -> None:
    places, archive = Places(tmp_path / "lab"), pack(tmp_path, FILES)
    parts = bundle.unpack(places, archive)
    assert (parts.release, parts.root.is_dir(), (parts.root / "dev").is_dir()) == ("bookworm", True, True)
    (parts.root / "kept").touch()
    assert bundle.unpack(places, archive) == parts
    assert (parts.root / "kept").exists()


@pytest.mark.parametrize("kind", ["empty", "cut short", "spoiled", "no archive", "no sshd"])
def test_what_is_no_whole_bundle_is_told_and_nothing_of_it_kept(tmp_path: Path, kind: str) -> None:
    places = Places(tmp_path / "lab")
    archive = pack(tmp_path, {} if kind == "no sshd" else FILES)
    whole = archive.read_bytes()
    middle = len(whole) // 2
    archive.write_bytes(
        {
            "empty": b"",
            "cut short": whole[:middle],
            "spoiled": whole[:middle] + bytes(1000) + whole[middle + 1000 :],
            "no archive": b"<html>not found</html>",
        }.get(kind, whole)
    )
    with pytest.raises(LabError, match=r"gpu bundle\.tar\.xz.* expected what `make gpu-bundle` makes") as caught:
        bundle.unpack(places, archive)
    assert "\n" not in str(caught.value)
    assert not [path for path in (*places.bundles.glob("*"), *places.builds.glob("*")) if any(path.iterdir())]
