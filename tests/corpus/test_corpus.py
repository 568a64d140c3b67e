"""Sentences in, which are of one document, and which side of the split they are on."""

from __future__ import annotations

import gzip
import hashlib
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probing import Run, WandbOptions, fit
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.errors import UserError
from probing.statistics import MIN_SENTENCES, accuracy_interval
from probing.studies.fit.rank import rank
from probing.tables.conclusions import scope
from probing.text import (
    Corpus,
    Split,
    assign_splits,
    compared,
    from_sentences,
    from_words,
    hold_out,
    intervals_by_document,
    load_corpus,
    split_key,
    splits_by_document,
    splits_of,
)
from probing.text.tables import builtin_sentences


def test_the_builtin_corpus_is_english_prose() -> None:
    sentences = load_corpus("builtin").sentences
    assert len(sentences) > 1500
    assert len(set(sentences)) == len(sentences)
    assert not [s for s in sentences if "::=" in s or ">>>" in s or "+--" in s or "====" in s]
    assert sum(s[-1] in ".!?:\"')" for s in sentences) == len(sentences)
    assert "Assert statements are a convenient way to insert debugging assertions into a program:" in sentences


def test_the_builtin_corpus_is_the_same_in_every_process() -> None:
    assert builtin_sentences() == builtin_sentences()


PLAIN = "One two.\nThree four.\n"


@pytest.mark.parametrize(
    ("text", "n_repeated"),
    [
        ("One two.\r\nThree four.\r\n", 0),
        ("One two.\rThree four.", 0),
        ("One two.\n\rThree four.\r\r\n", 0),
        ("\ufeffOne two.\nThree four.", 0),
        ("\ufeffOne two.\n\ufeffThree four.\n\ufeff", 0),
        ("\n  \t\n\xa0One  two. \n\n\x0cThree\tfour.\u3000\n", 0),
        ("One two.\nOne  two.\r\nThree four.\n\tOne two.\r", 2),
        ("One\u2028two.\nThree\x85four.\n", 0),
        ("One\x0ctwo.\nThree\x1efour.\n", 0),
    ],
)
def test_line_ends_marks_blanks_and_repetitions_do_not_matter(tmp_path: Path, text: str, n_repeated: int) -> None:
    paths = [tmp_path / "plain.txt", tmp_path / "text.txt", tmp_path / "text.txt.gz", tmp_path / "text"]
    paths[0].write_bytes(PLAIN.encode())
    paths[2].write_bytes(gzip.compress(text.encode()))
    for path in (paths[1], paths[3]):
        path.write_bytes(text.encode())
    plain, *others = (load_corpus(str(path)) for path in paths)
    assert plain.sentences == ("One two.", "Three four.")
    for corpus in others:
        assert corpus.sentences == plain.sentences
        assert corpus.fingerprint == plain.fingerprint
        assert corpus.n_repeated == n_repeated


def test_control_characters_stay_in_the_text(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"a\0b\x01 \x7f\n\0\n")
    assert load_corpus(str(path)).sentences == ("a\0b\x01 \x7f", "\0")


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_standard_input_is_a_corpus_packed_or_not(
    monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(pack(b"One.\nTwo.\n")), encoding="utf-8"))
    assert load_corpus("-").sentences == ("One.", "Two.")


PACKED = gzip.compress("".join(f"Sentence {i} of many.\n" for i in range(100)).encode(), mtime=0)


@pytest.mark.parametrize(
    "damaged",
    [PACKED[:-1], PACKED[:30], PACKED[:3], PACKED[:40] + b"\xff" * 8 + PACKED[48:], b"plain text\n", PACKED + b"more"],
)
def test_a_damaged_archive_is_refused(tmp_path: Path, damaged: bytes) -> None:
    path = tmp_path / "text.txt.gz"
    path.write_bytes(damaged)
    with pytest.raises(
        UserError, match=r"--test_corpus .*text\.txt\.gz` is not a complete gzip archive \(.+\); download it again"
    ):
        load_corpus(str(path), "--test_corpus")


@pytest.mark.parametrize("line_end", [b"\n", b"\r", b"\r\n"])
def test_text_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path, line_end: bytes) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(line_end.join([b"plain", b"caf\xe9 au lait", b""]))
    with pytest.raises(UserError, match=r"latin\.txt` is not UTF-8 \(line 2"):
        load_corpus(str(path))


@pytest.mark.parametrize("content", [b"", b"\n \n\t\n", b"\xef\xbb\xbf\r\n", gzip.compress(b"", mtime=0)])
def test_an_empty_corpus_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "empty.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match="holds no sentence"):
        load_corpus(str(path))


def test_missing_files_folders_and_unknown_types_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--test_corpus .*cannot be read"):
        load_corpus(str(tmp_path / "missing.txt"), "--test_corpus")
    for name in ("words.tvs", f"{'long' * 100}.tvs?label=2"):
        with pytest.raises(UserError, match=r"cannot be read \((no such file|file name too long)"):
            load_corpus(name)
    with pytest.raises(UserError, match="cannot be read"):
        load_corpus(str(tmp_path))
    for name in ("paper.pdf", "paper.pdf.gz", "paper.tar.gz", "paper.txt.bz2"):
        (path := tmp_path / name).touch()
        with pytest.raises(
            UserError, match=r"a file of type \.(pdf|pdf\.gz|tar\.gz|bz2) cannot be read; give `builtin`"
        ):
            load_corpus(str(path))
    with pytest.raises(UserError, match="cannot be read"):
        load_corpus("nul\0.txt")


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        (
            "words.iob",
            "dog\tB-LOC",
            "a file of type .iob cannot be read; its .* a tab and a label: rename it to .tsv",
        ),
        (
            "words.iob",
            "dog NN B-NP O",
            "a file of type .iob cannot be read; its lines look like words with 3 annotations",
        ),
        ("words.iob", "1\tdog" + "\t_" * 8, "a file of type .iob .* look like CoNLL-U: rename it to .conllu"),
        ("words.json", '{"words": ["dog"]}', "a file of type .json .* rename it to .jsonl"),
        ("words.txt", "dog\tB-LOC", "a sentence was expected in each line; .*: rename it to .tsv. To read lines as"),
        (
            "words",
            "dog NN B-NP O",
            "a sentence was expected in each line; its lines look like words with 3 annotations",
        ),
        ("words.txt", "1\tdog" + "\t_" * 8, "a sentence was expected .* rename it to .conllu"),
    ],
)
def test_tables_of_words_are_told_from_sentences(tmp_path: Path, name: str, line: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(f"{line}\n\n" * 6, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        load_corpus(str(path))


def test_sentences_with_tabs_or_of_equal_lengths_are_sentences(tmp_path: Path) -> None:
    for i, lines in enumerate((["the dog\tThe cat runs"] * 9, [f"word {i} B-x a" for i in range(9)], ["a\tO"] * 4)):
        path = tmp_path / f"{i}.txt"
        path.write_text("\n".join(lines), encoding="utf-8")
        assert load_corpus(str(path)).words is None


def test_the_fingerprint_depends_on_sentences_and_order() -> None:
    ab, ba = from_sentences("x", ["a b", "c d"]), from_sentences("x", ["c d", "a b"])
    assert ab.fingerprint == from_sentences("another name", ["a b", "c d"]).fingerprint
    assert ab.fingerprint == hashlib.sha256(b"a b\nc d\n").hexdigest()  # caches made by earlier versions go by it
    assert ab.fingerprint != ba.fingerprint
    assert ab.fingerprint != from_sentences("x", ["a b c d"]).fingerprint


def test_a_sentence_keeps_its_side_when_the_corpus_grows() -> None:
    sentences = [f"sentence number {i} of a corpus" for i in range(1000)]
    before = dict(zip(sentences[:500], assign_splits(sentences[:500], seed=0), strict=True))
    after = dict(zip(reversed(sentences), assign_splits(sentences[::-1], seed=0), strict=True))
    assert all(after[sentence] == side for sentence, side in before.items())


def test_the_split_is_80_10_10_and_depends_on_the_seed() -> None:
    sentences = [f"sentence number {i} of a corpus" for i in range(10_000)]
    sides = assign_splits(sentences, seed=0)
    # Four binomial standard errors at n = 10,000.
    shares: dict[Split, float] = {"train": 0.8, "validation": 0.1, "test": 0.1}
    for side, share in shares.items():
        assert abs(sides.count(side) / len(sides) - share) < 4 * (share * (1 - share) / len(sides)) ** 0.5
    assert sides != assign_splits(sentences, seed=1)


def test_near_duplicates_are_on_one_side() -> None:
    pairs = [(f"Line {i}: it works!", f"line {i} - It Works") for i in range(300)]
    for seed in range(3):
        left, right = (assign_splits(side, seed) for side in zip(*pairs, strict=True))
        assert left == right
    assert split_key("...") == "..."


def test_what_is_tested_on_leaves_the_training_corpus() -> None:
    main, test = from_sentences("main", ["A b.", "C d.", "E f."]), from_sentences("test", ["c D!"])
    kept, left_out = hold_out(main, test)
    assert (kept.sentences, left_out) == (("A b.", "E f."), ["C d."])
    with pytest.raises(UserError, match=r"every sentence .* such as `C d.` \(there: `c D!`\); nothing is left"):
        hold_out(Corpus("main", ("C d.",)), test)


@pytest.mark.parametrize(
    ("first", "second", "are_equal"),
    [
        ("C++ is", "C# is", False), ("कि", "की", False), ("ดี", "ดู", False), ("-1", "1", False),
        ("No :(", "No :)", False),
        ("It's 5%", "It's 5", False), ("Café", "CAFE\u0301", True), ("(Hello), “world”!", "hello world", True),
        ("你好。", "你好", True), ("...", "…", False),
    ],
)  # fmt: skip
def test_sentences_are_told_apart_by_marks_and_signs(first: str, second: str, are_equal: bool) -> None:
    assert (compared(first) == compared(second)) is are_equal


TREEBANK = """\
# newdoc id = x
# sent_id = 1
# text = Vámonos al mar 10 000 #1
1-2\tVámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tVamos\tir\tVERB\tV\tMood=Imp|Number=Plur\t0\troot\t0:root\tSpaceAfter=No
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t1:obj|8.1:nsubj\t_
3-4\tal\t_\t_\t_\t_\t_\t_\t_\t_
3\ta\ta\tADP\t_\t_\t5\tcase\t_\t_
4\tel\tel\tDET\t_\tDefinite=Def\t5\tdet\t_\t_
5\tmar\tmar\tNOUN\t_\t_\t1\tobl\t_\t_
5.1\tvamos\tir\tVERB\t_\t_\t_\t_\t1:conj\t_
6\t10 000\t10 000\tNUM\t_\t_\t5\tnummod\t_\t_
7\t#1\t_\tNOUN\t_\t_\t5\tflat\t_\tGloss=a=b|Note=c d

# text = ¡Oh!
0.1\te\te\t_\t_\t_\t_\t_\t0:root\t_
1\t¡\t¡\tPUNCT\t_\t_\t2\tpunct\t_\t_
2\tOh\toh\tINTJ\t_\t_\t0\troot\t_\t_
3\t!\t!\tPUNCT\t_\t_\t2\tpunct\t_\t_

# another reading of the same words
1\t¡\t¡\tX\t_\t_\t0\troot\t_\t_
2\tOh\toh\tX\t_\t_\t1\tflat\t_\t_
3\t!\t!\tX\t_\t_\t1\tflat\t_\t_

# a comment without words
"""


@pytest.mark.parametrize(
    ("suffix", "encode", "n_repeated"),
    [
        (".conllu", str.encode, 1),
        (".conllu", lambda text: ("\ufeff" + text.replace("\n", "\r\n")).encode(), 1),
        (".conllu", lambda text: text.replace("\n", "\r").encode(), 1),
        (".conllu", lambda text: ("\n\n" + text.replace("\n\n", "\n \n\n") + "\n" + text).rstrip().encode(), 4),
        (".conllu.gz", lambda text: gzip.compress(text.encode()), 1),
    ],
)
def test_a_treebank_gives_syntactic_words_and_their_columns(
    tmp_path: Path, suffix: str, encode: Callable[[str], bytes], n_repeated: int
) -> None:
    path = tmp_path / f"bank{suffix}"
    path.write_bytes(encode(TREEBANK))
    corpus = load_corpus(str(path))
    assert corpus.words == (("Vamos", "nos", "a", "el", "mar", "10 000", "#1"), ("¡", "Oh", "!"))
    assert corpus.sentences == ("Vamos nos a el mar 10 000 #1", "¡ Oh !")
    assert corpus.n_repeated == n_repeated
    assert list(corpus.columns) == ["form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc"]
    assert corpus.columns["form"] == corpus.words
    assert corpus.columns["upos"] == (("VERB", "PRON", "ADP", "DET", "NOUN", "NUM", "NOUN"), ("PUNCT", "INTJ", "PUNCT"))
    assert corpus.columns["head"] == (("0", "1", "5", "5", "1", "5", "5"), ("2", "0", "2"))
    assert corpus.columns["feats"][0][:2] == ("Mood=Imp|Number=Plur", "_")
    assert corpus.columns["deps"][0][1] == "1:obj|8.1:nsubj"
    assert corpus.columns["misc"][0][-1] == "Gloss=a=b|Note=c d"


WORD = "1\tOh\toh\tINTJ\t_\t_\t0\troot\t_\t_\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (WORD + "\n# x\nOh well\n", r"in line 4 \(Invalid line format"),
        ("1\tOh\toh\tINTJ\n", r"in line 1 \(expected 10 columns with a tab between them"),
        (WORD.replace("\n", "\t_\n"), "in line 1 .*expected 10 columns"),
        (WORD.replace("oh", "o  h"), "in line 1 .*and no double spaces"),
        (WORD.replace("\t", "  "), "in line 1 .*expected 10 columns"),
        (WORD + WORD.replace("1", "x", 1), r"in line 2 \('x' is not a valid ID"),
        (WORD + WORD, "in line 2 .*expected word 2 of the sentence, found '1'"),
        (WORD.replace("1", "_", 1), "in line 1 .*expected word 1 of the sentence, found '_'"),
        (WORD.replace("1", "2-1", 1), "in line 1 .*not a valid ID"),
        (WORD.replace("1", "9" * 5000, 1), "in line 1 "),
        (WORD.replace("Oh", "_") + "\n" + WORD.replace("Oh", "_"), "every form is `_`"),
        ("# only comments\n", "holds no sentence"),
        ("", "holds no sentence"),
    ],
)
def test_a_malformed_treebank_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bank.conllu"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=rf"`--corpus .*bank\.conllu`.*{message}") as caught:
        load_corpus(str(path))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


LISTS = [
    ["New York", "is", "big"],
    ["", " \t"],
    ["New", "York", "is", "big"],
    ["", "yes", " no\n"],
    ["New  York", "is", "big"],
]
TAGS = [("a", "b", "c"), ("d", "e"), ("f", "g", "h", "i"), ("j", "k", "l"), ("m", "n", "o")]


def test_words_keep_their_places_and_their_columns() -> None:
    corpus = from_words("x", LISTS, {"tag": TAGS})
    assert corpus.words == (("New York", "is", "big"), ("New", "York", "is", "big"), ("", "yes", "no"))
    assert corpus.sentences == ("New York is big", "New York is big", "yes no")
    assert corpus.columns == {"tag": (TAGS[0], TAGS[2], TAGS[3])}  # of equal sentences, the first one's
    assert corpus.n_repeated == 1
    with pytest.raises(UserError, match=r"`--test_corpus x` holds no sentence"):
        from_words("x", [["", " "], []], option="--test_corpus")


def test_the_fingerprint_depends_on_the_division_into_words() -> None:
    divisions = [[["a b", "c"]], [["a", "b c"]], [["a", "b", "c"]], [["a"], ["b", "c"]], [["a b c"]], [["", "a b c"]]]
    fingerprints = [from_words("x", division).fingerprint for division in divisions]
    fingerprints.append(from_sentences("x", ["a b c"]).fingerprint)
    assert len(set(fingerprints)) == 7
    assert from_words("y", divisions[0], {"tag": [("d", "e")]}).fingerprint == fingerprints[0]


def test_words_and_columns_stay_in_step_when_sentences_are_held_out() -> None:
    main = from_words("main", LISTS, {"tag": TAGS})
    kept, _ = hold_out(main, from_sentences("test", ["new york: is BIG!"]))
    assert kept == Corpus("main", ("yes no",), 1, (("", "yes", "no"),), {"tag": (TAGS[3],)}, relabelled={"tag": 1})


NO_WANDB = WandbOptions(mode="disabled")


def test_empty_lines_divide_documents_and_repeated_sentences_do_not_move_them() -> None:
    corpus = from_sentences("x", ["", "a b", "c d", "", "  ", "a b", "e f", "", "a b", "", "g h", ""])
    assert corpus.sentences == ("a b", "c d", "e f", "g h")
    assert corpus.documents == (0, 0, 1, 2)
    assert corpus.subset([1, 3]).documents == (0, 2)
    for lines in (["a", "b"], ["a", "b", "", ""], ["", "a", "b"], ["a", "", "a"]):
        assert from_sentences("x", lines).documents is None


def test_a_treebank_says_where_documents_begin(tmp_path: Path) -> None:
    def sentence(word: str, *comments: str) -> str:
        return "".join(f"{comment}\n" for comment in comments) + f"1\t{word}" + "\t_" * 8 + "\n\n"

    text = sentence("a", "# newdoc id = 1", "# sent_id = 1") + sentence("b", "# newdocument") + sentence("a")
    text += "\n" + sentence("c", "# sent_id = 4", "#newdoc") + sentence("d", "# newdoc") + sentence("e")
    (tmp_path / "t.conllu").write_text(text, encoding="utf-8")
    corpus = load_corpus(str(tmp_path / "t.conllu"))
    assert corpus.sentences == ("a", "b", "c", "d", "e")
    assert corpus.documents == (0, 0, 1, 2, 2)
    assert from_words("x", [["a"], ["b"]]).documents is None


def documents(n: int, length: int = 2) -> Corpus:
    return from_sentences("m", [line for i in range(n) for line in [*(f"w{i} {j}" for j in range(length)), ""]])


def test_documents_are_kept_whole_where_enough_are_tested_on() -> None:
    many, few, plain = documents(60), documents(59), from_sentences("p", ["a", "b"])
    for group_by, expected in (("auto", (True, False)), ("sentence", (False, False)), ("document", (True, True))):
        assert tuple(splits_by_document(group_by, one) for one in (many, few)) == expected  # type: ignore[arg-type]
        assert tuple(intervals_by_document(group_by, [one]) for one in (many, few)) == expected  # type: ignore[arg-type]
    # A test corpus of its own is tested on whole.
    assert intervals_by_document("auto", [plain, documents(20)])
    assert not intervals_by_document("auto", [many, documents(19)])
    assert not intervals_by_document("auto", [many, plain])
    assert not splits_by_document("auto", plain)
    with pytest.raises(UserError, match="`--group_by document`: `p` does not say where documents begin"):
        intervals_by_document("document", [many, plain])


@pytest.mark.parametrize("n", [60, 200, 1000])
def test_each_document_is_on_one_side_and_enough_are_tested_on(n: int) -> None:
    corpus = documents(n, 3)
    assert corpus.documents is not None
    splits = splits_of(corpus, 3, "auto")
    sides = [{splits[i] for i in range(len(splits)) if corpus.documents[i] == d} for d in range(n)]
    assert {len(own) for own in sides} == {1}
    tested = sum(own == {"test"} for own in sides)
    assert max(MIN_SENTENCES, 0.06 * n) <= tested <= max(0.15 * n, 2 * MIN_SENTENCES)
    assert splits == splits_of(corpus, 3, "document") != splits_of(corpus, 4, "auto")
    assert splits_of(corpus, 3, "sentence") == assign_splits(corpus.sentences, 3)


def test_no_sentence_is_on_two_sides_and_a_document_keeps_its_own() -> None:
    lines = [line for i in range(300) for line in (f"opening {i}", f"Thanks, all{'.' * (i % 7)}", f"w{i}", "")]
    corpus = from_sentences("x", lines)
    splits = splits_of(corpus, 0, "auto")
    of_thanks = {side for sentence, side in zip(corpus.sentences, splits, strict=True) if sentence[:6] == "Thanks"}
    assert len(of_thanks) == 1
    # Documents keep their side when they are reordered, and when others are added.
    other = from_sentences("y", [*lines[400:], "a new one", "", *lines[:400]])
    here, there = (
        {s: side for s, side in zip(one.sentences, splits_of(one, 0, "auto"), strict=True) if s[0] in "ow"}
        for one in (corpus, other)
    )
    assert here == {sentence: there[sentence] for sentence in here}


@pytest.fixture(scope="module")
def made(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Runs over sentences and over documents of three sentences."""
    place = tmp_path_factory.mktemp("documents")
    lines = corpus_file.read_text(encoding="utf-8").splitlines()
    (place / "d.txt").write_text(
        "\n".join(line + "\n" * (i % 3 == 2) for i, line in enumerate(lines)), encoding="utf-8"
    )
    options: dict[str, Any] = {
        "model": str(checkpoints["bert"]), "corpus": str(place / "d.txt"), "layer": "2", "replicates": 0,
        "controls": "shuffled", "evidence": "none", "task_args": {"min_count": 5}, "quiet": True, "wandb": NO_WANDB,
        "runs": str(place), "probe": {"tolerance": 1e-3, "l2": 1e-3}, "cache": str(place / "cache"),
    }  # fmt: skip
    found = {}
    for group_by in ("auto", "sentence"):
        one = fit(name=group_by, group_by=group_by, **options)
        found[group_by] = one
    return found


@pytest.mark.slow
def test_a_run_says_what_its_intervals_are_over(made: dict[str, Run]) -> None:
    over = {name: one.results["intervals_over"] for name, one in made.items()}
    assert {name: one.split_by for name, one in made.items()} == {"auto": "document", "sentence": "sentence"}
    assert over["auto"]["unit"] == "document"
    assert over["sentence"] == {"unit": "sentence", "n": made["sentence"].results["n_sentences"]["test"]}
    assert MIN_SENTENCES <= over["auto"]["n"] < over["sentence"]["n"]
    assert f"over {over['auto']['n']} test documents" in scope(made["auto"].results, None)
    assert "which the split keeps apart from training" in scope(made["auto"].results, None)
    assert "documents training has others" in scope(made["sentence"].results, None)
    assert scope(made["auto"].results, "other.txt").endswith("hold for other documents of other.txt.")
    assert "21 documents are too few" not in scope(made["auto"].results, None)
    assert "19 test documents are too few" in scope({"intervals_over": {"unit": "document", "n": 19}}, None)


@pytest.mark.slow
def test_no_test_document_is_trained_on_and_a_run_read_again_has_the_same_split(made: dict[str, Run]) -> None:
    corpus = load_corpus(made["auto"].config["corpus"])
    assert corpus.documents is not None
    of = dict(zip(corpus.sentences, corpus.documents, strict=True))
    splits = dict(zip(corpus.sentences, splits_of(corpus, 0, "auto"), strict=True))
    tested = made["auto"].test_sentences
    assert {splits[sentence] for sentence in tested} == {"test"}
    trained = {of[sentence] for sentence, side in splits.items() if side == "train"}
    shared = [sentence for sentence in tested if of[sentence] in trained]
    assert len(shared) <= 0.02 * len(tested)  # but for sentences that an earlier document has, too
    by_sentence = made["sentence"].test_sentences
    assert sum(of[sentence] in trained for sentence in by_sentence) > 0.2 * len(by_sentence)


@pytest.mark.slow
def test_the_interval_is_that_of_documents_and_other_commands_take_it_too(made: dict[str, Run]) -> None:
    for one in made.values():
        rows = rank(
            str(one.folder), method="weight", evaluate=True, k=[16], draws=1, quiet=True, wandb=NO_WANDB,
        ).evaluation  # fmt: skip
        every = next(row for row in rows if (row["probe"], row["from"]) == ("linear", "top"))
        width = every["accuracy_high"] - every["accuracy_low"]
        (own,) = one.accuracy
        # The same neurons and penalty, trained less far: nearly the same probe.
        assert width == pytest.approx(own["accuracy_high"] - own["accuracy_low"], rel=0.15)


def test_sentences_of_a_document_that_are_alike_make_the_interval_wider() -> None:
    generator = np.random.default_rng(0)
    documents = np.repeat(np.arange(100), 8)
    right = generator.random(800) < np.repeat(generator.uniform(0.1, 0.9, 100), 8)
    n = np.full(800, 5)
    correct = right * 5
    by_sentence = accuracy_interval(correct, n)
    by_document = accuracy_interval(np.bincount(documents, weights=correct), np.bincount(documents, weights=n))
    assert np.diff(by_document) > 1.3 * np.diff(by_sentence)


def test_documents_that_are_not_there_are_refused(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ["fit", "--model", str(checkpoints["bert"]), "--corpus", str(corpus_file), "--runs", str(tmp_path / "runs")]
    assert run(COMMANDS, [*typed, "--group_by", "document", "--cache", str(tmp_path / "cache")]) == 2
    error = capsys.readouterr().err
    assert "`--group_by document`" in error
    assert "`# newdoc`" in error
    assert not list(tmp_path.glob("runs/*"))
    assert run(COMMANDS, [*typed, "--group_by", "words"]) == 2
