"""A process on a GPU, and what keeps one from an instance, as typed facts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Mapping, Optional


@dataclass(frozen=True)
class Obstacle:
    """What keeps a process, or a user, from an instance. ``kind`` is one of the words below; the rest belongs to it."""

    kind: str
    path: Optional[Path] = None
    user: str = ""
    mode: int = 0
    owner: str = ""
    named: Optional[str] = None
    """what the process's own variable says"""
    expected: tuple[str, ...] = ()
    words: str = ""


(
    DIRECTORY_CLOSED,
    SOCKET_CLOSED,
    NOT_IN_GROUP,
    UNSET,
    OTHER_DIRECTORY,
    DIRECTORY_ABSENT,
    NOT_MOUNTED,
    OTHER_MOUNT,
    NO_SOCKET,
    NO_GPU_OF_IT,
    STARTED_BEFORE,
    CANNOT_LOOK,
    HANGS,
    ENVIRONMENT_UNREAD,
    NOTHING_WRONG,
) = (
    "directory-closed",
    "socket-closed",
    "not-in-group",
    "pipe-directory-unset",
    "other-pipe-directory",
    "pipe-directory-absent",
    "pipe-directory-not-mounted",
    "other-mount",
    "no-socket",
    "no-gpu-of-the-instance",
    "started-before-daemon",
    "cannot-look",
    "ended-or-hangs",
    "environment-unread",
    "nothing-wrong",
)

CLIENT, SERVER, OUTSIDE, OF_ANOTHER, LEFT_OVER, OF_LEFT_OVER, UNTOLD = (
    "client",
    "server",
    "outside-mps",
    "of-another-daemon",
    "left-over-server",
    "client-of-left-over-server",
    "untold",
)


@dataclass(frozen=True)
class GpuProcess:
    """One process with a compute context on a device of an instance. ``kind`` is one of the words above.

    ``obstacles`` say what keeps one outside MPS from being a client, ``served_by`` is the control daemon of one that is
    another's (its pid) and ``directory`` that daemon's; ``why_untold`` says why the kind cannot be told. ``variables``
    are the MPS variables of its environment, ``max_connections`` its CUDA_DEVICE_MAX_CONNECTIONS.
    """

    pid: int
    kind: str
    memory_mib: Optional[int]
    uid: Optional[int]
    user: Optional[str]
    command: str
    container: Optional[str]
    obstacles: tuple[Obstacle, ...] = ()
    served_by: Optional[int] = None
    directory: Optional[str] = None
    why_untold: str = ""
    readable: bool = True
    variables: Mapping[str, str] = field(default_factory=dict)
    max_connections: Optional[str] = None
