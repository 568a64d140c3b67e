"""Which module imports which: down only, and wandb from one room."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Its names are imported when they are asked for; its submodules do not know what it offers.
FACADE = "probing"


def _name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(file: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """Yield what a file imports, inside of functions too, but for what only type checkers read."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in known else node.module for name in inside)


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    files = {_name(file): file for file in (ROOT / "probing").rglob("*.py")}
    return {name: set(_imports(file, files)) - {name} for name, file in files.items()}


def test_no_module_imports_one_that_imports_it(imports: dict[str, set[str]]) -> None:
    graph = {name: {other for other in others if other in imports} - {FACADE} for name, others in imports.items()}
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" imports ".join(error.args[1][::-1]))
    assert len(order) >= len(imports) - 1 > 100


def test_only_commands_and_what_starts_them_know_commands(imports: dict[str, set[str]]) -> None:
    upward = {
        name: found
        for name, others in imports.items()
        if not name.startswith("probing.commands")
        if (found := {other for other in others if other.startswith("probing.commands")})
    }
    assert upward == {}


def test_wandb_is_imported_by_one_room(imports: dict[str, set[str]]) -> None:
    rooms = {name for name, others in imports.items() if any(other.split(".")[0] == "wandb" for other in others)}
    assert rooms
    assert all(name.startswith("probing.tracking.") for name in rooms)


def test_figures_are_written_in_one_place() -> None:
    writers = {
        _name(file)
        for file in (ROOT / "probing").rglob("*.py")
        if any(
            isinstance(node, ast.Attribute) and node.attr == "savefig"
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        )
    }
    assert writers == {"probing.figure_style"}
