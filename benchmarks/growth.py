"""What grows with the tokens of a text: processor time of each stage, memory and disk, measured and continued.

    python -m benchmarks.growth --tokens 30000,100000,300000,1000000,2000000       # 2 hours, 4 GB of disk
    python -m benchmarks.growth --tokens ""                                        # draws the file again

`fit` of the position, from text to tables, without controls, bootstraps and retraining, on a randomly initialised BERT
of two blocks and 128 neurons with the built-in tokenizer. Each size is measured once, in a process of its own with one
thread, and added to the table; the figure shows all rows of the table, and the lines through them up to 100 million.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks import commands
from benchmarks.corpora import larger, write_text
from benchmarks.harness import measure, read_csv, slope, write_csv
from benchmarks.scaling import TOKENS_PER_WORD
from probing.tables.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OPTIONS = ("--replicates", "0", "--controls", "none", "--evidence", "none", "--quiet", "--wandb.mode", "disabled")
# Stages in the order of a command, and `start`, which is everything between them, such as reading the text.
STAGES = {"start": GREY, "hidden states": BLUE, "probes": ORANGE, "evidence": GREEN, "tables": PURPLE}
COLUMNS = (
    "n_tokens", "processor_s", *(f"{stage}.processor_s" for stage in STAGES), "peak_anonymous_mb",
    *(f"{stage}.peak_anonymous_mb" for stage in STAGES), "cache_mb", "run_mb",
)  # fmt: skip
# Slopes are taken from this size on: below it, what does not grow with tokens is most of the time.
LINE_FROM = 90_000
# Tokens up to which the lines are continued.
FAR = 100_000_000
Rows = Sequence[Mapping[str, float]]


def write_model(folder: Path) -> Path:
    """Save the model: a randomly initialised BERT of two blocks and 128 neurons."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    tokenizer = AutoTokenizer.from_pretrained(commands.model_folder("minilm"))
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
    BertModel(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def measured(model: Path, n_tokens: int, work: Path) -> dict[str, float]:
    """Return what `fit` on a text of about so many tokens takes, a row of the table."""
    corpus = write_text(work / "text.txt", larger(int(n_tokens / TOKENS_PER_WORD)))
    places = ("--cache", str(work / "cache"), "--runs", str(work / "runs"), "--name", "run")
    asked = ("--model", str(model), "--corpus", str(corpus), "--layer", "all")
    found = measure(commands.stages("command", "fit", *asked, *places, *OPTIONS))
    return {name: found.get(name, 0.0) for name in COLUMNS}


class Trend(NamedTuple):
    """How a column grows from `LINE_FROM` tokens on, and what it comes to at `FAR`.

    Args:
        slope: Log-log slope.
        far: Where its line ends.
    """

    slope: float
    far: float


def trend(rows: Rows, column: str) -> Trend:
    """Continue a column of the table.

    Times and disk go on along the least-squares line of logarithms, moved through the last row; all stages take
    the sum of each. Memory, most of which is there without any token, goes on along a straight line of tokens.
    """
    used = [row for row in rows if row["n_tokens"] >= LINE_FROM]
    x, y = ([row[name] for row in used] for name in ("n_tokens", column))
    if len(used) < 2 or min(y) <= 0:
        return Trend(math.nan, math.nan)
    grown = slope(x, y)
    if column.endswith("_mb") and "peak" in column:
        return Trend(grown, float(np.polyval(np.polyfit(x, y, 1), FAR)))
    if column == "processor_s":
        return Trend(grown, sum(trend(rows, f"{stage}.{column}").far for stage in STAGES))
    return Trend(grown, y[-1] * (FAR / x[-1]) ** grown)


def draw(figure: Figure, rows: Rows) -> None:
    """Draw time by stage, memory and disk against tokens; what is not measured is dashed.

    Args:
        figure: An empty figure.
        rows: Rows of the table, by number of tokens.
    """
    figure.set_size_inches(10.5, 3.6)
    time, memory, disk = figure.subplots(1, 3)
    _line(time, rows, "processor_s", "black", "all", 1 / 3600)
    for stage, colour in STAGES.items():
        _line(time, rows, f"{stage}.processor_s", colour, stage, 1 / 3600)
    time.set_ylabel("processor time (hours, one thread)")
    _line(memory, rows, "peak_anonymous_mb", "black", "all", 1 / 1024)
    memory.set_ylabel("peak anonymous memory (GiB)")
    _line(disk, rows, "cache_mb", BLUE, "hidden states", 1 / 1024)
    _line(disk, rows, "run_mb", PURPLE, "run", 1 / 1024)
    disk.set_ylabel("disk (GiB)")
    for axes in (time, memory, disk):
        axes.set(xscale="log", yscale="log", xlabel="tokens")
        axes.axvline(max(row["n_tokens"] for row in rows), color=GREY, linewidth=0.6, linestyle=":", zorder=0)
    for axes in (time, disk):
        axes.legend(fontsize=7)


def _line(axes: Axes, rows: Rows, column: str, colour: str, label: str, times: float) -> None:
    x, y = ([row[name] for row in rows] for name in ("n_tokens", column))
    axes.plot(x, times * np.array(y), "o-", color=colour, label=label, markersize=4, linewidth=1.2)
    far = trend(rows, column).far
    if math.isfinite(far):
        tokens = np.geomspace(x[-1], FAR, 50)
        # A straight line of tokens, as of memory, is a curve where both axes are logarithmic.
        is_straight = column.endswith("peak_anonymous_mb")
        ends = [y[-1], far]
        on = np.interp(tokens, [x[-1], FAR], ends) if is_straight else np.geomspace(*ends, len(tokens))
        axes.plot(tokens, times * on, "--", color=colour, linewidth=1.0)


def told(rows: Rows) -> list[str]:
    """Return the table in Markdown: each column at each size and, continued, at 100 million, and its slope."""
    sizes = [f"{row['n_tokens']:,.0f}" for row in rows]
    lines = [f"| | {' | '.join(sizes)} | slope | {FAR:,} |", f"|{'---|' * (len(rows) + 3)}"]
    for column in COLUMNS[1:]:
        grown, far = trend(rows, column)
        values = " | ".join(_number(row[column]) for row in rows)
        lines.append(f"| {column} | {values} | {grown:.2f} | {_number(far)} |")
    return lines


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def read(table: Path) -> list[dict[str, Any]]:
    """Return the rows of a table that may not be there yet, as numbers, by number of tokens."""
    rows = read_csv(table) if table.is_file() else []
    return sorted(
        ({name: float(value) for name, value in row.items()} for row in rows), key=lambda row: row["n_tokens"]
    )


def main() -> int:
    """Measure what is asked for, one size after the other; write the table and the figure."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tokens", default="30000,100000,300000,1000000", help="numbers of tokens; none draws alone")
    options.add_argument("--table", type=Path, default=Path("docs/notes/growth.csv"))
    options.add_argument("--figure", type=Path, default=Path("docs/figures/growth.png"))
    options.add_argument("--work", type=Path, help="folder for the cache, on a disk with room for it")
    given = options.parse_args()
    for n_tokens in map(int, filter(None, given.tokens.split(","))):
        with tempfile.TemporaryDirectory(dir=given.work) as work:
            row = measured(write_model(Path(work) / "model"), n_tokens, Path(work))
        rows = [*read(given.table), row]
        write_csv(given.table, COLUMNS, sorted(rows, key=lambda one: one["n_tokens"]))
        print(f"{row['n_tokens']:,.0f} tokens: {row['processor_s']:.0f} s of processor time", flush=True)
    rows = read(given.table)
    with drawing(given.figure, ["png"]) as figure:
        draw(figure, rows)
    print("\n".join(told(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
