"""The verb gpus."""

from __future__ import annotations

import argparse
from typing import Any

from mpsctl.adapters import hardware
from mpsctl.checks import words
from mpsctl.cli import output
from mpsctl.model.foreign import shown
from mpsctl.store.world import World


def gpus(world: World, options: argparse.Namespace) -> int:
    """Show the GPUs of the host under every name they have, and what of their memory is used."""
    from mpsctl.observe import gpus

    found, simulated = gpus.inventory(world), hardware.simulated()
    if options.json:
        output.say_json({"simulated": simulated, "gpus": found})
        return 0
    if simulated:
        output.say(output.colour(words.SIMULATED, "33"))
    if not found:
        output.say("NVML shows no GPU on this host")
    for gpu in found:
        _show(gpu)
    return 0


def _show(gpu: dict[str, Any]) -> None:
    facts = [shown(gpu["name"]), words.memory(gpu["used_mib"], gpu["memory_mib"])]
    facts.append(f"compute mode {gpu['compute_mode'] or 'not told'}")
    if gpu["persistence"] is not None:
        facts.append(f"persistence {'on' if gpu['persistence'] else 'off'}")
    if gpu["mig_enabled"]:
        facts.append("MIG on")
    facts.append(_owner(gpu))
    output.say(f"GPU {gpu['index']}  {gpu['uuid']}  {gpu['pci_address']}  {', '.join(facts)}")
    for mig in gpu["mig_devices"]:
        used = words.memory(mig["used_mib"], mig["memory_mib"])
        output.say(f"  {mig['uuid']}  {shown(mig['name'])}, {used}, {_owner(mig)}")


def _owner(device: dict[str, Any]) -> str:
    return f"instance {device['instance']}" if device["instance"] else "no instance"
