"""What a probe loses without a neuron, in how much memory, and what comes out where the truth is planted.

A model that knows nothing but the word: its embedding output is a code of its own for each of twelve words. Labels are
either the word's own, which is easy, or drawn anew for every occurrence, which nobody can know.
"""

from __future__ import annotations

import gc
import math
import shutil
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer

from families import D_MODEL
from probing import Run
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.probes import retraining as module
from probing.probes.evidence import AblationEffect, collect_evidence, neuron_table
from probing.probes.retraining import (
    Retraining,
    ablation_effect,
    add_retraining_evidence,
    matched,
    unique,
    weights_without,
)
from probing.probes.solvers import Penalty, Problem
from probing.probes.training import LayerFit, Lbfgs, Training, train_variants
from probing.runs.loading import load_run
from probing.statistics.moments import MomentsAccumulator, PenaltySpace, Scaling
from synthetic import Data, make_store, make_tokens, objective, optimum, positional, scaled_features
from synthetic import sides as sides_of
from written import read_csv

pytestmark = pytest.mark.numeric

L2 = 1e-3
LENGTHS = np.random.default_rng(0).integers(6, 14, 240).tolist()


def scaling_of(states: Tensor, space: PenaltySpace = "sd") -> Scaling:
    accumulator = MomentsAccumulator(states.shape[1])
    accumulator.update(states)
    return Scaling(accumulator.result(), space)


def training(tolerance: float = 1e-6) -> Training:
    return Training(Penalty(0.0, L2), Lbfgs(tolerance))


# --- the estimate ---


def test_on_uncorrelated_neurons_the_estimate_is_the_weights_own_size() -> None:
    states = torch.linalg.qr(torch.randn(50, 6, generator=torch.Generator().manual_seed(0)))[0] * 50**0.5
    scaling, weight = scaling_of(states, "raw"), torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    scaled = (weight - weight.mean(0)).double()
    expected = scaled.square().sum(0) * (1 + 2 * L2 * 3) / (2 * 3)
    torch.testing.assert_close(unique(weight, scaling, L2), expected, rtol=1e-5, atol=0)


def test_a_dead_neuron_is_not_unique() -> None:
    states = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    states[:, 2] = 7
    assert unique(torch.ones(3, 4) * torch.arange(3.0)[:, None], scaling_of(states), L2)[2] == 0


def test_nothing_is_less_than_useless_however_neurons_repeat_each_other_and_small_the_penalty() -> None:
    states = torch.randn(500, 40, generator=torch.Generator().manual_seed(0))
    states[:, 20:] = states[:, :20] @ torch.randn(20, 20, generator=torch.Generator().manual_seed(1)) + 100
    weight = torch.randn(2, 40, generator=torch.Generator().manual_seed(2))
    for l2 in (1e-5, 1e-9):
        assert (unique(weight, scaling_of(states), l2) > 0).all()


# --- doing without ---


def test_what_others_say_exactly_is_read_off_them() -> None:
    states = torch.randn(80, 5, generator=torch.Generator().manual_seed(0))
    states[:, 4] = 2 * states[:, 0] - states[:, 3]
    weight = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    (start,) = weights_without(weight, [4], scaling_of(states), 1e-9)
    assert (start[:, 4] == 0).all()
    torch.testing.assert_close(states @ start.T, states @ weight.T, rtol=1e-3, atol=1e-3)


def test_matched_neurons_vary_about_as_much_and_are_none_of_the_top() -> None:
    sd = torch.arange(100.0)
    drawn = matched([3, 50, 97], [n for n in range(100) if n not in (3, 50, 97)], sd, seed=0)
    assert len({*drawn}) == 3
    assert not {*drawn} & {3, 50, 97}
    assert all(abs(n - top) <= 11 for n, top in zip(drawn, [3, 50, 97], strict=True))
    assert drawn == matched([3, 50, 97], [n for n in range(100) if n not in (3, 50, 97)], sd, seed=0)


def test_a_rise_is_paired_by_sentence() -> None:
    generator = np.random.default_rng(0)
    n_tokens = generator.integers(3, 30, 200)
    before = generator.exponential(5, 200) * n_tokens  # sentences differ far more than the effect
    found = ablation_effect(before, before + 0.1 * n_tokens, n_tokens, shift=0.0)
    assert found.value == pytest.approx(0.1)
    assert (found.low, found.high) == pytest.approx((0.1, 0.1))
    assert found.outcome == "seen"
    widened = ablation_effect(before, before + 0.1 * n_tokens, n_tokens, shift=0.11)
    assert (widened.low, widened.high) == pytest.approx((-0.01, 0.21))
    assert widened.outcome == "unresolved"
    few = ablation_effect(before[:19], before[:19] + 0.1 * n_tokens[:19], n_tokens[:19], shift=0.01)
    assert few.value == pytest.approx(0.1)
    assert np.isnan([few.low, few.high]).all()
    assert few.outcome == "unresolved"


def test_an_ablation_effect_is_negligible_only_where_its_interval_says_so() -> None:
    assert AblationEffect(0.0002, -0.0001, 0.0009).outcome == "negligible"
    assert AblationEffect(0.0002, -0.0001, 0.0011).outcome == "unresolved"
    assert AblationEffect(0.0007, 0.0005, 0.0009).outcome == "seen"
    assert AblationEffect(-0.003, -0.004, -0.002).outcome == "seen"
    assert AblationEffect(0.0, math.nan, math.nan).outcome == "unresolved"


@pytest.mark.slow
def test_ablation_effects_are_those_from_optimum_to_optimum(data: Data) -> None:
    fits = data.fit(l2=1e-4, tolerance=1e-3)
    train = replace(training(1e-3), penalty=Penalty(0.0, 1e-4))
    evidence = collect_evidence(data.train, data.test, [0], [fits[0].moments], len(data.classes))
    (found,), _ = add_retraining_evidence(evidence, Retraining(data, [0], fits, train, seed=0), 0, removals=True)
    (x, y), (_, test_y) = scaled_features(data.train), scaled_features(data.test)
    raw = np.concatenate([data.test.store.read(0, s.index).double().numpy() for s in data.test.store.plan.shards])
    test_x = raw[data.test.labels >= 0] / fits[0].moments.sd.numpy()

    def tested(neurons: list[int]) -> float:
        best = optimum(x[:, neurons], y, len(data.classes), 0, 1e-4)
        return objective(best, test_x[:, neurons], test_y, 0, 0)[0]

    with_all = tested(list(range(8)))
    for neuron, one in found.ablation_effects.items():
        exact = tested([i for i in range(8) if i != neuron]) - with_all
        # A twentieth of half the interval's width from the probe without the neuron, a hundredth from that with all.
        assert abs(one.value - exact) <= max(0.05 * abs(exact), 0.06 * (one.high - one.low) / 2), neuron
        assert one.low <= exact <= one.high


@pytest.mark.slow
def test_removals_are_solved_to_a_part_of_their_interval_and_no_closer(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = data.fit(l2=1e-4, tolerance=1e-3)
    train = replace(training(1e-3), penalty=Penalty(0.0, 1e-4))
    evidence = collect_evidence(data.train, data.test, [0], [fits[0].moments], len(data.classes))
    passes = []
    original = Retraining.train

    def noted(self: Retraining, what: str, problems: list[Problem], test: bool = False) -> list[LayerFit]:
        found = original(self, what, problems, test)
        if test:
            passes.append(sum(fit.n_passes for fit in found))
        return found

    monkeypatch.setattr(Retraining, "train", noted)
    (roughly,), _ = add_retraining_evidence(evidence, Retraining(data, [0], fits, train, seed=0), 0, removals=True)
    monkeypatch.setattr("probing.probes.retraining.PART", 0.0)
    (closely,), _ = add_retraining_evidence(evidence, Retraining(data, [0], fits, train, seed=0), 0, removals=True)
    assert passes[0] < passes[1]
    for neuron, one in roughly.ablation_effects.items():
        other = closely.ablation_effects[neuron]
        assert other.low <= one.value <= other.high
        assert 0.999 <= (one.high - one.low) / (other.high - other.low) <= 1.15


@pytest.fixture
def data(tmp_path: Path) -> Data:
    tokens = make_tokens(LENGTHS)
    states = positional(tokens, 8, 1.0)
    states[:, 6] = states[:, 5] + 0.01 * states[:, 6]  # twins: either does without the other
    states[:, 7] = 3 + np.random.default_rng(9).standard_normal(len(states))  # noise that serves as the intercept
    return sides_of(make_store(tmp_path / "store", [states, 2 * states], tokens, shard_tokens=400))


def test_a_probe_that_may_not_use_a_neuron_is_the_probe_of_the_others(data: Data) -> None:
    fits = data.fit(tolerance=1e-6)
    neurons = torch.arange(8) != 2
    start = weights_without(fits[0].weight, [2], Scaling(fits[0].moments, "sd"), L2)[0]
    (changed,) = train_variants(
        data, [0], fits, [Problem("without", 0, Penalty(0.0, L2), start, neurons)], training(), test=True
    )
    assert (changed.weight[:, 2] == 0).all()
    x, y = scaled_features(data.train)
    rest = np.delete(x, 2, axis=1)
    best = objective(optimum(rest, y, len(data.classes), 0, L2), rest, y, 0, L2)[0]
    assert changed.objective == pytest.approx(best, abs=2e-5)  # values are float32 sums
    assert changed.objective > fits[0].objective + 1e-3
    assert changed.metrics["cross_entropy"] == pytest.approx(
        changed.cross_entropy_by_sentence.sum() / data.test.n_tokens, rel=1e-5
    )


def test_where_many_neurons_are_left_out_the_others_are_preconditioned_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, generator = make_tokens(LENGTHS), np.random.default_rng(3)
    # Some of the others are twins, some are not: the whole layer's inverse, cut to these, is far from their own.
    states = positional(tokens, 24, 1.0) @ generator.standard_normal((24, 24))
    states[:, :12] = states[:, 12:] + states[:, :12] * np.geomspace(0.003, 3, 12)
    data = sides_of(make_store(tmp_path / "store", [states], tokens, shard_tokens=400))
    fits, neurons = data.fit(tolerance=1e-6), torch.arange(24) >= 12
    problems = [Problem(name, 0, Penalty(0.0, L2), neurons=own) for name, own in (("half", neurons), ("all", None))]
    half, _ = train_variants(data, [0], fits, problems, training())
    assert (half.weight[:, :12] == 0).all()
    x, y = scaled_features(data.train)
    best = objective(optimum(x[:, 12:], y, len(data.classes), 0, L2), x[:, 12:], y, 0, L2)[0]
    assert half.objective == pytest.approx(best, abs=2e-5)  # values are float32 sums
    monkeypatch.setattr("probing.probes.linear.FEW", 24)
    cut, _ = train_variants(data, [0], fits, problems, training())
    assert cut.objective == pytest.approx(best, abs=2e-5)
    assert half.n_passes < 0.8 * cut.n_passes


def test_a_sentence_that_is_drawn_twice_counts_twice(data: Data) -> None:
    fits = data.fit(tolerance=1e-6)
    draws = torch.from_numpy(np.random.default_rng(1).integers(0, 3, data.train.store.tokens.n_sentences)).float()
    problem = Problem("drawn", 0, Penalty(0.0, L2), draws=draws)
    (drawn,) = train_variants(data, [0], fits, [problem], training())
    x, y = scaled_features(data.train)
    sentences = data.train.store.tokens.sentences[data.train.labels >= 0]
    times = draws.numpy()[sentences].astype(int)
    x, y = np.repeat(x, times, axis=0), np.repeat(y, times)
    best = objective(optimum(x, y, len(data.classes), 0, L2), x, y, 0, L2)[0]
    assert drawn.objective == pytest.approx(best, abs=2e-5)
    assert drawn.metrics == {}


def test_evidence_tells_what_only_one_neuron_says_from_what_several_say(data: Data) -> None:
    layers = [0, 1]
    fits = data.fit(layers=layers, tolerance=1e-6)
    evidence = collect_evidence(data.train, data.test, layers, [fit.moments for fit in fits], len(data.classes))
    retraining = Retraining(data, layers, fits, training(1e-6), seed=0)
    found, _ = add_retraining_evidence(evidence, retraining, 0, removals=True)
    assert len(found) == 2
    table = neuron_table(0, fits[0].weight, found[0])
    rows = {row["neuron"]: row for row in table}
    removed = [row for row in table if row["removed"]]
    assert len(removed) == 8  # the first four, and as many beside them
    assert {row["neuron"] for row in removed if row["removed"].startswith("top")} == {
        row["neuron"] for row in table[:4]
    }
    for n in range(5):
        assert rows[n]["cross_entropy_without_low"] > 0, "each of these says what no other does"
    for n in (5, 6):
        assert rows[n]["cross_entropy_without"] < 0.2 * min(rows[i]["cross_entropy_without"] for i in range(5))
    # The estimate, which took no training, tells them apart too.
    assert max(rows[n]["unique"] for n in (5, 6)) < 0.5 * min(rows[n]["unique"] for n in range(5))
    assert found[0].penalty_stability["more_penalty_spearman"] > 0.5
    # The second layer is the first, doubled.
    for name in ("unique", "cross_entropy_without"):
        other = {row["neuron"]: row[name] for row in neuron_table(1, fits[1].weight, found[1])}
        assert [other[n] for n in range(5)] == pytest.approx([rows[n][name] for n in range(5)], rel=0.05)


def test_replicates_of_a_strong_signal_agree_and_those_of_noise_do_not(data: Data, tmp_path: Path) -> None:
    noise = positional(data.train.store.tokens, 40, 0.0)
    strong = noise.copy()
    strong[:, :5] += positional(data.train.store.tokens, 5, 3.0)
    both = sides_of(make_store(tmp_path / "both", [strong, noise], data.train.store.tokens, shard_tokens=400))
    fits = both.fit(layers=[0, 1])
    evidence = collect_evidence(both.train, both.test, [0, 1], [fit.moments for fit in fits], len(both.classes))
    retraining = Retraining(both, [0, 1], fits, training(1e-4), seed=0)
    (sure, unsure), weight = add_retraining_evidence(evidence, retraining, 4, removals=False)
    assert weight is not None
    assert weight.shape == (4, 2, len(both.classes), 40)
    assert sure.stability is not None
    assert unsure.stability is not None
    assert sure.stability.rank_high[:5].max() <= 5
    assert (unsure.stability.rank_high - unsure.stability.rank_low).mean() > 5


LAYERS = [0, 1, 2]


@pytest.fixture
def no_search() -> Iterator[None]:
    """Python searches for garbage only where it is told to."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_search")
def test_the_curvature_of_a_layer_is_freed_before_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = make_tokens(np.random.default_rng(0).integers(6, 14, 60).tolist())
    data = sides_of(
        make_store(tmp_path / "store", [positional(tokens, 8, 1.0) for _ in LAYERS], tokens, shard_tokens=400)
    )
    fits = data.fit(layers=LAYERS, l2=1e-3, tolerance=1e-4)
    evidence = collect_evidence(data.train, data.test, LAYERS, [fit.moments for fit in fits], len(data.classes))
    held: list[Any] = []
    alive: list[int] = []
    made = module.local_curvature

    def local_curvature(*args: Any, **options: Any) -> Any:
        alive.append(sum(one() is not None for one in held))
        near = made(*args, **options)
        held.append(weakref.ref(near.curvature))
        return near

    monkeypatch.setattr(module, "local_curvature", local_curvature)
    training = Training(Penalty(0.0, 1e-3), Lbfgs(1e-4))
    add_retraining_evidence(evidence, Retraining(data, LAYERS, fits, training, 0), n_replicates=2, removals=True)
    assert alive == [0, 0, 0]


N_WORDS, N_SENTENCES = 12, 240
LABELS = ("A", "B", "C")


def lookup(model: Path, copy: Path, words: list[str]) -> Path:
    """Save a copy of a BERT whose embedding output is one-hot in the word, up to a LayerNorm, and nothing else."""
    shutil.copytree(model, copy)
    weights, tokenizer = load_file(copy / "model.safetensors"), AutoTokenizer.from_pretrained(copy)
    for name in weights:
        if name.startswith("embeddings") and weights[name].ndim == 2:
            weights[name].zero_()
    (table,) = (name for name in weights if name.startswith("embeddings") and "word" in name)
    for i, word in enumerate(words):
        (piece,) = tokenizer(word, add_special_tokens=False)["input_ids"]
        weights[table][piece, i] = 1.0
    weights["embeddings.LayerNorm.weight"] = torch.ones(D_MODEL)
    weights["embeddings.LayerNorm.bias"] = torch.zeros(D_MODEL)
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    return copy


def single_words(model: Path, sentences: list[str]) -> list[str]:
    """Return words of the corpus that are a token each."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    known = sorted({word for sentence in sentences for word in sentence.lower().split() if word.isalpha()})
    return [word for word in known if len(tokenizer(word, add_special_tokens=False)["input_ids"]) == 1][:N_WORDS]


def spelt(word: str, capitals: np.random.Generator | None) -> str:
    """Return a word, with a capital half of the time if they are drawn."""
    return word.capitalize() if capitals is not None and capitals.random() < 0.5 else word


@pytest.fixture(scope="module")
def made(
    checkpoints: dict[str, Path], sentences: list[str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Run]:
    """Runs on labels that are the word's own (`easy`) and drawn for every occurrence (`random`).

    And of an uncased model on words that are the same but for a capital now and then (`capitals`).
    """
    place, generator = tmp_path_factory.mktemp("planted-labels"), np.random.default_rng(0)
    words = single_words(checkpoints["bert"], sentences)
    assert len(words) == N_WORDS
    cased = lookup(checkpoints["bert"], place / "lookup", words)
    uncased = lookup(checkpoints["distilbert"], place / "uncased", words)
    texts = [generator.integers(N_WORDS, size=generator.integers(6, 12)) for _ in range(N_SENTENCES)]
    labels: dict[str, Any] = {
        "easy": [[LABELS[i % 3] for i in text] for text in texts],
        "random": [generator.choice(LABELS, size=len(text)) for text in texts],
    }
    labels["capitals"] = labels["easy"]
    found = {}
    for name, rows in labels.items():
        model, capitals = (uncased, generator) if name == "capitals" else (cased, None)
        pairs = zip(texts, rows, strict=True)
        lines = [
            "".join(f"{spelt(words[i], capitals)}\t{label}\n" for i, label in zip(*pair, strict=True)) for pair in pairs
        ]
        (place / f"{name}.tsv").write_text("\n".join(lines), encoding="utf-8")
        typed = ["fit", "--model", str(model), "--corpus", str(place / f"{name}.tsv"), "--task", "label"]
        typed += [
            "--layer",
            "0",
            "--mdl",
            "--probe.l2",
            "0.01",
            "--controls",
            "control_task",
            "--replicates",
            "0",
            "--evidence",
            "none",
        ]
        typed += ["--runs", str(place), "--name", name, "--wandb.mode", "disabled", "--quiet"]
        assert run(COMMANDS, typed) == 0
        found[name] = load_run(place / name)
    return found


@pytest.mark.slow
def test_random_labels_take_the_uniform_code_and_easy_ones_far_fewer_bits(made: dict[str, Run]) -> None:
    easy, random = (made[name].accuracy[0] for name in ("easy", "random"))
    for row in (easy, random):
        assert row["uniform_code_bits"] == pytest.approx(row["n_train_tokens"] * np.log2(len(LABELS)))
    # By Kraft's inequality any code saves m bits on uniformly random labels with chance 2^-m.
    assert random["uniform_code_bits"] - 20 < random["online_code_bits"] < 1.1 * random["uniform_code_bits"]
    assert easy["compression"] > 5
    assert easy["accuracy"] > 0.99


@pytest.mark.slow
def test_erased_labels_are_predicted_as_well_as_by_the_best_constant_answer(made: dict[str, Run]) -> None:
    folder = made["easy"].folder
    assert run(COMMANDS, ["rank", str(folder), "--erase", "--top", "6", "--quiet", "--wandb.mode", "disabled"]) == 0
    rows = {row["condition"]: row for row in read_csv(folder / "rankings" / "erasure.csv")}
    assert rows["all"]["accuracy"] > 0.99
    erased = rows["erased"]
    assert erased["n_removed"] == len(LABELS) - 1
    # The held-out majority, but for answers that are as good as equal: a quarter of a standard error of an accuracy.
    assert erased["accuracy"] == pytest.approx(
        erased["majority_accuracy"], abs=0.25 * 0.5 / erased["n_test_tokens"] ** 0.5
    )
    assert erased["cross_entropy"] == pytest.approx(erased["constant_cross_entropy"], abs=0.01)
    # As many directions of shuffled labels within sentences, which still go with the words a little, leave some.
    assert rows["erased_shuffled"]["information_low"] > erased["information_high"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["easy", "random", "capitals"])
def test_who_looks_words_up_masters_the_control_task_so_that_selectivity_is_not_above_0(
    made: dict[str, Run], name: str
) -> None:
    (row,) = made[name].accuracy
    assert row["control_task_accuracy"] > 0.99
    assert row["selectivity"] == row["accuracy"] - row["control_task_accuracy"]
    assert row["selectivity"] <= 0
    assert row["above_control_task_low"] <= row["selectivity"] <= row["above_control_task_high"]
    if name == "random":
        assert row["selectivity"] < -0.5
