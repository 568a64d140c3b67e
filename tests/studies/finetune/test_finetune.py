"""`finetune`, from a labelled text to scores by start, seed and order, with the head on any layer."""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from conftest import make_sentences
from families import FAMILIES
from probing import Result, finetune, fit
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.data.labelling import is_target
from probing.errors import UserError
from probing.models import load_config, load_encoder, resolve_model
from probing.models.examination import examination_inputs
from probing.models.examination import run as lower_run
from probing.models.loading import load_with_head
from probing.runs import SectionPlace
from probing.runs.loading import load_run
from probing.studies.finetune.tables import _thinned
from probing.studies.finetune.training import Side
from typed import assert_same_files, processes_of

pytestmark = pytest.mark.slow

FAST: dict[str, Any] = {"learning_rate": 1e-2, "epochs": 8, "warm_up": 0.3, "batch_tokens": 200}
NO_WANDB = {"mode": "disabled"}
OPTIONS: dict[str, Any] = {"seeds": 1, "orders": 1, "starts": "pretrained", "quiet": True, "wandb": NO_WANDB}


def written(path: Path, rows: list[tuple[str, str]]) -> str:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return str(path)


def with_word(n: int = 240) -> list[tuple[str, str]]:
    """Return sentences, half of which have the word `probe` at the end, with a label that says so."""
    plain = [" ".join(word for word in text.split() if word != "probe") for text in make_sentences(n, longest=8)]
    return [(f"{text} probe", "yes") if i % 2 else (f"{text} layer", "no") for i, text in enumerate(plain)]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(tmp_path_factory.mktemp("planted") / "planted.csv", with_word())


@pytest.fixture(scope="module")
def made(one_block: Path, planted: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return finetune(
        model=str(one_block), corpus=planted, runs=str(tmp_path_factory.mktemp("runs")), name="planted",
        tuning=FAST, **{**OPTIONS, "orders": 2, "starts": "all"},
    )  # fmt: skip


def test_a_label_that_is_a_word_is_learnt(made: Any) -> None:
    assert len(made.tunings) == 6
    scores = [row["score"] for row in made.tunings if row["start"] == "pretrained"]
    assert max(scores) == 1.0  # of nine seeds and orders, eight; the ninth has one of 21 test sentences wrong
    assert min(scores) > 0.9
    by_answer = {row["answer"]: row for row in made.scores}
    assert by_answer["majority"]["score"] < by_answer["bag"]["score"] < 1
    (row,) = [row for row in made.differences if (row["answer"], row["against"]) == ("pretrained", "majority")]
    assert row["low"] > 0
    assert any(re.search(r"tuned, is above .*the majority class", sentence) for sentence in made.conclusions())


def test_shuffled_labels_are_not_learnt_where_true_ones_are(made: Any) -> None:
    assert all(row["score_low"] < 0.65 for row in made.tunings if row["start"] == "shuffled")
    by_pair = {(row["answer"], row["against"]): row for row in made.differences}
    assert by_pair["shuffled", "majority"]["low"] < 0.1
    assert by_pair["pretrained", "shuffled"]["difference"] > 0.2
    said = " ".join(made.conclusions())
    assert "The pretrained model, tuned, is above the pretrained model with shuffled labels (" in said
    assert re.search("The pretrained model with shuffled labels, tuned, is (not distinguished from|below) ", said)


@pytest.mark.parametrize(
    "targets", [torch.tensor([-100, 0, 1, 1, -100, 2, 0, 1]), torch.tensor([0.5, torch.nan, 1, 2, 3, 4])]
)
def test_labels_are_exchanged_among_what_has_one_and_each_seed_draws_its_own(targets: torch.Tensor) -> None:
    side = Side(None, None, targets, "tokens", {}, 0)  # type: ignore[arg-type]
    drawn = [side.with_shuffled_targets(seed).targets for seed in range(20)]
    for found in drawn:
        assert torch.equal(is_target(found), is_target(targets))
        assert sorted(found[is_target(found)].tolist()) == sorted(targets[is_target(targets)].tolist())
    assert len({tuple(found[is_target(found)].tolist()) for found in drawn}) > 3
    assert torch.equal(side.targets.nan_to_num(), targets.nan_to_num())


def score_of_plain_model(folder: Path, planted: str) -> float:
    """Return the accuracy of a checkpoint on the test sentences, read one by one by transformers alone."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from probing.text import load_corpus, splits_of

    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    corpus = load_corpus(planted)
    right = []
    for text, label, side in zip(
        corpus.sentences, corpus.sentence_columns["label"], splits_of(corpus, 0), strict=True
    ):  # fmt: skip
        if side == "test":
            logits = model.eval()(**tokenizer(text, return_tensors="pt")).logits
            right.append(model.config.id2label[int(logits.argmax())] == label)
    return float(np.mean(right))


def test_a_decoder_without_a_padding_token_reads_each_sentence_to_its_end(
    checkpoints: dict[str, Path], planted: str, tmp_path: Path
) -> None:
    """The ids of the tiny model's configuration are those of a larger vocabulary."""
    found = finetune(
        model=str(checkpoints["gpt2"]), corpus=planted, runs=str(tmp_path), tuning={**FAST, "epochs": 2}, **OPTIONS
    )
    folder = found.folder / "checkpoints" / "pretrained-seed0-order0"
    assert found.tunings[0]["score"] == score_of_plain_model(folder, planted)


def test_a_checkpoint_is_an_ordinary_model_folder(made: Any, planted: str, tmp_path: Path) -> None:
    """It gives the score that was noted, and other commands read it."""
    folder = made.folder / "checkpoints" / "pretrained-seed0-order1"
    (row,) = [row for row in made.tunings if (row["start"], row["seed"], row["order_seed"]) == ("pretrained", 0, 1)]
    assert score_of_plain_model(folder, planted) == row["score"]
    bare: dict[str, Any] = {"replicates": 0, "controls": "none", "evidence": "none", "probe": {"l2": 1e-2}}
    probed = fit(
        model=str(folder), corpus=planted, layer=1, task="sentence_label", runs=str(tmp_path), quiet=True,
        wandb={"mode": "disabled"}, **bare,
    )  # fmt: skip
    assert probed.accuracy[0]["n_classes"] == 2


def test_without_steps_the_model_is_its_start_to_the_bit(
    checkpoints: dict[str, Path], planted: str, tmp_path: Path
) -> None:
    found = finetune(
        model=str(checkpoints["bert"]), corpus=planted, runs=str(tmp_path), tuning={"epochs": 0}, **OPTIONS
    )
    start = load_encoder(resolve_model(str(checkpoints["bert"]))).state_dict()
    after = load_encoder(resolve_model(str(found.folder / "checkpoints" / "pretrained-seed0-order0"))).state_dict()
    shared = [name for name in start if "pooler" not in name]
    assert all(torch.equal(start[name], after[name]) for name in shared)
    assert not found.tuning_curves
    assert "Losses by step" not in found.report().read_text(encoding="utf-8")


def test_each_tuning_ends_elsewhere_and_each_order_has_its_own_steps(made: Any) -> None:
    weights = {
        folder.name: load_file(folder / "model.safetensors") for folder in (made.folder / "checkpoints").iterdir()
    }
    assert len({tuple(one["classifier.weight"].flatten().tolist()) for one in weights.values()}) == 6
    curves: dict[tuple[Any, ...], list[int]] = {}
    for row in made.tuning_curves:
        curves.setdefault((row["start"], row["seed"], row["order_seed"]), []).append(row["step"])
    # A step has the same sentences for every seed of an order, and every start.
    assert len({tuple(steps) for (_, _, order), steps in curves.items() if order == 0}) == 1


@pytest.mark.parametrize("of", ["tokens", "sentences"])
def test_a_new_head_has_the_model_below_it_unchanged(of: Any, checkpoints: dict[str, Path]) -> None:
    source = resolve_model(str(checkpoints["distilbert"]))
    models = [load_with_head(source, of, 3, seed) for seed in (0, 0, 1)]
    encoder = load_encoder(source).state_dict()
    assert all(torch.equal(value, encoder[name]) for name, value in models[0].base_model.state_dict().items())
    heads = [model.classifier.weight for model in models]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    drawn = load_with_head(source, of, 3, 0, random_weights=True)
    assert torch.equal(drawn.classifier.weight, heads[0])
    assert not all(torch.equal(value, encoder[name]) for name, value in drawn.base_model.state_dict().items())


def test_frozen_layers_stay_and_others_change(checkpoints: dict[str, Path], planted: str, tmp_path: Path) -> None:
    found = finetune(
        model=str(checkpoints["bert"]), corpus=planted, runs=str(tmp_path),
        tuning={**FAST, "epochs": 1, "frozen": 2, "layer_decay": 0.5}, **OPTIONS,
    )  # fmt: skip
    start = load_encoder(resolve_model(str(checkpoints["bert"]))).state_dict()
    after = load_encoder(resolve_model(str(found.folder / "checkpoints" / "pretrained-seed0-order0"))).state_dict()
    for name in start:
        is_frozen = name.startswith(("embeddings.", "encoder.layer.0."))
        # The bias of keys changes no attention, so that its gradient is 0 but for rounding.
        if "pooler" not in name and "key.bias" not in name:
            assert torch.equal(start[name], after[name]) is is_frozen, name


def test_tokens_and_numbers_are_predicted_too(one_block: Path, tmp_path: Path) -> None:
    words = tmp_path / "words.tsv"
    labelled = ("".join(f"{word}\t{'abc'[len(word) % 3]}\n" for word in text.split()) for text in make_sentences(150))
    words.write_text("\n".join(labelled), encoding="utf-8")
    options: dict[str, Any] = {"model": str(one_block), "runs": str(tmp_path), **OPTIONS}
    of_words = finetune(corpus=str(words), task="label", name="words", tuning=FAST, **options)
    assert of_words.tunings[0]["score"] > 0.7
    assert of_words.scores[1]["score"] < 0.6
    rows = [(text, str(1.0 if label == "yes" else -1.5)) for text, label in with_word()]
    of_numbers = finetune(
        corpus=written(tmp_path / "numbers.csv", rows), task="sentence_label", task_args={"numbers": True},
        name="numbers", tuning=FAST, **options,
    )  # fmt: skip
    assert of_numbers.results["numbers"]
    assert of_numbers.tunings[0]["score"] > 0.8
    by_answer = {row["answer"]: row["score"] for row in of_numbers.scores}
    assert by_answer["mean"] == 0
    assert 0.1 < by_answer["bag"] < 1
    assert "R²" in of_numbers.answer()[0]


def test_a_killed_run_goes_on_and_ends_in_the_same_bytes(one_block: Path, planted: str, tmp_path: Path) -> None:
    def args(place: str) -> list[str]:
        return [
            "finetune", "--model", str(one_block), "--corpus", planted, "--runs", str(tmp_path / place),
            "--name", "killed", "--seeds", "1", "--orders", "2", "--starts", "pretrained", "--tuning.epochs", "2",
            "--tuning.save_every", "5", "--tuning.batch_tokens", "200", "--wandb.mode", "disabled", "--quiet",
            "--trainer.accelerator", "cpu",
        ]  # fmt: skip

    assert run(COMMANDS, args("whole")) == 0
    assert processes_of(args("broken"), ("-order1.ckpt", True), {}) == [-signal.SIGKILL]
    assert list((tmp_path / "broken" / "killed.partial" / "state").glob("*-order1.ckpt"))
    assert run(COMMANDS, args("broken")) == 0
    assert_same_files(tmp_path / "whole" / "killed", tmp_path / "broken" / "killed")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"starts": "trained"}, r"`starts=\"trained\"`"),
        ({"seeds": 0}, r"`seeds=0`"),
        ({"tuning": {"epochs": -1}}, r"`tuning.epochs=-1`"),
        (
            {"tuning": {"frozen": 9}},
            r"`tuning={.frozen.: 9}`: the model has 4 layers under its head",
        ),
        ({"task": "sentence_label", "task_args": {"min_count": 10_000}}, "leave 0 classes"),
        ({"tuning": {"learning_rate": 1e20}}, "the training diverged at step"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(
    options: dict[str, Any], words: str, checkpoints: dict[str, Path], planted: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        finetune(**{"model": str(checkpoints["bert"]), "corpus": planted, "runs": str(tmp_path), **OPTIONS, **options})
    assert not [path for path in tmp_path.iterdir() if path.name != "cache"]


def test_a_family_without_such_a_head_is_refused(checkpoints: dict[str, Path], planted: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="transformers has no head of sentences for it that reads its encoder alone"):
        finetune(model=str(checkpoints["t5"]), corpus=planted, runs=str(tmp_path), **OPTIONS)


def test_the_results_are_read_again(made: Any) -> None:
    again = load_run(made.folder)
    assert [dict(row) for row in again.scores] == [dict(row) for row in made.scores]
    assert again.answer() == made.answer()
    assert "static vectors" in repr(again)
    page = again.report().read_text(encoding="utf-8")
    assert "Fine-tuning" in page
    assert "the score of one tuning varies by" in page
    assert "(shown as static vectors) is a linear probe" in unescape(page)  # of the table that is shown


def test_a_page_has_the_score_of_each_tuning_beside_the_baselines_and_its_losses(made: Any, tmp_path: Path) -> None:
    section = unescape(made.study.section(made, SectionPlace("here", 0, 1000)))
    for row in made.tunings:
        start = "shuffled labels" if row["start"] == "shuffled" else row["start"]
        named = f"{start}, seed {row['seed']}, order {row['order_seed']}, tuning"
        # The point and its interval both say so.
        (found,) = set(re.findall(rf"<title>{named} \d+: ([0-9.]+) \(([0-9.]+) to ([0-9.]+)\)</title>", section))
        assert found == tuple(f"{row[name]:.3f}" for name in ("score", "score_low", "score_high"))
    baselines = {row["answer"]: row["score"] for row in made.scores}
    assert f"<title>the majority class, tuning 0: {baselines['majority']:.3f}</title>" in section
    assert f"<title>a bag of static vectors, tuning 5: {baselines['bag']:.3f}</title>" in section
    last = {row["start"]: row for row in made.tuning_curves if row.get("validation_loss") is not None}["random"]
    which = f"seed {last['seed']}, order {last['order_seed']}, step {last['step']}"
    assert f"<title>random, validation, {which}: {last['validation_loss']:.3f}</title>" in section
    assert "Differences: a row per pair of answers" in section  # which the terminal says are in a report


def test_a_curve_of_few_points_has_the_mean_loss_of_all_steps() -> None:
    noted = [(3, 2.0), *((step, 1.0 / step) for step in range(4, 60))]
    curve = [{"step": step, "train_loss": loss} for step, loss in noted]
    steps, losses = _thinned(curve)
    assert len(steps) <= 12
    assert steps[-1] == 59
    before = [0, *steps[:-1]]
    mean = sum(loss * (step - first) for step, first, loss in zip(steps, before, losses, strict=True)) / 59
    assert mean == pytest.approx((3 * 2.0 + sum(loss for _, loss in noted[1:])) / 59)
    assert _thinned(curve[:5]) == ([3, 4, 5, 6, 7], [loss for _, loss in noted[:5]])


@pytest.mark.several
def test_two_processes_share_each_batch(one_block: Path, planted: str, tmp_path: Path) -> None:
    options = [f"--tuning.{name}={value}" for name, value in FAST.items()]
    args = [
        sys.executable, "-m", "probing", "finetune", "--model", str(one_block), "--corpus", planted,
        "--runs", str(tmp_path), "--name", "two", "--seeds", "1", "--orders", "1", "--starts", "pretrained", "--quiet",
        "--wandb.mode", "disabled", "--trainer.accelerator", "cpu", "--trainer.devices", "2", "--trainer.strategy=ddp",
        *options,
    ]  # fmt: skip
    subprocess.run(args, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    made = load_run(tmp_path / "two")
    assert made.tunings[0]["score"] > 0.9
    assert made.tunings[0]["steps"] == made.tuning_curves[-1]["step"]
    assert {row["answer"] for row in made.scores} == {"pretrained", "majority", "bag"}


WORDS = [f"{'probe' if i % 2 else 'layer'} {'token ' * (i % 5)}reads {i}" for i in range(120)]
# The block of the tiny model that is left out.
TOP = "encoder.layer.2."
# Families whose lower blocks are other ones in a smaller model, or which have no head of sentences.
OTHERS = ("esm",)


def lower_made(model: Path, runs: Path, **tuning: Any) -> Result:
    text = runs / "text.csv"
    text.parent.mkdir(exist_ok=True)
    rows = "".join(f"{one},{'yes' if one.startswith('probe') else 'no'}\n" for one in WORDS)
    text.write_text(f"text,label\n{rows}", encoding="utf-8")
    return finetune(
        model=str(model), corpus=str(text), runs=str(runs), name="made", seeds=1, orders=1, starts="pretrained,random",
        tuning={"learning_rate": 3e-3, "epochs": 3, "batch_tokens": 100, **tuning}, quiet=True,
        wandb={"mode": "disabled"},
    )  # fmt: skip


def states(folder: Path, model: Path | None = None) -> dict[int, Any]:
    """Return the hidden states of a model in a folder, of the examination's tokens of another."""
    encoder = load_encoder(resolve_model(str(folder)))
    inputs = examination_inputs(load_encoder(resolve_model(str(model or folder))), 0)
    with torch.inference_mode():
        return dict(enumerate(lower_run(encoder, inputs, output_hidden_states=True).states))


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "modernbert", "gpt2"])
def test_a_checkpoint_has_the_blocks_up_to_the_head(family: str, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    found = lower_made(checkpoints[family], tmp_path, layer=1, epochs=0)
    folders = sorted((found.folder / "checkpoints").iterdir())
    assert [load_config(resolve_model(str(folder))).num_hidden_layers for folder in folders] == [1, 1]
    pretrained, before = (states(folder, checkpoints[family]) for folder in (folders[0], checkpoints[family]))
    assert len(pretrained) == 2
    assert torch.equal(pretrained[0], before[0])  # layer 1 may have a norm behind it
    if family in ("bert", "roberta", "distilbert"):
        assert torch.equal(pretrained[1], before[1])


def test_the_last_layer_by_its_number_is_the_default_to_the_bit(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    folders = [
        lower_made(checkpoints["bert"], tmp_path / f"of{i}", **own).folder / "checkpoints"
        for i, own in enumerate([{}, {"layer": 3}, {"layer": -1}])
    ]
    for other in folders[1:]:
        for start in ("pretrained-seed0-order0", "random-seed0-order0"):
            files = [{file.name: file.read_bytes() for file in (one / start).iterdir()} for one in (folders[0], other)]
            assert files[0] == files[1]


def test_a_lower_layer_counts_from_the_end_and_the_head_is_tuned_there(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    by_number, from_the_end = (lower_made(checkpoints["bert"], tmp_path / str(k), layer=k) for k in (2, -2))
    assert [dict(row) for row in by_number.tunings] == [dict(row) for row in from_the_end.tunings]
    row = next(row for row in by_number.tunings if row["start"] == "pretrained")
    assert row["score"] == 1
    assert (
        "tiny-bert with its head on layer 2, tuned from the pretrained model: accuracy 1.000" in by_number.answer()[0]
    )
    assert "tiny-bert with its head on layer -2, tuned from the pretrained" in from_the_end.answer()[0]
    start, tuned = (
        load_encoder(resolve_model(str(folder))).state_dict()
        for folder in (checkpoints["bert"], by_number.folder / "checkpoints" / "pretrained-seed0-order0")
    )
    assert {name for name in start if name not in tuned} == {name for name in start if name.startswith(TOP)}
    # The bias of keys changes no attention, so that its gradient is 0 but for rounding.
    assert all(not torch.equal(start[name], tuned[name]) for name in tuned if "key.bias" not in name)


@pytest.mark.parametrize("layer", [0, 4, -4])
def test_a_layer_that_the_model_does_not_have_is_refused(
    layer: int, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=rf"`tuning={{.layer.: {layer}}}`: .* has 3 blocks; expected .* 1 to 3, or -1"):
        lower_made(checkpoints["bert"], tmp_path, layer=layer)


def test_every_family_with_a_head_does_without_its_upper_blocks_or_is_refused(checkpoints: dict[str, Path]) -> None:
    refused = {}
    for family in FAMILIES:
        source = resolve_model(str(checkpoints[family]))
        try:
            load_with_head(source, "sentences", 2, 0)
        except UserError:
            continue  # it has no head in the whole model either
        try:
            model = load_with_head(source, "sentences", 2, 0, layer=-2)
        except UserError as error:
            refused[family] = str(error)
            continue
        assert model.config.num_hidden_layers == load_config(source).num_hidden_layers - 1
        encoder: Any = load_encoder(source)
        own, whole = (one.get_input_embeddings().weight for one in (model.base_model, encoder))
        assert torch.equal(own, whole)
    assert set(refused) == set(OTHERS)
    assert all("do not do alone what they do in the whole model" in words for words in refused.values())
