"""Replacements of neurons of the residual stream, and drawn sets of neurons for comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.data.module import shuffled_labels
from probing.heads.position_controls import matched_sets, random_sets
from probing.interventions import NeuronReplacement
from probing.interventions.forward import (
    Change,
    Forward,
    Padded,
    ReadableText,
    Readers,
    ReadText,
    Replace,
    draw_others,
)
from probing.interventions.frozen_probes import means
from probing.probes.transforms import Eraser, ErasureAccumulator
from probing.statistics.label_scores import LabelCodes
from probing.text.tokens import Tokens

Source = Literal["chosen", "random", "matched"]

# Numbers of neurons of a dose curve; the number of all neurons that were asked for is its last point.
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


@dataclass(frozen=True)
class NeuronSet:
    """Neurons of one layer that are changed together.

    Args:
        kind: The replacement: their mean, 0, their values at a random token of another sentence, their values after
            linear erasure of the classes of a task, or of classes that are permuted, their values moved by the
            difference of two class means, or their values at the same token of a counterfactual sentence.
        neurons: The neurons; empty for the intact baseline.
        source: Whether the neurons were requested, or drawn for comparison.
        draw: Number of the draw, from 1; 0 for requested neurons.
    """

    layer: int
    kind: NeuronReplacement
    neurons: tuple[int, ...]
    source: Source = "chosen"
    draw: int = 0

    @property
    def k(self) -> int:
        """Number of neurons."""
        return len(self.neurons)

    @property
    def compared_with(self) -> tuple[int, str, int]:
        """Layer, kind and size, which chosen and drawn sets share that are compared."""
        return self.layer, self.kind, self.k


def sizes_up_to(n: int) -> list[int]:
    """Return the numbers of neurons of a dose curve, ascending, up to all n."""
    return [*(k for k in _STEPS if k < n), n]


def chosen_sets(layer: int, ranked: Sequence[int], kinds: Sequence[NeuronReplacement], d_model: int) -> list[NeuronSet]:
    """Return the empty set, and for each kind and size k the first k neurons of a ranking, or all of a full layer."""
    sizes = sizes_up_to(len(ranked)) if len(ranked) < d_model else [d_model]
    steps = [NeuronSet(layer, kind, tuple(ranked[:k])) for kind in kinds for k in sizes]
    return [NeuronSet(layer, kinds[0], ()), *steps]


def drawn_sets(chosen: Sequence[NeuronSet], sd: NDArray[np.float64], n_draws: int, seed: int) -> Iterator[NeuronSet]:
    """Yield `n_draws` random sets of the size of each chosen one, and as many matched ones of nearly the same spread.

    For a given layer and size, the sets are the same for all kinds. No sets are drawn for comparison with all neurons
    of the layer. `sd` is over training tokens, shape (d_model,).
    """
    for neuron_set in chosen:
        if n_draws and 0 < neuron_set.k < len(sd):
            generator = np.random.default_rng([seed, neuron_set.layer, neuron_set.k])
            drawn: dict[Source, NDArray[np.int64]] = {
                "random": random_sets(len(sd), neuron_set.k, generator, n_draws),
                "matched": matched_sets(sd, np.array(neuron_set.neurons, dtype=np.int64), generator, n_draws),
            }
            for source, sets in drawn.items():
                for draw, neurons in enumerate(sets.tolist(), start=1):
                    yield NeuronSet(neuron_set.layer, neuron_set.kind, tuple(neurons), source, draw)


Place = Literal["words", "everywhere"]
# Takes values of the neurons at some tokens, shape (n, k), and the rows of these tokens, shape (n,); returns others.
ReplaceNeurons = Callable[[Tensor, Tensor], Tensor]


def changed_tokens(tokens: Tokens, at: Place) -> NDArray[np.bool_]:
    """Return the mask of the tokens whose neurons are changed, shape (n_tokens,): all, or all but special tokens."""
    return np.ones(tokens.n_tokens, dtype=bool) if at == "everywhere" else ~tokens.special


@dataclass(frozen=True, eq=False)
class Moves:
    """Class of each token's example, (n_tokens,), -1 if it is not moved, and the class that the example is moved to."""

    source: Tensor
    target: Tensor


@dataclass(frozen=True, eq=False)
class Values:
    """Values of the neurons of a layer at training tokens.

    Args:
        states: Hidden states of the tokens, shape (n, d_model), float32.
        sentences: Index of the sentence of each, shape (n,).
        labels: Class of each that is an example or represents one, shape (n,); -1 for others.
        n_classes: Number of classes.
        shuffled: The classes, permuted among examples, shape (n,).
        stands: Index of the token that represents the example of each, shape (n,); -1 for tokens of none. None where
            examples are single tokens.
    """

    states: Tensor
    sentences: NDArray[Any]
    labels: Tensor
    n_classes: int
    shuffled: Tensor
    stands: Tensor | None = None

    @classmethod
    def of(
        cls, train: ReadText, layer: int, at: Place, labels: NDArray[np.int32], n_classes: int, seed: int = 0,
        stands: Tensor | None = None,
    ) -> Values:  # fmt: skip
        """Read the values from the cache; they are at training tokens of the kind that is changed.

        `labels` has the class of each training token that is an example or represents one, shape (n_tokens,), negative
        for others. `stands` has the row of the token that represents each token's example, shape (n_tokens,), if
        examples are means.
        """
        tokens, is_changed = train.tokens, changed_tokens(train.tokens, at)
        codes = LabelCodes.of_classes(torch.from_numpy(np.bincount(labels[labels >= 0], minlength=n_classes)))
        shuffled = shuffled_labels(labels, tokens, codes, seed)
        of_tokens, of_others = (
            torch.from_numpy(token_labels[is_changed].astype(np.int64)) for token_labels in (labels, shuffled)
        )
        states = train.states(layer)[torch.from_numpy(is_changed)]
        if stands is not None:
            # A token that stands for others is a word, so that it is among those that are kept.
            index = torch.from_numpy(np.cumsum(is_changed) - 1)
            replacements = stands[torch.from_numpy(is_changed)]
            stands = torch.where(replacements >= 0, index[replacements.clamp_min(0)], -1)
        return cls(states, tokens.sentences[is_changed], of_tokens, n_classes, of_others, stands)

    @cached_property
    def mean(self) -> Tensor:
        """Mean of each neuron, shape (d_model,), float32."""
        return self.states.mean(0, dtype=torch.float64).float()

    @cached_property
    def sd(self) -> NDArray[np.float64]:
        """Standard deviation of each neuron, shape (d_model,)."""
        return self.states.double().std(0, correction=0).numpy()

    def vectors(self, neurons: Sequence[int]) -> Tensor:
        """Return values of some neurons, shape (n, k); a token that represents an example has the example's values."""
        states = self.states[:, list(neurons)]
        return states if self.stands is None else means(states, self.stands, len(states))

    def eraser(self, neurons: Sequence[int], labels: Tensor | None = None) -> Eraser:
        """Return the map of some neurons after which no linear probe of these neurons decodes the classes (LEACE).

        The map is affine, so that the mean of a word's mapped pieces is the mapped mean of its pieces. `labels`, shape
        (n,), are the true classes by default.
        """
        accumulator = ErasureAccumulator(len(neurons), self.n_classes)
        accumulator.update(self.vectors(neurons), self.labels if labels is None else labels)
        return accumulator.result()

    def class_means(self, neurons: Sequence[int]) -> Tensor:
        """Return the mean of some neurons over each class's examples, shape (n_classes, k), float64; NaN if none."""
        vectors, is_labelled = self.vectors(neurons).double(), self.labels >= 0
        sizes = self.labels[is_labelled].bincount(minlength=self.n_classes)
        sums = vectors.new_zeros(self.n_classes, len(neurons)).index_add_(
            0, self.labels[is_labelled], vectors[is_labelled]
        )
        return sums / sizes[:, None]

    def replace(
        self, kind: NeuronReplacement, neurons: Sequence[int], drawn: Tensor, moves: Moves | None = None
    ) -> ReplaceNeurons:
        """Return the function that replaces the values of some neurons.

        `translate` adds the difference of two class means, mean(target) - mean(source), to the neurons at each token of
        an example: h + alpha (mean(target) - mean(source)) of Antverg & Belinkov (2022, section 5) with alpha = 1 for
        all changed neurons, so that the mean of a class moves to the mean of the other; it needs `moves`. `drawn` has
        for each token of the text the index of the training token that replaces it, shape (n_tokens,).

        Raises:
            ValueError: If this kind replaces nothing, or needs classes and there are none.
        """
        columns = list(neurons)
        if kind == "zero":
            return lambda states, rows: torch.zeros_like(states)
        if kind == "mean":
            mean = self.mean[columns]
            return lambda states, rows: mean.to(states).expand_as(states)
        if kind in ("resample", "interchange"):
            bank = self.states[:, columns]
            return lambda states, rows: bank[drawn[rows.cpu()]].to(states)
        if kind in ("direction", "shuffled"):
            eraser = self.eraser(columns, self.labels if kind == "direction" else self.shuffled)
            return lambda states, rows: eraser.apply(states.cpu()).to(states)
        if kind == "translate" and moves is not None:
            return _translation(self.class_means(columns), moves)
        raise ValueError(f"{kind} replaces no neurons")


def _translation(class_means: Tensor, moves: Moves) -> ReplaceNeurons:
    """Return the function that adds mean(target) - mean(source), from class means of shape (n_classes, k), float64."""

    def translate(states: Tensor, rows: Tensor) -> Tensor:
        source, target = moves.source[rows.cpu()], moves.target[rows.cpu()]
        moved = (source >= 0)[:, None]
        shift = class_means[target.clamp_min(0)] - class_means[source.clamp_min(0)]
        return torch.where(moved, states.cpu().double() + torch.where(moved, shift, 0.0), states.cpu().double()).to(
            states
        )

    return translate


def draw_targets(labels: NDArray[np.int32], seen: NDArray[np.int64], seed: int) -> NDArray[np.int32]:
    """Draw for each example another class, all others with equal probability; -1 for tokens without one.

    `labels` and the result have shape (n_tokens,), -1 for tokens that are not examples. Classes are drawn from `seen`,
    ascending; the result is -1 also where the true class is not in `seen`.
    """
    step = np.random.default_rng([seed, 1]).integers(1, max(len(seen), 2), len(labels))
    index = np.searchsorted(seen, labels).clip(max=len(seen) - 1)
    known = (labels >= 0) & (seen[index] == labels) & (len(seen) > 1)
    return np.where(known, seen[(index + step) % len(seen)], -1).astype(np.int32)


def changed_at(neurons: Sequence[int], replace: ReplaceNeurons, where: Tensor) -> Replace:
    """Return the replacement of some neurons of hidden states at the tokens in `where`, shape (n_tokens,)."""

    def change(states: Tensor, batch: Padded) -> Tensor:
        is_changed = batch.mask & where.to(batch.mask.device)[batch.rows]
        sentence, token = is_changed.nonzero(as_tuple=True)
        at = (sentence[:, None], token[:, None], torch.tensor(list(neurons), device=states.device))
        changed = states.clone()
        changed[at] = replace(states[at], batch.rows[is_changed])
        return changed

    return change


class NeuronPasses(Forward):
    """Passes over a text for each `NeuronSet`.

    `values` returns a layer's values at training tokens, the source of replacements; `is_train` means that `text` is
    their text. `drawn` has the index of the token that replaces each token, shape (n_tokens,), at random by default.
    `moves` are the classes between which tokens are moved, if they are. `batch_tokens` include padding.
    """

    def __init__(
        self, readers: Readers, text: ReadableText, values: Callable[[int], Values], is_train: bool, at: Place,
        batch_tokens: int, seed: int, moves: Moves | None = None, drawn: Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__(readers, text, batch_tokens)
        self.values, self.moves = values, moves
        self.where = torch.from_numpy(changed_tokens(text.tokens, at))
        sentences = text.tokens.sentences
        # For each token of the text, the training token whose values replace its own.
        self.drawn = cache(
            lambda layer: torch.from_numpy(draw_others(sentences, values(layer).sentences, is_train, seed))
            if drawn is None else drawn
        )  # fmt: skip

    def change(self, job: NeuronSet) -> Change:
        """Return the change of the model that replaces the values of these neurons; none for the empty set."""
        if not job.neurons:
            return Change(job.layer)
        replace = self.values(job.layer).replace(job.kind, job.neurons, self.drawn(job.layer), self.moves)
        return Change(job.layer, {job.layer: changed_at(job.neurons, replace, self.where)})
