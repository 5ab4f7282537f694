"""A host with real systemd and a real GPU passed through, for trials on silicon, and what they share.

Run as root on a machine with an NVIDIA driver, beside build/gpu-bundle.tar.xz (`make gpu-bundle`). The
machine needs no systemd of its own: a host boots from the bundle with the driver passed through read-only. The
compute mode, persistence and clocks of the GPU are left alone. Every command and its answer is printed; a check
that does not hold ends the trial with exit code 1.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable

PROJECT = Path(__file__).resolve().parents[2]
BUNDLE = PROJECT / "build/gpu-bundle.tar.xz"
DRIVER_FOLDERS = ("/usr/local/nvidia", "/opt/nvidia")
PATH = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/nvidia/bin"
CLIENT = "/usr/bin/python3 /opt/project/tests/gpu/cuda_client.py"
QUERY = "name,uuid,driver_version,memory.total,compute_mode,persistence_mode"
REBOOT_EXIT_CODE = 133
BOOT_DEADLINE_S = 60
INVENTORY = """\
gpu-nodes:
  hosts:
    gpu-host:
      ansible_connection: local
      ansible_python_interpreter: /usr/bin/python3
  vars:
    mps_compute_mode: null
    mps_device_memory_limit: {limit}
    mps_active_thread_percentage: 50
"""


class Host:
    """A systemd host in a container of its own, with the machine's GPU."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self._nspawn = folder / "nspawn"
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def boot(self) -> None:
        self._thread.start()
        self.wait()

    def _keep(self) -> None:
        """Boot, and boot again when the host reboots itself."""
        devices = [path for path in glob.glob("/dev/nvidia*") if not Path(path).is_dir()]
        binds = [f"--bind={path}" for path in devices]
        binds += [f"--bind-ro={folder}" for folder in DRIVER_FOLDERS if Path(folder).is_dir()]
        # A folder with the loader's libraries beside it: the machine may have no systemd-nspawn.
        environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(self._nspawn)}
        command = [
            str(self._nspawn / "systemd-nspawn"), "-q", "-D", str(self.root), "-M", "gpu-host", "--boot",
            "--register=no", "--keep-unit", "--link-journal=no", "--kill-signal=SIGRTMIN+3",
            "--resolv-conf=off", "--timezone=off", *binds,
        ]  # fmt: skip
        console = (self.root.parent / "console.log").open("ab")
        while not self._stopping:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=console, stderr=console
            )
            if self._process.wait() != REBOOT_EXIT_CODE:
                return

    @property
    def _leader(self) -> str:
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return children[0]

    def run(self, command: str, check: bool = True, quiet: bool = False, timeout_s: float = 180) -> str:
        """Run a shell command in the host; what it printed on both streams."""
        inside = [
            "env",
            "-i",
            "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/nvidia/bin",
            "LANG=C.UTF-8",
        ]
        done = subprocess.run(
            ["nsenter", "-t", self._leader, "-m", "-p", "-u", "-i", "-C", *inside, "/bin/bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if not quiet:
            print(f"gpu-host# {command}\n{done.stdout.rstrip()}")
            if done.returncode:
                print(f"[exit {done.returncode}]")
        if check and done.returncode:
            fail(f"`{command}` ended with {done.returncode}")
        return done.stdout

    def wait(self) -> None:
        """Until the boot is over."""
        end = time.monotonic() + BOOT_DEADLINE_S
        while time.monotonic() < end:
            time.sleep(0.2)
            try:
                state = self.run("systemctl is-system-running", check=False, quiet=True).strip()
            except (FileNotFoundError, IndexError, AssertionError):
                continue
            if state in ("running", "degraded"):
                print(f"-- the host is up: {state}")
                return
        fail(f"the host did not come up within {BOOT_DEADLINE_S} s")

    def stop(self) -> None:
        self._stopping = True
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()  # nspawn passes the shutdown on
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._thread.join(10)


def fail(text: str) -> None:
    print(f"FAILED: {text}")
    sys.exit(1)


def expect(what: str, found: Any, wished: Any) -> None:
    print(f"   {'ok' if found == wished else 'NOT SO'}: {what}: {found}")
    if found != wished:
        fail(f"{what}: found {found}, expected {wished}")


not_so: list[str] = []
"""What did not hold in this run."""


def soft(what: str, holds: bool, found: Any) -> None:
    """Note what does not hold and go on: a lent GPU is not asked twice."""
    print(f"   {'ok' if holds else 'NOT SO'}: {what}: {found}", flush=True)
    if not holds:
        not_so.append(what)


def client(host: Host, *options: str) -> dict[str, Any]:
    """A bare CUDA client in the host, through the instance's pipe directory."""
    words = " ".join(options)
    said = host.run(f"eval $(mpsctl env 0); {CLIENT} {words}", check=False)
    found: dict[str, Any] = json.loads(said.splitlines()[0])
    return found


def converge(host: Host, limit: str, more: str = "", quiet: bool = False) -> str:
    (host.root / "opt/inventory.yml").write_text(INVENTORY.format(limit=limit))
    return host.run(
        "cd /opt/project && PYTHONPATH=/opt/ansible ANSIBLE_NOCOLOR=1 /usr/bin/python3 -m ansible playbook"
        f" -i /opt/inventory.yml site.yml -l gpu-nodes {more}",
        quiet=quiet,
    )


def kill_daemon_and_wait(host: Host, quiet: bool = False) -> float:
    """Seconds from kill -9 until the daemon answers with a limit again."""
    said = host.run(
        "kill -9 $(systemctl show -p MainPID --value mps-control@0); s=$(date +%s.%N);"
        " for i in $(seq 1000); do x=$(echo get_default_device_pinned_mem_limit 0 |"
        " CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps/0 nvidia-cuda-mps-control 2>/dev/null);"
        ' [ -n "$x" ] && break; sleep 0.01; done; e=$(date +%s.%N);'
        " /usr/bin/python3 -c \"print('limit', '$x', 'after', round($e - $s, 3), 's')\"",
        quiet=quiet,
    )
    return float(said.split()[-2])


def on_a_host(trial: Callable[[Host], None]) -> int:
    """Run a trial on a host booted for it; the exit code of the program."""
    if os.geteuid() != 0 or not BUNDLE.is_file():
        name = Path(sys.argv[0]).name
        print(f"{name}: found no root or no {BUNDLE}, expected both; run `make gpu-bundle` and start as root")
        return 2
    print("-- the machine")
    smi = [
        "nvidia-smi",
        f"--query-gpu={QUERY}",
        "--format=csv",
    ]
    before = subprocess.run(smi, capture_output=True, text=True, check=True).stdout
    release = next(line for line in Path("/etc/os-release").read_text().splitlines() if line.startswith("PRETTY"))
    print(f"{before}Linux {os.uname().release.split('-')[0]}, {release}, {os.cpu_count()} cores")
    folder = Path(tempfile.mkdtemp(prefix="mps-gpu-", dir="/var/tmp"))
    machine_id = Path("/etc/machine-id")
    lent_id = not machine_id.exists() or not machine_id.read_text().strip()
    host = Host(folder)
    try:
        with tarfile.open(BUNDLE) as bundle:
            bundle.extractall(folder, filter="fully_trusted")
        if lent_id:
            machine_id.write_text(f"{os.urandom(16).hex()}\n")  # nspawn asks for the machine's
        Path("/run/systemd/nspawn").mkdir(parents=True, exist_ok=True)
        for place in ("dev", "opt/project"):
            (host.root / place).mkdir(parents=True, exist_ok=True)
        (host.root / "etc/machine-id").write_text(f"{os.urandom(16).hex()}\n")
        (host.root / "etc/ld.so.conf.d/nvidia.conf").write_text(
            "".join(f"{d}/lib64\n{d}/lib\n" for d in DRIVER_FOLDERS)
        )
        for name in ("site.yml", "ansible.cfg", "playbooks", "roles", "scripts", "tests"):
            source = PROJECT / name
            target = host.root / "opt/project" / name
            shutil.copytree(source, target) if source.is_dir() else shutil.copy2(source, target)
        begin = time.monotonic()
        host.boot()
        host.run("ldconfig 2>/dev/null; systemctl --version | head -1; /usr/bin/python3 --version; nvidia-smi -L")
        print(f"-- booted within {time.monotonic() - begin:.1f} s")
        trial(host)
        after = subprocess.run(smi, capture_output=True, text=True, check=True).stdout
        expect("GPU settings as found", after, before)
        print("PASSED")
        return 0
    finally:
        host.stop()
        if lent_id:
            machine_id.write_text("")
        console = folder / "console.log"
        if console.exists() and "--console" in sys.argv:
            print(console.read_text(errors="replace"))
        shutil.rmtree(folder, ignore_errors=True)
