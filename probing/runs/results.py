"""Results of a run of `fit` or `probe`: their measurement, their tables, and the files to which they are written."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cli.options import ProbeOptions
from probing.data.examples import Examples, Sides, with_spans
from probing.data.labelling import constant_cross_entropy_by_sentence
from probing.data.module import layer_moments
from probing.probes.bases import basis_rows
from probing.probes.closed_forms import Decomposed, NumberFit, choose_ridge_penalty
from probing.probes.evaluation import head_contributions, head_rows
from probing.probes.evidence import (
    Evidence,
    basis_table,
    collect_evidence,
    compared_with,
    directions_of,
    first_neurons,
    neuron_table,
    with_each,
)
from probing.probes.neuron_profiles import (
    Classes,
    Extremes,
    class_scores,
    confusions,
    extremes,
    positions_of,
    predicted_classes,
    profile_rows,
)
from probing.probes.rankings import class_contributions, class_rows, control_task_shares, mean_contribution
from probing.probes.retraining import (
    PENALTIES,
    Retraining,
    add_retraining_evidence,
    collect_number_evidence,
    with_number_removals,
    with_number_replicates,
)
from probing.probes.training import CodeLength, LayerFit, Lbfgs, online_code, penalised, train_controls, train_probes
from probing.probes.transforms import (
    Transform,
    TransformedStore,
    feature_store,
    moments_with_constant,
    of_neurons,
    save,
    with_constant,
)
from probing.results import Row, count, layers_named, with_layer_name, without_nan, write_tables
from probing.runs.predictions import contexts_of
from probing.runtime import Stopwatch, versions
from probing.runtime.files import write_tensors
from probing.runtime.progress import counted, stage
from probing.runtime.terminal import silence
from probing.statistics import (
    accuracy_interval,
    difference_interval,
    mean_interval,
    ratio_interval,
    size_columns,
    widened,
)
from probing.statistics.chance import correlation_of_neighbours
from probing.tables import layer_flag
from probing.tables.conclusions import with_basis
from probing.tables.figures import USUAL
from probing.tables.probe_figures import write_figures
from probing.tables.schema import NUMBER_TABLES, TABLES
from probing.text import Corpus
from probing.text.tasks import label_name
from probing.tracking import Tracker

# --------------------------------------------------------------------------------------------------------------------
# Results in memory, and their tables.
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProbeResults:
    """The results of a run, in either class below of this one.

    Args:
        evidence: The evidence of each layer, in the order of `fits`; empty if neurons are not ranked.
        controls: For each control and draw, the probe of each layer, or a single probe for all layers.
        replicates: Weights of the bootstrapped probes on raw hidden states, shape (n_replicates, n_layers, n_classes,
            d_model).
        penalty: The l2 penalty as `l2`, and how it was chosen if it was not given.
        transform: Transform of the activations, fitted on the training examples.
        n_heads: Number of heads into which a layer's neurons divide; None if they belong to no heads.
        heads: A row per layer and head, as in `heads.csv`; empty without heads.
        extremes: The test tokens of the first neurons' highest and lowest activations, if requested.
        profiles: Further description of these neurons, as in `profiles.csv`.
    """

    sides: Sides
    fits: Sequence[LayerFit | NumberFit]
    evidence: Sequence[Evidence]
    controls: Mapping[str, Sequence[Sequence[LayerFit | NumberFit]]] = field(default_factory=dict)
    replicates: Tensor | None = None
    penalty: Mapping[str, Any] = field(default_factory=dict)
    transform: str = "none"
    n_heads: int | None = None
    heads: Sequence[Row] = ()
    extremes: Extremes | None = None
    profiles: Sequence[Row] = ()

    @property
    def numbers(self) -> dict[str, float]:
        """Mean of the training numbers, the constant answer, and their standard deviation; empty for classes."""
        return {}

    def tables(self) -> dict[str, Sequence[Row]]:
        """Return the rows of the run's tables, by name."""
        accuracy = self.accuracy()
        tables: dict[str, Sequence[Row]] = {
            "accuracy": accuracy,
            "neurons": self.neurons([row["flag"] for row in accuracy]),
            **self._of_classes(),
            "heads": self.heads,
            "basis": basis_table((fit.layer, layer_evidence.directions) for fit, layer_evidence in self._ranked),
        }
        return {name: rows for name, rows in tables.items() if rows}

    def _of_classes(self) -> dict[str, Sequence[Row]]:
        return {}

    def accuracy(self) -> list[dict[str, Any]]:
        """Return a row per layer, as in `accuracy.csv`."""
        return [self._accuracy_row(i) for i in range(len(self.fits))]

    def _accuracy_row(self, i: int) -> dict[str, Any]:
        raise NotImplementedError

    def neurons(self, flags: Sequence[str]) -> list[dict[str, Any]]:
        """Return a row per layer and neuron in ranked order, as in `neurons.csv`, with the layers' accuracy flags."""
        return [
            row
            for (fit, evidence), flag in zip(self._ranked, flags, strict=True)
            for row in neuron_table(fit.layer, fit.weight, evidence, is_informative=not flag, n_heads=self.n_heads)
        ]

    def contributions(self) -> list[Tensor]:
        """Return the mean contribution of each neuron to each class for each layer, shape (n_classes, d_model).

        Of numbers, the shape is (1, d_model).
        """
        return [class_contributions(fit.weight, layer_evidence.magnitudes) for fit, layer_evidence in self._ranked]

    @property
    def _ranked(self) -> list[tuple[Any, Evidence]]:
        """The probe of each layer with its evidence; empty if neurons are not ranked."""
        return list(zip(self.fits, self.evidence, strict=True)) if self.evidence else []

    def _controls(self, i: int) -> Iterator[tuple[str, list[Any]]]:
        """Yield the name of each control, and the probe of a layer in each draw."""
        for name, draws in self.controls.items():
            yield name, [fits[i] if len(fits) > 1 else fits[0] for fits in draws]

    def _last_columns(self, i: int, more: Mapping[str, Any]) -> dict[str, Any]:
        """Return the last columns of a layer's row: the agreement of rankings, `more`, and the size of the sample."""
        train, evidence = self.sides.train, self.evidence[i] if self.evidence else None
        stability = evidence.stability if evidence else None
        return {
            **({} if stability is None else {"bootstrap_overlap": stability.bootstrap_overlap}),
            **more,
            **size_columns(self.transform, train.n_tokens, len(train.sentences()), train.store.plan.d_model),
            **(evidence.penalty_stability if evidence else {}),
        }


@dataclass(frozen=True)
class NumberResults(ProbeResults):
    """The results of a run that predicts numbers by ridge probes."""

    fits: Sequence[NumberFit]

    @property
    def numbers(self) -> dict[str, float]:  # noqa: D102  as above
        standard = self.fits[0].standard
        return {"mean": standard.mean, "sd": standard.sd}

    def neurons(self, flags: Sequence[str]) -> list[dict[str, Any]]:  # noqa: D102  as above
        correlations = {fit.layer: layer_evidence.correlation for fit, layer_evidence in self._ranked}
        rows = []
        for row in super().neurons(flags):
            named = {name.replace("cross_entropy_without", "r2_without"): value for name, value in row.items()}
            correlation = correlations[row["layer"]]
            assert correlation is not None
            rows.append({**named, "correlation": float(correlation[row["neuron"]])})
        return rows

    def _accuracy_row(self, i: int) -> dict[str, Any]:
        fit, train, test = self.fits[i], self.sides.train, self.sides.test
        controls = {name: draws[0] for name, draws in self._controls(i)}
        n, sd = test.n_tokens, fit.standard.sd
        intervals = self._intervals(fit, controls)
        row: dict[str, Any] = {
            "layer": fit.layer,
            "r2": fit.r2,
            **_ends("r2", intervals["r2"]),
            "train_r2": fit.train_r2,
            "mean_absolute_error": float(fit.absolute.sum()) / n * sd,
            "root_mean_squared_error": float(np.sqrt(fit.errors.sum() / n)) * sd,
            "constant_root_mean_squared_error": float(np.sqrt(fit.deviations.sum() / n)) * sd,
            "relative_gradient": fit.relative_gradient,
            "n_train_tokens": train.n_tokens,
            "n_test_tokens": n,
        }
        row["flag"] = layer_flag(row)
        for name, control in controls.items():
            row |= {f"{name}_r2": control.r2, **_ends(f"above_{name}", intervals[name])}
        return row | self._last_columns(i, {})

    def _intervals(self, fit: NumberFit, controls: Mapping[str, NumberFit]) -> dict[str, tuple[float, float]]:
        """Return the 95% intervals of R² and of its differences to the controls, over test sentences or documents."""
        test = self.sides.test
        tested = test.clusters(test.tokens_by_sentence()) > 0

        def r2(of: NumberFit) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
            return test.clusters(of.deviations - of.errors)[tested], test.clusters(of.deviations)[tested]

        differences = {name: ratio_interval(r2(fit), r2(control)) for name, control in controls.items()}
        return {"r2": ratio_interval(r2(fit)), **differences}


def _ends(name: str, interval: tuple[float, float]) -> dict[str, float]:
    return {f"{name}_low": interval[0], f"{name}_high": interval[1]}


@dataclass(frozen=True)
class ClassResults(ProbeResults):
    """The results of a run that predicts classes.

    Args:
        codes: Code length of the training labels given each layer's activations; empty if not measured.
        predicted: For each layer the predicted class of each test token, -1 for tokens that are no examples, shape
            (n_tokens,); empty for trials of a sweep.
        bases: A row per layer, basis and number of units, as in `bases.csv`; empty unless neurons are features.
    """

    fits: Sequence[LayerFit]
    codes: Sequence[CodeLength] = ()
    predicted: Sequence[Classes] = ()
    bases: Sequence[Row] = ()

    def _of_classes(self) -> dict[str, Sequence[Row]]:
        sides, labels = self.sides, self.sides.classes.tolist()
        predictions = [(fit.layer, of_layer) for fit, of_layer in zip(self.fits, self.predicted, strict=False)]
        scores = [row for layer, predicted in predictions for row in class_scores(sides, layer, predicted)]
        # Classes that are numbers of tokens, such as positions.
        are_positions = sides.ordinal and sides.test.pooling is None
        return {
            "class_scores": scores,
            "confusions": [row for layer, predicted in predictions for row in confusions(sides, layer, predicted)],
            "positions": positions_of(scores) if are_positions else (),
            "classes": [
                row
                for fit, layer_evidence in self._ranked
                for row in class_rows(fit.layer, fit.weight, layer_evidence.magnitudes, labels)
            ],
            "bases": self.bases,
        }

    def _accuracy_row(self, i: int) -> dict[str, Any]:
        fit, train, test, n_classes = self.fits[i], self.sides.train, self.sides.test, len(self.sides.classes)
        in_majority = test.labels == int(train.counts(n_classes).argmax())
        of_majority = np.bincount(test.store.tokens.sentences[in_majority], minlength=len(fit.correct_by_sentence))
        n_tokens = test.clusters(test.tokens_by_sentence())
        interval = accuracy_interval(test.clusters(fit.correct_by_sentence), n_tokens)
        # The majority class is guessed on the same tokens, so that the difference is paired by sentence.
        above = difference_interval(test.clusters(fit.correct_by_sentence - of_majority), n_tokens)
        row: dict[str, Any] = {
            "layer": fit.layer,
            **fit.metrics,
            **_ends("accuracy", interval),
            "train_cross_entropy": fit.train_cross_entropy,
            **self._information(fit),
            "optimality_gap": fit.optimality_gap,
            "majority_accuracy": float(in_majority.sum() / test.n_tokens),
            **_ends("above_majority", above),
            "n_train_tokens": train.n_tokens,
            "n_test_tokens": test.n_tokens,
            "n_classes": n_classes,
        }
        row["flag"] = layer_flag(row)
        for name, draws in self._controls(i):
            row |= self._compare_with_control(name, fit, draws)
        if "control_task" in self.controls:
            row["selectivity"] = row["accuracy"] - row["control_task_accuracy"]
        more: dict[str, float] = {}
        if self.transform == "clip":
            assert isinstance(train.store, TransformedStore)
            clip = train.store.changes[fit.layer]
            more["n_clipped"] = len(clip.clipped) if isinstance(clip, Transform) else 0
        if self.codes:
            more["online_code_bits"], more["uniform_code_bits"] = self.codes[i].online, self.codes[i].uniform
            more["compression"] = self.codes[i].compression
        return row | self._last_columns(i, more)

    def _information(self, fit: LayerFit) -> dict[str, float]:
        """Return the test cross-entropy of a constant answer, and its reduction by the probe, in nats per token."""
        test, n_classes = self.sides.test, len(self.sides.classes)
        prior = constant_cross_entropy_by_sentence(self.sides.train, test, n_classes)
        saved = prior - fit.cross_entropy_by_sentence
        interval = mean_interval(test.clusters(saved), test.clusters(test.tokens_by_sentence()))
        return {
            "prior_cross_entropy": float(prior.sum() / test.n_tokens),
            "information": float(saved.sum() / test.n_tokens), **_ends("information", interval),
        }  # fmt: skip

    def _compare_with_control(self, name: str, fit: LayerFit, draws: Sequence[LayerFit]) -> dict[str, float]:
        """Return a control's mean accuracy over its draws, and the interval of the probe's difference to it."""
        accuracies = [draw.metrics["accuracy"] for draw in draws]
        accuracy = float(np.mean(accuracies))
        difference = fit.correct_by_sentence - np.mean([draw.correct_by_sentence for draw in draws], axis=0)
        test = self.sides.test
        interval = difference_interval(test.clusters(difference), test.clusters(test.tokens_by_sentence()))
        above = widened(fit.metrics["accuracy"] - accuracy, interval, accuracies)
        return {f"{name}_accuracy": accuracy, **_ends(f"above_{name}", above)}


# --------------------------------------------------------------------------------------------------------------------
# Measurement: the probes of a run, their controls, and the evidence for rankings.
# --------------------------------------------------------------------------------------------------------------------

# In the table of contexts: neurons of each layer, by rank, and tokens of each end.
N_NEURONS, N_TOKENS = 10, 5

# Random rotations, where their number is not chosen.
ROTATIONS = 20


@dataclass(frozen=True)
class EvidenceConfig:
    """Measurements besides accuracy.

    Args:
        seed: Seed of every random draw.
        n_replicates: Number of bootstrap samples of the training sentences, 0 for none.
        retraining: Whether probes are retrained without neurons and under other penalties.
        codes: Whether the online code length of the training labels is measured.
        transform: Transform of the activations, as in `--transform`.
        n_heads: Number of heads into which a layer's neurons divide; None if they belong to no heads.
        extremes: Whether the first neurons are described, with the tokens of their highest and lowest activations.
        ranking: Whether neurons are ranked, with evidence; otherwise accuracies alone are measured.
        n_rotations: Number of random rotations whose directions neurons are compared with, 0 for none; by default
            `ROTATIONS` with `retraining`, otherwise none.
    """

    seed: int
    n_replicates: int = 0
    retraining: bool = False
    codes: bool = False
    transform: str = "none"
    n_heads: int | None = None
    extremes: bool = False
    ranking: bool = True
    n_rotations: int | None = None

    @property
    def rotations(self) -> int:
        """Number of random rotations, 0 for none."""
        return ROTATIONS * self.retraining if self.n_rotations is None else self.n_rotations


def measure(
    sides: Sides,
    controls: Mapping[str, Sequence[Sides]],
    layers: Sequence[int],
    probe: ProbeOptions,
    config: EvidenceConfig,
    trainer: Mapping[str, Any],
    watch: Stopwatch | None = None,
    say: Callable[[str], None] = silence,
    logger: Any = None,
    folder: str | None = None,
) -> ProbeResults:
    """Train the probes of a run, its controls, and the probes that give evidence for its rankings.

    `controls` has the examples of each control, by name and draw. `trainer` has arguments of Lightning's Trainer,
    `logger` logs the training curves of the run's probes; `folder` is for Lightning's files, None except in the
    rank-zero process.
    """
    watch = watch or Stopwatch()
    results: ProbeResults
    if sides.numbers:
        results = _measure_numbers(sides, controls, layers, probe, config, watch)
    else:
        results = _measure_classes(sides, controls, layers, probe, config, trainer, watch, say, logger, folder)
    if config.extremes:
        with counted("tokens on which neurons are highest and lowest", None):
            first = first_neurons(results.fits, results.evidence, N_NEURONS)
            extreme_tokens = extremes(sides.test, first, N_TOKENS)
            results = replace(results, extremes=extreme_tokens, profiles=profile_rows(sides.test, first))
    watch.end("evidence")
    return results


def _measure_classes(
    sides: Sides, controls: Mapping[str, Sequence[Sides]], layers: Sequence[int], probe: ProbeOptions,
    config: EvidenceConfig, trainer: Mapping[str, Any], watch: Stopwatch, say: Callable[[str], None], logger: Any,
    folder: str | None,
) -> ClassResults:  # fmt: skip
    """Measure probes that predict classes; the arguments are as in `measure`."""
    with stage(f"probes of {layers_named(layers)}"):
        moments = of_read = layer_moments(sides.train, layers)
        read, read_controls = sides, controls  # what probes read: the neurons, and the constant beside an intercept
        if probe.bias:
            read, read_controls = with_constant(sides, controls)
            of_read = [moments_with_constant(of_layer) for of_layer in moments]
        path, training = penalised(probe, config.seed, read, layers, of_read, trainer)
        starts = path.weights if path else None
        trained = train_probes(read, layers, training, logger=logger, folder=folder, moments=of_read, starts=starts)
        watch.end("probe")
    control_fits = {}
    if controls:
        with stage(f"probes of {count(len(controls), 'control')}"):
            control_fits = train_controls(read_controls, layers, training, read.train, of_read)
    codes: Any = ()
    if config.codes:
        with stage("codes of the labels"):
            codes = online_code(read, layers, training, config.seed)
    penalty = path.summary() if path else {"l2": probe.l2}
    results = ClassResults(
        sides, trained, (), control_fits, penalty=penalty, transform=config.transform, codes=codes,
    )  # fmt: skip
    if not config.ranking:
        return results
    with stage("evidence for the ranking"):
        evidence = collect_evidence(sides.train, sides.test, layers, moments, len(sides.classes))
        fits = [of_neurons(fit) for fit in trained] if probe.bias else trained
        if draws := controls.get("control_task"):
            of_draws = control_fits["control_task"]
            if probe.bias:
                of_draws = [[of_neurons(fit) for fit in of_layers] for of_layers in of_draws]
            evidence = with_each(evidence, control_task_share=control_task_shares(draws, of_draws))
        replicates = None
        if isinstance(training.solver, Lbfgs) and all(fit.converged for fit in fits):
            others = {name: path.starts(decades) for name, decades in PENALTIES.items()} if path else {}
            retraining = Retraining(read, layers, trained, training, config.seed, others)
            evidence, replicates = add_retraining_evidence(evidence, retraining, config.n_replicates, config.retraining)
            directions = directions_of(fits, sides.test, probe.penalty_space, config.rotations, config.seed)
            evidence = with_each(evidence, directions=directions)
        elif config.n_replicates or config.retraining or config.rotations:
            say("the probes are not at their optimum, so --replicates, --evidence and --rotations are skipped")
        predicted = predicted_classes(read.test, layers, [fit.weight for fit in trained])
        pairs = zip(fits, evidence, strict=True)
        heads = () if not config.n_heads else head_rows(
            read, trained, [mean_contribution(fit.weight, layer_evidence.magnitudes) for fit, layer_evidence in pairs],
            config.n_heads, training if config.retraining else None, config.seed,
        )  # fmt: skip
        bases: list[dict[str, Any]] = []
        if config.retraining and feature_store(sides.train.store) is not None:
            bases = [row for layer in layers for row in basis_rows(sides, layer, training, path is None, config.seed)]
    return replace(
        results, fits=fits, evidence=evidence, replicates=replicates, predicted=predicted, n_heads=config.n_heads,
        heads=heads, bases=bases,
    )  # fmt: skip


def _measure_numbers(
    sides: Sides, controls: Mapping[str, Sequence[Sides]], layers: Sequence[int], probe: ProbeOptions,
    config: EvidenceConfig, watch: Stopwatch,
) -> NumberResults:  # fmt: skip
    """Solve the ridge probes of a run, of its controls, and the probes that give evidence for its rankings."""
    space, seed = probe.penalty_space, config.seed
    with stage(f"probes of {layers_named(layers)}"):
        decomposed = Decomposed.of(sides, layers, space)
        penalty: dict[str, Any] = {"l2": probe.l2}
        if probe.l2 == "auto":
            penalty = choose_ridge_penalty(sides, layers, decomposed.spectra, decomposed.products).summary()
        l2 = float(penalty["l2"])
        fits = decomposed.train(l2)
        watch.end("probe")
    control_fits = {}
    if controls:
        with stage(f"probes of {count(len(controls), 'control')}"):
            for name, (other, *_) in controls.items():
                # Other numbers of the same examples share the decomposition.
                known = decomposed.spectra if other.train.store is sides.train.store else None
                of_layers = layers[:1] if name == "token" else layers
                control_fits[name] = [Decomposed.of(other, of_layers, space, known).train(l2)]
    results = NumberResults(sides, fits, (), control_fits, penalty=penalty, transform=config.transform)
    if not config.ranking:
        return results
    with stage("evidence for the ranking"):
        evidence, replicates = collect_number_evidence(decomposed, fits), None
        if config.n_replicates:
            evidence, replicates = with_number_replicates(evidence, decomposed, fits, l2, config.n_replicates, seed)
        if config.retraining:
            evidence = with_number_removals(evidence, sides, fits, l2, seed)
        evidence = with_each(evidence, directions=directions_of(fits, sides.test, space, config.rotations, seed))
    pairs, n_heads = zip(fits, evidence, strict=True), config.n_heads
    heads = [] if not n_heads else [
        row
        for fit, layer_evidence in pairs
        for row in head_contributions(fit.layer, mean_contribution(fit.weight, layer_evidence.magnitudes), n_heads)
    ]  # fmt: skip
    return replace(results, evidence=evidence, replicates=replicates, n_heads=n_heads, heads=heads)


# --------------------------------------------------------------------------------------------------------------------
# Files.
# --------------------------------------------------------------------------------------------------------------------

# Tables that are logged beside accuracies and neurons.
_LOGGED = "class_scores", "confusions", "heads", "bases", "basis", "contexts"


@dataclass(frozen=True)
class Written:
    """Tables by name, files that `write` put into the run's folder, and a row per penalty that was tried."""

    tables: Mapping[str, Sequence[Row]]
    figures: list[Path]
    files: list[Path]
    penalties: Sequence[Row] = ()

    def log(self, tracker: Tracker, files: Sequence[Path], page: Path) -> None:
        """Log all tables and files, `files` in addition, and the report `page`, to W&B."""
        logged = {name: self.tables.get(name, ()) for name in _LOGGED}
        files = [*self.files, *files]
        accuracy = with_basis(self.tables["accuracy"], self.tables.get("basis", ()))
        tracker.log_results(
            accuracy, self.tables["neurons"], self.figures, files, logged, report=page,
            curves={"log10_l2": self.penalties},
        )  # fmt: skip


def write(
    folder: Path,
    config: Mapping[str, Any],
    results: ProbeResults,
    model_name: str,
    cached: Mapping[str, Mapping[str, Any]],
    timings: Callable[[], Mapping[str, float]],
    formats: Sequence[str] = USUAL,
    corpus: Corpus | None = None,
    transforms: Mapping[int, Transform] | None = None,
    noted: Mapping[str, Any] | None = None,
) -> Written:
    """Write tables, tensors, figures (in `formats`), the configuration, and all as `results.json`, for programs.

    `cached` has the model and the corpus of the activations, for the training and the test side; `timings` returns the
    seconds of each stage, after tables and figures are written; `noted` are further entries of `results.json`, such as
    the place of the text. `corpus` is the test corpus, for the contexts of the first neurons' extreme activations, None
    without text. `transforms` are by layer, if the activations were transformed or centred.
    """
    tables, sides = results.tables(), results.sides
    tables["neurons"] = with_spans(tables["neurons"], sides)
    features = feature_store(sides.train.store)
    if features is not None and (feature_numbers := features.selected_features) is not None:
        tables["neurons"] = [{**row, "feature": feature_numbers[row["neuron"]]} for row in tables["neurons"]]
    if results.extremes and corpus is not None:
        tables["contexts"] = contexts_of(results.extremes, sides.test, corpus, sides.classes)
        tables["profiles"] = results.profiles
    paths = write_tables(folder, config, tables, NUMBER_TABLES if sides.numbers else TABLES)
    paths += _write_tensors(folder, results, config["task"], config["model"])
    if transforms:
        paths.append(folder / "transform.safetensors")
        save(paths[-1], transforms)
    figures = write_figures(folder / "figures", tables, label_name(config), model_name, formats) if formats else []
    summary = _summary(results, tables["accuracy"], cached, timings(), noted or {})
    paths.append(folder / "results.json")
    paths[-1].write_text(json.dumps(summary, indent=2), encoding="utf-8")
    return Written(tables, figures, paths, penalty_rows(results.penalty))


def penalty_rows(penalty: Mapping[str, Any]) -> list[Row]:
    """Return a row per penalty that was tried, strongest first, with the validation score of each layer.

    `penalty` is the part of `results.json`; a penalty that was given rather than chosen has no rows.
    """
    rows: list[dict[str, Any]] = [{"log10_l2": math.log10(l2)} for l2 in penalty.get("tried", ())]
    for name in ("validation_cross_entropy", "validation_r2"):
        for layer, values in penalty.get(f"{name}_by_layer", {}).items():
            for row, value in zip(rows, values, strict=True):
                row[f"layer_{int(layer):02d}/{name}" if layer.isdecimal() else f"{layer}/{name}"] = value
    return list(rows)


def _summary(
    results: ProbeResults, accuracy: Sequence[Row], cached: Mapping[str, Mapping[str, Any]],
    timings: Mapping[str, float], noted: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Return the content of `results.json`; the arguments are as in `write`."""
    sides, key = results.sides, cached["test"]["key"]
    named = {"train": sides.train, "validation": sides.validation, "test": sides.test}
    return {
        "versions": versions(),
        "site": key.get("site", "residual" if "model" in key else "arrays"),
        "cache": dict(cached),
        **noted,
        "classes": sides.classes.tolist(),
        **({"numbers": results.numbers} if results.numbers else {}),
        "penalty": dict(results.penalty),
        "n_example_tokens": {side: examples.n_tokens for side, examples in named.items()},
        "n_dropped_tokens": {side: examples.n_dropped for side, examples in named.items()},
        "n_unlabelled_tokens": {side: examples.n_unlabelled for side, examples in named.items()},
        "n_special_tokens": {side: examples.n_special for side, examples in named.items()},
        "n_sentences": {side: len(examples.sentences()) for side, examples in named.items()},
        "intervals_over": intervals_over(sides.test),
        "split_by": _unit(sides.train),
        **({} if sides.train.covariate is None else {"covariate": compared_with(sides.train)}),
        **_neighbours(sides),
        **({"pooling": sides.test.pooling} if sides.test.pooling else {}),
        "timings": dict(timings),
        "layers": [
            {
                **without_nan(with_layer_name(row)),
                "converged": fit.converged,
                "n_passes": fit.n_passes,
                "objective": fit.objective,
            }
            for row, fit in zip(accuracy, results.fits, strict=True)
        ],
    }


def intervals_over(test: Examples) -> dict[str, Any]:
    """Return the unit of a run's intervals, and the number of units with test tokens."""
    n = int((test.clusters(test.tokens_by_sentence()) > 0).sum())
    return {"unit": _unit(test), "n": n}


def _neighbours(sides: Sides) -> dict[str, float]:
    """Return the correlation of labels of neighbouring training rows or sentences, where it is significant."""
    train = sides.train
    if _unit(train) not in ("row", "sentence"):  # groups and documents are taken to be independent
        return {}
    codes = train.codes(len(sides.classes))
    correlation = correlation_of_neighbours(train.labels, train.store.tokens.sentences, codes)
    return {} if correlation is None else {"correlation_of_neighbours": correlation}


def _unit(examples: Examples) -> str:
    """Return the independent unit: a document, or a sentence, row or group."""
    return examples.unit if examples.documents is None else "document"


def _write_tensors(folder: Path, results: ProbeResults, task: str, model: str) -> list[Path]:
    """Write the weights of the probes, of the bootstrapped probes, and contributions; return the paths."""
    metadata = {
        "layers": json.dumps([fit.layer for fit in results.fits]),
        "classes": json.dumps(results.sides.classes.tolist()),
        "task": task,
        "model": model,
        **({"mean": json.dumps(results.numbers["mean"])} if results.numbers else {}),
    }
    weight = torch.stack([fit.weight for fit in results.fits])
    contribution = torch.stack(results.contributions()).float()
    intercepts = [fit.intercept for fit in results.fits if isinstance(fit, LayerFit) and fit.intercept is not None]
    intercept_tensors = {"intercept": torch.stack(intercepts)} if intercepts else {}
    tensors = {"probe": {"weight": weight, **intercept_tensors}, "contributions": {"contribution": contribution}}
    if results.replicates is not None:
        tensors["replicates"] = {"weight": results.replicates}
    paths = {name: folder / f"{name}.safetensors" for name in tensors}
    for name, content in tensors.items():
        write_tensors(paths[name], content, metadata)
    return [*paths.values()]
