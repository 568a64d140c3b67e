"""`hierarchy` from the command line: everything is on disk, and what cannot be measured is refused before any work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from probing import Result, hierarchy, load_run
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.probes.training import STRONGEST_PENALTY as STRONGEST
from probing.probes.training import WEAKEST_PENALTY as WEAKEST
from probing.probes.training import strength
from rendering import rendered
from wandb_stand_in import read_offline_runs
from written import read_csv

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
]
SIZES = {"train_sentences": 60, "test_sentences": 25, "generalisation_sentences": 30}
NONE: Any = {"mode": "disabled"}


@pytest.fixture
def options(tmp_path: Path, checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cache = tmp_path_factory.getbasetemp() / "hierarchy-cache"
    model = str(checkpoints["bert"])
    return {"model": model, "runs": str(tmp_path / "runs"), "cache": str(cache), "probe": {"l2": 1e-2}, **SIZES}


@pytest.mark.slow
@rendered()
def test_both_tasks_with_their_controls_are_on_disk_and_repeat(
    options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    probe = options.pop("probe")
    args = [f"--{name}={value}" for name, value in options.items()]
    args += [f"--probe.l2={probe['l2']}", "--layer=0,2", "--figure_format=png"]
    assert run(COMMANDS, ["hierarchy", *args, "--wandb.mode=offline", "--name=a"]) == 0
    said = capsys.readouterr().out
    assert "Main auxiliary: share of sentences answered rightly" in said
    assert "Subject noun: where the two rules differ, probes go by" in said
    folder = Path(options["runs"]) / "a"
    assert {path.name for path in folder.iterdir()} == {
        "hierarchy.csv", "distractors.csv", "config.yaml", "results.json", "figures", "wandb"
    }  # fmt: skip
    assert (folder / "figures" / "hierarchy.png").stat().st_size > 10_000
    rows = read_csv(folder / "hierarchy.csv")
    assert [(row["task"], row["condition"], row["layer"]) for row in rows] == [
        (task, condition, layer)
        for task in ("main_auxiliary", "subject_noun")
        for condition in ("model", "untrained", "permuted_positions")
        for layer in (0, 2)
    ]
    for row in rows:
        other, own = sorted(("first_auxiliary", "first_noun"), key=lambda name: row[name] != "")
        assert row[other] == ""
        assert 0 <= row[own] + row["generalisation"] <= 1
        assert row["preference"] == pytest.approx(row["generalisation"] - row[own])
        assert (row["difference"] == "") is (row["condition"] == "model")
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert results["n_sentences"] == {"train": 60, "validation": 25, "test": 25, "generalisation": 30}
    assert results["penalty"] == {"main_auxiliary": 0.01, "subject_noun": 0.01}
    (tracked,) = read_offline_runs(folder)
    assert len(tracked.table("hierarchy")) == len(rows)
    assert len(tracked.table("distractors")) == 2 * len(rows)
    made = load_run(folder)
    assert type(made) is Result
    assert [row["condition"] for row in made.hierarchy[:3]] == ["model", "model", "untrained"]
    assert "by the first auxiliary" in repr(made)
    again = ["hierarchy", "--config", str(folder / "config.yaml"), "--name", "b", "--wandb.mode=disabled"]
    assert run(COMMANDS, again) == 0
    for name in ("hierarchy.csv", "distractors.csv"):
        assert (folder / name).read_bytes() == (folder.parent / "b" / name).read_bytes()


@pytest.mark.slow
def test_a_random_model_has_no_random_control_and_a_penalty_is_chosen(
    options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    options.pop("probe")
    made = hierarchy(**options, layer=1, random_weights=True, tasks="subject_noun", wandb=NONE)
    assert made is not None
    assert {row["condition"] for row in made.hierarchy} == {"model", "permuted_positions"}
    assert "the control untrained is left out: the model itself is randomly initialised" in capsys.readouterr().err
    assert made.results["penalty"]["subject_noun"] in [strength(index) for index in range(WEAKEST, STRONGEST + 1)]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["--tasks=main_auxilary"],
            "`--tasks main_auxilary` is not one of main_auxiliary, subject_noun, all",
        ),
        (["--controls=token"], "`--controls token` is not one of untrained, permuted_positions, all, none"),
        (["--train_sentences=0"], "`--train_sentences 0`"),
        (["--probe.l2=0"], "`--probe.l2 0"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_any_work(
    args: list[str], message: str, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    own = [f"--{name}={options[name]}" for name in ("model", "runs", "cache")]
    assert run(COMMANDS, ["hierarchy", *own, *args, "--wandb.mode=disabled"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert not Path(options["runs"]).exists()
