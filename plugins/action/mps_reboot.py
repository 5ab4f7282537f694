"""Ansible's own reboot, which says meanwhile who is not back yet.

The sidecar ../modules/mps_reboot.py holds the documentation.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Optional

from ansible import constants
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "plugin_utils"))

from mps_role import progress, summary

from mpsctl.converge import statement  # isort: skip


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core ships no types
    _supports_check_mode = True
    _VALID_ARGS = frozenset(("reboot_timeout",))

    def run(self, tmp: Optional[str] = None, task_vars: Optional[dict[str, Any]] = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        host = str((task_vars or {})["inventory_hostname"])
        check = bool(self._task.check_mode)
        ours = self._shared_loader_obj.action_loader.get(
            "ansible.builtin.reboot",
            task=self._task.copy(),
            connection=self._connection,
            play_context=self._play_context,
            loader=self._loader,
            templar=self._templar,
            shared_loader_obj=self._shared_loader_obj,
        )
        place = progress.folder(constants.DEFAULT_LOCAL_TMP)
        with progress.told_meanwhile(place, Display().display, host, progress.REBOOT):
            result: dict[str, Any] = ours.run(task_vars=task_vars)
        done = not result.get("failed")
        said = [statement.Statement(statement.REBOOTED).as_json()] if done else []
        return {**result, summary.KEY: summary.told(summary.CHANGE, check, said)}
