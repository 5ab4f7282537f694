"""The lab's ssh files are replaced whole: connections to other hosts are begun meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path

from mpslab import ssh


def test_a_reader_sees_the_old_or_the_new_text(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    texts = {"a\n" * 50_000, "b\n" * 50_000}
    path.write_text("a\n" * 50_000)
    seen, over = set(), threading.Event()

    def read() -> None:
        while not over.is_set():
            seen.add(path.read_text())

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(200):
        for text in sorted(texts):
            ssh._replace(path, text)
    over.set()
    reader.join()
    assert seen <= texts
    assert [one.name for one in tmp_path.iterdir()] == ["known_hosts"]
