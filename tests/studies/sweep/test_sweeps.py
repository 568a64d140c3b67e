"""Sweep files: what they say, which trials they have, and what those say together."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import kstest, spearmanr

from conftest import ROOT
from probing.cli.arguments import read_yaml
from probing.cli.options import ProbeOptions
from probing.errors import UserError
from probing.studies.sweep import search as table
from probing.studies.sweep.definition import (
    Trial,
    by_seed,
    check_layer,
    check_metric,
    is_stacked,
    parse_sweep,
    stacks,
    trial_name,
)
from probing.studies.sweep.search import draw, grid, n_points

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
    usual |= {"mdl": False, "given": None}
    return Trial(name, {}, {**usual, "transform": "none", "model": "m", "probe": ProbeOptions(l2=1e-4), **options})


def test_trials_that_differ_in_layer_seed_or_penalty_are_one_stack_and_no_others() -> None:
    same = [trial("a"), trial("b", layer=2), trial("c", seed=1), trial("d", probe=ProbeOptions(l2=1.0, l1=0.1))]
    others = [
        trial("e", model="n"), trial("f", probe=ProbeOptions(l2=1e-4, tolerance=1e-3)), trial("g", max_length=9),
        trial("h", probe=ProbeOptions(solver="adam")), trial("i", replicates=5), trial("j", transform="clip"),
        trial("k", probe=ProbeOptions(l2="auto")), trial("l", given="token"),
    ]  # fmt: skip
    found = stacks([same[0], others[0], *same[1:], *others[1:]])
    assert [[one.name for one in stack] for stack in found] == [["a", "b", "c", "d"], *([one.name] for one in others)]
    assert [is_stacked(one) for one in others] == [True, True, True, False, False, False, False, False]
    assert {seed: [one.name for one in group] for seed, group in by_seed(same).items()} == {
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


def test_the_best_is_by_the_files_metric_and_goal() -> None:
    made = outcomes()
    assert table.best(made, None, "minimize").name == "0.0001-2"  # accuracy, and that high
    assert table.best(made, "best_accuracy", "minimize").name == "0.001-0"
    assert table.best(made, "by_layer/cross_entropy", "minimize").name == "0.0001-2"
    assert table.metric_of(made[0], "by_layer/cross_entropy") == 1.0
    assert table.metric_of(made[0], "best_layer") == 0
    assert math.isnan(table.metric_of(made[0], "by_layer/selectivity"))
    adam = table.Outcome("a", {}, [{"layer": 6, "accuracy": 0.5, "validation_cross_entropy": 2.5}], {})
    assert table.metric_of(adam, "val/layer_06/cross_entropy") == 2.5
    assert math.isnan(table.metric_of(made[0], "val/layer_06/cross_entropy"))


def trial_of(name: str, accuracy: float, *entropies: float, flag: str = "") -> table.Outcome:
    """Return a trial whose layers, from 0 on, have one accuracy and these cross-entropies."""
    rows = [{"layer": k, "accuracy": accuracy, "cross_entropy": nats, "flag": flag} for k, nats in enumerate(entropies)]
    return table.Outcome(name, {"seed": name}, rows, {})


@pytest.mark.parametrize("metric", [None, "best_accuracy", "by_layer/accuracy", "layer_01/accuracy"])
def test_of_trials_that_tie_the_best_has_the_lowest_cross_entropy(metric: str | None) -> None:
    made = [trial_of("a", 0.5, 1.834, 1.834), trial_of("b", 0.5, 0.971, 0.971), trial_of("c", 0.4, 0.1, 0.1)]
    for order in itertools.permutations(made):
        assert table.best(order, metric, "maximize").name == "b"
        said = table.conclusion([], order, ["seed"], metric, "maximize")
        assert said[0].startswith("Best of 3 trials: seed b, ")
        name = metric or "best_accuracy"
        assert f"2 trials have this {name}: the one with the lowest cross-entropy is named, 0.971 nats; the " in said[1]
        assert said[1].endswith("highest is 1.834.")
        assert len(said) == 2
    assert table.best([made[2], made[0]], "by_layer/accuracy", "minimize").name == "c"
    assert "the first of them is named" in table.conclusion([], [made[0]] * 2, [], metric, "maximize")[1]
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
    assert table.best(made, "by_layer/selectivity", "minimize") is made[0]
    assert "best_accuracy" in str(check_metric("val_loss"))
    assert table.not_measured(made, "layer_01/cross_entropy") is None
    assert table.not_measured(made, "layer_01/selectivity") == (
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
    assert not any(check_metric(name) for name in known)
    assert math.isnan(table.metric_of(both, "test/accuracy"))  # of which layer?
    assert table.metric_of(table.Outcome("one", {}, rows[:1], {}), "test/accuracy") == 0.5


@pytest.mark.parametrize(
    "name", ["layer_06/flag", "layer_06/layer", "accuracy", "val/layer_06/accuracy", "by_layer/", "x"]
)
def test_a_metric_that_is_no_number_of_the_summary_is_refused_with_what_there_is(name: str) -> None:
    assert str(check_metric(name)).startswith(f"`metric.name: {name}` is not in the summary of a trial")
    assert "layer_06/COLUMN" in str(check_metric(name))


def test_a_slip_in_a_metric_is_told_with_what_is_near() -> None:
    assert "(did you mean `layer_06/accuracy`?)" in str(check_metric("layer_06/acuracy"))
    assert check_layer("layer_09/accuracy", [0, 6]) == (
        "`metric.name: layer_09/accuracy`: no trial has layer 9; there are layer_00, layer_06"
    )
    assert check_layer("by_layer/accuracy", [0, 6]) is check_layer(None, [0]) is None
