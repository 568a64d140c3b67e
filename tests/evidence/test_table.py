"""The table of evidence, and scores of classes and positions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from probing.builtin_tasks.position import Position

import probing
from probing import Run, WandbOptions, fit
from probing.cli.options import ProbeOptions
from probing.data import examples as examples_module
from probing.data.examples import Examples
from probing.data.module import layer_moments
from probing.probes.evidence import collect_evidence, flags, neuron_table
from probing.probes.neuron_profiles import class_scores, confusions, position_line, positions_of, predicted_classes
from probing.statistics import accuracy_interval, label_scores, ranked
from probing.statistics.chance import permute_within_sentences
from probing.statistics.label_scores import EtaSquaredAccumulator
from probing.tables.conclusions import conclusion
from probing.tables.schema import POSITIONS
from probing.text import Split, assign_splits
from probing.text.tokens import Tokens
from synthetic import Array, Data, make_splits, make_store, make_tokens, positional, sides
from written import columns_of, read_csv

pytestmark = pytest.mark.numeric

LENGTHS = np.random.default_rng(0).integers(8, 13, 200).tolist()
N_NOISE = 20


def planted(seed: int = 0, **columns: Callable[[Array, Array], Array]) -> tuple[Tokens, NDArray[Any]]:
    """Return a token table and 20 neurons of noise, some of them replaced by functions of position and noise.

    Arguments:
        columns: `n3` replaces neuron 3.
    """
    tokens = make_tokens(LENGTHS)
    generator = np.random.default_rng(seed)
    states = generator.standard_normal((tokens.n_tokens, N_NOISE))
    for name, column in columns.items():
        states[:, int(name[1:])] = column(tokens.positions.astype(float), generator.standard_normal(tokens.n_tokens))
    return tokens, states


def tabulate(data: Data, **how: Any) -> list[dict[str, Any]]:
    fit = data.fit(**how)[0]
    evidence = collect_evidence(data.train, data.test, [0], [fit.moments], len(data.classes))[0]
    return neuron_table(0, fit.weight, evidence)


def table_of(folder: Path, tokens: Tokens, states: NDArray[Any], **how: Any) -> list[dict[str, Any]]:
    return tabulate(sides(make_store(folder / "store", [states], tokens)), **how)


def by_neuron(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {row["neuron"]: row for row in rows}


def informative(position: Array, noise: Array) -> Array:
    return position + noise


def constant(position: Array, noise: Array) -> Array:
    return 10 + 0.5 * noise


def almost_still(position: Array, noise: Array) -> Array:
    return 1e-8 * noise


# --- what is planted is found ---


def test_an_informative_neuron_is_ranked_first_and_a_constant_is_flagged(tmp_path: Path) -> None:
    rows = table_of(tmp_path, *planted(n4=informative, n9=constant))
    found = by_neuron(rows)
    assert {rows[0]["neuron"], rows[1]["neuron"]} == {4, 9}  # the constant is the intercept that the probe lacks
    assert found[9]["flag"] == "offset no-signal"
    assert found[9]["contribution_centred"] < 0.2 * found[9]["contribution"]
    assert found[4]["eta_squared"] == max(row["eta_squared"] for row in rows) > 0.5
    assert found[4]["eta_squared_z"] > 20
    assert "no-signal" not in found[4]["flag"]
    by_centred = max(rows, key=lambda row: row["contribution_centred"])
    assert by_centred["neuron"] == 4


@pytest.mark.parametrize("seed", range(3))
def test_an_informative_neuron_among_noise_is_first_without_a_flag(tmp_path: Path, seed: int) -> None:
    vectors = np.random.default_rng(seed).standard_normal(20)
    rows = table_of(tmp_path, *planted(seed, n4=lambda position, noise: vectors[position.astype(int)] + 0.3 * noise))
    assert rows[0]["neuron"] == 4
    assert rows[0]["flag"] == ""
    assert rows[0]["ratio"] > 5
    assert "it varies with position" in conclusion(rows, "position")


def test_a_neuron_that_hardly_varies_is_dead_with_no_contribution_at_all(tmp_path: Path) -> None:
    rows = table_of(tmp_path, *planted(n4=informative, n7=almost_still, n8=lambda position, noise: 3 + 0 * noise))
    for neuron in (7, 8):
        row = by_neuron(rows)[neuron]
        assert row["flag"] == "dead"
        assert row["contribution"] == row["contribution_centred"] == row["share"] == 0.0
    assert [row["neuron"] for row in rows[-2:]] == [7, 8]  # a tie


def test_most_noise_neurons_are_said_to_have_no_signal(tmp_path: Path) -> None:
    rows = table_of(tmp_path, *planted(n4=informative))
    noise = [row for row in rows if row["neuron"] != 4]
    assert sum(row["flag"] == "no-signal" for row in noise) >= len(noise) - 1


def test_a_suppressor_pair_has_no_signal_but_contributes(tmp_path: Path) -> None:
    """Two neurons of shared noise, told apart by position: only their difference is informative."""
    shared = 12 * np.random.default_rng(5).standard_normal(sum(LENGTHS))
    tokens, states = planted(
        n3=lambda position, noise: shared + (position - 5) / 4 + 0.1 * noise, n6=lambda position, noise: shared
    )
    rows = table_of(tmp_path, tokens, states, l2=1e-5)
    pair = [by_neuron(rows)[3], by_neuron(rows)[6]]
    assert {row["neuron"] for row in rows[:2]} == {3, 6}
    for row in pair:
        assert row["flag"] == "no-signal"
        assert row["contribution_centred"] > 0.9 * row["contribution"]
        assert row["ratio"] > 3
    assert "useful only together with other neurons" in conclusion(rows, "position")


def test_ratio_and_share_are_of_the_layer(tmp_path: Path) -> None:
    rows = table_of(tmp_path, *planted(n4=informative))
    contribution = np.array([row["contribution"] for row in rows])
    np.testing.assert_allclose([row["ratio"] for row in rows], contribution / contribution.mean(), rtol=1e-12)
    np.testing.assert_allclose([row["share"] for row in rows], contribution / contribution.sum(), rtol=1e-12)
    assert [row["rank"] for row in rows] == list(range(1, N_NOISE + 1))
    assert (np.diff(contribution) <= 0).all()


def test_mean_and_sd_are_those_of_training_tokens(tmp_path: Path) -> None:
    tokens, states = planted(n4=constant)
    data = sides(make_store(tmp_path / "store", [states], tokens))
    kept = states.astype(np.float32)[data.train.labels >= 0]
    for row in tabulate(data):
        assert row["mean"] == pytest.approx(kept[:, row["neuron"]].mean(dtype=np.float64), abs=1e-9)
        assert row["sd"] == pytest.approx(kept[:, row["neuron"]].std(dtype=np.float64), rel=1e-6)  # squares in float32


# --- the same inputs, the same table ---


def test_ties_go_to_the_lower_index() -> None:
    assert [i for _, i in ranked(np.array([1.0, 3.0, 3.0, 0.0, 3.0, 0.0]))] == [1, 2, 4, 0, 3, 5]
    assert [i for _, i in ranked(np.zeros(10_000))] == list(range(10_000))


def assert_same_tables(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    """Assert that ranks and flags are equal and numbers are but for the order of float32 sums."""
    assert [row["neuron"] for row in one] == [row["neuron"] for row in other]
    assert [row["flag"] for row in one] == [row["flag"] for row in other]
    for name in ("contribution", "contribution_centred", "eta_squared", "eta_squared_z", "eta_squared_p"):
        np.testing.assert_allclose(
            [row[name] for row in one], [row[name] for row in other], rtol=1e-3, atol=1e-5, err_msg=name
        )


def reordered(tokens: Tokens, states: NDArray[Any], sentences: NDArray[Any]) -> tuple[Tokens, NDArray[Any]]:
    """Return table and activations with the sentences in another order."""
    rows = np.concatenate([np.arange(tokens.offsets[s], tokens.offsets[s + 1]) for s in sentences])
    return Tokens(tokens.lengths[sentences], tokens.input_ids[rows], tokens.words[rows]), states[rows]


def test_the_table_does_not_depend_on_the_order_of_sentences_or_the_size_of_shards(tmp_path: Path) -> None:
    tokens, states = planted(n4=informative, n9=constant, n7=almost_still)
    splits = make_splits(tokens.n_sentences)
    sentences = np.random.default_rng(1).permutation(tokens.n_sentences)
    one = tabulate(sides(make_store(tmp_path / "a", [states], tokens), splits=splits), tolerance=1e-6)
    moved, moved_states = reordered(tokens, states, sentences)
    store = make_store(tmp_path / "b", [moved_states], moved, shard_tokens=77)
    other = tabulate(sides(store, splits=[splits[s] for s in sentences]), tolerance=1e-6)
    assert_same_tables(one, other)


@pytest.mark.slow
def test_the_table_does_not_depend_on_where_blocks_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, states = planted(n4=informative, n9=constant)
    data = sides(make_store(tmp_path / "store", [states], tokens))
    whole = tabulate(data, tolerance=1e-6)
    monkeypatch.setattr(examples_module, "BLOCK_BYTES", 7 * 4 * N_NOISE)  # within sentences
    assert_same_tables(whole, tabulate(data, tolerance=1e-6))


def relabelled(examples: Examples, order: NDArray[Any]) -> Examples:
    return Examples(examples.store, np.where(examples.labels >= 0, order[examples.labels.clip(min=0)], -1))


def test_the_table_does_not_depend_on_the_numbering_of_classes(tmp_path: Path) -> None:
    tokens, states = planted(n4=informative, n9=constant)
    data = sides(make_store(tmp_path / "store", [states], tokens))
    new = np.random.default_rng(2).permutation(len(data.classes))
    train, validation, test = (relabelled(part, new) for part in (data.train, data.validation, data.test))
    renumbered = Data(train, validation, test, data.classes[np.argsort(new)], ordinal=True)
    assert_same_tables(tabulate(data, tolerance=1e-6), tabulate(renumbered, tolerance=1e-6))


def test_a_vector_added_to_every_class_changes_no_row(tmp_path: Path) -> None:
    tokens, states = planted(n4=informative)
    data = sides(make_store(tmp_path / "store", [states], tokens))
    fit = data.fit()[0]
    evidence = collect_evidence(data.train, data.test, [0], [fit.moments], len(data.classes))[0]
    shifted = fit.weight.double() + torch.linspace(-5, 5, N_NOISE)
    assert_same_tables(neuron_table(0, fit.weight, evidence), neuron_table(0, shifted, evidence))


def test_evidence_of_few_and_of_many_examples_in_a_shard_agrees(tmp_path: Path) -> None:
    tokens, states = planted(n4=informative)
    data = sides(make_store(tmp_path / "store", [states], tokens))
    few = Examples(data.train.store, np.where(tokens.sentences % 5, -1, data.train.labels))
    moments = data.fit()[0].moments
    found = collect_evidence(few, data.test, [0], [moments], len(data.classes))[0].separation
    kept = few.labels >= 0
    assert 0 < kept.mean() < 0.2
    codes = few.codes(len(data.classes))
    between = codes.excess_between(few.labels, tokens.sentences)
    alone = EtaSquaredAccumulator(moments.mean, moments.sd, codes, between)
    rows = (torch.from_numpy(part[kept]) for part in (states.astype(np.float32), few.labels, tokens.sentences))
    alone.update(*rows)
    torch.testing.assert_close(found.eta_squared, alone.result().eta_squared, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(found.p, alone.result().p, rtol=1e-6, atol=1e-300)


def _between(x: Array, labels: NDArray[Any]) -> NDArray[Any]:
    groups = [x[labels == c] for c in np.unique(labels)]
    return sum(len(g) * (g.mean(0) - x.mean(0)) ** 2 for g in groups)


def test_so_many_classes_that_neurons_are_taken_in_parts_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, states = planted(n4=informative)
    data = sides(make_store(tmp_path / "store", [states], tokens))
    moments = layer_moments(data.train, [0])
    (whole,) = collect_evidence(data.train, data.test, [0], moments, len(data.classes))
    monkeypatch.setattr(label_scores, "PRODUCTS", 14 * len(data.classes) ** 2)
    (parts,) = collect_evidence(data.train, data.test, [0], moments, len(data.classes))
    torch.testing.assert_close(parts.separation.p, whole.separation.p)


@pytest.mark.parametrize("n_classes", [2, 8])
def test_random_labels_leave_no_neuron_a_signal_whatever_the_number_of_classes(tmp_path: Path, n_classes: int) -> None:
    """A z of 4 from 20 draws is exceeded by chance in 2.3% of neurons with 2 classes, in .5% with 8."""
    tokens, generator = make_tokens(LENGTHS), np.random.default_rng(3)
    states = generator.standard_normal((tokens.n_tokens, 400))
    data = sides(make_store(tmp_path / "store", [states], tokens))
    random = generator.integers(n_classes, size=tokens.n_tokens)
    train, test = (replace(e, labels=np.where(e.labels >= 0, random, -1)) for e in (data.train, data.test))
    (evidence,) = collect_evidence(train, test, [0], layer_moments(train, [0]), n_classes)
    rows = neuron_table(0, torch.from_numpy(generator.standard_normal((n_classes, 400))), evidence)
    assert {row["flag"] for row in rows} == {"no-signal"}
    assert min(row["eta_squared_p"] for row in rows) < 0.02  # of 400
    assert min(row["eta_squared_q"] for row in rows) > 0.01


# --- flags and what they let one conclude ---


@pytest.mark.parametrize(
    ("contribution", "centred", "q", "dead", "flag"),
    [
        (1.0, 0.9, 1e-9, False, ""),
        (1.0, 0.4, 1e-9, False, "offset"),
        (1.0, 0.5, 0.01, False, ""),  # both bars are the first values that pass
        (1.0, 0.9, 0.011, False, "no-signal"),
        (1.0, 0.1, 1.0, False, "offset no-signal"),
        (0.0, 0.0, 1e-9, True, "dead"),
    ],
)
def test_flags(contribution: float, centred: float, q: float, dead: bool, flag: str) -> None:
    values = torch.tensor([contribution, centred, q], dtype=torch.float64)[:, None]
    assert flags(values[0], values[1], values[2], torch.tensor([dead])) == [flag]


def row(**values: Any) -> dict[str, Any]:
    return {
        "layer": 3, "rank": 1, "neuron": 17, "contribution": 2.0, "ratio": 8.25, "share": 0.125,
        "contribution_centred": 1.5, "eta_squared": 0.25, "eta_squared_z": 99.0, "eta_squared_p": 0.034, "flag": "",
        **values,
    }  # fmt: skip


MEASURED: dict[str, Any] = {
    "rank_low": 1, "rank_high": 1, "removed": "top", "cross_entropy_without": 0.02, "cross_entropy_without_low": 0.01,
    "cross_entropy_without_high": 0.03, "removed_p": 0.01, "direction_p": 0.048, "direction_p_centred": 0.048,
}  # fmt: skip


@pytest.mark.parametrize(
    ("removed", "low", "high"),
    [
        ("", math.nan, math.nan),
        ("top, negligible", -0.0001, 0.0002),
        ("top, unresolved", -0.01, 0.02),
        ("top", 0.0001, 0.0004),  # more than nothing, and less than what counts
        ("top", -0.02, -0.01),
    ],
)
@pytest.mark.parametrize(("flag", "how_much"), [("", ""), ("offset", " in part")])
def test_a_neuron_carries_what_is_predicted_only_if_a_probe_without_it_does_worse(
    removed: str, low: float, high: float, flag: str, how_much: str
) -> None:
    assert f"it carries position{how_much}" in conclusion([row(**MEASURED, flag=flag)], "position")
    loss = {"removed": removed, "cross_entropy_without_low": low, "cross_entropy_without_high": high}
    said = conclusion([row(**{**MEASURED, **loss}, flag=flag)], "position")
    assert "it varies with position" in said
    assert "carries" not in said


@pytest.mark.parametrize("flag", ["", "offset"])
@pytest.mark.parametrize(("plain", "centred"), [(0.048, 0.095), (0.095, 0.048), (0.048, 0.048), (None, None)])
def test_a_neuron_carries_what_is_predicted_only_if_no_direction_contributes_as_much(
    flag: str, plain: float | None, centred: float | None
) -> None:
    """One that leads by its mean must be above directions without it, too; nothing is shown without rotations."""
    values = {**MEASURED, "direction_p": plain, "direction_p_centred": centred, "flag": flag}
    is_above = plain == 0.048 and (centred == 0.048 or not flag)
    said = conclusion([row(**values)], "position")
    assert ("it carries" in said) is is_above
    assert ("it varies with position" in said) is not is_above


@pytest.mark.parametrize(("low", "high", "is_enough"), [(0.01, 0.05, False), (-0.01, 0.02, True), (-0.05, -0.01, True)])
def test_a_neuron_carries_nothing_that_the_token_alone_gives(low: float, high: float, is_enough: bool) -> None:
    layer = {"accuracy": 0.837, "token_accuracy": 0.875, "above_token_low": low, "above_token_high": high}
    said = conclusion([row(**MEASURED)], "upos", layer)
    assert ("it carries upos" in said) is not is_enough
    assert ("it varies with upos" in said) is is_enough
    why = (
        "The probe is not shown to do better than one that sees the token alone (0.837 against 0.875), so that its "
        "accuracy is no evidence of upos beyond the token."
    )
    assert (why in said) is is_enough


def test_evidence_that_was_not_measured_is_named() -> None:
    assert "did not measure" not in conclusion([row(**MEASURED)], "position")
    both = conclusion([row()], "position")
    assert both.endswith(" This run did not measure how stable its rank is and what a probe loses without it.")
    only = conclusion([row(rank_low=1, rank_high=2)], "position")
    assert only.endswith(" This run did not measure what a probe loses without it.")


def test_a_neuron_without_flags_carries_what_is_predicted() -> None:
    said = conclusion([row(**MEASURED)], "position")
    assert said.startswith(
        "Layer 3: neuron 17 contributes most, 12.5% of the total and 8.2 times the mean (rank 1 in all bootstraps)."
        " Centring leaves 75% of its"
    )
    assert "the label explains 25.0% of its variance beyond chance (z = 99)" in said
    assert "it carries position" in said


@pytest.mark.parametrize(
    ("flag", "words", "never"),
    [
        ("offset no-signal", "replaces the missing intercept and is no evidence of depth", "carr"),
        ("offset", "overstates it: centring leaves only 75% of its contribution", "intercept"),
        ("no-signal", "useful only together with other neurons", "irrelevant"),
    ],
)
def test_each_flag_is_put_in_words(flag: str, words: str, never: str) -> None:
    said = conclusion([row(flag=flag)], "depth")
    assert words in said
    assert never not in said


@pytest.mark.parametrize("flag", ["no-signal", "offset no-signal"])
def test_how_probable_it_is_under_chance_is_said_where_it_is_no_better(flag: str) -> None:
    assert "distinguish the classes beyond chance (p = 0.034)" in conclusion([row(flag=flag)], "depth")


def test_a_negative_excess_is_said_as_none() -> None:
    assert "0.0% of its variance" in conclusion([row(eta_squared=-0.001)], "position")


def test_where_nothing_contributes_nothing_is_concluded_of_a_neuron(tmp_path: Path) -> None:
    rows = table_of(tmp_path, *planted(n4=informative), l1=100.0)
    assert [row["neuron"] for row in rows] == list(range(N_NOISE))
    assert all(row["contribution"] == row["ratio"] == row["share"] == 0 for row in rows)
    assert conclusion(rows, "position") == "Layer 0: no neuron contributes, because every weight of the probe is 0."


# --- real activations ---


@pytest.fixture(scope="session")
def real(part_of_builtin: Path, builtin_cache: Path) -> tuple[Tokens, Array, list[Split]]:
    """Layer 3 of the built-in model on two fifths of its corpus, in float64 with its token table and split."""
    from probing.activations import Request, activations
    from probing.models import resolve_model
    from probing.text import load_corpus

    corpus = load_corpus(str(part_of_builtin))
    store = activations(Request(resolve_model("minilm"), corpus, [3]), builtin_cache, {"accelerator": "cpu"})
    states = torch.cat([store.read(3, shard.index) for shard in store.plan.shards]).double().numpy()
    return store.tokens, states, assign_splits(corpus.sentences, 0)


@pytest.mark.slow
def test_neurons_planted_among_real_ones_are_told_apart(
    real: tuple[Tokens, Array, list[Split]], tmp_path: Path
) -> None:
    tokens, states, splits = real
    generator = np.random.default_rng(0)
    noise = generator.standard_normal((3, tokens.n_tokens))
    examples = ~tokens.special & (tokens.positions <= 60)
    position = tokens.positions / tokens.positions[examples].std()
    linear = np.sqrt(0.9) * position + np.sqrt(0.1) * noise[0]  # 90% of its variance is position's
    planted_states = np.column_stack([states, linear, 10 + 0.5 * noise[1], 1e-8 * noise[2]])
    store = make_store(tmp_path / "store", [planted_states], tokens, shard_tokens=20_000)
    data = sides(store, Position(max_position=60), splits)
    # 1e-3 nats: the ranking's top has settled (and its passes fit into a test).
    fit = data.fit(l2=1e-4, tolerance=1e-3)[0]
    assert fit.converged
    evidence = collect_evidence(data.train, data.test, [0], [fit.moments], len(data.classes))[0]
    rows = neuron_table(3, fit.weight, evidence)
    found = by_neuron(rows)
    assert max(rows, key=lambda row: row["eta_squared"])["neuron"] == 384
    # Of position itself labels permuted within sentences explain a part (they know the sentence's length).
    kept = data.train.labels >= 0
    draw = permute_within_sentences(data.train.labels, tokens.sentences, tokens.input_ids, 1, seed=1)[0]
    null = _between(position[kept, None], draw[kept])[0] / (kept.sum() * position[kept].var())
    assert found[384]["eta_squared"] == pytest.approx(0.9 * (1 - null), abs=0.01)
    assert found[384]["flag"] == ""
    assert found[385]["flag"] == "offset no-signal"
    assert found[385]["rank"] <= 10
    assert found[386]["flag"] == "dead"
    assert found[386]["contribution"] == 0.0


@pytest.mark.slow
def test_real_activations_with_shuffled_labels_predict_nothing(
    real: tuple[Tokens, Array, list[Split]], tmp_path: Path
) -> None:
    tokens, states, splits = real
    store = make_store(tmp_path / "store", [states], tokens, shard_tokens=20_000)
    data = sides(store, Position(), splits)
    parts = []
    for seed, examples in enumerate((data.train, data.validation, data.test)):
        labels = permute_within_sentences(examples.labels, tokens.sentences, tokens.input_ids, 1, seed)[0]
        parts.append(Examples(store, labels))
    train, validation, test = parts
    fit = Data(train, validation, test, data.classes, ordinal=True).fit(l2=1e-4, tolerance=1e-2)[0]
    assert fit.converged
    s, n = len(data.test.sentences()), data.test.n_tokens
    # No predictor can expect more than one token a sentence, with a standard error near sqrt(S) / N.
    assert fit.metrics["accuracy"] <= s / n + 3 * np.sqrt(s) / n


@pytest.mark.slow
@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    copies=st.lists(st.integers(1, 5), min_size=1, max_size=3, unique=True),
    factors=st.lists(st.sampled_from([1.0, -1.0, 2.0, 0.125, 1024.0]), min_size=3, max_size=3),
    shuffled=st.booleans(),
)
def test_copies_of_a_column_share_a_rank_and_are_one_group(
    copies: list[int], factors: list[float], shuffled: bool
) -> None:
    generator = np.random.default_rng(len(copies))
    X, n = generator.standard_normal((300, 6)), 300
    for copy, factor in zip(copies, factors, strict=False):
        X[:, copy] = factor * X[:, 0]
    y = (X[:, 0] + 0.4 * generator.standard_normal(n) > 0).astype(int)
    y = generator.permutation(y) if shuffled else y
    run = probing.probe(
        X.astype(np.float32), y, split=["train"] * 200 + ["test"] * 100, quiet=True, replicates=2, evidence="none",
        controls="none", probe={"l2": 1e-2},
    )  # fmt: skip
    group, by_neuron = sorted([0, *copies]), {row["neuron"]: row for row in run.neurons}
    for name in ("rank", "correlated_group"):
        assert len({by_neuron[neuron][name] for neuron in group}) == 1, name
    assert [by_neuron[neuron]["correlated_group"] for neuron in group] == [0] * len(group)
    assert all(row["correlated_group"] == "" for neuron, row in by_neuron.items() if neuron not in group)
    ranks = [row["rank"] for row in run.neurons]
    assert ranks == sorted(ranks)
    if not shuffled:
        assert [row["neuron"] for row in run.neurons if row["rank"] == 1] == group
    for row in run.neurons:
        assert row["rank_low"] <= row["rank"] <= row["rank_high"]
    if not shuffled:
        named = f"{', '.join(map(str, group[:-1]))} and {group[-1]}"
        said = str(run.conclusions())
        assert f"neurons {named} contribute most, equally" in said
        assert f"Neurons {named} are a group" in said
    assert probing.load_run(run.folder).neurons == run.neurons


SCORED_LENGTHS = np.random.default_rng(0).integers(4, 12, 300).tolist()


@pytest.fixture
def data(tmp_path: Path) -> Data:
    tokens = make_tokens(SCORED_LENGTHS)
    return sides(make_store(tmp_path / "store", [positional(tokens, 8, 0.5)] * 2, tokens, shard_tokens=300))


def predictions(data: Data, weight: torch.Tensor) -> np.ndarray:
    (predicted,) = predicted_classes(data.test, [1], [weight])
    return predicted


def test_counts_and_intervals_are_those_of_a_loop(data: Data) -> None:
    weight = torch.randn(len(data.classes), 8, generator=torch.Generator().manual_seed(0))
    test, predicted = data.test, predictions(data, weight)
    states = np.concatenate([test.store.read(1, shard.index).numpy() for shard in test.store.plan.shards])
    expected = [
        int(np.argmax(weight.numpy() @ state)) if y >= 0 else -1 for y, state in zip(test.labels, states, strict=True)
    ]
    assert predicted.tolist() == expected
    rows = class_scores(data, 1, predicted)
    assert [row["class"] for row in rows] == data.classes.tolist()
    for i, row in enumerate(rows):
        for name, of, n in (("recall", test.labels, "n_test_tokens"), ("precision", predicted, "n_predicted")):
            here = np.flatnonzero(of == i)
            right = [int(test.labels[token] == predicted[token]) for token in here]
            assert row[n] == len(here)
            if not right:
                assert np.isnan([row[name], row[f"{name}_low"], row[f"{name}_high"]]).all()
                continue
            assert row[name] == pytest.approx(np.mean(right))
            sentences = test.store.tokens.sentences[here]
            by_sentence = [[right[k] for k in np.flatnonzero(sentences == s)] for s in np.unique(sentences)]
            sums, counts = (np.array([of_one(own) for own in by_sentence]) for of_one in (sum, len))
            np.testing.assert_allclose([row[f"{name}_low"], row[f"{name}_high"]], accuracy_interval(sums, counts))
        assert row["n_train_tokens"] == (data.train.labels == i).sum()


def test_scores_and_confusions_are_those_of_scikit_learn(data: Data) -> None:
    from sklearn.metrics import confusion_matrix, f1_score, precision_recall_fscore_support

    (fit,) = data.fit([1])
    predicted, here = predictions(data, fit.weight), data.test.labels >= 0
    true, taken_for, n = data.test.labels[here], predicted[here], len(data.classes)
    rows = class_scores(data, 1, predicted)
    precision, recall, f1, support = precision_recall_fscore_support(true, taken_for, labels=range(n), zero_division=0)
    for name, values in (("precision", precision), ("recall", recall), ("f1", f1), ("n_test_tokens", support)):
        np.testing.assert_allclose(np.nan_to_num([row[name] for row in rows]), values)
    assert fit.metrics["macro_f1"] == pytest.approx(f1_score(true, taken_for, average="macro"))
    matrix = confusion_matrix(true, taken_for, labels=range(n))
    labels, pairs = data.classes.tolist(), confusions(data, 1, predicted)
    assert len(pairs) == (matrix > 0).sum()
    for row in pairs:
        assert matrix[labels.index(row["class"]), labels.index(row["predicted"])] == row["n_test_tokens"]
    for i, row in enumerate(rows):
        wrong = np.where(np.arange(n) == i, 0, matrix[i])
        assert row["n_confused"] == wrong.max()
        assert row["confused_with"] == (labels[int(wrong.argmax())] if wrong.max() else "")


def test_accuracy_at_a_position_is_its_recall(data: Data) -> None:
    (fit,) = data.fit([1])
    rows = class_scores(data, 1, predictions(data, fit.weight))
    positions = positions_of(rows)
    assert [row["position"] for row in positions] == data.classes.tolist()
    right = sum(row["accuracy"] * row["n_test_tokens"] for row in positions if row["n_test_tokens"])
    assert right / data.test.n_tokens == pytest.approx(fit.metrics["accuracy"])
    for row, of in zip(positions, rows, strict=True):
        np.testing.assert_equal([row["accuracy_low"], row["accuracy_high"]], [of["recall_low"], of["recall_high"]])


def test_thirds_of_the_positions_are_told_by_their_tokens() -> None:
    rows = [
        {"layer": 6, "position": i, "accuracy": accuracy, "n_test_tokens": n}
        for i, (accuracy, n) in enumerate(
            [(1, 30), (0.5, 10), (0.4, 10), (0.2, 10), (0.1, 5), (0, 5), (float("nan"), 0)]
        )
    ]
    assert position_line(rows) == (
        "Layer 6: accuracy 0.875 at positions 0 to 1, 0.300 at positions 2 to 3 and 0.050 at positions 4 to 5; "
        "positions.csv has every position."
    )
    assert position_line(rows[:2]) == ""


@pytest.fixture(scope="module")
def made(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(
        model=str(checkpoints["bert"]), corpus=str(corpus_file), runs=str(tmp_path_factory.mktemp("runs")), name="made",
        layer="0,2", replicates=0, controls="none", evidence="none", task_args={"min_count": 5}, quiet=True,
        wandb=WandbOptions(mode="disabled"), probe=ProbeOptions(tolerance=1e-3, l2=1e-4),
    )  # fmt: skip


@pytest.mark.slow
def test_a_run_of_positions_has_the_table_and_the_figure(made: Run) -> None:
    rows = read_csv(made.folder / "positions.csv")
    assert tuple(rows[0]) == columns_of(POSITIONS)
    assert made.positions == rows or len(made.positions) == len(rows)
    classes = made.results["classes"]
    assert [(row["layer"], row["position"]) for row in rows] == [(layer, i) for layer in (0, 2) for i in classes]
    for row in made.accuracy:
        own = [one for one in rows if one["layer"] == row["layer"] and one["n_test_tokens"]]
        assert sum(one["n_test_tokens"] for one in own) == row["n_test_tokens"]
        right = sum(one["accuracy"] * one["n_test_tokens"] for one in own)
        assert right / row["n_test_tokens"] == pytest.approx(row["accuracy"])
    assert {path.name for path in (made.folder / "figures").glob("positions.*")} == {"positions.png", "positions.pdf"}
