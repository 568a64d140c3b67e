"""Runs of `finetune` on the same test part: whether their recipes differ by more than seeds do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from probing.errors import UserError
from probing.probes.agreement import Chance, label_chance
from probing.probes.pairs import Ranked, RunPair
from probing.results import ends, listed, shortened
from probing.runs import Result
from probing.runs.call import Measurements
from probing.runs.folder import NOT_OF_THE_RUN, reading
from probing.runs.loading import checkpoint_name
from probing.statistics import independent_difference, neuron_ranks, paired_difference
from probing.studies.compare.tables import (
    INDEPENDENT,
    PAIRED,
    TUNINGS,
    differing,
    is_unread,
    level_of,
    options_of,
    verdict_of,
)
from probing.studies.finetune.results import TunedAnswers, read_answers_of
from probing.studies.finetune.tables import SHORT, STARTS, examples_of, score_words
from probing.tables.figures import BLUE, GREY
from probing.text.tasks import short_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# --------------------------------------------------------------------------------------------------------------------
# Figures of `compare` of runs of `finetune`: the difference of each pair of runs, with its interval.
# --------------------------------------------------------------------------------------------------------------------

Row = Mapping[str, Any]
# Characters of the name of a run.
_NAME = 24


def differences(figure: Figure, rows: Sequence[Row], is_number: bool) -> None:
    """Draw a point for each pair of runs and start, with its interval; 0 is a line."""
    figure.set_size_inches(6.2, 1.3 + 0.55 * len(rows))
    axes = figure.add_subplot()
    axes.axvline(0, color=GREY, lw=1, ls="--")
    for place, row in enumerate(rows):
        if apart := ends(row):
            axes.plot(apart, [place, place], color=BLUE, lw=1)
        axes.plot([row["difference"]], [place], "o", ms=5, color=BLUE)
    pairs = [" less ".join(shortened(row[f"run_{side}"], _NAME) for side in "ab") for row in rows]
    names = [f"{pair},\n{SHORT.get(row['start'], row['start'])}" for pair, row in zip(pairs, rows, strict=True)]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(f"difference of test {score_words(is_number)}")
    axes.set_title("over other seeds, orders and test examples")


Sums = NDArray[np.float64]
# A seed and an order.
Draw = tuple[int, int]
# Largest relative difference of squared errors of the constant answer that rounding may make.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Tunings:
    """Tunings of a run on a test part that others share.

    Per test cluster, `of` is the denominator of scores, shape (n_clusters,), and `right` the numerator of each tuning,
    by start, and by seed and order.
    """

    label: str
    run: Result
    of: Sums
    right: Mapping[str, Mapping[Draw, Sums]]

    def crossed(self, start: str, seeds: Sequence[int], orders: Sequence[int]) -> Sums:
        """Return the numerators of the tunings of a start, shape (n_seeds, n_orders, n_clusters)."""
        return np.stack([np.stack([self.right[start][seed, order] for order in orders]) for seed in seeds])

    def levels(self, start: str) -> tuple[list[int], list[int]]:
        """Return the seeds and the orders of a start, ascending."""
        draws = self.right[start]
        return sorted({seed for seed, _ in draws}), sorted({order for _, order in draws})


def labels_of(runs: Sequence[Result]) -> list[str]:
    """Return the folder names of runs, or whole paths if names are equal; raise UserError for a repeated run."""
    paths = [run.folder.resolve() for run in runs]
    for path, run in zip(paths, runs, strict=True):
        if paths.count(path) > 1:
            raise UserError(f"`{run.folder}` is given twice; expected different runs.")
    names = [path.name for path in paths]
    return names if len({*names}) == len(names) else [str(run.folder) for run in runs]


def tunings_of(runs: Sequence[Result]) -> list[Tunings]:
    """Return the tunings of runs by test cluster, in the same order of clusters.

    Raises:
        UserError: If runs have other tasks, classes or test parts, or a run lacks its answers.
    """
    labels, first = labels_of(runs), runs[0]
    answers = []
    for run in runs:
        with reading(run.folder):
            _check_task(first, run)
            answers.append(read_answers_of(run))
    tunings = []
    for label, run, run_answers in zip(labels, runs, answers, strict=True):
        with reading(run.folder):
            tunings.append(_by_cluster(label, run, _aligned(first, answers[0], run, run_answers)))
    return tunings


def _check_task(first: Result, run: Result) -> None:
    both = f"`{first.folder}` and `{run.folder}`"
    tasks = [short_name(compared_run.config) for compared_run in (first, run)]
    if tasks[0] != tasks[1] or first.results["numbers"] != run.results["numbers"]:
        as_what = [f"{task} as {'numbers' if compared_run.results['numbers'] else 'classes'}" for task, compared_run in
                   zip(tasks, (first, run), strict=True)]  # fmt: skip
        raise UserError(f"{both} predict {as_what[0]} and {as_what[1]}; expected runs on the same task.")
    classes = [set(compared_run.results["classes"]) for compared_run in (first, run)]
    if only := sorted(classes[0] ^ classes[1]):
        raise UserError(
            f"{both} have other classes: {listed(only[:5])} {'is' if len(only) == 1 else 'are'} in one of them alone; "
            "expected runs with the same classes."
        )


def _aligned(first: Result, of_first: TunedAnswers, run: Result, run_answers: TunedAnswers) -> TunedAnswers:
    """Return the answers of a run in the order of the first run's test sentences; refuse different test parts."""
    both = f"`{first.folder}` and `{run.folder}`"
    n_shared = len(np.intersect1d(of_first.sentence, run_answers.sentence))
    examples = examples_of(run.results)
    if not n_shared == len(of_first.sentence) == len(run_answers.sentence):
        raise UserError(
            f"{both} are tested on {len(of_first.sentence):,} and {len(run_answers.sentence):,} {examples}, of which "
            f"they share {n_shared:,}; expected the same test part: the same text and --seed, or the same "
            "--test_corpus."
        )
    order = np.argsort(run_answers.sentence)[np.argsort(np.argsort(of_first.sentence))]
    aligned = TunedAnswers(
        run_answers.sentence[order], run_answers.labels[order], run_answers.cluster[order], run_answers.of[order],
        {name: sums[order] for name, sums in run_answers.right.items()},
    )  # fmt: skip
    if n_other := int((aligned.labels != of_first.labels).sum()):
        raise UserError(
            f"{both}: in {n_other:,} of {n_shared:,} {examples}, other things are to be predicted, because "
            "labels have changed, or tokenizers divide or cut sentences otherwise; expected the same targets."
        )
    clusters = np.stack([of_first.cluster, aligned.cluster])
    n_clusters = {len(np.unique(cluster_ids)) for cluster_ids in clusters}
    if n_clusters != {np.unique(clusters, axis=1).shape[1]}:
        raise UserError(f"{both} have intervals over other units; expected runs with the same --group_by.")
    if not np.allclose(aligned.of, of_first.of, rtol=_ROUNDING, atol=0):
        raise UserError(
            f"{both} were trained on other numbers, so that their constant answers differ, and R² with them; expected "
            "runs on the same training part."
        )
    return aligned


def _by_cluster(label: str, run: Result, answers: TunedAnswers) -> Tunings:
    _, of_sentence = np.unique(answers.cluster, return_inverse=True)

    def sums(values: Sums) -> Sums:
        return np.bincount(of_sentence, weights=values).astype(np.float64)

    right: dict[str, dict[Draw, Sums]] = {}
    for row in run.tunings:
        of_start = right.setdefault(row["start"], {})
        of_start[row["seed"], row["order_seed"]] = sums(answers.right[checkpoint_name(row)])
    for start, draws in right.items():
        if start not in STARTS or len(draws) != len({seed for seed, _ in draws}) * len({order for _, order in draws}):
            raise ValueError(f"tunings.csv does not have every seed of {start} with every order")
    return Tunings(label, run, sums(answers.of), right)


def recipes_of(tunings: Sequence[Tunings]) -> list[dict[str, Any]]:
    """Return the rows of `recipes.csv`: each pair of runs, from each common start; without any, raise UserError."""
    pairs = list(combinations(tunings, 2))
    rows = []
    for a, b in pairs:
        starts = [start for start in a.right if start in b.right]
        if not starts:
            raise UserError(
                f"`{a.run.folder}` and `{b.run.folder}` start from {listed(list(a.right))} and from "
                f"{listed(list(b.right))}; expected a start that both have."
            )
        rows += [_recipe(a, b, start, level_of(len(pairs))) for start in starts]
    return rows


def _recipe(a: Tunings, b: Tunings, start: str, level: float) -> dict[str, Any]:
    levels = [tuning.levels(start) for tuning in (a, b)]
    shared = [sorted(set(first) & set(second)) for first, second in zip(*levels, strict=True)]
    is_paired = any(shared[0] == seeds and shared[1] == orders for seeds, orders in levels)
    crossed = [tuning.crossed(start, *(shared if is_paired else of)) for tuning, of in zip((a, b), levels, strict=True)]
    compared = paired_difference if is_paired else independent_difference
    test = compared(crossed[0], crossed[1], a.of, level)
    # No two accuracies differ by more than 1.
    most = np.inf if a.run.results["numbers"] else 1.0
    scores = [float(tuning.sum(2).mean() / a.of.sum()) for tuning in crossed]
    row = {
        "run_a": a.label, "run_b": b.label, "start": start, "draws": PAIRED if is_paired else INDEPENDENT,
        "tunings_a": crossed[0].shape[0] * crossed[0].shape[1], "tunings_b": crossed[1].shape[0] * crossed[1].shape[1],
        "score_a": scores[0], "score_b": scores[1],
        "difference": test.mean, "low": max(test.low, -most), "high": min(test.high, most),
    }  # fmt: skip
    return row | {"verdict": verdict_of(row, is_paired and np.array_equal(crossed[0], crossed[1]))}


def _options(tunings: Sequence[Tunings]) -> dict[str, dict[str, str]]:
    """Return the options of each run; a text is represented by its content, so that a moved text is the same."""
    texts = {tuning.label: tuning.run.results["corpora"] for tuning in tunings}
    options = {}
    names = [name for of in texts.values() for name in of]
    for tuning in tunings:
        with reading(tuning.run.folder):
            run_options = options_of(tuning.run.config, (*NOT_OF_THE_RUN, "verbose", *names))
            for name, text in texts[tuning.label].items():
                prints = {of[name]["fingerprint"] if name in of else None for of in texts.values()}
                run_options[name] = f"{text['name']} ({text['fingerprint'][:8]})" if len(prints) > 1 else ""
            options[tuning.label] = run_options
    return options


def study_output(runs: Sequence[Result]) -> Measurements:
    """Compare runs and return the output; raise UserError if they cannot be compared."""
    tunings = tunings_of(runs)
    rows = recipes_of(tunings)
    first = runs[0]
    with reading(first.folder):
        results = _results(tunings, first)
    options = differing(_options(tunings))
    return Measurements({"recipes": rows, "options": options}, results)


def _results(tunings: Sequence[Tunings], first: Result) -> dict[str, Any]:
    return {
        "compared": TUNINGS,
        "runs": {tuning.label: str(tuning.run.folder) for tuning in tunings},
        "models": {tuning.label: tuning.run.config["model"] for tuning in tunings},
        "task": short_name(first.config),
        "numbers": first.results["numbers"],
        "examples": examples_of(first.results),
        "intervals_over": first.results["intervals_over"],
        "n_tunings": {tuning.label: {start: len(of) for start, of in tuning.right.items()} for tuning in tunings},
    }


# --------------------------------------------------------------------------------------------------------------------
# Neurons that are in the top of every run, and how many would be there by chance under shuffled labels.
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Common:
    """Neurons of the first run that are, with their partners, in the top k of every run.

    `n_layers` counts the compared layers of the first run. `chance` is the number of neurons when the ranking of a run
    is replaced by a ranking under shuffled labels, and the share of such rankings with at least as many; None without
    such rankings. `expected` is the number of neurons for unrelated rankings.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    n_layers: int = 0
    expected: float = 0.0
    chance: Chance | None = None

    def summary(self) -> dict[str, Any]:
        """Return the number of neurons and its value under chance, as in `results.json`."""
        by_chance = self.chance._asdict() if self.chance else {"mean": self.expected}
        return {
            "n_neurons": len(self.rows), "n_layers": self.n_layers,
            **{f"chance_{name}": value for name, value in by_chance.items()},
        }  # fmt: skip


def top_everywhere(
    ranked: Sequence[Ranked], pairs: Mapping[int, RunPair], k: int, unread: Mapping[str, Sequence[int]] = {}
) -> Common:
    """Return the neurons that are in the top k of every run, in layers of the same relative depth.

    A neuron's p-value in a run is the share of the run's rankings under shuffled labels that also have it in the top,
    the true ranking included; the maximum over the runs is reported. `pairs` compares the first run with each other
    run. Layers with a layer of the same relative depth in `unread`, by run, or without one, are left out.
    """
    shares: dict[int, list[float]] = {}
    for row in (row for pair in pairs.values() for row in pair.rows):
        if row["statistic"] == "overlap" and row["same_depth"] == "yes" and not is_unread(row, unread):
            shares.setdefault(row["layer_a"], []).append(row["chance"])
    expected = {layer: k * np.prod(of) for layer, of in shares.items() if len(of) == len(pairs)}
    read = np.isin(ranked[0].layers, [*expected])
    at_top = [_of_first(ranked, pairs, run, ranked[run].scores[:, None], k)[:, 0] for run in range(len(ranked))]
    everywhere = np.all(at_top, axis=0) & read[:, None]
    nulls, p_values = [], np.zeros(everywhere.shape)
    for run, ranking in enumerate(ranked):
        if ranking.shuffled is None:
            continue
        drawn = _of_first(ranked, pairs, run, ranking.shuffled, k)
        others = np.all([mask for other, mask in enumerate(at_top) if other != run], axis=0)
        nulls.append((drawn & (others & read[:, None])[:, None]).sum((0, 2)))
        p_values = np.maximum(p_values, (1 + drawn.sum(1)) / (1 + drawn.shape[1]))
    rows = [
        _row(ranked, pairs, layer, neuron) | ({"p_value": float(p_values[layer, neuron])} if nulls else {})
        for layer in range(len(everywhere))
        for neuron in np.argsort(neuron_ranks(ranked[0].scores[layer]), kind="stable")[:k]
        if everywhere[layer, neuron]
    ]
    by_labels = label_chance(len(rows), np.array(nulls, dtype=np.float64)) if nulls else None
    return Common(rows, len(expected), float(np.nansum([*expected.values()])), by_labels)


def _of_first(
    ranked: Sequence[Ranked], pairs: Mapping[int, RunPair], run: int, scores: NDArray[np.float64], k: int
) -> NDArray[np.bool_]:
    """Return whether rankings of a run have the partner of each neuron of the first run in their top k.

    Scores have shape (n_layers of the run, n_rankings, d_model of the run), the result (n_layers, n_rankings, d_model)
    of the first run; False in layers without a partner in the run.
    """
    top = (ranks := neuron_ranks(scores)) <= min(k, ranks.shape[-1])
    if run == 0:
        return top
    in_top = np.zeros((len(ranked[0].layers), scores.shape[1], ranked[0].d_model), dtype=bool)
    for i, j in ranked[0].aligned(ranked[run]).items():
        partner = pairs[run].partners[i, j]
        in_top[i] = top[j][:, partner] & (partner >= 0)
    return in_top


def _row(ranked: Sequence[Ranked], pairs: Mapping[int, RunPair], i: int, neuron: int) -> dict[str, Any]:
    first = ranked[0]
    row: dict[str, Any] = {"layer": first.layers[i], "neuron": int(neuron), "rank": _rank(first, i, neuron)}
    unseen = [first.label] if _is_unseen(first, i, neuron) else []
    for other, pair in pairs.items():
        other_ranking, j = ranked[other], first.aligned(ranked[other])[i]
        partner = int(pair.partners[i, j, neuron])
        row |= {f"{other_ranking.label} layer": other_ranking.layers[j], f"{other_ranking.label} neuron": partner}
        row |= {f"{other_ranking.label} rank": _rank(other_ranking, j, partner)}
        unseen += [other_ranking.label] if _is_unseen(other_ranking, j, partner) else []
    return row | {"no_signal": ", ".join(unseen)}


def _rank(run: Ranked, i: int, neuron: int) -> int:
    return int(neuron_ranks(run.scores[i])[neuron])


def _is_unseen(run: Ranked, i: int, neuron: int) -> bool:
    return run.no_signal is not None and bool(run.no_signal[i, neuron])
