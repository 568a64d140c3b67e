"""Shuffled mini-batches of examples, which are the same for any number of processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch.utils.data import IterableDataset

from probing.data.examples import Batch, Examples, open_shard

# Number of shards whose examples are shuffled together. A shard has 128 MiB of activations of all layers (12,483 tokens
# of the built-in model), which are memory-mapped and not copied.
WINDOW = 4


class MiniBatches(IterableDataset[Batch]):
    """Shuffled batches of examples, in an order that depends only on the seed and the epoch.

    Shards are put in random order and read `WINDOW` at a time. The examples of a window are shuffled uniformly. The
    sizes of a window's batches differ by at most one example.

    Ranks take equal shares of each batch, so that they train as a single process would and do not wait for one another.
    The remainder of a batch, at most `n_ranks` - 1 examples, is skipped.

    Args:
        examples: The examples to read; every rank reads all shards.
        layers: Layer numbers, in the order of `Batch.hidden_states`.
        size: Most examples in a batch, over all ranks.
        seed: Seed of the order; the epoch number is added to it.
        rank: Rank of this process.
        n_ranks: Number of processes.
    """

    def __init__(
        self, examples: Examples, layers: Sequence[int], size: int, seed: int, rank: int = 0, n_ranks: int = 1
    ) -> None:
        self.examples, self.layers, self.size, self.seed = examples, layers, size, seed
        self.rank, self.n_ranks, self.epoch = rank, n_ranks, 0

    def __iter__(self) -> Iterator[Batch]:
        generator = np.random.default_rng([self.seed, self.epoch])
        self.epoch += 1
        shards = generator.permutation(len(self.examples.store.plan.shards))
        for first in range(0, len(shards), WINDOW):
            window = [open_shard(self.examples, self.layers, int(i)) for i in shards[first : first + WINDOW]]
            # Shard and row of each example.
            pairs = np.concatenate([_examples_of(i, batch) for i, batch in enumerate(window)])
            pairs = generator.permutation(pairs)
            for batch in np.array_split(pairs, -(-len(pairs) // self.size)) if len(pairs) else ():
                if share := len(batch) // self.n_ranks:
                    yield _pick(window, batch[self.rank * share :][:share])


def _examples_of(shard: int, batch: Batch) -> np.ndarray:
    rows = (batch.labels >= 0).nonzero().squeeze(1).numpy()
    return np.stack([np.full_like(rows, shard), rows], 1)


def _pick(window: Sequence[Batch], pairs: np.ndarray) -> Batch:
    """Return the rows given by pairs (shard, row) as one float32 batch, in the order of the pairs."""
    order = np.argsort(pairs[:, 0], kind="stable")
    in_shards = pairs[order]
    back = torch.from_numpy(np.argsort(order))
    parts = [
        window[shard].pick(torch.from_numpy(in_shards[in_shards[:, 0] == shard, 1]))
        for shard in np.unique(in_shards[:, 0])
    ]
    states = (torch.cat(own).float()[back] for own in zip(*(part.hidden_states for part in parts), strict=True))
    labels, sentences, rows = (torch.cat([part[i] for part in parts])[back] for i in (1, 2, 3))
    return Batch(tuple(states), labels, sentences, rows)
