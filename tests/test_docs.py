"""The documentation: its size, its links, what is generated, and a task of one's own as its page shows it."""

from __future__ import annotations

import calendar
import csv
import importlib.util
import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from conftest import BARE
from pages import PAGES, README, ROOT, anchors, code_blocks, label, links, prose
from probing import WandbOptions, fit
from probing.__main__ import COMMANDS
from probing.cli.commandline import load_command
from probing.cli.commandline import run as type_command
from probing.cli.options import flat, options_of
from probing.runs import package_studies
from probing.tables.evidence_sentences import SENTENCES

DOCS = ROOT / "docs"
MANUAL = sorted(DOCS.glob("*.md"))
LINKING = [*PAGES, *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"))]


def _script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 120


def test_the_readme_shows_what_the_quickstart_shows() -> None:
    (output,) = (block for language, block in code_blocks(README) if language == "text")
    assert 20 <= len(output.splitlines()) <= 30
    whole = iter((DOCS / "quickstart.md").read_text(encoding="utf-8").splitlines())
    # Line by line in the same order; the last rows of the table are left out.
    assert [line for line in output.splitlines() if line not in whole] == []


@pytest.mark.parametrize("page", LINKING, ids=label)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        if re.match("https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), link
        assert target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target), link


def test_pages_that_code_names_are_there() -> None:
    folders = ("probing", "tasks", "tests", "benchmarks", "conf")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.suffix in (".py", ".yaml")]
    named = {name for file in files for name in re.findall(r"docs/[\w/-]+\.md", file.read_text(encoding="utf-8"))}
    assert len(named) > 5
    assert {name for name in named if not (ROOT / name).is_file()} == set()
    for study in package_studies():
        page, _, anchor = study.page.partition("#")
        assert not anchor or anchor in anchors(DOCS / page), study.name


def test_links_are_found() -> None:
    assert sum(len(links(page)) for page in LINKING) > 100


def test_every_figure_is_on_a_page() -> None:
    shown = {Path(link).name for page in PAGES for link in links(page) if link.endswith(".png")}
    assert shown == {file.name for file in (DOCS / "figures").iterdir()}


def test_commands_that_draw_pictures_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    script = _script(DOCS / "pictures.py")
    drawn = [name for pictures in script.DRAWN.values() for name in pictures]
    assert len(set(drawn)) == len(drawn)
    assert {f"{name}.png" for name in drawn} <= {file.name for file in (DOCS / "figures").iterdir()}
    for command in script.DRAWN:
        assert type_command(COMMANDS, [*command.split(), "--print_config"]) == 0, capsys.readouterr().err
    assert script.commands_for({"neurons_layer_1", "wic"}) == [script.ALL, *(
        command for command in script.DRAWN if "--layer 1" in command or command.startswith("wic")
    )]  # fmt: skip


def _words(page: Path) -> int:
    """Count the words of a page without code and without the targets of its links."""
    return len([token for token in re.sub(r"\]\([^)]*\)", "]", prose(page)).split() if re.search(r"\w", token)])


def test_the_manual_can_be_read_in_an_afternoon() -> None:
    words = {page.name: _words(page) for page in MANUAL}
    assert {name: count for name, count in words.items() if count > 1500} == {}
    assert sum(words.values()) <= 18_000, f"cut words, or move what was measured to docs/notes: {words}"


@pytest.mark.parametrize("page", MANUAL, ids=label)
def test_what_was_measured_on_a_day_or_a_machine_stands_in_a_note(page: Path) -> None:
    months = calendar.month_name[1:]
    dated = rf"\b(?:\d{{1,2}} )?(?:{'|'.join(months)}) \d{{4}}\b|\b\d{{4}}-\d\d-\d\d\b|\bon (?:two|2) cores\b"
    assert re.findall(dated, prose(page)) == []


def test_the_numbers_of_the_gallery_stand_in_notes() -> None:
    with (DOCS / "notes" / "gallery.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len({row["model"] for row in rows}) == 6
    for row in rows:
        note = (DOCS / "notes" / row["note"]).read_text(encoding="utf-8")
        for name, cell in row.items():
            if name != "layer" and re.fullmatch(r"[\d.]+", cell):
                written = rf"(?<![\d.])0?{re.escape(cell.removeprefix('0'))}(?!\d)"
                assert re.search(written, note), (row["note"], name, cell)


def test_the_site_has_pages_of_all_options_columns_and_sentences() -> None:
    pages = {name: page() for name, page in _script(DOCS / "reference.py").PAGES.items()}
    for command in COMMANDS:
        options = flat(options_of(load_command(COMMANDS[command])))
        section = re.split("^## ", pages["options.md"].partition(f"\n## {command}\n")[2], flags=re.MULTILINE)[0]
        assert re.findall(r"^\| `--([\w.]+)` \|", section, re.MULTILINE) == [*options], command
    for study in package_studies():
        section = pages["columns.md"].partition(f"\n## Of `{study.name}`\n")[2]
        assert all(f"\n### `{schema.name}`\n" in section for schema in study.schemas), study.name
    assert pages["evidence.md"].count("\n| ") == len(SENTENCES) + 2 * pages["evidence.md"].count("\n## ")


def test_columns_are_described_in_the_terminal_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert type_command(COMMANDS, ["columns"]) == 0
    listed = capsys.readouterr().out
    for study in package_studies():
        (block,) = (block for block in listed.split("\n\n") if block.startswith(f"{study.name}: "))
        assert [schema.name for schema in study.schemas if f"\n  {schema.name} " not in block] == []
        for schema in (*study.schemas, *study.variants):
            assert type_command(COMMANDS, ["columns", f"{schema.name}.csv"]) == 0
            described = capsys.readouterr().out
            assert [column for column in schema.types if column not in described] == []
            assert f"{schema.name}, of `{study.name}`: {schema.row[:20]}" in described
    assert type_command(COMMANDS, ["columns", "fit"]) == 0
    assert "  probe.safetensors " in capsys.readouterr().out


def test_what_a_forge_and_a_commit_run_is_what_the_project_runs() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    assert ".ci/run" in [step.get("run") for step in workflow["jobs"]["all"]["steps"]]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    run = [re.sub(r"\$\(PY\) ", "", line) for line in _recipes("lint", "types")]
    assert [hook["entry"].replace(".venv/bin/python ", "").replace(" --force-exclude", "") for hook in hooks] == [
        line.removesuffix(" .") for line in run
    ]


def _recipes(*targets: str) -> list[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return [
        line.strip()
        for target in targets
        for line in re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)[0].splitlines()
    ]


def test_the_site_has_every_page() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    nav = set(re.findall(r"[\w/-]+\.md", str(settings["nav"])))
    # The others lie elsewhere: docs/hooks.py brings them.
    assert nav - {"tutorial.md", "benchmarks.md", "changes.md", *_script(DOCS / "reference.py").PAGES} == {
        page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")
    }
    assert settings["strict"] is True
    assert settings["theme"]["font"] is False


def test_every_page_is_in_the_overview_which_the_readme_names() -> None:
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} - {"index.md"}
    assert pages <= {link.split("#")[0] for link in links(DOCS / "index.md")}
    assert "docs/index.md" in links(README)


def test_extras_that_pages_name_exist() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = set(re.findall(r"pip install '[\w.-]+\[(\w+)\]'", text))
    assert named == {"hdf5", "hf", "minilm", "mlflow", "sentencepiece", "sklearn", "tensorboard", "zarr"}
    assert named <= set(setup["options.extras_require"])


@pytest.mark.slow
def test_a_task_of_your_own_runs_as_its_page_shows_it(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = dict(reversed(code_blocks(DOCS / "tasks.md")))  # the first of each language
    package = tmp_path / "package"
    module = package / blocks["python"].splitlines()[0].removeprefix("# ")
    module.parent.mkdir(parents=True)
    module.write_text(blocks["python"], encoding="utf-8")
    setup = ConfigParser()
    setup.read_string(blocks["ini"])
    # What pip leaves of a package's setup.cfg.
    installed = package / "mypackage-1.dist-info"
    installed.mkdir()
    entries = setup["options.entry_points"]["probing.tasks"].strip()
    (installed / "entry_points.txt").write_text(f"[probing.tasks]\n{entries}\n", encoding="utf-8")
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: mypackage\nVersion: 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(package))
    try:
        run = fit(
            model=str(checkpoints["bert"]), corpus=str(corpus_file), runs=str(tmp_path / "runs"), layer=2, quiet=True,
            task="half", task_args={"min_length": 6}, wandb=WandbOptions(mode="disabled"), **BARE,
        )  # fmt: skip
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "mypackage"]:
            del sys.modules[name]
    assert run is not None
    (row,) = run.accuracy
    assert row["n_classes"] == 2
    assert row["accuracy"] > row["majority_accuracy"]


@pytest.mark.slow
def test_the_site_builds_and_asks_no_other_host(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed: run `make docs`")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
    assert built.returncode == 0, built.stderr
    pages = {file.name: file.read_text(encoding="utf-8") for file in (tmp_path / "site").glob("*.html")}
    assert {"index.html", "tutorial.html", "benchmarks.html", "changes.html"} <= set(pages)
    assert 'id="probing.fit"' in pages["api.html"]
    for name, page in pages.items():
        assert not re.search(r'<(?:script|img|iframe)[^>]* src="(?:https?:)?//', page), name
        assert not re.search(r'<link[^>]* rel="(?:stylesheet|preconnect)"[^>]* href="(?:https?:)?//', page), name
