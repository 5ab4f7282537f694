"""What each verb does, and what becomes of errors on the way."""

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
from mpsctl.cli import output
from mpsctl.cli.options import parser
from mpsctl.model import build, foreign
from mpsctl.model.errors import BadValue, MpsctlError, NotReady

_FAULT = 70
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})
"""What a disk says that takes no more: with a file's name to files.write(), without one to a long answer."""
_MOST_OF_ERROR = 4000
"""An error may name every instance of a host."""
_NOBODY_READS = 141
"""As a program ends that SIGPIPE ends: what it found is not told by 0."""
_CANNOT_TELL = 255
"""systemd takes 1 to 254 of a condition for a reason to skip, and does not try a skipped unit again."""


def main(arguments: Sequence[str]) -> int:
    """Run one verb; its exit code."""
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed by the caller, as `mpsctl … >&-` does
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115 (it lives as long as the program)
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
            output.say(f"mpsctl: the answer could not be written ({error.strerror})", stream=sys.stderr)
        return NotReady.exit_code


def _main(arguments: Sequence[str]) -> int:
    options = parser(arguments[0] if arguments else None).parse_args(arguments)
    try:
        code = _RUN[options.verb](options)
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
        output.say_json({"error": foreign.shown(text, _MOST_OF_ERROR), "exit_code": code})
    output.say(f"mpsctl {options.verb}: {foreign.shown(text, _MOST_OF_ERROR)}", stream=sys.stderr)
    _give_up_unwritten()
    return code if options.verb != "condition" else _CANNOT_TELL


def _main_pid() -> Optional[int]:
    """The daemon's process as systemd hands it to the commands of a unit."""
    text = os.environ.get("MAINPID", "")
    return int(text) if text.isdigit() else None


def _status(options: argparse.Namespace) -> int:
    from mpsctl.cli import render
    from mpsctl.observe import status
    from mpsctl.store import configuration
    from mpsctl.store.world import World

    world = World()
    names = options.instances or configuration.names(world)
    for name in options.instances:
        configuration.load(world, name)
    found = status.status_of_all(world, names)
    left_behind = [] if options.instances else status.left_behind(world, found)
    if options.json:
        output.say_json({"instances": {one.instance: one.as_json() for one in found}, "findings": left_behind})
    else:
        render.status(found, world.places.configuration, left_behind)
    return 0 if found and all(one.as_desired for one in found) and not left_behind else 1


def _verify(options: argparse.Namespace) -> int:
    from mpsctl.cli import verify

    report = verify.of(_acting_world(options), options)
    if options.json:
        output.say_json(report.as_json())
    else:
        verify.show(report, options.all)
    return report.exit_code


def _health(options: argparse.Namespace) -> int:
    from mpsctl.cli import render
    from mpsctl.lifecycle import health

    found = health.health(_acting_world(options))
    if options.json:
        output.say_json({"instances": {one.instance: one.as_json() for one in found}})
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
    from mpsctl.adapters import hardware
    from mpsctl.cli import render
    from mpsctl.observe import gpus
    from mpsctl.store.world import World

    found = gpus.inventory(World())
    if options.json:
        output.say_json({"simulated": hardware.simulated(), "gpus": found})
    else:
        render.gpus(found, hardware.simulated())
    return 0


def _env(options: argparse.Namespace) -> int:
    from mpsctl.observe import client_environment
    from mpsctl.store.world import World

    kind = "json" if options.json else options.format
    world = World()
    text = client_environment.render(client_environment.of(world, options.instance), kind)
    if options.hints:
        from mpsctl.cli import fitting

        text = fitting.with_hints(world, options.instance, kind, text)
    output.say_lines(text)
    return 0


def _measure(options: argparse.Namespace) -> int:
    from mpsctl.cli import fitting

    return fitting.measure(_acting_world(options), options)


def _bench(options: argparse.Namespace) -> int:
    from mpsctl.cli import bench

    return bench.run(_acting_world(options), options)


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
    from mpsctl.adapters import hardware

    known = {
        "version": __version__,
        "build": build.ID,
        "python": sys.version.split()[0],
        "driver": hardware.driver_version(),
        "simulated": hardware.simulated(),
        "control_daemon": str(hardware.binary(hardware.CONTROL_DAEMON) or "") or None,
    }
    if options.json:
        output.say_json(known)
    else:
        output.say(f"mpsctl {known['version']} (build {known['build']}, Python {known['python']})")
        output.say(f"driver: {known['driver'] or 'not loaded'}{' (simulated)' if known['simulated'] else ''}")
        output.say(f"control daemon: {known['control_daemon'] or 'not installed'}")
    return 0


def _apply(options: argparse.Namespace) -> int:
    from mpsctl.lifecycle import apply
    from mpsctl.store import drains

    world = _acting_world(options)
    changes = apply.apply(world, options.instance, _main_pid())
    if options.json:
        output.say_json({"instance": options.instance, "changes": changes})
    else:
        for change in changes:
            output.say(change)
        drained = drains.read(world, options.instance)
        door = f"drained since {drained.since}" if drained else "clients may connect"
        output.say(f"{options.instance}: limits in force and read back, {door}")
    return 0


def _prepare(options: argparse.Namespace) -> int:
    from mpsctl.lifecycle import prepare

    world = _acting_world(options)
    _keep_bytecode(world)
    environment = prepare.prepare(world, options.instance)
    if options.json:
        output.say_json({"pipe_directory": str(environment.pipe_directory), "devices": environment.devices})
    return 0


def _stop(options: argparse.Namespace) -> int:
    from mpsctl.lifecycle import stop

    gone = stop.stop(_acting_world(options), options.instance, _main_pid())
    if options.json:
        output.say_json({"instance": options.instance, "gone": gone})
    return 0 if gone else 4


def _release(options: argparse.Namespace) -> int:
    from mpsctl.lifecycle import stop

    stop.release(_acting_world(options), options.instance)
    if options.json:
        output.say_json({"instance": options.instance})
    return 0


def _condition(options: argparse.Namespace) -> int:
    from mpsctl.lifecycle import prepare

    why = prepare.condition(_acting_world(options), options.instance)
    if options.json:
        output.say_json({"instance": options.instance, "skipped": why})
    elif why:
        output.say(f"skipped: {why}")
    return 1 if why else 0


def _reconcile(options: argparse.Namespace) -> int:
    from mpsctl.converge import reconcile

    try:
        wanted = json.load(sys.stdin) if sys.stdin is not None else {}
    except (ValueError, RecursionError) as error:
        raise BadValue(f"no JSON ({error})", "a request on standard input", "see docs/reconcile.md") from None
    if isinstance(wanted, dict) and wanted.get("build") not in (None, build.ID):
        # The transport then sends the program it wants and asks that one.
        output.say_json({"format": 1, "program_differs": True, "build": build.ID})
        return 0
    options.json = True
    world = _acting_world(options)
    request = reconcile.Request.from_json(wanted)
    answer = reconcile.reconcile(world, request, options.check, reconcile.own_file())
    output.say_json({"program_differs": False, **answer.as_json()})
    deferred = answer.pending and not options.check
    return 1 if answer.error or answer.refused or answer.missing or deferred else 0


def _remove(options: argparse.Namespace) -> int:
    from mpsctl.converge import remove

    answer = remove.remove(_acting_world(options), options.check)
    if options.json:
        output.say_json(answer.as_json())
    else:
        for line in [*answer.actions, *(f"warning: {warning}" for warning in answer.warnings)]:
            output.say(f"would {line}" if options.check and line in answer.actions else line)
        if answer.error:
            output.say(f"mpsctl remove: {answer.error}", stream=sys.stderr)
        elif not answer.changed:
            output.say("nothing of ours is on this host")
    return 1 if answer.error else 0


def _keep_bytecode(world: Any) -> None:
    from mpsctl.adapters import bytecode

    bytecode.keep(world.places)


def _acting_world(options: argparse.Namespace) -> Any:
    """The world, with what is said on the way going to standard error where standard output is JSON."""
    from mpsctl.store.world import World

    stream = sys.stderr if options.json else sys.stdout

    def say(text: str) -> None:
        with suppress(OSError):  # nobody listens any more: what was begun is brought to its end all the same
            output.say(text, stream=stream)
            stream.flush()

    return World(say=say)


_RUN: dict[str, Callable[[argparse.Namespace], int]] = {
    "status": _status,
    "verify": _verify,
    "health": _health,
    "gpus": _gpus,
    "env": _env,
    "version": _version,
    "apply": _apply,
    "prepare": _prepare,
    "stop": _stop,
    "release": _release,
    "condition": _condition,
    "reconcile": _reconcile,
    "remove": _remove,
    "clients": _clients,
    "drain": _drain,
    "undrain": _undrain,
    "measure": _measure,
    "plan": _plan,
    "run": _run,
    "doctor": _doctor,
    "bench": _bench,
    "loopback": _loopback,
}
