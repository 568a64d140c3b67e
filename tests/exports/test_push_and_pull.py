"""A run goes out to a hub and comes back the same; what is no run, or a hostile one, is refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import probing
from conftest import BARE
from loopback_hub import LoopbackHub, loopback_hub
from probing import Run, UserError, WandbOptions, fit, geometry, load_run
from probing.exports.formats import tables_of
from probing.exports.hub import portable, portable_results
from report_runs import fit_on_two_texts

OFF = WandbOptions(mode="disabled")
NAME = "somebody/position"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackHub]:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    with loopback_hub(LoopbackHub) as opened:
        yield opened


@pytest.fixture(scope="module")
def made(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    options: dict[str, Any] = {"model": str(checkpoints["bert"]), "corpus": str(corpus_file), **BARE}
    run = fit(**options, layer="1,2", quiet=True, runs=str(tmp_path_factory.mktemp("machine") / "runs"), wandb=OFF)
    assert run is not None
    return run


def test_a_run_comes_back_with_equal_tables_and_predicts(
    made: Run, hub: LoopbackHub, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    url = made.push(NAME, token="secret", endpoint=hub.address)
    assert url.startswith(f"{hub.address}/{NAME}/commit/")
    files = hub.repositories[NAME]
    assert {name for name in files if Path(name).suffix not in (".csv", ".safetensors")} == {
        "config.yaml", "results.json", "README.md",
    }  # fmt: skip
    assert "probe.safetensors" in files
    # No path of this machine goes out, also not in the metadata of tensors.
    for name, content in files.items():
        for place in (made.folder.parent.parent, checkpoints["bert"].parent, tmp_path):
            assert str(place).encode() not in content, name
    again = probing.pull(NAME, tmp_path / "pulled", token="secret", endpoint=hub.address)
    assert isinstance(again, Run)
    assert {path.name for path in again.folder.iterdir()} == set(files) - {"README.md"}
    for one, other in zip(tables_of(made), tables_of(again), strict=True):
        assert (one.name, str(list(one.rows))) == (other.name, str(list(other.rows)))  # NaN is no NaN
    assert again.weight.equal(made.weight)
    # Its model is found beside the folder.
    with pytest.raises(UserError, match="its model tiny-bert is not there any more"):
        again.predict(["A sentence."])
    shutil.copytree(checkpoints["bert"], tmp_path / checkpoints["bert"].name)
    assert again.predict(["A sentence."]) == made.predict(["A sentence."])
    with pytest.raises(UserError, match="is there already; name a new folder"):
        probing.pull(NAME, tmp_path / "pulled", endpoint=hub.address)


def test_links_in_the_folder_of_a_run_are_not_followed(made: Run, hub: LoopbackHub, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made.folder, tmp_path / "copy"))
    (tmp_path / "key").write_text("secret", encoding="utf-8")
    (folder / "key.csv").symlink_to(tmp_path / "key")
    load_run(folder).push(NAME, endpoint=hub.address)
    assert "accuracy.csv" in hub.repositories[NAME]
    assert "key.csv" not in hub.repositories[NAME]


def test_a_second_push_leaves_nothing_of_the_first(made: Run, hub: LoopbackHub, tmp_path: Path) -> None:
    hub.repositories[NAME] = {"old.csv": b"a\n1\n", "notes.txt": b"mine"}
    made.push(NAME, endpoint=hub.address)
    assert "old.csv" not in hub.repositories[NAME]
    assert hub.repositories[NAME]["notes.txt"] == b"mine"
    assert probing.pull(NAME, tmp_path / "pulled", endpoint=hub.address).accuracy == made.accuracy
    assert not (tmp_path / "pulled" / "notes.txt").exists()


def test_results_of_any_command_go_out_and_come_back(
    hub: LoopbackHub, checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    made = geometry(
        model=str(checkpoints["bert"]),
        corpus=str(corpus_file),
        layer=2,
        quiet=True,
        wandb=OFF,
        runs=str(tmp_path / "runs"),
    )
    made.push(NAME, endpoint=hub.address)
    again = probing.pull(NAME, tmp_path / "pulled", endpoint=hub.address)
    assert again.geometry == made.geometry
    assert again.conclusions() == made.conclusions()


def test_the_card_is_read_by_the_hub_and_has_every_number_of_the_run(made: Run, hub: LoopbackHub) -> None:
    from huggingface_hub import ModelCard, ModelCardData

    made.push(NAME, endpoint=hub.address)
    text = hub.repositories[NAME]["README.md"].decode("utf-8")
    data = ModelCard(text).data
    assert isinstance(data, ModelCardData)
    results = data.eval_results
    assert results
    assert [one.metric_value for one in results] == [row["accuracy"] for row in made.accuracy]
    assert [(one.metric_args or {})["interval_95"] for one in results] == [
        [row["accuracy_low"], row["accuracy_high"]] for row in made.accuracy
    ]
    metadata = yaml.safe_load(text.split("---")[1])
    assert metadata["model-index"][0]["results"][0]["task"]["name"] == "position"
    for sentence in made.conclusions():
        assert f"- {sentence}" in text
    for row in made.top(2):
        assert f"| {row['rank']} |" in text
        assert f"| {row['neuron']} | {row['contribution']:.4f} |" in text
    (command,) = re.findall(r"python -m probing fit .*", text)
    assert "--layer 1,2" in command
    assert "--model tiny-bert" in command
    assert "does not show that the model uses the neuron" in text


def test_the_card_names_the_text_of_the_accuracy_and_no_intervals_where_there_are_none(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    run = fit_on_two_texts(checkpoints["bert"], corpus_file, tmp_path)
    text = run.card()
    assert f"trained on `{corpus_file.name}` and tested on `other.txt`." in text
    (result,) = yaml.safe_load(text.split("---")[1])["model-index"][0]["results"]
    assert result["dataset"]["name"] == "other.txt"
    assert "Intervals are over" not in text
    assert "There are no 95% intervals" in text


def test_the_card_of_numbers_has_no_majority_class(made: Run) -> None:
    rows = np.random.default_rng(0).standard_normal((300, 4))
    of_numbers = probing.probe(rows, rows[:, 1], numbers=True, quiet=True, evidence="none", replicates=0)
    assert "| layer | R² | 95% interval | labels shuffled |" in of_numbers.card()
    assert "- labels shuffled: " in of_numbers.card()
    assert "most frequent class" not in of_numbers.card()
    assert "- majority: accuracy of always predicting the most frequent class" in made.card()


@pytest.mark.parametrize("name", ["../evil.csv", "a/../../evil.csv", "/etc/evil.csv", "..\\evil.csv", "C:evil.csv"])
def test_names_that_lead_out_of_the_folder_are_refused(name: str, made: Run, hub: LoopbackHub, tmp_path: Path) -> None:
    made.push(NAME, endpoint=hub.address)
    hub.repositories[NAME][name] = b"a\n1\n"
    before = len(hub.asked)
    with pytest.raises(UserError, match="whose name leads out of its folder; it is not read"):
        probing.pull(NAME, tmp_path / "pulled", endpoint=hub.address)
    assert not [path for path in hub.asked[before:] if "/resolve/" in path]
    assert list(tmp_path.iterdir()) == []


def test_pickles_are_not_even_downloaded(made: Run, hub: LoopbackHub, tmp_path: Path) -> None:
    made.push(NAME, endpoint=hub.address)
    hub.repositories[NAME] |= {
        "probe.bin": b"\x80\x04N.",
        "probe.pkl": b"\x80\x04N.",
        "sub/task.py": b"raise SystemExit",
    }
    pulled = probing.pull(NAME, tmp_path / "pulled", endpoint=hub.address)
    assert {path.suffix for path in pulled.folder.rglob("*")} == {".csv", ".yaml", ".json", ".safetensors"}
    assert not [path for path in hub.asked if "probe.bin" in path or "task.py" in path]


def test_results_of_many_files_or_bytes_are_not_downloaded(
    made: Run, hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.push(NAME, endpoint=hub.address)
    files, before = dict(hub.repositories[NAME]), len(hub.asked)
    hub.repositories[NAME] |= {f"{n}.csv": b"a\n1\n" for n in range(1000)}
    with pytest.raises(UserError, match="has more than 1,000 files, and results have some dozens"):
        probing.pull(NAME, tmp_path / "pulled", endpoint=hub.address)
    hub.repositories[NAME] = {**files, "more.csv": b"0" * 2_000_000}
    monkeypatch.setenv("PROBING_MAX_GB", "0.002")
    with pytest.raises(UserError, match=r"more than 0\.002 GB, the most that is read; \$PROBING_MAX_GB raises it"):
        probing.pull(NAME, tmp_path / "pulled", endpoint=hub.address)
    assert not [path for path in hub.asked[before:] if "/resolve/" in path]
    monkeypatch.setenv("PROBING_MAX_GB", "0.02")
    hub.repositories[NAME]["more.csv"] = b"a\n1\n"
    assert probing.pull(NAME, tmp_path / "pulled", endpoint=hub.address).accuracy == made.accuracy


def test_damaged_results_are_refused_and_leave_nothing(made: Run, hub: LoopbackHub, tmp_path: Path) -> None:
    made.push(NAME, endpoint=hub.address)
    files = dict(hub.repositories[NAME])
    for damage in ("accuracy.csv", "probe.safetensors", "results.json"):
        hub.repositories[NAME] = {**files, damage: files[damage][: len(files[damage]) // 2]}
        with pytest.raises(UserError, match=rf"`pull`: `{NAME}` is damaged") as refused:
            probing.pull(NAME, tmp_path / "pulled", endpoint=hub.address)
        assert str(tmp_path) not in str(refused.value)
    hub.repositories[NAME] = {"weights.csv": b"a\n1\n"}
    with pytest.raises(UserError, match=r"holds no results that `push` has uploaded\."):
        probing.pull(NAME, tmp_path / "pulled", endpoint=hub.address)
    assert {path.name for path in tmp_path.iterdir()} <= {"hub"}


def test_a_hub_that_refuses_or_is_not_there_is_a_sentence(made: Run, hub: LoopbackHub, tmp_path: Path) -> None:
    for name, endpoint in (
        ("nobody/nothing", hub.address),
        ("no name at all", hub.address),
        (NAME, "http://127.0.0.1:9"),
    ):
        with pytest.raises(UserError, match=r"the hub cannot be used for it \(.*\); check its name"):
            probing.pull(name, tmp_path / "pulled", endpoint=endpoint)
    with pytest.raises(UserError, match="the hub cannot be used for it"):
        made.push(NAME, endpoint="http://127.0.0.1:9")
    assert not (tmp_path / "pulled").exists()


def test_paths_of_this_machine_are_names_and_labels_stay() -> None:
    config = {"corpus": "/home/me/text.txt", "task": "/home/me/half.py:Half", "model": "minilm", "n": 3, "runs": "runs"}
    assert portable(config) == {**config, "corpus": "text.txt", "task": "half.py:Half"}
    assert portable("hf:/data/me/set?split=test") == "hf:set?split=test"
    assert portable("hf:user/set?split=test") == "hf:user/set?split=test"
    results = {
        "classes": ["/a/b/c", "/"], "cache": {"test": {"corpus": "/home/me/text.txt"}},
        "read_from": {"corpus": {"path": "/home/me/text.txt", "from_run": "../../text.txt"}},
    }  # fmt: skip
    assert portable_results(json.loads(json.dumps(results))) == {
        "classes": ["/a/b/c", "/"], "cache": {"test": {"corpus": "text.txt"}},
        "read_from": {"corpus": {"path": "text.txt"}},
    }  # fmt: skip
