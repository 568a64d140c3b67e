"""What is better than chance: neurons, heads, features and directions, beside shuffled labels and random others."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import norm, ortho_group
from sklearn.linear_model import LogisticRegression

from probing.activations.source import FeatureStore, most_active
from probing.data.examples import Examples, Sides
from probing.data.labelling import load
from probing.models.sites import Dictionary
from probing.probes import evaluation
from probing.probes.agreement import agreement
from probing.probes.bases import SCORES, basis_rows, explained, random_dictionary, rotated_scores
from probing.probes.closed_forms import FLOOR, GaussianProbe, choose_shared, information
from probing.probes.evaluation import curves, evaluate, head_accuracies, head_contributions, head_rows, heads_of
from probing.probes.evidence import concentration, shares_above
from probing.probes.rankings import (
    METHODS,
    SELECTED,
    LayerData,
    mean_contribution,
    null_rankings,
    read_layer,
    shuffled_among_types,
)
from probing.probes.solvers import Penalty
from probing.probes.training import Adam, Lbfgs, Training
from probing.results import Table
from probing.runtime.terminal import render
from probing.statistics import LEVEL, accuracy_interval
from probing.statistics.chance import random_rotation
from probing.studies.fit.rank import KEYS, curves_lines, curves_tables
from probing.tables import smallest
from probing.tables.conclusions import bases_lines, bases_table
from probing.tables.figures import write_drawings
from probing.tables.probe_figures import how_many_neurons
from synthetic import Array, Data, make_splits, make_store, make_tokens, positional, sides

pytestmark = pytest.mark.numeric

N_NEURONS, INFORMATIVE = 40, (3, 17)
JUDGED = ("weight", "probeless_standardised", "anova")


def judged(labelled: Sides, k: int) -> list[dict[str, Any]]:
    """Judge rankings of a layer's neurons with ten random draws beside them."""
    (fit,) = labelled.fit(l2=1e-2)  # type: ignore[attr-defined]
    data = read_layer(0, fit.weight, Penalty(0.0, 1e-2), "sd", labelled, seed=0)
    rows = evaluate({name: METHODS[name](data) for name in JUDGED}, data, labelled, [k], draws=10)
    return [row for row in rows if row["ranking"] != "random"]


@pytest.fixture
def planted(tmp_path: Path) -> Sides:
    """Tokens whose position two of 40 neurons know."""
    tokens = make_tokens(np.random.default_rng(0).integers(7, 11, 400).tolist())
    states = np.random.default_rng(1).standard_normal((tokens.n_tokens, N_NEURONS))
    states[:, INFORMATIVE[0]] += 3 * tokens.positions
    states[:, INFORMATIVE[1]] += 3 * (tokens.positions - 4) ** 2
    return sides(make_store(tmp_path / "store", [states], tokens, shard_tokens=500))


def test_planted_neurons_are_above_chance_and_the_last_of_their_ranking_are_not(planted: Sides) -> None:
    rows = judged(planted, 2)
    assert {(row["from"], row["above_chance"]) for row in rows} == {("top", "yes"), ("bottom", "no")}
    for row in rows:
        if row["from"] == "top":
            assert row["accuracy_low"] > row["majority_accuracy"]


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_above_chance_where_labels_say_nothing(planted: Sides, seed: int) -> None:
    generator = np.random.default_rng(seed)

    def relabelled(examples: Any) -> Any:
        drawn = generator.integers(len(planted.classes), size=len(examples.labels))
        return replace(examples, labels=np.where(examples.labels >= 0, drawn, -1).astype(np.int32))

    random = replace(planted, **{side: relabelled(getattr(planted, side)) for side in ("train", "validation", "test")})
    assert {row["above_chance"] for row in judged(random, 2)} == {"no"}


def test_all_choices_of_a_layer_share_one_chance_of_five_percent(
    planted: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels: list[float] = []

    def recorded(correct: Any, n_tokens: Any, level: float = LEVEL) -> tuple[float, float]:
        levels.append(level)
        return accuracy_interval(correct, n_tokens, level)

    monkeypatch.setattr("probing.probes.evaluation.accuracy_interval", recorded)
    rows = judged(planted, 2)
    assert len(rows) == 12
    # One-sided, and 5% divided by the number of choices.
    assert set(levels) == {LEVEL, 1 - 2 * 0.05 / len(rows)}


D = 12
TRAINING = Training(Penalty(0.0, 1e-2), Lbfgs(1e-6))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """Two layers that know position, and neurons whose means are far from 0 to several degrees."""
    tokens = make_tokens(np.random.default_rng(0).integers(6, 12, 150).tolist())
    offset = np.geomspace(0.1, 10, D)
    layers = [positional(tokens, D, 0.5, seed) + offset for seed in (0, 1)]
    return sides(make_store(tmp_path_factory.mktemp("null") / "store", layers, tokens, shard_tokens=300))


def test_labels_are_dealt_to_the_same_examples_on_all_sides(data: Data) -> None:
    draws = shuffled_among_types(data, 2, seed=0)
    for draw in draws:
        for name in ("train", "validation", "test"):
            true, changed = getattr(data, name).labels, getattr(draw, name).labels
            assert ((true >= 0) == (changed >= 0)).all()
            assert (true != changed)[true >= 0].mean() > 0.5
            assert changed.dtype == true.dtype
    assert (draws[0].train.labels != draws[1].train.labels).any()
    assert len(data.train.labels) == len(draws[0].train.labels)


def test_a_word_type_has_its_new_labels_on_the_test_side_too(data: Data) -> None:
    # A label for each type, on whatever side.
    ids = data.train.store.tokens.input_ids
    by_type = data.each(lambda examples: replace(examples, labels=np.where(examples.labels >= 0, ids, -1)))
    (draw,) = shuffled_among_types(by_type, 1, seed=0)
    source: dict[int, int] = {}
    for examples in (draw.train, draw.validation, draw.test):
        rows = np.flatnonzero(examples.labels >= 0)
        for own, taken in zip(ids[rows].tolist(), examples.labels[rows].tolist(), strict=True):
            assert source.setdefault(own, taken) == taken
    assert np.mean([own != taken for own, taken in source.items()]) > 0.8


def test_rankings_are_those_of_probes_trained_alone(data: Data) -> None:
    found = null_rankings(data, [0, 1], TRAINING, 3, seed=4)
    assert found.shape == (2, 3, D)
    for i, draw in enumerate(shuffled_among_types(data, 3, seed=4)):
        alone = Data(draw.train, draw.validation, draw.test, draw.classes, ordinal=True).fit((0, 1), l2=1e-2)
        for layer, fit in enumerate(alone):
            states = data.test.store
            rows = np.flatnonzero(draw.test.labels >= 0)
            values = torch.cat([states.read(layer, shard.index) for shard in states.plan.shards])[rows].double()
            weight = fit.weight.double() - fit.weight.double().mean(0)
            score = (weight[torch.from_numpy(draw.test.labels[rows]).long()] * values).abs().mean(0)
            # Stopped a tenth of a nat from the bound on their optima, rankings are those of the optima.
            np.testing.assert_allclose(found[layer, i], score, rtol=0.1)


def test_a_draw_of_labels_that_say_little_is_ranked_too(data: Data) -> None:
    # Under a penalty as strong as is chosen for such labels, a probe gains less over weight 0 than the tolerance.
    strong = replace(TRAINING, penalty=Penalty(0.0, 10.0))
    found, optimum = null_rankings(data, [0], strong, 3, seed=4)[0], []
    for draw in shuffled_among_types(data, 3, seed=4):
        (fit,) = Data(draw.train, draw.validation, draw.test, draw.classes, ordinal=True).fit((0,), l2=10.0)
        assert fit.objective > np.log(len(draw.classes)) - 0.1
        optimum.append(_scores(fit.weight, draw, fit.moments.mean))
    assert (found > 0).all()
    np.testing.assert_allclose(found, optimum, rtol=0.1)


def test_a_draw_is_the_same_for_all_layers_and_whatever_their_number(data: Data) -> None:
    both = null_rankings(data, [0, 1], TRAINING, 2, seed=0)
    np.testing.assert_allclose(null_rankings(data, [1], TRAINING, 2, seed=0)[0], both[1], rtol=1e-6)
    assert np.abs(null_rankings(data, [1], TRAINING, 2, seed=1)[0] - both[1]).max() > 0


def test_runs_by_adam_are_held_against_rankings_by_adam(data: Data) -> None:
    adam = replace(TRAINING, solver=Adam(0.05, 64, 2, 0, 1e-6), trainer={"max_epochs": 2})
    found = null_rankings(data, [0], adam, 2, seed=0)
    optimum = null_rankings(data, [0], TRAINING, 2, seed=0)
    draws = shuffled_among_types(data, 2, seed=0)
    for i, draw in enumerate(draws):
        alone = Data(draw.train, draw.validation, draw.test, draw.classes, ordinal=True)
        (fit,) = alone.fit(
            solver="adam", learning_rate=0.05, batch_size=64, patience=2, l2=1e-2, trainer={"max_epochs": 2}
        )
        weight = fit.weight
        np.testing.assert_allclose(found[0, i], _scores(weight, draw, fit.moments.mean), rtol=1e-5)
    assert np.abs(found / optimum - 1).max() > 0.1


def _scores(weight: torch.Tensor, draw: object, mean: torch.Tensor) -> np.ndarray:
    from probing.data.examples import Sides, read
    from probing.probes.rankings import MagnitudeAccumulator

    assert isinstance(draw, Sides)
    sums = MagnitudeAccumulator(mean, len(weight))
    for batch in read(draw.test, [0]):
        sums.update(batch.hidden_states[0], batch.labels)
    return mean_contribution(weight, sums.result()).numpy()


@pytest.mark.slow
def test_two_tasks_that_say_nothing_agree_as_rankings_but_not_beyond_shuffled_labels(tmp_path: Path) -> None:
    # What the neurons share whatever the labels is how far their means are from 0: they serve as the intercept.
    tokens = make_tokens([9] * 80)
    generator = np.random.default_rng(0)
    states = generator.standard_normal((tokens.n_tokens, 30)) + np.geomspace(0.05, 20, 30)
    store, splits = make_store(tmp_path / "store", [states], tokens), make_splits(80)
    plain = sides(store, splits=splits)

    def labelled(seed: int) -> Data:
        drawn = np.random.default_rng(seed).choice(5, tokens.n_tokens, p=[0.4, 0.3, 0.15, 0.1, 0.05])
        train, validation, test = (
            replace(part, labels=np.where(part.labels >= 0, drawn, -1).astype(np.int32))
            for part in (plain.train, plain.validation, plain.test)
        )
        return Data(train, validation, test, np.arange(5), ordinal=False)

    tasks = [labelled(seed) for seed in range(6)]
    scores = [_scores(task.fit(l2=1e-2)[0].weight, task, torch.zeros(30)) for task in tasks]
    shuffled = [null_rankings(task, [0], TRAINING, 19, seed)[0] for seed, task in enumerate(tasks)]
    p_values = {"exchanged": [], "shuffled": []}  # type: dict[str, list[float]]
    for i in range(6):
        j = (i + 1) % 6
        for one in agreement(scores[i], scores[j], permutations=199):
            p_values["exchanged"].append(one.p_value)
        for one in agreement(scores[i], scores[j], shuffled=(shuffled[i], shuffled[j])):
            p_values["shuffled"].append(one.p_value)
    assert np.median(p_values["exchanged"]) < 0.05
    # Six pairs that share tasks, four statistics that go together: 5% of 24 is 1.2.
    assert sum(p <= 0.05 for p in p_values["shuffled"]) <= 4
    assert np.median(p_values["shuffled"]) > 0.2


LENGTHS = np.random.default_rng(0).integers(8, 13, 200).tolist()
D_MODEL, COUNTED_INFORMATIVE, L2 = 24, [4, 9, 17], 1e-3
SIZES = (1, 2, 8, 16)

Planted = tuple[LayerData, Data]


@pytest.fixture(scope="module")
def counted_planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """Position in three neurons of 24, each of which is needed, on a spiral over a sphere; the others are noise.

    Of points equally far from 0 a probe can tell each from the others without an intercept, so that it needs none.
    """
    tokens = make_tokens(LENGTHS)
    states = np.random.default_rng(1).standard_normal((tokens.n_tokens, D_MODEL))
    height, angle = 1 - (2 * tokens.positions + 1) / max(LENGTHS), np.pi * (3 - 5**0.5) * tokens.positions
    radius = np.sqrt(1 - height**2)
    states[:, COUNTED_INFORMATIVE] += 3 * np.stack([height, radius * np.cos(angle), radius * np.sin(angle)], 1)
    data = sides(make_store(tmp_path_factory.mktemp("planted") / "store", [states], tokens))
    fit = data.fit(l2=L2)[0]
    return read_layer(0, fit.weight, Penalty(0.0, L2), "sd", data, 0), data


@pytest.fixture(scope="module")
def rows(counted_planted: Planted) -> list[dict[str, Any]]:
    rankings = {name: METHODS[name](counted_planted[0]) for name in ("anova", "random")}
    assert sorted(rankings["anova"].order[:3].tolist()) == COUNTED_INFORMATIVE
    return curves(rankings, *counted_planted, SIZES, draws=4)


def accuracies(rows: list[dict[str, Any]], kind: str, end: str, k: int) -> list[float]:
    return [row["accuracy"] for row in rows if (row["kind"], row["from"], row["k"]) == (kind, end, k)]


def test_the_planted_neurons_are_counted(rows: list[dict[str, Any]]) -> None:
    # 3 is not among the sizes: it is found between 2 and 8.
    found = smallest(rows)
    (full,) = accuracies(rows, "only", "top", D_MODEL)
    assert found["k"] == 3
    assert full > 0.6
    assert found["accuracy"] >= full - 0.02  # within 1 point on validation tokens
    assert accuracies(rows, "only", "top", 2)[0] < full - 0.1
    # The last five of the first 8 are of no use and do no harm.
    assert accuracies(rows, "only", "top", 8)[0] >= full - 0.02


def test_without_them_nothing_is_left(counted_planted: Planted, rows: list[dict[str, Any]]) -> None:
    full, (without,) = accuracies(rows, "only", "top", D_MODEL)[0], accuracies(rows, "without", "top", 8)
    test, n_classes = counted_planted[1].test, len(counted_planted[1].classes)
    majority = np.bincount(test.labels[test.labels >= 0], minlength=n_classes).max() / test.n_tokens
    (three,) = accuracies(
        curves({"anova": METHODS["anova"](counted_planted[0])}, *counted_planted, [3], draws=1), "without", "top", 3
    )
    for left in (three, without):
        assert left < majority + 3 * (majority / test.n_tokens) ** 0.5
    # The last neurons are as good as none; random ones lie between.
    assert accuracies(rows, "without", "bottom", 16)[0] > full - 0.03
    assert accuracies(rows, "only", "bottom", 16)[0] < majority + 0.05
    assert without < np.mean(accuracies(rows, "without", "random", 8)) < full


def test_every_probe_has_one_row(rows: list[dict[str, Any]]) -> None:
    keys = [tuple(row.get(column) for column in KEYS["curves"]) for row in rows]
    assert len(set(keys)) == len(keys)
    ends = [("anova", "top", None), ("anova", "bottom", None), *(("random", "random", draw) for draw in range(1, 5))]
    grid = {(0, name, kind, end, k, draw) for name, end, draw in ends for kind in ("only", "without") for k in SIZES}
    tried = {key for key in keys if key not in grid}
    assert grid <= set(keys)
    assert tried == {(0, "anova", "only", "top", k, None) for k in (3, 5, D_MODEL)}
    # Without an interval, on few test sentences, both ends are NaN.
    assert not any(row["accuracy_low"] > row["accuracy"] or row["accuracy"] > row["accuracy_high"] for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("k", [3, 16])
def test_probes_are_right_as_often_as_sklearn_says(
    counted_planted: Planted, monkeypatch: pytest.MonkeyPatch, k: int
) -> None:
    """Of few neurons, which are columns of their own, and of many, which are masked: both kinds have both."""
    monkeypatch.setattr(evaluation, "TOLERANCE", 1e-6)
    data, parts = counted_planted
    ranking = METHODS["weight"](data)
    made = {
        row["kind"]: row
        for row in curves({"weight": ranking}, *counted_planted, [k], 1)
        if (row["k"], row["from"]) == (k, "top")
    }
    x, y = (values.numpy() for values in data.train)
    scale = x.astype(np.float64).std(0)
    for kind, kept in (("only", ranking.order[:k].numpy()), ("without", ranking.order[k:].numpy())):
        model = LogisticRegression(C=1 / (2 * len(y) * L2), fit_intercept=False, tol=1e-8, max_iter=5000)
        model.fit(x[:, kept] / scale[kept], y)
        for side, column in ((parts.test, "accuracy"), (parts.validation, "validation_accuracy")):
            states, labels = (values.numpy() for values in load(side, 0))
            expected = model.score(states[:, kept] / scale[kept], labels)
            # Both within 1e-6 nats of one optimum: a token or two may lie on the border between classes.
            assert made[kind][column] == pytest.approx(expected, abs=2 / len(labels)), (kind, column)


def test_the_smallest_number_is_chosen_on_validation_tokens() -> None:
    def row(k: int, validation: float, test: float) -> dict[str, Any]:
        return {"kind": "only", "from": "top", "k": k, "validation_accuracy": validation, "accuracy": test}

    rows = [row(1, 0.3, 0.9), row(5, 0.795, 0.5), row(10, 0.85, 0.9), row(20, 0.8, 0.9)]
    assert smallest(rows) is rows[1]
    beside = [{**row(2, 0.9, 0.9), "kind": "without"}, {**row(3, 0.9, 0.9), "from": "random"}]
    assert smallest([*beside, *rows]) is rows[1]


def test_what_is_shown_says_what_was_found(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    (line,) = curves_lines(Table(rows))
    assert line.startswith(f"Layer 0, anova: 1 of {D_MODEL} neurons reach ")
    assert "; 3, chosen on validation tokens, are the fewest within 1 point of all (" in line
    assert curves_lines(Table(row for row in rows if row["k"] not in (3, 5, 8, 16)))[0].endswith(
        "no smaller number is within 1 point of all."
    )
    shown = [cells.split()[0] for cells in render(*curves_tables(Table(rows))).splitlines()[4:] if cells.strip()]
    assert shown == ["1", "2", "3", "8", "16", str(D_MODEL)]
    write_drawings(
        tmp_path,
        {"drawn": partial(how_many_neurons, rows=rows, majority=0.1, task="position", model="planted")},
    )
    assert (tmp_path / "drawn.png").read_bytes()[1:4] == b"PNG"


def test_tokens_are_thinned_and_counted(counted_planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    from probing.probes import evaluation as module

    monkeypatch.setattr(module, "MOST_TOKENS", 500)
    made = curves({"anova": METHODS["anova"](counted_planted[0])}, *counted_planted, [12], 1)
    assert {row["n_train_tokens"] for row in made} <= set(range(480, 501))


FEATURE_D_MODEL, N_FEATURES, PLANTED, N_SENTENCES, LENGTH = 24, 48, 31, 120, 12


def sparse(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return hidden states, the sparse values that they are made of, and the directions of the features."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.nn.functional.normalize(torch.randn(N_FEATURES, FEATURE_D_MODEL, generator=generator))
    n = N_SENTENCES * LENGTH
    # Each token has three features, and half of the tokens also the planted one.
    values = torch.zeros(n, N_FEATURES)
    values.scatter_(1, torch.rand(n, N_FEATURES, generator=generator).topk(3).indices, 1.0)
    values[:, PLANTED] = (torch.rand(n, generator=generator) < 0.5).float()
    values *= 0.5 + torch.rand(n, N_FEATURES, generator=generator)
    return 3 * values @ directions, values, directions


def feature_planted(folder: Path, shuffled: bool = False, dictionary: Dictionary | None = None) -> Sides:
    """Return labels that say whether the planted feature is there, and features by a dictionary of all directions."""
    states, values, _directions = sparse()
    store = make_store(folder, [states], make_tokens([LENGTH] * N_SENTENCES, special=False))
    # The best linear reading of the values from the states; what is below the least value that occurs is left out.
    weight = torch.linalg.lstsq(states, values).solution
    own = dictionary or Dictionary(
        "jumprelu", weight, torch.zeros(N_FEATURES), threshold=torch.full((N_FEATURES,), 0.3)
    )
    features = FeatureStore(store, own, folder)
    classes = (values[:, PLANTED] > 0).int().numpy()
    if shuffled:
        classes = np.random.default_rng(1).permutation(classes)
    return labelled(features, classes)


def labelled(store: FeatureStore, classes: NDArray[np.int32]) -> Sides:
    """Return the sides of a store whose tokens have these classes."""
    side_of = np.array(make_splits(N_SENTENCES))[store.tokens.sentences]

    def of(side: str) -> Examples:
        return Examples(store, np.where(side_of == side, classes, -1).astype(np.int32))

    return Sides(of("train"), of("validation"), of("test"), np.array([0, 1]), ordinal=False)


FEATURE_TRAINING = Training(Penalty(0.0, 1e-3), Lbfgs(1e-3))


@pytest.fixture(scope="module")
def feature_rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return basis_rows(feature_planted(tmp_path_factory.mktemp("planted") / "s"), 0, FEATURE_TRAINING, False, 0)


def of(rows: list[dict[str, Any]], basis: str, k: int) -> dict[str, Any]:
    (found,) = [row for row in rows if (row["basis"], row["k"]) == (basis, k)]
    return found


def test_the_planted_feature_is_found_first_and_alone_tells_more_than_any_single_unit_beside_it(
    feature_rows: list[dict[str, Any]],
) -> None:
    features = of(feature_rows, "features", 1)
    assert features["units"] == str(PLANTED)
    for name in ("neurons", "random features", "rotated neurons"):
        beside = of(feature_rows, name, 1)
        assert beside["features"] == "better", (name, features["accuracy"], beside["accuracy"])
        assert beside["difference_low"] > 0.05
        assert beside["difference"] == pytest.approx(features["accuracy"] - beside["accuracy"])


def test_with_all_but_a_few_neurons_the_advantage_is_gone(feature_rows: list[dict[str, Any]]) -> None:
    assert max(row["k"] for row in feature_rows) == 16
    few, many = (of(feature_rows, "neurons", k)["difference"] for k in (1, 16))
    assert many < few / 2


@pytest.mark.slow
def test_shuffled_labels_find_nothing_in_any_basis(tmp_path: Path) -> None:
    found = basis_rows(feature_planted(tmp_path / "s", shuffled=True), 0, FEATURE_TRAINING, False, 0)
    assert all(row.get("features", "unresolved") == "unresolved" for row in found)
    assert all(row["accuracy_low"] < 0.5 < row["accuracy_high"] + 0.03 for row in found)
    (*_, last) = bases_lines(found, "labels")
    assert "are the features shown to predict labels better than as many neurons, random features and " in last


@pytest.mark.slow
def test_a_random_dictionary_in_the_place_of_the_features_is_no_better(tmp_path: Path) -> None:
    states, _, _ = sparse()
    weight = torch.randn(FEATURE_D_MODEL, N_FEATURES, generator=torch.Generator().manual_seed(5))
    drawn = Dictionary("topk", weight, torch.zeros(N_FEATURES), subtracted=states.mean(0), k=4)
    found = basis_rows(feature_planted(tmp_path / "s", dictionary=drawn), 0, FEATURE_TRAINING, False, 0)
    assert all(row["features"] != "better" for row in found if row["basis"] == "random features")


@pytest.mark.parametrize("architecture", ["topk", "standard", "jumprelu"])
def test_as_many_random_features_are_active(architecture: str) -> None:
    states, _, directions = sparse()
    own_options: dict[str, dict[str, Any]] = {
        "topk": {"k": 4}, "jumprelu": {"threshold": torch.full((N_FEATURES,), 0.8)}, "standard": {},
    }  # fmt: skip
    how = own_options[architecture]
    dictionary = Dictionary(
        architecture,
        directions.T.contiguous(),
        -torch.rand(N_FEATURES, generator=torch.Generator().manual_seed(3)),
        subtracted=states[0],
        **how,
    )
    drawn = random_dictionary(dictionary, states, np.random.default_rng(0))
    own, random = (one.encode(states) > 0 for one in (dictionary, drawn))
    if architecture == "topk":
        assert int((random.sum(1) == 4).sum()) >= 0.99 * len(states)
    else:  # feature by feature; equal values at the threshold are left out
        assert int((own.sum(0) - random.sum(0)).abs().max()) <= 1
    assert not torch.equal(own, random)


def test_units_are_ordered_by_what_classes_explain_of_them(tmp_path: Path) -> None:
    sides = feature_planted(tmp_path / "s")
    found = explained(sides.train, 0, 2)
    store, kept = sides.train.store, sides.train.labels >= 0
    states = torch.cat([store.read(0, shard.index) for shard in store.plan.shards]).double().numpy()[kept]
    labels = sides.train.labels[kept]
    means = np.stack([states[labels == c].mean(0) for c in (0, 1)])
    between = sum((labels == c).sum() * (means[c] - states.mean(0)) ** 2 for c in (0, 1))
    total = ((states - states.mean(0)) ** 2).sum(0)
    expected = np.divide(between, total, out=np.zeros_like(total), where=total > 0)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_of_a_wide_dictionary_the_most_active_features_are_read_under_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probing.activations.source.MOST_FEATURES", 10)
    sides = feature_planted(tmp_path / "s")
    store = sides.train.store
    assert isinstance(store, FeatureStore)
    train = sides.train.sentences().tolist()
    kept, most = most_active(store, 0, train)
    dense = torch.cat([store.read(0, shard.index) for shard in store.plan.shards])
    counts = (dense[torch.from_numpy(np.isin(store.tokens.sentences, train))] > 0).sum(0)
    assert PLANTED in kept
    assert len(kept) == 10
    assert most == int(counts[[i for i in range(N_FEATURES) if i not in kept]].max()) <= int(counts[kept].min())
    narrow = store.keeping(kept)
    assert torch.equal(torch.cat([narrow.read(0, shard.index) for shard in store.plan.shards]), dense[:, kept])
    of_kept = sides.each(lambda examples: replace(examples, store=narrow))
    found = basis_rows(of_kept, 0, FEATURE_TRAINING, False, 0)
    assert of(found, "features", 1)["units"] == str(PLANTED)
    assert of(found, "random features", 1)["n_units"] == 10


def test_what_is_said_is_what_the_table_has(feature_rows: list[dict[str, Any]]) -> None:
    (neurons, *_) = bases_lines(feature_rows, "labels")
    verdicts = {row["k"]: row["features"] for row in feature_rows if row["basis"] == "neurons"}
    assert "the first features compared with as many neurons: better with 1" in neurons
    assert ("not resolved with" in neurons) == ("unresolved" in verdicts.values())
    worse = [{**row, "features": "worse"} if row["basis"] == "neurons" else row for row in feature_rows]
    assert bases_lines(worse, "labels")[0].endswith("worse with 1, 4 and 16 (by "
        f"{max(abs(row['difference']) for row in worse if row['basis'] == 'neurons'):.3f} at most).")  # fmt: skip
    assert bases_lines(worse, "labels")[-1].endswith("shown to predict labels better than as many neurons.")


def test_the_table_marks_what_features_are_not_better_than(feature_rows: list[dict[str, Any]]) -> None:
    table = bases_table(feature_rows)
    cells = {column.header: list(column.cells) for column in table.columns}
    assert [header for header in cells if header != "95% range"] == [
        "k", "features", "neurons", "random features", "rotated neurons"
    ]  # fmt: skip
    assert not cells["neurons"][0].endswith(("°", "−"))
    marks = {"better": "", "unresolved": "°", "worse": "−"}
    for i, k in enumerate(cells["k"]):
        row = of(feature_rows, "neurons", int(k))
        assert cells["neurons"][i] == f"{row['accuracy']:.3f}" + marks[row["features"]]


ROTATED_D, ROTATED_PLANTED, DEAD = 40, [3, 11, 20, 21, 35], 7


def data_of(folder: Path, states: Array, tokens: Any) -> LayerData:
    data = sides(make_store(folder, [states], tokens))
    return read_layer(0, data.fit()[0].weight, Penalty(0.0, 1e-3), "sd", data, 0)


def rotated_planted() -> tuple[Array, Any]:
    """Return noise in which each of five neurons tells two of ten positions from the others."""
    tokens = make_tokens([12] * 250)
    states = np.random.default_rng(0).standard_normal((tokens.n_tokens, ROTATED_D))
    states[np.arange(tokens.n_tokens), np.array(ROTATED_PLANTED)[tokens.positions % 5]] += 2
    return states, tokens


def test_planted_neurons_are_above_directions_and_rotated_ones_are_within_the_band(tmp_path: Path) -> None:
    states, tokens = rotated_planted()
    turned = states @ ortho_group.rvs(ROTATED_D, random_state=np.random.default_rng(5))
    for name, rows, is_planted in (("own", states, True), ("turned", turned, False)):
        found = rotated_scores(data_of(tmp_path / name, rows, tokens), [*METHODS], 20, 0)
        assert [*found] == [*SCORES]
        for method, (neurons, directions) in found.items():
            p = concentration(neurons, directions)["first_10_share_p"]
            above = np.flatnonzero(shares_above(neurons, directions).numpy() <= 0.05).tolist()
            assert (above == ROTATED_PLANTED) if is_planted else (above == []), (method, name)
            assert (p <= 0.05) == is_planted, (method, name)


@pytest.mark.slow
def test_scores_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    states, tokens = rotated_planted()
    states = states * np.exp(np.random.default_rng(1).uniform(-2, 2, ROTATED_D)) + np.random.default_rng(2).uniform(
        -9, 9, ROTATED_D
    )
    states[:, DEAD] = 4
    data = data_of(tmp_path / "store", states, tokens)
    live = [i for i in range(ROTATED_D) if i != DEAD]
    found = rotated_scores(data, [*METHODS], 19, 6)
    x, y = data.train.hidden_states.double().numpy()[:, live], data.train.labels.numpy()
    held, classes = data.validation.hidden_states.double().numpy()[:, live], data.validation.labels.numpy()
    sd, weight = x.std(0), data.weight.double().numpy()[:, live]
    weight = (weight - weight.mean(0)) * sd
    drawn = [i for i in data.draw(SELECTED, 0) if i != DEAD]
    shared = choose_shared(data.classes, *data.validation, drawn).shared
    kinds, n = range(int(y.max()) + 1), len(y)
    for draw in range(-1, 19):
        basis = (
            np.eye(len(live))
            if draw < 0
            else random_rotation(len(live), 6, 0, draw)(torch.eye(len(live)).double()).numpy()
        )
        expected: dict[str, list[float]] = {name: [] for name in SCORES}
        for j in range(len(live)):
            z, new = x / sd @ basis[:, j], held / sd @ basis[:, j]
            means = [z[y == c].mean() for c in kinds]
            squares = [np.square(z[y == c] - means[c]).sum() for c in kinds]
            counts = [int((y == c).sum()) for c in kinds]
            between = sum(counts[c] * (means[c] - z.mean()) ** 2 for c in kinds)
            within = sum(squares)
            expected["weight"].append(np.mean([abs(weight[c] @ basis[:, j]) for c in kinds]))
            pairs = sum(abs(means[a] - means[b]) for a in kinds for b in range(a))
            expected["probeless_standardised"].append(pairs / z.std())
            expected["anova"].append(between / z.var() / n)
            joint = []
            for c in kinds:
                scale = squares[c] + shared * within / n + squares[c] / counts[c] + FLOOR * z.var()
                spread = (scale / (counts[c] + 6 + shared)) ** 0.5
                joint.append(np.log(counts[c] / n) + norm.logpdf(new, means[c], spread))
            shares = np.bincount(classes) / len(classes)
            entropy = -sum(share * np.log2(share) for share in shares if share)
            log_p = np.array(joint) - np.logaddexp.reduce(joint)
            bits = entropy + np.mean([log_p[c, i] for i, c in enumerate(classes)]) / np.log(2)
            expected["gaussian"].append(max(0.0, bits))
        for name, scores in expected.items():
            own = found[name][0] if draw < 0 else found[name][1][draw]
            ordered = scores if draw < 0 else sorted(scores, reverse=True)
            np.testing.assert_allclose(own.numpy(), ordered, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.slow
def test_of_isotropic_noise_p_is_uniform(tmp_path: Path) -> None:
    """Weights of chance, and classes that go with nothing."""
    p: dict[str, list[float]] = {name: [] for name in SCORES}
    tokens = make_tokens([6] * 60)
    for seed in range(60):
        states = np.random.default_rng(seed).standard_normal((tokens.n_tokens, 24))
        data = sides(make_store(tmp_path / str(seed), [states], tokens))
        weight = torch.from_numpy(np.random.default_rng([seed, 1]).standard_normal((len(data.classes), 24))).float()
        layer = read_layer(0, weight, Penalty(0.0, 1e-3), "sd", data, seed)
        for name, pair in rotated_scores(layer, [*SCORES], 19, seed).items():
            p[name].append(concentration(*pair)["first_10_share_p"])
    for name, values in p.items():
        assert sum(value <= 0.05 for value in values) <= 8, name
        assert np.mean(values) > 0.38, name
        # Of noise, most directions mislead the Gaussian probe, and have all 0 bits.
        assert np.mean(values) < 0.64 or name == "gaussian", name


def test_gaussian_scores_begin_as_its_own_selection_does(tmp_path: Path) -> None:
    states, tokens = rotated_planted()
    data = data_of(tmp_path / "store", states, tokens)
    first = METHODS["gaussian"](data)
    neurons, _ = rotated_scores(data, ["gaussian"], 19, 0)["gaussian"]
    assert int(neurons.argmax()) == int(first.order[0])
    assert float(neurons.max()) == pytest.approx(float(first.score[first.order[0]]), rel=1e-3)


@pytest.mark.parametrize("shared", [0.0, 1e2])
def test_bits_of_neurons_alone_are_those_of_the_gaussian_probe(tmp_path: Path, shared: float) -> None:
    states, tokens = rotated_planted()
    states[:, 5] = tokens.positions  # constant within classes
    data = data_of(tmp_path / "store", states, tokens)
    held, labels = data.validation
    probe = GaussianProbe(data.classes, shared)
    expected = [max(0.0, information(probe.log_p(held, [i]), labels)) for i in range(ROTATED_D)]
    basis = torch.diag(1 / data.moments.sd)
    found = SCORES["gaussian"](data, basis, shared=shared, tokens=data.validation)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_a_layer_without_live_neurons_is_not_compared(tmp_path: Path) -> None:
    states, tokens = rotated_planted()
    assert rotated_scores(data_of(tmp_path / "store", states * 0 + 1, tokens), ["weight", "anova"], 19, 0) == {}


N_HEADS, WIDTH, HEAD_PLANTED = 5, 8, 3
HEAD_TRAINING = Training(Penalty(0.0, 1e-2), Lbfgs(1e-5))


@pytest.fixture
def head_planted(tmp_path: Path) -> Sides:
    """Tokens whose position every neuron of one of five heads knows a part of."""
    generator = np.random.default_rng(0)
    tokens = make_tokens(generator.integers(7, 11, 300).tolist())
    states = generator.standard_normal((tokens.n_tokens, N_HEADS * WIDTH))
    vectors = 2 * generator.standard_normal((int(tokens.lengths.max()), WIDTH))
    states[:, HEAD_PLANTED * WIDTH : (HEAD_PLANTED + 1) * WIDTH] += vectors[tokens.positions]
    return sides(make_store(tmp_path / "store", [states], tokens, shard_tokens=500))


def test_a_planted_head_alone_is_above_chance(head_planted: Any) -> None:
    (fit,) = head_planted.fit(l2=1e-2)
    rows = head_accuracies(head_planted, fit, N_HEADS, HEAD_TRAINING, seed=0)
    assert [row["above_chance"] for row in rows] == ["yes" if head == HEAD_PLANTED else "no" for head in range(N_HEADS)]
    planted_row = rows[HEAD_PLANTED]
    assert planted_row["accuracy_low"] > planted_row["random_highest"] >= planted_row["random_accuracy"]
    assert planted_row["random_lowest"] < planted_row["random_highest"]
    # The head holds all there is to know.
    assert planted_row["accuracy"] == pytest.approx(fit.metrics["accuracy"], abs=0.05)
    assert planted_row["n_random"] == 10


def test_no_head_is_above_chance_where_labels_say_nothing(head_planted: Any) -> None:
    generator = np.random.default_rng(0)

    def relabelled(examples: Any) -> Any:
        drawn = generator.integers(len(head_planted.classes), size=len(examples.labels))
        return replace(examples, labels=np.where(examples.labels >= 0, drawn, -1).astype(np.int32))

    random = replace(
        head_planted, **{side: relabelled(getattr(head_planted, side)) for side in ("train", "validation", "test")}
    )
    (fit,) = head_planted.fit(l2=1e-2)
    assert {row["above_chance"] for row in head_accuracies(random, fit, N_HEADS, HEAD_TRAINING, seed=0)} == {"no"}


def test_a_probe_of_a_head_is_that_of_a_store_with_its_neurons_alone(head_planted: Any, tmp_path: Path) -> None:
    (fit,) = head_planted.fit(l2=1e-2)
    row = head_accuracies(head_planted, fit, N_HEADS, HEAD_TRAINING, seed=0)[1]
    store = head_planted.train.store
    states = torch.cat([store.read(0, shard.index) for shard in store.plan.shards])
    alone = sides(make_store(tmp_path / "alone", [states[:, WIDTH : 2 * WIDTH]], store.tokens, shard_tokens=500))
    (own,) = alone.fit(l2=1e-2)
    # The probe of the slice is trained to within 0.01 nats of the optimum.
    assert row["accuracy"] == pytest.approx(own.metrics["accuracy"], abs=0.01)


def test_contributions_of_heads_are_the_sums_of_their_neurons() -> None:
    contribution = torch.arange(12, dtype=torch.float64)
    rows = head_contributions(4, contribution, 3)
    assert [row["contribution"] for row in rows] == [6, 22, 38]
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert [(row["layer"], row["head"], row["first_neuron"], row["n_neurons"]) for row in rows] == [
        (4, 1, 0, 4), (4, 2, 4, 4), (4, 3, 8, 4)
    ]  # fmt: skip
    assert [list(neurons) for neurons in heads_of(6, 3)] == [[0, 1], [2, 3], [4, 5]]


def test_without_training_there_are_shares_alone(head_planted: Any) -> None:
    (fit,) = head_planted.fit(l2=1e-2)
    rows = head_rows(head_planted, [fit], [torch.ones(N_HEADS * WIDTH)], N_HEADS, None, seed=0)
    assert len(rows) == N_HEADS
    assert all("accuracy" not in row and row["share"] == pytest.approx(1 / N_HEADS) for row in rows)
