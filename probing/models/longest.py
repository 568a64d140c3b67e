"""Says which sequences a model takes at most, where its configuration does not."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from probing.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn


@contextmanager
def telling_the_longest(encoder: nn.Module, inputs: Mapping[str, Tensor]) -> Iterator[None]:
    """Turn the error of a model that takes no sequences of this length into one that says which it takes.

    It is found by running the model, because not every configuration names it.

    Args:
        encoder: The encoder.
        inputs: What it is given.

    Raises:
        UserError: If it does not run on any tokens of this length.
    """
    import torch

    try:
        yield
    except UserError:
        raise
    except Exception as error:  # each family raises its own types
        n_tokens = inputs["input_ids"].shape[1]
        longest = None
        if not isinstance(error, torch.OutOfMemoryError) and "alloc" not in str(error):
            longest = _longest(encoder, inputs["input_ids"])
        if longest is None:
            raise
        kind = encoder.config.model_type  # type: ignore[union-attr]
        raise UserError(
            f"this model ({kind}) takes at most {longest} tokens, as running it shows, and the text has a sentence of "
            f"{n_tokens}; give `--max_length {longest}`."
        ) from None


def _longest(encoder: nn.Module, input_ids: Tensor) -> int | None:
    """Return the longest sequence of fewer tokens that an encoder runs on; None if it runs on so many, or on none."""
    import torch

    n_tokens, token = input_ids.shape[1], input_ids[:1, :1]

    def runs(length: int) -> bool:
        repeated = token.expand(1, length)
        try:
            encoder(input_ids=repeated, attention_mask=torch.ones_like(repeated))
        except Exception:  # what else it cannot do was found by `examine`
            return False
        return True

    if n_tokens < 2 or runs(n_tokens) or not runs(1):
        return None
    return bisect_left(range(n_tokens), True, lo=2, key=lambda length: not runs(length)) - 1
