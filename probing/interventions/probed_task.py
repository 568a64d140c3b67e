"""A task whose classes are decoded from the layers of a changed model, by probes of the intact model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.activations import ActivationStore, job_lock
from probing.activations.source import ActivationSource
from probing.activations.store import StorePlan, WorkPlan, WorkStore, divide, fingerprint
from probing.cli.options import ProbeOptions
from probing.data.examples import Examples, SentenceVectors, Sides
from probing.data.labelling import class_of_tokens, example_checks, label_sides
from probing.data.module import layer_moments
from probing.errors import UserError
from probing.interventions import POSITION
from probing.interventions.forward import Forward, LaterBlocks, Padded, ReadableText, Readers, Readout, draw_others
from probing.interventions.frozen_probes import at_tokens, standing_for
from probing.models import ModelSource
from probing.probes.training import CONTROL_TOLERANCE, Training, train_probes, training_of
from probing.runs.places import task_of
from probing.runs.run import Run
from probing.runtime.progress import counted
from probing.runtime.trainer import to_float64
from probing.text import Corpus, Split
from probing.text.tasks import Labels, SentenceTask, TokenTask, described, labels_of, predicts_numbers, short_name
from probing.text.tokens import Tokens

# Index of the file of the probes; that of the i-th pass is one higher than i.
PROBES = 0

_Job = TypeVar("_Job")


def fingerprint_of(*arrays: Any) -> str:
    """Return a fingerprint of arrays, SHA-256 in hex."""
    from hashlib import sha256

    digest = sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


@contextmanager
def opened(
    source: ActivationSource, key: Mapping[str, Any], read: ActivationStore, tokens: Tokens, n_passes: int, command: str
) -> Iterator[WorkStore]:
    """Open the store of the passes of a command, for which other jobs then wait; `key` is all that changes results.

    Raises:
        UserError: If the cache cannot be written.
    """
    folder = source.cache / f"{source.model.short_name}-{fingerprint(key)[:16]}"
    with job_lock(source.cache, folder.name, source.say):
        holds, batch_tokens = f"{{n}} files of {command}", read.plan.batch_tokens
        plan = WorkPlan.of_whole_text(key, holds, n_passes + 1, tokens, batch_tokens)
        store = WorkStore.opened(folder, lambda: (plan, tokens), read.description)
        yield store
        store.touch()


def run_unfinished(
    files: Mapping[int, _Job], store: WorkStore, run: Callable[[_Job], Tensor], what: str
) -> dict[_Job, NDArray[Any]]:
    """Run the passes, by index of their file, that are not stored yet; return their results, (n_rows, n_items)."""
    if unfinished := store.unfinished(list(files)):
        with counted(what, len(files), len(files) - len(unfinished)) as advance:
            for index in unfinished:
                store.put(index, {"right": run(files[index])})
                advance(1)
    return {job: store.get(index)["right"].numpy() for index, job in files.items()}


Kind = Literal["uniform", "zero", "mean", "resample", "skip"]

UnitType = Literal["heads", "layers"]

UNITS: tuple[UnitType, ...] = ("heads", "layers")

KINDS: tuple[Kind, ...] = ("uniform", "zero", "mean", "resample", "skip")

# A head cannot be skipped: without it, a block has another width.
OF_HEADS: tuple[Kind, ...] = ("uniform", "zero", "mean", "resample")


@dataclass(frozen=True)
class AblationJob:
    """One forward pass over the text with a head or a layer ablated.

    Args:
        block: The changed block, from 1.
        head: The head whose output is replaced, from 1; None for all heads of the block, or for the whole block.
        kind: The replacement: the heads' outputs under uniform attention, 0, the mean over training tokens, or the
            output at a random token of another sentence. `skip` removes the block: its output is its input. None for
            the baseline without a change.
    """

    block: int
    head: int | None
    kind: Kind | None

    @property
    def unit(self) -> str:
        """Name in tables: `3-9` is head 9 of layer 3, `3` is layer 3."""
        return str(self.block) if self.head is None else f"{self.block}-{self.head}"


def all_jobs(n_layers: int, n_heads: int) -> list[AblationJob]:
    """Return all possible passes, in the order in which they are computed and stored."""
    return [job for block in range(1, n_layers + 1) for job in _jobs_of_block(block, n_heads)]


def _jobs_of_block(block: int, n_heads: int) -> list[AblationJob]:
    of_heads = [AblationJob(block, head, kind) for head in range(1, n_heads + 1) for kind in OF_HEADS]
    return [AblationJob(block, None, None), *of_heads, *(AblationJob(block, None, kind) for kind in KINDS)]


def is_needed(job: AblationJob, units: Sequence[UnitType], kinds: Sequence[Kind], blocks: Sequence[int]) -> bool:
    """Return True if a pass is needed for the given units, kinds of replacement and blocks."""
    if job.block not in blocks:
        return False
    return job.kind is None or (job.kind in kinds and ("layers" if job.head is None else "heads") in units)


def uniform_outputs(values: Tensor, mask: Tensor, is_causal: bool) -> Tensor:
    """Return the outputs of heads under uniform attention: the mean of their values over the visible keys.

    With attention 1/L, all queries of a sentence get the same (Kovaleva et al. 2019, section 4.6). In a causal model,
    query i sees the keys up to itself, so that it gets the mean of the first i values.

    Args:
        values: The heads' values, shape (batch, heads, keys, d_head).
        mask: Whether there is a token, shape (batch, keys); padding is at the end.

    Returns:
        The concatenated outputs, shape (batch, queries, heads * d_head), with a single query for all if the model is
            not causal.
    """
    unmasked = values * mask[:, None, :, None]
    if is_causal:
        counts = torch.arange(1, values.shape[2] + 1, device=values.device, dtype=values.dtype)
        means = unmasked.cumsum(2) / counts[:, None]
    else:
        means = unmasked.sum(2, keepdim=True) / mask.sum(1).clamp_min(1)[:, None, None, None]
    return means.transpose(1, 2).flatten(2)


@dataclass(frozen=True)
class Replacements:
    """Possible replacements of the outputs of a block's heads, all heads side by side.

    Args:
        uniform: The outputs under uniform attention, shape (n_sentences, width), or (n_tokens, width) in causal models.
        mean: Mean of the outputs over training tokens, shape (width,).
        bank: Outputs at training tokens, shape (n, width).
        drawn: For each token of the text, the row of `bank` that replaces it, shape (n_tokens,).
    """

    uniform: Tensor
    is_causal: bool
    mean: Tensor
    bank: Tensor
    drawn: Tensor

    def of(self, kind: Kind, heads: slice, sentences: Tensor, rows: Tensor) -> Tensor:
        """Return the replacement of some columns in a batch, which broadcasts to shape (batch, sequence, columns)."""
        if kind == "zero":
            return torch.zeros_like(self.mean[heads])
        if kind == "mean":
            return self.mean[heads]
        if kind == "resample":
            return self.bank[:, heads][self.drawn[rows]]
        if kind == "uniform":
            return self.uniform[:, heads][rows] if self.is_causal else self.uniform[sentences, heads][:, None]
        raise ValueError(f"{kind} replaces no outputs of heads")


def replacing(heads: slice, others: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that copies a tensor and replaces the columns in `heads` by `others`."""

    def change(outputs: Tensor) -> Tensor:
        changed = outputs.clone()
        changed[..., heads] = others.to(outputs.dtype)
        return changed

    return change


@dataclass(frozen=True)
class Ablated:
    """The ablation of a head or a layer; `replacements` is None if nothing is replaced."""

    job: AblationJob
    columns: slice
    replacements: Replacements | None

    @property
    def layer(self) -> int:
        """The layer below the changed block."""
        return self.job.block - 1

    def later(
        self, model: LaterBlocks, batch: Padded, beside: Any, states: Tensor, layers: Sequence[int]
    ) -> dict[int, Tensor]:
        """Return later hidden states under the ablation."""
        change, kind = None, self.job.kind
        if self.replacements is not None and kind is not None:
            others = self.replacements.of(kind, self.columns, batch.sentences, batch.rows)
            change = replacing(self.columns, others)
        first = self.job.block + (kind == "skip")
        return model.run(batch.inputs, first, states, beside, layers, change)


class Passes:
    """Passes of a model's later blocks over a text, one for each job.

    Args:
        train: Training sentences, from which the replacements of heads' outputs are taken.
        batch_tokens: Maximum number of tokens in a batch, padding included.
        seed: Seed of the draw of the tokens whose outputs replace others.
    """

    def __init__(
        self, readers: Readers, text: ReadableText, train: ReadableText, batch_tokens: int, seed: int
    ) -> None:  # fmt: skip
        self.readers, self.model, self.device = readers, readers.model, readers.device
        self.text, self.train = (Forward(readers, read_text, batch_tokens) for read_text in (text, train))
        self.tokens, self.seed = text.tokens, seed
        self.d_model = int(self.model.encoder.config.hidden_size)  # type: ignore[union-attr,arg-type]
        self._replacements: tuple[int, Replacements] | None = None

    def change(self, job: AblationJob) -> Ablated:
        """Return the change of the model for a job."""
        replacements = self.replacements(job.block) if job.kind not in (None, "skip") else None
        return Ablated(job, self.model.columns(job.head), replacements)

    def run(self, job: AblationJob, readout: Readout) -> Tensor:
        """Return a readout, shape (n_layers, n_items), for the layers `readout.layers(job.block)`."""
        return self.text.read(self.change(job), readout)

    def states(self, job: AblationJob, layers: Sequence[int]) -> dict[int, Tensor]:
        """Return the hidden states of layers from the changed block's on, shape (n_tokens, d_model), float32."""
        return self.text.states(self.change(job), layers)

    def replacements(self, block: int) -> Replacements:
        """Return the possible replacements of the outputs of a block's heads; caches those of one block."""
        if self._replacements is None or self._replacements[0] != block:
            self._replacements = block, self._find_replacements(block)
        return self._replacements[1]

    def _find_replacements(self, block: int) -> Replacements:
        is_causal, width = self.model.heads.is_causal, self.model.width
        n_tokens, n_sentences = self.tokens.n_tokens, self.tokens.n_sentences
        uniform = torch.zeros(n_tokens if is_causal else n_sentences, width, device=self.device)
        bank = torch.zeros(self.train.text.tokens.n_tokens, width, device=self.device)

        def note_uniform(model: LaterBlocks, batch: Padded, beside: Any, states: Tensor) -> None:
            _, values = model.outputs_of_heads(batch.inputs, block, states, beside)
            outputs = uniform_outputs(values, batch.mask, is_causal)
            if is_causal:
                uniform[batch.rows[batch.mask]] = outputs[batch.mask]
            else:
                uniform[batch.sentences] = outputs[:, 0]

        def note_outputs(model: LaterBlocks, batch: Padded, beside: Any, states: Tensor) -> None:
            outputs, _ = model.outputs_of_heads(batch.inputs, block, states, beside)
            bank[batch.rows[batch.mask]] = outputs[batch.mask]

        self.text.over(block - 1, note_uniform)
        self.train.over(block - 1, note_outputs)
        mean = to_float64(bank).mean(0).to(bank)
        return Replacements(uniform, is_causal, mean, bank, self._drawn)

    @cached_property
    def _drawn(self) -> Tensor:
        """Training token whose outputs replace the outputs of each token of the text, the same in all blocks."""
        others = self.train.text.tokens.sentences
        drawn = draw_others(self.tokens.sentences, others, self.text.text is self.train.text, self.seed)
        return torch.from_numpy(drawn).to(self.device)


# Probes are trained as by `fit`, with two differences. Training stops when accuracy no longer changes, because no
# neurons are ranked by these probes. The penalty is fixed, near the values that `fit` chooses, because choosing it
# takes longer than all passes. Probes of a run of `fit` are used instead where there is one.
PROBE = ProbeOptions(l2=1e-4, tolerance=CONTROL_TOLERANCE)

# Kinds of replacement that are fitted on the classes of a task.
OF_CLASSES = frozenset({"direction", "shuffled", "translate"})


@dataclass(frozen=True)
class Frozen:
    """Probes of another run: weights on raw hidden states by layer, shape (n_classes, d_model), and classes."""

    weight: Mapping[int, Tensor]
    classes: Labels


def frozen_of(weight: Mapping[int, Tensor], classes: Sequence[Any], flag_text: str) -> Frozen:
    """Return probes of another run.

    Raises:
        UserError: If the run has no probe of a layer above the embeddings.
    """
    if not weight:
        raise UserError(f"`{flag_text}` has probes of the embeddings alone, which no head changes; give another run.")
    are_texts = any(isinstance(label, str) for label in classes)
    return Frozen(weight, np.array(classes, dtype=object if are_texts else np.int64))


def frozen_of_run(
    run: Run, model: ModelSource, random_weights_seed: int | None, layers: Sequence[int], option: str
) -> Frozen | None:
    """Return the probes of a run of `fit` if it has classes and probes of all given layers, otherwise None.

    Raises:
        UserError: If the model has changed since.
    """
    before = run.results["cache"]["test"]["key"]["model"]
    if model.fingerprint(weights=random_weights_seed is None) != before:
        raise UserError(
            f"`--{option} {run.folder}`: its model {run.config['model']} has changed since; repeat the run."
        )
    run_layers = [row["layer"] for row in run.accuracy]
    if run.is_of_numbers or not set(layers) <= set(run_layers):
        return None
    weight = {layer: run.weight[run_layers.index(layer)] for layer in run_layers if layer > 0}
    return frozen_of(weight, run.results["classes"], f"--{option} {run.folder}")


def task_of_run(run: Run, flag_text: str, wants_readout: bool, kinds: Sequence[str]) -> TokenTask:
    """Return the task of a run of `fit`; with `wants_readout`, its classes are a readout.

    Raises:
        UserError: If the task is unavailable, or lacks the classes or vectors that the readout or the kinds need.
    """
    task, name = task_of(run), short_name(run.config)
    needed = [f"`--kind {kind}`" for kind in kinds if kind in OF_CLASSES]
    if not (requests := [*needed, *(["the readout task"] if wants_readout else [])]):
        return task
    if predicts_numbers(task):
        raise UserError(
            f"`{flag_text}`: its task {name} predicts numbers, and {requests[0]} needs classes; give `--readouts "
            "position` or others, and `--kind mean`, zero or resample."
        )
    if isinstance(task, SentenceTask) and task.pooling == "max":
        raise UserError(
            f"`{flag_text}`: its probes read the maximum over a sentence's tokens, and {requests[0]} needs the mean or "
            "one token; give a run with `--task_args.pooling mean`."
        )
    if isinstance(task, SentenceTask) and task.pooling == "cls" and needed:
        raise UserError(
            f"`{flag_text}`: its probes read the first token of a sentence, and {needed[0]} changes words by what "
            "tells the class in them; give a run with `--task_args.pooling mean`, or `--kind mean`, zero or resample."
        )
    return task


@dataclass(frozen=True, eq=False)
class ProbedTask:
    """A task, its labelled corpus, and the probes that decode its classes.

    Args:
        name: Name of the readout: `position`, or `task` for the task of a run.
        frozen: Probes of another run; None to train them here.
        source: The model, with all of its layers, and the cache.
        corpora: The corpus, and the test corpus if there is one.
        splits: Split of each sentence of each corpus.
        split_seed: Seed of the split, and of the training of probes.
    """

    name: str
    task: TokenTask
    frozen: Frozen | None
    source: ActivationSource
    corpora: Sequence[Corpus]
    splits: Sequence[Sequence[Split]]
    split_seed: int

    def checks(self) -> list[Callable[[Tokens], None]]:
        """Return a check for each corpus, which rejects a split without examples."""
        return example_checks(self.task, self.corpora, self.splits, PROBE, self.source.say)

    def labels(self, stores: Sequence[ActivationStore], part: int, classes: Labels, side: Split) -> NDArray[np.int32]:
        """Return the class of each token of a corpus that is or represents an example of a split, -1 for others.

        `part` is the index of the corpus.
        """
        tokens = stores[part].tokens
        classified = class_of_tokens(tokens, self.corpora[part], self.task, self.splits[part], classes, side)
        return at_tokens(self.task, tokens, classified.labels.astype(np.int32))

    def stands(self, tokens: Tokens) -> Tensor | None:
        """Return the row of the token that represents each token's example; None if examples are single tokens."""
        row_of_example = standing_for(self.task, tokens)
        return None if row_of_example is None else torch.from_numpy(row_of_example)

    def train(self, stores: Sequence[ActivationStore]) -> dict[str, Tensor]:
        """Return trained weights, (n_layers, n_classes, d_model), of all layers but the embeddings, and classes.

        Nothing changes the embeddings. Classes that are texts are not returned, because they are no tensors.
        """
        sides = label_sides(stores, self.corpora, self.splits, self.task)
        layers = [layer for layer in self.source.layers if layer > 0]
        fits = train_probes(sides, layers, self.training(), moments=layer_moments(sides.train, layers))
        class_tensors = {} if sides.classes.dtype.kind == "O" else {"classes": torch.from_numpy(sides.classes)}
        return {"weight": torch.stack([fit.weight for fit in fits]), **class_tensors}

    def probes(self, stores: Sequence[ActivationStore], store: WorkStore | None) -> tuple[dict[int, Tensor], Labels]:
        """Return the weight of each layer's probe (of another run, stored, or trained now), and the classes.

        `store` may be None for probes of another run.
        """
        if store is None or self.frozen is not None:
            assert self.frozen is not None
            return dict(self.frozen.weight), self.frozen.classes
        if store.unfinished([PROBES]):
            store.put(PROBES, self.train(stores))
        stored = store.get(PROBES)
        weight = dict(zip(range(1, len(stored["weight"]) + 1), stored["weight"], strict=True))
        # Labels that are texts are no tensor; they are chosen again, from the same training text.
        known = stored.get("classes")
        classes = label_sides(stores, self.corpora, self.splits, self.task).classes if known is None else known.numpy()
        return weight, classes

    def training(self) -> Training:
        """Return the settings of the training of probes."""
        assert PROBE.l2 != "auto"
        return training_of(PROBE, PROBE.l2, self.split_seed, dict(self.source.trainer))

    def key(self, stores: Sequence[ActivationStore]) -> dict[str, Any]:
        """Return all that determines the probes and the examples, for cache keys."""
        frozen = self.frozen
        of_run = (
            None if frozen is None else fingerprint_of(*frozen.weight, *frozen.weight.values(), _plain(frozen.classes))
        )
        key = {"probes": of_run or asdict(PROBE), "retrained": asdict(PROBE)}
        if self.name == POSITION:
            return key
        pairs = zip(stores, self.corpora, strict=True)
        labels = [_plain(labels_of(self.task, store.tokens, corpus)) for store, corpus in pairs]
        return {**key, **described(self.task, None), "labels": fingerprint_of(*labels)}


def _plain(labels: Labels) -> NDArray[Any]:
    """Return labels as an array whose bytes are the labels, also if they are texts."""
    return labels.astype(np.str_) if labels.dtype.kind == "O" else labels


# Maximum number of bytes of hidden states in memory; if all layers need more, passes are repeated for a few layers at a
# time.
MEMORY = 512 * 2**20

_SHARD_TOKENS = 8192


@dataclass(frozen=True)
class LayersInMemory:
    """A store of some layers' activations in memory, shape (n_tokens, d_model) for each layer."""

    tokens: Tokens
    states: Mapping[int, Tensor]

    @property
    def plan(self) -> StorePlan:
        """Division into shards, and width."""
        d_model = next(iter(self.states.values())).shape[1]
        return StorePlan({}, max(self.states), d_model, "float32", 1, divide(self.tokens.lengths, _SHARD_TOKENS))

    def shard_tokens(self, shard: Any) -> slice:
        """Return the shard's rows of the table of tokens."""
        return self.tokens.of_sentences(shard.first_sentence, shard.n_sentences)

    def read(self, layer: int, shard: int, /) -> Tensor:
        """Return the hidden states of a shard, shape (n, d_model)."""
        return self.states[layer][self.shard_tokens(self.plan.shards[shard])]


@dataclass(frozen=True)
class Labelled:
    """Passes over a text, and the class of each token that is or represents an example, -1 for others.

    The task defines an example's vector; None if it is the hidden state of its token.
    """

    passes: Passes
    labels: NDArray[np.int32]
    task: TokenTask | None = None

    def examples(self, job: AblationJob, layers: Sequence[int]) -> Examples:
        """Return the examples with their hidden states under an ablation."""
        store, task = LayersInMemory(self.passes.tokens, self.passes.states(job, layers)), self.task
        if isinstance(task, SentenceTask):
            # Each sentence has one label at most; the others are -1.
            labels = np.full(store.tokens.n_sentences, -1, dtype=np.int32)
            np.maximum.at(labels, store.tokens.sentences, self.labels)
            return Examples(SentenceVectors(store, task.pooling), labels, pooling=task.pooling)
        return Examples(store, self.labels, word_means=task is not None and task.word_means)


def retrained(
    train: Labelled, test: Labelled, classes: Labels, job: AblationJob, training: Training, layers: Sequence[int]
) -> Tensor:
    """Train a probe of each layer under an ablation; return correct test predictions, (n_layers, n_sentences)."""
    right = []
    for some in _in_memory(train, test, layers):
        sides = [part.examples(job, some) for part in (train, test)]
        nothing = replace(sides[0], labels=np.full_like(sides[0].labels, -1))
        ordinal = train.task is None or train.task.ordinal
        fits = train_probes(Sides(sides[0], nothing, sides[1], classes, ordinal), some, training, "retrained")
        right += [fit.correct_by_sentence for fit in fits]
    return torch.from_numpy(np.array(right, dtype=np.float32))


def _in_memory(train: Labelled, test: Labelled, layers: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield the layers in groups whose hidden states fit into memory together."""
    n_tokens = sum(part.passes.tokens.n_tokens for part in (train, test))
    n = max(1, MEMORY // (4 * n_tokens * test.passes.d_model))
    yield from (layers[first : first + n] for first in range(0, len(layers), n))


def chosen_units(
    jobs: Sequence[AblationJob], effects: Mapping[AblationJob, float], n: int, seed: int
) -> list[AblationJob]:
    """Return the n heads that cost most in the last layer and n random others, likewise layers, for one kind."""
    generator = np.random.default_rng(seed)
    selected: list[AblationJob] = []
    for is_layer in (False, True):
        candidates = [job for job in jobs if job.kind is not None and (job.head is None) is is_layer]
        kinds: list[Kind | None] = list(dict.fromkeys(job.kind for job in candidates))
        candidates = [job for job in candidates if job.kind == kinds[0]]
        strongest = sorted(candidates, key=lambda job: effects[job])[:n]
        others = [job for job in candidates if job not in strongest]
        drawn = generator.permutation(len(others))[:n]
        selected += strongest + [others[i] for i in sorted(drawn.tolist())]
    return selected
