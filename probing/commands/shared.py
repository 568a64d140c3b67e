"""What several commands do with the options they share."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from inspect import signature
from pathlib import Path
from typing import Any, Literal

from probing.cache import ActivationStore, Request, activations
from probing.cache.tokens import Tokens
from probing.corpus import Corpus, Split, assign_splits, hold_out, load_corpus
from probing.errors import UserError, as_clause, out_of_range
from probing.interrupts import interrupt_behind
from probing.models import ModelSource
from probing.options import WandbOptions
from probing.runs import RunFolder, check_name
from probing.tracking import Tracker

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
    return writable_folder(runs, f"--runs {runs}", "name a folder of yours")


def places(cache: str | None, runs: str, name: str | None) -> tuple[Path, Path]:
    """Return the folders of the cache and of runs, where a run of that name can be made.

    Raises:
        UserError: If one is no folder, runs cannot be written, or the name is taken or no plain one.
    """
    cached, place = cache_folder(cache, runs), runs_folder(runs)
    if name is not None:
        check_name(place, name)
    return cached, place


def say_where(folder: Path, where: str | None) -> None:
    """Print where results are, as every command that makes some ends.

    Args:
        folder: On disk.
        where: On Weights & Biases, if they are there.
    """
    print(f"Results: {folder}" + (f"; on Weights & Biases: {where}" if where else ""))


def writable_folder(path: str | Path, typed: str, way_out: str) -> Path:
    """Return the path of a folder that is there or can be made, and can be written.

    Raises:
        UserError: If it is no folder or cannot be written.
    """
    path = folder(path, typed)
    there = next(part for part in (path, *path.parents) if part.exists())
    if not os.access(there, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise UserError(f"`{typed}` cannot be written ({there} is read-only for you); {way_out}.")
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
    from probing.terminal import extraction_progress

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


def read_corpora(
    corpus: str, test_corpus: str | None, seed: int, say: Callable[[str], None]
) -> tuple[list[Corpus], list[list[Split]]]:
    """Read the corpus, and the test corpus if there is one, and put each sentence on a side.

    With a test corpus of its own, the main corpus's test part joins its training part.
    """
    if test_corpus == corpus == "-":
        raise UserError("`--test_corpus -`: standard input is read once; give one of the two as a file.")
    main = load_corpus(corpus)
    if test_corpus is None:
        return [main], [assign_splits(main.sentences, seed)]
    test = load_corpus(test_corpus, "--test_corpus")
    kept = hold_out(main, test)
    if n_shared := len(main.sentences) - len(kept.sentences):
        say(f"{corpus}: {n_shared} sentences that are also in {test_corpus} were left out of training")
    joined: list[Split] = ["train" if side == "test" else side for side in assign_splits(kept.sentences, seed)]
    return [kept, test], [joined, ["test"] * len(test.sentences)]


@contextmanager
def tracking(
    folder: RunFolder | None, options: WandbOptions, config: Mapping[str, Any], light: bool = False
) -> Iterator[Tracker | None]:
    """Track the run on the first rank; a request refused meanwhile leaves no folder, a failed run a partial one.

    Args:
        folder: Of the run; None on other ranks.
        options: Where and how to track it.
        config: The run's resolved configuration.
        light: Whether it is one of many.
    """
    if folder is None:
        yield None
        return
    from probing.terminal import say

    tracker = None
    try:
        # Takes seconds, and may be interrupted.
        tracker = Tracker(options, folder.path, folder.final.name, config, say, light)
        yield tracker
    except BaseException as error:
        if tracker:
            tracker.finish(exit_code=1)
        if interrupt := interrupt_behind(error):
            raise type(interrupt)(f"the unfinished run is {folder.path}") from None
        if isinstance(error, UserError | OSError):
            folder.discard()
        if isinstance(error, OSError):
            raise UserError(
                f"`--runs {folder.final.parent}`: the results could not be written ({error.strerror or error}); "
                "make room, or name another folder, and run the same command again: the activations are cached."
            ) from error
        raise
    tracker.finish()


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of a command's options as plain values, groups of options as mappings."""
    return plain({name: parameter.default for name, parameter in signature(function).parameters.items()})


def plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options as plain values, for YAML and W&B, without the run's name."""
    values = {k: asdict(v) if is_dataclass(v) and not isinstance(v, type) else v for k, v in options.items()}
    mappings = {k: dict(values[k] or {}) for k in ("trainer", "task_args") if k in values}
    return {k: v for k, v in values.items() if k != "name"} | mappings
