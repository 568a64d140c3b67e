from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from families import FAMILIES, make_tokenizer
from probing.errors import UserError
from probing.studies.cloze.predictor import MASK, prompts_of, read_pairs

pytestmark = pytest.mark.numeric

KNOWN = ["The layer reads the token.", "The neuron reads the layer.", "Every probe reads the word that is here."] * 9


def pairs_of(folder: Path, text: str) -> list[object]:
    (folder / "pairs.tsv").write_text(text, encoding="utf-8")
    return list(read_pairs(str(folder / "pairs.tsv"))[0])


def test_the_pairs_that_come_with_the_program_are_read() -> None:
    pairs, n_repeated = read_pairs("builtin")
    assert n_repeated == 0
    assert Counter(pair.group for pair in pairs) == {
        "agreement": 8, "reflexive": 8, "negative polarity": 8, "affirmative": 8, "negated": 8
    }  # fmt: skip
    # A model that does not heed "not" gets the one group wrong as often as it gets the other right.
    of = {group: {pair.text: (pair.good, pair.bad) for pair in pairs if pair.group == group}
          for group in ("affirmative", "negated")}  # fmt: skip
    assert {text.replace(" is ", " is not "): words[::-1] for text, words in of["affirmative"].items()} == of["negated"]


def test_lines_are_read_in_order_without_repetitions(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("a  [MASK].\tis\tare\tx\n\nb [MASK].\tis\tare\ty\na [MASK].\tis\tare\tx\n", encoding="utf-8")
    pairs, n_repeated = read_pairs(str(file))
    assert [(pair.line, pair.text, pair.good, pair.bad, pair.group) for pair in pairs] == [
        (1, "a [MASK].", "is", "are", "x"), (3, "b [MASK].", "is", "are", "y")
    ]  # fmt: skip
    assert n_repeated == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a [MASK].\tis\tare", "line 1: expected a text, a good word, a bad word and a group .*found 3 of them"),
        ("a [MASK].\tis\t\tx", "found 3 of them"),
        ("a mask.\tis\tare\tx", r"the text has \[MASK\] 0 times; write it once"),
        ("[MASK] [MASK].\tis\tare\tx", "2 times"),
        ("", "holds no pair"),
    ],
)
def test_a_line_that_is_no_pair_is_refused(line: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        pairs_of(tmp_path, f"{line}\n")


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match=r"`cloze nowhere.tsv` cannot be read .*; give builtin, or a file of lines"):
        read_pairs("nowhere.tsv")


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_words_are_the_pieces_that_stand_in_the_place_of_the_mask(family: str, tmp_path: Path) -> None:
    tokenizer = make_tokenizer(FAMILIES[family].tokenizer, KNOWN)
    text = (
        "The layer reads the [MASK].\ttoken\tlayer\tx\n[MASK] neuron reads the layer.\tThe\tEvery\tx\n"
        "The layer reads the [MASK].\trr\ttr\tx\n"  # which differ in one piece, and are two
        "The layer reads the [MASK].\tlatherod\tlayer\tx\nThe layer reads the [MASK].\tlayer\tlayer\tx\n"
    )
    (tmp_path / "pairs.tsv").write_text(text, encoding="utf-8")
    prompts = prompts_of(tokenizer, read_pairs(str(tmp_path / "pairs.tsv"))[0], 100, "cloze")
    assert [pair.line for pair in prompts.pairs] == [1, 2]
    assert prompts.left_out == {
        "a word is not a single piece of the vocabulary": 2, "the vocabulary does not tell the two words apart": 1
    }  # fmt: skip
    for i, pair in enumerate(prompts.pairs):
        ids = prompts.tokens.input_ids[prompts.tokens.of_sentences(i, 1)].tolist()
        assert ids[prompts.masks[i]] == tokenizer.mask_token_id
        for word, piece in zip((pair.good, pair.bad), prompts.words[i].tolist(), strict=True):
            ids[prompts.masks[i]] = piece
            assert ids == tokenizer(pair.text.replace(MASK, word))["input_ids"]


def test_without_any_pair_to_ask_about_the_reasons_are_said(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(FAMILIES["bert"].tokenizer, KNOWN)
    (tmp_path / "pairs.tsv").write_text("The layer reads the [MASK].\tlatherod\tlayer\tx\n", encoding="utf-8")
    pairs, _ = read_pairs(str(tmp_path / "pairs.tsv"))
    with pytest.raises(UserError, match=r"has no pair that the model can be asked about .*single piece.*: 1"):
        prompts_of(tokenizer, pairs, 100, "cloze pairs.tsv")
    with pytest.raises(UserError, match="longer than the 3 tokens"):
        prompts_of(tokenizer, pairs, 3, "cloze pairs.tsv")
