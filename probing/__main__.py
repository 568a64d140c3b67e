"""The table of commands."""

from __future__ import annotations

import sys

# The function of each command; its module is imported when the command is run.
COMMANDS = {
    "fit": "probing.commands.fit:fit",
    "extract": "probing.commands.extract:extract",
    "rank": "probing.commands.rank:rank",
    "compare": "probing.commands.compare:compare",
    "sweep": "probing.commands.sweep:sweep",
    "geometry": "probing.commands.geometry:geometry",
    "attention": "probing.commands.attention:attention",
    "disable": "probing.commands.disable:disable",
    "hierarchy": "probing.commands.hierarchy:hierarchy",
    "cloze": "probing.commands.cloze:cloze",
    "pretrain": "probing.commands.pretrain:pretrain",
    "series": "probing.commands.series:series",
    "wic": "probing.commands.wic:wic",
    "sts": "probing.commands.sts:sts",
    "reproduce": "probing.commands.reproduce:reproduce",
    "report": "probing.commands.report:report",
    "cache ls": "probing.commands.cache:ls",
    "cache verify": "probing.commands.cache:verify",
    "cache prune": "probing.commands.cache:prune",
}


def main() -> int:
    """Run the command line and return the exit status."""
    from probing.cli.commandline import USER_ERROR, run_process
    from probing.errors import UserError, one_line
    from probing.runtime.installation import refuse_mixed_files

    try:
        refuse_mixed_files()
    except UserError as error:
        print(one_line(f"probing: {error}"), file=sys.stderr)
        return USER_ERROR
    return run_process(COMMANDS, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
