"""The command line: lab/lab VERB."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, Mapping, Optional, Sequence

from mpslab import boot, daemons, enter, fleet, gpus, hosts, machine, models, packages, passthrough, roots, ssh
from mpslab.errors import LabError
from mpslab.places import Places, places


def _parser() -> argparse.ArgumentParser:
    """Every verb with its options, declared one after the other: long, and without a branch."""
    parser = argparse.ArgumentParser(
        prog="lab/lab",
        description="Real systemd hosts on this machine, with NVIDIA's own MPS control daemon, and with GPUs that are "
        "simulated or this machine's own.",
        epilog="State lies in .lab/ of the project, or in MPS_LAB_DIR. Exit: 0 done, 1 refused or failed, 2 usage.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    verb = verbs.add_parser("up", help="make and boot hosts; what is there as asked stays")
    verb.add_argument("--hosts", type=int, metavar="N", help="how many (default 3; 1 with a real GPU)")
    verb.add_argument(
        "--gpu",
        choices=(hosts.SIMULATED_GPU, hosts.REAL_GPU),
        default=hosts.SIMULATED_GPU,
        help="real: all GPUs of this machine, with its driver (default simulated)",
    )
    verb.add_argument(
        "--share",
        action="append",
        default=[],
        metavar="SOURCE[:TARGET]",
        help="with a real GPU: a folder of this machine, with all below, to be read in the hosts",
    )
    verb.add_argument("--gpus", type=int, metavar="M", help="simulated GPUs a host (default 2, 0 for none)")
    verb.add_argument("--model", choices=models.names(), help="GPU model (default h200)")
    verb.add_argument("--mig", metavar="PROFILES", help="MIG devices on every GPU, such as 3g.40gb,3g.40gb")
    daemon = verb.add_mutually_exclusive_group()
    daemon.add_argument("--daemon", choices=sorted(daemons.SUITES), help="NVIDIA's daemon (default 550)")
    daemon.add_argument("--no-daemon", action="store_true", help="hosts without the daemon's package")
    verb.add_argument(
        "--standin-server",
        action="store_true",
        help="a simulated MPS server in the place of NVIDIA's, which needs a GPU: the daemon takes the lab's simulated "
        "clients in (/usr/lib/mps-lab/simulated_client.py on every host with simulated GPUs)",
    )
    verb.add_argument(
        "--disk", type=int, metavar="MIB", help="the host's own files lie in memory and take no more than this"
    )
    verb.add_argument(
        "--packages", choices=sorted(packages.GROUPS), help="more of Debian's packages, whose daemons nobody starts"
    )
    verb.add_argument("--release", choices=roots.RELEASES, help="Debian (default bookworm)")
    verb.add_argument("--driver-delay", type=float, metavar="SECONDS", help="the driver loads this late")
    verb.add_argument("--prefix", default="lab", metavar="NAME", help="hosts are NAME-01 … (default lab)")

    verb = verbs.add_parser("down", help="end and remove all hosts, also after a crash; caches stay")
    verb.add_argument("--prefix", metavar="NAME", help="only the hosts NAME-…")

    verb = verbs.add_parser("list", help="the hosts")
    verb.add_argument("--json", action="store_true", help="for programs")

    verb = verbs.add_parser("ssh", help="a shell or a command on a host; exits as the command does")
    verb.add_argument("host", metavar="HOST")
    verb.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")

    verb = verbs.add_parser("roots", help="build and fetch everything that later ups need")
    verb.add_argument("--release", choices=roots.RELEASES, help="only this Debian")

    verb = verbs.add_parser(
        "gpu",
        help="let a simulated GPU vanish from a running host, fail or change its place, or come back",
        description="; ".join(f"{name}: {fault.help}" for name, fault in gpus.FAULTS.items()) + ".",
    )
    verb.add_argument("host", metavar="HOST")
    verb.add_argument("act", choices=tuple(gpus.FAULTS))
    verb.add_argument("index", type=int, metavar="INDEX", nargs="?", help="not for reorder and restore")

    verb = verbs.add_parser("driver", help="how the simulated driver behaves, now or from the host's next boot on")
    verb.add_argument("host", metavar="HOST")
    how = verb.add_mutually_exclusive_group(required=True)
    how.add_argument("--delay", type=float, metavar="SECONDS", help="loads this late at the next boot; 0: at once")
    how.add_argument("--absent", action="store_true", help="never loads, from the next boot on")
    for fault, about in fleet.DRIVER_FAULTS.items():
        how.add_argument(f"--{fault}", dest="fault", action="store_const", const=fault, help=about)
    how.add_argument("--well", dest="fault", action="store_const", const="", help="now: neither of these any more")
    return parser


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Do what the command line says; returns the exit code."""
    options = _parser().parse_args(arguments)
    # the modes of what is written here show in the hosts
    os.umask(0o022)
    try:
        _do(options, places())
        sys.stdout.flush()
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # the reader has seen enough; Python would complain once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print("lab: interrupted; `lab/lab up` goes on from here, `lab/lab down` removes all", file=sys.stderr)
        return 130
    return 0


def _do(options: argparse.Namespace, where: Places) -> None:
    if options.verb == "list":
        _list(where, options.json)
    elif options.verb == "ssh":
        _ssh(where, hosts.find(where, options.host), options.command)
    elif options.verb == "down":
        # whatever else is missing by now, hosts can be removed
        machine.check_root()
        if not where.base.is_dir():
            return
        with fleet.lock(where):
            fleet.down(where, options.prefix)
    else:
        machine.check(where, with_parts=options.verb != "up" or options.gpu != hosts.REAL_GPU)
        with fleet.lock(where):
            _change(options, where)


def _change(options: argparse.Namespace, where: Places) -> None:
    if options.verb == "up":
        fleet.up(where, _real_desired(options) if options.gpu == hosts.REAL_GPU else _desired(options))
    elif options.verb == "roots":
        fleet.build(where, (options.release,) if options.release else roots.RELEASES)
    elif options.verb == "gpu":
        gpus.plant(where, options.host, options.act, options.index)
    elif options.verb == "driver" and options.fault is not None:
        fleet.plant_driver_fault(where, options.host, options.fault)
    elif options.verb == "driver":
        fleet.set_driver(where, options.host, hosts.Driver(_seconds(options.delay or 0), options.absent))


def _seconds(value: float) -> float:
    if not 0 <= value <= 3600:
        raise LabError(f"found a delay of {value:g} s, expected 0 to 3600")
    return value


def _desired(options: argparse.Namespace) -> fleet.Desired:
    return fleet.Desired(
        count=3 if options.hosts is None else options.hosts,
        gpus=2 if options.gpus is None else options.gpus,
        model=options.model or "h200",
        daemon=None if options.no_daemon else options.daemon or "550",
        release=options.release or "bookworm",
        driver_delay_s=None if options.driver_delay is None else _seconds(options.driver_delay),
        prefix=options.prefix,
        mig=tuple(filter(None, (options.mig or "").split(","))),
        shares=tuple(map(passthrough.share, options.share)),
        standin_server=options.standin_server,
        disk_mib=options.disk,
        packages=options.packages or "",
    )


def _real_desired(options: argparse.Namespace) -> fleet.Desired:
    """:raises LabError: with options that only simulated GPUs and drivers can follow."""
    for name in ("gpus", "model", "mig", "daemon", "no_daemon", "standin_server", "disk", "packages", "driver_delay"):
        value = getattr(options, name)
        if value is not None and value is not False:
            raise LabError(
                f"found --gpu real with --{name.replace('_', '-')}: such hosts have all GPUs of this machine and its "
                "driver as they are; leave one of both away"
            )
    return fleet.Desired(
        count=1 if options.hosts is None else options.hosts,
        gpus=0,
        model="",
        daemon=None,
        release=options.release or "",
        driver_delay_s=None,
        prefix=options.prefix,
        shares=tuple(map(passthrough.share, options.share)),
        gpu=hosts.REAL_GPU,
    )


def _ssh(where: Places, host: hosts.Host, words: list[str]) -> None:
    """By ssh; where this machine has none, through the host's namespaces."""
    client = ssh.client()
    if client is not None:
        os.execv(client, ["ssh", "-F", str(ssh.config(where)), host.name, *words])
    leader = boot.leader_pid(where, host.name)
    if leader is None:
        raise LabError(f"{host.name} is not running (or reboots just now); try again, or run `lab/lab up` again")
    inside = enter.command(leader, words, os.environ.get("TERM", "dumb"))
    os.execvp(inside[0], inside)


def _list(where: Places, as_json: bool) -> None:
    rows = fleet.listing(where)
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    if not rows:
        print("no hosts; lab/lab up --hosts 3 --gpus 2 makes some")
        return
    print(f"{'HOST':<12} {'STATE':<8} {'ADDRESS':<18} {'DEBIAN':<9} {'DAEMON':<12} GPUS")
    for row in rows:
        address = row["address"] if row["port"] == 22 else f"{row['address']}:{row['port']}"
        gpu_text = _gpu_text(row)
        print(
            f"{row['name']:<12} {row['state']:<8} {address:<18} {row['release']:<9} "
            f"{row['daemon_version'] or ('machine' if row['gpu'] == hosts.REAL_GPU else 'none'):<12} {gpu_text}"
        )


def _gpu_text(row: Mapping[str, Any]) -> str:
    if row["gpu"] == hosts.REAL_GPU:
        return f"{row['gpus']} (real, driver {row['driver_version'] or 'unknown'})"
    mig = f", MIG {','.join(row['mig'])}" if row["mig"] else ""
    server = f", {hosts.STANDIN_SERVER} (simulated)" if hosts.STANDIN_SERVER in row["simulated"] else ""
    return f"{row['gpus']} {row['model']}{mig} (simulated){server}"
