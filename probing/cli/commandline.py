"""Runs the command that the arguments name, and reports errors by an exit status and one line."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from probing.cli.arguments import parse
from probing.cli.printed_config import print_config, taken_out
from probing.cli.python_calls import unchecked
from probing.cli.variables import check_variables, without_display
from probing.errors import RunError, UserError, did_you_mean, one_line
from probing.runtime.distributed import end_others, end_with_parent, is_main_process, lost_rank, wait_for_first_rank
from probing.runtime.installation import started_as
from probing.runtime.interrupts import Terminated, interrupt_behind, signals_interrupt
from probing.runtime.memory import set_heap_aside
from probing.runtime.terminal import escaped_output, visible_output
from probing.runtime.versions import own_version

RUN_ERROR, USER_ERROR, INTERRUPTED, PIPE_CLOSED, TERMINATED = 1, 2, 130, 141, 143

# The signal for each exit status that a shell shows when a signal ended the process.
_SIGNALS = {INTERRUPTED: signal.SIGINT, TERMINATED: signal.SIGTERM}


def run_process(commands: Mapping[str, str], args: Sequence[str]) -> int:
    """Run a command as the only work of this process and return the exit status; if interrupted, end by the signal.

    A shell sees the same status in both cases. But a signal also ends the shell's loop, and a W&B agent that has
    stopped a trial does not count it as failed; it would give up after a few failed trials.

    Args:
        commands: The commands, as for `run`.
        args: The command line's words.
    """
    ended_by: list[int] = []

    def end() -> None:
        for number in ended_by:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    atexit.register(end)  # the first function registered runs last
    without_display()
    set_heap_aside()  # libraries stay until the process ends, so no garbage collection needs to search them
    status = run(commands, args)
    ended_by += [_SIGNALS[status]] if status in _SIGNALS else []
    set_heap_aside()  # otherwise the interpreter's last garbage collection would take a second
    return status


def run(commands: Mapping[str, str], args: Sequence[str]) -> int:
    """Run the command that the arguments name and return the exit status.

    Args:
        commands: For each name, of one or two words, its function as `module:function`.
        args: The command line's words.
    """
    try:
        with escaped_output(), visible_output():
            return _run(commands, args)
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed it
        status = PIPE_CLOSED
    except RunError as error:  # nothing can be written there; what a command raises is reported by `_run`
        print(one_line(f"probing: {error}"), file=sys.stderr)
        status = RUN_ERROR
    with suppress(OSError):  # a stream of a notebook has no number
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for output that is flushed at exit
    return status


def _run(commands: Mapping[str, str], args: Sequence[str]) -> int:
    name, rest = _command(commands, args)
    if name is None:
        return _usage(commands, args)
    end_with_parent()
    with signals_interrupt():
        try:
            check_variables()
            function = _load(commands[name])
            rest, printed_as = taken_out(rest)
            if printed_as and not {"-h", "--help"} & set(rest):
                print_config(name, function, rest, printed_as)
            else:
                function(**parse(name, function, rest))
            return 0
        except BaseException as error:
            end_others()
            if interrupt := interrupt_behind(error):
                is_term = isinstance(interrupt, Terminated)
                status, how = (TERMINATED, "terminated") if is_term else (INTERRUPTED, "interrupted")
                message = "; ".join([how, *map(str, interrupt.args), "the cached activations are kept"])
            elif isinstance(told := lost_rank(error) or error, UserError | RunError):
                status, message = USER_ERROR if isinstance(told, UserError) else RUN_ERROR, str(told)
                wait_for_first_rank()
            else:
                raise
    if is_main_process() or status in (USER_ERROR, RUN_ERROR):
        print(one_line(f"probing {name}: {message}"), file=sys.stderr)
    return status


def _command(commands: Mapping[str, str], args: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """Return the command's name and its own arguments, or None where the arguments name no command."""
    for words in (2, 1):
        if (name := " ".join(args[:words])) in commands:
            return name, args[words:]
    return None, args


def _usage(commands: Mapping[str, str], args: Sequence[str]) -> int:
    if args and args[0] == "--version":
        print(f"probing {own_version()}")
        return 0
    if args and args[0] not in ("-h", "--help"):
        typed = " ".join(arg for arg in args[:2] if arg == args[0] or not arg.startswith("-"))
        near = did_you_mean(typed, commands) or did_you_mean(args[0], commands)
        message = f"probing: there is no command `{typed}`{near}; commands are {', '.join(commands)}"
        print(one_line(message), file=sys.stderr)
        return USER_ERROR
    started = started_as()
    print(f"usage: {started} COMMAND [OPTIONS]   ({started} COMMAND --help lists a command's options)")
    print(f"       {started} --version\n")
    for name, function in commands.items():
        print(f"  {name:14} {(_load(function).__doc__ or '').splitlines()[0]}")
    return 0


def _load(function: str) -> Callable[..., Any]:
    """Return the function that a command is, or that a study of another package has as its command."""
    module, name = function.split(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        if module.split(".")[0] == __name__.split(".")[0]:
            raise
        where = f"the command at {function} cannot be imported ({error})"
        raise UserError(f"{where}; update or remove the package that adds it.") from error
    return unchecked(getattr(found, "command", found))
