"""The results of finished passes on disk, so that a run that was killed goes on with the next one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probing.cache.plan import Plan, Shard
from probing.cache.store import ActivationStore, DamagedCache, not_written
from probing.cache.tokens import Tokens
from probing.runtime.files import regular

if TYPE_CHECKING:
    from torch import Tensor


class PassStore(ActivationStore):
    """An entry of the cache with a file for each of several passes, all over one text."""

    @classmethod
    def opened(
        cls, folder: Path, key: Mapping[str, Any], tokens: Tokens, n_passes: int, batch_tokens: int,
        description: Mapping[str, Any],
    ) -> PassStore:  # fmt: skip
        """Open the entry, or make it.

        Args:
            folder: The entry's folder.
            key: Everything that changes the results.
            tokens: The table of tokens of the text.
            n_passes: Number of passes that there can be.
            batch_tokens: Most tokens in a batch, padding included.
            description: Information for users: names of model and corpus, versions.

        Raises:
            UserError: If the entry cannot be written.
        """
        try:
            return cls(folder)
        except DamagedCache:
            pass
        plan = Plan(key, n_passes, 0, "float32", batch_tokens, (Shard(0, 0, tokens.n_sentences, tokens.n_tokens),))
        try:
            cls.create(folder, plan, tokens, description)
        except OSError as error:
            raise not_written(folder, error) from error
        return cls(folder)

    def unfinished(self, indices: Sequence[int]) -> list[int]:
        """Return which of these files are missing or damaged."""
        have = {at for at, _ in self.records()} - {at for at, _ in self.damaged(indices)}
        return [index for index in indices if index not in have]

    def put(self, index: int, tensors: Mapping[str, Tensor]) -> None:
        """Write a file.

        Raises:
            UserError: If there is no room for it.
        """
        try:
            self.write_tensors(index, 0, tensors)
        except OSError as error:
            raise not_written(self.folder, error) from error

    def get(self, index: int) -> dict[str, Tensor]:
        """Return the content of a file."""
        from safetensors.torch import load_file

        return load_file(regular(self.path(index, 0), self.folder))
