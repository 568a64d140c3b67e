"""Interchange of neurons between the sentences of pairs, and the rows of the effects on readouts.

The sentences of a text in pairs follow each other: the first two are a pair, and have as many tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.activations import ActivationStore
from probing.errors import UserError
from probing.interventions import INTERCHANGE, INTERCHANGED, TASK
from probing.interventions.forward import LayerReadout, ReadableText, ReadText, draw_up_to
from probing.interventions.frozen_probes import ProbeReadout, at_tokens, means, standing_for
from probing.interventions.model_output import MaskedHead, MaskedText, Prompt, WordOdds, prompt_of, tokens_of_prompts
from probing.interventions.neurons import (
    NeuronPasses,
    NeuronSet,
    Values,
    changed_tokens,
    chosen_sets,
    drawn_sets,
)
from probing.interventions.passes import Rows, Sums, fingerprint_of, opened, run_unfinished
from probing.interventions.probed_task import Frozen
from probing.interventions.subject import FORMAT, InterventionSetup
from probing.models import check_ids, length_limits
from probing.runs.predictions import labelled_tokens
from probing.studies.ablate.neurons import DRAWN, EffectRow, NeuronConfig, NeuronTables, effect_rows, lines_of
from probing.text import Corpus, Couple, read_couples
from probing.text.tasks import SentenceTask, TokenTask
from probing.text.tokens import Tokens


def partner_of(tokens: Tokens) -> NDArray[np.int64]:
    """Return the row of the token at the same position of the pair's other sentence, shape (n_tokens,)."""
    step = np.repeat(tokens.lengths.astype(np.int64), tokens.lengths)
    return np.arange(tokens.n_tokens) + np.where(tokens.sentences % 2 == 0, step, -step)


def by_pair(values: NDArray[Any]) -> NDArray[Any]:
    """Return sums over the two sentences of each pair, shape (..., n_pairs)."""
    return values.reshape(*values.shape[:-1], -1, 2).sum(-1)


def exchanged(
    setup: InterventionSetup, store: ActivationStore, text: ReadableText, reads: Sequence[LayerReadout],
    config: NeuronConfig, settings: Mapping[str, Any],
) -> dict[NeuronSet, Sums]:  # fmt: skip
    """Exchange sets of neurons between the sentences of pairs; return the sums of passes, (n_lines, n_sentences).

    The sets are the chosen ones, with the empty set, drawn ones, and each whole layer.
    """
    tokens = text.tokens
    # Values of special tokens are exchanged `everywhere` alone, and count for the spread of neurons there alone.
    changed = torch.from_numpy(changed_tokens(tokens, config.at))
    none = torch.full((tokens.n_tokens,), -1)
    values = {layer: Values(text.states(layer), tokens.sentences, none, 1, none) for layer in config.ranked}
    partner = torch.from_numpy(partner_of(tokens))
    passes = NeuronPasses(
        setup.readers, text, values.__getitem__, True, config.at, store.plan.batch_tokens, config.seed, drawn=partner
    )
    sets: list[NeuronSet] = []
    for layer, ranked in config.ranked.items():
        chosen = chosen_sets(layer, ranked, [INTERCHANGE], passes.d_model)
        sd = values[layer].states[changed].double().std(0, correction=0).numpy()
        sets += [*chosen, *drawn_sets(chosen, sd, config.n_draws, config.seed), _whole(layer, passes.d_model)]
    files = dict(enumerate(dict.fromkeys(sets), start=1))
    key = {
        "format": FORMAT, "seed": config.seed, "at": config.at,
        "tokens": fingerprint_of(tokens.input_ids, tokens.lengths, tokens.words),
        "sets": [[entry.layer, entry.source, entry.draw, *entry.neurons] for entry in files.values()], **settings,
    }  # fmt: skip
    key = {**store.plan.key, "interchange": key}
    with opened(setup.source, key, store, tokens, len(files), "ablate") as pass_store:
        return run_unfinished(
            files, pass_store, lambda neuron_set: passes.read(neuron_set, *reads), "interchanged neurons"
        )


def rows_by_pair(
    results: Mapping[NeuronSet, Sums], config: NeuronConfig, d_model: int,
    by_pair_of: Callable[[int, Sums], tuple[Sequence[EffectRow], Callable[[Sums], Sums]]],
) -> tuple[Rows, Rows]:  # fmt: skip
    """Return the rows of both tables by pair from sums of `exchanged`.

    `by_pair_of` takes a layer and the sums of the intact model, shape (n_lines, n_sentences); it returns the rows to
    make, and a function that converts the sums of a pass to shape (n_lines, n_pairs).
    """
    interventions: Rows = []
    draws: Rows = []
    for layer, ranked in config.ranked.items():
        chosen = chosen_sets(layer, ranked, [INTERCHANGE], d_model)
        lines, measure = by_pair_of(layer, results[chosen[0]])
        measured = {neuron_set: measure(sums) for neuron_set, sums in results.items() if neuron_set.layer == layer}
        drawn = {neuron_set: sums for neuron_set, sums in measured.items() if neuron_set.source in DRAWN}
        items = np.arange(len(lines[0].n) if lines else 0)
        rows, layer_draws = effect_rows({of: measured[of] for of in chosen}, drawn, lines, items)
        whole = zip(lines, measured[_whole(layer, d_model)], strict=True)
        most = {(line.readout, line.layer): (sums, line.n) for line, sums in whole}
        for row in rows:
            sums, n = most[row["readout"], row["layer"]]
            row["all_neurons"] = float(sums.sum() / n.sum())
        interventions += rows
        draws += layer_draws
    return interventions, draws


def _whole(layer: int, d_model: int) -> NeuronSet:
    return NeuronSet(layer, INTERCHANGE, tuple(range(d_model)))


@dataclass(frozen=True)
class Couples:
    """Pairs of sentences, each sentence once, with indices of shape (n_pairs, 2); `flag_text` is for messages."""

    flag_text: str
    corpus: Corpus
    couples: NDArray[np.int64]

    @classmethod
    def read(cls, file: str) -> Couples:
        """Read the pairs of a file, `sentence TAB counterfactual` on each line.

        Raises:
            UserError: If it cannot be read, or a line is not a pair of different sentences.
        """
        pairs = [(couple.first, couple.second) for couple in read_couples(file)]
        index = {text: i for i, text in enumerate(dict.fromkeys(text for pair in pairs for text in pair))}
        couples = np.array([[index[text] for text in pair] for pair in pairs], dtype=np.int64)
        return cls(f"--pairs {file}", Corpus(file, tuple(index)), couples)


def check_later(frozen: Frozen | None, layers: Iterable[int], flag_text: str) -> None:
    """Raise a `UserError` if a run has no probe above a layer whose neurons are exchanged."""
    last = max(frozen.weight, default=0) if frozen else 0
    if wrong := [layer for layer in layers if layer >= last]:
        raise UserError(
            f"`{flag_text}` has no probe of a layer above {wrong[0]}, whose neurons are exchanged; give a run with "
            "more."
        )


def coupled(store: ActivationStore, couples: Couples, at_most: int, seed: int) -> tuple[ReadText, int]:
    """Return the pairs that can be read token by token, as consecutive sentences, and the number of other pairs.

    If the pairs have more than `at_most` tokens, a random selection is returned.

    Raises:
        UserError: If no pair has as many tokens in one sentence as in the other.
    """
    lengths = store.tokens.lengths[couples.couples].astype(np.int64)
    is_aligned = (lengths[:, 0] == lengths[:, 1]) & (lengths[:, 0] > 0)
    if not is_aligned.any():
        raise UserError(
            f"`{couples.flag_text}`: no pair has as many tokens in one sentence as in the other, so that no token has "
            "a counterpart; give sentences that differ in words of as many pieces."
        )
    aligned = np.flatnonzero(is_aligned)
    selected = aligned[draw_up_to(lengths[aligned].sum(1), at_most, seed)]
    return ReadText(store, couples.couples[selected].ravel()), int((~is_aligned).sum())


def read_differently(
    text: ReadText, task: TokenTask, weight: Mapping[int, Tensor]
) -> dict[int, tuple[NDArray[np.int32], NDArray[np.int32]]]:
    """Return, by layer, the classes of the examples that the probe decodes differently in the two sentences of a pair.

    `weight` has each layer's probe on raw hidden states, shape (n_classes, d_model). The two arrays of a layer have the
    class in the sentence itself, and in its counterpart, for each token that represents such an example, shape
    (n_tokens,); -1 for other tokens.
    """
    tokens, partner = text.tokens, partner_of(text.tokens)
    if isinstance(task, SentenceTask):
        labels = np.zeros(tokens.n_sentences, dtype=np.int32)
    else:
        labels = np.where(labelled_tokens(task, tokens), 0, -1).astype(np.int32)
    is_example = at_tokens(task, tokens, labels) >= 0
    counts = is_example & is_example[partner]
    stands = standing_for(task, tokens)
    readings = {}
    for layer, probe_weight in weight.items():
        states = text.states(layer)
        vectors = states if stands is None else means(states, torch.from_numpy(stands), len(states))
        read = (vectors @ probe_weight.T).argmax(1).numpy().astype(np.int32)
        differs = counts & (read != read[partner])
        readings[layer] = np.where(differs, read, -1), np.where(differs, read[partner], -1)
    return readings


def survey_couples(
    setup: InterventionSetup, couples: Couples, frozen: Frozen, config: NeuronConfig, say: Callable[[str], None]
) -> NeuronTables:
    """Exchange sets of neurons between the sentences of pairs, and read the later layers by the probes of a run.

    Both directions of a pair count, and intervals are over pairs.

    Raises:
        UserError: If the sentences have no counterparts, or are decoded alike.
    """
    (store,) = setup.source.read([couples.corpus])
    text, n_excluded = coupled(store, couples, config.n_tokens, config.seed)
    if n_excluded:
        say(f"{n_excluded} of {len(couples.couples)} pairs are left out: their sentences differ in number of tokens")
    task = setup.main_task.task
    classes = read_differently(text, task, frozen.weight)
    first = min(config.ranked)
    if not any((first_class >= 0).any() for layer, (first_class, _) in classes.items() if layer > first):
        raise UserError(
            f"`{couples.flag_text}`: the run's probes of later layers read both sentences of every pair alike, so that "
            "nothing can be carried over; give pairs that differ in what the run predicts."
        )
    stands = standing_for(task, text.tokens)
    of_examples = None if stands is None else torch.from_numpy(stands)
    device = setup.readers.device
    reads = [
        ProbeReadout(text, {layer: frozen.weight[layer]}, torch.from_numpy(labels), device, of_examples, name)
        for layer in frozen.weight
        for name, labels in zip((f"{TASK}{INTERCHANGED}", TASK), classes[layer][::-1], strict=True)
    ]
    settings = {
        "probes": fingerprint_of(*frozen.weight, *frozen.weight.values()),
        "read": fingerprint_of(*(labels for both in classes.values() for labels in both)),
    }  # fmt: skip

    def by_pair_of(layer: int, intact: Sums) -> tuple[list[EffectRow], Callable[[Sums], Sums]]:
        lines = [replace(line, n=by_pair(line.n)) for line in lines_of(reads, layer)]
        return lines, by_pair

    results = exchanged(setup, store, text, reads, config, settings)
    interventions, draws = rows_by_pair(results, config, store.plan.d_model, by_pair_of)
    for row in (*interventions, *draws):
        row["task"] = config.task_name
    return NeuronTables(
        interventions, draws, text, text, (), {TASK: "run"}, None, text.tokens.n_sentences // 2, n_excluded
    )


# --------------------------------------------------------------------------------------------------------------------
# Interchange between texts with masks: how much of the difference in the log odds of two words is carried over.
# --------------------------------------------------------------------------------------------------------------------


def survey_words(
    setup: InterventionSetup, store: ActivationStore, couples: Sequence[Couple], flag_text: str, config: NeuronConfig,
    say: Callable[[str], None],
) -> NeuronTables:  # fmt: skip
    """Exchange sets of neurons between the texts of pairs, and read two words at the masks by the model's head.

    Both directions of a pair count, and intervals are over pairs.

    Raises:
        UserError: If the model can read no pair, or the two words are equally probable in all texts.
    """
    prompts = aligned_prompts(setup, couples, flag_text, say)
    n_excluded = len(couples) - len(prompts)
    lengths = np.array([2 * len(first.input_ids) for first, _ in prompts])
    both = [prompt for i in draw_up_to(lengths, config.n_tokens, config.seed) for prompt in prompts[i]]
    readout = _readout(setup, both, store.plan.batch_tokens)
    differences = readout.intact()[::2] - readout.intact()[1::2]
    if not differences.any():
        raise UserError(
            f"`{flag_text}`: the log odds of the two words are the same in both texts of every pair, so that nothing "
            "can be carried over; give texts that differ in what they say of the mask."
        )
    of_intact = {"difference": float(np.abs(differences).mean()), "n_as_given": int((differences > 0).sum())}
    settings = {"words": fingerprint_of(readout.masks, readout.words)}

    def by_pair_of(layer: int, intact: Sums) -> tuple[list[EffectRow], Callable[[Sums], Sums]]:
        n = 2 * np.abs(intact[0, ::2] - intact[0, 1::2])
        lines = [EffectRow(readout.name, read, n) for read in readout.layers(layer + 1)]
        return lines, partial(carried, intact[0])

    results = exchanged(setup, store, readout.text, [readout], config, settings)
    interventions, draws = rows_by_pair(results, config, store.plan.d_model, by_pair_of)
    for row in interventions:
        row |= of_intact
    text = readout.text
    return NeuronTables(interventions, draws, text, text, (), {}, None, len(differences), n_excluded)


def carried(intact: Sums, odds: Sums) -> Sums:
    """Return the shift in nats of log odds towards the other text, shape (1, n_pairs), summed over both directions.

    Over both directions, the other text is 2 |difference of the pair| away; a full exchange moves the pair so far.
    `intact` has shape (n_texts,), the two texts of a pair after each other; `odds`, after the exchange, (1, n_texts).
    """
    moved = odds - intact
    towards = np.sign(intact[1::2] - intact[::2])
    return np.asarray(towards * (moved[:, ::2] - moved[:, 1::2]))


def aligned_prompts(
    setup: InterventionSetup, couples: Sequence[Couple], flag_text: str, say: Callable[[str], None]
) -> list[tuple[Prompt, Prompt]]:
    """Return the pairs whose texts can be read token by token; report why others are left out.

    Raises:
        UserError: If none is left.
    """
    source, tokenizer = setup.source.model, setup.tokenizer
    longest = length_limits(source, tokenizer)[1]
    aligned: list[tuple[Prompt, Prompt]] = []
    excluded: Counter[str] = Counter()
    for couple in couples:
        assert couple.words is not None  # the reader of the file gives words to all pairs or to none
        first, second = (prompt_of(tokenizer, text, couple.words, longest) for text in (couple.first, couple.second))
        if isinstance(first, str) or isinstance(second, str):
            excluded[first if isinstance(first, str) else str(second)] += 1
        elif len(first.input_ids) != len(second.input_ids):
            excluded["their texts differ in number of tokens"] += 1
        elif first.mask != second.mask or first.answers != second.answers:
            excluded["the mask is not the same token, or the words not the same pieces, in both texts"] += 1
        else:
            aligned.append((first, second))
    for reason, n in excluded.items():
        say(f"{n} of {len(couples)} pairs are left out: {reason}")
    if not aligned:
        reasons = "; ".join(f"{reason}: {n}" for reason, n in excluded.items())
        raise UserError(
            f"`{flag_text}` has no pair between whose texts neurons can be exchanged ({reasons}); give others."
        )
    check_ids(source, tokenizer, tokens_of_prompts([prompt for pair in aligned for prompt in pair]).input_ids)
    return aligned


def _readout(setup: InterventionSetup, prompts: Sequence[Prompt], batch_tokens: int) -> WordOdds:
    model, encoder = setup.masked_lm, setup.model.encoder
    assert model is not None  # there is something at masks to read
    device = setup.readers.device
    tokens = tokens_of_prompts(prompts)
    text = MaskedText(tokens, encoder, setup.model.anatomy, setup.pad_token_id, batch_tokens)
    first = torch.tensor([prompts[0].input_ids], device=device)
    masks, words = np.array([prompt.mask for prompt in prompts]), np.array([prompt.answers for prompt in prompts])
    return WordOdds(text, masks, words, MaskedHead(model, encoder, first))
