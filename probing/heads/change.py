"""Differences in attention, hidden states and parameters between checkpoints (Kovaleva et al. 2019, section 4.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.activations import tokens_of
from probing.errors import UserError
from probing.heads.accumulation import (
    BatchValues,
    Begin,
    BlockAttention,
    Measure,
    SentenceBatch,
    StackedBlocks,
    SumsStore,
)
from probing.heads.measures import Rows, mean_cells
from probing.heads.survey import HeadSurvey, SurveyedCheckpoint, SurveyPart, check_comparable
from probing.models import length_limits
from probing.text import Corpus
from probing.text.tokens import Tokens

# --------------------------------------------------------------------------------------------------------------------
# How attention differs between two checkpoints of a model, on the same sentences (Kovaleva et al. 2019, section 4.3).
# --------------------------------------------------------------------------------------------------------------------

# Maximum number of bytes of the other checkpoint's maps in memory; if all blocks need more, its forward pass is
# repeated for the remaining blocks.
MAPS_BYTES = 2**28
SAME, OTHER_HEADS, OTHER_SENTENCES = "same", "other heads", "other sentences"
_OF_MAPS = (SAME, OTHER_HEADS, OTHER_SENTENCES)


def map_cosines(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosine of flattened maps, shape (batch, heads), float64; exactly 1 for equal maps."""
    first, second = a.double(), b.double()
    product, *squares = ((x * y).sum((2, 3)) for x, y in ((first, second), (first, first), (second, second)))
    return (product / (squares[0] * squares[1]).sqrt().clamp_min(torch.finfo(torch.float64).tiny)).clamp_max(1)


def other_head_cosines(a: Tensor, b: Tensor) -> Tensor:
    """Return each head's mean cosine in `a` with all other heads in `b`, shape (batch, heads); 0 for a single head."""
    first, second = (maps.double().flatten(2) for maps in (a, b))
    norms = [maps.norm(dim=2).clamp_min(torch.finfo(torch.float64).tiny) for maps in (first, second)]
    cosines = first @ second.transpose(1, 2) / (norms[0][:, :, None] * norms[1][:, None, :])
    return (cosines.sum(2) - cosines.diagonal(dim1=1, dim2=2)) / max(a.shape[1] - 1, 1)


def row_divergences(a: Tensor, b: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence in nats, summed over rows, shape (batch, heads); padding rows are 0."""
    return _divergences((a, _entropies(a)), (b, _entropies(b)))


# Maps with the entropies of their rows, summed over the rows.
_Known = tuple[Tensor, Tensor]


def _divergences(a: _Known, b: _Known) -> Tensor:
    return (_entropies((a[0] + b[0]) / 2) - (a[1] + b[1]) / 2).clamp_min(0)


def _other_head_divergences(a: _Known, b: _Known) -> Tensor:
    """Return the mean divergence of each head's map from the maps of all other heads, shape (batch, heads)."""
    n_heads = a[0].shape[1]
    divergences = torch.zeros_like(a[1])
    for k in range(1, n_heads):
        divergences += _divergences(a, (b[0].roll(k, 1), b[1].roll(k, 1)))
    return divergences / max(n_heads - 1, 1)


def _entropies(maps: Tensor) -> Tensor:
    return torch.special.entr(maps).sum((2, 3), dtype=torch.float64)


def others_of_equal_length(lengths: Tensor) -> Tensor:
    """Return the next sentence of equal length in the batch; the sentence itself if there is none; shape (batch,)."""
    others = torch.arange(len(lengths), device=lengths.device)
    for length in lengths.unique():
        members = (lengths == length).nonzero()[:, 0]
        others[members] = members.roll(-1)
    return others


def map_change(against: SurveyedCheckpoint, alone: bool = False) -> Measure:
    """Return the measure that compares maps with another checkpoint; `alone` skips other heads and sentences."""

    def of_corpus(tokens: Tokens, corpus: Corpus) -> Begin:
        loaded = against.prepared()
        return lambda batch: _ComparedMaps(loaded, batch, alone)

    return Measure("change", of_corpus, _settings(against, **({"alone": True} if alone else {})))


def _settings(against: SurveyedCheckpoint, **more: Any) -> dict[str, Any]:
    return {"version": 1, "against": against.request.key(), **more}


class _ComparedMaps(StackedBlocks):
    def __init__(self, against: SurveyedCheckpoint, batch: SentenceBatch, alone: bool) -> None:
        super().__init__(self._compare, 2, self._with_others)
        self.against, self.batch, self.alone = against, batch, alone
        self.others = others_of_equal_length(batch.lengths)
        self.other_maps: dict[int, Tensor] = {}

    def _compare(self, attention: BlockAttention) -> dict[str, Tensor]:
        if attention.layer not in self.other_maps:
            self.other_maps = self._read(attention.layer)
        ours, theirs = attention.probabilities, self.other_maps.pop(attention.layer)
        if self.alone:
            same = {"cosine": map_cosines(ours, theirs), "jensen_shannon": row_divergences(ours, theirs)}
            return {name: values[:, None] for name, values in same.items()}
        cosines = map_cosines(ours, theirs), other_head_cosines(ours, theirs), map_cosines(ours, theirs[self.others])
        a, b = (ours, _entropies(ours)), (theirs, _entropies(theirs))
        of_sentences = theirs[self.others], b[1][self.others]
        divergences = _divergences(a, b), _other_head_divergences(a, b), _divergences(a, of_sentences)
        return {"cosine": torch.stack(cosines, dim=1), "jensen_shannon": torch.stack(divergences, dim=1)}

    def _read(self, first: int) -> dict[int, Tensor]:
        mask = self.batch.mask
        size = mask.numel() * mask.shape[1] * self.against.heads.n_heads * 4
        maps = self.against.maps(self.batch.inputs, first, first + max(MAPS_BYTES // size, 1) - 1)
        pairs = (mask[:, :, None] & mask[:, None, :])[:, None]
        return {layer: torch.where(pairs, layer_maps, 0.0) for layer, layer_maps in maps.items()}

    def _with_others(self, stacked: dict[str, Tensor]) -> BatchValues:
        has_other = torch.arange(len(self.others), device=self.others.device) != self.others
        return BatchValues({"has_other": has_other, **stacked})


def map_rows(store: SumsStore, layers: Sequence[int]) -> Rows:
    """Return the rows of `change.csv` for the maps of each head, and of each layer as the mean over its heads.

    Cosines are means over sentences, divergences (nats) means over queries, with confidence intervals over sentences.
    `of` names the comparison: the same head and sentence, other heads of the layer, or another sentence of equal length
    from the same batch. Sentences without such a sentence are excluded from the last comparison.
    """
    has_other = store.by_sentence("has_other").numpy()
    lengths = store.tokens.lengths.astype(np.int64)
    rows = []
    for name, counts in (("cosine", (lengths > 0).astype(np.int64)), ("jensen_shannon", lengths)):
        sums = store.by_sentence(name).numpy()
        for i, of in enumerate(_OF_MAPS[: sums.shape[1]]):
            if of == OTHER_HEADS and sums.shape[3] == 1:
                continue
            used = has_other if of == OTHER_SENTENCES else np.ones(len(counts), dtype=bool)
            rows += head_rows(name, of, layers, sums[used, i], counts[used])
    return rows


def head_rows(measure: str, of: str, layers: Sequence[int], sums: NDArray[np.float64], n: NDArray[np.int64]) -> Rows:
    """Return a row for each head and, with `head` None, for each layer.

    Each sentence has a sum, shape (n_sentences, all layers, heads), and a denominator n, shape (n_sentences,).
    """
    return [
        *(change_row(measure, of, layer, head + 1, sums[:, layer - 1, head], n)
          for layer in layers for head in range(sums.shape[2])),
        *(change_row(measure, of, layer, None, sums[:, layer - 1].mean(1), n) for layer in layers),
    ]  # fmt: skip


def change_row(
    measure: str, of: str, layer: int | None, head: int | None, sums: NDArray[np.float64], n: NDArray[np.int64]
) -> dict[str, Any]:
    """Return a row of `change.csv` from the sum and the denominator n of each sentence, each of shape (n_sentences,).

    `of` names the comparison; the head counts from 1; layer and head are None if the row has none.
    """
    return {"measure": measure, "of": of, "layer": layer, "head": head, **mean_cells(sums, n)}


OTHER_TOKENS = "other tokens"


@dataclass(frozen=True)
class _OwnPasses:
    """Accumulator of values that come from separate forward passes over the sentences of a batch."""

    read: Callable[[], BatchValues]

    def add(self, attention: BlockAttention) -> None:
        pass

    @torch.inference_mode()
    def batch_values(self) -> BatchValues:
        return self.read()


def state_change(model: SurveyedCheckpoint, against: SurveyedCheckpoint) -> Measure:
    """Return the measure of the cosines of each token's hidden states in two checkpoints, on the same sentences."""

    def of_corpus(tokens: Tokens, corpus: Corpus) -> Begin:
        both = model.prepared(), against.prepared()
        return lambda batch: _OwnPasses(lambda: _state_cosines(both, batch))

    return Measure("change_of_states", of_corpus, _settings(against))


def _state_cosines(both: Sequence[SurveyedCheckpoint], batch: SentenceBatch) -> BatchValues:
    ours, theirs = (checkpoint.states(batch.inputs) for checkpoint in both)
    same, to_next = [], []
    for layer, a in ours.items():
        b = theirs[layer]
        same.append(torch.where(batch.mask, row_cosines(a, b), 0.0).sum(1))
        to_next.append(torch.where(batch.mask[:, 1:], row_cosines(a[:, :-1], b[:, 1:]), 0.0).sum(1))
    return BatchValues({"same": torch.stack(same, 1), "next": torch.stack(to_next, 1)})


def state_rows(store: SumsStore, layers: Sequence[int]) -> Rows:
    """Return the mean cosine of each token's states in both checkpoints, and of a token and the next; layers from 0."""
    lengths = store.tokens.lengths.astype(np.int64)
    comparisons = ((SAME, "same", lengths), (OTHER_TOKENS, "next", np.maximum(lengths - 1, 0)))
    return [
        change_row("hidden_states", of, layer, None, store.by_sentence(name)[:, layer].numpy(), n)
        for of, name, n in comparisons
        for layer in layers
    ]


def parameter_rows(model: SurveyedCheckpoint, against: SurveyedCheckpoint) -> Rows:
    """Return the cosine of each parameter matrix (named in `of`) that has a counterpart of the same shape."""
    theirs = {name: matrix for name, (_, matrix) in against.matrices().items()}
    rows = []
    for name, (layer, matrix) in model.matrices().items():
        if name in theirs and theirs[name].shape == matrix.shape:
            flat = (values.cpu().reshape(1, -1) for values in (matrix, theirs[name]))
            value = row_cosines(*flat).numpy()
            rows.append(change_row("parameters", name, layer, None, value, np.ones(1, dtype=np.int64)))
    return rows


def row_cosines(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosine of vectors along the last axis, float64; exactly 1 for equal vectors."""
    product, *squares = (_products(x, y) for x, y in ((a, b), (a, a), (b, b)))
    return (product / (squares[0] * squares[1]).sqrt().clamp_min(torch.finfo(torch.float64).tiny)).clamp(-1, 1)


def _products(x: Tensor, y: Tensor) -> Tensor:
    """Return inner products in float64, in pieces, because parameter matrices are large."""
    pieces = zip(x.split(2**20, dim=-1), y.split(2**20, dim=-1), strict=True)
    return torch.stack([(p.double() * q.double()).sum(-1) for p, q in pieces]).sum(0)


# Number of tokens to which each sentence is padded, and maximum number of sentences that are compared.
PUBLISHED_LENGTH, PUBLISHED_SENTENCES = 200, 1000
# Most bytes of one checkpoint's maps that are held.
_PUBLISHED_MAPS_BYTES = 2**26
COSINE, PADDING = "cosine_as_published", "padding_as_published"


def check_padding(model: SurveyedCheckpoint) -> None:
    """Raise a UserError if the model takes too few tokens, or if its padding attends to no token."""
    name, limit = model.request.source.name, length_limits(model.request.source, model.tokenizer)[1]
    if limit < PUBLISHED_LENGTH:
        raise UserError(
            f"`--as_published` pads sentences to {PUBLISHED_LENGTH} tokens, and {name} takes at most {limit}; leave "
            "the option out."
        )
    mask = torch.arange(PUBLISHED_LENGTH)[None] < 3
    with torch.inference_mode():
        maps = model.maps({"input_ids": torch.where(mask, 1, model.pad_token_id), "attention_mask": mask.long()})
    if not all(bool(torch.isfinite(layer_maps).all()) for layer_maps in maps.values()):
        raise UserError(
            f"`--as_published` compares the rows of padding, and in {name} they attend to no token, because its "
            "attention is local; leave the option out."
        )


def published_change(model: SurveyedCheckpoint, against: SurveyedCheckpoint) -> Measure:
    """Return the measure of the cosines of padded, uncropped maps in two checkpoints, on the same sentences."""

    def of_corpus(tokens: Tokens, corpus: Corpus) -> Begin:
        both = model.prepared(), against.prepared()
        length = min(model.request.max_length or PUBLISHED_LENGTH, PUBLISHED_LENGTH)
        cut = tokens_of(replace(model.request, max_length=length), model.tokenizer)
        return lambda batch: _OwnPasses(lambda: _published_cosines(both, cut, batch))

    settings = _settings(against, length=PUBLISHED_LENGTH, n_sentences=PUBLISHED_SENTENCES)
    return Measure("change_as_published", of_corpus, settings)


def _published_cosines(both: Sequence[SurveyedCheckpoint], cut: Tokens, batch: SentenceBatch) -> BatchValues:
    sentences, heads = batch.sentences, both[0].heads
    cosines = torch.zeros(len(sentences), 2, heads.n_layers, heads.n_heads, dtype=torch.float64)
    padding = torch.zeros(len(sentences), dtype=torch.float64)
    compared = sentences.cpu() < PUBLISHED_SENTENCES
    bytes_per_sentence = heads.n_layers * heads.n_heads * PUBLISHED_LENGTH**2 * 4
    chosen = compared.nonzero()[:, 0]
    for some in chosen.split(max(_PUBLISHED_MAPS_BYTES // bytes_per_sentence, 1)) if len(chosen) else ():
        inputs = _padded(cut, sentences[some].tolist(), both[0].pad_token_id)
        inputs = {name: inputs[name].to(sentences.device) for name in batch.inputs}
        ours, theirs = (checkpoint.maps(inputs) for checkpoint in both)
        for layer, maps in ours.items():
            comparisons = (compare(maps, theirs[layer]) for compare in (map_cosines, other_head_cosines))
            cosines[some, :, layer - 1] = torch.stack(tuple(comparisons), 1).cpu()
        padding[some] = 1 - inputs["attention_mask"].double().mean(1).cpu()
    return BatchValues({"cosine": cosines, "padding": padding, "compared": compared})


def _padded(cut: Tokens, sentences: list[int], pad_token_id: int) -> dict[str, Tensor]:
    shape = len(sentences), PUBLISHED_LENGTH
    ids = torch.full(shape, pad_token_id)
    mask, types = (torch.zeros(shape, dtype=torch.long) for _ in range(2))
    for i, sentence in enumerate(sentences):
        rows = cut.of_sentences(sentence, 1)
        n = rows.stop - rows.start
        ids[i, :n], mask[i, :n] = torch.from_numpy(cut.input_ids[rows].astype(np.int64)), 1
        if cut.token_types is not None:
            types[i, :n] = torch.from_numpy(cut.token_types[rows].astype(np.int64))
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def published_rows(store: SumsStore, layers: list[int]) -> Rows:
    """Return the rows of cosines as published, and the share of padding in the rows of the maps."""
    compared = store.by_sentence("compared").numpy()
    cosines, padding = (store.by_sentence(name).numpy()[compared] for name in ("cosine", "padding"))
    n = np.ones(len(cosines), dtype=np.int64)
    rows = [change_row(PADDING, SAME, None, None, padding, n), *head_rows(COSINE, SAME, layers, cosines[:, 0], n)]
    return rows + (head_rows(COSINE, OTHER_HEADS, layers, cosines[:, 1], n) if cosines.shape[3] > 1 else [])


def _lacks(survey: HeadSurvey) -> str | None:
    """Return the missing requirement, or None; raise a UserError for another model or impossible padding."""
    if survey.against is None:
        return "another checkpoint, given as --against MODEL"
    check_comparable(survey.request, survey.heads, survey.against)
    if survey.as_published:
        check_padding(survey.checkpoint)
    return None


def _measures(survey: HeadSurvey) -> Sequence[Measure]:
    assert survey.against is not None  # otherwise the part is not measured
    both = survey.checkpoint, survey.against
    return [map_change(survey.against), state_change(*both), *[published_change(*both)] * survey.as_published]


def _tables(survey: HeadSurvey, stores: Mapping[str, SumsStore]) -> dict[str, Rows]:
    assert survey.against is not None
    layers = list(survey.layers)
    maps, states, *published = (stores[measure.name] for measure in _measures(survey))
    rows = [*map_rows(maps, layers), *state_rows(states, survey.request.layers)]
    rows += [row for store in published for row in published_rows(store, layers)]
    return {"change": [*rows, *parameter_rows(survey.checkpoint, survey.against)]}


CHANGE = SurveyPart("change", _tables, _measures, _lacks, by_name_only=True, reads_pairs=True)
