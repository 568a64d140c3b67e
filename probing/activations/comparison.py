"""Comparison of cached activations with the unmodified model's for some sentences, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from probing.activations.extraction import ForwardSpec, reading_order
from probing.activations.store import ActivationStore, batches
from probing.errors import NotTheModels
from probing.models.anatomy import of_copy
from probing.models.examination import (
    SAME,
    in_float32,
    inputs_of,
    largest_change,
    n_token_types,
    relative_changes,
    run,
    with_the_same_weights,
)
from probing.models.sites import activations
from probing.text import Corpus

# Parts of the sentences, ordered by length, from each of which one is drawn, beside the shortest and the longest.
_PARTS, _SEED = 3, 0

# Largest change of a sentence's states that counts as rounding. In float32 it is that of the token that changes most.
# In low precision it is the root mean square over tokens: in other batches, the same sentence differs by up to 0.013 in
# bfloat16 and 0.0014 in float16, in the built-in model and the families that are tested. Deep models round more often,
# so what rounding does to the plain model is measured too, and this many times as much is allowed.
_ALLOWED = {"float32": SAME, "bfloat16": 0.04, "float16": 0.005}

_TIMES_ROUNDING = 3


def compare_with_plain_model(
    store: ActivationStore, layers: Sequence[int], encoder: nn.Module, tokenizer: Any, corpus: Corpus
) -> None:
    """Read some sentences of all lengths by the plain model, one at a time and without padding, and compare.

    The model is called as a user would call it, `model(**tokenizer(text), output_hidden_states=True)`; for a site
    inside blocks, the inputs of its linear maps are compared. A copy of the model reads from the shortest sentence to
    the longest and another copy in the opposite order, because some models keep state. In low precision, the batches of
    these sentences are also read again in float32, where rounding hides less, in the way of the extraction.

    The encoder, in the store's dtype, must not have been run. `NotTheModels` is raised for differences beyond rounding.
    """
    n_types = n_token_types(encoder, tokenizer, corpus.seconds is not None)
    alone = _Alone(store, layers, tokenizer, corpus, n_types)
    sentences, dtype = drawn_sentences(store), store.plan.dtype
    with torch.inference_mode():
        exact = None if dtype == "float32" else in_float32(encoder)
        change = largest_change if dtype == "float32" else typical_change
        allowed = _allowed(alone, sentences, encoder, exact)
        for order in (sentences, sentences[::-1]):
            model = with_the_same_weights(encoder)
            for sentence in order:
                plain = alone.states(model, sentence)
                _check(alone, encoder, sentence, alone.cached(sentence), plain, change, allowed)
        if exact is not None:
            reading, allowed = ForwardSpec.of(exact, tokenizer, store), dict.fromkeys(layers, SAME)
            for sentence in sentences:
                plain = alone.states(with_the_same_weights(exact), sentence)
                batched = alone.in_batch(exact, reading, sentence)
                _check(alone, exact, sentence, batched, plain, largest_change, allowed)


def _allowed(alone: _Alone, sentences: Sequence[int], encoder: nn.Module, exact: nn.Module | None) -> dict[int, float]:
    """Return the largest change of each layer that counts as rounding; `exact` is the model in float32, if it fits."""
    allowed = dict.fromkeys(alone.layers, _ALLOWED[alone.store.plan.dtype])
    if exact is None:
        return allowed
    for sentence in sentences:
        rounded = alone.states(with_the_same_weights(encoder), sentence)
        wide = alone.states(with_the_same_weights(exact), sentence)
        for layer in allowed:
            allowed[layer] = max(allowed[layer], _TIMES_ROUNDING * typical_change(rounded[layer], wide[layer]))
    return allowed


def _check(
    alone: _Alone, encoder: nn.Module, sentence: int, extracted: Mapping[int, Tensor], plain: Mapping[int, Tensor],
    change_of: Callable[[Tensor, Tensor], float], allowed: Mapping[int, float],
) -> None:  # fmt: skip
    """Refuse extracted states, (n_tokens, width) by layer, that differ from the plain model's beyond `allowed`."""
    for layer, states in extracted.items():
        if (change := change_of(states, plain[layer])) <= allowed[layer]:
            continue
        where = f"layer {layer} of sentence {sentence} of the corpus (counted from 0)"
        model = with_the_same_weights(encoder)
        read = {i: alone.states(model, i)[layer] for i in (sentence, *drawn_sentences(alone.store), sentence)}
        first = alone.states(with_the_same_weights(encoder), sentence)[layer]
        if (itself := max(change_of(repeated, first) for repeated in (plain[layer], read[sentence]))) > allowed[layer]:
            raise NotTheModels(
                f"`--model {alone.name}`: {where} differs by {itself:.1%} from one call of the model to the next, "
                "because it keeps state between calls or draws at random; nothing is kept: choose another model."
            )
        raise NotTheModels(
            f"`--model {alone.name}`: {where}, as extracted, differs by {change:.1%} from what the model gives for "
            f"this sentence alone, and rounding by at most {allowed[layer]:.1%}; nothing is kept, because these would "
            "not be the model's own hidden states: choose another model."
        )


def typical_change(actual: Tensor, expected: Tensor) -> float:
    """Return the root mean square of the relative changes."""
    return float(relative_changes(actual, expected).square().mean().sqrt())


def drawn_sentences(store: ActivationStore) -> list[int]:
    """Return some sentences by their lengths, ascending: the same each time.

    These are the shortest, the longest, and the most padded sentence of all batches, and a random one of each third.
    """
    lengths = store.tokens.lengths
    order = np.argsort(lengths, kind="stable")
    order = order[lengths[order] > 0]
    if not len(order):
        return []
    generator = np.random.default_rng(_SEED)
    between = [int(generator.choice(part)) for part in np.array_split(order, _PARTS) if len(part)]
    chosen = {int(order[0]), int(order[-1]), _most_padded(store), *between}
    return sorted(chosen, key=lambda sentence: (lengths[sentence], sentence))


def _most_padded(store: ActivationStore) -> int:
    lengths, most = store.tokens.lengths, (-1, 0)
    for shard in store.plan.shards:
        first = shard.first_sentence
        for batch in batches(lengths[first : first + shard.n_sentences], store.plan.batch_tokens):
            longest, shortest = first + int(batch[0]), first + int(batch[-1])
            most = max(most, (int(lengths[longest] - lengths[shortest]), shortest))
    return most[1]


@dataclass(frozen=True)
class _Alone:
    """Sentences of an entry, each read alone."""

    store: ActivationStore
    layers: Sequence[int]
    tokenizer: Any
    corpus: Corpus
    n_types: int

    @property
    def name(self) -> str:
        """The model's name as the user typed it."""
        return str(self.store.header["model"])

    def states(self, model: nn.Module, sentence: int) -> dict[int, Tensor]:
        """Return a model's states for a sentence, shape (n_tokens, width) for each layer, on the processor."""
        modules = tuple((self.store.header.get("site") or {}).get("modules", ()))
        inputs = self._inputs(model, sentence)
        with inputs_of(model.get_submodule(name) for name in modules) as seen:
            states = run(model, inputs, output_hidden_states=True).states
        # Inside blocks, layers are counted from 1, and some families pad sequences (LED).
        layer_states = [
            seen[layer - 1].states_in.flatten(0, -2) if modules else states[layer][0] for layer in self.layers
        ]
        length = inputs["input_ids"].shape[1]
        return {layer: vectors[:length].cpu() for layer, vectors in zip(self.layers, layer_states, strict=True)}

    def cached(self, sentence: int) -> dict[int, Tensor]:
        """Return the entry's states for a sentence, in the order in which its tokens are read."""
        shard, rows = self._where(sentence)
        order = self._order(sentence)
        return {layer: self.store.read(layer, shard)[rows][order] for layer in self.layers}

    def in_batch(self, encoder: nn.Module, reading: ForwardSpec, sentence: int) -> dict[int, Tensor]:
        """Return the extraction's states for a sentence in its batch; the encoder has not been run."""
        shard, _ = self._where(sentence)
        text = reading.of_shard(self.store, shard)
        in_shard = sentence - self.store.plan.shards[shard].first_sentence
        batch = next(candidate for candidate in text.batches() if in_shard in candidate)
        inputs, _, mask = text.inputs(batch, next(encoder.parameters()).device)
        copy = with_the_same_weights(encoder)
        states_by_layer = activations(copy, of_copy(reading.anatomy, encoder, copy), self.layers, **inputs)
        row = int(np.flatnonzero(batch == in_shard)[0])
        return {layer: states[row][mask[row].to(states.device)].cpu() for layer, states in states_by_layer.items()}

    def _inputs(self, model: nn.Module, sentence: int) -> dict[str, Tensor]:
        """Return the tokenizer's output for a sentence, as far as the model takes it."""
        tokens, order = self.store.tokens, self._order(sentence)
        texts = [self.corpus.sentences[sentence]]
        if self.corpus.seconds is not None:
            start = self.corpus.seconds[sentence]
            texts = [texts[0][: start - 1], texts[0][start:]]
        encoded = self.tokenizer(
            *texts, truncation=True, max_length=int(tokens.lengths.max()), return_tensors="pt",
            return_token_type_ids=self.n_types > 0,
        )  # fmt: skip
        if not np.array_equal(encoded["input_ids"][0], tokens.input_ids[tokens.of_sentences(sentence, 1)]):
            raise NotTheModels(
                f"`--model {self.name}`: its tokenizer gives other tokens for sentence {sentence} of the corpus "
                "(counted from 0) than when the corpus was tokenised; nothing is kept: check the tokenizer."
            )
        taken, device = signature(model.forward).parameters, next(model.parameters()).device
        return {
            name: values[:, order].to(device)
            for name, values in encoded.items()
            if name in taken and (name != "token_type_ids" or int(values.max()) < self.n_types)
        }

    def _where(self, sentence: int) -> tuple[int, slice]:
        """Return the shard of a sentence, and its rows in the shard."""
        shard = next(
            candidate for candidate in reversed(self.store.plan.shards) if candidate.first_sentence <= sentence
        )
        rows, begin = self.store.tokens.of_sentences(sentence, 1), shard.rows(self.store.tokens).start
        return shard.index, slice(rows.start - begin, rows.stop - begin)

    def _order(self, sentence: int) -> Tensor:
        """Return the index in the sentence of the token that is read at each index."""
        shard, rows = self._where(sentence)
        return reading_order(self.store, self.store.plan.shards[shard].rows(self.store.tokens))[rows] - rows.start
