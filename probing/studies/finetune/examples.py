"""The labelled text that a model is tuned on: its tokens, and what is to be predicted of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.cache import Request, tokens_of
from probing.cache.extraction import padded_index
from probing.cache.source import say_what_was_left_out
from probing.cache.store import Plan, Shard, divide
from probing.cache.tokens import SET_ASIDE, Tokens
from probing.cli.options import ProbeOptions
from probing.corpus import Corpus
from probing.corpus.splits import GroupBy, Split, intervals_by_document
from probing.data.controls import TokenRows, token_identity
from probing.data.examples import Activations, Examples, SentenceVectors, Sides
from probing.data.labelling import Standard, example_checks, is_target, label_sides, load, nothing, targets_of
from probing.models import ModelSource, load_config, load_encoder, load_tokenizer
from probing.models.loading import HeadOf
from probing.models.residual_stream import word_table
from probing.probes.transforms import centred
from probing.runs.measuring import Asked, measure
from probing.runtime.arithmetic import generator_of
from probing.runtime.machine import Stopwatch
from probing.runtime.terminal import silence
from probing.studies.finetune.tables import BAG, CONSTANT, MAJORITY, SECOND
from probing.tasks import SentenceTask, TokenTask


@dataclass(frozen=True)
class TokenTable:
    """Behaves like a store whose tokens no model has read.

    Args:
        tokens: The table of tokens.
    """

    tokens: Tokens

    @cached_property
    def plan(self) -> Plan:
        """Shards of a few thousand tokens."""
        return Plan({}, 0, 1, "float32", 0, divide(self.tokens.lengths, 2**15))

    def shard_tokens(self, shard: Shard) -> slice:
        """Return the shard's rows of the table of tokens."""
        return self.tokens.of_sentences(shard.first_sentence, shard.n_sentences)

    def read(self, layer: int, shard: int) -> Tensor:
        """There are no hidden states."""
        raise NotImplementedError


@dataclass
class Batch:
    """Padded sentences, or none, and what is to be predicted.

    Args:
        inputs: What the model is given by name, shape (n_sentences, n_positions) each.
        targets: Of token tasks the class or number of each token, shape (n_sentences, n_positions); of sentence tasks
            of each sentence, shape (n_sentences,). A class is `IGNORED`, and a number NaN, where nothing is predicted.
        n: Number of targets in all parts of a step: of all processes, and of all parts whose gradients accumulate.
        sentences: Index of each sentence in its corpus, shape (n_sentences,).
    """

    inputs: dict[str, Tensor]
    targets: Tensor
    n: int
    sentences: Tensor

    def to(self, device: Any, **options: Any) -> Batch:
        """Return the batch on a device; Lightning calls this."""
        moved = {name: values.to(device, **options) for name, values in self.inputs.items()}
        return Batch(moved, self.targets.to(device, **options), self.n, self.sentences)


@dataclass(frozen=True)
class Side:
    """The labelled sentences of one side of the split.

    Args:
        tokens: Tokens of the side's corpus.
        examples: The examples of the side.
        targets: The class of each token or sentence, or its standardised number, and `IGNORED` or NaN without one.
        of: What is labelled.
        given: What the model is given of each token, by name, shape (n_tokens,).
        pad_token_id: Id of the padding token.
    """

    tokens: Tokens
    examples: Examples
    targets: Tensor
    of: HeadOf
    given: dict[str, Tensor]
    pad_token_id: int

    @cached_property
    def sentences(self) -> NDArray[np.int64]:
        """The sentences with at least one target, ascending."""
        return self.examples.sentences().astype(np.int64)

    def with_shuffled_targets(self, seed: int) -> Side:
        """Return the side with its targets exchanged at random among the tokens or sentences that have one.

        Args:
            seed: Seed of the draw.
        """
        there = is_target(self.targets).nonzero()[:, 0]
        drawn = torch.randperm(len(there), generator=generator_of(seed, "labels"))
        return replace(self, targets=self.targets.index_copy(0, there, self.targets[there[drawn]]))

    def batch(self, sentences: NDArray[np.int64], n: int | None = None) -> Batch:
        """Return some sentences as a batch, in this order.

        Args:
            sentences: Indices in the corpus.
            n: Number of targets that the loss is a mean over; those of the batch by default.
        """
        index, mask = padded_index(self.tokens.lengths, sentences)
        inputs = {
            name: torch.where(mask, values[index], self.pad_token_id if name == "input_ids" else 0)
            for name, values in self.given.items()
        }
        inputs["attention_mask"] = mask.long()
        if self.of == "sentences":
            targets = self.targets[torch.from_numpy(sentences)]
        else:
            targets = torch.where(mask, self.targets[index], nothing(self.targets))
        own = int(is_target(targets).sum())
        return Batch(inputs, targets, own if n is None else n, torch.from_numpy(sentences))


@dataclass(frozen=True)
class Task:
    """All that a model is tuned and tested on.

    Args:
        train: Sentences that are trained on.
        validation: Sentences whose loss is shown while the model is tuned; possibly none.
        test: Sentences that it is tested on.
        sides: The same examples, for baselines.
        classes: The label of each class; none for numbers.
        standard: Mean and deviation of training numbers; None for classes.
        tokenizer: The model's tokenizer.
        of: What is labelled.
        n_truncated: Number of training and test sentences, or pairs, that were cut.
        are_pairs: Whether a sentence is a pair of two.
    """

    train: Side
    validation: Side
    test: Side
    sides: Sides
    classes: Sequence[Any]
    standard: Standard | None
    tokenizer: Any
    of: HeadOf
    n_truncated: int
    are_pairs: bool = False

    @property
    def n_outputs(self) -> int:
        """Number of outputs of the head."""
        return 1 if self.standard else len(self.classes)


def labelled(
    source: ModelSource, corpora: Sequence[Corpus], splits: Sequence[Sequence[Split]], task: TokenTask,
    group_by: GroupBy, max_length: int | None, say: Callable[[str], None],
) -> Task:  # fmt: skip
    """Tokenise the corpora and label them, and say what was left out.

    Args:
        source: The model, whose tokenizer is used.
        corpora: The corpora; with two, the second is the test side.
        splits: Side of each sentence of each corpus.
        task: The task, which gives the labels.
        group_by: The option's value: what is independent, sentences or documents.
        max_length: Number of tokens at which sentences are cut; None for the model's own limit.
        say: Takes messages.

    Raises:
        UserError: If training or test part have no examples, or fewer than two classes.
    """
    intervals_by_document(group_by, corpora)
    tokenizer, config = load_tokenizer(source), load_config(source)
    tables = [tokens_of(Request(source, corpus, [0], max_length=max_length), tokenizer) for corpus in corpora]
    # Nothing is chosen on validation sentences, so that there may be none.
    probe = ProbeOptions(l2=1.0)
    for tokens, check in zip(tables, example_checks(task, corpora, splits, probe, say), strict=True):
        check(tokens)
    say_what_was_left_out(corpora, tables, say)
    if corpora[0].seconds is not None and not _separates(tokenizer):
        say(f"{source.name}: its tokenizer puts no token between the two sentences of a pair, which are read as one")
    sides = label_sides([TokenTable(tokens) for tokens in tables], corpora, splits, task, group_by)
    of: HeadOf = "sentences" if isinstance(task, SentenceTask) else "tokens"
    standard = Standard.of(sides.train) if sides.numbers else None
    pad = padding_id(config, tokenizer, tables)

    def side(examples: Examples, tokens: Tokens) -> Side:
        return Side(tokens, examples, targets_of(examples, standard), of, _given(tokens, config), pad)

    return Task(
        side(sides.train, tables[0]), side(sides.validation, tables[0]), side(sides.test, tables[-1]), sides,
        sides.classes.tolist(), standard, tokenizer, of, sum(tokens.n_truncated for tokens in tables),
        corpora[0].seconds is not None,
    )  # fmt: skip


def _separates(tokenizer: Any) -> bool:
    """Return whether a tokenizer adds more tokens to a pair than to a sentence."""
    return bool(tokenizer.num_special_tokens_to_add(pair=True) > tokenizer.num_special_tokens_to_add(pair=False))


def padding_id(config: Any, tokenizer: Any, tables: Sequence[Tokens]) -> int:
    """Return the id of the padding token; of a model without one, that of a token that no sentence has.

    Heads of decoders take the last token that is not padding for the end of a sentence.

    Args:
        config: The model's configuration, whose ids may be of another vocabulary.
        tokenizer: The tokenizer.
        tables: The tokens of each corpus.
    """
    n_tokens = int(config.vocab_size)
    known = [getattr(config, "pad_token_id", None), tokenizer.pad_token_id]
    used = {int(one) for tokens in tables for one in np.unique(tokens.input_ids)}
    free = [one for one in (getattr(config, "eos_token_id", None), *range(n_tokens)) if one not in used]
    return next((one for one in [*known, *free] if isinstance(one, int) and 0 <= one < n_tokens), 0)


def _given(tokens: Tokens, config: Any) -> dict[str, Tensor]:
    given = {"input_ids": torch.from_numpy(tokens.input_ids.astype(np.int64))}
    types = tokens.types_for(getattr(config, "type_vocab_size", None) or 0)
    if types is not None:
        given["token_type_ids"] = torch.from_numpy(types.astype(np.int64))
    return given


# --------------------------------------------------------------------------------------------------------------------
# What baselines of pairs read: the mean static vectors of both sentences with their differences, or of the second.
# --------------------------------------------------------------------------------------------------------------------


class PairVectors:
    """Behaves like a store with one token for each pair: [u, v, |u - v|, u * v] of its sentences' vectors u and v.

    Args:
        first: The vectors of first sentences.
        second: Those of second sentences.
    """

    def __init__(self, first: SentenceVectors, second: SentenceVectors) -> None:
        self.first, self.second = first, second
        self.tokens: Tokens = first.tokens
        self.plan: Plan = replace(first.plan, d_model=4 * first.plan.d_model)

    def shard_tokens(self, shard: Shard) -> slice:
        """Return the shard's rows of the table of tokens."""
        return self.first.shard_tokens(shard)

    def read(self, layer: int, shard: int) -> Tensor:
        """Return the features of a shard's pairs, shape (n_pairs, 4 * d_embedding), float32."""
        u, v = self.first.read(layer, shard), self.second.read(layer, shard)
        return torch.cat([u, v, (u - v).abs(), u * v], dim=1)


def static_pairs(sides: Sides, encoder: nn.Module, second_alone: bool) -> Sides:
    """Return the sides with static vectors of their pairs as activations, from the model's input embeddings.

    Args:
        sides: The sides; each pair has one vector.
        encoder: The model.
        second_alone: Whether to give the mean of the second sentence alone, and not the features of `PairVectors`.
    """
    words: nn.Embedding = word_table(encoder)  # type: ignore[assignment]
    table = words.weight.detach().float()
    made: dict[int, Activations] = {}

    def vectors(store: SentenceVectors, segment: int) -> SentenceVectors:
        own = of_sentence(store.base.tokens, segment)
        return SentenceVectors(TokenRows(TokenTable(own), table), "mean")

    def of_pairs(store: Activations) -> Activations:
        assert isinstance(store, SentenceVectors)
        if id(store) not in made:
            second = vectors(store, 1)
            made[id(store)] = second if second_alone else PairVectors(vectors(store, 0), second)
        return made[id(store)]

    return sides.each(lambda examples: replace(examples, store=of_pairs(examples.store)))


def of_sentence(tokens: Tokens, segment: int) -> Tokens:
    """Return the table with the tokens of the other sentence of each pair set aside.

    Args:
        tokens: The table of tokens of pairs.
        segment: 0 for the first sentence, 1 for the second.
    """
    assert tokens.segments is not None
    return replace(tokens, words=np.where(tokens.segments == segment, tokens.words, SET_ASIDE).astype(np.int16))


# --------------------------------------------------------------------------------------------------------------------
# What is right without a tuned model: the constant answer, and linear probes of static vectors.
# --------------------------------------------------------------------------------------------------------------------

# Arguments of Lightning's Trainer that say which processes there are.
_OF_PROCESSES = ("accelerator", "devices", "num_nodes", "strategy")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Baseline:
    """What an answer without a tuned model has right.

    Args:
        right: As of `Answers`, shape (n_sentences of the test corpus,).
        predicted: Of numbers, what is predicted of each test example, up to a constant, shape (n_examples,); None of
            classes, and of the constant answer.
    """

    right: Floats
    predicted: Floats | None = None


def baselines(task: Task, source: ModelSource, seed: int, trainer: Mapping[str, Any]) -> dict[str, Baseline]:
    """Return the constant answer, and linear probes with an intercept of the model's own input embeddings.

    These are of the token, or of their mean over the sentence. Of pairs, the features of the means u and v of both
    sentences are [u, v, |u - v|, u * v] (Conneau et al. 2017), and a further probe reads the second sentence alone.

    Args:
        task: What models are tuned on.
        source: The model.
        seed: Seed of the probe's draws.
        trainer: Arguments of Lightning's Trainer.
    """
    test = task.sides.test
    constant = np.zeros(test.store.tokens.n_sentences)
    if task.standard is None:
        most = int(task.sides.train.counts(len(task.classes)).argmax())
        np.add.at(constant, test.store.tokens.sentences[test.labels == most], 1.0)
    encoder = load_encoder(source)
    if task.are_pairs:
        read = {BAG: static_pairs(task.sides, encoder, False), SECOND: static_pairs(task.sides, encoder, True)}
    else:
        read = {BAG: token_identity(task.sides, encoder)}
    return {
        MAJORITY if task.standard is None else CONSTANT: Baseline(constant),
        **{name: _of_probe(sides, seed, trainer) for name, sides in read.items()},
    }


def _of_probe(sides: Sides, seed: int, trainer: Mapping[str, Any]) -> Baseline:
    """Return what a linear probe with an intercept has right of each test sentence."""
    # Without validation examples, no penalty can be chosen.
    probe = ProbeOptions(bias=True) if sides.validation.n_tokens else ProbeOptions(bias=True, l2=1e-4)
    own = {name: value for name, value in trainer.items() if name in _OF_PROCESSES}
    centred_sides, _, _ = centred(sides, {}, [0])
    asked = Asked(0, False, False, "none", seed, ranking=False)
    found = measure(centred_sides, {}, [0], probe, asked, own, Stopwatch(), silence, None, None)
    (fit,) = found.fits
    if sides.numbers:
        weight = fit.weight.numpy()[0]
        predicted = load(centred_sides.test, 0).hidden_states.double().numpy() @ weight
        return Baseline(np.asarray(fit.deviations - fit.errors), predicted)  # type: ignore[union-attr]
    return Baseline(fit.correct_by_sentence.astype(np.float64))  # type: ignore[union-attr]
