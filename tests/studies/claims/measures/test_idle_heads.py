"""Heads that attend much to a token of which they read little, against tables made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from probing.results.rows import Table
from probing.studies.claims.measures.heads import heads_idle_at_first_token
from probing.studies.claims.measures.registry import NotMeasurable, Subject
from written import results_of

# Lift, mass and mass by norm.
Numbers = tuple[float, float, float]
IDLE: Numbers = (5.0, 0.4, 0.01)
USED: Numbers = (5.0, 0.4, 0.5)
RARE: Numbers = (0.5, 0.02, 0.0001)
SEP: Numbers = (2.0, 0.1, 0.05)


def subject(*heads: dict[str, Numbers]) -> Subject:
    rows = [
        {"layer": 1, "head": number, "measure": measure, "to": name, "value": value}
        for number, head in enumerate(heads, start=1)
        for name, numbers in {**head, "special tokens": (1.0, 0.5, 0.1)}.items()
        for measure, value in zip(("lift", "mass", "norm_mass"), numbers, strict=True)
    ]
    rows.append({"layer": 1, "head": 1, "measure": "entropy", "value": 0.3})
    return Subject("m", {"heads": results_of("attention", Path("a"), {}, {}, heads=Table(rows))})


def head(first: Numbers, last: Numbers = SEP, name: str = "[CLS]") -> dict[str, Numbers]:
    return {name: first, "[SEP]" if name == "[CLS]" else "</s>": last, "punctuation": (1.0, 0.2, 0.2)}


@pytest.mark.parametrize("name", ["[CLS]", "<s>"])
def test_a_head_counts_that_attends_to_the_first_token_much_and_reads_the_least_there(name: str) -> None:
    heads = [head(one, name=name) for one in (IDLE, USED, RARE, IDLE)]
    assert heads_idle_at_first_token(subject(*heads)).value == 0.5


def test_the_least_is_less_than_of_all_other_types_and_of_words() -> None:
    assert heads_idle_at_first_token(subject(head(IDLE, (2.0, 0.1, 0.001)))).value == 0
    # Of the first token .12 / .4 is read; of words, with nine tenths of the norms on special tokens, .1 / .5.
    rows = subject(head((5.0, 0.4, 0.12))).run("heads").heads
    assert (
        heads_idle_at_first_token(Subject("m", {"heads": results_of("attention", Path("a"), {}, {}, heads=rows)})).value
        == 1
    )
    for row in rows:
        if (row.get("to"), row["measure"]) == ("special tokens", "norm_mass"):
            row["value"] = 0.9
    assert (
        heads_idle_at_first_token(Subject("m", {"heads": results_of("attention", Path("a"), {}, {}, heads=rows)})).value
        == 0
    )


def test_the_control_is_the_same_of_the_last_token() -> None:
    found = heads_idle_at_first_token(subject(head(USED, (2.0, 0.1, 0.001)), head(IDLE)))
    assert (found.value, found.control) == (0.5, 0.5)


def test_without_such_a_token_nothing_is_measured() -> None:
    with pytest.raises(NotMeasurable, match="have no"):
        heads_idle_at_first_token(subject({"punctuation": (1.0, 0.2, 0.2)}))
    with pytest.raises(NotMeasurable, match="have no"):
        heads_idle_at_first_token(Subject("m", {"heads": results_of("attention", Path("a"), {}, {})}))
