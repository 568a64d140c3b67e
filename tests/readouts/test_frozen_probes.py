"""Classes read by frozen probes, against loops over examples, and the loss that gradients are of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from probing.cache.tokens import Tokens
from probing.readouts.forward import padded_batches
from probing.readouts.frozen_probes import ProbeReadout, Probes, at_tokens, probe_loss, standing_for
from probing.tasks import SentenceTask, Task
from synthetic import make_tokens

pytestmark = pytest.mark.numeric


@dataclass
class Held:
    tokens: Tokens


class OfPieces(Task):
    pass


class OfWords(Task):
    word_means = True


def vectors_of(task: Task, tokens: Tokens, states: Tensor) -> dict[int, Tensor]:
    """Return the vector of each example, by the row of the token that stands for it, sentence by sentence."""
    found: dict[int, Tensor] = {}
    for i in range(tokens.n_sentences):
        rows = range(tokens.n_tokens)[tokens.of_sentences(i, 1)]
        inside = [row for row in rows if not tokens.special[row]]
        if isinstance(task, SentenceTask):
            found[rows[0] if task.pooling == "cls" else inside[0]] = (
                states[rows[0]] if task.pooling == "cls" else states[inside].mean(0)
            )
            continue
        for row in inside:
            pieces = [other for other in inside if tokens.words[other] == tokens.words[row]]
            found[row] = states[row] if not task.word_means else states[pieces].mean(0)
    return found


@pytest.mark.parametrize(
    "task", [OfPieces(), OfWords(), SentenceTask(), SentenceTask(pooling="cls")],
    ids=["pieces", "words", "sentences", "first tokens"],
)  # fmt: skip
@pytest.mark.parametrize("batch_tokens", [1, 64])
def test_examples_of_every_form_are_counted_as_in_a_loop(task: Any, batch_tokens: int) -> None:
    generator, n_classes = np.random.default_rng(0), 4
    tokens = make_tokens([5, 9, 3, 7, 12, 4])
    # Words of one to three pieces.
    words = np.where(tokens.special, -1, (tokens.positions - 1) // generator.integers(1, 4)).astype(np.int16)
    tokens = Tokens(tokens.lengths, tokens.input_ids, words)
    states = torch.randn(tokens.n_tokens, 6, generator=torch.Generator().manual_seed(1))
    weight = {layer: torch.randn(n_classes, 6, generator=torch.Generator().manual_seed(layer)) for layer in (1, 2)}
    given = generator.integers(-1, n_classes, tokens.n_sentences if isinstance(task, SentenceTask) else tokens.n_tokens)
    labels = at_tokens(task, tokens, given.astype(np.int32))
    if not isinstance(task, SentenceTask):
        labels = np.where(tokens.special | (task.word_means & ~tokens.first_pieces), -1, labels)
    stands = standing_for(task, tokens)
    probes = Probes(
        weight, torch.from_numpy(labels.astype(np.int64)), None if stands is None else torch.from_numpy(stands)
    )
    readout = ProbeReadout(cast(Any, Held(tokens)), probes, torch.device("cpu"), "task")
    reading = readout.begin(readout.layers(1))
    for batch in padded_batches(tokens, batch_tokens, 0, True):
        reading.take({1: states[batch.rows], 2: -2 * states[batch.rows]}, batch)
    expected, n = np.zeros((2, tokens.n_sentences)), np.zeros(tokens.n_sentences)
    for row, vector in vectors_of(task, tokens, states).items():
        if labels[row] < 0:
            continue
        n[tokens.sentences[row]] += 1
        for i, sign in enumerate((1, -2)):
            expected[i, tokens.sentences[row]] += int((weight[i + 1] @ (sign * vector)).argmax()) == labels[row]
    assert n.sum() >= 4
    assert readout.n.tolist() == n.tolist()
    assert reading.sums().tolist() == expected.tolist()


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
