"""Reads .jsonl files: each line is a JSON object with the words or the text of a sentence, and labels."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from probing.corpus.rows import Rows, with_label
from probing.errors import UserError

# Possible names of the text; the first of these that the first line has is used for all lines.
_WORDS, _TEXT = ("words", "tokens"), ("text", "sentence")
_EXPECTED = '{"words": ["A", "word"], "labels": ["DET", "NOUN"]} or {"text": "A sentence.", "label": "short"}'


def read_json_lines(lines: Iterable[str], typed: str) -> Rows:
    """Return the sentences of a .jsonl file with their annotations.

    The text is the list `words` (or `tokens`), or else `text` (or `sentence`); the first line decides which. If
    sentences are lists of words, every other list has a value for each word, and `labels` is also available as `label`.
    Single values belong to the sentence. Objects, and lists if sentences are not lists of words, are left out. A value
    that a line lacks, or that is null, counts as missing.

    Args:
        lines: Lines of the file.
        typed: The option and its value, for messages.

    Raises:
        UserError: If a line is not such an object, or a list has another length than the words.
    """
    numbered = [(number, _object(line, number, typed)) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        return Rows([])
    key = next((name for name in (*_WORDS, *_TEXT) if name in numbered[0][1]), "")
    texts: list[Any] = []
    for number, row in numbered:
        text = row.get(key)
        is_text = isinstance(text, str)
        if key in _WORDS:
            is_text = isinstance(text, list) and all(isinstance(word, str) for word in text)
        if not is_text:
            what = f"as {key!r}, which the first line has" if key else "as 'words' or 'text'"
            raise UserError(
                f"`{typed}`: line {number} has no {'list of words' if key in _WORDS else 'sentence'} {what}; "
                f"expected lines such as {_EXPECTED}."
            )
        texts.append(text)
    names = dict.fromkeys(name for _, row in numbered for name in row if name != key)
    lists = [name for name in names if any(isinstance(row.get(name), list) for _, row in numbered)]
    columns = {name: [_of_words(row, name, key, number, typed) for number, row in numbered] for name in lists}
    scalars = [
        name for name in names if name not in lists and not any(_is_nested(row.get(name)) for _, row in numbered)
    ]
    of_sentences = {name: [row.get(name) for _, row in numbered] for name in scalars}
    return Rows(texts, with_label(columns) if key in _WORDS else {}, of_sentences)


def _object(line: str, number: int, typed: str) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
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


def _of_words(row: Mapping[str, Any], name: str, key: str, number: int, typed: str) -> list[Any]:
    """Return a line's values of its words."""
    values, n_words = row.get(name), len(row[key])
    if values is None or key not in _WORDS:
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
