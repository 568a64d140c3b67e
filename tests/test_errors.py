"""Which word a message suggests for a mistyped one."""

from __future__ import annotations

import pytest

from probing.errors import did_you_mean


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("layr", ["layer", "l"], "layer"),
        ("extarct", ["extract"], "extract"),  # neighbours swapped
        ("mod", ["model"], "model"),  # two letters
        ("max_epochs", ["min_epochs"], "min_epochs"),
        ("max_epochs", ["min_epoch"], ""),  # three
        ("gpt2-xl", ["gpt2"], ""),
        ("bert-base", ["bert", "bert-large"], ""),
        ("replicate_no", ["replicates"], ""),
        ("label", ["labels", "lapel"], "labels"),
        ("anova", ["anvoa", "novaa"], "anvoa"),
        ("no_quiet", ["quiet"], "quiet"),
        ("x", ["y"], ""),  # all its letters would have to change
        ("", ["y"], ""),
    ],
)
def test_a_word_is_suggested_within_two_edits(word: str, known: list[str], meant: str) -> None:
    assert did_you_mean(word, known, "--") == (f" (did you mean `--{meant}`?)" if meant else "")


def test_nothing_is_meant_where_nothing_is_known() -> None:
    assert did_you_mean("position", []) == ""
