"""`--trainer.logger`: the loggers that a run can have beside W&B, by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from probing.errors import did_you_mean

# By name: the packages without which it does not work, and which the extra of the same name installs.
LOGGERS: Mapping[str, tuple[str, ...]] = {
    "csv": (),
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "pandas", "sqlalchemy", "alembic"),
}


def logger_names(trainer: Mapping[str, Any]) -> list[str]:
    """Return the loggers that the Trainer's arguments name, in the order of `LOGGERS`; `false` names none."""
    named = _typed(trainer.get("logger"))
    return [name for name in LOGGERS if name in named]


def without_logger(trainer: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the Trainer's other arguments."""
    return {name: value for name, value in (trainer or {}).items() if name != "logger"}


def logger_problems(trainer: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with `--trainer.logger`: an unknown name, or a package that is not installed."""
    value = trainer.get("logger")
    problems = []
    for name in _typed(value):
        if name in LOGGERS:
            missing = [package for package in LOGGERS[name] if find_spec(package) is None]
            problems += [
                f"`--trainer.logger {name}` needs {', '.join(missing)}, which is not installed; "
                f"`pip install 'neuron-probing[{name}]'`"
            ][: len(missing)]
        else:
            problems.append(
                f"`--trainer.logger {name}`: expected some of {', '.join(LOGGERS)}, separated by commas"
                f"{did_you_mean(name, LOGGERS)}; W&B is set by `--wandb.mode`"
            )
    return problems


def _typed(value: Any) -> list[str]:
    if value is None or value is False or value == "":
        return []
    names = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    return list(dict.fromkeys(str(name).strip() if not isinstance(name, bool) else str(name).lower() for name in names))
