"""Forward passes over a text with a head or a layer disabled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from probing.cache.extraction import copies_for_readers, share_out
from probing.disabling.later_blocks import LaterBlocks
from probing.disabling.readouts import Probes
from probing.disabling.replacements import Replacements, replacing, uniform_outputs
from probing.disabling.text import Padded, Text
from probing.disabling.units import Job
from probing.runtime.float64 import to_float64

_Reader = tuple[nn.Module, LaterBlocks]
# Called with a reader's model, and with the batch, what blocks hand on beside hidden states, and the states.
_Read = Callable[[LaterBlocks, Padded, Any, Tensor], None]


@dataclass
class _Side:
    """A text in batches, with the hidden states of one layer in memory at a time.

    Args:
        text: The sentences.
        batches: Them in batches.
        beside: What the blocks hand on beside the hidden states, for each batch.
        device: Where the states are put.
    """

    text: Text
    batches: Sequence[Padded]
    beside: Sequence[Any]
    device: torch.device
    _layer: int = -1
    _states: Tensor = field(default_factory=lambda: torch.empty(0))

    def states(self, layer: int) -> Tensor:
        """Return the cached hidden states of a layer, shape (n_tokens, d_model)."""
        if layer != self._layer:
            self._layer, self._states = layer, self.text.states(layer).to(self.device)
        return self._states


class Passes:
    """Runs the later blocks of a model over a text, once for each job, and reads the later layers out.

    Args:
        encoder: The model, in evaluation mode and float32; its weights are not changed.
        pad_token_id: Id of the padding token.
        name: The model's name as the user typed it, for messages.
        text: The sentences that are read.
        train: Training sentences, whose heads' outputs stand in the place of others.
        probes: What is read out.
        batch_tokens: Most tokens in a batch, padding included.
        seed: Seed of the draw of the tokens whose outputs replace others.

    Raises:
        UserError: If the model's blocks or heads cannot be told.
    """

    def __init__(
        self, encoder: nn.Module, pad_token_id: int, name: str, text: Text, train: Text, probes: Probes,
        batch_tokens: int, seed: int,
    ) -> None:  # fmt: skip
        self.device = next(encoder.parameters()).device
        self.readers: list[_Reader] = [
            (one, LaterBlocks.of(one, pad_token_id, name)) for one in copies_for_readers(encoder, self.device)
        ]
        self.model = self.readers[0][1]
        self.text, self.train = (self._side(one, pad_token_id, batch_tokens) for one in (text, train))
        self.tokens, self.d_model, self.n_sentences = text.tokens, text.store.plan.d_model, len(text.kept)
        weight = {layer: one.to(self.device) for layer, one in probes.weight.items()}
        self.probes = Probes(weight, probes.labels.to(self.device))
        self.seed = seed
        self._replacements: tuple[int, Replacements] | None = None

    def run(self, job: Job) -> Tensor:
        """Return how many examples of each sentence are predicted rightly, shape (n_layers, n_sentences), float32.

        Args:
            job: What is disabled. The layers are those of `probes.layers(job.block)`.
        """
        layers = self.probes.layers(job.block)
        right = torch.zeros(len(layers), self.n_sentences, device=self.device)

        def read(states: dict[int, Tensor], batch: Padded) -> None:
            right[:, batch.sentences] = self.probes.read(states, layers, batch)

        self._run(job, layers, read)
        return right.cpu()

    def _run(self, job: Job, layers: Sequence[int], take: Callable[[dict[int, Tensor], Padded], None]) -> None:
        """Hand over the hidden states of each batch while something is disabled."""
        columns = self.model.columns(job.head)
        replacements = self.replacements(job.block) if job.kind not in (None, "skip") else None

        def read(model: LaterBlocks, batch: Padded, beside: Any, states: Tensor) -> None:
            change = None
            if replacements is not None and job.kind is not None:
                change = replacing(columns, replacements.of(job.kind, columns, batch.sentences, batch.rows))
            first = job.block + (job.kind == "skip")
            take(model.run(batch.inputs, first, states, beside, layers, change), batch)

        self._over(self.text, job.block - 1, read)

    def states(self, job: Job, layers: Sequence[int]) -> dict[int, Tensor]:
        """Return the hidden states of some layers while something is disabled, shape (n_tokens, d_model), float32.

        Args:
            job: What is disabled.
            layers: The layers, at least that of the block that is changed.
        """
        found = {layer: torch.empty(self.tokens.n_tokens, self.d_model) for layer in layers}

        def keep(states: dict[int, Tensor], batch: Padded) -> None:
            for layer, here in states.items():
                found[layer][batch.rows[batch.mask].cpu()] = here[batch.mask].float().cpu()

        self._run(job, layers, keep)
        return found

    def replacements(self, block: int) -> Replacements:
        """Return what may stand in the place of the outputs of a block's heads; that of one block is kept."""
        if self._replacements is None or self._replacements[0] != block:
            self._replacements = block, self._find_replacements(block)
        return self._replacements[1]

    def _find_replacements(self, block: int) -> Replacements:
        is_causal, width = self.model.heads.is_causal, self.model.width
        n_tokens = len(self.text.states(block - 1))
        uniform = torch.zeros(n_tokens if is_causal else self.n_sentences, width, device=self.device)
        bank = torch.zeros(len(self.train.states(block - 1)), width, device=self.device)

        def note_uniform(model: LaterBlocks, batch: Padded, beside: Any, states: Tensor) -> None:
            _, values = model.outputs_of_heads(batch.inputs, block, states, beside)
            found = uniform_outputs(values, batch.mask, is_causal)
            if is_causal:
                uniform[batch.rows[batch.mask]] = found[batch.mask]
            else:
                uniform[batch.sentences] = found[:, 0]

        def note_outputs(model: LaterBlocks, batch: Padded, beside: Any, states: Tensor) -> None:
            outputs, _ = model.outputs_of_heads(batch.inputs, block, states, beside)
            bank[batch.rows[batch.mask]] = outputs[batch.mask]

        self._over(self.text, block - 1, note_uniform)
        self._over(self.train, block - 1, note_outputs)
        mean = to_float64(bank).mean(0).to(bank)
        return Replacements(uniform, is_causal, mean, bank, self._drawn[:n_tokens])

    @cached_property
    def _drawn(self) -> Tensor:
        """For each token of the text, the training token whose outputs replace its own, the same in all blocks."""
        n, n_train = (len(side.text.of_corpus) for side in (self.text, self.train))
        generator = np.random.default_rng(self.seed)
        drawn = generator.integers(n_train, size=n)
        if self.text.text is self.train.text and self.n_sentences > 1:  # a token's own sentence is not another one
            own, of_bank = self.tokens.sentences, self.train.text.tokens.sentences
            while (same := own == of_bank[drawn]).any():
                drawn[same] = generator.integers(n_train, size=int(same.sum()))
        return torch.from_numpy(drawn).to(self.device)

    @torch.inference_mode()
    def _side(self, text: Text, pad_token_id: int, batch_tokens: int) -> _Side:
        neutral = self.model.anatomy.padding_is_neutral
        batches = text.batches(batch_tokens, pad_token_id, neutral, self.device)
        return _Side(text, batches, [self.model.beside_states(one.inputs) for one in batches], self.device)

    def _over(self, side: _Side, layer: int, read: _Read) -> None:
        """Give every batch of a text, with the hidden states of a layer, to one of the readers."""
        states = side.states(layer)

        @torch.inference_mode()
        def read_one(encoder: nn.Module, model: LaterBlocks, one: tuple[Padded, Any]) -> None:
            batch, beside = one
            read(model, batch, beside, states[batch.rows])

        share_out(read_one, self.readers, zip(side.batches, side.beside, strict=True))
