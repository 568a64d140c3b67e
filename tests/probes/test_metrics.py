from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, log_loss, mean_absolute_error, recall_score

from probing.probes.linear import ProbeMetrics, SumBy

# Labels with a gap: distances are between labels, not between classes.
CLASSES = torch.tensor([1, 2, 3, 7, 9])
FLOAT32 = 1e-6  # means of 200 values in float32


@pytest.fixture
def tokens() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 5, generator=generator)
    # Class 4 never occurs, though it is predicted.
    return logits, torch.randint(4, (200,), generator=generator), torch.arange(200) // 20


def metrics(
    logits: torch.Tensor, labels: torch.Tensor, sentences: torch.Tensor, *cuts: int, ordinal: bool = True
) -> ProbeMetrics:
    probe = ProbeMetrics(CLASSES, ordinal, 12)
    for at in torch.tensor_split(torch.arange(len(labels)), list(cuts)):
        probe.update(logits[at], labels[at], sentences[at])
    return probe


def test_accuracies_and_cross_entropy_are_those_of_scikit_learn(
    tokens: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    logits, labels, _ = tokens
    found, predicted = metrics(*tokens).compute(), logits.argmax(-1)
    assert found["accuracy"] == pytest.approx(accuracy_score(labels, predicted), abs=FLOAT32)
    # Over the four classes that occur: the fifth, which is only predicted, has no accuracy.
    macro = recall_score(labels, predicted, labels=range(4), average="macro")
    assert found["macro_accuracy"] == pytest.approx(macro, abs=FLOAT32)
    # Over all five: F1 of the fifth is 0.
    assert found["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro"), abs=FLOAT32)
    p = logits.double().softmax(-1).numpy()
    assert found["cross_entropy"] == pytest.approx(log_loss(labels, p, labels=range(5)), abs=FLOAT32)


def test_distances_are_between_labels(tokens: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    logits, labels, _ = tokens
    found, values = metrics(*tokens).compute(), CLASSES.numpy()
    predicted, true = values[logits.argmax(-1)], values[labels]
    assert found["mean_absolute_error"] == pytest.approx(mean_absolute_error(true, predicted), abs=FLOAT32)
    assert found["within_one"] == pytest.approx(np.mean(np.abs(true - predicted) <= 1), abs=FLOAT32)


def test_batches_give_what_one_gives(tokens: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    whole, parts = metrics(*tokens), metrics(*tokens, 1, 50, 120)
    for name, value in whole.compute().items():
        assert parts.compute()[name] == pytest.approx(value, abs=FLOAT32)
    assert torch.equal(whole.correct_by_sentence.compute(), parts.correct_by_sentence.compute())


def test_labels_that_are_no_numbers_have_no_distances(tokens: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    found = metrics(*tokens, ordinal=False).compute()
    assert set(found) == {"accuracy", "macro_accuracy", "macro_f1", "cross_entropy"}


def test_right_tokens_are_counted_by_sentence(tokens: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    logits, labels, sentences = tokens
    found = metrics(*tokens).correct_by_sentence.compute()
    expected = [int(((logits.argmax(-1) == labels) & (sentences == s)).sum()) for s in range(12)]
    assert found.tolist() == expected
    assert expected[10:] == [0, 0]
    assert sum(expected) == round(metrics(*tokens).compute()["accuracy"] * 200)


def test_counts_of_ranks_add_up() -> None:
    one, other = SumBy(3, torch.int64), SumBy(3, torch.int64)
    one.update(torch.tensor([True, False, True]), torch.tensor([0, 0, 2]))
    other.update(torch.tensor([True]), torch.tensor([2]))
    add: Any = one._reductions["total"]
    summed = add(torch.stack([one.total, other.total]))
    assert summed.tolist() == [1, 0, 2]


def test_a_sure_and_right_probe_is_perfect() -> None:
    labels = torch.arange(5).repeat(4)
    found = metrics(50 * torch.eye(5)[labels], labels, labels).compute()
    # cross-entropy: 4 e^-50
    assert found == pytest.approx(
        {
            "accuracy": 1,
            "macro_accuracy": 1,
            "macro_f1": 1,
            "within_one": 1,
            "mean_absolute_error": 0,
            "cross_entropy": 0,
        },
        abs=1e-6,
    )
