"""The Python interface as a notebook uses it: cells in one process, the last line of each shown as notebooks do."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pages import ROOT

CELLS = """
from probing import ProbeOptions, fit, load_run
run = fit(model=MODEL, corpus=CORPUS, runs=RUNS, name="first", controls="none", replicates=0, evidence="none",
          probe={"l2": 1e-2}, wandb={"mode": "disabled"})
run
# %%
[row["layer"] for row in run.accuracy], len(run.neurons)
# %%
run.top(2, n=3)
# %%
same = fit(**load_run(run.folder).config, name="again")
same.neurons == run.neurons and same.accuracy == run.accuracy
# %%
short = fit(**{**run.config, "probe": ProbeOptions(l2=1e-4, solver="adam"), "layer": 2, "trainer": {"max_epochs": 2}})
short.results["layers"][0]["converged"]
# %%
try:
    fit(model=MODEL, corpus=CORPUS, runs=RUNS, layer=9)
except Exception as error:
    message = f"{type(error).__name__}: {error}"
message
# %%
try:
    fit(**{**run.config, "probe": {"l3": 1}})
except Exception as error:
    message = f"{type(error).__name__}: {error}"
message
"""


def shown(cells: str, names: dict[str, Any]) -> list[tuple[str, str]]:
    """Run cells as a notebook does: of each, return the last expression as HTML, where it can be that, and as text."""
    found = []
    for cell in cells.split("# %%"):
        *body, last = ast.parse(cell).body
        assert isinstance(last, ast.Expr)
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        found.append((getattr(value, "_repr_html_", lambda: "")(), repr(value)))
    return found


@pytest.mark.slow
def test_a_notebook_sees_tables_and_can_repeat_a_run(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"MODEL": str(checkpoints["bert"]), "CORPUS": str(corpus_file), "RUNS": str(tmp_path / "runs")}
    (html, text), layers, top, same, converged, refused, misspelt = shown(CELLS, {**names})
    assert html.count("<table>") == 2
    assert len(re.findall("<tr>", html)) == 1 + 4 + 1 + 10  # a row for each layer, ten neurons of one
    assert "Test accuracy by layer" in text
    assert "Layer 0: neurons by contribution" in text  # the one furthest above its strongest floor
    assert layers[1] == "([0, 1, 2, 3], 64)"
    assert top[1].startswith("Neurons: a row per layer and neuron, in ranked order")
    assert same[1] == "True"
    assert converged[1] == "False"
    assert re.search(r"UserError: `layer=9`: .* has layers 0 \(embeddings\) to 3, so not 9", refused[1])
    assert "`probe.l3` is not an option of fit (did you mean `probe.l2`?)" in misspelt[1]
    assert "Results: " in capsys.readouterr().out


# What a kernel without ipywidgets is for tqdm, which transformers imports.
IN_KERNEL = """
import sys
import ipykernel.zmqshell
sys.modules["ipywidgets"] = None
"""


@pytest.mark.parametrize(("first", "warnings"), [("", 1), ("import probing", 0)])
def test_a_notebook_without_widgets_is_not_told_to_install_them(first: str, warnings: int) -> None:
    pytest.importorskip("ipykernel")
    code = f"{IN_KERNEL}\n{first}\nimport tqdm.auto"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True, cwd=ROOT)
    assert ended.stderr.count("IProgress not found") == warnings


# What the tutorial's cell of settings says at toy size.
TOY = """
import gc, sys
gc.disable()  # imports create none
sys.path.append({tests!r})
from rendering import without_rendering
without_rendering()
LAYER = 2
SETTINGS = {{"model": {model!r}, "corpus": {corpus!r}, "wandb": {{"mode": "disabled"}}, "quiet": True}}
SETTINGS["probe"] = {{"l2": 1e-2}}
"""


@pytest.mark.slow
def test_the_tutorial_runs(checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(ROOT / "docs" / "tutorial.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    (settings,) = (cell for cell in code if "parameters" in cell.metadata.get("tags", []))
    settings.source = TOY.format(tests=str(ROOT / "tests"), model=str(checkpoints["bert"]), corpus=str(corpus_file))
    for cell in code:
        cell.outputs = []
    place = tmp_path / "docs"
    place.mkdir()
    shutil.copy(ROOT / ".gitignore", tmp_path)
    _git("init", "-q", at=tmp_path)
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": place}}).execute()
    kinds = [{kind for output in cell.outputs for kind in output.get("data", {})} for cell in code]
    assert sum("text/plain" in kind for kind in kinds) >= 6
    assert sum("image/png" in kind for kind in kinds) == 1
    assert len(list((place / "runs").iterdir())) >= 4
    assert _git("status", "--porcelain", "--untracked-files=all", at=tmp_path) == "?? .gitignore\n"


def _git(*args: str, at: Path) -> str:
    return subprocess.run(["git", *args], cwd=at, check=True, capture_output=True, encoding="utf-8").stdout
