"""The path of outliers along the residual stream: from the embeddings through every term and norm to the last layer.

Row 0 of BERT's position table, which is always that of [CLS], has two outliers, but only one of them is also an outlier
of hidden states (Luo, Kulmizev & Mao 2021, section 3). Where on the path does the other one disappear? At every site,
mean vectors over the corpus are computed, one of first tokens and one of words; a neuron's distance from the mean of
all neurons is given in their standard deviations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.cache.tokens import Tokens
from probing.internals.norm_terms import run_watched
from probing.models.anatomy import Anatomy
from probing.models.residual_stream import Site, Tap
from probing.statistics.outliers import deviations_of

FIRST, WORDS = "first", "words"

Array = NDArray[np.float64]


def groups_of(tokens: Tokens) -> dict[str, NDArray[np.bool_]]:
    """Return which tokens are the first of their sentences, and which are words: neither first nor special."""
    first = np.zeros(tokens.n_tokens, dtype=np.bool_)
    first[tokens.offsets[:-1]] = True
    return {FIRST: first, WORDS: ~first & ~tokens.special}


def path_means(
    encoder: nn.Module,
    anatomy: Anatomy,
    sites: Sequence[Site],
    tokens: Tokens,
    groups: Mapping[str, NDArray[np.bool_]],
    pad_token_id: int,
) -> dict[str, Array]:
    """Run a model and return the mean vector at each site, shape (n_sites, d_model), for each group of tokens.

    Args:
        encoder: The model, in evaluation mode and in float32.
        anatomy: Its structure.
        sites: The sites.
        tokens: The token table of the sentences.
        groups: Which tokens each group has, shape (n_tokens,).
        pad_token_id: Token id that fills a batch.
    """
    index = {site.tap: i for i, site in enumerate(sites)}
    sums: dict[str, dict[int, Tensor]] = {name: {} for name in groups}
    here: dict[str, Tensor] = {}
    shape = (0, 0)

    def see(tap: Tap, value: Tensor) -> None:
        if tap in index:
            rows = value.expand(*shape, value.shape[-1])  # positions are the same in all sentences
            for name, those in here.items():
                added = rows[those.to(rows.device)].double().sum(0).cpu()
                sums[name][index[tap]] = sums[name].get(index[tap], torch.zeros_like(added)) + added

    modules = [site.tap.module for site in sites]
    for batch in run_watched(encoder, anatomy, modules, see, tokens, pad_token_id):
        shape = tuple(batch.mask.shape)  # type: ignore[assignment]
        here = {name: batch.mask & torch.from_numpy(those)[batch.rows] for name, those in groups.items()}
    return {
        name: torch.stack([sums[name][i] for i in range(len(sites))]).numpy() / max(1, int(those.sum()))
        for name, those in groups.items()
    }


def path_rows(
    sites: Sequence[Site],
    means: Mapping[str, Array],
    groups: Mapping[str, NDArray[np.bool_]],
    kinds: Mapping[int, str],
) -> list[dict[str, Any]]:
    """Return rows of `path.csv`.

    Args:
        sites: The sites, in order.
        means: Mean vectors, as `path_means` returns them.
        groups: Which tokens each group has.
        kinds: Kind of each neuron.
    """
    rows = []
    for name, vectors in means.items():
        n_tokens = int(groups[name].sum())
        for step, (site, vector) in enumerate(zip(sites, vectors if n_tokens else (), strict=bool(n_tokens))):
            z = deviations_of(vector)
            rows += [
                {
                    "step": step, "layer": site.layer, "site": site.name, "term": "yes" if site.is_term else "no",
                    "tokens": name, "neuron": neuron, "kind": kind, "value": float(vector[neuron]),
                    "deviations": float(z[neuron]), "n_tokens": n_tokens,
                }
                for neuron, kind in kinds.items()
            ]  # fmt: skip
    return rows
