"""Sweep files as Weights & Biases defines them: parameters, search method and metric."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from probing.cli.options import ProbeOptions
from probing.errors import did_you_mean, refuse
from probing.tables.schema import ACCURACY
from probing.tracking.client import summary_of

METHODS = ("grid", "random", "bayes")
GOALS = ("minimize", "maximize")
# Keys at the top of a file; the last ones are on how W&B shows a sweep and runs it on its own machines.
_KEYS = {
    "method", "metric", "parameters", "command", "program", "run_cap", "early_terminate", "name", "project", "entity",
    "description", "controller", "job", "image_uri", "scheduler",
}  # fmt: skip
# The settings that each distribution of a parameter accepts, and those that it needs.
_RANGE, _NORMAL, _BETA = ("min", "max"), ("mu", "sigma"), ("a", "b")
DISTRIBUTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "constant": (("value",), ("value",)),
    "categorical": (("values",), ("values",)),
    "categorical_w_probabilities": (("values", "probabilities"), ("values", "probabilities")),
    "int_uniform": (_RANGE, _RANGE),
    **{
        f"{q}{name}": ((*_RANGE, *(["q"] if q else [])), _RANGE)
        for name in (
            "uniform", "log_uniform", "log_uniform_values", "inv_log_uniform", "inv_log_uniform_values"
        )
        for q in ("", "q_")
        if not (q and name.startswith("inv"))
    },
    **{f"{q}{name}": ((*_NORMAL, *(["q"] if q else [])), ()) for name in ("normal", "log_normal") for q in ("", "q_")},
    **{f"{q}beta": ((*_BETA, *(["q"] if q else [])), _BETA) for q in ("", "q_")},
}  # fmt: skip
# Distributions with a finite number of values, which a grid can go through.
_COUNTED = ("constant", "categorical", "categorical_w_probabilities", "int_uniform", "q_uniform")


@dataclass(frozen=True)
class Parameter:
    """The distribution of an option, one of `DISTRIBUTIONS` with its settings in the file."""

    name: str
    distribution: str
    settings: Mapping[str, Any]

    @property
    def varies(self) -> bool:
        """Whether the option differs between trials."""
        return not (
            self.distribution == "constant"
            or (self.distribution == "categorical" and len(self.settings["values"]) == 1)
        )

    def values(self) -> list[Any]:
        """Return all values, in order; the distribution must have a finite number of them."""
        if self.distribution == "constant":
            return [self.settings["value"]]
        if self.distribution.startswith("categorical"):
            return list(self.settings["values"])
        low, high, q = self.settings["min"], self.settings["max"], self.settings.get("q", 1)
        return [low + i * q for i in range(int((high - low) / q + 1e-9) + 1)]


@dataclass(frozen=True)
class Sweep:
    """A sweep file, with None for optional keys that it does not have.

    Parameters include constant ones, in the file's order. `metric` ranks trials, and is as named by W&B. `command` has
    options in the file's command rather than among the parameters, as they are typed. `stops_early` means that W&B
    would end trials early. `program` is another program than this package.
    """

    method: str
    parameters: tuple[Parameter, ...]
    metric: str | None
    goal: str
    run_cap: int | None
    command: tuple[str, ...]
    stops_early: bool
    project: str | None
    entity: str | None
    program: str | None = None

    def without(self, names: Container[str]) -> Sweep:
        """Return the sweep without some of its parameters, which are set elsewhere."""
        return replace(self, parameters=tuple(p for p in self.parameters if p.name not in names))

    @property
    def varied(self) -> list[str]:
        """Names of the options that differ between trials."""
        return [parameter.name for parameter in self.parameters if parameter.varies]


def parse_sweep(content: Mapping[Any, Any], file: str) -> Sweep:
    """Parse the content of a sweep file, whose name is for messages.

    Raises:
        UserError: If keys are missing, unknown or contradictory; the message names them all.
    """
    problems = [
        f"`{key}` in {file} is no key of a sweep{did_you_mean(str(key), _KEYS)}" for key in content if key not in _KEYS
    ]
    method = content.get("method")
    if method not in METHODS:
        problems.append(f"`method: {method}` in {file}: expected grid, random or bayes")
    metric = content.get("metric") or {}
    if not isinstance(metric, Mapping) or not isinstance(metric.get("name", ""), str):
        problems.append(f"`metric: {metric}` in {file}: expected a name and a goal")
        metric = {}
    goal = metric.get("goal", "minimize")
    if goal not in GOALS:
        problems.append(f"`metric.goal: {goal}` in {file}: expected minimize or maximize")
    if method == "bayes" and not metric.get("name"):
        problems.append(f"`method: bayes` in {file} needs a metric to go by: expected `metric` with name and goal")
    cap = content.get("run_cap")
    if cap is not None and (not isinstance(cap, int) or isinstance(cap, bool) or cap < 1):
        problems.append(f"`run_cap: {cap}` in {file}: expected a whole number of at least 1")
    parameters = []
    if not isinstance(given := content.get("parameters"), Mapping) or not given:
        problems.append(f"`parameters` in {file}: expected options of `fit`, each with its value or values")
    else:
        for name, settings in _flat(given):
            parsed, wrong = _parameter(name, settings, method, file)
            problems += wrong
            parameters += parsed
    command, wrong = _fixed_in_command(content.get("command"), file)
    refuse(problems + wrong)
    return Sweep(
        str(method), tuple(parameters), metric.get("name"), goal, cap, command, bool(content.get("early_terminate")),
        content.get("project"), content.get("entity"), _other_program(content.get("program")),
    )  # fmt: skip


def _other_program(program: Any) -> str | None:
    """Return the file's program, unless it is this package."""
    name = str(program or "").replace("\\", "/")
    return None if name in ("", "probing", "-m probing") or name.endswith("probing/__main__.py") else name


def _flat(parameters: Mapping[Any, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each parameter by its dotted name: W&B also takes groups, such as `probe: {parameters: {l2: ...}}`."""
    for name, settings in parameters.items():
        if isinstance(settings, Mapping) and isinstance(settings.get("parameters"), Mapping):
            yield from _flat(settings["parameters"], f"{before}{name}.")
        else:
            yield f"{before}{name}".replace("-", "_"), settings


def _parameter(name: str, settings: Any, method: Any, file: str) -> tuple[list[Parameter], list[str]]:
    """Return a parameter in a list, and its problems."""
    where = f"`parameters.{name}` in {file}"
    if not isinstance(settings, Mapping):
        return [], [f"{where}: expected `value: {settings}`, `values: [...]` or a distribution"]
    distribution = settings.get("distribution") or _distribution_of(settings)
    if distribution not in DISTRIBUTIONS:
        if distribution is None:
            return [], [f"{where}: expected a value, values, or min and max"]
        return [], [f"{where}: there is no distribution {distribution}{did_you_mean(str(distribution), DISTRIBUTIONS)}"]
    takes, needs = DISTRIBUTIONS[distribution]
    problems = [f"{where}: {distribution} needs `{key}`" for key in needs if key not in settings]
    problems += [
        f"{where}: {distribution} takes no `{key}`"
        for key in settings
        if key not in takes and key not in ("distribution", "description")
    ]
    problems += [
        f"{where}: `{key}: {value}` is no number" for key, value in settings.items()
        if key in (*_RANGE, *_NORMAL, *_BETA, "q") and not _is_number(value)
    ]  # fmt: skip
    problems = problems or _out_of_bounds(distribution, settings, where)
    if not problems and method == "grid" and distribution not in _COUNTED:
        problems.append(f"{where}: a grid cannot go through {distribution}; give values, or use method: random")
    return ([] if problems else [Parameter(name, distribution, dict(settings))]), problems


def _distribution_of(settings: Mapping[str, Any]) -> str | None:
    """Return the distribution that W&B infers where none is named."""
    if "value" in settings:
        return "constant"
    if "values" in settings:
        return "categorical_w_probabilities" if "probabilities" in settings else "categorical"
    if not {"min", "max"} <= set(settings):
        return "normal" if {"mu", "sigma"} & set(settings) else None
    return "int_uniform" if isinstance(settings["min"], int) and isinstance(settings["max"], int) else "uniform"


def _out_of_bounds(distribution: str, settings: Mapping[str, Any], where: str) -> list[str]:
    """Return the problems of settings that are complete and of the right types."""
    problems = []
    if distribution.startswith("categorical"):
        values, shares = settings["values"], settings.get("probabilities")
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            return [f"{where}: `values` is no list of at least one value"]
        if any(values.count(value) > 1 for value in values):
            problems.append(f"{where}: `values` has a value more than once")
        if shares is not None and (
            not isinstance(shares, Sequence)
            or len(shares) != len(values)
            or not all(_is_number(share) and share >= 0 for share in shares)
            or abs(sum(shares) - 1) > 1e-3
        ):
            problems.append(f"{where}: `probabilities` must be as many as the values, at least 0, and sum to 1")
    if "min" in settings and settings["min"] > settings["max"]:
        problems.append(f"{where}: min {settings['min']} is above max {settings['max']}")
    if "log_uniform_values" in distribution and settings["min"] <= 0:
        problems.append(f"{where}: min {settings['min']} has no logarithm: expected a number above 0")
    if settings.get("q", 1) <= 0:
        problems.append(f"{where}: `q: {settings['q']}`: expected a number above 0")
    return problems


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _fixed_in_command(command: Any, file: str) -> tuple[tuple[str, ...], list[str]]:
    """Return the options of `fit` in the file's command, and the problems if it does not run `fit`."""
    if command is None:
        return (), []
    words = [str(word) for word in command] if isinstance(command, Sequence) and not isinstance(command, str) else []
    if "fit" not in words:
        return (), [f"`command: {command}` in {file}: expected one that runs `python -m probing fit`, in a list"]
    return tuple(word for word in words[words.index("fit") + 1 :] if not word.startswith("${")), []


# --------------------------------------------------------------------------------------------------------------------
# The metric of a sweep: a number in the summary of its trials, as W&B names it.
# --------------------------------------------------------------------------------------------------------------------

# The option that decides which sentences are tested.
SEED = "seed"
# Metric by which trials are ranked if the file names none.
BEST_ACCURACY = "best_accuracy"
_OF_THE_BEST = {BEST_ACCURACY: "accuracy", "best_layer": "layer"}
_FORM = re.compile(r"(?:(test|val|train)/)?(?:(by_layer|layer_\d+)/)?(\w+)")
_COLUMNS = {column: column for column, kind in ACCURACY.types.items() if kind in (int, float)}
# What training and tests log by themselves, by part, with the column that holds it.
_LOGGED = {
    "test": {
        name: name
        for name in ("accuracy", "macro_accuracy", "macro_f1", "within_one", "mean_absolute_error", "cross_entropy")
    },
    "val": {"cross_entropy": "validation_cross_entropy"},
    "train": {"objective": "objective", "optimality_gap": "optimality_gap"},
}
_THERE_ARE = (
    f"{', '.join(_OF_THE_BEST)}, layer_06/COLUMN and by_layer/COLUMN with the columns of accuracy.csv (accuracy, "
    "cross_entropy, information, ...), test/layer_06/METRIC, train/layer_06/objective, and of adam "
    "val/layer_06/cross_entropy"
)


def column_of(metric: str) -> str | None:
    """Return the column of `accuracy.csv`, or `objective`, with a metric; None if no trial has such a metric."""
    if metric in _OF_THE_BEST:
        return _OF_THE_BEST[metric]
    if not (form := _FORM.fullmatch(metric)):
        return None
    part, layer, name = form.groups()
    if part is None:
        return _COLUMNS.get(name) if layer else None
    return None if layer == "by_layer" else _LOGGED[part].get(name)


def layer_of(metric: str) -> int | None:
    """Return the layer in a metric's name, if there is one."""
    layer = re.search(r"layer_(\d+)/", metric)
    return int(layer[1]) if layer else None


def metric_problems(metric: str | None) -> list[str]:
    """Return the problem of a metric's name, if any."""
    if metric is None or column_of(metric):
        return []
    before, slash, name = metric.rpartition("/")
    near = did_you_mean(name, _COLUMNS, f"{before}{slash}") if slash else did_you_mean(name, _OF_THE_BEST)
    return [f"`metric.name: {metric}` is not in the summary of a trial{near}; there are {_THERE_ARE}"]


def layer_problems(metric: str | None, layers: Sequence[int]) -> list[str]:
    """Return the problem of the layer in a metric's name, if any, given the layers of all trials."""
    layer = layer_of(metric) if metric else None
    if layer is None or layer in layers:
        return []
    listing = ", ".join(f"layer_{number:02d}" for number in layers)
    return [f"`metric.name: {metric}`: no trial has layer {layer}; there are {listing}"]


def value_of(rows: Sequence[Mapping[str, Any]], metric: str | None) -> float:
    """Return a trial's metric, NaN where it has none; under `by_layer/`, the last layer's.

    `rows` are by layer, as in `accuracy.csv`, with the training's `objective`. Without a metric, it is the best
    accuracy.
    """
    metric = metric or BEST_ACCURACY
    if metric in _OF_THE_BEST:
        return float(summary_of(rows)[metric])
    rows = rows_of(rows, metric)
    return float(rows[-1].get(str(column_of(metric)), math.nan)) if rows else math.nan


def rows_of(rows: Sequence[Mapping[str, Any]], metric: str | None) -> list[Mapping[str, Any]]:
    """Return the rows of the metric's layer, or without a metric the rows of all layers with the best accuracy."""
    if metric is None or metric in _OF_THE_BEST:
        best = summary_of(rows)[BEST_ACCURACY]
        return [row for row in rows if row["accuracy"] == best]
    if (layer := layer_of(metric)) is not None:
        return [row for row in rows if row["layer"] == layer]
    # Of several layers, `test/accuracy` means none.
    return list(rows[-1:]) if metric.startswith("by_layer/") or len(rows) == 1 else []


# --------------------------------------------------------------------------------------------------------------------
# Trials of a sweep: their names, and which of them can be trained together.
# --------------------------------------------------------------------------------------------------------------------

# Options in which trials that are trained together may differ.
STACKED = ("layer", "seed", "probe.l1", "probe.l2")
# Defaults of a trial, which omit the evidence: it is for the probe that is chosen in the end.
LIGHT: dict[str, Any] = {"replicates": 0, "controls": "none", "evidence": "none"}


@dataclass(frozen=True)
class Trial:
    """One trial of a sweep: the name of its folder, the options that vary, and all keyword arguments of `fit`."""

    name: str
    point: Mapping[str, Any]
    options: Mapping[str, Any]

    @property
    def probe(self) -> ProbeOptions:
        """Options of the trial's probes."""
        probe: ProbeOptions = self.options["probe"]
        return probe


def trial_name(number: int, n_trials: int, point: Mapping[str, Any]) -> str:
    """Return a name for a trial's folder: the number, which makes it unique, and the options that vary.

    Numbers, from 0, are padded to the width of `n_trials`, so that names sort in the order of the trials.
    """
    words = [f"{name.rpartition('.')[2]}={value}" for name, value in point.items()]
    plain = re.sub(r"[^\w.+=@-]+", "_", "-".join(words), flags=re.ASCII)
    return f"{number + 1:0{len(str(n_trials))}d}-{plain}"[:100].rstrip("-")


_Item = TypeVar("_Item")


def group_by_key(items: Iterable[_Item], key: Callable[[_Item], Any]) -> dict[Any, list[_Item]]:
    """Return the items of each key, in the order in which the keys occur."""
    groups: dict[Any, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def stacks(trials: Iterable[Trial]) -> list[list[Trial]]:
    """Group the trials that can be trained together, in the order of their first trials.

    The trials of a group differ only in layer, seed and penalty, and request only the probe itself.
    """
    return list(group_by_key(trials, lambda trial: alike(trial) if is_stacked(trial) else trial.name).values())


def is_stacked(trial: Trial) -> bool:
    """Check whether a trial is trained in a stack; others, such as trials that choose a penalty, are separate fits."""
    options = trial.options
    has_more = (
        options["mdl"]
        or options["control_for"] is not None
        or options["transform"] != "none"
        or trial.probe.bias
        or any(options[key] != off for key, off in LIGHT.items())
    )
    return trial.probe.solver == "lbfgs" and trial.probe.l2 != "auto" and not has_more


def alike(trial: Trial) -> str:
    """Return a key of the options that the trials of a stack have in common."""
    options = {name: value for name, value in trial.options.items() if name not in STACKED}
    probe = {name: value for name, value in vars(trial.probe).items() if f"probe.{name}" not in STACKED}
    return repr(sorted({**options, "probe": sorted(probe.items())}.items()))
