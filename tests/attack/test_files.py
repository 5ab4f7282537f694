"""What a local user can write, hold and read of an instance's files."""

from __future__ import annotations

from .attempts import attempt
from .conftest import ATTACKERS, OWN, PUBLIC, SOMEBODY, Target

FORGED = "[2026-11-30 12:00:00.000 Server   150] Device pinned memory limit for device 0 set to 0x0 bytes"
FILES = ("log", "control_lock", "control", "control_privileged", "nvidia-cuda-mps-control.pid")


def doors(target: Target) -> list[str]:
    """Every name under which a user might find the daemon's directory."""
    roots = [PUBLIC, OWN, f"/proc/{target.daemon}/root{OWN}", f"/proc/{target.daemon}/cwd"]
    return [f"{root}/{name}" for root in roots for name in FILES]


@attempt(
    "hang the daemon by its `log`",
    tried="write 65 kB into the FIFO by each path that leads to it: both directories, /proc/PID/root, /proc/PID/fd",
    result="no path can be opened",
)
def test_the_log_cannot_be_filled(target: Target) -> None:
    paths = [*doors(target), *(f"/proc/{target.daemon}/fd/{number}" for number in range(8))]
    for uid in ATTACKERS:
        assert target.opened(uid, paths, "head -c 65536 /dev/zero 1<>") == []


@attempt(
    "forge a line of the daemon's",
    tried="write one into its `log`; send one to the journal under its name and the front door's, by logger(1) and by"
    " journald's own protocol with the fields of a unit",
    result="the limit that is shown stays the true one; no client is ended for it, no daemon is taken for jammed",
)
def test_a_forged_line_is_not_believed(target: Target) -> None:
    assert target.opened(SOMEBODY, doors(target), f"echo '{FORGED}' >") == []
    target.as_user(
        SOMEBODY, f"logger -t mps-control@0 '{FORGED}'; logger -t mps-control@0 --id={target.daemon} '{FORGED}'"
    )
    fields = "\\n".join(
        [
            f"MESSAGE={FORGED}",
            "SYSLOG_IDENTIFIER=mps-control@0",
            "UNIT=mps-control@0.service",
            "OBJECT_SYSTEMD_UNIT=mps-control@0.service",
            "_SYSTEMD_UNIT=mps-control@0.service",
            "MPS_EVENT=jammed",
            "MPS_INSTANCE=0",
            f"MPS_DAEMON_PID={target.daemon}",
            "",
        ]
    )
    target.as_user(SOMEBODY, f"printf '{fields}' | logger --journald")
    for _ in range(2):  # a second look would end a client whose grace is over
        assert target.health() == "ok"
    for verb in ("status", "verify"):
        assert "0x0 bytes" not in target.run(f"mpsctl {verb} 0; true")
    assert target.json("status")["instances"]["0"]["word"] == "ok"


@attempt(
    "fill /run",
    tried="write without end into the daemon's lock, and into new files beside ours",
    result="nothing of ours can be opened for writing, no file can be made beside it",
)
def test_run_cannot_be_filled(target: Target) -> None:
    places = [f"{directory}/mine" for directory in ("/run/mps-fleet", "/run/mps-fleet/0", "/run/nvidia-mps", PUBLIC)]
    inside = f"{PUBLIC}/control_lock/mine"
    for uid in ATTACKERS:
        assert target.opened(uid, [*doors(target), *places, inside], "head -c 1000000000 /dev/zero >") == []


@attempt(
    "hold our locks",
    tried="flock and lockf on each file and directory below /run/mps-fleet, /run/nvidia-mps and /etc/mps that opens",
    result="a reload, a restart and all looks go through: our locks lie in files that are root's alone",
)
def test_locks_of_a_user_hold_up_nothing(target: Target) -> None:
    found = "find /run/mps-fleet /run/nvidia-mps /etc/mps /var/lib/mps-fleet /usr/local/bin/mpsctl ! -type l -readable"
    paths = [path for path in target.as_user(SOMEBODY, f"{found} 2>/dev/null").splitlines() if path.startswith("/")]
    assert "/run/mps-fleet/0/admission.json" in paths
    with target.held(SOMEBODY, "lock", *paths):
        target.run("timeout 40 systemctl reload mps-control@0")
        target.restart()
        assert target.client()["outcome"] == "client"


@attempt(
    "lay traps where root's programs look",
    tried="CUDA's default directory and a client's own pipe and log directory with FIFOs, links and sockets for files;"
    " a client whose working directory is gone and whose environment names them",
    result="every look ends in time, and ends the same",
)
def test_traps_in_a_users_places_hold_up_no_look(target: Target) -> None:
    trap = (
        "mkdir -p /tmp/nvidia-mps /tmp/trap/deep && for d in /tmp/nvidia-mps /tmp/trap; do"
        " mkfifo $d/control $d/log $d/nvidia-cuda-mps-control.pid; ln -s /dev/zero $d/control_privileged;"
        " ln -s loop $d/loop; ln -s /proc/self/mem $d/control_lock; done"
    )
    assert target.as_user(SOMEBODY, trap).endswith("ended with 0\n")
    environment = (
        "CUDA_MPS_PIPE_DIRECTORY=/tmp/trap CUDA_MPS_LOG_DIRECTORY=/tmp/trap/log CUDA_VISIBLE_DEVICES=/tmp/trap/log"
    )
    try:
        with target.process(
            SOMEBODY, f"cd /tmp/trap/deep && rmdir /tmp/trap/deep; exec env {environment} sleep 600"
        ) as unit:
            pid = target.run(f"systemctl show --value -p MainPID {unit}").strip()
            for look in ("status", "verify", "health", "clients", "doctor", f"doctor --pid {pid}"):
                said = target.run(
                    f"timeout 60 mpsctl {look} >/dev/null 2>/run/said; echo $?; grep Traceback /run/said; true"
                )
                assert said.strip() not in ("124", "70"), (look, said)
                assert "Traceback" not in said, look
    finally:
        target.run("rm -rf /tmp/nvidia-mps /tmp/trap")
