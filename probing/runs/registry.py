"""Which studies there are: those of this package, and those that other packages add by an entry point."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from probing.errors import UserError
from probing.results.schema import listed
from probing.runs.known_studies import STUDIES
from probing.runs.study import Study
from probing.runtime.processes import launched

# The group of entry points by which another package adds a study.
GROUP = "probing.studies"


@cache
def added_studies() -> dict[str, str]:
    """Return where the studies of other packages are, as `module:name`; none can replace one of this package."""
    found = sorted((one.name, one.value) for one in entry_points(group=GROUP))
    return {name: where for name, where in found if name not in STUDIES}


def study_names() -> list[str]:
    """Return the names of all studies, which are those of their commands."""
    return [*STUDIES, *added_studies()]


def own_studies() -> list[Study]:
    """Return the studies of this package."""
    return [study_of(name) for name in STUDIES]


@cache
def study_of(name: str) -> Study:
    """Return a study.

    Raises:
        UserError: If another package names a study that cannot be imported, or is none.
    """
    where = STUDIES.get(name) or added_studies()[name]
    module, _, attribute = where.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"the study {name} ({where}) cannot be imported ({error}); update or remove its package."
        ) from None
    if not isinstance(found, Study):
        raise UserError(f"the study {name} ({where}) is a {type(found).__name__}: expected a probing.Study.")
    return found


def study_of_kind(kind: str) -> Study | None:
    """Return the study whose results are of this kind, as `results.json` names it; None if there is none."""
    return next((study for study in map(study_of, study_names()) if study.kind == kind), None)


def several() -> str:
    """Return the commands that can run in several processes, as messages name them."""
    return listed(["`extract`", *(f"`{name}`" for name in study_names() if study_of(name).in_several_processes)])


def refuse_several(command: str) -> None:
    """Refuse to run where torchrun or srun started several processes.

    Args:
        command: Name of the command.

    Raises:
        UserError: If there are several processes.
    """
    if launched():
        raise UserError(
            f"`{command}` runs in one process, and torchrun or srun started several; start it by itself ({several()} "
            "run in several)."
        )
