"""How large the project is: numbers that may fall, and rise only with a reason beside them in `budget.json`.

python tests/test_budget.py             # writes the numbers that have fallen
python tests/test_budget.py "REASON"    # also those that have risen, with the reason
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pages import ROOT, nodes_of

BUDGET = ROOT / "tests" / "budget.json"
# Words that name nothing, as parts of identifiers of the package.
VAGUE = (
    "asked", "found", "given", "held", "here", "kept", "left", "made", "measured", "one", "own", "said", "subject",
    "there", "those", "told", "typed", "usual", "wanted",
)  # fmt: skip
# The manual is counted as it is read, in `test_docs.py`.
DOCUMENTS = {"README": ["README.md"], "notes": ["docs/notes/*.md"]}


def python_files(room: str) -> Iterator[Path]:
    """Yield the Python files of a folder of the project."""
    yield from (path for path in sorted((ROOT / room).rglob("*.py")) if "__pycache__" not in path.parts)


def rooms() -> dict[str, list[Path]]:
    """Return the files of each folder of the package, and of `tasks` and `tests`."""
    by_room: dict[str, list[Path]] = {}
    for folder in ("probing", "tasks", "tests"):
        for path in python_files(folder):
            parts = path.relative_to(ROOT).parts[:-1]
            room = "/".join(parts[: 3 if parts[1:2] == ("studies",) else 2]) if folder == "probing" else folder
            by_room.setdefault(room, []).append(path)
    return by_room


def _lines(node: ast.stmt | ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or 0) + 1)


def code_lines(path: Path) -> int:
    """Return the number of lines with code, without docstrings, comments and empty lines."""
    lines = path.read_text(encoding="utf-8").splitlines()
    code = {i for i, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")}
    docstrings: set[int] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(_lines(node))
        elif isinstance(node, ast.Constant | ast.JoinedStr) and node.lineno != node.end_lineno:
            code.update(_lines(node))
    return len(code - docstrings)


def identifiers(path: Path) -> Iterator[str]:
    """Yield every identifier of a file where it stands; the same in every version of Python."""
    for node in nodes_of(path):
        for field in ("id", "attr", "arg", "name", "asname"):
            if isinstance(text := getattr(node, field, None), str):
                yield text


@cache
def words_of(identifier: str) -> list[str]:
    """Return the words of an identifier."""
    return re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", identifier).lower())


def vague_identifiers() -> dict[str, int]:
    """Return how often each vague word stands in identifiers of the package."""
    words: Counter[str] = Counter()
    for path in python_files("probing"):
        for identifier in identifiers(path):
            words.update(words_of(identifier))
    return {word: words[word] for word in VAGUE}


def import_lines() -> int:
    """Return the number of lines of imports in the package."""
    lines = {
        (path, line)
        for path in python_files("probing")
        for node in nodes_of(path)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for line in _lines(node)
    }
    return len(lines)


@cache
def measure() -> dict[str, int]:
    """Return all numbers, by name."""
    by_room = rooms()
    documents = {
        name: sum(len(path.read_text(encoding="utf-8").split()) for pattern in patterns for path in ROOT.glob(pattern))
        for name, patterns in DOCUMENTS.items()
    }
    names = (ROOT / "tests" / "public_names.txt").read_text(encoding="utf-8").splitlines()
    return {
        **{f"files of {room}": len(files) for room, files in by_room.items()},
        **{f"code lines of {room}": sum(map(code_lines, files)) for room, files in by_room.items()},
        "lines of imports": import_lines(),
        "public names": sum(bool(name) and not name.startswith("#") for name in names),
        **{f"words of {name}": n for name, n in documents.items()},
        **{f"identifiers with {word}": n for word, n in vague_identifiers().items()},
    }


def test_nothing_is_above_its_budget() -> None:
    budget, measured = json.loads(BUDGET.read_text(encoding="utf-8")), measure()
    above = [
        f"{name}: {n}, at most {budget['at most'].get(name)}"
        for name, n in measured.items() if n > budget["at most"].get(name, 0)
    ]  # fmt: skip
    assert not above, "lower these, or `python tests/test_budget.py REASON`:\n" + "\n".join(above)


def test_what_is_gone_has_no_budget_and_every_reason_is_of_a_number() -> None:
    budget = json.loads(BUDGET.read_text(encoding="utf-8"))
    assert set(budget["at most"]) == set(measure())
    assert set(budget["reasons"]) <= set(budget["at most"])


def test_lines_with_code_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(
        '"""A file.\n\nOf two lines.\n"""\n\nx = [  # a comment\n    1,\n]\n\n\ndef f():\n    """F."""\n    return x\n',
        encoding="utf-8",
    )
    assert code_lines(file) == 5


def write(reason: str | None = None) -> None:
    """Write the numbers that have fallen; with a reason also those that have risen."""
    limits = json.loads(BUDGET.read_text(encoding="utf-8"))
    before, reasons = limits["at most"], limits["reasons"]
    for name, n in (measured := measure()).items():
        if n > before.get(name, 0) and reason:
            reasons[name] = "; ".join(dict.fromkeys([*filter(None, reasons.get(name, "").split("; ")), reason]))
    limits["at most"] = {name: n if reason else min(n, before.get(name, n)) for name, n in measured.items()}
    limits["reasons"] = {name: of for name, of in reasons.items() if name in measured}
    BUDGET.write_text(json.dumps(limits, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(*sys.argv[1:])
