"""Hosts that change under their instances, on one lab host of Debian 13 with 16 GPUs.

systemd, ssh, dpkg and NVIDIA's control daemons 535 and 550 are real; GPUs, MPS servers and clients are simulated. The
tests come in this order, and the last leaves the host without its package.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Iterator, Sequence

import pytest

from .conftest import PROJECT
from .front_door import IN, OUTSIDE, PUBLIC, REFUSED, DoorHost, Fleet, fleet, until
from .rollout import Played

GPUS = 16
PACKAGE = "nvidia-cuda-mps"
SERVER = "/usr/sbin/nvidia-cuda-mps-server"
SHORT = ("-e", "mps_driver_timeout_s=2", "-e", "mps_stop_timeout_s=3")
TABLE = "/etc/mps-lab/gpus"
FAKETIME, CLOCK = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1", "/run/mps-lab/clock"
JUMPS = ("+3650d", "-3650d")


@pytest.fixture(scope="module")
def one() -> Iterator[Fleet]:
    with fleet("change", ("535",), converged=False, more=("--gpus", str(GPUS), "--release", "trixie")) as booted:
        yield booted


@pytest.fixture
def host(one: Fleet) -> Iterator[DoorHost]:
    (found,) = one.hosts
    yield found
    found.end_clients()


def site(one: Fleet, gpus: dict[str, Sequence[int]], *more: str) -> Played:
    """`site.yml` with these instances."""
    instances = [{"name": name, "gpus": [str(index) for index in indices]} for name, indices in gpus.items()]
    return one.rollout.play("site.yml", *SHORT, "-e", json.dumps({"mps_instances": instances}), *more)


def converged(one: Fleet, gpus: dict[str, Sequence[int]], *more: str) -> None:
    done = site(one, gpus, *more)
    assert done.exit_code == 0, done.output


def status(host: DoorHost, env: str = "") -> dict[str, Any]:
    said = host.run(f"{env} mpsctl status --json", check=False)
    found: dict[str, Any] = json.loads(said[said.index("{") :])
    return found


def critical(host: DoorHost, env: str = "") -> dict[str, list[str]]:
    """The critical checks of each instance, by the verb that all others agree with."""
    return {
        name: [one["found"] for one in found["checks"] if one["level"] == "critical"]
        for name, found in status(host, env=env)["instances"].items()
    }


def amiss(host: DoorHost, verb: str, name: str) -> dict[str, str]:
    """The checks of an instance that did not pass, with what was found."""
    said = host.run(f"mpsctl {verb} --json", check=False)
    group = json.loads(said[said.index("{") :])["instances"][name]
    return {one["name"]: one["found"] for one in group["checks"] if one["level"] == "critical"}


def serves(host: DoorHost, name: str) -> list[str]:
    pid = host.main_pid(f"mps-control@{name}")
    found = host.run(f"tr '\\0' '\\n' </proc/{pid}/environ | sed -n s/^CUDA_VISIBLE_DEVICES=//p").strip()
    return found.split(",")


def gpus(host: DoorHost) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(host.run("mpsctl gpus --json"))["gpus"]
    return found


def test_sixteen_gpus(one: Fleet, host: DoorHost) -> None:
    """Fault: one instance has all 16 GPUs, or each GPU its own; the limits of all change; most instances go

    Happens: the daemon has all UUIDs in order, every limit reads back; each verb says the same of each
    Heals: nothing to heal
    Tried: `site.yml` with one instance, with 16, `limits.yml`, `verify.yml`, `site.yml` with two
    """
    converged(one, {"all": range(GPUS)})
    assert serves(host, "all") == [gpu["uuid"] for gpu in gpus(host)]
    found = status(host)["instances"]["all"]
    assert found["word"] == "ok"
    assert host.meets(directory=f"{PUBLIC}/all") == IN
    converged(one, {str(index): [index] for index in range(GPUS)})
    assert critical(host) == {str(index): [] for index in range(GPUS)}
    changed = one.rollout.play(
        "playbooks/limits.yml", *SHORT, "-e", "mps_device_memory_limit=6G", "-e", "mps_active_thread_percentage=25"
    )
    assert changed.exit_code == 0, changed.output
    said = host.run("mpsctl status")
    assert said.count("desired 6144 MiB, the daemon shows 6G") == said.count("desired 25 %") == GPUS
    assert one.rollout.play("playbooks/verify.yml").exit_code == 0
    converged(one, {"0": [0], "1": [1]})
    assert critical(host) == {"0": [], "1": []}
    assert [gpu["compute_mode"] for gpu in gpus(host)] == ["exclusive_process"] * 2 + ["default"] * (GPUS - 2)


def test_another_name_while_a_client_works(one: Fleet, host: DoorHost) -> None:
    """Fault: an instance gets another name, or a GPU another instance, while a client works

    Happens: the daemon and its client go on; the new instance waits, also where somebody starts it, and each verb says
    which instance has the GPU; never do two daemons serve it, and the stop of the one leaves the other its compute mode
    Heals: the next run of `site.yml`, once the client has left
    Tried: 0 becomes infer, `systemctl start` and `stop` of infer, the client ends, `site.yml`
    """
    works, pid = host.client(), host.main_pid()
    assert works.outcome() == IN
    renamed = site(one, {"infer": [0], "1": [1]})
    assert "waits for clients to leave" in renamed.output
    host.run("systemctl start mps-control@infer", check=False)
    assert "mps-control@0.service still has GPU-" in host.run("journalctl -q -o cat -u mps-control@infer")
    host.run("systemctl stop mps-control@infer")
    assert gpus(host)[0]["compute_mode"] == "exclusive_process"
    for verb in ("status", "health"):
        found = amiss(host, verb, "infer")
        assert f"the instance '0' (control daemon {pid}) still serves" in found["other-daemons"]
        assert "compute-mode" not in found
    assert (host.main_pid(), host.meets()) == (pid, IN)
    assert works.end() == 0
    converged(one, {"infer": [0], "1": [1]})
    assert critical(host) == {"1": [], "infer": []}
    assert host.meets(directory=f"{PUBLIC}/infer") == IN


def test_gpus_move_between_instances_in_one_run(one: Fleet, host: DoorHost) -> None:
    """Fault: GPUs move between instances in one run

    Happens: each has its new GPU after the run, and what no instance has any more its compute mode of before
    Heals: nothing to heal
    Tried: two instances exchange their GPUs, one takes both, three share three
    """
    first, second = (gpu["uuid"] for gpu in gpus(host)[:2])
    converged(one, {"infer": [1], "1": [0]})
    assert (serves(host, "infer"), serves(host, "1")) == ([second], [first])
    converged(one, {"infer": [0, 1]})
    assert serves(host, "infer") == [first, second]
    converged(one, {"0": [1], "1": [0], "infer": [2]})
    assert (serves(host, "0"), serves(host, "1")) == ([second], [first])
    assert [gpu["compute_mode"] for gpu in gpus(host)[:4]] == ["exclusive_process"] * 3 + ["default"]


@pytest.mark.parametrize("change", ["swap", "pull"])
def test_the_gpus_change_between_the_look_and_the_start(one: Fleet, host: DoorHost, change: str) -> None:
    """Fault: a GPU is exchanged, or not found any more, between the look of a run and its start

    Happens: the start goes by what is there then; it takes no GPU that another instance has, whose index it has by now,
    and the run says what it found
    Heals: the next run, once the GPU is back; name GPUs by UUID where it matters
    Tried: a stand-in for systemctl has the simulated NVML's table changed as it is asked to start a daemon
    """
    converged(one, {"1": [1]})
    before, pid = gpus(host), host.main_pid("mps-control@1")
    host.run(f"cp -p {TABLE} /root/before")
    subprocess.run([PROJECT / "lab/lab", "gpu", host.name, change, "0"], check=True, capture_output=True)
    host.run(
        f"cp -p {TABLE} /root/after; cp -p /root/before {TABLE}.new; mv {TABLE}.new {TABLE};"
        " printf '%s\\n' '#!/bin/sh' 'case \"$*\" in *\" start mps-control@\"*)'"
        f" 'cp -p /root/after {TABLE}.new; mv {TABLE}.new {TABLE};; esac' 'exec /usr/bin/systemctl \"$@\"'"
        " >/usr/local/bin/systemctl; chmod 755 /usr/local/bin/systemctl"
    )
    try:
        done = site(one, {"0": [0], "1": [1]})
        if change == "swap":
            assert done.exit_code == 0, done.output
            assert f"was planned for {before[0]['uuid']}" in " ".join(done.output.split())
            assert serves(host, "0") == [gpus(host)[0]["uuid"]] != [before[0]["uuid"]]
        else:
            assert done.exit_code != 0
            said = " ".join(done.output.split())
            assert f"still serves {before[1]['uuid']}" in said, done.output
            assert "still has" in host.run("journalctl -q -o cat -u mps-control@0")
        assert (host.main_pid("mps-control@1"), serves(host, "1")) == (pid, [before[1]["uuid"]])
    finally:
        host.run(f"rm /usr/local/bin/systemctl; cp -p /root/before {TABLE}.new; mv {TABLE}.new {TABLE}")
        host.run("systemctl stop mps-control@0")  # and forget its starts that did not last
    converged(one, {"0": [0], "1": [1]})
    assert critical(host) == {"0": [], "1": []}


# -- the clock


def under_clock(command: str) -> str:
    """A command whose clock CLOCK sets while it runs; what counts from boot goes on."""
    return (
        f"env LD_PRELOAD={FAKETIME} FAKETIME_TIMESTAMP_FILE={CLOCK} FAKETIME_NO_CACHE=1"
        f" FAKETIME_DONT_FAKE_MONOTONIC=1 {command}"
    )


def set_clock(host: DoorHost, jump: str) -> None:
    host.run(f"echo '{jump}' >{CLOCK}.new; mv {CLOCK}.new {CLOCK}")


def told_of_limits(host: DoorHost) -> str:
    """What status says of limits and clients, without what has an age."""
    said = host.run(under_clock("mpsctl status"), check=False)  # 535 does not tell its servers' state
    return "\n".join(line for line in said.splitlines() if "limit" in line or "client" in line)


def drains(host: DoorHost) -> None:
    """A drain waits as long as it is told, and what it writes down is undone at any time of day."""
    for jump in JUMPS:
        set_clock(host, "+0")
        with ThreadPoolExecutor(1) as pool:
            timed = "begin=$(cut -d. -f1 /proc/uptime); {}; echo took $(($(cut -d. -f1 /proc/uptime) - begin))"
            drain = pool.submit(host.run, timed.format(under_clock("mpsctl drain --timeout 3 0")), "", False)
            until(lambda: host.admission()["state"] == "waiting", "the drain has begun")
            set_clock(host, jump)
            said = drain.result(60)
        assert "1 client left" in said
        assert 3 <= int(said.split("took ")[1].split()[0]) < 10, said
        assert amiss_drain(host)
        host.run("mpsctl undrain 0")
        assert host.meets() == IN


def amiss_drain(host: DoorHost) -> str:
    (found,) = [one for one in status(host)["instances"]["0"]["checks"] if one["name"] == "drain"]
    return str(found["level"] == "warning" and found["found"])


def waits_at_the_door(host: DoorHost) -> None:
    """The front door itself has the other clock: who waits there waits on, and comes in."""
    service, drop_in = "mps-front-door@0.service", "/run/systemd/system/mps-front-door@0.service.d"
    lines = ["[Service]", "UnsetEnvironment=", *(f"Environment={one}" for one in under_clock("").split()[1:])]
    host.run(
        f"mkdir -p {drop_in}; printf '%s\\n' {shlex.join(lines)} >{drop_in}/clock.conf; systemctl daemon-reload;"
        f" systemctl stop {service}"
    )
    try:
        set_clock(host, "+0")
        host.run("mpsctl drain --timeout 1 0", check=False)
        waits = host.client()
        assert waits.waits()
        assert FAKETIME in host.run(f"cat /proc/$(systemctl show --value -p MainPID {service})/maps")
        for jump in JUMPS:
            set_clock(host, jump)
            assert waits.waits()
        host.run("mpsctl undrain 0")
        assert waits.outcome() == IN
        assert waits.end() == 0
    finally:
        host.run(f"rm -r {drop_in}; systemctl daemon-reload; systemctl stop {service}")


def test_clock_jumps(one: Fleet, host: DoorHost) -> None:
    """Fault: the host's clock jumps by years, forward or back

    Happens: nothing: waits, pauses, grace times and ages count from boot. A time in the daemon's log counts by what can
    be: it lies in the life of the daemon, before or after the clock was set
    Heals: nothing to heal
    Tried: libfaketime sets the clock of `status`, of a drain and of the front door while a client waits there
    """
    converged(one, {"0": [0], "1": [1]})
    set_clock(host, "+3650d")
    assert int(host.run(under_clock("date +%Y"))) - int(host.run("date +%Y")) in (9, 10)
    works = host.client()
    assert works.outcome() == IN
    set_clock(host, "+0")
    before = told_of_limits(host)
    assert "client" in before
    for jump in JUMPS:
        set_clock(host, jump)
        assert told_of_limits(host) == before, "the log of before the jump tells them as well"
        assert critical(host, env=under_clock("")) == {"0": [], "1": []}
    drains(host)
    waits_at_the_door(host)
    assert works.end() == 0
    assert critical(host) == {"0": [], "1": []}


# -- what the out-of-memory killer does


def test_kills_as_of_the_out_of_memory_killer(host: DoorHost) -> None:
    """Fault: the out-of-memory killer ends the daemon, or a command of ours

    Happens: a reload that is killed ends nobody, and the next one goes on; a stop that is killed ends the daemon and
    gives the GPU back; the units have `OOMPolicy=continue`, or systemd would end the whole unit
    Heals: a daemon is started again at once
    Tried: SIGKILL 0, 50, 100, 200 and 400 ms after a reload began, to the command of a stop, and to a daemon
    """
    units = "mps-control@0.service mps-front-door@0.service"
    assert set(host.run(f"systemctl show --value -p OOMPolicy {units}").split()) == {"continue"}
    works, pid = host.client(), host.main_pid()
    assert works.outcome() == IN
    for wait_s in (0, 0.05, 0.1, 0.2, 0.4):
        host.run(
            f"systemctl reload --no-block mps-control@0; sleep {wait_s};"
            " kill -KILL $(pgrep -f '^[^ ]*python3 .*mpsctl apply 0$'); true"
        )
        until(
            lambda: host.run("systemctl is-active mps-control@0", check=False).strip() == "active",
            "it is no more reloaded",
        )
        assert host.main_pid() == pid, "a reload that is killed ends nobody"
    host.run("systemctl reload mps-control@0")
    assert (host.meets(), works.end()) == (IN, 0)
    host.run("systemctl stop --no-block mps-control@1; sleep 0.1; kill -KILL $(pgrep -f 'mpsctl stop 1$'); true")
    until(lambda: host.main_pid("mps-control@1") == 0, "a stop goes on without our command")
    until(lambda: gpus(host)[1]["compute_mode"] == "default", "and gives the GPU back")
    host.run(f"kill -KILL {pid}; systemctl start mps-control@1")
    assert host.meets() == IN
    assert critical(host)["1"] == []


# -- isolate, and units that somebody masked


def test_isolate(host: DoorHost) -> None:
    """Fault: `systemctl isolate` with multi-user.target, or rescue.target

    Happens: nothing, or the daemons stop; the front doors stand, so that clients are refused (error 805) and none runs
    outside MPS
    Heals: `systemctl isolate multi-user.target`, or a boot
    Tried: both, and a client in rescue.target
    """
    pids = [host.main_pid(f"mps-control@{name}") for name in "01"]
    host.run("systemctl isolate multi-user.target")
    assert [host.main_pid(f"mps-control@{name}") for name in "01"] == pids
    # ssh ends there as well: the command goes on as a unit of its own.
    host.run(
        "systemd-run -q --unit trial -p IgnoreOnIsolate=yes -p DefaultDependencies=no --service-type=exec sh -c '"
        "systemctl isolate rescue.target; while [ $(systemctl is-active mps-control@0) = deactivating ]; do sleep 0.1;"
        " done; systemctl show --value -p ActiveState mps-control@0.service"
        " mps-front-door@0.socket >/root/rescued; CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps/0"
        " /usr/lib/mps-lab/simulated_client.py >>/root/rescued; systemctl isolate multi-user.target'"
    )
    host.disconnect()
    until(
        lambda: (
            "isolated"
            in host.run(
                "[ ! -e /root/rescued ] || [ $(systemctl is-active trial) = active ] || echo isolated", check=False
            )
        ),
        "it is back",
    )
    said = host.run("cat /root/rescued").split(maxsplit=2)
    assert said[:2] == ["inactive", "active"]
    assert json.loads(said[2])["outcome"] == REFUSED
    until(lambda: critical(host) == {"0": [], "1": []}, "the daemons are back")
    assert host.meets() == IN


MASKED = {
    "mps-control@0.service": "unit-enabled",
    "mps-front-door@0.socket": "front-door",
    "mps-front-door@0.service": "front-door",
}


@pytest.mark.parametrize("unit", MASKED)
def test_masked_units(one: Fleet, host: DoorHost, unit: str) -> None:
    """Fault: somebody masks a unit: an instance's, its front door's socket or its service

    Happens: each verb names the unit and the command that unmasks it; `site.yml` refuses to work against it and goes on
    with the others. systemd closes the socket of a front door whose socket or service is masked, and then clients run
    outside MPS
    Heals: `systemctl unmask`, then `site.yml`, which stands a front door up whose socket was closed
    Tried: each masked, each verb, `site.yml`, unmasked, `site.yml`
    """
    host.run(f"systemctl mask {unit}")
    try:
        for verb, exit_code in (("status", 1), ("verify", 2), ("health", 1)):
            said = host.run(f"mpsctl {verb}; echo ended with $?", check=False)
            assert f"ended with {exit_code}" in said
            assert f"systemctl unmask {unit}" in said
            assert f"{unit} is masked" in amiss(host, verb, "0")[MASKED[unit]]
        done = site(one, {"0": [0], "1": [1]})
        assert done.exit_code != 0
        assert f"systemctl unmask {unit}" in " ".join(done.output.split())
        assert critical(host)["1"] == []
        if unit == "mps-front-door@0.service":
            host.run(f"systemctl stop {unit}")
            assert host.meets().startswith(OUTSIDE), "what the check is for"
    finally:
        host.run(f"systemctl unmask {unit}")
    host.run("systemctl daemon-reload")
    converged(one, {"0": [0], "1": [1]})
    assert critical(host) == {"0": [], "1": []}
    assert host.meets() == IN, "also where systemd closed the socket of the masked unit"


# -- the daemon's package


def package(version: str, folder: Path) -> Path:
    """The lab's files of a daemon as a package."""
    (layer,) = (PROJECT / ".lab/cache/daemons").glob(f"{version}.*")
    root = folder / version
    subprocess.run(["cp", "-a", layer, root], check=True)
    (root / "DEBIAN").mkdir()
    fields = (f"Package: {PACKAGE}", f"Version: {layer.name}", "Architecture: all", "Maintainer: none <root@localhost>")
    (root / "DEBIAN/control").write_text("\n".join((*fields, "Description: the lab's files of it\n")))
    made = folder / f"{version}.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Zgzip", "--build", root, made], check=True, capture_output=True)
    return made


def test_the_package_is_upgraded_under_running_daemons(one: Fleet, host: DoorHost, tmp_path: Path) -> None:
    """Fault: the daemon's package is upgraded, or removed, under running daemons

    Happens: nobody is lost; each verb says that a restart is due, and `site.yml` restarts whose clients have left.
    Where the package is removed nothing can be asked: unknown, and nobody is ended
    Heals: `site.yml`; the package installed again
    Tried: 535 to 550 by dpkg with a client at work, each verb, a reload, `site.yml`; removed, and installed again
    """
    for version in ("535", "550"):
        host.lab.run(f"cat >/root/{version}.deb", package(version, tmp_path).read_bytes())
    host.run(f"dpkg-divert --local --no-rename --divert {SERVER}.real --add {SERVER}; dpkg -i /root/535.deb")
    assert site(one, {"0": [0], "1": [1]}).exit_code == 0, "the same version, in another file"
    works, pids = host.client(), [host.main_pid(f"mps-control@{name}") for name in "01"]
    assert works.outcome() == IN
    host.run("dpkg -i /root/550.deb")
    for verb in ("status", "verify", "health"):
        assert "was replaced after its start" in host.run(f"mpsctl {verb}", check=False), verb
    host.run("systemctl start mps-health.service; systemctl reload mps-control@0 mps-control@1")
    assert (host.meets(), host.meets(directory=f"{PUBLIC}/1")) == (IN, IN)
    done = site(one, {"0": [0], "1": [1]})
    assert "instance 0 waits for clients to leave" in done.output
    assert [host.main_pid("mps-control@0") == pids[0], host.main_pid("mps-control@1") == pids[1]] == [True, False]
    assert host.meets(directory=f"{PUBLIC}/1") == IN
    host.run(f"dpkg -r {PACKAGE}")
    for verb, exit_code in (("status", 3), ("health", 3)):
        said = host.run(f"mpsctl {verb}; echo ended with $?", check=False)
        assert f"ended with {exit_code}" in said
        assert "install the MPS package" in said
    assert site(one, {"0": [0], "1": [1]}).exit_code != 0
    assert host.main_pid() == pids[0]
    host.run("dpkg -i /root/550.deb")
    assert works.end() == 0
    converged(one, {"0": [0], "1": [1]})
    assert critical(host) == {"0": [], "1": []}
    assert host.main_pid() != pids[0]
    assert host.meets() == IN
