"""Finished runs as a page: what it says is what the run holds, in one file that needs nothing else."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import math
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from html import unescape
from html.parser import HTMLParser
from inspect import signature
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from probing import compare, fit, load_run, report
from probing.__main__ import COMMANDS
from probing.cli.arguments import parse
from probing.cli.commandline import run
from probing.cli.options import plain
from probing.errors import UserError
from probing.page import run as page_run
from probing.page.charts import RunView, charts_html, command_line, read_sources
from probing.page.run import script_data
from probing.page.terms import (
    FIRST,
    class_chart,
    class_data,
    first_rows,
    neuron_map,
    pack_floats,
    pack_halves,
    pack_integers,
    packed_rows,
    ratio_shades,
    ratios,
    shades,
)
from probing.results import Table, element
from probing.studies.ablate.neuron_tables import INTERVENTIONS, outlier_conclusions, outlier_tables
from probing.studies.compare.tables import heat_map
from probing.studies.similarity import STS, STS_CHOSEN, WIC, WIC_CHOSEN, sts_lines, sts_tables, wic_lines, wic_tables
from probing.tables.conclusions import compare_with_controls, not_above
from probing.tables.figures import Chart, Line, Panel
from report_runs import QUICKLY, make_run, points_of, write_study
from written import read_csv, write_csv

NO_WANDB: Any = {"mode": "disabled"}
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def runs(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with evidence of each kind, one without, its twin, and the comparison of these two."""
    place = tmp_path_factory.mktemp("runs")
    make_run(checkpoints["bert"], corpus_file, place, "whole")
    bare: dict[str, Any] = {
        "model": str(checkpoints["bert"]),
        "corpus": str(corpus_file),
        "runs": str(place),
        **QUICKLY,
    }
    fit(**bare, name="bare")
    fit(**bare, name="twin", random_weights=True)
    compare([str(place / "bare"), str(place / "twin")], runs=str(place), name="both", quiet=True, wandb=NO_WANDB)
    return place


@pytest.fixture
def own(runs: Path, tmp_path: Path) -> Callable[..., Path]:
    """Copy a run into the test's own folder, to be changed at will: `own(name, copy)`."""

    def copy(name: str, to: str = "own") -> Path:
        return Path(shutil.copytree(runs / name, tmp_path / to))

    return copy


def subject(folder: Path) -> RunView:
    (found,) = read_sources([folder]).views
    return found


class Words(HTMLParser):
    """The text of a page as a reader without a script sees it, and its elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.open = [tag]

    def handle_endtag(self, tag: str) -> None:
        self.open = []

    def handle_data(self, data: str) -> None:
        self.text += "" if self.open and self.open[0] in ("script", "style") else data


# --- the page ---


@pytest.mark.slow
def test_the_page_says_what_the_run_found_without_a_script(runs: Path, tmp_path: Path) -> None:
    page = report([str(runs / "whole")], output=str(tmp_path / "page.html")).read_text(encoding="utf-8")
    found, text = load_run(runs / "whole"), Words(page).text
    for row in found.accuracy:
        assert f"{row['accuracy']:.3f}" in text
        assert f"{row['shuffled_accuracy']:.3f}" in text
    for row in found.top(subject(runs / "whole").leading, FIRST):
        assert f"{row['contribution']:.4f}" in text
    sentences, doubts, details = page_run.answer(subject(runs / "whole"))
    assert " ".join(sentences) in text
    parts = sentences[-1], "What to distrust", doubts[0], "Details", details[0]
    places = [text.index(part[:20]) for part in parts]
    assert places == sorted(places)
    assert all(f"<strong>{row['accuracy']:.3f}</strong>" in page for row in (found.accuracy[0], found.accuracy[-1]))
    assert "python -m probing fit --model" in text
    assert (runs / "whole" / "config.yaml").read_text(encoding="utf-8") in text
    assert found.results["cache"]["test"]["key"]["model"] in text
    assert found.results["versions"]["torch"] in text


def test_the_page_needs_nothing_else_and_runs_no_script_but_its_own(runs: Path, tmp_path: Path) -> None:
    page = report([str(runs / "whole")], output=str(tmp_path / "page.html")).read_text(encoding="utf-8")
    links = [
        value for _, attributes in Words(page).elements for name, value in attributes.items() if name in ("src", "href")
    ]
    assert links
    assert all(value and value.startswith("#") for value in links)
    assert not re.search(r"https?://|@import|url\((?!data:)", page)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page


def test_the_same_runs_make_the_same_page(runs: Path, tmp_path: Path) -> None:
    pages = [report([str(runs / "whole")], output=str(tmp_path / f"{i}.html")).read_bytes() for i in range(2)]
    assert pages[0] == pages[1]


def test_what_users_name_is_shown_and_never_run(own: Callable[..., Path], tmp_path: Path) -> None:
    folders = [own("whole", f"{EVIL} a"), own("bare", f"{EVIL} b")]
    for folder in folders:
        results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        results["classes"] = [f"</script>{EVIL}{label}" for label in results["classes"]]
        results["versions"]["torch"] = EVIL
        (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
        config = (folder / "config.yaml").read_text(encoding="utf-8")
        config = re.sub("(?m)^(model|corpus|task): .*$", rf"\1: '{EVIL}$x\\1'", config)
        (folder / "config.yaml").write_text(config, encoding="utf-8")
        for name in ("class_scores", "confusions", "contexts"):
            rows = read_csv(folder / f"{name}.csv")
            for row in rows:
                row |= {
                    column: f"</script>{EVIL}{row[column]}"
                    for column in ("class", "predicted", "confused_with")
                    if row.get(column, "") != ""
                }
            write_csv(folder / f"{name}.csv", rows)
    page = report([str(folder) for folder in folders], output=str(tmp_path / "page.html")).read_text(encoding="utf-8")
    seen = Words(page)
    assert not [
        tag for tag, attributes in seen.elements if tag == "img" or any(name.startswith("on") for name in attributes)
    ]
    assert f"Neurons of {EVIL} a" in seen.text
    assert seen.text.count(EVIL) > 10
    data = [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', page)]
    assert [one["classes"][0].count(EVIL) for one in data] == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_classes", "n_runs", "kept", "n_charts"), [(128, 1, 672, 5), (510, 1, 168, 5), (65, 3, 116, 3)]
)
def test_a_page_of_a_large_model_is_small(
    n_classes: int, n_runs: int, kept: int, n_charts: int, own: Callable[..., Path], tmp_path: Path
) -> None:
    folders = [own("whole", "0")]
    enlarge(folders[0], n_classes, width=768, n_layers=13)
    folders += [Path(shutil.copytree(folders[0], tmp_path / str(i))) for i in range(1, n_runs)]
    path = report([str(folder) for folder in folders], output=str(tmp_path / "page.html"))
    assert 4e6 < path.stat().st_size < 5e6
    # All neurons' contributions by class if there is room, else those of the first, and then the page says so.
    said = re.findall(r"This page has it for the first (\d+) neurons of each layer", path.read_text(encoding="utf-8"))
    assert said == ([str(kept)] * n_runs if kept < 768 else [])
    # So it is with the charts of single neurons.
    charts = path.read_text(encoding="utf-8").count('class="chart by-position"')
    assert charts == 13 * n_charts


def enlarge(folder: Path, n_classes: int, width: int, n_layers: int) -> None:
    """Make of a run one of a large model, with numbers that do not pack well."""
    generator = np.random.default_rng(0)
    table, accuracy = read_csv(folder / "neurons.csv"), read_csv(folder / "accuracy.csv")[0]
    of_class = read_csv(folder / "class_scores.csv")[0]
    tokens, rows, contexts, profiles = read_csv(folder / "contexts.csv")[:10], [], [], []
    for layer in range(n_layers):
        order, scores = generator.permutation(width).tolist(), np.sort(generator.gamma(2, size=width))[::-1].tolist()
        for rank in range(1, width + 1):
            row = {
                name: value * generator.random() if isinstance(value, float) else value
                for name, value in table[0].items()
            }
            score = scores[rank - 1]
            beside = {"direction_lowest": 0.8 * score, "direction_highest": 0.9 * score, "above_directions": "yes"}
            place = {"layer": layer, "rank": rank, "neuron": order[rank - 1], "contribution": score}
            rows.append({**row, **place, **beside})
        for neuron in order[:10]:
            contexts += [{**row, "layer": layer, "neuron": neuron} for row in tokens]
            profiles += [
                {
                    "layer": layer, "neuron": neuron, "measure": "position", "index": position, "value": at,
                    "value_low": at - generator.random(), "value_high": at + generator.random(), "n_test_tokens": 99,
                }
                for position, at in enumerate(generator.standard_normal(128).tolist())
            ]  # fmt: skip
    for name, content in (
        ("neurons.csv", rows),
        ("contexts.csv", contexts),
        ("profiles.csv", profiles),
        ("accuracy.csv", [{**accuracy, "layer": layer} for layer in range(n_layers)]),
        (
            "class_scores.csv",
            [{**of_class, "layer": i, "class": c} for i in range(n_layers) for c in range(n_classes)],
        ),
        (
            "confusions.csv",
            [
                {"layer": i, "class": c, "predicted": int(other), "n_test_tokens": 1}
                for i in range(n_layers)
                for c in range(n_classes)
                for other in generator.integers(n_classes, size=9)
            ],
        ),
    ):
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(content[0]))
            writer.writeheader()
            writer.writerows(content)
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    results |= {"classes": list(range(n_classes)), "layers": [{"layer": layer} for layer in range(n_layers)]}
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    numbers = generator.gamma(2, size=(n_layers, n_classes, width)).astype(np.float32)
    save_file({"contribution": numbers}, folder / "contributions.safetensors")
    save_file({"weight": numbers}, folder / "probe.safetensors")


def test_of_several_runs_each_is_shown_and_all_in_one_chart(runs: Path, tmp_path: Path) -> None:
    names = [str(runs / name) for name in ("whole", "bare", "twin")]
    page = report(names, output=str(tmp_path / "page.html")).read_text(encoding="utf-8")
    # Two runs of one model and task are told apart by their folders.
    assert re.findall(r"<h2>Neurons of (.*?)</h2>", page) == ["whole", "bare", "twin"]
    charts = re.findall(r"<svg [^>]*class=\"chart\".*?</svg>", page, re.DOTALL)
    assert len(charts) == 2  # the common one, and that of the run which has controls
    assert charts[0].count('class="look-') == 4  # three runs, and the majority class


def test_a_comparison_brings_its_runs_and_their_agreement(runs: Path, tmp_path: Path) -> None:
    path = report([str(runs / "both")])
    assert path == runs / "both" / "report.html"
    page = path.read_text(encoding="utf-8")
    path.unlink()
    assert re.findall(r"<h2>Neurons of (.*?)</h2>", page) == ["bare", "twin"]
    values = {
        row["statistic"]: row["value"]
        for row in read_csv(runs / "both" / "agreement.csv")
        if row["layer_a"] == row["layer_b"] == 2
    }
    assert f"layers 2 and 2: {values['spearman']:.3f}" in page
    assert f"layers 2 and 2: {values['cka']:.3f}" in page
    assert page.count('class="chart heat"') == 3
    (verdict,) = load_run(runs / "both").answer()
    assert f'<p class="answer">{page_run.with_bold_numbers(verdict)}</p>' in page


def test_the_runs_of_a_comparison_that_moved_are_asked_for(
    own: Callable[..., Path], runs: Path, tmp_path: Path
) -> None:
    moved = own("both", "moved")
    results = json.loads((moved / "results.json").read_text(encoding="utf-8"))
    results["runs"] = {label: f"/nowhere/{Path(folder).name}" for label, folder in results["runs"].items()}
    (moved / "results.json").write_text(json.dumps(results), encoding="utf-8")
    with pytest.raises(
        UserError, match=r"compares /nowhere/bare, which no longer exists there; give its folder as well"
    ):
        report([str(moved)])
    page = report([str(moved), str(runs / "bare"), str(runs / "twin")]).read_text(encoding="utf-8")
    assert re.findall(r"<h2>Neurons of (.*?)</h2>", page) == ["bare", "twin"]


def test_geometry_is_shown_where_it_was_measured(runs: Path, tmp_path: Path) -> None:
    folder = write_study(tmp_path / "shape", "geometry", {}, clipped={"2": [7]})
    (folder / "geometry.csv").write_text(
        "layer,transform,measure,value,low,high,n_tokens\n0,none,mean_cosine,0.51234,0.5,0.53,900\n"
        "2,none,mean_cosine,0.71,,,900\n2,none,mean_energy_share,0.64,,,900\n2,none,mean_cosine_centred,0.01,,,900\n"
        "2,clip,mean_cosine,0.12,,,900\n",
        encoding="utf-8",
    )
    (folder / "dimensions.csv").write_text("layer,neuron,cosine_share\n2,7,0.83\n", encoding="utf-8")
    (folder / "outliers.csv").write_text("layer,definition,neuron,value\n2,argmax_share,7,0.875\n", encoding="utf-8")
    page = report([str(runs / "bare"), str(folder)], output=str(tmp_path / "page.html")).read_text(encoding="utf-8")
    text = Words(page).text
    assert "Geometry: shape" in text
    assert "The mean cosine is highest in layer 2: 0.710, of which neuron 7 alone contributes 83%." in text
    assert "Clipping 7 changes the mean cosine of layer 2 from 0.710 to 0.120" in text
    assert "0.512 (0.5 to 0.53)" in text
    assert "Measures of each layer, clipped" in text
    assert "untransformed, layer 2: 0.710" in text
    assert "argmax share" not in text  # values are as measured, only headings are put in words
    assert "argmax_share270.875" in text
    alone = report([str(folder)])
    assert alone == folder / "report.html"
    page = alone.read_text(encoding="utf-8")
    assert "<title>Geometry: shape</title>" in page
    assert "Measures of each layer, clipped" in Words(page).text
    for absent in ("Question and answer", "Optimality gap", "Accuracy minus that of the control task"):
        assert absent not in page


def cells(tables: Sequence[Any]) -> list[list[str]]:
    """Return the columns of rich tables, headings first."""
    return [[str(column.header), *map(str, column.cells)] for shown in tables for column in shown.columns]


def word_senses(place: Path) -> tuple[Path, list[dict[str, Any]], list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = [
        {"layer": layer, "transform": space, "threshold": 0.7, "accuracy": 0.5312 + 0.1 * layer + 0.02 * i,
         "accuracy_low": 0.5, "accuracy_high": 0.8, "auc": 0.6, "auc_low": 0.5, "auc_high": 0.7,
         "constant_true_accuracy": 0.4375, "n_pairs": 80}
        for layer in (0, 2) for i, space in enumerate(("none", "whiten"))
    ]  # fmt: skip
    common = {"protocol": "held_out", "layer": 2, "threshold": 0.7123, "reported_on": "dev", "n_pairs": 80}
    ends = {"accuracy": 0.7312, "accuracy_low": 0.6512, "accuracy_high": 0.8112}
    chosen: list[dict[str, Any]] = [
        {**common, **ends, "transform": "none"},
        {**common, **ends, "transform": "whiten", "gain": 0.02, "gain_low": -0.03, "gain_high": 0.07, "n_gained": 5,
         "n_lost": 3, "p_value": 0.7266},
        {"protocol": "constant_true", "reported_on": "dev", "accuracy": 0.4375, "accuracy_low": 0.33,
         "accuracy_high": 0.54, "n_pairs": 80},
        {"protocol": "published", "transform": "none", "layer": 0, "threshold": 0.6, "accuracy": 0.7777},
    ]  # fmt: skip
    tables = {"wic": (rows, tuple(WIC.types)), "chosen": (chosen, tuple(WIC_CHOSEN.types))}
    return write_study(place / "senses", "word-in-context evaluation", tables), rows, chosen


def test_word_senses_are_shown_as_the_terminal_shows_them(runs: Path, tmp_path: Path) -> None:
    folder, rows, chosen = word_senses(tmp_path)
    page = report([str(runs / "bare"), str(folder)], output=str(tmp_path / "page.html")).read_text(encoding="utf-8")
    text = Words(page).text
    for line in wic_lines(Table(chosen)):
        assert line in text
    assert columns_of(page, "wic-0") == cells(wic_tables(Table(rows), Table(chosen)))
    assert "whitened, layer 2: 0.751 (0.500 to 0.800)" in text
    assert "always yes, layer 0: 0.438" in text
    assert "the config of senses" in text
    assert 'href="#wic-0"' in page
    assert "<title>Word senses: senses</title>" in report([str(folder)]).read_text(encoding="utf-8")


def test_similar_sentences_are_shown_by_set_and_undefined_ones_are_not_drawn(runs: Path, tmp_path: Path) -> None:
    common = {"aggregation": "all", "n_pairs": 50, "fitted_on": "other sentences", "n_clipped": 0}
    rows: list[dict[str, Any]] = [
        {**common, "set": name, "pooling": "mean", "layer": layer, "transform": "none",
         "spearman": math.nan if (name, layer) == (EVIL, 0) else 0.6181 + 0.1 * layer, "low": 0.5, "high": 0.9}
        for name in ("2012", EVIL) for layer in (0, 2)
    ]  # fmt: skip
    rows += [{**row, "pooling": "static", "layer": "", "spearman": 0.4242} for row in rows if row["layer"] == 0]
    chosen = [
        {**row, "protocol": "published", "aggregation": how}
        for row in (rows[1], rows[3], *rows[4:])
        for how in ("all", "mean", "wmean")
    ]
    tables = {"sts": (rows, tuple(STS.types)), "chosen": (chosen, tuple(STS_CHOSEN.types))}
    folder = write_study(tmp_path / "alike", "similarity evaluation", tables)
    page = report([str(runs / "bare"), str(folder)], output=str(tmp_path / "page.html")).read_text(encoding="utf-8")
    text = Words(page).text
    for line in sts_lines(Table(chosen)):
        assert line in text
    assert columns_of(page, "sts-0") == cells(sts_tables(Table(rows), Table(chosen)))
    assert "plain, layer 2: 0.818 (0.500 to 0.900)" in text
    assert "static vectors, plain, layer 0: 0.424" in text
    assert text.count("plain, layer 0: 0.618") == 2  # mark and interval of 2012; of the other set it is undefined
    assert "nan" not in page.lower().split('id="sts-0"')[1].split('id="terms"')[0]
    assert EVIL not in page


def test_what_was_taken_out_of_the_model_is_shown_as_the_terminal_shows_it(runs: Path, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"measure": "position_accuracy", "where": "", "kind": "intact", "value": 0.3088}]
    for where in ("inside", "after"):
        effect = {"effect": -0.0979, "effect_low": -0.11, "effect_high": -0.083}
        common = {"measure": "position_accuracy", "where": where, "value": 0.21}
        rows += [{**common, **effect, "kind": "outliers", "neurons": "7", "percentile": 100.0, "p_value": 0.0909}]
        rows += [{**common, "kind": "random", "draw": 1, "neurons": "3", "effect": -0.0123}]
    folder = write_study(tmp_path / "shape", "ablation", {"interventions": (rows, tuple(INTERVENTIONS.types))})
    page = report([str(runs / "bare"), str(folder)], output=str(tmp_path / "page.html")).read_text(encoding="utf-8")
    assert columns_of(page, "ablate-0") == cells(outlier_tables(Table(rows)))
    assert all(line in Words(page).text for line in outlier_conclusions(Table(rows)))


@pytest.mark.parametrize("column", ["accuracy", "transform", "constant_true_accuracy"])
def test_damaged_tables_of_an_evaluation_are_refused(runs: Path, tmp_path: Path, column: str) -> None:
    folder, rows, _ = word_senses(tmp_path)
    write_csv(folder / "wic.csv", rows, [name for name in tuple(WIC.types) if name != column])
    with pytest.raises(UserError, match=f"senses` is damaged .*{column}"):
        report([str(runs / "bare"), str(folder)], output=str(tmp_path / "page.html"))
    assert not (tmp_path / "page.html").exists()


def columns_of(page: str, part: str) -> list[list[str]]:
    """Return the columns of the tables in a part of the page, headings first."""
    found = []
    inside = page.split(f'id="{part}"')[1].split('id="terms"')[0]
    for shown in re.findall(r"<table>(.*?)</table>", inside, re.DOTALL):
        rows = [
            [unescape(re.sub("<[^>]*>", "", cell)) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
            for row in re.findall(r"<tr>(.*?)</tr>", shown, re.DOTALL)
        ]
        found += [list(column) for column in zip(*rows, strict=True)]
    return found


# --- where it goes ---


def test_the_page_goes_into_the_run_or_beside_several(
    own: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = own("bare", "a"), own("twin", "b")
    assert run(COMMANDS, ["report", str(a)]) == 0
    assert re.fullmatch(rf"Report: {a}/report.html \(\d+\.\d kB\)\n", capsys.readouterr().out)
    assert report([str(a), str(b)]) == a.parent / "report-a-b.html"
    before = (a / "report.html").stat().st_mtime_ns
    report([str(a)])  # a report may be replaced
    assert (a / "report.html").stat().st_mtime_ns > before
    assert {path.name for path in a.parent.iterdir()} == {"a", "b", "report-a-b.html"}
    assert load_run(a).neurons  # a run with a page is a run


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "`report` takes the folders of finished runs"),
        (["nowhere"], "`nowhere` does not exist: expected a folder that `fit`, `probe`, `rank`, "),
        (["a.partial"], "`a.partial` is no finished run"),
        (["half"], "or `reproduce` wrote; half.partial is one that did not finish"),
        (["notes.txt"], "`notes.txt` is no finished run"),
        (["a", "a"], "`a` is given twice"),
        (["a", "../desk/a"], "`a` is given twice"),
        (["both", "again"], "`report` shows one comparison, and 2 are given: both, again"),
        (["a", "--output", "folder"], "`--output folder` is a folder"),
        (["a", "--output", "a/neurons.csv"], "`--output a/neurons.csv` is there and is no report"),
        (["a", "--output", "missing/page.html"], "`--output missing/page.html`: there is no folder missing"),
        (["a", "--output", "notes.txt/page.html"], "`--output notes.txt/page.html`: there is no folder notes.txt"),
        (["a", "--output", "x" * 300], "cannot be written (File name too long)"),
        (["a", "--output="], "`--output` is empty"),
        (["a", "--outptu", "x"], "`--outptu` is not an option of report (did you mean `--output`?)"),
        (["no-neurons"], "`no-neurons` is damaged (neurons.csv: No such file or directory)"),
        (["no-tensor"], "`no-tensor` is damaged (contributions.safetensors: No such file or directory)"),
        (["cut-tensor"], "`cut-tensor` is damaged ("),
        (["cut-results"], "`cut-results` is damaged ("),
        (["other-tensor"], "`other-tensor` is damaged (neurons.csv and contributions.safetensors are not of one run)"),
        (["no-rows"], "`no-rows` is damaged (neurons.csv is empty)"),
        (["few-results"], "`few-results` is damaged (results.json has no timings)"),
        (["list-results"], "`list-results` is damaged ("),
    ],
)  # fmt: skip
def test_what_makes_no_page_is_refused_in_one_sentence(
    args: list[str], words: str, desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(desk)
    before = {path: path.stat().st_mtime_ns for path in desk.rglob("*")}
    assert run(COMMANDS, ["report", *args]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert {path: path.stat().st_mtime_ns for path in desk.rglob("*")} == before


@pytest.fixture(scope="module")
def desk(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs of which most are broken."""
    desk = tmp_path_factory.mktemp("away") / "desk"
    desk.mkdir()
    for name in (
        "a",
        "no-neurons",
        "no-tensor",
        "cut-tensor",
        "cut-results",
        "other-tensor",
        "no-rows",
        "list-results",
        "few-results",
    ):
        shutil.copytree(runs / "bare", desk / name)
    for name in ("both", "again"):
        shutil.copytree(runs / "both", desk / name)
    for name in ("a.partial", "half.partial", "folder"):
        (desk / name).mkdir()
    (desk / "notes.txt").write_text("mine", encoding="utf-8")
    (desk / "no-neurons" / "neurons.csv").unlink()
    (desk / "no-tensor" / "contributions.safetensors").unlink()
    (desk / "cut-tensor" / "contributions.safetensors").write_bytes(b"\x10\0\0")
    (desk / "cut-results" / "results.json").write_text('{"layers": [', encoding="utf-8")
    results = json.loads((desk / "few-results" / "results.json").read_text(encoding="utf-8"))
    del results["timings"]
    (desk / "few-results" / "results.json").write_text(json.dumps(results), encoding="utf-8")
    (desk / "list-results" / "results.json").write_text("[]", encoding="utf-8")
    (desk / "no-rows" / "neurons.csv").write_text("", encoding="utf-8")
    tensor = load_file(desk / "other-tensor" / "contributions.safetensors")["contribution"]
    save_file({"contribution": tensor[:, :, :-1].copy()}, desk / "other-tensor" / "contributions.safetensors")
    return desk


@pytest.mark.slow
@pytest.mark.parametrize("target", ["pathlib.Path.replace", "pathlib.Path.write_bytes"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), PermissionError(13, "Permission denied")])
def test_a_page_that_cannot_be_written_leaves_the_old_one(
    target: str, error: OSError, own: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = own("bare")
    page = report([str(folder)])
    before = page.read_bytes()

    def fail(*args: Any, **keywords: Any) -> None:
        raise error

    monkeypatch.setattr(target, fail)
    with pytest.raises(UserError, match=rf"cannot be written \({error.strerror}\); make room, or name another file"):
        report([str(folder)])
    assert page.read_bytes() == before
    assert not list(folder.glob(".report*"))


# --- its words ---


def test_an_accuracy_is_above_below_or_not_told_apart_from_each_control(runs: Path) -> None:
    found = subject(runs / "whole")
    row = {
        **found.run.accuracy[-1], "majority_accuracy": 0.1,
        "accuracy": 0.5, "accuracy_low": 0.45, "accuracy_high": 0.55,
        "shuffled_accuracy": 0.49, "above_shuffled_low": -0.1, "above_shuffled_high": 0.1,
        "untrained_accuracy": 0.9, "above_untrained_low": -0.5, "above_untrained_high": -0.3,
    }  # fmt: skip
    found.run.accuracy[-1].update(row)
    assert compare_with_controls(found.run.accuracy[-1], "position") == (
        "In layer 2 the probe is above the majority class (0.100); not distinguished from shuffled labels (0.490); "
        "below the randomly initialised model (0.900), which is an upper bound, not a baseline: untrained "
        "layers preserve position."
    )
    assert "0.500 (0.450 to 0.550) in layer 2" in page_run.answer(found).answer[0]
    first = {**row, "layer": 1, "above_shuffled_low": 0.1}
    assert not_above([first, row]) == [
        'In layer 2 the accuracy is not distinguished from the control "shuffled labels".',
        'In layers 1 and 2 the accuracy is below the control "randomly initialised".',
    ]
    found.run.results["layers"][1]["converged"] = False
    assert "In layer 2 the probe stopped short of its optimum" in " ".join(page_run.answer(found).doubts)


@pytest.mark.parametrize(
    "typed",
    [
        "",
        "--layer 0,3,6 --controls none --replicates 0",
        "--model 'my model' --random_weights --corpus a.txt --task position --task_args.min_count 3",
        "--probe.l2 0.01 --probe.solver adam --trainer.max_epochs 3 --seed 4 --layer 2 --mdl",
        "--controls [shuffled,token] --layer [1,2]",
    ],
)
def test_the_command_of_a_configuration_gives_that_configuration(typed: str) -> None:
    defaults = {name: parameter.default for name, parameter in signature(fit).parameters.items()}

    def configuration(words: list[str]) -> dict[str, Any]:
        return plain({**defaults, **parse("fit", fit, words)})

    wanted = configuration(shlex.split(typed))
    command = shlex.split(command_line(wanted, plain(defaults)))
    assert command[:4] == ["python", "-m", "probing", "fit"]
    assert configuration(command[4:]) == wanted


# --- its parts ---


def test_text_is_escaped_and_html_is_not() -> None:
    made = element("p", "a < b & 'c'", element("b", EVIL), None, 3, class_="x", data_y='"', hidden=True, title=None)
    assert made == (
        '<p class="x" data-y="&quot;" hidden>a &lt; b &amp; &#x27;c&#x27;<b>&lt;img src=x onerror=alert(1)&gt;</b>3</p>'
    )
    assert "</script" not in script_data({"a": "</script>"})
    assert json.loads(script_data({"a": "</script>&"})) == {"a": "</script>&"}


def unpack(packed: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return packed numbers as a flat array, as the page's script does."""
    kind = {"integer": "<u2", "single": "<f4", "half": "<f2"}[packed["kind"]]
    return np.frombuffer(base64.b64decode(packed["data"]), kind).astype(np.float64) * packed.get("scale", 1)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e9])
def test_packed_numbers_come_back_to_three_digits_or_seven(scale: float) -> None:
    values = scale * np.random.default_rng(0).normal(size=1000)
    values[:2] = np.nan, np.inf
    for pack, tolerance in ((pack_halves, 2.0**-11), (pack_floats, 2.0**-24)):
        found = unpack(pack(values))
        assert np.isnan(found[:2]).all()
        # Half a unit of the last place, of the value or, among the smallest, of what is 2^14 times below the largest.
        floor = 2.0**-25 * np.abs(values[2:]).max() * 2
        assert np.all(
            np.abs(found - values)[2:] <= tolerance * np.abs(values[2:]) + (floor if pack is pack_halves else 0)
        )
    assert unpack(pack_halves(np.zeros(3))).tolist() == [0, 0, 0]


def test_packed_integers_come_back_and_others_are_refused() -> None:
    assert unpack(pack_integers([0, 7, 65535])).tolist() == [0, 7, 65535]
    for wrong in (-1, 65536):
        with pytest.raises(ValueError, match="0 to 65535"):
            pack_integers([0, wrong])


def test_the_image_of_a_map_holds_its_shades() -> None:
    from matplotlib.image import imread

    values = np.array([[0.0, 0.25, 1.0], [2.0, -1.0, np.nan]])
    image = imread(io.BytesIO(base64.b64decode(shades(values).partition(",")[2])))
    assert image.shape[:2] == (2, 3)
    np.testing.assert_allclose(image[..., -1], np.array([[0, 0.25, 1], [1, 0, 0]]), atol=1 / 255)


def test_the_map_has_each_neuron_in_its_place(runs: Path) -> None:
    found = subject(runs / "whole")
    values = ratios(found)
    for row in found.run.neurons:
        assert values[found.run.layers.index(row["layer"]), row["neuron"]] == row["ratio"]
    np.testing.assert_allclose(ratio_shades(np.array([[0.01, 0.1, 1, 10, 99]])), [[0, 0, 0.5, 1, 1]])
    assert shades(ratio_shades(values)) in neuron_map(found, "title")


def test_the_table_of_the_script_is_the_run_s_table(runs: Path) -> None:
    found = subject(runs / "whole")
    packed, rows = packed_rows(found), found.run.neurons
    assert [column["key"] for column in packed["columns"]][:4] == ["layer", "rank", "rank_low", "neuron"]
    for key in ("contribution", "ratio", "eta_squared_z", "unique", "mean", "cross_entropy_without"):
        wanted = [row[key] if row[key] != "" else np.nan for row in rows]
        np.testing.assert_allclose(unpack(packed["rows"][key]), wanted, rtol=1e-6)
    for key in ("neuron", "rank_low", "rank_high"):
        assert unpack(packed["rows"][key]).tolist() == [row[key] for row in rows]
    for key in ("flag", "removed"):
        names = packed["rows"][key]["names"]
        assert [names[int(code)] for code in unpack(packed["rows"][key]["codes"])] == [row[key] for row in rows]


def test_a_centred_contribution_that_is_unreliable_has_a_star(runs: Path) -> None:
    found = subject(runs / "whole")
    stars = re.findall(r"<td>\*([\d.]+)</td>", first_rows(found, "caption"))
    ranked = found.ranked[found.leading][:FIRST]
    far = [row for row in ranked if abs(row["mean"]) > 3 * row["sd"] and row["flag"] != "dead"]
    assert far
    assert stars == [f"{row['contribution_centred']:.4f}" for row in far]


def test_a_run_without_evidence_has_no_columns_for_it(runs: Path) -> None:
    text = first_rows(subject(runs / "bare"), "caption")
    assert "without it" not in text
    assert "range" not in re.findall(r"<th [^>]*>(.*?)</th>", text)
    assert text.count("<tr>") == 1 + FIRST


def test_contributions_by_class_are_kept_for_the_first_neurons_that_there_is_room_for(runs: Path) -> None:
    found = subject(runs / "whole")
    n_layers, n_classes, d_model = found.by_class.shape
    whole, less = class_data(found, 10**9), class_data(found, n_layers * n_classes * 2 * 5 * 2)
    assert (whole["per_layer"], less["per_layer"]) == (d_model, 7)
    for data in (whole, less):
        values = unpack(data["values"]).reshape(n_layers, data["per_layer"], n_classes)
        for i, rows in enumerate(found.ranked.values()):
            for row, kept in zip(rows, values[i], strict=False):
                np.testing.assert_allclose(kept, found.by_class[i, :, row["neuron"]], rtol=1e-3, atol=1e-5)
        assert len(json.dumps(data["values"])) < n_layers * n_classes * 2 * 5 * 2 + 100 or data is whole
    typical = unpack(whole["typical"]).reshape(n_layers, n_classes)
    np.testing.assert_allclose(typical, found.by_class.mean(2), rtol=1e-3, atol=1e-6)


def paths(svg: str, kind: str) -> list[str]:
    root = ElementTree.fromstring(unescape_entities(svg))
    return [part.get("d", "") for part in root.iter("path") if part.get("class") == kind]


def unescape_entities(svg: str) -> str:
    return re.sub(r"&#x27;", "'", svg)


def drawn(lines: list[Line]) -> str:
    """Return the lines as they are drawn on a page."""
    (chart,) = charts_html([Chart("accuracy", "title", [Panel(lines)], "accuracy", limits=(0, 1))])
    return chart


def height(value: float) -> float:
    """Return where a value is between the ends of 0 and 1, which have a margin of .04."""
    return 280 - (280 - 12) * (value + 0.04) / 1.08


def test_a_line_goes_through_its_values_and_bars_span_their_intervals() -> None:
    line = Line("probe", [2, 3], [1.0, 0.25], [(0.9, 1.0), (0.2, 0.3)])
    made = drawn([line, Line("floor", [2, 3], [0.1, 0.1])])
    svg = re.search("<svg.*?</svg>", made, re.DOTALL)
    assert svg
    lines = paths(svg[0], "line")
    assert len(lines) == 2
    ends = [float(part.split()[1]) for part in lines[0][1:].split("L")]
    assert ends == pytest.approx([height(1.0), height(0.25)], abs=0.06)
    assert [float(down) for _, down in points_of(svg[0])[0]] == pytest.approx(ends)
    bars = [re.match(r"M[\d.]+ ([\d.]+)L[\d.]+ ([\d.]+)", bar) for bar in paths(svg[0], "bar")]
    assert [tuple(map(float, bar.groups())) for bar in bars if bar] == [
        pytest.approx((height(pair[0]), height(pair[1])), abs=0.06) for pair in line.ranges if pair
    ]
    assert "probe, layer 3: 0.250 (0.200 to 0.300)" in made
    looks = re.findall(r'class="look-(\d)"', svg[0])
    assert len(set(looks)) == len(looks)


def test_a_run_of_one_layer_is_a_mark_at_its_layer_among_runs_of_more() -> None:
    lines = [
        Line("one", [2], [0.5], [(0.4, 0.6)]), Line("three", [0, 1, 2], [1.0, 0.9, 0.4]), Line("first", [0], [0.2])
    ]  # fmt: skip
    svg, legend = drawn(lines).split("</svg>", 1)
    (one,), (start, middle, end), (first,) = points_of(svg)
    assert (one[0], first[0]) == (end[0], start[0])
    assert middle[0] == pytest.approx((start[0] + end[0]) / 2, abs=0.1)
    heights = [at[1] for at in (one, start, middle, end, first)]
    assert heights == pytest.approx([height(value) for value in (0.5, 1.0, 0.9, 0.4, 0.2)], abs=0.06)
    # Only what joins layers is a line, in the chart and in its legend.
    assert svg.count('class="line"') == legend.count('class="line"') == 1
    assert re.findall(r'text-anchor="middle"[^>]*>(\d+)<', svg) == ["0", "1", "2"]


def test_a_single_layer_has_no_chart_by_layer() -> None:
    assert charts_html([Chart("accuracy", "title", [Panel([Line("probe", [6], [0.1])])], "accuracy")]) == []


def test_the_bars_of_classes_are_as_high_as_their_values() -> None:
    svg = class_chart([4.0, 1.0, 0.0], [2.0, 2.0, 2.0], [1, 2, 3], "position")
    heights = [-float(h) for h in re.findall(r"v(-?[\d.]+)h", paths(svg, "bars")[0])]
    assert heights[0] == pytest.approx(4 * heights[1], abs=0.2)
    assert heights[2] == 0
    words = class_chart([1.0, 2.0], [1.0, 1.0], ["NOUN", EVIL], "upos")
    assert "rotate(-60)" in words
    assert "NOUN" in words
    assert "<img" not in words
    assert "nan" not in class_chart([0.0], [0.0], [1], "position")
    many = class_chart([1.0] * 510, [1.0] * 510, list(range(510)), "position")
    assert many.count('text-anchor="middle"') < 30


def test_the_first_run_s_layers_go_upwards_in_a_heat_map() -> None:
    values = {(i, j): 0.1 * i + 0.05 * j for i in range(3) for j in range(2)}
    made = heat_map(values, {layers: f"cell {layers}" for layers in values}, ("a", "b"), "Spearman")
    cells = re.findall(r"<title>cell \((\d), (\d)\)</title><rect x=\"(\d+)\" y=\"(\d+)\"", made)
    assert len(cells) == 6
    heights = {int(i): int(top) for i, _, _, top in cells}
    assert heights[0] > heights[1] > heights[2]
    assert ">.25<" in unescape(made)
    low = heat_map({(0, 0): -0.5}, {(0, 0): ""}, ("a", "b"), "Spearman")
    assert 'fill-opacity="0.00"' in low
    assert ">-.50<" in low
