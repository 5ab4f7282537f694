"""Says at the end of a run what it did, beside whatever callback writes the rest."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "plugin_utils"))

from mps_role import ansible_values, summary

DOCUMENTATION = """
name: mps_summary
type: aggregate
short_description: What a run of this project's playbooks did, a line for hosts that are alike
description:
  - At the end of a run it says what was done on which hosts, or with C(--check) what would be, which have nothing to
    do, and why the others refused or failed. It says nothing of a run that has no part of this project's.
  - The ansible.cfg of this project loads it. In a collection it is enabled by its full name in C(callbacks_enabled).
author:
  - mps-fleet
"""


class CallbackModule(CallbackBase):  # type: ignore[misc]  # ansible-core ships no types
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "mps_summary"
    CALLBACK_NEEDS_ENABLED = False

    def __init__(self) -> None:
        super().__init__()
        self._summary = summary.Summary()

    def v2_runner_on_ok(self, result: Any) -> None:
        self._summary.take(result.host.get_name(), _plain(result))

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        name, found = result.host.get_name(), _plain(result)
        if ignore_errors:
            self._summary.take(name, found)
        else:
            self._summary.fail(name, found, ours=_is_ours(result))

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._summary.fail(result.host.get_name(), _plain(result), unreachable=True, ours=_is_ours(result))

    def v2_playbook_on_stats(self, stats: Any) -> None:
        failed = [host for host in stats.processed if host in stats.failures or host in stats.dark]
        lines = self._summary.lines(failed)
        if not lines:
            return
        check = any(run.check for run in self._summary.hosts.values())
        self._display.banner("WHAT THE RUN WOULD DO" if check else "WHAT THE RUN DID")
        for line in lines:
            self._display.display(line)


_ACTIONS = ("mps_validate", "mps_host", "mps_drain", "mps_reboot")


def _is_ours(result: Any) -> bool:
    return str(result.task.action).rpartition(".")[2] in _ACTIONS


_READ = (summary.KEY, "refused", "refusals", "msg", "stderr", "all_or_nothing")


def _plain(result: Any) -> dict[str, Any]:
    return {key: ansible_values.plain(result.result[key]) for key in _READ if key in result.result}
