"""Measures of heads and maps, against values planted in the tables of a survey and of `ablate`."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planted_claims import classes, with_interval
from probing.results import Table
from probing.runs import Result
from probing.studies.claims import measures as layers_measures
from probing.studies.claims.measures import heads as measures
from probing.studies.claims.measures.heads import heads_idle_at_first_token
from probing.studies.claims.measures.registry import ModelRuns, NotMeasurable
from written import results_of


def survey(*rows: dict[str, Any], of_classes: Table | None = None) -> Result:
    return results_of(
        "attention", Path("attention"), {}, {}, attention_layers=Table(rows), attention_classes=Table(of_classes or ())
    )


def subject(sentences: Result, pairs: Result | None = None) -> ModelRuns:
    return ModelRuns("any", {"attention": sentences, "pairs": pairs})


def shares(factor: float = 1.0, **of: float) -> Table:
    return Table(
        {"layer": "all", "factor": factor, "class": name.replace("_", " "), "share": share, "low": share - 0.01,
         "high": share + 0.01, "share_moved": 0.06}
        for name, share in of.items()
    )  # fmt: skip


SENTENCES = shares(vertical=0.5, diagonal=0.2, vertical_and_diagonal=0.1, block=0.0, heterogeneous=0.2)


def test_the_rarest_class_is_that_of_either_text_and_single_sentences_have_no_block() -> None:
    pairs = shares(vertical=0.4, diagonal=0.3, vertical_and_diagonal=0.15, block=0.08, heterogeneous=0.07)
    found = measures.rarest_class(subject(survey(of_classes=SENTENCES), survey(of_classes=pairs)))
    assert (found.value, found.low, found.high) == pytest.approx((0.07, 0.06, 0.08))
    assert found.control == pytest.approx(0.06 / 0.08)
    many = shares(vertical=0.2, diagonal=0.2, vertical_and_diagonal=0.2, block=0.2, heterogeneous=0.2)
    found = measures.rarest_class(subject(survey(of_classes=SENTENCES), survey(of_classes=many)))
    assert found.value == 0.1
    none = shares(vertical=0.4, diagonal=0.2, vertical_and_diagonal=0.2, block=0.0, heterogeneous=0.2)
    found = measures.rarest_class(subject(survey(of_classes=SENTENCES), survey(of_classes=none)))
    assert (found.value, found.control) == (0.0, None)


def test_without_maps_in_classes_there_is_nothing_to_measure() -> None:
    with pytest.raises(NotMeasurable, match="no maps"):
        measures.rarest_class(subject(survey(), survey(of_classes=classes(True))))


def test_the_share_of_heterogeneous_maps_has_the_farthest_move_of_the_thresholds_as_control() -> None:
    of = Table([*shares(heterogeneous=0.5), *shares(0.75, heterogeneous=0.35), *shares(1.25, heterogeneous=0.58)])
    found = measures.heterogeneous_share(subject(survey(), survey(of_classes=of)))
    assert (found.value, found.low, found.high) == (0.5, 0.49, 0.51)
    assert found.control == pytest.approx(0.15)


def attention(measure: str, to: str, *values: float, half: float = 0.0) -> list[dict[str, Any]]:
    """Return rows of one measure, for layers 1, 2, ..."""
    return [
        {"layer": layer, "measure": measure, "to": to, **with_interval(value, half)}
        for layer, value in enumerate(values, start=1)
    ]


def lifts(special: float, noun: float, verb: float, half: float = 0.0, share: float = 0.1) -> ModelRuns:
    """Return a survey with these means over two layers, in which special tokens are a share of all."""
    rows = [
        *attention("lift", "special tokens", special - 0.5, special + 0.5, half=half / share),
        *attention("mass", "special tokens", (special - 0.5) * share, (special + 0.5) * share, half=half),
        *attention("norm_mass", "special tokens", 0.1, 0.2),
        *attention("lift", "NOUN", noun - 0.3, noun + 0.3, half=half),
        *attention("lift", "VERB", verb, verb, half=half),
    ]
    return subject(survey(*rows))


def test_words_in_stripes_are_those_that_get_more_than_the_mean_word() -> None:
    """Of 100 tokens 10 are special and get .46 of the attention, .046 each; a word gets .006, and a noun .009."""
    found = measures.words_in_stripes(lifts(4.6, 0.9, 0.5), ["NOUN", "VERB"])
    assert found.value == pytest.approx(0.5 / (0.5 + (46 / 6 - 1)))
    assert found.low == found.high == found.value
    assert found.control == pytest.approx(1.5)
    # Words of a type that gets less than others have no part, and where special tokens get less, words have it all.
    assert measures.words_in_stripes(lifts(4.6, 0.9, 0.5), ["VERB"]).value == 0
    assert measures.words_in_stripes(lifts(0.6, 1.5, 0.2), ["NOUN", "VERB"]).value == 1
    # Under uniform attention there are no stripes.
    assert measures.words_in_stripes(lifts(1.0, 1.0, 1.0), ["NOUN"]).value == 0


def test_the_interval_of_words_in_stripes_is_that_of_both_lifts() -> None:
    found = measures.words_in_stripes(lifts(4.6, 0.9, 0.5, half=0.02), ["NOUN"])

    def part(noun: float, mass: float) -> float:
        word = (1 - mass) / 0.9
        return (noun / word - 1) / ((noun / word - 1) + (mass / 0.1 / word - 1))

    corners = [part(noun, mass) for noun in (0.88, 0.92) for mass in (0.44, 0.48)]
    assert (found.low, found.high) == pytest.approx((min(corners), max(corners)))
    assert found.low < found.value < found.high


def test_words_in_stripes_need_labels_of_words() -> None:
    with pytest.raises(NotMeasurable, match="a treebank as `--corpus`, with tokens of the types PRON, object"):
        measures.words_in_stripes(lifts(4.0, 1.5, 0.2), ["NOUN", "PRON", "object"])


def test_layers_of_special_tokens_are_weighted_by_their_attention() -> None:
    names = {"bert": ("[CLS]", "[SEP]"), "roberta": ("<s>", "</s>")}
    for first, last in names.values():
        rows = [*attention("mass", first, 0.3, 0.1, 0.0), *attention("mass", last, 0.0, 0.1, 0.1)]
        found = measures.layers_from_first_to_last(subject(survey(*rows)))
        assert found.value == pytest.approx(2.5 - 1.25)
        assert found.low == pytest.approx(found.value) == found.high
    late = [*attention("mass", "[CLS]", 0.0, 0.1, 0.1), *attention("mass", "[SEP]", 0.3, 0.1, 0.0)]
    assert measures.layers_from_first_to_last(subject(survey(*late))).value == pytest.approx(-1.25)


def test_ends_of_the_mean_layer_are_the_farthest_that_the_intervals_allow() -> None:
    first, last = [0.3, 0.2, 0.25, 0.1], [0.1, 0.2, 0.3, 0.2]
    rows = [*attention("mass", "[CLS]", *first, half=0.03), *attention("mass", "[SEP]", *last, half=0.02)]
    found = measures.layers_from_first_to_last(subject(survey(*rows)))

    def means(values: list[float], half: float) -> list[float]:
        """Return the mean layers of all combinations of ends."""
        chosen = product(*[(value - half, value + half) for value in values])
        return [sum(i * v for i, v in enumerate(one, start=1)) / sum(one) for one in chosen]

    assert found.low == pytest.approx(min(means(last, 0.02)) - max(means(first, 0.03)))
    assert found.high == pytest.approx(max(means(last, 0.02)) - min(means(first, 0.03)))


def test_a_model_without_special_tokens_at_both_ends_has_no_such_layers() -> None:
    with pytest.raises(NotMeasurable, match=r"\[SEP\] or </s>"):
        measures.layers_from_first_to_last(subject(survey(*attention("mass", "[CLS]", 0.3, 0.1))))


def test_too_little_text_for_an_interval_is_said() -> None:
    rows = [{"layer": 1, "measure": "mass", "to": to, "value": 0.3} for to in ("[CLS]", "[SEP]")]
    with pytest.raises(NotMeasurable, match="no interval"):
        measures.layers_from_first_to_last(subject(survey(*rows)))


def syntax_subject(**tables: list[dict[str, Any]]) -> ModelRuns:
    made = {name: Table(rows) for name, rows in tables.items()}
    return ModelRuns("any", {"attention": results_of("attention", Path("attention"), {}, {}, **made)})


def relation(name: str, lead: float, offset: float, untrained: float) -> dict[str, Any]:
    return {
        "relation": name, "difference": lead, "difference_low": lead - 0.05, "difference_high": lead + 0.04,
        "offset_test": offset, "untrained": untrained,
    }  # fmt: skip


RELATIONS = [relation("det", 0.2, 0.6, 0.1), relation("obj", 0.4, 0.3, 0.2), relation("case", -0.3, 0.9, 0.95)]


@pytest.mark.numeric
def test_the_relation_with_the_least_lead_counts_and_the_control_is_of_the_same_relations() -> None:
    found = measures.least_lead_over_offset(syntax_subject(relations=RELATIONS), ["det", "obj"])
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.15, 0.24))
    assert found.control == pytest.approx(-0.1)
    with pytest.raises(NotMeasurable, match="for each of amod, nsubj"):
        measures.least_lead_over_offset(syntax_subject(relations=RELATIONS), ["det", "amod", "nsubj"])


def tree(edges: float, **others: Any) -> dict[str, Any]:
    return {"measure": "uuas", "test": edges, "test_low": edges - 0.01, "test_high": edges + 0.02, "difference": 0.1,
            **others}  # fmt: skip


@pytest.mark.numeric
def test_trees_are_those_of_the_head_that_other_sentences_chose() -> None:
    rows = [tree(0.9, head=1), tree(0.5, head=2, chosen="yes"), tree(0.99, measure="uas", layer="all", chosen="yes")]
    found = measures.edges_of_best_head(syntax_subject(trees=rows))
    assert (found.value, found.low, found.high, found.control) == pytest.approx((0.5, 0.49, 0.52, 0.1))
    with pytest.raises(NotMeasurable, match="a treebank"):
        measures.edges_of_best_head(syntax_subject(trees=rows[:1]))


@pytest.mark.numeric
def test_heads_are_counted_above_a_half_with_those_that_the_interval_leaves_open() -> None:
    masses = {"previous": (0.9, 0.6, 0.501, 0.499, 0.1), "next": (0.2, 0.2, 0.2, 0.2, 0.3)}
    rows = [
        {"layer": 1, "head": head, "measure": name, **with_interval(mass)}
        for name, of_heads in masses.items()
        for head, mass in enumerate(of_heads, 1)
    ]
    found = measures.heads_at_neighbour(syntax_subject(heads=rows), "previous")
    assert (found.value, found.low, found.high, found.control) == (3, 2, 4, 0.9)
    none = measures.heads_at_neighbour(syntax_subject(heads=rows), "next")
    assert (none.value, none.low, none.high, none.control) == (0, 0, 0, 0.3)
    with pytest.raises(NotMeasurable, match="profile"):
        measures.heads_at_neighbour(syntax_subject(), "next")


def divergences(n_layers: int, n_heads: int, seed: int = 0, within: float = 1.0) -> list[dict[str, Any]]:
    draws = np.random.default_rng(seed)
    heads = product(range(1, n_layers + 1), range(1, n_heads + 1))
    return [
        {"measure": "jensen_shannon", "layer": a, "head": b, "other_layer": c, "other_head": d,
         **with_interval(float(draws.uniform(0.3, 0.5)) * (within if a == c else 1))}
        for (a, b), (c, d) in combinations(heads, 2)
    ]  # fmt: skip


@pytest.mark.numeric
def test_likeness_is_the_difference_of_mean_divergences() -> None:
    rows = divergences(3, 4, within=0.5)
    found = measures.likeness_within_layers(
        syntax_subject(similarity=[*rows, {"measure": "cosine", "layer": 1, "value": 9}])
    )
    within = [row["value"] for row in rows if row["layer"] == row["other_layer"]]
    between = [row["value"] for row in rows if row["layer"] != row["other_layer"]]
    assert (len(within), len(between)) == (18, 48)
    assert found.value == pytest.approx(float(np.mean(between) - np.mean(within)))
    assert (found.low, found.high) == pytest.approx((found.value - 0.004, found.value + 0.004))
    assert found.control == pytest.approx(11 / 3)  # every nearest head is in the layer; by chance 3 of 11 are


@pytest.mark.numeric
def test_heads_at_random_are_no_more_alike_within_a_layer() -> None:
    controls = [
        measures.likeness_within_layers(syntax_subject(similarity=divergences(4, 6, seed))).control for seed in range(8)
    ]
    assert all(control is not None for control in controls)
    assert float(np.mean([control or 0.0 for control in controls])) == pytest.approx(1, abs=0.3)
    with pytest.raises(NotMeasurable, match="two layers"):
        measures.likeness_within_layers(syntax_subject(similarity=divergences(1, 4)))


# Lift, mass and mass by norm.
Numbers = tuple[float, float, float]
IDLE: Numbers = (5.0, 0.4, 0.01)
USED: Numbers = (5.0, 0.4, 0.5)
RARE: Numbers = (0.5, 0.02, 0.0001)
SEP: Numbers = (2.0, 0.1, 0.05)


def idle_subject(*heads: dict[str, Numbers]) -> ModelRuns:
    rows = [
        {"layer": 1, "head": number, "measure": measure, "to": name, "value": value}
        for number, head in enumerate(heads, start=1)
        for name, numbers in {**head, "special tokens": (1.0, 0.5, 0.1)}.items()
        for measure, value in zip(("lift", "mass", "norm_mass"), numbers, strict=True)
    ]
    rows.append({"layer": 1, "head": 1, "measure": "entropy", "value": 0.3})
    return ModelRuns("m", {"heads": results_of("attention", Path("a"), {}, {}, heads=Table(rows))})


def head(first: Numbers, last: Numbers = SEP, name: str = "[CLS]") -> dict[str, Numbers]:
    return {name: first, "[SEP]" if name == "[CLS]" else "</s>": last, "punctuation": (1.0, 0.2, 0.2)}


@pytest.mark.parametrize("name", ["[CLS]", "<s>"])
def test_a_head_counts_that_attends_to_the_first_token_much_and_reads_the_least_there(name: str) -> None:
    heads = [head(one, name=name) for one in (IDLE, USED, RARE, IDLE)]
    assert heads_idle_at_first_token(idle_subject(*heads)).value == 0.5


def test_the_least_is_less_than_of_all_other_types_and_of_words() -> None:
    assert heads_idle_at_first_token(idle_subject(head(IDLE, (2.0, 0.1, 0.001)))).value == 0
    # Of the first token .12 / .4 is read; of words, with nine tenths of the norms on special tokens, .1 / .5.
    rows = idle_subject(head((5.0, 0.4, 0.12))).run("heads").heads
    assert (
        heads_idle_at_first_token(
            ModelRuns("m", {"heads": results_of("attention", Path("a"), {}, {}, heads=rows)})
        ).value
        == 1
    )
    for row in rows:
        if (row.get("to"), row["measure"]) == ("special tokens", "norm_mass"):
            row["value"] = 0.9
    assert (
        heads_idle_at_first_token(
            ModelRuns("m", {"heads": results_of("attention", Path("a"), {}, {}, heads=rows)})
        ).value
        == 0
    )


def test_the_control_is_the_same_of_the_last_token() -> None:
    found = heads_idle_at_first_token(idle_subject(head(USED, (2.0, 0.1, 0.001)), head(IDLE)))
    assert (found.value, found.control) == (0.5, 0.5)


def test_without_such_a_token_nothing_is_measured() -> None:
    with pytest.raises(NotMeasurable, match="have no"):
        heads_idle_at_first_token(idle_subject({"punctuation": (1.0, 0.2, 0.2)}))
    with pytest.raises(NotMeasurable, match="have no"):
        heads_idle_at_first_token(ModelRuns("m", {"heads": results_of("attention", Path("a"), {}, {})}))


def layers_subject(**tables: list[dict[str, Any]]) -> ModelRuns:
    run = results_of("attention", Path("attention"), {}, {}, **{name: Table(rows) for name, rows in tables.items()})
    return ModelRuns("any", {"attention": run, "fusion": run, "change": run})


def changed(measure: str, *values: float, of: str = "same") -> list[dict[str, Any]]:
    return [
        {"measure": measure, "of": of, "layer": layer, **with_interval(value)}
        for layer, value in enumerate(values, start=1)
    ]


def test_the_last_layers_change_most_if_each_of_them_changes_more_than_every_other() -> None:
    rows = [*changed("cosine", 0.9, 0.8, 0.95, 0.6, 0.7), *changed("jensen_shannon", 0.1, 0.3, 0.2, 0.5, 0.35)]
    rows += [*changed("cosine", 0.1, 0.1, 0.1, 0.9, 0.9, of="other heads")]
    rows += [{**row, "head": 2, "value": 0.0} for row in changed("cosine", 0, 0, 0, 0, 0)]
    found = layers_measures.lead_of_change_in_last_layers(layers_subject(change=rows), 2)
    assert (found.value, found.low, found.high) == pytest.approx((0.8 - 0.7, 0.096, 0.104))
    assert found.control == pytest.approx(0.35 - 0.3)
    assert layers_measures.lead_of_change_in_last_layers(layers_subject(change=rows[::-1]), 3).value == pytest.approx(
        0.8 - 0.95
    )
    with pytest.raises(NotMeasurable, match="more layers"):
        layers_measures.lead_of_change_in_last_layers(layers_subject(change=rows), 5)


def pairs_of_layers(measure: str, *values: float) -> list[dict[str, Any]]:
    return [
        {"measure": measure, "layer": layer, "other_layer": layer + 1, **with_interval(value)}
        for layer, value in enumerate(values, start=1)
    ]


@pytest.mark.parametrize(("n_layers", "first"), [(12, 5), (6, 3), (24, 10), (2, 1)])
def test_maps_are_compared_from_a_depth_on(n_layers: int, first: int) -> None:
    values = [0.1 if layer < first else 0.9 - layer / 1000 for layer in range(1, n_layers)]
    rows = [
        *pairs_of_layers("cosine", *values),
        *pairs_of_layers("cosine_without_special", *[value - 0.05 for value in values]),
        *pairs_of_layers("cosine_matched", *[0.0] * (n_layers - 1)),
        {"measure": "jensen_shannon", "layer": n_layers, "other_layer": n_layers, **with_interval(0.0)},
    ]
    found = layers_measures.least_similarity_of_maps(layers_subject(similarity=rows), 0.4)
    least = 0.9 - (n_layers - 1) / 1000
    assert (found.value, found.low, found.high) == pytest.approx((least, least - 0.002, least + 0.002))
    assert found.control == pytest.approx(least - 0.05)


def test_one_layer_has_none_to_be_compared_with() -> None:
    with pytest.raises(NotMeasurable, match="two consecutive layers"):
        layers_measures.least_similarity_of_maps(layers_subject(), 0.4)


def difference(task: str, fusion: str, against: str, value: float) -> dict[str, Any]:
    about = {"task": task, "fusion": fusion, "measure": "difference", "against": against, "layer": 2}
    return {**about, **with_interval(value)}


def cosine(fusion: str, value: float, **others: Any) -> dict[str, Any]:
    return {"fusion": fusion, "measure": "cosine", **with_interval(value), **others}


FUSION = [
    difference("upos", "gate", "last layer", 0.1), difference("upos", "gate", "best layer", -0.01),
    difference("position", "gate", "last layer", 0.3), difference("position", "gate", "best layer", -0.04),
    difference("position", "gate", "equal", -0.5), difference("upos", "max", "last layer", -0.2),
    cosine("layer", 0.2, layer=1), cosine("layer", 0.4, layer=3), cosine("layer", 0.9, layer=2), cosine("equal", 0.25),
    cosine("gate", 0.3, task="upos"), cosine("gate", 0.1, task="position"), cosine("max", 0.7, task="upos"),
]  # fmt: skip


def test_the_gain_by_fusion_is_that_of_the_task_with_least_over_the_last_layer() -> None:
    found = layers_measures.least_gain_by_fusion(layers_subject(fusion=FUSION), "gate")
    assert (found.value, found.low, found.high) == pytest.approx((0.1, 0.098, 0.102))
    assert found.control == -0.04


def test_similarity_after_fusion_is_that_of_the_task_with_most_less_the_last_layer() -> None:
    found = layers_measures.similarity_after_fusion(layers_subject(fusion=FUSION), "gate")
    assert (found.value, found.low, found.high) == pytest.approx((-0.1, -0.104, -0.096))
    assert found.control == pytest.approx(-0.15)


def test_fusions_need_a_task() -> None:
    for measure in (layers_measures.least_gain_by_fusion, layers_measures.similarity_after_fusion):
        with pytest.raises(NotMeasurable, match="a task"):
            measure(layers_subject(), "gate")


def role(layer: int, head: int, score: float, unlinked: float, p_value: float, **others: Any) -> dict[str, Any]:
    usual = {"role": "all", "query": "predicate", "layer": layer, "head": head}
    numbers = {"score": score, "low": score - 0.01, "high": score + 0.02, "unlinked": unlinked, "p_value": p_value}
    return {**usual, **numbers, **others}


ROLES = [
    role(1, 1, 0.10, 0.05, 0.2), role(1, 1, 0.20, 0.11, 0.04, query="filler"), role(1, 2, 0.30, 0.15, 0.01),
    role(2, 1, 0.15, 0.01, 0.001), role(2, 1, 0.9, 0.1, 0.001, role="obj"),
]  # fmt: skip


def test_the_excess_is_that_of_the_head_with_least_and_of_the_side_with_the_higher_score() -> None:
    found = measures.least_role_excess(syntax_subject(roles=ROLES), heads=["1-1", "1-2"])
    assert (found.value, found.low, found.high) == pytest.approx((0.09, 0.08, 0.11))
    assert found.control == 0.04
    alone = measures.least_role_excess(syntax_subject(roles=ROLES), heads=["2-1"])
    assert alone.value == pytest.approx(0.14)  # all roles together, not one of them
    assert alone.control == 0.001


def test_without_names_the_heads_with_the_highest_scores_count() -> None:
    found = measures.least_role_excess(syntax_subject(roles=ROLES))
    assert found.value == pytest.approx(0.09)  # 1-2 with .30 and 1-1 with .20, though 2-1 has a larger excess than 1-1
    assert measures.least_role_excess(syntax_subject(roles=ROLES), n_heads=1).value == pytest.approx(0.15)


def test_roles_need_links_and_the_heads_that_are_named() -> None:
    with pytest.raises(NotMeasurable, match="a treebank as `--corpus`"):
        measures.least_role_excess(syntax_subject())
    with pytest.raises(NotMeasurable, match="the model has no head 7-6"):
        measures.least_role_excess(syntax_subject(roles=ROLES), heads=["1-2", "7-6"])


LINGUISTIC_RELATIONS = [
    {"relation": "det", "layer": 1, "head": 1, "difference": 0.7},
    {"relation": "nsubj", "layer": 2, "head": 1, "difference": 0.25},
]


def near(layer: int, head: int, **values: float) -> list[dict[str, Any]]:
    return [{"layer": layer, "head": head, "measure": name, **with_interval(value)} for name, value in values.items()]


def test_the_head_of_subjects_is_near_by_its_attention_to_one_neighbour() -> None:
    heads = [*near(1, 1, previous=0.9, next=0.0), *near(2, 1, previous=0.2, next=0.4, self=0.99)]
    found = measures.nearness_of_subject_head(syntax_subject(heads=heads, relations=LINGUISTIC_RELATIONS))
    assert (found.value, found.low, found.high) == pytest.approx((0.4, 0.398, 0.402))
    assert found.control == 0.25


def test_subjects_need_a_treebank() -> None:
    with pytest.raises(NotMeasurable, match="a treebank as `--corpus`"):
        measures.nearness_of_subject_head(
            syntax_subject(heads=near(1, 1, previous=0.9), relations=LINGUISTIC_RELATIONS[:1])
        )


HALF = 0.004


def row(unit: str, gain: float, readout: str, layer: int = 2) -> dict[str, Any]:
    effect = gain if readout == "position" else -gain
    return {"unit": unit, "readout": readout, "layer": layer, "effect": effect, "low": effect - HALF,
            "high": effect + HALF}  # fmt: skip


# Gains without each head: nothing, at most a little lost, perhaps more than a little, and much.
GAINS = {"1-1": 0.02, "1-2": -0.005, "2-1": -0.008, "2-2": -0.012, "2-3": -0.3, "1": -0.5, "2": 0.0}


def spare_subject(readout: str, best: list[dict[str, Any]] | None = None) -> ModelRuns:
    rows = [row(unit, gain, readout) for unit, gain in GAINS.items()]
    rows += [row(unit, -1.0, readout, layer=1) for unit in GAINS]  # what lower layers lose does not count
    rows += [row(unit, -1.0, "position_retrained") for unit in GAINS]
    made = results_of("ablate", Path("ablated"), {}, {}, Table(rows), Table(best or []))
    return ModelRuns("any", {"ablated": made, "ablated_words": made})


@pytest.mark.parametrize(
    ("readout", "measure"),
    [("position", measures.spare_heads_of_positions), ("mlm", measures.spare_heads_of_words)],
)
def test_heads_count_whose_loss_is_little_and_the_interval_has_those_that_may(readout: str, measure: Any) -> None:
    found = measure(spare_subject(readout), 0.01)
    assert (found.value, found.low, found.high) == pytest.approx((3 / 5, 2 / 5, 4 / 5))
    assert found.control == 0.5  # one of two layers


@pytest.mark.parametrize(
    ("readout", "measure"), [("position", measures.gain_for_positions), ("mlm", measures.gain_for_words)]
)
def test_the_gain_is_that_of_the_better_of_head_and_layer_in_the_last_layer(readout: str, measure: Any) -> None:
    best = [
        {**row("1-1", 0.02, readout), "units": "heads", "p_value": 0.2},
        {**row("2", 0.05, readout), "units": "layers", "p_value": 0.01},
        {**row("1", 0.9, readout, layer=1), "units": "layers", "p_value": 0.001},
    ]
    found = measure(spare_subject(readout, best))
    assert (found.value, found.low, found.high, found.control) == pytest.approx((0.05, 0.046, 0.054, 0.01))


def test_heads_and_layers_are_both_needed() -> None:
    alone = results_of("ablate", Path("ablated"), {}, {}, Table([row("1-1", 0.1, "position")]), Table())
    with pytest.raises(NotMeasurable, match="with heads and with layers"):
        measures.spare_heads_of_positions(ModelRuns("any", {"ablated": alone}), 0.01)
    with pytest.raises(NotMeasurable, match="more sentences"):
        measures.gain_for_positions(ModelRuns("any", {"ablated": alone}))


def layers(measure: str, to: str, values: list[float]) -> list[dict[str, Any]]:
    return [{"layer": layer, "measure": measure, "to": to, **with_interval(one)} for layer, one in enumerate(values, 1)]


def special_subject(*rows: dict[str, Any]) -> ModelRuns:
    return ModelRuns(
        "any", {"attention": results_of("attention", Path("attention"), {}, {}, attention_layers=Table(list(rows)))}
    )


SPECIAL_SEP = layers("mass", "[SEP]", [0.1, 0.2, 0.6, 0.55, 0.3, 0.2])
BY_NORM = layers("norm_mass", "[SEP]", [0.3, 0.2, 0.1, 0.1, 0.1, 0.1])


def test_the_layer_of_the_range_with_least_attention_counts() -> None:
    found = measures.attention_to_last_token(special_subject(*SPECIAL_SEP), 0.5, 0.7)
    assert (found.value, found.low, found.high, found.control) == pytest.approx((0.55, 0.548, 0.552, 0.6))
    assert measures.attention_to_last_token(special_subject(*SPECIAL_SEP), 0.5, 0.84).value == 0.3
    with pytest.raises(NotMeasurable, match="more layers"):
        measures.attention_to_last_token(special_subject(*SPECIAL_SEP[:1]), 0.5, 0.7)


def test_the_rise_is_that_of_mean_layers_with_that_by_norm_as_control() -> None:
    found = measures.rise_at_last_token(special_subject(*SPECIAL_SEP, *BY_NORM), 0.4)
    assert found.value == pytest.approx((0.6 + 0.55 + 0.3 + 0.2) / 4 - 0.15)
    assert (found.low, found.high) == pytest.approx((found.value - 0.004, found.value + 0.004))
    assert found.control == pytest.approx(0.1 - 0.25)
    with pytest.raises(NotMeasurable, match="more layers"):
        measures.rise_at_last_token(special_subject(*SPECIAL_SEP[:1], *BY_NORM[:1]), 0.4)


def test_the_layer_in_which_norms_take_away_least_counts() -> None:
    rows = [
        *layers("mass", "special tokens", [0.4, 0.5, 0.2]), *layers("norm_mass", "special tokens", [0.1, 0.25, 0.06]),
        *layers("lift", "special tokens", [4.0, 5.0, 1.5]),
    ]  # fmt: skip
    found = measures.norm_over_weight(special_subject(*rows))
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.248 / 0.502, 0.252 / 0.498))
    assert found.control == 1.5
    with pytest.raises(NotMeasurable, match="special tokens"):
        measures.norm_over_weight(special_subject(*rows[:3]))


def test_punctuation_comes_after_the_last_special_token_by_mean_layers() -> None:
    punctuation = layers("mass", "punctuation", [0.0, 0.0, 0.0, 0.0, 0.4, 0.4])
    own = special_subject(*layers("mass", "[SEP]", [0.0, 0.0, 0.5, 0.5, 0.0, 0.0]), *punctuation)
    found = measures.layers_from_last_to_punctuation(own)
    assert found.value == pytest.approx(5.5 - 3.5)
    assert found.low < found.value < found.high


def test_a_tokenizer_without_special_tokens_is_named() -> None:
    for measure, args in ((measures.attention_to_last_token, (0.5, 0.7)), (measures.rise_at_last_token, (0.4,))):
        with pytest.raises(NotMeasurable, match=r"\[SEP\] or </s>"):
            measure(special_subject(), *args)
