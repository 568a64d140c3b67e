"""`ablate --neurons outliers`: outliers zeroed in norms and clipped after the model, from end to end on tiny models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from families import bend, masked_lm
from probing import WandbOptions
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.errors import UserError
from probing.runs import Result
from probing.studies.ablate import ablate
from probing.studies.ablate.neuron_tables import outlier_conclusions
from synthetic import LIGHTNING_WARNINGS
from wandb_stand_in import read_offline_runs
from written import read_csv

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.usefixtures("few_passes"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", *LIGHTNING_WARNINGS),
]

PLANTED = 3
LEAN: dict[str, Any] = {"neurons": "outliers", "definition": "argmin_share", "draws": 1, "quiet": True}


@pytest.fixture(scope="module")
def made(place: Path, bent: Path, short_text: Path) -> Result:
    found = ablate(
        str(bent), "1,2", corpus=str(short_text), runs=str(place / "runs"), name="a", wandb=WandbOptions("offline"),
        **LEAN,
    )  # fmt: skip
    assert found is not None
    return found


@pytest.mark.slow
def test_the_outlier_is_zeroed_inside_and_clipped_after_beside_random_neurons(made: Result) -> None:
    found = {(row["measure"], row["where"], row["kind"], row.get("draw", 0)): row for row in made.interventions}
    assert {key[0] for key in found} == {"position_accuracy", "position_accuracy_retrained"}
    for measure in ("position_accuracy", "position_accuracy_retrained"):
        for where in ("inside", "after"):
            assert found[measure, where, "outliers", 0]["neurons"] == str(PLANTED)
            assert found[measure, where, "random", 1]["neurons"] != str(PLANTED)
        assert found[measure, "inside", "largest_gain", 0]["neurons"] != str(PLANTED)
        assert found[measure, "inside", "outliers", 0]["effect"] != found[measure, "after", "outliers", 0]["effect"]
    intact = found["position_accuracy", "", "intact", 0]
    assert intact["value"] == found["position_accuracy_retrained", "", "intact", 0]["value"]
    assert 0.1 < intact["value"] <= 1


@pytest.mark.slow
def test_tables_figures_and_sentences_are_where_the_others_are(made: Result) -> None:
    stored = read_csv(made.folder / "interventions.csv")
    assert len(stored) == len(made.interventions) > 0
    for row, again in zip(made.interventions, stored, strict=True):
        # An empty end of an interval is read as one that is not defined.
        given, read = ({k: str(v) for k, v in one.items() if str(v) not in ("", "nan")} for one in (row, again))
        assert read == given
    assert {path.name for path in (made.folder / "figures").iterdir()} == {"interventions.png", "interventions.pdf"}
    assert made.results["outliers"] == {"1": [PLANTED], "2": [PLANTED]}
    assert "zeroed inside the model" in repr(made)
    (effect,) = outlier_conclusions(made.interventions)
    assert made.conclusions() == [effect]
    assert f"zeroing neuron {PLANTED} inside the model changes it by" in effect
    assert "clipping the last hidden states changes it by" in effect
    (tracked,) = read_offline_runs(made.folder)
    assert all(tracked.rows(key) for key in ("interventions", "figures/interventions"))


@pytest.mark.slow
def test_a_model_with_its_head_is_read_by_the_loss_of_masked_words(
    place: Path, sentences: list[str], short_text: Path
) -> None:
    folder = bend(masked_lm(place / "headed", "bert", sentences), PLANTED)
    found = ablate(
        str(folder), 2, corpus=str(short_text), runs=str(place / "runs"), wandb=WandbOptions("disabled"),
        **LEAN,
    )  # fmt: skip
    assert found is not None
    assert {row["measure"] for row in found.interventions} == {"mlm_loss"}
    effects = [row for row in found.interventions if row["kind"] == "outliers"]
    assert [row["where"] for row in effects] == ["inside", "after"]


@pytest.mark.slow
def test_a_model_without_outliers_is_told_so(
    checkpoints: dict[str, Path], short_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [f"--model={checkpoints['gpt2']}", f"--corpus={short_text}", f"--runs={tmp_path}", "--name=g"]
    options += ["--neurons=outliers", "--layer=1", "--draws=2", "--wandb.mode=disabled"]
    assert run(COMMANDS, ["ablate", *options]) == 0
    # A model of 16 neurons has no outlier by the default definition.
    assert "--neurons outliers: no outlier dimension was found" in capsys.readouterr().err


@pytest.mark.slow
def test_too_few_sentences_for_a_probe_are_refused_and_nothing_is_left(bent: Path, tmp_path: Path) -> None:
    (tmp_path / "two.txt").write_text("The probe reads a sentence.\nEvery neuron hides.\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"--neurons outliers.*2 sentences are too few"):
        ablate(
            str(bent), 1, corpus=str(tmp_path / "two.txt"), runs=str(tmp_path / "runs"), wandb=WandbOptions("disabled"),
            **LEAN,
        )  # fmt: skip
    assert list((tmp_path / "runs").glob("[!c]*")) == []


@pytest.mark.slow
def test_a_randomly_initialised_model_is_never_read_by_a_head_that_means_nothing(
    place: Path, sentences: list[str]
) -> None:
    from probing.activations import Request, activations
    from probing.interventions.outliers import OutlierModel, ablate_outliers
    from probing.models import load_encoder, load_tokenizer, resolve_model
    from probing.text import from_sentences

    source = resolve_model(str(masked_lm(place / "twin", "bert", sentences)))
    corpus = from_sentences("made up", sentences)
    store = activations(Request(source, corpus, [1]), place / "cache", {"accelerator": "cpu"})
    rows = ablate_outliers(OutlierModel(
        source, load_encoder(source, 0), load_tokenizer(source), store, corpus, {0: [9], 1: [2, 5]}, "exclude",
        is_trained=False, n_draws=0, seed=0, say=print,
    ))  # fmt: skip
    assert {row["measure"] for row in rows} == {"position_accuracy", "position_accuracy_retrained"}
    # What the embeddings alone have is left alone.
    assert {row["neurons"] for row in rows if row["kind"] == "outliers"} == {"2 5"}
