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
        of_run: dict[str, dict[str, list[str]]] = {name: {} for name in variables.OF_THE_RUN}
        all_or_nothing = False
        for host in task_vars["ansible_play_hosts_all"]:
            host_vars = task_vars["hostvars"][host]
            read = ansible_values.of(host_vars)
            warnings[host] = read.warnings
            lines[host] = [*variables.unknown(host_vars), *read.problems, *variables.problems(read.values)]
            if lines[host]:
                continue
            for name, values in of_run.items():
                values.setdefault(foreign.quoted(variables.of_the_run(name, read.values[name])), []).append(host)
            all_or_nothing = bool(variables.of_the_run("mps_all_or_nothing", read.values["mps_all_or_nothing"]))
        result["warnings"] = variables.together(warnings)
        found_lines = variables.together(lines)
        refusals = {host: found for host, found in lines.items() if found}
        for name, values in of_run.items():
            if len(values) > 1 and not refusals:
                listed = ", ".join(f"{value} on {hosts[0]}" for value, hosts in values.items())
                line = f"{name}: found {listed}, expected one value for all hosts; set it in group_vars/all.yml"
                found_lines.append(line)
        if found_lines:
            return {**result, "failed": True, "msg": "\n".join(found_lines), "refusals": refusals}
        try:
            build = project.build_program()
        except RuntimeError as error:
            return {**result, "failed": True, "msg": str(error)}
        program = {"path": str(project.PROGRAM), "build": build}
        return {**result, "changed": False, "program": program, "all_or_nothing": all_or_nothing}
