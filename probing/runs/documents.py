"""`config.yaml`, `results.json` and the like, read so strictly that what is returned is plain and finite."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from probing.runtime.regular_files import regular

# Most values of a document: the largest that is written has some ten thousand.
MOST = 1_000_000


def read_json(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file that holds a mapping.

    Raises:
        ValueError: If it holds something else, a name twice, or a number that is not finite; the message names it.
        OSError: If it cannot be read.
    """

    def refused(text: str) -> Any:
        raise ValueError(f"{text} is no number")

    return _mapping(path, lambda text: json.loads(text, object_pairs_hook=_distinct, parse_constant=refused))


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the content of a YAML file that holds a mapping.

    Raises:
        ValueError: If it holds something else, a name twice, or a number that is not finite; the message names it.
        OSError: If it cannot be read.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            _distinct([(key.value, value) for key, value in node.value])
            return super().construct_mapping(node, deep)

    def load(text: str) -> Any:
        try:
            return Loader(text).get_single_data()
        except yaml.YAMLError as error:
            raise ValueError(" ".join(str(error).split())) from None

    return _mapping(path, load)


def _mapping(path: Path, load: Callable[[str], Any]) -> dict[str, Any]:
    text = regular(path).read_text(encoding="utf-8")
    try:
        found = load(text)
        for n, value in enumerate(_values(found)):
            if n >= MOST:
                raise ValueError(f"more than {MOST:,} values")
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{value} is no finite number")
            if isinstance(value, str) and not _is_text(value):
                raise ValueError(f"{value!r:.60} is no text")
    except RecursionError:
        raise ValueError(f"{path.name} is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise ValueError(f"{path.name} holds no names with values")
    return found


def _values(value: Any) -> Iterator[Any]:
    """Yield a value, the names and values in it, and so on."""
    yield value
    for part in (*value, *value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _values(part)


def _distinct(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    names = [name for name, _ in pairs]
    if twice := [name for name in names if names.count(name) > 1][:1] if len({*map(repr, names)}) < len(names) else []:
        raise ValueError(f"`{twice[0]}` is there twice")
    return dict(pairs)


def _is_text(text: str) -> bool:
    """Whether a text can be written in UTF-8, where names of files may have bytes that are none."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True
