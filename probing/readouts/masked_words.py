"""What a model's own masked-language-model head makes of masked words: their loss, and the odds of two words."""

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
from probing.corpus.splits import MASK
from probing.errors import UserError
from probing.models import ModelSource, load_masked_lm
from probing.models.anatomy import Anatomy
from probing.readouts.forward import Loss, ReadableText
from probing.readouts.model_output import MaskedHead, choose_masked, states_of_layer
from probing.readouts.names import MLM, WORDS
from probing.readouts.text import Padded, padded_batches

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


@dataclass(frozen=True)
class Prompt:
    """A text with a mask.

    Args:
        input_ids: Its tokens, with the model's mask token.
        words: Index of the word of each token, -1 for special tokens; the mask is a word.
        mask: Index of the mask token.
        answers: Ids of the two words.
    """

    input_ids: Sequence[int]
    words: Sequence[int]
    mask: int
    answers: tuple[int, int]


def prompt_of(tokenizer: Any, text: str, words: tuple[str, str], longest: int) -> Prompt | str:
    """Return a text with two words for its mask, or why the model cannot be asked about it, as a phrase.

    The text is tokenised with each of the words in it. The two lists of pieces must differ in exactly one piece, which
    must be the whole word; it is replaced by the mask token. So no assumption is needed about blanks and capitals,
    which vocabularies treat differently.

    Args:
        tokenizer: A fast tokenizer with a mask token.
        text: The text, with `[MASK]` once.
        words: The two words.
        longest: Most tokens that the model reads.
    """
    one, other = (tokenizer(text.replace(MASK, word)).encodings[0] for word in words)
    at, there = (_place(found, text, word) for found, word in zip((one, other), words, strict=True))
    if len(one.ids) > longest:
        return f"the text is longer than the {longest} tokens that the model reads"
    if at is None or at != there or _without(one.ids, at) != _without(other.ids, at):
        return "a word is not a single piece of the vocabulary"
    if tokenizer.unk_token_id in (one.ids[at], other.ids[at]):
        return "a word is not in the vocabulary"
    if one.ids[at] == other.ids[at]:
        return "the vocabulary does not tell the two words apart"
    ids = [*one.ids[:at], tokenizer.mask_token_id, *one.ids[at + 1 :]]
    return Prompt(ids, [-1 if word is None else word for word in one.word_ids], at, (one.ids[at], other.ids[at]))


def tokens_of_prompts(prompts: Sequence[Prompt]) -> Tokens:
    """Return the table of tokens of some texts."""
    return Tokens(
        np.array([len(one.input_ids) for one in prompts], dtype=np.int32),
        np.concatenate([one.input_ids for one in prompts]).astype(np.int32),
        np.concatenate([one.words for one in prompts]).astype(np.int16),
    )


def _place(encoding: Any, text: str, word: str) -> int | None:
    """Return the index of the piece that is the word in the place of the mask; None if there is none."""
    filled, start = text.replace(MASK, word), text.index(MASK)
    for i, (first, last) in enumerate(encoding.offsets):
        if first <= start < last and filled[first:last].strip() == word:
            return i
    return None


def _without(ids: Sequence[int], at: int) -> list[int]:
    return [*ids[:at], *ids[at + 1 :]]


@dataclass(frozen=True, eq=False)
class WordOdds:
    """The readout of two words at the mask of each text: the logit of the first minus that of the second.

    Args:
        text: The texts.
        masks: Index of the mask token in each text, shape (n_sentences,).
        words: Ids of the two words of each text, shape (n_sentences, 2).
        head: The model's head.
        name: Its name in tables.
    """

    text: MaskedText
    masks: NDArray[np.int64]
    words: NDArray[np.int64]
    head: MaskedHead
    name: str = WORDS

    def layers(self, block: int) -> list[int]:
        """Return the last layer."""
        return [self.text.anatomy.n_layers]

    def begin(self, layers: Sequence[int]) -> _OddsReading:
        """Begin a reading of the last layer."""
        return _OddsReading(self)

    def intact(self) -> NDArray[np.float64]:
        """Return the log odds by the intact model, shape (n_sentences,)."""
        tokens = self.text.tokens
        states = self.text.states(self.text.anatomy.n_layers)
        at_masks = states[torch.from_numpy(tokens.offsets[:-1] + self.masks)]
        return self.odds(at_masks.to(self.head.input_ids.device)).numpy()

    @torch.inference_mode()
    def odds(self, states: Tensor) -> Tensor:
        """Return the log odds of each text's words, shape (n_sentences,), float64, on the CPU.

        Args:
            states: The last hidden state at each mask, shape (n_sentences, d_model).
        """
        words = torch.from_numpy(self.words)
        at_once = max(1, LOGITS_AT_ONCE // int(self.head.encoder.config.vocab_size))  # type: ignore[union-attr,arg-type]
        found = []
        for part, asked in zip(states.split(at_once), words.split(at_once), strict=True):
            first, second = self.head(part).cpu().double().gather(1, asked).T
            found.append(first - second)
        return torch.cat(found)


class _OddsReading:
    def __init__(self, readout: WordOdds) -> None:
        self.readout = readout
        self.last = readout.text.anatomy.n_layers
        self.states: list[tuple[Tensor, Tensor]] = []

    def take(self, states: Mapping[int, Tensor], batch: Padded) -> None:
        sentences = batch.sentences.cpu()
        masks = torch.from_numpy(self.readout.masks)[sentences].to(batch.mask.device)
        at_masks = states[self.last][torch.arange(len(sentences), device=masks.device), masks]
        self.states.append((sentences, at_masks))

    def sums(self) -> Tensor:
        sentences, states = (torch.cat(parts) for parts in zip(*self.states, strict=True))
        return self.readout.odds(states[sentences.argsort().to(states.device)])[None]
