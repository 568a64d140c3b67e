"""Points of a search (grid, random, or Bayesian with the package `sweeps`), and the results of a sweep."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from probing.errors import UserError, as_clause
from probing.results import Table, count
from probing.runs.run import Run
from probing.statistics import neuron_ranks, spearman, top_overlap
from probing.studies.sweep.definition import BEST_ACCURACY, SEED, Parameter, Sweep, group_by_key, rows_of, value_of
from probing.tables import UNINFORMATIVE
from probing.tables.conclusions import known
from probing.tables.figures import (
    BLUE,
    BY_LAYER,
    GREY,
    Chart,
    Line,
    by_count,
    in_panels,
    linear,
    name_layers,
    share_axis,
    spaced_layers,
)
from probing.tracking.client import summary_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Point = dict[str, Any]


def grid(sweep: Sweep) -> Iterator[Point]:
    """Yield all points, the last parameter changing fastest."""
    names = [parameter.name for parameter in sweep.parameters]
    for values in itertools.product(*(parameter.values() for parameter in sweep.parameters)):
        yield dict(zip(names, values, strict=True))


def n_points(sweep: Sweep) -> int:
    """Return the number of points of a grid."""
    return math.prod(len(parameter.values()) for parameter in sweep.parameters)


def draw(sweep: Sweep, number: int, seed: int) -> Point:
    """Return a random point, the same for the same trial number (from 0) and seed.

    Raises:
        UserError: If a distribution has no finite numbers.
    """
    generator = np.random.default_rng([seed, number])
    return {parameter.name: _drawn(parameter, generator) for parameter in sweep.parameters}


def _drawn(parameter: Parameter, generator: np.random.Generator) -> Any:
    try:
        return _draw(parameter, generator)
    except (OverflowError, ValueError) as error:
        settings = ", ".join(f"{key}: {value}" for key, value in parameter.settings.items() if key != "distribution")
        raise UserError(
            f"`parameters.{parameter.name}`: no finite number can be drawn from {parameter.distribution} with "
            f"{settings} ({as_clause(error)}); give other bounds."
        ) from None


def _draw(parameter: Parameter, generator: np.random.Generator) -> Any:
    settings, kind = parameter.settings, parameter.distribution
    if kind == "constant":
        return settings["value"]
    if kind.startswith("categorical"):
        values = settings["values"]
        shares = np.array(settings["probabilities"]) if kind == "categorical_w_probabilities" else None
        return values[generator.choice(len(values), p=None if shares is None else shares / shares.sum())]
    if kind == "int_uniform":
        return int(generator.integers(settings["min"], settings["max"], endpoint=True))
    value = _real(kind.removeprefix("q_"), settings, generator)
    if not kind.startswith("q_"):
        return value
    q = settings.get("q", 1)
    value = round(value / q) * q
    return int(value) if isinstance(q, int) else float(value)


def _real(kind: str, settings: Mapping[str, Any], generator: np.random.Generator) -> float:
    """Draw a number; logarithms are natural, as in W&B."""
    if kind in ("normal", "log_normal"):
        value = float(generator.normal(settings.get("mu", 0), settings.get("sigma", 1)))
        return math.exp(value) if kind == "log_normal" else value
    if kind == "beta":
        return float(generator.beta(settings["a"], settings["b"]))
    low, high = settings["min"], settings["max"]
    if kind in ("log_uniform_values", "inv_log_uniform_values"):  # if x is log-uniform, so is 1 / x
        return math.exp(generator.uniform(math.log(low), math.log(high)))
    value = float(generator.uniform(low, high))
    if kind == "uniform":
        return value
    return math.exp(value if kind == "log_uniform" else -value)


def check_installed() -> None:
    """Raise a `UserError` if the package of Bayesian sweeps cannot be imported."""
    try:
        with warnings.catch_warnings():  # the package warns about its own use of pydantic
            warnings.simplefilter("ignore")
            # Names of it, since any folder that is called `sweeps` can be imported.
            from sweeps import SweepRun, next_run  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"`method: bayes` needs the package sweeps ({error}): `pip install --no-deps sweeps`, since it asks for "
            "numpy 1, and `pip install jsonref jsonschema scikit-learn`."
        ) from None


def suggest(sweep: Sweep, finished: Sequence[tuple[Point, float]], seed: int) -> Point:
    """Return the next point, given the previous points with their metrics; the result is reproducible by the seed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import sweeps

        assert sweep.metric is not None
        config = {
            "method": "bayes",
            "metric": {"name": sweep.metric, "goal": sweep.goal},
            # Flat, because the package silently drops nested parameters.
            "parameters": {p.name: {"distribution": p.distribution, **p.settings} for p in sweep.parameters},
        }
        runs = [
            sweeps.SweepRun(
                name=str(i), state="finished", summary_metrics={sweep.metric: metric}, history=[{sweep.metric: metric}],
                config={name: {"value": value} for name, value in point.items()},
            )
            for i, (point, metric) in enumerate(finished)
        ]  # fmt: skip
        # The package draws from numpy's global generator, whose state belongs to the user.
        state = np.random.get_state()
        np.random.seed([seed & 0xFFFFFFFF, len(finished)])
        try:
            suggested = sweeps.next_run(config, runs)
        finally:
            np.random.set_state(state)
    return {name: _plain(value["value"]) for name, value in suggested.config.items()}


def _plain(value: object) -> object:
    """Return a Python value: the package turns values into numpy's."""
    return value.item() if isinstance(value, np.generic) else value


# --------------------------------------------------------------------------------------------------------------------
# Results of a sweep: a row for each trial and layer, the agreement of rankings between trials, and the best trial.
# --------------------------------------------------------------------------------------------------------------------

# Options that change the neurons themselves: rankings of trials that differ in them cannot be compared.
OTHER_NEURONS = ("model", "revision", "random_weights", "layer", "transform")
TOP = 10
PENALTIES = ("probe.l2", "probe.l1")
# Most settings of a sweep that the chart of its page distinguishes.
MOST_SETTINGS = 24


@dataclass(frozen=True)
class Outcome:
    """A finished trial, with accuracy rows by layer, as in `accuracy.csv`.

    `contributions` are of each neuron in each layer, shape (d_model,), and `objectives` the final objective of
    each layer's training, in nats.
    """

    name: str
    point: Mapping[str, Any]
    accuracy: Sequence[Mapping[str, Any]]
    contributions: Mapping[int, NDArray[np.float64]]
    objectives: Mapping[int, float] = field(default_factory=dict)


def outcome(name: str, point: Mapping[str, Any], run: Run) -> Outcome:
    """Return the outcome of a trial from its run."""
    contributions, by_layer = {}, run.neurons.by("layer")
    for row in run.accuracy:
        neurons = by_layer[row["layer"]]
        values = np.zeros(len(neurons))
        values[neurons.column("neuron")] = neurons.column("contribution")
        contributions[row["layer"]] = values
    objectives = {row["layer"]: row["objective"] for row in run.results["layers"]}
    return Outcome(name, point, run.accuracy, contributions, objectives)


def sweep_charts(rows: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> list[Chart]:
    """Return the accuracy by layer, or else by the first option with numbers, a line for each setting of the others.

    A line is the mean over seeds. None without such an option, or with so many settings that each has few trials.
    """
    axes = [name for name in dict.fromkeys(["layer", *varied]) if len({str(row[name]) for row in rows}) > 1]
    x, *_ = [*(name for name in axes if name != SEED and _are_numbers([row[name] for row in rows])), ""]
    others = [name for name in axes if name not in (x, SEED)]
    settings = Table(rows).by(*others) if others else {(): Table(rows)}
    if not x or len(settings) > MOST_SETTINGS:
        return []
    lines = []
    for of_setting in settings.values():
        by_x = dict(sorted(of_setting.by(x).items()))
        points = [of_x.column("accuracy") for of_x in by_x.values()]
        label = ", ".join(f"{name} {of_setting[0][name]}" for name in others) or "mean of the trials"
        has_seeds = any(len(of_x) > 1 for of_x in points)
        lines.append(Line(label, [*by_x], [*map(_mean, points)], points=points if has_seeds else ()))
    constants = {at: _mean(of_x.column("majority_accuracy")) for at, of_x in sorted(Table(rows).by(x).items())}
    floor = Line("majority class", [*constants], [*constants.values()])
    title = "Test accuracy of the trials" + ", mean over seeds (dots: each seed)" * (SEED in axes)
    axis = BY_LAYER if x == "layer" else by_count(x, x) if x in PENALTIES else linear(x, x)
    return [Chart("trials", title, in_panels(lines, [floor], "settings"), limits=(0, 1), x=axis)]


def rows(outcomes: Sequence[Outcome], varied: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of `sweep.csv`, one for each trial and layer.

    `OPTION_spearman` and `OPTION_overlap` compare a ranking with the rankings of the trials that differ from this one
    only in that option, one of `varied`: the mean correlation of ranks, and the mean share of the first 10 neurons.
    """
    compared = [name for name in varied if name not in OTHER_NEURONS]
    groups = {name: _neighbours(outcomes, name) for name in compared}
    table_rows = []
    for trial in outcomes:
        for row in trial.accuracy:
            layer = row["layer"]
            agreement: dict[str, float] = {}
            for name in compared:
                others = [
                    other.contributions[layer]
                    for other in groups[name][repr(_without(trial.point, name))]
                    if other is not trial and layer in other.contributions
                ]
                agreement |= _agreement(name, trial.contributions[layer], others)
            table_rows.append({"trial": trial.name, **trial.point, **row, **agreement})
    return table_rows


def metric_of(trial: Outcome, metric: str | None) -> float:
    """Return a trial's metric, NaN where it has none."""
    return value_of(
        [{**row, "objective": trial.objectives.get(row["layer"], math.nan)} for row in trial.accuracy], metric
    )


def missing_metric(outcomes: Sequence[Outcome], metric: str | None) -> str | None:
    """Return a message on a metric that no trial has; None if some trial has it."""
    if metric is None or any(not math.isnan(metric_of(trial, metric)) for trial in outcomes):
        return None
    columns = dict.fromkeys(key.partition("/")[2] for trial in outcomes for key in summary_of(trial.accuracy))
    available = f"best_accuracy, best_layer and, after layer_06/ or by_layer/, {', '.join(filter(None, columns))}"
    return f"`metric.name: {metric}` was not measured in any trial; there are {available}"


def by_setting(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Return the trials of each setting of the options but the seed, which decides the test sentences."""
    return list(_neighbours(outcomes, SEED).values())


def mean_metric(trials: Sequence[Outcome], metric: str | None) -> float:
    """Return the mean metric of the trials of a setting that have one; NaN without any."""
    return _mean(metric_of(trial, metric) for trial in trials)


def best(outcomes: Sequence[Outcome], metric: str | None, goal: str) -> list[Outcome]:
    """Return the trials of the setting with the best metric, the mean over its seeds; without a metric, by accuracy.

    In a tie, it is the setting with the lowest cross-entropy, and then the first.
    """
    sign = -1 if metric is not None and goal == "minimize" else 1
    settings = by_setting(outcomes)
    known = [trials for trials in settings if not math.isnan(mean_metric(trials, metric))]
    return min(
        known or settings,
        key=lambda trials: (-sign * mean_metric(trials, metric), cross_entropy_of(trials, metric)),
    )


def cross_entropy_of(trials: Sequence[Outcome], metric: str | None) -> float:
    """Return the mean cross-entropy of the layer of the metric of a setting's trials, infinity without one."""
    lowest = (
        min((row.get("cross_entropy", math.nan) for row in rows_of(trial.accuracy, metric)), default=math.nan)
        for trial in trials
    )
    return math.inf if math.isnan(mean := _mean(lowest)) else mean


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


def _is_above_constant(trials: Sequence[Outcome], metric: str | None) -> bool:
    """Check whether the probes of the metric's layer are shown to predict better than a constant answer."""
    return all(
        any(UNINFORMATIVE not in row.get("flag", "") for row in rows_of(trial.accuracy, metric) or trial.accuracy)
        for trial in trials
    )


# What is measured of two rankings, and the sentences, which are written into `results.json`.
_AGREEMENT = "spearman", "overlap"
SENTENCES = {
    "agreement": "Rankings of trials that differ only in {option} have a rank correlation of {mean:.2f} on average "
    "({low:.2f} to {high:.2f}) and share {shared:.1f} of the top {top}.",
    "best": "Best of {n}: {point}, with the {extreme} {metric}, {value:.4g}{over}{expect}.",
    "only": "The {metric} is {value:.4g}{over}.",
    "over": " ({n} seeds: {low:.4g} to {high:.4g})",
    "seeds": "Some have other seeds and so other test sentences, which may explain part of a difference.",
    "expect": "; it was chosen on the sentences it is measured on, so expect a slightly worse value on others",
    "tied": "{n} have this {metric}: {which}.",
    "first": "the first of them is named",
    "lowest": "the one with the lowest cross-entropy is named, {least:.3f} nats; the highest is {most:.3f}",
    "constant": "{which} to predict better than a constant answer{others}: do not read its ranking.",
    "others": "; {trials} {are}",
}


def conclusion(
    rows: Sequence[Mapping[str, Any]], outcomes: Sequence[Outcome], varied: Sequence[str], metric: str | None, goal: str
) -> list[str]:
    """Return sentences on the agreement of rankings between trials, by varied option, and on the best trial."""
    lines = []
    for option in varied:
        values, overlaps = ([row[f"{option}_{of}"] for row in rows if f"{option}_{of}" in row] for of in _AGREEMENT)
        if values:
            lines.append(SENTENCES["agreement"].format(
                option=option, mean=np.mean(values), low=min(values), high=max(values), shared=TOP * np.mean(overlaps),
                top=TOP,
            ))  # fmt: skip
    settings, winner, name = by_setting(outcomes), best(outcomes, metric, goal), metric or BEST_ACCURACY
    value, n = mean_metric(winner, metric), len(settings)
    kind = "trial" if n == len(outcomes) else "setting"
    values = [metric_of(trial, metric) for trial in winner]
    over = SENTENCES["over"].format(n=len(winner), low=min(values), high=max(values)) if len(winner) > 1 else ""
    point = ", ".join(f"{option} {setting}" for option, setting in _without(winner[0].point, SEED))
    lines.append(SENTENCES["best" if point else "only"].format(
        n=count(n, kind), point=point, extreme="lowest" if metric is not None and goal == "minimize" else "highest",
        metric=f"mean {name}" if over else name, value=value, over=over, expect=SENTENCES["expect"] if n > 1 else "",
    ))  # fmt: skip
    if n > 1 and len({frozenset(trial.point.get(SEED) for trial in trials) for trials in settings}) > 1:
        lines.append(SENTENCES["seeds"])
    tied = [trials for trials in settings if mean_metric(trials, metric) == value]
    if len(tied) > 1:
        least, most = cross_entropy_of(winner, metric), max(cross_entropy_of(trials, metric) for trials in tied)
        which = SENTENCES["first" if least == most else "lowest"].format(least=least, most=most)
        lines.append(SENTENCES["tied"].format(n=count(len(tied), kind), metric=name, which=which))
    if not _is_above_constant(winner, metric):
        above = sum(_is_above_constant(trials, metric) for trials in settings)
        others = SENTENCES["others"].format(trials=count(above, f"other {kind}"), are="is" if above == 1 else "are")
        which = f"The best {kind} is not shown" if above else f"No {kind} is shown" if n > 1 else "It is not shown"
        lines.append(SENTENCES["constant"].format(which=which, others=others if above else ""))
    return lines


def _neighbours(outcomes: Sequence[Outcome], name: str) -> dict[Any, list[Outcome]]:
    return group_by_key(outcomes, lambda trial: repr(_without(trial.point, name)))


def _without(point: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in point.items() if key != name]


def _agreement(name: str, scores: NDArray[np.float64], others: Sequence[NDArray[np.float64]]) -> dict[str, float]:
    alike = [other for other in others if len(other) == len(scores)]
    if not alike:
        return {}
    theirs, k = np.stack(alike), min(TOP, len(scores))
    return {
        f"{name}_spearman": float(spearman(rankdata(scores), rankdata(theirs, axis=-1)).mean()),
        f"{name}_overlap": float(top_overlap(neuron_ranks(scores), neuron_ranks(theirs), k).mean()),
    }


# --------------------------------------------------------------------------------------------------------------------
# The figure of a sweep: accuracy against each option, and the stability of rankings under each penalty.
# --------------------------------------------------------------------------------------------------------------------

Row = Mapping[str, Any]

# Number of panels side by side, and the ratio of largest to smallest value from which on a scale is logarithmic.
COLUMNS, WIDE = 3, 30.0
# Maximum number of layers named in the legend, and the lightest grey of a line.
LAYERS_NAMED, LIGHTEST = 12, 0.65


def draw_sweep(figure: Figure, rows: Sequence[Row], varied: Sequence[str]) -> None:
    """Draw the accuracy of trials by layer and option, and the agreement of rankings by penalty."""
    axis_names = ["layer", *(name for name in varied if name != "layer")]
    accuracy = [name for name in axis_names if len({str(row[name]) for row in rows}) > 1] or ["layer"]
    penalties = [name for name in PENALTIES if name in varied]
    # For each penalty, the agreement of rankings between trials that differ only in one other option.
    compared = [other for other in varied if any(known(row, f"{other}_spearman") for row in rows)]
    # Of two penalties, each is compared with the other, so that the agreement is the same at both.
    pairs = itertools.product(penalties, compared)
    stability = [(name, other) for name, other in pairs if name != other or len({row[name] for row in rows}) > 2]
    n = len(accuracy) + len(stability)
    height = -(-n // COLUMNS)
    figure.set_size_inches(3.1 * min(n, COLUMNS) + 2.0, max(2.7 * height, 3.6))
    panels = [figure.add_subplot(height, min(n, COLUMNS), i + 1) for i in range(n)]
    for axes, name in zip(panels, accuracy, strict=False):
        _accuracy(axes, rows, name)
    for axes, (penalty, other) in zip(panels[len(accuracy) :], stability, strict=True):
        _stability(axes, rows, penalty, other)
    # One legend beside the panels serves them all: they draw the same trials and layers.
    shown = {label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(shown.values(), shown.keys(), loc="outside right center")


def _accuracy(axes: Axes, rows: Sequence[Row], name: str) -> None:
    """Draw every trial's accuracy against one option, and the mean at each of its values."""
    values = [row[name] for row in rows]
    coordinates = _coordinates(axes, name, values)
    heights = np.array([row["accuracy"] for row in rows])
    axes.plot(coordinates, heights, "o", color=GREY, ms=3, alpha=0.5, mew=0, label="one probe")
    marks = sorted(set(coordinates))
    means = [heights[coordinates == mark].mean() for mark in marks]
    # Values without an order, such as seeds, are not joined by a line.
    join = "-" if _are_numbers(values) and name != SEED else ""
    axes.plot(marks, means, ls=join, color=BLUE, marker="_", ms=12, lw=1, label="mean of probes")
    majority = np.array([row.get("majority_accuracy", np.nan) for row in rows])
    floors = [majority[coordinates == mark].mean() for mark in marks]
    if np.isfinite(floors).any():
        axes.plot(marks, floors, ls=":" if join else "", color=GREY, marker="x", ms=4, lw=1, label="majority class")
    axes.set(xlabel=name, ylabel="test accuracy", title=f"accuracy by {name}")
    share_axis([*heights, *floors], axes)
    if name == "layer":
        name_layers(axes, values, most=9)


def _stability(axes: Axes, rows: Sequence[Row], penalty: str, other: str) -> None:
    """Draw for each layer the agreement of rankings between trials that differ in one option, against the penalty."""
    column = f"{other}_spearman"
    shown = [row for row in rows if known(row, column)]
    coordinates = _coordinates(axes, penalty, [row[penalty] for row in shown])
    layers = sorted({row["layer"] for row in shown})
    marks = sorted(set(coordinates))
    heights = np.array([row[column] for row in shown])
    row_layers = np.array([row["layer"] for row in shown])
    named = spaced_layers(layers, LAYERS_NAMED)
    for i, layer in enumerate(layers):
        line = [heights[(coordinates == mark) & (row_layers == layer)].mean() for mark in marks]
        shade = LIGHTEST * i / max(len(layers) - 1, 1)
        label = f"layer {layer}" if layer in named else None
        axes.plot(marks, line, color=str(shade), marker="osv^Dx+*"[i % 8], ms=3.5, lw=1, label=label)
    axes.set(xlabel=penalty, ylabel="rank correlation", title=f"rankings between\nvalues of {other}")
    axes.set_ylim(math.floor(10 * heights.min() - 0.1) / 10, 1.02)


def _coordinates(axes: Axes, name: str, values: Sequence[Any]) -> NDArray[np.float64]:
    """Return the coordinates of an option's values, numbers as such and others in order, and set the axis's scale."""
    from matplotlib.ticker import MaxNLocator

    distinct = list(dict.fromkeys(values))
    if _are_numbers(distinct):
        distinct = sorted(distinct)
        positive = [value for value in distinct if value > 0]
        if len(positive) > 1 and (positive[-1] / positive[0] >= WIDE or name in PENALTIES):
            axes.set_xscale("log" if len(positive) == len(distinct) else "symlog", **(
                {} if len(positive) == len(distinct) else {"linthresh": positive[0]}
            ))  # fmt: skip
        elif all(isinstance(value, int) for value in distinct):
            axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True))
        return np.array(values, dtype=np.float64)
    index = {str(value): i for i, value in enumerate(distinct)}
    axes.set_xticks(range(len(distinct)), [str(value)[-18:] for value in distinct], rotation=30, ha="right")
    return np.array([index[str(value)] for value in values], dtype=np.float64)


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
