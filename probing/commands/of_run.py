"""What a command reads because of a finished run of `fit`: its model, its corpus and its split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.errors import UserError
from probing.models import site_of
from probing.runs.run import Run


def read_as_run(
    run: Run, typed: str, config: dict[str, Any], usual: Mapping[str, Any], options: Sequence[str],
    further: Mapping[str, bool] | None = None,
) -> None:  # fmt: skip
    """Note in a command's configuration what is read because of a run, whose hidden states are read again.

    Args:
        run: The run.
        typed: The option that names it, with its value, for messages.
        config: The resolved configuration, which is changed.
        usual: The defaults of the options.
        options: The options whose values are those of the run.
        further: What else is expected of the run, and whether it is so.

    Raises:
        UserError: If the run is not of hidden states as they are, or an option contradicts it.
    """
    made = run.config
    wrong = {
        **(further or {}),
        "`--site residual`": site_of(made) == "residual",
        "`--dtype float32`": made["dtype"] == "float32",
        "no `--transform`": run.transform == "none",
        "a corpus that is still there": "-" not in (made["corpus"], made["test_corpus"]),
    }
    if lacking := [what for what, holds in wrong.items() if not holds]:
        raise UserError(f"`{typed}`: expected a run of `fit` with {lacking[0]}; give another run, or none.")
    for option in options:
        if config[option] not in (usual[option], made[option]):
            raise UserError(
                f"`--{option} {config[option]}`: with `{typed}`, the run's own is read, which is {made[option]}; leave "
                "one of the two out."
            )
        config[option] = made[option]
