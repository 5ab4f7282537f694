# Runs on a host, handed to its Python as a text: what of the project is there, as one JSON object. It only looks, and
# sends a simulated client to each instance, who goes at once.
# In its arguments: a copy of mpsctl that no run touches, and how many GPUs the host has.
import fcntl
import glob
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from typing import Any, Iterator

MPSCTL = [sys.executable, "-IS", sys.argv[1]]
GPUS = int(sys.argv[2])
ASKED_AT_MOST = 100
CLIENT, PATIENCE_S = "/usr/lib/mps-lab/simulated_client.py", 8
LOCK = "/run/mps-fleet/.turn"
FILES = ("/etc/mps/*", "/etc/systemd/system/mps-*", "/usr/local/bin/mpsctl")
DIRECTORIES = ("/etc/mps", "/run/mps-fleet", "/run/nvidia-mps", "/var/lib/mps-fleet", "/var/cache/mps-fleet")
LEFT = [f"{place}/.*.new" for place in (*DIRECTORIES, "/etc/systemd/system", "/usr/local/bin")]


def processes() -> Iterator[tuple[str, list[str]]]:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                yield pid, file.read().decode().split("\0")[:-1]
        except OSError:
            continue


def served() -> list[str]:
    """The GPUs that control daemons serve."""
    found = []
    for pid, words in processes():
        if words[:2] == ["/usr/bin/nvidia-cuda-mps-control", "-f"]:
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    found += re.findall(r"CUDA_VISIBLE_DEVICES=([^\0]*)", file.read().decode())
            except OSError:
                continue
    return sorted(uuid for text in found for uuid in text.split(","))


def at_work() -> list[str]:
    """Runs that change the host, and what they started."""
    return [
        " ".join(words)
        for _, words in processes()
        if ({"reconcile", "drain", "undrain"} & {*words} and "--check" not in words)
        or words[:2] == ["systemctl", "--no-ask-password"]
    ]


def ask(*words: str) -> tuple[int, str]:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def limit(number: int) -> str:
    """What the daemon answers, or "" where none listens.

    A daemon serves one front-end at a time; another one has no answer and may even end with 0 (control daemons 535,
    550, 555). The look of the health timer is such a session. So whoever is not served asks again.
    """
    for _ in range(ASKED_AT_MOST):
        done = subprocess.run(
            ["nvidia-cuda-mps-control"],
            input="get_default_device_pinned_mem_limit 0\n",
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": f"/run/mps-fleet/{number}/pipe"},
        )
        answer = done.stdout.strip()
        if "Cannot find MPS control daemon" in done.stdout + done.stderr:
            return ""
        if done.returncode == 0 and answer:
            return answer
        time.sleep(0.2)
    return f"was asked {ASKED_AT_MOST} times and not served: {done.stderr.strip()}"


def newcomers() -> list[str]:
    """What a client meets that comes to each instance now."""
    begun = [
        subprocess.Popen(
            [CLIENT, "--hold", "0", "--timeout", str(PATIENCE_S)],
            env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": f"/run/nvidia-mps/{number}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        for number in range(GPUS)
    ]
    return [str(json.loads(process.communicate()[0])["outcome"]) for process in begun]


def clients() -> dict[str, str]:
    """What became of the clients of interrupted_clients.sh: "running", "exited" by themselves, or how they ended."""
    found = {}
    for number in range(GPUS):
        shown = ask("systemctl", "show", "-p", "LoadState,SubState,ExecMainStatus", f"trial-client-{number}")[1]
        state = dict(line.split("=", 1) for line in shown.splitlines())
        if state["LoadState"] != "not-found":
            ended = state["SubState"] not in ("running", "exited")
            found[str(number)] = f"ended with {state['ExecMainStatus']}" if ended else state["SubState"]
    return found


def lock_is_free() -> bool:
    try:
        descriptor = os.open(LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


def modes() -> dict[str, str]:
    return {gpu["uuid"]: gpu["compute_mode"] for gpu in json.loads(ask(*MPSCTL, "gpus", "--json")[1])["gpus"]}


def sums() -> dict[str, str]:
    found = {}
    for path in sorted(path for pattern in FILES for path in glob.glob(pattern)):
        try:
            with open(path, "rb") as file:
                found[path] = hashlib.sha256(file.read()).hexdigest()
        except OSError:  # it went meanwhile
            continue
    return found


first: dict[str, Any] = {"at_work": at_work(), "lock_is_free": lock_is_free(), "files": sums()}
served_before = served()
code, text = ask(*MPSCTL, "status", "--json")
status = json.loads(text)
served_after = served()
devices = {name: one["facts"]["devices"] for name, one in status["instances"].items()}
seen = {one["uuid"]: one["gpu"]["compute_mode"] for every in devices.values() for one in every}
modes_now = seen if len(seen) == GPUS else modes()
known = served_before + served_after
critical = {
    name: {one["name"]: one["facts"] for one in group["checks"] if one["level"] == "critical"}
    for name, group in (("host", status["host"]), *status["instances"].items())
}
# Control daemon 535 tells the state of no server, ever.
amiss = {
    name: [
        [one["level"], one["name"], one["found"]]
        for one in group["checks"]
        if one["level"] != "ok" and (one["name"], one["level"]) != ("server-state", "unknown")
    ]
    for name, group in (("host", status["host"]), *status["instances"].items())
}
partial_files = sorted(path for pattern in LEFT for path in glob.glob(pattern))
verified = json.loads(ask(*MPSCTL, "verify", "--json")[1])["host"]["checks"] if partial_files else []
unusable = list(critical["host"].get("modes-without-daemon", {}).get("gpus", []))
unusable += [one["uuid"] for name, every in devices.items() if "compute-mode" in critical[name] for one in every]
print(
    json.dumps(
        {
            **first,
            "at_work": first["at_work"] + at_work(),
            "modes": modes_now,
            "unserved": [uuid for uuid, mode in modes_now.items() if mode != "default" and uuid not in known],
            "served": served_after,
            "status": code,
            "amiss": amiss,
            "unusable": unusable,
            "limits": [limit(number) for number in range(GPUS)],
            "newcomers": newcomers(),
            "clients": clients(),
            "partial_files": partial_files,
            "remains_told": [
                one["found"] for one in verified if (one["name"], one["level"]) == ("interrupted-runs", "warning")
            ],
            "directories": [path for path in DIRECTORIES if os.path.exists(path)],
            "enabled": sorted(glob.glob("/etc/systemd/system/*.wants/mps-*")),
            "units": ask("systemctl", "list-units", "--all", "--plain", "--no-legend", "mps-*")[1].split("\n")[:-1],
            "stale": ask("systemctl", "show", "--value", "--property=NeedDaemonReload", "mps-control@0")[1].strip(),
        }
    )
)
