"""A run on disk and in Python: whole, visibly partial, or damaged and refused in one sentence."""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.numpy import load_file, save_file

from conftest import BARE
from damaged_runs import Kinds, damaged_copy, ended, make_all, make_few, readers
from probing import Rankings, Result, Run, fit, probe, rank, sweep
from probing.__main__ import COMMANDS
from probing.activations import ActivationStore
from probing.cli import commandline as command_line
from probing.cli.options import LARGEST, SMALLEST
from probing.data.module import ActivationDataModule
from probing.errors import UserError
from probing.page.charts import folder_block
from probing.results import Table
from probing.runs.call import Measurements
from probing.runs.checks import check_documents, check_parts
from probing.runs.folder import RunFolder, check_name
from probing.runs.loading import load_run
from probing.runtime.files import RUNNING, Owner, take_over
from probing.tables.schema import ACCURACY, CONTEXTS
from written import read_csv, results_of, write_csv


def test_a_run_is_partial_until_it_is_whole(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "mine", "default")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.partial"]
    with pytest.raises(UserError, match="is one that did not finish"):
        load_run(tmp_path / "mine")
    assert folder.finish() == tmp_path / "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    "name", ["", "..", ".", ".hidden", "a/b", "/tmp/x", "../x", "a b", "x.partial", "-x", "x" * 300, "a\nb", "a\0b"]
)
def test_names_that_are_not_plain_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="not a plain name"):
        check_name(tmp_path, name)


def test_a_name_in_use_is_refused_whole_or_partial(tmp_path: Path) -> None:
    RunFolder(tmp_path, "mine", "default").finish()
    with pytest.raises(UserError, match="runs are never changed"):
        RunFolder(tmp_path, "mine", "default")
    RunFolder(tmp_path, "other", "default")
    with pytest.raises(UserError, match=rf"under way \(process {os.getpid()}\); wait"):
        RunFolder(tmp_path, "other", "default")


KILLED = """
import os, signal, sys
from pathlib import Path
from probing.runs.folder import RunFolder
folder = RunFolder(Path(sys.argv[1]), "mine", "default")
(folder.path / "accuracy.csv").write_text("half", encoding="utf-8")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """What a killed run left."""
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False).returncode != 0
    assert (tmp_path / "mine.partial" / "accuracy.csv").is_file()
    return tmp_path / "mine.partial"


@pytest.mark.skipif(sys.platform == "win32", reason="whether a process lives is not asked there")
def test_the_name_of_a_killed_run_is_free_again(left: Path) -> None:
    assert check_name(left.parent, "mine") == left.parent / "mine"
    folder = RunFolder(left.parent, "mine", "default")
    assert sorted(path.name for path in left.iterdir()) == [RUNNING, "figures"]
    with pytest.raises(UserError, match=rf"is under way \(process {os.getpid()}\)"):
        check_name(left.parent, "mine")
    assert [path.name for path in folder.finish().iterdir()] == ["figures"]


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (None, "under way or was interrupted; remove"),
        ("{", "under way or was interrupted; remove"),
        ('{"process": 1}', "under way or was interrupted; remove"),
        ('{"process": 7, "machine": "node12 pid:[4]"}', r"interrupted on node12 \(process 7\); remove"),
    ],
)
def test_a_run_that_may_be_alive_keeps_its_name(left: Path, told: str | None, words: str) -> None:
    (left / RUNNING).unlink()
    if told is not None:
        (left / RUNNING).write_text(told, encoding="utf-8")
    for claim in (lambda: check_name(left.parent, "mine"), lambda: RunFolder(left.parent, "mine", "default")):
        with pytest.raises(UserError, match=words):
            claim()
    assert (left / "accuracy.csv").read_text(encoding="utf-8") == "half"


def test_a_killed_process_of_another_machine_cannot_be_told(left: Path) -> None:
    dead = Owner.read(left)
    assert dead is not None
    Owner(dead.process, f"not-{dead.machine}").write(left)
    with pytest.raises(UserError, match=rf"interrupted on not-.* \(process {dead.process}\); remove"):
        RunFolder(left.parent, "mine", "default")


@pytest.mark.parametrize("how", ["another is taking it", "another has taken it"])
def test_what_another_process_takes_over_is_left_to_it(left: Path, how: str) -> None:
    dead = Owner.read(left)
    assert dead is not None
    if how == "another is taking it":
        (left / f"{RUNNING}.after.{dead.process}").write_text("", encoding="utf-8")
    else:
        Owner(os.getppid(), dead.machine).write(left)
    before = sorted(path.name for path in left.iterdir())
    assert not take_over(left, dead)
    assert sorted(path.name for path in left.iterdir()) == before
    assert (left / "accuracy.csv").is_file()


@pytest.mark.skipif(sys.platform == "win32", reason="whether a process lives is not asked there")
def test_of_many_that_want_the_name_of_a_killed_run_one_gets_it(left: Path) -> None:
    start = threading.Barrier(8)

    def claim(_: int) -> bool:
        start.wait()
        with contextlib.suppress(UserError):
            RunFolder(left.parent, "mine", "default")
            return True
        return False

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(claim, range(8))) == 1
    assert sorted(path.name for path in left.iterdir()) == [RUNNING, "figures"]


def test_runs_without_a_name_never_meet(tmp_path: Path) -> None:
    names = {RunFolder(tmp_path, None, "minilm-position").final.name for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("minilm-position-20") for name in names)


def test_a_folder_of_runs_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match=r"--runs .* cannot be written"):
        RunFolder(tmp_path / "file" / "runs", "mine", "default")


def test_tables_keep_full_precision_and_leave_out_what_was_not_measured(tmp_path: Path) -> None:
    rows = [{"layer": 3, "accuracy": 0.1 + 0.2, "n_classes": 7}, {"layer": 4, "accuracy": 1e-17, "n_classes": 7}]
    write_csv(tmp_path / "t.csv", rows, tuple(ACCURACY.types))
    assert (tmp_path / "t.csv").read_text(encoding="utf-8").splitlines()[0] == "layer,accuracy,n_classes"
    assert read_csv(tmp_path / "t.csv") == rows


NO_WANDB: Any = {"mode": "disabled"}

WRITERS = (
    "`fit`, `probe`, `rank`, `compare`, `sweep`, `geometry`, `position`, `extremes`, `attention`, `ablate`, "
    "`hierarchy`, `cloze`, `pretrain`, `finetune`, `tuning-effect`, `triggers`, `checkpoints`, `wic`, `sts`, "
    "`position-bias`, `trees` or `reproduce`"
)


@pytest.fixture(scope="module")
def run(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    options: Any = {"quiet": True, "wandb": NO_WANDB, **BARE}
    place = tmp_path_factory.mktemp("runs")
    return fit(model=str(checkpoints["bert"]), corpus=str(corpus_file), runs=str(place), layer=2, name="r", **options)


def as_text(results: Any) -> str:
    """Return all that an object holds; as text, since the ends of no interval are NaN, which equals nothing."""
    return repr([*sorted(vars(results).items()), *(list(getattr(results, name)) for name in results.by_name)])


def test_a_run_is_opened_as_fit_returned_it(run: Run) -> None:
    opened = load_run(str(run.folder))
    assert isinstance(opened, Run)
    for made in (opened, run):  # a table that not every run has is read when it is asked for
        assert sum(bool(getattr(made, name)) for name in made.by_name) >= 5
    assert as_text(opened) == as_text(run)


@pytest.mark.parametrize(
    ("option", "value"),
    [*(("l2", l2) for l2 in (SMALLEST, 7e28, LARGEST)), ("patience", 10**20), ("batch_size", 10**20)],
)
def test_any_value_that_fit_takes_is_one_of_a_whole_run(run: Run, option: str, value: float) -> None:
    check_documents({**run.config, "probe": {**run.config["probe"], option: value}}, run.results)


def test_rankings_are_opened_with_all_that_rank_has_added(run: Run) -> None:
    options: Any = {"quiet": True, "wandb": NO_WANDB}
    first = rank(str(run.folder), method="contribution,anova", evaluate=True, k=[2], draws=2, **options)
    opened = load_run(run.folder / "rankings")
    assert isinstance(opened, Rankings)
    assert vars(opened) == vars(first)
    assert opened.config == run.config
    assert {type(table) for table in (*opened.rankings.values(), opened.evaluation, opened.erasure)} == {Table}
    assert not opened.erasure
    assert repr(opened).endswith(str(run.folder / "rankings"))
    second = rank(str(run.folder), method="weight", **options)
    assert set(second.rankings) == {"weight"}
    assert set(load_run(run.folder / "rankings").rankings) == {"contribution", "anova", "weight"}


def test_a_sweep_is_opened_with_the_options_of_its_trials(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    points = {"probe.l2": {"values": [1e-5, 1e-2]}, "layer": {"value": 0}, "seed": {"values": [3]}}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({"method": "grid", "parameters": points}), encoding="utf-8")
    data = {"model": str(checkpoints["bert"]), "corpus": str(corpus_file)}
    made = sweep(str(tmp_path / "s.yaml"), fit=data, runs=str(tmp_path / "runs"), quiet=True)
    opened = load_run(made.folder)
    assert isinstance(opened, Result)
    assert as_text(opened) == as_text(made)
    assert [row["probe.l2"] for row in opened.sweep] == [1e-5, 1e-2]
    assert opened.config["sweep"]["parameters"] == points
    best = load_run(made.folder / "trials" / opened.results["best"]["trial"])
    assert best.accuracy[0]["accuracy"] == max(row["accuracy"] for row in opened.sweep)
    assert "The best 2 of 2 rows by accuracy" in repr(opened)
    # What the page and the card give to repeat it is a command that does.
    program, _, module, *words = shlex.split(opened.study.command_line(opened.config))
    assert (program, module) == ("python", "probing")
    monkeypatch.chdir(made.folder)
    assert command_line.run(COMMANDS, [*words, "--runs", str(tmp_path / "again"), "--quiet"]) == 0
    assert load_run(tmp_path / "again" / "sweep").sweep == opened.sweep


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, f"expected a folder that {WRITERS} wrote"),
        ('{"kind": "dream"}', "holds a dream, which this version cannot read"),
        ('{"kind": "comparison"}', r"is damaged \(agreement.csv: No such file"),
        ("[]", "is damaged"),
        ("{", "is damaged"),
    ],
)
def test_a_folder_that_holds_no_results_is_refused(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "results.json").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=words):
        load_run(tmp_path)


def test_a_table_that_is_gone_is_named_and_one_that_is_made_on_request_is_empty(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"kind": "geometry"}), encoding="utf-8")
    (tmp_path / "config.yaml").write_text("seed: 0\n", encoding="utf-8")
    names = ("geometry", "outliers", "dimensions", "parameters", "explained")
    for name in names:
        (tmp_path / f"{name}.csv").write_text("layer,neuron,low\n3,1,\n", encoding="utf-8")
    opened = load_run(tmp_path)
    assert [row["layer"] for row in opened.geometry] == [3]
    assert opened.smoothing == opened.smoothing_sentences == opened.norms == Table()
    (tmp_path / "outliers.csv").unlink()
    with pytest.raises(UserError, match=r"is damaged \(outliers.csv: No such file"):
        load_run(tmp_path)


def test_tables_become_frames_where_pandas_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    for table in (run.neurons, run.accuracy, run.positions, run.classes, run.top(2, 3)):
        frame = table.to_pandas()
        assert isinstance(frame, pandas.DataFrame)
        assert list(frame.columns) == list(table[0])
        assert frame["layer"].tolist() == [row["layer"] for row in table]
    assert isinstance(run.neurons, list)
    real = builtins.__import__

    def without(name: str, *args: Any, **keywords: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return real(name, *args, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match="`to_pandas` needs pandas, which is not installed"):
        Table().to_pandas()


def test_the_weight_gives_the_accuracy_on_the_test_sentences(
    run: Run, checkpoints: dict[str, Path], corpus_file: Path
) -> None:
    cache = run.folder.parent / "cache"
    data = ActivationDataModule.from_text(str(checkpoints["bert"]), str(corpus_file), 2, cache=cache)
    store = data.sides.test.store
    assert isinstance(store, ActivationStore)
    states = torch.cat([store.read(2, shard.index) for shard in store.plan.shards])
    kept = torch.from_numpy(data.sides.test.labels >= 0)
    predicted = (states[kept] @ run.weight[0].T).argmax(1).numpy()
    accuracy = float((predicted == data.sides.test.labels[kept.numpy()]).mean())
    assert accuracy == pytest.approx(run.accuracy[0]["accuracy"])
    assert len(run.test_sentences) == run.results["n_sentences"]["test"]
    tested = np.unique(store.tokens.sentences[kept.numpy()])
    every = corpus_file.read_text(encoding="utf-8").splitlines()
    assert run.test_sentences == [every[i] for i in tested]


@pytest.mark.slow
def test_test_sentences_of_a_text_that_is_no_longer_the_same_are_refused(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    own, options = tmp_path / "own.txt", dict[str, Any](BARE)
    own.write_text(corpus_file.read_text(encoding="utf-8"), encoding="utf-8")
    made = fit(model=str(checkpoints["bert"]), corpus=own, runs=str(tmp_path), layer=0, quiet=True, **options)
    own.write_text("something else entirely\n", encoding="utf-8")
    with pytest.raises(UserError, match="its corpus has changed since"):
        _ = load_run(made.folder).test_sentences
    labels = np.arange(300) % 3
    arrays = probe(np.eye(3)[labels], labels, probe={"l2": 1e-2}, replicates=0, evidence="none")
    with pytest.raises(UserError, match="from arrays, which are not kept"):
        _ = arrays.test_sentences


@pytest.fixture(scope="module")
def few(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Kinds:
    return make_few(checkpoints["bert"], corpus_file, tmp_path_factory.mktemp("runs"))


@pytest.fixture
def own(few: Kinds, tmp_path: Path) -> Path:
    """A copy of a run, to be damaged."""
    return Path(shutil.copytree(few["fit"], tmp_path / "fit"))


def edited(path: Path, edit: Callable[[str], str]) -> None:
    path.write_text(edit(path.read_text(encoding="utf-8")), encoding="utf-8")


def lines(edit: Callable[[list[str]], list[str]]) -> Callable[[str], str]:
    return lambda text: "".join(edit(text.splitlines(keepends=True)))


def entry(name: str, value: object) -> Callable[[str], str]:
    return lambda text: json.dumps({**json.loads(text), name: value})


@pytest.mark.parametrize(
    ("file", "edit", "words"),
    [
        ("neurons.csv", lines(lambda rows: rows[:-1]), "neurons.csv does not rank every neuron"),
        ("neurons.csv", lines(lambda rows: [rows[0], rows[2], rows[1], *rows[3:]]), "does not rank every neuron"),
        ("neurons.csv", lines(lambda rows: [*rows[:2], *rows[1:]]), "does not rank every neuron"),
        ("neurons.csv", lambda text: text[:-3], "neurons.csv has"),
        ("neurons.csv", lambda text: text[:-1], "neurons.csv is cut at its end"),
        ("neurons.csv", lambda text: text.replace(",contribution,", ",x,"), "neurons.csv has no contribution"),
        ("accuracy.csv", lines(lambda rows: [rows[0], rows[2], rows[1]]), "layers twice, or not in order"),
        ("accuracy.csv", lines(lambda rows: rows[:2]), "accuracy.csv and results.json are not of one run"),
        ("accuracy.csv", lambda text: text.replace("\n0,0.", "\n0,0.1"), "are not of one run"),
        ("accuracy.csv", lambda text: text.replace("accuracy,", "layer,", 1), "has a column twice"),
        ("results.json", entry("classes", [1, 2, 3]), "probe.*safetensors|contributions.safetensors"),
        ("results.json", entry("classes", [True, 2]), r"has \[True, 2\] as classes"),
        ("results.json", entry("timings", {"a": float("nan")}), "NaN is no number"),
        ("results.json", entry("n_sentences", 3), "has 3 as n_sentences"),
        ("results.json", lambda text: text.replace("{", '{"classes": [],', 1), "`classes` is there twice"),
        ("results.json", lambda text: "[" * 100_000, "results.json: it has more than 100 levels"),
        ("results.json", lambda text: "", "results.json: "),
        ("config.yaml", lambda text: text.replace("seed: 0", "seed: true"), "config.yaml has True as seed"),
        ("config.yaml", lambda text: text.replace("seed: 0", f"seed: {10**30}"), "as seed"),
        ("config.yaml", lambda text: text.replace("task: position", "task: [position]"), "as task"),
        ("config.yaml", lambda text: f"{text}seed: 1\n", "`seed` is there twice"),
        ("config.yaml", lambda text: text.replace("seed: 0\n", ""), "config.yaml has no seed"),
        ("config.yaml", lambda text: f'{text}model: "a\\0b"\n', "twice"),
    ],
)
def test_what_is_wrong_with_a_run_is_named(own: Path, file: str, edit: Callable[[str], str], words: str) -> None:
    edited(own / file, edit)
    with pytest.raises(UserError, match=words) as caught:
        load_run(own)
    assert str(caught.value).startswith(f"`{own}` is damaged (")
    assert str(caught.value).endswith("; repeat the run.")


@pytest.mark.parametrize("value", [0.25, 3, 1e-07])
def test_a_control_of_a_later_version_is_no_damage(own: Path, value: float) -> None:
    results = json.loads((own / "results.json").read_text(encoding="utf-8"))
    layers = [{**layer, "later_accuracy": value} for layer in results["layers"]]
    edited(own / "results.json", entry("layers", layers))
    edited(own / "accuracy.csv", lines(lambda rows: [f"{rows[0][:-1]},later_accuracy\n", *_with(rows[1:], value)]))
    assert len(load_run(own).accuracy) == len(layers)
    edited(own / "results.json", entry("layers", [{**layer, "later_accuracy": value / 2} for layer in layers]))
    with pytest.raises(UserError, match=r"accuracy.csv and results.json are not of one run"):
        load_run(own)


def _with(rows: list[str], value: float) -> list[str]:
    return [f"{row[:-1]},{value}\n" for row in rows]


@pytest.mark.parametrize(("number", "words"), [("nan", "not finite"), ("layer", "not of one run")])
def test_tensors_of_another_shape_or_without_numbers_are_refused(own: Path, number: str, words: str) -> None:
    path = own / "probe.safetensors"
    weight = load_file(path)["weight"]
    weight[0, 0, 0] = float("nan") if number == "nan" else 1
    save_file({"weight": weight if number == "nan" else weight[:1]}, path)
    with pytest.raises(UserError, match=words):
        load_run(own).weight.sum()


def test_scores_without_a_class_are_refused(own: Path) -> None:
    edited(own / "class_scores.csv", lines(lambda rows: [row for row in rows if not row.startswith(("0,3,", "2,3,"))]))
    with pytest.raises(UserError, match=r"class_scores.csv does not have each class of the run"):
        _ = load_run(own).class_scores


@pytest.mark.parametrize("name", ["results.json", "config.yaml", "neurons.csv", "probe.safetensors"])
@pytest.mark.parametrize("what", ["folder", "link to itself", "pipe"])
def test_what_is_no_file_is_refused_and_not_waited_for(own: Path, name: str, what: str) -> None:
    (own / name).unlink()
    if what == "folder":
        (own / name).mkdir()
    elif what == "pipe":
        os.mkfifo(own / name)
    else:
        (own / name).symlink_to(name)
    with pytest.raises(UserError, match=r"is damaged \(|is no finished run"):
        load_run(own)


def try_pipes(kinds: Kinds, place: Path, model: Path) -> None:
    """Put a pipe, which nothing writes to, in place of each file of each folder, and read it."""

    def waited(*_: object) -> None:
        raise AssertionError("a pipe was waited for")

    before = signal.signal(signal.SIGALRM, waited)
    shutil.copytree(kinds["fit"], place / "fit")
    for kind, folder in kinds.items():
        for file in sorted(path.name for path in folder.iterdir() if path.is_file() and path.suffix != ".html"):
            copy = Path(shutil.copytree(folder.parent if kind == "fit/rankings" else folder, place / "own"))
            own = copy / "rankings" if kind == "fit/rankings" else copy
            (own / file).unlink()
            os.mkfifo(own / file)
            calls = readers(kind, own, model, kinds["fit"].parent / "cache")
            for name in ("load_run", "report"):
                if name in calls:
                    signal.alarm(20)
                    ended(calls[name])
                    signal.alarm(0)
            shutil.rmtree(copy)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
def test_no_pipe_is_waited_for(few: Kinds, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    try_pipes(few, tmp_path, checkpoints["bert"])


def test_contexts_are_of_one_end_of_a_neuron_or_the_other() -> None:
    row: dict[str, Any] = dict.fromkeys(CONTEXTS.needed, 1)
    check_parts(Table({**row, "end": end} for end in ("highest", "lowest")), CONTEXTS, [1], [])
    with pytest.raises(ValueError, match=r"contexts\.csv has an end that is neither highest nor lowest"):
        check_parts(Table([{**row, "end": "1_0"}]), CONTEXTS, [1], [])


def test_the_page_reads_no_pipe_as_a_configuration(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.yaml")
    signal.alarm(20)  # ends the test if the pipe is waited for
    with pytest.raises(UserError, match=r"is damaged \(config.yaml: it is a named pipe, where a file was expected"):
        folder_block("To reproduce", results_of("cloze", tmp_path, {}, {}))
    signal.alarm(0)


def try_damages(kinds: Kinds, n: int, place: Path, model: Path, share: float) -> Counter[str]:
    """Damage `n` copies of runs and read each; of the commands beyond `report`, one for a share of the copies."""
    counts: Counter[str] = Counter()
    for seed in range(n):
        draw = random.Random(seed)
        kind, folder = draw.choice(sorted(kinds)), place / str(seed)
        own, how = damaged_copy(kind, kinds, folder, draw)
        calls = readers(kind, own, model, kinds["fit"].parent / "cache")
        further = draw.choice([name for name in calls if name not in ("load_run", "report")] or ["load_run"])
        for name in ("load_run", "report", *[further] * (draw.random() < share)):
            if name in calls:
                try:
                    said = ended(calls[name])
                except Exception as error:
                    raise AssertionError(f"seed {seed}: {name} of {kind} ({how})") from error
                counts["refused" if said else "read"] += 1
        shutil.rmtree(folder)
    return counts


@pytest.mark.slow
def test_damaged_runs_are_read_or_refused(
    few: Kinds, checkpoints: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = try_damages(few, 40, tmp_path, checkpoints["bert"], 0)
    assert counts["refused"] > counts["read"] > 0


@pytest.mark.fuzz
def test_two_thousand_damaged_runs_of_every_kind_are_read_or_refused(
    checkpoints: dict[str, Path], corpus_file: Path, sentences: list[str], tmp_path: Path
) -> None:
    kinds = make_all(checkpoints["bert"], corpus_file, sentences, tmp_path / "runs")
    try_pipes(kinds, tmp_path / "pipes", checkpoints["bert"])
    counts = try_damages(kinds, 2000, tmp_path, checkpoints["bert"], 0.1)
    assert min(counts["refused"], counts["read"]) > 100
    print(dict(counts))


def test_numbers_of_numpy_and_torch_in_measurements_become_those_of_python() -> None:
    row = {"layer": np.int64(3), "share": np.float32(0.5), "name": "a", "norm": torch.tensor(2.0)}
    measured = Measurements({"shares": [row]}, {"means": np.ones(2), "sizes": (np.int32(1),)}, curves=[row])
    plain = measured.with_python_values()
    expected = {"layer": 3, "share": 0.5, "name": "a", "norm": 2.0}
    assert (plain.tables, plain.curves) == ({"shares": [expected]}, [expected])
    assert json.dumps(plain.results) == '{"means": [1.0, 1.0], "sizes": [1]}'
