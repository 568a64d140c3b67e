"""Which classes the maps of attention heads have, and which tokens the layers attend to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from probing.claims.measures.registry import NotMeasurable, Subject, difference, from_row, measure
from probing.claims.verdict import Measured
from probing.runs.result import Result
from probing.tables.heads import SPECIAL, of_all_maps, of_measure

# Names that tokenizers give to the special tokens at the beginning and at the end of a sentence.
FIRST, LAST = ("[CLS]", "<s>"), ("[SEP]", "</s>")


@measure("attention", "pairs")
def rarest_class(subject: Subject) -> Measured:
    """Return the share of maps that have the rarest of the five classes, over single sentences and pairs of them.

    Maps of single sentences cannot be of the class `block`. The control is the share of maps of pairs that would be of
    this class if the boundary of each pair were moved, divided by the share that is: below 1, some heads depend on
    where the boundary is.
    """
    of_pairs, of_sentences = (_shares(subject.run(name)) for name in ("pairs", "attention"))
    rows = [*of_pairs.values(), *(row for name, row in of_sentences.items() if name != "block")]
    rarest, block = min(rows, key=lambda row: row["share"]), of_pairs["block"]
    control = block["share_moved"] / block["share"] if block["share"] else None
    return from_row(rarest, "share", control=control)


@measure("pairs")
def heterogeneous_share(subject: Subject) -> Measured:
    """Return the share of heterogeneous maps, which have none of the other classes, over pairs of sentences.

    The control is the largest change of this share when all thresholds of the classes are 25% lower or higher.
    """
    run: Result = subject.run("pairs")
    row = _shares(run)["heterogeneous"]
    factors = {other["factor"] for other in run.attention_classes}
    moved = [of_all_maps(run.by_name, factor)["heterogeneous"]["share"] for factor in factors]
    return from_row(row, "share", control=max(abs(share - row["share"]) for share in moved))


@measure("attention")
def words_in_stripes(subject: Subject, types: Sequence[str]) -> Measured:
    """Return the share of some types of words in the excess attention that they and special tokens get together.

    The value is x / (x + s). A token of the type that gets most attention gets 1 + x times the attention to a mean
    word, and a special token 1 + s times; a negative x or s counts as 0. All of these are means over all heads, and
    words are all tokens that are not special. The covariance of the two means is not known, so the interval is the
    widest that their intervals allow. The control is the lift of special tokens (1 under uniform attention) when
    weights are multiplied by the norms of the vectors that heads read.

    Args:
        subject: The model.
        types: The types of words, such as `NOUN` and `subject`.
    """
    run: Result = subject.run("attention")
    if missing := [one for one in types if not of_measure(run.attention_layers, "lift", one)]:
        raise NotMeasurable(f"a treebank as `--corpus`, with tokens of the types {', '.join(missing)}")
    lift = max((_mean_over_layers(run, "lift", one) for one in types), key=lambda one: one.value)
    mass, by_norm = (_mean_over_layers(run, name, SPECIAL) for name in ("mass", "norm_mass"))
    share = mass.value / _mean_over_layers(run, "lift", SPECIAL).value  # of the tokens

    def part(of_type: float, of_special: float) -> float:
        of_mean_word = (1 - of_special) / (1 - share)
        x, s = (max(one / of_mean_word - 1, 0.0) for one in (of_type, of_special / share))
        return x / (x + s) if x + s else 0.0

    ends = [part(*both) for both in product((lift.low, lift.high), (mass.low, mass.high))]
    return Measured(part(lift.value, mass.value), min(ends), max(ends), control=by_norm.value / share)


@measure("attention")
def layers_from_first_to_last(subject: Subject) -> Measured:
    """Return by how many layers attention to the last special token comes later than attention to the first one.

    Both are mean layers, weighted by the attention to `[CLS]` and to `[SEP]`, or to what a tokenizer has in their
    place. The interval is the widest that the intervals of the attention in each layer allow.
    """
    run: Result = subject.run("attention")
    first, last = (_mean_layer(run, names) for names in (FIRST, LAST))
    return difference(last, first)


@measure("attention")
def layers_from_last_to_punctuation(subject: Subject) -> Measured:
    """Return by how many layers attention to punctuation comes later than that to the last special token.

    The mean layers and their interval are those of `layers_from_first_to_last`.
    """
    run: Result = subject.run("attention")
    last, punctuation = (_mean_layer(run, names) for names in (LAST, ("punctuation",)))
    return difference(punctuation, last)


def _shares(run: Result) -> dict[str, Mapping[str, Any]]:
    """Return the row of each class over all maps."""
    found = of_all_maps(run.by_name)
    if not found:
        raise NotMeasurable("the run sorted no maps into classes")
    return found


def _mean_layer(run: Result, names: Sequence[str]) -> Measured:
    """Return the mean layer, weighted by the attention to a type of tokens, which has one of these names.

    A weighted mean is monotone in each weight. It is therefore lowest if all layers up to a certain one have the upper
    ends of their intervals as weights, and all later layers the lower ends; and highest the other way round.
    """
    rows = next((rows for name in names if (rows := of_measure(run.attention_layers, "mass", name))), None)
    if rows is None:
        raise NotMeasurable(f"a tokenizer with a special token {' or '.join(names)}")
    masses = {row["layer"]: from_row(row) for row in sorted(rows, key=lambda row: row["layer"])}

    def mean(ends: Sequence[str]) -> float:
        weights = [getattr(mass, end) for mass, end in zip(masses.values(), ends, strict=True)]
        return sum(layer * weight for layer, weight in zip(masses, weights, strict=True)) / sum(weights)

    n = len(masses)
    low = min(mean(["high"] * k + ["low"] * (n - k)) for k in range(n + 1))
    high = max(mean(["low"] * k + ["high"] * (n - k)) for k in range(n + 1))
    return Measured(mean(["value"] * n), low, high)


def _mean_over_layers(run: Result, name: str, to: str) -> Measured:
    rows = [from_row(row) for row in of_measure(run.attention_layers, name, to)]
    value, low, high = (sum(getattr(row, end) for row in rows) / len(rows) for end in ("value", "low", "high"))
    return Measured(value, low, high)
