"""Lightning's Trainer: which of its arguments are accepted, and their defaults."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytorch_lightning as pl
import torch

from probing.errors import UserError, as_clause, did_you_mean, out_of_range, refuse
from probing.runtime.arithmetic import float64_device
from probing.runtime.logger_names import logger_problems, without_logger
from probing.runtime.processes import end_together, launched

# Arguments of Lightning's Trainer that both solvers honour. Adam, which trains on mini-batches, honours further ones.
HONOURED = {
    "accelerator", "strategy", "devices", "num_nodes", "max_epochs", "max_time", "deterministic", "benchmark",
    "enable_progress_bar", "enable_checkpointing", "detect_anomaly", "logger",
}  # fmt: skip
_HONOURED_BY_ADAM = HONOURED | {
    "precision", "min_epochs", "gradient_clip_val", "gradient_clip_algorithm", "accumulate_grad_batches",
    "limit_train_batches", "limit_val_batches", "check_val_every_n_epoch",
}  # fmt: skip
# What `pretrain` and `finetune` honour, whose steps are counted by options of their own.
_HONOURED_BY_PRETRAINING = {
    "accelerator", "strategy", "devices", "num_nodes", "deterministic", "benchmark", "enable_progress_bar",
    "detect_anomaly", "precision", "gradient_clip_val", "gradient_clip_algorithm", "accumulate_grad_batches", "logger",
}  # fmt: skip
# Arguments that are options of the commands that train models, by what they are for.
_INSTEAD = {
    "pretraining": {"max_epochs": "--training.steps", "max_steps": "--training.steps"},
    "tuning": {"max_epochs": "--tuning.epochs"},
}
_YES_OR_NO = {"deterministic", "benchmark", "enable_progress_bar", "enable_checkpointing", "detect_anomaly"}
# Integer options and their least values; -1 epochs means no limit.
_AT_LEAST = {
    "max_epochs": -1, "min_epochs": 0, "limit_train_batches": 1, "limit_val_batches": 0, "accumulate_grad_batches": 1,
    "check_val_every_n_epoch": 1,
}  # fmt: skip
# Strategies under which the trained weights are available in the command's own process.
STRATEGIES = ("auto", "ddp")
# Set by a Trainer that is to be deterministic.
_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


def check_trainer_options(options: Mapping[str, Any], solver: str) -> None:
    """Check the Trainer's arguments before any work.

    Args:
        options: Arguments of the Trainer, by name.
        solver: What they are for: `lbfgs` or `adam`, which honours more arguments, `pretraining` or `tuning`.

    Raises:
        UserError: If one is unknown, cannot be honoured by the solver, or has a value that Lightning refuses.
    """
    known = set(inspect.signature(pl.Trainer).parameters)
    of_models = dict.fromkeys(_INSTEAD, _HONOURED_BY_PRETRAINING)
    honoured = {"adam": _HONOURED_BY_ADAM, **of_models}.get(solver, HONOURED)
    where, instead = f"in {solver}" if solver in _INSTEAD else f"with the solver {solver}", _INSTEAD.get(solver, {})
    problems = [
        f"`--trainer.{name}` is not an argument of Lightning's Trainer{did_you_mean(str(name), honoured, '--trainer.')}"
        if name not in known
        else f"`--trainer.{name}` cannot be used {where}" + (f"; give `{instead[name]}`" if name in instead else "")
        for name in options
        if name not in honoured
    ]
    if problems:
        problems.append(f"the arguments that can be set are {', '.join(sorted(honoured))}")
    # Values that Lightning would refuse, or fail on, only once it trains.
    for name, least in _AT_LEAST.items():
        if (value := options.get(name)) is None:
            continue
        if isinstance(value, int) or (name.startswith("limit") and isinstance(value, float) and value.is_integer()):
            problems += out_of_range(f"trainer.{name}", value, least)
        else:
            problems.append(f"`--trainer.{name} {value}`: expected a whole number")
    if isinstance(clip := options.get("gradient_clip_val"), int | float):
        problems += out_of_range("trainer.gradient_clip_val", clip, 0)
    for name in _YES_OR_NO & set(options):
        if not (isinstance(options[name], bool) or (name == "deterministic" and options[name] == "warn")):
            problems.append(f"`--trainer.{name} {options[name]}`: expected true or false")
    if options.get("max_epochs") == 0:
        problems.append(
            "`--trainer.max_epochs 0` allows no pass over the tokens: expected at least 1, or -1 for no limit"
        )
    if not isinstance(max_time := options.get("max_time", {}), str | Mapping | timedelta):
        problems.append(f"`--trainer.max_time {max_time}`: expected DD:HH:MM:SS")
    refuse(problems)
    refuse([*_of_the_other_package(options), *logger_problems(options), *_rank_problems(options)])
    options = without_logger(options)
    # One by one, so that the message names the argument that is refused; then all, which may contradict each other.
    for tried in [*({name: value} for name, value in options.items()), options]:
        try:
            trainer = build_trainer(tried, logger=False, callbacks=(), folder=None)
        except Exception as error:  # Lightning raises many types
            typed = " ".join(f"--trainer.{name} {value}" for name, value in tried.items())
            raise UserError(f"`{typed}`: Lightning refuses it ({as_clause(error)}).") from None
    if trainer.precision == "64-true" and float64_device(device := trainer.strategy.root_device) != device:
        raise UserError(
            f"`--trainer.precision {options['precision']}`: {device.type} has no float64; leave the option out, or "
            "give `--trainer.accelerator cpu`."
        )
    if "max_time" in options and (pl.callbacks.Timer(options["max_time"]).time_remaining() or 0) <= 0:
        raise UserError(f"`--trainer.max_time {options['max_time']}` leaves no time to train: expected DD:HH:MM:SS.")


def _of_the_other_package(options: Mapping[str, Any]) -> list[str]:
    """Return which values are objects of `lightning`, whose classes `pytorch_lightning` does not know as its own."""
    return [
        f"`trainer['{name}']` is of the package lightning, and its Trainer is not the one used here: import "
        f"{type(value).__name__} from pytorch_lightning instead"
        for name, value in options.items()
        if type(value).__module__.partition(".")[0] == "lightning"
    ]


def _rank_problems(options: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the number of processes and with the strategy."""
    problems = []
    strategy = options.get("strategy", "auto")
    if isinstance(strategy, str) and strategy not in STRATEGIES:  # a strategy object is accepted unchecked
        problems.append(f"`--trainer.strategy {strategy}`: expected {' or '.join(STRATEGIES)}")
    joined = launched()
    for name in ("devices", "num_nodes"):
        if joined and (value := options.get(name)) not in (None, "auto", -1, "-1", joined[name], str(joined[name])):
            problems.append(
                f"`--trainer.{name} {value}`: torchrun or srun started {joined['devices']} processes per host on "
                f"{joined['num_nodes']} hosts; leave the option out"
            )
    if options.get("accelerator", "auto") == "cpu" or not torch.cuda.is_available():
        n, cores = options.get("devices", 1), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
        n, cores = int(n) if str(n).isdecimal() else 1, cores or os.cpu_count() or 1
        if n > max(cores, 2):
            problems.append(
                f"`--trainer.devices {n}`: this machine has {cores} usable cores, and more processes than cores "
                "would wait for one another; give fewer"
            )
    return problems


@contextmanager
def algorithms_kept() -> Iterator[None]:
    """Restore torch's choice of algorithms, which a Trainer changes for the whole process and does not restore."""
    mode, benchmark = torch.get_deterministic_debug_mode(), torch.backends.cudnn.benchmark
    workspace = os.environ.get(_CUBLAS)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.backends.cudnn.benchmark = benchmark
        os.environ.pop(_CUBLAS, None)
        if workspace is not None:
            os.environ[_CUBLAS] = workspace


def build_trainer(
    options: Mapping[str, Any], logger: Any, callbacks: Sequence[pl.Callback], folder: str | None
) -> pl.Trainer:
    """Return a Trainer with this project's defaults, which the user's options override."""
    defaults = {
        "accelerator": "gpu" if torch.cuda.is_available() else "cpu",
        "devices": 1,
        "enable_progress_bar": False,
        "enable_checkpointing": False,
    }
    trainer = pl.Trainer(
        **{**defaults, **launched(), **without_logger(options)},
        logger=logger or False,
        callbacks=list(callbacks),
        default_root_dir=folder,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        use_distributed_sampler=False,  # `ShardBatches` divides the shards among ranks, without repetition
    )
    end_together(trainer)
    return trainer
