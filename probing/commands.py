"""Commands that are no studies: `columns`, `report` and `cache`."""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any, cast

from probing.activations.store import WorkPlan, cache_folder, entries, leftovers, remove_unused
from probing.cli.commandline import command
from probing.cli.options import FORMATS, FigureFormat, Folders, Options, figure_formats, option
from probing.errors import RunError, UserError, as_clause, did_you_mean, refuse
from probing.runs.folder import PARTIAL, remove_abandoned
from probing.runtime import quiet_libraries
from probing.runtime.files import open_file, replacing
from probing.text.tasks import label_name_problems


@dataclass(frozen=True, kw_only=True)
class NameOptions(Options):
    """Options for names on pages and in figures."""

    model_name: str | list[str] | None = None
    """Name of the model of each run, in the order of the folders, such as "BERT,tuned BERT"; default: the last part of
    its path. The runs of a comparison are named by `compare --model_name`."""
    label_name: str | None = None
    """What the probes predict, as a noun phrase that needs no article, such as "part of speech"; default: that of the
    run."""


@dataclass(frozen=True)
class ColumnsOptions(Options):
    """Options of `columns`."""

    table: str | None = None
    """Name of a table, such as neurons, or of a command, such as fit, whose tables and other files are listed; may be
    given without `--table`. Default: list the tables of all commands."""


@command(ColumnsOptions)
def columns(options: ColumnsOptions) -> None:
    """Describe the columns of a table that a command writes, or list the tables of all commands."""
    from probing.runs import study_names, study_of
    from probing.runtime.terminal import columns as width

    studies = [study_of(name) for name in study_names()]
    tables = [(study, schema) for study in studies for schema in (*study.schemas, *study.variants)]
    name = (options.table or "").removesuffix(".csv")
    blocks = [
        (
            f"{study.name}: {study.title.lower()}",
            [*((schema.name, schema.row) for owner, schema in tables if owner is study),
             *(study.files.items() if name else ())],
        )
        for study in studies if name in ("", study.name)
    ] + [
        (
            f"{schema.name}, of `{study.name}`: {schema.row}",
            [(", ".join(column.names), column.meaning) for column in schema.columns],
        )
        for study, schema in tables if schema.name == name
    ]  # fmt: skip
    if not blocks:
        known = {*(study.name for study in studies), *(schema.name for _, schema in tables)}
        raise UserError(
            f"`columns {options.table}`: there is no such table or command{did_you_mean(name, sorted(known))}; "
            "`columns` alone lists them."
        )
    for heading, rows in blocks:
        print(fill(heading, width()))
        for entry, meaning in rows:
            print(fill(f"{entry:<22} {meaning}", width(), initial_indent="  ", subsequent_indent=" " * 25))
        print()


@dataclass(frozen=True)
class ReportOptions(NameOptions):
    """Options of `report`."""

    folders: Folders | None = None
    """Folders of finished runs, of at most one comparison of these runs, and of the results of any other command; may
    be given without `--folders`."""
    output: str | None = None
    """File to write. Default: RUN/report.html; for several runs, report-A-B.html next to the first run; for a
    comparison, report.html in its folder. An existing report is replaced."""
    title: str | None = None
    """Title of the page; default: what was measured, and in which models."""


@command(ReportOptions)
def report(options: ReportOptions) -> Path:
    """Write finished runs as one HTML page: question and answer, figures, sortable tables and commands.

    Returns:
        The file.
    """
    named = cast("list[str] | None", options.folders)  # as `command` has converted them
    if not named:
        raise UserError("`report` takes the folders of finished runs, such as runs/A runs/B.")
    from probing.page.charts import read_sources

    refuse(label_name_problems(options.label_name))
    sources = read_sources(named, options.model_name, options.label_name)
    comparison = sources.agreement.folder if sources.agreement else None
    path = _default(named, comparison) if options.output is None else Path(options.output)
    _check(path, f"--output {path}")

    with quiet_libraries():
        from probing.page.build import build

        content = build(sources, options.title)
    _write(path, content)
    print(f"Report: {path} ({_bytes(len(content))})")
    return path


def _default(folders: list[str], comparison: Path | None) -> Path:
    first = Path(folders[0])
    if comparison:
        return comparison / "report.html"
    if len(folders) == 1:
        return first / "report.html"
    names = "-".join(Path(folder).resolve().name for folder in folders)
    return first.resolve().parent / f"report-{names[:100]}.html"


def _check(path: Path, flag_text: str) -> None:
    from probing.results import MARK

    try:
        if path.is_dir():
            raise UserError(f"`{flag_text}` is a folder; name a file in it.")
        if not path.parent.is_dir():
            raise UserError(f"`{flag_text}`: there is no folder {path.parent}; make it, or name another file.")
        if path.exists():
            with open_file(path) as file:
                if file.read(len(MARK)) != MARK.encode():
                    raise UserError(f"`{flag_text}` is there and is no report; name another file.")
    except (OSError, ValueError) as error:
        raise UserError(f"`{flag_text}` cannot be written ({as_clause(error)}); name another file.") from None


def _write(path: Path, content: bytes) -> None:
    try:
        with replacing(path) as partial:
            partial.write_bytes(content)
    except OSError as error:
        raise UserError(
            f"`--output {path}` cannot be written ({as_clause(error)}); make room, or name another file."
        ) from None


# What is typed for figures without a title.
NO_TITLE = "none"


@dataclass(frozen=True)
class ExportOptions(Options):
    """Options of `export csv` and `export parquet`."""

    folders: Folders | None = None
    """Folders of finished runs; may be given without `--folders`."""
    output: str | None = None
    """Folder to write. Default: exports/FORMAT in the folder of the run; for several runs, export-FORMAT-A-B beside the
    first run, with a folder for each. An earlier export is replaced."""


@dataclass(frozen=True)
class LatexOptions(ExportOptions):
    """Options of `export latex`."""

    only: str | list[str] | None = None
    """Names of the tables to write, such as "accuracy,neurons"; default: all."""
    columns: str | list[str] | None = None
    """Columns of the table that --only names, as in its CSV, such as "rank,neuron,contribution"; an asterisk, as in
    accuracy*, adds the interval. Default: those of the terminal that have room on a page."""
    model_name: str | list[str] | None = None
    """Name of the model of each run, in the order of the folders, such as "BERT,tuned BERT", for the table of the
    accuracies of several runs; default: the last part of its path."""


@dataclass(frozen=True)
class FigureOptions(NameOptions, ExportOptions):
    """Options of `export figures`."""

    only: str | None = None
    """Name of the figure to write, such as accuracy; default: all that the tables can draw."""
    title: str | None = None
    """Title of the figure, with --only; none leaves out the titles of all figures, for papers that have captions."""
    figure_format: FigureFormat = option("pdf", choices=FORMATS)
    """Formats of the figures: some of png, pdf and svg; pdf and svg are 3.3 or 6.8 inches wide."""


def _export(options: ExportOptions, format: str, **how: Any) -> Path:
    from probing.exports.formats import export

    named = cast("list[str] | None", options.folders)
    if not named:
        raise UserError(f"`export {format}` takes the folders of finished runs, such as runs/A runs/B.")
    with quiet_libraries():
        folder = export(named, format, options.output, **how)
    print(f"Export: {folder}")
    return folder


@command(LatexOptions)
def export_latex(options: LatexOptions) -> Path:
    """Write the tables of finished runs as LaTeX, with the accuracies of several runs side by side.

    Returns:
        The folder.
    """
    return _export(options, "latex", model_name=options.model_name, only=options.only, columns=options.columns)


@command(FigureOptions)
def export_figures(options: FigureOptions) -> Path:
    """Draw the figures of finished runs again, with other names and titles, in the widths of a paper.

    Returns:
        The folder.
    """
    how = {
        "only": options.only,
        "title": "" if options.title == NO_TITLE else options.title,
        "formats": figure_formats(options.figure_format),
    }
    return _export(options, "figures", model_name=options.model_name, label_name=options.label_name, **how)


@command(ExportOptions)
def export_csv(options: ExportOptions) -> Path:
    """Write the tables of finished runs as CSV, in full precision.

    Returns:
        The folder.
    """
    return _export(options, "csv")


@command(ExportOptions)
def export_parquet(options: ExportOptions) -> Path:
    """Write the tables of finished runs as Parquet, each column by its type.

    Returns:
        The folder.
    """
    return _export(options, "parquet")


DAY_S = 86_400


@dataclass(frozen=True)
class CacheOptions(Options):
    """Options of a command that reads the cache."""

    cache: str | None = None
    """Folder of cached activations; default: $PROBING_CACHE or runs/cache."""


@command(CacheOptions)
def ls(options: CacheOptions) -> list[Path]:
    """List the entries of the cache.

    Returns:
        The folders of the entries.
    """
    from probing.runtime.terminal import plain_table, show

    folder = cache_folder(options.cache)
    cached = entries(folder)
    if not cached:
        print(f"nothing is cached in {folder}")
        return []
    table = plain_table(None)
    for heading in ("entry", "corpus", "dtype"):
        table.add_column(heading, overflow="fold")
    for heading in ("layers", "sentences", "tokens", "size", "last used"):
        table.add_column(heading, justify="right")
    for entry in cached:
        used = time.strftime("%Y-%m-%d", time.localtime(entry.last_used))
        if store := entry.store:
            plan, n = store.plan, sum(shard.n_sentences for shard in store.plan.shards)
            if isinstance(plan, WorkPlan):
                holds = plan.holds.replace("{n}", str(len(store.layers())))
            else:
                holds = " ".join([_ranges(store.layers()), *filter(None, [plan.key.get("site")])])
            columns = (store.header["corpus"], plan.dtype, holds, str(n), str(plan.n_tokens))
        else:
            columns = (f"({entry.trouble})", "", "", "", "")
        table.add_row(entry.folder.name, *columns, _bytes(_size(entry.folder)), used)
    print(f"Cached activations in {folder}")
    show(table, whole_lines=True)
    return [entry.folder for entry in cached]


@command(CacheOptions)
def verify(options: CacheOptions) -> None:
    """Compare every cached file with its checksum; exit status 1 if one differs.

    A damaged file is never used: the next run that needs it extracts it again.
    """
    folder = cache_folder(options.cache)
    if options.cache and not os.path.isdir(folder):
        raise UserError(f"`--cache {folder}` is no folder; name the one where activations are cached.")
    bad: list[Path] = []
    n_files = 0
    for entry in entries(folder):
        if store := entry.store:
            n_files += 1 + len(store.records())  # the plan and the table of tokens count as one
            bad += [store.path(*at) for at in store.damaged(range(store.plan.n_files))]
        elif entry.trouble == "damaged":
            n_files += 1
            bad.append(entry.folder)
        else:
            print(f"not checked because it is {entry.trouble}: {entry.folder}")
    for path in bad:
        print(f"damaged: {path}")
    if bad:
        raise RunError(
            f"{len(bad)} of {n_files} cached files are damaged; the next run that needs them extracts them again"
        )
    print(f"{n_files} cached files in {folder} match their checksums")


@dataclass(frozen=True)
class PruneOptions(Options):
    """Options of `prune`."""

    cache: str | None = None
    """Folder of cached activations; default: $PROBING_CACHE, or cache in --runs."""
    unused_days: float = option(30.0, at_least=0)
    """Remove entries, and folders NAME.partial of killed runs, that were not used for this many days; 0 removes all."""
    yes: bool = False
    """Remove the entries instead of only listing them."""
    runs: str = "runs"
    """Folder in which killed runs have left folders NAME.partial."""


@command(PruneOptions)
def prune(options: PruneOptions) -> list[Path]:
    """Remove cache entries not used recently, and partial files of interrupted runs, from the cache and --runs.

    Entries in use by a running job are not removed. Without --yes, only list what would be removed.

    Returns:
        The folders and files that are removed, or would be.
    """
    folder = cache_folder(options.cache, options.runs)
    # Whatever the clock says: an entry may have been used, or a clock set, in what is now the future.
    then = time.time() - options.unused_days * DAY_S if options.unused_days else math.inf
    partial = _partial_runs(Path(options.runs), then)
    doomed = _unused(folder, then) + partial
    gone: list[Path] = []
    freed = 0
    for path in doomed:
        size = _size(path)
        if options.yes and not (remove_abandoned(path) if path in partial else remove_unused(folder, path)):
            print(f"kept {path}: a job is using it")
            continue
        print(f"{'removed' if options.yes else 'would remove'} {path} ({_bytes(size)})")
        freed += size
        gone.append(path)
    print(
        f"{_bytes(freed)} {'freed' if options.yes else 'would be freed; run again with --yes'}"
        if doomed
        else "nothing to remove"
    )
    return gone


def _unused(cache: Path, then: float) -> list[Path]:
    """Return the entries last used before a time, and leftovers of killed writers in others; none stays open."""
    cached = entries(cache)
    unused = [entry.folder for entry in cached if entry.last_used <= then]
    return unused + [path for entry in cached if entry.folder not in unused for path in leftovers(entry.folder)]


def _partial_runs(runs: Path, then: float) -> list[Path]:
    partial = [path for path in sorted(runs.glob(f"*{PARTIAL}")) if remove_abandoned(path, only_ask=True)]
    return [path for path in partial if max(file.stat().st_mtime for file in (path, *path.glob("*"))) <= then]


def _size(path: Path) -> int:
    n_bytes = 0
    for file in path.rglob("*") if path.is_dir() else [path]:
        with suppress(FileNotFoundError):  # removed meanwhile
            n_bytes += file.stat().st_size if file.is_file() else 0
    return n_bytes


def _bytes(n: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} TB"


def _ranges(numbers: list[int]) -> str:
    """Return ascending numbers with runs shortened: 0-3, 6."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) or "none complete"
