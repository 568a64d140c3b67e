"""The part of a survey that follows role links, in sentences of their own or in those of a treebank."""

from __future__ import annotations

from collections.abc import Mapping

from probing.errors import UserError, as_clause
from probing.heads.roles.scores import ALL, Roles, role_rows
from probing.heads.rows import Rows
from probing.heads.subject import Part, Reading, Subject
from probing.heads.sums import SumsStore
from probing.heads.syntax.arcs import has_arcs

NAME = "roles"


def _lacks(subject: Subject) -> str | None:
    corpus = subject.request.corpus
    if subject.asked.roles is None and not has_arcs(corpus):
        return (
            "role links, given as --roles FILE or read from the columns head and deprel of a .conllu file, and "
            f"`--corpus {corpus.name}` has no such columns"
        )
    try:
        request, pairs = subject.roles
    except UserError as error:
        return f"role links, and {as_clause(error)}"
    if not len(pairs.placements[ALL].links):
        return (
            "pairs of words that look like a role link and are none (the same distance, place in the sentence, "
            f"parts of speech and numbers of words and pieces), and `{request.corpus.name}` has none; give more "
            "sentences"
        )
    return None


def _tables(subject: Subject, stores: Mapping[str, SumsStore]) -> dict[str, Rows]:
    rows = role_rows(stores[f"{NAME}/{NAME}"], subject.roles[1], subject.seed)
    return {"roles": [row for row in rows if row["layer"] in subject.layers]}


ROLES = Part(
    NAME, _lacks, lambda subject: [], _tables,
    lambda subject: [Reading(NAME, subject.roles[0], [Roles(subject.roles[1])])],
)  # fmt: skip
