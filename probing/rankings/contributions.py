"""Split the logits of a probe into one weight x activation term per neuron: functions from tensors to tensors.

A contribution is W[c, i] * v[i], in logit units. A vector added to every class's weights leaves the
softmax unchanged but changes a ranking, so weights are centred over classes first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from probing.data.examples import Examples, Sides, read_share
from probing.probes.objective import centre_over_classes
from probing.probes.training import LayerFit
from probing.runtime.processes import sum_over_ranks
from probing.statistics.rank_similarity import ranked


def neuron_contributions(weight: Tensor, hidden_states: Tensor) -> Tensor:
    """Split each logit of a probe without an intercept into one signed term per neuron.

    Args:
        weight: Probe weight, shape (n_classes, d_model).
        hidden_states: Activations of one layer, shape (n_tokens, d_model).

    Returns:
        Shape (n_tokens, n_classes, d_model), in logit units; the sum over the last axis is the
        logit of the weight centred over classes.

    Raises:
        ValueError: If the two disagree about d_model; the message shows both shapes.
    """
    if weight.shape[-1] != hidden_states.shape[-1]:
        raise ValueError(
            f"weight {tuple(weight.shape)} and hidden_states {tuple(hidden_states.shape)} differ in d_model"
        )
    return centre_over_classes(weight) * hidden_states[:, None, :]


@dataclass(frozen=True)
class ClassMagnitudes:
    """How large each neuron is on the tokens of each class; mean contributions need no other statistic.

    Args:
        counts: Tokens of each class, shape (n_classes,), float64.
        magnitude: Sum over the class's tokens of |v|, shape (n_classes, d_model), float64.
        deviation: Sum over the class's tokens of |v - mean|, where the mean is taken over the training tokens; shape
            (n_classes, d_model), float64.
    """

    counts: Tensor
    magnitude: Tensor
    deviation: Tensor


class MagnitudeAccumulator:
    """Accumulate class magnitudes from batches of one layer; no tensor of (n_tokens, n_classes, d_model) is made.

    Args:
        mean: Mean of each neuron over the training tokens, shape (d_model,).
        n_classes: Number of classes.
    """

    def __init__(self, mean: Tensor, n_classes: int) -> None:
        self.mean = mean
        self.counts = torch.zeros(n_classes, dtype=torch.float64)
        self.magnitude = torch.zeros(n_classes, len(mean), dtype=torch.float64)
        self.deviation = torch.zeros_like(self.magnitude)

    def update(self, hidden_states: Tensor, labels: Tensor) -> None:
        """Add tokens, shapes (n, d_model) and (n,); tokens labelled -1 are ignored."""
        kept = labels >= 0
        states, classes = hidden_states[kept].double(), labels[kept]
        self.counts += classes.bincount(minlength=len(self.counts))
        self.magnitude.index_add_(0, classes, states.abs())
        self.deviation.index_add_(0, classes, (states - self.mean).abs_())

    def all_reduce(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
        """All-reduce the sums over processes.

        Args:
            sum_over_ranks: Returns the sum of a tensor over all processes.
        """
        self.counts = sum_over_ranks(self.counts)
        self.magnitude, self.deviation = sum_over_ranks(self.magnitude), sum_over_ranks(self.deviation)

    def result(self) -> ClassMagnitudes:
        """Return the accumulated sums."""
        return ClassMagnitudes(self.counts, self.magnitude, self.deviation)


def class_magnitudes(
    examples: Examples, layers: Sequence[int], means: Sequence[Tensor], n_classes: int | None
) -> list[ClassMagnitudes]:
    """Stream examples, divided among ranks, and return the class magnitudes of each layer.

    Args:
        examples: The examples.
        layers: Layer numbers.
        means: Mean of each layer's neurons over the training tokens, shape (d_model,).
        n_classes: Number of classes; None where numbers are predicted, of which a probe has one logit, the prediction.
    """
    found = [MagnitudeAccumulator(mean, n_classes or 1) for mean in means]
    for batch in read_share(examples, layers):
        labels = torch.zeros_like(batch.labels) if n_classes is None else batch.labels
        for sums, states in zip(found, batch.hidden_states, strict=True):
            sums.update(states, labels)
    for sums in found:
        sums.all_reduce(sum_over_ranks)
    return [sums.result() for sums in found]


def class_contributions(weight: Tensor, sums: ClassMagnitudes) -> Tensor:
    """Return the mean of |W[c, i] * v[i]| over the tokens of each class c; it is 0 for a class without tokens.

    Args:
        weight: Probe weight, shape (n_classes, d_model).
        sums: Class magnitudes of the same layer.

    Returns:
        Shape (n_classes, d_model), in logit units, float64.
    """
    return centre_over_classes(weight.double()).abs() * sums.magnitude / sums.counts.clamp(min=1)[:, None]


def mean_contribution(weight: Tensor, sums: ClassMagnitudes, centred: bool = False) -> Tensor:
    """Return the mean over tokens of |W[y, i] * v[i]|, y the token's true class (Luo et al. 2021, section 3.3).

    Args:
        weight: Probe weight, shape (n_classes, d_model).
        sums: Class magnitudes of the same layer.
        centred: Use v[i] - mean(v[i]) instead of v[i].

    Returns:
        Shape (d_model,), in logit units, float64.
    """
    size = sums.deviation if centred else sums.magnitude
    return (centre_over_classes(weight.double()).abs() * size).sum(0) / sums.counts.sum().clamp(min=1)


def sentence_contributions(weight: Tensor, hidden_states: Tensor, labels: Tensor, rows: Tensor, out: Tensor) -> None:
    """Add to each sentence's row the sum over its tokens of |W[y, i] * v[i]|.

    Args:
        weight: Probe weight, shape (n_classes, d_model).
        hidden_states: Activations of the tokens, shape (n, d_model).
        labels: Class of each token, shape (n,).
        rows: Row of `out` that belongs to each token's sentence, shape (n,).
        out: The sums, shape (n_sentences, d_model), float64; changed in place.
    """
    sizes = centre_over_classes(weight.double()).abs()
    out.index_add_(0, rows, sizes[labels] * hidden_states.double().abs())


# Neurons of each class in the table; `contributions.safetensors` has all.
MOST = 20


def class_rows(layer: int, weight: Tensor, sums: ClassMagnitudes, classes: Sequence[Any]) -> list[dict[str, Any]]:
    """Return a row per class and neuron among its first `MOST`, as in `classes.csv`; classes without tokens have none.

    Args:
        layer: Layer number.
        weight: Probe weight on raw hidden states, shape (n_classes, d_model).
        sums: Class magnitudes of the test tokens.
        classes: The label of each class.
    """
    contribution, centred = class_contributions(weight, sums), centre_over_classes(weight.double())
    totals, n_tokens = contribution.sum(1).tolist(), sums.counts.int().tolist()
    return [
        {
            "layer": layer, "class": label, "n_test_tokens": n_tokens[c], "rank": rank, "neuron": neuron,
            "contribution": float(contribution[c, neuron]),
            "share": float(contribution[c, neuron]) / totals[c] if totals[c] else 0.0,
            "weight": float(centred[c, neuron]),
        }
        for c, label in enumerate(classes)
        if n_tokens[c]
        for rank, neuron in ranked(contribution[c].numpy())[:MOST]
    ]  # fmt: skip


def control_task_shares(draws: Sequence[Sides], fits: Sequence[Sequence[LayerFit]]) -> list[Tensor]:
    """Return each neuron's share of the contributions to probes of a control task, the mean over its draws.

    A neuron whose share is as large there as in the probe of the task itself tells words apart rather than classes: of
    accuracy, that is the selectivity of Hewitt & Liang (2019).

    Args:
        draws: Examples with the labels of each draw, of the same tokens.
        fits: The probe of each layer, for each draw.

    Returns:
        For each layer a tensor of shape (d_model,), float64.
    """
    labels = [torch.from_numpy(sides.test.labels).long() for sides in draws]
    found = []
    for of_layer in zip(*fits, strict=True):
        sums = [MagnitudeAccumulator(fit.moments.mean, fit.weight.shape[0]) for fit in of_layer]
        for batch in read_share(draws[0].test, [of_layer[0].layer]):
            for own, of_draw in zip(sums, labels, strict=True):
                own.update(batch.hidden_states[0], of_draw[batch.rows])
        shares = []
        for own, fit in zip(sums, of_layer, strict=True):
            own.all_reduce(sum_over_ranks)
            contribution = mean_contribution(fit.weight, own.result())
            shares.append(contribution / contribution.sum().clamp(min=1e-300))
        found.append(torch.stack(shares).mean(0))
    return found
