"""A client's own memory limit, ``CUDA_MPS_PINNED_DEVICE_MEM_LIMIT``: ``0=1G,1=512M``.

It can lower the daemon's limit. But one entry that does not parse, or names a GPU that the client cannot
see, drops every limit, the daemon's included: with 2G in force ``0=1G,1=1G`` on a host with one GPU, ``1=1G``
and ``1G`` each left the whole GPU free (driver 580, H200).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Mapping, Optional, Sequence, Union

from mpsctl.model.pattern import Pattern

VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
_ENTRY = Pattern(r"(?P<device>[^=]+)=(?P<amount>[1-9][0-9]*)(?P<unit>[MG])B?", re.IGNORECASE)


@dataclass(frozen=True)
class Bypass:
    """What drops every limit: the variable's ``value``, the ``entry`` that is at fault, and the ``device`` that it
    names and the client cannot see; None where the entry does not parse."""

    value: str
    entry: str
    device: Optional[str] = None


def limit_bypass(environment: Mapping[str, str], devices: Sequence[str]) -> Optional[Bypass]:
    """Why a client with this environment holds no limit, or None if its variable does no harm.

    ``devices`` are the UUIDs that its daemon offers, in the order of their ordinals.
    """
    text = environment.get(VARIABLE)
    if text is None:
        return None
    count = visible(environment, devices)
    for entry in text.split(","):
        match = _ENTRY.fullmatch(entry)
        if not match:
            return Bypass(text, entry)
        device = match["device"]
        known = int(device) < count if _is_ordinal(device) else device in devices
        if not known:
            return Bypass(text, entry, device)
    return None


def visible(environment: Mapping[str, str], devices: Sequence[str]) -> int:
    """How many of its daemon's devices a client sees."""
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return len(devices)
    count = 0
    for part in chosen.split(","):
        word = part.strip()
        # CUDA stops at the first name that it does not know.
        if (_is_ordinal(word) and int(word) < len(devices)) or (
            word and not word.isdigit() and any(device.startswith(word) for device in devices)
        ):
            count += 1
        else:
            break
    return count


def _is_ordinal(text: str) -> bool:
    return re.fullmatch("[0-9]{1,9}", text) is not None


def render(limits_mib: Union[Mapping[int, int], Mapping[str, int], Mapping[Union[int, str], int]]) -> str:
    """The variable's value for limits in MiB by the ordinal or UUID of each device: ``0=2048M,1=512M``."""
    in_order = sorted(limits_mib.items(), key=lambda item: (isinstance(item[0], str), item[0]))
    return ",".join(f"{device}={mib}M" for device, mib in in_order)
