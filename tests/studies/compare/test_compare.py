"""Rankings of two runs compared, and two runs of `finetune` held against each other."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file as recipes_load_file
from safetensors.numpy import save_file as recipes_save_file
from safetensors.torch import load_file, save_file

from conftest import BARE, BARE_ARGS, ROOT, make_sentences
from families import D_MODEL
from probing import compare, finetune, fit, report
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.errors import UserError
from probing.models import layers_at_equal_depth
from probing.results import write_csv
from probing.runs import Result
from probing.runs.loading import checkpoint_name, load_run
from probing.studies.finetune.results import ANSWERS
from probing.studies.finetune.tables import TUNINGS
from wandb_stand_in import read_offline_runs
from written import read_csv

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
    assert table.row_count == len(re.findall(r"^\d+ & ", text, re.MULTILINE)) == len(shown) == 10


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
    assert " ".join(repr(made).split()).startswith(
        "Accuracy of the probes of each run by layer layer tiny-bert 95% range tiny-"
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
    with pytest.raises(UserError, match=r"`matching=.index.`: .* has 16, .*wide has 24; use correlation"):
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


LEARNS = {"learning_rate": 5e-3, "epochs": 6, "batch_tokens": 100}
NOTHING = {**LEARNS, "epochs": 0}


def labelled(path: Path, n: int, seed: int) -> str:
    """Write sentences, half of which end in the word that their label is told by."""
    plain = [" ".join(w for w in text.split() if w != "probe") for text in make_sentences(n, seed, longest=8)]
    rows = [f'"{text} probe",yes' if i % 2 else f'"{text} layer",no' for i, text in enumerate(plain)]
    path.write_text("\n".join(["text,label", *rows, ""]), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def made(checkpoints: dict[str, Path], one_block: Path, place: Path) -> Callable[[str], Result]:
    """Return a run of `finetune` by its name, made when it is first asked for."""
    train, test = labelled(place / "train.csv", 300, 0), labelled(place / "test.csv", 60, 1)
    numbers = place / "numbers.csv"
    text = Path(train).read_text(encoding="utf-8").replace(",yes", ",1.5").replace(",no", ",-1")
    numbers.write_text(text, encoding="utf-8")
    usual: dict[str, Any] = {
        "model": str(one_block), "corpus": train, "test_corpus": test, "seeds": 2, "orders": 2,
        "starts": "pretrained", "runs": str(place), "quiet": True, "wandb": NO_WANDB, "tuning": LEARNS,
    }  # fmt: skip
    asked: dict[str, dict[str, Any]] = {
        "learns": {},
        "nothing": {"tuning": NOTHING},
        "other-seeds": {"seed": 10},
        "more-seeds": {"seeds": 3, "tuning": NOTHING},
        "less-text": {"corpus": labelled(place / "less.csv", 150, 0), "tuning": NOTHING},
        "moved": {"corpus": shutil.copy(train, place / "moved.csv"), "tuning": NOTHING},
        "other-model": {"model": str(checkpoints["roberta"]), "tuning": NOTHING},
        "random": {"starts": "random", "tuning": NOTHING},
        "other-test": {"test_corpus": labelled(place / "test2.csv", 60, 2), "tuning": NOTHING},
        "numbers": {"corpus": str(numbers), "test_corpus": None, "task_args": {"numbers": True}, "tuning": NOTHING},
        "numbers-tuned": {
            "corpus": str(numbers), "test_corpus": None, "task_args": {"numbers": True},
            "tuning": {**LEARNS, "epochs": 3},
        },
        "single": {"seeds": 1, "orders": 1, "tuning": NOTHING},
    }  # fmt: skip
    done: dict[str, Result] = {}

    def made_of(name: str) -> Result:
        if name not in done:
            found = finetune(name=name, **{**usual, **asked[name]})
            done[name] = found
        return done[name]

    return made_of


def held(place: Path, *runs: Result) -> Result:
    return compare(list(runs), runs=str(place / "comparisons"), quiet=True, wandb=NO_WANDB)


@pytest.mark.slow
def test_a_recipe_that_learns_is_better_than_one_without_steps(made: Callable[[str], Result], place: Path) -> None:
    learns, nothing = made("learns"), made("nothing")
    found = held(place, nothing, learns)
    (row,) = found.recipes
    scores = [np.mean([one["score"] for one in run.tunings]) for run in (nothing, learns)]
    assert (row["score_a"], row["score_b"]) == pytest.approx(scores)
    assert row["difference"] == pytest.approx(scores[0] - scores[1])
    assert (row["verdict"], row["draws"], row["tunings_a"], row["tunings_b"]) == ("b", "paired", 4, 4)
    assert row["high"] < 0
    assert found.answer()[0].startswith("learns is better than nothing, tuned from the pretrained model: +")
    assert {one["option"] for one in found.options} == {"tuning.epochs"}
    assert "The runs differ in tuning.epochs (nothing: 0; learns: 6)." in found.conclusions()


@pytest.mark.slow
def test_a_run_and_its_copy_differ_by_exactly_nothing(made: Callable[[str], Result], place: Path) -> None:
    copy = shutil.copytree(made("learns").folder, place / "copies" / "copy")
    found = compare([made("learns"), copy], runs=str(place / "comparisons"), quiet=True, wandb=NO_WANDB)
    (row,) = found.recipes
    assert (row["difference"], row["low"], row["high"], row["verdict"]) == (0, 0, 0, "equal")
    assert "do not differ" in found.answer()[0]
    assert not found.options
    assert any("have the same options" in line for line in found.conclusions())


@pytest.mark.slow
def test_the_same_recipe_with_other_seeds_is_not_resolved(made: Callable[[str], Result], place: Path) -> None:
    found = held(place, made("learns"), made("other-seeds"))
    (row,) = found.recipes
    assert (row["verdict"], row["draws"]) == ("unresolved", "independent")
    assert row["low"] <= 0 <= row["high"]
    assert any("these are independent draws" in line for line in found.conclusions())
    assert {one["option"] for one in found.options} == {"seed"}


@pytest.mark.slow
def test_of_more_seeds_those_of_both_runs_are_paired(made: Callable[[str], Result], place: Path) -> None:
    """The tunings that both have are the same ones."""
    found = held(place, made("nothing"), made("more-seeds"))
    (row,) = found.recipes
    assert (row["draws"], row["tunings_a"], row["tunings_b"], row["verdict"]) == ("paired", 4, 4, "equal")
    assert any("left out are the tunings that only one has, 2 of more-seeds" in line for line in found.conclusions())


@pytest.mark.slow
def test_another_model_is_compared_on_the_same_sentences(made: Callable[[str], Result], place: Path) -> None:
    found = held(place, made("nothing"), made("other-model"))
    (row,) = found.recipes
    assert row["draws"] == "paired"
    assert math_of(made("other-model")) == pytest.approx(row["score_b"])
    assert {one["option"] for one in found.options} == {"model"}


def math_of(made: Result) -> float:
    return float(np.mean([row["score"] for row in made.tunings]))


@pytest.mark.slow
def test_another_training_text_is_an_option_that_differs_and_a_moved_one_is_not(
    made: Callable[[str], Result], place: Path
) -> None:
    less = held(place, made("nothing"), made("less-text"))
    assert {one["option"] for one in less.options} == {"corpus"}
    assert "less.csv (" in less.options[1]["setting"]
    assert not held(place, made("nothing"), made("moved")).options


@pytest.mark.slow
def test_three_runs_are_compared_in_pairs_at_a_level_for_all_of_them(
    made: Callable[[str], Result], place: Path
) -> None:
    runs = made("nothing"), made("learns"), made("other-seeds")
    found = held(place, *runs)
    assert [(row["run_a"], row["run_b"]) for row in found.recipes] == [
        ("nothing", "learns"), ("nothing", "other-seeds"), ("learns", "other-seeds"),
    ]  # fmt: skip
    (alone,) = held(place, *runs[:2]).recipes
    assert found.recipes[0]["low"] < alone["low"]
    assert any("Intervals are of 98.3%" in line for line in found.conclusions())


@pytest.mark.slow
def test_numbers_are_compared_by_their_errors(made: Callable[[str], Result], place: Path) -> None:
    found = held(place, made("numbers-tuned"), made("numbers"))
    (row,) = found.recipes
    assert row["difference"] == pytest.approx(math_of(made("numbers-tuned")) - math_of(made("numbers")))
    assert row["low"] < row["difference"] < row["high"]
    assert "R²" in found.answer()[0]


@pytest.mark.slow
def test_of_one_tuning_no_verdict_is_given(made: Callable[[str], Result], place: Path) -> None:
    found = held(place, made("single"), made("learns"))
    (row,) = found.recipes
    assert (row["verdict"], row["tunings_a"], row["tunings_b"]) == ("unknown", 1, 1)
    assert np.isnan(row["low"])
    assert "cannot be said" in found.answer()[0]


@pytest.mark.slow
def test_the_command_line_and_pages_say_the_same(
    made: Callable[[str], Result], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(made(name).folder) for name in ("learns", "nothing")]
    args = ["compare", *folders, "--runs", str(place / "typed"), "--name", "typed", "--wandb.mode", "disabled"]
    assert run(COMMANDS, args) == 0
    output = capsys.readouterr().out
    found = load_run(place / "typed" / "typed")
    assert output.startswith(found.answer()[0])
    assert "Scores of learns (a) and nothing (b) on the same test part" in output
    assert "Options that differ" in output
    assert {path.name for path in (found.folder / "figures").iterdir()} == {"recipes.png", "recipes.pdf"}
    again = yaml.safe_load((found.folder / "config.yaml").read_text(encoding="utf-8"))
    assert "top" not in again
    for sources in ([found], [found, *folders]):
        page = report([str(one.folder) if isinstance(one, Result) else one for one in sources], str(place / "p.html"))
        text = " ".join(unescape(re.sub("<[^>]*>", " ", page.read_text(encoding="utf-8"))).split())
        assert found.answer()[0] in text
        assert "Recipes of tuning: typed" in text
        assert "The first score less the second" in text  # a term


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("learns", "other-test"), r"are tested on 60 and 60 sentences, of which they share \d"),
        (("learns", "numbers"), "predict sentence_label as classes and sentence_label as numbers"),
        (("learns", "random"), "start from pretrained and from random; expected a start that both have"),
        (("learns", "learns"), "is given twice"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    names: tuple[str, str], words: str, made: Callable[[str], Result], place: Path
) -> None:
    with pytest.raises(UserError, match=words):
        held(place, *map(made, names))


@pytest.mark.slow
@pytest.mark.parametrize(("option", "value"), [("top", 5), ("matching", "index"), ("models", ["minilm"])])
def test_options_of_rankings_are_refused(option: str, value: Any, made: Callable[[str], Result], place: Path) -> None:
    with pytest.raises(UserError, match=f"`{option}` is about rankings"):
        compare([made("learns"), made("nothing")], runs=str(place / "c"), wandb=NO_WANDB, **{option: value})


def changed(made: Result, place: Path, name: str, change: Callable[[dict[str, Any]], None]) -> Path:
    """Return a copy of a run in whose answers something is changed."""
    copy = shutil.copytree(made.folder, place / "changed" / name)
    tensors = recipes_load_file(copy / ANSWERS)
    change(tensors)
    recipes_save_file(tensors, copy / ANSWERS)
    return copy


@pytest.mark.slow
def test_other_targets_units_and_scores_and_no_answers_are_refused(made: Callable[[str], Result], place: Path) -> None:
    learns = made("learns")

    def refused(name: str, change: Callable[[dict[str, Any]], None], words: str) -> None:
        with pytest.raises(UserError, match=words):
            compare([learns, changed(learns, place, name, change)], runs=str(place / "c"), wandb=NO_WANDB)

    def of_labels(tensors: dict[str, Any]) -> None:
        tensors["labels"][:3] += 1

    def of_units(tensors: dict[str, Any]) -> None:
        tensors["cluster"] //= 2

    def of_scores(tensors: dict[str, Any]) -> None:
        tensors["right/pretrained-seed0-order0"] *= 0.5

    refused("labels", of_labels, "in 3 of 60 sentences, other things are to be predicted")
    refused("units", of_units, "intervals over other units")
    refused("scores", of_scores, "is damaged .*another score than tunings.csv")
    refused("no-tuning", lambda tensors: tensors.pop("right/pretrained-seed0-order0"), "is damaged")
    copy = shutil.copytree(learns.folder, place / "changed" / "none")
    (copy / ANSWERS).unlink()
    with pytest.raises(UserError, match=f"does not have {ANSWERS}, what its tuned models have right"):
        compare([learns, copy], runs=str(place / "c"), wandb=NO_WANDB)
    rows = [row for row in learns.tunings if (row["seed"], row["order_seed"]) != (1, 1)]
    copy = shutil.copytree(learns.folder, place / "changed" / "crossed")
    write_csv(copy / "tunings.csv", rows, TUNINGS)
    with pytest.raises(UserError, match="does not have every seed of pretrained with every order"):
        compare([learns, copy], runs=str(place / "c"), wandb=NO_WANDB)


@pytest.mark.slow
def test_answers_are_in_any_order_of_sentences(made: Callable[[str], Result], place: Path) -> None:
    def turned(tensors: dict[str, Any]) -> None:
        for name, values in tensors.items():
            tensors[name] = np.roll(values[::-1], 7).copy()

    copy = changed(made("learns"), place, "turned", turned)
    (row,) = compare([made("learns"), copy], runs=str(place / "c"), quiet=True, wandb=NO_WANDB).recipes
    assert row["verdict"] == "equal"


@pytest.mark.slow
def test_a_word_that_two_tokenizers_read_alike_has_the_same_target(
    checkpoints: dict[str, Path], long_sentences: list[str], place: Path
) -> None:
    """A model whose limit cuts sentences lacks targets that the other one has, and is refused."""
    words = place / "words.tsv"
    tagged = ("".join(f"{word}\t{'abc'[len(word) % 3]}\n" for word in text.split()) for text in make_sentences(150))
    words.write_text("\n".join(tagged), encoding="utf-8")
    usual: dict[str, Any] = {
        "corpus": str(words), "task": "label", "seeds": 2, "orders": 1, "starts": "pretrained", "runs": str(place),
        "quiet": True, "wandb": NO_WANDB, "tuning": NOTHING,
    }  # fmt: skip
    runs = {
        name: finetune(model=str(checkpoints[family]), name=f"words-{name}", max_length=longest, **usual)
        for name, family, longest in (("bert", "bert", None), ("roberta", "roberta", None), ("cut", "bert", 12))
    }
    (row,) = held(place, runs["bert"], runs["roberta"]).recipes
    assert row["draws"] == "paired"
    with pytest.raises(UserError, match="other things are to be predicted, because labels have changed, or tokenizers"):
        held(place, runs["bert"], runs["cut"])


@pytest.mark.slow
def test_kept_answers_are_those_of_each_sentence(made: Callable[[str], Result]) -> None:
    """Against transformers alone, sentence by sentence."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from probing.text import load_corpus

    learns = made("nothing")
    name = checkpoint_name(learns.tunings[0])
    folder = learns.folder / "checkpoints" / name
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    corpus = load_corpus(learns.config["test_corpus"])
    right = [
        model.config.id2label[int(model.eval()(**tokenizer(text, return_tensors="pt")).logits.argmax())] == label
        for text, label in zip(corpus.sentences, corpus.sentence_columns["label"], strict=True)
    ]
    kept = recipes_load_file(learns.folder / ANSWERS)
    assert kept[f"right/{name}"].tolist() == right
    assert kept["of"].tolist() == [1.0] * len(right)
    assert len(set(kept["sentence"].tolist())) == len(right)
