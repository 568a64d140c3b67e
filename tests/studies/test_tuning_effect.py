"""`tuning-effect`: what all seeds change is found where it was planted, what seeds alone change is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.linalg import orthogonal_procrustes

from conftest import make_sentences
from families import untouched
from probing import Result, WandbOptions, attention, finetune, tuning_effect
from probing.activations.store import ActivationStore
from probing.errors import UserError
from probing.results import Table
from probing.runs.loading import load_run
from probing.studies.tuning_effect import CHECKPOINTS, MEASURES, answer, charts, conclusions
from probing.studies.tuning_effect import LAYERS as LAYER_CHANGES
from probing.studies.tuning_effect.survey import START, TRUE, layer_rows, of_names, state_distances
from synthetic import make_store, make_tokens
from tiny_models import CHANGED

pytestmark = pytest.mark.numeric

USUAL: dict[str, Any] = {"quiet": True, "wandb": WandbOptions("disabled"), "figure_format": "png"}
QUICK = ["maps", "states", "special"]


def save(folder: Path, start: Path, seed: int, by_task: float) -> str:
    """Save a copy of a model: the task changes one block alike in all copies, and the seed the same block otherwise."""
    from transformers import AutoTokenizer

    model = untouched(start)
    with torch.no_grad():
        for weight in model.encoder.layer[CHANGED - 1].parameters():
            if weight.ndim > 1:
                drawn = [torch.randn(weight.shape, generator=torch.Generator().manual_seed(k)) for k in (99, seed)]
                weight += by_task * weight.std() * drawn[0] + 0.02 * weight.std() * drawn[1]
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(start).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory, checkpoints: dict[str, Path]) -> dict[str, Any]:
    """The start, copies that a task has changed, and two groups of copies that seeds alone have changed."""
    place, start = tmp_path_factory.mktemp("tuning_effect"), checkpoints["bert"]
    (place / "text.txt").write_text("\n".join(make_sentences(40, longest=8)), encoding="utf-8")
    return {
        "place": place, "start": str(start), "corpus": str(place / "text.txt"),
        "task": [save(place / f"task{seed}", start, seed, 0.5) for seed in range(3)],
        "seeds": [save(place / f"seed{seed}", start, seed, 0.0) for seed in range(3, 6)],
        "others": [save(place / f"other{seed}", start, seed, 0.0) for seed in range(6, 9)],
    }  # fmt: skip


def measured(planted: dict[str, Any], name: str, tuned: Sequence[str], shuffled: Any, **options: Any) -> Result:
    return tuning_effect(
        start=planted["start"], tuned=list(tuned), shuffled=shuffled, corpus=planted["corpus"], name=name,
        runs=str(planted["place"] / "runs"), **{"measures": QUICK, **USUAL, **options},
    )  # fmt: skip


@pytest.fixture(scope="module")
def found(planted: dict[str, Any]) -> Result:
    return measured(planted, "planted", planted["task"], planted["seeds"])


def layers(found: Result, measure: str) -> dict[int, dict[str, Any]]:
    return {row["layer"]: row for row in found.layer_changes if row["measure"] == measure}


@pytest.mark.slow
def test_what_all_seeds_change_is_the_tasks_from_the_planted_block_on(found: Result) -> None:
    for measure in ("maps_cosine", "maps_jensen_shannon", "states_cosine", "states_cka"):
        by_task = {layer: row["by_task"] for layer, row in layers(found, measure).items()}
        assert by_task == {layer: "yes" if layer >= CHANGED else "not shown" for layer in by_task}
    row = layers(found, "states_cosine")[CHANGED]
    assert row["ratio"] == pytest.approx(row["tuned"] / row["shuffled"], rel=0.2)
    assert row["ratio_low"] > 10
    assert row["shuffled"] < row["two_seeds"] < row["tuned"]
    assert row["common"] > 0.9  # the task's part is 25 times as large as the seed's
    assert row["tuned_low"] < row["tuned"] < row["tuned_high"]
    assert found.answer()[1].endswith(f"the task changes hidden states in layers {CHANGED} and {CHANGED + 1}.")


@pytest.mark.slow
def test_below_the_planted_block_nothing_is_changed_at_all(found: Result) -> None:
    below = [row for row in found.checkpoint_changes if row["layer"] < CHANGED and row["measure"] != "special_mass"]
    assert below
    assert all(row["change"] == 0 for row in below)


@pytest.mark.slow
def test_what_seeds_alone_change_is_not_the_tasks(planted: dict[str, Any]) -> None:
    found = measured(planted, "null", planted["seeds"], planted["others"], measures=["states"])
    assert {row["by_task"] for row in found.layer_changes} == {"not shown"}
    assert layers(found, "states_cosine")[CHANGED]["common"] < 0.5


@pytest.mark.slow
def test_rows_of_checkpoints_are_what_attention_against_finds(planted: dict[str, Any], found: Result) -> None:
    own = attention(
        model=planted["start"], against=planted["task"][1], corpus=planted["corpus"], parts=["change"],
        runs=str(planted["place"] / "others"), **USUAL,
    )  # fmt: skip
    wanted = {
        (row["layer"], row["measure"]): row["value"]
        for row in own.change if row["of"] == "same" and row.get("head") is None and row["measure"] != "parameters"
    }  # fmt: skip
    rows = [row for row in found.checkpoint_changes if row["checkpoint"] == "task1" and row["against"] == "start"]
    changed = {(row["layer"], row["measure"]): row["change"] for row in rows}
    for (layer, measure), value in wanted.items():
        name = {"cosine": "maps_cosine", "jensen_shannon": "maps_jensen_shannon", "hidden_states": "states_cosine"}
        here = changed[layer, name[measure]]
        assert here == pytest.approx(value if measure == "jensen_shannon" else 1 - value, abs=1e-6)


@pytest.mark.slow
def test_without_shuffled_labels_nothing_is_called_the_tasks(planted: dict[str, Any]) -> None:
    found = measured(planted, "alone", planted["task"][:1], None, measures=["states"])
    assert all(not row.get("by_task") for row in found.layer_changes)
    assert "whether the task causes it is not known" in found.answer()[0]
    assert any("tuned on shuffled labels, such as" in line for line in found.conclusions())


@pytest.mark.slow
def test_hidden_states_are_removed_and_results_are_kept(planted: dict[str, Any], found: Result) -> None:
    cache = planted["place"] / "runs" / "cache"
    before = {path.name for path in cache.iterdir() if path.is_dir()}
    assert before
    assert all(name.startswith("checkpoints-") for name in before)
    again = measured(planted, "again", planted["task"], planted["seeds"])
    assert list(again.layer_changes) == list(found.layer_changes)
    assert {path.name for path in cache.iterdir() if path.is_dir()} == before


@pytest.mark.slow
def test_a_run_of_finetune_says_what_was_tuned_from_what(tmp_path: Path, one_block: Path) -> None:
    lines = [f'{{"text": "{text}", "label": {i % 2}}}' for i, text in enumerate(make_sentences(200, longest=8))]
    (tmp_path / "text.jsonl").write_text("\n".join(lines), encoding="utf-8")
    usual: dict[str, Any] = {"runs": str(tmp_path / "runs"), **USUAL}
    finetune(
        model=str(one_block), corpus=str(tmp_path / "text.jsonl"), starts=["pretrained", "shuffled"],
        seeds=2, orders=1, tuning={"epochs": 0}, name="tuned", **usual,
    )  # fmt: skip
    run = str(tmp_path / "runs" / "tuned")
    found = tuning_effect(run=run, sentences=150, name="changed", **usual)
    assert found.results["n_seeds"] == {"pretrained": 2, "shuffled": 2}
    assert found.results["corpus"]["n_sentences"] == 150
    assert {row["measure"] for row in found.layer_changes} == set(MEASURES) - {"maps_as_published"}
    assert all(row["change"] == 0 for row in found.checkpoint_changes)  # no step changes nothing, to the bit
    assert {row["by_task"] for row in found.layer_changes} == {"not shown"}
    assert "nothing is changed in any layer" in " ".join(found.conclusions())
    assert load_run(found.folder).layer_changes == found.layer_changes
    checkpoint = str(Path(run) / "checkpoints" / "shuffled-seed1-order0")
    for typed, name in ((run, "pretrained-seed0-order0"), (checkpoint, "shuffled-seed1-order0")):
        own = attention(run=typed, parts="change", **usual)  # which finds model, start and text by itself
        assert (Path(own.config["model"]).name, own.config["against"]) == (name, str(one_block))
        assert {row["value"] for row in own.change if row["of"] == "same"} == {1.0, 0.0}  # of cosines and divergences


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "give a run of `finetune`"),
        ({"start": "{start}"}, "give a run of `finetune`"),
        ({"run": "{start}", "tuned": "{task}"}, "give one of the two"),
        ({"start": "{start}", "tuned": "{task},{task}"}, "is named twice"),
        ({"start": "{start}", "tuned": "{task},{start}"}, "is named twice"),
        ({"start": "{start}", "tuned": "{task},{task}/"}, "is named twice"),
        ({"start": "{start}", "tuned": "{roberta}"}, "`tuned="),
        ({"start": "{start}", "tuned": "nowhere/model"}, "`tuned="),
        ({"start": "{start}", "tuned": "{task}", "measures": "weights"}, "`measures="),
        ({"start": "{start}", "tuned": "{task}", "sentences": -1}, "`sentences=-1`"),
        ({"start": "{start}", "tuned": "{task}", "trainer": {"devices": 2}}, "one process"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    planted: dict[str, Any], checkpoints: dict[str, Path], options: dict[str, Any], said: str
) -> None:
    place = {"start": planted["start"], "task": planted["task"][0], "roberta": str(checkpoints["roberta"])}
    typed: dict[str, Any] = {
        name: value.format(**place) if isinstance(value, str) else value for name, value in options.items()
    }
    runs = planted["place"] / "refused"
    with pytest.raises(UserError) as error:
        tuning_effect(corpus=planted["corpus"], runs=str(runs), **typed, **USUAL)
    assert said in str(error.value)
    assert not [path for path in runs.glob("*") if path.name != "cache"]


@pytest.mark.slow
def test_hidden_states_of_a_run_that_was_killed_are_removed_once_it_is_run_again(
    planted: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def entries() -> set[str]:
        return {path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()}

    def kill(*_: Any) -> Any:
        raise KeyboardInterrupt

    options = {"measures": "states", "cache": str(tmp_path / "cache")}
    more = {**USUAL, "cache": options["cache"], "runs": str(tmp_path), "name": "other"}
    attention(model=planted["start"], corpus=planted["corpus"], parts="profile", **more)
    before = entries()
    with monkeypatch.context() as patch:
        patch.setattr("probing.studies.tuning_effect.survey.state_distances", kill)
        with pytest.raises(KeyboardInterrupt):
            measured(planted, "killed", planted["task"], None, **options)
    assert len(entries() - before) == 2
    measured(planted, "after-the-kill", planted["task"], None, **options)
    assert {name for name in entries() - before if not name.startswith("checkpoints-")} == set()
    assert before <= entries()
    assert not list((tmp_path / "cache").glob("*.json"))


def test_each_checkpoint_has_a_name_of_its_own(tmp_path: Path) -> None:
    for name in ("a/model", "b/model", "c/start", "other"):
        (tmp_path / name).mkdir(parents=True)
    models = [str(tmp_path / name) for name in ("a/model", "b/model", "c/start", "other")]
    family = of_names("bert", models[:3], models[3:])
    names = [one.name for one in family.members]
    assert names == [str(tmp_path / name) for name in ("a/model", "b/model", "c/start")] + ["other"]
    assert START not in names
    assert [one.model for one in family.of(TRUE)] == models[:3]
    assert len(list(family.apart())) == 3


def test_a_folder_under_another_name_is_the_same_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "again").symlink_to(tmp_path / "model")
    with pytest.raises(UserError, match="is named twice"):
        of_names("bert", [str(tmp_path / "model"), str(tmp_path / "again")], [])


LAYERS, DRAWS = 7, 60


def rule_changes(value: Callable[[str, str, int, int, int], float], seeds: int, orders: int) -> list[dict[str, Any]]:
    """Return rows whose change is a function of group, measure, layer, seed and order."""
    return [
        {
            "checkpoint": f"{start}-{seed}-{order}", "start": start, "seed": seed, "order_seed": order,
            "against": START, "measure": measure, "layer": layer,
            "change": value(start, measure, layer, seed, order),
        }
        for start in ("pretrained", "shuffled")
        for seed in range(seeds)
        for order in range(orders)
        for measure in MEASURES
        for layer in range(LAYERS)
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "orders"), [(3, 1), (3, 3), (5, 1)])
def test_seeds_alone_are_called_the_tasks_in_few_runs(seeds: int, orders: int) -> None:
    """At most 1 in 20 is expected, and more than 8 of 60 have a probability of .003; all 70 rows of a run count."""
    generator, claimed = np.random.default_rng(0), 0
    for _ in range(DRAWS):
        # What a seed does, it does at all orders; most layers move together.
        drawn = {
            (start, seed): 0.3 + 0.02 * generator.normal(size=(1, 1)) + 0.02 * generator.normal(size=(10, LAYERS))
            for start in ("pretrained", "shuffled")
            for seed in range(seeds)
        }
        names = list(MEASURES)

        def value(
            start: str, measure: str, layer: int, seed: int, order: int, drawn: Any = drawn, names: Any = names
        ) -> float:
            return float(drawn[start, seed][names.index(measure), layer] + 0.002 * generator.normal())

        rows = layer_rows(rule_changes(value, seeds, orders), {})
        claimed += any(row["by_task"] == "yes" for row in rows)
    assert claimed <= 8


def test_what_the_task_changes_is_called_the_tasks_in_its_layers_and_no_other() -> None:
    generator = np.random.default_rng(1)

    def value(start: str, measure: str, layer: int, seed: int, order: int) -> float:
        by_task = 0.4 * (start == "pretrained" and layer >= 5 and measure in ("states_cosine", "position_accuracy"))
        sign = -1 if measure == "position_accuracy" else 1
        return float(0.1 + 0.002 * generator.normal() + sign * by_task)

    rows = layer_rows(rule_changes(value, 3, 2), {("position_accuracy", 5): 0.8})
    claimed = {(row["measure"], row["layer"]) for row in rows if row["by_task"] == "yes"}
    assert claimed == {(measure, layer) for measure in ("states_cosine", "position_accuracy") for layer in (5, 6)}
    by_key = {(row["measure"], row["layer"]): row for row in rows}
    assert by_key["position_accuracy", 5]["start_value"] == 0.8
    assert by_key["states_cosine", 6]["ratio"] == pytest.approx(5, rel=0.1)
    assert by_key["position_accuracy", 6]["difference"] == pytest.approx(-0.4, abs=0.01)


def test_a_distance_that_shuffled_labels_change_more_is_not_the_tasks() -> None:
    generator = np.random.default_rng(2)

    def value(start: str, measure: str, layer: int, seed: int, order: int) -> float:
        return float((0.5 if start == "shuffled" else 0.1) + 0.002 * generator.normal())

    claimed = {row["measure"] for row in layer_rows(rule_changes(value, 3, 1), {}) if row["by_task"] == "yes"}
    assert claimed == {name for name, one in MEASURES.items() if not one.is_distance}  # whose change has two sides


def test_sentences_say_where_and_how_much() -> None:
    def value(start: str, measure: str, layer: int, seed: int, order: int) -> float:
        return (0.01 + 0.1 * (layer >= 5) * (start == "pretrained")) * (1 + 0.01 * seed) + 0.001 * layer

    rows = rule_changes(value, 3, 1)
    layers, checkpoints = Table(layer_rows(rows, {}), LAYER_CHANGES), Table(rows, CHECKPOINTS)
    assert answer(layers, "bert")[1] == "bert: the task changes hidden states in layers 5 and 6."
    said = list(conclusions(layers, checkpoints, {"pretrained": 3, "shuffled": 3}))
    assert "Hidden states: the last two layers, 5 and 6, change most in 3 of 3 checkpoints." in said
    assert any(
        line.startswith("Hidden states: the largest change is 0.117 (") and " in layer 6; " in line for line in said
    )
    assert said[-1].startswith(
        "The task causes a change if it is larger than the change by tuning on shuffled labels: W"
    )


def test_lines_are_means_of_their_points_and_a_property_of_two_seeds_has_a_size() -> None:
    def value(start: str, measure: str, layer: int, seed: int, order: int) -> float:
        return 0.1 * layer - 0.01 * seed

    rows = rule_changes(value, 3, 1)
    rows += [{**row, "against": "pretrained-1-0", "change": -row["change"]} for row in rows if row["seed"] == 2]
    (chart,) = charts(Table(rows, CHECKPOINTS))
    assert [panel.title for panel in chart.panels] == [measure.words for measure in MEASURES.values()]
    for panel, measure in zip(chart.panels, MEASURES.values(), strict=True):
        assert (panel.y, panel.from_zero) == (("distance", True) if measure.is_distance else ("change", False))
        assert [line.label for line in panel.lines] == ["tuned, and start", "shuffled labels, and start", "two seeds"]
        for line in panel.lines:
            assert line.values == pytest.approx([np.mean(some) for some in line.points])
        assert panel.lines[2].values[1:] == pytest.approx([0.1 * layer - 0.02 for layer in range(1, LAYERS)])


LENGTHS = [7, 4, 9, 12, 3, 8, 11, 5] * 6
TOKENS, D = make_tokens(LENGTHS), 12


def stores(folder: Path, a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[ActivationStore, ActivationStore]:
    one, other = (make_store(folder / name, [x, x], TOKENS) for name, x in (("a", a), ("b", b)))
    return one, other


def states(seed: int) -> NDArray[np.float64]:
    generator = np.random.default_rng(seed)
    spread = np.linspace(0.2, 3, D)
    return as_stored(generator.normal(size=(sum(LENGTHS), D)) * spread + generator.normal(size=D))


def as_stored(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return x.astype(np.float32).astype(np.float64)


def units(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def test_distances_are_those_of_naive_formulas(tmp_path: Path) -> None:
    a, b = states(0), as_stored(0.5 * states(0)[:, ::-1] + states(1))
    found = state_distances(*stores(tmp_path, a, b), [1])[1]
    assert found.cosine == pytest.approx(1 - (units(a) * units(b)).sum(1).mean(), abs=1e-12)
    grams = [x @ x.T for x in (a - a.mean(0), b - b.mean(0))]
    cka = (grams[0] * grams[1]).sum() / np.sqrt((grams[0] ** 2).sum() * (grams[1] ** 2).sum())
    assert found.cka == pytest.approx(1 - cka, abs=1e-10)
    half = np.repeat(np.arange(len(LENGTHS)) % 2, LENGTHS)
    cosines = np.empty(len(a))
    for one in (0, 1):
        rotation, _ = orthogonal_procrustes(units(b)[half != one], units(a)[half != one])
        cosines[half == one] = (units(a) * (units(b) @ rotation))[half == one].sum(1)
    assert found.rotated == pytest.approx(1 - cosines.mean(), abs=1e-10)


def test_a_planted_rotation_is_undone_and_cka_does_not_see_it(tmp_path: Path) -> None:
    a = states(0)
    rotation, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(D, D)))
    found = state_distances(*stores(tmp_path, a, a @ rotation), [0])[0]
    assert found.cosine > 0.3
    assert found.rotated == pytest.approx(0, abs=1e-5)
    assert found.cka == pytest.approx(0, abs=1e-5)


def test_unrelated_states_stay_far_apart_on_other_sentences(tmp_path: Path) -> None:
    centred = states(0) - states(0).mean(0), states(9) - states(9).mean(0)
    found = state_distances(*stores(tmp_path, *centred), [0])[0]
    assert found.rotated == pytest.approx(1, abs=0.12)


@pytest.mark.parametrize("seed", range(6))
def test_equal_states_are_exactly_0_apart(seed: int, tmp_path: Path) -> None:
    found = state_distances(*stores(tmp_path, states(seed), states(seed)), [1])[1]
    assert vars(found) == {"cosine": 0.0, "rotated": 0.0, "cka": 0.0}
