#!/usr/bin/env python3
"""A change that only a restart can bring about, with 8 clients at work, under each of the three policies; then a
reboot, and the removal of everything with a converge behind it.

See gpu_host.py for the host. The clients' own last words tell: under ``refuse`` all 8 live on, under
``wait`` the restart comes once they have left, under ``terminate`` each sees error 810.
"""

from __future__ import annotations

import sys
import threading
import time

from gpu_host import Host, converge, expect, not_so, on_a_host, soft
from verify_trial import Client, amiss, asked

COUNT = 8


def clients(host: Host, policy: str) -> list[Client]:
    made = [Client(host, f"{policy}{number}", wait=False) for number in range(COUNT)]
    begun = [one.line(0) for one in made]
    soft(f"{policy}: {COUNT} clients are at work", [one.get("mps") for one in begun] == [1] * COUNT, len(begun))
    for one, said in zip(made, begun):
        one.begun = said
    return made


def changed(host: Host, policy: str, multi_user: bool) -> str:
    """site.yml with the other kind of daemon, which a running one cannot become."""
    begin = time.monotonic()
    said = converge(
        host,
        "4G",
        f"-e mps_multi_user={str(multi_user).lower()} -e mps_on_clients={policy} -e mps_drain_timeout_s=20;"
        " echo exit $?",
        quiet=True,
    )
    print("\n".join(f"     {line}" for line in said.splitlines() if line.strip())[-2500:])
    print(f"   {policy}: {time.monotonic() - begin:.1f} s", flush=True)
    return said


def main_pid(host: Host) -> str:
    return host.run("systemctl show -p MainPID --value mps-control@0", quiet=True).strip()


def policies(host: Host) -> None:
    print("-- refuse")
    made = clients(host, "refuse")
    before = main_pid(host)
    said = changed(host, "refuse", True)
    soft("refuse: the play ends non-zero", "exit 0" not in said, said.splitlines()[-1])
    soft("refuse: it names the clients", str(made[0].pid) in said, made[0].pid)
    soft("refuse: the daemon is the same", main_pid(host) == before, before)
    ends = [one.leave().get("held") for one in made]
    soft("refuse: every client ended well", ends == ["ok"] * COUNT, ends)
    print("-- wait")
    host.run("systemctl restart mps-control@0", quiet=True)
    made = clients(host, "wait")

    def leave() -> None:
        for one in made:
            time.sleep(0.5)
            one.release()

    thread = threading.Thread(target=leave)
    thread.start()
    said = changed(host, "wait", True)
    thread.join()
    ends = [one.line(1).get("held") for one in made]
    soft("wait: every client ended well", ends == ["ok"] * COUNT, ends)
    soft("wait: the change is in force", "exit 0" in said, said.splitlines()[-1])
    print("-- terminate")
    made = clients(host, "terminate")
    said = changed(host, "terminate", False)
    ends = [one.line(1).get("code") for one in made]
    soft("terminate: every client saw 810", ends == [810] * COUNT, ends)
    soft("terminate: the change is in force", "exit 0" in said, said.splitlines()[-1])


def reboot(host: Host) -> None:
    print("-- reboot of the host")
    converge(host, "4G", quiet=True)
    host.run("systemctl reboot", check=False)
    time.sleep(2)
    host.wait()
    report, _ = asked(host, "mpsctl verify --probe-client")
    soft("verify is silent after a reboot", not amiss(report), amiss(report))


def removal(host: Host) -> None:
    print("-- remove, and converge again")
    run = (
        "cd /opt/project && PYTHONPATH=/opt/ansible ANSIBLE_NOCOLOR=1 /usr/bin/python3 -m ansible playbook"
        " -i /opt/inventory.yml playbooks/remove.yml -l gpu-nodes | tail -3; ls /etc/mps /run/mps-fleet"
        " /usr/local/bin/mpsctl 2>&1; echo"
    )
    said = host.run(run)
    soft("nothing of ours is left", said.count("No such file") == 3, said.count("No such file"))
    converge(host, "4G", quiet=True)
    report, _ = asked(host, "mpsctl verify --probe-client")
    soft("and it is back", not amiss(report), amiss(report))


def trial(host: Host) -> None:
    converge(host, "4G", quiet=True)
    policies(host)
    reboot(host)
    removal(host)
    expect("what did not hold", not_so, [])


if __name__ == "__main__":
    sys.exit(on_a_host(trial))
