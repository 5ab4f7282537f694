#!/usr/bin/env python3
"""A storm of CUDA clients that connect over and over, and what each of them got.

Every client is a process of its own (cuda_client.py) that asks libcuda itself whether it is under MPS and how
much memory it may take. Runs until the file --until exists, then prints one JSON line of counts:
``limited`` (under MPS, with the limit), ``unlimited`` (under MPS, without it: must never happen),
``outside`` (no MPS: the daemon was down, and CUDA says nothing in default compute mode), ``refused`` by CUDA's
error, ``hung`` (did not end within 30 s).
"""

from __future__ import annotations

import argparse
import collections
import json
import subprocess
import sys
import threading
from pathlib import Path

CLIENT = Path(__file__).with_name("cuda_client.py")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", type=int, default=8, help="clients at a time, every other one of user 1000")
    parser.add_argument("--limit-mib", type=int, required=True)
    parser.add_argument("--until", type=Path, required=True)
    options = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    lock = threading.Lock()

    def loop(number: int) -> None:
        user = ["--uid", "1000"] if number % 2 else []
        while not options.until.exists():
            what = one(user, options.limit_mib)
            with lock:
                counts[what] += 1
                counts["of root" if not user else "of user 1000"] += 1

    threads = [threading.Thread(target=loop, args=(number,)) for number in range(options.loops)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(dict(sorted(counts.items()))))
    return 1 if counts["unlimited"] else 0


def one(user: list[str], limit_mib: int) -> str:
    command = [sys.executable, str(CLIENT), *user, "--hold-s", "0.2"]
    client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        said, _ = client.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        client.kill()
        client.communicate()
        return "hung"
    lines = said.splitlines()
    if not lines:
        return f"refused: ended with {client.returncode}"
    first = json.loads(lines[0])
    if "failed" in first:
        return f"refused: {first['name']}"
    if not first["mps"]:
        return "outside"
    return "limited" if first["free_mib"] <= limit_mib else "unlimited"


if __name__ == "__main__":
    sys.exit(main())
