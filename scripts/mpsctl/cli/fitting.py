"""The verbs measure, plan and run, and the hints of env."""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any, Callable, Optional

from mpsctl.cli import output
from mpsctl.model import checked_values, fit, quantity
from mpsctl.model import plan as plans
from mpsctl.model.errors import BadValue
from mpsctl.model.fit import Card
from mpsctl.model.instance import Instance
from mpsctl.model.shares import NONE, check_shares
from mpsctl.store import configuration
from mpsctl.store.world import World


def option(name: str, text: Optional[str], check: Callable[[str], Any]) -> Any:
    """The option's value, or None where it was not given.

    :raises BadValue: naming the option.
    """
    if text is None:
        return None
    try:
        return check(text)
    except BadValue as error:
        raise BadValue(f"{name} {error.found}", error.expected, error.remedy) from None


def with_hints(world: World, name: str, kind: str, text: str) -> str:
    from mpsctl.observe import planning

    if kind not in ("shell", "systemd"):
        raise BadValue(f"--hints with the format {kind}", "shell or systemd, which know comments", "leave one out")
    return "\n".join([text, *(f"# {hint}" for hint in planning.hints_of(world, name))])


def measure(world: World, options: argparse.Namespace) -> int:
    from mpsctl.measuring import measure as measuring

    percentages = [option("--threads", text, checked_values.check_thread_percentage) for text in options.threads]
    found = measuring.measure(world, options.instance, options.gpu, percentages, options.force)
    if options.json:
        output.say_json({"file": str(world.places.measured), "measured": [asdict(one) for one in found]})
        return 0
    for one in found:
        server = "not told" if one.server_mib is None else f"{one.server_mib} MiB"
        output.say(
            f"{one.gpu_name}, driver {one.driver}, {one.thread_percentage:g} % ({one.multiprocessors} multiprocessors):"
            f" context {one.context_mib} MiB, server {server}, least limit {one.least_limit_mib} MiB,"
            f" reserved {one.reserved_mib} MiB"
        )
    output.say(f"kept in {world.places.measured}")
    return 0


def _whole_mib(text: str) -> int:
    if re.fullmatch(r"[1-9][0-9]{1,7}", text):
        return int(text)
    raise BadValue(repr(text), "a GPU's memory in whole MiB", "write for example 15360")


def _gpu_name(text: str) -> str:
    if text.strip() and text.isprintable():
        return text
    raise BadValue(repr(text), "a GPU's name", "write for example 'NVIDIA H200'")


def _driver(text: str) -> str:
    if re.fullmatch(r"[1-9][0-9]{2}(\.[0-9]+){0,2}", text):
        return text
    raise BadValue(repr(text), "a driver's version", "write for example 580.159.04")


def _card(world: World, options: argparse.Namespace, instance: Optional[Instance]) -> Card:
    from mpsctl.observe import planning

    described = {
        "--model-memory-mib": options.model_memory_mib,
        "--gpu-name": options.gpu_name,
        "--driver": options.driver,
    }
    given = [name for name, value in described.items() if value is not None]
    if not given:
        if instance is not None and options.gpu is None:
            return planning.of_instance(world, instance)
        return planning.on_host(world, options.gpu)
    if options.gpu is not None:
        raise BadValue(f"--gpu with {given[0]}", "a GPU of this host or a described one", "leave one out")
    if options.model_memory_mib is None or options.gpu_name is None:
        raise BadValue(f"only {', '.join(given)}", "--model-memory-mib and --gpu-name", "give both")
    memory_mib = option("--model-memory-mib", options.model_memory_mib, _whole_mib)
    return Card(
        option("--gpu-name", options.gpu_name, _gpu_name), memory_mib, option("--driver", options.driver, _driver)
    )


def _desired(world: World, options: argparse.Namespace) -> tuple[Card, plans.Desired]:
    """What is asked, and of which card. What an instance has the options change."""
    instance = None if options.instance is None else configuration.load(world, options.instance)
    memory = option("--memory", options.memory, quantity.parse)
    clients = option("--clients", options.clients, checked_values.check_expected_clients)
    threads = option("--threads", options.threads, checked_values.check_thread_percentage)
    rates = option("--rates", options.rates, plans.parse_rates)
    shares = option("--share", " ".join(options.share) if options.share else None, check_shares)
    over_expected = checked_values.ADMIT
    if instance is not None:
        memory, clients = memory or instance.limit, clients or instance.expected_clients
        threads = threads or instance.thread_percentage
        shares = instance.shares if shares is None else shares
        over_expected = instance.over_expected
    if shares and over_expected == checked_values.ADMIT:
        over_expected = checked_values.WAIT
    if memory is None:
        found = "neither --memory nor --instance" if instance is None else f"no memory limit of {options.instance}"
        raise BadValue(found, "the size of one process", "write for example --memory 4G")
    card = _card(world, options, instance)
    return card, plans.Desired(
        limit_mib=memory.on(card.memory_mib),
        clients=clients,
        thread_percentage=threads,
        latency=options.latency,
        rates=rates or (),
        synchronous=options.synchronous,
        max_connections=fit.max_connections_of(os.environ),
        share=memory if memory.mib is None else None,
        shares=shares or NONE,
        over_expected=over_expected,
    )


def plan(world: World, options: argparse.Namespace) -> int:
    from mpsctl.observe import planning

    found = planning.plan(world, *_desired(world, options))
    if options.json:
        output.say_json(found.as_json())
    else:
        output.say_lines(plans.as_vars(found) if options.format == "vars" else plans.as_text(found))
    return BadValue.exit_code if found.refusals else 0


def _seconds(text: str) -> float:
    if re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,3})?", text):
        return float(text)
    raise BadValue(repr(text), "seconds", "write for example 30")


def run(world: World, options: argparse.Namespace) -> int:
    from mpsctl.lifecycle import run as lifecycle
    from mpsctl.model.run_environment import Lower

    command = options.command_line[1:] if options.command_line[:1] == ["--"] else options.command_line
    if not command:
        raise BadValue("no command", "one to run", "write it behind --")
    if options.json and options.report is None:
        raise BadValue("--json without --report", "a file for the report", "standard output is the command's own")
    request = lifecycle.Request(
        instance=options.instance,
        command=command,
        lower=Lower(
            memory=option("--memory", options.memory, quantity.parse),
            thread_percentage=option("--threads", options.threads, checked_values.check_thread_percentage),
            client_priority=option("--priority", options.priority, checked_values.check_client_priority),
        ),
        prove_timeout_s=option("--prove-timeout", options.prove_timeout, _seconds),
        require_mps=options.require_mps,
        report=None if options.report is None else Path(options.report),
        quiet=options.json,
        evict=options.evict,
    )
    return lifecycle.run(world, request, dict(os.environ))
