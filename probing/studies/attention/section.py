"""Page section of `attention`: a map of all heads, example sentences of each, and the tables of the survey."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unicodedata import east_asian_width

from probing.heads.examples import Example, ExampleMaps, read_examples
from probing.page.charts import (
    HeadMeasure,
    Place,
    cell_of,
    charts_html,
    head_id,
    head_map,
    head_measures,
    model_name,
    places,
    values_of_head,
)
from probing.page.run import script_data
from probing.results import Html, count, element, joined, layers_named, table
from probing.runs import Result, SectionPlace, Study, Terms, folded, framed
from probing.runs.checks import leaves_out_first
from probing.tables.heads import finds_relation
from probing.tables.schema import HEAD_NAME

# Width of a letter, of a wide one and of the room between words; distances of arcs from the line of the words.
LETTER, WIDE, GAP = 7.4, 14.0, 16.0
ABOVE, BELOW = 21, 14
# Width of an arc for all of the attention of a word, and the least width, which all weak arcs have. In between, the
# width is proportional to the attention.
FULL, LEAST = 7.0, 0.5
# Width and height of the heads of arrows, which lie between arcs and words: arcs end at a right angle to the line.
TIP_WIDTH, TIP_HEIGHT = 8, 6
# Arcs begin this far to the right of a word's middle and end as far to the left, so that two words that attend to each
# other have two arcs, one inside the other.
ASIDE = 3


@dataclass(frozen=True)
class Row:
    """Words side by side: the x coordinate of the middle of each word, and the total width."""

    middles: Sequence[float]
    width: float

    @classmethod
    def of(cls, words: Sequence[str]) -> Row:
        """Place words from left to right, by an estimate of their widths."""
        middles, x = [], 0.0
        for word in words:
            width = sum(WIDE if east_asian_width(letter) in "WF" else LETTER for letter in word) + GAP
            middles.append(round(x + width / 2, 1))
            x += width
        return cls(middles, x)


def words_row(words: Sequence[str], row: Row, name: str) -> Html:
    """Return the words, which `sentence_arcs` shows by this name."""
    texts = [element("text", word, x=x, text_anchor="middle") for word, x in zip(words, row.middles, strict=True)]
    return element("g", *texts, id=name)


def sentence_arcs(
    row: Row,
    name: str,
    arcs: Sequence[tuple[int, int, float]],
    right: Sequence[tuple[int, int]],
    title: str,
) -> Html:
    """Return the sentence with the arcs of attention above it, and the correct arcs below it.

    Args:
        name: Name of the words on the page; see `words_row`.
        arcs: Each word, the word that it attends to most, and the attention, from 0 to 1.
        right: Treebank arcs, from the attending word to the attended word.
        title: Description for readers who do not see the arcs.
    """
    top = max((_height(row, i, j) for i, j, _ in arcs), default=0.0) + ABOVE + 6
    foot = max((_height(row, i, j) for i, j in right), default=-2.0) + BELOW + 6
    drawn = [
        f'<path d="{_path(row, i, j, -ABOVE)}" stroke-width="{_number(max(LEAST, FULL * weight))}"'
        + (' class="hit"/>' if (i, j) in right else "/>")
        for i, j, weight in arcs
    ]
    drawn.append(_tips(row, {j for _, j, _ in arcs}, -ABOVE, "tips"))
    if right:
        drawn += [f'<path d="{_path(row, i, j, BELOW)}" class="gold"/>' for i, j in right]
        drawn.append(_tips(row, {j for _, j in right}, BELOW, "tips hit"))
    return element(
        "svg", element("use", href=f"#{name}"), Html("".join(drawn)), role="img", aria_label=title, class_="arcs",
        viewBox=f"0 {_number(-top)} {_number(row.width)} {_number(top + foot)}", style=f"width:{_number(row.width)}px",
    )  # fmt: skip


def _height(row: Row, i: int, j: int) -> float:
    """Return the height of an arc: higher for words further apart, so that arcs nest."""
    return min(10 + 0.22 * abs(row.middles[j] - row.middles[i]), 84.0)


def _path(row: Row, i: int, j: int, y: float) -> str:
    """Return half an ellipse between two words, above the line if y is negative and below it otherwise."""
    start, end = row.middles[i] + ASIDE, row.middles[j] - ASIDE
    sweep = int((j > i) == (y < 0))
    radii = f"{_number(abs(end - start) / 2)} {_number(_height(row, i, j))}"
    return f"M{_number(start)} {_number(y)}A{radii} 0 0 {sweep} {_number(end)} {_number(y)}"


def _tips(row: Row, ends: Iterable[int], y: float, look: str) -> str:
    shape = f"h{TIP_WIDTH}l{-TIP_WIDTH // 2} {TIP_HEIGHT if y < 0 else -TIP_HEIGHT}z"
    tips = (f"M{_number(row.middles[j] - ASIDE - TIP_WIDTH / 2)} {_number(y)}{shape}" for j in sorted(ends))
    return f'<path d="{"".join(tips)}" class="{look}"/>'


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


ABOUT_ARCS = (
    "An arc goes from each word to the other word that it attends to most, and is as thick as this attention is large. "
    "As for dependency relations, attention to a word is the sum over its pieces, attention from a word the mean over "
    "them, and special tokens are excluded; their share of the attention is below each sentence."
)


def survey_section(result: Result, place: SectionPlace) -> Html:
    """Return the section of a survey."""
    number, room, examples = place.number, place.room, read_examples(result.folder)
    measures = head_measures(result.by_name)
    heads = places(measures)
    return element(
        "section",
        element("h2", result.study.heading(result)),
        element("p", _question(result, heads), class_="question"),
        *(element("p", sentence, class_="answer") for sentence in result.conclusions()),
        _not_measured(result.results["left_out"]),
        *([_map(result, measures, heads, number, examples is not None), _numbers(measures, heads)] if heads else []),
        *charts_html(result.study.charts(result)),
        *(_examples(result, examples, measures, heads, number, room) if heads and examples else []),
        *framed(table for view in result.study.views for table in view.tables(result.by_name[view.schema.name])),
        *folded(result.tables()),
        class_="heads-of",
        id=f"attention-{number}",
    )  # fmt: skip


def _not_measured(lacking: Mapping[str, str]) -> Html | None:
    parts = [f"{part} needs {lack}" for part, lack in lacking.items()]
    return element("p", f"Not measured: {'; '.join(parts)}.") if parts else None


def _question(result: Result, heads: Sequence[Place]) -> str:
    config, results = result.config, result.results
    model, n_heads, n_layers = results["model"], results["model"]["n_heads"], results["model"]["n_layers"]
    layers = sorted({layer for layer, _ in heads}) or [*range(1, n_layers + 1)]
    of_layers = "each of " * (len(layers) > 1) + layers_named(layers)
    tested = f" and tested on `{config['test_corpus']}`" if config.get("test_corpus") else ""
    causal = " No token attends to a later one." if model["is_causal"] else ""
    without = " The first token of each sentence is left out, as query and as key." * leaves_out_first(config)
    return (
        f"What do the heads of {model_name(config)} do, {n_heads} in {of_layers}? Their attention was read "
        f"over {count(results['n_tokens'], 'token')} of {count(results['n_sentences'], 'sentence')} of the corpus "
        f"`{config['corpus']}`{tested}. Heads are counted from 1: 1-2 is the second head of layer 1.{causal}{without}"
    )


def _map(
    result: Result, measures: Sequence[HeadMeasure], heads: Sequence[Place], number: int, links: bool
) -> Html:  # fmt: skip
    """Return the map of heads, with links to examples, and the choice of its measure, which appears with the script."""
    offered = [element("option", measure.label, value=i) for i, measure in enumerate(measures)]
    choice = element("label", "Measure ", element("select", *offered, class_="by-measure"))
    press = " Press a head to see it in example sentences." if links else ""
    caption = joined(element("span", measures[0].help, class_="measure-help"), f".{press}")
    data = {
        "columns": len({head for _, head in heads}),
        "measures": [
            {"help": measure.help, "texts": [cell_of(measure, place)[0] for place in heads],
             "shades": [cell_of(measure, place)[1] for place in heads]} for measure in measures
        ],
        "told": ["\n".join([f"head {layer}-{head}", *(f"{name} {value}" for name, value in
                 values_of_head(measures, (layer, head)).items())]) for layer, head in heads],
    }  # fmt: skip
    return element(
        "figure",
        element("p", choice, class_="filters", hidden=True),
        element("figcaption", caption),
        head_map(measures[0], heads, number, f"Heads of {model_name(result.config)} by layer", links),
        element("p", class_="readout", hidden=True),
        element("script", script_data(data), type="application/json"),
        id=f"attention-{number}-map",
    )


def _numbers(measures: Sequence[HeadMeasure], heads: Sequence[Place]) -> Html:
    columns = [(name, measure.rows, cell) for measure in measures for name, cell in measure.cells.items()]
    body = [
        [f"{layer}-{head}", *(cell(rows[layer, head]) if (layer, head) in rows else "" for _, rows, cell in columns)]
        for layer, head in heads
    ]
    shown = table(["head", *(name for name, _, _ in columns)], body)
    return element("details", element("summary", "All numbers of all heads"), shown)


# --- example sentences ---


def _examples(
    result: Result, maps: ExampleMaps, measures: Sequence[HeadMeasure], heads: Sequence[Place], number: int, room: int
) -> list[Html]:
    """Return the example sentences of each head; the page shows the head named in its address."""
    examples = maps.examples
    rows = [Row.of(one.of.words) for one in examples]
    shared = [words_row(one.of.words, row, _words_id(number, i))
              for i, (one, row) in enumerate(zip(examples, rows, strict=True))]  # fmt: skip
    relations = {(row["layer"], row["head"]): row for row in result.head_relations}
    layers = list(maps.layers)
    first = _first_shown(result, heads)
    details = []
    for place in heads:
        index, relation = (layers.index(place[0]), place[1] - 1), relations.get(place)
        # Those in which the head's relation occurs come first.
        order = sorted(range(len(examples)), key=[not _right(example, relation) for example in examples].__getitem__)
        figures: list[Html] = []
        for i in order:
            drawn = _sentence(examples[i], rows[i], _words_id(number, i), index, relation)
            if figures and sum(map(len, figures)) + len(drawn) > room // len(heads):
                break
            figures.append(drawn)
        details.append(
            element(
                "section",
                element("h4", f"Head {place[0]}-{place[1]}"),
                element(
                    "dl",
                    *(element("div", element("dt", name), element("dd", value))
                      for name, value in values_of_head(measures, place).items()),
                    class_="facts",
                ),
                element("p", _about_gold(relation),
                        element("a", "Back to the map", href=f"#attention-{number}-map")),
                *figures,
                class_="head-detail is-first" if place == first else "head-detail",
                id=head_id(number, place),
            )
        )  # fmt: skip
    defined = element("svg", element("defs", *shared), width=0, height=0, class_="shared", aria_hidden="true")
    heading = element("h3", "Example sentences")
    return [heading, element("p", ABOUT_ARCS), defined, element("div", *details, class_="head-details")]


def _words_id(number: int, sentence: int) -> str:
    return f"words-{number}-{sentence}"


def _first_shown(result: Result, heads: Sequence[Place]) -> Place:
    """Return the first head to show: the head whose relation accuracy exceeds the best offset most."""
    rows = result.head_relations
    if not rows:
        return heads[0]
    best = max(rows, key=lambda row: row["difference"])
    return best["layer"], best["head"]


def _sentence(
    example: Example, row: Row, name: str, index: tuple[int, int], relation: Mapping[str, Any] | None
) -> Html:
    words, arcs, right = example.of.words, example.strongest(*index), _right(example, relation)
    title = "; ".join(f"{words[i]} to {words[j]} {weight:.2f}" for i, j, weight in arcs)
    mass = example.mass_on_special(*index)
    return element(
        "figure",
        element("div", sentence_arcs(row, name, arcs, right, title), class_="scroll", tabindex=0),
        element("figcaption", f"special tokens: {mass:.0%}"),
    )


def _right(example: Example, relation: Mapping[str, Any] | None) -> list[tuple[int, int]]:
    """Return the arcs of a relation in a sentence, from the attending word to its target."""
    if relation is None:
        return []
    pairs = [(dependent, head) for dependent, head, name in example.of.arcs if name == relation["relation"]]
    return pairs if relation["query"] == "dependent" else [(head, dependent) for dependent, head in pairs]


def _about_gold(relation: Mapping[str, Any] | None) -> str | None:
    if relation is None:
        return None
    ends = "from the word to its head" if relation["query"] == "dependent" else "from the head to the word"
    no_relation = ", at which it does not beat the offset by more than with permuted syntactic heads"
    beats = "" if finds_relation(relation) else no_relation
    return (
        f"Dashed, below the words: the relation {relation['relation']}{beats}, {ends}, as the treebank has it; an arc "
        "above that is right is marked. "
    )


# --------------------------------------------------------------------------------------------------------------------
# Meanings of the headings of `attention` on a page.
# --------------------------------------------------------------------------------------------------------------------

ATTENTION: Terms = {
    "head": HEAD_NAME,
    "class": "Pattern that most maps of the head follow: vertical (attention to special tokens), diagonal (to the "
    "token itself and its neighbours), both, or heterogeneous (all others), by rules on the mean attention.",
    "entropy": "Entropy of a query's attention divided by the entropy of uniform attention to the tokens that the mask "
    "lets it see: 0 for attention to one token.",
    "special tokens": "Mean attention to all special tokens together. Alone it says little: lift is this mass divided "
    "by the mass under uniform attention to the tokens that each query may see, and by norm weights each token by the "
    "norm of the vector that the head reads there.",
    "best at": "The dependency relation in which the head is furthest above the best offset on the sentences to choose "
    "by; its accuracy is that on other sentences.",
    "best offset": "The fixed distance from a word to its head that most arcs of the relation have: what a head that "
    "knows positions alone would reach.",
    "p": "Of the difference between a head and the offset on the same arcs, corrected for the number of relations or "
    "of heads (Holm).",
}

ROLLOUT: Terms = {
    "layer": "Block whose output is followed back to the input, each block taken to keep half of a vector.",
    "itself": "Share of a word's vector that comes from its own token; in brackets, under uniform attention.",
    "special tokens": "Share that comes from special tokens, and so on for the previous token, the next one and all "
    "others.",
    "previous": "Share that comes from the previous token.",
    "next": "Share that comes from the next token.",
    "others": "Share that comes from all other tokens.",
}

CHANGE: Terms = {
    "layer": "Block of both checkpoints.",
    "maps": "Cosine of the two attention maps of a sentence, mean over sentences and heads.",
    "other heads": "The same of two heads of the layer, one in each checkpoint.",
    "other sentences": "The same of two sentences of equal length.",
    "Jensen-Shannon": "Divergence of the two attention distributions of a query, in nats: 0 where they are the same.",
    "as published": "Cosine of maps with their padding, as in Kovaleva et al. (2019).",
    "hidden states": "Cosine of the two hidden states of a token.",
    "other tokens": "Cosine of the hidden states of two tokens.",
}

FUSION: Terms = {
    "task": "What a linear probe predicts.",
    "last layer": "The model's last layer alone.",
    "best layer": "The layer that is best on the validation sentences.",
    "mean": "The mean of all layers, in which nothing is learnt.",
    "concat": "A weighted sum of layers, with a weight for each that is the same for all tokens.",
    "max": "The largest of the layers, neuron by neuron, in which nothing is learnt.",
    "gate": "A weighted sum of layers, with weights for each token.",
    "fusion": "How the layers are combined.",
    "from the last layer": "Difference of accuracies in points, with its 95% interval.",
    "from the best layer": "Difference from the best layer.",
    "from the mean": "Difference from the mean of the layers.",
}

POSITION_HEADS: Terms = {
    "offset": "Distance from the attending word to the word that gets most of the head's attention, chosen on training "
    "sentences: -1 is the previous token.",
    "all keys": "Mean attention to the word at the offset. A position head has more than .5 of it, or .9 in the "
    "column most.",
    "words": "The same as a share of the attention to words.",
    "most": "Share of the words that attend there most.",
    "permuted": "With the words permuted before the model reads them: attention to the word at the offset in the "
    "permuted order.",
    "original": "With the same permuted words: attention to the word at the offset in the original order.",
    "contrast": "Score of the key at the offset less the mean score of all words, in logits of the attention.",
    "positions": "The part of the contrast that is left when each word is replaced by the mean word at its position.",
    "Spearman": "Rank correlation of what the head uses of each neuron with the contributions of the run.",
    "partial": "The same with the spread of neurons over positions, and from position to position, as covariates.",
    "ranking": "By what neurons are ranked: contribution, its centred form, eta squared (needs no probe), or use by "
    "the head itself.",
    "ablated": "The number to the left with the first neurons of the ranking replaced by their mean, in the queries "
    "and keys of this head alone.",
    "random": "The same for random neurons, mean of 100 sets.",
    "matched": "The same for neurons with about the same standard deviation, mean of 100 sets.",
    "p": "Share of the matched sets after which no more is left.",
}

_PARTS: Mapping[str, tuple[str, Terms]] = {
    "rollout": ("Rollout", ROLLOUT), "change": ("Change between checkpoints", CHANGE),
    "fusion": ("Fusion of layers", FUSION), "position_heads": ("Position heads", POSITION_HEADS),
}  # fmt: skip


def terms_of_survey(result: Result) -> dict[str, Terms]:
    """Return the terms of a survey by title; the terms of some tables only if the survey has them."""
    part_terms = {title: terms for name, (title, terms) in _PARTS.items() if result.by_name[name]}
    of_views = Study.terms(result.study, result)[result.study.title]
    return {result.study.title: {**of_views, **ATTENTION}, **part_terms}
