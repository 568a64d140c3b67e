"""Tokens on which neurons are highest and lowest: against a sort of all activations, in their sentences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import BARE
from probing import Run, UserError, WandbOptions, fit, load_run, probe
from probing.corpus import Corpus
from probing.evidence.neuron_profiles import N_OTHERS, extremes, profile_rows
from probing.runs.measuring import N_NEURONS, N_TOKENS
from probing.runs.neuron_page import NeuronPage, pages_of_first
from probing.runs.results import AROUND, in_context
from probing.statistics.intervals import mean_interval
from synthetic import Data, make_store, make_tokens, sides
from written import read_csv

pytestmark = pytest.mark.numeric
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
    found = extremes(test, neurons, 7).found
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
    few = extremes(replace(test, labels=np.where(np.arange(len(test.labels)) == here[0], 0, -1)), {1: [0]}, 7).found
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
def made(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = fit(
        model=str(checkpoints["bert"]), corpus=str(corpus_file), layer="0,2", quiet=True,
        runs=str(tmp_path_factory.mktemp("runs")), wandb=WandbOptions(mode="disabled"), **BARE,
    )  # fmt: skip
    assert run is not None
    return run


def test_a_run_has_the_first_neurons_of_each_layer_and_any_neuron_can_be_asked_for(made: Run) -> None:
    rows = read_csv(made.folder / "contexts.csv")
    again = load_run(made.folder)
    for layer in (0, 2):
        for neuron in made.top(layer, N_NEURONS):
            own = [row for row in rows if (row["layer"], row["neuron"]) == (layer, neuron["neuron"])]
            assert [row["end"] for row in own] == ["highest"] * N_TOKENS + ["lowest"] * N_TOKENS
            assert [row["place"] for row in own] == [*range(1, N_TOKENS + 1)] * 2
            assert own[0]["activation"] >= neuron["mean"] >= own[N_TOKENS]["activation"]
    asked = again.neuron(2, made.top(2, 1)[0]["neuron"], N_TOKENS)
    there = [row for row in again.contexts if row["layer"] == 2][: 2 * N_TOKENS]
    assert [*asked] == there
    texts = set(made.test_sentences)
    for row in asked:
        inside = row["before"].removeprefix("…") + row["token"] + row["after"].removesuffix("…")
        assert any(inside in text for text in texts)
        assert type(row["class"]) is int
    last = again.neuron(0, made.top(0, 16)[-1]["neuron"], 1)  # no first one
    assert [row["end"] for row in last] == ["highest", "lowest"]


def test_what_fit_has_written_of_a_neuron_is_what_is_found_when_it_is_asked_for(made: Run) -> None:
    again = load_run(made.folder)
    pages = list(pages_of_first(again))
    assert [(page.layer, page.neuron) for page in pages] == [
        (layer, row["neuron"]) for layer in (0, 2) for row in made.top(layer, N_NEURONS)
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
    weight = made.weight[1, :, asked.neuron].double()
    assert [row["weight"] for row in asked.classes] == pytest.approx((weight - weight.mean()).tolist())
    assert [row["class"] for row in asked.classes] == made.results["classes"]
    ranked = {row["layer"]: row["rank"] for row in made.neurons if row["neuron"] == asked.neuron}
    assert {row["layer"]: row["rank"] for row in asked.ranks} == ranked
    assert f"has rank {ranked[2]} of {made.weight.shape[-1]}; " in asked.sentences()[0]
    assert f"Other ranks: {ranked[0]} in layer 0." in asked.sentences()[0]
    (other,) = again.neuron(0, made.top(0)[0]["neuron"], 1).sentences()[:1]
    assert "the neuron of this index is first in layer" in other
    shown = asked._repr_html_()
    assert shown.count("<svg") == 1
    assert asked.sentences()[1] in repr(asked)
    assert str(asked.positions[0]["index"]) in repr(asked)
    assert asked.cosine_share == values_of(asked.profile, "cosine_share")[0]["value"]


def test_what_is_not_there_is_refused_in_the_words_of_the_call(made: Run) -> None:
    for call, words in (
        ((1, 0), r"`layer=1`: .* has layers 0 and 2"),
        ((2, 4096), r"`neuron=4096`: layer 2 of .* has the neurons 0 to "),
        ((2, 0, 0), r"`n=0` is not allowed; use a whole number from 1 to"),
    ):
        with pytest.raises(UserError, match=words):
            made.neuron(*call)
    X = np.random.default_rng(0).standard_normal((90, 3)).astype(np.float32)
    run = probe(X, (X[:, 0] > 0).astype(int), replicates=0, evidence="none", probe={"l2": 1e-2})
    with pytest.raises(UserError, match="from arrays, which are not kept"):
        run.neuron(0, 0)
    assert run.contexts == []
