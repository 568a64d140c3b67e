"""Classes of maps and attended tokens, against values planted in the tables of a survey."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from planted_claims import classes, with_interval
from probing.results.rows import Table
from probing.runs.study import Result
from probing.studies.claims.measures import heads as measures
from probing.studies.claims.measures.registry import NotMeasurable, Subject
from written import results_of


def survey(*rows: dict[str, Any], of_classes: Table | None = None) -> Result:
    return results_of(
        "attention", Path("attention"), {}, {}, attention_layers=Table(rows), attention_classes=Table(of_classes or ())
    )


def subject(sentences: Result, pairs: Result | None = None) -> Subject:
    return Subject("any", {"attention": sentences, "pairs": pairs})


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


def lifts(special: float, noun: float, verb: float, half: float = 0.0, share: float = 0.1) -> Subject:
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
