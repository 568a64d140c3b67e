"""The benchmarks' harness on fake commands, and two real comparisons at toy size."""

from __future__ import annotations

import csv
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import commands, floor, scaling
from benchmarks.__main__ import COMPARISONS, main
from benchmarks.contestants.answers import states
from benchmarks.contestants.files import forget, size
from benchmarks.corpora import BEYOND, larger, sentences, word_labels
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
from benchmarks.report import render
from benchmarks.targets import TARGETS
from conftest import N_LAYERS
from probing.corpus.splits import assign_splits


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
