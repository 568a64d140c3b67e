"""Norms with average parameters of outliers, the first position's row without outliers, and parameters by neuron."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.activations import ActivationStore
from probing.errors import UserError
from probing.interventions.effects import among, tested
from probing.interventions.forward import padded_batches
from probing.interventions.model_output import (
    BATCH_TOKENS,
    MLM_TOKENS,
    PROBE_TOKENS,
    MaskedWords,
    PositionAccuracy,
    Reader,
    SentenceSums,
    choose_masked,
    draw_sentences,
    last_hidden_states,
)
from probing.interventions.parameters import ordinary_row, replaced, zeroed
from probing.models import ModelSource, load_masked_lm
from probing.models.anatomy import Anatomy, examine, hidden_states, word_table
from probing.models.examination import run, vectors_in, vectors_of_tokens, vectors_received
from probing.models.residual_stream import NotPostNorm, find_blocks, is_norm
from probing.probes.transforms import random_neurons
from probing.runtime import give_back_memory
from probing.runtime.progress import counted, note
from probing.statistics import accuracy_interval, mean_interval
from probing.statistics.moments import MEAN_DEVIATIONS, deviations_of
from probing.studies.geometry.inside.smoothing_bound import Summary, constants, measure
from probing.studies.geometry.tables import FIRST_ROW, SMOOTHING_SENTENCES
from probing.text import Corpus
from probing.text.tasks import load_task
from probing.text.tokens import Tokens

Where = Literal["inside", "after", "first", "second", "both", "first_row"]

# Numbers of the norms of a block that are changed.
PLACES: Mapping[Where, tuple[int, ...]] = {"first": (1,), "second": (2,), "both": (1, 2)}

Array = NDArray[np.float64]
Result = TypeVar("Result")


class Seen(NamedTuple):
    """Results of a model in its present state: last hidden states, shape (n_tokens, d_model), float32, and deviations.

    The deviations are of the mean of each neuron, in sd of the layer's neurons, shape (n_layers + 1, d_model).
    """

    last: Tensor
    deviations: Array


@torch.inference_mode()
def see_layers(
    encoder: nn.Module, anatomy: Anatomy, tokens: Tokens, counts: NDArray[np.bool_], pad_token_id: int
) -> Seen:
    """Run a model on sentences, with means over the tokens in the mask `counts`, shape (n_tokens,)."""
    layers, device = range(anatomy.n_layers + 1), next(encoder.parameters()).device
    last, sums = torch.empty(0), torch.empty(0)
    for batch in padded_batches(tokens, BATCH_TOKENS, pad_token_id, anatomy.padding_is_neutral):
        states = hidden_states(encoder, anatomy, layers, **batch.inputs_on(device))
        if not last.numel():
            d_model = states[0].shape[-1]
            last, sums = torch.empty(tokens.n_tokens, d_model), torch.zeros(len(layers), d_model, dtype=torch.float64)
        is_counted = batch.mask & torch.from_numpy(counts)[batch.rows]
        for layer, state in states.items():
            sums[layer] += state.cpu()[is_counted].double().sum(0)
        last[batch.rows[batch.mask]] = states[anatomy.n_layers].float().cpu()[batch.mask]
    return Seen(last, np.stack([deviations_of(mean) for mean in (sums / counts.sum()).numpy()]))


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
    say: Callable[[Condition], None],
) -> dict[Condition, Result]:
    """Measure a model under each condition, after `say`; `read` measures it in its present state."""
    reads: dict[Condition, Result] = {}
    for condition in chosen:
        say(condition)
        with change(condition):
            reads[condition] = read()
        give_back_memory()
    return reads


def intervene(
    norms: Sequence[nn.Module],
    chosen: Sequence[Condition],
    reader: Reader,
    say: Callable[[str], None] = lambda message: None,
) -> list[dict[str, Any]]:
    """Measure the intact model and the model under each condition; return the rows of `interventions.csv`.

    `effect` is the value minus the intact model's, with its paired confidence interval over sentences; the ends are NaN
    for too few sentences. For outliers and largest gains, `percentile` is the percentage of random draws, in the same
    place, that harm less, and `p_value` is (1 + number of draws that harm at least as much) / (1 + number of draws).
    """
    after = [condition for condition in chosen if condition.where == "after"]
    say("the intact model")
    intact, *clipped = reader([(), *(condition.neurons for condition in after)])
    sums_of = dict(zip(after, clipped, strict=True)) | read_under(
        [condition for condition in chosen if condition.where == "inside"],
        lambda condition: zeroed(norms, condition.neurons),
        lambda: reader([()])[0],
        lambda condition: say(f"without {condition.kind.replace('_', ' ')} {condition.draw or ''}".rstrip()),
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
        rows += _compared(about, of, {condition: row["effect"] for condition, row in of.items()}, HARM[name])
    return rows


def _compared(
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


def chosen_conditions(outliers: Sequence[int], d_model: int, n_draws: int, seed: int) -> list[Condition]:
    """Return the conditions: the outliers and as many random others, in each choice of norms."""
    return with_random(PLACES, outliers, d_model, n_draws, np.random.default_rng([seed, 2]))


def change_norms(
    norms: Mapping[int, Sequence[nn.Module]],
    outliers: Mapping[int, Sequence[int]],
    chosen: Sequence[Condition],
    read: Callable[[], tuple[SentenceSums, Array]],
    n_tokens: int,
    say: Callable[[str], None] = lambda message: None,
) -> list[dict[str, Any]]:
    """Measure a model when it is intact and under each condition; return rows of `norm_changes.csv`.

    For each layer and each of its outliers, rows with the measure `deviations` have the distance of the neuron's mean
    from the mean of all neurons, in standard deviations, and whether it is an `outlier` (more than 5); `percentile` is
    the percentage of random draws that reduce this distance less, and `p_value` is by rank. All other rows are as in
    `interventions.csv`. `norms` has the modules of the first and of the second norm of all blocks, by number; `read`
    measures the model in its present state, and also returns `Seen.deviations`, means over `n_tokens`.
    """
    named = {neuron for neurons in outliers.values() for neuron in neurons}

    def ordinary(condition: Condition) -> AbstractContextManager[None]:
        modules = [module for number in PLACES[condition.where] for module in norms[number]]
        return replaced(modules, condition.neurons, _mean_of_others({*named, *condition.neurons}))

    def say_condition(condition: Condition) -> None:
        where = "both norms" if condition.where == "both" else f"the {condition.where} norm"
        say(f"{condition.name} made ordinary in {where}")

    say("the intact model")
    intact, before = read()
    reads = read_under(chosen, ordinary, read, say_condition)
    rows = deviation_rows(outliers, before, {condition: values for condition, (_, values) in reads.items()}, n_tokens)
    return rows + effect_rows(intact, {condition: sums for condition, (sums, _) in reads.items()})


def _mean_of_others(neurons: set[int]) -> Callable[[Tensor], float]:
    """Return a function that averages a parameter over all but these neurons."""

    def mean(parameter: Tensor) -> float:
        others = torch.ones(len(parameter), dtype=torch.bool)
        others[sorted(neurons)] = False
        return float(parameter.cpu()[others].double().mean())

    return mean


def deviation_rows(
    outliers: Mapping[int, Sequence[int]], before: Array, after: Mapping[Condition, Array], n_tokens: int
) -> list[dict[str, Any]]:
    """Return the rows of the distance of each layer's outliers from the other neurons."""
    rows: list[dict[str, Any]] = []
    for layer, neuron in [(layer, neuron) for layer, neurons in sorted(outliers.items()) for neuron in neurons]:
        intact = float(before[layer, neuron])
        about = {"measure": "deviations", "layer": layer, "neuron": neuron, "n_tokens": n_tokens}
        rows.append(about | {"where": "", "kind": "intact"} | _deviation(intact))
        values = {condition: float(of[layer, neuron]) for condition, of in after.items()}
        of = {condition: {**_deviation(value), "effect": value - intact} for condition, value in values.items()}
        rows += _compared(about, of, {condition: abs(value) for condition, value in values.items()}, harm=-1)
    return rows


def _deviation(value: float) -> dict[str, Any]:
    return {"value": value, "outlier": "yes" if abs(value) > MEAN_DEVIATIONS else "no"}


def change_first_row(
    table: nn.Module,
    first_row: int,
    outliers: Mapping[int, Sequence[int]],
    read: Callable[[], Array],
    n_draws: int,
    seed: int,
    n_tokens: int,
    say: Callable[[str], None] = lambda message: None,
) -> list[dict[str, Any]]:
    """Return rows of `first_row.csv`: distances of outliers in the intact model, and without the first row's outliers.

    The columns are among the columns of `norm_changes.csv`. `read` returns the distance of each neuron's mean from the
    others' in each layer of the model in its present state, shape (n_layers + 1, d_model), in standard deviations.
    `first_row` is the row of the first position in `table`; there are `n_draws` draws of as many random neurons.
    """
    named = sorted({neuron for neurons in outliers.values() for neuron in neurons})
    say("the intact model")
    before = read()
    after = read_under(
        with_random(("first_row",), named, before.shape[1], n_draws, np.random.default_rng([seed, 4])),
        lambda condition: ordinary_row(table, first_row, condition.neurons),
        read,
        lambda condition: say(f"the first position's row without its {condition.name}"),
    )
    rows = deviation_rows(outliers, before, after, n_tokens)
    return [{name: cell for name, cell in row.items() if name in FIRST_ROW.types} for row in rows]


# --------------------------------------------------------------------------------------------------------------------
# Outliers in a model's parameters: its position table, its segment and token embeddings, and its LayerNorms.
# --------------------------------------------------------------------------------------------------------------------

# Length of the token sequence that the model is run on.
_LENGTH = 7


@dataclass(frozen=True)
class NormModule:
    """A LayerNorm, or an RMS norm, over the model's width, with gain and bias of shape (d_model,).

    `layer` is the number of the layer whose hidden state the norm produces or, if no norm produces this state, is the
    first to read; None for all other norms.
    """

    module: str
    gain: Tensor
    bias: Tensor | None
    layer: int | None


@dataclass(frozen=True)
class Parameters:
    """The parameters of a model that have one value per neuron, with norms in the order of their first call.

    Args:
        position_table: Position embeddings, shape (n_rows, d_model); None where positions are relative or rotary, or
            the table has another width and is projected.
        first_row: Row of position 0: 2 for RoBERTa, whose first two rows are never used.
        mean_token: Mean row of the input embedding, shape (d_model,); None if the embedding has another width.
        segment_table: Segment embeddings (token types), shape (n_types, d_model); None without any of this width.
    """

    position_table: Tensor | None
    first_row: int
    mean_token: Tensor | None
    norms: tuple[NormModule, ...]
    segment_table: Tensor | None = None

    @property
    def output_norms(self) -> list[NormModule]:
        """The norms that belong to layers from 1 on, at most one per layer; the norm of the embeddings is left out."""
        return [norm for norm in self.norms if norm.layer]


@torch.inference_mode()
def find_parameters(encoder: nn.Module, anatomy: Anatomy) -> Parameters:
    """Return the parameters of an encoder in evaluation mode that have one value per neuron.

    A norm belongs to layer k if it produces that hidden state (BERT: the norm after a block). If no norm produces it,
    the first norm that reads it belongs to layer k (GPT-2: the first norm of the next block). A norm that blocks share
    is listed once, with the first layer it serves.
    """
    config: Any = encoder.config
    d_model, device = int(config.hidden_size), next(encoder.parameters()).device
    first = (getattr(config, "pad_token_id", None) or 0) + 5
    input_ids = (first + torch.arange(_LENGTH, device=device)[None]) % config.vocab_size
    norms = {name: module for name, module in encoder.named_modules() if is_norm(module, d_model)}
    calls: list[tuple[str, Tensor, Tensor]] = []
    rows: list[Any] = []
    handles = [module.register_forward_hook(_noting(name, calls), with_kwargs=True) for name, module in norms.items()]
    table, words, segments = anatomy.position_table, word_table(encoder), list[tuple[nn.Module, Any]]()
    if table is not None:
        handles.append(table.register_forward_hook(lambda _, args, out: rows.append(vectors_in(out))))
    others = [
        module for module in encoder.modules() if isinstance(module, nn.Embedding) and module not in (table, words)
    ]
    handles += [
        module.register_forward_hook(lambda embedder, _, out: segments.append((embedder, vectors_in(out))))
        for module in others
    ]
    try:
        inputs = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
        output = run(encoder, inputs, output_hidden_states=True)
    finally:
        for handle in handles:
            handle.remove()
    of_layer = _layers_of(calls, output.states)
    embedding: Any = words.weight
    block_norms = [
        NormModule(name, _values(norms[name], "weight"), _values(norms[name], "bias"), of_layer.get(name))
        for name in dict.fromkeys(name for name, _, _ in calls)
    ]
    weight = _values(table, "weight") if table is not None and rows else None
    if weight is not None and weight.shape[1] != d_model:
        weight = None
    return Parameters(
        weight,
        0 if weight is None else _first_row(weight, rows[0].float().cpu()),
        embedding.detach().float().mean(0).cpu() if embedding.shape[1] == d_model else None,
        tuple(block_norms),
        next((_values(module, "weight") for module, out in segments if _tells_segments(out, d_model)), None),
    )


def _tells_segments(out: Tensor, d_model: int) -> bool:
    """Check whether an embedding gives all tokens of a sentence the same vector of the model's width."""
    same = out.reshape(-1, out.shape[-1])
    return out.shape[-1] == d_model and len(same) >= _LENGTH and bool((same == same[0]).all())


def _noting(name: str, calls: list[tuple[str, Tensor, Tensor]]) -> Callable[..., None]:
    def note(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        # What a model pads by itself (Longformer) is not handed out.
        inputs, outputs = (vectors_of_tokens(values, _LENGTH) for values in (vectors_received(args, kwargs), out))
        if inputs is not None and outputs is not None:
            calls.append((name, inputs, outputs))

    return note


def _values(module: nn.Module, name: str) -> Any:
    """Return a parameter in float32; None if the module has none of that name."""
    values = getattr(module, name, None)
    return values.detach().float().cpu() if isinstance(values, Tensor) else None


def _layers_of(calls: Sequence[tuple[str, Tensor, Tensor]], states: Sequence[Tensor]) -> dict[str, int]:
    """Return, for each norm that produces or reads a layer's hidden state, the first such layer's number."""
    norm_layers: dict[str, int] = {}
    for layer, state in enumerate(states):
        makers = [name for name, _, out in calls if out.shape == state.shape and torch.equal(out, state)]
        readers = [name for name, inputs, _ in calls if inputs.shape == state.shape and torch.equal(inputs, state)]
        for name in (makers or readers)[:1]:
            norm_layers.setdefault(name, layer)
    return norm_layers


def _first_row(table: Tensor, rows: Tensor) -> int:
    first = rows.reshape(-1, rows.shape[-1])[0]
    return int((table == first).all(1).nonzero()[0])


def parameter_rows(parameters: Parameters, neurons: Sequence[int]) -> list[dict[str, Any]]:
    """Return the ranks of some neurons in each parameter, as in `parameters.csv`.

    A row has the neuron's value, its rank by signed value (1 is the largest, d_model the smallest), its rank by
    magnitude (1 is the farthest from 0), its distance from the mean of all neurons in standard deviations
    (`deviations`), and the number of neurons beyond 5 of these (`n_outliers`). Luo, Kulmizev & Mao (2021) do not
    specify which of the two ranks they report. In a tie the lower neuron comes first. Rows of the position table that
    no position uses have no position.
    """
    return [row for vector, about in _vectors(parameters) for row in _ranks(vector, about, neurons)]


def not_applicable(parameters: Parameters) -> list[str]:
    """Return the kinds of parameters that the model does not have, or not in the width of its hidden states."""
    kinds = {
        "position table": parameters.position_table is not None,
        "token embedding": parameters.mean_token is not None,
        "LayerNorm": bool(parameters.norms),
        "LayerNorm bias": any(norm.bias is not None for norm in parameters.norms),
    }
    return [name for name, exists in kinds.items() if not exists]


def _vectors(parameters: Parameters) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    """Yield each vector over the neurons, with the columns that identify it."""
    if (table := parameters.position_table) is not None:
        for row, vector in enumerate(table):
            position = row - parameters.first_row
            yield vector, {"parameter": "position", "row": row} | ({"position": position} if position >= 0 else {})
    if parameters.segment_table is not None:
        for row, vector in enumerate(parameters.segment_table):
            yield vector, {"parameter": "segment", "row": row}
    if parameters.mean_token is not None:
        yield parameters.mean_token, {"parameter": "mean_token"}
    for norm in parameters.norms:
        about: dict[str, Any] = {"module": norm.module} | ({} if norm.layer is None else {"layer": norm.layer})
        yield norm.gain, {"parameter": "gain", **about}
        if norm.bias is not None:
            yield norm.bias, {"parameter": "bias", **about}


def _ranks(vector: Tensor, about: dict[str, Any], neurons: Sequence[int]) -> Iterator[dict[str, Any]]:
    values = vector.double().numpy()
    signed, absolute = (_ranks_of(key) for key in (values, np.abs(values)))
    sd = values.std()
    n_outliers = int((np.abs(values - values.mean()) > MEAN_DEVIATIONS * sd).sum())
    for neuron in neurons:
        deviations = float((values[neuron] - values.mean()) / sd) if sd > 0 else 0.0
        yield {
            **about,
            "neuron": neuron,
            "value": float(values[neuron]),
            "rank": int(signed[neuron]),
            "absolute_rank": int(absolute[neuron]),
            "deviations": deviations,
            "n_outliers": n_outliers,
        }


def _ranks_of(values: Any) -> Any:
    """Return the rank of each value, 1 for the largest; in a tie the first value has the lower rank."""
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[np.argsort(-values, kind="stable")] = np.arange(1, len(values) + 1)
    return ranks


# --------------------------------------------------------------------------------------------------------------------
# The measurements of `geometry` that run the model itself: `--smoothing_bound` and `--interventions`.
# --------------------------------------------------------------------------------------------------------------------

Say = Callable[[str], None]


def smoothing(
    folder: Path, name: str, encoder: nn.Module, tokenizer: Any, store: ActivationStore, seed: int, say: Say,
) -> list[dict[str, Any]]:  # fmt: skip
    """Measure Theorem 2 of Shi et al. on every sentence, and write the terms of each to `smoothing_sentences.csv`.

    The encoder is in evaluation mode and float32; it keeps the plain implementation of attention afterwards. The
    returned rows of `smoothing.csv` are empty if the theorem does not apply to the model.
    """
    pad_token_id = tokenizer.pad_token_id or 0
    anatomy = examine(encoder, pad_token_id)
    try:
        blocks = find_blocks(encoder, anatomy, pad_token_id)
    except NotPostNorm as reason:
        say(f"--smoothing_bound does not apply to {name}: the theorem is about post-LN blocks, and {reason}")
        return []
    if not blocks:
        say(f"--smoothing_bound does not apply to {name}: it has no blocks")
        return []
    of_blocks = [constants(block) for block in blocks]
    summary, n_shards = Summary(of_blocks, seed), len(store.plan.shards)
    with (folder / "smoothing_sentences.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*SMOOTHING_SENTENCES.types], lineterminator="\n")
        writer.writeheader()
        batches = measure(
            encoder, blocks, of_blocks, store.tokens, store.plan, pad_token_id, anatomy.padding_is_neutral
        )
        with counted("", n_shards) as advance:
            for sentences in batches:
                summary.update(sentences)
                writer.writerows(sentences.rows())
                advance(1)
    return summary.rows()


def interventions(
    source: ModelSource, encoder: nn.Module, tokenizer: Any, store: ActivationStore, corpus: Corpus,
    outliers: Mapping[int, Sequence[int]], trained: bool, n_draws: int, seed: int, say: Say,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return rows of `interventions.csv`: the model's output without outliers, zeroed inside it and clipped after it.

    The encoder, in evaluation mode and float32, is unchanged afterwards. All outliers but the embeddings' are
    removed. Without trained weights, the language-model head is not used. The rows are empty if there are no outliers,
    too many of them, or no norms at the output of blocks.

    Raises:
        UserError: If there are too few sentences for a position probe, where it is needed.
    """
    neurons = sorted({neuron for layer, named in outliers.items() if layer for neuron in named})
    if not neurons:
        say("--interventions: no outlier dimension was found above the embeddings, so none is removed")
        return []
    pad_token_id = tokenizer.pad_token_id or 0
    model = load_masked_lm(source) if trained and tokenizer.mask_token_id is not None else None
    if model is not None:
        encoder = model.base_model  # type: ignore[assignment]
    anatomy = examine(encoder, pad_token_id)
    norms = find_parameters(encoder, anatomy).output_norms
    if not norms or 2 * len(neurons) > len(norms[0].gain):
        say(
            f"--interventions does not apply to {source.name}: "
            + (
                "no norm produces or reads the output of its blocks"
                if not norms
                else f"the {len(neurons)} outliers are more than half of its neurons"
            )
        )
        return []
    modules = [encoder.get_submodule(norm.module) for norm in norms]
    gains = np.mean([norm.gain.abs().double().numpy() for norm in norms], axis=0)
    chosen = conditions(neurons, gains, n_draws, seed)
    reader: MaskedWords | PositionAccuracy | None = masked_words(source, model, encoder, tokenizer, store, seed, say)
    if reader is None:
        tokens, sentences = draw_sentences(store.tokens, PROBE_TOKENS, seed)
        reader = position_reader(
            lambda: last_hidden_states(encoder, anatomy, tokens, pad_token_id), tokens, corpus.subset(sentences),
            "--interventions", source.name, seed,
        )  # fmt: skip
    return intervene(modules, chosen, reader, note)


def masked_words(
    source: ModelSource,
    model: nn.Module | None,
    encoder: nn.Module,
    tokenizer: Any,
    store: ActivationStore,
    seed: int,
    say: Say,
) -> MaskedWords | None:
    """Return the reader of the loss of masked words; None without a usable head, and `say` reports why."""
    if model is None:
        return None
    pad_token_id = tokenizer.pad_token_id or 0
    tokens, _ = draw_sentences(store.tokens, MLM_TOKENS, seed)
    try:
        return MaskedWords(
            model, encoder, tokens, choose_masked(tokens, seed), tokenizer.mask_token_id, pad_token_id,
            examine(encoder, pad_token_id).padding_is_neutral,
        )  # fmt: skip
    except ValueError as reason:
        say(f"the masked-language-model head of {source.name} is not used: {reason}")
        return None


def position_reader(
    states_of: Callable[[], Tensor], tokens: Tokens, corpus: Corpus, option: str, name: str, seed: int
) -> PositionAccuracy:
    """Return the reader of the accuracy of positions from last hidden states, (n_tokens, d_model), of the intact model.

    Raises:
        UserError: If there are too few sentences for a probe.
    """
    try:
        return PositionAccuracy(states_of, tokens, corpus, load_task("position", {}), seed)
    except UserError:
        raise UserError(
            f"`{option}`: {tokens.n_sentences} sentences are too few for the position probe that measures {name}; "
            "give more, or leave the option out."
        ) from None
