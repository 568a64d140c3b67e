"""The sentence vectors that `sts` compares, and their evaluation in every layer and space."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache import ActivationStore
from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.downstream.names import CLIPPING, TRANSDUCTIVE, Definition, Pooling, Space
from probing.downstream.pooling import FIRST, cosines, has_first_special, sentence_vectors, unknown_sentences
from probing.downstream.sentence_similarity import Similarities, by_layer, chosen, reported
from probing.downstream.spaces import Fitting, Text, fitted, not_in, outliers
from probing.downstream.static import StaticVectors
from probing.downstream.sts_dataset import SentencePairs
from probing.errors import UserError
from probing.statistics.moments import CovarianceAccumulator
from probing.statistics.sample_size import size_columns


@dataclass(frozen=True)
class Vectors:
    """The sources of all sentence vectors.

    Args:
        sets: All sets, training parts included.
        stores: Store of the activations of each set.
        outside: Another corpus with its activations, if transforms are fitted on one; else None.
        static: Word vectors, or None.
    """

    sets: Sequence[SentencePairs]
    stores: Sequence[ActivationStore]
    outside: tuple[Corpus, ActivationStore] | None
    static: StaticVectors | None


@dataclass(frozen=True)
class FitOn:
    """The text that transforms are fitted on.

    Args:
        names: Names of the corpora.
        corpora: The corpora.
        texts: Their activations, with the choice of sentences that are used.
        words: Static vectors, or None.
    """

    names: list[str]
    corpora: list[Corpus]
    texts: list[Text]
    words: StaticVectors | None = None

    @property
    def n_sentences(self) -> int:
        """Number of sentences that are used."""
        return sum(int(text.kept.sum()) for text in self.texts)

    @cached_property
    def n_static(self) -> int:
        """Number of sentences that are used and have a static vector."""
        parts = zip(self.corpora, self.texts, strict=True)
        return sum(int((text.kept & self.words.known(one.sentences)).sum()) for one, text in parts if self.words)

    def described(self) -> dict[str, Any]:
        """Return a description for `results.json`."""
        return {"corpora": self.names, "n_sentences": self.n_sentences}


def fitted_columns(
    row: Mapping[str, Any], text: FitOn, d_model: int, words: StaticVectors | None, components: int | None
) -> dict[str, Any]:
    """Return the columns that describe the text a row's transform was fitted on.

    Args:
        row: A row with its pooling and transform.
        text: The text that the transform was fitted on.
        d_model: Width of hidden states.
        words: Static vectors, which have their own width, or None.
        components: Number of directions that whitening keeps.
    """
    is_static = words is not None and row["pooling"] == "static"
    width, n = (words.vectors.shape[1], text.n_static) if words and is_static else (d_model, text.n_sentences)
    size = size_columns(row["transform"], n, n, width, components)
    return {"fitted_on": " and ".join(text.names), **size}


def described(
    one: SentencePairs, store: ActivationStore, words: StaticVectors | None, tokenizer: Any
) -> dict[str, Any]:
    """Return a description of a set for `results.json`: its pairs, and the sentences whose vectors say nothing of them.

    Args:
        one: The set.
        store: The activations of its sentences.
        words: Static vectors, or None.
        tokenizer: The model's tokenizer.
    """
    counts = {name: getattr(one, name) for name in ("n_read", "n_pairs", "n_without_score", "n_without_sentence")}
    subsets = {name: int((one.subset == i).sum()) for i, name in enumerate(one.subsets)}
    found = {"set": one.label, "part": one.part, **counts, "n_dropped": one.n_dropped, "subsets": subsets}
    found |= _counted("unknown", one, unknown_sentences(store.tokens, tokenizer))
    if words is None:
        return found
    coverage = {"static_coverage": words.coverage(one.corpus.sentences)}
    return found | coverage | _counted("static_unknown", one, ~words.known(one.corpus.sentences))


def _counted(what: str, one: SentencePairs, sentences: NDArray[np.bool_]) -> dict[str, int]:
    """Return how many of a set's sentences are chosen, and how many of its pairs have one."""
    n_pairs = int(sentences[one.sentences].any(axis=1).sum())
    return {f"n_{what}_sentences": int(sentences.sum()), f"n_{what}_pairs": n_pairs}


def said_of_unknown(described: Mapping[str, Any]) -> list[str]:
    """Return lines on the sentences of a set whose vectors say nothing of them; none if there are none.

    Args:
        described: What `described` returned for the set.
    """
    reasons = {
        "unknown": "no token that the model's vocabulary knows, and their {n} pairs are ranked like the others",
        "static_unknown": "no word with a static vector, and static cosines of their {n} pairs are 0 in every space",
    }
    return [
        f"{described['set']}: {described[f'n_{what}_sentences']} sentences have "
        + reason.format(n=described[f"n_{what}_pairs"])
        for what, reason in reasons.items()
        if described.get(f"n_{what}_sentences")
    ]


def first_token_check(poolings: Sequence[Pooling], model: str) -> Callable[[Tokens], None]:
    """Return a check that raises a `UserError` if `cls` is pooled and sentences do not begin with a special token."""

    def check(tokens: Tokens) -> None:
        if "cls" in poolings and not has_first_special(tokens):
            raise UserError(f"`--pooling cls`: {model} puts no special token at the beginning; use mean.")

    return check


def check_text_to_fit_on(
    sets: Sequence[SentencePairs], outside: Corpus | None, targets: Sequence[SentencePairs], fit_on: str
) -> None:
    """Raise an error if no text for the transforms remains once the evaluated sentences are removed.

    It is called before a model reads the text.

    Args:
        sets: All sets, training parts included.
        outside: Another corpus, if transforms are fitted on one; else None.
        targets: The sets that are reported on.
        fit_on: Value of the option `--fit_on`.

    Raises:
        UserError: If no sentence remains.
    """
    corpora = [outside] if outside else [one.corpus for one in sets if one.part == "train"]
    if fit_on != "target" and corpora and not any(_kept(corpus, targets).any() for corpus in corpora):
        raise UserError(
            f"`--fit_on {fit_on}`: all its sentences occur in the sets that are evaluated; give other text."
        )


def fitted_texts(vectors: Vectors, targets: Sequence[SentencePairs], fit_on: str) -> dict[str, FitOn]:
    """Return the text that the transforms of each set are fitted on, by the set's label.

    Sentences of any set that is reported on are left out, since sets overlap: STS-B was drawn from STS12 to STS16 and
    others. With `target`, the text of each set consists of all its own sentences instead.
    """
    if fit_on == "target":
        everything = zip(vectors.sets, vectors.stores, strict=True)
        return {one.label: _all_of(one, store, vectors.static) for one, store in everything}
    there = [(one.label, one.corpus, store) for one, store in zip(vectors.sets, vectors.stores, strict=True)]
    parts = [part for part, one in zip(there, vectors.sets, strict=True) if one.part == "train"]
    if vectors.outside:
        parts = [(vectors.outside[0].name, *vectors.outside)]
    texts = [Text(store, _kept(corpus, targets)) for _, corpus, store in parts]
    common = FitOn([name for name, *_ in parts], [corpus for _, corpus, _ in parts], texts, vectors.static)
    return {one.label: common for one in vectors.sets}


def _kept(corpus: Corpus, targets: Sequence[SentencePairs]) -> NDArray[np.bool_]:
    return not_in(corpus.sentences, [sentence for one in targets for sentence in one.corpus.sentences])


def _all_of(one: SentencePairs, store: ActivationStore, words: StaticVectors | None) -> FitOn:
    everything = Text(store, np.ones(len(one.corpus.sentences), dtype=bool))
    return FitOn([f"{one.label} ({TRANSDUCTIVE})"], [one.corpus], [everything], words)


def check_static_text(texts: Mapping[str, FitOn]) -> None:
    """Raise an error if transforms of static vectors would have no sentence to be fitted on.

    Raises:
        UserError: If no sentence of a text has a word with a vector.
    """
    for label, text in texts.items():
        if text.words and text.texts and not text.n_static:
            raise UserError(
                f"`--static`: no sentence that transforms for {label} are fitted on has a word with a vector; give "
                "vectors of more words, or other text with `--fit_on`, or `--transforms none`."
            )


def similarities(
    vectors: Vectors,
    texts: Mapping[str, FitOn],
    layers: Sequence[int],
    poolings: Sequence[Pooling],
    fitting: Fitting,
) -> list[Similarities]:
    """Return the cosines of all pairs of all sets, for each pooling, layer and space; static vectors come last.

    A sentence without tokens, or without a word that has a static vector, has a vector of zeros, which has no
    direction: the cosines of its pairs are 0 in every space, and no transform is fitted on it.

    Args:
        vectors: Sources of the sentence vectors.
        texts: Text that the transforms of each set are fitted on, by the set's label.
        layers: Layer numbers.
        poolings: Poolings of the sentence vectors.
        fitting: The transforms and how they are fitted; static vectors are not clipped.
    """
    found = []
    for layer in layers:
        clipped = _outliers(texts, layer, fitting.definition) if fitting.clips else {}
        for pooling in poolings:
            first = _outliers(texts, FIRST, fitting.definition) if clipped and pooling == "first_last" else {}
            neurons = {label: sorted({*clipped[label], *first.get(label, [])}) for label in clipped}

            def pooled(corpus: Corpus, store: ActivationStore, layer: int = layer, how: Pooling = pooling) -> Tensor:
                return sentence_vectors(store, layer, how)

            cosine, clipped_in = _cosines(vectors, texts, pooled, neurons, fitting, layer)
            found += [Similarities(pooling, layer, name, cosine[name], clipped_in[name]) for name in fitting.spaces]
    if (static := vectors.static) is not None:
        own = replace(fitting, spaces=[name for name in fitting.spaces if name not in CLIPPING])
        cosine, none = _cosines(vectors, texts, lambda corpus, store: static.sentences(corpus.sentences), {}, own, 0)
        found += [Similarities("static", None, name, cosine[name], none[name]) for name in own.spaces]
    return found


def _outliers(texts: Mapping[str, FitOn], layer: int, definition: Definition) -> dict[str, list[int]]:
    """Return the outliers for each set; sets with the same text share one search."""
    found = {id(text): outliers(text.texts, layer, definition) for text in texts.values() if text.texts}
    return {label: found.get(id(text), []) for label, text in texts.items()}


def _cosines(
    vectors: Vectors,
    texts: Mapping[str, FitOn],
    pooled: Callable[[Corpus, ActivationStore], Tensor],
    neurons: Mapping[str, Sequence[int]],
    fitting: Fitting,
    layer: int,
) -> tuple[dict[Space, dict[str, Any]], dict[Space, dict[str, list[int]]]]:
    """Return for each space, by the label of each set, the cosines of its pairs and the clipped neurons."""
    cosine: dict[Space, dict[str, Any]] = {name: {} for name in fitting.spaces}
    clipped: dict[Space, dict[str, list[int]]] = {name: {} for name in fitting.spaces}
    fitted_for: dict[int, Any] = {}
    for one, store in zip(vectors.sets, vectors.stores, strict=True):
        text = texts[one.label]
        states = pooled(one.corpus, store)
        if id(text) not in fitted_for:
            accumulator = CovarianceAccumulator(states.shape[1])
            for corpus, part in zip(text.corpora, text.texts, strict=True):
                own = pooled(corpus, part.store)
                accumulator.update(own[torch.from_numpy(part.kept) & own.any(dim=1)])
            if not text.texts:  # no transform is fitted: only the plain vectors are used
                accumulator.update(states)
            fitted_for[id(text)] = fitted(fitting, accumulator.result(), neurons.get(one.label, []), layer)
        first, second = torch.from_numpy(one.sentences).T
        there = (states.any(dim=1)[first] & states.any(dim=1)[second]).numpy()
        for name, transform in fitted_for[id(text)].items():
            images = transform(states)
            cosine[name][one.label] = np.where(there, cosines(images[first], images[second]), 0.0)
            clipped[name][one.label] = transform.clipped
    return cosine, clipped


def evaluate(
    vectors: Vectors, layers: Sequence[int], poolings: Sequence[Pooling], fitting: Fitting, fit_on: str, seed: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, FitOn]]:
    """Return the rows of `sts.csv` and of `chosen.csv`, and the text that each set's transforms were fitted on.

    Args:
        vectors: Sources of the sentence vectors.
        layers: Layer numbers.
        poolings: Poolings of the sentence vectors.
        fitting: The transforms and how they are fitted.
        fit_on: Value of the option `--fit_on`.
        seed: Seed of the bootstraps.

    Raises:
        UserError: If transforms of static vectors have no sentence to be fitted on.
    """
    targets: Sequence[SentencePairs] = reported(vectors.sets)
    texts = fitted_texts(vectors, targets, fit_on)
    if [*fitting.spaces] != ["none"]:
        check_static_text(texts)
    found = similarities(vectors, texts, layers, poolings, fitting)
    rows, picked = by_layer(found, targets, seed), chosen(found, targets, vectors.sets, seed)
    width = vectors.stores[0].plan.d_model
    for row in (*rows, *picked):
        if row["transform"] != "none":
            row |= fitted_columns(row, texts[row["set"]], width, vectors.static, fitting.components)
    return rows, picked, texts
