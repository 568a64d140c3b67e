"""The options of `geometry --interventions` on neurons of the stream, and the run that they may come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from probing.cli.option_types import chosen, chosen_with_data
from probing.corpus.splits import read_couples
from probing.errors import UserError, out_of_range, refuse
from probing.readouts.names import POSITION, READOUTS_OF_RUN, STS, TASK, WIC, WORDS
from probing.runs.loading import read_as_run
from probing.runs.run import Run, load_fit, of_text
from probing.tasks import short_name

# Options whose values are those of `--from_run`, where it is given.
OF_RUN = ("model", "revision", "random_weights", "corpus", "max_length")
# Options that are about neurons of the stream alone.
_ABOUT_NEURONS = ("kind", "pairs", "at", "readouts", "tokens", "retrain")
# Defaults of earlier versions, which stand in the configurations of their runs.
_USUAL_BEFORE = {"readouts": POSITION}
Kind = Literal["mean", "zero", "resample", "direction", "shuffled", "translate", "interchange"]
KINDS: tuple[Kind, ...] = ("mean", "zero", "resample", "direction", "shuffled", "translate")
# Kinds that all neurons of a layer can be changed by, since they leave something of it.
_LEAVE_SOME = frozenset({"direction", "shuffled", "translate", "interchange"})
# The kind that reads pairs of sentences in place of the corpus.
INTERCHANGE: Kind = "interchange"
# What reads pairs, by what is read of them.
_READ_BY = {TASK: "the run's own probes", WORDS: "the model's own head for masked words"}
# Number of neurons from a run by default.
TOP = 10


@dataclass(frozen=True)
class Stream:
    """Neurons of the stream that are to be changed.

    Args:
        neurons: Their numbers, in the order typed; none for all of the layer; None if they come from a run.
        run: The run whose ranking they come from.
        typed: The option that names them, with its value, for messages.
        top: Number of neurons from the run; None for the default.
        kinds: What stands in their place.
        readouts: What is read, by the name of the option, with its data; None where there is none.
    """

    neurons: Sequence[int] | None
    run: Run | None
    typed: str
    top: int | None
    kinds: Sequence[Kind]
    readouts: Mapping[str, str | None]

    @property
    def own_task(self) -> str | None:
        """Name of the run's task, where it is another than position, whose default options are no others."""
        return None if self.run is None or _is_of_positions(self.run) else short_name(self.run.config)

    def split_seed(self, seed: int) -> int:
        """Return the seed of the split of sentences."""
        return seed if self.run is None else int(self.run.config["seed"])

    def ranked(self, layers: Sequence[int], is_all: bool, n_layers: int, d_model: int) -> dict[int, list[int]]:
        """Return the neurons that are changed, by layer.

        Args:
            layers: The layers that `--layer` names.
            is_all: Whether it names all, because nothing else was typed.
            n_layers: Number of blocks of the model.
            d_model: Number of neurons of a layer.

        Raises:
            UserError: If nothing reads one of the layers, the run does not have it, or there are no such neurons.
        """
        is_ranked = self.neurons is None
        there = self.run.layers if is_ranked and self.run is not None else list(range(n_layers))
        wrong = [layer for layer in layers if layer not in there or layer == n_layers]
        if wrong and not is_all:
            why = "no later layer reads them" if wrong[0] == n_layers else "the run has no ranking of them"
            usable = ", ".join(str(layer) for layer in there if layer < n_layers)
            raise UserError(
                f"`--layer {wrong[0]}` with `{self.typed}`: neurons of this layer cannot be changed, because {why}; "
                f"give some of {usable}."
            )
        found = [layer for layer in layers if layer in there and layer < n_layers]
        if not found:
            raise UserError(f"`{self.typed}` has the last layer alone, which no later layer reads; give another run.")
        if self.neurons is not None:
            refuse([
                problem for neuron in self.neurons for problem in out_of_range("neurons", neuron, 0, d_model - 1)
            ])  # fmt: skip
        most = d_model // 2
        top = min(TOP, most) if self.top is None else self.top
        n = top if self.neurons is None else len(self.neurons)
        if n > most:
            option = f"`--top {n}`" if self.neurons is None else f"`{self.typed}`"
            raise UserError(f"{option}: {n} neurons are more than half of the {d_model}; give at most {most}.")
        if self.neurons is not None or self.run is None:
            return {layer: list(self.neurons or range(d_model)) for layer in found}
        return {layer: [row["neuron"] for row in self.run.top(layer, top)] for layer in found}


def stream_of(config: dict[str, Any], usual: Mapping[str, Any]) -> Stream | None:
    """Return the neurons that are to be changed, and note in the configuration what is read because of a run.

    Args:
        config: The resolved configuration, which is changed.
        usual: The defaults of the options.

    Raises:
        UserError: If options contradict each other, or the run is not one whose neurons can be changed.
    """
    given = [name for name in ("neurons", "from_run") if config[name] is not None]
    if given == ["from_run"] and config["position"] and not config["interventions"]:
        given = []  # the run's ranking is only compared with the position part
    if not given:
        for name in _ABOUT_NEURONS:
            if config[name] not in (usual[name], _USUAL_BEFORE.get(name)):
                named = "none are named; give `--neurons` or `--from_run` too"
                if config["from_run"] is not None:
                    named = "none are; add `--interventions`"
                raise UserError(f"`--{name} {_as_typed(config[name])}` says how neurons are changed, and {named}.")
        return None
    typed = f"--{given[0]} {_as_typed(config[given[0]])}"
    if not config["interventions"]:
        raise UserError(f"`{typed}` names neurons that are changed inside of the model; add `--interventions`.")
    takes_all = _as_typed(config["neurons"]) == "all"
    if len(given) == 2 and not takes_all:
        raise UserError(f"`{typed}` and `--from_run {config['from_run']}` both name neurons; leave one of the two out.")
    if config["dtype"] != "float32":
        raise UserError(f"`--dtype {config['dtype']}`: neurons are changed in float32 alone; leave the option out.")
    if config["first_token"] == "exclude":
        raise UserError(
            f"`--first_token exclude` and `{typed}`: neurons are changed at every word, the first one too; leave one "
            "of the two out."
        )
    if config["corpus"] == "-":
        raise UserError("`--corpus -`: with neurons that are changed the text is read twice; give it as a file.")
    refuse([
        *out_of_range("tokens", config["tokens"], 1), *out_of_range("retrain", config["retrain"], 0),
        *(out_of_range("top", config["top"], 1) if config["from_run"] else []),
    ])  # fmt: skip
    kinds = _kinds(config, usual)
    if takes_all and not _LEAVE_SOME.issuperset(kinds):
        raise UserError(
            f"`--neurons all` with `--kind {_as_typed(config['kind'])}` would leave nothing of the layer; give "
            "`--kind direction`, which takes from it what tells the position alone, or the task of `--from_run`, its "
            "control `shuffled`, or `translate`."
        )
    run = None if config["from_run"] is None else _run_of(config, usual)
    readouts = _readouts(config, kinds, run)
    if takes_all:
        return Stream((), run, typed, None, kinds, readouts)
    if run is None:
        return Stream(_numbers(config["neurons"]), None, typed, None, kinds, readouts)
    return Stream(None, run, typed, config["top"], kinds, readouts)


def compared_run(config: dict[str, Any], usual: Mapping[str, Any], stream: Stream | None) -> Run | None:
    """Return the run of `fit` whose ranking is compared with the position part; None if there is none.

    Args:
        config: The resolved configuration, which is changed to that of the run.
        usual: The defaults of the options.
        stream: The neurons that are changed, if there are any.

    Raises:
        UserError: If the run's neurons are not those of hidden states, or an option contradicts it.
    """
    if not config["position"] or config["from_run"] is None:
        return None
    return _run_of(config, usual) if stream is None else stream.run


def _kinds(config: Mapping[str, Any], usual: Mapping[str, Any]) -> list[Kind]:
    """Return what stands in the place of neurons: values of other sentences of pairs alone, where there are pairs.

    Raises:
        UserError: If there is no such kind, there are no pairs for `interchange`, or pairs with something else.
    """
    typed, pairs = _as_typed(config["kind"]), config["pairs"]
    if pairs is None:
        if INTERCHANGE in typed.split(","):
            raise UserError(
                f"`--kind {typed}`: neurons are exchanged between the sentences of pairs; give them as --pairs FILE, "
                "with lines `sentence TAB counterfactual`."
            )
        return chosen("--kind", config["kind"], KINDS)
    if typed != INTERCHANGE:
        raise UserError(f"`--pairs {pairs}` is read by `--kind interchange` alone, and `--kind {typed}` is given.")
    if pairs == "-":
        raise UserError("`--pairs -`: pairs are read more than once; give them as a file.")
    own = _read_of_pairs(pairs)
    if config["from_run"] is None and own == TASK:
        raise UserError(
            f"`--pairs {pairs}`: the probes of a run read whole sentences; give `--from_run` too, or texts with [MASK]."
        )
    for name, allowed in (("readouts", own), ("retrain", None)):
        if config[name] not in (usual[name], allowed):
            raise UserError(
                f"`--{name} {_as_typed(config[name])}` with `--kind interchange`: pairs are read by {_READ_BY[own]} "
                "alone; leave the option out."
            )
    return [INTERCHANGE]


def _read_of_pairs(pairs: str) -> str:
    """Return what is read of a file of pairs: classes of a run in whole sentences, two words at masks.

    Raises:
        UserError: If the file holds no pairs.
    """
    return TASK if read_couples(pairs)[0].words is None else WORDS


def _readouts(config: dict[str, Any], kinds: Sequence[Kind], run: Run | None) -> dict[str, str | None]:
    """Return what is read, by default the run's own task, and note it in the configuration.

    Raises:
        UserError: If there is no such readout, or it cannot be read under one of the kinds.
    """
    is_of_positions = run is None or _is_of_positions(run)
    if INTERCHANGE in kinds and (own := _read_of_pairs(config["pairs"])) == WORDS:
        config["readouts"] = own
        return {own: None}
    if config["readouts"] is None:
        config["readouts"] = POSITION if is_of_positions else TASK
    if INTERCHANGE in kinds and is_of_positions:
        raise UserError(
            f"`--from_run {config['from_run']}` with `--kind interchange`: tokens at the same position are exchanged, "
            "and the run predicts positions; give a run of another task, or pairs of texts with [MASK]."
        )
    found = chosen_with_data("--readouts", config["readouts"], READOUTS_OF_RUN)
    if TASK in found and run is None:
        raise UserError("`--readouts task` reads the classes of the task of a run; give `--from_run` too.")
    if TASK in found and is_of_positions:
        found = {name: data for name, data in found.items() if name != TASK} | {POSITION: None}
    others = [name for name in (STS, WIC) if name in found]
    if others and "translate" in kinds:
        raise UserError(
            f"`--readouts {others[0]}={found[others[0]]}` with `--kind translate`: words are moved from their own "
            "class to another, and those of these sentences have none; leave one of the two out."
        )
    return {name: found[name] for name in READOUTS_OF_RUN if name in found}


def _is_of_positions(run: Run) -> bool:
    return run.config["task"] == POSITION and not run.config["task_args"]


def _as_typed(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _numbers(typed: Any) -> list[int]:
    """Return the numbers of neurons.

    Raises:
        UserError: If one is not a whole number, or is there twice.
    """
    words = _as_typed(typed)
    try:
        found = [int(word) for word in words.split(",")]
    except ValueError:
        raise UserError(f"`--neurons {words}`: expected numbers of neurons, such as 18,99, or all.") from None
    if twice := [n for n in found if found.count(n) > 1]:
        raise UserError(f"`--neurons {words}`: neuron {twice[0]} is there twice; name each once.")
    return found


def _run_of(config: dict[str, Any], usual: Mapping[str, Any]) -> Run:
    run = of_text(load_fit(config["from_run"]))
    read_as_run(run, f"--from_run {config['from_run']}", config, usual, OF_RUN)
    return run
