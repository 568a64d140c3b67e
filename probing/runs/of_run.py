"""What a command takes from a finished run of `fit`: its model, its corpus, its split, and how it was tracked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from probing.cli.options import WandbOptions
from probing.errors import UserError
from probing.models import site_of
from probing.runs.places import TEXTS, is_model_of, model_of, texts_of
from probing.runs.run import Run
from probing.tables.columns import has_intercept
from probing.tracking import least, resolve_mode


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
