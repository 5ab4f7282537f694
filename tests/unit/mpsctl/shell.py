"""The program, called as a shell calls it."""

from __future__ import annotations

import io
import json
import sys
from typing import Any, Optional

import pytest

from mpsctl.cli import exit_codes, options
from mpsctl.cli import main as command_line


class Shell:
    """Calls the program as a shell does."""

    def __init__(self, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self._capsys, self._patch = capsys, patch
        self.out = self.err = ""

    def __call__(self, *words: str, stdin: str = "", main_pid: Optional[int] = None) -> int:
        self._patch.setattr(sys, "stdin", io.StringIO(stdin))
        if main_pid:
            self._patch.setenv("MAINPID", str(main_pid))
        else:
            self._patch.delenv("MAINPID", raising=False)
        self._capsys.readouterr()
        try:
            code = command_line.main(words)
        except SystemExit as end:
            code = int(end.code or 0)
        self.out, self.err = self._capsys.readouterr()
        verb = words[0] if words and words[0] in options.VERBS else "version"
        assert exit_codes.can_end_with(verb, code), f"{verb} ended with {code}, which its help does not name"
        return code

    def json(self, *words: str, stdin: str = "", main_pid: Optional[int] = None) -> Any:
        self(*words, "--json", stdin=stdin, main_pid=main_pid)
        return json.loads(self.out)
