"""How often the evidence of `fit` is right: neurons of known nature planted beside the real ones of a layer.

    python benchmarks/null_runs.py --layer 3 --repetitions 200

Each repetition plants six neurons, all drawn anew, and ranks them with the real ones by the project's own functions.
One of a kind suffices: two that serve as an intercept, or two that carry position, would share what one has.
Prints a Markdown table with exact (Clopper-Pearson) intervals over repetitions.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from probing_tasks.position import Position
from scipy.stats import binomtest
from torch import Tensor

from probing.cache import Request, activations
from probing.cache.plan import Plan, Shard
from probing.cache.tokens import Tokens
from probing.commands.shared import cache_folder, read_corpora
from probing.controls import shuffled
from probing.examples import Activations, Sides, choose_classes, label
from probing.models import resolve_model
from probing.ranking import collect_evidence, neuron_table
from probing.solvers import Penalty
from probing.training import Training, train_probes

Column = NDArray[np.float64]

# Share of a planted neuron's variance that position explains.
EXPLAINED = 0.5
TOP = 10
QUESTIONS = {
    "noise": "pure noise is flagged no-signal",
    "sentence": "a sentence effect is flagged no-signal",
    "length": "sentence length is flagged no-signal",
    "shuffled": "a real neuron under labels shuffled within sentences is flagged no-signal",
    "signal": f"a neuron explained to {EXPLAINED:.0%} by position ranks among the top {TOP}",
    "weak": "one explained to 20% is not flagged no-signal",
    "constant": "a constant N(10, .5) is flagged offset",
}


class Planted:
    """Reads like a store with further neurons behind those of the store.

    Args:
        store: Of the real ones.
        planted: Shape (n_tokens, n_planted), float32.
    """

    def __init__(self, store: Activations, planted: Tensor) -> None:
        self.store, self.planted = store, planted
        self.tokens: Tokens = store.tokens
        self.plan: Plan = replace(store.plan, d_model=store.plan.d_model + planted.shape[1])

    def shard_tokens(self, shard: Shard) -> slice:
        """Return which rows of the table of tokens are in the shard."""
        return self.store.shard_tokens(shard)

    def read(self, layer: int, shard: int) -> Tensor:
        """Return real and planted neurons of a shard, shape (n, d_model)."""
        rows = self.shard_tokens(self.plan.shards[shard])
        return torch.cat([self.store.read(layer, shard).float(), self.planted[rows]], 1)


def planted_neurons(tokens: Tokens, generator: np.random.Generator) -> dict[str, Column]:
    """Return neurons of known nature by kind, each of shape (n_tokens,)."""

    def standard(values: Column) -> Column:
        scaled: Column = (values - values.mean()) / values.std()
        return scaled

    def explained(share: float) -> Column:
        means = generator.standard_normal(int(tokens.lengths.max()))[tokens.positions]
        mixed: Column = share**0.5 * standard(means) + (1 - share) ** 0.5 * generator.standard_normal(tokens.n_tokens)
        return mixed

    return {
        "noise": generator.standard_normal(tokens.n_tokens),
        "sentence": generator.standard_normal(tokens.n_sentences)[tokens.sentences],
        "length": tokens.lengths[tokens.sentences].astype(np.float64),
        "signal": explained(EXPLAINED),
        "weak": explained(0.2),
        "constant": generator.normal(10, 0.5, tokens.n_tokens),
    }


def repetition(sides: Sides, layer: int, training: Training, seed: int) -> dict[str, bool]:
    """Plant, rank and return for each question whether its answer is yes."""
    store, generator = sides.train.store, np.random.default_rng(seed)
    d_model, columns = store.plan.d_model, planted_neurons(store.tokens, generator)
    stack = torch.from_numpy(np.stack(list(columns.values()), 1)).float()
    grown = sides.each(lambda examples: replace(examples, store=Planted(store, stack)))
    (fit,) = train_probes(grown, [layer], training, {})
    (evidence,) = collect_evidence(grown.train, grown.test, [layer], [fit.moments], len(sides.classes), seed)
    rows = {row["neuron"]: row for row in neuron_table(layer, fit.weight, evidence)}
    found = {kind: rows[d_model + i] for i, kind in enumerate(columns)}
    dealt = shuffled(grown, seed)
    # Labels dealt by the seed that evidence permutes them by would be one of its own draws.
    (null,) = collect_evidence(dealt.train, dealt.test, [layer], [fit.moments], len(sides.classes), seed + 2**32)
    of_null = {row["neuron"]: row for row in neuron_table(layer, fit.weight, null)}
    live = [i for i in range(d_model) if not bool(fit.moments.dead[i])]
    return {
        **{kind: "no-signal" in found[kind]["flag"] for kind in ("noise", "sentence", "length")},
        "shuffled": "no-signal" in of_null[int(generator.choice(live))]["flag"],
        "signal": bool(found["signal"]["rank"] <= TOP),
        "weak": "no-signal" not in found["weak"]["flag"],
        "constant": "offset" in found["constant"]["flag"],
    }


def repetitions(
    sides: Sides, layer: int, n: int, seed: int, tolerance: float = 1e-3, l2: float = 1e-4
) -> Iterator[dict[str, bool]]:
    """Yield the answers of each repetition."""
    training = Training(Penalty(0, l2), "sd", "lbfgs", tolerance, 1e-3, 512, 3, 0)
    for i in range(n):
        yield repetition(sides, layer, training, seed + i)


def table(answers: list[Mapping[str, bool]]) -> str:
    """Return how often each answer was yes as a Markdown table."""
    lines = ["| a planted neuron | yes | of | share | 95% interval |", "|---|---|---|---|---|"]
    for question, words in QUESTIONS.items():
        yes = sum(answer[question] for answer in answers)
        low, high = binomtest(yes, len(answers)).proportion_ci(method="exact")
        lines.append(f"| {words} | {yes} | {len(answers)} | {yes / len(answers):.3f} | {low:.3f} to {high:.3f} |")
    return "\n".join(lines)


def real_sides(model: str, layer: int, seed: int, say: Callable[[str], None]) -> Sides:
    """Return the labelled tokens of the built-in corpus with a model's activations."""
    (corpus,), (splits,) = read_corpora("builtin", None, seed, say)
    store = activations(Request(resolve_model(model), corpus, [layer]), cache_folder(None), {}, say)
    task = Position()
    classes = choose_classes(store.tokens, corpus, task, splits)
    train, validation, test = (
        label(store, corpus, task, splits, classes, "train"),
        label(store, corpus, task, splits, classes, "validation"),
        label(store, corpus, task, splits, classes, "test"),
    )
    return Sides(train, validation, test, classes, task.ordinal)


def main() -> None:
    """Read the options, repeat, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--layer", type=int, default=3)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the first repetition; the next ones follow")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    sides, start = real_sides(options.model, options.layer, 0, print), time.perf_counter()
    answers: list[Mapping[str, bool]] = []
    try:
        for answer in repetitions(sides, options.layer, options.repetitions, options.seed):
            answers.append(answer)  # one by one: what was finished counts, should Ctrl-C end it
    finally:
        seconds = time.perf_counter() - start
        where = f"{options.model}, layer {options.layer}, {len(answers)} repetitions from seed {options.seed}"
        print(f"{where}, {seconds:.0f} s\n")
        print(table(answers) if answers else "none was finished")


if __name__ == "__main__":
    main()
