"""What a covariance was fitted on: the numbers behind the warning, and that each command and the report give it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import BARE
from probing import fit, sts, wic
from probing.page.charts import read_sources
from probing.page.run import answer
from probing.probes.transforms import whiten
from probing.runs import SectionPlace
from probing.statistics import ENOUGH, SampleSize, label, size_columns, size_lines, size_of
from probing.statistics.moments import CovarianceAccumulator
from probing.studies.geometry import geometry
from probing.studies.geometry.tables import conclusions
from probing.studies.similarity import STS_STUDY
from probing.tables.probes import transform_lines
from small_data import word_pairs, write_sts, write_wic
from synthetic import LIGHTNING_WARNINGS
from written import read_csv

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    *(pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS),
]

D_MODEL = 16  # of the tiny models


# --- the number ---


@pytest.mark.parametrize("per_dimension", [1.5, 2, ENOUGH, 50])
def test_whitening_leaves_other_vectors_the_variance_that_the_size_tells(per_dimension: float) -> None:
    d, generator = 40, torch.Generator().manual_seed(0)
    n = int(per_dimension * d)
    mixing = torch.randn(d, d, generator=generator, dtype=torch.float64)
    variances = []
    for _ in range(30):
        moments = CovarianceAccumulator(d)
        moments.update(torch.randn(n, d, generator=generator, dtype=torch.float64) @ mixing)
        # Of other vectors the covariance is known: what whitening makes of it is exact.
        matrix = whiten(moments.result()).linear
        after = torch.linalg.eigvalsh(matrix.T @ mixing.T @ mixing @ matrix)
        variances.append(after)
    found = torch.stack(variances)
    # n / (n - d - 2) on average, the mean of an inverse Wishart matrix; 30 draws of 40 directions leave a few percent.
    assert found.mean().item() == pytest.approx(n / (n - d - 2), rel=0.15)
    # Where there is enough, all directions come out within a factor of some 5; with 2 vectors each, they do not.
    assert (found.amax(1) / found.amin(1)).median() < 5 or per_dimension < ENOUGH
    assert (found.amax(1) / found.amin(1)).median() > 15 or per_dimension > 2


def test_the_size_of_a_fit_survives_a_row() -> None:
    columns = size_columns("whiten", 900, 50, 384)
    assert columns == {
        "n_fitted_sentences": 50, "n_fitted_vectors": 900, "n_fitted_dimensions": 384,
        "vectors_per_dimension": 900 / 384,
    }  # fmt: skip
    assert size_of(columns) == SampleSize(900, 50, 384)
    assert size_columns("whiten", 900, 50, 384, components=20)["n_fitted_dimensions"] == 20
    assert size_columns("whiten", 900, 50, 384, components=500)["n_fitted_dimensions"] == 384
    # Its first directions are found among all of them.
    assert size_columns("all_but_the_top", 900, 50, 384, components=20)["n_fitted_dimensions"] == 384
    for kind in ("none", "clip", "clip_random", "center", "standardise", ""):
        assert size_columns(kind, 900, 50, 384) == {}
    assert size_of({}) is None
    assert size_of({"n_fitted_vectors": "", "n_fitted_sentences": "", "n_fitted_dimensions": ""}) is None


def row(transform: str, n_vectors: int, n_sentences: int, d_model: int = 384) -> dict[str, Any]:
    return {"transform": transform, **size_columns(transform, n_vectors, n_sentences, d_model)}


def test_a_reader_is_warned_below_ten_for_each_dimension_and_told_above() -> None:
    few, enough = row("whiten", 3839, 3839), row("whiten", 3840, 3840)
    assert label("whitened", [few]) == "whitened (from 9.9 sentences per dimension)"
    assert label("whitened", [enough]) == "whitened"
    (warning,), (line,) = size_lines([few], "Take more."), size_lines([enough], "Take more.")
    assert warning.startswith("Warning: Whitening of 384 dimensions is fitted on 3,839 sentences, 9.9 per dimension, ")
    assert warning.endswith(" Take more.")
    assert line == "Whitening of 384 dimensions is fitted on 3,840 sentences, 10 per dimension."
    assert size_lines([{"transform": "clip"}, {"protocol": "constant_true"}], "") == []
    assert label("clipped", [{"transform": "clip"}]) == "clipped"


def test_tokens_and_sentences_are_both_told_and_of_several_fits_the_least() -> None:
    (line,) = size_lines([row("whiten", 9719, 500, 768), row("whiten", 9719, 500, 768)], "")
    assert line == (
        "Whitening of 768 dimensions is fitted on 9,719 tokens of 500 sentences, 13 tokens and 0.65 sentences per "
        "dimension."
    )
    sets = [row("whiten", 436, 436), row("whiten", 9000, 9000), row("all_but_the_top", 436, 436)]
    assert label("whitened", sets[:2]) == "whitened (from 1.1 sentences per dimension)"
    first, second = size_lines(sets, "")
    assert "Whitening of 384 dimensions is fitted on as few as 436 sentences, 1.1 per dimension" in first
    assert "All-but-the-top of 384 dimensions is fitted on 436 sentences" in second


# --- where it is given ---


@pytest.fixture
def options(tmp_path: Path, checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cache = tmp_path_factory.getbasetemp() / "size-cache"
    return {
        "model": str(checkpoints["bert"]), "runs": str(tmp_path / "runs"), "cache": str(cache), "layer": [2],
        "wandb": {"mode": "disabled"}, "quiet": True,
    }  # fmt: skip


@pytest.mark.slow
def test_sts_says_on_how_many_sentences_it_whitened(
    tmp_path: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    words = tmp_path / "vectors.txt"
    words.write_text(
        "".join(f"{word} {i} {i % 3} 1\n" for i, word in enumerate(("probe", "layer", "neuron"), 1)), encoding="utf-8"
    )
    data = write_sts(tmp_path / "sts", n=20)
    found = sts([str(data)], transforms="clip,whiten,all_but_the_top", static=str(words), **options)
    assert found is not None
    said = capsys.readouterr().out
    rows = read_csv(found.folder / "sts.csv")
    for row in rows:
        width = 3 if row["pooling"] == "static" else D_MODEL
        size = size_of(row)
        assert (size is None) == (row["transform"] in ("none", "clip"))
        if size:
            assert size.n_vectors == size.n_sentences < ENOUGH * D_MODEL
            assert size.n_dimensions == width
            assert row["vectors_per_dimension"] == size.n_vectors / width
    whitened = [row for row in rows if row["transform"] == "whiten"]
    size, static = size_of(whitened[0]), size_of(whitened[-1])
    assert f"Warning: Whitening of 16 dimensions is fitted on {size}, fewer than 10" in said
    assert f"Whitening of 3 dimensions is fitted on {static}." in said
    name = label("mean, whitened", whitened[:1])
    assert name != "mean, whitened"
    assert f"STS12, {name}: Spearman" in said
    assert "STS12, static, whitened: Spearman" in said
    title = f"Spearman x 100: {name}"
    assert title in " ".join(repr(found).split())
    section = STS_STUDY.section(found, SectionPlace("sts-0", 0, 1000))
    assert title in section
    assert "Warning: Whitening of 16 dimensions is fitted on" in section


def test_wic_says_on_how_many_tokens_it_whitened(
    tmp_path: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for part, n, seed in (("train", 6, 0), ("dev", 40, 1)):
        write_wic(tmp_path / "wic", part, word_pairs(n, seed))
    found = wic(str(tmp_path / "wic"), **options)
    assert found is not None
    said = capsys.readouterr().out
    whitened = next(row for row in read_csv(found.folder / "wic.csv") if row["transform"] == "whiten")
    size = size_of(whitened)
    assert size is not None
    assert (size.n_sentences, size.n_dimensions) == (12, D_MODEL)
    assert size.n_vectors >= 12 * 5  # a token for each of 5 words at least, without special ones
    assert size.is_small == ("Warning: Whitening" in said) == ("Whitened (from" in said)
    assert str(size) in said
    assert [size_of(row) for row in found.chosen if row.get("transform") == "whiten"] == [size, size]
    assert not [row for row in found.chosen if size_of(row) and row["transform"] != "whiten"]


@pytest.mark.slow
def test_geometry_says_on_how_many_tokens_it_whitened_in_the_report_too(
    tmp_path: Path, options: dict[str, Any], sentences: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    short = [" ".join(sentence.split()[:3]) for sentence in sentences[:4]]
    (tmp_path / "few.txt").write_text("".join(f"{sentence}\n" for sentence in short), encoding="utf-8")
    (tmp_path / "text.txt").write_text("".join(f"{sentence}\n" for sentence in sentences[4:60]), encoding="utf-8")
    found = geometry(
        corpus=str(tmp_path / "text.txt"), fit_corpus=str(tmp_path / "few.txt"), transforms="center,whiten", **options
    )
    assert found is not None
    said = capsys.readouterr().out
    rows = read_csv(found.folder / "geometry.csv")
    (size,) = {size_of(row) for row in rows if row["transform"] == "whiten"}
    assert size is not None
    assert (size.n_sentences, size.n_dimensions, size.is_small) == (4, D_MODEL, True)
    # What is measured is another corpus, of more tokens.
    assert size.n_vectors < next(row for row in rows if row["measure"] == "mean_cosine")["n_tokens"]
    assert f"Warning: Whitening of 16 dimensions is fitted on {size}, fewer than 10" in said
    assert "whitened (from" in repr(found)
    assert conclusions(found, {2: []})[-1] in said
    # Two components are another matter.
    fewer = geometry(
        corpus=str(tmp_path / "text.txt"), fit_corpus=str(tmp_path / "few.txt"), transforms="whiten", components=2,
        **options,
    )  # fmt: skip
    assert fewer is not None
    assert "Warning" not in capsys.readouterr().out
    section = found.study.section(found, SectionPlace("geometry-0", 0, 0))
    assert f"Whitening of 16 dimensions is fitted on {size}, fewer than 10" in section
    assert "Measures of each layer, whitened (from" in section


def test_fit_says_on_how_many_tokens_it_whitened_in_the_report_too(
    tmp_path: Path, options: dict[str, Any], sentences: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    short = [" ".join(sentence.split()[:4]) for sentence in sentences]
    (tmp_path / "text.txt").write_text("".join(f"{sentence}\n" for sentence in dict.fromkeys(short)), encoding="utf-8")
    roughly = {**BARE, "probe": {"tolerance": 1e-2}}
    run = fit(corpus=str(tmp_path / "text.txt"), transform="whiten", **roughly, **options)
    assert run is not None
    said = capsys.readouterr().out
    (line,) = transform_lines(run.transform, run.accuracy)[1:]
    assert line in said
    assert line.startswith(("Whitening of 16 dimensions is fitted on", "Warning: Whitening"))
    (row,) = run.accuracy
    assert row["n_fitted_vectors"] == row["n_train_tokens"]
    assert row["n_fitted_sentences"] == run.results["n_sentences"]["train"]
    assert run.results["layers"][0]["vectors_per_dimension"] == row["n_train_tokens"] / 16
    (subject,) = read_sources([run.folder]).views
    assert line in answer(subject).details
    assert "Whitening of 16 dimensions is fitted on" in (run.folder / "report.html").read_text(encoding="utf-8")
