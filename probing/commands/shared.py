"""What several commands do with the options they share."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from probing.cache import ActivationStore, Request, activations
from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.errors import UserError, as_clause, out_of_range
from probing.models import ModelSource

Dtype = Literal["float32", "bfloat16", "float16"]
Layers = int | list[int] | str


# Seeds that all generators of random numbers take.
LAST_SEED = 2**63 - 1


def number_problems(seed: int, max_length: int | None, batch_tokens: int | None) -> list[str]:
    """Return what is wrong with numbers whatever the model."""
    return [
        *out_of_range("seed", seed, 0, LAST_SEED),
        *out_of_range("max_length", max_length, 1),
        *out_of_range("batch_tokens", batch_tokens, 1, LAST_SEED),
    ]


def cache_folder(cache: str | None, runs: str = "runs") -> Path:
    """Return where activations are cached: `--cache`, else $PROBING_CACHE, else `cache` among the runs.

    Raises:
        UserError: If a file is in the way.
    """
    if cache:
        return folder(cache, f"--cache {cache}")
    if variable := os.environ.get("PROBING_CACHE"):
        return folder(variable, f"PROBING_CACHE={variable}")
    return folder(Path(runs) / "cache", f"--runs {runs}")


def runs_folder(runs: str) -> Path:
    """Return the folder of runs, which hours later is to be written.

    Raises:
        UserError: If a file is in the way or it cannot be written.
    """
    path = folder(runs, f"--runs {runs}")
    there = next(part for part in (path, *path.parents) if part.exists())
    if not os.access(there, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise UserError(f"`--runs {runs}` cannot be written ({there} is read-only for you); name a folder of yours.")
    return path


def folder(path: str | Path, typed: str) -> Path:
    """Return the path of a folder that is there or can be made.

    Raises:
        UserError: If something that is no folder is in the way.
    """
    try:
        str(path).encode()  # safetensors opens no other files
    except UnicodeEncodeError:
        raise UserError(f"`{typed}` is no name in UTF-8; name another folder.") from None
    for part in (path := Path(path), *path.parents):
        try:
            if stat.S_ISDIR(part.stat().st_mode):
                return path
        except FileNotFoundError:
            continue
        except OSError as error:
            reason = as_clause(error)
        else:
            reason = f"{part} is a file"
        raise UserError(f"`{typed}` is no folder ({reason}); name another one.")
    return path


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
