"""Files of sentences and words as people have them: which column is which, and layouts that are known."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from collections import Counter
from html import unescape
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from probing.builtin_tasks.column import ColumnTask, Label

from conftest import BARE
from probing import WandbOptions, fit
from probing.errors import UserError
from probing.runs.places import read_from
from probing.text import Corpus, load_corpus
from probing.text.columns import label_of

NOUNS = ["river", "violin", "carpet", "farmer", "teacher", "bridge", "lamp", "basket", "kettle", "garden", "doctor"]
VERBS = ["repairs", "moves", "follows", "sees", "paints", "hears", "washes", "carries"]
OTHERS = {"DET": ["a", "the", "this", "every"], "ADJ": ["old", "cold", "green", "bright", "heavy"], "PUNCT": ["."]}
KINDS = ["DET", "ADJ", "NOUN", "VERB", "PUNCT"]
# What a label can be of a word's part of speech.
LABELS: dict[str, Any] = {
    "upper case": lambda pos: pos,
    "lower case": str.lower,
    "BIO": lambda pos: "B-THING" if pos == "NOUN" else "O",
    "dashes": lambda pos: "THG_B" if pos == "NOUN" else "-",
    "numbers": lambda pos: str(KINDS.index(pos)),
    "truth": lambda pos: str(pos == "NOUN"),
}
# What else stands in files of words, by the sentence's number, the word's, a count over the file, and the word.
BESIDE: dict[str, Any] = {
    "index": lambda i, j, n, word: str(j + 1),
    "identifier": lambda i, j, n, word: f"s{i}-{j}",
    "count": lambda i, j, n, word: str(n),
    "document": lambda i, j, n, word: f"wb/x/{i // 10:04d}",
    "sentence": lambda i, j, n, word: str(i),
    "missing": lambda i, j, n, word: "_",
    "dash": lambda i, j, n, word: "-",
    "score": lambda i, j, n, word: f"{(n * 7919) % 10007 / 10007:.4f}",
    "lemma": lambda i, j, n, word: word.removesuffix("s"),
    "capitals": lambda i, j, n, word: word.upper(),
    "span": lambda i, j, n, word: f"({n % 9})" if word in NOUNS else "-",
    "frequency": lambda i, j, n, word: str((n * 7919) % 5003),
    "features": lambda i, j, n, word: f"Number={len(word)}|Case=Nom",
}
COMMENTS = [
    "# id {i:06d}{gap}domain=en",
    "% sentence {i}",
    "// sent_id = {i}",
    "; {i}{gap}{i}",
    "#begin document (x/{i})",
]


def words_of(rng: Random) -> list[tuple[str, str]]:
    """Return a sentence of words with their parts of speech."""
    noun_phrases = [
        [(rng.choice(OTHERS["DET"]), "DET"), (rng.choice(OTHERS["ADJ"]), "ADJ"), (rng.choice(NOUNS), "NOUN")]
        for _ in range(2)
    ]
    return [*noun_phrases[0], (rng.choice(VERBS), "VERB"), *noun_phrases[1], (".", "PUNCT")]


def loaded(name: str, text: str, query: str = "") -> Corpus:
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(text, encoding="utf-8", newline="")
        return load_corpus(f"{path}{query}")


def distinct(sentences: list[Any], labels: list[Any]) -> tuple[list[Any], list[Any]]:
    first = dict(zip(reversed(sentences), reversed(labels), strict=True))
    return list(dict.fromkeys(sentences)), [first[sentence] for sentence in dict.fromkeys(sentences)]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.randoms(use_true_random=False), st.sampled_from(sorted(LABELS)), st.sampled_from(["\t", " ", "   "]),
    st.lists(st.sampled_from(sorted(BESIDE)), max_size=6, unique=True), st.sampled_from([None, *COMMENTS]),
    st.sampled_from([("tsv", "\n"), ("conll", "\n"), ("conll", "\r\n")]), st.booleans(), st.booleans(),
)  # fmt: skip
def test_words_and_labels_are_found_among_any_columns_in_any_order(
    rng: Random, kind: str, gap: str, beside: list[str], comment: str | None, file: tuple[str, str],
    has_documents: bool, has_mark: bool,
) -> None:  # fmt: skip
    columns = ["word", "label", *beside]
    rng.shuffle(columns)
    lines, words, labels, n = [], [], [], 0
    for i in range(40):
        if has_documents and i % 10 == 0:
            lines.append(gap.join(["-DOCSTART-", *["-X-"] * (len(columns) - 2), "O"]))
        lines += [comment.format(i=i, gap=gap)] if comment else []
        sentence = words_of(rng)
        for j, (word, pos) in enumerate(sentence):
            n += 1
            own = {"word": word, "label": LABELS[kind](pos)}
            lines.append(gap.join(own[name] if name in own else BESIDE[name](i, j, n, word) for name in columns))
        lines.append("")
        words.append(tuple(word for word, _ in sentence))
        labels.append(tuple(LABELS[kind](pos) for _, pos in sentence))
    ending, line_end = file
    corpus = loaded(f"a.{ending}", "\ufeff" * has_mark + line_end.join(lines))
    assert (list(corpus.words or ()), list(corpus.columns["label"])) == distinct(words, labels)
    at = {name: columns.index(name) + 1 for name in ("word", "label")}
    assert corpus.reading.startswith(f"word = column {at['word']}, label = column {at['label']} (")
    if has_documents:
        assert len(set(corpus.documents or ())) >= 4


TEXTS = {
    "blanks": lambda rng: " ".join(word for word, _ in words_of(rng)),
    "no blanks": lambda rng: "".join(rng.choices("上悲水山那差天小国火他不大好优家乐佳", k=12)) + "。",
}
# Labels of sentences as they are written in a file, the values that JSON has for them, and the classes.
CLASSES: dict[str, list[tuple[str, Any, str]]] = {
    "text": [("spam", "spam", "spam"), ("ham", "ham", "ham")],
    "floats": [("0.0", 0.0, "0"), ("1.0", 1, "1"), ("1", 1.0, "1")],
    "whole": [("0", 0, "0"), ("1", 1, "1")],
    "truth": [("TRUE", True, "True"), ("false", False, "False")],
    "several words": [("work of art", "work of art", "work of art"), ("good", "good", "good")],
}


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.randoms(use_true_random=False), st.sampled_from(sorted(TEXTS)), st.sampled_from(sorted(CLASSES)),
    st.sampled_from([("csv", ","), ("csv", ";"), ("csv", "\t"), ("tsv", "\t"), ("jsonl", "")]),
    st.sampled_from([("text", "label"), ("review", "stars"), None]), st.booleans(),
    st.lists(st.sampled_from(["id", "score", "split", "note"]), max_size=3, unique=True),
)  # fmt: skip
def test_sentences_and_labels_are_found_in_every_kind_of_file(
    rng: Random, script: str, kind: str, file: tuple[str, str], names: tuple[str, str] | None, is_excel: bool,
    beside: list[str],
) -> None:  # fmt: skip
    columns = ["text", "label", *beside]
    rng.shuffle(columns)
    drawn = [(TEXTS[script](rng), CLASSES[kind][i % len(CLASSES[kind])]) for i in range(40)]
    ending, gap = file
    is_json = ending == "jsonl"
    rows = []
    for i, (text, label) in enumerate(drawn):
        cells = {"text": text, "label": label[is_json], "id": f"u{i}", "score": f"{i / 41:.3f}", "split": "train"}
        rows.append([cells.get(name, "") for name in columns])
    named = dict(zip(("text", "label"), names or ("review", "stars"), strict=True))
    header = [named.get(name, name) for name in columns]
    if is_json:
        content = "".join(json.dumps(dict(zip(header, row, strict=True))) + "\n" for row in rows)
    elif ending == "tsv":
        content = "\r\n".join("\t".join(row) for row in ([header] if names else []) + rows)
    else:
        file_of = io.StringIO()
        csv.writer(file_of, delimiter=gap).writerows(([header] if names else []) + rows)
        content = f"sep={gap}\r\n" * is_excel + file_of.getvalue()
    corpus = loaded(f"a.{ending}", content)
    found = list(corpus.sentences), list(map(label_of, corpus.sentence_columns["label"]))
    assert found == distinct([text for text, _ in drawn], [label[2] for _, label in drawn])


# --- what cannot be told is refused, with the way to say it ---


def with_columns(*columns: Any) -> str:
    """Return a file of words; each column is a function of the number of a word, the word and its part of speech."""
    return "".join(
        "".join("\t".join(one(j, *pair) for one in columns) + "\n" for j, pair in enumerate(sentence)) + "\n"
        for sentence in map(words_of, map(Random, range(40)))
    )


WORD, POS = (lambda j, word, pos: word), (lambda j, word, pos: pos)
BIO, INDEX = (lambda j, word, pos: LABELS["BIO"](pos)), (lambda j, word, pos: str(j))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (with_columns(BIO, POS, WORD), r"the words are column 3 .*, and columns 1 \(O, B-THING\) and 2 .* may have"),
        (with_columns(WORD, INDEX), r"and none has the labels; name the columns .*\.conll\?word=1&label=2`"),
        (with_columns(INDEX, WORD), r"the words are column 2 .* none has the labels"),
        (with_columns(WORD, POS).replace("\n\n", "\n"), "no empty line stands between its 320 words"),
        ("a\tDET\nb\tDET\tx\n", "line 2 has 3 columns"),
    ],
)  # fmt: skip
def test_columns_that_cannot_be_told_are_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        loaded("a.conll", text)


def test_the_user_names_columns_by_number_or_by_name() -> None:
    text = with_columns(BIO, POS, WORD)
    for query, label in (("?word=3&label=1", "O"), ("?label=2", "DET")):
        corpus = loaded("a.conll", text, query)
        assert corpus.words is not None
        assert (corpus.words[0][0] in OTHERS["DET"], corpus.columns["label"][0][0]) == (True, label)
    corpus = loaded("a.tsv", f"token\tpos\tner\n{with_columns(WORD, POS, BIO)}", "?label=ner")
    assert corpus.reading.startswith("word = column token, label = column ner (")
    assert corpus.columns["pos"][0][0] == "DET"
    jsonl = json.dumps({"first": "A b.", "second": "C d.", "kind": "x"}) + "\n"
    corpus = loaded("a.jsonl", jsonl, "?text=second&label=kind")
    assert (corpus.sentences, corpus.sentence_columns["label"]) == (("C d.",), ("x",))
    # Lines may have further columns after the last one that is named, as in CoNLL-2012.
    ragged = "\n".join(f"{line}{chr(9) * (i % 3)}" if line else "" for i, line in enumerate(text.split("\n")))
    assert loaded("a.conll", ragged, "?word=3&label=1").words == loaded("a.conll", text, "?word=3&label=1").words


@pytest.mark.parametrize(
    ("name", "query", "message"),
    [
        ("a.conll", "?word=1&label=4", "there is no column 4; give one of 1, 2 as label="),
        ("a.conll", "?word=9", "there is no column 9; give one of 1, 2 as word="),
        ("a.conll", "?lable=2", "`lable` is not one of word, text, label (did you mean `label`?); expected FILE?"),
        ("a.conll", "?words=1", "expected FILE?word=W&label=L or FILE?text=T&label=L in quotation marks"),
        ("a.conll", "?word=1&text=2", "expected FILE?word=W"),
        ("a.txt", "?label=2", "a file of type .txt has no columns to name"),
    ],
)
def test_settings_that_do_not_apply_are_refused(name: str, query: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        loaded(name, with_columns(WORD, POS) if name.endswith("conll") else "A b.\n", query)
    assert message in str(caught.value)


def test_a_file_whose_name_has_a_question_mark_is_read(tmp_path: Path) -> None:
    (path := tmp_path / "a?word=2.tsv").write_text("a\tDET\n", encoding="utf-8")
    assert load_corpus(str(path)).words == (("a",),)


# --- words that look like something else ---


def test_words_that_begin_with_a_sign_are_no_comments() -> None:
    # Tags of social media: a hashtag has the tag #, and begins sentences.
    text = "".join(f"#tag{i}\t#\nis\tV\n@x\t@\n\n" for i in range(30)) + "%\tN\nis\tV\n\nup\tV\n%\tN\n"
    corpus = loaded("a.tsv", text)
    assert corpus.words is not None
    assert corpus.words[0] == ("#tag0", "is", "@x")
    assert corpus.words[-2:] == (("%", "is"), ("up", "%"))
    assert "comment" not in corpus.reading


FEATURES = lambda j, word, pos: BESIDE["features"](0, j, 0, word)  # noqa: E731


@pytest.mark.parametrize(
    ("header", "column"),
    [("", "3"), ("token\tpos\tner\n", "ner"), ("token\tupos\tner\n", "ner"), ("token\tpos\tner\tfeats\n", None)],
)
def test_neither_the_header_nor_a_word_that_begins_with_a_sign_is_a_comment(header: str, column: str | None) -> None:
    columns = [WORD, POS, BIO] + ([] if column else [FEATURES])
    line = "----==\tPUNCT\tO" + "\t_" * (column is None)
    corpus = loaded("a.tsv", f"{header}{line}\n{with_columns(*columns)}# sent 40\n{line}\n")
    assert corpus.words is not None
    assert (corpus.words[0][0], corpus.words[-1]) == ("----==", ("----==",))
    assert corpus.reading.endswith("1 comment is left out")
    # The last column has the labels with names as without, if it looks like labels.
    assert (f"label = column {column} (" in corpus.reading) == ("label" in corpus.columns) == (column is not None)


@pytest.mark.parametrize("joined", [True, False])
def test_a_line_that_begins_a_document_is_no_word(joined: bool) -> None:
    lines = with_columns(WORD, POS, BIO).split("\n\n")
    text = "\n\n".join(f"-DOCSTART-\t-X-\tO\n{'' if joined else chr(10)}{line}" for line in lines if line)
    corpus = loaded("a.conll", text)
    assert corpus.words == loaded("a.conll", with_columns(WORD, POS, BIO)).words
    assert len(set(corpus.documents or ())) == len(corpus.words or ())
    rows = [{"tokens": ["-DOCSTART-", "a", "b"], "tags": ["O", "X", "Y"]}, {"tokens": ["c"], "tags": ["X"]}]
    of_json = loaded("a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert (of_json.words, of_json.columns["label"]) == ((("a", "b"), ("c",)), (("X", "Y"), ("X",)))


# --- every run says what was read ---


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "a.csv",
            "id,sentence,first,second\n" + "".join(f'{i},"A b{i} c.",{"xy"[i % 2]},{"uv"[i % 2]}\n' for i in range(4)),
        ),
        ("a.tsv", "n\tword\ttag\tchunk\n1\tA\tDET\tB\n2\tcat\tNOUN\tI\n\n1\tIt\tPRON\tB\n2\truns\tVERB\tI\n"),
    ],
)
def test_a_number_counts_all_columns_of_a_file_also_beside_names(tmp_path: Path, name: str, text: str) -> None:
    (path := tmp_path / name).write_text(text, encoding="utf-8")
    header = text.partition("\n")[0].replace("\t", ",").split(",")
    key = "text" if name.endswith(".csv") else "word"
    for number in (3, 4):
        by_number = load_corpus(f"{path}?{key}=2&label={number}")
        by_name = load_corpus(f"{path}?{key}={header[1]}&label={header[number - 1]}")
        for of in ("sentences", "words"):
            assert getattr(by_number, of) == getattr(by_name, of)
        assert by_number.sentence_columns.get("label") == by_name.sentence_columns.get("label")
        assert by_number.columns.get("label") == by_name.columns.get("label")
    with pytest.raises(UserError, match="there is no column 5"):
        load_corpus(f"{path}?label=5")


def test_keys_of_json_have_no_number(tmp_path: Path) -> None:
    (path := tmp_path / "a.jsonl").write_text('{"id": 1, "text": "A b.", "kind": "x"}\n' * 2, encoding="utf-8")
    for query in ("?label=2", "?text=2"):
        with pytest.raises(UserError, match=r"there is no column 2; give one of id, .*kind"):
            load_corpus(f"{path}{query}")


def test_a_run_says_what_was_read_even_if_quiet_and_keeps_it(
    tmp_path: Path, checkpoints: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    rng = Random(0)
    path = tmp_path / "d.conll"
    blocks = [
        "".join(f"{j}\t{word}\t{pos}\t_\t{LABELS['dashes'](pos)}\n" for j, (word, pos) in enumerate(words_of(rng)))
        for _ in range(200)
    ]  # fmt: skip
    path.write_text("\n".join(blocks), encoding="utf-8")
    how: Any = {"model": str(checkpoints["bert"]), "layer": 1, "runs": str(tmp_path / "runs"), **BARE}
    for name, query, task, begins in (
        ("last", "", "label", "word = column 2, label = column 5 ("),
        ("third", "?word=2&label=3", "label", "word = column 2, label = column 3 ("),
        ("unused", "", "position", "word = column 2, label = column 5 ("),
    ):
        corpus = f"{path}{query}"
        run = fit(**how, corpus=corpus, task=task, name=name, quiet=True, wandb=WandbOptions(mode="disabled"))
        read = run.results["cache"]["test"]["read"]
        assert read.startswith(begins)
        assert capsys.readouterr().err.count(f"read {corpus}: {read}\n") == 1
        assert read in unescape((run.folder / "report.html").read_text(encoding="utf-8"))
        assert run.test_sentences  # which are read again, without a word
        assert "read " not in capsys.readouterr().err
    assert read_from({"corpus": f"{path}?word=2", "model": "minilm", "task": "label"}, tmp_path)["read_from"]["corpus"][
        "path"
    ] == str(path)


def test_the_two_first_labels_are_shown_with_their_words() -> None:
    corpus = loaded("d.conll", "1\tthe\t-\n2\triver\tTHG_B\n\n1\tit\t-\n")
    assert (
        corpus.reading == 'word = column 2, label = column 3 ("the" -, "river" THG_B), 2 sentences, 3 words, 2 labels'
    )


def test_words_whose_labels_are_several_words_are_words() -> None:
    for gap in ("", "\n"):
        lines = [f"w{i}\tsense {i} of it\n{gap}" for i in range(6)]
        assert loaded("a.tsv", "".join(lines)).columns["label"][0][0] == "sense 0 of it"
    assert loaded("a.tsv", "水\t㐀㐀㐀㐀㐀㐀㐀\n").words == (("水",),)


def write(path: Path, *rows: Any) -> str:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_lists_are_values_of_words_and_others_of_the_sentence(tmp_path: Path) -> None:
    rows = [
        {"words": ["Dogs", "bark"], "labels": ["N", "V"], "number": [3, None], "tone": "plain", "score": 0.5, "x": {}},
        "\n",
        {"words": ["Dogs", "bark"], "labels": ["X", "X"]},
        {"words": ["He  is", "né"], "labels": None, "score": 1, "number": [1, 2]},
    ]
    path = write(tmp_path / "words.jsonl", *rows)
    corpus = load_corpus(path)
    assert corpus.words == (("Dogs", "bark"), ("He is", "né"))
    assert corpus.columns["labels"] == corpus.columns["label"] == (("N", "V"), ("_", "_"))
    assert corpus.columns["number"] == (("3", "_"), ("1", "2"))
    assert corpus.sentence_columns == {"tone": ("plain", None), "score": (0.5, 1)}
    assert corpus.n_repeated == 1
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress(Path(path).read_bytes()))
    assert load_corpus(str(packed)).fingerprint == corpus.fingerprint


def test_running_text_has_values_of_sentences(tmp_path: Path) -> None:
    rows = [{"id": 1, "text": " Dogs  bark. ", "label": "a", "spans": [1, 2]}, {"text": "He is.", "label": None}]
    corpus = load_corpus(write(tmp_path / "text.jsonl", *rows))
    assert corpus.sentences == ("Dogs bark.", "He is.")
    assert (corpus.words, corpus.columns) == (None, {})
    assert corpus.sentence_columns == {"id": (1, None), "label": ("a", None)}


def test_rows_without_text_are_counted(tmp_path: Path) -> None:
    rows = [{"text": "a"}, {"text": ""}, {"text": " \t"}, {"text": "a"}]
    corpus = load_corpus(write(tmp_path / "a.jsonl", *rows))
    assert (corpus.sentences, corpus.n_repeated, corpus.n_without_text) == (("a",), 1, 2)
    words = [{"words": ["-DOCSTART-"]}, {"words": ["a"]}, {"words": []}, {"words": ["", " "]}, {"words": ["b"]}]
    corpus = load_corpus(write(tmp_path / "b.jsonl", *words))
    assert (corpus.sentences, corpus.n_repeated, corpus.n_without_text) == (("a", "b"), 0, 2)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (['{"words": ["a"]}\n', "{words\n"], r"line 2 is not JSON \(.*, in '{words'\); expected lines such as"),
        (['["a"]\n'], r"line 1 is not a JSON object \(found '\[\"a\"\]'\)"),
        ([{"label": "a"}], "line 1 has no sentence as 'words' or 'text'"),
        ([{"words": ["a"]}, {"text": "a"}], "line 2 has no list of words as 'words', which the first line has"),
        ([{"words": ["a", 3]}], "line 1 has no list of words"),
        ([{"text": "a b"}, {"text": ["a", "b"]}], "line 2 has no sentence as 'text'"),
        ([{"sentence1": "a b", "sentence2": "c d"}], r"no sentence as 'words' or 'text'; .*\?text=sentence1`"),
        ([{"words": ["a", "b"], "labels": ["N"]}], "line 1 has 1 values as 'labels' for its 2 words"),
        ([{"words": ["a"], "tag": ["N"]}, {"words": ["b"], "tag": "N"}], "line 2 has 'N' as 'tag' for its 1 words"),
        (["\n"], "holds no sentence"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, rows: list[Any], message: str) -> None:
    path = write(tmp_path / "wrong.jsonl", *rows)
    with pytest.raises(UserError, match=rf"^`--corpus {path}`:? .*{message}"):
        load_corpus(path)


def test_the_task_label_reads_it_as_it_reads_a_tsv_file(
    tmp_path: Path, checkpoints: dict[str, Path], sentences: list[str]
) -> None:
    labelled = [[(word, "LONG" if len(word) > 5 else "SHORT") for word in text.split()] for text in sentences]
    tsv = tmp_path / "words.tsv"
    tsv.write_text(
        "\n".join("".join(f"{word}\t{label}\n" for word, label in rows) for rows in labelled), encoding="utf-8"
    )
    objects = [{"words": [w for w, _ in rows], "labels": [label for _, label in rows]} for rows in labelled]
    jsonl = write(tmp_path / "words.jsonl", *objects)
    assert load_corpus(str(tsv)).columns["label"] == load_corpus(jsonl).columns["label"]
    runs = [
        fit(
            model=str(checkpoints["bert"]), corpus=corpus, task=Label(), layer=2, name=name, quiet=True,
            runs=str(tmp_path / "runs"), wandb=WandbOptions(mode="disabled"), **BARE,
        )
        for name, corpus in (("tsv", str(tsv)), ("jsonl", jsonl))
    ]  # fmt: skip
    by_tsv, by_jsonl = (made for made in runs if made is not None)
    assert by_tsv.results["classes"] == ["LONG", "SHORT"]
    assert by_tsv.neurons == by_jsonl.neurons
    assert by_jsonl.config["task"] == "label"


ROWS = [(f"Sentence {i}, of some words.", ("good", "bad")[i % 2]) for i in range(6)]


def written(path: Path, header: list[str], rows: list[list[str]], **how: str) -> str:
    text = io.StringIO()
    csv.writer(text, **how).writerows([header, *rows])  # type: ignore[arg-type]
    path.write_text(text.getvalue(), encoding="utf-8")
    return str(path)


def read(path: Path, text: str) -> Corpus:
    path.write_text(text, encoding="utf-8")
    return load_corpus(str(path))


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("ending", ["csv", "csv.gz", "tsv"])
def test_named_columns_are_read_as_they_are_named(tmp_path: Path, delimiter: str, ending: str) -> None:
    if ending == "tsv" and delimiter != "\t":
        pytest.skip("the name says what divides cells")
    rows = [[label, text, "x"] for text, label in ROWS]
    file = Path(written(tmp_path / "own", ["Label", "Text", ""], rows, delimiter=delimiter))
    path = tmp_path / f"own.{ending}"
    path.write_bytes(gzip.compress(file.read_bytes()) if ending.endswith("gz") else file.read_bytes())
    corpus = load_corpus(str(path))
    assert corpus.sentences == tuple(text for text, _ in ROWS)
    assert corpus.sentence_columns["label"] == tuple(label for _, label in ROWS)
    assert corpus.reading.startswith('text = column Text, label = column Label ("Sentence 0, of some words." good, ')


def test_quoted_cells_have_delimiters_quotation_marks_and_line_ends(tmp_path: Path) -> None:
    corpus = load_corpus(
        written(tmp_path / "a.csv", ["text", "label"], [['He said "a, b",\nand c.', "x"], ["D e.", "y"]])
    )
    assert corpus.sentences == ('He said "a, b", and c.', "D e.")
    # In a .tsv file, quotation marks are characters as any other.
    assert read(tmp_path / "a.tsv", 'text\tlabel\n"A b\tx\nC "d" e"\ty\n').sentences == ('"A b', 'C "d" e"')


@pytest.mark.parametrize(
    ("header", "row", "label", "text"),
    [
        (["review", "stars"], [], "stars", "review"),
        (["id", "sentence", "topic"], ["id"], "topic", "sentence"),
        (["id", "body", "labels"], ["id"], "labels", "body"),
    ],
)
def test_what_is_chosen_is_said(tmp_path: Path, header: list[str], row: list[str], label: str, text: str) -> None:
    rows = [[*(f"{name}{i}" for name in row), *pair] for i, pair in enumerate(ROWS)]
    corpus = load_corpus(written(tmp_path / "own.csv", header, rows))
    assert corpus.sentences == tuple(text for text, _ in ROWS)
    assert corpus.reading.startswith(f"text = column {text}, label = column {label} (")
    assert corpus.sentence_columns[label] == tuple(one for _, one in ROWS)
    assert corpus.sentence_columns["label" if label != "labels" else label] == corpus.sentence_columns[label]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "", "holds no sentence: expected a first line"),
        ("a.csv", "text,label\n", "holds no sentence"),
        ("a.csv", "text,label\nA b.\n", "line 2 has 1 cell and the header has 2"),
        ("a.csv", "text,label\nA b, c,x\n", "line 2 has 3 cells"),
        ("a.csv", 'text,label\n"A b,x\nC d,y\n', "is not a table in line"),
        ("a.csv", "text,text\nA b,x\n", "two columns are called text"),
        ("a.csv", "a,b\nA b,c d\nE f,g h\n", "of the columns a, b, it is not clear which holds the sentences"),
        ("a.csv", "a,b\nx,y\nz,w\n", "it is not clear which"),
        (
            "a.tsv",
            "A sentence here.\tx\nAnother one.\ty\n",
            "may be a sentence with its label, or name the columns; put a first line",
        ),
        ("a.conll", "EU NNP B\nrejects VBZ\n", r"line 2 has 2 columns \(found 'rejects VBZ'\), where 3"),
        ("a.conll", "EU\nrejects\n", "a word and its label were expected"),
    ],
)
def test_a_table_that_cannot_be_told_is_refused(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read(tmp_path / name, text)


def test_a_file_of_words_stays_one_whatever_its_words_and_labels(tmp_path: Path) -> None:
    assert read(tmp_path / "one.tsv", "Mona\twork of art\nLisa\twork of art\n").words == (("Mona", "Lisa"),)
    corpus = read(tmp_path / "words.tsv", "text\tNOUN\nis\tVERB\n\nsentence\tNOUN\nNew York\tPROPN\n")
    assert corpus.sentences == ("text is", "sentence New York")
    assert corpus.columns["label"] == (("NOUN", "VERB"), ("NOUN", "PROPN"))


@pytest.mark.parametrize("divider", [" ", "\t", "   "])
def test_conll_has_words_first_and_labels_last(tmp_path: Path, divider: str) -> None:
    lines = [
        "-DOCSTART- -X- O",
        "",
        "EU NNP B-ORG",
        "# NN O",
        "",
        "# id = 2",
        "-DOCSTART- -X- O",
        "",
        "Peter NNP B-PER",
        "",
    ]
    text = "\n".join(line if line.startswith("# id") else line.replace(" ", divider) for line in lines)
    corpus = read(tmp_path / "ner.conll", text)
    assert corpus.words == (("EU", "#"), ("Peter",))
    assert corpus.columns["label"] == (("B-ORG", "O"), ("B-PER",))
    assert corpus.documents == (0, 1)


def test_conll_of_ten_columns_is_a_treebank(tmp_path: Path) -> None:
    words = ["1 The the DET DT _ 2 det _ _", "2 dog dog NOUN NN _ 0 root _ _", ""]
    lines = ["# newdoc", *words, "# newdoc", *(line.replace("dog", "cat") for line in words)]
    text = "\n".join(line if line.startswith("#") else line.replace(" ", "\t") for line in lines)
    corpus = read(tmp_path / "a.conll", text)
    assert corpus.columns["upos"] == (("DET", "NOUN"), ("DET", "NOUN"))
    assert corpus.documents == (0, 1)
    path = tmp_path / "keys.conllu"
    path.write_text(text.replace("det\t_\t_", "det\t_\tSpaceAfter=No|NER=O"), encoding="utf-8")
    reading = load_corpus(str(path), column_of=ColumnTask(column="NER").column_of).reading
    assert reading == 'word = column form, label = NER of column misc ("The" O), 2 sentences, 4 words, 1 label'


def test_labels_that_are_not_used_are_said(
    checkpoints: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [[f"Some words {'and others ' * (i % 9)}in sentence {i}.", "ab"[i % 2]] for i in range(300)]
    file = written(tmp_path / "own.csv", ["review", "stars"], rows)
    how = {"model": checkpoints["bert"], "corpus": file, "layer": 1, "runs": tmp_path / "runs", **BARE}
    fit(**how, wandb=WandbOptions(mode="disabled"))
    said = capsys.readouterr().err
    assert "own.csv: its labels are not used; `--task sentence_label` predicts them" in said
    assert "own.csv: text = column review, label = column stars (" in said
    run = fit(**how, task="sentence_label", wandb=WandbOptions(mode="disabled"))
    assert run.results["classes"] == ["a", "b"]
    assert "not used" not in capsys.readouterr().err


def test_a_table_without_names_of_columns_does_not_lose_its_first_row(tmp_path: Path) -> None:
    rows = [[text, label] for text, label in ROWS]
    corpus = load_corpus(written(tmp_path / "own.csv", rows[0], rows[1:]))
    assert corpus.sentences == tuple(text for text, _ in ROWS)
    assert corpus.sentence_columns["label"] == tuple(label for _, label in ROWS)
    assert corpus.reading.startswith('text = column 1, label = column 2 ("Sentence 0, ')
    # A name that no row has as its label is a name.
    assert len(load_corpus(written(tmp_path / "named.csv", ["What they said", "quality"], rows)).sentences) == len(ROWS)


@pytest.mark.parametrize(
    ("task", "column", "words"),
    [
        ("sentence_label", {}, r"reads the column label .* has id, year, genre; .* `task_args={.column.: .year.}`"),
        ("sentence_label", {"column": "gnre"}, r"\(did you mean `genre`\?\); name one of them"),
        ("label", {}, r"columns of sentences \(id, year, genre\); `task=.sentence_label., task_args={.column.: .id.}`"),
        ("column", {"column": "genre"}, r"`task=.sentence_label., task_args={.column.: .genre.}` predicts these"),
    ],
)
def test_a_column_that_is_not_there_or_of_sentences_is_said_with_the_way_to_it(
    tmp_path: Path, task: str, column: dict[str, str], words: str, checkpoints: dict[str, Path]
) -> None:
    rows = [[str(i), text, str(2000 + i % 2), label] for i, (text, label) in enumerate(ROWS)]
    path = written(tmp_path / "own.csv", ["id", "text", "year", "genre"], rows)
    with pytest.raises(UserError, match=words):
        fit(model=str(checkpoints["bert"]), corpus=path, task=task, task_args=column, layer=0, runs=str(tmp_path))


WORDS = ["dog", "Zürich", "don't", "naïve", ":)", "@user", "#tag", "http://t.co/x", "10 000", "कि", "$5", '"']


def iob(rng: random.Random) -> str:
    """Return WNUT's layout: a word, a tab and a tag; lines between sentences that are blank or have a tab alone."""
    tags = ["O", "O", "O", "B-person", "I-person", "B-creative-work"]
    lines = []
    for i in range(80):
        lines += [f"{word}{i % 7 or ''}\t{rng.choice(tags)}" for word in rng.choices(WORDS, k=rng.randint(1, 9))]
        lines.append(rng.choice(["", "\t", " "]))
    return "\n".join(lines)


def universal(rng: random.Random, documents: bool) -> str:
    """Return CoNLL-U with ranges of multiword tokens, empty nodes, comments and (as GUM has) documents."""
    lines = []
    for i in range(80):
        if documents and i % 9 == 0:
            lines.append(f"# newdoc id = GUM_x_{i}")
            lines.append("# meta::genre = interview")
        lines += [f"# sent_id = {i}", f"# text = sentence {i}"]
        n = rng.randint(1, 9)
        for number in range(1, n + 1):
            if number < n and rng.random() < 0.2:
                lines.append(f"{number}-{number + 1}\tdel\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No")
            relation = rng.choice(["nsubj", "obl:agent", "punct"])
            tag, word = rng.choice(["NOUN", "VERB", "PUNCT", "_"]), f"{rng.choice(WORDS)}{i % 7 or ''}"
            lines.append(
                f"{number}\t{word}\t{word}\t{tag}\tNN\t_\t{number - 1}\t{relation}\t_\tEntity=(1-person|SpaceAfter=No"
            )
            if rng.random() < 0.2:
                lines.append(f"{number}.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t{number}:conj\tCopyOf=1")
        lines.append("")
    return "\n".join(lines) + "\n"


def counted(text: str, column: int) -> tuple[Counter[tuple[str, str]], int, int]:
    """Count words with their labels, sentences and repeated sentences, line by line."""
    seen, found, n_repeated = set(), Counter[tuple[str, str]](), 0
    block: list[tuple[str, str]] = []
    for line in [*text.split("\n"), ""]:
        cells = line.split("\t")
        if line.strip():
            if column > 1 and (line[0] == "#" or not cells[0].isdigit()):
                continue
            block.append((cells[1 if column > 1 else 0], cells[column].strip()))
        elif block:
            words = tuple(word for word, _ in block)
            n_repeated += words in seen
            if words not in seen:
                found.update(block)
                seen.add(words)
            block = []
    return found, len(seen), n_repeated


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("layout", "name", "column"), [("wnut", "label", 1), ("gum", "upos", 3), ("pud", "deprel", 7)])
def test_a_file_agrees_with_an_independent_count(
    tmp_path: Path, layout: str, name: str, column: int, seed: int
) -> None:
    rng = random.Random(seed)
    text = iob(rng) if layout == "wnut" else universal(rng, documents=layout == "gum")
    path = tmp_path / f"{layout}.{'tsv' if layout == 'wnut' else 'conllu'}"
    path.write_text(text, encoding="utf-8")
    corpus = load_corpus(str(path))
    found, n_sentences, n_repeated = counted(text, column)
    assert (len(corpus.sentences), corpus.n_repeated) == (n_sentences, n_repeated)
    rows = zip(corpus.words or (), corpus.columns[name], strict=True)
    pairs = [pair for words, values in rows for pair in zip(words, values, strict=True)]
    assert Counter(pairs) == found
    assert sum(1 for _, value in pairs if not label_of(value)) == sum(n for (_, tag), n in found.items() if tag == "_")
    assert (corpus.documents is not None) is (layout == "gum")
