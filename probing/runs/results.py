"""Results of a run of `fit` or `probe`, and the files to which they are written."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cli.options import ProbeOptions
from probing.data.examples import Examples, Sides
from probing.data.labelling import constant_cross_entropy_by_sentence
from probing.probes.bases import feature_store
from probing.probes.closed_forms import Decomposed, NumberFit, choose_ridge_penalty
from probing.probes.evaluation import head_contributions
from probing.probes.evidence import (
    Evidence,
    NumberEvidence,
    basis_table,
    collect_number_evidence,
    compared_with,
    directions_of,
    neuron_table,
    with_number_removals,
    with_number_replicates,
)
from probing.probes.neuron_profiles import Classes, Extremes, class_scores, confusions, positions_of
from probing.probes.rankings import class_contributions, class_rows, mean_contribution
from probing.probes.removal import with_corrected
from probing.probes.training import CodeLength, LayerFit
from probing.probes.transforms import Changed, Transform, save
from probing.results import Row, count, layers_named, with_layer_name, without_nan, write_tables
from probing.runtime import Stopwatch, versions
from probing.runtime.files import write_tensors
from probing.runtime.progress import stage
from probing.statistics import (
    accuracy_interval,
    difference_interval,
    mean_interval,
    ratio_interval,
    size_columns,
    widened,
)
from probing.statistics.chance import correlation_of_neighbours
from probing.tables import accuracy_flag, r2_flag
from probing.tables.conclusions import with_basis
from probing.tables.figures import USUAL
from probing.tables.probe_figures import write_figures
from probing.tables.schema import NUMBER_TABLES, TABLES
from probing.text import Corpus
from probing.text.tasks import Labels, label_name
from probing.tracking import Tracker

# --------------------------------------------------------------------------------------------------------------------
# Measurements of a run that predicts numbers: its ridge probes, their controls, and the evidence for rankings.
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NumberResults:
    """The results of a run that predicts numbers, with the fields of `ClassResults` except for these.

    Args:
        controls: For each control, the probe of each layer, or a single probe for all layers.
        replicates: Weights of the bootstrapped probes on raw hidden states, shape (n_replicates, n_layers, 1, d_model).
    """

    sides: Sides
    fits: Sequence[NumberFit]
    evidence: Sequence[NumberEvidence]
    controls: Mapping[str, Sequence[NumberFit]] = field(default_factory=dict)
    replicates: Tensor | None = None
    penalty: Mapping[str, Any] = field(default_factory=dict)
    transform: str = "none"
    n_heads: int | None = None
    extremes: Extremes | None = None
    profiles: Sequence[Row] = ()

    @property
    def heads(self) -> list[dict[str, Any]]:
        """A row per layer and head, as in `heads.csv`; empty without heads."""
        if not self.n_heads:
            return []
        pairs = zip(self.fits, self.evidence, strict=True)
        by_layer = [
            (fit.layer, mean_contribution(fit.weight, layer_evidence.magnitudes)) for fit, layer_evidence in pairs
        ]
        return [
            row for layer, contribution in by_layer for row in head_contributions(layer, contribution, self.n_heads)
        ]

    def tables(self) -> dict[str, Sequence[Row]]:
        """Return the rows of the run's tables, by name."""
        accuracy, heads = self.accuracy(), self.heads
        neurons = self.neurons([row["flag"] for row in accuracy])
        basis = basis_table(
            (fit.layer, layer_evidence.directions)
            for fit, layer_evidence in zip(self.fits, self.evidence, strict=False)
        )
        tables = {"accuracy": accuracy, "neurons": neurons, "heads": heads, "basis": basis}
        return {name: rows for name, rows in tables.items() if rows}

    def accuracy(self) -> list[dict[str, Any]]:
        """Return a row per layer, as in `accuracy.csv`."""
        return [self._row(i) for i in range(len(self.fits))]

    def neurons(self, flags: Sequence[str]) -> list[dict[str, Any]]:
        """Return a row per layer and neuron in ranked order, as in `neurons.csv`, with the layers' accuracy flags."""
        rows = []
        for fit, layer_evidence, flag in zip(self.fits, self.evidence, flags, strict=True):
            assert layer_evidence.correlation is not None
            table = neuron_table(fit.layer, fit.weight, layer_evidence, is_informative=not flag, n_heads=self.n_heads)
            for row in with_corrected(table, layer_evidence.ablation_effects):
                named = {name.replace("cross_entropy_without", "r2_without"): value for name, value in row.items()}
                rows.append({**named, "correlation": float(layer_evidence.correlation[row["neuron"]])})
        return rows

    def contributions(self) -> list[Tensor]:
        """Return the mean contribution of each neuron for each layer, shape (1, d_model)."""
        return [
            class_contributions(fit.weight, layer_evidence.magnitudes)
            for fit, layer_evidence in zip(self.fits, self.evidence, strict=True)
        ]

    def _row(self, i: int) -> dict[str, Any]:
        fit, train, test = self.fits[i], self.sides.train, self.sides.test
        controls = {name: fits[i] if len(fits) > 1 else fits[0] for name, fits in self.controls.items()}
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
        row["flag"] = r2_flag(row)
        for name, control in controls.items():
            row |= {f"{name}_r2": control.r2, **_ends(f"above_{name}", intervals[name])}
        evidence = self.evidence[i] if self.evidence else None
        if evidence and (stability := evidence.stability) is not None:
            row["bootstrap_overlap"] = stability.bootstrap_overlap
        row |= size_columns(self.transform, train.n_tokens, len(train.sentences()), train.store.plan.d_model)
        return row | dict(evidence.penalty_stability if evidence else {})

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


def measure_numbers(
    sides: Sides,
    controls: Mapping[str, Sequence[Sides]],
    layers: Sequence[int],
    probe: ProbeOptions,
    n_replicates: int,
    retraining: bool,
    transform: str,
    seed: int,
    n_heads: int | None,
    watch: Stopwatch,
    ranking: bool = True,
    n_rotations: int = 0,
) -> NumberResults:
    """Solve the ridge probes of a run, of its controls, and the probes that give evidence for its rankings.

    `controls` has the examples of each control, by name and draw; for other arguments see `EvidenceConfig`.
    """
    space = probe.penalty_space
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
                control_fits[name] = Decomposed.of(other, of_layers, space, known).train(l2)
    if not ranking:
        return NumberResults(sides, fits, (), control_fits, penalty=penalty, transform=transform)
    with stage("evidence for the ranking"):
        evidence, replicates = collect_number_evidence(decomposed, fits), None
        if n_replicates:
            evidence, replicates = with_number_replicates(evidence, decomposed, fits, l2, n_replicates, seed)
        if retraining:
            evidence = with_number_removals(evidence, sides, fits, l2, seed)
        directions = directions_of(fits, sides.test, space, n_rotations, seed)
        evidence = [
            replace(layer_evidence, directions=layer_directions)
            for layer_evidence, layer_directions in zip(evidence, directions, strict=True)
        ]
    return NumberResults(sides, fits, evidence, control_fits, replicates, penalty, transform, n_heads)


# --------------------------------------------------------------------------------------------------------------------
# Tokens in their context on which a neuron is highest and lowest.
# --------------------------------------------------------------------------------------------------------------------

# Most characters before a token and after it, and of a sentence that stands for itself.
AROUND, WHOLE = 40, 120


def contexts_of(extremes: Extremes, examples: Examples, corpus: Corpus, classes: Labels) -> list[dict[str, Any]]:
    """Return a row per layer, neuron, end and token, as in `contexts.csv`.

    `extremes` indexes `examples`, whose text is `corpus`; `classes` are labels, empty where numbers are predicted.
    """
    rows = []
    for (layer, end), (values, tokens) in extremes.by_end.items():
        columns = zip(extremes.neurons[layer], values.T.tolist(), tokens.T.tolist(), strict=True)
        for neuron, neuron_values, neuron_tokens in columns:
            for place, (value, token) in enumerate(zip(neuron_values, neuron_tokens, strict=True), start=1):
                label = _label(examples, token, classes)
                about = {"layer": layer, "neuron": neuron, "end": end, "place": place, "activation": value, **label}
                rows.append({**about, **in_context(examples, corpus, token)})
    order = {(layer, neuron): i for layer, numbers in extremes.neurons.items() for i, neuron in enumerate(numbers)}
    return sorted(rows, key=lambda row: (row["layer"], order[row["layer"], row["neuron"]], row["end"], row["place"]))


def _label(examples: Examples, token: int, classes: Labels) -> dict[str, Any]:
    """Return the true class of a token, or its number."""
    if examples.values is not None:
        return {"number": float(examples.values[examples.labels[token]])}
    return {"class": classes.tolist()[examples.labels[token]]}


def in_context(examples: Examples, corpus: Corpus, token: int) -> Row:
    """Return the sentence of a token, its position, its characters and the characters around it.

    Where examples are sentences, the whole sentence is the token. `token` is a row in the store, for a word the row of
    its first piece.
    """
    tokens = examples.store.tokens
    sentence = int(tokens.sentences[token])
    text = corpus.sentences[sentence]
    if examples.pooling is not None:
        return {"sentence": sentence, "before": "", "token": _shortened(text, WHOLE), "after": ""}
    position = token - int(tokens.offsets[sentence])
    if tokens.spans is None:  # rows of arrays
        return {"sentence": sentence, "position": position, "before": "", "token": "", "after": ""}
    start, stop = (int(end) for end in tokens.spans[token])
    if examples.word_means:
        rows = np.arange(token, int(tokens.offsets[sentence + 1]))
        stop = int(tokens.spans[rows[tokens.words[rows] == tokens.words[token]][-1], 1])
    before, after = text[:start], text[stop:]
    return {
        "sentence": sentence, "position": position,
        "before": "…" * (len(before) > AROUND) + before[-AROUND:], "token": text[start:stop],
        "after": _shortened(after, AROUND),
    }  # fmt: skip


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


@dataclass(frozen=True)
class ClassResults:
    """The results of a run that predicts classes.

    Args:
        evidence: The evidence of each layer, in the order of `fits`; empty if neurons are not ranked.
        controls: For each control and draw, the probe of each layer, or a single probe for all layers.
        replicates: Weights of the bootstrapped probes on raw hidden states, shape (n_replicates, n_layers, n_classes,
            d_model).
        codes: Code length of the training labels given each layer's activations; empty if not measured.
        penalty: The l2 penalty as `l2`, and how it was chosen if it was not given.
        transform: Transform of the activations, fitted on the training examples.
        predicted: For each layer the predicted class of each test token, -1 for tokens that are no examples, shape
            (n_tokens,).
        n_heads: Number of heads into which a layer's neurons divide; None if they belong to no heads.
        heads: A row per layer and head, as in `heads.csv`; empty without heads.
        extremes: The test tokens of the first neurons' highest and lowest activations, if requested.
        profiles: Further description of these neurons, as in `profiles.csv`.
        bases: A row per layer, basis and number of units, as in `bases.csv`; empty unless neurons are features.
    """

    sides: Sides
    fits: Sequence[LayerFit]
    evidence: Sequence[Evidence]
    controls: Mapping[str, Sequence[Sequence[LayerFit]]] = field(default_factory=dict)
    replicates: Tensor | None = None
    codes: Sequence[CodeLength] = ()
    penalty: Mapping[str, Any] = field(default_factory=dict)
    transform: str = "none"
    predicted: Sequence[Classes] = ()
    n_heads: int | None = None
    heads: Sequence[dict[str, Any]] = ()
    extremes: Extremes | None = None
    profiles: Sequence[Row] = ()
    bases: Sequence[dict[str, Any]] = ()

    def tables(self) -> dict[str, Sequence[Row]]:
        """Return the rows of the run's tables, by name."""
        accuracy, scores = self.accuracy(), self.class_scores()
        # Classes that are numbers of tokens, such as positions.
        are_positions = self.sides.ordinal and self.sides.test.pooling is None
        tables: dict[str, Sequence[Row]] = {
            "accuracy": accuracy,
            "neurons": self.neurons([row["flag"] for row in accuracy]),
            "class_scores": scores,
            "confusions": self.confusions(),
            "positions": positions_of(scores) if are_positions else (),
            "classes": self.neurons_by_class(),
            "heads": self.heads,
            "bases": self.bases,
            "basis": basis_table((fit.layer, layer_evidence.directions) for fit, layer_evidence in self._ranked),
        }
        return {name: rows for name, rows in tables.items() if rows}

    def accuracy(self) -> list[dict[str, Any]]:
        """Return a row per layer, as in `accuracy.csv`."""
        return [self._accuracy_row(i) for i in range(len(self.fits))]

    @property
    def _ranked(self) -> list[tuple[LayerFit, Evidence]]:
        """The probe of each layer with its evidence; empty if neurons are not ranked."""
        return list(zip(self.fits, self.evidence, strict=True)) if self.evidence else []

    def neurons(self, flags: Sequence[str]) -> list[dict[str, Any]]:
        """Return a row per layer and neuron in ranked order, as in `neurons.csv`, with the layers' accuracy flags."""
        return [
            row
            for (fit, evidence), flag in zip(self._ranked, flags, strict=True)
            for row in with_corrected(
                neuron_table(fit.layer, fit.weight, evidence, is_informative=not flag, n_heads=self.n_heads),
                evidence.ablation_effects,
            )
        ]

    def neurons_by_class(self) -> list[dict[str, Any]]:
        """Return a row per layer, class and neuron among the first of the class, as in `classes.csv`."""
        labels = self.sides.classes.tolist()
        return [
            row
            for fit, layer_evidence in self._ranked
            for row in class_rows(fit.layer, fit.weight, layer_evidence.magnitudes, labels)
        ]

    def class_scores(self) -> list[dict[str, Any]]:
        """Return a row per layer and class, as in `class_scores.csv`."""
        return [row for layer, predicted in self._predictions() for row in class_scores(self.sides, layer, predicted)]

    def confusions(self) -> list[dict[str, Any]]:
        """Return a row per layer, class and predicted class, as in `confusions.csv`."""
        return [row for layer, predicted in self._predictions() for row in confusions(self.sides, layer, predicted)]

    def _predictions(self) -> Iterator[tuple[int, Classes]]:
        return zip((fit.layer for fit in self.fits), self.predicted, strict=False)  # trials of a sweep have none

    def contributions(self) -> list[Tensor]:
        """Return the mean contribution of each neuron to each class for each layer, shape (n_classes, d_model)."""
        return [class_contributions(fit.weight, layer_evidence.magnitudes) for fit, layer_evidence in self._ranked]

    def _accuracy_row(self, i: int) -> dict[str, Any]:
        fit, train, test, n_classes = self.fits[i], self.sides.train, self.sides.test, len(self.sides.classes)
        in_majority = test.labels == int(train.counts(n_classes).argmax())
        of_majority = np.bincount(test.store.tokens.sentences[in_majority], minlength=len(fit.correct_by_sentence))
        n_tokens = test.clusters(test.tokens_by_sentence())
        low, high = accuracy_interval(test.clusters(fit.correct_by_sentence), n_tokens)
        # The majority class is guessed on the same tokens, so that the difference is paired by sentence.
        above = difference_interval(test.clusters(fit.correct_by_sentence - of_majority), n_tokens)
        row: dict[str, Any] = {
            "layer": fit.layer,
            **fit.metrics,
            "accuracy_low": low,
            "accuracy_high": high,
            "train_cross_entropy": fit.train_cross_entropy,
            **self._information(fit),
            "optimality_gap": fit.optimality_gap,
            "majority_accuracy": float(in_majority.sum() / test.n_tokens),
            "above_majority_low": above[0],
            "above_majority_high": above[1],
            "n_train_tokens": train.n_tokens,
            "n_test_tokens": test.n_tokens,
            "n_classes": n_classes,
        }
        row["flag"] = accuracy_flag(row)
        for name, draws in self.controls.items():
            row |= self._compare_with_control(name, fit, [fits[i] if len(fits) > 1 else fits[0] for fits in draws])
        if "control_task" in self.controls:
            row["selectivity"] = row["accuracy"] - row["control_task_accuracy"]
        evidence = self.evidence[i] if self.evidence else None
        if evidence and (stability := evidence.stability) is not None:
            row["bootstrap_overlap"] = stability.bootstrap_overlap
        if self.transform == "clip":
            assert isinstance(train.store, Changed)
            clip = train.store.changes[fit.layer]
            row["n_clipped"] = len(clip.clipped) if isinstance(clip, Transform) else 0
        if self.codes:
            row["online_code_bits"], row["uniform_code_bits"] = self.codes[i].online, self.codes[i].uniform
            row["compression"] = self.codes[i].compression
        row |= size_columns(self.transform, train.n_tokens, len(train.sentences()), train.store.plan.d_model)
        return row | dict(evidence.penalty_stability if evidence else {})

    def _information(self, fit: LayerFit) -> dict[str, float]:
        """Return the test cross-entropy of a constant answer, and its reduction by the probe, in nats per token."""
        test, n_classes = self.sides.test, len(self.sides.classes)
        prior = constant_cross_entropy_by_sentence(self.sides.train, test, n_classes)
        saved = prior - fit.cross_entropy_by_sentence
        low, high = mean_interval(test.clusters(saved), test.clusters(test.tokens_by_sentence()))
        return {
            "prior_cross_entropy": float(prior.sum() / test.n_tokens),
            "information": float(saved.sum() / test.n_tokens), "information_low": low, "information_high": high,
        }  # fmt: skip

    def _compare_with_control(self, name: str, fit: LayerFit, draws: Sequence[LayerFit]) -> dict[str, float]:
        """Return a control's mean accuracy over its draws, and the interval of the probe's difference to it."""
        accuracies = [draw.metrics["accuracy"] for draw in draws]
        accuracy = float(np.mean(accuracies))
        difference = fit.correct_by_sentence - np.mean([draw.correct_by_sentence for draw in draws], axis=0)
        test = self.sides.test
        interval = difference_interval(test.clusters(difference), test.clusters(test.tokens_by_sentence()))
        low, high = widened(fit.metrics["accuracy"] - accuracy, interval, accuracies)
        return {f"{name}_accuracy": accuracy, f"above_{name}_low": low, f"above_{name}_high": high}


# The results of a run, of classes or of numbers.
ProbeResults = ClassResults | NumberResults


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
    formats: Sequence[str] = USUAL,
    corpus: Corpus | None = None,
    transforms: Mapping[int, Transform] | None = None,
) -> Written:
    """Write tables, tensors, figures (in `formats`) and the configuration; `write_summary` adds the rest.

    `corpus` is the test corpus, for the contexts of the first neurons' extreme activations, None without text.
    `transforms` are by layer, if the activations were transformed or centred.
    """
    tables, sides = results.tables(), results.sides
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


def write_summary(
    folder: Path,
    results: ProbeResults,
    written: Written,
    cached: Mapping[str, Mapping[str, Any]],
    timings: Mapping[str, float],
    noted: Mapping[str, Any] | None = None,
) -> Path:
    """Write `results.json`, everything measured in a single file for programs, and return its path.

    `cached` has the model and the corpus of the activations, for the training and the test side; `timings` are in
    seconds; `noted` are further entries, such as the place of the text.
    """
    sides, key = results.sides, cached["test"]["key"]
    fits: Sequence[LayerFit | NumberFit] = results.fits
    named = {"train": sides.train, "validation": sides.validation, "test": sides.test}
    summary = {
        "versions": versions(),
        "site": key.get("site", "residual" if "model" in key else "arrays"),
        "cache": dict(cached),
        **(noted or {}),
        "classes": sides.classes.tolist(),
        **({"numbers": _numbers(results)} if isinstance(results, NumberResults) else {}),
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
            for row, fit in zip(written.tables["accuracy"], fits, strict=True)
        ],
    }
    path = folder / "results.json"
    path.write_text(json.dumps(summary, indent=2), encoding="utf-8")
    return path


def _numbers(results: NumberResults) -> dict[str, float]:
    """Return the mean of the training numbers, which is the constant answer, and their standard deviation."""
    standard = results.fits[0].standard
    return {"mean": standard.mean, "sd": standard.sd}


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
        **({"mean": json.dumps(_numbers(results)["mean"])} if isinstance(results, NumberResults) else {}),
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
