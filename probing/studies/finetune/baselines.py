"""What is right without a tuned model: the constant answer, and linear probes of static vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.cli.options import ProbeOptions
from probing.data.controls import token_identity
from probing.data.examples import Sides
from probing.data.labelling import load
from probing.models import ModelSource, load_encoder
from probing.probes.transforms import centred
from probing.runs.measuring import Asked, measure
from probing.runtime.machine import Stopwatch
from probing.runtime.terminal import silence
from probing.studies.finetune.examples import Task
from probing.studies.finetune.pair_features import static_pairs
from probing.studies.finetune.tables import BAG, CONSTANT, MAJORITY, SECOND

# Arguments of Lightning's Trainer that say which processes there are.
_OF_PROCESSES = ("accelerator", "devices", "num_nodes", "strategy")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Baseline:
    """What an answer without a tuned model has right.

    Args:
        right: As of `Answers`, shape (n_sentences of the test corpus,).
        predicted: Of numbers, what is predicted of each test example, up to a constant, shape (n_examples,); None of
            classes, and of the constant answer.
    """

    right: Floats
    predicted: Floats | None = None


def baselines(task: Task, source: ModelSource, seed: int, trainer: Mapping[str, Any]) -> dict[str, Baseline]:
    """Return the constant answer, and linear probes with an intercept of the model's own input embeddings.

    These are of the token, or of their mean over the sentence. Of pairs, the features of the means u and v of both
    sentences are [u, v, |u - v|, u * v] (Conneau et al. 2017), and a further probe reads the second sentence alone.

    Args:
        task: What models are tuned on.
        source: The model.
        seed: Seed of the probe's draws.
        trainer: Arguments of Lightning's Trainer.
    """
    test = task.sides.test
    constant = np.zeros(test.store.tokens.n_sentences)
    if task.standard is None:
        most = int(task.sides.train.counts(len(task.classes)).argmax())
        np.add.at(constant, test.store.tokens.sentences[test.labels == most], 1.0)
    encoder = load_encoder(source)
    if task.are_pairs:
        read = {BAG: static_pairs(task.sides, encoder, False), SECOND: static_pairs(task.sides, encoder, True)}
    else:
        read = {BAG: token_identity(task.sides, encoder)}
    return {
        MAJORITY if task.standard is None else CONSTANT: Baseline(constant),
        **{name: _of_probe(sides, seed, trainer) for name, sides in read.items()},
    }


def _of_probe(sides: Sides, seed: int, trainer: Mapping[str, Any]) -> Baseline:
    """Return what a linear probe with an intercept has right of each test sentence."""
    # Without validation examples, no penalty can be chosen.
    probe = ProbeOptions(bias=True) if sides.validation.n_tokens else ProbeOptions(bias=True, l2=1e-4)
    own = {name: value for name, value in trainer.items() if name in _OF_PROCESSES}
    centred_sides, _, _ = centred(sides, {}, [0])
    asked = Asked(0, False, False, "none", seed, ranking=False)
    found = measure(centred_sides, {}, [0], probe, asked, own, Stopwatch(), silence, None, None)
    (fit,) = found.fits
    if sides.numbers:
        weight = fit.weight.numpy()[0]
        predicted = load(centred_sides.test, 0).hidden_states.double().numpy() @ weight
        return Baseline(np.asarray(fit.deviations - fit.errors), predicted)  # type: ignore[union-attr]
    return Baseline(fit.correct_by_sentence.astype(np.float64))  # type: ignore[union-attr]
