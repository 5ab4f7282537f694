"""The quantity language of memory limits: ``<integer>M``, ``<integer>G`` (binary), ``<number>%``.

Nothing else is let through, because the control daemon refuses nothing (control daemons 535, 550, 555
and driver 580): it reads ``20`` and ``20%`` as 20 MiB, ``1.5G`` as 1 MiB, ``1024K`` as 1 GiB, and a
plain byte count or a negative number as no limit at all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

from mpsctl.model.errors import BadValue
from mpsctl.model.foreign import quoted, written
from mpsctl.model.pattern import Pattern

_ABSOLUTE = Pattern(r"([1-9][0-9]{0,11})([MG])")
_PERCENT = Pattern(r"([0-9]{1,3}(?:\.[0-9]{1,3})?)%")
_EXPECTED = "<integer>M, <integer>G or <number>% of the GPU's memory"

MAX_MIB = 16 * 1024 * 1024
"""16 TiB in MiB: far above any GPU, far below where the daemon's own arithmetic overflows."""


@dataclass(frozen=True)
class Quantity:
    """Either a number of MiB or a share of a GPU's memory; ``text`` is what the user wrote."""

    text: str
    mib: Optional[int] = None
    thousandths_percent: Optional[int] = None

    def on(self, memory_mib: Optional[int]) -> int:
        """The quantity in whole MiB on a GPU of ``memory_mib`` MiB, rounded down; at least 1.

        :raises BadValue: for a percentage of a memory that is not known.
        """
        if self.mib is not None:
            return self.mib
        assert self.thousandths_percent is not None
        if memory_mib is None:
            raise BadValue(
                f"{self} of a GPU whose memory NVML does not tell",
                "<integer>M or <integer>G there",
                "write what one client may take, for example 4G",
            )
        return max(1, memory_mib * self.thousandths_percent // 100_000)

    def __str__(self) -> str:
        return self.text


def parse(text: object) -> Quantity:
    """Read a quantity.

    :raises BadValue: for anything but the three forms, zero, more than 100 % or more than 16 TiB.
    """
    if not isinstance(text, str):
        raise BadValue(quoted(text), _EXPECTED, _suggestion(written(text)))
    absolute = _ABSOLUTE.fullmatch(text)
    if absolute:
        mib = int(absolute[1]) * (1024 if absolute[2] == "G" else 1)
        if mib > MAX_MIB:
            raise BadValue(quoted(text), "at most 16 TiB, more than any GPU has", "write what one client may take")
        return Quantity(text, mib=mib)
    percent = _PERCENT.fullmatch(text)
    if percent:
        share = _shifted(percent[1], 3)
        if 0 < share <= 100_000:
            return Quantity(text, thousandths_percent=share)
        raise BadValue(quoted(text), "a percentage above 0 and up to 100", "write for example 20%")
    raise BadValue(quoted(text), _EXPECTED, _suggestion(text))


def _shifted(number: str, places: int) -> int:
    """A decimal number times ten to the power of ``places``, exactly; it has no more places than that."""
    whole, _, rest = number.partition(".")
    return int(whole + rest.ljust(places, "0"))


def _suggestion(text: str) -> str:
    """What the writer probably meant, in the language's own words, where that can be told."""
    bare = text.strip()
    example = "write for example 4G, 4096M or 20%"
    unit = re.fullmatch(r"([1-9][0-9]{0,11})\s*([MG])(?:i?B)?", bare, re.IGNORECASE)
    if unit:
        return _write(f"{unit[1]}{unit[2].upper()}") or example
    fraction = re.fullmatch(r"([0-9]{1,9}\.[0-9]{1,9})\s*G(?:i?B)?", bare, re.IGNORECASE)
    if fraction and _shifted(fraction[1], 9) > 0:
        return _write(f"{max(1, _shifted(fraction[1], 9) * 1024 // 10**9)}M") or example
    if re.fullmatch(r"[1-9][0-9]{0,17}", bare):
        number = int(bare)
        if number >= 1 << 20:
            meant = _write(f"{number >> 20}M")
            return f"a byte count is no limit to the daemon: {meant or example}"
        return f"a bare number is ambiguous: {_write(f'{bare}M', f'{bare}G', f'{bare}%') or example}"
    return example


def _write(*candidates: str) -> str:
    """``write`` those that would be let through, or nothing."""
    good = [text for text in candidates if _is_quantity(text)]
    return "write " + " or ".join(part for part in (", ".join(good[:-1]), good[-1]) if part) if good else ""


def _is_quantity(text: str) -> bool:
    try:
        parse(text)
    except BadValue:
        return False
    return True


def displayed(mib: int) -> str:
    """What the daemon's getters print for a limit of ``mib`` MiB.

    From 1 GiB on they round down to whole GiB: 1536 MiB reads back as ``1G`` (control daemons 535, 550,
    555; driver 580).
    """
    return f"{mib // 1024}G" if mib >= 1024 else f"{mib}M"
