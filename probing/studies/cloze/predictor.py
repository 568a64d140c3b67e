"""Probabilities of the two words of each minimal pair at a mask, and the loss of masked words in changed text."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.activations import Request, batch_tokens_of, tokens_of
from probing.activations.extraction import forward_trainer
from probing.errors import UserError
from probing.interventions.forward import padded_batches
from probing.interventions.model_output import (
    MaskedText,
    MaskedWordLoss,
    Prompt,
    choose_masked,
    draw_sentences,
    masked_lm_of,
    prompt_of,
    tokens_of_prompts,
)
from probing.models import ModelSource, check_ids, length_limits, load_tokenizer
from probing.models.anatomy import Anatomy, examine
from probing.results import Table, estimate_cells
from probing.runs.call import Measurements
from probing.runtime.progress import note, stage
from probing.statistics import binomial_interval, mean_interval
from probing.studies.cloze.tables import CHANGED, EVERY, INTACT, REPLACED
from probing.tables.figures import BLUE, GREY, ORANGE, USUAL, error_bars, write_drawings
from probing.text import MASK, Corpus
from probing.text.files import decode_lines, read_bytes
from probing.text.tokens import Tokens

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# --------------------------------------------------------------------------------------------------------------------
# Text that was changed around its masked words: in another order, or with a name or a noun replaced by another.
# --------------------------------------------------------------------------------------------------------------------

# Number of neighbours that stay together, by the name of the change.
SHUFFLED = {"words_shuffled": 1, "pairs_shuffled": 2}


@dataclass(frozen=True)
class Masked:
    """Sentences and a mask of the tokens to predict, shape (n_tokens,); the token ids are without mask tokens."""

    tokens: Tokens
    masked: NDArray[np.bool_]


def shuffled(text: Masked, n_together: int, seed: int) -> Masked:
    """Return each sentence with its words in random order, in runs of `n_together` words from its beginning.

    Special tokens do not move, the pieces of a word stay together, a run keeps its order, and masks move with their
    words, so that the same words are predicted.
    """
    tokens = text.tokens
    slots = np.flatnonzero(~tokens.special)
    sentences, runs = tokens.sentences[slots], tokens.words[slots].astype(np.int64) // n_together
    keys = sentences.astype(np.int64) * (int(runs.max(initial=0)) + 1) + runs
    _, of_slot = np.unique(keys, return_inverse=True)
    chance = np.random.default_rng(seed).permutation(int(of_slot.max(initial=-1)) + 1)
    order = np.arange(tokens.n_tokens)
    order[slots] = slots[np.lexsort((slots, chance[of_slot], sentences))]
    return Masked(Tokens(tokens.lengths, tokens.input_ids[order], tokens.words[order]), text.masked[order])


@dataclass(frozen=True)
class _Word:
    """A word of a sentence.

    Args:
        rows: Its first token, and the token after its last.
        form: The word in lower case.
        kind: Properties that a replacement must share: universal and language-specific part of speech, number of
            pieces, whether it begins the sentence, and whether it is capitalised.
        masked: Whether one of its pieces is masked.
    """

    rows: tuple[int, int]
    form: str
    kind: tuple[Any, ...]
    tag: str
    masked: bool


def replaced(text: Masked, corpus: Corpus, seed: int) -> tuple[dict[str, Masked], NDArray[np.bool_]]:
    """Return the text with a name replaced by another name, and with a noun replaced by another noun.

    In each sentence, one name is drawn among the names that are not masked, occur once and can be replaced, and
    likewise one noun. In the text of each change, it is replaced by another word of the corpus that is of the same kind
    (see `_Word`) and does not occur in the sentence. Sentences that lack such a name or such a noun do not change. The
    corpus needs the column `upos`, and may have `xpos`.

    Returns:
        The texts by the name of the change; and a mask of the changed sentences, shape (n_sentences,).
    """
    generator = np.random.default_rng(seed)
    sentences = list(_words(text, corpus))
    others: dict[tuple[Any, ...], dict[str, tuple[int, int]]] = {}
    for word in (word for words in sentences for word in words):
        others.setdefault(word.kind, {}).setdefault(word.form, word.rows)
    ids = {name: text.tokens.input_ids.copy() for name in REPLACED}
    changed = np.zeros(len(sentences), dtype=bool)
    for i, words in enumerate(sentences):
        times = Counter(word.form for word in words)
        replaceable: dict[str, tuple[_Word, list[str]]] = {}
        for name, tag in REPLACED.items():
            usable = [word for word in words if word.tag == tag and not word.masked and times[word.form] == 1]
            choices = [
                (word, candidates) for word in usable if (candidates := sorted(others[word.kind].keys() - times.keys()))
            ]
            if choices:
                replaceable[name] = choices[generator.integers(len(choices))]
        if len(replaceable) == len(REPLACED):
            changed[i] = True
            for name, (word, candidates) in replaceable.items():
                start, stop = others[word.kind][candidates[generator.integers(len(candidates))]]
                ids[name][slice(*word.rows)] = text.tokens.input_ids[start:stop]
    texts = {
        name: Masked(Tokens(text.tokens.lengths, changed, text.tokens.words), text.masked)
        for name, changed in ids.items()
    }  # fmt: skip
    return texts, changed


def _words(text: Masked, corpus: Corpus) -> Iterator[list[_Word]]:
    """Yield the words of each sentence that the table of tokens has whole or in part."""
    tokens, tags, fine_tags = text.tokens, corpus.columns["upos"], corpus.columns.get("xpos")
    assert corpus.words is not None  # what has tags is divided into words
    for i in range(tokens.n_sentences):
        span = tokens.of_sentences(i, 1)
        words = tokens.words[span]
        begins = span.start + np.flatnonzero(tokens.first_pieces[span])
        sentence_words = []
        for start in begins.tolist():
            word = int(tokens.words[start])
            stop = start + int((words == word).sum())
            form, tag = corpus.words[i][word], tags[i][word]
            # The language-specific tag may distinguish number.
            kind = tag, fine_tags[i][word] if fine_tags else "", stop - start, word == 0, form[:1].isupper()
            sentence_words.append(_Word((start, stop), form.casefold(), kind, tag, bool(text.masked[start:stop].any())))
        yield sentence_words


# The name of the pairs that come with the program.
BUILTIN = "builtin"
READABLE = "builtin, or a file of lines `text with [MASK] TAB good TAB bad TAB group`"


@dataclass(frozen=True)
class MinimalPair:
    """A text with `[MASK]` once, a good and a bad word for it, and the group of the pair."""

    line: int
    text: str
    good: str
    bad: str
    group: str


@dataclass(frozen=True)
class Prompts:
    """Tokenised pairs.

    Args:
        tokens: Table of tokens of their texts, with the model's mask token.
        masks: Index of the mask token in each text, shape (n_pairs,).
        words: Id of the good and of the bad word, shape (n_pairs, 2).
        dropped: Reasons for excluding pairs, with the number of pairs.
    """

    pairs: Sequence[MinimalPair]
    tokens: Tokens
    masks: NDArray[np.int64]
    words: NDArray[np.int64]
    dropped: dict[str, int]


def read_pairs(file: str, flag_text: str | None = None) -> tuple[list[MinimalPair], int]:
    """Return the distinct pairs of a file, or of `builtin`, and the number of repeated pairs.

    Raises:
        UserError: If the file cannot be read, or a line is no pair.
    """
    flag_text = flag_text or f"cloze {file}"
    if file == BUILTIN:
        lines = files(__package__).joinpath("pairs.tsv").read_text(encoding="utf-8").splitlines()
    else:
        lines = decode_lines(read_bytes(Path(file), flag_text, READABLE), flag_text)
    pairs = list(_pairs_of(lines, flag_text))
    if not pairs:
        raise UserError(f"`{flag_text}` holds no pair: it is empty or blank; give {READABLE}.")
    distinct = {(pair.text, pair.good, pair.bad, pair.group): pair for pair in reversed(pairs)}
    return sorted(distinct.values(), key=lambda pair: pair.line), len(pairs) - len(distinct)


def fingerprint_of(pairs: Sequence[MinimalPair]) -> str:
    """Return the SHA-256 of the pairs, independent of their file."""
    cells = ("\t".join((pair.text, pair.good, pair.bad, pair.group)) for pair in pairs)
    return hashlib.sha256("\n".join(cells).encode()).hexdigest()


def _pairs_of(lines: Iterable[str], flag_text: str) -> Iterator[MinimalPair]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        cells = [" ".join(cell.split()) for cell in line.split("\t")]
        where = f"`{flag_text}`, line {number}"
        if len(cells) != 4 or not all(cells):
            raise UserError(
                f"{where}: expected a text, a good word, a bad word and a group with a tab between them, found "
                f"{len(list(filter(None, cells)))} of them; write for example `They [MASK] here. TAB are TAB is TAB "
                "agreement`."
            )
        if (n := cells[0].count(MASK)) != 1:
            raise UserError(f"{where}: the text has {MASK} {n} times; write it once, where the word belongs.")
        yield MinimalPair(number, *cells)


def prompts_of(tokenizer: Any, pairs: Sequence[MinimalPair], longest: int, flag_text: str) -> Prompts:
    """Return the pairs whose words are both single pieces of the vocabulary, in their context; see `prompt_of`.

    Raises:
        UserError: If no pair remains.
    """
    usable: list[tuple[MinimalPair, Prompt]] = []
    dropped: Counter[str] = Counter()
    for pair in pairs:
        outcome = prompt_of(tokenizer, pair.text, (pair.good, pair.bad), longest)
        if isinstance(outcome, str):
            dropped[outcome] += 1
        else:
            usable.append((pair, outcome))
    if not usable:
        reasons = "; ".join(f"{reason}: {n}" for reason, n in dropped.items())
        raise UserError(f"`{flag_text}` has no pair that the model can be asked about ({reasons}); give other words.")
    usable_pairs, prompts = zip(*usable, strict=True)
    masks, answers = (np.array([getattr(prompt, name) for prompt in prompts]) for name in ("mask", "answers"))
    return Prompts(usable_pairs, tokens_of_prompts(prompts), masks, answers, dict(dropped))


# By how much the probability of the good word has to be above that of the bad one to be called clear (Ettinger 2020).
MARGIN = 0.01


@torch.inference_mode()
def log_probabilities(
    model: nn.Module, prompts: Prompts, pad_token_id: int, batch_tokens: int, with_padding: bool
) -> NDArray[np.float64]:
    """Return the log probability of the good and of the bad word at the mask, shape (n_pairs, 2).

    The softmax over the vocabulary is in float64.
    """
    device = next(model.parameters()).device
    masks, words = torch.from_numpy(prompts.masks), torch.from_numpy(prompts.words)
    log_p = torch.empty(len(words), 2, dtype=torch.float64)
    for batch in padded_batches(prompts.tokens, batch_tokens, pad_token_id, with_padding, device):
        sentences = batch.sentences.cpu()
        logits: Tensor = model(**batch.inputs).logits[torch.arange(len(sentences)), masks[sentences].to(device)]
        log_p[sentences] = logits.cpu().double().log_softmax(1).gather(1, words[sentences])
    return log_p.numpy()


def pair_rows(prompts: Prompts, log_p: NDArray[np.float64]) -> list[dict[str, Any]]:
    """Return the rows of `cloze.csv`, a row for each pair."""
    return [
        {
            "line": pair.line, "group": pair.group, "text": pair.text, "good": pair.good, "bad": pair.bad,
            "good_log_probability": float(good), "bad_log_probability": float(bad), "difference": float(good - bad),
        }
        for pair, (good, bad) in zip(prompts.pairs, log_p, strict=True)
    ]  # fmt: skip


def group_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of `groups.csv`: all pairs, and then each group in the order of the file."""
    table = Table(rows)
    return [_counted(name, members) for name, members in {EVERY: table, **table.by("group")}.items()]


def _counted(group: str, rows: Table) -> dict[str, Any]:
    differences = np.array(rows.column("difference"))
    good, bad = (np.exp(rows.column(f"{which}_log_probability")) for which in ("good", "bad"))
    n_right, n_clear = int((differences > 0).sum()), int((good - bad > MARGIN).sum())
    mean, interval = float(differences.mean()), mean_interval(differences, np.ones(len(rows), dtype=np.int64))
    return {
        "group": group, "n": len(rows), "n_right": n_right,
        **estimate_cells("share", n_right / len(rows), binomial_interval(n_right, len(rows)), ""),
        **estimate_cells("clear_share", n_clear / len(rows), binomial_interval(n_clear, len(rows))),
        **estimate_cells("difference", mean, interval),
    }  # fmt: skip


Row = dict[str, Any]


@dataclass(frozen=True)
class Predictor:
    """A model with its masked-language-model head, in evaluation mode and float32."""

    source: ModelSource
    tokenizer: Any
    model: Any
    anatomy: Anatomy

    @classmethod
    def of(cls, source: ModelSource, trainer: Mapping[str, Any]) -> Predictor:
        """Load a model; the accelerator among Lightning's Trainer arguments decides on the device.

        Raises:
            UserError: If it has no trained head, or its blocks are unknown.
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
        """The part of the model that returns hidden states."""
        encoder: nn.Module = self.model.base_model
        return encoder

    def prompts(self, pairs: Sequence[MinimalPair], flag_text: str) -> Prompts:
        """Return the pairs that the model can be tested on.

        Raises:
            UserError: If there are none.
        """
        prompts = prompts_of(self.tokenizer, pairs, length_limits(self.source, self.tokenizer)[1], flag_text)
        check_ids(self.source, self.tokenizer, prompts.tokens.input_ids)
        return prompts

    def ask(self, prompts: Prompts, batch_tokens: int) -> dict[str, list[Row]]:
        """Return the rows of `cloze.csv` and `groups.csv`."""
        how = self.pad_token_id, batch_tokens, self.anatomy.padding_is_neutral
        rows = pair_rows(prompts, log_probabilities(self.model, prompts, *how))
        return {"cloze": rows, "groups": group_rows(rows)}

    def losses(self, text: Masked, batch_tokens: int) -> NDArray[np.float64]:
        """Return the summed cross-entropy of each sentence's masked tokens, in nats, shape (n_sentences,)."""
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
class ClozeConfig:
    """Settings of a survey.

    Args:
        pairs: The pairs of words; may be empty.
        flag_text: The command that names them, as the user typed it.
        corpus: The text to change; None for none.
        tokens: Maximum number of its tokens.
        max_length: Number of tokens at which sentences are truncated; None for the model's limit.
        batch_tokens: Maximum number of tokens in a batch, padding included; None chooses by the machine.
    """

    pairs: Sequence[MinimalPair]
    flag_text: str
    corpus: Corpus | None
    tokens: int
    max_length: int | None
    batch_tokens: int | None
    seed: int


def masked_sample(predictor: Predictor, config: ClozeConfig) -> tuple[Corpus, Masked]:
    """Draw sentences, and mask 15% of each sentence's tokens, not counting special tokens.

    Raises:
        UserError: If no sentence has a word.
    """
    request = _request(predictor, config)
    tokens = tokens_of(request, predictor.tokenizer)
    if tokens.special.all():
        raise UserError("`--corpus`: no sentence is longer than one token, and special tokens do not count.")
    drawn, sentences = draw_sentences(tokens, config.tokens, config.seed)
    return request.corpus.subset(sentences), Masked(drawn, choose_masked(drawn, config.seed))


def change_rows(
    predictor: Predictor, corpus: Corpus, text: Masked, batch_tokens: int, seed: int, say: Callable[[str], None]
) -> list[Row]:
    """Return the rows of `changes.csv`."""
    n = np.bincount(text.tokens.sentences[text.masked], minlength=text.tokens.n_sentences)
    note(INTACT)
    intact = predictor.losses(text, batch_tokens)
    rows = [loss_row(INTACT, intact, n)]
    for name, n_together in SHUFFLED.items():
        note(name)
        changed = predictor.losses(shuffled(text, n_together, seed), batch_tokens)
        rows.append(loss_row(name, changed, n, INTACT, intact))
    if "upos" not in corpus.columns:
        say("names and nouns are not replaced: the corpus has no column `upos`, which a .conllu file has")
        return rows
    texts, chosen = replaced(text, corpus, seed)
    if not chosen.any():
        say("names and nouns are not replaced: no sentence has both a name and a noun that others could replace")
        return rows
    n = np.where(chosen, n, 0)
    losses = {INTACT: intact} | {name: predictor.losses(changed, batch_tokens) for name, changed in texts.items()}
    name, noun = REPLACED
    for condition, against in ((name, INTACT), (noun, INTACT), (name, noun)):
        rows.append(loss_row(condition, losses[condition], n, against, losses[against]))
    return rows


def loss_row(
    condition: str, sums: NDArray[np.float64], n: NDArray[np.int64], against: str = "",
    other: NDArray[np.float64] | None = None,
) -> Row:  # fmt: skip
    """Return a row of `changes.csv`: a loss, and its difference from another loss, paired by sentence.

    `sums` and `other` are summed losses of each sentence's masked tokens, and n their number, 0 for sentences that do
    not count, all of shape (n_sentences,). `against` is the name of the other text.
    """
    counted = n > 0
    sums, n_tokens = np.where(counted, sums, 0), int(n.sum())
    row: Row = {
        "condition": condition, **estimate_cells("loss", float(sums.sum() / n_tokens), mean_interval(sums, n), "")
    }  # fmt: skip
    if other is not None:
        difference = np.where(counted, sums - other, 0)
        row |= {"against": against, "baseline": float(np.where(counted, other, 0).sum() / n_tokens)}
        row |= estimate_cells("difference", float(difference.sum() / n_tokens), mean_interval(difference, n))
    return {**row, "n_sentences": int(counted.sum()), "n": n_tokens}


def survey(predictor: Predictor, config: ClozeConfig, say: Callable[[str], None]) -> Measurements:
    """Test a model on pairs, and measure its loss in changed text.

    Raises:
        UserError: If no pair, or no sentence, remains.
    """
    # What can be refused is refused before the model reads anything.
    prompts = predictor.prompts(config.pairs, config.flag_text) if config.pairs else None
    sample = None if config.corpus is None else masked_sample(predictor, config)
    size = batch_tokens_of(_request(predictor, config))
    tables: dict[str, list[Row]] = {}
    for reason, n in prompts.dropped.items() if prompts else ():
        say(f"{n} of {len(config.pairs)} pairs are left out: {reason}")
    if prompts:
        with stage("words at a mask"):
            tables |= predictor.ask(prompts, size)
    if sample:
        with stage("loss in changed text"):
            tables["changes"] = change_rows(predictor, *sample, size, config.seed, say)
    source = predictor.source
    results = {
        "model": {"name": source.name, "fingerprint": source.fingerprint()},
        **({"pairs": {"fingerprint": fingerprint_of(config.pairs)}} if config.pairs else {}),
        **({"corpus": {"fingerprint": config.corpus.fingerprint}} if config.corpus else {}),
        "left_out": prompts.dropped if prompts else {},
        "n_tokens": sample[1].tokens.n_tokens if sample else 0,
    }

    def draw(folder: Path, formats: Sequence[str]) -> list[Path]:
        return write_figures(folder, tables, source.short_name, formats)

    return Measurements(tables, results, draw=draw)


def _request(predictor: Predictor, config: ClozeConfig) -> Request:
    corpus = config.corpus or Corpus("none", ())
    return Request(predictor.source, corpus, [], max_length=config.max_length, batch_tokens=config.batch_tokens)


# --------------------------------------------------------------------------------------------------------------------
# Figures of `cloze`: share of pairs whose good word is more probable, and increase of the loss in changed text.
# --------------------------------------------------------------------------------------------------------------------

ReadonlyRow = Mapping[str, Any]


def write_figures(
    folder: Path, tables: Mapping[str, Sequence[ReadonlyRow]], model: str, formats: Sequence[str] = USUAL
) -> list[Path]:
    """Draw a run's figures, each in some formats, and return the paths of the files."""
    drawings: dict[str, Callable[[Figure], None]] = {}
    if groups := tables.get("groups"):
        drawings["groups"] = partial(
            _draw_rows, rows=groups, labels=[f"{row['group']} ({row['n']})" for row in groups], column="share", of="",
            color=BLUE, reference=0.5, words="share of pairs whose good word is more probable, 95%",
            title=f"{model}: probability of good words, compared with bad words", limits=(-0.03, 1.03),
        )  # fmt: skip
    if changes := [row for row in tables.get("changes", ()) if row.get("against") == INTACT]:
        drawings["changes"] = partial(
            _draw_rows, rows=changes, labels=[CHANGED[row["condition"]] for row in changes], column="difference",
            of="difference", color=ORANGE, reference=0,
            words="increase of the loss of masked words in nats, 95% over sentences",
            title=f"{model}: masked words in changed text",
        )  # fmt: skip
    return write_drawings(folder, drawings, formats)


def _draw_rows(
    figure: Figure, rows: Sequence[ReadonlyRow], labels: Sequence[str], column: str, of: str, color: str,
    reference: float, words: str, title: str, limits: tuple[float, float] | None = None,
) -> None:  # fmt: skip
    """Draw a number of each row with its interval, beside a line at the reference; `words` name the axis."""
    figure.set_size_inches(5.2, 1.2 + 0.32 * len(rows))
    axes, values = figure.subplots(), np.array([row[column] for row in rows])
    at = np.arange(len(rows))[::-1]
    axes.errorbar(values, at, xerr=error_bars(rows, values, of), fmt="o", ms=4, capsize=2, color=color, elinewidth=0.8)
    axes.set_yticks(at, labels)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.axvline(reference, color=GREY, lw=0.8, ls=":")
    if limits:
        axes.set_xlim(*limits)
    axes.set_xlabel(words)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
