"""The sums of one measure on disk: an entry of the cache, with a file for each shard of the corpus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from safetensors.torch import load_file
from torch import Tensor

from probing.cache.store import ActivationStore
from probing.heads.reading import Batch, Kept
from probing.runtime.files import regular

# Number of tokens in a shard. A pass that was killed has to read its unfinished shard again, which takes some seconds.
SHARD_TOKENS = 8192


class SumsStore(ActivationStore):
    """An entry of the cache that holds the sums of one measure over one corpus, all layers in one file."""

    def by_sentence(self, name: str) -> Tensor:
        """Return what a measure kept by sentence, shape (n_sentences, ...)."""
        return torch.cat(self._shards(f"by_sentence/{name}"))

    def all_by_sentence(self) -> dict[str, Tensor]:
        """Return everything that a measure kept by sentence, by its name."""
        names = [name.removeprefix("by_sentence/") for name in self.names() if name.startswith("by_sentence/")]
        return {name: self.by_sentence(name) for name in names}

    def by_token(self, name: str) -> Tensor:
        """Return what a measure kept by token, shape (n_tokens, ...), in the order of the table of tokens."""
        return torch.cat(self._shards(f"by_token/{name}"))

    def total(self, name: str) -> Tensor:
        """Return what a measure added up over the corpus."""
        return torch.stack(self._shards(f"total/{name}")).sum(0)

    def listed(self, name: str, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows that a measure kept of some sentences, and the number of rows of each sentence.

        Args:
            name: Name of the rows.
            chosen: Whether a sentence is chosen, shape (n_sentences,).

        Returns:
            Rows, shape (n, ...), in the order of the corpus, and numbers, shape (n_sentences,), 0 for other sentences.
        """
        counts = torch.cat(self._shards(f"n_listed/{name}"))
        numbers = torch.where(chosen, counts, 0)
        rows: Tensor | None = None
        filled = 0
        # Filled shard by shard: to hold the rows both in pieces and joined would need twice the memory.
        for shard in self.plan.shards:
            tensors = load_file(regular(self.path(0, shard.index), self.folder))
            if not tensors:
                continue
            here = slice(shard.first_sentence, shard.first_sentence + shard.n_sentences)
            own = tensors[f"listed/{name}"][chosen[here].repeat_interleave(counts[here])]
            if rows is None:
                rows = torch.empty(int(numbers.sum()), *own.shape[1:], dtype=own.dtype)
            rows[filled : filled + len(own)] = own
            filled += len(own)
        return (torch.empty(0) if rows is None else rows), numbers

    def names(self) -> list[str]:
        """Return the names of what is kept, each with its kind, such as `by_sentence/entropy`."""
        return sorted(load_file(regular(self.path(0, 0), self.folder)))

    def _shards(self, name: str) -> list[Tensor]:
        found = (load_file(regular(self.path(0, shard.index), self.folder)) for shard in self.plan.shards)
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
    listed: dict[str, dict[int, Tensor]] = {}

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
        for name, rows in kept.listed.items():
            own = zip((batch.sentences.cpu() - first_sentence).tolist(), rows, strict=True)
            listed.setdefault(name, {}).update((sentence, values.cpu()) for sentence, values in own)
    for name, by_sentence in listed.items():
        numbers = torch.zeros(n_sentences, dtype=torch.int64)
        numbers[list(by_sentence)] = torch.tensor([len(values) for values in by_sentence.values()])
        made[f"n_listed/{name}"] = numbers
        made[f"listed/{name}"] = torch.cat([by_sentence[sentence] for sentence in sorted(by_sentence)])
    return made


def not_finite(sums: Mapping[str, Tensor]) -> str | None:
    """Return the name of a value that is not finite, or None."""
    return next((name for name, values in sums.items() if not bool(torch.isfinite(values).all())), None)
