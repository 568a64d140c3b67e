"""Passes in which neurons take the values of the other sentence of a pair, and the rows of what reads them.

The sentences of a text in pairs follow each other: the first two are a pair, and have as many tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from probing.cache import ActivationStore
from probing.cache.tokens import Tokens
from probing.disabling.neurons.asked import Asked
from probing.disabling.neurons.neuron_effects import DRAWN, Line, Rows, Sums, effect_rows
from probing.disabling.neurons.neuron_sets import Kind, NeuronSet, chosen_sets, drawn_sets
from probing.disabling.neurons.stream import Values, changed_tokens
from probing.disabling.neurons.stream_passes import NeuronPasses, Read
from probing.disabling.store import fingerprint_of, opened, run_unfinished
from probing.disabling.subject import Subject
from probing.readouts.readout import ReadableText

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
        shows = subject.source.shows_progress
        results = run_unfinished(files, kept, lambda one: passes.run(one, reads), "interchanged neurons", shows)
    for layer, ranked in asked.ranked.items():
        here = {one: np.asarray(sums, dtype=np.float64) for one, sums in results.items() if one.layer == layer}
        chosen = chosen_sets(layer, ranked, [_KIND], passes.d_model)
        yield layer, Exchanged(
            here[chosen[0]], here[_whole(layer, passes.d_model)], {one: here[one] for one in chosen},
            {one: sums for one, sums in here.items() if one.source in DRAWN},
        )  # fmt: skip


def _whole(layer: int, d_model: int) -> NeuronSet:
    return NeuronSet(layer, _KIND, tuple(range(d_model)))
