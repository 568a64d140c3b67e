"""Errors that end a run, and helpers for their messages."""

from __future__ import annotations

import errno
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from typing import Any

# Most edits between a word and what is suggested for it.
MOST_EDITS = 2


class UserError(Exception):
    """Error of an impossible request; the message is a sentence with advice (exit status 2).

    Within a call in Python, options in the message become arguments; `original` is the message of the command line.
    """

    def __init__(self, message: str) -> None:
        self.original = message
        super().__init__(python_words(message) if _SPELLING.get() is in_python else message)

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: the sentence in the words of Python, without frames."""
        return [f"{type(self).__name__}: {single_line(python_words(str(self)))}"]


class NotTheModels(UserError):
    """Error of extracted activations that differ from the model's, so that none may be stored."""


class RunError(Exception):
    """Error of a valid request whose run failed; the message names the files left on disk (exit status 1)."""


def refuse(problems: Sequence[str]) -> None:
    """Raise a single UserError that names all problems, if there are any."""
    if problems:
        raise UserError(f"{'; '.join(dict.fromkeys(problems))}.")


@contextmanager
def about_option(option: str) -> Iterator[None]:
    """Let errors about `--model` name another option, which also takes a model and always reads its weights.

    With a value and a colon, such as "--run RUN:", it is the option whose model was read.
    """
    try:
        yield
    except UserError as error:
        message = error.original.replace(", or use a randomly initialised model with `--random_weights`", "")
        message = message.replace("`model` ", f"`{option.strip('-')}` ")
        flag_text, is_of_other, _ = option.partition(":")
        raise UserError(
            message.replace("`--model ", f"`{flag_text}`: its model `" if is_of_other else f"`{option} ")
        ) from None


def on_command_line(option: str, *value: Any) -> str:
    """Return an option, with its value if one is given, as typed on the command line."""
    words = [str(part).lower() if isinstance(part, bool) else str(part) for part in value]
    return f"`--{' '.join([option, *words])}`"


def in_python(option: str, *value: Any) -> str:
    """Return an option, with its value if one is given, as an argument of a call in Python."""
    words = [_quoted(part) if isinstance(part, str) else str(part) for part in value]
    return f"`{'='.join([option, *words])}`"


def _quoted(text: str) -> str:
    return repr(text) if '"' in text else f'"{text}"'


# Options in a message: in backticks, of these each with its value, and alone.
_OPTIONS_IN_CODE = re.compile(r"(?<=`)--[a-z][^`]*(?=`)")
_WITH_VALUE = re.compile(r"--([a-z]\w*)((?:\.\w+)*)(?: (?!--)(.+?))?(?: (?=--)|$)")
_ALONE = re.compile(r"(?<![\w`-])--([a-z]\w*(?:\.\w+)*)")


def python_words(message: str) -> str:
    """Return a message about options of the command line as one about arguments: `--layer 6` becomes `layer=6`."""

    def argument(match: re.Match[str]) -> str:
        name, inner, value = match[1], match[2].split(".")[1:], match[3]
        between = ", " if match.end() < len(match.string) else ""
        if value is None:
            return "".join([name, *(f'["{key}"]' for key in inner), between])
        written = value.capitalize() if value in ("true", "false") else value
        text = written if re.fullmatch(r"True|False|-?[\d.]+(e-?\d+)?|\[.*\]", written) else _quoted(value)
        for key in reversed(inner):
            text = f'{{"{key}": {text}}}'
        return f"{name}={text}{between}"

    parts = _OPTIONS_IN_CODE.sub(lambda code: _WITH_VALUE.sub(argument, code[0]), message).split("`")
    # Every other part is code, such as a whole command, which stays.
    return "`".join(part if i % 2 else _ALONE.sub(r"`\1`", part) for i, part in enumerate(parts))


# How messages spell an option and its value; None before a command is called.
_SPELLING: ContextVar[Callable[..., str] | None] = ContextVar("spelling", default=None)


def flag(option: str, *value: Any) -> str:
    """Return an option, with its value if one is given, as the user has typed it: `--seed -1`, or `seed=-1`."""
    return (_SPELLING.get() or on_command_line)(option, *value)


@contextmanager
def spelled(spelling: Callable[..., str]) -> Iterator[None]:
    """Spell options in messages as the user does; a command that another one calls keeps the spelling of that one."""
    token = _SPELLING.set(_SPELLING.get() or spelling)
    try:
        yield
    finally:
        _SPELLING.reset(token)


def out_of_range(
    option: str, value: float | None, low: float | None, high: float | None = None, expected: str = ""
) -> list[str]:  # fmt: skip
    """Return the problem with an option's value, if any; None is in every range, NaN and infinity in none.

    `expected` are words for the range; by default its bounds.
    """
    least, most = -math.inf if low is None else low, math.inf if high is None else high
    if value is None or (least <= value <= most and value != math.inf):
        return []
    bounds = expected or (f"at least {low}" if most == math.inf else f"{low} to {high}")
    return [f"{flag(option, value)} is out of range: expected {bounds}"]


def did_you_mean(word: str, known: Iterable[str], before: str = "", elsewhere: Mapping[str, str] = {}) -> str:
    """Return a suggestion in parentheses: the nearest known word, or an empty string without any.

    A word is near within two edits, in another case, or if it is a known word after `no_`, which switches options off
    elsewhere.
    `elsewhere` has words of other tools with the equivalent known words, separated by commas.
    """
    known = list(known)
    if meant_by := [name for name in elsewhere.get(word, "").split(",") if name in known]:
        return f" (did you mean {' or '.join(f'`{before}{name}`' for name in meant_by)}?)"
    same = (name for name in known if name.casefold() == word.casefold())
    if (meant := next(same, word.removeprefix("no_"))) not in known:
        alike = get_close_matches(word, known, n=max(len(known), 1), cutoff=0.7)
        swapped = [name for name in known if sorted(name) == sorted(word)]
        near = [candidate for candidate in (*alike, *swapped) if _edits(word, candidate) <= MOST_EDITS]
        meant = min(near, key=lambda candidate: _edits(word, candidate), default="")
    return f" (did you mean `{before}{meant}`?)" if meant else ""


def _edits(a: str, b: str) -> int:
    """Return the least number of letters to insert, remove or replace, or of neighbours to swap, from `a` to `b`."""
    # Distances from the beginning of `a` to each beginning of `b`; of two rows before, for swapped neighbours.
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, start=1):
        above, row = row, [i]
        for j, other in enumerate(b, start=1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (letter != other)))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                row[j] = min(row[j], before[j - 2] + 1)
        before = above
    return row[-1]


@contextmanager
def without_panics() -> Iterator[None]:
    """Raise RuntimeError if a library's Rust code panics, which is no Exception."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise RuntimeError(str(error)) from None


@contextmanager
def library_errors(sentence: Callable[[str], str]) -> Iterator[None]:
    """Raise a UserError for any error of a library about an external file; `sentence` makes the message of a clause."""
    try:
        with without_panics():
            yield
    except (UserError, RunError):
        raise
    except Exception as error:  # each library has types of its own
        raise UserError(sentence(as_clause(error))) from None


# What the machine lacks, by the number of a system's error; others are those of a program.
_LACKS = {
    "memory ran out": (errno.ENOMEM,),
    "a file could not be written": (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE),
    "a file could not be used": (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE),
}
# The same in the words of libraries that raise errors of their own.
_LACKS_SAID = {
    "memory ran out": re.compile(r"out of memory|n.t allocate memory|not enough memory|can't start new thread"),
    "a file could not be written": re.compile(r"PytorchStreamWriter failed|inline_container|I/O error"),
}


def lack_of_machine(error: BaseException) -> str | None:
    """Return the clause on the memory or disk space that the machine lacked; None for any other error."""
    message, number = str(error), getattr(error, "errno", None)
    lacks = "memory ran out" if isinstance(error, MemoryError) else None
    lacks = lacks or next((name for name, numbers in _LACKS.items() if number in numbers), None)
    if not isinstance(error, OSError):
        lacks = lacks or next((name for name, words in _LACKS_SAID.items() if words.search(message)), None)
    where = f": {name}" if (name := getattr(error, "filename", None)) else ""
    return lacks and f"{lacks} ({as_clause(error)}{where})"


def as_clause(error: BaseException) -> str:
    """Return a library's error message as a clause: a short line without a full stop."""
    first_line = (getattr(error, "strerror", None) or str(error) or type(error).__name__).strip().split("\n")[0]
    first, *others = re.split(r"[.!?]+\s+(?=[A-Z])", first_line)
    clause = first[:200]
    for sentence in others:
        if len(clause) + len(sentence) > 200:
            break
        clause += f"; {sentence}"
    return clause.rstrip(" .!?:,")


def single_line(message: str) -> str:
    """Return a message as a single line that ends with a full stop and has no control characters."""
    plain = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(message.split()))
    return plain if plain.endswith(".") else f"{plain}."
