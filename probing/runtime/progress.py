"""How far a command is: which stage of how many, the count inside the stage, and the time left where that is known.

A stage is declared where its work is done, `with stage("hidden states of 7 layers"):`, and so is a count inside it,
`with counted("texts", 40) as advance:`. What is shown of them is decided once, by the `overview` of the command: at a
terminal and in a notebook one line that is replaced and vanishes at the end; elsewhere, such as in the log of a batch
job, a line for each stage that has ended, and in a long stage a line at growing intervals.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from probing.runtime.processes import is_main_process
from probing.runtime.stages import Cost, Overview, Stage
from probing.runtime.terminal import in_notebook, say, silence

_overview: ContextVar[Overview | None] = ContextVar("overview", default=None)
_is_part: ContextVar[bool] = ContextVar("is_part", default=False)


@contextmanager
def overview(quiet: bool, briefly: bool = False) -> Iterator[None]:
    """Show or say the stages of a command; a command inside another one is a part of that one's stage.

    Args:
        quiet: Whether nothing is shown or said.
        briefly: Whether only long stages are said where nothing is shown.
    """
    if _overview.get() is not None:
        is_part = _is_part.set(True)
        try:
            yield
        finally:
            _is_part.reset(is_part)
        return
    speaks = is_main_process() and not quiet
    line = _line() if speaks else None
    before = _overview.set(Overview(line, speaks and line is None, briefly))
    try:
        yield
    finally:
        _overview.reset(before)


def is_part() -> bool:
    """Whether this is a command inside another one."""
    return _is_part.get()


def messages(quiet: bool) -> Callable[[str], None]:
    """Return what takes one-line messages that a reader needs to trust the results: `quiet` does not drop them.

    Args:
        quiet: Whether the command is quiet; one inside another command, such as a trial of a sweep, then says nothing.
    """
    return silence if quiet and is_part() else say


def remark(message: str) -> None:
    """Say how far a command is in a line of its own, unless it is quiet."""
    if (here := _overview.get()) and (here.line or here.said):
        say(message)


def _line() -> Any:
    """Return what shows a stage while it goes on; None where a line cannot be replaced."""
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    if not is_terminal and not in_notebook():
        return None
    from probing.runtime.progress_line import ProgressLine

    return ProgressLine


def hush() -> None:
    """Show and say nothing of this command's stages: that it is quiet was found in a file that it reads."""
    if here := _overview.get():
        here.line, here.said = None, False


def say_once(message: str) -> None:
    """Print a message, with `--quiet` too, unless this command has printed it, or the one that it is a part of."""
    told = here.told if (here := _overview.get()) else set[str]()
    if message not in told:
        told.add(message)
        say(message)


def expect(stages: Sequence[Cost | None]) -> None:
    """Say which stages a command has, before the first one; inside another command's stage, this is not heard.

    Args:
        stages: For each stage, in their order, what it takes, where that can be compared with others; else None.
    """
    here = _overview.get()
    if here and not here.n_begun and not here.open:
        here.costs = list(stages)


class Advance(Protocol):
    """Is called with the number of steps that were finished, and what is done now if that is another thing."""

    def __call__(self, n: int, name: str | None = None) -> None:
        """Note that so many steps were finished."""


@contextmanager
def stage(name: str, total: int | None = None, done: int = 0) -> Iterator[Advance]:
    """Do a stage of the command; inside another stage, it is a part of that one.

    Args:
        name: What is done, such as "hidden states of 7 layers".
        total: Number of steps, if it has steps that are counted.
        done: Number of steps that were done before.

    Yields:
        A function that is called with the number of steps that were finished.
    """
    with _begun(Stage(name, total, done), is_stage=True) as advance:
        yield advance


@contextmanager
def counted(name: str, total: int | None, done: int = 0, is_even: bool = True) -> Iterator[Advance]:
    """Do something inside a stage that is counted.

    Args:
        name: What is done.
        total: Number of steps, if they are known.
        done: Number of steps that were done before.
        is_even: Whether steps take about as long as each other.

    Yields:
        A function that is called with the number of steps that were finished, and what is done now.
    """
    with _begun(Stage(name, total, done, is_even), is_stage=False) as advance:
        yield advance


def note(what: str) -> None:
    """Say what is done now inside a stage, where it is shown."""
    if (here := _overview.get()) and here.open:
        here.open[-1].note = what
        here.changed()


def _unheard(n: int, name: str | None = None) -> None:
    """Take no notice of steps where no command shows them."""


@contextmanager
def _begun(one: Stage, is_stage: bool) -> Iterator[Advance]:
    here = _overview.get()
    if here is None:
        yield _unheard
        return

    def advance(n: int, name: str | None = None) -> None:
        one.done += n
        one.name = one.name if name is None else name
        here.changed()

    here.begin(one, is_stage)
    try:
        yield advance
    except BaseException:
        here.end(one, has_failed=True)
        raise
    here.end(one, has_failed=False)


def shards_counted() -> Any:
    """Return a Lightning callback that counts the shards that a model has read."""
    import pytorch_lightning as pl

    class Shards(_Counting, pl.Callback):
        def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            self.begin("", sum(int(n) for n in trainer.num_predict_batches))

        def on_predict_batch_end(self, *args: Any, **kwargs: Any) -> None:
            self.advance(1)

    return Shards()


def solutions_counted(what: str) -> Any:
    """Return a Lightning callback that counts the probes that are solved, and the passes over the tokens.

    Args:
        what: What the probes are called.
    """
    import pytorch_lightning as pl

    class Solutions(_Counting, pl.Callback):
        n_solved = 0

        def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            self.begin(what, len(pl_module.problems), is_even=False)  # type: ignore[arg-type]

        def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            n_solved = len(getattr(pl_module.rule, "solutions", ()))
            self.advance(n_solved - self.n_solved, f"{what}, pass {trainer.current_epoch + 1}")
            self.n_solved = n_solved

    return Solutions()


def steps_counted() -> Any:
    """Return a Lightning callback that counts the steps of a training."""
    import pytorch_lightning as pl

    class Steps(_Counting, pl.Callback):
        def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            self.step = trainer.global_step
            self.begin("", trainer.max_steps, self.step)

        def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
            self.advance(trainer.global_step - self.step)
            self.step = trainer.global_step

    return Steps()


class _Counting:
    """A count that begins and ends with a loop of Lightning's Trainer."""

    def begin(self, name: str, total: int, done: int = 0, is_even: bool = True) -> None:
        """Begin the count."""
        self.stack = ExitStack()
        self.advance = self.stack.enter_context(counted(name, total, done, is_even))

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End it."""
        if hasattr(self, "stack"):
            self.stack.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End it after an error."""
        self.teardown(trainer, pl_module, "")
