"""LayerNorms and RMS norms: h = gain (x - m) / sigma + bias, with m = 0 in an RMS norm.

The kind of a norm and its epsilon are recognised by what the module computes, not by its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

# Largest deviation of a recomputed output from the module's own, in multiples of its root mean square.
_ROUNDING = 1e-4
# Attributes that hold epsilon in the norms of torch and of transformers.
_EPSILONS = ("eps", "variance_epsilon", "epsilon")


def is_norm(module: nn.Module, d_model: int) -> bool:
    """Whether a module's own parameters are a gain over the neurons and at most a bias."""
    own = dict(module.named_parameters(recurse=False))
    return "weight" in own and not set(own) - {"weight", "bias"} and all(p.shape == (d_model,) for p in own.values())


@dataclass(frozen=True)
class Norm:
    """How a module normalises vectors.

    Args:
        gain: Gain of each neuron, shape (d_model,), float64; the module's weight, plus 1 if the module adds 1 to it.
        bias: Bias of each neuron, shape (d_model,), float64; 0 where the module has none.
        centres: Whether the mean of the neurons is subtracted, as in LayerNorm.
        epsilon: What is added to the variance, or to the mean square.
    """

    gain: Tensor
    bias: Tensor
    centres: bool
    epsilon: float

    def parts(self, given: Tensor) -> tuple[Tensor, Tensor]:
        """Return x / sigma and m / sigma of vectors.

        Args:
            given: Vectors, shape (..., d_model), float64.

        Returns:
            Shapes (..., d_model) and (..., 1).
        """
        mean = given.mean(-1, keepdim=True) if self.centres else given.new_zeros((*given.shape[:-1], 1))
        sigma = ((given - mean).square().mean(-1, keepdim=True) + self.epsilon).sqrt()
        return given / sigma, mean / sigma

    def __call__(self, given: Tensor) -> Tensor:
        """Return the output for vectors in float64, shape (..., d_model)."""
        scaled, mean = self.parts(given)
        return self.gain * (scaled - mean) + self.bias


def norm_of(module: Any, given: Tensor, made: Tensor) -> Norm | None:
    """Return how a module has normalised its input; None if it computes anything else.

    Args:
        module: A module for which `is_norm` holds.
        given: Its input, shape (..., d_model), without padding.
        made: Its output for that.
    """
    weight, bias = module.weight.detach().double(), getattr(module, "bias", None)
    bias = weight.new_zeros(weight.shape) if bias is None else bias.detach().double()
    epsilons = [float(getattr(module, name)) for name in _EPSILONS if isinstance(getattr(module, name, None), float)]
    for centres, added, epsilon in product((True, False), (0.0, 1.0), epsilons):  # Gemma's gain is 1 + weight
        norm = Norm(weight + added, bias, centres, epsilon)
        error = (norm(given.double()) - made.double()).abs().max()
        if error <= _ROUNDING * made.double().square().mean().sqrt():
            return norm
    return None
