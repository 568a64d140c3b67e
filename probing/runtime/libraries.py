"""Libraries that take seconds to import: loaded where they are first needed, shown, and silenced."""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from probing.runtime.machine import heap_is_set_aside, set_heap_aside
from probing.runtime.progress import counted


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection during imports, which create no garbage: it took a quarter of their time.

    Where the process is a command's own, which sets all objects aside, what was imported is set aside too: later
    collections do not read it. In a notebook, that would keep the user's garbage as well.
    """
    was_enabled, n_modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > n_modules and heap_is_set_aside():
            set_heap_aside()
        if was_enabled:
            gc.enable()


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silence the logs and warnings of Lightning and transformers; their exceptions still raise."""
    with counted("loading PyTorch, Lightning and transformers", None), _without_garbage_collection():
        import pytorch_lightning  # noqa: F401  importing it sets the log levels that are changed here
        import transformers.utils.logging  # noqa: F401  the same

    names = (
        "pytorch_lightning",
        "pytorch_lightning.utilities.rank_zero",
        "lightning_fabric",
        "lightning_fabric.utilities.distributed",
    )
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with _quiet_transformers(), warnings.catch_warnings():
            for module in ("pytorch_lightning", "lightning_fabric", "torch", "torchmetrics"):
                warnings.filterwarnings("ignore", module=rf"{module}(\..*)?$")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Silence transformers, whose switch of progress bars is also that of the hub's client; restore both switches."""
    from huggingface_hub import utils as hub
    from transformers.utils import logging as transformers_logging

    def set_bars(of_transformers: bool, of_hub: bool) -> None:
        with warnings.catch_warnings():
            # $HF_HUB_DISABLE_PROGRESS_BARS goes before both switches; the hub's client warns of it.
            warnings.simplefilter("ignore")
            (
                transformers_logging.enable_progress_bar
                if of_transformers
                else transformers_logging.disable_progress_bar
            )()
            (hub.enable_progress_bars if of_hub else hub.disable_progress_bars)()

    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled(), not hub.are_progress_bars_disabled()
    transformers_logging.set_verbosity_error()
    set_bars(False, False)
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        set_bars(*bars)
