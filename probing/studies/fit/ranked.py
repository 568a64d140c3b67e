"""Rankings of a finished run by other methods, and their evaluation by other probes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from probing.data.examples import Sides
from probing.evidence.removal import usable_information
from probing.evidence.table import concentration, measure_directions, shares_above
from probing.probes.training import CONTROL_TOLERANCE, Lbfgs
from probing.rankings import evaluation
from probing.rankings.bases import rotated_scores
from probing.rankings.methods import METHODS, LayerData, Ranking, read_layer
from probing.results.schema import layers_named
from probing.runs.finished import check_contributions, penalty_of, probe_weight, trained_as
from probing.runs.rankings import ranking_rows
from probing.runs.run import Run
from probing.runtime.progress import note, stage
from probing.tables.evidence_sentences import ALPHA
from probing.tables.schema import DIRECTIONS

Rows = list[dict[str, Any]]

# Methods whose scores are those of a kind of contribution, in the order of kinds.
CONTRIBUTIONS = ("contribution", "contribution_centred")


@dataclass(frozen=True)
class Judging:
    """How rankings are evaluated.

    Args:
        evaluate: Whether probes are trained on the first, the last and random neurons.
        curves: Whether accuracy is measured over the number of neurons.
        sizes: Numbers of neurons, ascending; None for the default ones.
        draws: Number of draws of random neurons; None for the default number.
    """

    evaluate: bool
    curves: bool
    sizes: Sequence[int] | None
    draws: int | None

    def fitting(self, usual: Sequence[int], d_model: int) -> list[int]:
        """Return the numbers of neurons that are below `d_model`; if none is, half of `d_model`."""
        return [size for size in self.sizes or usual if size < d_model] or [max(1, d_model // 2)]


def rank_layers(
    run: Run,
    layers: Sequence[int],
    sides: Sides,
    methods: Sequence[str],
    judging: Judging,
    seed: int,
    n_rotations: int,
) -> tuple[dict[str, Rows], dict[str, Rows]]:
    """Return the rows of each method's ranking, and those of `directions`, `evaluation` and `curves`.

    Args:
        run: The finished run.
        layers: Layers of the run to rank.
        sides: The run's examples and their classes.
        methods: Names of the methods.
        judging: How the rankings are judged.
        seed: Seed of every random draw: random neurons, rotations, and a sample of the tokens where not all are used.
        n_rotations: Number of rotations whose directions neurons are compared with; 0 for none.

    Raises:
        RunError: If recomputed contributions differ from those of the run.
    """
    weight, penalty, space = probe_weight(run), penalty_of(run), run.config["probe"]["penalty_space"]
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
            found = {}
            for name in methods:
                note(f"layer {layer}, {name}")
                found[name] = METHODS[name](data)
                rankings[name] += ranking_rows(layer, found[name].order.tolist(), found[name].score.tolist())
            judged, grown = _judge(found, data, sides, judging)
            evaluated += judged
            curves += grown
            if n_rotations:
                note(f"layer {layer}, directions")
                beside += _direction_rows(data, sides, methods, n_rotations, seed)
            advance(1)
    return rankings, {"directions": beside, "evaluation": evaluated, "curves": curves}


def _direction_rows(data: LayerData, sides: Sides, methods: Sequence[str], n_rotations: int, seed: int) -> Rows:
    """Return a layer's rows of `directions.csv`: of contributions on test tokens as `fit` has them, and of others."""
    found: dict[str, tuple[Tensor, Tensor]] = {}
    if {*CONTRIBUTIONS} & {*methods}:
        own = measure_directions(
            sides.test, data.layer, data.weight, data.moments, data.scaling.space, n_rotations, seed
        )
        pairs = zip(own.neurons[:, data.live], own.directions, strict=True)
        found = dict(zip(CONTRIBUTIONS, pairs, strict=True))
    found |= rotated_scores(data, methods, n_rotations, seed)
    return [
        {
            "layer": data.layer, "ranking": name,
            **{column: value for column, value in concentration(*found[name]).items() if column in DIRECTIONS},
            "n_above": int((shares_above(*found[name]) <= ALPHA).sum()), "n_neurons": len(data.live),
            "n_rotations": n_rotations,
        }
        for name in methods
        if name in found
    ]  # fmt: skip


def _judge(rankings: dict[str, Ranking], data: LayerData, sides: Sides, judging: Judging) -> tuple[Rows, Rows]:
    """Return a layer's rows of `evaluation.csv` and of `curves.csv`, each empty if not asked for."""
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


# --------------------------------------------------------------------------------------------------------------------
# Usable information of a finished run's layers without some neurons or directions: `rank --erase`.
# --------------------------------------------------------------------------------------------------------------------


@stage("information without neurons")
def erasure_rows(run: Run, sides: Sides, layers: Sequence[int], n_top: int, seed: int) -> list[dict[str, Any]]:
    """Return the usable information under each condition in some layers of a run.

    Probes are trained with the run's penalty by lbfgs, whatever trained the run's own.

    Args:
        run: The finished run.
        sides: The run's examples and their classes.
        layers: Layers of the run to measure.
        n_top: Number of first neurons of the run's ranking that are kept or removed.
        seed: Seed of every random draw: random neurons, shuffled labels and resampled sentences.

    Returns:
        Rows as `probing.evidence.removal.usable_information` returns them.

    Raises:
        ValueError: If `n_top` is not between 1 and half the neurons.
    """
    d_model = sides.train.store.plan.d_model
    rankings = {layer: [row["neuron"] for row in run.top(layer, d_model)] for layer in layers}
    training = replace(trained_as(run), solver=Lbfgs(CONTROL_TOLERANCE))
    return usable_information(sides, rankings, n_top, training, seed)
