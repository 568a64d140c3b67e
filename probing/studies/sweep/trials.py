"""Trials of a sweep: their names, and which of them can be trained together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probing.cli.options import ProbeOptions

# Options in which trials that are trained together may differ.
STACKED = ("layer", "seed", "probe.l1", "probe.l2")
# Defaults of a trial, which omit the evidence: it is for the probe that is chosen in the end.
LIGHT: dict[str, Any] = {"replicates": 0, "controls": "none", "evidence": "none"}


@dataclass(frozen=True)
class Trial:
    """One trial of a sweep.

    Args:
        name: Name of the trial's folder.
        point: Options that vary between trials, by dotted name.
        options: All keyword arguments of `fit`, with values of the right types.
    """

    name: str
    point: Mapping[str, Any]
    options: Mapping[str, Any]

    @property
    def probe(self) -> ProbeOptions:
        """How the trial's probes are trained."""
        probe: ProbeOptions = self.options["probe"]
        return probe


def trial_name(number: int, n_trials: int, point: Mapping[str, Any]) -> str:
    """Return a name for a trial's folder: the number, which makes it unique, and the options that vary.

    Args:
        number: Number of the trial, from 0.
        n_trials: Number of trials of the whole sweep, so that names sort in the order of the trials.
        point: Options that vary, by dotted name.
    """
    words = [f"{name.rpartition('.')[2]}={value}" for name, value in point.items()]
    plain = re.sub(r"[^\w.+=@-]+", "_", "-".join(words), flags=re.ASCII)
    return f"{number + 1:0{len(str(n_trials))}d}-{plain}"[:100].rstrip("-")


def stacks(trials: Iterable[Trial]) -> list[list[Trial]]:
    """Return the trials in groups that can be trained together, in the order of their first trials.

    The trials of a group differ only in layer, seed and penalty, and ask for nothing but the probe itself.
    """
    groups: dict[Any, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(alike(trial) if is_stacked(trial) else trial.name, []).append(trial)
    return list(groups.values())


def is_stacked(trial: Trial) -> bool:
    """Whether a trial is trained in a stack; others, such as those that choose their penalty, are separate fits."""
    options = trial.options
    has_more = (
        options["mdl"]
        or options["given"] is not None
        or options["transform"] != "none"
        or trial.probe.bias
        or any(options[key] != off for key, off in LIGHT.items())
    )
    return trial.probe.solver == "lbfgs" and trial.probe.l2 != "auto" and not has_more


def by_seed(trials: Sequence[Trial]) -> dict[int, list[Trial]]:
    """Return the trials of each seed, which are trained on the same sentences."""
    groups: dict[int, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.options["seed"], []).append(trial)
    return groups


def alike(trial: Trial) -> str:
    """Return a key of the options that the trials of a stack have in common."""
    options = {name: value for name, value in trial.options.items() if name not in STACKED}
    probe = {name: value for name, value in vars(trial.probe).items() if f"probe.{name}" not in STACKED}
    return repr(sorted({**options, "probe": sorted(probe.items())}.items()))
