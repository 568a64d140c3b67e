"""What `pip install .` puts on a machine, beside what lies in the checkout."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def setup() -> ConfigParser:
    parser = ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def _folders(name: str) -> list[Path]:
    return [file.parent.relative_to(ROOT) for file in sorted((ROOT / name).rglob("__init__.py"))]


def test_every_package_is_installed(setup: ConfigParser) -> None:
    # Tests run from an editable installation, where a package that is not listed is found all the same.
    listed = setup["options"]["packages"].split()
    here = [".".join(folder.parts) for folder in _folders("probing")]
    assert sorted(listed) == sorted([*here, "probing_tasks"])
    assert setup["options"]["package_dir"].split() == ["probing_tasks", "=", "tasks"]
    assert _folders("tasks") == [Path("tasks")]


def test_every_file_that_is_no_module_is_installed(setup: ConfigParser) -> None:
    found = {
        (".".join(file.parent.relative_to(ROOT).parts), file.name)
        for file in (ROOT / "probing").rglob("*")
        if file.is_file() and file.suffix not in (".py", ".pyc")
    }
    listed = {(package, name) for package, names in setup["options.package_data"].items() for name in names.split()}
    assert found == listed
