"""What `pip install .` puts on a machine, and what a type checker finds of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from configparser import ConfigParser
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from site import getsitepackages

import pytest

from pages import ROOT, code_blocks


@pytest.fixture(scope="module")
def setup() -> ConfigParser:
    parser = ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def _folders(name: str) -> list[Path]:
    return [file.parent.relative_to(ROOT) for file in sorted((ROOT / name).rglob("__init__.py"))]


def test_the_folders_of_users_are_installed_as_parts_of_the_package() -> None:
    # All other packages are found, in a checkout as in an installation.
    elsewhere = {"probing.builtin_claims": "conf/claims", "probing.builtin_tasks": "tasks"}
    assert f"ELSEWHERE = {json.dumps(elsewhere)}" in (ROOT / "setup.py").read_text(encoding="utf-8")
    assert _folders("tasks") == [Path("tasks")]
    assert find_spec("probing.builtin_tasks")


def test_every_file_that_is_no_module_is_installed(setup: ConfigParser) -> None:
    found = {
        file.relative_to(ROOT)
        for file in (ROOT / "probing").rglob("*")
        if file.is_file() and file.suffix not in (".py", ".pyc")
    }
    listed = {
        package: [file.relative_to(ROOT) for name in names.split() for file in ROOT.glob(f"{_folder(package)}/{name}")]
        for package, names in setup["options.package_data"].items()
    }
    assert all(listed.values())
    assert found == {file for package, files in listed.items() for file in files if package != "probing.builtin_claims"}
    assert {file.name for file in (ROOT / "conf" / "claims").iterdir()} == {
        file.name for file in listed["probing.builtin_claims"]
    }


def _folder(package: str) -> str:
    return {"probing.builtin_claims": "conf/claims"}.get(package, package.replace(".", "/"))


def test_the_script_is_not_named_as_that_of_an_unrelated_distribution(setup: ConfigParser) -> None:
    scripts = setup["options.entry_points"]["console_scripts"].split("\n")
    assert [line for line in scripts if line] == ["neuron-probing = probing.__main__:main"]


THEIRS = ("probing/__init__.py", "probing/_core.abi3.so", "probing/cli/__init__.py")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of installed packages that holds this one."""
    ignored = shutil.ignore_patterns("__pycache__")
    return shutil.copytree(ROOT / "probing", tmp_path / "site" / "probing", ignore=ignored).parent


def install_other(site: Path, files: tuple[str, ...] = THEIRS) -> None:
    """Install the unrelated distribution there, over whatever has the same name."""
    for name in files:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text("", encoding="utf-8")
    metadata = site / "probing-0.2.4.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: probing\nVersion: 0.2.4\n", encoding="utf-8")
    (metadata / "RECORD").write_text(
        "".join(f"{name},,\n" for name in (*files, f"{metadata.name}/RECORD")), encoding="utf-8"
    )


def start(site: Path, *others: Path) -> tuple[int, str]:
    command = [sys.executable, "-m", "probing", "cache", "ls", "--cache", "nothing"]
    path = os.pathsep.join(map(str, (site, *others)))
    ended = subprocess.run(
        command,
        cwd=site.parent,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.slow
def test_it_starts_where_its_files_are_its_own(site: Path, tmp_path: Path) -> None:
    assert start(site) == (0, "nothing is cached in nothing\n")
    install_other(tmp_path / "elsewhere")
    assert start(site, tmp_path / "elsewhere") == (0, "nothing is cached in nothing\n")


def test_a_folder_that_is_taken_for_the_package_is_named(tmp_path: Path) -> None:
    if PathFinder.find_spec("probing", [path for path in sys.path if Path(path) != ROOT]):
        pytest.skip("an installation that is not editable comes before a folder")
    (tmp_path / "probing" / "runs").mkdir(parents=True)
    command = [sys.executable, "-m", "probing", "cache", "ls"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", check=False
    )  # fmt: skip
    named = f"probing: the folder {tmp_path / 'probing'} hides the installed package; run in another folder"
    assert (ended.returncode, ended.stderr.startswith(named)) == (2, True), ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("story", ["other first", "other last", "other removed"])
def test_it_refuses_to_start_where_files_of_the_unrelated_distribution_are_mixed_with_its_own(
    story: str, site: Path
) -> None:
    install_other(site)
    if story == "other first":  # this one was then installed over it
        for name in ("__init__.py", "cli/__init__.py"):
            shutil.copy(ROOT / "probing" / name, site / "probing" / name)
    if story == "other removed":
        if PathFinder.find_spec("probing", getsitepackages()):
            pytest.skip("a whole copy that is installed is started in place of what is left of this one")
        shutil.rmtree(site / "probing-0.2.4.dist-info")
        for name in THEIRS:
            (site / name).unlink()
    status, said = start(site)
    assert status == 2
    assert said.count("\n") == 1
    other = "probing" if story == "other removed" else "probing 0.2.4"
    assert said.startswith(f"probing: files of the unrelated distribution `{other}` are mixed with those of `neuron-pr")
    assert "pip uninstall probing neuron-probing" in said


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
    script = [code for language, code in code_blocks(ROOT / "docs" / "activations.md") if language == "python"]
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
    for name in ("runs.run.Run", "results.Table", "probes.linear.LinearProbe", "list[Any]"):
        assert name in found.stdout
