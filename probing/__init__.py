"""Linear probes that rank the neurons of a transformer's layers, with the evidence for each ranking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probing.cli.options import ProbeOptions as ProbeOptions
    from probing.cli.options import WandbOptions as WandbOptions
    from probing.commands.attention import attention as attention
    from probing.commands.cloze import cloze as cloze
    from probing.commands.compare import compare as compare
    from probing.commands.disable import disable as disable
    from probing.commands.extract import extract as extract
    from probing.commands.fit import fit as fit
    from probing.commands.geometry import geometry as geometry
    from probing.commands.hierarchy import hierarchy as hierarchy
    from probing.commands.pretrain import pretrain as pretrain
    from probing.commands.probe import probe as probe
    from probing.commands.rank import rank as rank
    from probing.commands.report import report as report
    from probing.commands.reproduce import reproduce as reproduce
    from probing.commands.series import series as series
    from probing.commands.sts import sts as sts
    from probing.commands.sweep import sweep as sweep
    from probing.commands.wic import wic as wic
    from probing.data.module import ActivationDataModule as ActivationDataModule
    from probing.errors import UserError as UserError
    from probing.probes.linear import LinearProbe as LinearProbe
    from probing.runs.diagnostics import Cloze as Cloze
    from probing.runs.diagnostics import Hierarchy as Hierarchy
    from probing.runs.evaluations import SentenceSimilarity as SentenceSimilarity
    from probing.runs.evaluations import WordsInContext as WordsInContext
    from probing.runs.kinds import Attention as Attention
    from probing.runs.kinds import Comparison as Comparison
    from probing.runs.kinds import Disabled as Disabled
    from probing.runs.kinds import FinishedSweep as FinishedSweep
    from probing.runs.kinds import Geometry as Geometry
    from probing.runs.kinds import Rankings as Rankings
    from probing.runs.kinds import Reproduction as Reproduction
    from probing.runs.loading import load_run as load_run
    from probing.runs.run import Run as Run
    from probing.runs.trainings import CheckpointSeries as CheckpointSeries
    from probing.runs.trainings import Pretraining as Pretraining
    from probing.tasks import SentenceTask as SentenceTask
    from probing.tasks import Task as Task

__version__ = "0.1.0"

# The public names and their modules, which are imported on first use.
_HOMES = {
    "Attention": "probing.runs.kinds",
    "attention": "probing.commands.attention",
    "CheckpointSeries": "probing.runs.trainings",
    "Cloze": "probing.runs.diagnostics",
    "cloze": "probing.commands.cloze",
    "Comparison": "probing.runs.kinds",
    "compare": "probing.commands.compare",
    "Disabled": "probing.runs.kinds",
    "disable": "probing.commands.disable",
    "extract": "probing.commands.extract",
    "fit": "probing.commands.fit",
    "Geometry": "probing.runs.kinds",
    "geometry": "probing.commands.geometry",
    "Hierarchy": "probing.runs.diagnostics",
    "hierarchy": "probing.commands.hierarchy",
    "Pretraining": "probing.runs.trainings",
    "pretrain": "probing.commands.pretrain",
    "probe": "probing.commands.probe",
    "LinearProbe": "probing.probes.linear",
    "ActivationDataModule": "probing.data.module",
    "Rankings": "probing.runs.kinds",
    "rank": "probing.commands.rank",
    "report": "probing.commands.report",
    "Reproduction": "probing.runs.kinds",
    "reproduce": "probing.commands.reproduce",
    "SentenceSimilarity": "probing.runs.evaluations",
    "series": "probing.commands.series",
    "sts": "probing.commands.sts",
    "FinishedSweep": "probing.runs.kinds",
    "sweep": "probing.commands.sweep",
    "WordsInContext": "probing.runs.evaluations",
    "wic": "probing.commands.wic",
    "UserError": "probing.errors",
    "ProbeOptions": "probing.cli.options",
    "WandbOptions": "probing.cli.options",
    "Run": "probing.runs.run",
    "load_run": "probing.runs.loading",
    "SentenceTask": "probing.tasks",
    "Task": "probing.tasks",
}
__all__ = [
    "ActivationDataModule",
    "Attention",
    "CheckpointSeries",
    "Cloze",
    "Comparison",
    "Disabled",
    "FinishedSweep",
    "Geometry",
    "Hierarchy",
    "LinearProbe",
    "Pretraining",
    "ProbeOptions",
    "Rankings",
    "Reproduction",
    "Run",
    "SentenceSimilarity",
    "SentenceTask",
    "Task",
    "UserError",
    "WandbOptions",
    "WordsInContext",
    "__version__",
    "attention",
    "cloze",
    "compare",
    "disable",
    "extract",
    "fit",
    "geometry",
    "hierarchy",
    "load_run",
    "pretrain",
    "probe",
    "rank",
    "report",
    "reproduce",
    "series",
    "sts",
    "sweep",
    "wic",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'probing' has no attribute {name!r}")
