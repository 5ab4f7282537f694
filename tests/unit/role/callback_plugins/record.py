"""Writes each result of a run as a line of JSON into the file named by RECORD_FILE, for the tests to read."""

from __future__ import annotations

import json
import os
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: record
type: aggregate
short_description: Results as lines of JSON
description: Results as lines of JSON, for tests.
"""


class CallbackModule(CallbackBase):  # type: ignore[misc]
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "record"

    def _record(self, status: str, result: Any) -> None:
        kept = {}
        for key, value in dict(result._result).items():
            try:
                kept[key] = json.loads(json.dumps(value))
            except TypeError:
                continue
        line = {"host": result._host.get_name(), "task": result._task.get_name(), "status": status, "result": kept}
        with open(os.environ["RECORD_FILE"], "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def v2_runner_on_ok(self, result: Any) -> None:
        self._record("ok", result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:  # noqa: ARG002
        self._record("failed", result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._record("unreachable", result)

    def v2_runner_on_skipped(self, result: Any) -> None:
        self._record("skipped", result)
