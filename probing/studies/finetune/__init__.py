"""`finetune`: tunes a model on a task with several seeds and orders, and says how much each matters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from probing.results.rows import Html
from probing.runs.study import Result, SectionPlace, Study, Terms
from probing.studies.finetune import tables
from probing.studies.finetune.options import LAST
from probing.studies.finetune.tables import CURVES, DIFFERENCES, SCORES, TERMS, TUNINGS

# --------------------------------------------------------------------------------------------------------------------
# The study of `finetune`.
# --------------------------------------------------------------------------------------------------------------------


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
        "answers.safetensors": "What each tuned model has right of each test sentence, for `compare`. Every tensor has "
        "a number for each test sentence with something to predict: `right/START-seedN-orderM`, the targets whose "
        "class is predicted, or the squared error that the constant answer makes and the model does not; `of`, what "
        "the score is a share of: the number of targets, or the squared errors of the constant answer; `cluster`, the "
        "number of its document, or of the sentence; `sentence` and `labels`, hashes of its text and of its targets. "
        "The score of a tuning is the sum of the first over that of the second.",
        "figures/": "Scores beside the baselines, and losses by step.",
    }

    def tables(self, made: Result) -> list[Any]:
        """Return the scores."""
        return tables.tables(made.by_name)

    def more_tables(self, made: Result) -> list[Any]:
        """Return each tuning, and all differences."""
        return tables.more_tables(made.by_name)

    def answer(self, made: Result) -> list[str]:
        """Return how well each start does, and whether pretraining helps."""
        layer = made.config["tuning"].get("layer", LAST)  # runs of earlier versions have no such option
        on = "" if layer == LAST else f" with its head on layer {layer}"
        return tables.answer(made.by_name, f"{made.config['model']}{on}", made.results)

    def section(self, made: Result, place: SectionPlace) -> Html:
        """Return the sentences, the scores and losses as charts, and all tables."""
        from probing.studies.finetune.tables import finetuning_section

        return finetuning_section(made, place.anchor)

    def terms(self, made: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings, and of what charts show."""
        return {self.title: TERMS}

    def conclusions(self, made: Result) -> list[str]:
        """Return what tunings are held against, and what varies their scores."""
        return tables.conclusions(made.by_name, made.results)


FINETUNE = Finetune()
