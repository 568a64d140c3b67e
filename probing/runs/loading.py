"""Readers of finished results: `load_run` for any command, rankings of `rank`, checkpoints of `finetune`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probing.cli.options import WandbOptions
from probing.errors import UserError, in_python, spelled
from probing.models import resolve_model, site_of
from probing.results import listed
from probing.runs import Result, study_names, study_of, study_of_kind
from probing.runs.folder import kind_of, read_json, reading
from probing.runs.places import TEXTS, given_texts, is_model_of, model_of, sources_of, texts_of
from probing.runs.run import Run, load_fit, of_text
from probing.tables import has_intercept
from probing.text import GroupBy
from probing.tracking import least, resolve_mode


def writers() -> str:
    """Return the commands whose folders `load_run` reads, as a message names them."""
    *first, last = (f"`{name}`" for name in [*study_names()[:1], "probe", *study_names()[1:]])
    return f"{', '.join(first)} or {last}"


@spelled(in_python)
def load_run(folder: str | Path, corpus: Any = None) -> Any:
    """Read the finished results of any command from their folder.

    Args:
        folder: The folder of a run, a comparison, a sweep, or another command's results; for `rank`, the folder
            `rankings` of the run.
        corpus: New place of the text of a run of `fit`, if the text has moved and will be read again: a path, or a list
            of paths for a corpus and a test corpus.

    Returns:
        The return value of the command as a function: a `Result`, for `fit` and `probe` a `Run`. It has `folder`,
            `config` and `results`, and every CSV file of the folder as a table of that name.

    Raises:
        UserError: If the folder has no finished results, or they are damaged, or the run read another text.
    """
    if corpus is not None:
        run = load_fit(folder)
        run.moved = given_texts(corpus)
        texts_of(of_text(run), run.moved)  # refuses another text
        return run
    folder = Path(folder)
    if folder.name == "rankings" and os.path.isdir(folder) and os.path.isfile(folder.parent / "results.json"):
        with reading(folder):
            return study_of("rank").read(folder)
    kind = kind_of(folder, writers())
    if (study := study_of("fit") if kind is None else study_of_kind(kind)) is not None:
        with reading(folder):
            return study.read(folder)
    raise UserError(f"`{folder}` holds a {kind}, which this version cannot read; update it.")


def load_fit_of_classes(folder: str | Path) -> Run:
    """Read a finished run whose model can read its corpus again, and whose probes predict classes."""
    run = of_text(load_fit(folder))
    if run.is_of_numbers:
        raise UserError(
            f"`{folder}` predicts numbers, and `rank` and `compare` take runs that predict classes; its own ranking is "
            "in neurons.csv."
        )
    return run


def read_as_run(
    run: Run, flag_text: str, config: dict[str, Any], defaults: Mapping[str, Any], options: Sequence[str],
    further: Mapping[str, bool] | None = None,
) -> None:  # fmt: skip
    """Set the options of a command that must agree with a run, because the run's hidden states are read again.

    A text or a model named in an option is the new place of the run's text or model; without, the old places are tried.
    `config` is changed; `flag_text` is the option that names the run, with its value, for messages; `options` are the
    options that the run determines; `further` maps further requirements, as text, to whether they are met.

    Raises:
        UserError: If the run reads other than plain hidden states, an option contradicts it, or an input has changed.
    """
    run_config = run.config
    wrong = {
        **(further or {}),
        "`--site residual`": site_of(run_config) == "residual",
        "neurons of single vectors, not of pairs of spans": "span" not in run.neurons[0],
        "`--dtype float32`": run_config["dtype"] == "float32",
        "no `--transform`": run.transform == "none",
        "no `--probe.bias true`": not has_intercept(run_config),
    }
    if lacking := [what for what, holds in wrong.items() if not holds]:
        raise UserError(f"`{flag_text}`: expected a run of `fit` with {lacking[0]}; give another run, or none.")
    overrides = {
        option: config[option] for option in options if config[option] not in (defaults[option], run_config[option])
    }
    run.moved = [overrides.pop(option) for option in TEXTS if option in overrides]
    model = overrides.pop("model") if is_model_of(run, overrides.get("model")) else None
    for option, value in overrides.items():
        raise UserError(
            f"`--{option} {value}`: with `{flag_text}`, the run's own is read, which is {run_config[option]}; leave "
            "one of the two out."
        )
    config |= {option: run_config[option] for option in options}
    config["model"] = model or model_of(run).name
    sources = zip(TEXTS, texts_of(run, run.moved).sources, strict=False)  # without a test corpus, one less
    config |= {option: source for option, source in sources if option in options}


def tracked_like(run: Run, options: WandbOptions) -> WandbOptions:
    """Return how results added to a run are tracked: with the mode `auto`, no further than the run itself.

    So a run of the mode `offline` or `disabled` is not uploaded in part. `WANDB_MODE` or an explicit mode take
    precedence.
    """
    run_mode = run.config.get("wandb", {}).get("mode")
    is_open = options.mode == "auto" and not os.environ.get("WANDB_MODE")
    if not is_open or run_mode not in ("offline", "disabled"):
        return options
    return replace(options, mode=least([run_mode, resolve_mode("auto")]))


# The folder of a run that holds its checkpoints, and the beginning of the name of those that started from trained
# weights.
CHECKPOINTS, PRETRAINED = "checkpoints", "pretrained-"

# Options of `finetune` that name pairs, in the order of `TEXTS`.
PAIRS = "pairs", "test_pairs"

# Options whose values are those of the run.
OF_TUNED = ("revision", "random_weights", "max_length")


@dataclass(frozen=True)
class Tuned:
    """A model tuned by `finetune`: the results, the folder of the model with its head, and the option that names it."""

    run: Result
    checkpoint: Path
    flag_text: str

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return self.run.folder

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration of the run."""
        return self.run.config

    @property
    def results(self) -> Mapping[str, Any]:
        """Content of `results.json`."""
        return self.run.results

    @property
    def are_pairs(self) -> bool:
        """Whether the model was tuned on pairs of sentences."""
        return "pairs" in self.run.results["corpora"]

    @property
    def split_by(self) -> GroupBy:
        """The unit that the split preserves: the value of `--group_by`."""
        unit: GroupBy = self.run.config["group_by"]
        return unit

    @property
    def predicts_numbers(self) -> bool:
        """Whether the head predicts numbers, so that its score is R²."""
        return bool(self.run.results["numbers"])

    @property
    def score(self) -> float:
        """The score of this checkpoint in `tunings.csv`: accuracy or R² of the whole test part."""
        name = self.checkpoint.name
        return float(next(row["score"] for row in self.run.tunings if checkpoint_name(row) == name))


def is_of_tunings(folder: str | Path) -> bool:
    """Return whether a folder holds a finished run of `finetune`; a folder without results does not."""
    path = Path(folder) / "results.json"
    if not os.path.isfile(path):
        return False
    with reading(Path(folder)):
        return bool(read_json(path).get("kind") == study_of("finetune").kind)


def checkpoint_name(row: Mapping[str, Any]) -> str:
    """Return the name of the checkpoint of a row of `tunings.csv`."""
    return f"{row['start']}-seed{row['seed']}-order{row['order_seed']}"


def is_tuned(path: str) -> bool:
    """Return whether a folder is a run of `finetune`, or a checkpoint in such a run."""
    return is_of_tunings(_folder_of(path)[0])


def _folder_of(path: str) -> tuple[Path, str | None]:
    """Return the folder of a run, and the name of its checkpoint if the path names it."""
    folder = Path(os.path.normpath(path))
    return (folder.parent.parent, folder.name) if folder.parent.name == CHECKPOINTS else (folder, None)


def tuned_of(path: str, option: str) -> Tuned:
    """Return a checkpoint of a run of `finetune`, for the folder of a checkpoint or of the run.

    For a run it is the first checkpoint that started from trained weights. `option` names the path in messages.
    """
    folder, name = _folder_of(path)
    run = load_run(folder)
    if run.study.name != "finetune":
        raise UserError(f"`{option}`: expected a run of `finetune`, found one of `{run.study.name}`; give another.")
    known = [checkpoint_name(row) for row in run.tunings]
    first = next((checkpoint for checkpoint in known if checkpoint.startswith(PRETRAINED)), known[0])
    if (name := name or first) not in known:
        raise UserError(f"`{option}`: the run has no checkpoint {name}; it has {listed(known)}.")
    return Tuned(run, folder / CHECKPOINTS / name, option)


def read_as_tuned(tuned: Tuned, config: dict[str, Any], defaults: Mapping[str, Any]) -> None:
    """Set the options of a command that must agree with a tuned model, because its text is read again.

    `config` is changed. A text named in an option is the new place of the run's text. Contradictions raise `UserError`.
    """
    model = str(tuned.checkpoint)
    tuned_config = {**tuned.config, "model": model, "revision": None, "random_weights": False}
    for option in ("model", *OF_TUNED):
        if config[option] not in (defaults[option], tuned_config[option]):
            raise UserError(
                f"`--{option} {config[option]}`: with `{tuned.flag_text}`, that of the tuned model is read, which is "
                f"{tuned_config[option]}; leave one of the two out."
            )
    resolve_model(model)
    if tuned.are_pairs:
        config |= {option: tuned_config[option] for option in ("model", *OF_TUNED)}
        for option, of_pairs in zip(TEXTS, PAIRS, strict=True):
            pairs_path = tuned_config[of_pairs]
            if config[option] == defaults[option]:
                places = [] if pairs_path is None else sources_of(tuned, of_pairs, pairs_path)
                config[option] = next(
                    (text for text, place in places if not place or os.path.exists(place)), pairs_path
                )
        return
    moved = [config[option] for option in TEXTS if config[option] not in (defaults[option], tuned.config[option])]
    config |= {option: tuned_config[option] for option in ("model", *OF_TUNED)}
    config |= {"test_corpus": None, **dict(zip(TEXTS, texts_of(tuned, moved).sources, strict=False))}
