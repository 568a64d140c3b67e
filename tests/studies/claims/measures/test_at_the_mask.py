"""Words at a mask and the loss in changed text, against tables made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probing.results.rows import Table
from probing.studies.claims.measures import registry as measures
from probing.studies.claims.measures.registry import NotMeasurable, Subject
from written import results_of

GROUPS = [
    {"group": "all", "share": 0.6, "low": 0.5, "high": 0.7},
    {"group": "affirmative", "share": 1.0, "low": 0.63, "high": 1.0},
    {"group": "negated", "share": 0.125, "low": 0.003, "high": 0.53},
]


def change(condition: str, against: str, difference: float) -> dict[str, Any]:
    ends = {"difference_low": difference - 0.1, "difference_high": difference + 0.2}
    return {"condition": condition, "against": against, "difference": difference, **ends}


CHANGES = [
    {"condition": "intact", "loss": 2.0}, change("words_shuffled", "intact", 1.5),
    change("name_replaced", "intact", 0.4), change("noun_replaced", "intact", 0.3),
    change("name_replaced", "noun_replaced", 0.1),
]  # fmt: skip


def subject(**tables: list[dict[str, Any]]) -> Subject:
    made = results_of("cloze", Path("cloze"), {}, {}, **{name: Table(rows) for name, rows in tables.items()})
    return Subject("any", {"minimal_pairs": made, "changed_text": made})


def test_the_share_of_a_group_may_have_that_of_another_as_control() -> None:
    found = measures.share_of_pairs(subject(groups=GROUPS), "negated", beside="affirmative")
    assert (found.value, found.low, found.high, found.control) == (0.125, 0.003, 0.53, 1.0)
    assert measures.share_of_pairs(subject(groups=GROUPS), "affirmative").control is None


@pytest.mark.parametrize("names", [("agreement",), ("negated", "agreement")])
def test_a_group_that_the_file_does_not_have_is_named(names: tuple[str, ...]) -> None:
    with pytest.raises(NotMeasurable, match="`agreement` in the file that `--cloze` names"):
        measures.share_of_pairs(subject(groups=GROUPS), *names)


def test_a_change_is_compared_with_the_text_as_it_is_or_with_another_change() -> None:
    found = measures.loss_in_changed_text(subject(changes=CHANGES), "words_shuffled")
    assert (found.value, found.low, found.high) == pytest.approx((1.5, 1.4, 1.7))
    assert found.control is None
    beside = measures.loss_in_changed_text(subject(changes=CHANGES), "name_replaced", "noun_replaced")
    assert (beside.value, beside.control) == (0.1, 0.4)


def test_names_need_a_treebank() -> None:
    with pytest.raises(NotMeasurable, match="a treebank as `--corpus`"):
        measures.loss_in_changed_text(subject(changes=CHANGES[:2]), "name_replaced", "noun_replaced")
