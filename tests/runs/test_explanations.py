"""`Run.explain`: contributions add up to the logit, whose softmax is the probability; and what is shown of them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import BARE
from probing import Run, UserError, WandbOptions, fit, load_run, probe
from probing.runs.predictions import Explanation

pytestmark = pytest.mark.numeric
HOW: Any = {"quiet": True, "wandb": WandbOptions(mode="disabled"), **BARE}


@pytest.fixture(scope="module")
def made(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = fit(
        model=str(checkpoints["bert"]), corpus=str(corpus_file), layer="1,2", runs=str(tmp_path_factory.mktemp("runs")),
        **HOW,
    )  # fmt: skip
    assert run is not None
    return run


def test_the_contributions_of_all_neurons_add_up_to_the_logit_of_what_is_predicted(made: Run) -> None:
    texts = made.test_sentences[:3]
    width = made.weight.shape[2]
    whole, predicted = load_run(made.folder).explain(texts, n=width), made.predict(texts)
    examples = whole.examples()
    assert len(examples) == len(predicted)
    by_token = {(row["layer"], row["sentence"], row["position"]): row for row in predicted}
    for rows in examples:
        own = by_token[tuple(rows[0][name] for name in ("layer", "sentence", "position"))]
        assert {name: rows[0][name] for name in own} == own
        assert [row["rank"] for row in rows] == [*range(1, width + 1)]
        assert sorted(row["neuron"] for row in rows) == [*range(width)]
        assert sum(row["contribution"] for row in rows) == pytest.approx(rows[0]["logit"], abs=1e-9)
        sizes = [abs(row["contribution"]) for row in rows]
        assert sizes == sorted(sizes, reverse=True)
    few = made.explain(texts, layer=2, n=3)
    assert {row["layer"] for row in few} == {2}
    assert [*few] == [row for row in whole if row["layer"] == 2 and row["rank"] <= 3]


def test_arrays_have_the_terms_of_their_logits() -> None:
    labels = np.arange(300) % 3
    X = np.eye(3, dtype=np.float32)[labels] + np.random.default_rng(0).normal(scale=0.4, size=(300, 3)).astype(
        np.float32
    )
    run = probe(X, labels, replicates=0, evidence="none", probe={"l2": 1e-2})
    found = run.explain(X[:5], n=3)
    W = run.weight[0].double().numpy()
    W = W - W.mean(0)
    for i, rows in enumerate(found.examples()):
        logits = W @ X[i].astype(np.float64)
        c = int(logits.argmax())
        assert rows[0]["predicted"] == c
        assert rows[0]["probability"] == pytest.approx(math.exp(logits[c]) / np.exp(logits).sum(), rel=1e-5)
        assert {row["neuron"]: row["contribution"] for row in rows} == pytest.approx(dict(enumerate(W[c] * X[i])))
    assert "row 0" in repr(found)
    with pytest.raises(UserError, match="`n=4` is not allowed; use a whole number from 1 to 3"):
        run.explain(X[:5], n=4)
    with pytest.raises(UserError, match=r"`layer=2`: .* has layer 0\."):
        run.explain(X[:5], layer=2)


def test_numbers_are_explained_by_how_far_they_are_from_the_constant_answer(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    lines = corpus_file.read_text(encoding="utf-8").splitlines()
    pairs = [{"text": line, "label": len(line.split()) + 0.5} for line in lines]
    (tmp_path / "lengths.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs), encoding="utf-8")
    how: Any = {"corpus": str(tmp_path / "lengths.jsonl"), "task": "sentence_label", "task_args": {"numbers": True}}
    run = fit(model=str(checkpoints["bert"]), layer=2, runs=str(tmp_path), **how, **HOW)
    assert run is not None
    text = run.test_sentences[0]
    found = run.explain(text, n=2)
    assert found[0]["logit"] == pytest.approx(found[0]["predicted"] - run.results["numbers"]["mean"])
    assert {row["end"] for row in run.contexts} == {"highest", "lowest"}
    numbers = {text: len(text.split()) + 0.5 for text in lines}
    for row in run.contexts:
        assert row["token"].endswith("…") or row["number"] == numbers[row["token"]]
    # A whole sentence stands for itself.
    assert text.split()[0] in repr(found)
    assert text in found._repr_html_()


def test_what_is_shown_is_escaped_and_has_the_prediction_and_its_neurons() -> None:
    row = {
        "sentence": 0,
        "position": 1,
        "token": "<b>",
        "layer": 3,
        "predicted": "A&B",
        "probability": 0.5,
        "logit": 1.0,
    }
    rows = [
        {**row, "rank": rank, "neuron": n, "contribution": value} for rank, n, value in ((1, 7, -1.5), (2, 0, 0.25))
    ]
    shown = Explanation(rows)._repr_html_()
    assert "&lt;b&gt;<rt>A&amp;B</rt>" in shown
    assert 'title="A&amp;B 0.500: 7 (-1.50), 0 (+0.25)"' in shown
    (line,) = [line.split() for line in repr(Explanation(rows)).splitlines() if "<b>" in line]
    assert line == ["<b>", "A&B", "0.500", "7", "(-1.50),", "0", "(+0.25)"]
