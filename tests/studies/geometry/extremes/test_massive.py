"""Large values of hidden states: planted ones are found where they are and noise gives none, as loops in float64 do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache import Request, tokens_of
from probing.corpus import from_sentences
from probing.models import load_tokenizer, resolve_model
from probing.studies.geometry.extremes.held import FREQUENT, Kinds, as_sinks, by_text
from probing.studies.geometry.extremes.survey import (
    MOST_NEURONS,
    Large,
    course_rows,
    large_values,
    massive_rows,
    median_magnitude,
)
from probing.studies.geometry.extremes.tables import ALL, DEFINITIONS
from synthetic import make_store, make_tokens

pytestmark = pytest.mark.numeric

D, NEURON = 48, 7
LENGTHS = [5, 9, 12, 7] * 10
TOKENS = make_tokens(LENGTHS)
N = sum(LENGTHS)
NAMES = np.where(TOKENS.positions == 0, "[CLS]", np.where(TOKENS.special, "[SEP]", "word")).astype(object)
KINDS = Kinds.of(NAMES)
# A token of the third sentence that is no special one.
PLACE = int(TOKENS.offsets[2]) + 4


def noise(n_layers: int, seed: int = 0) -> list[NDArray[np.float32]]:
    generator = np.random.default_rng(seed)
    return [generator.normal(scale=0.3, size=(N, D)).astype(np.float32) for _ in range(n_layers)]


def found_in(folder: Path, states: list[NDArray[np.float32]], dtype: str = "float32") -> list[Large]:
    store = make_store(folder, states, TOKENS, dtype=dtype)
    return [large_values(store, layer, KINDS) for layer in range(len(states))]


def test_a_planted_value_is_found_by_every_definition_at_its_token_and_in_its_layer_alone(tmp_path: Path) -> None:
    states = noise(3)
    states[1][PLACE, NEURON] = -500
    found = found_in(tmp_path, states)
    rows = [row for one in found for row in massive_rows(one, KINDS)]
    massive = [row for row in rows if row["definition"] == "massive"]
    assert [(row["layer"], row["token"], row["count"]) for row in massive if row["token"] == ALL] == [
        (0, ALL, 0), (1, ALL, 1), (2, ALL, 0),
    ]  # fmt: skip
    (one,) = [row for row in massive if row.get("neuron") is not None]
    assert (one["layer"], one["token"], one["neuron"], one["count"], one["largest_magnitude"]) == (
        1,
        "word",
        NEURON,
        1,
        500,
    )
    assert one["share"] == 1 / (NAMES == "word").sum()
    assert one["median"] == np.median(np.abs(states[1]))
    for name in ("token_sd", "neuron_sd"):
        counts = [large.counts[name] for large in found]
        assert counts[1][KINDS.names.index("word"), NEURON] == 1
        # Of 10,000 normally distributed values, the chance that one is beyond 5 sd is half a percent.
        assert [count.sum() for count in counts] == [0, 1, 0]


def test_noise_has_no_massive_value_however_large_it_is(tmp_path: Path) -> None:
    found = found_in(tmp_path, [2000 * states for states in noise(2, seed=1)])
    assert all(large.largest.max() > 100 for large in found)
    assert [large.counts["massive"].sum() for large in found] == [0, 0]
    assert all(row["count"] == 0 for row in massive_rows(found[0], KINDS) if row["definition"] == "massive")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_counts_are_those_of_a_loop_in_float64(tmp_path: Path, dtype: str) -> None:
    generator = np.random.default_rng(3)
    states = [(generator.standard_t(0.8, size=(N, D)) * 0.2 + generator.normal(size=D)).astype(np.float32)]
    states[0][:, 5] = 0.25  # a neuron that does not vary
    (found,) = found_in(tmp_path, states, dtype)
    x = torch.from_numpy(states[0]).to(getattr(torch, dtype)).double().numpy()
    median, mean, sd = np.median(np.abs(x)), x.mean(0), x.std(0)
    counts = {name: np.zeros((len(KINDS.names), D), dtype=int) for name in DEFINITIONS}
    tokens = {name: np.zeros(len(KINDS.names), dtype=int) for name in DEFINITIONS}
    for t in range(N):
        kind = KINDS.names.index(NAMES[t])
        of = {
            "massive": [abs(v) > 100 and abs(v) >= 1000 * median for v in x[t]],
            "token_sd": [abs(v - x[t].mean()) > 5 * x[t].std() for v in x[t]],
            "neuron_sd": [k != 5 and abs(v - mean[k]) > 5 * sd[k] for k, v in enumerate(x[t])],
        }
        for name, flags in of.items():
            counts[name][kind] += flags  # type: ignore[index]
            tokens[name][kind] += any(flags)  # type: ignore[index]
    assert found.median == median
    for name in DEFINITIONS:
        np.testing.assert_array_equal(found.counts[name], counts[name])
        np.testing.assert_array_equal(found.tokens[name], tokens[name])
        assert counts[name].sum() > 0
    for kind, name in enumerate(KINDS.names):
        np.testing.assert_array_equal(found.largest[kind], np.abs(x[name == NAMES]).max(0))


@pytest.mark.parametrize("n", [1, 2, 7, 1000, 1001])
def test_the_median_is_exact(n: int) -> None:
    values = torch.from_numpy(np.random.default_rng(n).standard_cauchy(n).astype(np.float32))
    values[: n // 3] = 0.5  # ties

    def shards() -> Iterator[tuple[slice, Tensor]]:
        for first in range(0, n, 100):
            yield slice(first, first + 100), values[first : first + 100, None]

    assert median_magnitude(shards) == np.median(np.abs(values.numpy().astype(np.float64)))


def test_the_course_of_a_neuron_is_its_longest_run_of_layers(tmp_path: Path) -> None:
    states = noise(6)
    first = TOKENS.positions == 0
    for layer in (0, 2, 3):
        states[layer][first, NEURON] = 400 + layer
    (row, *others) = course_rows(found_in(tmp_path, states), KINDS)
    assert (row["definition"], row["token"], row["neuron"]) == ("massive", "[CLS]", NEURON)
    assert (row["first_layer"], row["last_layer"], row["gone_layer"], row["n_layers"]) == (2, 3, 4, 3)
    assert (row["largest_magnitude"], row["largest_layer"]) == (403, 3)
    assert {(other["definition"], other["token"], other["neuron"]) for other in others} == {
        ("token_sd", "[CLS]", NEURON)
    }


def test_a_neuron_that_stays_to_the_last_layer_is_nowhere_gone(tmp_path: Path) -> None:
    states = noise(3)
    for layer in (1, 2):
        states[layer][:, NEURON] = 300
    rows = course_rows(found_in(tmp_path, states), KINDS)
    massive = [row for row in rows if row["definition"] == "massive"]
    assert {row["token"] for row in massive} == {"[CLS]", "[SEP]", "word"}
    assert all((row["first_layer"], row["last_layer"]) == (1, 2) and "gone_layer" not in row for row in massive)


def test_no_more_than_a_few_neurons_are_listed_for_each_kind(tmp_path: Path) -> None:
    states = noise(1)
    states[0][PLACE, :20] = 900
    rows = [row for row in massive_rows(found_in(tmp_path, states)[0], KINDS) if row["definition"] == "massive"]
    assert [row["n_neurons"] for row in rows if row.get("neuron") is None] == [20, 20]
    assert sum(row.get("neuron") is not None for row in rows) == MOST_NEURONS


@pytest.mark.parametrize(("family", "special"), [("bert", {"[CLS]", "[SEP]"}), ("gpt2", {"first token"})])
def test_every_token_is_of_one_kind(
    family: str, special: set[str], checkpoints: dict[str, Path], sentences: list[str]
) -> None:
    source = resolve_model(str(checkpoints[family]))
    corpus, tokenizer = from_sentences("some", sentences[:80]), load_tokenizer(source)
    tokens = tokens_of(Request(source, corpus, [0], "float32"), tokenizer)
    kinds, sinks = by_text(tokens, tokenizer), as_sinks(tokens, corpus, tokenizer)
    assert len(kinds.names) == FREQUENT + 1 + len(special)
    assert kinds.names[-1] == sinks.names[-1] == "other tokens"
    assert set(sinks.names) == {*special, "punctuation", "other tokens"}
    for found in (kinds, sinks):
        assert special <= set(found.names)
        assert sum(members.sum() for members in found.members.values()) == tokens.n_tokens == found.counts.sum()
    first = sinks.members["[CLS]" if family == "bert" else "first token"]
    np.testing.assert_array_equal(first, tokens.positions == 0)
    marks = {tokenizer.decode([i]).strip() for i in tokens.input_ids[sinks.members["punctuation"]].tolist()}
    assert marks <= set(",.?!-")
