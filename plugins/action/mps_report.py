"""Writes one report on all hosts of the play, on the controller.

The sidecar ../modules/mps_report.py holds the documentation.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Optional

from ansible.plugins.action import ActionBase

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "plugin_utils"))

from mps_role import ansible_values, report, report_page


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core ships no types
    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(("results", "ledger", "name", "directory"))

    def run(self, tmp: Optional[str] = None, task_vars: Optional[dict[str, Any]] = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        _, arguments = self.validate_argument_spec(
            {
                "results": {"type": "str"},
                "ledger": {"type": "path"},
                "name": {"type": "str", "default": "verify", "choices": ["verify", "reboot"]},
                "directory": {"type": "path", "required": True},
            },
            required_one_of=[["results", "ledger"]],
            mutually_exclusive=[["results", "ledger"]],
        )
        name = arguments["name"]
        if arguments["ledger"]:
            results = report.results_of_ledger(Path(arguments["ledger"]))
        else:
            results = {
                host: ansible_values.plain(task_vars["hostvars"][host].get(arguments["results"], {}))
                for host in task_vars["ansible_play_hosts_all"]
            }
        made = report.of(results, time.strftime("%Y-%m-%d %H:%M:%S %Z"))
        directory = Path(arguments["directory"]).resolve()
        files = {
            directory / f"{name}.json": json.dumps(made, indent=1),
            directory / f"{name}.html": report_page.page(made, {"verify": "Verified", "reboot": "Rebooted"}[name]),
        }
        if not self._task.check_mode:
            directory.mkdir(parents=True, exist_ok=True)
            for path, text in files.items():
                path.write_text(text + "\n", encoding="utf-8")
        written = "" if self._task.check_mode else f"; the report: {directory / f'{name}.html'}"
        return {
            **result,
            "_ansible_verbose_always": True,
            "changed": False,
            "msg": f"{report.summary(made)}{written}",
            "worst": made["worst"],
            "page": str(directory / f"{name}.html"),
            "failing": {host: about["first"] for host, about in made["hosts"].items() if report.fails(about["level"])},
        }
