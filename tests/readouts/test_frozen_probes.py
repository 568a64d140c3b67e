"""Positions read by frozen probes: the loss that gradients are of."""

from __future__ import annotations

import pytest
import torch

from probing.readouts.frozen_probes import probe_loss


def test_the_loss_of_a_sentence_is_the_mean_over_its_own_examples() -> None:
    generator = torch.Generator().manual_seed(0)
    states, weight = torch.randn(3, 4, 6, generator=generator), torch.randn(5, 6, generator=generator)
    labels = torch.tensor([[0, 3, -1, 4], [-1, -1, 2, -1], [-1, -1, -1, -1]])
    found = probe_loss(weight, labels)(states)
    for sentence, loss in enumerate(found.tolist()):
        nats = [
            -float((weight @ states[sentence, token]).softmax(0)[label].log())
            for token, label in enumerate(labels[sentence].tolist()) if label >= 0
        ]  # fmt: skip
        assert loss == pytest.approx(sum(nats) / max(len(nats), 1), rel=1e-5)
