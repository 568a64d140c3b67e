"""Which tokens a head attends to, by weight and by norm, and the first token as an attention sink."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache.store import fingerprint
from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.heads.reading import Accumulator, Attention, Batch, BlockMeasure, Kept, Measure

SPECIAL, PUNCTUATION, NEGATION = "special tokens", "punctuation", "negation"
# The negation words of Kovaleva et al. 2019, who list some of the words that end in n't.
_NEGATION = re.compile(
    r"(?<![\w'’])(?:neither|nor|not|never|none|nothing|nowhere|cannot|\w*n['’]t)(?![\w'’])", re.IGNORECASE
)
# Relations of a treebank by which the subject and the object of a clause are found, without subtypes.
_ROLES = {"subject": ("nsubj", "csubj"), "object": ("obj", "iobj")}


def attended(attention: Attention, batch: Batch, types: Tensor) -> dict[str, Tensor]:
    """Return what each type of token gets, summed over the queries of each sentence.

    Args:
        attention: The attention of one block.
        batch: The sentences.
        types: Whether a token is of a type, shape (batch, sequence, types); False for padding.

    Returns:
        mass: The attention to all tokens of the type, shape (batch, heads, types), float64.
        norm_mass: As `mass`, but of weights times norms, with each row divided by its sum; absent if the model's output
            projection cannot be told.
        column_max: The largest mean over queries among the sentence's tokens of the type, not summed; 0 if there is
            none.
        n_tokens: Number of tokens of the type, shape (batch, 1, types).
        expected: The mass of the type under uniform attention over what each query may see, shape (batch, 1, types).
    """
    members = types.to(torch.float64)
    columns = attention.probabilities.sum(2, dtype=torch.float64)
    means = columns / batch.lengths[:, None, None].clamp_min(1)
    found = {
        "n_tokens": members.sum(1)[:, None],
        "expected": _uniform_columns(attention, batch) @ members,
        "mass": columns @ members,
        "column_max": torch.stack([(means * members[:, None, :, i]).amax(2) for i in range(types.shape[2])], dim=2),
    }
    if attention.projection is not None:
        norms = torch.where(batch.mask[:, None], attention.value_norms(), 0.0)
        found["norm_mass"] = norm_columns(attention.probabilities, norms) @ members
    return found


def _uniform_columns(attention: Attention, batch: Batch) -> Tensor:
    """Return the column sums of uniform attention over what each query may see, shape (batch, 1, to), float64."""
    if attention.visible is None and not batch.is_causal:
        return batch.mask.double()[:, None]  # n queries give 1 / n each, without rounding
    return attention.uniform(batch).sum(1, keepdim=True)


def norm_columns(probabilities: Tensor, norms: Tensor) -> Tensor:
    """Return the column sums of weights times norms, rows divided by their sums; shape (batch, heads, to), float64."""
    single = norms.to(probabilities.dtype)
    rows = (probabilities @ single[..., None])[..., 0]
    inverse = torch.where(rows > 0, 1 / rows.clamp_min(torch.finfo(rows.dtype).tiny), 0.0)
    return (inverse[:, :, None] @ probabilities)[:, :, 0].double() * norms


def types_of(tokens: Tokens, corpus: Corpus, special_tokens: Mapping[int, str]) -> dict[str, NDArray[np.bool_]]:
    """Return which tokens of a corpus are of each type, each of shape (n_tokens,), without types that do not occur.

    Args:
        tokens: The table of tokens.
        corpus: The corpus; parts of speech, subjects and objects need the columns of a treebank.
        special_tokens: The tokenizer's special tokens, id to text.
    """
    special = tokens.special
    found = {text: special & (tokens.input_ids == token) for token, text in special_tokens.items()}
    found[PUNCTUATION] = _punctuation(tokens, corpus) & ~special
    found[NEGATION] = _within(_NEGATION, tokens, corpus) & ~special
    if "upos" in corpus.columns:
        upos = _by_token(corpus.columns["upos"], tokens)
        found |= {name: upos == name for name in sorted(set(upos[~special].tolist()) - {"_", "PUNCT"})}
    if "deprel" in corpus.columns:
        relations = _by_token(corpus.columns["deprel"], tokens)
        plain = np.array([relation.split(":")[0] for relation in relations.tolist()], dtype=object)
        found |= {name: np.isin(plain, relations_of) for name, relations_of in _ROLES.items()}
    return {name: members for name, members in found.items() if members.any()}


def fingerprint_of(types: Mapping[str, NDArray[np.bool_]]) -> str:
    """Return what identifies types, and which tokens are of each."""
    return fingerprint({name: np.packbits(members).tobytes().hex() for name, members in types.items()})


def members_of(types: Tensor, batch: Batch) -> Tensor:
    """Return whether each token of a batch is of each type, shape (batch, sequence, types); False for padding.

    Args:
        types: Whether each token of the corpus is of each type, shape (n_tokens, types).
        batch: The sentences.
    """
    return types[batch.rows.cpu()].to(batch.mask.device) & batch.mask[:, :, None]


def _punctuation(tokens: Tokens, corpus: Corpus) -> NDArray[np.bool_]:
    """Return which tokens are punctuation marks alone, shape (n_tokens,).

    A mark between two letters or digits, as in "don't", is a part of a word. Tokenizers separate marks from words in
    different ways, so that their words do not show whether a mark is inside a word.
    """
    found = np.zeros(tokens.n_tokens, dtype=bool)
    if tokens.spans is None:
        return found
    for row, (sentence, (start, stop)) in enumerate(zip(tokens.sentences.tolist(), tokens.spans.tolist(), strict=True)):
        text = corpus.sentences[sentence]
        piece = text[start:stop]
        if piece.strip() and all(unicodedata.category(character)[0] == "P" for character in piece.strip()):
            start += len(piece) - len(piece.lstrip())
            inside = text[start - 1 : start].isalnum() and text[stop : stop + 1].isalnum()
            found[row] = not inside
    return found


def _within(words: re.Pattern[str], tokens: Tokens, corpus: Corpus) -> NDArray[np.bool_]:
    """Return which tokens are inside a match in their sentence, shape (n_tokens,).

    A tokenizer may divide running text otherwise than the pattern does: BERT's makes three words of "don't".
    """
    found = np.zeros(tokens.n_tokens, dtype=bool)
    if tokens.spans is None:
        return found
    for i, sentence in enumerate(corpus.sentences):
        for match in words.finditer(sentence):
            rows = tokens.of_sentences(i, 1)
            first, last = tokens.spans[rows].T
            found[rows] |= (first < match.end()) & (last > match.start())
    return found


def _by_token(column: tuple[tuple[str, ...], ...], tokens: Tokens) -> NDArray[Any]:
    """Return the annotation of each token's word, empty for special tokens; shape (n_tokens,), objects."""
    found = np.full(tokens.n_tokens, "", dtype=object)
    pairs = zip(tokens.sentences.tolist(), tokens.words.tolist(), strict=True)
    found[:] = [column[sentence][word] if word >= 0 else "" for sentence, word in pairs]
    return found


@dataclass(frozen=True)
class Attended:
    """The measure: what each type of token gets.

    Args:
        types: For each type, whether a token is of it, shape (n_tokens,). The special tokens together, to which the
            first token of a causal model belongs, are added as the first type.
        fingerprint: Identifies the types, which come from columns that are no part of a corpus's fingerprint.
    """

    types: Mapping[str, NDArray[np.bool_]]
    fingerprint: str
    name: str = "attended"
    settings: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", {"version": 2, "types": [SPECIAL, *self.types], "of": self.fingerprint})

    @classmethod
    def of(cls, types: Mapping[str, NDArray[np.bool_]], name: str = "attended") -> Attended:
        """Return the measure of some types under a name."""
        return cls(types, fingerprint_of(types), name)

    def of_corpus(self, tokens: Tokens, corpus: Corpus) -> Callable[[Batch], Accumulator]:
        """Return what makes an accumulator for each batch."""
        table = torch.from_numpy(np.stack(list(self.types.values()), axis=1)) if self.types else None

        def sums(attention: Attention, batch: Batch) -> Mapping[str, Tensor]:
            types = batch.special[:, :, None]
            if table is not None:
                types = torch.cat([types, members_of(table, batch)], dim=2)
            return attended(attention, batch, types)

        return BlockMeasure(self.name, sums).of_corpus(tokens, corpus)


FIRST = "first token"


def sink(attention: Attention, batch: Batch) -> dict[str, Tensor]:
    """Return what the first token gets from the later ones, summed over these queries; each (batch, heads), float64.

    Args:
        attention: The attention of one block.
        batch: The sentences.

    Returns:
        mass: The attention to it.
        uniform: The attention that the first token would get under uniform attention over the keys that a query may
            see.
        norm_mass: As `mass`, but of weights times norms, with each row divided by its sum; absent if the model's output
            projection cannot be told.
    """
    later = attention.probabilities[:, :, 1:]
    uniform = attention.uniform(batch)[:, 1:, 0].sum(1)
    found = {
        "mass": later[..., 0].sum(2, dtype=torch.float64),
        "uniform": uniform[:, None].repeat(1, later.shape[1]),
    }
    if attention.projection is not None:
        found["norm_mass"] = norm_columns(later, torch.where(batch.mask[:, None], attention.value_norms(), 0.0))[..., 0]
    return found


SINK = BlockMeasure("sink", sink, {"version": 2})


@dataclass(frozen=True)
class WithoutFirst:
    """A measure of what is left of the attention without the first token of each sentence.

    The token is neither a query nor a key, as padding is neither. A query that attends to nothing else, in the
    precision of the model, has a row of 0.

    Args:
        of: The measure.
    """

    of: Measure

    @property
    def name(self) -> str:
        """The name of the measure."""
        return self.of.name

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the measure, and that the first token is left out."""
        return {**self.of.settings, "first_token": "exclude"}

    def of_corpus(self, tokens: Tokens, corpus: Corpus) -> Callable[[Batch], Accumulator]:
        """Return what makes an accumulator for each batch."""
        return without_first(self.of.of_corpus(tokens, corpus))


def without_first(begin: Callable[[Batch], Accumulator]) -> Callable[[Batch], Accumulator]:
    """Return what makes accumulators that see no first tokens."""
    return lambda batch: _WithoutFirst(begin(batch.without_first))


@dataclass(frozen=True)
class _WithoutFirst:
    inner: Accumulator

    def add(self, attention: Attention) -> None:
        self.inner.add(attention.without_first)

    def kept(self) -> Kept:
        return self.inner.kept()
