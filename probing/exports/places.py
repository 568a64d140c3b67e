"""Paths of this machine, which are no part of what is given to others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Labels of classes may look like paths.
_KEPT = ("classes", "layers")


def portable(value: Any) -> Any:
    """Return a value in which every absolute path, also one behind `hf:`, is its last part.

    A run whose paths are such names finds its model and text beside its folder, or in the current one.

    Args:
        value: A text, or a mapping or list of these, as in `config.yaml` and `results.json`.
    """
    if isinstance(value, str):
        return _last_part(value)
    if isinstance(value, Mapping):
        return {name: one if name in _KEPT else portable(one) for name, one in value.items()}
    return [portable(one) for one in value] if isinstance(value, list) else value


def portable_results(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return `results.json` without paths of this machine, also those relative to the run."""
    found: dict[str, Any] = portable(results)
    for noted in found.get("read_from", {}).values():
        noted.pop("from_run", None)
    return found


def _last_part(text: str) -> str:
    before, path = ("hf:", text.removeprefix("hf:")) if text.startswith("hf:") else ("", text)
    path, mark, query = path.partition("?") if before else (path, "", "")
    expanded = os.path.expanduser(path)
    is_path = os.path.isabs(expanded) and len(Path(expanded).parts) > 2 and "\n" not in path
    return f"{before}{Path(expanded).name}{mark}{query}" if is_path else text
