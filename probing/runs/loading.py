"""`load_run`, which reads the results of any command from their folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from probing.errors import UserError
from probing.runs.checks import kind_of, reading
from probing.runs.rankings import read_rankings
from probing.runs.registry import study_names, study_of_kind
from probing.runs.run import Run, load_fit, of_text, read_run


def writers() -> str:
    """Return the commands whose folders `load_run` reads, as a message names them."""
    *first, last = (f"`{name}`" for name in [*study_names()[:1], "probe", *study_names()[1:]])
    return f"{', '.join(first)} or {last}"


def load_run(folder: str | Path, corpus: Any = None) -> Any:
    """Read the finished results of any command from their folder.

    Args:
        folder: The folder of a run, a comparison, a sweep, or another command's results; for those of `rank`, the
            folder `rankings` of the run.
        corpus: Of a run of `fit`, its text, if that has moved and is to be read again: a path, or a list of paths for a
            corpus and a test corpus.

    Returns:
        What the command returns as a function: a `Result`, of `fit` and `probe` a `Run`. It has `folder`, `config` and
        `results`, and every CSV file of the folder as a table of that name.

    Raises:
        UserError: If there are no finished results in the folder, or they are damaged, or the text is another than the
            run read.
    """
    if corpus is not None:
        return _with_text(load_fit(folder), corpus)
    folder = Path(folder)
    if folder.name == "rankings" and os.path.isdir(folder) and os.path.isfile(folder.parent / "results.json"):
        with reading(folder):
            return read_rankings(folder, read_run(folder.parent))
    kind = kind_of(folder, writers())
    with reading(folder):
        if kind is None:
            return read_run(folder)
        if (study := study_of_kind(kind)) is not None:
            return study.read(folder)
    raise UserError(f"`{folder}` holds a {kind}, which this version cannot read; update it.")


def _with_text(run: Run, corpus: Any) -> Run:
    """Return a run that knows where its text is now.

    Raises:
        UserError: If the text is another than the run read.
    """
    from probing.runs.places import given_texts, texts_of

    run.moved = given_texts(corpus)
    texts_of(of_text(run), run.moved)
    return run


def load_fit_of_classes(folder: str | Path) -> Run:
    """Read a finished run whose model can read its corpus again, and whose probes predict classes.

    Raises:
        UserError: If there is no finished run in the folder, if it was made from arrays, or if it predicts numbers.
    """
    run = of_text(load_fit(folder))
    if run.is_of_numbers:
        raise UserError(
            f"`{folder}` predicts numbers, and `rank` and `compare` take runs that predict classes; its own ranking is "
            "in neurons.csv."
        )
    return run
