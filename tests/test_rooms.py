"""Which module imports which: down only, and loggers from one room."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from pages import ROOT, nodes_of

# The facade, whose names are imported when they are asked for, and the table of commands stand above all rooms.
ABOVE = {"probing", "probing.__main__"}
# A module as a string, alone or with the name of an object.
PLACE = re.compile(r"(probing(?:\.\w+)+)(?::\w+)?")


def _name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(file: Path, known: Mapping[str, Path], *, of_types: bool) -> Iterator[str]:
    """Yield what a file imports, also in functions and by a string, and on request what only type checkers read.

    What a package imports from its own folder in functions is left out: a study is declared above what it measures.
    """
    above = {id(node) for node in nodes_of(file)[0].body}  # type: ignore[attr-defined]
    own = f"{_name(file)}."
    only_types = {
        inside
        for node in nodes_of(file)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for inside in ast.walk(statement)
    }
    for node in nodes_of(file):
        if node in only_types and not of_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if id(node) not in above and node.module.startswith(own):
                continue
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in known else node.module for name in inside)
        elif isinstance(node, ast.Constant) and (place := PLACE.fullmatch(str(node.value))) and place[1] in known:
            yield place[1]


def _imports_of_all(*, of_types: bool) -> dict[str, set[str]]:
    files = {_name(file): file for file in (ROOT / "probing").rglob("*.py")}
    return {name: set(_imports(file, files, of_types=of_types)) - {name} for name, file in files.items()}


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    return _imports_of_all(of_types=False)


# From the ground up: a room imports rooms of lower floors, and its own files. A study is a room of its own.
FLOORS = (
    {"errors", "registry"},
    {"runtime", "statistics"},
    {"cli"},
    {"models", "results"},
    {"text", "tracking"},
    {"activations"},
    {"data"},
    {"tables"},
    {"probes"},
    {"runs"},
    {"downstream", "heads"},
    {"page", "interventions"},
    {"exports"},
    {"studies"},  # all studies but those below
    # Studies of the runs of others, the commands that are no studies, and what measures inside a training.
    {"studies.claims", "studies.compare", "studies.checkpoints", "studies.sweep", "studies.triggers", "commands",
     "callbacks"},
    # A study that measures the checkpoints of a run as `checkpoints` does those of a training.
    {"studies.tuning_effect"},
)  # fmt: skip


def _room(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[1:3] if parts[1] == "studies" else parts[1:2])


def _floor(room: str) -> int:
    named = {name: floor for floor, rooms in enumerate(FLOORS) for name in rooms}
    return named[room] if room in named else named[room.split(".")[0]]


def _inside(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return which of the package's modules each module of a room imports."""
    # The folder of all studies holds nothing but its docstring.
    rooms = set(imports) - ABOVE - {"probing.studies"}
    return {name: imports[name] & (rooms | ABOVE) for name in rooms}


@pytest.fixture(scope="module")
def inside(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    return _inside(imports)


def test_no_module_imports_one_that_imports_it(inside: dict[str, set[str]]) -> None:
    try:
        order = list(TopologicalSorter(inside).static_order())
    except CycleError as error:
        pytest.fail(" imports ".join(error.args[1][::-1]))
    assert len(order) == len(inside) > 100


def test_every_room_has_a_floor(inside: dict[str, set[str]]) -> None:
    floors = [room for floor in FLOORS for room in floor]
    assert len(floors) == len(set(floors))
    rooms = {_room(name) for name in inside}
    assert all(_floor(room) >= 0 for room in rooms)
    assert set(floors) - rooms == {"studies"}


def test_rooms_import_rooms_of_lower_floors_alone() -> None:
    upward = {
        (name, other)
        for name, others in _inside(_imports_of_all(of_types=True)).items()
        for other in others
        if other in ABOVE or (_room(other) != _room(name) and _floor(_room(other)) >= _floor(_room(name)))
    }
    assert upward == set()


def test_modules_are_imported_by_strings_in_few_places() -> None:
    importing = {
        _name(file)
        for file in (ROOT / "probing").rglob("*.py")
        for node in nodes_of(file)
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__")
    }
    # The registry; a class that a user names; a part of safetensors; heads, which only some models need.
    assert importing == {"probing.registry", "probing.text.tasks", "probing.runtime.files", "probing.models.source"}


# What asks and what shows: the rooms of both, and in each study the files of these names.
ASK_AND_SHOW = re.compile(
    r"probing\.(commands$|tables\.(?!figures|probe_figures))|probing\.studies\.\w+(\.(command|options|schema|section|tables|terms))?$"
)


def test_what_is_shown_and_what_is_asked_for_computes_nothing(imports: dict[str, set[str]]) -> None:
    there = {name for name in imports if ASK_AND_SHOW.match(name)}
    assert len(there) > 30
    assert {name for name in there if {other.split(".")[0] for other in imports[name]} & {"torch", "numpy"}} == set()


@pytest.mark.parametrize("logger", ["wandb", "pytorch_lightning.loggers"])
def test_loggers_are_imported_by_one_room(imports: dict[str, set[str]], logger: str) -> None:
    rooms = {name for name, others in imports.items() if any(f"{other}.".startswith(f"{logger}.") for other in others)}
    assert rooms
    assert all(_room(name) == "tracking" for name in rooms)


def test_figures_are_written_in_one_place() -> None:
    writers = {
        _name(file)
        for file in (ROOT / "probing").rglob("*.py")
        if any(isinstance(node, ast.Attribute) and node.attr == "savefig" for node in nodes_of(file))
    }
    assert writers == {"probing.tables.figures"}


def _lines_without_docstring(function: ast.FunctionDef) -> int:
    # The docstring of a command is its help.
    docstring = len((ast.get_docstring(function, clean=False) or "").splitlines())
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def test_functions_have_a_comfortable_size() -> None:
    files = sorted((ROOT / "probing").rglob("*.py"))
    long = [
        f"{file}: {node.name}"
        for file in files
        for node in nodes_of(file)
        if isinstance(node, ast.FunctionDef) and _lines_without_docstring(node) > 63
    ]
    assert len(files) > 100
    assert long == []


def test_files_of_a_page_have_a_comfortable_size() -> None:
    lengths = {
        file.name: file.read_text(encoding="utf-8").count("\n")
        for suffix in ("js", "css", "html")
        for file in (ROOT / "probing").rglob(f"*.{suffix}")
    }
    assert len(lengths) > 5
    assert max(lengths.values()) <= 400, lengths
