"""The verbs, their options and their exit codes."""

from __future__ import annotations

import argparse
import errno
import io
import json
import os
import sys
from contextlib import suppress
from typing import Any, Callable, Optional, Sequence

from mpsctl import __version__
from mpsctl.values import build
from mpsctl.values.errors import BadValue, MpsctlError, NotReady

EXIT_CODES = """\
exit codes:
  0  done; with status: everything is as wished
  1  status: something is not as wished; condition: this host is skipped; reconcile, remove: not brought about;
     health: something is amiss; drain: clients are left; doctor: there are diagnoses; loopback: a result was wrong,
     or a sad path did not hold
  2  a value or the command line is refused, nothing was changed
  3  something outside is not ready: driver, GPU, control daemon
  4  what was set does not read back as wished
  70 a fault of this program
  141 nobody read the answer to its end
  255 condition: it cannot be told
  verify: as monitoring plugins have it: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN (something cannot be looked at)
  bench, loopback: 128 + n after signal n, with what was measured until then
  run: the command's own, 128 + n after signal n, 126 and 127 where it cannot be started
"""

_FAULT = 70
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})
"""What a disk says that takes no more: with a file's name to files.write(), without one to a long answer."""
_NOBODY_READS = 141
"""As a program ends that SIGPIPE ends: what it found is not told by 0."""
_CANNOT_TELL = 255
"""systemd takes 1 to 254 of a condition for a reason to skip, and does not try a skipped unit again."""


def main(arguments: Sequence[str]) -> int:
    """Run one verb; its exit code."""
    # Closed by the caller, as `mpsctl … >&-` does; what is opened lives as long as the program.
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # a µ, or a name that is no text, where the locale has no such sign
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return _main(arguments)
    except SystemExit:  # of the parser, with its own code
        _give_up_unwritten()
        raise
    except BrokenPipeError:
        _give_up_unwritten()
        return _NOBODY_READS
    except OSError as error:  # neither an answer nor an error can be written where it belongs
        _give_up_unwritten()
        with suppress(OSError):
            print(f"mpsctl: the answer could not be written ({error.strerror})", file=sys.stderr, flush=True)
        return NotReady.exit_code


def _main(arguments: Sequence[str]) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        code: int = options.run(options)
        _flush()
        return code
    except MpsctlError as error:
        return _fail(options, str(error), error.exit_code)
    except PermissionError as error:
        return _fail(options, f"{error}; run it as root", NotReady.exit_code)
    except BrokenPipeError:
        _give_up_stdout()
        return _NOBODY_READS
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if error.errno not in _NO_ROOM:
            return _fault(options, error)
        return _fail(
            options, f"{error.filename or 'the answer'} could not be written ({error.strerror})", NotReady.exit_code
        )
    except Exception as error:
        return _fault(options, error)


def _fault(options: argparse.Namespace, error: Exception) -> int:
    """The last resort: one line and a code of its own, the trace on request."""
    if os.environ.get("MPSCTL_TRACE"):
        raise error
    return _fail(options, f"{type(error).__name__}: {error} (a fault of mpsctl; MPSCTL_TRACE=1 shows where)", _FAULT)


def _flush() -> None:
    """Let an answer that cannot be written be an error of this program, not one that Python tells as it ends.

    :raises NotReady: if standard output takes no more.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _give_up_stdout()
        raise NotReady(f"the answer could not be written to standard output ({error.strerror})") from None


def _give_up_unwritten() -> None:
    """What cannot be written of a help text is no fault that Python has to tell as it ends."""
    for stream in (one for one in (sys.stdout, sys.stderr) if one is not None):
        try:
            stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _give_up_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(options: argparse.Namespace, text: str, code: int) -> int:
    if getattr(options, "json", False):
        print(json.dumps({"error": text, "exit_code": code}))
    print(f"mpsctl {options.verb}: {text}", file=sys.stderr)
    _give_up_unwritten()
    return code if options.verb != "condition" else _CANNOT_TELL


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mpsctl",
        description="NVIDIA MPS on this host: one control daemon per instance, with limits that are in force.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    def verb(name: str, run: Callable[[argparse.Namespace], int], help_: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(
            name,
            help=help_,
            description=f"{help_[0].upper()}{help_[1:]}.",
            epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.add_argument("--json", action="store_true", help="answer as one JSON object")
        added.set_defaults(run=run)
        return added

    status = verb("status", _status, "what each instance is, beside what is wished of it")
    status.add_argument("instances", nargs="*", metavar="INSTANCE", help="default: all that have a file in /etc/mps")
    verify = verb("verify", _verify, "prove that MPS is active, check by check, and say what keeps it from being so")
    verify.add_argument("instances", nargs="*", metavar="INSTANCE", help="default: all that have a file in /etc/mps")
    verify.add_argument("--all", action="store_true", help="show what passed as well, check by check")
    verify.add_argument("--witness", action="store_true", help="send a real CUDA client through each instance as well")
    verify.add_argument("--allocate", action="store_true", help="with it: try its limit, and run a small kernel")
    verb("health", _health, "look at every active instance, and end escaped clients where its file says so")
    verb("gpus", _gpus, "the GPUs of this host under every name they have")
    env = verb("env", _env, "what a client of an instance must export")
    env.add_argument("instance", metavar="INSTANCE")
    env.add_argument(
        "--hints", action="store_true", help="add, as comments, what frameworks must be told (shell, systemd)"
    )
    env.add_argument(
        "--format",
        choices=("shell", "systemd", "docker", "json"),
        default="shell",
        help="for a shell to eval, an EnvironmentFile, arguments of docker run, or JSON (default: %(default)s)",
    )
    verb("version", _version, "the version of this program, its build, and of what it talks to")
    apply = verb("apply", _apply, "put the limits of an instance in force, read them back, and let clients in")
    _name_one(apply)
    prepare = verb("prepare", _prepare, "make a host ready for the daemon of an instance (the unit's ExecStartPre)")
    _name_one(prepare)
    stop = verb("stop", _stop, "drain and quit the daemon of an instance within its bound (the unit's ExecStop)")
    _name_one(stop)
    release = verb("release", _release, "undo what prepare did, on a real stop only (the unit's ExecStopPost)")
    _name_one(release)
    condition = verb("condition", _condition, "say whether this host can run MPS (the unit's ExecCondition)")
    _name_one(condition)
    reconcile = verb("reconcile", _reconcile, "bring this host into the state that a request on standard input wishes")
    reconcile.add_argument("--check", action="store_true", help="only say what would be done")
    remove = verb(
        "remove", _remove, "take everything of ours off this host: daemons, compute modes, files, this program"
    )
    remove.add_argument("--check", action="store_true", help="only say what would be done")
    _client_verbs(verb)
    _fitting_verbs(verb)
    _doctor_verb(verb)
    _bench_verb(verb)
    _loopback_verb(verb)
    return parser


def _client_verbs(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """Who is connected, and how they are let in, kept out and ended."""
    clients = verb("clients", _clients, "who is connected to each instance, and what was left over on the GPUs")
    clients.add_argument("instances", nargs="*", metavar="INSTANCE", help="default: all that have a file in /etc/mps")
    clients.add_argument("--terminate", metavar="PID", help="end this client: by the daemon first, then its process")
    clients.add_argument("--yes", action="store_true", help="do not ask before; needed where there is no terminal")
    drain = verb("drain", _drain, "let no new client into instances, and wait for those that are connected")
    drain.add_argument("instances", nargs="*", metavar="INSTANCE", help="default: all that have a file in /etc/mps")
    drain.add_argument("--timeout", metavar="S", default="300", help="seconds to wait (default: %(default)s)")
    drain.add_argument("--terminate", action="store_true", help="end those that are left then, by the daemon first")
    undrain = verb("undrain", _undrain, "let clients into drained instances again, with their limits read back")
    undrain.add_argument("instances", nargs="*", metavar="INSTANCE", help="default: all that have a file in /etc/mps")


def _fitting_verbs(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """What fits on a GPU, and clients with less than their instance gives."""
    measure = verb("measure", _measure, "what a client's context and the server cost on this GPU, kept on this host")
    place = measure.add_mutually_exclusive_group()
    place.add_argument("--instance", metavar="I", help="through this instance (default: the only one)")
    place.add_argument("--gpu", metavar="REF", help="on this GPU, by index, UUID or PCI address")
    measure.add_argument("--threads", metavar="P", action="append", default=[], help="at this thread percentage")
    measure.add_argument("--force", action="store_true", help="on a busy GPU as well: figures may be too high")

    plan = verb("plan", _plan, "how many processes of a size fit on a GPU, with which limit and percentage")
    plan.add_argument(
        "--memory", metavar="Q", required=True, help="size of one process, its context included: 4G, 20%%"
    )
    plan.add_argument("--clients", metavar="N", help="how many (default: what fits, up to 8)")
    plan.add_argument("--gpu", metavar="REF", help="a GPU of this host (default: its only kind)")
    plan.add_argument("--model-memory-mib", metavar="N", help="a GPU that is not here: its memory in MiB")
    plan.add_argument("--gpu-name", metavar="NAME", help="with it: its name as NVML has it")
    plan.add_argument("--driver", metavar="V", help="with it: the driver's version")
    plan.add_argument("--threads", metavar="P", help="thread percentage of every client")
    plan.add_argument("--latency", choices=("short", "long"), help="many short requests at once, or few long ones")
    plan.add_argument("--rates", metavar="A:B", help="request rates of mixed models, one process each: 3:1")
    plan.add_argument("--synchronous", action="store_true", help="the job trains across GPUs")
    plan.add_argument("--format", choices=("text", "vars"), default="text", help="vars: YAML variables to paste")

    run = verb("run", _run, "start a client with lower limits of its own, and prove that it became one")
    run.add_argument("--instance", metavar="I", required=True)
    run.add_argument("--memory", metavar="Q", help="memory limit on each GPU, at most the instance's")
    run.add_argument("--threads", metavar="P", help="thread percentage, at most the instance's")
    run.add_argument("--priority", metavar="N", help="0 (normal) or 1 (below normal)")
    run.add_argument("--prove-timeout", metavar="S", default="30", help="seconds to wait for it (default: %(default)s)")
    run.add_argument("--require-mps", action="store_true", help="exit code 4 if it never became an MPS client")
    run.add_argument("--report", metavar="FILE", help="write what became of it as JSON; with --json only there")
    run.add_argument("command_line", nargs=argparse.REMAINDER, metavar="-- COMMAND")


def _doctor_verb(verb: Callable[..., argparse.ArgumentParser]) -> None:
    added = verb("doctor", _doctor, "from symptoms to causes: what this host, an error, a log or a file tells")
    added.add_argument("instances", nargs="*", metavar="INSTANCE", help="default: all that have a file in /etc/mps")
    for option, metavar, text in (
        ("--error", "X", "explain a CUDA error (805, CUDA_ERROR_…, cudaError…), a program's text, or mps"),
        ("--log", "FILE", "read a control or server log, or any pasted text; - for standard input"),
        ("--pid", "N", "why this process is no MPS client, or what is wrong with it"),
        ("--container", "FILE", "read what `docker inspect` prints, or a compose file as JSON; - for standard input"),
        ("--unit", "FILE", "read a systemd unit, a crontab or a script that runs MPS; - for standard input"),
    ):
        added.add_argument(option, metavar=metavar, action="append", default=[], help=text)


def _name_one(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("instance", metavar="INSTANCE", help="the name behind the @ of its unit")


def _main_pid() -> Optional[int]:
    """The daemon's process as systemd hands it to the commands of a unit."""
    text = os.environ.get("MAINPID", "")
    return int(text) if text.isdigit() else None


def _print_json(data: Any) -> None:
    print(json.dumps(data, indent=2 if sys.stdout.isatty() else None, sort_keys=False))


def _status(options: argparse.Namespace) -> int:
    from mpsctl.cli import render
    from mpsctl.proofs import status
    from mpsctl.state import configuration
    from mpsctl.state.world import World

    world = World()
    names = options.instances or configuration.names(world)
    for name in options.instances:
        configuration.load(world, name)
    found = status.status_of_all(world, names)
    left_behind = [] if options.instances else status.left_behind(world, found)
    if options.json:
        _print_json({"instances": {one.instance: one.as_json() for one in found}, "findings": left_behind})
    else:
        render.status(found, world.places.configuration, left_behind)
    return 0 if found and all(one.as_wished for one in found) and not left_behind else 1


def _verify(options: argparse.Namespace) -> int:
    from mpsctl.cli import verify

    report = verify.of(_acting_world(options), options)
    if options.json:
        _print_json(report.as_json())
    else:
        verify.show(report, options.all)
    return report.exit_code


def _health(options: argparse.Namespace) -> int:
    from mpsctl.acts import health
    from mpsctl.cli import render

    found = health.health(_acting_world(options))
    if options.json:
        _print_json({"instances": {one.instance: one.as_json() for one in found}})
    else:
        render.health(found)
    return 0 if all(one.well for one in found) else 1


def _clients(options: argparse.Namespace) -> int:
    from mpsctl.cli import clients

    return clients.clients(_acting_world(options), options)


def _drain(options: argparse.Namespace) -> int:
    from mpsctl.cli import drain

    return drain.drain(_acting_world(options), options)


def _undrain(options: argparse.Namespace) -> int:
    from mpsctl.cli import drain

    return drain.undrain(_acting_world(options), options)


def _gpus(options: argparse.Namespace) -> int:
    from mpsctl.cli import render
    from mpsctl.outside import hardware
    from mpsctl.proofs import gpus
    from mpsctl.state.world import World

    found = gpus.inventory(World())
    if options.json:
        _print_json({"simulated": hardware.simulated(), "gpus": found})
    else:
        render.gpus(found, hardware.simulated())
    return 0


def _env(options: argparse.Namespace) -> int:
    from mpsctl.proofs import client_environment
    from mpsctl.state.world import World

    kind = "json" if options.json else options.format
    world = World()
    text = client_environment.render(client_environment.of(world, options.instance), kind)
    if options.hints:
        from mpsctl.cli import fitting

        text = fitting.with_hints(world, options.instance, kind, text)
    print(text)
    return 0


def _measure(options: argparse.Namespace) -> int:
    from mpsctl.cli import fitting

    return fitting.measure(_acting_world(options), options)


def _bench_verb(verb: Callable[..., argparse.ArgumentParser]) -> None:
    from mpsctl.cli import bench

    bench.add_options(
        verb("bench", _bench, "whether sharing this GPU pays for a kind of work: MPS against time-slicing")
    )


def _bench(options: argparse.Namespace) -> int:
    from mpsctl.cli import bench

    return bench.run(_acting_world(options), options)


def _loopback_verb(verb: Callable[..., argparse.ArgumentParser]) -> None:
    added = verb(
        "loopback", _loopback, "two ranks of a distributed torch job on one GPU: what they cost, how they fail"
    )
    place = added.add_mutually_exclusive_group()
    place.add_argument("--instance", metavar="I", help="through this instance (default: the only one)")
    place.add_argument("--gpu", metavar="REF", help="on this GPU, with a daemon of our own if no instance serves it")
    added.add_argument("--python", metavar="PATH", default="python3", help="that has torch (default: %(default)s)")
    added.add_argument("--backends", metavar="B,B", help="gloo, nccl (default: both; with --cpu gloo)")
    added.add_argument("--steps", metavar="N", default="100", help="of training, each run (default: %(default)s)")
    added.add_argument(
        "--all-reduces", metavar="N", default="10000", help="of 4 bytes, each run (default: %(default)s)"
    )
    added.add_argument("--rounds", metavar="N", default="3", help="of all runs (default: %(default)s)")
    added.add_argument(
        "--timeout",
        metavar="S",
        default="30",
        help="seconds in which a rank that is left alone ends (default: %(default)s)",
    )
    added.add_argument("--output", metavar="FILE", help="write all figures there as JSON, also on the way")
    added.add_argument("--force", action="store_true", help="on a busy GPU as well: figures mean less, others suffer")
    added.add_argument("--cpu", action="store_true", help="without a GPU: tries all but what MPS does")


def _loopback(options: argparse.Namespace) -> int:
    from mpsctl.cli import loopback

    return loopback.run(_acting_world(options), options)


def _plan(options: argparse.Namespace) -> int:
    from mpsctl.cli import fitting

    return fitting.plan(_acting_world(options), options)


def _run(options: argparse.Namespace) -> int:
    from mpsctl.cli import fitting

    return fitting.run(_acting_world(options), options)


def _doctor(options: argparse.Namespace) -> int:
    from mpsctl.cli import doctor

    return doctor.doctor(_acting_world(options), options)


def _version(options: argparse.Namespace) -> int:
    from mpsctl.outside import hardware

    known = {
        "version": __version__,
        "build": build.ID,
        "python": sys.version.split()[0],
        "driver": hardware.driver_version(),
        "simulated": hardware.simulated(),
        "control_daemon": str(hardware.binary(hardware.CONTROL_DAEMON) or "") or None,
    }
    if options.json:
        _print_json(known)
    else:
        print(f"mpsctl {known['version']} (build {known['build']}, Python {known['python']})")
        print(f"driver: {known['driver'] or 'not loaded'}{' (simulated)' if known['simulated'] else ''}")
        print(f"control daemon: {known['control_daemon'] or 'not installed'}")
    return 0


def _apply(options: argparse.Namespace) -> int:
    from mpsctl.acts import apply
    from mpsctl.state import drains

    world = _acting_world(options)
    changes = apply.apply(world, options.instance, _main_pid())
    if options.json:
        _print_json({"instance": options.instance, "changes": changes})
    else:
        for change in changes:
            print(change)
        drained = drains.read(world, options.instance)
        gate = f"drained since {drained.since}" if drained else "clients may connect"
        print(f"{options.instance}: limits in force and read back, {gate}")
    return 0


def _prepare(options: argparse.Namespace) -> int:
    from mpsctl.acts import prepare

    world = _acting_world(options)
    _keep_bytecode(world)
    environment = prepare.prepare(world, options.instance)
    if options.json:
        _print_json({"pipe_directory": str(environment.pipe_directory), "devices": environment.devices})
    return 0


def _stop(options: argparse.Namespace) -> int:
    from mpsctl.acts import stop

    gone = stop.stop(_acting_world(options), options.instance, _main_pid())
    if options.json:
        _print_json({"instance": options.instance, "gone": gone})
    return 0 if gone else 4


def _release(options: argparse.Namespace) -> int:
    from mpsctl.acts import stop

    stop.release(_acting_world(options), options.instance)
    if options.json:
        _print_json({"instance": options.instance})
    return 0


def _condition(options: argparse.Namespace) -> int:
    from mpsctl.acts import prepare

    why = prepare.condition(_acting_world(options), options.instance)
    if options.json:
        _print_json({"instance": options.instance, "skipped": why})
    elif why:
        print(f"skipped: {why}")
    return 1 if why else 0


def _reconcile(options: argparse.Namespace) -> int:
    from mpsctl.acts import reconcile

    try:
        wanted = json.load(sys.stdin) if sys.stdin is not None else {}
    except (ValueError, RecursionError) as error:
        raise BadValue(f"no JSON ({error})", "a request on standard input", "see docs/reconcile.md") from None
    if isinstance(wanted, dict) and wanted.get("build") not in (None, build.ID):
        # The courier then sends the program it wants and asks that one.
        _print_json({"format": 1, "program_differs": True, "build": build.ID})
        return 0
    options.json = True
    world = _acting_world(options)
    request = reconcile.Request.from_json(wanted)
    answer = reconcile.reconcile(world, request, options.check, reconcile.own_file())
    _print_json({"program_differs": False, **answer.as_json()})
    held_back = answer.pending and not options.check
    return 1 if answer.error or answer.refused or answer.missing or held_back else 0


def _remove(options: argparse.Namespace) -> int:
    from mpsctl.acts import remove

    answer = remove.remove(_acting_world(options), options.check)
    if options.json:
        _print_json(answer.as_json())
    else:
        for line in [*answer.actions, *(f"warning: {warning}" for warning in answer.warnings)]:
            print(f"would {line}" if options.check and line in answer.actions else line)
        if answer.error:
            print(f"mpsctl remove: {answer.error}", file=sys.stderr)
        elif not answer.changed:
            print("nothing of ours is on this host")
    return 1 if answer.error else 0


def _keep_bytecode(world: Any) -> None:
    from mpsctl.outside import bytecode

    bytecode.keep(world.places)


def _acting_world(options: argparse.Namespace) -> Any:
    """The world, with what is said on the way going to standard error where standard output is JSON."""
    from mpsctl.state.world import World

    stream = sys.stderr if options.json else sys.stdout

    def say(text: str) -> None:
        with suppress(OSError):  # nobody listens any more: what was begun is brought to its end all the same
            print(text, file=stream, flush=True)

    return World(say=say)
