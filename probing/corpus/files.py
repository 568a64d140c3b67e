"""Files and standard input as lines of text."""

from __future__ import annotations

import gzip
import io
import os
import re
import sys
import zlib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from probing.corpus.columns import Wanted
from probing.errors import UserError
from probing.runtime.files import (
    above_most_text,
    check_yaml,
    home_of,
    most_text,
    open_file,
    parse_json,
    read_text,
    regular,
)
from probing.runtime.processes import is_main_process

READABLE = (
    "`builtin`, a .txt file with a sentence a line, a .conllu or .conll file, a .tsv, .csv or .jsonl file of "
    "sentences or words with labels, each with .gz, hf:NAME for a data set, or `-` for standard input"
)

# Bytes of a file of another type that are looked at.
_SAMPLE = 2**16
_GZIP_MAGIC = b"\x1f\x8b"
_READ = (".txt", ".conllu", ".conll", ".tsv", ".csv", ".jsonl", "")
# Lines that are looked at to tell a table of words from sentences, and how many there have to be.
_LOOKED_AT, _ENOUGH = 1000, 5
_TAG = re.compile(r"O|[BIESLU]-\S+")
# `str.splitlines` would also split at U+2028, U+0085, form feeds and others.
_LINE_END = re.compile(r"\r\n|\r|\n")


def path_and_columns(name: str, option: str) -> tuple[str, Wanted]:
    """Return the path of a source, and which columns the user names after it: `FILE?word=W&label=L`.

    Raises:
        UserError: If something else is named.
    """
    path, mark, query = split_query(name)
    pairs = [part.partition("=")[::2] for part in query.split("&")] if mark else []
    settings, typed = dict(pairs), f"{option} {name}"
    if len(settings) < len(pairs) or not set(settings) <= {"word", "text", "label"} or not all(settings.values()) or {
        "word", "text"
    } <= set(settings):  # fmt: skip
        raise UserError(
            f"`{typed}`: expected FILE?word=W&label=L or FILE?text=T&label=L in quotation marks, where W, T "
            "and L are names or numbers of columns, and one of the two may be left out."
        )
    text = settings.get("word", settings.get("text"))
    return path, Wanted(typed, text, settings.get("label"), "word" in settings, f"{path}?")


def split_query(name: str) -> tuple[str, str, str]:
    """Return the path of a source, a question mark, and what follows it; both are empty for a file of that name."""
    path, mark, query = name.partition("?")
    return (path, mark, query) if "=" in query and not Path(name).exists() else (name, "", "")


def read_lines(name: str, option: str, readable: str = READABLE) -> list[str]:
    """Return the lines of a text file, which may be compressed by gzip, or of standard input (`-`).

    Lines end at LF, CR LF or CR. Byte-order marks are dropped on every line, since concatenated files have one each.

    Args:
        name: The source, as the user typed it.
        option: The option that names it, for messages.
        readable: What can be read, for messages.

    Raises:
        UserError: If the file is of another type, unreadable, a damaged archive or not UTF-8, or if it should have
            sentences and has a table of words.
    """
    typed = f"{option} {name}"
    path = Path(name)
    packed = name != "-" and path.suffix == ".gz"
    kind = Path(path.stem).suffix if packed else path.suffix
    if name != "-" and kind not in _READ:
        way_out = _way_out(path) or f"give {readable}"
        raise UserError(f"`{typed}`: a file of type {kind}{'.gz' * packed} cannot be read; {way_out}.")
    data = _read_standard_input(typed) if name == "-" else read_bytes(path, typed, readable)
    if packed or data.startswith(_GZIP_MAGIC):  # no UTF-8 text starts with these bytes
        data = _unpack(data, typed)
    lines = decode_lines(data, typed)
    if kind in (".txt", "") and (looks := _looks_like_table(lines)):
        otherwise = " To read lines as sentences, put blanks in the place of tabs." * ("\t" in data.decode("utf-8"))
        raise UserError(f"`{typed}`: a sentence was expected in each line; {looks}.{otherwise}")
    return lines


def _way_out(path: Path) -> str:
    """Return what to do with a file of another type by its content, as a clause; empty if that does not tell."""
    try:
        with open_file(path) as file:
            sample = file.read(_SAMPLE).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
    return _looks_like_table(_LINE_END.split(sample)[:-1])


def _looks_like_table(lines: Sequence[str]) -> str:
    """Return what to do with lines that have a word and annotations each, as a clause; empty if they do not look so."""
    there = [line for line in lines[:_LOOKED_AT] if line.strip() and not line.startswith("#")]
    if len(there) < _ENOUGH:
        return ""
    if all(line.lstrip().startswith("{") for line in there):
        return "its lines look like JSON: rename it to .jsonl"
    tabs = [line.split("\t") for line in there]
    rows = tabs if len(tabs[0]) > 1 else [line.split() for line in there]
    n_columns = len(rows[0])
    if n_columns < 2 or any(len(row) != n_columns for row in rows):
        return ""
    if rows is tabs and n_columns == 10 and sum(row[0].isdecimal() for row in rows) >= len(rows) // 2:
        return "its lines look like CoNLL-U: rename it to .conllu"
    if rows is tabs and any(" " in row[0].strip() for row in rows):
        return ""
    if rows is not tabs and sum(bool(_TAG.fullmatch(row[-1])) for row in rows) < 0.9 * len(rows):
        return ""
    if rows is tabs and n_columns == 2:
        return "its lines look like a word, a tab and a label: rename it to .tsv"
    return (
        f"its lines look like words with {n_columns - 1} annotations: write the word, a tab and one annotation in each "
        "line, and name it .tsv"
    )


def read_bytes(path: Path, typed: str, readable: str) -> bytes:
    """Return the content of a file.

    Args:
        path: Path of the file.
        typed: The option and its value, for messages.
        readable: The accepted sources, for messages.

    Raises:
        UserError: If the file cannot be read.
    """
    try:
        with open_file(path, most=most_text()) as file:
            content: bytes = file.read()
        return content
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UserError(f"`{typed}` cannot be read ({reason[:1].lower()}{reason[1:]}); give {readable}.") from None


def _read_standard_input(typed: str) -> bytes:
    try:
        if not is_main_process():
            raise UserError(f"`{typed}`: only one of several processes has standard input; give the text as a file.")
        if sys.stdin is None:
            raise OSError("it is closed")
        data = sys.stdin.buffer.read((most := most_text()) + 1)
    except OSError as error:
        raise UserError(f"`{typed}` cannot be read ({error.strerror or error}); pipe a text into it.") from None
    if len(data) > most:
        raise UserError(f"`{typed}` cannot be read ({above_most_text(most)}); pipe a smaller text into it.")
    return data


def _unpack(data: bytes, typed: str) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as archive:
            text = archive.read((most := most_text()) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"`{typed}` is not a complete gzip archive ({str(error) or type(error).__name__}); "
            "download it again, or unpack its readable part with `zcat`."
        ) from None
    if len(text) > most:
        raise UserError(f"`{typed}` cannot be read (unpacked, {above_most_text(most)}); give a smaller text.")
    return text


def decode_lines(data: bytes, typed: str) -> list[str]:
    """Return the lines of a UTF-8 text, without byte-order marks.

    Raises:
        UserError: If the text is not UTF-8; the message names the line.
    """
    # UTF-16 without a mark is valid UTF-8; of letters from ASCII, every second byte is 0.
    is_utf16 = data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) or 3 * data.count(b"\0") > len(data)
    try:
        if not is_utf16:
            return [line.removeprefix("\ufeff") for line in _LINE_END.split(data.decode("utf-8"))]
        start = 0
    except UnicodeDecodeError as error:
        start = error.start
    line = len(_LINE_END.split(data[:start].decode("utf-8")))
    raise UserError(
        f"`{typed}` is not UTF-8 (line {line}, byte {start}); convert it, for example with "
        f"`iconv -f {'utf-16' if is_utf16 else 'latin1'} -t utf-8`."
    )


def check_description(folder: Path) -> None:
    """Refuse a folder whose description is no file, or would take much memory.

    Raises:
        OSError: If it is no file of the folder, or too large.
        ValueError: If it has too many values or levels.
        yaml.YAMLError: If its first lines are not YAML.
    """
    for path in (folder / name for name in ("README.md", ".huggingface.yaml", "dataset_infos.json")):
        if os.path.lexists(path):
            text = read_text(path, home_of(folder))
            if path.suffix == ".json":
                parse_json(text)
            else:
                check_yaml(text.partition("---")[2].partition("\n---")[0] if path.suffix == ".md" else text)


def check_data_files(data_files: Mapping[str, Iterable[Any]], folder: Path) -> None:
    """Refuse a data set whose description names files of this machine that are not its own.

    Args:
        data_files: The files of each split, as the library names them.
        folder: The folder of the data set; that of one on the hub is not there.

    Raises:
        OSError: If a file lies outside of the folder, or is none.
    """
    for file in (file for files in data_files.values() for file in files):
        path = str(file).rpartition("::")[2]  # behind the names of archives that it is in
        if folder.is_dir() and "://" not in path:
            regular(Path(path), home_of(folder))
        elif folder.is_dir() or "://" not in path or path.startswith(("file:", "local:")):
            raise OSError(f"it names {path}, which is not in it")
