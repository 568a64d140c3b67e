"""Sentence vectors for `sts`, static word vectors as a baseline, and their evaluation by layer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.activations import ActivationStore
from probing.cli.options import LARGEST
from probing.data.examples import HiddenStateSource, SentenceVectors, pool_words
from probing.downstream import CLIPPING, STS_B, TRANSDUCTIVE, Definition, Pooling, SentencePairs, Space
from probing.errors import UserError
from probing.probes import transforms as of
from probing.probes.transforms import Transform
from probing.results import Row as ReadonlyRow
from probing.results import estimate_cells
from probing.runtime.files import open_file
from probing.statistics import size_columns
from probing.statistics.chance import DRAWS, percentile_interval
from probing.statistics.moments import Covariance, CovarianceAccumulator, ProfileAccumulator, outliers_of
from probing.text import Corpus, compared
from probing.text.tokens import Tokens

_WORD = re.compile(r"\w+|[^\w\s]")

# Most characters of a line: those of a word and fifty thousand numbers.
_LONGEST_LINE = 1_000_000


@dataclass(frozen=True)
class StaticVectors:
    """Vectors of the words that occur, shape (n_words, d), float32, and the row of each word."""

    rows: dict[str, int]
    vectors: Tensor

    def sentences(self, sentences: Sequence[str]) -> Tensor:
        """Return the mean vector of each sentence's words, zeros if no word is known, shape (n, d)."""
        sums = torch.zeros(len(sentences), self.vectors.shape[1])
        for i, sentence in enumerate(sentences):
            if known := [row for word in _words(sentence) if (row := self._row(word)) is not None]:
                sums[i] = self.vectors[known].mean(0)
        return sums

    def known(self, sentences: Sequence[str]) -> NDArray[np.bool_]:
        """Return which sentences have a vector that is not 0, shape (n,)."""
        has_vector: NDArray[np.bool_] = self.sentences(sentences).any(dim=1).numpy()
        return has_vector

    def coverage(self, sentences: Iterable[str]) -> float:
        """Return the share of word occurrences that have a vector."""
        words = [word for sentence in sentences for word in _words(sentence)]
        return sum(self._row(word) is not None for word in words) / max(1, len(words))

    def _row(self, word: str) -> int | None:
        row = self.rows.get(word)
        return self.rows.get(word.lower()) if row is None else row


def _words(sentence: str) -> list[str]:
    """Split at blanks and around each punctuation mark."""
    return _WORD.findall(sentence)


def read_static(path: str, sentences: Iterable[str]) -> StaticVectors:
    """Read the vectors of the words of some sentences, as spelled and in lower case.

    A line has a word and its numbers, separated by blanks. A first line of two whole numbers, as in word2vec files, is
    skipped. Only the required words are stored, so that a file of gigabytes takes little memory.

    Raises:
        UserError: If the file cannot be read, a line is not a word with as many numbers as the others, a number is not
            finite or above 1e30, or the file has no word of the sentences.
    """
    needed = {form for sentence in sentences for word in _words(sentence) for form in (word, word.lower())}
    rows: dict[str, int] = {}
    vectors: list[list[float]] = []
    width = None
    try:
        with open_file(path, "r", encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), ""), 1):
                cells = line.rstrip().split(" ")
                if number == 1 and len(cells) == 2 and all(map(str.isdigit, cells)):
                    continue
                width = width or len(cells) - 1
                word = " ".join(cells[:-width])
                # Some of GloVe's words have blanks in them; a number behind one is one too many.
                is_malformed = not word or width < 1 or (" " in word and _numbers(word.split(" ")[-1:]))
                if not is_malformed and word in needed and word not in rows:
                    rows[word] = len(vectors)
                    vectors.append(_numbers(cells[-width:]))
                    is_malformed = not vectors[-1] or not all(abs(value) <= LARGEST for value in vectors[-1])
                if is_malformed:
                    raise UserError(
                        f"`--static {path}`: line {number} is not a word followed by {width} numbers that are finite "
                        f"and at most {LARGEST:g}; give vectors in GloVe's format, as text."
                    )
    except (OSError, ValueError) as error:  # ValueError: the file is not UTF-8, or the path has a NUL character
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", str(error))
        raise UserError(f"`--static {path}` cannot be read ({reason}); give a text file of word vectors.") from None
    if not vectors:
        raise UserError(f"`--static {path}` has none of the words of the data; give vectors of its language.")
    return StaticVectors(rows, torch.tensor(vectors))


def _numbers(cells: Sequence[str]) -> list[float]:
    """Return the numbers in cells; empty if a cell has none."""
    try:
        return [float(cell) for cell in cells]
    except ValueError:
        return []


Aggregation = Literal["all", "mean", "wmean"]

AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)

Array = NDArray[np.float64]

# Number of lists that are ranked at once.
_AT_ONCE = 128


def pair_draws(subset: NDArray[np.int64], seed: int, n_draws: int = DRAWS) -> NDArray[np.float32]:
    """Return how often each bootstrap draw contains each pair, shape (n_draws, n_pairs).

    Pairs are drawn with replacement, as many in each subset as it has; `subset` has shape (n_pairs,).
    """
    generator = np.random.default_rng(seed)
    times = np.zeros((n_draws, len(subset)), dtype=np.float32)
    for index in np.unique(subset):
        of_subset = np.flatnonzero(subset == index)
        n = len(of_subset)
        times[:, of_subset] = generator.multinomial(n, np.full(n, 1 / n), size=n_draws)
    return times


def spearman(a: Array, b: Array) -> float:
    """Return Spearman's correlation, mean ranks for ties; NaN if a side is constant or a value is not finite."""
    return float(weighted_spearman(a, b, np.ones((1, len(a)), dtype=np.float32))[0])


def weighted_spearman(a: Array, b: Array, times: NDArray[np.float32]) -> Array:
    """Return Spearman's correlation of lists that contain each pair `times` times, (n_lists, n); shape (n_lists,).

    No list is sorted: the rank of a value follows from how often the list contains lower values. NaN if a side is
    constant, and everywhere if a value is not finite.
    """
    if not (np.isfinite(a).all() and np.isfinite(b).all()):  # sorted, NaN would be the largest value
        return np.full(len(times), np.nan)
    # In blocks: the ranks of all bootstrap draws of 10,000 pairs at once would take half a gigabyte.
    blocks = (times[first : first + _AT_ONCE] for first in range(0, len(times), _AT_ONCE))
    return np.concatenate([_weighted_spearman(a, b, block) for block in blocks])


def _weighted_spearman(a: Array, b: Array, times: NDArray[np.float32]) -> Array:
    ranks_a, ranks_b = _ranks(a, times), _ranks(b, times)
    n = times.sum(1, dtype=np.float64)
    # The mean rank is the same in both.
    for ranks in (ranks_a, ranks_b):
        ranks -= ((n + 1) / 2)[:, None]
    covariance, square_a, square_b = (
        np.einsum("ij,ij,ij->i", times, x, y) for x, y in ((ranks_a, ranks_b), (ranks_a, ranks_a), (ranks_b, ranks_b))
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(covariance / np.sqrt(square_a * square_b))


def _ranks(values: Array, times: NDArray[np.float32]) -> Array:
    """Return the mean rank of each value in each list, shape (n_lists, n)."""
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    counts = np.add.reduceat(times[:, order], starts, axis=1, dtype=np.float64)
    ranks: Array = (np.cumsum(counts, axis=1) - (counts - 1) / 2)[:, group]
    return ranks


def pseudo_values(a: Array, b: Array) -> Array:
    """Return a number for each pair of values, with the mean and standard error of Spearman's correlation, shape (n,).

    These are the jackknife's pseudo-values (Tukey 1958), n r - (n - 1) r_i, where r_i leaves out pair i, shifted by a
    constant so that their mean is r. The standard error of the difference of two such lists is that of the difference
    of two correlations on the same pairs. They are 0 if all values of a side are equal, since these are then
    uninformative about the other side; NaN if a value is not finite.
    """
    n = len(a)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return np.full(n, np.nan)
    whole = float(np.nan_to_num(spearman(a, b)))
    without = []
    for first in range(0, n, _AT_ONCE):
        times = np.ones((min(_AT_ONCE, n - first), n), dtype=np.float32)
        times[np.arange(len(times)), first + np.arange(len(times))] = 0
        without.append(np.nan_to_num(weighted_spearman(a, b, times)))
    jackknifed = np.concatenate(without)
    return whole - (n - 1) * (jackknifed - jackknifed.mean())


def aggregated(a: Array, b: Array, subset: NDArray[np.int64]) -> dict[Aggregation, float]:
    """Return Spearman's correlation in each aggregation over subsets; all arrays have shape (n_pairs,)."""
    by_aggregation = aggregated_draws(a, b, subset, np.ones((1, len(a)), dtype=np.float32))
    return {how: float(values[0]) for how, values in by_aggregation.items()}


def aggregated_draws(
    a: Array, b: Array, subset: NDArray[np.int64], draws: NDArray[np.float32]
) -> dict[Aggregation, Array]:
    """Return Spearman's correlation of each bootstrap draw, in each aggregation, each of shape (n_draws,)."""
    everything = weighted_spearman(a, b, draws)
    subsets, sizes = np.unique(subset, return_counts=True)
    if len(subsets) == 1:
        return dict.fromkeys(AGGREGATIONS, everything)
    each = np.stack([weighted_spearman(a[at], b[at], draws[:, at]) for at in (subset == index for index in subsets)])
    return {"all": everything, "mean": each.mean(0), "wmean": sizes @ each / sizes.sum()}


Row = dict[str, Any]


@dataclass(frozen=True)
class Similarities:
    """The cosines of all pairs in a layer (None for static vectors) and space.

    `cosines` of the pairs, shape (n_pairs,), and `clipped` neurons, set to 0, are by the label of the set.
    """

    pooling: str
    layer: int | None
    transform: str
    cosines: dict[str, Array]
    clipped: dict[str, list[int]]

    @property
    def key(self) -> Row:
        """The columns of the tables that identify the cosines."""
        return {"pooling": self.pooling, "layer": "" if self.layer is None else self.layer, "transform": self.transform}


@dataclass(frozen=True)
class Choice:
    """The pairs used to choose the layer for a set: pairs of the set `label` that the other set lacks (`is_used`).

    Arrays are of all pairs of that set, shape (n_pairs,).
    """

    label: str
    is_used: NDArray[np.bool_]
    gold: Array

    def score(self, candidate: Similarities) -> float:
        """Return the correlation on these pairs; -2, below all others, if it is undefined."""
        return float(
            np.nan_to_num(spearman(candidate.cosines[self.label][self.is_used], self.gold[self.is_used]), nan=-2)
        )


def reported(sets: Sequence[SentencePairs]) -> list[SentencePairs]:
    """Return the sets to report on: test parts, and dev parts if there is no test part."""
    tested = {pairs.name for pairs in sets if pairs.part == "test"}
    return [pairs for pairs in sets if pairs.part == "test" or (pairs.part == "dev" and pairs.name not in tested)]


def choice(target: SentencePairs, sets: Sequence[SentencePairs]) -> Choice | None:
    """Return the pairs used to choose the layer for a set; None if there are fewer than three, as without STS-B."""
    part = "train" if (target.name, target.part) == (STS_B, "dev") else "dev"
    chosen_set = next((pairs for pairs in sets if (pairs.name, pairs.part) == (STS_B, part)), None)
    if chosen_set is None:
        return None
    known = set(_pair_keys(target))
    is_used = np.array([key not in known for key in _pair_keys(chosen_set)])
    return Choice(chosen_set.label, is_used, chosen_set.gold) if is_used.sum() > 2 else None


def _pair_keys(pairs: SentencePairs) -> list[frozenset[str]]:
    keys = [compared(sentence) for sentence in pairs.corpus.sentences]
    return [frozenset((keys[first], keys[second])) for first, second in pairs.sentences]


def by_layer(candidates: Sequence[Similarities], sets: Sequence[SentencePairs], seed: int) -> list[Row]:
    """Return a row for each set, layer, space and aggregation, as in `sts.csv`; `gain` is over the plain space."""
    rows = []
    for target in sets:
        draws = pair_draws(target.subset, seed)
        for of_layer in _grouped(candidates, lambda candidate: (candidate.pooling, candidate.layer)):
            rows += _compared(of_layer, target, draws)
    return rows


def chosen(
    all_similarities: Sequence[Similarities], targets: Sequence[SentencePairs], sets: Sequence[SentencePairs], seed: int
) -> list[Row]:
    """Return the result of each space on each reported set by either protocol, as in `chosen.csv`.

    `gain` is the difference from the plain space under the same protocol, with its confidence interval over resampled
    pairs. `targets` are the reported sets, `sets` all sets with cosines.
    """
    rows: list[Row] = []
    for target in targets:
        draws = pair_draws(target.subset, seed)
        itself = Choice(target.label, np.ones(target.n_pairs, dtype=bool), target.gold)
        protocols = {"held_out": choice(target, sets), "published": itself}
        for candidates in _grouped(all_similarities, lambda candidate: candidate.pooling):
            if len({candidate.layer for candidate in candidates}) == 1:  # there is no layer to choose
                rows += [{"protocol": "held_out"} | row for row in _compared(candidates, target, draws)]
                continue
            for protocol, on in protocols.items():
                if on is not None:
                    spaces = _grouped(candidates, lambda candidate: candidate.transform)
                    best = [max(of_space, key=on.score) for of_space in spaces]
                    note = {"protocol": protocol, "chosen_on": on.label, "n_chosen_on": int(on.is_used.sum())}
                    rows += [note | row for row in _compared(best, target, draws)]
    return rows


def _grouped(candidates: Sequence[Similarities], key: Callable[[Similarities], Any]) -> list[list[Similarities]]:
    groups: dict[Any, list[Similarities]] = {}
    for candidate in candidates:
        groups.setdefault(key(candidate), []).append(candidate)
    return list(groups.values())


def _compared(spaces: Sequence[Similarities], target: SentencePairs, draws: NDArray[np.float32]) -> list[Row]:
    """Return a row for each space and aggregation, compared with the plain space if available."""
    values, drawn = {}, {}
    for space in spaces:
        values[space.transform] = aggregated(space.cosines[target.label], target.gold, target.subset)
        drawn[space.transform] = aggregated_draws(space.cosines[target.label], target.gold, target.subset, draws)
    rows = []
    for space in spaces:
        name, clipped = space.transform, space.clipped[target.label]
        for how in AGGREGATIONS:
            interval = percentile_interval(drawn[name][how], target.n_pairs)
            row = {"set": target.label, **space.key, "aggregation": how, "n_pairs": target.n_pairs}
            row |= estimate_cells("spearman", values[name][how], interval, "")
            row |= {"n_clipped": len(clipped), "clipped": " ".join(map(str, clipped))}
            gain = values[name][how] - values["none"][how] if "none" in values else float("nan")
            if name != "none" and np.isfinite(gain):
                gains = drawn[name][how] - drawn["none"][how]
                row |= estimate_cells("gain", gain, percentile_interval(gains, target.n_pairs))
            rows.append(row)
    return rows


# The layer that `first_last` averages with the requested one: the first block's output (Su et al. 2021); SimCSE takes
# the embeddings instead.
FIRST = 1


def sentence_vectors(store: HiddenStateSource, layer: int, pooling: Pooling) -> Tensor:
    """Return a vector for each sentence, shape (n_sentences, d_model), float32; zeros without the required tokens.

    `mean` averages the tokens that are not special, `mean_special` all tokens; `cls` takes the first token;
    `first_last` averages the means of layer 1 and of this layer, without special tokens.
    """
    if pooling == "first_last":
        return (sentence_vectors(store, FIRST, "mean") + sentence_vectors(store, layer, "mean")) / 2
    vectors = SentenceVectors(store, pooling)
    return torch.cat([vectors.read(layer, shard) for shard in range(len(store.plan.shards))])


def has_first_special(tokens: Tokens) -> bool:
    """Return whether every sentence begins with a special token, such as [CLS]."""
    return bool(tokens.special[tokens.offsets[:-1]].all())


def word_vectors(store: HiddenStateSource, layers: Sequence[int], requested: NDArray[np.int64]) -> list[Tensor]:
    """Return a vector for each requested word, the mean of its pieces: by layer, shape (n, d_model), float32.

    `requested` has the sentence and word index of each word, shape (n, 2); each must have a token (see `has_pieces`).
    """
    keys = _keys(requested[:, 0], requested[:, 1])
    read_keys: list[NDArray[np.int64]] = []
    states_by_layer: list[list[Tensor]] = [[] for _ in layers]
    for shard in store.plan.shards:
        token_range = shard.rows(store.tokens)
        words, sentences = store.tokens.words[token_range], store.tokens.sentences[token_range]
        at = np.flatnonzero((words >= 0) & np.isin(_keys(sentences, words), keys))
        rows = torch.from_numpy(at)
        pooled = pool_words([store.read(k, shard.index)[rows] for k in layers], words[at], sentences[at])
        read_keys.append(_keys(*pooled.keys.T))
        for of_layer, states in zip(states_by_layer, pooled.hidden_states, strict=True):
            of_layer.append(states.float())
    # Sentences ascend from shard to shard, and words within a sentence, so the keys are sorted.
    order = torch.from_numpy(np.searchsorted(np.concatenate(read_keys), keys))
    return [torch.cat(states)[order] for states in states_by_layer]


def has_pieces(
    tokens: Tokens, requested: NDArray[np.int64], among: NDArray[np.bool_] | None = None
) -> NDArray[np.bool_]:  # fmt: skip
    """Return which words have a token, shape (n,); a word has none if the sentence was truncated before it.

    `requested` has the sentence and word index of each word, shape (n, 2); `among` which tokens count, shape
    (n_tokens,), None for all.
    """
    pieces = tokens.words >= 0 if among is None else among & (tokens.words >= 0)
    return np.isin(_keys(requested[:, 0], requested[:, 1]), _keys(tokens.sentences[pieces], tokens.words[pieces]))


def _keys(sentences: NDArray[np.integer], words: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return a number that identifies each word of each sentence; a sentence has fewer than 2^16 words."""
    return sentences.astype(np.int64) * 2**16 + words


def cosines(first: Tensor, second: Tensor) -> NDArray[np.float64]:
    """Return the cosine of each pair of rows, shape (n, d_model), rounded to 7 decimals; 0 if a row is all zeros.

    A word at the same position in two sentences has the same embedding except for rounding errors, which would order
    such pairs at random without the rounding to 7 decimals.

    Raises:
        UserError: If a vector is not finite.
    """
    a, b = first.double(), second.double()
    lengths = a.norm(dim=1) * b.norm(dim=1)
    if not lengths.isfinite().all():
        raise UserError(
            "a vector that is compared has values that are not finite in float32, so that it has no cosine; leave out "
            "the transform or the replacement that makes it so large."
        )
    return torch.where(lengths > 0, (a * b).sum(1) / lengths.clamp(min=1e-300), 0.0).round(decimals=7).numpy()


# SentencePiece writes the blank before a word as this piece where the word itself is unknown.
_BLANK = "▁"


def known_tokens(tokens: Tokens, tokenizer: Any) -> NDArray[np.bool_]:
    """Return which tokens represent text of the sentence that the vocabulary knows, shape (n_tokens,)."""
    if (unknown := tokenizer.unk_token_id) is None:
        return ~tokens.special
    return ~tokens.special & ~np.isin(tokens.input_ids, [unknown, tokenizer.convert_tokens_to_ids(_BLANK)])


def unknown_sentences(tokens: Tokens, tokenizer: Any) -> NDArray[np.bool_]:
    """Return which sentences have no token that the vocabulary knows, special tokens aside, shape (n_sentences,)."""
    known = tokens.sentences[known_tokens(tokens, tokenizer)]
    return np.bincount(known, minlength=tokens.n_sentences) == 0


def unknown_words(tokens: Tokens, tokenizer: Any, requested: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which words (see `has_pieces`) have no piece that the vocabulary knows, shape (n,)."""
    return ~has_pieces(tokens, requested, known_tokens(tokens, tokenizer))


@dataclass(frozen=True)
class TransformFitting:
    """The transforms and their fitting.

    `definition` defines the clipped outliers; `components` None means that whitening retains all varying directions.
    `clip_random` draws by `seed` and layer.
    """

    spaces: Sequence[Space]
    definition: Definition = "mean_profile"
    components: int | None = None
    seed: int = 0

    @property
    def clips(self) -> bool:
        """Whether outliers are required."""
        return bool({*self.spaces} & {*CLIPPING})


def fitted(
    fitting: TransformFitting, moments: Covariance, outliers: Sequence[int], layer: int
) -> dict[Space, Transform]:
    """Return the transforms of a layer by name; `clip_random` clips as many random neurons as `outliers`."""
    return {name: _fitted(name, fitting, moments, outliers, layer) for name in fitting.spaces}


def _fitted(
    name: Space, fitting: TransformFitting, moments: Covariance, outliers: Sequence[int], layer: int
) -> Transform:
    d_model = len(moments.mean)
    if name == "none":
        return of.identity(d_model)
    if name == "clip_random":
        generator = np.random.default_rng([fitting.seed, layer])
        return of.clip(moments, of.random_neurons(d_model, len(outliers), outliers, generator))
    if name == "whiten" and not moments.varies:  # as for [CLS] in the embeddings: whitening is not defined
        name = "center"
    n_components = fitting.components and min(fitting.components, d_model)
    return of.fit_transform(name, moments, outliers, of.Fitting(n_components=n_components))


@dataclass(frozen=True)
class FittingText:
    """Sentences that transforms are fitted on: `is_used` selects sentences of the store, shape (n_sentences,), bool."""

    store: ActivationStore
    is_used: NDArray[np.bool_]

    @property
    def taken(self) -> NDArray[np.bool_]:
        """Mask of the tokens of these sentences without special tokens, shape (n_tokens,), bool."""
        tokens = self.store.tokens
        return self.is_used[tokens.sentences] & ~tokens.special


def not_in(sentences: Sequence[str], others: Sequence[str]) -> NDArray[np.bool_]:
    """Return which sentences do not occur among the others, ignoring case and punctuation, shape (n_sentences,)."""
    known = {compared(sentence) for sentence in others}
    return np.array([compared(sentence) not in known for sentence in sentences])


def token_moments(texts: Sequence[FittingText], layer: int) -> Covariance:
    """Return the moments of the texts' tokens in a layer, without special tokens."""
    accumulator = CovarianceAccumulator(texts[0].store.plan.d_model)
    for states in _words_of(texts, layer):
        accumulator.update(states)
    return accumulator.result()


def outliers(texts: Sequence[FittingText], layer: int, definition: Definition) -> list[int]:
    """Return a layer's outliers over the texts' tokens without special tokens, ascending; there may be none."""
    accumulator = ProfileAccumulator(texts[0].store.plan.d_model)
    for states in _words_of(texts, layer):
        accumulator.update(states.float())
    all_outliers = outliers_of(accumulator.result())
    return sorted({outlier.neuron for outlier in all_outliers if outlier.definition == definition})


def _words_of(texts: Sequence[FittingText], layer: int) -> Iterator[Tensor]:
    """Yield the hidden states of each shard's tokens that are used, shape (n, d_model)."""
    for text in texts:
        taken = text.taken
        for shard in text.store.plan.shards:
            rows = torch.from_numpy(np.flatnonzero(taken[shard.rows(text.store.tokens)]))
            yield text.store.read(layer, shard.index)[rows]


def defined(rows: Sequence[ReadonlyRow]) -> list[dict[str, Any]]:
    """Return rows without their undefined values (NaN)."""
    return [{name: value for name, value in row.items() if value == value} for row in rows]


@dataclass(frozen=True)
class Vectors:
    """The sources of all sentence vectors: all sets, training parts included, and the activations of each.

    `outside` is another corpus with its activations, if transforms are fitted on one.
    """

    sets: Sequence[SentencePairs]
    stores: Sequence[ActivationStore]
    outside: tuple[Corpus, ActivationStore] | None
    static: StaticVectors | None


@dataclass(frozen=True)
class FitOn:
    """The text that transforms are fitted on: corpora, activations with the used sentences, static vectors."""

    names: list[str]
    corpora: list[Corpus]
    texts: list[FittingText]
    words: StaticVectors | None = None

    @property
    def n_sentences(self) -> int:
        """Number of used sentences."""
        return sum(int(text.is_used.sum()) for text in self.texts)

    @cached_property
    def n_static(self) -> int:
        """Number of used sentences with a static vector."""
        parts = zip(self.corpora, self.texts, strict=True)
        return sum(
            int((text.is_used & self.words.known(corpus.sentences)).sum()) for corpus, text in parts if self.words
        )


def fitted_columns(
    row: Mapping[str, Any], text: FitOn, d_model: int, words: StaticVectors | None, components: int | None
) -> dict[str, Any]:
    """Return the columns on the text that a row's transform was fitted on.

    `d_model` is the width of hidden states; static vectors (`words`) have another width.
    """
    is_static = words is not None and row["pooling"] == "static"
    width, n = (words.vectors.shape[1], text.n_static) if words and is_static else (d_model, text.n_sentences)
    size = size_columns(row["transform"], n, n, width, components)
    return {"fitted_on": " and ".join(text.names), **size}


def described(
    pairs: SentencePairs, store: ActivationStore, words: StaticVectors | None, tokenizer: Any
) -> dict[str, Any]:
    """Return a description of a set for `results.json`: its pairs, and the sentences with uninformative vectors."""
    counts = {name: getattr(pairs, name) for name in ("n_read", "n_pairs", "n_without_score", "n_without_sentence")}
    subsets = {name: int((pairs.subset == i).sum()) for i, name in enumerate(pairs.subsets)}
    description = {"set": pairs.label, "part": pairs.part, **counts, "n_dropped": pairs.n_dropped, "subsets": subsets}
    description |= _counted("unknown", pairs, unknown_sentences(store.tokens, tokenizer))
    if words is None:
        return description
    coverage = {"static_coverage": words.coverage(pairs.corpus.sentences)}
    return description | coverage | _counted("static_unknown", pairs, ~words.known(pairs.corpus.sentences))


def _counted(what: str, pairs: SentencePairs, sentences: NDArray[np.bool_]) -> dict[str, int]:
    """Return the number of selected sentences of a set, and of pairs with a selected sentence."""
    n_pairs = int(sentences[pairs.sentences].any(axis=1).sum())
    return {f"n_{what}_sentences": int(sentences.sum()), f"n_{what}_pairs": n_pairs}


def unknown_messages(described: Mapping[str, Any]) -> list[str]:
    """Return lines on the sentences of a set with uninformative vectors, from the result of `described`."""
    reasons = {
        "unknown": "no token that the model's vocabulary knows, and their {n} pairs are ranked like the others",
        "static_unknown": "no word with a static vector, and static cosines of their {n} pairs are 0 in every space",
    }
    return [
        f"{described['set']}: {described[f'n_{what}_sentences']} sentences have "
        + reason.format(n=described[f"n_{what}_pairs"])
        for what, reason in reasons.items()
        if described.get(f"n_{what}_sentences")
    ]


def first_token_check(poolings: Sequence[Pooling], model: str) -> Callable[[Tokens], None]:
    """Return a check that raises a `UserError` if `cls` is pooled and sentences do not begin with a special token."""

    def check(tokens: Tokens) -> None:
        if "cls" in poolings and not has_first_special(tokens):
            raise UserError(f"`--pooling cls`: {model} puts no special token at the beginning; use mean.")

    return check


def check_text_to_fit_on(
    sets: Sequence[SentencePairs], outside: Corpus | None, targets: Sequence[SentencePairs], fit_on: str
) -> None:
    """Check, before a model reads the text, that text for the transforms remains without the evaluated sentences.

    Raises:
        UserError: If no sentence remains.
    """
    corpora = [outside] if outside else [pairs.corpus for pairs in sets if pairs.part == "train"]
    if fit_on != "target" and corpora and not any(_not_in_targets(corpus, targets).any() for corpus in corpora):
        raise UserError(
            f"`--fit_on {fit_on}`: all its sentences occur in the sets that are evaluated; give other text."
        )


def fitted_texts(vectors: Vectors, targets: Sequence[SentencePairs], fit_on: str) -> dict[str, FitOn]:
    """Return the text that the transforms of each set are fitted on, by the set's label.

    Sentences of any reported set are omitted, since sets overlap: STS-B was drawn from STS12 to STS16 and others. With
    `target`, the text of each set consists of all its sentences instead.
    """
    read = list(zip(vectors.sets, vectors.stores, strict=True))
    if fit_on == "target":
        texts = {}
        for pairs, store in read:
            everything = FittingText(store, np.ones(len(pairs.corpus.sentences), dtype=bool))
            names = [f"{pairs.label} ({TRANSDUCTIVE})"]
            texts[pairs.label] = FitOn(names, [pairs.corpus], [everything], vectors.static)
        return texts
    parts = [(pairs.label, pairs.corpus, store) for pairs, store in read if pairs.part == "train"]
    if vectors.outside:
        parts = [(vectors.outside[0].name, *vectors.outside)]
    used = [FittingText(store, _not_in_targets(corpus, targets)) for _, corpus, store in parts]
    common = FitOn([name for name, *_ in parts], [corpus for _, corpus, _ in parts], used, vectors.static)
    return {pairs.label: common for pairs in vectors.sets}


def _not_in_targets(corpus: Corpus, targets: Sequence[SentencePairs]) -> NDArray[np.bool_]:
    return not_in(corpus.sentences, [sentence for pairs in targets for sentence in pairs.corpus.sentences])


def check_static_text(texts: Mapping[str, FitOn]) -> None:
    """Check that transforms of static vectors have a sentence to be fitted on.

    Raises:
        UserError: If no sentence of a text has a word with a vector.
    """
    for label, text in texts.items():
        if text.words and text.texts and not text.n_static:
            raise UserError(
                f"`--static`: no sentence that transforms for {label} are fitted on has a word with a vector; give "
                "vectors of more words, or other text with `--fit_on`, or `--transforms none`."
            )


def similarities(
    vectors: Vectors,
    texts: Mapping[str, FitOn],
    layers: Sequence[int],
    poolings: Sequence[Pooling],
    fitting: TransformFitting,
) -> list[Similarities]:
    """Return the cosines of all pairs of all sets, for each pooling, layer and space; static vectors come last.

    A sentence without tokens, or without a word that has a static vector, has a vector of zeros, which has no
    direction: the cosines of its pairs are 0 in every space, and no transform is fitted on it. Static vectors are not
    clipped.
    """
    spaces = []
    for layer in layers:
        clipped = _outliers(texts, layer, fitting.definition) if fitting.clips else {}
        for pooling in poolings:
            first = _outliers(texts, FIRST, fitting.definition) if clipped and pooling == "first_last" else {}
            neurons = {label: sorted({*clipped[label], *first.get(label, [])}) for label in clipped}

            def pooled(corpus: Corpus, store: ActivationStore, layer: int = layer, how: Pooling = pooling) -> Tensor:
                return sentence_vectors(store, layer, how)

            spaces += _similarities(vectors, texts, pooled, neurons, fitting, (pooling, layer))
    if (static := vectors.static) is not None:
        unclipped = replace(fitting, spaces=[name for name in fitting.spaces if name not in CLIPPING])
        spaces += _similarities(
            vectors, texts, lambda corpus, _: static.sentences(corpus.sentences), {}, unclipped, ("static", None)
        )
    return spaces


def _outliers(texts: Mapping[str, FitOn], layer: int, definition: Definition) -> dict[str, list[int]]:
    """Return the outliers for each set; sets with the same text share one search."""
    by_text = {id(text): outliers(text.texts, layer, definition) for text in texts.values() if text.texts}
    return {label: by_text.get(id(text), []) for label, text in texts.items()}


def _similarities(
    vectors: Vectors, texts: Mapping[str, FitOn], pooled: Callable[[Corpus, ActivationStore], Tensor],
    neurons: Mapping[str, Sequence[int]], fitting: TransformFitting, of_what: tuple[str, int | None],
) -> list[Similarities]:  # fmt: skip
    """Return the cosines of all pairs in each space; `of_what` is the pooling and the layer."""
    spaces: dict[str, Similarities] = {name: Similarities(*of_what, name, {}, {}) for name in fitting.spaces}
    fitted_for: dict[int, Any] = {}
    for pairs, store in zip(vectors.sets, vectors.stores, strict=True):
        text = texts[pairs.label]
        states = pooled(pairs.corpus, store)
        if id(text) not in fitted_for:
            accumulator = CovarianceAccumulator(states.shape[1])
            for corpus, part in zip(text.corpora, text.texts, strict=True):
                part_states = pooled(corpus, part.store)
                accumulator.update(part_states[torch.from_numpy(part.is_used) & part_states.any(dim=1)])
            if not text.texts:  # no transform is fitted: only the plain vectors are used
                accumulator.update(states)
            of_text = neurons.get(pairs.label, [])
            fitted_for[id(text)] = fitted(fitting, accumulator.result(), of_text, of_what[1] or 0)
        first, second = torch.from_numpy(pairs.sentences).T
        both = (states.any(dim=1)[first] & states.any(dim=1)[second]).numpy()
        for name, transform in fitted_for[id(text)].items():
            images = transform(states)
            spaces[name].cosines[pairs.label] = np.where(both, cosines(images[first], images[second]), 0.0)
            spaces[name].clipped[pairs.label] = transform.clipped
    return list(spaces.values())


def evaluate(
    vectors: Vectors,
    layers: Sequence[int],
    poolings: Sequence[Pooling],
    fitting: TransformFitting,
    fit_on: str,
    seed: int,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, FitOn]]:
    """Return the rows of `sts.csv` and of `chosen.csv`, and the text that each set's transforms were fitted on.

    Raises:
        UserError: If transforms of static vectors have no sentence to be fitted on.
    """
    targets: Sequence[SentencePairs] = reported(vectors.sets)
    texts = fitted_texts(vectors, targets, fit_on)
    if [*fitting.spaces] != ["none"]:
        check_static_text(texts)
    spaces = similarities(vectors, texts, layers, poolings, fitting)
    rows, picked = by_layer(spaces, targets, seed), chosen(spaces, targets, vectors.sets, seed)
    width = vectors.stores[0].plan.d_model
    for row in (*rows, *picked):
        if row["transform"] != "none":
            row |= fitted_columns(row, texts[row["set"]], width, vectors.static, fitting.components)
    return rows, picked, texts
