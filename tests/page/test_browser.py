"""The report as its reader uses it: in a browser, by pointer and by keyboard."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from probing import load_run, report
from report_runs import make_run, make_survey
from written import read_csv, write_csv

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with all that a page shows, in which layer 2 leads."""
    made = make_run(checkpoints["bert"], corpus_file, tmp_path_factory.mktemp("runs"), "whole")
    first, *others = read_csv(made / "accuracy.csv")
    write_csv(made / "accuracy.csv", [{**first, "accuracy": 0.0}, *others])
    results = json.loads((made / "results.json").read_text(encoding="utf-8"))
    results["layers"][0]["accuracy"] = 0.0
    (made / "results.json").write_text(json.dumps(results), encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    """The address of its report."""
    return report([str(folder)]).resolve().as_uri()


@pytest.fixture
def opened(browser: Any, page: str) -> Iterator[Any]:
    """The page freshly opened; whatever a test does, the console stays empty."""
    browser.get_log("browser")
    browser.get(page)
    yield browser
    assert browser.get_log("browser") == []


@pytest.fixture(scope="module")
def survey(checkpoints: dict[str, Path], sentences: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished survey of heads."""
    return make_survey(checkpoints["bert"], sentences, tmp_path_factory.mktemp("surveys"), "survey")


@pytest.fixture
def heads(browser: Any, survey: Path) -> Iterator[Any]:
    """Its page freshly opened; whatever a test does, the console stays empty."""
    browser.get_log("browser")
    browser.get("about:blank")
    browser.get(report([str(survey)]).resolve().as_uri())
    yield browser
    assert browser.get_log("browser") == []


@pytest.fixture
def find(opened: Any) -> Callable[[str], Any]:
    """Return the first element of a CSS selector."""
    return lambda selector: opened.find_element("css selector", selector)


def column(browser: Any, key: str) -> list[str]:
    """Return a column of the table as it stands on the page."""
    script = """
    const table = document.querySelector("table.neurons");
    const place = [...table.tHead.rows[0].cells].findIndex((cell) => cell.dataset.key === arguments[0]);
    return [...table.tBodies[0].rows].map((row) => row.cells[place].textContent);
    """
    found: list[str] = browser.execute_script(script, key)
    return found


def until(browser: Any, holds: Callable[[], Any]) -> None:
    """Wait until something holds, five seconds at most."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 5, 0.02).until(lambda _: holds())


def choose(browser: Any, selector: str, value: str) -> None:
    """Choose an option, as the keyboard would."""
    option = browser.find_element("css selector", f"{selector} option[value='{value}']")
    option.click()


def test_the_script_shows_the_rows_that_were_there_without_it(opened: Any, folder: Path) -> None:
    rows = load_run(folder).top(2, 10)
    assert column(opened, "neuron") == [str(row["neuron"]) for row in rows]
    assert column(opened, "contribution") == [f"{row['contribution']:.4f}" for row in rows]
    assert column(opened, "rank_low") == [f"{row['rank_low']}–{row['rank_high']}" for row in rows]
    assert column(opened, "share") == [f"{row['share']:.1%}" for row in rows]
    assert column(opened, "cross_entropy_without")[:3] == ["+0.0250", "unresolved", ""]
    assert column(opened, "contribution_centred")[2] == f"*{rows[2]['contribution_centred']:.4f}"
    assert column(opened, "contribution_companion")[2] == f"{rows[2]['contribution'] / 2:.4f}"
    assert column(opened, "contribution_companion").count("") == 9
    assert column(opened, "flag") == [row["flag"] for row in rows]


def test_the_table_sorts_by_any_column_both_ways(opened: Any, find: Callable[[str], Any], folder: Path) -> None:
    values = sorted((row["eta_squared"] for row in load_run(folder).neurons if row["layer"] == 2), reverse=True)
    head = find("th[data-key=eta_squared]")
    assert head.get_attribute("aria-sort") is None
    head.find_element("css selector", "button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert find("th[data-key=rank]").get_attribute("aria-sort") is None
    assert column(opened, "eta_squared") == [f"{value:.3f}" for value in values[:10]]
    head.find_element("css selector", "button").send_keys("\n")
    assert head.get_attribute("aria-sort") == "ascending"
    assert column(opened, "eta_squared") == [f"{value:.3f}" for value in values[::-1][:10]]
    # What was not measured of most neurons stands last either way.
    removal = find("th[data-key=cross_entropy_without] button")
    removal.click()
    assert column(opened, "cross_entropy_without")[:4] == ["+0.0250", "+0.0006", "unresolved", ""]
    removal.click()
    assert column(opened, "cross_entropy_without")[:4] == ["unresolved", "+0.0006", "+0.0250", ""]


def test_the_table_filters_by_layer_flag_and_neuron(opened: Any, find: Callable[[str], Any], folder: Path) -> None:
    rows = load_run(folder).neurons
    status = find(".filters [role=status]")
    assert status.text == "10 of 16 neurons shown"
    choose(opened, ".by-layer", "0")
    assert set(column(opened, "layer")) == {"0"}
    choose(opened, ".by-layer", "")
    assert status.text == "10 of 32 neurons shown"
    find(".more").click()
    assert len(column(opened, "neuron")) == 32
    assert not find(".more").is_displayed()
    flags = Counter(row["flag"] for row in rows)
    assert "offset" in flags
    for flag, n in flags.items():
        choose(opened, ".by-flag", flag or "none")
        assert status.text == f"{min(10, n)} of {n} neurons shown"
        assert set(column(opened, "flag")) == {flag}
    choose(opened, ".by-flag", "")
    find(".by-neuron").send_keys("7")
    assert list(zip(column(opened, "layer"), column(opened, "neuron"), strict=True)) in (
        [("0", "7"), ("2", "7")],
        [("2", "7"), ("0", "7")],
    )


def test_the_map_says_what_is_under_the_pointer_and_the_keys(
    opened: Any, find: Callable[[str], Any], folder: Path
) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    rows = {(row["layer"], row["neuron"]): row for row in load_run(folder).neurons}
    field, tip, readout = find(".field"), find(".tip"), find(".readout")
    opened.execute_script("arguments[0].scrollIntoView({block: 'center'})", field)
    assert not tip.is_displayed()
    # Two layers, 16 neurons: the cell of layer 2, neuron 11.
    width, height = field.size["width"], field.size["height"]
    across, down = round((11.5 / 16 - 0.5) * width), round(0.25 * height)
    ActionChains(opened).move_to_element_with_offset(field, across, down).perform()
    row = rows[2, 11]
    until(opened, tip.is_displayed)
    assert f"layer 2, neuron 11, rank {row['rank']}" in tip.text
    assert f"contribution {row['contribution']:.4f}" in tip.text
    assert f"layer 2, neuron 11, rank {row['rank']}" in readout.text
    ActionChains(opened).move_to_element(find("h1")).perform()
    until(opened, lambda: not tip.is_displayed())
    field.send_keys(Keys.ARROW_UP, Keys.ARROW_RIGHT, Keys.END, Keys.ARROW_RIGHT, Keys.ARROW_LEFT)
    assert f"layer 0, neuron 14, rank {rows[0, 14]['rank']}" in readout.text
    assert opened.switch_to.active_element == field
    field.send_keys(Keys.ENTER)
    assert find(".picked").text == "Layer 0, neuron 14"


def test_a_neuron_that_is_picked_shows_what_it_contributes_to_each_class(
    opened: Any, find: Callable[[str], Any], folder: Path
) -> None:
    from safetensors.numpy import load_file

    found = load_run(folder)
    by_class = load_file(folder / "contributions.safetensors")["contribution"]
    first, third = found.top(2, 1)[0], found.top(2, 3)[2]
    assert find(".picked").text == f"Layer 2, neuron {first['neuron']}"
    before = bar_heights(opened)
    assert relative(before) == pytest.approx(relative(by_class[1, :, first["neuron"]].tolist()), abs=2e-3)
    opened.find_elements("css selector", "table.neurons td button")[2].click()
    assert find(".picked").text == f"Layer 2, neuron {third['neuron']}"
    assert opened.switch_to.active_element == find(".picked")
    assert relative(bar_heights(opened)) == pytest.approx(relative(by_class[1, :, third["neuron"]].tolist()), abs=2e-3)
    peak = found.results["classes"][int(by_class[1, :, third["neuron"]].argmax())]
    assert f"largest at {peak}, " in find(".by-class").get_attribute("aria-label")
    words = find(".facts").text.splitlines()
    assert float(words[words.index("activation mean") + 1]) == pytest.approx(third["mean"], rel=6e-3)
    find(".by-class").send_keys("\ue014")  # the right arrow, from the first class to the second
    value = by_class[1, 1, third["neuron"]]
    label, number = find(".detail .readout").text.split(", ")[0].split(": ")
    assert label == f"position {found.results['classes'][1]}"
    assert float(number) == pytest.approx(value, rel=6e-3)
    assert find(".tip").text == find(".detail .readout").text


def test_a_picked_neuron_leads_to_its_own_block_if_it_has_one(
    opened: Any, find: Callable[[str], Any], folder: Path
) -> None:
    run = load_run(folder)
    first = {(row["layer"], row["neuron"]) for row in run.contexts}
    (picked,) = {neuron for layer, neuron in first if layer == 2} & {run.top(2, 1)[0]["neuron"]}
    block = find(f"#neurons-0-2-{picked}")
    assert not block.is_displayed()
    find(".to-page a").click()
    until(opened, lambda: block.find_element("css selector", "mark").is_displayed())
    other = next(row["neuron"] for row in run.neurons if row["layer"] == 2 and (2, row["neuron"]) not in first)
    find(".by-neuron").send_keys(str(other))
    (button,) = find("table.neurons").find_elements("css selector", f"button[aria-label='neuron {other} of layer 2']")
    button.click()
    until(opened, lambda: find(".picked").text == f"Layer 2, neuron {other}")
    assert not find(".to-page").is_displayed()


def bar_heights(browser: Any) -> list[float]:
    path = browser.find_element("css selector", ".by-class .bars").get_attribute("d")
    return [-float(part.split("h")[0]) for part in path.split("v")[1:]]


def relative(values: list[float]) -> list[float]:
    return [value / max(values) for value in values]


@pytest.mark.parametrize(
    ("number", "column", "text"),
    [
        (-0.0004, "{digits: 3}", "0.000"), (-0.0004, "{digits: 2, signed: true}", "0.00"), (-0.4, "{digits: 0}", "0"),
        (0.5, "{digits: 1, signed: true}", "+0.5"), (-0.5, "{digits: 1, signed: true}", "-0.5"),
        (0.25, "{digits: 0, percent: true, signed: true}", "+25%"),
    ],
)  # fmt: skip
def test_what_rounds_to_0_has_no_sign(opened: Any, number: float, column: str, text: str) -> None:
    assert opened.execute_script(f"return shown({number}, {column})") == text


def test_the_theme_follows_the_system_until_it_is_switched(opened: Any, find: Callable[[str], Any]) -> None:
    def paper() -> str:
        return str(opened.execute_script("return getComputedStyle(document.documentElement).backgroundColor"))

    def system(theme: str, offered: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": theme}]
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        until(opened, lambda: button.text == offered)  # the page hears of it when it is drawn next

    button = find(".theme")
    system("light", offered="Dark")
    light = paper()
    system("dark", offered="Light")
    dark = paper()
    assert dark != light
    button.click()
    assert (paper(), button.text) == (light, "Dark")
    system("light", offered="Dark")
    button.click()
    assert (paper(), button.text) == (dark, "Light")


def test_a_small_screen_scrolls_no_further_than_its_text(opened: Any) -> None:
    metrics = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        assert opened.execute_script("return document.documentElement.scrollWidth") == 390
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_every_control_is_reached_with_the_tabulator_key_and_seen_to_be(opened: Any) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    seen = """
    const element = document.activeElement, style = getComputedStyle(element);
    return [element.className || element.tagName, style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0];
    """
    found = {}
    for _ in range(70):
        ActionChains(opened).send_keys(Keys.TAB).perform()
        name, outlined = opened.execute_script(seen)
        found[name if isinstance(name, str) else name["baseVal"]] = outlined
    assert {"skip", "theme", "field", "by-layer", "by-flag", "by-neuron", "more", "chart by-class"} <= set(found)
    assert all(outlined for name, outlined in found.items() if name != "BODY"), found


def test_a_page_without_its_script_still_reads(browser: Any, page: str) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(page)
        text = browser.find_element("css selector", "main").text
        assert "Accuracy by layer" in text
        assert len(browser.find_elements("css selector", "table.neurons tbody tr")) == 10
        assert browser.find_element("css selector", ".field .shades").is_displayed()
        assert not browser.find_element("css selector", ".filters").is_displayed()
        assert not browser.find_element("css selector", ".theme").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_what_users_name_runs_no_script(browser: Any, folder: Path, tmp_path: Path) -> None:
    evil = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
    copy = shutil.copytree(folder, tmp_path / "copy")
    config = (copy / "config.yaml").read_text(encoding="utf-8")
    quoted = "'" + evil.replace("'", "''") + "'"
    (copy / "config.yaml").write_text(config.replace("task: position", f"task: {quoted}"), encoding="utf-8")
    browser.get_log("browser")
    browser.get(report([str(copy)]).resolve().as_uri())
    assert "taken" not in browser.title.split("<")[0]
    assert evil[:20] in browser.find_element("css selector", "h1").text
    assert browser.find_elements("css selector", "img") == []
    assert browser.get_log("browser") == []


# --- heads ---


def shown_heads(browser: Any) -> list[str]:
    """Return the heads whose example sentences are shown."""
    found = browser.find_elements("css selector", ".head-detail")
    return [one.get_attribute("id") for one in found if one.is_displayed()]


def test_the_map_of_heads_shows_any_measure_and_tells_the_numbers_of_a_head(heads: Any, survey: Path) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    made = load_run(survey)
    entropy = {(row["layer"], row["head"]): row for row in made.heads if row["measure"] == "entropy"}
    cells = heads.find_elements("css selector", ".heads-map td > a")
    choose(heads, ".by-measure", "1")
    assert "Entropy of a query" in heads.find_element("css selector", ".measure-help").text
    assert [float(f"0{cell.text}" if cell.text[0] == "." else cell.text) for cell in cells] == [
        pytest.approx(entropy[place]["value"], abs=0.005) for place in sorted(entropy)
    ]
    shades = [
        heads.execute_script("return getComputedStyle(arguments[0].parentElement).getPropertyValue('--shade')", cell)
        for cell in cells
    ]
    assert [float(shade) for shade in shades] == [
        pytest.approx(entropy[place]["value"], abs=0.001) for place in sorted(entropy)
    ]
    tip, readout = (heads.find_element("css selector", name) for name in (".tip", ".heads-of .readout"))
    heads.execute_script("arguments[0].scrollIntoView({block: 'center'})", cells[0])
    ActionChains(heads).move_to_element(cells[1]).perform()
    until(heads, tip.is_displayed)
    assert "head 1-2\nclass " in tip.text
    assert f"entropy {entropy[1, 2]['value']:.3f}" in tip.text
    ActionChains(heads).move_to_element(heads.find_element("css selector", "h1")).perform()
    until(heads, lambda: not tip.is_displayed())
    cells[0].send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    heads.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    assert heads.switch_to.active_element == cells[3]
    assert readout.text.startswith("head 2-2; class ")
    assert [cell.get_attribute("tabindex") for cell in cells].count("0") == 1
    for i, name in ((3, "head-0-2-2"), (1, "head-0-1-2")):
        cells[i].send_keys(Keys.ENTER)
        until(heads, lambda name=name: shown_heads(heads) == [name])  # type: ignore[misc]
        assert [j for j, cell in enumerate(cells) if cell.get_attribute("aria-current")] == [i]


def test_example_sentences_of_a_head_are_shown_without_the_script(browser: Any, survey: Path) -> None:
    address = report([str(survey)]).resolve().as_uri()
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(address)
        (first,) = shown_heads(browser)
        rows = load_run(survey).head_relations
        best = max(rows, key=lambda row: row["difference"])
        assert first == f"head-0-{best['layer']}-{best['head']}"
        assert len(browser.find_elements("css selector", ".heads-map td > a")) == len(rows)
        assert not browser.find_element("css selector", ".filters").is_displayed()
        other = next(row for row in rows if row is not best)
        browser.find_element("css selector", f"[href='#head-0-{other['layer']}-{other['head']}']").click()
        until(browser, lambda: shown_heads(browser) == [f"head-0-{other['layer']}-{other['head']}"])
        arcs = browser.find_elements("css selector", ".head-detail:target svg.arcs")
        assert arcs
        assert all(one.is_displayed() and one.size["width"] > 50 for one in arcs)
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_a_small_screen_scrolls_the_map_of_heads_and_not_the_page(heads: Any) -> None:
    metrics = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    heads.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        assert heads.execute_script("return document.documentElement.scrollWidth") == 390
    finally:
        heads.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
