#!/usr/bin/env python3
"""The front door on a real GPU: what it costs, clients and daemons killed at random moments, a jam, containers.

See gpu_host.py for the host and door_clients.py for the clients, which run on it. Each part is one of `make gpu-test`.
The compute mode stays as it is: that of a borrowed GPU is the default one, in which a client that finds no MPS runs
outside it and takes the whole GPU.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

from gpu_host import CLIENT, Host, client, converge, expect, not_so, on_a_host, soft

DOOR_CLIENTS = "/usr/bin/python3 /opt/project/tests/gpu/door_clients.py"
SEED = int(os.environ.get("GPU_SEED", "580"))
KILLS = int(os.environ.get("GPU_KILLS", "100"))
RESTART = "-e mps_on_clients=wait"
IN_A_CONTAINER = """\
unshare --mount --pid --fork --net --ipc --uts --cgroup --mount-proc sh -ec '
mkdir -p /run/in-container
mount --bind /run/nvidia-mps/0 /run/in-container
mount -o remount,bind,ro /run/in-container
export CUDA_MPS_PIPE_DIRECTORY=/run/in-container
{inside}'"""


def clients(host: Host, options: str, timeout_s: float = 550) -> dict[str, Any]:
    """Run door_clients.py on the host; its last line."""
    lines = host.follow(f"{DOOR_CLIENTS} {options}", timeout_s)
    if not lines or not lines[-1].startswith("{"):
        soft(f"door_clients.py {options} came to its end", False, lines[-3:])
        return {}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def cost(host: Host) -> None:
    """Through the door and at the daemon's own socket, in turn, with the server up."""
    converge(host, "4G", RESTART, quiet=True)
    found = clients(host, "cost")
    for name, bound in (("one", 1.15), ("32 at once", 1.05)):
        ratio = found.get(name, {}).get("ratio")
        soft(f"{name}: at most {bound} of directly", ratio is not None and ratio <= bound, ratio)


def first_clients(host: Host) -> None:
    """Clients killed while their server starts jam nothing, whoever comes next."""
    for mode, multi_user in (("single-user", False), ("multi-user", True)):
        converge(host, "4G", f"-e mps_multi_user={str(multi_user).lower()} {RESTART}", quiet=True)
        found = clients(host, f"first --trials {KILLS} --seed {SEED} {'--multi-user' * multi_user}")
        met = found.get("met", {})
        soft(f"{mode}: after each of {KILLS} the next one came in", met.get("next one: limited") == KILLS, met)
        soft(f"{mode}: some were killed in their start", met.get("killed in its start", 0) > KILLS // 4, met)


def judge_storm(found: dict[str, Any]) -> None:
    for instance, met in found.get("met", {}).items():
        soft(f"instance {instance}: clients came in", met.get("limited", 0) > 0, met)
        for never in ("outside", "unlimited", "hung"):
            soft(f"instance {instance}: {never}", met.get(never, 0) == 0, met.get(never, 0))
    back_s = found.get("kill_to_limit_s", {})
    soft("kill -9 until the limits are in force again: under 1 s, in the median", back_s.get("median", 9) < 1, back_s)
    print(f"   a client that came right after a kill had its context after, s: {found.get('client_after_kill_s')}")


def storm(host: Host) -> None:
    converge(host, "4G", f"-e mps_multi_user=true {RESTART}", quiet=True)
    judge_storm(clients(host, f"storm --kill daemon@0={KILLS} --kill service@0={KILLS // 5} --seed {SEED}"))
    host.run("mpsctl status; systemctl show -p NRestarts mps-control@0 mps-front-door@0", check=False)


def _while_jammed(host: Host) -> None:
    """With a client that waits at the jammed instance: told by its name, healed by the look for health, he comes in."""
    begin = time.monotonic()
    found: list[dict[str, Any]] = []
    waiting = threading.Thread(target=lambda: found.append(client(host, "--label", "waits")))
    waiting.start()
    time.sleep(1)
    host.run("mpsctl status", check=False)
    said = host.run("mpsctl health; mpsctl health; journalctl -u mps-health -n 20 -o cat --no-pager", check=False)
    waiting.join()
    took_s = time.monotonic() - begin
    told = "jammed" in said + host.run("journalctl -b -o cat --no-pager", quiet=True)
    soft("told as a jam", told, said.splitlines()[:2])
    soft("the client that waited came in", found[0].get("mps") == 1, {"after_s": round(took_s, 1), **found[0]})
    host.run("mpsctl status", check=False)


def jam(host: Host) -> None:
    """A jam made past the door, by root at the daemon's own socket; then one with no door at all."""
    converge(host, "4G", RESTART, quiet=True)
    print("-- past the door")
    found = clients(host, "jam --directory /run/mps-fleet/0/pipe --trials 12")
    soft("a first client that died jammed the daemon, past the door", found.get("jammed") is True, found)
    if found.get("jammed"):
        _while_jammed(host)
    print("-- without a door")
    converge(host, "4G", f"-e mps_front_door=false -e mps_unresponsive_daemon=restart {RESTART}", quiet=True)
    host.run("mpsctl verify", check=False)
    found = clients(host, "jam --trials 12")
    soft("a first client that died jammed the daemon, without a door", found.get("jammed") is True, found)
    if found.get("jammed"):
        # The first look tells it; what it asked hangs in the daemon, and the next one hears nothing at all.
        said = host.run("mpsctl status; mpsctl health; sleep 1; mpsctl health", check=False)
        soft("told as a jam", "jammed" in said, [line for line in said.splitlines() if "jammed" in line][:1])
        time.sleep(3)
        soft("healed: a client comes in", client(host).get("mps") == 1, "")
    converge(host, "4G", f"-e mps_front_door=true {RESTART}", quiet=True)
    soft("with the door again a client comes in", client(host).get("mps") == 1, "")


def early_server(host: Host) -> None:
    """A daemon by hand whose server is started before the limit is set, as somebody could do it: what a client gets."""
    converge(host, "4G", RESTART, quiet=True)
    host.run("systemctl stop mps-control@0", quiet=True)
    by_hand = "CUDA_MPS_PIPE_DIRECTORY=/run/by-hand CUDA_MPS_LOG_DIRECTORY=/run/by-hand"
    ask = f"{by_hand} nvidia-cuda-mps-control"
    wait = "for i in $(seq 100); do [ -e /run/by-hand/control ] && break; sleep 0.05; done"
    host.run(f"mkdir -p /run/by-hand; {by_hand} nvidia-cuda-mps-control -d; {wait}")
    try:
        host.run(
            "printf 'start_server -uid 0\nset_default_device_pinned_mem_limit 0 4G\nget_server_list\n'"
            f" | {ask}; S=$(echo get_server_list | {ask});"
            f' printf "get_server_status $S\nset_device_pinned_mem_limit $S 0 4G\n'
            f'get_device_pinned_mem_limit $S 0\nget_server_status $S\n" | {ask}; {by_hand} {CLIENT};'
            f" tail -5 /run/by-hand/server.log",
            check=False,
        )
    finally:
        host.run(f"echo quit | {ask}; systemctl start mps-control@0", check=False)


def containers(host: Host) -> None:
    """A client as a container runtime would start it, with the public directory mounted read-only at another place."""
    converge(host, "4G", RESTART, quiet=True)
    begun = {
        "of root": f"exec {CLIENT}",
        "of uid 1000": f"exec setpriv --reuid 1000 --regid 1000 --clear-groups --no-new-privs {CLIENT}",
        "of uid 1000, mapped to root": "exec setpriv --reuid 1000 --regid 1000 --clear-groups"
        f" unshare --user --map-root-user {CLIENT}",
    }
    for who, inside in begun.items():
        said = host.run(IN_A_CONTAINER.format(inside=inside), check=False)
        lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        found: dict[str, Any] = lines[0] if lines else {}
        held = found.get("mps") == 1 and found.get("free_mib", 1 << 20) <= 4096
        soft(f"in namespaces of its own, {who}: a client under its limit", held, found or said[-200:])
    inside = f"{CLIENT}; touch /run/began; while [ -e /run/began ]; do sleep 0.1; done; exec {CLIENT}"
    said_twice: list[str] = []
    words = IN_A_CONTAINER.format(inside=inside)
    run = threading.Thread(target=lambda: said_twice.append(host.run(words, check=False)))
    run.start()
    host.run("until [ -e /run/began ]; do sleep 0.1; done; systemctl stop mps-control@0; systemctl start mps-control@0")
    host.run("rm /run/began")
    run.join()
    under = [json.loads(line).get("mps") for line in said_twice[0].splitlines() if line.startswith("{")]
    soft("the same mount serves a client before and after a stop and a start", under == [1, 1], under)


def life(host: Host) -> None:
    """When a server lists a process, and when that process comes to the door: what counts as a client rests on it."""
    converge(host, "4G", f"-e mps_multi_user=true {RESTART}", quiet=True)
    lines = host.follow(
        "eval $(mpsctl env 0); exec /usr/bin/python3 /opt/project/tests/gpu/client_life.py", timeout_s=120
    )
    found = [json.loads(line) for line in lines if line.startswith("{")]
    steps = {one["step"]: one for one in found if "listed" in one}
    soft("a process with a context is listed", steps.get("cuCtxCreate", {}).get("listed") is True, len(steps))


PARTS = {
    "door-life": life,
    "door-cost": cost,
    "door-containers": containers,
    "door-jam": jam,
    "door-storm": storm,
    "door-early-server": early_server,
    "door-first-clients": first_clients,
}


def trial(host: Host) -> None:
    for name, part in PARTS.items():
        print(f"== {name}", flush=True)
        part(host)
    expect("what did not hold", not_so, [])


if __name__ == "__main__":
    sys.exit(on_a_host(trial))
