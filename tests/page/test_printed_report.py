"""The report on paper: nothing of it is cut, folded or too small to read, and pages end between rows."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from probing import report
from probing.page.neurons import shaded_map
from probing.page.run import LONGEST
from probing.results.rows import Html, element, joined, table
from probing.results.schema import shortened
from probing.studies.compare.tables import heat_map
from report_runs import make_page, make_survey

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

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
  if (!one.hidden && !there(one)) faults.push(`folded: ${named(one)}`);
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


@pytest.mark.parametrize("paper", PAPERS)
def test_all_of_a_page_is_on_paper_and_legible(paper: str, page: Path, laid_out: Callable[[Path, str], Any]) -> None:
    opened = laid_out(page, paper)
    assert len(opened.find_elements("css selector", "details:not([open])")) > 20
    columns = "return [...document.querySelectorAll('thead tr')].map((row) => row.cells.length)"
    assert max(opened.execute_script(columns)) > 19
    assert opened.execute_script(FAULTS, SMALLEST) == []


@pytest.mark.parametrize("paper", PAPERS)
def test_all_of_a_survey_is_on_paper_and_legible(
    paper: str, survey: Path, laid_out: Callable[[Path, str], Any]
) -> None:
    opened = laid_out(survey, paper)
    assert opened.find_elements("css selector", ".arcs")
    assert opened.execute_script(FAULTS, SMALLEST) == []


def test_a_wide_map_of_many_layers_fits_on_a_page(tmp_path: Path, laid_out: Callable[[Path, str], Any]) -> None:
    shown = shaded_map([[0.5] * 920] * 96, (1, 18), range(96), {0: 0, 900: 900}, "about")
    heads = table(["layer", *(str(head) for head in range(1, 33))], [[0, *["B 100"] * 32]])
    opened = laid_out(write(tmp_path, shown, Html(heads.replace("<table", '<table class="heads-map"'))), "A4")
    assert opened.execute_script(FAULTS, SMALLEST) == []
    assert opened.find_element("css selector", ".map").size["height"] < (297 - 2 * 14) / 25.4 * PIXELS


def test_a_dark_page_is_printed_dark_on_light(survey: Path, laid_out: Callable[[Path, str], Any]) -> None:
    opened = laid_out(survey, "A4")
    opened.execute_script("document.documentElement.dataset.theme = 'dark'")
    assert opened.execute_script("return getComputedStyle(document.body).color") == "rgb(28, 29, 31)"


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
