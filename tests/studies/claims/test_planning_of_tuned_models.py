"""Runs that tune a model and runs that read these: as command lines, among finished runs, and where one cannot be."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from probing.cache import Request
from probing.cache.source import Reading, Speed
from probing.cli.arguments import parse
from probing.cli.commandline import unchecked
from probing.cli.option_types import defaults
from probing.corpus import from_sentences, load_corpus
from probing.errors import UserError
from probing.models import load_config, resolve_model
from probing.models.loading import Blocks
from probing.runs.study import study_of
from probing.studies.claims.claim import read_paper
from probing.studies.claims.measures import MEASURES
from probing.studies.claims.planning import Given, Need, runs_of
from probing.studies.claims.session import Plan, Planned, carry_out, plan, seconds
from probing.studies.finetune.options import TuningOptions

PAPER = read_paper("kovaleva2019", MEASURES)
USUAL = {name: defaults(study_of(name).command) for name in ("attention", "disable", "finetune")}
TEXT = load_corpus(["one two three", "four five six"])
TASK = "--task position_from_end --tuning.epochs 1 --tuning.learning_rate 0.0002 --tuning.batch_tokens 256"


@pytest.fixture
def model(checkpoints: dict[str, Path]) -> Path:
    return checkpoints["bert"]


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    path = tmp_path / "labels.csv"
    path.write_text("text,label\none two,a\nthree four,b\n", encoding="utf-8")
    return path


def made_plan(model: Path, place: Path, labels: Path | None = None, untuned: str | None = None) -> Plan:
    data: dict[str, Any] = {"labels": labels and str(labels), "untuned": untuned, "pairs": None, "roles": None}
    claims = [claim for claim in PAPER.claims if claim.id in (4, 5, 9, 10)]
    return plan(PAPER, claims, {"m": str(model)}, Given("text.txt", data), TEXT, USUAL, place)


def planned(*args: Any, **options: Any) -> dict[str, Planned]:
    return {one.need.name: one for one in made_plan(*args, **options).models["m"]}


def test_a_run_that_reads_another_needs_it_too() -> None:
    nine = [claim for claim in PAPER.claims if claim.id == 9]
    assert runs_of(nine, "m", PAPER) == ["tuned", "disabled_task"]
    four = [claim for claim in PAPER.claims if claim.id == 4]
    assert runs_of(four, "m", PAPER) == ["tuned", "tuned_change", "shuffled_change"]
    assert runs_of(four, "m", PAPER, {"tuned model"}) == ["change"]


def test_each_line_names_the_folder_that_the_line_before_it_writes(model: Path, tmp_path: Path) -> None:
    runs = planned(model, tmp_path)
    lines = {name: one.need.line for name, one in runs.items()}
    name = runs["tuned"].need.options["name"]
    start = f"python -m probing finetune --model {model} --corpus text.txt --starts all --seeds 2 --orders 1 {TASK}"
    assert lines["tuned"] == f"{start} --name {name} --runs {tmp_path}"
    folder = tmp_path / name / "checkpoints"
    of_change = f"--corpus text.txt --parts change --against {model}"
    for run, checkpoint in {"tuned_change": "pretrained", "shuffled_change": "shuffled"}.items():
        words = f"python -m probing attention --model {folder}/{checkpoint}-seed0-order0 {of_change}"
        assert lines[run] == words
    options = f"--readouts task={folder}/pretrained-seed0-order0 --kinds uniform --retrain 0"
    assert lines["disabled_task"] == f"python -m probing disable {options}"
    for one in runs.values():
        words_of = shlex.split(one.need.line)
        found = parse(words_of[3], unchecked(study_of(words_of[3]).command), words_of[4:])
        for option, value in one.need.options.items():
            asked = asdict(TuningOptions()) | {**value} if isinstance(value, Mapping) else value
            assert (asdict(found[option]) if option == "tuning" else found[option]) == asked
        assert one.there is None


def test_a_labelled_text_that_is_given_is_tuned_on_and_the_name_tells_the_text(
    model: Path, tmp_path: Path, labels: Path
) -> None:
    need = planned(model, tmp_path, labels)["tuned"].need
    assert f"--corpus {labels} --starts all --seeds 2 --orders 1 --name " in need.line
    labels.write_text("text,label\none two,b\nthree five,a\n", encoding="utf-8")
    assert planned(model, tmp_path, labels)["tuned"].need.options["name"] != need.options["name"]
    with pytest.raises(UserError, match=r"nowhere\.csv"):
        planned(model, tmp_path, tmp_path / "nowhere.csv")


def test_a_model_that_was_tuned_elsewhere_is_compared_with_its_start(model: Path, tmp_path: Path) -> None:
    runs = planned(model, tmp_path, untuned="before")
    assert runs["change"].need.line.endswith("--parts change --against before")
    assert not {"tuned_change", "shuffled_change"} & set(runs)
    assert "tuned" in runs  # for the other claims


def finished(place: Path, model: Path, **changed: Any) -> Path:
    """Write a folder that has what is looked at of a finished run of `finetune`, with checkpoints."""
    config = {
        "model": "elsewhere", "corpus": "a copy.txt", "task": "position_from_end", "starts": "all", "seeds": 2,
        "orders": 1, "tuning": asdict(TuningOptions(epochs=1, learning_rate=0.0002, batch_tokens=256)),
    } | changed  # fmt: skip
    for start in ("pretrained", "shuffled"):
        (place / "checkpoints" / f"{start}-seed0-order0").mkdir(parents=True)
        for file in model.iterdir():
            (place / "checkpoints" / f"{start}-seed0-order0" / file.name).write_bytes(file.read_bytes())
    results = {
        "kind": "fine-tuning",
        "model": "elsewhere",
        "model_fingerprint": resolve_model(str(model)).fingerprint(),
    }
    results |= {"corpora": {"corpus": {"name": "a copy.txt", "fingerprint": TEXT.fingerprint}}}  # type: ignore[dict-item]
    (place / "results.json").write_text(json.dumps(results), encoding="utf-8")
    (place / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return place


def test_a_finished_tuning_of_the_same_model_and_text_is_taken_and_read_by_others(model: Path, tmp_path: Path) -> None:
    made = finished(tmp_path / "mine", model)
    runs = planned(model, tmp_path)
    assert runs["tuned"].there == made
    assert " --name mine " in runs["tuned"].need.line
    assert f"task={made}/checkpoints/pretrained-seed0-order0" in runs["disabled_task"].need.line
    assert runs["disabled_task"].there is None
    of_task = tmp_path / "task"
    of_task.mkdir()
    checkpoint = made / "checkpoints" / "pretrained-seed0-order0"
    results = {"kind": "disabling of heads and layers", "cache": {"key": {
        "model": resolve_model(str(checkpoint)).fingerprint(), "corpus": "that of the tuning"}}}  # fmt: skip
    (of_task / "results.json").write_text(json.dumps(results), encoding="utf-8")
    config = {"kinds": "uniform", "retrain": 0, "model": str(checkpoint), "corpus": "a copy.txt"}
    for readouts, is_taken in (("position", False), (f"task={tmp_path}/./mine/checkpoints/{checkpoint.name}", True)):
        (of_task / "config.yaml").write_text(yaml.safe_dump({**config, "readouts": readouts}), encoding="utf-8")
        assert (planned(model, tmp_path)["disabled_task"].there == of_task) is is_taken


@pytest.mark.parametrize(
    ("changed", "is_taken"),
    [
        ({}, True),
        ({"starts": ["pretrained", "random", "shuffled"]}, False),  # the option was typed in another way
        ({"starts": "pretrained,random"}, False),
        ({"seeds": 3}, False),
        ({"tuning": {"epochs": 1, "learning_rate": 0.0002, "batch_tokens": 256}}, True),  # of an earlier version
        ({"tuning": {"epochs": 1, "learning_rate": 0.0002, "batch_tokens": 256, "layer": 2}}, False),
        ({"tuning": asdict(TuningOptions())}, False),
    ],
)
def test_another_tuning_is_not_taken(changed: dict[str, Any], is_taken: bool, model: Path, tmp_path: Path) -> None:
    made = finished(tmp_path / "mine", model, **changed)
    assert planned(model, tmp_path)["tuned"].there == (made if is_taken else None)


def test_a_tuning_from_more_starts_serves_one_from_fewer(model: Path, tmp_path: Path) -> None:
    paper = read_paper("bertology", MEASURES)
    data = {"labels": None, "untuned": None, "sts": None, "cloze": None}
    made = finished(tmp_path / "mine", model)
    claims = [claim for claim in paper.claims if claim.id == 32]
    found = plan(paper, claims, {"m": str(model)}, Given("text.txt", data), TEXT, USUAL, tmp_path).models["m"]
    assert [one.there for one in found] == [made, None]


def test_what_reads_a_tuning_that_cannot_be_is_left_out_for_the_same_reason(model: Path, tmp_path: Path) -> None:
    tried = []

    def make(command: str, options: Mapping[str, Any]) -> Path:
        tried.append(command)
        raise UserError("the model has no head.")

    (other, _), _ = carry_out(made_plan(model, tmp_path), make, lambda place: place, lambda line: None)
    assert tried == ["finetune"]
    assert set(other.lacking) == {"tuned", "tuned_change", "shuffled_change", "disabled_task"}
    assert set(other.lacking.values()) == {"the model has no head"}


def test_a_tuning_takes_longer_with_more_of_anything(model: Path, tmp_path: Path) -> None:
    source = resolve_model(str(model))
    speed = Speed(Blocks.of(load_config(source)), {"square": 1e9, "widen": 1e9, "narrow": 1e9})
    text = from_sentences("made up", [f"one two three {i}" for i in range(100)])
    reading = Reading.of(Request(source, text, [0, 1, 2]), tmp_path)

    def takes(command: str, reads: tuple[str, ...] = (), **options: Any) -> float:
        return seconds(Need("x", command, options, reads=reads), USUAL[command], reading, speed)

    plain = takes("finetune")
    assert takes("finetune", starts="all") == pytest.approx(1.5 * plain)
    assert takes("finetune", seeds=6) == pytest.approx(2 * plain)
    assert takes("finetune", tuning={"layer": 1}) == pytest.approx(plain / 3)
    assert takes("finetune", tuning={"layer": -3}) == pytest.approx(plain / 3)
    assert takes("finetune", tuning={"epochs": 6}) > 1.7 * plain
    of_task = takes("disable", ("tuned",), kinds="zero", readouts="task=x")
    assert 0 < of_task < takes("disable", kinds="zero")  # on the test part alone
    assert of_task < takes("disable", ("tuned",), kinds="zero,mean", readouts="task=x")
    heads = takes("disable", ("tuned",), kinds="zero", readouts="task=x", units="heads")
    assert heads < of_task
    of_weights, of_all = (
        takes("disable", ("tuned",), kinds="zero", readouts="task=x", prune=one) for one in ("weights", "all")
    )
    assert of_task < of_weights < of_all
