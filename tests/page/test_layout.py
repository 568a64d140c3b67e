"""The report on paper, the axes of its charts, and its list of terms, which explains what the page shows."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from html import unescape
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from probing import fit, report
from probing.data import ADDED_CONTROLS, CONTROLS
from probing.interventions import REPLACEMENTS
from probing.page.build import SCRIPT, page_script
from probing.page.charts import charts_html
from probing.page.run import (
    BOTTOM,
    HEIGHT,
    LEFT,
    LONGEST,
    MOST_RANKS,
    RIGHT,
    TOP,
    WIDTH,
    directions_chart,
    position_chart,
)
from probing.page.terms import ACCURACY, COLUMNS, FLAGS, NEURON_TERMS, Glossary, names_in, shaded_map
from probing.results import Html, NamedLayer, Table, element, joined, shortened, table
from probing.studies.ablate import neuron_tables
from probing.studies.ablate.tables import ABLATED, EFFECTS, VIEWS, effect_tables
from probing.studies.attention import tables as attention_tables
from probing.studies.attention.section import ATTENTION, CHANGE, FUSION, POSITION_HEADS, ROLLOUT, terms_of_survey
from probing.studies.claims import INSET, range_axis
from probing.studies.claims import WIDTH as RANGE_WIDTH
from probing.studies.claims.claim import NumberRange
from probing.studies.compare.tables import heat_map
from probing.studies.geometry.tables import MEASURES
from probing.tables.figures import BY_STEP, Chart, Line, Panel
from probing.tables.heads import TOKENS
from probing.tables.schema import NEURONS
from report_runs import QUICKLY, SETS, make_page, make_survey, points_of
from written import results_of

# Width and height in inches, upright.
PAPERS = {"Letter": (8.5, 11.0), "A4": (210 / 25.4, 297 / 25.4)}
PIXELS = 96  # of an inch
# The smallest type that is printed, in points.
SMALLEST = 5.9

# What is wrong with a page that is laid out for paper, a text for each fault.
FAULTS = """
const faults = [], right = document.documentElement.clientWidth + 0.6;
const named = (one) => `${one.tagName}.${one.getAttribute("class") || ""} ${one.textContent.trim().slice(0, 30)}`;
const there = (one) => one.checkVisibility({ visibilityProperty: true }) && one.getClientRects().length > 0;
for (const one of document.querySelectorAll("body *")) {
  if (one.closest("script, defs") || !there(one)) continue;
  const box = one.getBoundingClientRect(), style = getComputedStyle(one);
  if (box.right > right || box.left < -0.6) faults.push(`beyond the page: ${named(one)} ${box.left} ${box.right}`);
  const isBox = one instanceof HTMLElement && style.display !== "inline" && one.clientWidth;
  if (isBox && one.scrollWidth > one.clientWidth + 1) faults.push(`wider than its box: ${named(one)}`);
  const scrolls = isBox && /auto|scroll|hidden/.test(style.overflowX + style.overflowY);
  if (scrolls) faults.push(`scrolls or cuts: ${named(one)}`);
  if ([...one.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim())) {
    const svg = one.closest("svg"), scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
    const points = parseFloat(style.fontSize) * scale * 0.75;
    if (one.tagName !== "title" && points < arguments[0]) faults.push(`type of ${points} pt: ${named(one)}`);
  }
}
for (const one of document.querySelectorAll("details > *")) {
  if (!one.hidden && !one.closest(".not-on-paper") && !there(one)) faults.push(`folded: ${named(one)}`);
}
for (const one of document.querySelectorAll("tr, .with-legend, .scroll:has(> .map), .heat-map, .arcs, dd")) {
  if (there(one) && getComputedStyle(one).breakInside !== "avoid") faults.push(`may be cut: ${named(one)}`);
}
return faults;
"""

# Pairs of texts of charts and maps that cover each other, and texts outside their map.
COVERED = """
const faults = [], texts = [...document.querySelectorAll("figcaption, .heat text, .map span")];
const boxes = texts.map((one) => one.getBoundingClientRect());
const before = (a, b) => a.right <= b.left + 1 || a.bottom <= b.top + 1;
for (let i = 0; i < texts.length; i++) for (let j = 0; j < i; j++) {
  const [a, b] = [texts[i], texts[j]], covers = !before(boxes[i], boxes[j]) && !before(boxes[j], boxes[i]);
  if (a.textContent && b.textContent && covers) faults.push(`${a.textContent} covers ${b.textContent}`);
}
return faults;
"""


@pytest.fixture(scope="module")
def page(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page that shows all that a page can show of probes, a comparison, geometry, words and sentences."""
    return make_page(checkpoints["bert"], corpus_file, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def survey(checkpoints: dict[str, Path], sentences: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a survey of heads."""
    return report([str(make_survey(checkpoints["bert"], sentences, tmp_path_factory.mktemp("surveys"), "survey"))])


def style() -> str:
    """Return the style of pages."""
    return files("probing.page").joinpath("style.css").read_text(encoding="utf-8")


@pytest.fixture
def laid_out(browser: Any) -> Iterator[Callable[[Path, str], Any]]:
    """Return what opens a page as it is laid out for a paper, within the margins that the page asks for."""

    def lay_out(path: Path, paper: str) -> Any:
        (across,) = re.findall(r"@page \{ margin: \d+mm (\d+)mm; \}", style())
        width = int((PAPERS[paper][0] - 2 * int(across) / 25.4) * PIXELS)
        browser.get("about:blank")
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        browser.get(path.resolve().as_uri())
        return browser

    yield lay_out
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": False})
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_all_of_a_page_is_on_paper_and_legible(paper: str, page: Path, laid_out: Callable[[Path, str], Any]) -> None:
    opened = laid_out(page, paper)
    assert len(opened.find_elements("css selector", "details:not([open])")) > 20
    columns = "return [...document.querySelectorAll('thead tr')].map((row) => row.cells.length)"
    assert max(opened.execute_script(columns)) > 19
    assert opened.execute_script(FAULTS, SMALLEST) == []
    # Of the neurons one by one, those of one layer are, and paper says so.
    parts = "[...document.querySelectorAll('.contexts > :not(summary)')].filter((part) => part.getClientRects().length)"
    shown = opened.execute_script(f"return {parts}.map((part) => part.textContent.slice(0, 35))")
    assert len(shown) == 4  # a sentence and a layer for each of two runs
    for sentence, layer in zip(shown[::2], shown[1::2], strict=True):
        (leading,) = re.findall(r"On paper these are of (layer \d+) only\.", sentence)
        assert layer.lower().startswith(leading)


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_all_of_a_survey_is_on_paper_and_legible(
    paper: str, survey: Path, laid_out: Callable[[Path, str], Any]
) -> None:
    opened = laid_out(survey, paper)
    assert opened.find_elements("css selector", ".arcs")
    assert opened.execute_script(FAULTS, SMALLEST) == []


@pytest.mark.slow
def test_a_wide_map_of_many_layers_fits_on_a_page(tmp_path: Path, laid_out: Callable[[Path, str], Any]) -> None:
    shown = shaded_map([[0.5] * 920] * 96, (1, 18), range(96), {0: 0, 900: 900}, "about")
    heads = table(["layer", *(str(head) for head in range(1, 33))], [[0, *["B 100"] * 32]])
    opened = laid_out(write(tmp_path, shown, Html(heads.replace("<table", '<table class="heads-map"'))), "A4")
    assert opened.execute_script(FAULTS, SMALLEST) == []
    assert opened.find_element("css selector", ".map").size["height"] < (297 - 2 * 14) / 25.4 * PIXELS


@pytest.mark.slow
def test_a_dark_page_is_printed_dark_on_light(survey: Path, laid_out: Callable[[Path, str], Any]) -> None:
    opened = laid_out(survey, "A4")
    opened.execute_script("document.documentElement.dataset.theme = 'dark'")
    assert opened.execute_script("return getComputedStyle(document.body).color") == "rgb(28, 29, 31)"


@pytest.mark.slow
def test_the_browser_prints_a_page_on_both_papers(browser: Any, page: Path) -> None:
    browser.get(page.resolve().as_uri())
    for width, height in PAPERS.values():
        asked = {"paperWidth": width, "paperHeight": height, "preferCSSPageSize": True}
        printed = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", asked)["data"])
        sizes = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", printed)
        assert len(sizes) > 5
        for x, y in sizes:
            assert (float(x), float(y)) == pytest.approx((72 * width, 72 * height), abs=1)


def write(folder: Path, *parts: Html) -> Path:
    """Write parts of a page with its style."""
    (folder / "page.html").write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><style>{style()}</style><body>{joined(*parts)}',
        encoding="utf-8",
    )
    return folder / "page.html"


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 13])
@pytest.mark.parametrize("on_paper", [True, False])
def test_labels_of_a_map_cover_no_others(
    n: int, on_paper: bool, tmp_path: Path, browser: Any, laid_out: Callable[[Path, str], Any]
) -> None:
    cells = {(i, j): 0.5 for i in range(n) for j in range(n)}
    names = "a model of a long name", "another model whose name is cut"
    heat = [heat_map(cells, dict.fromkeys(cells, "said"), names, title) for title in ("Spearman", "overlap of the top")]
    labels = [shortened(f"{i} class of a long name", LONGEST) for i in range(n)]
    shades = [[0.5] * n for _ in range(n)]
    maps = [
        element("figure", element("figcaption", "Shades"), shaded_map(shades, cell, labels, dict(ticks), "about", kind))
        for cell, ticks, kind in (((22, 22), enumerate(labels), "map confusions"), ((24, 30), {0: 0}.items(), "map"))
    ]
    path = write(tmp_path, element("div", *heat, class_="heat-maps"), *maps, element("p", "Below."))
    if on_paper:
        opened = laid_out(path, "Letter")
    else:
        browser.get(path.resolve().as_uri())
        opened = browser
    assert opened.execute_script(COVERED) == []
    assert (
        opened.execute_script("""
      return [...document.querySelectorAll(".heat text")].filter((text) => {
        const inner = text.getBoundingClientRect(), outer = text.closest("svg").getBoundingClientRect();
        return inner.left < outer.left || inner.right > outer.right || inner.top < outer.top - 1;
      }).map((text) => text.textContent);
    """)
        == []
    )
    below = "return document.querySelector('body > p').getBoundingClientRect().top"
    feet = "return [...document.querySelectorAll('.map span')].map((one) => one.getBoundingClientRect().bottom)"
    assert opened.execute_script(below) >= max(opened.execute_script(feet))


STEPS = [0, 1, 10, 100]


def test_steps_stand_at_their_logarithms_and_values_at_their_heights() -> None:
    values = [2.5, 5.0, 3.75, 2.5]
    (drawn,) = charts_html([Chart("loss", "loss", [Panel([Line("none", STEPS, values)])], x=BY_STEP)])
    ((zero, one, ten, hundred),) = points_of(drawn)
    assert hundred[0] - ten[0] == pytest.approx(ten[0] - one[0], abs=0.2)
    assert one[0] - zero[0] < ten[0] - one[0]
    assert ten[1] == pytest.approx((zero[1] + one[1]) / 2, abs=0.2)
    assert one[1] < ten[1] < zero[1] == hundred[1]


def test_what_is_beyond_the_limits_of_a_chart_is_drawn_in_it() -> None:
    for values in ([0.5, -0.75], [0.5, 1.75]):
        (drawn,) = charts_html([Chart("share", "share", [Panel([Line("none", [0, 1], values)])], limits=(0, 1))])
        assert all(0 < height < 290 for _, height in points_of(drawn)[0])


def test_lines_of_one_label_look_alike_and_are_told_apart_by_pointing_at_them() -> None:
    lines = [
        Line("learned", STEPS, [4.0, 3.5, 3.0, 2.5], which="seed 0"),
        Line("none", STEPS, [4.0, 3.9, 3.8, 3.7], which="seed 0"),
        Line("learned", STEPS, [4.0, 3.6, 3.1, math.e], which="seed 1"),
    ]
    (made,) = charts_html([Chart("loss", "loss", [Panel(lines)], x=BY_STEP)])
    assert re.findall(r'<g class="look-(\d)">', made) == ["0", "1", "0"]
    legend = made.split("</svg>", 1)[1]
    assert re.findall(r"</svg>(\w+)</li>", legend) == ["learned", "none"]
    assert "<title>learned, seed 1, step 100: 2.718</title>" in made
    assert re.findall(r'text-anchor="middle"[^>]*>([^<]+)<', made) == [
        "0",
        "1",
        "10",
        "100",
        "step (logarithmic, 0 apart)",
    ]


def test_charts_beside_each_other_share_their_looks_and_axes_and_no_identifiers() -> None:
    first, second = (
        [Line("layer 0", STEPS, [0.4] * 4), Line("layer 2", STEPS, [0.1] * 4)],
        [Line("layer 2", STEPS, [0.1] * 4)],
    )
    made = charts_html([Chart("cosine", "cosine", [Panel(first), Panel(second)], x=BY_STEP)])
    assert [sorted(set(re.findall(r'class="look-(\d)"', panel))) for panel in made] == [["0", "1"], ["1"]]
    assert points_of(made[0])[1] == points_of(made[1])[0]
    ids = re.findall(r' id="([^"]+)"', joined(*made))
    assert len(ids) == len(set(ids)) == 3


def test_a_value_that_is_no_number_has_no_mark_and_a_control_character_is_drawn() -> None:
    line = Line("a", [NamedLayer(0, "a\x00b"), NamedLayer(1, "c")], [math.nan, 0.5], [None, (0.25, 1.0)])
    (made,) = charts_html([Chart("a", "a", [Panel([line])])])
    assert re.findall("<title>(a, layer.*?)</title>", made) == ["a, layer c: 0.500 (0.250 to 1.000)"] * 2  # mark, bar
    assert "x00b" in made


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([1.56, -0.0206, 0.5], ["1.56", "-0.0206"]),  # 0 lies at the lowest value
        ([0.01, -3.0], ["0.01", "-3"]),
        ([1.0, -1.0], ["1", "-1", "0"]),
        ([2.0, 0.0], ["2", "0"]),
        ([-2.0, -1.0], ["-1", "-2"]),
        ([0.0, 0.0], ["0"]),
    ],
)
def test_the_number_of_0_stands_where_there_is_room(values: list[float], shown: list[str]) -> None:
    chart = str(position_chart([{"index": i, "value": value} for i, value in enumerate(values, 1)]))
    *numbers, last = re.findall(r"text-anchor=\"end\" font-size=\"12\">([^<]+)<", chart)
    assert (numbers, last) == (shown, str(len(values)))


def contributions(n: int) -> list[dict[str, Any]]:
    return [
        {"contribution": 3 / rank, "direction_lowest": 1 / rank, "direction_highest": 2 / rank,
         "above_directions": "yes" if rank < 4 else "no"}
        for rank in range(1, n + 1)
    ]  # fmt: skip


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"([\d.e+-]+) ([\d.e+-]+)", path)]


@pytest.mark.parametrize("n", [1, 2, 30, 5000])
def test_the_line_is_of_neurons_and_the_band_of_directions_of_the_same_rank(n: int) -> None:
    chart = str(directions_chart(contributions(n)))
    band, line = map(points, re.findall(r' d="M([^"z]+)z?"', chart))
    low, high = 1 / n, 3.0

    def at(rank: int, value: float) -> tuple[float, float]:
        share = math.log(rank) / math.log(n) if n > 1 else 0
        return LEFT + share * (WIDTH - LEFT - RIGHT), TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    ranks = [round(n ** ((x - LEFT) / (WIDTH - LEFT - RIGHT))) for x, _ in line]
    assert min(n, 30) <= len(ranks) <= MOST_RANKS
    assert ({*range(1, 11)} & {*range(1, n + 1)}) | {n} <= {*ranks}
    expected = [at(rank, 3 / rank) for rank in ranks]
    expected_band = [at(rank, 2 / rank) for rank in ranks] + [at(rank, 1 / rank) for rank in reversed(ranks)]
    tolerance = 0.1 if n < 100 else 2  # ranks far out are of coordinates with four digits
    for (x, y), (x_expected, y_expected) in zip(line + band, expected + expected_band, strict=True):
        assert x == pytest.approx(x_expected, abs=tolerance)
        assert y == pytest.approx(y_expected, abs=0.1)
    rings = [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([^"]+)" cy="([^"]+)"', chart)]
    assert rings == [pytest.approx(at(rank, 3 / rank), abs=0.1) for rank in range(1, min(n, 3) + 1)]
    assert f'aria-label="contribution by rank, {low:.3g} to 3"' in chart
    ticks = re.findall(r'y="145" text-anchor="\w+" font-size="12">([^<]+)<', chart)
    named = {1: ["rank 1"], 2: ["rank 1", "2"], 30: ["rank 1", "10", "30"]}
    assert ticks == named.get(n, ["rank 1", "10", "100", "1000", "5000"])


def places(drawn: str) -> dict[str, float]:
    """Return where each part is drawn."""
    rect = re.search(r'<rect x="([\d.]+)" y="4" width="([\d.]+)"', drawn)
    bar = re.search(r'd="M([\d.]+) 11H([\d.]+)" class="line"', drawn)
    dot = re.search(r'cx="([\d.]+)"', drawn)
    assert rect
    assert bar
    assert dot
    left, width = map(float, rect.groups())
    tick = re.search(r'd="M([\d.]+) 3V', drawn)
    return {
        "left": left, "right": left + width, "low": float(bar[1]), "high": float(bar[2]), "value": float(dot[1]),
        **({"other": float(tick[1])} if tick else {}),
    }  # fmt: skip


def test_places_are_proportional_to_the_values() -> None:
    found = places(range_axis(2.0, (1.0, 3.0), (4.0, 5.0), 6.0, "t"))
    step = found["high"] - found["value"]
    assert step > 0
    assert found["value"] - found["low"] == pytest.approx(step, abs=0.02)
    assert found["left"] - found["high"] == pytest.approx(step, abs=0.02)
    assert found["other"] - found["right"] == pytest.approx(step, abs=0.02)


def test_an_open_range_reaches_the_end_of_the_axis() -> None:
    assert places(range_axis(2.0, (2.0, 2.0), (5.0, math.inf), None, "t"))["right"] == RANGE_WIDTH - INSET
    assert places(range_axis(2.0, (2.0, 2.0), (-math.inf, 5.0), None, "t"))["left"] == INSET


def test_a_single_point_is_drawn_in_the_middle() -> None:
    found = places(range_axis(0.0, (0.0, 0.0), (0.0, 0.0), None, "t"))
    assert found["value"] == RANGE_WIDTH / 2
    assert "other" not in found


@pytest.mark.parametrize(
    ("criterion", "ends"),
    [
        ("> 0.5", (0.5, math.inf)), ("<= -0.5", (-math.inf, -0.5)), ("= 2", (2, 2)), ("-0.3 to 0.5", (-0.3, 0.5)),
        ("< 1e-05", (-math.inf, 1e-5)),
    ],
)  # fmt: skip
def test_a_criterion_is_read_as_it_is_written(criterion: str, ends: tuple[float, float]) -> None:
    found = NumberRange.parse(criterion)
    assert (found.low, found.high) == ends
    assert str(found) == criterion


# Each part of a page by its id, and where its terms are explained.
PARTS = {
    "accuracy": "Accuracy",
    "agreement": "Agreement",
    "neurons-0": "Neurons",
    "heads-0": "Heads",
    "bases-0": "Bases",
    "geometry-0": "Geometry",
    "ablate-0": "Ablation of outliers",
    "wic-0": "Word senses",
    "sts-0": "Similar sentences",
}


@pytest.fixture(scope="module")
def terms_page(page: Path) -> str:
    """The markup of that page."""
    return page.read_text(encoding="utf-8")


def words(markup: str) -> str:
    return unescape(re.sub("<[^>]*>", "", markup))


def part_of(page: str, name: str) -> str:
    """Return a part of the page: up to the next that has an id."""
    return re.split(r'<(?:section|div)[^>]* id="', page.split(f'id="{name}"', 1)[1])[0]


def headings(page: str, name: str) -> set[str]:
    """Return the headings of all tables in a part, as their readers see them."""
    return {words(found) for found in re.findall(r'<th [^>]*scope="col"[^>]*>(.*?)</th>', part_of(page, name))}


def explained(page: str) -> dict[str, dict[str, str]]:
    """Return the terms that the page explains, by part."""
    found = {}
    for part in part_of(page, "terms").split("<h3>")[1:]:
        pairs = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", part, re.DOTALL)
        found[words(part.split("</h3>")[0])] = {words(name): words(meaning) for name, meaning in pairs}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_every_heading_is_explained(part: str, terms_page: str) -> None:
    shown, terms = headings(terms_page, part), explained(terms_page)[PARTS[part]]
    assert len(shown) > 5
    # The accuracies of the runs stand under their names.
    names = {name.removeprefix("second ") for name in shown} - {*SETS, "first", "second"}
    listed = {name for term in terms for name in (term, *term.split(", "))}
    assert names <= listed


def test_the_parts_show_what_the_code_can_show(terms_page: str) -> None:
    controls = {control.words for control in (*CONTROLS.values(), *ADDED_CONTROLS.values())} | {"majority"}
    assert controls | {"within 1", "error", "selectivity", "compression"} <= headings(terms_page, "accuracy")
    assert headings(terms_page, "neurons-0") == {
        *(column.words for column in COLUMNS if column.name in NEURONS.types),
        "flag",
        "highest on",
        "lowest on",
        "class",
        "weight",
    }
    assert {measure.replace("_", " ") for measure in MEASURES} | {*TOKENS.values()} <= headings(
        terms_page, "geometry-0"
    )


@pytest.mark.parametrize("part", ["geometry-0", "wic-0", "sts-0"])
def test_every_line_of_a_chart_is_explained(part: str, terms_page: str) -> None:
    legend = re.findall(r'<ul class="legend">(.*?)</ul>', part_of(terms_page, part), re.DOTALL)
    lines = {words(line) for one in legend for line in re.findall(r"<li>(.*?)</li>", one)}
    assert len(lines) > 5
    assert {line.split(", ")[0] for line in lines} <= set(explained(terms_page)[PARTS[part]])


def test_the_script_has_every_part(terms_page: str) -> None:
    parts = {path.name.removesuffix(".js") for path in files("probing.page").joinpath("script").iterdir()}
    assert parts == set(SCRIPT)
    assert f"<script>{page_script()}</script>" in terms_page


def test_what_the_script_tells_of_a_neuron_is_explained(terms_page: str) -> None:
    script = page_script()
    facts = re.findall(r'entries\.push\(\["([^"]+)"', script)
    facts += [f"activation {key}" for key in re.findall(r'\["(\w+)", "[^"]*of its activations', script)]
    assert facts == ["95% range of that", "activation mean", "activation sd"]
    terms = explained(terms_page)["Neurons"]
    assert {*facts, *(f"flag {name}" for name in FLAGS), "*", "unresolved"} <= set(NEURON_TERMS)
    assert {*facts, "flag offset", "*", "unresolved"} <= set(terms)


def test_the_chart_of_directions_and_its_parts_are_explained(terms_page: str) -> None:
    part = part_of(terms_page, "neurons-0")
    (opened, folded) = part.split("<summary>Other layers</summary>")
    of_layer = r"<figcaption>Layer (\d): contributions by rank[^<]*; 16 neurons are above[^<]*</figcaption><svg "
    shown = [layer for text in (opened, folded) for layer in re.findall(of_layer, text)]
    leading = re.findall(r"First neurons of layer (\d)", part)
    assert [re.findall(of_layer, opened), sorted(shown)] == [leading, ["0", "2"]]
    assert part.count('aria-label="contribution by rank, ') == 2
    assert part.count("<circle") == 2 * 16
    assert {"band", "ring"} <= set(explained(terms_page)["Neurons"])


def test_eta_squared_z_and_unique_say_what_they_are(terms_page: str) -> None:
    terms = explained(terms_page)["Neurons"]
    assert "share of the neuron's variance" in terms["eta sq."]
    assert "expected by chance" in terms["eta sq."]
    assert "standard deviations" in terms["z"]
    assert "false discovery rate" in terms["q"]
    assert "without retraining" in terms["unique"]


def test_a_meaning_is_given_in_sentences_and_for_parts_that_are_there(terms_page: str) -> None:
    meanings = [meaning for terms in explained(terms_page).values() for meaning in terms.values()]
    assert len(meanings) > 90
    assert all(meaning.endswith(".") and meaning[:1] == meaning[:1].upper() for meaning in meanings)
    assert {*explained(terms_page)} == {*PARTS.values()}
    assert re.findall("<h3>(.*?)</h3>", Glossary().section()) == []


@pytest.mark.slow
def test_a_page_explains_no_term_that_it_does_not_use(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    made = fit(model=str(checkpoints["bert"]), corpus=str(corpus_file), runs=str(tmp_path), **QUICKLY)
    page = made.report().read_text(encoding="utf-8")
    terms = explained(page)
    assert {*terms["Accuracy"]} == headings(page, "accuracy") | {"probe"}
    assert "shuffled labels" not in terms["Accuracy"]
    flags = {f"flag {row['flag']}" for row in made.neurons if row["flag"]}
    assert {name for name in terms["Neurons"] if name.startswith("flag ")} == flags
    assert "chart by-rank" not in page
    assert not {"band", "ring", "head", "correlation", "unresolved", "95% range of that", "q given"} & {
        *terms["Neurons"]
    }
    assert {*terms} == {"Accuracy", "Neurons"}


def test_what_names_something_is_found_in_headings_cells_labels_and_choices() -> None:
    part = element(
        "div", table(["layer", "a < b"], [[1, "*0.5"]]), element("ul", element("li", "probe, 95% interval")),
        element("option", "entropy"), element("p", "the head"),
    )  # fmt: skip
    assert {"layer", "a < b", "probe", "*", "entropy"} <= names_in(part)
    assert not {"the head", "head", "0.5"} & names_in(part)
    glossary = Glossary()
    glossary.add("Accuracy", ACCURACY, element("td", "nats"))
    glossary.add("Accuracy", ACCURACY, element("th", "layer"))
    glossary.add("Heads", {"layer, rank": "Both.", "layer, nats": "One."}, element("div", table(["layer", "rank"], [])))
    glossary.add("None", ACCURACY, None)
    shown = explained(glossary.section())
    assert {title: [*terms] for title, terms in shown.items()} == {
        "Accuracy": ["layer", "nats"],
        "Heads": ["layer, rank"],
    }


ENDS = {"low": 0.1, "high": 0.3}


def head_headings(tables: Iterable[Any]) -> set[str]:
    found = {str(column.header) for table in tables for column in table.columns}
    assert found
    return found


def of_rollout() -> set[str]:
    shares = ("self", "special_tokens", "previous", "next", "others")
    rows = [{"query": "words", "layer": 1, "measure": name, "value": 0.2, "uniform": 0.1} for name in shares]
    return head_headings(attention_tables.tables({"rollout": rows}))


def of_change() -> set[str]:
    rows = [
        {"measure": measure, "of": of, "layer": 1, "value": 0.5} for measure, of in attention_tables.CHANGES.values()
    ]
    return head_headings(attention_tables.tables({"change": rows}))


def of_fusion() -> set[str]:
    here: Mapping[str, Any] = {"task": "position", "measure": "accuracy", "value": 0.5, "chosen": "yes"}
    rows: list[Any] = [
        {**here, "fusion": "layer", "layer": 1},
        *({**here, "fusion": name} for name in attention_tables.FUSIONS),
    ]
    rows += [
        {**here, **ENDS, "measure": "difference", "fusion": name, "against": against, "p_value": 0.5}
        for name in attention_tables.FUSIONS for against in ("last layer", "best layer", "equal")
    ]  # fmt: skip
    return head_headings(attention_tables.tables({"fusion": rows}))


def of_position_heads() -> set[str]:
    place = {"layer": 1, "head": 2, "offset": -1, "position_head": "yes"}
    head = {**dict.fromkeys(attention_tables.POSITION_HEADS.types, 0.5), **place}
    held = {**dict.fromkeys(attention_tables.POSITION_REMOVAL.types, 0.5), **place, "k": 5, "ranking": "use"}
    return head_headings(attention_tables.tables({"position_heads": [head], "position_removal": [held]}))


def of_ablated() -> set[str]:
    row = {**dict.fromkeys(ABLATED.types, 0.2), "layer": 2, "readout": "position"}
    rows = [{**row, "unit": unit, "kind": kind} for unit in ("1", "1-2") for kind in REPLACEMENTS]
    again = [{**one, "readout": "position_retrained"} for one in rows]
    return head_headings(effect_tables({"ablated": Table([*rows, *again], ABLATED)}))


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.schema.name)
def test_every_heading_of_pruned_and_rounded_weights_is_explained_and_nothing_else(view: Any) -> None:
    row = {**dict.fromkeys(view.schema.types, 0.2), **ENDS, "layer": 2, "readout": "tuned", "draw": 1}
    rows = [{**row, **{name: kept[0] for name, kept in view.where.items()}}]
    assert head_headings(view.tables(Table(rows, view.schema))) == set(view.terms())


def of_changed_neurons() -> set[str]:
    row = {**ENDS, "changed_layer": 1, "kind": "mean", "k": 2, "readout": "position", "layer": 2, "effect": 0.2, "n": 9}
    drawn = {f"{of}_{end}": 0.1 for of in ("random", "matched") for end in ("lowest", "highest", "p")}
    return head_headings(neuron_tables.tables([{**row, **drawn, "random": 0.1, "matched": 0.1}]))


@pytest.mark.parametrize(
    ("shown", "terms"),
    [
        (of_rollout, ROLLOUT), (of_change, CHANGE), (of_fusion, FUSION), (of_position_heads, POSITION_HEADS),
        (of_ablated, EFFECTS), (of_changed_neurons, neuron_tables.TERMS),
    ],
)  # fmt: skip
def test_every_heading_is_explained_and_nothing_else(shown: Any, terms: Mapping[str, str]) -> None:
    # The head is explained once, and marks beside numbers have no heading.
    assert shown() - {"head"} == set(terms) - {"head", "*"}


def test_terms_are_those_of_the_tables_that_there_are(tmp_path: Path) -> None:
    plain = results_of("attention", tmp_path, {}, {})
    followed = results_of("attention", tmp_path, {}, {}, rollout=Table([{"layer": 1}]))
    assert terms_of_survey(plain) == {"Attention heads": ATTENTION}
    assert terms_of_survey(followed) == {"Attention heads": ATTENTION, "Rollout": ROLLOUT}
