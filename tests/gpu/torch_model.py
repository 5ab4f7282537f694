#!/usr/bin/env python3
"""A small torch model as "a command of one's own" for `mpsctl bench --count-lines`: a line for each request.

``small`` is a network of six layers for one row at a time, whose kernels leave most of a GPU idle; a request is 20
passes. ``large`` multiplies matrices of 8192 x 8192 in bfloat16, which fill the GPU by themselves; a request is 4
products. The result of the first request is checked against the processor's.
"""

from __future__ import annotations

import sys
from typing import Any, Callable

import torch

WIDTH, LAYERS, PASSES = 512, 6, 20
SIDE, PRODUCTS = 8192, 4


def small(device: str) -> Callable[[], Any]:
    torch.manual_seed(1)
    parts: list[Any] = []
    for _ in range(LAYERS):
        parts += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()]
    model = torch.nn.Sequential(*parts).eval()
    row = torch.randn(1, WIDTH)
    with torch.no_grad():
        expected = model(row)
    model, row = model.to(device), row.to(device)

    def request() -> Any:
        with torch.no_grad():
            for _ in range(PASSES):
                found = model(row)
        return found.cpu()

    if not torch.allclose(request(), expected, atol=1e-3):
        sys.exit("torch_model.py: the GPU's result is not the processor's")
    return request


def large(device: str) -> Callable[[], Any]:
    torch.manual_seed(1)
    one = torch.randn(SIDE, SIDE, device=device, dtype=torch.bfloat16)
    other = torch.randn(SIDE, SIDE, device=device, dtype=torch.bfloat16)

    def request() -> Any:
        for _ in range(PRODUCTS):
            found = one @ other
        return found[0, :8].float().cpu()

    expected = (one[0:1].float().cpu() @ other[:, :8].float().cpu())[0]
    if not torch.allclose(request(), expected, rtol=0.05, atol=2.0):
        sys.exit("torch_model.py: the GPU's result is not the processor's")
    return request


def main() -> None:
    torch.set_num_threads(1)
    request = {"small": small, "large": large}[sys.argv[1]]("cuda")
    while True:
        request()
        print(".", flush=True)


if __name__ == "__main__":
    main()
