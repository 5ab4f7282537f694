"""From a command line to its verb, and what becomes of errors on the way."""

from __future__ import annotations

import argparse
import io
import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Callable, NoReturn, Sequence, cast

from mpsctl.cli import output
from mpsctl.cli.options import VERBS, parser
from mpsctl.model import foreign
from mpsctl.model.errors import FAULT, INTERRUPTED, NO_ROOM, NOBODY_READS, MpsctlError, NotReady, one_line

if TYPE_CHECKING:  # read when a verb is run
    from mpsctl.store.world import World

_MOST_OF_ERROR = 4000
"""An error may name every instance of a host."""


def run(arguments: Sequence[str]) -> NoReturn:
    """Run one verb and end with its exit code.

    What Python tidies up at its end takes as long as a look at the GPUs, and the kernel does it all the same.
    """
    code = main(arguments)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # told by main where it matters
            stream.flush()
    os._exit(code)


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
        return NOBODY_READS
    except OSError as error:  # neither an answer nor an error can be written where it belongs
        _give_up_unwritten()
        with suppress(OSError):
            output.say(f"mpsctl: the answer could not be written ({error.strerror})", stream=sys.stderr)
        return NotReady.exit_code


def _main(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] == "--version":
        arguments = ["version", *arguments[1:]]
    options = parser(arguments[0] if arguments else None).parse_args(arguments)
    try:
        code = function_of(options.verb)(world_of(options), options)
        _flush()
        return code
    except MpsctlError as error:
        return _fail(options, str(error), error.exit_code)
    except PermissionError as error:
        return _fail(options, f"{error}; run it as root", NotReady.exit_code)
    except BrokenPipeError:
        _give_up_stdout()
        return NOBODY_READS
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        if error.errno not in NO_ROOM:
            return _fault(options, error)
        return _fail(options, one_line(error, unnamed="the answer"), NotReady.exit_code)
    except Exception as error:
        return _fault(options, error)


def function_of(verb: str) -> Callable[[World, argparse.Namespace], int]:
    """What runs a verb: it takes the world and the options, and returns the exit code.

    Its module is imported here and no earlier: a call pays for its own verb alone.
    """
    module, _, name = VERBS[verb].runs.partition(".")
    return cast("Callable[[World, argparse.Namespace], int]", getattr(import_module(f"mpsctl.cli.{module}"), name))


def world_of(options: argparse.Namespace) -> World:
    """The world, with what is said on the way going to standard error where standard output is JSON."""
    from mpsctl.store.world import World

    stream = sys.stderr if options.json else sys.stdout

    def say(text: str) -> None:
        with suppress(OSError):  # nobody listens any more: what was begun is brought to its end all the same
            output.say(text, stream=stream)
            stream.flush()

    return World(say=say)


def _fault(options: argparse.Namespace, error: Exception) -> int:
    """The last resort: one line and a code of its own, the trace on request."""
    if os.environ.get("MPSCTL_TRACE"):
        raise error
    return _fail(options, f"{type(error).__name__}: {error} (a fault of mpsctl; MPSCTL_TRACE=1 shows where)", FAULT)


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
    return code
