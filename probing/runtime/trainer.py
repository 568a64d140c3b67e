"""Lightning's Trainer, its accepted arguments and defaults; large matrix products and the device of float64."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import platform
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, cast

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn import Parameter, functional
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, IterableDataset

from probing.errors import UserError, as_clause, did_you_mean, out_of_range, refuse
from probing.runtime import logger_problems, restored_environment, without_logger
from probing.runtime.files import most_text, parse_json, read_text, replacing
from probing.runtime.processes import end_together, interrupts_pass, launched
from probing.runtime.progress import counted

# Fewest multiplications of a product, and fewest weights of a linear map, for which oneDNN's preparation is worthwhile.
LEAST, LEAST_WEIGHTS = 2**24, 2**16

# Largest accepted error of a product, relative to its largest entry. With float32 it is below 1e-6, with bfloat16 above
# 1e-3.
_ERROR = 1e-5


def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the product of matrices of shapes (n, k) and (k, m), or of stacks of them, on the same device."""
    with _fastest(a, b):
        return torch.matmul(a, b, out=out)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add the product of matrices of shapes (n, k) and (k, m) to `total`, shape (n, m), in place."""
    with _fastest(a, b):
        total.addmm_(a, b)


def _fastest(a: Tensor, b: Tensor) -> AbstractContextManager[None]:
    is_large = a.numel() * b.shape[-1] >= LEAST
    return _by_onednn() if is_large and _is_for_onednn(a) else nullcontext()


@contextmanager
def fast_linear_maps() -> Iterator[None]:
    """Compute large linear maps of a forward pass without gradients by oneDNN where that is faster."""
    if not is_onednn_faster():
        yield
        return
    with _LinearMaps():
        yield


class _LinearMaps(TorchFunctionMode):
    """Linear maps of a forward pass by oneDNN; products of attention stay with torch's kernels.

    Maps are chosen by their weights, not by the number of tokens, so that a token's states do not depend on the size of
    its batch. oneDNN is called for each map, without a setting of the process: a setting changed by another thread
    would reach the small products of attention, which then take seven times as long.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.is_grad_enabled():
            return func(*args, **kwargs)
        if func is functional.linear:  # as BERT and most others call it
            x, weight, bias = _linear_arguments(*args, **kwargs)
        elif func is torch.addmm and len(args) == 3 and not kwargs:  # as GPT-2 does: the bias before both factors
            bias, x, weight = args[0], args[1], args[2].T
        else:
            return func(*args, **kwargs)
        if weight.numel() < LEAST_WEIGHTS or not all(map(_is_for_onednn, (x, weight))) or _is_other_bias(bias, weight):
            return func(*args, **kwargs)
        return _linear(x, weight, bias)


_Map = tuple[Tensor, Tensor, Tensor | None]


def _linear_arguments(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> _Map:
    return input, weight, bias


def _is_other_bias(bias: Tensor | None, weight: Tensor) -> bool:
    return bias is not None and (bias.shape != weight.shape[:1] or not _is_for_onednn(bias))


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return a linear map by oneDNN; it has no gradient."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


def _is_for_onednn(factor: Tensor) -> bool:
    """Return whether oneDNN is faster for a factor: a dense float32 matrix on the CPU, no subclass.

    Quantised weights, for example, have a separate class, which reports float32 and computes products differently.
    """
    is_plain = type(factor) in (Tensor, Parameter) and factor.layout == torch.strided and not factor.is_nested
    return is_plain and factor.dtype == torch.float32 and factor.device.type == "cpu" and is_onednn_faster()


@cache
def is_onednn_faster() -> bool:
    """Return whether oneDNN is faster than torch's products and as exact: on AMD processors with AVX-512."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or "AuthenticAMD" not in _processor():
        return False
    if not hasattr(torch.backends.mkldnn, "matmul"):  # versions of torch before 2.9
        return False
    a, b = (torch.rand(size, generator=torch.Generator().manual_seed(0)) for size in ((256, 512), (512, 256)))
    with _by_onednn():
        product = a @ b
    expected = a.double() @ b.double()
    both = torch.stack([product, _linear(a, b.T, None)])
    return bool((both - expected).abs().max() <= _ERROR * expected.max())


# How many products, in several threads, are being computed by oneDNN, and the setting that was there before the first.
_switch, _using, _before = Lock(), 0, "none"


@contextmanager
def _by_onednn() -> Iterator[None]:
    """Compute products by oneDNN; the process-wide setting is restored when no thread uses it any more."""
    global _using, _before
    settings: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    with _switch:
        if not _using:
            _before, settings.fp32_precision = settings.fp32_precision, "bf16"
        _using += 1
    try:
        yield
    finally:
        with _switch:
            _using -= 1
            if not _using:
                settings.fp32_precision = _before


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    try:
        return cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()


@cache
def float64_device(device: torch.device) -> torch.device:
    """Return the device if it supports float64, else the CPU."""
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except TypeError:  # raised by MPS
        return torch.device("cpu")
    return device


def on_float64_device(tensor: Tensor) -> Tensor:
    """Return a tensor where float64 is supported: unchanged, or copied to the CPU."""
    return tensor.to(float64_device(tensor.device))


def to_float64(tensor: Tensor) -> Tensor:
    """Return a tensor in float64, on the CPU if its device has no float64."""
    # First moved, then converted: MPS refuses to copy into a float64 tensor of the processor.
    return on_float64_device(tensor).double()


def seed_of(*parts: int | str) -> int:
    """Return a seed that depends only on these parts."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator_of(*parts: int | str) -> torch.Generator:
    """Return a generator whose draws depend only on these parts."""
    return torch.Generator().manual_seed(seed_of(*parts))


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
    """Raise UserError for unknown or refused Trainer arguments, or those that the solver does not honour.

    The solver is `lbfgs`, or `adam`, which honours more arguments, or `pretraining` or `tuning` of models.
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
            flag_text = " ".join(f"--trainer.{name} {value}" for name, value in tried.items())
            raise UserError(f"`{flag_text}`: Lightning refuses it ({as_clause(error)}).") from None
    if trainer.precision == "64-true" and float64_device(device := trainer.strategy.root_device) != device:
        raise UserError(
            f"`--trainer.precision {options['precision']}`: {device.type} has no float64; leave the option out, or "
            "give `--trainer.accelerator cpu`."
        )
    if "max_time" in options and (pl.callbacks.Timer(options["max_time"]).time_remaining() or 0) <= 0:
        raise UserError(f"`--trainer.max_time {options['max_time']}` leaves no time to train: expected DD:HH:MM:SS.")


def process_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that say which processes there are."""
    return {name: options[name] for name in ("accelerator", "devices", "num_nodes", "strategy") if name in options}


def _of_the_other_package(options: Mapping[str, Any]) -> list[str]:
    """Return problems of objects from `lightning`, whose classes `pytorch_lightning` does not recognise."""
    return [
        f"`trainer['{name}']` is of the package lightning, and its Trainer is not the one used here: import "
        f"{type(value).__name__} from pytorch_lightning instead"
        for name, value in options.items()
        if type(value).__module__.partition(".")[0] == "lightning"
    ]


def _rank_problems(options: Mapping[str, Any]) -> list[str]:
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
def preserve_algorithms() -> Iterator[None]:
    """Restore torch's choice of algorithms, which a Trainer changes for the whole process."""
    mode, benchmark = torch.get_deterministic_debug_mode(), torch.backends.cudnn.benchmark
    try:
        with restored_environment([_CUBLAS]):
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.backends.cudnn.benchmark = benchmark


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
        use_distributed_sampler=False,  # `ShardDataset` divides the shards among ranks, without repetition
    )
    end_together(trainer)
    return trainer


class _Counting(pl.Callback):
    """Count that begins and ends with a loop of the Trainer."""

    def begin(self, name: str, total: int, done: int = 0, is_even: bool = True) -> None:
        self.stack = ExitStack()
        self.advance = self.stack.enter_context(counted(name, total, done, is_even))

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if hasattr(self, "stack"):
            self.stack.close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "")


class CountedShards(_Counting):
    """Count of the shards that a model has read."""

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin the count."""
        self.begin("", sum(int(n) for n in trainer.num_predict_batches))

    def on_predict_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """Count a shard."""
        self.advance(1)


class CountedSolutions(_Counting):
    """Count of solved probes, with the pass over the tokens; `what` names the probes."""

    def __init__(self, what: str) -> None:
        self.what, self.n_solved = what, 0

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin the count."""
        self.begin(self.what, len(pl_module.problems), is_even=False)  # type: ignore[arg-type]

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Count what the pass has solved."""
        n_solved = len(getattr(pl_module.rule, "solutions", ()))
        self.advance(n_solved - self.n_solved, f"{self.what}, pass {trainer.current_epoch + 1}")
        self.n_solved = n_solved


class _CountedSteps(_Counting):
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.step = trainer.global_step
        self.begin("", trainer.max_steps, self.step)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        self.advance(trainer.global_step - self.step)
        self.step = trainer.global_step


Row = dict[str, Any]


@dataclass(frozen=True)
class Places:
    """Output paths of trainings in a run's folder; only the first process writes."""

    folder: Path
    writes: bool = True

    @property
    def checkpoints(self) -> Path:
        """Folder of all checkpoints."""
        return self.folder / "checkpoints"

    def state(self, name: str) -> Path:
        """Return the path of the last state of an unfinished training."""
        return self.folder / "state" / f"{name}.ckpt"

    def document(self, name: str) -> Path:
        """Return the path of the curve of a finished training, or of another result that a continued run reads."""
        return self.folder / "state" / f"{name}.json"

    def read(self, name: str) -> list[Row] | None:
        """Return the rows of a document; None if it is not written yet."""
        path = self.document(name)
        return cast(list[Row], parse_json(read_text(path, self.folder, most_text()))) if path.is_file() else None

    def write(self, name: str, rows: list[Row]) -> None:
        """Write the rows of a document; the file is replaced atomically."""
        if self.writes:
            path = self.document(name)
            path.parent.mkdir(exist_ok=True)
            with replacing(path) as partial:
                partial.write_text(json.dumps(rows), encoding="utf-8")

    def read_or_make(self, name: str, make: Callable[[], list[Row]]) -> list[Row]:
        """Return the rows of a document, which are made and written unless it exists."""
        if (rows := self.read(name)) is None:
            self.write(name, rows := make())
        return rows

    def save_state(self, name: str, trainer: pl.Trainer) -> None:
        """Save the state from which a killed training continues; the file is replaced atomically."""
        path = self.state(name)
        if not self.writes:
            trainer.save_checkpoint(path)  # takes part in what the first process writes
            return
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as partial:
            trainer.save_checkpoint(partial)


def save_model(folder: Path, model: Any, tokenizer: Any) -> None:
    """Write a model and its tokenizer to a folder for `from_pretrained`, replacing an older folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f"{folder.name}.partial")
    for stale in (partial, folder):
        shutil.rmtree(stale, ignore_errors=True)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(folder)


class ContinuedData(pl.LightningDataModule):
    """Batches of a training that depend on the step alone; subclasses define `whole_batches` and `part_of`.

    The processes share the examples of each step. If gradients are accumulated over n batches, these are the parts of
    the step's batch. The state is the number of completed steps, from which a killed training continues.
    """

    def __init__(self, n_accumulated: int) -> None:
        super().__init__()
        self.n_accumulated, self.first = n_accumulated, 0

    def whole_batches(self, first: int) -> Iterator[Any]:
        """Yield the batch of each step of the optimiser, from step `first` (from 0) on."""
        raise NotImplementedError

    def part_of(self, batch: Any, part: int, n_parts: int) -> Any:
        """Return one of `n_parts` parts of a batch."""
        raise NotImplementedError

    def batches(self, first: int, rank: int = 0, n_ranks: int = 1) -> Iterator[Any]:
        """Yield the batches of a process, from step `first` of the optimiser on."""
        n_parts = n_ranks * self.n_accumulated
        for batch in self.whole_batches(first):
            for part in range(rank, n_parts, n_ranks):
                yield batch if n_parts == 1 else self.part_of(batch, part, n_parts)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the batches of this process."""
        return DataLoader(_Batches(self), batch_size=None)

    def state_dict(self) -> dict[str, int]:
        """Return the number of completed steps."""
        return {"first": cast(pl.Trainer, self.trainer).global_step}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Set the first step to the first incomplete one."""
        self.first = state_dict["first"]


class _Batches(IterableDataset[Any]):
    def __init__(self, data: ContinuedData) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        trainer = cast(pl.Trainer, self.data.trainer)
        return self.data.batches(self.data.first, trainer.global_rank, trainer.world_size)


class ContinuedModule(pl.LightningModule):
    """A model whose training has the same steps after it was killed and continued; subclasses define `optimizer`.

    Dropout depends only on the seed, the step, the batch and the process. The learning rate rises linearly in the first
    `warm_up` of the `steps`, and then falls linearly to 0. `rate` is its option with its value, for messages.
    """

    def __init__(self, model: Any, seed: int, steps: int, warm_up: int, rate: str) -> None:
        super().__init__()
        self.model, self.seed, self.steps, self.warm_up, self.rate = model, seed, steps, warm_up, rate
        self.last_loss = math.nan

    def optimizer(self) -> torch.optim.Optimizer:
        """Return the optimiser with the highest learning rate."""
        raise NotImplementedError

    def configure_optimizers(self) -> Any:
        """Return the optimiser with the schedule of its learning rate."""
        optimizer = self.optimizer()
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share_of_rate(self.steps, self.warm_up))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_batch_start(self, batch: Any, batch_index: int) -> None:
        """Seed the dropout of each batch from the seed, the batch number and the process."""
        seed = seed_of(self.seed, "dropout", self.global_step, batch_index, self.global_rank)
        if self.device.type == "cpu":
            # torch.manual_seed also formats the stack for each kind of accelerator that may be started later.
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def loss_of_step(self, loss_sum: Tensor, n: int) -> Tensor:
        """Return the loss whose mean over processes and accumulated batches is the mean over the `n` targets of a step.

        Raises:
            UserError: If the loss is not finite.
        """
        loss = loss_sum * self.trainer.world_size * self.trainer.accumulate_grad_batches / max(n, 1)
        if not math.isfinite(value := float(loss.detach())):
            raise UserError(f"`{self.rate}`: the training diverged at step {self.global_step}; lower it.")
        self.last_loss = value
        return loss


class RecordedTraining(pl.Callback):
    """A training whose states, curve and results are saved.

    The curve has about `points` rows and a row for each step in `due`, with the cells that `measures` returns of the
    module at the step; every row has the cells of `key`. `save_every` is in steps; `logged` are columns. `write`, in
    the first process, writes what belongs to the finished module, before the curve, which marks the training as
    finished.
    """

    def __init__(
        self, name: str, key: Row, steps: int, due: Collection[int], points: int, save_every: int, places: Places,
        logger: Any, logged: Sequence[str], measures: Callable[[Any, int], Row],
        write: Callable[[Any], None] = lambda module: None,
    ) -> None:  # fmt: skip
        self.name, self.key, self.steps, self.due = name, key, steps, set(due)
        self.every, self.save_every, self.places = max(1, steps // points), save_every, places
        self.logger, self.logged, self.measures, self.write = logger, logged, measures, write
        self.curve: list[Row] = []
        self.losses: list[float] = []
        self.done = -1

    def fit(
        self, build: Callable[[], ContinuedModule], data: ContinuedData, clip: float | None,
        options: Mapping[str, Any], callbacks: Sequence[pl.Callback] = (),
    ) -> list[Row]:  # fmt: skip
        """Train a model from its beginning or from its last state, unless it is finished; return its curve.

        `clip` is the largest norm of the gradient; `options`, the user's arguments of Lightning's Trainer, override it.
        """
        if (curve := self.places.read(self.name)) is not None:
            self.log_curve(curve)
            return curve
        module = build()
        if not self.steps:
            self.finish(module)
            return self.curve
        defaults = {"gradient_clip_val": clip, "limit_val_batches": 0}
        limits = {"max_steps": self.steps, "max_epochs": -1}
        callbacks = [self, _CountedSteps(), *callbacks]
        trainer = build_trainer({**defaults, **options, **limits}, None, callbacks, str(self.places.folder))
        state = self.places.state(self.name)
        with interrupts_pass(), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            module.model.train()
            trainer.fit(module, datamodule=data, ckpt_path=state if state.is_file() else None)
        return self.curve

    def finish(self, module: Any) -> None:
        """Write the results and the curve, and remove the state."""
        if self.places.writes:
            self.write(module)
        self.places.write(self.name, self.curve)
        if self.places.writes:
            self.places.state(self.name).unlink(missing_ok=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the curve so far."""
        return {"curve": self.curve, "losses": self.losses}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the curve."""
        self.curve, self.losses = list(state_dict["curve"]), list(state_dict["losses"])

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note step 0 if it is due; log the curve so far of a continued training."""
        self.done = trainer.global_step
        if self.done:
            self.log_curve(self.curve)
        elif 0 in self.due:
            self._note(trainer, pl_module, 0)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """Note due rows and save the state after a step of the optimiser."""
        step = trainer.global_step
        self.losses.append(cast(ContinuedModule, pl_module).last_loss)
        if step == self.done:  # gradients are still accumulated
            return
        self.done = step
        if step in self.due or step % self.every == 0:
            self._note(trainer, pl_module, step)
        if step % self.save_every == 0 and step < self.steps:
            self.places.save_state(self.name, trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Finish the training, unless it was stopped."""
        if trainer.global_step >= self.steps:
            self.finish(pl_module)

    def _note(self, trainer: pl.Trainer, module: Any, step: int) -> None:
        """Add the row of a step to the curve, with the mean loss of all processes since the row before, and log it."""
        row = {**self.key, "step": step}
        if self.losses:
            device = float64_device(trainer.strategy.root_device)
            mean = torch.tensor(sum(self.losses) / len(self.losses), dtype=torch.float64, device=device)
            row["train_loss"] = float(trainer.strategy.reduce(mean, reduce_op="mean"))
            self.losses = []
        if step in self.due:
            row |= self.measures(module, step)
        self.curve.append(row)
        self.log_curve([row])

    def log_curve(self, curve: Sequence[Row]) -> None:
        """Log rows of a curve."""
        for row in curve if self.logger else ():
            logged_values = {f"{name}/{self.name}": row[name] for name in self.logged if name in row}
            self.logger.log_metrics(logged_values, step=row["step"])


def share_of_rate(steps: int, warm_up: int) -> Callable[[int], float]:
    """Return the function from a step, counted from 0, to its share of the peak learning rate: linear rise and fall."""

    def share(step: int) -> float:
        if step < warm_up:
            return (step + 1) / (warm_up + 1)
        return max(0.0, (steps - step) / (steps - warm_up)) if steps > warm_up else 1.0

    return share
