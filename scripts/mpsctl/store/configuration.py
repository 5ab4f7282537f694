"""Reading the desired state of instances from /etc/mps, and matching it with the host's devices."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Callable, Optional, Sequence

from mpsctl.adapters import files, mounts, procfs
from mpsctl.model import gpu as gpu_names
from mpsctl.model.checked_values import check_name
from mpsctl.model.checked_values import check_place as check_place_of
from mpsctl.model.errors import BadValue, DoesNotFit, NoRight, NotReady
from mpsctl.model.gpu import Device, Gpu
from mpsctl.model.instance import Instance
from mpsctl.model.instance_file import parse_conf
from mpsctl.model.settings import VARIABLES
from mpsctl.model.shares import USER, Room, Share, check_shares
from mpsctl.store.world import World

_SUFFIX = ".conf"


def load(world: World, name: str) -> Instance:
    """The desired state of one instance.

    :raises BadValue: if it has no file, what is there is no file, or the file is refused; the text names the file.
    """
    check_name(name)
    path = world.places.conf(name)
    text = files.read_text(path)
    if text is None and path.is_symlink():
        raise BadValue(f"{path}, a link to no file", "the instance's file", "remove the link, or converge the host")
    if text is None:
        known = ", ".join(names(world)) or "none"
        raise BadValue(f"no {path}", f"an instance of this host: {known}", "name one of those, or converge the host")
    try:
        return parse_conf(text, name)
    except BadValue as error:
        raise BadValue(f"{path}: {error.found}", error.expected, error.remedy, error.key, error.variable) from None


def require(world: World, wanted: Sequence[str]) -> None:
    """:raises BadValue: if one of the named instances has no file; the text says which have."""
    known = names(world)
    for name in wanted:
        if name not in known:
            load(world, name)


def names(world: World) -> list[str]:
    """The instances that have a file, in their natural order: 2 before 10. Whether it is one is for ``load`` to say.

    :raises NoRight: if this user may not look.
    """
    directory = world.places.configuration
    try:
        found = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError:
        raise NoRight(str(directory)) from None
    return sorted((name[: -len(_SUFFIX)] for name in found if name.endswith(_SUFFIX) and name != _SUFFIX), key=natural)


def natural(name: str) -> tuple[int, int, str]:
    """A sort key: numbers by value and before words."""
    return (0, int(name), name) if name.isascii() and name.isdigit() else (1, 0, name)


def gid_of(instance: Instance) -> Optional[int]:
    """The id of the one group that may connect to an instance, or None where everyone may.

    :raises BadValue: if the host has no such group.
    """
    if instance.group is None:
        return None
    gid = procfs.gid(instance.group)
    if gid is None:
        raise _refused("Group", f"the group {instance.group!r}", "a group of this host", "make it, or name another")
    return gid


def room_of(instance: Instance) -> Optional[Room]:
    """How many clients an instance takes at once, users by their number; None where that is not held.

    :raises BadValue: if the host has no such user, or one by two names.
    """
    return _room(instance, _uid)


def room_as_it_can_be(instance: Instance) -> Optional[Room]:
    """As ``room_of``, without the shares of users whom the host does not have now, and with the lower one of a user by
    two names: one user that was deleted keeps no instance down."""
    return _room(instance, procfs.uid_of)


def _room(instance: Instance, uid_of: Callable[[str], Optional[int]]) -> Optional[Room]:
    room = instance.room
    if room is None:
        return None
    found: dict[str, Share] = {}
    for share in room.shares:
        known = share
        if share.kind == USER and share.name is not None:
            uid = uid_of(share.name)
            if uid is None:
                continue
            known = replace(share, name=str(uid))
        twin = found.get(known.key)
        if twin is not None and uid_of is _uid:
            raise _refused("Shares", f"{share} and {twin}, one user", "each share once", "remove one")
        found[known.key] = known if twin is None or known.clients < twin.clients else twin
    return replace(room, shares=check_shares(" ".join(map(str, found.values()))))  # in the order of their text


def _uid(user: str) -> int:
    uid = procfs.uid_of(user)
    if uid is None:
        raise _refused("Shares", f"a share of the user {user!r}", "a user of this host", "make it, or name another")
    return uid


def check_place(instance: Instance) -> None:
    """What only the host can tell of an instance's pipe directory: where it leads, and on which file system it lies.

    :raises BadValue: if no daemon or front door could have its sockets there.
    :raises NotReady: if it cannot be written now, which is this host's fault and not the value's.
    """
    public = Path(instance.pipe_directory)
    mount = mounts.under(public)
    why = mounts.why_no_sockets(mount) if mount is not None else None
    if mount is not None and why is not None:
        raise _refused(
            "PipeDirectory", f"{public} on {mount.place}, which is {why}", "this host's own", "use /run/nvidia-mps"
        )
    if mount is not None and mounts.read_only(mount):
        raise NotReady(
            f"found {public} on {mount.place}, which is mounted read-only, expected one that can be written; see why"
            f" with `findmnt {mount.place}` and dmesg, and mount it for writing"
        )
    real = os.path.realpath(public)
    if real != str(public):
        try:
            check_place_of(real)
        except BadValue as error:
            raise _refused("PipeDirectory", f"{public}, which leads to {real}", error.expected, error.remedy) from None
    no_folder = next((one for one in (public, *public.parents) if os.path.lexists(one) and not one.is_dir()), None)
    if no_folder is not None:
        raise _refused("PipeDirectory", f"{no_folder}, which is no folder", "a folder, or nothing", "move it away")


def resolve(instance: Instance, gpus: Sequence[Gpu]) -> tuple[Device, ...]:
    """The devices of an instance, in the order of their ordinals.

    :raises BadValue: if the host lacks one, one is named twice under two names, a whole GPU is desired that
        is split by MIG, or what is desired does not fit the device.
    """
    devices: list[Device] = []
    for reference in instance.gpus:
        try:
            device = gpu_names.resolve(reference, gpus)
        except BadValue as error:
            raise error.named("GPUs", VARIABLES["GPUs"]) from None
        if device in devices:
            raise _refused(
                "GPUs", f"GPU {reference}, which is named before under another name", "each once", "remove it"
            )
        if device.mig is None and device.gpu.mig_enabled:
            mine = ", ".join(mig.uuid for mig in device.gpu.mig_devices) or "none yet"
            raise _refused(
                "GPUs", f"{device.gpu}, which is split by MIG", f"its MIG devices by UUID ({mine})", "name one of them"
            )
        devices.append(device)
    for device in devices:
        _check_fits(instance, device)
    return tuple(devices)


def _check_fits(instance: Instance, device: Device) -> None:
    if device.mig is not None and instance.compute_mode == gpu_names.EXCLUSIVE_PROCESS:
        # NVML refuses it: compute modes belong to whole GPUs (NVIDIA's documentation of nvidia-smi).
        raise _refused(
            "ComputeMode", f"exclusive_process on {device}", "default or null on MIG devices", "set it to null there"
        )
    if instance.multi_user and device.gpu.pre_volta:
        # Pascal takes the flag, and then refuses its clients (field reports of driver 580).
        raise _refused(
            "MultiUser", f"yes on {device}, older than Volta", "no on GPUs before Volta", "set it to no there"
        )
    if instance.limit is None:
        return
    key = "DeviceMemoryLimit"
    try:
        limit_mib = instance.limit.on(device.memory_mib)
    except BadValue as error:
        raise DoesNotFit(error.found, error.expected, error.remedy, key, VARIABLES[key]) from None
    if device.memory_mib is not None and limit_mib > device.memory_mib:
        raise DoesNotFit(
            f"{instance.limit} per client",
            f"at most the {device.memory_mib} MiB of {device}",
            "write what one client may take",
            key,
            VARIABLES[key],
        )


def _refused(key: str, found: str, expected: str, remedy: str) -> BadValue:
    return BadValue(found, expected, remedy, key, VARIABLES[key])
