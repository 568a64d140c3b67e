"""Measures what a model loses without its heads and layers: probes, passes that go on where they stopped, and rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache import ActivationStore, job_lock
from probing.cache.extraction import forward_trainer
from probing.cache.plan import fingerprint
from probing.cache.source import ActivationSource
from probing.cache.store import leftovers, remove
from probing.cli.options import ProbeOptions
from probing.corpus import Corpus, Split
from probing.data.examples import class_of_tokens
from probing.data.layer_moments import layer_moments
from probing.data.preparation import example_checks, label_sides
from probing.disabling.effects import Measured, Rows, better_without_rows, effect_rows, measured_of
from probing.disabling.importance import importance, importance_rows
from probing.disabling.later_blocks import LaterBlocks
from probing.disabling.passes import Passes
from probing.disabling.readouts import Probes
from probing.disabling.retraining import Labelled, chosen_units, retrained
from probing.disabling.store import PROBES, PassStore, fingerprint_of
from probing.disabling.text import Text, draw_text
from probing.disabling.units import Job, Kind, UnitType, all_jobs, wanted
from probing.errors import UserError
from probing.models import load_encoder, load_tokenizer
from probing.probes.options import training_of
from probing.probes.recipe import CONTROL_TOLERANCE, Progress, Training
from probing.probes.training import train_probes
from probing.runtime.terminal import counted
from probing.tasks import Labels, load_task

# Increased whenever the meaning of what is stored changes.
FORMAT = 1
# Read by probes that stay as they were, and by probes that are trained again.
POSITION, RETRAINED = "position", "position_retrained"
# As `fit` trains probes, but only until their accuracy no longer changes, since no neurons are ranked by them, and at a
# penalty near those that `fit` chooses: to choose it takes longer than all passes. `--run` reads the probes of `fit`.
PROBE = ProbeOptions(l2=1e-4, tolerance=CONTROL_TOLERANCE)


@dataclass(frozen=True)
class Asked:
    """What is asked.

    Args:
        units: Whether heads, layers or both are disabled.
        kinds: What stands in their place.
        blocks: The blocks that are changed.
        n_tokens: Most tokens of the text that is read.
        n_retrained: Number of the strongest heads and layers, and of random ones, whose probes are trained again.
        seed: Seed of every random draw.
    """

    units: Sequence[UnitType]
    kinds: Sequence[Kind]
    blocks: Sequence[int]
    n_tokens: int
    n_retrained: int
    seed: int


@dataclass(frozen=True)
class Frozen:
    """Probes that another run trained.

    Args:
        weight: Weight of each layer's probe on raw hidden states, shape (n_classes, d_model), by layer number.
        classes: The position of each class.
    """

    weight: Mapping[int, Tensor]
    classes: Labels


def frozen_of(weight: Mapping[int, Tensor], classes: Sequence[Any], typed: str) -> Frozen:
    """Return probes of another run.

    Args:
        weight: Weight of each layer's probe on raw hidden states, by layer number.
        classes: The label of each class.
        typed: The option that names the run, for messages.

    Raises:
        UserError: If the run has no probe of a layer above the embeddings.
    """
    if not weight:
        raise UserError(f"`{typed}` has probes of the embeddings alone, which no head changes; give another run.")
    return Frozen(weight, np.array(classes, dtype=np.int64))


@dataclass(frozen=True)
class Subject:
    """A model and what it reads.

    Args:
        source: The model, with all of its layers, and the cache.
        corpora: The corpus, and the test corpus if there is one.
        splits: Side of each sentence of each corpus.
        split_seed: Seed of the split, and of the training of probes.
        frozen: Probes of another run; None to train them here.
    """

    source: ActivationSource
    corpora: Sequence[Corpus]
    splits: Sequence[Sequence[Split]]
    split_seed: int
    frozen: Frozen | None = None

    @cached_property
    def pad_token_id(self) -> int:
        """Id of the padding token."""
        return load_tokenizer(self.source.model).pad_token_id or 0

    @cached_property
    def model(self) -> LaterBlocks:
        """The model.

        Raises:
            UserError: If its blocks or heads cannot be told.
        """
        encoder = load_encoder(self.source.model, self.source.random_weights_seed)
        return LaterBlocks.of(encoder, self.pad_token_id, self.source.model.name)

    def read(self) -> list[ActivationStore]:
        """Return the activations of each corpus, extracting what is not cached.

        Raises:
            UserError: If the model's blocks or heads cannot be told, or no sentence of a side has a token of any class.
        """
        _ = self.model  # what cannot be disabled is refused before any work
        checks = example_checks(load_task(POSITION, {}), self.corpora, self.splits, PROBE, self.source.say)
        return self.source.read(self.corpora, checks)


@dataclass(frozen=True)
class Found:
    """What was found.

    Args:
        disabled: Rows of `disabled.csv`.
        better_without: Rows of `better_without.csv`.
        importance: Rows of `importance.csv`; empty if no heads are disabled.
        n_heads: Number of heads of a block.
        text: The sentences that were read.
        accuracy: Share of the positions that each layer's probe predicts rightly while nothing is disabled, by layer.
        n_examples: Number of tokens whose position was predicted.
    """

    disabled: Rows
    better_without: Rows
    importance: Rows
    n_heads: int
    text: Text
    accuracy: Mapping[int, float]
    n_examples: int

    @property
    def tables(self) -> dict[str, Rows]:
        """The rows by the name of their table."""
        named = {"disabled": self.disabled, "better_without": self.better_without, "importance": self.importance}
        return {name: rows for name, rows in named.items() if rows or name != "importance"}


def survey(subject: Subject, stores: Sequence[ActivationStore], asked: Asked, progress: Progress) -> Found:
    """Disable one unit after the other, and read the later layers.

    Args:
        subject: Model and corpora.
        stores: The activations of each corpus.
        asked: What is asked.
        progress: Returns Lightning callbacks that show the training of probes.

    Raises:
        UserError: If the cache cannot be written.
    """
    source = subject.source
    text = draw_text(stores[-1], _is(subject.splits[-1], "test"), asked.n_tokens, asked.seed)
    train = draw_text(stores[0], _is(subject.splits[0], "train"), asked.n_tokens, asked.seed)
    encoder, heads = subject.model.encoder, subject.model.heads
    jobs = all_jobs(heads.n_layers, heads.n_heads)
    key = _key(subject, stores, asked)
    folder = source.cache / f"{source.model.short_name}-{fingerprint(key)[:16]}"
    with job_lock(source.cache, folder.name, source.say):
        for path in leftovers(folder):
            remove(path)
        described = {name: stores[-1].header[name] for name in ("model", "revision", "corpus", "versions")}
        plan = stores[-1].plan
        store = PassStore.opened(folder, key, text.tokens, 2 * len(jobs) + 1, plan.batch_tokens, described)
        probes, classes = _probes(subject, stores, text, store, progress)

        def passes(of: Text) -> Passes:
            encoder.to(forward_trainer({"devices": 1, **_device(source.trainer)}, ()).strategy.root_device)
            own = (encoder, subject.pad_token_id, source.model.name)
            return Passes(*own, of, train, probes, plan.batch_tokens, asked.seed)

        passes_of = cache(passes)
        chosen = {i + 1: job for i, job in enumerate(jobs) if wanted(job, asked.units, asked.kinds, asked.blocks)}
        results = _results(
            chosen, store, lambda job: passes_of(text).run(job), "heads and layers", source.shows_progress
        )  # fmt: skip
        n = probes.n_by_sentence(text.tokens)
        layers = {block: probes.layers(block) for block in asked.blocks}
        measured = measured_of(results, layers, n, POSITION)
        if asked.n_retrained:

            def again(job: Job) -> Tensor:
                of_train = _labels(subject, stores, 0, classes, "train")[train.of_corpus]
                of_text = probes.labels.numpy().astype(np.int32)
                parts = Labelled(passes_of(train), of_train), Labelled(passes_of(text), of_text)
                return retrained(*parts, classes, job, _training(subject, progress))

            last = {one.job: one.effect() for one in measured if one.layer == max(probes.weight)}
            strongest = chosen_units(list(results), last, asked.n_retrained, asked.seed)
            blocks = {job.block for job in strongest}
            jobs_again = [job for job in results if job in strongest or (job.kind is None and job.block in blocks)]
            files = {len(jobs) + 1 + jobs.index(job): job for job in jobs_again}
            repeated = _results(files, store, again, "retrained", source.shows_progress)
            measured += measured_of(repeated, layers, n, RETRAINED)
        rows = _importance(subject, text, probes, store, asked) if "heads" in asked.units else []
        store.touch()
    frozen = [one for one in measured if one.readout == POSITION]
    return Found(
        effect_rows(measured), better_without_rows(frozen, asked.seed), rows, heads.n_heads, text, _intact(frozen),
        int(n.sum()),
    )  # fmt: skip


def _importance(subject: Subject, text: Text, probes: Probes, store: PassStore, asked: Asked) -> Rows:
    """Return the rows of `importance.csv`, whose gradients are stored as the last file."""
    last, model = store.plan.n_layers, subject.model
    if store.unfinished([last]):
        found = importance(model, subject.pad_token_id, text, probes, store.plan.batch_tokens)
        store.put(last, {"importance": found})
    by_sentence = store.get(last)["importance"].numpy()
    n = probes.n_by_sentence(text.tokens)
    return importance_rows(by_sentence, n, asked.blocks, max(probes.weight), POSITION)


def _results(
    files: Mapping[int, Job], store: PassStore, run: Callable[[Job], Tensor], what: str, shows_progress: bool
) -> dict[Job, Any]:
    """Run the passes that are not stored yet, and return what each gave, shape (n_layers, n_sentences).

    Args:
        files: The passes, by the index of their file.
        store: Where they are stored.
        run: Runs one of them.
        what: What they are, for the progress bar.
        shows_progress: Whether there is a progress bar.
    """
    if left := store.unfinished(list(files)):
        with counted(what, len(files), shows_progress) as advance:
            advance(len(files) - len(left))
            for index in left:
                store.put(index, {"right": run(files[index])})
                advance(1)
    return {job: store.get(index)["right"].numpy() for index, job in files.items()}


def _probes(
    subject: Subject, stores: Sequence[ActivationStore], text: Text, store: PassStore, progress: Progress
) -> tuple[Probes, Labels]:
    """Return the probes of the later layers, trained unless they are stored or come from another run; and classes."""
    if subject.frozen is not None:
        weight, classes = dict(subject.frozen.weight), subject.frozen.classes
    else:
        if store.unfinished([PROBES]):
            store.put(PROBES, _trained(subject, stores, progress))
        found = store.get(PROBES)
        weight = dict(zip(range(1, len(found["weight"]) + 1), found["weight"], strict=True))
        classes = found["classes"].numpy()
    labels = _labels(subject, stores, -1, classes, "test")
    return Probes(weight, torch.from_numpy(labels[text.of_corpus].astype(np.int64))), classes


def _labels(
    subject: Subject, stores: Sequence[ActivationStore], part: int, classes: Labels, side: Split
) -> NDArray[np.int32]:
    """Return the class of each token of a corpus, -1 on other sides."""
    task, corpus, splits = load_task(POSITION, {}), subject.corpora[part], subject.splits[part]
    return class_of_tokens(stores[part].tokens, corpus, task, splits, classes, side)[0].astype(np.int32)


def _trained(subject: Subject, stores: Sequence[ActivationStore], progress: Progress) -> dict[str, Tensor]:
    """Train a probe of each layer but the embeddings, whose states no head changes."""
    source = subject.source
    sides = label_sides(stores, subject.corpora, subject.splits, load_task(POSITION, {}))
    layers = [layer for layer in source.layers if layer > 0]
    fits = train_probes(sides, layers, _training(subject, progress), moments=layer_moments(sides.train, layers))
    return {"weight": torch.stack([fit.weight for fit in fits]), "classes": torch.from_numpy(sides.classes)}


def _training(subject: Subject, progress: Progress) -> Training:
    assert PROBE.l2 != "auto"
    return training_of(PROBE, PROBE.l2, subject.split_seed, dict(subject.source.trainer), progress)


def _key(subject: Subject, stores: Sequence[ActivationStore], asked: Asked) -> dict[str, Any]:
    """Return everything that changes the results of a pass; units and kinds are not part of the key."""
    frozen = subject.frozen
    of_run = None if frozen is None else fingerprint_of(*frozen.weight, *frozen.weight.values(), frozen.classes)
    own = {
        "format": FORMAT,
        "readout": POSITION,
        "train": dict(stores[0].plan.key),
        "split_seed": subject.split_seed,
        "probes": of_run or asdict(PROBE),
        "retrained": asdict(PROBE),
        "trainer": {name: str(value) for name, value in subject.source.trainer.items()},
        "n_tokens": asked.n_tokens,
        "seed": asked.seed,
    }
    return {**stores[-1].plan.key, "disabling": own}


def _device(trainer: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in trainer.items() if name == "accelerator"}


def _is(splits: Sequence[Split], side: Split) -> Any:
    return np.array([split == side for split in splits], dtype=bool)


def _intact(measured: Sequence[Measured]) -> dict[int, float]:
    """Return the intact model's accuracy by layer."""
    found = {one.layer: float(one.intact.sum() / one.n.sum()) for one in measured}
    return dict(sorted(found.items()))


def check(units: Sequence[UnitType], kinds: Sequence[Kind]) -> None:
    """Refuse a choice under which nothing is disabled.

    Raises:
        UserError: If heads are to be skipped.
    """
    if list(units) == ["heads"] and list(kinds) == ["skip"]:
        raise UserError("`--kinds skip` takes whole layers out; give `--units layers`, or other kinds for heads.")
