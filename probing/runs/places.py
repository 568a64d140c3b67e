"""Places of a run's texts, model and task: recorded when the run is written, searched after the run or they have moved.

A file is accepted by its content alone: a text and a model by the fingerprint in the run's `cache`, the file of a task
by its hash in `read_from`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from probing.activations.store import cache_folder
from probing.errors import UserError
from probing.models import folder_in
from probing.models.source import ALIASES, OBJECT, ModelSource, resolve_model
from probing.results import listed
from probing.runs.folder import PARTIAL
from probing.runtime.files import file_sha256
from probing.text import Corpus, GroupBy, Split, divided, hold_out, load_corpus
from probing.text.files import split_query
from probing.text.tasks import TokenTask, load_task

Say = Callable[[str], None]

# The options that name a run's texts, and what messages call these.
TEXTS = {"corpus": "corpus", "test_corpus": "test corpus"}
_GIVE = "give the path of the same text with `--corpus` (from Python with `corpus=`, also of `load_run`)"


class RunRecord(Protocol):
    """The part of a finished run that records its inputs, and how its texts are split."""

    @property
    def folder(self) -> Path:
        """Current folder of the run."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration, with paths as they were typed."""

    @property
    def results(self) -> Mapping[str, Any]:
        """Content of `results.json`."""

    @property
    def split_by(self) -> GroupBy:
        """The unit that the split preserves, as `probing.text.read_corpora` takes it."""


# --- noting ---


def read_from(config: Mapping[str, Any], folder: Path) -> dict[str, dict[str, dict[str, str]]]:
    """Return `read_from` of `results.json`: the places of the files and folders that a configuration names.

    For each option these are `path`, which is absolute, and `from_run`, relative to the run's final folder unless they
    share no parent; for a task's file also `sha256`. Empty for a run that reads no files of the user.
    """
    final = Path(os.path.abspath(folder.with_name(folder.name.removesuffix(PARTIAL))))
    noted = {name: _noted(path, final) for name in TEXTS if (path := _path_of_text(config.get(name))) is not None}
    for option, path in (("model", config["model"]), ("site", folder_in(config))):
        if isinstance(path, str) and _is_folder(path):
            noted[option] = _noted(path, final)
    if (file := _file_of_task(config["task"])) and os.path.isfile(file):
        noted["task"] = {**_noted(file, final), "sha256": file_sha256(file)}
    return {"read_from": noted} if noted else {}


def _noted(path: str, run: Path) -> dict[str, str]:
    absolute = os.path.abspath(path)
    beside = _relative(absolute, str(run))
    return {"path": absolute} | ({} if beside is None else {"from_run": beside})


def _relative(path: str, run: str) -> str | None:
    """Return an absolute path relative to a run's folder; None if they share no more than the root or a drive."""
    try:
        is_near = Path(shared := os.path.commonpath([path, run])) != Path(Path(shared).anchor)
        return Path(os.path.relpath(path, run)).as_posix() if is_near else None
    except ValueError:  # of different drives
        return None


def _parts(source: str) -> tuple[str, str, str]:
    """Return the prefix, the path and the suffix of a source, as in `hf:PATH?split=S`."""
    name = source.removeprefix("hf:")
    path, mark, query = split_query(source) if name == source else name.partition("?")
    return source[: len(source) - len(name)], path, mark + query


def _path_of_text(source: Any) -> str | None:
    """Return the path of a text, None if it is no file or folder of this machine."""
    if not isinstance(source, str) or source in ("builtin", "-"):
        return None
    before, path, _ = _parts(source)
    return None if before and not os.path.isdir(path) else path


def _is_folder(model: str) -> bool:
    return bool(model) and model not in ALIASES and not model.startswith(OBJECT) and os.path.isdir(model)


def _file_of_task(task: str) -> str | None:
    """Return the file of a task `FILE.py:CLASS`, None for others."""
    file = task.rpartition(":")[0]
    return file if file.endswith(".py") else None


# --- looking ---


def places_of(run: RunRecord, option: str, path: str) -> list[str]:
    """Return the possible places of an input, each once.

    These are the path as typed from the current folder, the recorded place, the same place relative to the run, the
    run's folder, and that folder's parent.
    """
    folder, noted = os.path.abspath(run.folder), run.results.get("read_from", {}).get(option, {})
    beside = noted.get("from_run", _beside(run, path))
    places = [path, noted.get("path"), os.path.join(folder, beside) if beside else None]
    places += [os.path.join(place, name) for place in (folder, os.path.dirname(folder)) if (name := Path(path).name)]
    return list(dict.fromkeys(os.path.abspath(place) for place in places if place))


def _beside(run: RunRecord, path: str) -> str | None:
    """Return a path relative to the run's folder, for runs that did not record it, if their options imply it.

    They do if the path and the folder of runs were both typed relative to the same folder, or both absolute.
    """
    runs = run.config.get("runs")
    if not isinstance(runs, str) or os.path.isabs(runs) != os.path.isabs(path):
        return None
    return _relative(os.path.abspath(path), os.path.abspath(os.path.join(runs, run.folder.name)))


# --- texts ---


@dataclass(eq=False)
class OfferedTexts:
    """A text that the user gives for runs whose text has moved; `fits` if a run has read the same content."""

    source: Any
    corpus: Corpus
    fits: bool = False


class RunTexts(NamedTuple):
    """The texts of a run, read again: corpora (corpus, then any test corpus), sides of their sentences, sources."""

    corpora: list[Corpus]
    splits: list[list[Split]]
    sources: list[Any]


class _Absent(UserError):
    """None of the places has the text of a run."""


def given_texts(corpus: Any) -> list[str]:
    """Return the paths that `--corpus` names for runs whose texts have moved: none or more."""
    given = [] if corpus is None else corpus if isinstance(corpus, list | tuple) else [corpus]
    for path in given:
        if not isinstance(path, str | os.PathLike):
            raise UserError(f"`corpus`: expected the path of a text, or a list of paths, found {path!r:.60}.")
    return [os.fspath(path) for path in given]


def texts_of(run: RunRecord, given: Sequence[Any] = (), say: Say = lambda message: None) -> RunTexts:
    """Read the texts of a run again; see `texts_of_runs`."""
    return texts_of_runs([run], given, say)[0]


def texts_of_runs(
    runs: Sequence[RunRecord], given: Sequence[Any] = (), say: Say = lambda message: None
) -> list[RunTexts]:
    """Read the texts of runs again; each of `given`, texts that have moved, is used for all equal texts of the runs.

    Raises:
        UserError: If a text is nowhere, its places have other texts only, or a given text belongs to no run.
    """
    if "-" in given:
        raise UserError("`--corpus -`: the text of a finished run is read more than once; give it as a file.")
    offered, texts, absent = [OfferedTexts(source, load_corpus(source, column_of=None)) for source in given], [], []
    for run in runs:
        try:
            texts.append(_texts(run, offered, say))
        except _Absent as error:
            absent.append((run, error))
    is_open = any(run.config["test_corpus"] is not None for run, _ in absent)  # what is left of a corpus is not known
    if not is_open and (wrong := next((text for text in offered if not text.fits), None)):
        named = listed([f"`{run.folder}`" for run in runs])
        raise UserError(
            f"`--corpus {_shown(wrong.source)}` is no text that {named} read; give the same text, or leave the option "
            "out."
        )
    if absent:
        raise UserError(str(absent[0][1])) from None
    return texts


def _texts(run: RunRecord, offered: Sequence[OfferedTexts], say: Say) -> RunTexts:
    keys = _fingerprints(run)
    if run.config["test_corpus"] is None:
        source, main = _text(run, "corpus", offered, lambda text: text.fingerprint == keys["test"])
        return RunTexts(*divided(main, None, run.config["seed"], say, run.split_by), [source])
    tested_on, test = _text(run, "test_corpus", offered, lambda text: text.fingerprint == keys["test"])

    def is_trained_on(text: Corpus) -> bool:
        try:
            return hold_out(text, test)[0].fingerprint == keys["train"]
        except UserError:  # nothing would be left
            return False

    source, main = _text(run, "corpus", offered, is_trained_on)
    return RunTexts(*divided(main, test, run.config["seed"], say, run.split_by), [source, tested_on])


def _fingerprints(run: RunRecord) -> dict[str, str]:
    """Return the fingerprints of the texts that a run was trained and tested on."""
    if (texts := run.results.get("corpora")) is not None:  # of `finetune`
        sides = zip(("train", "test"), TEXTS, strict=True)
        return {side: texts.get(option, texts["corpus"])["fingerprint"] for side, option in sides}
    return {side: run.results["cache"][side]["key"]["corpus"] for side in ("train", "test")}


def _text(
    run: RunRecord, option: str, offered: Sequence[OfferedTexts], fits: Callable[[Corpus], bool]
) -> tuple[Any, Corpus]:
    """Return the source of a text of a run, and its corpus; raise `_Absent` if no place has it."""
    recorded, what = run.config[option], TEXTS[option]
    fitting = [offer for offer in offered if fits(offer.corpus)]
    for offer in fitting:
        offer.fits = True
    if fitting:
        return fitting[0].source, fitting[0].corpus
    if recorded == "-":
        raise _Absent(f"`{run.folder}`: its {what} was read from standard input, which is gone; {_GIVE}.")
    missing, others = [], []
    for source, place in sources_of(run, option, recorded):
        if place and not os.path.exists(place):
            missing.append(place)
            continue
        try:
            corpus = load_corpus(source, f"--{option}", column_of=None)
        except UserError as error:
            if not place:
                is_local = option in run.results.get("read_from", {})  # a folder of hf: that is not there any more
                tried = listed(places_of(run, option, _parts(recorded)[1]))
                looked = f" (it was looked for at {tried})" if is_local else ""
                raise _Absent(f"`{run.folder}`: its {what} cannot be read again{looked}: {error}") from None
            others.append(f"{place} (which cannot be read)")
            continue
        if fits(corpus):
            return source, corpus
        others.append(place or source)
    if others:
        nowhere = f", and nothing is at {listed(missing)}" if missing else ""
        raise _Absent(
            f"`{run.folder}`: its {what} has changed since: there is another text at {listed(others)}{nowhere}; repeat "
            f"the run, or {_GIVE}."
        )
    raise _Absent(
        f"`{run.folder}`: its {what} {recorded} is not there any more; it was looked for at {listed(missing)}; {_GIVE}."
    )


def sources_of(run: RunRecord, option: str, recorded: str) -> Iterator[tuple[str, str]]:
    """Yield the possible names of a text now, each with the path in it; "" if it is not on this machine's disk."""
    if recorded == "builtin":
        yield recorded, ""
        return
    before, path, after = _parts(recorded)
    places = places_of(run, option, path)
    if before:
        places = [place for place in places if os.path.isdir(place)]
    absolute = os.path.abspath(path)
    for place in places:
        yield (recorded if place == absolute else f"{before}{place}{after}"), place
    if before and not places:
        yield recorded, ""


def _shown(source: Any) -> str:
    return source if isinstance(source, str) else f"[{len(source)} sentences]"


# --- model, task and cache ---


def model_of(run: RunRecord) -> ModelSource:
    """Return the model of a run, wherever its folder is now; raise `UserError` if it is gone or has changed."""
    recorded, expected = run.config["model"], run.results["cache"]["test"]["key"]["model"]
    is_trained, was_folder = not run.config["random_weights"], "model" in run.results.get("read_from", {})
    places = [] if recorded in ALIASES or recorded.startswith(OBJECT) else places_of(run, "model", recorded)
    existing = [place for place in places if os.path.isdir(place)]
    absolute = os.path.abspath(recorded)
    names = [recorded if place == absolute else place for place in existing]
    names += [] if was_folder or absolute in existing else [recorded]  # which may be the name of a model of the hub
    if not names:
        raise UserError(
            f"`{run.folder}`: its model {recorded} is not there any more; it was looked for at {listed(places)}; put "
            "it at one of these places."
        )
    errors = []
    for name in names:
        try:
            source = resolve_model(name, run.config["revision"])
            if source.fingerprint(weights=is_trained) == expected:
                return source
        except UserError as error:
            errors.append(error)
    if len(errors) == len(names):
        raise UserError(f"`{run.folder}`: its model cannot be read any more: {errors[0]}")
    where = f" (there is another one at {listed(existing)})" if existing not in ([], [recorded]) else ""
    raise UserError(f"`{run.folder}`: its model {recorded} has changed since{where}; repeat the run.")


def is_model_of(run: RunRecord, folder: Any) -> bool:
    """Return whether a folder holds the model of a run."""
    if not isinstance(folder, str) or not os.path.isdir(folder):
        return False
    is_trained = not run.config["random_weights"]
    return resolve_model(folder).fingerprint(weights=is_trained) == run.results["cache"]["test"]["key"]["model"]


def task_of(run: RunRecord) -> TokenTask:
    """Return the task of a run; a user's task file is identified by its content, or else used as typed."""
    task, options = run.config["task"], run.config["task_args"]
    expected = run.results.get("read_from", {}).get("task", {}).get("sha256")
    if expected is None or (file := _file_of_task(task)) is None:
        return load_task(task, options)
    places = places_of(run, "task", file)
    for place in places:
        if os.path.isfile(place) and file_sha256(place) == expected:
            return load_task(f"{place}:{task.rpartition(':')[2]}", options)
    if os.path.exists(file):
        return load_task(task, options)
    raise UserError(
        f"`{run.folder}`: the file of its task {task} is not there any more; it was looked for at {listed(places)}; "
        "put it, unchanged, at one of these places."
    )


def cache_of(run: RunRecord, cache: str | None = None) -> Path:
    """Return the folder of cached activations: of `--cache`, else the run's if it exists, else the usual folder."""
    if not cache and (run_cache := run.config.get("cache")):
        places = [run_cache, *([os.path.join(run.folder, beside)] if (beside := _beside(run, run_cache)) else [])]
        cache = next((place for place in places if os.path.isdir(place)), None)
    return cache_folder(cache, str(run.folder.parent))
