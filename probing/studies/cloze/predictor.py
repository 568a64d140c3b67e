"""How likely a model finds the two words of each pair, and how often it finds the good one likelier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.cache import Request, batch_tokens_of, tokens_of
from probing.cache.extraction import forward_trainer
from probing.corpus import Corpus
from probing.errors import UserError
from probing.models import ModelSource, check_ids, length_limits, load_tokenizer
from probing.models.anatomy import Anatomy, examine
from probing.readouts.forward import padded_batches
from probing.readouts.model_output import MaskedText, MaskedWordLoss, choose_masked, draw_sentences, masked_lm_of
from probing.runtime.progress import note, stage
from probing.statistics.intervals import binomial_interval, mean_interval
from probing.studies.cloze.tables import EVERY, INTACT, REPLACED
from probing.studies.cloze.texts import (
    SHUFFLED,
    Masked,
    Pair,
    Prompts,
    fingerprint_of,
    prompts_of,
    replaced,
    shuffled,
)

# By how much the probability of the good word has to be above that of the bad one to be called clear (Ettinger 2020).
MARGIN = 0.01


@torch.inference_mode()
def log_probabilities(
    model: nn.Module, prompts: Prompts, pad_token_id: int, batch_tokens: int, with_padding: bool
) -> NDArray[np.float64]:
    """Return the log probability of the good and of the bad word at the mask, shape (n_pairs, 2).

    The softmax over the vocabulary is in float64.

    Args:
        model: The model with its head, in evaluation mode.
        prompts: The pairs.
        pad_token_id: Id of the padding token.
        batch_tokens: Most tokens in a batch, padding included.
        with_padding: Whether texts of different lengths may share a batch.
    """
    device = next(model.parameters()).device
    masks, words = torch.from_numpy(prompts.masks), torch.from_numpy(prompts.words)
    found = torch.empty(len(words), 2, dtype=torch.float64)
    for batch in padded_batches(prompts.tokens, batch_tokens, pad_token_id, with_padding, device):
        here = batch.sentences.cpu()
        logits: Tensor = model(**batch.inputs).logits[torch.arange(len(here)), masks[here].to(device)]
        found[here] = logits.cpu().double().log_softmax(1).gather(1, words[here])
    return found.numpy()


def pair_rows(prompts: Prompts, found: NDArray[np.float64]) -> list[dict[str, Any]]:
    """Return the rows of `cloze.csv`, one for each pair.

    Args:
        prompts: The pairs.
        found: Log probabilities of both words, shape (n_pairs, 2).
    """
    return [
        {
            "line": pair.line, "group": pair.group, "text": pair.text, "good": pair.good, "bad": pair.bad,
            "good_log_probability": float(good), "bad_log_probability": float(bad), "difference": float(good - bad),
        }
        for pair, (good, bad) in zip(prompts.pairs, found, strict=True)
    ]  # fmt: skip


def group_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of `groups.csv`: all pairs, and then each group in the order of the file.

    Args:
        rows: Rows of `cloze.csv`.
    """
    groups = list(dict.fromkeys(row["group"] for row in rows))
    found = {EVERY: list(rows)} | {group: [row for row in rows if row["group"] == group] for group in groups}
    return [_counted(name, own) for name, own in found.items()]


def _counted(group: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    differences = np.array([row["difference"] for row in rows])
    good, bad = (np.exp([row[f"{which}_log_probability"] for row in rows]) for which in ("good", "bad"))
    likelier, clearly = int((differences > 0).sum()), int((good - bad > MARGIN).sum())
    (low, high), (clear_low, clear_high) = (binomial_interval(n, len(rows)) for n in (likelier, clearly))
    least, most = mean_interval(differences, np.ones(len(rows), dtype=np.int64))
    return {
        "group": group, "n": len(rows), "n_right": likelier, "share": likelier / len(rows), "low": low, "high": high,
        "clear_share": clearly / len(rows), "clear_share_low": clear_low, "clear_share_high": clear_high,
        "difference": float(differences.mean()), "difference_low": least, "difference_high": most,
    }  # fmt: skip


Row = dict[str, Any]


@dataclass(frozen=True)
class Predictor:
    """A model with its masked-language-model head.

    Args:
        source: The model's files.
        tokenizer: Its tokenizer.
        model: The model with its head, in evaluation mode and float32.
        anatomy: The structure of its encoder.
    """

    source: ModelSource
    tokenizer: Any
    model: Any
    anatomy: Anatomy

    @classmethod
    def of(cls, source: ModelSource, trainer: Mapping[str, Any]) -> Predictor:
        """Load a model.

        Args:
            source: The model's files.
            trainer: Arguments of Lightning's Trainer, of which the accelerator decides where the model runs.

        Raises:
            UserError: If it has no trained head, or its blocks cannot be told.
        """
        tokenizer = load_tokenizer(source)
        model: Any = masked_lm_of(source, False, tokenizer.mask_token_id, "`cloze`", "")
        anatomy = examine(model.base_model, tokenizer.pad_token_id or 0, source.name)
        model.to(forward_trainer({"devices": 1, **trainer}, ()).strategy.root_device)
        return cls(source, tokenizer, model, anatomy)

    @property
    def pad_token_id(self) -> int:
        """Id of the padding token."""
        return self.tokenizer.pad_token_id or 0

    @property
    def encoder(self) -> nn.Module:
        """The part that returns hidden states."""
        encoder: nn.Module = self.model.base_model
        return encoder

    def prompts(self, pairs: Sequence[Pair], typed: str) -> Prompts:
        """Return the pairs that the model can be asked about.

        Raises:
            UserError: If there is none.
        """
        prompts = prompts_of(self.tokenizer, pairs, length_limits(self.source, self.tokenizer)[1], typed)
        check_ids(self.source, self.tokenizer, prompts.tokens.input_ids)
        return prompts

    def ask(self, prompts: Prompts, batch_tokens: int) -> dict[str, list[Row]]:
        """Return the rows of `cloze.csv` and `groups.csv`."""
        how = self.pad_token_id, batch_tokens, self.anatomy.padding_is_neutral
        rows = pair_rows(prompts, log_probabilities(self.model, prompts, *how))
        return {"cloze": rows, "groups": group_rows(rows)}

    def losses(self, text: Masked, batch_tokens: int) -> NDArray[np.float64]:
        """Return the summed cross-entropy of each sentence's masked tokens, in nats, shape (n_sentences,).

        Args:
            text: The sentences.
            batch_tokens: Most tokens in a batch, padding included.
        """
        tokens, last = text.tokens, self.anatomy.n_layers
        ids = np.where(text.masked, self.tokenizer.mask_token_id, tokens.input_ids).astype(np.int32)
        hidden = MaskedText(
            replace(tokens, input_ids=ids), self.encoder, self.anatomy, self.pad_token_id, batch_tokens
        )  # fmt: skip
        readout = MaskedWordLoss.with_masks(self.model, hidden, text.masked, tokens.input_ids)
        device = next(self.model.parameters()).device
        nats = readout.nats(hidden.states(last)[torch.from_numpy(text.masked)].to(device)).numpy()
        sums = np.zeros(tokens.n_sentences)
        np.add.at(sums, tokens.sentences[text.masked], nats)
        return sums


@dataclass(frozen=True)
class Asked:
    """What is measured.

    Args:
        pairs: The pairs of words; none if the model is not asked about pairs.
        typed: The command that names them, as the user typed it.
        corpus: The text whose changes are measured, if there is one.
        tokens: Most tokens of it that are read.
        max_length: Number of tokens at which sentences are cut; None for the model's own limit.
        batch_tokens: Most tokens in a batch, padding included; None chooses by the machine.
        seed: Seed of every random draw.
    """

    pairs: Sequence[Pair]
    typed: str
    corpus: Corpus | None
    tokens: int
    max_length: int | None
    batch_tokens: int | None
    seed: int


@dataclass(frozen=True)
class Sample:
    """Sentences of a corpus that are read.

    Args:
        corpus: The sentences, with their columns.
        text: Their tokens, and which are masked.
    """

    corpus: Corpus
    text: Masked

    @classmethod
    def of(cls, predictor: Predictor, asked: Asked) -> Sample:
        """Draw sentences, and the tokens that are masked: 15% of each sentence's, not counting special tokens.

        Args:
            predictor: The model.
            asked: What is measured, of a corpus.

        Raises:
            UserError: If no sentence has a word.
        """
        request = _request(predictor, asked)
        tokens = tokens_of(request, predictor.tokenizer)
        if tokens.special.all():
            raise UserError("`--corpus`: no sentence is longer than one token, and special tokens do not count.")
        drawn, kept = draw_sentences(tokens, asked.tokens, asked.seed)
        return cls(request.corpus.subset(kept), Masked(drawn, choose_masked(drawn, asked.seed)))


def change_rows(
    predictor: Predictor, sample: Sample, batch_tokens: int, seed: int, say: Callable[[str], None]
) -> list[Row]:
    """Return the rows of `changes.csv`.

    Args:
        predictor: The model.
        sample: The sentences.
        batch_tokens: Most tokens in a batch, padding included.
        seed: Seed of every draw.
        say: Called with one-line messages.
    """
    text = sample.text
    n = np.bincount(text.tokens.sentences[text.masked], minlength=text.tokens.n_sentences)
    note(INTACT)
    intact = predictor.losses(text, batch_tokens)
    rows = [loss_row(INTACT, intact, n)]
    for name, n_together in SHUFFLED.items():
        note(name)
        changed = predictor.losses(shuffled(text, n_together, seed), batch_tokens)
        rows.append(loss_row(name, changed, n, INTACT, intact))
    if "upos" not in sample.corpus.columns:
        say("names and nouns are not replaced: the corpus has no column `upos`, which a .conllu file has")
        return rows
    texts, chosen = replaced(text, sample.corpus, seed)
    if not chosen.any():
        say("names and nouns are not replaced: no sentence has both a name and a noun that others could replace")
        return rows
    n = np.where(chosen, n, 0)
    found = {INTACT: intact} | {name: predictor.losses(own, batch_tokens) for name, own in texts.items()}
    name, noun = REPLACED
    for condition, against in ((name, INTACT), (noun, INTACT), (name, noun)):
        rows.append(loss_row(condition, found[condition], n, against, found[against]))
    return rows


def loss_row(
    condition: str, sums: NDArray[np.float64], n: NDArray[np.int64], against: str = "",
    other: NDArray[np.float64] | None = None,
) -> Row:  # fmt: skip
    """Return a row of `changes.csv`: a loss, and by how much it differs from another one, paired by sentence.

    Args:
        condition: Name of the text.
        sums: Summed loss of each sentence's masked tokens, shape (n_sentences,).
        n: Number of masked tokens of each sentence that counts, 0 for others, shape (n_sentences,).
        against: Name of the text that it is compared with; empty if it is compared with none.
        other: The same of that text.
    """
    counted = n > 0
    sums, n_tokens = np.where(counted, sums, 0), int(n.sum())
    low, high = mean_interval(sums, n)
    row: Row = {"condition": condition, "loss": float(sums.sum() / n_tokens), "low": low, "high": high}
    if other is not None:
        difference = np.where(counted, sums - other, 0)
        least, most = mean_interval(difference, n)
        row |= {
            "against": against, "baseline": float(np.where(counted, other, 0).sum() / n_tokens),
            "difference": float(difference.sum() / n_tokens), "difference_low": least, "difference_high": most,
        }  # fmt: skip
    return {**row, "n_sentences": int(counted.sum()), "n": n_tokens}


@dataclass(frozen=True)
class Found:
    """What was found.

    Args:
        tables: Rows by the name of their table.
        left_out: Why pairs were left out, with their number.
        n_tokens: Number of tokens of the corpus that were read.
        fingerprints: Fingerprint of the corpus and of the pairs, where there are these.
    """

    tables: Mapping[str, list[Row]]
    left_out: Mapping[str, int]
    n_tokens: int
    fingerprints: Mapping[str, str]


def survey(predictor: Predictor, asked: Asked, say: Callable[[str], None]) -> Found:
    """Ask a model about pairs, and measure its loss in a text that is changed.

    Args:
        predictor: The model.
        asked: What is measured.
        say: Called with one-line messages.

    Raises:
        UserError: If no pair, or no sentence, is left.
    """
    # What can be refused is refused before the model reads anything.
    prompts = predictor.prompts(asked.pairs, asked.typed) if asked.pairs else None
    sample = None if asked.corpus is None else Sample.of(predictor, asked)
    size = batch_tokens_of(_request(predictor, asked))
    tables: dict[str, list[Row]] = {}
    for reason, n in prompts.left_out.items() if prompts else ():
        say(f"{n} of {len(asked.pairs)} pairs are left out: {reason}")
    if prompts:
        with stage("words at a mask"):
            tables |= predictor.ask(prompts, size)
    if sample:
        with stage("loss in changed text"):
            tables["changes"] = change_rows(predictor, sample, size, asked.seed, say)
    fingerprints = {"pairs": fingerprint_of(asked.pairs)} if asked.pairs else {}
    fingerprints |= {"corpus": asked.corpus.fingerprint} if asked.corpus else {}
    n_tokens = sample.text.tokens.n_tokens if sample else 0
    return Found(tables, prompts.left_out if prompts else {}, n_tokens, fingerprints)


def _request(predictor: Predictor, asked: Asked) -> Request:
    corpus = asked.corpus or Corpus("none", ())
    return Request(predictor.source, corpus, [], max_length=asked.max_length, batch_tokens=asked.batch_tokens)
