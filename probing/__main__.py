"""Table of commands."""

from __future__ import annotations

import sys

from probing.registry import STUDIES

# The commands, each as `module:name` of its function or of its study, imported when it is run.
COMMANDS = {
    **STUDIES,
    "extract": "probing.studies.fit:extract",
    "report": "probing.commands:report",
    **{f"export {name}": f"probing.commands:export_{name}" for name in ("latex", "figures", "csv", "parquet")},
    "columns": "probing.commands:columns",
    **{f"cache {name}": f"probing.commands:{name}" for name in ("ls", "verify", "prune")},
}


def main() -> int:
    """Run the command line and return the exit status."""
    from probing.cli.commandline import USER_ERROR, run_process
    from probing.errors import UserError, single_line
    from probing.runtime import refuse_other_files
    from probing.runtime.terminal import complain

    try:
        refuse_other_files()
    except UserError as error:
        complain(single_line(f"probing: {error}"))
        return USER_ERROR
    from probing.runs import added_studies

    return run_process(COMMANDS | added_studies(), sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
