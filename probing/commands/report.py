"""`report`: finished runs as one self-contained HTML page."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import cast

from probing.cli.commandline import command
from probing.cli.option_types import Folders
from probing.errors import UserError, as_clause
from probing.runs.folder import PARTIAL
from probing.runtime.files import open_file
from probing.runtime.machine import quiet_libraries


@command
def report(folders: Folders | None = None, output: str | None = None) -> Path:
    """Write finished runs as one HTML page: question and answer, figures, sortable tables, and how to repeat them.

    Args:
        folders: Folders of finished runs, of at most one comparison of them, and of the results of any other command;
            may be given without `--folders`.
        output: File to write. By default RUN/report.html, for several runs report-A-B.html beside the first, and with a
            comparison report.html in its folder. An existing report is replaced.

    Returns:
        The file.
    """
    named = cast("list[str] | None", folders)  # as `command` has converted them
    if not named:
        raise UserError("`report` takes the folders of finished runs, such as runs/A runs/B.")
    from probing.page.sources import read_sources

    sources = read_sources(named)
    path = (
        Path(output) if output is not None else _default(named, sources.agreement.folder if sources.agreement else None)
    )
    _check(path, f"--output {path}")

    with quiet_libraries():
        from probing.cli.option_types import defaults
        from probing.page.build import build
        from probing.studies.fit.command import fit

        content = build(sources, defaults(fit))
    _write(path, content)
    print(f"Report: {path} ({len(content) / 1e6:.1f} MB)")
    return path


def _default(folders: list[str], comparison: Path | None) -> Path:
    """Return the default path of the page."""
    first = Path(folders[0])
    if comparison:
        return comparison / "report.html"
    if len(folders) == 1:
        return first / "report.html"
    names = "-".join(Path(folder).resolve().name for folder in folders)
    return first.resolve().parent / f"report-{names[:100]}.html"


def _check(path: Path, typed: str) -> None:
    """Check, before any work, that a page can be written there and replaces nothing but another report.

    Raises:
        UserError: If it cannot be written, or would replace another file.
    """
    from probing.results.rows import MARK

    try:
        if path.is_dir():
            raise UserError(f"`{typed}` is a folder; name a file in it.")
        if not path.parent.is_dir():
            raise UserError(f"`{typed}`: there is no folder {path.parent}; make it, or name another file.")
        if path.exists():
            with open_file(path) as file:
                if file.read(len(MARK)) != MARK.encode():
                    raise UserError(f"`{typed}` is there and is no report; name another file.")
    except (OSError, ValueError) as error:
        raise UserError(f"`{typed}` cannot be written ({as_clause(error)}); name another file.") from None


def _write(path: Path, content: bytes) -> None:
    """Write the page under a temporary name and rename it when whole.

    Raises:
        UserError: If it cannot be written.
    """
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name[:100]}", suffix=PARTIAL, delete=False
        ) as file:
            temporary = Path(file.name)
            file.write(content)
        temporary.chmod(0o666 & ~_umask())
        temporary.rename(path)
    except BaseException as error:
        if temporary:
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise UserError(
                f"`--output {path}` cannot be written ({as_clause(error)}); make room, or name another file."
            ) from None
        raise


def _umask() -> int:
    """Return the process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
