"""What each tuned model of a run of `finetune` has right of each test sentence, as its folder keeps it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.corpus import Corpus
from probing.data.examples import Examples
from probing.errors import UserError
from probing.runs.study import Result
from probing.runs.tuned import checkpoint_name
from probing.runtime.files import regular, write_tensors

# Its file in the folder of a run, and what the names of its tensors of tunings begin with.
ANSWERS, RIGHT = "answers.safetensors", "right/"
# Largest difference of a score from that of `tunings.csv`, which is made of the same sums.
_ROUNDING = 1e-9

Sums = NDArray[np.float64]
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class TunedAnswers:
    """What tuned models have right, by test sentence with something to predict; every array is of shape (n_sentences,).

    Args:
        sentence: Hash of the text of each sentence, or of both sentences of a pair.
        labels: Hash of what is to be predicted of it, in order; of words, each with the number of its word.
        cluster: Number of its document, or of the sentence itself: what intervals are over.
        of: What a score is a share of: the number of targets, or the squared errors of the constant answer.
        right: By the name of a tuning, as of its checkpoint, the targets whose class is predicted, or the squared error
            that the constant answer makes and the model does not.
    """

    sentence: Ids
    labels: Ids
    cluster: Ids
    of: Sums
    right: Mapping[str, Sums]

    @classmethod
    def on(
        cls, corpus: Corpus, test: Examples, classes: Sequence[Any], of: Sums, right: Mapping[str, Sums]
    ) -> TunedAnswers:
        """Return the answers of tuned models on a test part.

        Args:
            corpus: The test corpus.
            test: The examples of the test part.
            classes: The label of each class; none for numbers.
            of: What a score is a share of, shape (n_sentences of the corpus,).
            right: What each tuning has right, likewise.
        """
        sentences = test.sentences().astype(np.int64)
        there = test.labels >= 0
        named = test.values.tolist() if test.values is not None else [str(label) for label in classes]
        tokens, labels = test.store.tokens, test.labels[there]
        word = tokens.words[there] if test.pooling is None else np.zeros_like(labels)
        targets: dict[int, list[str]] = {}
        for i, at, label in zip(tokens.sentences[there].tolist(), word.tolist(), labels.tolist(), strict=True):
            targets.setdefault(i, []).append(f"{at} {named[label]}")
        return cls(
            _hashes(_text(corpus, i) for i in sentences.tolist()),
            _hashes(targets[i] for i in sentences.tolist()),
            test.cluster_of_sentence()[sentences].astype(np.int64),
            of[sentences],
            {name: sums[sentences] for name, sums in right.items()},
        )

    def write(self, folder: Path) -> Path:
        """Write `answers.safetensors` into the folder of a run, and return its path."""
        tensors: dict[str, NDArray[Any]] = {
            "sentence": self.sentence, "labels": self.labels, "cluster": self.cluster, "of": self.of,
            **{f"{RIGHT}{name}": sums for name, sums in self.right.items()},
        }  # fmt: skip
        write_tensors(path := folder / ANSWERS, tensors)
        return path


def _text(corpus: Corpus, i: int) -> list[str]:
    """Return what tells a sentence or a pair from all others of its corpus: its words, where they are divided."""
    if corpus.seconds is not None:
        at = corpus.seconds[i]
        return [corpus.sentences[i][: at - 1], corpus.sentences[i][at:]]
    return [corpus.sentences[i]] if corpus.words is None else list(corpus.words[i])


def _hashes(parts: Any) -> Ids:
    """Return a hash of 64 bits of each list of texts."""
    digests = (blake2b("\x1f".join(one).encode("utf-8"), digest_size=8).digest() for one in parts)
    return np.array([int.from_bytes(one, "big", signed=True) for one in digests], dtype=np.int64)


def read_answers_of(run: Result) -> TunedAnswers:
    """Read what the tuned models of a finished run have right.

    Raises:
        UserError: If the run has no such file, as one of an earlier version.
        ValueError: If it is damaged: not all tunings are in it, or their scores are others than in `tunings.csv`.
    """
    from safetensors.numpy import load_file

    path = run.folder / ANSWERS
    if not path.exists():
        raise UserError(
            f"`{run.folder}` does not have {ANSWERS}, what its tuned models have right of each test sentence; the run "
            "is of an earlier version, or the file was removed: tune again."
        )
    found = load_file(regular(path, run.folder))
    known = [checkpoint_name(row) for row in run.tunings]
    right = {name: found[f"{RIGHT}{name}"] for name in known}
    made = TunedAnswers(found["sentence"], found["labels"], found["cluster"], found["of"], right)
    if len({len(one) for one in (made.sentence, made.labels, made.cluster, made.of, *right.values())}) != 1:
        raise ValueError(f"{ANSWERS} has tensors of several lengths")
    for name, row in zip(known, run.tunings, strict=True):
        if not abs(right[name].sum() / made.of.sum() - row["score"]) <= _ROUNDING:
            raise ValueError(f"{ANSWERS} gives {name} another score than tunings.csv")
    return made
