"""Parser of a command's arguments from `--config` files and the command line; it reports all problems at once."""

from __future__ import annotations

import os
import re
from argparse import SUPPRESS, _StoreAction
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import signature
from itertools import groupby
from os.path import isfile
from pathlib import Path
from textwrap import fill
from typing import Any, NoReturn, get_args, get_type_hints

from jsonargparse import ActionConfigFile, ArgumentParser, Namespace, get_loader

from probing.cli.options import (
    HELP_GROUPS,
    Options,
    admits_none,
    declared,
    expected,
    flat,
    help_group,
    is_mapping,
    options_of,
    problems_of,
    without_objects,
)
from probing.errors import UserError, as_clause, did_you_mean, refuse
from probing.runtime import started_as
from probing.runtime.files import MOST_LEVELS, YAML_DOCUMENT, check_yaml, read_text
from probing.runtime.terminal import columns

# --------------------------------------------------------------------------------------------------------------------
# Files of options in YAML, and values that are typed as YAML.
# --------------------------------------------------------------------------------------------------------------------

# Most values in a configuration file; a file that refers to itself would have infinitely many.
MAX_VALUES = 10_000


def read_yaml(path: str, flag_text: str = "--config") -> Mapping[Any, Any]:
    """Read a YAML file of options, restricted to safe types.

    Raises:
        UserError: If the file cannot be read, is not YAML, repeats a key, or is not a mapping.
    """
    import yaml

    if not path or "\0" in path:
        raise UserError(f"`{flag_text}`: expected the path of a YAML file")
    try:
        text = read_text(Path(path), most=YAML_DOCUMENT)
        check_yaml(text, MAX_VALUES)
        options, root = get_loader("yaml")(text), yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        raise UserError(f"`{flag_text} {path}` cannot be read ({as_clause(error)})") from None
    except UnicodeDecodeError:
        raise UserError(f"`{flag_text} {path}` is not YAML (it is not UTF-8)") from None
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise UserError(f"`{flag_text} {path}` is not YAML that can be read ({line}{error.problem or error})") from None
    except Exception as error:  # PyYAML's own tags, such as !!timestamp, raise various types
        raise UserError(f"`{flag_text} {path}` is not YAML that can be read ({as_clause(error)})") from None
    if not isinstance(options, Mapping):
        raise UserError(f"`{flag_text} {path}` holds no options: expected lines such as `layer: 6`")
    if twice := _repeated(root):
        raise UserError(f"`{flag_text} {path}` has more than one `{twice[0]}`")
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
    """Return why a text is too large to be parsed as YAML; empty if it is not."""
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
    """Return options as YAML that `read_yaml` reads as the same values, in order; in ASCII unless `unicode`."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Quotes text that the reader would take for something else, such as `1e-4`."""

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = None if as_yaml(value) == value else "'"
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return yaml.dump(dict(options), Dumper=Dumper, sort_keys=False, allow_unicode=unicode, width=10_000)


def _repeated(root: Any) -> list[str]:
    """Return the keys that occur more than once; YAML would silently take the last occurrence."""
    import yaml

    mappings = [node for node in (root, *(value for _, value in root.value)) if isinstance(node, yaml.MappingNode)]
    keys = [[str(key.value) for key, _ in mapping.value] for mapping in mappings]
    return [key for group in keys for key in group if group.count(key) > 1]


def all_values(value: Any) -> Iterator[Any]:
    """Yield all values and keys in nested mappings and lists, at most `MAX_VALUES` + 1."""
    waiting, n = [value], 0
    while waiting and n <= MAX_VALUES:
        value, n = waiting.pop(), n + 1
        if isinstance(value, Mapping):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set):
            waiting += value
        yield value


# --------------------------------------------------------------------------------------------------------------------
# Options and commands as other tools call them, and what they are here.
# --------------------------------------------------------------------------------------------------------------------

# What other tools call an option, and the options that it may be here, whole or by their last word.
ELSEWHERE = {
    "device": "accelerator", "gpu": "accelerator", "gpus": "devices,accelerator", "n_gpus": "devices,accelerator",
    "epochs": "max_epochs", "n_epochs": "epochs,max_epochs", "num_epochs": "epochs,max_epochs",
    "num_train_epochs": "epochs,max_epochs", "max_steps": "steps", "n_steps": "steps",
    "lr": "learning_rate", "weight_decay": "l2", "regularization": "l2", "warmup": "warm_up", "warmup_ratio": "warm_up",
    "max_grad_norm": "clip,gradient_clip_val", "gradient_accumulation_steps": "accumulate_grad_batches",
    "batch_size": "batch_tokens", "per_device_train_batch_size": "batch_size,batch_tokens",
    "max_seq_length": "max_length", "truncation": "max_length", "fp16": "dtype,precision", "bf16": "dtype,precision",
    "precision": "dtype", "output_dir": "runs", "output": "runs", "out": "runs", "run_name": "name",
    "cache_dir": "cache", "run": "folder,folders", "head": "units,site,n_heads", "heads": "units,site,n_heads",
    "model_name_or_path": "model", "model_name": "model", "pretrained": "model", "checkpoint": "model,checkpoints",
    "dataset": "corpus", "data": "corpus", "text": "corpus", "train_file": "corpus", "input": "corpus",
    "test_file": "test_corpus", "validation_file": "test_corpus", "labels": "task", "random_seed": "seed",
    "n_bootstrap": "replicates", "verbosity": "verbose", "silent": "quiet", "report_to": "wandb.mode",
}  # fmt: skip
# Former names of options, for the sentence that a person gets who types one.
OPTIONS_RENAMED = {"given": "control_for", "from_run": "run", "kind": "kinds"}
# Options of a command that are another command now, or an option of one.
OPTIONS_MOVED = {
    ("geometry", "position"): "position", ("geometry", "extremes"): "extremes",
    ("geometry", "interventions"): "ablate --neurons outliers",
    ("geometry", "from_run"): "ablate --neurons ranked --run", ("geometry", "kind"): "ablate --kinds",
    **{("geometry", name): f"ablate --{name}" for name in ("neurons", "pairs", "at", "readouts", "tokens", "retrain")},
}  # fmt: skip
# What these are for one command.
ELSEWHERE_OF = {"attention": {"head": "layer", "heads": "layer"}}
# What other tools call a command.
COMMANDS_ELSEWHERE = {
    "train": "fit,pretrain,finetune", "probe": "fit", "tune": "finetune", "fine-tune": "finetune",
    "prune": "ablate", "ranking": "rank", "embed": "extract", "plot": "report", "show": "report",
    "ls": "cache ls", "clean": "cache prune",
}  # fmt: skip

# Arguments of the Trainer, by command, that may be meant; a command that runs in one process takes the first alone.
_PROCESSES = ("accelerator", "devices", "num_nodes", "strategy")
_TRAINING = (*_PROCESSES, "precision", "accumulate_grad_batches", "gradient_clip_val")
_OF_TRAINER: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("fit", "hierarchy"), (*_PROCESSES, "max_epochs")),
    **dict.fromkeys(
        ("geometry", "position", "extremes", "attention", "ablate", "wic", "sts", "position-bias", "extract"),
        _PROCESSES,
    ),
    **dict.fromkeys(("pretrain", "finetune"), _TRAINING),
}


def suggest(name: str, options: Iterable[str], owner: str, before: str = "") -> str:
    """Return a suggestion in parentheses for an unknown option: the option of another tool, or a similar spelling.

    It names only options of the command; the last word of a group's option, such as `wandb.project`, matches too.
    """
    if moved := OPTIONS_MOVED.get((owner, name)):
        return f" (now the command `{moved}`)"
    known = [*options]
    of_trainer = _OF_TRAINER.get(owner.replace("_", "-"), _PROCESSES[:1])  # from Python, the owner is a function
    known += [f"trainer.{trainer_option}" for trainer_option in of_trainer] if "trainer" in known else []
    words = ELSEWHERE_OF.get(owner, {}).get(name) or f"{name},{ELSEWHERE.get(name) or OPTIONS_RENAMED.get(name, '')}"
    matches = [option for word in words.split(",") for option in known if word in (option, option.rpartition(".")[2])]
    return did_you_mean(name, known, before, {name: ",".join(dict.fromkeys(matches))})


# The option that asks for the options themselves; `probing.cli.commandline` heeds it.
PRINT_CONFIG = "--print_config"

# Options that take the words without hyphens: the first two take many words, the others take a single one.
WORDS, WORD = ("folders", "checkpoints"), ("folder", "file", "paper", "table")


class Parser(ArgumentParser):
    """Parser that accepts yes/no options without a value and raises problems with arguments as a UserError."""

    def add_options(self, kind: type) -> None:
        """Add the options of a class: those of `Options` as declared, of another class the arguments of its objects."""
        if not issubclass(kind, Options):
            self.add_class_arguments(kind)
            return
        groups = {
            name: self.add_argument_group(entry.help.rstrip("."))
            for name, entry in declared(kind).items()
            if entry.is_group
        }
        for name, entry in flat(kind).items():
            group = groups.get(name.partition(".")[0], self)
            may_stand_alone: dict[str, Any] = {"nargs": "?", "const": True} if entry.hint is bool else {}
            group.add_argument(f"--{name}", type=entry.hint, default=entry.default, help=entry.help, **may_stand_alone)

    def error(self, message: str, error: Exception | None = None) -> NoReturn:
        """Raise the message as a UserError."""
        raise UserError(message)


def parse(name: str, command: Callable[..., Any], args: Sequence[str]) -> dict[str, Any]:
    """Return a command's options with their values, from `--config` files and the command line.

    Raises:
        UserError: If files cannot be read, options are unknown, or values have the wrong type; it names all problems.
    """
    kind: Any = options_of(command)
    parser, known = _parser_of_command(f"{started_as()} {name}", kind), option_types(kind)
    if {"-h", "--help"} & set(args):
        _group_help(parser, kind)
        parser.description = (command.__doc__ or "").partition("\n")[0]
        parser.usage = fill(parser.usage or "", columns() - 7, subsequent_indent=" " * 7)
        parser.parse_args(["--help"])
    collector, option_pairs = OptionCollector(parser, kind, name), list(_option_pairs(args))
    for option, value in option_pairs:
        if option == "--config":
            collector.take_file(value or "")
    of_groups = [(option, value) for option, value in option_pairs if collector.is_file_of_group(option, value)]
    for option, value in of_groups:
        collector.take_file(value or "", _name(option))
    option_pairs = [pair for pair in option_pairs if pair not in of_groups]
    words = [option for option, _ in option_pairs if not option.startswith("-")]
    word_option = next((option for option in WORD if option in known), None)
    if len(words) > 1 and word_option:
        raise UserError(f"`{name}` takes one {word_option}, and {len(words)} are given: {', '.join(words)}.")
    many = next((option for option in WORDS if option in known), None)
    if words and word_option:
        collector.take_mapping({word_option: words[0]}, COMMAND_LINE)
    elif words and many:
        # A shell expands the pattern in `--checkpoints DIR/*` to many words, and only the first of them follows the
        # option.
        first = [pair for pair in option_pairs if with_underscores(pair[0]) == f"--{many}"]
        collector.take_mapping({many: [*(value for _, value in first if value), *words]}, COMMAND_LINE)
        option_pairs = [pair for pair in option_pairs if pair not in first]
    if word_option or many:
        option_pairs = [(option, value) for option, value in option_pairs if option not in words]
    collector.take_arguments([(option, value) for option, value in option_pairs if option != "--config"])
    return {key: value for key, value in collector.keywords().items() if key not in ("config", "print_config")}


def _group_help(parser: Parser, kind: type[Options]) -> None:
    """Sort the options of a help into `HELP_GROUPS`, most important first; options of a dataclass keep their groups."""
    names = {name for name, entry in declared(kind).items() if not entry.is_group} | {"help", "config", "print_config"}
    inner = [group for group in parser._action_groups if any("." in action.dest for action in group._group_actions)]
    parser._action_groups = []
    for title, order in HELP_GROUPS.items():
        actions = [action for action in parser._actions if action.dest in names and help_group(action.dest) == title]
        parser.add_argument_group(title)._group_actions.extend(
            sorted(actions, key=lambda action, order=order: order.index(action.dest) if action.dest in order else 0)  # type: ignore[misc]
        )
    for group in inner:
        name = group._group_actions[0].dest.partition(".")[0]
        file = _StoreAction([f"--{name}"], name, default=SUPPRESS, metavar="CONFIG")
        file.help = f"YAML file of the options that begin with --{name}; options given individually override it."
        group._group_actions.insert(0, file)
        group.title = fill(group.title or "", columns() - 2)  # argparse breaks all but the titles
    parser._action_groups.extend(inner)


def checked(kind: type, options: Mapping[str, Any], owner: str, source: OptionSource) -> dict[str, Any]:
    """Return the given options of a class, converted, with defaults for all others.

    Raises:
        UserError: If options are unknown or values have the wrong type; it names all problems.
    """
    collector = OptionCollector(_parser_of(kind), kind, owner)
    collector.take_mapping(options, source)
    return collector.keywords()


@cache
def _parser_of_command(prog: str, kind: type[Any]) -> Parser:
    parser = Parser(prog=prog, allow_abbrev=False, print_config=None)
    parser.add_argument(
        "--config", action=ActionConfigFile, help="YAML file of options; the command line overrides it."
    )
    parser.add_argument(
        PRINT_CONFIG, nargs="?", metavar="=comments", default=SUPPRESS,
        help="Print all options with their values in the format of --config, and exit; "
        f"{PRINT_CONFIG}=comments also describes each.",
    )  # fmt: skip
    parser.add_options(kind)
    known = option_types(kind)
    words = [f"[{word.upper()}]" for word in WORD if word in known]
    words += [f"[{word.upper()} ...]" for word in WORDS if word in known]
    parser.usage = " ".join([prog, *words, "[OPTIONS]"])
    for action in parser._actions:
        # Hide `--OPTION+`, which appends to a list of a file, from the help; it remains possible.
        action.option_strings = [option for option in action.option_strings if not option.endswith("+")]
    return parser


@cache
def _parser_of(kind: type) -> Parser:
    """Return a parser of a class's options, cached because making it is half of the work of a check."""
    parser = Parser()
    parser.add_options(kind)
    return parser


def option_types(command: Callable[..., Any]) -> dict[str, Any]:
    """Return the type of each option of the command line, of a command or of a class; groups give dotted names."""
    kind = options_of(command)
    if issubclass(kind, Options):
        return {name: entry.hint for name, entry in flat(kind).items()}
    has_init = "__init__" in vars(kind) and "__dataclass_fields__" not in vars(kind)
    hints = get_type_hints(vars(kind)["__init__"] if has_init else kind)
    return {name: without_objects(hints.get(name, Any)) for name in signature(kind).parameters}


def as_mapping(words: Sequence[str]) -> dict[str, Any]:
    """Return command-line words, such as `--layer` and `6`, as a mapping; an option without a value is true."""
    pairs = ((_name(option), value) for option, value in _option_pairs(words))
    return {name: True if value is None else as_yaml(value) for name, value in pairs}


@dataclass(frozen=True)
class OptionSource:
    """Source of options, such as the command line or a file, with the spelling of options in messages."""

    before: str = "--"
    between: str = " "
    after: str = ""

    def name(self, name: str) -> str:
        """Return an option's name as the user spelled it."""
        return f"`{self.before}{name}`{self.after}"

    def value(self, name: str, value: Any) -> str:
        """Return an option with its value as the user spelled it; a long value is cut."""
        text = str(value) if value is not None else {": ": "null", "=": "None"}.get(self.between, "")
        text = text if len(text) <= 60 else f"{text[:60]}..."
        text = f'"{text}"' if self.between == "=" and isinstance(value, str) else text
        return f"`{self.before}{name}{self.between}{text}`".replace(" `", "`") + self.after


COMMAND_LINE = OptionSource()
# A call of a command's function.
PYTHON = OptionSource("", "=")


# Names of options with their values.
Pairs = Sequence[tuple[str, Any]]


class OptionCollector:
    """Collector of the options of `owner`, separately, so that all problems are reported."""

    def __init__(self, parser: ArgumentParser, kind: type, owner: str) -> None:
        self._parser, self._types, self._owner, self._kind = parser, option_types(kind), owner, kind
        # Groups of options, which have no value of their own.
        self._groups = {name.rsplit(".", 1)[0] for name in self._types if "." in name}
        # Options that are mappings with arbitrary names, such as Lightning's arguments. Their content is kept from the
        # parser, which would import any value that looks like the path of a class.
        self._mappings: dict[str, dict[str, Any]] = {}
        self._problems: list[str] = []
        self._namespace: Namespace | None = None

    def keywords(self) -> dict[str, Any]:
        """Return all arguments with their values; raise UserError if there were problems."""
        parsed = vars(self._parser.parse_args([], namespace=self._namespace))
        groups = {name: type(declared(self._kind)[name].default)(**vars(parsed[name])) for name in self._groups}
        keywords = {**parsed, **groups, **self._mappings}
        if self._problems and issubclass(self._kind, Options):
            # The others may be out of range. What does not go together may be due to one that is wrong.
            others = self._kind(**{name: value for name, value in keywords.items() if name in declared(self._kind)})
            self._problems += problems_of(others, together=False)
        refuse(self._problems)
        return keywords

    def take_arguments(self, option_pairs: Sequence[tuple[str, str | None]]) -> None:
        """Take options from the command line, such as `--seed` and `3`, in order."""
        # An option that takes other values beside yes and no may also stand by itself.
        option_pairs = [
            (name, "true" if value is None and self._may_be_yes(name) else value) for name, value in option_pairs
        ]
        for is_plain, group in groupby(option_pairs, lambda pair: self._is_plain(pair[0])):
            if is_plain:
                self._take_all([(_name(option), value) for option, value in group], COMMAND_LINE, self._parse_words)
            else:
                for option, value in group:
                    self._take_other(option, value)

    def _may_be_yes(self, option: str) -> bool:
        return option.startswith("--") and bool in get_args(self._types.get(_name(option)))

    def _is_plain(self, option: str) -> bool:
        """Return whether the parser takes an option as written on the command line, if its value is right."""
        name = _name(option).removesuffix("+")
        return option.startswith("--") and name in self._types and not is_mapping(self._types[name])

    def _take_other(self, option: str, value: str | None) -> None:
        """Take a mapping or a group of options, which are typed as YAML; note what is no option."""
        name = _name(option)
        if not re.match("--[A-Za-z]", option):
            problem = f"`{option}` is not an option: options begin with two hyphens, and lists are written 0,3,6"
            self._problems.append(problem)
        elif name in self._groups or is_mapping(self._types.get(name.split(".")[0])):
            self.take_mapping({name: None if value is None else as_yaml(value)}, COMMAND_LINE)
        else:
            self._is_known(name.removesuffix("+"), COMMAND_LINE)

    def is_file_of_group(self, option: str, value: str | None) -> bool:
        """Return whether an option from the command line, such as `--probe FILE.yaml`, names the file of a group."""
        name = _name(option)
        return name in self._groups and bool(value) and (str(value).endswith((".yaml", ".yml")) or isfile(str(value)))

    def take_file(self, path: str, group: str = "") -> None:
        """Take all options of a YAML file; a group's file names options inside the group."""
        try:
            options = read_yaml(path, f"--{group or 'config'}")
        except UserError as error:
            self._problems.append(str(error))
        else:
            self.take_mapping({group: options} if group else options, OptionSource("", ": ", f" in {path}"))

    def take_mapping(self, options: Mapping[Any, Any], source: OptionSource) -> None:
        """Take options with parsed values; options of a group are in a mapping or have dotted names."""
        known = {name: value for name, value in self._flat(options, source) if self._is_known(name, source)}
        self._take_all([*known.items()], source, self._parse_values)

    def _parse_words(self, pairs: Pairs) -> Namespace:
        words = [f"--{name}" if value is None else f"--{name}={value}" for name, value in pairs]
        return self._parser.parse_args(words, self._namespace)

    def _parse_values(self, pairs: Pairs) -> Namespace:
        return self._parser.parse_object(_nested(dict(pairs)), self._namespace)

    def _take_all(self, pairs: Pairs, source: OptionSource, parse: Callable[[Pairs], Namespace]) -> None:
        """Take options in a single pass over the parser's arguments; if any is wrong, take each by itself."""
        try:
            if not any(self._is_missing(name, value, source) for name, value in pairs):
                self._namespace = parse(pairs)
                return
        except _WRONG:
            pass
        for name, value in pairs:  # to name those that are wrong
            self._take(name, value, source, parse)

    def _flat(self, options: Mapping[Any, Any], source: OptionSource) -> Iterator[tuple[str, Any]]:
        for name, value in ((str(key), value) for key, value in options.items()):
            top, _, inner = name.partition(".")
            if is_mapping(hint := self._types.get(top)):
                content = {inner: value} if inner else value
                if problem := unwritable(content):
                    self._problems.append(f"{source.value(name, value)} {problem}")
                elif isinstance(content, Mapping):
                    self._mappings.setdefault(top, {}).update({str(key): part for key, part in content.items()})
                elif not (value is None and source is not COMMAND_LINE and admits_none(hint)):
                    self._problems.append(f"{source.value(name, value)}: expected {expected(hint)}")
            elif name not in self._groups:
                yield name, value
            elif isinstance(value, Mapping):
                yield from ((f"{name}.{key}", part) for key, part in value.items())
            else:
                names = [known for known in self._types if known.startswith(f"{name}.")]
                hint = ""
                if source is COMMAND_LINE:
                    hint = f"; or `--{name} FILE.yaml`"
                elif source is PYTHON:
                    hint = f", as in {name}={{{names[0].partition('.')[2]!r}: ...}}"
                self._problems.append(f"{source.value(name, value)}: expected some of {', '.join(names)}{hint}")

    def _is_known(self, name: str, source: OptionSource) -> bool:
        if name in self._types:
            return True
        if moved := OPTIONS_MOVED.get((self._owner, name)):
            self._problems.append(f"{source.name(name)} is now the command `{moved}`")
            return False
        if (new := OPTIONS_RENAMED.get(name, "")) in self._types:
            self._problems.append(f"{source.name(name)} is now {source.name(new)}")
            return False
        few = f", which has {', '.join(self._types)}" if len(self._types) < 10 else ""
        near = suggest(name, self._types, self._owner, source.before)
        self._problems.append(f"{source.name(name)} is not an option of {self._owner}{near or few}")
        return False

    def _take(self, name: str, value: Any, source: OptionSource, parse: Callable[[Pairs], Namespace]) -> None:
        if value == "":
            self._problems.append(f"{source.value(name, value)} is empty: give it a value or leave it out")
            return
        if problem := unwritable(value):
            self._problems.append(f"{source.value(name, value)} {problem}")
            return
        try:
            if self._is_missing(name, value, source):
                raise ValueError(value)
            self._namespace = parse([(name, value)])
        except _WRONG:
            hint = self._types[name.removesuffix("+")]
            self._problems.append(f"{source.value(name, value)}: expected {expected(hint)}")

    def _is_missing(self, name: str, value: Any, source: OptionSource) -> bool:
        """Return whether the parser would treat a value as absent, or the value cannot be part of files or names."""
        if value is None:
            return source is not COMMAND_LINE and not admits_none(self._types[name.removesuffix("+")])
        return value == "" or "\0" in str(value) or bool(unwritable(value))


def unwritable(value: Any) -> str:
    """Return why a value's text cannot be read, written or part of a file name; an empty string if it can.

    Bytes that are no text of the locale (lone surrogates in Python) are allowed in names of files.
    """
    for text in filter(lambda part: isinstance(part, str), all_values(value)):
        if problem := oversized(text):
            return problem
        try:
            os.fsencode(text)
        except UnicodeEncodeError as error:
            letter = text[error.start]
            if "\ud800" <= letter <= "\udfff":
                return f"has one half of a character, a lone surrogate ({letter!a}): write the whole character"
            return f"has {letter}, which names of files lack under this locale: set PYTHONUTF8=1 or LC_ALL=C.UTF-8"
    return ""


# What the parser raises for a value of the wrong type.
_WRONG = (UserError, ValueError, TypeError, LookupError)


def _nested(options: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in options.items():
        *groups, last = name.split(".")
        inner = nested
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[last] = value
    return nested


def with_underscores(arg: str) -> str:
    """Return an option spelled with underscores: `--test-corpus=a-b` becomes `--test_corpus=a-b`."""
    name, equals, value = arg.partition("=")
    return f"--{name[2:].replace('-', '_')}{equals}{value}" if re.match(r"--[a-z]", name) else arg


def _name(option: str) -> str:
    return with_underscores(option).removeprefix("--")


def _option_pairs(args: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield each option with its value or None; a word without an option is yielded with None."""
    option: str | None = None
    for arg in args:
        if arg.startswith("--"):
            if option is not None:
                yield option, None
            option, equals, value = arg.partition("=")
            if equals:
                yield option, value
                option = None
        else:
            yield (option or arg, arg if option else None)
            option = None
    if option is not None:
        yield option, None
