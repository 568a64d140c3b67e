"""A browser for tests of pages; a test that needs one is skipped where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--window-size=1000,1000",
)  # fmt: skip


@contextmanager
def headless_browser(folder: Path) -> Iterator[Any]:
    """Open a headless Chromium that reaches no network.

    Args:
        folder: Folder of what it keeps.
    """
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install 'neuron-probing[test]'")
    executable = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if not executable or not driver:
        pytest.skip("needs a browser: Debian's packages chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = executable
    for argument in (*ARGUMENTS, f"--user-data-dir={folder}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield opened
    finally:
        opened.quit()
