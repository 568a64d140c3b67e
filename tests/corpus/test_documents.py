"""Documents: which sentences are of one, when they are kept whole, and what that does to the split and intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probing import Run, WandbOptions, fit
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.corpus import Corpus, from_sentences, from_words, load_corpus
from probing.corpus.splits import assign_splits, intervals_by_document, splits_by_document, splits_of
from probing.errors import UserError
from probing.statistics.intervals import MIN_SENTENCES, accuracy_interval
from probing.studies.fit.rank import rank
from probing.tables.conclusions import scope
from synthetic import LIGHTNING_WARNINGS

pytestmark = [pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS]
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
        assert one is not None
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
