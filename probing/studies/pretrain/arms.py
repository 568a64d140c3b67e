"""The arms of the experiment: encoders that differ only in what tells them positions, and their checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from probing.runtime.arithmetic import seed_of
from probing.runtime.trainer import save_model
from probing.studies.pretrain.tables import CAUSAL_LM, Encoder

_TABLE = "embeddings.position_embeddings.weight"
# Arms whose table is the same in all places and is trained there: the model is told place 0 of every token.
_ONE_ROW = ("constant", "relative")
# Arms whose table is that of `learned`: it has a row for each position in a row of text, and none for later ones.
LEARNED_TABLES = ("learned", "pre_norm", "plain_norm")
# What families call the parameters of BERT, by the names of their base models, and what some call those of its head.
_FAMILIES: dict[str, dict[str, str]] = {
    "bert": {},
    "roformer": {},
    "roberta_prelayernorm": {},
    "mpnet": {
        "attention.attn.q": "attention.self.query", "attention.attn.k": "attention.self.key",
        "attention.attn.v": "attention.self.value", "attention.attn.o": "attention.output.dense",
        "attention.LayerNorm": "attention.output.LayerNorm",
    },
    "deberta": {f"self.{name}_proj": f"self.{name}" for name in ("query", "key", "value")},
}  # fmt: skip
_HEAD = {
    "lm_head.dense": "cls.predictions.transform.dense", "lm_head.layer_norm": "cls.predictions.transform.LayerNorm",
    "lm_head.decoder": "cls.predictions.decoder", "lm_head.bias": "cls.predictions.bias",
}  # fmt: skip


def build(arm: str, shape: Encoder, tokenizer: Any, seed: int) -> Any:
    """Return a model with its language-model head, in training mode.

    The parameters that arms have in common are drawn once for a seed, and are the same in all of them.

    Args:
        arm: Name of the arm.
        shape: The encoder's shape.
        tokenizer: The tokenizer, whose vocabulary and padding token are the model's.
        seed: Seed of the initial weights.
    """
    from transformers import BertForMaskedLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, "weights") % 2**63)
        drawn = BertForMaskedLM(_config("learned", shape, tokenizer))
        if arm == "learned":
            return drawn.train()
        model = class_of(arm)(_config(arm, shape, tokenizer))
    _copy_common(drawn, model)
    embeddings = model.base_model.embeddings
    # MPNet has 1 here, whatever the tokenizer has.
    embeddings.word_embeddings.padding_idx = tokenizer.pad_token_id
    if arm == "relative":
        with torch.no_grad():  # MPNet has no embeddings of segments, of which BERT adds the first to every token
            position_table(model).copy_(drawn.bert.embeddings.token_type_embeddings.weight[0])
    elif arm == "pre_norm":
        with torch.no_grad():  # positions are counted from behind the padding token
            position_table(model)[tokenizer.pad_token_id + 1 :] = position_table(drawn)
    elif arm == "plain_norm":
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.requires_grad_(False)
    elif arm not in ("rotary", "disentangled"):
        fill_table(arm, position_table(model), shape.initial_sd)
    return model.train()


def fill_table(arm: str, table: nn.Parameter, initial_sd: float) -> None:
    """Write what the arm tells into its table of positions, and say whether it is trained.

    Args:
        arm: Name of the arm, whose table follows a rule.
        table: The table, whose first row is kept where all are the same.
        initial_sd: Standard deviation of the initial token embeddings.
    """
    with torch.no_grad():
        if arm in _ONE_ROW:
            table.copy_(table[:1].clone().expand_as(table))
        elif arm == "sinusoidal":
            table.copy_(initial_sd * _sinusoids(*table.shape))
        else:
            table.zero_()
    table.requires_grad_(arm in _ONE_ROW)


def position_table(model: Any) -> nn.Parameter:
    """Return the table of position embeddings of an encoder that has one."""
    return cast(nn.Parameter, model.base_model.get_parameter(_TABLE))


def head_of(model: Any) -> Any:
    """Return the head, which turns hidden states into logits."""
    return model.cls if hasattr(model, "cls") else model.lm_head


def told(arm: str, input_ids: Tensor) -> dict[str, Tensor]:
    """Return what the model is given to read tokens: their ids, and in some arms that all are at place 0.

    A saved checkpoint needs no positions, since all rows of its table are the same.
    """
    if arm in _ONE_ROW:
        return {"input_ids": input_ids, "position_ids": torch.zeros_like(input_ids)}
    return {"input_ids": input_ids}


def make_ordinary(arm: str, model: Any) -> None:
    """Change a model in place so that it needs nothing but token ids; its outputs stay the same."""
    if arm in _ONE_ROW:
        table = position_table(model)
        with torch.no_grad():
            table.copy_(table[:1].clone().expand_as(table))


def class_of(arm: str) -> Any:
    """Return the class of an arm's model."""
    import transformers

    if arm == "alibi":
        from probing.models.attention_heads import AlibiBertForMaskedLM

        return AlibiBertForMaskedLM
    names = {
        "rotary": "RoFormerForMaskedLM", "relative": "MPNetForMaskedLM", "disentangled": "DebertaV2ForMaskedLM",
        CAUSAL_LM: "BertLMHeadModel", "pre_norm": "RobertaPreLayerNormForMaskedLM",
    }  # fmt: skip
    return getattr(transformers, names.get(arm, "BertForMaskedLM"))


def _config(arm: str, shape: Encoder, tokenizer: Any) -> Any:
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer), "hidden_size": shape.d_model, "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads, "intermediate_size": shape.d_feedforward,
        "max_position_embeddings": shape.row_length, "initializer_range": shape.initial_sd,
        "hidden_dropout_prob": shape.dropout, "attention_probs_dropout_prob": shape.dropout,
        "pad_token_id": tokenizer.pad_token_id, "use_cache": False,
    }  # fmt: skip
    # What BERT has, where a family has it otherwise.
    as_bert = {"layer_norm_eps": 1e-12, "bos_token_id": None, "eos_token_id": None}
    own: dict[str, dict[str, Any]] = {
        "causal": {"is_decoder": True},
        CAUSAL_LM: {"is_decoder": True},
        "rotary": {"embedding_size": shape.d_model, "rotary_value": False},
        # Two rows are for padding and before it.
        "relative": {"max_position_embeddings": shape.row_length + 2, **as_bert},
        "disentangled": {
            "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False,
            "max_relative_positions": shape.row_length, "type_vocab_size": 2, **as_bert,
        },
        "pre_norm": {
            "max_position_embeddings": shape.row_length + tokenizer.pad_token_id + 1, "type_vocab_size": 2, **as_bert
        },
    }  # fmt: skip
    return class_of(arm).config_class(**{**sizes, **own.get(arm, {})})


def _copy_common(source: nn.Module, target: nn.Module) -> None:
    """Copy all parameters of the same shape that both have, by the names that BERT has for them."""
    values = {_as_in_bert(name): value for name, value in source.state_dict().items()}
    with torch.no_grad():
        for name, value in target.state_dict().items():
            drawn = values.get(_as_in_bert(name))
            if drawn is not None and drawn.shape == value.shape:
                value.copy_(drawn)


def _as_in_bert(name: str) -> str:
    """Return the name that a parameter has in BERT, without that of the family."""
    family, _, rest = name.partition(".")
    found = rest if family in _FAMILIES else name
    for theirs, ours in {**_FAMILIES.get(family, {}), **_HEAD}.items():
        found = found.replace(theirs, ours)
    return found


def common_parameters(models: Mapping[str, nn.Module]) -> dict[str, dict[str, Tensor]]:
    """Return for each model its parameters that all of them have, by the names that BERT has for them."""
    named = {
        arm: {_as_in_bert(name): value.detach() for name, value in model.named_parameters()}
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
