"""A model card of results: what was measured, held against what, what follows and what does not, how to repeat it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from probing.cli.option_types import defaults
from probing.data.control_names import ADDED_CONTROLS, CONTROLS
from probing.exports.places import portable
from probing.models.layers import site_of, what_is_a_neuron
from probing.page.reproduce import command_line
from probing.results.schema import Row
from probing.results.shown import ends, interval
from probing.runs.registry import study_of
from probing.runs.run import Run
from probing.runs.study import Result
from probing.tables.columns import R2, controls_of, score_of
from probing.tables.schema import FALSE_DISCOVERIES
from probing.tasks import task_in_words

LIBRARY = "neuron-probing"
# Neurons that the card lists.
FIRST = 10
# What holds of every run of `fit`, whatever its numbers are.
LIMITS_OF_PROBES = (
    "That a probe reads a label from a layer does not show that the model uses it there.",
    "A high contribution does not show that the model uses the neuron; other neurons may carry the same.",
    f"A neuron that is flagged no-signal is not shown to tell the classes apart (false discovery rate "
    f"{FALSE_DISCOVERIES:g}). A ranking with the flag uninformative is of a probe that is not shown to be better than "
    "a constant answer, and is not to be read.",
)
# What holds of all results.
LIMITS = (
    "Where an interval of a difference holds 0, or there is none, nothing is said of which is larger.",
    "All of this is of one model, one text and one seed.",
)


def card(made: Result) -> str:
    """Return a card of results: a block of YAML as the hub reads it, and Markdown.

    Args:
        made: The results.

    Raises:
        UserError: If the results are damaged.
    """
    parts = [_metadata(made), f"# {_title(made)}", _about(made)]
    if isinstance(made, Run):
        parts += ["## Results", _accuracies(made), _neurons(made), "## What was controlled", _controlled(made)]
    if said := made.conclusions():
        parts += ["## What follows", _list(said)]
    limits = (*(LIMITS_OF_PROBES if isinstance(made, Run) else ()), *LIMITS)
    parts += ["## What may not be concluded", _list(limits)]
    return "\n\n".join([*parts, "## To reproduce", _reproduced(made)]) + "\n"


def _title(made: Result) -> str:
    of = f" of {_named(made.config['model'])}" if made.config.get("model") else ""
    return f"{made.study.title}{of}: {made.folder.name}"


def _named(path: Any) -> str:
    """Return the name of a model or a text without the folders of this machine."""
    return str(portable(str(path)))


def _tested_on(run: Run) -> str:
    return _named(run.config.get("test_corpus") or run.config["corpus"])


def _metadata(made: Result) -> str:
    """Return the block of YAML, with the accuracies of a run of `fit` as results that the hub lists."""
    from huggingface_hub import EvalResult, ModelCardData

    results = [EvalResult(**_measured(made, row)) for row in made.accuracy] if isinstance(made, Run) else None
    data = ModelCardData(
        library_name=LIBRARY, tags=["probing", "interpretability", made.study.name],
        eval_results=results, model_name=made.folder.name if results else None,
    )  # fmt: skip
    return f"---\n{data.to_yaml()}\n---"


def _measured(run: Run, row: Row) -> dict[str, Any]:
    """Return the accuracy of a layer, or R², as the hub has results."""
    score = score_of(row)
    between = ends(row, score.name)
    text = _tested_on(run) if not run.is_of_arrays else "arrays"
    return {
        "task_type": "token-classification" if not run.results.get("pooling") else "text-classification",
        "task_name": task_in_words(run.config), "dataset_type": text, "dataset_name": text, "dataset_split": "test",
        "metric_type": "r_squared" if score is R2 else "accuracy", "metric_value": row[score.name],
        "metric_name": f"{score.words} of layer {row['layer']}",
        "metric_args": {"layer": int(row["layer"]), **({"interval_95": list(between)} if between else {})},
    }  # fmt: skip


def _about(made: Result) -> str:
    config, said = made.config, [f"Results of `{made.study.name}` of `{LIBRARY}`."]
    if isinstance(made, Run) and made.is_of_arrays:
        said.append(f"Linear probes of {task_in_words(config)}, of arrays, whose rows are called tokens below.")
    elif isinstance(made, Run):
        what, text, tested = what_is_a_neuron(site_of(config)), _named(config["corpus"]), _tested_on(made)
        texts = f"`{text}`" if text == tested else f"`{text}` and tested on `{tested}`"
        said.append(
            f"Linear probes of {task_in_words(config)} on `{_named(config['model'])}`, trained "
            f"{'and tested ' if text == tested else ''}on {texts}. {what[:1].upper()}{what[1:]}."
        )
    elif config.get("model"):
        said.append(f"The model is `{_named(config['model'])}`.")
        if isinstance(config.get("corpus"), str):
            said.append(f"The text is `{_named(config['corpus'])}`.")
    return " ".join(said)


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def _list(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _accuracies(run: Run) -> str:
    score, controls = score_of(run.accuracy[0]), controls_of(run.accuracy)
    rows = [
        [
            row["layer"], f"{row[score.name]:.3f}", interval(row, score.name, "–"),
            *(f"{row[f'{name}_{score.name}']:.3f}" for name in controls),
        ]
        for row in run.accuracy
    ]  # fmt: skip
    return _table(["layer", score.words, "95% interval", *controls.values()], rows)


def _neurons(run: Run) -> str:
    layer = run.layers[-1]
    ranked = run.top(layer, FIRST)
    has_range = "rank_low" in ranked[0]
    rows = [
        [
            row["rank"], *([f"{row.get('rank_low')}–{row.get('rank_high')}"] * has_range), row["neuron"],
            f"{row['contribution']:.4f}", row["flag"],
        ]
        for row in ranked
    ]  # fmt: skip
    said = f"The first neurons of layer {layer}, by contribution"
    said += "; the range of a rank is over bootstrap samples:" if has_range else ":"
    return f"{said}\n\n{_table(['rank', *(['range'] * has_range), 'neuron', 'contribution', 'flag'], rows)}"


def _controlled(run: Run) -> str:
    known = {**CONTROLS, **ADDED_CONTROLS}
    controls = controls_of(run.accuracy)
    said = [f"{words}: {known[name].meaning}" for name, words in controls.items() if name in known]
    if "majority" in controls:  # which numbers do not have
        said.insert(0, "majority: accuracy of always predicting the most frequent class of the training examples.")
    over = run.results.get("intervals_over", {})
    if over and any(ends(row, score_of(row).name) for row in run.accuracy):
        said.append(f"Intervals are over {over['n']} test {over['unit']}s, none of which was trained on.")
    return _list(said)


def _reproduced(made: Result) -> str:
    config = portable(made.config)
    if isinstance(made, Run) and made.is_of_arrays:
        return "This run was made from arrays by `probing.probe`, which are not kept."
    if isinstance(made, Run):
        command = command_line(config, defaults(study_of("fit").command))
    else:
        command = f"python -m probing {made.study.name} --config config.yaml"
    versions = ", ".join(f"{name} {version}" for name, version in made.results.get("versions", {}).items())
    after = f"\n\nVersions: {versions}." if versions else ""
    read = '```python\nimport probing\n\nrun = probing.pull("REPOSITORY")\n```'
    names = [name for name in ("model", "corpus", "test_corpus") if Path(str(made.config.get(name))).is_absolute()]
    moved = f"\n\nNames of {' and '.join(names)} stand for local paths." if names else ""
    return f"```sh\n{command}\n```{moved}{after}\n\nThe tables and probes are read by\n\n{read}"
