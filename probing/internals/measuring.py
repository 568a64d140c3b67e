"""What `geometry` needs the inside of a model for: `--smoothing_bound` and `--interventions`."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from probing.cache import ActivationStore
from probing.corpus import Corpus
from probing.errors import UserError
from probing.internals.interventions import conditions, intervene
from probing.internals.parameters import find_parameters
from probing.internals.readouts import (
    MLM_TOKENS,
    PROBE_TOKENS,
    MaskedWords,
    Position,
    choose_masked,
    draw_sentences,
    last_hidden_states,
)
from probing.internals.smoothing_bound import BY_SENTENCE, Summary, constants, measure
from probing.models import ModelSource, load_masked_lm
from probing.models.anatomy import examine
from probing.models.post_norm import NotPostNorm, find_blocks
from probing.tasks import load_task

Say = Callable[[str], None]


def smoothing(
    folder: Path, name: str, encoder: nn.Module, tokenizer: Any, store: ActivationStore, seed: int, say: Say,
    progress: Say,
) -> list[dict[str, Any]]:  # fmt: skip
    """Measure Theorem 2 of Shi et al. on every sentence, each with its terms into `smoothing_sentences.csv`.

    Args:
        folder: Of the run.
        name: Of the model, for messages.
        encoder: The model, in evaluation mode and float32; attention is computed in the plain way from here on.
        tokenizer: Its tokenizer.
        store: Which sentences, and how they are divided.
        seed: Of redrawn sentences.
        say: Takes one-line messages.
        progress: Takes a line for each shard.

    Returns:
        Rows of `smoothing.csv`; none where the theorem does not apply to the model.
    """
    pad_token_id = tokenizer.pad_token_id or 0
    anatomy = examine(encoder, pad_token_id)
    try:
        blocks = find_blocks(encoder, anatomy, pad_token_id)
    except NotPostNorm as reason:
        say(f"--smoothing_bound does not apply to {name}: it is about post-LN blocks, and {reason}")
        return []
    if not blocks:
        say(f"--smoothing_bound does not apply to {name}: it has no blocks")
        return []
    of_blocks = [constants(block) for block in blocks]
    summary, n_shards = Summary(of_blocks, seed), len(store.plan.shards)
    with (folder / "smoothing_sentences.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ("sentence", "layer", "n_tokens", *BY_SENTENCE), lineterminator="\n")
        writer.writeheader()
        measured = measure(
            encoder, blocks, of_blocks, store.tokens, store.plan, pad_token_id, anatomy.padding_is_neutral
        )
        for number, sentences in enumerate(measured, start=1):
            summary.update(sentences)
            writer.writerows(sentences.rows())
            progress(f"smoothing bound: shard {number} of {n_shards}")
    return summary.rows()


def interventions(
    source: ModelSource, encoder: nn.Module, tokenizer: Any, store: ActivationStore, corpus: Corpus,
    outliers: Mapping[int, Sequence[int]], trained: bool, n_draws: int, seed: int, say: Say, progress: Say,
) -> list[dict[str, Any]]:  # fmt: skip
    """Measure what the model says without its outliers, zeroed inside it and clipped after it.

    Args:
        source: The model's files.
        encoder: The model, in evaluation mode and float32; it is the same afterwards.
        tokenizer: Its tokenizer.
        store: Whose sentences are drawn from.
        corpus: Their text.
        outliers: The neurons of each layer that are outliers; what is zeroed is all of them but the embeddings'.
        trained: Whether the weights are the trained ones, without which no head means anything.
        n_draws: How many times random neurons are drawn.
        seed: Of all that is drawn.
        say: Takes one-line messages.
        progress: Takes a line for each pass.

    Returns:
        Rows of `interventions.csv`; none where there is nothing to take out.

    Raises:
        UserError: If there are too few sentences for a position probe, where one is needed.
    """
    neurons = sorted({neuron for layer, named in outliers.items() if layer for neuron in named})
    if not neurons:
        say("--interventions: no outlier dimension was found above the embeddings, so that none is taken out")
        return []
    pad_token_id = tokenizer.pad_token_id or 0
    model = load_masked_lm(source) if trained and tokenizer.mask_token_id is not None else None
    if model is not None:
        encoder = model.base_model  # type: ignore[assignment]
    anatomy = examine(encoder, pad_token_id)
    norms = find_parameters(encoder, anatomy).output_norms
    if not norms or 2 * len(neurons) > len(norms[0].gain):
        say(
            f"--interventions does not apply to {source.name}: "
            + ("no norm makes or reads what its blocks hand out" if not norms else f"{len(neurons)} outliers are most")
        )
        return []
    modules = [encoder.get_submodule(norm.module) for norm in norms]
    gains = np.mean([norm.gain.abs().double().numpy() for norm in norms], axis=0)
    chosen = conditions(neurons, gains, n_draws, seed)
    reader: MaskedWords | Position | None = None
    if model is not None:
        tokens, _ = draw_sentences(store.tokens, MLM_TOKENS, seed)
        try:
            reader = MaskedWords(
                model, encoder, tokens, choose_masked(tokens, seed), tokenizer.mask_token_id, pad_token_id,
                anatomy.padding_is_neutral,
            )  # fmt: skip
        except ValueError as reason:
            say(f"the masked-language-model head of {source.name} is left out: {reason}")
    if reader is None:
        tokens, kept = draw_sentences(store.tokens, PROBE_TOKENS, seed)
        try:
            reader = Position(
                lambda: last_hidden_states(encoder, anatomy, tokens, pad_token_id), tokens, corpus.subset(kept),
                load_task("position", {}), seed,
            )  # fmt: skip
        except UserError:
            raise UserError(
                f"`--interventions`: {tokens.n_sentences} sentences are too few for a probe of position, by which "
                f"{source.name} is read; give more, or leave the option out."
            ) from None
    return intervene(modules, chosen, reader, lambda what: progress(f"interventions: {what}"))
