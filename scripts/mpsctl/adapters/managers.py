"""Who else on this host may manage MPS: units, Slurm, Kubernetes. Found by what they are told to run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Iterator

from mpsctl.adapters import hardware, procfs
from mpsctl.model import foreign
from mpsctl.model.pattern import Pattern

_UNIT_DIRECTORIES = (
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
)
_OURS = Pattern(r"mps-(?:control@.*|health)\.(?:service|timer)")
_SLURM = ("etc/slurm", "etc/slurm-llnl")
_MODE = Pattern(r"nvidia-smi\b.*(?:\s-c\b|compute)", re.IGNORECASE)
_SCRIPT = Pattern(
    r"^\s*(?:Prolog|Epilog|PrologSlurmctld|EpilogSlurmctld|TaskProlog|TaskEpilog)\s*=\s*(\S+)", re.I | re.M
)
_GRES = Pattern(r"^\s*(?:NodeName=\S+\s+)?Name=mps\b|^\s*GresTypes\s*=.*\bmps\b", re.IGNORECASE | re.MULTILINE)
_COMM_LENGTH = 15
_OF_KUBERNETES = {
    "mps-control-daemon"[:_COMM_LENGTH]: "the device plugin's mps-control-daemon",
    "gpu-kubelet-plugin"[:_COMM_LENGTH]: "NVIDIA's DRA driver, which starts control daemons and sets compute modes for"
    " claims that ask for MPS",
}
"""Managers of MPS by the names of their processes, as the kernel cuts them."""
_KUBERNETES_PLACES = {
    "run/nvidia/mps/*/*/pipe": "where the device plugin's MPS sharing has a control daemon",
    "var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock": "the socket of NVIDIA's DRA driver",
    "var/lib/kubelet/device-plugins/nvidia-*.sock": "the socket by which NVIDIA's device plugin gives GPUs to pods",
}
"""What they leave on a host, by their defaults. It may stand there after they are gone."""
_LARGEST_BYTES = 1 << 20


def units(root: Path = Path("/")) -> dict[str, Path]:
    """The units, by name, whose files speak of NVIDIA's control daemon and are not this project's."""
    found: dict[str, Path] = {}
    for unit, path in _unit_files(root):
        if unit not in found and hardware.CONTROL_DAEMON in _text(path):
            found[unit] = path
    return found


def _unit_files(root: Path) -> Iterator[tuple[str, Path]]:
    """The files of others' units and drop-ins, by unit; of two files of one name systemd reads the first."""
    seen = set()
    for directory in _UNIT_DIRECTORIES:
        for path in _files(root / directory, "*.service", "*.service.d/*.conf"):
            unit = path.parent.name[:-2] if path.parent.name.endswith(".d") else path.name
            if not _OURS.fullmatch(unit) and (unit, path.name) not in seen:
                seen.add((unit, path.name))
                yield unit, path


def wanted(unit: str, root: Path = Path("/")) -> bool:
    """Whether some target of this host's configuration starts the unit."""
    directory = root / "etc/systemd/system"
    return any((directory / link.parent / unit).is_symlink() for link in directory.glob(f"*.wants/{unit}"))


def slurm(root: Path = Path("/")) -> dict[Path, str]:
    """Slurm's files that share GPUs by MPS, each with what is found there."""
    found = {}
    for path in (path for name in _SLURM for path in _files(root / name, "*.conf")):
        text = _text(path)
        if _GRES.search(text):
            found[path] = "names the generic resource mps"
        for match in _SCRIPT.finditer(text):
            for script in _files(root, match[1].lstrip("/")):
                if hardware.CONTROL_DAEMON in _text(script):
                    found[script] = f"runs {hardware.CONTROL_DAEMON}, by {foreign.shown(str(path))}"
    for script in _scripts(root):
        if script not in found and hardware.CONTROL_DAEMON in _text(script):
            found[script] = f"runs {hardware.CONTROL_DAEMON}"
    return found


def texts(root: Path = Path("/")) -> dict[Path, str]:
    """Units, cron jobs and Slurm's scripts of others that run MPS or set compute modes, each with its text."""
    places = [path for _, path in _unit_files(root)]
    places += [*_files(root / "etc", "crontab", "cron.d/*"), *_scripts(root)]
    found = {path: _text(path) for path in places}
    return {path: text for path, text in found.items() if hardware.CONTROL_DAEMON in text or _MODE.search(text)}


def _scripts(root: Path) -> Iterator[Path]:
    for directory in _SLURM:
        yield from _files(root / directory, "*prolog*", "*epilog*", "*prolog*/*", "*epilog*/*")


def kubernetes() -> dict[int, str]:
    """The processes of Kubernetes' managers of MPS, by pid, each with what it is."""
    found = {}
    for pid in procfs.pids():
        known = _OF_KUBERNETES.get(procfs.name(pid) or "")
        if known is not None:
            found[pid] = known
        elif hardware.mps_program(pid) == hardware.CONTROL_DAEMON and procfs.container(pid):
            found[pid] = f"a control daemon in container {procfs.container(pid)}, as a DRA driver or device plugin has"
    return found


def kubernetes_places(root: Path = Path("/")) -> dict[str, str]:
    """What Kubernetes' plugins for GPUs have on this host, by its path, each with what it is."""
    return {str(path): what for place, what in _KUBERNETES_PLACES.items() for path in sorted(root.glob(place))}


def _files(directory: Path, *patterns: str) -> Iterator[Path]:
    for pattern in patterns:
        try:
            yield from (path for path in sorted(directory.glob(pattern)) if path.is_file())
        except (OSError, ValueError, NotImplementedError):  # a configuration of others may name no sound pattern
            continue


def _text(path: Path) -> str:
    try:
        with path.open(errors="replace") as file:
            return file.read(_LARGEST_BYTES)
    except OSError:
        return ""
