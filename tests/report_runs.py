"""Small finished runs with every kind of column that a report shows, and pages of them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probing import WandbOptions, attention, fit, report
from probing.downstream import SPACES
from probing.results import Row
from probing.statistics import SIZE_COLUMNS
from probing.studies.ablate.neuron_tables import INTERVENTIONS
from probing.studies.compare import tables as of_compare
from probing.studies.compare.tables import AGREEMENT
from probing.studies.geometry.tables import (
    DIMENSIONS,
    FIRST_TOKEN,
    GEOMETRY,
    MEASURES,
    NORM_CHANGES,
    NORMS,
    OUTLIERS,
    PATH,
    SMOOTHING,
)
from probing.studies.similarity import STS, STS_CHOSEN, WIC, WIC_CHOSEN
from probing.tables import DIRECTION_COLUMNS, UNRESOLVED
from probing.tables.heads import TOKENS
from probing.tables.schema import ACCURACY, BASES, HEADS, NEURONS, WITHIN_COVARIATE
from written import columns_of, complete, read_csv, type_of, write_csv

# Looser than usual: these probes only have to be there.
QUICKLY: dict[str, Any] = {
    "quiet": True, "wandb": {"mode": "disabled"}, "layer": "0,2", "probe": {"tolerance": 1e-3, "l2": 1e-2},
    "replicates": 0, "controls": "none", "evidence": "none",
}  # fmt: skip

# By rank, what retraining without the neuron showed.
PLANTED = {1: (0.025, "top"), 2: (0.0001, f"top, {UNRESOLVED}"), 9: (0.0006, "matched")}


def make_run(model: Path, corpus: Path, place: Path, name: str) -> Path:
    """Fit a run with controls and bootstraps, and plant what retraining without neurons would have found."""
    options = {**QUICKLY, "replicates": 2, "controls": "shuffled,untrained"}
    made = fit(model=str(model), corpus=str(corpus), runs=str(place), name=name, **options)
    rows = read_csv(made.folder / "neurons.csv")
    for row in rows:
        rise, removed = PLANTED.get(row["rank"], (None, None))
        row |= {
            "unique": 0.3 / row["rank"],
            "cross_entropy_without": rise,
            "removed": removed,
            "removed_p": removed and 0.001,
        }
        # The third by rank is as a neuron is that stands far from 0.
        row |= {"contribution_companion": row["contribution"] / 2 if row["rank"] == 3 else None}
        row |= {"mean": 4 * row["sd"]} if row["rank"] == 3 else {}
        row |= {f"cross_entropy_without_{end}": rise and rise + by for end, by in (("low", -0.005), ("high", 0.005))}
    write_csv(made.folder / "neurons.csv", rows)
    return made.folder


def fit_on_two_texts(model: Path, corpus: Path, place: Path) -> Any:
    """Fit a run that is tested on twelve sentences in a file of their own, `other.txt`."""
    sentences = corpus.read_text(encoding="utf-8").splitlines()
    (place / "other.txt").write_text("\n".join(sentences[:12]), encoding="utf-8")
    options = {**QUICKLY, "layer": 1, "test_corpus": str(place / "other.txt"), "runs": str(place / "runs")}
    return fit(model=str(model), corpus=str(corpus), **options)


def treebank(sentences: list[str]) -> str:
    """Write sentences as CoNLL-U in which each word but the first depends on the previous one."""
    lines = []
    for sentence in sentences:
        for i, word in enumerate(sentence.split(), 1):
            relation = "root" if i == 1 else ("dep", "nmod")[i % 2]
            lines.append(f"{i}\t{word}\t_\tX\t_\t_\t{i - 1}\t{relation}\t_\t_")
        lines.append("")
    return "\n".join(lines) + "\n"


def make_survey(model: Path, sentences: list[str], place: Path, name: str) -> Path:
    """Survey the heads of a model on a treebank."""
    (place / "train.conllu").write_text(treebank(sentences[:40]), encoding="utf-8")
    (place / "test.conllu").write_text(treebank(sentences[40:70]), encoding="utf-8")
    made = attention(
        model=str(model), corpus=str(place / "train.conllu"), test_corpus=str(place / "test.conllu"), runs=str(place),
        name=name, parts="classes,profile,tokens,relations,trees", quiet=True, trainer={"accelerator": "cpu"},
        wandb=WandbOptions("disabled"),
    )  # fmt: skip
    return made.folder


# Collections of sentence pairs on the page that shows everything.
SETS = ("STS12", "STS-B dev")


def make_page(model: Path, corpus: Path, place: Path) -> Path:
    """Write a page that shows all that a page can show."""
    first = make_run(model, corpus, place, "first")
    accuracy = read_csv(first / "accuracy.csv")
    whole: list[dict[str, Any]] = [{**_numbers_of(columns_of(ACCURACY)), **row} for row in accuracy]
    write_csv(first / "accuracy.csv", whole)
    held_fixed = _numbers_of([*[column.name for column in WITHIN_COVARIATE], "control_task_share", "selectivity"])
    held_fixed |= _numbers_of([column.name for column in DIRECTION_COLUMNS]) | {
        "above_directions": "yes",
        "correlated_group": 1,
    }
    units = read_csv(first / "neurons.csv")
    neurons = [
        {**row, "head": row["neuron"] // 8, "feature": 2 * row["neuron"], **held_fixed,
         "span": 1 + row["neuron"] // 8, "span_neuron": row["neuron"] % 8} for row in units
    ]  # fmt: skip
    write_csv(first / "neurons.csv", neurons)
    assert set(read_csv(first / "neurons.csv")[0]) == set(columns_of(NEURONS))
    heads = [
        {**_numbers_of(tuple(HEADS.types)), "layer": layer, "head": head, "first_neuron": 8 * head, "n_neurons": 8,
         "n_random": 10, "above_chance": "no"}
        for layer in (0, 2) for head in (0, 1)
    ]  # fmt: skip
    write_csv(first / "heads.csv", heads)
    verdicts = {"features": "", "neurons": "unresolved", "random features": "better", "rotated neurons": "worse"}
    bases = [
        {**_numbers_of(tuple(BASES.types)), "layer": layer, "basis": basis, "features": verdict, "units": "3"}
        for layer in (0, 2) for basis, verdict in verdicts.items()
    ]  # fmt: skip
    write_csv(first / "bases.csv", bases)
    second = Path(shutil.copytree(first, place / "second"))
    folders = [
        _comparison(place / "both", [first, second]),
        _geometry(place / "shape"),
        _ablation(place / "ablated"),
        *_evaluations(place),
    ]
    return report([str(folder) for folder in folders], output=str(place / "page.html"))


def _numbers_of(columns: Sequence[str]) -> dict[str, Any]:
    """Return a share or a count of 1 for each column; what transforms were fitted on is enough."""
    sizes = dict(zip(SIZE_COLUMNS, (960, 4800, 48, 100), strict=True))
    return {name: sizes.get(name, 1 if type_of(name) is int else 0.5) for name in columns}


def write_study(folder: Path, kind: str, tables: Mapping[str, tuple[list[Any], Sequence[str]]], **results: Any) -> Path:
    """Write tables, and what `results.json` has, as a command of that kind does."""
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps({"kind": kind, **results}), encoding="utf-8")
    (folder / "config.yaml").write_text(f"top: 10\nname: the config of {folder.name}\n", encoding="utf-8")
    for name, (rows, columns) in tables.items():
        write_csv(folder / f"{name}.csv", rows, columns)
    complete(folder)
    return folder


def _comparison(folder: Path, runs: list[Path]) -> Path:
    pair = {"model_a": "first", "model_b": "second", "matching": "index", "same_depth": "yes"}
    numbers = dict.fromkeys(("value", "low", "high", "p_value", "chance_low", "chance_high"), 0.5)
    rows = [
        {**pair, **numbers, "layer_a": k, "layer_b": k, "statistic": statistic}
        for k in (0, 2)
        for statistic in ("spearman", "overlap", "correlation", "cka")
    ]
    everywhere = {"layer": 0, "neuron": 1, "rank": 1, "second layer": 0, "second neuron": 1, "second rank": 2}
    matched = {name: "first" if kind is str else 0 for name, kind in of_compare.NEURONS.types.items()}
    tables: dict[str, tuple[list[Any], Any]] = {
        "agreement": (rows, tuple(AGREEMENT.types)),
        "neurons": ([{**matched, "model_b": "second"}], tuple(of_compare.NEURONS.types)),
        "accuracies": ([{"model": "first", "layer": 0, "accuracy": 0.5}], ("model", "layer", "accuracy")),
        "top_everywhere": ([everywhere], [*everywhere]),
    }
    of_runs, shown = {run.name: str(run) for run in runs}, {"first, second": 0}
    return write_study(
        folder, "comparison", tables, runs=of_runs, verdicts={}, said=["A sentence."], shown_layers=shown
    )


def _geometry(folder: Path) -> Path:
    measured = [
        {"layer": k, "transform": transform, "measure": measure, "value": 0.5, "n_tokens": 900}
        for k in (0, 2) for transform in ("clip_random", *SPACES) for measure in MEASURES
    ]  # fmt: skip
    outliers = [{"definition": "variance", "layer": 0, "neuron": 1, "value": 9.5, "special_tokens": "exclude"}]
    dimensions = [{"layer": k, "neuron": 1, "cosine_share": 0.4} for k in (0, 2)]
    of_blocks = (
        "distance_ratio", "sigma_1", "sigma_2", "sigma_product", "share_sigma_product_above_1", "gain_1", "gain_2",
        "attention_factor", "feed_forward_factor", "bound_per_matrix", "bound_published", "largest_share_of_bound",
        "share_within_bound", "share_within_bound_per_matrix", "share_distance_falls",
    )  # fmt: skip
    smoothing = [{"layer": 1, "measure": name, "value": 1.0, "n_sentences": 9} for name in of_blocks]
    terms = {
        **_numbers_of(tuple(NORMS.types)),
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
        **_numbers_of(tuple(PATH.types)),
        "layer": 0,
        "site": "sum",
        "term": "no",
        "tokens": "first",
        "kind": "layers",
    }
    tables: dict[str, tuple[list[Any], Any]] = {
        "geometry": (measured, tuple(GEOMETRY.types)), "outliers": (outliers, tuple(OUTLIERS.types)),
        "dimensions": (dimensions, tuple(DIMENSIONS.types)), "smoothing": (smoothing, tuple(SMOOTHING.types)), 
        "norms": ([terms], tuple(NORMS.types)), "norm_changes": (changes, tuple(NORM_CHANGES.types)),
        "path": ([stream], tuple(PATH.types)), "first_token": (first, tuple(FIRST_TOKEN.types)),
    }  # fmt: skip
    return write_study(folder, "geometry", tables, clipped={"0": [1], "2": [1]})


def _ablation(folder: Path) -> Path:
    effects: list[Row] = [{"measure": "mlm_loss", "where": "", "kind": "intact", "value": 0.5}]
    for where in ("inside", "after"):
        common = {"measure": "mlm_loss", "where": where, "neurons": "7", "effect": 0.1, "value": 0.6}
        ends = {"effect_low": 0.05, "effect_high": 0.15}
        effects += [{**common, **ends, "kind": "outliers", "percentile": 100.0, "p_value": 0.01}]
        effects += [{**common, **ends, "kind": "largest_gain"}, {**common, "kind": "random", "draw": 1}]
    return write_study(folder, "ablation", {"interventions": (effects, tuple(INTERVENTIONS.types))})


def _evaluations(place: Path) -> list[Path]:
    numbers = _numbers_of((*tuple(WIC.types), *tuple(WIC_CHOSEN.types), *tuple(STS.types), *tuple(STS_CHOSEN.types)))
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
        write_study(place / "senses", "word-in-context evaluation", wic),
        write_study(place / "alike", "similarity evaluation", sts),
    ]


def points_of(chart: str) -> list[list[tuple[float, float]]]:
    """Return where the marks of each line of a chart on a page are, from its left upper corner."""
    lines = re.findall(r'<g class="look-\d">(.*?)</g>', chart, re.DOTALL)
    marks = [re.findall(r'class="mark" x="([\d.]+)" y="([\d.]+)"', line) for line in lines]
    return [[(float(across), float(down)) for across, down in line] for line in marks]
