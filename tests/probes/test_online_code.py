"""The online code: by hand in float64, on labels that tell nothing and on labels that are easy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from conftest import BARE
from probing import WandbOptions, fit
from probing.probes.solvers import Penalty
from probing.probes.training import Lbfgs, Training, online_code, prefix_sizes, sentence_order
from probing.runtime.terminal import render
from probing.tables.probes import accuracy_table
from synthetic import LIGHTNING_WARNINGS, Data, make_store, make_tokens, optimum, positional, sides

pytestmark = [pytest.mark.numeric, *(pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS)]

TRAINING = Training(Penalty(0, 1e-4), Lbfgs(1e-6))


def planted(folder: Path, lengths: list[int], d_model: int, strength: float) -> Data:
    tokens = make_tokens(lengths)
    return sides(make_store(folder, [positional(tokens, d_model, strength)], tokens, shard_tokens=500))


def by_hand(sizes: Sequence[int], log_p: Callable[[int, int, float], float], first_bits: float) -> float:
    """Return the length of the code in bits, each block under the penalty that was best on the block before.

    Args:
        sizes: Sentences after which blocks end.
        log_p: Returns the log-probability of the sentences from `n` up to `until` by a probe of the first `n` ones.
        first_bits: What the first block takes.
    """
    bits, exponent = first_bits, -1
    for n, until in itertools.pairwise(sizes):
        found = {e: log_p(n, until, 10.0**e) for e in (exponent + 1, exponent, exponent - 1) if -8 <= e <= 2}
        bits -= found[exponent] / np.log(2)
        exponent = max(found, key=lambda e: found[e])
    return bits


def test_blocks_end_at_the_published_shares_of_the_sentences() -> None:
    assert prefix_sizes(10_000) == [10, 20, 40, 80, 160, 320, 625, 1250, 2500, 5000, 10_000]
    assert prefix_sizes(20) == [1, 2, 5, 10, 20]
    assert prefix_sizes(1) == [1]


def test_sentences_are_sent_once_each_in_an_order_of_the_seed(tmp_path: Path) -> None:
    train = planted(tmp_path, [7] * 40, 3, 1.0).train
    order = sentence_order(train, 3)
    assert sorted(order) == list(train.sentences())
    assert list(order) != sorted(order)
    assert list(order) == list(sentence_order(train, 3)) != list(sentence_order(train, 4))


def test_the_code_is_what_logistic_regression_gives_block_by_block(tmp_path: Path) -> None:
    # Every sentence has every class, as scikit-learn needs.
    data = planted(tmp_path, [7] * 60, 4, 1.0)
    order, (n_classes, d_model) = sentence_order(data.train, 5), (5, 4)
    states = np.concatenate([data.train.store.read(0, s.index).double().numpy() for s in data.train.store.plan.shards])
    rows = [np.flatnonzero((data.train.store.tokens.sentences == i) & (data.train.labels >= 0)) for i in order]
    sizes = [1, 3, 5, 10, 21, 42]  # shares of the 42 training sentences: .042, .084, ..., 1.3, 2.6, 5.2, 10.5, 21, 42
    assert [round(42 * share) for share in (0.0625, 0.125, 0.25, 0.5, 1)] == sizes[1:]

    def log_p(n: int, until: int, l2: float) -> float:
        known, block = np.concatenate(rows[:n]), np.concatenate(rows[n:until])
        sd = states[known].std(0)
        probe = LogisticRegression(C=1 / (2 * len(known) * l2), fit_intercept=False, tol=1e-10, max_iter=10_000)
        probe.fit(states[known] / sd, data.train.labels[known])
        p = probe.predict_proba(states[block] / sd)[np.arange(len(block)), data.train.labels[block]]
        return float(np.log(p).sum())

    bits = by_hand(sizes, log_p, len(rows[0]) * np.log2(n_classes))
    (code,) = online_code(data, [0], replace(TRAINING, solver=Lbfgs(1e-9)), seed=5)
    assert states.shape[1] == d_model
    assert code.layer == 0
    assert code.uniform == pytest.approx(42 * 5 * np.log2(5))
    # Probes stop within 1e-3 nats of the optimum.
    assert code.online == pytest.approx(bits, rel=5e-3)
    assert code.compression == pytest.approx(code.uniform / bits, rel=5e-3)


def test_a_class_that_no_earlier_sentence_had_costs_what_the_softmax_says(tmp_path: Path) -> None:
    lengths = np.random.default_rng(1).integers(4, 10, 40).tolist()
    data = planted(tmp_path, lengths, 6, 1.0)
    order, n_classes = sentence_order(data.train, 0), len(data.classes)
    tokens = data.train.store.tokens
    states = np.concatenate([data.train.store.read(0, s.index).double().numpy() for s in data.train.store.plan.shards])
    of = [np.flatnonzero((tokens.sentences == i) & (data.train.labels >= 0)) for i in order]
    sizes = prefix_sizes(len(order))
    unseen: list[int] = []

    def log_p(n: int, until: int, l2: float) -> float:
        known, block = np.concatenate(of[:n]), np.concatenate(of[n:until])
        x, y, sd = states[known], data.train.labels[known], states[known].std(0)
        unseen.append(int((~np.isin(data.train.labels[block], y)).sum()))
        logits = (states[block] / sd) @ optimum(x / sd, y, n_classes, 0, l2).T
        log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        return float(log_p[np.arange(len(block)), data.train.labels[block]].sum())

    bits = by_hand(sizes, log_p, sum(map(len, of[: sizes[0]])) * np.log2(n_classes))
    assert sum(unseen) > 0
    (code,) = online_code(data, [0], TRAINING, seed=0)
    assert code.online == pytest.approx(bits, rel=1e-2)


def test_random_labels_cannot_be_compressed(tmp_path: Path) -> None:
    # science.md, F8. By Kraft's inequality any code saves m bits on uniformly random labels with chance 2^-m.
    data = planted(tmp_path, [12] * 300, 4, 3.0)
    labels = np.random.default_rng(0).integers(10, size=len(data.train.labels))
    random = replace(data, train=replace(data.train, labels=np.where(data.train.labels >= 0, labels, -1)))
    (code,) = online_code(random, [0], TRAINING, seed=0)
    assert code.uniform == pytest.approx(210 * 10 * np.log2(10))
    assert code.uniform - 20 < code.online < 1.05 * code.uniform


@pytest.mark.parametrize("n_classes", [2, 8])
def test_random_labels_take_the_uniform_code_however_wide_the_layer(tmp_path: Path, n_classes: int) -> None:
    # At a fixed penalty of 1e-4 they took twice the uniform code, for early probes were wrong with confidence.
    data = planted(tmp_path, [12] * 200, 64, 1.0)
    labels = np.random.default_rng(n_classes).integers(n_classes, size=len(data.train.labels))
    random = replace(
        data, train=replace(data.train, labels=np.where(data.train.labels >= 0, labels, -1)),
        classes=np.arange(n_classes),
    )  # fmt: skip
    (code,) = online_code(random, [0], replace(TRAINING, penalty=Penalty(0, 1e-4)), seed=0)
    assert code.compression == pytest.approx(1, abs=0.05)


def test_easy_labels_take_far_fewer_bits(tmp_path: Path) -> None:
    data = planted(tmp_path, [12] * 300, 12, 5.0)
    (code,) = online_code(data, [0], replace(TRAINING, penalty=Penalty(0, 1e-4)), seed=0)
    assert code.compression > 10


@pytest.mark.slow
def test_fit_puts_the_code_beside_the_accuracy(checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path) -> None:
    run = fit(
        model=str(checkpoints["bert"]), corpus=str(corpus_file), layer="0,2", runs=str(tmp_path), mdl=True,
        wandb=WandbOptions(mode="disabled"), task_args={"min_count": 5}, quiet=True, **BARE,
    )  # fmt: skip
    assert run is not None
    for row in run.accuracy:
        assert row["uniform_code_bits"] == pytest.approx(row["n_train_tokens"] * np.log2(row["n_classes"]))
        assert row["compression"] == pytest.approx(row["uniform_code_bits"] / row["online_code_bits"])
    assert run.config["mdl"] is True
    assert run.accuracy[0]["compression"] > 1.2  # the embeddings know position
    assert f"{run.accuracy[0]['compression']:.1f}" in render(accuracy_table(run.accuracy))
