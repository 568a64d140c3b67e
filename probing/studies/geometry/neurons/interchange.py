"""Passes in which neurons take the values of the other sentence of a pair, and the rows of what reads them.

The sentences of a text in pairs follow each other: the first two are a pair, and have as many tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.activations import ActivationStore
from probing.errors import UserError
from probing.interventions import INTERCHANGED, TASK
from probing.interventions.forward import Padded, ReadableText, padded_batches
from probing.interventions.frozen_probes import ProbeReadout, Probes, at_tokens, means, standing_for
from probing.interventions.model_output import MaskedHead, MaskedText, Prompt, WordOdds, prompt_of, tokens_of_prompts
from probing.interventions.probed_task import Frozen, fingerprint_of, opened, run_unfinished
from probing.interventions.subject import Subject
from probing.models import check_ids, length_limits
from probing.runs.predictions import labelled_tokens
from probing.studies.geometry.neurons.sets import (
    DRAWN,
    Asked,
    Found,
    Kind,
    Line,
    NeuronPasses,
    NeuronSet,
    Read,
    Rows,
    Sums,
    Values,
    changed_tokens,
    chosen_sets,
    drawn_sets,
    effect_rows,
)
from probing.text import Corpus, Couple, read_couples
from probing.text.tasks import SentenceTask, TokenTask
from probing.text.tokens import Tokens

# Increased whenever the meaning of what is stored changes.
FORMAT = 2
_KIND: Kind = "interchange"


def partner_of(tokens: Tokens) -> NDArray[np.int64]:
    """Return the row of the token at the same position of the pair's other sentence, shape (n_tokens,)."""
    step = np.repeat(tokens.lengths.astype(np.int64), tokens.lengths)
    return np.arange(tokens.n_tokens) + np.where(tokens.sentences % 2 == 0, step, -step)


def draw_pairs(n_tokens: NDArray[np.int64], at_most: int, seed: int) -> NDArray[np.int64]:
    """Return the index of the pairs that are read, ascending: all, or some that are drawn.

    Args:
        n_tokens: Number of tokens of both sentences of each pair, shape (n_pairs,).
        at_most: Most tokens of all pairs; one pair is read even if it has more.
        seed: Seed of the draw.
    """
    order = np.random.default_rng(seed).permutation(len(n_tokens))
    return np.sort(order[: max(1, int((np.cumsum(n_tokens[order]) <= at_most).sum()))])


def by_pair(values: NDArray[Any]) -> NDArray[Any]:
    """Return sums over the two sentences of each pair, shape (..., n_pairs)."""
    return values.reshape(*values.shape[:-1], -1, 2).sum(-1)


@dataclass(frozen=True)
class Exchanged:
    """What the passes of one layer gave, each of shape (n_lines, n_sentences).

    Args:
        intact: Without any exchange.
        whole: With all neurons exchanged.
        chosen: By the sets that were asked for, the empty one among them.
        drawn: By the sets that they are compared with.
    """

    intact: Sums
    whole: Sums
    chosen: Mapping[NeuronSet, Sums]
    drawn: Mapping[NeuronSet, Sums]

    def rows(self, lines: Sequence[Line], measure: Callable[[Sums], Sums]) -> tuple[Rows, Rows]:
        """Return the rows of both tables, with pairs as items; those of the first have `all_neurons` too.

        Args:
            lines: What each line is.
            measure: Returns the measure of each pair, shape (n_lines, n_pairs), of what a pass gave.
        """
        items = np.arange(len(lines[0].n) if lines else 0)
        chosen, drawn = ({one: measure(sums) for one, sums in own.items()} for own in (self.chosen, self.drawn))
        interventions, draws = effect_rows(chosen, drawn, lines, items)
        most = {(line.readout, line.layer): own for line, own in zip(lines, measure(self.whole), strict=True)}
        n = {(line.readout, line.layer): line.n.sum() for line in lines}
        for row in interventions:
            key = row["readout"], row["layer"]
            row["all_neurons"] = float(most[key].sum() / n[key])
        return interventions, draws


def exchanged(
    subject: Subject, store: ActivationStore, text: ReadableText, reads: Sequence[Read], asked: Asked,
    settings: Mapping[str, Any],
) -> Iterator[tuple[int, Exchanged]]:  # fmt: skip
    """Exchange sets of neurons between the sentences of pairs; yield what each layer's passes gave.

    Args:
        subject: The model.
        store: Activations by the model, whose plan the passes have.
        text: The sentences, in pairs.
        reads: What reads them.
        asked: What is asked.
        settings: What determines the results beside the tokens, the model and what is asked.
    """
    tokens = text.tokens
    # Values of special tokens are exchanged `everywhere` alone, and count for the spread of neurons there alone.
    changed = torch.from_numpy(changed_tokens(tokens, asked.at))
    none = torch.full((tokens.n_tokens,), -1)
    values = {layer: Values(text.states(layer), tokens.sentences, none, 1, none) for layer in asked.ranked}
    partner = torch.from_numpy(partner_of(tokens))
    passes = NeuronPasses(
        subject.readers, text, values.__getitem__, True, asked.at, store.plan.batch_tokens, asked.seed, drawn=partner
    )
    sets: list[NeuronSet] = []
    for layer, ranked in asked.ranked.items():
        chosen = chosen_sets(layer, ranked, [_KIND], passes.d_model)
        sd = values[layer].states[changed].double().std(0, correction=0).numpy()
        sets += [*chosen, *drawn_sets(chosen, sd, asked.n_draws, asked.seed), _whole(layer, passes.d_model)]
    files = dict(enumerate(dict.fromkeys(sets), start=1))
    own = {
        "format": FORMAT, "seed": asked.seed, "at": asked.at,
        "tokens": fingerprint_of(tokens.input_ids, tokens.lengths, tokens.words),
        "sets": [[one.layer, one.source, one.draw, *one.neurons] for one in files.values()], **settings,
    }  # fmt: skip
    with opened(subject.source, {**store.plan.key, "interchange": own}, store, tokens, len(files)) as kept:
        results = run_unfinished(files, kept, lambda one: passes.run(one, reads), "interchanged neurons")
    for layer, ranked in asked.ranked.items():
        here = {one: np.asarray(sums, dtype=np.float64) for one, sums in results.items() if one.layer == layer}
        chosen = chosen_sets(layer, ranked, [_KIND], passes.d_model)
        yield layer, Exchanged(
            here[chosen[0]], here[_whole(layer, passes.d_model)], {one: here[one] for one in chosen},
            {one: sums for one, sums in here.items() if one.source in DRAWN},
        )  # fmt: skip


def _whole(layer: int, d_model: int) -> NeuronSet:
    return NeuronSet(layer, _KIND, tuple(range(d_model)))


@dataclass(frozen=True)
class Couples:
    """Pairs of sentences, each sentence once.

    Args:
        typed: The option that names them, with its value, for messages.
        corpus: The sentences.
        couples: Index of both sentences of each pair, shape (n_pairs, 2).
    """

    typed: str
    corpus: Corpus
    couples: NDArray[np.int64]

    @classmethod
    def read(cls, file: str) -> Couples:
        """Read the pairs of a file, `sentence TAB counterfactual` on each line.

        Raises:
            UserError: If it cannot be read, or a line is not a pair of different sentences.
        """
        pairs = [(one.first, one.second) for one in read_couples(file)]
        index = {text: i for i, text in enumerate(dict.fromkeys(text for pair in pairs for text in pair))}
        couples = np.array([[index[text] for text in pair] for pair in pairs], dtype=np.int64)
        return cls(f"--pairs {file}", Corpus(file, tuple(index)), couples)


@dataclass(frozen=True, eq=False)
class CoupledText:
    """Pairs as sentences to read: the first and the second of a pair follow each other, and have as many tokens.

    Args:
        store: The activations of their sentences.
        couples: Index in the store of both sentences of each pair, shape (n_pairs, 2).
    """

    store: ActivationStore
    couples: NDArray[np.int64]

    @cached_property
    def of_store(self) -> NDArray[np.int64]:
        """Row of each token in the store's table of tokens, shape (n_tokens,)."""
        whole = self.store.tokens
        return np.concatenate([
            np.arange(whole.offsets[one], whole.offsets[one + 1]) for one in self.couples.ravel()
        ])  # fmt: skip

    @cached_property
    def tokens(self) -> Tokens:
        """The table of tokens."""
        whole, rows = self.store.tokens, self.of_store
        return Tokens(whole.lengths[self.couples.ravel()], whole.input_ids[rows], whole.words[rows])

    @cached_property
    def partner(self) -> NDArray[np.int64]:
        """Row of the token at the same position of the pair's other sentence, shape (n_tokens,)."""
        return partner_of(self.tokens)

    def batches(self, batch_tokens: int, pad_token_id: int, with_padding: bool, device: Any = "cpu") -> list[Padded]:
        """Return the sentences in batches of similar length."""
        return padded_batches(self.tokens, batch_tokens, pad_token_id, with_padding, device)

    def states(self, layer: int) -> Tensor:
        """Return the cached hidden states of a layer, shape (n_tokens, d_model), float32."""
        shards = self.store.plan.shards
        whole = torch.cat([self.store.read(layer, shard.index).float() for shard in shards])
        return whole[torch.from_numpy(self.of_store)]


def check_later(frozen: Frozen | None, layers: Iterable[int], typed: str) -> None:
    """Refuse a run that has no probe above a layer whose neurons are exchanged.

    Raises:
        UserError: If there is such a layer.
    """
    last = max(frozen.weight, default=0) if frozen else 0
    if wrong := [layer for layer in layers if layer >= last]:
        raise UserError(
            f"`{typed}` has no probe of a layer above {wrong[0]}, whose neurons are exchanged; give a run with more."
        )


def coupled(store: ActivationStore, couples: Couples, at_most: int, seed: int) -> tuple[CoupledText, int]:
    """Return the pairs that can be read token by token, and the number of others.

    Args:
        store: The activations of their sentences.
        couples: The pairs.
        at_most: Most tokens of both sentences of all pairs; if there are more, pairs are drawn.
        seed: Seed of the draw.

    Raises:
        UserError: If no pair has as many tokens in one sentence as in the other.
    """
    lengths = store.tokens.lengths[couples.couples].astype(np.int64)
    is_aligned = (lengths[:, 0] == lengths[:, 1]) & (lengths[:, 0] > 0)
    if not is_aligned.any():
        raise UserError(
            f"`{couples.typed}`: no pair has as many tokens in one sentence as in the other, so that no token has a "
            "counterpart; give sentences that differ in words of as many pieces."
        )
    aligned = np.flatnonzero(is_aligned)
    kept = aligned[draw_pairs(lengths[aligned].sum(1), at_most, seed)]
    return CoupledText(store, couples.couples[kept]), int((~is_aligned).sum())


def read_differently(
    text: CoupledText, task: TokenTask, weight: Mapping[int, Tensor]
) -> dict[int, tuple[NDArray[np.int32], NDArray[np.int32]]]:
    """Return of each layer the examples whose class the probe reads differently in the two sentences of a pair.

    Args:
        text: The pairs.
        task: The task of the probes.
        weight: Weight of each layer's probe on raw hidden states, shape (n_classes, d_model).

    Returns:
        By layer the class that is read in the sentence itself, and in its counterpart, of each token that stands for
        such an example, shape (n_tokens,); -1 for other tokens.
    """
    tokens, partner = text.tokens, text.partner
    if isinstance(task, SentenceTask):
        labels = np.zeros(tokens.n_sentences, dtype=np.int32)
    else:
        labels = np.where(labelled_tokens(task, tokens), 0, -1).astype(np.int32)
    is_example = at_tokens(task, tokens, labels) >= 0
    counts = is_example & is_example[partner]
    stands = standing_for(task, tokens)
    found = {}
    for layer, one in weight.items():
        states = text.states(layer)
        vectors = states if stands is None else means(states, torch.from_numpy(stands), len(states))
        read = (vectors @ one.T).argmax(1).numpy().astype(np.int32)
        differs = counts & (read != read[partner])
        found[layer] = np.where(differs, read, -1), np.where(differs, read[partner], -1)
    return found


def survey_couples(
    subject: Subject, couples: Couples, frozen: Frozen, asked: Asked, say: Callable[[str], None]
) -> Found:
    """Exchange sets of neurons between the sentences of pairs, and read the later layers by the probes of a run.

    Both directions of a pair count, and intervals are over pairs.

    Args:
        subject: The model, with the task of the run.
        couples: The pairs.
        frozen: The run's probes.
        asked: What is asked.
        say: Called with one-line messages.

    Raises:
        UserError: If the sentences have no counterparts, or are read alike.
    """
    (store,) = subject.source.read([couples.corpus])
    text, n_left_out = coupled(store, couples, asked.n_tokens, asked.seed)
    if n_left_out:
        say(f"{n_left_out} of {len(couples.couples)} pairs are left out: their sentences differ in number of tokens")
    task = subject.own.task
    classes = read_differently(text, task, frozen.weight)
    first = min(asked.ranked)
    if not any((own >= 0).any() for layer, (own, _) in classes.items() if layer > first):
        raise UserError(
            f"`{couples.typed}`: the run's probes of later layers read both sentences of every pair alike, so that "
            "nothing can be carried over; give pairs that differ in what the run predicts."
        )
    stands = standing_for(task, text.tokens)
    of_examples = None if stands is None else torch.from_numpy(stands)
    device = subject.readers.device
    reads = [
        ProbeReadout(text, Probes({layer: frozen.weight[layer]}, torch.from_numpy(labels), of_examples), device, name)
        for layer in frozen.weight
        for name, labels in zip((f"{TASK}{INTERCHANGED}", TASK), classes[layer][::-1], strict=True)
    ]
    settings = {
        "probes": fingerprint_of(*frozen.weight, *frozen.weight.values()),
        "read": fingerprint_of(*(labels for both in classes.values() for labels in both)),
    }  # fmt: skip
    interventions: Rows = []
    draws: Rows = []
    for layer, found in exchanged(subject, store, text, reads, asked, settings):
        lines = [Line(read.name, one, by_pair(read.n), {}) for read in reads for one in read.layers(layer + 1)]
        for table, more in zip((interventions, draws), found.rows(lines, by_pair), strict=True):
            table += more
    for row in (*interventions, *draws):
        row["task"] = asked.task_name
    return Found(interventions, draws, text, text, (), {TASK: "run"}, None, len(text.couples), n_left_out)


# --------------------------------------------------------------------------------------------------------------------
# Interchange between texts with masks: how much of the difference in the log odds of two words is carried over.
# --------------------------------------------------------------------------------------------------------------------

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
