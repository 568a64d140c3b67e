"""Maps of heads of `ablate`, as figures and on the page, and the files of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from probing.activations import ActivationStore
from probing.data.labelling import origin
from probing.interventions import POSITION, measure_of
from probing.page.charts import HeadMeasure, Place, head_map
from probing.results import Html, Row, Table, capitalised, element, in_brackets
from probing.runs.call import Measured
from probing.runs.loading import Tuned
from probing.studies.ablate import tables
from probing.studies.ablate.survey import AblationResults
from probing.tables.figures import draw_cells, write_drawings

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _by_kind(ablated: Table) -> Iterator[tuple[str, str, Table]]:
    """Yield each readout and kind of replacement, with the rows of heads."""
    for readout in tables.by_readout({"ablated": ablated}):
        heads = tables.of_units(tables.at_last_layer(ablated, readout), "heads")
        yield from ((readout, kind, rows) for kind, rows in heads.by("kind").items())


def maps_of_page(ablated: Table) -> Iterator[Html]:
    """Yield a map of heads for each readout and kind of replacement."""
    for readout, kind, rows in _by_kind(ablated):
        title = capitalised(f"{tables.named(rows[0])} without the head ({kind}), in {measure_of(readout).unit}")
        caption = element("figcaption", f"{title}; darker where more is lost")
        row_of = {_place(row): row for row in rows}
        # No head links to sentences, so that the survey's number is not used.
        yield element("figure", caption, head_map(_measure(row_of), sorted(row_of), 0, title, links=False))


def _place(row: Row) -> Place:
    layer, head = map(int, row["unit"].split("-"))
    return layer, head


def _measure(rows: Mapping[Place, Row]) -> HeadMeasure:
    measure = measure_of(next(iter(rows.values()))["readout"])

    def harm(row: Row) -> float:
        return float(-measure.sign * row["effect"])

    most = max(max(map(harm, rows.values())), 1e-12)

    def value_text(row: Row) -> str:
        return f"{tables.amount(row)} {measure.unit}{in_brackets(tables.range_of(row))}"

    return HeadMeasure("effect", "", rows, tables.amount, lambda row: harm(row) / most, value_text)


def head_maps(ablated: Table, model: str) -> dict[str, Callable[[Figure], None]]:
    """Return the drawings of the maps of heads, by the name of their file."""
    return {
        f"heads_{kind}{tables.file_name(readout)}": partial(draw_head_map, rows=rows, what=f"{model}, {kind}")
        for readout, kind, rows in _by_kind(ablated)
    }


def draw_head_map(figure: Figure, rows: Sequence[Row], what: str) -> None:
    """Draw the effect of ablating each head, a cell for each head, darker for a greater loss."""
    measure = _measure({_place(row): row for row in rows})
    axes = draw_cells(figure, {place: (measure.text(row), measure.shade(row)) for place, row in measure.rows.items()})
    axes.set_title(
        f"{what}: {tables.named(rows[0])} without the head, {measure_of(rows[0]['readout']).unit}", fontsize=9
    )


def study_output(
    ablation: AblationResults, stores: Sequence[ActivationStore], model_name: str, tuned: Tuned | None = None
) -> Measured:
    """Return the tables, results and figures of a run; `tuned` is the tuned model whose head was read."""
    tokens = ablation.text.tokens
    results = {
        "cache": {side: origin(store) for side, store in (("train", stores[0]), ("test", stores[-1]))},
        "model": {"n_layers": stores[-1].plan.n_layers, "n_heads": ablation.n_heads},
        "n_sentences": tokens.n_sentences,
        "n_tokens": tokens.n_tokens,
        "readouts": ablation.readouts,
    }
    if tuned is not None:
        n_tested = tuned.results["n_examples"]["test"]
        results["tuned"] = {
            "run": str(tuned.folder), "checkpoint": tuned.checkpoint.name, "score": tuned.score, "n_tested": n_tested,
        }  # fmt: skip
    ablated = Table(ablation.tables["ablated"], tables.ABLATED)
    return Measured(
        ablation.tables,
        results,
        _logged_rows(ablated),
        draw=lambda folder, formats: write_drawings(folder, head_maps(ablated, model_name), formats),
    )


def _logged_rows(ablated: Table) -> list[dict[str, Any]]:
    """Return rows for W&B: by layer, the effect of its ablation on the last layer, a column for each kind."""
    by_layer: dict[int, dict[str, Any]] = {}
    for readout, of in tables.by_readout({"ablated": ablated}).items():
        start = "" if readout == POSITION else f"{readout}_"
        for row in tables.of_units(tables.at_last_layer(of["ablated"], readout), "layers"):
            point = by_layer.setdefault(int(row["unit"]), {"layer": int(row["unit"])})
            kind = f"{start}{row['kind']}"
            point |= {f"{kind}_effect": row["effect"], f"{kind}_low": row["low"], f"{kind}_high": row["high"]}
    return list(by_layer.values())
