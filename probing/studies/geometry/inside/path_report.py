"""The report of `geometry --path`: where on the residual stream outliers are, as a table, sentences and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from probing.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE
from probing.results.schema import in_brackets
from probing.statistics.moments import MEAN_DEVIATIONS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Row = Mapping[str, Any]

# Words for the sites of the embeddings, and of blocks.
SITES = {
    "word": "the word embedding", "position": "the position embedding", "type": "the type embedding",
    "sum": "the sum of the embeddings", "norm": "the norm of the embeddings", "embeddings": "the embeddings",
    "attention": "the attention output", "sum_attention": "the sum after attention", "norm_1": "the first norm",
    "feed_forward": "the FFN output", "sum_feed_forward": "the sum after the FFN", "norm_2": "the second norm",
    "final_norm": "the final norm",
}  # fmt: skip
_SHORT = {
    "sum_attention": "sum 1", "sum_feed_forward": "sum 2", "feed_forward": "FFN", "norm_1": "norm 1",
    "norm_2": "norm 2", "final_norm": "final norm",
}  # fmt: skip
TOKENS = {"first": "first token", "words": "words"}
# Most neurons that sentences and figures are about.
SHOWN = 5
_LOOKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PURPLE, "D"), ("black", "v"))


def followed(path: Sequence[Row]) -> list[int]:
    """Return the outliers to show: those of the first position first, then by their largest distance anywhere."""
    reach: dict[int, tuple[bool, float]] = {}
    for row in path:
        if row["kind"] != "random":
            before = reach.get(row["neuron"], (False, 0.0))[1]
            reach[row["neuron"]] = row["kind"] != "layers", max(before, abs(row["deviations"]))
    return sorted(reach, key=lambda neuron: (not reach[neuron][0], -reach[neuron][1], neuron))[:SHOWN]


@dataclass(frozen=True)
class Course:
    """Where on the residual stream a neuron is more than 5 sd from the others, on one kind of tokens.

    Args:
        n_sites: Number of places on the stream.
        beyond: The places where the neuron is so far from the others, in order.
        n_between: Number of places from the first to the last of these.
        top: Where it is farthest.
        end: The place after the last of `beyond`; None if there is none.
    """

    n_sites: int
    beyond: list[Row]
    n_between: int
    top: Row
    end: Row | None


def course(path: Sequence[Row], neuron: int, tokens: str) -> Course | None:
    """Return the course of a neuron; None if there are no such tokens."""
    stream = [row for row in path if (row["neuron"], row["tokens"], row["term"]) == (neuron, tokens, "no")]
    if not stream:
        return None
    beyond = [i for i, row in enumerate(stream) if abs(row["deviations"]) > MEAN_DEVIATIONS]
    last = beyond[-1] if beyond else len(stream)
    return Course(
        len(stream), [stream[i] for i in beyond], last - beyond[0] + 1 if beyond else 0,
        max(stream, key=lambda row: abs(row["deviations"])), stream[last + 1] if last + 1 < len(stream) else None,
    )  # fmt: skip


def path_table(path: Sequence[Row]) -> Any:
    """Return where outliers are on the residual stream, on the first token and on words, as a rich table."""
    from probing.runtime.terminal import plain_table

    table = plain_table(f"Outliers on the residual stream: where they are more than {MEAN_DEVIATIONS:g} sd from others")
    for heading in ("neuron", "tokens", "first position", "places", "from", "to", "farthest", "below at"):
        table.add_column(heading, justify="right")
    for neuron in followed(path):
        for tokens, words in TOKENS.items():
            if found := course(path, neuron, tokens):
                ends = (found.beyond[0], found.beyond[-1], found.end) if found.beyond else (None, None, None)
                first, last, end = (_short(row) if row else "" for row in ends)
                farthest = f"{found.top['deviations']:+.1f} at {_short(found.top)}"
                places = f"{len(found.beyond)} of {found.n_sites}"
                row = _of_row(path, neuron) if tokens == "first" else ""
                table.add_row(str(neuron), words, row, places, first, last, farthest, end)
    return table


def _steps(path: Sequence[Row]) -> list[list[Row]]:
    steps: dict[int, list[Row]] = {}
    for row in path:
        steps.setdefault(row["step"], []).append(row)
    return [steps[step] for step in sorted(steps)]


def _short(row: Row) -> str:
    """Return the number of the block with a short name of the site."""
    name = _SHORT.get(str(row["site"]), str(row["site"]))
    return f"{row['layer']} {name}" if row["layer"] else name


def path_conclusions(path: Sequence[Row]) -> list[str]:
    """Return a sentence for each outlier that is followed, and one on random neurons."""
    sentences = []
    groups = {"the first token": "first", "words": "words"}
    for neuron in followed(path):
        parts = [
            f"on {words} {_said(found)}" for words, name in groups.items() if (found := course(path, neuron, name))
        ]
        row = _of_row(path, neuron)
        start = f"Neuron {neuron}{in_brackets(row and f'{row} sd in the embedding of the first position')}"
        sentences.append(f"{start}: {'; '.join(parts)}.")
    random = [abs(row["deviations"]) for row in path if row["kind"] == "random" and row["term"] == "no"]
    if random:
        n = len({row["neuron"] for row in path if row["kind"] == "random"})
        sentences.append(f"{n} random neurons are at most {max(random):.1f} sd from the others anywhere on the stream.")
    return sentences


def _of_row(path: Sequence[Row], neuron: int) -> str:
    """Return how far a neuron is from the others in the position embedding of the first token; empty without one."""
    at = (neuron, "position", "first")
    found = [row["deviations"] for row in path if (row["neuron"], row["site"], row["tokens"]) == at]
    return f"{found[0]:+.1f}" if found else ""


def _said(found: Course) -> str:
    """Return a course as a clause of a sentence."""
    top = found.top["deviations"]
    if not found.beyond:
        return f"it is nowhere beyond 5 sd (at most {top:+.1f}, at {_site(found.top)})"
    first, last = found.beyond[0], found.beyond[-1]
    where = f"at {_site(first)}" if found.n_between == 1 else f"from {_site(first)} to {_site(last)}"
    if len(found.beyond) < found.n_between:
        where = f"at {len(found.beyond)} of the {found.n_between} places {where}"
    said = f"it is beyond 5 sd {where} (up to {top:+.1f})"
    if found.end is not None:
        said += f" and falls below at {_site(found.end)} ({found.end['deviations']:+.1f})"
    return said


def _site(row: Row) -> str:
    return SITES[row["site"]] + (f" of block {row['layer']}" if row["layer"] and row["site"] != "final_norm" else "")


def draw_path(figure: Figure, path: Sequence[Row], model: str) -> None:
    """Draw the distance of outliers along the residual stream, on the first token and on words."""
    neurons = followed(path)
    figure.set_size_inches(9.6, 5.2)
    for axes, (tokens, words) in zip(figure.subplots(2, 1, sharex=True, sharey=True), TOKENS.items(), strict=True):
        here = [row for row in path if row["tokens"] == tokens]
        stream = sorted({row["step"] for row in here if row["term"] == "no"})
        random = [[abs(r["deviations"]) for r in here if (r["step"], r["kind"]) == (k, "random")] for k in stream]
        if all(random) and stream:
            reach = [max(values) for values in random]
            axes.fill_between(stream, [-r for r in reach], reach, color="#d9d9d9", lw=0, label="random neurons")
        for (colour, mark), neuron in zip(_LOOKS, neurons, strict=False):
            rows = [row for row in here if row["neuron"] == neuron]
            for term, look in (("no", {"ls": "-", "mfc": colour}), ("yes", {"ls": "", "mfc": "white"})):
                those = [row for row in rows if row["term"] == term]
                axes.plot(
                    [row["step"] for row in those], [row["deviations"] for row in those], marker=mark, ms=4, c=colour,
                    lw=1, label=f"neuron {neuron}" if term == "no" else None, **look,
                )  # fmt: skip
        for limit in (-MEAN_DEVIATIONS, MEAN_DEVIATIONS):
            axes.axhline(limit, color="black", lw=0.7, ls="--")
        axes.axhline(0, color=GREY, lw=0.5)
        axes.set_ylabel("sd of all neurons")
        axes.set_title(words, fontsize=9)
        _name_sites(axes, path)
    figure.axes[0].tick_params(labelbottom=False)
    figure.suptitle(
        f"{model}: outliers along the residual stream (open: a term that is added)", x=0.01, ha="left", fontsize=10
    )
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center")


def _name_sites(axes: Axes, path: Sequence[Row]) -> None:
    """Name each site below the axis, and separate blocks by lines."""
    sites = [rows[0] for rows in _steps(path)]
    crowded = len(sites) > 60
    shown = [i for i in range(len(sites)) if not crowded or i == 0 or sites[i]["layer"] != sites[i - 1]["layer"]]
    axes.set_xticks([sites[i]["step"] for i in shown], [_short(sites[i]) for i in shown], rotation=90, fontsize=6)
    for before, row in pairwise(sites):
        if before["layer"] != row["layer"]:
            axes.axvline(row["step"] - 0.5, color=GREY, lw=0.4)
