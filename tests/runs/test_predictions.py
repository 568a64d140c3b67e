"""`Run.predict`, `Run.explain` and the contexts of neurons, against what the run's probes and a sort give."""

from __future__ import annotations

import json
import math
import shutil
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import BARE
from probing import Run, WandbOptions, fit, probe
from probing.errors import UserError
from probing.probes.neuron_profiles import N_OTHERS, extremes, profile_rows
from probing.results import Table
from probing.runs.loading import load_run
from probing.runs.predictions import AROUND, Explanation, NeuronPage, in_context, pages_of_first
from probing.runs.results import N_NEURONS, N_TOKENS
from probing.statistics import mean_interval
from probing.text import Corpus, read_corpora
from synthetic import Data, make_store, make_tokens, sides
from written import read_csv, type_of

pytestmark = pytest.mark.numeric

HOW: Any = {"quiet": True, "wandb": WandbOptions(mode="disabled"), **BARE}
NOUNS, VERBS = ["the", "neurons", "probe", "layers", "of", "a", "model"], ["reads", "shows", "ranks", "learns", "finds"]
TAGS = {"n": NOUNS, "v": VERBS}


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
    return fit(runs=str(place / "runs"), **{**HOW, **options})


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.fixture(scope="module")
def explained_made(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(
        model=str(checkpoints["bert"]), corpus=str(corpus_file), layer="1,2", runs=str(tmp_path_factory.mktemp("runs")),
        **HOW,
    )  # fmt: skip


def test_the_contributions_of_all_neurons_add_up_to_the_logit_of_what_is_predicted(explained_made: Run) -> None:
    texts = explained_made.test_sentences[:3]
    width = explained_made.weight.shape[2]
    whole, predicted = load_run(explained_made.folder).explain(texts, n=width), explained_made.predict(texts)
    examples = whole.examples()
    assert len(examples) == len(predicted)
    by_token = {(row["layer"], row["sentence"], row["position"]): row for row in predicted}
    for rows in examples:
        own = by_token[tuple(rows[0][name] for name in ("layer", "sentence", "position"))]
        assert {name: rows[0][name] for name in own} == own
        assert [row["rank"] for row in rows] == [*range(1, width + 1)]
        assert sorted(row["neuron"] for row in rows) == [*range(width)]
        assert sum(row["contribution"] for row in rows) == pytest.approx(rows[0]["logit"], abs=1e-9)
        sizes = [abs(row["contribution"]) for row in rows]
        assert sizes == sorted(sizes, reverse=True)
    few = explained_made.explain(texts, layer=2, n=3)
    assert {row["layer"] for row in few} == {2}
    assert [*few] == [row for row in whole if row["layer"] == 2 and row["rank"] <= 3]


def test_arrays_have_the_terms_of_their_logits() -> None:
    labels = np.arange(300) % 3
    X = np.eye(3, dtype=np.float32)[labels] + np.random.default_rng(0).normal(scale=0.4, size=(300, 3)).astype(
        np.float32
    )
    run = probe(X, labels, replicates=0, evidence="none", probe={"l2": 1e-2})
    found = run.explain(X[:5], n=3)
    W = run.weight[0].double().numpy()
    W = W - W.mean(0)
    for i, rows in enumerate(found.examples()):
        logits = W @ X[i].astype(np.float64)
        c = int(logits.argmax())
        assert rows[0]["predicted"] == c
        assert rows[0]["probability"] == pytest.approx(math.exp(logits[c]) / np.exp(logits).sum(), rel=1e-5)
        assert {row["neuron"]: row["contribution"] for row in rows} == pytest.approx(dict(enumerate(W[c] * X[i])))
    assert "row 0" in repr(found)
    with pytest.raises(UserError, match="`n=4` is not allowed; use a whole number from 1 to 3"):
        run.explain(X[:5], n=4)
    with pytest.raises(UserError, match=r"`layer=2`: .* has layer 0\."):
        run.explain(X[:5], layer=2)


def test_numbers_are_explained_by_how_far_they_are_from_the_constant_answer(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    lines = corpus_file.read_text(encoding="utf-8").splitlines()
    pairs = [{"text": line, "label": len(line.split()) + 0.5} for line in lines]
    (tmp_path / "lengths.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs), encoding="utf-8")
    how: Any = {"corpus": str(tmp_path / "lengths.jsonl"), "task": "sentence_label", "task_args": {"numbers": True}}
    run = fit(model=str(checkpoints["bert"]), layer=2, runs=str(tmp_path), **how, **HOW)
    text = run.test_sentences[0]
    found = run.explain(text, n=2)
    assert found[0]["logit"] == pytest.approx(found[0]["predicted"] - run.results["numbers"]["mean"])
    assert {row["end"] for row in run.contexts} == {"highest", "lowest"}
    numbers = {text: len(text.split()) + 0.5 for text in lines}
    for row in run.contexts:
        assert row["token"].endswith("…") or row["number"] == numbers[row["token"]]
    # A whole sentence stands for itself.
    assert text.split()[0] in repr(found)
    assert text in found._repr_html_()


def test_what_is_shown_is_escaped_and_has_the_prediction_and_its_neurons() -> None:
    row = {
        "sentence": 0,
        "position": 1,
        "token": "<b>",
        "layer": 3,
        "predicted": "A&B",
        "probability": 0.5,
        "logit": 1.0,
    }
    rows = [
        {**row, "rank": rank, "neuron": n, "contribution": value} for rank, n, value in ((1, 7, -1.5), (2, 0, 0.25))
    ]
    shown = Explanation(rows)._repr_html_()
    assert "&lt;b&gt;<rt>A&amp;B</rt>" in shown
    assert 'title="A&amp;B 0.500: 7 (-1.50), 0 (+0.25)"' in shown
    (line,) = [line.split() for line in repr(Explanation(rows)).splitlines() if "<b>" in line]
    assert line == ["<b>", "A&B", "0.500", "7", "(-1.50),", "0", "(+0.25)"]


LENGTHS = np.random.default_rng(0).integers(4, 12, 120).tolist()
TEXT = " ".join(f"word{i}" for i in range(30))


@pytest.fixture
def data(tmp_path: Path) -> Data:
    """Activations of few values, so that many are equal, in several shards."""
    tokens = make_tokens(LENGTHS)
    states = np.random.default_rng(1).integers(-9, 10, (2, tokens.n_tokens, 6)).astype(np.float32)
    return sides(make_store(tmp_path / "store", [*states], tokens, shard_tokens=60))


def test_the_most_extreme_come_first_and_of_equal_ones_the_first_in_the_text(data: Data) -> None:
    test, neurons = data.test, {0: [4, 1], 1: [0]}
    found = extremes(test, neurons, 7).by_end
    here = np.flatnonzero(test.labels >= 0)
    for layer, own in neurons.items():
        states = np.concatenate([test.store.read(layer, shard.index).numpy() for shard in test.store.plan.shards])
        for end, sign in (("highest", -1), ("lowest", 1)):
            values, rows = found[layer, end]
            assert values.shape == rows.shape == (7, len(own))
            for k, neuron in enumerate(own):
                order = here[np.argsort(sign * states[here, neuron], kind="stable")][:7]
                assert rows[:, k].tolist() == order.tolist()
                assert values[:, k].tolist() == states[order, neuron].tolist()
    few = extremes(replace(test, labels=np.where(np.arange(len(test.labels)) == here[0], 0, -1)), {1: [0]}, 7).by_end
    assert few[1, "highest"][1].tolist() == [[here[0]]]


def values_of(rows: Any, measure: str) -> Any:
    return [row for row in rows if row["measure"] == measure]


@pytest.mark.parametrize("of_documents", [False, True])
def test_profiles_are_those_of_a_plain_loop_over_all_test_tokens(data: Data, of_documents: bool) -> None:
    test = data.test
    if of_documents:
        test = replace(test, documents=np.arange(test.store.tokens.n_sentences) // 3)
    tokens, here = test.store.tokens, np.flatnonzero(test.labels >= 0)
    states = np.concatenate([test.store.read(1, shard.index).numpy() for shard in test.store.plan.shards])
    x = states[here].astype(np.float64)
    rows = profile_rows(test, {1: [4, 0]})
    assert {row["layer"] for row in rows} == {1}
    positions = here - tokens.offsets[tokens.sentences[here]]
    units = x / np.sqrt(np.square(x).sum(1, keepdims=True))
    cosines = units @ units.T
    mean_cosine = cosines[~np.eye(len(x), dtype=bool)].mean()
    for neuron in (4, 0):
        own = [row for row in rows if row["neuron"] == neuron]
        (mean,) = values_of(own, "mean")
        assert mean["value"] == pytest.approx(x[:, neuron].mean(), rel=1e-12)
        assert mean["n_test_tokens"] == len(x)
        for row, position in zip(values_of(own, "position"), np.unique(positions), strict=True):
            at = here[positions == position]
            n_of, sum_of = (np.zeros(tokens.n_sentences) for _ in range(2))
            for token in at:
                n_of[tokens.sentences[token]] += 1
                sum_of[tokens.sentences[token]] += states[token, neuron]
            low, high = mean_interval(test.clusters(sum_of), test.clusters(n_of).astype(np.int64))
            assert (row["index"], row["n_test_tokens"]) == (position, len(at))
            assert row["value"] == pytest.approx(states[at, neuron].mean(), rel=1e-6)
            assert [row["value_low"], row["value_high"]] == pytest.approx([low, high], nan_ok=True)
        correlations = np.asarray(np.corrcoef(x.T))[neuron]
        others = sorted((k for k in range(6) if k != neuron), key=lambda k: -abs(correlations[k]))
        found = values_of(own, "correlation")
        assert [row["index"] for row in found] == others[:N_OTHERS]
        assert [row["value"] for row in found] == pytest.approx(correlations[others[:N_OTHERS]])
        products = np.outer(units[:, neuron], units[:, neuron])
        contribution = products[~np.eye(len(x), dtype=bool)].mean()
        (row,), (share,) = values_of(own, "cosine_contribution"), values_of(own, "cosine_share")
        assert row["value"] == pytest.approx(contribution)
        assert share["value"] == pytest.approx(contribution / mean_cosine)


def test_a_neuron_that_never_varies_correlates_with_none(tmp_path: Path) -> None:
    tokens = make_tokens(LENGTHS)
    states = np.random.default_rng(2).standard_normal((tokens.n_tokens, 4)).astype(np.float32)
    states[:, 1] = 2.5
    test = sides(make_store(tmp_path / "store", [states], tokens, shard_tokens=60)).test
    rows = profile_rows(test, {0: [1, 2]})
    assert [row["index"] for row in values_of(rows, "correlation") if row["neuron"] == 1] == []
    assert {row["index"] for row in values_of(rows, "correlation") if row["neuron"] == 2} == {0, 3}
    assert {row["value"] for row in rows if row["neuron"] == 1 and row["measure"] in ("mean", "position")} == {2.5}


@pytest.mark.parametrize("are_words", [False, True])
def test_a_token_stands_between_the_text_before_and_after_it(tmp_path: Path, are_words: bool) -> None:
    # Two pieces of each word: "wor" and "d0".
    words = TEXT.split()
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])[:-1]
    ends = [pair for at, word in zip(starts, words, strict=True) for pair in ((at, at + 3), (at + 3, at + len(word)))]
    spans = [(0, 0), *ends]
    tokens = replace(
        make_tokens([len(spans)], special=False), spans=np.array(spans, dtype=np.int32),
        words=np.array([-1, *np.repeat(np.arange(30), 2)], dtype=np.int16),
    )  # fmt: skip
    store = make_store(tmp_path / "store", [np.zeros((len(spans), 2), dtype=np.float32)], tokens)
    examples = replace(sides_of_one(store), word_means=are_words)
    corpus = Corpus("own", (TEXT,))
    for row in (1, 21, 59):
        found = in_context(examples, corpus, row)
        assert found["token"] == (words[row // 2] if are_words else "wor")
        assert (found["sentence"], found["position"]) == (0, row)
        before, after = found["before"].removeprefix("…"), found["after"].removesuffix("…")
        assert before + found["token"] + after in TEXT
        assert len(before) == min(AROUND, spans[row][0])
        assert found["before"].startswith("…") == (spans[row][0] > AROUND)
        assert found["after"].endswith("…") == (len(TEXT) - len(found["token"]) - spans[row][0] > AROUND)


def sides_of_one(store: Any) -> Any:
    from probing.data.examples import Examples

    return Examples(store, np.zeros(store.tokens.n_tokens, dtype=np.int32))


@pytest.fixture(scope="module")
def context_made(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(
        model=str(checkpoints["bert"]), corpus=str(corpus_file), layer="0,2", quiet=True,
        runs=str(tmp_path_factory.mktemp("runs")), wandb=WandbOptions(mode="disabled"), **BARE,
    )  # fmt: skip


def test_a_run_has_the_first_neurons_of_each_layer_and_any_neuron_can_be_asked_for(context_made: Run) -> None:
    rows = read_csv(context_made.folder / "contexts.csv")
    again = load_run(context_made.folder)
    for layer in (0, 2):
        for neuron in context_made.top(layer, N_NEURONS):
            own = [row for row in rows if (row["layer"], row["neuron"]) == (layer, neuron["neuron"])]
            assert [row["end"] for row in own] == ["highest"] * N_TOKENS + ["lowest"] * N_TOKENS
            assert [row["place"] for row in own] == [*range(1, N_TOKENS + 1)] * 2
            assert own[0]["activation"] >= neuron["mean"] >= own[N_TOKENS]["activation"]
    asked = again.neuron(2, context_made.top(2, 1)[0]["neuron"], N_TOKENS)
    there = [row for row in again.contexts if row["layer"] == 2][: 2 * N_TOKENS]
    assert [*asked] == there
    texts = set(context_made.test_sentences)
    for row in asked:
        inside = row["before"].removeprefix("…") + row["token"] + row["after"].removesuffix("…")
        assert any(inside in text for text in texts)
        assert type(row["class"]) is int
    last = again.neuron(0, context_made.top(0, 16)[-1]["neuron"], 1)  # no first one
    assert [row["end"] for row in last] == ["highest", "lowest"]


def test_hidden_states_are_those_that_the_probe_was_tested_on(context_made: Run, tmp_path: Path) -> None:
    layer, classes = context_made.layers[0], np.array(context_made.results["classes"])
    states, labels, groups = context_made.hidden_states(layer, "test")
    predicted = classes[(states @ context_made.weight[0].numpy().T).argmax(1)]
    assert (predicted == labels).mean() == pytest.approx(context_made.accuracy[0]["accuracy"])
    assert len({*groups}) == context_made.results["n_sentences"]["test"]
    everything = context_made.hidden_states(layer)
    assert len({*everything.groups}) == sum(context_made.results["n_sentences"].values())
    assert np.array_equal(everything.states[-len(states) :], states)
    wrong: list[dict[str, Any]] = [{"layer": 99}, {"layer": layer, "split": "all"}]
    for arguments in wrong:
        with pytest.raises(UserError, match=f"`{[*arguments][-1]}="):
            context_made.hidden_states(**arguments)
    (tmp_path / "cache").mkdir()
    elsewhere = copy(context_made)
    elsewhere.config = {**context_made.config, "cache": str(tmp_path / "cache")}
    with pytest.raises(UserError, match="its hidden states are no longer in the cache"):
        elsewhere.hidden_states(layer)


def test_what_fit_has_written_of_a_neuron_is_what_is_found_when_it_is_asked_for(context_made: Run) -> None:
    again = load_run(context_made.folder)
    pages = list(pages_of_first(again))
    assert [(page.layer, page.neuron) for page in pages] == [
        (layer, row["neuron"]) for layer in (0, 2) for row in context_made.top(layer, N_NEURONS)
    ]
    written = pages[-1]
    asked = again.neuron(written.layer, written.neuron, N_TOKENS)
    assert isinstance(asked, NeuronPage)
    assert [*asked] == [*written]
    assert [[row["measure"], row.get("index", ""), row["value"]] for row in asked.profile] == [
        [row["measure"], row["index"], row["value"]] for row in written.profile
    ]
    assert [*asked.classes] == [*written.classes]
    assert asked.sentences() == written.sentences()
    # Weights are those of the probe, centred over classes; ranks are those of the ranked tables.
    weight = context_made.weight[1, :, asked.neuron].double()
    assert [row["weight"] for row in asked.classes] == pytest.approx((weight - weight.mean()).tolist())
    assert [row["class"] for row in asked.classes] == context_made.results["classes"]
    ranked = {row["layer"]: row["rank"] for row in context_made.neurons if row["neuron"] == asked.neuron}
    assert {row["layer"]: row["rank"] for row in asked.ranks} == ranked
    assert f"has rank {ranked[2]} of {context_made.weight.shape[-1]}; " in asked.sentences()[0]
    assert f"Other ranks: {ranked[0]} in layer 0." in asked.sentences()[0]
    (other,) = again.neuron(0, context_made.top(0)[0]["neuron"], 1).sentences()[:1]
    assert "the neuron of this index is first in layer" in other
    shown = asked._repr_html_()
    assert shown.count("<svg") == 1
    assert asked.sentences()[1] in repr(asked)
    assert str(asked.positions[0]["index"]) in repr(asked)
    assert asked.cosine_share == values_of(asked.profile, "cosine_share")[0]["value"]


def test_what_is_not_there_is_refused_in_the_words_of_the_call(context_made: Run) -> None:
    for call, words in (
        ((1, 0), r"`layer=1`: .* has layers 0 and 2"),
        ((2, 4096), r"`neuron=4096`: layer 2 of .* has the neurons 0 to "),
        ((2, 0, 0), r"`n=0` is not allowed; use a whole number from 1 to"),
    ):
        with pytest.raises(UserError, match=words):
            context_made.neuron(*call)
    X = np.random.default_rng(0).standard_normal((90, 3)).astype(np.float32)
    run = probe(X, (X[:, 0] > 0).astype(int), replicates=0, evidence="none", probe={"l2": 1e-2})
    with pytest.raises(UserError, match="from arrays, which are not kept"):
        run.neuron(0, 0)
    assert run.contexts == []
