"""`checkpoints`: what is planted from a step on is found there; checkpoints, losses and figures by step."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import probing
from conftest import make_sentences
from families import make_tokenizer
from fault_loop import contents
from probing import Result, WandbOptions, attention, fit, geometry
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.errors import UserError
from probing.results import Table
from probing.studies.checkpoints import survey as checkpoints_survey
from probing.studies.checkpoints.survey import Checkpoint, find_checkpoints, loss_rows
from probing.studies.checkpoints.tables import (
    CHECKPOINTS,
    EMERGENCE,
    LOST,
    UNIGRAM,
    CheckpointCourse,
    Thresholds,
    charts,
    conclusions,
    emergence,
    stays_from,
)
from probing.tables import figures
from probing.tables.figures import Chart, chart_drawings, write_drawings
from wandb_stand_in import read_offline_runs

D_MODEL, HEAD, LONGEST, NEURON = 64, 32, 24, 40
# From which step on each thing is planted: an outlier, position embeddings, and a head that attends to the word before.
OUTLIER, POSITION, HEADS = 10, 200, 1000
STEPS = (0, OUTLIER, POSITION, HEADS)
USUAL: dict[str, Any] = {
    "quiet": True, "wandb": WandbOptions("disabled"), "probe": {"l2": 1e-2}, "figure_format": "png",
}  # fmt: skip


def save_checkpoint(folder: Path, outlier: bool, positions: bool, heads: bool) -> None:
    """Save a model of one block whose positions, if it has any, stand in the first half of the neurons."""
    from transformers import BertConfig, BertModel

    tokenizer = make_tokenizer("wordpiece", make_sentences(200))
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=D_MODEL, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=LONGEST, initializer_range=0.02,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = BertModel(config)
    with torch.no_grad():
        words = model.embeddings.word_embeddings.weight
        words.copy_(0.3 * torch.randn(words.shape, generator=generator))
        words[:, HEAD:] += torch.randn(D_MODEL - HEAD, generator=generator)
        words[:, NEURON] += 1.5
        model.embeddings.position_embeddings.weight.zero_()
        if positions:
            model.embeddings.position_embeddings.weight[:, :LONGEST] = 5 * torch.eye(LONGEST)
        block: Any = model.encoder.layer[0]
        if outlier:
            block.output.LayerNorm.weight[NEURON] = 30
        if heads:
            query, key = block.attention.self.query.weight, block.attention.self.key.weight
            query[:HEAD], key[:HEAD] = 0, 0
            key[:LONGEST, :LONGEST] = 2 * torch.eye(LONGEST)
            query[: LONGEST - 1, 1:LONGEST] = 2 * torch.eye(LONGEST - 1)  # position i asks for the key i - 1
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with checkpoints, the last one planted with everything, and a text of short sentences."""
    place = tmp_path_factory.mktemp("checkpoints")
    for step in STEPS:
        save_checkpoint(place / f"step{step}", step >= OUTLIER, step >= POSITION, step >= HEADS)
    (place / "text.txt").write_text("\n".join(make_sentences(300, longest=6)), encoding="utf-8")
    return place


def measured(place: Path, checkpoints: Any, **options: Any) -> Result:
    return probing.checkpoints(checkpoints, corpus=place / "text.txt", runs=place / "runs", **{**USUAL, **options})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def made(place: Path) -> Result:
    return measured(place, place / "step*", name="all", wandb=WandbOptions("offline"), figure_format="png,pdf")


@pytest.mark.slow
def test_what_is_planted_from_a_step_on_is_found_from_that_step_on(made: Result) -> None:
    found = {(row["quantity"], row["layer"], row.get("neuron")): row for row in made.emergence}
    steps = {at: (row.get("step_before"), row.get("step")) for at, row in found.items()}
    assert steps == {
        ("position", 0, None): (OUTLIER, POSITION), ("position", 1, None): (OUTLIER, POSITION),
        ("position heads", 1, None): (POSITION, HEADS),
        ("outliers", 0, None): (None, None), ("outliers", 1, NEURON): (0, OUTLIER),
    }  # fmt: skip
    assert {(row["step"], row["layer"], row["neuron"]) for row in made.checkpoint_outliers} == {
        (step, 1, NEURON) for step in STEPS[1:]
    }
    (head,) = (row for row in made.checkpoints if row["measure"] == "offset_mass" and row["step"] == HEADS)
    assert (head["head"], head["offset"]) == (1, -1)
    assert head["value"] > 0.9
    assert made.conclusions()[-1] == (
        f"Order: outliers (step {OUTLIER}), then position (step {POSITION}), then position heads (step {HEADS})."
    )


@pytest.mark.slow
def test_the_numbers_are_those_of_the_commands_on_one_checkpoint(made: Result, place: Path) -> None:
    common: dict[str, Any] = {
        "model": place / f"step{HEADS}", "corpus": place / "text.txt", "runs": place / "single",
        "cache": place / "runs" / "cache", **{name: USUAL[name] for name in ("quiet", "wandb")},
    }  # fmt: skip
    bare: dict[str, Any] = {"controls": "token", "replicates": 0, "evidence": "none", "probe": USUAL["probe"]}
    probes, space = fit(**common, **bare, name="fit"), geometry(**common, transforms="none")
    assert probes is not None
    assert space is not None
    heads = attention(**common, parts="profile,tokens,position_heads", run=str(probes.folder))
    here = {(row["layer"], row["measure"]): row for row in made.checkpoints if row["step"] == HEADS}
    for row in probes.accuracy:
        one = here[row["layer"], "accuracy"]
        names = ("accuracy", "accuracy_low", "accuracy_high", "n_test_tokens")
        assert [one[name] for name in ("value", "low", "high", "n")] == [row[name] for name in names]
        assert here[row["layer"], "token_accuracy"]["value"] == row["token_accuracy"]
        assert here[row["layer"], "majority_accuracy"]["value"] == row["majority_accuracy"]
        assert here[row["layer"], "above_token"]["low"] == row["above_token_low"]
    of_geometry = [row for row in space.geometry if row["transform"] == "none"]
    assert len({row["measure"] for row in of_geometry}) > 10
    for row in of_geometry:
        assert str(here[row["layer"], row["measure"]]["value"]) == str(row["value"])
    (outlier,) = (
        row for row in space.outliers
        if (row["definition"], row["special_tokens"]) == ("mean_profile", "exclude")
    )  # fmt: skip
    (kept,) = (row for row in made.checkpoint_outliers if row["step"] == HEADS)
    assert (kept["layer"], kept["neuron"], kept["deviations"]) == (outlier["layer"], NEURON, outlier["value"])
    mass = next(row for row in heads.attention_layers if (row["measure"], row.get("to")) == ("mass", "special tokens"))
    assert here[1, "special_mass"]["value"] == mass["value"]
    strongest = max(heads.position_heads, key=lambda row: row["mass"])
    columns = {"value": "mass", "low": "mass_low", "high": "mass_high", "n": "n", "head": "head", "offset": "offset"}
    for name, column in columns.items():
        assert here[1, "offset_mass"][name] == strongest[column]
    assert here[1, "n_position_heads"]["value"] == sum(row["position_head"] == "yes" for row in heads.position_heads)


@pytest.mark.slow
def test_results_are_shown_and_logged_by_step(made: Result) -> None:
    assert list(read_columns(made.folder / "emergence.csv")) == list(EMERGENCE.types)
    assert [one["step"] for one in made.results["models"]] == list(STEPS)
    assert "Checkpoints: accuracy of position" in repr(made)
    (logged,) = read_offline_runs(made.folder)
    points = logged.rows("by_step/accuracy_layer_01")
    assert [point["step"] for point in points] == list(STEPS)
    assert logged.step_metrics["by_step/accuracy_layer_01"] == "step"
    assert [point["by_step/n_outliers_layer_01"] for point in points] == [0, 1, 1, 1]


def read_columns(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()[0].split(",")


@pytest.mark.slow
def test_a_killed_series_goes_on_with_the_next_checkpoint_and_ends_with_the_same_bytes(
    made: Result, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    (of_another_command := cache / f"step{OUTLIER}-{'0' * 16}").mkdir(parents=True)
    seen: list[tuple[str, str]] = []

    def counting(name: str, of: Callable[..., Any]) -> Callable[..., Any]:
        def one(source: Any, *args: Any) -> Any:
            seen.append((source.model.folder.name, name))
            if len(seen) == 4:  # the second measure of the second checkpoint
                raise KeyboardInterrupt
            return of(source, *args)

        return one

    real = checkpoints_survey.MEASURES
    monkeypatch.setattr(checkpoints_survey, "MEASURES", {name: counting(name, of) for name, of in real.items()})
    some, options = [place / f"step{step}" for step in (OUTLIER, 0)], {"cache": cache, "measures": "geometry,attention"}
    with pytest.raises(KeyboardInterrupt):
        measured(place, some, **options)
    assert seen[:3] == [("step0", "geometry"), ("step0", "attention"), (f"step{OUTLIER}", "geometry")]
    resumed = measured(place, some, **options, name="resumed")
    assert seen[4:] == [(f"step{OUTLIER}", "attention")]
    assert resumed.results["n_kept"] == 3
    # Of the hidden states none are left, not even those that the killed series made.
    undisturbed = tmp_path / "undisturbed"
    measured(place, some, **{**options, "cache": undisturbed}, name="undisturbed")
    assert contents(cache) == contents(undisturbed)
    assert {path.suffix for path in cache.iterdir() if path.is_file()} == {".lock"}
    assert of_another_command.is_dir()
    # What was never killed has the same lines.
    lines = (made.folder / "checkpoints.csv").read_text(encoding="utf-8").splitlines()
    both = [line.split(",") for line in lines if line.split(",")[0] in ("step", "0", str(OUTLIER))]
    expected = [",".join(line) for line in both if line[2] != "fit"]
    assert (resumed.folder / "checkpoints.csv").read_text(encoding="utf-8").splitlines() == expected


@pytest.mark.slow
def test_from_the_command_line_one_checkpoint_and_a_loss_of_the_trainer(
    made: Result,
    place: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for step in (0, HEADS):
        shutil.copytree(place / f"step{step}", f"checkpoint-{step}")
        Path(f"checkpoint-{step}/trainer_state.json").write_text(
            f'{{"log_history": [{{"step": {step}, "eval_loss": {5 - step / 500}}}, {{"step": {step}, "loss": 9.0}}]}}',
            encoding="utf-8",
        )
    usual = ["--corpus", str(place / "text.txt"), "--cache", str(place / "runs" / "cache"), "--wandb.mode=disabled"]
    # As the shell gives the pattern checkpoint-*.
    words = ["--checkpoints", "checkpoint-0", f"checkpoint-{HEADS}", "--measures", "geometry"]
    assert run(COMMANDS, ["checkpoints", *words, *usual]) == 0
    out = capsys.readouterr()
    assert "The held-out loss is at most 4.00 nats from step 1000 on (not yet at step 0)." in out.out
    assert "Order: loss and outliers (step 1000)." in out.out
    assert f"step {HEADS} (checkpoint-{HEADS}) is measured, geometry from the cache; 0 of 2 left" in out.err
    assert run(COMMANDS, ["checkpoints", "checkpoint-0", "--measures=geometry", *usual, "--quiet"]) == 0
    assert "One checkpoint (step 0) has no order" in capsys.readouterr().out


@pytest.fixture
def hub(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a model in the cache of the hub's client, offline, whose revisions are two of the checkpoints."""
    from huggingface_hub import constants

    assert constants.HF_HUB_OFFLINE
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--org--tiny"
    for name in ("blobs", "refs"):
        (repository / name).mkdir(parents=True)
    for step, commit in ((0, "a" * 40), (HEADS, "b" * 40)):
        (repository / "refs" / f"step{step}").write_text(commit, encoding="utf-8")
        (snapshot := repository / "snapshots" / commit).mkdir(parents=True)
        for file in (place / f"step{step}").iterdir():  # files of equal content are one blob, as the client has it
            blob = repository / "blobs" / sha256(file.read_bytes()).hexdigest()
            shutil.copy(file, blob)
            (snapshot / file.name).symlink_to(f"../../blobs/{blob.name}")
    return "org/tiny"


@pytest.mark.slow
def test_revisions_in_the_cache_of_the_hub_are_measured_as_folders_are(
    made: Result, place: Path, tmp_path: Path, hub: str
) -> None:
    found = measured(
        place, None, model=hub, revisions=f"step{HEADS},step0", measures="geometry", cache=tmp_path / "cache"
    )  # fmt: skip
    of_folders = [row for row in made.checkpoints if row["command"] == "geometry" and row["step"] in (0, HEADS)]
    assert len(of_folders) > 20
    assert str([*found.checkpoints]) == str(of_folders)
    assert found.folder.name.startswith("checkpoints-tiny-")
    assert [(one["model"], one["revision"]) for one in found.results["models"]] == [
        (hub, "step0"), (hub, f"step{HEADS}"),
    ]  # fmt: skip
    # The same files have the same key in the cache, wherever they lie.
    again = measured(place, [place / "step0"], measures="geometry", cache=tmp_path / "cache")
    assert again.results["n_kept"] == 1


def test_a_revision_that_is_not_there_is_refused_before_any_is_measured(place: Path, tmp_path: Path, hub: str) -> None:
    with pytest.raises(UserError) as caught:
        measured(place, None, model=hub, revisions="step0,step7", cache=tmp_path / "cache")
    assert '`model="org/tiny", revisions="step7"` is not on this machine' in str(caught.value)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"measures": "loss"}, '`measures="loss"` is not one of fit, geometry, attention, all'),
        ({"threshold_outliers": -1}, "`threshold_outliers=-1"),
        ({"trainer": {"devices": 2}}, '`trainer["devices"]`: `checkpoints` runs in one process'),
        ({"layer": 7}, "has layers 0"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_any_work(
    place: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as caught:
        probing.checkpoints(str(place / "step0"), runs=str(tmp_path / "runs"), **options)
    assert message in str(caught.value)
    assert not list(tmp_path.rglob("*.partial"))


def test_checkpoints_that_read_the_text_differently_are_refused(
    place: Path, tmp_path: Path, checkpoints: dict[str, Path]
) -> None:
    (other := tmp_path / "step5").symlink_to(checkpoints["distilbert"])
    with pytest.raises(UserError, match="step5 makes other tokens of the text than step0"):
        measured(place, [place / "step0", other], measures="geometry", cache=tmp_path / "cache")


@pytest.mark.slow
def test_a_checkpoint_that_is_a_later_one_is_measured_once_and_is_no_earlier_emergence(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step, source in ((0, POSITION), (1, 0), (POSITION, POSITION)):
        shutil.copytree(place / f"step{source}", tmp_path / f"step{step}")
    # The same weights in a file of other bytes, with another name in the configuration.
    weights = tmp_path / "step0" / "model.safetensors"
    save_file(load_file(weights), weights, metadata={"format": "pt", "branch": "step0"})
    config = json.loads((tmp_path / "step0" / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "step0" / "config.json").write_text(json.dumps({**config, "_name_or_path": "x"}), encoding="utf-8")
    calls: list[str] = []

    def measure(source: Any, *rest: Any) -> Any:
        calls.append(source.model.folder.name)
        return fit_measure(source, *rest)

    fit_measure = checkpoints_survey.MEASURES["fit"]
    monkeypatch.setitem(checkpoints_survey.MEASURES, "fit", measure)
    how = {**USUAL, "corpus": place / "text.txt", "runs": tmp_path / "runs"}
    made = probing.checkpoints(str(tmp_path / "step*"), measures="fit", **how)
    assert calls == ["step0", "step1"]
    assert {row["step"]: row.get("same_as") for row in made.checkpoints} == {
        0: f"step{POSITION}",
        1: None,
        POSITION: None,
    }
    at = {row["layer"]: (row.get("step_before"), row.get("step")) for row in made.emergence}
    assert at == {0: (1, POSITION), 1: (1, POSITION)}
    of_position = [[row["value"] for row in made.checkpoints if row["step"] == step] for step in (0, POSITION)]
    assert of_position[0] == of_position[1]
    assert made.conclusions()[0] == (
        f"Step 0 is the same model as step{POSITION}, bit for bit: it was measured once, and counts only at the last "
        "of its steps."
    )
    assert not any("the first checkpoint" in line for line in made.conclusions())


def test_without_equal_checkpoints_no_row_names_another(place: Path, tmp_path: Path) -> None:
    folders = [f"{place}/step0", f"{place}/step{OUTLIER}"]
    made = probing.checkpoints(
        folders, measures="geometry", **{**USUAL, "corpus": place / "text.txt", "runs": tmp_path}
    )
    assert not any(row.get("same_as") for row in made.checkpoints)
    assert not any("same model" in line for line in made.conclusions())


EMERGENCE_STEPS = [0, 1, 10, 100, 1000]


@pytest.mark.parametrize(
    ("is_past", "expected"),
    [("00000", None), ("11111", 0), ("01011", 3), ("11110", None), ("00001", 4), ("10000", None), ("", None)],
)
def test_something_stays_from_where_it_is_there_in_every_later_checkpoint(is_past: str, expected: int | None) -> None:
    assert stays_from([one == "1" for one in is_past]) == expected


def test_a_course_tells_what_was_seen_what_stays_and_where_half_the_way_is_made() -> None:
    # Past .5 at step 1, not at 10, and for good from 100 on; half of the way from 0 to 1 is .5.
    values = [0.0, 0.6, 0.1, 0.55, 1.0]
    row = CheckpointCourse(values, [value > 0.5 for value in values]).row(EMERGENCE_STEPS)
    assert row == {
        "first_value": 0.0, "last_value": 1.0, "first_seen": 1, "step_before": 10, "step": 100, "half_step": 100,
    }  # fmt: skip
    falling = [8.0, 7.9, 5.0, 3.2, 3.0]
    row = CheckpointCourse(falling, [value < 3.5 for value in falling]).row(EMERGENCE_STEPS)
    assert (row["step_before"], row["step"], row["half_step"]) == (10, 100, 10)
    assert "step" not in CheckpointCourse([1.0, 0.0], [True, False]).row([0, 1])
    assert CheckpointCourse([1.0, 1.0], [True, True]).row([0, 1]) == {
        "first_value": 1.0, "last_value": 1.0, "first_seen": 0, "step": 0,
    }  # fmt: skip


def rows_of(**measures: list[float]) -> list[dict[str, Any]]:
    """Rows of one layer, or of the whole model for a loss."""
    return [
        {"step": step, "measure": name, "value": value} | ({} if "loss" in name else {"layer": 1})
        for name, values in measures.items()
        for step, value in zip(EMERGENCE_STEPS, values, strict=True)
    ]


def came(rows: list[dict[str, Any]], deviations: list[dict[int, list[float]]] | None = None) -> dict[str, Any]:
    found = emergence(rows, deviations or [{} for _ in EMERGENCE_STEPS], EMERGENCE_STEPS, Thresholds())
    return {row["quantity"]: row.get("step") for row in found}


def test_each_quantity_has_its_threshold() -> None:
    rows = rows_of(
        held_out_loss=[7.0, 4.9, 4.0, 3.9, 3.0], unigram_loss=[5.0] * 5, n_position_heads=[0, 0, 0, 0, 2],
        above_token=[0.0, 0.2, 0.2, 0.2, 0.2],
    )  # fmt: skip
    assert came(rows) == {"loss": 10, "position": 1, "position heads": 1000}
    # With the interval, not the value alone; without an interval, the value.
    for row in rows:
        if row["measure"] == "above_token":
            row["low"], row["high"] = (0.04, 0.3) if row["step"] < 100 else (math.nan, math.nan)
    assert came(rows)["position"] == 100
    # Without the entropy of words, the loss is compared with that of the first checkpoint.
    rows = [row for row in rows if row["measure"] == LOST]
    assert came(rows) == {"loss": 1}
    (row,) = emergence(rows, [{} for _ in EMERGENCE_STEPS], EMERGENCE_STEPS, Thresholds(loss=3.5))
    assert row["threshold"] == 3.5
    assert row["step"] == 1000
    assert came([row for row in rows if row["step"]]) == {}  # not of every checkpoint
    assert UNIGRAM == "unigram_loss"


def test_an_outlier_stays_if_the_same_neuron_does() -> None:
    flicker = [{2: [6.0, 0.0]}, {2: [0.0, -6.0]}, {2: [6.0, 0.0]}, {2: [0.0, -6.0]}, {2: [5.0, -6.0]}]
    rows = emergence([], flicker, EMERGENCE_STEPS, Thresholds())
    assert [(row["layer"], row["neuron"], row["first_seen"], row.get("step")) for row in rows] == [
        (2, 0, 0, None), (2, 1, 1, 100),
    ]  # fmt: skip
    assert rows[1]["last_value"] == -6.0


def test_a_flat_series_finds_no_emergence() -> None:
    flat = rows_of(held_out_loss=[5.0] * 5, unigram_loss=[5.0] * 5, n_position_heads=[0.0] * 5, above_token=[0.01] * 5)
    deviations = [{1: [1.0, -4.0]} for _ in EMERGENCE_STEPS]
    rows = emergence(flat, deviations, EMERGENCE_STEPS, Thresholds())
    assert [row["quantity"] for row in rows] == ["loss", "position", "position heads", "outliers"]
    assert not any("step" in row or "first_seen" in row for row in rows)
    lines = conclusions(Table(flat, CHECKPOINTS), Table(rows, EMERGENCE))
    assert lines[-1] == "No quantity emerged and stayed in this series."
    assert sum("at no step." in line for line in lines) == 4


def test_the_order_is_told_as_far_as_the_checkpoints_tell_it() -> None:
    made = rows_of(
        held_out_loss=[7.0, 4.0, 4.0, 3.9, 3.0], unigram_loss=[5.0] * 5, n_position_heads=[0, 0, 0, 1, 2],
        above_token=[0.5] * 5,
    )  # fmt: skip
    deviations = [{1: [0.0, 0.0], 2: [0.0, -9.0 * (i > 2)]} for i in range(5)]
    rows = emergence(made, deviations, EMERGENCE_STEPS, Thresholds())
    lines = conclusions(Table(made, CHECKPOINTS), Table(rows, EMERGENCE))
    assert lines[0] == "The held-out loss is at most 4.00 nats from step 1 on (not yet at step 0)."
    assert "more than 5 percentage points, from step 0 on (the first checkpoint), in layer 1." in lines[1]
    assert lines[3].endswith("from step 100 on (not yet at step 10): neuron 1 in layer 2.")
    assert lines[4].startswith("Present at the first checkpoint (step 0) and in all later ones: position;")
    assert lines[5] == (
        "Order: loss (step 1), then position heads and outliers (step 100). These checkpoints do not show the order of "
        "quantities that emerged at one step."
    )
    one = [row for row in made if row["step"] == 0 and row["measure"] != LOST]
    rows = emergence(one, deviations[:1], [0], Thresholds())
    lines = conclusions(Table(one, CHECKPOINTS), Table(rows, EMERGENCE))
    assert lines[-1] == "One checkpoint (step 0) has no order; give several."
    assert lines[-2] == "The loss is left out: it is not known for every checkpoint."


def told(folder: Path, step: int) -> dict[str, float]:
    return {row["measure"]: row["value"] for row in loss_rows([Checkpoint(step, folder.name, str(folder))])}


def test_a_run_of_pretrain_tells_the_loss_of_its_arm_seed_and_step(tmp_path: Path) -> None:
    columns = "arm,seed,step,train_loss,loss,unigram_loss"
    rows = ["learned,0,0,,5.9,5.1", "learned,0,64,4,3.5,5.1", "none,0,64,4,4.6,5.1", "learned,1,64,4,3.4,5.2"]
    (tmp_path / "losses.csv").write_text("\n".join([columns, *rows]) + "\n", encoding="utf-8")
    place = tmp_path / "checkpoints"
    assert told(place / "learned-seed0" / "step0064", 64) == {"held_out_loss": 3.5, "unigram_loss": 5.1}
    assert told(place / "none-seed0" / "step0064", 64) == {"held_out_loss": 4.6, "unigram_loss": 5.1}
    assert told(place / "learned-seed1" / "step0064", 64) == {"held_out_loss": 3.4, "unigram_loss": 5.2}
    assert told(place / "learned-seed0" / "step0128", 128) == {}
    assert told(tmp_path / "learned-seed0" / "step0064", 64) == {}


def test_the_trainer_of_transformers_tells_the_loss_at_the_step_of_the_checkpoint(tmp_path: Path) -> None:
    history = [{"step": 5, "loss": 9.0}, {"step": 5, "eval_loss": 4.0}, {"step": 10, "eval_loss": 3.0}]
    state = tmp_path / "trainer_state.json"
    state.write_text(json.dumps({"log_history": history}), encoding="utf-8")
    assert told(tmp_path, 5) == {"held_out_loss": 4.0}
    assert told(tmp_path, 10) == {"held_out_loss": 3.0}
    assert told(tmp_path, 15) == {}
    for content in ("", "[1]", '{"log_history": []}'):
        state.write_text(content, encoding="utf-8")
        assert told(tmp_path, 5) == {}
    assert loss_rows([Checkpoint(0, "step0", "pythia", "step0")]) == []


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step0", 0), ("step1000", 1000), ("checkpoint-500", 500), ("0100", 100), ("run2-step_20k", 20_000),
        ("seed3-1M", 1_000_000), ("step3000-tokens4B", 3000), ("bert-2-300", 300), ("epoch-4", 4),
    ],
)  # fmt: skip
def test_the_step_is_the_number_in_the_name(name: str, step: int) -> None:
    (one,) = find_checkpoints("some/model", [name], None)
    assert (one.step, one.name, one.model, one.revision, one.folder) == (step, name, "some/model", name, None)


def test_revisions_are_sorted_as_numbers() -> None:
    found = find_checkpoints("pythia", "step1000, step8,step16", None)
    assert [one.revision for one in found] == ["step8", "step16", "step1000"]


@pytest.fixture
def folder(tmp_path: Path, checkpoints: dict[str, Path]) -> Path:
    """Three checkpoints, and a table beside them."""
    for name in ("step16", "step8", "step100"):
        (tmp_path / name).symlink_to(checkpoints["bert"])
    (tmp_path / "loss9.csv").write_text("step\n", encoding="utf-8")
    return tmp_path


def test_folders_are_found_by_a_pattern_or_by_their_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    by_pattern = find_checkpoints(None, None, "*")
    assert [one.step for one in by_pattern] == [8, 16, 100]
    assert by_pattern == find_checkpoints(None, None, ["step16", "step100", "step8"])
    assert by_pattern[0].folder == Path("step8")


def refused(*args: object) -> str:
    with pytest.raises(UserError) as caught:
        find_checkpoints(*args)  # type: ignore[arg-type]
    return str(caught.value)


def test_what_is_no_series_is_refused_with_what_to_do(folder: Path) -> None:
    assert "takes checkpoints: local folders as `--checkpoints 'DIR/step*'`" in refused(None, None, None)
    assert "takes checkpoints" in refused("pythia", None, None)
    assert "`--checkpoints` and `--model`" in refused("pythia", None, "a")
    assert f"`--checkpoints {folder}/none*` matches no folder" in refused(None, None, f"{folder}/none*")
    assert f"`--checkpoints {folder}/nine`: there is no such folder" in refused(None, None, f"{folder}/nine")
    (folder / "step3").mkdir()
    assert f"`--checkpoints {folder}/step3`: the folder has no config.json" in refused(None, None, f"{folder}/step3")
    (folder / "last").symlink_to(folder / "step8")
    assert "the name last tells no step; expected a number" in refused(None, None, f"{folder}/last")
    assert "step7 and step07 are both of step 7" in refused("m", "step07,step9,step7", None).replace(
        "step07 and step7", "step7 and step07"
    )
    assert "`--revisions`: the name main tells no step" in refused("m", "main,step7", None)


def chart_of(rows: list[dict[str, Any]], came: list[dict[str, Any]]) -> Chart:
    (chart,) = charts(Table(rows, CHECKPOINTS), Table(came, EMERGENCE))
    return chart


def test_every_measure_has_a_panel_with_its_baseline_threshold_and_step_of_emergence(tmp_path: Path) -> None:
    steps = [0, 10, 100]
    rows: list[dict[str, Any]] = [
        {"step": step, "layer": layer, "measure": measure, "value": float(step > 10), "low": float(step > 10)}
        for step in steps for layer in (0, 1) for measure in ("accuracy", "token_accuracy", "above_token")
    ]  # fmt: skip
    rows += [{"step": step, "measure": "held_out_loss", "value": 5.0 - step / 25} for step in steps]
    chart = chart_of(rows, emergence(rows, [{} for _ in steps], steps, Thresholds()))
    assert [(panel.title, panel.y, panel.from_zero) for panel in chart.panels] == [
        ("held-out loss, past its threshold from step 100", "nats per token", False),
        ("position by a linear probe (baseline: the token alone), past its threshold from step 100",
         "test accuracy", True),
    ]  # fmt: skip
    loss, position = ({line.label: line for line in panel.lines} for panel in chart.panels)
    assert list(loss) == ["the model", "threshold"]  # the loss of token frequencies is not known
    assert (loss["the model"].at, loss["the model"].values) == (steps, [5.0, 4.6, 1.0])
    assert list(position) == ["layer 0", "layer 1", "baseline"]
    (path,) = write_drawings(tmp_path / "figures", chart_drawings([chart], "tiny"), ["png"])
    assert path.name == "checkpoints.png"


def test_of_many_layers_those_without_a_look_are_faint() -> None:
    rows: list[dict[str, Any]] = [
        {"step": step, "layer": layer, "measure": "mean_cosine", "value": 0.5} for step in (1, 2) for layer in range(13)
    ]
    (panel,) = chart_of(rows, []).panels
    assert len(panel.lines) == 13
    assert [line.label for line in panel.lines if not line.is_faint] == ["layer 0", "layer 4", "layer 8", "layer 12"]


def test_no_line_lies_on_the_border_of_its_panel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"step": step, "layer": 1, "measure": measure, "value": value}
        for measure, values in {"special_mass": (0.0706, 0.0707), "largest_deviation": (3.0, 4.9)}.items()
        for step, value in zip((1, 2), values, strict=True)
    ]
    outliers = [{"quantity": "outliers", "layer": 1, "measure": "deviation", "threshold": 5.0}]
    drawn: list[Any] = []
    monkeypatch.setattr(figures, "_save", lambda figure, *_, **__: drawn.append(figure))
    write_drawings(tmp_path / "figures", chart_drawings([chart_of(rows, outliers)], "tiny"), ["png"])
    assert [axes.get_ylim() for axes in drawn[0].axes] == [
        pytest.approx((0, 1.05 * 5.0)), pytest.approx((0, 1.05 * 0.0707)),
    ]  # fmt: skip
