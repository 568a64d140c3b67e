"""What `cloze` found, as it is written."""

from __future__ import annotations

from probing.diagnostics.cloze.figures import write_figures
from probing.diagnostics.cloze.predictor import Found
from probing.models import ModelSource
from probing.runs.call import Measured


def measured(found: Found, model: ModelSource) -> Measured:
    """Return the tables with what belongs to them.

    Args:
        found: What was found.
        model: The model's files.
    """
    results = {
        "model": {"name": model.name, "fingerprint": model.fingerprint()},
        **{name: {"fingerprint": print_} for name, print_ in found.fingerprints.items()},
        "left_out": dict(found.left_out),
        "n_tokens": found.n_tokens,
    }
    tables, name = found.tables, model.short_name
    return Measured(tables, results, draw=lambda folder, formats: write_figures(folder, tables, name, formats))
