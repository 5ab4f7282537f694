#!/usr/bin/env python3
"""verify and doctor on a real GPU: silent where all is well, and each planted fault named with the right cause first.

See gpu_host.py for the host. The faults: a client with a wrong pipe directory, with none, an unprivileged one before a
closed directory, a limit changed behind our back, a killed server, a fault of one client with another at work, a
waiting second user, one client above the cap, a client at its quota, a full card, two ranks of a distributed job.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager
from statistics import median
from typing import Any, Iterator

from gpu_host import CLIENT, Host, converge, expect, not_so, on_a_host, soft

PLACE = "/run/trial"
DEADLINE_S = 30
USER = 1000
ROUNDS = 3
PIPE = "CUDA_MPS_PIPE_DIRECTORY"


class Client:
    """A CUDA client that holds its context until it is told to leave."""

    def __init__(
        self, host: Host, label: str, *options: str, through: str = "eval $(mpsctl env 0); ", wait: bool = True
    ) -> None:
        self._host, self.label = host, label
        self._hold, self._said = f"{PLACE}/{label}.hold", f"{PLACE}/{label}.out"
        host.run(
            f"mkdir -p {PLACE}; touch {self._hold}; {through}"
            f"setsid {CLIENT} --label {label} --hold-while {self._hold} {' '.join(options)} </dev/null"
            f" >{self._said} 2>&1 & echo $!",
            quiet=True,
        )
        self.begun: dict[str, Any] = self.line(0) if wait else {}
        if wait:
            shown = {key: self.begun.get(key) for key in ("pid", "uid", "mps", "free_mib", "taken_mib", "code")}
            print(f"   client {label}: {shown}", flush=True)

    @property
    def pid(self) -> int:
        return int(self.begun.get("pid", 0))

    def line(self, number: int) -> dict[str, Any]:
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            lines = self._host.run(f"cat {self._said}", check=False, quiet=True).splitlines()
            if len(lines) > number and lines[number].startswith("{"):
                found: dict[str, Any] = json.loads(lines[number])
                return found
            time.sleep(0.1)
        return {}

    def release(self) -> None:
        self._host.run(f"rm -f {self._hold}", quiet=True)

    def leave(self) -> dict[str, Any]:
        self.release()
        return self.line(1)


@contextmanager
def clients(*made: Client) -> Iterator[None]:
    try:
        yield
    finally:
        for one in made:
            one.release()
        for one in made:
            one.line(1)


def asked(host: Host, command: str) -> tuple[dict[str, Any], float]:
    begin = time.monotonic()
    said = host.run(f"{command} --json", check=False, quiet=True)
    lines = [line for line in said.splitlines() if line.startswith("{")]
    return (json.loads(lines[-1]) if lines else {"said": said[-400:]}), time.monotonic() - begin


NOT_MANAGED = "default-mode"
"""The mode of a borrowed GPU is left alone, and verify warns of one that lets others in."""


def amiss(report: dict[str, Any]) -> dict[str, str]:
    groups = [report.get("host", {}), *report.get("instances", {}).values()]
    return {
        one["name"]: f"{one['level']}: {one['found']}"
        for group in groups
        for one in group.get("checks", [])
        if one["level"] != "ok" and one["name"] != NOT_MANAGED
    }


def named(host: Host, what: str, checks: dict[str, str], causes: set[str], question: str = "") -> None:
    """verify names the fault by these checks, and doctor has one of these causes first.

    ``checks`` is a part of what each check says, by its name.
    """
    report, seconds = asked(host, "mpsctl verify")
    found = amiss(report)
    print(f"   verify in {seconds:.1f} s: {json.dumps(found)}")
    for name, part in checks.items():
        soft(f"{what}: verify {name}", part in found.get(name, ""), found.get(name))
    answer, seconds = asked(host, f"mpsctl doctor {question}")
    diagnoses = answer.get("diagnoses", [])
    order = [one["name"] for one in diagnoses]
    print(f"   doctor {question} in {seconds:.1f} s: {order}")
    for one in diagnoses[:1]:
        print(f"     cause: {one['cause']}\n     evidence: {one['evidence']}\n     remedy: {one['remedy']}")
    soft(f"{what}: doctor's first cause", bool(order) and order[0] in causes, order[:3] or answer)


def anew(host: Host) -> None:
    """A start whose journal knows nothing of the last fault."""
    host.run("systemctl restart mps-control@0", quiet=True)


def outside(host: Host) -> None:
    print("-- a client with a wrong pipe directory")
    wrong = Client(host, "wrong", through=f"eval $(mpsctl env 0); export {PIPE}=/run/nowhere; ")
    with clients(wrong):
        soft("it runs outside MPS", wrong.begun.get("mps") == 0, wrong.begun.get("mps"))
        named(host, "wrong directory", {"gpu-processes": f"{wrong.pid}"}, {"pipe-directory-wrong"})
    print("-- a client with none")
    none = Client(host, "none", through="unset CUDA_MPS_PIPE_DIRECTORY; ")
    with clients(none):
        named(host, "no directory", {"gpu-processes": f"{none.pid}"}, {"pipe-directory-missing"})
    print("-- an unprivileged client before a closed directory")
    host.run("chmod 0700 /run/nvidia-mps")
    try:
        closed = Client(host, "closed", f"--uid {USER}")
        with clients(closed):
            expected = {"gpu-processes": f"{closed.pid}", "pipe-directory-access": "0700"}
            named(host, "closed directory", expected, {"pipe-directory-closed"})
    finally:
        host.run("chmod 0755 /run/nvidia-mps")


def limits(host: Host) -> None:
    print("-- a limit changed behind our back")
    worker = Client(host, "worker")
    with clients(worker):
        host.run(
            "echo set_default_device_pinned_mem_limit 0 20M |"
            f" {PIPE}=/run/mps-fleet/0/pipe nvidia-cuda-mps-control; mpsctl status 0 | tail -3",
            check=False,
        )
        named(host, "changed limit", {"memory-limit": "20M"}, {"not-as-desired"})
        host.run("systemctl reload mps-control@0", check=False)
        report, _ = asked(host, "mpsctl verify")
        soft("a reload mends it", "memory-limit" not in amiss(report), amiss(report))


def servers(host: Host) -> None:
    print("-- a killed server")
    victim = Client(host, "victim")
    server = host.run(
        f"echo get_server_list | {PIPE}=/run/mps-fleet/0/pipe nvidia-cuda-mps-control", quiet=True
    ).split()
    host.run(f"kill -9 {server[0]}")
    soft("its client sees 806", victim.line(1).get("code") == 806, victim.line(1))
    named(host, "killed server", {"server-exits": "ended under"}, {"server-gone"})
    named(host, "killed server, by its error", {}, {"server-gone"}, "--error 806")
    anew(host)
    for bystanders in (1, 2, 3, 5):
        faulted(host, bystanders)
    host.run("journalctl -u mps-control@0 --no-pager -o cat | tail -25", check=False)


def faulted(host: Host, bystanders: int) -> None:
    """One client makes an illegal access with others at work: nobody is named as the culprit."""
    print(f"-- a fault of one client with {bystanders} at work")
    trigger = f"{PLACE}/fault"
    innocents = [Client(host, f"innocent{number}") for number in range(bystanders)]
    guilty = Client(host, "guilty", f"--fault-on {trigger}")
    host.run(f"touch {trigger}")
    soft("the guilty one sees 700", guilty.line(1).get("code") in (700, 719), guilty.line(1))
    seen = [one.line(1).get("code") for one in innocents]
    soft("and so do the innocent", set(seen) <= {700, 719}, seen)
    named(host, "client fault", {"client-faults": "one of the clients"}, {"client-fault"})
    report, _ = asked(host, "mpsctl verify")
    checks = report.get("instances", {}).get("0", {}).get("checks", [])
    facts: dict[str, Any] = next((one["facts"] for one in checks if one["name"] == "client-faults"), {})
    soft("nobody is named as the culprit", facts.get("culprit", 0) is None, facts)
    answer, _ = asked(host, "mpsctl doctor --error 700")
    said = [line for one in answer.get("diagnoses", []) for line in one["evidence"] if " made a fatal fault" in line]
    soft("nor by the doctor", bool(said) and all("one of the clients" in line for line in said), said)
    host.run(f"rm -f {trigger}", quiet=True)
    anew(host)


def users(host: Host) -> None:
    print("-- a waiting second user")
    first = Client(host, "first")
    second = Client(host, "second", f"--uid {USER}", wait=False)
    time.sleep(5)  # who waits no longer than a moment is no finding
    with clients(first, second):
        named(host, "second user", {"waiting-clients": str(USER)}, {"waiting-behind-another-user"})
        first.release()
        soft("it gets in when the first has left", second.line(0).get("mps") == 1, second.line(0))
    anew(host)


def full(host: Host) -> None:
    print("-- a client at its quota")
    greedy = Client(host, "greedy", "--take-mib 8192 --take-all")
    with clients(greedy):
        named(host, "own quota", {"client-memory": str(greedy.pid)}, {"own-limit-reached"}, "--error 2")
    print("-- a full card")
    hog = Client(host, "hog", "--take-mib 200000 --take-all", through="unset CUDA_MPS_PIPE_DIRECTORY; ")
    with clients(hog):
        late = Client(host, "late")
        soft("a client no longer starts", late.begun.get("code") == 2, late.begun)
        named(
            host,
            "full card",
            {"gpu-processes": f"{hog.pid}", "gpu-memory": "are free"},
            {"memory-held-by-others"},
            "--error 2",
        )
        answer, seconds = asked(host, "mpsctl verify --probe-client")
        found = amiss(answer)
        soft("no probe client disturbs a full card", "probe-client-under-mps" in found, (found, round(seconds, 1)))


def ranks(host: Host) -> None:
    print("-- a job under torchrun with two ranks")
    through = (
        "eval $(mpsctl env 0); export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost RANK={0} LOCAL_RANK={0}; "
    )
    made = [Client(host, f"rank{rank}", through=through.format(rank)) for rank in range(2)]
    with clients(*made):
        named(host, "two ranks", {"distributed-jobs": "2 clients"}, {"distributed-job", "nccl-ranks-on-one-gpu"})


def crowd(host: Host) -> None:
    print("-- 48 clients and one more")
    made = [Client(host, f"crowd{number}", wait=False) for number in range(48)]
    begun = [one.line(0) for one in made]
    with clients(*made):
        soft("48 are in", sum(one.get("mps") == 1 for one in begun) == 48, sum(one.get("mps") == 1 for one in begun))
        late = Client(host, "late48")
        soft("the 49th sees 808", late.begun.get("code") == 808, late.begun)
        named(host, "49th client", {"client-count": "48"}, {"too-many-clients"}, "--error 808")


def healthy(host: Host) -> None:
    host.run("mpsctl verify", check=False)
    worker = Client(host, "healthy")
    with clients(worker):
        report, seconds = asked(host, "mpsctl verify --probe-client --allocate")
        soft(f"verify is silent ({seconds:.1f} s with a probe client)", not amiss(report), amiss(report))
        for one in report.get("instances", {}).get("0", {}).get("checks", []):
            if one["name"].startswith("probe"):
                print(f"   {one['name']}: {one['level']}: {one['found']}")
        answer, _ = asked(host, "mpsctl doctor")
        soft("doctor is silent", answer.get("diagnoses") == [], [one["name"] for one in answer.get("diagnoses", [])])
        host.run("mpsctl verify --probe-client; mpsctl clients", check=False)
        probe_s = median(_seconds(host, f"eval $(mpsctl env 0); {CLIENT}") for _ in range(ROUNDS))
        verify_s = median(_seconds(host, "mpsctl verify --probe-client") for _ in range(ROUNDS))
        figures = f"{verify_s:.2f} s, a client alone {probe_s:.2f} s (medians of {ROUNDS})"
        soft("verify with a probe client takes less than twice a client's time", verify_s < 2 * probe_s, figures)
        least = "PYTHONPATH=/opt/ansible /usr/bin/python3 -c 'import pynvml; pynvml.nvmlInit()'"
        least_s = median(_seconds(host, least) for _ in range(ROUNDS))
        status_s = median(_seconds(host, "mpsctl status") for _ in range(ROUNDS))
        figures = f"{status_s:.3f} s, NVML alone {least_s:.3f} s (medians of {ROUNDS})"
        soft("status takes at most twice what NVML alone does", status_s <= 2 * least_s, figures)


def _seconds(host: Host, command: str) -> float:
    """How long a command takes in the host, without the way into it."""
    said = host.run(f"s=$(date +%s.%N); {{ {command}; }} >/dev/null 2>&1; e=$(date +%s.%N); echo $s $e", quiet=True)
    begin, end = said.split()
    return float(end) - float(begin)


PARTS = (healthy, outside, limits, servers, users, full, ranks, crowd)


def trial(host: Host) -> None:
    converge(host, "4G", quiet=True)
    run_parts(host)
    report, _ = asked(host, "mpsctl verify")
    soft("silent again at the end", not amiss(report), amiss(report))
    expect("what did not hold", not_so, [])


def run_parts(host: Host) -> None:
    for part in PARTS:
        try:
            part(host)
        except Exception as error:  # the next part is worth trying all the same
            soft(part.__name__, False, f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    sys.exit(on_a_host(trial))
