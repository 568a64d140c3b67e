"""Runs whose folder, text, model or task has moved, and those of a study of one's own."""

from __future__ import annotations

import json
import os
import re
import shutil
import site
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import BARE
from probing import Run, WandbOptions, ablate, compare, fit, rank
from probing.__main__ import COMMANDS
from probing.cli.commandline import run as run_command
from probing.errors import UserError
from probing.runs import added_studies
from probing.runs.loading import load_run
from probing.runs.places import read_from

pytestmark = pytest.mark.slow

NO_WANDB = WandbOptions("disabled")
TASK = """from probing import Task
class Even(Task):
    ordinal = False
    def labels(self, tokens, corpus):
        return tokens.positions % 2
"""
# Few passes: how good probes are does not matter here.
QUICKLY: dict[str, Any] = {"quiet": True, "trainer": {"accelerator": "cpu", "max_epochs": 15}}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, checkpoints: dict[str, Path], corpus_file: Path) -> Path:
    """A project with texts, a model, a task and runs, which was made with relative paths and is read only."""
    place = tmp_path_factory.mktemp("original") / "project"
    (place / "data").mkdir(parents=True)
    lines = corpus_file.read_text(encoding="utf-8").splitlines(keepends=True)
    (place / "data" / "text.txt").write_text("".join(lines[:150]), encoding="utf-8")
    (place / "data" / "test.txt").write_text("".join(lines[145:]), encoding="utf-8")  # five sentences are in both
    (place / "even.py").write_text(TASK, encoding="utf-8")
    shutil.copytree(checkpoints["bert"], place / "models" / "own")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        how: dict[str, Any] = {"layer": [0, 2], "model": "models/own", "wandb": NO_WANDB, **BARE, **QUICKLY}
        fit(corpus="data/text.txt", name="one", **how)
        fit(corpus="data/text.txt", test_corpus="data/test.txt", name="two", **how)
        fit(corpus="data/text.txt", task="even.py:Even", name="even", **how)
        fit(corpus=[line.strip() for line in lines[:80]], name="listed", **how)
    return place


@pytest.fixture
def moved(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The project in another folder, without what was where it was, as seen from a third folder."""
    away = original.with_name("away")
    shutil.copytree(original, tmp_path / "moved", ignore=shutil.ignore_patterns("cache", "*.pdf", "*.png"))
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    original.rename(away)
    monkeypatch.setenv("PROBING_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "moved"
    away.rename(original)


def ranked(folder: Path, **options: Any) -> list[int]:
    made = rank(folder, method="contribution", quiet=True, wandb=NO_WANDB, **options)
    return [row["neuron"] for row in made.rankings["contribution"]]


def own_ranking(folder: Path) -> list[int]:
    return [row["neuron"] for row in load_run(folder).neurons]


def test_where_everything_lay_is_noted_and_nothing_of_what_is_built_in(original: Path) -> None:
    noted = load_run(original / "runs" / "two").results["read_from"]
    assert noted == {
        "corpus": {"path": str(original / "data" / "text.txt"), "from_run": "../../data/text.txt"},
        "test_corpus": {"path": str(original / "data" / "test.txt"), "from_run": "../../data/test.txt"},
        "model": {"path": str(original / "models" / "own"), "from_run": "../../models/own"},
    }
    listed = load_run(original / "runs" / "listed").results["read_from"]
    assert listed["corpus"]["from_run"] == "corpus.txt"  # in the run itself
    assert set(load_run(original / "runs" / "even").results["read_from"]["task"]) == {"path", "from_run", "sha256"}
    built_in = {"model": "minilm", "corpus": "builtin", "test_corpus": "hf:some/data?split=test", "task": "position"}
    assert read_from(built_in, original / "runs" / "new.partial") == {}
    elsewhere = read_from({**built_in, "corpus": "/text.txt"}, original / "runs" / "new.partial")
    assert elsewhere == {"read_from": {"corpus": {"path": "/text.txt"}}}  # nothing in common with the run


def test_run_and_text_that_moved_together_are_read_from_anywhere(moved: Path) -> None:
    for name in ("one", "two", "even", "listed"):
        assert ranked(moved / "runs" / name) == own_ranking(moved / "runs" / name)
    made = load_run(moved / "runs" / "two")
    assert len(made.test_sentences) == made.results["n_sentences"]["test"]
    assert len(made.neuron(2, 3, n=2)) == 4
    assert made.predict("Layers of neurons.")
    folders = [moved / "runs" / name for name in ("one", "two")]
    assert compare(folders, runs=str(moved / "new"), quiet=True, wandb=NO_WANDB, null_draws=1).agreement


def test_a_run_that_moved_alone_finds_its_text_where_it_was(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(original / "runs" / "two", tmp_path / "two")
    assert ranked(run, cache=str(tmp_path / "cache")) == own_ranking(run)


@pytest.mark.parametrize("place", [".", ".."])
def test_a_text_in_the_folder_of_the_run_or_beside_it_is_found(moved: Path, place: str) -> None:
    run = moved / "runs" / "one"
    (moved / "data" / "text.txt").rename(run / place / "text.txt")
    assert len(load_run(run).test_sentences) == load_run(run).results["n_sentences"]["test"]


def test_a_text_that_is_nowhere_is_refused_with_the_places_and_can_be_given(
    moved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, text = moved / "runs" / "one", tmp_path / "other-name.txt"
    (moved / "data" / "text.txt").rename(text)
    command = ["rank", str(run), "--method=contribution", "--wandb.mode=disabled", "--quiet"]
    assert run_command(COMMANDS, command) == 2
    said = capsys.readouterr().err
    places = [
        Path.cwd() / "data" / "text.txt", load_run(run).results["read_from"]["corpus"]["path"],
        moved / "data" / "text.txt", run / "text.txt", moved / "runs" / "text.txt",
    ]  # fmt: skip
    assert f"its corpus data/text.txt is not there any more; it was looked for at {places[0]}, " in said
    assert all(str(place) in said for place in places)
    assert "with `--corpus` (from Python with `corpus=`" in said
    assert run_command(COMMANDS, [*command, f"--corpus={text}"]) == 0
    with pytest.raises(UserError, match="it was looked for at"):
        _ = load_run(run).test_sentences
    given = load_run(run, corpus=text)
    assert isinstance(given, Run)
    assert given.test_sentences
    assert len(given.neuron(0, 1, n=1)) == 2
    with pytest.raises(UserError, match=r"test\.txt\"` is no text that `.*one` read; give the same text, or leave"):
        ranked(run, corpus=moved / "data" / "test.txt")
    with pytest.raises(UserError, match=r"test\.txt\"` is no text that `.*one` read"):
        load_run(run, corpus=moved / "data" / "test.txt")
    with pytest.raises(UserError, match=r"`corpus=.-.`: the text of a finished run is read more than once"):
        ranked(run, corpus="-")


def test_a_text_that_changed_is_refused_also_one_that_was_trained_on_alone(moved: Path) -> None:
    text = moved / "data" / "text.txt"
    lines = text.read_text(encoding="utf-8").splitlines(keepends=True)
    text.write_text("".join(lines[1:]), encoding="utf-8")
    for name in ("one", "two"):
        with pytest.raises(
            UserError, match=r"its corpus has changed since: there is another text at .*moved.data.text"
        ):
            ranked(moved / "runs" / name)
    text.write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"another text at .*text\.txt \(which cannot be read\), and nothing is at"):
        ranked(moved / "runs" / "one")
    (moved / "runs" / "text.txt").write_text("".join(lines), encoding="utf-8")  # the next place has it
    assert ranked(moved / "runs" / "two") == own_ranking(moved / "runs" / "two")


def test_texts_that_are_given_go_to_the_runs_that_read_them(moved: Path, tmp_path: Path) -> None:
    for name in ("text", "test"):
        (moved / "data" / f"{name}.txt").rename(tmp_path / f"{name}-moved.txt")
    text, test = tmp_path / "text-moved.txt", tmp_path / "test-moved.txt"
    folders = [moved / "runs" / name for name in ("one", "two")]
    how: dict[str, Any] = {"runs": str(moved / "new"), "quiet": True, "wandb": NO_WANDB, "null_draws": 1}
    assert compare(folders, corpus=[text, test], **how).agreement
    assert ranked(folders[1], corpus=[str(test), str(text)]) == own_ranking(folders[1])
    with pytest.raises(UserError, match=r"two`: its test corpus data/test\.txt is not there any more"):
        compare(folders, corpus=text, **how)
    (other := tmp_path / "other.txt").write_text("Another text.\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"other\.txt\"` is no text that `.*one` and `.*listed` read"):
        compare([folders[0], moved / "runs" / "listed"], corpus=[text, other], **how)
    with pytest.raises(UserError, match="`corpus`: expected the path of a text, or a list of paths, found 7"):
        ranked(folders[0], corpus=[7])
    with pytest.raises(UserError, match="`corpus` is the text of finished runs; give that of `models` with"):
        compare(models=["minilm", "bert"], corpus=text, **how)


def test_commands_that_read_a_run_find_its_text_and_model(moved: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {**QUICKLY, "runs": str(moved / "new"), "wandb": NO_WANDB, "retrain": 0}
    run = moved / "runs" / "two"
    made = ablate(run=run, kinds="zero", units="layers", name="ablated", **how)
    assert made.config["corpus"] == str(moved / "data" / "text.txt")
    assert made.config["model"] == str(moved / "models" / "own")
    changing: dict[str, Any] = {"run": run, "neurons": "ranked", "layer": 0, "top": 1, "draws": 1, **how}
    before = ablate(name="before", **changing)
    text, test = moved / "data" / "text.txt", moved / "data" / "test.txt"
    text.rename(given := tmp_path / "given.txt")
    test.rename(moved / "runs" / "test.txt")
    (moved / "models" / "own").rename(model := tmp_path / "model")
    again = ablate(name="again", corpus=str(given), model=str(model), **changing)
    assert before is not None
    assert again is not None
    assert again.config["corpus"] == str(given)
    assert again.neuron_interventions == before.neuron_interventions
    with pytest.raises(UserError, match=r"test\.txt\"` is no text that `.*one` read"):
        ablate(run=moved / "runs" / "one", corpus=str(moved / "runs" / "test.txt"), model=str(model), **how)
    with pytest.raises(
        UserError, match=r"its model models/own is not there any more; it was looked for at .*elsewhere"
    ):
        ablate(run=run, **how)


def test_a_run_of_before_finds_what_lies_beside_it_too(moved: Path) -> None:
    for name in ("one", "listed"):
        path = moved / "runs" / name / "results.json"
        results = json.loads(path.read_text(encoding="utf-8"))
        del results["read_from"]
        path.write_text(json.dumps(results), encoding="utf-8")
        assert ranked(path.parent) == own_ranking(path.parent)


def test_a_model_is_found_by_its_content_and_another_one_is_refused(moved: Path, checkpoints: dict[str, Path]) -> None:
    run, own = load_run(moved / "runs" / "one"), moved / "models" / "own"
    before = run.predict("Layers of neurons.")
    own.rename(moved / "runs" / "own")
    assert run.predict("Layers of neurons.") == before
    shutil.copytree(checkpoints["distilbert"], own)  # the first place has another one
    assert run.predict("Layers of neurons.") == before
    shutil.rmtree(moved / "runs" / "own")
    with pytest.raises(UserError, match=r"its model models/own has changed since \(there is another one at .*own\)"):
        run.predict("Layers of neurons.")


def test_the_file_of_a_task_is_found_by_its_content(moved: Path) -> None:
    run, file = load_run(moved / "runs" / "even"), moved / "even.py"
    file.rename(moved / "runs" / "even.py")
    assert run.predict("Layers of neurons.")
    (moved / "runs" / "even.py").write_text(TASK + "# changed\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"the file of its task even\.py:Even is not there any more; it was looked for"):
        run.predict("Layers of neurons.")
    Path("even.py").write_text(TASK + "# as typed\n", encoding="utf-8")
    assert run.predict("Layers of neurons.")


ROOT = Path(__file__).parent.parent.parent
BLOCKS = re.compile(r"^```(python|toml)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def started(python: Path, place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the environment, in a folder that is not the checkout."""
    args = [str(python), *words]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(args, cwd=place, env=environment, capture_output=True, encoding="utf-8", check=False)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that has this checkout, the libraries of this one, and the package of the page."""
    place = tmp_path_factory.mktemp("own")
    written = dict(BLOCKS.findall((ROOT / "docs" / "studies.md").read_text(encoding="utf-8")))
    package = place / "package"
    package.mkdir()
    (package / "norms_study.py").write_text(written["python"], encoding="utf-8")
    (package / "pyproject.toml").write_text(written["toml"], encoding="utf-8")
    venv.create(place / "environment", with_pip=False)
    found = place / "environment" / ("Scripts" if os.name == "nt" else "bin") / "python"
    own = started(found, place, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
    others = [path for path in (*site.getsitepackages(), str(ROOT)) if Path(path).is_dir()]
    (Path(own) / "libraries.pth").write_text("\n".join(others) + "\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(found), "install", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*pip, "--quiet", str(package)], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    return found


# Types the commands of its arguments one after another, in a process whose time is mostly that of the imports.
TYPED = """
import contextlib, io, json, pathlib, sys
from probing.__main__ import main
found = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["probing", *words]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as error:
        try:
            status = main()
        except SystemExit as ended:
            status = ended.code or 0
    there = sorted(path.as_posix() for pattern in ("runs", "runs/a/*") for path in pathlib.Path().glob(pattern))
    found.append((status, out.getvalue(), error.getvalue(), there))
print(json.dumps(found))
"""


def typed(python: Path, place: Path, *commands: tuple[str, ...]) -> list[tuple[int, str, str, list[str]]]:
    """Return the exit status of each command, its output and its errors, and the files that run `a` then has."""
    done = started(python, place, "-c", TYPED, json.dumps(commands))
    assert done.returncode == 0, done.stderr
    return [tuple(found) for found in json.loads(done.stdout)]


def test_a_study_of_another_package_is_a_command_like_the_others(
    python: Path, checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    assert "norms          Measure how long" in started(python, tmp_path, "-m", "probing", "--help").stdout
    usual = ("norms", f"--model={checkpoints['bert']}", f"--corpus={corpus_file}")
    told, wrong, done, taken, page = typed(
        python, tmp_path, ("norms", "--help"), (*usual, "--seed=-1", "--wandb.mode=disabled"),
        (*usual, "--name=a", "--layer=0,2", "--wandb.mode=offline"), (*usual, "--name=a", "--wandb.mode=disabled"),
        ("report", "runs/a"),
    )  # fmt: skip
    assert "--layer" in told[1]
    assert "Layers to read: one (6), several" in told[1]
    assert wrong[0] == 2
    assert wrong[2].startswith("probing norms: `--seed -1` is out of range")
    assert wrong[3] == []
    assert done[0] == 0, done[2]
    assert "Mean norm of hidden states" in done[1]
    assert "Hidden states are longest in layer" in done[1]
    files = ("norms.csv", "config.yaml", "results.json", "figures", "wandb")
    assert set(done[3]) == {"runs", *(f"runs/a/{name}" for name in files)}
    assert (taken[0], "exists and runs are never changed" in taken[2]) == (2, True)
    assert page[0] == 0, page[2]
    folder = tmp_path / "runs" / "a"
    text = (folder / "report.html").read_text(encoding="utf-8")
    for part in (
        "<h2>Norms of hidden states: a</h2>",
        "Hidden states are longest",
        "<svg",
        "Mean norm of the hidden states.",
    ):
        assert part in text


def test_its_numbers_are_those_of_the_model_and_its_runs_are_opened_and_repeated(
    python: Path, checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    # In one process, most of whose time is that of the imports.
    code = f"""
import sys
import torch
from transformers import AutoModel, AutoTokenizer
import probing
from norms_study import norms
from probing.__main__ import main
usual = dict(quiet=True, wandb={{"mode": "disabled"}}, name="a")
made = norms(model={str(checkpoints["bert"])!r}, corpus={str(corpus_file)!r}, **usual)
sys.argv = ["probing", "norms", "--config", "runs/a/config.yaml", "--name=b"]
assert main() == 0
opened = probing.load_run("runs/a")
print("OPENED", opened.norms.to_pandas().dtypes.to_dict(), repr(opened))
model, tokenizer = (kind.from_pretrained({str(checkpoints["bert"])!r}) for kind in (AutoModel, AutoTokenizer))
texts = open({str(corpus_file)!r}, encoding="utf-8").read().splitlines()
sums, n = torch.zeros(len(made.norms)), 0
with torch.no_grad():
    for text in texts:
        states = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states
        sums += torch.stack([one[0].norm(dim=1).sum() for one in states])
        n += states[0].shape[1]
import json
columns = [[row[name] for row in made.norms] for name in ("norm", "n_tokens")]
print("RESULT", json.dumps([columns[0], (sums / n).tolist(), columns[1], n]))
"""
    done = started(python, tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
    runs = tmp_path / "runs"
    assert (runs / "a" / "norms.csv").read_bytes() == (runs / "b" / "norms.csv").read_bytes()
    opened = done.stdout.partition("OPENED ")[2]
    assert "'layer': dtype('int64'), 'norm': dtype('float64')" in opened
    assert "Mean norm of hidden states" in opened
    ours, theirs, counts, n = json.loads(done.stdout.partition("RESULT ")[2])
    assert set(counts) == {n}
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def test_a_study_that_cannot_be_imported_disturbs_no_other_command(python: Path, tmp_path: Path) -> None:
    own = started(python, tmp_path, "-c", "import norms_study; print(norms_study.__file__)").stdout.strip()
    Path(own).rename(Path(own).with_suffix(".away"))
    try:
        refused = started(python, tmp_path, "-m", "probing", "norms")
        assert refused.returncode == 2
        assert "No module named 'norms_study'" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert started(python, tmp_path, "-m", "probing", "fit", "--help").returncode == 0
    finally:
        Path(own).with_suffix(".away").rename(Path(own))


def test_this_environment_has_no_study_of_another_package() -> None:
    assert added_studies() == {}
