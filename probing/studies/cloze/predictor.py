"""Probabilities of the two words of each minimal pair at a mask, and the loss of masked words in changed text."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.activations.extraction import forward_trainer
from probing.errors import UserError
from probing.interventions.forward import padded_batches
from probing.interventions.model_output import (
    MaskedText,
    MaskedWordLoss,
    Prompt,
    masked_lm_of,
    prompt_of,
    tokens_of_prompts,
)
from probing.models import ModelSource, check_ids, length_limits, load_causal_lm, load_tokenizer
from probing.models.anatomy import Anatomy, examine
from probing.results import Table, estimate_cells
from probing.runtime.files import parse_json
from probing.runtime.progress import note
from probing.statistics import binomial_interval, ratio_estimate
from probing.studies.cloze import EVERY, INTACT, REPLACED
from probing.text import MASK, Corpus
from probing.text.files import decode_lines, read_bytes
from probing.text.tokens import Tokens

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


Item = TypeVar("Item", bound=Any)

# The name of the pairs that come with the program.
BUILTIN = "builtin"
READABLE = "builtin, or a file of lines `text with [MASK] TAB good TAB bad TAB group`"


@dataclass(frozen=True)
class MinimalPair:
    """A text with `[MASK]` once, a good and a bad word for it, and the group of the pair.

    Of whole sentences, the text is empty, and the words are the sentences.
    """

    line: int
    text: str
    good: str
    bad: str
    group: str

    @property
    def words(self) -> tuple[str, ...]:
        """The words at the mask."""
        return self.good, self.bad


@dataclass(frozen=True)
class Prompts:
    """Tokenised pairs, or other items that have a text and words for its mask.

    Args:
        pairs: The items.
        tokens: Table of tokens of their texts, with the model's mask token.
        masks: Index of the mask token in each text, shape (n_pairs,).
        words: Id of the good and of the bad word, or of each of their words, shape (n_pairs, 2 or n_words).
        dropped: Reasons for excluding pairs, with the number of pairs.
        prompts: The texts one by one.
    """

    pairs: Sequence[Any]
    tokens: Tokens
    masks: NDArray[np.int64]
    words: NDArray[np.int64]
    dropped: dict[str, int]
    prompts: Sequence[Prompt]


def read_pairs(file: str, flag_text: str | None = None) -> tuple[list[MinimalPair], int]:
    """Return the distinct pairs of a file, or of `builtin`, and the number of repeated pairs.

    Raises:
        UserError: If the file cannot be read, or a line is no pair.
    """
    flag_text = flag_text or f"cloze {file}"
    lines = (
        files(__package__).joinpath("pairs.tsv").read_text(encoding="utf-8").splitlines() if file == BUILTIN
        else lines_of(file, flag_text, READABLE)
    )  # fmt: skip
    return distinct(lines, _pair_of, flag_text, READABLE)


def lines_of(file: str, flag_text: str, readable: str) -> list[str]:
    """Return the lines of a file; `UserError`, which lists `readable` sources, is raised if it cannot be read."""
    return decode_lines(read_bytes(Path(file), flag_text, readable), flag_text)


def distinct(
    lines: Iterable[str],
    item_of: Callable[[int, str, str], Item | None],
    flag_text: str,
    readable: str,
    noun: str = "pair",
) -> tuple[list[Item], int]:
    """Return the distinct items of lines that are not blank, and the number of repeated items.

    `item_of` returns the item of a line, given its number, its text and the beginning of messages, or None for a
    heading.

    Raises:
        UserError: If there are none.
    """
    numbered = ((n, line) for n, line in enumerate(lines, 1) if line.strip())
    items = [item for n, line in numbered if (item := item_of(n, line, f"`{flag_text}`, line {n}"))]
    if not items:
        raise UserError(f"`{flag_text}` holds no {noun}: it is empty or blank; give {readable}.")
    first = {replace(item, line=0): item for item in reversed(items)}
    return sorted(first.values(), key=lambda item: int(item.line)), len(items) - len(first)


def fields_of(line: str, where: str, readable: str) -> dict[str, Any]:
    """Return the fields of a line that is a JSON object; `where` begins the message if it is none."""
    try:
        fields = parse_json(line)
    except ValueError as error:
        raise UserError(f"{where} is not JSON ({error}); give {readable}.") from None
    if not isinstance(fields, dict):
        raise UserError(f"{where} is no JSON object; give {readable}.")
    return fields


def fingerprint_of(items: Sequence[Any]) -> str:
    """Return the SHA-256 of pairs or facts, independent of their file."""
    cells = ("\t".join(astuple(item)[1:]) for item in items)
    return hashlib.sha256("\n".join(cells).encode()).hexdigest()


def _pair_of(number: int, line: str, where: str) -> MinimalPair:
    cells = [" ".join(cell.split()) for cell in line.split("\t")]
    if len(cells) != 4 or not all(cells):
        raise UserError(
            f"{where}: expected a text, a good word, a bad word and a group with a tab between them, found "
            f"{len(list(filter(None, cells)))} of them; write for example `They [MASK] here. TAB are TAB is TAB "
            "agreement`."
        )
    check_mask(cells[0], where)
    return MinimalPair(number, *cells)


def check_mask(text: str, where: str) -> None:
    """Raise `UserError`, whose message `where` begins, unless a text has one mask."""
    if (n := text.count(MASK)) != 1:
        raise UserError(f"{where}: the text has {MASK} {n} times; write it once, where the word belongs.")


def prompts_of(tokenizer: Any, pairs: Sequence[Any], longest: int, flag_text: str, noun: str = "pair") -> Prompts:
    """Return the pairs whose words are all single pieces of the vocabulary, in their context; see `prompt_of`.

    Raises:
        UserError: If no pair remains.
    """
    usable: list[tuple[Any, Prompt]] = []
    dropped: Counter[str] = Counter()
    for pair in pairs:
        outcome = prompt_of(tokenizer, pair.text, pair.words, longest)
        if isinstance(outcome, str):
            dropped[outcome] += 1
        else:
            usable.append((pair, outcome))
    if not usable:
        reasons = "; ".join(f"{reason}: {n}" for reason, n in dropped.items())
        raise UserError(f"`{flag_text}` has no {noun} that the model can be asked about ({reasons}); give other words.")
    usable_pairs, prompts = zip(*usable, strict=True)
    masks, answers = (np.array([getattr(prompt, name) for prompt in prompts]) for name in ("mask", "answers"))
    return Prompts(usable_pairs, tokens_of_prompts(prompts), masks, answers, dict(dropped), prompts)


# By how much the probability of the good word has to be above that of the bad one to be called clear (Ettinger 2020).
MARGIN = 0.01


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
    return by_group(rows, "group", _counted)


def by_group(
    rows: Sequence[Mapping[str, Any]], column: str, counted: Callable[[str, Table], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return a row of all rows, and then of those of each value of a column."""
    table = Table(rows)
    return [counted(name, members) for name, members in {EVERY: table, **table.by(column)}.items()]


def _counted(group: str, rows: Table) -> dict[str, Any]:
    differences = np.array(rows.column("difference"))
    good, bad = (np.exp(rows.column(f"{which}_log_probability")) for which in ("good", "bad"))
    n_right, n_clear = int((differences > 0).sum()), int((good - bad > MARGIN).sum())
    return {
        "group": group, "n": len(rows), "n_right": n_right,
        **estimate_cells("share", n_right / len(rows), binomial_interval(n_right, len(rows)), ""),
        **estimate_cells("clear_share", n_clear / len(rows), binomial_interval(n_clear, len(rows))),
        **estimate_cells("difference", *ratio_estimate(differences)),
    }  # fmt: skip


Row = dict[str, Any]


@dataclass(frozen=True)
class Predictor:
    """A model with its masked, or if `is_causal` causal, language-model head, in evaluation mode and float32."""

    source: ModelSource
    tokenizer: Any
    model: Any
    anatomy: Anatomy
    is_causal: bool = False

    @classmethod
    def of(cls, source: ModelSource, trainer: Mapping[str, Any], decoders: bool = False) -> Predictor:
        """Load a model; the accelerator among Lightning's Trainer arguments decides on the device.

        With `decoders`, a model with a causal language-model head is taken, too.

        Raises:
            UserError: If it has no trained head, or its blocks are unknown.
        """
        tokenizer = load_tokenizer(source)
        model: Any = load_causal_lm(source) if decoders else None
        is_causal = model is not None
        if model is None:
            model = masked_lm_of(source, False, tokenizer.mask_token_id, "`cloze`")
        anatomy = examine(model.base_model, tokenizer.pad_token_id or 0, source.name)
        model.to(forward_trainer({"devices": 1, **trainer}, ()).strategy.root_device)
        return cls(source, tokenizer, model, anatomy, is_causal)

    @property
    def pad_token_id(self) -> int:
        """Id of the padding token."""
        return self.tokenizer.pad_token_id or 0

    @property
    def encoder(self) -> nn.Module:
        """The part of the model that returns hidden states."""
        encoder: nn.Module = self.model.base_model
        return encoder

    @property
    def longest(self) -> int:
        """Maximum number of tokens that the model reads."""
        return length_limits(self.source, self.tokenizer)[1]

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        device: torch.device = next(self.model.parameters()).device
        return device

    @torch.inference_mode()
    def logits(self, tokens: Tokens, batch_tokens: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the sentences of each batch by index, and their logits, shape (batch, sequence, vocabulary)."""
        with_padding = self.anatomy.padding_is_neutral
        for batch in padded_batches(tokens, batch_tokens, self.pad_token_id, with_padding, self.device):
            yield batch.sentences.cpu(), self.model(**batch.inputs).logits

    def at_masks(
        self, tokens: Tokens, masks: NDArray[np.int64], batch_tokens: int
    ) -> Iterator[tuple[Tensor, Tensor]]:  # fmt: skip
        """Yield sentences by index, and the log probability of each token of the vocabulary at an index of each.

        The softmax over the vocabulary is in float64; the second tensor has shape (batch, vocabulary).
        """
        places = torch.from_numpy(masks)
        for sentences, logits in self.logits(tokens, batch_tokens):
            selected = logits[torch.arange(len(sentences)), places[sentences].to(logits.device)]
            yield sentences, selected.cpu().double().log_softmax(1)

    def log_probabilities(
        self, tokens: Tokens, masks: NDArray[np.int64], words: NDArray[np.int64], batch_tokens: int
    ) -> NDArray[np.float64]:
        """Return the log probability of words, (n_sentences, n_words), at an index of each sentence, same shape."""
        ids = torch.from_numpy(words)
        log_p = torch.empty(ids.shape, dtype=torch.float64)
        for sentences, all_log_p in self.at_masks(tokens, masks, batch_tokens):
            log_p[sentences] = all_log_p.gather(1, ids[sentences])
        return log_p.numpy()

    def prompts(self, pairs: Sequence[Any], flag_text: str, noun: str = "pair") -> Prompts:
        """Return the pairs that the model can be tested on.

        Raises:
            UserError: If there are none.
        """
        prompts = prompts_of(self.tokenizer, pairs, self.longest, flag_text, noun)
        check_ids(self.source, self.tokenizer, prompts.tokens.input_ids)
        return prompts

    def ask(self, prompts: Prompts, batch_tokens: int) -> dict[str, list[Row]]:
        """Return the rows of `cloze.csv` and `groups.csv`."""
        log_p = self.log_probabilities(prompts.tokens, prompts.masks, prompts.words, batch_tokens)
        rows = pair_rows(prompts, log_p)
        return {"cloze": rows, "groups": group_rows(rows)}

    def losses(self, text: Masked, batch_tokens: int) -> NDArray[np.float64]:
        """Return the summed cross-entropy of each sentence's masked tokens, in nats, shape (n_sentences,)."""
        tokens, last = text.tokens, self.anatomy.n_layers
        ids = np.where(text.masked, self.tokenizer.mask_token_id, tokens.input_ids).astype(np.int32)
        hidden = MaskedText(
            replace(tokens, input_ids=ids), self.encoder, self.anatomy, self.pad_token_id, batch_tokens
        )  # fmt: skip
        readout = MaskedWordLoss.with_masks(self.model, hidden, text.masked, tokens.input_ids)
        nats = readout.nats(hidden.states(last)[torch.from_numpy(text.masked)].to(self.device)).numpy()
        sums = np.zeros(tokens.n_sentences)
        np.add.at(sums, tokens.sentences[text.masked], nats)
        return sums


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
    row: Row = {"condition": condition, **estimate_cells("loss", *ratio_estimate(sums, n), "")}
    if other is not None:
        difference = np.where(counted, sums - other, 0)
        row |= {"against": against, "baseline": float(np.where(counted, other, 0).sum() / n_tokens)}
        row |= estimate_cells("difference", *ratio_estimate(difference, n))
    return {**row, "n_sentences": int(counted.sum()), "n": n_tokens}
