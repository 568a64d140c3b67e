"""The activations of several corpora by one model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from probing.cache import ActivationStore, Request, activations
from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.models import ModelSource


def extract_all(
    source: ModelSource,
    corpora: Sequence[Corpus],
    layers: Sequence[int],
    cache: Path,
    trainer: Mapping[str, Any],
    say: Callable[[str], None],
    progress: bool,
    checks: Sequence[Callable[[Tokens], None]] = (),
    **options: Any,
) -> list[ActivationStore]:
    """Return the activations of each corpus.

    Args:
        source: The model.
        corpora: What is read.
        layers: Ascending layer numbers.
        cache: The cache folder.
        trainer: Lightning's Trainer arguments.
        say: Takes one-line messages.
        progress: Whether to show a bar.
        checks: For each corpus, what refuses its tokens before the model reads them.
        options: Further fields of `probing.cache.Request`.
    """
    from probing.runtime.terminal import extraction_progress

    stores = []
    for corpus, check in zip(corpora, checks or [lambda tokens: None] * len(corpora), strict=True):
        request = Request(source, corpus, layers, **options)
        stores.append(activations(request, cache, trainer, say, [extraction_progress()] if progress else [], check))
    return stores


def say_what_was_left_out(
    corpora: Sequence[Corpus], stores: Sequence[ActivationStore], say: Callable[[str], None]
) -> None:
    """Say how many sentences were repeated, and how many were cut."""
    for corpus, store in zip(corpora, stores, strict=True):
        if corpus.n_repeated:
            say(f"{corpus.name}: {corpus.n_repeated} repeated sentences were left out")
        if n_truncated := store.tokens.n_truncated:
            say(f"{corpus.name}: {n_truncated} sentences were longer than the model takes and were cut")
