"""How much removing neurons flatters the first ones because the same test sentences rank them and measure the loss.

    python -m benchmarks.crossed_removal runs/A --layer 6

A ranking is made on one half of a run's test sentences, and the loss without each of its first ten neurons, of probes
retrained without it, is measured on the same half and on the other one; in each of `SPLITS` random halves, both ways.
Prints the mean loss on both, and by how much the same half exceeds the other one. docs/notes/evidence.md has what was
seen.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from probing.data.examples import Examples, Sides, read
from probing.probes.retraining import REMOVED, cross_entropy_by_sentence
from probing.probes.training import train_probes
from probing.probes.transforms import with_neurons
from probing.runs.finished import RunExtraction, open_runs, sides_of, trained_as
from probing.runs.places import cache_of
from probing.runs.run import Run, load_fit
from probing.runtime import quiet_libraries

SPLITS = 50
# Neurons that are retrained without: so many that the first ten of a half are among them.
N_RETRAINED = 30


def contributions_by_sentence(test: Examples, layer: int, weight: torch.Tensor) -> NDArray[np.float64]:
    """Return the sum of |W[y, i] v[i]| over the test tokens of each sentence, shape (n_sentences, d_model)."""
    sums = torch.zeros(test.store.tokens.n_sentences, weight.shape[1], dtype=torch.float64)
    for batch in read(test, [layer]):
        sums.index_add_(0, batch.sentences, (weight[batch.labels] * batch.hidden_states[0]).abs().double())
    return sums.numpy()


def losses_without(run: Run, all_sides: Sides, layer: int, neurons: list[int]) -> NDArray[np.float64]:
    """Return the cross-entropy of each sentence with all neurons, then without each; (1 + n_neurons, n_sentences)."""
    training, width = trained_as(run), all_sides.train.store.plan.d_model
    losses = []
    for removed in [None, *neurons]:
        others = [i for i in range(width) if i != removed]
        sides = with_neurons(all_sides, {layer: others})
        (fit,) = train_probes(sides, [layer], training)
        losses.append(cross_entropy_by_sentence(sides.test, layer, [fit.weight])[0])
    return np.stack(losses)


def same_and_other(
    contributions: NDArray[np.float64], increase: NDArray[np.float64], n_tokens: NDArray[np.int64], seed: int
) -> NDArray[np.float64]:
    """Return the mean loss of the first neurons of each half: on the same half, and on the other one; shape (2, 2).

    Args:
        contributions: Summed contributions of the neurons that probes were retrained without, (n_sentences, n_neurons).
        increase: Summed increase of the cross-entropy without each, shape (n_neurons, n_sentences).
        n_tokens: Number of test tokens of each sentence, shape (n_sentences,).
        seed: Seed of the halves.
    """
    half = np.random.default_rng(seed).permutation(len(n_tokens)) % 2 == 0
    effects = [increase[:, part].sum(1) / n_tokens[part].sum() for part in (half, ~half)]
    first = [np.argsort(-contributions[part].sum(0))[:REMOVED] for part in (half, ~half)]
    return np.array([[effects[i][first[i]].mean(), effects[1 - i][first[i]].mean()] for i in (0, 1)])


def main() -> int:
    """Measure a finished run, and print a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a finished `fit`")
    parser.add_argument("--layer", type=int, required=True)
    options = parser.parse_args()
    run = load_fit(options.run)
    with quiet_libraries():
        (finished,) = open_runs([run], "index")
        sides = sides_of(finished, RunExtraction(cache_of(run, None), {}, print))
        weight = run.weight[run.layers.index(options.layer)]
        by_sentence = contributions_by_sentence(sides.test, options.layer, weight)
        neurons = np.argsort(-by_sentence.sum(0))[:N_RETRAINED].tolist()
        losses = losses_without(run, sides, options.layer, neurons)
    n_tokens = sides.test.tokens_by_sentence()
    tested = n_tokens > 0
    increase = (losses[1:] - losses[0])[:, tested]
    both = np.stack([
        same_and_other(by_sentence[tested][:, neurons], increase, n_tokens[tested], seed) for seed in range(SPLITS)
    ])  # fmt: skip
    same, other = both.mean((0, 1))
    excess = both[..., 0].mean(1) / both[..., 1].mean(1) - 1
    print(
        f"layer {options.layer}: the first {REMOVED} neurons of a half lose {same:.5f} nats on it and {other:.5f} on "
        f"the other half: {same / other - 1:+.1%} (90% of {SPLITS} splits within {np.quantile(excess, 0.05):+.1%} to "
        f"{np.quantile(excess, 0.95):+.1%}); {int(tested.sum())} sentences"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
