"""Drains the instances of a host, or lets clients in again, and says meanwhile who is left.

The sidecar ../modules/mps_drain.py holds the documentation.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
import time
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
    _VALID_ARGS = frozenset(("phase", "program", "timeout_s", "reason", "refuse", "terminate"))

    def run(self, tmp: Optional[str] = None, task_vars: Optional[dict[str, Any]] = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, given = self.validate_argument_spec(
            {
                "phase": {"type": "str", "required": True, "choices": ["drain", "undrain"]},
                "program": {"type": "path", "required": True},
                "timeout_s": {"type": "str", "default": "300"},
                "reason": {"type": "str"},
                "refuse": {"type": "bool", "default": False},
                "terminate": {"type": "bool", "default": False},
            }
        )
        if self._task.check_mode:
            what = statement.DRAINED if given["phase"] == "drain" else statement.UNDRAINED
            told = summary.told(summary.CHANGE, True, [statement.Statement(what).as_json()])
            return {**result, "changed": True, summary.KEY: told}
        if given["phase"] == "undrain":
            return {**result, **self._undrain(given["program"])}
        host = str((task_vars or {})["inventory_hostname"])
        place = progress.folder(constants.DEFAULT_LOCAL_TMP)
        try:
            return {**result, **self._drain(given, host, place)}
        finally:
            progress.forget(place, host)

    def _drain(self, given: dict[str, Any], host: str, place: Path) -> dict[str, Any]:
        """Drain in short waits of the host's own, one behind the other. The instances stay drained in between, and
        where nobody asks any more."""
        words = [given["program"], "drain", "--json"]
        words += ["--reason", given["reason"]] if given["reason"] is not None else []
        words += ["--refuse"] if given["refuse"] else []
        begun_s, bound_s = time.monotonic(), _whole(given["timeout_s"])
        clients: dict[str, int] = {}
        while True:
            rest_s = bound_s - (time.monotonic() - begun_s)
            last = rest_s <= progress.LOOK_S
            wait = given["timeout_s"] if bound_s <= progress.LOOK_S else max(1, math.ceil(min(rest_s, progress.LOOK_S)))
            ending = ["--terminate"] if last and given["terminate"] else []
            done = self._run_there([*words, "--timeout", str(wait), *ending])
            found = _instances(done["stdout"])
            left = {name: one["left"] for name, one in found.items() if one["left"]}
            for name in found:
                ended = [one for one in found[name]["ended"] or () if one]
                clients[name] = max(clients.get(name, 0), len(left.get(name, ())), len(ended))
            if done["rc"] == 0:
                said = [statement.Statement(statement.DRAINED, name, count=clients[name]).as_json() for name in found]
                told = summary.told(summary.CHANGE, False, said, True)
                return {"changed": True, "instances": found, summary.KEY: told}
            if last or not (left or any(one["unknown"] for one in found.values())):
                why = _why(done, found, given["timeout_s"])
                return {"failed": True, "changed": True, "rc": done["rc"], "msg": why, **_NOTHING}
            progress.note(place, host, progress.CLIENTS, begun_s, left)
            progress.tell(place, Display().display)

    def _run_there(self, words: list[str]) -> dict[str, Any]:
        """Run a command with an input, which nobody reads: without one Ansible gives it a terminal, on which both of
        its outputs are one."""
        done: dict[str, Any] = self._low_level_execute_command(shlex.join(words), in_data=b"\n")
        return done

    def _undrain(self, program: str) -> dict[str, Any]:
        done = self._run_there([program, "undrain", "--json"])
        if done["rc"] != 0:
            return {"failed": True, "rc": done["rc"], "msg": _said(done), **_NOTHING}
        names = (_json(done["stdout"]) or {}).get("was_drained") or []
        said = [statement.Statement(statement.UNDRAINED, str(name)).as_json() for name in names]
        told = summary.told(summary.CHANGE, False, said)
        return {"changed": bool(names), "was_drained": names, summary.KEY: told}


_NOTHING = {summary.KEY: summary.told(summary.CHANGE, False, ())}


def _whole(text: str) -> int:
    """The bound in seconds; what is none goes to the program as it is, which refuses it."""
    try:
        return int(text)
    except ValueError:
        return 0


def _json(stdout: str) -> Optional[dict[str, Any]]:
    """The JSON object that the program printed; shells may have spoken before it."""
    begin = stdout.find("{")
    try:
        found = json.loads(stdout[begin:]) if begin >= 0 else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _instances(stdout: str) -> dict[str, Any]:
    found = (_json(stdout) or {}).get("instances")
    return found if isinstance(found, dict) else {}


def _said(done: dict[str, Any]) -> str:
    lines = [line.strip() for line in str(done.get("stderr") or "").splitlines() if line.strip()]
    return "; ".join(lines) or f"mpsctl ended with {done['rc']} and said nothing"


def _why(done: dict[str, Any], found: dict[str, Any], timeout_s: str) -> str:
    """Who was in the way, of the whole wait; else what the program said."""
    lines = []
    for name, one in found.items():
        if one["unknown"]:
            lines.append(f"{name}: no new client gets in; who is still connected cannot be told: {one['unknown']}")
        elif one["left"]:
            told = progress.clients_told(one["left"])
            lines.append(f"{name}: no new client gets in, and after {timeout_s} s {told}")
    return "; ".join(lines) or _said(done)
