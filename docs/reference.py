"""Reference pages of the site, which `hooks.py` adds: options, columns, the Python interface, sentences of evidence.

`--help`, `python -m probing columns` and Python's `help` show the same without the site.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from probing.__main__ import COMMANDS
from probing.cli.commandline import load_command
from probing.cli.options import expected, flat, options_of
from probing.results import Schema
from probing.runs import Study, package_studies
from probing.tables.evidence_sentences import SENTENCES

OPTIONS = """# Options

*Which options does each command have?*

`python -m probing COMMAND --help` prints the same. Options are spelled with underscores or hyphens. A yes/no option
needs no value (`--quiet`). Every command takes `--config FILE.yaml`, and the command line overrides the file.
`--print_config` prints all options of a command, with their current values, as such a file, and exits;
`--print_config=comments` also describes each. The [quickstart](quickstart.md#the-options-that-matter-most) explains the
most important ones.
"""

COLUMNS = """# Tables and columns

*What does each column of a table mean?*

`python -m probing columns TABLE` prints the columns of a table, and `python -m probing columns` lists all tables. All
tables are CSV files of the same name in the folder of a run; [Results](results.md) says how to read them. `NAME_low`
and `NAME_high` are the ends of a 95% interval.
"""

# Each `:::` is a place that mkdocstrings fills in.
API = """# API

*What do the functions and classes of the Python interface take and return?*

From their docstrings; `help(probing.fit)` shows the same.

## Commands as functions

::: probing.fit
::: probing.extract
::: probing.probe
::: probing.read_activations
::: probing.Activations
::: probing.rank
::: probing.compare
::: probing.sweep
::: probing.studies.geometry.geometry
::: probing.studies.position.position
::: probing.studies.extremes.extremes
::: probing.studies.attention.attention
::: probing.ablate
::: probing.pretrain
::: probing.finetune
::: probing.trees

::: probing.tuning_effect
::: probing.triggers
::: probing.checkpoints
::: probing.hierarchy
::: probing.cloze
::: probing.wic
::: probing.sts
::: probing.position_bias
::: probing.reproduce
::: probing.report
::: probing.columns

## In scikit-learn

::: probing.ProbeClassifier
::: probing.ProbeRegressor

## Runs and what else they return

::: probing.load_run
::: probing.Run
::: probing.Result
::: probing.Rankings
::: probing.Table
::: probing.UserError

## Studies

::: probing.Study
::: probing.Schema
::: probing.Column
::: probing.View
::: probing.Chart
::: probing.Panel
::: probing.Line
::: probing.command
::: probing.Options
::: probing.option
::: probing.Call
::: probing.Measurements

## Groups of options

::: probing.ProbeOptions
::: probing.WandbOptions

## Tasks

::: probing.text.tasks
::: probing.text.tokens.Tokens
::: probing.text.Corpus

## Functions of tensors

::: probing.probes.rankings
::: probing.studies.geometry.layers
::: probing.probes.transforms
::: probing.statistics.label_scores
::: probing.statistics

## Lightning

::: probing.ProbingCallback
::: probing.LinearProbe
::: probing.ActivationDataModule
"""

EVIDENCE = """# Sentences of evidence

*Which sentences can be printed, and what must hold for each?*

`fit`, `probe`, `compare` and their reports take their sentences from this table. Words in brackets are filled in.
[Concepts](concepts.md#evidence) explains flags, [Intervals](notes/intervals.md) intervals and p-values, and
[Eta squared](notes/eta_squared.md) shares of variance.
"""


def options_page() -> str:
    """Return the page of all options, from their declarations."""
    return OPTIONS + "".join(f"\n## {name}\n\n{_command(load_command(where))}" for name, where in COMMANDS.items())


def columns_page() -> str:
    """Return the page of all tables and other files, from what the studies declare."""
    studies = package_studies()
    cells = ((f"[`{study.name}`](#of-{study.name})", _names(study), _processes(study)) for study in studies)
    return f"{COLUMNS}\n{_table(('folder of', 'its tables', 'processes'), cells)}" + "".join(map(_study, studies))


def evidence_page() -> str:
    """Return the page of all sentences that the program can say of evidence."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for sentence in SENTENCES.values():
        groups.setdefault(sentence.group, []).append((_shown(sentence.text), sentence.rule.replace("|", "\\|")))
    return EVIDENCE + "".join(
        f"\n## {group.replace('`', '')}\n\n{_table(('is said', 'if'), rows)}" for group, rows in groups.items()
    )


# Name on the site by the function that returns the page.
PAGES = {
    "options.md": options_page,
    "columns.md": columns_page,
    "api.md": lambda: API,
    "evidence.md": evidence_page,
}


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    headings = [*headings]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (headings, ["---"] * len(headings), *rows))


def _command(function: Callable[..., Any]) -> str:
    table = _table(("option", "value", "default", "meaning"), _options(function))
    return f"{_plain((function.__doc__ or '').splitlines()[0])}\n\n{table}"


def _options(command: Callable[..., Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the cells of each option's row."""
    for name, entry in flat(options_of(command)).items():
        default = "" if entry.default in (None, []) else f"`{_as_typed(entry.default)}`"
        yield f"`--{name}`", _value(entry.hint), default, _plain(entry.help)


def _value(hint: Any) -> str:
    """Return what a value looks like, in fewer words than an error message has."""
    words = expected(hint).replace("text, in quotes if need be", "text").replace("a list such as [a, b]", "list")
    return words.replace("a whole number", "whole number").replace("a number", "number")


def _as_typed(default: Any) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


def _plain(text: str) -> str:
    """Return text as it may stand in a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def _names(study: Study) -> str:
    return ", ".join(f"`{schema.name}`" for schema in study.schemas)


def _processes(study: Study) -> str:
    return "several" if study.in_several_processes else "one"


def _study(study: Study) -> str:
    page = study.page.partition(".md")[0].replace("-", " ").capitalize()
    head = f"\n## Of `{study.name}`\n\n[{page.replace('-', ' ').capitalize()}]({study.page}) explains the measures.\n"
    files = ((f"`{name}`", what) for name, what in study.files.items())
    head += f"\n{_table(('file', 'content'), files)}" if study.files else ""
    return head + "".join(map(_schema, study.schemas)) + "".join(map(_schema, study.variants))


def _schema(schema: Schema) -> str:
    cells = (
        (", ".join(f"`{name}`" for name in column.names), column.meaning.replace("|", "\\|"))
        for column in schema.columns
    )
    row = f"{schema.row[0].upper()}{schema.row[1:]}"
    return f"\n### `{schema.name}`\n\n{row}.\n\n{_table(('column', 'meaning'), cells)}"


def _shown(text: str) -> str:
    """Return a sentence as it may stand in a table, with the names of what is filled in in brackets."""
    filled = re.sub(r"\{(\w+)[^}]*\}", lambda found: f"\\[{found[1].lower().replace('_', ' ')}\\]", text)
    return filled.strip().replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")
