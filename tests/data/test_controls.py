"""Controls: the same probe on examples that lack something."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from probing.builtin_tasks.column import UniversalPartOfSpeech
from safetensors import safe_open

from probing import ProbeOptions, Run, WandbOptions, fit
from probing.data import CONTROLS
from probing.data.examples import read, word_keys
from probing.data.labelling import choose_classes, label
from probing.data.module import CONTROL_DRAWS, WordEmbeddings, control_tasks, shuffled, token_control, with_activations
from probing.errors import UserError
from probing.models import load_tokenizer, resolve_model, word_folding
from probing.probes.evidence import collect_evidence
from probing.probes.solvers import Penalty
from probing.probes.training import Lbfgs, Training, train_controls, train_probes
from probing.runs.results import ClassResults
from probing.studies.fit import chosen_controls
from probing.tables.conclusions import side_of
from probing.tables.schema import NEURONS, WITHIN_COVARIATE
from probing.text import Corpus, Split, from_words
from probing.text.tokens import Tokens
from synthetic import SPLITS, Data, make_splits, make_store, make_tokens, positional, sides
from written import columns_of

pytestmark = pytest.mark.numeric

NO_WANDB = WandbOptions(mode="disabled")
LENGTHS = np.random.default_rng(0).integers(6, 14, 200).tolist()


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("all", ["shuffled", "token", "permuted_positions", "untrained"]),
        (["all"], ["shuffled", "token", "permuted_positions", "untrained"]),
        ("none", []),
        ([], []),
        ("untrained, shuffled", ["shuffled", "untrained"]),
        (["control_task"], ["control_task"]),
    ],
)
def test_controls_are_chosen_by_name(typed: Any, expected: list[str]) -> None:
    assert chosen_controls(typed, ordinal=True) == expected


def test_all_controls_are_those_that_say_something_of_the_task() -> None:
    assert chosen_controls("all", ordinal=False) == ["shuffled", "token", "control_task", "untrained"]


def test_the_help_and_the_documentation_name_every_control() -> None:
    (said,) = re.findall(r"^ {4}controls: (.*?)^ {4}\w+: ", inspect.getdoc(fit) or "", re.MULTILINE | re.DOTALL)
    assert [name for name in CONTROLS if not re.search(rf"\b{name}\b", said)] == []
    page = Path(__file__).parents[2] / "docs" / "concepts.md"
    assert [name for name in CONTROLS if f"| `{name}` |" not in page.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("of_sentences", [True, False])
def test_the_control_task_is_refused_where_there_are_no_classes_of_words(of_sentences: bool) -> None:
    *others, last = [name for name in CONTROLS if name != "control_task"]
    why = "label, and this task labels sentences" if of_sentences else "class, and this task predicts numbers"
    said = f"`--controls control_task`: it gives each word type a random {why}; give {', '.join(others)} or {last}."
    with pytest.raises(UserError, match=re.escape(said)):
        chosen_controls("control_task", False, "sentence" if of_sentences else "token", not of_sentences)


def test_an_unknown_control_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"`--controls tokens` is not one of shuffled, token, .* \(did you mean `token`\?\)"
    ):
        chosen_controls("shuffled,tokens", ordinal=True)


# --- labels ---


@pytest.fixture
def planted(tmp_path: Path) -> Data:
    tokens = make_tokens(LENGTHS)
    return sides(make_store(tmp_path / "store", [positional(tokens, 12, 2.0)], tokens, shard_tokens=500))


@pytest.mark.parametrize("flipped", ["none", "one", "each"])
def test_labels_of_whole_sentences_are_exchanged_among_these_also_if_some_token_has_another(
    planted: Data, flipped: str
) -> None:
    """Permuted within their sentence they would stay what they are, and the control would be as good as the probe."""
    train = planted.train
    sentences, kept = train.store.tokens.sentences, train.labels >= 0
    first = np.diff(sentences, prepend=-1).astype(bool)
    of_sentence = np.random.default_rng(0).integers(2, size=sentences.max() + 1)[sentences]
    flips = {"none": first & False, "one": np.arange(len(first)) == np.flatnonzero(kept)[0], "each": first}[flipped]
    labels = np.where(kept, of_sentence ^ flips, -1).astype(np.int32)
    examples = replace(train, labels=labels)
    drawn = shuffled(replace(planted, train=examples, classes=np.arange(2)), 0).train.labels
    np.testing.assert_array_equal(drawn >= 0, kept)
    # Of two classes, half of the sentences get the other one.
    assert 0.35 < (drawn[kept] != of_sentence[kept]).mean() < 0.65
    # A sentence still has one label, but for as many tokens as before.
    share = [max(np.bincount(drawn[kept & (sentences == i)]) / (kept & (sentences == i)).sum()) for i in range(60)
             if (kept & (sentences == i)).any()]  # fmt: skip
    assert np.mean(share) > 0.85


def test_labels_drawn_for_each_token_mostly_stay_in_their_sentence(planted: Data) -> None:
    train, sentences = planted.train, planted.train.store.tokens.sentences
    drawn = np.random.default_rng(0).integers(4, size=len(sentences))
    examples = replace(train, labels=np.where(train.labels >= 0, drawn, -1).astype(np.int32))
    after = shuffled(replace(planted, train=examples, classes=np.arange(4)), 0).train.labels
    moved = [sorted(after[sentences == i]) != sorted(examples.labels[sentences == i]) for i in train.sentences()]
    assert np.mean(moved) < 0.3


def test_positions_stay_in_their_sentence(planted: Data) -> None:
    before, after = planted.train, shuffled(planted, 0).train
    sentences = before.store.tokens.sentences
    for i in before.sentences()[:40]:
        own = sentences == i
        assert sorted(before.labels[own]) == sorted(after.labels[own])
    assert (before.labels != after.labels).any()


def test_shuffled_labels_stay_in_their_sentence_and_find_nothing(planted: Data) -> None:
    permuted = shuffled(planted, 3)
    tokens = planted.train.store.tokens
    for true, control in zip((planted.train, planted.test), (permuted.train, permuted.test), strict=True):
        assert ((true.labels >= 0) == (control.labels >= 0)).all()
        assert (true.labels != control.labels)[true.labels >= 0].mean() > 0.5
        for i in range(0, tokens.n_sentences, 7):
            here = tokens.sentences == i
            assert sorted(true.labels[here]) == sorted(control.labels[here])
    bound = len(planted.test.sentences()) / planted.test.n_tokens  # no predictor can expect more
    assert planted.fit()[0].metrics["accuracy"] > 0.9
    assert isinstance(permuted, Data)
    assert permuted.fit()[0].metrics["accuracy"] < bound + 3 * bound**0.5 / planted.test.n_tokens**0.5


def words_of(n: int, seed: int) -> Corpus:
    generator = np.random.default_rng(seed)
    rows = [[f"w{generator.zipf(1.5) % 300}" for _ in range(length - 2)] for length in LENGTHS[:n]]
    return from_words(
        f"words{seed}", rows, {"upos": [tuple("NOUN VERB ADJ"[:4].split() * len(r))[: len(r)] for r in rows]}
    )


@pytest.mark.parametrize("fold", [str, str.lower])
def test_a_word_type_has_one_label_everywhere_and_labels_are_as_frequent_as_the_true_ones(
    fold: Callable[[str], str], tmp_path: Path
) -> None:
    main, test = capitalised(words_of(200, 1)), words_of(80, 2)
    labelled = labelled_by(np.random.default_rng(3), [main, test], tmp_path)
    drawn = control_tasks(labelled, [main, test], fold, seed=5)[0]
    seen: dict[str, int] = {}
    for true, control, corpus in ((labelled.train, drawn.train, main), (labelled.test, drawn.test, test)):
        assert ((true.labels >= 0) == (control.labels >= 0)).all()
        tokens = true.store.tokens
        for row in np.flatnonzero(control.labels >= 0):
            word = fold(corpus.words[tokens.sentences[row]][tokens.words[row]])  # type: ignore[index]
            assert seen.setdefault(word, control.labels[row]) == control.labels[row]
    shares = np.bincount([seen[word] for word in seen], minlength=3) / len(seen)
    expected = labelled.train.counts(3) / labelled.train.n_tokens
    # Types are few: within four standard errors.
    assert np.abs(shares - expected).max() < 4 * 0.5 / len(seen) ** 0.5
    both = [word for word in seen if word.startswith("w") and word.upper() in seen]
    assert (len(both) > 10) == (fold is str)
    # Of two cases of a word that are told apart, each has a label of its own: a share of .38 agrees by chance.
    assert fold is not str or np.mean([seen[word] == seen[word.upper()] for word in both]) < 0.8


def capitalised(corpus: Corpus) -> Corpus:
    """Return the corpus with every second word in capitals."""
    assert corpus.words is not None
    words = [tuple(w.upper() if i % 2 else w for i, w in enumerate(sentence)) for sentence in corpus.words]
    return replace(corpus, words=tuple(words), sentences=tuple(" ".join(sentence) for sentence in words))


def test_draws_of_the_control_task_differ_and_a_seed_repeats_them(tmp_path: Path) -> None:
    corpora = [words_of(200, 1), words_of(80, 2)]
    labelled = labelled_by(np.random.default_rng(3), corpora, tmp_path)
    draws, again, other = (control_tasks(labelled, corpora, str, seed) for seed in (5, 5, 6))
    assert len(draws) == CONTROL_DRAWS
    assert len({draw.train.labels.tobytes() for draw in (*draws, *other)}) == 2 * CONTROL_DRAWS
    for one, same in zip(draws, again, strict=True):
        np.testing.assert_array_equal(one.train.labels, same.train.labels)
        np.testing.assert_array_equal(one.test.labels, same.test.labels)


@pytest.mark.parametrize(("family", "n_types"), [("distilbert", 1), ("mpnet", 1), ("bert", 2), ("roberta", 2)])
def test_words_are_folded_as_the_models_tokenizer_folds_them(
    family: str, n_types: int, checkpoints: dict[str, Path]
) -> None:
    tokenizer = load_tokenizer(resolve_model(str(checkpoints[family])))
    for words in (("probe", "Probe"), ("etude", "étude")):
        folded = {word_folding(tokenizer)(word) for word in words}
        read_as = {tuple(tokenizer(word, add_special_tokens=False)["input_ids"]) for word in words}
        assert len(folded) == n_types
        # What the model cannot tell apart is one type. (Of tokens that it does not know, it may not tell more.)
        assert len(read_as) <= len(folded)


def labelled_by(generator: np.random.Generator, corpora: list[Corpus], folder: Path) -> Data:
    """Label words at random, A half of the time, and give each type a one-hot activation."""
    parts = []
    types = {word: i for i, word in enumerate(sorted({w for c in corpora for s in c.words or () for w in s}))}
    for number, corpus in enumerate(corpora):
        words = corpus.words or ()
        labels = tuple(tuple(generator.choice(["A", "B", "C"], p=[0.5, 0.3, 0.2], size=len(s))) for s in words)
        corpora[number] = corpus = replace(corpus, columns={"upos": labels})
        lengths = [len(sentence) for sentence in words]
        index = np.concatenate([np.arange(length) for length in lengths]).astype(np.int16)
        tokens = Tokens(np.array(lengths, np.int32), np.zeros(len(index), np.int32), index)
        states = np.eye(len(types), dtype=np.float32)[[types[w] for s in words for w in s]]
        parts.append(make_store(folder / str(number), [states], tokens, shard_tokens=500))
    task, (main, test) = UniversalPartOfSpeech(min_count=1), corpora
    splits = make_splits(parts[0].tokens.n_sentences)
    classes = choose_classes(parts[0].tokens, main, task, splits)
    of_test: list[Split] = ["test"] * parts[1].tokens.n_sentences
    train, validation = (label(parts[0], main, task, splits, classes, side) for side in ("train", "validation"))
    return Data(train, validation, label(parts[1], test, task, of_test, classes, "test"), classes, False)


def test_who_knows_words_by_heart_masters_the_control_task_and_nothing_else(tmp_path: Path) -> None:
    # science.md, F10: a lookup of the word reaches 100% on known types, so that selectivity is not above 0.
    main = words_of(200, 1)
    corpora = [main, main]
    labelled = labelled_by(np.random.default_rng(3), corpora, tmp_path)
    labelled = replace(labelled, test=replace(labelled.train))
    task = control_tasks(labelled, corpora, str, seed=5)[0]
    assert isinstance(task, Data)
    control = task.fit(l2=1e-6)[0].metrics["accuracy"]
    true = labelled.fit(l2=1e-6)[0].metrics["accuracy"]
    assert control > 0.99
    assert true - control <= 0


def test_selectivity_is_held_against_the_mean_of_all_draws_and_its_interval_is_theirs_too(tmp_path: Path) -> None:
    corpora = [words_of(200, 1), words_of(80, 2)]
    labelled = labelled_by(np.random.default_rng(3), corpora, tmp_path)
    draws = control_tasks(labelled, corpora, str, seed=5, n_draws=3)
    training = Training(Penalty(0, 1e-3), Lbfgs(1e-5))
    (fit,) = train_probes(labelled, [0], training)
    fits = train_controls({"control_task": draws}, [0], training)["control_task"]
    accuracies = [own[0].metrics["accuracy"] for own in fits]
    alone = [train_probes(draw, [0], training.for_controls())[0].metrics["accuracy"] for draw in draws]
    assert accuracies == alone  # with the moments of the first draw
    assert len(set(accuracies)) == 3
    evidence = collect_evidence(labelled.train, labelled.test, [0], [fit.moments], 3)
    (row,) = ClassResults(labelled, [fit], evidence, {"control_task": fits}).accuracy()
    one_by_one = [ClassResults(labelled, [fit], evidence, {"control_task": [own]}).accuracy()[0] for own in fits]
    assert row["control_task_accuracy"] == pytest.approx(np.mean(accuracies))
    assert row["selectivity"] == pytest.approx(np.mean([own["selectivity"] for own in one_by_one]))
    low, high = row["above_control_task_low"], row["above_control_task_high"]
    assert low < row["selectivity"] < high
    # Student's t of three draws is 4.3 standard errors: wider than what draws and sentences of one draw show.
    spread = 4.302653 * np.std(accuracies, ddof=1) / 3**0.5
    assert high - low > 2 * spread
    assert high - low > max(own["above_control_task_high"] - own["above_control_task_low"] for own in one_by_one)


# --- activations ---


def test_token_identity_reads_the_embeddings_rows(planted: Data) -> None:
    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(1000, 5)

        def get_input_embeddings(self) -> torch.nn.Module:
            return self.table

    encoder = Encoder()
    found = token_control(planted, encoder)
    for batch in read(found.test, [0]):
        ids = torch.from_numpy(found.test.store.tokens.input_ids)[batch.rows].long()
        assert torch.equal(batch.hidden_states[0], encoder.table(ids).detach())
    assert isinstance(found, Data)
    assert found.fit()[0].metrics["accuracy"] < 0.3  # random tokens tell no position


def in_two_pieces(folder: Path, pieces: Any, shuffle: bool) -> tuple[Data, Any]:
    """Return words of two pieces whose label no piece tells, in a layer that knows each word, and an encoder."""
    generator = np.random.default_rng(0)
    n_sentences, n_words = 300, 6
    chosen = generator.integers(36, size=(n_sentences, n_words))
    label_of = np.array(["A", "B"])[generator.permutation(np.arange(36) % 2)]
    labels = label_of[chosen]
    labels = generator.permutation(labels.ravel()).reshape(labels.shape) if shuffle else labels
    ids = np.full((n_sentences, 2 * n_words + 2), 1)
    ids[:, 1:-1:2], ids[:, 2:-1:2] = 2 + chosen // 6, 8 + chosen % 6
    of = np.tile([-1, *np.repeat(np.arange(n_words), 2), -1], (n_sentences, 1))
    tokens = Tokens(
        np.full(n_sentences, ids.shape[1], np.int32), ids.ravel().astype(np.int32), of.ravel().astype(np.int16)
    )
    words = [tuple(f"w{i}-{k}" for k, i in enumerate(row)) for row in chosen]
    corpus = from_words("pairs", words, {"upos": [tuple(row) for row in labels.tolist()]})
    states = np.zeros((n_sentences, ids.shape[1], 36), dtype=np.float32)
    for place in (1, 2):
        states[np.arange(n_sentences)[:, None], 2 * np.arange(n_words) + place, chosen] = 1
    store, task = make_store(folder / "store", [states.reshape(-1, 36)], tokens), UniversalPartOfSpeech(pieces=pieces)
    splits = make_splits(n_sentences)
    classes = choose_classes(tokens, corpus, task, splits)
    train, validation, test = (label(store, corpus, task, splits, classes, side) for side in SPLITS)
    torch.manual_seed(0)
    encoder, table = torch.nn.Module(), torch.nn.Embedding(20, 60)
    encoder.get_input_embeddings = lambda: table  # type: ignore[assignment]
    return Data(train, validation, test, classes, False), encoder


@pytest.mark.slow
@pytest.mark.parametrize("pieces", ["first", "last", "mean"])
def test_a_label_that_is_a_function_of_whole_words_is_not_above_the_token_alone(pieces: Any, tmp_path: Path) -> None:
    planted, encoder = in_two_pieces(tmp_path, pieces, shuffle=False)
    training = Training(Penalty(0, 1e-4), Lbfgs(1e-5))
    (fit,) = train_probes(planted, [0], training)
    controls = train_controls({"token": [token_control(planted, encoder)]}, [0], training)
    evidence = collect_evidence(planted.train, planted.test, [0], [fit.moments], 3)
    (row,) = ClassResults(planted, [fit], evidence, controls).accuracy()
    assert row["accuracy"] > 0.95
    assert side_of(row, "token") != "above"


def test_the_token_alone_tells_nothing_of_shuffled_labels_of_words(tmp_path: Path) -> None:
    planted, encoder = in_two_pieces(tmp_path, "first", shuffle=True)
    found = token_control(planted, encoder)
    assert isinstance(found, Data)
    assert found.fit(l2=1e-4)[0].metrics["accuracy"] < 0.57  # of 360 test words; .5 by chance, sd .026


def test_the_mean_of_the_pieces_is_read_on_words_that_training_lacks(tmp_path: Path) -> None:
    planted, encoder = in_two_pieces(tmp_path, "last", shuffle=False)
    table = encoder.get_input_embeddings().weight.detach()
    tokens = planted.test.store.tokens
    rare = WordEmbeddings(planted.test.store, table, np.zeros(0, np.uint64))
    states = torch.cat([rare.read(0, shard.index) for shard in rare.plan.shards]).numpy()
    embeddings = table[tokens.input_ids.astype(np.int64)].numpy()
    expected = embeddings.copy()
    for row in np.flatnonzero(tokens.first_pieces):
        expected[row : row + 2] = embeddings[row : row + 2].mean(0)
    np.testing.assert_allclose(states, expected, rtol=1e-6, atol=1e-7)


def test_without_a_word_list_words_of_several_pieces_are_types_of_the_control_task(tmp_path: Path) -> None:
    planted, _ = in_two_pieces(tmp_path, "first", shuffle=False)
    texts = Corpus("running", ("",) * planted.train.store.tokens.n_sentences)
    draw = control_tasks(planted, [texts], str, seed=0)[0].train
    kept = draw.labels >= 0
    first, word = draw.store.tokens.input_ids[kept], word_keys(draw.store.tokens)[kept]
    assert all(len(np.unique(draw.labels[kept][word == key])) == 1 for key in np.unique(word))
    assert all(len(np.unique(draw.labels[kept][first == key])) == 2 for key in np.unique(first))


def test_activations_of_other_tokens_are_refused(planted: Data, tmp_path: Path) -> None:
    tokens = make_tokens(LENGTHS, seed=1)
    other = make_store(tmp_path / "other", [positional(tokens, 12, 2.0)], tokens, shard_tokens=500)
    with pytest.raises(ValueError, match="other tokens"):
        with_activations(planted, [other])


# --- the whole path ---


@pytest.fixture(scope="module")
def made(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(
        model=str(checkpoints["bert"]), corpus=str(corpus_file), runs=str(tmp_path_factory.mktemp("runs")), name="all",
        layer="0,2", wandb=NO_WANDB, task_args={"min_count": 5}, probe=ProbeOptions(l2=1e-3),
    )  # fmt: skip


@pytest.mark.slow
def test_controls_stand_beside_the_accuracy_of_every_layer(made: Run) -> None:
    for row in made.accuracy:
        for name in ("shuffled", "token", "permuted_positions", "untrained"):
            low, high = row[f"above_{name}_low"], row[f"above_{name}_high"]
            assert low <= row["accuracy"] - row[f"{name}_accuracy"] <= high
        # Tokens tell nothing of position here, and neither does a model that reads them in another order.
        for name in ("shuffled", "token", "permuted_positions"):
            assert row[f"{name}_accuracy"] < row["majority_accuracy"] + 0.06
    assert made.accuracy[0]["above_token_low"] > 0.3  # the embeddings know it
    assert "control_task_accuracy" not in made.accuracy[0]
    assert "selectivity" not in made.accuracy[0]


@pytest.mark.slow
def test_all_evidence_is_in_the_tables_by_default(made: Run) -> None:
    # The residual stream has neither heads nor features, nothing was held fixed, a position is no pair of spans and has
    # no control task.
    absent = "head", "feature", "span", "span_neuron", "correlated_group", "control_task_share", "selectivity"
    others = {*absent, *(column.name for column in WITHIN_COVARIATE)}
    assert set(columns_of(NEURONS)) - others == set(made.neurons[0])
    assert {"bootstrap_overlap", "more_penalty_overlap", "less_penalty_spearman"} <= set(made.accuracy[0])
    for row in made.accuracy:
        top = made.top(row["layer"], 16)
        assert [r["removed"].split(",")[0] for r in top[:8]] == ["top"] * 8
        assert all(1 <= r["rank_low"] <= r["rank_high"] <= 17 for r in top)
        assert all(r["cross_entropy_without_low"] <= r["cross_entropy_without"] for r in top if r["removed"])
    with safe_open(made.folder / "replicates.safetensors", "pt") as file:
        assert file.get_tensor("weight").shape[:2] == (5, len(made.accuracy))


@pytest.mark.slow
def test_controls_are_shown(made: Run, capsys: pytest.CaptureFixture[str]) -> None:
    from probing.runtime.terminal import render
    from probing.tables.probes import controls_table

    table = render(controls_table(made.accuracy))
    assert "permuted tokens" in table
    assert f"{made.accuracy[1]['untrained_accuracy']:.3f}" in table


@pytest.mark.slow
def test_order_is_taken_from_a_model_without_a_position_table_and_a_control_that_does_not_apply_is_named(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fit(
        model=str(checkpoints["llama"]), corpus=str(corpus_file), layer=1, random_weights=True, runs=str(tmp_path),
        controls=["permuted_positions", "untrained"], replicates=0, evidence="none", wandb=NO_WANDB,
        probe=ProbeOptions(l2=1e-4),
    )  # fmt: skip
    (row,) = run.accuracy
    low, high = row["above_permuted_positions_low"], row["above_permuted_positions_high"]
    assert low <= row["accuracy"] - row["permuted_positions_accuracy"] <= high
    said = capsys.readouterr().err
    assert "permuted_positions" not in said
    assert "untrained is left out" in said
    assert "untrained_accuracy" not in row
