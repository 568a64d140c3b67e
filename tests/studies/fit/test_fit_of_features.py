"""`--site sae:FOLDER`: from a dictionary that is trained on hidden states to ranked features, by the real commands."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks import train_dictionary
from conftest import BARE
from probing import Run, compare, fit, load_run, rank, report, sweep
from probing.errors import UserError
from probing.rankings.methods import centre_over_classes
from written import read_csv

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
]

NO_WANDB: Any = {"mode": "disabled"}
LAYER, N_FEATURES, K = 2, 24, 5


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("features")


@pytest.fixture(scope="module")
def dictionary(checkpoints: dict[str, Path], corpus_file: Path, place: Path) -> Path:
    """Return the folder of a dictionary of layer 2 of the tiny BERT, trained by the documented script."""
    folder = place / "dictionary"
    found = train_dictionary.main([
        str(folder), "--model", str(checkpoints["bert"]), "--corpus", str(corpus_file), "--layer", str(LAYER),
        "--features", str(N_FEATURES), "--k", str(K), "--epochs", "30", "--cache", str(place / "cache"),
    ])  # fmt: skip
    assert 0.5 < found["explained_variance"] <= 1
    assert 0 < found["l0"] <= K
    return folder


def fitted(checkpoints: dict[str, Path], corpus: Path, place: Path, site: str, **options: Any) -> Run:
    run = fit(**{
        **BARE, "model": str(checkpoints["bert"]), "corpus": str(corpus), "runs": str(place), "quiet": True,
        "site": site, "wandb": NO_WANDB, "cache": str(place / "cache"), "layer": "all", **options,
    })  # fmt: skip
    assert run is not None
    return run


@pytest.fixture(scope="module")
def made(checkpoints: dict[str, Path], corpus_file: Path, place: Path, dictionary: Path) -> Run:
    return fitted(checkpoints, corpus_file, place, f"sae:{dictionary}", name="A", evidence="all")


def test_features_are_ranked_as_neurons_are(made: Run) -> None:
    assert made.layers == [LAYER]
    assert {row["neuron"] for row in made.neurons} == set(range(N_FEATURES))
    assert made.weight.shape[2] == N_FEATURES
    assert "feature" not in made.neurons[0]
    top = made.neuron(LAYER, made.neurons[0]["neuron"], 3)
    assert all(row["activation"] >= 0 for row in top)


def test_the_table_is_that_of_the_dictionary_by_hand(made: Run, dictionary: Path, place: Path) -> None:
    tensors = {name: tensor.double() for name, tensor in load_file(dictionary / "sae_weights.safetensors").items()}
    entry = next(path for path in (place / "cache").iterdir() if (path / f"layer_{LAYER:02d}").is_dir())
    states = torch.cat([
        load_file(path)["hidden_states"] for path in sorted((entry / f"layer_{LAYER:02d}").iterdir())
    ]).double()  # fmt: skip
    tokens = load_file(entry / "tokens.safetensors")
    before = torch.relu((states - tensors["b_dec"]) @ tensors["W_enc"] + tensors["b_enc"])
    features = torch.zeros_like(before).scatter_(1, (top := before.topk(K, dim=1)).indices, top.values)
    assert made.results["n_special_tokens"]["test"] > 0  # which stay apart, also from what ranks units
    n_active = next(row["n_active"] for row in made.bases if row["basis"] == "features")
    assert n_active == pytest.approx(float((features > 0).sum(1).double().mean()), abs=0.3)
    weight = centre_over_classes(load_file(made.folder / "probe.safetensors")["weight"][0].double())
    rows = {row["neuron"]: row for row in made.neurons}
    mean = np.array([rows[i]["mean"] for i in range(N_FEATURES)])
    # Over training tokens, which are two thirds of all, and special ones are left out: of the same size.
    assert np.corrcoef(mean, features.mean(0).numpy())[0, 1] > 0.95
    assert len(tokens)
    assert weight.shape == (len(made.results["classes"]), N_FEATURES)


def test_every_accuracy_stands_beside_other_bases(made: Run) -> None:
    rows = read_csv(made.folder / "bases.csv")
    assert list(dict.fromkeys(row["basis"] for row in rows)) == [
        "features", "neurons", "random features", "rotated neurons"
    ]  # fmt: skip
    assert {row["k"] for row in rows} == {1, 4}  # of 16 neurons
    by_k = [{row["n_train_tokens"], row["n_test_tokens"]} for row in rows]
    assert all(found == by_k[0] for found in by_k)
    assert (made.folder / "figures" / "bases.png").is_file() or not BARE.get("figure_format")
    said = [line for line in made.conclusions() if "beside as many" in line]
    assert [line.split(" beside as many ")[1].split(":")[0] for line in said] == [
        "neurons", "random features", "rotated neurons"
    ]  # fmt: skip
    page = report(str(made.folder), output=str(made.folder.parent / "page.html"))
    text = Path(page).read_text(encoding="utf-8")
    assert "Bases of" in text
    assert "sparse autoencoder in" in text
    assert f"sae {Path(made.config['site'][4:]).name}" in text


def test_a_finished_run_is_read_again_also_after_its_dictionary_has_moved(
    made: Run, dictionary: Path, place: Path
) -> None:
    first = rank(str(made.folder), method=["weight", "anova"], quiet=True, wandb=NO_WANDB)
    assert {row["neuron"] for row in first.rankings["weight"]} == set(range(N_FEATURES))
    predicted = made.predict(["one two three"])
    moved = dictionary.rename(place / "elsewhere")
    try:
        with pytest.raises(UserError, match=r"its dictionary .* is not there any more, or has changed"):
            load_run(made.folder).predict(["one two three"])
        shutil.copytree(moved, made.folder.parent / "dictionary")
        assert load_run(made.folder).predict(["one two three"]) == predicted
        tensors = load_file(made.folder.parent / "dictionary" / "sae_weights.safetensors")
        tensors["b_enc"] += 1
        save_file(tensors, made.folder.parent / "dictionary" / "sae_weights.safetensors")
        with pytest.raises(UserError, match=r"is not there any more, or has changed"):
            load_run(made.folder).predict(["one two three"])
    finally:
        shutil.rmtree(made.folder.parent / "dictionary", ignore_errors=True)
        moved.rename(dictionary)


@pytest.mark.slow
def test_features_are_compared_with_neurons_by_correlation_and_with_themselves_by_index(
    made: Run, checkpoints: dict[str, Path], corpus_file: Path, place: Path, dictionary: Path
) -> None:
    neurons = fitted(checkpoints, corpus_file, place, "residual", name="N", layer=LAYER)
    other = fitted(checkpoints, corpus_file, place, f"sae:{dictionary}", name="B", seed=1)
    with pytest.raises(UserError, match="matched by index only at the same site"):
        compare([str(made.folder), str(neurons.folder)], matching="index", quiet=True, wandb=NO_WANDB)
    both = compare([str(made.folder), str(other.folder)], null_draws=2, quiet=True, wandb=NO_WANDB, runs=str(place))
    assert both.folder.is_dir()


@pytest.mark.slow
def test_a_sweep_over_sites_may_have_a_dictionary(
    made: Run, checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, dictionary: Path
) -> None:
    points = {"site": {"values": ["residual", f"sae:{dictionary}"]}, "layer": {"values": [LAYER]}}
    (tmp_path / "sites.yaml").write_text(json.dumps({"method": "grid", "parameters": points}), encoding="utf-8")
    data = {"model": str(checkpoints["bert"]), "corpus": str(corpus_file), "probe": {"l2": 1e-2}}
    swept = sweep(str(tmp_path / "sites.yaml"), fit=data, runs=str(tmp_path), quiet=True, wandb=NO_WANDB)
    runs = [load_run(trial) for trial in (swept.folder / "trials").iterdir()]
    assert sorted(len(run.neurons) for run in runs) == [16, N_FEATURES]
    alone = fitted(checkpoints, corpus_file, tmp_path, f"sae:{dictionary}", probe={"l2": 1e-2})
    (of_features,) = (run for run in runs if len(run.neurons) == N_FEATURES)
    assert of_features.accuracy[0]["cross_entropy"] == pytest.approx(alone.accuracy[0]["cross_entropy"], abs=1e-3)


def test_only_the_most_active_features_of_a_wide_dictionary_are_read_and_keep_their_numbers(
    checkpoints: dict[str, Path], corpus_file: Path, place: Path, dictionary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("probing.cache.source", "probing.data.labelling"):
        monkeypatch.setattr(f"{module}.MOST_FEATURES", 10)
    said: list[str] = []
    monkeypatch.setattr("probing.runtime.progress.say", said.append)
    run = fitted(checkpoints, corpus_file, place, f"sae:{dictionary}", name="narrow", quiet=False, evidence="all")
    assert any(
        re.search(r"of 24 features, the 10 are read that are active on the most training tokens", text) for text in said
    )
    features = [row["feature"] for row in run.neurons]
    assert len(set(features)) == 10
    assert max(features) > 9
    assert run.results["cache"]["test"]["site"]["kept"] == sorted(features)
    assert len(run.predict(["one two three"])) > 0
    units = {int(unit) for row in run.bases if row["basis"] == "features" for unit in row["units"].split()}
    assert units <= set(features)


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_a_norm_between_the_hook_and_the_hidden_state_is_seen(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, dictionary: Path, family: str
) -> None:
    config = json.loads((dictionary / "cfg.json").read_text(encoding="utf-8"))
    from probing.models import load_config, resolve_model

    n_layers = load_config(resolve_model(str(checkpoints[family]))).num_hidden_layers
    refused = {
        "gpt2": (f"h.{n_layers - 1}", "comes after a final norm"),
        "bert": ("blocks.1.hook_resid_post", "lies before the norm and is no hidden state"),
    }
    taken = {"gpt2": "blocks.0.hook_resid_post", "bert": f"encoder.layer.{n_layers - 1}"}
    hook, message = refused[family]
    for name, text in ((hook, message), (taken[family], None)):
        folder = tmp_path / f"{family}{text is None}"
        shutil.copytree(dictionary, folder)
        config["metadata"]["hook_name"] = name
        (folder / "cfg.json").write_text(json.dumps(config), encoding="utf-8")
        options = {**BARE, "model": str(checkpoints[family]), "corpus": str(corpus_file), "runs": str(tmp_path)}
        if text:
            with pytest.raises(UserError, match=text):
                fit(site=f"sae:{folder}", layer="all", quiet=True, wandb=NO_WANDB, **options)
        else:
            run = fit(site=f"sae:{folder}", layer="all", quiet=True, wandb=NO_WANDB, name=family, **options)
            assert run is not None
            assert run.layers == [1 if family == "gpt2" else n_layers]


def test_a_dictionary_of_another_width_is_refused(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, dictionary: Path
) -> None:
    folder = tmp_path / "wide"
    shutil.copytree(dictionary, folder)
    config = json.loads((folder / "cfg.json").read_text(encoding="utf-8"))
    (folder / "cfg.json").write_text(json.dumps({**config, "d_in": 17}), encoding="utf-8")
    with pytest.raises(UserError, match=r"reads hidden states of 17 neurons, and those of .* have 16"):
        fitted(checkpoints, corpus_file, tmp_path, f"sae:{folder}")


def test_the_commands_of_the_page_run(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "sae.md").read_text(encoding="utf-8")
    block = next(block for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "train_dictionary" in block)
    lines = [shlex.split(line, comments=True) for line in block.splitlines() if line.strip()]
    assert len(lines) <= 15
    monkeypatch.chdir(tmp_path)
    tiny = ["--model", str(checkpoints["bert"]), "--corpus", str(corpus_file)]
    (training, fitting) = lines[:2]
    layer = training.index("--layer") + 1
    assert training[:3] == ["python", "-m", "benchmarks.train_dictionary"]
    training[layer] = str(LAYER)
    train_dictionary.main([*training[3:], *tiny, "--features", "24", "--k", "5", "--epochs", "2"])
    assert fitting[:4] == ["python", "-m", "probing", "fit"]
    site = fitting[fitting.index("--site") + 1]
    run = fitted(checkpoints, corpus_file, tmp_path, site)
    assert run.layers == [LAYER]
