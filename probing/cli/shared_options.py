"""Descriptions of the options that several commands share, each written once."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from textwrap import fill
from typing import Any, TypeVar

# A command that means something more particular by one of these describes the option in its own docstring.
DESCRIPTIONS = {
    "model": "Model to read: an alias (minilm, bert, roberta, distilbert, ...), a hub id, or a local folder.",
    "layer": "Layers to read: one (6), several (0,3,6), the last (-1) or all; layer 0 is the embedding output.",
    "revision": "Branch, tag or commit of the model on the hub.",
    "random_weights": "Use a randomly initialised model: the same architecture, weights drawn with --seed.",
    "dtype": "Precision of the forward pass and of the cached activations.",
    "site": "What a neuron is: a coordinate of the hidden state (residual), a unit of the MLP inside block k after its "
    "activation function (mlp), or a coordinate of a head's output inside block k (attention).",
    "corpus": "Text to read: builtin, a file (.txt with one sentence per line, .conllu, .tsv, .jsonl; also as .gz), "
    "hf:NAME?config=C&split=S&column=T, or - for standard input.",
    "first_token": "Whether the first token of each sequence is measured: include or exclude; the model reads it in "
    "both cases. In decoders the first token often attracts much attention and has outliers of its own.",
    "max_length": "Maximum length of a tokenised sentence, special tokens included; longer ones are truncated. The "
    "model's own limit by default.",
    "batch_tokens": "Maximum number of tokens in one forward pass, padding included; an existing cache entry keeps the "
    "value that it was made with.",
    "tokenizer": "Tokenizer of a model that is given as an object; only from Python.",
    "definition": "Definition of the outliers that are clipped, as for `geometry`.",
    "components": "Number of directions that whitening keeps; all that vary by default.",
    "seed": "Seed of every random draw: bootstrap samples, clip_random's neurons and random weights.",
    "runs": "Folder in which the run is written.",
    "cache": "Folder of cached activations; $PROBING_CACHE or RUNS/cache by default.",
    "quiet": "Print result lines only, without tables and progress.",
    "figure_format": "Formats of the figures: all, or some of png (for the screen; W&B shows it), pdf and svg (for a "
    "paper, 3.3 or 6.8 inches wide).",
    "probe": "How the probe is trained.",
    "trainer": "Arguments of Lightning's Trainer that apply to a forward pass, such as --trainer.devices 2.",
    "wandb": "Where and how to track the run in Weights & Biases.",
}

# Width of a line of a docstring.
WIDTH = 116

_Function = TypeVar("_Function", bound=Callable[..., Any])


def with_shared_help(command: _Function) -> _Function:
    """Complete a command's docstring with the descriptions of the options that it shares, in the order of its options.

    Args:
        command: A function with a docstring whose section `Args:` describes the options that are its own.
    """
    command.__doc__ = complete(inspect.getdoc(command) or "", inspect.signature(command).parameters)
    return command


def complete(docstring: str, options: Iterable[str], shared: Mapping[str, str] = DESCRIPTIONS) -> str:
    """Return a docstring whose section `Args:` describes all options.

    Args:
        docstring: Docstring without indentation. Its own description of an option is preferred to the shared one.
        options: Names of the options.
        shared: Descriptions by name.

    Raises:
        KeyError: If an option is described in neither.
    """
    head, rest = docstring.split("\nArgs:\n")
    section, blank, tail = rest.partition("\n\n")
    entries = re.split(r"^ {4}(?=\S)", section, flags=re.MULTILINE)[1:]
    own = {entry.partition(":")[0]: f"    {entry.rstrip()}" for entry in entries}
    lines = [own[name] if name in own else _entry(name, shared[name]) for name in options]
    return f"{head}\nArgs:\n" + "\n".join(lines) + blank + tail


def _entry(name: str, description: str) -> str:
    return fill(f"{name}: {description}", WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8)
