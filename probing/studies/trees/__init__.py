"""The study `trees`: dependency trees decoded from hidden states, by a structural probe with a certificate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from probing.cli.commandline import command
from probing.cli.option_types import GroupBy, Source
from probing.cli.options import BatchOptions, CorpusOptions, OneProcessOptions, OutputOptions, StatesOptions, option
from probing.errors import flag
from probing.results import (
    Schema,
    View,
    estimate,
    estimated,
    interval,
    layers_by,
    layers_named,
    number,
    sign_of_interval,
    text,
    whole,
)
from probing.runs import Result, Study, study_of
from probing.runs.call import Call, Measured
from probing.runtime import quiet_libraries
from probing.tables.figures import Chart, Line, Panel
from probing.tables.schema import layer_column

ITSELF = "model"
# The controls, with their labels in tables and figures.
CONTROLS = {
    "untrained": "randomly initialised",
    "permuted_positions": "permuted tokens",
    "permuted_trees": "trees of other sentences",
}

TREES = Schema("trees", "a row per condition and layer", (
    text("condition", "model for the model itself, or the control."), layer_column(),
    estimate("uuas", "Share of the edges of the gold trees, without punctuation, in the minimum spanning trees of the "
             "predicted distances.", "UUAS"),
    estimate("distance_spearman", "Rank correlation of the predicted and gold distances of a word from all others, "
             "averaged over sentences of one length, then over lengths 5 to 50.", "DSpr"),
    estimate("root", "Share of the sentences whose root is the word with the least predicted depth.", "root"),
    estimate("depth_spearman", "Rank correlation of predicted and gold depths, averaged like DSpr.", "NSpr"),
    number("chain", "UUAS of the linear chain, which joins each word to the next."),
    estimate("above_chain", "UUAS minus that of the linear chain, paired.", "above chain", "+.3f"),
    estimate("above_embeddings", "UUAS minus that of layer 0, paired.", "above layer 0", "+.3f"),
    estimate("difference", "Of a control: UUAS of the model minus that of the control.", "", "+.3f"),
    number("error", "Mean squared error of predicted distances: over the pairs of a sentence, then over sentences.",
           form=".2f"),
    whole("rank_distance", "Rank of the metric for distances: its number of directions.", "directions"),
    whole("rank_depth", "Rank of the metric for depths.", "directions, depth"),
    number("gap_distance", "Largest distance of the objective of the probe of distances to its optimum, as a share.",
           form=".1e"),
    number("gap_depth", "The same for depths.", form=".1e"),
    number("first_10_share", "Share of predicted distances that the first ten neurons contribute.", "first 10 neurons"),
    number("directions_low", "The same share of random directions: the smallest of the rotations."),
    number("directions_high", "The same share of random directions: the largest of the rotations."),
))  # fmt: skip
TREE_NEURONS = Schema("tree_neurons", "a row per layer and neuron among the first 20", (
    layer_column(), whole("rank", "Rank by contribution, from 1."), whole("neuron", "Number of the neuron, from 0."),
    number("contribution", "Mean over pairs of test words of the size of the neuron's part of the predicted squared "
           "distance; the parts of all neurons add up to it."),
    number("share", "Share of the contributions of all neurons.", form=".1%"),
))  # fmt: skip

SENTENCES = {
    "best": "Trees are decoded best from layer {layer}: UUAS {uuas}, of the linear chain {chain:.3f}.",
    "chain": "The probe is {where} the linear chain.",
    "embeddings": "It is {where} the embeddings (layer 0).",
    "control": "Compared with {control}, the model is {where}.",
    "basis": "In {layers} the first ten neurons contribute more than those of every random basis ({share}, directions "
    "{directions} in layer {layer}): the metric favours single neurons.",
    "no_basis": "In no layer do the first ten neurons contribute more than ten directions of every random basis: the "
    "metric is in directions, not in neurons.",
}
_ABOVE = {
    1: "above {what}in {{layers}}",
    -1: "below {what}in {{layers}}",
    0: "not distinguished from {what}in {{layers}}",
}


def _where(what: str) -> dict[int, str]:
    return {sign: phrase.format(what=what) for sign, phrase in _ABOVE.items()}


@dataclass(frozen=True)
class TreesOptions(OutputOptions, OneProcessOptions, BatchOptions, CorpusOptions, StatesOptions):
    """Options of `trees`."""

    corpus: Source = ""
    """Treebank: a .conllu file."""
    train_sentences: int = option(2000, at_least=20)
    """Maximum number of training sentences, which are sampled; validation sentences are at most a quarter of them."""
    controls: str | list[str] = option("all", choices=CONTROLS, nothing="none")
    """Controls: all, none, or some of untrained (a randomly initialised model), permuted_positions (the model reads
    each sentence with permuted tokens) and permuted_trees (trees of other sentences of equal length)."""
    rotations: int = option(20, at_least=0)
    """Number of random rotations of the neurons, whose directions are compared with the neurons; 0 for none."""
    penalty: float | None = None
    """Penalty of the metric's trace; by default chosen on validation sentences, one for all layers."""
    group_by: GroupBy = "auto"
    _: KW_ONLY
    name: str | None = None
    """Name of this run; default: MODEL-trees-YYYYMMDD-HHMMSS."""

    def problems(self) -> list[str]:
        """Return the problems with a missing treebank and a penalty that is not positive."""
        missing = [] if self.corpus else [f"{flag('corpus')} is missing: give a treebank, a .conllu file"]
        if self.penalty is not None and not 0 < self.penalty < float("inf"):
            missing.append(f"{flag('penalty', self.penalty)} is out of range: expected a number above 0")
        return missing


@command(TreesOptions)
def trees(options: TreesOptions) -> Result | None:
    """Decode dependency trees from each layer by a linear metric of its hidden states.

    Returns:
        The results.
    """
    call = Call.of(study_of("trees"), options)
    with quiet_libraries():
        from probing.studies.trees.survey import Treebank, TreeConfig, survey
        from probing.text import intervals_by_document, read_corpora

        corpora, splits = read_corpora(options.corpus, options.test_corpus, options.seed, call.say, options.group_by)
        settings = TreeConfig(
            options.selected("controls"), options.train_sentences, options.penalty, options.rotations, options.seed
        )
        treebank = Treebank.of(corpora, splits, intervals_by_document(options.group_by, corpora), settings)
        source = call.source(tokenizer=options.tokenizer)
        tables, results = survey(source, treebank, settings, call.say)
        return call.write(source.model, lambda _: Measured(tables, results, _curves(tables["trees"])))


def _curves(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = ("uuas", "distance_spearman", "root", "depth_spearman")
    return [
        {"layer": row["layer"], **{name: row[name] for name in names if name in row}}
        for row in rows
        if row["condition"] == ITSELF
    ]


class Trees(Study):
    """Dependency trees decoded from hidden states."""

    name, kind, title = "trees", "dependency trees", "Dependency trees"
    function = "probing.studies.trees:trees"
    schemas = TREES, TREE_NEURONS
    page = "trees.md"
    files: ClassVar[Mapping[str, str]] = {"figures/trees": "UUAS and rank correlation of distances by layer."}
    views = (
        View(TREES, ("layer", "uuas*", "distance_spearman*", "root*", "depth_spearman*", "rank_distance"),
             "dependency trees by layer", "", {"condition": ITSELF}, ("condition", "uuas", CONTROLS)),
        View(TREE_NEURONS, ("layer", "rank", "neuron", "share"), "neurons of the metric", "", {"rank": 1}),
    )  # fmt: skip

    def charts(self, result: Result) -> list[Chart]:
        """Return the scores by layer."""
        rows = result.trees
        conditions = {ITSELF: "the model", **CONTROLS}
        model = rows.where(condition=ITSELF)
        panels = []
        for column in ("uuas", "distance_spearman"):
            lines = [
                Line.of(rows.where(condition=name), column, label)
                for name, label in conditions.items()
                if rows.where(condition=name)
            ]
            if column == "uuas":
                lines.append(Line.of(model, "chain", "linear chain"))
            panels.append(Panel(lines, TREES[column].words))
        return [Chart("trees", "dependency trees by layer (bars: 95% over sentences)", panels, "score", limits=(0, 1))]

    def conclusions(self, result: Result) -> list[str]:
        """Return the best layer, and what it is compared with."""
        return list(_conclusions(result))


def _conclusions(result: Result) -> Iterator[str]:
    rows = result.trees.where(condition=ITSELF)
    best = max(rows, key=lambda row: row["uuas"])
    yield SENTENCES["best"].format(layer=best["layer"], uuas=estimated(best, "uuas"), chain=best["chain"])
    yield SENTENCES["chain"].format(where=layers_by(rows, "above_chain", _where("it ")).replace(" it in", " in", 0))
    if later := rows.where(lambda row: "above_embeddings" in row):
        yield SENTENCES["embeddings"].format(where=layers_by(later, "above_embeddings", _where("them ")))
    for control, words in CONTROLS.items():
        if compared := result.trees.where(condition=control):
            yield SENTENCES["control"].format(control=words, where=layers_by(compared, "difference", _where("it ")))
    if any("directions_high" in row for row in rows):
        yield from _of_basis([row for row in rows if "directions_high" in row])


def _of_basis(rows: list[dict[str, Any]]) -> Iterator[str]:
    above = [row for row in rows if row["first_10_share"] > row["directions_high"]]
    if not above:
        yield SENTENCES["no_basis"]
        return
    most = max(above, key=lambda row: row["first_10_share"] - row["directions_high"])
    yield SENTENCES["basis"].format(
        layers=layers_named([row["layer"] for row in above]), layer=most["layer"], share=f"{most['first_10_share']:.1%}",
        directions=interval(most, "directions", " to ", ".1%"),
    )  # fmt: skip


STUDY = Trees()
