"""False positives of eta squared: its p-values and the flag `no-signal` on neurons that have no signal.

    python benchmarks/eta_squared_null.py --layers 0,1,3,6 --seeds 20 > real.md
    python benchmarks/eta_squared_null.py --simulated > simulated.md

Without `--simulated`, uses activations of the built-in corpus with meaningless labels: a random class for each word, or
positions permuted within sentences. With it, uses neurons of several distributions, some of them heavy-tailed, in a
small corpus with various classes, some of them rare; and, as a case where the null does not hold, neurons that drift
along the sentence, labelled by position. Prints Markdown tables of how often p-values are at most a level, in multiples
of the level, and of how many layers have any neuron with a signal.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from probing.builtin_tasks.position import Position

from probing.activations import Request, activations
from probing.activations.store import cache_folder
from probing.data.examples import Examples
from probing.data.labelling import choose_classes, label
from probing.data.module import layer_moments
from probing.models import resolve_model
from probing.probes.evidence import separation_of
from probing.statistics.chance import discovery_rates, permute_within_sentences
from probing.statistics.label_scores import EtaSquaredAccumulator, LabelCodes
from probing.tables.schema import FALSE_DISCOVERIES
from probing.text import read_corpora

Array = NDArray[np.float64]

LEVELS = (0.05, 0.01, 0.001, 0.0001)
N_CLASSES = (2, 5, 8, 50)
# The simulated corpus: number of sentences (of 4 to 24 tokens), and number of neurons drawn at a time.
N_SENTENCES, NEURONS = 300, 1000
# Shares of classes of which some are rare, as among parts of speech.
UNEQUAL = (0.2, 0.17, 0.15, 0.12, 0.1, 0.08, 0.07, 0.05, 0.03, 0.015, 0.009, 0.006)


def table(rows: Sequence[tuple[str, Array]], heading: str) -> list[str]:
    """Return a table of how often p-values are at most each level, in multiples of the level."""
    lines = [f"| {heading} | p-values | " + " | ".join(f"p ≤ {level:g}" for level in LEVELS) + " |"]
    lines.append("|---" * (2 + len(LEVELS)) + "|")
    for name, p in rows:
        shares = " | ".join(f"{(p <= level).mean() / level:.2f}" for level in LEVELS)
        lines.append(f"| {name} | {p.size:,} | {shares} |")
    return lines


# --- real activations ---


def examples(model: str, layers: Sequence[int], say: Callable[[str], None]) -> tuple[Examples, int]:
    """Return the training tokens of the built-in corpus labelled by position, and the number of positions."""
    (corpus,), (splits,) = read_corpora("builtin", None, 0, say)
    store = activations(Request(resolve_model(model), corpus, layers), cache_folder(None), {}, say)
    classes = choose_classes(store.tokens, corpus, Position(), splits)
    return label(store, corpus, Position(), splits, classes, "train"), len(classes)


def meaningless(words: Examples, train: Examples, n_positions: int, seed: int) -> Iterator[tuple[str, Examples, int]]:
    """Yield sets of meaningless labels: their name, the examples and the number of classes."""
    tokens, generator = train.store.tokens, np.random.default_rng(seed)
    for n in N_CLASSES:
        random = generator.integers(n, size=tokens.n_tokens)
        yield f"words, {n} classes", replace(words, labels=np.where(words.labels >= 0, random, -1)), n
    (permuted,) = permute_within_sentences(train.labels, tokens.sentences, tokens.input_ids, 1, seed)
    yield f"positions permuted, {n_positions} classes", replace(train, labels=permuted), n_positions


def real(model: str, layers: Sequence[int], n_seeds: int, say: Callable[[str], None]) -> list[str]:
    """Return the tables for real activations."""
    train, n_positions = examples(model, layers, say)
    words = replace(train, labels=np.where(train.store.tokens.first_pieces, train.labels, -1))
    of_words, of_all = (layer_moments(some, layers) for some in (words, train))
    p_values: dict[str, list[Array]] = {}
    layers_with: dict[str, list[bool]] = {}
    for seed in range(n_seeds):
        for name, some, n_classes in meaningless(words, train, n_positions, seed):
            of_layers = of_words if name.startswith("words") else of_all
            for layer, moments in zip(layers, of_layers, strict=True):
                p = separation_of(some, layer, moments, n_classes).p
                q = discovery_rates(p, ~moments.dead)
                p_values.setdefault(name, []).append(p[~moments.dead].numpy())
                layers_with.setdefault(name, []).append(bool((q <= FALSE_DISCOVERIES).any()))
        say(f"seed {seed}")
    rows = [(name, np.concatenate(parts)) for name, parts in p_values.items()]
    found = [f"| {name} | {sum(any_)} | {len(any_)} |" for name, any_ in layers_with.items()]
    return [*table(rows, "labels"), "", "| labels | layers with a signal | of |", "|---|---|---|", *found]


# --- simulated neurons ---


def neurons(sentences: NDArray[np.int64], n: int, generator: np.random.Generator) -> dict[str, Array]:
    """Return neurons of several kinds, each of shape (n_tokens, n)."""
    shape, n_sentences = (len(sentences), n), int(sentences.max()) + 1
    gaussian = generator.standard_normal(shape)
    return {
        "Gaussian": gaussian,
        "Gaussian, sentences differ in mean": gaussian + 3 * generator.standard_normal((n_sentences, n))[sentences],
        "Gaussian, sentences differ in variance": gaussian
        * np.exp(1.5 * generator.standard_normal((n_sentences, n)))[sentences],
        "0 but for 2% of tokens": (generator.random(shape) < 0.02) * gaussian,
        "Student, 3 degrees of freedom": generator.standard_t(3, shape),
        "log-normal, s = 1.5": np.exp(1.5 * gaussian),
    }


def random_labels(n_tokens: int, generator: np.random.Generator) -> dict[str, NDArray[np.int64]]:
    """Return random labels, by a description of their classes."""
    equal = {f"{n} equal classes": generator.integers(n, size=n_tokens) for n in N_CLASSES}
    rare = (generator.random(n_tokens) < 0.02).astype(np.int64)
    unequal = generator.choice(len(UNEQUAL), size=n_tokens, p=np.array(UNEQUAL) / sum(UNEQUAL))
    return {**equal, "2 classes, one of 2%": rare, f"{len(UNEQUAL)} classes, .6% to 20%": unequal}


def p_values_of(states: Array, labels: NDArray[np.int64], sentences: NDArray[np.int64]) -> Array:
    """Return the p-values of neurons, shape (n,)."""
    x, y = torch.from_numpy(states), torch.from_numpy(labels)
    codes = LabelCodes.of_classes(y.bincount())
    between = codes.excess_between(labels.astype(np.int32), sentences.astype(np.int32))
    accumulator = EtaSquaredAccumulator(x.mean(0), x.std(0, correction=0), codes, between)
    accumulator.update(x, y, torch.from_numpy(sentences))
    return accumulator.result().p.numpy()


def simulated(n_rounds: int, say: Callable[[str], None]) -> list[str]:
    """Return the table for simulated neurons; every round has its own corpus and labels."""
    found: dict[str, list[Array]] = {}
    for seed in range(n_rounds):
        generator = np.random.default_rng(seed)
        sentences = np.repeat(np.arange(N_SENTENCES), generator.integers(4, 25, N_SENTENCES))
        for classes, labels in random_labels(len(sentences), generator).items():
            for kind, states in neurons(sentences, NEURONS, generator).items():
                found.setdefault(f"{kind}; {classes}", []).append(p_values_of(states, labels, sentences))
        say(f"round {seed}")
    return table([(name, np.concatenate(parts)) for name, parts in sorted(found.items())], "neurons and labels")


def drifting(n_rounds: int) -> list[str]:
    """Return the table for neurons that are correlated along the sentence but independent of position."""
    found: dict[str, list[Array]] = {}
    for seed in range(n_rounds):
        generator = np.random.default_rng(seed)
        lengths = generator.integers(4, 25, N_SENTENCES)
        position = np.concatenate([np.arange(length) for length in lengths])
        for correlation in (0.0, 0.2, 0.5, 0.9):
            states = generator.standard_normal((len(position), NEURONS))
            for i in range(1, 24):
                here = np.flatnonzero(position == i)
                states[here] = correlation * states[here - 1] + (1 - correlation**2) ** 0.5 * states[here]
            p = p_values_of(states, position, np.repeat(np.arange(N_SENTENCES), lengths))
            found.setdefault(f"{correlation:g}", []).append(p)
    return table([(name, np.concatenate(parts)) for name, parts in found.items()], "correlation of neighbours")


def main() -> None:
    """Parse the options, repeat, print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--layers", default="0,1,3,6")
    parser.add_argument("--seeds", type=int, default=20, help="labellings, or rounds of the simulation")
    parser.add_argument("--simulated", action="store_true")
    options = parser.parse_args()

    def say(what: str) -> None:
        print(what, file=sys.stderr, flush=True)

    layers = [int(layer) for layer in options.layers.split(",")]
    if options.simulated:
        lines = [*simulated(options.seeds, say), "", *drifting(options.seeds)]
    else:
        lines = real(options.model, layers, options.seeds, say)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
