"""Weights rounded to few bits or pruned: which ones, what comes back, and what is read meanwhile."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probing import WandbOptions, ablate
from probing.activations import Request, activations
from probing.activations.store import WorkPlan, WorkStore
from probing.interventions.forward import LaterBlocks, Readers, ReadText, padded, padded_batches
from probing.interventions.pair_cosines import TunedHead, TunedScore
from probing.interventions.parameters import (
    N_DRAWS,
    PrunedShare,
    Rounding,
    RoundingRange,
    column_weights,
    first_block,
    matrices,
    pruned,
    rounded,
    rounded_weights,
    rounding_change,
    roundings,
    smallest,
)
from probing.models import load_encoder, load_tokenizer, resolve_model
from probing.models.loading import load_tuned, load_with_head
from probing.results import Table
from probing.runs.loading import load_run
from probing.studies.ablate.tables import ABLATED, QUANTISED, SCHEMAS, WEIGHT_PRUNING, conclusions
from probing.studies.ablate.weights import N_DRAWS as PRUNING_N_DRAWS
from probing.studies.ablate.weights import N_FILES, PERCENT, pruned_weights, quantised_rows, weight_rows
from probing.text import Corpus
from synthetic import make_tokens

pytestmark = pytest.mark.numeric


def test_values_are_the_nearest_of_a_grid_and_none_beyond_it() -> None:
    values = torch.randn(200, generator=torch.Generator().manual_seed(0)) * 3
    largest = torch.tensor(2.0)
    for bits in (2, 4, 8):
        steps = 2 ** (bits - 1) - 1
        grid = torch.arange(-steps, steps + 1) * (2.0 / steps)
        nearest = grid[(values[:, None] - grid).abs().argmin(1)]
        found = rounded(values, bits, largest)
        torch.testing.assert_close(found, nearest)
        assert found.abs().max() <= 2
        assert len(found.unique()) <= 2**bits - 1
    assert torch.equal(rounded(torch.zeros(3), 4, torch.zeros(3)), torch.zeros(3))
    torch.testing.assert_close(rounded(values, 16, values.abs().max()), values, atol=3e-4, rtol=0)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_every_matrix_is_rounded_by_unit_and_comes_back(family: str, checkpoints: dict[str, Path]) -> None:
    source = resolve_model(str(checkpoints[family]))
    model = LaterBlocks.of(load_encoder(source), load_tokenizer(source).pad_token_id or 0, family)
    weights, columns = matrices(model, [1, 2]), column_weights(model.encoder)
    assert len(columns) == (0 if family == "bert" else 12)
    before = {name: value.clone() for name, value in model.encoder.state_dict().items()}
    own = [weight.clone() for weight in weights]
    for by_channel in (False, True):
        with rounded_weights(weights, 4, by_channel, columns):
            for weight, was in zip(weights, own, strict=True):
                units, of = (weight.T, was.T) if family == "gpt2" else (weight, was)
                assert not torch.equal(weight, was)
                for unit, as_it_was in zip(units, of, strict=True):
                    largest = as_it_was.abs().max() if by_channel else was.abs().max()
                    torch.testing.assert_close(unit, rounded(as_it_was, 4, largest))
        assert all(torch.equal(value, before[name]) for name, value in model.encoder.state_dict().items())
    with pytest.raises(KeyboardInterrupt), rounded_weights(weights, 2, True):
        raise KeyboardInterrupt
    assert all(torch.equal(value, before[name]) for name, value in model.encoder.state_dict().items())


def test_states_are_rounded_where_they_enter_a_block(
    checkpoints: dict[str, Path], sentences: list[str], tmp_path: Path
) -> None:
    """By hooks of torch alone, which round what enters the second and the third block of the model itself."""
    source = resolve_model(str(checkpoints["bert"]))
    encoder: Any = load_encoder(source)
    store = activations(
        Request(source, Corpus("t", tuple(sentences[:20])), range(4)), tmp_path / "c", {"accelerator": "cpu"}
    )
    text, readers = ReadText(store, np.arange(20)), Readers.of(encoder, 0, "tiny")
    ranges = {block: RoundingRange.of(text.states(block - 1)) for block in (2, 3)}
    ranges = {block: RoundingRange(one.largest, [3]) for block, one in ranges.items()}
    (batch, *_) = padded_batches(text.tokens, 10_000, 0, True)
    for how in (Rounding(4, "activations", "tensor", "outliers"), Rounding(4, "activations", "channel")):
        change = rounding_change(readers.model, ranges, 0)(how)
        states = text.states(1)[batch.rows]
        with torch.inference_mode():
            found = change.later(readers.model, batch, None, states, [2, 3])

            def enter(args: Any, block: int, how: Rounding) -> Any:
                largest = ranges[block].largest.clone()
                own = args[0].clone()
                if how.scale == "tensor":
                    largest[3] = 0
                    largest[:] = largest.max()
                new = rounded(own, 4, largest)
                if how.unrounded == "outliers":
                    new[..., 3] = own[..., 3]
                return (new, *args[1:])

            hooks = [
                encoder.encoder.layer[block - 1].register_forward_pre_hook(
                    lambda module, args, block=block, how=how: enter(args, block, how)
                )
                for block in (2, 3)
            ]
            expected = encoder(**batch.inputs).last_hidden_state
            for hook in hooks:
                hook.remove()
            plain = encoder(**batch.inputs).last_hidden_state
        assert set(found) == {2, 3}
        torch.testing.assert_close(found[3][batch.mask], expected[batch.mask], atol=1e-4, rtol=1e-4)
        assert (expected - plain)[batch.mask].abs().max() > 1e-3


def test_an_outlier_takes_the_grid_from_the_others() -> None:
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(500, 40, generator=generator)
    states[:, 7] += 60
    found = RoundingRange.of(states)
    assert found.outliers == [7]
    others, batch = [k for k in range(40) if k != 7], padded(make_tokens([3]), np.array([0]), 0)

    def error(how: Rounding) -> float:
        change = found.replace(how, 0, 1)
        return float((change(states, batch) - states)[:, others].square().mean())

    whole, kept, by_neuron = (
        error(Rounding(4, "activations", *how)) for how in (("tensor",), ("tensor", "outliers"), ("channel",))
    )
    assert whole > 0.9  # all of the others are rounded to 0
    assert kept < 0.05
    assert by_neuron < 0.05
    drawn = [found.unrounded(Rounding(4, "activations", "tensor", "random", draw), 0, 1) for draw in range(1, 20)]
    assert all(len(one) == 1 and one != [7] for one in drawn)
    assert len({tuple(one) for one in drawn}) > 5
    assert error(Rounding(4, "activations", "tensor", "random", 1)) > 0.8


def further_lines(readout: str, **tables: Table) -> list[str]:
    """Return the conclusions of a run that ablated one layer, but for the sentence on this layer."""
    row = {"unit": "1", "kind": "zero", "readout": readout, "layer": 3, "intact": 0.4, "value": 0.4, "effect": 0.0,
           "low": 0.0, "high": 0.0, "p_value": 1.0, "n": 60}  # fmt: skip
    of = {schema.name: Table((), schema) for schema in SCHEMAS} | {"ablated": Table([row], ABLATED)}
    first, *lines = conclusions(of | tables, {})
    assert "(zeros)" in first
    return lines


def sums_of(costs: dict[str, float]) -> dict[Rounding, Any]:
    """Return passes over 60 sentences of 10 targets, of which 8 are right, less the cost of what is kept."""
    generator = np.random.default_rng(0)
    return {
        one: np.full(60, 8.0) if not one.bits else 8 - costs[one.unrounded] + generator.normal(0, 0.3, 60)
        for one in roundings([8, 4])
    }


def test_rows_are_held_against_the_model_as_it_is_and_outliers_against_random_neurons() -> None:
    n = np.full(60, 10)
    named = {"readout": "position", "layer": 3}
    rows = quantised_rows(sums_of({"none": 4.0, "outliers": 1.0, "random": 4.0}), n, named, 5)
    by = {(row["bits"], row["rounded"], row["scale"], row["kept"], row["draw"]): row for row in rows}
    assert len(by) == len(rows) == 2 * (8 + 1 + N_DRAWS)
    plain, kept, mean = (by[4, "activations", "tensor", name, 0] for name in ("none", "outliers", "random_mean"))
    assert plain["effect"] == pytest.approx(-0.4, abs=0.02)
    assert plain["p_value"] < 0.01
    assert kept["effect"] == pytest.approx(-0.1, abs=0.02)
    assert kept["rank_p"] == pytest.approx(1 / (1 + N_DRAWS))
    assert mean["effect"] == pytest.approx(-0.4, abs=0.02)
    assert (plain["n_kept"], kept["n_kept"], mean["n_kept"]) == (0, 5, 5)
    (said, _) = further_lines("position", quantised=Table(rows, QUANTISED))
    assert said.startswith(
        "With hidden states rounded to 8 bits by one scale per layer, position accuracy of layer 3 changes: -40."
    )
    assert "With the 5 outliers of all blocks at full precision, the change is -" in said
    alike = quantised_rows(sums_of({"none": 0.0, "outliers": 0.0, "random": 0.0}), n, named, 5)
    assert all(row["p_value"] > 0.05 for row in alike if row["kept"] != "random")
    assert "does not significantly change" in further_lines("position", quantised=Table(alike, QUANTISED))[0]
    untested = [row | {"p_value": math.nan} for row in alike]
    assert "significantly" not in further_lines("position", quantised=Table(untested, QUANTISED))[0]


@pytest.mark.slow
def test_the_command_writes_the_table_and_goes_on(
    place: Path, checkpoints: dict[str, Path], sentences: list[str]
) -> None:
    (place / "some.txt").write_text("\n".join(sentences[:80]), encoding="utf-8")
    options: dict[str, Any] = {
        "model": str(checkpoints["bert"]), "corpus": str(place / "some.txt"), "units": "layers", "kinds": "skip",
        "retrain": 0, "quantise": [4], "runs": str(place / "runs"), "quiet": True,
        "wandb": WandbOptions("disabled"), "trainer": {"accelerator": "cpu", "max_epochs": 10}, "tokens": 500,
        "figure_format": "png",
    }  # fmt: skip
    made = ablate(name="made", **options)
    kept = {row["kept"] for row in made.quantised}
    assert {row["bits"] for row in made.quantised} == {4}
    assert {(row["rounded"], row["scale"]) for row in made.quantised if row["kept"] == "none"} == {
        (rounded_, scale) for rounded_ in ("weights", "activations", "both") for scale in ("tensor", "channel")
    }
    assert kept in ({"none"}, {"none", "outliers", "random", "random_mean"})
    assert any("4 bits" in line for line in made.conclusions())
    assert sum("numbers rounded" in str(table.title) for table in made.tables()) == 1
    again = ablate(name="again", **options)
    assert (made.folder / "quantised.csv").read_bytes() == (again.folder / "quantised.csv").read_bytes()
    assert len(load_run(made.folder).quantised) == len(made.quantised)


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
        with pruned(weights, 30, draw, 0):
            assert [int((one == 0).sum()) for one in weights] == [round(0.3 * one.numel()) for one in weights]
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
    text, blocks = ReadText(store, np.arange(24)), LaterBlocks.of(whole.base_model, 0, "tiny")
    targets = torch.randint(0, 3, (24,), generator=torch.Generator().manual_seed(0))
    readout = TunedScore(text, targets, TunedHead(whole, blocks, 0), "sentences", 3)
    readers = Readers.of(whole.base_model, 0, "tiny")
    plan = WorkPlan.of_whole_text({"a": 1}, "{n} files", 1 + N_FILES, text.tokens, 256)
    opened = WorkStore.opened(tmp_path / "passes", lambda: (plan, text.tokens), {})
    rows = pruned_weights(readers, [2, 3], 0, 256, readout, opened)
    assert len(rows) == len(PERCENT) + (len(PERCENT) - 1) * (1 + PRUNING_N_DRAWS)
    assert len({row["value"] for row in rows}) > 5

    def alone() -> float:
        with torch.no_grad():
            logits = [whole(**padded(text.tokens, np.array([i]), 0).inputs).logits[0].argmax() for i in range(24)]
        return float((torch.stack(logits) == targets).float().mean())

    for row in rows:
        if row["order"] != "random_mean" and row["draw"] <= 2:
            percent = round(100 * row["share"])
            with pruned(matrices(readers.model, [2, 3]), percent, row["draw"], 0):
                assert row["value"] == pytest.approx(alone())
    assert [str(row) for row in pruned_weights(readers, [2, 3], 0, 256, readout, opened)] == [str(row) for row in rows]


def pruning_sums_of(costs: dict[int, float], n_draws: int = PRUNING_N_DRAWS) -> dict[PrunedShare, Any]:
    """Return passes over 60 sentences of 10 targets, 8 of which are right; random draws cost twice as much."""
    generator = np.random.default_rng(0)
    return {
        PrunedShare(percent, draw): 8
        - cost * (1 + (draw > 0))
        + (generator.integers(-1, 2, 60) if percent else np.zeros(60))
        for draw in range(n_draws + 1)
        for percent, cost in costs.items()
        if percent or not draw
    }


def test_rows_are_of_each_draw_and_of_their_mean() -> None:
    costs = {percent: max(0.0, 0.05 * (percent - 30)) for percent in PERCENT}
    found = pruning_sums_of(costs)
    rows = weight_rows(found, np.full(60, 10), NAMED)
    by = {(row["order"], row["draw"], round(100 * row["share"])): row for row in rows}
    assert by["magnitude", 0, 0]["value"] == 0.8
    assert (by["magnitude", 0, 0]["low"], by["magnitude", 0, 0]["high"]) == (0, 0)
    assert by["magnitude", 0, 60]["value"] == pytest.approx(found[PrunedShare(60, 0)].sum() / 600)
    for percent in PERCENT[1:]:
        mean, draws = (
            by["random_mean", 0, percent],
            [by["random", draw, percent] for draw in range(1, PRUNING_N_DRAWS + 1)],
        )
        assert mean["effect"] == pytest.approx(np.mean([row["effect"] for row in draws]))
        assert mean["low"] < mean["effect"] < mean["high"]
    # Draws that differ widen the interval of their mean.
    apart = found | {
        PrunedShare(90, draw): found[PrunedShare(90, draw)] + (-1) ** draw * 2 for draw in range(1, PRUNING_N_DRAWS + 1)
    }
    wide = [row for row in weight_rows(apart, np.full(60, 10), NAMED) if row["order"] == "random_mean"][-1]
    assert wide["high"] - wide["low"] > 1.5 * (by["random_mean", 0, 90]["high"] - by["random_mean", 0, 90]["low"])
    (line,) = further_lines("tuned", weight_pruning=Table(rows, WEIGHT_PRUNING))
    assert "task accuracy is worse than in the intact model from 40% on (100 weights)" in line


def test_where_nothing_is_lost_no_share_is_named() -> None:
    rows = weight_rows(pruning_sums_of(dict.fromkeys(PERCENT, 0.0)), np.full(60, 10), NAMED)
    (line,) = further_lines("tuned", weight_pruning=Table(rows, WEIGHT_PRUNING))
    assert "than in the intact model at no share" in line
    assert "with randomly drawn weights pruned, at no share" in line
    untested = {"low": math.nan, "high": math.nan, "p_value": math.nan, "n": 19}
    assert further_lines("tuned", weight_pruning=Table([row | untested for row in rows], WEIGHT_PRUNING)) == []
    # Of a loss, more is worse.
    losses = weight_rows(
        pruning_sums_of({percent: -percent / 30 for percent in PERCENT}), np.full(60, 10), NAMED | {"readout": "mlm"}
    )
    (line,) = further_lines("mlm", weight_pruning=Table(losses, WEIGHT_PRUNING))
    assert "loss of masked words is worse than in the intact model from 10% on" in line
