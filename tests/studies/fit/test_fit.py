"""The whole path, from text to ranked neurons, as a user runs it."""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors import safe_open
from transformers import AutoModel, AutoTokenizer

from conftest import BARE, BARE_ARGS
from probing import ProbeOptions, Run, WandbOptions, fit, load_run, report
from probing.__main__ import COMMANDS
from probing.cli.commandline import run as main_run
from probing.errors import UserError
from probing.studies.fit import extract
from probing.tables import probes
from probing.tables.schema import ACCURACY, NEURONS
from probing.text.tokens import Tokens
from rendering import rendered
from typed import PROGRAM
from wandb_stand_in import WandbServer, read_offline_runs
from written import columns_of

pytestmark = pytest.mark.slow

NO_WANDB = WandbOptions(mode="disabled")
FIGURES = {f"figures/{name}.pdf" for name in ("accuracy", "positions", "confusions", "top_neurons", "neuron_map")}
# Columns of neurons that take more training; a run with all of them is tested with the controls.
RETRAINED = {
    column
    for column in tuple(NEURONS.types)
    if column.startswith(
        (
            "rank_",
            "unique",
            "cross_entropy",
            "removed",
            "contribution_companion",
            "control_task",
            "within_covariate",
            "direction",
            "above_",
        )
    )
    or column == "selectivity"
}


@pytest.fixture(scope="module")
def corpus(sentences: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "sentences.txt"
    path.write_text("\n".join(sentences), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
@rendered()
def run(checkpoints: dict[str, Path], corpus: Path, place: Path) -> Run:
    return fit(
        model=str(checkpoints["bert"]), corpus=str(corpus), runs=str(place), name="main", quiet=True, wandb=NO_WANDB,
        task_args={"min_count": 5}, **BARE,
    )  # fmt: skip


@pytest.fixture(scope="module")
def chosen(run: Run) -> Run:
    """As `run`, but with a penalty that is chosen, and tracked offline."""
    return fit(**{**run.config, "probe": ProbeOptions(), "wandb": WandbOptions(mode="offline"), "name": "chosen"})


def again(run: Run, **options: Any) -> Run:
    """Fit as `run` did, but for some options."""
    config = {**run.config, **options}
    probe = config["probe"] if isinstance(config["probe"], ProbeOptions) else ProbeOptions(**config["probe"])
    return fit(**{**config, "probe": probe, "wandb": NO_WANDB, "quiet": options.get("quiet", True)})


def test_the_folder_holds_what_the_design_promises(run: Run) -> None:
    names = {str(path.relative_to(run.folder)) for path in run.folder.rglob("*") if path.is_file()}
    assert names == {
        "config.yaml", "results.json", "accuracy.csv", "neurons.csv", "classes.csv", "positions.csv",
        "class_scores.csv", "confusions.csv", "contexts.csv", "profiles.csv", "probe.safetensors",
        "contributions.safetensors", "report.html", *FIGURES,
        *(figure.replace(".pdf", ".png") for figure in FIGURES),
    }  # fmt: skip
    with (run.folder / "accuracy.csv").open(encoding="utf-8") as file:
        # Controls, which come after, have a file of tests of their own.
        columns = columns_of(ACCURACY)
        measured = columns[: columns.index("n_classes") + 1]
        assert tuple(next(csv.reader(file))) == (*measured, "flag")
    with (run.folder / "neurons.csv").open(encoding="utf-8") as file:
        assert tuple(next(csv.reader(file))) == tuple(
            column
            for column in columns_of(NEURONS)
            if column not in {*RETRAINED, "head", "feature", "span", "span_neuron", "correlated_group"}
        )
    assert set(run.results["timings"]) == {"extract_s", "probe_s", "evidence_s", "rank_s", "total_s"}
    # The version of torch can name its build, as in 2.13.0+cu130, where that of its package does not.
    assert run.results["versions"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]


def test_tables_have_a_row_for_every_layer_and_neuron(run: Run) -> None:
    assert [row["layer"] for row in run.accuracy] == [0, 1, 2, 3]
    for layer in (0, 1, 2, 3):
        rows = run.top(layer, 1000)
        assert [row["rank"] for row in rows] == list(range(1, 17))
        assert sorted(row["neuron"] for row in rows) == list(range(16))
        contributions = [row["contribution"] for row in rows]
        assert contributions == sorted(contributions, reverse=True)
        assert sum(row["share"] for row in rows) == pytest.approx(1)
        assert sum(row["ratio"] for row in rows) == pytest.approx(16)


def test_stored_probe_and_ranking_agree_with_the_plain_forward_pass(run: Run) -> None:
    """The table is recomputed sentence by sentence from the untouched model and `probe.safetensors` alone."""
    from probing.text import assign_splits, load_corpus

    encoder = AutoModel.from_pretrained(run.config["model"]).eval()
    tokenizer = AutoTokenizer.from_pretrained(run.config["model"])
    with safe_open(run.folder / "probe.safetensors", "pt") as file:
        weight, metadata = file.get_tensor("weight"), file.metadata()
    layers, classes = json.loads(metadata["layers"]), json.loads(metadata["classes"])
    with safe_open(run.folder / "contributions.safetensors", "pt") as file:
        stored = file.get_tensor("contribution")
    right, n = torch.zeros(len(layers)), torch.zeros(len(classes))
    by_class = torch.zeros(stored.shape, dtype=torch.float64)
    sentences = load_corpus(run.config["corpus"]).sentences
    for sentence, side in zip(sentences, assign_splits(sentences, run.config["seed"]), strict=True):
        if side != "test":
            continue
        inputs = tokenizer(sentence, return_tensors="pt")
        with torch.inference_mode():
            states = encoder(**inputs, output_hidden_states=True).hidden_states
        for position in range(1, inputs["input_ids"].shape[1] - 1):
            if position not in classes:
                continue
            y = classes.index(position)
            n[y] += 1
            for i, layer in enumerate(layers):
                v = states[layer][0, position]
                right[i] += (weight[i] @ v).argmax() == y
                by_class[i, y] += (v * (weight[i, y] - weight[i].mean(0))).abs().double()
    for i, row in enumerate(run.accuracy):
        # A tie broken by the last bit may fall the other way in a padded batch: two tokens at most.
        assert abs(row["accuracy"] - right[i] / n.sum()) <= 2 / n.sum() + 1e-6
        table = {neuron["neuron"]: neuron["contribution"] for neuron in run.top(layers[i], 1000)}
        expected = by_class[i].sum(0) / n.sum()
        assert [table[k] for k in range(16)] == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-7)
    torch.testing.assert_close(
        stored.double(), by_class / n.clamp(min=1).double()[:, None], rtol=1e-3, atol=1e-5
    )  # fmt: skip


def test_the_stored_configuration_repeats_the_run_whatever_the_hash_seed(run: Run, place: Path) -> None:
    here = os.environ.get("PYTHONHASHSEED")

    repeated = subprocess.run(
        [sys.executable, "-c", PROGRAM, "fit", "--config", str(run.folder / "config.yaml"), "--name", "repeated"],
        # As many threads as here: sums in another order differ in their last bits.
        env={
            **os.environ,
            "OMP_NUM_THREADS": str(torch.get_num_threads()),
            "PYTHONHASHSEED": "2" if here == "1" else "1",
        },
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert str(place / "repeated") in repeated.stdout
    for name in ("accuracy.csv", "neurons.csv", "config.yaml"):
        assert (place / "repeated" / name).read_bytes() == (run.folder / name).read_bytes()


def test_a_second_run_takes_its_activations_from_the_cache(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("probing.activations.load_encoder", refuse)
    assert again(run, layer=[1], name="cached").neurons == run.top(1, 1000)


def test_a_layer_alone_gives_what_it_gives_among_others(run: Run) -> None:
    alone = again(run, layer=2, name="alone")
    assert alone.accuracy == [row for row in run.accuracy if row["layer"] == 2]


def test_another_seed_is_another_split(run: Run) -> None:
    other = again(run, seed=1, name="seed-1")
    assert other.accuracy != run.accuracy
    assert other.results["n_sentences"] != run.results["n_sentences"] or other.neurons != run.neurons


def test_the_randomly_initialised_model_has_a_cache_of_its_own(run: Run) -> None:
    twin = again(run, random_weights=True, name="twin")
    assert twin.neurons != run.neurons
    assert twin.results["cache"]["train"]["key"]["random_weights_seed"] == 0


def test_a_test_corpus_replaces_the_test_part(run: Run, sentences: list[str], tmp_path: Path) -> None:
    test_corpus = tmp_path / "test.txt"
    test_corpus.write_text(
        "\n".join([sentences[0], *(s.upper() + " indeed" for s in sentences[:40])]), encoding="utf-8"
    )
    made = again(run, test_corpus=str(test_corpus), name="test-corpus")
    assert made.results["n_sentences"]["test"] == len(set(test_corpus.read_text(encoding="utf-8").splitlines()))
    assert made.results["n_sentences"]["train"] > run.results["n_sentences"]["train"]


def treebank(sentences: Iterable[str]) -> str:
    """Write sentences as CoNLL-U, each with a range and an empty node behind its first word."""
    inserted = "1-2\tOne-two" + "\t_" * 8 + "\n1.1\tnothing" + "\t_" * 8 + "\n"
    return "\n".join(
        "".join(f"{i}\t{word}" + "\t_" * 8 + "\n" + inserted * (i == 1) for i, word in enumerate(text.split(), 1))
        for text in sentences
    )


def test_a_treebank_gives_the_ranking_of_its_running_text(run: Run, sentences: list[str], tmp_path: Path) -> None:
    corpus = tmp_path / "bank.conllu.gz"
    corpus.write_bytes(gzip.compress(treebank(sentences).encode()))
    made = again(run, corpus=str(corpus), name="treebank")
    assert made.accuracy == run.accuracy
    assert made.neurons == run.neurons


@pytest.mark.parametrize("suffix", ["txt", "conllu"])
def test_sentences_longer_than_the_model_are_cut_counted_and_reported(
    run: Run, sentences: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    lines = [*sentences[:100], "the " * 300 + "end", "a " * 300 + "end", "the " * 124 + "the."]  # the last just fits
    corpus = tmp_path / f"long.{suffix}"
    corpus.write_text(treebank(lines) if suffix == "conllu" else "\n".join(lines), encoding="utf-8")
    folder = extract(model=run.config["model"], layer=0, corpus=str(corpus), cache=str(tmp_path / "cache"))
    printed = capsys.readouterr()
    told = [line for line in printed.err.splitlines() if not line.startswith(f"read {corpus}: ")]
    assert told == [f"{corpus}: 2 sentences were longer than the model accepts and were cut"]
    tokens = Tokens.load(folder / "tokens.safetensors")
    assert tokens.lengths[-3:].tolist() == [128, 128, 128]
    full_stop = 124 if suffix == "conllu" else 125  # part of its word, or one of its own
    assert tokens.words[-128:].tolist() == [-1, *range(125), full_stop, -1]
    made = again(run, corpus=str(corpus), name=f"cut-{suffix}", cache=str(tmp_path / "cache"))
    assert made.results["cache"]["train"]["n_truncated"] == 2
    assert run.results["cache"]["train"]["n_truncated"] == 0


def test_a_test_corpus_may_be_one_sentence(run: Run, sentences: list[str], tmp_path: Path) -> None:
    test_corpus = tmp_path / "test.txt"
    test_corpus.write_text(sentences[0].upper(), encoding="utf-8")
    made = again(run, test_corpus=str(test_corpus), layer=0, name="one-sentence")
    assert made.results["n_sentences"]["test"] == 1


def test_special_tokens_are_examples_only_when_asked_for(run: Run) -> None:
    made = again(run, task_args={"min_count": 5, "special_tokens": "include"}, name="special")
    assert 0 in made.results["classes"]
    assert 0 not in run.results["classes"]
    assert made.accuracy[0]["n_train_tokens"] > run.accuracy[0]["n_train_tokens"]


def test_adam_says_how_far_it_stayed_from_the_optimum(run: Run) -> None:
    probe = ProbeOptions(solver="adam", batch_size=64)
    made = again(run, probe=probe, layer=0, trainer={"max_epochs": 2}, name="adam")
    assert made.accuracy[0]["optimality_gap"] > 10 * run.accuracy[0]["optimality_gap"]
    assert made.results["layers"][0]["converged"] is False


def test_a_probe_that_stopped_short_says_so(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    config = {**run.config, "trainer": {"max_epochs": 3}, "layer": 0, "quiet": False, "verbose": True, "name": "short"}
    made = fit(**{**config, "probe": ProbeOptions(), "wandb": NO_WANDB})
    assert made.results["layers"][0]["converged"] is False
    printed = capsys.readouterr().out
    assert "stopped short" in printed
    assert "may reflect the optimiser rather than the data" in printed


@pytest.mark.parametrize("layer", [[0], [0, 1]])
def test_nothing_is_said_twice(run: Run, layer: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    for verbose in (False, True):
        again(run, layer=layer, name=f"said-{len(layer)}-{verbose}", quiet=False, verbose=verbose)
        sentences = [line for line in capsys.readouterr().out.splitlines() if len(line.split()) > 8]
        assert len(sentences) == len(set(sentences)) > 3


def test_loaded_runs_are_lists_of_dicts_and_look_like_tables(run: Run) -> None:
    loaded = load_run(run.folder)
    assert loaded.accuracy == run.accuracy
    assert isinstance(loaded.neurons[0]["contribution"], float)
    assert "Test accuracy by layer" in repr(loaded)
    assert loaded._repr_html_().count("<table>") == 2
    assert loaded.top("3") == loaded.top(-1) == loaded.top(3) != loaded.top(2)
    for layer, typed in ((9, "9"), (-5, "-5"), ("six", '"six"')):
        for method in (loaded.top, loaded.hidden_states, lambda layer: loaded.neuron(layer, 0)):
            with pytest.raises(UserError, match=f"`layer={typed}`: .* has layers 0 to 3"):
                method(layer)


@pytest.mark.parametrize("layer", [[0], [0, 1, 2, 3]])
def test_quiet_leaves_out_tables_and_progress_but_no_sentence_and_no_warning(
    run: Run, layer: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    said: dict[bool, tuple[list[str], list[str]]] = {}
    for quiet in (False, True):
        capsys.readouterr()
        made = again(run, layer=layer, name=f"quiet-{quiet}-{len(layer)}", quiet=quiet)
        printed = capsys.readouterr()
        said[quiet] = printed.out.splitlines(), [one for one in printed.err.splitlines() if not one.startswith("[")]
    beginnings = *(f"layer {k}: accuracy" for k in layer), "Results: "
    sentences = [line for line in said[True][0] if not line.startswith(beginnings)]
    assert len(said[True][0]) == len(sentences) + len(beginnings)
    about = "position", made.results, made.config
    answer, doubts, _ = probes.run_sentences(made.accuracy, made.neurons, made.class_scores, *about)
    assert sentences == [*answer, *doubts]
    assert set(sentences) < set(said[False][0])  # what else is printed is tables
    assert any("do not read its ranking" in sentence for sentence in sentences)
    assert said[True][1] == said[False][1]
    assert "are too rare to be classes" in said[True][1][0]


def test_the_offline_run_holds_curves_tables_and_the_artifact(chosen: Run) -> None:
    made = chosen
    (tracked,) = read_offline_runs(made.folder)
    assert tracked.run["name"] == "chosen"
    assert tracked.config["task_args"] == {"min_count": 5}
    passes = [row["train/layer_01/objective"] for row in tracked.rows("train/layer_01/objective")]
    # The solver only ever accepts descents, though a trial point may lie higher.
    assert len(passes) == made.results["layers"][1]["n_passes"]
    assert passes[-1] < passes[0]
    assert [row["by_layer/accuracy"] for row in tracked.rows("by_layer/accuracy")] == [
        row["accuracy"] for row in made.accuracy
    ]
    assert tracked.step_metrics["by_layer/accuracy"] == "layer"
    assert [row["neuron"] for row in tracked.table("neurons/layer_02")] == [n["neuron"] for n in made.top(2, 1000)]
    (files,) = [files for _, kind, files in tracked.artifacts if kind == "probe"]
    assert set(files) == {
        "config.yaml", "results.json", "accuracy.csv", "neurons.csv", "classes.csv", "positions.csv",
        "class_scores.csv", "confusions.csv", "contexts.csv", "profiles.csv", "probe.safetensors",
        "contributions.safetensors", "report.html", *FIGURES,
    }  # fmt: skip
    (logged,) = tracked.rows("report")
    page = (tracked.folder / "files" / logged["report"]["path"]).read_bytes()
    # The page is the one that the command makes of the finished run.
    assert page == (made.folder / "report.html").read_bytes() == report([str(made.folder)]).read_bytes()
    # By these W&B groups the runs of several models, whose curves have the same names.
    assert {key: tracked.config[key] for key in ("model", "task", "layer", "seed")} == {
        "model": made.config["model"], "task": "position", "layer": "all", "seed": 0,
    }  # fmt: skip
    assert all((made.folder / path).is_file() for path in files.values())


def test_an_offline_run_has_validation_curves_over_passes_and_penalties(chosen: Run) -> None:
    (tracked,) = read_offline_runs(chosen.folder)
    penalty, n_passes = chosen.results["penalty"], max(row["n_passes"] for row in chosen.results["layers"])
    for layer in range(4):
        name = f"layer_{layer:02d}"
        passes = [row[f"val/{name}/cross_entropy"] for row in tracked.rows(f"val/{name}/cross_entropy")]
        assert len(passes) == n_passes == len(tracked.rows(f"val/{name}/accuracy"))
        key = f"by_log10_l2/{name}/validation_cross_entropy"
        tried = [row[key] for row in tracked.rows(key)]
        assert tried == penalty["validation_cross_entropy_by_layer"][str(layer)]
        assert [row["log10_l2"] for row in tracked.rows(key)] == pytest.approx(
            [math.log10(l2) for l2 in penalty["tried"]]
        )
        # The last pass is at the optimum, from which the probes of the penalties may be 3e-3 nats away.
        assert passes[-1] == pytest.approx(tried[penalty["tried"].index(penalty["l2"])], abs=0.02)


def test_an_offline_run_has_no_chart_of_one_point_and_no_mean_over_layers(chosen: Run) -> None:
    (tracked,) = read_offline_runs(chosen.folder)
    counts = Counter(key for row in tracked.history for key, value in row.items() if isinstance(value, int | float))
    assert len(counts) > 20
    assert [key for key, n in counts.items() if n < 2] == []
    scalars = {key: value for key, value in tracked.summary.items() if isinstance(value, int | float)}
    unnamed = {key for key in scalars if "layer" not in key and not key.startswith("_")}
    assert unnamed == {"best_accuracy", "trainer/global_step"}
    for row in chosen.accuracy:
        for column in ("accuracy", "cross_entropy", "information"):
            assert scalars[f"layer_{row['layer']:02d}/{column}"] == row[column]
        assert scalars[f"test/layer_{row['layer']:02d}/accuracy"] == pytest.approx(row["accuracy"], abs=1e-6)


def test_an_online_run_arrives_at_the_server(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with WandbServer() as server:
        for variable, value in server.environment.items():
            monkeypatch.setenv(variable, value)
        made = fit(**{**run.config, "probe": ProbeOptions(), "layer": 1, "wandb": WandbOptions(), "name": "online"})
    assert made is not None
    (served,) = server.runs.values()
    assert served.exit_code == 0
    # A value that was measured once makes no chart of one point.
    assert served.summary["by_layer/accuracy"] == served.summary["best_accuracy"] == made.accuracy[0]["accuracy"]
    assert not any("by_layer/accuracy" in row for row in served.history)
    assert any("train/layer_01/objective" in row for row in served.history)


def test_the_builtin_model_knows_position_in_low_layers_and_loses_it_with_depth(
    part_of_builtin: Path, builtin_cache: Path, tmp_path: Path
) -> None:
    """The README's first figure, at a fortieth of the work: layers 0 and 6 of the real trained weights."""
    args = ["--corpus", str(part_of_builtin), "--layer", "0,6", "--runs", str(tmp_path), "--name", "real"]
    args += ["--wandb.mode", "disabled"]
    args += ["--cache", str(builtin_cache), "--trainer.accelerator", "cpu"]
    # The evidence for layer 6 is what `make fit` shows.
    assert main_run(COMMANDS, ["fit", *args, *BARE_ARGS, "--probe.l2=1e-4", "--probe.tolerance=1e-3"]) == 0
    run = load_run(tmp_path / "real")
    low, high = run.accuracy
    assert low["accuracy"] > 0.99
    assert 0.3 < high["accuracy"] < 0.45
    assert high["majority_accuracy"] < 0.05
    assert max(low["optimality_gap"], high["optimality_gap"]) <= 1e-3
    # The last layer's three LayerNorm gains near 0 make three dead neurons.
    dead = [row for row in run.top(6, 1000) if row["flag"] == "dead"]
    assert len(dead) == 3
    assert {(row["contribution"], row["eta_squared"], row["eta_squared_z"]) for row in dead} == {(0.0, 0.0, 0.0)}
    assert yaml.safe_load((run.folder / "config.yaml").read_text(encoding="utf-8"))["model"] == "minilm"


# --- W&B that cannot be reached ---


@pytest.mark.patient
@pytest.mark.parametrize("how", [{}, {"delay_s": 4.0}, {"dies_after": 5}, {"hangs_after": 20}], ids=str)
def test_a_server_that_is_absent_slow_or_dying_costs_one_warning(
    run: Run, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"unreached-{len(how)}-{'-'.join(how)}"
    args = ["fit", "--config", str(run.folder / "config.yaml"), "--name", name, "--wandb.mode", "online"]
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(WandbServer(**how))
        for variable, value in server.environment.items():
            monkeypatch.setenv(variable, value)
        if not how:  # nobody listens there any more
            stack.close()
        status = main_run(COMMANDS, args)
    output = capsys.readouterr()
    assert status == 0
    (warning,) = [line for line in output.err.splitlines() if "W&B" in line]
    assert "the results on disk are complete" in warning
    made = load_run(run.folder.parent / name)
    assert (made.neurons, made.accuracy) == (run.neurons, run.accuracy)
    (tracked,) = read_offline_runs(made.folder)
    assert tracked.exit_code == 0
    assert [row["neuron"] for row in tracked.table("neurons/layer_02")] == [n["neuron"] for n in made.top(2, 1000)]
    assert f"cd {made.folder} && wandb sync wandb/{tracked.folder.name}" in output.out


def test_a_layer_that_says_nothing_of_the_labels_is_not_ranked_in_earnest(
    checkpoints: dict[str, Path], sentences: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generator, lines = torch.Generator().manual_seed(0), []
    words = sorted({word for sentence in sentences for word in sentence.split()})
    for _ in range(300):
        drawn = torch.randint(len(words), (8,), generator=generator).tolist()
        labels = torch.randint(2, (8,), generator=generator).tolist()
        lines += [*(f"{words[i]}\t{'ab'[label]}" for i, label in zip(drawn, labels, strict=True)), ""]
    (tmp_path / "noise.tsv").write_text("\n".join(lines), encoding="utf-8")
    made = fit(
        model=str(checkpoints["bert"]), corpus=str(tmp_path / "noise.tsv"), task="label", runs=str(tmp_path / "runs"),
        name="noise", layer=2, wandb=NO_WANDB, task_args={"min_count": 5}, verbose=True, **BARE,
    )  # fmt: skip
    (row,) = made.accuracy
    assert row["flag"] == "uninformative"
    assert row["information_low"] <= 0
    assert {neuron["flag"] for neuron in made.neurons} <= {"uninformative", "dead"}
    said = " ".join(capsys.readouterr().out.split())
    assert "Layer 2: do not read its ranking" in said
    assert "layer 2: not shown to be better in nats than a constant answer" in said
    assert "do not read its ranking" in (made.folder / "report.html").read_text(encoding="utf-8")


def test_what_the_probe_predicts_has_the_name_that_the_user_gives_it(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    named = again(run, label_name="place in the sentence", layer=[0], name=None, quiet=False, figure_format="svg")
    assert "may still show that place in the sentence can be decoded from this layer" in capsys.readouterr().out
    assert "Can place in the sentence be decoded from layer 0" in (named.folder / "report.html").read_text(
        encoding="utf-8"
    )
    for name in (" ", "two\nlines", "x" * 61):
        with pytest.raises(UserError, match=r"`label_name=.*: expected a name of 1 to 60 printable characters"):
            again(run, label_name=name, name=None)


def test_a_run_says_how_its_penalty_was_chosen_and_what_it_saves(run: Run, chosen: Run) -> None:
    assert chosen.config["probe"]["l2"] == "auto"
    penalty = chosen.results["penalty"]
    at = penalty["tried"].index(penalty["l2"])
    assert penalty["validation_cross_entropy"][at] == min(penalty["validation_cross_entropy"])
    for row in chosen.accuracy:
        assert row["information"] == pytest.approx(row["prior_cross_entropy"] - row["cross_entropy"], abs=1e-5)
        assert not (row["information_low"] > row["information"])
        assert not (row["information"] > row["information_high"])
        assert row["train_cross_entropy"] < row["prior_cross_entropy"]
    fixed = again(run, name="fixed", probe=ProbeOptions(l2=penalty["l2"]))
    assert fixed.results["penalty"] == {"l2": penalty["l2"]}
    # One comes from the end of the path, the other from 0, and both end within 3e-6 nats of one optimum.
    for row, other in zip(chosen.accuracy, fixed.accuracy, strict=True):
        assert row["cross_entropy"] == pytest.approx(other["cross_entropy"], abs=0.02)


def test_neurons_are_also_compared_with_the_token_held_fixed(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = fit(
        model=str(checkpoints["bert"]), corpus=str(corpus_file), layer=[0, 1], runs=str(tmp_path), control_for="token",
        task_args={"min_count": 5}, wandb=NO_WANDB, verbose=True, **{**BARE, "controls": "token"},
    )  # fmt: skip
    for row in made.accuracy:
        assert row["above_covariate_low"] <= row["accuracy"] - row["covariate_accuracy"] <= row["above_covariate_high"]
    assert 0 < made.results["covariate"]["n_tokens"] <= made.accuracy[0]["n_train_tokens"]
    assert {
        "within_covariate_eta_squared",
        "within_covariate_z",
        "within_covariate_p",
        "within_covariate_q",
    } <= made.neurons[0].keys()
    # The embeddings are a sum of the token's and the position's, so that the token explains nothing of the position.
    strongest = max((row for row in made.neurons if row["layer"] == 0), key=lambda row: row["eta_squared"])
    assert strongest["within_covariate_q"] < 0.01
    assert strongest["within_covariate_eta_squared"] > strongest["eta_squared"]
    said = capsys.readouterr().out
    assert "Neurons are also compared within values of the token: among" in said
    assert "covariate alone" in said
    assert load_run(made.folder).neurons[0]["within_covariate_p"] == made.neurons[0]["within_covariate_p"]


def test_what_cannot_be_held_fixed_is_refused_before_the_model_reads(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    for given, message in (("genre", "nor a column of"), ("position", "no two training tokens with the same value")):
        with pytest.raises(UserError, match=f'`control_for="{given}"`.*{message}'):
            fit(
                model=str(checkpoints["bert"]),
                corpus=str(corpus_file),
                runs=str(tmp_path),
                control_for=given,
                wandb=NO_WANDB,
            )
    assert not list(tmp_path.rglob("config.yaml"))
