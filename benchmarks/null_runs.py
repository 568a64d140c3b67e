"""How often the evidence of `fit` is correct, tested on neurons of known nature planted beside a layer's real ones.

    python benchmarks/null_runs.py --layer 3 --repetitions 200

Each run plants newly drawn neurons, trains a probe on these and the real ones, and ranks and flags them by the
project's own functions. The probe sees only one planted neuron of a kind, since two that replace the intercept, or two
that carry position, would share the contribution of one. Signals of other strengths are only flagged, which needs no
probe. Then the labels are permuted within sentences, so that no neuron has a signal, and the real neurons are flagged
once more.

Prints Markdown tables with exact (Clopper-Pearson) intervals over runs.

On 21 November 2026, with 2 shared cores, 200 runs of layer 6 from seed 0: each null and each constant flagged in 200 of
200 (.982 to 1), the signal of 50% ranked 1 to 3 in all, that of .2% detected in 198; under permuted labels 83 false
alarms among 76,200 real neurons.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from probing.builtin_tasks.position import Position
from scipy.stats import binomtest
from torch import Tensor

from probing.activations import Request, activations
from probing.activations.store import StorePlan, cache_folder
from probing.data.examples import HiddenStateSource, Sides
from probing.data.labelling import label_sides
from probing.data.module import layer_moments, shuffled
from probing.models import resolve_model
from probing.probes.evidence import Evidence, collect_evidence, neuron_table
from probing.probes.solvers import Penalty
from probing.probes.training import Lbfgs, Training, train_probes
from probing.statistics.chance import discovery_rates
from probing.tables.schema import FALSE_DISCOVERIES
from probing.text import read_corpora
from probing.text.tokens import Tokens

Column = NDArray[np.float64]

# Share of variance explained by position: of the planted neuron that is ranked, and of those that are only flagged.
EXPLAINED = 0.5
STRENGTHS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.2)
TOP = 10
# The probe sees the first N_SEEN planted neurons, up to the constant.
N_SEEN = 5
QUESTIONS = {
    "noise": "pure noise is flagged no-signal",
    "sentence": "a sentence effect is flagged no-signal",
    "length": "sentence length is flagged no-signal",
    "shuffled": "a real neuron under labels permuted within sentences is flagged no-signal",
    "constant": "a constant N(10, .5) is flagged offset and no-signal",
    "signal": f"a neuron explained to {EXPLAINED:.0%} by position ranks among the top {TOP}, without a flag",
    **{f"strength_{share}": f"one explained to {share:.2%} is not flagged no-signal" for share in STRENGTHS},
}


@dataclass(frozen=True)
class Answers:
    """The results of one run.

    Args:
        yes: Whether the answer to each question is yes.
        rank: Rank of the 50% signal among all neurons that the probe sees.
        false_alarms: Number of real neurons that are not flagged no-signal under permuted labels.
        n_live: Number of real neurons that vary.
    """

    yes: Mapping[str, bool]
    rank: int
    false_alarms: int
    n_live: int


class Planted:
    """A store with further neurons appended to those of another store.

    Args:
        store: Store of the real neurons.
        planted: Planted neurons, shape (n_tokens, n_planted), float32.
    """

    def __init__(self, store: HiddenStateSource, planted: Tensor) -> None:
        self.store, self.planted = store, planted
        self.tokens: Tokens = store.tokens
        self.plan: StorePlan = replace(store.plan, d_model=store.plan.d_model + planted.shape[1])

    def read(self, layer: int, shard: int) -> Tensor:
        """Return the real and planted neurons of a shard, shape (n, d_model)."""
        rows = self.plan.shards[shard].rows(self.tokens)
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
        "constant": generator.normal(10, 0.5, tokens.n_tokens),
        **{f"strength_{share}": explained(share) for share in STRENGTHS},
    }


def one_run(sides: Sides, layer: int, training: Training, seed: int) -> Answers:
    """Plant neurons, train, rank and flag; return the answers."""
    store, generator = sides.train.store, np.random.default_rng(seed)
    d_model, columns = store.plan.d_model, planted_neurons(store.tokens, generator)
    planted = torch.from_numpy(np.stack(list(columns.values()), 1)).float()

    def grow(n: int) -> Sides:
        return sides.each(lambda examples: replace(examples, store=Planted(store, planted[:, :n])))

    def evidence_on(some: Sides) -> Evidence:
        moments = layer_moments(some.train, [layer])
        return collect_evidence(some.train, some.test, [layer], moments, len(some.classes))[0]

    (fit,) = train_probes(grow(N_SEEN), [layer], training)
    weight = torch.nn.functional.pad(fit.weight, (0, len(STRENGTHS)))
    rows = {row["neuron"]: row for row in neuron_table(layer, weight, evidence_on(grow(len(columns))))}
    found = {kind: rows[d_model + i] for i, kind in enumerate(columns)}
    null = evidence_on(shuffled(sides, seed))
    live = (~null.moments.dead).nonzero().squeeze(1)
    alarms = discovery_rates(null.separation.p, ~null.moments.dead) <= FALSE_DISCOVERIES
    unseen = {kind: "no-signal" in row["flag"] for kind, row in found.items()}
    yes = {
        **{kind: unseen[kind] for kind in ("noise", "sentence", "length")},
        "shuffled": not bool(alarms[generator.choice(live.numpy())]),
        "constant": found["constant"]["flag"] == "offset no-signal",
        "signal": bool(found["signal"]["rank"] <= TOP and not found["signal"]["flag"]),
        **{name: not unseen[name] for name in QUESTIONS if name.startswith("strength")},
    }
    return Answers(yes, found["signal"]["rank"], int(alarms[live].sum()), len(live))


def runs(sides: Sides, layer: int, n: int, seed: int, tolerance: float = 1e-3, l2: float = 1e-4) -> Iterator[Answers]:
    """Yield the answers of each run."""
    training = Training(Penalty(0, l2), Lbfgs(tolerance))
    for i in range(n):
        yield one_run(sides, layer, training, seed + i)


def report(answers: Sequence[Answers]) -> str:
    """Return the share of yes for each question, the signal's ranks and the false alarms, as Markdown."""
    lines = ["| a planted neuron | yes | of | share | 95% interval |", "|---|---|---|---|---|"]
    for question, words in QUESTIONS.items():
        yes = sum(answer.yes[question] for answer in answers)
        low, high = binomtest(yes, len(answers)).proportion_ci(method="exact")
        lines.append(f"| {words} | {yes} | {len(answers)} | {yes / len(answers):.3f} | {low:.3f} to {high:.3f} |")
    ranks, alarms = [answer.rank for answer in answers], [answer.false_alarms for answer in answers]
    return "\n".join([
        *lines,
        "",
        f"The {EXPLAINED:.0%} neuron ranked {min(ranks)} to {max(ranks)}, median {np.median(ranks):.0f}. Under "
        f"permuted labels {sum(alarms)} of {sum(answer.n_live for answer in answers)} real neurons were not flagged "
        f"no-signal, at most {max(alarms)} in a run.",
    ])  # fmt: skip


def real_sides(model: str, layer: int, seed: int, say: Callable[[str], None]) -> Sides:
    """Return the labelled tokens of the built-in corpus, with a model's activations."""
    (corpus,), (splits,) = read_corpora("builtin", None, seed, say)
    store = activations(Request(resolve_model(model), corpus, [layer]), cache_folder(None), {}, say)
    return label_sides([store], [corpus], [splits], Position())


def main() -> None:
    """Parse the options, repeat, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--layer", type=int, default=3)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first run; later runs add 1 each")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    for name in ("pytorch_lightning", "pytorch_lightning.utilities.rank_zero", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    sides, start = real_sides(options.model, options.layer, 0, print), time.perf_counter()
    answers: list[Answers] = []
    try:
        for answer in runs(sides, options.layer, options.repetitions, options.seed):
            answers.append(answer)  # collected one by one, so that Ctrl-C loses only the current run
    finally:
        seconds = time.perf_counter() - start
        where = f"{options.model}, layer {options.layer}, {len(answers)} runs from seed {options.seed}"
        print(f"{where}, {seconds:.0f} s\n")
        print(report(answers) if answers else "none was finished")


if __name__ == "__main__":
    main()
