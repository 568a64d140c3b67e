"""Groups of options that form a single argument, and descriptions of options shared by several commands."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from textwrap import fill
from typing import Any, Literal, TypeVar

from probing.errors import UserError, out_of_range

# Limits of penalties and learning rates: beyond, their squares and sums over tokens are 0 or infinite in float32.
SMALLEST, LARGEST = 1e-30, 1e30

# Arguments of Lightning's Trainer that concern how a probe is trained, and not where.
OF_TRAINING = ("max_epochs", "max_time", "enable_checkpointing", "detect_anomaly")

_Options = TypeVar("_Options")


def are_options(value: Any) -> bool:
    """Return whether a value is a group of options: a dataclass of `probing.cli`; tasks can be dataclasses too."""
    return is_dataclass(value) and type(value).__module__.startswith("probing.cli.")


@dataclass(frozen=True)
class ProbeOptions:
    """How the probe is trained.

    Args:
        l1: Strength of the l1 penalty on the scaled weights.
        l2: Strength of the squared l2 penalty on the scaled weights, above 0; auto selects one value for all layers on
            validation sentences.
        penalty_space: Scale that each neuron is divided by before its weights are penalised: its standard deviation
            (sd), its root mean square (rms), or 1 (raw).
        solver: Solver: lbfgs trains until the bound on the distance to the optimum is at most the tolerance; adam
            trains on mini-batches, as published probes do.
        tolerance: Bound on the distance to the optimum at which lbfgs stops, in nats.
        learning_rate: Learning rate of adam.
        batch_size: Batch size of adam, in tokens.
        patience: Number of epochs without a lower validation cross-entropy after which adam stops training a layer.
        bias: Whether the probe has an intercept. If true, neurons are centred on their training means, and their
            contributions are to the difference from the logit of a mean hidden state.
    """

    l1: float = 0.0
    l2: float | Literal["auto"] = "auto"
    penalty_space: Literal["sd", "rms", "raw"] = "sd"
    solver: Literal["lbfgs", "adam"] = "lbfgs"
    # In every layer tried, pairs of neurons whose contributions differ by more than 1% have the order of the optimum
    # once the true distance is at most 3e-6. The bound is then 4 to 50 times the true distance.
    tolerance: float = 3e-6
    learning_rate: float = 1e-3
    batch_size: int = 512
    patience: int = 3
    bias: bool = False

    @property
    def needs_validation(self) -> bool:
        """Whether validation examples choose the penalty or stop adam."""
        return self.solver == "adam" or self.l2 == "auto"

    def problems(self) -> list[str]:
        """Return the problems with values that are out of range."""
        problems = out_of_range("probe.l1", self.l1, 0, LARGEST)
        problems += out_of_range("probe.batch_size", self.batch_size, 1)
        problems += out_of_range("probe.patience", self.patience, 1)
        for name in ("l2", "tolerance", "learning_rate"):
            if getattr(self, name) == "auto":
                continue
            if not SMALLEST <= (value := getattr(self, name)) <= LARGEST:
                why = ", without which the distance to the optimum has no bound" if name == "l2" else ""
                problem = f"`--probe.{name} {value}` is out of range: expected a number above 0"
                problems.append(f"{problem}{why} ({SMALLEST} to {LARGEST})")
        if self.bias and self.solver == "adam":
            problems.append(
                "`--probe.solver adam`: a probe with an intercept (`--probe.bias true`) is trained by lbfgs; leave one "
                "of the two out"
            )
        if self.bias and self.penalty_space == "rms":
            problems.append(
                "`--probe.penalty_space rms`: with `--probe.bias true` neurons are centred, and their root mean square "
                "is their sd; leave one of the two out"
            )
        return problems

    def problems_without_bias(self) -> list[str]:
        """Return the problems with values for commands whose probes never have an intercept."""
        problem = "`--probe.bias true` does not apply: probes of this command have no intercept; leave it out"
        return self.problems() + [problem] * self.bias

    def problems_with_trainer(self, trainer: Mapping[str, Any]) -> list[str]:
        """Return the problems with arguments of Lightning's Trainer that conflict with the values."""
        if not (self.bias and trainer.get("enable_checkpointing")):
            return []
        return [
            "`--trainer.enable_checkpointing`: a checkpoint of a probe with `--probe.bias true` would be of centred "
            "neurons and a constant; leave one of the two out (`probe.safetensors` has weights and intercepts)"
        ]

    def problems_with_numbers(self, trainer: Mapping[str, Any], mdl: bool) -> list[str]:
        """Return the problems with options that do not apply where numbers are predicted, in closed form."""
        default, why = ProbeOptions(), "the task predicts numbers, by a ridge probe in closed form"
        names = ("l1", "solver", "tolerance", "learning_rate", "batch_size", "patience")
        inapplicable = [
            f"--probe.{name} {getattr(self, name)}" for name in names if getattr(self, name) != getattr(default, name)
        ]
        inapplicable += [f"--trainer.{name} {value}" for name, value in trainer.items() if name in OF_TRAINING]
        inapplicable += ["--mdl"] if mdl else []
        return [f"`{option}` does not apply: {why}; leave it out" for option in inapplicable]


# Most characters of a tag that W&B accepts.
LONGEST_TAG = 64


@dataclass(frozen=True)
class WandbOptions:
    """Where and how a run is logged to Weights & Biases.

    Args:
        mode: Mode: `online`, `offline`, `disabled` or `auto`, which uses `$WANDB_MODE` if set, otherwise online with an
            API key and offline without; `auto` always respects `wandb offline` and `wandb disabled`.
        project: Project of the run; default: `$WANDB_PROJECT`, otherwise `probing`.
        entity: User or team that owns the project; default: `$WANDB_ENTITY`, otherwise your W&B default entity.
        group: Name that groups runs, such as the name of their sweep.
        tags: Tags of the run, such as `a,b`, of at most 64 characters each.
        name: Name of the run in W&B; default: `$WANDB_NAME`, otherwise the name of its folder. If a command creates
            several runs, this names the run with their results.
        notes: Notes shown with the run.
        job_type: Type of the run, which distinguishes the runs of a group.
    """

    mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    project: str | None = None
    entity: str | None = None
    group: str | None = None
    tags: list[str] | str = field(default_factory=list)
    name: str | None = None
    notes: str | None = None
    job_type: str | None = None

    def __post_init__(self) -> None:
        """Split tags that were typed as text, and refuse those that W&B would refuse once the run starts."""
        if isinstance(self.tags, str):
            object.__setattr__(self, "tags", [tag for tag in map(str.strip, self.tags.split(",")) if tag])
        for tag in self.tags:
            if not 1 <= len(tag) <= LONGEST_TAG:
                raise UserError(
                    f"`--wandb.tags`: {tag!r} has {len(tag)} characters; expected tags of 1 to {LONGEST_TAG}."
                )


def as_options(kind: type[_Options], value: _Options | Mapping[str, Any], name: str) -> _Options:
    """Return the options as a dataclass, also from a mapping; raise UserError for an unknown key."""
    if not isinstance(value, Mapping):
        return value
    known = [option.name for option in fields(kind)]  # type: ignore[arg-type]
    if unknown := [key for key in value if key not in known]:
        raise UserError(f"`{name}.{unknown[0]}` is not an option; the options of `{name}` are {', '.join(known)}.")
    return kind(**value)


# A command that means something more particular by one of these describes the option in its own docstring.
DESCRIPTIONS = {
    "model": "Model to read: an alias (minilm, bert, roberta, distilbert, ...), a hub id, or a local folder.",
    "layer": "Layers to read: one (6), several (0,3,6 or 3-6), the last (-1) or all; layer 0 is the embedding output "
    "(only in the residual stream).",
    "revision": "Branch, tag or commit of the model on the hub.",
    "random_weights": "Use a randomly initialised model: the same architecture, with weights drawn with --seed.",
    "dtype": "Precision of the forward pass and of the cached activations.",
    "corpus": "Text to read: builtin, a file (.txt with one sentence per line, .conllu, .conll, .tsv, .csv, .jsonl; "
    "also as .gz), hf:NAME?config=C&split=S&column=T, or - for standard input. FILE?word=2&label=4 names columns.",
    "test_corpus": "Corpus to test on, given like --corpus; the test split of --corpus is then added to the training "
    "split.",
    "group_by": "Unit that the split never divides and that intervals treat as independent: sentence, document or "
    "auto, which is document if the corpus marks at least 60 (`# newdoc` in CoNLL-U, empty lines in .txt).",
    "first_token": "Whether the first token of each sequence is measured: include or exclude; the model reads it in "
    "both cases. In decoders the first token often attracts much attention and has outliers.",
    "max_length": "Maximum length of a tokenised sentence, including special tokens; longer sentences are truncated. "
    "Default: the model's limit.",
    "batch_tokens": "Maximum number of tokens in one forward pass, including padding; an existing cache entry keeps "
    "its original value.",
    "tokenizer": "Tokenizer of a model that is passed as an object; only from Python.",
    "definition": "Definition of the outliers that are clipped, as in `geometry`.",
    "components": "Number of directions that whitening keeps; default: all that vary.",
    "seed": "Seed of every random draw: bootstrap samples, clip_random's neurons and random initialisation.",
    "runs": "Folder in which the run is saved.",
    "cache": "Folder of cached activations; default: $PROBING_CACHE or RUNS/cache.",
    "quiet": "Print result lines, sentences and warnings, without tables and progress.",
    "figure_format": "Formats of the figures: all, or some of png (for the screen and W&B), pdf and svg (for a paper, "
    "3.3 or 6.8 inches wide).",
    "probe": "How the probe is trained.",
    "trainer": "Arguments of Lightning's Trainer that apply to a forward pass, such as --trainer.devices 2.",
    "wandb": "Where and how to track the run in Weights & Biases.",
}

_MEASURED = "what is measured"
# Groups of options in the help of a command, in their order; an option that no group names says what is measured.
HELP_GROUPS = {
    "the options that matter most": (
        "folder", "folders", "run", "file", "paper", "checkpoints", "model", "layer", "corpus", "task",
        "evidence", "name",
    ),
    "what is read": (
        "revision", "random_weights", "dtype", "site", "test_corpus", "fit_corpus", "group_by", "first_token",
        "max_length", "batch_tokens", "pairs", "test_pairs", "documents",
    ),
    _MEASURED: (),
    "how much evidence": (
        "controls", "replicates", "rotations", "mdl", "draws", "null_draws", "seeds", "orders", "retrain",
    ),
    "how it is computed": ("seed", "trainer", "cache"),
    "where results go": ("runs", "output", "figure_format", "verbose", "quiet"),
    "help, and files of options": ("help", "config", "print_config"),
}  # fmt: skip


def help_group(option: str) -> str:
    """Return the group of an option in the help."""
    return next((title for title, options in HELP_GROUPS.items() if option in options), _MEASURED)


# Width of a line of a docstring.
WIDTH = 116

_Function = TypeVar("_Function", bound=Callable[..., Any])


def with_shared_help(command: _Function) -> _Function:
    """Complete a command's docstring with the descriptions of its shared options, in the order of its options."""
    command.__doc__ = complete(inspect.getdoc(command) or "", inspect.signature(command).parameters)
    return command


def complete(docstring: str, options: Iterable[str], shared: Mapping[str, str] = DESCRIPTIONS) -> str:
    """Return a docstring without indentation whose `Args:` describe all options, with shared descriptions for the rest.

    Raises:
        KeyError: If neither describes an option.
        UserError: If Python has dropped all docstrings (-OO).
    """
    if sys.flags.optimize > 1:
        raise UserError(
            "python -OO, or PYTHONOPTIMIZE=2, leaves out the docstrings, of which the help of commands is made; run it "
            "without, or with -O."
        )
    head, rest = docstring.split("\nArgs:\n")
    section, blank, tail = rest.partition("\n\n")
    entries = re.split(r"^ {4}(?=\S)", section, flags=re.MULTILINE)[1:]
    command_entries = {entry.partition(":")[0]: f"    {entry.rstrip()}" for entry in entries}
    lines = [command_entries[name] if name in command_entries else _entry(name, shared[name]) for name in options]
    return f"{head}\nArgs:\n" + "\n".join(lines) + blank + tail


def _entry(name: str, description: str) -> str:
    return fill(f"{name}: {description}", WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8)
