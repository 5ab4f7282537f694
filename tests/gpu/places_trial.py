#!/usr/bin/env python3
"""How many clients come in at once, on a real GPU: torch processes of four units, more of them than the card holds.

See gpu_host.py for the host. Each process takes all but its whole limit. First the door holds their number, then it
does not; and a client whose own variable would shake off its limit is refused.
"""

from __future__ import annotations

import collections
import json
import sys
import threading
import time
from typing import Any

from gpu_host import CLIENT, PROJECT, Host, converge, expect, not_so, on_a_host, soft

PYTHON = "/usr/local/bin/machine-python3"
PROGRAM = f"{PROJECT}/tests/gpu/torch_place.py"
"""Where the machine itself has it: there is torch."""
UNITS, EACH, ROOM, SHARE = 4, 8, 10, 3
LIMIT, TAKE_MIB, HOLD_S = "13G", 12_288, 2
PLAN_MIB = ROOM * 13 * 1024 + 2048
"""And the server with what the driver keeps for itself."""
HELD = (
    f"-e '{{mps_expected_clients: {ROOM}, mps_over_expected: wait, mps_shares: {{each_unit: {SHARE}}},"
    " mps_client_wait_s: 300, mps_limit_bypass: refuse, mps_active_thread_percentage: null}'"
)
NOT_HELD = "-e '{mps_expected_clients: null, mps_over_expected: admit, mps_shares: null, mps_limit_bypass: report}'"


class Used:
    """The most memory that NVML showed at once, and the most clients that the daemon listed."""

    def __init__(self, host: Host) -> None:
        self.most_mib, self.most_clients, self.looks = 0, 0, 0
        self._host, self._over = host, threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        ask = "CUDA_MPS_PIPE_DIRECTORY=/run/mps-fleet/0/pipe nvidia-cuda-mps-control"
        command = (
            "nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits;"
            f" for s in $(echo get_server_list | {ask}); do echo get_client_list $s | {ask}; done | wc -w"
        )
        while not self._over.is_set():
            words = self._host.run(command, check=False, quiet=True).split()
            if len(words) == 2 and all(word.isdigit() for word in words):
                self.most_mib = max(self.most_mib, int(words[0]))
                self.most_clients = max(self.most_clients, int(words[1]))
                self.looks += 1
            time.sleep(0.1)

    def end(self) -> None:
        self._over.set()
        self._thread.join()


def crowd(host: Host) -> list[dict[str, Any]]:
    """What the processes of all units met, once all have ended."""
    one = f"{PYTHON} {PROGRAM} {TAKE_MIB} {HOLD_S}"
    for number in range(UNITS):
        loop = f"for i in $(seq {EACH}); do {one} >>/run/crowd.{number} 2>/run/crowd.{number}.err & done; wait"
        host.run(
            f"rm -f /run/crowd.{number}; systemd-run -q --collect --unit=crowd-{number}.service"
            f" -E CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps/0 /bin/sh -c '{loop}'",
            quiet=True,
        )
    units = " ".join(f"crowd-{number}" for number in range(UNITS))
    host.run(f'while [ "$(systemctl is-active {units} | grep -cx active)" != 0 ]; do sleep 0.2; done', timeout_s=150)
    said = host.run("cat /run/crowd.?", check=False, quiet=True)
    found = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    if len(found) < UNITS * EACH:
        host.run("tail -n 3 /run/crowd.?.err", check=False)
    return found


def part(host: Host) -> None:
    print(f"-- {UNITS * EACH} torch processes of {UNITS} units, a limit of {LIMIT}, room for {ROOM}, {SHARE} of a unit")
    converge(host, LIMIT, f"-e mps_on_clients=wait {HELD}", quiet=True)
    used, begin = Used(host), time.monotonic()
    found = crowd(host)
    used.end()
    met = collections.Counter(one["met"] for one in found)
    print(f"   {time.monotonic() - begin:.0f} s; most at once: {used.most_clients} clients, {used.most_mib} MiB")
    soft("each had its memory", met == {"ok": UNITS * EACH}, dict(met))
    soft(
        f"never more than {ROOM} by the daemon's list ({used.looks} looks)",
        2 <= used.most_clients <= ROOM,
        used.most_clients,
    )
    soft(f"never more memory than planned ({PLAN_MIB} MiB)", used.most_mib <= PLAN_MIB, used.most_mib)
    waited = sorted(one["waited_s"] for one in found)
    print(
        f"   waited for their memory, s: median {waited[len(waited) // 2]}, most {waited[-1]}" if waited else "   none"
    )
    print("-- a variable that would shake off the limit")
    said = host.run(f"eval $(mpsctl env 0); CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=1G {CLIENT}", check=False)
    refused = json.loads(said.splitlines()[0])
    soft("the client with it is refused with 805", refused.get("code") == 805, refused)
    said = host.run("journalctl -q -o json -n 3 -t mps-front-door@0 MPS_EVENT=refused", check=False, quiet=True)
    reasons = [json.loads(line).get("MPS_REASON") for line in said.splitlines() if line.startswith("{")]
    soft("with its reason in the journal", reasons[-1:] == ["limit-bypass"], reasons)
    said = host.run(f"eval $(mpsctl env 0); CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G {CLIENT}", check=False)
    lower = json.loads(said.splitlines()[0])
    soft("one that only lowers its limit comes in", lower.get("mps") == 1 and lower["free_mib"] < 1024, lower)
    print("-- the same crowd, and nobody is held")
    converge(host, LIMIT, f"-e mps_on_clients=wait {NOT_HELD}", quiet=True)
    used = Used(host)
    found = crowd(host)
    used.end()
    met = collections.Counter(one["met"] for one in found)
    print(f"   most at once: {used.most_clients} clients, {used.most_mib} MiB")
    soft("some find no memory", met["out-of-memory"] > 0, dict(met))


def trial(host: Host) -> None:
    part(host)
    expect("what did not hold", not_so, [])


if __name__ == "__main__":
    sys.exit(on_a_host(trial))
