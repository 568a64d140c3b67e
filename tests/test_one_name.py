"""One thing has one name wherever users read of it: in help, errors, tables, pages, documentation and settings."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from pages import PAGES, ROOT, nodes_of

# What is said, and other names of the same thing, none of which is a name of an option or a column.
NAMES = {
    "randomly initialised": r"random weights|randomly initialized|untrained (?:twin|model|network|encoder)s?\b",
    "permuted or resampled": r"\bdealt (?:anew|again)\b",
    "unresolved": r"below (?:the )?resolution",
    "constant answer": r"constant (?:baseline|guess|prediction)|\bprior (?:baseline|answer|guess)",
    "without an intercept": r"bias-free|(?:missing|probe has no) bias",
    "hidden states": r"hidden activations|hidden representations",
    "ablation effect": r"knock-?out effect|effect of (?:the )?ablation",
}


def read_by_users() -> Iterator[tuple[str, str]]:
    """Yield where a text stands, and the text: help is made of docstrings, so that all texts of the code count."""
    for file in [*PAGES, *sorted((ROOT / "conf").rglob("*.yaml"))]:
        yield str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")
    for file in sorted((ROOT / "docs").glob("*.ipynb")):
        cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        yield str(file.relative_to(ROOT)), "\n".join("".join(cell["source"]) for cell in cells)
    for folder in ("probing", "tasks"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in nodes_of(file):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", node.value
        for file in sorted((ROOT / folder).rglob("*.js")):
            yield str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")


def others(text: str) -> list[str]:
    """Return the names in a text that are not the ones in use; a name may be broken between lines."""
    words = re.sub(r"\s+", " ", text)
    return [found for pattern in NAMES.values() for found in re.findall(pattern, words, re.IGNORECASE)]


def test_no_thing_has_two_names() -> None:
    found = list(read_by_users())
    assert len(found) > 1000
    assert [(where, names) for where, text in found if (names := others(text))] == []


@pytest.mark.parametrize("text", ["a model with random\n    weights", "An untrained twin", "The probe has no bias."])
def test_another_name_is_found(text: str) -> None:
    assert others(text)


def test_no_class_name_is_used_twice() -> None:
    files = [file for folder in ("probing", "tasks") for file in (ROOT / folder).rglob("*.py")]
    nodes = (node for file in files for node in nodes_of(file))
    n_classes = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert [name for name, n in n_classes.items() if n > 1] == []
