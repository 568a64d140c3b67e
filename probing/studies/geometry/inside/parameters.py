"""Outliers in a model's parameters: its position table, its segment and token embeddings, and its LayerNorms.

Parameters are found by running the model on a few tokens, never by module names: the output of an embedding shows
whether it encodes positions, segments or tokens, and the input and output of a norm show which layer's hidden state it
produces or reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from probing.models.anatomy import Anatomy
from probing.models.examination import run, vectors_given, vectors_in, vectors_of_tokens
from probing.models.residual_stream import is_norm, word_table
from probing.statistics.moments import MEAN_DEVIATIONS

# Length of the token sequence that the model is run on.
_LENGTH = 7


@dataclass(frozen=True)
class Norm:
    """A LayerNorm, or an RMS norm, over the model's width.

    Args:
        module: Name of the module in the model.
        gain: Gain of each neuron, shape (d_model,).
        bias: Bias of each neuron, shape (d_model,); None if it has none.
        layer: Number of the layer whose hidden state the norm produces or, if no norm produces this state, is the first
            to read; None for all other norms.
    """

    module: str
    gain: Tensor
    bias: Tensor | None
    layer: int | None


@dataclass(frozen=True)
class Parameters:
    """The parameters of a model that have one value per neuron.

    Args:
        position_table: Position embeddings, shape (n_rows, d_model); None where positions are relative or rotary, or
            the table has another width and is projected.
        first_row: Row of position 0: 2 for RoBERTa, whose first two rows are never used.
        mean_token: Mean row of the input embedding, shape (d_model,); None if that has another width.
        norms: The norms, in the order of their first call.
        segment_table: Segment embeddings (token types), shape (n_types, d_model); None if there are none of this width.
    """

    position_table: Tensor | None
    first_row: int
    mean_token: Tensor | None
    norms: tuple[Norm, ...]
    segment_table: Tensor | None = None

    @property
    def output_norms(self) -> list[Norm]:
        """The norms that belong to layers from 1 on, at most one per layer; that of the embeddings is left out."""
        return [norm for norm in self.norms if norm.layer]


@torch.inference_mode()
def find_parameters(encoder: nn.Module, anatomy: Anatomy) -> Parameters:
    """Find the parameters of an encoder that have one value per neuron.

    A norm belongs to layer k if it produces that hidden state (BERT: the norm after a block). If no norm produces it,
    the first norm that reads it belongs to layer k (GPT-2: the first norm of the next block). A norm that blocks share
    is listed once, with the first layer it serves.

    Args:
        encoder: The model, in evaluation mode.
        anatomy: Result of `probing.models.anatomy.examine` for it.
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
    others = [one for one in encoder.modules() if isinstance(one, nn.Embedding) and one not in (table, words)]
    handles += [
        one.register_forward_hook(lambda module, _, out: segments.append((module, vectors_in(out)))) for one in others
    ]
    try:
        inputs = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
        output = run(encoder, inputs, output_hidden_states=True)
    finally:
        for handle in handles:
            handle.remove()
    of_layer = _layers_of(calls, output.states)
    embedding: Any = words.weight
    found = [
        Norm(name, _values(norms[name], "weight"), _values(norms[name], "bias"), of_layer.get(name))
        for name in dict.fromkeys(name for name, _, _ in calls)
    ]
    weight = _values(table, "weight") if table is not None and rows else None
    if weight is not None and weight.shape[1] != d_model:
        weight = None
    return Parameters(
        weight,
        0 if weight is None else _first_row(weight, rows[0].float().cpu()),
        embedding.detach().float().mean(0).cpu() if embedding.shape[1] == d_model else None,
        tuple(found),
        next((_values(module, "weight") for module, out in segments if _tells_segments(out, d_model)), None),
    )


def _tells_segments(out: Tensor, d_model: int) -> bool:
    """Return whether an embedding gives all tokens of a single sentence the same vector of the model's width."""
    same = out.reshape(-1, out.shape[-1])
    return out.shape[-1] == d_model and len(same) >= _LENGTH and bool((same == same[0]).all())


def _noting(name: str, calls: list[tuple[str, Tensor, Tensor]]) -> Callable[..., None]:
    """Return a hook that records a module's input and output."""

    def note(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        # What a model pads by itself (Longformer) is not handed out.
        given, made = (vectors_of_tokens(one, _LENGTH) for one in (vectors_given(args, kwargs), out))
        if given is not None and made is not None:
            calls.append((name, given, made))

    return note


def _values(module: nn.Module, name: str) -> Any:
    """Return a parameter in float32; None if the module has none of that name."""
    values = getattr(module, name, None)
    return values.detach().float().cpu() if isinstance(values, Tensor) else None


def _layers_of(calls: Sequence[tuple[str, Tensor, Tensor]], states: Sequence[Tensor]) -> dict[str, int]:
    """Return, for each norm that produces or reads a layer's hidden state, the first such layer's number."""
    found: dict[str, int] = {}
    for layer, state in enumerate(states):
        makers = [name for name, _, out in calls if out.shape == state.shape and torch.equal(out, state)]
        readers = [name for name, given, _ in calls if given.shape == state.shape and torch.equal(given, state)]
        for name in (makers or readers)[:1]:
            found.setdefault(name, layer)
    return found


def _first_row(table: Tensor, rows: Tensor) -> int:
    """Return the row of the table that position 0 was given."""
    first = rows.reshape(-1, rows.shape[-1])[0]
    return int((table == first).all(1).nonzero()[0])


def parameter_rows(parameters: Parameters, neurons: Sequence[int]) -> list[dict[str, Any]]:
    """Return the rank of each neuron in each parameter, as in `parameters.csv`.

    A row has the neuron's value, its rank by signed value (1 is the largest, d_model the smallest), its rank by
    magnitude (1 is the farthest from 0), and its distance from the mean of all neurons in standard deviations
    (`deviations`), with how many neurons are beyond 5 of these (`n_outliers`). Luo, Kulmizev & Mao (2021) do not say
    which of the two ranks they give. Of equal values the lower neuron comes first. Rows of the position table that no
    position uses have no position.

    Args:
        parameters: Parameters of a model.
        neurons: Indices of the neurons.
    """
    return [row for vector, about in _vectors(parameters) for row in _ranks(vector, about, neurons)]


def not_applicable(parameters: Parameters) -> list[str]:
    """Return the kinds of parameters that the model does not have, or not in its own width."""
    kinds = {
        "position table": parameters.position_table is not None,
        "token embedding": parameters.mean_token is not None,
        "LayerNorm": bool(parameters.norms),
        "LayerNorm bias": any(norm.bias is not None for norm in parameters.norms),
    }
    return [name for name, is_there in kinds.items() if not is_there]


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
    """Return the rank of each value, 1 for the largest; of equal values the first has the lower rank."""
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[np.argsort(-values, kind="stable")] = np.arange(1, len(values) + 1)
    return ranks
