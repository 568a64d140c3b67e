"""Estimates, before any work, of the time in which a model reads a text and of the disk space of its hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from probing.cache import Request, batch_tokens_of, entry_folder, tokens_of
from probing.cache.plan import SHARD_BYTES
from probing.cache.store import ActivationStore, DamagedCache, NewerCache
from probing.cache.tokens import Tokens
from probing.models import load_config, load_tokenizer
from probing.models.forward_cost import Blocks, weight_bytes
from probing.runtime.rates import undisturbed_rate

# Share of the time of reading a text that is spent in matrix products. The rest is GELU, attention, norms, padding and
# writing. (`make bench` measures .42 to .46 for the built-in model; for wider models the share is larger.)
PRODUCTS = 0.5
# Most rows of the products that are timed: on a processor they take a millisecond.
ROWS_CPU = 256


@dataclass(frozen=True)
class Size:
    """What a model reads of a text, and what is cached of it.

    Args:
        n_tokens: Number of tokens.
        token_pairs: Sum over the sentences of their squared lengths.
        n_layers: Number of layers that are read off.
        width: Number of neurons of each.
        itemsize: Bytes of an activation.
    """

    n_tokens: int
    token_pairs: int
    n_layers: int
    width: int
    itemsize: int = 4

    @classmethod
    def of(cls, lengths: NDArray[np.int32], request: Request) -> Size:
        """Return the size of a request whose sentences have these lengths in tokens, shape (n_sentences,)."""
        wide = lengths.astype(np.int64)
        sizes = Blocks.of(load_config(request.source))
        width = sizes.d_mlp if request.site == "mlp" else sizes.d_model
        itemsize = getattr(torch, request.dtype).itemsize
        return cls(int(wide.sum()), int((wide**2).sum()), len(request.layers), width, itemsize)

    @property
    def n_activations(self) -> int:
        """Number of activations in all layers."""
        return self.n_tokens * self.n_layers * self.width

    @property
    def n_bytes(self) -> int:
        """Bytes of the activations on disk."""
        return self.n_activations * self.itemsize


@dataclass(frozen=True)
class Speed:
    """How fast this machine computes the products of a model's blocks.

    Args:
        blocks: Sizes of the blocks.
        rates: Rate of each of their matrices by its name, in floating-point operations per second.
    """

    blocks: Blocks
    rates: Mapping[str, float]

    @classmethod
    def measure(cls, request: Request, trainer: Mapping[str, Any] | None = None) -> Speed:
        """Measure the rates with nothing else on the machine, in a fraction of a second.

        Args:
            request: The request, with the model and the dtype.
            trainer: Arguments of Lightning's Trainer, which may choose the processor where there is a GPU.
        """
        is_on_gpu = torch.cuda.is_available() and (trainer or {}).get("accelerator", "auto") not in ("cpu", "mps")
        blocks = Blocks.of(load_config(request.source))
        device, rows = ("cuda", batch_tokens_of(request)) if is_on_gpu else ("cpu", ROWS_CPU)
        return cls(blocks, blocks.rates(rows, request.dtype, partial(undisturbed_rate, device=device), device))

    def forward_s(self, size: Size) -> float:
        """Return about how many seconds a forward pass through all blocks takes, with the caching of what it gives."""
        return self.blocks.seconds(size.n_tokens, size.token_pairs, self.rates) / PRODUCTS


@dataclass(frozen=True)
class Reading:
    """A request, and how much of it is not cached yet.

    Args:
        request: The request.
        tokens: The table of its tokens.
        missing: Share of its activations that is not cached, from 0 to 1.
    """

    request: Request
    tokens: Tokens
    missing: float

    @classmethod
    def of(cls, request: Request, cache: Path) -> Reading:
        """Return what is left of a request, given the folder of the cache.

        Raises:
            UserError: If the model has no tokenizer, or does not take sentences of the requested length.
        """
        try:
            store = ActivationStore(entry_folder(request, cache)).of_corpus(request.corpus)
            left = sum(len(layers) for layers in store.missing(request.layers).values())
            return cls(request, store.tokens, left / (len(request.layers) * len(store.plan.shards)))
        except (DamagedCache, NewerCache):
            return cls(request, tokens_of(request, load_tokenizer(request.source)), 1.0)

    @property
    def size(self) -> Size:
        """What the model reads."""
        return Size.of(self.tokens.lengths, self.request)

    @property
    def missing_bytes(self) -> int:
        """Bytes of activations that are not cached yet."""
        return round(self.missing * self.size.n_bytes)

    def seconds(self, speed: Speed) -> float:
        """Return about how many seconds it takes to read what is missing."""
        blocks = speed.blocks.n_blocks
        through = max(self.request.layers, default=0) / blocks if blocks else 0.0
        return self.missing * through * speed.forward_s(self.size)

    def memory_bytes(self) -> int:
        """Return about how many bytes of memory reading takes: the weights, and two shards, one of which is written."""
        if not self.missing:
            return 0
        return weight_bytes(load_config(self.request.source), self.size.itemsize) + 2 * SHARD_BYTES
