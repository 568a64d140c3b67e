"""The part of a survey that compares a model with another checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from probing.heads.change.change_as_published import PublishedChange, check_padding, published_rows
from probing.heads.change.change_of_states import StateChange, parameter_rows, state_rows
from probing.heads.change.checkpoints import Checkpoint, check_comparable
from probing.heads.change.maps import Change, map_rows
from probing.heads.measures import Measure
from probing.heads.rows import Rows
from probing.heads.subject import Part, Subject
from probing.heads.sums import SumsStore

NAME = "change"


def _lacks(subject: Subject) -> str | None:
    """Return what the part lacks.

    Raises:
        UserError: If the other checkpoint is of another model, or sentences cannot be padded as published.
    """
    if subject.asked.against is None:
        return "another checkpoint, given as --against MODEL"
    check_comparable(subject.request, subject.heads, subject.asked.against)
    if subject.asked.as_published:
        check_padding(subject.checkpoint)
    return None


def _both(subject: Subject) -> tuple[Checkpoint, Checkpoint]:
    assert subject.asked.against is not None  # otherwise the part is not measured
    return subject.checkpoint, subject.asked.against


def _measures(subject: Subject) -> Sequence[Measure]:
    model, against = _both(subject)
    published = [PublishedChange(model, against)] if subject.asked.as_published else []
    return [Change(against), StateChange(model, against), *published]


def _tables(subject: Subject, stores: Mapping[str, SumsStore]) -> dict[str, Rows]:
    layers = list(subject.layers)
    maps, states, *published = (stores[measure.name] for measure in _measures(subject))
    rows = [*map_rows(maps, layers), *state_rows(states, subject.request.layers)]
    rows += [row for store in published for row in published_rows(store, layers)]
    return {"change": [*rows, *parameter_rows(*_both(subject))]}


CHANGE = Part(NAME, _lacks, _measures, _tables, by_name_only=True)
