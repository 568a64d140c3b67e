"""The command line from typed functions: jsonargparse, with this project's spellings and error reports."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from jsonargparse import ActionConfigFile, ArgumentParser

from probing.errors import RunError, UserError

Command = Callable[..., Any]

USER_ERROR, RUN_ERROR, INTERRUPTED = 2, 1, 130


class Parser(ArgumentParser):
    """Accepts hyphens for underscores and bare yes/no options, and reports every unknown option at once."""

    def parse_args(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        """Parse arguments as the shell gives them."""
        return super().parse_args([self._spelled(arg) for arg in args or ()], *rest, **options)

    def add_argument(self, *args: Any, **options: Any) -> Any:
        """Add an option; one that is yes or no may stand alone."""
        if options.get("type") is bool:
            options = {**options, "nargs": "?", "const": True}
        return super().add_argument(*args, **options)

    def error(self, message: str, error: Exception | None = None) -> NoReturn:
        """Raise the message as a UserError in one sentence."""
        raise UserError(_one_line(message))

    @staticmethod
    def _spelled(arg: str) -> str:
        """Return an option with underscores: `--test-corpus=a-b` is `--test_corpus=a-b`."""
        name, equals, value = arg.partition("=")
        return name[:2] + name[2:].replace("-", "_") + equals + value if re.match(r"--[a-z]", name) else arg


def run(commands: Mapping[str, Callable[[], tuple[Command, Sequence[str]]]], args: Sequence[str]) -> int:
    """Run the command that `args` name and return the exit status.

    Args:
        commands: For each name (one or two words) what loads the function and names its positional arguments.
        args: As the shell gives them.
    """
    name, rest = _command(commands, args)
    if name is None:
        return _usage(commands, args)
    try:
        function, positional = commands[name]()
        parser = build_parser(name, function, positional)
        function(**_keywords(parser, rest))
        return 0
    except UserError as error:
        print(f"probing {name}: {error}", file=sys.stderr)
        return USER_ERROR
    except RunError as error:
        print(f"probing {name}: {error}", file=sys.stderr)
        return RUN_ERROR
    except KeyboardInterrupt:
        print(
            f"\nprobing {name}: interrupted; what was cached is kept, and a run that had begun is *.partial",
            file=sys.stderr,
        )
        return INTERRUPTED


def build_parser(name: str, function: Command, positional: Sequence[str] = ()) -> Parser:
    """Return the parser of a command, from the function's signature and docstring."""
    parser = Parser(prog=f"probing {name}", exit_on_error=False)
    parser.add_argument(
        "--config", action=ActionConfigFile, help="YAML file of options; the command line overrides it."
    )
    parser.add_function_arguments(function, skip=set(positional))
    return parser


def _keywords(parser: Parser, args: Sequence[str]) -> dict[str, Any]:
    namespace = parser.parse_args(args)
    keywords = vars(parser.instantiate(namespace))
    keywords.pop("config", None)
    return keywords


def _command(commands: Mapping[str, Any], args: Sequence[str]) -> tuple[str | None, list[str]]:
    for words in (2, 1):
        if (name := " ".join(args[:words])) in commands and len(args) >= words:
            return name, list(args[words:])
    return None, list(args)


def _usage(commands: Mapping[str, Callable[[], tuple[Command, Sequence[str]]]], args: Sequence[str]) -> int:
    asked_for_help = not args or args[0] in ("-h", "--help") or any(name.startswith(f"{args[0]} ") for name in commands)
    if not asked_for_help:
        print(f"probing: there is no command {args[0]!r}; commands are {', '.join(commands)}.", file=sys.stderr)
        return USER_ERROR
    print("usage: python -m probing COMMAND [--help] [--config FILE.yaml] [OPTIONS]\n")
    for name, load in commands.items():
        function, _ = load()
        print(f"  {name:14} {(function.__doc__ or '').splitlines()[0]}")
    return 0 if args[:1] in ([], ["-h"], ["--help"]) else USER_ERROR


def _one_line(message: str) -> str:
    return " ".join(message.split())
