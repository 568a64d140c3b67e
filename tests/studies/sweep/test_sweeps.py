"""Sweep files: what they say and hold, and the real `wandb sweep` and `wandb agent` running one."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy.stats import kstest, spearmanr

from conftest import ROOT
from fault_loop import MANIFEST
from probing import fit
from probing.cli.arguments import parse, read_yaml
from probing.cli.options import ProbeOptions
from probing.errors import UserError
from probing.models import ALIASES
from probing.runs.loading import load_run
from probing.studies.sweep import search as table
from probing.studies.sweep.definition import (
    Trial,
    group_by_key,
    is_stacked,
    layer_problems,
    metric_problems,
    parse_sweep,
    stacks,
    trial_name,
)
from probing.studies.sweep.search import draw, grid, n_points
from probing.text.tasks import load_task
from probing.tracking.wandb_run import PROJECT
from wandb_stand_in import WandbServer, read_offline_runs

SWEEPS = sorted((ROOT / "conf" / "sweeps").glob("*.yaml"))


def sweep(method: str = "grid", **parameters: Any) -> Any:
    return parse_sweep({"method": method, "parameters": parameters}, "it.yaml")


def drawn(n: int = 3000, **settings: Any) -> list[Any]:
    made = sweep("random", x=settings)
    return [draw(made, number, seed=0)["x"] for number in range(n)]


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.name)
def test_the_files_of_the_project_are_sweeps(path: Path) -> None:
    assert parse_sweep(read_yaml(str(path)), path.name).varied


def test_a_grid_goes_through_every_combination_in_the_files_order() -> None:
    made = sweep(a={"values": [1, 2]}, b={"value": "x"}, c={"min": 3, "max": 5})
    points = list(grid(made))
    assert points == [{"a": a, "b": "x", "c": c} for a in (1, 2) for c in (3, 4, 5)]
    assert n_points(made) == 6
    assert made.varied == ["a", "c"]


def test_groups_of_parameters_are_dotted_names() -> None:
    made = sweep(probe={"parameters": {"l2": {"values": [1, 2]}, "penalty-space": {"value": "rms"}}})
    assert [parameter.name for parameter in made.parameters] == ["probe.l2", "probe.penalty_space"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"min": -2.0, "max": 3.0}, lambda x: (x + 2) / 5),
        ({"distribution": "log_uniform", "min": -3, "max": 2}, lambda x: (np.log(x) + 3) / 5),
        ({"distribution": "log_uniform_values", "min": 1e-4, "max": 1e2}, lambda x: (np.log10(x) + 4) / 6),
        ({"distribution": "inv_log_uniform", "min": -1, "max": 4}, lambda x: 1 - (-np.log(x) + 1) / 5),
        ({"distribution": "inv_log_uniform_values", "min": 1e-4, "max": 1e2}, lambda x: (np.log10(x) + 4) / 6),
    ],
)
def test_numbers_are_distributed_as_their_names_say(settings: dict[str, Any], expected: Any) -> None:
    assert kstest(expected(np.array(drawn(**settings))), "uniform").pvalue > 0.01


def test_other_distributions_have_their_moments() -> None:
    normal = np.array(drawn(distribution="normal", mu=2, sigma=3))
    assert abs(normal.mean() - 2) < 0.2
    assert abs(normal.std() - 3) < 0.2
    assert abs(np.log(drawn(distribution="log_normal", mu=1, sigma=0.5)).mean() - 1) < 0.05
    assert abs(np.mean(drawn(distribution="beta", a=2, b=6)) - 0.25) < 0.02
    assert Counter(drawn(values=["x", "y"], probabilities=[0.9, 0.1]))["x"] == pytest.approx(2700, abs=80)
    assert set(drawn(min=1, max=3)) == {1, 2, 3}
    assert set(drawn(distribution="q_uniform", min=0.0, max=1.0, q=0.25)) == {0, 0.25, 0.5, 0.75, 1}
    assert {type(value) for value in drawn(distribution="q_log_uniform_values", min=1, max=9, q=2)} == {int}


@pytest.mark.parametrize(
    "settings",
    [
        {"distribution": "log_uniform", "min": 800, "max": 900},
        {"distribution": "log_normal", "mu": 5000, "sigma": 1},
        {"distribution": "uniform", "min": -1e308, "max": 1.7e308},
        {"distribution": "normal", "mu": 0, "sigma": -1},
        {"distribution": "beta", "a": 0, "b": 1},
    ],
)
def test_a_distribution_without_finite_numbers_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=rf"`parameters\.x`: no finite number .* {settings['distribution']} with"):
        draw(sweep("random", x=settings), 0, 0)


def test_drawn_points_are_the_same_for_a_seed_and_do_not_depend_on_those_before() -> None:
    made = sweep("random", x={"min": 0.0, "max": 1.0}, y={"min": 0.0, "max": 1.0})
    assert draw(made, 7, 1) == draw(made, 7, 1) != draw(made, 7, 2)
    assert draw(made, 7, 1) != draw(made, 8, 1)
    point = draw(made, 7, 1)
    assert point["x"] != point["y"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"parameters": {"a": {"value": 1}}}, "`method: None`"),
        ({"method": "gird", "parameters": {"a": {"value": 1}}}, "expected grid, random or bayes"),
        ({"method": "grid"}, "`parameters`"),
        ({"method": "grid", "parameters": {"a": 3}}, "expected `value: 3`"),
        ({"method": "grid", "parameters": {"a": {"values": []}}}, "no list of at least one"),
        ({"method": "grid", "parameters": {"a": {"values": "abc"}}}, "no list of at least one"),
        ({"method": "grid", "parameters": {"a": {"values": [1, 1]}}}, "more than once"),
        ({"method": "grid", "parameters": {"a": {"min": 0.0, "max": 1.0}}}, "cannot go through uniform"),
        ({"method": "random", "parameters": {"a": {"min": 2.0, "max": 1.0}}}, "min 2.0 is above max 1.0"),
        ({"method": "random", "parameters": {"a": {"min": "x", "max": 1}}}, "is no number"),
        ({"method": "random", "parameters": {"a": {"min": 1}}}, "expected a value, values, or min and max"),
        ({"method": "random", "parameters": {"a": {"distribution": "unifrom", "min": 1}}}, "did you mean `uniform`"),
        (
            {"method": "random", "parameters": {"a": {"distribution": "log_uniform_values", "min": 0, "max": 1}}},
            "no logarithm",
        ),
        ({"method": "random", "parameters": {"a": {"values": [1, 2], "probabilities": [1, 1]}}}, "sum to 1"),
        ({"method": "bayes", "parameters": {"a": {"value": 1}}}, "needs a metric"),
        ({"method": "grid", "metric": "loss", "parameters": {"a": {"value": 1}}}, "expected a name and a goal"),
        ({"method": "grid", "metric": {"name": "x", "goal": "up"}, "parameters": {"a": {"value": 1}}}, "metric.goal"),
        ({"method": "grid", "run_cap": 0, "parameters": {"a": {"value": 1}}}, "run_cap"),
        ({"method": "grid", "paramters": {}, "parameters": {"a": {"value": 1}}}, "did you mean `parameters`"),
        ({"method": "grid", "parameters": {"a": {"value": 1}}, "command": ["python", "train.py"]}, "python -m probing"),
    ],
)
def test_what_is_no_sweep_is_refused_with_what_was_expected(content: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("(", r"\(")) as raised:
        parse_sweep(content, "it.yaml")
    assert "it.yaml" in str(raised.value)


def test_all_problems_of_a_file_are_named_at_once() -> None:
    with pytest.raises(UserError, match=r"gird.*`parameters.a`.*`parameters.b`"):
        parse_sweep({"method": "gird", "parameters": {"a": 1, "b": {"values": []}}}, "it.yaml")


def test_options_in_the_command_itself_are_kept() -> None:
    command = ["${env}", "python", "-m", "probing", "fit", "--corpus", "a.txt", "--mdl", "${args}"]
    made = parse_sweep({"method": "grid", "parameters": {"a": {"value": 1}}, "command": command}, "it.yaml")
    assert made.command == ("--corpus", "a.txt", "--mdl")


def test_names_of_trials_are_plain_sorted_and_never_alike() -> None:
    points = [{"model": f"/some/very/long path/{'x' * 200}/{i}", "probe.l2": 1e-4} for i in range(12)]
    names = [trial_name(i, 12, point) for i, point in enumerate(points)]
    assert names == sorted(names)
    assert len(set(names)) == 12
    assert all(len(name) <= 100 and "/" not in name and " " not in name for name in names)
    assert trial_name(4, 12, {"layer": 3, "probe.l2": 1e-4}) == "05-layer=3-l2=0.0001"


def trial(name: str = "t", **options: Any) -> Trial:
    usual: dict[str, Any] = {"layer": 1, "seed": 0, "replicates": 0, "controls": "none", "evidence": "none"}
    usual |= {"mdl": False, "control_for": None}
    return Trial(name, {}, {**usual, "transform": "none", "model": "m", "probe": ProbeOptions(l2=1e-4), **options})


def test_trials_that_differ_in_layer_seed_or_penalty_are_one_stack_and_no_others() -> None:
    same = [trial("a"), trial("b", layer=2), trial("c", seed=1), trial("d", probe=ProbeOptions(l2=1.0, l1=0.1))]
    others = [
        trial("e", model="n"), trial("f", probe=ProbeOptions(l2=1e-4, tolerance=1e-3)), trial("g", max_length=9),
        trial("h", probe=ProbeOptions(solver="adam")), trial("i", replicates=5), trial("j", transform="clip"),
        trial("k", probe=ProbeOptions(l2="auto")), trial("l", control_for="token"),
    ]  # fmt: skip
    found = stacks([same[0], others[0], *same[1:], *others[1:]])
    assert [[one.name for one in stack] for stack in found] == [["a", "b", "c", "d"], *([one.name] for one in others)]
    assert [is_stacked(one) for one in others] == [True, True, True, False, False, False, False, False]
    assert {
        seed: [one.name for one in group]
        for seed, group in group_by_key(same, lambda trial: trial.options["seed"]).items()
    } == {
        0: ["a", "b", "d"],
        1: ["c"],
    }


def outcomes() -> list[table.Outcome]:
    generator = np.random.default_rng(0)
    base = generator.random(50)
    made = []
    for l2 in (1e-4, 1e-3):
        for seed in (0, 1, 2):
            accuracy = [
                {"layer": layer, "accuracy": 0.5 + seed / 10 - l2, "cross_entropy": 1.0 - seed} for layer in (0, 1)
            ]
            contributions = {layer: base + generator.random(50) * (seed + 1) * (layer + 1) for layer in (0, 1)}
            made.append(table.Outcome(f"{l2}-{seed}", {"probe.l2": l2, "seed": seed}, accuracy, contributions))
    return made


def test_agreement_is_that_of_rankings_that_differ_in_one_option_alone() -> None:
    made = outcomes()
    found = table.rows(made, ["probe.l2", "seed"])
    assert len(found) == 12
    row = next(row for row in found if row["trial"] == "0.0001-1" and row["layer"] == 1)
    own = {one.name: one.contributions[1] for one in made}
    seeds = [spearmanr(own["0.0001-1"], own[f"0.0001-{other}"]).statistic for other in (0, 2)]
    assert row["seed_spearman"] == pytest.approx(np.mean(seeds))
    assert row["probe.l2_spearman"] == pytest.approx(spearmanr(own["0.0001-1"], own["0.001-1"]).statistic)
    tops = {name: set(np.argsort(-values)[:10]) for name, values in own.items()}
    shared = [len(tops["0.0001-1"] & tops[f"0.0001-{other}"]) / 10 for other in (0, 2)]
    assert row["seed_overlap"] == pytest.approx(np.mean(shared))


def test_rankings_of_other_models_and_layers_are_not_held_against_each_other() -> None:
    one = table.Outcome("a", {"model": "x"}, [{"layer": 0, "accuracy": 0.5}], {0: np.arange(5.0)})
    two = table.Outcome("b", {"model": "y"}, [{"layer": 0, "accuracy": 0.6}], {0: np.arange(5.0)})
    assert not any("spearman" in column for row in table.rows([one, two], ["model"]) for column in row)


def best(outcomes: Sequence[table.Outcome], metric: str | None, goal: str) -> list[str]:
    return [trial.name for trial in table.best(outcomes, metric, goal)]


def test_the_best_setting_is_so_in_the_mean_of_its_seeds_which_have_other_test_sentences() -> None:
    accuracies = {(0.1, 0): 0.90, (0.1, 1): 0.92, (1.0, 0): 0.85, (1.0, 1): 0.95}  # the highest is of the worse one
    made = [
        table.Outcome(f"{l2}-{seed}", {"probe.l2": l2, "seed": seed}, [{"layer": 0, "accuracy": value}], {})
        for (l2, seed), value in accuracies.items()
    ]
    assert best(made, None, "maximize") == ["0.1-0", "0.1-1"]
    assert table.conclusion([], made, ["probe.l2", "seed"], None, "maximize") == [
        "Best of 2 settings: probe.l2 0.1, with the highest mean best_accuracy, 0.91 (2 seeds: 0.9 to 0.92); it was "
        "chosen on the sentences it is measured on, so expect a slightly worse value on others."
    ]
    said = table.conclusion([], [made[0], made[3]], ["probe.l2", "seed"], None, "maximize")
    assert said[0].startswith("Best of 2 trials: probe.l2 1.0, with the highest best_accuracy, 0.95; ")
    assert said[1].startswith("Some have other seeds and so other test sentences")


def test_the_best_is_by_the_files_metric_and_goal() -> None:
    made = outcomes()
    assert best(made, None, "minimize") == ["0.0001-0", "0.0001-1", "0.0001-2"]  # accuracy, and that high
    assert best(made, "best_accuracy", "minimize") == ["0.001-0", "0.001-1", "0.001-2"]
    assert best(made, "by_layer/cross_entropy", "minimize")[0] == "0.0001-0"
    assert table.metric_of(made[0], "by_layer/cross_entropy") == 1.0
    assert table.metric_of(made[0], "best_layer") == 0
    assert math.isnan(table.metric_of(made[0], "by_layer/selectivity"))
    adam = table.Outcome("a", {}, [{"layer": 6, "accuracy": 0.5, "validation_cross_entropy": 2.5}], {})
    assert table.metric_of(adam, "val/layer_06/cross_entropy") == 2.5
    assert math.isnan(table.metric_of(made[0], "val/layer_06/cross_entropy"))


def trial_of(name: str, accuracy: float, *entropies: float, flag: str = "") -> table.Outcome:
    """Return a trial whose layers, from 0 on, have one accuracy and these cross-entropies."""
    rows = [{"layer": k, "accuracy": accuracy, "cross_entropy": nats, "flag": flag} for k, nats in enumerate(entropies)]
    return table.Outcome(name, {"model": name}, rows, {})


@pytest.mark.parametrize("metric", [None, "best_accuracy", "by_layer/accuracy", "layer_01/accuracy"])
def test_of_trials_that_tie_the_best_has_the_lowest_cross_entropy(metric: str | None) -> None:
    made = [trial_of("a", 0.5, 1.834, 1.834), trial_of("b", 0.5, 0.971, 0.971), trial_of("c", 0.4, 0.1, 0.1)]
    for order in itertools.permutations(made):
        assert best(order, metric, "maximize") == ["b"]
        said = table.conclusion([], order, ["model"], metric, "maximize")
        assert said[0].startswith("Best of 3 trials: model b, ")
        name = metric or "best_accuracy"
        assert f"2 trials have this {name}: the one with the lowest cross-entropy is named, 0.971 nats; the " in said[1]
        assert said[1].endswith("highest is 1.834.")
        assert len(said) == 2
    assert best([made[2], made[0]], "by_layer/accuracy", "minimize") == ["c"]
    twice = [made[0], replace(made[0], point={"model": "d"})]
    assert "the first of them is named" in table.conclusion([], twice, [], metric, "maximize")[1]
    assert len(table.conclusion([], [made[0], trial_of("e", 0.7, 2.0, 2.0)], [], "by_layer/accuracy", "maximize")) == 1


def test_trials_that_are_no_better_than_a_constant_answer_are_no_recommendation() -> None:
    weak = [trial_of(name, 0.5, 0.8, flag="uninformative") for name in "ab"]
    last = table.conclusion([], weak, [], None, "maximize")[-1]
    assert last == "No trial is shown to predict better than a constant answer: do not read its ranking."
    last = table.conclusion([], weak[:1], [], None, "maximize")[-1]
    assert last == "It is not shown to predict better than a constant answer: do not read its ranking."
    last = table.conclusion([], [*weak, trial_of("c", 0.4, 0.6)], [], None, "maximize")[-1]
    assert last == (
        "The best trial is not shown to predict better than a constant answer; 1 other trial is: do not read its "
        "ranking."
    )
    assert "constant" not in " ".join(table.conclusion([], [*weak, trial_of("c", 0.6, 0.6)], [], None, "maximize"))


def test_a_metric_that_no_trial_has_never_wins() -> None:
    made = outcomes()
    assert best(made, "by_layer/selectivity", "minimize")[0] == made[0].name
    assert "best_accuracy" in str(metric_problems("val_loss"))
    assert table.missing_metric(made, "layer_01/cross_entropy") is None
    assert table.missing_metric(made, "layer_01/selectivity") == (
        "`metric.name: layer_01/selectivity` was not measured in any trial; there are best_accuracy, best_layer and, "
        "after layer_06/ or by_layer/, accuracy, cross_entropy"
    )


def test_a_metric_is_any_number_of_the_summary_and_of_its_own_layer() -> None:
    rows = [{"layer": n, "accuracy": 0.5 + n, "cross_entropy": 1.0, "optimality_gap": 0.25} for n in (0, 6)]
    both = table.Outcome("both", {}, rows, {}, {0: 2.0, 6: 3.0})
    known = {
        "layer_00/accuracy": 0.5, "layer_06/accuracy": 6.5, "test/layer_00/accuracy": 0.5, "by_layer/accuracy": 6.5,
        "train/layer_06/objective": 3.0, "train/layer_00/optimality_gap": 0.25, "best_layer": 6,
    }  # fmt: skip
    assert {name: table.metric_of(both, name) for name in known} == known
    assert not any(metric_problems(name) for name in known)
    assert math.isnan(table.metric_of(both, "test/accuracy"))  # of which layer?
    assert table.metric_of(table.Outcome("one", {}, rows[:1], {}), "test/accuracy") == 0.5


@pytest.mark.parametrize(
    "name", ["layer_06/flag", "layer_06/layer", "accuracy", "val/layer_06/accuracy", "by_layer/", "x"]
)
def test_a_metric_that_is_no_number_of_the_summary_is_refused_with_what_there_is(name: str) -> None:
    assert metric_problems(name)[0].startswith(f"`metric.name: {name}` is not in the summary of a trial")
    assert "layer_06/COLUMN" in str(metric_problems(name))


def test_a_slip_in_a_metric_is_told_with_what_is_near() -> None:
    assert "(did you mean `layer_06/accuracy`?)" in str(metric_problems("layer_06/acuracy"))
    assert layer_problems("layer_09/accuracy", [0, 6]) == [
        "`metric.name: layer_09/accuracy`: no trial has layer 9; there are layer_00, layer_06"
    ]
    assert layer_problems("by_layer/accuracy", [0, 6]) == layer_problems(None, [0]) == []


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


@pytest.mark.slow
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
        assert f"On Weights & Biases: {server.url}/researcher/probing/runs/{run.name}" in said
        assert f"/{found.folder.name} (" in said


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
