#!/usr/bin/env python3
"""A torch process that takes ``MIB`` of GPU memory, holds it for ``SECONDS``, and says in one JSON line what it met.

``torch_place.py MIB SECONDS``; ``met`` is ``ok``, ``out-of-memory`` or the first line of another error.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch


def main() -> int:
    size_mib, hold_s = int(sys.argv[1]), float(sys.argv[2])
    begin = time.monotonic()
    try:
        held = torch.empty(size_mib << 20, dtype=torch.uint8, device="cuda")
        held.fill_(1)
        torch.cuda.synchronize()
        waited_s = time.monotonic() - begin
        time.sleep(hold_s)
        met = "ok" if int(held[-1].item()) == 1 else "the memory is another's"
    except torch.OutOfMemoryError:
        met, waited_s = "out-of-memory", time.monotonic() - begin
    except RuntimeError as error:
        words = str(error).splitlines()[0]
        met, waited_s = "out-of-memory" if "out of memory" in words else words, time.monotonic() - begin
    print(json.dumps({"pid": os.getpid(), "met": met, "waited_s": round(waited_s, 2)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
