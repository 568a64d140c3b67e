"""Text that was changed around its masked words: in another order, or with a name or a noun replaced by another."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.corpus.files import decode_lines, read_bytes
from probing.corpus.splits import MASK
from probing.errors import UserError
from probing.readouts.model_output import Prompt, prompt_of, tokens_of_prompts
from probing.studies.cloze.tables import REPLACED

# Number of neighbours that stay together, by the name of the change.
SHUFFLED = {"words_shuffled": 1, "pairs_shuffled": 2}


@dataclass(frozen=True)
class Masked:
    """Sentences with the words that are to be predicted.

    Args:
        tokens: The table of tokens, without masks.
        masked: Which tokens are masked, shape (n_tokens,), bool.
    """

    tokens: Tokens
    masked: NDArray[np.bool_]


def shuffled(text: Masked, n_together: int, seed: int) -> Masked:
    """Return each sentence with its words in random order.

    Special tokens stay in their places, the pieces of a word stay together, and masks move with their words, so that
    the same words are predicted. A sentence is divided into runs of `n_together` words from its beginning; a run keeps
    its order.

    Args:
        text: The sentences.
        n_together: Number of neighbouring words that stay together.
        seed: Seed of the draw.
    """
    tokens = text.tokens
    slots = np.flatnonzero(~tokens.special)
    sentences, runs = tokens.sentences[slots], tokens.words[slots].astype(np.int64) // n_together
    keys = sentences.astype(np.int64) * (int(runs.max(initial=0)) + 1) + runs
    _, of_slot = np.unique(keys, return_inverse=True)
    chance = np.random.default_rng(seed).permutation(int(of_slot.max(initial=-1)) + 1)
    order = np.arange(tokens.n_tokens)
    order[slots] = slots[np.lexsort((slots, chance[of_slot], sentences))]
    return Masked(Tokens(tokens.lengths, tokens.input_ids[order], tokens.words[order]), text.masked[order])


@dataclass(frozen=True)
class _Word:
    """A word of a sentence.

    Args:
        rows: Its first token, and the one after its last.
        form: The word without capitals.
        kind: What another word must share with it to stand in its place: universal and language-specific part of
            speech, number of pieces, whether it begins the sentence, and whether it has a capital.
        tag: Its universal part of speech.
        masked: Whether one of its pieces is masked.
    """

    rows: tuple[int, int]
    form: str
    kind: tuple[Any, ...]
    tag: str
    masked: bool


def replaced(text: Masked, corpus: Corpus, seed: int) -> tuple[dict[str, Masked], NDArray[np.bool_]]:
    """Return the text with a name replaced by another name, and with a noun replaced by another noun.

    In each sentence, one name is drawn among the names that are not masked, occur once and can be replaced; one noun is
    drawn in the same way. Each gives a text of its own, in which it is replaced by another word of the corpus that is
    of the same kind (see `_Word`) and does not occur in the sentence. Sentences without such a name or without such a
    noun are left as they are.

    Args:
        text: The sentences.
        corpus: The same sentences, with the column `upos`, and `xpos` if there is one.
        seed: Seed of every draw.

    Returns:
        The texts by the name of the change; and which sentences were changed, shape (n_sentences,), bool.
    """
    generator = np.random.default_rng(seed)
    sentences = list(_words(text, corpus))
    others: dict[tuple[Any, ...], dict[str, tuple[int, int]]] = {}
    for word in (word for words in sentences for word in words):
        others.setdefault(word.kind, {}).setdefault(word.form, word.rows)
    ids = {name: text.tokens.input_ids.copy() for name in REPLACED}
    changed = np.zeros(len(sentences), dtype=bool)
    for i, words in enumerate(sentences):
        times = Counter(word.form for word in words)
        found: dict[str, tuple[_Word, list[str]]] = {}
        for name, tag in REPLACED.items():
            usable = [word for word in words if word.tag == tag and not word.masked and times[word.form] == 1]
            choices = [(word, there) for word in usable if (there := sorted(others[word.kind].keys() - times.keys()))]
            if choices:
                found[name] = choices[generator.integers(len(choices))]
        if len(found) == len(REPLACED):
            changed[i] = True
            for name, (word, there) in found.items():
                start, stop = others[word.kind][there[generator.integers(len(there))]]
                ids[name][slice(*word.rows)] = text.tokens.input_ids[start:stop]
    texts = {
        name: Masked(Tokens(text.tokens.lengths, own, text.tokens.words), text.masked) for name, own in ids.items()
    }  # fmt: skip
    return texts, changed


def _words(text: Masked, corpus: Corpus) -> Iterator[list[_Word]]:
    """Yield the words of each sentence that the table of tokens has whole or in part."""
    tokens, tags = text.tokens, corpus.columns["upos"]
    assert corpus.words is not None  # what has tags is divided into words
    for i in range(tokens.n_sentences):
        here = tokens.of_sentences(i, 1)
        words = tokens.words[here]
        begins = here.start + np.flatnonzero(tokens.first_pieces[here])
        found = []
        for start in begins.tolist():
            word = int(tokens.words[start])
            stop = start + int((words == word).sum())
            form, tag = corpus.words[i][word], tags[i][word]
            kind = tag, _fine_tag(corpus, i, word), stop - start, word == 0, form[:1].isupper()
            found.append(_Word((start, stop), form.casefold(), kind, tag, bool(text.masked[start:stop].any())))
        yield found


def _fine_tag(corpus: Corpus, sentence: int, word: int) -> str:
    """Return the language-specific tag (`xpos`), which may tell plural from singular; empty without this column."""
    return corpus.columns["xpos"][sentence][word] if "xpos" in corpus.columns else ""


# The name of the pairs that come with the program.
BUILTIN = "builtin"
READABLE = "builtin, or a file of lines `text with [MASK] TAB good TAB bad TAB group`"


@dataclass(frozen=True)
class Pair:
    """A text with a mask, and two words for it.

    Args:
        line: Number of its line, from 1.
        text: The text, with `[MASK]` once.
        good: The word that suits the text.
        bad: The word that does not.
        group: What the pair is about.
    """

    line: int
    text: str
    good: str
    bad: str
    group: str


@dataclass(frozen=True)
class Prompts:
    """Pairs as the model reads them.

    Args:
        pairs: The pairs.
        tokens: The table of tokens of their texts, with the model's mask token.
        masks: Index of the mask token in each text, shape (n_pairs,).
        words: Id of the good and of the bad word, shape (n_pairs, 2).
        left_out: Why pairs were left out, with their number.
    """

    pairs: Sequence[Pair]
    tokens: Tokens
    masks: NDArray[np.int64]
    words: NDArray[np.int64]
    left_out: dict[str, int]


def read_pairs(file: str, typed: str | None = None) -> tuple[list[Pair], int]:
    """Return the distinct pairs of a file, and the number of repeated ones.

    Args:
        file: The file, or `builtin`.
        typed: How the user named it, for messages; as the argument of `cloze` by default.

    Raises:
        UserError: If it cannot be read, or a line is no pair.
    """
    typed = typed or f"cloze {file}"
    if file == BUILTIN:
        lines = files(__package__).joinpath("pairs.tsv").read_text(encoding="utf-8").splitlines()
    else:
        lines = decode_lines(read_bytes(Path(file), typed, READABLE), typed)
    found = list(_pairs_of(lines, typed))
    if not found:
        raise UserError(f"`{typed}` holds no pair: it is empty or blank; give {READABLE}.")
    distinct = {(pair.text, pair.good, pair.bad, pair.group): pair for pair in reversed(found)}
    return sorted(distinct.values(), key=lambda pair: pair.line), len(found) - len(distinct)


def fingerprint_of(pairs: Sequence[Pair]) -> str:
    """Return the SHA-256 of the pairs, which does not depend on the file that they are in."""
    cells = ("\t".join((pair.text, pair.good, pair.bad, pair.group)) for pair in pairs)
    return hashlib.sha256("\n".join(cells).encode()).hexdigest()


def _pairs_of(lines: Iterable[str], typed: str) -> Iterator[Pair]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        cells = [" ".join(cell.split()) for cell in line.split("\t")]
        where = f"`{typed}`, line {number}"
        if len(cells) != 4 or not all(cells):
            raise UserError(
                f"{where}: expected a text, a good word, a bad word and a group with a tab between them, found "
                f"{len(list(filter(None, cells)))} of them; write for example `They [MASK] here. TAB are TAB is TAB "
                "agreement`."
            )
        if (n := cells[0].count(MASK)) != 1:
            raise UserError(f"{where}: the text has {MASK} {n} times; write it once, where the word belongs.")
        yield Pair(number, *cells)


def prompts_of(tokenizer: Any, pairs: Sequence[Pair], longest: int, typed: str) -> Prompts:
    """Return the pairs of which both words are single pieces of the vocabulary, in their context.

    How a text is tokenised, `probing.readouts.model_output` says.

    Args:
        tokenizer: A fast tokenizer with a mask token.
        pairs: The pairs.
        longest: Most tokens that the model reads.
        typed: The command as the user typed it, for messages.

    Raises:
        UserError: If no pair is left.
    """
    kept: list[tuple[Pair, Prompt]] = []
    left_out: Counter[str] = Counter()
    for pair in pairs:
        found = prompt_of(tokenizer, pair.text, (pair.good, pair.bad), longest)
        if isinstance(found, str):
            left_out[found] += 1
        else:
            kept.append((pair, found))
    if not kept:
        said = "; ".join(f"{reason}: {n}" for reason, n in left_out.items())
        raise UserError(f"`{typed}` has no pair that the model can be asked about ({said}); give other words.")
    asked, prompts = zip(*kept, strict=True)
    masks, answers = (np.array([getattr(one, name) for one in prompts]) for name in ("mask", "answers"))
    return Prompts(asked, tokens_of_prompts(prompts), masks, answers, dict(left_out))
