"""Sweep files: what they hold, and the real `wandb sweep` and `wandb agent` running one against a stand-in for W&B."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import ROOT
from fault_loop import MANIFEST
from probing import fit, load_run
from probing.cli.arguments import parse
from probing.models import ALIASES
from probing.tasks import load_task
from probing.tracking.wandb_run import PROJECT
from wandb_stand_in import WandbServer, read_offline_runs

FILES = sorted((ROOT / "conf" / "sweeps").rglob("*.yaml"))
COMMAND = ["${env}", "${interpreter}", "-m", "probing", "fit", "${args}"]
# Long enough for a busy machine; nothing waits so long unless something is wrong.
PATIENCE_S = 600

# --- what the files hold ---


def read(path: Path) -> dict[str, Any]:
    sweep: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return sweep


def trials(sweep: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a trial for each value of each parameter, of a range its two ends; the others are at their first."""
    choices = {name: parameter.get("values") or [parameter[key] for key in ("value", "min", "max") if key in parameter]
               for name, parameter in sweep["parameters"].items()}  # fmt: skip
    first = {name: values[0] for name, values in choices.items()}
    for name, values in choices.items():
        yield from (first | {name: value} for value in values)


def as_an_agent_types(trial: dict[str, Any]) -> list[str]:
    from wandb.sdk.launch.sweeps.utils import (
        create_sweep_command_args,
    )  # takes two seconds, which other files need not wait

    args: list[str] = create_sweep_command_args({"args": {name: {"value": value} for name, value in trial.items()}})[
        "args"
    ]
    return args


def test_there_are_sweep_files() -> None:
    assert {path.stem for path in FILES} >= {"layers", "models", "tasks", "learning_rate"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_value_of_a_sweep_file_is_one_that_fit_takes(path: Path) -> None:
    sweep = read(path)
    assert sweep["command"] == COMMAND
    assert sweep["project"] == PROJECT  # else `wandb sweep` puts it where no other run is
    tried = list(trials(sweep))
    assert len(tried) >= len(sweep["parameters"])
    for trial in tried:
        parsed = parse("fit", fit, as_an_agent_types(trial))
        for name, value in trial.items():
            assert reach(parsed, name) == value
        assert parsed["probe"].problems() == []
        assert parsed["model"] in ALIASES
        load_task(parsed["task"], parsed["task_args"] or {})


def reach(parsed: dict[str, Any], name: str) -> Any:
    group, _, inner = name.partition(".")
    value = parsed[group]
    return value[inner] if inner and isinstance(value, dict) else getattr(value, inner) if inner else value


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_sweep_file_says_what_it_asks_and_how_to_run_it(path: Path) -> None:
    comment = "".join(line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#"))
    assert "?" in comment
    for command in (
        f"wandb sweep conf/sweeps/{path.name}",
        "wandb agent",
        f"python -m probing sweep conf/sweeps/{path.name}",
    ):
        assert command in comment


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_metric_of_a_sweep_file_is_one_that_its_trials_log(
    path: Path, checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    sweep = read(path)
    # The tiny model has no layer 6, and no more epochs than it takes are needed.
    first = next(trials(sweep)) | {"model": str(checkpoints["bert"]), "corpus": str(corpus_file), "runs": str(tmp_path)}
    first |= {"layer": 2, "name": "trial", "wandb.mode": "offline", "quiet": True, "controls": "none"}
    first = {"probe.l2": 1e-2} | first | {"evidence": "none", "replicates": 0}
    if "trainer.max_epochs" in first:
        first["trainer.max_epochs"] = 7
    made = fit(**parse("fit", fit, as_an_agent_types(first)))
    assert made is not None
    (run,) = read_offline_runs(made.folder)
    metric = sweep["metric"]["name"].replace("layer_06", "layer_02")
    logged = [row[metric] for row in run.rows(metric)]
    if early := sweep.get("early_terminate"):
        assert len(logged) > early["min_iter"]  # it looks at the values logged one after the other
        assert parse("fit", fit, as_an_agent_types(first))["probe"].solver == "adam"
    assert logged or run.summary[metric] == max(row["accuracy"] for row in made.accuracy)


# --- agents ---


@pytest.fixture(scope="module")
def sweep_file(checkpoints: dict[str, Path], corpus_file: Path) -> dict[str, Any]:
    """The file of layers and penalties cut to one layer, one penalty and three seeds, on a tiny model."""
    sweep = read(ROOT / "conf" / "sweeps" / "layers.yaml")
    fewer = {"layer": [2], "probe.l2": [1e-4], "seed": [0, 1, 2]}
    sweep["parameters"] |= {name: {"values": values} for name, values in fewer.items()}
    sweep["parameters"] |= {"model": {"value": str(checkpoints["bert"])}, "corpus": {"value": str(corpus_file)}}
    return sweep


class Session:
    """A user's shell: a working folder with a sweep file, and an environment that points to a server."""

    def __init__(self, folder: Path, sweep: dict[str, Any], server: WandbServer) -> None:
        self.cwd, self.home, self.temporary = (folder / name for name in ("work", "home", "tmp"))
        for path in (self.cwd, self.home, self.temporary):
            path.mkdir()
        (self.cwd / "sweep.yaml").write_text(yaml.safe_dump(sweep), encoding="utf-8")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "PROBING_"))}
        self._environment = {
            **kept,
            **server.environment,
            # An agent runs the `python` that it finds first, from the user's folder.
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            "MPLCONFIGDIR": str(folder / "matplotlib"),
        }
        self._server = server

    def sweep(self) -> str:
        """Register the sweep and return what the client says to start agents with."""
        done = subprocess.run(
            [sys.executable, "-m", "wandb", "sweep", "sweep.yaml"],
            cwd=self.cwd, env=self._environment, capture_output=True, encoding="utf-8", timeout=PATIENCE_S, check=True,
        )  # fmt: skip
        (line,) = [line for line in done.stderr.splitlines() if "Run sweep agent with" in line]
        return line.rsplit(" ", 1)[1]

    def agent(self, sweep: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "wandb", "agent", sweep],
            cwd=self.cwd, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
        )  # fmt: skip


@pytest.fixture(scope="module")
def swept(
    sweep_file: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[WandbServer, Session, str]]:
    """A sweep that two agents, begun at once, have run to its end, and what they and their trials said."""
    with WandbServer() as server:
        session = Session(tmp_path_factory.mktemp("swept"), sweep_file, server)
        sweep = session.sweep()
        agents = [session.agent(sweep) for _ in range(2)]
        try:
            said = [agent.communicate(timeout=PATIENCE_S)[0] for agent in agents]
        finally:
            for agent in agents:
                agent.kill()
        assert [agent.returncode for agent in agents] == [0, 0], "".join(said)
        yield server, session, "".join(said)


@pytest.mark.several
def test_agents_run_every_point_once_each_as_one_run_of_the_sweep(swept: tuple[WandbServer, Session, str]) -> None:
    server, _, _ = swept
    ((name, sweep),) = server.sweeps.items()
    assert (sweep.project, sweep.agents) == ("probing", 2)
    assert set(server.runs) == set(sweep.points)  # nobody made a run of another id
    assert sorted((point["layer"], point["seed"]) for point in sweep.points.values()) == [(2, 0), (2, 1), (2, 2)]
    for run in server.runs.values():
        assert (run.sweep, run.project, run.exit_code) == (name, "probing", 0)
        config = {key: entry["value"] for key, entry in run.config.items() if key != "_wandb"}
        assert {key: config[key] for key in sweep.points[run.name]} == sweep.points[run.name]
        assert config["task"] == "position"
        assert run.summary["layer"] == config["layer"]
        assert run.summary["layer_02/accuracy"] == run.summary["best_accuracy"]
    assert not server.unknown


@pytest.mark.several
def test_each_trial_is_whole_on_disk_under_a_name_of_its_own(swept: tuple[WandbServer, Session, str]) -> None:
    server, session, said = swept
    runs = {path.name: load_run(path) for path in (session.cwd / "runs").glob("tiny-bert-position-*")}
    assert len(runs) == 3
    assert {run.display_name for run in server.runs.values()} == set(runs)
    for run in server.runs.values():
        found = runs[run.display_name or ""]
        assert run.summary["best_accuracy"] == found.accuracy[0]["accuracy"]
        assert (found.config["layer"], found.config["seed"]) == tuple(run.config[k]["value"] for k in ("layer", "seed"))
        assert f"{found.folder.name}; on Weights & Biases: {server.url}/researcher/probing/runs/{run.name}" in said


@pytest.mark.several
def test_agents_that_start_at_once_share_one_extraction(swept: tuple[WandbServer, Session, str]) -> None:
    _, session, _ = swept
    (entry,) = (path for path in (session.cwd / "runs" / "cache").iterdir() if path.is_dir())
    assert len(list(entry.glob("layer_*/*.safetensors"))) == 1
    # Beside the header a record of each shard that was written, also where one was written twice.
    assert len((entry / MANIFEST).read_text(encoding="utf-8").splitlines()) == 1 + 1


@pytest.mark.several
def test_online_trials_write_nothing_outside_their_folders_but_what_the_agent_does(
    swept: tuple[WandbServer, Session, str],
) -> None:
    server, session, _ = swept
    assert {path.name for path in session.cwd.iterdir()} == {"sweep.yaml", "runs", "wandb"}
    (name,) = server.sweeps
    # What each trial was told, and the log of the client's own commands.
    assert {path.name for path in (session.cwd / "wandb").iterdir()} == {f"sweep-{name}"}
    # torch makes a folder for what it compiles, also where nothing is.
    allowed = ("debug-cli.", "torchinductor_")
    assert all(path.name.startswith(allowed) for path in session.temporary.iterdir())
    left = [path for path in session.home.rglob("*") if path.is_file()]
    assert all(path.name.startswith("core-debug-") for path in left)  # the background process of those commands
    for folder in (session.cwd / "runs").glob("tiny-bert-position-*"):
        assert {path.name.split("-")[0] for path in (folder / "wandb").iterdir()} == {"run"}


@pytest.mark.several
def test_a_trial_whose_server_dies_is_whole_on_disk_in_time_and_says_how_to_upload_it(
    sweep_file: dict[str, Any], tmp_path: Path
) -> None:
    with WandbServer(dies_at="CreateArtifact") as server:
        session = Session(tmp_path, sweep_file, server)
        agent = session.agent(session.sweep())
        try:
            assert server.died.wait(PATIENCE_S)
            died = time.monotonic()
            wait_for(lambda: any((session.cwd / "runs").glob("tiny-bert-position-*/results.json")) and not any(
                (session.cwd / "runs").glob("*.partial")))  # fmt: skip
            assert time.monotonic() - died < 30 + 5  # the promise, and what a busy machine may add
        finally:
            agent.terminate()  # by itself, an agent gives up after some minutes
            said = agent.communicate(timeout=PATIENCE_S)[0]
    (folder,) = (session.cwd / "runs").glob("tiny-bert-position-*")
    assert load_run(folder).accuracy[0]["layer"] == 2
    (tracked,) = read_offline_runs(folder)
    ((asked, _),) = server.sweeps[tracked.run["sweep"]].points.items()
    assert (tracked.run["id"], tracked.exit_code) == (asked, 0)
    assert tracked.rows("train/layer_02/objective")
    assert f"cd runs/{folder.name} && wandb sync wandb/{tracked.folder.name}" in said


def wait_for(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)
