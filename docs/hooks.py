"""What the site has beside `docs/*.md`: generated pages, pages elsewhere in the repository, and the notebook as a page.

mkdocs runs these functions (`hooks` in mkdocs.yml). Links between files stay those that a code host follows.
"""

from __future__ import annotations

import base64
import json
import re
import runpy
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
NOTEBOOK = "tutorial.ipynb"
# Name on the site by path in the repository, as files in docs/ link to it.
ELSEWHERE = {"../benchmarks/README.md": "benchmarks.md", "../CHANGELOG.md": "changes.md", NOTEBOOK: "tutorial.md"}

# A link to a file of the repository that is no page, from one of its own pages such as the changes.
_NO_PAGE = re.compile(r"\[([^\]]+)\]\((?:CONTRIBUTING|SECURITY)\.md[^)]*\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for name, page in runpy.run_path(str(ROOT / "docs" / "reference.py"))["PAGES"].items():
        files.append(File.generated(config, name, content=page()))
    for source, name in ELSEWHERE.items():
        path = ROOT / "docs" / source
        if source != NOTEBOOK:
            files.append(File.generated(config, name, content=path.read_text(encoding="utf-8")))
            continue
        text, images = as_markdown(json.loads(path.read_text(encoding="utf-8")))
        files.append(File.generated(config, name, content=text))
        for image, content in images.items():
            files.append(File.generated(config, image, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links into the repository into links of the site, or into words where it has no such page."""
    up = "../" * page.file.src_uri.count("/")
    for source, name in ELSEWHERE.items():
        markdown = markdown.replace(f"]({up}{source}", f"]({up}{name}")
    return re.sub(r"\]\((?:\.\./)?docs/", "](", _NO_PAGE.sub(r"\1", markdown))


def as_markdown(notebook: dict[str, Any]) -> tuple[str, dict[str, bytes]]:
    """Return a notebook's cells and outputs as Markdown, and its images by name."""
    parts: list[str] = []
    images: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            if output.get("name") == "stderr":
                continue
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                name = f"tutorial-{len(images) + 1}.png"
                images[name] = base64.b64decode(data["image/png"])
                parts.append(f"![Output of the cell above]({name})")
            elif text := "".join(data.get("text/plain", "")).rstrip():
                parts.append(f"```text\n{text}\n```")
    return "\n\n".join(parts) + "\n", images
