"""Writes one report on all hosts of the play, on the controller, and fails if a host does.

The sidecar library/mps_report.py holds the documentation.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Optional

from ansible.plugins.action import ActionBase

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "plugin_utils"))

from mps_role import ansible_values, report


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core ships no types
    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(("results", "directory"))

    def run(self, tmp: Optional[str] = None, task_vars: Optional[dict[str, Any]] = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        _, arguments = self.validate_argument_spec(
            {"results": {"type": "str", "required": True}, "directory": {"type": "path", "required": True}}
        )
        results = {}
        for host in task_vars["ansible_play_hosts_all"]:
            host_vars = task_vars["hostvars"][host]
            known = host_vars.get(arguments["results"], {})
            results[host] = ansible_values.plain(known)
        made = report.of(results, time.strftime("%Y-%m-%d %H:%M:%S %Z"))
        directory = Path(arguments["directory"]).resolve()
        files = {directory / "verify.json": json.dumps(made, indent=1), directory / "verify.html": report.page(made)}
        if not self._task.check_mode:
            directory.mkdir(parents=True, exist_ok=True)
            for path, text in files.items():
                path.write_text(text + "\n", encoding="utf-8")
        result.update(changed=False, worst=made["worst"], page=str(directory / "verify.html"))
        written = "" if self._task.check_mode else f"; the report: {directory / 'verify.html'}"
        result["msg"] = f"{report.summary(made)}{written}"
        result["failed"] = report.fails(made)
        return result
