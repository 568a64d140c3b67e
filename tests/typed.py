"""Commands typed in processes of their own, which may be killed at a chosen moment."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

from fault_loop import processes
from pages import ROOT

# `python -m probing` whose figures are one pixel.
PROGRAM = f"""
import gc, sys
gc.disable()  # imports create none
sys.path.append({str(ROOT / "tests")!r})
from rendering import without_rendering
without_rendering()
from probing.__main__ import main
gc.enable()
sys.exit(main())
"""
# Long enough for a busy machine; nothing waits so long unless something is wrong.
PATIENCE_S = 600


def type_here(args: list[str], moment: tuple[str, bool] | None, variables: dict[str, str]) -> None:
    """Type `probing` in this process, and kill it where a file or folder gets its name, if a moment is given.

    Args:
        args: What is typed.
        moment: The end of that path, and whether to kill just after it has its name, or just before, when what was
            written still has a temporary one.
        variables: Variables of the environment.
    """
    from probing.__main__ import COMMANDS
    from probing.cli.commandline import run
    from rendering import without_rendering

    named = False

    def watch(event: str, values: tuple[Any, ...]) -> None:
        nonlocal named
        if moment is None or event == "os.kill":
            return
        path, after = moment
        at = event == "os.rename" and str(values[1]).endswith(path)
        if named or (at and not after):
            os.kill(os.getpid(), signal.SIGKILL)
        named = named or at

    os.environ.update(variables)
    warnings.simplefilter("ignore")
    without_rendering()
    sys.addaudithook(watch)
    sys.exit(run(COMMANDS, args))


def processes_of(args: list[str], moment: tuple[str, bool] | None, *variables: dict[str, str]) -> list[int | None]:
    """Type `probing` in a process for each set of variables, and return their exit statuses."""
    started = [processes().Process(target=type_here, args=(args, moment, one)) for one in variables]
    for process in started:
        process.start()
    for process in started:
        process.join(PATIENCE_S)
    return [process.exitcode for process in started]


def assert_same_files(one: Path, other: Path) -> None:
    """Assert that the tables of two runs, and the tensors of their checkpoints, have the same bytes."""
    files = sorted(str(path.relative_to(one)) for path in one.rglob("*") if path.suffix in (".csv", ".safetensors"))
    assert any("checkpoints" in name for name in files)
    for name in files:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
