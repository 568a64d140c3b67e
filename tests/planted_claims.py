"""Runs of a model of which everything that a paper says is true, or of which none of it is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from probing.results.rows import Table
from probing.runs.run import Run
from probing.runs.study import Result
from probing.studies.claims.claim import Paper, read_paper
from probing.studies.claims.measures import MEASURES
from probing.studies.claims.measures.position import layers_of
from written import results_of

N_SENTENCES = 20_000
# What is true of each model beside its outliers: depth, width, and the layers of the outliers where these differ.
_DEPTHS = {"distilbert": 6, "distilroberta": 6, "bert-large": 24, "roberta-large": 24}
_WIDTHS = {"bert-large": 1000, "roberta-large": 1000}
# Outliers of the models for which the paper names several, each in some layers.
_OWN = {"bert-large": {"minimum": 896}, "roberta-large": {"minimum": 673, "maximum": 631}}
_ROWS = 12


@cache
def paper() -> Paper:
    """The claims of Luo, Kulmizev & Mao (2021)."""
    return read_paper("luo2021", MEASURES)


@cache
def runs_of(model: str, true: bool) -> Mapping[str, Any]:
    """Return the runs of a model.

    Args:
        model: A model of the paper.
        true: Whether what the paper says is true of it.
    """
    if model.startswith("pretrain"):
        return {"pretraining": results_of("pretrain", Path("arms"), {}, {}, Table(_arms(true)), Table())}
    world = _World(model, true)
    return {
        "geometry": _geometry(
            geometry=Table(world.cosines()), outliers=Table(world.outliers()), dimensions=Table(world.dimensions()),
            parameters=Table(world.parameters()), explained=Table(world.explained()),
        ),
        # On other texts, the shares are a little others, or those of other neurons.
        **{name: _geometry(geometry=Table(world.cosines()), dimensions=Table(world.dimensions(0.01 if true else 0.2)))
           for name in ("elsewhere", "third")},
        "stream": _geometry(
            norm_changes=Table(world.norm_changes()), path=Table(world.path()), first_row=Table(world.first_row())
        ),
        "held_out": _geometry(geometry=Table(world.whitened())),
        "positions": Run(Path("fit"), {}, {}, Table(world.accuracy()), Table(world.neurons())),
        "heads": results_of("attention", Path("attention"), {}, {}, heads=Table(world.heads())),
        "senses": results_of("wic", Path("wic"), {}, {}, Table(), Table(world.senses())),
        "labels": Run(Path("fit"), {}, {}, Table(world.labels()), Table()),
        "similarity": results_of("sts", Path("sts"), {}, {}, Table(), Table(world.similarity())),
    }  # fmt: skip


def _geometry(**tables: Table) -> Result:
    empty = {name: Table() for name in ("geometry", "outliers", "dimensions", "parameters", "explained")}
    return results_of("geometry", Path("geometry"), {"special_tokens": "exclude"}, {}, **{**empty, **tables})


def _arms(true: bool) -> Iterator[dict[str, Any]]:
    """Yield the rows of trainings with and without position embeddings, of three seeds."""
    for arm, seed, step, layer in itertools.product(("learned", "none"), range(3), (0, 100), range(4)):
        with_, last = arm == "learned", step == 100
        is_outlier = last and layer > 0 and (with_ if true else True)
        perplexity = {True: 4.3, False: 354.0}[with_] if true else 50.0
        yield {
            "arm": arm, "seed": seed, "step": step, "layer": layer, "loss": math.log(perplexity if last else 3000.0),
            "max_mean_sd": 9.0 if is_outlier else 2.0, "outlier_neuron": seed if true else 0,
            "argmax_share": 0.8 if is_outlier and true else 0.1, "argmin_share": 0.0,
            "position_accuracy": 0.9 if with_ else 0.1, "token_accuracy": 0.1,
            "equivariance": 3.0 if with_ or not true else 1e-6,
        }  # fmt: skip


class _World:
    def __init__(self, model: str, true: bool) -> None:
        self.model, self.true = model, true
        self.depth, self.width = _DEPTHS.get(model, 12), _WIDTHS.get(model, 600)
        self.roles = dict(paper().outliers.get(model) or _OWN[model])
        self.layers = range(self.depth + 1)

    def _flagged(self, layer: int) -> dict[int, float]:
        """Return the deviation of each outlier of a layer."""
        if not self.true:
            return {}
        (large,) = (claim for claim in paper().claims if claim.id == 8)
        assert large.reading is not None
        published = large.reading.arguments["published"].get(self.model)
        if published is None:
            return {neuron: {"minimum": -1.0, "maximum": 1.0}[role] for role, neuron in self.roles.items()}
        found = [int(neuron) for neuron, said in published.items() if layer in layers_of(said, 24)]
        return {neuron: (-1.0 if neuron == self.roles["minimum"] else 1.0) for neuron in found}

    def dimensions(self, less: float = 0.0) -> Iterator[dict[str, Any]]:
        for layer in self.layers:
            means = np.random.default_rng(layer).normal(0, 0.1, self.width)
            flagged = self._flagged(layer)
            for neuron, sign in flagged.items():
                means[neuron] = sign * 9
            for neuron in range(self.width):
                role = next((role for role, known in self.roles.items() if known == neuron), None)
                extreme = {"minimum": 0.966 if self.model in ("bert", "distilbert") else 0.8819, "maximum": 0.999}
                share = extreme[role] - less if role and self.true else 0.0001 + less
                yield {
                    "layer": layer, "neuron": neuron, "mean": float(means[neuron]), "sd": 1.0,
                    "cosine_share": 0.4 if neuron in flagged else 0.0005,
                    "beyond_share": 0.999 if neuron in flagged else 0.01,
                    "argmin_share": share if role == "minimum" else 0.0001,
                    "argmax_share": share if role == "maximum" else 0.0001,
                }  # fmt: skip

    def outliers(self) -> Iterator[dict[str, Any]]:
        about = {"definition": "mean_profile", "special_tokens": "exclude"}
        for layer in self.layers:
            flagged = self._flagged(layer)
            if not self.true and layer == 1:  # where nothing is published, a model's own outliers are looked at
                flagged = {neuron: {"minimum": -1.0, "maximum": 1.0}[role] for role, neuron in self.roles.items()}
            for neuron, sign in flagged.items():
                yield {**about, "layer": layer, "neuron": neuron, "value": 20 * sign}

    def cosines(self) -> Iterator[dict[str, Any]]:
        yield {"layer": 0, "transform": "none", "measure": "mean_cosine_one_per_sentence", "n_tokens": N_SENTENCES,
               "value": 0.1, "low": 0.1, "high": 0.1}  # fmt: skip
        for layer in self.layers:
            through = layer / self.depth
            plain = 0.2 + (0.55 if layer else 0) + 0.1 * through if self.true else 0.3 - 0.2 * through
            clipped = 0.1 + 0.05 * through if self.true else -0.1
            alike = 0.7 - 0.6 * through if self.true else 0.1 + 0.5 * through
            rows = [
                ("none", "mean_cosine", plain), ("clip", "mean_cosine", clipped if self.true or layer < 4 else plain),
                ("clip_random", "mean_cosine", plain + (0.001 if self.true else 0.1)),
                ("none", "self_similarity_adjusted", alike),
                ("clip", "self_similarity_adjusted", alike + (0.1 if self.true else -0.1)),
            ]  # fmt: skip
            if not self.true and layer >= 4:  # clipped, such states are neither isotropic nor less alike
                rows[1] = ("clip", "mean_cosine", 0.3)
            for transform, measure, value in rows:
                ends = {"low": value - 0.002, "high": value + 0.002}
                yield {"layer": layer, "transform": transform, "measure": measure, "value": value, **ends}

    def whitened(self) -> Iterator[dict[str, Any]]:
        for layer in self.layers:
            value = -0.003 if self.true else 0.2
            yield {"layer": layer, "transform": "whiten", "measure": "mean_cosine", "value": value,
                   "low": value - 0.002, "high": value + 0.002}  # fmt: skip

    def parameters(self) -> Iterator[dict[str, Any]]:
        for role, neuron in self.roles.items():
            first = {"minimum": self.width, "maximum": 1}[role]
            middle, sign = self.width // 2, {"minimum": -1, "maximum": 1}[role]
            for row in range(_ROWS):
                # BERT's outlier is in the first row alone, RoBERTa's are from the fourth on.
                inside = (row == 0) if set(self.roles) == {"minimum"} else row >= 3
                is_extreme = inside if self.true else (not inside and set(self.roles) == {"minimum"})
                yield {
                    "parameter": "position", "row": row, "position": row, "neuron": neuron,
                    "rank": first if is_extreme else middle, "deviations": sign * (12.0 if is_extreme else 0.2),
                    "n_outliers": 4 if self.true else 0,
                }  # fmt: skip
            yield {"parameter": "mean_token", "neuron": neuron, "rank": middle, "deviations": 0.1}
            for row in range(2):
                far = 0.3 if self.true else 9.0
                yield {"parameter": "segment", "row": row, "neuron": neuron, "rank": middle, "deviations": far}
            for parameter in ("gain", "bias"):
                for layer in range(1, self.depth + 1):
                    here = {"parameter": parameter, "neuron": neuron, "rank": 1 if self.true else middle}
                    yield {**here, "module": f"{layer}.1"}
                    yield {**here, "module": f"{layer}.2", "layer": layer}

    def norm_changes(self) -> Iterator[dict[str, Any]]:
        about = {"measure": "deviations"}
        for role, neuron in self.roles.items():
            sign = {"minimum": -1, "maximum": 1}[role]
            for layer in range(1, self.depth + 1):
                here = {**about, "layer": layer, "neuron": neuron}
                yield {**here, "kind": "intact", "value": sign * 15.0, "outlier": "yes"}
                left = 2.0 if self.true else 14.0
                yield {**here, "kind": "outliers", "where": "both", "value": sign * left, "outlier": "no"}
                yield {**here, "kind": "outliers", "where": "first", "value": sign * 14.0, "outlier": "yes"}
                yield {**here, "kind": "random", "draw": 1, "where": "both", "value": sign * 14.5, "outlier": "yes"}

    def first_row(self) -> Iterator[dict[str, Any]]:
        for role, neuron in self.roles.items():
            sign = {"minimum": -1, "maximum": 1}[role]
            # BERT's outlier of words comes from the first row, RoBERTa's does not.
            left = 1.0 if self.true == (self.model == "bert") else 13.0
            for layer in self.layers:
                here = {"layer": layer, "neuron": neuron}
                yield {**here, "kind": "intact", "value": sign * 14.0, "outlier": "yes"}
                yield {**here, "kind": "outliers", "value": sign * left, "outlier": "yes" if left > 5 else "no"}
                yield {**here, "kind": "random", "draw": 1, "value": sign * 13.5, "outlier": "yes"}

    def path(self) -> Iterator[dict[str, Any]]:
        for neuron, kind in ((self.roles["minimum"], "both"), (3, "first_row"), (5, "layers"), (6, "random")):
            if self.true or kind != "both":
                yield {"neuron": neuron, "kind": kind}

    def explained(self) -> Iterator[dict[str, Any]]:
        for neuron in self.roles.values():
            for layer in self.layers:
                for source, share in (("position", 0.3), ("frequency", 0.1)):
                    partial = share if self.true else 0.4 - share
                    yield {"layer": layer, "neuron": neuron, "special_tokens": "exclude", "kind": "outlier",
                           "source": source, "partial": partial}  # fmt: skip

    def accuracy(self) -> Iterator[dict[str, Any]]:
        (lost,) = (claim for claim in paper().claims if claim.id == 20)
        assert lost.reading is not None
        curve = [0.999, *lost.reading.arguments["published"][self.model]]
        for layer, said in enumerate(curve):
            value = said if self.true else 0.5 + 0.04 * layer / self.depth
            if not self.true and layer == self.depth:
                value = 0.9
            yield {"layer": layer, "accuracy": value, "accuracy_low": value - 0.002, "accuracy_high": value + 0.002,
                   "permuted_positions_accuracy": 0.07}  # fmt: skip

    def neurons(self) -> Iterator[dict[str, Any]]:
        for layer in self.layers:
            order = [self.roles[role] for role in ("maximum", "minimum") if role in self.roles]
            others = [n for n in range(20) if n not in order]
            ranked = [*order, *others] if self.true else [*others, *order]
            for rank, neuron in enumerate(ranked, start=1):
                top = rank <= 2
                lost = (0.02 if self.true else -0.02) if top else 0.005
                yield {
                    "layer": layer, "rank": rank, "neuron": neuron, "ratio": 30.0 / rank if rank < 9 else 0.4,
                    "contribution_centred": 5.0 / rank, "eta_squared_z": 50.0 if self.true else 1.0,
                    "rank_low": rank, "rank_high": rank, "removed": "top" if top else "matched",
                    "cross_entropy_without": lost, "cross_entropy_without_low": lost - 0.001,
                    "cross_entropy_without_high": lost + 0.001,
                }  # fmt: skip

    def senses(self) -> Iterator[dict[str, Any]]:
        said = [
            claim.reading.arguments["published"]
            for claim in paper().claims
            if claim.id in (41, 43) and claim.reading is not None
        ]
        plain, clipped = {name: pair for pairs in said for name, pair in pairs.items()}[self.model]
        sign = 1 if self.true else -1
        for protocol in ("published", "held_out"):
            for transform, accuracy, threshold, gain in (
                ("none", plain, 0.7, None), ("clip", clipped, 0.7 - sign * 0.2, sign * 0.02),
                ("whiten", plain + 0.02, 0.4, sign * 0.05),
            ):  # fmt: skip
                gains = {} if gain is None else {"gain": gain, "gain_low": gain - 0.01, "gain_high": gain + 0.01}
                yield {
                    "protocol": protocol,
                    "transform": transform,
                    "accuracy": accuracy,
                    "threshold": threshold,
                    **gains,
                }

    def labels(self) -> Iterator[dict[str, Any]]:
        for layer in self.layers:
            change = -0.002 if self.true else -0.05
            yield {"layer": layer, "accuracy": 0.86 + change, "untransformed_accuracy": 0.86, "majority_accuracy": 0.55,
                   "n_clipped": 1,
                   "above_untransformed_low": change - 0.003, "above_untransformed_high": change + 0.003}  # fmt: skip

    def similarity(self) -> Iterator[dict[str, Any]]:
        about = {"protocol": "held_out", "aggregation": "all"}
        sign = 1 if self.true else -1
        for name in ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B test", "SICK-R test"):
            # By the thesis, static vectors are better than clipped ones and whitened ones better than static ones.
            for pooling, transform, lead in (
                ("mean", "none", 0), ("mean", "clip", 1), ("static", "none", 2), ("mean", "whiten", 4)
            ):  # fmt: skip
                value, gain = 0.5 + sign * 0.05 * lead, sign * 0.05 * lead
                row = {**about, "set": name, "pooling": pooling, "transform": transform, "spearman": value}
                ends = {"low": value - 0.01, "high": value + 0.01}
                yield {**row, **ends, "gain": gain, "gain_low": gain - 0.01, "gain_high": gain + 0.01}

    def heads(self) -> Iterator[dict[str, Any]]:
        first = (5.0, 0.4, 0.01) if self.true else (5.0, 0.4, 0.4)
        types = {"[CLS]": first, "[SEP]": (2.0, 0.1, 0.05), "special tokens": (3.0, 0.5, 0.06)}
        for layer, head in itertools.product(range(1, self.depth + 1), range(1, 3)):
            for name, numbers in types.items():
                for measure, value in zip(("lift", "mass", "norm_mass"), numbers, strict=True):
                    yield {"layer": layer, "head": head, "measure": measure, "to": name, "value": value}
