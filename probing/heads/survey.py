"""A survey of the heads of a model: its model, corpus and settings, and what a part of a survey is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.activations import ActivationStore, Request, load, tokens_of
from probing.activations.source import ActivationSource
from probing.activations.store import CacheEntry
from probing.errors import UserError, about_option
from probing.heads.accumulation import AttentionReader, Measure, SumsStore
from probing.heads.measures import Rows, SentenceDraws, types_of
from probing.heads.roles import Pairs, RoleLinks, pairs_of, treebank_links
from probing.models import length_limits, load_config, load_tokenizer, site_of
from probing.models.anatomy import Anatomy, examine, hidden_states
from probing.models.attention_heads import Heads, QueryKey, find_query_keys, read_heads
from probing.models.examination import with_the_same_weights
from probing.runtime.trainer import on_float64_device
from probing.text import Split
from probing.text.tokens import Tokens

if TYPE_CHECKING:
    from probing.runs.run import Run

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
class HeadSurvey:
    """A model, the corpus that it reads, and what it is compared with.

    Args:
        special_tokens: The tokenizer's special tokens, id to text.
        layers: Numbers of the reported layers.
        seed: Seed of the bootstrap, and of the randomly initialised model.
        test: Model and test corpus; None to test on a part of the corpus itself.
        splits: Split of each sentence of the corpus, then of the test corpus, if there is one.
        role_links: Role links in separate sentences; None to take the links of the corpus.
        against: Another checkpoint of the model, on the same corpus.
        as_published: Whether padded maps are compared with it, too.
        run: A run of `fit` on position, of the same model.
        source: Model and cache of hidden states, for parts that read them.
        without_first: Whether the first token of each sentence is excluded.
    """

    request: Request
    heads: Heads
    tokens: Tokens
    special_tokens: Mapping[int, str]
    layers: Sequence[int]
    seed: int
    test: Request | None = None
    splits: Sequence[Sequence[Split]] = ()
    role_links: RoleLinks | None = None
    against: SurveyedCheckpoint | None = None
    as_published: bool = False
    run: PositionRun | None = None
    source: ActivationSource | None = None
    without_first: bool = False

    @classmethod
    def of(cls, request: Request, layers: Sequence[int], seed: int, **settings: Any) -> HeadSurvey:
        """Load the model, examine its heads, and tokenise the corpus; `settings` are further fields of a survey.

        Raises:
            UserError: If the model cannot be loaded or has no attention weights.
        """
        tokenizer = load_tokenizer(request.source)
        encoder, pad_token_id = load(request)
        heads = AttentionReader.of(encoder, pad_token_id, request.source.name).heads
        special = dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
        return cls(request, heads, tokens_of(request, tokenizer), special, layers, seed, **settings)

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
        return (self.tokens.positions > 0) | (not self.without_first)

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """Number of measured tokens of each sentence, shape (n_sentences,)."""
        lengths = self.tokens.lengths
        return lengths - (lengths > 0) if self.without_first else lengths

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
        links = self.role_links or treebank_links(self.request.corpus)
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
    def requests(self) -> list[Request]:
        """Model and corpus, and model and test corpus, if there is one."""
        return [self.request] if self.test is None else [self.request, self.test]

    @cached_property
    def hidden_states(self) -> list[ActivationStore]:
        """The hidden states of each corpus, extracted if not cached."""
        assert self.source is not None
        source = replace(self.source, layers=list(self.layers))
        return source.read([request.corpus for request in self.requests])

    def entry(self, stores: Mapping[str, SumsStore]) -> CacheEntry:
        """Return a cache entry that was read, which describes its source; `stores` may be empty."""
        return next(iter(stores.values()), None) or self.hidden_states[0]

    @property
    def is_train(self) -> NDArray[np.bool_]:
        """Mask of the sentences that heads are chosen on: all but the test part, shape (n_sentences,)."""
        return ~_is_test(self.splits[0])

    @property
    def tested(self) -> tuple[Request, NDArray[np.bool_], str]:
        """Model and corpus to report on, a mask of its test sentences, and the option that names the corpus."""
        if self.test is None:
            return self.request, _is_test(self.splits[0]), "--corpus"
        return self.test, _is_test(self.splits[1]), "--test_corpus"

    @property
    def readings(self) -> dict[str, Request]:
        """The test corpus, and both corpora with a randomly initialised model unless the model itself is, by name."""
        requests = {} if self.test is None else {TEST: self.test}
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
    measures: Sequence[Measure]
    states: bool = False


@dataclass(frozen=True)
class SurveyPart:
    """A part of a survey.

    Args:
        name: Name for `--parts`.
        rows: Returns rows by table, from the sums by measure; the key of other readings is `reading/measure`.
        measures: Returns the measures to be summed over the corpus.
        needs: Returns what the part needs and the corpus lacks, as the end of a sentence; None if nothing is lacking.
        beside: Returns the inputs apart from the corpus.
        by_name_only: Whether the part is off by default, because it takes long or needs a further option, which may
            then add it; see `probing.heads.parts`.
        trains: Whether rows come from probes that all ranks train together.
        reads_pairs: Whether it reads pairs of sentences, which have no annotation of words.
        excludes_first: Whether it can be measured with `--first_token exclude`.
    """

    name: str
    rows: Callable[[HeadSurvey, Mapping[str, SumsStore]], Mapping[str, Rows]]
    measures: Callable[[HeadSurvey], Sequence[Measure]] = lambda survey: ()
    needs: Callable[[HeadSurvey], str | None] = lambda survey: None
    beside: Callable[[HeadSurvey], Sequence[SurveyInputs]] = lambda survey: ()
    by_name_only: bool = False
    trains: bool = False
    reads_pairs: bool = False
    excludes_first: bool = False
