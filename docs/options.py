"""Write `options.md` from the declarations of options, which `--help` of each command shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from probing.__main__ import COMMANDS
from probing.cli.commandline import load_command
from probing.cli.option_types import expected
from probing.cli.options import flat, options_of

PAGE = Path(__file__).with_name("options.md")

HEAD = """# Options

*Which options does each command have?*

`make docs` writes this page from the help of each command. Options are spelled with underscores; hyphens are accepted
too. A yes/no option may stand alone (`--quiet`). Every command takes `--config FILE.yaml`, and the command line
overrides the file. `--print_config` prints all options of a command as they are in effect, as such a file, and does
nothing else; `--print_config=comments` also describes each:

```bash
python -m probing fit --layer 6 --print_config=comments > mine.yaml
python -m probing fit --config mine.yaml --seed 1
```

The most important ones are explained in the [quickstart](quickstart.md#the-options-that-matter-most).
"""


def page() -> str:
    """Return the page."""
    return HEAD + "".join(f"\n## {name}\n\n{_command(load_command(where))}" for name, where in COMMANDS.items())


def _command(function: Callable[..., Any]) -> str:
    rows = [("option", "value", "default", "meaning"), ("---",) * 4, *_options(function)]
    return f"{_plain((function.__doc__ or '').splitlines()[0])}\n\n" + "".join(
        f"| {' | '.join(cells)} |\n" for cells in rows
    )


def _options(command: Callable[..., Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the cells of each option's row."""
    for name, entry in flat(options_of(command)).items():
        default = "" if entry.default in (None, []) else f"`{_as_typed(entry.default)}`"
        yield f"`--{name}`", _value(entry.hint), default, _plain(entry.help)


def _value(hint: Any) -> str:
    """Return what a value looks like, in fewer words than an error message has."""
    words = expected(hint).replace("text, in quotes if need be", "text").replace("a list such as [a, b]", "list")
    return words.replace("a whole number", "whole number").replace("a number", "number")


def _as_typed(default: Any) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


def _plain(text: str) -> str:
    """Return text as it may stand in a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
