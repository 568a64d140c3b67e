"""The list of terms of a report: it explains every heading and every name that the page shows, and nothing else."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from html import unescape
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from probing import report
from probing.data.control_names import ADDED_CONTROLS, CONTROLS
from probing.downstream.names import SPACES
from probing.page.build import SCRIPT, page_script
from probing.page.neurons import COLUMNS
from probing.page.sources import Sources
from probing.page.terms import FLAGS, terms_section
from probing.results.schema import LAYER_NAME, Row
from probing.statistics.sample_size import SIZE_COLUMNS
from probing.studies.compare.tables import AGREEMENT
from probing.studies.geometry.schema import (
    FIRST_TOKEN,
    GEOMETRY,
    INTERVENTIONS,
    NORM_CHANGES,
    NORMS,
    OUTLIERS,
    PATH,
    SMOOTHING,
)
from probing.studies.geometry.terms import MEASURES
from probing.studies.similarity.tables import STS, STS_CHOSEN, WIC, WIC_CHOSEN
from probing.tables.first_token import TOKENS
from probing.tables.schema import ACCURACY, GIVEN, HEADS, NEURONS
from report_runs import make_run
from written import complete, read_csv, type_of, write_csv

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

# Each part of a page by its id, and where its terms are explained.
PARTS = {
    "accuracy": "Accuracy",
    "agreement": "Agreement",
    "neurons-0": "Neurons",
    "heads-0": "Heads",
    "geometry-0": "Geometry",
    "wic-0": "Words and sentences",
    "sts-0": "Words and sentences",
}
SETS = ("STS12", "STS-B dev")


def numbers_of(columns: Sequence[str]) -> dict[str, Any]:
    """Return a share or a count of 1 for each column; what transforms were fitted on is enough."""
    sizes = dict(zip(SIZE_COLUMNS, (960, 4800, 48, 100), strict=True))
    return {name: sizes.get(name, 1 if type_of(name) is int else 0.5) for name in columns}


@pytest.fixture(scope="module")
def page(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page that shows all that a page can show."""
    place = tmp_path_factory.mktemp("runs")
    first = make_run(checkpoints["bert"], corpus_file, place, "first")
    accuracy = read_csv(first / "accuracy.csv")
    whole: list[dict[str, Any]] = [
        {**numbers_of([name for name in ACCURACY.types if name != LAYER_NAME]), **row} for row in accuracy
    ]
    write_csv(first / "accuracy.csv", whole)
    held_fixed = numbers_of([*[column.name for column in GIVEN], "control_task_share", "selectivity"])
    neurons = [{**row, "head": row["neuron"] // 8, **held_fixed} for row in read_csv(first / "neurons.csv")]
    write_csv(first / "neurons.csv", neurons)
    assert set(read_csv(first / "neurons.csv")[0]) == set(NEURONS.types) - {LAYER_NAME}
    heads = [
        {**numbers_of(tuple(HEADS.types)), "layer": layer, "head": head, "first_neuron": 8 * head, "n_neurons": 8,
         "n_random": 10, "above_chance": "no"}
        for layer in (0, 2) for head in (0, 1)
    ]  # fmt: skip
    write_csv(first / "heads.csv", heads)
    second = Path(shutil.copytree(first, place / "second"))
    folders = [comparison(place / "both", [first, second]), geometry(place / "shape"), *evaluations(place)]
    return report([str(folder) for folder in folders], output=str(place / "page.html")).read_text(encoding="utf-8")


def write(folder: Path, kind: str, tables: dict[str, tuple[list[Any], Any]], **results: Any) -> Path:
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps({"kind": kind, **results}), encoding="utf-8")
    (folder / "config.yaml").write_text("top: 10\n", encoding="utf-8")
    for name, (rows, columns) in tables.items():
        write_csv(folder / f"{name}.csv", rows, columns)
    complete(folder)
    return folder


def comparison(folder: Path, runs: list[Path]) -> Path:
    pair = {"model_a": "first", "model_b": "second", "matching": "index"}
    numbers = dict.fromkeys(("value", "low", "high", "p_value", "chance_low", "chance_high"), 0.5)
    rows = [
        {**pair, **numbers, "layer_a": k, "layer_b": k, "statistic": statistic}
        for k in (0, 2)
        for statistic in ("spearman", "overlap", "correlation", "cka")
    ]
    everywhere = {"layer": 0, "neuron": 1, "rank": 1, "second layer": 0, "second neuron": 1, "second rank": 2}
    tables: dict[str, tuple[list[Any], Any]] = {
        "agreement": (rows, tuple(AGREEMENT.types)),
        "top_everywhere": ([everywhere], [*everywhere]),
    }
    return write(folder, "comparison", tables, runs={run.name: str(run) for run in runs}, verdicts={})


def geometry(folder: Path) -> Path:
    measured = [
        {"layer": k, "transform": transform, "measure": measure, "value": 0.5}
        for k in (0, 2) for transform in ("clip_random", *SPACES) for measure in MEASURES
    ]  # fmt: skip
    outliers = [{"definition": "variance", "layer": 0, "neuron": 1, "value": 9.5, "special_tokens": "exclude"}]
    of_blocks = (
        "distance_ratio", "sigma_1", "sigma_2", "sigma_product", "share_sigma_product_above_1", "gain_1", "gain_2",
        "attention_factor", "feed_forward_factor", "bound_per_matrix", "bound_published", "largest_share_of_bound",
        "share_within_bound", "share_within_bound_per_matrix", "share_distance_falls",
    )  # fmt: skip
    smoothing = [{"layer": 1, "measure": name, "value": 1.0, "n_sentences": 9} for name in of_blocks]
    effects: list[Row] = [{"measure": "mlm_loss", "where": "", "kind": "intact", "value": 0.5}]
    for where in ("inside", "after"):
        common = {"measure": "mlm_loss", "where": where, "neurons": "7", "effect": 0.1, "value": 0.6}
        ends = {"effect_low": 0.05, "effect_high": 0.15}
        effects += [{**common, **ends, "kind": "outliers", "percentile": 100.0, "p_value": 0.01}]
        effects += [{**common, **ends, "kind": "largest_gain"}, {**common, "kind": "random", "draw": 1}]
    terms = {
        **numbers_of(tuple(NORMS.types)),
        "layer": 1,
        "module": "n",
        "kind": "outlier",
        "largest": "bias",
        "deviations": 6.0,
    }
    places = [{"where": where, "kind": "outliers", "neurons": "7"} for where in ("first", "second", "both")]
    common = {"measure": "deviations", "layer": 1, "neuron": 7, "value": 6.0, "outlier": "yes"}
    changes = [{**common, "where": "", "kind": "intact"}, *({**common, **one, "p_value": 0.1} for one in places)]
    common = {"measure": "mlm_loss", "value": 0.5, "effect": 0.1, "percentile": 100.0, "p_value": 0.1}
    changes += [{**common, "where": "", "kind": "intact"}, *({**common, **one} for one in places)]
    changes += [{**common, **one, "kind": "random", "draw": 1} for one in places]
    of_first: list[Row] = [{"layer": 0, "measure": name, "value": 0.5} for name in ("rms_norm", "mean_cosine")]
    of_first.append({"layer": 0, "measure": "mean_profile", "neuron": 7, "value": 6.0})
    first = [{**row, "first_token": which} for which in TOKENS for row in of_first]
    stream = {
        **numbers_of(tuple(PATH.types)),
        "layer": 0,
        "site": "sum",
        "term": "no",
        "tokens": "first",
        "kind": "layers",
    }
    tables: dict[str, tuple[list[Any], Any]] = {
        "geometry": (measured, tuple(GEOMETRY.types)), "outliers": (outliers, tuple(OUTLIERS.types)),
        "smoothing": (smoothing, tuple(SMOOTHING.types)), "interventions": (effects, tuple(INTERVENTIONS.types)),
        "norms": ([terms], tuple(NORMS.types)), "norm_changes": (changes, tuple(NORM_CHANGES.types)),
        "path": ([stream], tuple(PATH.types)), "first_token": (first, tuple(FIRST_TOKEN.types)),
    }  # fmt: skip
    return write(folder, "geometry", tables)


def evaluations(place: Path) -> list[Path]:
    numbers = numbers_of((*tuple(WIC.types), *tuple(WIC_CHOSEN.types), *tuple(STS.types), *tuple(STS_CHOSEN.types)))
    common: dict[str, Any] = {**numbers, "n_pairs": 90, "n_clipped": 1, "fitted_on": "others", "pooling": "mean"}
    common |= {"reported_on": "dev", "chosen_on": "other pairs"}
    rows = [{**common, "layer": k, "transform": space} for k in (0, 2) for space in SPACES]
    chosen = [{**row, "protocol": protocol} for protocol in ("held_out", "published") for row in rows[: len(SPACES)]]
    constant = {**chosen[0], "protocol": "constant_true"}
    wic = {"wic": (rows, tuple(WIC.types)), "chosen": ([*chosen, constant], tuple(WIC_CHOSEN.types))}
    static = {**rows[0], "pooling": "static", "layer": ""}
    everywhere = [(one, how) for one in SETS for how in ("all", "mean", "wmean")]
    sts: dict[str, tuple[list[Any], Any]] = {
        name: ([{**row, "set": one, "aggregation": how} for row in made for one, how in everywhere], columns)
        for name, made, columns in (
            ("sts", [*rows, static], tuple(STS.types)),
            ("chosen", chosen, tuple(STS_CHOSEN.types)),
        )
    }
    return [
        write(place / "senses", "word-in-context evaluation", wic),
        write(place / "alike", "similarity evaluation", sts),
    ]


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


@pytest.mark.parametrize("part", PARTS)
def test_every_heading_is_explained(part: str, page: str) -> None:
    shown, terms = headings(page, part), explained(page)[PARTS[part]]
    assert len(shown) > 5
    names = {name.removeprefix("second ") for name in shown} - set(SETS)
    listed = {name for term in terms for name in (term, *term.split(", "))}
    assert names <= listed


def test_the_parts_show_what_the_code_can_show(page: str) -> None:
    controls = {control.words for control in (*CONTROLS.values(), *ADDED_CONTROLS.values())} | {"majority"}
    assert controls | {"within 1", "error", "selectivity", "compression"} <= headings(page, "accuracy")
    assert headings(page, "neurons-0") == {
        *(column.words for column in COLUMNS if column.name in NEURONS.types),
        "flag",
        "highest on",
        "lowest on",
    }
    assert {measure.replace("_", " ") for measure in MEASURES} | {*TOKENS.values()} <= headings(page, "geometry-0")


@pytest.mark.parametrize("part", ["geometry-0", "wic-0", "sts-0"])
def test_every_line_of_a_chart_is_explained(part: str, page: str) -> None:
    legend = re.findall(r'<ul class="legend">(.*?)</ul>', part_of(page, part), re.DOTALL)
    lines = {words(line) for one in legend for line in re.findall(r"<li>(.*?)</li>", one)}
    assert len(lines) > 5
    assert {line.split(", ")[0] for line in lines} <= set(explained(page)[PARTS[part]])


def test_the_script_has_every_part(page: str) -> None:
    parts = {path.name.removesuffix(".js") for path in files("probing.page").joinpath("script").iterdir()}
    assert parts == set(SCRIPT)
    assert f"<script>{page_script()}</script>" in page


def test_what_the_script_tells_of_a_neuron_is_explained(page: str) -> None:
    script = page_script()
    facts = re.findall(r'entries\.push\(\["([^"]+)"', script)
    facts += [f"activation {key}" for key in re.findall(r'\["(\w+)", "[^"]*of its activations', script)]
    assert facts == ["95% range of that", "activation mean", "activation sd"]
    terms = explained(page)["Neurons"]
    assert {*facts, *(f"flag {name}" for name in FLAGS), "*", "unresolved"} <= set(terms)


def test_eta_squared_z_and_unique_say_what_they_are(page: str) -> None:
    terms = explained(page)["Neurons"]
    assert "share of the neuron's variance" in terms["eta sq."]
    assert "expected by chance" in terms["eta sq."]
    assert "standard deviations" in terms["z"]
    assert "false discovery rate" in terms["q"]
    assert "without retraining" in terms["unique"]


def test_a_meaning_is_given_in_sentences_and_for_parts_that_are_there(page: str) -> None:
    meanings = [meaning for terms in explained(page).values() for meaning in terms.values()]
    assert len(meanings) > 90
    assert all(meaning.endswith(".") and meaning[:1] == meaning[:1].upper() for meaning in meanings)
    assert {*explained(page)} == {*PARTS.values()}
    assert re.findall("<h3>(.*?)</h3>", terms_section(Sources([]))) == []
