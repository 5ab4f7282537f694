from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Iterator

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "plugins" / "plugin_utils"))

from fleet import Fleet


def folder() -> Iterator[Path]:
    """One outside /tmp, in which everyone can make files: root runs nothing that lies there."""
    base = next(one for one in ("/run", str(Path.home())) if os.access(one, os.W_OK))
    path = Path(tempfile.mkdtemp(prefix="mps-test-", dir=base))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


place = pytest.fixture(folder)
place_of_module = pytest.fixture(folder, scope="module")


@pytest.fixture
def fleet(place: Path) -> Fleet:
    """A fleet with no host yet."""
    return Fleet(place)
