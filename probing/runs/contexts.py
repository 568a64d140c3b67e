"""Tokens in their context on which a neuron is highest and lowest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from probing.cache.files import cache_folder
from probing.corpus import Corpus
from probing.data.examples import Examples, Sides, read
from probing.errors import UserError
from probing.results.schema import Row
from probing.results.shown import layers_named
from probing.runtime import terminal
from probing.tasks import Labels

if TYPE_CHECKING:
    from probing.runs.run import Run

# In the table of a run: neurons of each layer, by rank, and tokens of each end.
N_NEURONS, N_TOKENS = 10, 5
# Most tokens of each end that can be asked for.
MOST_TOKENS = 10_000
# Most characters before a token and after it, and of a sentence that stands for itself.
AROUND, WHOLE = 40, 120
ENDS = {"highest": 1, "lowest": -1}


def contexts_of(
    examples: Examples, corpus: Corpus, classes: Labels, neurons: Mapping[int, Sequence[int]], n: int
) -> list[dict[str, Any]]:
    """Stream examples once, and return a row per layer, neuron, end and token, as in `contexts.csv`.

    Of equal activations, the token that comes first in the corpus comes first.

    Args:
        examples: The examples, such as the test tokens of a run.
        corpus: The corpus that they are of.
        classes: The label of each class; empty where numbers are predicted.
        neurons: Neurons by layer.
        n: Number of tokens at each end.
    """
    rows = []
    for (layer, end), (values, tokens) in extremes(examples, neurons, n).items():
        for neuron, own_values, own_tokens in zip(neurons[layer], values.T.tolist(), tokens.T.tolist(), strict=True):
            for place, (value, token) in enumerate(zip(own_values, own_tokens, strict=True), start=1):
                label = _label(examples, token, classes)
                about = {"layer": layer, "neuron": neuron, "end": end, "place": place, "activation": value, **label}
                rows.append({**about, **in_context(examples, corpus, token)})
    order = {(layer, neuron): i for layer, own in neurons.items() for i, neuron in enumerate(own)}
    return sorted(rows, key=lambda row: (row["layer"], order[row["layer"], row["neuron"]], row["end"], row["place"]))


def first_contexts(sides: Sides, corpus: Corpus, neurons: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the test tokens on which the first neurons of each layer are highest and lowest, as in `contexts.csv`.

    Args:
        sides: Examples and their classes.
        corpus: The test corpus.
        neurons: Rows of `neurons.csv`.
    """
    first: dict[int, list[int]] = {}
    for row in neurons:
        if row["rank"] <= N_NEURONS:
            first.setdefault(row["layer"], []).append(row["neuron"])
    return contexts_of(sides.test, corpus, sides.classes, first, N_TOKENS)


def of_neuron(run: Run, layer: int, neuron: int, n: int) -> list[dict[str, Any]]:
    """Return the test tokens of a run on which a neuron is highest and lowest, as in `contexts.csv`.

    Raises:
        UserError: If the run has no such layer or neuron, was made from arrays, or its model or corpus has changed.
    """
    from probing.runs.finished import Extraction, open_runs, sides_of, width_of  # `fit` needs no runs of others

    layers, width = run.layers, width_of(run)
    if layer not in layers:
        raise UserError(f"`layer={layer}`: {run.folder} has {layers_named(layers)}.")
    if neuron not in range(width):
        raise UserError(f"`neuron={neuron}`: layer {layer} of {run.folder} has the neurons 0 to {width - 1}.")
    if n not in range(1, MOST_TOKENS + 1):
        raise UserError(f"`n={n}` is not allowed; use a whole number from 1 to {MOST_TOKENS}.")
    with terminal.quiet_libraries():
        (finished,) = open_runs([run], "index")
        cached = cache_folder(run.config["cache"], str(run.folder.parent))
        sides = sides_of(finished, Extraction(cached, {}, terminal.silence, terminal.show_progress(True)))
        return contexts_of(sides.test, finished.corpora[-1], sides.classes, {layer: [neuron]}, n)


def extremes(
    examples: Examples, neurons: Mapping[int, Sequence[int]], n: int
) -> dict[tuple[int, str], tuple[Tensor, Tensor]]:
    """Return the most extreme activations of some neurons, and the rows of their tokens in the store.

    Args:
        examples: The examples.
        neurons: Neurons by layer.
        n: Number of examples at each end.

    Returns:
        By layer and end, values and rows, both of shape (n, n_neurons), the most extreme one first.
    """
    layers = list(neurons)
    kept = {
        (layer, end): (torch.empty(0, len(neurons[layer])), torch.empty(0, len(neurons[layer]), dtype=torch.int64))
        for layer in layers
        for end in ENDS
    }
    for batch in read(examples, layers):
        for layer, states in zip(layers, batch.hidden_states, strict=True):
            own = states[:, list(neurons[layer])].float()
            for end, sign in ENDS.items():
                values, rows = kept[layer, end]
                values = torch.cat([values, own])
                rows = torch.cat([rows, batch.rows[:, None].expand(-1, own.shape[1])])
                first = (sign * values).sort(dim=0, descending=True, stable=True).indices[:n]
                kept[layer, end] = values.gather(0, first), rows.gather(0, first)
    return kept


def _label(examples: Examples, token: int, classes: Labels) -> dict[str, Any]:
    """Return the true class of a token, or its number."""
    if examples.values is not None:
        return {"number": float(examples.values[examples.labels[token]])}
    return {"class": classes.tolist()[examples.labels[token]]}


def in_context(examples: Examples, corpus: Corpus, token: int) -> Row:
    """Return the sentence of a token, its position, its characters and those around it.

    Where examples are sentences, the sentence itself is the token.

    Args:
        examples: The examples.
        corpus: The corpus that they are of.
        token: Row of the token in the store; of a word, that of its first piece.
    """
    tokens = examples.store.tokens
    sentence = int(tokens.sentences[token])
    text = corpus.sentences[sentence]
    if examples.pooling is not None:
        return {"sentence": sentence, "before": "", "token": _shortened(text, WHOLE), "after": ""}
    position = token - int(tokens.offsets[sentence])
    if tokens.spans is None:  # stored by a version that did not note characters
        return {"sentence": sentence, "position": position, "before": "", "token": "", "after": ""}
    start, stop = (int(end) for end in tokens.spans[token])
    if examples.word_means:
        rows = np.arange(token, int(tokens.offsets[sentence + 1]))
        stop = int(tokens.spans[rows[tokens.words[rows] == tokens.words[token]][-1], 1])
    before, after = text[:start], text[stop:]
    return {
        "sentence": sentence, "position": position,
        "before": "…" * (len(before) > AROUND) + before[-AROUND:], "token": text[start:stop],
        "after": _shortened(after, AROUND),
    }  # fmt: skip


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
