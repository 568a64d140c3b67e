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
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, minimum_spanning_tree, shortest_path
from scipy.stats import rankdata
from threadpoolctl import threadpool_limits
from torch import Tensor

from probing.activations.source import ActivationSource
from probing.activations.store import ActivationStore
from probing.data.examples import Examples, read
from probing.data.module import sources_of_controls
from probing.errors import UserError
from probing.heads.syntax import arcs_of, punctuation_of
from probing.results import Table, curve_points, estimate_cells
from probing.runs.call import Measurements
from probing.runtime.progress import stage
from probing.statistics import accuracy_interval, difference_interval, ratio_interval
from probing.statistics.chance import random_rotation
from probing.studies.trees import ITSELF, PERMUTED_TREES, TreesOptions
from probing.studies.trees.metric import TARGETS, Group, Metric, Target, contributions, grouped, mean_error, solve
from probing.text import Corpus, Split

Row = dict[str, Any]
Counts = NDArray[np.int64]
Scores = NDArray[np.float64]

# The options that the texts are given by.
OPTIONS = ("--corpus", "--test_corpus")
# Penalties of the trace, in squared tree distances, from which validation sentences choose.
PENALTIES = (3.0, 1.0, 0.3)
# Gap of the probes that only choose the penalty, as a share of their objective.
COARSE = 1e-2
# Smallest number of sentences of each split.
LEAST = 5
# Lengths of the sentences over which rank correlations are averaged (Hewitt & Manning 2019).
LENGTHS = range(5, 51)
# Number of words of the sentence whose trees are shown, or the closest there is.
EXAMPLE_LENGTH = 10
# Number of neurons whose share is compared with directions, and of test sentences that contributions are measured in.
FIRST, MOST_SENTENCES = 10, 100


# --------------------------------------------------------------------------------------------------------------------
# Gold trees, and the sentences of each split.
# --------------------------------------------------------------------------------------------------------------------


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
        distances: NDArray[np.float64] = shortest_path(_adjacency(self.heads), directed=False, unweighted=True)
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


def _adjacency(heads: NDArray[np.int64]) -> NDArray[np.float64]:
    edges = np.zeros((len(heads), len(heads)))
    dependents = np.flatnonzero(heads >= 0)
    edges[dependents, heads[dependents]] = 1
    return edges


def trees_of(corpus: Corpus, option: str) -> list[Tree]:
    """Return the trees of a treebank.

    Raises:
        UserError: If the corpus has no dependency relations, or the heads of a sentence are not one tree.
    """
    arcs = arcs_of(corpus, option)
    first = np.searchsorted(arcs.sentences, np.arange(len(corpus.sentences) + 1))
    trees = []
    for i, is_punctuation in enumerate(punctuation_of(corpus)):
        of_sentence = slice(first[i], first[i + 1])
        heads = np.full(len(is_punctuation), -1, dtype=np.int64)
        heads[arcs.dependents[of_sentence]] = arcs.heads[of_sentence]
        if (heads < 0).sum() != 1 or connected_components(_adjacency(heads), directed=False)[0] != 1:
            raise UserError(
                f"`{option} {corpus.name}`: the heads of the sentence `{corpus.sentences[i]:.60}` are not one tree "
                "with one root; correct the treebank, or leave the sentence out."
            )
        trees.append(Tree(heads, ~is_punctuation))
    return trees


@dataclass(frozen=True)
class Treebank:
    """Sentences of a split: their text and places in it, their trees, and the cluster of each for intervals, from 0."""

    text: int
    places: NDArray[np.int64]
    trees: Sequence[Tree]
    clusters: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.trees)

    @cached_property
    def lengths(self) -> Counts:
        """Numbers of words, shape (n_sentences,)."""
        return np.array([len(tree.heads) for tree in self.trees])

    def pick(self, chosen: NDArray[np.int64]) -> Treebank:
        """Return some of the sentences."""
        clusters = np.unique(self.clusters[chosen], return_inverse=True)[1].reshape(-1)
        return Treebank(self.text, self.places[chosen], [self.trees[i] for i in chosen], clusters)

    def with_permuted_trees(self, seed: int) -> Treebank:
        """Return the sentences, each with the tree of another one of its length; those without one are left out."""
        draw = np.random.default_rng([seed, 1])
        trees = list(self.trees)
        for length in np.unique(self.lengths):
            shuffled = draw.permutation(np.flatnonzero(self.lengths == length))
            for sentence, other in zip(shuffled, np.roll(shuffled, 1), strict=True):
                trees[sentence] = self.trees[other]
        is_single = np.bincount(self.lengths)[self.lengths] == 1
        return replace(self, trees=trees).pick(np.flatnonzero(~is_single))


Treebanks = Mapping[Split, Treebank]


def sample(
    corpora: Sequence[Corpus], splits: Sequence[Sequence[Split]], by_document: bool, options: TreesOptions
) -> tuple[list[Corpus], dict[Split, Treebank]]:
    """Return the texts that are read, one of each corpus, and the treebank of each split.

    Training and validation sentences are a random sample, test sentences are all; all are of two words or more.
    """
    draw, n_train = np.random.default_rng(options.seed), options.train_sentences
    most: dict[Split, int] = {"train": n_train, "validation": -(-n_train // 4)}
    text_of: dict[Split, int] = {"train": 0, "validation": 0, "test": len(corpora) - 1}
    chosen: dict[Split, list[int]] = {}
    for split, k in text_of.items():
        words = corpora[k].words
        sentences = [i for i, of in enumerate(splits[k]) if of == split and (words is None or len(words[i]) > 1)]
        chosen[split] = sorted(draw.permutation(sentences)[: most.get(split)].tolist())
    of_text = [sorted(i for split in chosen if text_of[split] == k for i in chosen[split]) for k in range(len(corpora))]
    texts = [corpus.subset(sentences) for corpus, sentences in zip(corpora, of_text, strict=True)]
    trees = [trees_of(text, option) for text, option in zip(texts, OPTIONS, strict=False)]
    treebanks = {}
    for split, k in text_of.items():
        documents = texts[k].documents if by_document else None
        clusters = np.arange(len(trees[k])) if documents is None else np.array(documents)
        places = np.searchsorted(of_text[k], chosen[split])
        treebanks[split] = Treebank(k, np.arange(len(trees[k])), trees[k], clusters).pick(places)
    _check(treebanks)
    return texts, treebanks


def _check(treebanks: Treebanks) -> None:
    for split, treebank in treebanks.items():
        if len(treebank) < LEAST:
            raise UserError(
                f"`{OPTIONS[treebank.text]}`: {len(treebank)} {split} sentences have two words or more that the model "
                f"reads, and at least {LEAST} are needed; give a larger treebank."
            )


def complete(treebank: Treebank, stores: Sequence[ActivationStore]) -> Treebank:
    """Return the sentences of which the model reads all words."""
    tokens = stores[treebank.text].tokens
    n_read = np.bincount(tokens.sentences[tokens.first_pieces], minlength=tokens.n_sentences)
    return treebank.pick(np.flatnonzero(n_read[treebank.places] == treebank.lengths))


# --------------------------------------------------------------------------------------------------------------------
# The words of a layer.
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TreeWords:
    """Vectors of the words of each sentence, (n_words, d_model), in units of their standard deviation in training."""

    vectors: Mapping[Split, Sequence[Tensor]]
    mean: Tensor

    @classmethod
    def read(cls, treebanks: Treebanks, stores: Sequence[ActivationStore], layer: int) -> TreeWords:
        """Read the words of a layer, each the mean of its pieces."""
        used = {treebank.text for treebank in treebanks.values()}
        of_text = {text: _sentences(stores[text], layer) for text in used}
        vectors = {
            split: [of_text[treebank.text][place] for place in treebank.places] for split, treebank in treebanks.items()
        }
        sd, mean = torch.std_mean(torch.cat(vectors["train"]).double(), dim=0, correction=0)
        scale = torch.where(sd > 0, 1 / sd, 0.0).float()
        scaled = {split: [words * scale for words in of_split] for split, of_split in vectors.items()}
        return cls(scaled, mean.float() * scale)

    def groups(self, split: Split, treebanks: Treebanks, target: Target) -> list[Group]:
        """Return the sentences of a split with the distances or depths of their trees."""
        vectors, trees = self.vectors[split], treebanks[split].trees
        if target == "depth":
            return grouped(vectors, [tree.depths for tree in trees])
        # Differences do not depend on the mean; without it they are more exact.
        return grouped([words - self.mean for words in vectors], [tree.distances for tree in trees])


def _sentences(store: ActivationStore, layer: int) -> dict[int, Tensor]:
    """Return the words of each sentence of a text, by its number."""
    labels = np.where(store.tokens.first_pieces, 0, -1).astype(np.int32)
    batches = list(read(Examples(store, labels, word_means=True), [layer]))
    of_words = store.tokens.sentences[torch.cat([batch.rows for batch in batches]).numpy()]
    numbers, n_words = np.unique(of_words, return_counts=True)
    states = torch.cat([batch.hidden_states[0] for batch in batches])
    return dict(zip(numbers.tolist(), states.split(n_words.tolist()), strict=True))


# --------------------------------------------------------------------------------------------------------------------
# Scores of predicted distances and depths.
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TreeScores:
    """Scores of each test sentence, each attribute of shape (n_sentences,)."""

    right: Counts
    n_edges: Counts
    distance_spearman: Scores
    root: Counts
    depth_spearman: Scores

    @classmethod
    def of(cls, trees: Sequence[Tree], distances: Sequence[Scores], depths: Sequence[Scores]) -> TreeScores:
        """Return the scores of predicted distances (n_words, n_words) and depths (n_words,) of each sentence."""
        gold, predicted = [tree.edges for tree in trees], spanning_edges(trees, distances)
        roots = [_decoded_root(tree, of) for tree, of in zip(trees, depths, strict=True)]
        return cls(
            np.array([len(edges & of) for edges, of in zip(gold, predicted, strict=True)]),
            np.array([len(edges) for edges in gold]),
            spearman(distances, [tree.distances for tree in trees]),
            np.array([int(root == tree.root) for root, tree in zip(roots, trees, strict=True)]),
            spearman(depths, [tree.depths for tree in trees]),
        )

    def pick(self, chosen: NDArray[np.int64]) -> TreeScores:
        """Return the scores of some sentences."""
        return TreeScores(*(values[chosen] for values in vars(self).values()))


def spanning_edges(trees: Sequence[Tree], distances: Sequence[Scores]) -> list[set[tuple[int, int]]]:
    """Return the edges of each sentence's minimum spanning tree, without punctuation, the lower index first."""
    starts = np.cumsum([0, *(len(tree.heads) for tree in trees)])
    first, second, weights = [], [], []
    for start, tree, of_sentence in zip(starts, trees, distances, strict=False):
        words = np.flatnonzero(tree.is_word)
        i, j = (words[at] for at in np.triu_indices(len(words), 1))
        first.append(start + i)
        second.append(start + j)
        # The library takes an entry of 0 for no edge.
        weights.append(of_sentence[i, j] + 1.0)
    pairs = np.concatenate(first), np.concatenate(second)
    # One call for the trees of all sentences, between which there are no pairs.
    graph = coo_array((np.concatenate(weights), pairs), shape=(starts[-1], starts[-1]))
    forest = minimum_spanning_tree(graph.tocsr()).tocoo()
    sentences = np.searchsorted(starts, forest.row, side="right") - 1
    edges: list[set[tuple[int, int]]] = [set() for _ in trees]
    offset = starts[sentences]
    for sentence, i, j in zip(sentences, (forest.row - offset).tolist(), (forest.col - offset).tolist(), strict=True):
        edges[sentence].add((i, j))
    return edges


def decoded_heads(tree: Tree, distances: Scores, depths: Scores) -> NDArray[np.int64]:
    """Return each word's head in the spanning tree, whose root has the least depth; -1 of it and of punctuation."""
    (edges,) = spanning_edges([tree], [distances])
    n = len(tree.heads)
    graph = coo_array((np.ones(len(edges)), tuple(zip(*edges, strict=True))), shape=(n, n)).tocsr()
    heads = breadth_first_order(graph, _decoded_root(tree, depths), directed=False)[1]
    return np.asarray(np.maximum(heads, -1), dtype=np.int64)


def _decoded_root(tree: Tree, depths: Scores) -> int:
    return int(np.where(tree.is_word, depths, np.inf).argmin())


def spearman(predicted: Sequence[Scores], gold: Sequence[Scores]) -> Scores:
    """Return each sentence's rank correlation of (n_words,), or its mean over the rows of (n_words, n_words).

    It is 0 for rows without two different values.
    """
    lengths = np.array([len(of_sentence) for of_sentence in gold])
    correlations = np.zeros(len(gold))
    for n in np.unique(lengths):
        chosen = np.flatnonzero(lengths == n)
        ranks = [rankdata(np.stack([values[i] for i in chosen.tolist()]), axis=-1) for values in (predicted, gold)]
        a, b = (of_rows - of_rows.mean(-1, keepdims=True) for of_rows in ranks)
        scale = np.sqrt((a**2).sum(-1) * (b**2).sum(-1))
        of_rows = np.divide((a * b).sum(-1), scale, out=np.zeros_like(scale), where=scale > 0)
        correlations[chosen] = of_rows.reshape(len(chosen), -1).mean(1)
    return correlations


def chain(trees: Sequence[Tree]) -> TreeScores:
    """Return the scores of the linear chain: distance |i - j|, and depth by the position in the sentence."""
    places = [np.arange(len(tree.heads), dtype=np.float64) for tree in trees]
    return TreeScores.of(trees, [np.abs(at[:, None] - at) for at in places], places)


def predictions(groups: Sequence[Group], metric: Metric) -> list[Scores]:
    """Return the predicted distances, or depths, of each sentence."""
    by_index = {
        index: values.double().numpy()
        for group in groups
        for index, values in zip(group.indices, group.predicted(metric.factor)[1], strict=True)
    }
    return [by_index[i] for i in range(len(by_index))]


# --------------------------------------------------------------------------------------------------------------------
# The probes of all layers.
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerProbes:
    """The two probes of a layer, the test error of distances, and the scores by test sentence."""

    metrics: Mapping[Target, Metric]
    error: float
    scores: TreeScores

    @classmethod
    def train(
        cls,
        words: TreeWords,
        treebanks: Treebanks,
        penalties: Mapping[Target, float],
        starts: Mapping[Target, Tensor],
    ) -> LayerProbes:
        """Train both probes at their penalties, from factors of similar probes, and score them on test sentences."""
        metrics, predicted = {}, {}
        for target in TARGETS:
            train = words.groups("train", treebanks, target)
            metrics[target] = solve(train, penalties[target], starts.get(target))
            predicted[target] = predictions(words.groups("test", treebanks, target), metrics[target])
        error = mean_error(words.groups("test", treebanks, "distance"), metrics["distance"].factor)
        scores = TreeScores.of(treebanks["test"].trees, predicted["distance"], predicted["depth"])
        return cls(metrics, error, scores)


def penalty_path(words: TreeWords, treebanks: Treebanks, target: Target) -> list[tuple[float, Tensor]]:
    """Return the validation error and the factor of a layer at each of `PENALTIES`."""
    train, validation = (words.groups(split, treebanks, target) for split in ("train", "validation"))
    path: list[tuple[float, Tensor]] = []
    for penalty in PENALTIES:
        factor = solve(train, penalty, path[-1][1] if path else None, COARSE).factor
        path.append((mean_error(validation, factor), factor))
    return path


def survey(
    source: ActivationSource, texts: Sequence[Corpus], treebanks: Treebanks, options: TreesOptions
) -> Measurements:
    """Train and test the probes of every layer, for the model and its controls."""
    controls = options.selected("controls")
    read_again = sources_of_controls([name for name in controls if name != PERMUTED_TREES], source, options.seed)
    stores = {name: of_condition.read(texts) for name, of_condition in {ITSELF: source, **read_again}.items()}
    n_sentences = sum(map(len, treebanks.values()))
    treebanks = {split: complete(treebank, stores[ITSELF]) for split, treebank in treebanks.items()}
    if n_omitted := n_sentences - sum(map(len, treebanks.values())):
        source.say(f"{n_omitted} sentences were left out, of which the model does not read all words")
    _check(treebanks)
    conditions = {name: (treebanks, of_condition) for name, of_condition in stores.items()}
    if PERMUTED_TREES in controls:
        permuted = {split: treebank.with_permuted_trees(options.seed) for split, treebank in treebanks.items()}
        conditions[PERMUTED_TREES] = permuted, stores[ITSELF]
    probes: dict[str, dict[int, LayerProbes]] = defaultdict(dict)
    neurons: list[Row] = []
    example: list[Row] = []
    shares: dict[int, Row] = {}
    # Torch and SciPy have threads of their own, which wait for each other: two take several times as long as one.
    with threadpool_limits(limits=1):
        penalties, starts = _choose_penalties(source.layers, stores[ITSELF], treebanks, options.penalty)
        for name, (of_condition, of_stores) in conditions.items():
            with stage(f"structural probes, {name.replace('_', ' ')}", len(source.layers)) as advance:
                for layer in source.layers:
                    words = TreeWords.read(of_condition, of_stores, layer)
                    fitted = LayerProbes.train(words, of_condition, penalties, starts[layer] if name == ITSELF else {})
                    probes[name][layer] = fitted
                    if name == ITSELF:
                        rows, shares[layer] = neuron_rows(words, treebanks, layer, fitted.metrics["distance"], options)
                        neurons += rows
                        example += example_rows(words, treebanks["test"], texts, layer, fitted.metrics, options.seed)
                    advance(1)
    tests = {name: of_condition["test"] for name, (of_condition, _) in conditions.items()}
    rows = [row | (shares[row["layer"]] if row["condition"] == ITSELF else {}) for row in tree_rows(probes, tests)]
    results = {
        "penalty": penalties,
        "n_sentences": {split: len(treebank) for split, treebank in treebanks.items()},
        "n_left_out": n_omitted,
    }
    names = ("uuas", "distance_spearman", "root", "depth_spearman")
    curves = curve_points(
        Table(rows).where(condition=ITSELF), lambda row: {name: row[name] for name in names if name in row}
    )
    return Measurements({"trees": rows, "tree_neurons": neurons, "tree_example": example}, results, curves)


def _choose_penalties(
    layers: Sequence[int], stores: Sequence[ActivationStore], treebanks: Treebanks, penalty: float | None
) -> tuple[dict[Target, float], dict[int, dict[Target, Tensor]]]:
    """Return the penalty of each target with the least validation error over all layers, and the factors at it."""
    if penalty is not None:
        return dict.fromkeys(TARGETS, penalty), {layer: {} for layer in layers}
    fitted: Treebanks = {split: treebanks[split] for split in ("train", "validation")}
    paths: dict[int, dict[Target, list[tuple[float, Tensor]]]] = {}
    with stage("penalty", len(layers)) as advance:
        for layer in layers:
            words = TreeWords.read(fitted, stores, layer)
            paths[layer] = {target: penalty_path(words, fitted, target) for target in TARGETS}
            advance(1)
    best: dict[Target, int] = {}
    for target in TARGETS:
        errors = [[error for error, _ in of_layer[target]] for of_layer in paths.values()]
        best[target] = int(np.sum(errors, axis=0).argmin())
    starts = {layer: {target: path[best[target]][1] for target, path in of.items()} for layer, of in paths.items()}
    return {target: PENALTIES[best[target]] for target in TARGETS}, starts


def neuron_rows(
    words: TreeWords, treebanks: Treebanks, layer: int, metric: Metric, options: TreesOptions
) -> tuple[list[Row], Row]:
    """Return the neurons by their contribution to test distances, and the share of the first beside directions'."""
    test = treebanks["test"]
    chosen = np.random.default_rng([options.seed, 2]).permutation(len(test))[:MOST_SENTENCES]
    some = TreeWords({"test": [words.vectors["test"][i] for i in chosen]}, words.mean)
    groups = some.groups("test", {"test": test.pick(chosen)}, "distance")
    size, mean = contributions(groups, metric.factor)
    total = float(size.sum())
    rows = [
        {"layer": layer, "rank": rank, "neuron": neuron, "contribution": float(size[neuron]),
         "share": float(size[neuron]) / total if total else 0.0, "mean_part": float(mean[neuron])}
        for rank, neuron in enumerate(size.argsort(descending=True, stable=True).tolist(), 1)
    ]  # fmt: skip
    row: Row = {"first_10_share": _first_share(size)}
    if options.rotations and len(size) > FIRST:
        drawn = []
        for i in range(options.rotations):
            rotate = random_rotation(len(size), options.seed, layer, i)
            turned = [replace(group, vectors=_rotated(group.vectors, rotate)) for group in groups]
            drawn.append(_first_share(contributions(turned, _rotated(metric.factor, rotate))[0]))
        row |= {"directions_low": min(drawn), "directions_high": max(drawn)}
    return rows, row


def example_rows(
    words: TreeWords, test: Treebank, texts: Sequence[Corpus], layer: int, metrics: Mapping[Target, Metric], seed: int
) -> Iterator[Row]:
    """Yield the words of the example with their gold and decoded heads; none if all trees depend on punctuation."""
    lengths = np.array([tree.is_word.sum() for tree in test.trees])
    shuffled = np.random.default_rng([seed, 3]).permutation(len(test)).tolist()
    joined = [i for i in shuffled if len(test.trees[i].edges) == lengths[i] - 1 > 0]
    if not joined:
        return
    chosen = min(joined, key=lambda i: abs(lengths[i] - EXAMPLE_LENGTH))
    sentence, tree = TreeWords({"test": [words.vectors["test"][chosen]]}, words.mean), test.trees[chosen]
    treebanks: Treebanks = {"test": test.pick(np.array([chosen]))}
    distances, depths = (predictions(sentence.groups("test", treebanks, of), metrics[of])[0] for of in TARGETS)
    decoded, forms = decoded_heads(tree, distances, depths), (texts[test.text].words or [])[test.places[chosen]]
    for i in np.flatnonzero(tree.is_word).tolist():
        yield {"layer": layer, "word_index": i + 1, "word": forms[i], "gold_head": int(tree.heads[i]) + 1,
               "decoded_head": int(decoded[i]) + 1}  # fmt: skip


def _first_share(size: Tensor) -> float:
    total = float(size.sum())
    return float(size.topk(min(FIRST, len(size))).values.sum()) / total if total else 0.0


def _rotated(vectors: Tensor, rotate: Callable[[Tensor], Tensor]) -> Tensor:
    return rotate(vectors.flatten(0, -2).double()).to(vectors).view_as(vectors)


# --------------------------------------------------------------------------------------------------------------------
# The rows of the table.
# --------------------------------------------------------------------------------------------------------------------


def tree_rows(probes: Mapping[str, Mapping[int, LayerProbes]], tests: Mapping[str, Treebank]) -> Iterator[Row]:
    """Yield a row for each condition and layer; intervals are over the clusters of test sentences."""
    baseline = chain(tests[ITSELF].trees)
    for condition, by_layer in probes.items():
        test = tests[condition]
        # The places of the condition's sentences among those of the model.
        same = np.searchsorted(tests[ITSELF].places, test.places)
        for layer, fitted in by_layer.items():
            scores, metrics = fitted.scores, fitted.metrics
            row: Row = {"condition": condition, "layer": layer}
            row |= _accuracy("uuas", scores.right, scores.n_edges, test)
            row |= _by_length("distance_spearman", scores.distance_spearman, test)
            row |= _accuracy("root", scores.root, np.ones_like(scores.root), test)
            row |= _by_length("depth_spearman", scores.depth_spearman, test)
            if condition == ITSELF:
                row["chain"] = float(baseline.right.sum() / max(baseline.n_edges.sum(), 1))
                row |= _paired("above_chain", scores, baseline, test)
                if layer and 0 in by_layer:
                    row |= _paired("above_embeddings", scores, by_layer[0].scores, test)
            else:
                row |= _difference(probes[ITSELF][layer].scores.pick(same), scores, test)
            row["error"] = fitted.error
            row |= {f"rank_{target}": metric.rank for target, metric in metrics.items()}
            row |= {f"gap_{target}": metric.gap / max(metric.objective, 1e-300) for target, metric in metrics.items()}
            yield row


def _sums(test: Treebank, *values: NDArray[Any]) -> list[Scores]:
    """Return the sums of values over the sentences of each cluster."""
    return [np.bincount(test.clusters, weights=of_sentence).astype(np.float64) for of_sentence in values]


def _accuracy(name: str, right: Counts, n: Counts, test: Treebank) -> Row:
    sums, n_sums = _sums(test, right, n)
    return estimate_cells(name, float(right.sum() / max(n.sum(), 1)), accuracy_interval(sums, n_sums.astype(np.int64)))


def _paired(name: str, scores: TreeScores, other: TreeScores, test: Treebank) -> Row:
    """Return the difference of UUAS on the same edges."""
    difference = scores.right - other.right
    sums, n = _sums(test, difference, scores.n_edges)
    return estimate_cells(name, float(sums.sum() / max(n.sum(), 1)), difference_interval(sums, n.astype(np.int64)))


def _difference(itself: TreeScores, control: TreeScores, test: Treebank) -> Row:
    """Return the UUAS of the model minus that of a control on the same sentences, whose edges may differ in number."""
    first, second = (_sums(test, scores.right, scores.n_edges) for scores in (itself, control))
    value = first[0].sum() / max(first[1].sum(), 1) - second[0].sum() / max(second[1].sum(), 1)
    return estimate_cells("difference", float(value), ratio_interval((first[0], first[1]), (second[0], second[1])))


def _by_length(name: str, values: Scores, test: Treebank) -> Row:
    """Return the mean over lengths of the means over sentences of a length; none without sentences of `LENGTHS`."""
    weights = np.zeros(len(values))
    present = [length for length in np.unique(test.lengths) if length in LENGTHS]
    for length in present:
        weights[test.lengths == length] = 1 / (len(present) * (test.lengths == length).sum())
    if not present:
        return {}
    sums, n = _sums(test, weights * values, weights)
    return estimate_cells(name, float(sums.sum()), ratio_interval((sums, n)))
