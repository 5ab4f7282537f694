"""What visitors wait for and why they are refused, as words: in the door's notes and in the journal."""

from __future__ import annotations

from typing import Mapping

from mpsctl.store.front_door_notes import GAVE_UP, LET_IN, REFUSED

WAITS = (
    "limits-not-in-force",
    "daemon-down",
    "drained",
    "another-user",
    "server-starting",
    "server-not-ready",
    "server-fault",
    "server-stopped",
    "daemon-silent",
    "daemon-stopped",
    "session-held",
    "jammed",
    "client-ended",
    "no-place",
    "environment",
)
"""What a visitor waits for."""

(
    LIMITS_NOT_IN_FORCE,
    DAEMON_DOWN,
    DRAINED,
    ANOTHER_USER,
    SERVER_STARTING,
    SERVER_NOT_READY,
    SERVER_FAULT,
    SERVER_STOPPED,
    DAEMON_SILENT,
    DAEMON_STOPPED,
    SESSION_HELD,
    JAMMED,
    CLIENT_ENDED,
    NO_PLACE,
    ENVIRONMENT,
) = WAITS

_REASONS = (
    "stopped",
    "disabled",
    "masked",
    "not-found",
    "skipped",
    "failed",
    "not-in-group",
    "unknown-greeting",
    "server-ended",
    "over-expected",
    "limit-bypass",
)
(
    STOPPED,
    DISABLED,
    MASKED,
    NOT_FOUND,
    SKIPPED,
    FAILED,
    NOT_IN_GROUP,
    UNKNOWN_GREETING,
    SERVER_ENDED,
    OVER_EXPECTED,
    LIMIT_BYPASS,
) = _REASONS

REFUSALS = (*_REASONS, DRAINED, DAEMON_SILENT)
"""Why one is refused."""

COUNTED: Mapping[str, tuple[str, ...]] = {LET_IN: ("",), REFUSED: REFUSALS, GAVE_UP: WAITS}
"""What is counted from 0 on, before it happens: what becomes of a client, and the reasons."""
