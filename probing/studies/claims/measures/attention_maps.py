"""Which classes the maps of attention heads have, and which tokens the layers attend to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from probing.runs.study import Result
from probing.studies.claims.measures.registry import NotMeasurable, Subject, difference, from_row, measure
from probing.studies.claims.verdict import Measured
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


# The first token of BERT's sequences and of RoBERTa's, as the survey of heads names it.
_FIRST = ("[CLS]", "<s>")
_SPECIAL = "special tokens"


@measure("heads")
def heads_idle_at_first_token(subject: Subject) -> Measured:
    """Return the share of heads that attend much to the first token and read their shortest vectors there.

    A head attends much to a token that gets more attention than its share of the tokens (`lift` above 1). The norm of
    the vectors that are read from a type of tokens is its mass by norm divided by its mass by weight; that of the first
    token is the least if words and every other type of tokens have a larger one. The control is the share of heads for
    which both are true of the last special token.
    """
    by_head: dict[tuple[int, int], dict[str, dict[str, float]]] = {}
    for row in subject.run("heads").heads:
        if row["measure"] in ("lift", "mass", "norm_mass"):
            of_type = by_head.setdefault((row["layer"], row["head"]), {}).setdefault(row["to"], {})
            of_type[row["measure"]] = row["value"]
    types = next(iter(by_head.values()), {})
    first = next((name for name in _FIRST if name in types), None)
    if first is None or _SPECIAL not in types:
        raise NotMeasurable("its sequences have no [CLS] or <s>, or heads were not measured")
    last = next((name for name in ("[SEP]", "</s>") if name in types), None)
    found = [_is_idle(head, first) for head in by_head.values()]
    others = [_is_idle(head, last) for head in by_head.values()] if last else []
    control = sum(others) / len(others) if others else None
    return Measured.exact(sum(found) / len(found), control=control)


def _is_idle(head: Mapping[str, Mapping[str, float]], name: str) -> bool:
    norms = {one: _ratio(of["norm_mass"], of["mass"]) for one, of in head.items() if one != _SPECIAL}
    norms["words"] = _ratio(1 - head[_SPECIAL]["norm_mass"], 1 - head[_SPECIAL]["mass"])
    own = norms.pop(name)
    return head[name]["lift"] > 1 and all(own < other for other in norms.values())


def _ratio(by_norm: float, by_weight: float) -> float:
    return by_norm / by_weight if by_weight > 0 else 0.0


@measure("attention")
def attention_to_last_token(subject: Subject, from_depth: float, to_depth: float) -> Measured:
    """Return the attention to the last special token, such as `[SEP]`, in the layer of a range where it is least.

    The control is the largest such attention in any layer.

    Args:
        subject: The model.
        from_depth: The share of the blocks at which the range begins.
        to_depth: The share at which it ends.
    """
    rows = _of_last(subject, "mass")
    depth = max(row["layer"] for row in rows)
    inside = [row for row in rows if from_depth * depth <= row["layer"] <= to_depth * depth]
    if not inside:
        raise NotMeasurable("a model with more layers")
    least = min(inside, key=lambda row: row["value"])
    return from_row(least, control=max(row["value"] for row in rows))


@measure("attention")
def rise_at_last_token(subject: Subject, from_depth: float) -> Measured:
    """Return how much more attention the last special token gets in upper layers than in lower ones: means of layers.

    The covariance of the two means is not known, so that the interval is the widest that their intervals allow. The
    control is the same when weights are multiplied by the norms of the vectors that heads read there.

    Args:
        subject: The model.
        from_depth: The least depth of an upper layer, as a share of the number of blocks.
    """
    by_weight, by_norm = (_rise(_of_last(subject, name), from_depth) for name in ("mass", "norm_mass"))
    return Measured(by_weight.value, by_weight.low, by_weight.high, by_norm.value)


@measure("attention")
def norm_over_weight(subject: Subject) -> Measured:
    """Return the attention to special tokens by the norms of what is read, over that by weight: the most over layers.

    The covariance of the two means is not known, so that the interval is the widest that their intervals allow. The
    control is the least lift of special tokens by weight over the layers: above 1, they get more attention than under
    uniform attention in every layer.
    """
    run: Result = subject.run("attention")
    by_layer: dict[int, dict[str, Mapping[str, Any]]] = {}
    for name in ("mass", "norm_mass", "lift"):
        for row in of_measure(run.attention_layers, name, SPECIAL):
            by_layer.setdefault(row["layer"], {})[name] = row
    if not by_layer or any(len(rows) < 3 for rows in by_layer.values()):
        raise NotMeasurable("special tokens that are attended to")
    ratios = []
    for rows in by_layer.values():
        norm, weight = from_row(rows["norm_mass"]), from_row(rows["mass"])
        ratios.append(Measured(norm.value / weight.value, norm.low / weight.high, norm.high / weight.low))
    most = max(ratios, key=lambda one: one.value)
    lift = min(rows["lift"]["value"] for rows in by_layer.values())
    return Measured(most.value, most.low, most.high, lift)


def _of_last(subject: Subject, name: str) -> list[Mapping[str, Any]]:
    """Return a measure of each layer for the last special token, by layer."""
    run: Result = subject.run("attention")
    rows = next((rows for to in LAST if (rows := of_measure(run.attention_layers, name, to))), None)
    if rows is None:
        raise NotMeasurable(f"a tokenizer with a special token {' or '.join(LAST)}")
    return sorted(rows, key=lambda row: row["layer"])


def _rise(rows: Sequence[Mapping[str, Any]], from_depth: float) -> Measured:
    depth = max(row["layer"] for row in rows)
    upper, lower = ([row for row in rows if (row["layer"] >= from_depth * depth) is wanted] for wanted in (True, False))
    if not upper or not lower:
        raise NotMeasurable("a model with more layers")
    return difference(_mean(upper), _mean(lower))


def _mean(rows: Sequence[Mapping[str, Any]]) -> Measured:
    found = [from_row(row) for row in rows]
    value, low, high = (sum(getattr(one, end) for one in found) / len(found) for end in ("value", "low", "high"))
    return Measured(value, low, high)
