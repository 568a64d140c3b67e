"""What `fit` says before it starts, refuses, does with few sentences, and with an intercept."""

from __future__ import annotations

import csv
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import probing
from conftest import BARE_ARGS
from probing import Run, WandbOptions, fit
from probing import results as csv_files
from probing import runtime as memory
from probing.__main__ import COMMANDS
from probing.activations import Request, activations
from probing.activations.source import PendingRequest, Size, Speed
from probing.cli.commandline import run
from probing.cli.options import ProbeOptions
from probing.errors import UserError
from probing.models import resolve_model
from probing.models.loading import Blocks
from probing.page.charts import charts_html
from probing.results import Column, Schema, ends, in_brackets, interval, without_nan
from probing.runtime.progress import duration
from probing.statistics import MIN_SENTENCES
from probing.studies.fit import estimate
from probing.studies.fit.estimate import CostEstimate, ProbeCosts
from probing.tables import centred_of
from probing.tables.conclusions import conclusion
from probing.tables.figures import Chart, Line, Panel
from probing.tables.probe_figures import error_bars
from probing.tables.probes import result_line
from probing.text import assign_splits, from_sentences


@pytest.fixture(scope="module")
def request_of(checkpoints: dict[str, Path], sentences: list[str]) -> Request:
    return Request(resolve_model(str(checkpoints["bert"])), from_sentences("made up", sentences[:40]), [0, 1, 2])


def test_what_is_cached_is_neither_read_nor_written_again(request_of: Request, tmp_path: Path) -> None:
    before = PendingRequest.of(request_of, tmp_path)
    speed = Speed(Blocks.of(request_of_config(request_of)), {"square": 1e3, "widen": 1e3, "narrow": 1e3})
    assert before.missing == 1
    assert before.missing_bytes == before.size.n_bytes
    assert before.seconds(speed) > 0
    store = activations(replace(request_of, layers=[0]), tmp_path, {"accelerator": "cpu"})
    part = PendingRequest.of(request_of, tmp_path)
    assert part.missing == pytest.approx(2 / 3)
    assert part.seconds(speed) == pytest.approx(2 / 3 * before.seconds(speed))
    activations(request_of, tmp_path, {"accelerator": "cpu"})
    after = PendingRequest.of(request_of, tmp_path)
    assert (after.missing, after.missing_bytes, after.seconds(speed), after.memory_bytes()) == (0, 0, 0, 0)
    # Every activation is written, and little else.
    written = sum(path.stat().st_size for path in store.folder.rglob("*.safetensors") if path.parent != store.folder)
    assert 1 <= written / after.size.n_bytes < 1.2


def request_of_config(request: Request) -> object:
    from probing.models import load_config

    return load_config(request.source)


def test_a_forward_pass_counts_every_weight_of_the_blocks_that_are_run(request_of: Request, tmp_path: Path) -> None:
    from transformers import AutoModel

    model = AutoModel.from_pretrained(request_of.source.folder)
    reading = PendingRequest.of(request_of, tmp_path)
    lengths = reading.tokens.lengths.astype(np.int64)
    n_weights = sum(weight.numel() for weight in model.encoder.parameters() if weight.dim() == 2)
    n_blocks, d_model = len(model.encoder.layer), model.config.hidden_size
    operations = 2 * n_weights * lengths.sum() + 4 * n_blocks * d_model * (lengths**2).sum()
    speed = Speed(Blocks.of(model.config), {"square": 1e6, "widen": 1e6, "narrow": 1e6})
    assert speed.forward_s(reading.size) * 1e6 * 0.5 == pytest.approx(operations)
    # Half of the blocks for half of the time.
    half = replace(reading, request=replace(request_of, layers=[0, n_blocks // 2]))
    assert half.seconds(speed) == pytest.approx(n_blocks // 2 / n_blocks * speed.forward_s(reading.size))


def test_the_rates_are_of_this_machine(request_of: Request) -> None:
    speed = Speed.measure(request_of, {"accelerator": "cpu"})
    assert set(speed.rates) == {"square", "widen", "narrow"}
    assert all(1e6 < value < 1e15 for value in speed.rates.values())


def test_the_pass_that_is_timed_is_that_of_the_probe() -> None:
    narrow, wide = ProbeCosts(2048, 1, 4, 32), ProbeCosts(2048, 1, 64, 512)
    assert 0 < narrow.pass_seconds() < wide.pass_seconds()  # of 256 times the products


PROBES = ProbeCosts(10_000, 13, 60, 768, 3, 5, True)


@pytest.mark.parametrize("more", [{"n_layers": 26}, {"n_replicates": 50}, {"n_tokens": 20_000}, {"n_controls": 6}])
def test_time_grows_with_what_is_asked_for(more: dict[str, Any]) -> None:
    assert replace(PROBES, **more).seconds(1e-6, 1e11) > PROBES.seconds(1e-6, 1e11)


@pytest.mark.parametrize(
    "more", [{"n_layers": 26}, {"n_replicates": 50}, {"d_model": 1536}, {"n_classes": 600, "n_replicates": 50}]
)
def test_memory_grows_with_width_layers_classes_and_replicates(more: dict[str, Any]) -> None:
    changed: ProbeCosts = replace(PROBES, **more)
    assert sum(changed.memory().values()) > sum(PROBES.memory().values())


def test_options_say_which_probes_are_trained() -> None:
    probe = ProbeOptions()
    some = ProbeCosts.of_options([0, 6], ["shuffled", "token", "control_task"], 5, True, False, probe)
    assert (some.n_layers, some.n_controls, some.chooses, some.is_adam) == (2, 6, True, False)
    bare = ProbeCosts.of_options([0, 6], [], 0, False, False, replace(probe, l2=1e-2))
    assert bare.n_passes < some.n_passes
    assert ProbeCosts.of_options([0], [], 0, False, False, replace(probe, solver="adam")).is_adam


def test_what_does_not_fit_in_memory_is_refused_with_what_to_do(
    request_of: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = PendingRequest.of(request_of, tmp_path)
    found = CostEstimate([reading], replace(PROBES, n_replicates=500), tmp_path)
    for enough in (None, 10**12):
        monkeypatch.setattr(memory, "memory_bytes", lambda enough=enough: enough)
        found.check_memory()
    monkeypatch.setattr(memory, "memory_bytes", lambda: 24 * 10**9)
    with pytest.raises(UserError, match=r"need about \d+.\d GB of memory and this machine has 24.0 GB; .*--replicates"):
        found.check_memory()
    CostEstimate([reading], PROBES, tmp_path).check_memory()
    monkeypatch.setattr(memory, "memory_bytes", lambda: 10**8)
    with pytest.raises(UserError, match="fewer layers at a time with `--layer`"):
        CostEstimate([reading], replace(PROBES, n_replicates=0, retrains=False), tmp_path).check_memory()


def test_a_busy_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(estimate.os, "getloadavg", lambda: (9.6, 1.0, 1.0), raising=False)
    assert estimate.busy() == " (it takes longer now: the load is 10 on 2 cores)"
    monkeypatch.setattr(estimate.os, "getloadavg", lambda: (1.5, 9.0, 9.0), raising=False)
    assert estimate.busy() == ""


@pytest.mark.parametrize(("seconds", "said"), [(0.2, "1 s"), (89, "89 s"), (600, "10 min"), (7200, "2.0 h")])
def test_durations_are_said_in_two_digits(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_sizes_count_bytes_of_the_dtype(request_of: Request) -> None:
    lengths = np.array([3, 5], dtype=np.int32)
    size = Size.of(lengths, replace(request_of, dtype="bfloat16"))
    width = Blocks.of(request_of_config(request_of)).d_model
    assert (size.n_tokens, size.token_pairs, size.n_bytes) == (8, 34, 8 * 3 * width * 2)
    mlp = Size.of(lengths, replace(request_of, site="mlp"))
    assert mlp.width == Blocks.of(request_of_config(request_of)).d_mlp


@pytest.mark.slow
def test_fit_says_what_a_large_run_takes_and_refuses_one_without_memory(
    checkpoints: dict[str, Path], sentences: list[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    corpus = tmp_path / "text.txt"
    corpus.write_text("".join(f"{sentence}\n" for sentence in sentences[:60]), encoding="utf-8")
    places = ["--cache", str(tmp_path / "cache"), "--runs", str(tmp_path / "runs"), "--wandb.mode=disabled"]
    args = ["fit", "--model", str(checkpoints["bert"]), "--corpus", str(corpus), *places, *BARE_ARGS, "--layer=1"]
    with monkeypatch.context() as small:
        small.setattr(memory, "memory_bytes", lambda: 2**20)
        assert run(COMMANDS, args) == 2
    err = capsys.readouterr().err
    assert "this machine has 0.0 GB" in err
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").glob("*tiny*"))
    assert not list((tmp_path / "cache").glob("*/manifest.jsonl"))  # refused before anything was read
    monkeypatch.setattr(estimate, "LARGE", 0)
    assert run(COMMANDS, [*args, "--name", "a"]) == 0
    said = capsys.readouterr().err
    assert re.search(
        r"about \d+ s with nothing else on this machine.*: .* for 1 reading .* and .* for the probes; 0.0 GB", said
    )
    assert run(COMMANDS, [*args, "--name", "b"]) == 0
    again = capsys.readouterr().err
    assert "activations are cached" in again
    assert "reading" not in again


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_rates_are_of_the_gpu_where_one_is_used(request_of: Request) -> None:
    on_cpu, on_gpu = (Speed.measure(request_of, {"accelerator": name}).rates["widen"] for name in ("cpu", "gpu"))
    assert on_gpu != on_cpu


NAN = math.nan
REASON = "There are no 95% intervals: "


@pytest.fixture(scope="module")
def shown_run(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Run, str]:
    """A run with fewer test sentences than an interval takes, and what the terminal showed of it."""
    from contextlib import redirect_stdout
    from io import StringIO

    place = tmp_path_factory.mktemp("few")
    few = place / "few.txt"
    few.write_text("\n".join(corpus_file.read_text(encoding="utf-8").splitlines()[:120]), encoding="utf-8")
    with redirect_stdout(StringIO()) as shown:
        made = fit(
            model=str(checkpoints["bert"]), corpus=str(few), runs=str(place), name="few", layer="0,2", replicates=0,
            controls="shuffled", evidence="none", task_args={"min_count": 5},
            wandb=WandbOptions(mode="disabled"), probe=ProbeOptions(tolerance=1e-3, l2=1e-4),
        )  # fmt: skip
    assert made is not None
    assert made.results["n_sentences"]["test"] < MIN_SENTENCES
    return made, shown.getvalue()


def test_a_run_on_few_test_sentences_has_empty_cells_in_place_of_intervals(shown_run: tuple[Run, str]) -> None:
    run, _ = shown_run
    with (run.folder / "accuracy.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    columns = [column for column in rows[0] if column.endswith(("_low", "_high"))]
    assert columns == [
        "accuracy_low",
        "accuracy_high",
        "information_low",
        "information_high",
        "above_majority_low",
        "above_majority_high",
        "above_shuffled_low",
        "above_shuffled_high",
    ]
    assert {row[column] for row in rows for column in columns} == {""}
    assert all(math.isnan(row["accuracy_low"]) and math.isnan(row["above_shuffled_high"]) for row in run.accuracy)
    text = (run.folder / "results.json").read_text(encoding="utf-8")
    for row in json.loads(text, parse_constant=pytest.fail)["layers"]:  # NaN is no JSON
        assert row["accuracy_low"] is row["above_shuffled_high"] is None
        assert 0 < row["accuracy"] < 1


def test_terminal_and_report_say_why_there_is_no_interval_and_say_it_once(shown_run: tuple[Run, str]) -> None:
    run, shown = shown_run
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    for text in (shown, page):
        assert text.count(REASON + f"{run.results['n_sentences']['test']} test sentences are too few") == 1
    assert "nan" not in shown.casefold()
    visible = page.partition("<script")[0]
    assert "nan" not in visible.replace("nano", "").casefold()
    assert f"<strong>{run.accuracy[-1]['accuracy']:.3f}</strong> in layer 2" in visible
    assert "compare it with the majority class" in visible
    assert "95% interval" not in visible.replace(REASON, "")


def test_a_line_of_results_and_a_conclusion_leave_the_interval_out(shown_run: tuple[Run, str]) -> None:
    run, _ = shown_run
    row = run.accuracy[0]
    assert f"accuracy {row['accuracy']:.3f}, majority" in result_line(row, run.top(0, 5))
    rows = [{**row, "removed": "", "flag": ""} for row in run.top(0, 16)]
    removed = {"removed": "top", "cross_entropy_without": 0.01}
    assert "loses 0.0100 nats" in conclusion([{**rows[0], **removed}, *rows[1:]], "position")
    assert "nan" not in conclusion([{**rows[0], **removed}, *rows[1:]], "position")
    known = {**removed, "cross_entropy_without_low": 0.005, "cross_entropy_without_high": 0.02}
    assert "loses 0.0100 nats (0.0050 to 0.0200)" in conclusion([{**rows[0], **known}, *rows[1:]], "position")


# --- rows ---


@pytest.mark.parametrize("row", [{}, {"a_low": NAN, "a_high": NAN}, {"a_low": "", "a_high": ""}, {"a_low": None}])
def test_a_row_without_an_interval_has_no_ends_and_no_text(row: dict[str, float]) -> None:
    assert ends(row, "a") is None
    assert interval(row, "a") == ""
    assert in_brackets(interval(row, "a")) == ""
    assert in_brackets(interval(row, "a"), "p = 1") == " (p = 1)"


def test_an_interval_is_found_under_what_it_is_of() -> None:
    row = {"low": 0.0, "high": 1, "gain_low": -0.5, "gain_high": 0.25}
    assert ends(row) == (0, 1)
    assert interval(row, "gain", " to ", "+.1f", 100) == "-50.0 to +25.0"


def test_files_have_empty_cells_where_an_end_is_not_a_number_and_these_are_read_as_such(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"layer": 0, "accuracy_low": NAN, "share": NAN, "flag": ""},
        {"layer": 1, "accuracy_low": 0.5, "share": 1},
    ]
    columns = (Column("layer", int), Column("accuracy_low"), Column("share"), Column("flag", str, may_be_empty=True))
    schema = Schema("a", "a row", columns)
    csv_files.write_csv(tmp_path / "a.csv", rows, schema)
    assert (tmp_path / "a.csv").read_text(encoding="utf-8").splitlines()[1:] == ["0,,nan,", "1,0.5,1,"]
    read = csv_files.read_csv(tmp_path / "a.csv", schema)
    assert [without_nan(row) for row in read] == [
        {"layer": 0, "accuracy_low": None, "share": None, "flag": ""},
        {"layer": 1, "accuracy_low": 0.5, "share": 1, "flag": ""},
    ]


# --- figures ---


def test_error_bars_reach_from_the_values_and_are_left_out_where_nothing_has_an_interval() -> None:
    rows = [{"low": 0.25, "high": 0.75}, {"low": NAN, "high": NAN}]
    assert error_bars(rows[1:], np.array([0.5])) is None
    found = error_bars(rows, np.array([50.0, 50]), times=100)
    assert found is not None
    np.testing.assert_allclose(found, [[25, 0], [25, 0]])


def test_a_chart_draws_bars_only_where_there_are_intervals() -> None:
    line = Line("probe", [0, 1], [0.5, 0.6], [(0.4, 0.6), None])
    (drawn,) = charts_html([Chart("accuracy", "title", [Panel([line])])])
    assert drawn.count('class="bar"') == 1
    assert "0.500 (0.400 to 0.600)" in drawn
    assert "layer 1: 0.600<" in drawn


def test_sentences_of_a_part_without_labels_are_counted(checkpoints: dict[str, Path], corpus_file: Path) -> None:
    sentences = corpus_file.read_text(encoding="utf-8").splitlines()
    lines = []
    for sentence, side in zip(sentences, assign_splits(sentences, 0), strict=True):
        lines += [f"{word}\t{'_' if side == 'validation' else word[0] < 'n'}" for word in sentence.split()] + [""]
    labelled = corpus_file.with_name("without-validation.tsv")
    labelled.write_text("\n".join(lines), encoding="utf-8")
    options: dict[str, Any] = {"corpus": str(labelled), "task": "label", "runs": str(corpus_file.parent)}
    with pytest.raises(UserError, match=r"none of the 22 sentences of the validation part has a token of any class"):
        fit(model=str(checkpoints["bert"]), wandb=WandbOptions(mode="disabled"), quiet=True, **options)


def fitted(folder: Path, checkpoint: Path, sentences: list[str], bias: bool, **options: object) -> probing.Run:
    usual = {
        "layer": [0, 1], "replicates": 2, "cache": str(folder / "cache"), "quiet": True,
        "wandb": probing.WandbOptions("disabled"),
        "probe": probing.ProbeOptions(l2=1e-3, bias=bias), "evidence": "none", "controls": "shuffled",
    }  # fmt: skip
    chosen = {**usual, **options}
    return probing.fit(model=str(checkpoint), corpus=sentences, runs=str(folder), **chosen)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def made(
    checkpoints: dict[str, Path], sentences: list[str], tmp_path_factory: pytest.TempPathFactory
) -> dict[bool, probing.Run]:
    folder = tmp_path_factory.mktemp("bias")
    return {bias: fitted(folder, checkpoints["bert"], sentences, bias, name=f"bias-{bias}") for bias in (False, True)}


@pytest.mark.slow
def test_it_predicts_other_text_as_it_was_tested(made: dict[bool, probing.Run]) -> None:
    run = made[True]
    rows = run.predict(run.test_sentences)
    for layer, accuracy in zip(run.layers, run.accuracy, strict=True):
        own = [row for row in rows if row["layer"] == layer and row["position"] > 0]
        right = sum(row["predicted"] == row["position"] for row in own)
        assert right / accuracy["n_test_tokens"] == pytest.approx(accuracy["accuracy"], abs=1e-6)


@pytest.mark.slow
def test_rankings_with_and_without_it_are_compared(made: dict[bool, probing.Run]) -> None:
    found = probing.compare(
        [made[False], made[True]], quiet=True, runs=str(made[True].folder.parent), null_draws=2,
        wandb=probing.WandbOptions("disabled"),
    )  # fmt: skip
    same = [row for row in found.agreement if row["layer_a"] == row["layer_b"] and row["statistic"] == "overlap"]
    assert [row["value"] >= 0.5 for row in same] == [True, True]


def test_commands_that_read_probes_without_an_intercept_refuse_it(made: dict[bool, probing.Run]) -> None:
    run = made[True]
    with pytest.raises(UserError, match="have an intercept"):
        probing.rank(run)
    with pytest.raises(UserError, match=r"no `probe={.bias.: True}`"):
        probing.ablate(run=run, neurons="ranked")
    with pytest.raises(UserError, match=r"no `probe={.bias.: True}`"):
        probing.ablate(run=run)
    with pytest.raises(UserError, match="have no intercept"):
        probing.hierarchy(probe=probing.ProbeOptions(bias=True))


@pytest.mark.slow
def test_a_transform_and_an_intercept_go_together(
    tmp_path: Path, checkpoints: dict[str, Path], sentences: list[str]
) -> None:
    run = fitted(tmp_path, checkpoints["bert"], sentences, True, transform="clip", name="clipped")
    plain = fitted(tmp_path, checkpoints["bert"], sentences, False, transform="clip", name="plain")
    assert [row["n_clipped"] for row in run.accuracy] == [row["n_clipped"] for row in plain.accuracy]
    rows = run.predict(run.test_sentences)
    right = sum(row["predicted"] == row["position"] for row in rows if row["layer"] == 1 and row["position"] > 0)
    assert right / run.accuracy[1]["n_test_tokens"] == pytest.approx(run.accuracy[1]["accuracy"], abs=1e-6)


@pytest.mark.slow
def test_neurons_are_shown_by_centred_contribution(
    made: dict[bool, probing.Run], tmp_path: Path, checkpoints: dict[str, Path], sentences: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    run = made[False]
    by_centred = run.top(1, 20, by="centred")
    values = [centred_of(row) for row in by_centred]
    assert values == sorted(values, reverse=True)
    assert [row["neuron"] for row in by_centred] != [row["neuron"] for row in run.top(1, 20)]
    again = fitted(tmp_path, checkpoints["bert"], sentences, False, layer=[1], quiet=False, sort="centred", name="A")
    shown = capsys.readouterr().out
    assert "neurons by centred contribution" in shown
    table = shown[shown.index("neurons by centred contribution") :]
    first = again.top(1, 1, by="centred")[0]
    assert f"{first['contribution']:.4f}" in table.splitlines()[4]
