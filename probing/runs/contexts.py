"""Tokens in their context on which a neuron is highest and lowest."""

from __future__ import annotations

from typing import Any

import numpy as np

from probing.corpus import Corpus
from probing.data.examples import Examples
from probing.evidence.neuron_profiles import Extremes
from probing.results.schema import Row
from probing.tasks import Labels

# Most characters before a token and after it, and of a sentence that stands for itself.
AROUND, WHOLE = 40, 120


def contexts_of(extremes: Extremes, examples: Examples, corpus: Corpus, classes: Labels) -> list[dict[str, Any]]:
    """Return a row per layer, neuron, end and token, as in `contexts.csv`.

    Args:
        extremes: The most extreme activations.
        examples: The examples that they are of, such as the test tokens of a run.
        corpus: The corpus that these are of.
        classes: The label of each class; empty where numbers are predicted.
    """
    rows = []
    for (layer, end), (values, tokens) in extremes.found.items():
        columns = zip(extremes.neurons[layer], values.T.tolist(), tokens.T.tolist(), strict=True)
        for neuron, own_values, own_tokens in columns:
            for place, (value, token) in enumerate(zip(own_values, own_tokens, strict=True), start=1):
                label = _label(examples, token, classes)
                about = {"layer": layer, "neuron": neuron, "end": end, "place": place, "activation": value, **label}
                rows.append({**about, **in_context(examples, corpus, token)})
    order = {(layer, neuron): i for layer, own in extremes.neurons.items() for i, neuron in enumerate(own)}
    return sorted(rows, key=lambda row: (row["layer"], order[row["layer"], row["neuron"]], row["end"], row["place"]))


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
