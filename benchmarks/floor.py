"""The machine's own rates, measured beside the contestants: matrix products at a model's shapes, memory, disk.

    python -m benchmarks.floor MODEL ROWS FOLDER

Prints one JSON line: matrix products in GFLOP/s, in float32 and bfloat16; memory and disk in GB/s.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

DTYPES = ("float32", "bfloat16")
BEST_OF, ATTEMPT_S = 3, 0.15
MEMORY_BYTES, DISK_BYTES = 256 * 2**20, 256 * 2**20


def shapes(model: str) -> tuple[list[tuple[str, int, int, int]], int]:
    """Return a block's matrices as (name, inputs, outputs, how many), and the number of blocks."""
    from probing.models import load_config, resolve_model

    config = load_config(resolve_model(model))
    d, wide = config.hidden_size, getattr(config, "intermediate_size", 4 * config.hidden_size)
    return [("square", d, d, 4), ("widen", d, wide, 1), ("narrow", wide, d, 1)], config.num_hidden_layers


def seconds(model: str, n_tokens: float, token_pairs: float, rates: Mapping[str, float], dtype: str) -> float:
    """Return how long the matrix products of a forward pass take at the machine's own rates.

    Args:
        model: Alias or folder of the model.
        n_tokens: Number of tokens, without padding.
        token_pairs: Sum over the sentences of their squared lengths, for the products of attention, which are
            counted at the rate of the square matrices.
        rates: Rates from `product_rates`, in GFLOP/s.
        dtype: Data type of the products.
    """
    matrices, n_blocks = shapes(model)
    linear = sum(2 * n_tokens * k * n * times / rates[f"{dtype}_{name}"] for name, k, n, times in matrices)
    attention = 4 * token_pairs * matrices[0][1] / rates[f"{dtype}_square"]
    return n_blocks * (linear + attention) / 1e9


def rate(work: Callable[[], object], amount: float) -> float:
    """Return the best rate over several attempts, in units of `amount` per second."""
    work()
    best = 0.0
    for _ in range(BEST_OF):
        start, n = time.perf_counter(), 0
        while time.perf_counter() - start < ATTEMPT_S:
            work()
            n += 1
        best = max(best, n * amount / (time.perf_counter() - start))
    return best


def product_rates(model: str, rows: int) -> dict[str, float]:
    """Return the rates of a block's products, in GFLOP/s, as its linear layers call them."""
    import torch
    from torch.nn.functional import linear

    found = {}
    with torch.inference_mode():
        for dtype in DTYPES:
            for name, k, n, _ in shapes(model)[0]:
                x, weight, bias = (torch.randn(*size).to(getattr(torch, dtype)) for size in ((rows, k), (n, k), (n,)))

                def product(x: object = x, weight: object = weight, bias: object = bias) -> object:
                    return linear(x, weight, bias)  # type: ignore[arg-type]

                found[f"{dtype}_{name}"] = rate(product, 2 * rows * k * n) / 1e9
    return found


def memory_rate() -> float:
    """Return the rate of a copy that exceeds the processor's caches, counting bytes read and written, in GB/s."""
    import torch

    source = torch.ones(MEMORY_BYTES // 4)
    target = torch.empty_like(source)
    return rate(lambda: target.copy_(source), 2 * MEMORY_BYTES) / 1e9


def disk_rate(folder: Path) -> float:
    """Return the rate at which bytes are written and synced, in GB/s."""
    block, path = os.urandom(2**20), folder / "floor"
    start = time.perf_counter()
    try:
        with path.open("wb") as file:
            for _ in range(DISK_BYTES // len(block)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        return DISK_BYTES / (time.perf_counter() - start) / 1e9
    finally:
        path.unlink(missing_ok=True)


def main(model: str, rows: str, folder: str) -> None:
    """Measure the rates and print them."""
    rates = product_rates(model, int(rows))
    print(json.dumps({**rates, "memory_gb_s": memory_rate(), "disk_gb_s": disk_rate(Path(folder))}))


if __name__ == "__main__":
    main(*sys.argv[1:])
