"""The one table of metrics: one row for each family. The documentation is made from it.

Labels are names that a site chose, UUIDs and words of closed lists: never a process id, a user, a command or a text of
somebody else. What cannot be told has no sample; 0 is a number that was counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping

GAUGE, COUNTER = "gauge", "counter"
INSTANCE, GPU = "mps_instance", "gpu_uuid"
LEVELS: Mapping[str, int] = {"ok": 0, "warning": 1, "critical": 2, "unknown": 3}
"""The value of a level, as monitoring plugins have it for an exit code."""


@dataclass(frozen=True)
class Family:
    """``labels`` are those that every sample has, in their order; ``help`` is one sentence. ``only_by`` is the choice
    of ``--by`` that it needs, empty where it always stands."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    only_by: str = ""


_OF_INSTANCE, _OF_GPU, _OF_BOTH = (INSTANCE,), (GPU,), (INSTANCE, GPU)

FAMILIES: tuple[Family, ...] = (
    Family("mps_build_info", GAUGE, ("version", "build"), "1, with the version of mpsctl and the build that looked."),
    Family("mps_simulated", GAUGE, (), "1 where the GPUs are simulated by a lab, else 0."),
    Family(
        "mps_gpu_info",
        GAUGE,
        (GPU, "gpu_index", "model", "driver_version"),
        "1 for each GPU and MIG device, with the index and model of its GPU; driver_version is empty if not told.",
    ),
    Family("mps_gpu_memory_total_bytes", GAUGE, _OF_GPU, "Memory of a GPU or MIG device."),
    Family(
        "mps_gpu_memory_used_bytes",
        GAUGE,
        _OF_GPU,
        "What is used of it, by whomever, the driver's own reserve included.",
    ),
    Family(
        "mps_gpu_compute_mode",
        GAUGE,
        (GPU, "mode"),
        "1 for the compute mode that a GPU has, 0 for the others: default, exclusive_process, prohibited.",
    ),
    Family("mps_last_look_timestamp_seconds", GAUGE, (), "When the look ended, in seconds since 1970."),
    Family("mps_last_look_duration_seconds", GAUGE, (), "How long the look took."),
    Family("mps_level", GAUGE, _OF_INSTANCE, "The worst level of an instance: 0 ok, 1 warning, 2 critical, 3 unknown."),
    Family(
        "mps_check_level",
        GAUGE,
        (INSTANCE, "check"),
        "The level of each check, 0 to 3 as above; mps_instance is empty where it is of the host.",
    ),
    Family(
        "mps_in_desired_state",
        GAUGE,
        _OF_INSTANCE,
        "1 where no check names anything that brings the instance into the desired state, 0 where one does.",
    ),
    Family("mps_restart_pending", GAUGE, _OF_INSTANCE, "1 where something is desired that only a restart brings."),
    Family("mps_daemon_up", GAUGE, _OF_INSTANCE, "1 where the control daemon's process lives under its unit, else 0."),
    Family("mps_daemon_answers", GAUGE, _OF_INSTANCE, "1 where the daemon that is up answered, 0 where it did not."),
    Family(
        "mps_daemon_restarts_total",
        COUNTER,
        _OF_INSTANCE,
        "How often systemd started the daemon again since it was started otherwise.",
    ),
    Family(
        "mps_daemon_short_lives",
        GAUGE,
        _OF_INSTANCE,
        "Starts in a row that did not last; 0 after a minute's life.",
    ),
    Family("mps_instance_gpu_info", GAUGE, _OF_BOTH, "1 for each GPU or MIG device that an instance is to serve."),
    Family("mps_front_door_up", GAUGE, _OF_INSTANCE, "1 where somebody listens at the front door, else 0."),
    Family(
        "mps_front_door_admission",
        GAUGE,
        (INSTANCE, "state"),
        "1 for what the door does with who comes, 0 for the others: open, waiting, closed.",
    ),
    Family("mps_front_door_failed", GAUGE, _OF_INSTANCE, "1 where systemd has the door's service or socket as failed."),
    Family(
        "mps_front_door_restarts_total", COUNTER, _OF_INSTANCE, "How often systemd started the door's service again."
    ),
    Family("mps_drained", GAUGE, _OF_INSTANCE, "1 where a drain keeps new clients out, else 0."),
    Family(
        "mps_servers",
        GAUGE,
        (INSTANCE, "state"),
        "Servers of the daemon by state: active, fault, other, stopped, untold (a daemon before 550 tells none).",
    ),
    Family("mps_clients", GAUGE, _OF_INSTANCE, "Clients that the daemon lists."),
    Family("mps_clients_places", GAUGE, _OF_INSTANCE, "How many clients the door lets in at once, where it counts."),
    Family("mps_clients_cap", GAUGE, _OF_BOTH, "How many client contexts the driver takes on a device."),
    Family("mps_clients_let_in_total", COUNTER, _OF_INSTANCE, "Clients that the door let in since boot."),
    Family("mps_clients_refused_total", COUNTER, (INSTANCE, "reason"), "Clients that the door refused since boot."),
    Family("mps_clients_gave_up_total", COUNTER, (INSTANCE, "reason"), "Clients that left, by what they waited for."),
    Family(
        "mps_connections_turned_away_total",
        COUNTER,
        (INSTANCE, "reason"),
        "Connections since boot that were no client's, or too many.",
    ),
    Family("mps_clients_waiting", GAUGE, (INSTANCE, "reason"), "Clients that wait now, by what they wait for."),
    Family("mps_clients_waiting_longest_seconds", GAUGE, _OF_INSTANCE, "How long the first of them has waited."),
    Family("mps_clients_without_limit", GAUGE, _OF_INSTANCE, "Clients of which it is known that no limit holds them."),
    Family(
        "mps_processes_outside",
        GAUGE,
        (INSTANCE, "reason"),
        "Processes on the instance's devices that are no clients of it, by the first thing that keeps them out.",
    ),
    Family("mps_limit_desired_bytes", GAUGE, _OF_BOTH, "The memory limit of a client that is desired."),
    Family(
        "mps_limit_in_force_bytes",
        GAUGE,
        _OF_BOTH,
        "The one that is in force, proven by reading it back: of the daemon and its servers the largest.",
    ),
    Family("mps_active_thread_desired_ratio", GAUGE, _OF_INSTANCE, "The share of threads that is desired, up to 1."),
    Family("mps_active_thread_ratio", GAUGE, _OF_INSTANCE, "The share that is in force, as the daemon reads it."),
    Family("mps_clients_memory_bytes", GAUGE, _OF_BOTH, "What all clients hold on a device, as NVML tells it."),
    Family("mps_client_memory_largest_bytes", GAUGE, _OF_BOTH, "What the one holds that holds the most."),
    Family("mps_unit_clients", GAUGE, (INSTANCE, "unit"), "Clients of a systemd unit.", only_by="unit"),
    Family("mps_unit_memory_bytes", GAUGE, (INSTANCE, "unit"), "What they hold on all devices.", only_by="unit"),
    Family("mps_container_clients", GAUGE, (INSTANCE, "container"), "Clients of a container.", only_by="container"),
    Family(
        "mps_container_memory_bytes",
        GAUGE,
        (INSTANCE, "container"),
        "What they hold on all devices.",
        only_by="container",
    ),
)

BY_NAME: Mapping[str, Family] = {family.name: family for family in FAMILIES}
