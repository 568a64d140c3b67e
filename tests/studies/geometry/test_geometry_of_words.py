"""Neurons exchanged between texts with masks, from end to end on a tiny model whose head reads two neurons alone."""

from __future__ import annotations

import html
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import BARE
from families import make_checkpoint, masked_lm
from probing import WandbOptions, fit, load_run, report
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.runs.study import Result
from probing.studies.geometry.command import geometry
from probing.studies.geometry.neurons.tables import conclusions, tables
from written import read_csv

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning")
USUAL: dict[str, Any] = {
    "quiet": True, "wandb": WandbOptions("disabled"), "trainer": {"accelerator": "cpu"}, "figure_format": "png",
}  # fmt: skip
PLANTED, OTHERS = "4,11", "2,9"
NOUNS = ("probe", "sentence", "neuron", "token", "model")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("words")


@pytest.fixture(scope="module")
def model(place: Path, sentences: list[str]) -> Path:
    """A BERT whose blocks after the first add nothing, and whose head reads two neurons of the last layer."""
    from transformers import AutoModelForMaskedLM

    folder = masked_lm(place / "planted", "bert", sentences)
    whole = AutoModelForMaskedLM.from_pretrained(folder)
    with torch.no_grad():
        for block in whole.bert.encoder.layer[1:]:
            for part in (block.attention.output, block.output):
                part.dense.weight.zero_()
                part.dense.bias.zero_()
                part.LayerNorm.weight.fill_(1)
                part.LayerNorm.bias.zero_()
        read = whole.cls.predictions.transform.dense.weight
        read[:, [neuron for neuron in range(read.shape[1]) if str(neuron) not in PLANTED.split(",")]] = 0
    whole.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pairs(place: Path) -> Path:
    (path := place / "words.tsv").write_text(
        "".join(
            f"The {one} of a {of} [MASK] the model.\tThe {other} of a {of} [MASK] the model.\treads\thides\n"
            for one, other, of in product(NOUNS, NOUNS, NOUNS)
            if one < other
        ),
        encoding="utf-8",
    )
    return path


@pytest.fixture(scope="module")
def options(place: Path, model: Path, corpus_file: Path, pairs: Path) -> dict[str, Any]:
    return {
        "model": str(model), "corpus": str(corpus_file), "kind": "interchange", "pairs": str(pairs), "layer": 1,
        "draws": 19, "seed": 1, "interventions": True, "transforms": "none", "runs": str(place / "runs"), **USUAL,
    }  # fmt: skip


@pytest.fixture(scope="module")
def made(options: dict[str, Any]) -> Result:
    found = geometry(**options, neurons=PLANTED, name="planted")
    assert found is not None
    return found


def largest(made: Result) -> dict[str, Any]:
    return max(made.neuron_interventions, key=lambda row: row["k"])


@pytest.mark.slow
def test_neurons_that_the_head_reads_carry_the_odds_and_others_do_not(made: Result, options: dict[str, Any]) -> None:
    row = largest(made)
    assert (row["readout"], row["layer"], row["k"], row["intact"]) == ("words", 3, 2, 0.0)
    assert row["low"] > 0.5
    assert row["random_p"] == row["matched_p"] == 0.05  # the least that 19 draws can give
    assert row["random"] < 0.3
    noise = geometry(**options, neurons=OTHERS, name="noise")
    assert noise is not None
    of_noise = largest(noise)
    assert abs(of_noise["value"]) < 0.2
    assert min(of_noise["random_p"], of_noise["matched_p"]) > 0.1
    # Later blocks only look at each token by itself.
    assert of_noise["all_neurons"] == row["all_neurons"] == pytest.approx(1, abs=1e-5)


def test_what_was_found_is_on_disk_in_the_terminal_and_on_the_page(made: Result, options: dict[str, Any]) -> None:
    neurons = made.results["neurons"]
    assert (neurons["n_pairs"], neurons["n_left_out"], neurons["probes"]) == (50, 0, {})
    assert largest(made)["difference"] > 0
    assert made.config["readouts"] == "words"
    read = read_csv(made.folder / "neuron_interventions.csv")
    assert [row["all_neurons"] for row in read] == [row["all_neurons"] for row in made.neuron_interventions]
    line, told = conclusions(made.neuron_interventions)
    assert told.startswith("In the intact model, the log odds of the two words differ by ")
    assert line.startswith(
        "Layer 1, 2 neurons exchanged between the sentences of pairs: log odds carried, layer 3 from 0"
    )
    assert "; all neurons +" in line
    (table,) = tables(made.neuron_interventions)
    assert list(table.columns[1].cells) == ["1", "2", "all"]
    page = html.unescape(Path(report([str(made.folder)])).read_text(encoding="utf-8"))
    assert line in page
    assert told in page
    assert "log odds carried, layer 3" in page
    assert load_run(made.folder).neuron_interventions == made.neuron_interventions
    again = geometry(**{**made.config, **USUAL, "name": "again"})
    assert again is not None
    assert again.neuron_interventions == made.neuron_interventions


def test_neurons_of_a_run_of_positions_may_be_asked_about_too(
    place: Path, model: Path, corpus_file: Path, options: dict[str, Any]
) -> None:
    of_run = fit(
        model=str(model), corpus=str(corpus_file), layer="1", transform="none", runs=str(place / "runs"),
        name="positions", **BARE, **USUAL,
    )  # fmt: skip
    assert of_run is not None
    own = {name: value for name, value in options.items() if name not in ("model", "corpus")}
    found = geometry(**{**own, "from_run": str(of_run.folder), "top": 2, "draws": 0, "name": "ranked"})
    assert found is not None
    assert {row["readout"] for row in found.neuron_interventions} == {"words"}


def test_what_does_not_go_with_words_is_refused(
    place: Path, model: Path, pairs: Path, corpus_file: Path, sentences: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    headless = make_checkpoint(place / "headless", "bert", sentences)
    (mixed := place / "mixed.tsv").write_text(f"a\tb\n{pairs.read_text(encoding='utf-8')}", encoding="utf-8")
    usual = ["--neurons=3", "--layer=1", "--kind=interchange"]
    refused: dict[str, list[str]] = {
        "`--pairs` of texts with [MASK] needs a model with a trained masked-language-model head": [
            f"--model={headless}", f"--pairs={pairs}", *usual
        ],
        "line 2: expected 2 columns as in the lines above, found 4": [
            f"--model={model}", f"--pairs={mixed}", *usual
        ],
        "`--pairs -`: pairs are read more than once; give them as a file": [f"--model={model}", "--pairs=-", *usual],
        "pairs are read by the model's own head for masked words alone": [
            f"--model={model}", f"--pairs={pairs}", "--readouts=mlm", *usual
        ],
        "`--retrain 2` with `--kind interchange`": [f"--model={model}", f"--pairs={pairs}", "--retrain=2", *usual],
        "is read by `--kind interchange` alone, and `--kind mean` is given": [
            f"--model={model}", f"--pairs={pairs}", *usual[:2]
        ],
    }  # fmt: skip
    place_of = [f"--runs={place}", f"--corpus={corpus_file}", "--interventions", "--wandb.mode=disabled"]
    for message, options in refused.items():
        assert run(COMMANDS, ["geometry", *place_of, *options]) == 2
        assert message in capsys.readouterr().err
