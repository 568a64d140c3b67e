"""The study `attention`: what the heads of a model do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from probing.results.rows import Html
from probing.runs.study import Result, SectionPlace, Study, Terms
from probing.studies.attention.command import SCHEMAS
from probing.tables import heads, position_heads
from probing.tables.heads import causal_conclusions

# --------------------------------------------------------------------------------------------------------------------
# The study of `attention`.
# --------------------------------------------------------------------------------------------------------------------


class Attention(Study):
    """What the heads of a model do."""

    name, kind, title = "attention", "survey of attention heads", "Attention heads"
    function = "probing.studies.attention.command:attention"
    in_several_processes = True
    schemas = SCHEMAS
    page = "attention.md"
    files: ClassVar[Mapping[str, str]] = {
        "examples.safetensors": "The maps of all heads in up to six short sentences, among which is a map of each "
        "class where there is one: `attention/0`, `attention/1`, ... (layers, heads, from, to), float16, which keeps "
        "three digits; its metadata are JSON: `layers`; `sentences`, each with its index in the corpus (`sentence`,"
        " from 0), `tokens`, which of them are `special`, `words`, the index of each token's word "
        "(`word_of_token`, -1 for special tokens) and of a treebank the `arcs` (dependent, head, relation; "
        "words from 0); `classes`, a map of each class: index of the sentence among these (`example`, from "
        "0), `layer, head`, and `share` of this head's maps that are of the class. Absent if no sentence has "
        "at most 12 words and 16 tokens.",
        "figures/": "`classes`, `entropy`, `relations` (layer by head), `special_tokens` (by layer), "
        "`position_neurons` (of three heads), `examples` (a map of each class); with `--against`, `change` (layer by "
        "head), `change_by_layer`; with `--parts fusion`, `fusion`.",
    }

    def tables(self, made: Result) -> list[Any]:
        """Return the survey."""
        return heads.tables(made.by_name) + position_heads.tables(made.by_name)

    def conclusions(self, made: Result) -> list[str]:
        """Return what the survey says, a sentence for each question."""
        is_causal = made.results.get("model", {}).get("is_causal", False)
        lines = heads.conclusions(made.by_name) + causal_conclusions(is_causal, made.heads)
        return lines + position_heads.conclusions(made.by_name)

    def about(self, made: Result) -> str:
        """Return the title of a page."""
        from probing.page.sources import model_name

        return f"attention heads of {model_name(made.config)}"

    def section(self, made: Result, place: SectionPlace) -> Html:
        """Return a map of all heads, example sentences of each, and the tables of the terminal."""
        from probing.studies.attention.section import survey_section

        return survey_section(made, place)

    def terms(self, made: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        from probing.studies.attention.section import terms_of_survey

        return terms_of_survey(made)


ATTENTION = Attention()
