"""`--site`: units of the MLP, outputs of heads and features of a dictionary, from text to ranked neurons."""

from __future__ import annotations

import html
import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks import train_dictionary
from conftest import BARE
from families import untouched
from probing import Run, compare, fit, rank, report, sweep
from probing.__main__ import COMMANDS
from probing.activations import Request, activations
from probing.activations.store import entries
from probing.cli.commandline import run as main_run
from probing.errors import UserError
from probing.models import NEURON, SiteName, load_tokenizer, resolve_model
from probing.probes.rankings import neuron_contributions
from probing.probes.solvers import centre_over_classes
from probing.runs.loading import load_run
from probing.studies.fit import extract
from probing.text import load_corpus, read_corpora
from written import read_csv

pytestmark = pytest.mark.slow

# pytorch-lightning 2.6 asks torch's tree specifications a deprecated question.

NO_WANDB: Any = {"mode": "disabled"}
SITES: tuple[SiteName, ...] = ("mlp", "attention")
WIDTH = {"residual": 16, "mlp": 32, "attention": 16}
# The maps that read the neurons, in BERT's own names.
READERS = {"mlp": "encoder.layer.{}.output.dense", "attention": "encoder.layer.{}.attention.output.dense"}


@pytest.fixture(scope="module")
def made(checkpoints: dict[str, Path], corpus_file: Path, place: Path) -> Callable[[str], Run]:
    """Return the run of a site on the tiny BERT; each is made once."""
    found: dict[str, Run] = {}

    def of(site: Any) -> Run:
        if site not in found:
            options: Any = {**BARE, "evidence": "all" if site == "attention" else "none"}
            run = fit(
                model=str(checkpoints["bert"]), corpus=str(corpus_file), runs=str(place), name=site, quiet=True,
                site=site, layer="2,3", wandb=NO_WANDB, **options,
            )  # fmt: skip
            found[site] = run
        return found[site]

    return of


def by_hand(folder: Path, corpus: Path, layer: int, site: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return the neurons of a layer and the positions of the test tokens, without cache, padding and `probing.models`.

    Shapes (n_tokens, width) and (n_tokens,); special tokens are left out.
    """
    corpora, splits = read_corpora(str(corpus), None, seed, lambda message: None)
    model, tokenizer = untouched(folder), load_tokenizer(resolve_model(str(folder)))
    read: list[Tensor] = []
    reader = model.get_submodule(READERS[site].format(layer - 1))
    reader.register_forward_pre_hook(lambda module, args: read.append(args[0][0]))
    values, positions = [], []
    for sentence, split in zip(corpora[0].sentences, splits[0], strict=True):
        if split == "test":
            encoded = tokenizer(sentence, return_tensors="pt", return_special_tokens_mask=True, truncation=True)
            kept = encoded.pop("special_tokens_mask")[0] == 0
            with torch.inference_mode():
                model(**encoded)
            values.append(read.pop()[kept])
            positions.append(kept.nonzero().squeeze(1))
    return torch.cat(values), torch.cat(positions)


def check_against_the_model(run: Run, folder: Path, corpus: Path, layer: int, site: str) -> None:
    """Compute a layer's table from the model itself, token by token, and compare."""
    i = [row["layer"] for row in run.accuracy].index(layer)
    weight = load_file(run.folder / "probe.safetensors")["weight"][i].double()
    values, positions = by_hand(folder, corpus, layer, site)
    values, classes = values.double(), torch.tensor(run.results["classes"])
    known = (positions[:, None] == classes).any(1)
    values, labels = values[known], torch.searchsorted(classes, positions[known])
    assert len(values) == run.accuracy[i]["n_test_tokens"]
    logits, centred = values @ weight.T, centre_over_classes(weight)
    assert float((logits.argmax(1) == labels).double().mean()) == pytest.approx(run.accuracy[i]["accuracy"], abs=2e-3)
    # Every token's signed contributions sum to its logits, centred over the classes.
    parts = torch.cat([neuron_contributions(centred, some) for some in values[:300].split(50)])
    own = logits[:300] - logits[:300].mean(1, keepdim=True)
    torch.testing.assert_close(parts.sum(-1), own, rtol=1e-9, atol=1e-9)
    size = (centred[labels] * values).abs().mean(0)
    table = {row["neuron"]: row["contribution"] for row in run.neurons if row["layer"] == layer}
    # The cache holds float32, from batches with padding.
    torch.testing.assert_close(torch.tensor([table[n] for n in range(len(size))]).double(), size, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("site", SITES)
def test_signed_contributions_sum_to_the_centred_logits_and_make_the_table(
    made: Callable[[str], Run], checkpoints: dict[str, Path], corpus_file: Path, site: str
) -> None:
    check_against_the_model(made(site), checkpoints["bert"], corpus_file, 3, site)


@pytest.mark.parametrize("site", SITES)
def test_the_built_in_model_has_both_sites(corpus_file: Path, tmp_path: Path, site: SiteName) -> None:
    (few := tmp_path / "few.txt").write_text(
        "\n".join(corpus_file.read_text(encoding="utf-8").splitlines()[:100]), encoding="utf-8"
    )
    run = fit(corpus=str(few), runs=str(tmp_path), site=site, layer=3, quiet=True, wandb=NO_WANDB, **BARE)
    assert len(run.neurons) == {"mlp": 1536, "attention": 384}[site]
    assert {row.get("head") for row in run.neurons} == ({None} if site == "mlp" else set(range(1, 13)))
    check_against_the_model(run, resolve_model("minilm").folder, few, 3, site)


@pytest.mark.parametrize("unit", [7, 20])
def test_a_unit_planted_in_the_mlp_is_ranked_first(
    tiny_model: Callable[..., Path], long_corpus_file: Path, tmp_path: Path, unit: int
) -> None:
    from transformers import AutoModel

    folder = tiny_model("bert")
    model = AutoModel.from_pretrained(folder)
    block = model.encoder.layer[0]
    with torch.no_grad():
        # Position is the first coordinate of the residual stream, which attention leaves alone, and nowhere else.
        model.embeddings.position_embeddings.weight.zero_()
        model.embeddings.position_embeddings.weight[:, 0] = torch.linspace(-0.5, 0.5, 128)
        model.embeddings.word_embeddings.weight[:, 0] = 0
        block.attention.output.dense.weight.zero_()
        # The other units read everything else. Their inputs are small, where the activation function is nearly
        # straight: none of them is large and nearly constant, in place of an intercept.
        block.attention.output.dense.bias.zero_()
        block.attention.output.LayerNorm.bias.zero_()
        block.intermediate.dense.bias.zero_()
        block.intermediate.dense.weight.mul_(0.02)
        block.intermediate.dense.weight[:, 0] = 0
        block.intermediate.dense.weight[unit] = 0
        block.intermediate.dense.weight[unit, 0] = 3
    model.save_pretrained(folder)
    run = fit(
        model=str(folder), corpus=str(long_corpus_file), runs=str(tmp_path), site="mlp", layer=1, quiet=True,
        wandb=NO_WANDB, **BARE,
    )  # fmt: skip
    first, *others = run.top(1, 32)
    assert first["neuron"] == unit
    assert first["eta_squared"] > 10 * max(row["eta_squared"] for row in others)
    assert first["contribution_centred"] > 1.5 * max(row["contribution_centred"] for row in others)
    assert first["flag"] == ""


# --- the tables ---


def test_a_run_says_its_site_and_what_a_neuron_is(
    made: Callable[[str], Run], capsys: pytest.CaptureFixture[str]
) -> None:
    for site, width in WIDTH.items():
        run = made(site)
        assert run.config["site"] == run.results["site"] == site
        assert len(run.top(3, 99)) == width
        assert f"neuron: {NEURON[site]}" in repr(run)
        assert NEURON[site] in html.unescape((run.folder / "report.html").read_text(encoding="utf-8"))
    assert not (made("mlp").folder / "heads.csv").exists()
    assert "head" not in made("residual").neurons[0]


def test_neurons_and_heads_of_the_attention_site_belong_together(made: Callable[[str], Run]) -> None:
    run = made("attention")
    assert all(row["head"] == 1 + row["neuron"] // 8 for row in run.neurons)
    assert run.heads == read_csv(run.folder / "heads.csv")
    assert [(row["layer"], row["head"]) for row in run.heads] == [(2, 1), (2, 2), (3, 1), (3, 2)]
    for row in run.heads:
        own = [n for n in run.neurons if (n["layer"], n["head"]) == (row["layer"], row["head"])]
        assert row["contribution"] == pytest.approx(sum(neuron["contribution"] for neuron in own))
        assert row["share"] == pytest.approx(sum(neuron["share"] for neuron in own))
        assert row["accuracy_low"] <= row["accuracy"] <= row["accuracy_high"]
        assert row["random_lowest"] <= row["random_accuracy"] <= row["random_highest"]
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert "Layer 3: heads by share of the contributions" in page
    assert "Attention head that the neuron belongs to" in page


def test_a_run_of_a_site_is_ranked_again_compared_and_reported(
    made: Callable[[str], Run], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mlp, residual = made("mlp"), made("residual")
    again = rank(str(mlp.folder), method="contribution,weight", layer=3, wandb=NO_WANDB)
    assert [row["neuron"] for row in again.rankings["contribution"]] == [row["neuron"] for row in mlp.top(3, 99)]
    assert f"In this run, a neuron is a {NEURON['mlp']}." in capsys.readouterr().out
    compared = compare([str(mlp.folder), str(residual.folder)], runs=str(place), name="sites", wandb=NO_WANDB)
    assert {(row["model_a"], row["model_b"]) for row in compared.agreement} == {("tiny-bert mlp", "tiny-bert")}
    assert {row["matching"] for row in compared.agreement} == {"correlation"}
    shown = capsys.readouterr().out
    assert f"In tiny-bert mlp, a neuron is a {NEURON['mlp']}." in shown
    assert f"In tiny-bert, a neuron is a {NEURON['residual']}." in shown
    page = report([str(mlp.folder), str(residual.folder)], output=str(place / "both.html"))
    assert "Neurons of tiny-bert mlp" in page.read_text(encoding="utf-8")


def test_neurons_of_different_sites_are_not_matched_by_index(made: Callable[[str], Run], place: Path) -> None:
    # Equally many neurons, and of one model.
    runs = [str(made(site).folder) for site in ("attention", "residual")]
    words = "only at the same site, and attention has `site=.attention.`, residual has `site=.residual.`"
    with pytest.raises(UserError, match=words):
        compare(runs, matching="index", runs=str(place), name="index", wandb=NO_WANDB)


def test_a_sweep_over_sites_is_that_of_separate_fits(
    made: Callable[[str], Run], checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    points = {"site": {"values": ["residual", "mlp", "attention"]}, "layer": {"values": [2, 3]}}
    file = tmp_path / "sites.yaml"
    file.write_text(json.dumps({"method": "grid", "parameters": points}), encoding="utf-8")
    data = {"model": str(checkpoints["bert"]), "corpus": str(corpus_file), "probe": {"l2": 1e-2}}
    swept = sweep(str(file), fit=data, runs=str(tmp_path), quiet=True, wandb=NO_WANDB)
    assert len(swept.sweep) == 6
    for trial in (swept.folder / "trials").iterdir():
        run = load_run(trial)
        (row,) = run.accuracy
        (alone,) = (one for one in made(run.config["site"]).accuracy if one["layer"] == row["layer"])
        assert row["cross_entropy"] == pytest.approx(alone["cross_entropy"], abs=1e-3)
        assert ("head" in run.neurons[0]) == (run.config["site"] == "attention")


# --- the cache ---


def request(folder: Path, corpus: Path, site: SiteName, layers: list[int], **how: Any) -> Request:
    return Request(resolve_model(str(folder)), load_corpus(str(corpus)), layers, site=site, **how)


def test_the_residual_stream_keeps_its_key(checkpoints: dict[str, Path], corpus_file: Path) -> None:
    keys = {
        site: request(checkpoints["bert"], corpus_file, site, [1]).key() for site in ("residual", "mlp", "attention")
    }
    assert set(keys["residual"]) == {"format", "model", "random_weights_seed", "corpus", "max_length", "dtype"}
    assert {site: key.get("site") for site, key in keys.items()} == {
        "residual": None, "mlp": "mlp", "attention": "attention"
    }  # fmt: skip


@pytest.mark.parametrize("site", SITES)
def test_layers_are_added_and_damage_is_repaired_with_the_same_bytes(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, site: SiteName
) -> None:
    def read(cache: Path, layers: list[int]) -> Any:
        return activations(request(checkpoints["bert"], corpus_file, site, layers), cache, {})

    whole, store = read(tmp_path / "a", [1, 2, 3]), read(tmp_path / "b", [2])
    assert store.layers() == [2]
    assert store.plan.d_model == WIDTH[site]
    store = read(tmp_path / "b", [1, 2, 3])
    assert store.layers() == whole.layers() == [1, 2, 3]
    for layer in (1, 2, 3):
        assert store.path(layer, 0).read_bytes() == whole.path(layer, 0).read_bytes()
    store.path(3, 0).write_bytes(b"damaged")
    store = read(tmp_path / "b", [3])
    assert store.path(3, 0).read_bytes() == whole.path(3, 0).read_bytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("site", SITES)
def test_half_precision_is_near_float32(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, site: SiteName, dtype: str
) -> None:
    exact, half = (
        activations(request(checkpoints["bert"], corpus_file, site, [2], dtype=name), tmp_path, {}).read(2, 0)
        for name in ("float32", dtype)
    )
    assert str(half.dtype) == f"torch.{dtype}"
    # Two blocks in numbers of 8 or 11 bits.
    assert 0 < (half.float() - exact).abs().mean() < (0.05 if dtype == "bfloat16" else 0.01)


def test_controls_and_random_weights_follow_the_site(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    options: Any = {**BARE, "controls": ["untrained", "permuted_positions", "token", "shuffled"]}
    run = fit(
        model=str(checkpoints["bert"]), corpus=str(corpus_file), runs=str(tmp_path), site="mlp", layer=3, quiet=True,
        wandb=NO_WANDB, **options,
    )  # fmt: skip
    found = [entry.store for entry in entries(tmp_path / "cache")]
    keys = [store.plan.key for store in found if store]
    assert len(keys) == 3
    assert {key["site"] for key in keys} == {"mlp"}
    assert {(key["random_weights_seed"], key.get("permuted_tokens_seed")) for key in keys} == {
        (None, None), (0, None), (None, 0)
    }  # fmt: skip
    assert {store.plan.d_model for store in found if store} == {32}
    (row,) = run.accuracy
    for control in ("untrained", "permuted_positions"):
        assert row[f"{control}_accuracy"] != row["accuracy"]


def test_extract_fills_the_cache_of_a_site(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = extract(str(checkpoints["bert"]), site="mlp", corpus=str(corpus_file), cache=str(tmp_path), quiet=True)
    assert "layers [1, 2, 3]" in capsys.readouterr().out
    assert [entry.folder for entry in entries(tmp_path)] == [folder]
    assert main_run(COMMANDS, ["cache", "ls", "--cache", str(tmp_path)]) == 0
    assert "1-3 mlp" in capsys.readouterr().out


# --- what is refused ---


@pytest.mark.parametrize(
    ("family", "args", "words"),
    [
        ("bert", ["--site", "mlp", "--layer", "0"], "layer k is inside block k, so .* has layers 1 to 3, and not 0"),
        ("xlnet", ["--site", "mlp"], "the units of an MLP cannot be told in .*: its blocks do not pass"),
        ("convbert", ["--site", "attention"], "the outputs of attention heads cannot be told in .*: in block 1, "),
        ("bert", ["--site", "neurons"], "`?--site"),
    ],
)
def test_what_a_model_does_not_have_is_refused_in_a_sentence_before_any_work(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    family: str, args: list[str], words: str,
) -> None:  # fmt: skip
    where = ["--model", str(checkpoints[family]), "--corpus", str(corpus_file), "--runs", str(tmp_path)]
    assert main_run(COMMANDS, ["fit", *where, *args]) == 2
    said = capsys.readouterr().err
    assert re.search(words, " ".join(said.split()))
    assert "Traceback" not in said
    assert not list(tmp_path.glob("*tiny*"))
    assert not entries(tmp_path / "cache")


LAYER, N_FEATURES, K = 2, 24, 5


@pytest.fixture(scope="module")
def features_place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("features")


@pytest.fixture(scope="module")
def dictionary(checkpoints: dict[str, Path], corpus_file: Path, features_place: Path) -> Path:
    """Return the folder of a dictionary of layer 2 of the tiny BERT, trained by the documented script."""
    folder = features_place / "dictionary"
    found = train_dictionary.main([
        str(folder), "--model", str(checkpoints["bert"]), "--corpus", str(corpus_file), "--layer", str(LAYER),
        "--features", str(N_FEATURES), "--k", str(K), "--epochs", "30", "--cache", str(features_place / "cache"),
    ])  # fmt: skip
    assert 0.5 < found["explained_variance"] <= 1
    assert 0 < found["l0"] <= K
    return folder


def fitted(checkpoints: dict[str, Path], corpus: Path, place: Path, site: str, **options: Any) -> Run:
    return fit(**{
        **BARE, "model": str(checkpoints["bert"]), "corpus": str(corpus), "runs": str(place), "quiet": True,
        "site": site, "wandb": NO_WANDB, "cache": str(place / "cache"), "layer": "all", **options,
    })  # fmt: skip


@pytest.fixture(scope="module")
def features_made(checkpoints: dict[str, Path], corpus_file: Path, features_place: Path, dictionary: Path) -> Run:
    return fitted(checkpoints, corpus_file, features_place, f"sae:{dictionary}", name="A", evidence="all")


def test_features_are_ranked_as_neurons_are(features_made: Run) -> None:
    assert features_made.layers == [LAYER]
    assert {row["neuron"] for row in features_made.neurons} == set(range(N_FEATURES))
    assert features_made.weight.shape[2] == N_FEATURES
    assert "feature" not in features_made.neurons[0]
    top = features_made.neuron(LAYER, features_made.neurons[0]["neuron"], 3)
    assert all(row["activation"] >= 0 for row in top)


def test_the_table_is_that_of_the_dictionary_by_hand(
    features_made: Run, dictionary: Path, features_place: Path
) -> None:
    tensors = {name: tensor.double() for name, tensor in load_file(dictionary / "sae_weights.safetensors").items()}
    entry = next(path for path in (features_place / "cache").iterdir() if (path / f"layer_{LAYER:02d}").is_dir())
    states = torch.cat([
        load_file(path)["hidden_states"] for path in sorted((entry / f"layer_{LAYER:02d}").iterdir())
    ]).double()  # fmt: skip
    tokens = load_file(entry / "tokens.safetensors")
    before = torch.relu((states - tensors["b_dec"]) @ tensors["W_enc"] + tensors["b_enc"])
    features = torch.zeros_like(before).scatter_(1, (top := before.topk(K, dim=1)).indices, top.values)
    assert features_made.results["n_special_tokens"]["test"] > 0  # which stay apart, also from what ranks units
    n_active = next(row["n_active"] for row in features_made.bases if row["basis"] == "features")
    assert n_active == pytest.approx(float((features > 0).sum(1).double().mean()), abs=0.3)
    weight = centre_over_classes(load_file(features_made.folder / "probe.safetensors")["weight"][0].double())
    rows = {row["neuron"]: row for row in features_made.neurons}
    mean = np.array([rows[i]["mean"] for i in range(N_FEATURES)])
    # Over training tokens, which are two thirds of all, and special ones are left out: of the same size.
    assert np.corrcoef(mean, features.mean(0).numpy())[0, 1] > 0.95
    assert len(tokens)
    assert weight.shape == (len(features_made.results["classes"]), N_FEATURES)


def test_every_accuracy_stands_beside_other_bases(features_made: Run) -> None:
    rows = read_csv(features_made.folder / "bases.csv")
    assert list(dict.fromkeys(row["basis"] for row in rows)) == [
        "features", "neurons", "random features", "rotated neurons"
    ]  # fmt: skip
    assert {row["k"] for row in rows} == {1, 4}  # of 16 neurons
    by_k = [{row["n_train_tokens"], row["n_test_tokens"]} for row in rows]
    assert all(found == by_k[0] for found in by_k)
    assert (features_made.folder / "figures" / "bases.png").is_file() or not BARE.get("figure_format")
    said = [line for line in features_made.conclusions() if "compared with as many" in line]
    assert [line.split(" compared with as many ")[1].split(":")[0] for line in said] == [
        "neurons", "random features", "rotated neurons"
    ]  # fmt: skip
    page = report(str(features_made.folder), output=str(features_made.folder.parent / "page.html"))
    text = Path(page).read_text(encoding="utf-8")
    assert "Bases of" in text
    assert "sparse autoencoder in" in text
    assert f"sae {Path(features_made.config['site'][4:]).name}" in text


def test_a_finished_run_is_read_again_also_after_its_dictionary_has_moved(
    features_made: Run, dictionary: Path, features_place: Path
) -> None:
    first = rank(str(features_made.folder), method=["weight", "anova"], quiet=True, wandb=NO_WANDB)
    assert {row["neuron"] for row in first.rankings["weight"]} == set(range(N_FEATURES))
    predicted = features_made.predict(["one two three"])
    moved = dictionary.rename(features_place / "elsewhere")
    try:
        with pytest.raises(UserError, match=r"its dictionary .* is not there any more, or has changed"):
            load_run(features_made.folder).predict(["one two three"])
        shutil.copytree(moved, features_made.folder.parent / "dictionary")
        assert load_run(features_made.folder).predict(["one two three"]) == predicted
        tensors = load_file(features_made.folder.parent / "dictionary" / "sae_weights.safetensors")
        tensors["b_enc"] += 1
        save_file(tensors, features_made.folder.parent / "dictionary" / "sae_weights.safetensors")
        with pytest.raises(UserError, match=r"is not there any more, or has changed"):
            load_run(features_made.folder).predict(["one two three"])
    finally:
        shutil.rmtree(features_made.folder.parent / "dictionary", ignore_errors=True)
        moved.rename(dictionary)


def test_features_are_compared_with_neurons_by_correlation_and_with_themselves_by_index(
    features_made: Run, checkpoints: dict[str, Path], corpus_file: Path, features_place: Path, dictionary: Path
) -> None:
    neurons = fitted(checkpoints, corpus_file, features_place, "residual", name="N", layer=LAYER)
    other = fitted(checkpoints, corpus_file, features_place, f"sae:{dictionary}", name="B", seed=1)
    with pytest.raises(UserError, match="matched by index only at the same site"):
        compare([str(features_made.folder), str(neurons.folder)], matching="index", quiet=True, wandb=NO_WANDB)
    both = compare(
        [str(features_made.folder), str(other.folder)],
        null_draws=2,
        quiet=True,
        wandb=NO_WANDB,
        runs=str(features_place),
    )
    assert both.folder.is_dir()


def test_a_sweep_over_sites_may_have_a_dictionary(
    features_made: Run, checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, dictionary: Path
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
    checkpoints: dict[str, Path],
    corpus_file: Path,
    features_place: Path,
    dictionary: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("probing.activations.source", "probing.data.labelling"):
        monkeypatch.setattr(f"{module}.MOST_FEATURES", 10)
    said: list[str] = []
    monkeypatch.setattr("probing.runtime.progress.say", said.append)
    run = fitted(
        checkpoints, corpus_file, features_place, f"sae:{dictionary}", name="narrow", quiet=False, evidence="all"
    )
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
    page = (Path(__file__).parents[3] / "docs" / "sites.md").read_text(encoding="utf-8")
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
