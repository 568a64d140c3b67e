"""About how long runs take and how much they write, before anything is read by a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from probing.claims.planning import Need

# Processor seconds of a command for a million activations (tokens x layers x neurons), on one core of a server: from
# runs of the built-in model on its corpus, which has 169 million, and good to a factor of two or three.
_SECONDS = {
    "fit": 3.6, "geometry": 0.3, "attention": 0.7, "disable": 2.0, "hierarchy": 0.7, "cloze": 1.0, "wic": 0.2,
    "sts": 0.2,
}  # fmt: skip
# Tokens that a command reads whatever the corpus is: those of its own sentences.
_OWN_TOKENS = {"hierarchy": 120_000}
# Most tokens of the corpus that a command reads by default.
_MOST_TOKENS = {"disable": 20_000, "cloze": 20_000}
# Seconds of a training by its size: of a processor, and of the four A100 of the paper together.
_TRAINING_S = {"tiny": 100.0, "base": 4 * 35 * 3600.0}
# What its options add.
_SECONDS_OF_OPTIONS = {"norms": 1.5, "path": 0.3}
# Tokens for each word of English, and special tokens of a sentence.
_PIECES, _SPECIAL = 1.3, 2
_BYTES = 4


@dataclass(frozen=True)
class Size:
    """What a model reads of a text.

    Args:
        n_tokens: Number of tokens, about.
        n_layers: Number of layers, the embeddings among them.
        d_model: Number of neurons of a layer.
    """

    n_tokens: int
    n_layers: int
    d_model: int

    @classmethod
    def of(cls, sentences: Sequence[str], config: Any) -> Size:
        """Return the size of sentences under a model of this configuration."""
        words = sum(len(sentence.split()) for sentence in sentences)
        n_tokens = round(_PIECES * words + _SPECIAL * len(sentences))
        return cls(n_tokens, int(config.num_hidden_layers) + 1, int(config.hidden_size))

    @property
    def n_activations(self) -> int:
        """Number of activations in all layers."""
        return self.n_tokens * self.n_layers * self.d_model

    @property
    def n_bytes(self) -> int:
        """Bytes of the activations on disk."""
        return _BYTES * self.n_activations


def seconds(need: Need, size: Size) -> float:
    """Return about how many processor seconds a run takes."""
    options: Mapping[str, Any] = need.options
    if need.command == "pretrain":
        return _TRAINING_S[options["size"]] * options["seeds"] * len(str(options["arms"]).split(","))
    rate = _SECONDS[need.command] + sum(rate for name, rate in _SECONDS_OF_OPTIONS.items() if options.get(name))
    n_tokens = _OWN_TOKENS.get(need.command, min(size.n_tokens, _MOST_TOKENS.get(need.command, size.n_tokens)))
    return rate * replace(size, n_tokens=n_tokens).n_activations / 1e6
