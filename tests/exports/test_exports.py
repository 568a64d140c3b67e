"""Results written out in other formats, and runs that go out to a hub and come back the same, or are refused."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import probing
from conftest import BARE
from loopback_hub import LoopbackHub, loopback_hub
from probing import Result, Run, WandbOptions, attention, fit, geometry, probe
from probing.__main__ import COMMANDS
from probing.cli import commandline as command_line
from probing.errors import UserError
from probing.exports import portable, portable_results
from probing.exports.formats import MOST_ROWS, tables_of
from probing.heads.examples import read_examples
from probing.runs.loading import load_run
from probing.runs.predictions import sides_and_text
from probing.tables.conclusions import leading
from rendering import rendered
from report_runs import fit_on_two_texts
from written import read_csv

OFF = WandbOptions(mode="disabled")


@pytest.fixture(scope="module")
def made(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    options: dict[str, Any] = {"model": str(checkpoints["bert"]), "corpus": str(corpus_file), **BARE}
    return fit(**options, layer="1,2", quiet=True, runs=str(tmp_path_factory.mktemp("runs")), wandb=OFF)


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


def test_latex_has_the_tables_of_the_terminal_and_says_what_it_leaves_out(made: Run, tmp_path: Path) -> None:
    folder = made.export("latex", tmp_path / "tex")
    text = (folder / "accuracy.tex").read_text(encoding="utf-8")
    row = made.accuracy[0]
    assert rf"{row['accuracy']:.3f} & {row['accuracy_low']:.3f}--{row['accuracy_high']:.3f}" in text
    of_neurons = [row.split(" & ") for row in _rows(folder / "neurons.tex")]
    (shown,) = [table for table in made.tables() if "neurons by contribution" in table.title]
    assert [row[0] for row in of_neurons] == [*shown.columns[0].cells]
    assert len(of_neurons[0]) == len(shown.columns)
    assert "% left out for lack of room: before, " in (folder / "contexts.tex").read_text(encoding="utf-8")
    ranked = (folder / "classes.tex").read_text(encoding="utf-8")
    assert ranked.startswith(f"% {MOST_ROWS} of {len(made.classes)} rows; all rows and columns are in classes.csv")
    assert len(_rows(folder / "classes.tex")) == MOST_ROWS


def _rows(path: Path) -> list[str]:
    """Return the rows of a table in LaTeX below its headings."""
    return path.read_text(encoding="utf-8").partition("\\midrule\n")[2].partition("\\bottomrule")[0].splitlines()


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_no_table_in_latex_is_wider_or_longer_than_a_page(made: Run, tmp_path: Path) -> None:
    folder = made.export("latex", tmp_path / "tex")
    floats = [rf"\begin{{table}}\input{{{path.name}}}\end{{table}}\clearpage" for path in sorted(folder.glob("*.tex"))]
    begin = [r"\documentclass{article}\usepackage{booktabs}\hfuzz=20pt", r"\begin{document}"]
    (folder / "page.tex").write_text("\n".join([*begin, *floats, r"\end{document}"]), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    log = subprocess.run(
        command, cwd=folder, check=True, capture_output=True, encoding="utf-8", errors="replace"
    ).stdout
    assert "Overfull" not in log
    assert "too large" not in log


def test_latex_of_some_tables_has_the_columns_that_are_asked_for(made: Run, tmp_path: Path) -> None:
    args = ["export", "latex", str(made.folder), "--output", str(tmp_path / "tex"), "--only", "classes,neurons"]
    assert command_line.run(COMMANDS, args) == 0
    assert {path.stem for path in (tmp_path / "tex").glob("*.tex")} == {"classes", "neurons"}
    folder = probing.export([made], "latex", tmp_path / "one", only="neurons", columns="layer,rank,neuron")
    first = made.top(made.layers[0], 1)[0]
    assert _rows(folder / "neurons.tex")[0] == f"{first['layer']} & 1 & {first['neuron']} " + r"\\"
    for how, words in (
        ({"only": "neurosn"}, "did you mean `neurons`"),
        ({"columns": "rank"}, "`columns` selects from a single table; name it with `only`"),
        ({"only": "neurons", "columns": "range"}, "no column `range`"),
    ):
        with pytest.raises(UserError, match=words):
            probing.export([made], "latex", tmp_path / "none", **how)
        with pytest.raises(UserError, match=words):
            made.export("latex", tmp_path / "none", **how)


def test_latex_of_several_runs_has_their_accuracies_side_by_side_under_the_names_given(
    made: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = shutil.copytree(made.folder, tmp_path / "other")
    args = ["export", "latex", str(made.folder), str(other), "--output", str(tmp_path / "tex")]
    assert command_line.run(COMMANDS, [*args, "--model_name", "BERT, tuned & BERT"]) == 0
    assert f"Export: {tmp_path / 'tex'}" in capsys.readouterr().out
    text = (tmp_path / "tex" / "accuracies.tex").read_text(encoding="utf-8")
    assert r"layer & BERT & 95\% range & tuned \& BERT & 95\% range" in text
    assert text.count(f"{made.accuracy[0]['accuracy']:.3f}") >= 2
    constant = f"{made.accuracy[0]['majority_accuracy']:.3f}"
    assert rf"majority & {constant} &  & {constant} &  \\" in text
    assert (tmp_path / "tex" / "other" / "accuracy.tex").is_file()
    assert probing.export([made, other], "latex").name == f"export-latex-{made.folder.name}-other"
    for names, more in (("BERT", ()), ("a,b,c", (other,))):
        with pytest.raises(UserError, match=r"`model_name`.*(leave it out|3 names for 2 folders; .*`compare)"):
            probing.export([made, *more], "latex", tmp_path / "no", names)


@pytest.mark.slow
def test_figures_are_drawn_again_with_other_names_and_shown(made: Run, tmp_path: Path) -> None:
    named: dict[str, Any] = {"model_name": "BERT", "label_name": "place"}
    of_accuracy: dict[str, Any] = {"only": "accuracy", "formats": ["svg"]}
    with rendered():
        folder = probing.export([made], "figures", tmp_path / "figures", **named, **of_accuracy)
        renamed = (folder / "accuracy.svg").read_text(encoding="utf-8")
        probing.export([made], "figures", folder, title="Where it lives", **of_accuracy)
        titled = (folder / "accuracy.svg").read_text(encoding="utf-8")
    assert ">BERT: linear probe of place<" in renamed
    assert ">Where it lives<" in titled
    assert "linear probe" not in titled
    for act in (lambda **how: probing.export([made], "figures", tmp_path / "all", **how), made.plot):
        with pytest.raises(UserError, match="`title`: there are 5 figures"):
            act(title="Where it lives")
    plots = made.plot()
    assert {*plots.names} == {path.stem for path in (made.folder / "figures").glob("*.png")}
    with rendered():
        assert plots._repr_html_().count("<img ") == len(plots)
    (accuracy,) = made.plot("accuracy")
    assert accuracy.get_suptitle() == "tiny-bert: linear probe of position"
    (accuracy,) = made.plot("accuracy", title="Where it lives")
    assert accuracy.get_suptitle() == "Where it lives"
    with pytest.raises(UserError, match="has no figure `curve`; expected one of accuracy, "):
        made.plot("curve")
    with pytest.raises(UserError, match=r"has no figure `acuracy` \(did you mean `accuracy`\?\); expected"):
        made.export("figures", tmp_path / "all", only="acuracy")
    with pytest.raises(UserError, match="`only` is not an option of `csv`; leave it out"):
        probing.export([made], "csv", tmp_path / "all", only="accuracy")
    with rendered():
        assert made.export("figures", tmp_path / "figures", **named, **of_accuracy) == folder
    assert (folder / "accuracy.svg").read_text(encoding="utf-8") == renamed


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
        (made, "xlsx", "there is no format `xlsx`; use parquet, latex, csv, figures, neuronpedia or headvis"),
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
        patch.setattr("probing.exports.formats.booktabs", broken)
        with pytest.raises(UserError, match=r"cannot be written \(.*No space left on device.*; name a writable folder"):
            made.export("latex", folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "tex", arrays.folder.name}
    assert made.export("latex", folder) == folder


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
def pushed_made(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    options: dict[str, Any] = {"model": str(checkpoints["bert"]), "corpus": str(corpus_file), **BARE}
    return fit(**options, layer="1,2", quiet=True, runs=str(tmp_path_factory.mktemp("machine") / "runs"), wandb=OFF)


def test_a_run_comes_back_with_equal_tables_and_predicts(
    pushed_made: Run, hub: LoopbackHub, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    url = pushed_made.push(NAME, token="secret", endpoint=hub.address)
    assert url.startswith(f"{hub.address}/{NAME}/commit/")
    files = hub.repositories[NAME]
    assert {name for name in files if Path(name).suffix not in (".csv", ".safetensors")} == {
        "config.yaml", "results.json", "README.md",
    }  # fmt: skip
    assert "probe.safetensors" in files
    # No path of this machine goes out, also not in the metadata of tensors.
    for name, content in files.items():
        for place in (pushed_made.folder.parent.parent, checkpoints["bert"].parent, tmp_path):
            assert str(place).encode() not in content, name
    again = probing.pull(NAME, tmp_path / "pulled", token="secret", endpoint=hub.address)
    assert isinstance(again, Run)
    assert {path.name for path in again.folder.iterdir()} == set(files) - {"README.md"}
    assert str(tables_of(pushed_made)) == str(tables_of(again))  # NaN is no NaN
    assert again.weight.equal(pushed_made.weight)
    # Its model is found beside the folder.
    with pytest.raises(UserError, match="its model tiny-bert is not there any more"):
        again.predict(["A sentence."])
    shutil.copytree(checkpoints["bert"], tmp_path / checkpoints["bert"].name)
    assert again.predict(["A sentence."]) == pushed_made.predict(["A sentence."])
    with pytest.raises(UserError, match="is there already; name a new folder"):
        probing.pull(NAME, tmp_path / "pulled", endpoint=hub.address)


def test_links_in_the_folder_of_a_run_are_not_followed(pushed_made: Run, hub: LoopbackHub, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(pushed_made.folder, tmp_path / "copy"))
    (tmp_path / "key").write_text("secret", encoding="utf-8")
    (folder / "key.csv").symlink_to(tmp_path / "key")
    load_run(folder).push(NAME, endpoint=hub.address)
    assert "accuracy.csv" in hub.repositories[NAME]
    assert "key.csv" not in hub.repositories[NAME]


def test_a_second_push_leaves_nothing_of_the_first(pushed_made: Run, hub: LoopbackHub, tmp_path: Path) -> None:
    hub.repositories[NAME] = {"old.csv": b"a\n1\n", "notes.txt": b"mine"}
    pushed_made.push(NAME, endpoint=hub.address)
    assert "old.csv" not in hub.repositories[NAME]
    assert hub.repositories[NAME]["notes.txt"] == b"mine"
    assert probing.pull(NAME, tmp_path / "pulled", endpoint=hub.address).accuracy == pushed_made.accuracy
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


def test_the_card_is_read_by_the_hub_and_has_every_number_of_the_run(pushed_made: Run, hub: LoopbackHub) -> None:
    from huggingface_hub import ModelCard, ModelCardData

    pushed_made.push(NAME, endpoint=hub.address)
    text = hub.repositories[NAME]["README.md"].decode("utf-8")
    data = ModelCard(text).data
    assert isinstance(data, ModelCardData)
    results = data.eval_results
    assert results
    assert [one.metric_value for one in results] == [row["accuracy"] for row in pushed_made.accuracy]
    assert [(one.metric_args or {})["interval_95"] for one in results] == [
        [row["accuracy_low"], row["accuracy_high"]] for row in pushed_made.accuracy
    ]
    metadata = yaml.safe_load(text.split("---")[1])
    assert metadata["model-index"][0]["results"][0]["task"]["name"] == "position"
    for sentence in pushed_made.conclusions():
        assert f"- {sentence}" in text
    for row in pushed_made.top(leading(pushed_made.accuracy)["layer"]):
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


def test_the_card_of_numbers_has_no_majority_class(pushed_made: Run) -> None:
    rows = np.random.default_rng(0).standard_normal((300, 4))
    of_numbers = probing.probe(rows, rows[:, 1], numbers=True, quiet=True, evidence="none", replicates=0)
    assert "| layer | R² | 95% range | shuffled labels |" in of_numbers.card()
    assert "- shuffled labels: " in of_numbers.card()
    assert "most frequent class" not in of_numbers.card()
    assert "- majority: accuracy of always predicting the most frequent class" in pushed_made.card()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["../evil.csv", "a/../../evil.csv", "/etc/evil.csv", "..\\evil.csv", "C:evil.csv"])
def test_names_that_lead_out_of_the_folder_are_refused(
    name: str, pushed_made: Run, hub: LoopbackHub, tmp_path: Path
) -> None:
    pushed_made.push(NAME, endpoint=hub.address)
    hub.repositories[NAME][name] = b"a\n1\n"
    before = len(hub.asked)
    with pytest.raises(UserError, match="whose name leads out of its folder; it is not read"):
        probing.pull(NAME, tmp_path / "pulled", endpoint=hub.address)
    assert not [path for path in hub.asked[before:] if "/resolve/" in path]
    assert list(tmp_path.iterdir()) == []


def test_pickles_are_not_even_downloaded(pushed_made: Run, hub: LoopbackHub, tmp_path: Path) -> None:
    pushed_made.push(NAME, endpoint=hub.address)
    hub.repositories[NAME] |= {
        "probe.bin": b"\x80\x04N.",
        "probe.pkl": b"\x80\x04N.",
        "sub/task.py": b"raise SystemExit",
    }
    pulled = probing.pull(NAME, tmp_path / "pulled", endpoint=hub.address)
    assert {path.suffix for path in pulled.folder.rglob("*")} == {".csv", ".yaml", ".json", ".safetensors"}
    assert not [path for path in hub.asked if "probe.bin" in path or "task.py" in path]


def test_results_of_many_files_or_bytes_are_not_downloaded(
    pushed_made: Run, hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed_made.push(NAME, endpoint=hub.address)
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
    assert probing.pull(NAME, tmp_path / "pulled", endpoint=hub.address).accuracy == pushed_made.accuracy


@pytest.mark.slow
@pytest.mark.parametrize("size", [[], "9", -(10**12), 1.5, True])
def test_files_whose_sizes_are_no_numbers_are_not_downloaded(
    pushed_made: Run, hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: Any
) -> None:
    pushed_made.push(NAME, endpoint=hub.address)
    before = len(hub.asked)

    def answer(content: bytes, kind: str, headers: dict[str, str], status: int) -> tuple[bytes, dict[str, str], int]:
        tree = json.loads(content) if content.startswith(b"[") else None
        if tree is None:
            return content, headers, status
        changed = json.dumps([{**row, "size": size} for row in tree]).encode()
        return changed, {**headers, "Content-Length": str(len(changed))}, status

    monkeypatch.setattr(hub, "answer", answer)
    with pytest.raises(UserError, match="has a file whose size is no whole number; it is not read"):
        probing.pull(NAME, tmp_path / "pulled", endpoint=hub.address)
    assert not [path for path in hub.asked[before:] if "/resolve/" in path]


def test_damaged_results_are_refused_and_leave_nothing(pushed_made: Run, hub: LoopbackHub, tmp_path: Path) -> None:
    pushed_made.push(NAME, endpoint=hub.address)
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


def test_a_hub_that_refuses_or_is_not_there_is_a_sentence(pushed_made: Run, hub: LoopbackHub, tmp_path: Path) -> None:
    for name, endpoint in (
        ("nobody/nothing", hub.address),
        ("no name at all", hub.address),
        (NAME, "http://127.0.0.1:9"),
    ):
        with pytest.raises(UserError, match=r"the hub cannot be used for it \(.*\); check its name"):
            probing.pull(name, tmp_path / "pulled", endpoint=endpoint)
    with pytest.raises(UserError, match="the hub cannot be used for it"):
        pushed_made.push(NAME, endpoint="http://127.0.0.1:9")
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
