"""Interchange between texts with masks: how much of the difference in the log odds of two words is carried over.

Causal mediation analysis asks the same of neurons (Vig et al. 2020): their indirect effect on the odds of two words,
as a share of the total effect of the other text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from probing.cache import ActivationStore
from probing.corpus.splits import Couple
from probing.disabling.probed_task import fingerprint_of
from probing.disabling.subject import Subject
from probing.errors import UserError
from probing.models import check_ids, length_limits
from probing.readouts.model_output import MaskedHead, MaskedText, Prompt, WordOdds, prompt_of, tokens_of_prompts
from probing.studies.geometry.neurons.asked import Asked, Found
from probing.studies.geometry.neurons.interchange import draw_pairs, exchanged
from probing.studies.geometry.neurons.sets import Line, Rows

Floats = NDArray[np.float64]


def survey_words(
    subject: Subject, store: ActivationStore, couples: Sequence[Couple], typed: str, asked: Asked,
    say: Callable[[str], None],
) -> Found:  # fmt: skip
    """Exchange sets of neurons between the texts of pairs, and read two words at their masks by the model's own head.

    Both directions of a pair count, and intervals are over pairs.

    Args:
        subject: The model, with its head.
        store: Activations by the model.
        couples: The pairs, with words.
        typed: The option that names them, with its value, for messages.
        asked: What is asked.
        say: Called with one-line messages.

    Raises:
        UserError: If the model cannot be asked about any pair, or finds both words as likely in all texts.
    """
    prompts = aligned_prompts(subject, couples, typed, say)
    n_left_out = len(couples) - len(prompts)
    lengths = np.array([2 * len(first.input_ids) for first, _ in prompts])
    both = [one for i in draw_pairs(lengths, asked.n_tokens, asked.seed) for one in prompts[i]]
    readout = _readout(subject, both, store.plan.batch_tokens)
    differences = readout.intact()[::2] - readout.intact()[1::2]
    if not differences.any():
        raise UserError(
            f"`{typed}`: the log odds of the two words are the same in both texts of every pair, so that nothing can "
            "be carried over; give texts that differ in what they say of the mask."
        )
    of_intact = {"difference": float(np.abs(differences).mean()), "n_as_given": int((differences > 0).sum())}
    interventions: Rows = []
    draws: Rows = []
    settings = {"words": fingerprint_of(readout.masks, readout.words)}
    for layer, found in exchanged(subject, store, readout.text, [readout], asked, settings):
        intact = found.intact[0]
        n = 2 * np.abs(intact[::2] - intact[1::2])
        lines = [Line(readout.name, read, n, {}) for read in readout.layers(layer + 1)]
        for table, more in zip((interventions, draws), found.rows(lines, partial(carried, intact)), strict=True):
            table += more
    for row in interventions:
        row |= of_intact
    text = readout.text
    return Found(interventions, draws, text, text, (), {}, None, len(differences), n_left_out)


def carried(intact: Floats, odds: Floats) -> Floats:
    """Return by how many nats log odds move towards those of the other text, shape (1, n_pairs), over both directions.

    Of both directions together, the other text is 2 |difference of the pair| away: exchanged whole, that is how far
    the two move.

    Args:
        intact: Log odds of each text, the two of a pair after each other, shape (n_texts,).
        odds: The same after the exchange, shape (1, n_texts).
    """
    moved = odds - intact
    towards = np.sign(intact[1::2] - intact[::2])
    return np.asarray(towards * (moved[:, ::2] - moved[:, 1::2]))


def aligned_prompts(
    subject: Subject, couples: Sequence[Couple], typed: str, say: Callable[[str], None]
) -> list[tuple[Prompt, Prompt]]:
    """Return the pairs whose texts can be read token by token, and say why others are left out.

    Raises:
        UserError: If none is left.
    """
    source, tokenizer = subject.source.model, subject.tokenizer
    longest = length_limits(source, tokenizer)[1]
    kept: list[tuple[Prompt, Prompt]] = []
    left_out: Counter[str] = Counter()
    for one in couples:
        assert one.words is not None  # the reader of the file gives words to all pairs or to none
        first, second = (prompt_of(tokenizer, text, one.words, longest) for text in (one.first, one.second))
        if isinstance(first, str) or isinstance(second, str):
            left_out[first if isinstance(first, str) else str(second)] += 1
        elif len(first.input_ids) != len(second.input_ids):
            left_out["their texts differ in number of tokens"] += 1
        elif first.mask != second.mask or first.answers != second.answers:
            left_out["the mask is not the same token, or the words not the same pieces, in both texts"] += 1
        else:
            kept.append((first, second))
    for reason, n in left_out.items():
        say(f"{n} of {len(couples)} pairs are left out: {reason}")
    if not kept:
        said = "; ".join(f"{reason}: {n}" for reason, n in left_out.items())
        raise UserError(f"`{typed}` has no pair between whose texts neurons can be exchanged ({said}); give others.")
    check_ids(source, tokenizer, tokens_of_prompts([one for pair in kept for one in pair]).input_ids)
    return kept


def _readout(subject: Subject, prompts: Sequence[Prompt], batch_tokens: int) -> WordOdds:
    """Return the readout of two words at the masks of texts."""
    model, encoder = subject.masked_lm, subject.model.encoder
    assert model is not None  # there is something at masks to read
    device = subject.readers.device
    tokens = tokens_of_prompts(prompts)
    text = MaskedText(tokens, encoder, subject.model.anatomy, subject.pad_token_id, batch_tokens)
    first = torch.tensor([prompts[0].input_ids], device=device)
    masks, words = np.array([one.mask for one in prompts]), np.array([one.answers for one in prompts])
    return WordOdds(text, masks, words, MaskedHead(model, encoder, first))
