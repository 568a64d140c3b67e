"""Classes of a task, such as positions, decoded from later layers by probes trained on the intact model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from probing.heads.position import CLEAREST, MOST_HITS, MOST_MASS, OFFSETS, mass_at_offsets
from probing.interventions import CONTRAST, POSITION, WORD_MASS
from probing.interventions.forward import ItemReading, Loss, OfSentences, Padded, ReadableText, Readers, padded_batches
from probing.models.attention_heads import QueryKey, read_heads
from probing.runtime.trainer import on_float64_device
from probing.text.tasks import SentenceTask, TokenTask
from probing.text.tokens import Tokens


def standing_for(task: TokenTask, tokens: Tokens) -> NDArray[np.int64] | None:
    """Return the row of the token that represents each token's example, shape (n_tokens,), -1 without an example.

    Return None if examples are single tokens. Otherwise examples are means, which exclude special tokens.
    """
    if isinstance(task, SentenceTask):
        if task.pooling == "cls":
            return None
        return np.where(tokens.special, -1, _first_words(tokens)[tokens.sentences])
    if not task.word_means:
        return None
    begins = np.where(tokens.first_pieces, np.arange(tokens.n_tokens), -1)
    return np.where(tokens.special, -1, np.maximum.accumulate(begins))


def at_tokens(task: TokenTask, tokens: Tokens, labels: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the class of each token that represents an example, -1 for others, shape (n_tokens,).

    `labels` are classes of tokens or, for a task of sentences, of sentences; -1 without a class.
    """
    if not isinstance(task, SentenceTask):
        return labels
    first = tokens.offsets[:-1] if task.pooling == "cls" else _first_words(tokens)
    has_token = (tokens.lengths > 0) & (first >= 0)
    token_labels = np.full(tokens.n_tokens, -1, dtype=np.int32)
    token_labels[first[has_token]] = labels[has_token]
    return token_labels


def means(states: Tensor, into: Tensor, n: int) -> Tensor:
    """Return means over the tokens of n examples (`into`, -1 for none), shape (n, width); 0 without tokens."""
    is_example = into >= 0
    rows = into[is_example]
    sums = states.new_zeros(n, states.shape[1]).index_add_(0, rows, states[is_example])
    return sums / rows.bincount(minlength=n).clamp_min(1)[:, None]


def spread(labels: Tensor, stands: Tensor | None) -> Tensor:
    """Return the label of each token's example, shape (n_tokens,); for `stands` see `standing_for`."""
    return labels if stands is None else torch.where(stands >= 0, labels[stands.clamp_min(0)], -1)


def _first_words(tokens: Tokens) -> NDArray[np.int64]:
    """Return the row of the first token of each sentence that is not special, -1 if there is none."""
    first_rows = np.full(tokens.n_sentences, -1, dtype=np.int64)
    rows = np.flatnonzero(~tokens.special)
    sentences, first = np.unique(tokens.sentences[rows], return_index=True)
    first_rows[sentences] = rows[first]
    return first_rows


@dataclass(frozen=True, eq=False)
class ProbeReadout(OfSentences):
    """The readout of frozen probes of later layers, trained on the intact model: their accuracy on examples.

    Args:
        weight: Weight of each layer's probe on raw hidden states, shape (n_classes, d_model), by layer number.
        labels: Class of each token that is an example or represents one, shape (n_tokens,); -1 for others.
        device: Device of the passes.
        stands: Row of the token that represents each token's example; None if examples are single tokens. See
            `standing_for`.
    """

    text: ReadableText
    weight: Mapping[int, Tensor]
    labels: Tensor
    device: torch.device
    stands: Tensor | None = None
    name: str = POSITION

    @cached_property
    def n(self) -> NDArray[np.int64]:
        """Number of examples of each sentence."""
        tokens = self.text.tokens
        return np.bincount(tokens.sentences[self.labels.cpu().numpy() >= 0], minlength=tokens.n_sentences)

    @property
    def content(self) -> tuple[NDArray[Any], ...]:
        """The token ids, the probes and the classes."""
        weight = [layer_weight.cpu().numpy() for layer_weight in self.weight.values()]
        stands = [] if self.stands is None else [self.stands.numpy()]
        tokens = self.text.tokens
        return tokens.input_ids, tokens.lengths, np.array(list(self.weight)), *weight, self.labels.numpy(), *stands

    def layers(self, block: int) -> list[int]:
        """Return the layers that have a probe, from this block's output on."""
        return [layer for layer in self.weight if layer >= block]

    def begin(self, layers: Sequence[int]) -> ItemReading:
        """Begin a reading of some layers."""
        totals = torch.zeros(len(layers), len(self.n), device=self.device)
        return ItemReading(lambda states, batch: self.right(states, layers, batch), totals)

    @cached_property
    def _on_device(self) -> tuple[dict[int, Tensor], Tensor, Tensor | None]:
        """The weights, labels and `stands` on the device of the passes."""
        # Passes read them first, in inference mode, whose tensors have no gradients: those of heads need them later.
        with torch.inference_mode(False):
            weight = {layer: layer_weight.to(self.device) for layer, layer_weight in self.weight.items()}
            return weight, self.labels.to(self.device), None if self.stands is None else self.stands.to(self.device)

    def right(self, states: Mapping[int, Tensor], layers: Sequence[int], batch: Padded) -> Tensor:
        """Return the number of correct predictions in each sentence, shape (n_layers, batch), float32."""
        labels, weight = self._labels_of(batch), self._on_device[0]
        sentence, token = (labels >= 0).nonzero(as_tuple=True)
        vectors_of = self._vectors(batch, sentence, token)
        right = torch.zeros(len(layers), len(labels), device=labels.device)
        for i, layer in enumerate(layers):
            predicted = (vectors_of(states[layer]) @ weight[layer].T).argmax(1)
            right[i].index_add_(0, sentence, (predicted == labels[sentence, token]).float())
        return right

    def _vectors(self, batch: Padded, sentence: Tensor, token: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the map from a batch's hidden states to the vectors of its examples, float32."""
        if (of_examples := self._on_device[2]) is None:
            return lambda states: states[sentence, token].float()
        number = torch.full(batch.mask.shape, -1, device=batch.mask.device)
        number[sentence, token] = torch.arange(len(sentence), device=number.device)
        stands = torch.where(batch.mask, of_examples[batch.rows], -1)
        of, taken = (stands >= 0).nonzero(as_tuple=True)
        # The tokens of a sentence follow each other in the text.
        into = number[of, stands[of, taken] - batch.rows[of, 0]]
        return lambda states: means(states[of, taken].float(), into, len(sentence))

    def _labels_of(self, batch: Padded) -> Tensor:
        """Return the class of each token of a batch, shape (batch, sequence); -1 if it is not an example."""
        return torch.where(batch.mask, self._on_device[1][batch.rows], -1)

    def loss(self, batch: Padded, occurrences: NDArray[np.int64]) -> Loss:
        """Return the mean cross-entropy of the last layer's probe over each sentence's examples, which are tokens.

        Raises:
            ValueError: If the examples are means over tokens.
        """
        if self.stands is not None:
            raise ValueError("the loss is of examples that are single tokens")
        return probe_loss(self._on_device[0][max(self.weight)], self._labels_of(batch))


def probe_loss(weight: Tensor, labels: Tensor) -> Loss:
    """Return a frozen probe's mean cross-entropy over each sentence's examples (labels from 0), 0 without any."""
    n = (labels >= 0).sum(1)

    def loss(states: Tensor) -> Tensor:
        logits = states @ weight.T.to(states.dtype)
        nats = cross_entropy(logits.transpose(1, 2), labels, ignore_index=-1, reduction="none")
        return nats.sum(1) / n.clamp_min(1)

    return loss


# What is read of each head, in the order of the rows that a reading gives.
MEASURES = (CONTRAST, WORD_MASS)


@dataclass(frozen=True)
class PositionHead:
    """A head that attends to a fixed offset, in tokens from query to key; block and head count from 1."""

    layer: int
    head: int
    offset: int


def words_of(tokens: Tokens, is_causal: bool) -> Tensor:
    """Return a mask of the words, shape (n_tokens,): the first token of a causal model counts as special."""
    return torch.from_numpy(~tokens.special & ((tokens.positions > 0) | (not is_causal)))


@torch.inference_mode()
def find_position_heads(
    readers: Readers, text: ReadableText, batch_tokens: int, above: Sequence[int] = (0,)
) -> list[PositionHead]:
    """Return the position heads, and the clearest heads of the blocks above each layer in `above`.

    A position head gives more than half of its attention to one offset (Clark et al. 2019), or attends there most in
    nine of ten queries (Voita et al. 2019). The offset of a head is the offset with the most attention. The clearest
    heads need not be position heads.
    """
    model = readers.model
    words = words_of(text.tokens, model.heads.is_causal).to(readers.device)
    shape = (model.heads.n_layers, model.heads.n_heads, len(OFFSETS))
    sums = {name: torch.zeros(shape, dtype=torch.float64) for name in ("mass", "word_mass", "hit")}
    n = torch.zeros(len(OFFSETS), dtype=torch.float64)
    how = batch_tokens, readers.pad_token_id, model.anatomy.padding_is_neutral, readers.device
    for batch in padded_batches(text.tokens, *how):
        ordinary = batch.mask & words[batch.rows]
        pairs = (batch.mask[:, :, None] & batch.mask[:, None, :])[:, None]

        def add(
            block: int, probabilities: Tensor, values: Tensor, ordinary: Tensor = ordinary, pairs: Tensor = pairs
        ) -> None:
            maps = torch.where(pairs, probabilities, 0.0)
            masses = mass_at_offsets(on_float64_device(maps), on_float64_device(ordinary))
            for name, of in sums.items():
                of[block - 1] += masses[name].sum(0).cpu()
            if block == 1:
                n.add_(masses["n"].sum((0, 1)).cpu())

        read_heads(model.encoder, model.heads, add, batch.inputs)
    means = {name: (of / n.clamp_min(1)).numpy() for name, of in sums.items()}
    chosen = means["mass"].argmax(2)
    at = {name: np.take_along_axis(of, chosen[..., None], 2)[..., 0] for name, of in means.items()}
    is_position_head = (at["mass"] > MOST_MASS) | (at["hit"] >= MOST_HITS)
    for layer in above:
        later = np.where(np.arange(shape[0])[:, None] >= layer, at["word_mass"], -1.0)
        clearest = np.argsort(-later, axis=None, kind="stable")[:CLEAREST]
        is_position_head.flat[clearest] |= later.flat[clearest] >= 0
    return [PositionHead(i + 1, j + 1, OFFSETS[chosen[i, j]]) for i, j in np.argwhere(is_position_head).tolist()]


@dataclass(frozen=True, eq=False)
class PositionHeads:
    """The contrast and the attention among words of some heads at their offsets."""

    text: ReadableText
    heads: Sequence[PositionHead]
    query_keys: Sequence[QueryKey]
    is_causal: bool
    device: torch.device

    def rows(self, block: int) -> list[tuple[str, PositionHead]]:
        """Return the measure and the head of each row of a reading if this block is the first changed block."""
        return [(measure, head) for head in self.heads if head.layer >= block for measure in MEASURES]

    def layers(self, block: int) -> list[int]:
        """Return the layers that enter the blocks of the heads, from this block on."""
        return sorted({head.layer - 1 for head in self.heads if head.layer >= block})

    def begin(self, layers: Sequence[int]) -> ItemReading:
        """Begin a reading of the heads of the blocks that these layers enter."""
        heads = [head for head in self.heads if head.layer - 1 in layers]

        def score(states: Mapping[int, Tensor], batch: Padded) -> Tensor:
            values = [value for head in heads for value in self._of_batch(head, states, batch)]
            return torch.stack(values) if values else torch.zeros(0, len(batch.sentences))

        n_rows, n_sentences = len(MEASURES) * len(heads), self.text.tokens.n_sentences
        return ItemReading(score, torch.zeros(n_rows, n_sentences, dtype=torch.float64))

    def _of_batch(self, head: PositionHead, states: Mapping[int, Tensor], batch: Padded) -> tuple[Tensor, Tensor]:
        inputs, norm = states[head.layer - 1], self.query_keys[head.layer - 1].norm
        inputs = inputs.float() if norm is None else norm(inputs.cpu().double()).float().to(inputs.device)
        words = batch.mask & self.words[batch.rows]
        return at_offset(inputs, words, *self.maps(head), head.offset, self.is_causal)

    @cached_property
    def words(self) -> Tensor:
        """Mask of the words, shape (n_tokens,)."""
        return words_of(self.text.tokens, self.is_causal).to(self.device)

    def n(self, head: PositionHead) -> NDArray[np.int64]:
        """Return the number of words of each sentence that see a word at the head's offset, shape (n_sentences,)."""
        sentences, words = self.text.tokens.sentences, self.words.cpu().numpy()
        other = np.arange(len(words)) + head.offset
        inside = (other >= 0) & (other < len(words)) & words & (head.offset < 0 or not self.is_causal)
        queries = inside.nonzero()[0]
        queries = queries[words[other[queries]] & (sentences[other[queries]] == sentences[queries])]
        return np.bincount(sentences[queries], minlength=self.text.tokens.n_sentences)

    def maps(self, head: PositionHead) -> tuple[Tensor, Tensor, Tensor]:
        """Return W_Q and b_Q, scaled, and W_K of a head, float32."""
        of = self.query_keys[head.layer - 1]
        parameters = (
            parameter[head.head - 1].float().to(self.device) for parameter in (of.query, of.query_bias, of.key)
        )
        query, bias, key = parameters
        return query, bias, key


def at_offset(
    inputs: Tensor, words: Tensor, query: Tensor, bias: Tensor, key: Tensor, offset: int, is_causal: bool
) -> tuple[Tensor, Tensor]:
    """Return a head's contrast at an offset and its attention among words there, summed over queries.

    Both have shape (batch,), float64.

    Args:
        inputs: Input of the block's attention, shape (batch, sequence, d_model).
        words: Whether each token is a word, shape (batch, sequence).
        query: W_Q times the scale of the scores, shape (d_model, d_head).
        bias: b_Q times this scale, shape (d_head,).
        key: W_K, shape (d_model, d_head). (Its bias adds the same to all scores of a query.)
        offset: In tokens, from query to key.
    """
    scores = (inputs @ query + bias) @ (inputs @ key).transpose(1, 2)
    seen = words[:, :, None] & words[:, None, :]
    seen = seen.tril() if is_causal else seen
    is_seen, at_offset_scores = seen.diagonal(offset, 1, 2), scores.diagonal(offset, 1, 2)
    first = max(0, -offset)
    queries = slice(first, first + at_offset_scores.shape[1])
    mean = (scores * seen).sum(2) / seen.sum(2).clamp_min(1)
    total = scores.masked_fill(~seen, -torch.inf).logsumexp(2)
    contrast = torch.where(is_seen, at_offset_scores - mean[:, queries], 0.0)
    mass = torch.where(is_seen, (at_offset_scores - total[:, queries]).exp(), 0.0)
    contrast, mass = on_float64_device(contrast), on_float64_device(mass)
    return contrast.sum(1, dtype=torch.float64), mass.sum(1, dtype=torch.float64)
