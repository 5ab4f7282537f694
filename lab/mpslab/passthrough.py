"""What of a machine's GPU goes into a host that has it for real: the driver's files read-only, and its devices.

The driver is the kernel's, so a host needs the user-space half of the very same release: the machine's own, either
in folders of its own (as GPU clouds mount it) or spread over the distribution's. In a host it always lies in
/usr/local/nvidia.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from mpslab import processes
from mpslab.errors import LabError

TARGET = Path("/usr/local/nvidia")
PATH = f"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{TARGET}/bin"
_FOLDERS = ("usr/local/nvidia", "opt/nvidia")
_PARTS = ("bin", "lib64", "lib")
_PROGRAMS = re.compile(r"nvidia-(smi|cuda-mps-control|cuda-mps-server|debugdump)")
_LIBRARIES = re.compile(r"lib(cuda|cudadebugger|nvcuvid|nvoptix|nvidia-[a-z0-9-]+)\.so(\.[0-9.]+)?")
_PROGRAM_FOLDERS = ("usr/local/bin", "usr/bin", "bin", "usr/sbin", "sbin")
_VERSION = re.compile(r"Kernel Module(?: for \S+)?\s+(\d[\d.]*)")


@dataclass(frozen=True)
class Gpus:
    """The machine's GPUs: how many, and the release of the kernel's driver (empty if it does not say)."""

    count: int
    driver_version: str


@dataclass(frozen=True)
class Bind:
    """A file or folder of the machine, and where a host has it."""

    source: Path
    target: Path
    writable: bool = False

    def option(self) -> str:
        """The option for systemd-nspawn, where a backslash stands before each colon and backslash of a path."""
        source, target = (re.sub(r"([:\\])", r"\\\1", str(path)) for path in (self.source, self.target))
        return f"--bind{'' if self.writable else '-ro'}={source}:{target}"


def gpus(machine: Path = Path("/")) -> Gpus:
    """The GPUs that the machine's driver has.

    :raises LabError: without a loaded driver, or without what CUDA needs of it.
    """
    if not (machine / "dev/nvidiactl").exists():
        raise LabError(
            "found no NVIDIA driver (no /dev/nvidiactl), `--gpu real` needs a machine with one; without it the lab "
            "simulates GPUs: leave --gpu away"
        )
    if not (machine / "dev/nvidia-uvm").exists():
        raise LabError("found no /dev/nvidia-uvm, CUDA needs it; run `nvidia-modprobe -u -c 0` on this machine")
    count = sum(1 for path in (machine / "dev").iterdir() if re.fullmatch(r"nvidia\d+", path.name))
    version = machine / "proc/driver/nvidia/version"
    found = _VERSION.search(version.read_text()) if version.is_file() else None
    return Gpus(count, found[1] if found else "")


def binds(machine: Path = Path("/"), listing: Optional[str] = None) -> list[Bind]:
    """What a host gets of the machine's driver.

    :param listing: what ``ldconfig -p`` says, asked for where it is not given.
    :raises LabError: if the driver's library is nowhere.
    """
    devices = [
        Bind(path, Path("/dev") / path.name, writable=True) for path in sorted((machine / "dev").glob("nvidia*"))
    ]
    return devices + (_own_folder(machine) or _spread(machine, listing))


def _own_folder(machine: Path) -> list[Bind]:
    for name in _FOLDERS:
        folder = machine / name
        if any(any((folder / part).glob("libcuda.so*")) for part in _PARTS):
            return [Bind(folder / part, TARGET / part) for part in _PARTS if (folder / part).is_dir()]
    return []


def _spread(machine: Path, listing: Optional[str]) -> list[Bind]:
    """The files of a distribution's package, one by one: its folders hold much else."""
    text = processes.run(["ldconfig", "-p"]) if listing is None else listing
    libraries: dict[str, Path] = {}
    for line in text.splitlines():
        # "	libcuda.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libcuda.so.1"; 32-bit ones say neither of these
        words = line.split()
        if len(words) >= 4 and _LIBRARIES.fullmatch(words[0]) and re.search(r"x86-64|AArch64", line):
            libraries.setdefault(words[0], machine / words[-1].lstrip("/"))
    if "libcuda.so.1" not in libraries:
        folders = " or ".join(f"/{name}" for name in _FOLDERS)
        raise LabError(
            f"found no libcuda.so.1 in {folders}, nor by `ldconfig -p`; install the driver's libraries for CUDA"
        )
    found = [Bind(path, TARGET / "lib64" / name) for name, path in sorted(libraries.items()) if path.exists()]
    programs: dict[str, Path] = {}
    for folder in _PROGRAM_FOLDERS:
        for path in (machine / folder).glob("nvidia-*"):
            if _PROGRAMS.fullmatch(path.name) and path.exists():
                programs.setdefault(path.name, path)
    return found + [Bind(path, TARGET / "bin" / name) for name, path in sorted(programs.items())]


def share(text: str) -> tuple[str, str]:
    """SOURCE[:TARGET] of ``--share``: a folder of the machine, and where hosts have it, to be read there.

    :raises LabError: if it is no folder, or if the host needs its own there.
    """
    source, _, target = text.partition(":")
    target = target or source
    if not os.path.isabs(source) or not Path(source).is_dir():
        raise LabError(f"found --share {text}, expected an existing folder by its whole path, as SOURCE[:TARGET]")
    parts = Path(target).parts
    own = ("dev", "proc", "sys", "run", "etc")
    if not os.path.isabs(target) or ".." in parts or len(parts) < 2 or parts[1] in own:
        raise LabError(
            f"found --share {text}, expected a target such as /machine: not / itself, nothing in /{', /'.join(own)}, "
            "which are the host's own"
        )
    return os.path.normpath(source), os.path.normpath(target)
