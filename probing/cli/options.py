"""Options of commands: how they are declared, how their values are checked, and those that several commands share."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, Field, asdict, dataclass, field, fields, replace
from functools import cache
from itertools import pairwise
from os import PathLike
from textwrap import fill
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from probing.errors import UserError, did_you_mean, flag, out_of_range

# Formats of figures: an image for the screen and for W&B, and vector forms for a paper.
FORMATS: tuple[Literal["png", "pdf", "svg"], ...] = ("png", "pdf", "svg")

# How `--figure_format` is typed, and its default.
FigureFormat = str | list[str]

FIGURE_FORMAT = "png,pdf"

_Name = TypeVar("_Name", bound=str)


def chosen(
    option: str, requested: str | Sequence[str], known: Sequence[_Name], nothing: str | None = None
) -> list[_Name]:
    """Return the requested names: some, separated by commas, or all; `nothing` or an empty list is none, if allowed.

    Raises:
        UserError: If a name is unknown.
    """
    names = [name.strip() for name in requested.split(",")] if isinstance(requested, str) else list(requested)
    if names == ["all"]:
        return list(known)
    if nothing is not None and names in ([nothing], []):
        return []
    for name in names or [""]:
        if name not in known:
            words = ", ".join([*known, "all", *([nothing] if nothing else [])])
            near = did_you_mean(name, known)
            typed = flag(option.removeprefix("--"), name)
            raise UserError(f"{typed} is not one of {words}{near}; give one or more of these.")
    return [name for name in known if name in names]


def chosen_with_data(
    option: str, requested: str | Sequence[str], known: Mapping[_Name, str | None]
) -> dict[_Name, str | None]:  # fmt: skip
    """Return the requested names in the order of tables, each with its data, typed as NAME=DATA, or None.

    `known` has the name of the data for messages, or None if a name needs none. Unknown or repeated names and missing
    or superfluous data raise UserError.
    """
    parts = [part.strip() for part in requested.split(",")] if isinstance(requested, str) else list(requested)
    data_by_name: dict[str, str | None] = {}
    for part in parts or [""]:
        (name, equals, data), typed = part.partition("="), flag(option.removeprefix("--"), part)
        if name not in known:
            forms = ", ".join(
                known_name if what is None else f"{known_name}={what}" for known_name, what in known.items()
            )
            raise UserError(f"{typed} is not one of {forms}{did_you_mean(name, known)}; give some of these.")
        what = known[cast(Any, name)]
        if name in data_by_name:
            raise UserError(f"{typed}: {name} is there twice; name it once.")
        if what is None and equals:
            raise UserError(f"{typed}: {name} takes no data; give {name} alone.")
        if what is not None and not data:
            raise UserError(f"{typed} needs its data; give {name}={what}.")
        data_by_name[name] = data if equals else None
    return {name: data_by_name[name] for name in known if name in data_by_name}


def layer_numbers(layer: int | str | Sequence[int]) -> list[int] | None:
    """Return the requested layers, ascending, or None for all; -1 stays -1, because the model is not known here.

    Raises:
        UserError: If they are not written as layers.
    """
    parts = str(layer).split(",") if isinstance(layer, int | str) else [*map(str, layer)] or [""]
    try:
        return None if parts == ["all"] else sorted({number for part in parts for number in _numbers(part)})
    except ValueError:
        raise UserError(
            f"{layer_flag(layer)} is not a layer: expected a number, a list such as 0,3,6, a range such as 3-6, "
            "-1 for the last, or all."
        ) from None


def _numbers(part: str) -> Iterable[int]:
    """Return the numbers of a range such as 3-6, both ends included, or a single number."""
    if not (ends := re.fullmatch(r"(\d{1,4})-(\d{1,4})", part.strip())):
        return [int(part)]
    if not (numbers := range(int(ends[1]), int(ends[2]) + 1)):
        raise ValueError(part)
    return numbers


def layer_flag(layer: int | str | Sequence[int]) -> str:
    """Return the option `--layer` with its value, as the user has typed it."""
    return flag("layer", layer if isinstance(layer, int | str) else ",".join(map(str, layer)) or "[]")


def figure_formats(requested: str | Sequence[str]) -> list[str]:
    """Return the formats that `--figure_format` names; raise UserError for an unknown format."""
    return list(chosen("figure_format", requested, FORMATS))


class PythonOnly:
    """Type of an argument that a command takes from Python alone."""


def without_objects(hint: Any) -> Any:
    """Return an annotation for the command line: if it allows text, without all classes that are not built in.

    The parser would import a class that a text names, build an object of it, and list all classes in the help.
    """
    parts = get_args(hint)
    if get_origin(hint) not in (Union, UnionType) or str not in parts:
        return hint
    objects = [part for part in parts if isinstance(part, type) and part.__module__ != "builtins"]
    return Union[tuple(part for part in parts if part not in objects)] if objects else hint  # noqa: UP007


def expected(hint: Any) -> str:
    """Describe the values of a type in words."""
    kind = get_origin(hint) or hint
    if kind is Literal:
        return _either(map(str, get_args(hint)))
    if kind in (Union, UnionType):
        return _either(expected(part) for part in get_args(hint) if part is not NoneType)
    words = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "text, in quotes if need be",
        list: "a list such as [a, b]",
        dict: "names with values",
    }
    return words.get(kind, "another value")


def is_mapping(hint: Any) -> bool:
    """Return whether an option takes names with values."""
    return any((get_origin(part) or part) is dict for part in (hint, *get_args(hint)))


def admits_none(hint: Any) -> bool:
    """Return whether an option may be None."""
    return hint is Any or NoneType in get_args(hint)


def _either(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


Dtype = Literal["float32", "bfloat16", "float16"]

GroupBy = Literal["auto", "sentence", "document"]

FirstToken = Literal["include", "exclude"]

Layers = int | list[int] | str

# Types of options that take a name on the command line, and also an object in Python. The parser of arguments sees only
# the type of the name.
if TYPE_CHECKING:
    from transformers import PreTrainedModel

    Model: TypeAlias = str | PathLike[str] | PreTrainedModel
    Tokenizer: TypeAlias = Any
    Source: TypeAlias = str | PathLike[str] | list[str]
    # Results that were read or made stand for their folder.
    Folder: TypeAlias = str | PathLike[str]
    Folders: TypeAlias = Folder | Sequence[Folder]
    # Texts of finished runs.
    Moved: TypeAlias = str | PathLike[str] | Sequence[str | PathLike[str]]
else:
    Model = Source = Folder = str
    Folders = list[str]
    Moved = str | list[str]
    Tokenizer = PythonOnly

# The largest seed that all random number generators accept.
LAST_SEED = 2**63 - 1

_Value = TypeVar("_Value")

_Options = TypeVar("_Options", bound="Options")


@dataclass(frozen=True)
class Declaration:
    """Declaration of an option, as in `option`, with its help, its type for the command line and its default."""

    at_least: float | None = None
    at_most: float | None = None
    expected: str = ""
    choices: tuple[str, ...] = ()
    nothing: str | None = None
    help: str = ""
    hint: Any = None
    default: Any = None

    @property
    def is_group(self) -> bool:
        """Whether it is a group of options."""
        return isinstance(self.default, Options)

    @property
    def is_of_python(self) -> bool:
        """Whether only Python can give it."""
        return self.hint is PythonOnly


def option(
    default: _Value, *, at_least: float | None = None, at_most: float | None = None, expected: str = "",
    choices: Iterable[str] = (), nothing: str | None = None,
) -> _Value:  # fmt: skip
    """Declare the values of an option of a class of `Options`; its help is the string below it.

    An option that a class declares anew keeps what it leaves out, such as the range or the help, from the class that it
    inherits the option from.

    Args:
        default: Its default.
        at_least: Least value of a number.
        at_most: Largest value of a number.
        expected: Values that are expected, in words, in place of these two.
        choices: Names of which the option takes some, separated by commas, or all; they stand for `{choices}` in the
            help.
        nothing: The word for none of the names, if it may be given.
    """
    metadata = {"declaration": Declaration(at_least, at_most, expected, tuple(choices), nothing)}
    if isinstance(default, list):
        return cast(_Value, field(default_factory=default.copy, metadata=metadata))
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Options:
    """Options of a command, or a group of them that is a single argument, such as `--probe.l2`.

    Each option is a field with its type and its default, or `option`, and with its help as a string below it. A class
    inherits the options that commands share; those of its last base come first. Fields after `_: KW_ONLY` follow all
    others, and Python takes them by name alone.
    """

    def problems(self) -> list[str]:
        """Return the problems with how values go together; ranges and choices are declared."""
        return []

    def selected(self, name: str) -> list[Any]:
        """Return the names that an option with choices selects, in their order."""
        declaration = declared(type(self))[name]
        return list(chosen(name, getattr(self, name), declaration.choices, declaration.nothing))


# The declarations of options that commands share, by name; filled where they are declared.
SHARED: dict[str, Declaration] = {}


def declared(kind: type[Options]) -> Mapping[str, Declaration]:
    """Return the options of a class by their names, in the order of its arguments."""
    of_class: Any = kind  # whose objects, for a type checker, have another hash than the class
    return _declared(of_class)


@cache
def _declared(kind: type[Any]) -> Mapping[str, Declaration]:
    hints, declarations = get_type_hints(kind), _declarations(kind)
    return {
        part.name: replace(
            entry := declarations[part.name], hint=without_objects(hints[part.name]), default=_default(part),
            help=entry.help.replace("{choices}", ", ".join(entry.choices)),
        )
        for part in sorted(fields(kind), key=lambda part: bool(part.kw_only))
    }  # fmt: skip


def flat(kind: type[Options]) -> dict[str, Declaration]:
    """Return the options of the command line; those of groups have dotted names, in place of the groups."""
    options: dict[str, Declaration] = {}
    for name, entry in declared(kind).items():
        if entry.is_group:
            inner = declared(type(entry.default))
            options |= {f"{name}.{part}": declaration for part, declaration in inner.items()}
        elif not entry.is_of_python:
            options[name] = entry
    return options


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _declarations(kind: type[Options]) -> dict[str, Declaration]:
    """Return the declarations of a class by option; each class adds to those that it inherits, or that are shared."""
    declarations: dict[str, Declaration] = {}
    for part in reversed(kind.__mro__):
        known: Mapping[str, Field[Any]] = getattr(part, "__dataclass_fields__", {})
        for name in vars(part).get("__annotations__", {}):
            if name in known:
                declaration = known[name].metadata.get("declaration", Declaration())
                explicit = vars(declaration) | {"help": help_in(part.__module__).get((part.__name__, name), "")}
                shared = declarations.get(name) or SHARED.get(name, Declaration())
                stated = {key: value for key, value in explicit.items() if value not in ("", None, ())}
                declarations[name] = Declaration(**(vars(shared) | stated))
    return declarations


@cache
def help_in(module: str) -> dict[tuple[str, str], str]:
    """Return the strings below the fields of classes in a module's source, by class and field; none without source."""
    try:
        source = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError):
        return {}
    return {
        (kind.name, statement.target.id): " ".join(str(below.value.value).split())
        for kind in source.body if isinstance(kind, ast.ClassDef)
        for statement, below in pairwise(kind.body)
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
    }  # fmt: skip


def problems_of(options: Options, group: str = "", together: bool = True) -> Iterator[str]:
    """Yield all problems with options: values out of range, unknown names and, if `together`, what does not fit."""
    for name, entry in declared(type(options)).items():
        value = getattr(options, name)
        if isinstance(value, Options):
            yield from problems_of(value, f"{name}.", together)
        elif entry.choices or entry.hint == Layers:
            try:
                if entry.choices:
                    chosen(f"{group}{name}", value, entry.choices, entry.nothing)
                else:
                    layer_numbers(value)
            except UserError as error:
                yield str(error).rstrip(".")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            low, high = entry.at_least, entry.at_most
            if low is not None or high is not None:
                yield from out_of_range(f"{group}{name}", value, low, high, entry.expected)
    yield from options.problems() if together else []


# Limits of penalties and learning rates: beyond, their squares and sums over tokens are 0 or infinite in float32.
SMALLEST, LARGEST = 1e-30, 1e30

_POSITIVE = f"a number above 0 ({SMALLEST} to {LARGEST})"

# Arguments of Lightning's Trainer that concern how a probe is trained, and not where.
OF_TRAINING = ("max_epochs", "max_time", "enable_checkpointing", "detect_anomaly")


@dataclass(frozen=True)
class ProbeOptions(Options):
    """How the probe is trained."""

    l1: float = option(0.0, at_least=0, at_most=LARGEST)
    """Strength of the l1 penalty on the scaled weights."""
    l2: float | Literal["auto"] = option(
        "auto", at_least=SMALLEST, at_most=LARGEST,
        expected="a number above 0, without which the distance to the optimum has no bound "
        f"({SMALLEST} to {LARGEST})",
    )  # fmt: skip
    """Strength of the squared l2 penalty on the scaled weights, above 0; auto selects one value for all layers on
    validation sentences."""
    penalty_space: Literal["sd", "rms", "raw"] = "sd"
    """Scale that each neuron is divided by before its weights are penalised: its standard deviation (sd), its root mean
    square (rms), or 1 (raw)."""
    solver: Literal["lbfgs", "adam"] = "lbfgs"
    """Solver: lbfgs trains until the bound on the distance to the optimum is at most the tolerance; adam trains on
    mini-batches, as published probes do."""
    # In every layer tried, pairs of neurons whose contributions differ by more than 1% have the order of the optimum
    # once the true distance is at most 3e-6. The bound is then 4 to 50 times the true distance.
    tolerance: float = option(3e-6, at_least=SMALLEST, at_most=LARGEST, expected=_POSITIVE)
    """Bound on the distance to the optimum at which lbfgs stops, in nats."""
    learning_rate: float = option(1e-3, at_least=SMALLEST, at_most=LARGEST, expected=_POSITIVE)
    """Learning rate of adam."""
    batch_size: int = option(512, at_least=1)
    """Batch size of adam, in tokens."""
    patience: int = option(3, at_least=1)
    """Number of epochs without a lower validation cross-entropy after which adam stops training a layer."""
    bias: bool = False
    """Whether the probe has an intercept. If true, neurons are centred on their training means, and their contributions
    sum to the difference from the logit of the mean hidden state."""

    @property
    def needs_validation(self) -> bool:
        """Whether validation examples choose the penalty or stop adam."""
        return self.solver == "adam" or self.l2 == "auto"

    def problems(self) -> list[str]:
        """Return the problems with values that exclude each other."""
        problems = []
        with_bias = flag("probe.bias", True)
        if self.bias and self.solver == "adam":
            problems.append(
                f"{flag('probe.solver', 'adam')}: a probe with an intercept ({with_bias}) is trained by lbfgs; leave "
                "one of the two out"
            )
        if self.bias and self.penalty_space == "rms":
            problems.append(
                f"{flag('probe.penalty_space', 'rms')}: with {with_bias} neurons are centred, and their root mean "
                "square is their sd; leave one of the two out"
            )
        return problems

    def problems_without_bias(self) -> list[str]:
        """Return the problem with an intercept, for commands whose probes never have one."""
        problem = f"{flag('probe.bias', True)} does not apply: probes of this command have no intercept; leave it out"
        return [problem] * self.bias

    def problems_with_trainer(self, trainer: Mapping[str, Any]) -> list[str]:
        """Return the problems with arguments of Lightning's Trainer that conflict with the values."""
        if not (self.bias and trainer.get("enable_checkpointing")):
            return []
        return [
            f"{flag('trainer.enable_checkpointing')}: a checkpoint of a probe with {flag('probe.bias', True)} would be "
            "of centred neurons and a constant; leave one of the two out (`probe.safetensors` has weights and "
            "intercepts)"
        ]

    def problems_with_numbers(self, trainer: Mapping[str, Any], mdl: bool) -> list[str]:
        """Return the problems with options that do not apply where numbers are predicted, in closed form."""
        default, why = ProbeOptions(), "the task predicts numbers, by a ridge probe in closed form"
        names = ("l1", "solver", "tolerance", "learning_rate", "batch_size", "patience")
        inapplicable = [
            flag(f"probe.{name}", getattr(self, name))
            for name in names
            if getattr(self, name) != getattr(default, name)
        ]
        inapplicable += [flag(f"trainer.{name}", value) for name, value in trainer.items() if name in OF_TRAINING]
        inapplicable += [flag("mdl")] * mdl
        return [f"{option} does not apply: {why}; leave it out" for option in inapplicable]


# Most characters of a tag that W&B accepts.
LONGEST_TAG = 64


@dataclass(frozen=True)
class WandbOptions(Options):
    """Where and how a run is logged to Weights & Biases."""

    mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    """Mode: `online`, `offline`, `disabled` or `auto`, which uses `$WANDB_MODE` if set, otherwise online with an API
    key and offline without; `auto` always respects `wandb offline` and `wandb disabled`."""
    project: str | None = None
    """Project of the run; default: `$WANDB_PROJECT`, otherwise `probing`."""
    entity: str | None = None
    """User or team that owns the project; default: `$WANDB_ENTITY`, otherwise your W&B default entity."""
    group: str | None = None
    """Name that groups runs, such as the name of their sweep."""
    tags: list[str] | str = option([])
    """Tags of the run, such as `a,b`, of at most 64 characters each."""
    name: str | None = None
    """Name of the run in W&B; default: `$WANDB_NAME`, otherwise the name of its folder. If a command creates several
    runs, this names the run with their results."""
    notes: str | None = None
    """Notes shown with the run."""
    job_type: str | None = None
    """Type of the run, which distinguishes the runs of a group."""

    def __post_init__(self) -> None:
        """Split tags that were typed as text."""
        if isinstance(self.tags, str):
            object.__setattr__(self, "tags", [tag for tag in map(str.strip, self.tags.split(",")) if tag])

    def problems(self) -> list[str]:
        """Return the problems with tags that W&B would refuse once the run starts."""
        return [
            f"{flag('wandb.tags')}: {tag!r} has {len(tag)} characters; expected tags of 1 to {LONGEST_TAG}"
            for tag in self.tags
            if not 1 <= len(tag) <= LONGEST_TAG
        ]


def as_options(kind: type[_Options], value: _Options | Mapping[str, Any], name: str) -> _Options:
    """Return the options as a dataclass, also from a mapping; raise UserError for an unknown key."""
    if not isinstance(value, Mapping):
        return value
    known = [option.name for option in fields(kind)]
    if unknown := [key for key in value if key not in known]:
        raise UserError(f"`{name}.{unknown[0]}` is not an option; the options of `{name}` are {', '.join(known)}.")
    return kind(**value)


def configuration(options: Options) -> dict[str, Any]:
    """Return the resolved options of a run as plain values for `config.yaml` and W&B; see `plain`."""
    return plain({name: getattr(options, name) for name in declared(type(options))})


def plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as plain values for YAML and W&B, without the run's name and the tokenizer."""
    values = {k: asdict(v) if isinstance(v, Options) else v for k, v in options.items()}
    mappings = {k: dict(values[k] or {}) for k in ("trainer", "task_args") if k in values}
    return {k: v for k, v in values.items() if k not in ("name", "tokenizer")} | mappings


def options_of(command: Callable[..., Any]) -> type[Options]:
    """Return the class of the options of a command."""
    class_itself: Any = command
    kind: type[Options] = getattr(command, "options", class_itself)
    return kind


def defaults(command: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of a command's options as plain values, groups of options as mappings."""
    return plain({name: entry.default for name, entry in declared(options_of(command)).items()})


# In Python, a group of options may be a mapping; the command line sees only the group.
if TYPE_CHECKING:
    Probe: TypeAlias = ProbeOptions | Mapping[str, Any]
    Wandb: TypeAlias = WandbOptions | Mapping[str, Any]
else:
    Probe, Wandb = ProbeOptions, WandbOptions


@dataclass(frozen=True)
class ModelOptions(Options):
    """Options of the model that is read."""

    model: Model = "minilm"
    """Model to read: an alias (minilm, bert, roberta, distilbert, ...), a hub id, or a local folder."""
    layer: Layers = "all"
    """Layers to read: one (6), several (0,3,6 or 3-6), the last (-1) or all; layer 0, the embedding output, exists only
    in the residual stream."""
    revision: str | None = None
    """Branch, tag or commit of the model on the hub."""
    random_weights: bool = False
    """Use a randomly initialised model: the same architecture, with weights drawn with --seed."""
    _: KW_ONLY
    tokenizer: Tokenizer = None
    """Tokenizer of a model that is passed as an object; only from Python."""


@dataclass(frozen=True)
class StatesOptions(ModelOptions):
    """Options of a model whose hidden states are read."""

    dtype: Dtype = "float32"
    """Precision of the forward pass and of the cached activations."""


@dataclass(frozen=True)
class CorpusOptions(Options):
    """Options of the text that is read."""

    corpus: Source = "builtin"
    """Text to read: builtin, a file (.txt with one sentence per line, .conllu, .conll, .tsv, .csv, .jsonl; also as
    .gz), hf:NAME?config=C&split=S&column=T, or - for standard input. FILE?word=2&label=4 names columns."""
    test_corpus: Source | None = None
    """Corpus to test on, given like --corpus; the test split of --corpus is then added to the training split."""


@dataclass(frozen=True, kw_only=True)
class BatchOptions(Options):
    """Options of forward passes."""

    max_length: int | None = option(None, at_least=1)
    """Maximum length of a tokenised sentence, including special tokens; longer sentences are truncated. Default: the
    model's limit."""
    batch_tokens: int | None = option(None, at_least=1, at_most=LAST_SEED)
    """Maximum number of tokens in one forward pass, including padding; an existing cache entry keeps its original
    value."""


@dataclass(frozen=True, kw_only=True)
class RunOptions(Options):
    """Options of a run: its seed, its folder, and where it is computed."""

    seed: int = option(0, at_least=0, at_most=LAST_SEED)
    """Seed of every random draw."""
    runs: str = "runs"
    """Folder in which the run is saved."""
    name: str | None = None
    """Name of this run; by default it has the time in it."""
    cache: str | None = None
    """Folder of cached activations; default: $PROBING_CACHE or RUNS/cache."""
    quiet: bool = False
    """Print result lines, summary sentences and warnings, but no tables or progress."""
    verbose: bool = False
    """Print all tables and sentences, not only the answer with the first two tables."""
    trainer: dict[str, Any] | None = None
    """Arguments of Lightning's Trainer that apply to a forward pass, such as --trainer.devices 2."""


@dataclass(frozen=True, kw_only=True)
class OneProcessOptions(RunOptions):
    """Options of a run in one process."""

    trainer: dict[str, Any] | None = None
    """Arguments of Lightning's Trainer; only --trainer.accelerator and --trainer.logger are accepted."""


@dataclass(frozen=True, kw_only=True)
class ProbedOptions(Options):
    """Options of the probes that a command trains."""

    probe: Probe = ProbeOptions()
    """How the probe is trained."""

    @property
    def probe_options(self) -> ProbeOptions:
        """The options of the probe, as an object."""
        return as_options(ProbeOptions, self.probe, "probe")


@dataclass(frozen=True, kw_only=True)
class OutputOptions(Options):
    """Options of where results go, beside the folder of the run."""

    wandb: Wandb = WandbOptions()
    """Where and how to track the run in Weights & Biases."""
    figure_format: FigureFormat = option(FIGURE_FORMAT, choices=FORMATS)
    """Formats of the figures: all, or some of png (for the screen and W&B), pdf and svg (for a paper, 3.3 or 6.8 inches
    wide)."""


SpecialTokens = Literal["exclude", "include"]

Definition = Literal["argmin_share", "argmax_share", "mean_profile", "layer_norm", "variance"]


@dataclass(frozen=True, kw_only=True)
class OutlierOptions(Options):
    """Options of the outliers of layers."""

    fit_corpus: Source | None = None
    """Corpus, given like --corpus, on which outliers are identified; default: --corpus."""
    special_tokens: SpecialTokens = "exclude"
    """Whether special tokens are included in the measurements."""
    definition: Definition = "mean_profile"
    """Definition of the outliers."""

    def problems(self) -> list[str]:
        """Return the problem with standard input, which is read once."""
        is_read_twice = self.fit_corpus == getattr(self, "corpus", None) == "-"
        why = "standard input can be read only once; give one of the two as a file"
        return [f"{flag('fit_corpus', '-')}: {why}"] if is_read_twice else []


@dataclass(frozen=True, kw_only=True)
class FewOptions(Options):
    """Options that some commands declare by their names and defaults alone."""

    group_by: GroupBy = "auto"
    """Unit that the split never divides and that intervals treat as independent: sentence, document or auto, which is
    document if the corpus marks at least 60 documents (`# newdoc` in CoNLL-U, empty lines in .txt)."""
    first_token: FirstToken = "include"
    """Whether measurements include or exclude the first token of each sequence; the model always reads it. In decoders
    the first token often attracts much attention and has outliers."""
    components: int | None = option(None, at_least=1)
    """Number of directions that whitening keeps; default: all that vary."""


# The declarations of shared options, for classes that declare one of them by its name and default alone.
for _group in (
    StatesOptions, CorpusOptions, BatchOptions, RunOptions, ProbedOptions, OutputOptions, OutlierOptions, FewOptions,
):  # fmt: skip
    SHARED.update(_declarations(_group))

# With so many, the first of all has the p-value .05.
LEAST_ROTATIONS = 19


def rotation_problems(rotations: int | None) -> list[str]:
    """Return the problems with a number of rotations."""
    if not rotations or rotations >= LEAST_ROTATIONS:
        return []
    few = f"expected 0, or at least {LEAST_ROTATIONS}, with fewer of which no p-value reaches .05"
    return [f"{flag('rotations', rotations)}: {few}"]


_MEASURED = "what is measured"

# Groups of options in the help of a command, in their order; an option that no group names says what is measured.
HELP_GROUPS = {
    "the options that matter most": (
        "folder", "folders", "run", "file", "paper", "table", "checkpoints", "model", "layer", "corpus", "task",
        "evidence", "name",
    ),
    "what is read": (
        "revision", "random_weights", "dtype", "site", "test_corpus", "fit_corpus", "group_by", "first_token",
        "max_length", "batch_tokens", "pairs", "test_pairs", "documents",
    ),
    _MEASURED: (),
    "how much evidence": (
        "controls", "replicates", "rotations", "mdl", "draws", "null_draws", "shuffles", "seeds", "orders", "retrain",
    ),
    "how it is computed": ("seed", "trainer", "cache"),
    "where results go": ("runs", "output", "title", "model_name", "only", "figure_format", "verbose", "quiet"),
    "help, and files of options": ("help", "config", "print_config"),
}  # fmt: skip


def help_group(option: str) -> str:
    """Return the group of an option in the help."""
    return next((title for title, options in HELP_GROUPS.items() if option in options), _MEASURED)


# Width of a line of a docstring.
WIDTH = 116


def with_args(docstring: str, kind: type[Options]) -> str:
    """Return a docstring without indentation, in which an `Args:` section describes each option of a class.

    Raises:
        UserError: If Python has dropped all docstrings (-OO).
    """
    if sys.flags.optimize > 1:
        raise UserError(
            "python -OO, or PYTHONOPTIMIZE=2, leaves out the docstrings, of which the help of commands is made; run it "
            "without, or with -O."
        )
    head, returns, rest = inspect.cleandoc(docstring).partition("\n\nReturns:\n")
    entries = [
        fill(f"{name}: {entry.help}", WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8)
        for name, entry in declared(kind).items()
    ]
    return "\n".join([f"{head}\n\nArgs:", *entries]) + returns + rest
