"""Checks of the content of a run of `fit` or `probe`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probing.cli.options import LARGEST, LAST_SEED
from probing.models import is_site_of_run
from probing.results import Row, Schema, Table, check_columns, without_nan
from probing.runs.folder import reading
from probing.runtime.files import parse_json, regular
from probing.tables import has_intercept
from probing.tables.schema import ACCURACY, NEURONS, NUMBERS

if TYPE_CHECKING:
    from probing.probes.transforms import Transform


def leaves_out_first(config: Mapping[str, Any]) -> bool:
    """Return whether a run leaves out first tokens."""
    return bool(config.get("first_token") == "exclude")


_OF_TRAINING = ("converged", "n_passes", "objective")
# What each layer has in the same order, and whether each only once.
_PARTS = {
    "positions": ("position", True),
    "heads": ("head", True),
    "bases": ("basis", False),
    "basis": ("kind", True),
    "classes": ("class", False),
    "class_scores": ("class", True),
}

Holds = Callable[[Any], bool]


def _whole(least: int, largest: float = float("inf")) -> Holds:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= largest


def _any_of(*values: Any) -> Holds:
    return lambda value: isinstance(value, str) and value in values


def _or_none(holds: Holds) -> Holds:
    return lambda value: value is None or holds(value)


def _text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= LARGEST


def _yes_or_no(value: Any) -> bool:
    return isinstance(value, bool)


def _mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _mapping_of(holds: Holds) -> Holds:
    return lambda value: isinstance(value, dict) and all(map(holds, value.values()))


def _of_side(value: Any) -> bool:
    """Check that an entry of `cache` names the sources of activations."""
    return isinstance(value, dict) and _mapping_of(lambda part: part is None or isinstance(part, str | int))(
        value.get("key")
    )


def _labels(value: Any) -> bool:
    """Check that these are labels of classes: distinct, and all whole numbers or all texts."""
    kinds = {type(label) for label in value} if isinstance(value, list) else {None}
    return (kinds <= {int} or kinds <= {str}) and len({*value}) == len(value)


_PROBE: Mapping[str, Holds] = {
    "l1": _number, "l2": lambda value: value == "auto" or _number(value),
    "penalty_space": _any_of("sd", "rms", "raw"), "solver": _any_of("lbfgs", "adam"), "tolerance": _number,
    "learning_rate": _number, "batch_size": _whole(1), "patience": _whole(1),
}  # fmt: skip
_CONFIG: Mapping[str, Holds] = {
    "model": _text, "task": _text, "task_args": _mapping, "corpus": _text, "test_corpus": _or_none(_text),
    "seed": _whole(0, LAST_SEED), "trainer": _mapping, "probe": _mapping,
}  # fmt: skip
# Also of a run whose model reads text.
_CONFIG_OF_TEXT: Mapping[str, Holds] = {
    "revision": _or_none(_text), "random_weights": _yes_or_no, "dtype": _any_of("float32", "bfloat16", "float16"),
    "max_length": _or_none(_whole(1)), "batch_tokens": _or_none(_whole(1)),
}  # fmt: skip
# What runs of the first versions lack.
_LATER: Mapping[str, Holds] = {
    "site": is_site_of_run, "transform": _text, "first_token": _any_of("include", "exclude"), "wandb": _mapping,
    "cache": _or_none(_text), "arrays": _mapping,
}  # fmt: skip
_RESULTS: Mapping[str, Holds] = {
    "versions": _mapping_of(lambda value: isinstance(value, str)),
    "cache": lambda value: _mapping_of(_of_side)(value) and {"train", "test"} <= set(value), "classes": _labels,
    "n_sentences": lambda value: _mapping_of(_whole(0))(value) and "test" in value,
    "timings": _mapping_of(_number),
    "layers": lambda value: isinstance(value, list) and all(map(_mapping, value)),
}  # fmt: skip
_LATER_RESULTS: Mapping[str, Holds] = {
    "read_from": _mapping_of(_mapping_of(_text)),
    "penalty": lambda value: _mapping(value) and _number(value.get("l2", 0)),
    "numbers": lambda value: _mapping_of(_number)(value) and {"mean", "sd"} <= set(value),
    "intervals_over": lambda value: _mapping(value) and _text(value.get("unit")) and _whole(0)(value.get("n")),
}


def check_documents(config: Mapping[str, Any], results: Mapping[str, Any]) -> None:
    """Raise `ValueError` if an entry of a run's configuration or results is missing or of a wrong type."""
    of_text = {} if "arrays" in config else _CONFIG_OF_TEXT
    _check("config.yaml", config, {**_CONFIG, **of_text}, _LATER)
    _check("config.yaml", config["probe"], {}, _PROBE)
    _check("results.json", results, _RESULTS, _LATER_RESULTS)
    if bool(results["classes"]) == ("numbers" in results):
        raise ValueError("results.json has neither classes nor numbers, or both")
    if config["probe"].get("l2") == "auto" and "l2" not in results.get("penalty", {}):
        raise ValueError("results.json has no penalty")


def _check(file: str, values: Mapping[str, Any], needed: Mapping[str, Holds], others: Mapping[str, Holds]) -> None:
    if missing := [name for name in needed if name not in values]:
        raise ValueError(f"{file} has no {missing[0]}")
    for name, holds in {**needed, **others}.items():
        if name in values and not holds(values[name]):
            raise ValueError(f"{file} has {values[name]!r:.60} as {name}")


def check_tables(results: Mapping[str, Any], accuracy: Table, neurons: Table) -> None:
    """Raise `ValueError` unless `accuracy.csv` agrees with `results.json`, and `neurons.csv` ranks all neurons."""
    check_columns(accuracy, NUMBERS if "numbers" in results else ACCURACY)
    layers = [row["layer"] for row in accuracy]
    if layers != sorted({layer for layer in layers if _whole(0)(layer)}):
        raise ValueError("accuracy.csv has layers twice, or not in order")
    fitted = results["layers"]
    if len(fitted) > len(accuracy) or not all(map(_is_same, fitted, accuracy)):
        raise ValueError("accuracy.csv and results.json are not of one run")
    check_columns(neurons, NEURONS)
    check_ranking("neurons.csv", neurons, layers)


def check_ranking(file: str, rows: Sequence[Row], layers: Sequence[int]) -> None:
    """Raise `ValueError` unless a table ranks all neurons of each of these layers, layer after layer."""
    width = len(rows) // len(layers) if layers else 0
    for i, layer in enumerate(layers):
        layer_rows = rows[i * width : (i + 1) * width]
        ranks = [row.get("rank") for row in layer_rows]
        # A rank is the row's place, or shared with the row before.
        places = enumerate(pairwise([0, *ranks]), start=1)
        are_ranks = all(rank in (place, before) for place, (before, rank) in places)
        is_whole = sorted(row.get("neuron", -1) for row in layer_rows) == list(range(width))
        if {row.get("layer") for row in layer_rows} != {layer} or not are_ranks or not is_whole:
            raise ValueError(f"{file} does not rank every neuron of layer {layer}")
    if not width or width * len(layers) != len(rows):
        raise ValueError(f"{file} has {len(rows)} rows for {len(layers)} layers")


def check_parts(rows: Table, schema: Schema, layers: Sequence[int], classes: Sequence[int | str]) -> None:
    """Raise `ValueError` unless a table has its columns and the same parts in each layer, and scores of all classes."""
    check_columns(rows, schema, finite=False)
    name, file = schema.name, f"{schema.name}.csv"
    column, is_once = _PARTS.get(name, ("layer", False))
    parts: dict[Any, list[Any]] = {layer: [] for layer in layers}
    for row in rows:
        parts[row["layer"]].append(row[column])
    if name in _PARTS and (
        any(layer_parts != parts[layers[0]] for layer_parts in parts.values())
        or (is_once and len({*parts[layers[0]]}) < len(parts[layers[0]]))
    ):
        raise ValueError(f"{file} does not have each {column} of each layer")
    if name == "class_scores" and {*parts[layers[0]]} != {*classes}:
        raise ValueError(f"{file} does not have each class of the run")
    if name == "contexts" and any(row["end"] not in ("highest", "lowest") for row in rows):
        raise ValueError(f"{file} has an end that is neither highest nor lowest")


def shapes_of(path: Path) -> tuple[dict[str, list[int]], dict[str, Any]]:
    """Return the shape of each tensor in a file, and the `layers` and `classes` of the file's metadata."""
    from safetensors import safe_open

    with safe_open(regular(path, path.parent), framework="numpy") as file:
        about = file.metadata() or {}
        metadata = {name: parse_json(about[name]) for name in ("layers", "classes") if name in about}
        return {name: file.get_slice(name).get_shape() for name in file.keys()}, metadata  # noqa: SIM118  no mapping


def check_tensors(folder: Path, results: Mapping[str, Any], accuracy: Sequence[Row], n_neurons: int) -> None:
    """Raise `ValueError` unless a run's tensors have the layers, classes and neurons of its tables."""
    layers, classes = [row["layer"] for row in accuracy], results["classes"]
    expected = [len(layers), len(classes) or 1, n_neurons // len(layers)]
    for name, tensor in (("contributions", "contribution"), ("probe", "weight")):
        shapes, metadata = shapes_of(folder / f"{name}.safetensors")
        same = shapes[tensor] == expected and metadata.get("layers", layers) == layers
        file_classes = metadata.get("classes", classes)
        are_exchanged = file_classes != classes and {*file_classes} == {*classes}  # labels may be renamed
        if not same or are_exchanged:
            raise ValueError(f"neurons.csv and {name}.safetensors are not of one run")


def reads_transformed(config: Mapping[str, Any]) -> bool:
    """Return whether a run's probes read transformed activations; probes with an intercept read centred activations."""
    return config.get("transform", "none") != "none" or has_intercept(config)


def read_transforms(folder: Path, layers: Sequence[int], d_model: int) -> dict[int, Transform]:
    """Return the transform of each of a run's layers; raise `UserError` unless shapes fit and numbers are finite."""
    from probing.probes.transforms import load

    with reading(folder):
        transforms = load(folder / "transform.safetensors")
        for layer in layers:
            transform = transforms[layer]
            parts = transform.shift, transform.linear, transform.offset
            shapes = [tuple(part.shape) for part in parts]
            if (
                shapes[0] != (d_model,)
                or shapes[1] not in ((d_model,), (d_model, transform.n_out))
                or len(shapes[2]) != 1
            ):
                raise ValueError(f"transform.safetensors has other shapes in layer {layer}")
            if not all(part.is_floating_point() and bool(part.isfinite().all()) for part in parts):
                raise ValueError(f"transform.safetensors has numbers in layer {layer} that are not finite")
        return {layer: transforms[layer] for layer in layers}


def _is_same(fitted: Mapping[str, Any], row: Row) -> bool:
    """Compare a layer's row in `accuracy.csv` with its entry in `results.json`, except for columns of the training.

    A column of a later version, which this version does not declare, was read as text.
    """
    known = {name: None if value == "" and name != "flag" else value for name, value in without_nan(row).items()}
    compared = {name: value for name, value in fitted.items() if name in known or name not in _OF_TRAINING}
    return all(known.get(name) in (value, str(value)) for name, value in compared.items())
