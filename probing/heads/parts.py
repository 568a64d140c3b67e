"""What the heads of a model do: the parts of a survey, each from sums over a corpus to rows of tables.

A part says what it needs of the corpus, which measures are to be summed, and how rows come from the sums. A further
part is one more entry of `PARTS`; the command, the files of a run and the cache need not know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from probing.cache import activations
from probing.errors import UserError
from probing.heads.accumulation import accumulate
from probing.heads.attended import FIRST, NEGATION, PUNCTUATION, SINK, SPECIAL, Attended, WithoutFirst
from probing.heads.change.states import CHANGE
from probing.heads.fusion.fusion_comparison import FUSION
from probing.heads.patterns import PATTERNS, PROFILE
from probing.heads.position.position_parts import POSITION_HEADS, POSITION_PARTS, joined
from probing.heads.reading import Measure
from probing.heads.roles.role_parts import ROLES
from probing.heads.rollout import Rollout, rollout_rows
from probing.heads.rows import Rows, class_rows, counts_of, measure_rows, profile_sums, type_rows
from probing.heads.similarity import Similarity, similarity_rows
from probing.heads.subject import STATES, Part, Reading, Subject, nothing
from probing.heads.sums import SumsStore
from probing.heads.syntax.treebank_parts import TREEBANK_PARTS
from probing.results.shown import count
from probing.runtime.processes import is_main_process
from probing.runtime.progress import note, stage


def measurable(subject: Subject, names: Sequence[str], by_name: bool) -> tuple[list[Part], dict[str, str]]:
    """Return the parts that can be measured, and for each of the others what it lacks.

    Args:
        subject: Model and corpus.
        names: The parts that are wanted.
        by_name: Whether the user named them.

    Raises:
        UserError: If the user named one that cannot be measured.
    """
    wanted = [part for part in PARTS if part.name in names]
    lacking = {part.name: lack for part in wanted if (lack := _lacks(subject, part))}
    if by_name and lacking:
        name, lack = next(iter(lacking.items()))
        raise UserError(f"`--parts {name}` needs {lack}.")
    return [part for part in wanted if part.name not in lacking], lacking


def _lacks(subject: Subject, part: Part) -> str | None:
    """Return what a part needs and does not have, as the end of a sentence."""
    if subject.asked.without_first and part.name not in WITHOUT_FIRST:
        return "`--first_token include`, under which all tokens are measured"
    return _lacks_sentences(subject, part) or part.needs(subject)


def _lacks_sentences(subject: Subject, part: Part) -> str | None:
    """Return what the part lacks if the corpus has pairs of sentences and the part cannot read them; otherwise None."""
    corpus = subject.request.corpus
    has_its_own = part.name == ROLES.name and subject.asked.roles is not None
    if corpus.seconds is None or part.name in OF_PAIRS or has_its_own:
        return None
    if part in (FUSION, *POSITION_PARTS):
        return f"single sentences, given as --corpus, and `--pairs {corpus.name}` has pairs of sentences"
    return (
        "single sentences with the columns of a treebank, given as --corpus FILE.conllu, and "
        f"`--pairs {corpus.name}` has pairs of sentences without them"
    )


def measure(
    subject: Subject,
    parts: Sequence[Part],
    cache: Path,
    trainer_options: Mapping[str, Any],
    say: Callable[[str], None],
) -> tuple[dict[str, Rows], dict[str, SumsStore]]:
    """Read the attention of each corpus once for all parts; return the tables, and the sums of each measure.

    On ranks other than the first there are no tables.

    Args:
        subject: Model and corpus.
        parts: The parts, at least one.
        cache: The cache folder.
        trainer_options: Lightning's `Trainer` arguments.
        say: Called with one-line messages.
    """
    stores: dict[str, SumsStore] = {}
    for name, readings in _readings(subject, parts).items():
        about = f"attention of {count(subject.heads.n_layers, 'block')}"
        with stage(f"{about}, {name}" if name else about):
            stores |= _sums(subject, name, readings, cache, trainer_options, say)
    if not is_main_process():  # it has read its share of the corpus
        for part in parts:
            if part.trains:
                part.rows(subject, stores)
        return {}, stores
    tables: dict[str, Rows] = {}
    with stage(f"tables of {count(len(parts), 'part')}", len(parts)) as advance:
        for part in parts:
            note(part.name)
            for name, rows in part.rows(subject, stores).items():
                before = tables.setdefault(name, [])
                if name == POSITION_HEADS and before:  # further columns of the same heads
                    tables[name] = joined(before, rows)
                else:
                    before.extend(rows)
            advance(1)
    return tables, stores


def n_stages(subject: Subject, parts: Sequence[Part]) -> int:
    """Return how many stages `measure` has."""
    return len(_readings(subject, parts)) + 1


def _readings(subject: Subject, parts: Sequence[Part]) -> dict[str, list[Reading]]:
    """Return what is read for the parts, by the name of the text; first the corpus itself, whose name is empty."""
    own = Reading("", subject.request, [one for part in parts for one in part.measures(subject)])
    found: dict[str, list[Reading]] = {}
    for reading in [own, *(reading for part in parts for reading in part.beside(subject))]:
        found.setdefault(reading.name, []).append(reading)
    return found


def _sums(
    subject: Subject, name: str, readings: Sequence[Reading], cache: Path, trainer_options: Mapping[str, Any],
    say: Callable[[str], None],
) -> dict[str, SumsStore]:  # fmt: skip
    """Read one text for all parts, and return the sums of each measure; the arguments are those of `measure`."""
    stores: dict[str, SumsStore] = {}
    distinct = {measure.name: measure for one in readings for measure in one.measures}
    request = readings[0].request
    if distinct:
        seen = [_seen(subject, one) for one in distinct.values()]
        found = accumulate(request, seen, cache, trainer_options, say)
        stores |= {f"{name}/{measure}" if name else measure: store for measure, store in found.items()}
    if any(one.states for one in readings):
        read = replace(request, layers=range(subject.heads.n_layers))
        # A cache entry of hidden states is read in the same way as an entry of sums.
        states = activations(read, cache, trainer_options, say)  # in use until the second store is open
        stores[f"{name}/{STATES}"] = SumsStore(states.folder)
    return stores


def _seen(subject: Subject, measure: Measure) -> Measure:
    """Return the measure, changed to leave out the first token of each sentence if that is asked for."""
    return WithoutFirst(measure) if subject.asked.without_first and measure is not SINK else measure


# --- the parts ---


def _class_tables(subject: Subject, stores: Mapping[str, SumsStore]) -> dict[str, Rows]:
    sums = stores["patterns"].all_by_sentence()
    return {"attention_classes": class_rows(sums, subject.lengths, subject.layers, subject.sentences)}


def _profile_tables(subject: Subject, stores: Mapping[str, SumsStore]) -> dict[str, Rows]:
    store = stores["profile"]
    tables: dict[str, Rows] = {"heads": [], "attention_layers": []}
    found = profile_sums(store.all_by_sentence(), subject.lengths)
    for name, (summed, counts) in found.items():
        rows = measure_rows(summed, counts, subject.layers, subject.sentences, measure=name)
        for table, added in zip(tables.values(), rows, strict=True):
            table += added
    return tables


def _first_token_tables(subject: Subject, stores: Mapping[str, SumsStore]) -> dict[str, Rows]:
    later = np.maximum(subject.tokens.lengths - 1, 0)
    tables: dict[str, Rows] = {"heads": [], "attention_layers": []}
    for name, summed in stores[SINK.name].all_by_sentence().items():
        rows = measure_rows(summed.numpy(), later, subject.layers, subject.sentences, measure=name, to=FIRST)
        for table, added in zip(tables.values(), rows, strict=True):
            table += added
    return tables


# Types that need no annotation of words, beside the special tokens.
_OF_TOKENS = (PUNCTUATION, NEGATION)


def _token_types(subject: Subject) -> Attended:
    plain = {*_OF_TOKENS, *subject.special_tokens.values()}
    return Attended.of({name: of for name, of in subject.types.items() if name in plain})


def _word_types(subject: Subject) -> Attended:
    plain = {*_OF_TOKENS, *subject.special_tokens.values()}
    return Attended.of({name: of for name, of in subject.types.items() if name not in plain}, "attended_words")


def _type_tables(subject: Subject, stores: Mapping[str, SumsStore], measure: Attended) -> dict[str, Rows]:
    store = stores[measure.name]
    counts = counts_of({SPECIAL: subject.special, **measure.types}, subject.tokens)
    sums = store.all_by_sentence()
    leave_out = [SPECIAL] if measure.name != "attended" or not subject.special.any() else []
    by_head, by_layer = type_rows(sums, counts, subject.lengths, subject.layers, subject.sentences, leave_out)
    return {"heads": by_head, "attention_layers": by_layer}


def _lacks_columns(subject: Subject) -> str | None:
    if {"upos", "deprel"} & set(subject.request.corpus.columns):
        return None
    return (
        f"a corpus with the columns upos or deprel, such as a .conllu file, and `{subject.request.corpus.name}` has "
        "neither"
    )


def _similarity_tables(subject: Subject, stores: Mapping[str, SumsStore]) -> dict[str, Rows]:
    rows = similarity_rows(stores["similarity"], subject.heads.n_layers, subject.heads.n_heads, subject.lengths)
    here = set(subject.layers)
    return {"similarity": [row for row in rows if {row["layer"], row["other_layer"]} <= here]}


def _rollout_tables(subject: Subject, stores: Mapping[str, SumsStore]) -> dict[str, Rows]:
    sums, counts = (stores[Rollout.name].by_sentence(name) for name in ("sums", "counts"))
    return {"rollout": rollout_rows(sums, counts, subject.layers, subject.sentences)}


PARTS = (
    Part("classes", nothing, lambda subject: [PATTERNS], _class_tables),
    Part("profile", nothing, lambda subject: [PROFILE], _profile_tables),
    Part(
        "tokens", nothing, lambda subject: [_token_types(subject)],
        lambda subject, stores: _type_tables(subject, stores, _token_types(subject)),
    ),
    Part(
        "words", _lacks_columns, lambda subject: [_word_types(subject)],
        lambda subject, stores: _type_tables(subject, stores, _word_types(subject)),
    ),
    Part("first_token", nothing, lambda subject: [SINK], _first_token_tables, by_name_only=True),
    Part("rollout", nothing, lambda subject: [Rollout()], _rollout_tables),
    Part("similarity", nothing, lambda subject: [Similarity()], _similarity_tables),
    *TREEBANK_PARTS,
    ROLES,
    CHANGE,
    FUSION,
    *POSITION_PARTS,
)  # fmt: skip
# Parts that read pairs of sentences, which have no annotation of words.
OF_PAIRS = ("classes", "profile", "tokens", "first_token", "rollout", "similarity", "change")
# Parts that can be measured with `--first_token exclude`.
WITHOUT_FIRST = (
    "classes", "profile", "tokens", "words", "first_token", "rollout", "similarity", "relations", "trees",
)  # fmt: skip
NAMES = [part.name for part in PARTS]
# Parts that are measured by default, and those that are added by `--first_token exclude`, by `--against` and by
# `--run`.
USUAL = [part.name for part in PARTS if not part.by_name_only]
OF_FIRST = ["first_token"]
OF_AGAINST = [CHANGE.name]
OF_RUNS = [part.name for part in POSITION_PARTS]
