"""`changes` from end to end: what all seeds change is found where it was planted, what seeds alone change is not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import make_sentences
from families import untouched
from probing import Result, UserError, WandbOptions, attention, changes, finetune, load_run
from probing.studies.changes.tables import MEASURES
from tiny_models import CHANGED

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning")

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
    place, start = tmp_path_factory.mktemp("changes"), checkpoints["bert"]
    (place / "text.txt").write_text("\n".join(make_sentences(40, longest=8)), encoding="utf-8")
    return {
        "place": place, "start": str(start), "corpus": str(place / "text.txt"),
        "task": [save(place / f"task{seed}", start, seed, 0.5) for seed in range(3)],
        "seeds": [save(place / f"seed{seed}", start, seed, 0.0) for seed in range(3, 6)],
        "others": [save(place / f"other{seed}", start, seed, 0.0) for seed in range(6, 9)],
    }  # fmt: skip


def measured(planted: dict[str, Any], name: str, tuned: Sequence[str], shuffled: Any, **options: Any) -> Result:
    found = changes(
        start=planted["start"], tuned=list(tuned), shuffled=shuffled, corpus=planted["corpus"], name=name,
        runs=str(planted["place"] / "runs"), **{"measures": QUICK, **USUAL, **options},
    )  # fmt: skip
    assert found is not None
    return found


@pytest.fixture(scope="module")
def found(planted: dict[str, Any]) -> Result:
    return measured(planted, "planted", planted["task"], planted["seeds"])


def layers(found: Result, measure: str) -> dict[int, dict[str, Any]]:
    return {row["layer"]: row for row in found.layer_changes if row["measure"] == measure}


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


def test_below_the_planted_block_nothing_is_changed_at_all(found: Result) -> None:
    below = [row for row in found.checkpoint_changes if row["layer"] < CHANGED and row["measure"] != "special_mass"]
    assert below
    assert all(row["change"] == 0 for row in below)


def test_what_seeds_alone_change_is_not_the_tasks(planted: dict[str, Any]) -> None:
    found = measured(planted, "null", planted["seeds"], planted["others"], measures=["states"])
    assert {row["by_task"] for row in found.layer_changes} == {"not shown"}
    assert layers(found, "states_cosine")[CHANGED]["common"] < 0.5


def test_rows_of_checkpoints_are_what_attention_against_finds(planted: dict[str, Any], found: Result) -> None:
    own = attention(
        model=planted["start"], against=planted["task"][1], corpus=planted["corpus"], parts=["change"],
        runs=str(planted["place"] / "others"), **USUAL,
    )  # fmt: skip
    assert own is not None
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


def test_without_shuffled_labels_nothing_is_called_the_tasks(planted: dict[str, Any]) -> None:
    found = measured(planted, "alone", planted["task"][:1], None, measures=["states"])
    assert all(not row.get("by_task") for row in found.layer_changes)
    assert "whether the task does it is not known" in found.answer()[0]
    assert any("tuned on shuffled labels, such as" in line for line in found.conclusions())


def test_hidden_states_are_removed_and_results_are_kept(planted: dict[str, Any], found: Result) -> None:
    cache = planted["place"] / "runs" / "cache"
    before = {path.name for path in cache.iterdir() if path.is_dir()}
    assert before
    assert all(name.startswith("series-") for name in before)
    again = measured(planted, "again", planted["task"], planted["seeds"])
    assert list(again.layer_changes) == list(found.layer_changes)
    assert {path.name for path in cache.iterdir() if path.is_dir()} == before


def test_a_run_of_finetune_says_what_was_tuned_from_what(tmp_path: Path, one_block: Path) -> None:
    lines = [f'{{"text": "{text}", "label": {i % 2}}}' for i, text in enumerate(make_sentences(200, longest=8))]
    (tmp_path / "text.jsonl").write_text("\n".join(lines), encoding="utf-8")
    usual: dict[str, Any] = {"runs": str(tmp_path / "runs"), **USUAL}
    finetune(
        model=str(one_block), corpus=str(tmp_path / "text.jsonl"), starts=["pretrained", "shuffled"],
        seeds=2, orders=1, tuning={"epochs": 0}, name="tuned", **usual,
    )  # fmt: skip
    run = str(tmp_path / "runs" / "tuned")
    found = changes(run=run, sentences=150, name="changed", **usual)
    assert found is not None
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
        assert own is not None
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
        ({"start": "{start}", "tuned": "{roberta}"}, "--tuned"),
        ({"start": "{start}", "tuned": "nowhere/model"}, "--tuned"),
        ({"start": "{start}", "tuned": "{task}", "measures": "weights"}, "--measures"),
        ({"start": "{start}", "tuned": "{task}", "sentences": -1}, "--sentences"),
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
        changes(corpus=planted["corpus"], runs=str(runs), **typed, **USUAL)
    assert said in str(error.value)
    assert not [path for path in runs.glob("*") if path.name != "cache"]


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
        patch.setattr("probing.studies.changes.survey.state_distances", kill)
        with pytest.raises(KeyboardInterrupt):
            measured(planted, "killed", planted["task"], None, **options)
    assert len(entries() - before) == 2
    measured(planted, "after-the-kill", planted["task"], None, **options)
    assert {name for name in entries() - before if not name.startswith("series-")} == set()
    assert before <= entries()
    assert not list((tmp_path / "cache").glob("*.json"))
