"""The measurements of `geometry` that run the model itself: `--smoothing_bound` and `--interventions`."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from probing.cache import ActivationStore
from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.errors import UserError
from probing.models import ModelSource, load_masked_lm
from probing.models.anatomy import examine
from probing.models.residual_stream import NotPostNorm, find_blocks
from probing.readouts.later_blocks import conditions, intervene
from probing.readouts.model_output import (
    MLM_TOKENS,
    PROBE_TOKENS,
    MaskedWords,
    Position,
    choose_masked,
    draw_sentences,
    last_hidden_states,
)
from probing.runtime.progress import counted, note
from probing.studies.geometry.inside.parameters import find_parameters
from probing.studies.geometry.inside.smoothing_bound import Summary, constants, measure
from probing.studies.geometry.schema import SMOOTHING_SENTENCES
from probing.tasks import load_task

Say = Callable[[str], None]


def smoothing(
    folder: Path, name: str, encoder: nn.Module, tokenizer: Any, store: ActivationStore, seed: int, say: Say,
) -> list[dict[str, Any]]:  # fmt: skip
    """Measure Theorem 2 of Shi et al. on every sentence, and write the terms of each to `smoothing_sentences.csv`.

    Args:
        folder: The run's folder.
        name: Name of the model, for messages.
        encoder: The model, in evaluation mode and float32; it keeps the plain implementation of attention afterwards.
        tokenizer: Its tokenizer.
        store: Store with the sentences and their division into shards.
        seed: Seed of the resampled sentences.
        say: Receives one-line messages.

    Returns:
        Rows of `smoothing.csv`; empty if the theorem does not apply to the model.
    """
    pad_token_id = tokenizer.pad_token_id or 0
    anatomy = examine(encoder, pad_token_id)
    try:
        blocks = find_blocks(encoder, anatomy, pad_token_id)
    except NotPostNorm as reason:
        say(f"--smoothing_bound does not apply to {name}: the theorem is about post-LN blocks, and {reason}")
        return []
    if not blocks:
        say(f"--smoothing_bound does not apply to {name}: it has no blocks")
        return []
    of_blocks = [constants(block) for block in blocks]
    summary, n_shards = Summary(of_blocks, seed), len(store.plan.shards)
    with (folder / "smoothing_sentences.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*SMOOTHING_SENTENCES.types], lineterminator="\n")
        writer.writeheader()
        measured = measure(
            encoder, blocks, of_blocks, store.tokens, store.plan, pad_token_id, anatomy.padding_is_neutral
        )
        with counted("", n_shards) as advance:
            for sentences in measured:
                summary.update(sentences)
                writer.writerows(sentences.rows())
                advance(1)
    return summary.rows()


def interventions(
    source: ModelSource, encoder: nn.Module, tokenizer: Any, store: ActivationStore, corpus: Corpus,
    outliers: Mapping[int, Sequence[int]], trained: bool, n_draws: int, seed: int, say: Say,
) -> list[dict[str, Any]]:  # fmt: skip
    """Measure the model's output without its outliers, zeroed inside it and clipped after it.

    Args:
        source: The model's files.
        encoder: The model, in evaluation mode and float32; it is unchanged afterwards.
        tokenizer: Its tokenizer.
        store: Store whose sentences are sampled.
        corpus: The text of these sentences.
        outliers: Outliers of each layer; all of them but those of the embeddings are removed.
        trained: Whether the model has its trained weights; its language-model head is not used otherwise.
        n_draws: Number of draws of random neurons.
        seed: Seed of every random draw.
        say: Receives one-line messages.

    Returns:
        Rows of `interventions.csv`; empty if there is nothing to remove.

    Raises:
        UserError: If there are too few sentences for a position probe, where one is needed.
    """
    neurons = sorted({neuron for layer, named in outliers.items() if layer for neuron in named})
    if not neurons:
        say("--interventions: no outlier dimension was found above the embeddings, so none is removed")
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
            + (
                "no norm produces or reads the output of its blocks"
                if not norms
                else f"the {len(neurons)} outliers are more than half of its neurons"
            )
        )
        return []
    modules = [encoder.get_submodule(norm.module) for norm in norms]
    gains = np.mean([norm.gain.abs().double().numpy() for norm in norms], axis=0)
    chosen = conditions(neurons, gains, n_draws, seed)
    reader: MaskedWords | Position | None = masked_words(source, model, encoder, tokenizer, store, seed, say)
    if reader is None:
        tokens, kept = draw_sentences(store.tokens, PROBE_TOKENS, seed)
        reader = position_reader(
            lambda: last_hidden_states(encoder, anatomy, tokens, pad_token_id), tokens, corpus.subset(kept),
            "--interventions", source.name, seed,
        )  # fmt: skip
    return intervene(modules, chosen, reader, note)


def masked_words(
    source: ModelSource,
    model: nn.Module | None,
    encoder: nn.Module,
    tokenizer: Any,
    store: ActivationStore,
    seed: int,
    say: Say,
) -> MaskedWords | None:
    """Return what measures the loss of masked words; None if the model has no head for it, or one that is not used.

    Args:
        source: The model's files.
        model: The model with its head; None if it has none.
        encoder: The part of the model that returns hidden states.
        tokenizer: Its tokenizer.
        store: Store whose sentences are sampled.
        seed: Seed of the sentences and of the tokens that are masked.
        say: Receives a line if the head is not used.
    """
    if model is None:
        return None
    pad_token_id = tokenizer.pad_token_id or 0
    tokens, _ = draw_sentences(store.tokens, MLM_TOKENS, seed)
    try:
        return MaskedWords(
            model, encoder, tokens, choose_masked(tokens, seed), tokenizer.mask_token_id, pad_token_id,
            examine(encoder, pad_token_id).padding_is_neutral,
        )  # fmt: skip
    except ValueError as reason:
        say(f"the masked-language-model head of {source.name} is not used: {reason}")
        return None


def position_reader(
    states_of: Callable[[], Tensor], tokens: Tokens, corpus: Corpus, option: str, name: str, seed: int
) -> Position:
    """Return what measures the accuracy of positions; the model must be intact.

    Args:
        states_of: Returns the last hidden states of the model in its present state, shape (n_tokens, d_model).
        tokens: The token table of the sentences.
        corpus: The text of the sentences.
        option: The option that asks for it, for a message.
        name: Name of the model, for a message.
        seed: Seed of the split and of the probes.

    Raises:
        UserError: If there are too few sentences for a probe.
    """
    try:
        return Position(states_of, tokens, corpus, load_task("position", {}), seed)
    except UserError:
        raise UserError(
            f"`{option}`: {tokens.n_sentences} sentences are too few for the position probe that measures {name}; "
            "give more, or leave the option out."
        ) from None
