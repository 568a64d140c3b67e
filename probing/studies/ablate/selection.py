"""The neurons of the residual stream that the options of `ablate` select, their replacements, and what is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probing.cli.options import chosen, chosen_with_data
from probing.errors import UserError, out_of_range, refuse
from probing.interventions import (
    INTERCHANGE,
    NEURON_KINDS,
    POSITION,
    READOUTS_OF_NEURONS,
    STS,
    TASK,
    WIC,
    WORDS,
    NeuronReplacement,
)
from probing.runs.run import Run
from probing.text import read_couples
from probing.text.tasks import short_name

# Kinds that all neurons of a layer can be changed by, since they leave something of it.
_LEAVE_SOME = frozenset({"direction", "shuffled", "translate", INTERCHANGE})

# What reads pairs, by what is read of them.
_READ_BY = {TASK: "the run's own probes", WORDS: "the model's own head for masked words"}

# Number of neurons of a ranking by default.
TOP = 10


def flag_value(value: Any) -> str:
    """Return the value of an option as it is typed."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def is_of_positions(run: Run) -> bool:
    """Return whether a run predicts positions, with the default options of this task."""
    return run.config["task"] == POSITION and not run.config["task_args"]


@dataclass(frozen=True)
class SelectedNeurons:
    """Neurons of the residual stream that are changed, how, and what is read.

    `neurons` are in the order typed: empty for all neurons of the layer, None for the first `top` of the run's ranking.
    `readouts` has None for a readout without data. `flag_text` is the option that names the neurons, with its value.
    """

    flag_text: str
    neurons: Sequence[int] | None
    top: int | None
    run: Run | None
    kinds: Sequence[NeuronReplacement]
    readouts: Mapping[str, str | None]

    @property
    def task_name(self) -> str | None:
        """Short name of the run's task; None for position with its default options, or without a run."""
        return None if self.run is None or is_of_positions(self.run) else short_name(self.run.config)

    def by_layer(self, layers: Sequence[int], is_all: bool, n_layers: int, d_model: int) -> dict[int, list[int]]:
        """Return the neurons that are changed, by layer; `is_all` means that `--layer` names all layers by default.

        Raises:
            UserError: If no later layer reads one of the layers, the run has no ranking of it, a neuron number is out
                of range, or the neurons are more than half of the layer.
        """
        is_ranked = self.neurons is None and self.run is not None
        ranked_layers = self.run.layers if is_ranked and self.run else list(range(n_layers))
        wrong = [layer for layer in layers if layer not in ranked_layers or layer == n_layers]
        if wrong and not is_all:
            why = "no later layer reads them" if wrong[0] == n_layers else "the run has no ranking of them"
            usable = ", ".join(str(layer) for layer in ranked_layers if layer < n_layers)
            raise UserError(
                f"`--layer {wrong[0]}` with `{self.flag_text}`: neurons of this layer cannot be changed, because "
                f"{why}; give some of {usable}."
            )
        changed_layers = [layer for layer in layers if layer in ranked_layers and layer < n_layers]
        if not changed_layers:
            raise UserError(
                f"`{self.flag_text}` has the last layer alone, which no later layer reads; give another run."
            )
        refuse([
            problem for neuron in self.neurons or () for problem in out_of_range("neurons", neuron, 0, d_model - 1)
        ])  # fmt: skip
        most = d_model // 2
        top = min(TOP, most) if self.top is None else self.top
        n, typed = (top, f"--top {top}") if self.neurons is None else (len(self.neurons), self.flag_text)
        if n > most:
            raise UserError(f"`{typed}`: {n} neurons are more than half of the {d_model}; give at most {most}.")
        if self.neurons is not None or self.run is None:
            return {layer: list(self.neurons or range(d_model)) for layer in changed_layers}
        return {layer: [row["neuron"] for row in self.run.top(layer, top)] for layer in changed_layers}


def selected_neurons(config: dict[str, Any], run: Run | None) -> SelectedNeurons:
    """Return the neurons that are changed, of a run if one is named, and set the readouts in `config`.

    Raises:
        UserError: If options contradict each other.
    """
    typed = flag_value(config["neurons"])
    kinds = _kinds(config)
    if typed == "all" and not _LEAVE_SOME.issuperset(kinds):
        raise UserError(
            f"`--neurons all` with `--kinds {flag_value(config['kinds'] or kinds)}` would leave nothing of the layer; "
            "give `--kinds direction`, which removes only the directions from which position, or the task of `--run`, "
            "is decoded, its control `shuffled`, or `translate`."
        )
    readouts = _readouts(config, kinds, run)
    neurons = {"ranked": None, "all": ()}[typed] if typed in ("ranked", "all") else _numbers(typed)
    return SelectedNeurons(f"--neurons {typed}", neurons, config["top"], run, kinds, readouts)


def _kinds(config: Mapping[str, Any]) -> list[NeuronReplacement]:
    """Return the replacements of neurons; with `--pairs`, `interchange` alone."""
    typed, pairs = flag_value(config["kinds"] or "mean"), config["pairs"]
    if pairs is None:
        if INTERCHANGE in typed.split(","):
            raise UserError(
                f"`--kinds {typed}`: neurons are exchanged between the sentences of pairs; give them as --pairs FILE, "
                "with lines `sentence TAB counterfactual`."
            )
        return chosen("--kinds", typed, NEURON_KINDS)
    if typed != INTERCHANGE:
        raise UserError(f"`--pairs {pairs}` is read by `--kinds interchange` alone, and `--kinds {typed}` is given.")
    if pairs == "-":
        raise UserError("`--pairs -`: pairs are read more than once; give them as a file.")
    readout = _read_of_pairs(pairs)
    if config["run"] is None and readout == TASK:
        raise UserError(
            f"`--pairs {pairs}`: the probes of a run read whole sentences; give `--run` too, or texts with [MASK]."
        )
    if config["readouts"] not in (None, readout):
        raise UserError(
            f"`--readouts {flag_value(config['readouts'])}` with `--kinds interchange`: pairs are read by "
            f"{_READ_BY[readout]} alone; leave the option out."
        )
    return [INTERCHANGE]


def _read_of_pairs(pairs: str) -> str:
    """Return the readout of a file of pairs: the run's task for whole sentences, words for texts with masks."""
    return TASK if read_couples(pairs)[0].words is None else WORDS


def _readouts(config: dict[str, Any], kinds: Sequence[NeuronReplacement], run: Run | None) -> dict[str, str | None]:
    """Return the readouts with their data, by default the run's task, and set them in the configuration."""
    has_no_task = run is None or is_of_positions(run)
    if INTERCHANGE in kinds and (readout := _read_of_pairs(config["pairs"])) == WORDS:
        config["readouts"] = readout
        return {readout: None}
    if INTERCHANGE in kinds and has_no_task:
        raise UserError(
            f"`--run {config['run']}` with `--kinds interchange`: tokens at the same position are exchanged, and the "
            "run predicts positions; give a run of another task, or pairs of texts with [MASK]."
        )
    config["readouts"] = config["readouts"] or (POSITION if has_no_task else TASK)
    readouts = chosen_with_data("--readouts", config["readouts"], READOUTS_OF_NEURONS)
    if TASK in readouts and run is None:
        raise UserError("`--readouts task` reads the classes of the task of a run; give `--run` too.")
    if TASK in readouts and has_no_task:
        readouts = {name: data for name, data in readouts.items() if name != TASK} | {POSITION: None}
    others = [name for name in (STS, WIC) if name in readouts]
    if others and "translate" in kinds:
        raise UserError(
            f"`--readouts {others[0]}={readouts[others[0]]}` with `--kinds translate`: words are moved from their own "
            "class to another, and those of these sentences have none; leave one of the two out."
        )
    return {name: readouts[name] for name in READOUTS_OF_NEURONS if name in readouts}


def _numbers(typed: str) -> list[int]:
    """Parse `--neurons` into neuron numbers; refuse duplicates."""
    try:
        numbers = [int(word) for word in typed.split(",")]
    except ValueError:
        raise UserError(
            f"`--neurons {typed}`: expected numbers of neurons, such as 18,99, or ranked, all or outliers."
        ) from None
    if twice := [n for n in numbers if numbers.count(n) > 1]:
        raise UserError(f"`--neurons {typed}`: neuron {twice[0]} is there twice; name each once.")
    return numbers
