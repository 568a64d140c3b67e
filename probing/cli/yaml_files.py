"""Files of options in YAML, and values that are typed as YAML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jsonargparse import get_loader

from probing.errors import UserError, as_clause
from probing.runtime.files import MOST_LEVELS, YAML_DOCUMENT, check_yaml, read_text

# Most values in a configuration file; a file that refers to itself would have infinitely many.
MAX_VALUES = 10_000


def read_yaml(path: str, typed: str = "--config") -> Mapping[Any, Any]:
    """Read a YAML file of options, restricted to safe types.

    Args:
        path: Path of the file.
        typed: The option that names the file, for messages.

    Raises:
        UserError: If the file cannot be read, is not YAML, or is not a mapping.
    """
    import yaml

    if not path or "\0" in path:
        raise UserError(f"`{typed}`: expected the path of a YAML file")
    try:
        text = read_text(Path(path), most=YAML_DOCUMENT)
        check_yaml(text, MAX_VALUES)
        options, root = get_loader("yaml")(text), yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        raise UserError(f"`{typed} {path}` cannot be read ({as_clause(error)})") from None
    except UnicodeDecodeError:
        raise UserError(f"`{typed} {path}` is not YAML (it is not UTF-8)") from None
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise UserError(f"`{typed} {path}` is not YAML that can be read ({line}{error.problem or error})") from None
    except Exception as error:  # PyYAML's own tags, such as !!timestamp, raise various types
        raise UserError(f"`{typed} {path}` is not YAML that can be read ({as_clause(error)})") from None
    if not isinstance(options, Mapping):
        raise UserError(f"`{typed} {path}` holds no options: expected lines such as `layer: 6`")
    if twice := _repeated(root):
        raise UserError(f"`{typed} {path}` has more than one `{twice[0]}`")
    return options


def as_yaml(text: str) -> Any:
    """Return a value typed as YAML; text that is not YAML stays text."""
    try:
        if oversized(text):
            return text
        return get_loader("yaml")(text)
    except Exception:  # as in `read_yaml`; text that is not YAML is refused later
        return text


def oversized(text: str) -> str:
    """Return what is too large in a text that the parser of options would read as YAML; empty if nothing is."""
    import yaml

    # Shorter texts have fewer levels, and without an alias as many values as characters at most.
    if "*" not in text and len(text) <= MOST_LEVELS:
        return ""
    try:
        check_yaml(text, MAX_VALUES)
    except yaml.YAMLError:  # then it is text
        return ""
    except ValueError as error:
        return f"is no option that can be read ({error})"
    return ""


def as_text(options: Mapping[str, Any], *, unicode: bool = True) -> str:
    """Return options as the text of a YAML file, which `read_yaml` reads as the same values, in the same order.

    Args:
        options: The options.
        unicode: Whether letters that are not ASCII are written as they are; otherwise they are escaped.
    """
    import yaml

    class Dumper(yaml.SafeDumper):
        """Quotes text that the reader would take for something else, such as `1e-4`."""

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = None if as_yaml(value) == value else "'"
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return yaml.dump(dict(options), Dumper=Dumper, sort_keys=False, allow_unicode=unicode, width=10_000)


def _repeated(root: Any) -> list[str]:
    """Return the keys that occur more than once; YAML would silently take the last one."""
    import yaml

    mappings = [node for node in (root, *(value for _, value in root.value)) if isinstance(node, yaml.MappingNode)]
    keys = [[str(key.value) for key, _ in mapping.value] for mapping in mappings]
    return [key for group in keys for key in group if group.count(key) > 1]


def all_values(value: Any) -> Iterator[Any]:
    """Yield all values in nested mappings and lists, and the keys, at most one more than `MAX_VALUES`."""
    waiting, n = [value], 0
    while waiting and n <= MAX_VALUES:
        value, n = waiting.pop(), n + 1
        if isinstance(value, Mapping):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set):
            waiting += value
        yield value
