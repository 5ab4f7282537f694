"""ssh keys, made by this machine's ssh-keygen, or where it has none by that of a host root."""

from __future__ import annotations

import shutil
from pathlib import Path

from mpslab import processes

_CHROOTED = 'mount --bind /dev "$1/dev" && mount --bind "$2" "$1/mnt" && shift 2 && exec chroot "$@"'


def make(path: Path, comment: str, root: Path) -> None:
    """Make an ed25519 key pair without a passphrase.

    :param root: a host root with an ssh-keygen; the mounts there are nobody else's and end with the command.
    """
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f"]
    if shutil.which(words[0], path=processes.ENVIRONMENT["PATH"]):
        processes.run([*words, path])
    else:
        inside = [str(root), *words, f"/mnt/{path.name}"]
        processes.run([*processes.CONTAINED, "sh", "-c", _CHROOTED, "sh", root, path.parent, *inside])
