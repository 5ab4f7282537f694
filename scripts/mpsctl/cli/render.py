"""Answers for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Sequence

from mpsctl.cli.output import colour, say
from mpsctl.observe.status import Status, Value

if TYPE_CHECKING:
    from mpsctl.lifecycle.health import Health
    from mpsctl.observe.clients import Client

SIMULATED = "simulated GPUs: a lab stands in for NVML, the PCI bus and the driver; the control daemon is real"


def status(found: Sequence[Status], configuration: Path, left_behind: Sequence[str]) -> None:
    """``left_behind`` is what is amiss with no instance."""
    for line in left_behind:
        say(colour("!", "31"), f" {line}")
    if not found:
        say(f"no instance has a file in {configuration}: this host has not been converged")
        return
    if any(one.simulated for one in found):
        say(colour(SIMULATED, "33"))
    for one in found:
        _one(one)


def _one(one: Status) -> None:
    word = colour("in the desired state", "32") if one.as_desired else colour("NOT IN THE DESIRED STATE", "31")
    unit = one.unit
    state = f"{unit.get('active_state', 'unknown')} ({unit.get('sub_state', '')})" if unit else "unknown"
    say(
        f"instance {one.instance}: ",
        word,
        f"; {state}, pid {unit.get('main_pid', 0)}, restarts {unit.get('restarts', 0)}",
    )
    for gpu in one.gpus:
        mode = gpu["compute_mode"] or "not told"
        say(f"  device {gpu['ordinal']}: GPU {gpu['index']}, {gpu['name']}, {gpu['uuid']}, compute mode {mode}")
    if one.pipe_directory:
        door = "clients may connect" if one.door_open else "closed to clients"
        say(f"  pipe directory {one.pipe_directory}: {door}")
    for value in one.values:
        say(f"  {value.what}: desired {value.desired}, the daemon shows {value.shown or 'nothing'}")
    for server in one.servers:
        who = f"server {server.pid} of user {server.uid}, {server.state or 'state not told'}"
        say(f"  {who}: {len(server.clients)} client{'s' if len(server.clients) != 1 else ''}")
        for value in server.values:
            say(f"    {value.what}: desired {value.desired}, the server shows {_shown(value)}")
        for client in server.clients:
            say(f"    {_client(client)}")
    for note in one.notes:
        say("  ", colour("note", "33"), f" {note}")
    for finding in one.findings:
        say("  ", colour("!", "31"), f" {finding}")


def _shown(value: Value) -> str:
    return (value.shown or "nothing") + (f", its log: {value.log}" if value.log else "")


def _client(client: Client) -> str:
    limits = ", ".join("not told" if mib is None else f"{mib} MiB" for mib in client.limits_mib)
    held = ", ".join("not told" if mib is None else f"{mib} MiB" for mib in client.memory_mib)
    line = f"{client}: limit {limits or 'not told'}, holds {held or 'not told'}, since {client.since or 'not told'}"
    for word, text in (
        ("LIMIT BYPASSED", client.bypassed),
        ("WITHOUT A LIMIT", client.unlimited),
        ("older limit", client.older),
        ("cannot tell", client.cannot_tell),
    ):
        if text:
            line += f"; {word}: {text}"
    return line


def health(found: Sequence[Health]) -> None:
    if not found:
        say("no instance is active on this host")
    for one in found:
        say(f"instance {one.instance}: {'well' if one.well else 'NOT WELL'}")
        for finding in one.findings:
            say(f"  ! {finding}")
        for action in one.actions:
            say(f"  > {action}")


def gpus(found: Sequence[dict[str, Any]], simulated: bool) -> None:
    if simulated:
        say(colour(SIMULATED, "33"))
    if not found:
        say("NVML shows no GPU on this host")
    for gpu in found:
        facts = [gpu["name"], _memory(gpu), f"compute mode {gpu['compute_mode'] or 'not told'}"]
        if gpu["persistence"] is not None:
            facts.append(f"persistence {'on' if gpu['persistence'] else 'off'}")
        if gpu["mig_enabled"]:
            facts.append("MIG on")
        facts.append(f"instance {gpu['instance']}" if gpu["instance"] else "no instance")
        say(f"GPU {gpu['index']}  {gpu['uuid']}  {gpu['pci_address']}  {', '.join(facts)}")
        for mig in gpu["mig_devices"]:
            owner = f"instance {mig['instance']}" if mig["instance"] else "no instance"
            say(f"  {mig['uuid']}  {mig['name']}, {_memory(mig)}, {owner}")


def _memory(device: dict[str, Any]) -> str:
    return "memory not told" if device["memory_mib"] is None else f"{device['memory_mib']} MiB"
