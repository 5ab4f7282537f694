"""Progress for whoever waits: what happens now, and how long it took."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import Iterator


def say(text: str) -> None:
    """One line on stderr, so that stdout stays for answers."""
    print(f"lab: {text}", file=sys.stderr, flush=True)


@contextmanager
def step(text: str) -> Iterator[None]:
    """Say what starts; when it is done, say how many seconds it took."""
    say(f"{text} …")
    begun = time.monotonic()
    yield
    say(f"{text}: {time.monotonic() - begun:.1f} s")
