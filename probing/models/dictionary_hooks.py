"""Whether the hidden state that a dictionary was trained on is the one that the cache holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from probing.errors import UserError
from probing.models.anatomy import Anatomy
from probing.models.dictionary_folders import PREFIX, Layout
from probing.models.examination import examination_inputs, run, vectors_of_tokens, with_the_same_weights

if TYPE_CHECKING:
    from torch import nn


def needs_a_look(layout: Layout, n_layers: int) -> bool:
    """Whether the model has to be run to tell whether its hidden state is what the dictionary reads.

    What a block returns is what the next one receives; only after the last one may there be a norm. And of
    TransformerLens, `hook_resid_post` lies before the norm that ends a block of a post-LN model.
    """
    hook = layout.hook or ""
    return hook.endswith("hook_resid_post") or (layout.is_of_outputs and layout.layer == n_layers)


def check_hook(encoder: nn.Module, anatomy: Anatomy, layout: Layout, pad_token_id: int, name: str) -> None:
    """Refuse a dictionary that was trained on other values than the model's hidden states of its layer.

    Args:
        encoder: The model, in float32, which is not run itself.
        anatomy: Its structure.
        layout: The dictionary; its layer is known.
        pad_token_id: Id of the padding token.
        name: The model's name as the user typed it.

    Raises:
        UserError: If a norm lies between the two, or if that cannot be told.
    """
    import torch

    from probing.models.norms import NotPostNorm, find_blocks

    refused = f"`--site {PREFIX}{layout.folder}`: its hook is {layout.hook}, and "
    if anatomy.blocks is None or layout.layer is None:
        raise UserError(f"{refused}what the blocks of {name} return cannot be told; give another dictionary or model.")
    if (layout.hook or "").endswith("hook_resid_post"):
        try:
            find_blocks(encoder, anatomy, pad_token_id)
        except NotPostNorm:
            pass
        else:
            raise UserError(
                f"{refused}in {name}, whose blocks end with a norm, that lies before the norm and is no hidden state; "
                "give a dictionary of hook_normalized_resid_post or of the next block's hook_resid_pre."
            )
    copy = with_the_same_weights(encoder)
    path = {module: found for found, module in encoder.named_modules()}[anatomy.blocks[layout.layer - 1]]
    returned: list[Any] = []
    handle = copy.get_submodule(path).register_forward_hook(lambda module, args, made: returned.append(made))
    inputs = examination_inputs(copy, pad_token_id)
    try:
        with torch.inference_mode():
            states = run(copy, inputs, output_hidden_states=True).states[layout.layer]
    finally:
        handle.remove()
    own = vectors_of_tokens(returned[-1], inputs["input_ids"].shape[1])
    if own is None or own.shape != states.shape or not torch.equal(own, states):
        raise UserError(
            f"{refused}layer {layout.layer} of {name} comes after a final norm, so that it is not what that block "
            "returns; give a dictionary of a lower layer."
        )
