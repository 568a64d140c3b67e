"""`load_run`, which reads the results of any command from their folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from probing.cli.options import WandbOptions
from probing.errors import UserError
from probing.models import site_of
from probing.runs.checks import kind_of, reading
from probing.runs.places import TEXTS, is_model_of, model_of, texts_of
from probing.runs.rankings import read_rankings
from probing.runs.run import Run, load_fit, of_text, read_run
from probing.runs.study import study_names, study_of_kind
from probing.tables.columns import has_intercept
from probing.tracking import least, resolve_mode


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


# --------------------------------------------------------------------------------------------------------------------
# What a command takes from a finished run of `fit`: its model, its corpus, its split, and how it was tracked.
# --------------------------------------------------------------------------------------------------------------------


def read_as_run(
    run: Run, typed: str, config: dict[str, Any], usual: Mapping[str, Any], options: Sequence[str],
    further: Mapping[str, bool] | None = None,
) -> None:  # fmt: skip
    """Set the options of a command that must be those of a run, because the run's hidden states are read again.

    A text or a model that is named is where that of the run is now; they may also be found without.

    Args:
        run: The run.
        typed: The option that names it, with its value, for messages.
        config: The resolved configuration, which is changed.
        usual: The defaults of the options.
        options: The options whose values are those of the run.
        further: What else is expected of the run, and whether it is so.

    Raises:
        UserError: If the run is not of hidden states as they are, an option contradicts it, or its text or its model
            has changed or is gone.
    """
    made = run.config
    wrong = {
        **(further or {}),
        "`--site residual`": site_of(made) == "residual",
        "`--dtype float32`": made["dtype"] == "float32",
        "no `--transform`": run.transform == "none",
        "no `--probe.bias true`": not has_intercept(made),
    }
    if lacking := [what for what, holds in wrong.items() if not holds]:
        raise UserError(f"`{typed}`: expected a run of `fit` with {lacking[0]}; give another run, or none.")
    own = {option: config[option] for option in options if config[option] not in (usual[option], made[option])}
    run.moved = [own.pop(option) for option in TEXTS if option in own]
    model = own.pop("model") if is_model_of(run, own.get("model")) else None
    for option, value in own.items():
        raise UserError(
            f"`--{option} {value}`: with `{typed}`, the run's own is read, which is {made[option]}; leave one of the "
            "two out."
        )
    config |= {option: made[option] for option in options}
    config["model"] = model or model_of(run).name
    sources = zip(TEXTS, texts_of(run, run.moved).sources, strict=False)  # without a test corpus, one less
    config |= {option: source for option, source in sources if option in options}


def tracked_like(run: Run, options: WandbOptions) -> WandbOptions:
    """Return how results that are added to a run are tracked: with the mode `auto`, no further than the run itself.

    A run that was made with the mode `offline` or `disabled` is thereby not uploaded in part. The variable `WANDB_MODE`
    takes precedence; what is switched off stays so.

    Args:
        run: The run.
        options: The options of the command.
    """
    made = run.config.get("wandb", {}).get("mode")
    is_open = options.mode == "auto" and not os.environ.get("WANDB_MODE")
    if not is_open or made not in ("offline", "disabled"):
        return options
    return replace(options, mode=least([made, resolve_mode("auto")]))
