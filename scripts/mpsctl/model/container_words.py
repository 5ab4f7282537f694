"""What is given to a container engine so that a container's processes become clients of an instance.

Words for a command line have no blanks and no quotes, so that a shell takes them as they are: typed, pasted, and from
an unquoted ``$(mpsctl env …)``. An instance's paths, names and UUIDs have no character that any of these forms quotes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Mapping, Optional

from mpsctl.model import cdi
from mpsctl.model.costs import driver_branch
from mpsctl.model.daemon_environment import PIPE_DIRECTORY
from mpsctl.model.errors import BadValue
from mpsctl.model.instance import Instance
from mpsctl.model.places import PROGRAM

ANONYMOUS_MEMORY_FROM = 580
"""Servers of driver 580 say "anonymous shared memory region", and their clients need neither the host's IPC namespace
nor its /dev/shm (H200). Earlier ones name regions of /dev/shm; with those nothing else than the host's was tried."""

EVICT_UNIT = f"{PROGRAM} evict --unit %n"
"""In a unit's ExecStop=: its clients are taken off by the daemons before the first signal. Only root's may do so."""

NVIDIA_KIND = "nvidia.com/gpu"
"""Devices of NVIDIA's own specification, which nvidia-ctk writes."""


@dataclass(frozen=True)
class Way:
    """An instance, its devices' UUIDs, its group's id and the driver's version, None where that is not known."""

    instance: Instance
    devices: tuple[str, ...]
    group_id: Optional[int] = None
    driver: Optional[str] = None

    @property
    def public(self) -> str:
        return self.instance.pipe_directory

    @property
    def host_ipc(self) -> bool:
        """Whether a container is to have the host's IPC namespace. An unknown driver may be an old one."""
        return (driver_branch(self.driver) or 0) < ANONYMOUS_MEMORY_FROM


def docker(way: Way) -> str:
    """Options of docker run, for engines without CDI too.

    Several GPUs would need quotes inside the word of --gpus: docker splits it at commas.
    """
    if len(way.devices) == 1:
        gpus = [f"--gpus=device={way.devices[0]}"]
    else:
        gpus = ["--runtime=nvidia", f"--env=NVIDIA_VISIBLE_DEVICES={','.join(way.devices)}"]
    return " ".join([*gpus, *_bind(way)])


def podman(way: Way) -> str:
    """Options of podman run, which gets GPUs by NVIDIA's CDI specification alone."""
    return " ".join([*(f"--device={NVIDIA_KIND}={uuid}" for uuid in way.devices), *_bind(way)])


def _bind(way: Way) -> list[str]:
    # A mount of a directory that is not there fails, where --volume would have docker make it.
    read_only = ",readonly" if cdi.read_only(way.instance) else ""
    words = [f"--mount=type=bind,source={way.public},target={way.public}{read_only}"]
    return [*words, f"--env={PIPE_DIRECTORY}={way.public}", *_more(way)]


def _more(way: Way) -> list[str]:
    words = [] if way.group_id is None else [f"--group-add={way.group_id}"]
    return [*words, *(["--ipc=host"] if way.host_ipc else [])]


def with_cdi(way: Way) -> str:
    """Options of docker run (25 or newer) and podman run, by our own specification and NVIDIA's.

    :raises BadValue: if CDI takes no such name.
    """
    own = cdi.device(way.instance.name)
    if own is None:
        raise BadValue(
            f"the instance {way.instance.name}",
            "a name that ends with a letter or digit, for a CDI device",
            "use --format docker or podman",
        )
    return " ".join([*(f"--device={NVIDIA_KIND}={uuid}" for uuid in way.devices), f"--device={own}", *_more(way)])


def compose(way: Way) -> str:
    """A compose file whose one service another file's service can extend."""
    lines = [
        "services:",
        f"  {service(way.instance)}:",
        "    environment:",
        f'      {PIPE_DIRECTORY}: "{way.public}"',
        "    volumes:",
        "      - type: bind",
        f'        source: "{way.public}"',
        f'        target: "{way.public}"',
        *(["        read_only: true"] if cdi.read_only(way.instance) else []),
        "        bind:",
        "          create_host_path: false",
        "    deploy:",
        "      resources:",
        "        reservations:",
        "          devices:",
        "            - driver: nvidia",
        f"              device_ids: [{', '.join(map(_quoted, way.devices))}]",
        "              capabilities: [gpu]",
        *([] if way.group_id is None else [f'    group_add: ["{way.group_id}"]']),
        *(["    ipc: host"] if way.host_ipc else []),
    ]
    return "\n".join(lines)


def service(instance: Instance) -> str:
    """The name of the service in ``compose``."""
    return f"mps-{instance.name}"


def _quoted(text: str) -> str:
    return f'"{text}"'


def quadlet(way: Way) -> str:
    """A drop-in of a .container unit, or lines for its sections."""
    read_only = ":ro" if cdi.read_only(way.instance) else ""
    lines = [
        "[Container]",
        *(f"AddDevice={NVIDIA_KIND}={uuid}" for uuid in way.devices),
        f"Volume={way.public}:{way.public}{read_only}",
        f"Environment={PIPE_DIRECTORY}={way.public}",
        *([] if way.group_id is None else [f"PodmanArgs=--group-add={way.group_id}"]),
        *(["PodmanArgs=--ipc=host"] if way.host_ipc else []),
        "[Service]",
        f"ExecStop=-{EVICT_UNIT}",
    ]
    return "\n".join(lines)


FORMATS: Mapping[str, Callable[[Way], str]] = {
    "docker": docker,
    "podman": podman,
    "cdi": with_cdi,
    "compose": compose,
    "quadlet": quadlet,
}
"""What each is asked for as."""
