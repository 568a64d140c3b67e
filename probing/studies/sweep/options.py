"""Options of `fit` for the points of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass, replace
from typing import Any

from probing.cli.arguments import OptionSource, as_mapping, checked
from probing.cli.option_types import option_problems
from probing.data.control_names import chosen_controls
from probing.errors import UserError, refuse
from probing.models import layer_numbers
from probing.studies.sweep.definition import Parameter, Sweep
from probing.studies.sweep.trials import LIGHT
from probing.tasks import SentenceTask, load_task, predicts_numbers

# Options that the sweep sets for its trials; a value that the file gives for all trials is the sweep's own default.
DECIDED = ("name", "runs", "cache", "quiet", "verbose", "wandb")


class TrialOptions:
    """Turns points into keyword arguments of `fit`; a value that occurs in many points is checked once.

    Args:
        command: The function `fit`, which does one trial.
        sweep: The sweep that is searched.
        file: Name of the sweep file, for messages.
        over: Options of `fit` that hold for all trials and override the file.

    Raises:
        UserError: If options do not exist, or values are of the wrong type; the message names them all.
    """

    def __init__(self, command: Callable[..., Any], sweep: Sweep, file: str, over: Mapping[str, Any]) -> None:
        self.command = command
        checked(self.command, over, "fit", OptionSource("--fit."))
        refuse([f"`--fit.{name}` cannot be set: the sweep's own `--{name}` decides" for name in over if _decided(name)])
        self.place = OptionSource("", ": ", f" in {file}")
        varied = [p for p in sweep.parameters if p.varies and p.name not in over]
        problems = [f"`{p.name}` in {file} cannot vary: the sweep decides it" for p in varied if _decided(p.name)]
        constant = {**as_mapping(sweep.command), **{p.name: p.values()[0] for p in sweep.parameters if not p.varies}}
        if "name" in constant:
            problems.append(f"`name` in {file} cannot be set: trials are named by the sweep")
        self.own = {name: value for name, value in constant.items() if _decided(name)}
        fixed = {**LIGHT, **{name: value for name, value in constant.items() if not _decided(name)}, **over}
        self.varied = [p.name for p in varied]
        self.known: dict[tuple[str, str], Mapping[str, Any]] = {}
        for name, value in ((p.name, value) for p in varied for value in _some_values(p)):
            try:
                self._checked(name, value)
            except UserError as error:
                problems.append(str(error).rstrip("."))
        try:
            self.base = checked(self.command, fixed, "fit", self.place)
        except UserError as error:
            problems.append(str(error).rstrip("."))
        refuse(problems)

    def of(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments of a trial.

        Raises:
            UserError: If they are invalid for every model and corpus.
        """
        options = dict(self.base)
        for name, value in self.varied_of(point).items():
            top, _, inner = name.partition(".")
            given = self._checked(name, value)[top]
            options[top] = _put(options[top], inner, given) if inner else given
        refuse(
            option_problems(
                options["probe"], options["seed"], options["max_length"], options["batch_tokens"], options["replicates"]
            )
        )
        layer_numbers(options["layer"])
        task = load_task(options["task"], options["task_args"] or {})
        if predicts_numbers(task):
            raise UserError(
                f"`task {options['task']}`: it predicts numbers, "
                "and a sweep compares accuracies of classes; use `fit`, whose ridge probe has no options to search."
            )
        chosen_controls(options["controls"], task.ordinal, isinstance(task, SentenceTask))
        return options

    def varied_of(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a point that vary between trials."""
        return {name: value for name, value in point.items() if name in self.varied}

    def _checked(self, name: str, value: Any) -> Mapping[str, Any]:
        key = (name, repr(value))
        if key not in self.known:
            self.known[key] = checked(self.command, {name: value}, "fit", self.place)
        return self.known[key]


def _decided(name: str) -> bool:
    return name.partition(".")[0] in DECIDED


def _some_values(parameter: Parameter) -> list[Any]:
    """Return some values of a parameter, enough to check its types."""
    if parameter.distribution.startswith("categorical"):
        return parameter.values()
    return [parameter.settings[end] for end in ("min", "max") if end in parameter.settings and _is_range(parameter)]


def _is_range(parameter: Parameter) -> bool:
    return parameter.distribution in ("uniform", "q_uniform", "int_uniform", "log_uniform_values")


def _put(options: Any, inner: str, given: Any) -> Any:
    """Return a group of options with one option replaced by that of another such group."""
    if is_dataclass(options) and not isinstance(options, type):
        return replace(options, **{inner: getattr(given, inner)})
    return {**(options or {}), inner: given[inner]}
