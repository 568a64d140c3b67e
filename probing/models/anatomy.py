"""Layers of an encoder, located by running the encoder, and forward passes up to the highest requested layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import permutations
from typing import TYPE_CHECKING, Any

from probing.errors import UserError
from probing.models.examination import (
    LENGTH,
    PADDING,
    EncoderOutput,
    ModuleCall,
    Unreadable,
    calls_of,
    examination_inputs,
    hooks,
    in_float32,
    inputs_of,
    lengths_are_neutral,
    padding_is_neutral,
    run,
    vectors_of_tokens,
    vectors_received,
    with_max_length_hint,
    with_the_same_weights,
)

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils.hooks import RemovableHandle

# Dtypes of parameters in a model of low precision.
_LOW = ("torch.bfloat16", "torch.float16")


@dataclass(frozen=True)
class Anatomy:
    """The structure of an encoder, as far as it concerns hidden states.

    Args:
        blocks: Modules whose k-th call, counted over all of them, receives layer k: a list of blocks, or a single block
            that is called repeatedly. None if the model has no such list; a forward pass then runs to the end.
        n_layers: Number of blocks; layers are numbered 0..n_layers.
        padding_is_neutral: Whether a sentence has the same hidden states with and without padding; false for families
            that mix neighbouring tokens by a convolution or a Fourier transform.
        position_table: The absolute position embedding; None if positions are relative or rotary.
        site_modules: Name of the linear map in each block whose input `probing.models.sites` reads; empty for hidden
            states.
    """

    blocks: tuple[nn.Module, ...] | None
    n_layers: int
    padding_is_neutral: bool
    position_table: nn.Module | None = None
    site_modules: tuple[str, ...] = ()


def examine(encoder: nn.Module, pad_token_id: int = 0, name: str = "the model", lengths: Sequence[int] = ()) -> Anatomy:
    """Run a copy of an encoder on a few tokens, in float32, and locate its layers.

    A list of modules counts as the blocks if their inputs, call by call, equal the hidden states that the model
    returns. Names and model families play no role.

    Args:
        encoder: A model in evaluation mode, on any device; only copies are run, because some models keep state.
        lengths: Number of tokens of each sentence that will be read; without them, only short sentences are examined.

    Raises:
        UserError: If the model does not run on tokens alone or not in its dtype; if it does not return hidden states of
            a single width, for the embeddings and each block; or if these differ from the blocks' inputs, or depend on
            the sentences read before.
    """
    import torch
    from torch import nn

    with torch.inference_mode():
        inputs = examination_inputs(encoder, pad_token_id)
        is_float32 = not any(str(parameter.dtype) in _LOW for parameter in encoder.parameters())
        in_full = encoder if is_float32 else in_float32(encoder)
        exact = encoder if in_full is None else in_full
        copy = with_the_same_weights(exact)
        lists = [modules for modules in copy.modules() if isinstance(modules, nn.ModuleList)]  # outermost first
        tables = [module for module in copy.modules() if isinstance(module, nn.Embedding)]
        try:
            with inputs_of(module for modules in lists for module in modules) as calls, calls_of(tables) as embedded:
                output = run(copy, inputs, output_hidden_states=True)
        except Unreadable as error:
            raise UserError(f"`--model {name}` ({encoder.config.model_type}) {error}; choose a text model.") from None  # type: ignore[union-attr]
        except Exception as error:  # for example a model that needs images, or returns no hidden states
            raise UserError(
                f"`--model {name}` ({encoder.config.model_type}) does not run on `input_ids` and `attention_mask` "  # type: ignore[union-attr]
                f"({type(error).__name__}: {error}); choose a text model."
            ) from None
        if not is_float32:
            _check_dtype(encoder, inputs, name)
        states = _states_of(output, inputs["input_ids"].shape, encoder.config, name)
        last = torch.equal(output.last, states[-1])
        received = ([call for call in calls if call.module in members] for members in map(set, lists))
        matching = (of_list for of_list in received if last and _receives(of_list, states))
        blocks = next((tuple(call.module for call in of_list) for of_list in matching), None)
        if blocks is None and not _enter_blocks(exact, inputs, states):
            raise UserError(
                f"`--model {name}` ({encoder.config.model_type}): the hidden states that it returns are not what its "  # type: ignore[union-attr]
                "blocks receive, so that layer 0 would not be the embeddings, nor layer k what block k + 1 reads; "
                "choose another model."
            )
        position_table = next((call.module for call in embedded if _tells_positions(call.states_out)), None)
        # Without room for a copy in float32, rounding could hide what padding changes.
        neutral = in_full is not None and padding_is_neutral(copy, inputs, states)
        if len(lengths):
            neutral &= lengths_are_neutral(exact, lengths, pad_token_id, name)
        return of_copy(Anatomy(blocks, len(states) - 1, neutral, position_table), copy, encoder)


def _states_of(output: EncoderOutput, shape: tuple[int, ...], config: Any, name: str) -> Sequence[Tensor]:
    """Return the hidden states of a forward pass; refuse others than n_layers + 1 states of a single width."""
    states, n_layers = output.states, int(config.num_hidden_layers)
    is_of_tokens = {state.shape[:-1] for state in states} == {shape} and len({state.shape for state in states}) == 1
    if len(states) != n_layers + 1 or not is_of_tokens:
        shapes = sorted({tuple(state.shape[2:]) for state in states})
        raise UserError(
            f"`--model {name}` ({config.model_type}) has {n_layers} blocks and returns {len(states)} "
            f"hidden states of widths {shapes}, where {n_layers + 1} of one width are expected; choose another."
        )
    return states


def of_copy(anatomy: Anatomy, encoder: nn.Module, copy: nn.Module) -> Anatomy:
    """Return the anatomy of a copy of an encoder with the same modules."""
    name_of = {module: path for path, module in encoder.named_modules()}

    def in_copy(module: nn.Module) -> nn.Module:
        return copy.get_submodule(name_of[module])

    blocks, table = anatomy.blocks, anatomy.position_table
    return replace(
        anatomy,
        blocks=None if blocks is None else tuple(map(in_copy, blocks)),
        position_table=None if table is None else in_copy(table),
    )


def _check_dtype(encoder: nn.Module, inputs: dict[str, Tensor], name: str) -> None:
    """Refuse an encoder that runs in float32 but not in its dtype."""
    config: Any = encoder.config
    parameter = next(weight for weight in encoder.parameters() if str(weight.dtype) in _LOW)
    try:
        with_the_same_weights(encoder)(**inputs)
    except Exception as error:  # some families mix float32 into their products
        dtype = str(parameter.dtype).removeprefix("torch.")
        where = "the processor" if parameter.device.type == "cpu" else parameter.device.type
        raise UserError(
            f"`--model {name}` ({config.model_type}) does not run in {dtype} on {where} "
            f"({type(error).__name__}: {error}); use `--dtype float32`."
        ) from None


def hidden_states(encoder: nn.Module, anatomy: Anatomy, layers: Sequence[int], **inputs: Tensor) -> dict[int, Tensor]:
    """Return the requested hidden states, shape (batch, sequence, d_model) each, from the blocks below the highest.

    Layer 0 is the embedding output, layer k < n_layers the residual stream that enters block k + 1, and layer n_layers
    the model's `last_hidden_state` (after a final norm if the family has it). The dtype is the encoder's. `inputs` are
    `input_ids` and `attention_mask`, shape (batch, sequence).
    """
    if anatomy.blocks is None:
        with with_max_length_hint(encoder, inputs):
            states = run(encoder, inputs, output_hidden_states=True).states
        return {k: states[k] for k in layers}
    length = inputs["input_ids"].shape[1]
    captured = received_by(anatomy.blocks, layers, encoder, inputs)
    return {k: vectors_of_tokens(captured[k], length) for k in layers}  # type: ignore[misc]


def received_by(
    modules: Sequence[nn.Module], numbers: Sequence[int], encoder: nn.Module, inputs: Mapping[str, Tensor]
) -> dict[int, Tensor]:
    """Run an encoder up to the highest of some calls of modules, and return what each of these calls receives.

    Calls are counted from 0 over all modules. After the last call, the next number has the last hidden state.
    """
    captured: dict[int, Any] = {}
    highest, n_calls = max(numbers), 0

    def capture(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal n_calls
        if n_calls in numbers:
            captured[n_calls] = vectors_received(args, kwargs)
        if n_calls == highest:
            raise StopForward
        n_calls += 1

    handles = [module.register_forward_pre_hook(capture, with_kwargs=True) for module in dict.fromkeys(modules)]
    with with_max_length_hint(encoder, inputs), stop_at_layer(handles):
        captured[highest] = run(encoder, inputs).last
    return captured


class StopForward(Exception):
    """End of a forward pass, once the highest requested layer is known."""


@contextmanager
def stop_at_layer(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Run a forward pass that a hook may end by raising `StopForward`, and remove the hooks `handles`."""
    from probing.runtime.trainer import fast_linear_maps

    with hooks(handles), suppress(StopForward), fast_linear_maps():
        yield


@contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Replace a module's `forward`, and restore the module's attributes on exit."""
    before = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if before is None:
            del module.forward
        else:
            module.forward = before


def _tells_positions(rows: Tensor | None) -> bool:
    """Return whether rows for two sequences of different tokens are equal in both but differ between positions."""
    if rows is None:
        return False
    is_padded = rows.dim() == 3 and len(rows) == 2 and rows.shape[1] > LENGTH  # by the model itself, as in Longformer
    if not is_padded and rows.shape[:-1] not in ((LENGTH,), (1, LENGTH), (2, LENGTH)):
        return False
    first, last = rows.view(-1, *rows.shape[-2:])[[0, -1], : LENGTH - PADDING]
    return bool((first == last).all() and (first[0] != first[1]).any())


def _receives(calls: Sequence[ModuleCall], states: Sequence[Tensor]) -> bool:
    """Return whether the inputs of a list of modules are, call by call, all hidden states but the last."""
    import torch

    return len(calls) == len(states) - 1 and all(
        value is not None and torch.equal(value, state)
        for value, state in zip(
            (vectors_of_tokens(call.states_in, states[0].shape[1]) for call in calls), states, strict=False
        )
    )


def _enter_blocks(encoder: nn.Module, inputs: Mapping[str, Tensor], states: Sequence[Tensor]) -> bool:
    """Return whether each hidden state but the last enters a member of a list of modules, or a module inside it.

    Its axes may be in another order (XLNet), it may be padded (Longformer), or enter only a submodule (SqueezeBERT).
    """
    from torch import nn

    copy = with_the_same_weights(encoder)
    n_blocks, handles = len(states) - 1, []
    lists = [
        module_list
        for module_list in copy.modules()
        if isinstance(module_list, nn.ModuleList) and len(module_list) == n_blocks
    ]
    entered: list[set[int]] = [set() for _ in lists]
    for members, block_numbers in zip(lists, entered, strict=True):
        for k, member in enumerate(members):

            def note(
                module: nn.Module, args: Any, kwargs: Any, k: int = k, numbers_seen: set[int] = block_numbers
            ) -> None:
                if k not in numbers_seen and _carries(vectors_received(args, kwargs), states[k]):
                    numbers_seen.add(k)

            handles += [module.register_forward_pre_hook(note, with_kwargs=True) for module in member.modules()]
    with hooks(handles):
        run(copy, inputs, output_hidden_states=True)
    return any(len(block_numbers) == n_blocks for block_numbers in entered)


def _carries(value: Any, state: Tensor) -> bool:
    """Return whether a value is a state with its axes in any order, with other tokens possibly before or after."""
    import torch

    if not isinstance(value, torch.Tensor) or value.dim() != state.dim():
        return False
    n_tokens = state.shape[1]
    in_order = (value.permute(order) for order in permutations(range(value.dim())))
    cut = (permuted[:, part] for permuted in in_order for part in (slice(n_tokens), slice(-n_tokens, None)))
    return any(torch.equal(permuted, state) for permuted in cut)


# --------------------------------------------------------------------------------------------------------------------
# Leaves the upper blocks of a model out, in its configuration, and tells whether the lower ones are still the same.
# --------------------------------------------------------------------------------------------------------------------


def leave_out_blocks(config: Any, layer: int, name: str) -> bool:
    """Remove the blocks above a layer from a configuration, and return whether there are any."""
    n_blocks = config.num_hidden_layers
    n_remaining = n_blocks + 1 + layer if layer < 0 else layer
    if not 1 <= n_remaining <= n_blocks:
        raise UserError(
            f"`--tuning.layer {layer}`: {name} has {n_blocks} blocks; expected the one under the head, 1 to "
            f"{n_blocks}, or -1 (the last) to -{n_blocks}."
        )
    if n_remaining == n_blocks:
        return False
    for option, value in config.to_dict().items():  # lists with an entry for each block, such as `layer_types`
        if option != "architectures" and isinstance(value, list | tuple) and len(value) == n_blocks:
            setattr(config, option, value[:n_remaining])
    config.num_hidden_layers = n_remaining
    return True


def are_lower_layers(base: Any, encoder: Any) -> bool:
    """Return whether all layers of a model but the last, which a norm may follow, equal the same layers of another."""
    import torch

    inputs = examination_inputs(encoder, int(getattr(encoder.config, "pad_token_id", None) or 0))
    copies = with_the_same_weights(base), with_the_same_weights(encoder)  # some models keep state
    with torch.inference_mode():
        lower, whole = (run(model, inputs, output_hidden_states=True).states for model in copies)
    n_layers = base.config.num_hidden_layers
    return len(lower) == n_layers + 1 and all(torch.equal(lower[k], whole[k]) for k in range(n_layers))


def not_cut(config: Any, layer: int, name: str) -> UserError:
    """Return the refusal of a model whose lower blocks compute other values without the upper blocks."""
    return UserError(
        f"`--tuning.layer {layer}`: the lower blocks of {name} ({config.model_type}) do not do alone what they do in "
        "the whole model; put the head on the last layer (-1), or choose another model."
    )


def word_table(encoder: nn.Module) -> nn.Module:
    """Return the table of the tokens' vectors: as the encoder names it, or else the table that receives token ids."""
    import torch

    # Some encoders are plain modules (FSMT's), and some models name no table.
    with suppress(AttributeError, NotImplementedError):
        named: nn.Module = encoder.get_input_embeddings()  # type: ignore[operator]
        return named
    inputs = examination_inputs(encoder, 0)
    tables_read: list[nn.Module] = []
    tables = [module for module in encoder.modules() if getattr(getattr(module, "weight", None), "ndim", 0) == 2]

    def note(module: nn.Module, args: Any) -> None:
        if args and isinstance(args[0], torch.Tensor) and torch.equal(args[0], inputs["input_ids"]):
            tables_read.append(module)

    with torch.inference_mode(), hooks([table.register_forward_pre_hook(note) for table in tables]):
        encoder(**inputs)
    if not tables_read:
        kind = encoder.config.model_type  # type: ignore[union-attr]
        raise UserError(f"{kind} models look up no vector of a token; choose a text model.")
    return tables_read[0]
