"""Runs logged by CSV, TensorBoard and MLflow, read back with these libraries: the same metrics as on W&B."""

from __future__ import annotations

import csv
import importlib
import json
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

import probing
from conftest import BARE
from probing.cli.options import WandbOptions
from probing.errors import UserError
from probing.runtime import LOGGERS, logger_names, logger_problems
from probing.runtime.trainer import check_trainer_options
from probing.tracking import Tracker
from wandb_stand_in import read_offline_runs

pytestmark = [
    # MLflow's own use of SQLAlchemy, and SQLite's connections that it leaves to the garbage collector.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning"),
]
ACCURACY: list[dict[str, Any]] = [
    {"layer": 0, "accuracy": 0.25, "accuracy_low": 0.2, "untrained": None, "note": "embeddings"},
    {"layer": 3, "accuracy": 0.75, "accuracy_low": 0.7, "untrained": 0.5, "note": ""},
    {"layer": 12, "accuracy": 0.75, "accuracy_low": 0.6, "untrained": 0.5, "note": ""},
]
NEURONS: list[dict[str, Any]] = [
    {"layer": 3, "rank": rank, "neuron": 10 * rank, "contribution": 1 / rank, "flag": "dead" if rank == 2 else None}
    for rank in range(1, 104)
]
PENALTIES = [{"log10_l2": at, "layer_03/cross_entropy": at**2} for at in (-2.5, -1.5)]
CONFIG = {"seed": 7, "probe": {"l2": 1e-4}, "trainer": {"logger": "csv,tensorboard,mlflow"}}
NAMES = ["csv", "tensorboard", "mlflow"]


@pytest.fixture(autouse=True)
def nothing_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the clients with which runs are read back from the network."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's folder as it is while the run goes on, with its files."""
    folder = tmp_path / "NAME.partial"
    folder.mkdir()
    (folder / "accuracy.csv").write_text("layer,accuracy\n", encoding="utf-8")
    (folder / "report.html").write_text("<!doctype html>", encoding="utf-8")
    for name in ("curve.png", "curve.pdf"):
        Image.new("RGB", (2, 3)).save(folder / name)
    return folder


def log(
    folder: Path,
    names: str | list[str],
    mode: str = "disabled",
    warn: Callable[[str], None] = pytest.fail,
    code: int = 0,
) -> Path:
    """Log a run from its start to its end, rename its folder as commands do, and return it."""
    final = folder.with_name("NAME")
    config = {**CONFIG, "trainer": {"logger": names}}
    options = WandbOptions(mode=mode)  # type: ignore[arg-type]
    tracker = Tracker(options, folder, "NAME", config, warn, final=final)
    logger = tracker.logger
    logger.log_hyperparams({"d_model": 4})
    for step in range(3):
        logger.log_metrics({"train/layer_03/objective": 1 / (step + 1)}, step=step)
    logger.finalize("success")  # a training ends, and the run goes on
    logger.log_metrics({"test/layer_03/accuracy": 0.75, "test/accuracy": 0.75}, step=3)
    figures = [folder / "curve.png", folder / "curve.pdf"]
    tracker.log_results(
        ACCURACY, NEURONS, figures, [folder / "accuracy.csv"], report=folder / "report.html",
        curves={"log10_l2": PENALTIES},
    )  # fmt: skip
    tracker.finish(code)
    tracker.finish(code)
    folder.rename(final)
    return final


def of_csv(run: Path) -> dict[str, list[tuple[int, float]]]:
    with (run / "csv" / "metrics.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    keys = set(rows[0]) - {"step"}
    return {key: [(int(row["step"]), float(row[key])) for row in rows if row[key]] for key in keys}


def events_of(run: Path) -> Any:
    accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    return accumulator.EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def of_tensorboard(run: Path) -> dict[str, list[tuple[int, float]]]:
    events = events_of(run)
    return {key: [(event.step, event.value) for event in events.Scalars(key)] for key in events.Tags()["scalars"]}


def mlflow_run(run: Path) -> tuple[Any, Any]:
    client = importlib.import_module("mlflow").MlflowClient(f"sqlite:///{run / 'mlflow' / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'probing'")
    (found,) = client.search_runs([experiment.experiment_id])
    return client, found


def of_mlflow(run: Path) -> dict[str, list[tuple[int, float]]]:
    client, found = mlflow_run(run)
    metrics = {key: client.get_metric_history(found.info.run_id, key) for key in found.data.metrics}
    return {key: [(metric.step, metric.value) for metric in history] for key, history in metrics.items()}


READERS = {"csv": of_csv, "tensorboard": of_tensorboard, "mlflow": of_mlflow}


@pytest.mark.slow
def test_all_loggers_have_the_metrics_of_wandb(folder: Path) -> None:
    run = log(folder, NAMES, mode="offline")
    (wandb,) = read_offline_runs(run)
    history = {key for row in wandb.history for key, value in row.items() if isinstance(value, int | float)}
    summary = {key: value for key, value in wandb.summary.items() if isinstance(value, int | float)}
    expected = {key for key in history | set(summary) if not key.startswith(("_", "trainer/"))}
    assert {"by_layer/accuracy", "layer_03/accuracy", "best_layer", "test/layer_03/accuracy"} <= expected
    for name, read in READERS.items():
        found = read(run)
        assert set(found) == expected, name
        assert [step for step, _ in found["train/layer_03/objective"]] == [0, 1, 2]
        assert found["by_layer/accuracy"] == [(0, 0.25), (3, 0.75), (12, 0.75)]
        assert found["by_layer/untrained"] == [(3, 0.5), (12, 0.5)]
        assert [step for step, _ in found["by_log10_l2/layer_03/cross_entropy"]] == [0, 1]  # no whole numbers
        assert [value for _, value in found["log10_l2"]] == [-2.5, -1.5]
        for key in ("best_layer", "best_accuracy", "test/layer_03/accuracy"):
            assert found[key] == [(0, summary[key])], (name, key)
    assert sorted(path.name for path in run.iterdir() if path.is_dir()) == sorted([*NAMES, "wandb"])
    assert [*run.parent.iterdir()] == [run]


def test_csv_has_the_configuration_beside_the_metrics(folder: Path) -> None:
    run = log(folder, "csv")
    assert [path.name for path in sorted((run / "csv").iterdir())] == ["hparams.yaml", "metrics.csv"]
    settings = yaml.safe_load((run / "csv" / "hparams.yaml").read_text(encoding="utf-8"))
    assert settings == {**CONFIG, "trainer": {"logger": "csv"}, "d_model": 4}
    assert {"best_accuracy", "train/layer_03/objective"} < set(of_csv(run))


def test_tensorboard_has_tables_as_text_images_and_settings(folder: Path) -> None:
    run = log(folder, "tensorboard")
    events = events_of(run)
    assert events.Tags()["images"] == ["figures/curve"]
    assert (events.Images("figures/curve")[0].width, events.Images("figures/curve")[0].height) == (2, 3)
    text = {tag: events.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in events.Tags()["tensors"]}
    assert set(text) == {"accuracy/text_summary", "neurons/layer_03/text_summary"}
    assert text["neurons/layer_03/text_summary"].splitlines()[:4] == [
        "| layer | rank | neuron | contribution | flag |",
        "| --- | --- | --- | --- | --- |",
        "| 3 | 1 | 10 | 1 |  |",
        "| 3 | 2 | 20 | 0.5 | dead |",
    ]
    assert text["neurons/layer_03/text_summary"].endswith("The first 100 of 103 rows.")
    plugins = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert b"probe/l2" in plugins
    assert b"d_model" in plugins
    settings = yaml.safe_load((run / "tensorboard" / "hparams.yaml").read_text(encoding="utf-8"))
    assert settings["probe"] == {"l2": 1e-4}


@pytest.mark.slow
def test_mlflow_has_parameters_tables_figures_and_files_where_the_run_ended(folder: Path) -> None:
    run = log(folder, "mlflow")
    client, found = mlflow_run(run)
    assert (found.info.run_name, found.info.status) == ("NAME", "FINISHED")
    assert found.data.params == {"seed": "7", "probe/l2": "0.0001", "trainer/logger": "mlflow", "d_model": "4"}
    top = {item.path for item in client.list_artifacts(found.info.run_id)}
    assert top == {"accuracy.json", "accuracy.csv", "figures", "neurons", "report.html"}
    figures = {item.path for item in client.list_artifacts(found.info.run_id, "figures")}
    assert figures == {"figures/curve.png", "figures/curve.pdf"}
    table = client.load_table(found.info.experiment_id, "neurons/layer_03.json", [found.info.run_id])
    assert table["neuron"].tolist() == [row["neuron"] for row in NEURONS]
    path = Path(client.download_artifacts(found.info.run_id, "accuracy.json"))
    assert found.info.artifact_uri.startswith((run / "mlflow").as_uri())
    assert json.loads(path.read_text(encoding="utf-8"))["columns"] == [*ACCURACY[0]]


@pytest.mark.slow
def test_a_run_that_failed_is_marked_as_failed(folder: Path) -> None:
    _, found = mlflow_run(log(folder, "mlflow", code=1))
    assert found.info.status == "FAILED"


def test_a_server_of_mlflow_that_is_absent_costs_one_warning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    said: list[str] = []
    run = log(folder, "csv,mlflow", warn=said.append)
    assert len(said) == 1
    assert said[0].startswith("mlflow is off for this run (")
    assert "results on disk are complete without it" in said[0]
    assert "best_accuracy" in of_csv(run)
    assert not (run / "mlflow").exists()


def test_a_run_that_goes_on_is_logged_anew(folder: Path) -> None:
    for name in ("csv", "tensorboard"):
        (folder / name).mkdir()
        (folder / name / "left.txt").touch()
    run = log(folder, "csv,tensorboard")
    assert len(of_csv(run)["best_accuracy"]) == len(of_tensorboard(run)["best_accuracy"]) == 1
    assert not [*run.rglob("left.txt")]


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("csv", ["csv"]),
        ("mlflow, csv", ["csv", "mlflow"]),
        (["tensorboard", "csv", "csv"], ["csv", "tensorboard"]),
        (False, []),
        (None, []),
        ("", []),
    ],
)
def test_loggers_are_named_by_commas_or_in_a_list(typed: Any, names: list[str]) -> None:
    assert logger_names({"logger": typed}) == names
    for solver in ("lbfgs", "adam", "pretraining"):
        check_trainer_options({"logger": typed}, solver)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("comet", "`--trainer.logger comet`: expected some of csv, tensorboard, mlflow, .*--wandb.mode"),
        ("csv,tensorbord", r"`--trainer.logger tensorbord`.*tensorboard"),
        ("wandb", "W&B is set by `--wandb.mode`"),
        (True, "`--trainer.logger true`: expected some of csv"),
    ],
)
def test_unknown_loggers_are_refused_with_the_list(typed: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_trainer_options({"logger": typed}, "lbfgs")


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_missing_package_is_named_with_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(package: str) -> ModuleSpec | None:
        return None if package == LOGGERS[name][0] else importlib.util.find_spec(package)

    monkeypatch.setattr("probing.runtime.find_spec", find_spec)
    (problem,) = logger_problems({"logger": f"csv,{name}"})
    assert (
        problem
        == f"`--trainer.logger {name}` needs {name}, which is not installed; `pip install 'neuron-probing[{name}]'`"
    )


def test_a_fit_is_logged_with_its_training(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = probing.fit(
        model=str(checkpoints["bert"]), corpus=str(corpus_file), layer=[1, 2], name="A", quiet=True,
        wandb={"mode": "disabled"}, trainer={"logger": "csv,tensorboard"}, **BARE,
    )  # fmt: skip
    assert run is not None
    found, scalars = of_csv(run.folder), of_tensorboard(run.folder)
    assert set(found) == set(scalars)
    assert len(found["train/layer_01/objective"]) >= 2
    assert dict(found["by_layer/accuracy"]) == pytest.approx({row["layer"]: row["accuracy"] for row in run.accuracy})
    assert run.config["trainer"] == {"logger": "csv,tensorboard"}


def test_other_commands_log_their_curves(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = probing.geometry(
        model=str(checkpoints["bert"]), corpus=str(corpus_file), quiet=True, wandb={"mode": "offline"},
        trainer={"accelerator": "cpu", "logger": "csv"},
    )  # fmt: skip
    assert made is not None
    found = of_csv(made.folder)
    (wandb,) = read_offline_runs(made.folder)
    curves = {key for row in wandb.history for key in row if key.startswith("by_layer/")}
    assert curves
    assert curves <= set(found)


def test_what_makes_no_run_takes_no_logger(checkpoints: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="`extract` makes no run that could be logged"):
        probing.extract(model=str(checkpoints["bert"]), trainer={"logger": "csv"})
    X = [[0.0, 1.0], [1.0, 0.0]]
    with pytest.raises(UserError, match="goes with its object; give `name` or `runs`"):
        probing.probe(X, [0, 1], trainer={"logger": "csv"})
