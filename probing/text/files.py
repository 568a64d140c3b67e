"""Readers of files, standard input and data sets as text."""

from __future__ import annotations

import gzip
import io
import logging
import os
import re
import sys
import warnings
import zlib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from probing.errors import UserError, did_you_mean
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
from probing.text.columns import (
    TEXT,
    WORDS,
    ColumnSelection,
    ColumnSummary,
    Rows,
    check_text,
    choose_sentences,
    text_of,
)
from probing.text.tables import DIVIDER, divider_of, labelled

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


def path_and_columns(name: str, option: str) -> tuple[str, ColumnSelection]:
    """Return the path of a source, and the columns that the user names after it: `FILE?word=W&label=L`."""
    (path, _, query), flag_text = split_query(name), f"{option} {name}"
    settings = _settings(
        query, (*_COLUMN, "label"), flag_text,
        "FILE?word=W&label=L or FILE?text=T&label=L in quotation marks, where W, T and L are names or numbers of "
        "columns, and one of the two may be left out",
    )  # fmt: skip
    text = settings.get("word", settings.get("text"))
    return path, ColumnSelection(flag_text, text, settings.get("label"), "word" in settings, f"{path}?")


def _settings(query: str, known: Sequence[str], flag_text: str, expected: str) -> dict[str, str]:
    """Return the settings of a query such as `word=2&label=4`; refuse unknown, empty and repeated ones."""
    pairs = [part.partition("=")[::2] for part in query.split("&")] if query else []
    different = {"column" if key in _COLUMN else key for key, _ in pairs}
    unknown = next((f"`{key}` is not one of {', '.join(known)}{did_you_mean(key, known)}; "
                    for key, _ in pairs if key not in known), "")  # fmt: skip
    if unknown or len(different) < len(pairs) or not all(value for _, value in pairs):
        raise UserError(f"`{flag_text}`: {unknown}expected {expected}.")
    return dict(pairs)


def split_query(name: str) -> tuple[str, str, str]:
    """Return the path of a source, a question mark, and the rest; both are empty for an existing file of that name."""
    path, mark, query = name.partition("?")
    return (path, mark, query) if "=" in query and not os.path.exists(name) else (name, "", "")


def read_lines(name: str, option: str, readable: str = READABLE) -> list[str]:
    """Return the lines of a text file, which may be compressed by gzip, or of standard input (`-`).

    Lines end at LF, CR LF or CR. Byte-order marks are dropped on every line, since concatenated files have one each.
    `UserError` is raised if the file is of another type, unreadable, damaged, not UTF-8, or a table where sentences are
    expected; it names the `readable` sources.
    """
    flag_text = f"{option} {name}"
    path = Path(name)
    packed = name != "-" and path.suffix == ".gz"
    kind = Path(path.stem).suffix if packed else path.suffix
    if name != "-" and kind not in _READ and os.path.exists(path):
        way_out = _way_out(path) or f"give {readable}"
        raise UserError(f"`{flag_text}`: a file of type {kind}{'.gz' * packed} cannot be read; {way_out}.")
    data = _read_standard_input(flag_text) if name == "-" else read_bytes(path, flag_text, readable)
    if packed or data.startswith(_GZIP_MAGIC):  # no UTF-8 text starts with these bytes
        data = _unpack(data, flag_text)
    lines = decode_lines(data, flag_text)
    if kind in (".txt", "") and (looks := _looks_like_table(lines)):
        otherwise = " To read lines as sentences, put blanks in the place of tabs." * ("\t" in data.decode("utf-8"))
        raise UserError(f"`{flag_text}`: a sentence was expected in each line; {looks}.{otherwise}")
    return lines


def _way_out(path: Path) -> str:
    """Return advice for a file of another type by its content, as a clause; empty if the content gives no hint."""
    try:
        with open_file(path) as file:
            sample = file.read(_SAMPLE).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
    return _looks_like_table(_LINE_END.split(sample)[:-1])


def _looks_like_table(lines: Sequence[str]) -> str:
    """Return advice for lines that have a word and annotations each, as a clause; empty if they do not look so."""
    nonblank = [line for line in lines[:_LOOKED_AT] if line.strip() and not line.startswith("#")]
    if len(nonblank) < _ENOUGH:
        return ""
    if all(line.lstrip().startswith("{") for line in nonblank):
        return "its lines look like JSON: rename it to .jsonl"
    tabs = [line.split("\t") for line in nonblank]
    rows = tabs if len(tabs[0]) > 1 else [line.split() for line in nonblank]
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


def read_bytes(path: Path, flag_text: str, readable: str) -> bytes:
    """Return the content of a file; raise `UserError`, which lists `readable` sources, if it cannot be read."""
    try:
        with open_file(path, most=most_text()) as file:
            content: bytes = file.read()
        return content
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UserError(f"`{flag_text}` cannot be read ({reason[:1].lower()}{reason[1:]}); give {readable}.") from None


def _read_standard_input(flag_text: str) -> bytes:
    try:
        if not is_main_process():
            raise UserError(
                f"`{flag_text}`: only one of several processes has standard input; give the text as a file."
            )
        if sys.stdin is None:
            raise OSError("it is closed")
        data = sys.stdin.buffer.read((most := most_text()) + 1)
    except OSError as error:
        raise UserError(f"`{flag_text}` cannot be read ({error.strerror or error}); pipe a text into it.") from None
    if len(data) > most:
        raise UserError(f"`{flag_text}` cannot be read ({above_most_text(most)}); pipe a smaller text into it.")
    return data


def _unpack(data: bytes, flag_text: str) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as archive:
            text = archive.read((most := most_text()) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"`{flag_text}` is not a complete gzip archive ({str(error) or type(error).__name__}); "
            "download it again, or unpack its readable part with `zcat`."
        ) from None
    if len(text) > most:
        raise UserError(f"`{flag_text}` cannot be read (unpacked, {above_most_text(most)}); give a smaller text.")
    return text


def decode_lines(data: bytes, flag_text: str) -> list[str]:
    """Return the lines of a UTF-8 text, without byte-order marks; `UserError` names a line that is not UTF-8."""
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
        f"`{flag_text}` is not UTF-8 (line {line}, byte {start}); convert it, for example with "
        f"`iconv -f {'utf-16' if is_utf16 else 'latin1'} -t utf-8`."
    )


def check_description(folder: Path) -> None:
    """Refuse a description that is no file, too large or deep, or not YAML (`OSError`, `ValueError`, `YAMLError`)."""
    for path in (folder / name for name in ("README.md", ".huggingface.yaml", "dataset_infos.json")):
        if os.path.lexists(path):
            text = read_text(path, home_of(folder))
            if path.suffix == ".json":
                parse_json(text)
            else:
                check_yaml(text.partition("---")[2].partition("\n---")[0] if path.suffix == ".md" else text)


def check_data_files(data_files: Mapping[str, Iterable[Any]], folder: Path) -> None:
    """Raise `OSError` if a data set's description names files of this machine outside its folder, or no files."""
    for file in (file for files in data_files.values() for file in files):
        path = str(file).rpartition("::")[2]  # behind the names of archives that it is in
        if folder.is_dir() and "://" not in path:
            regular(Path(path), home_of(folder))
        elif folder.is_dir() or "://" not in path or path.startswith(("file:", "local:")):
            raise OSError(f"it names {path}, which is not in it")


SETTINGS = ("config", "split", "column", "label", "stream")

# Other names of the setting `column`, as for files.
_COLUMN = ("word", "text")

# Rows that are looked at to tell the column of sentences.
_HEAD = 1000

# File kinds that the library reads without running code or unpickling; "cache" means data that it has read before.
_KINDS = ("parquet", "arrow", "csv", "json", "text", "cache")

# A part of a split whose end is known without the number of rows, such as train[:1000].
_PART = re.compile(r"(?P<split>\w+)\[(?P<first>\d*):(?P<end>\d+)\]")


def read_dataset(source: str, option: str) -> Rows:
    """Return the rows of a data set's column: strings, or lists of strings where rows are lists of words.

    Empty rows are left out. Only file formats that need neither code nor unpickling are read. If rows are lists of
    words, other columns of lists have a value for each word (`ner_tags`); columns of single values have a value for
    each sentence. Numbers of classes are replaced by the names of the classes.

    Args:
        source: `hf:NAME?config=C&split=S&column=T&label=L&stream=yes`. NAME is a folder or a hub id; the split is
            `train` by default; the column is `text` by default, else `sentence`, `words` or `tokens`, else the only
            column with text, or with sentences in its first rows. Of a split such as `train[:1000]`, and with
            `stream=yes`, no more is downloaded than is read, and no copy is written.

    Raises:
        UserError: If the source is not of that form, is not available, or has no text, or `datasets` is not installed.
    """
    flag_text = f"{option} {source}"
    name, settings = _parse(source, flag_text)
    _check_library(flag_text)
    with _quietly():
        dataset = _load(name, settings, flag_text)
        column, note = _choose_column(dataset, settings.get("column"), flag_text)
        others = _label_columns(dataset.features, column)
        selection = ColumnSelection(flag_text, column, settings.get("label"), example=f"hf:{name}?")
        batches = dataset.select_columns([column, *others]).iter(1000)  # fifty times faster than row by row
        return _rows(_readable(batches, flag_text), column, others, selection, note)


def read_splits(source: str, flag_text: str) -> dict[str, list[dict[str, Any]]]:
    """Return all rows of a data set, `hf:NAME?config=C`, by split; each row is a dict with class names."""
    name, settings = _parse(source, flag_text)
    if unsupported := [key for key in settings if key != "config"]:
        raise UserError(f"`{flag_text}`: all splits and columns are read, so leave {unsupported[0]}= out.")
    _check_library(flag_text)
    with _quietly():
        builder = _builder(name, settings.get("config"), flag_text)
        _prepare(builder, flag_text)
        return {split: _with_names(builder.as_dataset(split=split)) for split in builder.info.splits}


def sentence_of(row: Mapping[str, Any], column: str, flag_text: str, place: str) -> str:
    """Return the sentence in a column of a row, "" if missing; `place` names the row in the error for other values."""
    value = row[column]
    if isinstance(value, str):
        check_text(value, f"`{flag_text}`: {column} of {place}")
        return value
    if text_of(value) is None:
        return ""
    raise UserError(f"`{flag_text}`: {column} of {place} is {value!r:.40}, where a sentence was expected; correct it.")


def _with_names(dataset: Any) -> list[dict[str, Any]]:
    """Return the rows of a split, with numbers of classes replaced by names."""
    named = {
        name: _Column(False, feature.names)
        for name, feature in dataset.features.items()
        if getattr(feature, "names", None) is not None
    }
    rows: list[dict[str, Any]] = dataset.to_list()
    return [row | {name: column.value(row[name], None) for name, column in named.items()} for row in rows]


def _check_library(flag_text: str) -> None:
    try:
        import datasets  # noqa: F401
    except ImportError:
        raise UserError(
            f"`{flag_text}` needs the library datasets, which is not installed; "
            "it comes with `pip install 'neuron-probing[hf]'`."
        ) from None


def _parse(source: str, flag_text: str) -> tuple[str, dict[str, str]]:
    """Parse the source by hand: in a URL, `+` and `%` of a split such as `train[:10%]+test` have another meaning."""
    name, _, query = source.removeprefix("hf:").partition("?")
    form = (
        "hf:NAME?config=C&split=S&column=T&label=L&stream=yes in quotation marks, where NAME is a hub id or a folder, "
        f"and {', '.join(SETTINGS)} may each be given once or left out"
    )
    settings = _settings(query, (*SETTINGS, *_COLUMN), flag_text, form)
    if not name or settings.get("stream", "yes") != "yes":
        raise UserError(f"`{flag_text}`: expected {form}.")
    return name, {"column" if key in _COLUMN else key: value for key, value in settings.items()}


def _load(name: str, settings: Mapping[str, str], flag_text: str) -> Any:
    """Return a split: as a stream if requested, or if rows from its beginning suffice and there is no copy."""
    split = settings.get("split", "train")
    builder = _builder(name, settings.get("config"), flag_text)
    if "stream" in settings or (_PART.fullmatch(split) and not os.path.exists(builder.cache_dir)):
        return _stream(builder, split, flag_text)
    _prepare(builder, flag_text)
    try:
        return builder.as_dataset(split=split)
    except Exception as error:
        problem = f"split {split} is invalid ({_reason(error)})" if "[" in split else f"there is no split {split}"
        raise UserError(f"`{flag_text}`: {problem}; give one of {', '.join(builder.info.splits)} as split=.") from None


def _stream(builder: Any, split: str, flag_text: str) -> Any:
    """Return a split, or rows of it by number, as a stream, which reads its files only as far as it is read."""
    import datasets

    part = _PART.fullmatch(split)
    whole = part["split"] if part else split
    try:
        streams = builder.as_streaming_dataset()
        if whole in streams and (stream := streams[whole]).features is None:
            # As in a copy on disk, all rows have the types of the first ones that the library reads at once.
            first = next(stream.with_format("arrow").iter(1))
            stream = stream.cast(datasets.Features.from_arrow_schema(first.schema))
    except Exception as error:
        raise _unreadable(flag_text, _reason(error)) from None
    if whole not in streams:
        problem = f"there is no split {whole}"
        if "[" in whole or "+" in whole:
            problem = f"split {whole} cannot be read as a stream, which has split=NAME or split=NAME[M:N]"
        raise UserError(f"`{flag_text}`: {problem}; give one of {', '.join(streams)} as split=.")
    if part is None:
        return stream
    first_row, end = int(part["first"] or 0), int(part["end"])
    return stream.skip(first_row).take(max(end - first_row, 0))


def _builder(name: str, config: str | None, flag_text: str) -> Any:
    """Return the library's builder of a data set, which has read no more than the list of its files."""
    import datasets

    if os.path.isdir(name):
        name = str(Path(name).absolute().resolve())  # the library finds no name in `.`
    try:
        check_description(Path(name))
        builder = datasets.load_dataset_builder(name, config)
        if _kind(builder) != "cache":
            check_data_files(builder.config.data_files or {}, Path(name))
        if _kind(builder) == "csv":
            builder = datasets.load_dataset_builder(name, config, **_as_text(builder))
    except Exception as error:  # the library, pyarrow, pandas and the hub each raise their own types
        known = _configs(name) if isinstance(error, ValueError) else []
        if known and config not in known and (config or len(known) > 1):
            problem = f"there is no configuration {config}" if config else "it has several configurations"
            raise UserError(f"`{flag_text}`: {problem}; give one of {', '.join(known)} as config=.") from None
        raise _unreadable(flag_text, _reason(error)) from None
    if (kind := _kind(builder)) not in _KINDS:
        raise _unreadable(flag_text, f"its files are of the kind {kind}")
    return builder


def _prepare(builder: Any, flag_text: str) -> None:
    """Download the files of a data set, and copy them to the library's folder, unless they are there."""
    try:
        builder.download_and_prepare()
    except Exception as error:
        raise _unreadable(flag_text, _reason(error)) from None


def _kind(builder: Any) -> str:
    return type(builder).__module__.rsplit(".", 1)[-1]


def _as_text(builder: Any) -> dict[str, Any]:
    """Return settings with which cells of CSV files are text as written, and only empty cells are missing.

    Otherwise pandas reads 01 as 1, and NA, None and null as missing. The divider is detected as in a single file.
    """
    import datasets
    import pandas

    file = next(iter(builder.config.data_files.values()))[0]

    def names(**how: Any) -> list[str]:
        with pandas.read_csv(file, **{**builder.config.pd_read_csv_kwargs, "nrows": 1, "dtype": str, **how}) as reader:
            return list(next(iter(reader), pandas.DataFrame()).columns)

    how: dict[str, Any] = {}
    if len(header := names()) == 1 or DIVIDER.match(header[0]):
        declared = DIVIDER.match(header[0])
        divider = declared[1] if declared else divider_of([header[0]], ".csv")
        how = {"sep": divider, "skiprows": int(bool(declared))}
        header = names(**how)
    features = datasets.Features({name: datasets.Value("string") for name in header})
    return {"features": features, "keep_default_na": False, "na_values": [""], **how}


def _unreadable(flag_text: str, reason: str) -> UserError:
    return UserError(
        f"`{flag_text}` cannot be read ({reason}); give the id of a data set on the hub, "
        "or offline a folder of parquet, csv, json or text files."
    )


def _configs(name: str) -> list[str]:
    """Return the data set's configurations; an empty list if they are unavailable."""
    import datasets

    try:
        return list(datasets.get_dataset_config_names(name))
    except Exception:  # the caller then reports the first error
        return []


def _choose_column(dataset: Any, requested: str | None, flag_text: str) -> tuple[str, str]:
    """Return the column of the text, and how it was chosen where its name does not show it."""
    features = dataset.features
    textual = [column for column, feature in features.items() if _may_be_text(feature)]
    if requested is None:
        preferred = [column for column in (*TEXT, *WORDS) if column in textual]
        if preferred or len(textual) == 1:
            return (preferred or textual)[0], ""
        plain = [column for column in textual if not hasattr(features[column], "feature")]
        if plain and (head := next(_readable(dataset.select_columns(plain).iter(_HEAD), flag_text), None)):
            chosen = choose_sentences(
                [ColumnSummary(column, [head[column]]) for column in plain], ColumnSelection(flag_text)
            )
            if chosen and len(plain) == len(textual):
                return chosen.name, f"told by the first {len(head[plain[0]]):,} rows"
    elif requested in textual:
        return requested, ""
    problem = "it is not clear which column holds the sentences"
    if requested:
        problem = f"column {requested} holds no text" if requested in features else f"there is no column {requested}"
    columns = f"of the columns {', '.join(features)}"
    if not textual:
        raise UserError(f"`{flag_text}`: none {columns} holds text; give another data set.")
    raise UserError(f"`{flag_text}`: {problem}; {columns}, give one with text as column=: {', '.join(textual)}.")


def _may_be_text(feature: Any) -> bool:
    inner = getattr(feature, "feature", feature)  # the type of a list's elements
    return "string" in str(getattr(inner, "dtype", "")) or type(inner).__name__ == "Json"


class _Column(NamedTuple):
    """A column that can hold labels, with values `of_words` or of sentences, and `names` of numbered classes."""

    of_words: bool
    names: Sequence[str] | None

    def value(self, value: Any, text: Any) -> Any:
        """Return a row's value, with class numbers replaced by names; a class number below 0 means no value."""
        if self.of_words:
            return [None] * len(text) if value is None else [self._named(cell) for cell in value]
        return self._named(value)

    def _named(self, value: Any) -> Any:
        if self.names is None or value is None or value >= len(self.names):
            return value
        return self.names[value] if value >= 0 else None


def _label_columns(features: Mapping[str, Any], column: str) -> dict[str, _Column]:
    """Return the columns that can hold labels of the sentences and, where these are lists of words, of words."""
    has_words, label_columns = hasattr(features[column], "feature"), {}
    for name, feature in features.items():
        of_words = hasattr(feature, "feature")
        inner = getattr(feature, "feature", feature)
        is_simple = str(getattr(inner, "dtype", "")).startswith(
            ("string", "large_string", "int", "uint", "float", "bool")
        )
        if name != column and is_simple and (has_words or not of_words):
            label_columns[name] = _Column(of_words, getattr(inner, "names", None))
    return label_columns


def _readable(batches: Iterable[Mapping[str, Any]], flag_text: str) -> Iterator[Mapping[str, Any]]:
    """Yield batches of rows; only then does a stream detect damaged files or a download that ends early."""
    try:
        yield from batches
    except Exception as error:  # of as many types as before
        raise _unreadable(flag_text, _reason(error)) from None


def _rows(
    batches: Iterable[Mapping[str, Any]],
    column: str,
    others_of: Mapping[str, _Column],
    selection: ColumnSelection,
    note: str,
) -> Rows:
    flag_text = selection.flag_text
    rows: list[Any] = []
    n_empty = 0
    values: dict[str, list[Any]] = {name: [] for name in others_of}
    records = (zip(batch[column], *(batch[name] for name in others_of), strict=True) for batch in batches)
    for number, (value, *others) in enumerate(record for batch in records for record in batch):
        if value is None or value in ("", []):
            n_empty += 1
            continue
        is_words = isinstance(value, list) and all(isinstance(word, str) for word in value)
        if not (is_words or isinstance(value, str)) or (rows and type(value) is not type(rows[0])):
            expected = "a list of words" if rows and isinstance(rows[0], list) else "text"
            raise UserError(
                f"`{flag_text}`: row {number} of column {column}, counted from 0, is {value!r:.60} where {expected} "
                "was expected; correct the row, or name another column with column=."
            )
        rows.append(value)
        for (name, label), other in zip(others_of.items(), others, strict=True):
            values[name].append(label.value(other, value))
    columns = {name: values[name] for name, label in others_of.items() if label.of_words}
    of_sentences = {name: values[name] for name in others_of if name not in columns}
    return labelled(column, rows, columns, of_sentences, selection, note, n_empty)


def _reason(error: Exception) -> str:
    """Return the reason of an error in one line; the cause of a chained error says more than the error itself."""
    if isinstance(error, StopIteration):  # the library looked for the first rows
        return "its files are empty"
    error = error.__cause__ if isinstance(error.__cause__, Exception) else error
    return " ".join(str(error).split()).replace(". ", ", ")[:200].rstrip(".") or type(error).__name__


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence the library's progress bars, logs and warnings; its exceptions still raise."""
    import datasets

    loggers = [logging.getLogger(name) for name in ("datasets", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    without_bars = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if not without_bars:
            datasets.enable_progress_bars()
