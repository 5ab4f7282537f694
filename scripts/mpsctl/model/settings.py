"""The one table of settings: one row for each variable of the role mps, and for each key of an instance's file.

Made from it: the parser and the text of the file (``instance_file``), and the checks, overrides and former names that
the role's plugins know. Proven equal to it by tests: the role's argument_specs and defaults, from which the role's
README is made, and the example inventory.
"""

from __future__ import annotations

from typing import Mapping

from mpsctl.model import checked_values as checked
from mpsctl.model import quantity, shares
from mpsctl.model.client_unit import check_clients
from mpsctl.model.setting import Former, Setting

SECTIONS = ("Instance", "Limits", "Clients", "Daemon", "Timeouts")
"""The sections of an instance's file, in their order there."""

SETTINGS: tuple[Setting, ...] = (
    Setting(
        "mps_instances",
        "list",
        None,
        "The instances of the host, each one control daemon.",
        checked.check_gpu_list,
        key="GPUs",
        section="Instance",
        field="gpus",
        comment="By index, UUID or PCI address; resolved to UUIDs at every start.",
        composed=True,
    ),
    Setting(
        "mps_pipe_root",
        "str",
        "/run/nvidia-mps",
        "Directory of the instances' pipe directories, which clients name in CUDA_MPS_PIPE_DIRECTORY.",
        checked.check_pipe_directory,
        null_refused=True,
        key="PipeDirectory",
        section="Instance",
        field="pipe_directory",
        comment="What clients export as CUDA_MPS_PIPE_DIRECTORY.",
        composed=True,
    ),
    Setting(
        "mps_compute_mode",
        "str",
        "exclusive_process",
        "Compute mode of the instances' GPUs while MPS serves them, exclusive_process or default.",
        checked.check_compute_mode,
        per_instance=True,
        key="ComputeMode",
        section="Instance",
        field="compute_mode",
    ),
    Setting(
        "mps_when_down",
        "str",
        checked.RESTORE,
        "What holds for the GPUs while MPS is not up.",
        checked.check_when_down,
        null_refused=True,
        per_instance=True,
        key="WhenDown",
        section="Instance",
        field="when_down",
        comment="No process may use the GPU while MPS is not up.",
        default_unwritten=True,
    ),
    Setting(
        "mps_multi_user",
        "bool",
        False,
        "Whether clients of several users share the server, which is root's.",
        checked.check_yes_or_no,
        null_refused=True,
        per_instance=True,
        key="MultiUser",
        section="Instance",
        field="multi_user",
        comment="Clients of several users share root's server, and each other's faults.",
        default_unwritten=True,
    ),
    Setting(
        "mps_server_user",
        "str",
        None,
        "The user, by name or number, whose server is started before its first client comes.",
        checked.check_server_user,
        per_instance=True,
        key="ServerUser",
        section="Instance",
        field="server_user",
        comment="Whose server is started before the first client comes.",
    ),
    Setting(
        "mps_group",
        "str",
        None,
        "The group, by name or number, whose members may connect beside root, null is everyone.",
        checked.check_group,
        key="Group",
        section="Instance",
        field="group",
        comment="Only root and this group's members may connect.",
    ),
    Setting(
        "mps_device_memory_limit",
        "str",
        None,
        "Device memory that one client may take on each GPU of its instance.",
        quantity.parse,
        per_instance=True,
        key="DeviceMemoryLimit",
        section="Limits",
        field="limit",
        comment="What one client may take on each GPU: <integer>M, <integer>G or <number>% of the GPU's memory.",
    ),
    Setting(
        "mps_active_thread_percentage",
        "float",
        None,
        "Share of the multiprocessors that one client may use, in percent, above 0 and up to 100.",
        checked.check_thread_percentage,
        per_instance=True,
        key="ActiveThreadPercentage",
        section="Limits",
        field="thread_percentage",
        comment="The share of the multiprocessors that one client may use, in percent: a cap, it reserves nothing.",
    ),
    Setting(
        "mps_client_priority",
        "int",
        None,
        "Priority of the clients' work on the GPU, 0 (normal) or 1 (below normal).",
        checked.check_client_priority,
        per_instance=True,
        key="ClientPriority",
        section="Limits",
        field="client_priority",
        comment="0 normal, 1 below normal: a hint to the scheduler of the GPU.",
    ),
    Setting(
        "mps_expected_clients",
        "int",
        None,
        "How many clients are to fit on each GPU of an instance, null where that is not said.",
        checked.check_expected_clients,
        per_instance=True,
        key="ExpectedClients",
        section="Clients",
        field="expected_clients",
        comment="How many are to fit on each GPU; a plan in which they cannot is refused.",
    ),
    Setting(
        "mps_over_expected",
        "str",
        checked.ADMIT,
        "What becomes of a client beyond mps_expected_clients or its share (mps_shares), admit (neither is held), wait"
        " for a place, or refuse.",
        checked.check_over_expected,
        null_refused=True,
        per_instance=True,
        key="OverExpected",
        section="Clients",
        field="over_expected",
        comment="What becomes of a client beyond that number, or its share: admit, wait or refuse.",
        default_unwritten=True,
    ),
    Setting(
        "mps_shares",
        "dict",
        None,
        "How many clients of one systemd unit or slice (units), user (users), or of each of them that is not named"
        " (each_unit, each_user, each_container) are in at once; held as mps_over_expected says.",
        shares.check_shares,
        per_instance=True,
        key="Shares",
        section="Clients",
        field="shares",
        comment="How many clients of one unit, slice, user or container are in at once.",
    ),
    Setting(
        "mps_limit_bypass",
        "str",
        checked.REPORT,
        "What becomes of a client that shook off its memory limit, by a variable of its own that does not parse or"
        " names a GPU it cannot see, or that holds more than its limit, report, refuse (one with such a variable does"
        " not come in, who holds too much is reported) or terminate.",
        checked.check_limit_bypass,
        null_refused=True,
        key="LimitBypass",
        section="Clients",
        field="limit_bypass",
        comment="What becomes of a client that shook off its limit: report, refuse at the front door, terminate"
        " after the grace time.",
        formerly=(Former("mps_escaped_clients", "EscapedClients"),),
    ),
    Setting(
        "mps_limit_bypass_grace_s",
        "int",
        60,
        "Seconds that a client may be seen without its limit before mps_limit_bypass ends it.",
        checked.check_timeout_s,
        null_refused=True,
        key="LimitBypassGraceSec",
        section="Clients",
        field="limit_bypass_grace_s",
        formerly=(Former("mps_escape_grace_s", "EscapeGraceSec"),),
    ),
    Setting(
        "mps_distributed_jobs",
        "str",
        checked.WARN,
        "What is said of ranks of a distributed training run among the clients.",
        checked.check_distributed_jobs,
        null_refused=True,
        key="DistributedJobs",
        section="Clients",
        field="distributed_jobs",
        comment="What is said of ranks of a distributed training run among the clients: ignore, warn or fail.",
    ),
    Setting(
        "mps_unresponsive_daemon",
        "str",
        checked.REPORT,
        "What becomes of a control daemon that is alive and answers nothing, stopped by a signal or without its"
        " socket.",
        checked.check_unresponsive_daemon,
        null_refused=True,
        key="UnresponsiveDaemon",
        section="Daemon",
        field="unresponsive_daemon",
        comment="What becomes of one that answers nothing at two looks of the health timer: report, or restart"
        " (clients are lost).",
    ),
    Setting(
        "mps_driver_timeout_s",
        "int",
        90,
        "Seconds that a starting instance waits for the driver and its GPUs.",
        checked.check_timeout_s,
        null_refused=True,
        key="DriverTimeoutSec",
        section="Timeouts",
        field="driver_timeout_s",
    ),
    Setting(
        "mps_stop_timeout_s",
        "int",
        20,
        "Seconds that a stopping instance gives its clients.",
        checked.check_timeout_s,
        null_refused=True,
        key="StopTimeoutSec",
        section="Timeouts",
        field="stop_timeout_s",
    ),
    Setting(
        "mps_client_wait_s",
        "int",
        60,
        "Seconds that a client waits at the front door while its instance lets nobody in, then CUDA error 805.",
        checked.check_timeout_s,
        null_refused=True,
        key="ClientWaitSec",
        section="Clients",
        field="client_wait_s",
        comment="How long a client waits at the front door while the daemon is down or drained; then CUDA error 805.",
    ),
    Setting(
        "mps_front_door",
        "bool",
        True,
        "Whether clients come through the front door.",
        checked.check_yes_or_no,
        null_refused=True,
        key="FrontDoor",
        section="Clients",
        field="front_door",
        comment="Without a front door: clients that come while the daemon is down or drained run outside MPS.",
        default_unwritten=True,
    ),
    # What a run may do and how it goes through a fleet: nothing of it stands in a file of a host.
    Setting(
        "mps_on_clients",
        "str",
        checked.REFUSE,
        "What becomes of a change that only a restart can make (other GPUs, pipe directory, users, a new daemon"
        " binary, an instance that is no longer desired) while clients are connected.",
        checked.check_on_clients,
        null_refused=True,
    ),
    Setting(
        "mps_drain_timeout_s",
        "int",
        checked.DRAIN_TIMEOUT_S,
        "Seconds that mps_on_clients waits for connected clients, on each host.",
        checked.check_timeout_s,
        null_refused=True,
    ),
    Setting(
        "mps_package",
        "raw",
        False,
        "Whether to install the package of the control daemon where it is missing.",
        checked.check_package,
        null_refused=True,
    ),
    Setting(
        "mps_selinux_module",
        "bool",
        False,
        "Whether hosts with SELinux load a module that lets confined clients (containers, confined users) reach the"
        " front door.",
        checked.check_yes_or_no,
        null_refused=True,
    ),
    Setting(
        "mps_cdi",
        "bool",
        True,
        "Whether container engines are told of the instances, as CDI devices mps-fleet/instance=INSTANCE.",
        checked.check_yes_or_no,
        null_refused=True,
    ),
    Setting(
        "mps_clients",
        "list",
        None,
        "Units of systemd whose processes are clients of an instance, each wired to it by a drop-in. null means none.",
        check_clients,
    ),
    Setting(
        "mps_metrics_directory",
        "str",
        None,
        "The folder of a node exporter's textfile collector, into which each look writes mps.prom. null means none.",
        checked.check_metrics_directory,
    ),
    Setting(
        "mps_metrics_by",
        "str",
        None,
        "What more the clients are told apart by in metrics, unit or container. null means neither.",
        checked.check_metrics_by,
    ),
    Setting(
        "mps_serial",
        "raw",
        "100%",
        "How many hosts are changed at a time, a number, a percentage or a list of these.",
        checked.check_serial,
        null_refused=True,
    ),
    Setting(
        "mps_all_or_nothing",
        "bool",
        False,
        "Whether nothing is changed on any host of a run where one of them refuses, or cannot be looked at.",
        checked.check_yes_or_no,
        null_refused=True,
    ),
)

BY_VARIABLE: Mapping[str, Setting] = {setting.variable: setting for setting in SETTINGS}
BY_KEY: Mapping[str, Setting] = {setting.key: setting for setting in SETTINGS if setting.key}
BY_FORMER_KEY: Mapping[str, Setting] = {
    former.key: setting for setting in SETTINGS for former in setting.formerly if former.key
}
VARIABLES: Mapping[str, str] = {key: setting.variable for key, setting in BY_KEY.items()}
"""The role's variable behind each key of the file."""


def of_section(section: str) -> tuple[Setting, ...]:
    """The settings that stand in a section of the instance's file, in their order there."""
    return tuple(setting for setting in SETTINGS if setting.section == section)
