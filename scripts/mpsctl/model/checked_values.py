"""What a value of a setting may be: one function for each kind, which gives it back typed or refuses it."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from mpsctl.model import gpu as gpu_names
from mpsctl.model.errors import BadValue
from mpsctl.model.foreign import quoted, written
from mpsctl.model.pattern import Pattern

REPORT, TERMINATE, RESTART = "report", "terminate", "restart"
ADMIT, REFUSE, WAIT = "admit", "refuse", "wait"
IGNORE, WARN, FAIL = "ignore", "warn", "fail"
RESTORE, PROHIBITED = "restore", "prohibited"

DRAIN_TIMEOUT_S = 300
"""How long clients are waited for where nothing else is said."""

DAEMON_DIRECTORY_MAX_BYTES = 87
"""The longest pipe directory that the daemon can serve: ``<directory>/control_privileged`` must fit a
socket address. At 88 it exits with 1 and says nothing (control daemons 535, 550, 555)."""

PUBLIC_DIRECTORY_MAX_BYTES = 74
"""The longest pipe directory of clients. Its sockets' names must fit a socket address, and release 0.2.0, which
served a directory inside it, took no longer one."""

_USER = Pattern(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}|0|[1-9][0-9]{0,9}")
_MOST_OF_IDS = 4_294_967_293
"""The two numbers above say "nobody" and "leave it" to the kernel and to NFS (chown(2))."""
_NAME = Pattern(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
_PATH = Pattern(r"(?:/[A-Za-z0-9_.-]+)+")
_PACKAGE = Pattern(r"[A-Za-z0-9][A-Za-z0-9+._:=-]{0,199}")
_MOST_HOSTS = 99_999
_HOSTS = Pattern(r"[1-9][0-9]{0,4}|(?:100|[1-9][0-9]?)%")
_MOST_OF_REASON = 200
_CLEANED, _READ_ONLY = "emptied by cleaners and shared by everyone", "read-only for the daemon (ProtectSystem=)"
_UNSAFE_ROOTS = {
    **dict.fromkeys(("/tmp", "/var/tmp", "/dev/shm"), _CLEANED),
    "/root": "closed to other users",
    **dict.fromkeys(("/home", "/run/user"), "closed to the daemon (ProtectHome=)"),
    **dict.fromkeys(("/etc", "/usr", "/boot", "/efi", "/bin", "/sbin", "/lib", "/lib32", "/lib64"), _READ_ONLY),
    **dict.fromkeys(("/proc", "/sys", "/dev"), "the kernel's"),
    **dict.fromkeys(
        ("/run/mps-fleet", "/var/lib/mps-fleet", "/var/cache/mps-fleet"), "closed to others, for our records"
    ),
    "/run/systemd": "systemd's own",
}
"""Where no pipe directory can be, and why: the first that holds counts."""
_NOT_FOR_METRICS = {"/home": "closed to the look (ProtectHome=)", "/run/user": "closed to the look (ProtectHome=)"}
METRICS_BY = ("unit", "container")
"""What more the clients may be told apart by in metrics."""
_SHARED_ROOTS = ("/run", "/var", "/var/run", "/var/lib", "/var/cache", "/var/log", "/opt", "/srv", "/mnt", "/media")
"""What other programs have their folders in: an instance may have the name of one."""


def check_name(name: object) -> str:
    """An instance's name that systemd, a path and a socket address can carry.

    :raises BadValue: otherwise; the variable is ``mps_instances``.
    """
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise BadValue(
        f"the instance name {quoted(name)}",
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


def check_pipe_directory(text: object) -> str:
    """A public pipe directory: the names in it fit their socket addresses.

    :raises BadValue: for a relative, unclean or too long path, or one that is cleaned, shared or closed.
    """
    path = _check_path(text)
    excess = len(path.encode()) - PUBLIC_DIRECTORY_MAX_BYTES
    if excess > 0:
        raise BadValue(
            f"{path!r} of {len(path.encode())} bytes",
            f"at most {PUBLIC_DIRECTORY_MAX_BYTES} bytes, for the sockets in it",
            f"shorten it by {excess}",
        )
    return path


def check_pipe_root(text: object, longest_instance_name: str = "0") -> str:
    """The directory under which every instance has its pipe directory.

    :raises BadValue: as check_pipe_directory, for the longest of the instances' names.
    """
    path = _check_path(text)
    if path in _SHARED_ROOTS:
        raise BadValue(
            quoted(path), "a folder of its own: other programs have theirs there", f"write {path}/nvidia-mps"
        )
    try:
        check_pipe_directory(f"{path}/{longest_instance_name}")
    except BadValue as error:
        raise error.named("PipeDirectory", "mps_pipe_root") from None
    return path


def _check_path(text: object) -> str:
    if not isinstance(text, str) or not _PATH.fullmatch(text) or str(PurePosixPath(text)) != text:
        raise BadValue(
            quoted(text), "an absolute path of letters, digits, '_', '.' and '-'", "write for example /run/nvidia-mps"
        )
    if any(part in (".", "..") for part in text.split("/")):
        raise BadValue(quoted(text), "a path without '.' and '..'", "write it out")
    check_place(text)
    return text


def check_place(path: str) -> None:
    """:raises BadValue: for a path on which no pipe directory can be, whoever owns it."""
    for root, why in _UNSAFE_ROOTS.items():
        if path == root or path.startswith(root + "/"):
            raise BadValue(quoted(path), f"a path outside {root}, which is {why}", "use /run/nvidia-mps")


def check_metrics_directory(text: object) -> str:
    """The folder from which a node exporter reads metrics.

    :raises BadValue: if it is no absolute path, or one where the look each minute cannot or must not write.
    """
    example = "/var/lib/prometheus/node-exporter"
    if not isinstance(text, str) or not _PATH.fullmatch(text) or {".", ".."} & set(text.split("/")):
        raise BadValue(
            quoted(text), "an absolute path of letters, digits, '_', '.' and '-'", f"write for example {example}"
        )
    for root, why in {**_UNSAFE_ROOTS, **_NOT_FOR_METRICS}.items():
        if text == root or text.startswith(root + "/"):
            raise BadValue(
                quoted(text), f"a path outside {root}, which is {why}", f"use a node exporter's folder, as {example}"
            )
    return text


def check_metrics_by(text: object) -> str:
    """:raises BadValue: if it is neither ``unit`` nor ``container``."""
    if text in METRICS_BY:
        return str(text)
    raise BadValue(quoted(text), "unit or container (or nothing: neither)", "write unit")


def check_compute_mode(text: object) -> str:
    """:raises BadValue: if it is neither ``exclusive_process`` nor ``default``."""
    if text in (gpu_names.EXCLUSIVE_PROCESS, gpu_names.DEFAULT):
        return str(text)
    raise BadValue(quoted(text), "exclusive_process or default (or nothing: not managed)", "write exclusive_process")


def check_when_down(text: object) -> str:
    """:raises BadValue: if it is neither ``restore`` nor ``prohibited``."""
    if text in (RESTORE, PROHIBITED):
        return str(text)
    raise BadValue(quoted(text), "restore or prohibited", "write restore")


def check_yes_or_no(value: object) -> bool:
    """systemd's words for a boolean.

    :raises BadValue: otherwise.
    """
    words = {"yes": True, "true": True, "on": True, "1": True, "no": False, "false": False, "off": False, "0": False}
    known = words.get(written(value).lower()) if isinstance(value, (str, int)) else None
    if known is None:
        raise BadValue(quoted(value), "yes or no", "write no")
    return known


def check_server_user(value: object) -> str:
    """A user by name or number; whether the host has it is seen there.

    :raises BadValue: if it is neither.
    """
    return _check_account(value, "a user", "1000")


def check_group(value: object) -> str:
    """A group by name or number; whether the host has it is seen there.

    :raises BadValue: if it is neither.
    """
    return _check_account(value, "a group", "video")


def _check_account(value: object, kind: str, example: str) -> str:
    text = written(value) if _is_text_or_int(value) else ""
    if not _USER.fullmatch(text):
        raise BadValue(quoted(value), f"{kind}'s name or number", f"write for example {example}")
    if text.isdigit() and int(text) > _MOST_OF_IDS:
        raise BadValue(quoted(value), f"{kind}'s number up to {_MOST_OF_IDS}", f"write for example {example}")
    return text


def _is_text_or_int(value: object) -> bool:
    """A boolean is no number, and neither is a float a name: `.inf` would be one."""
    return isinstance(value, (str, int)) and not isinstance(value, bool)


def check_thread_percentage(value: object) -> float:
    """A share of the multiprocessors in percent, above 0 and up to 100, with at most one decimal.

    The daemon keeps its old value without a word for 0, 101 or text, and prints one decimal (control
    daemons 535, 550, 555; driver 580).

    :raises BadValue: otherwise.
    """
    expected = "a number above 0 and up to 100 with at most one decimal"
    text = written(value)
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,3}(?:\.[0-9])?", text) or not 0 < float(text) <= 100:
        raise BadValue(quoted(value), expected, "write for example 50")
    return float(text)


def check_client_priority(value: object) -> int:
    """0 (normal) or 1 (below normal); for a word the daemon would silently take 0.

    :raises BadValue: otherwise.
    """
    if not _is_text_or_int(value) or written(value) not in ("0", "1"):
        raise BadValue(quoted(value), "0 (normal) or 1 (below normal)", "write 0 or 1")
    return int(str(value))


def check_expected_clients(value: object) -> int:
    """How many clients are to fit on each device: a whole number above 0.

    :raises BadValue: otherwise.
    """
    if not _is_text_or_int(value) or not re.fullmatch(r"[1-9][0-9]{0,3}", written(value)):
        raise BadValue(quoted(value), "a whole number of clients, at least 1", "write for example 8")
    return int(str(value))


def check_over_expected(text: object) -> str:
    """:raises BadValue: if it is neither ``admit`` nor ``wait`` nor ``refuse``."""
    if text in (ADMIT, WAIT, REFUSE):
        return str(text)
    raise BadValue(quoted(text), "admit, wait or refuse", "write wait")


def check_limit_bypass(text: object) -> str:
    """:raises BadValue: if it is neither ``report`` nor ``refuse`` nor ``terminate``."""
    if text in (REPORT, REFUSE, TERMINATE):
        return str(text)
    raise BadValue(quoted(text), "report, refuse or terminate", "write report")


def check_on_clients(text: object) -> str:
    """:raises BadValue: if it is neither ``refuse`` nor ``wait`` nor ``terminate``."""
    if text in (REFUSE, WAIT, TERMINATE):
        return str(text)
    raise BadValue(quoted(text), "refuse, wait or terminate", "write refuse")


def check_distributed_jobs(text: object) -> str:
    """:raises BadValue: if it is none of ``ignore``, ``warn`` and ``fail``."""
    if text in (IGNORE, WARN, FAIL):
        return str(text)
    raise BadValue(quoted(text), "ignore, warn or fail", "write warn")


def check_unresponsive_daemon(text: object) -> str:
    """:raises BadValue: if it is neither ``report`` nor ``restart``."""
    if text in (REPORT, RESTART):
        return str(text)
    raise BadValue(quoted(text), "report or restart", "write report")


def check_timeout_s(value: object) -> int:
    """Whole seconds from 1 to 3600.

    :raises BadValue: otherwise.
    """
    if not _is_text_or_int(value) or not re.fullmatch(r"[1-9][0-9]{0,3}", written(value)) or int(str(value)) > 3600:
        raise BadValue(quoted(value), "whole seconds from 1 to 3600", "write for example 90")
    return int(str(value))


def check_reason(text: object) -> str:
    """What a drain is for, in one line of at most 200 characters; nothing at all is a reason as well.

    :raises BadValue: otherwise.
    """
    if isinstance(text, str) and len(text) <= _MOST_OF_REASON and (text.isprintable() or not text):
        return text
    expected = f"one line of at most {_MOST_OF_REASON} characters"
    raise BadValue(quoted(text), expected, "say in a few words why no client is let in")


def check_package(value: object) -> object:
    """True for the distribution's package, False for none, or the name of a package.

    :raises BadValue: otherwise.
    """
    if isinstance(value, bool) or (isinstance(value, str) and _PACKAGE.fullmatch(value)):
        return value
    raise BadValue(quoted(value), "true, false or a package's name", "write false to install nothing")


def check_serial(value: object) -> object:
    """How many hosts are changed at a time: a number, a percentage, or a list of these.

    :raises BadValue: otherwise.
    """
    for size in value if isinstance(value, list) and value else [value]:
        whole = isinstance(size, int) and not isinstance(size, bool) and 0 < size <= _MOST_HOSTS
        if not whole and not (isinstance(size, str) and _HOSTS.fullmatch(size)):
            expected = "a number of hosts, a percentage up to 100% or a list of these"
            raise BadValue(quoted(size), expected, 'write for example 5 or "20%"')
    return value
