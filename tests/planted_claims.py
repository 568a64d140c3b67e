"""Runs of which everything that a paper says is true, or of which none of it is, and what claims are tested by."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np

from probing.results import Table
from probing.runs import Result
from probing.runs.run import Run
from probing.studies.claims.claim import Claim, Paper, read_paper
from probing.studies.claims.measures import MEASURES
from probing.studies.claims.measures.position import layers_of
from probing.studies.claims.planning import Model, rows_of
from written import results_of

N_LAYERS, N_HEADS = 12, 6
Row = dict[str, Any]
STARTS = ("pretrained", "random", "shuffled")


def tuned_runs_of(true: bool) -> Mapping[str, Any]:
    """Return the runs that claims about tuned models are measured on.

    Args:
        true: Whether what the papers say is true of the model.
    """
    heads = {f"head_{on}": _head(score) for on, score in _scores(true).items()}
    similarity = {f"similarity_{on}": _geometry(1 - score) for on, score in _scores(true).items()}
    return {
        "tuned": tuned(0.6, 0.4 if true else 0.7, 0.32),
        "tuned_change": _changed(true),
        "shuffled_change": results_of("attention", Path("shuffled"), {}, {}, change=Table(_maps([0.99] * N_LAYERS))),
        "ablated_task": ablated(0.03 if true else -0.03),
        "pruned_task": pruned(0.5 if true else 0.1),
        **heads,
        **similarity,
    }  # fmt: skip


def tuned(pretrained: float, random: float, shuffled: float, constant: str = "majority") -> Result:
    """Return a run of `finetune` in which the constant answer scores 0.3."""
    scores = dict(zip((*STARTS, constant), (pretrained, random, shuffled, 0.3), strict=True))
    rows = [
        {"answer": a, "against": b, "difference": scores[a] - scores[b], "low": scores[a] - scores[b] - 0.05,
         "high": scores[a] - scores[b] + 0.05}
        for i, a in enumerate(scores) for b in list(scores)[i + 1 :]
    ]  # fmt: skip
    return results_of("finetune", Path("tuned"), {}, {}, differences=Table(rows))


def ablated(gain: float, readout: str = "tuned") -> Result:
    """Return what a tuned model gains without some head and without layer 1; without others it loses."""

    def row(unit: str, effect: float) -> Row:
        return {"unit": unit, "kind": "uniform", "readout": readout, "layer": N_LAYERS, "effect": effect,
                "low": effect - 0.01, "high": effect + 0.01}  # fmt: skip

    layers = {str(layer): gain if layer == 1 else -0.1 for layer in range(1, N_LAYERS + 1)}
    heads = {f"{layer}-{head}": -0.04 for layer, head in product(range(1, N_LAYERS + 1), range(1, N_HEADS + 1))}
    best = [{**row("3-2", gain), "units": "heads", "p_value": 0.01}, {**row("1", 0.2), "units": "layers"}]
    rows = [row(unit, effect) for unit, effect in {**layers, **heads}.items()]
    return results_of("ablate", Path("ablated"), {}, {}, ablated=Table(rows), better_without=Table(best))


def pruned(kept: float, readout: str = "tuned") -> Result:
    """Return what a tuned model loses with heads and weights pruned: nothing up to a share that the right order keeps.

    At random, it loses from a tenth less on.
    """

    def rows(order: str, upto: float, draw: int = 0) -> Iterator[Row]:
        for step in range(11):
            share = step / 10
            effect = 0.0 if share <= upto + 1e-9 else -0.1 - draw / 100
            yield {"readout": readout, "order": order, "draw": draw, "share": share, "effect": effect,
                   "low": effect - 0.005, "high": effect + 0.005}  # fmt: skip

    heads = [{**row, "units": "heads"} for row in rows("importance", kept)]
    heads += [{**row, "units": "heads"} for draw in (1, 2) for row in rows("random", kept - 0.1, draw)]
    heads += [{**row, "units": "layers"} for row in rows("importance", 1.0)]  # which do not count
    weights = [*rows("magnitude", kept), *rows("random_mean", kept - 0.1), *rows("random", 1.0, 1)]
    return results_of("ablate", Path("pruned"), {}, {}, pruning=Table(heads), weight_pruning=Table(weights))


def _changed(true: bool) -> Result:
    """Return how alike tuning leaves the maps; where the claims are false, the first two layers change most."""
    kept = [1 - layer / 50 if true else 0.5 + layer / 50 for layer in range(1, N_LAYERS + 1)]
    return results_of("attention", Path("change"), {}, {}, change=Table(_maps(kept)))


def _maps(kept: list[float]) -> Iterator[Row]:
    for layer, value in enumerate(kept, start=1):
        yield {"layer": layer, "measure": "cosine", "of": "same", "value": value, "low": value - 0.002,
               "high": value + 0.002}  # fmt: skip


def _scores(true: bool) -> dict[str, float]:
    """Return the score with the head on each layer; where the claim is true, it is best two below the last."""
    best = "2_below" if true else "on_last"
    return {on: 0.9 if on == best else 0.6 for on in ("on_last", "1_below", "2_below", "3_below")}


def _head(score: float) -> Result:
    row = {"answer": "pretrained", "score": score, "overall_low": score - 0.05, "overall_high": score + 0.05}
    return results_of("finetune", Path("head"), {}, {}, scores=Table([row]))


def _geometry(alike: float) -> Result:
    rows = [
        {"layer": layer, "transform": "none", "measure": "token_similarity", "value": alike - 0.01 * (2 - layer)}
        for layer in range(3)
    ]
    return results_of("geometry", Path("geometry"), {}, {}, geometry=Table(rows))


N_BLOCKS, ATTENTION_N_HEADS = 12, 12


def attention_runs_of(true: bool) -> Mapping[str, Any]:
    """Return the runs that claims of Kovaleva et al. (2019) are measured on.

    Args:
        true: Whether what the paper says is true of the model.
    """
    return {
        "attention": survey(true),
        "pairs": results_of("attention", Path("pairs"), {}, {}, attention_classes=classes(true)),
        "change": results_of("attention", Path("change"), {}, {}, change=Table(_attention_changed(true))),
        **tuned_runs_of(true),
    }  # fmt: skip


def survey(true: bool) -> Result:
    """Return a survey of single sentences."""
    return results_of("attention", 
        Path("attention"), {}, {}, heads=Table(_near(true)), attention_layers=Table(_attended(true)),
        attention_classes=classes(true), relations=Table(_relations(true)), roles=Table(_roles(true)),
    )  # fmt: skip


def with_interval(value: float, half: float = 0.002) -> Row:
    return {"value": value, "low": value - half, "high": value + half}


def classes(true: bool) -> Table:
    """Return the shares of the classes of all maps; where the claims are false, nearly every map is heterogeneous."""
    shares = {"vertical": 0.35, "diagonal": 0.05, "vertical and diagonal": 0.05, "block": 0.05, "heterogeneous": 0.5}
    if not true:
        shares = {**dict.fromkeys(shares, 0.002), "heterogeneous": 0.992}
    return Table(
        {"layer": "all", "factor": factor, "class": name, "share": share, "low": share - 0.001, "high": share + 0.001,
         "share_moved": 0.02 if true else 0.3}
        for factor in (0.75, 1.0, 1.25)
        for name, share in shares.items()
    )  # fmt: skip


def _attended(true: bool) -> Iterator[Row]:
    """Yield attention to types of tokens; where the claims are false, subjects get more than special tokens."""
    share = 0.1
    for layer in range(1, N_BLOCKS + 1):
        early = 1 - layer / (N_BLOCKS + 1)
        cls = early if true else 1 - early
        mass = 0.5 if true else 0.15
        for to, part in {"[CLS]": cls, "[SEP]": 1 - cls, "special tokens": 1.0}.items():
            yield {"layer": layer, "measure": "mass", "to": to, **with_interval(part * mass)}
        yield {"layer": layer, "measure": "lift", "to": "special tokens", **with_interval(mass / share)}
        yield {"layer": layer, "measure": "norm_mass", "to": "special tokens", **with_interval(0.1)}
        for to in ("NOUN", "VERB", "PRON", "subject", "object", "negation"):
            lift = 0.5 if to != "subject" else 0.6 if true else 3.0
            yield {"layer": layer, "measure": "lift", "to": to, **with_interval(lift)}


def _attention_changed(true: bool) -> Iterator[Row]:
    """Yield how alike the maps of two checkpoints are; where the claims are false, the first two differ most."""
    for layer in range(1, N_BLOCKS + 1):
        kept = 1 - layer / 50 if true else 0.5 + layer / 50
        for measure, value in (("cosine", kept), ("jensen_shannon", 1 - kept)):
            yield {"layer": layer, "measure": measure, "of": "same", **with_interval(value)}
            yield {"layer": layer, "measure": measure, "of": "other heads", **with_interval(0.4)}
            yield {"layer": layer, "head": 3, "measure": measure, "of": "same", **with_interval(0.1)}


def _near(true: bool) -> Iterator[Row]:
    for layer in range(1, N_BLOCKS + 1):
        for head in range(1, ATTENTION_N_HEADS + 1):
            near = {"previous": 0.8 if true else 0.1, "next": 0.05, "self": 0.9}
            for name, value in near.items():
                yield {"layer": layer, "head": head, "measure": name, **with_interval(value)}


def _relations(true: bool) -> Iterator[Row]:
    yield {"relation": "det", "layer": 1, "head": 1, "difference": 0.5}
    yield {"relation": "nsubj", "layer": 8, "head": 2, "difference": -0.01 if true else 0.3}


def _roles(true: bool) -> Iterator[Row]:
    """Yield scores of links; where the claims are false, heads 1-2 and 7-6 attend to unlinked pairs more."""
    for layer in range(1, N_BLOCKS + 1):
        for head in range(1, ATTENTION_N_HEADS + 1):
            for query, score in (("predicate", 0.1), ("filler", 0.08)):
                one = {"role": "all", "query": query, "layer": layer, "head": head, "unlinked": 0.1, "p_value": 1.0}
                if (layer, head) in ((1, 2), (7, 6)) and query == "predicate":
                    one |= {"p_value": 0.001} if true else {"unlinked": 0.3}
                    score = 0.2 + layer / 1000
                yield {**one, "score": score, "low": score - 0.01, "high": score + 0.01}
    yield {"role": "obj", "query": "filler", "layer": 3, "head": 3, "score": 0.9, "low": 0.8, "high": 1.0,
           "unlinked": 0.1, "p_value": 0.001}  # fmt: skip


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
def positions_runs_of(model: str, true: bool) -> Mapping[str, Any]:
    """Return the runs of a model.

    Args:
        model: A model of the paper.
        true: Whether what the paper says is true of it.
    """
    if model.startswith("pretrain"):
        return {"pretraining": results_of("pretrain", Path("arms"), {}, {}, Table(_arms(true)), Table())}
    world = _World(model, true)
    return {
        "geometry": _surveyed(
            geometry=Table(world.cosines()), outliers=Table(world.outliers()), dimensions=Table(world.dimensions()),
            parameters=Table(world.parameters()), explained=Table(world.explained()),
        ),
        # On other texts, the shares are a little others, or those of other neurons.
        **{name: _surveyed(geometry=Table(world.cosines()), dimensions=Table(world.dimensions(0.01 if true else 0.2)))
           for name in ("elsewhere", "third")},
        "stream": _surveyed(
            norm_changes=Table(world.norm_changes()), path=Table(world.path()), first_row=Table(world.first_row())
        ),
        "held_out": _surveyed(geometry=Table(world.whitened())),
        "positions": Run(Path("fit"), {}, {}, Table(world.accuracy()), Table(world.neurons())),
        "heads": results_of("attention", Path("attention"), {}, {}, heads=Table(world.heads())),
        "senses": results_of("wic", Path("wic"), {}, {}, Table(), Table(world.senses())),
        "labels": Run(Path("fit"), {}, {}, Table(world.labels()), Table()),
        "similarity": results_of("sts", Path("sts"), {}, {}, Table(), Table(world.similarity())),
    }  # fmt: skip


def _surveyed(**tables: Table) -> Result:
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


_N_SENTENCES = 60


def smoothing_runs_of(true: bool) -> Mapping[str, Any]:
    """Return the runs that claims of Shi et al. (2022) are measured on.

    Args:
        true: Whether what the paper says is true of the model.
    """
    empty = {name: Table() for name in ("outliers", "dimensions", "parameters", "explained")}
    geometry = results_of("geometry", 
        Path("geometry"), {}, {}, geometry=Table(_similarity(true)), smoothing=Table(_shares(true)),
        smoothing_sentences=Table(_sentences(true)), **empty,
    )  # fmt: skip
    attention = results_of("attention", Path("attention"), {}, {}, similarity=Table(_smoothing_maps(true)))
    return {
        "geometry": geometry,
        "attention": attention,
        "fusion": results_of("attention", Path("fusion"), {}, {}, fusion=Table(_fusions(true))),
        **tuned_runs_of(true),
    }


def _similarity(true: bool) -> Iterator[Row]:
    for layer in range(N_BLOCKS + 1):
        value = 0.2 + 0.75 * layer / N_BLOCKS if true else 0.8 - 0.5 * layer / N_BLOCKS
        for transform, part in (("none", 1.0), ("clip", 0.9)):
            yield {"layer": layer, "transform": transform, "measure": "token_similarity", **with_interval(part * value)}


def _shares(true: bool) -> Iterator[Row]:
    for layer in range(1, N_BLOCKS + 1):
        yield {"layer": layer, "measure": "share_within_bound", **with_interval(1.0 if true else 0.8, half=0)}


def _sentences(true: bool) -> Iterator[Row]:
    """Yield sentences of different lengths; where the claims are true, less is left with larger products."""
    for i in range(_N_SENTENCES):
        product = 0.5 + i / _N_SENTENCES
        left = 1.5 - product if true else product
        yield {
            "sentence": i, "layer": N_BLOCKS, "n_tokens": 5 + i * 7 % 11, "sigma_1": product, "sigma_2": 1.0,
            "distance_before": 3.0, "distance_after": 3 * left, "bound": 2.0, "attention_reach": 0.9 if true else 1.1,
        }  # fmt: skip


def _smoothing_maps(true: bool) -> Iterator[Row]:
    for layer in range(1, N_BLOCKS):
        value = 0.95 if true and layer >= 5 else 0.3
        for measure in ("cosine", "cosine_without_special"):
            yield {"layer": layer, "other_layer": layer + 1, "measure": measure, **with_interval(value)}


def _fusions(true: bool) -> Iterator[Row]:
    sign = 1 if true else -1
    for task in ("upos", "position"):
        for against in ("last layer", "best layer"):
            yield {"task": task, "fusion": "gate", "measure": "difference", "against": against, "layer": N_BLOCKS,
                   **with_interval(sign * 0.1)}  # fmt: skip
        yield {"task": task, "fusion": "gate", "measure": "cosine", **with_interval(0.5 - sign * 0.2)}
    yield {"fusion": "layer", "layer": N_BLOCKS, "measure": "cosine", **with_interval(0.5)}
    yield {"fusion": "equal", "measure": "cosine", **with_interval(0.4)}


def bertology_runs_of(true: bool) -> Mapping[str, Any]:
    """Return the runs that the claims are measured on.

    Args:
        true: Whether what the survey says is true of the model.
    """
    return {
        "hierarchy": results_of("hierarchy", Path("hierarchy"), {}, {}, Table(_order(true)), Table()),
        "positions": _fit([1.0, 1.0, 0.99, 0.98] + [0.9 - 0.05 * k for k in range(9)] if true else [0.3] * 12 + [0.9]),
        "parts_of_speech": _fit(_curve(5, 0.7) if true else _curve(11, 0.7)),
        "relations": _fit(_curve(8, 0.5) if true else _curve(2, 0.5)),
        "structural": results_of("trees", Path("trees"), {}, {}, Table(_structural(true)), Table()),
        "spans": Run(Path("spans"), {}, {}, Table(_spans(true)), Table()),
        "numerals": _fit_of_numbers(0.8 if true else 0.3),
        "numerals_above": _fit_of_numbers(0.1 if true else 0.9),
        "facts": results_of("cloze", Path("facts"), {}, {}, fact_relations=Table(_facts(true))),
        "attention": results_of("attention", 
            Path("attention"), {}, {}, heads=Table(_near_words(true)), attention_layers=Table(_attended_tokens(true)),
            relations=Table(_syntax(true)), trees=Table(_trees(true)), similarity=Table(_alike(true)),
        ),
        "pooling": results_of("sts", Path("sts"), {}, {}, Table(_pooled(true)), Table(_pooled(true, chosen=True))),
        "minimal_pairs": results_of("cloze", Path("pairs"), {}, {}, groups=Table(_groups(true))),
        "changed_text": results_of("cloze", Path("changed"), {}, {}, changes=Table(_changes(true))),
        "ablated": _ablated("position", true),
        "ablated_words": _ablated("mlm", true),
        "change": attention_runs_of(true)["change"],
        "misled": results_of("triggers", Path("misled"), {}, {}, triggers=Table(_triggers(true))),
        **tuned_runs_of(true),
    }  # fmt: skip


def _structural(true: bool) -> Iterator[Row]:
    """Yield the edges that are recovered, most in a middle layer or in the last; without training all alike."""
    for condition, shares in (("model", _curve(6 if true else 12, 0.5)), ("untrained", [0.3] * (N_LAYERS + 1))):
        for layer, share in enumerate(shares):
            yield {"condition": condition, "layer": layer, **_named("uuas", share, 0.005)}


def _spans(true: bool) -> Iterator[Row]:
    for layer in range(N_LAYERS + 1):
        lead, untrained = (0.02 * layer, 0.5) if true else (-0.1, 0.7)
        yield {"layer": layer, "accuracy": 0.6 + lead, "token_accuracy": 0.6, "untrained_accuracy": untrained,
               "above_token_low": lead - 0.01, "above_token_high": lead + 0.01}  # fmt: skip


def _fit_of_numbers(r2: float) -> Run:
    return Run(Path("numerals"), {}, {}, Table([{"layer": layer, **_named("r2", r2)} for layer in range(3)]), Table())


def _facts(true: bool) -> Iterator[Row]:
    gain = 0.3 if true else -0.1
    yield {"relation": "all", **_named("above_without_subject", gain), **_named("above_most_frequent", gain)}


def _triggers(true: bool) -> Iterator[Row]:
    for checkpoint, fall in (("pretrained-seed0-order0", 0.4 if true else -0.1), ("pretrained-seed1-order0", 0.01)):
        yield {"checkpoint": checkpoint, "condition": "searched", **_named("fall", fall)}
        yield {"checkpoint": checkpoint, "condition": "random", "p_value": 0.048 if true else 0.5}


def _named(column: str, value: float, half: float = 0.01) -> Row:
    """Return a value with its interval in columns of its name."""
    return {column: value, f"{column}_low": value - half, f"{column}_high": value + half}


def _order(true: bool) -> Iterator[Row]:
    """Yield the shares of answers; the more layers, the fewer go by linear order, or else the more."""
    linear = {"main_auxiliary": "first_auxiliary", "subject_noun": "first_noun"}
    for task, condition, layer in product(linear, ("model", "untrained"), range(N_LAYERS + 1)):
        depth = layer / N_LAYERS
        right = 0.02 if condition == "untrained" else 0.1 + 0.85 * (depth if true else 1 - depth)
        yield {
            "task": task, "condition": condition, "layer": layer, "test": 0.99, "generalisation": right,
            **_named(linear[task], 1 - right), **_named("preference", 2 * right - 1),
        }  # fmt: skip


def _curve(best: int, start: float) -> list[float]:
    """Return accuracies that rise from the embeddings to the best layer and fall from there."""
    return [start + 0.2 * (1 - abs(layer - best) / N_LAYERS) for layer in range(N_LAYERS + 1)]


def _fit(accuracies: list[float]) -> Run:
    rows = [
        {
            "layer": layer,
            **_named("accuracy", one, 0.005),
            "untrained_accuracy": 0.4,
            "permuted_positions_accuracy": 0.1,
        }
        for layer, one in enumerate(accuracies)
    ]
    return Run(Path("fit"), {}, {}, Table(rows), Table())


def _near_words(true: bool) -> Iterator[Row]:
    """Yield attention to neighbours: four heads at the previous token and five at the next one, or none."""
    for i, (layer, head) in enumerate(product(range(1, N_LAYERS + 1), range(1, N_HEADS + 1))):
        near = {"previous": i < 4, "next": 4 <= i < 9}
        for name, beside in near.items():
            yield {"layer": layer, "head": head, "measure": name, **with_interval(0.8 if beside and true else 0.1)}


def _attended_tokens(true: bool) -> Iterator[Row]:
    """Yield attention to [CLS] in early layers, to [SEP] in middle ones and to punctuation in the last ones."""
    for layer in range(1, N_LAYERS + 1):
        early, late = layer <= 4, layer >= 11
        sep = 0.6 if 5 <= layer <= 10 else 0.1
        masses = {"[CLS]": 0.5 if early else 0.02, "[SEP]": sep, "punctuation": 0.4 if late else 0.02}
        if not true:
            masses = {"[CLS]": 0.5 if late else 0.02, "[SEP]": 0.4 if early else 0.2,
                      "punctuation": 0.4 if layer == 1 else 0.02}  # fmt: skip
        for to, mass in masses.items():
            yield {"layer": layer, "measure": "mass", "to": to, **with_interval(mass)}
        yield {"layer": layer, "measure": "norm_mass", "to": "[SEP]", **with_interval(0.1 if early else 0.05)}
        for name, value in {"mass": 0.6, "norm_mass": 0.2 if true else 0.8, "lift": 5.0}.items():
            yield {"layer": layer, "measure": name, "to": "special tokens", **with_interval(value)}


def _syntax(true: bool) -> Iterator[Row]:
    for relation in ("det", "obj", "nsubj", "advmod", "amod"):
        yield {
            "relation": relation,
            **_named("difference", 0.4 if true else -0.1),
            "offset_test": 0.4,
            "untrained": 0.1,
        }


def _trees(true: bool) -> Iterator[Row]:
    for head in range(1, N_HEADS + 1):
        chosen = {"chosen": "yes"} if head == 2 else {}
        edges = (0.5 if true else 0.9) if chosen else 0.1
        yield {"measure": "uuas", "layer": 3, "head": head, **chosen, **_named("test", edges), "difference": 0.1}
    yield {"measure": "uas", "layer": "all", **_named("test", 0.95), "difference": 0.5}


def _alike(true: bool) -> Iterator[Row]:
    """Yield divergences of pairs of heads, which are small in one layer, or between layers."""
    heads = product(range(1, 4), range(1, N_HEADS + 1))
    for (layer, head), (other_layer, other_head) in combinations(heads, 2):
        is_near = (layer == other_layer) is true
        yield {"measure": "jensen_shannon", "layer": layer, "head": head, "other_layer": other_layer,
               "other_head": other_head, **with_interval(0.2 if is_near else 0.5)}  # fmt: skip


def _pooled(true: bool, chosen: bool = False) -> Iterator[Row]:
    for name, layer, (i, pooling) in product(
        ("STS12", "STS-B dev"), (0, 12), enumerate(("cls", "mean", "first_last"))
    ):  # fmt: skip
        value = 0.5 + (0.1 if true else -0.1) * i * (layer == 12)
        row = {"set": name, "pooling": pooling, "layer": layer, "transform": "none", "aggregation": "all",
               "spearman": value, "low": value - 0.01, "high": value + 0.01}  # fmt: skip
        if not chosen:
            yield row
        elif layer == 12:
            yield {**row, "protocol": "held_out"}


def _groups(true: bool) -> Iterator[Row]:
    for name, share in {"agreement": 0.95, "negative polarity": 0.9, "affirmative": 0.95, "negated": 0.1}.items():
        found = share if true else 1 - share
        yield {"group": name, "share": found, "low": found - 0.1, "high": found + 0.1}


def _changes(true: bool) -> Iterator[Row]:
    yield {"condition": "intact", "loss": 2.0}
    costs = {"words_shuffled": 0.02 if true else 1.5, "name_replaced": 0.3, "noun_replaced": 0.1 if true else 0.6}
    for name, cost in costs.items():
        yield {"condition": name, "against": "intact", **_named("difference", cost)}
    beside = costs["name_replaced"] - costs["noun_replaced"]
    yield {"condition": "name_replaced", "against": "noun_replaced", **_named("difference", beside)}


def _ablated(readout: str, true: bool) -> Result:
    """Return what is lost without one head: nothing without most of them, or much without each."""
    sign = 1 if readout == "position" else -1
    rows: list[Row] = []
    for layer in range(1, N_LAYERS + 1):
        units = {f"{layer}-{head}": 0.0 if true and head > 1 else -0.05 for head in range(1, N_HEADS + 1)}
        for unit, gain in {**units, str(layer): -0.2}.items():
            effect = sign * gain
            rows.append({"unit": unit, "readout": readout, "layer": N_LAYERS, "effect": effect,
                         "low": effect - 0.005, "high": effect + 0.005})  # fmt: skip
    best = [
        {"units": units, "readout": readout, "layer": N_LAYERS, "effect": sign * gain, "low": sign * gain - 0.005,
         "high": sign * gain + 0.005, "p_value": 0.001}
        for units, gain in {"heads": 0.03 if true else -0.02, "layers": -0.1}.items()
    ]  # fmt: skip
    return results_of("ablate", Path("ablated"), {}, {}, Table(rows), Table(best))


def measured(paper: Paper) -> list[tuple[Claim, str]]:
    """Return each claim that has a measure, with each model of the paper that it is about."""
    return [(claim, model) for claim in paper.claims if claim.reading for model in claim.models]


def name(value: object) -> str:
    """Return the name of a parameter of a test."""
    return str(value.id) if isinstance(value, Claim) else str(value)


def verdicts(paper: Paper, claim: Claim, model: str, tuned_runs_of: Callable[[bool], Mapping[str, Any]]) -> list[str]:
    """Return the verdicts on a claim by runs of which it is true, and by runs of which it is false."""
    rows = [rows_of([claim], [Model(model, tuned_runs_of(true))], paper) for true in (True, False)]
    return [row["verdict"] for (row,) in rows]
