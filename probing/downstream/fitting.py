"""What `wic` and `sts` have in common: the transforms of a layer, and results in a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from torch import Tensor

from probing.cache import ActivationStore
from probing.corpus import split_key
from probing.runs.results import versions
from probing.runs.run import Row
from probing.statistics.moments import Covariance, CovarianceAccumulator
from probing.statistics.outliers import ProfileAccumulator, outliers_of
from probing.tables.csv_files import write_csv
from probing.tables.space_names import Definition


@dataclass(frozen=True)
class Text:
    """Sentences that transforms are fitted on.

    Args:
        store: Where their activations are.
        kept: Which of the sentences, shape (n_sentences,), bool.
    """

    store: ActivationStore
    kept: NDArray[np.bool_]

    @property
    def taken(self) -> NDArray[np.bool_]:
        """Which tokens are of these sentences and not special, shape (n_tokens,)."""
        tokens = self.store.tokens
        return self.kept[tokens.sentences] & ~tokens.special


def not_in(sentences: Sequence[str], others: Sequence[str]) -> NDArray[np.bool_]:
    """Return which sentences are none of the others, but for case and punctuation, shape (n_sentences,)."""
    known = {split_key(sentence) for sentence in others}
    return np.array([split_key(sentence) not in known for sentence in sentences])


def token_moments(texts: Sequence[Text], layer: int) -> Covariance:
    """Return the moments of the tokens that are not special, of some texts in one layer."""
    accumulator = CovarianceAccumulator(texts[0].store.plan.d_model)
    for states in _words_of(texts, layer):
        accumulator.update(states)
    return accumulator.result()


def outliers(texts: Sequence[Text], layer: int, definition: Definition) -> list[int]:
    """Return the outliers of a layer over the tokens of some texts that are not special; ascending.

    Finding none is a result.
    """
    accumulator = ProfileAccumulator(texts[0].store.plan.d_model)
    for states in _words_of(texts, layer):
        accumulator.update(states.float())
    found = outliers_of(accumulator.result())
    return sorted({outlier.neuron for outlier in found if outlier.definition == definition})


def _words_of(texts: Sequence[Text], layer: int) -> Iterator[Tensor]:
    """Yield for each shard its hidden states but those of special tokens, shape (n, d_model)."""
    for text in texts:
        taken = text.taken
        for shard in text.store.plan.shards:
            rows = torch.from_numpy(np.flatnonzero(taken[text.store.shard_tokens(shard)]))
            yield text.store.read(layer, shard.index)[rows]


def write_results(
    folder: Path,
    config: Mapping[str, Any],
    tables: Mapping[str, tuple[Sequence[Row], Sequence[str]]],
    summary: Mapping[str, Any],
) -> list[Path]:
    """Write tables, configuration and summary, and return their paths; what is undefined (NaN) is absent.

    Args:
        folder: The run's folder.
        config: The resolved configuration as plain values.
        tables: By name, rows and their columns in order.
        summary: What `results.json` has beside the rows.
    """
    found = {name: [_defined(row) for row in rows] for name, (rows, _) in tables.items()}
    for name, (_, columns) in tables.items():
        write_csv(folder / f"{name}.csv", found[name], columns)
    (folder / "config.yaml").write_text(yaml.safe_dump(dict(config), sort_keys=False))
    (folder / "results.json").write_text(json.dumps({**summary, "versions": versions(), **found}, indent=2))
    return [folder / name for name in (*(f"{name}.csv" for name in tables), "config.yaml", "results.json")]


def _defined(row: Row) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value == value}
