"""BERT with linear biases in place of positions (ALiBi), a family of encoders that transformers does not have.

Importing this module registers it, so that transformers' `Auto` classes load its checkpoints. Where it was not
imported they refuse them, because they do not know the family.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, BertConfig, BertForMaskedLM, BertModel
from transformers.models.bloom.modeling_bloom import build_alibi_tensor


class AlibiBertConfig(BertConfig):
    """The configuration of BERT, under the name of another family."""

    model_type = "probing-alibi-bert"


class AlibiBertModel(BertModel):
    """BERT in which the score of a key falls linearly with its distance from the query.

    Press, Smith & Lewis (2022, arXiv 2108.12409) have causal models. Here a later key is as far away as an earlier one,
    so that a head with slope m adds -m |i - j| to the score of query i and key j, which is divided by the root of the
    width of a head before.
    """

    config_class = AlibiBertConfig
    # Its mask has numbers.
    _supports_flash_attn = False
    _supports_flex_attn = False

    def __init__(self, config: AlibiBertConfig, add_pooling_layer: bool = True) -> None:
        if config.is_decoder:
            raise ValueError("`is_decoder` is true; expected false: this family has no causal mask")
        super().__init__(config, add_pooling_layer)

    def forward(  # noqa: D102
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **options: Any
    ) -> Any:
        read = options["inputs_embeds"] if input_ids is None else input_ids
        dtype = self.embeddings.word_embeddings.weight.dtype
        bias = linear_bias(self.config.num_attention_heads, read.shape[1]).to(read.device, dtype)
        mask = bias.expand(len(read), -1, -1, -1)
        if attention_mask is not None:
            if attention_mask.dim() != 2:
                raise ValueError(
                    f"the attention mask has {attention_mask.dim()} dimensions; expected 2: (batch, sequence)"
                )
            mask = mask.masked_fill(attention_mask[:, None, None, :] == 0, torch.finfo(dtype).min)
        return super().forward(input_ids=input_ids, attention_mask=mask, **options)


class AlibiBertForMaskedLM(BertForMaskedLM):
    """The same with BERT's masked-language-model head."""

    config_class = AlibiBertConfig

    def __init__(self, config: AlibiBertConfig) -> None:
        super().__init__(config)
        self.bert = AlibiBertModel(config, add_pooling_layer=False)
        self.post_init()


def linear_bias(n_heads: int, length: int) -> Tensor:
    """Return what each head adds to its scores, shape (1, n_heads, length, length), float32.

    The slopes are those of the paper, as transformers has them for Bloom; it gives slope times place of the key.
    """
    by_distance = -build_alibi_tensor(torch.ones(1, length, dtype=torch.long), n_heads, torch.float32)[:, 0]
    place = torch.arange(length)
    return by_distance[:, (place[:, None] - place).abs()][None]


AutoConfig.register(AlibiBertConfig.model_type, AlibiBertConfig, exist_ok=True)
AutoModel.register(AlibiBertConfig, AlibiBertModel, exist_ok=True)
AutoModelForMaskedLM.register(AlibiBertConfig, AlibiBertForMaskedLM, exist_ok=True)
