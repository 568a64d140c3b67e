"""Finished runs reopened: their model, corpus and activations, and the measurements that need these."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from probing.activations import ActivationStore, is_cached
from probing.activations.source import ActivationSource, report_dropped_text
from probing.cli.options import ProbeOptions, as_options
from probing.data.examples import Examples, Sides, sum_over_spans
from probing.data.labelling import label as label_tokens
from probing.errors import RunError, UserError
from probing.models import (
    PREFIX,
    ModelSource,
    folder_in,
    layers_at_equal_depth,
    layout_at,
    length_limits,
    load_config,
    load_tokenizer,
    site_in_names,
    site_of,
)
from probing.models.sites import load_dictionary
from probing.probes.agreement import RotationNull, rotation_null
from probing.probes.pairs import Method, Ranked, Readings, RunPair, compare_pair, cross_moments, rank_on_clusters
from probing.probes.rankings import null_rankings
from probing.probes.solvers import Penalty
from probing.probes.training import Training, training_of
from probing.probes.transforms import transformed, with_constant
from probing.results import count, layers_named, listed
from probing.runs.checks import leaves_out_first, read_transforms, reads_transformed
from probing.runs.places import RunRecord, Say, model_of, places_of, task_of, texts_of_runs
from probing.runtime.progress import stage
from probing.tables import has_intercept
from probing.text import Corpus, Split
from probing.text.tasks import Labels, label_name
from probing.text.tokens import LONGEST, tokenize

if TYPE_CHECKING:
    from probing.runs.run import Run


def site_read(run: RunRecord) -> dict[str, Any]:
    """Return a run's site, and the selected features of a dictionary, as arguments of `ActivationSource`."""
    if (dictionary_path := folder_in(run.config)) is None:
        return {"site": site_of(run.config)}
    cached = run.results["cache"]["test"]
    expected, features = cached["key"]["site"], (cached.get("site") or {}).get("kept")
    layers = [row["layer"] for row in run.results["layers"]]
    places = places_of(run, "site", dictionary_path)
    for place in filter(os.path.isdir, places):
        site = PREFIX + place
        dictionary = load_dictionary(layout_at(site, layers, str(run.config["model"]), max(layers)))
        if PREFIX + dictionary.fingerprint == expected:
            return {"site": site, "selected_features": None if features is None else tuple(features)}
    raise UserError(
        f"`{run.folder}`: its dictionary {dictionary_path} is not there any more, or has changed; it was looked for at "
        f"{listed(places)}; put it at one of these places."
    )


def source_of_run(
    run: RunRecord, model: ModelSource, layers: Sequence[int], cache: Path, say: Say, trainer: Mapping[str, Any]
) -> ActivationSource:
    """Return the source that reads the hidden states of a run's model with the settings of the run."""
    config = run.config
    return ActivationSource(
        model, layers, cache, config["dtype"], config["max_length"], config["batch_tokens"],
        config["seed"] if config["random_weights"] else None, None, trainer, say,
        without_first=leaves_out_first(config), **site_read(run),
    )  # fmt: skip


# Trainer options that say where a run was computed; they do not change how far its probes were trained.
WHERE_TO_TRAIN = {
    "accelerator", "devices", "num_nodes", "strategy", "enable_progress_bar", "enable_checkpointing", "max_time",
}  # fmt: skip


@dataclass(frozen=True)
class Finished:
    """A finished run reopened.

    Args:
        label: Name of the run in tables and figures, unique within a comparison.
        source: Files of the run's model.
        corpora: The corpus, and the test corpus if there is one.
        splits: Split of each sentence, for each corpus.
    """

    run: Run
    label: str
    source: ModelSource
    corpora: Sequence[Corpus]
    splits: Sequence[Sequence[Split]]


def open_runs(
    runs: Sequence[Run], matching: str, given: Sequence[Any] = (), names: Sequence[str] | None = None
) -> list[Finished]:
    """Reopen finished runs, whose texts and models may have moved, to match their neurons by `matching`.

    Each of `given`, texts that have moved, is used for every text of a run with the same content. `names` are those of
    the runs, in their order.

    Raises:
        UserError: If a model or a corpus is gone or has changed, a given text belongs to no run, two runs have no
            layers of the same relative depth, or matching by index meets different sites or widths.
    """
    sources = [model_of(run) for run in runs]
    sites = {run.folder.name: site_of(run.config) for run in runs}
    if matching == "index" and len(set(sites.values())) > 1:
        listing = ", ".join(f"{name} has `--site {site}`" for name, site in sites.items())
        raise UserError(
            f"`--matching index`: neurons are matched by index only at the same site, and {listing}; use correlation."
        )
    widths = {source.name: width_of(run) for run, source in zip(runs, sources, strict=True)}
    if matching == "index" and len(set(widths.values())) > 1:
        listing = ", ".join(f"{name} has {width}" for name, width in widths.items())
        raise UserError(
            f"`--matching index`: neurons are matched by index only between equal widths, and {listing}; use "
            "correlation."
        )
    _check_depths(runs, sources)
    labels, texts = list(names or _labels(runs, sources)), texts_of_runs(runs, given)
    # The runs themselves have reported the repeated sentences of their corpora.
    return [
        Finished(run, label, source, [replace(corpus, n_repeated=0) for corpus in text.corpora], text.splits)
        for run, label, source, text in zip(runs, labels, sources, texts, strict=True)
    ]


def _check_depths(runs: Sequence[Run], sources: Sequence[ModelSource]) -> None:
    """Raise `UserError` if two runs have no layers at the same relative depth."""
    blocks = [load_config(source).num_hidden_layers for source in sources] if len(runs) > 1 else []
    for first, other in itertools.combinations(zip(runs, blocks, strict=False), 2):
        if not layers_at_equal_depth(first[0].layers, other[0].layers, (first[1], other[1])):
            listing = " and ".join(
                f"`{run.folder}` has {layers_named(run.layers)} of {count(n, 'block')}" for run, n in (first, other)
            )
            raise UserError(
                f"`compare`: {listing}; expected a layer of each at the same relative depth, because rankings of other "
                "layers differ in one model, too. Fit both with such layers, as `--layer all` does."
            )


def _labels(runs: Sequence[Run], sources: Sequence[ModelSource]) -> list[str]:
    """Name each run by model and site (unless residual), with its task if names are equal, else by folder or path."""
    sites = [site_of(run.config) for run in runs]
    of_models = [f"{source.short_name}{site_in_names(site)}" for source, site in zip(sources, sites, strict=True)]
    with_tasks = [f"{name} {label_name(run.config)}" for name, run in zip(of_models, runs, strict=True)]
    of_folders = [run.folder.name for run in runs]
    names = next((names for names in (of_models, with_tasks, of_folders) if len(set(names)) == len(names)), None)
    return names or [str(run.folder) for run in runs]


class RunExtraction:
    """Reader of corpora with the models of runs, each corpus with each model only once."""

    def __init__(self, cache: Path, trainer: Mapping[str, Any], say: Say, only_cached: bool = False) -> None:
        self.cache, self.trainer, self.say, self.only_cached = cache, trainer, say, only_cached
        self._readings: dict[tuple[Path, str], Readings] = {}
        self._stores: dict[tuple[Path, str], ActivationStore] = {}

    def store(self, finished: Finished, corpus: Corpus) -> ActivationStore:
        """Return the activations of a corpus by a run's model, in the run's layers."""
        key = finished.run.folder, corpus.fingerprint
        if key in self._stores:
            return self._stores[key]
        reads = source_of_run(finished.run, finished.source, finished.run.layers, self.cache, self.say, self.trainer)
        if self.only_cached and not is_cached(reads.request(corpus), self.cache):
            raise UserError(
                f"`{finished.run.folder}`: its hidden states are no longer in the cache {self.cache}; `extract` with "
                "the options of the run, or the run once more, puts them there."
            )
        (store,) = reads.read([corpus])
        report_dropped_text([corpus], [store.tokens], self.say)
        self._stores[key] = store
        return store

    def readings(self, finished: Finished, corpus: Corpus) -> Readings:
        """Return the readings of a corpus by a run's model, in the run's layers."""
        key = finished.run.folder, corpus.fingerprint
        if key not in self._readings:
            self._readings[key] = self._read(finished, corpus)
        return self._readings[key]

    def _read(self, finished: Finished, corpus: Corpus) -> Readings:
        source, config, layers = finished.source, finished.run.config, finished.run.layers
        store = self.store(finished, corpus)
        if corpus.words is not None:
            return Readings(store, store.tokens, layers)
        # Tokenizers split running text into different words; words between blanks are the same for all of them.
        tokenizer = load_tokenizer(source)
        longest = config["max_length"] or min(length_limits(source, tokenizer)[1], LONGEST)
        tokens = tokenize(tokenizer, corpus.sentences, longest, [text.split() for text in corpus.sentences])
        return Readings(store, tokens, layers)


def width_of(run: Run) -> int:
    """Return the number of neurons of each of a run's layers."""
    first = run.accuracy[0]["layer"]
    return sum(row["layer"] == first for row in run.neurons)


def penalty_of(run: Run) -> Penalty:
    """Return the penalty of a run's probes, automatically chosen or configured."""
    options = run.config["probe"]
    return Penalty(options["l1"], run.results["penalty"]["l2"] if options["l2"] == "auto" else options["l2"])


def trained_as(run: Run, trainer: Mapping[str, Any] | None = None) -> Training:
    """Return the training options of a run's probes, with other arguments of Lightning's Trainer."""
    probe = as_options(ProbeOptions, run.config["probe"], "probe")
    return training_of(probe, penalty_of(run).l2, run.config["seed"], trainer)


def sides_of(finished: Finished, extract: RunExtraction) -> Sides:
    """Return the examples of a run, labelled and transformed as for the training of its probes."""
    run = finished.run
    task = task_of(run)
    classes: Labels = np.array(run.results["classes"], dtype=np.int64 if task.ordinal else object)

    tested_over = run.results["intervals_over"]["unit"]

    def examples(side: Split, part: int) -> Examples:
        store, corpus = extract.store(finished, finished.corpora[part]), finished.corpora[part]
        by_document = (tested_over if part else run.split_by) == "document"
        return label_tokens(store, corpus, task, finished.splits[part], classes, side, by_document)

    with stage(f"hidden states of {layers_named(run.layers)}"):
        sides = Sides(examples("train", 0), examples("validation", 0), examples("test", -1), classes, task.ordinal)
    if not reads_transformed(run.config):
        return sides
    return transformed(sides, read_transforms(run.folder, run.layers, width_of(run)))


def check_contributions(run: Run, layer: int, contribution: Sequence[float] | NDArray[np.float64]) -> None:
    """Raise `RunError` unless a layer's recomputed contributions equal the run's."""
    stored = {row["neuron"]: row["contribution"] for row in run.neurons if row["layer"] == layer}
    # Of pairs of spans, contributions are of columns, or sums over the columns of a neuron.
    of_columns = np.array([stored[n] for n in range(len(stored))]).reshape(-1, len(contribution))
    if not np.allclose(of_columns.sum(0), contribution, rtol=1e-3, atol=1e-6):
        raise RunError(f"{run.folder}: the contributions of layer {layer} are not those of its probe; repeat the run")


def ranked_of(finished: Finished, extract: RunExtraction, seed: int) -> Ranked:
    """Rank a run's neurons again from its probe, with the sentences or documents of its test part as clusters."""
    test = sides_of(finished, extract).test
    ranked = rank_on_clusters(finished.label, finished.run.weight, test, finished.run.layers, seed)
    for i, layer in enumerate(ranked.layers):
        check_contributions(finished.run, layer, ranked.scores[i])
    return replace(ranked, no_signal=_no_signal(finished.run, ranked.scores.shape))


def _no_signal(run: Run, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return the run's flags `no-signal`, shape (n_layers, d_model); of pairs of spans, those of both spans."""
    flagged, layer_index = np.ones(shape, dtype=bool), {layer: i for i, layer in enumerate(run.layers)}
    for row in run.neurons:
        flagged[layer_index[row["layer"]], row["neuron"] % shape[1]] &= "no-signal" in row["flag"]
    return flagged


def with_shuffled(finished: Finished, ranked: Ranked, extract: RunExtraction, n_draws: int, seed: int) -> Ranked:
    """Return a run's ranking with null rankings, by probes of shuffled labels that are trained as the run's probes."""
    run, layers = finished.run, ranked.layers
    passes = {name: value for name, value in run.config["trainer"].items() if name not in WHERE_TO_TRAIN}

    training = trained_as(run, {**passes, **extract.trainer})
    sides = sides_of(finished, extract)
    d_model = sides.train.store.plan.d_model
    if has_intercept(run.config):
        sides, _ = with_constant(sides, {})
    shuffled = null_rankings(sides, layers, training, n_draws, seed)[..., :d_model]
    return replace(ranked, shuffled=sum_over_spans(torch.from_numpy(shuffled), sides.train.store).numpy())


def pairs_of(
    finished: Sequence[Finished],
    ranked: Sequence[Ranked],
    extract: RunExtraction,
    matching: str,
    assignment: Method,
    top: int,
    seed: int,
) -> dict[tuple[int, int], RunPair]:
    """Compare every run with every later run; neurons are matched on the corpus of the earlier run."""

    @cache
    def rotation_null_of(j: int) -> RotationNull:
        test = sides_of(finished[j], extract).test
        return rotation_null(finished[j].run.weight, test, ranked[j].layers, seed)

    pairs = {}
    for i, j in itertools.combinations(range(len(finished)), 2):
        corpus = finished[i].corpora[0]
        moments = cross_moments(*(extract.readings(finished[at], corpus) for at in (i, j)))
        how = _matching_of(matching, finished[i].run, finished[j].run)
        chance = rotation_null_of(j) if how == "correlation" else None
        pairs[i, j] = compare_pair(ranked[i], ranked[j], moments, how, assignment, top, seed, chance)
        if how == "index" and not pairs[i, j].related:
            extract.say(
                f"{ranked[i].label} and {ranked[j].label}: neurons of the same index correlate no more than any two "
                "neurons do, so these models hardly share a lineage and neuron i of one is not neuron i of the other; "
                "`--matching correlation` finds corresponding neurons"
            )
    return pairs


def by_index(finished: Sequence[Finished], matching: str) -> list[int]:
    """Return the indices of the runs whose neurons are matched by index with another run's."""
    pairs = itertools.combinations(range(len(finished)), 2)
    matched = [(i, j) for i, j in pairs if _matching_of(matching, finished[i].run, finished[j].run) == "index"]
    return sorted({i for pair in matched for i in pair})


def _matching_of(matching: str, a: Run, b: Run) -> Literal["index", "correlation"]:
    """Return the matching of two runs; `auto` is by index if both runs read the same site of the same model."""
    keys = [run.results["cache"]["test"]["key"] for run in (a, b)]
    is_same = all(keys[0].get(name) == keys[1].get(name) for name in ("model", "random_weights_seed", "site"))
    return "index" if matching == "index" or (matching == "auto" and is_same) else "correlation"
