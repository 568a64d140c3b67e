"""A task whose classes are decoded from the layers of a changed model, by probes of the intact model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.activations import ActivationStore
from probing.activations.source import ActivationSource
from probing.activations.store import StorePlan, WorkStore, divide
from probing.cli.options import ProbeOptions
from probing.data.examples import Examples, SentenceVectors, Sides
from probing.data.labelling import ExampleChecks, class_of_tokens, label_sides
from probing.data.module import layer_moments
from probing.errors import UserError
from probing.interventions import POSITION
from probing.interventions.forward import Forward
from probing.interventions.frozen_probes import at_tokens, standing_for
from probing.interventions.passes import fingerprint_of
from probing.models import ModelSource
from probing.probes.training import CONTROL_TOLERANCE, Training, train_probes, training_of
from probing.runs.places import task_of
from probing.runs.run import Run
from probing.text import Corpus, Split
from probing.text.tasks import (
    Labels,
    SentenceTask,
    TokenTask,
    described,
    labels_of,
    predicts_numbers,
    refuse_spans,
    short_name,
)
from probing.text.tokens import Tokens

# Index of the file of the probes; that of the i-th pass is one higher than i.
PROBES = 0

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
    needed = [f"`--kinds {kind}`" for kind in kinds if kind in OF_CLASSES]
    if not (requests := [*needed, *(["the readout task"] if wants_readout else [])]):
        return task
    refuse_spans(task, flag_text, "give a run of another task, or other `--readouts`")
    if predicts_numbers(task):
        raise UserError(
            f"`{flag_text}`: its task {name} predicts numbers, and {requests[0]} needs classes; give `--readouts "
            "position` or others, and `--kinds mean`, zero or resample."
        )
    if isinstance(task, SentenceTask) and task.pooling == "max":
        raise UserError(
            f"`{flag_text}`: its probes read the maximum over a sentence's tokens, and {requests[0]} needs the mean or "
            "one token; give a run with `--task_args.pooling mean`."
        )
    if isinstance(task, SentenceTask) and task.pooling == "cls" and needed:
        raise UserError(
            f"`{flag_text}`: its probes read the first token of a sentence, and {needed[0]} changes words by what "
            "tells the class in them; give a run with `--task_args.pooling mean`, or `--kinds mean`, zero or resample."
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
        return ExampleChecks(self.task, self.corpora, self.splits, PROBE, self.source.say).by_corpus()

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

    def read(self, layer: int, shard: int, /) -> Tensor:
        """Return the hidden states of a shard, shape (n, d_model)."""
        return self.states[layer][self.plan.shards[shard].rows(self.tokens)]


@dataclass(frozen=True)
class Labelled:
    """Passes over a text, and the class of each token that is or represents an example of a task, -1 for others."""

    passes: Forward
    labels: NDArray[np.int32]
    task: TokenTask

    def examples(self, job: Any, layers: Sequence[int]) -> Examples:
        """Return the examples with their hidden states under a job's change."""
        store, task = LayersInMemory(self.passes.tokens, self.passes.states(job, layers)), self.task
        if isinstance(task, SentenceTask):
            # Each sentence has one label at most; the others are -1.
            labels = np.full(store.tokens.n_sentences, -1, dtype=np.int32)
            np.maximum.at(labels, store.tokens.sentences, self.labels)
            return Examples(SentenceVectors(store, task.pooling), labels, pooling=task.pooling)
        return Examples(store, self.labels, word_means=task.word_means)


def retrained(
    train: Labelled, test: Labelled, classes: Labels, job: Any, training: Training, layers: Sequence[int]
) -> Tensor:
    """Train a probe of each layer under a job's change; return correct test predictions, (n_layers, n_sentences)."""
    right = []
    for some in _in_memory(train, test, layers):
        sides = [part.examples(job, some) for part in (train, test)]
        nothing = replace(sides[0], labels=np.full_like(sides[0].labels, -1))
        of_sides = Sides(sides[0], nothing, sides[1], classes, train.task.ordinal)
        fits = train_probes(of_sides, some, training, "retrained")
        right += [fit.correct_by_sentence for fit in fits]
    return torch.from_numpy(np.array(right, dtype=np.float32))


def _in_memory(train: Labelled, test: Labelled, layers: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield the layers in groups whose hidden states fit into memory together."""
    n_tokens = sum(part.passes.tokens.n_tokens for part in (train, test))
    n = max(1, MEMORY // (4 * n_tokens * test.passes.d_model))
    yield from (layers[first : first + n] for first in range(0, len(layers), n))
