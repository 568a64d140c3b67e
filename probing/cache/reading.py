"""How an encoder reads the sentences of a store: in which batches, and what it is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.cache.plan import batches
from probing.cache.store import ActivationStore
from probing.models.anatomy import Anatomy, examine
from probing.models.behaviour import n_token_types
from probing.statistics.chance import permute_within_sentences


@dataclass(frozen=True)
class Reading:
    """How an encoder reads the sentences of a store.

    Args:
        anatomy: The encoder's anatomy, with the site of the store.
        pad_token_id: Id of the padding token.
        n_token_types: How many token types the encoder is given; 0 if none.
    """

    anatomy: Anatomy
    pad_token_id: int
    n_token_types: int

    @classmethod
    def of(cls, encoder: nn.Module, tokenizer: Any, store: ActivationStore) -> Reading:
        """Examine an encoder for the sentences of a store; see `examine` for what is refused."""
        pad_token_id = tokenizer.pad_token_id or 0
        anatomy = examine(encoder, pad_token_id, str(store.header["model"]), store.tokens.lengths.tolist())
        n_types = n_token_types(encoder, tokenizer, store.tokens.segments is not None)
        modules = tuple((store.header.get("site") or {}).get("modules", ()))
        return cls(replace(anatomy, site_modules=modules), pad_token_id, n_types)

    def of_shard(self, store: ActivationStore, shard: int) -> ShardReading:
        """Return what is read of a shard."""
        here, tokens = store.plan.shards[shard], store.tokens
        rows, types = store.shard_tokens(here), tokens.types_for(self.n_token_types)
        given: dict[str, NDArray[Any]] = {"input_ids": tokens.input_ids}
        if types is not None:
            given["token_type_ids"] = types
        return ShardReading(
            tokens.lengths[here.first_sentence : here.first_sentence + here.n_sentences],
            reading_order(store, rows),
            {name: torch.from_numpy(values[rows].astype(np.int64)) for name, values in given.items()},
            self,
            store.plan.batch_tokens,
        )


@dataclass(frozen=True)
class ShardReading:
    """What is read of a shard.

    Args:
        lengths: Number of tokens of each sentence, shape (n_sentences,).
        order: Index of the token that is read at each index, shape (n_tokens,); see `reading_order`.
        given: What the encoder is given of each token, shape (n_tokens,).
        reading: How it is read.
        batch_tokens: Padded tokens in one forward pass.
    """

    lengths: NDArray[np.int32]
    order: Tensor
    given: dict[str, Tensor]
    reading: Reading
    batch_tokens: int

    def batches(self) -> Iterator[NDArray[np.int64]]:
        """Yield the sentences of each batch, counted from the shard's first."""
        return batches(self.lengths, self.batch_tokens, with_padding=self.reading.anatomy.padding_is_neutral)

    def inputs(self, sentences: NDArray[np.int64], device: Any = "cpu") -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Return what the encoder is given for a batch, the index in the shard of each token, and the mask of tokens.

        Args:
            sentences: The sentences of the batch, counted from the shard's first.
            device: Where the inputs are put.

        Returns:
            Tensors of shape (batch, sequence).
        """
        index, mask = padded_index(self.lengths, sentences)
        index = self.order[index]
        padding = {"input_ids": self.reading.pad_token_id}
        inputs = {name: torch.where(mask, one[index], padding.get(name, 0)) for name, one in self.given.items()}
        inputs["attention_mask"] = mask.long()
        return {name: values.to(device) for name, values in inputs.items()}, index, mask


def reading_order(store: ActivationStore, rows: slice) -> Tensor:
    """Return the index of the token that the model reads at each index of a shard, shape (n,).

    Without permutation it is the index itself, else that of a token of the same sentence. Special tokens stay in place.
    """
    tokens, indices = store.tokens, np.arange(rows.stop - rows.start)
    seed = store.plan.key.get("permuted_tokens_seed")
    if seed is None:
        return torch.from_numpy(indices)
    special = tokens.special[rows]
    (drawn,) = permute_within_sentences(
        np.where(special, -1, indices), tokens.sentences[rows], tokens.input_ids[rows], 1, seed
    )
    # The draw gives the new index of each token; its inverse permutation gives the token at each index.
    return torch.from_numpy(np.argsort(np.where(special, indices, drawn)))


def padded_index(lengths: NDArray[np.int32], sentences: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Return for a batch each token's row in the shard, and the mask of tokens; both of shape (batch, sequence)."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])[sentences]
    columns = np.arange(lengths[sentences].max())
    mask = columns < lengths[sentences][:, None]
    index = np.where(mask, offsets[:, None] + columns, 0)
    return torch.from_numpy(index), torch.from_numpy(mask)
