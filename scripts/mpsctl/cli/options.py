"""The verbs and the parser of a command line.

A call adds the options of its own verb only: adding those of all takes longer than many an answer.
"""

from __future__ import annotations

import argparse
import os
from typing import Any, Callable, NamedTuple, NoReturn, Optional

from mpsctl.cli import arguments


class Verb(NamedTuple):
    """``help`` is a line; ``add`` adds the options to the verb's parser; ``runs`` is module.function in this folder."""

    help: str
    add: Callable[[argparse.ArgumentParser], None]
    runs: str


class _Help(argparse.RawDescriptionHelpFormatter):
    """As argparse's own, which imports shutil and four compressors to learn how wide a terminal is."""

    def __init__(self, prog: str, **more: Any) -> None:
        super().__init__(prog, **{"width": _columns() - 2, **more})


class _Parser(argparse.ArgumentParser):
    """What is refused takes one line, as all errors do. Below the help of a verb stand its own exit codes."""

    verb: Optional[str] = None

    def format_help(self) -> str:
        from mpsctl.cli import exit_codes  # no other call needs them

        self.epilog = exit_codes.text(self.verb, _columns() - 2)
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; `{self.prog} --help` shows what there is\n")


def _columns() -> int:
    text = os.environ.get("COLUMNS", "")
    if text.isdigit() and int(text):
        return int(text)
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:
        return 80


def parser(asked: Optional[str]) -> argparse.ArgumentParser:
    """The parser for a command line whose first word is ``asked``."""
    whole = _Parser(
        prog="mpsctl",
        description="NVIDIA MPS on this host: one control daemon per instance, with limits that are in force.",
        formatter_class=_Help,
    )
    whole.add_argument("--version", action="store_true", help="as the verb version does")
    verbs = whole.add_subparsers(dest="verb", metavar="VERB", required=True, prog="mpsctl")
    for name in [asked] if asked in VERBS else VERBS:
        assert name is not None
        verb = VERBS[name]
        added = verbs.add_parser(
            name,
            help=verb.help,
            description=f"{verb.help[0].upper()}{verb.help[1:]}.",
            formatter_class=_Help,
        )
        added.verb = name
        added.add_argument("--json", action="store_true", help="answer as one JSON object")
        if name == asked:
            verb.add(added)
            whole.prog = added.prog  # it is the one that tells of words which the verb does not know
    return whole


VERBS: dict[str, Verb] = {
    "status": Verb("what each instance is, beside what is desired of it", arguments.name_any, "status.status"),
    "top": Verb(
        "a live view for a terminal: each instance with its state, memory and limits, and its clients",
        arguments.top,
        "top.top",
    ),
    "verify": Verb(
        "prove that MPS is active, check by check, and say what keeps it from being so",
        arguments.verify,
        "verify.verify",
    ),
    "health": Verb(
        "judge every instance for a timer, and end clients without their limit where its file says so",
        arguments.health,
        "health.health",
    ),
    "metrics": Verb("what a look counted, for Prometheus", arguments.metrics, "metrics.metrics"),
    "gpus": Verb("the GPUs of this host under every name they have", arguments.none, "gpus.gpus"),
    "ready": Verb(
        "whether a client of this user would come in at an instance now, else why not", arguments.ready, "ready.ready"
    ),
    "env": Verb("what a client of an instance must export", arguments.env, "env.env"),
    "version": Verb(
        "the version of this program, its build, and of what it talks to", arguments.none, "version.version"
    ),
    "man": Verb("the manual page of this program: `mpsctl man | man -l -`", arguments.none, "man.man"),
    "completion": Verb(
        "what a shell needs to complete verbs, options and instances: `source <(mpsctl completion bash)`",
        arguments.completion,
        "completion.completion",
    ),
    "apply": Verb(
        "put the limits of an instance in force, read them back, and let clients in", arguments.name_one, "unit.apply"
    ),
    "prepare": Verb(
        "make a host ready for the daemon of an instance (the unit's ExecStartPre)", arguments.name_one, "unit.prepare"
    ),
    "stop": Verb(
        "drain and quit the daemon of an instance within its bound (the unit's ExecStop)",
        arguments.name_one,
        "unit.stop",
    ),
    "release": Verb(
        "undo what prepare did, on a real stop only (the unit's ExecStopPost)", arguments.name_one, "unit.release"
    ),
    "front-door": Verb(
        "serve the clients that come to the socket of an instance (mps-front-door@.service, started by its socket)",
        arguments.name_one,
        "front_door.front_door",
    ),
    "condition": Verb(
        "say whether this host can run MPS (the unit's ExecCondition)", arguments.name_one, "unit.condition"
    ),
    "reconcile": Verb(
        "bring this host into the state that a request on standard input asks for",
        arguments.reconcile,
        "reconcile.reconcile",
    ),
    "remove": Verb(
        "take everything of ours off this host: daemons, compute modes, files, this program",
        arguments.remove,
        "remove.remove",
    ),
    "clients": Verb(
        "who is connected to each instance, and what was left over on the GPUs", arguments.clients, "clients.clients"
    ),
    "evict": Verb(
        "take all clients of a unit, a container or a process off their GPUs, before anybody ends them",
        arguments.evict,
        "evict.evict",
    ),
    "control": Verb(
        "send NVIDIA's own commands to the daemon of an instance, as root", arguments.control, "control.control"
    ),
    "drain": Verb(
        "let no new client into instances, and wait for those that are connected", arguments.drain, "drain.drain"
    ),
    "undrain": Verb(
        "let clients into drained instances again, with their limits read back", arguments.name_any, "drain.undrain"
    ),
    "slurm": Verb(
        "give a Slurm job its share of the instance of its GPU, and end what it leaves (Prolog, Epilog, TaskProlog)",
        arguments.slurm,
        "slurm.slurm",
    ),
    "measure": Verb(
        "what a client's context and the server cost on this GPU, kept on this host",
        arguments.measure,
        "fitting.measure",
    ),
    "plan": Verb(
        "how many processes of a size fit on a GPU, with which limit and percentage", arguments.plan, "fitting.plan"
    ),
    "run": Verb(
        "start a client with lower limits of its own, and prove that it became one", arguments.run, "fitting.run"
    ),
    "doctor": Verb(
        "from symptoms to causes: what this host, an error, a log or a file tells", arguments.doctor, "doctor.doctor"
    ),
    "bench": Verb(
        "whether sharing this GPU pays for a kind of work: MPS against time-slicing", arguments.bench, "bench.run"
    ),
    "loopback": Verb(
        "two ranks of a distributed torch job on one GPU: what they cost, how they fail",
        arguments.loopback,
        "loopback.run",
    ),
}
