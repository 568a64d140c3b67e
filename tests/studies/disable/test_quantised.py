"""Numbers rounded to few bits: the grid, what comes back, outliers kept in full, and what is read meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probing import WandbOptions, disable, load_run
from probing.cache import Request, activations
from probing.corpus import Corpus
from probing.models import load_encoder, load_tokenizer, resolve_model
from probing.readouts.forward import Readers, Text
from probing.readouts.later_blocks import LaterBlocks
from probing.studies.disable.survey import (
    N_DRAWS,
    Quantised,
    Range,
    RoundedStates,
    Rounding,
    made_by_columns,
    quantised_rows,
    rounded,
    rounded_weights,
    roundings,
)
from probing.studies.disable.tables import quantised_sentences, quantised_tables
from probing.studies.disable.weights import matrices

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning"),
]


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
    weights, columns = matrices(model, [1, 2]), made_by_columns(model.encoder)
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
    text, readers = Text(store, np.arange(20)), Readers.of(encoder, 0, "tiny")
    ranges = {block: Range.of(text.states(block - 1)) for block in (2, 3)}
    ranges = {block: Range(one.largest, [3]) for block, one in ranges.items()}
    (batch, *_) = text.batches(10_000, 0, True)
    for how in (Rounding(4, "activations", "tensor", "outliers"), Rounding(4, "activations", "channel")):
        change = RoundedStates(1, ranges, how, 0)
        states = text.states(1)[batch.rows]
        with torch.inference_mode():
            found = change.later(readers.model, batch, None, states, [1, 2, 3])

            def enter(args: Any, block: int, how: Rounding) -> Any:
                largest = ranges[block].largest.clone()
                own = args[0].clone()
                if how.scale == "tensor":
                    largest[3] = 0
                    largest[:] = largest.max()
                new = rounded(own, 4, largest)
                if how.kept == "outliers":
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
        assert set(found) == {1, 2, 3}
        torch.testing.assert_close(found[1][batch.mask], states[batch.mask])
        torch.testing.assert_close(found[3][batch.mask], expected[batch.mask], atol=1e-4, rtol=1e-4)
        assert (expected - plain)[batch.mask].abs().max() > 1e-3


def test_an_outlier_takes_the_grid_from_the_others() -> None:
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(500, 40, generator=generator)
    states[:, 7] += 60
    found = Range.of(states)
    assert found.outliers == [7]
    others = [k for k in range(40) if k != 7]

    def error(how: Rounding) -> float:
        change = RoundedStates(0, {1: found}, how, 0)._round(1)
        return float((change(states) - states)[:, others].square().mean())

    whole, kept, by_neuron = (
        error(Rounding(4, "activations", *how)) for how in (("tensor",), ("tensor", "outliers"), ("channel",))
    )
    assert whole > 0.9  # all of the others are rounded to 0
    assert kept < 0.05
    assert by_neuron < 0.05
    drawn = [found.kept(Rounding(4, "activations", "tensor", "random", draw), 0, 1) for draw in range(1, 20)]
    assert all(len(one) == 1 and one != [7] for one in drawn)
    assert len({tuple(one) for one in drawn}) > 5
    assert error(Rounding(4, "activations", "tensor", "random", 1)) > 0.8


def sums_of(costs: dict[str, float]) -> dict[Rounding, Any]:
    """Return passes over 60 sentences of 10 targets, of which 8 are right, less the cost of what is kept."""
    generator = np.random.default_rng(0)
    return {
        one: np.full(60, 8.0) if not one.bits else 8 - costs[one.kept] + generator.normal(0, 0.3, 60)
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
    (said, _) = quantised_sentences({"quantised": rows, "disabled": rows}, "position")
    assert "8 bits" in said
    assert "5 outliers" in said
    alike = quantised_rows(sums_of({"none": 0.0, "outliers": 0.0, "random": 0.0}), n, named, 5)
    assert all(row["p_value"] > 0.05 for row in alike if row["kept"] != "random")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quantised")


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
    made = disable(name="made", **options)
    assert made is not None
    kept = {row["kept"] for row in made.quantised}
    assert {row["bits"] for row in made.quantised} == {4}
    assert {(row["rounded"], row["scale"]) for row in made.quantised if row["kept"] == "none"} == {
        (rounded_, scale) for rounded_ in ("weights", "activations", "both") for scale in ("tensor", "channel")
    }
    assert kept in ({"none"}, {"none", "outliers", "random", "random_mean"})
    assert any("4 bits" in line for line in made.conclusions())
    assert len(quantised_tables(made.by_name)) == 1
    again = disable(name="again", **options)
    assert again is not None
    assert (made.folder / "quantised.csv").read_bytes() == (again.folder / "quantised.csv").read_bytes()
    assert len(load_run(made.folder).quantised) == len(made.quantised)


def test_the_number_of_passes_is_that_of_files(checkpoints: dict[str, Path]) -> None:
    source = resolve_model(str(checkpoints["bert"]))
    how = Quantised(Readers.of(load_encoder(source), 0, "tiny"), None, [1], [8, 4], 0, 256)  # type: ignore[arg-type]
    assert how.n_files == 1 + 1 + 2 * (8 + N_DRAWS)
