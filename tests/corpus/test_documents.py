"""Intervals over documents: which sentences are of one, when they are taken, and what that does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probing import Run, WandbOptions, fit
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.commands.rank import rank
from probing.corpus import from_sentences, from_words, load_corpus
from probing.corpus.splits import assign_splits
from probing.data.preparation import goes_by_document
from probing.errors import UserError
from probing.statistics.intervals import MIN_SENTENCES, accuracy_interval, scope
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


def test_documents_are_taken_where_enough_are_tested_on() -> None:
    many = from_sentences("m", [line for i in range(400) for line in (f"w{i} x", f"w{i} y", "")])
    splits = assign_splits(many.sentences, 0)
    assert many.documents is not None
    tested = {document for document, split in zip(many.documents, splits, strict=True) if split == "test"}
    assert len(tested) > MIN_SENTENCES
    few = from_sentences("f", [line for i in range(10) for line in [*(f"w{i} {j}" for j in range(80)), ""]])
    few_splits, plain = assign_splits(few.sentences, 0), from_sentences("p", ["a", "b"])
    for group_by, expected in (("auto", (True, False)), ("sentence", (False, False)), ("document", (True, True))):
        found = tuple(goes_by_document(group_by, *of) for of in ((many, splits), (few, few_splits)))  # type: ignore[arg-type]
        assert found == expected
    assert not goes_by_document("auto", plain, ["test", "test"])
    with pytest.raises(UserError, match="`--group_by document`: `p` does not say where documents begin"):
        goes_by_document("document", plain, ["test", "test"])


@pytest.fixture(scope="module")
def made(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Runs over sentences and over documents of three sentences, of which the first is always tested on."""
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
def test_a_run_says_what_its_intervals_are_over_and_only_they_change(made: dict[str, Run]) -> None:
    over = {name: one.results["intervals_over"] for name, one in made.items()}
    assert over["auto"]["unit"] == "document"
    assert over["sentence"] == {"unit": "sentence", "n": made["sentence"].results["n_sentences"]["test"]}
    assert MIN_SENTENCES <= over["auto"]["n"] < over["sentence"]["n"]
    (auto,), (sentence,) = (one.accuracy for one in made.values())
    ends = {name for name in auto if name.endswith(("_low", "_high"))}
    assert {name for name in auto if auto[name] != sentence[name] and auto[name] == auto[name]} == ends
    assert f"over {over['auto']['n']} test documents" in scope(made["auto"].results, None)
    assert "they hold for other sentences of such documents" in scope(made["auto"].results, None)
    assert "--test_corpus tests on another text" in scope(made["sentence"].results, None)
    assert scope(made["auto"].results, "other.txt").endswith("hold for other documents of other.txt.")
    assert "21 documents are too few" not in scope(made["auto"].results, None)
    assert "19 test documents are too few" in scope({"intervals_over": {"unit": "document", "n": 19}}, None)


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
