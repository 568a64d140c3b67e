"""Runs an encoder from one of its blocks on, from given hidden states, with outputs of heads changed.

The blocks below are not computed. Everything else of the forward pass is the model's own: its masks, what it passes
from block to block in addition to the hidden states, and what follows the last block. While the pass runs, the
`forward` of the blocks is replaced; that of the blocks below only returns the given hidden states. The original
`forward` is restored afterwards, also after an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from probing.errors import UserError
from probing.models.anatomy import Anatomy, Enough, examine, replaced_forward, until_enough
from probing.models.attention_heads import AttentionWatch, Heads, find_heads
from probing.models.examination import run, vectors_given, with_vectors

Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class LaterBlocks:
    """An encoder that can be run from any of its blocks on.

    Args:
        encoder: The encoder, in evaluation mode.
        anatomy: Its structure.
        heads: Its heads.
    """

    encoder: nn.Module
    anatomy: Anatomy
    heads: Heads

    @classmethod
    def of(cls, encoder: nn.Module, pad_token_id: int, name: str) -> LaterBlocks:
        """Examine an encoder.

        Args:
            encoder: A model in evaluation mode.
            pad_token_id: Id of the padding token.
            name: The model's name as the user typed it, for messages.

        Raises:
            UserError: If its blocks or its heads cannot be told.
        """
        anatomy = examine(encoder, pad_token_id, name)
        heads = find_heads(encoder, anatomy, pad_token_id, name)
        config: Any = encoder.config
        lacking = None
        if anatomy.blocks is None:
            lacking = "its blocks do not pass the hidden states from one to the next"
        elif heads.projections is None:
            lacking = "its heads' outputs pass through something else than a linear map"
        if lacking:
            raise UserError(
                f"`--model {name}` ({config.model_type}): no head or layer of it can be disabled, because {lacking}; "
                "choose another model."
            )
        return cls(encoder, anatomy, heads)

    @property
    def width(self) -> int:
        """Width of the outputs of all heads of a block."""
        return self.heads.n_heads * self.heads.d_head

    def columns(self, head: int | None) -> slice:
        """Return the columns of a head, from 1, among the outputs of all heads; all columns without one."""
        d_head = self.heads.d_head
        return slice(0, self.width) if head is None else slice((head - 1) * d_head, head * d_head)

    def beside_states(self, inputs: Mapping[str, Tensor]) -> tuple[Any, ...] | None:
        """Return what a block returns besides hidden states, such as T5's position bias; None if it returns them alone.

        Only the first block is run, because all blocks below the changed one pass on the same.
        """
        found: list[tuple[Any, ...] | None] = []

        def note(module: nn.Module, args: Any, made: Any) -> None:
            found.append(tuple(made[1:]) if isinstance(made, tuple | list) else None)
            raise Enough

        with until_enough([self._blocks[0].register_forward_hook(note)]):
            self.encoder(**inputs)
        return found[0]

    def run(
        self,
        inputs: Mapping[str, Tensor],
        block: int,
        states: Tensor,
        beside: tuple[Any, ...] | None,
        layers: Sequence[int],
        change: Change | None = None,
        changes: Mapping[int, Change] | None = None,
        entering: Mapping[int, Change] | None = None,
    ) -> dict[int, Tensor]:
        """Run the blocks from one on and return later hidden states.

        Args:
            inputs: `input_ids` and `attention_mask`, shape (batch, sequence).
            block: The first block that is run, from 1; n_layers + 1 runs only what follows the last block.
            states: Hidden states that it receives, shape (batch, sequence, d_model).
            beside: What the blocks below pass on in addition to hidden states, as `beside_states` returns it.
            layers: Layers to return, at least `block` - 1.
            change: Takes the input of this block's output projection, shape (batch, sequence, width), and returns the
                changed input.
            changes: Such functions for several blocks, by their number; those of blocks below `block` have no effect.
            entering: For some blocks, by their number, what changes the hidden states that enter them, shape (batch,
                sequence, d_model); the layer below is returned as it was.

        Returns:
            For each layer, shape (batch, sequence, d_model).
        """
        captured: dict[int, Tensor] = {}

        def enter(number: int, given: Tensor) -> None:
            if number - 1 in layers:
                captured[number - 1] = given

        every = {**(changes or {}), **({} if change is None else {block: change})}
        with self._running_from(block, states, beside, enter, every, entering or {}):
            last = run(self.encoder, inputs).last
        if self.anatomy.n_layers in layers:
            captured[self.anatomy.n_layers] = last
        return captured

    def outputs_of_heads(
        self, inputs: Mapping[str, Tensor], block: int, states: Tensor, beside: tuple[Any, ...] | None
    ) -> tuple[Tensor, Tensor]:
        """Return what the heads of a block give, and their values; nothing behind them is run.

        Returns:
            Outputs of the heads one after the other, shape (batch, sequence, width), and values, shape (batch, heads,
            keys, d_head).
        """
        outputs: list[Tensor] = []
        values: list[Tensor] = []

        def note(given: Tensor) -> Tensor:
            outputs.append(given[..., : self.width])
            raise Enough

        def see(probabilities: Tensor, found: Tensor) -> None:
            values.append(found)

        changed = self._running_from(block, states, beside, lambda number, given: None, {block: note})
        with until_enough([]), changed, AttentionWatch(see, inputs["input_ids"].shape):
            self.encoder(**inputs)
        return outputs[0], values[0]

    @property
    def _blocks(self) -> tuple[nn.Module, ...]:
        assert self.anatomy.blocks is not None  # checked by `of`
        return self.anatomy.blocks

    @contextmanager
    def _running_from(
        self,
        block: int,
        states: Tensor,
        beside: tuple[Any, ...] | None,
        enter: Callable[[int, Tensor], None],
        changes: Mapping[int, Change],
        entering: Mapping[int, Change] = MappingProxyType({}),
    ) -> Iterator[None]:
        """Skip the blocks below one, give it its hidden states, and change what blocks and projections receive."""
        number = 0  # of the block that is running
        waiting = dict(changes)

        def begin(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            nonlocal number
            number += 1
            if number == block:
                args, kwargs = with_vectors(args, kwargs, states)
            given: Any = vectors_given(args, kwargs)
            enter(number, given)
            if number >= block and number in entering:
                args, kwargs = with_vectors(args, kwargs, entering[number](given))
            return args, kwargs

        def project(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if number not in waiting or module is not projections[number]:
                return None
            given: Any = vectors_given(args, kwargs)
            return with_vectors(args, kwargs, waiting.pop(number)(given))

        assert self.heads.projections is not None  # checked by `of`
        projections = {
            changed: self.encoder.get_submodule(self.heads.projections[changed - 1]) for changed in changes
        }  # fmt: skip
        with ExitStack() as restored:
            for module in dict.fromkeys(self._blocks):
                own = module.forward

                def forward(*args: Any, own: Callable[..., Any] = own, **kwargs: Any) -> Any:
                    if number >= block:
                        return own(*args, **kwargs)
                    return states if beside is None else (states, *beside)

                restored.enter_context(replaced_forward(module, forward))
                restored.callback(module.register_forward_pre_hook(begin, with_kwargs=True).remove)
            for projection in dict.fromkeys(projections.values()):
                restored.callback(projection.register_forward_pre_hook(project, with_kwargs=True).remove)
            yield
