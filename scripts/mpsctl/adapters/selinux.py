"""SELinux: whether it is there and enforces, the label of a path, and the one policy module that is ours."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Optional

from mpsctl.adapters import files, hardware, trusted
from mpsctl.model.errors import NoRight, NotInForce, NotReady, Unreadable

MODULE, PRIORITY = "mps_fleet", 400
"""400 is what semodule gives to a module of a host's own."""
_TIMEOUT_S = 180
"""To build a policy anew takes a minute on a small machine."""


def enabled(root: Path = Path("/")) -> bool:
    """Whether the kernel has a policy, enforced or not."""
    return (root / "sys/fs/selinux/enforce").exists()


def installed(root: Path = Path("/")) -> dict[int, Optional[bytes]]:
    """What the policy of this host has under our module's name, by the priority that it was given: the package, or
    None where the store keeps no packages (semanage.conf(5), remove-hll).

    :raises NotReady: if the policy's modules are not where libsemanage has them.
    :raises Unreadable: if what lies there cannot be read, or believed.
    """
    modules = store(root)
    trusted.require(modules)
    try:
        found = [path for path in modules.glob(f"*/{MODULE}") if path.parent.name.isdecimal() and path.is_dir()]
        if not modules.is_dir():
            raise NotReady(f"found no {modules}, expected the modules of this host's SELinux policy there")
    except PermissionError:
        raise NoRight(str(modules)) from None
    return {int(path.parent.name): _package(path / "hll") for path in found}


def store(root: Path = Path("/")) -> Path:
    """Where the modules of this host's policy lie, as libsemanage finds them (its conf-scan.l; selinux_config(5)).

    :raises Unreadable: if its configuration cannot be read, or believed.
    """
    policy = _value(root / "etc/selinux/config", "SELINUXTYPE") or "targeted"
    place = _value(root / "etc/selinux/semanage.conf", "store-root") or "/var/lib/selinux"
    return root / place.lstrip("/") / policy / "active/modules"


def _value(file: Path, key: str) -> str:
    """What a file of ``key=value`` lines says last; empty where it says nothing."""
    text = files.read_text(file) or ""
    values = re.findall(rf"^[ \t]*{key}[ \t]*=[ \t]*(.*?)[ \t]*$", text, re.MULTILINE | re.IGNORECASE)
    last = str(values[-1]) if values else ""
    return last[1:-1] if len(last) > 1 and last[0] == last[-1] == '"' else last


def _package(path: Path) -> Optional[bytes]:
    """A package in the store, which libsemanage compresses unless it is told not to (bzip-blocksize)."""
    data = files.read_bytes(path, files.MOST_BYTES)
    if data is None or not data.startswith(b"BZh"):
        return data
    import bz2  # seldom needed

    try:
        return bz2.BZ2Decompressor().decompress(data, files.MOST_BYTES)
    except (OSError, EOFError):
        raise Unreadable(str(path), "is damaged") from None


def why_no_change() -> Optional[str]:
    """Why this host's policy cannot be changed, as far as that can be told before; or None."""
    if _program() is not None:
        return None
    return "found no semodule on this host, expected it; install policycoreutils, or set mps_selinux_module to false"


def _program() -> Optional[str]:
    return shutil.which("semodule", path=os.pathsep.join(hardware.SEARCH_PATH))


def load(module: Path) -> None:
    """Put our module into the policy, or in the place of the one there.

    :raises NotInForce: with semodule's words, if it does not take it.
    """
    _semodule("--install", str(module))


def unload() -> None:
    """Take our module out of the policy.

    :raises NotInForce: with semodule's words.
    """
    _semodule("--remove", MODULE)


def _semodule(*arguments: str) -> None:
    command = [_program() or "semodule", f"--priority={PRIORITY}", *arguments]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInForce(f"`{' '.join(command)}`: {error}; set mps_selinux_module to false, or see why") from None
    if done.returncode:
        said = " ".join(done.stderr.split())[-500:]
        raise NotInForce(f"`{' '.join(command)}` ended with {done.returncode}: {said}")


def enforcing(root: Path = Path("/")) -> bool:
    """Whether SELinux is there and refuses what its policy does not allow."""
    try:
        return (root / "sys/fs/selinux/enforce").read_text().strip() == "1"
    except OSError:
        return False


def label(path: Path) -> Optional[str]:
    """The label of a path, ``system_u:object_r:container_file_t:s0``, or None where it has none."""
    try:
        return os.getxattr(path, "security.selinux").rstrip(b"\0").decode(errors="replace")
    except OSError:
        return None


def kind(text: str) -> str:
    """The type in a label: ``container_file_t``."""
    parts = text.split(":")
    return parts[2] if len(parts) > 2 else ""
