"""Results written out: tables of any study, neurons for Neuronpedia, heads for HeadVis; whole or not at all."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import BARE
from probing import Result, Run, UserError, WandbOptions, attention, fit, load_run, probe
from probing.exports.formats import MOST_ROWS
from probing.heads.example_maps import read_examples
from probing.runs.neuron_page import sides_and_text
from report_runs import fit_on_two_texts
from written import read_csv

OFF = WandbOptions(mode="disabled")


@pytest.fixture(scope="module")
def made(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    options: dict[str, Any] = {"model": str(checkpoints["bert"]), "corpus": str(corpus_file), **BARE}
    run = fit(**options, layer="1,2", quiet=True, runs=str(tmp_path_factory.mktemp("runs")), wandb=OFF)
    assert run is not None
    return run


@pytest.fixture(scope="module")
def heads(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    made: Result = attention(
        model=str(checkpoints["bert"]), corpus=str(corpus_file), parts="classes,profile", quiet=True, wandb=OFF,
        runs=str(tmp_path_factory.mktemp("runs")),
    )  # fmt: skip
    return made


def lines(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in text.decode("utf-8").splitlines()]


def test_every_table_is_written_with_its_types(made: Run, heads: Result, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow: pip install 'neuron-probing[parquet]'")
    for one in (made, heads):
        folder = one.export("parquet", tmp_path / one.study.name)
        there = {path.stem for path in one.folder.glob("*.csv")}
        assert {path.stem for path in folder.glob("*.parquet")} == there
        for name in there:
            read = parquet.read_table(folder / f"{name}.parquet")
            assert read.num_rows == len(getattr(one, name))
            assert str(read.schema.field("layer").type) in ("int64", "string")
        values = parquet.read_table(folder / "accuracy.parquet").to_pylist() if one is made else []
        assert [row["accuracy"] for row in values] == [row["accuracy"] for row in made.accuracy] * (one is made)


def test_csv_files_are_those_of_the_run_and_stand_where_they_are_looked_for(made: Run) -> None:
    folder = made.export("csv")
    assert folder == made.folder / "exports" / "csv"
    assert read_csv(folder / "neurons.csv") == read_csv(made.folder / "neurons.csv")
    assert json.loads((folder / "export.json").read_text(encoding="utf-8"))["run"] == made.folder.name
    assert load_run(made.folder).accuracy == made.accuracy  # the folder of a run may hold exports


def test_columns_of_another_version_are_written_too(made: Run, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(made.folder, tmp_path / "later"))
    lines = (copy / "accuracy.csv").read_text(encoding="utf-8").splitlines()
    text = "\n".join([f"{lines[0]},later", *(f"{line},{i}" for i, line in enumerate(lines[1:]))])
    (copy / "accuracy.csv").write_text(f"{text}\n", encoding="utf-8")
    rows = read_csv(load_run(copy).export("csv") / "accuracy.csv")
    assert [str(row["later"]) for row in rows] == [str(i) for i in range(len(rows))]


def test_latex_has_intervals_and_says_what_it_leaves_out(made: Run, tmp_path: Path) -> None:
    folder = made.export("latex", tmp_path / "tex")
    text = (folder / "accuracy.tex").read_text(encoding="utf-8")
    row = made.accuracy[0]
    assert text.startswith(r"\begin{tabular}")
    assert rf"{row['accuracy']:.3f} & {row['accuracy_low']:.3f}--{row['accuracy_high']:.3f}" in text
    ranked = (folder / "classes.tex").read_text(encoding="utf-8")
    assert ranked.startswith(f"% {MOST_ROWS} of {len(made.classes)} rows; all are in classes.csv")
    assert ranked.count(r"\\") == MOST_ROWS + 1  # and the headings


def test_neuronpedia_has_the_activations_of_all_tokens_of_the_sentences(made: Run, tmp_path: Path) -> None:
    folder = made.export("neuronpedia", tmp_path / "neuronpedia")
    sides, corpus = sides_and_text(made)
    store = sides.test.store
    states = np.concatenate([store.read(2, shard.index).numpy() for shard in store.plan.shards])
    (source,) = (path for path in folder.glob("*/*") if path.name.startswith("2-"))
    features, activations = (lines(source / name / "batch-0.jsonl.gz") for name in ("features", "activations"))
    assert [int(one["index"]) for one in features] == [row["neuron"] for row in made.top(2)]
    expected = {(row["neuron"], row["sentence"]) for row in made.contexts if row["layer"] == 2}
    assert {(int(one["index"]), int(one["dataIndex"])) for one in activations} == expected
    for one in activations:
        begin, end = store.tokens.offsets[int(one["dataIndex"]) :][:2]
        assert one["values"] == states[begin:end, int(one["index"])].tolist()
        assert one["maxValue"] == one["values"][one["maxValueTokenIndex"]] == max(one["values"])
        assert len(one["tokens"]) == len(one["values"])
        text = "".join(one["tokens"][1:-1])  # between [CLS] and [SEP]
        assert text.split() == corpus.sentences[int(one["dataIndex"])].split()[: len(text.split())]
        assert one["tokens"][0] == "[CLS]"
        assert one["layer"] == source.name
    first = features[0]
    assert first["maxActApprox"] == max(one["maxValue"] for one in activations if one["index"] == first["index"])
    others = [row for row in made.profiles if (row["layer"], str(row["neuron"])) == (2, first["index"])]
    assert first["correlated_neurons_indices"] == [row["index"] for row in others if row["measure"] == "correlation"]
    assert first["hookName"] == "blocks.1.hook_resid_post"
    (described,) = lines(source / "source.jsonl")
    assert described["id"] == source.name
    assert str(made.folder) not in "".join(path.read_text(encoding="utf-8") for path in source.glob("*.jsonl"))


def test_neuronpedia_names_the_text_that_its_sentences_are_of(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    run = fit_on_two_texts(checkpoints["bert"], corpus_file, tmp_path)
    (source,) = run.export("neuronpedia", tmp_path / "neuronpedia").glob("*/*/source.jsonl")
    assert lines(source)[0]["dataset"] == "other.txt"


def test_headvis_has_the_attention_of_every_head_on_the_examples(heads: Result, tmp_path: Path) -> None:
    folder = heads.export("headvis", tmp_path / "headvis")
    config, scatter = (
        json.loads((folder / f"{n}.json").read_text(encoding="utf-8")) for n in ("config", "scatter_data")
    )
    examples = read_examples(heads.folder)
    assert examples is not None
    n_layers, n_heads = examples.examples[0].maps.shape[:2]
    assert config["heads"] == [[layer, head] for layer in range(n_layers) for head in range(n_heads)]
    assert [[row["layer"], row["head"]] for row in scatter] == config["heads"]
    for row in heads.heads:
        name = f"{row['measure']} to {row['to']}" if row.get("to") else row["measure"]
        assert scatter[config["heads"].index([row["layer"] - 1, row["head"] - 1])][name] == row["value"]
        assert name in config["metrics"]
    for layer, head in config["heads"]:
        shown = json.loads((folder / "heads" / f"L{layer}H{head}.json").read_text(encoding="utf-8"))
        for one, example in zip(shown["sequences"], examples.examples, strict=True):
            n = len(one["tokens"])
            weights = np.zeros(n * n)
            weights[one["attention_indices"]] = one["attention_values"]
            assert np.abs(weights.reshape(n, n) - example.maps[layer, head]).max() <= 0.005
        assert shown["top_key_tokens"][0]["weight"] >= shown["top_key_tokens"][-1]["weight"]


def test_what_cannot_be_written_is_refused_and_leaves_nothing(
    made: Run, heads: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one, format, words in (
        (made, "headvis", "`headvis` is of a run of `attention`, and .* is one of `fit`; use parquet, latex or csv"),
        (heads, "neuronpedia", "`neuronpedia` is of a run of `fit`"),
        (made, "xlsx", "there is no format `xlsx`; use parquet, latex, csv, neuronpedia or headvis"),
    ):
        with pytest.raises(UserError, match=words):
            one.export(format, tmp_path / "none")
    X = np.random.default_rng(0).standard_normal((90, 3)).astype(np.float32)
    arrays = probe(X, (X[:, 0] > 0).astype(int), replicates=0, evidence="none", probe={"l2": 1e-2}, runs=str(tmp_path))
    with pytest.raises(UserError, match="from arrays, which are not kept"):
        arrays.export("neuronpedia", tmp_path / "none")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match="holds something else; name a new folder"):
        made.export("latex", tmp_path / "mine")
    assert not (tmp_path / "none").exists()
    # What fails half-way leaves the earlier export, and nothing beside it.
    folder = made.export("latex", tmp_path / "tex")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def broken(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("probing.results.rows.Table.to_latex", broken)
        with pytest.raises(UserError, match=r"cannot be written \(.*No space left on device.*; name a writable folder"):
            made.export("latex", folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "tex", arrays.folder.name}
    assert made.export("latex", folder) == folder
