"""Write `files.md` from what each study declares of its folder: its tables with their columns, and its other files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from probing.results import Schema
from probing.runs import Study, package_studies
from probing.tables.schema import NUMBER_NEURONS, NUMBERS, PREDICTIONS

PAGE = Path(__file__).with_name("files.md")

HEAD = """# Files of a run

*What is in the folder that a command wrote, what does each column mean, and how do I read it from Python?*

```python
from probing import fit, load_run

run = fit(layer=6, quiet=True)
made = load_run(run.folder)  # what any command wrote, and what the command returns as a function
made.config, made.results  # config.yaml and results.json
made.accuracy.to_pandas()  # every CSV file is a table of its name
made.conclusions()  # what the terminal says
made.report()  # the page, as `report` writes it
```

`make docs` writes this page from what the studies declare. `load_run` opens whatever a command wrote, and gives a
`Result` with `.folder`, `.config`, `.results`, `.tables()` (as the terminal shows them), `.conclusions()`,
`.report()`, and every CSV file as a table of its name, a list of dicts with `.to_pandas()` and `.to_parquet(path)`. A
table that was not asked for is empty. A run of `fit` or `probing.probe` is a `Run`, which can also `predict`; the
folder `rankings` of a run is opened as `Rankings`, with `rankings["anova"]` and the other methods.

All tables are CSV in full precision; only the terminal rounds. Columns that were not measured are absent. `NAME_low`
and `NAME_high` are the ends of a 95% interval, and empty where there is none. A run is written to `NAME.partial`,
which is renamed when the run is complete. Every folder also has `config.yaml`, the configuration, with which
`--config` repeats the command (text from standard input has to be given again), `results.json`, what is not in
tables, and `wandb/`, the offline run; the command in the last line of the output uploads it with all tables and
files. That command works only inside the run's folder, but the folder may be a copy on another machine.

Figures are written as `.png` and `.pdf`, for a paper; all commands take `--figure_format`: some of `png`, `pdf` and
`svg`. PDF and SVG have the width of a column (3.3 inches) or of a page (6.8 inches), for LaTeX to include without
scaling; a PDF has its fonts in it, the text of an SVG is text. The same numbers give the same bytes.

All files are UTF-8. Text with a comma, a quotation mark or the end of a line in it is in quotation marks. A label
such as `01`, `1.0` or `NA` is text: `run.classes.to_pandas()` keeps it; with pandas alone, read
`pandas.read_csv("classes.csv", dtype={"class": str}, keep_default_na=False)`.
"""

MOVED = """
## A run that moves

`config.yaml` keeps paths as they were typed. A run of `fit` also notes in `results.json`, as `read_from`, where its
text, its test text, a model's folder and the file of a task of your own were: `path`, and `from_run`, relative to the
folder of the run. Whatever reads these again (`rank`, `compare`, `ablate --run`, `position --run`, `run.neuron`,
`run.test_sentences`, `run.predict`) looks

1. at the path as it was typed, from the current folder;
2. where it was;
3. at the same place relative to the run;
4. in the folder of the run, and in the folder that holds the run.

A text is accepted if its sentences, in their order and with their words, are those that the run read, and a model if
its files are the same: their fingerprints are in `results.json`. (Labels are no part of it: a treebank whose tags were
changed is accepted, and `rank` and `compare` then stop at contributions that differ from those of the run.) The file of
a task is taken where it is unchanged; otherwise the one at the path as it was typed is read. So a run and its text can
be moved together, or copied to another machine. For a text that is elsewhere, give its path; another text is refused:

```sh
python -m probing rank runs/A --corpus texts/wiki.txt
python -m probing rank runs/B --corpus '[texts/wiki.txt, texts/test.txt]'
python -m probing compare runs/A runs/B --corpus texts/wiki.txt
```

The second line gives a corpus and a test corpus. `compare` takes each text for the runs that read it, and refuses one
that no run read.

`ablate --run` and `position --run` take `--corpus` and `--model` in the same sense. From Python it is `rank(run,
corpus=PATH)`, and `load_run(folder, corpus=PATH)` for what a `Run` reads by itself. Activations are read from the cache
of the run if it is still there, otherwise from `cache` beside the run, or extracted again.
"""

WANDB = """
## On Weights & Biases

A run of `fit` has curves over the layers (`by_layer/accuracy` with `accuracy_low` and `accuracy_high`, and each
control beside it; `by_layer/first_10_share` with that of random directions, `first_10_share_directions`,
`first_10_share_highest` and `first_10_share_p`, and `n_above`), training curves of each layer
(`train/layer_06/objective`), the ranked tables (`neurons/layer_06`; `heads` with `--site attention`), the figures
(as PDF in the artifact), and the page (`report`), which its artifact also holds. Names do not depend on the model:
group runs by `model`, `task` or `layer` of their configuration, and their curves share one chart. Runs of the other
commands have their tables, and their measures by layer (`by_layer/mean_cosine`, ...). If the server is lost, all of
it is logged offline, under the same id.
"""


def page() -> str:
    """Return the page."""
    studies = package_studies()
    rows = "".join(f"| [`{one.name}`](#of-{one.name}) | {_names(one)} | {_processes(one)} |\n" for one in studies)
    table = f"\n| folder of | its tables | processes |\n|---|---|---|\n{rows}"
    return HEAD + table + MOVED + "".join(map(_study, studies)) + WANDB


def _names(study: Study) -> str:
    return ", ".join(f"`{schema.name}`" for schema in study.schemas)


def _processes(study: Study) -> str:
    return "several" if study.in_several_processes else "one"


def _study(study: Study) -> str:
    said = f"\n## Of `{study.name}`\n\nWhat the measures mean is in [{study.page.removesuffix('.md')}]({study.page}).\n"
    files = "".join(f"| `{name}` | {what} |\n" for name, what in study.files.items())
    said += f"\n| file | content |\n|---|---|\n{files}" if files else ""
    return said + "".join(_schema(schema) for schema in _schemas(study))


def _schemas(study: Study) -> Iterator[Schema]:
    yield from study.schemas
    if study.name == "fit":
        yield from (NUMBERS, NUMBER_NEURONS, PREDICTIONS)


def _schema(schema: Schema) -> str:
    of_numbers = ", of numbers" if schema in (NUMBERS, NUMBER_NEURONS) else ""
    name = f"`{schema.name}.csv`" if schema is not PREDICTIONS else "`predict`"
    head = f"\n### {name}{of_numbers}\n\n{schema.row[0].upper()}{schema.row[1:]}.\n\n| column | meaning |\n|---|---|\n"
    rows = ((", ".join(f"`{name}`" for name in column.names), column.meaning) for column in schema.columns)
    return head + "".join(f"| {names} | {meaning.replace('|', chr(92) + '|')} |\n" for names, meaning in rows)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
