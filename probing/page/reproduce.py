"""How to repeat a run: the command, the configuration, versions and fingerprints."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probing.page.sources import Subject
from probing.results.markup import Html, element, joined, pairs
from probing.runs.checks import reading
from probing.runs.study import Result
from probing.runtime.files import read_text

# Options on where results are written and how they are shown; they do not change the results.
BESIDE_THE_POINT = ("runs", "cache", "quiet", "verbose", "wandb")


def command_line(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Return the command that repeats a run of this configuration.

    Args:
        config: The resolved configuration.
        defaults: Defaults of the options of `fit`; a mapping for a group of options.
    """
    words = [
        word
        for name, value in config.items()
        if name not in BESIDE_THE_POINT
        for word in option_words(name, value, defaults.get(name))
    ]
    return shlex.join(["python", "-m", "probing", "fit", *words])


def run_block(subject: Subject, defaults: Mapping[str, Any]) -> Html:
    """Return the section on how to repeat a run."""
    results = subject.run.results
    said, command = None, command_line(subject.run.config, defaults)
    if subject.run.is_of_arrays:
        command = "probing.probe(X, y, ...)"
        said = element("p", "This run was made from arrays, which have to be given again.")
    elif "-" in (subject.run.config["corpus"], subject.run.config.get("test_corpus")):
        said = element("p", "This run read standard input, so the text has to be given again.")
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    times = ", ".join(f"{name.removesuffix('_s')} {seconds:.1f} s" for name, seconds in results["timings"].items())
    return element(
        "section",
        element("h3", subject.label),
        element("pre", element("code", command), tabindex="0"),
        said,
        _configuration(subject.run.folder),
        pairs([("Versions", versions), ("Time", times), *_columns(results["cache"]), *_fingerprints(results["cache"])]),
    )  # fmt: skip


def folder_block(heading: str, made: Result) -> Html:
    """Return the section on how to repeat the run of another command than `fit`."""
    import yaml

    if (made.folder / "config.yaml").exists():
        return element("section", element("h3", heading), _configuration(made.folder))
    # Rankings are made with the configuration of their run, and a sweep by its file.
    return element("section", element("h3", heading), _folded(yaml.safe_dump(made.config, sort_keys=False)))


def option_words(name: str, value: Any, default: Any = None) -> list[str]:
    """Return the words by which an option is typed, or a group of options; none for its default."""
    if isinstance(value, Mapping):
        known = default if isinstance(default, Mapping) else {}
        return [word for key, inner in value.items() for word in option_words(f"{name}.{key}", inner, known.get(key))]
    if value == default or value is None:
        return []
    if isinstance(value, bool | list):
        return [f"--{name}", json.dumps(value)]
    return [f"--{name}", str(value)]


def _configuration(folder: Path) -> Html:
    with reading(folder):
        text = read_text(folder / "config.yaml", folder)
    return _folded(text)


def _folded(text: str) -> Html:
    name = joined("The configuration, ", element("code", "config.yaml"), ", for ", element("code", "--config"))
    return element("details", element("summary", name), element("pre", element("code", text), tabindex="0"))


def _columns(cache: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return which columns of the corpora were read, where they have some."""
    lines = dict.fromkeys(f"{one['corpus']}: {one['read']}" for one in cache.values() if "read" in one)
    return [("Read", line) for line in lines]


def _fingerprints(cache: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Html]]:
    """Return the fingerprints of the model and the corpus, and those of the test side where they differ."""
    sides = {side: dict(cached["key"]) for side, cached in cache.items()}
    if sides.get("test") == sides.get("train"):
        sides.pop("test")
    return [
        (f"Fingerprint: {name}" + (f", {side}" if len(sides) > 1 else ""), element("code", str(value)))
        for side, key in sides.items()
        for name, value in key.items()
        if value is not None
    ]
