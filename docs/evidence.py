"""Write `evidence.md` from the table of sentences that the program can say of evidence."""

from __future__ import annotations

import re
from pathlib import Path

from probing.tables.evidence_sentences import SENTENCES

PAGE = Path(__file__).with_name("evidence.md")

HEAD = """# What is said of evidence, and when

*Which sentences can be printed, and what must hold for each?*

`make docs` writes this page from the table that `fit`, `probe`, `compare` and their reports take their sentences from;
what is not in it cannot be said. Words in brackets are filled in. [Concepts](concepts.md#evidence) explains flags,
[Intervals](notes/intervals.md) intervals and p-values, and [Eta squared](notes/eta_squared.md) shares of variance.
"""


def page() -> str:
    """Return the page."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for sentence in SENTENCES.values():
        groups.setdefault(sentence.group, []).append((_shown(sentence.text), sentence.rule.replace("|", "\\|")))
    return HEAD + "".join(f"\n## {_plain(group)}\n\n{_table(rows)}" for group, rows in groups.items())


def _table(rows: list[tuple[str, str]]) -> str:
    cells = [("is said", "if"), ("---", "---"), *rows]
    return "".join(f"| {said} | {rule} |\n" for said, rule in cells)


def _shown(text: str) -> str:
    """Return a sentence as it may stand in a table, with the names of what is filled in in brackets."""
    filled = re.sub(r"\{(\w+)[^}]*\}", lambda found: f"\\[{found[1].lower().replace('_', ' ')}\\]", text)
    return filled.strip().replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def _plain(group: str) -> str:
    return group.replace("`", "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
