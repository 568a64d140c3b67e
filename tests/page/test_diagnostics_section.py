"""The sections of a page on `hierarchy` and `cloze`: their sentences, charts and tables."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from probing import report
from probing.page.lines import x, y
from probing.studies.cloze import tables as cloze
from probing.studies.hierarchy import tables as hierarchy
from written import write_csv

RIGHT = {"model": (0.0, 0.75), "untrained": (0.25, 0.25)}


def rows_of_hierarchy() -> list[dict[str, Any]]:
    return [
        {
            "task": "main_auxiliary", "condition": condition, "layer": layer, "test": 1.0, "test_low": 0.99,
            "test_high": 1.0, "generalisation": right, "low": max(right - 0.05, 0), "high": right + 0.05,
            "first_auxiliary": 1 - right, "first_auxiliary_low": 0.9 - right, "first_auxiliary_high": 1.0,
            "preference": 2 * right - 1, "preference_low": 2 * right - 1.1, "preference_high": 2 * right - 0.9,
            **({"difference": RIGHT["model"][layer] - right, "difference_low": -0.3 + 0.7 * layer,
                "difference_high": -0.2 + 0.8 * layer} if condition != "model" else {}),
        }
        for condition, rights in RIGHT.items()
        for layer, right in enumerate(rights)
    ]  # fmt: skip


def rows_of_cloze() -> dict[str, list[dict[str, Any]]]:
    group = {
        "n": 8, "n_right": 6, "share": 0.75, "low": 0.349, "high": 0.968, "clear_share": 0.5, "clear_share_low": 0.2,
        "clear_share_high": 0.8, "difference": 1.5, "difference_low": float("nan"), "difference_high": float("nan"),
    }  # fmt: skip
    change = {
        "condition": "words_shuffled", "against": "intact", "loss": 3.5, "low": 3.0, "high": 4.0, "baseline": 3.0,
        "difference": 0.5, "difference_low": 0.25, "difference_high": 0.75, "n_sentences": 40, "n": 90,
    }  # fmt: skip
    return {"groups": [{"group": "all", **group}, {"group": "<agreement>", **group}], "changes": [change]}


def page_of(folder: Path, kind: str, tables: dict[str, list[dict[str, Any]]]) -> str:
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps({"kind": kind}), encoding="utf-8")
    (folder / "config.yaml").write_text("model: minilm\n", encoding="utf-8")
    for name, rows in tables.items():
        write_csv(folder / f"{name}.csv", rows)
    return report([str(folder)]).read_text(encoding="utf-8")


def section_of(page: str, name: str) -> str:
    (found,) = re.findall(rf'<section id="{name}-0".*?</section>', page, re.DOTALL)
    return str(found)


@pytest.fixture(scope="module")
def of_hierarchy(tmp_path_factory: pytest.TempPathFactory) -> str:
    tables = {"hierarchy": rows_of_hierarchy(), "distractors": [{"task": "main_auxiliary", "layer": 0}]}
    folder = tmp_path_factory.mktemp("page") / "h"
    return page_of(folder, "linear order or hierarchy", tables)


@pytest.fixture(scope="module")
def of_cloze(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_of(tmp_path_factory.mktemp("page") / "c", "predictions at masks", rows_of_cloze())


def test_a_page_says_which_layers_go_by_which_rule(of_hierarchy: str) -> None:
    section = unescape(section_of(of_hierarchy, "hierarchy"))
    assert "<h1>Linear order or hierarchy in minilm</h1>" in of_hierarchy
    assert "probes go by linear order in layer 0 and by hierarchy in layer 1." in section
    assert (
        "Main auxiliary, beside randomly initialised: the model is above it in layer 1 and below it in layer 0."
        in section
    )
    for value, layer in ((0.75, 1), (0.25, 0)):
        assert f"translate({x(layer, [0, 1]):g} {y(value):g})" in section
    assert "they differ, randomly initialised: right" in section


def test_a_page_has_the_pairs_and_the_changes(of_cloze: str) -> None:
    section = section_of(of_cloze, "cloze")
    assert "<h1>Predictions of minilm at masks</h1>" in of_cloze
    assert "&lt;agreement&gt;: the good word is the likelier one in 6 of 8 pairs (75.0%; 34.9 to 96.8)" in section
    assert "With words shuffled, the loss of masked words goes from 3.000 to 3.500 nats, by +0.500" in section
    assert section.count("<table") == 2


@pytest.mark.parametrize(("name", "terms"), [("of_hierarchy", hierarchy.terms()), ("of_cloze", cloze.terms())])
def test_every_heading_is_a_term(name: str, terms: dict[str, str], request: pytest.FixtureRequest) -> None:
    section = section_of(request.getfixturevalue(name), name.removeprefix("of_"))
    headings = {unescape(one) for one in re.findall(r'<th scope="col">(.*?)</th>', section)}
    known = {part for term in terms for part in (term, *term.split(", "))}
    assert headings
    assert headings <= known
