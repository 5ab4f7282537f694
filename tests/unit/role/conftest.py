from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "plugins" / "plugin_utils"))

from fleet import Fleet


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """A fleet with no host yet."""
    return Fleet(tmp_path)
