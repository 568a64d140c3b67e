"""The command line from typed functions: jsonargparse, with this project's spellings and error reports."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

from jsonargparse import ActionConfigFile, ArgumentParser

from probing.errors import RunError, UserError
from probing.interrupts import Terminated, interrupt_behind, signals_interrupt

RUN_ERROR, USER_ERROR, INTERRUPTED, TERMINATED = 1, 2, 130, 143


class Parser(ArgumentParser):
    """Lets yes/no options stand alone and turns what is wrong with the arguments into a UserError."""

    def add_argument(self, *args: Any, **options: Any) -> Any:
        """Add an option; one that is yes or no may stand alone."""
        if options.get("type") is bool:
            options = {**options, "nargs": "?", "const": True}
        return super().add_argument(*args, **options)

    def error(self, message: str, error: Exception | None = None) -> NoReturn:
        """Raise the message as a UserError in one line."""
        raise UserError(plain_words(message))


def run(commands: Mapping[str, str], args: Sequence[str]) -> int:
    """Run the command that the arguments name and return the exit status.

    Args:
        commands: For each name, of one or two words, its function as `module:function`.
        args: As the shell gives them.
    """
    name, rest = _command(commands, args)
    if name is None:
        return _usage(commands, args)
    with signals_interrupt():
        try:
            function = _load(commands[name])
            function(**parse(name, function, rest))
            return 0
        except BaseException as error:
            if interrupt := interrupt_behind(error):
                is_term = isinstance(interrupt, Terminated)
                status, how = (TERMINATED, "terminated") if is_term else (INTERRUPTED, "interrupted")
                message = "; ".join([how, "what was cached is kept", *map(str, interrupt.args)])
            elif isinstance(error, UserError | RunError):
                status, message = USER_ERROR if isinstance(error, UserError) else RUN_ERROR, str(error)
            else:
                raise
    print(f"probing {name}: {message}", file=sys.stderr)
    return status


def parse(name: str, function: Callable[..., Any], args: Sequence[str]) -> dict[str, Any]:
    """Return a command's keyword arguments, from its signature, `--config` files and the command line.

    Raises:
        UserError: If an option or key is unknown or a value is of the wrong type.
    """
    parser = Parser(prog=f"probing {name}")
    parser.add_argument(
        "--config", action=ActionConfigFile, help="YAML file of options; the command line overrides it."
    )
    parser.add_function_arguments(function)
    keywords = vars(parser.instantiate(parser.parse_args([with_underscores(arg) for arg in args])))
    return {key: value for key, value in keywords.items() if key != "config"}


def plain_words(message: str) -> str:
    """Return jsonargparse's message in one line and without Python's names for things."""
    text = " ".join(message.split())
    text = re.sub(r'Parser key "([^"]+)":', r"`--\1`:", text)
    text = re.sub(r"Does not validate against any of the Union subtypes Subtypes: .*? Errors: - ", "", text)
    return re.sub(r"<class '(\w+)'>", r"\1", text).replace("typing.", "")


def with_underscores(arg: str) -> str:
    """Return an option spelled with underscores: `--test-corpus=a-b` is `--test_corpus=a-b`."""
    name, equals, value = arg.partition("=")
    return f"--{name[2:].replace('-', '_')}{equals}{value}" if re.match(r"--[a-z]", name) else arg


def _command(commands: Mapping[str, str], args: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """Return the command's name and its own arguments, or None where the arguments name no command."""
    for words in (2, 1):
        if (name := " ".join(args[:words])) in commands:
            return name, args[words:]
    return None, args


def _usage(commands: Mapping[str, str], args: Sequence[str]) -> int:
    if args and args[0] not in ("-h", "--help"):
        print(
            f"probing: there is no command `{' '.join(args[:2])}`; commands are {', '.join(commands)}", file=sys.stderr
        )
        return USER_ERROR
    print("usage: python -m probing COMMAND [OPTIONS]   (python -m probing COMMAND --help lists a command's options)\n")
    for name, function in commands.items():
        print(f"  {name:14} {(_load(function).__doc__ or '').splitlines()[0]}")
    return 0


def _load(function: str) -> Callable[..., Any]:
    module, name = function.split(":")
    return getattr(import_module(module), name)
