"""Role links from lines, from FrameNet's folder and from a treebank, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from probing.corpus import Corpus, from_words
from probing.errors import UserError
from probing.heads.role_files import Link, distance, read_role_links, treebank_links

GOOD = "He left the old house quietly\t1\tsource\t3-4\n"


def written(folder: Path, text: str) -> str:
    path = folder / "roles.tsv"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_links_of_a_sentence_in_several_lines_are_together(tmp_path: Path) -> None:
    text = (
        "Soon she gave the boy a book\t2\ttheme\t5-6\n\nHe saw nothing\t1\tthing\t2\n"
        "Soon  she gave the boy a book\t2\trecipient\t4\n"
    )
    found = read_role_links(written(tmp_path, text))
    # A sentence whose links are left out has unlinked pairs.
    assert found.corpus.sentences == ("Soon she gave the boy a book", "He saw nothing")
    assert found.links == (Link(0, (2, 2), "theme", (5, 6)), Link(0, (2, 2), "recipient", (4, 4)))
    assert found.left_out == (("predicate and filler less than 2 words apart", 1),)


def test_long_fillers_and_sentences_are_left_out(tmp_path: Path) -> None:
    long = " ".join("abcdefghijklm")
    text = f"{GOOD}a b c d e f\t0\tx\t2-5\n{long}\t0\tx\t4\n"
    found = read_role_links(written(tmp_path, text))
    assert len(found.links) == 1
    assert dict(found.left_out) == {"filler of more than 3 words": 1, "sentence of more than 12 words": 1}


def test_the_distance_is_between_the_nearest_words_and_has_a_sign() -> None:
    assert distance((1, 2), (5, 6)) == 3
    assert distance((5, 6), (1, 2)) == -3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("He left the house 1 source 3", "line 2: expected text, predicate, role and filler .* found 1 column;"),
        (GOOD.strip() + "\tmore", "line 2: expected .* found 5 columns"),
        ("\t1\tsource\t3", "line 2: the text is empty"),
        ("He left the house\t1\t\t3", "line 2: the role has no name"),
        ("He left the house\tleft\tsource\t3", "line 2: the predicate is 'left', where a word such as 3"),
        ("He left the house\t1\tsource\t2-", "line 2: the filler is '2-'"),
        ("He left the house\t-1\tsource\t2", "line 2: the predicate is '-1'"),
        ("He left the house\t1\tsource\t3-2", "line 2: the filler 3-2 ends before it begins; write 2-3"),
        ("He left the house\t1\tsource\t4", "line 2: the filler 4 is outside of the text, whose 4 words"),
        ("He left the house\t1-2\tsource\t2-3", "line 2: predicate 1-2 and filler 2-3 share a word"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(UserError, match=r"`--roles .*roles.tsv`, " + message):
        read_role_links(written(tmp_path, f"{GOOD}{line}\n"))


def test_a_file_without_a_link_that_can_be_measured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no link"):
        read_role_links(written(tmp_path, "\n \n"))
    with pytest.raises(UserError, match=r"no role link that can be measured \(predicate and filler less than 2.*: 1\)"):
        read_role_links(written(tmp_path, "He left\t1\tagent\t0\n"))


# --- FrameNet ---

UNIT = """<?xml version="1.0" encoding="UTF-8"?>
<lexicalUnit xmlns="http://framenet.icsi.berkeley.edu" ID="7" name="leave.v" frame="Departing" POS="V">
  <header><frame>
    <FE type="Core" abbrev="Thm" name="Theme"/><FE type="Core" abbrev="Src" name="Source"/>
    <FE type="Peripheral" abbrev="Mnr" name="Manner"/>
  </frame></header>
  <subCorpus name="V-np">
    <sentence sentNo="0" aPos="1" ID="11">
      <text>The old  man slowly left his house .</text>
      <annotationSet status="UNANN" ID="1"><layer rank="1" name="PENN">
        <label start="0" end="2" name="at0"/></layer></annotationSet>
      <annotationSet status="MANUAL" ID="2">
        <layer rank="1" name="FE">
          <label start="0" end="11" name="Theme"/><label start="25" end="33" name="Source"/>
          <label start="13" end="18" name="Manner"/><label itype="DNI" name="Goal"/>
        </layer>
        <layer rank="2" name="FE"><label start="25" end="27" name="Theme"/></layer>
        <layer rank="1" name="GF"><label start="0" end="11" name="Ext"/></layer>
        <layer rank="1" name="Target"><label start="20" end="23" name="Target"/></layer>
      </annotationSet>
    </sentence>
  </subCorpus>
</lexicalUnit>
"""


def framenet(folder: Path, text: str) -> str:
    (folder / "lu").mkdir()
    (folder / "lu" / "lu7.xml").write_text(text, encoding="utf-8")
    return f"framenet:{folder}"


def test_core_elements_are_read_from_the_folder_of_framenet(tmp_path: Path) -> None:
    found = read_role_links(framenet(tmp_path, UNIT))
    assert found.corpus.words == (("The", "old", "man", "slowly", "left", "his", "house", "."),)
    assert found.links == (Link(0, (4, 4), "Theme", (0, 2)),)
    assert found.left_out == (("predicate and filler less than 2 words apart", 1),)  # the source


def test_a_folder_or_file_that_is_not_framenet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected files `lu/lu\*.xml` in the folder"):
        read_role_links(f"framenet:{tmp_path}")
    name = framenet(tmp_path, UNIT.replace("</subCorpus>", ""))
    with pytest.raises(UserError, match=r"lu7\.xml is not XML in line 23"):
        read_role_links(name)
    (tmp_path / "lu" / "lu7.xml").write_text(UNIT.replace('end="33"', 'end="99"'), encoding="utf-8")
    with pytest.raises(UserError, match=r"lu7\.xml has the label 'Source' from character '25' to '99' .*ID 11"):
        read_role_links(name)


# --- treebanks ---


def test_core_arguments_of_a_treebank_are_subjects_and_objects() -> None:
    words = [("Today", "she", "quickly", "gave", "him", "the", "book"), tuple("abcdefghijklm"), ("He", "fell")]
    columns = {
        "head": [("4", "4", "4", "0", "4", "7", "4"), ("3", *["0"] * 12), ("2", "0")],
        "deprel": [
            ("advmod", "nsubj:pass", "advmod", "root", "iobj", "det", "obj"),
            ("nsubj", *["root"] * 12),
            ("nsubj", "root"),
        ],
    }  # fmt: skip
    found = treebank_links(from_words("made up", words, columns))
    assert found.links == (Link(0, (3, 3), "nsubj", (1, 1)), Link(0, (3, 3), "obj", (6, 6)))
    # Short sentences without a link have unlinked pairs to compare with.
    assert found.corpus.columns["deprel"] == (columns["deprel"][0], columns["deprel"][2])
    left_out = {"sentence of more than 12 words": 1, "predicate and filler less than 2 words apart": 2}
    assert dict(found.left_out) == left_out
    with pytest.raises(UserError, match="no columns `head` and `deprel`"):
        treebank_links(Corpus("text", ("He fell.",)))
