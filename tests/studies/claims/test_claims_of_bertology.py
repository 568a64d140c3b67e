"""Every claim that is measured is confirmed by runs of which it is true, and not by runs of which it is false."""

from __future__ import annotations

import pytest

from planted_claims import bertology_runs_of, measured, name, verdicts
from probing.studies.claims.claim import Claim, read_paper
from probing.studies.claims.measures import MEASURES
from probing.studies.claims.planning import Model, rows_of

PAPER = read_paper("bertology", MEASURES)


@pytest.mark.parametrize(("claim", "model"), measured(PAPER), ids=name)
def test_a_claim_is_confirmed_where_it_is_true_and_not_where_it_is_false(claim: Claim, model: str) -> None:
    assert verdicts(PAPER, claim, model, bertology_runs_of) == ["confirmed", "not confirmed"]


def test_another_model_has_analogues_of_every_claim_that_is_measured() -> None:
    for true, met in ((True, "yes"), (False, "no")):
        rows = {row["id"]: row for row in rows_of(PAPER.claims, [Model("other", bertology_runs_of(true))], PAPER)}
        assert {row["verdict"] for row in rows.values()} == {"analogue", "not testable here"}
        measured = {claim.id for claim in PAPER.claims if claim.analogues}
        assert {number: row["met"] for number, row in rows.items() if "met" in row} == dict.fromkeys(measured, met)
        assert all(rows[number]["lacking"] for number in set(rows) - measured)


def test_without_a_head_of_its_own_a_model_is_measured_by_its_probes() -> None:
    rows = {row["id"]: row for row in rows_of(PAPER.claims, [Model("other", bertology_runs_of(True))], PAPER)}
    assert [rows[number]["measure"] for number in (29, 30)] == ["spare_heads_of_positions", "gain_for_positions"]


def test_a_model_with_a_head_of_its_own_is_measured_by_masked_words_as_the_survey_s_models_are() -> None:
    of_words = frozenset({"masked language model"})
    for true, met in ((True, "yes"), (False, "no")):
        other = Model("other", bertology_runs_of(true), kinds=of_words)
        rows = {row["id"]: row for row in rows_of(PAPER.claims, [other], PAPER)}
        assert [rows[number]["measure"] for number in (29, 30)] == ["spare_heads_of_words", "gain_for_words"]
        assert [(rows[number]["verdict"], rows[number]["met"]) for number in (29, 30)] == [("analogue", met)] * 2


def test_the_survey_has_37_claims_of_which_32_are_measured() -> None:
    assert [claim.id for claim in PAPER.claims] == list(range(1, 38))
    assert {claim.id for claim in PAPER.claims if claim.reading is None} == {10, 12, 32, 33, 35, 36, 37}
    assert {claim.id for claim in PAPER.claims if not claim.analogues} == {10, 12, 35, 36, 37}
    assert PAPER.models == ["bert", "bert-uncased", "bert-large", "own"]
