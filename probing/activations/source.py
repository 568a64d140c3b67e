"""A model with a cache, through which corpora are read, and estimates of the time and disk space of reading."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.activations import Request, activations, batch_tokens_of, entry_folder, tokens_of
from probing.activations.store import SHARD_BYTES, ActivationStore, DamagedCache, MemoryCache, NewerCache
from probing.errors import UserError
from probing.models import (
    PREFIX,
    Layout,
    ModelSource,
    SiteName,
    find_model,
    folder_of,
    is_dictionary,
    layout_at,
    load_config,
    load_encoder,
    load_tokenizer,
    parse_layers,
)
from probing.models.loading import Blocks, weight_bytes
from probing.results import layers_named
from probing.runtime import undisturbed_rate, without_logger
from probing.runtime.progress import stage
from probing.runtime.terminal import silence
from probing.runtime.trainer import check_trainer_options
from probing.text import Corpus
from probing.text.tokens import Tokens, count_words, is_visible

if TYPE_CHECKING:
    from probing.models.sites import Dictionary


@dataclass(frozen=True)
class ActivationSource:
    """A model with the settings of its forward pass, and the cache of its activations.

    Args:
        layers: Layer numbers, ascending.
        dtype: Dtype of the forward pass and of the cached activations, by its name in torch.
        max_length: Number of tokens at which sentences are cut; None for the model's limit.
        batch_tokens: Padded tokens in one forward pass; None chooses by the machine.
        random_weights_seed: Seed of a randomly initialised model; None for the trained model.
        permuted_tokens_seed: Seed by which each sentence's tokens are permuted; see `probing.activations.Request`.
        site: Site of the neurons in the model, or `sae:FOLDER` for the features of a dictionary.
        without_first: Whether the first token of each sentence is set aside. The cache contains it in any case.
        selected_features: Numbers of the features that are read; None for all.
    """

    model: ModelSource
    layers: Sequence[int]
    cache: Path
    dtype: str = "float32"
    max_length: int | None = None
    batch_tokens: int | None = None
    random_weights_seed: int | None = None
    permuted_tokens_seed: int | None = None
    trainer: Mapping[str, Any] = field(default_factory=dict)
    say: Callable[[str], None] = silence
    site: str = "residual"
    without_first: bool = False
    selected_features: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls,
        model: Any,
        revision: str | None,
        layer: int | Sequence[int] | str,
        trainer: Mapping[str, Any] | None,
        solver: str = "lbfgs",
        tokenizer: Any = None,
        **how: Any,
    ) -> ActivationSource:
        """Return the source of a command's options.

        Args:
            model: Alias, hub id or folder of the model, or the model itself.
            revision: Branch, tag or commit of the model on the hub.
            layer: Layers, as typed.
            solver: The solver for which the Trainer's arguments are checked, `lbfgs` or `adam`.
            tokenizer: Tokenizer of a model that is an object.
            how: Further fields of the source.

        Raises:
            UserError: If the Trainer's arguments cannot be honoured, or the model or a layer does not exist.
        """
        check_trainer_options(trainer or {}, solver)
        source = find_model(model, revision, tokenizer)
        n_layers = load_config(source).num_hidden_layers
        layers = parse_layers(layer, n_layers, source.name, how.get("site", "residual"))
        activation_source = cls(source, layers, trainer=without_logger(trainer), **how)
        activation_source.dictionary  # noqa: B018  # one that does not fit is refused before a text is read
        return activation_source

    @cached_property
    def config(self) -> Any:
        """The model's configuration, with `hidden_size` and `num_hidden_layers`."""
        return load_config(self.model)

    @cached_property
    def dictionary(self) -> Dictionary | None:
        """The dictionary whose features are the neurons; None without; `UserError` if it does not match the model."""
        if not is_dictionary(self.site):
            return None
        from probing.models.sites import load_dictionary

        layout = layout_at(self.site, self.layers, self.model.name, self.config.num_hidden_layers)
        check_place(layout, self.model)
        return load_dictionary(layout)

    @property
    def n_features(self) -> int | None:
        """Number of features that probes read; None without a dictionary."""
        if self.selected_features is not None or self.dictionary is None:
            return None if self.selected_features is None else len(self.selected_features)
        return min(self.dictionary.n_features, MOST_FEATURES)

    def blocks(self, requested: Sequence[int] | None) -> list[int]:
        """Return the layers that are blocks, which have heads; refuse layer 0 if it was `requested` (None: all)."""
        blocks = [layer for layer in self.layers if layer > 0]
        if requested is not None and len(blocks) < len(self.layers):
            raise UserError(
                f"`--layer {','.join(map(str, requested))}`: heads are in blocks, and {self.model.name} has blocks 1 "
                f"to {self.config.num_hidden_layers}; the embeddings, layer 0, have none."
            )
        return blocks

    def request(self, corpus: Corpus) -> Request:
        """Return the request for the activations of a corpus."""
        return Request(
            self.model, corpus, self.layers, self.dtype, self.max_length, self.random_weights_seed,
            self.permuted_tokens_seed, self.batch_tokens,
            "residual" if is_dictionary(self.site) else cast(SiteName, self.site),
        )  # fmt: skip

    def read(self, corpora: Sequence[Corpus], checks: Sequence[Callable[[Tokens], None]] = ()) -> list[ActivationStore]:
        """Return the activations of each corpus, extracting missing shards after its check of the tokens, if any."""
        stores = []
        with stage(f"hidden states of {layers_named(self.layers)}"):
            for corpus, check in zip(corpora, checks or [lambda tokens: None] * len(corpora), strict=True):
                check = _without_first(check) if self.without_first else check
                store = activations(self.request(corpus), self.cache, self.trainer, self.say, check=check)
                stores.append(store.without_first() if self.without_first else store)
        if (dictionary := self.dictionary) is None:
            return stores
        return [FeatureStore(store, dictionary, folder_of(self.site), self.selected_features) for store in stores]


def _without_first(check: Callable[[Tokens], None]) -> Callable[[Tokens], None]:
    return lambda tokens: check(tokens.without_first())


def report_dropped_text(corpora: Sequence[Corpus], tables: Sequence[Tokens], say: Callable[[str], None]) -> None:
    """Report the numbers of sentences or pairs repeated, empty or cut, and of words without a separate token."""
    for corpus, tokens in zip(corpora, tables, strict=True):
        if corpus.n_without_text:
            say(f"{corpus.name}: {corpus.n_without_text} rows without text were left out")
        if corpus.n_repeated:
            say(f"{corpus.name}: {corpus.n_repeated} repeated {corpus.unit} were left out")
        if n_truncated := tokens.n_truncated:
            say(f"{corpus.name}: {n_truncated} {corpus.unit} were longer than the model accepts and were cut")
        counts = count_words(tokens, corpus)
        if counts and counts.n_unassigned:
            say(
                f"{corpus.name}: {counts.n_unassigned:,} of {counts.n_words:,} words have no token of their own "
                f"({_examples(counts.examples)}) and are left out"
            )


def _examples(words: Sequence[str], most: int = 3) -> str:
    """Return the first words in quotes; invisible characters are escaped."""
    shown = [repr(word) if is_visible(word) else ascii(word) for word in words[:most]]
    return ", ".join([*shown, *(["..."] if len(words) > most else [])])


# Share of the time of reading a text that is spent in matrix products. The rest is GELU, attention, norms, padding and
# writing. (`make bench` measures .42 to .46 for the built-in model; for wider models the share is larger.)
PRODUCTS = 0.5

# Most rows of the products that are timed: on a processor they take a millisecond.
ROWS_CPU = 256


@dataclass(frozen=True)
class Size:
    """Size of a text and of its cached activations: layers, width and bytes (`itemsize`) of an activation.

    `token_pairs` is the sum over the sentences of their squared lengths.
    """

    n_tokens: int
    token_pairs: int
    n_layers: int
    width: int
    itemsize: int = 4

    @classmethod
    def of(cls, lengths: NDArray[np.int32], request: Request) -> Size:
        """Return the size of a request whose sentences have these lengths in tokens, shape (n_sentences,)."""
        wide = lengths.astype(np.int64)
        sizes = Blocks.of(load_config(request.source))
        width = sizes.d_mlp if request.site == "mlp" else sizes.d_model
        itemsize = getattr(torch, request.dtype).itemsize
        return cls(int(wide.sum()), int((wide**2).sum()), len(request.layers), width, itemsize)

    @property
    def n_activations(self) -> int:
        """Number of activations in all layers."""
        return self.n_tokens * self.n_layers * self.width

    @property
    def n_bytes(self) -> int:
        """Bytes of the activations on disk."""
        return self.n_activations * self.itemsize


@dataclass(frozen=True)
class Speed:
    """Rates of this machine for the matrices of a model's blocks, by name, in floating-point operations per second."""

    blocks: Blocks
    rates: Mapping[str, float]

    @classmethod
    def measure(cls, request: Request, trainer: Mapping[str, Any] | None = None) -> Speed:
        """Measure the rates with nothing else on the machine, on the device of `trainer`, in a fraction of a second."""
        is_on_gpu = torch.cuda.is_available() and (trainer or {}).get("accelerator", "auto") not in ("cpu", "mps")
        blocks = Blocks.of(load_config(request.source))
        device, rows = ("cuda", batch_tokens_of(request)) if is_on_gpu else ("cpu", ROWS_CPU)
        return cls(blocks, blocks.rates(rows, request.dtype, partial(undisturbed_rate, device=device), device))

    def forward_s(self, size: Size) -> float:
        """Return the approximate seconds of a forward pass through all blocks, with caching."""
        return self.blocks.seconds(size.n_tokens, size.token_pairs, self.rates) / PRODUCTS


@dataclass(frozen=True)
class PendingRequest:
    """A request, the table of its tokens, and the share of its activations that is not cached, from 0 to 1."""

    request: Request
    tokens: Tokens
    missing: float

    @classmethod
    def of(cls, request: Request, cache: Path) -> PendingRequest:
        """Return the pending part of a request, given the folder of the cache."""
        try:
            store = ActivationStore(entry_folder(request, cache)).of_corpus(request.corpus)
            share_missing = sum(len(layers) for layers in store.missing(request.layers).values())
            return cls(request, store.tokens, share_missing / (len(request.layers) * len(store.plan.shards)))
        except (DamagedCache, NewerCache):
            return cls(request, tokens_of(request, load_tokenizer(request.source)), 1.0)

    @property
    def size(self) -> Size:
        """Size of the whole request."""
        return Size.of(self.tokens.lengths, self.request)

    @property
    def missing_bytes(self) -> int:
        """Bytes of activations that are not cached yet."""
        return round(self.missing * self.size.n_bytes)

    def seconds(self, speed: Speed) -> float:
        """Return the approximate seconds of reading the missing part."""
        blocks = speed.blocks.n_blocks
        through = max(self.request.layers, default=0) / blocks if blocks else 0.0
        return self.missing * through * speed.forward_s(self.size)

    def memory_bytes(self) -> int:
        """Return the approximate bytes of memory of reading: the weights, and two shards, one of which is written."""
        if not self.missing:
            return 0
        return weight_bytes(load_config(self.request.source), self.size.itemsize) + 2 * SHARD_BYTES


# Most features that probes read: the time and the memory of a probe grow with the square of their number, its
# preconditioner with the cube. Of a wider dictionary, those are kept that are active on the most training tokens.
MOST_FEATURES = 4096

# Bytes of what is active that a store keeps.
KEPT_BYTES = 2**30


class FeatureStore(ActivationStore):
    """The activations of a dictionary's features on the hidden states of a store.

    `folder` is the dictionary's as typed, for results; `selected_features` are read, ascending, None for all.
    """

    def __init__(
        self,
        states: ActivationStore,
        dictionary: Dictionary,
        folder: Path,
        selected_features: Sequence[int] | None = None,
    ) -> None:
        self.__dict__.update(states.__dict__)
        self.states, self.selected_features = states, selected_features
        self.dictionary, self.dictionary_folder = dictionary, folder
        width = dictionary.n_features if selected_features is None else len(selected_features)
        self.plan = replace(states.plan, d_model=width, dtype="float32")
        about: dict[str, Any] = {"folder": str(folder), "n_features": dictionary.n_features}
        about |= {} if selected_features is None else {"kept": list(selected_features)}
        key = {**states.plan.key, "site": f"{PREFIX}{dictionary.fingerprint}"}
        self.header = {**states.header, "key": key, "site": about}
        self._cache = MemoryCache(KEPT_BYTES)

    def keeping(self, selected_features: Sequence[int]) -> FeatureStore:
        """Return the store of some features, ascending."""
        return FeatureStore(self.states, self.dictionary, self.dictionary_folder, selected_features)

    def active(self, layer: int, shard: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return row in the shard, column and value of nonzero activations of a shard; each of shape (n_active,)."""
        return self._cache.get(layer, shard, self._active)

    def _active(self, layer: int, shard: int) -> tuple[Tensor, Tensor, Tensor]:
        rows, columns, values = self.dictionary.active(self.states.read(layer, shard))
        if self.selected_features is not None:
            column_of = torch.full((self.dictionary.n_features,), -1)
            column_of[torch.tensor(self.selected_features, dtype=torch.int64)] = torch.arange(
                len(self.selected_features)
            )
            is_selected = column_of[columns] >= 0
            rows, columns, values = rows[is_selected], column_of[columns[is_selected]], values[is_selected]
        return rows.int(), columns.int(), values

    def read(self, layer: int, shard: int) -> Tensor:
        """Return the feature activations of one layer and shard, shape (n_tokens_in_shard, n_features), float32."""
        rows, columns, values = self.active(layer, shard)
        dense = torch.zeros(self.plan.shards[shard].n_tokens, self.plan.d_model)
        dense.view(-1)[rows.long() * self.plan.d_model + columns] = values
        return dense

    def n_active(self, layer: int, taken: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the number of the `taken` tokens on which each feature is active, shape (n_features,)."""
        counts = np.zeros(self.plan.d_model, dtype=np.int64)
        for shard in self.plan.shards:
            rows, columns, _ = self.active(layer, shard.index)
            is_taken = taken[shard.rows(self.tokens)][rows.numpy()]
            counts += np.bincount(columns.numpy()[is_taken], minlength=len(counts))
        return counts


def most_active(store: FeatureStore, layer: int, sentences: Sequence[int]) -> tuple[list[int], int]:
    """Return the `MOST_FEATURES` features that are active on the most tokens, ascending.

    Special tokens, and tokens of other than the (training) sentences given, do not count. Also return the largest
    number of tokens on which an omitted feature is active.
    """
    tokens = store.tokens
    counts = store.n_active(layer, np.isin(tokens.sentences, np.asarray(sentences)) & ~tokens.special)
    order = np.argsort(-counts, kind="stable")
    return sorted(order[:MOST_FEATURES].tolist()), int(counts[order[MOST_FEATURES]])


def check_place(layout: Layout, model: ModelSource) -> None:
    """Refuse a dictionary that does not read the model's hidden states of its layer: other width, or a norm between."""
    from probing.models.sites import must_run_model

    config = load_config(model)
    if layout.d_in != config.hidden_size:
        raise UserError(
            f"`--site {PREFIX}{layout.folder}` reads hidden states of {layout.d_in} neurons, and those of {model.name} "
            f"have {config.hidden_size}; give the model that it was trained on."
        )
    if must_run_model(layout, config.num_hidden_layers):
        _look(layout, model)


@cache
def _look(layout: Layout, model: ModelSource) -> None:
    from probing.models.anatomy import examine
    from probing.models.sites import check_hook

    encoder, pad = load_encoder(model, None, "float32"), load_tokenizer(model).pad_token_id or 0
    check_hook(encoder, examine(encoder, pad, model.name), layout, pad, model.name)
