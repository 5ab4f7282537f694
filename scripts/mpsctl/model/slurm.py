"""What Slurm says of a job's GPUs, and what of an instance that is worth.

The number of shards stands only in the detailed view of a job (`scontrol show job -o -d ID`), in two forms:
``GRES=shard:3(3/8,0/8,0/8,0/8)`` has the shards of each GPU beside what it has (24.11.5), ``GRES=shard:3(IDX:0)`` the
GPU alone (22.05.8). A name, a comment or a path of the job may say the same words, a line feed among them, and they are
the user's. So every place in the text is read, and the least counts: nobody can write himself more, nor anything for
which a node would be drained.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Iterator, Optional, Sequence

from mpsctl.model.errors import BadValue, NotReady
from mpsctl.model.foreign import quoted, shown
from mpsctl.model.pattern import Pattern

_NODE = Pattern(r"Nodes=(?P<nodes>\S+) CPU_IDs=\S* Mem=\S* GRES=(?P<gres>\S*)")
_GRES = Pattern(r"(?P<name>[a-z]+)(?::[^:(,]+)?:(?P<count>[0-9]{1,9})(?:\((?P<where>[^()]*)\))?")
_OF_GPU = Pattern(r"(?P<mine>[0-9]{1,6})/(?P<all>[0-9]{1,6})")
_RANGE = Pattern(r"(?P<first>[0-9]{1,9})(?:-(?P<last>[0-9]{1,9}))?")
_BRACKETS = Pattern(r"\[([^\[\]]*)\]")
_CONFIGURED = Pattern(r"(?:^|,)(?P<name>gpu|shard|mps)(?::[^:(,]+)?:(?P<count>[0-9]{1,9})")
_INDEX = "IDX:"
GPU, SHARD, MPS = "gpu", "shard", "mps"


class NothingGiven(NotReady):
    """Slurm began a job on a node and gave it nothing there."""


@dataclass(frozen=True)
class Part:
    """What a job has of one GPU: ``mine`` of its ``every`` shards. A whole GPU is 1 of 1. ``disputed`` is whether the
    text says several things, which is its user's doing: what it has is then no less than one shard."""

    mine: int
    every: int
    disputed: bool = False

    @property
    def is_whole(self) -> bool:
        return self.mine == self.every

    @property
    def percent(self) -> float:
        return 100 * self.mine / self.every

    def clients(self, most: int) -> int:
        """How many of so many clients are this part, rounded down; ``most`` is no less than the GPU has shards."""
        found = most * self.mine // self.every
        return max(1, found) if self.disputed else found

    def __str__(self) -> str:
        return "all of it" if self.is_whole else f"{self.mine} of {self.every} shards"


@dataclass(frozen=True)
class Said:
    """What one place in the text says that a job has of a GPU; ``every`` is None where it does not say the number of
    all shards."""

    mine: int
    every: Optional[int]

    def part(self, shards: Optional[int]) -> Optional[Part]:
        """By the shards that each GPU of the node has, None where they are not known."""
        every = self.every or shards
        return Part(self.mine, every) if every else None


def gpus(text: str) -> tuple[int, ...]:
    """The numbers of GPUs as Slurm's variables have them: ``0,2``, ``0-3``; empty for none.

    :raises BadValue: for anything else.
    """
    found = _numbers(text) if text.strip() else ()
    if found is None:
        raise BadValue(f"SLURM_JOB_GPUS={quoted(text)}", "numbers of GPUs, as 0,2", "run this as Slurm's Prolog")
    return found


def said(text: str, node: str, wanted: Sequence[int]) -> dict[int, list[Said]]:
    """What is said that a job has of each of these GPUs of a node, by `scontrol show job -o -d`.

    :raises NothingGiven: if the text says that it has nothing of the node.
    :raises NotReady: if the text does not say it.
    :raises BadValue: for gres/mps.
    """
    found: dict[int, list[Said]] = {number: [] for number in wanted}
    has_mps = False
    for gres in _of_node(text, node):
        if not gres:
            line = f"found a job with GPUs and an empty GRES= on {shown(node)} in `scontrol show job -d`"
            raise NothingGiven(f"{line}, expected what Slurm gave it; it is to begin anew")
        has_mps = has_mps or any(match["name"] == MPS for match in _GRES.finditer(gres))
        for number, one in _each(gres):
            if number in found:
                found[number].append(one)
    missing = [str(number) for number, each in found.items() if not each]
    if missing and has_mps:
        raise mps_refused()
    if missing:
        raise NotReady(
            f"found nothing of GPU {', '.join(missing)} on {shown(node)} in `scontrol show job -d`, expected gres/gpu"
            " or gres/shard; see what Slurm gave the job"
        )
    return found


def part(every: Sequence[Said], shards: Optional[int]) -> Part:
    """The least of what is said and can be. ``shards`` is how many each GPU of the node has, None where that is not
    known.

    :raises NotReady: if the number of all shards is not known.
    """
    parts = [one.part(shards) for one in every]
    known = [one for one in parts if one is not None]
    if len(known) < len(parts):
        raise NotReady(
            "found shards of a GPU and not how many it has; expected as many on each GPU: write `Name=shard Count=N` in"
            " gres.conf with N a multiple of the GPUs"
        )
    possible = [one for one in known if 0 < one.mine <= one.every]
    if not possible:
        raise NotReady(f"found {known[0]} of a GPU, expected no more than it has; see gres.conf")
    least = min(possible, key=lambda one: one.mine / one.every)
    return replace(least, disputed=len(set(known)) > 1)


def mps_refused() -> BadValue:
    return BadValue(
        "a job with gres/mps",
        "gres/shard, or whole GPUs: gres/mps knows no instance, and has one GPU of a node at a time",
        "take mps out of GresTypes and gres.conf, and ask for --gres=shard:N",
    )


def shards_of_gpu(text: str) -> Optional[int]:
    """How many shards each GPU of a node has by its ``Gres=`` in `scontrol show node -o`, None where they are not
    spread evenly, or not at all."""
    words = (word for word in text.split() if word.startswith("Gres="))
    counts: dict[str, int] = {}
    for match in _CONFIGURED.finditer(next(words, "")[len("Gres=") :]):
        counts[match["name"]] = counts.get(match["name"], 0) + int(match["count"])
    cards, shards = counts.get(GPU, 0), counts.get(SHARD, 0)
    return shards // cards if cards and shards and shards % cards == 0 else None


def _of_node(text: str, node: str) -> Iterator[str]:
    for begin in _all(text, "Nodes="):
        match = _NODE.match(text[begin : begin + 65536])
        if match is not None and is_among(node, match["nodes"]):
            yield match["gres"]


def _all(text: str, word: str) -> Iterator[int]:
    at = text.find(word)
    while at >= 0:
        yield at
        at = text.find(word, at + 1)


def _each(gres: str) -> Iterator[tuple[int, Said]]:
    for match in _GRES.finditer(gres):
        where = match["where"] or ""
        numbers = (_numbers(where[len(_INDEX) :]) or ()) if where.startswith(_INDEX) else ()
        if match["name"] == GPU:
            yield from ((number, Said(1, 1)) for number in numbers)
        elif match["name"] == SHARD and len(numbers) == 1:  # of several it is not said how many each
            yield numbers[0], Said(int(match["count"]), None)
        elif match["name"] == SHARD:
            of_gpus = map(_OF_GPU.fullmatch, where.split(","))
            for number, one in enumerate(of_gpus):
                if one is not None and int(one["mine"]):
                    yield number, Said(int(one["mine"]), int(one["all"]))


def _numbers(text: str) -> Optional[tuple[int, ...]]:
    found: list[int] = []
    for word in text.split(","):
        match = _RANGE.fullmatch(word.strip())
        if match is None:
            return None
        first, last = int(match["first"]), int(match["last"] or match["first"])
        if not first <= last <= first + 1024:
            return None
        found += range(first, last + 1)
    return tuple(dict.fromkeys(found))


def is_among(node: str, nodes: str) -> bool:
    """Whether a node is among those of Slurm's short form: ``n[01-03,7]``, ``rack[1-2]n[1-4]``, ``a,b``."""
    return any(_matches(node, one) for one in _split(nodes))


def _split(nodes: str) -> Iterator[str]:
    """At the commas outside of brackets."""
    begin, depth = 0, 0
    for at, sign in enumerate(nodes):
        depth += (sign == "[") - (sign == "]")
        if sign == "," and not depth:
            yield nodes[begin:at]
            begin = at + 1
    yield nodes[begin:]


def _matches(node: str, form: str) -> bool:
    match = _BRACKETS.search(form)
    if match is None:
        return node == form
    before, after = form[: match.start()], form[match.end() :]
    if not node.startswith(before):
        return False
    rest = node[len(before) :]
    return any(
        rest.startswith(number) and _matches(rest[len(number) :], after) for number in _candidates(rest, match[1])
    )


def _candidates(rest: str, ranges: str) -> Iterator[str]:
    """The beginnings of a text that are numbers of these ranges, with as many digits as those have at least."""
    digits = len(rest) - len(rest.lstrip("0123456789"))
    for length in range(1, min(digits, 12) + 1):
        number = rest[:length]
        for word in ranges.split(","):
            match = _RANGE.fullmatch(word)
            if match is None:
                continue
            first, last = match["first"], match["last"] or match["first"]
            if int(first) <= int(number) <= int(last) and number == number.lstrip("0").rjust(len(first), "0"):
                yield number
