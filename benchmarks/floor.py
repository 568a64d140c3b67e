"""The machine's own rates, measured beside the contestants: matrix products at a model's shapes, memory, disk.

    python -m benchmarks.floor MODEL ROWS FOLDER

Prints one JSON line: matrix products in GFLOP/s, in float32 and bfloat16; memory and disk in GB/s.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from probing.models import load_config, resolve_model
from probing.models.loading import Blocks
from probing.runtime import rate

DTYPES = ("float32", "bfloat16")
MEMORY_BYTES, DISK_BYTES = 256 * 2**20, 256 * 2**20


def blocks(model: str) -> Blocks:
    """Return the sizes of a model's blocks."""
    return Blocks.of(load_config(resolve_model(model)))


def seconds(model: str, n_tokens: float, token_pairs: float, rates: Mapping[str, float], dtype: str) -> float:
    """Return how long the matrix products of a forward pass take at the machine's own rates.

    Args:
        model: Alias or folder of the model.
        n_tokens: Number of tokens, without padding.
        token_pairs: Sum over the sentences of their squared lengths.
        rates: Rates from `product_rates`, in GFLOP/s.
        dtype: Data type of the products.
    """
    sizes = blocks(model)
    return sizes.seconds(
        n_tokens, token_pairs, {one.name: 1e9 * rates[f"{dtype}_{one.name}"] for one in sizes.matrices}
    )


def product_rates(model: str, rows: int) -> dict[str, float]:
    """Return the rates of a block's products, in GFLOP/s, as its linear layers call them."""
    found = {dtype: blocks(model).rates(rows, dtype, rate) for dtype in DTYPES}
    return {f"{dtype}_{name}": value / 1e9 for dtype, rates in found.items() for name, value in rates.items()}


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
