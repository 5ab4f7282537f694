#!/usr/bin/env python3
"""Build mpsctl into one file: its sources and nvidia-ml-py's pynvml in a zip application.

The same sources give the same bytes on any machine: entries are sorted, dated alike and stored with the
same mode, uncompressed. The file needs only a Python of 3.9 or newer on the host.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import os
import sys
import zipfile
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "mpsctl"
# -I and -S: nothing of the caller's environment, current folder or site-packages decides what is imported.
SHEBANG = b"#!/usr/bin/python3 -IS\n"
_DATE = (1980, 1, 1, 0, 0, 0)
_ID_PLACE = 'ID = "sources"'

_MAIN = '''\
import binascii
import gc
import os
import sys
import zipimport

# A look makes some 20,000 objects that stay until its end: they are not gone through again and again.
gc.set_threshold(50000)


class _Kept(zipimport.zipimporter):
    """Kept bytecode, each module of which is read once: Python's own reads it again to tell its file's name."""

    def get_filename(self, fullname):
        name = self.prefix + fullname.rpartition(".")[2]
        return "%s/%s.pyc" % (self.archive, name + "/__init__" if self.is_package(fullname) else name)


def _importer(path):
    if not path.startswith(kept):
        raise ImportError(path)
    return _Kept(path)


def _bytecode():
    """The kept bytecode of this build, if root wrote it, nobody else could, as adapters/trusted.py judges a path, which
    is not read yet, and it is whole.

    It is held open: a removal that another run began may take the file away while this one still imports. Python would
    end, or crash, by bytecode that is damaged.
    """
    path = "/var/cache/mps-fleet/mpsctl-{id}-" + (sys.implementation.cache_tag or "") + ".zip"
    try:
        place = path
        while True:
            found = os.lstat(place)
            if found.st_uid != 0 or found.st_mode & 0o022 or os.path.islink(place):
                return None
            if place == "/":
                break
            place = os.path.dirname(place)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb", closefd=False) as file:
            data = memoryview(file.read() or b"")
    except OSError:
        return None
    if b"%08x" % binascii.crc32(data[:-8]) != data[-8:]:
        return None
    return "/proc/self/fd/%d" % descriptor


if sys.version_info < (3, 9):
    sys.exit("mpsctl: found Python %d.%d, expected 3.9 or newer; start it with a newer one" % sys.version_info[:2])
kept = _bytecode()
if kept:
    sys.path.insert(0, kept)
    sys.path_hooks.insert(0, _importer)
sys.dont_write_bytecode = True

from mpsctl.cli.main import run

run(sys.argv[1:])
'''


def _pynvml() -> dict[str, bytes]:
    """pynvml.py, whose head carries its licence, from the nvidia-ml-py that this Python has."""
    try:
        distribution = importlib.metadata.distribution("nvidia-ml-py")
    except importlib.metadata.PackageNotFoundError:
        sys.exit("build_mpsctl: nvidia-ml-py is not installed for this Python; pip install -r requirements.txt")
    found = {}
    for file in distribution.files or ():
        path = Path(str(distribution.locate_file(file)))
        if file.name == "pynvml.py":
            found["pynvml.py"] = path.read_bytes()
        elif "licen" in file.name.lower():
            found[f"nvidia-ml-py.{file.name}"] = path.read_bytes()
    if "pynvml.py" not in found:
        sys.exit("build_mpsctl: the installed nvidia-ml-py has no pynvml.py; reinstall it from requirements.txt")
    return found


def contents() -> tuple[str, dict[str, bytes]]:
    """The build's id (16 hex digits over all sources) and its files by name."""
    found = _pynvml()
    for path in sorted(SOURCES.rglob("*.py")):
        if path.name != "__main__.py":
            found[f"mpsctl/{path.relative_to(SOURCES).as_posix()}"] = path.read_bytes()
    found["__main__.py"] = _MAIN.encode()
    digest = hashlib.sha256()
    for name in sorted(found):
        digest.update(f"{name} {len(found[name])}\n".encode() + found[name])
    build_id = digest.hexdigest()[:16]
    place = found["mpsctl/model/build.py"].decode()
    if place.count(_ID_PLACE) != 1:
        sys.exit(f"build_mpsctl: mpsctl/model/build.py must hold the line {_ID_PLACE} once")
    found["mpsctl/model/build.py"] = place.replace(_ID_PLACE, f'ID = "{build_id}"').encode()
    found["__main__.py"] = _MAIN.replace("{id}", build_id).encode()
    return build_id, found


def build(output: Path) -> str:
    """Write the one file to ``output``, unless it is there already; the build's id."""
    build_id, found = contents()
    buffer = io.BytesIO()
    buffer.write(SHEBANG)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_STORED) as archive:
        for name in sorted(found):
            entry = zipfile.ZipInfo(name, _DATE)
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, found[name])  # stored: compressors differ from one zlib to the next
    data = buffer.getvalue()
    if not output.is_file() or output.read_bytes() != data:
        output.parent.mkdir(parents=True, exist_ok=True)
        temporary = output.with_name(f".{output.name}.{os.getpid()}.new")
        temporary.write_bytes(data)
        temporary.chmod(0o755)
        os.replace(temporary, output)
    return build_id


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__.strip() if sys.argv[1:] in (["-h"], ["--help"]) else "", end="\n")
        print("usage: build_mpsctl.py OUTPUT", file=sys.stderr)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    print(build(Path(sys.argv[1])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
