"""A cache of batches on an accelerator, which lasts from one pass to the next."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset

from probing.data.examples import Batch, ShardBatches

# Share of the accelerator's free memory that the cache may use; the rest is for the probes and their computations.
SHARE = 0.5


class DeviceCache(Dataset[Batch]):
    """Keeps copies of as many batches as fit on a device; all other batches must be copied again in every pass.

    Args:
        batches: The batches to read.
        device: The device of the cache; Lightning does not move batches that are already there.
        room_bytes: Most bytes to cache; by default half of the device's free memory.
    """

    def __init__(self, batches: ShardBatches, device: torch.device, room_bytes: int | None = None) -> None:
        self.batches, self.device = batches, device
        self.room_bytes = int(SHARE * torch.cuda.mem_get_info(device)[0]) if room_bytes is None else room_bytes
        self.cached: dict[int, Batch] = {}

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Batch:
        if index in self.cached:
            return self.cached[index]
        batch = self.batches[index]
        size = sum(tensor.nbytes for tensor in (*batch.hidden_states, *batch[1:]))
        if size > self.room_bytes:
            return batch
        self.room_bytes -= size
        states = tuple(states.to(self.device) for states in batch.hidden_states)
        self.cached[index] = Batch(states, *(tensor.to(self.device) for tensor in batch[1:]))
        return self.cached[index]
