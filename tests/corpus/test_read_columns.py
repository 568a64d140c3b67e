"""Which column has the words or sentences, and which the labels: told right or refused, whatever else a file holds."""

from __future__ import annotations

import csv
import io
import json
from html import unescape
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import BARE
from probing import UserError, WandbOptions, fit
from probing.corpus import Corpus, load_corpus
from probing.corpus.columns import label_of
from probing.runs.places import read_from

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
        ("a.conll", "?word=9", "there is no column 9; give one of 1, 2 as word="),
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
    assert "comments" not in corpus.reading


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
