"""The benchmarks' harness on fake commands, comparisons of two checkouts, and benchmarks at toy size."""

from __future__ import annotations

import csv
import importlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import probing
from benchmarks import commands, estimators, floor, growth, null_designs, penalties, scaling
from benchmarks.__main__ import COMPARISONS, main
from benchmarks.checkouts import BEFORE, NOW, Answer, differences, told
from benchmarks.checkouts import main as checkouts_main
from benchmarks.contestants.answers import states
from benchmarks.contestants.files import forget, size
from benchmarks.contestants.stages import name_of
from benchmarks.corpora import BEYOND, larger, sentences, word_labels
from benchmarks.coverage import Quantity, coverage, halves, report
from benchmarks.harness import (
    ROOT,
    BenchmarkError,
    Check,
    Comparison,
    Contestant,
    Met,
    Run,
    Setting,
    interleave,
    measure,
    ratios,
    save,
    slope,
    summarise,
)
from benchmarks.null_designs import DESIGNS, Counted
from benchmarks.report import render
from benchmarks.same_results import CALLS, LAST, PROGRAMS, calls
from benchmarks.same_results import main as results_main
from benchmarks.targets import TARGETS
from conftest import N_LAYERS
from probing import ProbeClassifier
from probing.data.module import token_types
from probing.statistics import accuracy_interval, mean_interval
from probing.text import assign_splits
from synthetic import make_store, make_tokens, positional, sides


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(3, 1, "minilm", None, 1, tmp_path, lambda message: None)


def fake(name: str, tmp_path: Path, code: str = "", seconds: str = "1") -> Contestant:
    """A contestant that notes its turn and prints what it is told to."""
    turns = tmp_path / "turns"
    program = (
        f"import json, pathlib, sys; open({str(turns)!r}, 'a').write({name!r}); {code}\n"
        f"pathlib.Path(sys.argv[1], 'answer').write_text({name!r}); print('chatter'); "
        f"print(json.dumps({{'seconds': {seconds}, 'file': 'no number'}}))"
    )
    return Contestant(name, lambda folder: [sys.executable, "-c", program, str(folder)])


# --- turns ---


def test_contestants_take_turns_and_each_has_an_empty_folder_of_its_own(tmp_path: Path, setting: Setting) -> None:
    found: list[Mapping[str, str]] = []

    def check(answers: Mapping[str, Path]) -> list[Check]:
        found.append({name: (folder / "answer").read_text(encoding="utf-8") for name, folder in answers.items()})
        return [Check("same", 0, 0)]

    # A folder that held something already would fail here.
    empty = "assert not list(pathlib.Path(sys.argv[1]).iterdir())"
    runs, checks = interleave([fake("A", tmp_path, empty), fake("B", tmp_path, empty)], setting, check)
    assert (tmp_path / "turns").read_text(encoding="utf-8") == "ABABAB"
    assert [(run.contestant, run.round) for run in runs] == [("A", 0), ("B", 0), ("A", 1), ("B", 1), ("A", 2), ("B", 2)]
    assert found == [{"A": "A", "B": "B"}]
    assert checks == [Check("same", 0, 0)]
    assert set(runs[0].values) >= {"seconds", "wall_s"}
    assert "file" not in runs[0].values
    assert [path.name for path in tmp_path.iterdir()] == ["turns"]


def test_a_slow_contestant_may_sit_out_later_rounds(tmp_path: Path, setting: Setting) -> None:
    slow = fake("B", tmp_path)
    interleave([fake("A", tmp_path), Contestant("B", slow.command, rounds=1)], setting)
    assert (tmp_path / "turns").read_text(encoding="utf-8") == "ABAA"


@pytest.mark.parametrize("difference", [0.2, math.nan])
def test_no_time_is_told_where_the_answers_differ(difference: float, tmp_path: Path, setting: Setting) -> None:
    with pytest.raises(BenchmarkError, match=r"answers differ: hidden states: (0.2|nan)"):
        interleave([fake("A", tmp_path)], setting, lambda answers: [Check("hidden states", difference, 0.1)])
    assert (tmp_path / "turns").read_text(encoding="utf-8") == "A"
    assert [path.name for path in tmp_path.iterdir()] == ["turns"]


def test_a_contestant_that_fails_is_named_with_what_it_said(tmp_path: Path, setting: Setting) -> None:
    with pytest.raises(BenchmarkError, match=r"(?s)ended with 1.*no such layer"):
        interleave([fake("A", tmp_path, "sys.exit('no such layer')")], setting)
    with pytest.raises(BenchmarkError, match="ended with 0"):
        measure([sys.executable, "-c", "print('no JSON')"])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells how much memory is anonymous")
def test_anonymous_memory_counts_what_is_allocated_and_not_what_is_mapped(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(bytes(200 * 2**20))
    kept = "import json, mmap, time; {}; time.sleep(.3); print(json.dumps({{}}))"
    held = measure([sys.executable, "-c", kept.format("x = bytearray(b'1') * (200 << 20)")])
    read = f"f = open({str(big)!r}, 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); sum(m[::4096])"
    mapped = measure([sys.executable, "-c", kept.format(read)])
    assert 200 < held["peak_anonymous_mb"] < 300
    assert mapped["peak_anonymous_mb"] < 100
    assert mapped["peak_mapped_mb"] > 200 > held["peak_mapped_mb"]


def test_a_benchmark_that_is_told_to_stop_ends_its_contestant_and_leaves_nothing(tmp_path: Path) -> None:
    program = (
        "import sys, benchmarks.startup as s, benchmarks.harness as h; from benchmarks.__main__ import main\n"
        "s.WHAT = {'sleep': ('-c', 'import time; print(1, flush=True); time.sleep(60)')}\n"
        f"main(['startup', '--results', {str(tmp_path)!r}])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", program], env=environment, cwd=ROOT) as process:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob(".work-*/*")) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
    assert list(tmp_path.iterdir()) == []


# --- statistics ---


def of(contestant: str, *seconds: float) -> list[Run]:
    return [Run(contestant, i, {"seconds": value}) for i, value in enumerate(seconds)]


def test_the_summary_has_medians_the_spread_and_both_ratios() -> None:
    # The machine was twice as slow in the last rounds: the paired ratio does not notice.
    runs = of("ours", 1, 1, 2) + of("theirs", 3, 5, 6)
    ours, theirs = summarise(runs, "ours")
    assert ours == {"contestant": "ours", "measure": "seconds", "n": 3, "median": 1, "min": 1, "max": 2}
    assert (theirs["median"], theirs["min"], theirs["max"]) == (5, 3, 6)
    assert theirs["ratio_of_medians"] == 5
    assert theirs["median_of_paired_ratios"] == 3


def test_ratios_pair_only_the_rounds_that_both_ran() -> None:
    assert ratios({0: 2.0, 1: 4.0, 2: 6.0}, {1: 8.0}) == (2.0, 2.0)
    of_medians, paired = ratios({0: 2.0}, {1: 8.0})
    assert of_medians == 4
    assert math.isnan(paired)


def test_the_slope_of_what_grows_with_the_square_is_2() -> None:
    assert slope([10, 100, 1000], [3e2, 3e4, 3e6]) == pytest.approx(2)


# --- tables ---


def test_tables_and_page_show_what_was_measured(tmp_path: Path) -> None:
    runs = of("ours", 1, 2, 3) + of("theirs", 5, 6, 7)
    checks, met = [Check("hidden states", 1e-5, 1e-4)], [Met("help", ".5 s", True), Met("slope", "1.3", False)]
    save(tmp_path, "extraction", Comparison(runs, "ours", checks, met, ["A note."]), {"processor": "abacus"})
    with (tmp_path / "extraction.runs.csv").open(newline="", encoding="utf-8") as file:
        assert [float(row["value"]) for row in csv.DictReader(file)] == [1, 2, 3, 5, 6, 7]
    page = render(tmp_path)
    assert "| theirs | 3 | 6 (5..7) | 3.00 / 3.00 |" in page
    assert "| `python -m probing --help` | under 1 second |  | .5 s | yes |" in page
    assert "| 1.3 | **no** |" in page
    assert page.count("not measured") == len(TARGETS) - 2
    assert "- hidden states: 1e-05 (at most 0.0001)" in page
    assert "A note." in page
    assert "processor abacus" in page
    assert list(tmp_path.glob("*.partial")) == []


def test_one_comparison_measured_again_leaves_the_others_on_the_page(tmp_path: Path) -> None:
    for name, seconds in (("extraction", 1), ("startup", 2), ("extraction", 4)):
        save(tmp_path, name, Comparison(of("ours", seconds)), {})
    page = render(tmp_path)
    assert page.count("| ours |") == 2
    assert "| ours | 1 | 4 |" in page
    assert "| ours | 1 | 2 |" in page


# --- text ---


def test_the_larger_corpus_has_distinct_sentences_and_the_words_that_were_asked_for() -> None:
    made = larger(60_000)
    assert len(set(made)) == len(made)
    n_words = sum(len(text.split()) for text in made)
    assert 60_000 <= n_words < 60_300
    assert made == larger(60_000)
    own = np.mean([len(text.split()) for text in sentences(None)])
    assert n_words / len(made) == pytest.approx(own, rel=0.1)


def test_every_word_has_a_place_that_enough_training_words_share() -> None:
    texts = sentences(300)
    labels, sides = word_labels(texts, seed=1, at_least=20)
    assert sides == assign_splits(texts, 1)
    counts: dict[str, int] = {}
    for text, row, side in zip(texts, labels, sides, strict=True):
        n = len(text.split())
        first = [str(i) for i in range(n)]
        last = row.index(BEYOND) if BEYOND in row else n
        assert row == first[:last] + [BEYOND] * (n - last)
        for label in row if side == "train" else ():
            counts[label] = counts.get(label, 0) + 1
    assert min(n for label, n in counts.items() if label != BEYOND) >= sides.count("train") // 20 > 5
    assert counts[BEYOND] > 0


# --- the floor ---


def test_the_floor_counts_the_products_of_the_blocks_and_of_attention(checkpoints: dict[str, Path]) -> None:
    model = str(checkpoints["bert"])
    sizes = floor.blocks(model)
    matrices, n_blocks = sizes.matrices, sizes.n_blocks
    from transformers import AutoModel

    blocks = AutoModel.from_pretrained(model).encoder.layer
    assert len(blocks) == n_blocks
    assert sum(k * n * times for _, k, n, times in matrices) == sum(
        weight.numel() for weight in blocks[0].parameters() if weight.dim() == 2
    )
    rates = {f"float32_{name}": 1e-9 for name, *_ in matrices}  # one product a second
    d_model = matrices[0][1]
    linear = 2 * 10 * sum(k * n * times for _, k, n, times in matrices)
    expected = n_blocks * (linear + 4 * (36 + 16) * d_model)  # sentences of 6 and 4 tokens
    assert floor.seconds(model, 10, 36 + 16, rates, "float32") == pytest.approx(expected)


def test_bytes_are_counted_in_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name, n in (("x", 10), ("a/y", 5)):
        (tmp_path / name).write_bytes(bytes(n))
    forget(tmp_path)
    assert (size(tmp_path), size(tmp_path / "x")) == (15, 10)
    assert (tmp_path / "x").read_bytes() == bytes(10)


# --- for real ---


@pytest.mark.slow
def test_start_up_is_measured_for_real_and_only_what_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["startup", "--pairs", "1", "--results", str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {
        "README.md", "startup.csv", "startup.runs.csv", "startup.told.csv"
    }  # fmt: skip
    seconds = re.search(
        r"\| `import probing` \| under .2 seconds \|  \| ([\d.]+) s",
        (tmp_path / "README.md").read_text(encoding="utf-8"),
    )
    assert seconds is not None
    assert 0 < float(seconds[1]) < 60
    assert str(tmp_path / "README.md") in capsys.readouterr().out


@pytest.mark.several
def test_extraction_and_a_plain_loop_take_turns_for_real_and_agree(
    checkpoints: dict[str, Path], corpus_file: Path, setting: Setting
) -> None:
    model = str(checkpoints["bert"])
    small = replace(setting, model=model, pairs=1)
    contestants = [
        Contestant("ours", lambda folder: commands.extract(small, corpus_file, folder)),
        Contestant(
            "loop",
            lambda folder: commands.peer(sys.executable, "loops", "sentences", model, corpus_file, folder / "loop.pt"),
        ),
    ]

    def check(answers: Mapping[str, Path]) -> list[Check]:
        entry, file = commands.entry(answers["ours"]), answers["loop"] / "loop.pt"
        found = states(model, str(corpus_file), str(entry), str(file))["loop"]
        stored = sum(path.stat().st_size for path in entry.rglob("*") if path.is_file())
        sizes.append(stored)
        return [Check("hidden states", found, 1e-4)]

    sizes: list[int] = []
    runs, (agreed,) = interleave(contestants, small, check)
    assert 0 < agreed.difference < 1e-4  # not the same arithmetic, so not a comparison with itself
    ours = runs[0].values
    assert sizes == [ours["bytes"]]
    assert ours["n_layers_cached"] == N_LAYERS["bert"] + 1
    assert 0 < ours["seconds"] < ours["wall_s"]
    assert ours["token_pairs"] > ours["n_tokens"] > 2000


def test_amounts_are_read_off_the_options() -> None:
    assert [scaling._amount(value, 6) for value in ("all", "0", "0,1,2", "16")] == [7, 1, 3, 16]


def test_what_is_off_a_line_is_told_as_a_share_of_the_line() -> None:
    assert scaling._off_a_line({0: 1.0, 1: 3.0, 4: 9.0}) < 1e-9
    # The line is .8 + 1.3 k, and the first is the furthest from it in share: 1 where .8 is expected.
    assert scaling._off_a_line({0: 1.0, 1: 2.0, 2: 3.0, 3: 5.0}) == pytest.approx(0.25)


def test_peaks_of_one_contestant_are_compared_with_the_lowest() -> None:
    peaks = {"a": (800.0, 900.0, 840.0), "b": (100.0,)}
    runs = [
        Run(name, i, {"peak_anonymous_mb": peak}) for name, all_of in peaks.items() for i, peak in enumerate(all_of)
    ]
    assert scaling._apart(runs, "a") == pytest.approx(0.125)
    assert scaling._apart(runs, "b") == 0


def test_a_comparison_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["extractoin"])
    assert error.value.code == 2
    assert "extractoin" in capsys.readouterr().err


def test_every_comparison_has_a_module_and_make_bench_runs_them() -> None:
    assert all((ROOT / "benchmarks" / f"{name}.py").exists() for name in COMPARISONS)
    planned = subprocess.run(
        ["make", "-n", "bench", "ARGS=startup"], cwd=ROOT, capture_output=True, encoding="utf-8", check=True
    )
    assert "-m benchmarks startup" in planned.stdout


Change = Callable[[dict[str, str]], None]


def answer(change: Change | None = None) -> Answer:
    """Return tables of one layer of 30 neurons, of which the first was removed."""
    neurons = [
        {
            "layer": "0", "rank": str(i + 1), "neuron": str(i), "contribution": str(1 / (i + 1)),
            "removed": "" if i else "top", "cross_entropy_without": "" if i else "0.02",
            "cross_entropy_without_low": "" if i else "0.01", "cross_entropy_without_high": "" if i else "0.03",
        }
        for i in range(30)
    ]  # fmt: skip
    layer = {"layer": "0", "accuracy": "0.5", "cross_entropy": "1.5", "shuffled_accuracy": "0.04", "flag": ""}
    if change is not None:
        for row in (*neurons, layer):
            change(row)
    return Answer(neurons, [layer])


def broken(change: Change) -> list[str]:
    return [check.what for check in differences(answer(change), answer()) if not check.held]


def checkouts_setting(column: str, value: str, where: str = "0") -> Change:
    def change(row: dict[str, str]) -> None:
        if column in row and row.get("neuron", where) == where:
            row[column] = value

    return change


def test_equal_answers_differ_in_nothing() -> None:
    assert {check.difference for check in differences(answer(), answer())} == {0}


@pytest.mark.parametrize(
    ("change", "begins"),
    [
        (checkouts_setting("contribution", "1.02"), "contribution of the first 20"),
        (checkouts_setting("accuracy", "0.502"), "accuracy"),
        (checkouts_setting("cross_entropy", "1.501"), "cross_entropy"),
        (checkouts_setting("shuffled_accuracy", "0.044"), "shuffled_accuracy"),
        (checkouts_setting("cross_entropy_without", "0.031"), "cross_entropy_without"),
        (checkouts_setting("cross_entropy_without_high", "0.036"), "width of that interval"),
    ],
)
def test_a_difference_beyond_what_is_allowed_is_named(change: Change, begins: str) -> None:
    (found,) = broken(change)
    assert found.startswith(begins)


def test_a_removal_may_differ_within_its_interval() -> None:
    assert broken(checkouts_setting("cross_entropy_without", "0.024")) == []


def test_other_neurons_at_the_top_are_counted() -> None:
    def reversed_order(row: dict[str, str]) -> None:
        if "rank" in row:
            row["rank"] = str(31 - int(row["rank"]))

    (found,) = [c for c in differences(answer(reversed_order), answer()) if "only one has" in c.what]
    assert found.difference == 10
    assert not found.held


def test_ratios_are_those_of_each_pair() -> None:
    times = {BEFORE: [10.0, 30.0, 20.0], NOW: [5.0, 10.0, 20.0]}
    runs = [Run(name, i, {"seconds": t, "processor_s": 2 * t}) for name in times for i, t in enumerate(times[name])]
    wall, processor = told(runs)
    assert wall.startswith("wall time: before 20.0 s, now 10.0 s")
    assert wall.endswith("of 3 pairs: least 1.00, median 2.00, largest 3.00")
    assert processor.startswith("processor time: before 40.0 s, now 20.0 s")


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        checkouts_main([str(tmp_path)])
    assert f"{tmp_path} is no checkout" in capsys.readouterr().err


def write(place: Path, table: str = "accuracy", column: str = "accuracy", value: str = "0.5", time: int = 1) -> None:
    """Write the results of a run, as a checkout leaves them."""
    run = place / "runs" / "position"
    run.mkdir(parents=True)
    (run / f"{table}.csv").write_text(f"layer,{column}\n0,{value}\n", encoding="utf-8")
    (run / "results.json").write_text(json.dumps({"kind": "x", "timings": {"total_s": time}}), encoding="utf-8")
    (place / "position-fit.txt").write_text(f"The {column} is {value}. Done in {time} s\n", encoding="utf-8")
    (place / "public_names.list").write_text(f"fit --layer\nfit: {table}.csv {column}\n", encoding="utf-8")


def test_equal_results_differ_in_nothing_but_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "before")
    write(tmp_path / "after", time=2)
    assert results_main(["compare", str(tmp_path), "before", "after"]) == 0
    assert "0 of 3 files differ" in (shown := capsys.readouterr().out)
    assert "1 of 1 tables compared" in shown


def test_a_changed_number_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "before")
    write(tmp_path / "after", value="0.5000001")
    assert results_main(["compare", str(tmp_path), "before", "after"]) == 2
    assert "+0,0.5000001" in capsys.readouterr().out


def test_a_table_that_no_call_wrote_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for label in ("before", "after"):
        write(tmp_path / label)
    names = tmp_path / "after" / "public_names.list"
    names.write_text(names.read_text(encoding="utf-8") + "rank: evaluation.csv k\n", encoding="utf-8")
    assert results_main(["compare", str(tmp_path), "before", "after"]) == 1
    assert "1 of 2 tables compared, not rank: evaluation" in capsys.readouterr().out


def test_renamed_tables_and_columns_are_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "before")
    write(tmp_path / "after", table="scores", column="test_accuracy")
    renames = tmp_path / "renames.json"
    renames.write_text(json.dumps({"columns": {"accuracy": "test_accuracy"}, "texts": {}}), encoding="utf-8")
    # The table's file still has its old name, which is the same word as the column's.
    assert results_main(["compare", str(tmp_path), "before", "after", "--renames", str(renames)]) > 0
    capsys.readouterr()
    (tmp_path / "before" / "runs" / "position" / "accuracy.csv").rename(
        tmp_path / "before" / "runs" / "position" / "quality.csv"
    )
    renames.write_text(
        json.dumps({"tables": {"quality": "scores"}, "columns": {"accuracy": "test_accuracy"}}), encoding="utf-8"
    )
    assert results_main(["compare", str(tmp_path), "before", "after", "--renames", str(renames)]) == 0


def test_commands_and_options_are_called_by_their_new_names() -> None:
    (call,) = (call for call in calls(CALLS) if call.name == "disabled")
    new = call.arguments({"commands": {"ablate": "cut_out"}, "options": {"--units": "--what", "--prune": "--cut"}})
    assert new[:3] == ["-m", "probing", "cut_out"]
    assert "--cut" in new
    assert "--prune" not in new


def test_every_call_has_its_name_once_and_every_program_is_called() -> None:
    names = [call.name for call in (*calls(CALLS), *calls(LAST)) if call.name != "-"]
    assert len(names) == len({*names})
    assert {call.name for call in (*calls(CALLS), *calls(LAST)) if call.words == ["python"]} == {*PROGRAMS}


SIZES = (30_000, 100_000, 1_000_000)


def row(n: int) -> dict[str, float]:
    """Probes in proportion to n^1.2, everything else to n; memory of 500 MB and 200 MB for each million tokens."""
    values = dict.fromkeys(growth.COLUMNS, n / 1e6)
    memory = {column: 500 + 2e-4 * n for column in growth.COLUMNS if "peak" in column}
    return {**values, **memory, "n_tokens": n, "probes.processor_s": (n / 1e6) ** 1.2}


@pytest.fixture
def rows() -> list[Mapping[str, float]]:
    return [row(n) for n in SIZES]


@pytest.mark.parametrize(
    ("column", "slope", "far"),
    [
        ("cache_mb", 1, 100),
        ("probes.processor_s", 1.2, 100**1.2),
        ("processor_s", 1, 4 * 100 + 100**1.2),
        ("peak_anonymous_mb", 0.129, 20_500),
    ],
)
def test_times_go_on_by_their_slope_memory_by_a_line_and_the_whole_by_its_stages(
    rows: list[Mapping[str, float]], column: str, slope: float, far: float
) -> None:
    found = growth.trend(rows, column)
    assert found.slope == pytest.approx(slope, abs=1e-3)
    assert found.far == pytest.approx(far, rel=1e-6)


def test_a_single_size_is_not_continued(rows: list[Mapping[str, float]]) -> None:
    assert math.isnan(growth.trend(rows[-1:], "cache_mb").far)


def test_the_table_is_drawn_again_without_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table, figure = tmp_path / "growth.csv", tmp_path / "growth.png"
    growth.write_csv(table, growth.COLUMNS, [row(n) for n in SIZES])
    monkeypatch.setattr(sys, "argv", ["growth", "--tokens", "", "--table", str(table), "--figure", str(figure)])
    assert growth.main() == 0
    assert figure.is_file()
    assert "| probes.processor_s | 0.0149 | 0.0631 | 1 | 1.20 | 251 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        ("hidden states of layers 0 to 2", "hidden states"), ("probes of layer 3", "probes"),
        ("probes of 2 layers", "probes"), ("probes of 4 controls", "controls"),
        ("layer 0: without a neuron", "without a neuron"), ("tables, figures and page", "tables"),
        ("libraries", "start"), ("tokens on which neurons are highest and lowest", "evidence"),
    ],
)  # fmt: skip
def test_a_stage_has_the_same_name_for_any_number_of_layers(stage: str, name: str) -> None:
    assert name_of(stage) == name


@pytest.mark.slow
def test_a_small_text_has_time_and_memory_of_every_stage(tmp_path: Path) -> None:
    n_tokens = 5000
    found = growth.measured(growth.write_model(tmp_path / "model"), n_tokens, tmp_path)
    assert found["n_tokens"] == pytest.approx(n_tokens, rel=0.2)
    assert all(found[f"{stage}.processor_s"] > 0 for stage in growth.STAGES)
    assert found["processor_s"] == pytest.approx(
        sum(found[f"{stage}.processor_s"] for stage in growth.STAGES), rel=0.05
    )
    # Three layers of 128 float32, and the table of the tokens.
    assert found["cache_mb"] * 2**20 == pytest.approx(found["n_tokens"] * 3 * 128 * 4, rel=0.05)


@pytest.mark.slow
def test_made_up_rows_of_some_classes_have_time_and_memory_of_every_stage(tmp_path: Path) -> None:
    from benchmarks.classes import STAGES

    found = measure(commands.stages("classes", 5, 1000, 16, tmp_path))
    assert all(found[f"{stage}.{what}"] > 0 for stage in STAGES for what in ("processor_s", "peak_anonymous_mb"))


def test_intervals_contain_the_truth_about_as_often_as_they_say() -> None:
    generator = np.random.default_rng(0)
    n_tokens = generator.integers(5, 40, 500)
    # An accuracy that differs between sentences, and nats that are skewed.
    right = generator.binomial(n_tokens, generator.beta(3, 5, 500)).astype(np.float64)
    nats = n_tokens * generator.gamma(2.0, 0.5, 500)
    for name, interval, sums in (("accuracy", accuracy_interval, right), ("nats", mean_interval, nats)):
        quantity = Quantity(name, interval, sums)
        for n_sentences in (20, 100):
            now, before = coverage(quantity, n_tokens, n_sentences, 500, seed=0)
            # The standard error of a share of .95 in 500 samples is .01; four of them.
            assert 0.91 < now <= 1
            assert before < now + 0.02


def test_the_table_has_both_intervals_for_each_number_of_sentences() -> None:
    shown = report({"accuracy": {20: (0.95, 0.9), 50: (0.99, 0.93)}}, {"accuracy": 0.5})
    assert "| accuracy | 0.5000 | 95.0% (90.0%) | 99.0% (93.0%) |" in shown
    assert "1 of 2 cells are within 92% to 98%" in shown


def test_half_of_the_sentences_are_tested_on() -> None:
    drawn = halves(2000, 0)
    assert abs(drawn.count("test") - 1000) < 100
    assert {*drawn} == {"train", "validation", "test"}


def test_little_is_lost_by_the_path(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    x, y = estimators.planted(300, 6, 3, 3.0, 0)
    monkeypatch.setattr(estimators, "data_sets", lambda: iter([("toy", x, y)]))
    monkeypatch.setattr(estimators, "GRID", estimators.GRID[:13])  # to 1e-4, where probes are soon at their optimum
    estimators.print_choices()
    head, line, toy, *diabetes = capsys.readouterr().out.splitlines()
    assert head.count("|") == line.count("|") == toy.count("|") == 6
    _, name, auto, search, lost, _, _ = (cell.strip() for cell in toy.split("|"))
    assert name == "toy"
    assert 0 <= float(lost) < 2e-3  # below what the path takes for no gain
    assert 1e-4 <= float(search) <= 100
    assert float(auto) <= 100
    assert len(diabetes) == 3


def test_the_gap_is_the_one_that_the_probe_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("N_ROWS", 400), ("WIDTH", 8), ("N_CLASSES", 3), ("L2", 1e-3)):
        monkeypatch.setattr(estimators, name, value)
    x, y = estimators.correlated()
    sd = x.std(0, dtype=np.float64)
    probe = ProbeClassifier(l2=1e-3, tolerance=1e-4).fit(x, y)
    assert estimators.gap(probe.coef_ * sd, x / sd, y) == pytest.approx(probe.gap_, rel=0.01)
    estimators.print_times()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| Probe", "| Logistic"))]
    assert len(rows) == 4
    assert float(rows[0].split("|")[4]) <= 3e-6


@pytest.mark.parametrize("name", DESIGNS)
def test_every_design_has_rows_of_whole_groups_and_of_several_classes(name: str) -> None:
    rows = DESIGNS[name].draw(np.random.default_rng(0), 1)
    assert rows.neurons.shape == (len(rows.labels), null_designs.N_NEURONS)
    assert len(np.unique(rows.labels)) > 1
    assert rows.groups is None or (np.diff(rows.groups) >= 0).all()
    again = DESIGNS[name].draw(np.random.default_rng(0), 1)
    np.testing.assert_array_equal(rows.neurons, again.neurons)


def test_a_line_counts_what_a_run_claims() -> None:
    design, counted = DESIGNS["planted, constant"], Counted()
    generator = np.random.default_rng(0)
    rows, unseen = design.draw(generator, 1), design.draw(generator, 2)
    run = probing.probe(
        rows.neurons.astype(np.float32), rows.labels, groups=rows.groups, quiet=True, replicates=0, evidence="none"
    )
    counted.add(run, design, unseen)
    assert len(counted.p_values[0]) == null_designs.N_NEURONS - 1
    assert counted.found == [True]
    assert counted.excluded == [False]
    assert counted.line("x").count("|") == null_designs.HEADING.count("|")


def test_a_flipped_row_is_one_row() -> None:
    def mixed(name: str) -> int:
        rows = DESIGNS[name].draw(np.random.default_rng(0), 1)
        assert rows.groups is not None
        return sum(len(np.unique(rows.labels[rows.groups == g])) > 1 for g in np.unique(rows.groups))

    assert [mixed(name) for name in ("constant", "one flipped", "each flipped")] == [0, 1, 300]


@pytest.fixture(scope="module")
def null_runs() -> ModuleType:
    return importlib.import_module("benchmarks.null_runs")


def test_planted_neurons_are_told_for_what_they_are(null_runs: ModuleType, tmp_path: Path) -> None:
    tokens = make_tokens(np.random.default_rng(0).integers(6, 14, 300).tolist())
    data = sides(make_store(tmp_path / "store", [positional(tokens, 20, 0.3)], tokens, shard_tokens=1000))
    answers = list(null_runs.runs(data, 0, 4, seed=0))
    assert len(answers) == 4
    for answer in answers:
        assert set(answer.yes) == set(null_runs.QUESTIONS)
        assert answer.yes["signal"]
        assert answer.yes["constant"]
        assert answer.yes["strength_0.2"]
        assert answer.rank <= 10
        assert answer.n_live == 20
    # Of 16 a sixth is expected to be missed, at a false discovery rate of 1%.
    assert sum(answer.yes[kind] for answer in answers for kind in ("noise", "sentence", "length", "shuffled")) >= 14
    assert sum(answer.yes["strength_0.0002"] for answer in answers) <= 1  # of 2,000 tokens it takes more
    assert sum(answer.false_alarms for answer in answers) <= 1  # in 99% of runs there are none
    shown = null_runs.report(answers)
    assert "without a flag | 4 | 4 | 1.000 | 0.398 to 1.000 |" in shown  # .025 ** (1 / 4) = .398
    assert f"ranked {min(a.rank for a in answers)} to" in shown
    assert f"{sum(a.false_alarms for a in answers)} of 80 real neurons" in shown


def test_the_same_neurons_are_flagged_no_signal_once_labels_are_permuted(null_runs: ModuleType, tmp_path: Path) -> None:
    tokens = make_tokens(np.random.default_rng(0).integers(6, 14, 300).tolist())
    data = sides(make_store(tmp_path / "store", [positional(tokens, 20, 3.0)], tokens, shard_tokens=1000))
    (answer,) = null_runs.runs(data, 0, 1, seed=0)
    assert answer.false_alarms == 0  # of 20 that position explains to nine tenths
    assert answer.n_live == 20


def test_planted_neurons_are_explained_as_much_as_they_say(null_runs: ModuleType) -> None:
    tokens = make_tokens([12] * 2000)
    columns = null_runs.planted_neurons(tokens, np.random.default_rng(0))
    assert list(columns)[null_runs.N_SEEN - 1] == "constant"
    assert list(columns)[null_runs.N_SEEN] == "strength_0.0002"
    for kind, expected in (("signal", 0.5), ("strength_0.2", 0.2), ("noise", 0.0)):
        values = columns[kind]
        means = np.array([values[tokens.positions == p].mean() for p in range(12)])
        assert means.var() / values.var() == pytest.approx(expected, abs=0.02)
    sentence = columns["sentence"].reshape(2000, 12)
    assert (sentence == sentence[:, :1]).all()
    assert columns["constant"].mean() == pytest.approx(10, abs=0.02)


@pytest.fixture(scope="module")
def null_tasks() -> ModuleType:
    return importlib.import_module("benchmarks.null_tasks")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["token", "word_type"])
def test_random_tasks_agree_where_scores_are_exchanged_and_not_beyond_shuffled_labels(
    null_tasks: ModuleType, tmp_path: Path, kind: str
) -> None:
    # Neurons whose means are far from 0 serve as the intercept of any probe.
    tokens = make_tokens([9] * 80)
    states = np.random.default_rng(0).standard_normal((2, tokens.n_tokens, 30)) + np.geomspace(0.05, 20, 30)
    data = sides(make_store(tmp_path / "store", list(states), tokens))
    found = list(null_tasks.pairs(data, [0, 1], kind, 3, 4, 19, seed=0, l2=1e-2))
    assert len(found) == 4
    p_values, exchanged = (
        np.array([getattr(one, what)[name] for one in found for name in ("overlap", "spearman")])
        for what in ("p_values", "exchanged")
    )
    assert p_values.shape == (8, 4)  # pairs of layers
    assert np.mean(exchanged <= 0.05) > 0.3
    assert np.mean(p_values <= 0.05) < 0.2
    for one in found:
        assert (one.corrected["spearman"] >= one.p_values["spearman"]).all()
        assert one.common.chance is not None
    shown = null_tasks.report(found, kind, 3)
    assert f"| 3 by {kind.replace('_', ' ')} | overlap | " in shown
    assert " of 4 |" in shown


def test_a_class_is_drawn_for_each_token_or_for_each_type(null_tasks: ModuleType, tmp_path: Path) -> None:
    tokens = make_tokens([9] * 80)
    data = sides(make_store(tmp_path / "store", [np.ones((tokens.n_tokens, 2))], tokens))
    types = token_types(tokens)
    for kind, mixed in (("token", True), ("word_type", False)):
        task = null_tasks.random_task(data, kind, 4, seed=1)  # tokens were drawn from seed 0
        labels = np.maximum(np.maximum(task.train.labels, task.validation.labels), task.test.labels)
        own = {(int(t), int(y)) for t, y in zip(types, labels, strict=True) if y >= 0}
        assert (len(own) > len({t for t, _ in own})) == mixed
        assert {y for _, y in own} == {0, 1, 2, 3}
        assert task.classes.tolist() == [0, 1, 2, 3]


def test_a_row_a_layer_compares_the_fixed_penalty_with_the_chosen_one(tmp_path: Path) -> None:
    tokens = make_tokens(np.random.default_rng(0).integers(6, 9, 80).tolist())
    states = [positional(tokens, 32, 1.0), positional(tokens, 32, 0.2, seed=1)]
    data = sides(make_store(tmp_path / "store", states, tokens))
    rows = penalties.compare(data, [0, 1], 80, 1e-4, seed=0)
    assert [row.layer for row in rows] == [0, 1]
    assert rows[1].cross_entropy[1] < rows[1].cross_entropy[0]  # faint, and few tokens for the width
    for row in rows:
        assert row.cross_entropy[1] < row.prior + 0.05
        assert all(-1 <= value <= 1 for value in (*row.overlap, *row.spearman))
    assert rows[0].l2 == rows[1].l2 > 1e-4
    assert penalties.report(rows, 1e-4).count("\n| 80 |") == 2


def test_halves_share_no_sentence_and_leave_none_out(tmp_path: Path) -> None:
    tokens = make_tokens([8] * 30)
    data = sides(make_store(tmp_path / "store", [positional(tokens, 4, 1.0)], tokens))
    one, other = penalties.halves(data, 0).bool()
    assert not (one & other).any()
    assert (one | other).nonzero().squeeze(1).tolist() == data.train.sentences().tolist()
