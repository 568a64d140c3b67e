"""`fit --probe.bias true` on a model: it predicts, is compared and is refused as the runs of other options are."""

from __future__ import annotations

from pathlib import Path

import pytest

import probing
from probing.errors import UserError
from probing.tables.columns import centred_of
from synthetic import LIGHTNING_WARNINGS

pytestmark = [pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS]


def fitted(folder: Path, checkpoint: Path, sentences: list[str], bias: bool, **options: object) -> probing.Run:
    usual = {
        "layer": [0, 1], "replicates": 2, "cache": str(folder / "cache"), "quiet": True,
        "wandb": probing.WandbOptions("disabled"),
        "probe": probing.ProbeOptions(l2=1e-3, bias=bias), "evidence": "none", "controls": "shuffled",
    }  # fmt: skip
    chosen = {**usual, **options}
    made = probing.fit(model=str(checkpoint), corpus=sentences, runs=str(folder), **chosen)  # type: ignore[arg-type]
    assert made is not None
    return made


@pytest.fixture(scope="module")
def made(
    checkpoints: dict[str, Path], sentences: list[str], tmp_path_factory: pytest.TempPathFactory
) -> dict[bool, probing.Run]:
    folder = tmp_path_factory.mktemp("bias")
    return {bias: fitted(folder, checkpoints["bert"], sentences, bias, name=f"bias-{bias}") for bias in (False, True)}


@pytest.mark.slow
def test_it_predicts_other_text_as_it_was_tested(made: dict[bool, probing.Run]) -> None:
    run = made[True]
    rows = run.predict(run.test_sentences)
    for layer, accuracy in zip(run.layers, run.accuracy, strict=True):
        own = [row for row in rows if row["layer"] == layer and row["position"] > 0]
        right = sum(row["predicted"] == row["position"] for row in own)
        assert right / accuracy["n_test_tokens"] == pytest.approx(accuracy["accuracy"], abs=1e-6)


def test_rankings_with_and_without_it_are_compared(made: dict[bool, probing.Run]) -> None:
    found = probing.compare(
        [made[False], made[True]], quiet=True, runs=str(made[True].folder.parent), null_draws=2,
        wandb=probing.WandbOptions("disabled"),
    )  # fmt: skip
    assert found is not None
    same = [row for row in found.agreement if row["layer_a"] == row["layer_b"] and row["statistic"] == "overlap"]
    assert [row["value"] >= 0.5 for row in same] == [True, True]


def test_commands_that_read_probes_without_an_intercept_refuse_it(made: dict[bool, probing.Run]) -> None:
    run = made[True]
    with pytest.raises(UserError, match="have an intercept"):
        probing.rank(run)
    with pytest.raises(UserError, match=r"no `--probe\.bias true`"):
        probing.geometry(from_run=run, interventions=True)
    with pytest.raises(UserError, match=r"no `--probe\.bias true`"):
        probing.disable(run=run)
    with pytest.raises(UserError, match="have no intercept"):
        probing.hierarchy(probe=probing.ProbeOptions(bias=True))


@pytest.mark.slow
def test_a_transform_and_an_intercept_go_together(
    tmp_path: Path, checkpoints: dict[str, Path], sentences: list[str]
) -> None:
    run = fitted(tmp_path, checkpoints["bert"], sentences, True, transform="clip", name="clipped")
    plain = fitted(tmp_path, checkpoints["bert"], sentences, False, transform="clip", name="plain")
    assert [row["n_clipped"] for row in run.accuracy] == [row["n_clipped"] for row in plain.accuracy]
    rows = run.predict(run.test_sentences)
    right = sum(row["predicted"] == row["position"] for row in rows if row["layer"] == 1 and row["position"] > 0)
    assert right / run.accuracy[1]["n_test_tokens"] == pytest.approx(run.accuracy[1]["accuracy"], abs=1e-6)


def test_neurons_are_shown_by_centred_contribution(
    made: dict[bool, probing.Run], tmp_path: Path, checkpoints: dict[str, Path], sentences: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    run = made[False]
    by_centred = run.top(1, 20, by="centred")
    values = [centred_of(row) for row in by_centred]
    assert values == sorted(values, reverse=True)
    assert [row["neuron"] for row in by_centred] != [row["neuron"] for row in run.top(1, 20)]
    again = fitted(tmp_path, checkpoints["bert"], sentences, False, layer=[1], quiet=False, sort="centred", name="A")
    shown = capsys.readouterr().out
    assert "neurons by centred contribution" in shown
    table = shown[shown.index("neurons by centred contribution") :]
    first = again.top(1, 1, by="centred")[0]
    assert f"{first['contribution']:.4f}" in table.splitlines()[4]
