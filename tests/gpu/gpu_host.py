"""A host of the lab with the machine's real GPU, for trials on silicon, and what they share.

Run as root on a machine with an NVIDIA driver, beside build/gpu-bundle.tar.xz (`make gpu-bundle`). The
machine needs no systemd of its own: `lab/lab up --gpu real` boots the host from the bundle with the driver passed
through read-only. The compute mode, persistence and clocks of the GPU are left alone. The machine's files are below
/machine in the host, to be read, and `machine-python3` there is the machine's own Python with what is installed for it.
Every command and its answer is printed; a check that does not hold ends the trial with exit code 1.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lab"))

from mpslab import boot, enter, hosts, places

PROJECT = Path(__file__).resolve().parents[2]
BUNDLE = PROJECT / "build/gpu-bundle.tar.xz"
PREFIX = "gpu"
CLIENT = "/usr/bin/python3 /opt/project/tests/gpu/cuda_client.py"
QUERY = "name,uuid,driver_version,memory.total,compute_mode,persistence_mode"
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


MACHINE_PYTHON = """\
#!/bin/sh
# The machine's own Python and packages, on this host's devices, processes and /run; nobody else sees these mounts.
exec unshare --mount --propagation private /bin/sh -ec '
mount --rbind /dev /machine/dev
mount --rbind /proc /machine/proc
mount --rbind /run /machine/run
mount -t tmpfs tmpfs /machine/tmp
exec chroot /machine "$@"' sh {python} "$@"
"""


class Host:
    """A host of a lab of its own, which lies in a folder: systemd in a container, with the machine's GPU."""

    def __init__(self, folder: Path) -> None:
        self._places = places.Places(folder)
        self._name = f"{PREFIX}-01"

    @property
    def root(self) -> Path:
        """The files of the booted host."""
        return boot.host_root(self._places, hosts.find(self._places, self._name))

    @property
    def console(self) -> str:
        path = hosts.folder(self._places, self._name) / "console.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _lab(self, *words: str) -> None:
        done = subprocess.run(
            [sys.executable, str(PROJECT / "lab/lab"), *words],
            env={**os.environ, "MPS_LAB_DIR": str(self._places.base), "MPS_LAB_BUNDLE": str(BUNDLE)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        print(done.stdout, end="", flush=True)
        if done.returncode:
            fail(f"`lab/lab {' '.join(words)}` ended with {done.returncode}")

    def boot(self) -> None:
        self._lab("up", "--gpu", "real", "--hosts", "1", "--prefix", PREFIX, "--share", "/:/machine")
        self.wait()

    def _entered(self, command: str) -> list[str]:
        leader = boot.leader_pid(self._places, self._name)
        if leader is None:
            fail(f"`{command}`: the host is not running")
        return enter.command(leader, [command])

    def run(self, command: str, check: bool = True, quiet: bool = False, timeout_s: float = 180) -> str:
        """Run a shell command in the host, not by ssh: many at once, and at any moment; what both streams said."""
        done = subprocess.run(
            self._entered(command),
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

    def follow(self, command: str, timeout_s: float = 560) -> list[str]:
        """Run a command that prints as it goes: each line is shown as it comes, and kept; it is ended after a while."""
        words = self._entered(command)
        print(f"gpu-host# {command}", flush=True)
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        bound = threading.Timer(timeout_s, process.terminate)
        bound.start()
        lines = []
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line.rstrip("\n"))
        process.wait()
        bound.cancel()
        return lines

    def wait(self) -> None:
        """Until the boot is over."""
        end = time.monotonic() + BOOT_DEADLINE_S
        while time.monotonic() < end:
            time.sleep(0.2)
            if boot.is_up(self._places, self._name):
                print("-- the host is up")
                return
        fail(f"the host did not come up within {BOOT_DEADLINE_S} s")

    def stop(self) -> None:
        self._lab("down")


def fail(text: str) -> NoReturn:
    print(f"FAILED: {text}")
    sys.exit(1)


def expect(what: str, found: Any, expected: Any) -> None:
    print(f"   {'ok' if found == expected else 'NOT SO'}: {what}: {found}")
    if found != expected:
        fail(f"{what}: found {found}, expected {expected}")


not_so: list[str] = []
"""What did not hold in this run."""

not_tried: list[str] = []
"""What this machine has not what it takes for."""


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
        " CUDA_MPS_PIPE_DIRECTORY=/run/mps-fleet/0/pipe nvidia-cuda-mps-control 2>/dev/null);"
        ' [ -n "$x" ] && break; sleep 0.01; done; e=$(date +%s.%N);'
        " /usr/bin/python3 -c \"print('limit', '$x', 'after', round($e - $s, 3), 's')\"",
        quiet=quiet,
    )
    return float(said.split()[-2])


def _fill(root: Path) -> None:
    """The project, as a controller has it, and the machine's Python."""
    (root / "opt/project").mkdir()
    for name in ("site.yml", "ansible.cfg", ".config", "playbooks", "plugins", "roles", "scripts", "tests", "molecule"):
        source = PROJECT / name
        target = root / "opt/project" / name
        shutil.copytree(source, target) if source.is_dir() else shutil.copy2(source, target)
    python = root / "usr/local/bin/machine-python3"
    python.write_text(MACHINE_PYTHON.format(python=shlex.quote(shutil.which("python3") or sys.executable)))
    python.chmod(0o755)


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
    print(f"-- the lab lies in {folder}; should this be killed: MPS_LAB_DIR={folder} lab/lab down", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the host is taken down then too
    host = Host(folder)
    try:
        begin = time.monotonic()
        host.boot()
        _fill(host.root)
        host.run("systemctl --version | head -1; /usr/bin/python3 --version; nvidia-smi -L")
        print(f"-- booted within {time.monotonic() - begin:.1f} s")
        trial(host)
        after = subprocess.run(smi, capture_output=True, text=True, check=True).stdout
        expect("GPU settings as found", after, before)
        print("PASSED")
        return 0
    finally:
        if "--console" in sys.argv:
            print(host.console)
        try:
            host.stop()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
