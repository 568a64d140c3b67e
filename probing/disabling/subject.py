"""The model that heads are disabled in, what it reads, and what is read out of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.cache import ActivationStore
from probing.cache.extraction import forward_trainer
from probing.cache.passes import PassStore
from probing.cache.source import ActivationSource
from probing.cli.options import ProbeOptions
from probing.corpus import Corpus
from probing.corpus.splits import Split
from probing.data.labelling import class_of_tokens
from probing.data.layer_moments import layer_moments
from probing.data.preparation import example_checks, label_sides
from probing.disabling.store import PROBES, fingerprint_of
from probing.downstream.wic.evaluation import target_check
from probing.errors import UserError
from probing.models import ModelSource, load_encoder, load_tokenizer
from probing.probes.options import training_of
from probing.probes.recipe import CONTROL_TOLERANCE, Progress, Training
from probing.probes.training import train_probes
from probing.readouts.forward import Readers
from probing.readouts.later_blocks import LaterBlocks
from probing.readouts.masked_words import MaskedWordLoss, masked_lm_of
from probing.readouts.readout import Readout
from probing.readouts.sentence_similarity import drawn, halves, read_similarity, similarity_readout
from probing.readouts.text import Text
from probing.readouts.word_senses import READ, TRAIN, Rule, read_senses, rule_of, senses_readout
from probing.runs.run import Run
from probing.tables.readout_names import MLM, POSITION, STS, WIC
from probing.tasks import Labels, load_task

# Probes are trained as by `fit`, with two differences. Training stops when accuracy no longer changes, because no
# neurons are ranked by these probes. The penalty is fixed, near the values that `fit` chooses, because choosing it
# takes longer than all passes. With `--run`, the probes of a run of `fit` are used instead.
PROBE = ProbeOptions(l2=1e-4, tolerance=CONTROL_TOLERANCE)


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


def frozen_of_run(
    run: Run, model: ModelSource, random_weights_seed: int | None, layers: Sequence[int], option: str
) -> Frozen | None:
    """Return the probes of a run if they read positions from all of the given layers, otherwise None.

    Args:
        run: A run of `fit`.
        model: The model that is changed.
        random_weights_seed: Seed of the weights, if they are random.
        layers: The layers that are read.
        option: The option that names the run.

    Raises:
        UserError: If the model has changed since.
    """
    before = run.results["cache"]["test"]["key"]["model"]
    if model.fingerprint(weights=random_weights_seed is None) != before:
        raise UserError(
            f"`--{option} {run.folder}`: its model {run.config['model']} has changed since; repeat the run."
        )
    there = [row["layer"] for row in run.accuracy]
    if run.config["task"] != "position" or run.config["task_args"] or not set(layers) <= set(there):
        return None
    weight = {layer: run.weight[there.index(layer)] for layer in there if layer > 0}
    return frozen_of(weight, run.results["classes"], f"--{option} {run.folder}")


def data_of(wanted: Mapping[str, str | None]) -> dict[str, Any]:
    """Read the data of readouts that need some.

    Args:
        wanted: What is read out, with its data as typed.

    Raises:
        UserError: If data cannot be read.
    """
    readers: dict[str, Any] = {STS: read_similarity, WIC: read_senses}
    return {name: readers[name](data) if name in readers else None for name, data in wanted.items()}


@dataclass(frozen=True)
class Subject:
    """A model and what it reads.

    Args:
        source: The model, with all of its layers, and the cache.
        corpora: The corpus, and the test corpus if there is one.
        splits: Side of each sentence of each corpus.
        split_seed: Seed of the split, and of the training of probes.
        frozen: Probes of another run; None to train them here.
        wanted: What is read out, by the name of the option, with its data; None where there is none.
    """

    source: ActivationSource
    corpora: Sequence[Corpus]
    splits: Sequence[Sequence[Split]]
    split_seed: int
    frozen: Frozen | None = None
    wanted: Mapping[str, Any] = field(default_factory=lambda: {POSITION: None})

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return load_tokenizer(self.source.model)

    @property
    def pad_token_id(self) -> int:
        """Id of the padding token."""
        return self.tokenizer.pad_token_id or 0

    @cached_property
    def masked_lm(self) -> nn.Module | None:
        """The model with its masked-language-model head; None if no masked words are read out.

        Raises:
            UserError: If they are to be, and there is no such head.
        """
        if MLM not in self.wanted:
            return None
        is_random = self.source.random_weights_seed is not None
        return masked_lm_of(self.source.model, is_random, self.tokenizer.mask_token_id)

    @cached_property
    def model(self) -> LaterBlocks:
        """The model.

        Raises:
            UserError: If its blocks or heads cannot be told.
        """
        encoder: Any = (
            load_encoder(self.source.model, self.source.random_weights_seed)
            if self.masked_lm is None
            else self.masked_lm.base_model
        )
        return LaterBlocks.of(encoder, self.pad_token_id, self.source.model.name)

    @cached_property
    def readers(self) -> Readers:
        """The model where passes run."""
        asked = {name: value for name, value in self.source.trainer.items() if name == "accelerator"}
        device = forward_trainer({"devices": 1, **asked}, ()).strategy.root_device
        (self.masked_lm or self.model.encoder).to(device)
        return Readers.of(self.model.encoder, self.pad_token_id, self.source.model.name)

    @cached_property
    def stores_of_sets(self) -> list[ActivationStore]:
        """The activations of the sets of sentences that are read out by STS."""
        for line in (line for one in self.wanted.get(STS, ()) for line in one.said()):
            self.source.say(line)
        return self.source.read([one.corpus for one in self.wanted.get(STS, ())])

    @cached_property
    def stores_of_senses(self) -> list[ActivationStore]:
        """The activations of the training part of WiC, in the last layer alone, and of the part that is read.

        Raises:
            UserError: If no pair of a part keeps both words.
        """
        if WIC not in self.wanted:
            return []
        parts = self.wanted[WIC]
        for line in (line for name in (TRAIN, READ) for line in parts[name].said(f"{WIC} {name}")):
            self.source.say(line)
        last = replace(self.source, layers=self.source.layers[-1:])
        sources = {TRAIN: last, READ: self.source}
        return [
            source.read([parts[name].corpus], [target_check(parts[name])])[0] for name, source in sources.items()
        ]  # fmt: skip

    def read(self) -> list[ActivationStore]:
        """Return the activations of each corpus, extracting what is not cached; those of other readouts, too.

        Raises:
            UserError: If the model's blocks or heads cannot be told, it has no head for masked words that are read out,
                or no sentence of a side has a token of any class.
        """
        _ = self.model  # what cannot be disabled is refused before any work
        checks = example_checks(load_task(POSITION, {}), self.corpora, self.splits, PROBE, self.source.say)
        stores = self.source.read(self.corpora, checks)
        _ = self.stores_of_sets, self.stores_of_senses
        return stores

    def labels(self, stores: Sequence[ActivationStore], part: int, classes: Labels, side: Split) -> NDArray[np.int32]:
        """Return the position class of each token of a corpus, -1 on other sides.

        Args:
            stores: The activations of each corpus.
            part: Index of the corpus.
            classes: The position of each class.
            side: The side of the split.
        """
        task, corpus, splits = load_task(POSITION, {}), self.corpora[part], self.splits[part]
        return class_of_tokens(stores[part].tokens, corpus, task, splits, classes, side).labels.astype(np.int32)

    def train(self, stores: Sequence[ActivationStore], progress: Progress) -> dict[str, Tensor]:
        """Train a position probe of each layer but the embeddings, whose states no head changes.

        Returns:
            `weight`, shape (n_layers, n_classes, d_model), and `classes`.
        """
        sides = label_sides(stores, self.corpora, self.splits, load_task(POSITION, {}))
        layers = [layer for layer in self.source.layers if layer > 0]
        fits = train_probes(sides, layers, self.training(progress), moments=layer_moments(sides.train, layers))
        return {"weight": torch.stack([fit.weight for fit in fits]), "classes": torch.from_numpy(sides.classes)}

    def probes(
        self, stores: Sequence[ActivationStore], store: PassStore | None, progress: Progress
    ) -> tuple[dict[int, Tensor], Labels]:
        """Return the weight of each layer's probe (of another run, stored, or trained now), and the classes.

        Args:
            stores: The activations of each corpus.
            store: Where trained probes are stored; None if they are those of another run.
            progress: Returns Lightning callbacks that show the training of probes.
        """
        if store is None or self.frozen is not None:
            assert self.frozen is not None
            return dict(self.frozen.weight), self.frozen.classes
        if store.unfinished([PROBES]):
            store.put(PROBES, self.train(stores, progress))
        found = store.get(PROBES)
        weight = dict(zip(range(1, len(found["weight"]) + 1), found["weight"], strict=True))
        return weight, found["classes"].numpy()

    def training(self, progress: Progress) -> Training:
        """Return the settings of the training of probes."""
        assert PROBE.l2 != "auto"
        return training_of(PROBE, PROBE.l2, self.split_seed, dict(self.source.trainer), progress)

    def other_readouts(self, text: Text, n_tokens: int, seed: int) -> Iterator[Readout]:
        """Yield what is read out beside positions.

        Args:
            text: The test sentences that are read.
            n_tokens: Most tokens of other texts.
            seed: Seed of every random draw.
        """
        last = self.source.layers[-1]
        if self.masked_lm is not None:
            yield self.masked_words(text, seed)
        for pairs, store in zip(self.wanted.get(STS, ()), self.stores_of_sets, strict=True):
            yield similarity_readout(pairs, store, drawn(pairs, store, n_tokens, seed), last)
        if WIC in self.wanted:
            yield senses_readout(self.wanted[WIC][READ], self.stores_of_senses[1], self.rule, n_tokens, last, seed)

    def masked_words(self, text: Text, seed: int) -> MaskedWordLoss:
        """Return the readout of masked words of a text."""
        assert self.masked_lm is not None
        return MaskedWordLoss.of(
            self.masked_lm, self.model.encoder, self.model.anatomy, text.tokens, self.tokenizer.mask_token_id,
            self.pad_token_id, text.store.plan.batch_tokens, seed,
        )  # fmt: skip

    def pruning_sides(self, readout: Readout, train: Text, n_tokens: int, seed: int) -> tuple[Readout, Readout]:
        """Return the readout that decides the order in which heads are disabled together, and the reported readout.

        For masked words these are the training and the test sentences, for WiC the training and the dev pairs. A set of
        STS may lack a training part, so the two readouts are the two halves of the pairs that are read.

        Args:
            readout: What is read out beside positions.
            train: Training sentences.
            n_tokens: Most tokens of other texts.
            seed: Seed of every random draw.
        """
        last = self.source.layers[-1]
        if readout.name == MLM:
            return self.masked_words(train, seed), readout
        if readout.name == WIC:
            of_train = self.wanted[WIC][TRAIN], self.stores_of_senses[0]
            return senses_readout(*of_train, self.rule, n_tokens, last, seed), readout
        for pairs, store in zip(self.wanted[STS], self.stores_of_sets, strict=True):
            if readout.name == f"{STS}:{pairs.label}":
                kept = halves(drawn(pairs, store, n_tokens, seed), seed)
                first, second = (similarity_readout(pairs, store, half, last) for half in kept)
                return first, second
        raise ValueError(f"{readout.name} is none of the readouts")

    @cached_property
    def rule(self) -> Rule:
        """The rule that decides, by the cosine in the last layer, whether two senses are the same."""
        return rule_of(self.wanted[WIC][TRAIN], self.stores_of_senses[0], self.source.layers[-1])

    def key_of_positions(self) -> dict[str, Any]:
        """Return what decides on the probes that read positions, for the keys of caches."""
        frozen = self.frozen
        of_run = None if frozen is None else fingerprint_of(*frozen.weight, *frozen.weight.values(), frozen.classes)
        return {"probes": of_run or asdict(PROBE), "retrained": asdict(PROBE)}
