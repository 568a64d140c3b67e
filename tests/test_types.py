"""What a type checker finds of the package once it is installed, in the code of a page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pages import ROOT, code_blocks

# Heavy libraries, whose types are not asked after.
UNREAD = (
    "torch", "pytorch_lightning", "transformers", "jsonargparse", "scipy", "matplotlib", "torchmetrics", "wandb",
    "huggingface_hub", "rich", "sklearn", "safetensors", "filelock",
)  # fmt: skip


@pytest.mark.slow
def test_the_script_of_a_page_is_typed_where_the_package_is_installed(tmp_path: Path) -> None:
    install = ["pip", "install", "-q", "--no-deps", "--no-compile", "--no-build-isolation"]
    install += ["--target", str(tmp_path / "site")]
    copy = tmp_path / "source"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(copy)], check=True)
    subprocess.run([sys.executable, "-m", *install, str(copy)], check=True)
    script = [code for language, code in code_blocks(ROOT / "docs" / "arrays.md") if language == "python"]
    asked = ["reveal_type(run)", "reveal_type(run.accuracy)", "reveal_type(module)", "reveal_type(data.classes)"]
    (tmp_path / "script.py").write_text("\n".join([*script, *asked]), encoding="utf-8")
    readme = [code for language, code in code_blocks(ROOT / "README.md") if language == "python"]
    assert readme
    runs = "from probing import compare, fit, pretrain, rank, report\nrank(run)\ncompare([run, run])\nreport(run)"
    runs += "\nfit(probe={'l2': 1e-3}, wandb={'mode': 'offline'})\npretrain(training={'steps': 9}, wandb={})"
    (tmp_path / "readme.py").write_text("\n".join([*readme, runs]), encoding="utf-8")
    sections = [f"[mypy-{name}.*]\nfollow_imports = skip\n" for name in UNREAD]
    (tmp_path / "mypy.ini").write_text("\n".join(["[mypy]\nstrict = true\n", *sections]), encoding="utf-8")
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "script.py", "readme.py"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "site")}, capture_output=True, encoding="utf-8",
    )  # fmt: skip
    assert found.returncode == 0, found.stdout
    for name in ("runs.run.Run", "results.rows.Table", "probes.linear.LinearProbe", "list[Any]"):
        assert name in found.stdout
