"""What the probes of a finished run know without some neurons or directions: `RUN/rankings/erasure.csv`."""

from __future__ import annotations

from typing import Any

import numpy as np

from probing.commands.finished import Extraction, Finished
from probing.corpus import Split
from probing.errors import UserError
from probing.examples import Sides, label
from probing.knowledge import CONDITIONS, KNOWLEDGE_COLUMNS, what_is_known
from probing.options import ProbeOptions, as_options
from probing.runs import write_csv
from probing.solvers import Penalty
from probing.tasks import Labels, load_task
from probing.training import CONTROL_TOLERANCE, Training


def erasure_rows(finished: Finished, extract: Extraction, n_top: int, seed: int) -> list[dict[str, Any]]:
    """Return what is known under each condition, in every layer of a run, and write it to `rankings/erasure.csv`.

    Probes are trained with the run's penalty by lbfgs, whatever trained the run's own.

    Args:
        finished: The run.
        extract: Reads its activations.
        n_top: How many of the first neurons of its ranking are kept or removed.
        seed: Of random neurons, shuffled labels and redrawn sentences.

    Returns:
        Rows as `probing.knowledge.what_is_known` returns them.

    Raises:
        UserError: If `n_top` is not between 1 and half the neurons.
    """
    from probing import terminal

    run, sides = finished.run, sides_of(finished, extract)
    if not 1 <= n_top <= (half := sides.train.store.plan.d_model // 2):
        raise UserError(
            f"`--top {n_top}`: expected 1 to {half}, half the neurons, for as many random ones beside them."
        )
    rankings = {
        row["layer"]: [found["neuron"] for found in run.top(row["layer"], 2 * half + 1)] for row in run.accuracy
    }
    probe = as_options(ProbeOptions, run.config["probe"], "probe")
    training = Training(
        Penalty(probe.l1, probe.l2), probe.penalty_space, "lbfgs", CONTROL_TOLERANCE, probe.learning_rate,
        probe.batch_size, probe.patience, run.config["seed"],
    )  # fmt: skip
    rows = what_is_known(
        sides, rankings, n_top, training, extract.trainer, seed,
        lambda condition: [terminal.training_progress(CONDITIONS[condition])] if extract.progress else (),
    )  # fmt: skip
    folder = run.folder / "rankings"
    folder.mkdir(exist_ok=True)
    partial = folder / "erasure.csv.partial"
    write_csv(partial, rows, KNOWLEDGE_COLUMNS)
    partial.replace(folder / "erasure.csv")
    return rows


def sides_of(finished: Finished, extract: Extraction) -> Sides:
    """Return the labelled tokens of each side as the run had them."""
    config, corpora = finished.run.config, finished.corpora
    task = load_task(config["task"], config["task_args"])
    classes: Labels = np.array(finished.run.results["classes"], dtype=np.int64 if task.ordinal else object)
    stores = [extract.readings(finished, corpus).store for corpus in corpora]
    parts: list[tuple[Split, int]] = [("train", 0), ("validation", 0), ("test", -1)]
    train, validation, test = (
        label(stores[part], corpora[part], task, finished.splits[part], classes, side) for side, part in parts
    )
    return Sides(train, validation, test, classes, task.ordinal)
