"""Tables, charts and sentences of `ablate` on neurons that are changed inside a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from probing.interventions import (
    AGAIN,
    CONTRAST,
    INTERCHANGED,
    TASK,
    TRANSLATED,
    WORD_MASS,
    WORDS,
    measure_of,
    probed_of,
)
from probing.results import (
    Column,
    Row,
    Schema,
    Table,
    cells_table,
    count,
    estimated,
    in_brackets,
    number,
    rounded,
    text,
    whole,
)
from probing.runs import Terms
from probing.statistics import binomial_interval
from probing.studies.ablate.tables import range_of, why_no_intervals
from probing.tables.figures import Chart, Drawings, Line, Panel, by_count
from probing.tables.outlier_effects import (
    N_TOKENS,
    RANKED,
    changed,
    changed_outliers,
    draw_effects,
    effects_table,
    title_of,
)
from probing.tables.schema import effect, layer_column

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _drawn(kind: str) -> tuple[Column, ...]:
    """Return the columns of the effects of drawn sets of neurons."""
    return (
        number(kind, f"Mean effect of the {kind} sets.", form="+.3f"),
        number(f"{kind}_lowest", "The lowest of these effects.", form="+.3f"),
        number(f"{kind}_highest", "The highest of these effects.", form="+.3f"),
        number(f"{kind}_percentile", "Percentage of these sets that do less harm.", form=".0f"),
        number(f"{kind}_p", "(1 + number of these sets that do at least as much harm) / (1 + number of sets)."),
    )


_OF_CHANGE = (
    whole("changed_layer", "Layer whose neurons are changed."),
    text("kind", "What replaces the neurons."),
    whole("k", "Number of neurons that are changed."),
    text("task", "Task of the run whose classes are erased and read; absent for position."),
    text("readout", "What is read."),
    layer_column("Layer that is read."),
    whole("head", "Position head that is read."),
    whole("offset", "Its offset."),
)


NEURON_INTERVENTIONS = Schema("neuron_interventions", "with `--neurons`, a row per set and readout", (
    *_OF_CHANGE,
    text("neurons", "The neurons."),
    number("intact", "The readout of the intact model."),
    number("value", "The readout with these neurons changed."),
    effect("The second minus the first, paired by sentence"),
    *_drawn("random"), *_drawn("matched"),
    number("all_neurons", "With kind interchange, the readout with all neurons of the layer exchanged."),
    number("difference", "Of readout words, by how many nats the intact log odds differ in a pair, on average."),
    whole("n_as_given", "Of readout words, the number of pairs in which this difference is as the file has it."),
    whole("n", "Number of sentences, or of pairs."),
), optional=True)  # fmt: skip


NEURON_DRAWS = Schema("neuron_draws", "with `--neurons`, a row per set, drawn ones too, and readout", (
    *_OF_CHANGE,
    text("set", "chosen, random or matched."),
    whole("draw", "Number of the draw."),
    number("effect", "Difference from the intact model on the sentences that drawn sets are read on.", form="+.3f"),
), optional=True)  # fmt: skip

INTERVENTIONS = Schema("interventions", "with `--neurons outliers`, a row per measure and set of neurons", (
    text("measure", "What is measured while neurons are 0."),
    *changed("inside the model, or after it", "intact, outliers, largest_gain or random"),
    *RANKED, N_TOKENS,
), optional=True)  # fmt: skip

SCHEMAS = NEURON_INTERVENTIONS, NEURON_DRAWS, INTERVENTIONS

# How neurons are changed, as a phrase that follows `neurons of layer N`; where it is by classes, of positions and of a
# run's own task.
OF_NEURONS = {
    "mean": "set to their mean",
    "zero": "set to 0",
    "resample": "with their values at random tokens of other sentences",
    "direction": "without the directions from which position is decoded linearly",
    "shuffled": "without the directions from which shuffled positions are decoded linearly",
    "translate": "moved from the mean of each token's position to the mean of another position",
    "interchange": "exchanged between the sentences of pairs",
}

_KINDS_OF_TASK = {
    "direction": "without the directions from which {} is decoded linearly",
    "shuffled": "without the directions from which shuffled labels of {} are decoded linearly",
    "translate": "moved from the mean of each example's class of {} to the mean of another class",
}

# What a readout by probes is, as a phrase before the probe.
_HOW = {AGAIN: "retrained ", TRANSLATED: "target by ", INTERCHANGED: "counterpart by "}


# The drawn sets that neurons are compared with.
_SETS = {"random": "random sets", "matched": "sets matched in sd"}

# Where outliers are ablated.
WHERE = {"inside": "zeroed inside the model", "after": "clipped after it"}

SENTENCES = {
    "effects": "{measure}: {effects}.",
    "inside": "zeroing {neurons} inside the model changes it by {effect}{worse}",
    "after": "clipping the last hidden states changes it by {effect}{worse}",
    "worse": ", more harm than {percentile:.0f}% of random draws",
    "changed": "Layer {layer}, {neurons} {kind}: {readouts}.",
    "readout": "{name} from {intact:.3f} to {value:.3f} ({effect} {unit}{compared})",
    "drawn": "; {sets} {effect}, p = {p:.2g}",
    "all_neurons": "; all neurons {effect}",
    "words": "In the intact model, the log odds of the two words differ by {difference:.2g} nats between the texts of "
    "a pair, in {n_as_given} of {pairs} in the direction of the file{chance}.",
    "chance": ": not shown to be more than by chance, so do not interpret the shares as effects of what the file is "
    "about",
}


def kind_of(row: Row) -> str:
    """Return the change of a row's neurons, as a phrase that follows `neurons of layer N`."""
    kind = row["kind"]
    return _KINDS_OF_TASK[kind].format(row["task"]) if "task" in row and kind in _KINDS_OF_TASK else OF_NEURONS[kind]


def groups_of(rows: Sequence[Row]) -> list[Table]:
    """Return the rows of each changed layer and kind, in their order."""
    return list(Table(rows).by("changed_layer", "kind").values())


def readouts_of(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the dose curves of one changed layer and kind that are shown, ascending in the number of neurons.

    These are the probes of the last layer, frozen and retrained, the other readouts, and the clearest head: the head
    with the most attention to its offset in the intact model.
    """
    curves: dict[Any, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["k"]):
        curves.setdefault((row["readout"], row["layer"], row.get("head")), []).append(row)
    last = max((layer for readout, layer, _ in curves if probed_of(readout)), default=None)
    masses = {key[1:]: curve[0]["intact"] for key, curve in curves.items() if key[0] == WORD_MASS}
    clearest = max(masses, key=masses.__getitem__, default=None)
    return [
        curve
        for (readout, layer, head), curve in curves.items()
        if (not probed_of(readout) or layer == last)
        and (readout not in (WORD_MASS, CONTRAST) or (layer, head) == clearest)
    ]


def name_of(row: Row) -> str:
    """Return the name of a row's readout."""
    readout, layer = row["readout"], row["layer"]
    if probed := probed_of(readout):
        # Where probes read two things, each is named.
        of = f"{row['task'] if probed == TASK else probed} " if "task" in row else ""
        how = next((words for end, words in _HOW.items() if readout.endswith(end)), "")
        return f"{how}{of}probe of layer {layer}"
    if readout in (WORD_MASS, CONTRAST):
        what = "contrast" if readout == CONTRAST else "attention"
        return f"{what} of head {layer}-{row['head']} at {row['offset']:+d}"
    return f"{measure_of(readout).noun}, layer {layer}"


def tables(rows: Sequence[Row]) -> list[Any]:
    """Return the effects as rich tables, one for each changed layer and kind; of several, the largest sets alone."""
    groups = groups_of(rows)
    return [_table(group, all_sizes=len(groups) == 1) for group in groups]


def _table(rows: Table, all_sizes: bool) -> Any:
    def cells() -> Iterator[list[str]]:
        for curve in readouts_of(rows):
            for row in curve if all_sizes else curve[-1:]:
                start = [_short(row), str(row["k"]), _in_unit(row, row["effect"]), range_of(row)]
                yield [*start, *_range(row, "random"), *_range(row, "matched")]
            yield from ([_short(curve[-1]), "all", effect] for effect in _of_whole(curve[-1]))

    first = rows[0]
    title = f"k neurons of layer {first['changed_layer']} {kind_of(first)}: points, or logits of contrasts"
    return cells_table(title, ("read", "k", "effect", "95% range", "random sets", "p", "matched in sd", "p"), cells())


def _short(row: Row) -> str:
    """Return the name of a row's readout, without the offset of a head."""
    return name_of(row).split(" at ")[0]


def _in_unit(row: Row, effect: float) -> str:
    """Return an effect in the unit of the row's readout."""
    measure = measure_of(row["readout"])
    return rounded(measure.times * effect, f"+.{measure.digits}f")


def _of_whole(row: Row) -> list[str]:
    """Return the effect of all neurons of the layer, in the unit of the readout; empty if not measured."""
    return [_in_unit(row, row["all_neurons"] - row["intact"])] if has(row, "all_neurons") else []


def _range(row: Row, source: str) -> tuple[str, str]:
    if not has(row, source):
        return "", ""
    low, high = (_in_unit(row, row[f"{source}_{end}"]) for end in ("lowest", "highest"))
    return f"{low} to {high}", f"{row[f'{source}_p']:.2g}"


def has(row: Row, source: str) -> bool:
    """Check whether a row was compared with drawn sets, or with all neurons."""
    value = row.get(source)
    return value is not None and value == value


def conclusions(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each changed layer and kind, and the reason if intervals are missing."""
    return [*map(_conclusion, groups_of(rows)), *_pair_baseline_lines(Table(rows)), *why_no_intervals(rows)]


def _pair_baseline_lines(rows: Table) -> list[str]:
    """Return a sentence on the intact model's difference between the texts of pairs, of which the shares are parts.

    It warns of chance where the exact 95% interval of the share of pairs that differ in the file's order reaches one
    half.
    """
    return [
        SENTENCES["words"].format(
            difference=row["difference"], n_as_given=row["n_as_given"], pairs=count(row["n"], "pair"),
            chance="" if binomial_interval(row["n_as_given"], row["n"])[0] > 0.5 else SENTENCES["chance"],
        )
        for row in rows.where(readout=WORDS)[:1]
    ]  # fmt: skip


def _conclusion(rows: Table) -> str:
    first = max(rows, key=lambda row: row["k"])
    return SENTENCES["changed"].format(
        layer=first["changed_layer"], neurons=count(first["k"], "neuron"), kind=kind_of(first),
        readouts="; ".join(_readout_clause(curve[-1]) for curve in readouts_of(rows)),
    )  # fmt: skip


def _readout_clause(row: Row) -> str:
    drawn = [
        SENTENCES["drawn"].format(sets=words, effect=_in_unit(row, row[source]), p=row[f"{source}_p"])
        for source, words in _SETS.items()
        if has(row, source)
    ]
    of_whole = [SENTENCES["all_neurons"].format(effect=effect) for effect in _of_whole(row)]
    return SENTENCES["readout"].format(
        name=name_of(row), intact=row["intact"], value=row["value"], effect=_in_unit(row, row["effect"]),
        unit=measure_of(row["readout"]).unit, compared="".join([in_brackets(range_of(row)), *drawn, *of_whole]),
    )  # fmt: skip


BY_SIZE = by_count("neurons", "neurons")


def charts(rows: Table) -> list[Chart]:
    """Return the effects at each changed layer by number of neurons."""
    return [_dose_chart(layer, of_layer) for layer, of_layer in rows.by("changed_layer").items()]


def _dose_chart(layer: int, rows: Sequence[Row]) -> Chart:
    """Return the effects at one changed layer by number of neurons, a panel for each kind and readout."""
    panels = []
    for curve in (curve for group in groups_of(rows) for curve in readouts_of(group)):
        measure, first = measure_of(curve[0]["readout"]), curve[0]
        lines = [Line.of(curve, "effect", "these neurons", "", x="k", scale=measure.times)]
        for source, words in (("random", "random sets"), ("matched", "sets matched in sd")):
            drawn = [row for row in curve if has(row, source)]
            lines.append(Line.band(drawn, f"{source}_lowest", f"{source}_highest", words, "k", measure.times))
        title = f"{name_of(first)}, kind {first['kind']} (intact: {first['intact']:.3f})"
        panels.append(Panel(lines, title, f"effect ({measure.unit})"))
    title = f"neurons of layer {layer} changed inside the model, 95% intervals; range of drawn sets"
    return Chart(f"neurons_layer_{layer}", title, panels, x=BY_SIZE, reference=0)


# --- outliers ---


def outlier_tables(rows: Table) -> list[Any]:
    """Return the effects as rich tables, one per measure."""
    return [
        effects_table(of_measure, f"taking out {changed_outliers(of_measure)}", "taken out", WHERE, ["large gains"])
        for of_measure in rows.by("measure").values()
    ]


def outlier_conclusions(rows: Table) -> list[str]:
    """Return a sentence on the effects of zeroing inside the model and of clipping its output."""
    if not rows:
        return []
    rows = rows.where(measure=rows[0]["measure"])
    effects = []
    for where in WHERE:
        (row,) = rows.where(where=where, kind="outliers")
        worse = SENTENCES["worse"].format(**row) if "percentile" in row else ""
        effect = estimated(row, "effect", "+.3f")
        effects.append(SENTENCES[where].format(neurons=changed_outliers(rows), effect=effect, worse=worse))
    return [SENTENCES["effects"].format(measure=title_of(rows), effects="; ".join(effects))]


def _draw_outliers(figure: Figure, rows: Table, model: str) -> None:
    """Draw the effects of outliers, inside the model and on its output, with the effects of as many other neurons."""
    measures = rows.by("measure")
    figure.set_size_inches(1.4 + 3.1 * len(measures), 3.2)
    panels = figure.subplots(1, len(measures), squeeze=False)[0]
    for axes, of_measure in zip(panels, measures.values(), strict=True):
        draw_effects(axes, of_measure, {"inside": "zeroed inside\nthe model", "after": "clipped\nafter it"})
    figure.axes[0].set_ylabel("effect (95% interval)")
    figure.suptitle(f"{model} without {changed_outliers(rows)}", x=0.01, ha="left", fontsize=10)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center")


def drawings(rows: Table, model: str) -> Drawings:
    """Return what draws the effects of outliers; nothing without effects."""
    return {"interventions": partial(_draw_outliers, rows=rows, model=model)} if rows else {}


# Meanings of the headings on a page.
TERMS: Terms = {
    "read": "What is read of later layers: probes of position or of the task of a run, frozen and retrained, "
    "heads that attend to a fixed offset, masked words, or the similarity of sentences or words. Target: the share "
    "that probes read as the class that examples are moved to. Counterpart: the share of examples that are read "
    "differently in two sentences and now as in the other one. Log odds carried: the share of the difference "
    "between two texts in the log odds of two words at the mask.",
    "k": "Number of neurons that are changed, the first of the ranking; all: all neurons of the layer.",
    "effect": "Difference from the intact model.",
    "95% range": "Its interval over sentences, or pairs of sentences.",
    "random sets": "Least and largest effect of as many random neurons.",
    "matched in sd": "Least and largest effect of neurons with about the same standard deviations.",
    "p": "Share of the sets to the left with at least as much loss, the changed neurons counted among them.",
}

OUTLIER_TERMS: Terms = {
    "taken out": "Where the neurons are set to 0: inside the model, so that later blocks cannot read them, or after "
    "the model.",
    "effect": "Change of the measure in the title of the table.",
    "95% range": "Interval of the effect over sentences.",
    "random others": "Range of the effects of as many other neurons, drawn at random.",
    "worse than": "Share of these draws that do less harm than the outliers.",
    "p": "Probability that random other neurons do as much harm.",
    "large gains": "Effect of as many other neurons, those with the largest LayerNorm gains.",
}
