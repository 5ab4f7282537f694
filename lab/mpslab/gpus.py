"""Making a simulated GPU vanish from a running host, fail, or change its place; and bringing it back."""

from __future__ import annotations

import fcntl
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Optional

from mpslab import boot, hosts, models
from mpslab.errors import LabError
from mpslab.places import Places
from mpslab.progress import say

_RUN, _TABLE = "run/mps-lab", "etc/mps-lab/gpus"


@dataclass(frozen=True)
class Fault:
    """What an act does, in a few words, and the function that does it on a host's root to the GPU of an index."""

    help: str
    do: Callable[[hosts.Host, Path, int], None]
    one_gpu: bool = True


def plant(places: Places, name: str, act: str, index: Optional[int] = None) -> None:
    """Do one of FAULTS to a running host.

    :raises LabError: if it is not running, or has no GPU of that index.
    """
    host, fault = hosts.find_simulated(places, name), FAULTS[act]
    if fault.one_gpu != (index is not None):
        raise LabError(f"found {act} {'without an' if index is None else 'with a GPU'} index; see `lab/lab gpu --help`")
    if index is not None and not 0 <= index < host.gpus:
        has = f"GPUs 0 to {host.gpus - 1}" if host.gpus else "no GPU"
        raise LabError(f"{name}: found GPU index {index}, the host has {has}")
    if boot.leader_pid(places, name) is None:
        raise LabError(f"{name} is not running, and a GPU changes on a running host only; run `lab/lab up` again")
    fault.do(host, boot.host_root(places, host), index or 0)
    say(f"{name}: {f'GPU {index}' if fault.one_gpu else 'the GPUs'}: {fault.help}")


def _vanish(host: hosts.Host, root: Path, index: int) -> None:
    """As when a GPU falls off the bus."""
    _set(host, root, index, "lost=1")
    shutil.rmtree(_bus(root) / models.pci_address(index), ignore_errors=True)


def _bring_back(host: hosts.Host, root: Path, index: int) -> None:
    """As after a reset of the slot."""
    for path, text in hosts.bus_entries(host).items():
        if path.startswith(models.pci_address(index)):
            file = _bus(root) / path
            file.parent.mkdir(exist_ok=True)
            file.write_text(text + "\n")
    _state(host, root, index).unlink(missing_ok=True)


def _state_of(*lines: str) -> Callable[[hosts.Host, Path, int], None]:
    def do(host: hosts.Host, root: Path, index: int) -> None:
        _set(host, root, index, *lines)

    return do


def _set(host: hosts.Host, root: Path, index: int, *lines: str) -> None:
    """Set what the simulated NVML keeps of a GPU, under the lock that it takes itself."""
    state = _state(host, root, index)
    keys = {line.partition("=")[0] for line in lines}
    with (state.parent / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = state.read_text().splitlines() if state.exists() else []
        kept = [line for line in before if line.partition("=")[0] not in keys]
        new = state.with_name(state.name + ".new")
        new.write_text("\n".join([*kept, *lines, ""]))
        new.chmod(0o644)
        new.rename(state)


def _swap(host: hosts.Host, root: Path, index: int) -> None:
    head, cards = _cards(root)
    cards[index] = swapped(host.name, index, cards[index])
    _write_cards(root, head, cards)


def _pull(_host: hosts.Host, root: Path, index: int) -> None:
    head, cards = _cards(root)
    if index >= len(cards):
        raise LabError(
            f"found GPU index {index}, only {len(cards)} are left; `lab/lab gpu HOST restore` brings all back"
        )
    _write_cards(root, head, [*cards[:index], *cards[index + 1 :]])


def _reorder(_host: hosts.Host, root: Path, _index: int) -> None:
    head, cards = _cards(root)
    _write_cards(root, head, reordered(cards))


def _restore(host: hosts.Host, root: Path, _index: int) -> None:
    """Where the cards are, not what state they are in."""
    table = models.gpus_file(host.name, host.gpus, host.model, host.driver_version, host.mig)
    _replace(root / _TABLE, table)


FAULTS = {
    "vanish": Fault('NVML says "GPU is lost", gone from the bus, until `return` or a reboot', _vanish),
    "return": Fault("back and well, its modes at their defaults", _bring_back),
    "unsupported": Fault(
        "modes and process lists are Not Supported, as on virtual GPUs, until `return`", _state_of("unsupported=1")
    ),
    "no-memory": Fault(
        "its memory is Not Supported, as on GB10 (DGX Spark), until `return` or a reboot", _state_of("no_memory=1")
    ),
    "hang": Fault("NVML never answers for it, until `return` or a reboot", _state_of("hanging=1")),
    "mig-on": Fault(
        "MIG is on, as `nvidia-smi -mig 1` and a reset leave it", _state_of("mig=1", "mig_pending=1", "compute_mode=0")
    ),
    "mig-off": Fault("MIG is off", _state_of("mig=0", "mig_pending=0")),
    "swap": Fault("another card (another UUID) is in its place; once more: the former one", _swap),
    "pull": Fault("the driver does not find it, and those behind it move up, until `restore`", _pull),
    "reorder": Fault("the cards change places, first and last; once more: as before", _reorder, one_gpu=False),
    "restore": Fault("every card is where it was when the host was made", _restore, one_gpu=False),
}
"""What a process sees of the last four begins with its next nvmlInit, and stays over a reboot."""


def swapped(host: str, index: int, card: list[str]) -> list[str]:
    """The lines of a card with another UUID, or with its own again."""
    own = f"[{models.gpu_uuid(host, index)}]"
    other = f"[GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{host}/{index}/swapped')}]"
    return [other if card[0] == own else own, *card[1:]]


def reordered(cards: list[list[str]]) -> list[list[str]]:
    """The cards from the last to the first; each slot keeps its address."""
    addresses = [[line for line in card if line.startswith("pci=")] for card in cards]
    moved = [[line for line in card if not line.startswith("pci=")] for card in reversed(cards)]
    return [[card[0], *address, *card[1:]] for card, address in zip(moved, addresses)]


def _cards(root: Path) -> tuple[list[str], list[list[str]]]:
    """The lines before the first card, and those of each, which begin with its UUID."""
    head: list[str] = []
    cards: list[list[str]] = []
    for line in (root / _TABLE).read_text().splitlines():
        if line.startswith("["):
            cards.append([])
        (cards[-1] if cards else head).append(line)
    return head, cards


def _write_cards(root: Path, head: list[str], cards: list[list[str]]) -> None:
    _replace(root / _TABLE, "\n".join(["\n".join(head), *("\n".join(card) for card in cards)]).rstrip("\n") + "\n")


def _replace(path: Path, text: str) -> None:
    """Whole or not at all: processes of the host read it meanwhile."""
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.chmod(0o644)
    new.rename(path)


def _state(host: hosts.Host, root: Path, index: int) -> Path:
    folder = root / _RUN / "nvml"
    folder.mkdir(exist_ok=True)
    _, cards = _cards(root)
    uuid_ = cards[index][0].strip("[]") if index < len(cards) else models.gpu_uuid(host.name, index)
    return folder / f"{uuid_}.state"


def _bus(root: Path) -> Path:
    return root / _RUN / "sysroot/sys/bus/pci/devices"
