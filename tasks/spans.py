"""Tasks of spans of words that the corpus labels (edge probing, Tenney et al. 2019, ICLR)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from probing.errors import UserError
from probing.text import Corpus
from probing.text.columns import TARGETS, Target
from probing.text.tasks import Span, SpanTask


def targets_of(corpus: Corpus) -> list[tuple[int, Target]]:
    """Return the sentence of each labelled span of a corpus, and the target; refuse a corpus without, or with pairs."""
    if TARGETS not in corpus.sentence_columns:
        raise UserError(
            f"`{corpus.name}` has no targets, whose spans the task reads; give a .jsonl file of lines such as "
            '{"text": "The dog barks", "targets": [{"span1": [0, 2], "label": "ARG0"}]}.'
        )
    labelled = [(i, target) for i, targets in enumerate(corpus.sentence_columns[TARGETS]) for target in targets]
    if any(target.second for _, target in labelled):
        raise UserError(
            f"`--corpus {corpus.name}` has pairs of spans (span2), and the task reads single ones; leave span2 out of "
            "its targets."
        )
    return labelled


def characters(words: Sequence[str], span: tuple[int, int]) -> tuple[int, int]:
    """Return the characters of a span of words in the sentence: the words with single spaces, without empty words."""
    before, within = (len(" ".join(filter(None, part))) for part in (words[: span[0]], words[: span[1]]))
    return before + (before > 0), within


@dataclass(frozen=True)
class Spans(SpanTask):
    """The label of each span of words of a .jsonl file: `span1` of its `targets`."""

    def column_of(self, corpus: Corpus) -> str | None:
        """Return the name of the column of spans."""
        return TARGETS if TARGETS in corpus.sentence_columns else None

    def spans(self, corpus: Corpus) -> Sequence[Span]:
        """Return the spans of a corpus, each with its label."""
        assert corpus.words is not None or TARGETS not in corpus.sentence_columns
        return [
            Span(sentence, *characters((corpus.words or ())[sentence], target.first), target.label)
            for sentence, target in targets_of(corpus)
        ]
