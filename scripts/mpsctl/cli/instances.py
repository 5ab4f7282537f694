"""What status shows of instances: what is desired, what is there, and what is amiss."""

from __future__ import annotations

from typing import Optional

from mpsctl.checks import waits, words
from mpsctl.checks.report import Report
from mpsctl.cli import output, render
from mpsctl.cli.output import say
from mpsctl.model.finding import OK
from mpsctl.model.foreign import shown
from mpsctl.observe.facts import ClientFacts, GpuFacts, InstanceFacts, ServerFacts, Value
from mpsctl.store.admission import CLOSED


def show(found: Report) -> None:
    """Show the host where it is amiss, and each instance."""
    host = found.facts
    if host.simulated:
        say(output.colour(words.SIMULATED, "33"))
    render.host(found)
    if not host.instances:
        say(f"no instance has a file in {host.places.configuration}: this host has not been converged")
    for name, one in host.instances.items():
        _show_instance(host.gpus, one, found.word(name))
        render.amiss(found.instances[name], "  ")


def _show_instance(gpus: GpuFacts, one: InstanceFacts, word: str) -> None:
    unit = one.unit
    say(
        f"instance {shown(one.name)}: ",
        render.word(word),
        ", in the desired state" if word == OK else "",
        f"; {unit.active_state} ({unit.sub_state}), pid {unit.main_pid}, restarts {unit.restarts}",
    )
    for ordinal, device in enumerate(one.devices):
        gpu = device.gpu
        used = words.memory(gpus.load(device.uuid).used_mib, device.memory_mib)
        kind = f"{shown(device.mig.name)}, MIG device of GPU {gpu.index}" if device.mig else f"{shown(gpu.name)}"
        mode = gpu.compute_mode or "not told"
        say(f"  device {ordinal}: GPU {gpu.index}, {kind}, {device.uuid}, {used}, compute mode {mode}")
    if one.desired is not None:
        say(f"  pipe directory {one.desired.pipe_directory}: {_door(one)}")
    if one.room is not None:
        say(f"  places: {words.room(one.room)}")
    for each in one.waiting:
        say(f"  waiting: {waits.reason(one, each).line}")
    for value in one.values:
        say(f"  {_value(value, 'the daemon')}")
    for server in one.servers:
        _show_server(server)


def _door(one: InstanceFacts) -> str:
    """What a client meets that comes now, and who waits."""
    door = one.door
    if one.without_door:
        meets = "clients may connect" if one.door_open else "what uses CUDA there runs outside MPS"
        return f"without a front door: {meets}"
    if door is None or not door.stands:
        return "no front door: what uses CUDA there runs outside MPS"
    if one.door_open:
        said = "clients may connect"
    else:
        told = door.admission
        refused = told is not None and told.state == CLOSED
        why = shown(told.why) if told is not None and told.why else ""
        said = ("clients are refused" if refused else "clients wait") + (f" ({why})" if why else "")
    count = len(one.waiting)
    return f"{said}; {words.number(count, 'client')} waiting" if count else said


def _show_server(server: ServerFacts) -> None:
    user = "not told" if server.uid is None else server.uid
    clients = words.number(len(server.clients), "client")
    say(f"  server {server.pid} of user {user}, {shown(server.state or 'state not told')}: {clients}")
    for value in server.values:
        say(f"    {_value(value, 'the server')}")
    for client in server.clients:
        say(f"    {_client(client)}")


def _value(value: Value, who: str) -> str:
    desired = value.desired
    line = f"{desired.what}: desired {desired.desired}, {who} shows {shown(value.shown or 'nothing')}"
    if desired.said_bytes is None:
        return line
    return f"{line}, its log: {words.limit(desired.said_bytes)}"


def _client(one: ClientFacts) -> str:
    line = (
        f"{words.client(one)}: limit {_each(one.limits_mib)}, holds {_each(one.memory_mib)}, since"
        f" {shown(one.since or 'not told')}"
    )
    bypassed = one.bypass is not None or any(each.limit_mib is not None for each in one.over)
    for what, why in (
        (
            " and ".join(["LIMIT BYPASSED"] * bypassed + ["WITHOUT A LIMIT"] * bool(one.without)),
            words.without_limit(one),
        ),
        ("older limit", words.older(one)),
        ("not known", words.limit_untold(one)),
    ):
        if why:
            line += f"; {what}: {why}"
    return line


def _each(of_devices: list[Optional[int]]) -> str:
    """Of each device, in the order of the ordinals."""
    return ", ".join(map(words.mib, of_devices)) or "not told"
