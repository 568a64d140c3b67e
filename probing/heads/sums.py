"""The sums of one measure on disk: an entry of the cache, with a file for each shard of the corpus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from safetensors.torch import load_file
from torch import Tensor

from probing.cache.store import ActivationStore
from probing.heads.measures import Kept
from probing.heads.reading import Batch

# Tokens in a shard, which is what a killed pass has to read again: some seconds of work.
SHARD_TOKENS = 8192


class SumsStore(ActivationStore):
    """An entry of the cache that holds the sums of one measure over one corpus, all layers in one file."""

    def by_sentence(self, name: str) -> Tensor:
        """Return what a measure kept by sentence, shape (n_sentences, ...)."""
        return torch.cat(self._shards(f"by_sentence/{name}"))

    def by_token(self, name: str) -> Tensor:
        """Return what a measure kept by token, shape (n_tokens, ...), in the order of the table of tokens."""
        return torch.cat(self._shards(f"by_token/{name}"))

    def total(self, name: str) -> Tensor:
        """Return what a measure added up over the corpus."""
        return torch.stack(self._shards(f"total/{name}")).sum(0)

    def names(self) -> list[str]:
        """Return the names of what is kept, each with its kind, such as `by_sentence/entropy`."""
        return sorted(load_file(self.path(0, 0)))

    def _shards(self, name: str) -> list[Tensor]:
        found = (load_file(self.path(0, shard.index)) for shard in self.plan.shards)
        return [tensors[name] for tensors in found if tensors]


def of_shard(
    batches: Iterable[tuple[Batch, Kept]], first_sentence: int, n_sentences: int, first_row: int, n_tokens: int
) -> dict[str, Tensor]:
    """Put together what a measure kept of the batches of one shard, in the order of the corpus.

    Args:
        batches: The batches and what was kept of each, always in the same order, so that totals are the same bits.
        first_sentence: Index of the shard's first sentence.
        n_sentences: Number of its sentences; of those without tokens 0 is kept.
        first_row: Index of its first token.
        n_tokens: Number of its tokens.
    """
    made: dict[str, Tensor] = {}

    def put(name: str, index: Tensor, values: Tensor, length: int) -> None:
        if name not in made:
            made[name] = torch.zeros(length, *values.shape[1:], dtype=values.dtype)
        made[name][index] = values.cpu()

    for batch, kept in batches:
        for name, values in kept.by_sentence.items():
            put(f"by_sentence/{name}", batch.sentences.cpu() - first_sentence, values, n_sentences)
        for name, values in kept.by_token.items():
            put(f"by_token/{name}", (batch.rows[batch.mask] - first_row).cpu(), values[batch.mask], n_tokens)
        for name, values in kept.total.items():
            before = made.get(f"total/{name}")
            made[f"total/{name}"] = values.cpu().clone() if before is None else before + values.cpu()
    return made


def not_finite(sums: Mapping[str, Tensor]) -> str | None:
    """Return the name of a value that is not finite, or None."""
    return next((name for name, values in sums.items() if not bool(torch.isfinite(values).all())), None)
