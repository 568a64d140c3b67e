"""`sweep`: trials trained together are those that separate fits give, and what was done is not done again."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import mean
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

import probing.studies.sweep.stacked_trials as stacked_trials
from conftest import BARE
from probing import fit, load_run, sweep
from probing.__main__ import COMMANDS
from probing.cli.arguments import parse
from probing.cli.commandline import run
from probing.errors import UserError
from probing.studies.sweep import _flat
from probing.studies.sweep.definition import metric_problems
from probing.studies.sweep.search import metric_of, outcome
from wandb_stand_in import read_offline_runs
from written import read_csv

NO_WANDB: Any = {"mode": "disabled"}
POINTS = {"layer": [0, "1,2"], "probe.l2": [1.0e-3, 1.0e-1], "seed": [0, 1, 2]}


@pytest.fixture(autouse=True)
def no_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")


def write(path: Path, method: str = "grid", points: dict[str, Any] | None = None, **more: Any) -> Path:
    parameters = {name: {"values": values} for name, values in (points or POINTS).items()}
    parameters |= more.pop("parameters", {})
    path.write_text(
        yaml.safe_dump({"method": method, "parameters": parameters, **more}, sort_keys=False), encoding="utf-8"
    )
    return path


@pytest.fixture(scope="module")
def data(checkpoints: dict[str, Path], corpus_file: Path) -> dict[str, Any]:
    return {"model": str(checkpoints["bert"]), "corpus": str(corpus_file)}


@pytest.fixture(scope="module")
def finished(data: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a finished sweep of all points from the command line, and what was printed; read only."""
    folder = tmp_path_factory.mktemp("sweeps")
    file = write(folder / "all.yaml", metric={"name": "by_layer/cross_entropy", "goal": "minimize"})
    args = [f"--fit.{key}={value}" for key, value in data.items()] + ["--wandb.mode=disabled"]
    with redirect_stdout(StringIO()) as said:
        assert run(COMMANDS, ["sweep", str(file), "--runs", str(folder / "runs"), *args]) == 0
    return folder / "runs" / "all", said.getvalue()


@pytest.mark.slow
def test_trials_trained_together_are_those_of_separate_fits(finished: tuple[Path, str], tmp_path: Path) -> None:
    trials = sorted((finished[0] / "trials").iterdir())
    assert len(trials) == 12
    assert len(read_csv(finished[0] / "sweep.csv")) == 18  # half of the trials have two layers
    for number in (0, 7, 11):
        own = load_run(trials[number])
        options = {**own.config, "runs": str(tmp_path / "alone"), "name": f"r{number}", "quiet": True}
        alone = fit(**{**options, "wandb": NO_WANDB})
        ours, theirs = (load_file(one.folder / "probe.safetensors")["weight"] for one in (own, alone))
        torch.testing.assert_close(ours, theirs, atol=2e-2, rtol=2e-2)
        for row, other in zip(own.accuracy, alone.accuracy, strict=True):
            assert row["cross_entropy"] == pytest.approx(other["cross_entropy"], abs=1e-3)
            assert row["optimality_gap"] <= own.config["probe"]["tolerance"]
            assert (row["layer"], row["n_train_tokens"]) == (other["layer"], other["n_train_tokens"])
            assert set(row) == set(other)
        assert {row["neuron"]: row["eta_squared"] for row in own.neurons} == pytest.approx(
            {row["neuron"]: row["eta_squared"] for row in alone.neurons}
        )


@pytest.mark.slow
def test_a_trial_is_light_and_its_configuration_repeats_it(finished: tuple[Path, str], tmp_path: Path) -> None:
    folder = finished[0] / "trials" / "01-layer=0-l2=0.001-seed=0"
    assert {path.name for path in folder.iterdir()} == {
        "accuracy.csv", "classes.csv", "config.yaml", "contributions.safetensors", "neurons.csv", "probe.safetensors",
        "results.json",
    }  # fmt: skip
    again = [f"--{key}={value}" for key, value in (("name", "again"), ("runs", tmp_path / "runs"), ("quiet", True))]
    assert run(COMMANDS, ["fit", "--config", str(folder / "config.yaml"), *again]) == 0
    assert load_run(tmp_path / "runs" / "again").config["probe"]["l2"] == 1e-3


@pytest.mark.slow
def test_the_table_the_figure_and_the_last_line_say_what_came_out(finished: tuple[Path, str]) -> None:
    made, said = finished[0], " ".join(finished[1].split())
    rows = read_csv(made / "sweep.csv")
    assert {"trial", "layer", "probe.l2", "seed", "accuracy", "seed_spearman", "probe.l2_overlap"} <= set(rows[0])
    last = {row["trial"]: row["cross_entropy"] for row in rows}  # of a trial's last layer
    of_setting: dict[str, list[float]] = {}
    for trial, loss in last.items():
        of_setting.setdefault(trial.split("-", 1)[1].rsplit("-seed", 1)[0], []).append(loss)
    best = min(of_setting, key=lambda setting: mean(of_setting[setting]))
    point = best.replace("-", ", ").replace("=", " ").replace("l2", "probe.l2").replace("1_2", "1,2")
    low, high, middle = (f"{of(of_setting[best]):.4g}" for of in (min, max, mean))
    assert f"Best of 4 settings: {point}, with the lowest mean by_layer/cross_entropy, {middle}" in said
    assert f" (3 seeds: {low} to {high})" in said
    assert {path.name for path in (made / "figures").iterdir()} == {"sweep.png", "sweep.pdf"}
    assert "rank correlation" in said


@pytest.mark.slow
def test_what_is_whole_is_not_done_again(tmp_path: Path, data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(write(tmp_path / "s.yaml"))
    trained: list[int] = []
    real = stacked_trials.train_problems

    def counting(sides: Any, layers: Any, moments: Any, problems: Any, *args: Any, **options: Any) -> Any:
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append(len(problems))
        return real(sides, layers, moments, problems, *args, **options)

    monkeypatch.setattr(stacked_trials, "train_problems", counting)
    with pytest.raises(KeyboardInterrupt, match=r"the unfinished sweep is .*s\.partial, and python -m .*") as stopped:
        sweep(file, fit=data, runs=str(tmp_path / "runs"), quiet=True)
    words = shlex.split(str(stopped.value).partition(", and ")[2].removesuffix(" continues the sweep"))
    assert words[:4] == ["python", "-m", "probing", "sweep"]
    typed = parse("sweep", sweep, words[4:])
    assert (typed["file"], typed["runs"], typed["quiet"]) == (file, str(tmp_path / "runs"), True)
    assert {name: str(value) for name, value in typed["fit"].items()} == {
        name: str(value) for name, value in _flat(data).items()
    }
    partial = tmp_path / "runs" / "s.partial"
    kept = {path: path.stat().st_ino for path in partial.glob("trials/*/probe.safetensors")}
    assert len(kept) == 8  # of two of three seeds
    assert trained == [6, 6]
    monkeypatch.setattr(stacked_trials, "train_problems", real)
    started: list[bool] = []

    def watching(sides: Any, layers: Any, moments: Any, problems: Any, *args: Any, **options: Any) -> Any:
        started.extend(problem.start is not None for problem in problems)
        return real(sides, layers, moments, problems, *args, **options)

    monkeypatch.setattr(stacked_trials, "train_problems", watching)
    made = sweep(file, fit=data, runs=str(tmp_path / "runs"), quiet=True)
    assert started == [True] * 6  # from the probes of the seeds that were done
    assert len(made.sweep) == 18
    assert not partial.exists()
    assert {path.stat().st_ino for path in made.folder.glob("trials/*/probe.safetensors")} >= set(kept.values())


@pytest.mark.slow
def test_a_stack_that_is_killed_goes_on_from_the_points_it_had_reached(
    tmp_path: Path, data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probing.studies.sweep.stacked_trials.EVERY_S", 0.0)
    file, passes = str(write(tmp_path / "s.yaml", points={"probe.l2": [1e-5], "layer": [1]})), []
    real = stacked_trials.train_problems

    class Stop(Exception):
        pass

    def counted(*args: Any, **options: Any) -> Any:
        fits = real(*args, **options)
        passes.append(sum(one.n_passes for one in fits))
        return fits

    from probing.probes.linear import LinearProbe

    end = LinearProbe.on_train_epoch_end

    def dies(self: Any) -> None:
        end(self)
        if self.trainer.current_epoch == passes[0] // 2:
            raise Stop

    monkeypatch.setattr(stacked_trials, "train_problems", counted)
    whole = sweep(file, fit=data, runs=str(tmp_path / "whole"), quiet=True)
    monkeypatch.setattr(LinearProbe, "on_train_epoch_end", dies)
    with pytest.raises(Stop):
        sweep(file, fit=data, runs=str(tmp_path / "runs"), quiet=True)
    assert (tmp_path / "runs" / "s.partial" / "progress.safetensors").is_file()
    monkeypatch.setattr(LinearProbe, "on_train_epoch_end", end)
    made = sweep(file, fit=data, runs=str(tmp_path / "runs"), quiet=True)
    assert passes[1] < 0.9 * passes[0]
    assert not (made.folder / "progress.safetensors").exists()
    for row, other in zip(made.sweep, whole.sweep, strict=True):
        assert row["cross_entropy"] == pytest.approx(other["cross_entropy"], abs=1e-4)


@pytest.mark.several
def test_a_killed_process_leaves_a_sweep_that_goes_on(tmp_path: Path, data: dict[str, Any]) -> None:
    file = write(tmp_path / "s.yaml", points={"seed": list(range(12)), "probe.l2": [1e-3, 1e-2]})
    options = [f"--fit.{key}={value}" for key, value in data.items()] + ["--fit.layer=0"]
    command = [sys.executable, "-m", "probing", "sweep", str(file), "--runs", str(tmp_path / "runs"), *options]
    job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    trials, waited = tmp_path / "runs" / "s.partial" / "trials", time.monotonic()
    while len(list(trials.glob("*"))) < 6 and time.monotonic() - waited < 600:
        time.sleep(0.01)
    job.kill()
    job.wait()
    kept = {path.name: path.stat().st_mtime_ns for path in trials.glob("*") if not path.name.endswith(".partial")}
    assert 4 <= len(kept) < 24
    made = sweep(str(file), fit={**data, "layer": 0}, runs=str(tmp_path / "runs"), quiet=True)
    assert len(made.sweep) == 24
    assert {name: (made.folder / "trials" / name).stat().st_mtime_ns for name in kept} == kept


def test_two_processes_at_one_sweep_are_told_apart(
    tmp_path: Path, data: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    from filelock import FileLock

    file = write(tmp_path / "s.yaml", points={"seed": [0, 1]})
    options = [f"--fit.{key}={value}" for key, value in data.items()]
    partial = tmp_path / "runs" / "s.partial"
    partial.mkdir(parents=True)
    with FileLock(partial / ".lock"):
        assert run(COMMANDS, ["sweep", str(file), "--runs", str(tmp_path / "runs"), *options]) == 2
    assert "another process is running this sweep" in capsys.readouterr().err
    assert {path.name for path in partial.rglob("*")} <= {".lock", "trials"}


@pytest.mark.slow
def test_a_name_that_another_sweep_has_begun_under_is_refused(
    tmp_path: Path, data: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "s.yaml", points={"seed": [0, 1], "probe.l2": [1e-2]})
    options = ["--runs", str(tmp_path / "runs"), "--fit.layer=0", *(f"--fit.{k}={v}" for k, v in data.items())]
    assert run(COMMANDS, ["sweep", str(file), *options]) == 0
    (tmp_path / "runs" / "s").rename(tmp_path / "runs" / "s.partial")
    write(file, points={"seed": [0, 2], "probe.l2": [1e-2]})
    assert run(COMMANDS, ["sweep", str(file), *options]) == 2
    assert "belongs to another sweep" in capsys.readouterr().err


@pytest.mark.slow
def test_trials_that_ask_for_more_are_fits_of_their_own(
    tmp_path: Path, data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in {"MODE": "offline", "RUN_ID": "of-this-sweep", "NAME": "named"}.items():
        monkeypatch.setenv(f"WANDB_{variable}", value)
    points = {"probe.solver": ["adam", "lbfgs"], "controls": ["shuffled"], "layer": [0], "probe.l2": [1e-2]}
    made = sweep(str(write(tmp_path / "s.yaml", points=points)), fit=data, runs=str(tmp_path / "runs"), quiet=True)
    adam, lbfgs = (load_run(folder) for folder in sorted((made.folder / "trials").iterdir()))
    assert [one.config["probe"]["solver"] for one in (adam, lbfgs)] == ["adam", "lbfgs"]
    assert all("shuffled_accuracy" in one.accuracy[0] for one in (adam, lbfgs))
    assert (adam.folder / "figures" / "accuracy.png").is_file()
    assert adam.config["runs"] == "runs"  # not the sweep's own folder, which was renamed
    assert made.sweep[0]["probe.solver"] == "adam"
    tracked = [run for one in (adam, lbfgs, made) for run in read_offline_runs(one.folder)]
    assert [run.run["name"] for run in tracked] == [adam.folder.name, lbfgs.folder.name, "named"]
    ids = [run.run["id"] for run in tracked]
    assert ids[2] == "of-this-sweep"  # the sweep's own run
    assert len({*ids}) == 3


@pytest.mark.slow
def test_a_random_sweep_needs_an_end_and_is_the_same_twice(
    tmp_path: Path, data: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    penalty = {"probe.l2": {"distribution": "log_uniform_values", "min": 1e-3, "max": 1e1}, "layer": {"value": 0}}
    file = str(write(tmp_path / "s.yaml", "random", points={"seed": [0, 1]}, parameters=penalty))
    assert run(COMMANDS, ["sweep", file, "--runs", str(tmp_path / "runs")]) == 2
    assert "never ends; give `run_cap` there, or --trials" in capsys.readouterr().err
    one = sweep(file, trials=4, fit=data, runs=str(tmp_path / "runs"), name="one", quiet=True)
    two = sweep(file, trials=4, fit=data, runs=str(tmp_path / "runs"), name="two", quiet=True)
    other = sweep(file, trials=4, seed=1, fit=data, runs=str(tmp_path / "runs"), name="other", quiet=True)
    penalties = [[row["probe.l2"] for row in made.sweep] for made in (one, two, other)]
    assert penalties[0] == penalties[1] != penalties[2]
    assert len(set(penalties[0])) == 4


def test_a_folder_called_sweeps_is_not_taken_for_the_package(
    tmp_path: Path, data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sweeps", ModuleType("sweeps"))
    content = {"method": "bayes", "metric": {"name": "by_layer/accuracy"}, "parameters": {"layer": {"value": 0}}}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({**content, "run_cap": 2}), encoding="utf-8")
    with pytest.raises(UserError, match=r"`method: bayes` needs the package sweeps .*`pip install --no-deps sweeps`"):
        sweep(str(tmp_path / "s.yaml"), fit=data, runs=str(tmp_path / "runs"), quiet=True)


def test_a_bayesian_sweep_goes_where_accuracy_rises(tmp_path: Path, data: dict[str, Any]) -> None:
    pytest.importorskip("sweeps.bayes_search", reason="the package sweeps is not installed")
    penalty = {"probe.l2": {"distribution": "log_uniform_values", "min": 1e-5, "max": 1e3}, "layer": {"value": 0}}
    metric = {"name": "by_layer/cross_entropy", "goal": "minimize"}
    content = {"method": "bayes", "metric": metric, "parameters": penalty, "run_cap": 9}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    made = sweep(str(tmp_path / "s.yaml"), fit=data, runs=str(tmp_path / "runs"), quiet=True)
    tried = np.log10([row["probe.l2"] for row in made.sweep])
    entropy = np.array([row["cross_entropy"] for row in made.sweep])
    assert len(tried) == 9
    assert abs(tried[5:] - tried[entropy.argmin()]).mean() < abs(tried[:4] - tried[entropy.argmin()]).mean()


@pytest.mark.slow
def test_trials_are_one_group_in_wandb_and_the_sweep_has_a_run_of_its_own(
    tmp_path: Path, data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    file = str(write(tmp_path / "s.yaml", points={"layer": [0], "seed": [0, 1]}))
    made = sweep(file, fit=data, runs=str(tmp_path / "runs"), quiet=True)
    for folder in sorted((made.folder / "trials").iterdir()):
        (own,) = read_offline_runs(folder)
        assert (own.run["group"], own.run["name"]) == ("s", folder.name)
        assert own.config["probe"]["l2"] == "auto"
        made_of = outcome(folder.name, {}, load_run(folder))
        assert own.summary["best_accuracy"] == made_of.accuracy[0]["accuracy"]
        there = [key for key, value in own.summary.items() if key.startswith(("layer_00/", "by_layer/", "train/"))]
        assert len(there) > 30
        for key in there:  # each can be the metric of a sweep
            assert not metric_problems(key)
            assert metric_of(made_of, key) == pytest.approx(own.summary[key], rel=1e-6)
    (whole,) = read_offline_runs(made.folder)
    assert whole.run["group"] == "s"
    assert "figures/sweep" in whole.summary


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"probe.l3": {"values": [1, 2]}}, r"`probe.l3` in .* is not an option of fit"),
        ({"probe.l2": {"values": [1, "x"]}}, r"`probe.l2: x` in .*: expected a number"),
        ({"probe.l2": {"values": [-1.0, 1.0]}}, "out of range"),
        ({"layer": {"values": [1, 99]}}, "has layers 0"),
        ({"name": {"value": "x"}}, "named by the sweep"),
        ({"runs": {"values": ["a", "b"]}}, "cannot vary"),
        ({"corpus": {"value": "-"}}, "more than once"),
        ({"trainer.devices": {"value": 2}}, "one process"),
        ({"task": {"values": ["position", "nothing"]}}, "nothing"),
    ],
)
def test_what_trials_cannot_do_is_refused_before_any_work(
    tmp_path: Path, data: dict[str, Any], content: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({"method": "grid", "parameters": content}), encoding="utf-8")
    over = [f"--fit.{key}={value}" for key, value in data.items() if key not in content]
    args = ["sweep", str(tmp_path / "s.yaml"), "--runs", str(tmp_path / "runs"), *over]
    assert run(COMMANDS, args) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not list(tmp_path.glob("runs/**/trials/*"))


def test_without_a_file_or_with_one_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(COMMANDS, ["sweep"]) == 2
    assert "takes a sweep file, such as" in capsys.readouterr().err
    assert run(COMMANDS, ["sweep", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml` cannot be read" in capsys.readouterr().err
    assert run(COMMANDS, ["sweep", "a.yaml", "b.yaml"]) == 2
    assert "takes one file" in capsys.readouterr().err


def test_options_for_all_trials_go_before_those_of_the_file(tmp_path: Path, data: dict[str, Any]) -> None:
    file = str(write(tmp_path / "s.yaml", points={"layer": [1, 2], "probe.l2": [1e-3, 1e-1], "seed": [0, 1]}))
    over = {**data, "layer": 0, "probe": {"l2": 1.0}}
    made = sweep(file, fit=over, runs=str(tmp_path / "runs"), quiet=True)
    assert [(row["layer"], row["seed"]) for row in made.sweep] == [(0, 0), (0, 1)]
    config = load_run(next((made.folder / "trials").iterdir())).config
    assert config["probe"]["l2"] == 1.0


@pytest.mark.slow
def test_bare_trials_are_the_default(tmp_path: Path, data: dict[str, Any]) -> None:
    file = str(write(tmp_path / "s.yaml", points={"layer": [0, 1], "probe.l2": [1e-2]}))
    made = sweep(file, fit=data, runs=str(tmp_path), quiet=True)
    config = load_run(next((made.folder / "trials").iterdir())).config
    bare = {name: value for name, value in BARE.items() if name != "probe"}
    assert {name: config[name] for name in bare} == bare


def test_a_program_of_the_file_is_said_to_be_ignored(
    tmp_path: Path, data: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    metric = {"name": "layer_00/selectivity", "goal": "maximize"}
    file = write(tmp_path / "s.yaml", points={"layer": [0], "probe.l2": [1e-2]}, program="train.py", metric=metric)
    made = sweep(str(file), fit=data, runs=str(tmp_path / "runs"), wandb=NO_WANDB)
    said = capsys.readouterr()
    assert "`program: train.py` is ignored: here every trial is a run of `probing fit`" in said.err + said.out
    # Known before no trial: which columns there are depends on what is measured.
    assert made.conclusions()[0].startswith("`metric.name: layer_00/selectivity` was not measured in any trial;")
    assert made.conclusions()[0].endswith("so trials are ranked by their accuracy.")
