"""Word vectors from files in GloVe's format."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from probing.downstream.static import read_static
from probing.errors import UserError

pytestmark = pytest.mark.numeric


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "vectors.txt"
    path.write_text(
        "the 1 2\nNew 9 9\ncat 3 4.5\n, 0 1\n. . . 7 7\n\u00e9t\u00e9 -1 0\nunused 5 5\nthe 8 8\n", encoding="utf-8"
    )
    return path


def test_a_sentence_is_the_mean_of_its_words_with_a_vector(file: Path) -> None:
    sentences = ["The cat, the \u00e9t\u00e9!", "nothing known", "New new"]
    static = read_static(str(file), sentences)
    expected = torch.tensor([[1, 2], [3, 4.5], [0, 1], [1, 2], [-1, 0]]).mean(0)
    torch.testing.assert_close(
        static.sentences(sentences), torch.stack([expected, torch.zeros(2), torch.tensor([9.0, 9])])
    )
    assert static.known(sentences).tolist() == [True, False, True]
    assert static.coverage(sentences) == pytest.approx((5 + 0 + 1) / (6 + 2 + 2))


def test_words_that_are_not_needed_are_not_kept_and_a_first_line_of_word2vec_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_text("3 2\nthe 1 2\ncat 3 4\ndog 5 6\n", encoding="utf-8")
    static = read_static(str(path), ["the dog"])
    assert set(static.rows) == {"the", "dog"}
    assert static.vectors.shape == (2, 2)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"the 1 2\ncat 3\n", "line 2 is not a word followed by 2 numbers"),
        (b"the 1 2\ncat 3 x\n", "line 2 is not a word followed by 2 numbers"),
        (b"the 1 nan\n", "line 1 is not a word followed by 2 numbers"),
        (b"the 1 -inf\n", "line 1 is not a word followed by 2 numbers that are finite"),
        (b"the 1 1e300\n", r"line 1 is not a word followed by 2 numbers that are finite and at most 1e\+30"),
        (b"the 1 2\ncat 3 4 5\n", "line 2 is not a word followed by 2 numbers"),
        (b"the 1\ncat 3 4\n", "line 2 is not a word followed by 1 numbers"),
        (b"the\n", "line 1 is not a word followed by"),
        (b"caf\xe9 1 2\n", "it is not UTF-8"),
        (b"dog 1 2\n", "has none of the words"),
        (b"", "has none of the words"),
    ],
)
def test_what_is_no_file_of_vectors_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "v.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=words) as caught:
        read_static(str(path), ["the cat"])
    assert str(caught.value).startswith(f"`--static {path}`")
