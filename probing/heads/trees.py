"""Share of a sentence's dependency tree in the maximum spanning tree of a head's attention.

The weight of an edge between two words is the sum of their attention in both directions. Punctuation is excluded, as in
evaluations of trees decoded from hidden states (Hewitt & Manning 2019). The score is the share of treebank edges in the
tree, whatever their direction (UUAS). The baseline is the chain: each word is joined to the next word.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.heads.accumulation import Begin, Measure, SentenceBatch, StackedBlocks, SumsStore
from probing.heads.measures import Row, Rows, accuracy_cells, corrected
from probing.heads.survey import TEST, UNTRAINED, HeadSurvey, SurveyInputs, SurveyPart
from probing.heads.syntax import (
    LEAST_ARCS,
    MOST_ATTENDED,
    NO_PAIR,
    NONE,
    OFFSETS,
    PAIRS,
    Arcs,
    Parts,
    ScoredArcs,
    WordBatch,
    arcs_of,
    arcs_with_values,
    best_head,
    by_sentence,
    by_word,
    has_arcs,
    head_cells,
    head_pairs,
    head_relation_rows,
    part_cells,
    punctuation_of,
    relation_rows,
    sample_sentences,
    scored,
    untrained_cells,
)
from probing.probes.solvers import Evaluation, Penalty, Preconditioner, Solution, minimise
from probing.results import ALL_LAYERS
from probing.text import Corpus
from probing.text.tokens import Tokens

# Name of the undirected unlabelled attachment score.
UUAS = "uuas"


def spanning_trees(maps: Tensor, words: WordBatch) -> Tensor:
    """Return the maximum spanning tree of attention in both directions together, by Prim's algorithm (1957).

    The trees of all sentences and heads grow together, a word in each step, from the first word. Of equally heavy
    edges, the edge to the lower index is taken. `maps` has shape (batch, heads, from, to), at least 0.

    Returns:
        The word that each word was joined to; the first word for itself, and `NONE` for a word without a piece; shape
            (batch, heads, words), int16.
    """
    n, heads, n_words, _ = maps.shape
    if not n_words:
        return torch.empty(n, heads, 0, dtype=torch.int16, device=maps.device)
    weights = (maps + maps.transpose(2, 3)).masked_fill_(~words.pairs[:, None], -1.0).view(n * heads, n_words, n_words)
    every = torch.arange(n * heads, device=maps.device)
    # The first word, or any word of a sentence without words, which then grows no tree.
    first = words.present.to(torch.uint8).argmax(1).repeat_interleave(heads)
    joined = first[:, None].repeat(1, n_words)
    best = weights[every, first]  # weight of the heaviest edge from the tree to each word
    best[every, first] = -2.0
    for _ in range(n_words - 1):
        heaviest, new = best.max(1)
        grows = heaviest >= 0
        if not bool(grows.any()):
            break
        best[every, new] = torch.where(grows, -2.0, heaviest)  # words of the tree are below those that are not there
        of_new = weights[every, new]
        nearer = (of_new > best) & (best >= 0) & grows[:, None]
        best = torch.where(nearer, of_new, best)
        joined = torch.where(nearer, new[:, None], joined)
    absent = ~words.present[:, None]
    return joined.view(n, heads, n_words).to(torch.int16).masked_fill(absent, NONE)


TREES = "trees"


def tree_measure(corpus: Corpus) -> Measure:
    """Return the measure of the spanning tree of each sentence and head, without the punctuation of the corpus.

    `trees` is stored by token, with the same value for all pieces of a word: shape (n_tokens, n_layers, heads), int16.
    """
    is_punctuation = punctuation_of(corpus)
    digest = hashlib.sha256()
    for of_words in is_punctuation:
        digest.update(of_words.tobytes() + b"\n")

    def of_corpus(tokens: Tokens, corpus: Corpus) -> Begin:
        is_selected = torch.from_numpy(~of_tokens(tokens, is_punctuation))

        def begin(batch: SentenceBatch) -> StackedBlocks:
            words = WordBatch.of(batch, is_selected[batch.rows.cpu()].to(batch.mask.device))
            return by_word(TREES, spanning_trees, words)

        return begin

    return Measure(TREES, of_corpus, {"version": 1, "left_out": digest.hexdigest()})


def of_tokens(tokens: Tokens, of_words: list[NDArray[np.bool_]]) -> NDArray[np.bool_]:
    """Return a property of words for each of their tokens, False for special tokens; shape (n_tokens,)."""
    first = np.concatenate([[0], np.cumsum([len(word_values) for word_values in of_words])])
    flat = np.concatenate([*of_words, np.zeros(1, dtype=bool)])
    return np.where(tokens.special, False, flat[first[tokens.sentences] + np.maximum(tokens.words, 0)])


def scored_trees(store: SumsStore, corpus: Corpus, option: str = "--corpus") -> ScoredArcs:
    """Return the edges of a treebank with a mask of the edges in each head's tree, from the sums of `tree_measure`.

    Raises:
        UserError: If the corpus has no dependency relations, or they are malformed.
    """
    arcs, trees, tokens = arcs_of(corpus, option), store.by_token(TREES).numpy(), store.tokens
    has_tree = trees[:, 0, 0] != NONE
    arcs, dependents, heads = arcs_with_values(arcs, tokens, has_tree)
    right = trees[dependents] == arcs.heads[:, None, None]
    right |= trees[heads] == arcs.dependents[:, None, None]
    number = np.cumsum(tokens.last_pieces & has_tree)  # of each word that is there, at its last piece
    return ScoredArcs(arcs, right, chain=np.abs(number[dependents] - number[heads]) == 1)


def tree_rows(train: ScoredArcs, test: ScoredArcs, untrained: Parts | None = None) -> Rows:
    """Return a row for each head, in the order of layers and heads; the best head in training is `chosen`.

    `difference` is the score minus the score of the chain, on the same sentences. Its p-value is two-sided and
    corrected for the number of heads (Holm). `untrained` is the score of the randomly initialised model's head that is
    best in training.
    """
    if not len(train.arcs) or not len(test.arcs):
        return []
    assert test.chain is not None
    best, of_untrained = best_head(train.right), untrained_cells(untrained)
    return corrected(
        {
            "measure": UUAS,
            "chosen": "yes" if place == best else "no",
            **head_cells(train, test, place, test.chain),
            **of_untrained,
        }
        for place in np.ndindex(*test.right.shape[1:])
    )


# --------------------------------------------------------------------------------------------------------------------
# A probe that finds the head of a word in the treebank from nothing but the attention between words.
# --------------------------------------------------------------------------------------------------------------------

L2 = 1e-5
# Nats above the minimum at which training ends, and the most passes over the pairs.
TOLERANCE, MOST_PASSES = 1e-5, 500
# Rows multiplied at a time; their products are added up in float64.
ROWS = 2**16
# Name of the unlabelled attachment score: the share of words whose head is found.
UAS = "uas"


@dataclass(frozen=True)
class Candidates:
    """Arcs of a treebank with the candidates for their heads.

    Args:
        arcs: The arcs between words of the model's input, without punctuation.
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
        logits = both[self.to_dependent, 0].double() + both[self.to_candidate, 1].double()
        return logits.numpy()

    def right(self, weight: Tensor) -> NDArray[np.bool_]:
        """Return a mask of the arcs whose head has the highest logit; ties go to the lower index."""
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
        """Return each head's standard deviation of attention between words, at least a thousandth of the median."""
        sums, n = torch.zeros(2, self.pairs.shape[1], dtype=torch.float64), len(self.to_dependent)
        for rows in self.to_dependent.split(ROWS):
            attention = self.pairs[rows].double()
            sums += torch.stack([attention.sum(0), attention.square().sum(0)])
        sd = (sums[1] / n - (sums[0] / n).square()).clamp_min(0).sqrt()
        return sd.clamp_min(max(1e-3 * float(sd.median()), torch.finfo(torch.float32).tiny))

    def first_curvature(self, deviations: Tensor) -> Tensor:
        """Return the Hessian in scaled weights, (n_features, n_features), at equal probability of all candidates."""
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
    """Return the arcs of sentences in a mask (None for all) and their candidates, from the sums of `head_pairs`.

    Raises:
        UserError: If the corpus has no dependency relations, or they are malformed.
    """
    arcs = arcs_of(corpus, option)
    chosen = np.ones(len(corpus.sentences), dtype=bool) if sentences is None else sentences
    rows, numbers = store.listed(PAIRS, torch.from_numpy(chosen))
    pairs, n_pairs = rows.flatten(1), numbers.numpy()
    arcs = arcs.where(~arcs.is_punctuation & (n_pairs[arcs.sentences] > 0))
    begin = (np.cumsum(n_pairs) - n_pairs)[arcs.sentences]
    length = np.sqrt(n_pairs[arcs.sentences]).round().astype(np.int64)
    has_pairs = (pairs[:, 0] != NO_PAIR).numpy()
    is_candidate_arc = has_pairs[begin + arcs.dependents * length + arcs.heads]
    arcs, begin, length = arcs.where(is_candidate_arc), begin[is_candidate_arc], length[is_candidate_arc]
    arc = np.repeat(np.arange(len(arcs)), length)
    word = np.arange(len(arc)) - np.repeat(np.cumsum(length) - length, length)
    to_candidate = begin[arc] + arcs.dependents[arc] * length[arc] + word
    to_dependent = begin[arc] + word * length[arc] + arcs.dependents[arc]
    is_candidate = has_pairs[to_candidate]
    arc, word = arc[is_candidate], word[is_candidate]
    first = np.searchsorted(arc, np.arange(len(arcs)))
    gold = np.flatnonzero(word == arcs.heads[arc])
    incoming, outgoing = torch.from_numpy(to_dependent[is_candidate]), torch.from_numpy(to_candidate[is_candidate])
    return Candidates(arcs, pairs, incoming, outgoing, first, gold)


def fit(candidates: Candidates, l2: float = L2, tolerance: float = TOLERANCE) -> tuple[Tensor, Solution]:
    """Return weights w and u, (2, n_heads), float64, and the solution in scaled weights, which `l2` penalises."""
    deviations = candidates.deviations()
    preconditioner = Preconditioner(candidates.first_curvature(deviations))

    def evaluate(point: Tensor) -> Evaluation:
        value, gradient = candidates.evaluate(point.view(2, -1).double() / deviations)
        return Evaluation(value, (gradient / deviations).float().view(1, -1), torch.ones(1, 1))

    start = torch.zeros(1, candidates.n_features)
    solution = minimise(evaluate, start, Penalty(0.0, l2), preconditioner, tolerance, MOST_PASSES)
    return solution.point.view(2, -1).double() / deviations, solution


@dataclass(frozen=True)
class ProbeScores:
    """Arcs and correctness, of shape (n_arcs,), of a trained probe on its training part and on the test part."""

    train: tuple[Arcs, NDArray[np.bool_]]
    test: tuple[Arcs, NDArray[np.bool_]]
    solution: Solution


def probe_row(scores: ProbeScores, untrained: ProbeScores | None = None) -> Row:
    """Return the probe's row for the table of trees: the share of words whose head it predicts (UAS).

    The baseline is the fixed offset from dependent to head that is best on the training arcs.
    """
    (train, _), (test, _) = scores.train, scores.test
    best = max(OFFSETS, key=lambda offset: int((train.offsets == offset).sum()))
    row: Row = {
        "measure": UAS,
        "layer": ALL_LAYERS,
        "offset": best,
        "optimality_gap": scores.solution.optimality_gap,
        **part_cells(*scores.train, *scores.test, test.offsets == best),
    }
    if untrained is not None:
        reported, right = untrained.test
        row |= accuracy_cells("untrained", *by_sentence(reported, right, np.ones_like(right)))
    return row


def probe_scores(
    train: tuple[SumsStore, Corpus, NDArray[np.bool_] | None], test: tuple[SumsStore, Corpus, NDArray[np.bool_] | None]
) -> ProbeScores:
    """Train the probe on one part and test it on another; only one part's pairs are in memory at a time.

    A part is a store of `head_pairs`, its corpus, and a mask of its sentences (None for all).
    """
    candidates = candidates_of(*train)
    weight, solution = fit(candidates)
    on_train = candidates.arcs, candidates.right(weight)
    del candidates
    candidates = candidates_of(*test, option="--test_corpus")
    return ProbeScores(on_train, (candidates.arcs, candidates.right(weight)), solution)


# --------------------------------------------------------------------------------------------------------------------
# The parts of a survey that need a treebank: relations, trees, and the probe that reads nothing but attention.
# --------------------------------------------------------------------------------------------------------------------

Stores = Mapping[str, SumsStore]


def lacks_arcs(survey: HeadSurvey) -> str | None:
    """Return the missing requirement of a treebank part, or None.

    Raises:
        UserError: If a treebank is malformed.
    """
    for arcs, corpus, option in _both(survey):
        if arcs is None:
            return (
                f"dependency relations, the columns head and deprel of a .conllu file, and `{option} {corpus.name}` "
                "has none"
            )
    n_train, n_test = (len(arcs) for arcs in _sides(survey))
    if not n_train or not n_test:
        return f"arcs to choose heads by and others to test them on, and there are {n_train:,} and {n_test:,}"
    return None


def _lacks_relations(survey: HeadSurvey) -> str | None:
    if lack := lacks_arcs(survey):
        return lack
    train, test = (dict(zip(*np.unique(arcs.relations.astype(str), return_counts=True), strict=True))
                   for arcs in _sides(survey))  # fmt: skip
    most = max(min(int(n), int(test.get(name, 0))) for name, n in train.items())
    if most < LEAST_ARCS:
        return (
            f"a relation with at least {LEAST_ARCS} arcs in the sentences that heads are chosen on and in those that "
            f"they are tested on, and the most frequent one has {most} in the smaller part; give a longer --corpus, or "
            "another one as --test_corpus"
        )
    return None


def _both(survey: HeadSurvey) -> list[tuple[Arcs | None, Corpus, str]]:
    """Return the arcs of the corpus and of the test corpus; None without treebank columns."""
    request, _, option = survey.tested
    corpora = [(survey.request.corpus, "--corpus"), (request.corpus, option)]
    return [
        (arcs_of(corpus, corpus_option) if has_arcs(corpus) else None, corpus, corpus_option)
        for corpus, corpus_option in corpora
    ]


def _sides(survey: HeadSurvey) -> list[Arcs]:
    """Return the arcs that heads are chosen on and the arcs that they are tested on, without punctuation."""
    arcs = [side_arcs for side_arcs, _, _ in _both(survey) if side_arcs is not None]
    chosen = (survey.is_train, survey.tested[1])
    return [side.where(~side.is_punctuation & some[side.sentences]) for side, some in zip(arcs, chosen, strict=True)]


_Result = TypeVar("_Result")


def _of_models(
    survey: HeadSurvey, stores: Stores, measure: str, score: Callable[[SumsStore, SumsStore], _Result]
) -> list[_Result]:
    """Return what a function makes of the sums on the corpus to choose heads on, and on the corpus to test them on.

    First of the model and then, unless the model itself is one, of a randomly initialised model.
    """
    models = [""] if survey.request.random_weights_seed is not None else ["", UNTRAINED]
    corpora = [(model, model if survey.test is None else model + TEST) for model in models]
    keys = [[f"{reading}/{measure}" if reading else measure for reading in readings] for readings in corpora]
    return [score(*(stores[key] for key in of_model)) for of_model in keys]


def _scores(
    survey: HeadSurvey, stores: Stores, measure: str, score: Callable[[SumsStore, Corpus, str], ScoredArcs]
) -> list[Parts]:
    """Return the scores to choose heads on and to report, of the model and then of a randomly initialised one."""
    request, is_test, option = survey.tested

    def of(train: SumsStore, test: SumsStore) -> Parts:
        on_train = score(train, survey.request.corpus, "--corpus")
        on_test = on_train if test is train else score(test, request.corpus, option)
        layers = survey.layers
        return on_train.of_sentences(survey.is_train).of_layers(layers), on_test.of_sentences(is_test).of_layers(layers)

    return _of_models(survey, stores, measure, of)


def _numbered(rows: Rows, layers: Sequence[int]) -> Rows:
    return [{**row, "layer": layers[row["layer"] - 1]} for row in rows]


def _relation_tables(survey: HeadSurvey, stores: Stores) -> dict[str, Rows]:
    trained, *untrained = _scores(survey, stores, MOST_ATTENDED.name, scored)
    tables = {
        "relations": relation_rows(*trained, next(iter(untrained), None), seed=survey.seed),
        "head_relations": head_relation_rows(*trained, seed=survey.seed),
    }
    return {name: _numbered(rows, survey.layers) for name, rows in tables.items()}


def _tree_tables(survey: HeadSurvey, stores: Stores) -> dict[str, Rows]:
    trained, *untrained = _scores(survey, stores, TREES, scored_trees)
    return {"trees": _numbered(tree_rows(*trained, *untrained), survey.layers)}


def _probe_tables(survey: HeadSurvey, stores: Stores) -> dict[str, Rows]:
    corpus, (request, is_test, _) = survey.request.corpus, survey.tested

    def of(train: SumsStore, test: SumsStore) -> ProbeScores:
        return probe_scores((train, corpus, survey.is_train), (test, request.corpus, is_test))

    return {"trees": [probe_row(*_of_models(survey, stores, PAIRS, of))]}


def _part(
    name: str, rows: Callable[[HeadSurvey, Stores], dict[str, Rows]],
    measure: Callable[[HeadSurvey, Corpus], Measure], needs: Callable[[HeadSurvey], str | None], **settings: bool,
) -> SurveyPart:  # fmt: skip
    """Return a part whose measure is summed over the corpus, the test corpus, and both with another model."""
    return SurveyPart(
        name, rows, lambda survey: [measure(survey, survey.request.corpus)], needs,
        lambda survey: [
            SurveyInputs(reading, request, [measure(survey, request.corpus)])
            for reading, request in survey.readings.items()
        ],
        **settings,
    )  # fmt: skip


def _pairs(survey: HeadSurvey, corpus: Corpus) -> Measure:
    return head_pairs(sample_sentences(corpus, survey.heads.n_layers * survey.heads.n_heads, survey.seed))


TREEBANK_PARTS = (
    _part("relations", _relation_tables, lambda survey, corpus: MOST_ATTENDED, _lacks_relations, excludes_first=True),
    _part("trees", _tree_tables, lambda survey, corpus: tree_measure(corpus), lacks_arcs, excludes_first=True),
    _part("attention_probe", _probe_tables, _pairs, lacks_arcs, by_name_only=True),
)
