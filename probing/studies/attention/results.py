"""Write what a survey of heads found into a run's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.cache import Request
from probing.cache.tokens import count_words
from probing.heads.example_maps import write_examples
from probing.heads.example_sentences import examples_of
from probing.heads.rows import Rows
from probing.heads.subject import Subject
from probing.results.schema import without_nan
from probing.runs.call import Measured
from probing.studies.attention.figures import write_figures
from probing.tables.heads import of_all_maps


def measured(
    tables: Mapping[str, Rows], subject: Subject, stores: Mapping[str, Any], parts: Sequence[str],
    left_out: Mapping[str, str],
) -> Measured:  # fmt: skip
    """Return the tables with what belongs to them.

    Args:
        tables: Rows by the name of their table.
        subject: Model and corpus.
        stores: The sums of each measure, which tell of which model they were made.
        parts: Names of the parts that were measured.
        left_out: For each part that was not, what it lacks.
    """
    examples = examples_of(subject, stores)
    own, tokens = subject.heads, subject.tokens
    origin = {name: subject.entry(stores).header[name] for name in ("model", "revision", "versions")}
    counts = count_words(tokens, subject.request.corpus)
    words = counts.as_json() if counts else {}
    types = {"special tokens": subject.special, **subject.types}
    results = {
        "cache": {
            **origin,
            "corpus": subject.request.corpus.name,
            "key": subject.request.key(),
            "n_truncated": tokens.n_truncated,
            **words,
            **subject.request.corpus.as_read,
        },
        "parts": list(parts),
        "left_out": dict(left_out),
        "model": {"n_layers": own.n_layers, "n_heads": own.n_heads, "is_causal": own.is_causal},
        "unit": subject.request.corpus.unit,
        **({"against": _origin(subject.asked.against.request)} if subject.asked.against else {}),
        "n_sentences": int((subject.lengths > 0).sum()),
        "n_tokens": int(subject.measured.sum()),
        "token_types": {
            name: {"n_tokens": int(of.sum()), "share": float(of[subject.measured].mean())}
            for name, of in types.items()
            if of.any()
        },
        "classes": {name: without_nan(row) for name, row in of_all_maps(tables).items()},
    }
    against = subject.asked.against
    models = [one.source.short_name for one in (subject.request, *([against.request] if against else []))]
    return Measured(
        tables,
        results,
        _curves(tables),
        draw=lambda folder, formats: write_figures(folder, tables, models, formats, examples),
        write=lambda folder: [write_examples(folder, examples)] if examples else [],
    )


def _curves(tables: Mapping[str, Rows]) -> list[dict[str, Any]]:
    """Return a row per layer with a column for each measure and its interval, for W&B's curves."""
    by_layer: dict[int, dict[str, Any]] = {}
    for row in tables.get("attention_layers", ()):
        name = f"{row['measure']} {row.get('to', '')}".strip().replace(" ", "_")
        point = by_layer.setdefault(row["layer"], {"layer": row["layer"]})
        if row["measure"] != "column_max" and row.get("to", "") in ("", "special tokens"):
            point |= {name: row["value"], f"{name}_low": row["low"], f"{name}_high": row["high"]}
    for row in tables.get("change", ()):
        if row["of"] == "same" and row["layer"] is not None and row["head"] is None:
            name, point = f"change_{row['measure']}", by_layer.setdefault(row["layer"], {"layer": row["layer"]})
            point |= {name: row["value"], f"{name}_low": row["low"], f"{name}_high": row["high"]}
    return [by_layer[layer] for layer in sorted(by_layer)]


def _origin(request: Request) -> dict[str, Any]:
    return {"model": request.source.name, "key": request.key()}
