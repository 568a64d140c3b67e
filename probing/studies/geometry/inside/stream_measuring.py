"""What `geometry` measures by running the model; defined here: outliers in norms and along the residual stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from probing.cache import ActivationStore
from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.errors import UserError
from probing.models import ModelSource, load_masked_lm
from probing.models.anatomy import Anatomy, examine
from probing.models.residual_stream import BlockNorm, NotFound, Site, find_norms, find_path
from probing.probes.transforms import random_neurons
from probing.readouts.later_blocks import Read
from probing.readouts.model_output import PROBE_TOKENS, draw_sentences
from probing.runtime.progress import note, stage
from probing.statistics.moments import MEAN_DEVIATIONS, deviations_of
from probing.studies.geometry.inside.changed_norms import (
    PLACES,
    change_first_row,
    change_norms,
    chosen_conditions,
    see_layers,
)
from probing.studies.geometry.inside.measuring import interventions, masked_words, position_reader, smoothing
from probing.studies.geometry.inside.parameters import find_parameters
from probing.studies.geometry.inside.stream import FIRST, groups_of, norm_means, norm_rows, path_means, path_rows

Rows = list[dict[str, Any]]
Say = Callable[[str], None]

# Number of other neurons that are followed for comparison with the outliers.
RANDOM = 10
# Approximate number of tokens over which the means of layers are taken while a row of the position table is changed.
ROW_TOKENS = 5_000


@dataclass(frozen=True)
class Subject:
    """A model whose norms and residual stream are measured, and the text that it reads.

    Args:
        source: The model's files.
        encoder: The model, in evaluation mode and float32; it is unchanged afterwards.
        tokenizer: Its tokenizer.
        store: Store whose sentences are sampled.
        corpus: The text of these sentences.
        outliers: Outliers of each layer.
        includes_special: Whether special tokens count in means of hidden states.
        is_trained: Whether the model has its trained weights; its language-model head is not used otherwise.
        n_draws: Number of draws of random neurons.
        seed: Seed of every random draw.
        say: Receives one-line messages.
    """

    source: ModelSource
    encoder: nn.Module
    tokenizer: Any
    store: ActivationStore
    corpus: Corpus
    outliers: Mapping[int, Sequence[int]]
    includes_special: bool
    is_trained: bool
    n_draws: int
    seed: int
    say: Say

    @property
    def pad_token_id(self) -> int:
        """Token id that fills a batch."""
        return self.tokenizer.pad_token_id or 0

    def counts(self, tokens: Tokens) -> NDArray[np.bool_]:
        """Return which tokens count in means of hidden states, shape (n_tokens,)."""
        return tokens.measured if self.includes_special else ~tokens.special


def norms_of(encoder: nn.Module, anatomy: Anatomy, pad_token_id: int, name: str) -> list[BlockNorm]:
    """Return the norms of a model's blocks, for `--norms`.

    Raises:
        UserError: If they cannot be told.
    """
    try:
        return find_norms(encoder, anatomy, pad_token_id)
    except NotFound as reason:
        raise UserError(_refusal("--norms", "the norms of its blocks", name, encoder, reason)) from None


def path_of(encoder: nn.Module, anatomy: Anatomy, pad_token_id: int, name: str) -> list[Site]:
    """Return the sites of a model's residual stream, for `--path`.

    Raises:
        UserError: If they cannot be told.
    """
    try:
        return find_path(encoder, anatomy, pad_token_id)
    except NotFound as reason:
        raise UserError(_refusal("--path", "the terms of its residual stream", name, encoder, reason)) from None


def _refusal(option: str, what: str, name: str, encoder: Any, reason: NotFound) -> str:
    return (
        f"`{option}`: {what} cannot be told in {name} ({encoder.config.model_type}): {reason}; "
        "leave the option out, or choose another model."
    )


def check(source: ModelSource, norms: bool, path: bool) -> None:
    """Refuse a model whose norms, or whose terms of the residual stream, cannot be told, if they are asked for.

    Raises:
        UserError: If they cannot.
    """
    from probing.models import load_encoder, load_tokenizer

    if not norms and not path:
        return
    # The trained weights are loaded even if a run uses random ones: the architecture, which decides, is the same.
    encoder, pad_token_id = load_encoder(source), load_tokenizer(source).pad_token_id or 0
    anatomy = examine(encoder, pad_token_id, source.name)
    if norms:
        norms_of(encoder, anatomy, pad_token_id, source.name)
    if path:
        path_of(encoder, anatomy, pad_token_id, source.name)


def measure_inside(folder: Path, subject: Subject, inside: Mapping[str, bool]) -> dict[str, Rows]:
    """Return the rows of the tables that are made by running the model, by name.

    Args:
        folder: The run's folder, where the terms of each sentence are written.
        subject: The model and its text.
        inside: Which of `smoothing`, `interventions`, `norms` and `path` are asked for.
    """
    of, found = subject, dict[str, Rows]()
    if inside["smoothing"]:
        with stage("bound of smoothing"):
            found["smoothing"] = smoothing(folder, of.source.name, of.encoder, of.tokenizer, of.store, of.seed, of.say)
    if inside["interventions"]:
        with stage("interventions on outliers"):
            found["interventions"] = interventions(
                of.source, of.encoder, of.tokenizer, of.store, of.corpus, of.outliers, of.is_trained,
                of.n_draws, of.seed, of.say,
            )  # fmt: skip
    if inside["norms"]:
        with stage("terms of the norms"):
            found["norms"], found["norm_changes"] = measure_norms(subject)
    if inside["path"]:
        with stage("path of outliers through the blocks"):
            found["path"], found["first_row"] = measure_path(subject), measure_first_row(subject)
    return found


def measure_norms(subject: Subject) -> tuple[Rows, Rows]:
    """Measure the terms of outliers in norms, and what is left when outliers have average gains and biases.

    Returns:
        Rows of `norms.csv` and of `norm_changes.csv`; empty if there are no outliers, or too many.

    Raises:
        UserError: If the norms cannot be told, or there are too few sentences for a position probe.
    """
    outliers = {layer: list(those) for layer, those in subject.outliers.items() if layer and those}
    named = sorted({neuron for those in outliers.values() for neuron in those})
    if not named:
        subject.say("--norms: no outlier dimension was found above the embeddings, so there is none to split")
        return [], []
    source, encoder = subject.source, subject.encoder
    has_mask = subject.is_trained and subject.tokenizer.mask_token_id is not None
    model = load_masked_lm(source) if has_mask else None
    if model is not None:
        encoder = model.base_model  # type: ignore[assignment]
    anatomy = examine(encoder, subject.pad_token_id)
    norms = norms_of(encoder, anatomy, subject.pad_token_id, source.name)
    d_model = len(norms[0].norm.gain)
    if 2 * len(named) > d_model:
        subject.say(f"--norms does not apply: the {len(named)} outliers are more than half of the neurons")
        return [], []
    tokens, kept = draw_sentences(subject.store.tokens, PROBE_TOKENS, subject.seed)
    counts = subject.counts(tokens)
    means = norm_means(encoder, anatomy, norms, tokens, counts, subject.pad_token_id)
    terms = norm_rows(means, named, _others(d_model, named, subject.seed))
    intact = see_layers(encoder, anatomy, tokens, counts, subject.pad_token_id)
    position = position_reader(
        lambda: intact.last, tokens, subject.corpus.subset(kept), "--norms", source.name, subject.seed
    )
    words = masked_words(source, model, encoder, subject.tokenizer, subject.store, subject.seed, subject.say)

    def read() -> tuple[Read, NDArray[np.float64]]:
        seen = see_layers(encoder, anatomy, tokens, counts, subject.pad_token_id)
        reads = [position.of(seen.last), *(words([()]) if words else [])]
        sums, n_tokens = ({k: v for one in reads for k, v in part(one).items()} for part in _PARTS)
        return Read(sums, n_tokens), seen.deviations

    modules = {n: [encoder.get_submodule(one.name) for one in norms if one.number == n] for n in PLACES["both"]}
    chosen = chosen_conditions(named, d_model, subject.n_draws, subject.seed)
    changes = change_norms(modules, outliers, chosen, read, int(counts.sum()), note)
    return terms, changes


_PARTS: tuple[Callable[[Read], dict[str, Any]], ...] = (lambda read: read.sums, lambda read: read.n_tokens)


def measure_path(subject: Subject) -> Rows:
    """Follow the outliers of layers and of the position table's first row along the residual stream.

    Returns:
        Rows of `path.csv`; empty if there are no outliers.

    Raises:
        UserError: If the terms of the residual stream cannot be told.
    """
    encoder, pad_token_id = subject.encoder, subject.pad_token_id
    anatomy = examine(encoder, pad_token_id)
    sites = path_of(encoder, anatomy, pad_token_id, subject.source.name)
    tokens, _ = draw_sentences(subject.store.tokens, PROBE_TOKENS, subject.seed)
    groups = groups_of(tokens)
    means = path_means(encoder, anatomy, sites, tokens, groups, pad_token_id)
    kinds = _kinds(sites, means[FIRST], subject.outliers)
    if not kinds:
        subject.say("--path: neither the first position nor any layer has an outlier to follow")
        return []
    others = _others(means[FIRST].shape[1], list(kinds), subject.seed)
    return path_rows(sites, means, groups, {**kinds, **dict.fromkeys(others, "random")})


def measure_first_row(subject: Subject) -> Rows:
    """Measure which outliers of layers are left after the position table's first row loses its outliers.

    Returns:
        Rows of `first_row.csv`; empty if there are no outliers, too many of them, or no table of positions.
    """
    outliers = {layer: list(those) for layer, those in subject.outliers.items() if layer and those}
    named = {neuron for those in outliers.values() for neuron in those}
    encoder, pad_token_id = subject.encoder, subject.pad_token_id
    anatomy = examine(encoder, pad_token_id)
    parameters, table = find_parameters(encoder, anatomy), anatomy.position_table
    if not named or table is None or parameters.position_table is None:
        return []
    if 2 * len(named) > parameters.position_table.shape[1]:
        return []
    tokens, _ = draw_sentences(subject.store.tokens, ROW_TOKENS, subject.seed)
    counts = subject.counts(tokens)
    return change_first_row(
        table, parameters.first_row, outliers,
        lambda: see_layers(encoder, anatomy, tokens, counts, pad_token_id).deviations,
        subject.n_draws, subject.seed, int(counts.sum()), note,
    )  # fmt: skip


def _kinds(sites: Sequence[Site], first: NDArray[np.float64], outliers: Mapping[int, Sequence[int]]) -> dict[int, str]:
    """Return the neurons that are followed, ascending, each with what it is an outlier of."""
    rows = [first[i] for i, site in enumerate(sites) if site.name == "position"]
    of_row = {int(k) for row in rows for k in np.flatnonzero(np.abs(deviations_of(row)) > MEAN_DEVIATIONS)}
    of_layers = {neuron for those in outliers.values() for neuron in those}
    both = {(True, True): "both", (True, False): "first_row", (False, True): "layers"}
    return {k: both[k in of_row, k in of_layers] for k in sorted(of_row | of_layers)}


def _others(d_model: int, named: Sequence[int], seed: int) -> list[int]:
    """Draw neurons that are no outliers, ascending."""
    n = min(RANDOM, d_model - len(named))
    return random_neurons(d_model, n, named, np.random.default_rng([seed, 3]))
