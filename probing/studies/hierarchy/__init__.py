"""The study `hierarchy`: generalisation of probes by linear order or by hierarchy, if trained where both agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from probing.cli.commandline import command
from probing.cli.options import OutputOptions, ProbedOptions, RunOptions, StatesOptions, option
from probing.data import CONTROLS as OF_FIT
from probing.results import Column, Schema, Table, View, estimate, estimated, layers_by, layers_named, text, whole
from probing.runs import Result, Study, study_of
from probing.runs.call import Call
from probing.runtime import quiet_libraries
from probing.runtime.processes import is_main_process
from probing.tables.figures import Chart, Line, Panel
from probing.tables.schema import layer_column

# The column of what linear order gives, by task.
LINEAR = {"main_auxiliary": "first_auxiliary", "subject_noun": "first_noun"}

_TASK = text(
    "task",
    "What the probe looks for: main_auxiliary or subject_noun.",
    labels={name: name.replace("_", " ") for name in LINEAR},
)

_CONDITION = text("condition", "model for the model itself, or the control.")

_LINEAR = "Share of the sentences in which the two rules differ whose answer follows linear order"

_SHARES = (
    Column("generalisation", float, "Accuracy in the sentences in which the two rules differ; low, high: its 95% "
           "interval.", form=".3f", interval=""),
    estimate("first_auxiliary", f"{_LINEAR}, by the first auxiliary."),
    estimate("first_noun", f"{_LINEAR}, by the first noun."),
    estimate("preference", "Accuracy minus the share whose answer follows linear order, paired."),
)  # fmt: skip

HIERARCHY = Schema("hierarchy", "a row per task, condition and layer", (
    _TASK, _CONDITION, layer_column(),
    estimate("test", "Accuracy in the sentences in which both rules give the same answer, as in training."),
    *_SHARES,
    estimate("difference", "Of a control: generalisation of the model minus that of the control, paired."),
))  # fmt: skip

DISTRACTORS = Schema("distractors", "the same for each construction that holds the first auxiliary, or noun", (
    _TASK, _CONDITION,
    text("distractor", "The construction: subject_relative, object_relative, compound or possessive."),
    layer_column(), *_SHARES, whole("n", "Number of sentences."),
))  # fmt: skip

# The controls, with their labels in tables and figures.
CONTROLS = {name: OF_FIT[name].words for name in ("untrained", "permuted_positions")}

# Stands for the model itself among the conditions.
ITSELF = "model"

# A probe that is right in a smaller share of test sentences has not learned the task whose generalisation is measured.
LEARNED = 0.95

VIEWS = (
    View(
        HIERARCHY, ("layer", "test", "generalisation*", "first_auxiliary*", "first_noun*"),
        "{task}: accuracy, and share whose answer follows linear order", "task", {"condition": ITSELF},
        ("condition", "generalisation", CONTROLS),
    ),
)  # fmt: skip

SENTENCES = {
    "rules": "{task}: where the two rules differ, probes follow {rules}.",
    "shares": "{task}, layer {layer}: correct in {generalisation} of the sentences in which the {linear} is wrong; the "
    "answer is the {linear} in {share}.",
    "control": "{task}, compared with {control}: the model is {where}.",
    "unlearned": "{task}: in {layers} the probe is correct in less than {learned:.0%} of test sentences of the kind "
    "that it was trained on: it did not learn the task, so its answers to other sentences say little.",
}

_RULES = {-1: "linear order", 1: "hierarchy", 0: "neither beyond the interval"}


def named(task: str) -> str:
    """Return a task as text: `main auxiliary`."""
    return task.replace("_", " ")


def of_model(rows: Table, task: str, condition: str = ITSELF) -> Table:
    """Return the rows of a task for the model itself or for a control, by layer."""
    return rows.where(task=task, condition=condition)


def conclusions(rows: Table) -> list[str]:
    """Return a few sentences for each task."""
    return [line for task in rows.values("task") for line in _of_task(rows, task)]


def _of_task(rows: Table, task: str) -> Iterator[str]:
    name, linear, model_rows = named(task).capitalize(), LINEAR[task], of_model(rows, task)
    yield SENTENCES["rules"].format(task=name, rules=layers_by(model_rows, "preference", _RULES))
    for row in model_rows.first_and_last():
        yield SENTENCES["shares"].format(
            task=name, layer=row["layer"], linear=named(linear),
            generalisation=estimated(row, "generalisation", ".1%", ""), share=estimated(row, linear, ".1%"),
        )  # fmt: skip
    for control, words in CONTROLS.items():
        if compared := of_model(rows, task, control):
            yield SENTENCES["control"].format(task=name, control=words, where=layers_by(compared, "difference"))
    if unlearned := model_rows.layers(lambda row: row["test"] < LEARNED):
        yield SENTENCES["unlearned"].format(task=name, layers=layers_named(unlearned), learned=LEARNED)


def charts(rows: Table) -> list[Chart]:
    """Return the shares by layer, a panel for each task."""
    panels = [Panel(_lines(rows, task), named(task)) for task in rows.values("task")]
    title = "does a probe generalise by linear order, or by hierarchy? (bars: 95% over sentences)"
    return [Chart("hierarchy", title, panels, "share of sentences", limits=(0, 1))]


def _lines(rows: Table, task: str) -> list[Line]:
    model_rows, linear = of_model(rows, task), LINEAR[task]
    lines = [
        Line.of(model_rows, "generalisation", "rules differ: correct", ""),
        Line.of(model_rows, "test", "rules agree: correct"),
        Line.of(model_rows, linear, "rules differ: the first auxiliary, or noun"),
    ]
    controls = {words: of_model(rows, task, control) for control, words in CONTROLS.items()}
    return lines + [
        Line.of(compared, "generalisation", f"{words}: correct", "") for words, compared in controls.items() if compared
    ]


@dataclass(frozen=True)
class HierarchyOptions(OutputOptions, ProbedOptions, RunOptions, StatesOptions):
    """Options of `hierarchy`."""

    tasks: str | list[str] = option("all", choices=LINEAR)
    """Words that the probe predicts: all, or some of main_auxiliary (the auxiliary of the main clause) and subject_noun
    (the head of the subject)."""
    controls: str | list[str] = option("all", choices=CONTROLS, nothing="none")
    """Controls: all, none, or some of untrained (a randomly initialised model) and permuted_positions (the model reads
    each sentence with permuted tokens)."""
    train_sentences: int = option(2500, at_least=1, at_most=100_000)
    """Number of training sentences."""
    test_sentences: int = option(500, at_least=1, at_most=100_000)
    """Number of validation sentences, on which the penalty is selected, and also of test sentences; both are of the
    same kind as the training sentences."""
    generalisation_sentences: int = option(1000, at_least=1, at_most=100_000)
    """Number of sentences in which the two rules differ."""
    batch_tokens: int | None = None
    _: KW_ONLY
    seed: int = 0
    """Seed of every random draw: the sentences, permuted tokens, adam's batches, random initialisation."""
    name: str | None = None
    """Name of this run; default: MODEL-hierarchy-YYYYMMDD-HHMMSS."""
    trainer: dict[str, Any] | None = None
    """Arguments of Lightning's Trainer, such as --trainer.max_epochs 50."""

    def problems(self) -> list[str]:
        """Return the problem with a probe that has an intercept."""
        return self.probe_options.problems_without_bias()


@command(HierarchyOptions)
def hierarchy(options: HierarchyOptions) -> Result | None:
    """Test whether a probe of each layer generalises by linear order or by hierarchy.

    The sentences come from a grammar. In the training sentences, the first auxiliary (or noun) is the main auxiliary
    (or noun); in the generalisation sentences, it is not.

    Returns:
        The results; None except in the rank-zero process.
    """
    call = Call.of(study_of("hierarchy"), options)
    with quiet_libraries():
        from probing.studies.hierarchy.survey import survey

        source = call.source(options.probe_options.solver, tokenizer=options.tokenizer)
        call.expect(2 * len(options.selected("tasks")))
        output = survey(source, options)
        if not is_main_process():
            return None
        return call.write(source.model, lambda _: output)


class Hierarchy(Study):
    """Generalisation of probes by linear order or by hierarchy."""

    name, kind, title = "hierarchy", "linear order or hierarchy", "Linear order or hierarchy"
    function = "probing.studies.hierarchy:hierarchy"
    in_several_processes = True
    schemas = HIERARCHY, DISTRACTORS
    page = "small-studies.md#linear-order-or-hierarchy"
    files: ClassVar[Mapping[str, str]] = {
        "figures/hierarchy": "The shares by layer, a panel for each task.",
    }

    views = VIEWS

    def charts(self, result: Result) -> list[Chart]:
        """Return the shares by layer."""
        return charts(result.hierarchy)

    def conclusions(self, result: Result) -> list[str]:
        """Return which layers follow which rule."""
        return conclusions(result.hierarchy)


STUDY = Hierarchy()
