"""What is said of a restart that was withheld because it would have ended clients."""

from __future__ import annotations

from typing import Any, Mapping

from . import project  # noqa: F401 (it makes mpsctl importable)

from mpsctl.model import duration  # isort: skip


def line(pending: Mapping[str, Any], policy: str, timeout_s: Any, check: bool) -> str:
    """One line for an entry of the answer's ``pending``: why, who is in the way, and what to do.

    ``policy`` is mps_on_clients, ``timeout_s`` mps_drain_timeout_s; with ``check`` nothing was tried yet.
    """
    clients = ", ".join(map(_client, pending["clients"])) or "not told"
    remedies = {
        ("refuse", False): "mps_on_clients is refuse; wait or terminate would let it happen",
        ("refuse", True): "mps_on_clients is refuse; wait or terminate would let it happen",
        ("wait", False): f"waited {timeout_s} s for them",
        ("wait", True): f"they would be given {timeout_s} s",
        ("terminate", False): "they could not be ended",
        ("terminate", True): f"they would be given {timeout_s} s, then be ended",
    }
    remedy = remedies[policy, check] if pending["clients"] else "nobody is ended unseen, whatever mps_on_clients says"
    return (
        f"instance {pending['instance']} waits for clients to leave: {pending['why']}; clients: {clients};"
        f" {remedy}; it is done by the next run without them, a restart also by the next start of the daemon"
    )


def _client(client: Mapping[str, Any]) -> str:
    user = client.get("user") or client.get("uid")
    who = "not told" if user is None else user
    return f"{client['pid']} ({client['command']}, user {who}, {duration.text(client.get('age_s'))} old)"
