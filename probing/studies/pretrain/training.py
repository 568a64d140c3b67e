"""Training of the arms' encoders with Lightning, and measurements of their checkpoints."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from scipy.special import stdtrit
from torch import Tensor, nn
from torch.nn import functional

from probing.activations.source import ActivationSource
from probing.cli.options import ProbeOptions
from probing.data.labelling import read_sides
from probing.data.module import layer_moments, token_control
from probing.errors import UserError, as_clause
from probing.models import load_encoder
from probing.models.source import ModelSource
from probing.probes.training import CONTROL_TOLERANCE, train_controls, train_probes, training_of
from probing.results import Table, count
from probing.runs.call import Measurements
from probing.runtime.files import replacing
from probing.runtime.processes import is_main_process, sum_over_ranks
from probing.runtime.progress import remark, stage
from probing.runtime.terminal import silence
from probing.runtime.trainer import ContinuedModule, Places, RecordedTraining, Row, generator_of, process_options
from probing.statistics import LEVEL
from probing.statistics.moments import Profile, ProfileAccumulator, by_mean_profile
from probing.studies.pretrain.batches import (
    LEARNED_TABLES,
    MaskedBatch,
    PackedRows,
    PackedText,
    as_fast,
    build,
    checkpoint_folder,
    checkpoint_steps,
    class_of,
    fill_table,
    head_of,
    model_inputs,
    packed,
    position_table,
    prepare,
    save_checkpoint,
)
from probing.studies.pretrain.tables import ARMS, CAUSAL_LM, DOUBLINGS, OUTLIER, Encoder, Recipe, judge
from probing.text import Corpus, Split, from_sentences, side_of, split_key
from probing.text.tasks import load_task


class LanguageModel(ContinuedModule):
    """A model that learns to predict the labelled tokens of a batch, masked or next ones.

    Logits are computed only where a token is predicted; for masked tokens, this is a seventh of all. A draw of dropout
    depends only on the seed, the step, the batch and the process, so that a continued run draws the same.
    """

    def __init__(self, model: Any, arm: str, recipe: Recipe, seed: int) -> None:
        rate = f"--training.learning_rate {recipe.learning_rate}"
        super().__init__(model, seed, recipe.steps, recipe.warm_up, rate)
        self.arm, self.recipe = arm, recipe

    def loss_sum(self, batch: MaskedBatch) -> Tensor:
        """Return the cross-entropy of the predicted tokens in a batch, summed, in nats."""
        chosen = batch.labels >= 0
        states = self.model.base_model(**model_inputs(self.arm, batch.input_ids)).last_hidden_state
        logits = head_of(self.model)(states[chosen])
        return functional.cross_entropy(logits.float(), batch.labels[chosen], reduction="sum")

    def training_step(self, batch: MaskedBatch, batch_index: int) -> Tensor:
        """Return the loss whose mean over processes and accumulated batches is the mean over all predicted tokens."""
        return self.loss_of_step(self.loss_sum(batch), batch.n_predicted)

    @torch.no_grad()
    def validation_loss(self, batches: Iterable[MaskedBatch]) -> float:
        """Return the mean cross-entropy of the predicted tokens in some batches, without dropout, in float32."""
        was_training = self.model.training
        self.model.eval()
        total, n = 0.0, 0
        for batch in batches:
            total += float(self.loss_sum(batch.to(self.device)))
            n += batch.n_predicted
        self.model.train(was_training)
        return total / n

    def optimizer(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        recipe = self.recipe
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        betas = recipe.beta1, recipe.beta2
        return torch.optim.AdamW(trained, recipe.learning_rate, betas, recipe.epsilon, recipe.weight_decay)


# Points of the curve of the training loss.
POINTS = 200

CLIP = 0.5


@dataclass(frozen=True)
class TrainingJob:
    """One training of an arm; the seed is for the initial weights, the order of the rows and the masks."""

    arm: str
    seed: int

    @property
    def name(self) -> str:
        """Name of the training in folders and curves."""
        return f"{self.arm}-seed{self.seed}"


def train(
    job: TrainingJob, text: PackedText, shape: Encoder, recipe: Recipe, options: Mapping[str, Any], places: Places,
    logger: Any, callbacks: Sequence[pl.Callback] = (),
) -> list[Row]:  # fmt: skip
    """Train an encoder from its beginning or from its last state, unless it is finished; return its curve."""
    masked, n_accumulated = None if job.arm == CAUSAL_LM else recipe.masked, options.get("accumulate_grad_batches") or 1
    rows = PackedRows(text, recipe.batch_size, masked, job.seed, n_accumulated)

    def untrained() -> LanguageModel:
        return LanguageModel(build(job.arm, shape, text.tokenizer, job.seed), job.arm, recipe, job.seed)

    def measures(module: LanguageModel, step: int) -> Row:
        """Write a checkpoint, and return its held-out loss."""
        if places.writes:
            folder = checkpoint_folder(places.checkpoints, job.arm, job.seed, step, recipe.steps)
            save_checkpoint(folder, job.arm, module.model, text.tokenizer)
        return {"loss": module.validation_loss(rows.validation_batches())}

    key = {"arm": job.arm, "seed": job.seed, "unigram_loss": rows.unigram_loss()}
    due, logged = checkpoint_steps(recipe.steps, recipe.checkpoint_factor), ("train_loss", "loss", "unigram_loss")
    training = RecordedTraining(
        job.name, key, recipe.steps, due, POINTS, recipe.save_every, places, logger, logged, measures
    )
    return training.fit(untrained, rows, CLIP, options, callbacks)


# Options of the probes, as in `ablate`: at this tolerance accuracy no longer changes, and one penalty for all
# checkpoints makes them comparable.
PROBE = ProbeOptions(l2=1e-4, tolerance=CONTROL_TOLERANCE)

# Rows of held-out text whose tokens are permuted.
PERMUTED_ROWS = 64


@dataclass(frozen=True)
class CheckpointInputs:
    """Inputs of the measurements of every checkpoint: held-out sentences, with their sides for the probes.

    The tokens of packed `rows`, shape (n_rows, row_length), are permuted. The cache has activations only during the
    measurement of a checkpoint. `trainer` has Lightning's arguments for the devices.
    """

    corpus: Corpus
    splits: Sequence[Split]
    rows: Tensor
    seed: int
    cache: Path
    trainer: Mapping[str, Any]

    @classmethod
    def of(cls, corpus: Corpus, rows: Tensor, config: RunPlan, cache: Path) -> CheckpointInputs:
        """Select at most `config.n_sentences` of the held-out sentences, evenly spread over the text."""
        step, seed = max(1, -(-len(corpus.sentences) // config.n_sentences)), config.seed
        read = corpus.subset(range(0, len(corpus.sentences), step))
        # The hash needs another salt than that of the division of the text, which puts all these sentences on one side.
        splits = [side_of(f"probe {split_key(sentence)}", seed) for sentence in read.sentences]
        return cls(read, splits, rows[:PERMUTED_ROWS].long(), seed, cache, process_options(config.trainer))


def measure(checkpoint: Path, inputs: CheckpointInputs, say: Callable[[str], None]) -> list[Row]:
    """Return a row for each layer of a checkpoint."""
    cache = inputs.cache / f"{checkpoint.parent.name}-{checkpoint.name}"
    source = ActivationSource.of(str(checkpoint), None, "all", inputs.trainer, cache=cache, say=say)
    try:
        text = [inputs.corpus], [inputs.splits]
        sides, stores = read_sides(source, *text, load_task("position", {}), PROBE, "sentence")
        encoder, layers = load_encoder(source.model), source.layers
        assert PROBE.l2 != "auto"
        training = training_of(PROBE, PROBE.l2, inputs.seed, dict(inputs.trainer))
        fits = train_probes(sides, layers, training, moments=layer_moments(sides.train, layers))
        token = train_controls({"token": [token_control(sides, encoder)]}, layers, training)["token"][0][0]
        differences = equivariance(encoder, inputs.rows, inputs.seed)
        return [
            {
                "layer": layer, **outlier_row(_profile(stores[0], layer)),
                "position_accuracy": fit.metrics["accuracy"], "token_accuracy": token.metrics["accuracy"],
                "equivariance": difference,
            }
            for layer, fit, difference in zip(layers, fits, differences, strict=True)
        ]  # fmt: skip
    finally:
        sum_over_ranks(torch.zeros(1))  # every process has read what is removed now
        if is_main_process():
            shutil.rmtree(cache, ignore_errors=True)


def _profile(store: Any, layer: int) -> Profile:
    """Return the profile of a layer without special tokens."""
    accumulator = ProfileAccumulator(store.plan.d_model)
    for shard in store.plan.shards:
        counts = torch.from_numpy(~store.tokens.special[shard.rows(store.tokens)])
        accumulator.update(store.read(layer, shard.index)[counts].float())
    return accumulator.result()


def outlier_row(profile: Profile) -> Row:
    """Return the columns on the neuron whose mean is farthest from the mean neuron's.

    `outlier_neuron` is None where that neuron is no outlier: it then deviates by 5 sd or less. The shares are of the
    tokens in which this neuron is the largest, or the smallest.
    """
    (farthest, *_) = by_mean_profile(profile.mean, deviations=-1.0)
    k = farthest.neuron
    named = {"outlier_neuron": k if any(outlier.neuron == k for outlier in by_mean_profile(profile.mean)) else None}
    shares = {"argmax_share": float(profile.argmax_share[k]), "argmin_share": float(profile.argmin_share[k])}
    return {**named, "max_mean_sd": abs(farthest.value), **shares}


@torch.no_grad()
def equivariance(encoder: nn.Module, rows: Tensor, seed: int) -> list[float]:
    """Return for each layer the deviation from commuting with permutations of the tokens.

    Every row of token ids, shape (n_rows, row_length), is read as it is and with all of its tokens in a random order.
    The value is the largest difference between the states of a token in the two orders, divided by the root mean square
    of the states of the layer. It is 0 but for rounding if the model has no information on positions.
    """
    noise = torch.rand(rows.shape, generator=generator_of(seed, "permutation"))
    order = noise.argsort(dim=1)
    of_rows, of_permuted = (
        encoder(input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True).hidden_states
        for ids in (rows, rows.gather(1, order))
    )
    differences = []
    for states, permuted in zip(of_rows, of_permuted, strict=True):
        expected = states.gather(1, order[:, :, None].expand_as(states))
        scale = float(np.sqrt((states.double() ** 2).mean()))
        differences.append(float((permuted - expected).abs().max()) / scale if scale > 0 else 0.0)
    return differences


@dataclass(frozen=True)
class RunPlan:
    """The trainings of a run, and the settings of the measurements, on at most `n_sentences` held-out sentences.

    `seed` is for the division of the text, and for random draws of the measurements.
    """

    jobs: Sequence[TrainingJob]
    shape: Encoder
    recipe: Recipe
    n_sentences: int
    seed: int
    trainer: Mapping[str, Any]


def packed_text(corpus: Corpus, config: RunPlan, places: Places) -> PackedText:
    """Return the packed text; its tokenizer is trained once and saved in the run's folder, for a continued run."""
    from tokenizers import Tokenizer

    file, shape = places.folder / "state" / "tokenizer.json", config.shape
    known = as_fast(Tokenizer.from_file(str(file)), shape.row_length) if file.is_file() else None
    with stage("tokens of the text"):
        text = prepare(
            corpus, shape.vocabulary, shape.lowercase, shape.row_length, config.recipe.held_out_rows, config.seed, known
        )  # fmt: skip
    if known is None and places.writes:
        file.parent.mkdir(exist_ok=True)
        with replacing(file) as unfinished:
            text.tokenizer.backend_tokenizer.save(str(unfinished))
    return text


def train_all(
    text: PackedText, config: RunPlan, places: Places, logger: Any, callbacks: Sequence[pl.Callback] = ()
) -> list[Row]:
    """Train unfinished jobs, and return the rows of `losses.csv`."""
    rows: list[Row] = []
    for job in config.jobs:
        if not places.document(job.name).is_file():
            how = "goes on" if places.state(job.name).is_file() else "begins"
            remark(f"{job.name}: the training {how} ({config.recipe.steps} steps)")
        with stage(f"training of {job.name}"):
            rows += train(job, text, config.shape, config.recipe, config.trainer, places, logger, callbacks)
    return rows


def measure_all(
    text: PackedText, config: RunPlan, places: Places, cache: Path, losses: Sequence[Row],
    say: Callable[[str], None],
) -> list[Row]:  # fmt: skip
    """Measure the checkpoints that are not measured yet, and return the rows of `arms.csv`."""
    inputs = CheckpointInputs.of(text.validation_corpus, text.validation, config, cache / places.folder.name)
    steps = checkpoint_steps(config.recipe.steps, config.recipe.checkpoint_factor)
    due = [(job, step) for job in config.jobs for step in steps]
    known = {(row["arm"], row["seed"], row["step"]): row for row in losses}
    rows: list[Row] = []
    with stage(f"measures of {count(len(due), 'checkpoint')}", len(due)) as advance:
        for job, step in due:
            folder = checkpoint_folder(places.checkpoints, job.arm, job.seed, step, config.recipe.steps)
            layer_rows = places.read_or_make(
                f"{job.name}-{folder.name}",
                # What is left out is said once.
                partial(measure, folder, inputs, silence if rows else say),
            )
            of_curve = known[job.arm, job.seed, step]
            columns = {name: of_curve[name] for name in ("arm", "seed", "step", "loss", "unigram_loss")}
            rows += [{**columns, **row} for row in layer_rows]
            advance(1)
    return rows


# What is taken over of the measures of a checkpoint.
_MEASURES = ("layer", "outlier_neuron", "max_mean_sd", "position_accuracy", "token_accuracy")


def stretched(arm: str, model: Any, n_more: int, initial_sd: float) -> Any:
    """Return a copy of a trained model that reads rows of `n_more` more tokens than in its training.

    The arm has no learned table of positions. Only tables that follow a rule become longer: tables of zeros, of equal
    rows and of sines, and rotations. Biases and embeddings of distances are the trained ones. `initial_sd` is the
    standard deviation of the initial token embeddings.
    """
    config = deepcopy(model.config)
    config.max_position_embeddings += n_more
    longer = type(model)(config).eval()
    values = model.state_dict()
    with torch.no_grad():
        for name, value in longer.state_dict().items():
            if value.shape == values[name].shape:
                value.copy_(values[name])
        if arm not in ("rotary", "disentangled"):  # of the first, sines are not trained; the second has no table
            table = position_table(longer)
            table[:1] = position_table(model)[:1]
            fill_table(arm, table, initial_sd)
    return longer


def passages(sentences: Sequence[str], tokenizer: Any, length: int) -> Iterator[str]:
    """Yield consecutive sentences as one text of at least `length` tokens; the last ones do not fill one."""
    text: list[str] = []
    n_tokens = tokenizer.num_special_tokens_to_add()
    for sentence in sentences:
        text.append(sentence)
        n_tokens += len(tokenizer.tokenize(sentence))
        if n_tokens >= length:
            yield " ".join(text)
            text, n_tokens = [], tokenizer.num_special_tokens_to_add()


def measure_lengths(
    text: PackedText, config: RunPlan, multiples: Sequence[int], places: Places, cache: Path,
) -> list[Row]:  # fmt: skip
    """Measure all jobs on rows of multiples of the trained length; return the rows of `lengths.csv`."""
    due = [(multiple, job) for multiple in multiples for job in config.jobs]
    rows: list[Row] = []
    with stage(f"rows of {count(len(multiples), 'length')}", len(due)) as advance:
        for multiple in multiples:
            reader = _HeldOutReader(text, config, multiple, places, cache / places.folder.name)
            for job in config.jobs:
                layer_rows = places.read_or_make(f"{job.name}-x{multiple}", partial(reader.read, job))
                columns = {"arm": job.arm, "seed": job.seed, "step": config.recipe.steps, "length": reader.length}
                rows += [{**columns, **row} for row in layer_rows]
                advance(1)
    order = [(job.arm, job.seed) for job in config.jobs]
    return sorted(rows, key=lambda row: order.index((row["arm"], row["seed"])))


class _HeldOutReader:
    """Reader of held-out text in rows of one length, in multiples of the rows of the training."""

    def __init__(self, text: PackedText, config: RunPlan, multiple: int, places: Places, cache: Path) -> None:
        self.config, self.places, trained = config, places, config.shape.row_length
        self.length, self.n_more = multiple * trained, (multiple - 1) * trained
        sentences, self.tokenizer = text.validation_corpus.sentences, deepcopy(text.tokenizer)
        self.tokenizer.model_max_length = self.length
        # As much text as in rows of the training.
        n_rows = -(-len(text.validation) // multiple)
        self.text = replace(text, validation=packed(sentences, text.tokenizer, self.length)[:n_rows])
        read = list(dict.fromkeys(passages(sentences, text.tokenizer, self.length)))
        self.inputs: CheckpointInputs | None = None
        if read and len(self.text.validation):
            corpus = from_sentences("held-out text", read)
            self.inputs = CheckpointInputs.of(corpus, self.text.validation, config, cache)

    def read(self, job: TrainingJob) -> list[Row]:
        """Return a row for each layer, or a row with the reason for its absence."""
        if self.n_more and job.arm in LEARNED_TABLES:
            trained = self.config.shape.row_length
            return [{"reason": f"the table has {trained} positions, and none was learned for later tokens"}]
        if self.inputs is None:
            return [{"reason": f"the held-out text does not fill a row of {self.length} tokens"}]
        steps = self.config.recipe.steps
        checkpoint = checkpoint_folder(self.places.checkpoints, job.arm, job.seed, steps, steps)
        source = ModelSource(job.arm, checkpoint)
        model = class_of(job.arm).from_pretrained(source.checked(), trust_remote_code=False).eval()
        if self.n_more:
            model = stretched(job.arm, model, self.n_more, self.config.shape.initial_sd)
        rows = PackedRows(self.text, 1, None if job.arm == CAUSAL_LM else self.config.recipe.masked, job.seed)
        module = LanguageModel(model, job.arm, self.config.recipe, job.seed)
        losses = {"loss": module.validation_loss(rows.validation_batches()), "unigram_loss": rows.unigram_loss()}
        folder = self.places.folder / "state" / f"{job.name}-x{self.length}" / "longer"
        if self.places.writes:
            save_checkpoint(folder, job.arm, model, self.tokenizer)
        sum_over_ranks(torch.zeros(1))  # all processes read it
        try:
            layer_rows = measure(folder, self.inputs, silence)
        except UserError as error:  # too few texts of this length for probes
            return [{**losses, "reason": f"positions and outliers are not measured: {as_clause(error)}"}]
        finally:
            if self.places.writes:
                shutil.rmtree(folder.parent, ignore_errors=True)
        return [{**losses, **{name: row[name] for name in _MEASURES}} for row in layer_rows]


# Growth is measured over the last steps: from a sixteenth of them on.
LAST = 16


def growth_of(rows: Table, arm: str = "learned") -> dict[str, float | None] | None:
    """Return the growth of an arm's farthest mean above the embeddings with log2 of the steps, and an extrapolation.

    For each seed, a line is fitted to the checkpoints after a sixteenth of the steps, by least squares. The slope is
    the mean over seeds, with Student's t interval. The number of steps after which the farthest mean would be an
    outlier is extrapolated from its mean over seeds after the last step. The ends of its interval follow from the ends
    of the slope's interval; it has no upper end if the lower slope is 0 or less.

    Returns:
        `first_step` of the fit; `slope`, in sd for each doubling of the steps; `now`, the farthest mean after the last
        step, over seeds; and `steps`. `slope` and `steps` have the ends of an interval, which are None for a single
        seed. None if there are fewer than two checkpoints.
    """
    arm_rows = rows.where(lambda row: row["layer"] > 0 and row["step"] > 0, arm=arm)
    last = max(arm_rows.column("step"), default=0)
    fitted = sorted(step for step in arm_rows.values("step") if step * LAST >= last)
    if len(fitted) < 2:
        return None
    seeds, by_step = sorted(arm_rows.values("seed")), arm_rows.by("seed", "step")
    farthest = np.array([[max(by_step[seed, step].column("max_mean_sd")) for step in fitted] for seed in seeds])
    slopes = np.polyfit(np.log2(fitted), farthest.T, 1)[0]
    slope, now = float(slopes.mean()), float(farthest[:, -1].mean())
    low = high = None
    if len(seeds) > 1:
        reach = stdtrit(len(seeds) - 1, (1 + LEVEL) / 2) * slopes.std(ddof=1) / math.sqrt(len(seeds))
        low, high = slope - float(reach), slope + float(reach)
    return {
        "first_step": fitted[0], "slope": slope, "slope_low": low, "slope_high": high, "now": now,
        "steps": _steps(last, now, slope), "steps_low": _steps(last, now, high), "steps_high": _steps(last, now, low),
    }  # fmt: skip


def _steps(last: int, now: float, slope: float | None) -> float | None:
    """Return the number of steps to an outlier; None if never, or beyond the limit of extrapolation."""
    if slope is None or slope <= 0:
        return None
    doublings = max(0.0, (OUTLIER - now) / slope)
    return last * 2.0**doublings if doublings < DOUBLINGS else None


def study_output(tables: Mapping[str, Sequence[Row]], corpus: Corpus, name: str, text: PackedText) -> Measurements:
    """Return the output of a run on a corpus of this name."""
    arms = Table(tables["arms"], ARMS)
    judgement = judge(arms)
    results = {
        "corpus": {"name": name, "fingerprint": corpus.fingerprint, "n_sentences": len(corpus.sentences)},
        "n_vocabulary": len(text.tokenizer),
        "n_training_rows": len(text.train),
        "n_held_out_rows": len(text.validation),
        "verdict": judgement.verdict,
        "reason": judgement.reason,
        "growth": growth_of(arms),
    }
    return Measurements(tables, results)
