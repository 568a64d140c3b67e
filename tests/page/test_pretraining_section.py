"""The section of a page on encoders with and without positions: its verdict, charts and tables."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from probing import UserError, report
from probing.page.lines import BY_STEP, Up, x, y
from probing.studies.pretrain.section import PRETRAINING
from probing.studies.pretrain.tables import PRETRAINING_ARMS as ARMS
from written import write_csv

STEPS, SEEDS, UNIGRAM = (0, 4, 64), (0, 1, 2), 4.2
LAST = {("learned", 0): 2.5, ("learned", 1): 2.7, ("learned", 2): 2.9, **{("none", seed): 3.8 for seed in SEEDS}}


def loss_of(arm: str, seed: int, step: int) -> float:
    """Return a loss that begins at 4.6 plus a hundredth of the seed, and is half way at step 4."""
    first = 4.6 + seed / 100
    return {0: first, 4: (first + LAST[arm, seed]) / 2, 64: LAST[arm, seed]}[step]


def arms() -> list[dict[str, Any]]:
    """Return rows in which learned has an outlier in layer 1 with every seed."""
    rows = []
    for arm, seed in LAST:
        for step in STEPS:
            for layer in (0, 1):
                is_far = arm == "learned" and layer == 1 and step == 64
                row = {
                    "arm": arm, "seed": seed, "step": step, "layer": layer, "loss": loss_of(arm, seed, step),
                    "unigram_loss": UNIGRAM, "max_mean_sd": 6.25 + seed if is_far else 2.0,
                    "argmax_share": 0.125 * (seed + 1), "argmin_share": 0.0625,
                    "position_accuracy": 0.9 if arm == "learned" else 0.15, "token_accuracy": 0.14,
                    "equivariance": 3.5 if arm == "learned" else 2e-7,
                }  # fmt: skip
                rows.append(row | ({"outlier_neuron": 7 + seed} if is_far else {}))
    return rows


def written(folder: Path) -> Path:
    folder.mkdir()
    results = {"kind": "pretraining with and without positions", "n_vocabulary": 100, "growth": None}
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    (folder / "config.yaml").write_text("size: tiny\n", encoding="utf-8")
    write_csv(folder / "arms.csv", arms())
    write_csv(folder / "losses.csv", [{"arm": "learned", "seed": 0, "step": 0, "loss": 4.6}])
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return report([str(written(tmp_path_factory.mktemp("page") / "<arms>"))]).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def section(page: str) -> str:
    (found,) = re.findall(r'<section id="pretrain-0".*?</section>', page, re.DOTALL)
    return str(found)


def rows_of(table: str) -> list[list[str]]:
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in table.split("<tr>")[1:]]
    return [[unescape(cell) for cell in row] for row in rows]


def test_the_verdict_stands_there_without_a_script(page: str, section: str) -> None:
    assert "<h1>Encoders with and without positions</h1>" in page
    assert '<a href="#pretrain-0">Encoders with and without positions: &lt;arms&gt;</a>' in page
    assert (
        "(Luo, Kulmizev &amp; Mao 2021): confirmed: learned has an outlier with every seed, and none with no" in section
    )
    assert "<script" not in section
    assert len(re.findall("<script", page)) == 1
    assert "size: tiny" in page.split('id="reproduce"')[1]


def test_losses_are_drawn_and_told_beside_the_frequencies_of_tokens(section: str) -> None:
    figure = section.split("</figure>")[0]
    chart, table = figure.split("</svg>")[0], figure.split("<table>")[1]
    assert "a uniform guess has ln 100 = 4.61" in section
    assert re.findall(r'<g class="look-(\d)">', chart) == ["0"] * 3 + ["1"] * 3 + ["2"]
    up = Up.of([2.5, 4.62])
    marks = re.findall(r'transform="translate\(([\d.]+) ([\d.]+)\)" class="mark"', chart)
    expected = [(x(step, STEPS, BY_STEP), y(loss_of(*who, step), up)) for who in LAST for step in STEPS]
    expected += [(x(step, STEPS, BY_STEP), y(UNIGRAM, up)) for step in STEPS]
    assert [(float(across), float(down)) for across, down in marks] == [pytest.approx(at, abs=0.06) for at in expected]
    head, *body = rows_of(table)
    assert head == ["arm", "seed", "steps", "loss at first", "loss", "frequencies of tokens", "below it"]
    assert body[1] == ["learned", "1", "64", "4.610", "2.700", "4.200", "1.500"]
    assert len(body) == len(LAST)


def test_outliers_positions_and_equivariance_stand_by_arm_seed_and_layer(section: str) -> None:
    assert "learned, seed 2, layer 1: 8.250" in section
    assert "none, seed 0, layer 0: 0.150" in section
    assert "an outlier is beyond, layer 1: 5.000" in section
    (details,) = re.findall("<details>.*?</details>", section, re.DOTALL)
    _, *body = rows_of(details)
    assert len(body) == len(LAST) * 2
    assert body[3] == [
        "learned", "1", "1", "7.25", "neuron 8", "0.250", "0.062", "0.900", "0.140", "3.5e+00"
    ]  # fmt: skip
    assert ["none", "0", "1", "2.00", "none", "0.125", "0.062", "0.150", "0.140", "2.0e-07"] in body


def test_every_heading_and_line_is_explained(section: str) -> None:
    headings = set(re.findall(r'<th scope="col">(.*?)</th>', section))
    lines = set(re.findall(r"</svg>([^<]+)</li>", section))
    assert len(headings) > 12
    assert headings | lines - {"learned", "none"} <= set(PRETRAINING)


def test_more_arms_than_looks_of_lines_are_drawn_in_several_charts_with_the_same_axes(tmp_path: Path) -> None:
    folder = written(tmp_path / "twelve")
    usual = [row for row in arms() if (row["arm"], row["seed"]) == ("none", 0)]
    write_csv(
        folder / "arms.csv",
        [row | {"arm": arm, "unigram_loss": 4.1 if arm == "causal_lm" else UNIGRAM} for arm in ARMS for row in usual],
    )
    made = report([str(folder)]).read_text(encoding="utf-8")
    charts = [re.findall(r"</svg>([^<]+)</li>", one) for one in made.split('class="with-legend"')[1:]]
    losses, means, positions = charts[:3], charts[3:5], charts[5:7]
    references = ["frequencies of tokens", "frequencies of tokens, causal_lm"]
    assert [label for chart in losses for label in chart if label in ARMS] == list(ARMS)
    assert all(chart[-2:] == references for chart in losses)
    assert [label for chart in means for label in chart if label in ARMS] == list(ARMS)
    assert [label for chart in positions for label in chart] == list(ARMS)
    assert max(map(len, charts)) == 7
    assert "Loss of masked tokens (causal_lm: of the next) in held-out text" in made


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "arms")
    write_csv(folder / "arms.csv", arms(), without=["unigram_loss"])
    with pytest.raises(UserError, match="there is no 'unigram_loss' in it"):
        report([str(folder)])
