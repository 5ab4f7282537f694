"""Where things lie on a host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mpsctl.model.instance import Instance

PROGRAM = "/usr/local/bin/mpsctl"

FINGERPRINT = "# Managed by mps-fleet"
"""The beginning of the first line of every file that is ours; others are left alone."""


CLIENT_DROP_IN, INSTANCE_DROP_IN = "mps-fleet.conf", "mps-fleet-clients.conf"
"""The drop-ins of ours: of a unit that is wired to an instance, and of an instance that starts such units."""


@dataclass(frozen=True)
class Places:
    """The directories that this program uses; ``root`` moves all of them, for tests."""

    root: Path = Path("/")

    @property
    def program(self) -> Path:
        return self.root / PROGRAM.lstrip("/")

    @property
    def configuration(self) -> Path:
        return self.root / "etc/mps"

    def conf(self, instance: str) -> Path:
        return self.configuration / f"{instance}.conf"

    def client_environment(self, instance: str) -> Path:
        """What clients of an instance export, for everyone to read. It stands from boot on, before the first start: a
        user's own services are not ordered behind the system's."""
        return self.configuration / f"{instance}.env"

    @property
    def cdi(self) -> Path:
        """What tells container engines of the instances, beside other vendors' files."""
        return self.root / "etc/cdi/mps-fleet.yaml"

    @property
    def units(self) -> Path:
        return self.root / "etc/systemd/system"

    @property
    def user_units(self) -> Path:
        """The units of every user's own manager."""
        return self.root / "etc/systemd/user"

    def runtime(self, instance: str) -> Path:
        """Ours alone, gone at reboot: the daemon's environment, marks, locks."""
        return self.root / "run/mps-fleet" / instance

    def pipe(self, instance: str) -> Path:
        """The control daemon's own directory; clients never see it."""
        return self.runtime(instance) / "pipe"

    def daemon_environment(self, instance: str) -> Path:
        """What the unit's EnvironmentFile= names."""
        return self.runtime(instance) / "daemon.env"

    def default_public(self, instance: str) -> Path:
        """The public pipe directory where no other root is desired."""
        return self.root / "run/nvidia-mps" / instance

    def daemon_directory(self, instance: Instance) -> Path:
        """Where the control daemon of an instance is to have its sockets: without a front door where clients look."""
        return self.pipe(instance.name) if instance.front_door else Path(instance.pipe_directory)

    @property
    def host_lock(self) -> Path:
        """The lock of whoever changes this host as a whole; no instance has a name that begins with a dot.

        The file has the name that 0.2.0 gave it, so that a run of that release and one of this exclude each other.
        """
        return self.root / "run/mps-fleet/.turn"

    @property
    def jobs_lock(self) -> Path:
        """The lock of whoever tells front doors of batch jobs; that it is there says that they are told."""
        return self.root / "run/mps-fleet/.jobs"

    def job(self, job: str) -> Path:
        """What is on record of a batch job, for its user to read."""
        return self.jobs_lock.with_name(f".job-{job}.json")

    @property
    def scripts(self) -> Path:
        """What Slurm runs of ours, where playbooks/slurm.yml puts it."""
        return self.root / "usr/local/lib/mps-fleet"

    @property
    def gpus_lock(self) -> Path:
        """The lock of a start that looks which GPUs other instances have, and takes its own."""
        return self.root / "run/mps-fleet/.gpus"

    @property
    def state(self) -> Path:
        """Kept over reboots: the compute modes found before the first start."""
        return self.root / "var/lib/mps-fleet"

    @property
    def measured(self) -> Path:
        """What contexts and servers were measured to cost on this host's GPUs."""
        return self.state / "measured.json"

    @property
    def cache(self) -> Path:
        return self.root / "var/cache/mps-fleet"
