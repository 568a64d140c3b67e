"""The study `pretrain`: small encoders from scratch, with and without position embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from probing.results.rows import Html
from probing.runs.study import Result, SectionPlace, Study, Terms
from probing.studies.pretrain import tables
from probing.studies.pretrain.tables import ARMS, LENGTHS, LOSSES

# --------------------------------------------------------------------------------------------------------------------
# The study of `pretrain`.
# --------------------------------------------------------------------------------------------------------------------


class Pretrain(Study):
    """Encoders that differ only in what tells them positions."""

    name, kind = "pretrain", "pretraining with and without positions"
    title = "Encoders with and without positions"
    function = "probing.studies.pretrain.command:pretrain"
    in_several_processes = True
    schemas = ARMS, LOSSES, LENGTHS
    page = "pretraining.md"
    files: ClassVar[Mapping[str, str]] = {
        "checkpoints/ARM-seedN/stepNNNN/": "Each checkpoint, an ordinary model folder.",
        "figures/": "Losses, farthest means and positions; with `--lengths`, losses by length.",
    }

    def tables(self, made: Result) -> list[Any]:
        """Return the last checkpoints."""
        return tables.tables(made.by_name)

    def conclusions(self, made: Result) -> list[str]:
        """Return what the experiment says of each arm, and the verdict."""
        return tables.conclusions(made.by_name, made.results["growth"])

    def about(self, made: Result) -> str:
        """Return the title of a page."""
        return "encoders with and without positions"

    def section(self, made: Result, place: SectionPlace) -> Html:
        """Return the losses, and outliers and positions by layer after the last step."""
        from probing.studies.pretrain.section import pretraining_section

        return pretraining_section(made, place.anchor)

    def terms(self, made: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        from probing.studies.pretrain.section import PRETRAINING

        return {self.title: PRETRAINING}


PRETRAIN = Pretrain()
