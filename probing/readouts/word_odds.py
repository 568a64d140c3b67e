"""The log odds of two words at a mask, read from the last layer by the model's own masked-language-model head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.internals.readouts import MaskedHead
from probing.readouts.masked_words import LOGITS_AT_ONCE, MaskedText
from probing.readouts.text import Padded
from probing.tables.readout_names import WORDS


@dataclass(frozen=True, eq=False)
class WordOdds:
    """The readout of two words at the mask of each text: the logit of the first minus that of the second.

    Args:
        text: The texts.
        masks: Index of the mask token in each text, shape (n_sentences,).
        words: Ids of the two words of each text, shape (n_sentences, 2).
        head: The model's head.
        name: Its name in tables.
    """

    text: MaskedText
    masks: NDArray[np.int64]
    words: NDArray[np.int64]
    head: MaskedHead
    name: str = WORDS

    def layers(self, block: int) -> list[int]:
        """Return the last layer."""
        return [self.text.anatomy.n_layers]

    def begin(self, layers: Sequence[int]) -> _Reading:
        """Begin a reading of the last layer."""
        return _Reading(self)

    def intact(self) -> NDArray[np.float64]:
        """Return the log odds by the intact model, shape (n_sentences,)."""
        tokens = self.text.tokens
        states = self.text.states(self.text.anatomy.n_layers)
        at_masks = states[torch.from_numpy(tokens.offsets[:-1] + self.masks)]
        return self.odds(at_masks.to(self.head.input_ids.device)).numpy()

    @torch.inference_mode()
    def odds(self, states: Tensor) -> Tensor:
        """Return the log odds of each text's words, shape (n_sentences,), float64, on the CPU.

        Args:
            states: The last hidden state at each mask, shape (n_sentences, d_model).
        """
        words = torch.from_numpy(self.words)
        at_once = max(1, LOGITS_AT_ONCE // int(self.head.encoder.config.vocab_size))  # type: ignore[union-attr,arg-type]
        found = []
        for part, asked in zip(states.split(at_once), words.split(at_once), strict=True):
            first, second = self.head(part).cpu().double().gather(1, asked).T
            found.append(first - second)
        return torch.cat(found)


class _Reading:
    def __init__(self, readout: WordOdds) -> None:
        self.readout = readout
        self.last = readout.text.anatomy.n_layers
        self.states: list[tuple[Tensor, Tensor]] = []

    def take(self, states: Mapping[int, Tensor], batch: Padded) -> None:
        sentences = batch.sentences.cpu()
        masks = torch.from_numpy(self.readout.masks)[sentences].to(batch.mask.device)
        at_masks = states[self.last][torch.arange(len(sentences), device=masks.device), masks]
        self.states.append((sentences, at_masks))

    def sums(self) -> Tensor:
        sentences, states = (torch.cat(parts) for parts in zip(*self.states, strict=True))
        return self.readout.odds(states[sentences.argsort().to(states.device)])[None]
