"""The loss of masked words, read from the last layer by the model's own masked-language-model head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from probing.cache.tokens import Tokens
from probing.errors import UserError
from probing.internals.readouts import MaskedHead, choose_masked, states_of_layer
from probing.models import ModelSource, load_masked_lm
from probing.models.anatomy import Anatomy
from probing.readouts.readout import Loss, ReadableText
from probing.readouts.text import Padded, padded_batches
from probing.tables.readout_names import MLM

# Most entries in the logits that are computed at once.
LOGITS_AT_ONCE = 2**24


@dataclass(frozen=True, eq=False)
class MaskedText:
    """Sentences some of whose tokens are replaced by the mask token.

    The cache has no hidden states of them: they are computed when they are asked for.

    Args:
        tokens: The table of tokens, with the mask token in their place.
        encoder: The model, in evaluation mode; nothing is changed in it while its states are computed.
        anatomy: Its structure.
        pad_token_id: Id of the padding token.
        batch_tokens: Most tokens in a batch, padding included.
    """

    tokens: Tokens
    encoder: nn.Module
    anatomy: Anatomy
    pad_token_id: int
    batch_tokens: int

    def batches(self, batch_tokens: int, pad_token_id: int, with_padding: bool, device: Any = "cpu") -> list[Padded]:
        """Return the sentences in batches of similar length."""
        return padded_batches(self.tokens, batch_tokens, pad_token_id, with_padding, device)

    def states(self, layer: int) -> Tensor:
        """Return the hidden states of a layer, shape (n_tokens, d_model), float32."""
        how = self.tokens, self.pad_token_id, layer, self.batch_tokens
        return states_of_layer(self.encoder, self.anatomy, *how)


@dataclass(frozen=True, eq=False)
class MaskedWordLoss:
    """The readout of masked words: their mean cross-entropy, in nats.

    Args:
        text: The sentences, masked.
        masked: Which tokens are masked, shape (n_tokens,), bool.
        labels: Token ids without masks, shape (n_tokens,).
        head: The head.
        last: The last layer.
    """

    text: ReadableText
    masked: NDArray[np.bool_]
    labels: Tensor
    head: MaskedHead
    last: int
    name: str = MLM

    @classmethod
    def of(
        cls, model: nn.Module, encoder: nn.Module, anatomy: Anatomy, tokens: Tokens, mask_token_id: int,
        pad_token_id: int, batch_tokens: int, seed: int,
    ) -> MaskedWordLoss:  # fmt: skip
        """Mask 15% of the tokens of each sentence, not counting special tokens.

        Args:
            model: The model with its head.
            encoder: The part of it that returns hidden states.
            anatomy: The encoder's structure.
            tokens: The table of tokens.
            mask_token_id: Id of the mask token.
            pad_token_id: Id of the padding token.
            batch_tokens: Most tokens in a batch, padding included.
            seed: Seed of the draw of the tokens.
        """
        masked = choose_masked(tokens, seed)
        ids = np.where(masked, mask_token_id, tokens.input_ids).astype(np.int32)
        text = MaskedText(Tokens(tokens.lengths, ids, tokens.words), encoder, anatomy, pad_token_id, batch_tokens)
        return cls.with_masks(model, text, masked, tokens.input_ids)

    @classmethod
    def with_masks(
        cls, model: nn.Module, text: MaskedText, masked: NDArray[np.bool_], input_ids: NDArray[np.int32]
    ) -> MaskedWordLoss:
        """Return the readout of sentences whose masks are already chosen.

        Args:
            model: The model with its head.
            text: The sentences, masked.
            masked: Which tokens are masked, shape (n_tokens,), bool.
            input_ids: Token ids without masks, shape (n_tokens,).
        """
        labels, lengths = torch.from_numpy(input_ids.astype(np.int64)), text.tokens.lengths
        first = labels[None, : int(lengths[lengths > 0][0])].to(next(text.encoder.parameters()).device)
        return cls(text, masked, labels, MaskedHead(model, text.encoder, first), text.anatomy.n_layers)

    @cached_property
    def n(self) -> NDArray[np.int64]:
        """Number of masked tokens of each sentence."""
        tokens = self.text.tokens
        return np.bincount(tokens.sentences[self.masked], minlength=tokens.n_sentences)

    @property
    def content(self) -> tuple[NDArray[Any], ...]:
        """The token ids, with masks and without."""
        tokens = self.text.tokens
        return tokens.input_ids, tokens.lengths, self.labels.numpy()

    def layers(self, block: int) -> list[int]:
        """Return the last layer."""
        return [self.last]

    def begin(self, layers: Sequence[int]) -> _Reading:
        """Begin a reading of the last layer, or of none."""
        return _Reading(self, layers)

    def where(self, batch: Padded) -> Tensor:
        """Return which tokens of a batch are masked, shape (batch, sequence)."""
        return batch.mask & torch.from_numpy(self.masked).to(batch.mask.device)[batch.rows]

    @torch.inference_mode()
    def nats(self, states: Tensor) -> Tensor:
        """Return the loss of each masked token, shape (n_masked,), float64.

        Args:
            states: Their last hidden states, in the order of the table of tokens, shape (n_masked, d_model).
        """
        labels, config = self.labels[torch.from_numpy(self.masked)], self.head.encoder.config
        at_once = max(1, LOGITS_AT_ONCE // int(config.vocab_size))  # type: ignore[union-attr,arg-type]
        found = []
        for part, wanted in zip(states.split(at_once), labels.split(at_once), strict=True):
            logits = self.head(part).float()
            found.append(cross_entropy(logits, wanted.to(logits.device), reduction="none").cpu().double())
        return torch.cat(found)

    @cached_property
    def occurrences(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Each sentence, which is an item, once."""
        return (every := np.arange(len(self.n))), every

    def loss(self, batch: Padded, occurrences: NDArray[np.int64]) -> Loss:
        """Return the mean cross-entropy of each sentence's masked tokens."""
        where = self.where(batch)
        sentence, rows = where.nonzero(as_tuple=True)[0], batch.rows[where]
        labels, n = self.labels.to(rows.device)[rows], where.sum(1).clamp_min(1)

        def loss(states: Tensor) -> Tensor:
            sums = states.new_zeros(len(n))
            if len(rows) == 0:
                return sums + 0 * states.sum()
            nats = cross_entropy(self.head(states[where]), labels, reduction="none")
            return sums.index_add(0, sentence, nats) / n

        return loss


class _Reading:
    def __init__(self, readout: MaskedWordLoss, layers: Sequence[int]) -> None:
        self.readout, self.layers = readout, layers
        # The rank of each masked token among them.
        self.index = torch.from_numpy(np.cumsum(readout.masked) - 1)
        self.states: list[tuple[Tensor, Tensor]] = []

    def take(self, states: Mapping[int, Tensor], batch: Padded) -> None:
        where = self.readout.where(batch)
        for layer in self.layers:
            self.states.append((self.index[batch.rows[where].cpu()], states[layer][where]))

    def sums(self) -> Tensor:
        tokens, masked = self.readout.text.tokens, self.readout.masked
        sums = torch.zeros(len(self.layers), tokens.n_sentences, dtype=torch.float64)
        if self.states:
            index, states = (torch.cat(parts) for parts in zip(*self.states, strict=True))
            nats = self.readout.nats(states[index.argsort().to(states.device)])
            sums[0].index_add_(0, torch.from_numpy(tokens.sentences[masked].astype(np.int64)), nats)
        return sums


def masked_lm_of(
    source: ModelSource, random_weights: bool, mask_token_id: int | None, asked: str = "`--readouts mlm`",
    way_out: str = ", or leave mlm out",
) -> nn.Module:  # fmt: skip
    """Return a model with its masked-language-model head.

    Args:
        source: The model's files.
        random_weights: Whether the model is randomly initialised.
        mask_token_id: Id of its mask token, None if it has none.
        asked: What needs the head, as the user typed it.
        way_out: What the user can do other than choose another model, for messages.

    Raises:
        UserError: If it has no such head with trained weights.
    """
    expected = f"{asked} needs a model with a trained masked-language-model head"
    if random_weights:
        raise UserError(f"{expected}, and with `--random_weights` no head is trained; leave one of the two out.")
    model = load_masked_lm(source) if mask_token_id is not None else None
    if model is None:
        lacking = "no mask token" if mask_token_id is None else "no such head with weights in its files"
        raise UserError(f"{expected}: {source.name} has {lacking}; choose another model, such as bert{way_out}.")
    return model
