"""How often `probing.probe` claims what is not so, on designs in which rows depend on each other.

    python benchmarks/null_designs.py                     # all designs, 60 draws each
    python benchmarks/null_designs.py --draws 200 rows    # some of them

Every draw is a data set of its own, probed with the default options. Labels say nothing of the neurons, but in the
designs whose name begins with `planted`, in which one neuron carries them. What is counted:

- p-values of eta squared at most .05 and .001, of all neurons but the planted one; where a value is held fixed, those
  within it;
- layers that are called informative, and layers in which a neuron that carries nothing is said to carry the label;
- intervals of the accuracy that exclude the probe's accuracy on many other groups, and intervals of the difference to
  the majority class and to shuffled labels that are above 0; where a value is held fixed, to labels shuffled within it.

Prints rows of a Markdown table; docs/notes/eta_squared.md shows the results.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import probing
from probing.errors import UserError
from probing.runs.run import Run
from probing.tables import UNINFORMATIVE
from probing.tables.conclusions import conclusion, covariate_words
from probing.tables.schema import FALSE_DISCOVERIES

Array = NDArray[Any]

N_NEURONS = 30
# How many times as many groups the accuracy of a probe is measured on.
UNSEEN = 20


@dataclass(frozen=True)
class Rows:
    """Rows of a data set.

    Args:
        neurons: Activations, shape (n_rows, d_model).
        labels: Label of each row, shape (n_rows,).
        groups: Group of each row, shape (n_rows,); None if every row is its own.
        given: What is held fixed of each row, shape (n_rows,); None if nothing is.
    """

    neurons: Array
    labels: Array
    groups: Array | None
    given: Array | None = None


@dataclass(frozen=True)
class Design:
    """Data sets of one kind.

    Args:
        draw: Draws one: from a generator and a factor by which there are more groups.
        planted: Whether neuron 0 carries the labels.
    """

    draw: Callable[[np.random.Generator, int], Rows]
    planted: bool = False


def _around(groups: Array, generator: np.random.Generator, sd: float = 1.0) -> Array:
    """Return neurons with a part of the row and a part of its group."""
    own = generator.standard_normal((len(groups), N_NEURONS))
    return own + sd * generator.standard_normal((int(groups.max()) + 1, N_NEURONS))[groups]


def _rows(generator: np.random.Generator, more: int) -> Rows:
    n = 1000 * more
    return Rows(generator.standard_t(4, (n, N_NEURONS)), generator.integers(4, size=n), None)


def _words(generator: np.random.Generator, more: int) -> Rows:
    groups = np.repeat(np.arange(150 * more), generator.integers(4, 25, 150 * more))
    classes = generator.choice(5, size=len(groups), p=[0.4, 0.3, 0.2, 0.07, 0.03])
    return Rows(_around(groups, generator), classes, groups)


def _positions(generator: np.random.Generator, more: int) -> Rows:
    lengths = generator.integers(5, 16, 150 * more)
    return Rows(
        _around(np.repeat(np.arange(len(lengths)), lengths), generator),
        np.concatenate([np.arange(n) for n in lengths]),
        np.repeat(np.arange(len(lengths)), lengths),
    )


def _constant(flipped: float, effect: float = 0.0, scale: float = 1.0) -> Callable[[np.random.Generator, int], Rows]:
    """Return groups of ten rows with one label each, but for one row in some of them."""

    def draw(generator: np.random.Generator, more: int) -> Rows:
        n = 300 * more
        groups = np.repeat(np.arange(n), 10)
        label = generator.integers(2, size=n)[groups]
        neurons = _around(groups, generator)
        neurons[:, 0] += effect * label
        neurons[:, 0] *= scale
        labels = label.copy()
        labels[: 10 * (int(flipped * n) if flipped <= 1 else int(flipped)) : 10] ^= 1
        return Rows(neurons, labels, groups)

    return draw


def _runs(effect: float = 0.0) -> Callable[[np.random.Generator, int], Rows]:
    """Return labels in runs of five rows beside neurons that change slowly."""

    def draw(generator: np.random.Generator, more: int) -> Rows:
        groups = np.repeat(np.arange(150 * more), generator.integers(15, 40, 150 * more))
        n, opens = len(groups), np.diff(groups, prepend=-1) != 0
        starts = (generator.random(n) < 0.2) | opens
        labels = generator.integers(3, size=n)[np.maximum.accumulate(np.where(starts, np.arange(n), 0))]
        neurons = generator.standard_normal((n, N_NEURONS))
        for i in np.flatnonzero(~opens):
            neurons[i] = 0.9 * neurons[i - 1] + np.sqrt(1 - 0.81) * neurons[i]
        neurons[:, 0] += effect * labels
        return Rows(neurons, labels, groups)

    return draw


def _documents(effect: float = 0.0) -> Callable[[np.random.Generator, int], Rows]:
    """Return documents of several sentences, with one label each; neurons differ between both."""

    def draw(generator: np.random.Generator, more: int) -> Rows:
        document = np.repeat(np.arange(200 * more), generator.integers(2, 6, 200 * more))
        sentence = np.repeat(np.arange(len(document)), generator.integers(3, 8, len(document)))
        of_row = document[sentence]
        labels = generator.integers(2, size=200 * more)[of_row]
        neurons = _around(sentence, generator) + generator.standard_normal((200 * more, N_NEURONS))[of_row]
        neurons[:, 0] += effect * labels
        return Rows(neurons, labels, of_row)

    return draw


def _sizes(effect: float = 0.0) -> Callable[[np.random.Generator, int], Rows]:
    """Return groups whose label goes with their size, and whose mean varies less if they are large."""

    def draw(generator: np.random.Generator, more: int) -> Rows:
        label = generator.integers(2, size=300 * more)
        groups = np.repeat(np.arange(300 * more), np.where(label, generator.integers(10, 20, 300 * more), 4))
        neurons = generator.standard_normal((len(groups), N_NEURONS))
        neurons[:, 0] += effect * label[groups]
        return Rows(neurons, label[groups], groups)

    return draw


def _confounded(by_group: bool, effect: float = 0.0) -> Callable[[np.random.Generator, int], Rows]:
    """Return groups whose rows have one of forty values, which neurons show and labels go with.

    Args:
        by_group: Whether a group has one label, with which half of its rows' values go, and neurons differ between
            groups; otherwise a row's value decides which labels are likely.
        effect: By how much neuron 0 goes with the label beyond the value.
    """
    of_values = np.random.default_rng(0)  # values are the same in every draw
    shown = 2 * of_values.standard_normal((40, N_NEURONS))
    likely = of_values.dirichlet(np.full(4, 0.7), size=40).cumsum(1)
    frequency = 1 / np.arange(1, 41)

    def draw(generator: np.random.Generator, more: int) -> Rows:
        groups = np.repeat(np.arange(300 * more), generator.integers(6, 15, 300 * more))
        n, given = len(groups), generator.choice(40, len(groups), p=frequency / frequency.sum())
        labels = (generator.random(n)[:, None] > likely[given]).sum(1).clip(max=3)
        if by_group:
            labels = generator.integers(4, size=300 * more)[groups]
            given = np.where(generator.random(n) < 0.5, given // 4 * 4 + labels, given)
        neurons = shown[given] + _around(groups, generator, float(by_group))
        neurons[:, 0] += effect * labels
        return Rows(neurons, labels, groups, given)

    return draw


def _few(generator: np.random.Generator, more: int) -> Rows:
    groups = np.repeat(np.arange(40 * more), 20)
    return Rows(_around(groups, generator), generator.integers(2, size=len(groups)), groups)


DESIGNS: Mapping[str, Design] = {
    "rows": Design(_rows),
    "words": Design(_words),
    "positions": Design(_positions),
    "constant": Design(_constant(0)),
    "one flipped": Design(_constant(1.5)),
    "each flipped": Design(_constant(1.0)),
    "runs": Design(_runs()),
    "documents": Design(_documents()),
    "sizes": Design(_sizes()),
    "forty groups": Design(_few),
    "confounded": Design(_confounded(by_group=False)),
    "confounded groups": Design(_confounded(by_group=True)),
    "planted, constant": Design(_constant(0, 1.0), planted=True),
    "planted, one flipped": Design(_constant(1.5, 1.0), planted=True),
    "planted, weak": Design(_constant(0, 0.4), planted=True),
    "planted, wide": Design(_constant(0, 1.0, 1e4), planted=True),
    "planted, narrow": Design(_constant(0, 1.0, 1e-4), planted=True),
    "planted, runs": Design(_runs(0.5), planted=True),
    "planted, documents": Design(_documents(1.5), planted=True),
    "planted, sizes": Design(_sizes(0.5), planted=True),
    "planted, confounded": Design(_confounded(by_group=False, effect=2.0), planted=True),
}


@dataclass
class Counted:
    """What was found over the draws of a design; of the planted neuron apart."""

    p_values: list[Array] = field(default_factory=list)
    informative: list[bool] = field(default_factory=list)
    carries: list[bool] = field(default_factory=list)
    excluded: list[bool] = field(default_factory=list)
    above_majority: list[bool] = field(default_factory=list)
    above_shuffled: list[bool] = field(default_factory=list)
    found: list[bool] = field(default_factory=list)

    def add(self, run: Run, design: Design, unseen: Rows) -> None:
        """Add a run, given rows that it has not seen."""
        (row,) = run.accuracy
        classes = np.array(run.results["classes"])
        predicted = classes[(unseen.neurons @ run.weight[0].numpy().T).argmax(1)]
        accuracy = float((predicted == unseen.labels).mean())
        neurons = [one for one in run.neurons if not (design.planted and one["neuron"] == 0)]
        planted = [one for one in run.neurons if design.planted and one["neuron"] == 0]
        p_value, control = (
            ("eta_squared_p", "shuffled") if unseen.given is None else ("within_covariate_p", "covariate")
        )
        self.p_values.append(np.array([one[p_value] for one in neurons]))
        self.informative.append(row["flag"] != UNINFORMATIVE)
        first = run.neurons[0]
        claimed = first in neurons and "it carries" in conclusion(
            run.neurons, "label", row, covariate_words(run.config)
        )
        self.carries.append(claimed)
        if row["accuracy_low"] == row["accuracy_low"]:
            self.excluded.append(not row["accuracy_low"] <= accuracy <= row["accuracy_high"])
            self.above_majority.append(row["above_majority_low"] > 0)
            self.above_shuffled.append(row[f"above_{control}_low"] > 0)
        self.found += [one["rank"] == 1 and one["eta_squared_q"] <= FALSE_DISCOVERIES for one in planted]

    def line(self, name: str) -> str:
        """Return the row of the table."""
        p = np.concatenate(self.p_values)
        shares = [self.informative, self.carries, self.excluded, self.above_majority, self.above_shuffled, self.found]
        cells = [f"{np.mean(one):.1%}" if one else "" for one in shares]
        return f"| {name} | {len(self.p_values)} | {(p <= 0.05).mean():.1%} | {(p <= 0.001).mean() / 0.001:.1f} | " + (
            " | ".join(cells) + " |"
        )


HEADING = (
    "| design | draws | p ≤ .05 | p ≤ .001, times .001 | informative | a neuron carries | accuracy excluded | above "
    "majority | above shuffled | planted found |"
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("designs", nargs="*", metavar="DESIGN", help=", ".join(DESIGNS))
    parser.add_argument("--draws", type=int, default=60)
    options = parser.parse_args()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    print(HEADING + "\n" + "|---" * HEADING.count(" | ") + "|---|", flush=True)
    for name in options.designs or DESIGNS:
        design, counted, started = DESIGNS[name], Counted(), time.perf_counter()
        for seed in range(options.draws):
            generator = np.random.default_rng([seed, 1])
            rows, unseen = design.draw(generator, 1), design.draw(generator, UNSEEN)
            try:
                run = probing.probe(
                    rows.neurons.astype(np.float32), rows.labels, groups=rows.groups, seed=seed, quiet=True,
                    control_for=rows.given,
                )  # fmt: skip
            except UserError:  # no group is on one of the sides
                continue
            counted.add(run, design, unseen)
        print(
            counted.line(name), f"<!-- {(time.perf_counter() - started) / options.draws:.1f} s a draw -->", flush=True
        )


if __name__ == "__main__":
    main()
