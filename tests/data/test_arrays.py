"""Arrays as a source of activations: which rows are read, who is on which side, and what is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from probing.corpus.splits import side_of
from probing.data.arrays import ArrayActivations, sides_of_arrays
from probing.data.examples import read
from probing.errors import UserError

pytestmark = pytest.mark.numeric

N, WIDTH = 600, 5
SIDES = ("train", "validation", "test")


@pytest.fixture
def X() -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((N, WIDTH)).astype(np.float32)


@pytest.fixture
def y() -> NDArray[np.int64]:
    return np.random.default_rng(1).integers(3, size=N)


def rows_of(sides: Any, layers: list[int]) -> dict[str, tuple[list[int], list[torch.Tensor]]]:
    """Return, for each side, the rows of the arrays that are read, and their activations in each layer."""
    found = {}
    for name in SIDES:
        examples = getattr(sides, name)
        batches = list(read(examples, layers))
        rows = [int(examples.store.order[row]) for batch in batches for row in batch.rows]
        found[name] = rows, [torch.cat([b.hidden_states[i] for b in batches]) for i in range(len(layers))]
    return found


@pytest.mark.parametrize("grouped", [False, True])
def test_every_row_is_on_one_side_with_its_own_activations(X: Any, y: Any, grouped: bool) -> None:
    groups = np.random.default_rng(2).integers(60, size=N) if grouped else None
    sides, layers = sides_of_arrays({2: X, 7: X * 2}, y, groups)
    assert layers == [2, 7]
    found = rows_of(sides, layers)
    assert sorted(row for rows, _ in found.values() for row in rows) == list(range(N))
    for name, (rows, states) in found.items():
        np.testing.assert_array_equal(states[0], X[rows])
        np.testing.assert_array_equal(states[1], 2 * X[rows])
        examples = getattr(sides, name)
        np.testing.assert_array_equal(sides.classes[examples.labels[examples.labels >= 0]], y[rows])
    assert (0.4 if grouped else 0.7) * N < len(found["train"][0]) < 0.9 * N
    if groups is not None:
        of_side = [set(groups[rows]) for rows, _ in found.values()]
        assert not (of_side[0] & of_side[1] | of_side[0] & of_side[2] | of_side[1] & of_side[2])


def test_all_kinds_of_arrays_give_the_same_values(X: Any, y: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    kinds: dict[str, Any] = {
        "array": X,
        "memory map": np.load(tmp_path / "x.npy", mmap_mode="r"),
        "tensor": torch.from_numpy(X).requires_grad_(),
        "columns": np.asfortranarray(X),
        "double": X.astype(np.float64),
        "big-endian": X.astype(">f4"),
        "long double": X.astype(np.longdouble),
        "masked array without masked values": np.ma.array(X),
        "list": X.tolist(),
    }
    groups = np.arange(N) % 90  # not adjacent
    for group in (None, groups):
        expected = rows_of(*sides_of_arrays(X, y, group))
        for kind, array in kinds.items():
            for name, (rows, (states,)) in rows_of(*sides_of_arrays(array, y, group)).items():
                assert rows == expected[name][0], kind
                assert torch.equal(states, expected[name][1][0]), kind
    half = rows_of(*sides_of_arrays(torch.from_numpy(X).bfloat16(), y))
    assert torch.equal(half["test"][1][0], torch.from_numpy(X[half["test"][0]]).bfloat16().float())


def test_a_memory_map_is_read_shard_by_shard(tmp_path: Path) -> None:
    path = tmp_path / "large.npy"
    large = np.lib.format.open_memmap(path, "w+", np.float32, (40_000, 2048))
    store = ArrayActivations({0: large}, np.arange(40_000), np.ones(40_000, dtype=np.int64))
    assert len(store.plan.shards) > 2
    assert sum(len(store.read(0, shard.index)) for shard in store.plan.shards) == 40_000


def test_labels_may_be_strings_and_booleans(X: Any, y: Any) -> None:
    names = np.array(["b", "a", "c"])[y]
    assert sides_of_arrays(X, names)[0].classes.tolist() == ["a", "b", "c"]
    assert sides_of_arrays(X, names.tolist())[0].classes.tolist() == ["a", "b", "c"]
    assert sides_of_arrays(X, y > 0)[0].classes.tolist() == [0, 1]
    assert sides_of_arrays(X, torch.from_numpy(y - 1))[0].classes.tolist() == [0, 1]
    assert sides_of_arrays(X, y.astype(float))[0].classes.tolist() == [0, 1, 2]


def test_rows_without_a_label_are_left_out_and_counted(X: Any, y: Any) -> None:
    split = np.resize(["train", "train", "test"], N)
    missing = np.arange(N) % 10 == 0
    expected = rows_of(*sides_of_arrays(X[~missing], y[~missing], split=split[~missing]))
    places = np.flatnonzero(~missing)
    kinds: dict[str, Any] = {
        "NaN": np.where(missing, np.nan, y), "-100": np.where(missing, -100, y),
        "None": [None if gone else str(label) for gone, label in zip(missing, y, strict=True)],
        "masked": np.ma.array(y, mask=missing), "numbers": np.where(missing, np.nan, y + 0.5),
        "NaN among text": [float("nan") if gone else str(label) for gone, label in zip(missing, y, strict=True)],
        "list of numbers": [None if gone else label + 0.5 for gone, label in zip(missing, y, strict=True)],
    }  # fmt: skip
    for kind, labels in kinds.items():
        said: list[str] = []
        sides, layers = sides_of_arrays(X, labels, split=split, say=said.append)
        assert {name: rows for name, (rows, _) in rows_of(sides, layers).items()} == {
            name: places[rows].tolist() for name, (rows, _) in expected.items()
        }, kind
        assert sum(side.n_unlabelled for side in (sides.train, sides.validation, sides.test)) == missing.sum()
        assert said[0].startswith("y: 60 of 600 rows have no label (None, NaN"), kind


def test_what_pandas_has_for_missing_labels_is_missing(X: Any, y: Any) -> None:
    pandas = pytest.importorskip("pandas")
    labels = pandas.Series(y, dtype="Int64").where(np.arange(N) % 10 > 0)
    for series in (labels, labels.astype("string"), labels.astype("string").astype("category")):
        sides, _ = sides_of_arrays(X, series, split=np.resize(["train", "test"], N))
        assert [str(label) for label in sides.classes] == ["0", "1", "2"]
        assert sides.train.n_unlabelled + sides.test.n_unlabelled == N // 10


@pytest.mark.parametrize(("n_groups", "n_test"), [(59, None), (60, 20), (100, 20), (1000, None)])
def test_of_sixty_groups_or_more_at_least_twenty_are_tested_on(n_groups: int, n_test: int | None) -> None:
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(n_groups), 5)
    sides, _ = sides_of_arrays(generator.normal(size=(len(groups), 3)), generator.integers(0, 2, len(groups)), groups)
    n = {name: int((getattr(sides, name).tokens_by_sentence() > 0).sum()) for name in SIDES}
    assert sum(n.values()) == n_groups
    if n_test:
        assert n["test"] == n_test
        assert n["validation"] == 10
    else:  # as by the hash alone
        assert n == Counter(side_of(str(group), 0) for group in range(n_groups))


def test_the_split_can_be_given(X: Any, y: Any) -> None:
    split = np.resize(["train", "train", "test", "validation"], N)
    found = rows_of(*sides_of_arrays(X, y, split=split))
    for name, (rows, _) in found.items():
        assert sorted(rows) == np.flatnonzero(split == name).tolist()


def test_labels_that_training_rows_lack_are_left_out_and_counted(X: Any, y: Any) -> None:
    split = np.resize(["train", "train", "test"], N)
    y[np.flatnonzero(split == "test")[:4]] = 9
    sides, _ = sides_of_arrays(X, y, split=split)
    assert sides.classes.tolist() == [0, 1, 2]
    assert sides.test.n_dropped == 4
    assert sides.test.n_tokens == N // 3 - 4


def test_the_fingerprint_is_of_values_and_groups(X: Any, y: Any) -> None:
    def of(array: Any, groups: Any = None) -> str:
        store = sides_of_arrays(array, y, groups)[0].train.store
        assert isinstance(store, ArrayActivations)
        return store.fingerprint

    changed = X.copy()
    changed[5, 1] += 1
    assert of(X) == of(torch.from_numpy(X)) != of(changed)
    assert of(X) != of(X, np.arange(N) // 6)


def nan(X: NDArray[np.float32]) -> NDArray[np.float32]:
    X = X.copy()
    X[123, 2] = np.nan
    return X


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda X, y: {"X": X[:, 0]}, r"`X` has shape \(600,\): expected \(n_rows, d_model\)"),
        (lambda X, y: {"X": X > 0}, r"`X` has the dtype bool: expected real numbers"),
        (lambda X, y: {"X": {}}, r"`X` has no layers"),
        (lambda X, y: {"X": {-1: X}}, r"`X`: -1 is no layer number"),
        (lambda X, y: {"X": {0: X, 3: X[:, :4]}}, r"`X\[3\]` has shape \(600, 4\).*the same rows and width"),
        (lambda X, y: {"X": X[:0], "y": y[:0]}, r"there are no activations"),
        (lambda X, y: {"X": nan(X)}, r"`X`: row 123 has a value that is infinite or not a number"),
        (lambda X, y: {"X": X * np.float64(1e300)}, r"has a value that is infinite or not a number in float32"),
        (lambda X, y: {"X": {3: X, 4: X * np.float32(1e25)}}, r"the largest magnitude in layer 4 is [\d.]+e\+25"),
        (
            lambda X, y: {"X": X * np.float32(1e-25)},
            r"magnitude is .* expected are 1e-12 to 1e\+12",
        ),
        (lambda X, y: {"X": np.ma.masked_greater(X, 2)}, r"`X` has masked values, .*`X\.filled"),
        (lambda X, y: {"X": {3: list(np.ma.masked_greater(X, 2))}}, r"`X\[3\]` has masked values"),
        (lambda X, y: {"X": torch.from_numpy(X).to_sparse()}, r"`X` is a sparse tensor: give `X\.to_dense\(\)`"),
        (lambda X, y: {"X": [[1.0, 2.0], [3.0]]}, r"`X` is no array .*as many values in each row"),
        (lambda X, y: {"groups": np.ma.masked_equal(np.arange(N), 7)}, r"`groups` has masked values"),
        (lambda X, y: {"y": y[:-1]}, r"`y` has shape \(599,\), and `X` has 600 rows"),
        (
            lambda X, y: {"y": np.full(N, np.inf)},
            "`y`: all training rows have no label, .* 600 rows have none",
        ),
        (
            lambda X, y: {"y": np.array([*"aaaaaaa", None, *"a" * (N - 8)])},
            "`y`: all training rows have the same label, .* 1 rows have none",
        ),
        (
            lambda X, y: {"y": np.zeros(N, dtype=int)},
            "all training rows have the same label, and a probe tells at least two apart",
        ),
        (lambda X, y: {"y": np.array(list("ab") * 300), "ordinal": True}, r"`ordinal=True`: the labels are strings"),
        (lambda X, y: {"groups": y[:4]}, r"`groups` has shape \(4,\), and `X` has 600 rows"),
        (lambda X, y: {"split": np.resize(["train", "dev"], N)}, r"`split\[1\]` is 'dev': expected train, validation"),
        (lambda X, y: {"split": np.resize(["train"], N)}, r"no row of a class is on the test side"),
        (
            lambda X, y: {"split": np.resize(["train", "test"], N), "groups": np.arange(N) // 2},
            r"`split`: the group 0 is on several sides",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(X: Any, y: Any, change: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        sides_of_arrays(**{"activations": X, "labels": y, **renamed(change(X, y))})


def renamed(given: dict[str, Any]) -> dict[str, Any]:
    return {{"X": "activations", "y": "labels"}.get(name, name): value for name, value in given.items()}
