"""Measures of a changed model's output: the loss of masked words, two words at a mask, or position accuracy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from probing.data.examples import Examples, Sides
from probing.data.labelling import choose_classes, label
from probing.errors import UserError
from probing.interventions import MLM, WORDS
from probing.interventions.forward import (
    Loss,
    OfSentences,
    Padded,
    ReadableText,
    SelectedReading,
    draw_up_to,
    padded,
    padded_batches,
)
from probing.interventions.probed_task import LayersInMemory
from probing.models import ModelSource, load_masked_lm
from probing.models.anatomy import Anatomy, hidden_states, replaced_forward
from probing.models.examination import run
from probing.probes.solvers import Penalty
from probing.probes.training import CONTROL_TOLERANCE, LayerFit, Lbfgs, Training, train_probes
from probing.text import MASK, Corpus, Split
from probing.text.tasks import TokenTask
from probing.text.tokens import Tokens

# Maximum number of tokens in the sampled sentences; for each condition, the model reads them once.
MLM_TOKENS, PROBE_TOKENS = 10_000, 20_000

# Share of a sentence's tokens that are masked, not counting special tokens (Devlin et al. 2019).
MASKED = 0.15

BATCH_TOKENS = 2048

# Most variants whose logits are computed at once, and most entries in the logits of a batch over all variants.
VARIANTS, _LOGITS = 16, 2**26

# Maximum number of passes to train a probe. Its accuracy no longer changes by then, and it is not used for a ranking.
MAX_PASSES = 200

# Number of sentences out of ten that probes are trained on.
TRAIN_OF_TEN = 7


def draw_sentences(tokens: Tokens, at_most: int, seed: int) -> tuple[Tokens, list[int]]:
    """Draw sentences, at least one, up to `at_most` tokens; return their token table and their numbers."""
    drawn = draw_up_to(tokens.lengths, at_most, seed)
    rows = np.isin(tokens.sentences, drawn)
    return Tokens(tokens.lengths[drawn], tokens.input_ids[rows], tokens.words[rows]), drawn.tolist()


def choose_masked(tokens: Tokens, seed: int) -> NDArray[np.bool_]:
    """Return a mask of the tokens to mask, shape (n_tokens,): 15% of each sentence, at least one, none special."""
    chance = np.where(tokens.special, np.inf, np.random.default_rng(seed).random(tokens.n_tokens))
    order = np.lexsort((chance, tokens.sentences))  # sentence by sentence, in random order within each
    rank = np.empty(tokens.n_tokens, dtype=np.int64)
    rank[order] = np.arange(tokens.n_tokens)
    rank -= np.repeat(tokens.offsets[:-1], tokens.lengths)
    n_words = np.bincount(tokens.sentences, ~tokens.special, minlength=tokens.n_sentences)
    n_masked = np.where(n_words > 0, np.maximum(np.rint(MASKED * n_words), 1), 0)
    return np.asarray(rank < n_masked[tokens.sentences])


class MaskedHead:
    """A masked-language-model head alone, which returns logits for any hidden states of the last layer.

    The model, in evaluation mode, is run on `input_ids`, shape (1, n), once, to record the form of the head's input.
    """

    def __init__(self, model: nn.Module, encoder: nn.Module, input_ids: Tensor) -> None:
        self.model, self.encoder, self.input_ids = model, encoder, input_ids
        outputs: list[Any] = []
        handle = encoder.register_forward_hook(lambda module, args, output: outputs.append(output))
        try:
            with torch.inference_mode():
                model(input_ids=input_ids)
        finally:
            handle.remove()
        self._form = outputs[0]

    def __call__(self, states: Tensor) -> Tensor:
        """Return logits, (n, vocabulary), of last hidden states, (n, d_model); gradients flow through them."""
        encoder_output = copy(self._form)
        encoder_output.last_hidden_state = states[None]
        with replaced_forward(self.encoder, lambda *args, **kwargs: encoder_output):
            logits: Tensor = self.model(input_ids=self.input_ids).logits
        return logits[0]


class SentenceSums(NamedTuple):
    """A model's measures for each sentence: sums over tokens and numbers of tokens, by name, shape (n_sentences,)."""

    sums: dict[str, NDArray[np.float64]]
    n_tokens: dict[str, NDArray[np.int64]]


# Measures the model in its present state, once for each set of neurons that are set to 0 in its last hidden states.
Reader = Callable[[Sequence[Sequence[int]]], list[SentenceSums]]


class MaskedWords:
    """The loss of a masked-language-model head, in nats per masked token (`mlm_loss`), for outliers of all layers.

    It runs any model as a whole; `MaskedWordLoss` is the readout of a model whose later blocks are run alone. Every
    chosen token is replaced by the mask token. The head receives only the hidden states of masked tokens, of all
    clipped variants together, because it treats each token separately. The model is in evaluation mode; `with_padding`
    permits sentences of different lengths in a batch.

    Raises:
        ValueError: If the head reads more than one token at a time, or no token is masked in the longest sentences.
    """

    def __init__(
        self,
        model: nn.Module,
        encoder: nn.Module,
        tokens: Tokens,
        masked: NDArray[np.bool_],
        mask_token_id: int,
        pad_token_id: int,
        with_padding: bool = True,
    ) -> None:
        self.model, self.encoder, self.tokens, self.masked = model, encoder, tokens, masked
        ids = np.where(masked, mask_token_id, tokens.input_ids).astype(np.int32)
        self.hidden = Tokens(tokens.lengths, ids, tokens.words)
        self.pad_token_id, self.with_padding = pad_token_id, with_padding
        self._check()

    def _batches(self, n_variants: int) -> list[Padded]:
        """Return batches small enough for the logits of their masked tokens under so many variants."""
        config: Any = self.encoder.config
        at_most = min(BATCH_TOKENS, int(_LOGITS / (MASKED * config.vocab_size * n_variants)))
        return padded_batches(self.hidden, at_most, self.pad_token_id, self.with_padding)

    @torch.inference_mode()
    def _check(self) -> None:
        batch = padded(self.hidden, self._batches(1)[0].sentences[:2].numpy(), self.pad_token_id)
        inputs = self._inputs(batch)
        where = batch.mask & torch.from_numpy(self.masked)[batch.rows]
        if not where.any():
            raise ValueError("the longest sentences have no word to mask")
        self.head = MaskedHead(self.model, self.encoder, inputs["input_ids"][:1])
        plain = self.model(**inputs).logits[where.to(inputs["input_ids"].device)]
        alone = self._logits(batch, where, [()])[0]
        if plain.shape != alone.shape or (plain - alone).abs().max() > 1e-3 * plain.abs().max():
            raise ValueError("the head looks at more than one token at a time")

    def _inputs(self, batch: Padded) -> dict[str, Tensor]:
        return batch.inputs_on(next(self.model.parameters()).device)

    def _logits(self, batch: Padded, where: Tensor, clips: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the logits of some tokens of a batch, a tensor of shape (n, vocabulary) for each variant."""
        states = run(self.encoder, self._inputs(batch)).last
        states = states[where.to(states.device)]
        logits = self.head(torch.cat([clip(states, neurons) for neurons in clips]))
        return list(logits.view(len(clips), -1, logits.shape[-1]))

    @torch.inference_mode()
    def __call__(self, clips: Sequence[Sequence[int]]) -> list[SentenceSums]:
        """Measure the model in its present state, once for each set of neurons clipped after it."""
        if len(clips) > VARIANTS:
            return [*self(clips[:VARIANTS]), *self(clips[VARIANTS:])]
        loss = np.zeros((len(clips), self.tokens.n_tokens))
        labels = torch.from_numpy(self.tokens.input_ids.astype(np.int64))
        for batch in self._batches(len(clips)):
            where = batch.mask & torch.from_numpy(self.masked)[batch.rows]
            rows = batch.rows[where]
            for variant, logits in enumerate(self._logits(batch, where, clips)):
                nats = cross_entropy(logits.float(), labels[rows].to(logits.device), reduction="none")
                loss[variant, rows.numpy()] = nats.cpu().numpy()
        n_tokens = np.bincount(self.tokens.sentences, self.masked, minlength=self.tokens.n_sentences).astype(np.int64)
        return [SentenceSums({"mlm_loss": sum_by_sentence(self.tokens, nats)}, {"mlm_loss": n_tokens}) for nats in loss]


def sum_by_sentence(tokens: Tokens, values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the sum of values over the tokens of each sentence, shape (n_sentences,)."""
    return np.bincount(tokens.sentences, values, minlength=tokens.n_sentences).astype(np.float64)


def clip(states: Tensor, neurons: Sequence[int]) -> Tensor:
    """Clip outlier dimensions of hidden states, shape (n, d_model): set them to 0."""
    clipped = states.clone()
    clipped[:, list(neurons)] = 0
    return clipped


class PositionAccuracy:
    """Accuracy of linear probes that predict positions from the last hidden states.

    `position_accuracy` is the accuracy of a reference probe that was trained on the intact model, like a
    masked-language-model head: if it falls, the states that this probe reads have changed.
    `position_accuracy_retrained` is the accuracy of a probe trained on the changed model: if it falls, position can be
    decoded less well from the states. Create this object while the model is intact: it trains the reference probe.

    `states_of` returns the last hidden states of the model in its present state, shape (n_tokens, d_model).

    Raises:
        UserError: If there are too few sentences for a probe.
    """

    def __init__(
        self, states_of: Callable[[], Tensor], tokens: Tokens, corpus: Corpus, task: TokenTask, seed: int
    ) -> None:
        self.states_of, self.tokens, self.corpus, self.task = states_of, tokens, corpus, task
        order = np.random.default_rng(seed).permutation(tokens.n_sentences)
        sides = np.where(order % 10 < TRAIN_OF_TEN, "train", "test")
        self.splits: list[Split] = sides.tolist()
        self.classes = choose_classes(tokens, corpus, task, self.splits)
        self.training = Training(
            Penalty(0.0, 1e-4), Lbfgs(CONTROL_TOLERANCE), trainer={"accelerator": "cpu", "max_epochs": MAX_PASSES}
        )
        self.reference = self._fit(self._sides(states_of())).weight

    def __call__(self, clips: Sequence[Sequence[int]]) -> list[SentenceSums]:
        """Measure the model in its present state, once for each set of neurons clipped after it."""
        states = self.states_of()
        return [self.of(clip(states, neurons)) for neurons in clips]

    def _sides(self, states: Tensor) -> Sides:
        store = LayersInMemory(self.tokens, {0: states})
        parts: Mapping[Split, Examples] = {
            side: label(store, self.corpus, self.task, self.splits, self.classes, side)
            for side in ("train", "validation", "test")
        }
        return Sides(parts["train"], parts["validation"], parts["test"], self.classes, self.task.ordinal)

    def _fit(self, sides: Sides) -> LayerFit:
        (fit,) = train_probes(sides, [0], self.training)
        return fit

    def of(self, states: Tensor) -> SentenceSums:
        """Measure last hidden states, shape (n_tokens, d_model)."""
        sides = self._sides(states)
        fit, labels, sentences = self._fit(sides), sides.test.labels, self.tokens.sentences
        n_tokens = np.bincount(sentences[labels >= 0], minlength=self.tokens.n_sentences)
        right = (states @ self.reference.T).argmax(1).numpy() == labels
        return SentenceSums(
            {
                "position_accuracy": sum_by_sentence(self.tokens, right),
                "position_accuracy_retrained": fit.correct_by_sentence.astype(np.float64),
            },
            dict.fromkeys(("position_accuracy", "position_accuracy_retrained"), n_tokens),
        )


@torch.inference_mode()
def states_of_layer(
    encoder: nn.Module,
    anatomy: Anatomy,
    tokens: Tokens,
    pad_token_id: int,
    layer: int,
    batch_tokens: int = BATCH_TOKENS,
) -> Tensor:
    """Return the hidden states of sentences in one layer, shape (n_tokens, d_model), float32, without the cache."""
    device = next(encoder.parameters()).device
    states: Tensor | None = None
    for batch in padded_batches(tokens, batch_tokens, pad_token_id, anatomy.padding_is_neutral):
        batch_states = hidden_states(encoder, anatomy, [layer], **batch.inputs_on(device))[layer].float().cpu()
        if states is None:
            states = torch.empty(tokens.n_tokens, batch_states.shape[-1])
        states[batch.rows[batch.mask]] = batch_states[batch.mask]
    assert states is not None  # there is a sentence with a token
    return states


# Most entries in the logits that are computed at once.
LOGITS_AT_ONCE = 2**24


@dataclass(frozen=True, eq=False)
class MaskedText:
    """Sentences with masked tokens, whose hidden states are not cached but computed on request."""

    tokens: Tokens
    encoder: nn.Module
    anatomy: Anatomy
    pad_token_id: int
    batch_tokens: int

    def states(self, layer: int) -> Tensor:
        """Return the hidden states of a layer, shape (n_tokens, d_model), float32."""
        how = self.tokens, self.pad_token_id, layer, self.batch_tokens
        return states_of_layer(self.encoder, self.anatomy, *how)


@dataclass(frozen=True, eq=False)
class MaskedWordLoss(OfSentences):
    """The readout of masked words: their mean cross-entropy, in nats; `labels` are token ids without masks."""

    text: ReadableText
    masked: NDArray[np.bool_]
    labels: Tensor
    head: MaskedHead
    last: int
    name: ClassVar[str] = MLM

    @classmethod
    def of(
        cls, model: nn.Module, encoder: nn.Module, anatomy: Anatomy, tokens: Tokens, mask_token_id: int,
        pad_token_id: int, batch_tokens: int, seed: int,
    ) -> MaskedWordLoss:  # fmt: skip
        """Mask 15% of the tokens of each sentence, not counting special tokens; `encoder` is a part of the model."""
        masked = choose_masked(tokens, seed)
        ids = np.where(masked, mask_token_id, tokens.input_ids).astype(np.int32)
        text = MaskedText(Tokens(tokens.lengths, ids, tokens.words), encoder, anatomy, pad_token_id, batch_tokens)
        return cls.with_masks(model, text, masked, tokens.input_ids)

    @classmethod
    def with_masks(
        cls, model: nn.Module, text: MaskedText, masked: NDArray[np.bool_], input_ids: NDArray[np.int32]
    ) -> MaskedWordLoss:
        """Return the readout of a masked text, given the mask and the token ids without masks, shape (n_tokens,)."""
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
        """The token ids, with and without masks."""
        tokens = self.text.tokens
        return tokens.input_ids, tokens.lengths, self.labels.numpy()

    def layers(self, block: int) -> list[int]:
        """Return the last layer."""
        return [self.last]

    def begin(self, layers: Sequence[int]) -> SelectedReading:
        """Begin a reading of the last layer."""
        rank = torch.from_numpy(np.cumsum(self.masked) - 1)

        def select(batch: Padded) -> tuple[Tensor, Tensor]:
            where = self.where(batch)
            return rank[batch.rows[where].cpu()], where

        return SelectedReading(self.last, select, self._sums)

    def _sums(self, states: Tensor) -> Tensor:
        tokens = self.text.tokens
        sums = torch.zeros(1, tokens.n_sentences, dtype=torch.float64)
        sums[0].index_add_(0, torch.from_numpy(tokens.sentences[self.masked].astype(np.int64)), self.nats(states))
        return sums

    def where(self, batch: Padded) -> Tensor:
        """Return a mask of the masked tokens of a batch, shape (batch, sequence)."""
        return batch.mask & torch.from_numpy(self.masked).to(batch.mask.device)[batch.rows]

    @torch.inference_mode()
    def nats(self, states: Tensor) -> Tensor:
        """Return the loss of each masked token, (n_masked,), float64, from last hidden states in token order."""
        labels, config = self.labels[torch.from_numpy(self.masked)], self.head.encoder.config
        at_once = max(1, LOGITS_AT_ONCE // int(config.vocab_size))  # type: ignore[union-attr,arg-type]
        losses = []
        for part, masked_labels in zip(states.split(at_once), labels.split(at_once), strict=True):
            logits = self.head(part).float()
            losses.append(cross_entropy(logits, masked_labels.to(logits.device), reduction="none").cpu().double())
        return torch.cat(losses)

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


def masked_lm_of(
    source: ModelSource, random_weights: bool, mask_token_id: int | None, requested_by: str, way_out: str = ""
) -> nn.Module:
    """Return a model with its masked-language-model head; the last two arguments are for messages.

    Raises:
        UserError: If the model has no such head with trained weights.
    """
    expected = f"{requested_by} needs a model with a trained masked-language-model head"
    if random_weights:
        raise UserError(f"{expected}, and with `--random_weights` no head is trained; leave one of the two out.")
    model = load_masked_lm(source) if mask_token_id is not None else None
    if model is None:
        lacking = "no mask token" if mask_token_id is None else "no such head with weights in its files"
        raise UserError(f"{expected}: {source.name} has {lacking}; choose another model, such as bert{way_out}.")
    return model


@dataclass(frozen=True)
class Prompt:
    """A tokenised text with a mask and the ids of words for it; `words` is -1 for special tokens, not the mask."""

    input_ids: Sequence[int]
    words: Sequence[int]
    mask: int
    answers: tuple[int, ...]


def prompt_of(tokenizer: Any, text: str, words: Sequence[str], longest: int) -> Prompt | str:
    """Return a text with words for its mask, or the reason why it is unusable, as a phrase.

    The text contains `[MASK]` once and is tokenised with each of the words in it. The lists of pieces must differ in
    exactly one piece, which must be the whole word; it is replaced by the mask token. So no assumption is needed about
    blanks and capitals, which vocabularies treat differently. `longest` is the model's maximum number of tokens.
    """
    encodings = [tokenizer(text.replace(MASK, word)).encodings[0] for word in words]
    at, *others = (_place(encoding, text, word) for encoding, word in zip(encodings, words, strict=True))
    ids = encodings[0].ids
    if len(ids) > longest:
        return f"the text is longer than the {longest} tokens that the model reads"
    if at is None or {*others} - {at} or any(_without(ids, at) != _without(other.ids, at) for other in encodings):
        return "a word is not a single piece of the vocabulary"
    answers = tuple(encoding.ids[at] for encoding in encodings)
    if tokenizer.unk_token_id in answers:
        return "a word is not in the vocabulary"
    if len({*answers}) < len(answers):
        return "the vocabulary does not tell the two words apart"
    pieces = [-1 if word is None else word for word in encodings[0].word_ids]
    return Prompt([*ids[:at], tokenizer.mask_token_id, *ids[at + 1 :]], pieces, at, answers)


def tokens_of_prompts(prompts: Sequence[Prompt]) -> Tokens:
    """Return the table of tokens of some texts."""
    return Tokens(
        np.array([len(prompt.input_ids) for prompt in prompts], dtype=np.int32),
        np.concatenate([prompt.input_ids for prompt in prompts]).astype(np.int32),
        np.concatenate([prompt.words for prompt in prompts]).astype(np.int16),
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
    """The readout of two words at the mask of each text: the logit of the first minus the logit of the second.

    `masks` are the indices of the mask tokens, shape (n_sentences,); `words` the ids of the words, (n_sentences, 2).
    """

    text: MaskedText
    masks: NDArray[np.int64]
    words: NDArray[np.int64]
    head: MaskedHead
    name: ClassVar[str] = WORDS

    def layers(self, block: int) -> list[int]:
        """Return the last layer."""
        return [self.text.anatomy.n_layers]

    def begin(self, layers: Sequence[int]) -> SelectedReading:
        """Begin a reading of the last layer."""

        def select(batch: Padded) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            masks = torch.from_numpy(self.masks)[batch.sentences.cpu()].to(batch.mask.device)
            return batch.sentences, (torch.arange(len(masks), device=masks.device), masks)

        return SelectedReading(self.text.anatomy.n_layers, select, lambda states: self.odds(states)[None])

    def intact(self) -> NDArray[np.float64]:
        """Return the log odds of the intact model, shape (n_sentences,)."""
        tokens = self.text.tokens
        states = self.text.states(self.text.anatomy.n_layers)
        at_masks = states[torch.from_numpy(tokens.offsets[:-1] + self.masks)]
        return self.odds(at_masks.to(self.head.input_ids.device)).numpy()

    @torch.inference_mode()
    def odds(self, states: Tensor) -> Tensor:
        """Return the log odds of each text's words, (n_sentences,), float64, on the CPU, from states at the masks."""
        words = torch.from_numpy(self.words)
        at_once = max(1, LOGITS_AT_ONCE // int(self.head.encoder.config.vocab_size))  # type: ignore[union-attr,arg-type]
        odds = []
        for part, word_ids in zip(states.split(at_once), words.split(at_once), strict=True):
            first, second = self.head(part).cpu().double().gather(1, word_ids).T
            odds.append(first - second)
        return torch.cat(odds)
