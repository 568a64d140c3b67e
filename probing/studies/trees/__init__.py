"""The study `trees`: dependency trees decoded from hidden states, by a structural probe with a certificate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from probing.cli.commandline import command
from probing.cli.options import (
    BatchOptions,
    CorpusOptions,
    GroupBy,
    OneProcessOptions,
    OutputOptions,
    Source,
    StatesOptions,
    option,
    rotation_problems,
)
from probing.data import CONTROLS as OF_FIT
from probing.errors import flag
from probing.results import (
    NamedLayer,
    Row,
    Schema,
    Table,
    View,
    estimate,
    estimated,
    interval,
    layers_by,
    layers_named,
    number,
    text,
    whole,
)
from probing.runs import Result, Study, study_of
from probing.runs.call import Call
from probing.runtime import quiet_libraries
from probing.tables.figures import Chart, Line, Panel, by_name
from probing.tables.schema import layer_column

ITSELF, PERMUTED_TREES = "model", "permuted_trees"
# The controls, with their labels in tables and figures.
CONTROLS = {
    **{name: OF_FIT[name].words for name in ("untrained", "permuted_positions")},
    PERMUTED_TREES: "trees of other sentences",
}

TREES = Schema("trees", "a row per condition and layer", (
    text("condition", "model for the model itself, or the control."), layer_column(),
    estimate("uuas", "Share of the edges of the gold trees that are in the minimum spanning trees of the predicted "
             "distances, both without punctuation.", "UUAS"),
    estimate("distance_spearman", "Rank correlation of predicted and gold distances from each word, averaged over the "
             "words of a sentence, the sentences of one length, and the lengths 5 to 50.", "DSpr"),
    estimate("root", "Share of sentences whose root is the word with the least predicted depth, punctuation aside."),
    estimate("depth_spearman", "Rank correlation of predicted and gold depths, averaged like DSpr.", "NSpr"),
    number("chain", "UUAS of the linear chain, which joins each word to the next."),
    estimate("above_chain", "UUAS minus that of the linear chain, paired.", form="+.3f"),
    estimate("above_embeddings", "UUAS minus that of layer 0, paired.", form="+.3f"),
    estimate("difference", "Of a control: UUAS of the model minus that of the control.", form="+.3f"),
    number("error", "Mean squared error of predicted distances: over the pairs of a sentence, then over sentences.",
           form=".2f"),
    whole("rank_distance", "Rank of the metric for distances.", "directions"),
    whole("rank_depth", "Rank of the metric for depths.", "directions, depth"),
    number("gap_distance", "How far the objective of the probe for distances is above its optimum at most, as a share "
           "of the objective.", "gap", ".1e"),
    number("gap_depth", "The same for the probe for depths.", "gap, depth", ".1e"),
    number("first_10_share", "Share of the contributions of all neurons that the first ten have.", "first 10"),
    number("directions_low", "The same share of random directions: the smallest of the rotations."),
    number("directions_high", "The same share of random directions: the largest of the rotations."),
))  # fmt: skip
TREE_NEURONS = Schema("tree_neurons", "a row per layer and neuron, by contribution", (
    layer_column(), whole("rank", "Rank by contribution, from 1."), whole("neuron", "Number of the neuron, from 0."),
    number("contribution", "Mean size of the neuron's part of predicted squared distances, over pairs of words of 100 "
           "test sentences."),
    number("share", "The contribution as a share of the contributions of all neurons.", form=".1%"),
    number("mean_part", "Mean of the neuron's part; the parts of all neurons add up to the mean predicted distance.",
           form="+.3f"),
))  # fmt: skip
TREE_EXAMPLE = Schema("tree_example", "a row per layer and word of a test sentence of about ten words, drawn at "
                      "random; no punctuation", (
    layer_column(), whole("word_index", "Number of the word in its sentence, from 1."), text("word", "The word."),
    whole("gold_head", "Number of its head in the gold tree; 0 for the root."),
    whole("decoded_head", "Number of its head in the minimum spanning tree of the predicted distances, whose root is "
          "the word with the least predicted depth; 0 for this word."),
))  # fmt: skip

SENTENCES = {
    "best": "UUAS is highest in layer {layer}: {uuas}; of the linear chain it is {chain:.3f}.",
    "compared": "Compared with {baseline}, UUAS is {where}.",
    "gap": "The largest gap of a probe is {gap:.1e} of its objective.",
    "basis": "In {layers} the first ten neurons contribute more than ten directions of every random basis (in layer "
    "{layer} {share}, directions {directions}): the metric favours single neurons.",
    "no_basis": "In no layer do the first ten neurons contribute more than ten directions of every random basis: the "
    "metric does not favour single neurons.",
}


@dataclass(frozen=True)
class TreesOptions(OutputOptions, OneProcessOptions, BatchOptions, CorpusOptions, StatesOptions):
    """Options of `trees`."""

    corpus: Source = "builtin"
    """Treebank: a .conllu file."""
    train_sentences: int = option(300, at_least=20, at_most=1_000_000)
    """Maximum number of training sentences, which are sampled; at most a quarter as many are validation sentences."""
    controls: str | list[str] = option("untrained,permuted_trees", choices=CONTROLS, nothing="none")
    """Controls: all, none, or some of untrained (a randomly initialised model), permuted_positions (the model reads
    each sentence with permuted tokens) and permuted_trees (each sentence has the tree of another one of its length)."""
    rotations: int = option(20, at_least=0)
    """Number of random rotations of the neurons, whose directions are compared with the neurons; 0 for none."""
    penalty: float | None = None
    """Penalty of the metric's trace, in squared tree distances; by default it is chosen on validation sentences, one
    for all layers."""
    group_by: GroupBy = "auto"
    _: KW_ONLY
    name: str | None = None
    """Name of this run; default: MODEL-trees-YYYYMMDD-HHMMSS."""

    def problems(self) -> list[str]:
        """Return the problems with the number of rotations, and with a penalty that is not positive."""
        problems = rotation_problems(self.rotations)
        if self.penalty is not None and not 0 < self.penalty < float("inf"):
            problems.append(f"{flag('penalty', self.penalty)} is out of range: expected a number above 0")
        return problems


@command(TreesOptions)
def trees(options: TreesOptions) -> Result | None:
    """Decode dependency trees from each layer by a linear metric of its hidden states.

    The squared distances of words in the metric are fitted to their distances in the gold trees of a treebank, and the
    squared lengths of words to their depths; both are convex problems, solved to a certified gap.

    Returns:
        The results.
    """
    call = Call.of(study_of("trees"), options)
    with quiet_libraries():
        from probing.studies.trees.survey import sample, survey
        from probing.text import intervals_by_document, read_corpora

        corpora, splits = read_corpora(options.corpus, options.test_corpus, options.seed, call.say, options.group_by)
        texts, treebanks = sample(corpora, splits, intervals_by_document(options.group_by, corpora), options)
        source = call.source(tokenizer=options.tokenizer)
        output = survey(source, texts, treebanks, options)
        return call.write(source.model, lambda _: output)


class Trees(Study):
    """Dependency trees decoded from hidden states."""

    name, kind, title = "trees", "dependency trees", "Dependency trees"
    function = "probing.studies.trees:trees"
    schemas = TREES, TREE_NEURONS, TREE_EXAMPLE
    page = "trees.md"
    files: ClassVar[Mapping[str, str]] = {
        "figures/trees": "UUAS and rank correlation of distances by layer.",
        "figures/tree_example": "The gold tree of a test sentence beside the tree decoded from the best layer.",
    }
    views = (
        View(TREES, ("layer", "uuas*", "rank_distance", "gap_distance", "chain"),
             "edges of dependency trees (UUAS) by layer", "", {"condition": ITSELF}, ("condition", "uuas", CONTROLS)),
        View(TREES, ("layer", "distance_spearman*", "root*", "depth_spearman*", "gap_depth"),
             "distances and depths by layer", "", {"condition": ITSELF}),
        View(TREE_NEURONS, ("layer", "rank", "neuron", "share", "mean_part"), "first neurons of the metric", "",
             {"rank": (1, 2, 3)}),
    )  # fmt: skip

    def charts(self, result: Result) -> list[Chart]:
        """Return the scores by layer, and the trees of a sentence."""
        by_condition = result.trees.by("condition")
        panels = []
        for column in ("uuas", "distance_spearman"):
            lines = [
                Line.of(by_condition[name], column, label)
                for name, label in {ITSELF: "the model", **CONTROLS}.items()
                if name in by_condition
            ]
            if column == "uuas":
                lines.append(Line.of(by_condition[ITSELF], "chain", "linear chain"))
            panels.append(Panel(lines, TREES[column].words))
        charts = [Chart("trees", "dependency trees by layer (bars: 95% intervals)", panels, "score", limits=(0, 1))]
        best = _best(by_condition[ITSELF])["layer"]
        if words := result.tree_example.where(layer=best):
            names = {row["word_index"]: NamedLayer(row["word_index"], row["word"]) for row in words}
            columns = "gold_head", "decoded_head"
            heads = {column: {row["word_index"]: row[column] for row in words} for column in columns}
            panels = [
                Panel(_drawn_tree(names, of, other), title)
                for of, other, title in zip(heads.values(), reversed(heads.values()), ("gold", "decoded"), strict=True)
            ]
            charts.append(
                Chart("tree_example", f"tree of a test sentence, gold and decoded from layer {best}", panels,
                      "height above the deepest word", from_zero=True, x=by_name("word", "words of the sentence"))
            )  # fmt: skip
        return charts

    def conclusions(self, result: Result) -> list[str]:
        """Return the best layer, what it is compared with, the gap, and whether the metric favours neurons."""
        return list(_conclusions(result.trees))


def _best(rows: Table) -> Row:
    return max(rows, key=lambda row: row["uuas"])


def _drawn_tree(names: Mapping[int, NamedLayer], heads: Mapping[int, int], others: Mapping[int, int]) -> list[Line]:
    """Return a line for each edge of a tree, by whether another tree has it; the root is highest."""
    depths = dict.fromkeys(heads, 0)
    for word in heads:
        above = word
        for _ in heads:  # a damaged file may have a cycle
            above = heads.get(above, 0)
            depths[word] += above > 0
    lines = []
    for word, head in heads.items():
        if head in heads:
            label = f"edge of {'both trees' if head == others[word] or word == others[head] else 'one tree'}"
            heights = [max(depths.values()) - depths[end] for end in (word, head)]
            lines.append(Line(label, [names[word], names[head]], heights))
    return sorted(lines, key=lambda line: line.label)


def _conclusions(all_rows: Table) -> Iterator[str]:
    rows = all_rows.where(condition=ITSELF)
    best = _best(rows)
    yield SENTENCES["best"].format(layer=best["layer"], uuas=estimated(best, "uuas"), chain=best["chain"])
    baselines = [
        ("the linear chain", rows, "above_chain"),
        ("layer 0", rows.where(lambda row: "above_embeddings" in row), "above_embeddings"),
    ]
    named = {**CONTROLS, "untrained": OF_FIT["untrained"].called}
    baselines += [(words, all_rows.where(condition=name), "difference") for name, words in named.items()]
    for baseline, compared, column in baselines:
        if compared:
            yield SENTENCES["compared"].format(baseline=baseline, where=layers_by(compared, column))
    yield SENTENCES["gap"].format(gap=max(row[column] for row in all_rows for column in ("gap_distance", "gap_depth")))
    if rotated := rows.where(lambda row: "directions_high" in row):
        above = rotated.where(lambda row: row["first_10_share"] > row["directions_high"])
        yield _favoured(above) if above else SENTENCES["no_basis"]


def _favoured(rows: Table) -> str:
    most = max(rows, key=lambda row: row["first_10_share"] - row["directions_high"])
    return SENTENCES["basis"].format(
        layers=layers_named(rows.layers()), layer=most["layer"], share=f"{most['first_10_share']:.1%}",
        directions=interval(most, "directions", " to ", ".1%"),
    )  # fmt: skip


STUDY = Trees()
