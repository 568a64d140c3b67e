"""What every study does alike: results that are opened, shown, reported and logged, and runs that are never changed."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from rich.console import Console

import probing
from conftest import BARE
from families import masked_lm
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.errors import UserError
from probing.results import Table
from probing.runs import Result, study_names, study_of
from probing.runs.call import say_results
from probing.runs.run import Run, load_fit
from probing.studies.fit import _report as report_fit
from probing.studies.fit.rank import Rankings
from probing.studies.fit.rank import _report as report_rank
from report_runs import treebank
from small_data import word_pairs, write_sts, write_wic
from wandb_stand_in import read_offline_runs

pytestmark = pytest.mark.slow

# An encoder that is pretrained within a second.
SMALL = {"n_layers": 1, "d_model": 16, "n_heads": 2, "d_feedforward": 16, "vocabulary": 100, "row_length": 16}


class Made:
    """Small results of a command by its name, made when they are first asked for, and what the command said.

    Args:
        place: Folder for all files.
        corpus: File with the sentences.
        sentences: The sentences.
        mode: Mode of W&B.
    """

    def __init__(self, place: Path, corpus: Path, sentences: list[str], mode: str = "offline") -> None:
        self.place, self.corpus, self.sentences, self.mode = place, str(corpus), sentences, mode
        self.model = str(masked_lm(place / "bert", "bert", sentences))
        self.done: dict[str, Result] = {}
        self.said: dict[str, tuple[str, str]] = {}
        for part in ("train", "dev"):
            write_wic(place / "senses", part, word_pairs(40, len(part)))
        write_sts(place / "pairs", 20)
        rows = [f'"{text}",{"long" if len(text) > 100 else "short"}\n' for text in sentences]
        (place / "labelled.csv").write_text("".join(["text,label\n", *rows]), encoding="utf-8")
        (place / "trees.conllu").write_text(treebank(sentences), encoding="utf-8")
        (place / "sweep.yaml").write_text(
            yaml.safe_dump({"method": "grid", "parameters": {"probe.l2": {"values": [1e-2, 1e-1]}}}), encoding="utf-8"
        )

    def __call__(self, name: str) -> Result:
        """Return the results of a command, which are made only once."""
        if name not in self.done:
            inputs, options = self.call_of(name)  # which may need the results of other commands
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                self.done[name] = self.run(name, inputs, options)
            self.said[name] = (out.getvalue(), err.getvalue())
        return self.done[name]

    @staticmethod
    def run(name: str, inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Call a command, whose function takes options as a command line has them."""
        return getattr(probing, name.removeprefix("second ").replace("-", "_"))(*inputs, **options)

    def call_of(self, name: str) -> tuple[list[Any], dict[str, Any]]:
        """Return what a command is called with."""
        place, model, corpus = self.place, self.model, self.corpus
        usual: dict[str, Any] = {
            "quiet": True, "wandb": {"mode": self.mode}, "runs": str(place), "cache": str(place / "cache"),
            "name": name.replace(" ", "-"),
        }  # fmt: skip
        read: dict[str, Any] = {**usual, "model": model, "corpus": corpus}
        few = {"train_sentences": 60, "test_sentences": 25, "generalisation_sentences": 30}
        calls: dict[str, Callable[[], tuple[list[Any], dict[str, Any]]]] = {
            "fit": lambda: ([], {**read, **BARE, "layer": 1}),
            "second fit": lambda: ([], {**read, **BARE, "layer": 1, "random_weights": True}),
            "rank": lambda: (
                [str(self("fit").folder)], {"method": "anova", "quiet": True, "wandb": usual["wandb"]}
            ),
            "compare": lambda: ([[str(self(of).folder) for of in ("fit", "second fit")]], {**usual, "null_draws": 1}),
            "sweep": lambda: (
                [str(place / "sweep.yaml")],
                {**usual, "fit": {"model": model, "corpus": corpus, "layer": 1, "replicates": 0}},
            ),
            "geometry": lambda: ([], {**read, "layer": 1, "transforms": "none", "draws": 0}),
            "position": lambda: ([], {**read, "layer": 1}),
            "extremes": lambda: ([], {**read, "layer": 1}),
            "attention": lambda: ([], {**read, "parts": "profile"}),
            "ablate": lambda: ([], {**read, "units": "layers", "kinds": "zero", "retrain": 0}),
            "hierarchy": lambda: ([], {**usual, **few, "model": model, "layer": 1, "probe": {"l2": 1e-2}}),
            "cloze": lambda: ([], {key: value for key, value in read.items() if key != "cache"}),
            "pretrain": lambda: ([], {
                **usual, "corpus": corpus, "arms": "none", "size": "tiny", "sentences": 100, "encoder": SMALL,
                "training": {"steps": 2, "warm_up": 1, "batch_size": 4},
            }),
            "finetune": lambda: ([], {
                **usual, "model": model, "corpus": str(place / "labelled.csv"), "seeds": 1, "orders": 2,
                "starts": "all", "tuning": {"epochs": 1},
            }),
            "tuning-effect": lambda: (
                [], {**usual, "run": str(self("finetune").folder), "measures": "states,special", "sentences": 40}
            ),
            "triggers": lambda: (
                [], {**usual, "run": str(self("finetune").folder), "length": 2, "candidates": 2, "rounds": 1,
                     "draws": 2}
            ),
            "checkpoints": lambda: (
                [str(self("pretrain").folder / "checkpoints" / "*" / "step*")],
                {**usual, "measures": "geometry", "corpus": corpus, "layer": 1},
            ),
            "wic": lambda: ([str(place / "senses")], {**usual, "model": model, "layer": 1, "transforms": "none"}),
            "sts": lambda: ([[str(place / "pairs")]], {**usual, "model": model, "layer": "0,1", "pooling": "cls"}),
            "position-bias": lambda: ([], {**read, "sentences": 3, "documents": 20, "draws": 2, "top": 2}),
            "trees": lambda: ([], {
                **read, "corpus": str(place / "trees.conllu"), "layer": "0,1", "train_sentences": 40, "rotations": 0,
            }),
            "reproduce": lambda: (["luo2021"], {**usual, "models": model, "corpus": corpus, "claims": [1]}),
        }  # fmt: skip
        assert {*study_names()} <= {*calls}
        return calls[name]()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, corpus_file: Path, sentences: list[str]) -> Made:
    return Made(tmp_path_factory.mktemp("every"), corpus_file, sentences)


@pytest.mark.parametrize("name", study_names())
def test_results_are_opened_shown_and_reported_alike(name: str, made: Made) -> None:
    one = made(name)
    study = study_of(name)
    assert (one.study, isinstance(one, Result)) == (study, True)
    opened = probing.load_run(one.folder)
    assert type(opened) is type(one)
    assert (opened.config, opened.results) == (one.config, one.results)
    names = [schema.name for schema in study.schemas if schema.name != "METHOD"]
    assert repr([getattr(opened, of) for of in names]) == repr([getattr(one, of) for of in names])
    filled = [of for of in names if getattr(opened, of)]
    assert filled or name == "rank"
    for of in filled:
        table = getattr(opened, of)
        assert isinstance(table, Table)
        assert len(table.to_pandas()) == len(table)
        assert not isinstance(one.results.get(of), list) or name == "fit"  # tables are not repeated
    assert {path.stem for path in (one.folder / "figures").glob("*.png")} == {*opened.drawings()}
    assert opened.tables()
    assert repr(opened).endswith(str(opened.folder))
    assert all(isinstance(line, str) and line for line in opened.conclusions())
    with pytest.raises(AttributeError, match=f"they have .*{names[0]}" if name != "rank" else "they have"):
        _ = opened.no_such_table
    page = opened.report().read_text(encoding="utf-8")
    text = unescape(re.sub("<[^>]*>", "", page))
    assert "nan" not in re.sub(r"<script>.*", "", page, flags=re.DOTALL).lower().split("</style>")[1].split()
    if name not in ("fit", "compare"):
        assert study.heading(opened) in text
        (section,) = re.findall(rf'<section[^>]* id="{name}-0".*?</section>', page, re.DOTALL)
        shown = unescape(re.sub("<[^>]*>", " ", section))
        assert all(line[:40] in shown for line in opened.conclusions())
    for term in ("Terms", "To reproduce"):
        assert term in text


@pytest.mark.parametrize("name", study_names())
def test_the_options_of_a_run_are_those_of_its_command(name: str, made: Made) -> None:
    options = made(name).folder / "config.yaml"
    assert not options.exists() or run(COMMANDS, [name, "--config", str(options), "--print_config"]) == 0


@pytest.mark.parametrize("name", study_names())
def test_a_command_answers_in_35_lines_and_says_that_there_is_more(
    name: str, made: Made, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At a terminal of 80 columns; two lines more say where a tracked run is."""
    results = made(name)
    capsys.readouterr()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    if name == "fit":
        assert isinstance(results, Run)
        report_fit(results, None, quiet=False, verbose=False)
    elif name == "rank":
        assert isinstance(results, Rankings)
        report_rank(results, load_fit(results.folder.parent), None, quiet=False, verbose=False)
    else:
        say_results(results, None, quiet=False)
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert len(lines) <= 35, printed
    where = " ".join(lines[-2:])
    assert "Results: " in where
    assert all(
        line.startswith(("Results: ", "(")) for line in lines if str(results.folder) in line or line == lines[-1]
    )
    is_all = all(" ".join(line.split()) in " ".join(printed.split()) for line in results.conclusions())
    assert ("--verbose prints all" in where) or (is_all and len(results.tables()) <= 2)


@pytest.mark.parametrize("name", study_names())
def test_no_number_of_its_tables_is_cut(name: str, made: Made) -> None:
    for table in made(name).tables():
        headings = [str(column.header) for column in table.columns]
        cells = [[str(cell) for cell in column.cells] for column in table.columns]
        for width in (60, 80, 100, 160):
            console = Console(width=width, color_system=None)
            with console.capture() as capture:
                console.print(table, crop=False)
            text = " ".join(capture.get().split())
            assert "…" not in text
            _, _, left_out = text.partition("left out for lack of room: ")
            for k, (heading, column) in enumerate(zip(headings, cells, strict=True)):
                # A heading that recurs is named by the column that it is of.
                of = [name for name in headings[:k] if headings.count(name) == 1]
                called = f"{heading} of {of[-1]}" if headings.count(heading) > 1 and of else heading
                if called not in left_out.split(", "):
                    assert {word for cell in column for word in cell.split()} <= set(text.split()), (heading, width)


@pytest.mark.parametrize("name", study_names())
def test_wandb_has_each_table_and_figure(name: str, made: Made) -> None:
    one = made(name)
    runs = read_offline_runs(one.folder)
    assert all(run.exit_code == 0 for run in runs)
    keys = {key for run in runs for row in run.history for key in row}
    figures = {f"figures/{path.stem}" for path in (one.folder / "figures").glob("*.png")}
    tables = {key for key, table in one.by_name.items() if table}
    assert figures <= keys
    if name == "fit":  # whose neurons are a table for each layer, and these are files of its artifact alone
        tables = tables - {"neurons", "classes", "positions", "profiles"} | {"neurons/layer_01"}
    assert tables <= keys
    for table in tables:
        run = next(run for run in runs if run.rows(table))
        assert len(run.table(table)) == len(one.by_name[table.split("/")[0]])


@pytest.mark.parametrize("name", [name for name in study_names() if name != "rank"])  # which adds to a run
def test_a_name_that_is_taken_is_refused(name: str, made: Made) -> None:
    folder = made(name).folder
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=f'`name="{name}"`: .* exists and runs are never changed; choose another name'):
        made.run(name, *made.call_of(name))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", study_names())
def test_quiet_says_results_and_what_was_left_out_but_not_how_far_it_is(name: str, made: Made) -> None:
    one = made(name)
    out, err = made.said[name]
    assert not re.search(r"^\[\d|^run \d|^step \d|\d of \d+ trials|the training (begins|goes on)", err, re.MULTILINE)
    assert f"Results: {one.folder}" in out
    assert not set("│┃━─") & set(out)


# What differs from run to run: the times of stages, and the time in the names of runs that are given none.
_TIMES = re.compile(rb'"timings": \{[^}]*\}|-\d{8}-\d{6}|\b\d+(\.\d+)? (s|min|h)\b')


def contents(place: Path) -> dict[str, bytes]:
    """Return the bytes of every file of all runs and of their cache without times; a manifest is in any order."""
    found = {}
    for path in sorted(path for path in place.rglob("*") if path.is_file() and path.suffix != ".lock"):
        content = path.read_bytes()
        if path.suffix in (".json", ".html", ".yaml"):
            content = _TIMES.sub(b"", content)
        if path.name == "manifest.jsonl":
            content = b"\n".join(sorted(content.splitlines()))
        found[_TIMES.sub(b"", str(path.relative_to(place)).encode()).decode()] = content
    return found


def written_twice(
    names: Sequence[str], place: Path, corpus: Path, sentences: list[str]
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return what commands write, and what they write at the same place another time."""
    both = []
    for folder in ("first", "second"):
        made = Made(place / "runs", corpus, sentences, "disabled")
        for name in names:
            made(name)
        made.place.rename(place / folder)
        both.append(contents(place / folder))
    return both[0], both[1]


@pytest.mark.parametrize(
    ("n_threads", "names"),
    [
        pytest.param(1, ["rank"], marks=pytest.mark.slow),
        *[pytest.param(n, study_names(), marks=pytest.mark.several) for n in (1, 2)],
    ],
)
def test_the_same_commands_write_the_same_bytes_but_for_times(
    n_threads: int, names: list[str], corpus_file: Path, sentences: list[str], tmp_path: Path
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        first, second = written_twice(names, tmp_path, corpus_file, sentences)
    finally:
        torch.set_num_threads(before)
    assert [*first] == [*second]
    assert [name for name in first if first[name] != second[name]] == []
    assert sum(name.endswith(".safetensors") for name in first) > 2
    assert sum(name.endswith("results.json") for name in first) >= len({*names} - {"rank"})
