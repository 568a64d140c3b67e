"""`embeddings` from the command line: a bias that was planted in a model is found, and none where there is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import BARE, make_sentences
from probing import embeddings, fit, load_run
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.errors import UserError
from probing.runs.study import Result
from rendering import rendered
from small_data import sentence_pairs, write_benchmark
from wandb_stand_in import read_offline_runs
from written import read_csv

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
]
NONE: Any = {"mode": "disabled"}
SIZES = {"sentences": 4, "documents": 24, "top": 3, "draws": 3}


def plant(folder: Path, growth: float) -> Path:
    """Make a checkpoint in which no token sees another, and whose position embeddings grow with the position.

    The layer norms take from a word what its position adds, so that later words count less; without growth, all words
    count the same, wherever they are.
    """
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in tensors:
        if "attention.output.dense" in name:
            tensors[name].zero_()
    rows = next(name for name in tensors if name.endswith("position_embeddings.weight"))
    n, width = tensors[rows].shape
    direction = torch.randn(width, generator=torch.Generator().manual_seed(0))
    tensors[rows] = growth * torch.arange(n)[:, None] * direction
    save_file(tensors, path, metadata={"format": "pt"})
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(make_sentences(240, seed=5, longest=9)), encoding="utf-8")
    return path


@pytest.fixture
def options(tmp_path: Path, corpus: Path) -> dict[str, Any]:
    return {**SIZES, "corpus": str(corpus), "runs": str(tmp_path / "runs"), "quiet": True, "wandb": NONE}


def row_of(made: Any, **wanted: str) -> Any:
    (row,) = [row for row in made.bias if all(row[name] == value for name, value in wanted.items())]
    return row


@pytest.mark.slow
def test_a_bias_in_the_positions_is_found_and_none_where_words_count_the_same_everywhere(
    options: dict[str, Any], tiny_model: Callable[..., Path]
) -> None:
    folders = {growth: plant(tiny_model("bert", seed), growth) for seed, growth in enumerate((0.0, 0.05))}
    flat, falling = (embeddings(model=str(folder), edits="all", **options) for folder in folders.values())
    assert isinstance(flat, Result)
    for measure in ("replace", "delete", "insert"):
        same = {"measure": measure, "order": "shuffled"}
        for embedding in ("model", "bag", "centred"):
            assert abs(row_of(flat, embedding=embedding, **same)["start_end"]) < 1e-6
        row = row_of(falling, embedding="model", **same)
        assert row["start_end_low"] > 0
        assert row["start_end_p"] < 0.05
        assert row["relative"] > 0.1
        assert abs(row_of(falling, embedding="bag", **same)["start_end"]) < 1e-6
        removed = row_of(falling, embedding="position_removed", **same)
        assert removed["against"] == "centred"
        assert removed["relative_low"] > 0  # what positions do to the weight of words is no part that they add
    assert row_of(falling, measure="weight", order="shuffled", embedding="model")["start_end_low"] > 0
    assert "the start of a document is not shown to count more or less than its end" in flat.answer()[0]
    assert "the start of a document counts more than its end" in falling.answer()[0]


@pytest.mark.slow
@rendered()
def test_everything_is_on_disk_and_repeats(
    options: dict[str, Any], checkpoints: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sts").mkdir()
    write_benchmark(tmp_path / "sts", "dev", sentence_pairs(30, 0))
    args = [f"--{name}={value}" for name, value in options.items() if name not in ("wandb", "quiet")]
    args += ["--model", str(checkpoints["bert"]), "--sts", str(tmp_path / "sts"), "--figure_format=png"]
    assert run(COMMANDS, ["embeddings", *args, "--name=a", "--wandb.mode=offline"]) == 0
    said = capsys.readouterr()
    assert "has no file that says how it pools: the mean over all tokens is taken (--pooling)" in said.err
    assert "Bias of other vectors, sentences shuffled: a sentence replaced" in said.out
    assert "Similar sentences: Spearman's correlation" in said.out
    folder = Path(options["runs"]) / "a"
    tables = {"bias.csv", "places.csv", "similarity.csv"}
    assert {path.name for path in folder.iterdir()} == {*tables, "config.yaml", "results.json", "figures", "wandb"}
    assert (folder / "figures" / "embeddings.png").stat().st_size > 10_000
    assert len(read_csv(folder / "bias.csv")) == 2 * 2 * 6
    assert len(read_csv(folder / "places.csv")) == 2 * 2 * 6 * 4
    assert [row["embedding"] for row in read_csv(folder / "similarity.csv")] == [
        "model", "centred", "position_removed", "random_held", "neurons_held"
    ]  # fmt: skip
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert results["pooling"] == {"pooling": "mean_special", "told_by": "the default"}
    assert results["n_documents"]["measured"] == 24
    assert len(results["neurons"]) == 3
    (tracked,) = read_offline_runs(folder)
    assert len(tracked.table("bias")) == 24
    again = ["embeddings", "--config", str(folder / "config.yaml"), "--name", "b", "--wandb.mode=disabled"]
    assert run(COMMANDS, again) == 0
    for name in tables:
        assert (folder / name).read_bytes() == (folder.parent / "b" / name).read_bytes()
    made = load_run(folder)
    assert made.conclusions()[1].startswith("Held against a bag of word embeddings, which has no positions: relative")


@pytest.mark.slow
def test_neurons_of_a_run_on_position_are_held(
    options: dict[str, Any], checkpoints: dict[str, Path], corpus_file: Path
) -> None:
    usual: dict[str, Any] = {"runs": options["runs"], "quiet": True, "wandb": NONE}
    found = fit(model=str(checkpoints["bert"]), corpus=str(corpus_file), layer=[2, 3], name="fit", **BARE, **usual)
    assert found is not None
    made = embeddings(run=found.folder, pooling="mean", **options)
    assert made is not None
    assert made.config["model"] == str(checkpoints["bert"])
    assert made.results["neurons"] == [row["neuron"] for row in found.top(3, 3)]
    with pytest.raises(UserError, match=r"expected a run with layer 1, found 2, 3; give `--layer` too"):
        embeddings(run=found.folder, layer=1, **options)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sentences": 2}, r"`--sentences 2` is out of range: expected at least 3"),
        ({"edits": "swap"}, r"`--edits swap` is not one of replace, delete, insert, all"),
        ({"pooling": "max"}, r"`--pooling max`: expected checkpoint, mean, mean_special, cls; give one of them"),
        ({"layer": "1,2"}, r"`--layer 1,2`: expected one layer, found 2; name one"),
        (
            {"sentences": 80},
            r"expected at least 4 runs of 80 consecutive sentences .*found 0 in .* 3 that are too long",
        ),
        ({"top": 1000}, r"`--top 1000`"),
        ({"sts": "no-folder"}, r"`--sts no-folder` cannot be read"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_any_work(
    given: dict[str, Any], said: str, options: dict[str, Any], checkpoints: dict[str, Path]
) -> None:
    with pytest.raises(UserError, match=said):
        embeddings(model=str(checkpoints["bert"]), **{**options, **given})
    assert not Path(options["runs"]).exists() or not [*Path(options["runs"]).glob("*-embeddings-*")]


@pytest.mark.slow
def test_few_documents_have_no_intervals_and_that_is_said(
    options: dict[str, Any], checkpoints: dict[str, Path]
) -> None:
    made = embeddings(model=str(checkpoints["bert"]), **{**options, "documents": 5})
    assert made is not None
    assert made.conclusions()[-1] == ("There are no 95% intervals: 5 documents are too few; at least 20 are needed.")
    assert "is not tested against its end" in made.answer()[0]
