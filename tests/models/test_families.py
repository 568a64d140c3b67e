"""Every family of models is read by the real command, most to a ranked table, and the documentation lists them."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import BARE_ARGS, N_LAYERS, ROOT
from families import CORE, FAMILIES, few_quickly, page_row
from probing import load_run
from probing.__main__ import COMMANDS
from probing.cache import ActivationStore
from probing.cli.commandline import run

# pytorch-lightning 2.6 asks torch's tree specifications a deprecated question.
pytestmark = pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")

PAGE = (ROOT / "docs" / "notes" / "families.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("family", few_quickly(CORE))
def test_text_becomes_a_ranked_table(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["--model", str(checkpoints[family]), "--corpus", str(corpus_file), "--runs", str(tmp_path), "--name", "run"]
    status = run(COMMANDS, ["fit", *args, *BARE_ARGS, "--wandb.mode", "disabled"])
    output = capsys.readouterr()
    assert status == 0, output.err
    layers = list(range(N_LAYERS[family] + 1))
    made = load_run(tmp_path / "run")
    assert [row["layer"] for row in made.accuracy] == layers
    # A tiny random model holds position in some layer; one whose positions are distances has none in its embeddings.
    assert max(row["accuracy"] / row["majority_accuracy"] for row in made.accuracy) > 1.2
    for layer in layers:
        ranked = [row for row in made.neurons if row["layer"] == layer]
        assert sorted(row["neuron"] for row in ranked) == list(range(16))
        assert [row["contribution"] for row in ranked] == sorted((row["contribution"] for row in ranked), reverse=True)
    assert "Layers: test accuracy of the probe and of its controls" in output.out


@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in CORE])
def test_text_becomes_hidden_states_of_every_layer(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["--model", str(checkpoints[family]), "--corpus", str(corpus_file), "--cache", str(tmp_path)]
    status = run(COMMANDS, ["extract", *args])
    assert status == 0, capsys.readouterr().err
    (entry,) = tmp_path.glob("*/")
    store = ActivationStore(entry)
    assert store.layers() == list(range(N_LAYERS[family] + 1))
    assert store.damaged(store.layers()) == []
    assert len(store.tokens.sentences) > 2000


@pytest.mark.parametrize("family", FAMILIES)
def test_the_page_says_what_the_family_does(checkpoints: dict[str, Path], family: str) -> None:
    assert page_row(family, checkpoints[family]) in PAGE.splitlines()


def test_the_page_lists_no_other_family() -> None:
    table = PAGE.split("<!-- families -->")[1].split("<!-- end of families -->")[0]
    assert len([line for line in table.splitlines() if line.startswith("| ")]) == 1 + len(FAMILIES)
