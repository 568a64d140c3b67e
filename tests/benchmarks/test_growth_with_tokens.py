"""The benchmarks of growth: how a column is continued, and one small job of each kind."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks import commands, growth
from benchmarks.contestants.stages import name_of
from benchmarks.harness import measure

SIZES = (30_000, 100_000, 1_000_000)


def row(n: int) -> dict[str, float]:
    """Probes in proportion to n^1.2, everything else to n; memory of 500 MB and 200 MB for each million tokens."""
    values = dict.fromkeys(growth.COLUMNS, n / 1e6)
    memory = {column: 500 + 2e-4 * n for column in growth.COLUMNS if "peak" in column}
    return {**values, **memory, "n_tokens": n, "probes.processor_s": (n / 1e6) ** 1.2}


@pytest.fixture
def rows() -> list[Mapping[str, float]]:
    return [row(n) for n in SIZES]


@pytest.mark.parametrize(
    ("column", "slope", "far"),
    [
        ("cache_mb", 1, 100),
        ("probes.processor_s", 1.2, 100**1.2),
        ("processor_s", 1, 4 * 100 + 100**1.2),
        ("peak_anonymous_mb", 0.129, 20_500),
    ],
)
def test_times_go_on_by_their_slope_memory_by_a_line_and_the_whole_by_its_stages(
    rows: list[Mapping[str, float]], column: str, slope: float, far: float
) -> None:
    found = growth.trend(rows, column)
    assert found.slope == pytest.approx(slope, abs=1e-3)
    assert found.far == pytest.approx(far, rel=1e-6)


def test_a_single_size_is_not_continued(rows: list[Mapping[str, float]]) -> None:
    assert math.isnan(growth.trend(rows[-1:], "cache_mb").far)


def test_the_table_is_drawn_again_without_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table, figure = tmp_path / "growth.csv", tmp_path / "growth.png"
    growth.write_csv(table, growth.COLUMNS, [row(n) for n in SIZES])
    monkeypatch.setattr(sys, "argv", ["growth", "--tokens", "", "--table", str(table), "--figure", str(figure)])
    assert growth.main() == 0
    assert figure.is_file()
    assert "| probes.processor_s | 0.0149 | 0.0631 | 1 | 1.20 | 251 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        ("hidden states of layers 0 to 2", "hidden states"), ("probes of layer 3", "probes"),
        ("probes of 2 layers", "probes"), ("probes of 4 controls", "controls"),
        ("layer 0: without a neuron", "without a neuron"), ("tables, figures and page", "tables"),
        ("libraries", "start"), ("tokens on which neurons are highest and lowest", "evidence"),
    ],
)  # fmt: skip
def test_a_stage_has_the_same_name_for_any_number_of_layers(stage: str, name: str) -> None:
    assert name_of(stage) == name


@pytest.mark.slow
def test_a_small_text_has_time_and_memory_of_every_stage(tmp_path: Path) -> None:
    n_tokens = 5000
    found = growth.measured(growth.write_model(tmp_path / "model"), n_tokens, tmp_path)
    assert found["n_tokens"] == pytest.approx(n_tokens, rel=0.2)
    assert all(found[f"{stage}.processor_s"] > 0 for stage in growth.STAGES)
    assert found["processor_s"] == pytest.approx(
        sum(found[f"{stage}.processor_s"] for stage in growth.STAGES), rel=0.05
    )
    # Three layers of 128 float32, and the table of the tokens.
    assert found["cache_mb"] * 2**20 == pytest.approx(found["n_tokens"] * 3 * 128 * 4, rel=0.05)


@pytest.mark.slow
def test_made_up_rows_of_some_classes_have_time_and_memory_of_every_stage(tmp_path: Path) -> None:
    from benchmarks.classes import STAGES

    found = measure(commands.stages("classes", 5, 1000, 16, tmp_path))
    assert all(found[f"{stage}.{what}"] > 0 for stage in STAGES for what in ("processor_s", "peak_anonymous_mb"))
