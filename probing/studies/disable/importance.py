"""Importance of heads by gradients (Michel et al. 2019, section 4.1), for the loss of a readout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.cache.store import batches
from probing.models.examination import run, vectors_given, with_vectors
from probing.readouts.forward import Loss, Readout, padded
from probing.readouts.later_blocks import Change, LaterBlocks
from probing.statistics.intervals import mean_interval


def head_gradients(
    model: LaterBlocks, inputs: Mapping[str, Tensor], loss: Loss, changes: Mapping[int, Change] | None = None
) -> Tensor:
    """Return the gradient of each sentence's loss with respect to a factor, equal to 1, of each head's output.

    There is one factor for each sentence and head, so that the gradients of different sentences are not added up.

    Args:
        model: The model.
        inputs: `input_ids` and `attention_mask`, shape (batch, sequence).
        loss: The loss of each sentence.
        changes: Changes, during the pass, of what the output projections of some blocks receive, as `LaterBlocks.run`
            takes them.

    Returns:
        Shape (n_layers, batch, heads).
    """
    heads, device = model.heads, inputs["input_ids"].device
    assert heads.projections is not None  # checked by `LaterBlocks.of`
    assert model.anatomy.blocks is not None  # likewise
    dtype = next(model.encoder.parameters()).dtype
    factors = [
        torch.ones(len(inputs["input_ids"]), heads.n_heads, dtype=dtype, device=device, requires_grad=True)
        for _ in range(heads.n_layers)
    ]
    number = 0  # of the block that is running
    done: set[int] = set()

    def begin(module: nn.Module, args: Any) -> None:
        nonlocal number
        number += 1

    def project(module: nn.Module, args: Any, kwargs: Any) -> Any:
        if number in done or module is not projections[number - 1]:
            return None
        done.add(number)
        whole: Any = vectors_given(args, kwargs)
        of_heads = whole[..., : model.width].unflatten(-1, (heads.n_heads, heads.d_head))
        scaled = of_heads * factors[number - 1][:, None, :, None]
        given = torch.cat([scaled.flatten(-2), whole[..., model.width :]], dim=-1)
        return with_vectors(args, kwargs, changes[number](given) if changes and number in changes else given)

    projections = [model.encoder.get_submodule(name) for name in heads.projections]
    with ExitStack() as hooks, torch.inference_mode(False), torch.enable_grad():
        for block in dict.fromkeys(model.anatomy.blocks):
            hooks.callback(block.register_forward_pre_hook(begin).remove)
        for projection in dict.fromkeys(projections):
            hooks.callback(projection.register_forward_pre_hook(project, with_kwargs=True).remove)
        states = run(model.encoder, inputs).last
        return torch.stack(torch.autograd.grad(loss(states).sum(), factors))


def importance(
    model: LaterBlocks, pad_token_id: int, readout: Readout, batch_tokens: int,
    changes: Mapping[int, Change] | None = None,
) -> Tensor:  # fmt: skip
    """Return how much the loss of each item of a readout changes with each head: dL/dfactor, with its sign.

    Args:
        model: The model.
        pad_token_id: Id of the padding token.
        readout: What is read.
        batch_tokens: Most tokens in a batch, padding included.
        changes: What is changed meanwhile, as `head_gradients` takes it.

    Returns:
        Shape (n_items, n_layers, heads), float32.
    """
    device = next(model.encoder.parameters()).device
    found = torch.zeros(len(readout.n), model.heads.n_layers, model.heads.n_heads)
    tokens, (sentences, items) = readout.text.tokens, readout.occurrences
    for some in batches(tokens.lengths[sentences], batch_tokens, model.anatomy.padding_is_neutral):
        batch = padded(tokens, sentences[some], pad_token_id, device)
        gradients = head_gradients(model, batch.inputs, readout.loss(batch, some), changes)
        found.index_add_(0, torch.from_numpy(items[some]), gradients.float().cpu().transpose(0, 1))
    return found


def importance_rows(
    found: NDArray[np.float32], n_examples: NDArray[np.int64], blocks: Sequence[int], layer: int, readout: str
) -> list[dict[str, Any]]:
    """Return the rows of `importance.csv`: the mean over items with its 95% interval, and normalised by layer.

    `normalised` is the mean divided by the Euclidean norm of the means of all heads of the layer, as Michel et al.
    report it.

    Args:
        found: Absolute gradient of each item, such as a sentence, shape (n_items, n_layers, heads).
        n_examples: Number of examples of each sentence, shape (n_sentences,); those without any do not count.
        blocks: The blocks to report.
        layer: The layer from which the loss is computed.
        readout: What was read.
    """
    counts = (n_examples > 0).astype(np.int64)
    means = found.astype(np.float64)[counts > 0].mean(0)
    norms = np.linalg.norm(means, axis=1)
    rows = []
    for block in blocks:
        for head in range(found.shape[2]):
            sums = found[:, block - 1, head].astype(np.float64) * counts
            low, high = mean_interval(sums, counts)
            mean, norm = float(means[block - 1, head]), float(norms[block - 1])
            rows.append({
                "unit": f"{block}-{head + 1}", "readout": readout, "layer": layer, "importance": mean, "low": low,
                "high": high, "normalised": mean / norm if norm else 0.0, "n": int(counts.sum()),
            })  # fmt: skip
    return rows
