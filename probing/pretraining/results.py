"""Writes what `pretrain` found into its folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probing.corpus import Corpus
from probing.pretraining.growth import growth_of
from probing.pretraining.packing import PackedText
from probing.results.csv_files import write_tables
from probing.runtime.versions import versions
from probing.schemas.pretrain import ARMS, LOSSES
from probing.tables.pretraining import judge

KIND = "pretraining with and without positions"


def write(
    folder: Path, config: Mapping[str, Any], tables: Mapping[str, Sequence[Mapping[str, Any]]], corpus: Corpus,
    text: PackedText,
) -> list[Path]:  # fmt: skip
    """Write tables, configuration and summary, remove what only a continued run needs, and return the paths.

    Args:
        folder: The run's folder.
        config: The resolved configuration as plain values.
        tables: Rows by the name of their table.
        corpus: The corpus.
        text: The packed text.
    """
    paths = [*write_tables(folder, config, tables, (ARMS, LOSSES)), folder / "results.json"]
    judgement = judge(tables["arms"])
    summary = {
        "kind": KIND,
        "versions": versions(),
        "corpus": {"name": config["corpus"], "fingerprint": corpus.fingerprint, "n_sentences": len(corpus.sentences)},
        "n_vocabulary": len(text.tokenizer),
        "n_training_rows": len(text.train),
        "n_held_out_rows": len(text.held_out),
        "verdict": judgement.verdict,
        "reason": judgement.reason,
        "growth": growth_of(tables["arms"]),
    }
    paths[-1].write_text(json.dumps(summary, indent=2), encoding="utf-8")
    shutil.rmtree(folder / "state", ignore_errors=True)
    return paths
