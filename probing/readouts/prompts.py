"""Texts with a mask as a model reads them, and two words for it that are single pieces of the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from probing.cache.tokens import Tokens
from probing.corpus.pairs import MASK


@dataclass(frozen=True)
class Prompt:
    """A text with a mask.

    Args:
        input_ids: Its tokens, with the model's mask token.
        words: Index of the word of each token, -1 for special tokens; the mask is a word.
        mask: Index of the mask token.
        answers: Ids of the two words.
    """

    input_ids: Sequence[int]
    words: Sequence[int]
    mask: int
    answers: tuple[int, int]


def prompt_of(tokenizer: Any, text: str, words: tuple[str, str], longest: int) -> Prompt | str:
    """Return a text with two words for its mask, or why the model cannot be asked about it, as a phrase.

    The text is tokenised with each of the words in it. The two lists of pieces must differ in exactly one piece, which
    must be the whole word; it is replaced by the mask token. So no assumption is needed about blanks and capitals,
    which vocabularies treat differently.

    Args:
        tokenizer: A fast tokenizer with a mask token.
        text: The text, with `[MASK]` once.
        words: The two words.
        longest: Most tokens that the model reads.
    """
    one, other = (tokenizer(text.replace(MASK, word)).encodings[0] for word in words)
    at, there = (_place(found, text, word) for found, word in zip((one, other), words, strict=True))
    if len(one.ids) > longest:
        return f"the text is longer than the {longest} tokens that the model reads"
    if at is None or at != there or _without(one.ids, at) != _without(other.ids, at):
        return "a word is not a single piece of the vocabulary"
    if tokenizer.unk_token_id in (one.ids[at], other.ids[at]):
        return "a word is not in the vocabulary"
    if one.ids[at] == other.ids[at]:
        return "the vocabulary does not tell the two words apart"
    ids = [*one.ids[:at], tokenizer.mask_token_id, *one.ids[at + 1 :]]
    return Prompt(ids, [-1 if word is None else word for word in one.word_ids], at, (one.ids[at], other.ids[at]))


def tokens_of_prompts(prompts: Sequence[Prompt]) -> Tokens:
    """Return the table of tokens of some texts."""
    return Tokens(
        np.array([len(one.input_ids) for one in prompts], dtype=np.int32),
        np.concatenate([one.input_ids for one in prompts]).astype(np.int32),
        np.concatenate([one.words for one in prompts]).astype(np.int16),
    )


def _place(encoding: Any, text: str, word: str) -> int | None:
    """Return the index of the piece that is the word in the place of the mask; None if there is none."""
    filled, start = text.replace(MASK, word), text.index(MASK)
    for i, (first, last) in enumerate(encoding.offsets):
        if first <= start < last and filled[first:last].strip() == word:
            return i
    return None


def _without(ids: Sequence[int], at: int) -> list[int]:
    return [*ids[:at], *ids[at + 1 :]]
