"""The sentences on which position heads are measured: one sample to choose and estimate on, another to report on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from probing.cache import Request
from probing.corpus import Corpus
from probing.heads.position.contrast import Words
from probing.heads.subject import Subject
from probing.heads.sums import SumsStore

# Maximum number of words (of a treebank, or divided at blanks) in the sample that offsets are chosen and means are
# estimated on, and in the sample that is reported on.
MOST_TRAIN, MOST_TEST = 20_000, 10_000
# Most tokens whose attention is computed again for every set of neurons that is held, and groups by length.
MOST_HELD, GROUPS = 1_000, 4


def sample_requests(subject: Subject) -> tuple[Request, Request]:
    """Return the model with a sample of the sentences that are not tested on, and of those that are."""
    request, is_test, _ = subject.tested
    return (
        replace(subject.request, corpus=_sample(subject.request.corpus, subject.is_train, MOST_TRAIN, subject.seed)),
        replace(request, corpus=_sample(request.corpus, is_test, MOST_TEST, subject.seed)),
    )


def _sample(corpus: Corpus, chosen: NDArray[np.bool_], most_words: int, seed: int) -> Corpus:
    """Return chosen sentences in their order: all, or a random sample with at most `most_words` words."""
    order = np.random.default_rng(seed).permutation(np.flatnonzero(chosen))
    lengths = [len(corpus.words[i]) if corpus.words else len(corpus.sentences[i].split()) for i in order.tolist()]
    n = int(np.searchsorted(np.cumsum(lengths), most_words, side="right"))
    return corpus.subset(np.sort(order[: max(n, 1)]).tolist())


@dataclass(frozen=True)
class SampledWords:
    """The words of a sample, and the hidden states that enter each block.

    Args:
        store: Hidden states of all tokens.
        words: The words.
        rows: Index of each word among the tokens, shape (n,).
    """

    store: SumsStore
    words: Words
    rows: Tensor

    @classmethod
    def of(cls, store: SumsStore, is_causal: bool) -> SampledWords:
        """Find the words: tokens that are not special; the first token of a causal model counts as special."""
        tokens = store.tokens
        rows = np.flatnonzero(~tokens.special & ((tokens.positions > 0) | (not is_causal)))
        sentences, positions = (
            torch.from_numpy(of[rows].astype(np.int64)) for of in (tokens.sentences, tokens.positions)
        )
        return cls(store, Words(sentences, positions, is_causal), torch.from_numpy(rows))

    def states(self, layer: int) -> Tensor:
        """Return a layer's hidden states of the words, shape (n, d_model), float64."""
        parts = [self.store.read(layer, shard.index) for shard in self.store.plan.shards]
        return torch.cat(parts)[self.rows].double()

    def to_hold(self, seed: int) -> list[Tensor]:
        """Return the words of some sentences, as indices, in groups of sentences of similar length."""
        _, sizes = self.words.sentences.unique_consecutive(return_counts=True)
        ends = sizes.cumsum(0)
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(sizes)))
        some = order[: max(1, int((sizes[order].cumsum(0) <= MOST_HELD).sum()))]
        some = some[sizes[some].argsort(stable=True)]
        return [
            pad_sequence([torch.arange(int(ends[i] - sizes[i]), int(ends[i])) for i in group], True, -1)
            for group in some.chunk(GROUPS)
        ]
