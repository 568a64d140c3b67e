"""Layouts of a corpus: JSON lines, a word and its label in each line, CoNLL-U, and the built-in English prose."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from conllu.exceptions import ParseException
from conllu.parser import DEFAULT_FIELDS, parse_id_value, parse_line

from probing.corpus.columns import (
    LABEL,
    TEXT,
    WORDS,
    Column,
    Wanted,
    choose_labels,
    choose_sentences,
    choose_words,
    label_of_sentences,
    with_label,
)
from probing.corpus.rows import Rows
from probing.errors import UserError
from probing.runtime.files import parse_json

_EXPECTED = '{"words": ["A", "word"], "labels": ["DET", "NOUN"]} or {"text": "A sentence.", "label": "short"}'


def read_json_lines(lines: Iterable[str], wanted: Wanted) -> Rows:
    """Return the sentences of a .jsonl file with their annotations.

    The text is the list `words` (or `tokens`), or else `text` (or `sentence`); the first line decides which. Without
    these names, it is told by `probing.corpus.columns`, as labels are. If sentences are lists of words, every other
    list has a value for each word. Single values belong to the sentence. Objects, and lists if sentences are not lists
    of words, are left out. A value that a line lacks, or that is null, counts as missing.

    Args:
        lines: Lines of the file.
        wanted: Which columns the user names.

    Raises:
        UserError: If a line is not such an object, or a list has another length than the words.
    """
    typed = wanted.typed
    numbered = [(number, _object(line, number, typed)) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise UserError(f"`{typed}` holds no sentence: expected lines such as {_EXPECTED}.")
    names = dict.fromkeys(name for _, row in numbered for name in row)
    key = _key([row for _, row in numbered], names, wanted)
    are_words = isinstance(numbered[0][1].get(key), list) or (key in WORDS and key not in TEXT)
    texts: list[Any] = []
    for number, row in numbered:
        text = row.get(key)
        is_text = _are_words(text) if are_words else isinstance(text, str)
        if not is_text:
            what = f"as {key!r}, which the first line has" if key else "as 'words' or 'text'"
            way_out = "" if key else f", or {wanted.way_out(f'text={next(iter(names), 1)}')}"
            raise UserError(
                f"`{typed}`: line {number} has no {'list of words' if are_words else 'sentence'} {what}; "
                f"expected lines such as {_EXPECTED}{way_out}."
            )
        texts.append(text)
    names.pop(key)
    lists = [name for name in names if any(isinstance(row.get(name), list) for _, row in numbered)]
    columns = {name: [_of_words(row, name, texts[i], number, typed) for i, (number, row) in enumerate(numbered)]
               for name in lists if are_words}  # fmt: skip
    scalars = [
        name for name in names if name not in lists and not any(_is_nested(row.get(name)) for _, row in numbered)
    ]
    of_sentences = {name: [row.get(name) for _, row in numbered] for name in scalars}
    return labelled(key, texts, columns, of_sentences, wanted)


def _key(rows: Sequence[Mapping[str, Any]], names: Iterable[str], wanted: Wanted) -> str:
    """Return the name of the text; empty if it is not clear."""
    first = rows[0]
    if wanted.text is not None:
        return wanted.named([Column(name, []) for name in names], wanted.text, "text").name  # type: ignore[union-attr]
    if known := next((name for name in ("words", "tokens", *TEXT) if name in first), ""):
        return known
    of_words = [Column(name, [row.get(name) or [] for row in rows]) for name in names if _are_words(first.get(name))]
    if of_words:
        return choose_words(of_words, wanted).name
    texts = [Column(name, [[row.get(name) for row in rows]]) for name in names if isinstance(first.get(name), str)]
    found = choose_sentences(texts, wanted)
    return found.name if found else ""


def _are_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def labelled(
    key: str,
    texts: Sequence[Any],
    columns: Mapping[str, Sequence[Sequence[Any]]],
    of_sentences: Mapping[str, Sequence[Any]],
    wanted: Wanted,
    note: str = "",
    n_empty: int = 0,
) -> Rows:
    """Return rows of named columns, with that of the labels also as `label`.

    Args:
        key: Name of the column of sentences or words.
        texts: The sentences, as text or as lists of words.
        columns: For each column and sentence, a value for each word.
        of_sentences: For each column, a value for each sentence.
        wanted: Which columns the user names.
        note: What was chosen in reading, for `Rows`.
        n_empty: Number of rows without text.
    """
    if texts and isinstance(texts[0], list):
        regular = [Column(name, rows) for name, rows in columns.items() if _are_aligned(texts, rows)]
        label = choose_labels(regular, Column(key, texts), wanted)
        columns = with_label(columns, label)
    else:
        label = label_of_sentences([Column(name, [rows]) for name, rows in of_sentences.items()], wanted)
        of_sentences = with_label(of_sentences, label)
    places = {"": f"column {key}", **({LABEL[0]: label.place} if label else {})}
    return Rows(texts, columns, of_sentences, n_empty, places=places, note=note)


def _are_aligned(texts: Sequence[Any], rows: Sequence[Sequence[Any]]) -> bool:
    return all(len(text) == len(row) for text, row in zip(texts, rows, strict=True))


def _object(line: str, number: int, typed: str) -> Mapping[str, Any]:
    try:
        found = parse_json(line)
    except (ValueError, RecursionError) as error:
        reason = str(error).split(":")[0].lower() if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise UserError(
            f"`{typed}`: line {number} is not JSON ({reason}, in {line[:60]!r}); expected lines such as {_EXPECTED}."
        ) from None
    if not isinstance(found, dict):
        raise UserError(
            f"`{typed}`: line {number} is not a JSON object (found {line[:60]!r}); expected lines such as {_EXPECTED}."
        )
    return found


def _of_words(row: Mapping[str, Any], name: str, words: Sequence[str], number: int, typed: str) -> list[Any]:
    """Return a line's values of its words."""
    values, n_words = row.get(name), len(words)
    if values is None:
        return [None] * n_words
    if not isinstance(values, list) or len(values) != n_words or any(map(_is_nested, values)):
        found = f"{len(values)} values" if isinstance(values, list) and len(values) != n_words else f"{values!r:.60}"
        raise UserError(
            f"`{typed}`: line {number} has {found} as {name!r} for its {n_words} words; give a value for each word, "
            "null where there is none."
        )
    return values


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict | list)


# form, lemma, upos, xpos, feats, head, deprel, deps, misc
COLUMNS = DEFAULT_FIELDS[1:]

NEW_DOCUMENT = re.compile(r"#\s*(newdoc|begin document)\b")

# Return every column as written; the library would parse some into dicts and numbers.
_AS_WRITTEN = {field: lambda cells, i: cells[i] for field in DEFAULT_FIELDS}


def read_treebank(lines: Iterable[str], typed: str) -> dict[str, list[tuple[str, ...]]]:
    """Return each column of a CoNLL-U file: for each sentence, one value per syntactic word.

    Ranges of multiword tokens (`1-2`) and empty nodes (`1.1`) are left out.

    Args:
        lines: Lines of the file.
        typed: The option and its value, for messages.

    Raises:
        UserError: If a line is malformed, or if all forms were removed from the file.
    """
    sentences: list[list[tuple[str, ...]]] = [[]]
    for number, line in enumerate(lines, 1):
        if not line.strip():
            sentences.append([])
        elif not line.startswith("#"):
            try:
                index, *cells = _cells(line)
                if isinstance(word_id := parse_id_value(index), tuple):
                    continue
                if word_id != len(sentences[-1]) + 1:
                    raise ParseException(f"expected word {len(sentences[-1]) + 1} of the sentence, found {index!r}")
            except (ParseException, ValueError) as error:  # ValueError: a number with thousands of digits
                reason = str(error)[:200].rstrip(".")
                raise UserError(
                    f"`{typed}` is not CoNLL-U in line {number} ({reason}); correct it, or give a .txt file."
                ) from None
            sentences[-1].append(tuple(map(sys.intern, cells)))  # interned: a fiftieth of the memory
    if {cells[0] for sentence in sentences for cells in sentence} == {"_"}:
        raise UserError(
            f"`{typed}`: every form is `_`, as in treebanks whose text may not be published; "
            "insert the words first, as the treebank's README describes."
        )
    return {name: [tuple(cells[i] for cells in sentence) for sentence in sentences] for i, name in enumerate(COLUMNS)}


def treebank(lines: Sequence[str], typed: str) -> Rows:
    """Return the sentences of a CoNLL-U file with all of their columns, and their documents; see `read_treebank`."""
    columns = read_treebank(lines, typed)
    return Rows(list(map(list, columns["form"])), columns, documents=documents_of(lines), places={"": "column form"})


def documents_of(lines: Iterable[str]) -> list[int]:
    """Return the number of documents begun (`# newdoc`) up to each sentence that `read_treebank` returns."""
    found = [0]
    for line in lines:
        if not line.strip():
            found.append(found[-1])
        elif NEW_DOCUMENT.match(line):
            found[-1] += 1
    return found


def _cells(line: str) -> list[str]:
    line = line.rstrip(" ")
    cells = list(parse_line(line, DEFAULT_FIELDS, _AS_WRITTEN).values())
    # The library also accepts two spaces instead of a tab, and any number of columns.
    if len(cells) != len(DEFAULT_FIELDS) or "\t".join(cells) != line:
        raise ParseException(f"expected {len(DEFAULT_FIELDS)} columns with a tab between them and no double spaces")
    return cells


_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]*[A-Z])")
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|etc|cf|vs|[A-Z])\.)$")


def builtin_sentences() -> list[str]:
    """Return English prose of the Python language reference, from the standard library's `pydoc_data.topics`.

    Code, grammar, headings, tables and signatures are left out: only text that starts and ends like a sentence is kept.
    The text varies with the Python version, so state the version beside every figure made from it.
    """
    from pydoc_data.topics import topics

    return [
        sentence
        for name in sorted(topics)
        for paragraph in re.split(r"\n\s*\n", topics[name])
        if _is_prose(paragraph)
        for sentence in _sentences(" ".join(paragraph.split()))
    ]


def _is_prose(paragraph: str) -> bool:
    heading_or_table = re.search(r"^\s*(?:[+|]|([*=\-~^\"])\1{2})", paragraph, re.MULTILINE)
    return not heading_or_table and "::=" not in paragraph and ">>>" not in paragraph


def _sentences(paragraph: str) -> Iterator[str]:
    """Split a paragraph at sentence ends but not after abbreviations; keep the parts that look like sentences."""
    paragraph = re.sub(r"^(?:[*\-]|\d+\.|\[\d+\])\s+", "", paragraph)  # bullets and footnote marks
    parts: list[str] = []
    for part in _SENTENCE_END.split(paragraph):
        if parts and _ABBREVIATION.search(parts[-1]):
            parts[-1] += " " + part
        else:
            parts.append(part)
    return (part for part in parts if re.match(r"[\"'(]*[A-Z].*[.!?:][\"')]*$", part) and part.count(" ") >= 2)
