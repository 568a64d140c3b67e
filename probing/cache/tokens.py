"""The table of tokens: what each row of the cached activations is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Sentences tokenised at a time: bounds the memory of the tokenizer's own objects.
CHUNK = 1024


@dataclass(frozen=True)
class Tokens:
    """All tokens of a corpus in order, special ones included, without padding.

    Args:
        lengths: Tokens of each sentence, shape (n_sentences,), int32.
        input_ids: Shape (n_tokens,), int32.
        words: Index of each token's word in its sentence by `word_ids()`, -1 for special tokens, shape (n_tokens,),
            int16.
        n_truncated: Sentences that were longer than the model allows and were cut.
    """

    lengths: NDArray[np.int32]
    input_ids: NDArray[np.int32]
    words: NDArray[np.int16]
    n_truncated: int = 0

    @property
    def n_sentences(self) -> int:
        """Number of sentences."""
        return len(self.lengths)

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""
        return len(self.input_ids)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """First token of each sentence and, last, the number of tokens; shape (n_sentences + 1,)."""
        return np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])

    @cached_property
    def sentences(self) -> NDArray[np.int32]:
        """Sentence of each token, shape (n_tokens,)."""
        return np.repeat(np.arange(self.n_sentences, dtype=np.int32), self.lengths)

    @property
    def positions(self) -> NDArray[np.int32]:
        """Index of each token in its tokenised sentence, from 0, shape (n_tokens,)."""
        return (np.arange(self.n_tokens) - np.repeat(self.offsets[:-1], self.lengths)).astype(np.int32)

    @property
    def special(self) -> NDArray[np.bool_]:
        """Whether the tokenizer added the token ([CLS], </s>, ...), shape (n_tokens,)."""
        return self.words < 0

    def save(self, path: Path) -> None:
        """Write the table as safetensors, or raise OSError where it cannot be written."""
        from safetensors.numpy import save_file

        arrays: dict[str, NDArray[Any]] = {"lengths": self.lengths, "input_ids": self.input_ids, "words": self.words}
        with disk_errors():
            save_file(arrays, path, metadata={"n_truncated": str(self.n_truncated)})

    @classmethod
    def load(cls, path: Path) -> Tokens:
        """Read a table that `save` wrote."""
        from safetensors import safe_open

        with safe_open(path, framework="numpy") as file:
            lengths, input_ids, words = (file.get_tensor(name) for name in ("lengths", "input_ids", "words"))
            return cls(lengths, input_ids, words, int(file.metadata()["n_truncated"]))


@contextmanager
def disk_errors() -> Iterator[None]:
    """Turn what safetensors raises where a file cannot be written, which is no OSError, into one."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error


def tokenize(tokenizer: Any, sentences: Sequence[str], max_length: int) -> Tokens:
    """Tokenise sentences as the model wants them, special tokens included, cut at `max_length`.

    Args:
        tokenizer: A fast tokenizer.
        sentences: Untokenised text.
        max_length: In tokens, special ones counted.
    """
    lengths: list[int] = []
    input_ids: list[NDArray[np.int32]] = []
    words: list[NDArray[np.int16]] = []
    n_truncated = 0
    for start in range(0, len(sentences), CHUNK):
        encodings = tokenizer(
            list(sentences[start : start + CHUNK]),
            truncation=True,
            max_length=max_length,
            return_attention_mask=False,
            return_token_type_ids=False,
        ).encodings
        for encoding in encodings:
            lengths.append(len(encoding.ids))
            input_ids.append(np.array(encoding.ids, dtype=np.int32))
            words.append(np.array([-1 if word is None else word for word in encoding.word_ids], dtype=np.int16))
            n_truncated += bool(encoding.overflowing)
    return Tokens(np.array(lengths, dtype=np.int32), np.concatenate(input_ids), np.concatenate(words), n_truncated)
