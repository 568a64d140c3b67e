"""What several commands do with the options they share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from probing.cache import ActivationStore, Request, activations
from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.models import ModelSource

Dtype = Literal["float32", "bfloat16", "float16"]
Layers = int | list[int] | str


def cache_folder(cache: str | None, runs: str = "runs") -> Path:
    """Return where activations are cached: `--cache`, else $PROBING_CACHE, else `cache` among the runs."""
    return Path(cache or os.environ.get("PROBING_CACHE") or Path(runs) / "cache")


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
    """Return the activations of each corpus, and say what was truncated or repeated.

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
    from probing.terminal import extraction_progress

    stores = []
    for corpus, check in zip(corpora, checks or [lambda tokens: None] * len(corpora), strict=True):
        request = Request(source, corpus, layers, **options)
        store = activations(request, cache, trainer, say, [extraction_progress()] if progress else [], check)
        if corpus.n_repeated:
            say(f"{corpus.name}: {corpus.n_repeated} repeated sentences were left out")
        if n_truncated := store.tokens.n_truncated:
            say(f"{corpus.name}: {n_truncated} sentences were longer than the model takes and were cut")
        stores.append(store)
    return stores
