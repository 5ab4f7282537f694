"""The verbs, their options and their exit codes.

A call adds the options of its own verb only: adding those of all takes longer than many an answer.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, Callable, NamedTuple, NoReturn, Optional, Sequence

from mpsctl.cli import output

_EXIT_CODES = """\
exit codes:
  0  done
  1  condition: this host is skipped; reconcile, remove: not brought about; drain: clients are left;
     clients: you said no; doctor: there are diagnoses; status: no instance has a file;
     bench: nothing could be measured; loopback: a result was wrong, or a way to fail did not end as it must
  2  a value or the command line is refused, nothing was changed
  3  something outside is not ready: driver, GPU, control daemon
  4  what was set does not read back in the desired state
  70 a fault of this program
  141 nobody read the answer to its end
  255 condition: it cannot be told
  bench, loopback: 128 + n after signal n, with what was measured until then
  run: the command's own, 128 + n after signal n, 126 and 127 where it cannot be started
exit codes of those that judge, by the worst of what they found:
"""


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
    """What is refused takes one line, as all errors do; the exit codes stand below every help."""

    def format_help(self) -> str:
        self.epilog = _exit_codes()
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; `{self.prog} --help` shows what there is\n")


def _exit_codes() -> str:
    from mpsctl.checks import verbs  # no other call needs them
    from mpsctl.cli import table

    head, *rows = verbs.rows()
    return _EXIT_CODES + "\n".join(f"  {line}" for line in table.lines(head, rows))


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
        added.add_argument("--json", action="store_true", help="answer as one JSON object")
        if name == asked:
            verb.add(added)
            whole.prog = added.prog  # it is the one that tells of words which the verb does not know
    return whole


def _none(parser: argparse.ArgumentParser) -> None:
    """A verb without options of its own."""


def _metrics(parser: argparse.ArgumentParser, option: str = "--by") -> None:
    parser.add_argument(option, choices=("unit", "container"), help="tell clients apart by unit or container as well")


def _health(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--metrics-directory", metavar="DIR", help="write metrics to DIR/mps.prom, for a node exporter")
    _metrics(parser, "--metrics-by")


def _reconcile(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(json=True)  # its answer is JSON in any case
    _only_check(parser)


def _name_one(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("instance", metavar="INSTANCE", help="the name behind the @ of its unit")


def _name_any(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("instances", nargs="*", metavar="INSTANCE", help="default: all that have a file in /etc/mps")


def _only_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="only say what would be done")


class _FormerFlag(argparse.Action):
    """A flag by its name in the release before, in no help text: taken with a warning on standard error."""

    def __init__(self, option_strings: Sequence[str], dest: str, now: str) -> None:
        super().__init__(option_strings, dest, nargs=0, default=False, help=argparse.SUPPRESS)
        self._now = now

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: Optional[str] = None,
    ) -> None:
        del values
        setattr(namespace, self.dest, True)
        found = f"found {option_string}, a former name that the next release no longer takes"
        output.say(f"{parser.prog}: {found}; write {self._now}", stream=sys.stderr)


def _verify(parser: argparse.ArgumentParser) -> None:
    _name_any(parser)
    parser.add_argument("--all", action="store_true", help="show what passed as well, check by check")
    through = "send a real CUDA client through each instance as well"
    parser.add_argument("--probe-client", action="store_true", dest="probe", help=through)
    for option, what in (("--only", "judge this check alone"), ("--ignore", "leave this check out")):
        parser.add_argument(option, metavar="CHECK", action="append", default=[], help=f"{what}; repeatable")
    parser.add_argument("--witness", action=_FormerFlag, now="--probe-client", dest="probe")
    parser.add_argument("--allocate", action="store_true", help="with it: try its limit, and run a small kernel")


def _env(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("instance", metavar="INSTANCE")
    parser.add_argument(
        "--hints", action="store_true", help="add, as comments, what frameworks must be told (shell, systemd)"
    )
    parser.add_argument(
        "--format",
        choices=("shell", "systemd", "docker", "json"),
        default="shell",
        help="for a shell to eval, an EnvironmentFile, arguments of docker run, or JSON (default: %(default)s)",
    )


def _clients(parser: argparse.ArgumentParser) -> None:
    _name_any(parser)
    parser.add_argument("--terminate", metavar="PID", help="end this client: by the daemon first, then its process")
    parser.add_argument("--yes", action="store_true", help="do not ask before; needed where there is no terminal")


def _control(parser: argparse.ArgumentParser) -> None:
    parser.usage = "mpsctl control [-h] [--json] [--timeout-s S] [--force] INSTANCE [COMMAND …]"
    parser.add_argument("--timeout-s", metavar="S", default="10", help="seconds for all of it (default: %(default)s)")
    parser.add_argument(
        "--force", action="store_true", help="also quit, terminate_client and shutdown_server, which end clients"
    )
    parser.add_argument("instance", metavar="INSTANCE", help="the name behind the @ of its unit")
    parser.add_argument(
        "command",
        metavar="COMMAND",
        nargs=argparse.REMAINDER,
        help="one command and its words, as get_server_list; without one, lines of standard input",
    )


def _drain(parser: argparse.ArgumentParser) -> None:
    _name_any(parser)
    parser.add_argument("--timeout", metavar="S", default="300", help="seconds to wait (default: %(default)s)")
    parser.add_argument("--terminate", action="store_true", help="end those that are left then, by the daemon first")
    parser.add_argument("--reason", metavar="TEXT", default="", help="why, for whoever finds the instance drained")
    parser.add_argument(
        "--refuse",
        action="store_true",
        help="clients that come get CUDA error 805 at once, else they wait at the front door: needed before a change of"
        " the driver, since who waits has its libraries loaded",
    )


def _remove(parser: argparse.ArgumentParser) -> None:
    _only_check(parser)
    parser.add_argument(
        "--on-clients",
        metavar="POLICY",
        default="refuse",
        help="connected clients: refuse leaves their instances as they are, wait waits for them and then refuses,"
        " terminate ends those that are left (default: %(default)s)",
    )
    parser.add_argument(
        "--drain-timeout", metavar="S", default="300", help="seconds to wait for clients (default: %(default)s)"
    )


def _place(parser: argparse.ArgumentParser, gpu: str) -> None:
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--instance", metavar="I", help="through this instance (default: the only one)")
    place.add_argument("--gpu", metavar="REF", help=gpu)


def _measure(parser: argparse.ArgumentParser) -> None:
    _place(parser, "on this GPU, by index, UUID or PCI address")
    parser.add_argument("--threads", metavar="P", action="append", default=[], help="at this percentage; repeatable")
    parser.add_argument("--force", action="store_true", help="on a busy GPU as well: figures may be too high")


def _plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--memory",
        metavar="Q",
        help="size of one process, its context included: 4G, 20%% (needed without --instance)",
    )
    parser.add_argument(
        "--instance",
        metavar="I",
        help="begin with the limits, clients and shares of this one; other options change them",
    )
    parser.add_argument("--clients", metavar="N", help="how many (default: what fits, up to 8)")
    parser.add_argument(
        "--share",
        metavar="S",
        action="append",
        default=[],
        help="clients at once of a unit, a user, or each: unit:api.service=4, user:alice=2, each-unit=1 …; repeatable",
    )
    parser.add_argument("--gpu", metavar="REF", help="a GPU of this host (default: its only kind)")
    parser.add_argument("--model-memory-mib", metavar="N", help="a GPU that is not here: its memory in MiB")
    parser.add_argument("--gpu-name", metavar="NAME", help="with it: its name as NVML has it")
    parser.add_argument("--driver", metavar="V", help="with it: the driver's version")
    parser.add_argument("--threads", metavar="P", help="thread percentage of every client")
    parser.add_argument("--latency", choices=("short", "long"), help="many short requests at once, or few long ones")
    parser.add_argument("--rates", metavar="A:B", help="request rates of mixed models, one process each: 3:1")
    parser.add_argument("--synchronous", action="store_true", help="the job trains across GPUs")
    parser.add_argument("--format", choices=("text", "vars"), default="text", help="vars: YAML variables to paste")


def _run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--instance", metavar="I", required=True)
    parser.add_argument("--memory", metavar="Q", help="memory limit on each GPU, at most the instance's")
    parser.add_argument("--threads", metavar="P", help="thread percentage, at most the instance's")
    parser.add_argument("--priority", metavar="N", help="0 (normal) or 1 (below normal)")
    parser.add_argument(
        "--prove-timeout", metavar="S", default="30", help="seconds to wait for it (default: %(default)s)"
    )
    parser.add_argument("--require-mps", action="store_true", help="exit code 4 if it never became an MPS client")
    parser.add_argument("--report", metavar="FILE", help="write what became of it as JSON; with --json only there")
    parser.add_argument("command_line", nargs=argparse.REMAINDER, metavar="-- COMMAND")


def _doctor(parser: argparse.ArgumentParser) -> None:
    _name_any(parser)
    for option, metavar, text in (
        ("--error", "X", "explain a CUDA error (805, CUDA_ERROR_…, cudaError…), a program's text, or mps"),
        ("--log", "FILE", "read a control or server log, or any pasted text; - for standard input"),
        ("--pid", "N", "why this process is no MPS client, or what is wrong with it"),
        ("--container", "FILE", "read what `docker inspect` prints, or a compose file as JSON; - for standard input"),
        ("--unit", "FILE", "read a systemd unit, a crontab or a script that runs MPS; - for standard input"),
    ):
        parser.add_argument(option, metavar=metavar, action="append", default=[], help=text)


def _bench(parser: argparse.ArgumentParser) -> None:
    _place(parser, _TEMPORARY)
    parser.add_argument(
        "--work",
        choices=("launch", "half", "compute", "memory"),
        default="launch",
        help="small kernels, kernels for half of the GPU, for all of it, or large arrays (default: %(default)s)",
    )
    parser.add_argument("--processes", metavar="N,N", help="how many at a time (default: 1,2,4,8,16)")
    parser.add_argument("--seconds", metavar="S", default="2", help="how long one run counts (default: %(default)s)")
    parser.add_argument("--rounds", metavar="N", default="3", help="how often each run is made (default: %(default)s)")
    parser.add_argument(
        "--threads", metavar="P", action="append", default=[], help="MPS at this percentage; repeatable"
    )
    parser.add_argument(
        "--memory", metavar="Q", action="append", default=[], help="MPS under this limit per process; may be repeated"
    )
    parser.add_argument("--against", metavar="DIR", help="compare with the daemon of this pipe directory as well")
    parser.add_argument("--output", metavar="DIR", help="write JSON, CSV, plots (SVG) and one HTML page there")
    parser.add_argument("--force", action="store_true", help="on a busy GPU as well: figures mean less, others suffer")
    parser.add_argument(
        "--count-lines",
        action="store_true",
        help="a request of the command is a line that it prints, not one run of it",
    )
    parser.add_argument("command_line", nargs=argparse.REMAINDER, metavar="-- COMMAND")


def _loopback(parser: argparse.ArgumentParser) -> None:
    _place(parser, _TEMPORARY)
    parser.add_argument(
        "--python", metavar="PATH", default="python3", help="a Python with torch (default: %(default)s)"
    )
    parser.add_argument("--backends", metavar="B,B", help="gloo, nccl (default: both; with --cpu gloo)")
    parser.add_argument("--steps", metavar="N", default="100", help="steps of training a run (default: %(default)s)")
    parser.add_argument(
        "--all-reduces", metavar="N", default="10000", help="all-reduces of 4 bytes a run (default: %(default)s)"
    )
    parser.add_argument("--rounds", metavar="N", default="3", help="how often each run is made (default: %(default)s)")
    parser.add_argument(
        "--timeout",
        metavar="S",
        default="30",
        help="seconds in which a rank that is left alone ends (default: %(default)s)",
    )
    parser.add_argument("--output", metavar="FILE", help="write all figures there as JSON, also on the way")
    parser.add_argument("--force", action="store_true", help="on a busy GPU as well: figures mean less, others suffer")
    parser.add_argument("--cpu", action="store_true", help="without a GPU: tries all but what MPS does")


_TEMPORARY = "on this GPU, with a daemon of our own if no instance serves it"

VERBS: dict[str, Verb] = {
    "status": Verb("what each instance is, beside what is desired of it", _name_any, "status.status"),
    "verify": Verb(
        "prove that MPS is active, check by check, and say what keeps it from being so", _verify, "verify.verify"
    ),
    "health": Verb(
        "judge every instance for a timer, and end clients without their limit where its file says so",
        _health,
        "health.health",
    ),
    "metrics": Verb("what a look counted, for Prometheus", _metrics, "metrics.metrics"),
    "gpus": Verb("the GPUs of this host under every name they have", _none, "gpus.gpus"),
    "env": Verb("what a client of an instance must export", _env, "env.env"),
    "version": Verb("the version of this program, its build, and of what it talks to", _none, "version.version"),
    "apply": Verb(
        "put the limits of an instance in force, read them back, and let clients in", _name_one, "unit.apply"
    ),
    "prepare": Verb(
        "make a host ready for the daemon of an instance (the unit's ExecStartPre)", _name_one, "unit.prepare"
    ),
    "stop": Verb(
        "drain and quit the daemon of an instance within its bound (the unit's ExecStop)", _name_one, "unit.stop"
    ),
    "release": Verb("undo what prepare did, on a real stop only (the unit's ExecStopPost)", _name_one, "unit.release"),
    "front-door": Verb(
        "serve the clients that come to the socket of an instance (mps-front-door@.service, started by its socket)",
        _name_one,
        "front_door.front_door",
    ),
    "condition": Verb("say whether this host can run MPS (the unit's ExecCondition)", _name_one, "unit.condition"),
    "reconcile": Verb(
        "bring this host into the state that a request on standard input asks for", _reconcile, "reconcile.reconcile"
    ),
    "remove": Verb(
        "take everything of ours off this host: daemons, compute modes, files, this program",
        _remove,
        "remove.remove",
    ),
    "clients": Verb(
        "who is connected to each instance, and what was left over on the GPUs", _clients, "clients.clients"
    ),
    "control": Verb("send NVIDIA's own commands to the daemon of an instance, as root", _control, "control.control"),
    "drain": Verb("let no new client into instances, and wait for those that are connected", _drain, "drain.drain"),
    "undrain": Verb(
        "let clients into drained instances again, with their limits read back", _name_any, "drain.undrain"
    ),
    "measure": Verb(
        "what a client's context and the server cost on this GPU, kept on this host", _measure, "fitting.measure"
    ),
    "plan": Verb("how many processes of a size fit on a GPU, with which limit and percentage", _plan, "fitting.plan"),
    "run": Verb("start a client with lower limits of its own, and prove that it became one", _run, "fitting.run"),
    "doctor": Verb(
        "from symptoms to causes: what this host, an error, a log or a file tells", _doctor, "doctor.doctor"
    ),
    "bench": Verb("whether sharing this GPU pays for a kind of work: MPS against time-slicing", _bench, "bench.run"),
    "loopback": Verb(
        "two ranks of a distributed torch job on one GPU: what they cost, how they fail", _loopback, "loopback.run"
    ),
}
