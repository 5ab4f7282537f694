"""A container's configuration: whether its processes can become clients of a daemon on the host.

Of a compose file's services some are no clients: one runs a control daemon, one sets compute modes, one has nothing
to do with CUDA. Each is told as what it is.

Read are what `docker inspect` prints, and a compose file as JSON (`docker compose config --format json`); as YAML only
where PyYAML is there, which is not needed on a GPU host.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Mapping, Optional, Sequence

from mpsctl.adapters.hardware import CONTROL_DAEMON
from mpsctl.causes import environment, units
from mpsctl.causes.diagnosis import CERTAIN, LIKELY, POSSIBLE, Diagnosis, diagnose
from mpsctl.model import cdi
from mpsctl.model.container_words import ANONYMOUS_MEMORY_FROM
from mpsctl.model.costs import driver_branch
from mpsctl.model.daemon_environment import DEFAULT_PIPE_DIRECTORY, PIPE_DIRECTORY, VISIBLE_DEVICES
from mpsctl.model.errors import BadValue
from mpsctl.model.foreign import shown
from mpsctl.model.instance import Instance
from mpsctl.model.pattern import Pattern

_SHARED_IPC = Pattern(r"host|shareable|(?:container|service):.+")
_CDI_DEVICE = Pattern(rf"{cdi.KIND}=([A-Za-z0-9_.-]+)")
_SHELL = Pattern(r"^\s*(?:\S*/)?(?:ba|da|k|z)?sh\s+(?:-\S+\s+)*-\w*c\s+")
_RUNS = Pattern(r"-(?:\w*[df]\w*|-daemon|-foreground)")
"""The control daemon's arguments with which it is no front-end."""
_HELPER = Pattern(
    rf"{CONTROL_DAEMON}|nvidia-smi|nvidia-persistenced|echo|sleep|true|:|tail|trap|wait|mkdir|rm|chmod|chown|set|export"
    r"|cat|date|touch|cd|exit|kill|test|\[|\[\[|\]|if|then|else|elif|fi|for|in|while|until|do|done|\{|\}|!"
)
"""What a script that only manages MPS runs beside it."""
_DAEMON_IMAGE = Pattern(r"(?:^|/)(?:[\w.-]*[-_.])?mps(?:[-_.][\w.-]*)?(?:[:@]|$)")
_PIPES = Pattern(r"(?<![a-z])mps(?![a-z])")
_NO_GPU = ("", "void", "none")


@dataclass(frozen=True)
class Container:
    """What of a container's configuration matters here. ``mounts`` is what lies where: target to source.

    ``gpu`` is whether it asks for one, None where the form cannot tell. ``asked_for`` is whether it is the one that was
    asked about, and not a service among others.
    """

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)
    ipc: str = ""
    pid: str = ""
    user: str = ""
    gpu: Optional[bool] = None
    command: str = ""
    image: str = ""
    by_cdi: tuple[str, ...] = ()
    """the instances that it is given as CDI devices: what these mount and set shows nowhere in its configuration"""
    asked_for: bool = False

    @property
    def runs_daemon(self) -> bool:
        """Whether it starts a control daemon: by its command or, without one, by its image's name."""
        if not self.command.strip():
            return bool(_DAEMON_IMAGE.search(self.image))
        return any(program == CONTROL_DAEMON and _RUNS.match(rest) for program, rest in _programs(self.command))

    @property
    def sets_modes(self) -> bool:
        return units.sets_compute_mode(self.command)

    @property
    def only_manages(self) -> bool:
        """Whether it manages MPS or the GPUs' modes and runs no program beside."""
        helpers = all(_HELPER.fullmatch(program) for program, _ in _programs(self.command))
        return (self.runs_daemon or self.sets_modes) and helpers

    @property
    def is_client(self) -> bool:
        """Whether it is to be judged as a CUDA program: it asks for a GPU, sets a variable of CUDA's or mounts a pipe
        directory."""
        if self.only_manages:
            return False
        variables = any(name.startswith("CUDA_") for name in self.environment)
        pipes = any(_PIPES.search(path) for mount in self.mounts.items() for path in mount)
        return self.asked_for or bool(self.gpu) or self.sees_gpus or variables or pipes or bool(self.by_cdi)

    @property
    def sees_gpus(self) -> bool:
        return self.environment.get("NVIDIA_VISIBLE_DEVICES", "void") not in _NO_GPU


def read(text: str) -> list[Container]:
    """The containers in a file's text.

    :raises BadValue: if it is neither of the two forms, or YAML without PyYAML.
    """
    try:
        data = json.loads(text)
    except RecursionError:
        raise BadValue("JSON that is nested too deep", "a container's", "see what wrote it") from None
    except ValueError:
        data = _yaml(text)
    if isinstance(data, dict) and isinstance(data.get("services"), dict):
        return [_service(str(name), service) for name, service in data["services"].items() if isinstance(service, dict)]
    rows = data if isinstance(data, list) else [data]
    found = [_inspected(row) for row in rows if isinstance(row, dict) and isinstance(row.get("Config"), dict)]
    if not found:
        raise BadValue(
            "no container",
            "what `docker inspect NAME` or `docker compose config --format json` prints",
            "write one of the two into the file",
        )
    return found


def _yaml(text: str) -> Any:
    refused = BadValue(
        "a file that is no JSON", "JSON (PyYAML is not on this host)", "use `docker compose config --format json`"
    )
    try:
        import yaml
    except ImportError:
        raise refused from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        line = " ".join(str(error).split())
        raise BadValue(f"neither JSON nor YAML ({line})", "a compose file", "correct it") from None


def _mapping(value: Any) -> dict[str, str]:
    """An environment, which is a mapping or a list of NAME=VALUE."""
    if isinstance(value, dict):
        return {str(key): "" if one is None else str(one) for key, one in value.items()}
    pairs = (str(one).partition("=") for one in _list(value))
    return {key: text for key, _, text in pairs}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _command(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value or "")


def _service(name: str, service: Mapping[str, Any]) -> Container:
    """A service of a compose file."""
    mounts: dict[str, str] = {}
    for volume in _list(service.get("volumes")):
        if isinstance(volume, dict):
            mounts[str(volume.get("target", ""))] = str(volume.get("source", ""))
        else:
            source, separator, rest = str(volume).partition(":")
            mounts[rest.partition(":")[0] if separator else source] = source if separator else ""
    variables = _mapping(service.get("environment"))
    asks = ("gpus", "device_requests")
    devices = str(service.get("deploy", "")) + str(service.get("devices", ""))
    gpu = any(service.get(key) for key in asks) or bool(re.search(r"gpu|nvidia", devices))
    return Container(
        name=name,
        environment=variables,
        mounts=mounts,
        ipc=_word(service.get("ipc")),
        pid=_word(service.get("pid")),
        user=_word(service.get("user")),
        gpu=gpu or service.get("runtime") == "nvidia",
        command=f"{_command(service.get('entrypoint'))} {_command(service.get('command'))}",
        image=_word(service.get("image")),
        by_cdi=tuple(_CDI_DEVICE.findall(devices)),
    )


def _word(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _inspected(row: Mapping[str, Any]) -> Container:
    """A container as `docker inspect` prints it."""
    config, host = row["Config"], row.get("HostConfig")
    host = host if isinstance(host, dict) else {}
    mounts: dict[str, str] = {}
    for mount in _list(row.get("Mounts")):
        if isinstance(mount, dict):
            mounts[str(mount.get("Destination", ""))] = str(mount.get("Source", ""))
    for bind in _list(host.get("Binds")):
        source, _, rest = str(bind).partition(":")
        mounts.setdefault(rest.partition(":")[0], source)
    variables = _mapping(config.get("Env"))
    wants = f"{host.get('DeviceRequests')} {config.get('CreateCommand')}"
    asked = bool(re.search("gpu|nvidia", str(host.get("DeviceRequests")), re.IGNORECASE))
    asked = asked or "nvidia.com/gpu=" in wants
    return Container(
        name=str(row.get("Name", "")).lstrip("/") or str(row.get("Id", ""))[:12] or "container",
        environment=variables,
        mounts=mounts,
        ipc=str(host.get("IpcMode") or ""),
        pid=str(host.get("PidMode") or ""),
        user=str(config.get("User") or ""),
        gpu=asked or host.get("Runtime") == "nvidia" or "/dev/nvidia" in str(host.get("Devices") or ""),
        command=f"{_command(config.get('Entrypoint'))} {_command(config.get('Cmd'))}",
        image=str(config.get("Image") or ""),
        # podman shows devices of CDI only in the words that made the container
        by_cdi=tuple(_CDI_DEVICE.findall(wants)),
        asked_for=True,
    )


def lint(container: Container, instances: Sequence[Instance], driver: Optional[str]) -> list[Diagnosis]:
    """What keeps the container's processes from becoming clients, or hurts them as such; or what it manages.

    ``instances`` are the host's, of which it is to use one; without any, directories are judged by their names.
    """
    found = _manages(container, instances)
    if not container.is_client:
        return found
    name = shown(container.name)
    if not container.runs_daemon:
        found += [*_pipe(container, instances), *_ipc(container, driver)]
    if container.gpu is False and not container.sees_gpus:
        found.append(diagnose("container-no-gpu", LIKELY, f"{name} asks for no GPU"))
    chosen = [word.strip() for word in container.environment.get(VISIBLE_DEVICES, "").split(",") if word.strip()]
    if chosen and all(word.isdigit() for word in chosen) and any(word != "0" for word in chosen):
        line = f"{name}: {VISIBLE_DEVICES}={shown(','.join(chosen))}"
        found.append(diagnose("container-visible-devices", LIKELY, line))
    found += _user(container, instances)
    return found + ([] if container.runs_daemon else environment.lint(container.environment, None))


def role(container: Container) -> str:
    """What a container is, for a line about it; empty for one that is judged as a CUDA program."""
    roles = ["starts a control daemon of its own"] if container.runs_daemon else []
    roles += ["sets compute modes"] if container.sets_modes else []
    if not roles and not container.is_client:
        roles = ["no CUDA program: it asks for no GPU and sets no variable of CUDA's"]
    return f" ({', '.join(roles)})" if roles else ""


def _programs(command: str) -> list[tuple[str, str]]:
    """Each program of a command line, or of the script in one, with what follows it."""
    script = _SHELL.sub("", command).replace('"', " ").replace("'", " ")
    found = []
    for part in re.split(r"[;&|\n()]+", script):
        words = part.split()
        while words and (words[0] in ("exec", "env", "sudo", "do", "then", "else") or re.match(r"\w+=", words[0])):
            words = words[1:]
        if words:
            found.append((words[0].rpartition("/")[2], " ".join(words[1:])))
    return found


def _manages(container: Container, instances: Sequence[Instance]) -> list[Diagnosis]:
    """A second manager beside the instances, and what is wrong with it as such."""
    name, found = shown(container.name), []
    beside = [f"this host has the instance{'s' * (len(instances) > 1)} {', '.join(one.name for one in instances)}"]
    if container.runs_daemon:
        directory = container.environment.get(PIPE_DIRECTORY) or DEFAULT_PIPE_DIRECTORY
        how = shown(container.command.strip()) or f"image {shown(container.image)}"
        if instances:
            line = f"{name} runs a control daemon of its own on {shown(directory)}: {how}"
            found.append(diagnose("several-managers", LIKELY, line, *beside))
        if container.command.strip() and container.pid != "host":
            line = f"{name} runs the control daemon with pid: {shown(container.pid) or 'its own'}"
            found.append(diagnose("clients-hidden-by-pid-namespace", LIKELY, line))
        found += environment.lint(container.environment, None, of_daemon=True)
    if container.sets_modes:
        line = f"{name} sets compute modes: {shown(container.command.strip())}"
        if instances:
            found.append(diagnose("several-managers", LIKELY, line, *beside))
        found += units.compute_mode(container.command, line)
    return found


def _inside(path: str, directory: str) -> bool:
    one, other = PurePosixPath(path), PurePosixPath(directory or "/nowhere")
    return one == other or other in one.parents


def _pipe(container: Container, instances: Sequence[Instance]) -> list[Diagnosis]:
    if container.by_cdi:  # the engine starts no container with a device that its host has not
        return []
    named = container.environment.get(PIPE_DIRECTORY)
    wanted = (named or DEFAULT_PIPE_DIRECTORY).rstrip("/")
    publics = [instance.pipe_directory for instance in instances]

    def serves(source: str) -> bool:
        if publics:
            return any(_inside(public, source) or _inside(source, public) for public in publics)
        return "mps" in source

    pipes = {target: source for target, source in container.mounts.items() if serves(source)}
    listed = ", ".join(f"{shown(source)} on {shown(target)}" for target, source in container.mounts.items()) or "none"
    mounts = f"{shown(container.name)}: mounts: {listed}"
    variable = f"{PIPE_DIRECTORY}={shown(named)}" if named else f"no {PIPE_DIRECTORY}, so {DEFAULT_PIPE_DIRECTORY}"
    holder = next((target for target in container.mounts if _inside(wanted, target)), None)
    found = []
    if holder is None and not pipes:
        found.append(diagnose("container-without-pipe-directory", CERTAIN, mounts, variable))
    elif holder is None:
        found.append(diagnose("container-pipe-variable", CERTAIN, mounts, variable))
    elif publics and not serves(container.mounts[holder]):
        found.append(diagnose("pipe-directory-wrong", LIKELY, mounts, f"the instances have {', '.join(publics)}"))
    for source in {container.mounts[holder]} if holder else set(pipes.values()):
        found += environment.directory(source) if source.startswith("/") else []
    return found


def _ipc(container: Container, driver: Optional[str]) -> list[Diagnosis]:
    if _SHARED_IPC.fullmatch(container.ipc) or container.mounts.get("/dev/shm") == "/dev/shm":
        return []
    line = f"{shown(container.name)}: ipc: {shown(container.ipc) or 'its own'}"
    if container.ipc not in ("", "private", "none"):
        line += " (not host: no such mode)"
    new = (driver_branch(driver) or 0) >= ANONYMOUS_MEMORY_FROM
    return [diagnose("container-ipc", POSSIBLE if new else LIKELY, line, f"driver {driver or 'not known'}")]


def _user(container: Container, instances: Sequence[Instance]) -> list[Diagnosis]:
    servers = {instance.server_user for instance in instances if instance.server_user and not instance.multi_user}
    user = container.user.partition(":")[0] or "root"
    same = {user, {"root": "0", "0": "root"}.get(user, user)}
    if len(servers) != 1 or servers & same or any(instance.multi_user for instance in instances):
        return []
    line = f"{shown(container.name)} runs as {shown(user)}, the instance's server as {servers.pop()}"
    return [diagnose("container-user", LIKELY, line)]
