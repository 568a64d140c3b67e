"""What a forward pass costs: the matrix products of a model's blocks, and how fast this machine computes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from probing.errors import UserError

# Names that families have for the width of the MLP.
_WIDTHS = ("intermediate_size", "hidden_dim", "n_inner", "d_ff", "encoder_ffn_dim")


class Matrix(NamedTuple):
    """Matrices of a block that have the same shape.

    Args:
        name: Name of the shape.
        inputs: Number of inputs.
        outputs: Number of outputs.
        times: Number of such matrices.
    """

    name: str
    inputs: int
    outputs: int
    times: int


def weight_bytes(config: Any, itemsize: int) -> int:
    """Return the bytes of a model's weights, those of its blocks and its embeddings of tokens.

    Args:
        config: The model's configuration.
        itemsize: Bytes of a weight.
    """
    sizes = Blocks.of(config)
    of_block = sum(one.inputs * one.outputs * one.times for one in sizes.matrices)
    return itemsize * (sizes.n_blocks * of_block + int(getattr(config, "vocab_size", 0)) * sizes.d_model)


# Most of what a configuration counts, by the end of the name: of each a model has a module, or a name.
_MOST = ((re.compile(r"(layer|block|group|stage|depth)s?$"), 1000), (re.compile(r"(label|expert|head)s$"), 100_000))


def check_counts(name: str, configs: Iterable[Mapping[str, Any]]) -> None:
    """Refuse a configuration whose model would be built for minutes, before anything is built.

    Args:
        name: The model's name.
        configs: Its configuration, as it is read.

    Raises:
        UserError: If it has more layers, or other parts, than any model.
    """
    waiting = [*configs]
    while waiting:
        config = waiting.pop()
        waiting += [inner for inner in config.values() if isinstance(inner, Mapping)]
        for counted, n in config.items():
            most = next((most for ends, most in _MOST if ends.search(counted)), None)
            if most is not None and isinstance(n, int) and n > most:
                raise UserError(
                    f"`--model {name}`: its config.json has {counted} {n}, and at most {most} are read; check "
                    "the folder."
                )


@dataclass(frozen=True)
class Blocks:
    """The sizes that the cost of a forward pass depends on.

    Args:
        d_model: Number of neurons of the residual stream.
        d_mlp: Number of units of the MLP.
        n_blocks: Number of blocks.
    """

    d_model: int
    d_mlp: int
    n_blocks: int

    @classmethod
    def of(cls, config: Any) -> Blocks:
        """Return the sizes of a model with this configuration; an MLP of unknown width counts as four times d_model."""
        d_model = int(config.hidden_size)
        d_mlp: Any = next((width for name in _WIDTHS if (width := getattr(config, name, None))), 4 * d_model)
        d_mlp = int(max(d_mlp) if isinstance(d_mlp, list) else d_mlp)  # some families have a width for each block
        return cls(d_model, d_mlp, int(config.num_hidden_layers))

    @property
    def matrices(self) -> list[Matrix]:
        """The matrices of a block: queries, keys, values and outputs of attention, and both of the MLP."""
        d, wide = self.d_model, self.d_mlp
        return [Matrix("square", d, d, 4), Matrix("widen", d, wide, 1), Matrix("narrow", wide, d, 1)]

    def seconds(self, n_tokens: float, token_pairs: float, rates: Mapping[str, float]) -> float:
        """Return how long the matrix products of a forward pass through all blocks take.

        Args:
            n_tokens: Number of tokens, without padding.
            token_pairs: Sum over the sentences of their squared lengths, for the products of attention, which are
                counted at the rate of the square matrices.
            rates: Rate of each matrix by its name, in floating-point operations per second.
        """
        linear = sum(2 * n_tokens * one.inputs * one.outputs * one.times / rates[one.name] for one in self.matrices)
        return self.n_blocks * (linear + 4 * token_pairs * self.d_model / rates["square"])

    def rates(
        self, rows: int, dtype: str, rate: Callable[[Callable[[], object], float], float], device: str = "cpu"
    ) -> dict[str, float]:
        """Return the rate of each matrix by its name, as linear layers call it, in floating-point operations a second.

        Args:
            rows: Number of tokens of a product.
            dtype: Dtype of the product, by its name in torch.
            rate: Measures work and its amount, such as `probing.runtime.machine.rate`.
            device: The device, by its name in torch.
        """
        import torch
        from torch.nn.functional import linear

        from probing.runtime.arithmetic import fast_linear_maps

        found, kind = {}, getattr(torch, dtype)
        with torch.inference_mode(), fast_linear_maps():
            for name, k, n, _ in self.matrices:
                sizes = (rows, k), (n, k), (n,)
                x, weight, bias = (torch.randn(*size, device=device).to(kind) for size in sizes)

                def product(x: Any = x, weight: Any = weight, bias: Any = bias) -> None:
                    linear(x, weight, bias)
                    if device != "cpu":
                        torch.cuda.synchronize()

                found[name] = rate(product, 2 * rows * k * n)
        return found
