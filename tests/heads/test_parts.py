"""A survey of models of several families, from the parts to the rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from probing.cache import Request
from probing.corpus import from_sentences
from probing.heads.parts import measurable, measure
from probing.heads.subject import Subject
from probing.models import resolve_model

# pytorch-lightning 2.6 asks torch's tree specifications a deprecated question.
pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
]


@pytest.mark.parametrize("family", ["bert", "gpt2", "xlnet"])
def test_a_survey_of_a_model(checkpoints: dict[str, Path], sentences: list[str], tmp_path: Path, family: str) -> None:
    source = resolve_model(str(checkpoints[family]))
    request = Request(source, from_sentences("made up", sentences[:30]), (), batch_tokens=300)
    subject = Subject.of(request, [1, 2], 0)
    parts, left_out = measurable(subject, ["classes", "profile", "tokens"], by_name=True)
    assert left_out == {}
    tables, stores = measure(subject, parts, tmp_path, {"accelerator": "cpu"}, lambda message: None)
    heads = tables["heads"]
    types = {row.get("to", "") for row in heads}
    assert {"special tokens", "punctuation", "negation"} < types
    assert {"[CLS]", "[SEP]"} <= types or family != "bert"
    norms = {row["value"] for row in heads if row["measure"] == "norm_mass"}
    assert (not norms) == (family == "xlnet")
    places = {(row["layer"], row["head"]) for row in heads}
    for place in places:
        rows = [row for row in heads if (row["layer"], row["head"]) == place]
        own = {(row["measure"], row.get("to", "")): row["value"] for row in rows}
        assert 0 < own["entropy", ""] <= 1
        if family == "gpt2":  # the first token is the only special one, and nothing follows
            assert own["next", ""] == 0
        if family == "bert":
            assert own["mass", "special tokens"] == pytest.approx(own["mass", "[CLS]"] + own["mass", "[SEP]"])
    of_heads = [row for row in tables["attention_classes"] if row["layer"] != "all" and row["factor"] == 1]
    assert {(row["layer"], row["head"]) for row in of_heads} == places
    assert len(of_heads) == len(places)
    again, same = measure(subject, parts, tmp_path, {"accelerator": "cpu"}, lambda message: None)
    assert repr(again) == repr(tables)
    assert [store.folder for store in same.values()] == [store.folder for store in stores.values()]
