"""What an encoder is examined with, and whether its states for a sentence depend on what else it reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from probing.errors import UserError
from probing.models.copies import with_the_same_weights
from probing.models.longest import telling_the_longest
from probing.models.outputs import run

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

# Length of the two sequences that an encoder is examined with, and number of padding tokens in the second one. The
# length is odd to reveal families that pad their input to a multiple of some number.
LENGTH, PADDING = 11, 4
# Largest mean change of those sequences' hidden states, relative to their mean, that counts as rounding in float32.
_ROUNDING = 1e-5
# Largest change of any token's hidden state, relative to its norm, that counts as rounding in float32. The same
# sentence in other batches differs by up to 3e-6 in the families that are tested and in trained models, and by 1e-2 and
# more where padding is mixed in or another kind of attention is chosen.
SAME = 1e-3
# Entries of a configuration that may limit a kind of attention or of positions, and the most limits that are crossed.
_NAMES_A_LIMIT = re.compile("position|window|block|chunk|context|length|local")
_MOST_LIMITS = 4


def examination_inputs(encoder: nn.Module, pad_token_id: int) -> dict[str, Tensor]:
    """Return two sequences of ordinary tokens, the second one padded."""
    import torch

    config: Any = encoder.config
    device = next(encoder.parameters()).device
    # Most families give special tokens the lowest ids; any other id will do.
    input_ids = (pad_token_id + 5 + torch.arange(2 * LENGTH, device=device).view(2, LENGTH)) % config.vocab_size
    attention_mask = torch.ones_like(input_ids)
    input_ids[1, -PADDING:], attention_mask[1, -PADDING:] = pad_token_id, 0
    return {"input_ids": input_ids, "attention_mask": attention_mask}


def padding_is_neutral(encoder: nn.Module, inputs: Mapping[str, Tensor], states: Sequence[Tensor]) -> bool:
    """Whether the padded sequence has the same hidden states without padding, in every layer.

    Args:
        encoder: The encoder, in float32.
        inputs: What `examination_inputs` returns.
        states: The hidden states for both sequences.
    """
    alone = {name: values[1:, :-PADDING] for name, values in inputs.items()}
    by_itself = run(encoder, alone, output_hidden_states=True).states
    changes = (_mean_change(state[1:, :-PADDING], own) for state, own in zip(states, by_itself, strict=True))
    return max(changes) <= _ROUNDING


def lengths_are_neutral(encoder: nn.Module, lengths: Sequence[int], pad_token_id: int, name: str) -> bool:
    """Whether sentences have the same last hidden states beside the longest one as alone.

    Some families choose the kind of attention, or the frequencies of their positions, by the longest sentence of the
    batch. Examined are the shortest and the longest sentence, and lengths on both sides of each limit that the
    configuration names between them.

    Args:
        encoder: An encoder in float32 that has not been run yet; only copies of it are run.
        lengths: Number of tokens of each sentence that will be read, shape (n_sentences,).
        pad_token_id: Id of the padding token.
        name: The model's name as the user typed it, for messages.

    Raises:
        UserError: If the states of a sentence depend on the sentences read before, or on chance, or if the model does
            not run on the longest sentence.
    """
    rows = _examined_lengths(encoder.config, lengths)

    def read(model: nn.Module, *together: int) -> Tensor:
        inputs = _sequences(encoder, together, pad_token_id)
        with telling_the_longest(model, inputs):
            return run(model, inputs).last

    # A kind of attention that was chosen once may stay: so each order begins with a model that has read nothing.
    upwards, downwards = with_the_same_weights(encoder), with_the_same_weights(encoder)
    alone = {n: read(upwards, n)[0] for n in rows}
    for n in reversed(rows):
        if (change := largest_change(read(downwards, n)[0], alone[n])) > SAME:
            limits = ", ".join(map(str, sorted(_limits(encoder.config)))) or "none"
            raise UserError(
                f"`--model {name}` ({encoder.config.model_type}) gives a sentence of {n} tokens hidden states that "  # type: ignore[union-attr]
                f"depend on what it read before, or on chance (they differ by {change:.1%}); choose another model, or "
                f"by `--max_length` sentences on one side of its limits (its configuration names {limits})."
            )
    longest = rows[-1]
    beside = ((n, read(upwards, n, longest)) for n in rows[:-1])
    return all(
        largest_change(both[0, :n], alone[n]) <= SAME and largest_change(both[1], alone[longest]) <= SAME
        for n, both in beside
    )


def relative_changes(found: Tensor, expected: Tensor) -> Tensor:
    """Return the distance of the two states of each token, relative to the norm of the one expected."""
    found, expected = found.float(), expected.float()
    return (found - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-30)


def largest_change(found: Tensor, expected: Tensor) -> float:
    """Return the largest of the relative changes."""
    return float(relative_changes(found, expected).max())


def _examined_lengths(config: Any, lengths: Sequence[int]) -> list[int]:
    """Return the lengths to be examined, ascending."""
    there = [int(n) for n in lengths if n > 0]
    first, last = min(there, default=1), max(there, default=1)
    limits = sorted(n for n in _limits(config) if first <= n < last)[-_MOST_LIMITS:]
    return sorted({first, last, *limits, *(n + 1 for n in limits)})


def _limits(config: Any) -> set[int]:
    """Return the numbers that a configuration gives under a name that may be that of a limit."""
    entries = config.to_dict() if hasattr(config, "to_dict") else vars(config)
    return {n for name, n in _numbers(entries) if n > 1 and _NAMES_A_LIMIT.search(name)}


def _numbers(entries: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in entries.items():
        if isinstance(value, Mapping):
            yield from _numbers({f"{name} {inner}": one for inner, one in value.items()})
        for one in value if isinstance(value, list | tuple) else [value]:
            if type(one) is int:
                yield str(name), one


def _sequences(encoder: nn.Module, lengths: Sequence[int], pad_token_id: int) -> dict[str, Tensor]:
    """Return sequences of these lengths as one batch, padded at the end."""
    import torch

    config: Any = encoder.config
    device = next(encoder.parameters()).device
    columns = torch.arange(max(lengths), device=device)
    ids = (pad_token_id + 5 + columns) % config.vocab_size
    ids = torch.where(ids == pad_token_id, (pad_token_id + 5) % config.vocab_size, ids)
    mask = columns < torch.tensor(lengths, device=device)[:, None]
    return {"input_ids": torch.where(mask, ids, pad_token_id), "attention_mask": mask.long()}


def _mean_change(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().float().mean() / expected.abs().float().mean().clamp_min(1e-30))
