"""Neurons changed by the classes of a run's own task, from end to end on a tiny model with planted classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch

from conftest import BARE, make_sentences
from families import make_checkpoint, masked_lm
from probing import WandbOptions, fit, load_run, probe
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.interventions import READOUTS_OF_NEURONS
from probing.runs import Result
from probing.studies.ablate import ablate
from probing.studies.ablate.neuron_tables import conclusions, tables

USUAL: dict[str, Any] = {
    "quiet": True, "wandb": WandbOptions("disabled"), "trainer": {"accelerator": "cpu"}, "figure_format": "png",
}  # fmt: skip
CLASSES = ("blue", "green", "red")
PLANTED = [7, 21]
# Values of the planted neurons at words of each class.
VALUES = {"blue": (3.0, 0.0), "green": (-3.0, 3.0), "red": (0.0, -3.0)}


def class_of(piece: str) -> str:
    return CLASSES[crc32(piece.encode()) % 3]


@pytest.fixture(scope="module")
def model(place: Path, sentences: list[str]) -> Path:
    """A BERT of 36 neurons in two of which each piece has the values of its class, and whose blocks add little."""
    from transformers import BertConfig, BertModel

    folder = make_checkpoint(place / "planted", "bert", sentences)
    torch.manual_seed(0)
    vocabulary = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    size = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    shape: dict[str, Any] = {
        "hidden_size": 36,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    encoder = BertModel(BertConfig(vocab_size=size, max_position_embeddings=128, **shape))
    with torch.no_grad():
        table = encoder.embeddings.word_embeddings.weight
        table.mul_(10)
        for piece, index in vocabulary.items():
            table[index, PLANTED] = torch.tensor(VALUES[class_of(piece)])
    encoder.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def corpus(place: Path, model: Path) -> Path:
    """Sentences whose words have the class of their first piece."""
    from probing.models import load_tokenizer, resolve_model

    tokenizer = load_tokenizer(resolve_model(str(model)))
    rows = []
    for sentence in make_sentences(190, seed=372, longest=24):
        words = sentence.split()
        encoding = tokenizer(words, is_split_into_words=True).encodings[0]
        first = dict(reversed(list(zip(encoding.word_ids, encoding.tokens, strict=True))))
        rows.append({"words": words, "labels": [class_of(first[i]) for i in range(len(words))]})
    path = place / "words.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def fitted(place: Path, name: str, **options: Any) -> Path:
    made = fit(**{**BARE, **USUAL, "transform": "none", "name": name, "runs": str(place / "runs"), **options})
    return made.folder


def measured(place: Path, **options: Any) -> Result:
    return ablate(**{"runs": str(place / "runs"), **USUAL, **options})


@pytest.fixture(scope="module")
def labels(place: Path, model: Path, corpus: Path) -> Path:
    return fitted(place, "labels", model=str(model), corpus=str(corpus), task="label")


@pytest.fixture(scope="module")
def made(place: Path, labels: Path) -> Result:
    return measured(
        place, run=str(labels), neurons="ranked", top=2, layer=1, kinds="mean,direction,shuffled,translate",
        draws=9, retrain=1, readouts="task,position", name="made",
    )  # fmt: skip


def one_row(made: Result, **wanted: Any) -> dict[str, Any]:
    (row,) = [row for row in made.neuron_interventions if all(row.get(name) == is_ for name, is_ in wanted.items())]
    return row


@pytest.mark.slow
def test_the_runs_own_probes_read_its_own_classes(made: Result, labels: Path) -> None:
    accuracy = {row["layer"]: row["accuracy"] for row in load_run(labels).accuracy}
    found = {row["layer"]: row["intact"] for row in made.neuron_interventions if row["readout"] == "task"}
    assert found == {layer: pytest.approx(accuracy[layer]) for layer in (2, 3)}
    assert {row["task"] for row in made.neuron_interventions} == {"label"} == {row["task"] for row in made.neuron_draws}
    assert made.results["neurons"]["probes"] == {"task": "run", "position": "here"}
    assert made.results["neurons"]["classes_of"] == "label"
    assert made.config["readouts"] == "task,position"


@pytest.mark.slow
def test_planted_neurons_hold_the_classes_and_their_controls_leave_them(made: Result) -> None:
    whole = {"changed_layer": 1, "k": 2, "layer": 3}
    for kind in ("mean", "direction"):
        row = one_row(made, kind=kind, readout="task", **whole)
        assert sorted(map(int, row["neurons"].split())) == PLANTED
        assert row["effect"] < -0.2
        assert row["effect"] < row["random"] - 0.1  # some random sets have a planted neuron
        assert one_row(made, kind=kind, readout="task_retrained", **whole)["effect"] <= 0  # others may tell words
    moved = one_row(made, kind="translate", readout="task_translated", **whole)
    assert moved["intact"] < 0.2
    assert moved["effect"] > 0.3
    assert moved["low"] > 0.25
    assert max(moved["random_p"], moved["matched_p"]) <= 2 / 10
    still = one_row(made, kind="translate", readout="task", **whole)
    assert still["value"] + moved["value"] <= 1 + 1e-9
    assert not [
        row for row in made.neuron_interventions if row["kind"] == "translate" and "_retrained" in row["readout"]
    ]
    # Positions are read, and nothing of them is in these neurons.
    assert abs(one_row(made, kind="translate", readout="position", **whole)["effect"]) < 0.1


@pytest.mark.slow
def test_the_caption_says_what_is_erased_and_what_is_read(made: Result) -> None:
    mean, direction, shuffled, translate = conclusions(made.neuron_interventions)
    assert mean.startswith("Layer 1, 2 neurons set to their mean: label probe of layer 3 from ")
    assert direction.startswith(
        "Layer 1, 2 neurons without the directions from which label is decoded linearly: label probe of layer 3"
    )
    assert "without the directions from which shuffled labels of label are decoded linearly" in shuffled
    assert "moved from the mean of each example's class of label to the mean of another class" in translate
    assert "target by label probe of layer 3 from " in translate
    assert "retrained label probe of layer 3 from " in direction
    assert "position probe of layer 3 from " in direction
    assert len(tables(made.neuron_interventions)) == 4
    assert conclusions(load_run(made.folder).neuron_interventions) == conclusions(made.neuron_interventions)


def test_all_of_a_layer_loses_its_classes_but_not_shuffled_ones(place: Path, labels: Path) -> None:
    found = measured(place, run=str(labels), neurons="all", layer=1, kinds="direction,shuffled", draws=2, retrain=0)
    true, others = (one_row(found, kind=kind, layer=3) for kind in ("direction", "shuffled"))
    assert true["k"] == 36
    assert true["readout"] == "task"
    assert true["value"] < 0.6
    assert others["effect"] > true["effect"] + 0.3
    assert found.config["readouts"] == "task"
    assert {row["readout"] for row in found.neuron_interventions} == {"task"}


@pytest.mark.slow
def test_neurons_that_hold_no_classes_move_nothing(place: Path, labels: Path, model: Path, corpus: Path) -> None:
    """Labels without any link to the words: what is erased or moved makes no more difference than chance."""
    rows = [json.loads(line) for line in corpus.read_text(encoding="utf-8").splitlines()]
    generator = np.random.default_rng(0)
    for row in rows:
        row["labels"] = generator.choice(CLASSES, len(row["words"])).tolist()
    noise = place / "noise.jsonl"
    noise.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    run_of_noise = fitted(place, "noise", model=str(model), corpus=str(noise), task="label")
    found = measured(
        place, run=str(run_of_noise), neurons="ranked", top=2, layer=1, kinds="direction,translate", draws=4, retrain=0
    )
    for readout, kind in (("task", "direction"), ("task_translated", "translate")):
        row = one_row(found, readout=readout, kind=kind, k=2, layer=3)
        assert abs(row["effect"]) < 0.12
        assert row["low"] <= 0.03
        assert row["high"] >= -0.03


@pytest.mark.slow
def test_sentences_are_read_and_erased_by_their_means(place: Path, model: Path) -> None:
    """The label of a sentence is the most frequent class of its words, which their mean tells."""
    from probing.models import load_tokenizer, resolve_model

    tokenizer, rows = load_tokenizer(resolve_model(str(model))), []
    for sentence in make_sentences(400, seed=5, longest=12):
        classes = [class_of(piece) for piece in tokenizer.tokenize(sentence)]
        rows.append({"text": sentence, "label": max(CLASSES, key=classes.count)})
    path = place / "sentences.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    folder = fitted(place, "sentences", model=str(model), corpus=str(path), task="sentence_label")
    found = measured(
        place, run=str(folder), neurons="all", layer=2, kinds="direction,shuffled,translate", draws=2, retrain=1,
    )  # fmt: skip
    (accuracy,) = [row["accuracy"] for row in load_run(folder).accuracy if row["layer"] == 3]
    true, others = (one_row(found, kind=kind, layer=3, readout="task") for kind in ("direction", "shuffled"))
    assert true["intact"] == pytest.approx(accuracy)
    assert true["effect"] < -0.15
    assert others["effect"] > true["effect"] + 0.1
    assert one_row(found, kind="translate", readout="task_translated")["effect"] > 0.3
    assert one_row(found, kind="direction", readout="task_retrained")["n"] == true["n"]


@pytest.mark.slow
def test_masked_words_are_read_beside_the_task(place: Path, corpus: Path, sentences: list[str]) -> None:
    folder = masked_lm(place / "masked", "bert", sentences)
    labels = fitted(place, "of-masked", model=str(folder), corpus=str(corpus), task="label", layer="1,2,3")
    found = measured(
        place, run=str(labels), neurons="ranked", top=2, layer=1, kinds="direction,translate", readouts="task,mlm",
        draws=2, retrain=0, tokens=1500,
    )  # fmt: skip
    assert {(row["kind"], row["readout"]) for row in found.neuron_interventions} == {
        ("direction", "task"), ("direction", "mlm"), ("translate", "task"), ("translate", "task_translated"),
        ("translate", "mlm"),
    }  # fmt: skip


@pytest.mark.slow
def test_what_has_no_classes_is_refused(
    place: Path, model: Path, labels: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[dict[str, Any]] = [
        {"text": s, "label": len(s.split()) / 7} for s in make_sentences(150, seed=6, longest=12)
    ]
    path = place / "numbers.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in lines), encoding="utf-8")
    own: dict[str, Any] = {"model": str(model), "corpus": str(path), "task": "sentence_label", "layer": "2,3"}
    numbers = fitted(place, "numbers", **{**own, "task_args": {"numbers": True}, "probe": {}})
    lines = [{"text": row["text"], "label": CLASSES[len(row["text"]) % 3]} for row in lines]
    path = place / "lengths.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in lines), encoding="utf-8")
    own["corpus"] = str(path)
    largest, first = (fitted(place, one, **own, task_args={"pooling": one}) for one in ("max", "cls"))
    generator = np.random.default_rng(0)
    arrays = probe(
        generator.standard_normal((300, 6)), generator.integers(2, size=300), name="arrays", runs=str(place / "runs"),
        **{**BARE, **USUAL},
    )  # fmt: skip
    forms = ", ".join(name if data is None else f"{name}={data}" for name, data in READOUTS_OF_NEURONS.items())
    refused = {
        "its task sentence_label predicts numbers, and the readout task needs classes; give `--readouts position`": [
            "--neurons=ranked", f"--run={numbers}"
        ],
        "predicts numbers, and `--kinds direction` needs classes": [
            "--neurons=ranked", f"--run={numbers}", "--kinds=direction", "--readouts=position"
        ],
        "its probes read the maximum over a sentence's tokens": ["--neurons=ranked", f"--run={largest}"],
        "its probes read the first token of a sentence, and `--kinds translate` changes words": [
            "--neurons=ranked", f"--run={first}", "--kinds=translate"
        ],
        "was made by `probing.probe` from arrays": ["--neurons=ranked", f"--run={arrays.folder}"],
        f"`--readouts tasks` is not one of {forms}": [
            "--neurons=ranked", f"--run={labels}", "--readouts=tasks"
        ],
        "`--neurons all` with `--kinds mean` would leave nothing of the layer": [
            f"--run={labels}", "--neurons=all"
        ],
    }  # fmt: skip
    for message, options in refused.items():
        assert run(COMMANDS, ["ablate", "--wandb.mode=disabled", f"--runs={place}", *options]) == 2
        assert message in capsys.readouterr().err
    # The neurons of such runs can be changed all the same.
    for folder, readouts in ((numbers, "position"), (first, None)):
        found = measured(
            place,
            run=str(folder),
            neurons="ranked",
            top=1,
            layer=2,
            kinds="mean",
            draws=0,
            retrain=0,
            readouts=readouts,
        )
        assert len(found.neuron_interventions) >= 1


# --- pairs ---


@pytest.fixture(scope="module")
def pairs(place: Path) -> Path:
    """Sentences, and the same with their inner words in another order."""
    lines = []
    for sentence in (one for one in make_sentences(90, seed=8, longest=16) if len(one.split()) > 6):
        first, *inner, last = sentence.split()
        lines.append(f"{sentence}\t{' '.join([first, *reversed(inner), last])}\n")
    path = place / "pairs.txt"
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.mark.slow
def test_planted_neurons_carry_what_the_other_sentence_says_and_others_do_not(
    place: Path, labels: Path, pairs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {
        "run": str(labels),
        "neurons": "ranked",
        "kinds": "interchange",
        "pairs": str(pairs),
        "layer": 1,
    }
    made = measured(place, **options, top=2, draws=19, name="exchanged")
    carried = one_row(made, readout="task_interchanged", layer=3, k=2)
    kept = one_row(made, readout="task", layer=3, k=2)
    assert {int(neuron) for neuron in carried["neurons"].split()} == set(PLANTED)
    assert (carried["intact"], kept["intact"]) == (0.0, 1.0)
    assert carried["value"] > 0.8
    assert kept["value"] < 0.2
    assert carried["low"] > 0.7
    assert max(carried["random_p"], carried["matched_p"]) <= 0.1  # a drawn set may contain a planted neuron
    others = [
        row["effect"]
        for row in made.neuron_draws
        if (row["set"], row["readout"], row["layer"], row["k"]) == ("random", "task_interchanged", 3, 2)
    ]
    assert np.median(others) < 0.1
    assert made.results["neurons"]["n_pairs"] > 50
    (line,) = conclusions(made.neuron_interventions)
    assert line.startswith("Layer 1, 2 neurons exchanged between the sentences of pairs: counterpart by label probe of")
    assert "counterpart by label probe of layer 3" in "".join(
        str(one) for one in tables(made.neuron_interventions)[0].columns[0].cells
    )
    again = ablate(**{**made.config, "name": "exchanged-again", "quiet": True})
    assert again.neuron_interventions == made.neuron_interventions
    assert "interchanged neurons" not in capsys.readouterr().err


def test_pairs_that_do_not_go_with_other_options_are_refused(
    place: Path, model: Path, corpus: Path, labels: Path, pairs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    positions = fitted(place, "positions", model=str(model), corpus=str(corpus), layer="1,2,3")
    (place / "one.txt").write_text("one sentence\n", encoding="utf-8")
    usual = ["--neurons=ranked", f"--run={labels}", "--layer=1"]
    refused = {
        "`--kinds interchange`: neurons are exchanged between the sentences of pairs; give them as --pairs FILE": [
            *usual, "--kinds=interchange"
        ],
        "is read by `--kinds interchange` alone, and `--kinds mean` is given": [*usual, f"--pairs={pairs}"],
        "is read by `--kinds interchange` alone, and `--kinds mean,interchange` is given": [
            *usual, f"--pairs={pairs}", "--kinds=mean,interchange"
        ],
        "the probes of a run read whole sentences; give `--run` too": [
            "--neurons=3", "--layer=1", f"--model={model}", f"--pairs={pairs}", "--kinds=interchange"
        ],
        "`--readouts mlm` with `--kinds interchange`": [
            *usual, f"--pairs={pairs}", "--kinds=interchange", "--readouts=mlm"
        ],
        "`--retrain 2` with `--pairs ": [*usual, f"--pairs={pairs}", "--kinds=interchange", "--retrain=2"],
        "and the run predicts positions; give a run of another task": [
            "--neurons=ranked", f"--run={positions}", "--layer=1", f"--pairs={pairs}", "--kinds=interchange"
        ],
        "one.txt`, line 1: expected two sentences with a tab between them, found no tab": [
            *usual, f"--pairs={place / 'one.txt'}", "--kinds=interchange"
        ],
        "is for neurons, and heads and layers are ablated; leave it out": [f"--pairs={pairs}"],
    }  # fmt: skip
    for message, options in refused.items():
        assert run(COMMANDS, ["ablate", "--wandb.mode=disabled", f"--runs={place}", *options]) == 2
        assert message in capsys.readouterr().err
