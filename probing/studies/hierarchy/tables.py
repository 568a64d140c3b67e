"""Tables, charts and sentences of `hierarchy`."""

from __future__ import annotations

from collections.abc import Iterator

from probing.data import CONTROLS as OF_FIT
from probing.results import Column, Schema, Table, View, estimate, estimated, layers_by, layers_named, text, whole
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
_ABOVE = {1: "above it", -1: "below it", 0: "not distinguished from it"}


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
    rules = layers_by(model_rows, "preference", {sign: f"{rule} in {{layers}}" for sign, rule in _RULES.items()})
    yield SENTENCES["rules"].format(task=name, rules=rules)
    for row in model_rows.first_and_last():
        yield SENTENCES["shares"].format(
            task=name, layer=row["layer"], linear=named(linear),
            generalisation=estimated(row, "generalisation", ".1%", ""), share=estimated(row, linear, ".1%"),
        )  # fmt: skip
    for control, words in CONTROLS.items():
        if compared := of_model(rows, task, control):
            where = layers_by(
                compared, "difference", {sign: f"{verdict} in {{layers}}" for sign, verdict in _ABOVE.items()}
            )
            yield SENTENCES["control"].format(task=name, control=words, where=where)
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
