"""What a failure in a batch means for the hosts that follow."""

from __future__ import annotations

from typing import Sequence


def stopped(problem: str, all_hosts: Sequence[str], batch: Sequence[str], shown: int = 4) -> str:
    """The line of the host that failed, with the hosts that the run no longer comes to.

    Ansible takes batches off the list in its order.
    """
    last = max((all_hosts.index(host) for host in batch if host in all_hosts), default=len(all_hosts) - 1)
    later = list(all_hosts[last + 1 :])
    if not later:
        return f"{problem}; no host was left to come"
    more = f" and {len(later) - shown} more" if len(later) > shown else ""
    return f"{problem}; not begun and untouched: {', '.join(later[:shown])}{more}"
