"""Sets of neurons that are changed together, drawn sets for comparison, and effects paired by sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.data.module import shuffled_labels
from probing.heads.position_controls import matched_sets, random_sets
from probing.interventions import ReadoutUnit, measure_of
from probing.interventions.forward import (
    Forward,
    LaterBlocks,
    Padded,
    ReadableText,
    Readers,
    ReadText,
    SentenceReader,
    draw_others,
)
from probing.interventions.frozen_probes import PositionHead, means
from probing.interventions.subject import tested
from probing.probes.transforms import Eraser, ErasureAccumulator
from probing.statistics.chance import percentile_of, rank_p
from probing.statistics.label_scores import LabelCodes
from probing.text.tokens import Tokens

Kind = Literal["mean", "zero", "resample", "direction", "shuffled", "translate", "interchange"]
Source = Literal["chosen", "random", "matched"]

KINDS: tuple[Kind, ...] = ("mean", "zero", "resample", "direction", "shuffled", "translate")
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
    kind: Kind
    neurons: tuple[int, ...]
    source: Source = "chosen"
    draw: int = 0

    @property
    def k(self) -> int:
        """Number of neurons."""
        return len(self.neurons)


def sizes_up_to(n: int) -> list[int]:
    """Return the numbers of neurons of a dose curve, ascending, up to all n."""
    return [*(k for k in _STEPS if k < n), n]


def chosen_sets(layer: int, ranked: Sequence[int], kinds: Sequence[Kind], d_model: int) -> list[NeuronSet]:
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


Rows = list[dict[str, Any]]
Sums = NDArray[np.float64]
DRAWN: tuple[Source, ...] = ("random", "matched")


@dataclass(frozen=True)
class EffectRow:
    """Description of one row of the results of a pass; `named` are further columns.

    The layer of a head is the layer of its block. `n` is the number of examples of each item, or another divisor of its
    sum, shape (n_items,).
    """

    readout: str
    layer: int
    n: NDArray[Any]
    named: Mapping[str, Any]

    @property
    def measure(self) -> ReadoutUnit:
        """Unit of the readout."""
        return measure_of(self.readout)


def effect_rows(
    results: Mapping[NeuronSet, Sums],
    drawn: Mapping[NeuronSet, Sums],
    lines: Sequence[EffectRow],
    part: NDArray[np.int64],
) -> tuple[Rows, Rows]:
    """Return the rows of both tables for the sets of one layer.

    `effect` is the measure minus its value in the intact model, paired by item. Drawn sets may be read on a part of the
    items, given by index, and the chosen sets are then compared with them on this part: `random_percentile` is the
    percentage of random sets that harm less, and `random_p` is the share of sets, among the random ones and the set
    itself, that harm at least as much. `results`, which include the empty set, have shape (n_lines, n_items); `drawn`
    have (n_lines, n_items of the part).
    """
    (intact,) = (sums for neuron_set, sums in results.items() if not neuron_set.k)
    rows: Rows = []
    draws: Rows = []
    for neuron_set, sums in results.items():
        if not neuron_set.k:
            continue
        others = {
            source: [sums for other, sums in drawn.items() if _is_comparable(other, neuron_set, source)]
            for source in DRAWN
        }  # fmt: skip
        for i, line in enumerate(lines):
            if not (total := line.n.sum()):
                continue
            named = {
                "changed_layer": neuron_set.layer, "kind": neuron_set.kind, "k": neuron_set.k, "readout": line.readout,
                "layer": line.layer, **line.named,
            }  # fmt: skip
            test_columns = tested(sums[i], intact[i], line.n, line.measure.is_share)
            test_columns.pop("p_value")
            values = {"intact": float(intact[i].sum() / total), "value": float(sums[i].sum() / total)}
            row = {**named, "neurons": " ".join(map(str, neuron_set.neurons)), **values, **test_columns}
            on_part = _effect(sums[i][part], intact[i][part], line.n[part])
            draws.append({**named, "set": "chosen", "draw": 0, "effect": on_part})
            for source, drawn_sums in others.items():
                effects = [_effect(other[i], intact[i][part], line.n[part]) for other in drawn_sums]
                draws += [
                    {**named, "set": source, "draw": draw, "effect": effect}
                    for draw, effect in enumerate(effects, start=1)
                ]
                row |= beside(source, on_part, np.array(effects), -line.measure.sign)
            rows.append(row)
    return rows, draws


def _is_comparable(other: NeuronSet, neuron_set: NeuronSet, source: Source) -> bool:
    return other.source == source and (other.layer, other.kind, other.k) == (
        neuron_set.layer,
        neuron_set.kind,
        neuron_set.k,
    )


def _effect(sums: Sums, intact: Sums, n: NDArray[Any]) -> float:
    return float((sums - intact).sum() / total) if (total := n.sum()) else 0.0


def beside(source: str, effect: float, others: NDArray[np.float64], harm: int) -> dict[str, float]:
    """Return the columns, prefixed `source`, that compare an effect with drawn sets; `harm` is the sign of a loss."""
    if not len(others):
        return {}
    return {
        source: float(others.mean()), f"{source}_lowest": float(others.min()), f"{source}_highest": float(others.max()),
        f"{source}_percentile": percentile_of(harm * effect, harm * others),
        f"{source}_p": rank_p(harm * effect, harm * others),
    }  # fmt: skip


# --------------------------------------------------------------------------------------------------------------------
# Replacement values for neurons of the residual stream, from training tokens, and the change of a model by them.
# --------------------------------------------------------------------------------------------------------------------

Place = Literal["words", "everywhere"]
# Takes values of the neurons at some tokens, shape (n, k), and the rows of these tokens, shape (n,); returns others.
Replace = Callable[[Tensor, Tensor], Tensor]


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

    def replace(self, kind: Kind, neurons: Sequence[int], drawn: Tensor, moves: Moves | None = None) -> Replace:
        """Return the function that replaces the values of some neurons.

        `translate` adds the difference of two class means, mean(target) - mean(source), to the neurons at each token of
        an example: h + alpha (mean(target) - mean(source)) of Antverg & Belinkov (2022, section 5) with alpha = 1 for
        all changed neurons, so that the mean of a class moves to the mean of the other; it needs `moves`. `drawn` has
        for each token of the text the index of the training token that replaces it, shape (n_tokens,).

        Raises:
            ValueError: If this kind replaces nothing, or needs classes and there are none.
        """
        columns = list(neurons)
        if not columns:
            return lambda states, rows: states
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


def _translation(class_means: Tensor, moves: Moves) -> Replace:
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


@dataclass(frozen=True, eq=False)
class NeuronsChanged:
    """A change of some neurons of a layer at the tokens in `where`, shape (n_tokens,); empty if nothing is changed."""

    layer: int
    neurons: Sequence[int]
    replace: Replace
    where: Tensor

    def later(
        self, model: LaterBlocks, batch: Padded, beside: Any, states: Tensor, layers: Sequence[int]
    ) -> Mapping[int, Tensor]:
        """Return the hidden states of some layers, this one included if requested, while neurons are changed."""
        return model.run(batch.inputs, self.layer + 1, self.changed(states, batch), beside, layers)

    def changed(self, states: Tensor, batch: Padded) -> Tensor:
        """Return the changed hidden states of the layer; the input stays unchanged."""
        if not len(self.neurons):
            return states
        is_changed, columns = batch.mask & self.where.to(batch.mask.device)[batch.rows], list(self.neurons)
        sentence, token = is_changed.nonzero(as_tuple=True)
        at = (sentence[:, None], token[:, None], torch.tensor(columns, device=states.device))
        changed = states.clone()
        changed[at] = self.replace(states[at], batch.rows[is_changed])
        return changed


class NeuronReadout(Protocol):
    """A readout of later layers: a `probing.interventions.forward.Readout`, or one with several rows for a layer."""

    def layers(self, block: int) -> list[int]:
        """Return the layers whose hidden states are needed when this block is the first that is changed."""
        ...

    def begin(self, layers: Sequence[int]) -> SentenceReader:
        """Begin a reading of these layers."""
        ...


class NeuronPasses:
    """Passes of the later blocks of a model over a text, one for each set of neurons.

    `values` returns a layer's values at training tokens, the source of replacements; `is_train` means that `text` is
    their text. `drawn` has the index of the token that replaces each token, shape (n_tokens,), at random by default.
    `moves` are the classes between which tokens are moved, if they are. `batch_tokens` include padding.
    """

    def __init__(
        self, readers: Readers, text: ReadableText, values: Callable[[int], Values], is_train: bool, at: Place,
        batch_tokens: int, seed: int, moves: Moves | None = None, drawn: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.moves = moves
        self.forward, self.values = Forward(readers, text, batch_tokens), values
        self.tokens = text.tokens
        self.d_model = int(readers.model.encoder.config.hidden_size)  # type: ignore[union-attr,arg-type]
        self.where = torch.from_numpy(changed_tokens(text.tokens, at))
        sentences = text.tokens.sentences
        # For each token of the text, the training token whose values replace its own.
        self.drawn = cache(
            lambda layer: torch.from_numpy(draw_others(sentences, values(layer).sentences, is_train, seed))
            if drawn is None else drawn
        )  # fmt: skip

    def change(self, neuron_set: NeuronSet) -> NeuronsChanged:
        """Return the change of the model that replaces the values of these neurons."""
        replace = self.values(neuron_set.layer).replace(
            neuron_set.kind, neuron_set.neurons, self.drawn(neuron_set.layer), self.moves
        )
        return NeuronsChanged(neuron_set.layer, neuron_set.neurons, replace, self.where)

    def run(self, neuron_set: NeuronSet, reads: Sequence[NeuronReadout]) -> Tensor:
        """Return the results of all readouts of this text, stacked, shape (n_rows, n_items)."""
        change = self.change(neuron_set)
        needed = [read.layers(neuron_set.layer + 1) for read in reads]
        readings = [read.begin(layers) for read, layers in zip(reads, needed, strict=True)]
        every = sorted({layer for layers in needed for layer in layers})

        def take(model: LaterBlocks, batch: Padded, beside: Any, states: Tensor) -> None:
            layer_states: Mapping[int, Tensor] = change.later(model, batch, beside, states, every)
            for reading in readings:
                reading.take(layer_states, batch)

        self.forward.over(neuron_set.layer, take)
        return torch.cat([reading.sums().double() for reading in readings])

    def states(self, neuron_set: NeuronSet, layers: Sequence[int]) -> dict[int, Tensor]:
        """Return the states of some layers while neurons are changed, shape (n_tokens, d_model), float32."""
        return self.forward.states(self.change(neuron_set), layers)


# --------------------------------------------------------------------------------------------------------------------
# What is asked of a survey of changed neurons, and what it found.
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NeuronConfig:
    """Settings of the changes of neurons, ranked by layer, and of the readouts.

    `n_tokens` is the maximum of the read text, and of the training sentences. `n_draws` is the number of random sets,
    and of matched ones, for each size; for `n_retrained` of the largest size, probes are retrained. `task_name` is None
    for position.
    """

    ranked: Mapping[int, Sequence[int]]
    kinds: Sequence[Kind]
    at: Place
    n_tokens: int
    n_draws: int
    n_retrained: int
    seed: int
    task_name: str | None = None


@dataclass(frozen=True)
class NeuronTables:
    """The rows of `neuron_interventions.csv` and `neuron_draws.csv`, and the texts, heads and tasks behind them.

    Drawn sets were read on `part`. `read` has the origin of each task's probes: `run`, or `here` if they were trained
    for this. `erased` is the task whose classes were erased, or between which examples were moved, if any. Neurons were
    exchanged in `n_pairs`; `n_excluded` pairs cannot be read token by token.
    """

    interventions: Rows
    draws: Rows
    text: ReadableText
    part: ReadableText
    heads: Sequence[PositionHead]
    read: Mapping[str, str]
    erased: str | None
    n_pairs: int = 0
    n_excluded: int = 0

    @property
    def summary(self) -> dict[str, Any]:
        """Entries for `results.json`."""
        return {
            "n_sentences": self.text.tokens.n_sentences, "n_tokens": self.text.tokens.n_tokens,
            "n_drawn_sentences": self.part.tokens.n_sentences, "n_drawn_tokens": self.part.tokens.n_tokens,
            "position_heads": [vars(head) for head in self.heads], "probes": dict(self.read), "classes_of": self.erased,
            **({"n_pairs": self.n_pairs, "n_left_out": self.n_excluded} if self.n_pairs else {}),
        }  # fmt: skip
