"""Every claim that is measured is confirmed by a run of which it is true, and not by one of which it is false."""

from __future__ import annotations

import pytest

from planted_claims import paper, positions_runs_of
from probing.studies.claims.claim import KINDS_OF_MODELS, Claim
from probing.studies.claims.planning import Model, rows_of

MEASURED = [(claim, model) for claim in paper().claims if claim.reading for model in claim.models]
# No decoder has runs of its own here: what is measured of them is what is measured of others.
PLANTED = [pair for pair in MEASURED if pair[1] not in ("gpt2", "pythia")]


def name(value: object) -> str:
    return str(value.id) if isinstance(value, Claim) else str(value)


def verdict(claim: Claim, model: str, true: bool) -> str:
    compared = [Model("bert", positions_runs_of("bert", True))] if model == "roberta" else []
    rows = rows_of([claim], [Model(model, positions_runs_of(model, true)), *compared], paper())
    return next(str(row["verdict"]) for row in rows if row["model"] == model)


@pytest.mark.parametrize(("claim", "model"), PLANTED, ids=name)
def test_a_claim_is_confirmed_where_it_is_true_and_not_where_it_is_false(claim: Claim, model: str) -> None:
    assert verdict(claim, model, true=True) == "confirmed"
    assert verdict(claim, model, true=False) == "not confirmed"


def test_decoders_are_anisotropic_if_every_layer_is() -> None:
    (claim,) = (claim for claim in paper().claims if claim.id == 58)
    for true, expected in ((True, "confirmed"), (False, "not confirmed")):
        (row,) = rows_of([claim], [Model("gpt2", positions_runs_of("bert", true))], paper())
        assert row["verdict"] == expected


@pytest.mark.parametrize("number", [8, 58])
def test_a_claim_on_a_kind_of_models_is_measured_on_another_model_of_that_kind_alone(number: int) -> None:
    (claim,) = (claim for claim in paper().claims if claim.id == number)
    (kind,) = claim.kinds
    source = "bert-large" if number == 8 else "bert"
    for true, met in ((True, "yes"), (False, "no")):
        runs = positions_runs_of(source, true)
        (row,) = rows_of([claim], [Model("other", runs, kinds=frozenset({kind}))], paper())
        assert (row["verdict"], row["met"]) == ("analogue", met)
        (without,) = rows_of([claim], [Model("other", runs)], paper())
        assert without["verdict"] == "not testable here"
        assert without["lacking"] == f"{KINDS_OF_MODELS[kind].words}; other is none"
        assert "met" not in without


def test_the_paper_has_58_claims_and_each_says_what_is_measured_or_what_is_lacking() -> None:
    claims = paper().claims
    assert [claim.id for claim in claims] == list(range(1, 59))
    assert all(claim.reading or claim.lacking for claim in claims)
    assert all(claim.analogues or claim.lacking for claim in claims)
    assert len(MEASURED) > 40
