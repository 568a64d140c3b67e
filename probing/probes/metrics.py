"""Metrics of a probe on the test tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torchmetrics import MeanAbsoluteError, MeanMetric, Metric

from probing.runtime.arithmetic import float64_device, to_float64
from probing.runtime.processes import are_several


class SumBy(Metric):
    """Sums a value of each test token, such as being right, by its class or by its sentence of the corpus.

    Args:
        n_groups: Number of classes or of sentences.
        dtype: Dtype of the sums.
    """

    total: Tensor
    higher_is_better = None
    full_state_update = False

    def __init__(self, n_groups: int, dtype: torch.dtype) -> None:
        super().__init__(distributed_available_fn=are_several)
        self.add_state("total", torch.zeros(n_groups, dtype=dtype), dist_reduce_fx="sum")

    def update(self, values: Tensor, groups: Tensor) -> None:
        """Add tokens: the value and the group's index of each, both of shape (n,)."""
        device = self.total.device
        self.total.index_add_(0, groups.to(device), values.to(device).to(self.total.dtype))

    def compute(self) -> Tensor:
        """Return the sums, shape (n_groups,)."""
        return self.total

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = ()) -> nn.Module:
        """Move to a device, but leave sums in float64 on the processor if the device has no float64."""
        device = fn(torch.zeros(0)).device
        stays = self.total.dtype == torch.float64 and float64_device(device) != device
        return super()._apply(fn, ("total",) if stays else exclude_state)


class ProbeMetrics(nn.Module):
    """The metrics of one probe.

    Args:
        classes: The label of each class.
        ordinal: Whether labels are numbers, so that distances between labels are meaningful.
        n_sentences: Number of sentences of the test corpus, for the sums by sentence; None for none.
    """

    def __init__(self, classes: Tensor, ordinal: bool, n_sentences: int | None) -> None:
        super().__init__()
        self.register_buffer("classes", classes, persistent=False)
        self.tokens_by_class, self.predicted_by_class, self.correct_by_class = (
            SumBy(len(classes), torch.int64) for _ in range(3)
        )
        # A training that diverges must not look finite.
        self.cross_entropy = MeanMetric(nan_strategy="disable", distributed_available_fn=are_several)
        if n_sentences is not None:
            self.correct_by_sentence = SumBy(n_sentences, torch.int64)
            self.cross_entropy_by_sentence = SumBy(n_sentences, torch.float64)
        if ordinal:
            self.within_one = MeanMetric(distributed_available_fn=are_several)
            self.mean_absolute_error = MeanAbsoluteError(distributed_available_fn=are_several)

    def update(self, logits: Tensor, labels: Tensor, sentences: Tensor) -> None:
        """Add tokens: logits of shape (n, n_classes), labels and sentences of shape (n,)."""
        predicted = logits.argmax(-1)
        is_correct = predicted == labels
        self.tokens_by_class.update(torch.ones_like(labels), labels)
        self.predicted_by_class.update(torch.ones_like(labels), predicted)
        self.correct_by_class.update(is_correct, labels)
        cross_entropy = nn.functional.cross_entropy(logits, labels, reduction="none")
        self.cross_entropy.update(cross_entropy)
        if hasattr(self, "correct_by_sentence"):
            self.cross_entropy_by_sentence.update(cross_entropy, sentences)
            self.correct_by_sentence.update(is_correct, sentences)
        if hasattr(self, "within_one"):
            values = cast(Tensor, self.classes).float()
            distance = (values[predicted] - values[labels]).abs()
            self.within_one.update((distance <= 1).float())
            self.mean_absolute_error.update(values[predicted], values[labels])

    def by_sentence(self, name: Literal["correct", "cross_entropy"]) -> NDArray[Any]:
        """Return the number of tokens predicted rightly, or the cross-entropy in nats, summed by sentence."""
        sums = getattr(self, f"{name}_by_sentence").compute()
        values: NDArray[Any] = sums.cpu().numpy().reshape(-1)  # `compute()` squeezes a single sum to a scalar
        return values

    def compute(self) -> dict[str, float]:
        """Return each metric by name: accuracies as fractions, cross-entropy in nats.

        `macro_accuracy` is the mean over the classes that have test tokens. `macro_f1` is the mean of
        F1 = 2 n_right / (n_tokens + n_predicted) over these and those that are predicted, as in scikit-learn.
        """
        counts = self.correct_by_class, self.tokens_by_class, self.predicted_by_class
        correct, n_tokens, n_predicted = (to_float64(sums.compute()).reshape(-1) for sums in counts)
        there, known = n_tokens > 0, n_tokens + n_predicted > 0
        found = {
            "accuracy": float(correct.sum() / n_tokens.sum()),
            "macro_accuracy": float((correct[there] / n_tokens[there]).mean()),
            "macro_f1": float((2 * correct[known] / (n_tokens + n_predicted)[known]).mean()),
        }
        names = ("within_one", "mean_absolute_error", "cross_entropy")
        return found | {name: float(getattr(self, name).compute()) for name in names if hasattr(self, name)}
