"""Retrains probes on a model in which something is disabled, to measure what can still be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache.plan import Plan, divide
from probing.cache.tokens import Tokens
from probing.data.examples import Examples, Sides
from probing.data.sentences import SentenceVectors
from probing.disabling.passes import Passes
from probing.disabling.units import Job, Kind
from probing.probes.recipe import Training
from probing.probes.training import train_probes
from probing.tasks import Labels, SentenceTask, TokenTask

# Maximum number of bytes of hidden states in memory; if all layers need more, passes are repeated for a few layers at a
# time.
MEMORY = 512 * 2**20
_SHARD_TOKENS = 8192


@dataclass(frozen=True)
class Held:
    """A store of some layers' activations in memory.

    Args:
        tokens: The table of tokens.
        states: Hidden states of each layer, shape (n_tokens, d_model).
    """

    tokens: Tokens
    states: Mapping[int, Tensor]

    @property
    def plan(self) -> Plan:
        """The division into shards, and the width."""
        d_model = next(iter(self.states.values())).shape[1]
        return Plan({}, max(self.states), d_model, "float32", 1, divide(self.tokens.lengths, _SHARD_TOKENS))

    def shard_tokens(self, shard: Any) -> slice:
        """Return the shard's rows of the table of tokens."""
        return self.tokens.of_sentences(shard.first_sentence, shard.n_sentences)

    def read(self, layer: int, shard: int, /) -> Tensor:
        """Return the hidden states of a shard, shape (n, d_model)."""
        return self.states[layer][self.shard_tokens(self.plan.shards[shard])]


@dataclass(frozen=True)
class Labelled:
    """Passes over a text, and the class of each of its tokens.

    Args:
        passes: The passes.
        labels: Class of each token that is an example or stands for one, shape (n_tokens,); -1 for others.
        task: The task, which tells what an example's vector is; None if it is the hidden state of its token.
    """

    passes: Passes
    labels: NDArray[np.int32]
    task: TokenTask | None = None

    def examples(self, job: Job, layers: Sequence[int]) -> Examples:
        """Return the examples with the hidden states that they have while something is disabled."""
        held, task = Held(self.passes.tokens, self.passes.states(job, layers)), self.task
        if isinstance(task, SentenceTask):
            # Each sentence has one label at most; the others are -1.
            labels = np.full(held.tokens.n_sentences, -1, dtype=np.int32)
            np.maximum.at(labels, held.tokens.sentences, self.labels)
            return Examples(SentenceVectors(held, task.pooling), labels, pooling=task.pooling)
        return Examples(held, self.labels, word_means=task is not None and task.word_means)


def retrained(
    train: Labelled, test: Labelled, classes: Labels, job: Job, training: Training, layers: Sequence[int]
) -> Tensor:
    """Train a probe of each layer while something is disabled, and test it.

    Args:
        train: Training sentences.
        test: Test sentences.
        classes: The label of each class.
        job: What is disabled.
        training: Settings of the training.
        layers: The layers that are read, at least that of the block that is changed.

    Returns:
        How many test tokens of each sentence are predicted rightly, shape (n_layers, n_sentences), float32.
    """
    right = []
    for some in _in_memory(train, test, layers):
        sides = [part.examples(job, some) for part in (train, test)]
        nothing = replace(sides[0], labels=np.full_like(sides[0].labels, -1))
        ordinal = train.task is None or train.task.ordinal
        fits = train_probes(Sides(sides[0], nothing, sides[1], classes, ordinal), some, training, "retrained")
        right += [fit.correct_by_sentence for fit in fits]
    return torch.from_numpy(np.array(right, dtype=np.float32))


def _in_memory(train: Labelled, test: Labelled, layers: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield the layers in groups whose hidden states are held in memory together."""
    n_tokens = sum(part.passes.tokens.n_tokens for part in (train, test))
    n = max(1, MEMORY // (4 * n_tokens * test.passes.d_model))
    yield from (layers[first : first + n] for first in range(0, len(layers), n))


def chosen_units(jobs: Sequence[Job], effects: Mapping[Job, float], n: int, seed: int) -> list[Job]:
    """Return the heads that cost most when disabled and as many random others, and likewise layers, for one kind.

    Args:
        jobs: The passes that were computed.
        effects: Effect of each on the last layer's probe.
        n: Number of the strongest heads, of the strongest layers, and of random ones of each.
        seed: Seed of the draw.
    """
    generator = np.random.default_rng(seed)
    found: list[Job] = []
    for is_layer in (False, True):
        here = [job for job in jobs if job.kind is not None and (job.head is None) is is_layer]
        kinds: list[Kind | None] = list(dict.fromkeys(job.kind for job in here))
        here = [job for job in here if job.kind == kinds[0]]
        strongest = sorted(here, key=lambda job: effects[job])[:n]
        others = [job for job in here if job not in strongest]
        drawn = generator.permutation(len(others))[:n]
        found += strongest + [others[i] for i in sorted(drawn.tolist())]
    return found
