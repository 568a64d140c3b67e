"""Probes while Lightning trains: a callback for any module that has a model of transformers in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl

from probing.callbacks.measurement import Measurement, Options, Which, before_others, find_in
from probing.cli.commandline import converted
from probing.cli.option_types import FirstToken, Layers, Probe, Source
from probing.cli.options import ProbeOptions, as_options
from probing.corpus.splits import GroupBy
from probing.errors import UserError
from probing.models import SiteName
from probing.runtime.processes import of_first_rank
from probing.studies.fit.command import fit
from probing.tasks import TokenTask

if TYPE_CHECKING:
    from probing.callbacks.trainer import ProbesOfTrainer

# One penalty makes checkpoints comparable, and with this one probes are at their optimum in a few passes.
_PROBE = ProbeOptions(l2=1e-2)
# Under these a process holds a part of the weights only.
_DIVIDED = {"FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy"}


class ProbingCallback(pl.Callback):
    """Probe layers of a model at each validation of its training, which goes on as it would without the callback.

    At the end of a validation the text is read by the model with the weights that the validation used, also where a
    callback averages them (`WeightAveraging`), whatever the order of callbacks; probes are trained to their certified
    optimum, and logged under the module's own loggers: for each layer `accuracy` (of numbers `r2`) with its interval,
    `optimality_gap`, the accuracy of each control, `outlier_dimensions` (neurons whose mean is far from the others')
    and `mean_cosine`, such as `probe/layer_06/accuracy`, and `probe/majority_accuracy`; with `rotations`, the share of
    the contributions that the first ten neurons have (`first_10_share`), that of directions
    (`first_10_share_directions`, `first_10_share_p`), and `n_above`, the number of neurons above all. They are
    the numbers that `fit` and `geometry` find for the checkpoint of this moment. Of several processes the first one
    measures, while the others wait.

    Args:
        corpus: Text to read: a list of sentences, or a path or name as for `fit`. Some 200 sentences take seconds.
        tokenizer: The model's fast tokenizer; that of a Trainer of transformers if it has one.
        layer: Layers to probe: one (6), several ([0, 3, 6], "3-6"), the last (-1) or "all".
        model: Name of the module's attribute that is the model, or a function that returns it from the module; not
            needed where the module has one model of transformers.
        site: What a neuron is, as in `fit`: `residual`, `mlp` or `attention`.
        task: What probes predict, as in `fit`: the name of a task, such as `position`, or an object.
        task_args: Options of the task.
        controls: Controls of the accuracy, as in `fit`: `none`, or some of `shuffled` (the same probes with shuffled
            labels), `token`, ...; every further one is trained at each validation.
        every_n_validations: Measure at each n-th validation of the training.
        probe: How probes are trained, as in `fit`; the penalty is `l2` = 0.01 by default, the same at all validations.
        name: What the names of the numbers begin with; of two callbacks of a Trainer, each needs its own.
        test_corpus: Text to test on; by default a tenth of the sentences of `corpus`.
        group_by: Unit that the split keeps whole: `auto`, `sentence` or `document`.
        first_token: Whether the first token of each sentence is measured: `include` or `exclude`.
        max_length: Number of tokens at which sentences are cut; the model's own limit by default.
        batch_tokens: Most tokens in one forward pass.
        seed: Seed of the split, of the controls and of the rotations.
        rotations: Number of random rotations whose directions neurons are compared with, as in `fit`; 0, the default,
            for none, as 20 take a third of the time of a validation.

    Raises:
        UserError: If an option is wrong or the text cannot be read; at the start of the training, if the module has no
            such model, or the model, the text and the task do not go together.
    """

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
        own = {"l2": _PROBE.l2, **probe} if isinstance(probe, Mapping) else probe
        given = {
            "corpus": corpus, "layer": layer, "site": site, "task": task, "task_args": task_args, "controls": controls,
            "test_corpus": test_corpus, "group_by": group_by, "first_token": first_token, "max_length": max_length,
            "batch_tokens": batch_tokens, "probe": own, "seed": seed, "rotations": rotations,
        }  # fmt: skip
        found = converted(fit, given, "ProbingCallback")
        found["probe"] = as_options(ProbeOptions, found["probe"], "probe")
        self.measurement = Measurement(found.pop("corpus"), Options(**found))
        self.tokenizer, self.model, self.name, self.every = tokenizer, model, name, every_n_validations
        self.n_validations, self.is_prepared = 0, False

    def for_trainer(self, trainer: Any) -> ProbesOfTrainer:
        """Return a callback for the Trainer of transformers that measures the same at its evaluations.

        Args:
            trainer: The Trainer, to which the result is given by `trainer.add_callback(...)`.
        """
        from probing.callbacks.trainer import ProbesOfTrainer

        return ProbesOfTrainer(self, trainer)

    # --- what both Trainers do ---

    def prepare(self, module: Any, tokenizer: Any, device: Any) -> None:
        """Refuse what cannot be measured; on the first of several processes, for all of them."""
        of_first_rank(lambda: self.measurement.prepare(find_in(module, self.model), tokenizer, device))
        self.is_prepared = True

    def measured(self, module: Any, tokenizer: Any, device: Any) -> dict[str, float]:
        """Return what is measured of a module as it is now, the same in all processes, by the names that are logged."""
        if not self.is_prepared:
            self.prepare(module, tokenizer, device)
        found = of_first_rank(lambda: self.measurement.measure(find_in(module, self.model), tokenizer, device))
        return {f"{self.name}/{name}": value for name, value in found.items()}

    def is_due(self) -> bool:
        """Count a validation; return whether it is one at which is measured."""
        self.n_validations += 1
        return self.n_validations % self.every == 0

    # --- what Lightning calls ---

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Measure before the callbacks that take averaged weights back at the end of a validation."""
        trainer.callbacks = before_others(trainer.callbacks, ProbingCallback)  # type: ignore[attr-defined]

    @property
    def state_key(self) -> str:
        """Under which the count is kept in checkpoints, for each name of its own."""
        return self._generate_state_key(name=self.name)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of validations so far, with which a continued training goes on."""
        return {"n_validations": self.n_validations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the count of the training that is continued."""
        self.n_validations = int(state_dict["n_validations"])

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuse before the training what cannot be measured."""
        _check_strategy(trainer)
        if not trainer.enable_validation:
            raise UserError(
                "`ProbingCallback` measures at validations, and this training has none; give the module a "
                "`validation_step`, validation batches to the Trainer, and no `limit_val_batches=0`."
            )
        self.prepare(pl_module, self.tokenizer, pl_module.device)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Measure and log, unless Lightning only tries out the validation (`num_sanity_val_steps`)."""
        of_training = trainer.state.fn == "fit"  # and not of a call of `trainer.validate`, which always measures
        if trainer.sanity_checking or (of_training and not self.is_due()):
            return
        _check_strategy(trainer)
        found = self.measured(pl_module, self.tokenizer, pl_module.device)
        # The largest of equal numbers is the number; their mean over three processes might be rounded.
        pl_module.log_dict(found, reduce_fx="max", sync_dist=True, batch_size=1)


def _check_strategy(trainer: pl.Trainer) -> None:
    kinds = {kind.__name__ for kind in type(trainer.strategy).__mro__}
    if kinds & _DIVIDED:
        raise UserError(
            f"`ProbingCallback`: under {type(trainer.strategy).__name__} each process holds a part of the weights, and "
            "the model is read by one; train with one device or with `strategy='ddp'`, or probe saved checkpoints by "
            "`series`."
        )
