"""Leaves the upper blocks of a model out, in its configuration, and tells whether the lower ones are still the same."""

from __future__ import annotations

from typing import Any

from probing.errors import UserError
from probing.models.examination import examination_inputs, run, with_the_same_weights


def leave_out_blocks(config: Any, layer: int, name: str) -> bool:
    """Leave the blocks above a layer out of a configuration, and return whether there are any.

    Raises:
        UserError: If there is no such block.
    """
    n_blocks = config.num_hidden_layers
    kept = n_blocks + 1 + layer if layer < 0 else layer
    if not 1 <= kept <= n_blocks:
        raise UserError(
            f"`--tuning.layer {layer}`: {name} has {n_blocks} blocks; expected the one under the head, 1 to "
            f"{n_blocks}, or -1 (the last) to -{n_blocks}."
        )
    if kept == n_blocks:
        return False
    for option, value in config.to_dict().items():  # lists with an entry for each block, such as `layer_types`
        if option != "architectures" and isinstance(value, list | tuple) and len(value) == n_blocks:
            setattr(config, option, value[:kept])
    config.num_hidden_layers = kept
    return True


def are_lower_layers(base: Any, encoder: Any) -> bool:
    """Return whether the layers of a model below its last one, after which a norm may stand, are those of another."""
    import torch

    inputs = examination_inputs(encoder, int(getattr(encoder.config, "pad_token_id", None) or 0))
    copies = with_the_same_weights(base), with_the_same_weights(encoder)  # some models keep state
    with torch.inference_mode():
        own, whole = (run(one, inputs, output_hidden_states=True).states for one in copies)
    n_layers = base.config.num_hidden_layers
    return len(own) == n_layers + 1 and all(torch.equal(own[k], whole[k]) for k in range(n_layers))


def not_cut(config: Any, layer: int, name: str) -> UserError:
    """Return the refusal of a model whose lower blocks are others without those above."""
    return UserError(
        f"`--tuning.layer {layer}`: the lower blocks of {name} ({config.model_type}) do not do alone what they do in "
        "the whole model; put the head on the last layer (-1), or choose another model."
    )
