"""The arms of the experiment: encoders that differ only in what tells them positions, and their checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from probing.runtime.draws import seed_of
from probing.runtime.kept_training import save_model
from probing.studies.pretrain.options import Encoder

_TABLE = "embeddings.position_embeddings.weight"


def build(arm: str, shape: Encoder, tokenizer: Any, seed: int) -> Any:
    """Return an encoder with its masked-language-model head, in training mode.

    The parameters that arms have in common are drawn once for a seed, and are the same in all of them.

    Args:
        arm: Name of the arm.
        shape: The encoder's shape.
        tokenizer: The tokenizer, whose vocabulary and padding token are the model's.
        seed: Seed of the initial weights.
    """
    from transformers import BertForMaskedLM, RoFormerForMaskedLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, "weights") % 2**63)
        drawn = BertForMaskedLM(_config("learned", shape, tokenizer))
        if arm == "learned":
            return drawn.train()
        kind: Any = RoFormerForMaskedLM if arm == "rotary" else BertForMaskedLM
        model = kind(_config(arm, shape, tokenizer))
    _copy_common(drawn, model)
    if arm != "rotary":
        table = position_table(model)
        with torch.no_grad():
            if arm in ("none", "causal"):
                table.zero_()
            elif arm == "constant":
                table.copy_(table[:1].clone().expand_as(table))
            else:
                table.copy_(shape.initial_sd * _sinusoids(*table.shape))
        table.requires_grad_(arm == "constant")
    return model.train()


def position_table(model: Any) -> nn.Parameter:
    """Return the table of position embeddings of an encoder that has one."""
    return cast(nn.Parameter, model.base_model.get_parameter(_TABLE))


def told(arm: str, input_ids: Tensor) -> dict[str, Tensor]:
    """Return what the model is given to read tokens: their ids, and in the arm `constant` also their positions.

    A saved checkpoint needs no positions, since all rows of its table are the same.
    """
    if arm == "constant":
        return {"input_ids": input_ids, "position_ids": torch.zeros_like(input_ids)}
    return {"input_ids": input_ids}


def make_ordinary(arm: str, model: Any) -> None:
    """Change a model in place so that it needs nothing but token ids; its outputs stay the same."""
    if arm == "constant":
        table = position_table(model)
        with torch.no_grad():
            table.copy_(table[:1].clone().expand_as(table))


def _config(arm: str, shape: Encoder, tokenizer: Any) -> Any:
    from transformers import BertConfig, RoFormerConfig

    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer), "hidden_size": shape.d_model, "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads, "intermediate_size": shape.d_feedforward,
        "max_position_embeddings": shape.row_length, "initializer_range": shape.initial_sd,
        "hidden_dropout_prob": shape.dropout, "attention_probs_dropout_prob": shape.dropout,
        "pad_token_id": tokenizer.pad_token_id, "use_cache": False,
    }  # fmt: skip
    if arm == "rotary":
        return RoFormerConfig(embedding_size=shape.d_model, rotary_value=False, **sizes)
    return BertConfig(is_decoder=arm == "causal", **sizes)


def _copy_common(source: nn.Module, target: nn.Module) -> None:
    """Copy all parameters that both have, by their names without that of the family."""
    values = {_without_family(name): value for name, value in source.state_dict().items()}
    with torch.no_grad():
        for name, value in target.state_dict().items():
            if (drawn := values.get(_without_family(name))) is not None:
                value.copy_(drawn)


def _without_family(name: str) -> str:
    family, _, rest = name.partition(".")
    return rest if family in ("bert", "roformer") else name


def common_parameters(models: Mapping[str, nn.Module]) -> dict[str, dict[str, Tensor]]:
    """Return for each model its parameters that all of them have, by names without that of the family."""
    named = {
        arm: {_without_family(name): value.detach() for name, value in model.named_parameters()}
        for arm, model in models.items()
    }
    shared = set.intersection(*(set(parameters) for parameters in named.values()))
    return {arm: {name: parameters[name] for name in sorted(shared)} for arm, parameters in named.items()}


def _sinusoids(n_positions: int, width: int) -> Tensor:
    """Return sines in the even and cosines in the odd columns, shape (n_positions, width).

    Multiplied by the standard deviation of token embeddings, they have the same size relative to these as in Vaswani et
    al. (2017), section 3.4, where token embeddings have standard deviation 1.
    """
    frequency = torch.exp(-math.log(10_000) * torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(n_positions, dtype=torch.float64)[:, None] * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)[:, :width].float()


def checkpoint_steps(steps: int, factor: float) -> list[int]:
    """Return the steps after which there is a checkpoint: 0, 1, the powers of the factor, and the last."""
    found, power = {0, steps}, 1.0
    while power < steps:
        found.add(round(power))
        power *= factor
    return sorted(found)


def checkpoint_folder(folder: Path, arm: str, seed: int, step: int, steps: int) -> Path:
    """Return the folder of a checkpoint; names sort as steps do.

    Args:
        folder: The folder of all checkpoints.
        arm: Name of the arm.
        seed: Seed of the training.
        step: Step after which the checkpoint is written.
        steps: The last step.
    """
    return folder / f"{arm}-seed{seed}" / f"step{step:0{len(str(steps))}d}"


def save_checkpoint(folder: Path, arm: str, model: Any, tokenizer: Any) -> None:
    """Write a model and its tokenizer as a folder that `from_pretrained` reads; an older one is replaced."""
    make_ordinary(arm, model)
    save_model(folder, model, tokenizer)
