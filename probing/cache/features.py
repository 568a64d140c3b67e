"""Feature activations in the place of hidden states: a store that is encoded by a dictionary as it is read.

Hidden states alone are cached on disk. What is active of a shard is kept in memory once it was encoded, as long as
there is room, since few of many features are active on a token; a shard becomes dense only while it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from probing.cache.store import ActivationStore
from probing.errors import UserError
from probing.models import ModelSource, load_config, load_encoder, load_tokenizer
from probing.models.dictionary_folders import PREFIX, Layout

if TYPE_CHECKING:
    from torch import Tensor

    from probing.models.dictionaries import Dictionary

# Most features that probes read: the time and the memory of a probe grow with the square of their number, its
# preconditioner with the cube. Of a wider dictionary, those are kept that are active on the most training tokens.
MOST_FEATURES = 4096
# Bytes of what is active that a store keeps.
KEPT_BYTES = 2**30


class FeatureStore(ActivationStore):
    """The activations of a dictionary's features on the hidden states of a store.

    Args:
        states: The store of the hidden states.
        dictionary: The dictionary.
        folder: The dictionary's folder as the user typed it, for results.
        kept: Numbers of the features that are read, ascending; None for all.
    """

    def __init__(
        self, states: ActivationStore, dictionary: Dictionary, folder: Path, kept: Sequence[int] | None = None
    ) -> None:
        self.__dict__.update(states.__dict__)
        self.states, self.dictionary, self.dictionary_folder, self.kept = states, dictionary, folder, kept
        width = dictionary.n_features if kept is None else len(kept)
        self.plan = replace(states.plan, d_model=width, dtype="float32")
        about: dict[str, Any] = {"folder": str(folder), "n_features": dictionary.n_features}
        about |= {} if kept is None else {"kept": list(kept)}
        key = {**states.plan.key, "site": f"{PREFIX}{dictionary.fingerprint}"}
        self.header = {**states.header, "key": key, "site": about}
        self._active: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = {}
        self._active_bytes = 0

    def keeping(self, kept: Sequence[int]) -> FeatureStore:
        """Return the store of some features, ascending."""
        return FeatureStore(self.states, self.dictionary, self.dictionary_folder, kept)

    def active(self, layer: int, shard: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return row in the shard, column and activation of whatever is not 0 in a shard; each of shape (n_active,)."""
        import torch

        if (known := self._active.get((layer, shard))) is not None:
            return known
        rows, columns, values = self.dictionary.active(self.states.read(layer, shard))
        if self.kept is not None:
            column_of = torch.full((self.dictionary.n_features,), -1)
            column_of[torch.tensor(self.kept, dtype=torch.int64)] = torch.arange(len(self.kept))
            there = column_of[columns] >= 0
            rows, columns, values = rows[there], column_of[columns[there]], values[there]
        found = rows.int(), columns.int(), values
        if self._active_bytes + (size := sum(one.nbytes for one in found)) <= KEPT_BYTES:
            self._active[layer, shard] = found
            self._active_bytes += size
        return found

    def read(self, layer: int, shard: int) -> Tensor:
        """Return the feature activations of one layer and shard, shape (n_tokens_in_shard, n_features), float32."""
        import torch

        rows, columns, values = self.active(layer, shard)
        dense = torch.zeros(self.plan.shards[shard].n_tokens, self.plan.d_model)
        dense.view(-1)[rows.long() * self.plan.d_model + columns] = values
        return dense

    def n_active(self, layer: int, taken: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return on how many tokens each feature is active.

        Args:
            layer: Layer number.
            taken: The tokens that count, shape (n_tokens,).

        Returns:
            Shape (n_features,).
        """
        counts = np.zeros(self.plan.d_model, dtype=np.int64)
        for shard in self.plan.shards:
            rows, columns, _ = self.active(layer, shard.index)
            own = taken[self.shard_tokens(shard)][rows.numpy()]
            counts += np.bincount(columns.numpy()[own], minlength=len(counts))
        return counts


def most_active(store: FeatureStore, layer: int, sentences: Sequence[int]) -> tuple[list[int], int]:
    """Return the features that are active on the most tokens, `MOST_FEATURES` of them, ascending.

    Args:
        store: The store of all features.
        layer: Layer number.
        sentences: The sentences whose tokens count, those of training; special tokens do not.

    Returns:
        The features; and the largest number of tokens on which one that is left out is active.
    """
    tokens = store.tokens
    counts = store.n_active(layer, np.isin(tokens.sentences, np.asarray(sentences)) & ~tokens.special)
    order = np.argsort(-counts, kind="stable")
    return sorted(order[:MOST_FEATURES].tolist()), int(counts[order[MOST_FEATURES]])


def check_place(layout: Layout, model: ModelSource) -> None:
    """Refuse a dictionary that does not read the model's hidden states of its layer; looked at once for each.

    Raises:
        UserError: If their widths differ, or a norm lies between them.
    """
    from probing.models.dictionary_hooks import needs_a_look

    config = load_config(model)
    if layout.d_in != config.hidden_size:
        raise UserError(
            f"`--site {PREFIX}{layout.folder}` reads hidden states of {layout.d_in} neurons, and those of {model.name} "
            f"have {config.hidden_size}; give the model that it was trained on."
        )
    if needs_a_look(layout, config.num_hidden_layers):
        _look(layout, model)


@cache
def _look(layout: Layout, model: ModelSource) -> None:
    from probing.models.anatomy import examine
    from probing.models.dictionary_hooks import check_hook

    encoder, pad = load_encoder(model, None, "float32"), load_tokenizer(model).pad_token_id or 0
    check_hook(encoder, examine(encoder, pad, model.name), layout, pad, model.name)
