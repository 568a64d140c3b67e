"""Runner of the command that the arguments name; reports errors by an exit status and a line."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from functools import wraps
from inspect import signature
from os import PathLike, fspath
from textwrap import fill
from typing import Any, ParamSpec, TypeVar, get_args

from probing.cli.arguments import (
    COMMANDS_ELSEWHERE,
    PRINT_CONFIG,
    PYTHON,
    WORDS,
    as_text,
    checked,
    option_types,
    parse,
    suggest,
    with_underscores,
)
from probing.cli.options import Options, declared, flat, options_of, problems_of, with_args
from probing.errors import (
    RunError,
    UserError,
    did_you_mean,
    in_python,
    lack_of_machine,
    on_command_line,
    refuse,
    single_line,
    spelled,
)
from probing.registry import load, renamed
from probing.runtime import heap_set_aside, package_version, set_heap_aside, started_as
from probing.runtime.processes import (
    KEPT,
    HungUp,
    Terminated,
    check_ranks,
    end_others,
    end_with_parent,
    interrupt_behind,
    is_main_process,
    lost_rank,
    signals_interrupt,
    wait_for_first_rank,
)
from probing.runtime.progress import overview
from probing.runtime.terminal import columns, complain, escaped_output, open_output, prints_unicode, visible_output

# --------------------------------------------------------------------------------------------------------------------
# Commands called from Python: their arguments are converted and checked as those of the command line are.
# --------------------------------------------------------------------------------------------------------------------

_P = ParamSpec("_P")
_Options = TypeVar("_Options", bound=Options)
_Result = TypeVar("_Result")

# Options that take a list in Python, and the name of a source on the command line.
_LISTS = ("corpus", "test_corpus", "fit_corpus")
# Options that take a dict.
_DICTS = ("trainer", "task_args")
_UNCHECKED = "without_check"
_PLAIN = (str, bool, int, float, list, dict)


def command(
    options: Callable[_P, _Options],
) -> Callable[[Callable[[_Options], _Result | None]], Callable[_P, _Result]]:
    """Make a command of a function that takes an object of a class of options.

    From Python it is called with the arguments of the class, which may also be paths, NumPy numbers, text for numbers
    and mappings for groups. All that is wrong with their values is refused at once, as on the command line, and in the
    words of a call, by a UserError. The result is the rank-zero process's; other processes return None.

    Args:
        options: The class, a frozen dataclass that inherits from `Options`.
    """
    kind: Any = options

    def decorate(run: Callable[[_Options], _Result | None]) -> Callable[_P, _Result]:
        def from_command_line(**keywords: Any) -> Any:
            with spelled(on_command_line), overview(bool(keywords.get("quiet"))):
                return run(_without_problems(kind(**keywords)))

        @wraps(run)
        def called(*args: Any, **keywords: Any) -> Any:
            with spelled(in_python):
                checked_options = _without_problems(kind(**_keywords(called, args, keywords)))
                quiet = getattr(checked_options, "quiet", False)
                process_state = _preserve_process_state() if hasattr(kind, "trainer") else nullcontext()
                with escaped_output(), overview(quiet, briefly=True), process_state:
                    return run(checked_options)

        result = run.__annotations__.get("return")
        vars(called)["__signature__"] = signature(kind).replace(return_annotation=result)
        called.__doc__ = from_command_line.__doc__ = with_args(run.__doc__ or "", kind)
        vars(called)["options"] = vars(from_command_line)["options"] = kind
        vars(called)[_UNCHECKED] = from_command_line
        return called

    return decorate


def _without_problems(options: _Options) -> _Options:
    refuse(list(problems_of(options)))
    return options


def _keywords(command: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the converted arguments of a call; unknown arguments raise TypeError, which also names wrong values."""
    public = signature(command)
    first, second = [*public.parameters, "", ""][:2]
    is_text = len(args) > 1 and isinstance(args[1], str | PathLike)
    if first in WORDS and is_text and str not in get_args(option_types(command)[second]):
        folders = ", ".join(repr(fspath(arg)) for arg in args if isinstance(arg, str | PathLike))
        raise UserError(f"`{command.__name__}` takes {first} as a list: `{command.__name__}([{folders}])`.")
    problems = [
        f"got an unexpected keyword argument {name!r}{suggest(name, option_types(command), command.__name__)}"
        for name in keywords
        if name not in public.parameters
    ]
    values: dict[str, Any] = {}
    try:
        known = {name: value for name, value in keywords.items() if name in public.parameters}
        values = converted(command, public.bind(*args, **known).arguments)
        problems += problems_of(options_of(command)(**values), together=False) if problems else []
    except (TypeError, UserError) as error:
        if isinstance(error, UserError) and not problems:
            raise
        problems.append(str(error).rstrip("."))
    if problems:
        raise TypeError(f"{command.__name__}() {'; '.join(problems)}")
    return values


@contextmanager
def _preserve_process_state() -> Iterator[None]:
    """Restore torch's algorithms afterwards, and exclude existing objects from garbage collection."""
    from probing.runtime.trainer import preserve_algorithms

    with preserve_algorithms(), heap_set_aside():
        yield


def without_validation(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command that takes options as the command line has parsed them, without conversion of its arguments."""
    unwrapped: Callable[..., Any] = getattr(command, _UNCHECKED, command)
    return unwrapped


def converted(command: Callable[..., Any], arguments: Mapping[str, Any], name: str | None = None) -> dict[str, Any]:
    """Return the plain arguments converted to a command's types, and objects unchanged.

    Raises:
        UserError: If the option does not take a value; the message names the command by `name`.
    """
    known = declared(options_of(command))
    values = {option: as_plain(value) for option, value in arguments.items() if not known[option].is_of_python}
    values |= {option: [value] for option in WORDS if isinstance(value := values.get(option), str)}
    objects = {option for option, value in values.items() if _is_object(value, option)}
    refuse([_no_dict(option, values[option]) for option in _DICTS if option in objects])
    plain_values = {option: value for option, value in values.items() if option not in objects}
    checked_values = checked(options_of(command), plain_values, name or command.__name__, PYTHON)
    checked_values = {option: checked_values[option] for option in plain_values}
    return {**arguments, **checked_values, **{option: values[option] for option in objects}}


def _no_dict(option: str, value: Any) -> str:
    problem = f"`{option}` is of the type {type(value).__module__}.{type(value).__name__}, and expected is a dict"
    if option != "trainer":
        return problem
    return f"{problem} of arguments of Lightning's Trainer, such as {{'max_epochs': 50}}, from which one is made"


def _is_object(value: Any, name: str) -> bool:
    if isinstance(value, list):
        return name in _LISTS or any(_is_object(inner, "") for inner in value)
    return not (value is None or isinstance(value, _PLAIN))


def as_plain(value: Any) -> Any:
    """Return a value as the command line would give it: paths as text, NumPy numbers as Python's, groups as dicts."""
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, Options):
        return {name: as_plain(getattr(value, name)) for name in declared(type(value))}
    if isinstance(value, Mapping):
        return {name: as_plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | range):
        return [as_plain(inner) for inner in value]
    if type(value).__module__.split(".")[0] == "numpy" and getattr(value, "ndim", 2) < 2:
        return value.tolist()  # numbers as well as arrays of them
    return value


# A date of more digits is after the year 9999, which is Python's last.
_LONGEST = 11


def check_variables() -> None:
    """Raise UserError for a value of SOURCE_DATE_EPOCH on which matplotlib would fail after all work."""
    # matplotlib writes it into PDF files as their date.
    date = os.environ.get("SOURCE_DATE_EPOCH")
    if date and not (date.isascii() and date.isdecimal() and len(date) <= _LONGEST):
        raise UserError(
            f"SOURCE_DATE_EPOCH is {date!r}: expected a date in seconds since 1970; correct it or unset it."
        )


def without_display() -> None:
    """Remove `MPLBACKEND`, so that matplotlib does not look for a window system: figures are only written to files."""
    os.environ.pop("MPLBACKEND", None)


# The word that asks for the description of each option, and the width of a line of it.
COMMENTS, WIDTH = "comments", 110


def taken_out(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the command line's words without `--print_config`, and the value of each of its occurrences."""
    names = [with_underscores(arg).partition("=")[0] == PRINT_CONFIG for arg in args]
    others = [arg for arg, is_print_config in zip(args, names, strict=True) if not is_print_config]
    return others, [arg.partition("=")[2] for arg, is_print_config in zip(args, names, strict=True) if is_print_config]


def print_config(name: str, function: Callable[..., Any], args: Sequence[str], forms: Sequence[str]) -> None:
    """Print the options of a command as a configuration file; `forms`, the values of `--print_config`, are checked."""
    for form in forms:
        if form not in ("", COMMENTS):
            raise UserError(f"`{PRINT_CONFIG}={form}`: expected {PRINT_CONFIG} alone or {PRINT_CONFIG}={COMMENTS}.")
    options = parse(name, function, args)
    print(f"# {started_as()} {name} --config FILE.yaml")
    help_of = {key: entry.help for key, entry in flat(options_of(function)).items()}
    for line in _lines(options, help_of if COMMENTS in forms else {}):
        print(line)


def _lines(options: Mapping[str, Any], descriptions: Mapping[str, str], group: str = "") -> Iterator[str]:
    indent = "  " if group else ""
    for name, value in options.items():
        if description := descriptions.get(f"{group}{name}"):
            yield ""
            yield fill(description, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
        if isinstance(value, Options):
            yield f"{name}:"
            yield from _lines(asdict(value), descriptions, f"{name}.")
        else:
            yield from (f"{indent}{line}" for line in as_text({name: value}, unicode=prints_unicode()).splitlines())


RUN_ERROR, USER_ERROR, HUNG_UP, INTERRUPTED, PIPE_CLOSED, TERMINATED = 1, 2, 129, 130, 141, 143

# The exit status of each interrupt, which a shell shows when the signal ended the process, and what is said of it.
_ENDS = {
    KeyboardInterrupt: (INTERRUPTED, "interrupted"),
    Terminated: (TERMINATED, "terminated"),
    HungUp: (HUNG_UP, "ended because the terminal was closed"),
}


def run_process(commands: Mapping[str, str], args: Sequence[str]) -> int:
    """Run a command as the only work of this process and return the exit status; if interrupted, end by the signal.

    The signal also ends the shell's loop, and a W&B agent, which gives up after a few failed trials, does not count a
    stopped trial as failed.
    """
    ended_by: list[int] = []

    def end() -> None:
        for number in ended_by:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    atexit.register(end)  # the first function registered runs last
    without_display()
    set_heap_aside()  # libraries stay until the process ends, so no garbage collection needs to search them
    with signals_interrupt():
        status = run(commands, args)
        ended_by += [status - 128] if status in {ended for ended, _ in _ENDS.values()} else []
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:  # what ends the interpreter needs no traceback
        signal.signal(signal.SIGINT, signal.SIG_IGN if ended_by else signal.SIG_DFL)
    set_heap_aside()  # otherwise the interpreter's last garbage collection would take a second
    return status


def run(commands: Mapping[str, str], args: Sequence[str]) -> int:
    """Run a command, of one or two words, from `commands` (name to `module:function`) and return the exit status."""
    try:
        with open_output(), escaped_output(), visible_output():
            return _run(commands, args)
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed it
        status = PIPE_CLOSED
    except (UserError, RunError) as error:  # nothing can be written there; what a command raises is reported by `_run`
        complain(single_line(f"probing: {error}"))
        status = RUN_ERROR if isinstance(error, RunError) else USER_ERROR
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
            check_ranks()
            function = without_validation(load_command(commands[name]))
            rest, printed_as = taken_out(rest)
            if printed_as and not {"-h", "--help"} & set(rest):
                print_config(name, function, rest, printed_as)
            else:
                function(**parse(name, function, rest))
            return 0
        except BaseException as error:
            end_others()
            if interrupt := interrupt_behind(error):
                status, how = _ENDS[type(interrupt)]
                message = "; ".join([how, *map(str, interrupt.args), "the cached activations are kept"])
            elif isinstance(reported := lost_rank(error) or error, UserError | RunError):
                status, message = USER_ERROR if isinstance(reported, UserError) else RUN_ERROR, str(reported)
                wait_for_first_rank()
            elif lacks := lack_of_machine(error):
                status, message = RUN_ERROR, f"{lacks}; {KEPT}, with less or where there is more"
            else:
                raise
            if is_main_process() or status in (USER_ERROR, RUN_ERROR):
                complain(single_line(f"probing {name}: {message}"))
            return status


def _command(commands: Mapping[str, str], args: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    for words in (2, 1):
        if (name := " ".join(args[:words])) in commands:
            return name, args[words:]
    return None, args


def _usage(commands: Mapping[str, str], args: Sequence[str]) -> int:
    if args and args[0] == "--version":
        print(f"probing {package_version()}")
        return 0
    if args and args[0] not in ("-h", "--help"):
        if sentence := renamed(args[0]):
            complain(f"probing: {sentence}")
            return USER_ERROR
        command_text = " ".join(arg for arg in args[:2] if arg == args[0] or not arg.startswith("-"))
        near = did_you_mean(command_text, commands) or did_you_mean(args[0], commands, elsewhere=COMMANDS_ELSEWHERE)
        message = f"probing: there is no command `{command_text}`{near}; commands are {', '.join(commands)}"
        complain(single_line(message))
        return USER_ERROR
    started, about = started_as(), {name: load_command(where).__doc__ or "" for name, where in commands.items()}
    print(f"usage: {started} COMMAND [OPTIONS]")
    print(f"       {started} COMMAND --help   (its options)")
    print(f"       {started} --version\n")
    for name, description in about.items():
        print(
            fill(description.partition("\n")[0], columns(), initial_indent=f"  {name:14} ", subsequent_indent=" " * 17)
        )
    return 0


def load_command(where: str) -> Callable[..., Any]:
    """Return the function of a command from `module:name` of the function or its study.

    An import error of another package's command raises UserError.
    """
    try:
        target = load(where)
    except (ImportError, AttributeError) as error:
        if where.split(".")[0] == __name__.split(".")[0]:
            raise
        problem = f"the command at {where} cannot be imported ({error})"
        raise UserError(f"{problem}; update or remove the package that adds it.") from error
    function: Callable[..., Any] = getattr(target, "command", target)
    return function
