"""Ansible's own output with hosts that are alike on one line, and what they would change shown once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Optional

from ansible import constants
from ansible.playbook.task_include import TaskInclude
from ansible.plugins.callback.default import CallbackModule as Default
from ansible.utils.color import colorize

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "plugin_utils"))

from mps_role import alike, ansible_values, hosts, summary

DOCUMENTATION = """
name: mps_fleet
type: stdout
short_description: Ansible's default output, with hosts that are alike on one line
description:
  - Writes what the default callback writes, but one line for all hosts on which a task had the same result, one for all
    that are alike in the recap, and each diff once with the hosts that have it. Failures are written as they come.
  - With C(-v) each host has its line again; diffs and the recap stay as they are here.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
author:
  - mps-fleet
"""

_COUNTS = ("changed", "unreachable", "failures", "rescued", "ignored")
_COLORS = {
    "changed": "COLOR_CHANGED",
    "unreachable": "COLOR_UNREACHABLE",
    "failures": "COLOR_ERROR",
    "rescued": "COLOR_OK",
    "ignored": "COLOR_WARN",
}
_OF_FAILURE = ("msg", "put_back")
"""What of a failure of this project's own actions is for people."""


class _Task:
    """What is not written yet of one task."""

    def __init__(self, task: Any) -> None:
        self.task = task
        self.like: dict[str, list[str]] = {}
        self.diffs = alike.Diffs()


class CallbackModule(Default):  # type: ignore[misc]  # ansible-core ships no types
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "mps_fleet"

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, _Task] = {}
        self._hosts: dict[str, None] = {}
        self._told_by: dict[str, int] = {}
        self._refusals: set[str] = set()

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        self._hosts.setdefault(host.get_name())
        super().v2_runner_on_start(host, task)

    # -- what is kept until a task is over

    def v2_runner_on_ok(self, result: Any) -> None:
        each = self._display.verbosity > 0 or isinstance(result.task, TaskInclude) or self._run_is_verbose(result)
        if each or (result.task.loop and "results" in result.result):
            super().v2_runner_on_ok(result)
            return
        changed = bool(result.result.get("changed"))
        if not changed and not self.get_option("display_ok_hosts"):
            return
        if self._last_task_banner != result.task._uuid:
            self._print_task_banner(result.task)
        self._handle_warnings_and_exception(result)
        name = result.host.get_name()
        self._of(result).like.setdefault("changed" if changed else "ok", []).append(name)

    def v2_on_file_diff(self, result: Any) -> None:
        found = result.result
        results = found["results"] if result.task.loop and "results" in found else [found]
        for one in results:
            diff = one.get("diff") if one.get("changed") else None
            entries = diff if isinstance(diff, list) else [diff] if diff else []
            self._of(result).diffs.add(result.host.get_name(), [self._get_diff([entry]) for entry in entries])

    def _of(self, result: Any) -> _Task:
        return self._kept.setdefault(result.task._uuid, _Task(result.task))

    def _write(self) -> None:
        """Write what was kept."""
        kept, self._kept = self._kept, {}
        for task in kept.values():
            blocks = task.diffs.blocks([*self._hosts])
            if (blocks or task.like) and self._last_task_banner != task.task._uuid:
                self._print_task_banner(task.task)
            for whose, text in blocks:
                self._display.display(f"{whose}:\n{text}")
            for word, names in task.like.items():
                color = constants.COLOR_CHANGED if word == "changed" else constants.COLOR_OK
                self._display.display(f"{word}: [{hosts.span(names, self._hosts)}]", color=color)

    # -- where a task is over

    def v2_playbook_on_play_start(self, play: Any) -> None:
        self._write()
        self._last_task_banner = None  # the next batch has its own
        super().v2_playbook_on_play_start(play)

    def _task_start(self, task: Any, prefix: Optional[str] = None) -> None:
        if "free" not in self._play.strategy and "host_pinned" not in self._play.strategy:
            self._write()
        super()._task_start(task, prefix)

    def v2_playbook_on_no_hosts_remaining(self) -> None:
        self._write()
        super().v2_playbook_on_no_hosts_remaining()

    def v2_playbook_on_include(self, included_file: Any) -> None:
        names = [host.name for host in included_file._hosts]
        path = Path(included_file._filename).name
        self._display.display(f"included: {path} for {hosts.span(names, self._hosts)}", color=constants.COLOR_INCLUDED)

    # -- failures, as they come

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        refusals = result.result.get("refusals")
        if refusals:  # one host speaks for all
            name = result.host.get_name()
            self._told_by[name] = self._told_by.get(name, 0) + 1
            self._refusals |= {str(ansible_values.plain(one)) for one in refusals}
        if self._display.verbosity > 0 or not (refusals or summary.KEY in result.result):
            super().v2_runner_on_failed(result, ignore_errors)
            return
        if self._last_task_banner != result.task._uuid:
            self._print_task_banner(result.task)
        self._handle_warnings(result.result)  # its message says all, and where in the role it came up nothing
        said = {key: result.result[key] for key in _OF_FAILURE if key in result.result}
        whose = hosts.span(self._refusals, self._refusals) if refusals else self.host_label(result)
        text = f"fatal: [{whose}]: FAILED! => {self._dump_results(said)}"
        self._display.display(text, color=constants.COLOR_ERROR, stderr=self.get_option("display_failed_stderr"))

    # -- the end

    def v2_playbook_on_stats(self, stats: Any) -> None:
        self._write()
        self._display.banner("PLAY RECAP")
        counts = {host: self._counts(stats, host) for host in {*stats.processed, *self._refusals}}
        # Whoever spoke for others did nothing himself.
        mine = {host: count for host, count in counts.items() if host not in self._told_by or any(count)}
        for count, names in hosts.alike(mine):
            parts = [
                colorize("failed" if key == "failures" else key, number, getattr(constants, _COLORS[key]))
                for key, number in zip(_COUNTS, count)
            ]
            self._display.display(f"{hosts.span(names, counts):<26} : {' '.join(parts)}")
        self._display.display("", screen_only=True)
        if stats.custom and self.get_option("show_custom_stats"):
            self._display.display(f"CUSTOM STATS: {self._dump_results(stats.custom)}")

    def _counts(self, stats: Any, host: str) -> tuple[int, ...]:
        """The counts of a host in the recap. A refusal of variables counts for those that have them."""
        found = stats.summarize(host)
        found["failures"] += (host in self._refusals) - self._told_by.get(host, 0)
        return tuple(found[key] for key in _COUNTS)
