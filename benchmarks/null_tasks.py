"""How often `compare` finds agreement between tasks with meaningless labels, by today's null and by the former one.

    python benchmarks/null_tasks.py --classes 8 --labels word_type --pairs 20
    python benchmarks/null_tasks.py --classes 8 --labels word_type --pairs 20 --l2 auto   # as `fit` does by default

Every task gives each token, or each word type (Hewitt & Liang 2019), a random class. Its neurons are ranked, and ranked
again under shuffled labels, by the project's own functions; each task is then compared with the next one as `compare`
compares two runs of one model. P-values against shuffled labels are reported beside those of the former null, in which
scores are permuted among neurons.

Prints rows of a Markdown table; `docs/notes/rankings.md` shows the results.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from probing.builtin_tasks.position import Position
from scipy.stats import binomtest

from probing.activations import ActivationStore, Request, activations
from probing.activations.store import cache_folder
from probing.cli.options import ProbeOptions
from probing.data.examples import Examples, Sides, read
from probing.data.labelling import label_sides
from probing.data.module import layer_moments, token_types
from probing.models import resolve_model
from probing.probes.agreement import STATISTICS, agreement
from probing.probes.pairs import CrossMoments, Ranked, Readings, compare_pair, cross_moments
from probing.probes.rankings import MagnitudeAccumulator, mean_contribution, null_rankings
from probing.probes.solvers import Penalty
from probing.probes.training import LayerFit, Lbfgs, Training, penalised, train_probes
from probing.studies.compare.recipes import Common, top_everywhere
from probing.text import read_corpora

Kind = Literal["token", "word_type"]

ALPHA = 0.05
TOP = 10


@dataclass(frozen=True)
class Found:
    """The result of comparing two tasks.

    Args:
        p_values: P-values against shuffled labels of each pair of layers, by statistic, shape (n_pairs,).
        corrected: These p-values, corrected for the number of pairs.
        exchanged: P-values where scores are permuted among neurons, uncorrected.
        values: Values of the statistics.
        chance: Means of the statistics under shuffled labels.
        common: Neurons in the top of both tasks, over all layers.
    """

    p_values: dict[str, NDArray[np.float64]]
    corrected: dict[str, NDArray[np.float64]]
    exchanged: dict[str, NDArray[np.float64]]
    values: dict[str, NDArray[np.float64]]
    chance: dict[str, NDArray[np.float64]]
    common: Common


def random_task(sides: Sides, kind: Kind, n_classes: int, seed: int) -> Sides:
    """Return the same examples with a random class for each token or each word type."""
    generator = np.random.default_rng(seed)
    types = np.unique(token_types(sides.train.store.tokens), return_inverse=True)[1]
    drawn = generator.integers(n_classes, size=len(types) if kind == "token" else types.max() + 1)
    labels = drawn if kind == "token" else drawn[types]

    def relabel(examples: Examples) -> Examples:
        return replace(examples, labels=np.where(examples.labels >= 0, labels, -1).astype(np.int32))

    return replace(sides.each(relabel), classes=np.arange(n_classes), ordinal=False)


def ranked(sides: Sides, layers: Sequence[int], training: Training, n_draws: int, seed: int) -> Ranked:
    """Rank the neurons of a task, and rank them again under shuffled labels."""
    scores = np.stack([_scores(fit, sides) for fit in train_probes(sides, layers, training)])
    shuffled = null_rankings(sides, layers, training, n_draws, seed)
    # Intervals over sentences are not needed, so the scores themselves replace the resampled ones.
    return Ranked(f"task {seed}", layers, scores, np.stack([scores, scores], 1), shuffled=shuffled)


def _scores(fit: LayerFit, sides: Sides) -> NDArray[np.float64]:
    sums = MagnitudeAccumulator(fit.moments.mean, len(sides.classes))
    for batch in read(sides.test, [fit.layer]):
        sums.update(batch.hidden_states[0], batch.labels)
    return mean_contribution(fit.weight, sums.result()).numpy()


def compared(a: Ranked, b: Ranked, moments: tuple[CrossMoments, CrossMoments]) -> Found:
    """Compare two tasks as `compare` does, and by its former null."""
    k = min(TOP, a.d_model)
    pair = compare_pair(a, b, moments, "index", "one_to_one", k, 0)

    def column(statistic: str, name: str) -> NDArray[np.float64]:
        return np.array([row[name] for row in pair.rows if row["statistic"] == statistic])

    before = [agreement(one, other, k=k) for one in a.scores for other in b.scores]
    exchanged = {name: np.array([cell[i].p_value for cell in before]) for i, name in enumerate(STATISTICS)}
    p_values, corrected, values, chance = (
        {name: column(name, what) for name in STATISTICS} for what in ("p_uncorrected", "p_value", "value", "chance")
    )
    return Found(p_values, corrected, exchanged, values, chance, top_everywhere([a, b], {1: pair}, k))


def pairs(
    sides: Sides, layers: Sequence[int], kind: Kind, n_classes: int, n: int, n_draws: int, seed: int,
    l2: float | Literal["auto"] = 1e-4,
) -> Iterator[Found]:  # fmt: skip
    """Yield the comparison of each of n tasks with the next one, and of the last with the first.

    With the penalty `auto`, each task has its own, chosen on validation sentences, and its probes have the tolerance of
    `fit`.
    """
    store = sides.train.store
    assert isinstance(store, ActivationStore)
    readings = Readings(store, store.tokens, layers)
    moments, first = cross_moments(readings, readings), None
    for i in range(n):
        labelled = random_task(sides, kind, n_classes, seed + i)
        if l2 == "auto":
            moments_of = layer_moments(labelled.train, layers)
            training = penalised(ProbeOptions(), 0, labelled, layers, moments_of, {})[1]
        else:
            training = Training(Penalty(0, l2), Lbfgs(1e-3))
        task = ranked(labelled, layers, training, n_draws, seed + i)
        if first is None:
            first = last = task
        else:
            yield compared(last, task, moments)
            last = task
    if first is not None and n > 2:
        yield compared(last, first, moments)


def report(found: Sequence[Found], kind: Kind, n_classes: int) -> str:
    """Return a row of the table for each statistic that is shown."""
    lines = []
    for name in ("overlap", "spearman"):
        cells = {
            what: np.concatenate([getattr(one, what)[name] for one in found])
            for what in ("values", "chance", "exchanged", "p_values")
        }
        any_corrected = [bool((one.corrected[name] <= ALPHA).any()) for one in found]
        lines.append(
            f"| {n_classes} by {kind.replace('_', ' ')} | {name} | {cells['values'].mean():.2f} | "
            f"{cells['chance'].mean():.2f} | {_share(cells['exchanged'] <= ALPHA)} | "
            f"{_share(cells['p_values'] <= ALPHA)} | {sum(any_corrected)} of {len(found)} |"
        )
    shared = sum(len(one.common.rows) for one in found)
    beyond = sum(row["p_value"] <= ALPHA for one in found for row in one.common.rows)
    by_chance = sum(one.common.chance.mean for one in found if one.common.chance)
    return "\n".join([
        *lines,
        f"<!-- {n_classes} by {kind}: {shared} neurons at both tops, {by_chance:.0f} by shuffled labels, {beyond} at "
        f"p <= {ALPHA} -->",
    ])  # fmt: skip


def _share(small: NDArray[np.bool_]) -> str:
    low, high = binomtest(int(small.sum()), len(small)).proportion_ci(method="exact")
    return f"{small.mean():.1%} ({low:.1%} to {high:.1%})"


HEAD = (
    "| labels | statistic | agreement | by shuffled labels | p <= .05, scores exchanged | p <= .05, shuffled labels | "
    "pairs of tasks with a corrected p <= .05 |\n|---|---|---|---|---|---|---|"
)


def real_sides(model: str, layers: Sequence[int], n_sentences: int, say: Callable[[str], None]) -> Sides:
    """Return the tokens of the first sentences of the built-in corpus, with a model's activations."""
    (corpus,), (splits,) = read_corpora("builtin", None, 0, say)
    corpus = replace(corpus, sentences=corpus.sentences[:n_sentences])
    splits = splits[:n_sentences]
    store = activations(Request(resolve_model(model), corpus, list(layers)), cache_folder(None), {}, say)
    return label_sides([store], [corpus], [splits], Position())


def main() -> None:
    """Parse the options, compare the tasks, print the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--layers", default="0,3,6")
    parser.add_argument("--sentences", type=int, default=500, help="first sentences of the built-in corpus")
    parser.add_argument("--classes", type=int, default=8)
    parser.add_argument("--labels", choices=["token", "word_type"], default="token", help="unit that shares a class")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--draws", type=int, default=19)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first task; later tasks add 1 each")
    parser.add_argument("--l2", default="1e-4", help="penalty, or auto: chosen for each task as `fit` does")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    for name in ("pytorch_lightning", "pytorch_lightning.utilities.rank_zero", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    layers = [int(layer) for layer in options.layers.split(",")]
    sides, start = real_sides(options.model, layers, options.sentences, print), time.perf_counter()
    found: list[Found] = []
    try:
        asked = options.labels, options.classes, options.pairs, options.draws, options.seed
        for one in pairs(sides, layers, *asked, "auto" if options.l2 == "auto" else float(options.l2)):
            found.append(one)  # collected one by one, so that Ctrl-C loses only the current pair
    finally:
        seconds = time.perf_counter() - start
        print(f"{options.model}, layers {options.layers}, {sides.train.n_tokens} training tokens, {seconds:.0f} s\n")
        print(f"{HEAD}\n{report(found, options.labels, options.classes)}" if found else "none was finished")


if __name__ == "__main__":
    main()
