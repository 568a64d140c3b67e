"""What a run gives to Python beside its files."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import BARE
from probing import Run, fit, load_run, probe
from probing.cache import ActivationStore
from probing.data.module import ActivationDataModule
from probing.errors import UserError
from probing.results.rows import Table


@pytest.fixture(scope="module")
def run(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    options: Any = BARE
    place = tmp_path_factory.mktemp("runs")
    made = fit(model=str(checkpoints["bert"]), corpus=str(corpus_file), runs=str(place), layer=2, quiet=True, **options)
    assert made is not None
    return made


def test_tables_become_frames_where_pandas_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    for table in (run.neurons, run.accuracy, run.positions, run.classes, run.top(2, 3)):
        frame = table.to_pandas()
        assert isinstance(frame, pandas.DataFrame)
        assert list(frame.columns) == list(table[0])
        assert frame["layer"].tolist() == [row["layer"] for row in table]
    assert isinstance(run.neurons, list)
    real = builtins.__import__

    def without(name: str, *args: Any, **keywords: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return real(name, *args, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match="`to_pandas` needs pandas, which is not installed"):
        Table().to_pandas()


def test_the_weight_gives_the_accuracy_on_the_test_sentences(
    run: Run, checkpoints: dict[str, Path], corpus_file: Path
) -> None:
    cache = run.folder.parent / "cache"
    data = ActivationDataModule.from_text(str(checkpoints["bert"]), str(corpus_file), 2, cache=cache)
    store = data.sides.test.store
    assert isinstance(store, ActivationStore)
    states = torch.cat([store.read(2, shard.index) for shard in store.plan.shards])
    kept = torch.from_numpy(data.sides.test.labels >= 0)
    predicted = (states[kept] @ run.weight[0].T).argmax(1).numpy()
    accuracy = float((predicted == data.sides.test.labels[kept.numpy()]).mean())
    assert accuracy == pytest.approx(run.accuracy[0]["accuracy"])
    assert len(run.test_sentences) == run.results["n_sentences"]["test"]
    tested = np.unique(store.tokens.sentences[kept.numpy()])
    every = corpus_file.read_text(encoding="utf-8").splitlines()
    assert run.test_sentences == [every[i] for i in tested]


def test_test_sentences_of_a_text_that_is_no_longer_the_same_are_refused(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    own, options = tmp_path / "own.txt", dict[str, Any](BARE)
    own.write_text(corpus_file.read_text(encoding="utf-8"), encoding="utf-8")
    made = fit(model=str(checkpoints["bert"]), corpus=own, runs=str(tmp_path), layer=0, quiet=True, **options)
    assert made is not None
    own.write_text("something else entirely\n", encoding="utf-8")
    with pytest.raises(UserError, match="its corpus has changed since"):
        _ = load_run(made.folder).test_sentences
    labels = np.arange(300) % 3
    arrays = probe(np.eye(3)[labels], labels, probe={"l2": 1e-2}, replicates=0, evidence="none")
    with pytest.raises(UserError, match="from arrays, which are not kept"):
        _ = arrays.test_sentences
