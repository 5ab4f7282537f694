"""GPUs as this program speaks of them, and the ways a user may name one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional, Sequence

from mpsctl.model.errors import BadValue
from mpsctl.model.foreign import quoted
from mpsctl.model.pattern import Pattern

EXCLUSIVE_PROCESS, DEFAULT, PROHIBITED = "exclusive_process", "default", "prohibited"

NOT_TOLD = "not told"
"""The name or address of a GPU of which NVML does not tell it."""

_HEX = "[0-9a-f]"
_UUID_PART = f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"
_INDEX = Pattern(r"0|[1-9][0-9]{0,3}")
_UUID = Pattern(rf"(?:GPU|MIG)-{_UUID_PART}")
_PCI = Pattern(rf"(?:({_HEX}{{4,8}}):)?({_HEX}{{2}}):({_HEX}{{2}})\.([0-7])", re.IGNORECASE)
_EXPECTED = "an index (0), a full UUID (GPU-… or MIG-…) or a PCI address (0000:3b:00.0)"


@dataclass(frozen=True)
class MigDevice:
    """A MIG device; ``memory_mib`` is its own memory in MiB, None where NVML does not tell it."""

    uuid: str
    name: str
    memory_mib: Optional[int]


@dataclass(frozen=True)
class Gpu:
    """A GPU as NVML shows it. What NVML does not tell is None; ``name`` and ``pci_address`` say ``not told`` then.

    ``memory_mib`` is its memory in MiB: GB10 (DGX Spark), whose memory is the host's, has none to tell (field reports).
    ``compute_mode`` is one of default, exclusive_process and prohibited.
    """

    index: int
    uuid: str
    pci_address: str
    name: str
    memory_mib: Optional[int]
    compute_mode: Optional[str] = None
    persistence: Optional[bool] = None
    mig_enabled: Optional[bool] = None
    compute_capability: Optional[tuple[int, int]] = None
    mig_devices: tuple[MigDevice, ...] = ()

    @property
    def pre_volta(self) -> bool:
        return self.compute_capability is not None and self.compute_capability < (7, 0)

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.name}, {self.uuid})"


@dataclass(frozen=True)
class Load:
    """How busy a device is at one moment; None where NVML does not tell.

    ``utilisation_percent`` is the share of the last moment (1/6 to 1 s by model) in which any kernel ran, however
    little of the GPU it filled (NVIDIA's documentation of NVML). MIG devices have none.
    """

    used_mib: Optional[int] = None
    free_mib: Optional[int] = None
    utilisation_percent: Optional[int] = None


@dataclass(frozen=True)
class Device:
    """What an instance serves: a whole GPU, or one MIG device of it."""

    gpu: Gpu
    mig: Optional[MigDevice] = None

    @property
    def uuid(self) -> str:
        return self.mig.uuid if self.mig else self.gpu.uuid

    @property
    def memory_mib(self) -> Optional[int]:
        return self.mig.memory_mib if self.mig else self.gpu.memory_mib

    def __str__(self) -> str:
        return f"MIG device {self.uuid} of GPU {self.gpu.index}" if self.mig else str(self.gpu)


def check_reference(text: str) -> str:
    """The normal form of a name for a GPU: index as given, UUID, or PCI address as ``0000:3b:00.0``.

    :raises BadValue: if it is none of them.
    """
    if _INDEX.fullmatch(text) or _UUID.fullmatch(text):
        return text
    match = _PCI.fullmatch(text)
    if match:
        return pci_address(text)
    remedy = "see `mpsctl gpus` on the host for the names of its GPUs"
    if re.fullmatch(r"(?:GPU|MIG)-[0-9a-fA-F-]*", text):
        remedy = "write the UUID whole and in lower case, as `mpsctl gpus` prints it"
    raise BadValue(quoted(text), _EXPECTED, remedy)


def pci_address(text: str) -> str:
    """``domain:bus:device.function`` in lower case with a domain of four digits where four are enough.

    NVML writes eight digits of domain, lspci four.
    """
    match = _PCI.fullmatch(text)
    if not match:
        return text
    return f"{int(match[1] or '0', 16):04x}:{match[2]}:{match[3]}.{match[4]}".lower()


def resolve(reference: str, gpus: Sequence[Gpu]) -> Device:
    """The device that ``reference`` names among ``gpus``.

    :raises BadValue: if the host has no such device; the text names what it has.
    """
    wanted = check_reference(reference)
    for gpu in gpus:
        if wanted in (str(gpu.index), gpu.uuid, gpu.pci_address):
            return Device(gpu)
        for mig in gpu.mig_devices:
            if wanted == mig.uuid:
                return Device(gpu, mig)
    raise BadValue(f"GPU {reference}", f"one of this host's: {_inventory(gpus)}", "correct it, or look why it is gone")


def _inventory(gpus: Sequence[Gpu]) -> str:
    if not gpus:
        return "none"
    listed = []
    for gpu in gpus:
        listed.append(f"{gpu.index} = {gpu.uuid} at {gpu.pci_address}")
        listed.extend(mig.uuid for mig in gpu.mig_devices)
    return ", ".join(listed)
