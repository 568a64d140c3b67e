"""What the user is told when a run cannot go on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class UserError(Exception):
    """The user asked for something impossible; the message is one sentence with the way out (exit status 2)."""


class RunError(Exception):
    """The run failed through no fault of the request; the message says what is left on disk (exit status 1)."""


def refuse(problems: Sequence[str]) -> None:
    """Raise one UserError that names all problems, if there are any."""
    if problems:
        raise UserError(f"{'; '.join(dict.fromkeys(problems))}.")


def out_of_range(option: str, value: float | None, low: float, high: float = float("inf")) -> list[str]:
    """Return what is wrong with an option's value, if anything; None is in every range, not-a-number in none."""
    if value is None or (low <= value <= high and value != float("inf")):
        return []
    wanted = f"at least {low}" if high == float("inf") else f"{low} to {high}"
    return [f"`--{option} {value}` is out of range: expected {wanted}"]


def did_you_mean(word: str, known: Iterable[str], before: str = "") -> str:
    """Return the nearest of the known words in parentheses, or nothing where none is near."""
    near = get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f" (did you mean `{before}{near[0]}`?)" if near else ""


def as_clause(error: BaseException) -> str:
    """Return what a library says went wrong as a part of our sentence: a short line, without a full stop."""
    first_line = (getattr(error, "strerror", None) or str(error) or type(error).__name__).strip().split("\n")[0]
    first, *others = re.split(r"[.!?]+\s+(?=[A-Z])", first_line)
    clause = first[:200]
    for sentence in others:
        if len(clause) + len(sentence) > 200:
            break
        clause += f"; {sentence}"
    return clause.rstrip(" .!?:,")


def one_line(message: str) -> str:
    """Return a message in one line that ends with a full stop, whatever was typed, without control characters."""
    plain = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(message.split()))
    return plain if plain.endswith(".") else f"{plain}."
