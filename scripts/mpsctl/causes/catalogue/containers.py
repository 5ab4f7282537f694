"""What is wrong with the container that a client or a daemon runs in."""

from __future__ import annotations

from typing import Mapping

from mpsctl.causes.catalogue.cause import Cause

CAUSES: Mapping[str, Cause] = {
    "container-without-pipe-directory": Cause(
        "the container has not mounted the pipe directory, so its processes find no daemon",
        "mount it on the same path: `mpsctl env INSTANCE --format docker` prints the options",
    ),
    "container-pipe-variable": Cause(
        "CUDA_MPS_PIPE_DIRECTORY in the container is not the place where the pipe directory is mounted there",
        "set it to the mount's path in the container",
    ),
    "container-ipc": Cause(
        "the container has an IPC namespace and a /dev/shm of its own. Servers of drivers before about 580 need to"
        " share them with their clients, else the connection breaks with 805",
        "give it `ipc: host` (docker run --ipc=host), or the host's /dev/shm",
    ),
    "container-visible-devices": Cause(
        "CUDA_VISIBLE_DEVICES in the container names GPUs by the host's indices, and there they are numbered from 0",
        "leave it out where the runtime hands over only the instance's GPUs, or name UUIDs",
    ),
    "container-user": Cause(
        "the container runs as another user than the clients that the daemon serves now: on a daemon for one user it"
        " waits until those have ended",
        "run it as the same user, or set mps_multi_user (one fault then ends the clients of all users)",
    ),
    "container-no-gpu": Cause(
        "the container is given no GPU",
        "ask for one: `--gpus` of docker run, `deploy.resources.reservations.devices` or `gpus:` of compose",
    ),
    "clients-hidden-by-pid-namespace": Cause(
        "a client came with process id 0: neither the daemon nor its client sees the other's pid namespace. Such"
        " clients cannot be told apart, and a server in such a container may fail to find itself",
        "run the daemon on the host, or give its container the host's pid namespace (hostPID, --pid=host). Clients may"
        " keep one of their own: the host's daemon lists them by their pid outside (driver 580, H200)",
    ),
    "user-namespace": Cause(
        "the process is in a user namespace: the daemon sees another user id than the process has inside",
        "let the outer user id be the one that the daemon serves, or use no user namespace",
    ),
    "pid-namespace": Cause(
        "the process is in a pid namespace of its own: the process ids inside are not the daemon's",
        "use the host's process ids (as in `mpsctl clients`) with terminate_client",
    ),
    "driver-root-without-shell": Cause(
        "the command is run in a driver root that is no complete system and has no shell",
        "call nvidia-cuda-mps-control by its full path with the driver root's libraries, not through `sh -c` inside it",
    ),
}
