"""Taking everything of ours off a host: clients first, then daemons, then the GPUs' modes, then the files.

What is not ours stays: files without our first line, the daemon's package, other people's units and processes.
An instance whose clients are still connected is deferred, and what all instances share stays with it. A second
run finds nothing to do, and a interrupted run is finished by the next.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterable, Optional, Sequence

from mpsctl.adapters import files, hardware, pipe
from mpsctl.converge import host_lock, reconcile
from mpsctl.converge.reconcile import UNIT, Answer
from mpsctl.lifecycle import compute_modes
from mpsctl.model.errors import BadValue, MpsctlError, NotReady
from mpsctl.model.gpu import EXCLUSIVE_PROCESS, Gpu
from mpsctl.model.places import Places
from mpsctl.observe import status as proofs
from mpsctl.observe.status import Status
from mpsctl.store import configuration, saved_compute_modes
from mpsctl.store.world import World

_HELPERS = ("mps-health.timer", "mps-health.service")


@dataclass
class _Found:
    """What of ours is on the host: files of units, GPUs with the mode that is to be brought back, directories."""

    statuses: dict[str, Status]
    units: list[Path]
    modes: list[tuple[Gpu, str]]
    directories: list[Path]
    partial_files: list[Path]
    """halves of files, and the link that would start the timer at boot where its file has gone before it"""
    program: Optional[Path]
    foreign: list[Path] = field(default_factory=list)
    problem: Optional[str] = None


def remove(world: World, check: bool) -> Answer:
    """Remove everything of ours from this host, or with ``check`` only say what would go.

    ``pending`` in the answer names the instances that still have clients, ``error`` what could not be removed.
    """
    try:
        if check:
            host_lock.wait_for_others(world)
            return _remove(world, check)
        with host_lock.taken(world):
            return _remove(world, check)
    except host_lock.Busy as error:
        return Answer(check, error=str(error))


def _remove(world: World, check: bool) -> Answer:
    answer = Answer(check=check, host={**hardware.os_release(), "driver_version": hardware.driver_version()})
    found = _look(world)
    held = {name: status for name, status in found.statuses.items() if status.clients}
    going = [name for name in found.statuses if name not in held]
    for status in held.values():
        reconcile.defer(world, answer, status.instance, "its clients are connected", status.connected)
    for name in going:
        reconcile.describe_leftover(world, name, found.statuses[name], answer)
    if not held:
        _describe_shared(found, answer)
    answer.warnings += [f"{path} is not ours and stays" for path in found.foreign]
    if found.problem:
        answer.error = found.problem
        return answer
    answer.changed = bool(answer.actions)
    if not check and answer.changed:
        try:
            _carry_out(world, found, going, everything=not held)
            answer.error = _what_is_left(world, going, everything=not held)
        except (MpsctlError, OSError) as error:
            answer.error = str(error)
    if held and not answer.error:
        who = ", ".join(f"{name} ({len(status.clients)} clients)" for name, status in held.items())
        answer.error = (
            f"instances with connected clients were left as they are, with what all share: {who}; end their clients,"
            " or set mps_on_clients"
        )
    return answer


def _look(world: World) -> _Found:
    places = world.places
    every = configuration.names(world)
    ours = [name for name in every if reconcile.is_ours(places.conf(name))]
    statuses = {status.instance: status for status in proofs.status_of_all(world, ours)}
    for name in _enabled_without_a_file(places.units, every):
        statuses[name] = Status(name, unit={"name": f"mps-control@{name}.service", "active_state": "unknown"})
    units = [places.units / name for name in (UNIT, *_HELPERS)]
    found = _Found(
        statuses=statuses,
        units=[path for path in units if reconcile.is_ours(path)],
        modes=[],
        directories=[
            path for path in (places.state, places.cache, places.turn.parent) if _holds_something(world, path)
        ],
        partial_files=[
            path
            for path in reconcile.partial_files(world, units)
            if not path.is_relative_to(places.state) and path.parent != places.cache  # they go whole
        ]
        + [link for link in [_timer_link(places)] if link.is_symlink() and not link.exists()],
        program=places.program if places.program.exists() else None,
        foreign=[path for path in units if path.exists() and not reconcile.is_ours(path)]
        + [places.conf(name) for name in every if name not in ours],
    )
    try:
        with world.nvml() as nvml:
            found.modes = [
                (gpu, mode) for gpu in nvml.gpus() if (mode := saved_compute_modes.to_bring_back(world, gpu))
            ]
    except NotReady as error:
        # Without a loaded driver there is no mode to bring back: it forgets them.
        if hardware.driver_version() is not None and saved_compute_modes.directory(world).is_dir():
            found.problem = f"the compute modes cannot be brought back, so nothing was removed: {error}"
    return found


def _timer_link(places: Places) -> Path:
    return places.units / "timers.target.wants" / _HELPERS[0]


def _holds_something(world: World, directory: Path) -> bool:
    """Whether the directory is there, and has more than the lock of a run."""
    return directory.is_dir() and (
        directory != world.places.turn.parent or any(path != world.places.turn for path in directory.iterdir())
    )


def _enabled_without_a_file(units: Path, names: Iterable[str]) -> list[str]:
    """Instances that would start at boot though their file is gone."""
    wanted = units / "multi-user.target.wants"
    links = sorted(wanted.glob("mps-control@?*.service")) if wanted.is_dir() else []
    enabled = [link.name.removeprefix("mps-control@").removesuffix(".service") for link in links]
    return [name for name in enabled if name not in names]


def _describe_shared(found: _Found, answer: Answer) -> None:
    for gpu, mode in found.modes:
        reconcile.describe_state(
            answer, f"bring back the compute mode of {gpu}: {mode}", str(gpu), str(gpu.compute_mode), mode
        )
    for path in found.units:
        answer.actions.append(f"remove {path}")
        reconcile.add_diff(answer, str(path), files.read_text(path) or "", None)
    for path in [*found.partial_files, *found.directories, *([found.program] if found.program else [])]:
        reconcile.describe_state(answer, f"remove {path}", str(path), "present", "absent")


def _carry_out(world: World, found: _Found, going: Sequence[str], everything: bool) -> None:
    if everything:
        helpers = [path.name for path in found.units if path.name in _HELPERS]
        if helpers:
            world.systemd.act("disable", [name for name in helpers if name.endswith(".timer")])
            world.systemd.act("stop", helpers)
            if _HELPERS[0] in helpers:  # whatever became of the command, no link stays behind without its file
                _timer_link(world.places).unlink(missing_ok=True)
    for name in going:
        public = _pipe_directory(world, name)
        reconcile.remove_instance(world, name)
        if public is not None:
            _tidy(public)
    if not everything:
        return
    for gpu, _ in found.modes:
        _restore(world, gpu)
    for path in [*found.units, *found.partial_files]:
        path.unlink(missing_ok=True)
    # Whatever is left to do: a interrupted run may have come as far as the units.
    world.systemd.act("daemon-reload")
    world.systemd.act("reset-failed", ["mps-control@*.service", "mps-health.service"])
    _remove_empty(world.places.configuration)
    for directory in found.directories:
        if directory != world.places.turn.parent:
            shutil.rmtree(directory, ignore_errors=True)
            continue
        for path in directory.iterdir():  # the rest, and the lock, go at the end of our turn
            if path != world.places.turn:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    if found.program is not None:
        found.program.unlink(missing_ok=True)


def _pipe_directory(world: World, name: str) -> Optional[Path]:
    try:
        return Path(configuration.load(world, name).pipe_directory)
    except BadValue:
        return None


def _tidy(public: Path) -> None:
    """A pipe directory that systemd does not remove, outside /run; never under a daemon that still serves it."""
    if public.is_dir() and not pipe.daemons_on(public):
        pipe.close_door(public)
        for name in pipe.PUBLIC_NAMES:
            files.partial_link(public / name).unlink(missing_ok=True)
        pipe.remove_private(public)
        _remove_empty(public)
    _remove_empty(public.parent)


def _remove_empty(directory: Path) -> None:
    with suppress(OSError):  # somebody else's files are in it, or it is gone
        directory.rmdir()


def _restore(world: World, gpu: Gpu) -> None:
    """The stop of its instance may have done so already; a GPU that no instance of ours has any more is left too."""
    with world.nvml() as nvml:
        for now in nvml.gpus():
            if now.uuid == gpu.uuid:
                compute_modes.restore(world, nvml, now, EXCLUSIVE_PROCESS)


def _what_is_left(world: World, going: Sequence[str], everything: bool) -> Optional[str]:
    """Nothing is reported gone that the host still shows."""
    shown = world.systemd.show([f"mps-control@{name}.service" for name in going])
    left = [f"{unit} is {one.get('ActiveState')}" for unit, one in shown.items() if one.get("MainPID", "0") != "0"]
    left += [str(world.places.conf(name)) for name in going if world.places.conf(name).exists()]
    if everything:
        left += [str(path) for path in _look(world).directories]
    return f"still there: {', '.join(left)}; run it again, or see `systemctl status`" if left else None
