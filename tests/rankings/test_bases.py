"""Features beside neurons, random features and rotations, where the truth is planted: one feature carries the label."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from probing.cache.source import FeatureStore, most_active
from probing.data.examples import Examples, Sides
from probing.models.dictionaries import Dictionary
from probing.probes.solvers import Penalty
from probing.probes.training import Lbfgs, Training
from probing.rankings.bases import basis_rows, explained, random_dictionary
from probing.tables.conclusions import bases_lines, bases_table
from synthetic import LIGHTNING_WARNINGS, make_splits, make_store, make_tokens

pytestmark = [pytest.mark.numeric, *map(pytest.mark.filterwarnings, LIGHTNING_WARNINGS)]

D_MODEL, N_FEATURES, PLANTED, N_SENTENCES, LENGTH = 24, 48, 31, 120, 12


def sparse(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return hidden states, the sparse values that they are made of, and the directions of the features."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.nn.functional.normalize(torch.randn(N_FEATURES, D_MODEL, generator=generator))
    n = N_SENTENCES * LENGTH
    # Each token has three features, and half of the tokens also the planted one.
    values = torch.zeros(n, N_FEATURES)
    values.scatter_(1, torch.rand(n, N_FEATURES, generator=generator).topk(3).indices, 1.0)
    values[:, PLANTED] = (torch.rand(n, generator=generator) < 0.5).float()
    values *= 0.5 + torch.rand(n, N_FEATURES, generator=generator)
    return 3 * values @ directions, values, directions


def planted(folder: Path, shuffled: bool = False, dictionary: Dictionary | None = None) -> Sides:
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


TRAINING = Training(Penalty(0.0, 1e-3), Lbfgs(1e-3))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return basis_rows(planted(tmp_path_factory.mktemp("planted") / "s"), 0, TRAINING, False, 0)


def of(rows: list[dict[str, Any]], basis: str, k: int) -> dict[str, Any]:
    (found,) = [row for row in rows if (row["basis"], row["k"]) == (basis, k)]
    return found


def test_the_planted_feature_is_found_first_and_alone_tells_more_than_any_single_unit_beside_it(
    rows: list[dict[str, Any]],
) -> None:
    features = of(rows, "features", 1)
    assert features["units"] == str(PLANTED)
    for name in ("neurons", "random features", "rotated neurons"):
        beside = of(rows, name, 1)
        assert beside["features"] == "better", (name, features["accuracy"], beside["accuracy"])
        assert beside["difference_low"] > 0.05
        assert beside["difference"] == pytest.approx(features["accuracy"] - beside["accuracy"])


def test_with_all_but_a_few_neurons_the_advantage_is_gone(rows: list[dict[str, Any]]) -> None:
    assert max(row["k"] for row in rows) == 16
    few, many = (of(rows, "neurons", k)["difference"] for k in (1, 16))
    assert many < few / 2


def test_shuffled_labels_find_nothing_in_any_basis(tmp_path: Path) -> None:
    found = basis_rows(planted(tmp_path / "s", shuffled=True), 0, TRAINING, False, 0)
    assert all(row.get("features", "unresolved") == "unresolved" for row in found)
    assert all(row["accuracy_low"] < 0.5 < row["accuracy_high"] + 0.03 for row in found)
    (*_, last) = bases_lines(found, "labels")
    assert "with no number of units are the features shown to tell more of labels than as many neurons, random " in last


@pytest.mark.slow
def test_a_random_dictionary_in_the_place_of_the_features_is_no_better(tmp_path: Path) -> None:
    states, _, _ = sparse()
    weight = torch.randn(D_MODEL, N_FEATURES, generator=torch.Generator().manual_seed(5))
    drawn = Dictionary("topk", weight, torch.zeros(N_FEATURES), subtracted=states.mean(0), k=4)
    found = basis_rows(planted(tmp_path / "s", dictionary=drawn), 0, TRAINING, False, 0)
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
    sides = planted(tmp_path / "s")
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
    monkeypatch.setattr("probing.cache.source.MOST_FEATURES", 10)
    sides = planted(tmp_path / "s")
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
    found = basis_rows(of_kept, 0, TRAINING, False, 0)
    assert of(found, "features", 1)["units"] == str(PLANTED)
    assert of(found, "random features", 1)["n_units"] == 10


def test_what_is_said_is_what_the_table_has(rows: list[dict[str, Any]]) -> None:
    (neurons, *_) = bases_lines(rows, "labels")
    verdicts = {row["k"]: row["features"] for row in rows if row["basis"] == "neurons"}
    assert "the first features beside as many neurons: better with 1" in neurons
    assert ("not resolved with" in neurons) == ("unresolved" in verdicts.values())
    worse = [{**row, "features": "worse"} if row["basis"] == "neurons" else row for row in rows]
    assert bases_lines(worse, "labels")[0].endswith("worse with 1, 4 and 16 (by "
        f"{max(abs(row['difference']) for row in worse if row['basis'] == 'neurons'):.3f} at most).")  # fmt: skip
    assert bases_lines(worse, "labels")[-1].endswith("shown to tell more of labels than as many neurons.")


def test_the_table_marks_what_features_are_not_better_than(rows: list[dict[str, Any]]) -> None:
    table = bases_table(rows)
    cells = {column.header: list(column.cells) for column in table.columns}
    assert [header for header in cells if header != "95% range"] == [
        "k", "features", "neurons", "random features", "rotated neurons"
    ]  # fmt: skip
    assert not cells["neurons"][0].endswith(("°", "−"))
    marks = {"better": "", "unresolved": "°", "worse": "−"}
    for i, k in enumerate(cells["k"]):
        row = of(rows, "neurons", int(k))
        assert cells["neurons"][i] == f"{row['accuracy']:.3f}" + marks[row["features"]]
