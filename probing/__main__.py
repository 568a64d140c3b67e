"""The table of commands."""

from __future__ import annotations

import sys

# The commands in the order of the usage text; each is a function in a module of its name, imported when it is run.
_STUDIES = (
    "fit", "extract", "rank", "compare", "sweep", "geometry", "attention", "disable", "hierarchy", "cloze", "pretrain",
    "series", "wic", "sts", "reproduce", "report",
)  # fmt: skip
COMMANDS = {
    **{name: f"probing.commands.{name}:{name}" for name in _STUDIES},
    **{f"cache {name}": f"probing.commands.cache:{name}" for name in ("ls", "verify", "prune")},
}


def main() -> int:
    """Run the command line and return the exit status."""
    from probing.cli.commandline import USER_ERROR, run_process
    from probing.errors import UserError, one_line
    from probing.runs.registry import added_studies
    from probing.runtime.installation import refuse_mixed_files

    try:
        refuse_mixed_files()
    except UserError as error:
        print(one_line(f"probing: {error}"), file=sys.stderr)
        return USER_ERROR
    return run_process(COMMANDS | added_studies(), sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
