"""Whether the penalty that `fit` chooses predicts and ranks better than a fixed one when sentences are few.

    python -m benchmarks.penalties --corpus ewt-train.txt
    python -m benchmarks.penalties --corpus ewt-train.txt --model runs/models/all-mpnet-base-v2 --layers 0,4,8,12

For several numbers of first sentences of a text, chooses a penalty on their validation part as `fit` does, and trains
probes of position under the chosen and under a fixed penalty. Then trains on each half of the training sentences under
both, ranks the neurons by their contribution on the same test tokens, and measures the agreement of the halves. Prints
a Markdown table with a row per size and layer.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from probing.builtin_tasks.position import Position
from scipy.stats import rankdata
from torch import Tensor

from probing.activations import Request, activations
from probing.activations.store import ActivationStore, cache_folder
from probing.cli.options import ProbeOptions
from probing.data.examples import Sides, read
from probing.data.labelling import choose_classes, label, prior_cross_entropy_by_sentence
from probing.data.module import layer_moments
from probing.models import resolve_model
from probing.probes.rankings import MagnitudeAccumulator, mean_contribution
from probing.probes.solvers import Penalty, Problem
from probing.probes.training import choose_penalty, train_problems, training_of
from probing.statistics import neuron_ranks, spearman, top_overlap
from probing.text import Corpus, Split, read_corpora

TOP = 10
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Row:
    """The results for one size and layer.

    Args:
        n_sentences: Number of sentences of all sides.
        n_train_tokens: Number of training examples.
        layer: Layer number.
        l2: The chosen penalty.
        alone: The penalty that would be chosen for this layer alone.
        prior: Test cross-entropy of a constant answer, in nats.
        cross_entropy: Test cross-entropy under the fixed and under the chosen penalty, in nats.
        accuracy: Test accuracy under the two penalties.
        overlap: Share of the first ten neurons that the two halves have in common, under the two penalties.
        spearman: Rank correlation of the two halves over all neurons, under the two penalties.
    """

    n_sentences: int
    n_train_tokens: int
    layer: int
    l2: float
    alone: float
    prior: float
    cross_entropy: tuple[float, float]
    accuracy: tuple[float, float]
    overlap: tuple[float, float]
    spearman: tuple[float, float]


def first_sentences(store: ActivationStore, corpus: Corpus, splits: Sequence[Split], n: int) -> Sides:
    """Return the examples of position in the first n sentences of a corpus."""
    task, some = Position(), [*splits[:n], *["unused"] * (len(splits) - n)]
    classes = choose_classes(store.tokens, corpus, task, some)  # type: ignore[arg-type]
    parts = [label(store, corpus, task, some, classes, side) for side in ("train", "validation", "test")]  # type: ignore[arg-type]
    return Sides(*parts, classes, ordinal=True)


def halves(sides: Sides, seed: int) -> Tensor:
    """Return which sentences belong to each half of the training sentences, shape (2, n_sentences), 0 or 1."""
    draws = torch.zeros(2, sides.train.store.tokens.n_sentences)
    order = np.random.default_rng(seed).permutation(sides.train.sentences())
    for draw, own in zip(draws, np.array_split(order, 2), strict=True):
        draw[torch.from_numpy(own.astype(np.int64))] = 1
    return draws


def compare(sides: Sides, layers: Sequence[int], n_sentences: int, fixed: float, seed: int) -> list[Row]:
    """Return a row per layer: probes and rankings under the fixed and under the chosen penalty."""
    moments = layer_moments(sides.train, layers)
    training = training_of(ProbeOptions(tolerance=TOLERANCE), fixed, seed)
    path = choose_penalty(sides, layers, moments, training)
    draws = [None, *halves(sides, seed)]
    problems = [
        Problem(f"{l2}", i, Penalty(0, l2), start=path.weights[i], draws=drawn)
        for i in range(len(layers))
        for l2 in (fixed, path.chosen)
        for drawn in draws
    ]
    fits = train_problems(sides, layers, moments, problems, training, test=True)
    sums = [MagnitudeAccumulator(own.mean, len(sides.classes)) for own in moments]
    for batch in read(sides.test, layers):
        for own, states in zip(sums, batch.hidden_states, strict=True):
            own.update(states, batch.labels)
    prior = prior_cross_entropy_by_sentence(sides.train, sides.test, len(sides.classes)).sum() / sides.test.n_tokens
    rows = []
    for i, layer in enumerate(layers):
        of_fixed, of_chosen = fits[6 * i : 6 * i + 3], fits[6 * i + 3 : 6 * i + 6]
        agreed = []
        for _, *of_halves in (of_fixed, of_chosen):
            one, other = (mean_contribution(fit.weight, sums[i].result()).numpy() for fit in of_halves)
            overlap = float(top_overlap(neuron_ranks(one), neuron_ranks(other), TOP))
            agreed.append((overlap, float(spearman(rankdata(one), rankdata(other)))))
        both = of_fixed[0].metrics, of_chosen[0].metrics
        rows.append(
            Row(
                n_sentences, sides.train.n_tokens, layer, path.chosen, path.alone[i], float(prior),
                (both[0]["cross_entropy"], both[1]["cross_entropy"]), (both[0]["accuracy"], both[1]["accuracy"]),
                (agreed[0][0], agreed[1][0]), (agreed[0][1], agreed[1][1]),
            )
        )  # fmt: skip
    return rows


HEAD = (
    "sentences", "training tokens", "layer", "l2 chosen (alone)", "constant, nats", "nats", "accuracy",
    f"top {TOP} of halves", "Spearman of halves",
)  # fmt: skip


def report(rows: Sequence[Row], fixed: float) -> str:
    """Return the rows as a Markdown table; each pair is under the fixed penalty, then under the chosen one."""
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    for row in rows:
        pairs = ((row.cross_entropy, 2), (row.accuracy, 3), (row.overlap, 1), (row.spearman, 2))
        cells = [
            str(row.n_sentences), str(row.n_train_tokens), str(row.layer), f"{row.l2:.1e} ({row.alone:.1e})",
            f"{row.prior:.2f}", *(f"{one:.{digits}f}, {other:.{digits}f}" for (one, other), digits in pairs),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    overlap = [row.overlap[1] - row.overlap[0] for row in rows]
    gain = [row.spearman[1] - row.spearman[0] for row in rows]
    return "\n".join([
        *lines,
        "",
        f"Each pair is at {fixed:g}, then at the chosen penalty. Halves share more of their first {TOP} neurons at the "
        f"chosen one in {sum(more > 0 for more in overlap)} of {len(rows)} rows and fewer in "
        f"{sum(more < 0 for more in overlap)}; their rank correlation is higher in {sum(more > 0 for more in gain)}, "
        f"on average by {np.mean(gain):+.3f}.",
    ])  # fmt: skip


def main() -> None:
    """Parse the options, compare size by size, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--corpus", default="builtin")
    parser.add_argument("--layers", default="0,3,6")
    parser.add_argument("--sizes", default="200,500,1000,2000", help="numbers of sentences")
    parser.add_argument("--l2", type=float, default=1e-4, help="the fixed penalty")
    parser.add_argument("--seed", type=int, default=0, help="seed of the split and of the halves")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    for name in ("pytorch_lightning", "pytorch_lightning.utilities.rank_zero", "lightning_fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    layers = [int(layer) for layer in options.layers.split(",")]
    sizes = [int(size) for size in options.sizes.split(",")]
    (corpus,), (splits,) = read_corpora(options.corpus, None, options.seed, print)
    corpus = Corpus(corpus.name, corpus.sentences[: max(sizes)])
    store = activations(Request(resolve_model(options.model), corpus, layers), cache_folder(None), {}, print)
    rows: list[Row] = []
    for size in sizes:
        sides = first_sentences(store, corpus, splits[: max(sizes)], size)
        rows += compare(sides, layers, size, options.l2, options.seed)
        print(f"{options.model}: {size} sentences done", flush=True)
    print(report(rows, options.l2))


if __name__ == "__main__":
    main()
