"""Documents as runs of consecutive sentences, and the texts in which one of their sentences is edited."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from probing.corpus import Corpus, from_sentences
from probing.errors import UserError
from probing.studies.embeddings.tables import INSERT, REPLACE

Ints = NDArray[np.int64]

# Among how many sentences of the nearest length the one is drawn that replaces another.
NEAREST = 10
# How many runs of sentences are looked at for every document that is wanted, and how many others are read for each.
LOOKED_AT, OTHERS = 4, 2
# In which orders the sentences of a document are read: as written, shuffled, and the reverse of the latter.
N_ORDERS = 3


@dataclass(frozen=True)
class Documents:
    """Documents of equally many sentences.

    Args:
        sentences: The sentences of the corpus.
        measured: The sentences of the documents that are measured, by their index, shape (n_documents, n_sentences).
        others: The same of other documents, from which sentences come that replace others, and position parts.
        n_tokens: Number of tokens of each sentence without special ones; 0 for those of no document.
        n_too_long: Number of runs that were looked at and left out because the model does not take them whole.
        room: Most tokens that a document may gain by an edit, shape (n_documents,).
    """

    sentences: Sequence[str]
    measured: Ints
    others: Ints
    n_tokens: Ints
    n_too_long: int
    room: Ints

    @property
    def of_others(self) -> Corpus:
        """The other documents, a text each."""
        return from_sentences("other documents", [self.text(one.tolist()) for one in self.others])

    def text(self, sentences: Sequence[int]) -> str:
        """Return a text of some sentences, with spaces between."""
        return " ".join(self.sentences[i] for i in sentences)


def runs_of(corpus: Corpus, n_sentences: int) -> Ints:
    """Return all runs of so many consecutive sentences that do not overlap, shape (n_runs, n_sentences).

    Where the corpus has documents, a run lies in one, and the first run begins where the document does.

    Args:
        corpus: The corpus.
        n_sentences: Number of sentences of a run.
    """
    numbers = np.asarray(corpus.documents or np.zeros(len(corpus.sentences)), dtype=np.int64)
    found = [
        np.arange(first, first + n_sentences)
        for start, end in _spans(numbers)
        for first in range(start, end - n_sentences + 1, n_sentences)
    ]
    return np.stack(found) if found else np.empty((0, n_sentences), dtype=np.int64)


def _spans(numbers: Ints) -> list[tuple[int, int]]:
    cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    return list(pairwise(cuts))


def documents_of(
    corpus: Corpus, n_sentences: int, n_documents: int, inserts: bool, limit: int, n_special: int,
    n_tokens_of: Callable[[Sequence[str]], Ints], seed: int,
) -> Documents:  # fmt: skip
    """Draw documents that a model takes whole, and others beside them.

    Args:
        corpus: The corpus.
        n_sentences: Number of sentences of a document.
        n_documents: Most documents that are measured; at most half of those that there are.
        inserts: Whether sentences are inserted, for which there must be room.
        limit: Most tokens of a text.
        n_special: Number of special tokens of a text.
        n_tokens_of: Returns the number of tokens of sentences, without special ones.
        seed: Seed of the draw.

    Raises:
        UserError: If there are fewer than four documents.
    """
    runs = runs_of(corpus, n_sentences)
    runs = np.random.default_rng(seed).permutation(runs)[: LOOKED_AT * n_documents]
    n_tokens = np.zeros(len(corpus.sentences), dtype=np.int64)
    if len(runs):
        n_tokens[runs.ravel()] = n_tokens_of([corpus.sentences[i] for i in runs.ravel()])
    lengths = n_tokens[runs]
    room = limit - n_special - lengths.sum(1)
    fits = room >= (np.median(lengths, axis=1) if inserts and len(runs) else 0)
    kept, room = runs[fits], room[fits]
    if len(kept) < 4:
        in_documents = "" if corpus.documents is None else " of one document"
        raise UserError(
            f"`--sentences {n_sentences}`: expected at least 4 runs of {n_sentences} consecutive "
            f"sentences{in_documents} that the model takes whole ({limit} tokens), found {len(kept)} in "
            f"{corpus.name}, and {len(runs) - len(kept)} that are too long; give more text or fewer sentences."
        )
    n = min(n_documents, len(kept) // 2)
    others = kept[n : n + OTHERS * n_documents]
    return Documents(corpus.sentences, kept[:n], others, n_tokens, int((~fits).sum()), room[:n])


@dataclass(frozen=True)
class Texts:
    """All texts that are read of the measured documents, and which of them are compared.

    Args:
        corpus: The distinct texts.
        orders: Index in the document of the sentence at each place, shape (n_orders, n_documents, n_sentences).
        intact: The text of each document in each order, shape (n_orders, n_documents).
        edited: By the name of an edit, the text after it at each place, shape (n_orders, n_documents, n_places).
        alone: The text of each sentence alone, shape (n_documents, n_sentences).
        shares: Share of each sentence in the tokens of its document, shape (n_documents, n_sentences).
        donor_distance: By how many tokens a sentence and the one that replaces it differ, on average.
    """

    corpus: Corpus
    orders: Ints
    intact: Ints
    edited: Mapping[str, Ints]
    alone: Ints
    shares: NDArray[np.float64]
    donor_distance: float


def texts_of(documents: Documents, edits: Sequence[str], seed: int) -> Texts:
    """Return the documents in three orders, each with every edit at every place, and their sentences alone.

    The order that is shuffled is drawn for each document. In its reverse, every sentence stands at the opposite place
    and is edited in the same way there, so that what the first sentence says is what the last one says.

    Args:
        documents: The documents.
        edits: Names of the edits.
        seed: Seed of the orders, and of the sentences that replace others.
    """
    generator = np.random.default_rng([seed, 1])
    n_documents, n_sentences = documents.measured.shape
    index: dict[str, int] = {}

    def number(sentences: Sequence[int]) -> int:
        return index.setdefault(documents.text(sentences), len(index))

    shuffled = np.stack([generator.permutation(n_sentences) for _ in range(n_documents)])
    orders = np.stack([np.tile(np.arange(n_sentences), (n_documents, 1)), shuffled, shuffled[:, ::-1]])
    donors, inserted, distance = _donors(documents, generator)
    alone = np.array([[number([i]) for i in one] for one in documents.measured.tolist()])
    intact = np.zeros(orders.shape[:2], dtype=np.int64)
    edited: dict[str, list[list[list[int]]]] = {name: [[] for _ in orders] for name in edits}
    for which, order in enumerate(orders):
        for i, own in enumerate(order):
            text = documents.measured[i, own].tolist()
            intact[which, i] = number(text)
            others = donors[i, own].tolist()
            for name in edits:
                made = edited_at_all_places(text, name, others, int(inserted[i]))
                edited[name][which].append([number(one) for one in made])
    lengths = documents.n_tokens[documents.measured]
    return Texts(
        from_sentences("edited documents", index), orders, intact,
        {name: np.array(found) for name, found in edited.items()}, alone, lengths / lengths.sum(1, keepdims=True),
        distance,
    )  # fmt: skip


def edited_at_all_places(text: Sequence[int], edit: str, others: Sequence[int], inserted: int) -> list[list[int]]:
    """Return a text after an edit at its first place, at the second and so on; an insertion has one place more.

    Args:
        text: The sentences of the text.
        edit: Name of the edit.
        others: The sentence that replaces each.
        inserted: The sentence that is inserted.
    """
    if edit == INSERT:
        return [[*text[:at], inserted, *text[at:]] for at in range(len(text) + 1)]
    new = [[other] for other in others] if edit == REPLACE else [[] for _ in text]
    return [[*text[:at], *new[at], *text[at + 1 :]] for at in range(len(text))]


def _donors(documents: Documents, generator: np.random.Generator) -> tuple[Ints, Ints, float]:
    """Draw the sentence of another document that replaces each sentence, and the one that is inserted everywhere.

    Each is drawn from the `NEAREST` that are closest in length to what they replace, or to the document's median
    sentence, among those for which there is room; no sentence is drawn twice for a document.
    """
    pool = documents.others.ravel()
    lengths = documents.n_tokens[pool]
    drawn, inserted, distances = [], [], []
    for own, room in zip(documents.measured, documents.room, strict=True):
        wanted = documents.n_tokens[own]
        taken = np.zeros(len(pool), dtype=bool)
        found = []
        for length, most in [*zip(wanted, wanted + room, strict=True), (np.median(wanted), room)]:
            distance = np.abs(lengths - length) + np.where(taken | (lengths > most), lengths.max() + 1.0, 0.0)
            nearest = np.argsort(distance, kind="stable")[:NEAREST]
            # Among these, none that is taken or too long, if there is another one.
            good = nearest[distance[nearest] <= lengths.max()]
            at = generator.choice(good if len(good) else nearest[:1])
            taken[at] = True
            found.append(at)
        drawn.append(pool[found[:-1]])
        inserted.append(pool[found[-1]])
        distances.append(np.abs(lengths[found[:-1]] - wanted).mean())
    return np.stack(drawn), np.array(inserted), float(np.mean(distances))
