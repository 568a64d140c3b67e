"""Texts with a mask as a model reads them: what is asked, and why some cannot be."""

from __future__ import annotations

import pytest

from families import FAMILIES, make_tokenizer
from probing.readouts.model_output import Prompt, prompt_of, tokens_of_prompts

pytestmark = pytest.mark.numeric

KNOWN = ["The layer reads the token.", "The neuron reads the layer.", "Every probe reads the word that is here."] * 9


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_the_mask_stands_for_the_whole_word(family: str) -> None:
    tokenizer = make_tokenizer(FAMILIES[family].tokenizer, KNOWN)
    prompt = prompt_of(tokenizer, "The [MASK] reads the token.", ("layer", "neuron"), 100)
    assert isinstance(prompt, Prompt)
    for word, answer in zip(("layer", "neuron"), prompt.answers, strict=True):
        ids = list(prompt.input_ids)
        ids[prompt.mask] = answer
        assert ids == tokenizer(f"The {word} reads the token.")["input_ids"]
    assert prompt.input_ids[prompt.mask] == tokenizer.mask_token_id
    assert prompt.words[prompt.mask] == 1
    assert (prompt.words[0], prompt.words[-1]) == (-1, -1)
    tokens = tokens_of_prompts([prompt, prompt])
    assert tokens.lengths.tolist() == [len(prompt.input_ids)] * 2
    assert tokens.input_ids.tolist() == [*prompt.input_ids] * 2


@pytest.mark.parametrize(
    ("words", "longest", "reason"),
    [
        (("layer", "latherod"), 100, "a word is not a single piece of the vocabulary"),
        (("layer", "layer"), 100, "the vocabulary does not tell the two words apart"),
        (("layer", "neuron"), 3, "the text is longer than the 3 tokens that the model reads"),
    ],
)
def test_what_cannot_be_asked_has_a_reason(words: tuple[str, str], longest: int, reason: str) -> None:
    tokenizer = make_tokenizer(FAMILIES["bert"].tokenizer, KNOWN)
    assert prompt_of(tokenizer, "The [MASK] reads the token.", words, longest) == reason
