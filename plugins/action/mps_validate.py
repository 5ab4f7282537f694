"""Refuses bad variables of any host of the play and builds the program, all on the controller.

The sidecar ../modules/mps_validate.py holds the documentation.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Optional

from ansible.plugins.action import ActionBase

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "plugin_utils"))

from mps_role import ansible_values, project, variables

from mpsctl.model import foreign  # isort: skip


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core ships no types
    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset[str]()

    def run(self, tmp: Optional[str] = None, task_vars: Optional[dict[str, Any]] = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        lines: dict[str, list[str]] = {}
        warnings: dict[str, list[str]] = {}
        serials: dict[str, list[str]] = {}
        for host in task_vars["ansible_play_hosts_all"]:
            host_vars = task_vars["hostvars"][host]
            read = ansible_values.of(host_vars)
            warnings[host] = read.warnings
            lines[host] = [*variables.unknown(host_vars), *read.problems, *variables.problems(read.values)]
            serials.setdefault(foreign.quoted(read.values["mps_serial"]), []).append(host)
        result["warnings"] = variables.together(warnings)
        found_lines = variables.together(lines)
        if len(serials) > 1 and not found_lines:
            listed = ", ".join(f"{serial} on {hosts[0]}" for serial, hosts in serials.items())
            found_lines = [
                f"mps_serial: found {listed}, expected one value for all hosts; set it in group_vars/all.yml"
            ]
        if found_lines:
            return {**result, "failed": True, "msg": "\n".join(found_lines)}
        try:
            build = project.build_program()
        except RuntimeError as error:
            return {**result, "failed": True, "msg": str(error)}
        return {**result, "changed": False, "program": {"path": str(project.PROGRAM), "build": build}}
