"""Commands in a running host without ssh: through the namespaces of its first process."""

from __future__ import annotations

from typing import Sequence

from mpslab import passthrough

_SCRIPT = 'cd; if [ -n "$1" ]; then exec /bin/bash -c "$1"; else exec /bin/bash -l; fi'


def command(leader_pid: int, words: Sequence[str], term: str = "dumb") -> list[str]:
    """The command line that does as ``ssh HOST WORDS`` would: root's shell, a clean environment, its exit code.

    :param words: joined by blanks, as ssh joins them; a login shell where there are none.
    """
    environment = {
        "PATH": passthrough.PATH,
        "LANG": "C.UTF-8",
        "HOME": "/root",
        "USER": "root",
        "LOGNAME": "root",
        "SHELL": "/bin/bash",
        "TERM": term,
    }
    inside = [f"{name}={value}" for name, value in environment.items()]
    namespaces = ["--mount", "--pid", "--uts", "--ipc", "--cgroup"]
    entered = ["nsenter", "--target", str(leader_pid), *namespaces, "env", "-i", *inside]
    return [*entered, "/bin/sh", "-c", _SCRIPT, "sh", " ".join(words)]
