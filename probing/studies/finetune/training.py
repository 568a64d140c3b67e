"""A tuning of a model with Lightning: its examples, its curve, its answers on the test part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from probing.activations import Request, tokens_of
from probing.activations.extraction import padded_index
from probing.activations.source import report_dropped_text
from probing.activations.store import StorePlan, divide
from probing.activations.store import batches as by_length
from probing.cli.options import ProbeOptions
from probing.data.examples import Examples, HiddenStateSource, SentenceVectors, Sides
from probing.data.labelling import ExampleChecks, Standard, is_target, label_sides, load, nothing, targets_of
from probing.data.module import TokenEmbeddings, token_control
from probing.errors import UserError
from probing.models import ModelSource, load_config, load_encoder, load_tokenizer
from probing.models.anatomy import examine, word_table
from probing.models.loading import HeadOf, load_with_head
from probing.probes.transforms import centred
from probing.runs.loading import checkpoint_name
from probing.runs.results import EvidenceConfig, measure
from probing.runtime.files import regular, replacing
from probing.runtime.trainer import (
    ContinuedData,
    ContinuedModule,
    Places,
    RecordedTraining,
    Row,
    generator_of,
    process_options,
    save_model,
    seed_of,
)
from probing.studies.finetune.tables import BAG, CONSTANT, MAJORITY, RANDOM, SECOND, SHUFFLED, TuningOptions
from probing.text import Corpus, GroupBy, Split, intervals_by_document
from probing.text.tasks import SentenceTask, TokenTask
from probing.text.tokens import SET_ASIDE, Tokens


@dataclass(frozen=True)
class TokenTable:
    """A store of tokens without hidden states."""

    tokens: Tokens

    @cached_property
    def plan(self) -> StorePlan:
        """Shards of a few thousand tokens."""
        return StorePlan({}, 0, 1, "float32", 0, divide(self.tokens.lengths, 2**15))

    def read(self, layer: int, shard: int) -> Tensor:
        """Raise an error, because there are no hidden states."""
        raise NotImplementedError


@dataclass
class TuningBatch:
    """Padded sentences, or none, and their targets.

    Args:
        inputs: Inputs of the model by name, shape (n_sentences, n_positions) each.
        targets: For token tasks the class or number of each token, shape (n_sentences, n_positions); for sentence tasks
            of each sentence, shape (n_sentences,). A class is `IGNORED`, and a number NaN, without a target.
        n: Number of targets in all parts of a step: of all processes, and of all parts whose gradients accumulate.
        sentences: Index of each sentence in its corpus, shape (n_sentences,).
    """

    inputs: dict[str, Tensor]
    targets: Tensor
    n: int
    sentences: Tensor

    def to(self, device: Any, **options: Any) -> TuningBatch:
        """Return the batch on a device; Lightning calls this."""
        moved = {name: values.to(device, **options) for name, values in self.inputs.items()}
        return TuningBatch(moved, self.targets.to(device, **options), self.n, self.sentences)

    def with_tokens(self, ids: Sequence[int], at: int) -> TuningBatch:
        """Return the batch with the same tokens, without targets, before the token at one position of each sentence.

        The other inputs of the new tokens are those of the token at this position.
        """

        def inserted(values: Tensor, new: Tensor) -> Tensor:
            return torch.cat([values[:, :at], new.expand(len(values), len(ids)), values[:, at:]], 1)

        new = {name: values[:, at : at + 1] for name, values in self.inputs.items()}
        new["input_ids"] = torch.tensor([[*ids]], dtype=torch.int64)
        inputs = {name: inserted(values, new[name]) for name, values in self.inputs.items()}
        without = torch.full((1, 1), nothing(self.targets), dtype=self.targets.dtype)
        targets = self.targets if self.targets.ndim == 1 else inserted(self.targets, without)
        return replace(self, inputs=inputs, targets=targets)


@dataclass(frozen=True)
class Side:
    """The labelled sentences or tokens of one side of the split, with their corpus.

    `targets` are classes or standardised numbers, `IGNORED` or NaN without one. `given` has the inputs of the model for
    each token, by name, shape (n_tokens,).
    """

    tokens: Tokens
    examples: Examples
    targets: Tensor
    of: HeadOf
    given: dict[str, Tensor]
    pad_token_id: int

    @cached_property
    def n_targets(self) -> NDArray[np.int64]:
        """Number of targets of each sentence of the corpus, shape (n_sentences,)."""
        rows = np.flatnonzero(is_target(self.targets).numpy())
        sentences = rows if self.of == "sentences" else self.tokens.sentences[rows]
        return np.bincount(sentences, minlength=self.tokens.n_sentences)

    @cached_property
    def sentences(self) -> NDArray[np.int64]:
        """The sentences with at least one target, ascending."""
        return np.flatnonzero(self.n_targets)

    def part(self, sentences: Sequence[int]) -> Side:
        """Return the side with the targets of these sentences alone."""
        rows = np.arange(len(self.targets)) if self.of == "sentences" else self.tokens.sentences
        inside = torch.from_numpy(np.isin(rows, [*sentences]))
        return replace(self, targets=self.targets.where(inside, nothing(self.targets)))

    def batches(self, batch_tokens: int) -> Iterator[TuningBatch]:
        """Yield the sentences with targets, the longest first, in batches of at most this number of tokens."""
        for chosen in by_length(self.tokens.lengths[self.sentences], batch_tokens):
            yield self.batch(self.sentences[chosen])

    def with_shuffled_targets(self, seed: int) -> Side:
        """Permute the targets at random among the tokens or sentences that have one."""
        target_rows = is_target(self.targets).nonzero()[:, 0]
        drawn = torch.randperm(len(target_rows), generator=generator_of(seed, "labels"))
        return replace(self, targets=self.targets.index_copy(0, target_rows, self.targets[target_rows[drawn]]))

    def batch(self, sentences: NDArray[np.int64], n: int | None = None) -> TuningBatch:
        """Return sentences, by index, as a batch in this order; its loss is a mean over n targets, by default all."""
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
        n_targets = int(is_target(targets).sum())
        return TuningBatch(inputs, targets, n_targets if n is None else n, torch.from_numpy(sentences))


@dataclass(frozen=True)
class TuningTask:
    """The data that a model is tuned and tested on, and the same examples (`sides`) for baselines.

    The loss of `validation`, possibly empty, is logged during the tuning. `classes` are empty for numbers, whose
    training mean and deviation are `standard`, None for classes. `n_truncated` sentences, or pairs, were cut.
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
        return self.n_classes or 1

    @property
    def n_classes(self) -> int:
        """Number of classes; 0 for numbers."""
        return 0 if self.standard else len(self.classes)


def labelled(
    source: ModelSource, corpora: Sequence[Corpus], splits: Sequence[Sequence[Split]], task: TokenTask,
    group_by: GroupBy, max_length: int | None, say: Callable[[str], None],
) -> TuningTask:  # fmt: skip
    """Tokenise the corpora and label them, and report dropped text.

    With two corpora, the second is the test side; `splits` has the side of each sentence. `max_length`, at which
    sentences are cut, is None for the model's limit.

    Raises:
        UserError: If training or test part have no examples, or fewer than two classes.
    """
    intervals_by_document(group_by, corpora)
    tokenizer, config = load_tokenizer(source), load_config(source)
    tables = [tokens_of(Request(source, corpus, [0], max_length=max_length), tokenizer) for corpus in corpora]
    # Nothing is chosen on validation sentences, so that there may be none.
    probe = ProbeOptions(l2=1.0)
    for tokens, check in zip(tables, ExampleChecks(task, corpora, splits, probe, say).by_corpus(), strict=True):
        check(tokens)
    report_dropped_text(corpora, tables, say)
    added = [tokenizer.num_special_tokens_to_add(pair=is_pair) for is_pair in (False, True)]
    if corpora[0].seconds is not None and added[0] == added[1]:
        say(f"{source.name}: its tokenizer puts no token between the two sentences of a pair, which are read as one")
    sides = label_sides([TokenTable(tokens) for tokens in tables], corpora, splits, task, group_by)
    of: HeadOf = "sentences" if isinstance(task, SentenceTask) else "tokens"
    standard = Standard.of(sides.train) if sides.numbers else None
    pad = padding_id(config, tokenizer, tables)

    def side(examples: Examples, tokens: Tokens) -> Side:
        return Side(tokens, examples, targets_of(examples, standard), of, _given(tokens, config), pad)

    return TuningTask(
        side(sides.train, tables[0]), side(sides.validation, tables[0]), side(sides.test, tables[-1]), sides,
        sides.classes.tolist(), standard, tokenizer, of, sum(tokens.n_truncated for tokens in tables),
        corpora[0].seconds is not None,
    )  # fmt: skip


def padding_id(config: Any, tokenizer: Any, tables: Sequence[Tokens]) -> int:
    """Return the id of the padding token; for a model without one, the id of a token that no sentence has.

    Heads of decoders take the last token that is not padding for the end of a sentence. Ids may be of another
    vocabulary.
    """
    n_tokens = int(config.vocab_size)
    known = [getattr(config, "pad_token_id", None), tokenizer.pad_token_id]
    used = {int(token_id) for tokens in tables for token_id in np.unique(tokens.input_ids)}
    free = [token_id for token_id in (getattr(config, "eos_token_id", None), *range(n_tokens)) if token_id not in used]
    return next((token_id for token_id in [*known, *free] if isinstance(token_id, int) and 0 <= token_id < n_tokens), 0)


def _given(tokens: Tokens, config: Any) -> dict[str, Tensor]:
    given = {"input_ids": torch.from_numpy(tokens.input_ids.astype(np.int64))}
    types = tokens.types_for(getattr(config, "type_vocab_size", None) or 0)
    if types is not None:
        given["token_type_ids"] = torch.from_numpy(types.astype(np.int64))
    return given


class PairVectors:
    """A store with one token for each pair: [u, v, |u - v|, u * v] of its sentences' vectors u and v."""

    def __init__(self, first: SentenceVectors, second: SentenceVectors) -> None:
        self.first, self.second = first, second
        self.tokens: Tokens = first.tokens
        self.plan: StorePlan = replace(first.plan, d_model=4 * first.plan.d_model)

    def read(self, layer: int, shard: int) -> Tensor:
        """Return the features of a shard's pairs, shape (n_pairs, 4 * d_embedding), float32."""
        u, v = self.first.read(layer, shard), self.second.read(layer, shard)
        return torch.cat([u, v, (u - v).abs(), u * v], dim=1)


def static_pairs(sides: Sides, encoder: nn.Module, second_alone: bool) -> Sides:
    """Replace the activations of pairs by `PairVectors` of static vectors, or by the second sentence's mean alone."""
    words: nn.Embedding = word_table(encoder)  # type: ignore[assignment]
    table = words.weight.detach().float()
    stores: dict[int, HiddenStateSource] = {}

    def vectors(store: SentenceVectors, segment: int) -> SentenceVectors:
        segment_tokens = of_sentence(store.base.tokens, segment)
        return SentenceVectors(TokenEmbeddings(TokenTable(segment_tokens), table), "mean")

    def of_pairs(store: HiddenStateSource) -> HiddenStateSource:
        assert isinstance(store, SentenceVectors)
        if id(store) not in stores:
            second = vectors(store, 1)
            stores[id(store)] = second if second_alone else PairVectors(vectors(store, 0), second)
        return stores[id(store)]

    return sides.each(lambda examples: replace(examples, store=of_pairs(examples.store)))


def of_sentence(tokens: Tokens, segment: int) -> Tokens:
    """Return the table of pairs with only the tokens of one sentence: segment 0 is the first, 1 the second."""
    assert tokens.segments is not None
    return replace(tokens, words=np.where(tokens.segments == segment, tokens.words, SET_ASIDE).astype(np.int16))


Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Baseline:
    """Score of an answer without a tuned model; `right` is as in `TestAnswers`, shape (n_sentences of the corpus,).

    `predicted` has the predicted number of each test example, up to a constant, shape (n_examples,); None for classes,
    and for the constant answer.
    """

    right: Floats
    predicted: Floats | None = None


def baselines(task: TuningTask, source: ModelSource, seed: int, trainer: Mapping[str, Any]) -> dict[str, Baseline]:
    """Return the constant answer, and linear probes with an intercept of the model's input embeddings.

    These are of the token, or of their mean over the sentence. For pairs, the features of the means u and v of both
    sentences are [u, v, |u - v|, u * v] (Conneau et al. 2017), and a further probe reads the second sentence alone.
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
        read = {BAG: token_control(task.sides, encoder)}
    return {
        MAJORITY if task.standard is None else CONSTANT: Baseline(constant),
        **{name: _of_probe(sides, seed, trainer) for name, sides in read.items()},
    }


def _of_probe(sides: Sides, seed: int, trainer: Mapping[str, Any]) -> Baseline:
    """Return the score by test sentence of a linear probe with an intercept."""
    # Without validation examples, no penalty can be chosen.
    probe = ProbeOptions(bias=True) if sides.validation.n_tokens else ProbeOptions(bias=True, l2=1e-4)
    centred_sides, _, _ = centred(sides, {}, [0])
    config = EvidenceConfig(seed, ranking=False)
    results = measure(centred_sides, {}, [0], probe, config, process_options(trainer))
    (fit,) = results.fits
    if sides.numbers:
        weight = fit.weight.numpy()[0]
        predicted = load(centred_sides.test, 0).hidden_states.double().numpy() @ weight
        return Baseline(np.asarray(fit.deviations - fit.errors), predicted)  # type: ignore[union-attr]
    return Baseline(fit.correct_by_sentence.astype(np.float64))  # type: ignore[union-attr]


@dataclass(frozen=True)
class TestAnswers:
    """Answers of a model on the sentences of a side, as sums over the targets of each sentence.

    Args:
        right: Number of correct targets; for numbers, the squared error of the constant answer minus the model's. Shape
            (n_sentences of the corpus,).
        loss: Cross-entropy in nats; for numbers, the squared error in standard deviations.
        confusion: Number of targets by true and predicted class, shape (n_classes, n_classes); for numbers (0, 0).
        predicted: For numbers of sentences, the standardised prediction for each sentence, NaN without one; shape
            (n_sentences of the corpus,). For other tasks NaN throughout.
    """

    right: NDArray[np.float64]
    loss: NDArray[np.float64]
    confusion: NDArray[np.int64]
    predicted: NDArray[np.float64]


class TunedModel(ContinuedModule):
    """A model with a head of `transformers` that learns to predict classes, or a standardised number.

    A draw of dropout depends only on the seed `order`, the step, the batch and the process, so that a continued
    training draws the same.
    """

    def __init__(self, model: Any, recipe: TuningOptions, steps: int, order: int) -> None:
        rate, warm_up = f"--tuning.learning_rate {recipe.learning_rate}", round(recipe.warm_up * steps)
        super().__init__(model, order, steps, warm_up, rate)
        self.recipe = recipe
        self.groups = parameter_groups(model, recipe)

    def outputs(self, batch: TuningBatch) -> tuple[Tensor, Tensor]:
        """Return outputs, of shape (n_targets, n_outputs), and targets, of shape (n_targets,), of a batch."""
        has_target = is_target(batch.targets)
        return self.model(**batch.inputs).logits[has_target].float(), batch.targets[has_target]

    def training_step(self, batch: TuningBatch, batch_index: int) -> Tensor:
        """Return the loss whose mean over processes and accumulated batches is the mean over all targets."""
        return self.loss_of_step(losses(*self.outputs(batch)).sum(), batch.n)

    def optimizer(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.groups, self.recipe.learning_rate)

    @torch.no_grad()
    def answers(self, side: Side, n_classes: int, before: Sequence[int] = (), at: int = 0) -> TestAnswers:
        """Return the model's answers on a side by sentence, without dropout; `n_classes` is 0 for numbers.

        The tokens `before` are put before the token at position `at` of each sentence.
        """
        was_training, n_sentences = self.model.training, side.tokens.n_sentences
        self.model.eval()
        right, loss, predicted = np.zeros(n_sentences), np.zeros(n_sentences), np.full(n_sentences, np.nan)
        confusion = np.zeros((n_classes, n_classes), dtype=np.int64)
        for batch in side.batches(self.recipe.batch_tokens):
            if before:
                batch = batch.with_tokens(before, at)
            has_target = is_target(batch.targets)
            outputs, targets = self.outputs(batch.to(self.device))
            of = batch.sentences.view(-1, *[1] * (has_target.ndim - 1)).expand(has_target.shape)[has_target].numpy()
            sizes, true = losses(outputs, targets).cpu().double().numpy(), targets.cpu().numpy()
            np.add.at(loss, of, sizes)
            if n_classes:
                best = outputs.argmax(1).cpu().numpy()
                np.add.at(right, of, best == true)
                np.add.at(confusion, (true, best), 1)
            else:
                np.add.at(right, of, true.astype(np.float64) ** 2 - sizes)
                if has_target.ndim == 1:
                    predicted[of] = outputs[:, 0].cpu().double().numpy()
        self.model.train(was_training)
        return TestAnswers(right, loss, confusion, predicted)


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each target in nats, or the squared error of its number, shape (n_targets,)."""
    if targets.is_floating_point():
        return (outputs[:, 0] - targets) ** 2
    return functional.cross_entropy(outputs, targets, reduction="none")


def layer_of_parameters(model: Any) -> dict[str, int]:
    """Return the layer of each parameter: 0 for the embeddings, k for block k, and one more for the head.

    Parameters before the blocks, in the order of the model's modules, are embeddings, and parameters after the blocks
    are head. Blocks that share their parameters (ALBERT) are block 1.
    """
    base = model.base_model
    anatomy = examine(base, int(getattr(model.config, "pad_token_id", None) or 0))
    block_of: dict[int, int] = {}
    for k, block in enumerate(anatomy.blocks or (), start=1):
        for parameter in block.parameters():
            block_of.setdefault(id(parameter), k)
    of_base = {id(parameter) for parameter in base.parameters()}
    layers, is_behind = {}, False
    for name, parameter in model.named_parameters():
        inside = block_of.get(id(parameter))
        is_behind |= inside is not None
        outside = anatomy.n_layers + 1 if is_behind or id(parameter) not in of_base else 0
        layers[name] = outside if inside is None else inside
    return layers


def parameter_groups(model: Any, recipe: TuningOptions) -> list[dict[str, Any]]:
    """Group the parameters by learning rate and weight decay, and freeze the layers that are not tuned.

    Raises:
        UserError: If more layers are to be frozen than there are.
    """
    named: dict[str, nn.Parameter] = dict(model.named_parameters())
    layered = recipe.frozen > 0 or recipe.layer_decay < 1
    layers = layer_of_parameters(model) if layered else dict.fromkeys(named, 0)
    highest = max(layers.values())
    if recipe.frozen > highest:
        raise UserError(
            f"`--tuning.frozen {recipe.frozen}`: the model has {highest} layers under its head, 0 (embeddings) to "
            f"{highest - 1}; freeze at most these."
        )
    groups: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for name, parameter in named.items():
        if layered and layers[name] < recipe.frozen:
            parameter.requires_grad_(False)
        else:
            groups.setdefault((layers[name], parameter.ndim > 1), []).append(parameter)
    return [
        {
            "params": parameters,
            "lr": recipe.learning_rate * recipe.layer_decay ** (highest - layer),
            "weight_decay": recipe.weight_decay if is_matrix else 0.0,
        }
        for (layer, is_matrix), parameters in groups.items()
    ]


# Sentences of similar length are batched together among this many batches' worth of tokens, drawn at random.
_POOL = 32


def epoch_of(lengths: NDArray[np.int32], batch_tokens: int, order: int, epoch: int) -> list[NDArray[np.int64]]:
    """Return an epoch's shuffled batches: each sentence once, in at most `batch_tokens` padded tokens or alone."""
    drawn = generator_of(order, "order", epoch)
    shuffled = torch.randperm(len(lengths), generator=drawn).numpy()
    pool = np.cumsum(lengths[shuffled], dtype=np.int64) // (_POOL * batch_tokens)
    batches = []
    for number in np.unique(pool):
        inside = shuffled[pool == number]
        batches += [inside[chosen] for chosen in by_length(lengths[inside], batch_tokens)]
    return [batches[i] for i in torch.randperm(len(batches), generator=drawn).tolist()]


class TuningData(ContinuedData):
    """The training sentences in batches of at most `batch_tokens`, padding included.

    Their order depends on its seed alone. If gradients are accumulated over n batches, these are the parts of one batch
    of n times as many tokens.
    """

    def __init__(self, train: Side, batch_tokens: int, epochs: int, order: int, n_accumulated: int = 1) -> None:
        super().__init__(n_accumulated)
        self.train = train
        lengths = train.tokens.lengths[train.sentences]
        per_epoch = [epoch_of(lengths, batch_tokens * n_accumulated, order, epoch) for epoch in range(epochs)]
        self.steps = [train.sentences[chosen] for batches in per_epoch for chosen in batches]
        # Number of steps at the end of each epoch.
        self.ends = np.cumsum([len(batches) for batches in per_epoch], dtype=np.int64).tolist()

    def whole_batches(self, first: int) -> Iterator[TuningBatch]:
        """Yield the batch of each step."""
        return map(self.train.batch, self.steps[first:])

    def part_of(self, batch: TuningBatch, part: int, n_parts: int) -> TuningBatch:
        """Return every `n_parts`-th sentence; without any, a batch without targets, so that each process steps."""
        sentences = batch.sentences.numpy()
        if len(selected := sentences[part::n_parts]):
            return self.train.batch(selected, batch.n)
        first = self.train.batch(sentences[:1], batch.n)
        return replace(first, targets=torch.full_like(first.targets, nothing(first.targets)))


# Points of the curve of the training loss.
_POINTS = 100


@dataclass(frozen=True)
class TuningJob:
    """One tuning from one of `STARTS`.

    `seed` is for the head, all random initialisation and shuffled labels; `order` is for the text's order and dropout.
    """

    start: str
    seed: int
    order: int

    @property
    def name(self) -> str:
        """Name of the tuning in folders and curves."""
        return checkpoint_name(self.row)

    @property
    def row(self) -> Row:
        """The columns that identify the tuning of a row."""
        return {"start": self.start, "seed": self.seed, "order_seed": self.order}


def tune(
    job: TuningJob, source: ModelSource, task: TuningTask, recipe: TuningOptions, options: Mapping[str, Any],
    places: Places, logger: Any,
) -> list[Row]:  # fmt: skip
    """Tune a model from its start or from its last state, unless that is finished; return its curve."""
    train = task.train.with_shuffled_targets(job.seed) if job.start == SHUFFLED else task.train
    n_accumulated = options.get("accumulate_grad_batches") or 1
    data = TuningData(train, recipe.batch_tokens, recipe.epochs, job.order, n_accumulated)
    steps, logged = len(data.steps), ("train_loss", "validation_loss")

    def untuned() -> TunedModel:
        # A seed of its own, so that the draws have nothing in common with those of other parts.
        seed = seed_of(job.seed, "head") % 2**63
        model = load_with_head(source, task.of, task.n_outputs, seed, job.start == RANDOM, recipe.layer)
        _name_outputs(model, task)
        return TunedModel(model, recipe, steps, job.order)

    def measures(module: TunedModel, step: int) -> Row:
        """Return the loss on validation sentences, at the end of an epoch."""
        if not len(task.validation.sentences):
            return {}
        answers = module.answers(task.validation, task.n_classes)
        return {"validation_loss": float(answers.loss.sum()) / task.validation.examples.n_tokens}

    def write(module: TunedModel) -> None:
        """Test the model, and write it with its answers on the test part."""
        tested = module.answers(task.test, task.n_classes)
        save_model(places.checkpoints / job.name, module.model, task.tokenizer)
        write_answers(places, job, tested)

    training = RecordedTraining(
        job.name, job.row, steps, data.ends, _POINTS, recipe.save_every, places, logger, logged, measures, write
    )
    return training.fit(untuned, data, recipe.clip or None, options)


def _name_outputs(model: Any, task: TuningTask) -> None:
    """Set the names of the head's outputs, and the padding token, in the configuration that is saved."""
    names = [str(label) for label in task.classes] or ["number"]
    model.config.id2label = dict(enumerate(names))
    model.config.label2id = {name: i for i, name in enumerate(names)}
    model.config.problem_type = "regression" if task.standard else None
    model.config.pad_token_id = task.train.pad_token_id


def write_answers(places: Places, job: TuningJob, answers: TestAnswers) -> None:
    """Write a tuned model's answers on the test part."""
    path = places.document(job.name).with_suffix(".npz")
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as partial, partial.open("wb") as file:
        np.savez(file, **vars(answers))


def read_answers(places: Places, job: TuningJob) -> TestAnswers:
    """Read the answers written by `write_answers`."""
    with np.load(regular(places.document(job.name).with_suffix(".npz"), places.folder), allow_pickle=False) as content:
        arrays: dict[str, NDArray[Any]] = {field.name: content[field.name] for field in fields(TestAnswers)}
    return TestAnswers(**arrays)
