"""Tasks of spans and of pairs of spans that the corpus labels (edge probing, Tenney et al. 2019, ICLR)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from probing.errors import UserError
from probing.text import Corpus
from probing.text.columns import TARGETS, Target
from probing.text.tables import word_characters
from probing.text.tasks import Span, SpanTask


def targets_of(corpus: Corpus, n_spans: int) -> Iterator[tuple[int, Target]]:
    """Yield the sentence of each target of a corpus, and the target; refuse other numbers of spans, or no targets."""
    second = ', "span2": [2, 3]' * (n_spans - 1)
    if TARGETS not in corpus.sentence_columns:
        of_treebank = ", or for the arcs of a .conllu file `--task_args.of deprel`" * (n_spans - 1)
        raise UserError(
            f"`{corpus.name}` has no targets, whose spans the task reads; give a .jsonl file of lines such as "
            f'{{"text": "The dog barks", "targets": [{{"span1": [0, 2]{second}, "label": "ARG0"}}]}}{of_treebank}.'
        )
    for sentence, targets in enumerate(corpus.sentence_columns[TARGETS]):
        for target in targets:
            if (target.second is None) == (n_spans == 2):
                raise UserError(
                    f"`--corpus {corpus.name}` has a target without a second span (span2), and the task reads pairs; "
                    "give each target both spans, or `--task spans` for single ones."
                    if n_spans == 2
                    else f"`--corpus {corpus.name}` has pairs of spans (span2), and the task reads single ones; leave "
                    "span2 out of its targets, or give `--task span_pairs`."
                )
            yield sentence, target


@dataclass(frozen=True)
class Spans(SpanTask):
    """The label of each span of words of a .jsonl file (`span1` of its `targets`) or of a folder of Holmes."""

    def column_of(self, corpus: Corpus) -> str | None:
        """Return the name of the column of spans."""
        return TARGETS if TARGETS in corpus.sentence_columns else None

    def spans(self, corpus: Corpus) -> Sequence[Span]:
        """Return the spans of a corpus, each with its label."""
        return [
            Span(sentence, *target.first, target.label, target.second)
            for sentence, target in targets_of(corpus, self.n_spans)
        ]


@dataclass(frozen=True)
class SpanPairs(Spans):
    """The label of each ordered pair of spans of a .jsonl file or a folder of Holmes, or of a head and its dependent.

    Args:
        min_count: Training pairs a label needs to be a class; by default 50, fewer on a small corpus (a twentieth of
            its training sentences), never under 5.
        pooling: Vector of each span: the mean or the maximum over its tokens.
        of: What has the pairs: the targets of a file or a folder, or the column deprel of a .conllu file. There, the
            first span of a pair is a word's head, the second the word, and the label its relation; roots have no pair.
    """

    of: Literal["targets", "deprel"] = "targets"

    n_spans = 2

    def column_of(self, corpus: Corpus) -> str | None:
        """Return the name of the column of spans, or of relations."""
        return super().column_of(corpus) if self.of == TARGETS else self.of

    def spans(self, corpus: Corpus) -> Sequence[Span]:
        """Return the pairs of a corpus, each with its label."""
        return super().spans(corpus) if self.of == TARGETS else [*arcs(corpus)]


def arcs(corpus: Corpus) -> Iterator[Span]:
    """Yield the head and the dependent of each arc of a treebank, in this order; arcs to the root are left out."""
    from probing.heads.syntax import arcs_of  # it imports torch, which a refused call does not wait for

    tree_arcs = arcs_of(corpus)
    if not len(tree_arcs):
        raise UserError(
            f"`--corpus {corpus.name}` has no arc between two words (its column head is empty); give a treebank with "
            "dependency trees."
        )
    of_words = [word_characters(words) for words in corpus.words or ()]
    columns = (tree_arcs.sentences, tree_arcs.heads, tree_arcs.dependents, tree_arcs.relations)
    for sentence, head, word, relation in zip(*(values.tolist() for values in columns), strict=True):
        start, end = of_words[sentence][head]
        yield Span(sentence, start, end, relation, of_words[sentence][word])
