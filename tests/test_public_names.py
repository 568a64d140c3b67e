"""What users build on: Python names, options, and columns of files, as `public_names.txt` lists them.

`python tests/test_public_names.py` writes the list anew. A line less is a breaking change; see CONTRIBUTING.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

LIST = Path(__file__).with_name("public_names.txt")


def public_names() -> Iterator[str]:
    """Yield a line for each Python name, option and column."""
    import probing
    from probing.__main__ import COMMANDS
    from probing.cli.arguments import option_types
    from probing.cli.commandline import load_command
    from probing.runs import package_studies

    for name in probing.__all__:
        yield f"probing.{name}"
    for command, where in COMMANDS.items():
        for option in option_types(load_command(where)):
            if not option.startswith("return"):
                yield f"{command} --{option}"
    for study in package_studies():
        for schema in study.schemas:
            for column in schema.types:
                yield f"{study.name}: {schema.name}.csv {column}"


def test_public_names_go_only_on_purpose() -> None:
    listed = LIST.read_text(encoding="utf-8").splitlines()
    there = sorted(set(public_names()))
    gone = sorted(set(listed) - set(there))
    assert not gone, f"breaking, see CONTRIBUTING.md: {gone}"
    assert listed == there, "names were added: run python tests/test_public_names.py"


def test_the_list_has_names_of_every_kind() -> None:
    listed = set(LIST.read_text(encoding="utf-8").splitlines())
    assert {"probing.fit", "fit --probe.l2", "rank --method", "fit: accuracy.csv accuracy"} <= listed


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    LIST.write_text("".join(f"{name}\n" for name in sorted(set(public_names()))), encoding="utf-8")
