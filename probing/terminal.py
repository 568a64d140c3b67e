"""What a person sees while and after a command runs."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from probing.distributed import is_main_process
from probing.runs import BELOW_RESOLUTION, controls_of

Row = Mapping[str, Any]

# Width of tables where the output is no terminal.
PLAIN_WIDTH = 110


def say(message: str) -> None:
    """Print a one-line message beside the results, on standard error; of several ranks the first speaks."""
    if is_main_process():
        print(message, file=sys.stderr, flush=True)


def silence(message: str) -> None:
    """Print nothing."""


def result_line(row: Row, top: Sequence[Row]) -> str:
    """Return a layer's result in one line, for --quiet."""
    interval = f"{row['accuracy_low']:.3f} to {row['accuracy_high']:.3f}"
    return (
        f"layer {row['layer']}: accuracy {row['accuracy']:.3f} ({interval}), majority {row['majority_accuracy']:.3f}, "
        f"gap {row['optimality_gap']:.1e} nats, top neurons {', '.join(str(n['neuron']) for n in top)}"
    )


def accuracy_table(rows: Sequence[Row]) -> Any:
    """Return the accuracies by layer as a rich table."""
    table = plain_table("Test accuracy by layer")
    optional = {
        "within 1": ("within_one", ".3f"),
        "error": ("mean_absolute_error", ".2f"),
        "compression": ("compression", ".1f"),
    }
    shown = {heading: how for heading, how in optional.items() if how[0] in rows[0]}
    for heading in ("layer", "accuracy", "95% range", "majority", *shown, "nats", "gap"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            str(row["layer"]),
            f"{row['accuracy']:.3f}",
            f"{row['accuracy_low']:.3f}-{row['accuracy_high']:.3f}",
            f"{row['majority_accuracy']:.3f}",
            *(format(row[column], form) for column, form in shown.values()),
            f"{row['cross_entropy']:.3f}",
            f"{row['optimality_gap']:.1e}" + ("" if row.get("converged", True) else " stopped short"),
        )
    return table


def controls_table(rows: Sequence[Row]) -> Any:
    """Return what the accuracies are to be held against as a rich table."""
    shown = controls_of(rows)
    table = plain_table("What to hold it against: the same probe on other examples")
    for heading in ("layer", "accuracy", *shown.values()):
        table.add_column(heading, justify="right")
    for row in rows:
        columns = ("accuracy", *(f"{name}_accuracy" for name in shown))
        table.add_row(str(row["layer"]), *(f"{row[column]:.3f}" for column in columns))
    return table


def neurons_table(rows: Sequence[Row]) -> Any:
    """Return the first neurons of one layer's ranking as a rich table."""
    table = plain_table(f"Layer {rows[0]['layer']}: neurons by contribution to the true class's logit")
    has_range, has_removals = "rank_low" in rows[0], "removed" in rows[0]
    headings = (
        ["rank"] + ["range"] * has_range + ["neuron", "contribution", "ratio", "share", "centred", "eta sq.", "z"]
    )
    for heading in [*headings, *["without it"] * has_removals]:
        table.add_column(heading, justify="right")
    table.add_column("flag")
    for row in rows:
        table.add_row(
            str(row["rank"]),
            *([f"{row['rank_low']}-{row['rank_high']}"] if has_range else []),
            str(row["neuron"]),
            f"{row['contribution']:.4f}",
            f"{row['ratio']:.1f}",
            f"{row['share']:.1%}",
            _centred(row),
            f"{row['eta_squared']:.3f}",
            f"{row['eta_squared_z']:.0f}",
            *([_without(row)] if has_removals else []),
            row["flag"],
        )
    if far := [row for row in rows if _is_far(row)]:
        from probing.companion import FAR

        companion = all(_has_companion(row) for row in far)
        instead = "taken from a probe with an intercept" if companion else "unreliable"
        table.caption = f"* mean more than {FAR:.0f} sd from 0: {instead}"
        table.caption_justify = "left"
    return table


def _is_far(row: Row) -> bool:
    """Whether a neuron's mean is so far from 0 that its centred contribution is unreliable."""
    from probing.companion import FAR

    return bool(abs(row["mean"]) > FAR * row["sd"] and row["flag"] != "dead")


def _has_companion(row: Row) -> bool:
    return isinstance(row.get("contribution_companion"), float)


def _centred(row: Row) -> str:
    """Return the contribution without the mean; with a star where it is unreliable, and the companion's if there is."""
    value = row["contribution_companion"] if _has_companion(row) else row["contribution_centred"]
    return f"{value:.4f}" + "*" * _is_far(row)


def _without(row: Row) -> str:
    """Return the rise of the cross-entropy without a neuron, in nats."""
    if not row["removed"]:
        return ""
    return "unresolved" if BELOW_RESOLUTION in row["removed"] else f"{row['cross_entropy_without']:+.4f}"


def agreement_tables(rows: Sequence[Row]) -> list[Any]:
    """Return for each pair of runs a table of their layers at the same relative depth."""
    pairs = list(dict.fromkeys((row["model_a"], row["model_b"]) for row in rows))
    return [_agreement_table([row for row in rows if (row["model_a"], row["model_b"]) == pair]) for pair in pairs]


def _agreement_table(rows: Sequence[Row]) -> Any:
    from probing.comparison import aligned

    layers_a, layers_b = (sorted({row[f"layer_{side}"] for row in rows}) for side in "ab")
    found = {(row["layer_a"], row["layer_b"], row["statistic"]): row for row in rows}
    table = plain_table(f"{rows[0]['model_a']} (a) and {rows[0]['model_b']} (b), matched by {rows[0]['matching']}")
    for heading in ("layers", "top overlap", "by chance", "Spearman", "95% range", "by chance", "p", "match", "CKA"):
        table.add_column(heading, justify="right")
    for i, j in aligned(layers_a, layers_b):
        layers = layers_a[i], layers_b[j]
        overlap, spearman, match, cka = (
            found.get((*layers, name), {}) for name in ("overlap", "spearman", "correlation", "cka")
        )
        table.add_row(
            f"{layers[0]}, {layers[1]}",
            _two(overlap, "value"),
            _range(overlap, "chance"),
            _two(spearman, "value"),
            _range(spearman, ""),
            _range(spearman, "chance"),
            f"{spearman['p_value']:.1g}" if "p_value" in spearman else "",
            _two(match, "value"),
            _two(cka, "value"),
        )
    return table


# Neurons of a ranking that a screen shows.
_SHOWN = 10


def rankings_lines(rankings: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return for each layer and method the first neurons in one line, for --quiet."""
    return [
        f"layer {layer}, {method}: top neurons {', '.join(map(str, _first(rows, layer)[:5]))}"
        for layer in _layers_of(rankings)
        for method, rows in rankings.items()
    ]


def rankings_tables(rankings: Mapping[str, Sequence[Row]]) -> list[Any]:
    """Return for each layer a table of the first neurons by each method."""
    tables = []
    for layer in _layers_of(rankings):
        table = plain_table(f"Layer {layer}: first neurons by each ranking")
        table.add_column("ranking")
        for place in range(1, _SHOWN + 1):
            table.add_column(str(place), justify="right")
        for method, rows in rankings.items():
            table.add_row(method, *map(str, _first(rows, layer)))
        tables.append(table)
    return tables


def _layers_of(rankings: Mapping[str, Sequence[Row]]) -> list[int]:
    return sorted({row["layer"] for rows in rankings.values() for row in rows})


def _first(rows: Sequence[Row], layer: int) -> list[int]:
    return [row["neuron"] for row in rows if row["layer"] == layer][:_SHOWN]


def evaluation_tables(rows: Sequence[Row]) -> list[Any]:
    """Return for each layer and probe a table of what it does with the neurons of each ranking."""
    found = dict.fromkeys((row["layer"], row["probe"]) for row in rows)
    return [
        _evaluation_table([row for row in rows if (row["layer"], row["probe"]) == (layer, probe)])
        for layer, probe in found
    ]


def _evaluation_table(rows: Sequence[Row]) -> Any:
    sizes = sorted({row["k"] for row in rows})
    probe = {"linear": "a linear probe", "gaussian": "a Gaussian probe"}[rows[0]["probe"]]
    known = [row for row in rows if row["share_of_entropy"]]
    of = f" of {known[0]['mutual_information'] / known[0]['share_of_entropy']:.2f}" if known else ""
    table = plain_table(
        f"Layer {rows[0]['layer']}: accuracy of {probe} of the top or bottom k, and of the top's bits{of}"
    )
    table.add_column("ranking", no_wrap=True)
    for heading in ("top", "bottom", "bits"):
        for i, k in enumerate(sizes):
            table.add_column(str(k) if i else f"{heading} {k}", justify="right")
    for ranking in dict.fromkeys(row["ranking"] for row in rows):
        of_ranking = [row for row in rows if row["ranking"] == ranking]
        ends = [[row for row in of_ranking if row["from"] in (end, "random")] for end in ("top", "bottom")]
        # Of random neurons the best stands where others have their first, and the worst where they have their last.
        top = [max(row["accuracy"] for row in ends[0] if row["k"] == k) for k in sizes]
        bottom = [min(row["accuracy"] for row in ends[1] if row["k"] == k) for k in sizes]
        bits = [max(row["mutual_information"] for row in ends[0] if row["k"] == k) for k in sizes]
        n_draws = max(row.get("draw") or 0 for row in of_ranking)
        name = f"{n_draws} draws, best | worst" if n_draws else ranking
        table.add_row(name, *(f"{value:.3f}" for value in top + bottom), *(f"{value:.2f}" for value in bits))
    return table


def erasure_tables(rows: Sequence[Row]) -> list[Any]:
    """Return for each layer a table of what its probe knows under each condition."""
    return [_erasure_table([row for row in rows if row["layer"] == layer]) for layer in _layers_of({"": rows})]


def _erasure_table(rows: Sequence[Row]) -> Any:
    from probing.knowledge import CONDITIONS

    majority = f"{rows[0]['majority_accuracy']:.3f}"
    table = plain_table(f"Layer {rows[0]['layer']}: what a linear probe knows, trained anew (majority {majority})")
    table.add_column("of the layer is left")
    for heading in ("neurons", "removed", "accuracy", "95% range", "nats known", "share"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            CONDITIONS[row["condition"]],
            str(row["n_neurons"]),
            str(row["n_removed"]),
            f"{row['accuracy']:.3f}",
            f"{row['accuracy_low']:.3f}-{row['accuracy_high']:.3f}",
            f"{row['information']:.3f}",
            f"{row['share']:.3f}",
        )
    return table


def curves_tables(rows: Sequence[Row]) -> list[Any]:
    """Return for each layer and ranking a table of accuracy over the number of neurons."""
    return [_curves_table(of_ranking, beside) for of_ranking, beside in _curves(rows)]


def curves_lines(rows: Sequence[Row]) -> list[str]:
    """Return for each layer and ranking a sentence on how many neurons it takes."""
    from probing.curves import smallest

    lines = []
    for of_ranking, random in _curves(rows):
        reached = {row["k"]: row["accuracy"] for row in of_ranking if (row["kind"], row["from"]) == ("only", "top")}
        d_model, fewest, sizes = max(reached), smallest(of_ranking), {row["k"] for row in random}
        first, *others = [k for k in (10, 100) if k in sizes] or [min(sizes)]
        within = f"the smallest number within 1 point is {fewest['k']}, chosen on validation tokens"
        parts = [
            f"{first} of {d_model} neurons reach {reached[first]:.3f}",
            *(f"{k} reach {reached[k]:.3f}" for k in others),
            f"all {reached[d_model]:.3f}",
        ]
        end = f"{within} ({fewest['accuracy']:.3f})" if fewest["k"] < d_model else "no fewer are within 1 point"
        lines.append(f"Layer {fewest['layer']}, {fewest['ranking']}: {', '.join(parts)}; {end}.")
    return lines


def _curves(rows: Sequence[Row]) -> Iterator[tuple[list[Row], list[Row]]]:
    """Yield for each layer and ranking its rows, and those of random neurons beside it."""
    for layer, ranking in dict.fromkeys((row["layer"], row["ranking"]) for row in rows if row["ranking"] != "random"):
        here = [row for row in rows if row["layer"] == layer]
        yield tuple([row for row in here if row["ranking"] == name] for name in (ranking, "random"))  # type: ignore[misc]


def _curves_table(rows: Sequence[Row], random: Sequence[Row]) -> Any:
    from probing.curves import smallest

    n_draws = max(row["draw"] for row in random)
    table = plain_table(
        f"Layer {rows[0]['layer']}, {rows[0]['ranking']}: accuracy by number of neurons, {n_draws} draws"
    )
    for heading in ("k", "only top", "random", "bottom", "without top", "random", "bottom"):
        table.add_column(heading, justify="right", no_wrap=True)
    # Of the numbers tried by bisection, the one that was found.
    tried = {row["k"] for row in rows}
    for k in sorted({row["k"] for row in random} & tried | {smallest(rows)["k"], max(tried)}):
        cells = []
        for kind in ("only", "without"):
            top, drawn, bottom = (
                [row["accuracy"] for row in of if (row["kind"], row["k"], row["from"]) == (kind, k, end)]
                for of, end in ((rows, "top"), (random, "random"), (rows, "bottom"))
            )
            cells += [f"{top[0]:.3f}" if top else "", f"{min(drawn):.3f}-{max(drawn):.3f}" if drawn else ""]
            cells += [f"{bottom[0]:.3f}" if bottom else ""]
        table.add_row(str(k), *cells)
    return table


def _two(row: Row, column: str) -> str:
    return f"{row[column]:.2f}" if column in row else ""


def _range(row: Row, of: str) -> str:
    low, high = (f"{of}_{end}".lstrip("_") for end in ("low", "high"))
    return f"{_two(row, low)} to {_two(row, high)}" if low in row else ""


def render(*tables: Any) -> str:
    """Return tables as plain text."""
    from rich.console import Console

    console = Console(width=PLAIN_WIDTH, color_system=None)
    with console.capture() as capture:
        for table in tables:
            console.print(table)
    return capture.get()


def show(*tables: Any) -> None:
    """Print tables, in colour and to the window's width where there is a terminal."""
    from rich.console import Console

    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH, color_system=None)
    for table in tables:
        console.print(table)


def plain_table(title: str) -> Any:
    """Return an empty rich table in the looks of all tables here."""
    from rich import box
    from rich.table import Table

    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)


def show_progress(quiet: bool) -> bool:
    """Whether progress bars help anyone: standard error is a terminal and nobody asked for quiet."""
    return not quiet and sys.stderr.isatty()


def extraction_progress() -> Any:
    """Return a Lightning callback that shows how many shards are extracted."""
    import pytorch_lightning as pl

    class ExtractionProgress(pl.Callback):
        def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            self.progress = _bar()
            self.progress.start()
            total = sum(int(n) for n in trainer.num_predict_batches)
            self.task = self.progress.add_task("hidden states", total=total)

        def on_predict_batch_end(self, *args: Any, **kwargs: Any) -> None:
            self.progress.advance(self.task)

        def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
            if hasattr(self, "progress"):
                self.progress.stop()

    return ExtractionProgress()


def training_progress(what: str = "probes") -> Any:
    """Return a Lightning callback that shows the pass and how many probes are solved."""
    import pytorch_lightning as pl

    class TrainingProgress(pl.Callback):
        def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            self.progress = _bar()
            self.progress.start()
            self.task = self.progress.add_task(what, total=len(pl_module.problems))  # type: ignore[arg-type]

        def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            solved = len(getattr(pl_module, "solutions", ()))
            self.progress.update(self.task, completed=solved, description=f"{what}, pass {trainer.current_epoch + 1}")

        def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
            if hasattr(self, "progress"):
                self.progress.stop()

    return TrainingProgress()


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Keep Lightning's and transformers' chatter off the screen; their errors still raise."""
    import pytorch_lightning  # noqa: F401  its import sets the levels that are changed here
    from transformers.utils import logging as transformers_logging

    names = (
        "pytorch_lightning",
        "pytorch_lightning.utilities.rank_zero",
        "lightning_fabric",
        "lightning_fabric.utilities.distributed",
    )
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for module in ("pytorch_lightning", "lightning_fabric", "torch", "torchmetrics"):
                warnings.filterwarnings("ignore", module=rf"{module}(\..*)?$")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
