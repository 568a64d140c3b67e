"""Logging to Weights & Biases, against a stand-in for its server, and to CSV, TensorBoard and MLflow."""

from __future__ import annotations

import csv
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from PIL import Image

import probing
from conftest import BARE
from probing import fit
from probing.__main__ import COMMANDS
from probing.cli.arguments import parse
from probing.cli.commandline import run
from probing.cli.options import WandbOptions
from probing.errors import UserError
from probing.runtime import LOGGERS, logger_names, logger_problems
from probing.runtime.trainer import check_trainer_options
from probing.tracking import Tracker, resolve_mode
from probing.tracking.client import Mode
from wandb_stand_in import OfflineRun, WandbServer, read_offline_run, read_offline_runs

ACCURACY: list[dict[str, Any]] = [
    {"layer": 0, "accuracy": 0.25, "accuracy_low": 0.2, "untrained": None, "note": "embeddings"},
    {"layer": 3, "accuracy": 0.75, "accuracy_low": 0.7, "untrained": 0.5, "note": ""},
    {"layer": 12, "accuracy": 0.75, "accuracy_low": 0.6, "untrained": 0.5, "note": ""},
]
# Not in order of rank, and with columns that mix kinds.
NEURONS: list[dict[str, Any]] = [
    {"layer": layer, "rank": rank, "neuron": 10 * rank, "contribution": 1 / rank, "flag": flag}
    for layer in (3, 12)
    for rank, flag in ((2, "dead"), (1, ""), (3, None))
]
# The design's promise of 30 s, and what starting processes on a busy machine may add.
LOSS_S = 30 + 5
# What Lightning counts, which the client logs beside everything.
STEP = "trainer/global_step"

# Other loggers warn of what will change in them, and one leaves its database open.
quiet_loggers = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:unclosed database:ResourceWarning")


@pytest.fixture(autouse=True)
def no_user_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the W&B settings, key and proxies of whoever runs the tests, and keep MLflow's client from the network."""
    for variable in list(os.environ):
        if variable.startswith("WANDB_") or variable.lower().endswith("_proxy"):
            monkeypatch.delenv(variable)
    monkeypatch.delenv("NETRC", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's folder as it is while the run goes on, with its files."""
    folder = tmp_path / "runs" / "NAME.partial"
    folder.mkdir(parents=True)
    (folder / "accuracy.csv").write_text("layer,accuracy\n", encoding="utf-8")
    (folder / "report.html").write_text("<!doctype html><p>Position</p>", encoding="utf-8")
    for name in ("curve.png", "curve.pdf"):
        Image.new("RGB", (2, 3)).save(folder / name)
    return folder


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    with WandbServer() as server:
        point_to(server, monkeypatch)
        yield server


def point_to(server: WandbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in server.environment.items():
        monkeypatch.setenv(variable, value)


def track(folder: Path, warn: Callable[[str], None] | None = None, **options: Any) -> Tracker:
    """Start a run under which every warning fails the test, unless the test collects them."""
    config = {"seed": 7, "probe": {"l2": 1e-4}}
    return Tracker(WandbOptions(**options), folder, "NAME", config, warn or pytest.fail)


def log_all(tracker: Tracker, folder: Path) -> None:
    report = folder / "report.html"
    tracker.log_results(
        ACCURACY, NEURONS, [folder / "curve.png", folder / "curve.pdf"], [folder / "accuracy.csv"], report=report
    )


def offline_run(folder: Path, **options: Any) -> OfflineRun:
    tracker = track(folder, mode="offline", **options)
    log_all(tracker, folder)
    tracker.finish()
    (run,) = read_offline_runs(folder)
    return run


# The mode


@pytest.mark.parametrize(
    ("option", "environment", "expected"),
    [
        ("auto", {}, "offline"),
        ("auto", {"WANDB_API_KEY": "k"}, "online"),
        ("auto", {"WANDB_IDENTITY_TOKEN_FILE": "token"}, "online"),
        ("auto", {"WANDB_API_KEY": ""}, "offline"),
        ("auto", {"WANDB_MODE": "disabled", "WANDB_API_KEY": "k"}, "disabled"),
        ("auto", {"WANDB_MODE": "online"}, "online"),
        ("auto", {"WANDB_MODE": "", "WANDB_API_KEY": "k"}, "online"),
        ("offline", {"WANDB_MODE": "online", "WANDB_API_KEY": "k"}, "offline"),
        ("online", {"WANDB_MODE": "nonsense"}, "online"),
    ],
)
def test_the_option_goes_before_the_environment_and_that_before_the_key(
    option: str, environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert resolve_mode(option) == expected


@pytest.mark.parametrize(
    ("machine", "environment", "expected"),
    [
        ("api.wandb.ai", {}, "online"),
        ("wandb.example.org:8080", {"WANDB_BASE_URL": "http://wandb.example.org:8080"}, "online"),
        ("api.wandb.ai", {"WANDB_BASE_URL": "http://wandb.example.org:8080"}, "offline"),
        ("github.com", {}, "offline"),
    ],
)
def test_a_key_in_netrc_counts_for_its_own_server_only(
    machine: str,
    environment: dict[str, str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    netrc = tmp_path / ".netrc"
    netrc.write_text(f"machine {machine}\n  login user\n  password k\n", encoding="utf-8")
    netrc.chmod(0o600)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert resolve_mode("auto") == expected


def test_the_server_that_wandb_login_stored_decides_which_key_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "settings").write_text("[default]\nbase_url = https://here\n", encoding="utf-8")
    (tmp_path / "keys").write_text("machine here login user password k\n", encoding="utf-8")
    monkeypatch.setenv("NETRC", str(tmp_path / "keys"))
    assert resolve_mode("auto") == "offline"
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    assert resolve_mode("auto") == "online"


def test_a_broken_netrc_is_no_key(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine\nmachine\n", encoding="utf-8")
    assert resolve_mode("auto") == "offline"


def test_a_mode_that_does_not_exist_is_named_with_where_it_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UserError, match=r"--wandb.mode is 'on': expected online, offline"):
        resolve_mode("on")
    monkeypatch.setenv("WANDB_MODE", "dry")
    with pytest.raises(UserError, match="WANDB_MODE is 'dry': expected online, offline"):
        resolve_mode("auto")


def test_the_mode_that_a_logger_of_lightning_leaves_behind_is_understood(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from pytorch_lightning.loggers import WandbLogger  # draws: a process that imports this module is to write nothing

    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    run = WandbLogger(save_dir=tmp_path, offline=True).experiment
    assert os.environ["WANDB_MODE"] not in get_args(Mode)
    assert resolve_mode("auto") == "offline"
    run.finish()  # or it would go on to read what this process prints
    monkeypatch.setenv("WANDB_MODE", "run")
    assert resolve_mode("auto") == "online"


@pytest.mark.parametrize(
    ("settings", "environment", "expected"),
    [
        ({"wandb": "mode = offline"}, {}, "offline"),
        ({"wandb": "mode = disabled"}, {}, "disabled"),
        ({"wandb": "disabled = true"}, {}, "disabled"),
        ({"wandb": "disabled = true\nmode = dryrun"}, {}, "offline"),
        ({"wandb": "mode = online"}, {}, "online"),
        ({"wandb": "project = p"}, {}, "online"),
        ({".wandb": "mode = offline"}, {}, "offline"),
        ({"config": "mode = offline"}, {}, "offline"),
        ({"config": "mode = offline", "wandb": "mode = online"}, {}, "online"),
        ({"config": "mode = offline", "wandb": "mode = disabled"}, {}, "disabled"),
        ({"elsewhere/wandb": "mode = disabled"}, {"WANDB_DIR": "elsewhere"}, "disabled"),
        ({"wandb": "mode = offline"}, {"WANDB_MODE": "online"}, "offline"),
        ({"wandb": "mode = offline"}, {"WANDB_MODE": "disabled"}, "disabled"),
        ({"wandb": "mode = disabled"}, {"WANDB_MODE": "offline"}, "disabled"),
        ({}, {"WANDB_DISABLED": "true"}, "disabled"),
        ({}, {"WANDB_DISABLED": "false"}, "online"),
    ],
)
def test_what_is_switched_off_is_not_sent_unless_the_option_says_so(
    settings: dict[str, str], environment: dict[str, str], expected: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for place, content in settings.items():
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "settings").write_text(f"[default]\n{content}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for variable, value in {"WANDB_API_KEY": "k", "WANDB_CONFIG_DIR": str(tmp_path / "config"), **environment}.items():
        monkeypatch.setenv(variable, value)
    assert resolve_mode("auto") == expected
    assert resolve_mode("online") == "online"


@pytest.mark.slow
def test_a_folder_that_the_client_has_switched_off_is_followed_and_switched_on_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_API_KEY", "k")
    for command, expected in {"offline": "offline", "disabled": "disabled", "online": "online"}.items():
        subprocess.run([sys.executable, "-m", "wandb", command], check=True, capture_output=True)
        assert resolve_mode("auto") == expected


def test_a_settings_file_with_another_mode_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "settings").write_text("[default]\nmode = of\n", encoding="utf-8")
    with pytest.raises(
        UserError, match=r"`mode` in wandb.settings is 'of': expected online, offline or disabled; corr"
    ):
        resolve_mode("auto")


def test_importing_the_module_loads_no_heavy_library() -> None:
    code = "import sys, probing.tracking; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert "probing.tracking" in loaded.stdout.split()
    assert not {"torch", "pytorch_lightning", "wandb"} & set(loaded.stdout.split())


# Offline


def test_an_offline_run_carries_its_name_its_options_and_its_config(folder: Path) -> None:
    run = offline_run(folder, project="p", group="g", tags=["a", "b"], notes="two lines\nof notes", job_type="probe")
    named = {key: value for key, value in run.run.items() if key != "id"}
    assert named == {
        "name": "NAME", "project": "p", "sweep": "", "group": "g", "tags": ["a", "b"], "notes": "two lines\nof notes",
        "job_type": "probe",
    }  # fmt: skip
    assert run.config["seed"] == 7
    assert run.config["probe"] == {"l2": 1e-4}
    assert run.exit_code == 0


@pytest.mark.parametrize(
    ("option", "variable", "expected"), [(None, "theirs", "theirs"), ("ours", "theirs", "ours"), (None, "", "probing")]
)
def test_the_project_is_that_of_the_option_or_else_of_the_environment(
    option: str | None, variable: str, expected: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_PROJECT", variable)
    assert offline_run(folder, project=option).run["project"] == expected


@pytest.mark.parametrize(
    ("option", "variable", "expected"), [(None, "theirs", "theirs"), ("ours", "theirs", "ours"), (None, "", "NAME")]
)
def test_the_name_is_that_of_the_option_or_else_of_the_environment_or_the_folder(
    option: str | None, variable: str, expected: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_NAME", variable)
    run = offline_run(folder, name=option)
    assert run.run["name"] == expected
    assert "NAME" in [name for name, _, _ in run.artifacts]  # the artifact has the name of the files on disk


def test_what_no_option_says_is_that_of_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in {"NOTES": "theirs", "JOB_TYPE": "theirs", "TAGS": "c,d", "RUN_GROUP": "theirs"}.items():
        monkeypatch.setenv(f"WANDB_{variable}", value)
    run = offline_run(folder, job_type="ours").run
    assert (run["notes"], run["job_type"], run["tags"], run["group"]) == ("theirs", "ours", ["c", "d"], "theirs")


@pytest.mark.parametrize("typed", ["a, b,", ["a", "b"], "[a, b]"])
def test_tags_are_typed_as_text_or_as_a_list(typed: Any) -> None:
    assert parse("fit", fit, [f"--wandb.tags={typed}"])["wandb"].tags == ["a", "b"]
    assert WandbOptions(tags="a, b").tags == ["a", "b"]


def test_a_tag_that_wandb_would_refuse_is_refused_before_any_work(capsys: pytest.CaptureFixture[str]) -> None:
    for tag in ("", 65 * "x"):
        assert run(COMMANDS, ["fit", f"--wandb.tags=['{tag}']"]) == 2
        assert f"`--wandb.tags`: '{tag}' has {len(tag)} characters; expected" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "expected"), [(None, "team"), ("ours", "ours")])
def test_the_entity_is_that_of_the_option_or_else_of_the_environment(
    option: str | None, expected: str, folder: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_ENTITY", "team")
    tracker = track(folder, mode="online", entity=option)
    tracker.finish()
    assert tracker.where(folder) is not None
    assert f"/{expected}/probing/runs/" in str(tracker.where(folder))


def test_numeric_columns_become_curves_over_the_layer(folder: Path) -> None:
    run = offline_run(folder)
    assert run.step_metrics["by_layer/accuracy"] == "layer"
    assert [(row["layer"], row["by_layer/accuracy"]) for row in run.rows("layer")] == [
        (0, 0.25),
        (3, 0.75),
        (12, 0.75),
    ]
    assert [row["layer"] for row in run.rows("by_layer/untrained")] == [3, 12]
    assert not run.rows("by_layer/note")
    assert not run.rows("by_layer/layer")


def test_the_summary_says_of_which_layer_each_number_is(folder: Path) -> None:
    summary = offline_run(folder).summary
    for row in ACCURACY:
        for column in ("accuracy", "accuracy_low"):
            assert summary[f"layer_{row['layer']:02d}/{column}"] == row[column]
    assert "layer_00/untrained" not in summary
    # Neither the last layer's numbers under the name of them all, nor what is no number.
    assert not [key for key in summary if key.startswith("by_layer/") or key == "layer" or key.endswith("/note")]


def test_a_number_that_one_layer_alone_has_is_no_curve(folder: Path) -> None:
    rows = [{"layer": 3, "accuracy": 0.5, "compression": 2.0}, {"layer": 6, "accuracy": 0.75}]
    tracker = track(folder, mode="offline")
    tracker.log_results(rows, [], [], [])
    tracker.finish()
    (run,) = read_offline_runs(folder)
    assert len(run.rows("by_layer/accuracy")) == 2
    assert not run.rows("by_layer/compression")
    assert run.summary["layer_03/compression"] == 2.0


def test_a_run_of_one_layer_has_a_summary_and_no_chart_of_one_point(folder: Path) -> None:
    tracker = track(folder, mode="offline")
    tracker.log_results(ACCURACY[:1], [], [], [], axis="layer")
    tracker.finish()
    (run,) = read_offline_runs(folder)
    assert {key for row in run.history for key in row} - {"_step", "_runtime", "_timestamp"} == {"accuracy", STEP}
    assert run.table("accuracy") == ACCURACY[:1]
    # `by_layer/` is what a sweep over layers, each a run of its own, has as its metric.
    named = {
        key: value for key, value in run.summary.items() if not key.startswith("_") and key not in ("accuracy", STEP)
    }
    assert named == {
        "best_accuracy": 0.25, "best_layer": 0, "layer": 0, "layer_00/accuracy": 0.25, "layer_00/accuracy_low": 0.2,
        "by_layer/accuracy": 0.25, "by_layer/accuracy_low": 0.2,
    }  # fmt: skip


def test_further_curves_have_an_axis_of_their_own(folder: Path) -> None:
    tracker = track(folder, mode="offline")
    points = [{"log10_l2": x, "layer_03/validation_cross_entropy": x * x} for x in (-2.0, -2.5)]
    tracker.log_results(ACCURACY, [], [], [], curves={"log10_l2": points})
    tracker.finish()
    (run,) = read_offline_runs(folder)
    key = "by_log10_l2/layer_03/validation_cross_entropy"
    assert run.step_metrics[key] == "log10_l2"
    assert [(row["log10_l2"], row[key]) for row in run.rows(key)] == [(-2.0, 4.0), (-2.5, 6.25)]
    assert not {key, "log10_l2"} & set(run.summary)


def test_the_accuracy_table_holds_every_column_of_every_layer(folder: Path) -> None:
    assert offline_run(folder).table("accuracy") == ACCURACY


def test_each_layer_has_one_table_of_neurons_in_order_of_rank(folder: Path) -> None:
    run = offline_run(folder)
    for layer in (3, 12):
        expected = [row for row in NEURONS if row["layer"] == layer]
        expected.sort(key=lambda row: row["rank"])
        assert run.table(f"neurons/layer_{layer:02d}") == expected


def test_a_table_holds_the_first_ten_thousand_ranks(folder: Path) -> None:
    neurons = [{"layer": 0, "rank": rank} for rank in range(10_001, 0, -1)]
    tracker = track(folder, mode="offline")
    tracker.log_results([], neurons, [], [])
    tracker.finish()
    final = folder.rename(folder.with_name("NAME"))
    ((_, _, files),) = read_offline_runs(final)[0].artifacts
    # Not the media copy, which the client itself cuts at this length.
    table = json.loads((final / files["neurons/layer_00.table.json"]).read_text(encoding="utf-8"))
    assert table["data"] == [[0, rank] for rank in range(1, 10_001)]


def test_nothing_is_left_to_the_garbage_collector(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb  # noqa: F401  on import it makes a folder that the whole process uses

    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    offline_run(folder)
    # This one also belongs to the process and goes with it.
    assert not [path for path in temporary.iterdir() if not path.name.endswith("wandb-artifacts")]


def test_the_summary_names_the_best_layer_and_the_lowest_of_equals(folder: Path) -> None:
    summary = offline_run(folder).summary
    assert (summary["best_accuracy"], summary["best_layer"]) == (0.75, 3)


def test_figures_and_files_belong_to_the_run(folder: Path) -> None:
    run = offline_run(folder)
    (figure,) = run.rows("figures/curve")
    assert (run.folder / "files" / figure["figures/curve"]["path"]).read_bytes() == (folder / "curve.png").read_bytes()
    (files,) = [files for name, kind, files in run.artifacts if (name, kind) == ("NAME", "probe")]
    # Seen from the folder, whatever its name will be; of the report, a copy that stays as it is.
    assert files["accuracy.csv"] == Path("accuracy.csv")
    # The vector form of a figure is kept, and shown nowhere beside the image.
    assert files["figures/curve.pdf"] == Path("curve.pdf")
    assert [key for row in run.history for key in row if key.startswith("figures/")] == ["figures/curve"]
    page = (folder / "report.html").read_bytes()
    (folder / "report.html").unlink()
    assert (folder / files["report.html"]).read_bytes() == page


def test_the_report_is_shown_as_the_page_that_it_is(folder: Path) -> None:
    run = offline_run(folder)
    (logged,) = run.rows("report")
    assert (run.folder / "files" / logged["report"]["path"]).read_bytes() == (folder / "report.html").read_bytes()


def test_rows_without_accuracy_are_curves_and_no_table_of_accuracy(folder: Path) -> None:
    tracker = track(folder, mode="offline")
    tracker.log_results([{"layer": n, "mean_cosine": 1 / n} for n in (2, 4)], [], [], [])
    tracker.finish()
    (run,) = read_offline_runs(folder)
    assert [row["by_layer/mean_cosine"] for row in run.rows("layer")] == [0.5, 0.25]
    assert not run.rows("accuracy")


def test_the_artifact_has_a_name_that_wandb_allows(folder: Path) -> None:
    tracker = Tracker(WandbOptions(mode="offline"), folder, "a/b: é", {}, pytest.fail)
    log_all(tracker, folder)
    tracker.finish(exit_code=1)
    (run,) = read_offline_runs(folder)
    assert "a_b___" in [name for name, _, _ in run.artifacts]
    assert run.exit_code == 1


def test_what_lightning_logs_reaches_the_run(folder: Path) -> None:
    tracker = track(folder, mode="offline")
    assert tracker.logger is not None
    tracker.logger.log_metrics({"train/loss": 0.5}, step=3)
    tracker.logger.log_hyperparams({"solver": "lbfgs"})
    tracker.finish()
    (run,) = read_offline_runs(folder)
    assert run.rows("train/loss")[0]["trainer/global_step"] == 3
    assert run.config["solver"] == "lbfgs"


def test_of_lightning_a_test_is_a_summary_and_a_mean_over_layers_is_nothing(folder: Path) -> None:
    tracker = track(folder, mode="offline")
    assert tracker.logger is not None
    two = {"val/layer_03/accuracy": 0.5, "val/layer_06/accuracy": 1.0, "val/accuracy": 0.75, "epoch": 1}
    for step in range(2):
        tracker.logger.log_metrics(two, step=step)
    tracker.logger.log_metrics({key.replace("val", "test"): value for key, value in two.items()}, step=2)
    # The other layer is solved.
    tracker.logger.log_metrics({"train/layer_06/objective": 0.25, "train/objective": 0.25}, step=3)
    tracker.finish()
    (run,) = read_offline_runs(folder)
    assert [row["val/layer_06/accuracy"] for row in run.rows("val/layer_03/accuracy")] == [1.0, 1.0]
    assert run.summary["test/layer_06/accuracy"] == 1.0
    assert not run.rows("test/layer_06/accuracy")
    means = {"val/accuracy", "test/accuracy", "train/objective"}
    assert not means & {key for row in [*run.history, run.summary] for key in row}


def test_of_a_single_layer_lightning_logs_names_without_it_too(folder: Path) -> None:
    tracker = track(folder, mode="offline")
    assert tracker.logger is not None
    tracker.logger.log_metrics({"val/layer_06/accuracy": 0.5, "val/accuracy": 0.5}, step=0)
    tracker.finish()
    (run,) = read_offline_runs(folder)
    assert run.summary["val/accuracy"] == run.summary["val/layer_06/accuracy"] == 0.5


def test_an_error_while_lightning_logs_is_one_warning_and_keeps_the_results(
    folder: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    tracker = track(folder, warnings.append, mode="online")
    assert tracker.logger is not None
    attempts: list[object] = []

    def quota_exceeded(metrics: object) -> None:
        attempts.append(metrics)
        raise RuntimeError("quota exceeded")

    monkeypatch.setattr(tracker.logger.experiment, "log", quota_exceeded)
    tracker.logger.log_metrics({"train/loss": 0.5}, step=3)
    tracker.logger.log_metrics({"train/loss": 0.4}, step=4)
    log_all(tracker, folder)
    tracker.finish()
    (warning,) = warnings
    assert "quota exceeded" in warning
    assert len(attempts) == 1
    assert tracker.mode == "offline"
    (run,) = read_offline_runs(folder)
    assert run.table("accuracy") == ACCURACY
    # What failed is there, too, and the run that a sync makes is the one that began online.
    assert [row["train/loss"] for row in run.rows("train/loss")] == [0.5, 0.4]
    assert run.run["id"] == one(server.runs)
    assert [path.name for path in (folder / "wandb").glob("*run-*")] == [run.folder.name]


def one(found: Iterable[str]) -> str:
    (it,) = found
    return it


@pytest.mark.slow
def test_the_run_that_an_agent_asked_for_is_the_run(
    folder: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"RUN_ID": "asked", "SWEEP_ID": "grid", "PROJECT": "elsewhere", "ENTITY": "lab", "DIR": "."}
    for variable, value in environment.items():
        monkeypatch.setenv(f"WANDB_{variable}", value)
    tracker = track(folder, mode="online")
    log_all(tracker, folder)
    tracker.finish()
    (run,) = server.runs.values()
    # Its project is the sweep's; its name is that of the folder.
    assert (run.name, run.sweep, run.project, run.display_name) == ("asked", "grid", "elsewhere", "NAME")
    assert run.exit_code == 0
    # And where the server is lost, the run that is to be uploaded later is the same.
    server.close()
    monkeypatch.setattr("probing.tracking.wandb_run._INIT_S", 1.0)
    tracker = track(folder, print, mode="online")
    tracker.finish()
    (offline,) = read_offline_runs(folder)
    assert (offline.run["id"], offline.run["sweep"], offline.run["project"]) == ("asked", "grid", "elsewhere")


@pytest.mark.slow
def test_logs_of_runs_before_outlast_one_that_cannot_start(
    folder: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = track(folder, mode="online")
    tracker.finish()
    (log,) = (folder / "wandb").glob("run-*")
    server.close()
    monkeypatch.setattr("probing.tracking.wandb_run._INIT_S", 1.0)
    track(folder, print, mode="online").finish()
    assert log.is_dir()


def test_two_trackers_in_one_process_are_two_runs(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        tracker = track(tmp_path / name, mode="offline", group=name)
        tracker.log_results(ACCURACY[:2], [], [], [])
        tracker.finish()
    (one,), (two,) = (read_offline_runs(tmp_path / name) for name in ("one", "two"))
    assert (one.run["group"], two.run["group"]) == ("one", "two")
    assert len(one.rows("layer")) == len(two.rows("layer")) == 2


def test_the_id_of_the_environment_is_that_of_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_RUN_ID", "for-one")
    ids = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        track(tmp_path / name, mode="offline").finish()
        (run,) = read_offline_runs(tmp_path / name)
        ids.append(run.run["id"])
    assert ids[0] == "for-one" != ids[1]


def test_a_run_that_the_user_has_open_is_neither_used_nor_closed(tmp_path: Path) -> None:
    import wandb

    for name in ("mine", "ours"):
        (tmp_path / name / "wandb").mkdir(parents=True)
    with wandb.init(mode="offline", dir=tmp_path / "mine", settings={"silent": True}) as mine:
        tracker = track(tmp_path / "ours", mode="offline")
        tracker.log_results(ACCURACY, [], [], [])
        tracker.finish()
        mine.log({"alive": 1})
    wandb.teardown()  # everything is on disk when this returns
    (run,) = read_offline_runs(tmp_path / "mine")
    assert run.rows("alive")
    assert not run.rows("layer")


def test_the_environment_is_as_it_was(folder: Path) -> None:
    before = dict(os.environ)
    tracker = track(folder, mode="offline")
    assert {k: v for k, v in os.environ.items() if k != "WANDB_SERVICE"} == before
    tracker.finish()
    assert dict(os.environ) == before


@pytest.mark.parametrize("mode", ["", "disabled", "online"])
def test_the_mode_asked_for_wins_inside_the_client_too(
    mode: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", mode)
    assert offline_run(folder).table("accuracy") == ACCURACY
    assert os.environ["WANDB_MODE"] == mode


def test_finishing_twice_is_finishing_once(folder: Path) -> None:
    tracker = track(folder, mode="offline")
    tracker.finish()
    tracker.finish(exit_code=1)
    (run,) = read_offline_runs(folder)
    assert run.exit_code == 0


def test_disabled_writes_nothing_and_has_no_logger(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    tracker = track(folder, mode="disabled")
    log_all(tracker, folder)
    tracker.finish()
    assert tracker.logger is None
    assert tracker.where(folder) is None
    assert sorted(folder.rglob("*")) == before


@pytest.mark.slow
def test_an_offline_run_writes_and_connects_nowhere_else(tmp_path: Path, folder: Path) -> None:
    elsewhere = {name: tmp_path / "elsewhere" / name for name in ("home", "temporary", "cwd")}
    for path in elsewhere.values():
        path.mkdir(parents=True)
    with WandbServer() as server:
        # As a proxy, the server also sees what is meant for any other host.
        environment = {
            **os.environ,
            **server.environment,
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), server.url),
            "HOME": str(elsewhere["home"]),
            "TMPDIR": str(elsewhere["temporary"]),
            "MPLCONFIGDIR": str(tmp_path),  # for the list of fonts, which the imports of the tests cause
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        code = (
            "import sys; from pathlib import Path; import test_tracking as t; f = Path(sys.argv[1])"
            "; tracker = t.track(f, mode='offline'); t.log_all(tracker, f); tracker.finish()"
        )
        subprocess.run(
            [sys.executable, "-c", code, str(folder)],
            cwd=elsewhere["cwd"],
            env=environment,
            check=True,
            timeout=600,
        )
        assert server.connections == 0
    (run,) = read_offline_runs(folder)
    assert run.table("accuracy") == ACCURACY
    assert set((tmp_path / "elsewhere").rglob("*")) == set(elsewhere.values())
    names = {"accuracy.csv", "curve.png", "curve.pdf", "report.html", "wandb"}
    assert {path.name for path in folder.iterdir()} == names


# Online


@pytest.mark.slow
def test_an_online_run_arrives_whole(folder: Path, server: WandbServer) -> None:
    tracker = track(folder, entity="lab")
    log_all(tracker, folder)
    tracker.finish()
    assert tracker.mode == "online"
    (run,) = server.runs.values()
    assert (run.display_name, run.exit_code) == ("NAME", 0)
    assert run.config["seed"]["value"] == 7
    curve = [(row["layer"], row["by_layer/accuracy"]) for row in run.history if "layer" in row]
    assert curve == [(0, 0.25), (3, 0.75), (12, 0.75)]
    assert run.summary["best_layer"] == 3
    probe = server.artifact("probe")
    assert (probe.name, sorted(probe.files), probe.committed) == (
        "NAME",
        ["accuracy.csv", "figures/curve.pdf", "report.html"],
        True,
    )
    assert tracker.where(folder) == f"{server.url}/lab/probing/runs/{run.name}"
    assert not server.unknown


def test_without_a_key_an_online_run_is_offline_and_says_so(folder: Path) -> None:
    warnings: list[str] = []
    tracker = track(folder, warnings.append, mode="online")
    tracker.finish()
    (warning,) = warnings
    assert "no API key is configured" in warning
    assert tracker.mode == "offline"


def test_when_not_even_offline_works_the_run_goes_on_without(folder: Path) -> None:
    (folder / "wandb").write_text("in the way", encoding="utf-8")
    warnings: list[str] = []
    tracker = track(folder, warnings.append, mode="offline")
    log_all(tracker, folder)
    tracker.finish()
    assert tracker.mode == "disabled"
    assert tracker.logger is None
    (warning,) = warnings
    assert warning.startswith("W&B is off for this run")


def test_variables_that_the_client_refuses_are_named_all_together(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = {"TAGS": 65 * "x", "QUIET": "maybe", "RESUME": "sometimes", "BASE_URL": "nowhere", "RUN_ID": "a/b"}
    for variable, value in {**bad, "NOTES": "good"}.items():
        monkeypatch.setenv(f"WANDB_{variable}", value)
    warnings: list[str] = []
    tracker = track(folder, warnings.append, mode="offline")
    log_all(tracker, folder)
    tracker.finish()
    (warning,) = warnings
    assert {part.split(":")[0] for part in warning.split("$")[1:]} == {f"WANDB_{variable}" for variable in bad}
    assert "$WANDB_QUIET: Input should be a valid boolean, unable to interpret input; $WANDB_RESUME: " in warning


@pytest.mark.patient
def test_an_absent_server_costs_seconds_and_leaves_an_offline_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WandbServer() as server:
        point_to(server, monkeypatch)
    assert_falls_back(folder)


# A run of this size is some 50 requests: after the first it has begun, after the fifth its results
# are being logged, after the 40th they are being uploaded.
@pytest.mark.patient
@pytest.mark.parametrize(
    "fault", [{"delay_s": 4.0}, *({f"{how}_after": n} for how in ("dies", "hangs") for n in (1, 5, 40))]
)
def test_a_server_that_is_slow_or_fails_midway_costs_seconds_and_leaves_an_offline_run(
    fault: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WandbServer(**fault) as server:
        point_to(server, monkeypatch)
        assert_falls_back(folder)


def assert_falls_back(folder: Path) -> None:
    """Log everything online; expect one warning, no exception and a whole offline run."""
    warnings: list[str] = []
    start = time.monotonic()
    tracker = track(folder, warnings.append, mode="online")
    log_all(tracker, folder)
    tracker.finish()
    assert time.monotonic() - start < LOSS_S
    assert tracker.mode == "offline"
    (run,) = read_offline_runs(folder)
    assert run.table("accuracy") == ACCURACY
    assert run.exit_code == 0
    assert [path.name for path in (folder / "wandb").glob("*run-*")] == [run.folder.name]
    (warning,) = warnings
    assert f"`wandb sync wandb/{run.folder.name}`" in warning


@pytest.mark.slow
@pytest.mark.parametrize("place", ["runs/NAME", "another place/copy"])
def test_the_line_for_the_user_uploads_an_offline_run_whole_wherever_it_is(
    place: str, folder: Path, tmp_path: Path, server: WandbServer
) -> None:
    tracker = track(folder, mode="offline")
    log_all(tracker, folder)
    tracker.finish()
    (tmp_path / place).parent.mkdir(exist_ok=True)
    final = folder.rename(tmp_path / place)
    assert not server.connections
    sync(tracker.where(final), tmp_path)
    (run,) = server.runs.values()
    assert run.exit_code == 0
    assert len([row for row in run.history if "layer" in row]) == len(ACCURACY)
    # Every table is an artifact, too. Those whose files are not where the run says stay pending.
    assert len(server.artifacts) == 4
    assert all(artifact.committed for artifact in server.artifacts.values())
    assert sorted(server.artifact("probe").files) == ["accuracy.csv", "figures/curve.pdf", "report.html"]
    pages = [content for name, content in server.uploads.items() if name.endswith(".html")]
    assert pages == [(final / "report.html").read_bytes()] * 2  # in the artifact, and to be seen
    assert not server.unknown


def sync(line: str | None, cwd: Path) -> None:
    """Do what the line tells the user to."""
    assert line is not None
    assert "&& wandb sync " in line
    # The command of this interpreter, whatever the PATH holds.
    line = line.replace("wandb sync", f"{sys.executable} -m wandb sync")
    subprocess.run(line, shell=True, cwd=cwd, check=True, timeout=600)


@pytest.mark.slow
def test_an_online_run_in_the_same_folder_takes_no_table_of_an_offline_one(
    folder: Path, tmp_path: Path, server: WandbServer
) -> None:
    lines = []
    for mode in ("offline", "online"):
        tracker = track(folder, mode=mode)
        log_all(tracker, folder)
        tracker.finish()
        lines.append(tracker.where(folder))
    assert len(server.artifacts) == 4
    sync(lines[0], tmp_path)
    assert len(server.artifacts) == 8
    assert all(artifact.committed for artifact in server.artifacts.values())


def test_reading_a_torn_log_gives_what_came_before(folder: Path) -> None:
    run = offline_run(folder)
    (log,) = run.folder.glob("*.wandb")
    log.write_bytes(log.read_bytes()[:-20])
    torn = read_offline_run(run.folder)
    assert torn.exit_code is None
    assert torn.config == json.loads(json.dumps(run.config))


LOGGERS_NEURONS: list[dict[str, Any]] = [
    {"layer": 3, "rank": rank, "neuron": 10 * rank, "contribution": 1 / rank, "flag": "dead" if rank == 2 else None}
    for rank in range(1, 104)
]
PENALTIES = [{"log10_l2": at, "layer_03/cross_entropy": at**2} for at in (-2.5, -1.5)]
CONFIG = {"seed": 7, "probe": {"l2": 1e-4}, "trainer": {"logger": "csv,tensorboard,mlflow"}}
NAMES = ["csv", "tensorboard", "mlflow"]


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
        ACCURACY, LOGGERS_NEURONS, figures, [folder / "accuracy.csv"], report=folder / "report.html",
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


@quiet_loggers
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


@quiet_loggers
def test_csv_has_the_configuration_beside_the_metrics(folder: Path) -> None:
    run = log(folder, "csv")
    assert [path.name for path in sorted((run / "csv").iterdir())] == ["hparams.yaml", "metrics.csv"]
    settings = yaml.safe_load((run / "csv" / "hparams.yaml").read_text(encoding="utf-8"))
    assert settings == {**CONFIG, "trainer": {"logger": "csv"}, "d_model": 4}
    assert {"best_accuracy", "train/layer_03/objective"} < set(of_csv(run))


@quiet_loggers
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


@quiet_loggers
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
    assert table["neuron"].tolist() == [row["neuron"] for row in LOGGERS_NEURONS]
    path = Path(client.download_artifacts(found.info.run_id, "accuracy.json"))
    assert found.info.artifact_uri.startswith((run / "mlflow").as_uri())
    assert json.loads(path.read_text(encoding="utf-8"))["columns"] == [*ACCURACY[0]]


@quiet_loggers
@pytest.mark.slow
def test_a_run_that_failed_is_marked_as_failed(folder: Path) -> None:
    _, found = mlflow_run(log(folder, "mlflow", code=1))
    assert found.info.status == "FAILED"


@quiet_loggers
def test_a_server_of_mlflow_that_is_absent_costs_one_warning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    said: list[str] = []
    run = log(folder, "csv,mlflow", warn=said.append)
    assert len(said) == 1
    assert said[0].startswith("mlflow is off for this run (")
    assert "results on disk are complete without it" in said[0]
    assert "best_accuracy" in of_csv(run)
    assert not (run / "mlflow").exists()


@quiet_loggers
def test_a_run_that_goes_on_is_logged_anew(folder: Path) -> None:
    for name in ("csv", "tensorboard"):
        (folder / name).mkdir()
        (folder / name / "left.txt").touch()
    run = log(folder, "csv,tensorboard")
    assert len(of_csv(run)["best_accuracy"]) == len(of_tensorboard(run)["best_accuracy"]) == 1
    assert not [*run.rglob("left.txt")]


@quiet_loggers
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


@quiet_loggers
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


@quiet_loggers
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


@quiet_loggers
def test_a_fit_is_logged_with_its_training(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = probing.fit(
        model=str(checkpoints["bert"]), corpus=str(corpus_file), layer=[1, 2], name="A", quiet=True,
        wandb={"mode": "disabled"}, trainer={"logger": "csv,tensorboard"}, **BARE,
    )  # fmt: skip
    found, scalars = of_csv(run.folder), of_tensorboard(run.folder)
    assert set(found) == set(scalars)
    assert len(found["train/layer_01/objective"]) >= 2
    assert dict(found["by_layer/accuracy"]) == pytest.approx({row["layer"]: row["accuracy"] for row in run.accuracy})
    assert run.config["trainer"] == {"logger": "csv,tensorboard"}


@pytest.mark.slow
@quiet_loggers
def test_other_commands_log_their_curves(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = probing.geometry(
        model=str(checkpoints["bert"]), corpus=str(corpus_file), quiet=True, wandb={"mode": "offline"},
        trainer={"accelerator": "cpu", "logger": "csv"},
    )  # fmt: skip
    found = of_csv(made.folder)
    (wandb,) = read_offline_runs(made.folder)
    curves = {key for row in wandb.history for key in row if key.startswith("by_layer/")}
    assert curves
    assert curves <= set(found)


@quiet_loggers
def test_what_makes_no_run_takes_no_logger(checkpoints: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="`extract` makes no run that could be logged"):
        probing.extract(model=str(checkpoints["bert"]), trainer={"logger": "csv"})
    X = [[0.0, 1.0], [1.0, 0.0]]
    with pytest.raises(UserError, match="goes with its object; give `name` or `runs`"):
        probing.probe(X, [0, 1], trainer={"logger": "csv"})
