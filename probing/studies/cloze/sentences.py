"""Whole sentences: which of two the model finds more probable, beside the frequency of their tokens and their number.

A masked model gives a sentence a pseudo-log-likelihood (Salazar et al. 2020): the sum of the log probabilities of its
tokens, each masked. Of a word with several pieces, the later pieces are masked with a piece, because they would give it
away (within-word left-to-right masking, Kauf & Ivanova 2023). A decoder gives its log-likelihood.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from probing.activations import Request, batch_tokens_of
from probing.errors import UserError
from probing.models import check_ids
from probing.results import Table, estimate_cells
from probing.runs.call import Measurements
from probing.runtime.progress import stage
from probing.statistics import binomial_interval, difference_interval, ratio_estimate
from probing.studies.cloze import BASELINES
from probing.studies.cloze.predictor import (
    MinimalPair,
    Predictor,
    Row,
    by_group,
    distinct,
    fields_of,
    fingerprint_of,
    lines_of,
)
from probing.text import Corpus
from probing.text.tokens import ADDED, LONGEST, Tokens, tokenize

READABLE = (
    "a file of lines `good sentence TAB bad sentence TAB phenomenon`, or of BLiMP's JSON objects with `sentence_good` "
    "and `sentence_bad`"
)
# Fields of BLiMP's layout that name the phenomenon; the first that a line has counts.
NAMES = ("phenomenon", "linguistics_term", "UID")
UNNAMED = "sentences"
EQUAL = "the sentences have the same tokens"
_HEADINGS = ["sentence_good", "sentence_bad"], ["good", "bad"]
# Sentences whose masked copies are in memory at once.
CHUNK = 256


def read_sentence_pairs(file: str, flag_text: str) -> tuple[list[MinimalPair], int]:
    """Return the distinct pairs of a file, and the number of repeated pairs.

    Raises:
        UserError: If the file cannot be read, or a line is no pair of different sentences.
    """
    return distinct(lines_of(file, flag_text, READABLE), _pair_of, flag_text, READABLE)


def _pair_of(number: int, line: str, where: str) -> MinimalPair | None:
    if line.lstrip().startswith("{"):
        fields = fields_of(line, where, READABLE)
        cells = [fields.get(name) for name in _HEADINGS[0]]
        cells.append(next((fields[name] for name in NAMES if fields.get(name)), UNNAMED))
    else:
        cells = [*line.split("\t"), *[UNNAMED] * (line.count("\t") == 1)]
    texts = [" ".join(cell.split()) if isinstance(cell, str) else "" for cell in cells]
    if len(texts) != 3 or not all(texts):
        raise UserError(f"{where}: expected a good sentence, a bad sentence and a phenomenon; give {READABLE}.")
    if number == 1 and texts[:2] in _HEADINGS:
        return None
    if texts[0] == texts[1]:
        raise UserError(f"{where}: the good sentence is the bad one, `{texts[0]:.60}`; give two different sentences.")
    return MinimalPair(number, "", *texts)


def tokens_of_pairs(
    predictor: Predictor, pairs: Sequence[MinimalPair], flag_text: str
) -> tuple[list[MinimalPair], Tokens]:
    """Return the pairs whose sentences have different tokens, and the tokens of good, bad, good, ... sentences.

    They have the special tokens of the model; a decoder's sentence begins with one if the vocabulary has one for it.

    Raises:
        UserError: If a sentence is longer than the model reads or has no token, or no pair remains.
    """
    ids = (predictor.tokenizer([pair.words[i] for pair in pairs])["input_ids"] for i in range(2))
    different = [pair for pair, good, bad in zip(pairs, *ids, strict=True) if good != bad]
    if not different:
        raise UserError(f"`{flag_text}`: the tokenizer gives both sentences of each pair the same tokens.")
    tokens = tokenize(predictor.tokenizer, [word for pair in different for word in pair.words], LONGEST)
    begin, starts = predictor.tokenizer.bos_token_id, tokens.offsets[:-1]
    n_ordinary = np.bincount(tokens.sentences, ~tokens.special, minlength=tokens.n_sentences)
    if predictor.is_causal and begin is not None and not tokens.special[starts[n_ordinary > 0]].all():
        ids_and_words = np.insert(tokens.input_ids, starts, begin), np.insert(tokens.words, starts, ADDED)
        tokens = Tokens(tokens.lengths + 1, *ids_and_words)
    for refused in np.flatnonzero((tokens.lengths > predictor.longest) | (n_ordinary == 0))[:1].tolist():
        raise UserError(
            f"`{flag_text}`, line {different[refused // 2].line}: a sentence has {tokens.lengths[refused]} tokens, and "
            f"the model reads 1 to {predictor.longest}; leave the pair out."
        )
    check_ids(predictor.source, predictor.tokenizer, tokens.input_ids)
    return different, tokens


def masked_copies(tokens: Tokens, mask_token_id: int) -> tuple[Tokens, NDArray[np.int64], NDArray[np.int64]]:
    """Return a copy of each sentence for each of its tokens, with the token and the later pieces of its word masked.

    Special tokens have no copy. Also returned are the index of the token in the copy, and its index in the table of
    tokens, both of shape (n_copies,).
    """
    targets = np.flatnonzero(~tokens.special)
    lengths, starts = tokens.lengths[tokens.sentences[targets]], tokens.offsets[tokens.sentences[targets]]
    places = targets - starts
    begins = np.cumsum(lengths, dtype=np.int64) - lengths
    rows = np.arange(int(lengths.sum())) + np.repeat(starts - begins, lengths)
    target = np.repeat(targets, lengths)
    masked = (rows >= target) & (tokens.words[rows] == tokens.words[target])
    ids = np.where(masked, mask_token_id, tokens.input_ids[rows]).astype(np.int32)
    return Tokens(lengths, ids, tokens.words[rows]), places, targets


def pseudo_log_likelihoods(
    predictor: Predictor, tokens: Tokens, batch_tokens: int, advance: Callable[[int], None]
) -> NDArray[np.float64]:
    """Return the log probability of each token, masked with the later pieces of its word; 0 for special tokens."""
    log_p = np.zeros(tokens.n_tokens)
    for first in range(0, tokens.n_sentences, CHUNK):
        n = min(CHUNK, tokens.n_sentences - first)
        rows = tokens.of_sentences(first, n)
        chunk = Tokens(tokens.lengths[first : first + n], tokens.input_ids[rows], tokens.words[rows])
        copies, places, targets = masked_copies(chunk, predictor.tokenizer.mask_token_id)
        ids = chunk.input_ids[targets].astype(np.int64)[:, None]
        log_p[rows.start + targets] = predictor.log_probabilities(copies, places, ids, batch_tokens)[:, 0]
        advance(n)
    return log_p


def log_likelihoods(
    predictor: Predictor, tokens: Tokens, batch_tokens: int, advance: Callable[[int], None]
) -> NDArray[np.float64]:
    """Return the log probability of each token after those before it; 0 for special tokens and without one before."""
    log_p = np.zeros(tokens.n_tokens)
    for sentences, logits in predictor.logits(tokens, batch_tokens):
        for of_sentence, sentence in zip(logits, sentences.tolist(), strict=True):
            rows = tokens.of_sentences(sentence, 1)
            ids = torch.from_numpy(tokens.input_ids[rows].astype(np.int64))[1:, None]
            all_log_p = of_sentence[: len(ids)].cpu().double().log_softmax(1)
            log_p[rows.start + 1 : rows.stop] = all_log_p.gather(1, ids)[:, 0].numpy()
        advance(len(sentences))
    return np.where(tokens.special, 0, log_p)


def unigrams(predictor: Predictor, corpus: Corpus, tokens: Tokens) -> NDArray[np.float64]:
    """Return the log probability of each token by its frequency in a corpus, plus 1; 0 for special tokens."""
    counted = tokenize(predictor.tokenizer, corpus.sentences, LONGEST)
    size = max(len(predictor.tokenizer), int(tokens.input_ids.max()) + 1)
    counts = np.bincount(counted.input_ids[~counted.special], minlength=size) + 1
    return np.where(tokens.special, 0, np.log(counts / counts.sum())[tokens.input_ids])


def pair_rows(
    pairs: Sequence[MinimalPair], tokens: Tokens, log_p: NDArray[np.float64], by_frequency: NDArray[np.float64]
) -> list[Row]:
    """Return the rows of `sentence_pairs.csv`, given the two log probabilities of each token."""
    model, unigram, n = (
        np.bincount(tokens.sentences, values).reshape(-1, 2).astype(np.float64)
        for values in (log_p, by_frequency, ~tokens.special)
    )
    return [
        {
            "line": pair.line, "phenomenon": pair.group, "good": pair.good, "bad": pair.bad,
            "good_log_probability": float(model[i, 0]), "bad_log_probability": float(model[i, 1]),
            "difference": float(model[i, 0] - model[i, 1]), "good_unigrams": float(unigram[i, 0]),
            "bad_unigrams": float(unigram[i, 1]), "good_tokens": int(n[i, 0]), "bad_tokens": int(n[i, 1]),
        }
        for i, pair in enumerate(pairs)
    ]  # fmt: skip


def _counted(phenomenon: str, rows: Table) -> Row:
    n = len(rows)
    right = np.array(rows.column("difference")) > 0
    n_right = int(right.sum())
    row: Row = {"phenomenon": phenomenon, "n": n, "n_right": n_right}
    row |= estimate_cells("share", n_right / n, binomial_interval(n_right, n), "")
    for name, sign in BASELINES.items():
        good, bad = (np.array(rows.column(f"{which}_{name}")) for which in ("good", "bad"))
        score = (1 + np.sign(np.round(sign * (good - bad), 9))) / 2  # half a pair where the two are equal
        row[f"{name}_share"] = float(score.mean())
        row |= estimate_cells(f"above_{name}", *ratio_estimate(right - score, interval=difference_interval))
    return row


def check_causal(predictor: Predictor) -> None:
    """Raise `UserError` if tokens of a decoder depend on later tokens, which would make its log-likelihood wrong."""
    ids = torch.arange(4, device=predictor.device)[None]
    with torch.inference_mode():
        whole, part = (predictor.model(input_ids=part).logits[:, :3] for part in (ids, ids[:, :3]))
    if (whole - part).abs().max() > 1e-3 * part.abs().max():
        raise UserError(
            f"`--score pll`: {predictor.source.name} is loaded as a decoder, but its tokens attend to later ones, so "
            "that it has no log-likelihood; set `is_decoder` in its config.json, or choose another model."
        )


def sentence_survey(
    predictor: Predictor, pairs: Sequence[MinimalPair], flag_text: str, corpus: Corpus, batch_tokens: int | None,
    say: Callable[[str], None],
) -> Measurements:  # fmt: skip
    """Score the sentences of pairs by a model, by the frequency of their tokens in a corpus, and by their number.

    Raises:
        UserError: If a sentence is longer than the model reads, or no pair remains.
    """
    different, tokens = tokens_of_pairs(predictor, pairs, flag_text)
    score = log_likelihoods if predictor.is_causal else pseudo_log_likelihoods
    if predictor.is_causal:
        check_causal(predictor)
        if not tokens.special[tokens.offsets[:-1]].all():
            say("the first token of a sentence is not scored: the model has no token for the beginning of a text")
    if n_equal := len(pairs) - len(different):
        say(f"{n_equal} of {len(pairs)} pairs are left out: {EQUAL}")
    size = batch_tokens_of(Request(predictor.source, Corpus("none", ()), [], batch_tokens=batch_tokens))
    with stage("probability of sentences", tokens.n_sentences) as advance:
        log_p = score(predictor, tokens, size, advance)
    rows = pair_rows(different, tokens, log_p, unigrams(predictor, corpus, tokens))
    results = {
        "model": {"name": predictor.source.name, "fingerprint": predictor.source.fingerprint()},
        "score": "log-likelihood" if predictor.is_causal else "pseudo-log-likelihood, within-word left to right",
        "pairs": {"fingerprint": fingerprint_of(pairs)},
        "unigrams": {"corpus": corpus.name, "fingerprint": corpus.fingerprint},
        "left_out": {EQUAL: n_equal} if n_equal else {},
    }
    return Measurements({"sentence_pairs": rows, "phenomena": by_group(rows, "phenomenon", _counted)}, results)
