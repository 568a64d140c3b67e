"""Folders of results: complete or visibly partial, resumable after an interruption; documents are read strictly."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probing.errors import RunError, UserError, as_clause
from probing.runtime.files import RUNNING, Owner, check_yaml, parse_json, read_text, regular, take_over
from probing.runtime.processes import interrupt_behind
from probing.text import Corpus

if TYPE_CHECKING:
    from torch import Tensor

# Most values of a document: the largest that is written has some ten thousand.
MOST = 1_000_000


def read_json(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file; `ValueError` for duplicate names, non-finite numbers and other content."""

    def refused(text: str) -> Any:
        raise ValueError(f"{text} is no number")

    return _mapping(path, lambda text: parse_json(text, object_pairs_hook=_distinct, parse_constant=refused))


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file; errors as of `read_json`."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            _distinct([(key.value, value) for key, value in node.value])
            return super().construct_mapping(node, deep)

    def load(text: str) -> Any:
        try:
            check_yaml(text, anchors=False)
            return Loader(text).get_single_data()
        except yaml.YAMLError as error:
            raise ValueError(" ".join(str(error).split())) from None

    return _mapping(path, load)


def _mapping(path: Path, load: Callable[[str], Any]) -> dict[str, Any]:
    text = read_text(path, path.parent)
    try:
        content = load(text)
        for n, value in enumerate(_values(content)):
            if n >= MOST:
                raise ValueError(f"more than {MOST:,} values")
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{value} is no finite number")
            if isinstance(value, str) and not _is_text(value):
                raise ValueError(f"{value!r:.60} is no text")
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ValueError(f"{path.name} holds no names with values")
    return content


def _values(value: Any) -> Iterator[Any]:
    """Yield a value, and recursively the names and values in it."""
    yield value
    for part in (*value, *value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _values(part)


def _distinct(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    names = [name for name, _ in pairs]
    if twice := [name for name in names if names.count(name) > 1][:1] if len({*map(repr, names)}) < len(names) else []:
        raise ValueError(f"`{twice[0]}` is there twice")
    return dict(pairs)


def _is_text(text: str) -> bool:
    """Return whether a text can be encoded in UTF-8, with surrogate escapes for undecodable bytes of file names."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Turn any error while a folder is read, or its tables are shown, into a `UserError` that the folder is damaged."""
    try:
        yield
    except (UserError, RunError):
        raise
    except KeyError as error:
        raise UserError(f"`{folder}` is damaged (there is no {error} in it); repeat the run.") from error
    except OSError as error:
        what = f"{Path(error.filename).name}: " if error.filename else ""
        raise UserError(f"`{folder}` is damaged ({what}{as_clause(error)}); repeat the run.") from error
    except Exception as error:  # what libraries raise of values that nobody foresaw
        raise UserError(f"`{folder}` is damaged ({as_clause(error)}); repeat the run.") from error


def read_tensor(path: Path, name: str) -> Tensor:
    """Return a tensor; raise `ValueError` if it is not of floating-point type, or has numbers that are not finite."""
    from safetensors import safe_open

    with safe_open(regular(path, path.parent), framework="pt") as file:
        tensor: Tensor = file.get_tensor(name)
    if not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
        raise ValueError(f"{path.name} has numbers in {name} that are not finite")
    return tensor


PARTIAL = ".partial"


def kind_of(folder: Path, wrote: str) -> str | None:
    """Return the kind of a folder's results, as `results.json` names it; None for a run of `fit` or `probe`.

    Raises:
        UserError: If there are no finished results in the folder, or it is damaged; `wrote` names the commands
            expected.
    """
    if not os.path.isfile(folder / "results.json") or folder.name.endswith(PARTIAL):
        partial = folder.with_name(folder.name + PARTIAL)
        hint = f"; {partial} is one that did not finish" if os.path.isdir(partial) else ""
        state = "is no finished run" if os.path.exists(folder) else "does not exist"
        raise UserError(f"`{folder}` {state}: expected a folder that {wrote} wrote{hint}.")
    with reading(folder):
        kind = read_json(folder / "results.json").get("kind")
        if not isinstance(kind, str | None):
            raise ValueError("results.json names no kind of results")
        return kind


class RunFolder:
    """A run being written: `NAME.partial` until `finish` renames it. The partial folder of a killed run is replaced.

    An explicit `name` is refused if it exists or would leave `runs`; else the name is `default` and the time.
    """

    def __init__(self, runs: Path, name: str | None, default: str, figures: bool = True) -> None:
        try:
            runs.mkdir(parents=True, exist_ok=True)
            self.final = self._claim(check_name(runs, name)) if name is not None else self._claim_free(runs, default)
            if figures:
                (self.path / "figures").mkdir()
        except OSError as error:
            raise UserError(f"`--runs {runs}` cannot be written ({error.strerror}); name a writable folder.") from None

    @property
    def path(self) -> Path:
        """The folder while the run is being written."""
        return self.final.with_name(self.final.name + PARTIAL)

    @staticmethod
    def _claim(final: Path) -> Path:
        """Create the partial folder, or take over the folder of a killed process, which only one process can do."""
        path = final.with_name(final.name + PARTIAL)
        try:
            path.mkdir()
            Owner.of_this_process().write(path)
        except FileExistsError:
            owner = Owner.read(path)
            if owner is None or not owner.is_dead or not take_over(path, owner):
                raise _is_partial(final) from None
        return final

    @classmethod
    def _claim_free(cls, runs: Path, default: str) -> Path:
        """Claim the first default name that neither a finished run nor a run in progress has."""
        stem = f"{default}-{time.strftime('%Y%m%d-%H%M%S')}"
        for suffix in ["", *(f"-{i}" for i in range(2, 1000))]:
            if not (runs / (stem + suffix)).exists():
                with suppress(UserError):
                    return cls._claim(runs / (stem + suffix))
        raise UserError(f"`--runs {runs}` holds a thousand runs named {stem}; give one with --name.")

    def finish(self) -> Path:
        """Rename the folder to its final name and return the new path."""
        (self.path / RUNNING).unlink(missing_ok=True)
        return rename_finished(self.path, self.final, "run")

    def discard(self) -> None:
        """Remove the folder with its content."""
        shutil.rmtree(self.path, ignore_errors=True)


def rename_finished(partial: Path, final: Path, what: str) -> Path:
    """Rename a complete folder; raise `RunError` if the final name has been taken in the meantime."""
    try:
        partial.rename(final)
    except OSError as error:
        raise RunError(
            f"the {what} is complete but still in {partial}: it could not be renamed to {final.name} ({error.strerror})"
        ) from None
    return final


def check_name(runs: Path, name: str) -> Path:
    """Return the folder of a run of this name; raise `UserError` if the name is taken, also by a run in progress.

    The partial folder of a killed run does not block the name.
    """
    final = check_plain(runs, name)
    if os.path.lexists(final):  # a broken link also takes the name
        raise UserError(f"`--name {name}`: {final} exists and runs are never changed; choose another name.")
    if os.path.lexists(path := final.with_name(name + PARTIAL)):
        owner = Owner.read(path)
        if owner is None or not owner.is_dead:
            raise _is_partial(final)
    return final


def check_plain(runs: Path, name: str) -> Path:
    """Return the folder of that name in the folder of runs; raise `UserError` if the name is not plain."""
    if not re.fullmatch(r"[\w][\w.+=@-]{0,199}", name) or name.endswith(PARTIAL):
        raise UserError(
            f"`--name {name}` is not a plain name inside {runs}: use letters, digits and - _ . + = @, "
            f"beginning with a letter or digit and not ending in {PARTIAL}."
        )
    return runs / name


def _is_partial(final: Path) -> UserError:
    path = final.with_name(final.name + PARTIAL)
    owner = Owner.read(path)
    if owner is not None and owner.is_on_this_machine:
        how = f"is under way (process {owner.process}); wait for it or choose another name."
    else:
        where = f" on {owner.machine.partition(' ')[0]} (process {owner.process})" if owner else ""
        how = f"is under way or was interrupted{where}; remove that folder or choose another name."
    return UserError(f"`--name {final.name}`: {path} exists: a run of this name {how}")


_DEFINITION = "definition.json"


class ResumableFolder:
    """A folder that is new or resumed; `definition` holds everything that determines its content.

    A finished folder, or another definition in the folder, raises `UserError`.
    """

    # What the folder holds, and what it may belong to instead, for messages.
    what, other = "run", "a run with other options, or of another text"
    # The part of it without which nothing would be lost.
    work = "checkpoints"
    # What is removed when everything is whole.
    temporary: tuple[str, ...] = (_DEFINITION,)

    def __init__(self, runs: Path, name: str, definition: Mapping[str, Any]) -> None:
        self.final = check_plain(runs, name)
        self.path = self.final.with_name(name + PARTIAL)
        self.definition = json.loads(json.dumps(definition, sort_keys=True, default=str))
        if os.path.lexists(self.final):
            raise UserError(
                f"`--name {name}`: {self.final} exists and runs are never changed; choose another name for the "
                f"{self.what}."
            )
        if self.path.exists() and self._stored() not in (None, self.definition):
            raise UserError(f"`--name {name}`: {self.path} belongs to {self.other}; remove it or choose another name.")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder; raise `UserError` if another process is writing it."""
        from filelock import FileLock, Timeout

        try:
            self.begin()
            lock = FileLock(self.path / ".lock")
            lock.acquire(timeout=0)
        except Timeout:
            raise UserError(
                f"`--name {self.final.name}`: another process is running this {self.what} ({self.path}); wait for it, "
                "or choose another name."
            ) from None
        except OSError as error:
            raise UserError(
                f"`--runs {self.final.parent}` cannot be written ({as_clause(error)}); name a writable folder."
            ) from None
        try:
            if self._stored() is None:
                temporary = self.path / f"{_DEFINITION}.new"
                temporary.write_text(json.dumps(self.definition, indent=2), encoding="utf-8")
                temporary.replace(self.path / _DEFINITION)
            yield
        finally:
            lock.release()

    def begin(self) -> None:
        """Create the folder."""
        (self.path / self.work).mkdir(parents=True, exist_ok=True)

    def discard(self) -> None:
        """Remove the folder if there is no work in it; otherwise the same command resumes it."""
        if self.is_empty():
            shutil.rmtree(self.path, ignore_errors=True)

    def finish(self) -> Path:
        """Rename the folder to its final name and return the new path."""
        for name in (".lock", *self.temporary):
            (self.path / name).unlink(missing_ok=True)
        return rename_finished(self.path, self.final, self.what)

    def is_empty(self) -> bool:
        """Return whether there is no work in the folder yet."""
        return not any((self.path / self.work).glob("*"))

    def _stored(self) -> Any:
        """Return the definition in the folder, None if the folder has no work yet, () if unreadable or missing."""
        try:
            return parse_json(read_text(self.path / _DEFINITION, self.path))
        except FileNotFoundError:
            return None if self.is_empty() else ()
        except (OSError, ValueError):
            return ()


def remove_abandoned(path: Path, only_ask: bool = False) -> bool:
    """Remove the partial folder of a run that no process writes, unless `only_ask`; return whether there was one."""
    from filelock import FileLock, Timeout

    if path.is_symlink() or not path.is_dir():
        return False
    if (path / _DEFINITION).is_file():  # is continued by the same command, until then locked by nobody
        try:
            with FileLock(path / ".lock").acquire(timeout=0):
                if not only_ask:
                    shutil.rmtree(path)
        except (Timeout, OSError):
            return False
        return True
    owner = Owner.read(path)
    if owner is None or not owner.is_dead or not (only_ask or take_over(path, owner)):
        return False
    if not only_ask:
        shutil.rmtree(path)
    return True


def free_name(runs: Path, stem: str) -> str:
    """Return a name with the time that nothing in the folder of runs has."""
    stem = f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = (stem, *(f"{stem}-{i}" for i in range(2, 1000)))
    return next(name for name in names if not any(os.path.lexists(runs / (name + end)) for end in ("", PARTIAL)))


# --------------------------------------------------------------------------------------------------------------------
# Folders of trainings that a killed run of the same name goes on with.
# --------------------------------------------------------------------------------------------------------------------

# Options that decide how a run is made or shown, and not what is in it.
NOT_OF_THE_RUN = ("quiet", "cache", "runs", "wandb", "figure_format")


def folder_of_trainings(
    place: Path, name: str, config: dict[str, Any], texts: Mapping[str, Corpus | None]
) -> ResumableFolder:
    """Return the resumable folder of a run, defined by its options and its texts by option.

    In `config`, sentences given as a list are replaced by the path of their file in the folder.
    """
    for option in texts:
        if config[option] is not None and not isinstance(config[option], str):
            config[option] = str(place / name / f"{option}.txt")
    definition = {k: v for k, v in config.items() if k not in NOT_OF_THE_RUN}
    prints = [text.fingerprint for text in texts.values() if text is not None]
    return ResumableFolder(place, name, {**definition, "fingerprint": prints[0] if len(prints) == 1 else prints})


def end_of_trainings(folder: Path, config: Mapping[str, Any], texts: Mapping[str, Corpus | None]) -> list[Path]:
    """Remove what only a continued run needs; write the texts that were given as lists, and return their files."""
    shutil.rmtree(folder / "state", ignore_errors=True)
    files = []
    for option, text in texts.items():
        path = folder / f"{option}.txt"
        if text is not None and str(config[option]).endswith(f"{folder.stem}/{path.name}"):
            path.write_text("".join(f"{sentence}\n" for sentence in text.sentences), encoding="utf-8")
            files.append(path)
    return files


@contextmanager
def continuable(folder: ResumableFolder, first: bool) -> Iterator[None]:
    """Lock the folder; after an interrupt, explain how to resume; after a refused request, leave no folder behind.

    Only the rank-zero process (`first`) locks and removes it.
    """
    with folder.locked() if first else nullcontext():
        try:
            yield
        except BaseException as error:
            if interrupt := interrupt_behind(error):
                again = f"the same command with --name {folder.final.name} continues it"
                raise type(interrupt)(f"the unfinished run is {folder.path}; {again}") from None
            if isinstance(error, UserError) and first:
                folder.discard()
            raise
