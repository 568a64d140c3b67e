"""Readouts of cosines in the last layer: similarity of sentences (STS), senses of words (WiC); and tuned heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from probing.activations import ActivationStore
from probing.data.labelling import IGNORED, Standard, is_target, label_sides, nothing, targets_of
from probing.downstream import READABLE as STS_READABLE
from probing.downstream import PairFiles, SentencePairs, read_sts
from probing.downstream.labelled_pairs import READABLE as WIC_READABLE
from probing.downstream.labelled_pairs import WordPairs, read_wic
from probing.downstream.sentence_vectors import cosines, pseudo_values, reported
from probing.downstream.wic import best_threshold, target_cosines, targets, with_both_words
from probing.errors import UserError
from probing.interventions import STS, TUNED, TUNED_R2, WIC
from probing.interventions.forward import ItemReading, LaterBlocks, Loss, OfSentences, Padded, ReadText, draw_up_to
from probing.models.examination import examination_inputs, run, with_the_same_weights
from probing.models.loading import HeadOf
from probing.text import Corpus, GroupBy, Split
from probing.text.tasks import SentenceTask, TokenTask

Array = NDArray[np.float64]


def draw_pairs(pairs: SentencePairs | WordPairs, store: ActivationStore, at_most: int, seed: int) -> NDArray[np.int64]:
    """Draw pairs of a set, at least one, up to `at_most` tokens, and return their indices, ascending."""
    return draw_up_to(store.tokens.lengths[pairs.sentences].sum(1), at_most, seed)


@dataclass(frozen=True, eq=False)
class Mentions:
    """Words or whole sentences, each with the mean of its tokens' hidden states as vector.

    `of_token` is the mention of each token, shape (n_tokens,), -1 for none; `sentences` is the sentence of each
    mention.
    """

    text: ReadText
    of_token: NDArray[np.int64]
    sentences: NDArray[np.int64]

    @cached_property
    def n_tokens(self) -> Tensor:
        """Number of tokens of each mention, at least 1, shape (n_mentions, 1)."""
        counts = np.bincount(self.of_token[self.of_token >= 0], minlength=len(self.sentences))
        return torch.from_numpy(counts).clamp_min(1)[:, None]

    def add(self, sums: Tensor, states: Tensor, rows: Tensor) -> None:
        """Add hidden states, shape (n, d_model), of tokens in `rows` to sums of mentions, (n_mentions, d_model)."""
        mention = torch.from_numpy(self.of_token)[rows.cpu()]
        is_mention = mention >= 0
        sums.index_add_(0, mention[is_mention], states.float().cpu()[is_mention])

    def vectors(self, layer: int) -> Tensor:
        """Return the intact model's vectors, from the cache, shape (n_mentions, d_model)."""
        states = self.text.states(layer)
        sums = torch.zeros(len(self.sentences), states.shape[1])
        self.add(sums, states, torch.arange(len(states)))
        return sums / self.n_tokens


@dataclass(frozen=True, eq=False)
class PairsReadout:
    """The readout of pairs by the cosines of their vectors.

    Args:
        pairs: The mentions of each pair, shape (n_pairs, 2).
        last: Number of the layer that is read.
        score: Returns a number for each pair, given their cosines; the measure is the mean.
        error: Returns the loss of each pair, given their cosines; gradients flow through it.
        gold: Basis of `score` and `error`, for cache keys.
    """

    name: str
    mentions: Mentions
    pairs: NDArray[np.int64]
    last: int
    score: Callable[[Array], Array]
    error: Callable[[Tensor], Tensor]
    gold: Array

    @property
    def text(self) -> ReadText:
        """The sentences that are read."""
        return self.mentions.text

    @cached_property
    def n(self) -> NDArray[np.int64]:
        """1 for each pair."""
        return np.ones(len(self.pairs), dtype=np.int64)

    @property
    def content(self) -> tuple[NDArray[Any], ...]:
        """The token ids, the pairs and their gold values."""
        tokens = self.text.tokens
        return tokens.input_ids, tokens.lengths, self.mentions.of_token, self.pairs, self.gold

    def layers(self, block: int) -> list[int]:
        """Return the last layer."""
        return [self.last]

    def begin(self, layers: Sequence[int]) -> _PairReading:
        """Begin a reading of the last layer."""
        return _PairReading(self)

    def scores(self, vectors: Tensor) -> Array:
        """Return the measure for each pair, shape (n_pairs,), from vectors, shape (n_mentions, d_model)."""
        first, second = torch.from_numpy(self.pairs).T
        return self.score(cosines(vectors[first], vectors[second]))

    @cached_property
    def occurrences(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The sentence of the first and of the second mention of each pair, which is an item."""
        return self.mentions.sentences[self.pairs.ravel()], np.repeat(np.arange(len(self.pairs)), 2)

    @cached_property
    def _pull(self) -> Tensor:
        """The gradient of each pair's loss with respect to its two vectors, shape (2 n_pairs, d_model), float64."""
        with torch.inference_mode(False), torch.enable_grad():
            vectors = self.mentions.vectors(self.last).double()[torch.from_numpy(self.pairs)].requires_grad_()
            cosine = torch.nn.functional.cosine_similarity(vectors[:, 0], vectors[:, 1])
            (pull,) = torch.autograd.grad(self.error(cosine).sum(), vectors)
        return pull.flatten(0, 1)

    def loss(self, batch: Padded, occurrences: NDArray[np.int64]) -> Loss:
        """Return a function whose gradients, summed over the two sentences of a pair, are the gradients of its loss.

        A pair's loss depends on two sentences, which may be in different batches. By the chain rule, the gradient of
        the loss is a sum over both sentences. The term of a sentence is the gradient of its vector's product with a
        constant, the gradient of the loss with respect to this vector.
        """
        device = batch.mask.device
        mention = torch.from_numpy(self.pairs.ravel()[occurrences]).to(device)
        taken = batch.mask & (torch.from_numpy(self.mentions.of_token).to(device)[batch.rows] == mention[:, None])
        share = taken / taken.sum(1, keepdim=True).clamp_min(1)
        pull = self._pull[torch.from_numpy(occurrences)]

        def loss(states: Tensor) -> Tensor:
            vectors = (states * share.to(states.dtype)[..., None]).sum(1)
            return (vectors * pull.to(states)).sum(1)

        return loss


class _PairReading:
    def __init__(self, readout: PairsReadout) -> None:
        self.readout = readout
        self.vectors = torch.zeros(len(readout.mentions.sentences), readout.text.store.plan.d_model)

    def take(self, states: Mapping[int, Tensor], batch: Padded) -> None:
        # All tokens of a mention are in one batch, so that no other thread adds to it.
        self.readout.mentions.add(self.vectors, states[self.readout.last][batch.mask], batch.rows[batch.mask])

    def sums(self) -> Tensor:
        return torch.from_numpy(self.readout.scores(self.vectors / self.readout.mentions.n_tokens))[None]


def read_similarity(*folders: str, option: str = "--readouts sts=") -> list[SentencePairs]:
    """Read the sets to report on: test parts, or dev parts if there is no test part.

    The folders may be `hf:NAME?config=C`; `option` is the option up to the first folder, for messages.

    Raises:
        UserError: If there are no such parts.
    """
    sets = reported(read_sts(folders, PairFiles(option, STS_READABLE)))
    if not sets:
        raise UserError(f"`{option}{' '.join(folders)}`: these are training parts only; give dev or test parts too.")
    return sets


def similarity_readout(
    pairs: SentencePairs, store: ActivationStore, selected: NDArray[np.int64], last: int
) -> PairsReadout:  # fmt: skip
    """Return the readout of selected pairs of a set: Spearman's correlation over all subsets together.

    The loss for gradients is the squared difference between the cosines and the human scores, scaled to 0 to 1.
    """
    gold = pairs.gold[selected]
    lowest, highest = float(pairs.gold.min()), float(pairs.gold.max())
    scaled = torch.from_numpy((gold - lowest) / max(highest - lowest, 1e-12))

    def score(cosine: Array) -> Array:
        return pseudo_values(cosine, gold)

    def error(cosine: Tensor) -> Tensor:
        return (cosine - scaled.to(cosine)) ** 2

    read, at = np.unique(pairs.sentences[selected], return_inverse=True)
    text = ReadText(store, read)
    sentence = text.tokens.sentences.astype(np.int64)
    of_token = np.where(text.tokens.special, -1, sentence)
    mentions = Mentions(text, of_token, np.arange(len(read)))
    return PairsReadout(f"{STS}:{pairs.label}", mentions, at.reshape(-1, 2), last, score, error, gold)


def halves(selected: NDArray[np.int64], seed: int) -> Sequence[NDArray[np.int64]]:
    """Divide pairs at random into two halves: the first to choose on, the second to report on."""
    order = np.random.default_rng(seed).permutation(selected)
    return np.sort(order[: len(order) // 2]), np.sort(order[len(order) // 2 :])


# Part that the rule is chosen on, and part that is read.
TRAIN, READ = "train", "dev"

# Penalty of the logistic curve, so that it is finite where the cosine separates the training pairs.
_RIDGE = 1e-6


def read_senses(folder: str) -> Mapping[str, WordPairs]:
    """Read the training and the dev part of the data set, from a folder or `hf:NAME?config=C`.

    Raises:
        UserError: If they cannot be read.
    """
    return read_wic(folder, [TRAIN, READ], PairFiles("--readouts wic=", WIC_READABLE))


@dataclass(frozen=True)
class SenseRule:
    """The rule that classifies senses as same by the cosine, chosen on training pairs with the intact model.

    A cosine above the threshold means the same sense. Slope and offset define the logistic curve whose loss has
    gradients.
    """

    threshold: float
    slope: float
    offset: float

    @classmethod
    def of(cls, cosine: Array, same: NDArray[np.bool_]) -> SenseRule:
        """Choose the threshold with the highest accuracy, and fit the logistic curve by Newton's method."""
        features = np.stack([cosine, np.ones_like(cosine)], axis=1)
        weight = np.zeros(2)
        for _ in range(100):
            p = 1 / (1 + np.exp(-np.clip(features @ weight, -30, 30)))
            slope = features.T @ (p - same) / len(same) + _RIDGE * weight
            curvature = (features * (p * (1 - p))[:, None]).T @ features / len(same) + _RIDGE * np.eye(2)
            weight = weight - np.linalg.solve(curvature, slope)
        return cls(best_threshold(cosine, same).threshold, float(weight[0]), float(weight[1]))


def rule_of(pairs: WordPairs, store: ActivationStore, last: int) -> SenseRule:
    """Choose the rule on training pairs, from the intact model's cosines."""
    complete = with_both_words(pairs, store.tokens)
    return SenseRule.of(target_cosines(complete, store, last), complete.labels)


def senses_readout(
    pairs: WordPairs, store: ActivationStore, rule: SenseRule, n_tokens: int, last: int, seed: int
) -> PairsReadout:  # fmt: skip
    """Return the readout of some pairs: the accuracy of the fixed threshold.

    The loss for gradients is the cross-entropy, in nats, of the logistic curve, which is fixed as well; accuracy has no
    gradient. At most `n_tokens` tokens are drawn.
    """
    whole = with_both_words(pairs, store.tokens)
    chosen = np.zeros(whole.n_pairs, dtype=bool)
    chosen[draw_pairs(whole, store, n_tokens, seed)] = True
    some = whole.pick(chosen)
    words, at = np.unique(targets(some), axis=0, return_inverse=True)
    read, sentences = np.unique(words[:, 0], return_inverse=True)
    text = ReadText(store, read)
    mentions = Mentions(text, _mention_of_tokens(text, sentences, words[:, 1]), sentences)
    signs = torch.from_numpy(np.where(some.labels, 1.0, -1.0))

    def score(cosine: Array) -> Array:
        return ((cosine > rule.threshold) == some.labels).astype(np.float64)

    def error(cosine: Tensor) -> Tensor:
        return torch.nn.functional.softplus(-signs.to(cosine) * (rule.slope * cosine + rule.offset))

    gold = np.concatenate([some.labels.astype(np.float64), [rule.threshold, rule.slope, rule.offset]])
    return PairsReadout(WIC, mentions, at.reshape(-1, 2), last, score, error, gold)


def _mention_of_tokens(text: ReadText, sentences: NDArray[np.int64], words: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of each token's word among some words, -1 for none, shape (n_tokens,)."""
    rank = {(int(sentence), int(word)): i for i, (sentence, word) in enumerate(zip(sentences, words, strict=True))}
    tokens = zip(text.tokens.sentences.tolist(), text.tokens.words.tolist(), strict=True)
    return np.array([rank.get(token, -1) for token in tokens], dtype=np.int64)


# Largest difference between the head's outputs by itself and in the model, relative to the largest of them.
_ROUNDING = 1e-4


class TunedHead:
    """The head of a tuned model with all that follows the blocks, such as a pooler: logits of last hidden states.

    It runs a copy of the model, in evaluation mode, that shares its weights; the blocks of the copy pass on the given
    hidden states, and so does a norm behind the last block if these states are its output.

    Raises:
        UserError: If the head reads something other than the last hidden states.
    """

    def __init__(self, model: Any, blocks: LaterBlocks, pad_token_id: int) -> None:
        self.model: Any = with_the_same_weights(model)
        self._last_states, self._lock = torch.empty(0), Lock()
        inputs = examination_inputs(model.base_model, pad_token_id)
        with torch.no_grad():
            beside = blocks.beside_states(inputs)
            last, normed = self._last(model, blocks, inputs)
            for module in dict.fromkeys(blocks.anatomy.blocks or ()):
                self._inside(model, module).forward = self._handing_on(beside)
            for module in normed:
                self._inside(model, module).forward = self._handing_on(None)
            expected, logits = model(**inputs).logits, self(inputs, last)
        mask = inputs["attention_mask"].bool()
        is_compared = mask if expected.ndim == mask.ndim + 1 else ...
        if (logits - expected)[is_compared].abs().max() > _ROUNDING * expected[is_compared].abs().max().clamp_min(1e-6):
            raise UserError(
                f"the head of {type(model).__name__} reads something else than the last hidden states, so that it "
                "cannot be read while a part of the model is ablated; choose another model."
            )

    def __call__(self, inputs: Mapping[str, Tensor], states: Tensor) -> Tensor:
        """Return the logits of a batch of sentences or tokens from last hidden states; gradients flow through them."""
        with self._lock:  # several threads read
            self._last_states = states
            logits: Tensor = self.model(**inputs).logits
            self._last_states = torch.empty(0)
        return logits

    def _handing_on(self, beside: tuple[Any, ...] | None) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._last_states if beside is None else (self._last_states, *beside)

    def _inside(self, model: Any, module: nn.Module) -> Any:
        name = next(name for name, submodule in model.named_modules() if submodule is module)
        return self.model.get_submodule(name)

    @staticmethod
    def _last(model: Any, blocks: LaterBlocks, inputs: Mapping[str, Tensor]) -> tuple[Tensor, list[nn.Module]]:
        """Return the last hidden states of some tokens, and the modules behind the last block that output them."""
        of_blocks = {id(inner) for block in blocks.anatomy.blocks or () for inner in block.modules()}
        outputs: dict[nn.Module, Any] = {}

        def note(module: nn.Module, args: Any, output: Any) -> None:
            outputs[module] = output[0] if isinstance(output, tuple | list) else output

        outside = [
            module
            for module in model.base_model.modules()
            if not {id(inner) for inner in module.modules()} & of_blocks
        ]  # fmt: skip
        block_modules = list(dict.fromkeys(blocks.anatomy.blocks or ()))
        handles = [module.register_forward_hook(note) for module in (*outside, *block_modules)]
        try:
            last = run(model.base_model, inputs).last
        finally:
            for handle in handles:
                handle.remove()

        def gives(module: nn.Module) -> bool:
            return isinstance(output := outputs.get(module), Tensor) and output.numel() == last.numel() and torch.equal(
                output.reshape(last.shape), last
            )  # fmt: skip

        return last, [] if gives(block_modules[-1]) else [module for module in outside if gives(module)]


@dataclass(frozen=True, eq=False)
class TunedScore(OfSentences):
    """The readout of a tuned head: its accuracy on the targets, or R² for numbers.

    R² is the mean over targets of 1 minus the squared error over the mean square of all targets, so that it is R² over
    all, and a difference on some of the sentences is in the same unit. For the targets see `targets_of`.
    """

    text: ReadText
    targets: Tensor
    head: TunedHead
    of: HeadOf
    last: int

    @property
    def name(self) -> str:
        """`tuned`, or `tuned_r2` for numbers."""
        return TUNED_R2 if self.targets.is_floating_point() else TUNED

    def part(self, sentences: NDArray[np.int64]) -> TunedScore:
        """Return the readout of some of the sentences, by their index in the text, ascending."""
        target_rows = (
            sentences if self.of == "sentences" else np.flatnonzero(np.isin(self.text.tokens.sentences, sentences))
        )
        text = replace(self.text, sentence_indices=self.text.sentence_indices[sentences])
        return TunedScore(text, self.targets[torch.from_numpy(target_rows)], self.head, self.of, self.last)

    @cached_property
    def n(self) -> NDArray[np.int64]:
        """Number of targets of each sentence."""
        target_rows = np.flatnonzero(is_target(self.targets).numpy())
        tokens = self.text.tokens
        sentences = target_rows if self.of == "sentences" else tokens.sentences[target_rows]
        return np.bincount(sentences, minlength=tokens.n_sentences)

    @property
    def content(self) -> tuple[NDArray[Any], ...]:
        """The token ids and the targets."""
        tokens = self.text.tokens
        types = () if tokens.token_types is None else (tokens.token_types,)
        return tokens.input_ids, tokens.lengths, self.targets.numpy(), *types

    def layers(self, block: int) -> list[int]:
        """Return the last layer, which the head reads."""
        return [self.last]

    def begin(self, layers: Sequence[int]) -> ItemReading:
        """Begin a reading of the last layer."""
        totals = torch.zeros(1, len(self.n), dtype=torch.float64)
        return ItemReading(lambda states, batch: self.right(batch, states[self.last])[None], totals)

    def loss(self, batch: Padded, occurrences: NDArray[np.int64]) -> Loss:
        """Return the mean loss of each sentence's targets: cross-entropy in nats, or the squared error of numbers."""
        targets = self._of(batch)
        n = _by_sentence(is_target(targets).float()).clamp_min(1)
        return lambda states: _by_sentence(self._losses(self.head(batch.inputs, states), targets)) / n.to(states.dtype)

    def right(self, batch: Padded, states: Tensor) -> Tensor:
        """Return the sum of the measure over the targets of each sentence of a batch, shape (batch,), float64."""
        targets, logits = self._of(batch), self.head(batch.inputs, states).float()
        if targets.is_floating_point():
            has_target, errors = is_target(targets), self._losses(logits, targets).double()
            return _by_sentence(torch.where(has_target, 1 - errors / self._mean_square, 0.0))
        right = (logits.argmax(-1) == targets) & is_target(targets)
        return _by_sentence(right.double())

    @cached_property
    def _mean_square(self) -> float:
        return float(self.targets[is_target(self.targets)].double().square().mean())

    def _of(self, batch: Padded) -> Tensor:
        targets = self.targets.to(batch.mask.device)
        if self.of == "sentences":
            return targets[batch.sentences]
        return torch.where(batch.mask, targets[batch.rows], nothing(targets))

    @staticmethod
    def _losses(logits: Tensor, targets: Tensor) -> Tensor:
        if targets.is_floating_point():
            has_target = is_target(targets)
            error = logits[..., 0] - torch.where(has_target, targets, 0.0).to(logits.dtype)
            return torch.where(has_target, error**2, 0.0)
        losses = cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="none")
        return losses.view(targets.shape)


def _by_sentence(values: Tensor) -> Tensor:
    return values if values.ndim == 1 else values.sum(1)


@dataclass(frozen=True, eq=False)
class TunedTask:
    """The task of a tuned model, for reading its test part again; `classes` is empty for numbers."""

    task: TokenTask
    group_by: GroupBy
    classes: Sequence[str]
    flag_text: str

    @property
    def of(self) -> HeadOf:
        """Unit of the head: sentences or tokens."""
        return "sentences" if isinstance(self.task, SentenceTask) else "tokens"

    def targets(
        self, stores: Sequence[ActivationStore], corpora: Sequence[Corpus], splits: Sequence[Sequence[Split]]
    ) -> Tensor:
        """Return the targets of the test part, for `TunedScore`, of each token or sentence of its corpus.

        Raises:
            UserError: If the classes differ from the head's classes.
        """
        sides = label_sides(stores, corpora, splits, self.task, self.group_by)
        if (class_names := [str(label) for label in sides.classes.tolist()]) != list(self.classes):
            raise UserError(
                f"`{self.flag_text}`: its head tells the classes {', '.join(self.classes)}, and the text has "
                f"{', '.join(class_names)}; tune the model again."
            )
        return targets_of(sides.test, Standard.of(sides.train) if sides.numbers else None)
