"""How a checkpoint of sentence-transformers makes the vector of a text, as far as its files say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probing.errors import UserError
from probing.models.source import ModelSource, entries

# The modes of sentence-transformers that are poolings here, by their names in its configurations, old and new.
_MODES = {"mean": "mean_special", "mean_tokens": "mean_special", "cls": "cls", "cls_token": "cls"}
_OLD = "pooling_mode_"


@dataclass(frozen=True)
class SentenceModel:
    """What the files of a checkpoint say of its sentence vectors.

    Args:
        pooling: `mean_special`, the mean over all tokens, or `cls`, the first token; None if the files do not say it.
        max_length: Number of tokens at which texts are cut; None if the files do not say it.
        left_out: Modules behind the pooling that change more than the length of the vector, by their types.
    """

    pooling: str | None
    max_length: int | None
    left_out: tuple[str, ...] = ()


def sentence_model(model: ModelSource, with_pooling: bool = True) -> SentenceModel:
    """Read `modules.json`, the configuration of the pooling that it names, and `sentence_bert_config.json`.

    Args:
        model: The model's files.
        with_pooling: Whether the pooling is read, too.

    Raises:
        UserError: If the checkpoint pools in another way than by the mean or the first token.
    """
    length = next((one.get("max_seq_length") for one in entries(model.folder, "sentence_bert_config.json")), None)
    home, modules = _modules(model.folder)
    kinds = {str(one.get("type", "")).rsplit(".", 1)[-1]: str(one.get("path", "")) for one in modules}
    pooling = None
    if with_pooling and "Pooling" in kinds:
        settings = next(iter(entries(home, str(Path(kinds["Pooling"], "config.json")))), {})
        pooling = _pooling(settings, model.name)
    left_out = tuple(kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize"))
    return SentenceModel(pooling, length if isinstance(length, int) else None, left_out)


def _modules(folder: Path) -> tuple[Path, list[dict[str, Any]]]:
    """Return the list of modules that a transformer is in, and its folder: its own, or the one above."""
    for home, path in ((folder, ""), (folder.parent, folder.name)):
        modules = entries(home, "modules.json")
        if any(one.get("path") == path and str(one.get("type", "")).endswith("Transformer") for one in modules):
            return home, modules
    return folder, []


def _pooling(settings: Mapping[str, Any], name: str) -> str:
    modes = [key.removeprefix(_OLD) for key, value in settings.items() if key.startswith(_OLD) and value is True]
    if isinstance(new := settings.get("pooling_mode"), str):
        modes = [new]
    if len(modes) != 1 or modes[0] not in _MODES:
        found = " and ".join(modes) or "nothing"
        raise UserError(
            f"`--model {name}`: its pooling is {found}, where mean or cls was expected; choose one with --pooling "
            "mean_special or --pooling cls."
        )
    return _MODES[modes[0]]
