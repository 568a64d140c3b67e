"""Render one Markdown page from the tables of all comparisons made so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.harness import read_csv
from benchmarks.targets import TARGETS

# Measures shown on the page, in order, with their headings; the CSV files have all measures.
SHOWN = {
    "seconds": "seconds",
    "wall_s": "whole process, s",
    "tokens_per_s": "tokens/s",
    "million_rows_per_s": "million rows/s",
    "bytes": "MB on disk",
    "peak_anonymous_mb": "peak anonymous MiB",
    "share_of_floor": "share of the rate of its products",
    "share_of_disk_rate": "share of the disk's rate",
    "extract_s": "extraction, s",
    "probe_s": "probe, s",
    "evidence_s": "evidence, s",
    "train_cross_entropy": "training cross-entropy",
    "test_cross_entropy": "test cross-entropy",
    "objective": "objective",
    "mean_accuracy": "mean accuracy",
    "n_tokens": "tokens",
}
# Measures for which the ratio to the reference is shown as well.
COMPARED = ("seconds", "wall_s")
# Contestants with fewer shown measures than this measure the machine or do many jobs; all their measures are listed.
LISTED_BELOW = 3


def render(results: Path) -> str:
    """Return the page: targets, then each comparison with its checks, notes, machine and date."""
    names = sorted(path.name.removesuffix(".told.csv") for path in results.glob("*.told.csv"))
    told = {name: read_csv(results / f"{name}.told.csv") for name in names}
    lines = [
        "# Measured",
        "",
        "Written by `make bench`. Medians over rounds in which the contestants took turns, each in a process of its",
        "own, with the smallest and the largest in brackets; *times* is the ratio of the medians to the reference's,",
        "after the slash the median of the ratios within a round. Every run is in the `.runs.csv` files beside it.",
        "",
        *_targets(told),
    ]
    for name in names:
        lines += ["", f"## {name.replace('_', ' ').capitalize()}", "", *_comparison(results, name, told[name])]
    return "\n".join(lines) + "\n"


def _targets(told: Mapping[str, Sequence[Mapping[str, str]]]) -> list[str]:
    found = {row["key"]: row for rows in told.values() for row in rows if row["kind"] == "target"}
    lines = ["| target | must | aim | measured | met |", "|---|---|---|---|---|"]
    for key, target in TARGETS.items():
        row = found.get(key, {"text": "not measured", "bound": ""})
        met = {"True": "yes", "False": "**no**"}.get(row["bound"], "")
        lines.append(f"| {target.what} | {target.must} | {target.aim} | {row['text']} | {met} |")
    return lines


def _comparison(results: Path, name: str, told: Sequence[Mapping[str, str]]) -> list[str]:
    rows = read_csv(results / f"{name}.csv")
    contestants = list(dict.fromkeys(row["contestant"] for row in rows))
    cells = {(row["contestant"], row["measure"]): row for row in rows}
    shown = [measure for measure in SHOWN if sum((c, measure) in cells for c in contestants)]
    heads, table = ["", "n"], []
    for measure in shown:
        heads += [SHOWN[measure], "times"] if measure in COMPARED and _has_ratio(rows, measure) else [SHOWN[measure]]
    for contestant in contestants:
        own = [cells.get((contestant, measure)) for measure in shown]
        line = [contestant, max(row["n"] for row in rows if row["contestant"] == contestant)]
        for measure, row in zip(shown, own, strict=True):
            line.append(_spread(measure, row) if row else "")
            if measure in COMPARED and _has_ratio(rows, measure):
                line.append(_times(row) if row and row["ratio_of_medians"] else "")
        table.append(line)
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(f"| {' | '.join(line)} |" for line in table)]
    others = [row for row in rows if row["measure"] not in SHOWN and "." not in row["measure"]]
    for contestant in contestants:
        if sum((contestant, measure) in cells for measure in shown) < LISTED_BELOW:
            more = [f"{row['measure']} {_number(row['median'])}" for row in others if row["contestant"] == contestant]
            if more:
                lines += ["", f"{contestant}: {', '.join(more)}."]
    lines += _lines(told)
    return lines


def _lines(told: Sequence[Mapping[str, str]]) -> list[str]:
    lines: list[str] = []
    for row in told:
        if row["kind"] == "note":
            lines += ["", row["text"]]
    if checks := [row for row in told if row["kind"] == "check"]:
        lines += ["", "Answers, compared before times:", ""]
        lines += [f"- {row['key']}: {row['text']} (at most {row['bound']})" for row in checks]
    context = [f"{row['key']} {row['text']}" for row in told if row["kind"] == "context"]
    return [*lines, "", f"*{'; '.join(context)}.*"]


def _has_ratio(rows: Sequence[Mapping[str, str]], measure: str) -> bool:
    return any(row["measure"] == measure and row["ratio_of_medians"] for row in rows)


def _times(row: Mapping[str, str]) -> str:
    return f"{float(row['ratio_of_medians']):.2f} / {float(row['median_of_paired_ratios']):.2f}"


def _spread(measure: str, row: Mapping[str, str]) -> str:
    scale = 1e-6 if measure == "bytes" else 1.0
    median, low, high = (_number(float(row[name]) * scale) for name in ("median", "min", "max"))
    return median if low == high else f"{median} ({low}..{high})"


def _number(value: str | float) -> str:
    """Return a number with three significant digits, or without decimals if it is 100 or more."""
    value = float(value)
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
