"""`attention --run` from end to end on tiny models: position heads, and the neurons that they read."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import BARE
from probing import Result, Run, UserError, WandbOptions, attention, fit, load_run
from probing.__main__ import COMMANDS
from probing.cli.commandline import run as run_command
from probing.heads.position import OFFSETS
from probing.heads.subject import PositionRun
from probing.tables.position_heads import conclusions
from rendering import rendered
from wandb_stand_in import read_offline_runs

NAMES = ("position_heads", "position_neurons", "position_removal")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning"),
]

CPU = {"accelerator": "cpu"}
PARTS = "position_heads,position_neurons"


def make_position_head(folder: Path) -> None:
    """Let head 2 of block 1 of a tiny BERT attend to the previous token by sines in eight of the neurons."""
    from transformers import AutoModel

    model: Any = AutoModel.from_pretrained(folder)
    d_head = model.config.hidden_size // model.config.num_attention_heads
    layer = model.encoder.layer[0].attention.self
    with torch.no_grad():
        embeddings = model.embeddings
        embeddings.word_embeddings.weight[:, :8] = 0
        embeddings.token_type_embeddings.weight[:, :8] = 0
        embeddings.LayerNorm.weight[:8], embeddings.LayerNorm.bias[:8] = 1, 0
        rows = slice(d_head, 2 * d_head)
        for matrix in (layer.query, layer.key):
            matrix.weight[rows], matrix.bias[rows] = 0, 0
        t = torch.arange(model.config.max_position_embeddings)
        for i, rate in enumerate((0.1, 0.3, 0.8, 2.0)):
            cosine, sine = (rate * t).cos(), (rate * t).sin()
            embeddings.position_embeddings.weight[:, 2 * i : 2 * i + 2] = torch.stack([cosine, sine], 1)
            turn = torch.tensor(rate)
            at, strength = d_head + 2 * i, 12
            layer.key.weight[at, 2 * i], layer.key.weight[at + 1, 2 * i + 1] = 1, 1
            layer.query.weight[at, 2 * i : 2 * i + 2] = strength * torch.stack([turn.cos(), turn.sin()])
            layer.query.weight[at + 1, 2 * i : 2 * i + 2] = strength * torch.stack([-turn.sin(), turn.cos()])
    model.save_pretrained(folder)


def fitted(model: Path, corpus: Path, runs: Path, **options: Any) -> Run:
    usual = {"corpus": str(corpus), "runs": str(runs), "quiet": True, "trainer": CPU, "name": "A", "layer": "all"}
    made = fit(model=str(model), **{**BARE, **usual, "wandb": WandbOptions("disabled"), **options})
    assert made is not None
    return made


def survey(run: Run, **options: Any) -> Result:
    usual = {"corpus": run.config["corpus"], "runs": str(run.folder.parent), "quiet": True, "trainer": CPU}
    usual |= {"model": run.config["model"], "run": str(run.folder), "parts": PARTS}
    made = attention(**{**usual, "wandb": WandbOptions("disabled"), **options})
    assert made is not None
    return made


@pytest.fixture(scope="module")
def run(checkpoints: dict[str, Path], long_corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("position-heads")
    model = folder / "model"
    model.mkdir()
    for path in checkpoints["bert"].iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    make_position_head(model)
    return fitted(model, long_corpus_file, folder / "runs")


@pytest.fixture(scope="module")
def made(run: Run) -> Result:
    with rendered():
        return survey(run, wandb=WandbOptions("offline"), name="heads")


def test_the_planted_head_is_found_and_follows_the_positions_that_it_is_told(made: Result) -> None:
    assert len(made.position_heads) == 6
    (row,) = (row for row in made.position_heads if (row["layer"], row["head"]) == (1, 2))
    assert (row["offset"], row["position_head"]) == (-1, "yes")
    assert row["mass_low"] <= row["mass"] <= row["mass_high"]
    assert row["mass"] > 0.9
    assert row["hit"] > 0.9
    assert row["told"] > 0.8
    assert row["told_true"] < 0.2
    assert 0.9 < row["position_part"] / row["contrast"] < 1.1
    for one in made.position_heads:
        assert one["offset"] in OFFSETS
        assert one["mass"] <= one["word_mass"]


def test_neurons_of_the_planted_head_are_those_that_carry_its_sines(made: Result) -> None:
    own = [row for row in made.position_neurons if (row["layer"], row["head"]) == (1, 2)]
    assert [row["rank"] for row in own] == list(range(1, 17))
    assert {row["neuron"] for row in own[:8]} == set(range(8))
    assert all(row["use"] == 0 for row in own[8:])
    part = own[0]["position_part"]
    for side in ("by_query", "by_key"):
        assert sum(row[side] for row in own) == pytest.approx(part, abs=1e-6)
    assert part == pytest.approx(made.position_heads[1]["position_part"], abs=1e-9)
    removed = [row for row in made.position_removal if (row["layer"], row["head"]) == (1, 2)]
    assert {row["ranking"] for row in removed} == {"contribution", "contribution_centred", "eta_squared", "use"}
    (by_use,) = (row for row in removed if row["ranking"] == "use")
    assert by_use["k"] == 5
    assert set(map(int, by_use["neurons"].split())) <= set(range(8))
    assert by_use["contrast"] == pytest.approx(made.position_heads[1]["contrast"])
    assert by_use["contrast_held"] < by_use["contrast_random"] < by_use["contrast"]
    assert by_use["word_mass_held"] < by_use["word_mass_random"] < by_use["word_mass"]
    assert by_use["contrast_random_p"] < 0.1  # of sixteen neurons, sets of five have most of the eight now and then


def test_contrasts_are_those_of_the_attention_that_the_model_itself_gives(made: Result, run: Run) -> None:
    hold_contrasts(made, run)
    assert all(row["bias_part"] == 0 for row in made.position_heads)


def test_a_bias_of_relative_positions_is_a_part_of_the_contrast(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    biased = fitted(checkpoints["mpnet"], corpus_file, tmp_path, layer="0")
    found = survey(biased)
    hold_contrasts(found, biased)
    assert max(abs(row["bias_part"]) for row in found.position_heads) > 0.01
    assert all(row["bias_part_low"] <= row["bias_part"] <= row["bias_part_high"] for row in found.position_heads)


@torch.inference_mode()
def hold_contrasts(made: Result, run: Run) -> None:
    """Hold the contrasts of a survey to the attention that the model itself gives in float64."""
    from transformers import AutoModel, AutoTokenizer

    folder = run.config["model"]
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").double().eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sums = {(row["layer"], row["head"]): [0.0, 0] for row in made.position_heads}
    for sentence in run.test_sentences:
        maps = model(**tokenizer(sentence, return_tensors="pt"), output_attentions=True).attentions
        for row in made.position_heads:
            at = row["layer"], row["head"]
            words = maps[row["layer"] - 1][0, row["head"] - 1, 1:-1, 1:-1].log()  # scores but for a term of each query
            own = words.diagonal(row["offset"])
            first = max(0, -row["offset"])
            sums[at][0] += float((own - words.mean(1)[first : first + len(own)]).sum())
            sums[at][1] += len(own)
    for row in made.position_heads:
        total, n = sums[row["layer"], row["head"]]
        assert row["contrast"] == pytest.approx(total / n, rel=1e-4, abs=1e-4)


def test_its_files_figure_sentences_and_wandb_say_the_same(made: Result) -> None:
    again = load_run(made.folder)
    for name in NAMES:
        assert getattr(made, name)
        assert str(getattr(again, name)) == str(getattr(made, name))
    assert {path.name for path in (made.folder / "figures").iterdir()} == {
        f"position_neurons.{form}" for form in ("png", "pdf")
    }
    assert json.loads((made.folder / "results.json").read_text(encoding="utf-8"))["parts"] == PARTS.split(",")
    lines = conclusions(made.by_name)
    assert len(lines) == 6
    assert "1-2 at offset -1 with" in lines[0]
    (logged,) = read_offline_runs(made.folder)
    assert all(logged.rows(name) for name in (*NAMES, "figures/position_neurons"))
    assert "1-2 *" in repr(made)


def test_a_rotary_model_has_position_heads_and_no_neurons_of_theirs(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, capsys: Any
) -> None:
    rotary = fitted(checkpoints["modernbert"], corpus_file, tmp_path, layer="0")
    found = survey(rotary, parts="all", quiet=False)
    err = capsys.readouterr().err
    assert "the part position_neurons is left out: it needs positions that heads read from the hidden states" in err
    assert "has relative or rotary positions, or none" in err
    assert found.position_heads
    assert all("contrast" not in row and not math.isnan(row["told"]) for row in found.position_heads)
    assert not found.position_neurons
    assert "position_neurons" in found.results["left_out"]
    with pytest.raises(UserError, match="a ranking of the neurons that enter a block, layers 2, and `--run "):
        survey(rotary, parts="position_neurons", layer=3)


def test_a_run_of_something_else_is_refused_in_a_sentence(
    run: Run, made: Result, checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, capsys: Any
) -> None:
    usual = ["attention", "--corpus", str(corpus_file), "--runs", str(tmp_path), "--wandb.mode", "disabled"]
    same = [*usual, "--model", run.config["model"]]
    for args, message in (
        ([*same, "--run", str(tmp_path / "nowhere")], "nowhere"),
        ([*same, "--run", str(made.folder)], "holds a survey of attention heads; give the folder of a run that `fit`"),
        (
            [*usual, "--model", str(checkpoints["bert"]), "--run", str(run.folder)],
            "which has other weights; give a run",
        ),
        ([*same, "--parts", "position_heads"], "`--parts position_heads` needs a run of `fit` on position"),
    ):
        assert run_command(COMMANDS, args) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"task": "upos"}, "is a run on `--task upos`, and position heads are compared with a run on position"),
        ({"site": "mlp"}, "has `--site mlp` and `--transform none`, and position heads read hidden states"),
        ({"transform": "clip"}, "has `--site residual` and `--transform clip`"),
    ],
)
def test_runs_of_another_task_site_or_space_are_refused(run: Run, changed: dict[str, str], message: str) -> None:
    key = run.results["cache"]["test"]["key"]
    assert PositionRun.of(run, key, "tiny").layers == [0, 1, 2, 3]
    with pytest.raises(UserError, match=re.escape(message)):
        PositionRun.of(Run(run.folder, {**run.config, **changed}, run.results, run.accuracy, run.neurons), key, "tiny")
