"""The section of a page on the checkpoints of a training: what came first, charts and tables."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from probing import report
from probing.page.lines import BY_STEP, Up, x, y
from probing.studies.series.section import SERIES
from probing.studies.series.tables import Thresholds, emergence
from written import write_csv

STEPS = (0, 10, 200, 1000)
LOSSES = (5.0, 4.5, 3.9, 3.0)


def rows_of(n_layers: int) -> list[dict[str, Any]]:
    """Return rows in which the loss comes at step 1000 and a head at step 200; outliers there are none."""
    rows: list[dict[str, Any]] = []
    for step, loss in zip(STEPS, LOSSES, strict=True):
        about = {"step": step, "checkpoint": f"step{step}"}
        for measure, value in (("held_out_loss", loss), ("unigram_loss", 4.2)):
            rows.append({**about, "command": "training", "measure": measure, "value": value})
        for layer in range(n_layers):
            of_layer = {**about, "layer": layer}
            rows.append(
                {**of_layer, "command": "geometry", "measure": "mean_cosine", "value": layer / 100 + step / 2e3}
            )
            if layer:
                head = {"command": "attention", "measure": "offset_mass", "head": 2, "offset": -1}
                rows.append({**of_layer, **head, "value": 0.1 * layer / n_layers + 0.7 * (step >= 200)})
                n = {"command": "attention", "measure": "n_position_heads", "value": float(step >= 200)}
                rows.append({**of_layer, **n})
    return rows


def page_of(folder: Path, n_layers: int) -> str:
    folder.mkdir()
    rows = rows_of(n_layers)
    came = emergence(rows, [{} for _ in STEPS], STEPS, Thresholds())
    checkpoints = [
        {"step": step, "name": f"step{step}", "model": f"runs/gpt/step{step}", "revision": None} for step in STEPS
    ]
    (folder / "results.json").write_text(
        json.dumps({"kind": "series of checkpoints", "checkpoints": checkpoints}), encoding="utf-8"
    )
    (folder / "config.yaml").write_text("measures: all\n", encoding="utf-8")
    for name, table in {"series": rows, "series_outliers": [], "emergence": came}.items():
        write_csv(folder / f"{name}.csv", table)
    return report([str(folder)]).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_of(tmp_path_factory.mktemp("page") / "course", 3)


@pytest.fixture(scope="module")
def section(page: str) -> str:
    (found,) = re.findall(r'<section id="series-0".*?</section>', page, re.DOTALL)
    return str(found)


def test_what_came_first_stands_there_without_a_script(page: str, section: str) -> None:
    assert "<h1>Checkpoints of gpt</h1>" in page
    assert '<a href="#series-0">Checkpoints: course</a>' in page
    assert "<p>Order: position heads (step 200), then loss (step 1000).</p>" in section
    assert "<script" not in section
    cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", section)
    assert "0.77 (2-2)" in cells  # the strongest head at the end
    assert "measures: all" in page.split('id="reproduce"')[1]


def charts(section: str) -> dict[str, str]:
    """Return the charts by the beginning of their captions."""
    found = re.findall(
        r"<figure><figcaption>([^<]+)</figcaption><div class=\"with-legend\">(.*?)</figure>", section, re.DOTALL
    )
    return {caption.split(" over the steps")[0]: caption + chart for caption, chart in found}


def test_each_measure_is_a_chart_over_the_steps(section: str) -> None:
    found = charts(section)
    assert list(found) == ["Held-out loss", "Strongest head at a fixed offset", "Anisotropy"]
    loss = found["Held-out loss"]
    assert "past its threshold for good from step 1,000 on" in loss
    marks = re.findall(r'transform="translate\(([\d.]+) ([\d.]+)\)" class="mark"', loss)[: len(STEPS)]
    up = Up.of([3.0, 5.0])
    expected = [(x(step, STEPS, BY_STEP), y(value, up)) for step, value in zip(STEPS, LOSSES, strict=True)]
    assert [(float(across), float(down)) for across, down in marks] == [pytest.approx(at, abs=0.06) for at in expected]
    assert "token frequencies, step 10: 4.200" in loss
    assert "threshold, step 10: 3.200" in loss
    assert "layer 2, step 200: 0.120" in found["Anisotropy"]


def test_a_layer_looks_the_same_in_every_chart(section: str) -> None:
    found = charts(section)
    for name in ("Strongest head at a fixed offset", "Anisotropy"):
        looks = re.findall(r'<g class="look-(\d)">(?:<path[^>]*></path>)?<g><title>layer (\d)', found[name])
        assert looks
        assert all(look == layer for look, layer in looks)


def test_of_many_layers_some_are_drawn_and_the_page_says_so(tmp_path: Path) -> None:
    page = page_of(tmp_path / "deep", 25)
    cosine, heads = (charts(page)[name] for name in ("Anisotropy", "Strongest head at a fixed offset"))
    assert re.findall(r"</svg>layer (\d+)</li>", cosine) == ["0", "6", "12", "18", "24"]
    assert "; 5 of 25 layers" in cosine
    assert "; 4 of 24 layers" in heads


def test_every_heading_is_explained(section: str) -> None:
    headings = set(re.findall(r'<th scope="col">(.*?)</th>', section))
    assert len(headings) > 10
    assert headings <= {name for names in SERIES for name in names.split(", ")}
