"""A probe that finds the head of a word in the treebank from nothing but the attention between words.

For a dependent j the probability of the word i is p(i | j), proportional to exp(sum_k w_k a_k(i, j) + u_k a_k(j, i)),
where a_k(i, j) is the attention from i to j of the k-th of all heads (Clark et al. 2019, section 5). It is a
conditional logit model, so that its cross-entropy is convex in w and u. The penalty is a small l2 penalty on each
weight times the standard deviation of the attention that it multiplies. The probe is trained to its optimum, and the
optimality gap is a bound in nats.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.corpus import Corpus
from probing.heads.sums import SumsStore
from probing.heads.syntax.arcs import NO_PAIR, Arcs, HeadPairs, arcs_of
from probing.heads.syntax.relations import OFFSETS, Row, by_sentence, compared, with_interval
from probing.probes.solvers import Evaluation, Penalty, Preconditioner, Solution, lbfgs
from probing.results.schema import ALL_LAYERS

L2 = 1e-5
# Nats above the minimum at which training ends, and the most passes over the pairs.
TOLERANCE, MOST_PASSES = 1e-5, 500
# Rows multiplied at a time; their products are added up in float64.
ROWS = 2**16
# Name of the unlabelled attachment score: the share of words whose head is found.
UAS = "uas"


@dataclass(frozen=True)
class Candidates:
    """Arcs of a treebank with the words that may be their heads.

    Args:
        arcs: The arcs whose words the model has read, without punctuation.
        pairs: The attention of all heads, shape (n_pairs, n_heads), float32.
        to_dependent: Row of `pairs` from each candidate to its dependent, shape (n_candidates,).
        to_candidate: Row of `pairs` from the dependent to each candidate, shape (n_candidates,).
        first: Index of each arc's first candidate, shape (n_arcs,); candidates are in the order of words.
        gold: Index of each arc's head among all candidates, shape (n_arcs,).
    """

    arcs: Arcs
    pairs: Tensor
    to_dependent: Tensor
    to_candidate: Tensor
    first: NDArray[np.int64]
    gold: NDArray[np.int64]

    @property
    def n_candidates(self) -> NDArray[np.int64]:
        """Number of candidates of each arc, shape (n_arcs,)."""
        return np.diff(np.append(self.first, len(self.to_dependent)))

    @property
    def n_features(self) -> int:
        """Number of weights: two for each head."""
        return 2 * self.pairs.shape[1]

    def scores(self, weight: Tensor) -> NDArray[np.float64]:
        """Return the logit of each candidate, given the weights w and u, shape (2, n_heads)."""
        both = self.pairs @ weight.T.float()
        found = both[self.to_dependent, 0].double() + both[self.to_candidate, 1].double()
        return found.numpy()

    def right(self, weight: Tensor) -> NDArray[np.bool_]:
        """Return whether the head of each arc has the highest logit; ties go to the lower index."""
        scores = self.scores(weight)
        best = np.maximum.reduceat(scores, self.first)
        arc = np.repeat(np.arange(len(self.first)), self.n_candidates)
        (is_best,) = np.nonzero(scores == best[arc])
        _, index = np.unique(arc[is_best], return_index=True)
        return np.asarray(is_best[index] == self.gold)

    def evaluate(self, weight: Tensor) -> tuple[float, Tensor]:
        """Return the mean cross-entropy in nats and its gradient with respect to w and u, shape (2, n_heads)."""
        scores, n = self.scores(weight), self.n_candidates
        shifted = scores - np.repeat(np.maximum.reduceat(scores, self.first), n)
        exponentials = np.exp(shifted)
        totals = np.add.reduceat(exponentials, self.first)
        value = float(np.mean(np.log(totals) - shifted[self.gold]))
        residual = exponentials / np.repeat(totals, n)
        residual[self.gold] -= 1
        by_pair = torch.zeros(len(self.pairs), 2)
        of_candidates = torch.from_numpy(residual / len(self.first)).float()
        by_pair[self.to_dependent, 0] = of_candidates
        by_pair[self.to_candidate, 1] = of_candidates
        gradient = torch.zeros(2, self.pairs.shape[1], dtype=torch.float64)
        for some, of_some in zip(by_pair.split(ROWS), self.pairs.split(ROWS), strict=True):
            gradient += (some.T @ of_some).double()
        return value, gradient

    def deviations(self) -> Tensor:
        """Return the standard deviation of each head's attention between words, at least a thousandth of the median."""
        sums, n = torch.zeros(2, self.pairs.shape[1], dtype=torch.float64), len(self.to_dependent)
        for rows in self.to_dependent.split(ROWS):
            own = self.pairs[rows].double()
            sums += torch.stack([own.sum(0), own.square().sum(0)])
        sd = (sums[1] / n - (sums[0] / n).square()).clamp_min(0).sqrt()
        return sd.clamp_min(max(1e-3 * float(sd.median()), torch.finfo(torch.float32).tiny))

    def first_curvature(self, deviations: Tensor) -> Tensor:
        """Return the Hessian, in scaled weights, where all candidates are equally likely; (n_features, n_features)."""
        total = torch.zeros(self.n_features, self.n_features, dtype=torch.float64)
        n = self.n_candidates
        ends = np.append(self.first, len(self.to_dependent))
        scale = torch.cat([deviations, deviations]).float()
        for arcs in np.array_split(np.arange(len(n)), max(1, len(self.to_dependent) // ROWS)):
            rows = slice(int(ends[arcs[0]]), int(ends[arcs[-1] + 1]))
            features = torch.cat([self.pairs[self.to_dependent[rows]], self.pairs[self.to_candidate[rows]]], 1) / scale
            arc = torch.from_numpy(np.repeat(np.arange(len(arcs)), n[arcs]))
            sizes = torch.from_numpy(n[arcs]).float()[:, None]
            means = torch.zeros(len(arcs), self.n_features).index_add_(0, arc, features) / sizes
            centred = (features - means[arc]) / sizes[arc].sqrt()
            total += (centred.T @ centred).double()
        return total / len(n)


def candidates_of(
    store: SumsStore, corpus: Corpus, sentences: NDArray[np.bool_] | None = None, option: str = "--corpus"
) -> Candidates:
    """Return the arcs of the sentences whose pairs were kept, with all candidates.

    Args:
        store: What `HeadPairs` kept of the corpus.
        corpus: The corpus, with the columns of a treebank.
        sentences: Whether a sentence is used, shape (n_sentences,); all are if None.
        option: The option that names it, for messages.

    Raises:
        UserError: If the corpus has no dependency relations, or they are malformed.
    """
    arcs = arcs_of(corpus, option)
    chosen = np.ones(len(corpus.sentences), dtype=bool) if sentences is None else sentences
    rows, numbers = store.listed(HeadPairs.name, torch.from_numpy(chosen))
    pairs, n_pairs = rows.flatten(1), numbers.numpy()
    arcs = arcs.where(~arcs.is_punctuation & (n_pairs[arcs.sentences] > 0))
    begin = (np.cumsum(n_pairs) - n_pairs)[arcs.sentences]
    length = np.sqrt(n_pairs[arcs.sentences]).round().astype(np.int64)
    there = (pairs[:, 0] != NO_PAIR).numpy()
    kept = there[begin + arcs.dependents * length + arcs.heads]
    arcs, begin, length = arcs.where(kept), begin[kept], length[kept]
    arc = np.repeat(np.arange(len(arcs)), length)
    word = np.arange(len(arc)) - np.repeat(np.cumsum(length) - length, length)
    to_candidate = begin[arc] + arcs.dependents[arc] * length[arc] + word
    to_dependent = begin[arc] + word * length[arc] + arcs.dependents[arc]
    is_candidate = there[to_candidate]
    arc, word = arc[is_candidate], word[is_candidate]
    first = np.searchsorted(arc, np.arange(len(arcs)))
    gold = np.flatnonzero(word == arcs.heads[arc])
    incoming, outgoing = torch.from_numpy(to_dependent[is_candidate]), torch.from_numpy(to_candidate[is_candidate])
    return Candidates(arcs, pairs, incoming, outgoing, first, gold)


def fit(candidates: Candidates, l2: float = L2, tolerance: float = TOLERANCE) -> tuple[Tensor, Solution]:
    """Return the weights w and u, shape (2, n_heads), float64, and the solution in scaled weights.

    Args:
        candidates: The arcs.
        l2: Strength of the penalty on the scaled weights.
        tolerance: Optimality gap, in nats, at which training ends.
    """
    deviations = candidates.deviations()
    preconditioner = Preconditioner(candidates.first_curvature(deviations))
    start = torch.zeros(1, candidates.n_features)
    solver = lbfgs(start, Penalty(0.0, l2), preconditioner, tolerance)
    point, n_passes = next(solver), 0
    try:
        while True:
            value, gradient = candidates.evaluate(point.view(2, -1).double() / deviations)
            n_passes += 1
            here = Evaluation(value, (gradient / deviations).float().view(1, -1), torch.ones(1, 1))
            point = solver.send(here if n_passes <= MOST_PASSES else None)
    except StopIteration as stop:
        solution: Solution = stop.value
    return solution.point.view(2, -1).double() / deviations, solution


@dataclass(frozen=True)
class Answers:
    """What a trained probe says of the arcs of the test part.

    Args:
        train: The arcs that it was trained on, and whether it is right about each.
        test: The arcs of the test part, and whether it is right about each.
        solution: How training ended.
    """

    train: tuple[Arcs, NDArray[np.bool_]]
    test: tuple[Arcs, NDArray[np.bool_]]
    solution: Solution


def probe_row(answers: Answers, untrained: Answers | None = None) -> Row:
    """Return the probe's row for the table of trees: the share of words whose head it finds (UAS).

    The baseline is the fixed offset from dependent to head that is best on the training arcs.

    Args:
        answers: What the probe says.
        untrained: What the probe of a randomly initialised model says.
    """
    (train, right_on_train), (test, right) = answers.train, answers.test
    best = max(OFFSETS, key=lambda offset: int((train.offsets == offset).sum()))
    n, correct, baseline = by_sentence(test, np.ones_like(right), right, test.offsets == best)
    row: Row = {
        "measure": UAS,
        "layer": ALL_LAYERS,
        "n_train": len(train),
        "n_test": len(test),
        "train": float(right_on_train.mean()),
        **with_interval("test", correct, n),
        **with_interval("baseline", baseline, n),
        **compared(correct, baseline, n),
        "offset": best,
        "optimality_gap": answers.solution.optimality_gap,
    }
    if untrained is not None:
        reported, right = untrained.test
        row |= with_interval("untrained", *by_sentence(reported, right, np.ones_like(right)))
    return row


def answers_of(
    train: tuple[SumsStore, Corpus, NDArray[np.bool_] | None], test: tuple[SumsStore, Corpus, NDArray[np.bool_] | None]
) -> Answers:
    """Train the probe on one part and test it on another; only one part's pairs are in memory at a time.

    Args:
        train: What `HeadPairs` kept, the corpus, and its training sentences (all if None).
        test: The same of the test part.
    """
    candidates = candidates_of(*train)
    weight, solution = fit(candidates)
    on_train = candidates.arcs, candidates.right(weight)
    del candidates
    candidates = candidates_of(*test, option="--test_corpus")
    return Answers(on_train, (candidates.arcs, candidates.right(weight)), solution)
