"""The study of docs/studies.md, installed as a package into an environment of its own, is a command like the others."""

from __future__ import annotations

import json
import os
import re
import site
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest

from probing.runs.study import added_studies

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


@pytest.mark.slow
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
    assert "Norms: a row per layer" in done[1]
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
        "Mean Euclidean norm of the hidden",
    ):
        assert part in text


@pytest.mark.slow
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
    assert "Norms: a row per layer" in opened
    ours, theirs, counts, n = json.loads(done.stdout.partition("RESULT ")[2])
    assert set(counts) == {n}
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


@pytest.mark.slow
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
