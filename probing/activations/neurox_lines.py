"""NeuroX's JSON lines: a sentence a line, with its tokens and the values of each layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.activations.contents import Activations, Columns, First
from probing.errors import UserError
from probing.runtime.files import most_text, open_file, parse_json


def is_of_neurox(path: Path) -> bool:
    """Return whether a file begins like a line of NeuroX."""
    with open_file(path, "r", encoding="utf-8", errors="replace") as file:
        return '"features"' in file.read(1000)


def read_lines(path: Path, first: First | None) -> Activations:
    """Return the activations of NeuroX's JSON lines, which are text and so read whole, in float32.

    Raises:
        UserError: If sentences do not fit together.
        ValueError: If it is damaged.
        OSError: If it cannot be read.
    """
    if first is not None:
        raise UserError(f"`first` does not apply: {path} is of NeuroX, which says which values are of which layer.")
    parts: list[NDArray[np.float32]] = []
    groups: list[int] = []
    tokens: list[str] = []
    layers: list[int] = []
    with open_file(path, "r", most=most_text(), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                sentence, words, there, values = _sentence(parse_json(line))
            except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
                raise UserError(
                    f"{path}: line {number} is no sentence of NeuroX ({type(error).__name__}: {error}); the file is "
                    "damaged or truncated, so copy or write it again."
                ) from None
            if not words:
                continue
            layers = layers or there
            if layers != there or values.shape[1:] != (parts or [values])[0].shape[1:]:
                raise UserError(
                    f"{path}: line {number} has the layers {there} and the width {values.shape[-1]}, and an earlier "
                    f"one {layers} and {parts[0].shape[-1]}: expected the same in all sentences."
                )
            parts.append(values)
            groups += [sentence] * len(words)
            tokens += words
    if not parts:
        raise UserError(f"{path} is empty: it has no tokens.")
    values = np.concatenate(parts)
    columns = Columns({"tokens": lambda: np.array(tokens, dtype=object)})
    by_layer = {layer: np.ascontiguousarray(values[:, place]) for place, layer in enumerate(layers)}
    return Activations(path, "NeuroX (JSON lines)", by_layer, np.array(groups), columns)


def _sentence(line: Any) -> tuple[int, list[str], list[int], NDArray[np.float32]]:
    """Return a sentence's number, its words, its layers and the values, shape (n_words, n_layers, d_model)."""
    features = line["features"]
    layers = [int(layer["index"]) for layer in features[0]["layers"]] if features else []
    for word in features:
        if [layer["index"] for layer in word["layers"]] != layers:
            raise ValueError(f"the token {word['token']!r} has other layers than the first")
    values = np.array([[layer["values"] for layer in word["layers"]] for word in features], dtype=np.float32)
    if features and values.ndim != 3:
        raise ValueError("values have no shape (n_words, n_layers, d_model)")
    return int(line["linex_index"]), [str(word["token"]) for word in features], layers, values
