"""Probes and geometry of a model during training by Lightning or the Trainer of transformers."""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import nn
from transformers.trainer_callback import TrainerCallback

from probing.activations.source import ActivationSource
from probing.activations.store import ActivationStore
from probing.cli.commandline import converted
from probing.cli.options import FirstToken, Layers, Probe, ProbeOptions, Source, problems_of
from probing.data.examples import Sides
from probing.data.labelling import read_sides
from probing.data.module import control_sides
from probing.errors import UserError, in_python, refuse, spelled
from probing.models import SiteName
from probing.models.loading import ModelObject
from probing.probes.closed_forms import NumberFit
from probing.probes.evidence import basis_table, directions_of
from probing.probes.outliers import check_tokens
from probing.probes.training import LayerFit
from probing.probes.transforms import centred, of_neurons
from probing.runs.results import EvidenceConfig, measure
from probing.runtime import drop_garbage, heap_set_aside, quiet_libraries, restored_environment
from probing.runtime.processes import run_on_rank_zero
from probing.runtime.terminal import silence
from probing.runtime.trainer import preserve_algorithms
from probing.statistics.chance import weights
from probing.statistics.moments import ProfileAccumulator, by_mean_profile
from probing.studies.fit import FitOptions, controls_of_call, fit
from probing.studies.geometry.layers import MeanCosineAccumulator, normalise, sum_by_sentence
from probing.tables import FIRST, PLAIN
from probing.text import Corpus, GroupBy, Split, read_corpora
from probing.text.tasks import TokenTask, load_task, reader_of
from probing.text.tokens import Tokens

# What says which model of a module is probed: the name of an attribute, or a function that returns it.
Which = str | Callable[[Any], Any] | None


def find_in(module: nn.Module, which: Which = None) -> Any:
    """Return the `PreTrainedModel` that a module is or contains; models inside another model do not count.

    `which` is an attribute, such as `student` or `student.encoder`, or a function from the module to the model; None if
    the module has only one model. Without such a model, or with several, UserError is raised.
    """
    holder, where = module, type(module).__name__
    if isinstance(which, str):
        try:
            holder = attrgetter(which)(module)
        except AttributeError:
            raise UserError(
                f"`model={which!r}`: the {where} has no such attribute; {_listing(_models_in(module))}."
            ) from None
        where = f"attribute {which} of the {where}"
    elif which is not None:
        holder, where = which(module), f"result of `model` for the {where}"
    models = _models_in(holder) if isinstance(holder, nn.Module) else {}
    if len(models) == 1:
        return next(iter(models.values()))
    if models:
        first = next(iter(models))
        raise UserError(f"`model`: {_listing(models)} in the {where}; say which one is probed, as in model={first!r}.")
    if which is None:
        raise UserError(f"`model`: no part of the {where} is a PreTrainedModel of transformers, which can be probed.")
    raise UserError(
        f"`model`: the {where} is of type {type(holder).__name__}, and neither is nor holds a PreTrainedModel of "
        f"transformers; {_listing(_models_in(module))}."
    )


def _models_in(module: nn.Module) -> dict[str, Any]:
    from transformers import PreTrainedModel

    models: dict[str, Any] = {}
    for name, part in module.named_modules():
        is_inside = any(not outer or name.startswith(f"{outer}.") for outer in models)
        if isinstance(part, PreTrainedModel) and not is_inside:
            models[name] = part
    return models


def _listing(models: dict[str, Any]) -> str:
    if not models:
        return "there is no PreTrainedModel"
    named = [f"`{name}` ({type(model).__name__})" for name, model in models.items()]
    return f"there {'is' if len(named) == 1 else 'are'} {', '.join(named)}"


def before_others(callbacks: Sequence[Any], kind: type) -> list[Any]:
    """Return callbacks with a kind first, so that it measures what other callbacks set up for the validation."""
    return sorted(callbacks, key=lambda callback: not isinstance(callback, kind))


# Where torch keeps how products of float32 are rounded, one switch for each library; versions before 2.9 have none.
_SWITCHES: tuple[Any, ...] = (torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None))


@contextmanager
def without_traces() -> Iterator[None]:
    """Compute as in a separate process, and restore the state of the training afterwards, also after errors.

    The state is the random generators of Python, NumPy and torch, gradient and inference mode, autocast, the default
    dtype, torch's algorithms, precision and number of threads, the current device and the environment.
    """
    with ExitStack() as stack:
        stack.enter_context(heap_set_aside())
        stack.callback(drop_garbage)  # models and Trainers refer to each other
        for context in (
            _random_state_restored(),
            preserve_algorithms(),
            _arithmetic_restored(),
            restored_environment(),
            quiet_libraries(),
        ):
            stack.enter_context(context)
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in ("cpu", *(["cuda"] if torch.cuda.is_available() else [])):
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextmanager
def _random_state_restored() -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


@contextmanager
def _arithmetic_restored() -> Iterator[None]:
    """Compute in float32 of full precision; restore dtype, precision, number of threads and device."""
    dtype, n_threads = torch.get_default_dtype(), torch.get_num_threads()
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    try:
        torch.set_default_dtype(torch.float32)
        with _full_precision():
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(n_threads)
        if device is not None:
            torch.cuda.set_device(device)


@contextmanager
def _full_precision() -> Iterator[None]:
    """Multiply float32 matrices at full precision, whichever of torch's two interfaces set the precision."""
    switches = [switch for switch in _SWITCHES if hasattr(switch, "fp32_precision")]
    before = [switch.fp32_precision for switch in switches]
    try:
        together: str | None = torch.get_float32_matmul_precision()
    except RuntimeError:  # some switches were set one by one, and these are all that counts
        together = None
    try:
        _set(switches, ["ieee"] * len(switches), together and "highest")
        yield
    finally:
        _set(switches, before, together)


def _set(switches: Sequence[Any], values: Sequence[str], together: str | None) -> None:
    if together is not None:
        torch.set_float32_matmul_precision(together)  # which sets the others, too
    for switch, value in zip(switches, values, strict=True):
        switch.fp32_precision = value


# Columns of a layer's row in `accuracy.csv` that are logged for it; those of a control are logged, too.
_OF_PROBES = ("accuracy", "r2", "optimality_gap", "relative_gradient")

# Ends of intervals, which there are with enough test sentences.
_INTERVALS = ("accuracy_low", "accuracy_high", "r2_low", "r2_high")

# Columns of a layer's row in `basis.csv`, of contributions as they are.
_OF_BASIS = (*(f"first_{FIRST}_share{end}" for end in ("", "_directions", "_p")), "n_above")


class Measurement:
    """Measurement of a text by a model: trains certified probes on its layers and stores nothing.

    Raises:
        UserError: If the text cannot be read, or an option is out of range or does not suit the task.
    """

    def __init__(self, options: FitOptions) -> None:
        probe = options.probe_options
        refuse(list(problems_of(options)))
        self.options, self.task = options, load_task(options.task, options.task_args)
        self.controls = controls_of_call(options.controls, self.task, probe, None, False, None)
        self.corpora: list[Corpus]
        self.splits: list[list[Split]]
        self.corpora, self.splits = read_corpora(
            options.corpus, options.test_corpus, options.seed, silence, options.group_by, reader_of(self.task)
        )
        self._prepared: ActivationSource | None = None

    def prepare(self, model: Any, tokenizer: Any, device: torch.device) -> None:
        """Examine a model and read the text once, so that misfits raise UserError before the training."""
        options = self.options
        with without_traces(), tempfile.TemporaryDirectory(prefix="probing-") as folder:
            source = ActivationSource.of(
                model, None, options.layer, _trainer_on(device), options.probe_options.solver, tokenizer,
                cache=Path(folder), max_length=options.max_length, batch_tokens=options.batch_tokens, site=options.site,
                without_first=options.first_token == "exclude",
            )  # fmt: skip
            self._read(source)
        self._prepared = source

    def measure(self, model: Any, tokenizer: Any, device: torch.device) -> dict[str, float]:
        """Return the measures of a model with its current weights, by name, such as `layer_06/accuracy`.

        The model and the process stay unchanged; files are in a temporary folder, which is removed.
        """
        assert self._prepared is not None
        assert isinstance(self._prepared.model, ModelObject)
        with without_traces(), tempfile.TemporaryDirectory(prefix="probing-") as folder:
            now = self._prepared.model.trained_on(model)
            source = replace(self._prepared, model=now, cache=Path(folder), trainer=_trainer_on(device))
            sides, stores = self._read(source)
            values = self._accuracies(source, sides)
            for layer in source.layers:
                geometry = _geometry(stores[0], layer, self.options.seed)
                values |= {f"layer_{layer:02d}/{name}": value for name, value in geometry.items()}
        return values

    def _read(self, source: ActivationSource) -> tuple[Sides, list[ActivationStore]]:
        options = self.options
        return read_sides(source, self.corpora, self.splits, self.task, options.probe_options, options.group_by, _check)

    def _accuracies(self, source: ActivationSource, sides: Sides) -> dict[str, float]:
        """Train the probes and their controls as `fit` does, and return their values of `accuracy.csv`."""
        config = EvidenceConfig(self.options.seed, ranking=False)
        controls = control_sides(self.controls, sides, self.corpora, source, self.options.seed)
        if self.options.probe_options.bias:
            sides, controls, _ = centred(sides, controls, source.layers)
        probe, trainer = self.options.probe_options, source.trainer
        results = measure(sides, controls, source.layers, probe, config, trainer)
        values: dict[str, float] = {}
        scores = [f"{name}_{score}" for name in self.controls for score in ("accuracy", "r2")]
        for row in results.accuracy():
            names = [name for name in (*_OF_PROBES, *scores) if name in row]
            names += [name for name in _INTERVALS if math.isfinite(row.get(name, math.nan))]
            values |= {f"layer_{row['layer']:02d}/{name}": float(row[name]) for name in names}
            values |= {"majority_accuracy": row["majority_accuracy"]} if "majority_accuracy" in row else {}
        return values | self._directions(sides, results.fits)

    def _directions(self, sides: Sides, fits: Sequence[LayerFit | NumberFit]) -> dict[str, float]:
        """Return the values of `basis.csv` for layers whose probes are at their optimum."""
        options = self.options
        fits = [
            of_neurons(fit) if options.probe_options.bias and isinstance(fit, LayerFit) else fit
            for fit in fits
            if fit.converged
        ]
        rotations, scale = options.rotations or 0, options.probe_options.penalty_space
        directions = directions_of(fits, sides.test, scale, rotations, options.seed)
        rows = basis_table(
            (fit.layer, layer_directions) for fit, layer_directions in zip(fits, directions, strict=True)
        )
        plain = [row for row in rows if row["kind"] == PLAIN]
        return {f"layer_{row['layer']:02d}/{name}": float(row[name]) for row in plain for name in _OF_BASIS}


def _check(tokens: Tokens, n_classes: int, n_train: int) -> None:
    check_tokens(tokens, "exclude")


def _geometry(store: ActivationStore, layer: int, seed: int) -> dict[str, float]:
    """Return the outliers of the mean and the mean cosine of a layer without special tokens, as `geometry` does."""
    tokens, d_model = store.tokens, store.plan.d_model
    profile, cosines = ProfileAccumulator(d_model), MeanCosineAccumulator(d_model)
    for shard in store.plan.shards:
        token_range = shard.rows(store.tokens)
        counts = ~tokens.special[token_range]
        states = store.read(layer, shard.index)[torch.from_numpy(counts)].float()
        of_sentence = tokens.sentences[token_range][counts] - shard.first_sentence
        lengths = torch.from_numpy(np.bincount(of_sentence, minlength=shard.n_sentences))
        units = normalise(states)
        drawn = weights(shard.first_sentence, shard.n_sentences, seed)
        cosines.update(units, sum_by_sentence(units, lengths), lengths, drawn)
        profile.update(states)
    outliers = by_mean_profile(profile.result().mean)
    return {"outlier_dimensions": float(len(outliers)), "mean_cosine": cosines.result().estimate.value}


def _trainer_on(device: torch.device) -> dict[str, Any]:
    if device.type == "cuda":
        return {"accelerator": "gpu", "devices": [device.index or 0]}
    return {"accelerator": "mps" if device.type == "mps" else "cpu", "devices": 1}


# With which the Trainer's own numbers of an evaluation begin; the others count as those of training in its loggers.
_EVALUATION = "eval_"


class ProbesOfTrainer(TrainerCallback):
    """Callback of a transformers Trainer that measures as a `ProbingCallback` at each evaluation.

    The metrics, such as `eval_probe/layer_06/accuracy`, appear in `trainer.state.log_history`, in the loggers of
    `report_to`, and in the result of `trainer.evaluate()`.
    """

    def __init__(self, probes: ProbingCallback, trainer: Any) -> None:
        self.probes, self.trainer = probes, trainer

    @property
    def _tokenizer(self) -> Any:
        given = self.probes.tokenizer
        return getattr(self.trainer, "processing_class", None) if given is None else given

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Refuse impossible measurements before the training; count the evaluations so far of a continued training."""
        if getattr(args.eval_strategy, "value", args.eval_strategy) == "no":
            raise UserError(
                "`ProbingCallback` measures at evaluations, and this training has none; give TrainingArguments an "
                "`eval_strategy`, such as 'epoch'."
            )
        self._check_parts(args)
        handler = self.trainer.callback_handler
        handler.callbacks = before_others(handler.callbacks, ProbesOfTrainer)
        self.probes.n_validations = len({row["step"] for row in state.log_history if any(map(_is_duration, row))})
        self.probes.prepare(self.trainer.model, self._tokenizer, args.device)

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, float] | None = None, **others: Any
    ) -> None:
        """Measure and log."""
        if not self._is_first(metrics or {}) or not self.probes.is_due():
            return
        self._check_parts(args)
        values = self.probes.measured(self.trainer.model, self._tokenizer, args.device)
        named = {f"{_EVALUATION}{name}": value for name, value in values.items()}
        if metrics is not None:
            metrics.update(named)
        self.trainer.log(dict(named))

    def _is_first(self, metrics: dict[str, float]) -> bool:
        """Return whether these metrics belong to the first set of the evaluation."""
        sets = self.trainer.eval_dataset
        others = list(sets)[1:] if isinstance(sets, dict) else []
        return not any(f"{_EVALUATION}{name}_runtime" in metrics for name in others)

    def _check_parts(self, args: Any) -> None:
        if getattr(args, "fsdp", None) or getattr(args, "deepspeed", None):
            raise UserError(
                "`ProbingCallback`: under FSDP and DeepSpeed each process holds a part of the weights, and the model "
                "is read by one; train without them, or probe saved checkpoints by `checkpoints`."
            )


def _is_duration(metric: str) -> bool:
    """Return whether a metric is the duration of an evaluation, which the Trainer logs once per set."""
    return metric.startswith(_EVALUATION) and metric.endswith("_runtime")


# One penalty makes checkpoints comparable, and with this one probes are at their optimum in a few passes.
_PROBE = ProbeOptions(l2=1e-2)

# Under these a process holds a part of the weights only.
_DIVIDED = {"FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy"}


class ProbingCallback(pl.Callback):
    """Probe layers of a model at each validation of its training, without changing the training.

    The callback uses the weights of the validation, also if another callback averages them (`WeightAveraging`),
    whatever the order of callbacks. It trains probes to their certified optimum and logs under the module's loggers,
    for each layer: `accuracy` (`r2` for numbers) with its interval, `optimality_gap`, the accuracy of each control,
    `outlier_dimensions` (neurons whose mean is far from the others') and `mean_cosine`, such as
    `probe/layer_06/accuracy`; and `probe/majority_accuracy`. With `rotations`, it also logs the share of the first ten
    neurons in the contributions (`first_10_share`), the share of directions (`first_10_share_directions`,
    `first_10_share_p`), and `n_above`, the number of neurons above all directions. These equal the results of `fit` and
    `geometry` for a checkpoint of this moment. Of several processes the first measures, while the others wait.

    Args:
        corpus: List of sentences, or a path or name as for `fit`. Some 200 sentences take seconds.
        tokenizer: The model's fast tokenizer; by default the tokenizer of a Trainer of transformers.
        layer: Layers to probe: 6, [0, 3, 6], "3-6", -1 for the last, or "all".
        model: Attribute of the module that is the model, or a function from the module to the model; not needed if the
            module has a single model of transformers.
        site: Site of the neurons, as in `fit`: `residual`, `mlp` or `attention`.
        task: Task of the probes, as in `fit`: a name, such as `position`, or an object.
        task_args: Options of the task.
        controls: Controls of the accuracy, as in `fit`: `none`, or some of `shuffled` (shuffled labels), `token`, ...;
            each trains further probes at each validation.
        every_n_validations: Measure at each n-th validation of the training.
        probe: Options of the probes, as in `fit`; by default the penalty `l2` is 0.01 at all validations.
        name: Prefix of the logged names; it must be unique among the callbacks of a Trainer.
        test_corpus: Text to test on; by default a tenth of the sentences of `corpus`.
        group_by: Unit that the split keeps whole: `auto`, `sentence` or `document`.
        first_token: `include` or `exclude` the first token of each sentence.
        max_length: Number of tokens at which sentences are cut; by default the model's limit.
        batch_tokens: Maximal number of tokens in a forward pass.
        seed: Seed of the split, of the controls and of the rotations.
        rotations: Number of random rotations for the comparison with directions, as in `fit`; 0 by default, since 20
            take a third of the time of a validation.

    Raises:
        UserError: If an option is wrong or the text cannot be read; at the start of the training, if the module has no
            such model, or the model, the text and the task do not fit together.
    """

    @spelled(in_python)
    def __init__(
        self, corpus: Source, tokenizer: Any = None, layer: Layers = "all", *, model: Which = None,
        site: SiteName = "residual", task: str | TokenTask = "position", task_args: Mapping[str, Any] | None = None,
        controls: str | list[str] = "shuffled", every_n_validations: int = 1, probe: Probe = _PROBE,
        name: str = "probe", test_corpus: Source | None = None, group_by: GroupBy = "auto",
        first_token: FirstToken = "include", max_length: int | None = None, batch_tokens: int | None = None,
        seed: int = 0, rotations: int = 0,
    ) -> None:  # fmt: skip
        if not isinstance(every_n_validations, int) or every_n_validations < 1:
            raise UserError(f"`every_n_validations={every_n_validations}`: expected a whole number, 1 or more.")
        probe_options = {"l2": _PROBE.l2, **probe} if isinstance(probe, Mapping) else probe
        given = {
            "corpus": corpus, "layer": layer, "site": site, "task": task, "task_args": task_args, "controls": controls,
            "test_corpus": test_corpus, "group_by": group_by, "first_token": first_token, "max_length": max_length,
            "batch_tokens": batch_tokens, "probe": probe_options, "seed": seed, "rotations": rotations,
        }  # fmt: skip
        self.measurement = Measurement(FitOptions(**converted(fit, given, "ProbingCallback")))
        self.tokenizer, self.model, self.name, self.every = tokenizer, model, name, every_n_validations
        self.n_validations, self.is_prepared = 0, False

    def for_trainer(self, trainer: Any) -> ProbesOfTrainer:
        """Return the callback of a transformers Trainer that measures at its evaluations.

        Args:
            trainer: The Trainer, which takes the result by `trainer.add_callback(...)`.
        """
        return ProbesOfTrainer(self, trainer)

    # --- what both Trainers do ---

    def prepare(self, module: Any, tokenizer: Any, device: Any) -> None:
        """Refuse impossible measurements, on the first process for all processes."""
        run_on_rank_zero(lambda: self.measurement.prepare(find_in(module, self.model), tokenizer, device))
        self.is_prepared = True

    def measured(self, module: Any, tokenizer: Any, device: Any) -> dict[str, float]:
        """Return the current measures of a module by their logged names, equal in all processes."""
        if not self.is_prepared:
            self.prepare(module, tokenizer, device)
        values = run_on_rank_zero(lambda: self.measurement.measure(find_in(module, self.model), tokenizer, device))
        return {f"{self.name}/{name}": value for name, value in values.items()}

    def is_due(self) -> bool:
        """Count a validation and return whether to measure at it."""
        self.n_validations += 1
        return self.n_validations % self.every == 0

    # --- what Lightning calls ---

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Put this callback before those that restore averaged weights at the end of a validation."""
        trainer.callbacks = before_others(trainer.callbacks, ProbingCallback)  # type: ignore[attr-defined]

    @property
    def state_key(self) -> str:
        """Key of the count in checkpoints, unique for each name."""
        return self._generate_state_key(name=self.name)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of validations so far, for a continued training."""
        return {"n_validations": self.n_validations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the count of a continued training."""
        self.n_validations = int(state_dict["n_validations"])

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuse impossible measurements before the training."""
        _check_strategy(trainer)
        if not trainer.enable_validation:
            raise UserError(
                "`ProbingCallback` measures at validations, and this training has none; give the module a "
                "`validation_step`, validation batches to the Trainer, and no `limit_val_batches=0`."
            )
        self.prepare(pl_module, self.tokenizer, pl_module.device)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Measure and log, except in Lightning's sanity check (`num_sanity_val_steps`)."""
        of_training = trainer.state.fn == "fit"  # and not of a call of `trainer.validate`, which always measures
        if trainer.sanity_checking or (of_training and not self.is_due()):
            return
        _check_strategy(trainer)
        values = self.measured(pl_module, self.tokenizer, pl_module.device)
        # The largest of equal numbers is the number; their mean over three processes might be rounded.
        pl_module.log_dict(values, reduce_fx="max", sync_dist=True, batch_size=1)


def _check_strategy(trainer: pl.Trainer) -> None:
    kinds = {kind.__name__ for kind in type(trainer.strategy).__mro__}
    if kinds & _DIVIDED:
        raise UserError(
            f"`ProbingCallback`: under {type(trainer.strategy).__name__} each process holds a part of the weights, and "
            "the model is read by one; train with one device or with `strategy='ddp'`, or probe saved checkpoints by "
            "`checkpoints`."
        )
