"""What is disabled, and what stands in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["uniform", "zero", "mean", "resample", "skip"]
UnitType = Literal["heads", "layers"]

UNITS: tuple[UnitType, ...] = ("heads", "layers")
KINDS: tuple[Kind, ...] = ("uniform", "zero", "mean", "resample", "skip")
# A head cannot be skipped: without it, a block has another width.
OF_HEADS: tuple[Kind, ...] = ("uniform", "zero", "mean", "resample")


@dataclass(frozen=True)
class Job:
    """One forward pass over the text with something disabled.

    Args:
        block: The block that is changed, from 1.
        head: The head whose output is replaced, from 1; None for all heads of the block, or for the whole block.
        kind: What stands in its place: what the heads would give under uniform attention, 0, the mean over training
            tokens, or the output at a random token of another sentence. `skip` takes the block out: its output is its
            input. None if nothing is changed, which is what the others are compared with.
    """

    block: int
    head: int | None
    kind: Kind | None

    @property
    def unit(self) -> str:
        """The unit's name in tables: `3-9` is head 9 of layer 3, `3` is layer 3."""
        return str(self.block) if self.head is None else f"{self.block}-{self.head}"


def all_jobs(n_layers: int, n_heads: int) -> list[Job]:
    """Return every pass that there can be, in the order in which they are computed and stored.

    Args:
        n_layers: Number of blocks.
        n_heads: Number of heads of a block.
    """
    return [job for block in range(1, n_layers + 1) for job in _jobs_of_block(block, n_heads)]


def _jobs_of_block(block: int, n_heads: int) -> list[Job]:
    of_heads = [Job(block, head, kind) for head in range(1, n_heads + 1) for kind in OF_HEADS]
    return [Job(block, None, None), *of_heads, *(Job(block, None, kind) for kind in KINDS)]


def wanted(job: Job, units: Sequence[UnitType], kinds: Sequence[Kind], blocks: Sequence[int]) -> bool:
    """Whether a pass is needed for what is asked.

    Args:
        job: The pass.
        units: Whether heads, layers or both are disabled.
        kinds: What stands in their place.
        blocks: The blocks that are changed.
    """
    if job.block not in blocks:
        return False
    return job.kind is None or (job.kind in kinds and ("layers" if job.head is None else "heads") in units)
