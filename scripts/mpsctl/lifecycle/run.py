"""Starting one client of an instance in the foreground, and proving that it became one.

The command is a child in our own process group: the terminal's signals reach it by themselves, what is sent to
us alone is passed on, and its exit code becomes ours (128 + n after signal n, as shells have it). With ``evict`` a
signal that ends a process by default is passed on after the daemon has taken the command's clients off.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

from mpsctl.adapters import files, trusted
from mpsctl.adapters.nvml import Nvml
from mpsctl.checks import became_client
from mpsctl.lifecycle import evict
from mpsctl.lifecycle.whose_processes import OfProcess
from mpsctl.model import foreign, run_environment
from mpsctl.model.errors import BadValue, MpsctlError, NotReady, Unreadable
from mpsctl.model.gpu import Device
from mpsctl.model.instance import Instance
from mpsctl.model.run_environment import Lower, RunEnvironment
from mpsctl.observe.client_watch import Watch
from mpsctl.store import configuration, fitting
from mpsctl.store.world import World

NEVER_A_CLIENT = 4
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Those of them that end a process in the middle of its kernel, if it does nothing about them. Python's own handler of
SIGINT waits for the kernel."""
_FROM_KERNEL = 0x80
"""si_code of a signal that the terminal sent: the child, in the same group, has it already (sigaction(2))."""
_FIRST_POLL_S, _LONGEST_POLL_S, _LATE_POLL_S = 0.02, 0.5, 2.0
_DAEMON_EVERY_S = 1.0


@dataclass
class Report:
    """What became of the command."""

    instance: str
    command: list[str]
    given: dict[str, str]
    dropped: list[str]
    warnings: list[str]
    pid: Optional[int] = None
    became_client: bool = False
    client_pid: Optional[int] = None
    seen_by: Optional[str] = None
    why_not: Optional[str] = None
    exit_code: Optional[int] = None
    lines: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "lines"}


@dataclass(frozen=True)
class Request:
    """What is to be run. ``report`` takes the report as JSON; ``quiet`` keeps it off standard error. ``evict``: its end
    by a signal is to spare its neighbours, for root."""

    instance: str
    command: Sequence[str]
    lower: Lower = field(default_factory=Lower)
    prove_timeout_s: float = 30
    require_mps: bool = False
    report: Optional[Path] = None
    quiet: bool = False
    evict: bool = False


def run(world: World, request: Request, inherited: Mapping[str, str]) -> int:
    """Run the command to its end; the exit code.

    :raises BadValue: before anything is started, if a value is above the instance's or could not work.
    :raises NotReady: if NVML does not answer, or ``evict`` is asked for by others than root.
    """
    if request.evict and os.geteuid() != 0:
        raise NotReady("the daemons take clients off for root alone; run it as root, or leave --evict out")
    instance = configuration.load(world, request.instance)
    with world.nvml() as nvml:
        devices = configuration.resolve(instance, nvml.gpus())
        driver = nvml.driver_version()
    _refuse_other_devices(world, instance, devices)
    if request.report is not None and not files.can_replace(request.report.absolute()):
        raise BadValue(f"--report {request.report}", "a file in a folder that can be written", "name another")
    if request.report is not None:
        trusted.require(request.report.absolute().parent)
    environment = run_environment.build(inherited, instance, devices, request.lower)
    environment.warnings += _refuse_what_cannot_fit(world, instance, devices, driver, request.lower)
    report = Report(instance.name, list(request.command), environment.given, environment.dropped, environment.warnings)
    for warning in environment.warnings:
        _say(request, report, warning)
    if environment.dropped:
        _say(request, report, f"not passed on: {foreign.shown(', '.join(environment.dropped))}")
    code = _in_foreground(world, request, instance, devices, environment, report)
    report.exit_code = code
    if request.require_mps and not report.became_client and code not in (_NOT_FOUND, _NOT_EXECUTABLE):
        report.exit_code = NEVER_A_CLIENT
    if request.report is not None:
        try:
            files.write(request.report.absolute(), json.dumps(report.as_json(), indent=1) + "\n", lasting=False)
        except (OSError, MpsctlError) as error:  # the command has run: its exit code is not lost for a report
            print(foreign.line(f"mpsctl run: no report: {error}"), file=sys.stderr)
    return report.exit_code


def _say(request: Request, report: Report, text: str) -> None:
    report.lines.append(text)
    if not request.quiet:
        print(foreign.line(f"mpsctl run: {text}"), file=sys.stderr, flush=True)


def _refuse_other_devices(world: World, instance: Instance, devices: Sequence[Device]) -> None:
    """While a restart is deferred, the daemon serves other GPUs than the file says: a client would see none."""
    try:
        text = files.read_text(world.places.runtime(instance.name) / "daemon.env") or ""
    except Unreadable:
        return
    served = [line.partition("=")[2] for line in text.splitlines() if line.startswith("CUDA_VISIBLE_DEVICES=")]
    desired = ",".join(device.uuid for device in devices)
    if served and served != [desired]:
        raise BadValue(
            f"a daemon that serves {served[0]}",
            f"{desired}, as {world.places.conf(instance.name)} says",
            f"restart {instance.unit} when its clients have ended",
        )


def _refuse_what_cannot_fit(
    world: World, instance: Instance, devices: Sequence[Device], driver: str, lower: Lower
) -> list[str]:
    """A limit with which no client starts, or that no client can use; warnings where that is not known for this GPU."""
    if lower.memory is None:
        return []
    percentage = instance.thread_percentage if lower.thread_percentage is None else lower.thread_percentage
    warnings: list[str] = []
    for verdict in fitting.judge_limit(world, lower.memory, None, percentage, devices, driver):
        for _, error in verdict.refusals:
            raise BadValue(f"--memory {lower.memory}: {error.found}", error.expected, error.remedy)
        warnings += verdict.warnings
    return list(dict.fromkeys(warnings))


def _in_foreground(
    world: World,
    request: Request,
    instance: Instance,
    devices: Sequence[Device],
    environment: RunEnvironment,
    report: Report,
) -> int:
    waited_for = {*_PASSED_ON, signal.SIGCHLD}
    # Blocked before the child is there: none that comes early is lost.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    try:
        try:
            child = subprocess.Popen(
                list(request.command),
                env=environment.variables,
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before) and None,
            )
        except FileNotFoundError:
            return _not_started(request, report, "command not found", _NOT_FOUND)
        except OSError as error:
            return _not_started(request, report, error.strerror or str(error), _NOT_EXECUTABLE)
        report.pid = child.pid
        watcher = _Watcher(world, request, report, Watch(world, instance, devices, child.pid))
        watcher.start()
        while child.poll() is None:
            got = signal.sigtimedwait(waited_for, 1.0)
            if got is not None and got.si_signo != signal.SIGCHLD and got.si_code != _FROM_KERNEL:
                if request.evict and got.si_signo in _ENDS:
                    _take_off(world, request, report, child.pid)
                child.send_signal(got.si_signo)
        watcher.end(child.returncode)
        return child.returncode if child.returncode >= 0 else 128 - child.returncode
    finally:
        # What came while the child ended was meant for it.
        while signal.sigtimedwait(waited_for, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _take_off(world: World, request: Request, report: Report, pid: int) -> None:
    found = evict.evict(world, OfProcess(pid))
    for name, one in found.taken_off:
        _say(request, report, f"pid {one.pid} was taken off the GPU by the daemon of {name}")
    for name, client in found.left:
        _say(request, report, f"pid {client.pid} is still a client of {name}: its end may end others' work")
    for name, why in found.unknown.items():
        _say(request, report, f"whether it is a client of {name} cannot be told ({why}): its end may end others' work")


def _not_started(request: Request, report: Report, why: str, code: int) -> int:
    report.why_not = f"{request.command[0]}: {why}"
    _say(request, report, report.why_not)
    return code


class _Watcher(threading.Thread):
    """Looks until the client is seen, seldom after the time for the proof is over, and at last at the end."""

    def __init__(self, world: World, request: Request, report: Report, watch: Watch) -> None:
        super().__init__(daemon=True)
        self._world, self._request, self._report, self._watch = world, request, report, watch
        self._ended = threading.Event()
        self._told_why_not = False

    def run(self) -> None:
        with ExitStack() as stack:
            nvml: Optional[Nvml] = None
            try:
                nvml = stack.enter_context(self._world.nvml())
            except MpsctlError as error:
                self._watch.daemon_problem = str(error)
            self._loop(nvml)

    def _loop(self, nvml: Optional[Nvml]) -> None:
        poll_s, waited_s, asked_s = _FIRST_POLL_S, 0.0, 0.0
        while not self._ended.wait(poll_s):
            waited_s += poll_s
            ask_daemon = waited_s - asked_s >= _DAEMON_EVERY_S
            asked_s = waited_s if ask_daemon else asked_s
            if self._watch.look(nvml, ask_daemon):
                self._seen()
                return
            if waited_s >= self._request.prove_timeout_s and not self._told_why_not:
                self._told_why_not = True
                self._report.why_not = became_client.why_not(self._watch)
                _say(
                    self._request,
                    self._report,
                    f"not an MPS client after {self._request.prove_timeout_s:g} s: {self._report.why_not}",
                )
            # The first client of a daemon is up after about half a second; who comes later is in no hurry.
            quick_s = _FIRST_POLL_S if waited_s < 2 else _LONGEST_POLL_S
            poll_s = _LATE_POLL_S if self._told_why_not else quick_s

    def _seen(self) -> None:
        report, watch = self._report, self._watch
        report.became_client, report.client_pid, report.seen_by, report.why_not = (
            True,
            watch.client,
            watch.seen_by,
            None,
        )
        whose = "" if watch.client == watch.root else f", started by pid {watch.root},"
        _say(self._request, report, f"pid {watch.client}{whose} is an MPS client (seen by {watch.seen_by})")

    def end(self, returncode: int) -> None:
        """The command has ended: the last word, if none was said yet."""
        self._ended.set()
        self.join(10)
        if self._report.became_client:
            return
        if self._watch.look_back():
            self._seen()
            return
        self._report.why_not = became_client.why_not(self._watch)
        how = f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"
        _say(self._request, self._report, f"ended ({how}) and never seen as an MPS client: {self._report.why_not}")
