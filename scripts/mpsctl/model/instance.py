"""The desired state of one instance (one control daemon) and its file ``/etc/mps/<instance>.conf``.

The file is in systemd's own INI manner. ``%i`` in a value stands for the instance's name. A key that
is absent is not managed: what it would set is left as found.
"""

from __future__ import annotations

import configparser
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Callable, Iterable, Mapping, Optional, Sequence

from mpsctl.model import gpu as gpu_names
from mpsctl.model import quantity
from mpsctl.model.errors import BadValue
from mpsctl.model.quantity import Quantity

VARIABLES: Mapping[str, str] = {
    "GPUs": "mps_instances",
    "PipeDirectory": "mps_pipe_root",
    "ComputeMode": "mps_compute_mode",
    "WhenDown": "mps_when_down",
    "MultiUser": "mps_multi_user",
    "ServerUser": "mps_server_user",
    "Group": "mps_group",
    "DeviceMemoryLimit": "mps_device_memory_limit",
    "ActiveThreadPercentage": "mps_active_thread_percentage",
    "ClientPriority": "mps_client_priority",
    "ExpectedClients": "mps_expected_clients",
    "DriverTimeoutSec": "mps_driver_timeout_s",
    "StopTimeoutSec": "mps_stop_timeout_s",
    "EscapedClients": "mps_escaped_clients",
    "EscapeGraceSec": "mps_escape_grace_s",
    "DistributedJobs": "mps_distributed_jobs",
    "UnresponsiveDaemon": "mps_unresponsive_daemon",
}
"""The role's variable behind each key of the file."""

_SECTIONS: Mapping[str, Sequence[str]] = {
    "Instance": ("GPUs", "PipeDirectory", "ComputeMode", "WhenDown", "MultiUser", "ServerUser", "Group"),
    "Limits": ("DeviceMemoryLimit", "ActiveThreadPercentage", "ClientPriority"),
    "Clients": ("ExpectedClients", "EscapedClients", "EscapeGraceSec", "DistributedJobs"),
    "Daemon": ("UnresponsiveDaemon",),
    "Timeouts": ("DriverTimeoutSec", "StopTimeoutSec"),
}

REPORT, TERMINATE, RESTART = "report", "terminate", "restart"
REFUSE, WAIT = "refuse", "wait"

DRAIN_TIMEOUT_S = 300
"""How long clients are waited for where nothing else is said."""
IGNORE, WARN, FAIL = "ignore", "warn", "fail"

DAEMON_DIRECTORY_MAX_BYTES = 87
"""The longest pipe directory that the daemon can serve: ``<directory>/control_privileged`` must fit a
socket address. At 88 it exits with 1 and says nothing (control daemons 535, 550, 555)."""

PRIVATE_NAME_BYTES = 12
"""The daemon's own directory inside the public one: a dot and 11 characters that cannot be guessed."""

RESTORE, PROHIBITED = "restore", "prohibited"
_USER = re.compile(r"[a-z_][a-z0-9_.-]{0,31}|0|[1-9][0-9]{0,9}", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
_PATH = re.compile(r"(?:/[A-Za-z0-9_.-]+)+")
_UNSAFE_ROOTS = ("/tmp", "/var/tmp", "/dev/shm", "/root")


@dataclass(frozen=True)
class Instance:
    """What is desired of one instance. ``None`` means not managed.

    ``limit`` is what one client may take on each device, ``thread_percentage`` the share of the
    multiprocessors in percent, ``client_priority`` 0 (normal) or 1 (below normal), ``expected_clients`` how
    many clients are to fit on each device. ``limit_bypass`` says what becomes of a client that shook off
    its limit: REPORT, or TERMINATE after ``limit_bypass_grace_s`` seconds; ``distributed_jobs`` what is said of ranks of a
    distributed training run among its clients: IGNORE, WARN or FAIL; ``unresponsive_daemon`` what becomes of a daemon
    that answers nothing: REPORT or RESTART. Only root and the members of ``group`` may
    connect, or everyone where it is None.
    """

    name: str
    gpus: tuple[str, ...]
    pipe_directory: str
    compute_mode: Optional[str] = None
    when_down: str = RESTORE
    multi_user: bool = False
    server_user: Optional[str] = None
    group: Optional[str] = None
    limit: Optional[Quantity] = None
    thread_percentage: Optional[float] = None
    client_priority: Optional[int] = None
    expected_clients: Optional[int] = None
    driver_timeout_s: int = 90
    stop_timeout_s: int = 20
    limit_bypass: str = REPORT
    limit_bypass_grace_s: int = 60
    distributed_jobs: str = WARN
    unresponsive_daemon: str = REPORT

    @property
    def eager_server(self) -> Optional[str]:
        """The user whose server is started before the first client comes, or None: it comes with the client.

        In multi-user mode every client is served by root's (driver 580, H200).
        """
        return "root" if self.multi_user else self.server_user

    @property
    def compute_mode_when_down(self) -> Optional[str]:
        """What the mode has to be while no daemon serves the GPUs, or None where that is not ours to say."""
        return PROHIBITED if self.when_down == PROHIBITED else None

    @property
    def unit(self) -> str:
        return f"mps-control@{self.name}.service"


def parse_conf(text: str, name: str) -> Instance:
    """Read an instance's file.

    :raises BadValue: naming the key, with the line where the parser tells it.
    """
    check_name(name)
    parser = configparser.ConfigParser(
        delimiters=("=",),
        comment_prefixes=("#", ";"),
        interpolation=None,
        empty_lines_in_values=False,
        default_section="",  # none: the parser's own, [DEFAULT], would add its keys to all others unseen
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # configparser's own way
    try:
        parser.read_string(text, source=f"{name}.conf")
    except configparser.Error as error:
        line = " ".join(str(error).split())
        raise BadValue(line, "the sections and keys of an instance's file", "write it anew with the role") from None
    values = {}
    for section in parser.sections():
        if section not in _SECTIONS:
            raise BadValue(f"[{section}]", f"one of {', '.join(_SECTIONS)}", "correct the section's name", section)
        for key, value in parser.items(section):
            if key not in _SECTIONS[section]:
                raise BadValue(f"{key} in [{section}]", f"one of {', '.join(_SECTIONS[section])}", _meant_key(key), key)
            values[key] = value.replace("%i", name)
    return from_values(values, name)


def _meant_key(key: str) -> str:
    """What to do about a key that its section does not know."""
    homes = {known: section for section, keys in _SECTIONS.items() for known in keys}
    if key in homes:
        return f"move it to [{homes[key]}]"
    import difflib

    near = difflib.get_close_matches(key.lower(), [known.lower() for known in homes], 1)
    return next((f"did you mean {known}?" for known in homes if near == [known.lower()]), "remove it")


def from_values(values: Mapping[str, str], name: str) -> Instance:
    """An instance from the file's keys.

    :raises BadValue: with ``key`` and ``variable`` set, if a value is refused or a needed key is missing.
    """
    check_name(name)

    def get(key: str, check: Callable[[str], object]) -> object:
        if key not in values:
            return None
        try:
            return check(values[key])
        except BadValue as error:
            raise error.named(key, VARIABLES[key]) from None

    for key in ("GPUs", "PipeDirectory"):
        if key not in values:
            raise BadValue("no value", f"{key} in the instance's file", f"set {VARIABLES[key]}", key, VARIABLES[key])
    fields = {
        "gpus": get("GPUs", check_gpu_list),
        "pipe_directory": get("PipeDirectory", check_pipe_directory),
        "compute_mode": get("ComputeMode", check_compute_mode),
        "when_down": get("WhenDown", check_when_down),
        "multi_user": get("MultiUser", check_multi_user),
        "server_user": get("ServerUser", check_server_user),
        "group": get("Group", check_group),
        "limit": get("DeviceMemoryLimit", quantity.parse),
        "thread_percentage": get("ActiveThreadPercentage", check_thread_percentage),
        "client_priority": get("ClientPriority", check_client_priority),
        "expected_clients": get("ExpectedClients", check_expected_clients),
        "driver_timeout_s": get("DriverTimeoutSec", check_timeout_s),
        "stop_timeout_s": get("StopTimeoutSec", check_timeout_s),
        "limit_bypass": get("EscapedClients", check_limit_bypass),
        "limit_bypass_grace_s": get("EscapeGraceSec", check_timeout_s),
        "distributed_jobs": get("DistributedJobs", check_distributed_jobs),
        "unresponsive_daemon": get("UnresponsiveDaemon", check_unresponsive_daemon),
    }
    given = {key: value for key, value in fields.items() if value is not None}
    instance = Instance(name=name, **given)  # type: ignore[arg-type]  # each is of its check's type
    _check_together(instance)
    return instance


def _check_together(instance: Instance) -> None:
    """What only makes sense together.

    :raises BadValue: for a prohibited GPU that no server would hold, and for a server that nobody would use.
    """
    if instance.when_down == PROHIBITED:
        if instance.compute_mode != gpu_names.EXCLUSIVE_PROCESS:
            raise _refused(
                "WhenDown",
                f"prohibited with the compute mode {instance.compute_mode or 'not managed'}",
                "exclusive_process: in another mode nothing would keep the GPU for MPS",
                "set mps_compute_mode to exclusive_process, or mps_when_down to restore",
            )
        if instance.eager_server is None:
            raise _refused(
                "WhenDown",
                "prohibited without a server that takes the GPU at once",
                "mps_server_user, or mps_multi_user",
                "name the user whose clients connect",
            )
    if instance.multi_user and instance.server_user not in (None, "root", "0"):
        raise _refused(
            "ServerUser",
            f"{instance.server_user!r} with mps_multi_user",
            "no user: in multi-user mode root's server serves everyone",
            "take one of the two",
        )


def _refused(key: str, found: str, expected: str, remedy: str) -> BadValue:
    return BadValue(found, expected, remedy, key, VARIABLES[key])


def check_name(name: object) -> str:
    """An instance's name that systemd, a path and a socket address can carry.

    :raises BadValue: otherwise; the variable is ``mps_instances``.
    """
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise BadValue(
        f"the instance name {name!r}",
        "1 to 32 letters, digits, '_', '.' or '-', beginning with a letter or digit",
        "rename the instance",
        variable="mps_instances",
    )


def check_gpu_list(text: str) -> tuple[str, ...]:
    """The devices of an instance, in the order that gives them their ordinals.

    :raises BadValue: if empty, not a device's name, or a device is named twice.
    """
    references = tuple(gpu_names.check_reference(part) for part in re.split(r"[,\s]+", text.strip()) if part)
    if not references:
        raise BadValue("no GPU", "at least one GPU", "name one by index, UUID or PCI address")
    for reference in references:
        if references.count(reference) > 1:
            raise BadValue(f"GPU {reference} twice", "each GPU once", "remove one")
    return references


def check_gpus(instances: Iterable[Instance]) -> None:
    """Two instances on one device, as far as their names tell: two daemons would fight for it.

    :raises BadValue: naming both instances; the variable is ``mps_instances``.
    """
    owners: dict[str, str] = {}
    names: set[str] = set()
    for instance in instances:
        if instance.name in names:
            raise BadValue(
                f"two instances named {instance.name!r}", "one", "rename one of them", variable="mps_instances"
            )
        names.add(instance.name)
        for reference in instance.gpus:
            if reference in owners:
                raise one_gpu_twice(reference, owners[reference], instance.name)
            owners[reference] = instance.name


def one_gpu_twice(what: str, first: str, second: str) -> BadValue:
    """The refusal of two instances on one GPU."""
    return BadValue(
        f"GPU {what} in the instances {first!r} and {second!r}",
        "one instance for each GPU",
        "give it to one of them",
        key="GPUs",
        variable="mps_instances",
    )


def check_pipe_directory(text: object) -> str:
    """A public pipe directory: clients and the daemon's own directory inside it fit their socket addresses.

    :raises BadValue: for a relative, unclean or too long path, or one that is cleaned, shared or closed.
    """
    path = _check_path(text)
    excess = len(path.encode()) + 1 + PRIVATE_NAME_BYTES - DAEMON_DIRECTORY_MAX_BYTES
    if excess > 0:
        raise BadValue(
            f"{path!r} of {len(path.encode())} bytes",
            f"at most {DAEMON_DIRECTORY_MAX_BYTES - 1 - PRIVATE_NAME_BYTES} bytes (the daemon's longest socket"
            f" needs {DAEMON_DIRECTORY_MAX_BYTES} less the {PRIVATE_NAME_BYTES + 1} of its own directory)",
            f"shorten it by {excess}",
        )
    return path


def check_pipe_root(text: object, longest_instance_name: str = "0") -> str:
    """The directory under which every instance has its pipe directory.

    :raises BadValue: as check_pipe_directory, for the longest of the instances' names.
    """
    path = _check_path(text)
    try:
        check_pipe_directory(f"{path}/{longest_instance_name}")
    except BadValue as error:
        raise error.named("PipeDirectory", "mps_pipe_root") from None
    return path


def _check_path(text: object) -> str:
    if not isinstance(text, str) or not _PATH.fullmatch(text) or str(PurePosixPath(text)) != text:
        raise BadValue(
            repr(text), "an absolute path of letters, digits, '_', '.' and '-'", "write for example /run/nvidia-mps"
        )
    if any(part in (".", "..") for part in text.split("/")):
        raise BadValue(repr(text), "a path without '.' and '..'", "write it out")
    for root in _UNSAFE_ROOTS:
        if text == root or text.startswith(root + "/"):
            why = "closed to other users" if root == "/root" else "emptied by cleaners and shared by everyone"
            raise BadValue(repr(text), f"a path outside {root}, which is {why}", "use /run/nvidia-mps")
    return text


def check_compute_mode(text: object) -> str:
    """:raises BadValue: if it is neither ``exclusive_process`` nor ``default``."""
    if text in (gpu_names.EXCLUSIVE_PROCESS, gpu_names.DEFAULT):
        return str(text)
    raise BadValue(repr(text), "exclusive_process or default (or nothing: not managed)", "write exclusive_process")


def check_when_down(text: object) -> str:
    """:raises BadValue: if it is neither ``restore`` nor ``prohibited``."""
    if text in (RESTORE, PROHIBITED):
        return str(text)
    raise BadValue(repr(text), "restore or prohibited", "write restore")


def check_multi_user(value: object) -> bool:
    """systemd's words for a boolean.

    :raises BadValue: otherwise.
    """
    words = {"yes": True, "true": True, "on": True, "1": True, "no": False, "false": False, "off": False, "0": False}
    known = words.get(str(value).lower())
    if known is None:
        raise BadValue(repr(value), "yes or no", "write no")
    return known


def check_server_user(value: object) -> str:
    """A user by name or number; whether the host has it is seen there.

    :raises BadValue: if it is neither.
    """
    if isinstance(value, bool) or not _USER.fullmatch(str(value)):
        raise BadValue(repr(value), "a user's name or number", "write for example 1000")
    return str(value)


def check_group(value: object) -> str:
    """A group by name or number; whether the host has it is seen there.

    :raises BadValue: if it is neither.
    """
    if isinstance(value, bool) or not _USER.fullmatch(str(value)):
        raise BadValue(repr(value), "a group's name or number", "write for example video")
    return str(value)


def check_thread_percentage(value: object) -> float:
    """A share of the multiprocessors in percent, above 0 and up to 100, with at most one decimal.

    The daemon keeps its old value without a word for 0, 101 or text, and prints one decimal (control
    daemons 535, 550, 555; driver 580).

    :raises BadValue: otherwise.
    """
    expected = "a number above 0 and up to 100 with at most one decimal"
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,3}(?:\.[0-9])?", text) or not 0 < float(text) <= 100:
        raise BadValue(repr(value), expected, "write for example 50")
    return float(text)


def check_client_priority(value: object) -> int:
    """0 (normal) or 1 (below normal); for a word the daemon would silently take 0.

    :raises BadValue: otherwise.
    """
    if isinstance(value, bool) or str(value) not in ("0", "1"):
        raise BadValue(repr(value), "0 (normal) or 1 (below normal)", "write 0 or 1")
    return int(str(value))


def check_expected_clients(value: object) -> int:
    """How many clients are to fit on each device: a whole number above 0.

    :raises BadValue: otherwise.
    """
    if isinstance(value, bool) or not re.fullmatch(r"[1-9][0-9]{0,3}", str(value)):
        raise BadValue(repr(value), "a whole number of clients, at least 1", "write for example 8")
    return int(str(value))


def check_limit_bypass(text: object) -> str:
    """:raises BadValue: if it is neither ``report`` nor ``terminate``."""
    if text in (REPORT, TERMINATE):
        return str(text)
    raise BadValue(repr(text), "report or terminate", "write report")


def check_on_clients(text: object) -> str:
    """:raises BadValue: if it is neither ``refuse`` nor ``wait`` nor ``terminate``."""
    if text in (REFUSE, WAIT, TERMINATE):
        return str(text)
    raise BadValue(repr(text), "refuse, wait or terminate", "write refuse")


def check_distributed_jobs(text: object) -> str:
    """:raises BadValue: if it is none of ``ignore``, ``warn`` and ``fail``."""
    if text in (IGNORE, WARN, FAIL):
        return str(text)
    raise BadValue(repr(text), "ignore, warn or fail", "write warn")


def check_unresponsive_daemon(text: object) -> str:
    """:raises BadValue: if it is neither ``report`` nor ``restart``."""
    if text in (REPORT, RESTART):
        return str(text)
    raise BadValue(repr(text), "report or restart", "write report")


def check_timeout_s(value: object) -> int:
    """Whole seconds from 1 to 3600.

    :raises BadValue: otherwise.
    """
    if isinstance(value, bool) or not re.fullmatch(r"[1-9][0-9]{0,3}", str(value)) or int(str(value)) > 3600:
        raise BadValue(repr(value), "whole seconds from 1 to 3600", "write for example 90")
    return int(str(value))
