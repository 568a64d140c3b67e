"""`--print_config`: a command's options as they are in effect, as a YAML file that `--config` reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from textwrap import fill
from typing import Any

from probing.cli.arguments import PRINT_CONFIG, Parser, parse, with_underscores
from probing.cli.hints import option_types
from probing.cli.yaml_files import as_text
from probing.errors import UserError
from probing.runtime.installation import started_as
from probing.runtime.terminal import prints_unicode

# The word that asks for the description of each option, and the width of a line of it.
COMMENTS, WIDTH = "comments", 110


def taken_out(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the command line's words without `--print_config`, and what was given to it each time it occurs."""
    names = [with_underscores(arg).partition("=")[0] == PRINT_CONFIG for arg in args]
    others = [arg for arg, is_asked in zip(args, names, strict=True) if not is_asked]
    return others, [arg.partition("=")[2] for arg, is_asked in zip(args, names, strict=True) if is_asked]


def print_config(name: str, function: Callable[..., Any], args: Sequence[str], forms: Sequence[str]) -> None:
    """Print what a command would be called with.

    Args:
        name: The command's name.
        function: The command's function.
        args: The command line's words, without `--print_config`.
        forms: What was given to `--print_config`.

    Raises:
        UserError: If there are problems with the options, or a form is not known.
    """
    for form in forms:
        if form not in ("", COMMENTS):
            raise UserError(f"`{PRINT_CONFIG}={form}`: expected {PRINT_CONFIG} alone or {PRINT_CONFIG}={COMMENTS}.")
    options = parse(name, function, args)
    print(f"# {started_as()} {name} --config FILE.yaml")
    for line in _lines(options, _descriptions(function) if COMMENTS in forms else {}):
        print(line)


def _lines(options: Mapping[str, Any], descriptions: Mapping[str, str], group: str = "") -> Iterator[str]:
    """Yield the lines of the file, the options of a group indented below its name."""
    indent = "  " if group else ""
    for name, value in options.items():
        if description := descriptions.get(f"{group}{name}"):
            yield ""
            yield fill(description, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
        if is_dataclass(value) and not isinstance(value, type):
            yield f"{name}:"
            yield from _lines(asdict(value), descriptions, f"{name}.")
        else:
            yield from (f"{indent}{line}" for line in as_text({name: value}, unicode=prints_unicode()).splitlines())


def _descriptions(function: Callable[..., Any]) -> dict[str, str]:
    """Return the help of each option, by its dotted name."""
    parser = Parser()
    parser.add_options(function)
    of_all = {action.dest: " ".join((action.help or "").split()) for action in parser._actions}
    return {name: of_all[name] for name in option_types(function) if name in of_all}
