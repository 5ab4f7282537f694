"""What a look counted on a host, as metrics."""

from __future__ import annotations

from typing import Optional

from mpsctl import __version__
from mpsctl.checks.report import Report
from mpsctl.metrics import of_instance
from mpsctl.metrics.exposition import Samples
from mpsctl.metrics.families import LEVELS
from mpsctl.model import build
from mpsctl.model.gpu import DEFAULT, EXCLUSIVE_PROCESS, PROHIBITED
from mpsctl.observe.facts import GpuFacts

MODES = (DEFAULT, EXCLUSIVE_PROCESS, PROHIBITED)


def samples(report: Report, ended_at_s: float, duration_s: float, by: Optional[str] = None) -> Samples:
    """The metrics of a look that ended ``ended_at_s`` seconds after 1970. ``by`` is a word of METRICS_BY."""
    found, host = Samples(), report.facts
    found.add("mps_build_info", 1, __version__, build.ID)
    found.add("mps_simulated", int(host.simulated))
    _gpus(found, host.gpus)
    found.add("mps_last_look_timestamp_seconds", round(ended_at_s, 3))
    found.add("mps_last_look_duration_seconds", round(duration_s, 3))
    for name, check in report.every:
        found.add("mps_check_level", LEVELS[check.level], name or "", check.name)
    for name in report.instances:
        of_instance.add(found, report, name, by)
    return found


def _gpus(found: Samples, gpus: GpuFacts) -> None:
    if gpus.unread is not None:
        return
    for gpu in gpus.gpus:
        found.choose("mps_gpu_compute_mode", gpu.compute_mode, MODES, gpu.uuid)
        for uuid, memory_mib in ((gpu.uuid, gpu.memory_mib), *((mig.uuid, mig.memory_mib) for mig in gpu.mig_devices)):
            found.add("mps_gpu_info", 1, uuid, gpu.index, gpu.name, gpus.driver or "")
            found.add("mps_gpu_memory_total_bytes", of_instance.in_bytes(memory_mib), uuid)
            found.add("mps_gpu_memory_used_bytes", of_instance.in_bytes(gpus.load(uuid).used_mib), uuid)
