"""A survey of heads as a page: its map, its example sentences, and its tables."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from probing import Result, fit, load_run, report
from probing.errors import UserError
from probing.heads.example_maps import Example, Examples, read_examples, write_examples
from probing.studies.attention.section import ABOVE, BELOW, FULL, LEAST, TIP_WIDTH, Row, sentence_arcs
from probing.tables.heads import conclusions, of_heads
from report_runs import QUICKLY, make_survey
from written import read_csv, write_csv

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning")

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
    assert "<h1>Attention heads of tiny-bert</h1>" in page
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
    relations = next(rows_of(one) for one in re.findall(r"<table>.*?</table>", page) if "Dependency relations" in one)
    assert [(row[0], row[4], row[7]) for row in relations[1:]] == [
        (row["relation"], f"{row['test']:.3f}", f"{row['offset_test']:.3f}") for row in made.relations
    ]


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


def test_a_survey_stands_beside_a_run_of_probes(
    made: Result, checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    run = fit(model=str(checkpoints["bert"]), corpus=str(corpus_file), runs=str(tmp_path), name="run", **QUICKLY)
    assert run is not None
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
    write_examples(folder, Examples(examples.layers, changed, examples.classes))
    page = report([str(folder)]).read_text(encoding="utf-8")
    assert "<img" not in page
    assert text_of(page).count(EVIL) == len(changed)


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
    large = Examples(range(1, n_layers + 1), [Example(*both) for both in zip(of, maps, strict=True)])
    assert write_examples(folder, large).stat().st_size < 1.3e6
    page = report([str(folder)])
    assert 1e6 < page.stat().st_size < 2e6
    text = page.read_text(encoding="utf-8")
    assert len(re.findall('<section class="head-detail', text)) == n_layers * n_heads
    assert "<svg" in detail(text, 24, 16)
