"""The model of an ablation, its inputs and its readouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from probing.activations import ActivationStore
from probing.activations.extraction import forward_trainer
from probing.activations.source import ActivationSource
from probing.activations.store import WorkStore
from probing.downstream.wic import target_check
from probing.interventions import MASKED_LM, MLM, POSITION, PROBED, STS, TASK, TUNED, WIC, WORDS, measure_of
from probing.interventions.forward import LaterBlocks, Readers, Readout, ReadText, draw_text
from probing.interventions.model_output import MaskedWordLoss, masked_lm_of
from probing.interventions.pair_cosines import (
    READ,
    TRAIN,
    SenseRule,
    TunedHead,
    TunedScore,
    TunedTask,
    draw_pairs,
    halves,
    read_senses,
    read_similarity,
    rule_of,
    senses_readout,
    similarity_readout,
)
from probing.interventions.passes import opened
from probing.interventions.probed_task import Frozen, ProbedTask
from probing.models import load_encoder, load_tokenizer
from probing.models.examination import n_token_types
from probing.models.loading import load_tuned
from probing.results import layers_named
from probing.runtime.progress import stage
from probing.text import Corpus, Split
from probing.text.tasks import TokenTask, load_task
from probing.text.tokens import Tokens


def data_of(readouts: Mapping[str, str | None]) -> dict[str, Any]:
    """Read the data of the readouts that need some, as typed.

    Raises:
        UserError: If data cannot be read.
    """
    readers: dict[str, Any] = {STS: read_similarity, WIC: read_senses}
    return {name: readers[name](data) if name in readers else None for name, data in readouts.items()}


@dataclass(frozen=True)
class InterventionSetup:
    """A model, its corpora and its readouts.

    Args:
        source: The model, with all of its layers, and the cache.
        corpora: The corpus, and the test corpus if there is one.
        splits: Split of each sentence of each corpus.
        split_seed: Seed of the split, and of the training of probes.
        frozen: Probes of another run, of its task; None to train them here.
        readouts: The readouts by name of the option, with their data, None without data.
        task: The task of that run, if it is not position.
    """

    source: ActivationSource
    corpora: Sequence[Corpus]
    splits: Sequence[Sequence[Split]]
    split_seed: int
    frozen: Frozen | None = None
    readouts: Mapping[str, Any] = field(default_factory=lambda: {POSITION: None})
    task: TokenTask | None = None

    def probed(self, name: str) -> ProbedTask:
        """Return the task that probes decode: `position`, or `task` for the run's."""
        is_position = name == POSITION
        frozen = self.frozen if is_position is (self.task is None) else None
        task = load_task(POSITION, {}) if is_position else self.task
        assert task is not None
        return ProbedTask(name, task, frozen, self.source, self.corpora, self.splits, self.split_seed)

    @property
    def main_task(self) -> ProbedTask:
        """The task of the run's probes; position without a run."""
        return self.probed(POSITION if self.task is None else TASK)

    @cached_property
    def tokenizer(self) -> Any:
        """Tokenizer of the model."""
        return load_tokenizer(self.source.model)

    @property
    def n_types(self) -> int:
        """Number of token types in the input of sentence pairs; 0 if there are none, and for single sentences."""
        if self.corpora[-1].seconds is None:
            return 0
        return n_token_types(self.model.encoder, self.tokenizer, of_pairs=True)

    @property
    def pad_token_id(self) -> int:
        """Id of the padding token; for a tuned model the id by which its head detects the end of a sentence."""
        head_pad_id = self.source.config.pad_token_id if TUNED in self.readouts else None
        return int(head_pad_id if head_pad_id is not None else self.tokenizer.pad_token_id or 0)

    @cached_property
    def tuned(self) -> Any:
        """The model with its trained head, if its task is a readout; otherwise None.

        Raises:
            UserError: If the model has no such head.
        """
        of: TunedTask | None = self.readouts.get(TUNED)
        return None if of is None else load_tuned(self.source.model, of.of)

    @cached_property
    def masked_lm(self) -> nn.Module | None:
        """The model with its masked-language-model head; None if no readout needs it.

        Raises:
            UserError: If a readout needs the head and there is none.
        """
        of_head = [name for name in self.readouts if measure_of(name).head == MASKED_LM]
        if not of_head:
            return None
        is_random = self.source.random_weights_seed is not None
        message_parts = f"`--readouts {of_head[0]}`", f", or leave {of_head[0]} out"
        if of_head == [WORDS]:
            message_parts = "`--pairs` of texts with [MASK]", ", or give whole sentences"
        return masked_lm_of(self.source.model, is_random, self.tokenizer.mask_token_id, *message_parts)

    @cached_property
    def model(self) -> LaterBlocks:
        """The model.

        Raises:
            UserError: If its blocks or heads are unknown.
        """
        whole: Any = self._with_head
        encoder = (
            load_encoder(self.source.model, self.source.random_weights_seed) if whole is None else whole.base_model
        )
        return LaterBlocks.of(encoder, self.pad_token_id, self.source.model.name)

    @property
    def _with_head(self) -> nn.Module | None:
        """The model with the head of a readout, if there is one."""
        return self.tuned if self.masked_lm is None else self.masked_lm

    @cached_property
    def readers(self) -> Readers:
        """The model on the device of the passes."""
        device_options = {name: value for name, value in self.source.trainer.items() if name == "accelerator"}
        device = forward_trainer({"devices": 1, **device_options}, ()).strategy.root_device
        (self._with_head or self.model.encoder).to(device)
        return Readers.of(self.model.encoder, self.pad_token_id, self.source.model.name)

    @cached_property
    def stores_of_sets(self) -> list[ActivationStore]:
        """The activations of the sets of sentences for STS."""
        for line in (line for sentence_set in self.readouts.get(STS, ()) for line in sentence_set.messages()):
            self.source.say(line)
        return self.source.read([sentence_set.corpus for sentence_set in self.readouts.get(STS, ())])

    @cached_property
    def stores_of_senses(self) -> list[ActivationStore]:
        """The activations of the training part of WiC, in the last layer alone, and of the part that is read.

        Raises:
            UserError: If no pair of a part keeps both words.
        """
        if WIC not in self.readouts:
            return []
        parts = self.readouts[WIC]
        for line in (line for name in (TRAIN, READ) for line in parts[name].messages(f"{WIC} {name}")):
            self.source.say(line)
        last = replace(self.source, layers=self.source.layers[-1:])
        sources = {TRAIN: last, READ: self.source}
        return [
            source.read([parts[name].corpus], [target_check(parts[name])])[0] for name, source in sources.items()
        ]  # fmt: skip

    def read(self) -> list[ActivationStore]:
        """Return the activations of each corpus, extracted if not cached; also extract the texts of other readouts.

        Raises:
            UserError: If the model's blocks or heads are unknown, it lacks the head of a readout, or no sentence of a
                split has a token of any class.
        """
        _ = self.model  # what cannot be ablated is refused before any work
        checks = [self.probed(name).checks() for name in PROBED if name in self.readouts]
        checks = checks or ([] if TUNED in self.readouts else [self.main_task.checks()])
        of_corpora = [partial(_all, of_corpus) for of_corpus in zip(*checks, strict=True)]
        with stage(f"hidden states of {layers_named(self.source.layers)}"):
            stores = self.source.read(self.corpora, of_corpora)
            _ = self.stores_of_sets, self.stores_of_senses
        return stores

    def other_readouts(
        self, text: ReadText, n_tokens: int, seed: int, stores: Sequence[ActivationStore] = ()
    ) -> Iterator[Readout]:
        """Yield the readouts other than classes decoded by probes, over at most `n_tokens` tokens of other texts."""
        last = self.source.layers[-1]
        if MLM in self.readouts:
            yield self.masked_words(text, seed)
        for pairs, store in zip(self.readouts.get(STS, ()), self.stores_of_sets, strict=True):
            yield similarity_readout(pairs, store, draw_pairs(pairs, store, n_tokens, seed), last)
        if WIC in self.readouts:
            yield senses_readout(self.readouts[WIC][READ], self.stores_of_senses[1], self.rule, n_tokens, last, seed)
        if TUNED in self.readouts:
            yield self.tuned_score(text, self.readouts[TUNED].targets(stores, self.corpora, self.splits))

    def tuned_score(self, text: ReadText, targets: Tensor) -> TunedScore:
        """Return the readout of the tuned head on some sentences, given the targets of the whole test corpus."""
        of = self.readouts[TUNED].of
        target_rows = torch.from_numpy(text.sentence_indices if of == "sentences" else text.of_corpus)
        return TunedScore(text, targets[target_rows], self._tuned_head, of, self.source.layers[-1])

    @cached_property
    def _tuned_head(self) -> TunedHead:
        _ = self.readers  # the model is where passes run before it is copied
        return TunedHead(self.tuned, self.model, self.pad_token_id)

    def masked_words(self, text: ReadText, seed: int) -> MaskedWordLoss:
        """Return the readout of masked words of a text."""
        assert self.masked_lm is not None
        return MaskedWordLoss.of(
            self.masked_lm, self.model.encoder, self.model.anatomy, text.tokens, self.tokenizer.mask_token_id,
            self.pad_token_id, text.store.plan.batch_tokens, seed,
        )  # fmt: skip

    def pruning_sides(self, readout: Readout, train: ReadText, n_tokens: int, seed: int) -> tuple[Readout, Readout]:
        """Return the readout that orders the heads for joint ablation, and the reported readout.

        For masked words these are the training and the test sentences, for WiC the training and the dev pairs. An STS
        set may lack a training part, so the two readouts are the two halves of its pairs. A tuned model has memorised
        its training sentences, so halves of its test sentences are used.
        """
        last = self.source.layers[-1]
        if readout.name == MLM:
            return self.masked_words(train, seed), readout
        if readout.name == WIC:
            of_train = self.readouts[WIC][TRAIN], self.stores_of_senses[0]
            return senses_readout(*of_train, self.rule, n_tokens, last, seed), readout
        if isinstance(readout, TunedScore):
            with_targets = np.flatnonzero(readout.n)
            chosen_on, reported_on = halves(with_targets, seed)
            return readout.part(chosen_on), readout.part(reported_on)
        for pairs, store in zip(self.readouts.get(STS, ()), self.stores_of_sets, strict=True):
            if readout.name == f"{STS}:{pairs.label}":
                pair_halves = halves(draw_pairs(pairs, store, n_tokens, seed), seed)
                first, second = (similarity_readout(pairs, store, half, last) for half in pair_halves)
                return first, second
        raise ValueError(f"{readout.name} is not divided for pruning")

    @cached_property
    def rule(self) -> SenseRule:
        """The rule that classifies two senses as same, by the cosine in the last layer."""
        return rule_of(self.readouts[WIC][TRAIN], self.stores_of_senses[0], self.source.layers[-1])


# Increased whenever the meaning of what is stored changes.
FORMAT = 2


@dataclass(frozen=True, eq=False)
class InterventionTexts:
    """What the passes of a survey read: test sentences (`text`), and training sentences for replacements and probes.

    `config` has at least `n_tokens`, the maximum of either, and the `seed` by which sentences are drawn.
    """

    setup: InterventionSetup
    stores: Sequence[ActivationStore]
    config: Any
    text: ReadText
    train: ReadText

    @classmethod
    def of(cls, setup: InterventionSetup, stores: Sequence[ActivationStore], config: Any) -> Self:
        """Draw the sentences from stores with all layers."""
        candidates = (
            (part, np.array([sentence_split == side for sentence_split in setup.splits[part]], dtype=bool))
            for part, side in ((-1, "test"), (0, "train"))
        )
        return cls(setup, stores, config, *(
            draw_text(stores[part], is_candidate, config.n_tokens, config.seed, setup.n_types)
            for part, is_candidate in candidates
        ))  # fmt: skip

    @property
    def batch_tokens(self) -> int:
        """Maximum number of tokens of a batch, padding included."""
        return self.stores[-1].plan.batch_tokens

    def opened(self, what: str, settings: Mapping[str, Any], n_passes: int) -> AbstractContextManager[WorkStore]:
        """Open the store of passes; `what` names the settings on which their results depend, in its key.

        Raises:
            UserError: If the cache cannot be written.
        """
        setup, config, last = self.setup, self.config, self.stores[-1]
        common = {
            "format": FORMAT, "train": dict(self.stores[0].plan.key), "split_seed": setup.split_seed,
            "trainer": {name: str(value) for name, value in setup.source.trainer.items()},
            "n_tokens": config.n_tokens, "seed": config.seed,
        }  # fmt: skip
        key = {**last.plan.key, what: {**common, **settings}}
        return opened(setup.source, key, last, self.text.tokens, n_passes, "ablate")


def _all(checks: Sequence[Callable[[Tokens], None]], tokens: Tokens) -> None:
    for check in checks:
        check(tokens)
