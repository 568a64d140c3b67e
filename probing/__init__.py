"""Linear probes that rank the neurons of a transformer's layers, with the evidence for each ranking."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from probing.registry import ACTIONS, STUDIES, load, python_name, renamed

if TYPE_CHECKING:
    from probing.activations.contents import Activations as Activations
    from probing.activations.reading import read_activations as read_activations
    from probing.callbacks import ProbingCallback as ProbingCallback
    from probing.cli.commandline import command as command
    from probing.cli.options import Options as Options
    from probing.cli.options import ProbeOptions as ProbeOptions
    from probing.cli.options import WandbOptions as WandbOptions
    from probing.cli.options import option as option
    from probing.commands import columns as columns
    from probing.commands import report as report
    from probing.data.module import ActivationDataModule as ActivationDataModule
    from probing.errors import UserError as UserError
    from probing.exports import pull as pull
    from probing.exports.formats import export as export
    from probing.probes.estimators import ProbeClassifier as ProbeClassifier
    from probing.probes.estimators import ProbeRegressor as ProbeRegressor
    from probing.probes.linear import LinearProbe as LinearProbe
    from probing.results import Column as Column
    from probing.results import Schema as Schema
    from probing.results import Table as Table
    from probing.results import View as View
    from probing.runs import Result as Result
    from probing.runs import Study as Study
    from probing.runs.call import Call as Call
    from probing.runs.call import Measurements as Measurements
    from probing.runs.loading import load_run as load_run
    from probing.runs.run import Run as Run
    from probing.studies.ablate import ablate as ablate
    from probing.studies.attention import attention as attention
    from probing.studies.checkpoints import checkpoints as checkpoints
    from probing.studies.claims import reproduce as reproduce
    from probing.studies.cloze import cloze as cloze
    from probing.studies.compare import compare as compare
    from probing.studies.extremes import extremes as extremes
    from probing.studies.finetune import finetune as finetune
    from probing.studies.fit import extract as extract
    from probing.studies.fit import fit as fit
    from probing.studies.fit import probe as probe
    from probing.studies.fit.rank import Rankings as Rankings
    from probing.studies.fit.rank import rank as rank
    from probing.studies.geometry import geometry as geometry
    from probing.studies.hierarchy import hierarchy as hierarchy
    from probing.studies.position import position as position
    from probing.studies.position_bias import position_bias as position_bias
    from probing.studies.pretrain import pretrain as pretrain
    from probing.studies.similarity import sts as sts
    from probing.studies.similarity import wic as wic
    from probing.studies.sweep import sweep as sweep
    from probing.studies.trees import trees as trees
    from probing.studies.triggers import triggers as triggers
    from probing.studies.tuning_effect import tuning_effect as tuning_effect
    from probing.tables.figures import Chart as Chart
    from probing.tables.figures import Line as Line
    from probing.tables.figures import Panel as Panel
    from probing.text.tasks import SentenceTask as SentenceTask
    from probing.text.tasks import Task as Task

__version__ = "0.2.0"

# The public names and their modules, which are imported on first use; a study is called by its name, too.
_HOMES = {
    "Activations": "probing.activations.contents",
    "ActivationDataModule": "probing.data.module",
    "Call": "probing.runs.call",
    "Chart": "probing.tables.figures",
    "Column": "probing.results",
    "Line": "probing.tables.figures",
    "Panel": "probing.tables.figures",
    "View": "probing.results",
    "LinearProbe": "probing.probes.linear",
    "Measurements": "probing.runs.call",
    "Options": "probing.cli.options",
    "ProbeClassifier": "probing.probes.estimators",
    "ProbeOptions": "probing.cli.options",
    "ProbingCallback": "probing.callbacks",
    "ProbeRegressor": "probing.probes.estimators",
    "Rankings": "probing.studies.fit.rank",
    "Result": "probing.runs",
    "Run": "probing.runs.run",
    "Schema": "probing.results",
    "SentenceTask": "probing.text.tasks",
    "Study": "probing.runs",
    "Table": "probing.results",
    "Task": "probing.text.tasks",
    "UserError": "probing.errors",
    "WandbOptions": "probing.cli.options",
    "columns": "probing.commands",
    "command": "probing.cli.commandline",
    "export": "probing.exports.formats",
    "extract": "probing.studies.fit",
    "load_run": "probing.runs.loading",
    "option": "probing.cli.options",
    "probe": "probing.studies.fit",
    "pull": "probing.exports",
    "read_activations": "probing.activations.reading",
    "report": "probing.commands",
}
# The study of each command, in the order of the usage text; the imports above name its function for type checkers.
STUDIES.update({
    "fit": "probing.studies.fit:STUDY",
    "rank": "probing.studies.fit.rank:STUDY",
    "compare": "probing.studies.compare:STUDY",
    "sweep": "probing.studies.sweep:STUDY",
    "geometry": "probing.studies.geometry:STUDY",
    "position": "probing.studies.position:STUDY",
    "extremes": "probing.studies.extremes:STUDY",
    "attention": "probing.studies.attention:STUDY",
    "ablate": "probing.studies.ablate:STUDY",
    "hierarchy": "probing.studies.hierarchy:STUDY",
    "cloze": "probing.studies.cloze:STUDY",
    "pretrain": "probing.studies.pretrain:STUDY",
    "finetune": "probing.studies.finetune:STUDY",
    "tuning-effect": "probing.studies.tuning_effect:STUDY",
    "triggers": "probing.studies.triggers:STUDY",
    "checkpoints": "probing.studies.checkpoints:STUDY",
    "wic": "probing.studies.similarity:WIC_STUDY",
    "sts": "probing.studies.similarity:STS_STUDY",
    "position-bias": "probing.studies.position_bias:STUDY",
    "trees": "probing.studies.trees:STUDY",
    "reproduce": "probing.studies.claims:STUDY",
})  # fmt: skip
# Functions that the methods of results call.
ACTIONS.update({
    "report": "probing.commands:report",
    "export": "probing.exports.formats:export",
    "card": "probing.exports:card",
    "push": "probing.exports:push",
    "charts_html": "probing.page.charts:charts_html",
    "neuron_block": "probing.page.run:neuron_block",
})  # fmt: skip
# Names that need scikit-learn, where it is not installed: an import of all names leaves them out.
_LEFT_OUT = () if find_spec("sklearn") else ("ProbeClassifier", "ProbeRegressor")
# What tqdm says in a notebook that has no ipywidgets, when transformers imports it; progress here needs none.
warnings.filterwarnings("ignore", message="IProgress not found")

# The commands by the names of their functions.
_COMMANDS = {python_name(name): name for name in STUDIES}

__all__ = sorted({*_HOMES, *_COMMANDS, "__version__"}.difference(_LEFT_OUT))


def __dir__() -> list[str]:
    return sorted({name for name in globals() if name.startswith("__")} | {*__all__})


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return load(f"{_HOMES[name]}:{name}")
    if name in _COMMANDS:
        from probing.runs import study_of

        return study_of(_COMMANDS[name]).command
    raise AttributeError(renamed(name) or f"module 'probing' has no attribute {name!r}")
