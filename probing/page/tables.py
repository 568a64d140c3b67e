"""Plain tables of a page."""

from __future__ import annotations

from probing.page.sources import Subject
from probing.results.cells import interval
from probing.results.markup import Html, table
from probing.tables.columns import R2, controls_of


def accuracy_table(subject: Subject, caption: str) -> Html:
    """Return a run's accuracy by layer with its controls; of numbers, R²."""
    if subject.score is R2:
        return _r2_table(subject, caption)
    rows, controls = subject.run.accuracy, controls_of(subject.run.accuracy)
    optional = {"within 1": ("within_one", ".3f"), "error": ("mean_absolute_error", ".2f"),
                "selectivity": ("selectivity", ".3f"), "compression": ("compression", ".1f")}  # fmt: skip
    shown = {heading: how for heading, how in optional.items() if how[0] in rows[0]}
    beside = {"constant": "prior_cross_entropy", "training": "train_cross_entropy"}
    nats = {heading: column for heading, column in beside.items() if column in rows[0]}
    head = ["layer", "accuracy", "95% range", *controls.values(), *shown, "nats", *nats, "gap"]
    body = [
        [
            row["layer"],
            f"{row['accuracy']:.3f}",
            interval(row, "accuracy", "–"),
            *(f"{row[f'{name}_accuracy']:.3f}" for name in controls),
            *(format(row[column], form) for column, form in shown.values()),
            f"{row['cross_entropy']:.3f}",
            *(f"{row[column]:.3f}" for column in nats.values()),
            f"{row['optimality_gap']:.1e}",
        ]
        for row in rows
    ]
    return table(head, body, caption)


def _r2_table(subject: Subject, caption: str) -> Html:
    rows, controls = subject.run.accuracy, controls_of(subject.run.accuracy)
    head = ["layer", "R²", "95% range", *controls.values(), "in training", "error", "rms error", "constant", "gradient"]
    body = [
        [
            row["layer"],
            f"{row['r2']:.3f}",
            interval(row, "r2", "–"),
            *(f"{row[f'{name}_r2']:.3f}" for name in controls),
            f"{row['train_r2']:.3f}",
            f"{row['mean_absolute_error']:.3g}",
            f"{row['root_mean_squared_error']:.3g}",
            f"{row['constant_root_mean_squared_error']:.3g}",
            f"{row['relative_gradient']:.1e}",
        ]
        for row in rows
    ]
    return table(head, body, caption)
