"""What slurm.conf, gres.conf and the instances of a node need for `mpsctl slurm`, and whether they have it."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Iterator, Mapping

from mpsctl.adapters import scontrol
from mpsctl.cli import output
from mpsctl.model import slurm as model
from mpsctl.model.checked_values import ADMIT
from mpsctl.model.foreign import shown
from mpsctl.model.instance import Instance
from mpsctl.model.names import SCRIPTS
from mpsctl.model.pattern import Pattern
from mpsctl.model.places import Places
from mpsctl.store import configuration
from mpsctl.store.world import World

_SCRIPTS = dict(zip(("Prolog", "Epilog", "TaskProlog"), SCRIPTS))
"""What each line of slurm.conf names in ``places.scripts``."""
_LEAST_SECONDS = 60
_LINE = Pattern(r"(?P<key>[A-Za-z]+)(?:\[[0-9]+\])?\s*=\s*(?P<value>.*?)\s*")
_NONE = ("", "(null)")


@dataclass(frozen=True)
class Lack:
    """What is not as it has to be. ``only_advice``: jobs get their shares all the same."""

    found: str
    expected: str
    remedy: str
    only_advice: bool = False

    def __str__(self) -> str:
        return f"found {self.found}, expected {self.expected}; {self.remedy}"


def check(world: World, options: argparse.Namespace) -> int:
    """Say which lines are needed, and what of them is not so; 1 where something that is needed lacks.

    :raises NotReady: if Slurm does not answer.
    """
    node = options.node or os.uname().nodename.partition(".")[0]
    instances = [configuration.load(world, name) for name in configuration.names(world)]
    found = list(of_configuration(parsed(scontrol.configuration()), world.places, options.own_scripts))
    found += of_node(scontrol.node(node), node, instances)
    for instance in instances:
        found += of_instance(instance)
    needed = [one for one in found if not one.only_advice]
    wanted = needed_lines(world.places, instances)
    if options.json:
        lacks = [{**vars(one), "line": str(one)} for one in found]
        names = [one.name for one in instances]
        output.say_json({"node": node, "instances": names, "lines": wanted, "lacks": lacks, "good": not needed})
        return 1 if needed else 0
    for file, lines in wanted.items():
        output.say(f"{file}:")
        for line in lines:
            output.say(f"  {line}")
    for one in found:
        output.say(f"{'advice' if one.only_advice else 'lacks'}: {one}")
    if not found:
        output.say(f"{node}: all of it is so")
    return 1 if needed else 0


def needed_lines(places: Places, instances: list[Instance]) -> dict[str, list[str]]:
    """By file. Lines that a site has already are to be joined with these."""
    count = max(1, len(instances))
    most = min((one.expected_clients for one in instances if one.expected_clients), default=8)
    last = f"[0-{count - 1}]" if count > 1 else "0"
    scripts = [f"{key}={places.scripts / name}" for key, name in _SCRIPTS.items()]
    return {
        "slurm.conf": [
            *scripts,
            "PrologFlags=Alloc",
            "GresTypes=gpu,shard",
            f"NodeName=… Gres=gpu:{count},shard:{count * most}",
        ],
        "gres.conf": [f"Name=gpu File=/dev/nvidia{last}", f"Name=shard Count={count * most}"],
    }


def parsed(text: str) -> Mapping[str, tuple[str, ...]]:
    """What `scontrol show config` tells, by key; 24.11 numbers the values of some, as ``Prolog[0]``."""
    found: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is not None:
            found[match["key"]] = (*found.get(match["key"], ()), match["value"])
    return found


def of_configuration(conf: Mapping[str, tuple[str, ...]], places: Places, own_scripts: bool) -> Iterator[Lack]:
    for key, name in _SCRIPTS.items() if not own_scripts else ():
        wanted = str(places.scripts / name)
        values = [value for value in conf.get(key, ()) if value not in _NONE]
        if not any(value == wanted or fnmatchcase(wanted, value) for value in values):
            told = f"{key}={shown(', '.join(values))}" if values else f"no {key}="
            yield Lack(told, f"{key}={wanted}", "add it, or run that from your own and say --own-scripts")
    if "alloc" not in _words(conf, "PrologFlags"):
        flags = ",".join(conf.get("PrologFlags", ())) or "none"
        yield Lack(
            f"PrologFlags={shown(flags)}", "PrologFlags=Alloc", "else a job's first step comes before its Prolog"
        )
    types = _words(conf, "GresTypes")
    if not {model.GPU, model.SHARD} <= types:
        told = shown(",".join(sorted(types)))
        yield Lack(f"GresTypes={told}", "GresTypes=gpu,shard", "add it, on all nodes and the controller")
    if model.MPS in types:
        remedy = "take mps out: with both, jobs get wrong percentages or no GPU (22.05.8, 24.11.5)"
        yield Lack("mps in GresTypes", "gpu and shard alone", remedy)
    for key in ("PrologEpilogTimeout", "PrologTimeout"):
        bound = next(iter(conf.get(key, ())), "").partition(" ")[0]
        if bound.isdigit() and int(bound) < _LEAST_SECONDS:
            yield Lack(
                f"{key}={bound}", f"{_LEAST_SECONDS} s or more", "a daemon that just restarts is waited for", True
            )


def _words(conf: Mapping[str, tuple[str, ...]], key: str) -> set[str]:
    return {word.strip().lower() for value in conf.get(key, ()) for word in value.split(",")} - {"", "(null)"}


def of_node(text: str, node: str, instances: list[Instance]) -> Iterator[Lack]:
    shards = model.shards_of_gpu(text)
    if shards is None:
        remedy = "write NodeName=… Gres=gpu:G,shard:N with N a multiple of G"
        yield Lack(f"no even shards in Gres= of node {shown(node)}", "as many shards on each GPU", remedy)
        return
    for one in instances:
        if one.expected_clients is not None and one.expected_clients < shards:
            found = f"{shards} shards of a GPU, and mps_expected_clients {one.expected_clients} of instance {one.name}"
            yield Lack(found, "no more shards than clients", "lower the one, or raise the other")
        elif one.expected_clients is not None and one.expected_clients % shards:
            found = f"{one.expected_clients} clients of instance {one.name} for {shards} shards"
            yield Lack(found, "a multiple", "shares are rounded down, and some places stay empty", True)


def of_instance(one: Instance) -> Iterator[Lack]:
    if one.expected_clients is None or one.over_expected == ADMIT:
        found = f"instance {one.name} without a number of clients that is held"
        yield Lack(found, "mps_expected_clients, and mps_over_expected: wait", "set both, and converge the host")
    if len(one.gpus) > 1:
        found = f"instance {one.name} of {len(one.gpus)} GPUs"
        yield Lack(found, "an instance for each GPU", "a job with shards has one GPU, and its clients would see all")
    if not one.multi_user:
        found = f"instance {one.name} with one user at a time"
        remedy = "jobs of two users on one GPU wait for each other at the front door; set mps_multi_user: true"
        yield Lack(found, "several", remedy, True)
    if one.limit is None:
        found = f"instance {one.name} without mps_device_memory_limit"
        remedy = "a job can lift the limit that its variable sets; a limit of the instance holds"
        yield Lack(found, "a limit of one client", remedy, True)
