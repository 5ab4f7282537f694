"""Who stands behind this process."""

from __future__ import annotations

import os

from mpsctl.adapters import procfs


def user() -> str:
    """The user that asked sudo, or the effective one. He may have written the former himself: it is no evidence."""
    uid = os.geteuid()
    return os.environ.get("SUDO_USER") or procfs.user(uid) or str(uid)
