"""Structural probes of the layers of a model: trained, tested and compared with baselines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components, shortest_path
from scipy.stats import rankdata
from torch import Tensor

from probing.activations.source import ActivationSource
from probing.activations.store import ActivationStore
from probing.data.examples import Examples, read
from probing.errors import UserError
from probing.heads.syntax import Arcs, arcs_of, punctuation_of
from probing.results import layers_named
from probing.runtime.progress import stage
from probing.statistics import accuracy_interval, difference_interval, ratio_interval
from probing.statistics.chance import random_rotation
from probing.studies.trees.metric import (
    Group,
    Metric,
    contributions,
    grouped,
    largest_penalty,
    mean_error,
    solve,
    spanning_edges,
)
from probing.text import Corpus, Split

Row = dict[str, Any]

ITSELF = "model"
# Penalties that validation sentences choose from, as shares of the smallest one at which nothing is learned.
PENALTIES = (0.1, 0.03, 0.01, 0.003)
# Gap of the probes that only choose the penalty, as a share of their objective.
COARSE = 1e-2
# Lengths of the sentences over which rank correlations are averaged (Hewitt & Manning 2019).
LENGTHS = range(5, 51)
# Neurons of a layer in the table, those whose share is compared with directions, and sentences that contributions are
# averaged over.
NAMED, FIRST, MOST_SENTENCES = 20, 10, 400


@dataclass(frozen=True)
class Tree:
    """The gold tree of a sentence: the head of each word, -1 of the root, and which words are no punctuation."""

    heads: NDArray[np.int64]
    is_word: NDArray[np.bool_]

    @property
    def root(self) -> int:
        """The word without a head."""
        return int(np.flatnonzero(self.heads < 0)[0])

    @cached_property
    def distances(self) -> NDArray[np.float64]:
        """Numbers of edges between two words, shape (n_words, n_words)."""
        n = len(self.heads)
        edges = np.zeros((n, n))
        dependents = np.flatnonzero(self.heads >= 0)
        edges[dependents, self.heads[dependents]] = 1
        distances: NDArray[np.float64] = shortest_path(edges, directed=False, unweighted=True)
        return distances

    @property
    def depths(self) -> NDArray[np.float64]:
        """Numbers of edges to the root, shape (n_words,)."""
        return self.distances[self.root]

    @property
    def edges(self) -> set[tuple[int, int]]:
        """Edges between two words that are no punctuation, the lower index first."""
        pairs = ((i, int(head)) for i, head in enumerate(self.heads) if head >= 0)
        return {(min(pair), max(pair)) for pair in pairs if self.is_word[list(pair)].all()}


def trees_of(corpus: Corpus, option: str) -> list[Tree]:
    """Return the trees of a treebank.

    Raises:
        UserError: If the corpus has no dependency relations, or the heads of a sentence are not one tree.
    """
    arcs: Arcs = arcs_of(corpus, option)
    trees = []
    first = np.searchsorted(arcs.sentences, np.arange(len(corpus.sentences) + 1))
    for i, is_punctuation in enumerate(punctuation_of(corpus)):
        of_sentence = slice(first[i], first[i + 1])
        heads = np.full(len(is_punctuation), -1, dtype=np.int64)
        heads[arcs.dependents[of_sentence]] = arcs.heads[of_sentence]
        tree = Tree(heads, ~is_punctuation)
        edges = np.zeros((len(heads), len(heads)))
        edges[arcs.dependents[of_sentence], arcs.heads[of_sentence]] = 1
        if (heads < 0).sum() != 1 or connected_components(edges, directed=False)[0] != 1:
            raise UserError(
                f"`{option} {corpus.name}`: the heads of the sentence `{corpus.sentences[i]:.60}` are not one tree with "
                "one root; correct the treebank, or leave the sentence out."
            )
        trees.append(tree)
    return trees


@dataclass(frozen=True)
class TreeConfig:
    """Settings of a survey.

    Args:
        n_train: Most training sentences; as many a quarter validate.
        penalty: Penalty of the trace in squared tree distances; None to choose it on validation sentences.
    """

    controls: Sequence[str]
    n_train: int
    penalty: float | None
    rotations: int
    seed: int


@dataclass(frozen=True)
class Treebank:
    """The treebanks of a survey with their trees, and the sentences of each side as (corpus, sentence) pairs.

    Args:
        clusters: For each corpus, the document, or the sentence, that each sentence belongs to in intervals.
    """

    corpora: Sequence[Corpus]
    trees: Sequence[Sequence[Tree]]
    sides: Mapping[Split, Sequence[tuple[int, int]]]
    clusters: Sequence[NDArray[np.int64]]

    @classmethod
    def of(
        cls, corpora: Sequence[Corpus], splits: Sequence[Sequence[Split]], by_document: bool, config: TreeConfig
    ) -> Treebank:
        """Return the sentences of at least two words, of which training and validation take a random part."""
        options = ["--corpus", "--test_corpus"][: len(corpora)]
        trees = [trees_of(corpus, option) for corpus, option in zip(corpora, options, strict=True)]
        most = {"train": config.n_train, "validation": -(-config.n_train // 4)}
        draw = np.random.default_rng(config.seed)
        sides: dict[Split, list[tuple[int, int]]] = {"train": [], "validation": [], "test": []}
        for corpus, of_corpus in enumerate(splits):
            for sentence in range(len(of_corpus)):
                if len(trees[corpus][sentence].heads) > 1:
                    sides[of_corpus[sentence]].append((corpus, sentence))
        for side, n in most.items():
            chosen = sides[side]  # type: ignore[index]
            kept = np.sort(draw.permutation(len(chosen))[:n])
            sides[side] = [chosen[i] for i in kept]  # type: ignore[index]
        clusters = [
            np.array(corpus.documents) if by_document and corpus.documents else np.arange(len(corpus.sentences))
            for corpus in corpora
        ]
        return cls(corpora, trees, sides, clusters)

    def gold(self, side: Split) -> list[Tree]:
        """Return the trees of a side."""
        return [self.trees[corpus][sentence] for corpus, sentence in self.sides[side]]

    def with_permuted_trees(self, seed: int) -> Treebank:
        """Return the sentences with a tree of another sentence of the same side and length; those without are left out."""
        draw = np.random.default_rng([seed, 1])
        trees = [list(of_corpus) for of_corpus in self.trees]
        sides: dict[Split, list[tuple[int, int]]] = {}
        for side, keys in self.sides.items():
            by_length: dict[int, list[tuple[int, int]]] = defaultdict(list)
            for key in keys:
                by_length[len(self.trees[key[0]][key[1]].heads)].append(key)
            sides[side] = sorted(key for same in by_length.values() for key in same if len(same) > 1)
            for same in by_length.values():
                shuffled = [same[i] for i in draw.permutation(len(same))]
                # Each takes the tree of the next, so that none keeps its own.
                for (corpus, sentence), other in zip(shuffled, [*shuffled[1:], shuffled[0]], strict=True):
                    trees[corpus][sentence] = self.trees[other[0]][other[1]]
        return replace(self, trees=trees, sides=sides)

    def complete(self, stores: Sequence[ActivationStore]) -> tuple[Treebank, int]:
        """Return the sentences of which the model reads all words, and the number of the others."""
        n_read = [
            np.bincount(s.tokens.sentences[s.tokens.first_pieces], minlength=s.tokens.n_sentences) for s in stores
        ]
        sides = {
            side: [key for key in keys if n_read[key[0]][key[1]] == len(self.trees[key[0]][key[1]].heads)]
            for side, keys in self.sides.items()
        }
        n_left_out = sum(map(len, self.sides.values())) - sum(map(len, sides.values()))
        return replace(self, sides=sides), n_left_out


@dataclass(frozen=True)
class Vectors:
    """The words of the sentences of each side in one layer, in units of their standard deviation in training.

    `of_side` has shape (n_words, d_model) for each sentence.
    """

    of_side: Mapping[Split, Sequence[Tensor]]
    mean: Tensor

    @classmethod
    def read(cls, treebank: Treebank, stores: Sequence[ActivationStore], layer: int) -> Vectors:
        """Read the words, each the mean of its pieces."""
        vectors: dict[tuple[int, int], Tensor] = {}
        for i, store in enumerate(stores):
            tokens = store.tokens
            chosen = np.zeros(tokens.n_sentences, dtype=bool)
            chosen[[sentence for keys in treebank.sides.values() for corpus, sentence in keys if corpus == i]] = True
            is_example = tokens.first_pieces & chosen[tokens.sentences]
            batches = list(
                read(Examples(store, np.where(is_example, 0, -1).astype(np.int32), word_means=True), [layer])
            )
            if not batches:
                continue
            states = torch.cat([batch.hidden_states[0] for batch in batches])
            sentences = tokens.sentences[torch.cat([batch.rows for batch in batches]).numpy()]
            numbers, first = np.unique(sentences, return_index=True)
            parts = states.split(np.diff([*first, len(states)]).tolist())
            vectors |= {(i, int(sentence)): part for sentence, part in zip(numbers, parts, strict=True)}
        train = torch.cat([vectors[key] for key in treebank.sides["train"]])
        sd, mean = torch.std_mean(train.double(), dim=0, correction=0)
        scale = torch.where(sd > 0, 1 / sd, 0.0).float()
        of_side = {side: [vectors[key] * scale for key in keys] for side, keys in treebank.sides.items()}
        return cls(of_side, mean.float() * scale)

    def distance_groups(self, side: Split, trees: Sequence[Tree]) -> list[Group]:
        """Return the sentences of a side with the distances of their trees; differences need no mean."""
        centred = [vectors - self.mean for vectors in self.of_side[side]]
        return grouped(centred, [tree.distances for tree in trees])

    def depth_groups(self, side: Split, trees: Sequence[Tree]) -> list[Group]:
        """Return the sentences of a side with the depths of their words."""
        return grouped(self.of_side[side], [tree.depths for tree in trees])


@dataclass(frozen=True)
class Scores:
    """Scores of each test sentence, each attribute of shape (n_sentences,); rank correlations may be NaN."""

    right: NDArray[np.int64]
    n_edges: NDArray[np.int64]
    distance_spearman: NDArray[np.float64]
    root: NDArray[np.int64]
    depth_spearman: NDArray[np.float64]

    @classmethod
    def of(
        cls, trees: Sequence[Tree], distances: Sequence[NDArray[np.float64]], depths: Sequence[NDArray[np.float64]]
    ) -> Scores:
        """Return the scores of predicted distances (n_words, n_words) and depths (n_words,) of each sentence."""
        rows = [_scores(*of_sentence) for of_sentence in zip(trees, distances, depths, strict=True)]
        columns = [np.array(column) for column in zip(*rows, strict=True)] or [np.zeros(0)] * 5
        return cls(columns[0], columns[1], columns[2], columns[3], columns[4])


def _scores(
    tree: Tree, distances: NDArray[np.float64], depths: NDArray[np.float64]
) -> tuple[int, int, float, int, float]:
    words, gold = np.flatnonzero(tree.is_word), tree.edges
    edges = words[spanning_edges(distances[np.ix_(words, words)])] if len(words) > 1 else np.zeros((0, 2), int)
    right = len(gold & {(int(min(edge)), int(max(edge))) for edge in edges})
    root = int(len(words) > 0 and words[depths[words].argmin()] == tree.root)
    of_rows = spearman(distances, tree.distances)
    return right, len(gold), float(of_rows.mean()), root, float(spearman(depths[None], tree.depths[None])[0])


def spearman(predicted: NDArray[np.float64], gold: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank correlation of each row, shape (n_rows,); 0 where a row has no two different values."""
    ranks = [rankdata(values, axis=1) for values in (predicted, gold)]
    a, b = (of_rows - of_rows.mean(1, keepdims=True) for of_rows in ranks)
    scale = np.sqrt((a**2).sum(1) * (b**2).sum(1))
    return np.divide((a * b).sum(1), scale, out=np.zeros(len(a)), where=scale > 0)


def predicted(groups: Sequence[Group], metric: Metric) -> list[NDArray[np.float64]]:
    """Return the predicted distances, or depths, of each sentence, in the order of `sentences` of the groups."""
    return [values.double().numpy() for group in groups for values in group.predicted(metric.factor)[1]]


def chain(trees: Sequence[Tree]) -> Scores:
    """Return the scores of the linear chain: distance |i - j|, and depth by the position in the sentence."""
    places = [np.arange(len(tree.heads), dtype=np.float64) for tree in trees]
    return Scores.of(trees, [np.abs(at[:, None] - at) for at in places], places)


@dataclass(frozen=True)
class LayerProbes:
    """The probes of a layer, for distances and for depths, and their scores by test sentence."""

    distance: Metric
    depth: Metric
    error: float
    scores: Scores


def order_of(groups_of: Sequence[Tree]) -> list[int]:
    """Return the order in which `grouped` has sentences: by length."""
    return sorted(range(len(groups_of)), key=lambda i: len(groups_of[i].heads))


def layer_probes(
    vectors: Vectors, treebank: Treebank, penalties: tuple[float, float], starts: tuple[Tensor | None, Tensor | None]
) -> LayerProbes:
    """Train both probes of a layer at their penalties, and score them on the test sentences."""
    train, test = treebank.gold("train"), treebank.gold("test")
    distance = solve(vectors.distance_groups("train", train), penalties[0], starts[0])
    depth = solve(vectors.depth_groups("train", train), penalties[1], starts[1])
    groups = vectors.distance_groups("test", test), vectors.depth_groups("test", test)
    by_length = [predicted(of_target, metric) for of_target, metric in zip(groups, (distance, depth), strict=True)]
    back = np.argsort(order_of(test), kind="stable")
    distances, depths = ([values[i] for i in back] for values in by_length)
    return LayerProbes(distance, depth, mean_error(groups[0], distance.factor), Scores.of(test, distances, depths))


def choose_penalty(
    train: Sequence[Sequence[Group]], validation: Sequence[Sequence[Group]]
) -> tuple[float, list[Tensor]]:
    """Return the penalty with the lowest validation error over all layers, and each layer's factor at it.

    Penalties decrease until the error rises; groups are given by layer.
    """
    largest = max(largest_penalty(groups) for groups in train)
    best: tuple[float, float, list[Tensor]] | None = None
    factors: list[Tensor | None] = [None] * len(train)
    for share in PENALTIES:
        fitted = [
            solve(groups, share * largest, start, COARSE).factor for groups, start in zip(train, factors, strict=True)
        ]
        error = sum(mean_error(groups, factor) for groups, factor in zip(validation, fitted, strict=True))
        if best is not None and error >= best[0]:
            break
        best, factors = (error, share * largest, fitted), list(fitted)
    assert best is not None
    return best[1], best[2]


def survey(
    source: ActivationSource, treebank: Treebank, config: TreeConfig, log: Callable[[str], None]
) -> tuple[dict[str, list[Row]], dict[str, Any]]:
    """Train and test the probes of every layer, for the model and its controls; return tables and further results."""
    sources = dict(_sources(source, config, log))
    stores = {}
    with stage(f"hidden states of {layers_named(source.layers)}", len(sources)) as advance:
        for name, of_condition in sources.items():
            stores[name] = of_condition.read(treebank.corpora)
            advance(1)
    treebank, n_left_out = treebank.complete(stores[ITSELF])
    if n_left_out:
        log(f"{n_left_out} sentences were left out, of which the model does not read all words")
    _check(treebank)
    by_layer = {layer: Vectors.read(treebank, stores[ITSELF], layer) for layer in source.layers}
    train, validation = treebank.gold("train"), treebank.gold("validation")
    penalties: list[float] = []
    starts: list[list[Tensor | None]] = []
    for groups_of in (Vectors.distance_groups, Vectors.depth_groups):
        if config.penalty is not None:
            penalties.append(config.penalty)
            starts.append([None] * len(by_layer))
            continue
        with stage("penalty"):
            penalty, factors = choose_penalty(
                [groups_of(vectors, "train", train) for vectors in by_layer.values()],
                [groups_of(vectors, "validation", validation) for vectors in by_layer.values()],
            )
        penalties.append(penalty)
        starts.append(list(factors))
    both = (penalties[0], penalties[1])
    probes: dict[str, dict[int, LayerProbes]] = {ITSELF: {}}
    neurons: list[Row] = []
    shares: dict[int, Row] = {}
    with stage(f"structural probes of {layers_named(source.layers)}", len(by_layer)) as advance:
        for i, (layer, vectors) in enumerate(by_layer.items()):
            fitted = layer_probes(vectors, treebank, both, (starts[0][i], starts[1][i]))
            probes[ITSELF][layer] = fitted
            rows, shares[layer] = neuron_rows(vectors, treebank, layer, fitted.distance, config)
            neurons += rows
            advance(1)
    permuted = treebank.with_permuted_trees(config.seed)
    for name in config.controls:
        if name not in sources and name != "permuted_trees":
            continue
        of_control = permuted if name == "permuted_trees" else treebank
        with stage(f"structural probes, {name.replace('_', ' ')}", len(by_layer)) as advance:
            probes[name] = {}
            for layer in by_layer:
                vectors = Vectors.read(of_control, stores[name if name in sources else ITSELF], layer)
                probes[name][layer] = layer_probes(vectors, of_control, both, (None, None))
                advance(1)
    tables = {"trees": list(_rows(probes, treebank, permuted, shares)), "tree_neurons": neurons}
    results = {
        "penalty": {"distance": penalties[0], "depth": penalties[1]},
        "n_sentences": {side: len(keys) for side, keys in treebank.sides.items()},
        "n_left_out": n_left_out,
    }
    return tables, results


def _check(treebank: Treebank) -> None:
    for side, keys in treebank.sides.items():
        if not keys:
            raise UserError(
                f"`--corpus`: no {side} sentence has two words or more that the model reads; give a larger treebank."
            )


def _sources(
    source: ActivationSource, config: TreeConfig, log: Callable[[str], None]
) -> Iterator[tuple[str, ActivationSource]]:
    yield ITSELF, source
    if "permuted_positions" in config.controls:
        yield "permuted_positions", replace(source, permuted_tokens_seed=config.seed)
    if "untrained" in config.controls:
        if source.random_weights_seed is None:
            yield "untrained", replace(source, random_weights_seed=config.seed)
        else:
            log("the control untrained is left out: the model itself is randomly initialised")


def neuron_rows(
    vectors: Vectors, treebank: Treebank, layer: int, metric: Metric, config: TreeConfig
) -> tuple[list[Row], Row]:
    """Return the first neurons by their contribution to test distances, and their share beside that of directions."""
    trees, states = treebank.gold("test")[:MOST_SENTENCES], vectors.of_side["test"][:MOST_SENTENCES]
    some = Vectors({"test": states}, vectors.mean)
    groups = some.distance_groups("test", trees)
    of_neurons = contributions(groups, metric.factor)
    total = float(of_neurons.sum())
    first = of_neurons.argsort(descending=True, stable=True)[:NAMED].tolist()
    rows = [
        {"layer": layer, "rank": rank, "neuron": neuron, "contribution": float(of_neurons[neuron]),
         "share": float(of_neurons[neuron]) / total if total else 0.0}
        for rank, neuron in enumerate(first, 1)
    ]  # fmt: skip
    row: Row = {"first_10_share": _first_share(of_neurons)}
    if config.rotations and len(of_neurons) > FIRST:
        drawn = [_first_share(_rotated(groups, metric, config.seed, layer, i)) for i in range(config.rotations)]
        row |= {"directions_low": min(drawn), "directions_high": max(drawn)}
    return rows, row


def _first_share(of_units: Tensor) -> float:
    total = float(of_units.sum())
    return float(of_units.topk(min(FIRST, len(of_units))).values.sum()) / total if total else 0.0


def _rotated(groups: Sequence[Group], metric: Metric, seed: int, layer: int, draw: int) -> Tensor:
    """Return the contributions of random directions, into which vectors and metric are rotated."""
    rotate = random_rotation(metric.factor.shape[1], seed, layer, draw)
    turned = [
        replace(group, vectors=rotate(group.vectors.flatten(0, 1).double()).to(group.vectors).view_as(group.vectors))
        for group in groups
    ]
    return contributions(turned, rotate(metric.factor.double()).to(metric.factor))


def _rows(
    probes: Mapping[str, Mapping[int, LayerProbes]], treebank: Treebank, permuted: Treebank, shares: Mapping[int, Row]
) -> Iterator[Row]:
    baseline = chain(treebank.gold("test"))
    for condition, by_layer in probes.items():
        of_condition = permuted if condition == "permuted_trees" else treebank
        clusters = _clusters(of_condition)
        place = {key: i for i, key in enumerate(treebank.sides["test"])}
        same = np.array([place[key] for key in of_condition.sides["test"]])
        for layer, fitted in by_layer.items():
            scores = fitted.scores
            row: Row = {"condition": condition, "layer": layer}
            row |= _accuracy("uuas", scores.right, scores.n_edges, clusters)
            lengths = np.array([len(tree.heads) for tree in of_condition.gold("test")])
            row |= _average("distance_spearman", scores.distance_spearman, lengths, clusters)
            row |= _accuracy("root", scores.root, np.ones_like(scores.root), clusters)
            row |= _average("depth_spearman", scores.depth_spearman, lengths, clusters)
            if condition == ITSELF:
                row |= _difference("above_chain", scores.right - baseline.right, scores.n_edges, clusters)
                if layer and 0 in by_layer:
                    embeddings = by_layer[0].scores.right
                    row |= _difference("above_embeddings", scores.right - embeddings, scores.n_edges, clusters)
                row |= {**shares[layer], "chain": float(baseline.right.sum() / max(baseline.n_edges.sum(), 1))}
            else:
                own = probes[ITSELF][layer].scores
                row |= _unpaired_difference(own, scores, same, clusters)
            row |= {
                "error": fitted.error, "rank_distance": fitted.distance.rank, "rank_depth": fitted.depth.rank,
                "gap_distance": fitted.distance.gap / fitted.distance.objective,
                "gap_depth": fitted.depth.gap / fitted.depth.objective,
            }  # fmt: skip
            yield row


def _clusters(treebank: Treebank) -> NDArray[np.int64]:
    """Return the number of the cluster of each test sentence, from 0."""
    keys = [(corpus, int(treebank.clusters[corpus][sentence])) for corpus, sentence in treebank.sides["test"]]
    return np.unique(np.array(keys).reshape(-1, 2), axis=0, return_inverse=True)[1].reshape(-1)


def _sum(values: NDArray[Any], clusters: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.bincount(clusters, weights=values)


def _accuracy(name: str, right: NDArray[np.int64], n: NDArray[np.int64], clusters: NDArray[np.int64]) -> Row:
    low, high = accuracy_interval(_sum(right, clusters), _sum(n, clusters).astype(np.int64))
    return {name: float(right.sum() / max(n.sum(), 1)), f"{name}_low": low, f"{name}_high": high}


def _difference(name: str, difference: NDArray[np.int64], n: NDArray[np.int64], clusters: NDArray[np.int64]) -> Row:
    low, high = difference_interval(_sum(difference, clusters), _sum(n, clusters).astype(np.int64))
    return {name: float(difference.sum() / max(n.sum(), 1)), f"{name}_low": low, f"{name}_high": high}


def _unpaired_difference(own: Scores, other: Scores, same: NDArray[np.int64], clusters: NDArray[np.int64]) -> Row:
    """Return the UUAS of the model minus that of a control, paired by sentence, whose edges may differ in number."""
    pairs = [(_sum(s.right, clusters), _sum(s.n_edges, clusters)) for s in (_rows_of(own, same), other)]
    low, high = ratio_interval(*pairs)
    value = float(pairs[0][0].sum() / pairs[0][1].sum() - pairs[1][0].sum() / pairs[1][1].sum())
    return {"difference": value, "difference_low": low, "difference_high": high}


def _rows_of(scores: Scores, chosen: NDArray[np.int64]) -> Scores:
    return Scores(*(getattr(scores, name)[chosen] for name in Scores.__dataclass_fields__))


def _average(name: str, values: NDArray[np.float64], lengths: NDArray[np.int64], clusters: NDArray[np.int64]) -> Row:
    """Return the mean over lengths of the means over sentences of a length, with its interval; none without such."""
    weights = np.zeros(len(values))
    present = [length for length in np.unique(lengths) if length in LENGTHS]
    for length in present:
        weights[lengths == length] = 1 / (len(present) * (lengths == length).sum())
    if not present:
        return {}
    low, high = ratio_interval((_sum(weights * values, clusters), _sum(weights, clusters)))
    return {name: float((weights * values).sum()), f"{name}_low": low, f"{name}_high": high}
