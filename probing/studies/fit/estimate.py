"""Estimates of the time, disk space and memory of a run of `fit`, before a model reads anything; rankings of `rank`.

The time counts floating-point operations at the rate of this machine when idle: matrix products of the blocks for
hidden states (`probing.activations.source`), and passes over the training tokens for probes, timed on a few random
vectors of the same width and number of classes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from probing.activations.source import ActivationSource, PendingRequest, Speed
from probing.cli.options import ProbeOptions
from probing.data.examples import Sides, n_spans, with_spans
from probing.data.module import CONTROL_DRAWS, source_of_control
from probing.probes import evaluation
from probing.probes.bases import rotated_scores
from probing.probes.evidence import concentration, rotation_comparison, shares_above
from probing.probes.rankings import METHODS, LayerData, Ranking, read_layer
from probing.probes.retraining import REMOVED, usable_information
from probing.probes.solvers import LONGEST, cross_entropy_sums, fits
from probing.probes.training import CONTROL_TOLERANCE, Lbfgs
from probing.results import count, layers_named
from probing.runs.finished import check_contributions, penalty_of, trained_as
from probing.runs.run import Run
from probing.runtime import check_memory, gigabytes, undisturbed_rate
from probing.runtime.progress import BRIEF, Cost, duration, note, remark, stage
from probing.tables import ALPHA
from probing.tables.schema import DIRECTIONS
from probing.text import Corpus
from probing.text.tokens import Tokens

# A run whose cache is larger than this, in bytes, says what it takes before it begins.
LARGE = 10**9

# Approximate number of passes over the training tokens that each kind of probe takes in a layer, where the time that
# the solver takes between passes is counted as passes, too. The numbers come from runs of models of 384 and 768 neurons
# with 11,000 and 47,000 training tokens.
PASSES = {"path": 110, "probe": 50, "control": 50, "replicate": 15, "penalties": 20, "removal": 10, "intercept": 30}

CODES = 3  # an online code takes that many times the passes of the path and the probe

EPOCHS = 30  # of Adam, whose passes in small batches take longer

# Tokens of the pass that is timed.
_ROWS = 512

# Operations of the eigenvectors of a layer in multiples of d_model ** 3, and of retraining without neurons by the
# curvature of each class in multiples of d_model ** 2, which is read from memory again and again.
_EIGENVECTORS, _CURVATURE = 30, 30_000

# Seconds that every run takes for libraries, tables and figures.
_START_S = 15.0

# Bytes that every run takes for libraries and what is read at a time.
_LIBRARIES = 600 * 2**20

# Copies of a problem's weights beside those of the solver's history, which has three for each of its pairs.
_COPIES = 12


@dataclass(frozen=True)
class ProbeCosts:
    """Probes of a run, by the quantities that determine their cost.

    Args:
        n_controls: Number of controls that train a probe for each layer.
        retrains: Whether probes are retrained without neurons and under other penalties.
        codes: Whether labels are encoded online.
        chooses: Whether the penalty is chosen.
    """

    n_tokens: int
    n_layers: int
    n_classes: int
    d_model: int
    n_controls: int = 0
    n_replicates: int = 0
    retrains: bool = False
    codes: bool = False
    chooses: bool = True
    is_adam: bool = False

    @classmethod
    def of_options(
        cls, layers: Sequence[int], controls: Sequence[str], n_replicates: int, retrains: bool, codes: bool,
        probe: ProbeOptions,
    ) -> ProbeCosts:  # fmt: skip
        """Return the probes of options of `fit`, before tokens and classes are known.

        The control `token` has a single probe for all layers, which is not counted.
        """
        n_controls = sum(CONTROL_DRAWS if name == "control_task" else name != "token" for name in controls)
        is_adam = probe.solver == "adam"
        chooses = probe.l2 == "auto" and not is_adam
        return cls(0, len(layers), 0, 0, n_controls, n_replicates, retrains, codes, chooses, is_adam)

    @property
    def passes(self) -> dict[str, int]:
        """Approximate number of passes over the training tokens of a layer in each stage that trains probes."""
        probe_passes, epochs = PASSES["path"] * self.chooses + PASSES["probe"], EPOCHS * self.is_adam
        retrained = PASSES["penalties"] + PASSES["removal"] * (2 * REMOVED + 1) + PASSES["intercept"]
        evidence = PASSES["replicate"] * self.n_replicates + retrained * self.retrains
        return {
            "probes": probe_passes + epochs, "controls": (PASSES["control"] + epochs) * self.n_controls,
            "codes": CODES * probe_passes * self.codes, "evidence": 0 if self.is_adam else evidence,
        }  # fmt: skip

    @property
    def n_passes(self) -> int:
        """Approximate number of passes over the training tokens of a layer."""
        return sum(self.passes.values())

    @property
    def n_stacks(self) -> int:
        """Approximate number of eigendecompositions of every layer."""
        return 4 * self.chooses + 1 + self.n_controls + bool(self.n_replicates) + 2 * self.retrains

    def seconds(self, pass_s: float, operations_per_s: float) -> float:
        """Return the approximate seconds of training; `pass_s` is for a token of a layer."""
        algebra = _EIGENVECTORS * self.n_stacks * self.d_model**3
        if self.retrains and not self.is_adam and fits(self.n_classes, self.d_model):
            algebra += _CURVATURE * self.n_classes * self.d_model**2
        return self.n_layers * (self.n_passes * self.n_tokens * pass_s + algebra / operations_per_s)

    def pass_seconds(self, device: str = "cpu") -> float:
        """Return the seconds of a pass for a token of a layer, measured on random numbers."""
        d, rows = self.d_model, min(_ROWS, max(self.n_tokens, 1))
        generator = torch.Generator().manual_seed(0)
        sizes = (1, self.n_classes, d), (rows, d)
        weight, states = (torch.randn(*size, generator=generator).to(device) for size in sizes)
        # With larger logits, probabilities would be denormal numbers, whose products take twenty times as long.
        weight /= d**0.5
        labels = torch.randint(self.n_classes, (rows,), generator=generator).to(device)

        def once() -> None:
            float(cross_entropy_sums(weight, states, labels).cross_entropy.sum())  # waits for a GPU

        return 1 / undisturbed_rate(once, rows, device)

    def memory(self) -> dict[str, int]:
        """Return the approximate bytes of anonymous memory of the growing parts of a run, by the cause of growth."""
        weights = 4 * self.n_classes * self.d_model
        of_problem = weights * (3 * LONGEST + _COPIES)
        second_moments = 8 * self.d_model**2 * self.n_layers
        stacks = {"layers": self.n_layers * of_problem}
        if self.n_replicates and not self.is_adam:
            stacks["--replicates"] = self.n_layers * self.n_replicates * of_problem
        if self.retrains and not self.is_adam:
            curvature = 4 * self.d_model * weights if fits(self.n_classes, self.d_model) else 0
            stacks["--evidence"] = curvature + max(2 * self.n_layers, 2 * REMOVED + 1) * of_problem
        most = max(stacks, key=lambda name: stacks[name])
        return {"width": (2 + self.n_controls) * second_moments, most: stacks[most]}


@dataclass(frozen=True)
class CostEstimate:
    """Approximate cost of a run: the texts that models read, the probes, and the cache folder."""

    readings: Sequence[PendingRequest]
    probes: ProbeCosts
    cache: Path

    @property
    def n_bytes(self) -> int:
        """Bytes of all activations that the run reads, cached or not."""
        return sum(reading.size.n_bytes for reading in self.readings)

    @property
    def missing_bytes(self) -> int:
        """Bytes of activations that are not cached yet."""
        return sum(reading.missing_bytes for reading in self.readings)

    @property
    def memory_bytes(self) -> int:
        """Upper estimate of anonymous memory in bytes: hidden states are read before probes are trained."""
        reading = max((reading.memory_bytes() for reading in self.readings), default=0)
        return _LIBRARIES + max(reading, sum(self.probes.memory().values()))

    def check_memory(self) -> None:
        """Raise UserError if the run does not fit into the memory of the machine."""
        parts, probes = self.probes.memory(), self.probes
        ways = {
            "--replicates": "give fewer `--replicates`, or fewer layers at a time with `--layer`",
            "--evidence": "leave the retraining out with `--evidence none`, or give fewer layers with `--layer`",
        }
        way_out = ways.get(max(parts, key=lambda name: parts[name]))
        what = (
            f"the probes of {probes.n_layers} layers of {probes.d_model} neurons, with {probes.n_classes} classes and "
            f"{count(probes.n_replicates, 'replicate')},"
        )
        check_memory(self.memory_bytes, what, way_out or "give fewer layers at a time with `--layer`, or fewer classes")

    def line(self, trainer: Mapping[str, Any] | None = None) -> str:
        """Return the estimate as a sentence, with rates measured now."""
        speed = Speed.measure(self.readings[0].request, trainer)
        reading = sum(cost.seconds(speed) for cost in self.readings)
        device = "cuda" if torch.cuda.is_available() and (trainer or {}).get("accelerator") != "cpu" else "cpu"
        training = self.probes.seconds(self.probes.pass_seconds(device), speed.rates["square"])
        n = sum(bool(cost.missing) for cost in self.readings)
        read = f"{duration(reading)} for {count(n, 'reading')} of the text by the model" if n else ""
        free = shutil.disk_usage(next(path for path in (self.cache, *self.cache.parents) if path.exists())).free
        disk = (
            f"{gigabytes(self.missing_bytes)} in {self.cache} ({gigabytes(free)} free)"
            if n
            else "activations are cached"
        )
        parts = " and ".join(filter(None, (read, f"{duration(training)} for the probes")))
        memory = f"{gigabytes(self.memory_bytes)} of memory"
        total = f"about {duration(reading + training + _START_S)} with nothing else on this machine{busy()}"
        return f"{total}: {parts}; {disk if n else 'activations are cached'}; {memory}"


def busy() -> str:
    """Return a note in brackets if more processes want to run than the machine has cores."""
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
    return f" (it takes longer now: the load is {load:.0f} on {count(cores, 'core')})" if load > cores else ""


def stages_of_probes(
    controls: Sequence[str], n_replicates: int, retrains: bool, codes: bool, probe: ProbeOptions, numbers: bool
) -> list[Cost | None]:
    """Return the cost of each stage of `probing.runs.finished.measure` and of the results; numbers take no passes."""
    passes = ProbeCosts.of_options([0], controls, n_replicates, retrains, codes, probe).passes
    stages = ["probes", *["controls"] * bool(controls), *["codes"] * codes, "evidence"]
    return [*(None if numbers else Cost("pass", passes[name]) for name in stages), BRIEF]


def estimate_callback(
    source: ActivationSource, corpora: Sequence[Corpus], controls: Sequence[str], seed: int, *options: Any,
    n_vectors: int = 1,
) -> Callable[[Tokens, int, int], None]:  # fmt: skip
    """Return a callback for a run of `fit` whose tokens and classes are known, before a model reads them.

    It refuses a run that does not fit into memory, and prints the cost if the cache is large. `options` are further
    arguments of `ProbeCosts.of_options`; `n_vectors` is the number of vectors side by side in an example.
    """
    probes = ProbeCosts.of_options(source.layers, controls, *options)
    sources = [source, *filter(None, (source_of_control(name, source, seed) for name in controls))]

    def announce(tokens: Tokens, n_classes: int, n_train: int) -> None:
        readings = [PendingRequest.of(one.request(corpus), source.cache) for one in sources for corpus in corpora]
        width = n_vectors * (source.n_features or readings[0].size.width)
        known = replace(probes, n_tokens=n_train, n_classes=max(n_classes, 1), d_model=width)
        estimate = CostEstimate(readings, known, source.cache)
        estimate.check_memory()
        if estimate.n_bytes > LARGE:
            remark(estimate.line(source.trainer))

    return announce


Rows = list[dict[str, Any]]

# Methods whose scores are those of a kind of contribution, in the order of kinds.
CONTRIBUTIONS = ("contribution", "contribution_centred")


@dataclass(frozen=True)
class RankingEvaluation:
    """Options of the evaluation of rankings.

    Args:
        evaluate: Whether probes are trained on the first, the last and random neurons.
        curves: Whether accuracy is measured over the number of neurons.
        sizes: Numbers of neurons, ascending; None for the default.
        draws: Number of draws of random neurons; None for the default.
    """

    evaluate: bool
    curves: bool
    sizes: Sequence[int] | None
    draws: int | None

    def fitting(self, default: Sequence[int], d_model: int) -> list[int]:
        """Return the numbers of neurons below `d_model`; without any, half of `d_model`."""
        return [size for size in self.sizes or default if size < d_model] or [max(1, d_model // 2)]


def rank_layers(
    run: Run,
    layers: Sequence[int],
    sides: Sides,
    methods: Sequence[str],
    judging: RankingEvaluation,
    seed: int,
    n_rotations: int,
) -> tuple[dict[str, Rows], dict[str, Rows]]:
    """Return the rows of each method's ranking, and of `directions`, `evaluation` and `curves`.

    `seed` is of random neurons, rotations, and a sample of the tokens where not all are used. Contributions that differ
    from the run's raise RunError.
    """
    weight, penalty, space = run.weight, penalty_of(run), run.config["probe"]["penalty_space"]
    rankings: dict[str, Rows] = {name: [] for name in methods}
    evaluated: Rows = []
    curves: Rows = []
    beside: Rows = []
    with stage(f"rankings of {layers_named(layers)}", len(layers)) as advance:
        for index, row in enumerate(run.accuracy):
            if (layer := row["layer"]) not in layers:
                continue
            data = read_layer(layer, weight[index], penalty, space, sides, seed)
            check_contributions(run, layer, METHODS["contribution"](data).score.numpy())
            by_method = {}
            for name in methods:
                note(f"layer {layer}, {name}")
                by_method[name] = ranking = METHODS[name](data)
                score = ranking.score.tolist()
                rankings[name] += with_spans(
                    (
                        {"layer": layer, "rank": rank, "neuron": neuron, "score": score[neuron]}
                        for rank, neuron in enumerate(ranking.order.tolist(), start=1)
                    ),
                    sides,
                )
            judged, grown = _judge(by_method, data, sides, judging)
            evaluated += judged
            curves += grown
            if n_rotations:
                note(f"layer {layer}, directions")
                beside += _direction_rows(data, sides, methods, n_rotations, seed)
            advance(1)
    return rankings, {"directions": beside, "evaluation": evaluated, "curves": curves}


def _direction_rows(data: LayerData, sides: Sides, methods: Sequence[str], n_rotations: int, seed: int) -> Rows:
    """Return a layer's rows of `directions.csv`: contributions on test tokens, as in `fit`, and other scores."""
    directions: dict[str, tuple[Tensor, Tensor]] = {}
    if {*CONTRIBUTIONS} & {*methods}:
        on_test = rotation_comparison(
            sides.test, data.layer, data.weight, data.moments, data.scaling.space, n_rotations, seed
        )()
        pairs = zip(on_test.neurons[:, data.live], on_test.directions, strict=True)
        directions = dict(zip(CONTRIBUTIONS, pairs, strict=True))
    directions |= rotated_scores(data, methods, n_rotations, seed, n_spans(sides.test.store))
    return [
        {
            "layer": data.layer, "ranking": name,
            **{column: value for column, value in concentration(*directions[name]).items() if column in DIRECTIONS},
            "n_above": int((shares_above(*directions[name]) <= ALPHA).sum()), "n_neurons": len(data.live),
            "n_rotations": n_rotations,
        }
        for name in methods
        if name in directions
    ]  # fmt: skip


def _judge(
    rankings: dict[str, Ranking], data: LayerData, sides: Sides, judging: RankingEvaluation
) -> tuple[Rows, Rows]:
    evaluated: Rows = []
    curves: Rows = []
    d_model = len(data.moments.sd)
    if judging.evaluate:
        note(f"layer {data.layer}, evaluation")
        # A size given by the user may be the number of all neurons, which older versions also accepted.
        sizes = judging.sizes or judging.fitting(evaluation.SIZES, d_model)
        evaluated = evaluation.evaluate(rankings, data, sides, list(sizes), judging.draws or evaluation.DRAWS)
    if judging.curves:
        sizes, draws = judging.fitting(evaluation.COUNTS, d_model), judging.draws or evaluation.DRAWS
        curves = evaluation.curves(rankings, data, sides, sizes, draws, note)
    return evaluated, curves


@stage("information without neurons")
def erasure_rows(run: Run, sides: Sides, layers: Sequence[int], n_top: int, seed: int) -> list[dict[str, Any]]:
    """Return the usable information under each condition in some layers, as rows of `usable_information`.

    Probes use the run's penalty, but lbfgs whatever its solver. The `n_top` first neurons, at most half of all
    (ValueError), are used alone or removed.
    """
    d_model = sides.train.store.plan.d_model
    rankings = {layer: [row["neuron"] for row in run.top(layer, d_model)] for layer in layers}
    training = replace(trained_as(run), solver=Lbfgs(CONTROL_TOLERANCE))
    return usable_information(sides, rankings, n_top, training, seed)
