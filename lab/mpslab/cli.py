"""The command line: lab/lab VERB."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Optional, Sequence

from mpslab import daemons, fleet, gpus, hosts, machine, models, roots, ssh
from mpslab.errors import LabError
from mpslab.places import Places, places


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lab/lab",
        description="Real systemd hosts on this machine, with NVIDIA's own MPS control daemon and simulated GPUs.",
        epilog="State lies in .lab/ of the project, or in MPS_LAB_DIR. Exit: 0 done, 1 refused or failed, 2 usage.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    verb = verbs.add_parser("up", help="make and boot hosts; what is there as asked stays")
    verb.add_argument("--hosts", type=int, default=3, metavar="N", help="how many (default 3)")
    verb.add_argument("--gpus", type=int, default=2, metavar="M", help="simulated GPUs a host (default 2, 0 for none)")
    verb.add_argument("--model", choices=models.names(), default="h200", help="GPU model (default h200)")
    verb.add_argument("--mig", default="", metavar="PROFILES", help="MIG devices on every GPU, such as 3g.40gb,3g.40gb")
    daemon = verb.add_mutually_exclusive_group()
    daemon.add_argument("--daemon", choices=sorted(daemons.SUITES), default="550", help="NVIDIA's daemon (default 550)")
    daemon.add_argument("--no-daemon", action="store_true", help="hosts without the daemon's package")
    verb.add_argument("--release", choices=roots.RELEASES, default="bookworm", help="Debian (default bookworm)")
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
        host = hosts.find(where, options.host)
        os.execvp("ssh", ["ssh", "-F", str(ssh.config(where)), host.name, *options.command])
    elif options.verb == "down":
        # whatever else is missing by now, hosts can be removed
        machine.check_root()
        if not where.base.is_dir():
            return
        with fleet.lock(where):
            fleet.down(where, options.prefix)
    else:
        machine.check(where)
        with fleet.lock(where):
            _change(options, where)


def _change(options: argparse.Namespace, where: Places) -> None:
    if options.verb == "up":
        fleet.up(
            where,
            fleet.Wish(
                count=options.hosts,
                gpus=options.gpus,
                model=options.model,
                daemon=None if options.no_daemon else options.daemon,
                release=options.release,
                driver_delay_s=None if options.driver_delay is None else _seconds(options.driver_delay),
                prefix=options.prefix,
                mig=tuple(filter(None, options.mig.split(","))),
            ),
        )
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


def _list(where: Places, as_json: bool) -> None:
    rows = fleet.listing(where)
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    if not rows:
        print("no hosts; lab/lab up --hosts 3 --gpus 2 makes some")
        return
    print(f"{'HOST':<12} {'STATE':<8} {'ADDRESS':<18} {'DEBIAN':<9} {'DAEMON':<12} GPUS (simulated)")
    for row in rows:
        address = row["address"] if row["port"] == 22 else f"{row['address']}:{row['port']}"
        gpu_text = f"{row['gpus']} {row['model']}" + (f", MIG {','.join(row['mig'])}" if row["mig"] else "")
        print(
            f"{row['name']:<12} {row['state']:<8} {address:<18} {row['release']:<9} "
            f"{row['daemon_version'] or 'none':<12} {gpu_text}"
        )
