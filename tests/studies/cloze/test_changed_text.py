from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from probing.cache.tokens import Tokens
from probing.corpus import Corpus, from_words
from probing.studies.cloze.predictor import Masked, replaced, shuffled

pytestmark = pytest.mark.numeric


def text_of(n_sentences: int, seed: int = 0) -> Masked:
    """Sentences of words with one to three pieces between special tokens; each token's id is its own."""
    generator = np.random.default_rng(seed)
    words = []
    for _ in range(n_sentences):
        n_pieces = generator.integers(1, 4, size=generator.integers(1, 9))
        words.append([-1, *np.repeat(np.arange(len(n_pieces)), n_pieces).tolist(), -1])
    lengths = np.array([len(one) for one in words], dtype=np.int32)
    joined = np.concatenate(words).astype(np.int16)
    tokens = Tokens(lengths, np.arange(len(joined), dtype=np.int32), joined)
    return Masked(tokens, (generator.random(len(joined)) < 0.3) & ~tokens.special)


@pytest.mark.parametrize("n_together", [1, 2])
def test_words_change_places_whole_and_masks_go_with_them(n_together: int) -> None:
    text = text_of(60)
    made, before = shuffled(text, n_together, 1), text.tokens
    # A token's id is its row before: where it came from.
    came = made.tokens.input_ids
    assert sorted(came.tolist()) == list(range(before.n_tokens))
    assert (made.masked == text.masked[came]).all()
    assert (made.tokens.words == before.words[came]).all()
    assert (before.sentences[came] == before.sentences).all()
    assert (came[before.special] == np.flatnonzero(before.special)).all()
    n_moved = 0
    for i in range(before.n_sentences):
        here = before.of_sentences(i, 1)
        own = came[here][1:-1]
        runs = before.words[own] // n_together
        ends = np.flatnonzero(np.diff(runs, append=-9))
        assert len(ends) == len(np.unique(runs))  # each run in one place
        assert all((np.diff(part) == 1).all() for part in np.split(own, ends[:-1] + 1))  # in its own order
        n_moved += (own != np.sort(own)).any()
    assert n_moved > 20
    again, other = shuffled(text, n_together, 1), shuffled(text, n_together, 2)
    assert (again.tokens.input_ids == came).all()
    assert (other.tokens.input_ids != came).any()


def test_every_order_of_three_words_is_as_likely() -> None:
    n = 6000
    words = np.tile(np.array([-1, 0, 1, 2, -1], dtype=np.int16), n)
    tokens = Tokens(np.full(n, 5, dtype=np.int32), np.zeros(5 * n, dtype=np.int32), words)
    made = shuffled(Masked(tokens, np.zeros(5 * n, dtype=bool)), 1, 0).tokens.words.reshape(n, 5)[:, 1:4]
    counts = Counter(map(tuple, made.tolist()))
    assert len(counts) == 6
    assert max(abs(count - n / 6) for count in counts.values()) < 5 * np.sqrt(n * 5 / 36)


NAMES, NOUNS = ["Ada", "Bert", "Cleo"], ["river", "stone", "bread"]


@dataclass(frozen=True)
class Tagged:
    """A made-up treebank, its tokens, each word a piece, and the word of each token id."""

    corpus: Corpus
    text: Masked
    named: dict[int, str]

    def words(self, text: Masked, sentence: int) -> list[str]:
        return [self.named[i] for i in text.tokens.input_ids[text.tokens.of_sentences(sentence, 1)].tolist()][1:-1]


def tagged() -> Tagged:
    words: list[list[str]] = []
    tags: list[tuple[str, ...]] = []
    xpos: list[tuple[str, ...]] = []
    for i in range(30):
        name, noun = NAMES[i % 3], NOUNS[i // 3 % 3]
        words.append([f"w{i}", name, "saw", "the", noun, "."])
        tags.append(("X", "PROPN", "VERB", "DET", "NOUN", "PUNCT"))
        xpos.append(("X", "NNP", "V", "D", "NN", "."))
    words.append(["Ada", "and", "Ada", "slept", "."])  # there twice, and no noun
    tags.append(("PROPN", "CCONJ", "PROPN", "VERB", "PUNCT"))
    xpos.append(("NNP", "CC", "NNP", "V", "."))
    words.append(["x", "Dora", "saw", "the", "rivers", "."])  # no other plural
    tags.append(("X", "PROPN", "VERB", "DET", "NOUN", "PUNCT"))
    xpos.append(("X", "NNP", "V", "D", "NNS", "."))
    for i in range(30):  # a name that must not come a second time
        words.append([f"y{i}", "Ada", "saw", "Bert", "bread", "."])
        tags.append(("X", "PROPN", "VERB", "PROPN", "NOUN", "PUNCT"))
        xpos.append(("X", "NNP", "V", "NNP", "NN", "."))
    corpus = from_words("made up", words, {"upos": tags, "xpos": xpos})
    vocabulary = {word: i + 10 for i, word in enumerate(sorted({word for one in words for word in one}))}
    rows = [[-1, *range(len(one)), -1] for one in words]
    ids = [[1, *(vocabulary[word] for word in one), 2] for one in words]
    tokens = Tokens(
        np.array([len(row) for row in rows], dtype=np.int32), np.concatenate(ids).astype(np.int32),
        np.concatenate(rows).astype(np.int16),
    )  # fmt: skip
    masked = np.zeros(tokens.n_tokens, dtype=bool)
    masked[tokens.offsets[:5] + 2] = True  # the name of the first five sentences is to be predicted
    masked[tokens.offsets[5:30] + 3] = True
    named = {i: word for word, i in vocabulary.items()} | {1: "", 2: ""}
    return Tagged(corpus, Masked(tokens, masked), named)


def test_one_name_or_one_noun_gives_way_to_another_of_its_kind() -> None:
    made_up = tagged()
    texts, changed = replaced(made_up.text, made_up.corpus, 0)
    assert changed.tolist() == [False] * 5 + [True] * 25 + [False] * 2 + [True] * 30
    for name, tag, known in (("name_replaced", "PROPN", {*NAMES, "Dora"}), ("noun_replaced", "NOUN", {*NOUNS})):
        assert (texts[name].masked == made_up.text.masked).all()
        drawn = set()
        for i, own in enumerate(made_up.corpus.words or ()):
            found = made_up.words(texts[name], i)
            differ = [j for j in range(len(own)) if found[j] != own[j]]
            assert len(differ) == changed[i]
            assert {made_up.corpus.columns["upos"][i][j] for j in differ} <= {tag}
            assert not {found[j] for j in differ} & {*own}
            drawn |= {found[j] for j in differ}
        assert drawn == known


def test_masked_words_are_never_replaced() -> None:
    made_up = tagged()
    tokens = made_up.text.tokens
    texts, changed = replaced(Masked(tokens, ~tokens.special), made_up.corpus, 0)
    assert not changed.any()
    assert all((made.tokens.input_ids == tokens.input_ids).all() for made in texts.values())
