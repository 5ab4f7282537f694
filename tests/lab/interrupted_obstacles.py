"""What keeps a host from writing, as shell: each is put there whole, proves that it works, and is taken away again.

The disk of a host (`lab/lab up --disk`) has its /etc, /var, /usr and /opt; /run is a file system of its own, in memory.
A read-only place is a bind mount over it, which the mount namespaces of services that run get as well. A reboot ends
everything but the full disk.
"""

from __future__ import annotations

from dataclasses import dataclass

DISK_MIB = 64
_ASIDE = "/opt/probe/aside"
_BALLAST = "ballast"
_MARGIN_KIB = 1024
"""What is written between two commands here is less."""


@dataclass(frozen=True)
class Obstacle:
    begin: str
    end: str
    """It may not be there any more."""


def _cannot_write(place: str) -> str:
    return f"! (echo 1 >{place}/.written) 2>/dev/null"


def _read_only(place: str) -> Obstacle:
    """Bound aside first: made read-only in its place, services would have got it before that."""
    steps = (
        f"mkdir -p {_ASIDE}",
        f"mount --bind {place} {_ASIDE}",
        f"mount --make-private {_ASIDE}",
        f"mount -o remount,bind,ro {_ASIDE}",
        f"mount --bind {_ASIDE} {place}",
        f"umount {_ASIDE}",
        _cannot_write(place),
    )
    return Obstacle(
        " && ".join(steps), f"touch {place}/.written 2>/dev/null || umount -l {place}; rm -f {place}/.written"
    )


def _fill(place: str) -> str:
    return f"cat /dev/zero >{place}/{_BALLAST} 2>/dev/null; {_cannot_write(place)}"


OBSTACLES = {
    "a full disk": Obstacle(_fill("/"), f"rm -f /{_BALLAST} /.written"),
    "a full /run": Obstacle(
        f"used_kib=$(df --output=used -k /run | tail -n 1) && mount -o remount,size=$((used_kib + {_MARGIN_KIB}))k /run"
        f" && {{ {_fill('/run')}; }}",
        f"rm -f /run/{_BALLAST} /run/.written; mount -o remount,size=20% /run",
    ),
    **{f"a read-only {place}": _read_only(place) for place in ("/etc", "/var", "/run")},
}
ENDS = "; ".join(one.end for one in OBSTACLES.values())
