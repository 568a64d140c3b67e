"""Sentences without a vector: their pairs have a cosine of 0 in every space, and no transform is fitted on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probing.downstream.names import SPACES
from probing.downstream.sentence_vectors import (
    FitOn,
    Fitting,
    Text,
    Vectors,
    check_static_text,
    fitted_columns,
    similarities,
)
from probing.downstream.static import StaticVectors, read_static
from probing.downstream.sts_dataset import SentencePairs, read_sts
from probing.errors import UserError
from small_data import WORDS, sentence_pairs, write_benchmark

pytestmark = pytest.mark.numeric

PAIRS = [(a, b, score) for a, b, score in sentence_pairs(40, 0) if score > 0]
UNKNOWN = [("☃", PAIRS[0][0], 0.0), (PAIRS[1][1], "☃ ☂", 5.0), ("☃", "☃", 5.0)]


def static_of(folder: Path, pairs: list[Any]) -> tuple[SentencePairs, StaticVectors, FitOn]:
    write_benchmark(folder, "test", pairs)
    (one,) = read_sts([str(folder)])
    generator = np.random.default_rng(0)
    lines = [f"{word} {' '.join(map(str, generator.normal(1, 1, 4)))}\n" for word in WORDS]
    (folder / "vectors.txt").write_text("".join(lines), encoding="utf-8")
    words = read_static(str(folder / "vectors.txt"), one.corpus.sentences)
    kept = np.ones(len(one.corpus.sentences), dtype=bool)
    store: Any = None  # static vectors need no activations
    return one, words, FitOn(["x"], [one.corpus], [Text(store, kept)], words)


def test_pairs_without_a_vector_are_0_in_every_space_and_change_no_other(tmp_path: Path) -> None:
    found, rows = [], []
    for name, pairs in (("whole", PAIRS), ("with", [*PAIRS, *UNKNOWN])):
        one, words, text = static_of(tmp_path / name, pairs)
        vectors = Vectors([one], [None], None, words)  # type: ignore[list-item]
        found.append(similarities(vectors, {one.label: text}, [], [], Fitting(SPACES)))
        rows.append(fitted_columns({"pooling": "static", "transform": "whiten"}, text, 16, words, None))
    assert len(found[0]) == len(found[1]) > 3
    for whole, other in zip(*found, strict=True):
        cosines = other.cosines["STS-B"]
        assert cosines[len(PAIRS) :].tolist() == [0, 0, 0]
        assert cosines[: len(PAIRS)] == pytest.approx(whole.cosines["STS-B"], abs=1e-6)
        assert np.abs(whole.cosines["STS-B"]).min() > 0
    assert (
        rows[1]["n_fitted_sentences"]
        == rows[0]["n_fitted_sentences"]
        == len({text for a, b, _ in PAIRS for text in (a, b)})
    )


def test_transforms_of_static_vectors_need_a_sentence_with_one(tmp_path: Path) -> None:
    one, words, text = static_of(tmp_path, PAIRS)
    check_static_text({one.label: text})
    none = FitOn(["x"], [one.corpus], [Text(text.texts[0].store, np.zeros_like(text.texts[0].kept))], words)
    with pytest.raises(UserError, match="`--static`: no sentence that transforms for STS-B are fitted on has a word"):
        check_static_text({one.label: none})
