"""Small models wide enough to have outliers: one of d neurons is at most sqrt(d - 1) standard deviations from all."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from probing.cache.tokens import Tokens

D_MODEL, N_LAYERS, VOCABULARY = 64, 2, 90


def make_wide(family: str, **own: Any) -> Any:
    """Return a random encoder in evaluation mode; its norms are near the identity, and no neuron stands out."""
    from transformers import CONFIG_MAPPING, AutoModel

    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": D_MODEL, "num_hidden_layers": N_LAYERS, "num_attention_heads": 4,
        "intermediate_size": 96, "max_position_embeddings": 40, "pad_token_id": 0,
    }  # fmt: skip
    names = {"distilbert": {"dim": D_MODEL, "n_layers": N_LAYERS, "n_heads": 4, "hidden_dim": 96}}
    make_config: Any = CONFIG_MAPPING[family]
    model: Any = AutoModel.from_config(make_config(**{**sizes, **names.get(family, {}), **own})).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            gain = 1.0 if parameter.ndim == 1 and ("norm" in name.lower() or "ln_" in name) else 0.0
            gain = 0.0 if name.endswith("bias") else gain
            parameter.copy_(gain + 0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def make_wide_tokens(n_sentences: int = 14) -> Tokens:
    """Return sentences of 5 to 18 tokens, the first and the last one special, the first one always the same."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(5, 19, n_sentences).astype(np.int32)
    ids, words = [], []
    for n in lengths:
        ids += [5, *generator.integers(7, VOCABULARY, n - 2), 6]
        words += [-1, *range(n - 2), -1]
    return Tokens(lengths, np.array(ids, dtype=np.int32), np.array(words, dtype=np.int16))


def each_alone(tokens: Tokens) -> list[tuple[slice, torch.Tensor]]:
    """Return the rows and the ids of each sentence, to be run by itself."""
    rows = [tokens.of_sentences(i, 1) for i in range(tokens.n_sentences)]
    return [(here, torch.from_numpy(tokens.input_ids[here].astype(np.int64))[None]) for here in rows]
