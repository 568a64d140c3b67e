"""The built-in corpus: English prose from Python's standard library."""

from __future__ import annotations

import re
from collections.abc import Iterator

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
