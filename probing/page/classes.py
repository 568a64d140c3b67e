"""The classes of a run on a page: how well each is read in each layer, and a map of what each is taken for."""

from __future__ import annotations

from collections.abc import Sequence

from probing.page.neurons import is_numeric, shaded_map
from probing.page.sources import Subject
from probing.results.markup import Html, as_in_terminal, element
from probing.results.schema import Row
from probing.results.shown import shortened
from probing.tables.classes import classes_table, confusion_shares

# Width of all classes together in pixels, unless cells would become too small or too large.
WIDE, LEAST, MOST = 420, 3, 22
# Pixels from one name of a class to the next.
APART = 18
# Most characters of the name of a class beside the map; the table has the whole name.
LONGEST = 14
# Most classes in the table of a layer.
IN_TABLE = 60


def classes_section(subject: Subject, number: int) -> Html | None:
    """Return the classes of each layer, those of the leading one open; nothing for a run without their scores.

    Args:
        subject: The run.
        number: Index of the run on the page, from 0.
    """
    scores, confusions = subject.run.class_scores, subject.run.confusions
    if not scores or not confusions:
        return None
    parts, are_names = [], bool(subject.run.scores_of(subject.leading))
    for layer in subject.layers:
        own = [[row for row in rows if row["layer"] == layer] for rows in (scores, confusions)]
        table = [as_in_terminal(classes_table(own[0], IN_TABLE))] if are_names else []
        summary = element("summary", f"Layer {layer}: what the probe takes each class for")
        parts.append(element("details", summary, *table, _map(subject, *own), open=layer == subject.leading))
    return element("section", element("h2", f"Classes of {subject.label}"), *parts, id=f"classes-{number}")


def _map(subject: Subject, scores: Sequence[Row], confusions: Sequence[Row]) -> Html:
    """Return the share of each class's test tokens that are taken for each class, as shades."""
    labels = [row["class"] for row in scores]
    cell = max(LEAST, min(MOST, WIDE // len(labels)))
    every = -(-APART // cell) if not is_numeric(labels) else -(-2 * APART // cell)
    what = "share of each class that is taken for each class"
    about = f"{subject.label}, layer {scores[0]['layer']}: {what}"
    ticks = {i: shortened(label, LONGEST) for i, label in enumerate(labels) if i % every == 0}
    names = [ticks.get(i, "") for i in range(len(labels))]
    shown = shaded_map(confusion_shares(scores, confusions), (cell, cell), names, ticks, about, "map confusions")
    caption = "Rows: the class. Columns: what it is taken for. Shades: shares of the class in the test part."
    return element("figure", element("figcaption", caption), shown)
