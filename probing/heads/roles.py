"""Attention between predicates and the fillers of their roles (after Kovaleva et al. 2019, section 4.2).

The score of a head is the mean over links of the largest attention from a piece of one side to a piece of the other.
The text and figure 3 of the paper disagree about the direction, so both are measured.

A high score alone says little, since many heads attend to words at some distance whatever their role. Links are
therefore compared with unlinked pairs of words that look alike: pairs of the same signed distance, the same parts of
speech (if annotated), the same numbers of words and of pieces, because a maximum grows with these, and the same place.

The links of a predicate are drawn together, because they are not independent: a predicate that attends much to one word
attends less to others, and if its attention stays on words, it is high for all fillers. The unit of a draw is a
placement: the links of a predicate, or the pairs of another sentence that look like them, pair by pair. If no other
sentence has pairs like all links of a predicate, these links are excluded together.

The place matters because links are not at random places: subjects, for example, come early. A head attends from token i
to token j of n by exp(s_ij) / sum_k exp(s_ik), with scores s_ij that depend on the embeddings of the positions i and j
even in a randomly initialised model. So the comparison must account for i, j and n. Both positions are matched exactly,
not in bins, because in a randomly initialised model the embeddings of neighbouring positions are unrelated. An exact
match of n would leave few links. Instead, each draw of the null draws placements of a kind by odds that depend on the
sentence as the odds of the links do (`Resampled`): a random link is at a given place with probability 1 / (number of
places), so that links are more frequent in short sentences. If links were random, with any number of fillers for a
predicate and of predicates in a sentence, the true links would be one more draw, so that p-values are uniform
(benchmarks/null_heads.py). With equal odds for all sentences, random links were significant in 8% to 10% of draws
instead of 5%. If no unlinked pair has the kind and place of a link, the effects of link and place cannot be separated:
such a link is excluded and counted.

Each draw contributes its largest statistic over all heads and both directions, so p-values are corrected for the choice
of a head. (The paper selects the heads above the 99th percentile of its 144 heads, which always are 1%, 1.4 heads.)
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import comb, log
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from torch import Tensor

from probing.errors import UserError
from probing.heads.accumulation import Begin, Measure, SentenceBatch, StackedBlocks, SumsStore
from probing.heads.measures import Rows
from probing.statistics import mean_interval
from probing.statistics.chance import largest_z_test
from probing.text import Corpus, from_words
from probing.text.files import read_lines
from probing.text.tokens import Tokens

Span = tuple[int, int]

# Words of the sentence, predicate, role, filler; both spans have a first and a last word.
RawLink = tuple[tuple[str, ...], Span, str, Span]

# The elements that a frame needs; the others (`Peripheral`, `Extra-Thematic`) fit any event.
_CORE = ("Core", "Core-Unexpressed")


def framenet_links(folder: Path, flag_text: str) -> Iterator[RawLink]:
    """Yield the links of targets with core elements in the example sentences of FrameNet.

    Elements that are not in the sentence, elements that share a word with the target, and annotations whose target or
    element is in several parts are excluded. The folder contains `lu`; `flag_text` is the option and its value.

    Raises:
        UserError: If there is no such folder, or a file is not FrameNet's; the message names file and line.
    """
    files = sorted((folder / "lu").glob("lu*.xml"))
    if not files:
        raise UserError(
            f"`{flag_text}`: expected files `lu/lu*.xml` in the folder, as FrameNet is distributed, and found none; "
            "name the folder that holds `lu` and `frame`, such as framenet:fndata-1.7."
        )
    for file in files:
        try:
            root = ElementTree.parse(file).getroot()
        except ElementTree.ParseError as error:
            raise UserError(
                f"`{flag_text}`: {file.name} is not XML in line {error.position[0]} ({str(error).split(':')[0]}); "
                "unpack FrameNet again."
            ) from None
        except OSError as error:
            raise UserError(
                f"`{flag_text}`: {file.name} cannot be read ({error.strerror}); check the folder."
            ) from None
        yield from _of_unit(root, f"`{flag_text}`: {file.name}")


def _of_unit(root: ElementTree.Element, where: str) -> Iterator[RawLink]:
    core = {element.get("name") for element in _all(root, "FE") if element.get("type") in _CORE}
    for sentence in _all(root, "sentence"):
        text = next(_all(sentence, "text"), None)
        if text is None:
            raise UserError(f"{where} has a sentence without text (ID {sentence.get('ID')}); unpack FrameNet again.")
        words, spans = _words(text.text or "")
        for annotation in _all(sentence, "annotationSet"):
            layers: dict[str, dict[str, list[Span]]] = {"Target": {}, "FE": {}}
            for layer in _all(annotation, "layer"):
                if layer.get("name") in layers and layer.get("rank", "1") == "1":
                    places_of_label = layers[layer.get("name", "")]
                    for label in _all(layer, "label"):
                        if label.get("start") is not None:
                            at = _characters(label, len(text.text or ""), sentence, where)
                            places_of_label.setdefault(label.get("name", ""), []).append(at)
            target = _single_span(layers["Target"].get("Target", []), spans)
            for role, places in layers["FE"].items():
                filler = _single_span(places, spans)
                if role in core and target and filler and (filler[1] < target[0] or target[1] < filler[0]):
                    yield words, target, role, filler


def _all(element: ElementTree.Element, name: str) -> Iterator[ElementTree.Element]:
    return (other for other in element.iter() if other.tag.rpartition("}")[2] == name)


def _characters(label: ElementTree.Element, n: int, sentence: ElementTree.Element, where: str) -> Span:
    ends = [label.get(end, "") for end in ("start", "end")]
    if not all(end.isascii() and end.isdigit() for end in ends) or not int(ends[0]) <= int(ends[1]) < n:
        raise UserError(
            f"{where} has the label {label.get('name')!r} from character {ends[0]!r} to {ends[1]!r} in a sentence of "
            f"{n} characters (ID {sentence.get('ID')}); unpack FrameNet again."
        )
    return int(ends[0]), int(ends[1])


def _words(text: str) -> tuple[tuple[str, ...], list[Span]]:
    """Return the words of a text, and the first and the last character of each."""
    words, spans, end = tuple(text.split()), [], 0
    for word in words:
        start = text.index(word, end)
        end = start + len(word)
        spans.append((start, end - 1))
    return words, spans


def _single_span(places: list[Span], spans: list[Span]) -> Span | None:
    """Return the first and the last word of a label in one place; None if there is no place or several."""
    if len(places) != 1:
        return None
    ((first, last),) = places
    inside = [i for i, (start, stop) in enumerate(spans) if start <= last and first <= stop]
    return (inside[0], inside[-1]) if inside else None


FRAMENET = "framenet:"

# Relations of a treebank that count as roles, without their subtypes.
CORE_ARGUMENTS = ("nsubj", "obj", "iobj")

# Which links Kovaleva et al. 2019, section 4.2, keep: words of the filler, words of the sentence, and words from the
# predicate to the filler.
LONGEST_FILLER, LONGEST_SENTENCE, LEAST_DISTANCE = 3, 12, 2

_SPAN = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")


@dataclass(frozen=True)
class Link:
    """A predicate and the filler of one of its roles; both spans are first and last word."""

    sentence: int
    predicate: Span
    role: str
    filler: Span


@dataclass(frozen=True)
class RoleLinks:
    """Sentences with their links.

    Args:
        corpus: The sentences that are short enough, including sentences without a link, which have unlinked pairs for
            the comparison.
        links: The links, in the order of the sentences.
        excluded: Reasons for excluding links, with the number of links.
    """

    corpus: Corpus
    links: tuple[Link, ...]
    excluded: tuple[tuple[str, int], ...] = ()


def read_role_links(name: str, option: str = "--roles") -> RoleLinks:
    """Read links from a file, or from the folder of FrameNet as distributed (`framenet:FOLDER`).

    Raises:
        UserError: If it cannot be read, a line is malformed, or no link is short enough.
    """
    flag_text = f"{option} {name}"
    if name.startswith(FRAMENET):
        raw_links = list(framenet_links(Path(name.removeprefix(FRAMENET)), flag_text))
    else:
        raw_links = list(_links_of_lines(read_lines(name, option), flag_text))
    if not raw_links:
        raise UserError(f"`{flag_text}` holds no link: it is empty or blank; give lines `text TAB 3 TAB role TAB 0-1`.")
    corpus = from_words(name, [words for words, *_ in raw_links], option=option)
    sentence = {words: i for i, words in enumerate(corpus.words or ())}
    links = [Link(sentence[words], predicate, role, filler) for words, predicate, role, filler in raw_links]
    return _selected(corpus, links, flag_text)


def treebank_links(corpus: Corpus, option: str = "--corpus") -> RoleLinks:
    """Return the core arguments of a treebank: subjects and objects, linked to their heads.

    Raises:
        UserError: If the corpus lacks the columns `head` and `deprel`, or no link is short enough.
    """
    flag_text = f"{option} {corpus.name}"
    if not {"head", "deprel"} <= set(corpus.columns):
        raise UserError(
            f"`{flag_text}` has no columns `head` and `deprel`, from which core arguments are read; give a .conllu "
            "file."
        )
    links = []
    for i, (heads, relations) in enumerate(zip(corpus.columns["head"], corpus.columns["deprel"], strict=True)):
        for word, (head, relation) in enumerate(zip(heads, relations, strict=True)):
            role = relation.split(":")[0]
            if role in CORE_ARGUMENTS and head.isascii() and head.isdigit() and 0 < int(head) <= len(heads):
                predicate = int(head) - 1
                links.append(Link(i, (predicate, predicate), role, (word, word)))
    return _selected(corpus, links, flag_text)


def distance(predicate: Span, filler: Span) -> int:
    """Return the distance in words between the nearest words of predicate and filler, negative leftwards."""
    return filler[0] - predicate[1] if filler[0] > predicate[1] else filler[1] - predicate[0]


def _selected(corpus: Corpus, links: Iterable[Link], flag_text: str) -> RoleLinks:
    words = corpus.words or ()
    reasons: dict[str, Callable[[Link], bool]] = {
        f"sentence of more than {LONGEST_SENTENCE} words": lambda link: len(words[link.sentence]) > LONGEST_SENTENCE,
        f"filler of more than {LONGEST_FILLER} words": lambda link: link.filler[1] - link.filler[0] >= LONGEST_FILLER,
        f"predicate and filler less than {LEAST_DISTANCE} words apart": lambda link: (
            abs(distance(link.predicate, link.filler)) < LEAST_DISTANCE
        ),
    }
    excluded: Counter[str] = Counter()
    selected: dict[Link, None] = {}
    for link in links:
        if reason := next((reason for reason, holds in reasons.items() if holds(link)), None):
            excluded[reason] += 1
        else:
            selected[link] = None
    if not selected:
        exclusions = "; ".join(f"{reason}: {n}" for reason, n in excluded.items()) or "there is none"
        raise UserError(f"`{flag_text}` has no role link that can be measured ({exclusions}); give other sentences.")
    sentences = [i for i, of in enumerate(words) if len(of) <= LONGEST_SENTENCE]
    index = {sentence: i for i, sentence in enumerate(sentences)}
    moved = [Link(index[link.sentence], link.predicate, link.role, link.filler) for link in selected]
    return RoleLinks(
        corpus.subset(sentences), tuple(sorted(moved, key=lambda link: link.sentence)), tuple(excluded.items())
    )


def _links_of_lines(lines: Iterable[str], flag_text: str) -> Iterator[RawLink]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"`{flag_text}`, line {number}"
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) != 4:
            raise UserError(
                f"{where}: expected text, predicate, role and filler with a tab between them, found "
                f"{len(cells)} column{'s' * (len(cells) != 1)}; write for example `She saw him TAB 1 TAB object TAB 2`."
            )
        words = tuple(cells[0].split())
        if not words:
            raise UserError(f"{where}: the text is empty; write the sentence in the first column.")
        if not cells[2]:
            raise UserError(f"{where}: the role has no name; write one in the third column.")
        predicate = _span(cells[1], "predicate", len(words), where)
        filler = _span(cells[3], "filler", len(words), where)
        if predicate[0] <= filler[1] and filler[0] <= predicate[1]:
            raise UserError(
                f"{where}: predicate {cells[1]} and filler {cells[3]} share a word; give spans without a common word."
            )
        yield words, predicate, cells[2], filler


def _span(text: str, what: str, n_words: int, where: str) -> Span:
    match = _SPAN.fullmatch(text)
    if not match:
        raise UserError(f"{where}: the {what} is {text!r}, where a word such as 3 or a span such as 3-4 is expected.")
    first = int(match[1])
    last = int(match[2] or first)
    if first > last:
        raise UserError(f"{where}: the {what} {text} ends before it begins; write {last}-{first}.")
    if last >= n_words:
        raise UserError(
            f"{where}: the {what} {text} is outside of the text, whose {n_words} words are counted from 0; give 0 to "
            f"{n_words - 1}."
        )
    return first, last


# Most unlinked placements for each predicate. The scores of 2,000 links and their pairs by 72 heads then take
# 12 MB.
UNLINKED = 10

Kind = tuple[Any, ...]

Place = tuple[int, Span, Span]


@dataclass(frozen=True)
class Placements:
    """The links of predicates, and pairs of other sentences that look like them.

    Args:
        pairs: Indices of each placement's pairs, shape (n, most), padded with -1.
        stratum: Number of each placement's kind, shape (n,); placements of a kind look alike.
        linked: Whether a placement is of links, shape (n,).
        lengths: Number of tokens of each placement's sentence, shape (n,).
        log_ways: Log of the number of places that as many links of a predicate could have in the sentence, shape (n,).
        n_unmatched: Number of excluded links.
    """

    pairs: NDArray[np.int64]
    stratum: NDArray[np.int64]
    linked: NDArray[np.bool_]
    lengths: NDArray[np.int64]
    log_ways: NDArray[np.float64]
    n_unmatched: int

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of pairs of each placement, shape (n,)."""
        return (self.pairs >= 0).sum(1)

    @property
    def links(self) -> NDArray[np.int64]:
        """Indices of the pairs that are links and are compared, ascending."""
        of_links = self.pairs[self.linked]
        return np.sort(of_links[of_links >= 0])

    def sums(self, values: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the sum of pair values, shape (n_pairs, ...), over each placement, shape (n, ...), float64."""
        sums = np.zeros((len(self.pairs), *values.shape[1:]))
        for column in self.pairs.T:
            is_pair = column >= 0
            sums[is_pair] += values[column[is_pair]]
        return sums


def draw_placements(
    links: Iterable[Place],
    kinds: Mapping[Place, Kind],
    unlinked: Mapping[Kind, Mapping[int, Place]],
    generator: np.random.Generator,
) -> list[tuple[tuple[Kind, ...], list[Place], bool]]:
    """Return placements, each with its kind and whether it is of links, and draw the unlinked placements.

    The links of a predicate are excluded if no other sentence has unlinked pairs that look like all of them. `kinds`
    are the properties that a link shares with pairs that look alike; `unlinked` has, for each kind, an unlinked pair by
    sentence. At most `UNLINKED` unlinked placements are drawn for each linked one.
    """
    by_predicate: dict[tuple[int, Span], list[Place]] = {}
    for place in links:
        by_predicate.setdefault(place[:2], []).append(place)
    of_kind: dict[tuple[Kind, ...], list[list[Place]]] = {}
    where: dict[tuple[Kind, ...], set[int]] = {}
    for predicate_places in by_predicate.values():
        # All links of a predicate or none: if only those were kept that look like pairs of other sentences, the
        # sentences with links would be those that are unlike the others.
        predicate_places.sort()
        together = tuple(kinds[place] for place in predicate_places)
        common = set.intersection(*(set(unlinked[place_kind]) for place_kind in together))
        if common:
            of_kind.setdefault(together, []).append(predicate_places)
            where[together] = common
    placements = []
    for together, linked in of_kind.items():
        placements += [(together, places, True) for places in linked]
        sentences = sorted(where[together])
        n = min(len(sentences), UNLINKED * len(linked))
        for i in sorted(generator.choice(len(sentences), n, replace=False)):
            placements.append((together, [unlinked[place_kind][sentences[i]] for place_kind in together], False))
    return placements


def indexed(
    placements: list[tuple[tuple[Kind, ...], list[Place], bool]],
    index: Mapping[Place, int],
    corpus: Corpus,
    tokens: Tokens,
    n_links: int,
) -> Placements:
    """Return placements by the indices of their pairs; `n_links` is the number of links to be compared."""
    most = max((len(places) for _, places, _ in placements), default=1)
    rows = [[index[place] for place in places] + [-1] * (most - len(places)) for _, places, _ in placements]
    number = {kind: i for i, kind in enumerate(dict.fromkeys(kind for kind, _, _ in placements))}
    sentences, words = [places[0][0] for _, places, _ in placements], corpus.words or ()
    n_compared = sum(len(places) for _, places, is_link in placements if is_link)
    return Placements(
        np.array(rows, dtype=np.int64).reshape(len(rows), most),
        np.array([number[kind] for kind, _, _ in placements], dtype=np.int64),
        np.array([is_link for _, _, is_link in placements], dtype=bool),
        tokens.lengths[sentences].astype(np.int64),
        np.array([_log_ways(places, len(words[places[0][0]])) for _, places, _ in placements]),
        n_links - n_compared,
    )


def _log_ways(places: Sequence[Place], n_words: int) -> float:
    """Return the log of the number of choices of a predicate and of so many fillers that are not too near to it."""
    _, (first, last), _ = places[0]
    near = range(max(first - LEAST_DISTANCE + 1, 0), min(last + LEAST_DISTANCE, n_words))
    return log(n_words) + log(max(comb(n_words - len(near), len(places)), 1))


# The likelihood of the slope is flat beyond, where all links are in the shortest, or longest, sentences of their kinds.
STEEPEST = 8.0


@dataclass(frozen=True)
class Resampled:
    """A mean of each head and direction over links, compared with drawn placements; shapes (2, layers, heads).

    Args:
        unlinked: Mean over the pairs of unlinked placements, as many of each kind as there are links, weighted by odds.
        z: Deviation of the mean over links from the mean of the draws, in standard deviations of the draws.
        p_value: Share of the draws whose largest z is at least as large.
    """

    unlinked: NDArray[np.float64]
    z: NDArray[np.float64]
    p_value: NDArray[np.float64]

    @classmethod
    def of(cls, values: NDArray[np.float32], placements: Placements, seed: int, n_draws: int) -> Resampled:
        """Compare links with as many placements of each kind; every kind needs a linked and an unlinked placement."""
        linked, n_links = placements.linked, len(placements.links)
        sums = at_one_length(placements.sums(values), placements)
        flat = sums.reshape(len(sums), -1)
        log_odds = slope_of(placements) * placements.log_ways
        generator = np.random.default_rng(seed)
        means, unlinked = np.zeros((1 + n_draws, flat.shape[1])), np.zeros(flat.shape[1])
        for rows in _resampled_kinds(placements):
            group_log_odds, is_link = log_odds[rows], linked[rows]
            drawn = draw(group_log_odds, int(is_link.sum()), n_draws, generator)
            means += np.vstack([is_link, drawn]) @ flat[rows] / n_links
            odds = np.exp(group_log_odds - group_log_odds[~is_link].max()) * ~is_link
            unlinked += is_link.sum() / n_links * (odds / odds.sum()) @ flat[rows]
        z, p_value = largest_z_test(means, 1e-6 * np.abs(flat).max(0))
        return cls(*(of_all.reshape(sums.shape[1:]) for of_all in (unlinked, z, p_value)))


def at_one_length(sums: NDArray[np.float64], placements: Placements) -> NDArray[np.float64]:
    """Return the sums of placements, shape (n, ...), with the effect of the lengths of their sentences removed.

    A line in 1 / n (the attention if all scores are equal) is fitted within the kinds of placements, for each head and
    direction. The fit uses links and unlinked pairs alike, so that p-values stay uniform if links are random. The mean
    over links does not change.
    """
    linked, sizes = placements.linked, placements.sizes
    uniform, within = sizes / placements.lengths, np.empty(len(sizes))
    for rows in _resampled_kinds(placements):
        within[rows] = uniform[rows] - uniform[rows].mean()
    spread = within @ within
    if spread < 1e-12 * len(within):  # all sentences of a kind have the same length
        return sums
    slope = np.tensordot(within, sums, 1) / spread
    centre = sizes * (uniform[linked].sum() / sizes[linked].sum())
    return sums - np.multiply.outer(uniform - centre, slope)


def slope_of(placements: Placements) -> float:
    """Return the maximum-likelihood slope of the log odds of being linked in the log of the number of ways.

    The likelihood is the one of conditional logistic regression: the choice of linked placements of each kind, given
    their number.
    """
    kinds = [placements.log_ways[rows] for rows in _resampled_kinds(placements)]
    n_linked = [int(placements.linked[rows].sum()) for rows in _resampled_kinds(placements)]
    of_links = placements.log_ways[placements.linked].sum()
    if all(np.ptp(ways) < 1e-12 for ways in kinds):
        return 0.0

    def loss(slope: float) -> float:
        of_all = sum(_log_sums(slope * ways, m)[0, m] for ways, m in zip(kinds, n_linked, strict=True))
        return float(of_all - slope * of_links)

    return float(minimize_scalar(loss, bounds=(-STEEPEST, STEEPEST), method="bounded").x)


def draw(log_odds: NDArray[np.float64], m: int, n_draws: int, generator: np.random.Generator) -> NDArray[np.bool_]:
    """Draw m of n, with a probability proportional to the product of their odds; shape (n_draws, n).

    Items are drawn or not, one after the other, given the number still to be drawn (Chen, Dempster & Liu 1994).
    """
    sums = _log_sums(log_odds, m)
    remaining = np.full(n_draws, m)
    drawn = np.zeros((n_draws, len(log_odds)), dtype=bool)
    for i, item_log_odds in enumerate(log_odds):
        some = remaining > 0
        chance = np.exp(item_log_odds + sums[i + 1, remaining[some] - 1] - sums[i, remaining[some]])
        drawn[some, i] = generator.random(len(chance)) < chance
        remaining -= drawn[:, i]
    return drawn


def _log_sums(log_odds: NDArray[np.float64], m: int) -> NDArray[np.float64]:
    """Return logs of elementary symmetric polynomials k of the odds from item i on, shape (n + 1, m + 1)."""
    sums = np.full((len(log_odds) + 1, m + 1), -np.inf)
    sums[:, 0] = 0
    for i in reversed(range(len(log_odds))):
        sums[i, 1:] = np.logaddexp(sums[i + 1, 1:], log_odds[i] + sums[i + 1, :-1])
    return sums


def _resampled_kinds(placements: Placements) -> Iterator[NDArray[np.intp]]:
    order = np.argsort(placements.stratum, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(placements.stratum[order])) + 1)


QUERIES = ("predicate", "filler")

DRAWS = 1000

# A role with fewer links that are compared is not tested by itself.
MIN_LINKS = 20

ALL = "all"


@dataclass(frozen=True)
class Pairs:
    """Pairs of words that are compared: the links, and unlinked pairs that look alike.

    Args:
        sentences: Index of each pair's sentence, shape (n_pairs,), ascending.
        tokens: The first piece of the side in its sentence and the first piece after it, for the predicate, then the
            filler; shape (n_pairs, 2, 2).
        stratum: Number of each pair's kind, shape (n_pairs,); pairs of a kind look alike.
        roles: Role of each link, empty for unlinked pairs, shape (n_pairs,), objects.
        placements: The compared placements, of all links together (`ALL`) and of each role.
    """

    sentences: NDArray[np.int64]
    tokens: NDArray[np.int64]
    stratum: NDArray[np.int64]
    roles: NDArray[Any]
    placements: Mapping[str, Placements] = field(default_factory=dict)

    @cached_property
    def slots(self) -> NDArray[np.int64]:
        """Index of each pair among the pairs of its sentence, shape (n_pairs,)."""
        first = np.searchsorted(self.sentences, self.sentences)
        return np.arange(len(self.sentences)) - first

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of all that changes their scores."""
        return hashlib.sha256(self.sentences.tobytes() + self.tokens.tobytes()).hexdigest()


def pairs_of(links: RoleLinks, tokens: Tokens, seed: int) -> Pairs:
    """Return the links and pairs of other sentences that look like them, at most `UNLINKED` times as many."""
    kind = _kinds(links, tokens)
    linked: dict[Place, str] = {}
    for link in links.links:
        linked.setdefault((link.sentence, link.predicate, link.filler), link.role)
    kinds = {place: place_kind for place in linked if (place_kind := kind(*place)) is not None}
    roles = sorted({linked[place] for place in kinds})
    unlinked = _unlinked_places(kinds, linked, tokens, kind)
    generator = np.random.default_rng(seed)
    drawn = {
        name: draw_placements([place for place in kinds if name in (ALL, linked[place])], kinds, unlinked, generator)
        for name in (ALL, *(roles if len(roles) > 1 else ()))
    }
    chosen = {place: linked[place] for place in kinds}
    for placements in drawn.values():
        chosen |= {place: "" for _, linked_places, is_link in placements for place in linked_places if not is_link}
    ordered = sorted(chosen, key=lambda place: place[0])
    number = {place_kind: i for i, place_kind in enumerate(dict.fromkeys(kinds.values()))}
    pieces = _pieces_of(tokens)
    ends = [
        [[pieces[sentence][first][0], pieces[sentence][last][1]] for first, last in sides]
        for sentence, *sides in ordered
    ]
    of_kind = [number[place_kind] for place in ordered if (place_kind := kind(*place)) is not None]
    sentences = np.array([place[0] for place in ordered], dtype=np.int64)
    index = {place: i for i, place in enumerate(ordered)}
    n_links = {name: sum(name in (ALL, linked[place]) for place in kinds) for name in drawn}
    return Pairs(
        sentences,
        np.array(ends, dtype=np.int64).reshape(-1, 2, 2),
        np.array(of_kind, dtype=np.int64),
        np.array([chosen[place] for place in ordered], dtype=object),
        {name: indexed(placements, index, links.corpus, tokens, n_links[name]) for name, placements in drawn.items()},
    )


def _kinds(links: RoleLinks, tokens: Tokens) -> Callable[[int, Span, Span], Kind | None]:
    """Return a function that returns the shared properties of pairs that look alike; None if a word was cut off."""
    pieces, columns = _pieces_of(tokens), links.corpus.columns.get("upos")

    def kind(sentence: int, predicate: Span, filler: Span) -> Kind | None:
        ends = [pieces[sentence].get(word) for side in (predicate, filler) for word in range(side[0], side[1] + 1)]
        if not all(ends):
            return None
        begins = [pieces[sentence][first][0] for first, _ in (predicate, filler)]
        n_pieces = [
            pieces[sentence][last][1] - begin for (_, last), begin in zip((predicate, filler), begins, strict=True)
        ]
        upos = [columns[sentence][first : last + 1] for first, last in (predicate, filler)] if columns else []
        sizes = [last - first for first, last in (predicate, filler)]
        # A part of speech tells the mark that ends a sentence; without it, the place does.
        n_words = len((links.corpus.words or ())[sentence])
        is_last = [] if columns else [last == n_words - 1 for _, last in (predicate, filler)]
        return distance(predicate, filler), *sizes, *begins, *n_pieces, *upos, *is_last

    return kind


def _unlinked_places(
    kinds: Mapping[Place, Kind],
    linked: Mapping[Place, str],
    tokens: Tokens,
    kind: Callable[[int, Span, Span], Kind | None],
) -> dict[Kind, dict[int, Place]]:
    """Return an unlinked pair of each kind of link by sentence; a kind includes the positions of both sides."""
    places_of_kind: dict[Kind, dict[int, Place]] = {link_kind: {} for link_kind in kinds.values()}
    shapes = {link_kind[:3] for link_kind in places_of_kind}
    for sentence, pieces in enumerate(_pieces_of(tokens)):
        for predicate, filler in _spans(max(pieces, default=-1) + 1, shapes):
            place = sentence, predicate, filler
            if place not in linked and (place_kind := kind(*place)) is not None and place_kind in places_of_kind:
                places_of_kind[place_kind][sentence] = place
    return places_of_kind


def _pieces_of(tokens: Tokens) -> list[dict[int, tuple[int, int]]]:
    return [_pieces(tokens, sentence) for sentence in range(tokens.n_sentences)]


def _pieces(tokens: Tokens, sentence: int) -> dict[int, tuple[int, int]]:
    """Return the first piece of each word of a sentence, and the first piece after it."""
    words = tokens.words[tokens.of_sentences(sentence, 1)]
    pieces: dict[int, tuple[int, int]] = {}
    for i, word in enumerate(words.tolist()):
        if word >= 0:
            pieces[word] = (pieces.get(word, (i, i))[0], i + 1)
    return pieces


def _spans(n_words: int, shapes: set[tuple[Any, ...]]) -> list[tuple[Span, Span]]:
    """Return all pairs of spans of some distances and sizes (last - first) in a sentence."""
    span_pairs = []
    for apart, size, other_size in sorted(shapes):
        for first in range(n_words - size):
            predicate = first, first + size
            begin = predicate[1] + apart if apart > 0 else first + apart - other_size
            if begin >= 0 and begin + other_size < n_words:
                span_pairs.append((predicate, (begin, begin + other_size)))
    return span_pairs


LARGEST = "largest"


def role_scores(pairs: Pairs) -> Measure:
    """Return the measure of the largest attention between the pieces of each pair, in both directions."""
    n_slots = int(pairs.slots.max()) + 1

    def of_corpus(tokens: Tokens, corpus: Corpus) -> Begin:
        starts = np.searchsorted(pairs.sentences, np.arange(tokens.n_sentences + 1))

        def begin(batch: SentenceBatch) -> StackedBlocks:
            ends = [pairs.tokens[starts[s] : starts[s + 1]].tolist() for s in batch.sentences.tolist()]
            return StackedBlocks(lambda attention: {LARGEST: of_slots(attention.probabilities, ends)}, axis=3)

        return begin

    def of_slots(maps: Tensor, ends: Sequence[Sequence[tuple[Span, Span]]]) -> Tensor:
        values = torch.zeros(len(maps), n_slots, 2, maps.shape[1], device=maps.device)
        for i, of_sentence in enumerate(ends):
            for slot, (predicate, filler) in enumerate(of_sentence):
                values[i, slot] = largest(maps[i], slice(*predicate), slice(*filler))
        return values

    return Measure("roles", of_corpus, {"version": 1, "pairs": pairs.fingerprint})


def largest(maps: Tensor, predicate: slice, filler: slice) -> Tensor:
    """Return the largest attention from predicate to filler and in the other direction, shape (2, heads)."""
    return torch.stack([maps[:, predicate, filler].amax((1, 2)), maps[:, filler, predicate].amax((1, 2))])


def role_rows(store: SumsStore, pairs: Pairs, seed: int, n_draws: int = DRAWS) -> Rows:
    """Return the rows of `roles.csv` from the sums of `role_scores`; see `rows_of_scores`."""
    index = torch.from_numpy(pairs.sentences), torch.from_numpy(pairs.slots)
    return rows_of_scores(store.by_sentence(LARGEST)[index].numpy(), pairs, seed, n_draws)


def rows_of_scores(values: NDArray[np.float32], pairs: Pairs, seed: int, n_draws: int = DRAWS) -> Rows:
    """Return the rows of `roles.csv`: each head in both directions, for all roles together and for each frequent role.

    `values` is the largest attention between the pieces of each pair, shape (n_pairs, 2, layers, heads). Columns:
    `query` is the attending side; `score` has a confidence interval over sentences; `unlinked` is the mean over
    unlinked pairs that look alike, weighted by the odds of the links' sentences; `z` is the deviation of the score from
    the mean of resampled placements, in their standard deviations; `p_value` is corrected for the number of heads and
    directions; `n` is the number of links, and `n_unmatched` the number of links excluded because no unlinked pairs
    look alike.
    """
    rows: Rows = []
    for role, placements in pairs.placements.items():
        links = placements.links
        if len(links) < (1 if role == ALL else MIN_LINKS):
            continue
        tested = Resampled.of(values, placements, seed, n_draws)
        sentences, n_links = pairs.sentences[links], np.bincount(pairs.sentences[links])
        for side, layer, head in np.ndindex(*values.shape[1:]):
            scores = values[links, side, layer, head].astype(np.float64)
            interval = mean_interval(np.bincount(sentences, scores), n_links)
            rows.append(
                {
                    "role": role, "query": QUERIES[side], "layer": layer + 1, "head": head + 1,
                    "score": float(scores.mean()), "low": interval[0], "high": interval[1],
                    "unlinked": float(tested.unlinked[side, layer, head]),
                    "z": float(tested.z[side, layer, head]),
                    "p_value": float(tested.p_value[side, layer, head]), "n": len(links),
                    "n_unmatched": placements.n_unmatched,
                }
            )  # fmt: skip
    return rows
