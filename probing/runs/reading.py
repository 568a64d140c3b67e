"""What kind of results a folder holds, what was left out of them, and messages where it holds none or is damaged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from probing.errors import RunError, UserError, as_clause
from probing.runs.documents import read_json
from probing.runs.folder import PARTIAL


def kind_of(folder: Path, wrote: str) -> str | None:
    """Return what kind of results a folder holds, as its `results.json` names it; None for a run of `fit` or `probe`.

    Args:
        folder: The folder.
        wrote: The commands that write such a folder, for the message.

    Raises:
        UserError: If it holds no finished results, or is damaged.
    """
    if not (folder / "results.json").is_file() or folder.name.endswith(PARTIAL):
        partial = folder.with_name(folder.name + PARTIAL)
        hint = f"; {partial} is one that did not finish" if partial.is_dir() else ""
        found = "is no finished run" if folder.exists() else "does not exist"
        raise UserError(f"`{folder}` {found}: expected a folder that {wrote} wrote{hint}.")
    with reading(folder):
        kind = read_json(folder / "results.json").get("kind")
        if not isinstance(kind, str | None):
            raise ValueError("results.json names no kind of results")
        return kind


def leaves_out_first(config: Mapping[str, Any]) -> bool:
    """Return whether a run leaves out first tokens; runs of earlier versions, which lack the option, do not."""
    return bool(config.get("first_token") == "exclude")


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Turn any error while a folder is read, or its tables are shown, into a message that it is damaged.

    Raises:
        UserError: If something fails.
    """
    try:
        yield
    except (UserError, RunError):
        raise
    except KeyError as error:
        raise UserError(f"`{folder}` is damaged (there is no {error} in it); repeat the run.") from error
    except OSError as error:
        what = f"{Path(error.filename).name}: " if error.filename else ""
        raise UserError(f"`{folder}` is damaged ({what}{as_clause(error)}); repeat the run.") from error
    except Exception as error:  # what libraries raise of values that nobody foresaw
        raise UserError(f"`{folder}` is damaged ({as_clause(error)}); repeat the run.") from error
