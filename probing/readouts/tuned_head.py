"""The score of a tuned model's own head: what it makes of the last hidden states, and whether that is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from probing.cache import ActivationStore
from probing.corpus import Corpus
from probing.corpus.splits import GroupBy, Split
from probing.data.labelling import IGNORED, Standard, is_target, label_sides, nothing, targets_of
from probing.errors import UserError
from probing.models.examination import examination_inputs, run, with_the_same_weights
from probing.models.loading import HeadOf
from probing.readouts.forward import Loss
from probing.readouts.later_blocks import LaterBlocks
from probing.readouts.names import TUNED, TUNED_R2
from probing.readouts.text import Padded, Text
from probing.tasks import SentenceTask, TokenTask

# Largest difference between the head's outputs by itself and in the model, relative to the largest of them.
_ROUNDING = 1e-4


class TunedHead:
    """The head of a tuned model, with all that follows the blocks, such as a pooler: logits of any last hidden states.

    It runs a copy of the model that shares its weights, whose blocks hand on the given hidden states instead of their
    own. A norm behind the last block, whose output these states are, does so, too.

    Args:
        model: The model with its head, in evaluation mode.
        blocks: The blocks of its encoder.
        pad_token_id: Id of the padding token.

    Raises:
        UserError: If the head reads something else than the last hidden states.
    """

    def __init__(self, model: Any, blocks: LaterBlocks, pad_token_id: int) -> None:
        self.model: Any = with_the_same_weights(model)
        self._given, self._lock = torch.empty(0), Lock()
        inputs = examination_inputs(model.base_model, pad_token_id)
        with torch.no_grad():
            beside = blocks.beside_states(inputs)
            last, normed = self._last(model, blocks, inputs)
            for module in dict.fromkeys(blocks.anatomy.blocks or ()):
                self._inside(model, module).forward = self._handing_on(beside)
            for module in normed:
                self._inside(model, module).forward = self._handing_on(None)
            expected, found = model(**inputs).logits, self(inputs, last)
        mask = inputs["attention_mask"].bool()
        kept = mask if expected.ndim == mask.ndim + 1 else ...
        if (found - expected)[kept].abs().max() > _ROUNDING * expected[kept].abs().max().clamp_min(1e-6):
            raise UserError(
                f"the head of {type(model).__name__} reads something else than the last hidden states, so that it "
                "cannot be read while a part of the model is disabled; choose another model."
            )

    def __call__(self, inputs: Mapping[str, Tensor], states: Tensor) -> Tensor:
        """Return the logits of a batch, of sentences or of tokens; gradients flow through them.

        Args:
            inputs: What the model is given.
            states: The last hidden states, shape (batch, sequence, d_model).
        """
        with self._lock:  # several threads read
            self._given = states
            logits: Tensor = self.model(**inputs).logits
            self._given = torch.empty(0)
        return logits

    def _handing_on(self, beside: tuple[Any, ...] | None) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._given if beside is None else (self._given, *beside)

    def _inside(self, model: Any, module: nn.Module) -> Any:
        """Return the copy of a module of the model."""
        name = next(name for name, one in model.named_modules() if one is module)
        return self.model.get_submodule(name)

    @staticmethod
    def _last(model: Any, blocks: LaterBlocks, inputs: Mapping[str, Tensor]) -> tuple[Tensor, list[nn.Module]]:
        """Return the last hidden states of some tokens, and the modules behind the last block that give them."""
        of_blocks = {id(inner) for block in blocks.anatomy.blocks or () for inner in block.modules()}
        made: dict[nn.Module, Any] = {}

        def note(module: nn.Module, args: Any, output: Any) -> None:
            made[module] = output[0] if isinstance(output, tuple | list) else output

        outside = [
            module
            for module in model.base_model.modules()
            if not {id(inner) for inner in module.modules()} & of_blocks
        ]  # fmt: skip
        own = list(dict.fromkeys(blocks.anatomy.blocks or ()))
        handles = [module.register_forward_hook(note) for module in (*outside, *own)]
        try:
            last = run(model.base_model, inputs).last
        finally:
            for handle in handles:
                handle.remove()

        def gives(module: nn.Module) -> bool:
            return isinstance(given := made.get(module), Tensor) and given.numel() == last.numel() and torch.equal(
                given.reshape(last.shape), last
            )  # fmt: skip

        return last, [] if gives(own[-1]) else [module for module in outside if gives(module)]


@dataclass(frozen=True, eq=False)
class TunedScore:
    """The readout of a tuned head: its accuracy on the targets, or R² where it predicts numbers.

    R² is the mean over targets of 1 minus the squared error over the mean square of all of them, so that it is R² over
    all, and a difference on some of the sentences is in the same unit.

    Args:
        text: The sentences.
        targets: Class of each token, or sentence, of the text, or its standardised number, as `targets_of` returns
            them.
        head: The head.
        of: What the head is of.
        last: The last layer.
    """

    text: Text
    targets: Tensor
    head: TunedHead
    of: HeadOf
    last: int

    @property
    def name(self) -> str:
        """`tuned`, or `tuned_r2` for numbers."""
        return TUNED_R2 if self.targets.is_floating_point() else TUNED

    def part(self, sentences: NDArray[np.int64]) -> TunedScore:
        """Return the readout of some of the sentences, by their index in the text, ascending."""
        kept = sentences if self.of == "sentences" else np.flatnonzero(np.isin(self.text.tokens.sentences, sentences))
        text = replace(self.text, kept=self.text.kept[sentences])
        return TunedScore(text, self.targets[torch.from_numpy(kept)], self.head, self.of, self.last)

    @cached_property
    def n(self) -> NDArray[np.int64]:
        """Number of targets of each sentence."""
        there = np.flatnonzero(is_target(self.targets).numpy())
        tokens = self.text.tokens
        sentences = there if self.of == "sentences" else tokens.sentences[there]
        return np.bincount(sentences, minlength=tokens.n_sentences)

    @property
    def content(self) -> tuple[NDArray[Any], ...]:
        """The token ids and the targets."""
        tokens = self.text.tokens
        types = () if tokens.token_types is None else (tokens.token_types,)
        return tokens.input_ids, tokens.lengths, self.targets.numpy(), *types

    def layers(self, block: int) -> list[int]:
        """Return the last layer, which the head reads."""
        return [self.last]

    def begin(self, layers: Sequence[int]) -> _Reading:
        """Begin a reading of the last layer."""
        return _Reading(self)

    @cached_property
    def occurrences(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Each sentence, which is an item, once."""
        return (every := np.arange(len(self.n))), every

    def loss(self, batch: Padded, occurrences: NDArray[np.int64]) -> Loss:
        """Return the mean loss of each sentence's targets: cross-entropy in nats, or the squared error of numbers."""
        targets = self._of(batch)
        n = _by_sentence(is_target(targets).float()).clamp_min(1)
        return lambda states: _by_sentence(self._losses(self.head(batch.inputs, states), targets)) / n.to(states.dtype)

    def right(self, batch: Padded, states: Tensor) -> Tensor:
        """Return the sum of the measure over the targets of each sentence of a batch, shape (batch,), float64."""
        targets, logits = self._of(batch), self.head(batch.inputs, states).float()
        if targets.is_floating_point():
            there, errors = is_target(targets), self._losses(logits, targets).double()
            return _by_sentence(torch.where(there, 1 - errors / self._mean_square, 0.0))
        right = (logits.argmax(-1) == targets) & is_target(targets)
        return _by_sentence(right.double())

    @cached_property
    def _mean_square(self) -> float:
        return float(self.targets[is_target(self.targets)].double().square().mean())

    def _of(self, batch: Padded) -> Tensor:
        """Return the targets of a batch, shape (batch,) or (batch, sequence)."""
        targets = self.targets.to(batch.mask.device)
        if self.of == "sentences":
            return targets[batch.sentences]
        return torch.where(batch.mask, targets[batch.rows], nothing(targets))

    @staticmethod
    def _losses(logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each target, 0 where there is none, of the shape of the targets."""
        if targets.is_floating_point():
            there = is_target(targets)
            error = logits[..., 0] - torch.where(there, targets, 0.0).to(logits.dtype)
            return torch.where(there, error**2, 0.0)
        found = cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="none")
        return found.view(targets.shape)


def _by_sentence(values: Tensor) -> Tensor:
    """Return the sum over the tokens of each sentence; of sentences, their own value."""
    return values if values.ndim == 1 else values.sum(1)


class _Reading:
    def __init__(self, readout: TunedScore) -> None:
        self.readout = readout
        self.found = torch.zeros(1, len(readout.n), dtype=torch.float64)

    def take(self, states: Mapping[int, Tensor], batch: Padded) -> None:
        right = self.readout.right(batch, states[self.readout.last])
        self.found[0, batch.sentences.cpu()] = right.cpu()

    def sums(self) -> Tensor:
        return self.found


@dataclass(frozen=True, eq=False)
class TunedTask:
    """What a tuned model was tuned on, as far as its test part is read again.

    Args:
        task: The task, which gives the labels.
        group_by: The option's value with which it was tuned.
        classes: Names of the classes that the head has outputs for; none for numbers.
        typed: The option that names the model, with its value, for messages.
    """

    task: TokenTask
    group_by: GroupBy
    classes: Sequence[str]
    typed: str

    @property
    def of(self) -> HeadOf:
        """What the head is of."""
        return "sentences" if isinstance(self.task, SentenceTask) else "tokens"

    def targets(
        self, stores: Sequence[ActivationStore], corpora: Sequence[Corpus], splits: Sequence[Sequence[Split]]
    ) -> Tensor:
        """Return the targets of the test part, as `TunedScore` takes them, of each token or sentence of its corpus.

        Raises:
            UserError: If the classes are others than those that the head has outputs for.
        """
        sides = label_sides(stores, corpora, splits, self.task, self.group_by)
        if (found := [str(label) for label in sides.classes.tolist()]) != list(self.classes):
            raise UserError(
                f"`{self.typed}`: its head tells the classes {', '.join(self.classes)}, and the text has "
                f"{', '.join(found)}; tune the model again."
            )
        return targets_of(sides.test, Standard.of(sides.train) if sides.numbers else None)
