"""Text is written and read as UTF-8, whatever the locale."""

from __future__ import annotations

import ast
import codecs
import locale
import os
import sys
from collections.abc import Iterator

import pytest

from pages import ROOT

# Calls that open a file for text, by name, and the mode that each has where none is given.
_OPENERS = {
    "open": "r", "fdopen": "r", "read_text": "r", "write_text": "w", "NamedTemporaryFile": "w+b",
    "TemporaryFile": "w+b", "TextIOWrapper": "r", "FileHandler": "a",
}  # fmt: skip
_OF_PATHS = {"read_text", "write_text", "TextIOWrapper", "FileHandler"}
# Modules whose `open` returns bytes or a descriptor unless asked for text.
_OTHER_OPENERS = {"os", "tarfile", "gzip", "bz2", "lzma", "Image", "zarr"}
# What lets the standard library decode what a process prints, in the encoding of the locale unless told.
_DECODED = {"text", "universal_newlines"}


def _opened_as_text(call: ast.Call) -> bool:
    """Whether a call opens a text file, as its words tell: where the mode is no literal, it opens something else."""
    name, owner = _name(call)
    if name not in _OPENERS or (name in ("read_text", "write_text") and owner is None):
        return any(k.arg in _DECODED and ast.unparse(k.value) == "True" for k in call.keywords)
    modes = [k.value for k in call.keywords if k.arg == "mode"]
    if name not in _OF_PATHS and not modes:
        # A method of a path has the mode first, a function after the file; that of a temporary file is its first.
        of_file = name == "fdopen" or (name == "open" and owner in {None, "io", *_OTHER_OPENERS})
        modes = call.args[int(of_file) :][:1]
    if owner in _OTHER_OPENERS and name == "open":
        return any("t" in str(_literal(mode)) for mode in modes)
    mode = _literal(modes[0]) if modes else _OPENERS[name]
    return isinstance(mode, str) and "b" not in mode


def _name(call: ast.Call) -> tuple[str, str | None]:
    """Return the last name of what is called, and what it is an attribute of."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr, ast.unparse(call.func.value)
    return ast.unparse(call.func), None


def _literal(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _calls(source: str) -> Iterator[tuple[ast.Call, bool]]:
    """Yield the calls that open text, and whether each says that it is UTF-8; what wraps a stream has its encoding."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and _opened_as_text(node):
            said = [_literal(k.value) for k in node.keywords if k.arg == "encoding"]
            yield node, said == ["utf-8"] or (bool(said) and _name(node)[0] == "TextIOWrapper")


@pytest.mark.slow
def test_every_file_that_is_opened_as_text_is_utf8() -> None:
    rooms = [ROOT / room for room in ("probing", "tasks", "benchmarks", "docs", "tests")]
    names = [file.relative_to(ROOT) for room in rooms for file in room.rglob("*.py")]
    found = [
        (name, call.lineno, said)
        for name in names
        if not any(part.startswith(".") for part in name.parts)
        for call, said in _calls((ROOT / name).read_text(encoding="utf-8"))
    ]
    assert len(found) > 100
    assert [f"{name}:{line}" for name, line, said in found if not said] == []


@pytest.mark.skipif(os.environ.get("PYTHONUTF8") != "0", reason="asked of Python by `make test-ascii`")
def test_the_locale_has_ascii_only() -> None:
    assert codecs.lookup(locale.getpreferredencoding()).name == sys.getfilesystemencoding() == "ascii"


def test_a_call_without_an_encoding_is_found_and_bytes_are_not() -> None:
    text = [
        "open(f)", 'open(f, "w", newline="")', "path.open()", 'path.open("a")', 'path.open(mode="x")',
        "path.read_text()", "path.write_text(t)", "os.fdopen(n)",
        'tempfile.NamedTemporaryFile("w+")', "subprocess.run(c, text=True)",
        'gzip.open(f, "rt")', "io.TextIOWrapper(b)", "io.open(f)", 'path.read_text(encoding="latin-1")',
    ]  # fmt: skip
    others = [
        'open(f, "rb")', 'path.open("wb")', 'os.fdopen(n, "wb")', "tempfile.NamedTemporaryFile()", "subprocess.run(c)",
        'gzip.open(f, "rb")', "os.open(f, flags)", "archive.open(member)", 'path.open("rb", buffering=0)',
    ]  # fmt: skip
    assert [line for line in text if [said for _, said in _calls(line)] != [False]] == []
    assert [line for line in others if list(_calls(line))] == []
    assert [said for _, said in _calls('path.open("w", encoding="utf-8")')] == [True]
