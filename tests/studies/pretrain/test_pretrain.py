"""`pretrain` from end to end on tiny encoders, and its verdict with all of its outcomes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import BARE, ROOT
from probing import Result, WandbOptions, checkpoints, fit, pretrain, report
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.cli.options import ProbeOptions
from probing.errors import UserError
from probing.results import Table
from probing.runs.loading import load_run
from probing.studies.pretrain.tables import (
    ARMS,
    LENGTHS,
    PRETRAINING_ARMS,
    charts,
    conclusions,
    growth_line,
    judge,
    last_rows,
    tables,
)
from probing.tables.figures import Chart, Panel, chart_drawings, write_drawings
from typed import processes_of
from wandb_stand_in import read_offline_runs

ENCODER = {"n_layers": 1, "d_model": 32, "n_heads": 2, "d_feedforward": 32, "vocabulary": 100, "row_length": 16}
TRAINING = {
    "steps": 12, "batch_size": 8, "warm_up": 2, "held_out_rows": 20, "checkpoint_factor": 4.0, "save_every": 3,
}  # fmt: skip
USUAL: dict[str, Any] = {
    "size": "tiny", "sentences": 60, "encoder": ENCODER, "training": TRAINING, "quiet": True,
    "trainer": {"accelerator": "cpu"}, "wandb": WandbOptions("disabled"), "figure_format": "png",
}  # fmt: skip
ARGS = [
    *(f"--encoder.{name}={value}" for name, value in ENCODER.items()),
    *(f"--training.{name}={value}" for name, value in TRAINING.items()),
    "--sentences=60", "--quiet", "--trainer.accelerator=cpu", "--wandb.mode=disabled", "--figure_format=png",
]  # fmt: skip


def pretrained(place: Path, corpus: Path, **options: Any) -> Result:
    return pretrain(corpus=str(corpus), runs=str(place), **{**USUAL, **options})


@pytest.fixture(scope="module")
def made(place: Path, corpus_file: Path) -> Result:
    return pretrained(place, corpus_file, name="made", wandb=WandbOptions("offline"))


@pytest.mark.slow
def test_there_is_a_row_for_every_arm_checkpoint_and_layer(made: Result) -> None:
    found = [(row["arm"], row["seed"], row["step"], row["layer"]) for row in made.arms]
    assert found == [(arm, 0, step, layer) for arm in ("learned", "none") for step in (0, 1, 4, 12) for layer in (0, 1)]
    header = (made.folder / "arms.csv").read_text(encoding="utf-8").splitlines()[0]
    assert header == ",".join(ARMS.types)
    loss = {(row["arm"], row["step"]): row["loss"] for row in made.losses if "loss" in row}
    for row in made.arms:
        assert row["loss"] == loss[row["arm"], row["step"]]
        assert (row["equivariance"] < 1e-5) is (row["arm"] == "none")
    assert loss["learned", 12] < loss["learned", 0]
    assert {row["unigram_loss"] for row in made.arms} == {made.losses[0]["unigram_loss"]}
    assert sum("train_loss" in row for row in made.losses) == 24
    assert made.results["verdict"] == "not testable"
    assert sorted(path.name for path in made.folder.iterdir() if path.name != "wandb") == [
        "arms.csv", "checkpoints", "config.yaml", "figures", "losses.csv", "results.json"
    ]  # fmt: skip


@pytest.mark.slow
def test_arms_are_trained_on_the_same_batches_from_the_same_weights(made: Result) -> None:
    import torch
    from safetensors.torch import load_file

    place = made.folder / "checkpoints"
    first, other = (load_file(place / f"{arm}-seed0/step00/model.safetensors") for arm in ("learned", "none"))
    different = [name for name in first if not torch.equal(first[name], other[name])]
    assert different == ["bert.embeddings.position_embeddings.weight"]


@pytest.mark.slow
def test_results_are_shown_and_logged(made: Result) -> None:
    assert "equivariance" in repr(made)
    assert {path.stem for path in (made.folder / "figures").iterdir()} == {"loss", "outliers", "position"}
    (logged,) = read_offline_runs(made.folder)
    assert len(logged.rows("loss/learned-seed0")) == 4
    assert len(logged.rows("train_loss/none-seed0")) == 12
    assert logged.rows("unigram_loss/none-seed0")


@pytest.mark.slow
def test_a_checkpoint_is_a_model_for_other_commands(made: Result, corpus_file: Path, place: Path) -> None:
    checkpoint = made.folder / "checkpoints" / "none-seed0" / "step12"
    fitted = fit(
        model=str(checkpoint), corpus=str(corpus_file), layer=1, runs=str(place), quiet=True,
        wandb=WandbOptions("disabled"), **BARE,
    )  # fmt: skip
    assert fitted.accuracy[0]["accuracy"] < 0.5


@pytest.mark.slow
def test_checkpoints_are_a_series_with_the_losses_of_their_training(
    made: Result, corpus_file: Path, place: Path
) -> None:
    arm = made.folder / "checkpoints" / "learned-seed0"
    found = checkpoints(
        [str(arm / name) for name in ("step00", "step12")],
        corpus=str(corpus_file), runs=str(place), cache=str(place / "cache"), quiet=True,
        probe=ProbeOptions(l2=1e-2), wandb=WandbOptions("disabled"), figure_format="png",
    )  # fmt: skip
    own = {row["step"]: row["loss"] for row in made.losses if row["arm"] == "learned" and row["step"] in (0, 12)}
    assert {row["step"]: row["value"] for row in found.checkpoints if row["measure"] == "held_out_loss"} == own
    assert {row["command"] for row in found.checkpoints} == {"fit", "geometry", "attention", "training"}
    assert {row["quantity"] for row in found.emergence} == {"loss", "position", "position heads", "outliers"}
    (first,) = (row for row in found.emergence if (row["quantity"], row.get("layer")) == ("position", 1))
    assert first["step"] == 0  # the table tells positions before it is trained


@pytest.mark.slow
def test_longer_rows_are_a_table_and_a_figure_where_they_are_asked_for(
    made: Result, corpus_file: Path, place: Path
) -> None:
    longer = pretrained(place, corpus_file, name="longer", arms="learned,alibi", lengths="1,2")
    found = {(row["arm"], row["length"], row.get("layer")) for row in longer.lengths}
    assert found == {("learned", 16, 0), ("learned", 16, 1), ("learned", 32, None)} | {
        ("alibi", length, layer) for length in (16, 32) for layer in (0, 1)
    }
    assert load_run(longer.folder).lengths == longer.lengths
    assert (longer.folder / "figures" / "lengths.png").is_file()
    assert not list(made.lengths)
    assert any(
        line.startswith("learned, rows of 32 tokens: the table has 16 positions") for line in longer.conclusions()
    )
    made_of = {(row["step"], row["layer"]): row["loss"] for row in made.arms if row["arm"] == "learned"}
    again = {(row["step"], row["layer"]): row["loss"] for row in longer.arms if row["arm"] == "learned"}
    assert again == made_of  # other arms and lengths change nothing
    assert "Rows longer than those of the training" in report([str(longer.folder)]).read_text(encoding="utf-8")


def contents(folder: Path) -> dict[str, bytes]:
    """Return everything of a run that does not say when it was made."""
    files = [
        *folder.glob("checkpoints/*/*/*"),
        *folder.glob("*.csv"),
        *folder.glob("figures/*"),
        folder / "results.json",
    ]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if path.is_file()}


@pytest.mark.slow
def test_the_configuration_of_a_run_repeats_it_to_the_byte(made: Result, place: Path) -> None:
    config = yaml.safe_load((made.folder / "config.yaml").read_text(encoding="utf-8"))
    assert config["training"]["steps"] == 12
    assert config["encoder"]["initial_sd"] == 0.06
    args = ["--config", str(made.folder / "config.yaml"), "--wandb.mode=disabled", "--name=again"]
    assert run(COMMANDS, ["pretrain", *args]) == 0
    assert contents(place / "again") == contents(made.folder)


@pytest.mark.slow
def test_an_interrupted_run_goes_on_where_it_stopped(
    made: Result, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from probing.studies.pretrain import training
    from probing.studies.pretrain.training import TrainingWriter

    after, steps = TrainingWriter.on_train_batch_end, []

    def stopping(self: TrainingWriter, trainer: Any, *args: Any) -> None:
        steps.append(trainer.global_step)
        if len(steps) == 20:  # the eighth step of the second arm, whose last state is that of step 6
            raise KeyboardInterrupt
        after(self, trainer, *args)

    monkeypatch.setattr(TrainingWriter, "on_train_batch_end", stopping)
    with pytest.raises(KeyboardInterrupt, match="the same command with --name made continues it"):
        pretrained(tmp_path, corpus_file, name="made")
    with pytest.raises(UserError, match="belongs to a run with other options"):
        pretrained(tmp_path, corpus_file, name="made", seed=1)
    measure, measured = training.measure, []

    def measuring(*args: Any) -> Any:
        measured.append(args[0].name)
        if len(measured) == 3:
            raise KeyboardInterrupt
        return measure(*args)

    monkeypatch.setattr(training, "measure", measuring)
    with pytest.raises(KeyboardInterrupt):
        pretrained(tmp_path, corpus_file, name="made")
    again = pretrained(tmp_path, corpus_file, name="made", quiet=True)
    assert steps[20:] == list(range(7, 13))
    assert len(measured) == 3 + 6
    assert contents(again.folder) == contents(made.folder)


@pytest.mark.slow
def test_a_run_killed_at_five_moments_ends_with_the_same_bytes(corpus_file: Path, made: Result, tmp_path: Path) -> None:
    args = [*ARGS, "--corpus", str(corpus_file), "--runs", str(tmp_path), "--name=made"]
    # While the first state and the last checkpoint are written, between two arms, within the second one, and while
    # checkpoints are measured.
    moments = [
        ("state/learned-seed0.ckpt", False), ("learned-seed0/step12", False), ("state/learned-seed0.json", True),
        ("state/none-seed0.ckpt", True), ("state/learned-seed0-step04.json", False),
    ]  # fmt: skip
    for moment in moments:
        assert processes_of(["pretrain", *args], moment, {}) == [-signal.SIGKILL], moment
        path = next((tmp_path / "made.partial").glob(f"**/{moment[0]}"), None)
        assert (path is not None) is moment[1], moment
    assert run(COMMANDS, ["pretrain", *args]) == 0
    assert contents(tmp_path / "made") == contents(made.folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arms": "learned,nine"}, '`arms="nine"` is not one of learned, none'),
        ({"training": {"steps": 0}}, "`training.steps=0` is out of range"),
        ({"training": {"steps": 10, "warm_up": 11}}, "`training.warm_up=11` is out of range"),
        ({"encoder": {"d_model": 30, "n_heads": 4}}, "twice `encoder.n_heads=4`"),
        ({"encoder": {"row_length": 100_000}}, "at least one row of 100000 tokens"),
        ({"encoder": {"depth": 3}}, "encoder.depth"),
        ({"trainer": {"max_epochs": 3}}, '`trainer["max_epochs"]` cannot be used in pretraining'),
        ({"trainer": {"devices": 2, "accelerator": "cpu"}}, "give `name`"),
        ({"lengths": "1,half"}, '`lengths="1,half"` are no lengths; give whole numbers from 1 on'),
        ({"seeds": 0}, "`seeds=0` is out of range"),
        ({"name": "made"}, "runs are never changed"),
    ],
)
def test_what_cannot_be_done_is_refused(
    options: dict[str, Any], message: str, made: Result, place: Path, corpus_file: Path
) -> None:
    before = sorted(place.iterdir())
    with pytest.raises(UserError) as error:
        pretrained(place, corpus_file, **options)
    assert message in str(error.value)
    assert [path for path in sorted(place.iterdir()) if path not in before] == []


@pytest.mark.slow
def test_two_processes_end_with_the_losses_of_one(made: Result, corpus_file: Path, tmp_path: Path) -> None:
    args = [*ARGS, "--arms=learned", "--corpus", str(corpus_file), "--runs", str(tmp_path), "--name=two"]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    launcher = {
        "TORCHELASTIC_RUN_ID": "two", "MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
    }  # fmt: skip
    ranks = [{**launcher, "RANK": rank, "LOCAL_RANK": rank} for rank in ("0", "1")]
    assert processes_of(["pretrain", *args], None, *ranks) == [0, 0]
    two = load_run(tmp_path / "two")
    losses, arms = ([row for row in table if row["arm"] == "learned"] for table in (made.losses, made.arms))
    assert [row["step"] for row in two.losses] == [row["step"] for row in losses]
    for name in ("train_loss", "loss"):  # sums are cut in other places
        expected = [row[name] for row in losses if name in row]
        assert [row[name] for row in two.losses if name in row] == pytest.approx(expected, abs=1e-5)
    assert [(row["step"], row["layer"]) for row in two.arms] == [(row["step"], row["layer"]) for row in arms]


@pytest.mark.slow
@pytest.mark.several
def test_processes_that_the_command_starts_itself_share_a_run(made: Result, corpus_file: Path, tmp_path: Path) -> None:
    args = ["--corpus", str(corpus_file), "--runs", str(tmp_path), "--name=two", "--trainer.devices=2"]
    command = [sys.executable, "-m", "probing", "pretrain", *ARGS, *args]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=300)
    again = load_run(tmp_path / "two")
    assert len(again.losses) == len(made.losses)
    for row, one in zip(again.losses, made.losses, strict=True):
        for name in ("train_loss", "loss"):
            assert row.get(name) == pytest.approx(one.get(name), abs=1e-5)
    assert [row["step"] for row in again.arms] == [row["step"] for row in made.arms]


LOSS = {"learned": 3.2, "none": 4.6, "constant": 4.6}


def rows_of(
    sd: Mapping[tuple[str, int], float] = {}, loss: Mapping[tuple[str, int], float] = {}, seeds: int = 3,
    arms: tuple[str, ...] = ("learned", "none"), step: int = 100, layer: int = 1,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return rows of two layers, in which the farthest mean and the loss are as given for some arms and seeds."""
    return [
        {
            "arm": arm, "seed": seed, "step": step, "loss": loss.get((arm, seed), LOSS[arm]), "unigram_loss": 5.0,
            "layer": at, "max_mean_sd": sd.get((arm, seed), 2.0) if at == layer else 2.0, "position_accuracy": 0.5,
            "token_accuracy": 0.1, "equivariance": 0.0, "argmax_share": 0.0,
        }
        for arm in arms for seed in range(seeds) for at in (0, 1)
    ]  # fmt: skip


IN_LEARNED = {("learned", 0): 7.0, ("learned", 1): 6.0, ("learned", 2): 9.0}


@pytest.mark.parametrize(
    ("rows", "verdict", "reason"),
    [
        (rows_of(IN_LEARNED), "confirmed", "every seed"),
        (rows_of(IN_LEARNED, arms=("learned", "none", "constant")), "confirmed", "every seed"),
        (rows_of({**IN_LEARNED, ("none", 1): 5.1}), "refuted", "none has an outlier with seed 1"),
        (rows_of({("none", 0): 6.0, ("none", 2): 6.0}), "refuted", "seeds 0, 2"),
        (rows_of({("constant", 0): 6.0}, arms=("learned", "none", "constant")), "refuted", "constant"),
        (rows_of({("learned", 1): 6.0}), "unclear", "seed 1 alone"),
        (rows_of(IN_LEARNED, seeds=2), "unclear", "3 seeds are needed"),
        (rows_of(), "not testable", "no outlier either"),
        (rows_of(IN_LEARNED, layer=0), "not testable", "no outlier either"),  # the embeddings do not count
        (rows_of({("learned", 0): 5.0}), "not testable", "no outlier either"),  # it must be beyond 5
        (rows_of(IN_LEARNED, {("learned", 1): 4.2}), "not testable", "with seed 1, learned is better than none by 0.4"),
        (rows_of(IN_LEARNED, {("learned", 1): 4.05, ("none", 1): 5.0}), "not testable", "the frequencies of tokens"),
        (rows_of(IN_LEARNED, {("learned", 2): float("nan")}), "not testable", "with seed 2"),
        (rows_of({("none", 0): 6.0}, {("learned", 0): 4.5}), "not testable", "by 0.10 nats"),
        (rows_of(IN_LEARNED, arms=("learned",)), "not testable", "are needed"),
        (rows_of(arms=("none",)), "not testable", "are needed"),
        (rows_of(IN_LEARNED) + rows_of({("none", 0): 9.0}, step=50), "confirmed", "every seed"),  # the last step counts
    ],
)  # fmt: skip
def test_the_verdict_is_that_of_the_rule(rows: list[dict[str, Any]], verdict: str, reason: str) -> None:
    for order in (rows, rows[::-1]):
        found = judge(Table(order, ARMS))
        assert found.verdict == verdict
        assert reason in found.reason


def test_margins_are_reached_where_they_are_equal() -> None:
    exactly = {("learned", seed): 4.0 for seed in range(3)} | {("none", seed): 4.5 for seed in range(3)}
    assert judge(Table(rows_of(IN_LEARNED, exactly), ARMS)).verdict == "confirmed"


def test_the_last_checkpoint_is_that_of_each_arm_and_seed() -> None:
    rows = Table([*rows_of(step=10), *rows_of(step=20, arms=("none",))], ARMS)
    assert {(row["arm"], row["step"]) for row in last_rows(rows)} == {("learned", 10), ("none", 20)}


def test_sentences_state_losses_outliers_and_the_verdict() -> None:
    from probing.runtime.terminal import render

    made = Table(rows_of(IN_LEARNED), ARMS), Table((), LENGTHS)
    learned, none, verdict = conclusions(*made)
    assert "outliers with seeds 0, 1, 2 (layer 1)" in learned
    assert "the held-out loss is 3.20 nats, compared with 5.00 from token frequencies alone" in learned
    assert "no outlier above the embeddings (the farthest mean is at 2.0 sd, the limit is 5 sd)" in none
    assert verdict.endswith("confirmed: learned has an outlier with every seed, and none with no seed.")
    assert "7.33 (6.00 to 9.00)" in render(*tables(*made))


def of_arms(arms: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows of some arms, of which the one of next tokens has another loss of frequencies."""
    rows = [row | {"arm": arm} for arm in arms for row in rows_of(arms=("none",), seeds=1, step=64)]
    return [row | ({"unigram_loss": 4.5} if row["arm"] == "causal_lm" else {}) for row in rows]


def arms_in(panel: Panel) -> list[str]:
    return list(dict.fromkeys(line.label for line in panel.lines if line.label in PRETRAINING_ARMS))


@pytest.mark.parametrize(("n_arms", "n_panels"), [(4, (1, 1, 1)), (7, (2, 2, 1)), (12, (3, 2, 2))])
def test_arms_share_a_panel_where_their_looks_can_be_distinguished(
    n_arms: int, n_panels: tuple[int, ...], tmp_path: Path
) -> None:
    arms = PRETRAINING_ARMS[-n_arms:]
    drawn = charts(Table(of_arms(arms), ARMS), Table((), LENGTHS), 100)
    assert [chart.name for chart in drawn] == ["loss", "outliers", "position"]
    assert tuple(len(chart.panels) for chart in drawn) == n_panels
    for chart in drawn:
        assert [arm for panel in chart.panels for arm in arms_in(panel)] == list(arms)
        for panel in chart.panels:
            looks = chart.looks_of(panel)
            assert len({looks[line.label] for line in panel.lines}) == len({line.label for line in panel.lines}) <= 7
    assert all(path.is_file() for path in write_drawings(tmp_path / "figures", chart_drawings(drawn, ""), ["png"]))


def loss_of(rows: list[dict[str, Any]]) -> Chart:
    return charts(Table(rows, ARMS), Table((), LENGTHS), 100)[0]


def test_losses_of_next_tokens_and_of_masked_ones_have_their_frequencies_in_every_panel() -> None:
    for panel in loss_of(of_arms(PRETRAINING_ARMS)).panels:
        references = {line.label: line.values for line in panel.lines if line.label not in PRETRAINING_ARMS}
        assert references == {"frequencies of tokens": [5.0], "frequencies of tokens, causal_lm": [4.5]}
    (panel,) = loss_of(of_arms(("learned", "none"))).panels
    assert [line.label for line in panel.lines] == ["learned", "none", "frequencies of tokens"]


GROWTH = {
    "first_step": 8, "slope": 0.5, "slope_low": 0.25, "slope_high": 1.0, "steps": 1600.0, "steps_low": 400.0,
    "steps_high": 25600.0,
}  # fmt: skip


def test_growth_is_said_with_its_interval_where_there_is_no_outlier() -> None:
    lengths = Table((), LENGTHS)
    (*_, line) = conclusions(Table(rows_of(), ARMS), lengths, GROWTH)
    assert "changes by +0.50 sd for each doubling of the steps (95% interval over seeds: 0.25 to 1.00)" in line
    assert "reaches 5 sd after 1,600 steps (interval: 400 to 25,600)" in line
    assert "interval: 400 to no upper end" in growth_line({**GROWTH, "steps_high": None})
    assert "-0.10 sd" in (falling := growth_line({**GROWTH, "slope": -0.1}))
    assert "no neuron becomes an outlier" in falling
    assert "more than 30 doublings" in growth_line({**GROWTH, "steps": None})
    alone = growth_line({**GROWTH, **dict.fromkeys(("slope_low", "slope_high", "steps_low", "steps_high"))})
    assert "interval" not in alone
    assert len(conclusions(Table(rows_of(IN_LEARNED), ARMS), lengths, GROWTH)) == 3
