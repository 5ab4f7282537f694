"""The bytecode of the one file, kept on the host per Python version.

A zip application is compiled anew at every call otherwise, which for pynvml alone takes longer than
everything a verb does. Only root writes it, and the one file's start-up code believes it only if nobody
else could have.
"""

from __future__ import annotations

import binascii
import importlib
import os
import sys
from pathlib import Path

from mpsctl.model import build
from mpsctl.model.errors import MpsctlError
from mpsctl.model.places import Places

_READ = ("mpsctl/adapters/rank.py",)
"""What is handed to another Python as text: its source is kept as well."""

_SEAL = bytes(8)


def path(cache: Path) -> Path:
    """Where the bytecode of this build for this Python lies."""
    return cache / f"mpsctl-{build.ID}-{sys.implementation.cache_tag}.zip"


def _believed(kept: Path) -> bool:
    """Whether the start-up code would take it: nobody but root can change it, and it is whole."""
    from mpsctl.adapters import trusted

    try:
        data = kept.read_bytes() if kept.is_file() else b""
    except OSError:
        return False
    return data == _sealed(data) and trusted.weak_point(kept) is None


def _sealed(data: bytes) -> bytes:
    """The archive with the checksum of all before it as its comment: zipimport looks at none."""
    return data[: -len(_SEAL)] + b"%08x" % binascii.crc32(data[: -len(_SEAL)])


def keep(places: Places) -> None:
    """Compile this program if that has not been done, and remove what other builds left.

    Does nothing when run from sources, or by another user than root, or where the cache cannot be written:
    the program works without it.
    """
    program = places.program
    target = path(places.cache)
    if build.ID == "sources" or os.geteuid() != 0 or _believed(target) or not program.is_file():
        return
    import importlib.util
    import io
    import marshal
    import zipfile

    from mpsctl.adapters import files

    buffer = io.BytesIO()
    try:
        with zipfile.ZipFile(program) as sources, zipfile.ZipFile(buffer, "w") as compiled:
            if (
                "mpsctl/model/build.py" not in sources.namelist()
                or build.ID not in sources.read("mpsctl/model/build.py").decode()
            ):
                return  # another build is installed than the one that runs
            compiled.comment = _SEAL
            for name in sources.namelist():
                if not name.endswith(".py") or name == "__main__.py":
                    continue
                if name in _READ:
                    compiled.writestr(zipfile.ZipInfo(name), sources.read(name))
                code = compile(sources.read(name), f"{program}/{name}", "exec", dont_inherit=True, optimize=0)
                # An unchecked hash-based pyc (PEP 552): nothing is compared at import.
                head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)
                compiled.writestr(zipfile.ZipInfo(f"{name}c"), head + marshal.dumps(code))
        files.write(target, _sealed(buffer.getvalue()), 0o644)
        for other in places.cache.glob("mpsctl-*.zip"):
            if f"-{build.ID}-" not in other.name:
                other.unlink(missing_ok=True)
    except (OSError, MpsctlError, KeyError, zipfile.BadZipFile):
        return


def load_all() -> None:
    """Import all of this program that is not imported yet: whoever it waits for may remove the file it is read from."""
    import pkgutil

    import mpsctl

    for module in pkgutil.walk_packages(mpsctl.__path__, "mpsctl."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
