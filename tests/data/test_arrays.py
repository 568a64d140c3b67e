"""Arrays as a source of activations, under which names they stand, and the batches that rows come in."""

from __future__ import annotations

import copy
import json
import pickle
import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import chisquare

from probing import ActivationDataModule, LinearProbe, probe
from probing.activations.store import ActivationStore
from probing.data import examples
from probing.data.arrays import ArrayActivations, sides_of_arrays
from probing.data.examples import Batch, Examples, HiddenStateSource, ShardDataset, ShardGroups, read
from probing.data.module import WINDOW, DeviceCache, MiniBatches
from probing.errors import UserError
from probing.results import NamedLayer
from probing.runs.loading import load_run
from probing.tables.figures import name_layers
from probing.text import side_of
from synthetic import make_store, make_tokens, sides
from wandb_stand_in import read_offline_runs
from written import read_csv

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


GENERATOR = np.random.default_rng(0)
Y = GENERATOR.integers(2, size=600)
FIRST, SECOND = (GENERATOR.standard_normal((600, 6)).astype(np.float32) for _ in range(2))
SECOND[:, 3] += 3 * Y
LATE, EARLY = "encoder.layer.10.output", "encoder.layer.2.output"
NAMED = {LATE: FIRST, EARLY: SECOND}  # the order is the one that is given, and not that of the alphabet
FAST: dict[str, Any] = {"replicates": 0, "evidence": "none"}


def test_a_named_layer_is_a_number_that_is_shown_by_its_name() -> None:
    layer = NamedLayer(3, "block")
    assert (layer, f"{layer}", str(layer), f"{layer:02d}", layer + 1) == (3, "block", "block", "03", 4)
    assert {3: "x"}[layer] == "x"
    assert json.dumps([layer]) == "[3]"
    for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert (again, str(again)) == (3, "block")


@pytest.mark.slow
@pytest.mark.parametrize("y", [Y, Y + GENERATOR.standard_normal(600)], ids=["classes", "numbers"])
def test_names_are_shown_and_numbers_stay_in_files(y: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = probe(NAMED, y, runs=tmp_path, name="named", wandb={"mode": "offline"}, **FAST)
    for run in (made, load_run(tmp_path / "named")):
        assert [(row["layer"], row["layer_name"]) for row in run.accuracy] == [(0, LATE), (1, EARLY)]
        assert list(map(str, run.layers)) == [LATE, EARLY]
        assert f"Layer {EARLY}: " in repr(run)
        assert run.config["layer"] == [0, 1]
        assert run.top(EARLY)[0]["neuron"] == run.top(1)[0]["neuron"] == 3
        assert LATE in repr(run.accuracy)
        assert repr(run.accuracy).count("layer name") == 0
    for file in ("accuracy", "neurons"):
        table = (tmp_path / "named" / f"{file}.csv").read_text(encoding="utf-8").splitlines()
        assert table[0].startswith("layer,layer_name,")
        assert table[1].startswith(f"0,{LATE},")
    kept = json.loads((tmp_path / "named" / "results.json").read_text(encoding="utf-8"))
    assert kept["layers"][1]["layer_name"] == EARLY
    page = (tmp_path / "named" / "report.html").read_text(encoding="utf-8")
    assert f'<option value="1" selected>{EARLY}</option>' in page
    assert "layer 0" not in re.sub(r"<script.*", "", page, flags=re.DOTALL).lower()
    (tracked,) = read_offline_runs(tmp_path / "named")
    rows = tracked.table("neurons/layer_01")
    assert {(row["layer"], row["layer_name"]) for row in rows} == {(1, EARLY)}


def test_the_axis_of_layers_has_the_names() -> None:
    axes = Figure().subplots()
    name_layers(axes, [NamedLayer(1, EARLY), NamedLayer(0, LATE)])
    assert [label.get_text() for label in axes.get_xticklabels()] == [LATE, EARLY]
    assert axes.get_xlabel() == "layer"


def test_other_arrays_are_predicted_by_their_names_in_any_order() -> None:
    run = probe(NAMED, Y, quiet=True, **FAST)
    both = run.predict({EARLY: SECOND[:5], LATE: FIRST[:5]})
    assert {(row["layer"], row["layer_name"]) for row in both} == {(0, LATE), (1, EARLY)}
    (alone,) = ([row for row in found if row["layer"] == 1] for found in (run.predict({EARLY: SECOND[:5]}),))
    assert alone == [row for row in both if row["layer"] == 1]
    assert {row["layer"] for row in run.explain({EARLY: SECOND[:5]}, layer=EARLY)} == {1}
    with pytest.raises(
        UserError, match=rf"layer other is not in .*, which has {LATE}, {EARLY}; give a dict of layer name"
    ):
        run.predict({"other": FIRST})
    with pytest.raises(UserError, match=rf"`layer=\"other\"`: .* has layers {LATE} and {EARLY}"):
        run.explain(NAMED, layer="other")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (("a", 1), "'a' and 1 are a number and a name; give all layers one or the other"),
        ((1, "a"), "1 and 'a' are a number and a name"),
        (("3", "a"), "'3' is no name of a layer; expected text in one line that is no number and not `all`"),
        (("all",), "'all' is no name of a layer"),
        (("a", " a"), "' a' is no name of a layer"),
        (("",), "'' is no name of a layer"),
        ((1.5,), "1.5 is no layer number; expected whole numbers from 0, or names, as keys"),
    ],
)
def test_mixed_and_ambiguous_keys_are_refused(keys: tuple[Any, ...], words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        probe(dict.fromkeys(keys, FIRST), Y, quiet=True, **FAST)


def test_an_array_is_named_as_it_was_given() -> None:
    with pytest.raises(UserError, match=r"`X\['b'\]` has shape \(600, 5\) and another layer has \(600, 6\)"):
        probe({"a": FIRST, "b": FIRST[:, :5]}, Y, quiet=True, **FAST)


def test_lightning_classes_number_named_layers() -> None:
    data = ActivationDataModule.from_arrays(NAMED, Y)
    assert [type(layer) for layer in data.layers] == [int, int]
    assert LinearProbe(data.d_model, data.classes, data.layers).layers == [0, 1]


def test_tables_have_no_names_where_none_were_given(tmp_path: Path) -> None:
    probe({2: FIRST, 5: SECOND}, Y, runs=tmp_path, name="n", quiet=True, **FAST)
    assert all(
        "layer_name" not in row for name in ("accuracy", "neurons") for row in read_csv(tmp_path / "n" / f"{name}.csv")
    )


SIZE = 16
LENGTHS = np.random.default_rng(0).integers(6, 12, 60).tolist()


def numbered_store(folder: Path, lengths: list[int], shard_tokens: int, dtype: str = "float32") -> ActivationStore:
    """Activations that say which token they are: layer k holds k and the token's index."""
    tokens = make_tokens(lengths)
    index = np.arange(tokens.n_tokens)
    layers = [np.stack([np.full_like(index, k), index], 1) for k in range(2)]
    return make_store(folder, layers, tokens, shard_tokens, dtype)


@pytest.fixture
def batched_examples(tmp_path: Path) -> Examples:
    """Training examples in more shards than three windows have."""
    train = sides(numbered_store(tmp_path / "store", LENGTHS, 32)).train
    assert len(train.store.plan.shards) > 3 * WINDOW
    return train


def tokens_of(batches: Iterable[Batch]) -> list[int]:
    """Return the tokens of some batches in order, having seen that all that a batch says of them is in step."""
    found = []
    for batch in batches:
        index = batch.hidden_states[0][:, 1].long()
        assert torch.equal(batch.rows, index)
        found += index.tolist()
    return found


def in_step(examples: Examples, batches: list[Batch]) -> list[Batch]:
    for batch in batches:
        rows = batch.rows.numpy()
        for layer, states in enumerate(batch.hidden_states):
            assert states.dtype == torch.float32
            assert (states[:, 0] == layer).all()
            assert torch.equal(states[:, 1].long(), batch.rows)
        assert batch.labels.tolist() == examples.labels[rows].tolist()
        assert batch.sentences.tolist() == examples.store.tokens.sentences[rows].tolist()
    return batches


def test_an_epoch_has_every_example_once_in_batches_of_equal_size(batched_examples: Examples) -> None:
    batches = in_step(batched_examples, list(MiniBatches(batched_examples, [0, 1], SIZE, 0)))
    assert sorted(tokens_of(batches)) == np.flatnonzero(batched_examples.labels >= 0).tolist()
    sizes = Counter(len(batch.labels) for batch in batches)
    assert max(sizes) == SIZE
    assert min(sizes) > SIZE / 2  # none is so small that it is mostly noise


def test_the_seed_decides_the_order_which_is_another_each_epoch(batched_examples: Examples) -> None:
    def epochs(seed: int) -> list[list[int]]:
        mini_batches = MiniBatches(batched_examples, [0], SIZE, seed)
        return [tokens_of(mini_batches) for _ in range(2)]

    first, second = epochs(0)
    assert first != second
    assert [first, second] == epochs(0)
    assert first not in epochs(1)


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_ranks_share_each_batch_of_one_process_equally(batched_examples: Examples, n_ranks: int) -> None:
    epochs = [MiniBatches(batched_examples, [0, 1], SIZE, 0)]
    epochs += [MiniBatches(batched_examples, [0, 1], SIZE, 0, rank, n_ranks) for rank in range(n_ranks)]
    for _ in range(2):
        for batch, *shares in zip(*epochs, strict=True):
            in_step(batched_examples, shares)
            together = torch.cat([share.rows for share in shares])
            assert len({len(share.rows) for share in shares}) == 1
            assert torch.equal(together, batch.rows[: len(together)])
            assert len(batch.rows) - len(together) < n_ranks


def test_a_batch_too_small_to_be_shared_is_passed_over_by_all(tmp_path: Path) -> None:
    train = sides(numbered_store(tmp_path / "store", LENGTHS, 10_000)).train
    one = Examples(train.store, np.where(np.cumsum(train.labels >= 0) == 1, train.labels, -1))
    assert one.n_tokens == 1
    assert [list(MiniBatches(one, [0], SIZE, 0, rank, 2)) for rank in range(2)] == [[], []]
    none = Examples(train.store, np.full_like(train.labels, -1))
    assert list(MiniBatches(none, [0], SIZE, 0)) == []


def test_examples_are_mixed_within_a_window_and_not_beyond(batched_examples: Examples) -> None:
    shards = batched_examples.store.plan.shards
    shard_of = np.repeat([shard.index for shard in shards], [shard.n_tokens for shard in shards])
    order = shard_of[tokens_of(MiniBatches(batched_examples, [0], SIZE, 0))].tolist()
    # Shards whose examples come in turns are of one window.
    mixed: list[set[int]] = []
    end = -1
    for shard in dict.fromkeys(order):
        if order.index(shard) > end:
            mixed.append(set())
        mixed[-1].add(shard)
        end = max(end, len(order) - 1 - order[::-1].index(shard))
    assert max(map(len, mixed)) == WINDOW
    assert len(mixed) <= -(-len(shards) // WINDOW) + 1
    assert len(set(order[:SIZE])) > 1  # from the first batch on
    assert list(dict.fromkeys(order)) != sorted(set(order))  # shards come in random order too


def test_every_order_of_a_window_is_equally_likely(tmp_path: Path) -> None:
    # Four examples in two shards, one window: 24 orders, each in one of 24 epochs.
    train = sides(numbered_store(tmp_path / "store", [6] * 40, 12)).train
    kept = np.flatnonzero(train.labels >= 0)[[0, 1, 9, 10]]
    shards = {int(np.searchsorted(np.cumsum([s.n_tokens for s in train.store.plan.shards]), k, "right")) for k in kept}
    assert len(shards) == 2
    labels = np.full_like(train.labels, -1)
    labels[kept] = train.labels[kept]
    four = Examples(_of_shards(train.store, shards), labels)
    mini_batches, n_epochs = MiniBatches(four, [0], SIZE, 0), 24 * 40
    orders = Counter(tuple(tokens_of(mini_batches)) for _ in range(n_epochs))
    assert len(orders) == 24
    # One seed in a thousand fails this; the seed is fixed.
    assert chisquare(list(orders.values())).pvalue > 1e-3


def _of_shards(store: HiddenStateSource, kept: Collection[int]) -> Any:
    """A store of which only some shards, the first ones, are there."""
    assert sorted(kept) == list(range(len(kept)))

    class Some:
        plan, tokens = replace(store.plan, shards=store.plan.shards[: len(kept)]), store.tokens
        read = store.read

    return Some()


def test_half_precision_is_widened_in_the_batch(tmp_path: Path) -> None:
    train = sides(numbered_store(tmp_path / "store", [6] * 40, 32, "float16")).train
    in_step(train, list(MiniBatches(train, [0, 1], SIZE, 0)))


@pytest.fixture
def batches(tmp_path: Path) -> ShardDataset:
    tokens = make_tokens([8] * 60)
    states = np.arange(tokens.n_tokens * 3, dtype=np.float32).reshape(-1, 3)
    return ShardDataset(sides(make_store(tmp_path / "store", [states], tokens, 64)).train, [0])


def size(batch: Batch) -> int:
    return sum(t.nbytes for t in batch.hidden_states) + sum(t.nbytes for t in batch[1:])


def test_a_cached_batch_is_copied_once_and_the_same(batches: ShardDataset) -> None:
    cache = DeviceCache(batches, torch.device("cpu"), 10**9)
    assert len(cache) == len(batches) > 3
    first = [cache[i] for i in range(len(cache))]
    for i, batch in enumerate(first):
        assert cache[i] is batch
        assert torch.equal(batch.hidden_states[0], batches[i].hidden_states[0])
        assert all(torch.equal(one, other) for one, other in zip(batch[1:], batches[i][1:], strict=True))


def test_what_does_not_fit_is_read_in_every_pass(batches: ShardDataset) -> None:
    cache = DeviceCache(batches, torch.device("meta"), size(batches[0]) + size(batches[1]) + 1)
    for _ in range(2):
        found = [cache[i] for i in range(len(cache))]
        assert [batch.hidden_states[0].device.type for batch in found] == ["meta"] * 2 + ["cpu"] * (len(cache) - 2)
        assert found[0].labels.device == found[0].hidden_states[0].device
        assert torch.equal(found[2].hidden_states[0], batches[2].hidden_states[0])
    assert 0 <= cache.room_bytes <= 1


def test_without_room_nothing_is_cached(batches: ShardDataset) -> None:
    cache = DeviceCache(batches, torch.device("meta"), 0)
    assert {cache[i].labels.device.type for i in range(len(cache))} == {"cpu"}
    with pytest.raises(IndexError):
        cache[len(cache)]


def test_batches_together_are_all_of_them_in_order(batches: ShardDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "SHARDS_IN_A_STEP", 3)
    together = ShardGroups(batches)
    found = [together[i] for i in range(len(together))]
    assert [len(several) for several in found[:-1]] == [3] * (len(found) - 1)
    assert 1 <= len(found[-1]) <= 3
    rows = torch.cat([batch.rows for several in found for batch in several])
    assert torch.equal(rows, torch.cat([batches[i].rows for i in range(len(batches))]))
    with pytest.raises(IndexError):
        together[len(together)]
