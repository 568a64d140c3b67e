"""Attention sinks: what kinds of tokens get of the attention, by weight and by norm, and what they add."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.data.examples import Activations
from probing.heads.accumulation import Accumulator, Attention, Batch, Kept, SumsStore
from probing.heads.rows import Means, Rows, Sentences
from probing.heads.subject import fingerprint_of, members_of
from probing.runtime.arithmetic import to_float64
from probing.studies.geometry.extremes.kinds import Kinds
from probing.studies.geometry.extremes.names import OTHER


def added(attention: Attention, batch: Batch, types: Tensor) -> dict[str, Tensor]:
    """Return norms of what heads add to the residual stream, by query or summed over the queries of each sentence.

    A head adds sum_j alpha_j f(x_j), with f(x) = (x W_V + b_V) W_O of the head (Kobayashi et al. 2020). The vectors of
    the tokens of a type are added up before the norm is taken, and those of all heads for the norms of a block.

    Args:
        attention: The attention of one block, whose output projection is known.
        batch: The sentences.
        types: Whether a token is of a type, shape (batch, sequence, types); False for padding.

    Returns:
        added: Norm of what a head adds from the tokens of the type, shape (batch, heads, types).
        by_query: Norm of what all heads together add from them to each query, shape (batch, sequence, types).
        added_of_block: The same summed, shape (batch, 1, types).
        output: Norm of all that a head adds, shape (batch, heads, 1).
        output_of_block: Norm of the output of the attention, with b_O, shape (batch, 1, 1).
        value_norm: Sum of |f(x)| over the tokens of the type, shape (batch, heads, types).
    """
    assert attention.projection is not None
    maps, is_token = attention.probabilities.double(), batch.mask[:, None, :, None]
    values = torch.where(is_token, attention.values.double(), 0.0)
    matrix, bias = (to_float64(of) for of in (attention.projection.matrix, attention.projection.bias))
    gram = attention.projection.gram

    def of_heads(outputs: Tensor) -> Tensor:
        return (outputs @ gram * outputs).sum(-1).clamp_min(0).sqrt().sum(2)

    def by_query(outputs: Tensor, plus: Tensor | float = 0.0) -> Tensor:
        vectors = torch.einsum("bhqv,hvd->bqd", outputs, matrix) + plus
        return vectors.norm(dim=2) * batch.mask

    parts = [(maps * types[:, None, None, :, t]) @ values for t in range(types.shape[2])]
    whole = maps @ values
    of_queries = torch.stack([by_query(part) for part in parts], 2)
    return {
        "by_query": of_queries,
        "added": torch.stack([of_heads(part) for part in parts], 2),
        "added_of_block": of_queries.sum(1, keepdim=True),
        "output": of_heads(whole)[..., None],
        "output_of_block": by_query(whole, bias).sum(1)[:, None, None],
        "value_norm": torch.where(batch.mask[:, None], attention.value_norms(), 0.0) @ types.double(),
    }


@dataclass(frozen=True)
class Added:
    """The measure: what tokens of each type add.

    Args:
        types: For each type, whether a token is of it, shape (n_tokens,).
    """

    types: Mapping[str, NDArray[np.bool_]]
    name: str = "added"
    settings: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        of = fingerprint_of(self.types)
        object.__setattr__(self, "settings", {"version": 2, "types": [*self.types], "of": of})

    def of_corpus(self, tokens: Tokens, corpus: Corpus) -> Callable[[Batch], Accumulator]:
        """Return what makes an accumulator for each batch."""
        table = torch.from_numpy(np.stack(list(self.types.values()), axis=1))
        return lambda batch: _Added(batch, members_of(table, batch))


class _Added:
    """Stacks what is added by each block."""

    def __init__(self, batch: Batch, types: Tensor) -> None:
        self.batch, self.types = batch, types
        self.found: dict[str, list[Tensor]] = {}

    def add(self, attention: Attention) -> None:
        for name, values in added(attention, self.batch, self.types).items():
            self.found.setdefault(name, []).append(values)

    def kept(self) -> Kept:
        by_query = torch.stack(self.found.pop("by_query"), dim=2)
        return Kept({name: torch.stack(values, dim=1) for name, values in self.found.items()}, {"added": by_query})


def stream_norms(store: Activations, layer: int, kept: Sequence[int]) -> NDArray[np.float64]:
    """Return the norms of the hidden states of some sentences, shape (n_tokens of these,).

    Args:
        store: Hidden states of the corpus.
        layer: Number of the layer.
        kept: Indices of the sentences in the corpus, ascending.
    """
    chosen, found = np.isin(store.tokens.sentences, list(kept)), []
    for shard in store.plan.shards:
        states = store.read(layer, shard.index)[torch.from_numpy(chosen[store.shard_tokens(shard)])]
        found.append(states.double().norm(dim=1).numpy())
    return np.concatenate(found)


@dataclass(frozen=True)
class Sums:
    """What was read of the attention.

    Args:
        attended: The sums of the measure `Attended`.
        added: Those of `Added`; None if the model's output projection cannot be told.
        kinds: The kinds of tokens, in the order of both.
        stream: Norms of the hidden states of each token that enter some of the blocks, by block.
    """

    attended: SumsStore
    added: SumsStore | None
    kinds: Kinds
    stream: Mapping[int, NDArray[np.float64]]

    def rows(self, blocks: Sequence[int], seed: int) -> Rows:
        """Return the rows of `sinks.csv`: for each block and kind of token, of all heads together and of each head.

        Args:
            blocks: The blocks to report.
            seed: Seed of the bootstrap over sentences.
        """
        tokens = self.attended.tokens
        sentences, lengths = Sentences(tokens.n_sentences, seed), tokens.lengths
        # The first of the types that `Attended` sums is that of all special tokens.
        weights = {name: of[..., 1:] for name, of in self._of(self.attended).items() if name != "column_max"}
        norms = {} if self.added is None else self._of(self.added)
        n_of = np.stack([np.bincount(tokens.sentences[of], minlength=tokens.n_sentences)
                         for of in self.kinds.members.values()], axis=1)  # fmt: skip
        rows: Rows = []
        for block in blocks:
            at = block - 1
            of_heads: dict[str, Means] = {}
            of_block: dict[str, Means] = {}
            for name in ("mass", "norm_mass"):
                if name in weights:
                    of_heads[name] = sentences.means(weights[name][:, at], lengths)
                    of_block[name] = sentences.means(weights[name][:, at].mean(1, keepdims=True), lengths)
            uniform = weights["expected"][:, at, 0].sum(0) / lengths.sum()
            if norms:
                of_heads |= _of_norms(sentences, norms, at, "", lengths)
                of_block |= _of_norms(sentences, norms, at, "_of_block", lengths)
                if block in self.stream:
                    of_block["of_stream"] = sentences.means(self._shares(block), lengths)
            values = norms["value_norm"][:, at].sum(0) / n_of.sum(0) if norms else None
            for i, name in enumerate(self.kinds.names):
                about = {"token": name, "share": float(n_of[:, i].sum() / lengths.sum()), "uniform": float(uniform[i])}
                of_values = None if values is None else values.mean(0, keepdims=True)
                rows.append({"layer": block, **about, **_cells(of_block, 0, i), **self._value(of_values, 0, i)})
                rows += [
                    {"layer": block, "head": h + 1, **about, **_cells(of_heads, h, i), **self._value(values, h, i)}
                    for h in range(weights["mass"].shape[2])
                ]
        return rows

    def _shares(self, block: int) -> NDArray[np.float64]:
        """Return what each kind adds as a share of the query's hidden state, summed by sentence, (n_sentences, 1, k).

        It is divided query by query: the norms of a few tokens may be as large as those of all others together.
        """
        assert self.added is not None
        tokens, norms = self.attended.tokens, self.stream[block][:, None]
        shares = self.added.by_token("added")[:, block - 1].numpy() / np.maximum(norms, np.finfo(float).tiny)
        sums = np.zeros((tokens.n_sentences, 1, shares.shape[1]))
        np.add.at(sums[:, 0], tokens.sentences, shares)
        return sums

    def _value(self, norms: NDArray[np.float64] | None, head: int, kind: int) -> dict[str, float]:
        """Return the mean norm of f(x) on a kind of token, and its ratio to that on tokens that are no sinks."""
        if norms is None:
            return {}
        found = {"value_norm": float(norms[head, kind])}
        if OTHER in self.kinds.names and (others := norms[head, self.kinds.names.index(OTHER)]) > 0:
            found["value_ratio"] = found["value_norm"] / float(others)
        return found

    @staticmethod
    def _of(store: SumsStore) -> dict[str, NDArray[np.float64]]:
        return {name: values.numpy() for name, values in store.all_by_sentence().items()}


def _of_norms(
    sentences: Sentences, norms: Mapping[str, NDArray[np.float64]], at: int, end: str, lengths: NDArray[Any]
) -> dict[str, Means]:
    """Return what is added by each kind, a mean over queries, and its share of the whole output, by head or block."""
    sums, output = norms[f"added{end}"][:, at], norms[f"output{end}"][:, at, :, 0]
    return {"added": sentences.means(sums, lengths), "of_output": sentences.means(sums, output)}


def _cells(found: Mapping[str, Means], head: int, kind: int) -> dict[str, float]:
    cells: dict[str, float] = {}
    for name, means in found.items():
        row = means.row(head, kind)
        cells |= {name: row["value"], f"{name}_low": row["low"], f"{name}_high": row["high"]}
    return cells
