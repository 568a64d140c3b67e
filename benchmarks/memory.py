"""Peak anonymous memory of commands on the built-in model and on one of BERT's size, if `make models` has been run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks import commands
from benchmarks.corpora import sentences, write_similarity, write_text
from benchmarks.harness import Comparison, Contestant, Met, Run, Setting, interleave, median_of
from benchmarks.model_folders import WEIGHTS
from benchmarks.models import MODELS
from benchmarks.split_models import MPNET

# Sentences of the text, and distinct sentences of each of the eleven parts of the sets of similarity.
N_SENTENCES, N_SIMILAR = 300, 60
# Least number of training sentences of a class, so that the few sentences have as many positions as a whole corpus.
TASK = ("--task_args.min_count", "8")
MOST_MB = 1500.0


def base_model() -> Path | None:
    """Return the folder of the model of BERT's size; None if it is not there."""
    folder = MODELS / MPNET.name
    return folder if (folder / WEIGHTS).is_file() else None


def compare(setting: Setting) -> Comparison:
    """Run each command once on each model, then compare the rankings of both."""
    models = [setting.model, *([str(base)] if (base := base_model()) else [])]
    names = [Path(model).name for model in models]
    few = min(setting.sentences or N_SENTENCES, N_SENTENCES)
    corpus = write_text(setting.work / "text.txt", sentences(few))
    similar = write_similarity(setting.work / "similar", min(few, N_SIMILAR))
    contestants = [
        contestant for name, model in zip(names, models, strict=True)
        for contestant in _of_model(setting, name, model, corpus, similar)
    ]  # fmt: skip
    fits = [str(setting.work / "runs" / f"fit-{name}") for name in names]
    if len(fits) > 1:
        found = ("compare", *fits, "--matching", "correlation")
        contestants.append(_contestant(setting, f"compare, {' and '.join(names)}", found))
    runs, _ = interleave(contestants, setting)
    notes = [] if base_model() else ["Without all-mpnet-base-v2, which `make models` downloads."]
    return Comparison(runs, None, (), _met(runs), [*notes, *_mapped(runs)])


def _of_model(setting: Setting, name: str, model: str, corpus: Path, similar: Path) -> list[Contestant]:
    """Return the commands on one model; the first one's run stays for `compare`."""
    asked: dict[str, Sequence[str]] = {
        "fit": ("--corpus", str(corpus), *TASK, "--name", f"fit-{name}"),
        "geometry": ("--corpus", str(corpus)),
        "attention": ("--corpus", str(corpus)),
        "sts": (str(similar),),
    }
    return [
        _contestant(setting, f"{command}, {name}", (command, "--model", model, *options))
        for command, options in asked.items()
    ]


def _contestant(setting: Setting, name: str, args: Sequence[str]) -> Contestant:
    places = ("--cache", str(setting.work / "cache"), "--runs", str(setting.work / "runs"))
    return Contestant(
        name, lambda folder: commands.ours("plain", *args, *places, "--quiet", "--wandb.mode", "disabled"), 1
    )


def _met(runs: Sequence[Run]) -> list[Met]:
    peaks = {name: median_of(runs, name, "peak_anonymous_mb") for name in _measured(runs)}
    if not peaks:
        return []
    most = max(peaks, key=lambda name: peaks[name])
    return [Met("memory_of_commands", f"at most {peaks[most]:.0f} MiB ({most})", peaks[most] < MOST_MB)]


def _mapped(runs: Sequence[Run]) -> list[str]:
    """Return the pages of mapped files beside the anonymous memory, as a sentence."""
    named = [f"{name} {median_of(runs, name, 'peak_mapped_mb'):.0f} MiB" for name in _measured(runs)]
    said = ", ".join(named)
    return [f"Mapped from files at most, which the system takes back when it needs memory: {said}."] if named else []


def _measured(runs: Sequence[Run]) -> list[str]:
    return [run.contestant for run in runs if "peak_anonymous_mb" in run.values and "peak_mapped_mb" in run.values]
