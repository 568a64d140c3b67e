"""Rankings of two runs compared, from the command line: planted agreement is found, and none where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from conftest import BARE, BARE_ARGS, ROOT
from families import D_MODEL
from probing import compare, fit, load_run
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.errors import UserError
from probing.models import layers_at_equal_depth
from probing.runs import Result
from wandb_stand_in import read_offline_runs
from written import read_csv

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

NO_WANDB: Any = {"mode": "disabled"}
QUICKLY: dict[str, Any] = {"quiet": True, "wandb": NO_WANDB, **BARE}


def permute_neurons(model: Path, copy: Path, permutation: torch.Tensor) -> Path:
    """Save a copy of a BERT that computes the same with its neurons reordered: neuron i is old permutation[i]."""
    shutil.copytree(model, copy)
    weights = load_file(copy / "model.safetensors")
    for name, weight in weights.items():
        if "LayerNorm" in name or "output.dense" in name:  # what writes into the residual stream
            weights[name] = weight[permutation].clone()
        elif weight.ndim == 2:  # tables, and what reads from it
            weights[name] = weight[:, permutation].clone()
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    return copy


PERMUTATION = torch.randperm(D_MODEL, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def runs(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of a tiny BERT, of its copy with permuted neurons, two randomly initialised models, and other families."""
    place = tmp_path_factory.mktemp("runs")
    permuted = permute_neurons(checkpoints["bert"], place.parent / "permuted-bert", PERMUTATION)
    options: dict[str, Any] = {"corpus": str(corpus_file), "runs": str(place), **QUICKLY}
    bert = str(checkpoints["bert"])
    fit(model=bert, name="bert", **options)
    fit(model=str(permuted), name="permuted", **options)
    fit(model=bert, name="twin", random_weights=True, **options)
    fit(model=bert, name="again", seed=1, layer="0,2", **options)
    fit(model=str(checkpoints["roberta"]), name="roberta", **options)
    return place


@pytest.fixture(scope="module")
def strangers(runs: Path) -> Result:
    """A tiny BERT compared with a randomly initialised one."""
    return compare([str(runs / "bert"), str(runs / "twin")], runs=str(runs), name="d", quiet=True, wandb=NO_WANDB)


def rows(folder: Path, statistic: str) -> dict[tuple[int, int], dict[str, Any]]:
    found = read_csv(folder / "agreement.csv")
    return {(row["layer_a"], row["layer_b"]): row for row in found if row["statistic"] == statistic}


@pytest.mark.slow
def test_permuted_neurons_are_matched_exactly_and_rank_the_same(runs: Path) -> None:
    made = compare([str(runs / "bert"), str(runs / "permuted")], runs=str(runs), name="a", quiet=True, wandb=NO_WANDB)
    for layer in range(4):
        for statistic in ("overlap", "rbo", "spearman", "kendall", "correlation", "cka"):
            row = rows(made.folder, statistic)[layer, layer]
            assert row["value"] > 0.99, (layer, statistic)
        assert rows(made.folder, "spearman")[layer, layer]["p_value"] < 0.05
    # Every neuron at the top goes with the one that it became.
    assert len(made.top_everywhere) == 4 * 10
    for row in made.top_everywhere:
        assert PERMUTATION[row["permuted-bert neuron"]] == row["neuron"]
        assert row["permuted-bert layer"] == row["layer"]
    assert len(made.neurons) == 4 * D_MODEL
    for row in made.neurons:
        assert (PERMUTATION[row["neuron_b"]], row["rank_b"]) == (row["neuron_a"], row["rank_a"])
        assert row["contribution_b"] == pytest.approx(row["contribution_a"], rel=0.01)
        assert row["correlation"] > 0.99
        assert row["chance"] < row["correlation"]


@pytest.mark.slow
def test_matched_by_index_permuted_neurons_have_nothing_in_common_and_the_reader_is_warned(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(runs / "bert"), str(runs / "permuted")]
    made = compare(folders, matching="index", null_draws=4, runs=str(runs), name="b", wandb=NO_WANDB)
    assert "hardly share a lineage" in capsys.readouterr().err
    for layer in range(4):
        row = rows(made.folder, "spearman")[layer, layer]
        assert row["value"] <= row["chance_high"]
        assert row["p_value"] > 0.05


@pytest.mark.slow
def test_a_model_with_itself_goes_by_index_and_has_intervals(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["compare", str(runs / "bert"), str(runs / "again"), "--runs", str(runs), "--name", "c", "--wandb.mode"]
    assert run(COMMANDS, [*args, "disabled"]) == 0
    output = capsys.readouterr()
    assert "lineage" not in output.err
    (verdict,) = load_run(runs / "c").answer()
    assert output.out.startswith(f"{verdict}\n")
    assert "bert (a) and again (b), matched by index" in output.out
    assert "\ntop overlap: share of the first 10 neurons" in output.out
    assert "--verbose prints all" in output.out
    assert "Results: " in output.out
    found = rows(runs / "c", "spearman")
    assert set(found) == {(a, b) for a in range(4) for b in (0, 2)}
    for layer in (0, 2):
        row = found[layer, layer]
        assert -1 <= row["low"] <= row["value"] <= row["high"] <= 1
        assert row["low"] < row["high"]
        assert row["value"] > 0.5  # other sentences, the same neurons
        # Of the 16 neurons of this untrained model, shuffled labels bring up much the same ones: 19 draws, so 1 in 20.
        assert row["null"] == "shuffled_labels"
        assert row["p_value"] >= row["p_uncorrected"] >= 0.05
    drawn = {f"{name}.{form}" for name in ("agreement", "accuracy") for form in ("png", "pdf")}
    assert {path.name for path in (runs / "c" / "figures").iterdir()} == drawn


@pytest.mark.slow
def test_a_run_and_its_copy_have_the_same_neurons_and_the_table_of_them_is_shown_if_asked_for(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"corpus": str(corpus_file), "runs": str(tmp_path), "layer": "0", **QUICKLY}
    made = fit(model=str(checkpoints["bert"]), name="bert", **options)
    copy = shutil.copytree(made.folder, tmp_path / "copy")
    found = compare([made, copy], matching="correlation", top=5, runs=str(tmp_path), wandb=NO_WANDB, verbose=True)
    assert "bert and copy have the same neurons at the top" in found.answer()[0]
    output = capsys.readouterr().out
    assert "Neurons at the top of every run; layer, neuron and rank" in output
    assert "copy neuron" in output
    assert "--verbose prints all" not in output


@pytest.mark.slow
def test_the_first_ten_neurons_are_those_of_the_terminal_and_of_latex(strangers: Result) -> None:
    held = rows(strangers.folder, "correlation")
    for layer, of_layer in strangers.neurons.by("layer_a").items():
        assert of_layer.column("rank_a") == sorted(of_layer.column("rank_a"))
        assert sum(of_layer.column("correlation")) / len(of_layer) == pytest.approx(held[layer, layer]["value"])
    shown = strangers.neurons.where(layer_a=next(iter(strangers.results["shown_layers"].values())))[:10]
    (table,) = [table for table in strangers.tables() if "and their matches in" in table.title]
    text = (strangers.export("latex") / "neurons.tex").read_text(encoding="utf-8")
    for row in shown:
        assert f"{row['rank_a']} & {row['neuron_a']} & {row['contribution_a']:.4f} & {row['neuron_b']} & " in text
    assert table.row_count == text.count("\\\\") - 1 == len(shown) == 10


@pytest.mark.slow
def test_a_randomly_initialised_model_ranks_no_more_alike_than_chance(strangers: Result) -> None:
    assert {row["matching"] for row in strangers.agreement} == {"correlation"}
    for statistic in ("overlap", "rbo", "spearman", "kendall"):
        assert min(row["p_value"] for row in rows(strangers.folder, statistic).values()) > 0.05
    assert "are not shown to rank the same neurons first" in strangers.answer()[0]
    assert strangers.conclusions()[0] == strangers.answer()[0]


@pytest.mark.slow
def test_many_runs_of_other_families_are_compared_pair_by_pair_and_tracked(runs: Path) -> None:
    folders = [str(runs / name) for name in ("bert", "roberta", "permuted")]
    made = compare(folders, null_draws=2, runs=str(runs), name="e", quiet=True, wandb={"mode": "offline"})
    pairs = {(row["model_a"], row["model_b"]) for row in made.agreement}
    names = ["tiny-bert", "tiny-roberta", "permuted-bert"]
    assert pairs == {(names[0], names[1]), (names[0], names[2]), (names[1], names[2])}
    assert len(made.agreement) == 6 * (4 * 3 + 4 * 4 + 3 * 4)
    assert len(list((made.folder / "figures").glob("agreement_*.png"))) == 3
    (tracked,) = read_offline_runs(made.folder)
    assert len(tracked.table("agreement")) == len(made.agreement)
    assert [kind for _, kind, _ in tracked.artifacts if kind == "comparison"]
    assert repr(made).startswith(
        "Accuracy of the probes of each run by layer\n\n layer   tiny-bert     95% range   tiny-"
    )
    assert "First neurons of tiny-bert (a), layer 0, and their matches in tiny-roberta (b), layer 0" in repr(made)
    text = (made.export("latex") / "accuracies.tex").read_text(encoding="utf-8")
    assert "layer & tiny-bert & 95\\% range & tiny-roberta & 95\\% range & permuted-bert & 95\\% range" in text


@pytest.mark.slow
def test_layers_that_differ_do_not_make_strangers_of_one_model(
    runs: Path, checkpoints: dict[str, Path], corpus_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"corpus": str(corpus_file), "runs": str(runs), **QUICKLY}
    fit(model=str(checkpoints["bert"]), name="low", layer="0,1", **options)
    fit(model=str(checkpoints["bert"]), name="high", layer="1,2", **options)
    compare([str(runs / "low"), str(runs / "high")], null_draws=1, runs=str(runs), name="lh", wandb=NO_WANDB)
    assert "lineage" not in capsys.readouterr().err


@pytest.mark.slow
def test_many_to_one_may_use_a_neuron_twice(runs: Path) -> None:
    folders = [str(runs / "bert"), str(runs / "twin")]
    options: dict[str, Any] = {"assignment": "many_to_one", "null_draws": 2, "quiet": True, "wandb": NO_WANDB}
    made = compare(folders, runs=str(runs), name="f", **options)
    assert all(0 <= row["p_value"] <= 1 for row in made.agreement if row["statistic"] == "spearman")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda runs: [str(runs / "bert")], "two or more finished runs"),
        (lambda runs: [str(runs / "bert"), str(runs / "nowhere")], "does not exist"),
        (lambda runs: [str(runs / "bert"), str(runs / "cache")], "is no finished run"),
    ],
)
def test_what_is_no_pair_of_runs_is_refused(runs: Path, change: Callable[[Path], list[str]], words: str) -> None:
    before = {path.name for path in runs.iterdir()}
    with pytest.raises(UserError, match=words):
        compare(change(runs), runs=str(runs), wandb=NO_WANDB)
    assert {path.name for path in runs.iterdir()} == before


@pytest.mark.slow
def test_a_comparison_is_no_run_of_fit_and_is_opened_as_it_was_returned(strangers: Result) -> None:
    with pytest.raises(UserError, match="holds a comparison"):
        compare([str(strangers.folder), str(strangers.folder)], wandb=NO_WANDB)
    opened = load_run(strangers.folder)
    assert isinstance(opened, Result)
    assert repr(vars(opened)) == repr(vars(strangers))  # as text, since no interval's ends are equal to themselves
    assert opened.results["kind"] == "comparison"


@pytest.mark.slow
def test_models_of_different_width_have_no_common_index(runs: Path, tmp_path: Path, corpus_file: Path) -> None:
    from transformers import BertConfig, BertModel

    wide = shutil.copytree(load_run(runs / "bert").config["model"], tmp_path / "wide")
    config = BertConfig.from_pretrained(wide)
    config.hidden_size = 24
    BertModel(config).save_pretrained(wide)
    fit(model=str(wide), corpus=str(corpus_file), runs=str(runs), name="wide", layer=1, **QUICKLY)
    folders = [str(runs / "bert"), str(runs / "wide")]
    with pytest.raises(UserError, match=r"`--matching index`: .* has 16, .*wide has 24; use correlation"):
        compare(folders, matching="index", runs=str(runs), wandb=NO_WANDB)
    made = compare(folders, runs=str(runs), name="h", quiet=True, wandb=NO_WANDB)
    assert {row["n_neurons"] for row in made.agreement if row["statistic"] == "correlation"} == {16}


@pytest.mark.slow
def test_a_run_whose_corpus_changed_is_refused(runs: Path, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    sentences = Path(load_run(runs / "bert").config["corpus"]).read_text(encoding="utf-8").splitlines()
    text.write_text("\n".join(sentences), encoding="utf-8")
    fit(model=str(checkpoints["bert"]), corpus=str(text), runs=str(runs), name="changed", **QUICKLY)
    text.write_text("\n".join(sentences[1:]), encoding="utf-8")
    with pytest.raises(
        UserError, match=r"changed`: its corpus has changed since: there is another text at .*text\.txt"
    ):
        compare([str(runs / "bert"), str(runs / "changed")], runs=str(runs), wandb=NO_WANDB)


def test_layers_of_the_same_relative_depth_are_aligned() -> None:
    assert layers_at_equal_depth([0, 1, 2, 3], [0, 1, 2, 3], (3, 3)) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert layers_at_equal_depth([0, 3, 6], [0, 6, 12], (6, 12)) == [(0, 0), (1, 1), (2, 2)]
    assert layers_at_equal_depth([0, 6, 12], [0, 1, 2, 3, 4, 5, 6], (12, 6)) == [(0, 0), (1, 3), (2, 6)]
    assert layers_at_equal_depth([2], [0, 1, 2, 3], (3, 3)) == [(0, 2)]
    assert layers_at_equal_depth([0, 1, 2, 3, 4, 5, 6], [6], (6, 6)) == [(6, 0)]
    assert layers_at_equal_depth([3], [6], (6, 6)) == []
    assert layers_at_equal_depth([3], [6], (6, 12)) == [(0, 0)]
    assert layers_at_equal_depth([1], [0, 1], (12, 6)) == []  # halfway between the two
    assert layers_at_equal_depth(range(5), range(7), (4, 6)) == [(0, 0), (1, 1), (2, 3), (3, 4), (4, 6)]


_LAYERS = st.integers(1, 24).flatmap(
    lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n), min_size=1, unique=True).map(sorted))
)


@given(_LAYERS, _LAYERS)
@settings(max_examples=50, deadline=None, derandomize=True)
def test_layers_with_a_partner_are_at_one_depth_and_the_order_of_runs_is_no_matter(
    one: tuple[int, list[int]], other: tuple[int, list[int]]
) -> None:
    (n_a, a), (n_b, b) = one, other
    pairs = layers_at_equal_depth(a, b, (n_a, n_b))
    assert all(abs(a[i] / n_a - b[j] / n_b) < 0.5 / min(n_a, n_b) for i, j in pairs)
    assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)
    if n_a == n_b:
        assert [a[i] for i, _ in pairs] == sorted({*a} & {*b})
    if n_a < n_b and len(a) == n_a + 1 and len(b) == n_b + 1:  # each layer of the model with fewer blocks has one
        assert len(pairs) == len(a)
    assert {(j, i) for i, j in pairs} == {*layers_at_equal_depth(b, a, (n_b, n_a))}


@pytest.mark.slow
def test_runs_of_other_layers_are_compared_where_they_have_one_depth_and_refused_where_nowhere(
    checkpoints: dict[str, Path], runs: Path
) -> None:
    options: dict[str, Any] = {"corpus": load_run(runs / "bert").config["corpus"], "runs": str(runs), **QUICKLY}
    fit(model=str(checkpoints["bert"]), name="last", layer=2, **options)
    written = {"runs": str(runs), "quiet": True, "wandb": NO_WANDB}
    made = compare([runs / "bert", runs / "last"], null_draws=1, name="of-last", **written)
    assert {(row["layer_a"], row["layer_b"]) for row in made.agreement if row["same_depth"] == "yes"} == {(2, 2)}
    assert "10 of the first 10 neurons are in common" in made.answer()[0]
    assert ": in 1 pair of layers of the same relative depth, " in made.answer()[0]
    (line,) = [line for line in made.conclusions() if "no partner" in line]
    assert line.startswith("last has no partner for layers 0, 1 and 3 of bert: only")
    assert {row["layer"] for row in made.top_everywhere} == {2}
    fit(model=str(checkpoints["bert"]), name="first", layer=1, **options)
    before = {path.name for path in runs.iterdir()}
    with pytest.raises(UserError, match=r"first` has layer 1 of 3 blocks and .*last` has layer 2 of 3"):
        compare([runs / "first", runs / "last"], **written)
    assert {path.name for path in runs.iterdir()} == before


@pytest.mark.slow
def test_the_experiment_fits_its_models_and_compares_them(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = ROOT / "conf" / "experiments" / "bert-roberta-distilbert.yaml"
    wide = widened(checkpoints["roberta"], tmp_path / "wide-roberta")
    models = [str(checkpoints["bert"]), str(wide), str(checkpoints["distilbert"])]
    args = [
        "compare",
        "--config",
        str(experiment),
        "--models",
        f"[{', '.join(models)}]",
        *(arg.replace("--", "--fit.") for arg in BARE_ARGS),
        "--wandb.mode",
        "disabled",
    ]
    args += ["--fit.corpus", str(corpus_file), "--runs", str(tmp_path / "runs"), "--name", "all", "--null_draws", "2"]
    assert run(COMMANDS, args) == 0
    assert "First neurons of tiny-bert (a), layer " in capsys.readouterr().out
    assert len(rows(tmp_path / "runs" / "all", "spearman")) > 0
    assert len(list((tmp_path / "runs").glob("*-position-*/neurons.csv"))) == 3


def widened(model: Path, copy: Path) -> Path:
    """Save a model of the same family and tokenizer that is wider."""
    from transformers import AutoConfig, AutoModel

    shutil.copytree(model, copy)
    config = AutoConfig.from_pretrained(copy)
    config.hidden_size = 24
    AutoModel.from_config(config).save_pretrained(copy)
    return copy


@pytest.mark.slow
def test_two_tasks_of_one_model_are_compared_by_index(
    runs: Path, checkpoints: dict[str, Path], corpus_file: Path
) -> None:
    options: dict[str, Any] = {"corpus": str(corpus_file), "runs": str(runs), **QUICKLY}
    fit(model=str(checkpoints["bert"]), task="position_from_end", name="from-end", **options)
    folders = [str(runs / "bert"), str(runs / "from-end")]
    made = compare(folders, null_draws=1, runs=str(runs), name="t", quiet=True, wandb=NO_WANDB)
    assert {row["matching"] for row in made.agreement} == {"index"}
    assert {row["model_a"] for row in made.agreement} == {"tiny-bert position"}
    for row in made.top_everywhere:  # the neurons that serve both
        assert row["neuron"] == row["tiny-bert position_from_end neuron"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--models", "[minilm]"], "two or more"),
        (["a", "b", "--fit.layer", "2"], "`--fit.*` are options of the models"),
        (["--models", "[minilm, bert]", "--fit.name", "x"], "`--fit.name` cannot be set"),
        (
            ["--models", "[minilm, bert]", "--fit.seed", "x", "--fit.layr", "2"],
            "`--fit.seed x`: expected a whole number",
        ),
        (["a", "b", "--trainer.devices", "2"], "`--trainer.devices`: `compare` runs in one process"),
        (["--top", "0", "a", "b"], "`--top 0` is out of range"),
        (["--matching", "guess", "a", "b"], "expected auto, index or correlation"),
    ],
)
def test_impossible_comparisons_are_refused(args: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(COMMANDS, ["compare", *args]) == 2
    assert words in capsys.readouterr().err
