"""Which word a message suggests for a mistyped one, and what is taken for a lack of the machine."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from probing.errors import UserError, about_option, did_you_mean, lack_of_machine, library_errors


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


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("act", "lacks"),
    [
        (lambda: np.empty(2**58), "memory ran out (Unable to allocate"),
        (lambda: torch.empty(2**58), "memory ran out ("),
        (lambda: _raise(MemoryError()), "memory ran out (MemoryError)"),
        (lambda: _raise(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")), "memory ran out (CUDA"),
        (lambda: _raise(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a")), "a file could not be written ("),
        (lambda: _raise(OSError(errno.EMFILE, os.strerror(errno.EMFILE))), "a file could not be used (Too many open"),
        (lambda: _raise(RuntimeError("can't start new thread")), "memory ran out (can't start new thread)"),
        (lambda: save_file({"x": torch.ones(3)}, "none/x"), "a file could not be written ("),
        (lambda: _raise(RuntimeError("[enforce fail at inline_container.cc:6] . unexpected pos")), "a file could not"),
        (lambda: Path("none").read_text(encoding="utf-8"), None),
        (lambda: _raise(ValueError("out of range")), None),
        (lambda: torch.ones(2) @ torch.ones(3), None),
    ],
)  # fmt: skip
def test_what_the_machine_lacks_is_told_from_errors_of_a_program(act: Callable[[], object], lacks: str | None) -> None:
    with pytest.raises((Exception, MemoryError)) as caught:
        act()
    found = lack_of_machine(caught.value)
    assert (found is None) == (lacks is None)
    assert (found or "").startswith(lacks or "")


def test_a_panic_of_a_library_is_a_sentence_and_an_interrupt_is_not() -> None:
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(UserError, match="cannot be read: a rule"), library_errors("cannot be read: {}".format):
        raise panic("a rule that matches nothing")
    with pytest.raises(KeyboardInterrupt), library_errors("cannot be read: {}".format):
        raise KeyboardInterrupt
    with pytest.raises(UserError, match="as it is"), library_errors("cannot be read: {}".format):
        raise UserError("as it is")


def test_errors_about_a_model_name_the_option_that_it_was_read_for() -> None:
    for option, said in (("--start", "`--start a/b` is gone."), ("--run r:", "`--run r`: its model `a/b` is gone.")):
        with pytest.raises(UserError) as caught, about_option(option):
            raise UserError("`--model a/b` is gone.")
        assert str(caught.value) == said
