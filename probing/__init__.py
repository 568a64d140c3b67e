"""Linear probes that rank the neurons of a transformer's layers, with the evidence for each ranking."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from probing.runs.known_studies import STUDIES

if TYPE_CHECKING:
    from probing.activations.contents import Activations as Activations
    from probing.activations.reading import read_activations as read_activations
    from probing.callbacks.lightning import ProbingCallback as ProbingCallback
    from probing.cli.commandline import configured as configured
    from probing.cli.options import ProbeOptions as ProbeOptions
    from probing.cli.options import WandbOptions as WandbOptions
    from probing.commands.report import report as report
    from probing.data.module import ActivationDataModule as ActivationDataModule
    from probing.errors import UserError as UserError
    from probing.estimators.base import ProbeClassifier as ProbeClassifier
    from probing.estimators.base import ProbeRegressor as ProbeRegressor
    from probing.exports.hub import pull as pull
    from probing.probes.linear import LinearProbe as LinearProbe
    from probing.results.rows import Table as Table
    from probing.results.schema import Column as Column
    from probing.results.schema import Schema as Schema
    from probing.runs.call import Call as Call
    from probing.runs.call import Measured as Measured
    from probing.runs.loading import load_run as load_run
    from probing.runs.rankings import Rankings as Rankings
    from probing.runs.run import Run as Run
    from probing.runs.study import Result as Result
    from probing.runs.study import Study as Study
    from probing.studies.attention.command import attention as attention
    from probing.studies.changes.command import changes as changes
    from probing.studies.claims.command import reproduce as reproduce
    from probing.studies.cloze.command import cloze as cloze
    from probing.studies.compare.command import compare as compare
    from probing.studies.disable.command import disable as disable
    from probing.studies.embeddings.command import embeddings as embeddings
    from probing.studies.finetune.command import finetune as finetune
    from probing.studies.fit.arrays import probe as probe
    from probing.studies.fit.command import extract as extract
    from probing.studies.fit.command import fit as fit
    from probing.studies.fit.rank import rank as rank
    from probing.studies.geometry.command import geometry as geometry
    from probing.studies.hierarchy.command import hierarchy as hierarchy
    from probing.studies.pretrain.command import pretrain as pretrain
    from probing.studies.series.command import series as series
    from probing.studies.similarity.commands import sts as sts
    from probing.studies.similarity.commands import wic as wic
    from probing.studies.sweep.command import sweep as sweep
    from probing.tasks import SentenceTask as SentenceTask
    from probing.tasks import Task as Task

__version__ = "0.2.0"

# The public names and their modules, which are imported on first use; a study is called by its name, too.
_HOMES = {
    "Activations": "probing.activations.contents",
    "ActivationDataModule": "probing.data.module",
    "Call": "probing.runs.call",
    "Column": "probing.results.schema",
    "LinearProbe": "probing.probes.linear",
    "Measured": "probing.runs.call",
    "ProbeClassifier": "probing.estimators.base",
    "ProbeOptions": "probing.cli.options",
    "ProbingCallback": "probing.callbacks.lightning",
    "ProbeRegressor": "probing.estimators.base",
    "Rankings": "probing.runs.rankings",
    "Result": "probing.runs.study",
    "Run": "probing.runs.run",
    "Schema": "probing.results.schema",
    "SentenceTask": "probing.tasks",
    "Study": "probing.runs.study",
    "Table": "probing.results.rows",
    "Task": "probing.tasks",
    "UserError": "probing.errors",
    "WandbOptions": "probing.cli.options",
    "configured": "probing.cli.commandline",
    "extract": "probing.studies.fit.command",
    "load_run": "probing.runs.loading",
    "probe": "probing.studies.fit.arrays",
    "pull": "probing.exports.hub",
    "read_activations": "probing.activations.reading",
    "report": "probing.commands.report",
}
# Names that need scikit-learn, where it is not installed: an import of all names leaves them out.
_LEFT_OUT = () if find_spec("sklearn") else ("ProbeClassifier", "ProbeRegressor")
# What tqdm says in a notebook that has no ipywidgets, when transformers imports it; progress here needs none.
warnings.filterwarnings("ignore", message="IProgress not found")

__all__ = sorted({*_HOMES, *STUDIES, "__version__"}.difference(_LEFT_OUT))


def __dir__() -> list[str]:
    return sorted({name for name in globals() if name.startswith("__")} | {*__all__})


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in STUDIES:
        from probing.runs.study import study_of

        return study_of(name).command
    raise AttributeError(f"module 'probing' has no attribute {name!r}")
