"""The options of each verb: a function that adds them to the verb's parser."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Optional, Sequence

from mpsctl.cli import output

_TEMPORARY = "on this GPU, with a daemon of our own if no instance serves it"


def none(parser: argparse.ArgumentParser) -> None:
    """A verb without options of its own."""


def metrics(parser: argparse.ArgumentParser, option: str = "--by") -> None:
    parser.add_argument(option, choices=("unit", "container"), help="tell clients apart by unit or container as well")


def health(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--metrics-directory", metavar="DIR", help="write metrics to DIR/mps.prom, for a node exporter")
    metrics(parser, "--metrics-by")


def reconcile(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(json=True)  # its answer is JSON in any case
    only_check(parser)


def name_one(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("instance", metavar="INSTANCE", help="the name behind the @ of its unit")


def name_any(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("instances", nargs="*", metavar="INSTANCE", help="default: all that have a file in /etc/mps")


def only_check(parser: argparse.ArgumentParser) -> None:
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


def verify(parser: argparse.ArgumentParser) -> None:
    name_any(parser)
    parser.add_argument("--all", action="store_true", help="show what passed as well, check by check")
    parser.add_argument(
        "--probe-client",
        action="store_true",
        dest="probe",
        help="send a real CUDA client through each instance as well",
    )
    for option, what in (("--only", "judge this check alone"), ("--ignore", "leave this check out")):
        parser.add_argument(option, metavar="CHECK", action="append", default=[], help=f"{what}; repeatable")
    parser.add_argument("--witness", action=_FormerFlag, now="--probe-client", dest="probe")
    parser.add_argument("--allocate", action="store_true", help="with it: try its limit, and run a small kernel")


def _name_or_gpu(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("instance", metavar="INSTANCE", nargs="?", help="the name behind the @ of its unit")
    parser.add_argument("--gpu", metavar="REF", help="the instance that serves this GPU, by index, UUID or PCI address")


def ready(parser: argparse.ArgumentParser) -> None:
    _name_or_gpu(parser)
    parser.add_argument("--wait", metavar="S", help="wait so many seconds at most until it is so")


def env(parser: argparse.ArgumentParser) -> None:
    _name_or_gpu(parser)
    parser.add_argument(
        "--hints", action="store_true", help="add, as comments, what frameworks must be told (shell, systemd)"
    )
    parser.add_argument(
        "--format",
        choices=("shell", "systemd", "docker", "podman", "cdi", "compose", "quadlet", "json"),
        default="shell",
        help="for a shell to eval, an EnvironmentFile, options of docker run or podman run, of both by CDI, a compose"
        " file to extend, a drop-in of a quadlet, or JSON (default: %(default)s)",
    )


def clients(parser: argparse.ArgumentParser) -> None:
    name_any(parser)
    parser.add_argument("--terminate", metavar="PID", help="end this client: by the daemon first, then its process")
    parser.add_argument("--yes", action="store_true", help="do not ask before; needed where there is no terminal")


def evict(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--unit", metavar="UNIT", help="all processes of this unit, as api.service or job@7.service")
    what.add_argument("--container", metavar="ID", help="all processes of this container, by its id")
    what.add_argument("--pid", metavar="PID", help="this process and all that it started")
    parser.add_argument("--user", metavar="USER", help="with --unit: it is one of this user's own manager")
    parser.add_argument(
        "--end",
        action="store_true",
        help="then end all its processes: SIGTERM, and SIGKILL in the last 3 seconds; new clients are taken off first",
    )
    parser.add_argument("--timeout", metavar="S", default="10", help="seconds for all of it (default: %(default)s)")


def control(parser: argparse.ArgumentParser) -> None:
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


def drain(parser: argparse.ArgumentParser) -> None:
    name_any(parser)
    parser.add_argument("--timeout", metavar="S", default="300", help="seconds to wait (default: %(default)s)")
    parser.add_argument("--terminate", action="store_true", help="end those that are left then, by the daemon first")
    parser.add_argument("--reason", metavar="TEXT", default="", help="why, for whoever finds the instance drained")
    parser.add_argument(
        "--refuse",
        action="store_true",
        help="clients that come get CUDA error 805 at once, else they wait at the front door: needed before a change of"
        " the driver, since who waits has its libraries loaded",
    )


def slurm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "step",
        choices=("prolog", "epilog", "task-prolog", "check"),
        metavar="STEP",
        help="prolog, epilog (root's) and task-prolog (the user's), as slurm.conf names them; check: whether it does",
    )
    parser.add_argument("--node", metavar="NAME", help="with check: this node's name in Slurm (default: the host's)")
    parser.add_argument(
        "--own-scripts",
        action="store_true",
        help="with check: Prolog=, Epilog= and TaskProlog= are the site's own, and run ours",
    )


def remove(parser: argparse.ArgumentParser) -> None:
    only_check(parser)
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


def measure(parser: argparse.ArgumentParser) -> None:
    _place(parser, "on this GPU, by index, UUID or PCI address")
    parser.add_argument(
        "--threads", metavar="P", action="append", default=[], help="at this percentage; may be repeated"
    )
    parser.add_argument("--force", action="store_true", help="on a busy GPU as well: figures may be too high")


def plan(parser: argparse.ArgumentParser) -> None:
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


def run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--instance", metavar="I", required=True)
    parser.add_argument("--memory", metavar="Q", help="memory limit on each GPU, at most the instance's")
    parser.add_argument("--threads", metavar="P", help="thread percentage, at most the instance's")
    parser.add_argument("--priority", metavar="N", help="0 (normal) or 1 (below normal)")
    parser.add_argument(
        "--prove-timeout", metavar="S", default="30", help="seconds to wait for it (default: %(default)s)"
    )
    parser.add_argument("--require-mps", action="store_true", help="exit code 4 if it never became an MPS client")
    parser.add_argument(
        "--evict",
        action="store_true",
        help="pass SIGTERM, SIGHUP and SIGQUIT on after the daemon has taken its clients off (as root)",
    )
    parser.add_argument("--report", metavar="FILE", help="write what became of it as JSON; with --json only there")
    parser.add_argument("command_line", nargs=argparse.REMAINDER, metavar="-- COMMAND")


def doctor(parser: argparse.ArgumentParser) -> None:
    name_any(parser)
    for option, metavar, text in (
        ("--error", "X", "explain a CUDA error (805, CUDA_ERROR_…, cudaError…), a program's text, or mps"),
        ("--log", "FILE", "read a control or server log, or any pasted text; - for standard input"),
        ("--pid", "N", "why this process is no MPS client, or what is wrong with it"),
        ("--container", "FILE", "read what `docker inspect` prints, or a compose file as JSON; - for standard input"),
        ("--unit", "FILE", "read a systemd unit, a crontab or a script that runs MPS; - for standard input"),
    ):
        parser.add_argument(option, metavar=metavar, action="append", default=[], help=text)


def bench(parser: argparse.ArgumentParser) -> None:
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
        "--threads", metavar="P", action="append", default=[], help="MPS at this thread percentage; may be repeated"
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


def loopback(parser: argparse.ArgumentParser) -> None:
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


def completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"), help="for which shell")


def top(parser: argparse.ArgumentParser) -> None:
    name_any(parser)
    parser.add_argument(
        "--interval", metavar="S", default="2", help="seconds from one look to the next (default: %(default)s)"
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="one look as text, as where standard output is no terminal or with --json",
    )
