"""How often `attention` calls a head significant for role links and relations that mean nothing: false alarms.

    python -m benchmarks.null_heads --corpus dev.conllu --draws 200

The attention to the sentences of a treebank is read once. In each draw, links or syntactic heads are made up anew, and
tested by the functions of the command. A false alarm is a draw in which any head, or any relation, has a corrected
p-value of at most .05. The last design of each kind is not null: one head is made to follow some of what was made up.

Prints Markdown tables with exact (Clopper-Pearson) intervals over draws.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest

from probing.activations import Request, load, tokens_of
from probing.activations.store import cache_folder
from probing.heads.accumulation import AttentionReader, accumulate
from probing.heads.roles import ALL, LEAST_DISTANCE, LONGEST_SENTENCE, Link, Pairs, RoleLinks, pairs_of, rows_of_scores
from probing.heads.syntax import LEAST_ARCS, MOST_ATTENDED, ScoredArcs, head_relation_rows, relation_rows, scored
from probing.models import load_tokenizer, resolve_model
from probing.models.attention_heads import read_heads
from probing.tables.heads import beats_offset, finds_relation
from probing.text import Corpus, load_corpus
from probing.text.tokens import Tokens

ALARM = 0.05
# With 99 draws of the null, a p-value of at most .05 is one of 5 of 100 ranks.
N_NULL = 99
# The planted head gives so much more to so many of the links.
RAISED, SHARE = 0.3, 0.3


@dataclass(frozen=True)
class Answer:
    """What one draw of a design gave: whether something was significant, and if planted, the planted one."""

    alarm: bool
    found: bool | None = None


# --- role links ---


@dataclass(frozen=True)
class WordMaps:
    """The largest attention between the pieces of any two words, read once.

    Args:
        corpus: Short sentences.
        tokens: Their tokens.
        values: For each sentence, shape (words, words, 2, layers, heads): from the first word to the second, and back.
    """

    corpus: Corpus
    tokens: Tokens
    values: list[NDArray[np.float32]]

    @classmethod
    @torch.inference_mode()
    def of(cls, request: Request) -> WordMaps:
        """Read the sentences of a corpus, one at a time."""
        tokens = tokens_of(request, load_tokenizer(request.source))
        encoder, pad_token_id = load(request)
        heads = AttentionReader.of(encoder, pad_token_id, request.source.name).heads
        values = []
        for sentence in range(tokens.n_sentences):
            rows = tokens.of_sentences(sentence, 1)
            ids = torch.from_numpy(tokens.input_ids[rows].astype(np.int64))[None]
            maps: list[torch.Tensor] = []
            keep = partial(_keep, maps)
            read_heads(encoder, heads, keep, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
            inner = np.flatnonzero(tokens.words[rows] >= 0)
            starts = np.flatnonzero(np.diff(tokens.words[rows][inner], prepend=-1))
            own = torch.stack(maps).numpy()[:, :, inner][..., inner]
            largest = np.maximum.reduceat(np.maximum.reduceat(own, starts, axis=2), starts, axis=3)
            both = np.stack([largest, largest.swapaxes(2, 3)])
            values.append(np.moveaxis(both, (3, 4), (0, 1)))
        return cls(request.corpus, tokens, values)

    def of_pairs(self, pairs: Pairs) -> NDArray[np.float32]:
        """Return the scores of pairs of words, shape (n_pairs, 2, layers, heads)."""
        first = np.concatenate([[0], np.cumsum(self.tokens.lengths)])[pairs.sentences]
        words = self.tokens.words[first[:, None] + pairs.tokens[:, :, 0]]
        places = zip(pairs.sentences.tolist(), words.tolist(), strict=True)
        return np.stack([self.values[sentence][p, f] for sentence, (p, f) in places])


def _keep(maps: list[torch.Tensor], layer: int, probabilities: torch.Tensor, values: torch.Tensor) -> None:
    maps.append(probabilities[0].clone())


def made_up_links(
    corpus: Corpus, generator: np.random.Generator, n_predicates: int, n_fillers: Sequence[int]
) -> RoleLinks:
    """Return random links: predicates of each sentence, each with one of some numbers of random fillers."""
    links = []
    for sentence, words in enumerate(corpus.words or ()):
        for predicate in generator.permutation(len(words))[:n_predicates].tolist():
            others = [word for word in range(len(words)) if abs(word - predicate) >= LEAST_DISTANCE]
            fillers = generator.permutation(others)[: generator.choice(n_fillers)].tolist()
            links += [Link(sentence, (predicate, predicate), "x", (int(filler), int(filler))) for filler in fillers]
    return RoleLinks(corpus, tuple(dict.fromkeys(links)))


def of_roles(
    maps: WordMaps, n_linked: int, n_predicates: int, n_fillers: Sequence[int], planted: bool, seed: int
) -> Answer:
    """Make up links in some of the sentences, and test them."""
    generator = np.random.default_rng(seed)
    links = made_up_links(maps.corpus, generator, n_predicates, n_fillers)
    chosen = set(generator.permutation(maps.tokens.n_sentences)[:n_linked].tolist())
    links = replace(links, links=tuple(link for link in links.links if link.sentence in chosen))
    pairs = pairs_of(links, maps.tokens, seed)
    values = maps.of_pairs(pairs)
    layer, head = (int(generator.integers(n)) for n in values.shape[2:])
    if planted:
        raised = (pairs.roles != "") & (generator.random(len(values)) < SHARE)
        values[raised, 0, layer, head] += RAISED
    rows = [row for row in rows_of_scores(values, pairs, seed, N_NULL) if row["role"] == ALL]
    alarms = [row for row in rows if row["p_value"] <= ALARM]
    own = [row for row in alarms if (row["query"], row["layer"], row["head"]) == ("predicate", layer + 1, head + 1)]
    return Answer(bool(alarms), bool(own) if planted else None)


ROLES: Mapping[str, tuple[int, Sequence[int], bool]] = {
    "a predicate with 1 filler": (1, [1], False),
    "a predicate with 3 fillers": (1, [3], False),
    "a predicate with 1 or 4 fillers": (1, [1, 4], False),
    "two predicates with 2 fillers each": (2, [2], False),
    "planted: a predicate with 1 or 4 fillers": (1, [1, 4], True),
}


# --- relations ---


@dataclass(frozen=True)
class Treebank:
    """The arcs of a treebank and the words that heads attend to most, read once.

    Args:
        scored: Of all sentences.
        n_words: Number of words of each sentence.
    """

    scored: ScoredArcs
    n_words: NDArray[np.int64]

    @classmethod
    def of(cls, request: Request) -> Treebank:
        """Read a treebank, through the cache."""
        stores = accumulate(request, [MOST_ATTENDED], cache_folder(None), {"logger": False})
        store = stores[MOST_ATTENDED.name]
        n_words = np.array([len(words) for words in request.corpus.words or ()], dtype=np.int64)
        return cls(scored(store, request.corpus), n_words)

    def with_heads(self, heads: NDArray[np.int64], kept: NDArray[np.bool_]) -> ScoredArcs:
        """Return some of the arcs with other syntactic heads."""
        assert self.scored.predicted is not None
        arcs = replace(self.scored.arcs, heads=heads)
        return ScoredArcs(arcs, self.scored.predicted == heads[:, None, None, None], self.scored.predicted).where(kept)


Heads = Callable[[Treebank, np.random.Generator], tuple[NDArray[np.int64], NDArray[np.bool_]]]


def random_words(bank: Treebank, generator: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return any other word of the sentence as the head of each dependent, each as likely."""
    arcs = bank.scored.arcs
    n = bank.n_words[arcs.sentences]
    steps = 1 + (generator.random(len(arcs)) * (n - 1)).astype(np.int64)
    return (arcs.dependents + steps) % n, np.ones(len(arcs), dtype=bool)


def permuted(bank: Treebank, generator: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the heads of each sentence permuted among its dependents; without sentences for which none was found.

    Permutations are drawn until no word is its own head, which is not how the command makes them.
    """
    arcs = bank.scored.arcs
    heads, kept = arcs.heads.copy(), np.ones(len(arcs), dtype=bool)
    starts = np.flatnonzero(np.diff(arcs.sentences, prepend=-1))
    for start, stop in zip(starts, [*starts[1:], len(arcs)], strict=True):
        own = arcs.heads[start:stop]
        for _ in range(200):
            heads[start:stop] = generator.permutation(own)
            if (heads[start:stop] != arcs.dependents[start:stop]).all():
                break
        else:
            kept[start:stop] = False
    return heads, kept


def by_number(bank: Treebank, generator: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return heads drawn with replacement from those of the sentence: words that head many are drawn often."""
    arcs = bank.scored.arcs
    first = np.searchsorted(arcs.sentences, arcs.sentences)
    n = np.searchsorted(arcs.sentences, arcs.sentences, side="right") - first
    heads = arcs.dependents.copy()
    for _ in range(200):
        own = np.flatnonzero(heads == arcs.dependents)
        heads[own] = arcs.heads[first[own] + (generator.random(len(own)) * n[own]).astype(np.int64)]
    return heads, np.isin(arcs.sentences, arcs.sentences[heads == arcs.dependents], invert=True)


RELATIONS: Mapping[str, tuple[Heads, bool]] = {
    "any other word": (random_words, False),
    "words by their number of dependents": (by_number, False),
    "permuted in each sentence": (permuted, False),
    "planted: permuted, and one relation follows a head": (permuted, True),
}


def of_relations(bank: Treebank, make: Heads, planted: bool, seed: int) -> dict[str, Answer]:
    """Make up syntactic heads, choose attention heads on one half of the sentences, and test them on the other."""
    generator = np.random.default_rng(seed)
    heads, kept = make(bank, generator)
    names, counts = np.unique(bank.scored.arcs.relations.astype(str), return_counts=True)
    relation = str(generator.choice(names[counts > 3 * LEAST_ARCS]))
    if planted:
        assert bank.scored.predicted is not None
        layer, head = (int(generator.integers(n)) for n in bank.scored.predicted.shape[1:3])
        follows = (bank.scored.arcs.relations == relation) & (generator.random(len(heads)) < SHARE)
        heads[follows] = bank.scored.predicted[follows, layer, head, 0]
    both = bank.with_heads(heads, kept)
    is_train = generator.permutation(len(bank.n_words)) < len(bank.n_words) / 2
    parts = both.of_sentences(is_train), both.of_sentences(~is_train)
    rows = relation_rows(*parts, seed=seed, n_draws=N_NULL)
    by_head = [] if planted else head_relation_rows(*parts, seed=seed, n_draws=N_NULL)
    tests: Mapping[str, tuple[list[Any], Callable[[Any], bool]]] = {
        "best offset": (rows, beats_offset),
        "permuted heads": (rows, _beats_permuted),
        "both": (rows, finds_relation),
        "permuted heads, a relation for each head": (by_head, _beats_permuted),
        "both, a relation for each head": (by_head, finds_relation),
    }
    return {
        name: Answer(any(map(holds, of)), any(holds(row) for row in of if row["relation"] == relation))
        for name, (of, holds) in tests.items()
        if of
    }


def _beats_permuted(row: Mapping[str, Any]) -> bool:
    return bool(row["p_permuted"] <= ALARM)


# --- what is printed ---


def line(design: str, test: str, answers: Sequence[bool]) -> str:
    """Return a row of a table: how often something held, with its interval."""
    n = sum(answers)
    ends = binomtest(n, len(answers)).proportion_ci(method="exact")
    share = f"{n / len(answers):.1%} | {ends.low:.1%} to {ends.high:.1%}"
    return f"| {design} | {test} | {n} of {len(answers)} | {share} |"


HEADING = "| made up | test | significant | share | 95% |\n|---|---|---|---|---|"


def report_roles(maps: WordMaps, n_linked: int, n_draws: int, seed: int) -> list[str]:
    """Return the lines of the table of role links."""
    lines = []
    for name, (n_predicates, n_fillers, planted) in ROLES.items():
        answers = [of_roles(maps, n_linked, n_predicates, n_fillers, planted, seed + i) for i in range(n_draws)]
        held = [bool(one.found) if planted else one.alarm for one in answers]
        lines.append(line(name, "the planted head" if planted else "any head", held))
    return lines


def report_relations(bank: Treebank, n_draws: int, seed: int) -> list[str]:
    """Return the lines of the table of relations."""
    lines = []
    for name, (make, planted) in RELATIONS.items():
        answers = [of_relations(bank, make, planted, seed + i) for i in range(n_draws)]
        for test in answers[0]:
            held = [bool(one[test].found) if planted else one[test].alarm for one in answers]
            lines.append(line(name, test, held))
    return lines


def sampled(corpus: Corpus, n: int, longest: int, seed: int, shortest: int = 6) -> Corpus:
    """Return some sentences of a corpus with 6 words or more."""
    fit = [i for i, words in enumerate(corpus.words or ()) if shortest <= len(words) <= longest]
    return corpus.subset(sorted(np.random.default_rng(seed).permutation(fit)[:n].tolist()))


def main() -> None:
    """Run the benchmark on a treebank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", required=True, help="a treebank, .conllu")
    parser.add_argument("--model", default="minilm")
    for name, value in (("draws", 200), ("role_sentences", 300), ("linked", 200), ("sentences", 600), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    start = time.perf_counter()
    treebank, source = load_corpus(options.corpus), resolve_model(options.model)
    print(HEADING, flush=True)
    short = sampled(treebank, options.role_sentences, LONGEST_SENTENCE, options.seed)
    # As in a file of links, which has no parts of speech.
    maps = WordMaps.of(Request(source, replace(short, columns={}), ()))
    print(*report_roles(maps, options.linked, options.draws, options.seed), sep="\n", flush=True)
    bank = Treebank.of(Request(source, sampled(treebank, options.sentences, 40, options.seed), ()))
    print(*report_relations(bank, options.draws, options.seed), sep="\n", flush=True)
    print(f"\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
