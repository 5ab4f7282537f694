"""The rooms of the outside world that acts and proofs are handed, so that tests can hand them others."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Mapping, Optional, Protocol, Sequence

from mpsctl.adapters import nvml
from mpsctl.adapters.control_daemon import Bounded, Daemon, FrontEnd
from mpsctl.adapters.nvml import Nvml
from mpsctl.adapters.systemd import Systemctl, Systemd
from mpsctl.model import foreign
from mpsctl.model.places import Places

if TYPE_CHECKING:
    from mpsctl.adapters.cuda import Seen, Trial


class CudaClient(Protocol):
    """A bare CUDA client for the length of a block, as ``adapters.cuda.client`` makes it."""

    def __call__(
        self, environment: Mapping[str, str], timeout_s: float, trial: Optional[Trial] = None
    ) -> AbstractContextManager[Seen]: ...


def _front_end(pipe_directory: Path, lock: Optional[Path]) -> Daemon:
    return FrontEnd(pipe_directory, lock)


# Seldom needed, so read only then.
def _cuda_client(
    environment: Mapping[str, str], timeout_s: float, trial: Optional[Trial] = None
) -> AbstractContextManager[Seen]:
    from mpsctl.adapters import cuda

    return cuda.client(environment, timeout_s, trial)


def _temporary_daemon(pipe_directory: Path, devices: Sequence[str]) -> AbstractContextManager[None]:
    from mpsctl.adapters import temporary_daemon

    return temporary_daemon.started(pipe_directory, devices)


@dataclass(frozen=True)
class World:
    """Everything outside: files, NVML, systemd, control daemons, the clock and where warnings go."""

    places: Places = field(default_factory=Places)
    nvml: Callable[[], AbstractContextManager[Nvml]] = nvml.opened
    systemd: Systemd = field(default_factory=Systemctl)
    daemon: Callable[[Path, Optional[Path]], Daemon] = _front_end
    cuda: CudaClient = _cuda_client
    temporary_daemon: Callable[[Path, Sequence[str]], AbstractContextManager[None]] = _temporary_daemon
    now_s: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
    wall_s: Callable[[], float] = time.time
    sleep_s: Callable[[float], None] = time.sleep
    say: Callable[[str], None] = lambda text: print(foreign.line(text), flush=True)

    def daemon_of(self, instance: str, pipe_directory: Path) -> Daemon:
        """The control daemon of an instance, under the session lock of our other calls."""
        return self.daemon(pipe_directory, self.places.runtime(instance) / "session.lock")

    def hurried(self, end_s: float, pid: int = 0) -> World:
        """This world, with daemons that may take until ``end_s`` on its clock; ``pid`` is as in ``Bounded``."""
        return replace(self, daemon=lambda place, lock: Bounded(self.daemon(place, lock), self.now_s, end_s, pid))
