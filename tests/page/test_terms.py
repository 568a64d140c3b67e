"""The list of terms of a report: it explains every heading and name that the page shows, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import unescape
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from probing import fit
from probing.data import ADDED_CONTROLS, CONTROLS
from probing.page.build import SCRIPT, page_script
from probing.page.terms import ACCURACY, COLUMNS, FLAGS, Glossary, names_in
from probing.page.terms import NEURON_TERMS as NEURON_TERMS
from probing.results import Table, element, table
from probing.studies.ablate import neuron_tables
from probing.studies.ablate.tables import ABLATED, EFFECTS, REPLACEMENTS, VIEWS, effect_tables
from probing.studies.attention import tables as attention_tables
from probing.studies.attention.section import ATTENTION, CHANGE, FUSION, POSITION_HEADS, ROLLOUT, terms_of_survey
from probing.studies.geometry.tables import MEASURES
from probing.tables.heads import TOKENS
from probing.tables.schema import NEURONS
from report_runs import QUICKLY, SETS, make_page
from written import results_of

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
def page(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page that shows all that a page can show."""
    place = tmp_path_factory.mktemp("runs")
    return make_page(checkpoints["bert"], corpus_file, place).read_text(encoding="utf-8")


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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("part", PARTS)
def test_every_heading_is_explained(part: str, page: str) -> None:
    shown, terms = headings(page, part), explained(page)[PARTS[part]]
    assert len(shown) > 5
    # The accuracies of the runs stand under their names.
    names = {name.removeprefix("second ") for name in shown} - {*SETS, "first", "second"}
    listed = {name for term in terms for name in (term, *term.split(", "))}
    assert names <= listed


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_parts_show_what_the_code_can_show(page: str) -> None:
    controls = {control.words for control in (*CONTROLS.values(), *ADDED_CONTROLS.values())} | {"majority"}
    assert controls | {"within 1", "error", "selectivity", "compression"} <= headings(page, "accuracy")
    assert headings(page, "neurons-0") == {
        *(column.words for column in COLUMNS if column.name in NEURONS.types),
        "flag",
        "highest on",
        "lowest on",
        "class",
        "weight",
    }
    assert {measure.replace("_", " ") for measure in MEASURES} | {*TOKENS.values()} <= headings(page, "geometry-0")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("part", ["geometry-0", "wic-0", "sts-0"])
def test_every_line_of_a_chart_is_explained(part: str, page: str) -> None:
    legend = re.findall(r'<ul class="legend">(.*?)</ul>', part_of(page, part), re.DOTALL)
    lines = {words(line) for one in legend for line in re.findall(r"<li>(.*?)</li>", one)}
    assert len(lines) > 5
    assert {line.split(", ")[0] for line in lines} <= set(explained(page)[PARTS[part]])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_script_has_every_part(page: str) -> None:
    parts = {path.name.removesuffix(".js") for path in files("probing.page").joinpath("script").iterdir()}
    assert parts == set(SCRIPT)
    assert f"<script>{page_script()}</script>" in page


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_the_script_tells_of_a_neuron_is_explained(page: str) -> None:
    script = page_script()
    facts = re.findall(r'entries\.push\(\["([^"]+)"', script)
    facts += [f"activation {key}" for key in re.findall(r'\["(\w+)", "[^"]*of its activations', script)]
    assert facts == ["95% range of that", "activation mean", "activation sd"]
    terms = explained(page)["Neurons"]
    assert {*facts, *(f"flag {name}" for name in FLAGS), "*", "unresolved"} <= set(NEURON_TERMS)
    assert {*facts, "flag offset", "*", "unresolved"} <= set(terms)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_chart_of_directions_and_its_parts_are_explained(page: str) -> None:
    part = part_of(page, "neurons-0")
    (opened, folded) = part.split("<summary>Other layers</summary>")
    of_layer = r"<figcaption>Layer (\d): contributions by rank[^<]*; 16 neurons are above[^<]*</figcaption><svg "
    shown = [layer for text in (opened, folded) for layer in re.findall(of_layer, text)]
    leading = re.findall(r"First neurons of layer (\d)", part)
    assert [re.findall(of_layer, opened), sorted(shown)] == [leading, ["0", "2"]]
    assert part.count('aria-label="contribution by rank, ') == 2
    assert part.count("<circle") == 2 * 16
    assert {"band", "ring"} <= set(explained(page)["Neurons"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_eta_squared_z_and_unique_say_what_they_are(page: str) -> None:
    terms = explained(page)["Neurons"]
    assert "share of the neuron's variance" in terms["eta sq."]
    assert "expected by chance" in terms["eta sq."]
    assert "standard deviations" in terms["z"]
    assert "false discovery rate" in terms["q"]
    assert "without retraining" in terms["unique"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_meaning_is_given_in_sentences_and_for_parts_that_are_there(page: str) -> None:
    meanings = [meaning for terms in explained(page).values() for meaning in terms.values()]
    assert len(meanings) > 90
    assert all(meaning.endswith(".") and meaning[:1] == meaning[:1].upper() for meaning in meanings)
    assert {*explained(page)} == {*PARTS.values()}
    assert re.findall("<h3>(.*?)</h3>", Glossary().section()) == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_page_explains_no_term_that_it_does_not_use(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    made = fit(model=str(checkpoints["bert"]), corpus=str(corpus_file), runs=str(tmp_path), **QUICKLY)
    assert made is not None
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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
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
