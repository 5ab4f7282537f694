"""Sentences for people, and a switch that proves that no code reads them.

With MPSCTL_MESSAGES=ids in the environment every sentence is replaced by the id of what it speaks of. All tests but
those of wording pass so: what code needs to know is a field, never a part of a sentence.
"""

from __future__ import annotations

import os

SWITCH = "MPSCTL_MESSAGES"
AS_IDS = os.environ.get(SWITCH) == "ids"


def said(id_: str, sentence: str) -> str:
    """The sentence, or with the switch the id of what it speaks of; nothing stays nothing."""
    return f"<{id_}>" if AS_IDS and sentence else sentence
