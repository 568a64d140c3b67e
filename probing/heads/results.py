"""Write what a survey of heads found into a run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probing.cache import ActivationStore, Request
from probing.cache.word_counts import count_words
from probing.heads.rows import Rows
from probing.heads.subject import Subject
from probing.runtime.versions import versions
from probing.tables.columns import without_nan
from probing.tables.heads import of_all_maps

KIND = "survey of attention heads"


def write_summary(
    folder: Path,
    tables: Mapping[str, Rows],
    subject: Subject,
    store: ActivationStore,
    parts: Sequence[str],
    left_out: Mapping[str, str],
    timings: Mapping[str, float],
) -> Path:
    """Write `results.json`, the results for programs, and return its path.

    Args:
        folder: The run's folder.
        tables: Rows by the name of their table.
        subject: Model and corpus.
        store: An entry of the cache, which tells of which model it was made.
        parts: Names of the parts that were measured.
        left_out: For each part that was not, what it lacks.
        timings: Times in seconds.
    """
    own, tokens = subject.heads, subject.tokens
    origin = {name: store.header[name] for name in ("model", "revision", "versions")}
    counts = count_words(tokens, subject.request.corpus)
    words = counts.as_json() if counts else {}
    types = {"special tokens": subject.special, **subject.types}
    summary = {
        "kind": KIND,
        "versions": versions(),
        "cache": {
            **origin,
            "corpus": subject.request.corpus.name,
            "key": subject.request.key(),
            "n_truncated": tokens.n_truncated,
            **words,
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
        "timings": dict(timings),
        "attention_layers": [without_nan(row) for row in tables.get("attention_layers", ())],
    }
    path = folder / "results.json"
    path.write_text(json.dumps(summary, indent=2), encoding="utf-8")
    return path


def _origin(request: Request) -> dict[str, Any]:
    return {"model": request.source.name, "key": request.key()}
