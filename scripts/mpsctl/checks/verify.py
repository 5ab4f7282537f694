"""Whether MPS is truly active on this host, as a list of checks for the host and for each instance."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Callable, Iterable, Optional, Sequence

from mpsctl.adapters import hardware
from mpsctl.adapters.bounded import Call
from mpsctl.checks import checking, client_checks, host_checks, instance_checks
from mpsctl.model import finding
from mpsctl.model.errors import MpsctlError
from mpsctl.model.finding import CANNOT_TELL, FAIL, PASS, Check
from mpsctl.observe import host as host_look
from mpsctl.observe.host import NVML_TIMEOUT_S, HostLook, InstanceLook
from mpsctl.store import configuration
from mpsctl.store.world import World

__all__ = ["InstanceLook", "Probe", "Report", "of_instance", "verify"]

INSTANCE_TIMEOUT_S = 30.0
"""Above all bounds inside: it is met only where /proc or a file system hangs."""

Probe = Callable[[InstanceLook], Iterable[Check]]


@dataclass
class Report:
    """All checks. ``host`` are those of the host, ``instances`` those of each instance by its name."""

    host: list[Check] = field(default_factory=list)
    instances: dict[str, list[Check]] = field(default_factory=dict)
    simulated: bool = False

    @property
    def every(self) -> list[tuple[Optional[str], Check]]:
        """Each check with the instance that it speaks of, None for the host."""
        found: list[tuple[Optional[str], Check]] = [(None, one) for one in self.host]
        return found + [(name, one) for name, checks in self.instances.items() for one in checks]

    @property
    def worst(self) -> str:
        return finding.worst(one.level for _, one in self.every)

    @property
    def exit_code(self) -> int:
        """As monitoring plugins have it: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN."""
        return finding.exit_code(one.level for _, one in self.every)

    def as_json(self) -> dict[str, Any]:
        return {
            "simulated": self.simulated,
            "host": [asdict(one) for one in self.host],
            "instances": {name: [asdict(one) for one in checks] for name, checks in self.instances.items()},
            "worst": self.worst,
            "exit_code": self.exit_code,
        }


def verify(
    world: World,
    names: Sequence[str] = (),
    probe: Optional[Probe] = None,
    nvml_timeout_s: float = NVML_TIMEOUT_S,
    instance_timeout_s: float = INSTANCE_TIMEOUT_S,
) -> Report:
    """Check the host and the named instances, or all that have a file. Changes nothing and raises nothing.

    Every instance is looked at in a process of its own, all at once: what hangs on one holds up no other.
    ``probe`` adds its own checks of an instance, made with a real CUDA client; ``instance_timeout_s`` must leave
    it its time.
    """
    report = Report(simulated=hardware.simulated())
    host = host_look.at_host(world, names, nvml_timeout_s)
    calls = {
        name: Call(partial(of_instance, host, name, probe), instance_timeout_s, f"instance {name}")
        for name in names or configuration.names(world)
    }
    of_host = Call(partial(checking.run, host_checks.CHECKS, host), instance_timeout_s, "the look at the host")
    try:
        report.host = of_host.answer()
    except MpsctlError as error:
        report.host = [Check("look", CANNOT_TELL, str(error))]
    for name, call in calls.items():
        try:
            report.instances[name] = call.answer()
        except MpsctlError as error:
            report.instances[name] = [Check("look", CANNOT_TELL, str(error))]
    return report


def of_instance(host: HostLook, name: str, probe: Optional[Probe] = None) -> list[Check]:
    """The checks of one instance."""
    if name in host.refused:
        error = host.refused[name]
        return [Check("configuration", FAIL, error.found, error.expected, error.remedy)]
    checks = [Check("configuration", PASS, str(host.world.places.conf(name)))]
    try:
        at = host_look.at_instance(host, host.instances[name])
    except (MpsctlError, OSError) as error:
        return [*checks, Check("look", CANNOT_TELL, str(error))]
    except Exception as error:  # of one instance, and no other's
        return [*checks, Check("look", CANNOT_TELL, f"{type(error).__name__}: {error} (a fault of mpsctl)")]
    checks += checking.run(instance_checks.CHECKS, at)
    checks += checking.run(client_checks.CHECKS, at)
    if probe is not None:
        try:
            checks += probe(at)
        except Exception as error:
            checks.append(Check("probe", CANNOT_TELL, f"{type(error).__name__}: {error}"))
    return checks
