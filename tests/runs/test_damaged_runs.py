"""Whatever was done to a folder of results: what reads it reads it whole, or refuses it in one sentence."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from damaged_runs import Kinds, damaged_copy, ended, make_all, make_few, readers
from probing import load_run
from probing.errors import UserError
from probing.page.sources import folder_block
from probing.runs.checks import _OF_PARTS, check_parts
from written import results_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning")


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


def test_no_pipe_is_waited_for(few: Kinds, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    try_pipes(few, tmp_path, checkpoints["bert"])


def test_contexts_are_of_one_end_of_a_neuron_or_the_other() -> None:
    row: dict[str, Any] = dict.fromkeys(_OF_PARTS["contexts"], 1)
    check_parts("contexts", [{**row, "end": end} for end in ("highest", "lowest")], [1])
    with pytest.raises(ValueError, match=r"contexts\.csv has an end that is neither highest nor lowest"):
        check_parts("contexts", [{**row, "end": "1_0"}], [1])


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
