"""`ablate --readouts tuned=RUN`: what the task of a tuned model loses, of sentences and of pairs."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from conftest import make_sentences
from probing import Result, WandbOptions, ablate, finetune
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.downstream.labelled_pairs import pair_text, read_parts
from probing.errors import UserError
from probing.models import load_tokenizer, resolve_model
from probing.models.loading import load_tuned
from probing.runs.loading import load_run
from small_data import entailment_of, marked_pairs, sentence_pairs, write_sick

pytestmark = pytest.mark.slow

NO_WANDB = WandbOptions("disabled")
OPTIONS: dict[str, Any] = {"quiet": True, "wandb": NO_WANDB}
TUNING: dict[str, Any] = {"seeds": 1, "orders": 2, "starts": "pretrained"}
# The head that alone carries the label.
HEAD = "2-1"


def written(path: Path, rows: list[tuple[str, str]]) -> str:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return str(path)


def with_word(n: int = 800) -> list[tuple[str, str]]:
    """Return sentences, half of which have the word `probe`, with a label that says so."""
    plain = [
        " ".join(word for word in text.split() if "probe" not in word.lower()) for text in make_sentences(n, longest=8)
    ]
    return [(f"{text} probe", "yes") if i % 2 else (f"{text} layer", "no") for i, text in enumerate(plain)]


def only_one_head_matters(folder: Path) -> None:
    """Change the weights of a checkpoint: head 2-1 copies the mark of the word `probe` to where the classifier reads.

    Heads of all blocks attend to every token alike. What the others give is not read, and neither is what feed-forward
    layers give.
    """
    model, tokenizer = load_tuned(resolve_model(str(folder)), "sentences"), load_tokenizer(resolve_model(str(folder)))
    (probe,) = tokenizer("probe", add_special_tokens=False)["input_ids"]
    own, mark, read = model.base_model, (0, 1), (5, 6)
    with torch.no_grad():
        for table in (own.embeddings.word_embeddings, own.embeddings.position_embeddings):
            table.weight[:, [*mark, *read]] = 0
        own.embeddings.token_type_embeddings.weight.zero_()
        for norm in (module for module in own.modules() if isinstance(module, nn.LayerNorm)):
            norm.reset_parameters()
        own.embeddings.word_embeddings.weight[probe, list(mark)] = torch.tensor([1.0, -1.0])
        for block in own.encoder.layer:
            part = block.attention
            for module in (part.output.dense, block.output.dense, part.self.query, part.self.key):
                module.weight.zero_()
                module.bias.zero_()
        part = own.encoder.layer[1].attention
        part.self.value.weight[0] = torch.zeros(16).index_put((torch.tensor(mark),), torch.tensor([1.0, -1.0]))
        part.self.value.bias[0] = 0
        part.output.dense.weight[list(read), 0] = torch.tensor([3.0, -3.0])
        nn.init.eye_(own.pooler.dense.weight)
        own.pooler.dense.bias.zero_()
        yes = model.config.label2id["yes"]
        model.classifier.weight.zero_()
        model.classifier.weight[yes, list(read)] = torch.tensor([2.0, -2.0])
        model.classifier.bias.copy_(torch.tensor([-0.3, 0.0] if yes == 0 else [0.0, -0.3]))
    model.save_pretrained(folder)


@pytest.fixture(scope="module")
def planted(place: Path, checkpoints: dict[str, Path]) -> Path:
    """A run whose second checkpoint was changed by hand."""
    made = finetune(
        model=str(checkpoints["bert"]), corpus=written(place / "planted.csv", with_word()), runs=str(place),
        name="planted", tuning={"epochs": 0}, **TUNING, **OPTIONS,
    )  # fmt: skip
    only_one_head_matters(made.folder / "checkpoints" / "pretrained-seed0-order1")
    return made.folder


def ablated(place: Path, task: Path, **options: Any) -> Result:
    return ablate(readouts=f"tuned={task}", runs=str(place), **OPTIONS, **options)


@pytest.fixture(scope="module")
def found(place: Path, planted: Path) -> Result:
    checkpoint = planted / "checkpoints" / "pretrained-seed0-order1"
    return ablated(place, checkpoint, kinds="zero,mean", prune="all", name="found")


def test_the_head_that_alone_carries_the_label_is_found(found: Result) -> None:
    heads = {row["unit"]: row for row in found.ablated if "-" in row["unit"] and row["kind"] == "zero"}
    assert len(heads) == 6
    assert {row["readout"] for row in heads.values()} == {"tuned"}
    assert heads[HEAD]["intact"] == 1
    assert heads[HEAD]["effect"] < -0.3
    assert heads[HEAD]["p_value"] < 1e-4
    assert all(row["effect"] == 0 for unit, row in heads.items() if unit != HEAD)
    layers = {row["unit"]: row["effect"] for row in found.ablated if row["kind"] == "zero" and "-" not in row["unit"]}
    assert layers == {"1": 0, "2": heads[HEAD]["effect"], "3": 0}
    lines = found.conclusions()
    (told,) = [
        line for line in lines if line.startswith(f"Task accuracy falls most without head {HEAD} (zeros): from 1.000")
    ]
    assert "it is lower without 1 of 6 heads and higher without 0" in told
    (rises,) = [line for line in lines if line.startswith("Of 6 heads, task accuracy rises")]
    assert "without 0 (zero; 0 by more than 1.645 standard errors, 0 to 1 expected by chance)" in rises
    assert "no more than expected by chance" in rises


def test_pruning_by_importance_keeps_the_head_to_the_last_on_the_other_half(found: Result) -> None:
    heads = {row["unit"]: row["importance"] for row in found.importance}
    assert max(heads, key=lambda unit: heads[unit]) == HEAD
    curve = [row for row in found.pruning if row["units"] == "heads" and row["order"] == "importance"]
    assert [row["n_ablated"] for row in curve] == list(range(7))
    assert curve[-1]["ablated"] == HEAD
    assert [row["value"] for row in curve[:-1]] == [1] * 6
    assert curve[-1]["value"] < 0.7
    n = {row["n"] for row in curve}
    assert n == {found.ablated[0]["n"] - found.ablated[0]["n"] // 2}
    (area,) = [row for row in found.pruning_areas if row["units"] == "heads" and row["order"] == "importance"]
    assert area["area"] > area["random_area"]
    assert {path.stem for path in (found.folder / "figures").glob("*.png")} >= {
        "heads_zero_tuned",
        "pruning_heads_tuned",
    }


def test_weights_that_carry_the_label_outlast_pruning_by_magnitude_and_not_at_random(found: Result) -> None:
    """All matrices but those of the head are zero or hardly matter, and its own few weights are large."""
    by_magnitude = [row for row in found.weight_pruning if row["order"] == "magnitude"]
    at_random = [row for row in found.weight_pruning if row["order"] == "random_mean"]
    assert [row["share"] for row in by_magnitude] == pytest.approx([i / 10 for i in range(10)])
    assert [row["value"] for row in by_magnitude] == [1] * 10
    assert at_random[-1]["value"] < 0.7
    assert at_random[-1]["high"] < 0
    line = found.conclusions()[-1]
    assert "task accuracy is worse than in the intact model at no share" in line
    assert "with randomly drawn weights pruned, from" in line
    shown = " ".join(repr(found).split())
    assert "Task accuracy, weights pruned" in shown
    assert "random, mean of draws" in shown
    assert (found.folder / "figures" / "pruning_weights_tuned.png").is_file()


@pytest.fixture(scope="module")
def shuffled(place: Path, checkpoints: dict[str, Path]) -> Result:
    """A model that tells the word, tested on sentences whose labels are drawn at random."""
    rows = with_word()
    labels = np.random.default_rng(0).permutation([label for _, label in rows[:200]]).tolist()
    tested = written(place / "shuffled.csv", list(zip([text for text, _ in rows[:200]], labels, strict=True)))
    return finetune(
        model=str(checkpoints["bert"]), corpus=written(place / "word.csv", rows[200:]), test_corpus=tested,
        runs=str(place), name="shuffled", tuning={"learning_rate": 3e-3, "epochs": 4, "batch_tokens": 200}, **TUNING,
        **OPTIONS,
    )  # fmt: skip


def test_with_shuffled_labels_no_head_is_claimed(place: Path, shuffled: Result) -> None:
    made = ablated(place, shuffled.folder, units="heads")
    assert any(row["effect"] != 0 for row in made.ablated)
    assert all(row["p_value"] > 0.05 for row in made.ablated)
    assert all(row["p_value"] > 0.05 for row in made.raising)
    assert all(row["p_value"] > 0.05 for row in made.better_without)
    lines = made.conclusions()
    assert any("Of 6 heads" in line and ": no more than expected by chance" in line for line in lines)
    assert any(line.startswith("No ablated head significantly improves task accuracy (selected") for line in lines)


def test_with_nothing_ablated_the_score_is_that_of_the_run(place: Path, shuffled: Result) -> None:
    """The tuned model is on its first checkpoint of those from trained weights, or on the one that is named."""
    for order in (0, 1):
        checkpoint = shuffled.folder / "checkpoints" / f"pretrained-seed0-order{order}"
        task = checkpoint if order else shuffled.folder
        made = ablated(place, task, units="layers", kinds="skip", layer=2)
        (row,) = made.ablated
        (tuned,) = [one for one in shuffled.tunings if one["order_seed"] == order]
        assert abs(row["intact"] - tuned["score"]) < 1e-6
        assert made.config["model"] == str(checkpoint)
        assert "as in its run" in made.conclusions()[0]
        assert made.results["tuned"]["checkpoint"] == f"pretrained-seed0-order{order}"
    few = ablated(place, shuffled.folder, units="layers", kinds="skip", layer=2, tokens=100)
    assert "of the 200 test targets of its run" in few.conclusions()[0]


@pytest.mark.parametrize("family", ["llama", "distilbert"])
def test_numbers_and_tokens_are_read_too(
    family: str, place: Path, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    words = tmp_path / "words.tsv"
    labelled = ("".join(f"{word}\t{'abc'[len(word) % 3]}\n" for word in text.split()) for text in make_sentences(150))
    words.write_text("\n".join(labelled), encoding="utf-8")
    how: dict[str, Any] = {
        "model": str(checkpoints[family]), "runs": str(tmp_path), "tuning": {"learning_rate": 3e-3, "epochs": 2},
        **TUNING, "orders": 1, **OPTIONS,
    }  # fmt: skip
    rows = [(text, "1.0" if of == "yes" else "-1.5") for text, of in with_word(240)]
    numbers = written(tmp_path / "numbers.csv", rows)
    of_runs = {
        "tuned": finetune(corpus=str(words), task="label", name="words", **how),
        "tuned_r2": finetune(corpus=numbers, task="sentence_label", task_args={"numbers": True}, name="numbers", **how),
    }
    for readout, tuned in of_runs.items():
        made = ablated(tmp_path, tuned.folder, kinds="zero", prune=True, layer=2)
        assert {row["readout"] for row in (*made.ablated, *made.importance, *made.pruning)} == {readout}
        assert made.ablated[0]["intact"] == pytest.approx(tuned.tunings[0]["score"], abs=1e-6)
        assert "as in its run" in made.conclusions()[0]
        assert any("R²" in line for line in made.conclusions()) == (readout == "tuned_r2")
        assert all(row["importance"] > 0 for row in made.importance)


def test_what_does_not_fit_is_refused(
    planted: Path, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit_like = tmp_path / "empty"
    fit_like.mkdir()
    other = written(tmp_path / "other.csv", [("a text", "yes"), ("another text", "no")])
    task = f"--readouts=tuned={planted}"
    refused = {
        "is no finished run: expected a folder that": [f"--readouts=tuned={fit_like}"],
        "`--readouts tuned` needs its data; give tuned=RUN": ["--readouts=tuned"],
        "both say which text is read; leave one of the two out": [task, "--run=runs/A"],
        "the run has no checkpoint nothing; it has pretrained-seed0-order0 and pretrained-seed0-order1":
            [f"--readouts=tuned={planted / 'checkpoints' / 'nothing'}"],
        "`--model minilm2`: with": [task, "--model=minilm2"],
        "is no text that": [task, f"--corpus={other}"],
        "`--readouts mlm` needs a model with a trained masked-language-model head": [f"{task},mlm"],
    }  # fmt: skip
    for message, options in refused.items():
        assert run(COMMANDS, ["ablate", f"--runs={tmp_path / 'runs'}", "--wandb.mode=disabled", *options]) == 2
        assert message in capsys.readouterr().err
    ablating = ablated(place, planted, units="layers", kinds="skip", layer=2)
    with pytest.raises(UserError, match="expected a run of `finetune`, found one of `ablate`"):
        ablated(place, ablating.folder)
    assert not (tmp_path / "runs").exists()


def test_a_page_shows_what_the_task_loses(found: Result) -> None:
    page = found.report().read_text(encoding="utf-8")
    assert "Task accuracy without the head (zero), in points" in page
    again = load_run(found.folder)
    assert again.conclusions() == found.conclusions()
    assert (
        json.loads((found.folder / "results.json").read_text(encoding="utf-8"))["tuned"]["n_tested"]
        == found.ablated[0]["n"]
    )


PAIR_OPTIONS: dict[str, Any] = {"quiet": True, "wandb": {"mode": "disabled"}}
TUNED: dict[str, Any] = {"seeds": 1, "orders": 1, "starts": "pretrained", "name": "tuned", **PAIR_OPTIONS}
PAIR_TUNING = {"learning_rate": 3e-3, "batch_tokens": 200}
CHECKPOINT = "checkpoints/pretrained-seed0-order0"


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tuned-pairs")


@pytest.fixture(scope="module")
def sick(room: Path) -> Path:
    """SICK's training part, in which the sentences of half the pairs share a word."""
    write_sick(room / "sick", "train", pairs := marked_pairs(400), entailment_of(pairs))
    return room / "sick"


@pytest.fixture(scope="module")
def tuned(checkpoints: dict[str, Path], sick: Path, room: Path) -> Result:
    return finetune(
        model=str(checkpoints["bert"]), pairs=str(sick), task_args={"column": "entailment"}, runs=str(room / "bert"),
        tuning={**PAIR_TUNING, "epochs": 5}, **TUNED,
    )  # fmt: skip


@pytest.fixture(scope="module")
def pair_found(tuned: Result, room: Path) -> Result:
    return ablate(readouts=f"tuned={tuned.folder}", kinds="zero", runs=str(room), name="found", **PAIR_OPTIONS)


def plain_score(tuned: Result, sick: Path, without: tuple[int, int] | None = None) -> float:
    """Return the accuracy of the checkpoint by transformers alone, pair by pair, possibly without a block's head."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = tuned.folder / CHECKPOINT
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    if without is not None:
        block, head = without
        dense = model.base_model.encoder.layer[block - 1].attention.output.dense
        d_head = dense.in_features // model.config.num_attention_heads
        with torch.no_grad():
            dense.weight[:, (head - 1) * d_head : head * d_head] = 0
    text = pair_text(str(sick), read_parts(str(sick), "--pairs", print), None, 0, "auto", print)
    corpus, sides = text.corpora[-1], text.splits[-1]
    right = []
    for (first, second), label, side in zip(
        corpus.pairs, corpus.sentence_columns["entailment"], sides, strict=True
    ):  # fmt: skip
        if side == "test":
            given = tokenizer(first, second, return_tensors="pt", return_token_type_ids=True)
            assert set(given["token_type_ids"].flatten().tolist()) == {0, 1}
            right.append(model.config.id2label[int(model.eval()(**given).logits.argmax())] == label)
    return float(np.mean(right))


def test_intact_it_has_the_score_of_its_run(tuned: Result, pair_found: Result, sick: Path) -> None:
    (score,) = [row["score"] for row in tuned.tunings]
    assert {row["intact"] for row in pair_found.ablated} == {score}
    assert score == plain_score(tuned, sick)
    assert pair_found.results["tuned"]["score"] == score
    assert pair_found.ablated[0]["n"] == tuned.results["n_examples"]["test"]


def test_without_a_head_it_has_the_score_of_the_plain_model_without_it(
    tuned: Result, pair_found: Result, sick: Path
) -> None:
    rows = {row["unit"]: row for row in pair_found.ablated if "-" in row["unit"]}
    assert len(rows) == 6
    for unit, row in rows.items():
        block, head = (int(number) for number in unit.split("-"))
        assert row["intact"] + row["effect"] == pytest.approx(plain_score(tuned, sick, (block, head))), unit
    assert len({row["effect"] for row in rows.values()}) > 1
    assert len(pair_found.importance) == 6
    assert max(row["importance"] for row in pair_found.importance) > 0


@pytest.mark.parametrize("family", ["roberta", "distilbert", "gpt2"])
def test_models_without_token_types_are_read_too(
    family: str, checkpoints: dict[str, Path], sick: Path, room: Path
) -> None:
    made = finetune(
        model=str(checkpoints[family]), pairs=str(sick), task_args={"column": "entailment"}, runs=str(room / family),
        tuning={**PAIR_TUNING, "epochs": 1}, **TUNED,
    )  # fmt: skip
    lost = ablate(
        readouts=f"tuned={made.folder}", units="layers", kinds="zero", layer=2, runs=str(room), **PAIR_OPTIONS
    )
    assert {row["intact"] for row in lost.ablated} == {made.tunings[0]["score"]}


def test_published_parts_and_numbers_are_read_as_the_run_read_them(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    """The relatedness of SICK, of which the training part and the trial part are given."""
    for part, n in (("train", 120), ("trial", 40)):
        write_sick(tmp_path / "sick", part, pairs := sentence_pairs(n, n), entailment_of(pairs))
    made = finetune(
        model=str(checkpoints["bert"]), pairs=str(tmp_path / "sick"), task_args={"column": "relatedness"},
        runs=str(tmp_path), tuning={**PAIR_TUNING, "epochs": 2}, **TUNED,
    )  # fmt: skip
    lost = ablate(
        readouts=f"tuned={made.folder}", units="layers", kinds="zero", layer=2, runs=str(tmp_path), **PAIR_OPTIONS
    )
    assert {row["readout"] for row in lost.ablated} == {"tuned_r2"}
    assert lost.ablated[0]["intact"] == pytest.approx(made.tunings[0]["score"], abs=1e-6)


def test_moved_pairs_are_named_and_others_refused(tuned: Result, sick: Path, tmp_path: Path) -> None:
    usual: dict[str, Any] = {"units": "layers", "kinds": "zero", "layer": 2, "runs": str(tmp_path), **PAIR_OPTIONS}
    moved = shutil.copytree(sick, tmp_path / "moved")
    lost = ablate(readouts=f"tuned={tuned.folder}", corpus=str(moved), **usual)
    assert {row["intact"] for row in lost.ablated} == {tuned.tunings[0]["score"]}
    write_sick(tmp_path / "others", "train", pairs := marked_pairs(80), entailment_of(pairs))
    with pytest.raises(UserError, match="are others than those that the run read; give their folder or file with"):
        ablate(readouts=f"tuned={tuned.folder}", corpus=str(tmp_path / "others"), **usual)
    single = tmp_path / "single.txt"
    single.write_text("\n".join(make_sentences(30)), encoding="utf-8")
    with pytest.raises(UserError, match="`corpus="):
        ablate(readouts=f"tuned={tuned.folder}", corpus=str(single), **usual)
