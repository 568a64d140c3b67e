"""Model, corpus and settings of a head survey, and the definition of its parts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.activations import ActivationStore, Request, load, tokens_of
from probing.activations.source import ActivationSource
from probing.activations.store import CacheEntry, fingerprint
from probing.errors import UserError, about_option
from probing.heads.accumulation import (
    Accumulator,
    AttentionReader,
    BatchValues,
    BlockAttention,
    BlockMeasure,
    CorpusMeasure,
    SentenceBatch,
    SumsStore,
)
from probing.heads.roles import Pairs, RoleLinks, pairs_of, treebank_links
from probing.heads.rows import Rows, SentenceDraws
from probing.models import length_limits, load_config, load_tokenizer, site_of
from probing.models.anatomy import Anatomy, examine, hidden_states
from probing.models.attention_heads import Heads, QueryKey, find_query_keys, read_heads
from probing.models.examination import with_the_same_weights
from probing.runtime.trainer import on_float64_device
from probing.text import Corpus, Split
from probing.text.tokens import Tokens

if TYPE_CHECKING:
    from probing.runs.run import Run

# --------------------------------------------------------------------------------------------------------------------
# Which tokens a head attends to, by weight and by norm, and the first token as an attention sink.
# --------------------------------------------------------------------------------------------------------------------

SPECIAL, PUNCTUATION, NEGATION = "special tokens", "punctuation", "negation"
# The negation words of Kovaleva et al. 2019, who list some of the words that end in n't.
_NEGATION = re.compile(
    r"(?<![\w'’])(?:neither|nor|not|never|none|nothing|nowhere|cannot|\w*n['’]t)(?![\w'’])", re.IGNORECASE
)
# Relations of a treebank by which the subject and the object of a clause are found, without subtypes.
_ROLES = {"subject": ("nsubj", "csubj"), "object": ("obj", "iobj")}


def attended(attention: BlockAttention, batch: SentenceBatch, types: Tensor) -> dict[str, Tensor]:
    """Return the attention to each type of token, summed over the queries of each sentence.

    `types` is a mask of the tokens of each type, shape (batch, sequence, types); False for padding.

    Returns:
        mass: The attention to all tokens of the type, shape (batch, heads, types), float64.
        norm_mass: As `mass`, for weights times norms, each row divided by its sum; absent if the output projection is
            unknown.
        column_max: The largest mean over queries among the sentence's tokens of the type, not summed; 0 without such
            tokens.
        n_tokens: Number of tokens of the type, shape (batch, 1, types).
        expected: The mass of the type under uniform attention over the visible keys, shape (batch, 1, types).
    """
    members = types.to(torch.float64)
    columns = attention.probabilities.sum(2, dtype=torch.float64)
    means = columns / batch.lengths[:, None, None].clamp_min(1)
    sums = {
        "n_tokens": members.sum(1)[:, None],
        "expected": _uniform_columns(attention, batch) @ members,
        "mass": columns @ members,
        "column_max": torch.stack([(means * members[:, None, :, i]).amax(2) for i in range(types.shape[2])], dim=2),
    }
    if attention.projection is not None:
        norms = torch.where(batch.mask[:, None], attention.value_norms(), 0.0)
        sums["norm_mass"] = norm_columns(attention.probabilities, norms) @ members
    return sums


def _uniform_columns(attention: BlockAttention, batch: SentenceBatch) -> Tensor:
    """Return the column sums of uniform attention over the visible keys, shape (batch, 1, to), float64."""
    if attention.visible is None and not batch.is_causal:
        return batch.mask.double()[:, None]  # n queries give 1 / n each, without rounding
    return attention.uniform(batch).sum(1, keepdim=True)


def norm_columns(probabilities: Tensor, norms: Tensor) -> Tensor:
    """Return the column sums of weights times norms, rows divided by their sums; (batch, heads, to), float64."""
    single = norms.to(probabilities.dtype)
    rows = (probabilities @ single[..., None])[..., 0]
    inverse = torch.where(rows > 0, 1 / rows.clamp_min(torch.finfo(rows.dtype).tiny), 0.0)
    return (inverse[:, :, None] @ probabilities)[:, :, 0].double() * norms


def types_of(tokens: Tokens, corpus: Corpus, special_tokens: Mapping[int, str]) -> dict[str, NDArray[np.bool_]]:
    """Return masks, (n_tokens,), of the token types that occur; some types need the columns of a treebank."""
    special = tokens.special
    by_type = {text: special & (tokens.input_ids == token) for token, text in special_tokens.items()}
    by_type[PUNCTUATION] = _punctuation(tokens, corpus) & ~special
    by_type[NEGATION] = _within(_NEGATION, tokens, corpus) & ~special
    if "upos" in corpus.columns:
        upos = _by_token(corpus.columns["upos"], tokens)
        by_type |= {name: upos == name for name in sorted(set(upos[~special].tolist()) - {"_", "PUNCT"})}
    if "deprel" in corpus.columns:
        relations = _by_token(corpus.columns["deprel"], tokens)
        plain = np.array([relation.split(":")[0] for relation in relations.tolist()], dtype=object)
        by_type |= {name: np.isin(plain, relations_of) for name, relations_of in _ROLES.items()}
    return {name: members for name, members in by_type.items() if members.any()}


def fingerprint_of(types: Mapping[str, NDArray[np.bool_]]) -> str:
    """Return a fingerprint of the types and their tokens."""
    return fingerprint({name: np.packbits(members).tobytes().hex() for name, members in types.items()})


def members_of(types: Tensor, batch: SentenceBatch) -> Tensor:
    """Return a mask of the tokens of each type in a batch, shape (batch, sequence, types); False for padding."""
    return types[batch.rows.cpu()].to(batch.mask.device) & batch.mask[:, :, None]


def _punctuation(tokens: Tokens, corpus: Corpus) -> NDArray[np.bool_]:
    """Return a mask of the tokens that are punctuation marks alone, shape (n_tokens,).

    A mark between two letters or digits, as in "don't", is a part of a word. Tokenizers separate marks from words in
    different ways, so that their words do not show whether a mark is inside a word.
    """
    is_punctuation = np.zeros(tokens.n_tokens, dtype=bool)
    assert tokens.spans is not None
    for row, (sentence, (start, stop)) in enumerate(zip(tokens.sentences.tolist(), tokens.spans.tolist(), strict=True)):
        text = corpus.sentences[sentence]
        piece = text[start:stop]
        if piece.strip() and all(unicodedata.category(character)[0] == "P" for character in piece.strip()):
            start += len(piece) - len(piece.lstrip())
            inside = text[start - 1 : start].isalnum() and text[stop : stop + 1].isalnum()
            is_punctuation[row] = not inside
    return is_punctuation


def _within(words: re.Pattern[str], tokens: Tokens, corpus: Corpus) -> NDArray[np.bool_]:
    """Return a mask of the tokens inside a match in their sentence, shape (n_tokens,).

    The tokenizer may split running text differently: BERT's makes three words of "don't".
    """
    is_inside = np.zeros(tokens.n_tokens, dtype=bool)
    assert tokens.spans is not None
    for i, sentence in enumerate(corpus.sentences):
        for match in words.finditer(sentence):
            rows = tokens.of_sentences(i, 1)
            first, last = tokens.spans[rows].T
            is_inside[rows] |= (first < match.end()) & (last > match.start())
    return is_inside


def _by_token(column: tuple[tuple[str, ...], ...], tokens: Tokens) -> NDArray[Any]:
    """Return the annotation of each token's word, empty for special tokens; shape (n_tokens,), objects."""
    annotations = np.full(tokens.n_tokens, "", dtype=object)
    pairs = zip(tokens.sentences.tolist(), tokens.words.tolist(), strict=True)
    annotations[:] = [column[sentence][word] if word >= 0 else "" for sentence, word in pairs]
    return annotations


@dataclass(frozen=True)
class AttentionByType:
    """The measure: attention to each type of token, given as masks of shape (n_tokens,).

    The special tokens together, including the first token of a causal model, are added as the first type. The
    fingerprint identifies the types, whose columns are not part of a corpus's fingerprint.
    """

    types: Mapping[str, NDArray[np.bool_]]
    fingerprint: str
    name: str = "attended"
    settings: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", {"version": 2, "types": [SPECIAL, *self.types], "of": self.fingerprint})

    @classmethod
    def of(cls, types: Mapping[str, NDArray[np.bool_]], name: str = "attended") -> AttentionByType:
        """Return the measure of some types under a name."""
        return cls(types, fingerprint_of(types), name)

    def of_corpus(self, tokens: Tokens, corpus: Corpus) -> Callable[[SentenceBatch], Accumulator]:
        """Return the function that creates the accumulator of a batch."""
        table = torch.from_numpy(np.stack(list(self.types.values()), axis=1)) if self.types else None

        def sums(attention: BlockAttention, batch: SentenceBatch) -> Mapping[str, Tensor]:
            types = batch.special[:, :, None]
            if table is not None:
                types = torch.cat([types, members_of(table, batch)], dim=2)
            return attended(attention, batch, types)

        return BlockMeasure(self.name, sums).of_corpus(tokens, corpus)


FIRST = "first token"


def sink(attention: BlockAttention, batch: SentenceBatch) -> dict[str, Tensor]:
    """Return the attention of later tokens to the first token, summed over these queries; (batch, heads), float64.

    Returns:
        mass: The attention to the first token.
        uniform: The mass under uniform attention over the keys that a query may see.
        norm_mass: As `mass`, for weights times norms, each row divided by its sum; absent if the output projection is
            unknown.
    """
    later = attention.probabilities[:, :, 1:]
    uniform = attention.uniform(batch)[:, 1:, 0].sum(1)
    sums = {
        "mass": later[..., 0].sum(2, dtype=torch.float64),
        "uniform": uniform[:, None].repeat(1, later.shape[1]),
    }
    if attention.projection is not None:
        sums["norm_mass"] = norm_columns(later, torch.where(batch.mask[:, None], attention.value_norms(), 0.0))[..., 0]
    return sums


SINK = BlockMeasure("sink", sink, {"version": 2})


@dataclass(frozen=True)
class WithoutFirst:
    """A measure of the attention without the first token of each sentence, which is treated as padding.

    A query that attends only to the first token, in the precision of the model, has a row of 0.
    """

    of: CorpusMeasure

    @property
    def name(self) -> str:
        """Name of the measure."""
        return self.of.name

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings of the measure, and that the first token is excluded."""
        return {**self.of.settings, "first_token": "exclude"}

    def of_corpus(self, tokens: Tokens, corpus: Corpus) -> Callable[[SentenceBatch], Accumulator]:
        """Return the function that creates the accumulator of a batch."""
        return without_first(self.of.of_corpus(tokens, corpus))


def without_first(begin: Callable[[SentenceBatch], Accumulator]) -> Callable[[SentenceBatch], Accumulator]:
    """Return the function that creates accumulators without first tokens."""
    return lambda batch: _WithoutFirst(begin(batch.without_first))


@dataclass(frozen=True)
class _WithoutFirst:
    inner: Accumulator

    def add(self, attention: BlockAttention) -> None:
        self.inner.add(attention.without_first)

    def batch_values(self) -> BatchValues:
        return self.inner.batch_values()


# --------------------------------------------------------------------------------------------------------------------
# Another checkpoint of a model: whether the two can be compared, and reading its attention and hidden states.
# --------------------------------------------------------------------------------------------------------------------

# Sizes that must be equal in two checkpoints: the name in the configuration, and the words for messages.
_SIZES = {
    "num_hidden_layers": "has {} blocks",
    "num_attention_heads": "has {} heads in a block",
    "hidden_size": "has hidden states of {} neurons",
}


@dataclass(frozen=True)
class SurveyedCheckpoint:
    """A checkpoint and its corpus; the weights are loaded on first use."""

    request: Request

    @cached_property
    def _loaded(self) -> tuple[nn.Module, int]:
        return load(self.request)

    @cached_property
    def _free(self) -> list[tuple[nn.Module, Anatomy]]:
        return []

    @property
    def encoder(self) -> nn.Module:
        """The model."""
        return self._loaded[0]

    @property
    def pad_token_id(self) -> int:
        """Id of the padding token."""
        return self._loaded[1]

    @cached_property
    def tokenizer(self) -> Any:
        """Tokenizer of the checkpoint."""
        return load_tokenizer(self.request.source)

    @cached_property
    def heads(self) -> Heads:
        """Heads of the checkpoint.

        Raises:
            UserError: If the checkpoint cannot be loaded or has no attention weights.
        """
        return AttentionReader.of(*self._loaded, self.request.source.name).heads

    def prepared(self) -> SurveyedCheckpoint:
        """Load the model and return this object, so that several threads do not each load the model."""
        _ = self.heads, self._free
        return self

    @contextmanager
    def _borrow(self, device: torch.device) -> Iterator[tuple[nn.Module, Anatomy]]:
        """Yield a copy that shares the weights of the model and is not used by another thread at the same time."""
        # Parameters move for all copies, buffers for one: a copy is run, and examined too, only once it has moved.
        try:
            model_copy = self._free.pop()
            model_copy[0].to(device)
        except IndexError:
            encoder = with_the_same_weights(self.encoder).to(device)
            model_copy = encoder, examine(encoder, self.pad_token_id, self.request.source.name)
        yield model_copy
        self._free.append(model_copy)

    def maps(self, inputs: Mapping[str, Tensor], first: int = 1, last: int | None = None) -> dict[int, Tensor]:
        """Return the attention of blocks `first` to `last`, shape (batch, heads, from, to), with rows of padding."""
        maps_of_layer: dict[int, Tensor] = {}

        def give(layer: int, probabilities: Tensor, values: Tensor) -> None:
            if first <= layer <= (last or layer):
                maps_of_layer[layer] = on_float64_device(probabilities).clone()

        with self._borrow(inputs["input_ids"].device) as (encoder, _):
            read_heads(encoder, self.heads, give, inputs)
        return maps_of_layer

    def states(self, inputs: Mapping[str, Tensor]) -> dict[int, Tensor]:
        """Return the hidden states of all layers, each of shape (batch, sequence, d_model); padding is undefined."""
        with self._borrow(inputs["input_ids"].device) as (encoder, anatomy):
            states_of_layer = hidden_states(encoder, anatomy, range(anatomy.n_layers + 1), **inputs)
        return {layer: on_float64_device(values) for layer, values in states_of_layer.items()}

    def matrices(self) -> dict[str, tuple[int | None, Tensor]]:
        """Return the layer (None outside of blocks) and the values of each parameter matrix, by name.

        The pooler is excluded: it comes after all hidden states, and is randomly initialised if a checkpoint has none.
        """
        with self._borrow(next(self.encoder.parameters()).device) as (encoder, anatomy):
            blocks = anatomy.blocks or ()
        names = {module: name for name, module in encoder.named_modules()}
        # A block that is called for several layers belongs to none.
        layers = {f"{names[block]}.": k for k, block in enumerate(blocks, 1) if blocks.count(block) == 1}
        return {
            name: (next((k for begin, k in layers.items() if name.startswith(begin)), None), values.detach())
            for name, values in encoder.named_parameters()
            if values.ndim > 1 and "pooler" not in name
        }


def check_comparable(request: Request, heads: Heads, other: SurveyedCheckpoint, option: str = "--against") -> None:
    """Raise a UserError unless two checkpoints have the same tokens, blocks and heads."""
    flag_text, name = f"`{option} {other.request.source.name}`", request.source.name
    with about_option(option):
        theirs: Any = load_config(other.request.source)
        mine: Any = load_config(request.source)
        for field, message in _SIZES.items():
            size, expected_size = (getattr(config, field, None) for config in (theirs, mine))
            if size != expected_size:
                raise UserError(
                    f"{flag_text} {message.format(size)}, and {name} {message.format(expected_size)}; "
                    "give two checkpoints of one model."
                )
        _check_tokens(request, other.request, flag_text)
        other_heads = other.heads
    if (other_heads.n_layers, other_heads.n_heads) != (heads.n_layers, heads.n_heads):
        raise UserError(
            f"{flag_text} has {other_heads.n_layers} blocks of {other_heads.n_heads} heads, and {name} has "
            f"{heads.n_layers} of {heads.n_heads}; give two checkpoints of one model."
        )


def _check_tokens(request: Request, other: Request, flag_text: str) -> None:
    tokenizers = [load_tokenizer(checkpoint_request.source) for checkpoint_request in (request, other)]
    both = list(zip((request, other), tokenizers, strict=True))
    ours, theirs = (tokens_of(checkpoint_request, tokenizer) for checkpoint_request, tokenizer in both)
    if np.array_equal(ours.input_ids, theirs.input_ids):
        return
    limits = [length_limits(checkpoint_request.source, tokenizer)[1] for checkpoint_request, tokenizer in both]
    if limits[0] != limits[1] and ours.n_truncated != theirs.n_truncated:
        raise UserError(
            f"{flag_text} takes {limits[1]} tokens, and {request.source.name} {limits[0]}, so that they would read "
            f"different parts of the longest sentences; add `--max_length {min(limits)}`."
        )
    raise UserError(
        f"{flag_text} divides the corpus into other tokens than {request.source.name}; give two checkpoints with one "
        "tokenizer."
    )


# --------------------------------------------------------------------------------------------------------------------
# A run of `fit` on position, whose rankings of neurons are compared with what position heads read.
# --------------------------------------------------------------------------------------------------------------------

# The columns of `neurons.csv` that are rankings.
RANKINGS = ("contribution", "contribution_centred", "eta_squared")


@dataclass(frozen=True)
class PositionRun:
    """The probes and neuron rankings of a run of `fit` on position.

    Args:
        layers: Numbers of its layers, ascending.
        positions: The position of each class, shape (n_classes,).
        weight: Weights of the probes, shape (n_layers, n_classes, d_model).
        scores: Score of each neuron by ranking, shape (n_layers, d_model).
    """

    name: str
    layers: Sequence[int]
    positions: NDArray[np.int64]
    weight: Tensor
    scores: Mapping[str, NDArray[np.float64]]

    @classmethod
    def of(cls, run: Run, key: Mapping[str, Any], model: str) -> PositionRun:
        """Read a finished run of `fit`, if it is on position and of the same model, by the cache key of the corpus.

        Raises:
            UserError: If the run is on another task, site or space, has an intercept, or is of another model.
        """
        config, flag_text = run.config, f"`--run {run.folder}`"
        if config["task"] != "position":
            raise UserError(
                f"{flag_text} is a run on `--task {config['task']}`, and position heads are compared with a run on "
                "position; give the folder of one, as `fit` writes it."
            )
        if site_of(config) != "residual" or run.transform != "none":
            raise UserError(
                f"{flag_text} has `--site {site_of(config)}` and `--transform {run.transform}`, and position heads "
                "read hidden states as they are; give a run with `--site residual` and `--transform none`."
            )
        if config["probe"].get("bias"):
            raise UserError(
                f"{flag_text} has `--probe.bias true`, and position heads are compared with probes without an "
                "intercept; give a run without it."
            )
        run_key = run.results["cache"]["test"]["key"]
        if any(run_key.get(name) != key.get(name) for name in ("model", "random_weights_seed")):
            raise UserError(
                f"{flag_text} is a run of `--model {config['model']}`, and this survey is of `--model {model}`, which "
                "has other weights; give a run of the same model."
            )
        layers = [row["layer"] for row in run.accuracy]
        weight = run.weight
        scores = {}
        for name in RANKINGS:
            if all(name in row for row in run.neurons):
                scores[name] = np.zeros((len(layers), weight.shape[2]))
                for row in run.neurons:
                    scores[name][layers.index(row["layer"]), row["neuron"]] = row[name]
        return cls(str(run.folder), layers, np.array(run.results["classes"], dtype=np.int64), weight, scores)

    def of_layer(self, layer: int) -> dict[str, NDArray[np.float64]]:
        """Return the scores of one layer by ranking, shape (d_model,); empty if the run has no such layer."""
        if layer not in self.layers:
            return {}
        return {name: values[self.layers.index(layer)] for name, values in self.scores.items()}

    def weight_of(self, layer: int) -> Tensor:
        """Return the weights of one layer's probe, shape (n_classes, d_model)."""
        return self.weight[self.layers.index(layer)]

    def classes_of(self, positions: Tensor) -> Tensor:
        """Return the class index of each position, shape (n,); -1 without a class."""
        index = torch.full((int(max(self.positions.max(), int(positions.max()))) + 1,), -1, dtype=torch.int64)
        index[torch.from_numpy(self.positions)] = torch.arange(len(self.positions))
        return index[positions]


# Names of further readings: the name of the test corpus, and a prefix for readings by a randomly initialised model.
TEST, UNTRAINED = "test", "untrained "
# The name under which the hidden states of a reading stand among its sums.
STATES = "states"


@dataclass(frozen=True)
class HeadConfig:
    """The further inputs of a survey apart from its corpus.

    Args:
        test: Model and test corpus; None to test on a part of the corpus itself.
        splits: Split of each sentence of the corpus, then of the test corpus, if there is one.
        roles: Role links in separate sentences; None to take the links of the corpus.
        against: Another checkpoint of the model, on the same corpus.
        as_published: Whether padded maps are compared with it, too.
        run: A run of `fit` on position, of the same model.
        source: Model and cache of hidden states, for parts that read them.
        without_first: Whether the first token of each sentence is excluded.
    """

    test: Request | None = None
    splits: Sequence[Sequence[Split]] = ()
    roles: RoleLinks | None = None
    against: SurveyedCheckpoint | None = None
    as_published: bool = False
    run: PositionRun | None = None
    source: ActivationSource | None = None
    without_first: bool = False


@dataclass(frozen=True)
class HeadSurvey:
    """A model and the corpus that it reads.

    Args:
        special_tokens: The tokenizer's special tokens, id to text.
        layers: Numbers of the reported layers.
        seed: Seed of the bootstrap, and of the randomly initialised model.
    """

    request: Request
    heads: Heads
    tokens: Tokens
    special_tokens: Mapping[int, str]
    layers: Sequence[int]
    seed: int
    config: HeadConfig = HeadConfig()

    @classmethod
    def of(cls, request: Request, layers: Sequence[int], seed: int, config: HeadConfig = HeadConfig()) -> HeadSurvey:
        """Load the model, examine its heads, and tokenise the corpus.

        Raises:
            UserError: If the model cannot be loaded or has no attention weights.
        """
        tokenizer = load_tokenizer(request.source)
        encoder, pad_token_id = load(request)
        heads = AttentionReader.of(encoder, pad_token_id, request.source.name).heads
        special = dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
        return cls(request, heads, tokens_of(request, tokenizer), special, layers, seed, config)

    @cached_property
    def checkpoint(self) -> SurveyedCheckpoint:
        """The model as a checkpoint for comparison with another checkpoint."""
        return SurveyedCheckpoint(self.request)

    @cached_property
    def types(self) -> dict[str, NDArray[np.bool_]]:
        """The tokens of each type that occurs, as masks of shape (n_tokens,)."""
        by_type = types_of(self.tokens, self.request.corpus, self.special_tokens)
        by_type = {name: members & self.is_included for name, members in by_type.items()}
        return {name: members for name, members in by_type.items() if members.any()}

    @cached_property
    def is_included(self) -> NDArray[np.bool_]:
        """Mask of the measured tokens, shape (n_tokens,)."""
        return (self.tokens.positions > 0) | (not self.config.without_first)

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """Number of measured tokens of each sentence, shape (n_sentences,)."""
        lengths = self.tokens.lengths
        return lengths - (lengths > 0) if self.config.without_first else lengths

    @cached_property
    def special(self) -> NDArray[np.bool_]:
        """Mask of the special tokens, shape (n_tokens,): in causal models also the first token, if it is measured."""
        special = self.tokens.special
        return (special | (self.tokens.positions == 0) if self.heads.is_causal else special) & self.is_included

    @cached_property
    def sentences(self) -> SentenceDraws:
        """The draws of the sentences for all confidence intervals."""
        return SentenceDraws(self.tokens.n_sentences, self.seed)

    @cached_property
    def roles(self) -> tuple[Request, Pairs]:
        """Model and sentences with role links, of the file or else of the treebank; and the compared pairs.

        Raises:
            UserError: If the corpus has no link that can be measured.
        """
        links = self.config.roles or treebank_links(self.request.corpus)
        request = replace(self.request, corpus=links.corpus)
        return request, pairs_of(links, tokens_of(request, load_tokenizer(request.source)), self.seed)

    @cached_property
    def query_keys(self) -> list[QueryKey]:
        """The queries and keys of the heads of each block.

        Raises:
            UserError: If the model has no table of positions, or its attention uses more than queries and keys.
        """
        encoder, pad_token_id = load(self.request)
        anatomy = examine(encoder, pad_token_id, self.request.source.name)
        if anatomy.position_table is None:
            raise UserError(
                f"`--model {self.request.source.name}` has relative or rotary positions, or none, which are not in the "
                "input of its attention"
            )
        request = self.tested[0]
        tested = tokens_of(request, load_tokenizer(request.source))
        longest = max(int(tokens.lengths.max(initial=1)) for tokens in (self.tokens, tested))
        return find_query_keys(encoder, anatomy, self.heads, pad_token_id, longest)

    @property
    def source(self) -> ActivationSource:
        """Model and cache of the hidden states of the reported layers."""
        assert self.config.source is not None
        return replace(self.config.source, layers=list(self.layers))

    @property
    def requests(self) -> list[Request]:
        """Model and corpus, and model and test corpus, if there is one."""
        return [self.request] if self.config.test is None else [self.request, self.config.test]

    @cached_property
    def hidden_states(self) -> list[ActivationStore]:
        """The hidden states of each corpus, extracted if not cached."""
        return self.source.read([request.corpus for request in self.requests])

    def entry(self, stores: Mapping[str, SumsStore]) -> CacheEntry:
        """Return a cache entry that was read, which describes its source; `stores` may be empty."""
        return next(iter(stores.values()), None) or self.hidden_states[0]

    @property
    def is_train(self) -> NDArray[np.bool_]:
        """Mask of the sentences that heads are chosen on: all but the test part, shape (n_sentences,)."""
        return ~_is_test(self.config.splits[0])

    @property
    def tested(self) -> tuple[Request, NDArray[np.bool_], str]:
        """Model and corpus to report on, a mask of its test sentences, and the option that names the corpus."""
        if self.config.test is None:
            return self.request, _is_test(self.config.splits[0]), "--corpus"
        return self.config.test, _is_test(self.config.splits[1]), "--test_corpus"

    @property
    def readings(self) -> dict[str, Request]:
        """The test corpus, and both corpora with a randomly initialised model unless the model itself is, by name."""
        requests = {} if self.config.test is None else {TEST: self.config.test}
        if self.request.random_weights_seed is None:
            trained = {"": self.request, **requests}
            requests |= {
                UNTRAINED + name: replace(trained_request, random_weights_seed=self.seed)
                for name, trained_request in trained.items()
            }
        return requests


def _is_test(splits: Sequence[Split]) -> NDArray[np.bool_]:
    return np.array([side == "test" for side in splits], dtype=bool)


@dataclass(frozen=True)
class SurveyInputs:
    """The inputs of a part apart from the corpus; with `states`, also the hidden states that enter the blocks."""

    name: str
    request: Request
    measures: Sequence[CorpusMeasure]
    states: bool = False


@dataclass(frozen=True)
class SurveyPart:
    """A part of a survey.

    Args:
        name: Name for `--parts`.
        needs: Returns what the part needs and the corpus lacks, as the end of a sentence; None if nothing is lacking.
        measures: Returns the measures to be summed over the corpus.
        rows: Returns rows by table, from the sums by measure; the key of other readings is `reading/measure`.
        beside: Returns the inputs apart from the corpus.
        by_name_only: Whether the part is off by default, because it takes long or needs a further option, which may
            then add it; see `probing.heads.parts`.
        trains: Whether rows come from probes that all ranks train together.
    """

    name: str
    needs: Callable[[HeadSurvey], str | None]
    measures: Callable[[HeadSurvey], Sequence[CorpusMeasure]]
    rows: Callable[[HeadSurvey, Mapping[str, SumsStore]], Mapping[str, Rows]]
    beside: Callable[[HeadSurvey], Sequence[SurveyInputs]] = lambda survey: ()
    by_name_only: bool = False
    trains: bool = False


def nothing(survey: HeadSurvey) -> None:
    """Return None: the part needs nothing that the corpus could lack."""
    return
