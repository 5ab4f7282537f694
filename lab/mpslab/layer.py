"""The lab's own overlay layer: the simulated NVML, and the units that stand in for a bus and a driver."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from mpslab import machine, processes, removal
from mpslab.places import SOURCE, Places
from mpslab.progress import step

_FILES = SOURCE / "files"
_NVML = SOURCE / "nvml"
COMPILE = ("gcc", "-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-pthread")


def compile_nvml(output: Path, *options: str) -> None:
    """Build libnvidia-ml.so.1."""
    sources = sorted(_NVML.glob("*.c"))
    processes.run([*COMPILE, *options, "-Wl,-soname,libnvidia-ml.so.1", "-o", output, *sources])


def layer_path(places: Places) -> Path:
    """Where the layer of the sources as they are now lies, made or not."""
    return places.layers / _digest()


def layer(places: Places) -> Path:
    """The layer of the sources as they are now."""
    ready = layer_path(places)
    if not ready.is_dir():
        with step("compiling the simulated NVML"):
            building = places.builds / f"layer-{ready.name}"
            removal.remove(building)
            _copy(building)
            library = building / f"usr/lib/{machine.multiarch()}/libnvidia-ml.so.1"
            library.parent.mkdir(parents=True)
            compile_nvml(library)
            library.chmod(0o644)
            ready.parent.mkdir(parents=True, exist_ok=True)
            os.rename(building, ready)
    return ready


def _digest() -> str:
    digest = hashlib.sha256(machine.multiarch().encode())
    for folder, pattern in ((_FILES, "**/*"), (_NVML, "*.[ch]")):
        for path in sorted(folder.glob(pattern)):
            content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b""
            digest.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def _copy(target: Path) -> None:
    """With root as owner and fixed modes, whatever the checkout's are: a layer's modes show in the host."""
    target.mkdir(parents=True, mode=0o755)
    target.chmod(0o755)
    for source in sorted(_FILES.rglob("*")):
        path = target / source.relative_to(_FILES)
        if source.is_symlink():
            path.symlink_to(os.readlink(source))
        elif source.is_dir():
            path.mkdir()
            path.chmod(0o755)
        else:
            path.write_bytes(source.read_bytes())
            path.chmod(0o755 if os.access(source, os.X_OK) else 0o644)
