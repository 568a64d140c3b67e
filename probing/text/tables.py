"""Files of cells: a sentence and its labels a row, or a word and its annotations a line (.csv, .tsv, .conll)."""

from __future__ import annotations

import ast
import csv
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

from conllu.exceptions import ParseException
from conllu.parser import DEFAULT_FIELDS, parse_id_value, parse_line

from probing.errors import UserError
from probing.results import count
from probing.runtime.files import parse_json
from probing.text.columns import (
    BEGINS_DOCUMENT,
    LABEL,
    TARGETS,
    TEXT,
    WORDS,
    ColumnSelection,
    ColumnSummary,
    Rows,
    Target,
    by_name,
    choose_labels,
    choose_sentences,
    choose_words,
    is_header,
    label_of,
    label_of_sentences,
    with_label,
)

_TARGETS = '[{"span1": [0, 2], "label": "ARG0"}]'

_EXPECTED = '{"words": ["A", "word"], "labels": ["DET", "NOUN"]} or {"text": "A sentence.", "label": "short"}'


def read_json_lines(lines: Iterable[str], selection: ColumnSelection) -> Rows:
    """Return the sentences of a .jsonl file with their annotations; lines with `targets` have spans, as in jiant.

    The text is the list `words` (or `tokens`), or else `text` (or `sentence`); the first line decides. Without these
    names, it is chosen by `probing.text.columns`, as labels are. If sentences are lists of words, every other list has
    a value for each word. Single values belong to the sentence. Objects, and lists if sentences are not lists of words,
    are left out. A value that a line lacks, or that is null, counts as missing.

    Raises:
        UserError: If a line is not such an object, or a list has another length than the words.
    """
    flag_text = selection.flag_text
    numbered = [(number, _object(line, number, flag_text)) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise UserError(f"`{flag_text}` holds no sentence: expected lines such as {_EXPECTED}.")
    names = dict.fromkeys(name for _, row in numbered for name in row)
    key = _key([row for _, row in numbered], names, selection)
    are_words = isinstance(numbered[0][1].get(key), list) or (key in WORDS and key not in TEXT)
    texts: list[Any] = []
    for number, row in numbered:
        text = row.get(key)
        is_text = _are_words(text) if are_words else isinstance(text, str)
        if not is_text:
            what = f"as {key!r}, which the first line has" if key else "as 'words' or 'text'"
            way_out = "" if key else f", or {selection.way_out(f'text={next(iter(names), 1)}')}"
            raise UserError(
                f"`{flag_text}`: line {number} has no {'list of words' if are_words else 'sentence'} {what}; "
                f"expected lines such as {_EXPECTED}{way_out}."
            )
        texts.append(text)
    names.pop(key)
    spans: dict[str, list[Any]] = {}
    if TARGETS in names and any(isinstance(row.get(TARGETS), list) for _, row in numbered):
        names.pop(TARGETS)
        texts, are_words = [text if are_words else text.split() for text in texts], True
        of_sentence: dict[tuple[str, ...], list[Target]] = {}  # lines of equal words share their targets
        spans = {TARGETS: [of_sentence.setdefault(tuple(words), []) for words in texts]}
        for (number, row), words, of in zip(numbered, texts, spans[TARGETS], strict=True):
            of += _targets(row.get(TARGETS), words, f"`{flag_text}`: line {number}")
        spans = {TARGETS: [tuple(of) for of in spans[TARGETS]]}
    lists = [name for name in names if any(isinstance(row.get(name), list) for _, row in numbered)]
    columns = {name: [_of_words(row, name, texts[i], number, flag_text) for i, (number, row) in enumerate(numbered)]
               for name in lists if are_words}  # fmt: skip
    scalars = [
        name for name in names if name not in lists and not any(_is_nested(row.get(name)) for _, row in numbered)
    ]
    of_sentences = {name: [row.get(name) for _, row in numbered] for name in scalars} | spans
    return labelled(key, texts, columns, of_sentences, selection)


def _targets(cells: Any, words: Sequence[str], where: str) -> Iterator[Target]:
    """Yield the targets of a line; anything but labelled spans of its words raises `UserError`."""
    if not isinstance(cells, list | None) or words[:1] == [BEGINS_DOCUMENT]:
        raise UserError(f"{where} has {cells!r:.60} as 'targets'; expected a list such as {_TARGETS}.")
    for cell in cells or ():
        if not isinstance(cell, dict) or "span1" not in cell:
            raise UserError(f"{where} has the target {cell!r:.60}; expected one such as {_TARGETS}.")
        if _is_nested(cell.get("label")) or not (label := label_of(cell.get("label"))):
            raise UserError(f"{where} has a target without a label ({cell!r:.80}); expected text, as in {_TARGETS}.")
        first, second = (_span(cell[name], words, where) if name in cell else None for name in ("span1", "span2"))
        assert first is not None
        yield Target(first, second, label)


def word_characters(words: Iterable[str]) -> list[tuple[int, int]]:
    """Return the characters of each word in the sentence: the words with single spaces, without empty words."""
    characters, end = [], 0
    for word in words:
        begin = end + (end > 0)
        end = begin + len(" ".join(word.split())) if word.strip() else end
        characters.append((begin, end))
    return characters


def _span(cell: Any, words: Sequence[str], where: str) -> tuple[int, int]:
    """Return the characters of a span of words."""
    are_whole = isinstance(cell, list) and [type(end) for end in cell] == [int, int]
    if not are_whole or not 0 <= cell[0] < cell[1] <= len(words):
        raise UserError(
            f"{where} has the span {cell!r:.40} in a sentence of {len(words)} words; expected the first word, counted "
            "from 0, and the word after the last."
        )
    characters = word_characters(words[: cell[1]])
    return characters[cell[0]][0], characters[-1][1]


# The table of a probing data set in a folder of Holmes (Waldis et al. 2024, arXiv 2404.18923), and its columns.
SAMPLES = "samples.csv"
_SIDES: Mapping[str, str] = {"train": "train", "dev": "validation", "test": "test"}


def read_samples(lines: Iterable[str], flag_text: str) -> Rows:
    """Return the texts of a table of Holmes with their labelled spans, or pairs of spans, and their side of the split.

    A row has `context`, a list of texts; `inputs`, one or two of (text, number of the context, first character, the one
    after the last); `label`; and `set-0` (or `set`). A text of several sets is on the side of the last of train, dev
    and test; its rows of other sets are left out.
    """
    reader = csv.DictReader(lines, strict=True)
    of_text: dict[str, list[tuple[str, Target]]] = {}
    try:
        for row in reader:
            text, side, target = _sample(row, f"`{flag_text}`: line {reader.line_num} of {SAMPLES}")
            of_text.setdefault(text, []).append((side, target))
    except csv.Error as error:
        raise UserError(f"`{flag_text}`: {SAMPLES} is not a table in line {reader.line_num} ({error}).") from None
    sides = [max((side for side, _ in of), key=[*_SIDES.values()].index) for of in of_text.values()]
    targets = [
        tuple(target for side, target in of if side == side_of_text)
        for of, side_of_text in zip(of_text.values(), sides, strict=True)
    ]
    n_out = sum(map(len, of_text.values())) - sum(map(len, targets))
    out = f" ({n_out:,} rows are left out, whose text is in a later set, too)" * bool(n_out)
    return Rows(
        [*of_text], sentence_columns={TARGETS: targets}, sides=sides, note=f"sides = its sets{out}",
        places={"": "column context", TARGETS: "columns inputs and label"},
    )  # fmt: skip


def _sample(row: Mapping[str, str | None], where: str) -> tuple[str, str, Target]:
    """Return the text of a row with single spaces, its side, and its spans."""
    side = _SIDES.get(str(row.get("set-0") or row.get("set")))
    if side is None or not (label := label_of(row.get("label"))):
        raise UserError(f"{where}: expected a label, and train, dev or test as set-0; found {dict(row)!r:.80}.")
    try:
        contexts, inputs = (ast.literal_eval(row[name] or "") for name in ("context", "inputs"))
        numbers, (context,) = {cell[1] for cell in inputs}, {contexts[cell[1]] for cell in inputs}
        places = [_characters(context, *cell[2:4]) for cell in inputs]
        # A fifth cell is the number of the input, of which several parts may be of one.
        if len(numbers) > 1 or len(places) > 2 or any(cell[4:] not in ((), (i,)) for i, cell in enumerate(inputs)):
            raise ValueError
    except (ValueError, SyntaxError, TypeError, LookupError, AttributeError, MemoryError, RecursionError):
        raise UserError(
            f"{where}: expected one or two spans of one text, such as the inputs [('dog', 0, 4, 7)] of the context "
            f"['The dog barks']; found the inputs {str(row.get('inputs'))!r:.60}."
        ) from None
    return " ".join(context.split()), side, Target(places[0], places[1] if len(places) == 2 else None, label)


def _characters(text: str, first: int, after: int) -> tuple[int, int]:
    """Return the characters of a span once the text has single spaces; raise ValueError if it is outside or blank."""
    before, whole = (" ".join(part.split()) for part in (text[:first], text[:after]))
    begin = len(before) + (before != "" and text[first - 1].isspace())
    if not 0 <= first < after <= len(text) or begin >= len(whole):
        raise ValueError
    return begin, len(whole)


def _key(rows: Sequence[Mapping[str, Any]], names: Iterable[str], selection: ColumnSelection) -> str:
    """Return the name of the text; empty if it is ambiguous."""
    first = rows[0]
    if selection.text is not None:
        return selection.named([ColumnSummary(name, []) for name in names], selection.text, "text").name  # type: ignore[union-attr]
    if known := next((name for name in ("words", "tokens", *TEXT) if name in first), ""):
        return known
    of_words = [
        ColumnSummary(name, [row.get(name) or [] for row in rows]) for name in names if _are_words(first.get(name))
    ]
    if of_words:
        return choose_words(of_words, selection).name
    texts = [
        ColumnSummary(name, [[row.get(name) for row in rows]]) for name in names if isinstance(first.get(name), str)
    ]
    column = choose_sentences(texts, selection)
    return column.name if column else ""


def _are_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def labelled(
    key: str,
    texts: Sequence[Any],
    columns: Mapping[str, Sequence[Sequence[Any]]],
    of_sentences: Mapping[str, Sequence[Any]],
    selection: ColumnSelection,
    note: str = "",
    n_empty: int = 0,
) -> Rows:
    """Return rows of named columns, with the column of labels also as `label`; `key` names the column of `texts`."""
    if texts and isinstance(texts[0], list):
        lengths = list(map(len, texts))
        regular = [ColumnSummary(name, rows) for name, rows in columns.items() if list(map(len, rows)) == lengths]
        label = choose_labels(regular, ColumnSummary(key, texts), selection)
        columns = with_label(columns, label)
    else:
        label = label_of_sentences([ColumnSummary(name, [rows]) for name, rows in of_sentences.items()], selection)
        of_sentences = with_label(of_sentences, label)
    places = {"": f"column {key}", **({LABEL[0]: label.place} if label else {})}
    return Rows(texts, columns, of_sentences, n_empty, places=places, note=note)


def _object(line: str, number: int, flag_text: str) -> Mapping[str, Any]:
    try:
        record = parse_json(line)
    except (ValueError, RecursionError) as error:
        reason = str(error).split(":")[0].lower() if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise UserError(
            f"`{flag_text}`: line {number} is not JSON ({reason}, in {line[:60]!r}); expected lines such as "
            f"{_EXPECTED}."
        ) from None
    if not isinstance(record, dict):
        raise UserError(
            f"`{flag_text}`: line {number} is not a JSON object (found {line[:60]!r}); expected lines such as "
            f"{_EXPECTED}."
        )
    return record


def _of_words(row: Mapping[str, Any], name: str, words: Sequence[str], number: int, flag_text: str) -> list[Any]:
    """Return a line's values of its words."""
    values, n_words = row.get(name), len(words)
    if values is None:
        return [None] * n_words
    if not isinstance(values, list) or len(values) != n_words or any(map(_is_nested, values)):
        actual = f"{len(values)} values" if isinstance(values, list) and len(values) != n_words else f"{values!r:.60}"
        raise UserError(
            f"`{flag_text}`: line {number} has {actual} as {name!r} for its {n_words} words; give a value for each "
            "word, null where there is none."
        )
    return values


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict | list)


# form, lemma, upos, xpos, feats, head, deprel, deps, misc
COLUMNS = DEFAULT_FIELDS[1:]

NEW_DOCUMENT = re.compile(r"#\s*(newdoc|begin document)\b")

# Return every column as written; the library would parse some into dicts and numbers.
_AS_WRITTEN = {field: lambda cells, i: cells[i] for field in DEFAULT_FIELDS}


def read_treebank(lines: Iterable[str], flag_text: str) -> dict[str, list[tuple[str, ...]]]:
    """Return each column of a CoNLL-U file: for each sentence, one value per syntactic word.

    Multiword ranges (`1-2`) and empty nodes (`1.1`) are left out; malformed lines and missing forms are refused.
    """
    sentences: list[list[tuple[str, ...]]] = [[]]
    for number, line in enumerate(lines, 1):
        if not line.strip():
            sentences.append([])
        elif not line.startswith("#"):
            try:
                index, *cells = _cells(line)
                if isinstance(word_id := parse_id_value(index), tuple):
                    continue
                if word_id != len(sentences[-1]) + 1:
                    raise ParseException(f"expected word {len(sentences[-1]) + 1} of the sentence, found {index!r}")
            except (ParseException, ValueError) as error:  # ValueError: a number with thousands of digits
                reason = str(error)[:200].rstrip(".")
                raise UserError(
                    f"`{flag_text}` is not CoNLL-U in line {number} ({reason}); correct it, or give a .txt file."
                ) from None
            sentences[-1].append(tuple(map(sys.intern, cells)))  # interned: a fiftieth of the memory
    if {cells[0] for sentence in sentences for cells in sentence} == {"_"}:
        raise UserError(
            f"`{flag_text}`: every form is `_`, as in treebanks whose text may not be published; "
            "insert the words first, as the treebank's README describes."
        )
    return {name: [tuple(cells[i] for cells in sentence) for sentence in sentences] for i, name in enumerate(COLUMNS)}


def treebank(lines: Sequence[str], flag_text: str) -> Rows:
    """Return the sentences of a CoNLL-U file with all of their columns, and their documents; see `read_treebank`."""
    columns = read_treebank(lines, flag_text)
    return Rows(list(map(list, columns["form"])), columns, documents=documents_of(lines), places={"": "column form"})


def documents_of(lines: Iterable[str]) -> list[int]:
    """Return the number of documents begun (`# newdoc`) up to each sentence that `read_treebank` returns."""
    counts = [0]
    for line in lines:
        if not line.strip():
            counts.append(counts[-1])
        elif NEW_DOCUMENT.match(line):
            counts[-1] += 1
    return counts


def _cells(line: str) -> list[str]:
    line = line.rstrip(" ")
    cells = list(parse_line(line, DEFAULT_FIELDS, _AS_WRITTEN).values())
    # The library also accepts two spaces instead of a tab, and any number of columns.
    if len(cells) != len(DEFAULT_FIELDS) or "\t".join(cells) != line:
        raise ParseException(f"expected {len(DEFAULT_FIELDS)} columns with a tab between them and no double spaces")
    return cells


_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]*[A-Z])")

_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|etc|cf|vs|[A-Z])\.)$")


def builtin_sentences() -> list[str]:
    """Return English prose of the Python language reference, from the standard library's `pydoc_data.topics`.

    Code, grammar, headings, tables and signatures are left out: only text that starts and ends like a sentence is used.
    The text varies with the Python version, so state the version with every figure computed from it.
    """
    from pydoc_data.topics import topics

    return [
        sentence
        for name in sorted(topics)
        for paragraph in re.split(r"\n\s*\n", topics[name])
        if _is_prose(paragraph)
        for sentence in _sentences_of_layout(" ".join(paragraph.split()))
    ]


def _is_prose(paragraph: str) -> bool:
    heading_or_table = re.search(r"^\s*(?:[+|]|([*=\-~^\"])\1{2})", paragraph, re.MULTILINE)
    return not heading_or_table and "::=" not in paragraph and ">>>" not in paragraph


def _sentences_of_layout(paragraph: str) -> Iterator[str]:
    """Split a paragraph at sentence ends but not after abbreviations; return the parts that look like sentences."""
    paragraph = re.sub(r"^(?:[*\-]|\d+\.|\[\d+\])\s+", "", paragraph)  # bullets and footnote marks
    parts: list[str] = []
    for part in _SENTENCE_END.split(paragraph):
        if parts and _ABBREVIATION.search(parts[-1]):
            parts[-1] += " " + part
        else:
            parts.append(part)
    return (part for part in parts if re.match(r"[\"'(]*[A-Z].*[.!?:][\"')]*$", part) and part.count(" ") >= 2)


_HEADER = "a first line that names the columns, such as sentence and label"

# The line with which spreadsheets say what divides cells, and what may divide them; blanks are told last.
DIVIDER = re.compile(r'"?sep=(.)"?', re.IGNORECASE)

_DIVIDERS = "\t,;|"

# Signs with which lines begin that may be comments.
_SIGNS = ("#", "%", ";", "//", "--", "<!")

# Lines that are looked at to tell what divides cells, and words of a text in which no sentence ends.
_LOOKED_AT, _MOST_WORDS = 1000, 100

# Comments without which a sign by itself is a word.
_FEW = 20


class _Line(NamedTuple):
    """A line, or several with a quoted line end between them; its number, from 1, and cells, none if blank."""

    number: int
    cells: tuple[str, ...]

    @property
    def has_sign(self) -> bool:
        """Whether the line may be a comment."""
        return self.cells[0].startswith(_SIGNS)

    @property
    def begins_document(self) -> bool:
        """Whether the line marks the beginning of a document."""
        return any(cell.startswith(BEGINS_DOCUMENT) for cell in self.cells)


def read_table(lines: Sequence[str], kind: str, selection: ColumnSelection) -> Rows:
    """Return the sentences of a file of cells, or its words, with their annotations.

    `probing.text.columns` chooses the columns. An empty line ends a sentence of words, and a line `-DOCSTART-` begins a
    document. A file with the ten columns of CoNLL-U has all of these. `kind` is the ending of its name: .csv, whose
    cells may be in quotation marks, .tsv or .conll.

    Raises:
        UserError: If a line has another number of cells, or the columns are ambiguous.
    """
    listed, is_spaced = _lines(lines, kind, selection.flag_text)
    filled = [line for line in listed if line.cells and not line.begins_document]
    plain = [line for line in filled if not line.has_sign] or filled
    if not plain or (kind == ".csv" and len(plain) < 2):
        raise UserError(f"`{selection.flag_text}` holds no sentence: expected {_HEADER}, and a sentence in each row.")
    if len(plain[0].cells) == len(COLUMNS) + 1 and kind != ".csv" and plain[0].cells[0].isdecimal():
        return treebank(lines, selection.flag_text)
    if _has_sentences(listed, plain, kind, selection):
        return _sentences(filled, selection)
    return _words(listed, plain, is_spaced, selection)


def _lines(lines: Sequence[str], kind: str, flag_text: str) -> tuple[list[_Line], bool]:
    """Return the lines of a file, divided into cells without surrounding blanks, and whether blanks divide these."""
    first = next((i for i, line in enumerate(lines) if line.strip()), 0)
    declared = DIVIDER.fullmatch(lines[first].strip(" "))
    after = first + 1 if declared else 0
    rest = lines[after:]
    divider = declared[1] if declared else divider_of(rest, kind)
    if divider is None:
        return [
            _Line(number, tuple(map(sys.intern, line.split()))) for number, line in enumerate(rest, after + 1)
        ], True
    if kind == ".csv":
        reader = csv.reader((f"{line}\n" for line in rest), delimiter=divider, strict=True)
    else:
        reader = csv.reader(rest, delimiter=divider, quoting=csv.QUOTE_NONE)
    table_lines = []
    try:
        for row in reader:
            cells = tuple(sys.intern(cell.strip()) for cell in row)
            table_lines.append(_Line(after + reader.line_num, cells if any(cells) else ()))
    except csv.Error as error:
        raise UserError(
            f"`{flag_text}` is not a table in line {after + reader.line_num} ({error}); correct it."
        ) from None
    return table_lines, False


def divider_of(lines: Sequence[str], kind: str) -> str | None:
    """Return the divider of the cells of lines; None if blanks divide them."""
    nonblank = [line for line in lines[:_LOOKED_AT] if line.strip()]
    looked_at = [line for line in nonblank if not line.startswith((*_SIGNS, BEGINS_DOCUMENT))] or nonblank
    first = next(iter(looked_at), "")
    if kind == ".csv":
        return max(",;\t|", key=first.count)
    if 2 * sum("\t" in line for line in looked_at) >= max(len(looked_at), 1):
        return "\t"
    if len({len(line.split()) for line in looked_at}) == 1 and len(first.split()) > 1:
        return None
    regular = [
        divider for divider in _DIVIDERS if divider in first and len({line.count(divider) for line in looked_at}) == 1
    ]
    return regular[0] if regular else None if kind == ".conll" else "\t"


def _has_sentences(listed: Sequence[_Line], plain: Sequence[_Line], kind: str, selection: ColumnSelection) -> bool:
    """Return whether a file has a sentence a row, and not a word a line."""
    if selection.text is not None:
        return not selection.is_word
    header = [ColumnSummary(cell, []) for cell in plain[0].cells]
    at = [i for i, line in enumerate(listed) if line.cells]
    has_gaps = any(not line.cells for line in listed[at[0] : at[-1]])
    if by_name(header, WORDS) and is_header(plain[0].cells, [line.cells for line in plain[1:]]):
        return False
    columns = _columns([""] * len(header), [line.cells for line in plain if len(line.cells) == len(header)])
    are_sentences = [column.are_sentences for column in columns]
    # Beside words that each have several words as their label, no column recurs as labels of sentences do.
    recurs = any(column.recurs for column, several in zip(columns, are_sentences, strict=True) if not several)
    if any(are_sentences) and (kind == ".csv" or are_sentences[0] or (recurs and not has_gaps)):
        return True
    return (kind == ".csv" or bool(by_name(header, TEXT))) and not has_gaps


def _sentences(filled: Sequence[_Line], selection: ColumnSelection) -> Rows:
    """Return the rows of a file of sentences; its first line names the columns unless it looks like all others."""
    first, *rest = filled
    n = len(first.cells)
    rows = [line for line in rest if len(line.cells) == n or not line.has_sign]
    if odd := next((line for line in rows if len(line.cells) != n), None):
        raise UserError(
            f"`{selection.flag_text}`: line {odd.number} has {count(len(odd.cells), 'cell')} and the header has {n}; "
            "put a cell that has the delimiter in quotation marks."
        )
    table = [line.cells for line in rows]
    names = first.cells if _is_header_of_sentences(first.cells, table, selection) else ()
    if twice := [name for name in names if name and names.count(name) > 1]:
        raise UserError(f"`{selection.flag_text}`: two columns are called {twice[0]}; rename one.")
    columns = _columns(names, table if names else [first.cells, *table])
    text = choose_sentences(columns, selection)
    if text is None:
        sentence_start = f"of the columns {', '.join(filter(None, names))}, it" if any(names) else "it"
        raise UserError(
            f"`{selection.flag_text}`: {sentence_start} is not clear which holds the sentences; give {_HEADER}, or "
            f"{selection.way_out(f'text={next(filter(None, names), 1)}')}."
        )
    label = label_of_sentences([column for column in columns if column is not text], selection)
    of = [column for column in columns if column is not text and (column.is_named or not names or column is label)]
    places = {"": text.place, **({"label": label.place} if label else {})}
    return Rows(
        list(text.rows[0]), {}, with_label({column.name: list(column.rows[0]) for column in of}, label), places=places
    )


def _is_header_of_sentences(first: Sequence[str], table: Sequence[Sequence[str]], selection: ColumnSelection) -> bool:
    """Return whether the first line of a file of sentences names its columns.

    It does not if it has a class of other lines, or a number where they have numbers. A line that may be a sentence
    with a label that no other line has is refused.
    """
    columns = _columns([""] * len(first), table)
    if by_name(_columns(first, []), (*TEXT, *LABEL)):
        return True
    pairs = list(zip(first, columns, strict=True))
    if any(cell in column.counts and column.recurs for cell, column in pairs):
        return False
    if any(column.are_numbers and ColumnSummary("", [[cell]]).are_numbers for cell, column in pairs):
        return False
    if any(ColumnSummary("", [[cell]]).are_sentences for cell in first) and not any(
        column.recurs for column in columns
    ):
        raise UserError(
            f"`{selection.flag_text}`: its first line, `{', '.join(first):.60}`, may be a sentence with its label, or "
            f"name the columns; put {_HEADER}, before it."
        )
    return True


def _columns(names: Sequence[str], table: Sequence[Sequence[str]]) -> list[ColumnSummary]:
    """Return the columns of rows of cells; columns without a name are numbered."""
    cells = zip(*table, strict=True) if table else [()] * len(names)
    names = names or [""] * len(table[0])
    pairs = enumerate(zip(names, cells, strict=True), 1)
    return [ColumnSummary(name or str(number), [column], bool(name), number) for number, (name, column) in pairs]


def _words(listed: Sequence[_Line], plain: Sequence[_Line], is_spaced: bool, selection: ColumnSelection) -> Rows:
    """Return the rows of a file of words, without comments and header; `plain` excludes blanks and likely comments."""
    widths = Counter(len(line.cells) for line in plain)
    is_named = 0 < selection.n_columns <= max(widths)
    n = selection.n_columns if is_named else widths.most_common(1)[0][0]
    header = plain[0] if is_header(plain[0].cells, [line.cells for line in plain[1:]]) else _Line(0, ())
    word_lines = [line for line in plain if line is not header and selection.fits(line.cells, n)]
    if odd := next(
        (line for line in plain if n < 2 or not selection.fits(line.cells, n)), None if word_lines else plain[0]
    ):
        raise _irregular(odd, n, selection)
    excluded = {line.number for line in listed if line.cells} - {line.number for line in word_lines}
    columns = _columns_of_words(_divided(listed, excluded, n)[0], header.cells[:n])
    words = choose_words(columns, selection)
    labels = choose_labels(columns, words, selection, are_in_order=True)
    at, of = columns.index(words), columns.index(labels or words)
    beside = [of] if labels else [i for i in range(n) if i != at] or [at]
    comments = _comments([line for line in listed if line is not header], word_lines, n, at, beside, is_spaced)
    excluded = {*comments, header.number}
    for line in listed:
        if line.cells and not (line.number in excluded or line.begins_document):
            if not selection.fits(line.cells, n):
                raise _irregular(line, n, selection)
            if not line.cells[at]:
                raise UserError(
                    f"`{selection.flag_text}`: line {line.number} has no word in column {words.name}; correct it."
                )
    sentences, begun = _divided(listed, excluded, n)
    columns = _columns_of_words(sentences, header.cells[:n])
    n_several = sum(n for text, n in columns[at].counts.items() if " " in text)
    n_words = columns[at].n_cells
    is_long = n_words > _MOST_WORDS * len(sentences) or 5 * n_several > n_words
    if is_long and len(sentences) == len(set(begun)):
        raise UserError(
            f"`{selection.flag_text}`: no empty line stands between its {n_words:,} words, which would be one "
            "sentence; put "
            f"an empty line after each sentence{f', or, where rows hold sentences, {_HEADER}' * (n_several > 0)}."
        )
    named_columns = {column.name: column.rows for column in columns if column.is_named} | {"form": columns[at].rows}
    places = {"": words.place, **({"label": labels.place} if labels else {})}
    return Rows(
        list(map(list, columns[at].rows)), named_columns | ({"label": columns[of].rows} if labels else {}),
        documents=begun, places=places,
        note=f"{count(len(comments), 'comment is', 'comments are')} left out" if comments else "",
    )  # fmt: skip


def _columns_of_words(sentences: Sequence[Sequence[tuple[str, ...]]], names: Sequence[str]) -> list[ColumnSummary]:
    """Return the columns of sentences of words; where none has a name, they are numbered."""
    turned = [list(zip(*sentence, strict=True)) for sentence in sentences]
    names = names or [""] * len(turned[0])
    return [
        ColumnSummary(name or str(number), [cells[number - 1] for cells in turned], bool(name), number)
        for number, name in enumerate(names, 1)
    ]


def _divided(listed: Sequence[_Line], excluded: Set[int], n: int) -> tuple[list[list[tuple[str, ...]]], list[int]]:
    """Divide lines into sentences of words' first `n` cells, with the number of documents begun up to each."""
    sentences: list[list[tuple[str, ...]]] = []
    begun: list[int] = []
    n_begun, is_new = 0, True
    for line in listed:
        begins = bool(line.cells) and (line.begins_document or bool(NEW_DOCUMENT.match(" ".join(line.cells))))
        if begins and (line.number in excluded or line.begins_document):
            n_begun, is_new = n_begun + 1, True
        elif not line.cells:
            is_new = True
        elif line.number not in excluded:
            if is_new:
                sentences.append([])
                begun.append(n_begun)
            sentences[-1].append(line.cells[:n])
            is_new = False
    return sentences, begun


def _comments(
    listed: Sequence[_Line], word_lines: Sequence[_Line], n: int, at: int, beside: Sequence[int], is_spaced: bool
) -> set[int]:
    """Return the numbers of the lines that are comments.

    A line that begins with a comment sign is a comment if it has another number of cells. So it is before the first
    word of a sentence if no word has its label, which is not the sign itself, or if it has a blank in a cell where no
    word has a blank. A sign in a separate cell is a word, unless there are many. `word_lines` are certainly words; `n`
    is the number of cells of a word, `at` the column of words, `beside` that of labels or, where none is known, all
    others, of which a word shares one with another word; `is_spaced` is whether blanks divide cells.
    """
    labels = {(of, line.cells[of]) for line in word_lines for of in beside}
    has_blanks = any(" " in line.cells[at] for line in word_lines)
    words, comments, is_start = {line.number for line in word_lines}, set[int](), True
    unclear: list[_Line] = []
    for line in listed:
        if not line.cells or line.begins_document:
            is_start = True
        elif line.number in words:
            is_start = False
        elif len(line.cells) != n:
            comments |= {line.number} if line.cells[0].startswith("#") or is_start else set()
        elif is_start and not has_blanks and " " in line.cells[0]:
            comments.add(line.number)
        elif is_start:
            unclear.append(line)
        else:
            labels |= {(of, line.cells[of]) for of in beside}
    unlabelled = [line for line in unclear if not any((of, line.cells[of]) in labels for of in beside)]
    alone = [line for line in unlabelled if line.cells[0] in _SIGNS and not is_spaced]
    certain = [line for line in unlabelled if not any(of and line.cells[0].startswith(line.cells[of]) for of in beside)]
    begin = {line.cells[:2] for line in certain if line not in alone or len(alone) > _FEW}
    return comments | {line.number for line in unclear if line.cells[:2] in begin}


def _irregular(line: _Line, n: int, selection: ColumnSelection) -> UserError:
    """Return the refusal of a line with another number of cells than there are columns."""
    actual = f"{count(len(line.cells), 'column')} (found {' '.join(line.cells)[:60]!r})"
    as_expected = f"since column {n} is read" if n == selection.n_columns else "as in most lines"
    expected = f"{n}, {as_expected}," if n > 1 else "a word and its label"
    way_out = f", or {selection.way_out('word=1&label=2')}" * (n > 2)  # where lines vary in further columns
    return UserError(
        f"`{selection.flag_text}`: line {line.number} has {actual}, where {expected} were expected; correct "
        f"it{way_out}."
    )
