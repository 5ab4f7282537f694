"""GPU models as data, and a simulated host's list of GPUs made from them."""

from __future__ import annotations

import configparser
import uuid
from dataclasses import dataclass
from typing import Sequence

from mpslab.errors import LabError
from mpslab.places import SOURCE

_MODELS = SOURCE / "nvml/models"
_NAMESPACE = uuid.UUID("7b0c9f0e-6d7f-5d0e-9c55-6d70732d6c61")
# NVML's numbers
_ARCHITECTURES = {"pascal": 4, "volta": 5, "turing": 6, "ampere": 7, "ada": 8, "hopper": 9, "blackwell": 10}
_CUDA = {"535": "12020", "550": "12040", "555": "12050"}
MAX_GPUS = 16


@dataclass(frozen=True)
class MigProfile:
    """A MIG profile of a model; memory in MiB."""

    name: str
    memory_mib: int
    multiprocessors: int
    slices: int


@dataclass(frozen=True)
class Model:
    """A GPU model; memory in MiB."""

    name: str
    memory_mib: int
    compute_capability: str
    architecture: int
    multiprocessors: int
    pci_device: str
    mig: dict[str, MigProfile]


def names() -> list[str]:
    """The models there are data for."""
    return sorted(path.stem for path in _MODELS.glob("*.ini"))


def model(name: str) -> Model:
    """One model, read from its file."""
    table = configparser.ConfigParser(delimiters=("=",))
    table.read_string((_MODELS / f"{name}.ini").read_text())
    entry = table["model"]
    profiles = {}
    for profile, text in table["mig"].items() if table.has_section("mig") else ():
        memory_mib, multiprocessors, slices = (int(number) for number in text.split(","))
        profiles[profile] = MigProfile(profile, memory_mib, multiprocessors, slices)
    return Model(
        name=entry["name"],
        memory_mib=int(entry["memory_mib"]),
        compute_capability=entry["compute_capability"],
        architecture=_ARCHITECTURES[entry["architecture"]],
        multiprocessors=int(entry["multiprocessors"]),
        pci_device=entry["pci_device"],
        mig=profiles,
    )


def check_mig(name: str, profiles: Sequence[str]) -> None:
    """:raises LabError: if the model has no such profiles or too few slices for all of them."""
    known = model(name).mig
    for profile in profiles:
        if profile not in known:
            raise LabError(f"found MIG profile {profile}, model {name} has {', '.join(known) or 'no MIG'}")
    slices = sum(known[profile].slices for profile in profiles)
    if slices > 7:
        raise LabError(f"the MIG profiles {','.join(profiles)} take {slices} slices, a GPU has 7")


def pci_address(index: int) -> str:
    """Addresses ascend with the index, as NVML numbers GPUs by their place on the bus."""
    return f"0000:{0x0B + 0x0F * index:02x}:00.0"


def gpu_uuid(host: str, index: int) -> str:
    """Unique per host and the same whenever a host of that name is made."""
    return f"GPU-{uuid.uuid5(_NAMESPACE, f'{host}/{index}')}"


def gpus_file(host: str, count: int, name: str, driver_version: str, mig: Sequence[str]) -> str:
    """The text of /etc/mps-lab/gpus, which the simulated NVML reads."""
    kind = model(name)
    label = driver_version.partition(".")[0]
    lines = [
        "# Simulated GPUs, written by the lab and read by its libnvidia-ml.so.1.",
        f"driver_version={driver_version}",
        f"nvml_version=12.{driver_version}",
        f"cuda_version={_CUDA.get(label, '12040')}",
    ]
    for index in range(count):
        lines += [
            "",
            f"[{gpu_uuid(host, index)}]",
            f"name={kind.name} (simulated)",
            f"pci={pci_address(index)}",
            f"pci_device={kind.pci_device}",
            f"memory_mib={kind.memory_mib}",
            f"multiprocessors={kind.multiprocessors}",
            f"compute_capability={kind.compute_capability}",
            f"architecture={kind.architecture}",
            f"mig_capable={int(bool(kind.mig))}",
        ]
        for slot, profile_name in enumerate(mig):
            profile = kind.mig[profile_name]
            mig_uuid = uuid.uuid5(_NAMESPACE, f"{host}/{index}/mig/{slot}")
            lines.append(
                f"mig=MIG-{mig_uuid}:{kind.name} MIG {profile.name} (simulated):{profile.memory_mib}"
                f":{profile.multiprocessors}:{profile.slices}"
            )
    return "\n".join(lines) + "\n"
