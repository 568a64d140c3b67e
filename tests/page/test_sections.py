"""Sections of a page: surveys of heads, diagnostics, encoders with and without positions, and checkpoints."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from probing import Result, fit, report
from probing.errors import UserError
from probing.heads.examples import Example, ExampleMaps, read_examples, write_examples
from probing.results import Table
from probing.runs import study_of
from probing.runs.loading import load_run
from probing.studies import cloze, hierarchy
from probing.studies.attention.conclusions import conclusions
from probing.studies.attention.section import ABOVE, BELOW, FULL, LEAST, TIP_WIDTH, Row, sentence_arcs
from probing.studies.checkpoints.tables import Thresholds, emergence
from probing.studies.pretrain.tables import PRETRAINING_ARMS as ARMS
from probing.tables.heads import of_heads
from report_runs import QUICKLY, make_survey, points_of
from written import read_csv, write_csv

EVIL = "</text><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def made(checkpoints: dict[str, Path], sentences: list[str], tmp_path_factory: pytest.TempPathFactory) -> Result:
    found = load_run(make_survey(checkpoints["bert"], sentences, tmp_path_factory.mktemp("surveys"), "survey"))
    assert isinstance(found, Result)
    return found


@pytest.fixture(scope="module")
def page(made: Result, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = report([str(made.folder)], output=str(tmp_path_factory.mktemp("page") / "page.html"))
    return path.read_text(encoding="utf-8")


@pytest.fixture
def own(made: Result, tmp_path: Path) -> Callable[..., Path]:
    """Copy the survey into the test's own folder, to be changed at will."""
    return lambda to="own": Path(shutil.copytree(made.folder, tmp_path / to))


def text_of(html: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", re.sub(r"<(script|style)[^>]*>.*?</\1>", "", html, flags=re.DOTALL)))


def rows_of(table: str) -> list[list[str]]:
    """Return the cells of the rows of a table."""
    rows = re.findall(r"<tr>(.*?)</tr>", table)
    return [[text_of(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)] for row in rows]


def heads_of(made: Result) -> list[tuple[int, int]]:
    return [(row["layer"], row["head"]) for row in made.head_relations]


def detail(page: str, layer: int, head: int) -> str:
    (found,) = re.findall(rf'<section class="head-detail[^"]*" id="head-0-{layer}-{head}">.*?</section>', page)
    return str(found)


def test_the_page_says_what_the_survey_found_without_a_script(made: Result, page: str) -> None:
    text = text_of(page)
    assert "<h1>Attention heads in tiny-bert</h1>" in page
    for line in conclusions(made.by_name):
        assert line in text
    results = made.results
    assert f"over {results['n_tokens']:,} tokens of 40 sentences of the corpus {made.config['corpus']}" in text
    (all_numbers,) = re.findall(r"<summary>All numbers of all heads</summary>(.*?)</details>", page, re.DOTALL)
    head, *rows = rows_of(all_numbers)
    assert [row[0] for row in rows] == [f"{layer}-{head}" for layer, head in heads_of(made)]
    by_head = {row[0]: dict(zip(head, row, strict=True)) for row in rows}
    for row in of_heads(made.by_name):
        assert by_head[f"{row['layer']}-{row['head']}"]["class"] == row["class"]
        assert by_head[f"{row['layer']}-{row['head']}"]["of its maps"] == f"{row['share']:.1%}"
    names = {
        ("entropy", ""): "entropy",
        ("previous", ""): "previous token",
        ("mass", "special tokens"): "special tokens",
    }
    for row in made.heads:
        if name := names.get((row["measure"], row.get("to", ""))):
            assert by_head[f"{row['layer']}-{row['head']}"][name] == f"{row['value']:.3f}"
    for row in made.head_relations:
        own = by_head[f"{row['layer']}-{row['head']}"]
        assert (own["best at"], own["accuracy"]) == (row["relation"], f"{row['test']:.3f}")
    (relations,) = re.findall(r"<figcaption>Dependency relations: .*?</figcaption>(.*?)</figure>", page)
    head, *rows = rows_of(relations)
    columns = [head.index(name) for name in ("relation", "layer", "head", "accuracy", "its accuracy")]
    assert [tuple(row[i] for i in columns) for row in rows] == [
        (row["relation"], str(row["layer"]), str(row["head"]), f"{row['test']:.3f}", f"{row['offset_test']:.3f}")
        for row in made.relations
    ]
    assert "Trees: the baseline is" in page


def test_the_map_has_each_head_in_its_place_and_every_link_leads_somewhere(made: Result, page: str) -> None:
    (shown,) = re.findall(r'<table class="heads-map".*?</table>', page, re.DOTALL)
    head, *rows = rows_of(shown)
    places = heads_of(made)
    assert head == ["layer", "head 1", "2"]
    assert [row[0] for row in rows] == [str(layer) for layer in sorted({layer for layer, _ in places})]
    letters = {"vertical": "V", "diagonal": "D", "vertical and diagonal": "B", "heterogeneous": "h"}
    cells = {(int(row[0]), i): cell for row in rows for i, cell in enumerate(row[1:], 1)}
    for row in of_heads(made.by_name):
        assert cells[row["layer"], row["head"]] == f"{letters[row['class']]} {100 * row['share']:.0f}"
    links = re.findall(r'href="(.*?)"', page)
    assert set(links) >= {f"#head-0-{layer}-{head}" for layer, head in places}
    identifiers = re.findall(r' id="(.*?)"', page)
    assert len(identifiers) == len(set(identifiers))
    assert {link[1:] for link in links} <= set(identifiers)
    assert not re.search(r"https?://|@import", page)
    (data,) = re.findall(r'<script type="application/json">(.*?)</script>', page)
    known = json.loads(data)
    assert [len(one["texts"]) for one in known["measures"]] == [len(places)] * 8
    assert known["columns"] == 2


def test_arcs_are_those_of_the_attention_and_of_the_treebank(made: Result, page: str) -> None:
    examples = read_examples(made.folder)
    assert examples
    relations = {(row["layer"], row["head"]): row for row in made.head_relations}
    n_right = 0
    for layer, head in heads_of(made):
        drawn = re.findall(r"<svg.*?</svg>", detail(page, layer, head))
        assert len(drawn) == len(examples.examples)
        by_name = {re.findall(r'href="#(.*?)"', one)[0]: ElementTree.fromstring(one) for one in drawn}
        relation = relations[layer, head]
        for i, one in enumerate(examples.examples):
            svg, row = by_name[f"words-0-{i}"], Row.of(one.of.words)
            paths = [(path.get("d", ""), path.get("class"), path.get("stroke-width")) for path in svg.iter("path")]
            expected = one.strongest(list(examples.layers).index(layer), head - 1)
            gold = {(d, h) for d, h, name in one.of.arcs if name == relation["relation"]}
            gold = gold if relation["query"] == "dependent" else {(h, d) for d, h in gold}
            tips = [path for path, look, _ in paths if look and look.startswith("tips")]
            found = [(*ends(path, row), weight, look) for path, look, weight in paths if look in (None, "hit")]
            assert found == [
                (a, b, f"{max(LEAST, FULL * weight):.1f}".removesuffix(".0"), "hit" if (a, b) in gold else None)
                for a, b, weight in expected
            ]
            assert {ends(path, row) for path, look, _ in paths if look == "gold"} == gold
            assert [tip_words(path, row) for path in tips] == [
                {b for _, b, _ in expected},
                *([{b for _, b in gold}] if gold else []),
            ]
            n_right += len(gold & {(a, b) for a, b, _ in expected})
            words = one.of.words
            assert svg.get("aria-label") == "; ".join(f"{words[a]} to {words[b]} {w:.2f}" for a, b, w in expected)
    assert page.count('class="hit"/>') == n_right > 0


def ends(path: str, row: Row) -> tuple[int, int]:
    """Return the words at which an arc begins and ends."""
    found = re.fullmatch(r"M([\d.-]+) [\d.-]+A[\d.]+ [\d.]+ 0 0 [01] ([\d.-]+) [\d.-]+", path)
    assert found
    begin, end = (int(np.abs(np.array(row.middles) - float(x)).argmin()) for x in found.groups())
    return begin, end


def tip_words(path: str, row: Row) -> set[int]:
    """Return the words that arrows point at."""
    lefts = [float(x) for x in re.findall(r"M([\d.-]+) ", path)]
    return {int(np.abs(np.array(row.middles) - x - TIP_WIDTH / 2).argmin()) for x in lefts}


def test_an_arc_is_above_the_words_and_one_of_the_treebank_below() -> None:
    row = Row.of(["a", "word", "日本"])
    assert row.middles[0] < row.middles[1] < row.middles[2] < row.width
    svg = ElementTree.fromstring(sentence_arcs(row, "w", [(0, 1, 1.0), (1, 0, 0.001)], [(2, 0)], "title"))
    right, left, above, gold, below = (path.get("d", "") for path in svg.iter("path"))
    # In SVG, y grows downwards, and a sweep of 1 goes clockwise: over the words to the right, under them to the left.
    assert re.match(rf"M[\d.]+ -{ABOVE}A.* 0 0 1 [\d.]+ -{ABOVE}$", right)
    assert re.match(rf"M[\d.]+ -{ABOVE}A.* 0 0 0 [\d.]+ -{ABOVE}$", left)
    assert re.match(rf"M[\d.]+ {BELOW}A.* 0 0 1 [\d.]+ {BELOW}$", gold)
    assert (above.count("l-4 6z"), below.count("l-4 -6z")) == (2, 1)  # downwards, upwards
    widths = [path.get("stroke-width") for path in svg.iter("path")]
    assert widths == [f"{FULL:g}", f"{LEAST:g}", None, None, None]
    # Two words that attend to each other have two arcs.
    inner, outer = (sorted(float(x) for x in re.findall(r"(?:M|[01] )([\d.]+) -", path)) for path in (right, left))
    assert outer[0] < inner[0] < inner[1] < outer[1]


@pytest.mark.slow
def test_a_survey_stands_beside_a_run_of_probes(
    made: Result, checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    run = fit(model=str(checkpoints["bert"]), corpus=str(corpus_file), runs=str(tmp_path), name="run", **QUICKLY)
    page = report([str(run.folder), str(made.folder)], output=str(tmp_path / "page.html")).read_text(encoding="utf-8")
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles.index("Neurons of tiny-bert") < titles.index("Attention heads: survey") < titles.index("Terms")
    assert 'href="#attention-0"' in page
    assert made.folder.joinpath("config.yaml").read_text(encoding="utf-8") in unescape(page)


def test_a_survey_without_examples_has_its_map_without_links(own: Callable[..., Path]) -> None:
    (folder := own()).joinpath("examples.safetensors").unlink()
    page = report([str(folder)]).read_text(encoding="utf-8")
    assert '<table class="heads-map"' in page
    assert "Example sentences" not in page
    assert "#head-0" not in page


def test_damaged_examples_are_refused(own: Callable[..., Path]) -> None:
    (folder := own()).joinpath("examples.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"is damaged .*; repeat the run"):
        report([str(folder)])


def test_words_of_a_corpus_are_shown_and_never_run(own: Callable[..., Path]) -> None:
    folder = own(EVIL.replace("/", "-"))
    examples = read_examples(folder)
    assert examples
    changed = [
        Example(type(one.of)(**{**vars(one.of), "words": [EVIL, *one.of.words[1:]]}), one.maps)
        for one in examples.examples
    ]
    write_examples(folder, ExampleMaps(examples.layers, changed, examples.classes))
    page = report([str(folder)]).read_text(encoding="utf-8")
    assert "<img" not in page
    assert text_of(page).count(EVIL) == len(changed)


@pytest.mark.slow
def test_a_page_of_a_large_model_is_small(own: Callable[..., Path], made: Result) -> None:
    folder = own()
    n_layers, n_heads = 24, 16
    for name in ("heads", "attention_classes", "head_relations"):
        rows = read_csv(folder / f"{name}.csv")
        first = [row for row in rows if (row["layer"], row.get("head")) == (1, 1)]
        kept = [row for row in rows if row["layer"] == "all"]
        kept += [{**row, "layer": place // n_heads + 1, "head": place % n_heads + 1}
                 for place in range(n_layers * n_heads) for row in first]  # fmt: skip
        write_csv(folder / f"{name}.csv", kept)
    examples = read_examples(folder)
    assert examples
    generator = np.random.default_rng(0)
    n = 16
    words = [f"word{i:04d}" for i in range(12)]
    of = [type(one.of)(i, ["piece"] * n, [True, *[False] * 14, True], words, [-1, *range(12), 11, 11, -1], one.of.arcs)
          for i, one in enumerate(examples.examples)]  # fmt: skip
    maps = [generator.dirichlet(np.ones(n), size=(n_layers, n_heads, n)).astype(np.float32) for _ in of]
    large = ExampleMaps(range(1, n_layers + 1), [Example(*both) for both in zip(of, maps, strict=True)])
    assert write_examples(folder, large).stat().st_size < 1.3e6
    page = report([str(folder)])
    assert 1e6 < page.stat().st_size < 2e6
    text = page.read_text(encoding="utf-8")
    assert len(re.findall('<section class="head-detail', text)) == n_layers * n_heads
    assert "<svg" in detail(text, 24, 16)


RIGHT = {"model": (0.0, 0.75), "untrained": (0.25, 0.25)}


def rows_of_hierarchy() -> list[dict[str, Any]]:
    return [
        {
            "task": "main_auxiliary", "condition": condition, "layer": layer, "test": 1.0, "test_low": 0.99,
            "test_high": 1.0, "generalisation": right, "low": max(right - 0.05, 0), "high": right + 0.05,
            "first_auxiliary": 1 - right, "first_auxiliary_low": 0.9 - right, "first_auxiliary_high": 1.0,
            "preference": 2 * right - 1, "preference_low": 2 * right - 1.1, "preference_high": 2 * right - 0.9,
            **({"difference": RIGHT["model"][layer] - right, "difference_low": -0.3 + 0.7 * layer,
                "difference_high": -0.2 + 0.8 * layer} if condition != "model" else {}),
        }
        for condition, rights in RIGHT.items()
        for layer, right in enumerate(rights)
    ]  # fmt: skip


def rows_of_cloze() -> dict[str, list[dict[str, Any]]]:
    group = {
        "n": 8, "n_right": 6, "share": 0.75, "low": 0.349, "high": 0.968, "clear_share": 0.5, "clear_share_low": 0.2,
        "clear_share_high": 0.8, "difference": 1.5, "difference_low": float("nan"), "difference_high": float("nan"),
    }  # fmt: skip
    change = {
        "condition": "words_shuffled", "against": "intact", "loss": 3.5, "low": 3.0, "high": 4.0, "baseline": 3.0,
        "difference": 0.5, "difference_low": 0.25, "difference_high": 0.75, "n_sentences": 40, "n": 90,
    }  # fmt: skip
    return {"groups": [{"group": "all", **group}, {"group": "<agreement>", **group}], "changes": [change]}


def page_of(folder: Path, kind: str, tables: dict[str, list[dict[str, Any]]]) -> str:
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps({"kind": kind}), encoding="utf-8")
    (folder / "config.yaml").write_text("model: minilm\n", encoding="utf-8")
    for name, rows in tables.items():
        write_csv(folder / f"{name}.csv", rows)
    return report([str(folder)]).read_text(encoding="utf-8")


def section_of(page: str, name: str) -> str:
    (found,) = re.findall(rf'<section id="{name}-0".*?</section>', page, re.DOTALL)
    return str(found)


@pytest.fixture(scope="module")
def of_hierarchy(tmp_path_factory: pytest.TempPathFactory) -> str:
    tables = {"hierarchy": rows_of_hierarchy(), "distractors": [{"task": "main_auxiliary", "layer": 0}]}
    folder = tmp_path_factory.mktemp("page") / "h"
    return page_of(folder, "linear order or hierarchy", tables)


@pytest.fixture(scope="module")
def of_cloze(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_of(tmp_path_factory.mktemp("page") / "c", "predictions at masks", rows_of_cloze())


def test_a_page_says_which_layers_go_by_which_rule(of_hierarchy: str) -> None:
    section = unescape(section_of(of_hierarchy, "hierarchy"))
    assert "<h1>Linear order or hierarchy in minilm</h1>" in of_hierarchy
    assert "probes follow linear order in layer 0 and hierarchy in layer 1." in section
    assert (
        "Main auxiliary, compared with randomly initialised: the model is above it in layer 1 and below it in layer 0."
        in section
    )
    marks = {at for line in points_of(section) for at in line}
    assert {height for _, height in marks} >= {round(280 - 268 * (value + 0.04) / 1.08, 1) for value in (0.75, 0.25)}
    assert "randomly initialised: correct" in section


def test_a_page_has_the_pairs_and_the_changes(of_cloze: str) -> None:
    section = section_of(of_cloze, "cloze")
    assert "<h1>Predictions at masks in minilm</h1>" in of_cloze
    assert "&lt;agreement&gt;: the good word is more probable in 6 of 8 pairs, 75.0% (34.9 to 96.8): not" in section
    assert (
        "With words shuffled, the loss of masked words changes from 3.000 to 3.500 nats over 40 sentences: diff"
        in section
    )
    assert section.count("<table") == 2


@pytest.mark.parametrize(
    ("name", "terms"),
    [
        ("of_hierarchy", hierarchy.VIEWS[0].terms()),
        ("of_cloze", {**cloze.VIEWS[0].terms(), **cloze.VIEWS[1].terms()}),
    ],
)
def test_every_heading_is_a_term(name: str, terms: dict[str, str], request: pytest.FixtureRequest) -> None:
    section = section_of(request.getfixturevalue(name), name.removeprefix("of_"))
    headings = {unescape(one) for one in re.findall(r'<th scope="col">(.*?)</th>', section)}
    known = {part for term in terms for part in (term, *term.split(", "))}
    assert headings
    assert headings <= known


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
def pretraining_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return report([str(written(tmp_path_factory.mktemp("page") / "<arms>"))]).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def section(pretraining_page: str) -> str:
    return section_of(pretraining_page, "pretrain")


def pretraining_rows_of(table: str) -> list[list[str]]:
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in table.split("<tr>")[1:]]
    return [[unescape(cell) for cell in row] for row in rows]


def test_the_verdict_stands_there_without_a_script(pretraining_page: str, section: str) -> None:
    assert "<h1>Encoders with and without positions: &lt;arms&gt;</h1>" in pretraining_page
    assert '<a href="#pretrain-0">Encoders with and without positions: &lt;arms&gt;</a>' in pretraining_page
    assert (
        "(Luo, Kulmizev &amp; Mao 2021): confirmed: learned has an outlier with every seed, and none with no" in section
    )
    assert "<script" not in section
    assert len(re.findall("<script", pretraining_page)) == 1
    assert "size: tiny" in pretraining_page.split('id="reproduce"')[1]


def test_losses_are_drawn_and_told_beside_the_frequencies_of_tokens(section: str) -> None:
    chart = section.split("</svg>")[0]
    table, _ = re.findall("<details>.*?</details>", section, re.DOTALL)
    assert "a uniform guess has ln 100 = 4.61" in section
    assert re.findall(r'<g class="look-(\d)">', chart) == ["0"] * 3 + ["1"] * 3 + ["2"]
    expected = [*([loss_of(*who, step) for step in STEPS] for who in LAST), [UNIGRAM] * len(STEPS)]
    are_at(points_of(chart), expected)
    head, *body = pretraining_rows_of(table)
    assert head == ["arm", "seed", "step", "loss", "frequencies of tokens", "loss at first", "below it"]
    assert body[1] == ["learned", "1", "64", "2.700", "4.200", "4.610", "1.500"]
    assert len(body) == len(LAST)


def test_outliers_positions_and_equivariance_stand_by_arm_seed_and_layer(section: str) -> None:
    assert "learned, seed 2, layer 1: 8.250" in section
    assert "none, seed 0, layer 0: 0.150" in section
    assert "an outlier is beyond, layer 1: 5.000" in section
    _, details = re.findall("<details>.*?</details>", section, re.DOTALL)
    _, *body = pretraining_rows_of(details)
    assert len(body) == len(LAST) * 2
    assert body[3] == [
        "learned", "1", "1", "7.25", "8", "0.250", "0.062", "0.900", "0.140", "3.5e+00"
    ]  # fmt: skip
    assert ["none", "0", "1", "2.00", "", "0.125", "0.062", "0.150", "0.140", "2.0e-07"] in body


def test_every_heading_and_line_is_explained(section: str) -> None:
    headings = set(re.findall(r'<th scope="col">(.*?)</th>', section))
    lines = set(re.findall(r"</svg>([^<]+)</li>", section))
    assert len(headings) > 12
    rows = Table(arms(), study_of("pretrain").schemas[0])
    (terms,) = study_of("pretrain").terms(Result(study_of("pretrain"), Path("a"), {}, {}, {"arms": rows})).values()
    assert headings | lines - {"learned", "none"} <= set(terms)


def test_more_arms_than_looks_of_lines_are_drawn_in_several_charts_with_the_same_axes(tmp_path: Path) -> None:
    folder = written(tmp_path / "twelve")
    usual = [row for row in arms() if (row["arm"], row["seed"]) == ("none", 0)]
    write_csv(
        folder / "arms.csv",
        [row | {"arm": arm, "unigram_loss": 4.1 if arm == "causal_lm" else UNIGRAM} for arm in ARMS for row in usual],
    )
    made = report([str(folder)]).read_text(encoding="utf-8")
    charts = [re.findall(r"</svg>([^<]+)</li>", one) for one in made.split('class="with-legend"')[1:]]
    losses, means, positions = charts[:3], charts[3:5], charts[5:]
    references = ["frequencies of tokens", "frequencies of tokens, causal_lm"]
    assert [label for chart in losses for label in chart if label in ARMS] == list(ARMS)
    assert all(chart[-2:] == references for chart in losses)
    assert [label for chart in means for label in chart if label in ARMS] == list(ARMS)
    assert [label for chart in positions for label in chart] == list(ARMS)
    assert max(map(len, charts)) == 7
    assert "Arms 5 to 8: Loss of masked tokens (causal_lm: next tokens) in held-out text" in made


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "arms")
    write_csv(folder / "arms.csv", arms(), without=["unigram_loss"])
    with pytest.raises(UserError, match="there is no 'unigram_loss' in it"):
        report([str(folder)])


SERIES_STEPS = (0, 10, 200, 1000)
LOSSES = (5.0, 4.5, 3.9, 3.0)


def series_rows_of(n_layers: int) -> list[dict[str, Any]]:
    """Return rows in which the loss comes at step 1000 and a head at step 200; outliers there are none."""
    rows: list[dict[str, Any]] = []
    for step, loss in zip(SERIES_STEPS, LOSSES, strict=True):
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


def series_page_of(folder: Path, n_layers: int) -> str:
    folder.mkdir()
    rows = series_rows_of(n_layers)
    came = emergence(rows, [{} for _ in SERIES_STEPS], SERIES_STEPS, Thresholds())
    checkpoints = [
        {"step": step, "name": f"step{step}", "model": f"runs/gpt/step{step}", "revision": None}
        for step in SERIES_STEPS
    ]
    (folder / "results.json").write_text(
        json.dumps({"kind": "checkpoints of a training", "models": checkpoints}), encoding="utf-8"
    )
    (folder / "config.yaml").write_text("measures: all\n", encoding="utf-8")
    for name, table in {"checkpoints": rows, "checkpoint_outliers": [], "emergence": came}.items():
        write_csv(folder / f"{name}.csv", table)
    return report([str(folder)]).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def series_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return series_page_of(tmp_path_factory.mktemp("page") / "course", 3)


@pytest.fixture(scope="module")
def series_section(series_page: str) -> str:
    return section_of(series_page, "checkpoints")


def test_what_came_first_stands_there_without_a_script(series_page: str, series_section: str) -> None:
    assert "<h1>Checkpoints of gpt</h1>" in series_page
    assert '<a href="#checkpoints-0">Checkpoints: course</a>' in series_page
    assert "<p>Order: position heads (step 200), then loss (step 1000).</p>" in series_section
    assert "<script" not in series_section
    cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", series_section)
    assert "0.77 (2-2)" in cells  # the strongest head at the end
    assert "measures: all" in series_page.split('id="reproduce"')[1]


def are_at(points: list[list[tuple[float, float]]], values: Sequence[Sequence[float]]) -> None:
    """Check that the marks of lines are at the heights of their values, and those of a step at one place."""
    marks, expected = np.array(points), np.array(values)
    assert marks.shape == (*expected.shape, 2)
    assert np.ptp(marks[:, :, 0], axis=0).max() < 0.1
    slope, start = np.polyfit(expected.ravel(), marks[:, :, 1].ravel(), 1)
    assert slope < 0
    np.testing.assert_allclose(marks[:, :, 1], start + slope * expected, atol=0.06)


def charts(section: str) -> dict[str, str]:
    """Return the charts by the beginning of their captions."""
    found = re.findall(
        r"<figure><figcaption>([^<]+)</figcaption><div class=\"with-legend\">(.*?)</figure>", section, re.DOTALL
    )
    return {re.split("[:,(]", caption)[0].strip(): caption + chart for caption, chart in found}


def test_each_measure_is_a_chart_over_the_steps(series_section: str) -> None:
    found = charts(series_section)
    assert list(found) == ["Held-out loss", "Strongest head at a fixed offset", "Anisotropy"]
    loss = found["Held-out loss"]
    assert "Held-out loss (baseline: token frequencies), past its threshold from step 1,000: nats per token" in loss
    are_at(points_of(loss)[:1], [LOSSES])
    assert "baseline, step 10: 4.200" in loss
    assert "threshold, step 10: 3.200" in loss
    assert "layer 2, step 200: 0.120" in found["Anisotropy"]


def test_a_layer_looks_the_same_in_every_chart(series_section: str) -> None:
    found = charts(series_section)
    heads, cosine = (
        dict(
            re.findall(
                r'<g class="look-(\d)">(?:<defs>.*?</defs>)?(?:<path[^>]*></path>)?<use[^>]*><title>layer (\d)',
                found[name],
            )
        )
        for name in ("Strongest head at a fixed offset", "Anisotropy")
    )
    assert list(heads.values()) == ["1", "2"]
    assert list(cosine.values()) == ["0", "1", "2"]
    assert heads.items() <= cosine.items()


def test_of_many_layers_some_are_drawn_and_the_page_says_so(tmp_path: Path) -> None:
    page = series_page_of(tmp_path / "deep", 25)
    cosine, heads = (charts(page)[name] for name in ("Anisotropy", "Strongest head at a fixed offset"))
    assert re.findall(r"</svg>layer (\d+)</li>", cosine) == ["0", "8", "16", "24"]
    assert "grey: the other layers" in cosine
    assert [page.count('class="line faint"') for page in (cosine, heads)] == [21, 21]


def test_every_heading_is_explained(series_section: str) -> None:
    headings = set(re.findall(r'<th scope="col">(.*?)</th>', series_section))
    assert len(headings) > 10
    study = study_of("checkpoints")
    rows = {schema.name: Table([{"step": 0}], schema) for schema in study.schemas}
    (terms,) = study.terms(Result(study, Path("a"), {}, {}, rows)).values()
    assert headings <= set(terms)
