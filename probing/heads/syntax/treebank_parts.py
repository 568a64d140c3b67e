"""The parts of a survey that need a treebank: relations, trees, and the probe that reads nothing but attention.

Each part chooses heads or trains on sentences outside of the test part, reports on the test part, and compares with a
randomly initialised model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from probing.cache import Request
from probing.corpus import Corpus
from probing.heads.reading import Measure
from probing.heads.rows import Rows
from probing.heads.subject import TEST, UNTRAINED, Part, Reading, Subject
from probing.heads.sums import SumsStore
from probing.heads.syntax.arcs import Arcs, HeadPairs, MostAttended, arcs_of, has_arcs, sample_sentences
from probing.heads.syntax.attention_probe import Answers, answers_of, probe_row
from probing.heads.syntax.relations import LEAST_ARCS, head_relation_rows, relation_rows, scored
from probing.heads.syntax.trees import Trees, scored_trees, tree_rows

_Self = TypeVar("_Self")
Stores = Mapping[str, SumsStore]


class Scores(Protocol):
    """Arcs, and which of them each head gets right."""

    def of_sentences(self: _Self, chosen: NDArray[np.bool_]) -> _Self: ...  # noqa: D102

    def of_layers(self: _Self, layers: Sequence[int]) -> _Self: ...  # noqa: D102


_Scores = TypeVar("_Scores", bound=Scores)


def lacks_arcs(subject: Subject) -> str | None:
    """Return what a treebank part needs and the corpora lack.

    Raises:
        UserError: If a treebank is malformed.
    """
    for arcs, corpus, option in _both(subject):
        if arcs is None:
            return (
                f"dependency relations, the columns head and deprel of a .conllu file, and `{option} {corpus.name}` "
                "has none"
            )
    n_train, n_test = (len(arcs) for arcs in _sides(subject))
    if not n_train or not n_test:
        return f"arcs to choose heads by and others to test them on, and there are {n_train:,} and {n_test:,}"
    return None


def _lacks_relations(subject: Subject) -> str | None:
    if lack := lacks_arcs(subject):
        return lack
    train, test = (dict(zip(*np.unique(arcs.relations.astype(str), return_counts=True), strict=True))
                   for arcs in _sides(subject))  # fmt: skip
    most = max(min(int(n), int(test.get(name, 0))) for name, n in train.items())
    if most < LEAST_ARCS:
        return (
            f"a relation with at least {LEAST_ARCS} arcs in the sentences that heads are chosen on and in those that "
            f"they are tested on, and the most frequent one has {most} in the smaller part; give a longer --corpus, or "
            "another one as --test_corpus"
        )
    return None


def _both(subject: Subject) -> list[tuple[Arcs | None, Corpus, str]]:
    """Return the arcs of the corpus and of what is tested on; None where there are no columns of a treebank."""
    request, _, option = subject.tested
    found = [(subject.request.corpus, "--corpus"), (request.corpus, option)]
    return [(arcs_of(corpus, typed) if has_arcs(corpus) else None, corpus, typed) for corpus, typed in found]


def _sides(subject: Subject) -> list[Arcs]:
    """Return the arcs that heads are chosen on and those that they are tested on, without punctuation."""
    arcs = [one for one, _, _ in _both(subject) if one is not None]
    chosen = (subject.is_train, subject.tested[1])
    return [one.where(~one.is_punctuation & some[one.sentences]) for one, some in zip(arcs, chosen, strict=True)]


def _scores(
    subject: Subject,
    stores: Stores,
    measure: str,
    score: Callable[[SumsStore, Corpus, str], _Scores],
) -> tuple[tuple[_Scores, _Scores], tuple[_Scores, _Scores] | None]:
    """Return what heads are chosen on and reported on, and the same of the randomly initialised model."""
    request, is_test, option = subject.tested

    def of(model: str) -> tuple[_Scores, _Scores]:
        main = score(stores[_key(model, measure)], subject.request.corpus, "--corpus")
        if subject.asked.test is None:
            other = main
        else:
            other = score(stores[_key(model + TEST, measure)], request.corpus, option)
        train, test = main.of_sentences(subject.is_train), other.of_sentences(is_test)
        return train.of_layers(subject.layers), test.of_layers(subject.layers)

    return of(""), of(UNTRAINED) if subject.request.random_weights_seed is None else None


def _key(reading: str, measure: str) -> str:
    return f"{reading}/{measure}" if reading else measure


def _numbered(rows: Rows, layers: Sequence[int]) -> Rows:
    """Return rows whose layers are counted among those reported, with the numbers of the layers."""
    return [{**row, "layer": layers[row["layer"] - 1]} for row in rows]


def _relation_tables(subject: Subject, stores: Stores) -> dict[str, Rows]:
    own, untrained = _scores(subject, stores, MostAttended.name, scored)
    tables = {
        "relations": relation_rows(*own, untrained, seed=subject.seed),
        "head_relations": head_relation_rows(*own, seed=subject.seed),
    }
    return {name: _numbered(rows, subject.layers) for name, rows in tables.items()}


def _tree_tables(subject: Subject, stores: Stores) -> dict[str, Rows]:
    own, untrained = _scores(subject, stores, Trees.name, scored_trees)
    return {"trees": _numbered(tree_rows(*own, untrained), subject.layers)}


def _sample(subject: Subject, corpus: Corpus) -> NDArray[np.bool_]:
    return sample_sentences(corpus, subject.heads.n_layers * subject.heads.n_heads, subject.seed)


def _pairs(subject: Subject, request: Request) -> list[Measure]:
    return [HeadPairs(_sample(subject, request.corpus))]


def _probe_tables(subject: Subject, stores: Stores) -> dict[str, Rows]:
    corpus, (request, is_test, _) = subject.request.corpus, subject.tested

    def of(model: str) -> Answers:
        train = stores[_key(model, HeadPairs.name)]
        test = train if subject.asked.test is None else stores[_key(model + TEST, HeadPairs.name)]
        return answers_of((train, corpus, subject.is_train), (test, request.corpus, is_test))

    untrained = of(UNTRAINED) if subject.request.random_weights_seed is None else None
    return {"trees": [probe_row(of(""), untrained)]}


def _beside(subject: Subject, measures: Callable[[Request], list[Measure]]) -> list[Reading]:
    return [Reading(name, request, measures(request)) for name, request in subject.readings.items()]


TREEBANK_PARTS = (
    Part(
        "relations", _lacks_relations, lambda subject: [MostAttended()], _relation_tables,
        lambda subject: _beside(subject, lambda request: [MostAttended()]),
    ),
    Part(
        "trees", lacks_arcs, lambda subject: [Trees(subject.request.corpus)], _tree_tables,
        lambda subject: _beside(subject, lambda request: [Trees(request.corpus)]),
    ),
    Part(
        "attention_probe", lacks_arcs, lambda subject: _pairs(subject, subject.request), _probe_tables,
        lambda subject: _beside(subject, lambda request: _pairs(subject, request)), by_name_only=True,
    ),
)  # fmt: skip
