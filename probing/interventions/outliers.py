"""Outliers that are taken out of a model's norms or of its output, beside random neurons, and what the model loses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.activations import ActivationStore
from probing.errors import UserError
from probing.interventions.model_output import (
    MLM_TOKENS,
    PROBE_TOKENS,
    MaskedWords,
    PositionAccuracy,
    Reader,
    SentenceSums,
    choose_masked,
    draw_sentences,
    states_of_layer,
)
from probing.interventions.parameters import zeroed
from probing.interventions.passes import Rows, among, tested
from probing.models import ModelSource, load_masked_lm
from probing.models.anatomy import examine
from probing.models.residual_stream import find_parameters
from probing.probes.outliers import SpecialTokens
from probing.probes.transforms import random_neurons
from probing.runtime import give_back_memory
from probing.runtime.progress import note
from probing.statistics import accuracy_interval, mean_interval
from probing.text import Corpus
from probing.text.tasks import load_task
from probing.text.tokens import Tokens

Array = NDArray[np.float64]
Result = TypeVar("Result")

Where = Literal["inside", "after", "first", "second", "both", "first_row"]


@dataclass(frozen=True)
class Condition:
    """Neurons that are changed, and where.

    Args:
        where: `inside`: in every LayerNorm after a block; `after`: in the last hidden states only. For parameters set
            to averages: in the `first` norm of every block, the `second`, or `both`; or in the position table's row of
            the first position (`first_row`).
        kind: Method by which the neurons were chosen.
        neurons: Indices, ascending.
        draw: Number of the random draw, from 1; 0 if the neurons are not random.
    """

    where: Where
    kind: Literal["outliers", "largest_gain", "random"]
    neurons: tuple[int, ...]
    draw: int = 0

    @property
    def name(self) -> str:
        """Name in messages."""
        return f"random neurons {self.draw}" if self.kind == "random" else self.kind.replace("_", " ")


def with_random(
    places: Iterable[Where], outliers: Sequence[int], d_model: int, n_draws: int, generator: np.random.Generator
) -> list[Condition]:
    """Return the conditions of each place: the outliers, and as many random others, the same in all places."""
    drawn = [tuple(random_neurons(d_model, len(outliers), outliers, generator)) for _ in range(n_draws)]
    return [
        condition
        for where in places
        for condition in (
            Condition(where, "outliers", tuple(outliers)),
            *(Condition(where, "random", neurons, draw) for draw, neurons in enumerate(drawn, start=1)),
        )
    ]


def conditions(outliers: Sequence[int], gains: Array, n_draws: int, seed: int) -> list[Condition]:
    """Return the conditions to compare: outliers, as many other neurons with the largest gains, and random neurons.

    The outliers are at most half of all neurons. `gains` is the mean magnitude of each neuron's gain over the norms,
    shape (d_model,).

    Raises:
        ValueError: If there are no outliers, or too many to draw as many others.
    """
    named = sorted(set(outliers))
    others = np.setdiff1d(np.arange(len(gains)), named)
    if not 0 < len(named) <= len(others):
        raise ValueError(f"{len(named)} outliers of {len(gains)} neurons")
    chosen = with_random(("inside", "after"), named, len(gains), n_draws, np.random.default_rng(seed))
    largest = others[np.argsort(-gains[others], kind="stable")[: len(named)]]
    return [chosen[0], Condition("inside", "largest_gain", tuple(sorted(largest.tolist()))), *chosen[1:]]


def read_under(
    chosen: Iterable[Condition],
    change: Callable[[Condition], AbstractContextManager[None]],
    read: Callable[[], Result],
    words: Callable[[Condition], str],
) -> dict[Condition, Result]:
    """Measure a model under each condition, which is noted in `words`; `read` measures it in its present state."""
    reads: dict[Condition, Result] = {}
    for condition in chosen:
        note(words(condition))
        with change(condition):
            reads[condition] = read()
        give_back_memory()
    return reads


def intervene(norms: Sequence[nn.Module], chosen: Sequence[Condition], reader: Reader) -> list[dict[str, Any]]:
    """Measure the intact model and the model under each condition; return the rows of `interventions.csv`.

    `effect` is the value minus the intact model's, with its paired confidence interval over sentences; the ends are NaN
    for too few sentences. For outliers and largest gains, `percentile` is the percentage of random draws, in the same
    place, that harm less, and `p_value` is (1 + number of draws that harm at least as much) / (1 + number of draws).
    """
    after = [condition for condition in chosen if condition.where == "after"]
    note("the intact model")
    intact, *clipped = reader([(), *(condition.neurons for condition in after)])
    sums_of = dict(zip(after, clipped, strict=True)) | read_under(
        [condition for condition in chosen if condition.where == "inside"],
        lambda condition: zeroed(norms, condition.neurons),
        lambda: reader([()])[0],
        lambda condition: f"without {condition.kind.replace('_', ' ')} {condition.draw or ''}".rstrip(),
    )
    return effect_rows(intact, {condition: sums_of[condition] for condition in chosen})


# Sign that makes a change of the measure positive where the model gets worse.
HARM = {"mlm_loss": 1, "position_accuracy": -1, "position_accuracy_retrained": -1}


# Measures that are means of numbers; the others are shares of tokens.
MEANS = {"mlm_loss"}


def effect_rows(intact: SentenceSums, sums_of: Mapping[Condition, SentenceSums]) -> list[dict[str, Any]]:
    """Return a row for the intact model and for each condition, measure by measure; see `intervene`."""
    rows = []
    for name, n_tokens in intact.n_tokens.items():
        of = {condition: _effect(name, intact, read) for condition, read in sums_of.items()}
        about: dict[str, Any] = {"measure": name, "n_tokens": int(n_tokens.sum())}
        rows.append(about | {"where": "", "kind": "intact"} | _value(name, intact))
        rows += condition_rows(about, of, {condition: row["effect"] for condition, row in of.items()}, HARM[name])
    return rows


def condition_rows(
    about: dict[str, Any], of: Mapping[Condition, Mapping[str, Any]], effects: Mapping[Condition, float], harm: int
) -> Iterator[dict[str, Any]]:
    """Yield the row of each condition with its columns in `of`, and its effect among those of random neurons."""
    for condition, columns in of.items():
        neurons = " ".join(map(str, condition.neurons))
        row = about | {"where": condition.where, "kind": condition.kind, "neurons": neurons} | dict(columns)
        if condition.kind == "random":
            row["draw"] = condition.draw
        else:
            random = [e for c, e in effects.items() if (c.where, c.kind) == (condition.where, "random")]
            row |= among(effects[condition], random, harm)
        yield row


def _value(name: str, read: SentenceSums) -> dict[str, float]:
    sums, n_tokens = read.sums[name], read.n_tokens[name]
    low, high = (mean_interval if name in MEANS else accuracy_interval)(sums, n_tokens)
    return {"value": float(sums.sum() / n_tokens.sum()), "low": low, "high": high}


def _effect(name: str, intact: SentenceSums, read: SentenceSums) -> dict[str, float]:
    effect = tested(read.sums[name], intact.sums[name], intact.n_tokens[name], name not in MEANS)
    return _value(name, read) | {
        "effect": effect["effect"], "effect_low": effect["low"], "effect_high": effect["high"]
    }  # fmt: skip


@dataclass(frozen=True)
class OutlierModel:
    """A model whose outliers are changed, and the text that it reads, sampled from the sentences of `store`.

    The encoder, in evaluation mode and float32, is unchanged after each measurement. `outliers` are by layer.
    `special_tokens` is for means of hidden states. Without trained weights, the language-model head is not used.
    """

    source: ModelSource
    encoder: nn.Module
    tokenizer: Any
    store: ActivationStore
    corpus: Corpus
    outliers: Mapping[int, Sequence[int]]
    special_tokens: SpecialTokens
    is_trained: bool
    n_draws: int
    seed: int
    say: Callable[[str], None]

    @property
    def pad_token_id(self) -> int:
        """The padding token id; 0 if the tokenizer has none."""
        return self.tokenizer.pad_token_id or 0

    @property
    def changed(self) -> dict[int, list[int]]:
        """The outliers above the embeddings, in each layer that has any."""
        return {layer: list(neurons) for layer, neurons in self.outliers.items() if layer and neurons}

    @property
    def neurons(self) -> list[int]:
        """All of these neurons, ascending."""
        return sorted({neuron for neurons in self.changed.values() for neuron in neurons})

    def with_head(self) -> tuple[nn.Module | None, Any]:
        """Return the model with its masked-language-model head, None without one, and the encoder that is read."""
        has_mask = self.is_trained and self.tokenizer.mask_token_id is not None
        model = load_masked_lm(self.source) if has_mask else None
        return model, self.encoder if model is None else model.base_model

    def masked_words(self, model: nn.Module | None, encoder: nn.Module) -> MaskedWords | None:
        """Return the reader of the loss of masked words; None without a usable head, and `say` reports why."""
        if model is None:
            return None
        tokens, _ = draw_sentences(self.store.tokens, MLM_TOKENS, self.seed)
        try:
            return MaskedWords(
                model, encoder, tokens, choose_masked(tokens, self.seed), self.tokenizer.mask_token_id,
                self.pad_token_id, examine(encoder, self.pad_token_id).padding_is_neutral,
            )  # fmt: skip
        except ValueError as reason:
            self.say(f"the masked-language-model head of {self.source.name} is not used: {reason}")
            return None

    def positions(
        self, states_of: Callable[[], Tensor], tokens: Tokens, sentences: Sequence[int], option: str
    ) -> PositionAccuracy:
        """Return the reader of the accuracy of positions in some sentences from the intact model's last hidden states.

        Raises:
            UserError: If there are too few sentences for a probe.
        """
        try:
            of_text = tokens, self.corpus.subset(sentences)
            return PositionAccuracy(states_of, *of_text, load_task("position", {}), self.seed)
        except UserError:
            raise UserError(
                f"`{option}`: {tokens.n_sentences} sentences are too few for the position probe that measures "
                f"{self.source.name}; give more, or leave the option out."
            ) from None


def ablate_outliers(of: OutlierModel) -> Rows:
    """Return rows of `interventions.csv`: the model's output without outliers, zeroed inside it and clipped after it.

    All outliers but those of the embeddings are removed. The rows are empty if there are no outliers, too many of them,
    or no norms at the output of blocks.

    Raises:
        UserError: If there are too few sentences for a position probe, where it is needed.
    """
    if not (neurons := of.neurons):
        of.say("--neurons outliers: no outlier dimension was found above the embeddings, so none is ablated")
        return []
    model, encoder = of.with_head()
    anatomy = examine(encoder, of.pad_token_id)
    norms = find_parameters(encoder, anatomy).output_norms
    if not norms or 2 * len(neurons) > len(norms[0].gain):
        why = f"the {len(neurons)} outliers are more than half of its neurons"
        why = why if norms else "no norm produces or reads the output of its blocks"
        of.say(f"--neurons outliers does not apply to {of.source.name}: {why}")
        return []
    modules = [encoder.get_submodule(norm.module) for norm in norms]
    gains = np.mean([norm.gain.abs().double().numpy() for norm in norms], axis=0)
    reader: MaskedWords | PositionAccuracy | None = of.masked_words(model, encoder)
    if reader is None:
        tokens, sentences = draw_sentences(of.store.tokens, PROBE_TOKENS, of.seed)
        reader = of.positions(
            lambda: states_of_layer(encoder, anatomy, tokens, of.pad_token_id, anatomy.n_layers), tokens, sentences,
            "--neurons outliers",
        )  # fmt: skip
    return intervene(modules, conditions(neurons, gains, of.n_draws, of.seed), reader)
