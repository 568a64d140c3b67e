"""Loading of tasks: installed ones, classes of a file or a module, and objects."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from hashlib import sha256
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from probing.cli.arguments import OptionSource, checked
from probing.corpus import Corpus
from probing.errors import UserError, as_clause, did_you_mean
from probing.runtime.files import DOCUMENT, open_file
from probing.tasks.values import SentenceTask, Task, TokenTask, predicts_numbers, unit_of

GROUP = "probing.tasks"

# Modules of files that were named by their path begin with this.
_OF_A_FILE = "probing_task_file_"


def installed() -> dict[str, EntryPoint]:
    """Return the installed tasks, by name."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


# What a task is called elsewhere.
ELSEWHERE = {
    "pos": "upos", "pos_tag": "upos", "part_of_speech": "upos", "dep": "deprel", "dependency": "deprel",
    "ner": "label", "tag": "label", "tags": "label", "classification": "sentence_label", "sentiment": "sentence_label",
}  # fmt: skip


def is_own(task: str) -> bool:
    """Return whether a task's name is that of a class in a file or a module."""
    return ":" in task or task.endswith(".py")


def load_task(task: str | TokenTask, options: Mapping[str, Any] | None = None) -> TokenTask:
    """Build a task from its options, whose types are checked.

    Args:
        task: The name of an installed task, `FILE.py:CLASS`, `MODULE:CLASS`, or an object, which is returned.
        options: The task's options; an object has its own.

    Raises:
        UserError: If there is no such task, or an option is unknown or has the wrong type.
    """
    if not isinstance(task, str):
        _check_object(task, options or {})
        return task
    found = installed()
    if task in found:
        kind, name = found[task].load(), task
    elif is_own(task):
        kind, name = _class_of(task), task.rpartition(":")[2]
    else:
        near = did_you_mean(task, found, elsewhere=ELSEWHERE)
        raise UserError(
            f"`--task {task}` is not installed{near}; tasks are {', '.join(sorted(found)) or 'none'}, "
            "or FILE.py:CLASS for one of your own."
        )
    # The command line's own checks, so that a task's options behave like any other option.
    made = kind(**checked(kind, options or {}, f"the task {name}", OptionSource("--task_args.")))
    if missing := _missing(made):
        raise UserError(f"`--task {task}`: the class {name} is not a task, since it lacks {missing}.")
    return made


def described(task: str | TokenTask, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options `task` and `task_args` that stand for a task in a run's configuration.

    An object is described by its class and the values of its fields: by the name of an installed task, by
    `MODULE:CLASS`, or by `FILE.py:CLASS` for a class of a script. Values that YAML cannot hold are described in words.

    Args:
        task: A task's name, or an object.
        options: The options of a named task.

    Raises:
        UserError: If the object is not a task, or options are given with an object.
    """
    if isinstance(task, str):
        return {"task": task, "task_args": dict(options or {})}
    _check_object(task, options or {})
    kind = type(task)
    of_class = f"{kind.__module__}:{kind.__qualname__}"
    names_of = [name for name, entry in installed().items() if entry.value.replace(" ", "") == of_class]
    names = [one.name for one in fields(task) if one.init] if is_dataclass(task) else [*vars(task)]
    return {
        "task": names_of[0] if names_of else f"{_place(kind)}:{kind.__qualname__}",
        "task_args": {name: _plain(getattr(task, name)) for name in names},
    }


def _check_object(task: Any, options: Mapping[str, Any]) -> None:
    if isinstance(task, type):
        raise UserError(
            f"`task`: expected a task's name or an object, found the class {task.__name__}; give `{task.__name__}()`."
        )
    if missing := _missing(task):
        raise UserError(
            f"`task`: expected a task's name or an object derived from probing.Task, found {task!r:.60}, "
            f"which lacks {missing}."
        )
    if options:
        raise UserError(
            f"`task_args`: these are the options of a task given by its name; the object {type(task).__name__}(...) "
            "has its own, so leave `task_args` out."
        )


def _missing(task: Any) -> str:
    """Return what a class or an object lacks to be a task, in words."""
    if getattr(task if isinstance(task, type) else type(task), "labels", None) is Task.labels:
        return "a method `labels` of its own"
    # The last two may be fields that only an object has, so a class is not checked for them.
    needed = ("labels", "classes", "ordinal", "word_means")[: 2 if isinstance(task, type) else None]
    lacking = [f"`{name}`" for name in needed if not hasattr(task, name)]
    return " and ".join(filter(None, [", ".join(lacking[:-1]), *lacking[-1:]]))


def _class_of(typed: str) -> type:
    """Return the class that `FILE.py:CLASS` or `MODULE:CLASS` names.

    A class that is not a task is refused, so that a configuration cannot have an arbitrary class instantiated.
    """
    place, _, name = typed.rpartition(":") if ":" in typed else (typed, "", "")
    module = _module_of_file(Path(place), typed) if place.endswith(".py") else _module(place, typed)
    own = [
        cls.__name__
        for cls in vars(module).values()
        if isinstance(cls, type) and cls.__module__ == module.__name__ and not _missing(cls)
    ]
    example = f"; give {place}:{own[0]}" if own else "; derive one from probing.Task"
    if not name:
        raise UserError(f"`--task {typed}`: expected FILE.py:CLASS, and the name of the class is missing{example}.")
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None and place == "__main__":
        raise UserError(
            f"`--task {typed}`: the class {name} was of a notebook or a session that is gone; write it to a file and "
            "give FILE.py:CLASS."
        )
    if found is None:
        near = did_you_mean(name, own)
        raise UserError(f"`--task {typed}`: {place} has no class {name}{near}{example}.")
    if not isinstance(found, type):
        raise UserError(f"`--task {typed}`: {name} is not a class{example}.")
    if missing := _missing(found):
        raise UserError(f"`--task {typed}`: the class {name} is not a task, since it lacks {missing}{example}.")
    return found


def _module_of_file(path: Path, typed: str) -> ModuleType:
    """Import a file as a module; the same content is imported once."""
    try:
        path = path.expanduser().resolve(strict=True)
        with open_file(path, most=DOCUMENT) as file:
            content = file.read()
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"`--task {typed}`: {path} cannot be read ({reason}); give FILE.py:CLASS.") from None
    name = _OF_A_FILE + sha256(f"{path}\0".encode() + content).hexdigest()[:16]
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up here while it is imported.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, UserError) or not isinstance(error, Exception):
            raise
        raise UserError(f"`--task {typed}`: {path} cannot be imported ({_where(error, path)}).") from error
    return module


def _module(name: str, typed: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"`--task {typed}`: the module {name} cannot be imported ({type(error).__name__}: "
            f"{as_clause(error)}); install it, or give FILE.py:CLASS."
        ) from error


def _where(error: Exception, path: Path) -> str:
    """Return an error of a file with its line, as a clause."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno} is not Python: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    at = f" in line {lines[-1]}" if lines else ""
    return f"{type(error).__name__}{at}: {as_clause(error)}"


def _place(kind: type) -> str:
    """Return a class's module for a configuration: its name, or its file if it cannot be imported by its name."""
    name = kind.__module__
    file = getattr(sys.modules.get(name), "__file__", None)
    if file and (name == "__main__" or name.startswith(_OF_A_FILE)):
        path = Path(file).resolve()
        return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
    return name


def _plain(value: Any) -> Any:
    """Return a value as YAML holds it; others as text."""
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    return f"{value!r:.200}" if not inspect.isroutine(value) else value.__qualname__


# Tasks that read a column that the user names.
_OF_ANY_COLUMN = ("column", "sentence_label")


def short_name(config: Mapping[str, Any]) -> str:
    """Return the name of what a run's task predicts, without the file or the module of its class.

    A task that reads any column is named by its column, unless that is `label`.

    Args:
        config: The run's configuration.
    """
    task = str(config["task"])
    column = (config.get("task_args") or {}).get("column")
    return str(column) if task in _OF_ANY_COLUMN and column not in (None, "label") else task.rpartition(":")[2]


def task_in_words(config: Mapping[str, Any]) -> str:
    """Return what `short_name` returns as words of a sentence."""
    return short_name(config).replace("_", " ")


# --------------------------------------------------------------------------------------------------------------------
# What is held fixed while a probe's neurons are judged, because the labels may go with it (`--given`).
# --------------------------------------------------------------------------------------------------------------------

# What stands for the token itself.
TOKEN = "token"


@dataclass(frozen=True)
class HeldFixed:
    """What is held fixed.

    Args:
        typed: The option's value: `token`, the name of a task, `FILE.py:CLASS`, or the name of a column of the corpus.
        task: The task whose labels are held fixed; None for the token itself and for columns.
    """

    typed: str
    task: TokenTask | None = None

    @classmethod
    def of(cls, typed: str | None) -> HeldFixed | None:
        """Return what an option's value stands for; None without one.

        Raises:
            UserError: If it is a task that cannot be loaded.
        """
        if typed is None:
            return None
        if typed not in installed() and not is_own(typed):
            return cls(typed)
        try:
            return cls(typed, load_task(typed))
        except UserError as error:
            raise UserError(str(error).replace("`--task ", "`--given ")) from None

    def task_in(self, corpus: Corpus, of: TokenTask) -> TokenTask | None:
        """Return the task whose labels are held fixed in a corpus; None for the token itself.

        Args:
            corpus: The corpus, whose columns may be named.
            of: The task that is probed.

        Raises:
            UserError: If there is no such task or column, it gives numbers, or it is of tokens and the probed task of
                sentences.
        """
        typed, of_sentences = f"`--given {self.typed}`", isinstance(of, SentenceTask)
        if self.typed == TOKEN:
            if of_sentences:
                raise UserError(f"{typed}: the task labels sentences, which have many; give a label of sentences.")
            return None
        task = self.task
        if task is None and self.typed in corpus.columns:
            task = load_task("column", {"column": self.typed})
        elif task is None and self.typed in corpus.sentence_columns:
            task = load_task("sentence_label", {"column": self.typed})
        if task is None:
            columns = sorted({*corpus.columns, *corpus.sentence_columns})
            raise UserError(
                f"{typed} is neither token, nor a task ({', '.join(sorted(installed()))}, FILE.py:CLASS), nor a column "
                f"of `{corpus.name}`, which has {', '.join(columns) or 'none'}."
            )
        if predicts_numbers(task):
            raise UserError(f"{typed}: of its numbers hardly two are equal; give a task of classes.")
        if of_sentences and unit_of(task) == "token":
            raise UserError(f"{typed}: it labels tokens, and the probed task sentences; give a label of sentences.")
        return task
