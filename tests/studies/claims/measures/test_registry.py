"""Which neurons claims are about: the published ones, or a model's own outliers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probing.results.rows import Table
from probing.runs.study import Result
from probing.studies.claims.measures.registry import MEASURES, NotMeasurable, Subject
from written import results_of


def geometry(*outliers: tuple[int, int, float], **about: Any) -> Result:
    """Return a run with outliers by the profile of the mean: layer, neuron, deviation."""
    usual = {"definition": "mean_profile", "special_tokens": "exclude"}
    rows = [{**usual, "layer": layer, "neuron": k, "value": value, **about} for layer, k, value in outliers]
    none = Table()
    return results_of("geometry", Path("g"), {"special_tokens": "exclude"}, {}, none, Table(rows), none, none, none)


def test_published_outliers_are_those_of_the_paper() -> None:
    subject = Subject("bert", {}, {"minimum": 557})
    assert subject.neuron("minimum") == 557
    assert subject.outliers() == {"minimum": 557}
    with pytest.raises(NotMeasurable, match="names no outlier of bert that is a maximum"):
        subject.neuron("maximum")


def test_another_model_has_the_outlier_of_the_most_layers_above_the_embeddings() -> None:
    run = geometry((0, 1, -30), (0, 1, -31), (1, 2, -6), (2, 2, -6), (1, 3, -29), (1, 4, 7), (2, 5, 8), (3, 4, 6))
    subject = Subject("m", {"geometry": run})
    assert subject.outliers() == {"minimum": 2, "maximum": 4}
    assert subject.outliers(["maximum"]) == {"maximum": 4}


def test_of_outliers_of_as_many_layers_the_farther_one_counts() -> None:
    assert Subject("m", {"geometry": geometry((1, 2, -6), (2, 3, -7))}).neuron("minimum") == 3
    assert Subject("m", {"geometry": geometry((1, 3, -7), (2, 2, -6))}).neuron("minimum") == 3
    assert Subject("m", {"geometry": geometry((1, 3, -6), (2, 2, -6))}).neuron("minimum") == 2


@pytest.mark.parametrize("about", [{"definition": "variance"}, {"special_tokens": "include"}])
def test_other_definitions_and_other_tokens_name_no_outlier(about: dict[str, str]) -> None:
    with pytest.raises(NotMeasurable, match="no neuron's mean is beyond 5 sd below the others' in any layer"):
        Subject("m", {"geometry": geometry((1, 2, -6), **about)}).neuron("minimum")


def test_a_model_with_one_outlier_has_no_other_role() -> None:
    subject = Subject("m", {"geometry": geometry((1, 2, 6))})
    assert subject.outliers() == {"maximum": 2}
    with pytest.raises(NotMeasurable, match="below"):
        subject.outliers(["minimum", "maximum"])
    with pytest.raises(NotMeasurable):
        Subject("m", {"geometry": geometry()}).outliers()


def test_every_measure_has_a_first_line_that_says_what_it_returns() -> None:
    assert len(MEASURES) > 15
    for measure in MEASURES.values():
        assert (measure.function.__doc__ or "").startswith("Return ")
