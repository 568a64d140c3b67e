"""Files in the layouts of WNUT-17, GUM and PUD agree with an independent count of their lines."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from probing.corpus import load_corpus
from probing.corpus.columns import label_of

WORDS = ["dog", "Zürich", "don't", "naïve", ":)", "@user", "#tag", "http://t.co/x", "10 000", "कि", "$5", '"']


def iob(rng: random.Random) -> str:
    """Return WNUT's layout: a word, a tab and a tag; lines between sentences that are blank or have a tab alone."""
    tags = ["O", "O", "O", "B-person", "I-person", "B-creative-work"]
    lines = []
    for i in range(80):
        lines += [f"{word}{i % 7 or ''}\t{rng.choice(tags)}" for word in rng.choices(WORDS, k=rng.randint(1, 9))]
        lines.append(rng.choice(["", "\t", " "]))
    return "\n".join(lines)


def universal(rng: random.Random, documents: bool) -> str:
    """Return CoNLL-U with ranges of multiword tokens, empty nodes, comments and (as GUM has) documents."""
    lines = []
    for i in range(80):
        if documents and i % 9 == 0:
            lines.append(f"# newdoc id = GUM_x_{i}")
            lines.append("# meta::genre = interview")
        lines += [f"# sent_id = {i}", f"# text = sentence {i}"]
        n = rng.randint(1, 9)
        for number in range(1, n + 1):
            if number < n and rng.random() < 0.2:
                lines.append(f"{number}-{number + 1}\tdel\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No")
            relation = rng.choice(["nsubj", "obl:agent", "punct"])
            tag, word = rng.choice(["NOUN", "VERB", "PUNCT", "_"]), f"{rng.choice(WORDS)}{i % 7 or ''}"
            lines.append(
                f"{number}\t{word}\t{word}\t{tag}\tNN\t_\t{number - 1}\t{relation}\t_\tEntity=(1-person|SpaceAfter=No"
            )
            if rng.random() < 0.2:
                lines.append(f"{number}.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t{number}:conj\tCopyOf=1")
        lines.append("")
    return "\n".join(lines) + "\n"


def counted(text: str, column: int) -> tuple[Counter[tuple[str, str]], int, int]:
    """Count words with their labels, sentences and repeated sentences, line by line."""
    seen, found, n_repeated = set(), Counter[tuple[str, str]](), 0
    block: list[tuple[str, str]] = []
    for line in [*text.split("\n"), ""]:
        cells = line.split("\t")
        if line.strip():
            if column > 1 and (line[0] == "#" or not cells[0].isdigit()):
                continue
            block.append((cells[1 if column > 1 else 0], cells[column].strip()))
        elif block:
            words = tuple(word for word, _ in block)
            n_repeated += words in seen
            if words not in seen:
                found.update(block)
                seen.add(words)
            block = []
    return found, len(seen), n_repeated


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("layout", "name", "column"), [("wnut", "label", 1), ("gum", "upos", 3), ("pud", "deprel", 7)])
def test_a_file_agrees_with_an_independent_count(
    tmp_path: Path, layout: str, name: str, column: int, seed: int
) -> None:
    rng = random.Random(seed)
    text = iob(rng) if layout == "wnut" else universal(rng, documents=layout == "gum")
    path = tmp_path / f"{layout}.{'tsv' if layout == 'wnut' else 'conllu'}"
    path.write_text(text, encoding="utf-8")
    corpus = load_corpus(str(path))
    found, n_sentences, n_repeated = counted(text, column)
    assert (len(corpus.sentences), corpus.n_repeated) == (n_sentences, n_repeated)
    rows = zip(corpus.words or (), corpus.columns[name], strict=True)
    pairs = [pair for words, values in rows for pair in zip(words, values, strict=True)]
    assert Counter(pairs) == found
    assert sum(1 for _, value in pairs if not label_of(value)) == sum(n for (_, tag), n in found.items() if tag == "_")
    assert (corpus.documents is not None) is (layout == "gum")
