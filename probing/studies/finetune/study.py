"""The study of `finetune`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from probing.runs.study import Result, Study, Terms
from probing.studies.finetune import tables as finetuning
from probing.studies.finetune.options import LAST
from probing.studies.finetune.tables import CURVES, DIFFERENCES, SCORES, TERMS, TUNINGS


class Finetune(Study):
    """Models tuned on a task from several starts, with several seeds and orders."""

    name, kind = "finetune", "fine-tuning"
    title = "Fine-tuning"
    function = "probing.studies.finetune.command:finetune"
    in_several_processes = True
    schemas = SCORES, TUNINGS, DIFFERENCES, CURVES
    page = "finetune.md"
    files: ClassVar[Mapping[str, str]] = {
        "checkpoints/START-seedN-orderM/": "Each tuned model with its head, an ordinary model folder.",
        "figures/": "Scores beside the baselines, and losses by step.",
    }

    def tables(self, made: Result) -> list[Any]:
        """Return the scores."""
        return finetuning.tables(made.by_name)

    def more_tables(self, made: Result) -> list[Any]:
        """Return each tuning, and all differences."""
        return finetuning.more_tables(made.by_name)

    def answer(self, made: Result) -> list[str]:
        """Return how well each start does, and whether pretraining helps."""
        layer = made.config["tuning"].get("layer", LAST)  # runs of earlier versions have no such option
        on = "" if layer == LAST else f" with its head on layer {layer}"
        return finetuning.answer(made.by_name, f"{made.config['model']}{on}", made.results)

    def terms(self, made: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings of the shown table."""
        return {self.title: TERMS}

    def conclusions(self, made: Result) -> list[str]:
        """Return what tunings are held against, and what varies their scores."""
        return finetuning.conclusions(made.by_name, made.results)


FINETUNE = Finetune()
