"""Refuses to have Ansible's modules run from a folder of the host that others can change.

The sidecar ../modules/mps_remote_tmp.py holds the documentation.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Optional

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "plugin_utils"))

from mps_role import transport


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core ships no types
    _supports_check_mode = True
    _VALID_ARGS: frozenset[str] = frozenset()

    def run(self, tmp: Optional[str] = None, task_vars: Optional[dict[str, Any]] = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        result["changed"] = False
        local = getattr(self._connection, "_remote_is_local", False)  # then it is a folder of the controller's
        if local or self._is_pipelining_enabled("new"):
            return result
        folder = str(self.get_shell_option("remote_tmp", default="~/.ansible/tmp"))
        folder = self._remote_expand_user(folder, sudoable=False)
        # Who connects may become root anyhow, and the folder is his where it lies in his home.
        who = self._low_level_execute_command("id -u", sudoable=False)["stdout"].strip()
        done = self._low_level_execute_command(transport.judgement(folder, who))
        if done["rc"]:
            raise AnsibleActionFail(transport.not_judged(folder, f"{done['stdout']}\n{done['stderr']}"))
        if done["stdout"].strip():
            raise AnsibleActionFail(transport.shared_folder(folder, str(done["stdout"])))
        return result
