"""The start and the checkpoints that were tuned from it: those of a run of `finetune`, or those that a user names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from probing.errors import UserError
from probing.runs.loading import load_run
from probing.runs.tuned import CHECKPOINTS, Tuned, checkpoint_name

# With which checkpoint one is compared, in tables, where it is the start.
START = "start"
# From which weights a checkpoint was tuned, as `finetune` names it: the pretrained model, on true or shuffled labels.
TRUE, SHUFFLED = "pretrained", "shuffled"


@dataclass(frozen=True)
class Member:
    """A checkpoint that was tuned from the start.

    Args:
        name: Its name, in tables.
        model: Its folder, or another name of a model.
        start: Whether it was tuned on the true labels (`pretrained`) or on labels that were shuffled (`shuffled`).
        seed: Its seed; two checkpoints that differ in the seed alone have the same order.
        order: The seed of the order of its data.
    """

    name: str
    model: str
    start: str
    seed: int
    order: int

    @property
    def row(self) -> dict[str, Any]:
        """The columns that say which checkpoint a row is of."""
        return {"checkpoint": self.name, "start": self.start, "seed": self.seed, "order_seed": self.order}


@dataclass(frozen=True)
class Family:
    """A start, and what was tuned from it.

    Args:
        start: Name or folder of the start.
        revision: Its revision on the hub.
        members: The checkpoints.
        run: The run of `finetune` that has tuned them, if it was one.
    """

    start: str
    revision: str | None
    members: Sequence[Member]
    run: Any = None

    def of(self, start: str) -> list[Member]:
        """Return the members that were tuned on true, or on shuffled labels."""
        return [one for one in self.members if one.start == start]

    def apart(self) -> Iterator[tuple[Member, Member]]:
        """Yield the pairs of members tuned on true labels that differ in the seed alone."""
        own = self.of(TRUE)
        yield from ((a, b) for a, b in combinations(own, 2) if a.order == b.order)


def of_run(folder: str) -> Family:
    """Return what a run of `finetune` tuned from trained weights.

    Raises:
        UserError: If it is another run, tuned nothing from trained weights on true labels, or lacks a checkpoint.
    """
    run = load_run(folder)
    typed = f"--run {folder}"
    if run.study.name != "finetune":
        raise UserError(f"`{typed}`: expected a run of `finetune`, found one of `{run.study.name}`; give another.")
    rows = [row for row in run.tunings if row["start"] in (TRUE, SHUFFLED)]
    if not any(row["start"] == TRUE for row in rows):
        raise UserError(
            f"`{typed}`: nothing in it was tuned from the pretrained model, whose change is measured; repeat "
            "`finetune` with --starts pretrained,shuffled."
        )
    names = {checkpoint_name(row): row for row in rows}
    folders = {name: run.folder / CHECKPOINTS / name for name in names}
    if missing := next((path for path in folders.values() if not path.is_dir()), None):
        raise UserError(f"`{typed}`: its checkpoint {missing} is not there any more; repeat `finetune`.")
    members = [
        Member(name, str(folders[name]), row["start"], row["seed"], row["order_seed"]) for name, row in names.items()
    ]
    return Family(run.config["model"], run.config["revision"], members, run)


def of_names(start: str, tuned: Sequence[str], shuffled: Sequence[str]) -> Family:
    """Return checkpoints that a user names; each is taken for one of another seed.

    Raises:
        UserError: If one is named twice.
    """
    groups = {TRUE: tuned, SHUFFLED: shuffled}
    models = [start, *(name for names in groups.values() for name in names)]
    places = [os.path.realpath(name) if os.path.isdir(name) else name for name in models]
    if twice := next((name for i, name in enumerate(models) if places[i] in places[:i]), None):
        raise UserError(f"{twice} is named twice among --start, --tuned and --shuffled; name each model once.")
    ends = [Path(name).name for name in models]
    # A folder whose name another has, or that stands for the start in tables, goes by its path.
    called = {
        name: end if ends.count(end) == 1 and end != START else place
        for name, end, place in zip(models, ends, places, strict=True)
    }
    members = [
        Member(called[name], name, group, i, 0) for group, names in groups.items() for i, name in enumerate(names)
    ]
    return Family(start, None, members)


def tuned_on(family: Family) -> Tuned | None:
    """Return the run as one whose text can be read again; None if it is not that of a run, or it is of pairs."""
    if family.run is None or "corpus" not in family.run.results["corpora"]:
        return None
    return Tuned(family.run, Path(family.members[0].model), f"--run {family.run.folder}")
