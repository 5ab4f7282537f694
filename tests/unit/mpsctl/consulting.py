"""A host that the doctor is asked about: what the tests of the doctor share."""

from __future__ import annotations

from pathlib import Path
from typing import Optional, Sequence

from fakes import FakeDaemon, Host, uuid
from mpsctl.causes import consult
from mpsctl.causes.consult import Answer, Question
from mpsctl.causes.diagnosis import Diagnosis

SERVER = 9001


def variables(host: Host, name: str = "0", gpu: int = 0) -> dict[str, str]:
    """What a client of an instance exports."""
    return {"CUDA_MPS_PIPE_DIRECTORY": f"{host.pipe_root}/{name}", "CUDA_VISIBLE_DEVICES": uuid(gpu)}


def run(host: Host, name: str = "0", server: int = SERVER, **values: object) -> FakeDaemon:
    """An instance with a limit of 4 GiB that runs in the desired state, with a server that has no client yet."""
    host.places.root.chmod(0o755)
    host.desired(name, **{"DeviceMemoryLimit": "4G", "ComputeMode": "exclusive_process", **values})
    host.systemd.unit(f"mps-control@{name}.service").enabled = True
    daemon = host.start(name)
    daemon.start_server(host.process("nvidia-cuda-mps-server", "nvidia-cuda-mps-server", {}, 0, server))
    host.processes[server].parent = daemon.pid
    host.nvml.outside_mib.setdefault(uuid(int(name)), {})[server] = 66
    return daemon


def join(host: Host, daemon: FakeDaemon, held_mib: int = 600, **more: str) -> int:
    """A client of the server, which holds this much of GPU 0."""
    pid = host.process("python3", "python3 serve.py", {**variables(host), **more}, 1000)
    daemon.connect(SERVER, pid)
    hold(host, pid, held_mib)
    return pid


def hold(host: Host, pid: int, held_mib: int, gpu: int = 0) -> None:
    """NVML lists a process as an MPS client that holds this much of a GPU."""
    assert host.nvml.held_mib is not None
    host.nvml.held_mib.setdefault(uuid(gpu), {})[pid] = held_mib


def outsider(host: Host, environment: Optional[dict[str, str]], uid: int = 1000, held_mib: int = 600) -> int:
    """A process with a context on GPU 0 that is no MPS client."""
    pid = host.process("python3", "python3 train.py", environment, uid)
    host.nvml.outside_mib.setdefault(uuid(0), {})[pid] = held_mib
    return pid


FILES = ("control", "control_privileged", "control_lock", "log")


def their_daemon(host: Host, directory: Path, left: Sequence[str] = FILES, **environment: str) -> int:
    """A control daemon of somebody else on a directory, with the files that are left there; its pid."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in left:
        (directory / name).touch()
    known = {"CUDA_MPS_PIPE_DIRECTORY": str(directory), **environment}
    return host.process("nvidia-cuda-mps-control", "nvidia-cuda-mps-control -d", known, 1001)


def ask(host: Host, **question: object) -> Answer:
    """As `mpsctl doctor` does; the look comes to its end."""
    answer = consult.consult(host.world, Question(**question))  # type: ignore[arg-type]
    assert not any("checks alone" in line or "did not answer" in line for line in answer.understood), answer
    return answer


def names(host: Host, **question: object) -> list[str]:
    return [one.name for one in ask(host, **question).diagnoses]


def find(host: Host, name: str, **question: object) -> Diagnosis:
    """The one diagnosis of a name."""
    (found,) = [one for one in ask(host, **question).diagnoses if one.name == name]
    return found
