"""`Run.predict`: the probes of a run on other text, on words, and on arrays."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import BARE
from probing import Run, WandbOptions, fit, load_run, probe
from probing.corpus.splits import read_corpora
from probing.errors import UserError
from probing.results.rows import Table
from written import type_of

pytestmark = pytest.mark.numeric

HOW: Any = {"quiet": True, "wandb": WandbOptions(mode="disabled"), **BARE}
NOUNS, VERBS = ["the", "neurons", "probe", "layers", "of", "a", "model"], ["reads", "shows", "ranks", "learns", "finds"]
TAGS = {"n": NOUNS, "v": VERBS}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("predictions")


@pytest.fixture(scope="module")
def treebank(place: Path) -> Path:
    """Sentences of words whose tag depends on the word, with pieces in several words."""
    generator = np.random.default_rng(0)
    sentences = []
    for number in range(120):
        words = [(word, tag) for tag, known in TAGS.items() for word in generator.choice(known, 3)]
        words += [(f"untranslatable{number}", "n")]
        generator.shuffle(words)
        lines = [f"{i}\t{word}\t_\t{tag.upper()}\t_\t_\t0\t_\t_\t_" for i, (word, tag) in enumerate(words, start=1)]
        sentences.append("\n".join(lines) + "\n\n")
    (place / "tags.conllu").write_text("".join(sentences), encoding="utf-8")
    return place / "tags.conllu"


def made(place: Path, **options: Any) -> Run:
    run = fit(runs=str(place / "runs"), **{**HOW, **options})
    assert run is not None
    return run


def accuracies(rows: Table, gold: dict[tuple[int, int], Any], key: str) -> dict[int, float]:
    """Return the share of right predictions in each layer, of what has a gold label."""
    right: dict[int, list[bool]] = {}
    for row in rows:
        if (label := gold.get((row["sentence"], row[key]))) is not None:
            right.setdefault(row["layer"], []).append(row["predicted"] == label)
    return {layer: float(np.mean(found)) for layer, found in right.items()}


def of_run(run: Run) -> dict[int, Any]:
    return {row["layer"]: pytest.approx(row["accuracy"], abs=1e-12) for row in run.accuracy}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"layer": "0,2"}, {"layer": "1,2", "site": "mlp", "transform": "whiten"}, {"layer": 2, "random_weights": True}],
    ids=["residual", "mlp whitened", "random weights"],
)
def test_predictions_on_the_test_sentences_have_the_accuracy_of_the_run(
    options: dict[str, Any], place: Path, checkpoints: dict[str, Path], corpus_file: Path
) -> None:
    run = made(place, model=str(checkpoints["bert"]), corpus=str(corpus_file), max_length=24, **options)
    texts = run.test_sentences
    rows = load_run(run.folder).predict(texts)
    classes = set(run.results["classes"])
    gold = {(row["sentence"], row["position"]): row["position"] for row in rows if row["position"] in classes}
    assert accuracies(rows, gold, "position") == of_run(run)
    assert sum(row["n_test_tokens"] for row in run.accuracy) == len(gold) * len(run.accuracy)
    assert all(1 / len(classes) < row["probability"] <= 1 for row in rows)
    others = {column: value for column, value in rows[0].items() if column != "predicted"}
    assert {column: type(type_of(column)(str(value))) for column, value in others.items()} == {
        column: type(value) for column, value in others.items()
    }  # what `to_parquet` goes by
    assert type(rows[0]["predicted"]) is int
    # Texts keep their places, also those that occur twice, and pieces join to their words.
    again = run.predict([texts[3], texts[3]])
    assert [row for row in again if row["sentence"] == 0] == [{**row, "sentence": 0} for row in again][
        : len(again) // 2
    ]
    first = [row for row in again if row["sentence"] == 0 and row["layer"] == again[0]["layer"]]
    assert first[0]["position"] == 1
    assert "".join(row["token"] for row in first) in texts[3].replace(" ", "")
    assert all(row["token"] in row["word"] for row in first)


@pytest.mark.parametrize("pieces", ["last", "mean"])
def test_words_are_read_as_the_task_reads_them(
    pieces: str, place: Path, checkpoints: dict[str, Path], treebank: Path
) -> None:
    run = made(
        place, model=str(checkpoints["bert"]), corpus=str(treebank), task="upos", task_args={"pieces": pieces}, layer=1
    )
    corpora, splits = read_corpora(run.config["corpus"], None, run.config["seed"], lambda message: None)
    tested = [i for i, side in enumerate(splits[0]) if side == "test"]
    words, tags = corpora[0].words, corpora[0].columns["upos"]
    assert words is not None
    rows = run.predict([list(words[i]) for i in tested])
    gold = {(place, i): tag for place, at in enumerate(tested) for i, tag in enumerate(tags[at])}
    assert len(rows) == len(gold)
    assert [row["word"] for row in rows] == [word for at in tested for word in words[at]]
    assert {row["token"] == row["word"] for row in rows} == ({True} if pieces == "mean" else {True, False})
    assert accuracies(rows, gold, "word_index") == of_run(run)


def test_sentences_have_a_row_each(place: Path, checkpoints: dict[str, Path]) -> None:
    generator = np.random.default_rng(1)
    kinds = {name: [" ".join(generator.choice(words, 5)) for _ in range(70)] for name, words in TAGS.items()}
    (place / "kinds.jsonl").write_text(
        "".join(f'{{"text": "{text}", "label": "{name}"}}\n' for name, texts in kinds.items() for text in texts),
        encoding="utf-8",
    )
    run = made(place, model=str(checkpoints["bert"]), corpus=str(place / "kinds.jsonl"), task="sentence_label", layer=1)
    label_of = {text: name for name, texts in kinds.items() for text in texts}
    texts = run.test_sentences
    rows = run.predict(texts)
    assert [set(row) for row in rows] == [{"sentence", "layer", "predicted", "probability"}] * len(texts)
    gold = {(i, 1): label_of[text] for i, text in enumerate(texts)}
    assert accuracies(rows, gold, "layer") == of_run(run)
    assert run.predict(texts[0])[0]["predicted"] == rows[0]["predicted"]
    with pytest.raises(UserError, match="sentence 1 of the list, counted from 0, has one half of a character"):
        run.predict(["a layer", "half \ud83d"])
    with pytest.raises(UserError, match="sentence 1 of the list, counted from 0, is empty"):
        run.predict([texts[0], " "])
    for wrong, words in (([], "an empty one is given"), (3, "a value of type int"), ([texts[0], 3], "item 1 of the")):
        with pytest.raises(UserError, match=words):
            run.predict(wrong)


def test_numbers_are_predicted_as_such(place: Path, checkpoints: dict[str, Path], corpus_file: Path) -> None:
    lines = corpus_file.read_text(encoding="utf-8").splitlines()
    pairs = [{"text": line, "label": len(line.split()) + 0.5} for line in lines]
    (place / "lengths.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs), encoding="utf-8")
    how: Any = {"corpus": str(place / "lengths.jsonl"), "task": "sentence_label", "task_args": {"numbers": True}}
    run = made(place, model=str(checkpoints["bert"]), layer="0,2", **how)
    texts = run.test_sentences
    rows = run.predict(texts)
    assert [list(row) for row in rows] == [["sentence", "layer", "predicted"]] * (2 * len(texts))
    true = np.array([len(text.split()) + 0.5 for text in texts])
    for row in run.accuracy:
        predicted = np.array([one["predicted"] for one in rows if one["layer"] == row["layer"]])
        # Sentences in other batches have other last digits of their activations, and so of the predictions.
        errors, deviations = true - predicted, true - run.results["numbers"]["mean"]
        assert 1 - (errors**2).sum() / (deviations**2).sum() == pytest.approx(row["r2"], abs=1e-4)


def test_arrays_are_predicted_row_by_row(tmp_path: Path) -> None:
    labels = np.array(["a", "b", "c"], dtype=object)[np.arange(300) % 3]
    X = np.eye(3, dtype=np.float32)[np.arange(300) % 3]
    X += np.random.default_rng(0).normal(scale=0.4, size=X.shape).astype(np.float32)
    split = np.array(["train", "validation", "test"], dtype=object)[np.arange(300) // 3 % 3]
    run = probe({4: X, 5: -X}, labels, split=split, probe={"l2": 1e-2}, replicates=0, evidence="none", runs=tmp_path)
    rows = run.predict({5: -X[split == "test"], 4: X[split == "test"]})
    assert list(rows[0]) == ["row", "layer", "predicted", "probability"]
    gold = {(i, i): label for i, label in enumerate(labels[split == "test"])}
    found = accuracies(Table({**row, "sentence": row["row"]} for row in rows), gold, "row")
    assert found == of_run(run)
    assert 0.5 < found[4] < 1
    with pytest.raises(UserError, match=r"`X`: layer 0 is not in .*, which has 4, 5"):
        run.predict(X)
    with pytest.raises(UserError, match=r"`X` has 2 columns, and the probes of .* read 3"):
        run.predict({4: X[:, :2]})
    with pytest.raises(UserError, match="`X` has shape"):
        run.predict(["A sentence."])


@pytest.mark.slow
def test_the_model_alone_is_read_again_and_refused_if_it_is_gone_or_another(
    place: Path, checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    from transformers import AutoModel, AutoTokenizer

    own, text = shutil.copytree(checkpoints["bert"], tmp_path / "own"), tmp_path / "text.txt"
    shutil.copy(corpus_file, text)
    run = made(place, model=str(own), corpus=str(text), layer=0)
    text.unlink()  # only the model is read again, and nothing is cached
    entries = sorted((place / "runs").rglob("*"))
    assert run.predict("Layers of neurons.")[0]["word"] == "Layers"
    assert sorted((place / "runs").rglob("*")) == entries
    shutil.copyfile(checkpoints["distilbert"] / "model.safetensors", own / "model.safetensors")
    with pytest.raises(UserError, match=r"its model .* has changed since; repeat the run"):
        run.predict(["A sentence."])
    shutil.rmtree(own)
    with pytest.raises(UserError, match=r"its model .*own is not there any more; it was looked for at .*own"):
        run.predict(["A sentence."])
    model, tokenizer = (kind.from_pretrained(checkpoints["bert"]) for kind in (AutoModel, AutoTokenizer))
    run = made(place, model=model, tokenizer=tokenizer, corpus=str(corpus_file), layer=0)
    with pytest.raises(UserError, match="was an object of the Python process that made the run"):
        run.predict(["A sentence."])
