"""Weights pruned by magnitude and at random: which ones, that they come back, and what is read meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probing.cache import Request, activations
from probing.cache.store import PassStore
from probing.corpus import Corpus
from probing.models import load_encoder, load_tokenizer, resolve_model
from probing.models.loading import load_tuned, load_with_head
from probing.readouts.forward import Readers, Text, padded
from probing.readouts.later_blocks import LaterBlocks
from probing.readouts.pair_cosines import TunedHead, TunedScore
from probing.studies.disable.tables import weight_sentences
from probing.studies.disable.weights import (
    N_DRAWS,
    N_FILES,
    PERCENT,
    Pass,
    WeightPruning,
    first_block,
    matrices,
    pruned,
    smallest,
    weight_rows,
)

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning"),
]

NAMED: dict[str, Any] = {"readout": "tuned", "layer": 3, "n_weights": 100}


def examined(folder: Path) -> LaterBlocks:
    source = resolve_model(str(folder))
    return LaterBlocks.of(load_encoder(source), load_tokenizer(source).pad_token_id or 0, folder.name)


# Of each block: query, key, value, output and two of the feed-forward layer; GPT-2 has the first three as one.
@pytest.mark.parametrize(("family", "n"), [("bert", 18), ("distilbert", 18), ("gpt2", 12), ("albert", 6)])
def test_matrices_are_those_of_attention_and_feed_forward_layers(
    family: str, n: int, checkpoints: dict[str, Path]
) -> None:
    model = examined(checkpoints[family])
    found = matrices(model, [1, 2, 3])
    assert len(found) == len({id(one) for one in found}) == n
    assert all(one.ndim == 2 and min(one.shape) >= 16 for one in found)
    part = matrices(model, [2])
    # Where blocks share their weights, each has those of all.
    assert len(part) == (n if family == "albert" else n // 3)
    assert first_block(model, [2]) == (1 if family == "albert" else 2)
    embeddings = model.encoder.get_input_embeddings().weight  # type: ignore[operator]
    assert not any(one is embeddings for one in found)


def test_the_smallest_weights_go_first_and_random_ones_are_added_to() -> None:
    matrix = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    magnitude = matrix.abs().flatten()
    gone = smallest(matrix, 180, None)
    assert len(set(gone.tolist())) == 180
    left = np.setdiff1d(np.arange(600), gone)
    assert magnitude[gone].max() < magnitude[left].min()
    assert len(smallest(matrix, 0, None)) == 0
    # As many of equal weights as were asked for.
    assert len(smallest(torch.zeros(4, 5), 7, None)) == 7
    drawn = [set(smallest(matrix, n, np.random.default_rng([3, 1, 0])).tolist()) for n in (60, 120)]
    other = set(smallest(matrix, 60, np.random.default_rng([3, 2, 0])).tolist())
    assert drawn[0] < drawn[1]
    assert [len(one) for one in (*drawn, other)] == [60, 120, 60]
    assert other != drawn[0]
    assert 0.8 < magnitude[sorted(drawn[1])].mean() / magnitude.mean() < 1.2


def test_every_matrix_loses_the_same_share_and_all_weights_come_back(checkpoints: dict[str, Path]) -> None:
    model = examined(checkpoints["bert"])
    weights = matrices(model, [1, 2])
    with torch.no_grad():
        weights[0].mul_(100)  # by itself, no weight of it would be among the smallest of all
    before = {name: value.clone() for name, value in model.encoder.state_dict().items()}
    for draw in (0, 1):
        with pruned(weights, 30, draw, 0) as n:
            assert [int((one == 0).sum()) for one in weights] == [round(0.3 * one.numel()) for one in weights]
            assert n == sum(round(0.3 * one.numel()) for one in weights)
            changed = [
                name for name, value in model.encoder.state_dict().items() if not torch.equal(value, before[name])
            ]
            assert len(changed) == 12
        assert all(torch.equal(value, before[name]) for name, value in model.encoder.state_dict().items())
    with pytest.raises(KeyboardInterrupt), pruned(weights, 90, 0, 0):
        raise KeyboardInterrupt
    assert all(torch.equal(value, before[name]) for name, value in model.encoder.state_dict().items())


@pytest.mark.slow
def test_what_is_read_is_what_the_pruned_model_gives(
    checkpoints: dict[str, Path], sentences: list[str], tmp_path: Path
) -> None:
    source = resolve_model(str(checkpoints["bert"]))
    model = load_with_head(source, "sentences", 3, 0)
    model.save_pretrained(tmp_path / "model")
    load_tokenizer(source).save_pretrained(tmp_path / "model")
    source = resolve_model(str(tmp_path / "model"))
    whole: Any = load_tuned(source, "sentences")
    with torch.no_grad():  # a new head hardly tells sentences apart
        whole.classifier.weight.mul_(50)
    corpus = Corpus("test", tuple(sentences[:24]))
    store = activations(Request(source, corpus, range(4)), tmp_path / "cache", {"accelerator": "cpu"})
    text, blocks = Text(store, np.arange(24)), LaterBlocks.of(whole.base_model, 0, "tiny")
    targets = torch.randint(0, 3, (24,), generator=torch.Generator().manual_seed(0))
    readout = TunedScore(text, targets, TunedHead(whole, blocks, 0), "sentences", 3)
    how = WeightPruning(Readers.of(whole.base_model, 0, "tiny"), [2, 3], 0, 256)
    opened = PassStore.opened(tmp_path / "passes", {"a": 1}, text.tokens, N_FILES, 256, store.plan.key)
    rows = how.rows(readout, opened)
    assert len(rows) == len(PERCENT) + (len(PERCENT) - 1) * (1 + N_DRAWS)
    assert len({row["value"] for row in rows}) > 5

    def alone() -> float:
        with torch.no_grad():
            logits = [whole(**padded(text.tokens, np.array([i]), 0).inputs).logits[0].argmax() for i in range(24)]
        return float((torch.stack(logits) == targets).float().mean())

    for row in rows:
        if row["order"] != "random_mean" and row["draw"] <= 2:
            percent = round(100 * row["share"])
            with pruned(matrices(how.readers.model, [2, 3]), percent, row["draw"], 0):
                assert row["value"] == pytest.approx(alone())
    assert [str(row) for row in how.rows(readout, opened)] == [str(row) for row in rows]


def sums_of(costs: dict[int, float], n_draws: int = N_DRAWS) -> dict[Pass, Any]:
    """Return passes over 60 sentences of 10 targets, 8 of which are right; random draws cost twice as much."""
    generator = np.random.default_rng(0)
    return {
        Pass(percent, draw): 8 - cost * (1 + (draw > 0)) + (generator.integers(-1, 2, 60) if percent else np.zeros(60))
        for draw in range(n_draws + 1)
        for percent, cost in costs.items()
        if percent or not draw
    }


def test_rows_are_of_each_draw_and_of_their_mean() -> None:
    costs = {percent: max(0.0, 0.05 * (percent - 30)) for percent in PERCENT}
    found = sums_of(costs)
    rows = weight_rows(found, np.full(60, 10), NAMED)
    by = {(row["order"], row["draw"], round(100 * row["share"])): row for row in rows}
    assert by["magnitude", 0, 0]["value"] == 0.8
    assert (by["magnitude", 0, 0]["low"], by["magnitude", 0, 0]["high"]) == (0, 0)
    assert by["magnitude", 0, 60]["value"] == pytest.approx(found[Pass(60, 0)].sum() / 600)
    for percent in PERCENT[1:]:
        mean, draws = by["random_mean", 0, percent], [by["random", draw, percent] for draw in range(1, N_DRAWS + 1)]
        assert mean["effect"] == pytest.approx(np.mean([row["effect"] for row in draws]))
        assert mean["low"] < mean["effect"] < mean["high"]
    # Draws that differ widen the interval of their mean.
    apart = found | {Pass(90, draw): found[Pass(90, draw)] + (-1) ** draw * 2 for draw in range(1, N_DRAWS + 1)}
    wide = [row for row in weight_rows(apart, np.full(60, 10), NAMED) if row["order"] == "random_mean"][-1]
    assert wide["high"] - wide["low"] > 1.5 * (by["random_mean", 0, 90]["high"] - by["random_mean", 0, 90]["low"])
    (line,) = weight_sentences({"disabled": [{"readout": "tuned"}], "weight_pruning": rows}, "tuned")
    assert "the task accuracy is worse than the whole model's from 40% on (100 weights)" in line


def test_where_nothing_is_lost_no_share_is_named() -> None:
    rows = weight_rows(sums_of(dict.fromkeys(PERCENT, 0.0)), np.full(60, 10), NAMED)
    (line,) = weight_sentences({"weight_pruning": rows}, "tuned")
    assert "the whole model's at no share" in line
    assert "with random ones, at no share" in line
    # Of a loss, more is worse.
    losses = weight_rows(
        sums_of({percent: -percent / 30 for percent in PERCENT}), np.full(60, 10), NAMED | {"readout": "mlm"}
    )
    (line,) = weight_sentences({"weight_pruning": losses}, "mlm")
    assert "the loss of masked words is worse than the whole model's from 10% on" in line
