"""Results as files of another program, written atomically by `export`."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from inspect import signature
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from probing.cli.options import chosen
from probing.data.examples import Examples
from probing.errors import UserError, as_clause, did_you_mean, in_python, spelled
from probing.heads.examples import Example, read_examples
from probing.models import site_of
from probing.page.charts import labels
from probing.results import Column, Row, Schema, Table, booktabs, ends, listed, shown_table, write_csv
from probing.runs import Result, split_names, with_names
from probing.runs.folder import reading
from probing.runs.loading import load_run
from probing.runs.predictions import sides_and_text
from probing.runs.run import Run, of_text
from probing.runtime import package_version, quiet_libraries
from probing.runtime.files import replacing_folder
from probing.runtime.terminal import columns_to_leave_out, names_of_columns, wrapped_heading
from probing.tables.figures import write_drawings
from probing.tables.probes import accuracies_table
from probing.text import Corpus
from probing.text.tasks import label_name

# --------------------------------------------------------------------------------------------------------------------
# The first neurons of a run in the layout of Neuronpedia's exports, from which a server of it imports dashboards.
# --------------------------------------------------------------------------------------------------------------------

LEFT_OUT = (
    "explanations", "vector", "neg_str", "pos_str", "frac_nonzero", "topkCosSimIndices", "neuron_alignment_indices",
    "correlated_features_indices", "freq_hist_data_bar_heights", "logits_hist_data_bar_heights", "decoder_weights_dist",
)  # fmt: skip


def write_neuronpedia(run: Run, folder: Path) -> Mapping[str, Any]:
    """Write the first neurons of each layer, with the sentences of their highest and lowest tokens.

    Raises UserError without such tokens, or if the model or corpus has changed.
    """
    contexts = of_text(run).contexts
    if not contexts:
        raise UserError(
            f"`export`: `{run.folder}` has no contexts.csv, of a run of text by this version; repeat the run."
        )
    with quiet_libraries():
        sides, corpus = sides_and_text(run)
    if sides.test.pooling is not None:
        raise UserError(f"`export`: examples of `{run.folder}` are sentences or spans, and `neuronpedia` shows tokens.")
    model, name = _named(str(run.config["model"])), _named(f"{label_name(run.config)}-{site_of(run.config)}")
    for layer in run.layers:
        rows = [row for row in contexts if row["layer"] == layer]
        source = f"{int(layer)}-{name}"
        place = folder / model / source
        activations = list(_activations(sides.test, corpus, int(layer), rows, {"modelId": model, "layer": source}))
        _lines(place / "features" / "batch-0.jsonl.gz", _features(run, layer, activations, model, source))
        _lines(place / "activations" / "batch-0.jsonl.gz", activations)
        for what, described in _described(run, model, name, source).items():
            _lines(place / f"{what}.jsonl", [described])
    return {"neurons": len({(row["layer"], row["neuron"]) for row in contexts}), "left_out": LEFT_OUT}


def _named(text: str) -> str:
    """Return a name of letters, digits and hyphens from the last part of a path."""
    return re.sub(r"[^a-z0-9.]+", "-", Path(text).name.lower()).strip("-.") or "run"


def _described(run: Run, model: str, name: str, source: str) -> dict[str, dict[str, Any]]:
    release = f"{model}-{name}"
    about = f"Neurons that linear probes of {label_name(run.config)} read, highest contribution first"
    shown, text = {"visibility": "PUBLIC"}, run.config.get("test_corpus") or run.config["corpus"]
    return {
        "model": {"id": model, "displayName": model, "displayNameShort": model, "instruct": False},
        "release": {"name": release, "description": about, "descriptionShort": about, "urls": []},
        "sourceset": {"modelId": model, "name": name, "releaseName": release, "description": about, **shown},
        "source": {
            "id": source, "modelId": model, "setName": name, "dataset": _named(str(text)),
            "num_prompts": run.results["n_sentences"]["test"], **shown,
        },
    }  # fmt: skip


def _features(run: Run, layer: int, activations: Sequence[Row], model: str, source: str) -> Iterator[dict[str, Any]]:
    highest: dict[str, float] = {}
    for row in activations:
        highest[row["index"]] = max(row["maxValue"], highest.get(row["index"], row["maxValue"]))
    hook = f"blocks.{int(layer) - 1}.hook_resid_post" if site_of(run.config) == "residual" and layer else None
    for index, value in highest.items():
        others = [
            row for row in run.profiles
            if (row["layer"], row["neuron"], row["measure"]) == (layer, int(index), "correlation")
        ]  # fmt: skip
        yield {
            "modelId": model, "layer": source, "index": index, "maxActApprox": value, "hasVector": False,
            "hookName": hook,
            "correlated_neurons_indices": [row["index"] for row in others],
            "correlated_neurons_pearson": [row["value"] for row in others],
        }  # fmt: skip


def _activations(
    examples: Examples, corpus: Corpus, layer: int, rows: Sequence[Row], about: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield each neuron's activations on all tokens of each sentence once, in the order of rows."""
    store = examples.store
    offsets = store.tokens.offsets
    pairs = list(dict.fromkeys((row["neuron"], row["sentence"]) for row in rows))
    by_pair: dict[tuple[int, int], list[float]] = {}
    for shard in store.plan.shards:
        sentences = range(shard.first_sentence, shard.first_sentence + shard.n_sentences)
        if not (in_shard := [pair for pair in pairs if pair[1] in sentences]):
            continue
        states, start = store.read(layer, shard.index), shard.rows(store.tokens).start
        for neuron, sentence in in_shard:
            values = states[offsets[sentence] - start : offsets[sentence + 1] - start, neuron]
            by_pair[neuron, sentence] = values.float().tolist()
    for neuron, sentence in pairs:
        seen = by_pair[neuron, sentence]
        yield {
            **about, "id": f"{about['layer']}-{neuron}-{sentence}", "index": str(neuron),
            "tokens": _tokens(examples, corpus, sentence), "values": seen,
            "maxValue": max(seen), "maxValueTokenIndex": int(np.argmax(seen)), "minValue": min(seen),
            "dataIndex": str(sentence), "dataSource": "corpus",
        }  # fmt: skip


def _tokens(examples: Examples, corpus: Corpus, sentence: int) -> list[str]:
    """Return the tokens of a sentence as written, with the preceding blank; special tokens by name."""
    tokens, text, end, named = examples.store.tokens, corpus.sentences[sentence], 0, []
    for row in range(*tokens.offsets[[sentence, sentence + 1]].tolist()):
        start, stop = (0, 0) if tokens.spans is None else tokens.spans[row].tolist()
        if start == stop:
            named.append(tokens.added_texts.get(int(tokens.input_ids[row]), "(special)"))
            continue
        blank = text[max(end, start - 1) : start]
        named.append((blank if blank.isspace() else "") + text[start:stop])
        end = stop
    return named


def _lines(path: Path, rows: Any) -> None:
    """Write JSON lines, compressed if the path ends in .gz; the same rows give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode("utf-8")
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


# --------------------------------------------------------------------------------------------------------------------
# The heads of a run in the layout that HeadVis reads: measures of every head, and attention on example sentences.
# --------------------------------------------------------------------------------------------------------------------

# Attention below this is left out, as in the programs that write this layout.
LEAST = 0.005
NOT_IN_HEADVIS = (
    "qk_distance_histogram",
    "histogram",
    "attributions",
    "intervals of activation: all sentences are in the first",
)


def write_headvis(result: Result, folder: Path) -> Mapping[str, Any]:
    """Write the measures of all heads of a run of `attention`, and their attention on its example sentences.

    Raises UserError without example sentences.
    """
    with reading(result.folder):
        examples = read_examples(result.folder)
    if examples is None:
        raise UserError(
            f"`export`: `{result.folder}` has no examples.safetensors, since no sentence of its corpus is short enough."
        )
    n_heads = examples.examples[0].maps.shape[1]
    heads = [(layer - 1, head) for layer in examples.layers for head in range(n_heads)]
    measures, meanings = _measures(result)
    scatter = [{"layer": layer, "head": head, **measures.get((layer, head), {})} for layer, head in heads]
    config = {
        "model_name": Path(str(result.config["model"])).name, "dataset_name": Path(str(result.config["corpus"])).name,
        "heads": heads, "n_layers": max(examples.layers), "n_heads": n_heads, "n_intervals": 1,
        "metrics": meanings, "metric_descriptions": {name: name for name in meanings},
        "head_data_pattern": "L{layer}H{head}.json", "has_umap": False, "umap_heads": [], "custom_plots": [],
        "custom_tables": [
            {"key": f"top_{side}_tokens", "label": f"Top {side} tokens"} for side in ("query", "key")
        ],
        "statistics_display": {"n_samples": {"label": "Sentences", "format": "default"}},
    }  # fmt: skip
    _lines(folder / "config.json", [config])
    _lines(folder / "scatter_data.json", [scatter])
    _lines(folder / "server_config.json", [{}])
    _lines(folder / "attributions" / "manifest.json", [{}])
    for at, layer in enumerate(examples.layers):
        for head in range(n_heads):
            sequences = [_sequence(i, example, at, head) for i, example in enumerate(examples.examples)]
            _lines(folder / "heads" / f"L{layer - 1}H{head}.json", [{
                "sequences": sequences, "top_query_tokens": _top(sequences, 0), "top_key_tokens": _top(sequences, 1),
                "statistics": {"n_samples": len(sequences)},
            }])  # fmt: skip
    return {"heads": len(heads), "sentences": len(examples.examples), "left_out": NOT_IN_HEADVIS}


def _measures(result: Result) -> tuple[dict[tuple[int, int], dict[str, float]], list[str]]:
    by_head: dict[tuple[int, int], dict[str, float]] = {}
    for row in result.heads:
        name = f"{row['measure']} to {row['to']}" if row.get("to") else str(row["measure"])
        if math.isfinite(row["value"]):
            by_head.setdefault((row["layer"] - 1, row["head"] - 1), {})[name] = row["value"]
    return by_head, list(dict.fromkeys(name for values in by_head.values() for name in values))


def _sequence(index: int, example: Example, layer: int, head: int) -> dict[str, Any]:
    """Return the attention of a head on a sentence; its maximum excludes the first token, as in HeadVis."""
    weights = example.maps[layer, head]
    (indices,) = np.nonzero(weights.ravel() >= LEAST)
    return {
        "sequence_id": index, "interval": 0, "seq_len": len(weights), "tokens": list(example.of.tokens),
        "attention_indices": indices.tolist(),
        "attention_values": [round(float(v), 4) for v in weights.ravel()[indices]],
        "max_activation": round(float(weights[1:, 1:].max(initial=0.0)), 4),
    }  # fmt: skip


def _top(sequences: Sequence[Mapping[str, Any]], side: int) -> list[dict[str, Any]]:
    """Return the tokens by the attention from them (side 0) or to them (1), in descending order."""
    mass: dict[str, float] = {}
    for sequence in sequences:
        for index, value in zip(sequence["attention_indices"], sequence["attention_values"], strict=True):
            token = sequence["tokens"][divmod(index, sequence["seq_len"])[side]]
            mass[token] = mass.get(token, 0.0) + value
    return [{"token": token, "weight": round(mass[token], 4)} for token in sorted(mass, key=lambda name: -mass[name])]


# By this file a folder is known as one that `export` wrote, which may be replaced.
ABOUT = "export.json"
# A longer table is cut where it is to be printed: first to each layer's first ranks, then to so many rows.
MOST_RANKS, MOST_ROWS = 10, 40
# Whether headings are wrapped, the digits that fit into a line of LaTeX's `article`, how many of these are as wide as
# the space between two columns, and the letters that this holds for.
PAPER = (
    (False, 70, 2.4, ""), (True, 70, 2.4, ""), (True, 85, 1.4, r"\footnotesize\setlength{\tabcolsep}{3pt}"),
)  # fmt: skip


class _Format(NamedTuple):
    """Format with its writer and the commands it suits (all if empty)."""

    write: Callable[..., Mapping[str, Any]]
    commands: tuple[str, ...] = ()


def tables_of(result: Result) -> dict[str, tuple[Table, Schema]]:
    """Return the tables of results that have rows, with their schemas, by name in the order of their study.

    Columns of another version are text.
    """
    with reading(result.folder):
        tables: dict[str, Table] = {name: rows for name in result.by_name if (rows := getattr(result, name))}
    return {name: (rows, _schema(name, rows)) for name, rows in tables.items()}


def _schema(name: str, rows: Table) -> Schema:
    schema = rows.schema or Schema(name, "", [])
    unknown = dict.fromkeys(column for row in rows for column in row if column not in schema.types)
    return replace(schema, columns=[*schema.columns, *(Column(column, str) for column in unknown)])


def export_result(result: Result, format: str, path: str | Path | None = None, **how: Any) -> Path:
    """Write results as files of another program, and return their folder.

    Args:
        result: The results.
        format: `parquet`, `latex`, `csv` or `figures` for any results; `neuronpedia` for a run of `fit`; `headvis` for
            `attention`.
        path: The folder; by default `exports/FORMAT` in the folder of the results. An earlier export is replaced.
        how: Arguments of the format.

    Raises:
        UserError: If the format is unknown or does not suit the results, or the folder cannot be written.
    """
    writer = _format_of(format)
    known = [*signature(writer.write).parameters][2:]
    if unknown := [name for name in how if name not in known]:
        near = did_you_mean(unknown[0], known)
        raise UserError(f"`export`: `{unknown[0]}` is not an option of `{format}`{near}; leave it out.")
    if writer.commands and result.study.name not in writer.commands:
        raise UserError(
            f"`export`: `{format}` is of a run of {listed([f'`{name}`' for name in writer.commands], 'or')}, and "
            f"`{result.folder}` is one of `{result.study.name}`; use parquet, latex or csv."
        )
    with _new_folder(result.folder / "exports" / format if path is None else Path(path)) as (partial, folder):
        _write_about(partial, format, result.folder.name, writer.write(result, partial, **how))
    return folder


@spelled(in_python)
def export(
    results: Sequence[Result | str | Path], format: str, path: str | Path | None = None,
    model_name: str | Sequence[str] | None = None, label_name: str | None = None, **how: Any,
) -> Path:  # fmt: skip
    """Write one or several results as files of another program, and return the folder.

    Args:
        results: The results, or their folders.
        format: `latex`, `figures`, `csv`, `parquet`, `neuronpedia` or `headvis`. LaTeX of several runs of `fit` has
            `accuracies.tex`, too: their accuracies side by side.
        path: The folder. By default, `exports/FORMAT` in the folder of single results; of several,
            `export-FORMAT-A-B` beside the first, with a folder for each. An earlier export is replaced.
        model_name: Name of the model of each run, for figures and `accuracies.tex`.
        label_name: Name of what the probes predict, for figures.
        how: Of figures `only` (the name of one), `title` and `formats`; of LaTeX `only` (the names of some tables) and,
            of one table, `columns`, as in `Table.to_latex`.

    Raises:
        UserError: If a folder has no results, the format does not suit them, a name would be used nowhere, or the
            folder cannot be written.
    """
    opened = [result if isinstance(result, Result) else load_run(result) for result in results]
    names = [result.folder.resolve().name for result in opened]
    if len({*names}) < len(names):
        raise UserError(
            f"`export`: {listed(names)} are given, and results of one name would be one folder; rename one."
        )
    _format_of(format)
    runs = [result for result in opened if isinstance(result, Run)]
    if format == "latex" and model_name and len(runs) < 2:
        raise UserError(
            "`--model_name` names the columns of accuracies.tex, of two runs of `fit` or more; leave it out."
        )
    if not opened:
        raise UserError("`export`: no results are given.")
    opened = with_names(opened, model_name, label_name)
    if len(opened) == 1:
        return export_result(opened[0], format, path, **how)
    default = opened[0].folder.resolve().parent / f"export-{format}-{'-'.join(names)[:100]}"
    with _new_folder(default if path is None else Path(path)) as (partial, folder):
        for name, result in zip(names, opened, strict=True):
            export_result(result, format, partial / name, **how)
        runs = [result for result in opened if isinstance(result, Run)]
        if format == "latex" and len(runs) > 1:
            text = _on_paper([accuracies_table(dict(zip(labels(runs), (run.accuracy for run in runs), strict=True)))])
            (partial / "accuracies.tex").write_text(text, encoding="utf-8")
        _write_about(partial, format, names, {})
    return folder


def _format_of(format: str) -> _Format:
    if format not in FORMATS:
        raise UserError(f"`export`: there is no format `{format}`; use {listed(list(FORMATS), 'or')}.")
    return FORMATS[format]


@contextmanager
def _new_folder(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Yield a temporary folder that then replaces an earlier export, and the folder; refuse what is no export."""
    if folder.exists() and not (folder / ABOUT).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"`export`: `{folder}` holds something else; name a new folder.")
    try:
        with replacing_folder(folder) as partial:
            yield partial, folder
    except OSError as error:
        raise UserError(
            f"`export`: `{folder}` cannot be written ({as_clause(error)}); name a writable folder."
        ) from None


def _write_about(folder: Path, format: str, run: str | list[str], about: Mapping[str, Any]) -> None:
    content = {"format": format, "run": run, "probing": package_version(), **about}
    (folder / ABOUT).write_text(json.dumps(content, indent=2), encoding="utf-8")


def _write_figures(
    result: Result, folder: Path, only: str | None = None, title: str | None = None, formats: Sequence[str] = ("pdf",)
) -> dict[str, Any]:
    drawings = result.drawings(only or "", title)
    return {"figures": [path.name for path in write_drawings(folder, drawings, formats)]}


def _write_each(
    result: Result, folder: Path, write: Callable[[Path, Table, Schema], None], suffix: str
) -> dict[str, Any]:  # fmt: skip
    tables = tables_of(result)
    for name, (rows, schema) in tables.items():
        write(folder / f"{name}.{suffix}", rows, schema)
    return {"tables": {name: len(rows) for name, (rows, _) in tables.items()}}


def _write_latex(
    result: Result, folder: Path, only: str | Sequence[str] | None = None, columns: str | Sequence[str] | None = None
) -> dict[str, Any]:
    tables, written = tables_of(result), {}
    names = chosen("--only", only or "all", list(tables))
    if columns and len(names) > 1:
        raise UserError("`--columns` selects from a single table; name it with `--only`.")
    with reading(result.folder):
        printed = {} if columns else result.study.printed(result)
    for name in names:
        all_rows, schema = tables[name]
        rows, shown = _cut(all_rows), printed.get(name, [])
        if columns:
            text = rows.to_latex(split_names(columns))
        else:
            text = _on_paper(shown or [shown_table(schema, rows, names=_columns(schema, rows))])
        written[name] = sum(part.row_count for part in shown) or len(rows)
        n = "" if shown else f"{len(rows)} of {len(all_rows)} rows; "
        about = f"% {n}all rows and columns are in {name}.csv\n"
        (folder / f"{name}.tex").write_text(about + text, encoding="utf-8")
    return {"tables": written, "needs": "\\usepackage{booktabs}"}


def _columns(schema: Schema, rows: Table) -> list[str]:
    """Return the columns that some row has a value in, with an asterisk where some row has an interval."""
    return [
        column.name + "*" * (column.interval is not None and any(ends(row, column.interval or "") for row in rows))
        for column in schema.columns
        if any(row.get(column.name) not in (None, "") for row in rows)
    ]


def _on_paper(tables: Sequence[Any]) -> str:
    """Return rich tables in LaTeX, each below its title as a comment.

    Wide or long ones have wrapped headings and small letters; columns that still have no room are left out.
    """
    texts = []
    for table in tables:
        tried = ((_fitted(table, gone, *how), gone) for gone in columns_to_leave_out(table) for how in PAPER)
        text, gone = next(filter(itemgetter(0), tried), (booktabs(table), []))
        left_out = f"% left out for lack of room: {listed(names_of_columns(table, gone))}\n" if gone else ""
        texts.append(f"% {table.title}\n{left_out}{text}")
    return "\n\\medskip\n".join(texts)


def _fitted(table: Any, gone: Sequence[int], wraps: bool, digits: float, between: float, letters: str) -> str:
    """Return a rich table in LaTeX without some columns, empty if it is wider or longer than a page."""
    columns = [column for k, column in enumerate(table.columns) if k not in gone]
    if wraps:
        columns = [replace(column, header=wrapped_heading(str(column.header), column)) for column in columns]
    widths = (max(map(len, (*str(column.header).split("\n"), *column.cells))) for column in columns)
    if sum(widths) + between * (len(columns) - 1) > digits or (table.row_count > MOST_ROWS and not letters):
        return ""
    shown = copy(table)
    shown.columns = columns
    return f"{{{letters}%\n{booktabs(shown)}}}\n" if letters else booktabs(shown)


def _cut(rows: Table) -> Table:
    """Return the rows to print: of a long table, the first ranks, and of these the first rows."""
    printed = list(rows)
    if len(printed) > MOST_ROWS and "rank" in printed[0]:
        printed = [row for row in printed if row["rank"] <= MOST_RANKS]
    return Table(printed[:MOST_ROWS], rows.schema)


FORMATS = {
    "parquet": _Format(partial(_write_each, write=lambda path, rows, _: rows.to_parquet(path), suffix="parquet")),
    "latex": _Format(_write_latex),
    "csv": _Format(partial(_write_each, write=write_csv, suffix="csv")),
    "figures": _Format(_write_figures),
    "neuronpedia": _Format(write_neuronpedia, ("fit",)),
    "headvis": _Format(write_headvis, ("attention",)),
}
