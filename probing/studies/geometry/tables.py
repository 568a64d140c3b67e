"""Tables and sentences of `geometry` for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from probing.results.schema import in_brackets, interval
from probing.statistics.intervals import few_sentences
from probing.statistics.sample_size import label, size_lines

Row = Mapping[str, Any]

# Headings of the columns, by transform and by definition of outliers.
TRANSFORMS = {
    "none": "untransformed",
    "clip": "clipped",
    "clip_random": "others clipped",
    "center": "centred",
    "standardise": "standardised",
    "whiten": "whitened",
    "all_but_the_top": "all but the top",
}
DEFINITIONS = {
    "mean_profile": "far mean (sd)",
    "variance": "variance (x mean)",
    "argmin_share": "smallest of",
    "argmax_share": "largest of",
    "layer_norm": "LayerNorm (layers)",
}
SOURCES = ("position", "frequency", "token", "punctuation", "special", "all")

# Advice where a covariance was fitted on too few vectors.
MORE_TEXT = "Fit it on more text with `--fit_corpus`, or keep fewer directions of whitening with `--components`."

# Number of neurons that a table in the terminal shows; the files have all.
SHOWN, EXPLAINED = 8, 3


class Tables(Protocol):
    """The tables of a run."""

    @property
    def geometry(self) -> list[dict[str, Any]]:
        """Rows of `geometry.csv`."""
        ...

    @property
    def outliers(self) -> list[dict[str, Any]]:
        """Rows of `outliers.csv`."""
        ...

    @property
    def dimensions(self) -> list[dict[str, Any]]:
        """Rows of `dimensions.csv`."""
        ...

    @property
    def parameters(self) -> list[dict[str, Any]]:
        """Rows of `parameters.csv`."""
        ...

    @property
    def explained(self) -> list[dict[str, Any]]:
        """Rows of `explained.csv`."""
        ...


def values_of(geometry: Sequence[Row]) -> dict[tuple[int, str, str], Row]:
    """Return the rows of `geometry.csv` by layer, transform and measure."""
    return {(row["layer"], row["transform"], row["measure"]): row for row in geometry}


def layers_of(geometry: Sequence[Row]) -> list[int]:
    """Return the layers that were measured, ascending."""
    return sorted({row["layer"] for row in geometry})


def tables(made: Tables) -> list[Any]:
    """Return all tables as rich ones; those without rows are left out."""
    return [
        table
        for table in (
            _outliers_table(made),
            _anisotropy_table(made),
            _transforms_table(made.geometry),
            _smoothing_table(made.geometry),
            _parameters_table(made),
            _explained_table(made),
        )
        if table.row_count
    ]


def conclusions(made: Tables, clipped: Mapping[int, Sequence[int]]) -> list[str]:
    """Return the conclusions from the tables, a sentence for each question.

    Args:
        made: The tables.
        clipped: Neurons that were clipped in each layer.
    """
    found, layers = values_of(made.geometry), layers_of(made.geometry)
    return [
        _which(clipped),
        _why(found, layers, made.dimensions),
        *_does_clipping_help(found, layers, clipped),
        _alike(found, layers),
        *size_lines(made.geometry, MORE_TEXT),
        *_why_no_intervals(found, layers),
    ]


def _why_no_intervals(found: Mapping[tuple[int, str, str], Row], layers: Sequence[int]) -> list[str]:
    one_per_sentence = [row for k in layers if (row := found.get((k, "none", "mean_cosine_one_per_sentence")))]
    few = few_sentences(min(row["n_tokens"] for row in one_per_sentence), "sentence") if one_per_sentence else None
    return [few] if few else []


def _which(clipped: Mapping[int, Sequence[int]]) -> str:
    parts = [
        f"layer {layer}: {', '.join(map(str, neurons)) if neurons else 'none'}" for layer, neurons in clipped.items()
    ]
    return f"Outlier dimensions: {'; '.join(parts)}."


def _why(found: Mapping[tuple[int, str, str], Row], layers: Sequence[int], dimensions: Sequence[Row]) -> str:
    layer = max(layers, key=lambda layer: found[layer, "none", "mean_cosine"]["value"])
    cosine, energy = (found[layer, "none", name]["value"] for name in ("mean_cosine", "mean_energy_share"))
    centred = found[layer, "none", "mean_cosine_centred"]["value"]
    share, neuron = max((row["cosine_share"], row["neuron"]) for row in dimensions if row["layer"] == layer)
    by_neuron = f", of which neuron {neuron} alone makes up {share:.0%}" if share == share else ""
    return (
        f"The mean cosine is highest in layer {layer}: {cosine:.3f}{by_neuron}. The mean vector holds {energy:.0%} of "
        f"the squared length; without it, the mean cosine is {centred:.3f}."
    )


def _does_clipping_help(
    found: Mapping[tuple[int, str, str], Row], layers: Sequence[int], clipped: Mapping[int, Sequence[int]]
) -> list[str]:
    there = [layer for layer in layers if (layer, "clip", "mean_cosine") in found]
    if not there:
        return []
    layer = max(there, key=lambda layer: found[layer, "none", "mean_cosine"]["value"])
    before, after = (found[layer, name, "mean_cosine"]["value"] for name in ("none", "clip"))
    neurons = ", ".join(map(str, clipped[layer]))
    sentence = f"Clipping {neurons} changes the mean cosine of layer {layer} from {before:.3f} to {after:.3f}"
    if random := found.get((layer, "clip_random", "mean_cosine")):
        sentence += (
            f"; clipping as many other neurons gives {random['value']:.3f}"
            f"{in_brackets(interval(random, between=' to '))}"
        )
    return [sentence + "."]


def _alike(found: Mapping[tuple[int, str, str], Row], layers: Sequence[int]) -> str:
    there = [layer for layer in layers if (layer, "none", "token_similarity") in found]
    if not there:
        return "No sentence has two tokens to compare."
    ends = [
        (layer, found[layer, "none", "token_similarity"], found[layer, "none", "relative_distance"]["value"])
        for layer in dict.fromkeys((there[0], there[-1]))
    ]
    parts = [
        f"{row['value']:.3f} in layer {layer} (distance to equal rows: {distance:.0%} of the norm)"
        for layer, row, distance in ends
    ]
    return f"Two tokens of one sentence have a mean cosine of {' and '.join(parts)}."


def _table(title: str, *headings: str) -> Any:
    from probing.runtime.terminal import plain_table

    table = plain_table(title)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _outliers_table(made: Tables) -> Any:
    """Layers by definitions; a star marks neurons found only with special tokens, a ring only without them."""
    table = _table("Outlier dimensions by five definitions (* only with special tokens, ° only without them)", "layer")
    for heading in DEFINITIONS.values():
        table.add_column(heading)
    for layer in dict.fromkeys([*layers_of(made.geometry), *(row["layer"] for row in made.outliers)]):
        here = [row for row in made.outliers if row["layer"] == layer]
        table.add_row(str(layer), *(_named([r for r in here if r["definition"] == name]) for name in DEFINITIONS))
    return table


def _named(rows: Sequence[Row]) -> str:
    by_neuron: dict[int, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["special_tokens"] == "exclude"):
        by_neuron.setdefault(row["neuron"], []).append(row)
    return ", ".join(f"{neuron}{_mark(those)} ({_amount(those[-1])})" for neuron, those in by_neuron.items())


def _mark(rows: Sequence[Row]) -> str:
    which = {row["special_tokens"] for row in rows}
    return "" if which in ({"exclude", "include"}, {""}) else "*" if which == {"include"} else "°"


def _amount(row: Row) -> str:
    if row["definition"].endswith("share"):
        return f"{row['value']:.0%}"
    return f"{row['value']:.0f}" if row["definition"] == "layer_norm" else f"{row['value']:.1f}"


def _anisotropy_table(made: Tables) -> Any:
    found = values_of(made.geometry)
    table = _table(
        "Anisotropy", "layer", "mean cosine", "one per sentence", "95% range", "centred", "energy in mean",
        "IsoScore", "largest share", "neuron",
    )  # fmt: skip
    for layer in layers_of(made.geometry):
        here = [row for row in made.dimensions if row["layer"] == layer and row["cosine_share"] == row["cosine_share"]]
        top = max(here, key=lambda row: abs(row["cosine_share"]), default=None)
        one = found.get((layer, "none", "mean_cosine_one_per_sentence"))
        table.add_row(
            str(layer),
            _number(found, layer, "none", "mean_cosine"),
            _number(found, layer, "none", "mean_cosine_one_per_sentence"),
            interval(one) if one else "",
            _number(found, layer, "none", "mean_cosine_centred"),
            _number(found, layer, "none", "mean_energy_share"),
            _number(found, layer, "none", "isoscore"),
            f"{top['cosine_share']:.0%}" if top else "",
            str(top["neuron"]) if top else "",
        )
    return table


def _number(found: Mapping[tuple[int, str, str], Row], layer: int, transform: str, measure: str) -> str:
    row = found.get((layer, transform, measure))
    return f"{row['value']:.3f}" if row else ""


def _transforms_table(geometry: Sequence[Row]) -> Any:
    found = values_of(geometry)
    there = [name for name in TRANSFORMS if any(row["transform"] == name for row in geometry)]
    headings = [label(TRANSFORMS[name], (row for row in geometry if row["transform"] == name)) for name in there]
    table = _table("Mean cosine", "layer", *headings)
    for layer in layers_of(geometry) if len(there) > 1 else ():
        table.add_row(str(layer), *(_number(found, layer, name, "mean_cosine") for name in there))
    return table


def _smoothing_table(geometry: Sequence[Row]) -> Any:
    found = values_of(geometry)
    table = _table(
        "Similarity of the tokens of one sentence, and of one word in several sentences",
        "layer", "token similarity", "clipped", "distance",
        "of the norm", "to layer before", "one word", "minus mean cosine",
    )  # fmt: skip
    for layer in layers_of(geometry):
        distance = found.get((layer, "none", "distance_to_equal_rows"))
        table.add_row(
            str(layer),
            _number(found, layer, "none", "token_similarity"),
            _number(found, layer, "clip", "token_similarity"),
            f"{distance['value']:.1f}" if distance else "",
            _number(found, layer, "none", "relative_distance"),
            _number(found, layer, "none", "distance_ratio"),
            _number(found, layer, "none", "self_similarity"),
            _number(found, layer, "none", "self_similarity_adjusted"),
        )
    return table


def most_named(outliers: Sequence[Row], n: int = SHOWN) -> list[int]:
    """Return the neurons named most often over layers, definitions and token sets; ties by lower index."""
    counts: dict[int, int] = {}
    for row in outliers:
        counts[row["neuron"]] = counts.get(row["neuron"], 0) + 1
    return sorted(counts, key=lambda neuron: (-counts[neuron], neuron))[:n]


def _parameters_table(made: Tables) -> Any:
    """Each outlier's rank by magnitude in the parameters that have a value for each neuron."""
    table = _table(
        "Outliers in the parameters: rank by magnitude (1 is the farthest from 0)", "neuron", "position 0",
        "median position", "first in", "mean token", "best gain", "in first 3", "best bias", "in first 3",
    )  # fmt: skip
    for neuron in most_named(made.outliers) if made.parameters else ():
        here = [row for row in made.parameters if row["neuron"] == neuron]
        positions = [row for row in here if row["parameter"] == "position" and row.get("position") is not None]
        ranks = sorted(row["absolute_rank"] for row in positions)
        first = next((row for row in positions if row["position"] == 0), None)
        token = next((row for row in here if row["parameter"] == "mean_token"), None)
        table.add_row(
            str(neuron),
            str(first["absolute_rank"]) if first else "n/a",
            str(ranks[len(ranks) // 2]) if ranks else "n/a",
            f"{sum(rank == 1 for rank in ranks)} of {len(ranks)}" if ranks else "n/a",
            str(token["absolute_rank"]) if token else "n/a",
            *(cell for kind in ("gain", "bias") for cell in _best([r for r in here if r["parameter"] == kind])),
        )
    return table


def _best(rows: Sequence[Row]) -> tuple[str, str]:
    """Return the best rank over LayerNorms, and in how many of them the rank is among the first three."""
    ranks = [row["absolute_rank"] for row in rows]
    return (str(min(ranks)), f"{sum(rank <= 3 for rank in ranks)} of {len(ranks)}") if ranks else ("n/a", "n/a")


def _explained_table(made: Tables) -> Any:
    """Partial R^2 of each source with its R^2 alone in parentheses, and the joint R^2; other neurons as a mean."""
    table = _table(
        f"What explains a layer's first {EXPLAINED} outliers: partial R squared (R squared alone)",
        "layer",
        "neuron",
        *SOURCES,
    )
    which = "include" if any(row["special_tokens"] == "include" for row in made.explained) else "exclude"
    here = [row for row in made.explained if row["special_tokens"] == which]
    for layer in sorted({row["layer"] for row in here}):
        of_layer = [row for row in here if row["layer"] == layer]
        outliers = [row for row in of_layer if row["kind"] == "outlier"]
        there = {row["neuron"] for row in outliers}
        for neuron in most_named([row for row in made.outliers if row["neuron"] in there], EXPLAINED):
            table.add_row(str(layer), str(neuron), *(_shares(outliers, source, neuron) for source in SOURCES))
        others = [row for row in of_layer if row["kind"] == "random"]
        if others:
            table.add_row(str(layer), "others", *(_shares(others, source) for source in SOURCES), end_section=True)
    return table


def _shares(rows: Sequence[Row], source: str, neuron: int | None = None) -> str:
    """Return the mean shares of a source over neurons, or those of one."""
    those = [row for row in rows if row["source"] == source and neuron in (None, row["neuron"])]
    if not those:
        return ""
    partial, alone = (sum(row[name] for row in those) / len(those) for name in ("partial", "alone"))
    return f"{alone:.2f}" if source == "all" else f"{partial:.2f} ({alone:.2f})"
