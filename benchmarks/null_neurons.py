"""How often `ablate --neurons` finds that a set of neurons matters where the set is random: false alarms.

    python benchmarks/null_neurons.py --run runs/A --layer 5 --runs 100

In each run neurons are drawn at random and declared to be the first of a ranking. They are held at their mean and
compared with random sets, and with sets matched in standard deviation, by the code of the command; a false alarm is a
p-value by rank below .05. With 20 draws the least p-value is 1/21 = .048, so that 4.8 false alarms are expected among
100 runs against random sets. Matched sets are drawn around the neurons that are compared with them, so that their
p-values are exact only as far as neurons of nearly the same spread are alike.

Prints a Markdown table with exact (Clopper-Pearson) intervals over runs.

On 23 November 2026, with 2 shared cores, 100 runs of 10 neurons of layer 5 and 500 test tokens: 7 false alarms beside
random sets, 9 beside matched ones.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest

from probing.activations.source import ActivationSource
from probing.activations.store import cache_folder
from probing.interventions.forward import draw_text
from probing.interventions.frozen_probes import ProbeReadout
from probing.interventions.neurons import NeuronPasses, NeuronSet, Values, drawn_sets
from probing.interventions.probed_task import frozen_of_run
from probing.interventions.subject import InterventionSetup
from probing.runs.run import load_fit
from probing.runtime import quiet_libraries
from probing.studies.ablate.neurons import EffectRow, effect_rows
from probing.text import read_corpora

ALARM = 0.05


@dataclass(frozen=True)
class Case:
    """Passes over some test sentences with neurons of one layer changed.

    Args:
        passes: The passes.
        readout: The probe of the last layer.
        values: What stands in the place of neurons.
        layer: The layer.
    """

    passes: NeuronPasses
    readout: ProbeReadout
    values: Values
    layer: int

    @classmethod
    def of(cls, subject: InterventionSetup, layer: int, n_tokens: int) -> Case:
        """Read the activations, and draw test sentences of at most so many tokens."""
        stores, frozen = subject.read(), subject.frozen
        assert frozen is not None
        sides = [np.array([side == name for side in subject.splits[0]]) for name in ("test", "train")]
        text, train = (draw_text(stores[0], side, n, 0) for side, n in zip(sides, (n_tokens, 20_000), strict=True))
        labels, train_labels = (
            subject.main_task.labels(stores, 0, frozen.classes, side)[of.of_corpus]
            for side, of in (("test", text), ("train", train))
        )
        last = max(frozen.weight)
        weight, labels_of_text = {last: frozen.weight[last]}, torch.from_numpy(labels.astype(np.int64))
        values = Values.of(train, layer, "words", train_labels, len(frozen.classes))
        plan, readers = stores[0].plan, subject.readers
        passes = NeuronPasses(readers, text, lambda layer: values, False, "words", plan.batch_tokens, 0)
        return cls(passes, ProbeReadout(text, weight, labels_of_text, readers.device), values, layer)

    def row(self, k: int, n_draws: int, seed: int) -> Mapping[str, Any]:
        """Return the row of random neurons that are declared to be the first of a ranking."""
        sd = self.values.sd
        neurons = tuple(np.random.default_rng([seed, 2**31]).permutation(len(sd))[:k].tolist())
        chosen = [NeuronSet(self.layer, "mean", ()), NeuronSet(self.layer, "mean", neurons)]
        found, drawn = (
            {one: self.passes.read(one, self.readout).numpy() for one in sets}
            for sets in (chosen, drawn_sets(chosen, sd, n_draws, seed))
        )
        (last,), n = self.readout.layers(self.layer + 1), self.readout.n
        rows, _ = effect_rows(found, drawn, [EffectRow(self.readout.name, last, n, {})], np.arange(len(n)))
        return rows[0]


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how many of the p-values are below .05, as a table."""
    lines = ["| compared with | false alarms | runs | share | 95% |", "|---|---|---|---|---|"]
    for source in ("random", "matched"):
        n = sum(row[f"{source}_p"] < ALARM for row in rows)
        ends = binomtest(n, len(rows)).proportion_ci(method="exact")
        lines.append(f"| {source} sets | {n} | {len(rows)} | {n / len(rows):.3f} | {ends.low:.3f} to {ends.high:.3f} |")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark on the built-in model and corpus."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("layer", 5), ("k", 10), ("tokens", 500), ("draws", 20), ("runs", 100), ("first_seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--run", required=True, help="run of `fit` of the built-in model on position, with all layers")
    parser.add_argument("--cache", default=None)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    started = time.perf_counter()
    with quiet_libraries():
        run = load_fit(args.run)
        source = ActivationSource.of("minilm", None, "all", {}, cache=Path(cache_folder(args.cache, "runs")))
        corpora, splits = read_corpora("builtin", None, run.config["seed"], print)
        frozen = frozen_of_run(run, source.model, None, [source.config.num_hidden_layers], "run")
        case = Case.of(InterventionSetup(source, corpora, splits, 0, frozen), args.layer, args.tokens)
        found = []
        for seed in range(args.first_seed, args.first_seed + args.runs):
            found.append(row := case.row(args.k, args.draws, seed))
            print(f"{seed}: {row['effect']:+.4f} p {row['random_p']:.3f} {row['matched_p']:.3f}", flush=True)
    print(report(found))
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
