"""The model that heads are ablated in, what it reads, and what is read out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.activations import ActivationStore
from probing.activations.extraction import forward_trainer
from probing.activations.source import ActivationSource
from probing.downstream.wic import target_check
from probing.interventions import MLM, POSITION, PROBED, STS, TASK, TUNED, WIC, WORDS, ReadoutUnit, measure_of
from probing.interventions.forward import LaterBlocks, Readers, Readout, ReadText
from probing.interventions.model_output import MaskedWordLoss, masked_lm_of
from probing.interventions.pair_cosines import (
    READ,
    TRAIN,
    SenseRule,
    TunedHead,
    TunedScore,
    TunedTask,
    drawn,
    halves,
    read_senses,
    read_similarity,
    rule_of,
    senses_readout,
    similarity_readout,
)
from probing.interventions.probed_task import AblationJob, Frozen, ProbedTask
from probing.models import load_encoder, load_tokenizer
from probing.models.examination import n_token_types
from probing.models.loading import load_tuned
from probing.probes.agreement import holm
from probing.results import layers_named
from probing.runtime.progress import stage
from probing.statistics import ENDS, difference_interval, difference_p_value, mean_interval, mean_p_value
from probing.statistics.chance import percentile_of, rank_p
from probing.text import Corpus, Split
from probing.text.tasks import TokenTask, load_task
from probing.text.tokens import Tokens


def data_of(readouts: Mapping[str, str | None]) -> dict[str, Any]:
    """Read the data of readouts that need some.

    Args:
        readouts: What is read out, with its data as typed.

    Raises:
        UserError: If data cannot be read.
    """
    readers: dict[str, Any] = {STS: read_similarity, WIC: read_senses}
    return {name: readers[name](data) if name in readers else None for name, data in readouts.items()}


@dataclass(frozen=True)
class InterventionSetup:
    """A model and what it reads.

    Args:
        source: The model, with all of its layers, and the cache.
        corpora: The corpus, and the test corpus if there is one.
        splits: Side of each sentence of each corpus.
        split_seed: Seed of the split, and of the training of probes.
        frozen: Probes of another run, of its task; None to train them here.
        readouts: What is read out, by the name of the option, with its data; None where there is none.
        task: The task of that run, where it is another than position.
    """

    source: ActivationSource
    corpora: Sequence[Corpus]
    splits: Sequence[Sequence[Split]]
    split_seed: int
    frozen: Frozen | None = None
    readouts: Mapping[str, Any] = field(default_factory=lambda: {POSITION: None})
    task: TokenTask | None = None

    def probed(self, name: str) -> ProbedTask:
        """Return what is read by probes: `position`, or `task` for the run's own."""
        is_position = name == POSITION
        frozen = self.frozen if is_position is (self.task is None) else None
        task = load_task(POSITION, {}) if is_position else self.task
        assert task is not None
        return ProbedTask(name, task, frozen, self.source, self.corpora, self.splits, self.split_seed)

    @property
    def main_task(self) -> ProbedTask:
        """What the run's probes read; positions without a run."""
        return self.probed(POSITION if self.task is None else TASK)

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return load_tokenizer(self.source.model)

    @property
    def n_types(self) -> int:
        """Of pairs of sentences, how many token types the model is given; 0 if none, and of single sentences."""
        if self.corpora[-1].seconds is None:
            return 0
        return n_token_types(self.model.encoder, self.tokenizer, of_pairs=True)

    @property
    def pad_token_id(self) -> int:
        """Id of the padding token; of a tuned model that by which its head knows where a sentence ends."""
        head_pad_id = self.source.config.pad_token_id if TUNED in self.readouts else None
        return int(head_pad_id if head_pad_id is not None else self.tokenizer.pad_token_id or 0)

    @cached_property
    def tuned(self) -> Any:
        """The model with its trained head, where its task is read out; otherwise None.

        Raises:
            UserError: If it has none.
        """
        of: TunedTask | None = self.readouts.get(TUNED)
        return None if of is None else load_tuned(self.source.model, of.of)

    @cached_property
    def masked_lm(self) -> nn.Module | None:
        """The model with its masked-language-model head; None if nothing is read out at masks.

        Raises:
            UserError: If they are to be, and there is no such head.
        """
        if MLM not in self.readouts and WORDS not in self.readouts:
            return None
        is_random = self.source.random_weights_seed is not None
        message_parts = () if MLM in self.readouts else ("`--pairs` of texts with [MASK]", ", or give whole sentences")
        return masked_lm_of(self.source.model, is_random, self.tokenizer.mask_token_id, *message_parts)

    @cached_property
    def model(self) -> LaterBlocks:
        """The model.

        Raises:
            UserError: If its blocks or heads cannot be told.
        """
        whole: Any = self._with_head
        encoder = (
            load_encoder(self.source.model, self.source.random_weights_seed) if whole is None else whole.base_model
        )
        return LaterBlocks.of(encoder, self.pad_token_id, self.source.model.name)

    @property
    def _with_head(self) -> nn.Module | None:
        """The model with the head that is read out, if one is."""
        return self.tuned if self.masked_lm is None else self.masked_lm

    @cached_property
    def readers(self) -> Readers:
        """The model where passes run."""
        device_options = {name: value for name, value in self.source.trainer.items() if name == "accelerator"}
        device = forward_trainer({"devices": 1, **device_options}, ()).strategy.root_device
        (self._with_head or self.model.encoder).to(device)
        return Readers.of(self.model.encoder, self.pad_token_id, self.source.model.name)

    @cached_property
    def stores_of_sets(self) -> list[ActivationStore]:
        """The activations of the sets of sentences that are read out by STS."""
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
        """Return the activations of each corpus, extracting what is not cached; those of other readouts, too.

        Raises:
            UserError: If the model's blocks or heads cannot be told, it has no head for masked words that are read out,
                or no sentence of a side has a token of any class.
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
        """Yield what is read out beside the classes that probes read.

        Args:
            text: The test sentences that are read.
            n_tokens: Most tokens of other texts.
            seed: Seed of every random draw.
            stores: The activations of each corpus, where the task of a tuned model is read out.
        """
        last = self.source.layers[-1]
        if MLM in self.readouts:
            yield self.masked_words(text, seed)
        for pairs, store in zip(self.readouts.get(STS, ()), self.stores_of_sets, strict=True):
            yield similarity_readout(pairs, store, drawn(pairs, store, n_tokens, seed), last)
        if WIC in self.readouts:
            yield senses_readout(self.readouts[WIC][READ], self.stores_of_senses[1], self.rule, n_tokens, last, seed)
        if TUNED in self.readouts:
            yield self.tuned_score(text, self.readouts[TUNED].targets(stores, self.corpora, self.splits))

    def tuned_score(self, text: ReadText, targets: Tensor) -> TunedScore:
        """Return the readout of the tuned head on some sentences of the test corpus.

        Args:
            text: The sentences.
            targets: The targets of each token or sentence of the corpus.
        """
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
        """Return the readout that decides the order in which heads are ablated together, and the reported readout.

        For masked words these are the training and the test sentences, for WiC the training and the dev pairs. A set of
        STS may lack a training part, so the two readouts are the two halves of the pairs that are read. So they are of
        the test sentences of a tuned model, which knows its training sentences by heart.

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
            of_train = self.readouts[WIC][TRAIN], self.stores_of_senses[0]
            return senses_readout(*of_train, self.rule, n_tokens, last, seed), readout
        if isinstance(readout, TunedScore):
            with_targets = np.flatnonzero(readout.n)
            chosen_on, reported_on = halves(with_targets, seed)
            return readout.part(chosen_on), readout.part(reported_on)
        for pairs, store in zip(self.readouts[STS], self.stores_of_sets, strict=True):
            if readout.name == f"{STS}:{pairs.label}":
                pair_halves = halves(drawn(pairs, store, n_tokens, seed), seed)
                first, second = (similarity_readout(pairs, store, half, last) for half in pair_halves)
                return first, second
        raise ValueError(f"{readout.name} is none of the readouts")

    @cached_property
    def rule(self) -> SenseRule:
        """The rule that decides, by the cosine in the last layer, whether two senses are the same."""
        return rule_of(self.readouts[WIC][TRAIN], self.stores_of_senses[0], self.source.layers[-1])


def _all(checks: Sequence[Callable[[Tokens], None]], tokens: Tokens) -> None:
    for check in checks:
        check(tokens)


Rows = list[dict[str, Any]]

# Rounding gives smaller sums of differences.
_ROUNDING = 1e-9

# A gain of more than this many standard errors, one-sided 5%, is clear.
CLEAR = 1.645

Counts = NDArray[np.float64]


@dataclass(frozen=True)
class PassScores:
    """What one pass gave in one layer.

    Args:
        job: What was ablated.
        readout: What was read.
        layer: The layer that was read.
        right: Sum of the measure over the examples of each item, such as a sentence, shape (n_items,): for a share, the
            number of those that are right.
        intact: The same while nothing is ablated.
        n: Number of examples of each item, shape (n_items,).
    """

    job: AblationJob
    readout: str
    layer: int
    right: Counts
    intact: Counts
    n: NDArray[np.int64]

    @property
    def group(self) -> tuple[str, bool, str]:
        """What is tested together: heads or layers, by the kind of replacement and the readout."""
        return self.readout, self.job.head is None, str(self.job.kind)

    @property
    def measure(self) -> ReadoutUnit:
        """What is measured."""
        return measure_of(self.readout)

    def effect(self, items: NDArray[np.bool_] | slice = slice(None)) -> float:
        """Return the measure minus that of the intact model, over some items."""
        return float((self.right - self.intact)[items].sum() / self.n[items].sum())

    def gain(self, items: NDArray[np.bool_] | slice = slice(None)) -> float:
        """Return the effect over some items, with the sign chosen so that a positive value is an improvement."""
        return self.measure.sign * self.effect(items)

    def tested(self, items: NDArray[np.bool_] | slice = slice(None)) -> dict[str, Any]:
        """Return the effect with its 95% interval and its p-value, paired by item, over some of them."""
        return tested(self.right[items], self.intact[items], self.n[items], self.measure.is_share)


def tested(right: Counts, intact: Counts, n: NDArray[np.int64], is_share: bool) -> dict[str, Any]:
    """Return a difference with its 95% interval and its p-value, paired by item.

    Args:
        right: Sum of the measure over the examples of each item, shape (n_items,).
        intact: The same of what it is compared with.
        n: Number of examples of each item, shape (n_items,).
        is_share: Whether the measure is a share of examples that are right.
    """
    difference = right - intact
    interval, p_value = (difference_interval, difference_p_value) if is_share else (mean_interval, mean_p_value)
    low, high = interval(difference, n)
    return {
        "effect": float(difference.sum() / n.sum()), "low": low, "high": high, "p_value": p_value(difference, n),
        "n": int((n > 0).sum()),
    }  # fmt: skip


def effect_rows(pass_scores: Sequence[PassScores]) -> Rows:
    """Return the rows of `ablated.csv`.

    `effect` is the measure, such as the share of examples that are predicted rightly, minus that of the intact model,
    paired by item. `percentile` is the percentage of the other heads that cost less when ablated, measured in the same
    layer and by the same kind of replacement. p-values are two-sided and corrected (Holm) for the number of heads, or
    layers, and of layers that are read, for each kind and readout.
    """
    rows: Rows = []
    for scores in pass_scores:
        total = scores.n.sum()
        rows.append({
            "unit": scores.job.unit, "kind": scores.job.kind, "readout": scores.readout, "layer": scores.layer,
            "intact": float(scores.intact.sum() / total), "value": float(scores.right.sum() / total), **scores.tested(),
        })  # fmt: skip
    for members in _grouped(pass_scores):
        corrected = holm([rows[i]["p_value"] for i in members])
        for i, p_value in zip(members, corrected, strict=True):
            rows[i]["p_value"] = float(p_value)
            rows[i]["percentile"] = _percentile(pass_scores, rows, i, members)
    return rows


def _grouped(pass_scores: Sequence[PassScores]) -> Iterator[list[int]]:
    groups: dict[Any, list[int]] = {}
    for i, scores in enumerate(pass_scores):
        groups.setdefault(scores.group, []).append(i)
    yield from groups.values()


def _percentile(pass_scores: Sequence[PassScores], rows: Rows, i: int, members: Sequence[int]) -> float:
    """Return the percentage of the other heads that cost less; NaN for layers and where there is no other head."""
    others = [rows[j]["effect"] for j in members if j != i and pass_scores[j].layer == pass_scores[i].layer]
    if pass_scores[i].job.head is None:
        return float("nan")
    harm = -pass_scores[i].measure.sign
    return percentile_of(harm * rows[i]["effect"], harm * np.array(others))


def better_without_rows(pass_scores: Sequence[PassScores], seed: int) -> Rows:
    """Return the rows of `better_without.csv`: the unit whose ablation helps most on one half, tested on the other.

    There is a row for heads and for layers, for each kind, readout and layer that is read. p-values are two-sided and
    corrected for the number of rows (Holm).

    Args:
        pass_scores: What the passes gave.
        seed: Seed of the division of the sentences.
    """
    groups: dict[Any, list[PassScores]] = {}
    for scores in pass_scores:
        groups.setdefault((*scores.group, scores.layer), []).append(scores)
    rows: Rows = []
    for (readout, is_layer, kind, layer), members in groups.items():
        order = np.random.default_rng(seed).permutation(len(members[0].n))
        chosen_on = order < len(order) // 2
        if not all(members[0].n[half].sum() for half in (chosen_on, ~chosen_on)):
            continue
        best = max(members, key=lambda scores: scores.gain(chosen_on))
        rows.append({
            "units": "layers" if is_layer else "heads", "kind": kind, "readout": readout, "layer": layer,
            "unit": best.job.unit, "effect_chosen_on": best.effect(chosen_on), **best.tested(~chosen_on),
        })  # fmt: skip
    for row, p_value in zip(rows, holm([row["p_value"] for row in rows]), strict=True):
        row["p_value"] = float(p_value)
    return rows


# Number of draws of the signs of differences.
N_SIGNS = 2000


def raising_rows(pass_scores: Sequence[PassScores], seed: int) -> Rows:
    """Return the rows of `raising.csv`: without how many units a measure gets better, beside what chance gives.

    There is a row for heads and for layers, for each kind and readout, in the highest layer that is read. Chance: if no
    unit changed anything but by chance, the sign of an item's differences could as well be the other one. All units of
    an item get the same sign, so that units that go together stay so. What is counted is a clear gain: a sum of
    differences of more than `CLEAR` times the root of the sum of their squares, which signs do not change. `p_value` is
    one-sided, by rank, and corrected for the rows of a readout (Holm).

    Args:
        pass_scores: What the passes gave.
        seed: Seed of the signs.
    """
    last: dict[str, int] = {}
    for scores in pass_scores:
        last[scores.readout] = max(scores.layer, last.get(scores.readout, 0))
    groups: dict[Any, list[PassScores]] = {}
    for scores in pass_scores:
        if scores.layer == last[scores.readout]:
            groups.setdefault(scores.group, []).append(scores)
    rows: Rows = []
    for (readout, is_layer, kind), members in groups.items():
        gains = np.stack([scores.measure.sign * (scores.right - scores.intact) for scores in members])
        signs = np.random.default_rng(seed).choice((-1.0, 1.0), size=(N_SIGNS, gains.shape[1]))
        least = CLEAR * np.sqrt((gains**2).sum(1)) + _ROUNDING
        drawn = (signs @ gains.T > least).sum(1)
        clear, better = (int((gains.sum(1) > limit).sum()) for limit in (least, _ROUNDING))
        low, high = np.quantile(drawn, ENDS, method="inverted_cdf")
        rows.append({
            "units": "layers" if is_layer else "heads", "kind": kind, "readout": readout, "layer": last[readout],
            "n_units": len(members), "n_better": better, "n_clear": clear,
            "n_chance_low": int(low), "n_chance_high": int(high), "p_value": rank_p(clear, drawn.astype(np.float64)),
        })  # fmt: skip
    for readout in last:
        readout_rows = [row for row in rows if row["readout"] == readout]
        for row, p_value in zip(readout_rows, holm([row["p_value"] for row in readout_rows]), strict=True):
            row["p_value"] = float(p_value)
    return rows


def pass_scores_of(
    results: Mapping[AblationJob, NDArray[Any]], layers: Mapping[int, Sequence[int]], n: NDArray[np.int64], readout: str
) -> list[PassScores]:
    """Return what the passes gave, a member for each layer that is read.

    Args:
        results: Sums by job, shape (n_layers, n_items); also of each block while it is intact.
        layers: The layers that are read when a block is changed, by block.
        n: Number of examples of each item, shape (n_items,).
        readout: What was read.
    """
    intact = {job.block: job_sums for job, job_sums in results.items() if job.kind is None}
    return [
        PassScores(job, readout, layer, job_sums[i].astype(np.float64), intact[job.block][i].astype(np.float64), n)
        for job, job_sums in results.items()
        if job.kind is not None
        for i, layer in enumerate(layers[job.block])
    ]
